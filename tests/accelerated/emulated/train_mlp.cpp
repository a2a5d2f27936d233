// Runs the kernel as a program: arguments from standard input, weights and loss to standard output.
#include <mlp.cu>

#include <cstdio>

static std::vector<float> x, kept, w1(HIDDEN1* INPUTS), w2(HIDDEN2* HIDDEN1), w3(CLASSES* HIDDEN2), p2, p3, lr(1), loss(1);
static std::vector<long long> y, order;
static int steps;

template <typename T>
static void read(std::vector<T>& values) {
    if (fread(values.data(), sizeof(T), values.size(), stdin) != values.size()) exit(2);
}

int main(int, char** words) {
    const int rows = atoi(words[1]), first = atoi(words[5]);
    steps = atoi(words[2]);
    x.resize(rows * INPUTS), kept.resize(rows * INPUTS), y.resize(rows), order.resize(steps * BATCH);
    if (atoi(words[3])) p2.resize(HIDDEN1 * HIDDEN1);
    if (atoi(words[4])) p3.resize(HIDDEN2 * HIDDEN2);
    read(x), read(kept), read(y), read(order), read(w1), read(w2), read(w3), read(p2), read(p3), read(lr), read(loss);
    emulated::launch(CLUSTER, THREADS, shared_bytes, first, [] {
        train_mlp(
            x.data(), kept.data(), y.data(), order.data(), w1.data(), w2.data(), w3.data(), p2.empty() ? nullptr : p2.data(),
            p3.empty() ? nullptr : p3.data(), lr.data(), loss.data(), steps
        );
    });
    for (const auto* values : {&w1, &w2, &w3, &loss}) fwrite(values->data(), sizeof(float), values->size(), stdout);
}
