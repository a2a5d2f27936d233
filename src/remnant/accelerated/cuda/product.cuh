// The product of a batch with a block's share of a matrix. The share stays in the registers of the block's threads.
#pragma once

constexpr int WARPS = 8, THREADS = 32 * WARPS, WIDE = 128, MOST_CLASSES = 16;
__device__ constexpr int divide(int a, int b) { return (a + b - 1) / b; }  // rounds up
__device__ constexpr int most(int a, int b) { return a > b ? a : b; }
__device__ constexpr int power(int least) { return least <= 1 ? 1 : 2 * power(divide(least, 2)); }  // the next power of two

// A lane has U units and every LANESth quad of columns. Four neighbouring lanes share their columns, so that they load the
// same inputs.
constexpr int SHARE1 = divide(HIDDEN1, CLUSTER), SHARE2 = divide(HIDDEN2, CLUSTER);
constexpr int U = divide(most(SHARE1, SHARE2), 4);
constexpr int PER_LANE = divide(BATCH * U, 8), ITEMS = 32 * PER_LANE;  // sums per lane of a warp, and per block
constexpr int HALF = WARPS / 2, LANES = 8 * WARPS;  // all warps share the columns of x; half of them share those of h
constexpr int SPARE = divide(INPUTS % (4 * LANES), LANES);
constexpr int QUADS = INPUTS / (4 * LANES) + (SPARE > 2), SINGLES = SPARE > 2 ? 0 : SPARE;
constexpr int STRIDE = LANES * (4 * QUADS + SINGLES);
constexpr int CLASS_PAIRS = divide(CLASSES, 2), SCORES = power(CLASSES);

// Halves the number of sums of a lane: it keeps those of its side and adds those of its neighbour at distance `mask`.
template <int KEEP>
__device__ inline void fold(float* sums, int mask) {
    const bool upper = threadIdx.x & mask;
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const float away = upper ? sums[i] : sums[i + KEEP], home = upper ? sums[i + KEEP] : sums[i];
        sums[i] = home + __shfl_xor_sync(~0u, away, mask);
    }
}

// A thread's columns: Q times four adjacent ones, then S single ones.
template <int Q, int S, int L, int ROW>
struct Product {
    float w[4 * Q + S][U];

    static __device__ int column(int part, int i) {
        return i < 4 * Q ? 4 * (i / 4 * L + part) + i % 4 : L * i + part;
    }

    // Loads the weights of the units from `first` on; missing units and columns are 0. `down` and `across` are the strides.
    __device__ void load(const float* from, int first, int share, int units, int columns, int part, int down, int across) {
#pragma unroll
        for (int i = 0; i < 4 * Q + S; i++)
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int own = threadIdx.x % 4 * U + u, at = column(part, i);
                const bool there = from != nullptr && own < share && first + own < units && at < columns;
                w[i][u] = there ? from[(first + own) * down + at * across] : 0.f;
            }
    }

    __device__ void store(float* into, int first, int share, int units, int columns, int part) const {
#pragma unroll
        for (int i = 0; i < 4 * Q + S; i++)
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int own = threadIdx.x % 4 * U + u, at = column(part, i);
                if (own < share && first + own < units && at < columns) into[(first + own) * columns + at] = w[i][u];
            }
    }

    // Writes the warp's partial sums of in·Wᵀ to `into`.
    __device__ void multiply(const float (*in)[ROW], int part, float* into) const {
        float sums[8 * PER_LANE] = {};
#pragma unroll
        for (int q = 0; q < Q; q++)
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const float4 v = *reinterpret_cast<const float4*>(&in[b][column(part, 4 * q)]);
#pragma unroll
                for (int u = 0; u < U; u++) {
                    float& sum = sums[b * U + u];
                    sum = fmaf(v.x, w[4 * q][u], sum);
                    sum = fmaf(v.y, w[4 * q + 1][u], sum);
                    sum = fmaf(v.z, w[4 * q + 2][u], sum);
                    sum = fmaf(v.w, w[4 * q + 3][u], sum);
                }
            }
#pragma unroll
        for (int i = 4 * Q; i < 4 * Q + S; i++)
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const float v = in[b][column(part, i)];
#pragma unroll
                for (int u = 0; u < U; u++) sums[b * U + u] = fmaf(v, w[i][u], sums[b * U + u]);
            }
        fold<4 * PER_LANE>(sums, 16);
        fold<2 * PER_LANE>(sums, 8);
        fold<PER_LANE>(sums, 4);
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) into[32 * j + threadIdx.x % 32] = sums[j];
    }

    // W ← W − lr·leftᵀ·right, where `left` holds each row's values of the units from `own` on.
    template <int LEFT>
    __device__ void update(const float (*left)[LEFT], int own, const float (*right)[ROW], int part, float lr) {
        float l[BATCH][U];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int u = 0; u < U; u++) l[b][u] = left[b][own + u];
#pragma unroll
        for (int q = 0; q < Q; q++) {
            float sums[4][U] = {};
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const float4 v = *reinterpret_cast<const float4*>(&right[b][column(part, 4 * q)]);
#pragma unroll
                for (int u = 0; u < U; u++) {
                    sums[0][u] = fmaf(l[b][u], v.x, sums[0][u]);
                    sums[1][u] = fmaf(l[b][u], v.y, sums[1][u]);
                    sums[2][u] = fmaf(l[b][u], v.z, sums[2][u]);
                    sums[3][u] = fmaf(l[b][u], v.w, sums[3][u]);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int u = 0; u < U; u++) w[4 * q + i][u] = fmaf(-lr, sums[i][u], w[4 * q + i][u]);
        }
#pragma unroll
        for (int i = 4 * Q; i < 4 * Q + S; i++) {
            float sums[U] = {};
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const float v = right[b][column(part, i)];
#pragma unroll
                for (int u = 0; u < U; u++) sums[u] = fmaf(l[b][u], v, sums[u]);
            }
#pragma unroll
            for (int u = 0; u < U; u++) w[i][u] = fmaf(-lr, sums[u], w[i][u]);
        }
    }
};
