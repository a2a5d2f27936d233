// Many steps of plain SGD on a network of three fully connected layers, as one launch of one cluster of eight blocks.
//
// Each layer with input x, weight W and projection P = I − M·Mᵀ (Eq. 6–7) makes the step W ← W − lr·δᵀ·(x·P) in float32. The
// inputs of the first layer arrive already projected (`kept`). P2 and P3 may be null; the whole gradient is then used.
//
// Each block owns an eighth of the units of both hidden layers. Its rows of W1 and W2, its columns of W2, P2 and P3 stay in
// the registers of its threads. (Two blocks hold each weight of W2; both compute bit-equal updates.) W3 is in the shared
// memory of every block. A block reads whole batches of x, so W1 needs no other block. Every block sends the outputs of its
// first-layer units to all blocks and meets them at a barrier, does the same for the second layer, and computes the rest
// (scores, loss, δ3, δ2) by itself. So a step has two cluster barriers:
//
//   between        h1 (before 1)   h2, h1·P2 (before 2)   h2·P3 (before the next 1)      are written by all blocks
//   1 and 2           read                                    read
//   2 and next 1                          read
//
// No value is read and written between the same two barriers.
//
// The cost of a step of 784-100-100-10 with batch 10, in instructions per scheduler. A scheduler has two of the eight warps
// and issues one instruction per clock (as compiled for sm_90; 248 registers, no spills):
//   z1 = x·W1ᵀ          2 × 750: 520 FMA, 40 loads, 140 to add over lanes                                         1,500
//   W1 and W2 update    2 × 850: 750 FMA, 100 loads                                                               1,700
//   h1·W2ᵀ, h1·P2, δ2·W2, h2·P3 and W3 update    4 × 330 + 130: 160 FMA, 140 to add over lanes each                  1,450
//   scores, softmax, loss, δ3, δ2    2 × 550, in some twenty rounds that wait for each other                      1,100
//   sums of the warps' sums, fetching, writing to the other blocks                                              1,100
// These are 6,900 instructions, or 9,000 clocks if three clocks in four issue one. Six block barriers and two cluster
// barriers, whose release goes to the L2 cache and back, add about 2,000. The total is 11,000 clocks, 6 µs at 1.8 GHz. Shared
// memory (32 words per clock) is busy for 5,000 of them, the multipliers (128 per clock) for 2,700. An H200 takes at most
// 9.4 µs, measured as an epoch with its validation divided by its steps.

#include <cluster.cuh>
#include <head.cuh>
#include <product.cuh>
#include <shared.cuh>

extern "C" __constant__ int shared_bytes = sizeof(Shared);  // the launcher reads this

// Starts copying the next rows of x or of the projected x; half a warp copies one row.
__device__ inline void fetch(float (*into)[STRIDE], const float* from, const long long* rows) {
    constexpr int WIDTH = ALIGNED ? 4 : 1;
    const int b = threadIdx.x / 16;
    if (b >= BATCH) return;
    const float* row = from + rows[b] * INPUTS;
#pragma unroll 4
    for (int at = threadIdx.x % 16 * WIDTH; at < INPUTS; at += 16 * WIDTH) copy_async<4 * WIDTH>(&into[b][at], row + at);
}

// Calls take(b, unit) if the warp's sum number `item` belongs to one of the block's units.
template <typename Take>
__device__ inline void at_item(int item, int first, int share, int units, Take take) {
    const int of = item % 32 / 4 * PER_LANE + item / 32, own = item % 4 * U + of % U;
    if (of < BATCH * U && own < share && first + own < units) take(of / U, own);
}

__device__ inline float add_up(const Shared& shared, int from, int warps, int item) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < warps; warp++) sum += shared.sums[from + warp][item];
    return sum;
}

__device__ inline float relu(float z) { return z < 0 ? 0 : z; }  // NaN stays NaN, as in torch

__device__ inline void put_to_all(float* here, float value) {
#pragma unroll
    for (int rank = 0; rank < CLUSTER; rank++) put(here, rank, value);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
train_mlp(
    const float* x, const float* kept, const long long* y, const long long* order, float* w1, float* w2, float* w3,
    const float* p2, const float* p3, const float* lr_at, float* loss_at, int steps
) {
    SHARED_ROOM(Shared);
    const int thread = threadIdx.x, warp = thread / 32, rank = cluster_rank();
    const int part = warp * 8 + thread % 32 / 4, part_of_half = warp % HALF * 8 + thread % 32 / 4;
    const int first1 = rank * SHARE1, first2 = rank * SHARE2, own = thread % 4 * U;
    const bool second = warp >= HALF;  // one half of the warps has the rows of W2 and P3, the other has P2 and the columns of W2
    const float lr = *lr_at;

    for (int i = thread; i < (int)(sizeof(Shared) / 4); i += THREADS) reinterpret_cast<float*>(&shared)[i] = 0;
    Product<QUADS, SINGLES, LANES, STRIDE> layer1;
    Product<1, 0, LANES / 2, WIDE> onward, back;  // multiply h1 by W2 | P2, and h2 | δ2 by P3 | W2
    layer1.load(w1, first1, SHARE1, HIDDEN1, INPUTS, part, INPUTS, 1);
    if (second) {
        onward.load(p2, first1, SHARE1, HIDDEN1, HIDDEN1, part_of_half, 1, HIDDEN1);
        back.load(w2, first1, SHARE1, HIDDEN1, HIDDEN2, part_of_half, 1, HIDDEN1);
    } else {
        onward.load(w2, first2, SHARE2, HIDDEN2, HIDDEN1, part_of_half, HIDDEN1, 1);
        back.load(p3, first2, SHARE2, HIDDEN2, HIDDEN2, part_of_half, 1, HIDDEN2);
    }
    __syncthreads();
    for (int i = thread; i < CLASSES * HIDDEN2; i += THREADS) shared.w3[i / HIDDEN2][i % HIDDEN2] = w3[i];
    if (thread < BATCH) {
        shared.rows[0][thread] = order[thread];
        shared.rows[1][thread] = steps > 1 ? order[BATCH + thread] : 0;
        shared.label[0][thread] = (int)y[order[thread]];
    }
    __syncthreads();
    fetch(shared.x, x, shared.rows[0]);
    wait_for_copies();
    cluster_arrive();  // no block may write into another's memory before it is cleared
    cluster_wait();

    float loss = 0;
    for (int step = 0; step < steps; step++) {
        layer1.multiply(shared.x, part, shared.sums[warp]);
        __syncthreads();
        if (thread < ITEMS)
            at_item(thread, first1, SHARE1, HIDDEN1, [&](int b, int unit) {
                const float h = relu(add_up(shared, 0, WARPS, thread));
                shared.mine1[thread] = h;
                put_to_all(&shared.h1[b][first1 + unit], h);
            });
        cluster_arrive();
        // All threads of the block are done with x and with the projected rows of the last batch.
        const bool more = step + 1 < steps;
        fetch(shared.kept, kept, shared.rows[step % 3]);
        if (more) fetch(shared.x, x, shared.rows[(step + 1) % 3]);
        long long row_after = 0, label_after = 0;
        if (thread < BATCH) {
            if (step + 2 < steps) row_after = order[(long long)(step + 2) * BATCH + thread];
            if (more) label_after = y[shared.rows[(step + 1) % 3][thread]];
        }
        cluster_wait();

        if (step) update_head(shared, lr);  // of the previous step, whose h2·P3 is complete only now
        if (!second || p2) onward.multiply(shared.h1, part_of_half, shared.sums[warp]);
        __syncthreads();
        for (int i = thread; i < 2 * ITEMS; i += THREADS) {
            const int item = i % ITEMS;
            if (i < ITEMS)
                at_item(item, first2, SHARE2, HIDDEN2, [&](int b, int unit) {
                    const float h = relu(add_up(shared, 0, HALF, item));
                    shared.mine2[item] = h;
                    put_to_all(&shared.h2[b][first2 + unit], h);
                });
            else
                at_item(item, first1, SHARE1, HIDDEN1, [&](int b, int unit) {
                    put_to_all(&shared.kept1[b][first1 + unit], p2 ? add_up(shared, HALF, HALF, item) : shared.mine1[item]);
                });
        }
        cluster_arrive();
        Head head;
        head.load(shared);
        cluster_wait();

        loss += head.pass(shared, shared.label[step % 2]);
        if (thread < BATCH) {
            shared.rows[(step + 2) % 3][thread] = row_after;
            shared.label[(step + 1) % 2][thread] = (int)label_after;
        }
        __syncthreads();
        if (second || p3) back.multiply(second ? shared.d2 : shared.h2, part_of_half, shared.sums[warp]);
        __syncthreads();
        for (int i = thread; i < 2 * ITEMS; i += THREADS) {
            const int item = i % ITEMS;
            if (i < ITEMS)
                at_item(item, first2, SHARE2, HIDDEN2, [&](int b, int unit) {
                    put_to_all(&shared.kept2[b][first2 + unit], p3 ? add_up(shared, 0, HALF, item) : shared.mine2[item]);
                });
            else
                at_item(item, first1, SHARE1, HIDDEN1, [&](int b, int unit) {
                    shared.d1[b][unit] = shared.mine1[item] <= 0 ? 0 : add_up(shared, HALF, HALF, item);
                });
        }
        wait_for_copies();
        __syncthreads();
        layer1.update(shared.d1, own, shared.kept, part, lr);
        if (second)
            back.update(shared.kept1, first1 + own, shared.d2, part_of_half, lr);
        else
            onward.update(shared.d2, first2 + own, shared.kept1, part_of_half, lr);
    }
    cluster_arrive();
    cluster_wait();
    update_head(shared, lr);
    layer1.store(w1, first1, SHARE1, HIDDEN1, INPUTS, part);
    if (!second) onward.store(w2, first2, SHARE2, HIDDEN2, HIDDEN1, part_of_half);
    if (thread % 16 == 0) shared.loss[thread / 16] = loss;
    __syncthreads();
    if (rank) return;
    for (int i = thread; i < CLASSES * HIDDEN2; i += THREADS) w3[i] = shared.w3[i / HIDDEN2][i % HIDDEN2];
    if (thread == 0) {
        for (int b = 1; b < BATCH; b++) loss += shared.loss[b];
        *loss_at += loss / BATCH;
    }
}
