// The last layer with softmax and cross-entropy. Every block computes all of it.
#pragma once
#include <shared.cuh>

// Adds N = 2ⁿ sums over sixteen lanes. Afterwards the lanes that start at c·16/N of the sixteen have the c-th sum.
template <int N>
__device__ inline void fold_scores(float* sums, int mask = 8) {
    if constexpr (N > 1) {
        fold<N / 2>(sums, mask);
        fold_scores<N / 2>(sums, mask / 2);
    } else {
        for (; mask; mask /= 2) sums[0] += __shfl_xor_sync(~0u, sums[0], mask);
    }
}

// W3 ← W3 − lr·δ3ᵀ·(h2·P3). The threads of the second half take two classes and four columns each.
__device__ inline void update_head(Shared& shared, float lr) {
    for (int task = threadIdx.x - THREADS / 2; task < CLASS_PAIRS * WIDE / 4; task += THREADS / 2) {
        if (task < 0) return;
        const int c = task / (WIDE / 4) * 2, at = task % (WIDE / 4) * 4;
        float4 sums[2] = {};
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const float4 kept = *reinterpret_cast<const float4*>(&shared.kept2[b][at]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float d = shared.d3[b][c + i];
                sums[i].x = fmaf(d, kept.x, sums[i].x);
                sums[i].y = fmaf(d, kept.y, sums[i].y);
                sums[i].z = fmaf(d, kept.z, sums[i].z);
                sums[i].w = fmaf(d, kept.w, sums[i].w);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4& w = *reinterpret_cast<float4*>(&shared.w3[c + i][at]);
            w.x = fmaf(-lr, sums[i].x, w.x);
            w.y = fmaf(-lr, sums[i].y, w.y);
            w.z = fmaf(-lr, sums[i].z, w.z);
            w.w = fmaf(-lr, sums[i].w, w.w);
        }
    }
}

// Half a warp computes one row: scores = h2·W3ᵀ, the loss, δ3 = (softmax − label)/batch, and δ2 = δ3·W3 where h2 is not 0.
struct Head {
    float4 w[CLASSES][2];  // this lane's columns

    __device__ void load(const Shared& shared) {
#pragma unroll
        for (int c = 0; c < CLASSES; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                w[c][i] = *reinterpret_cast<const float4*>(&shared.w3[c][64 * i + threadIdx.x % 16 * 4]);
    }

    __device__ float pass(Shared& shared, const int* label) const {
        const int b = threadIdx.x / 16, lane = threadIdx.x % 16;
        const bool there = b < BATCH;
        float4 h[2] = {};
        float scores[SCORES] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (there) h[i] = *reinterpret_cast<const float4*>(&shared.h2[b][64 * i + 4 * lane]);
#pragma unroll
            for (int c = 0; c < CLASSES; c++) {
                scores[c] = fmaf(h[i].x, w[c][i].x, scores[c]);
                scores[c] = fmaf(h[i].y, w[c][i].y, scores[c]);
                scores[c] = fmaf(h[i].z, w[c][i].z, scores[c]);
                scores[c] = fmaf(h[i].w, w[c][i].w, scores[c]);
            }
        }
        fold_scores<SCORES>(scores);
        const float own = scores[0];
        const int right = there ? label[b] : 0;
        float top = -3.4e38f, total = 0, chosen = 0;
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
            scores[c] = __shfl_sync(~0u, own, threadIdx.x % 32 / 16 * 16 + c * (16 / SCORES));
            top = fmaxf(top, scores[c]);
            chosen = c == right ? scores[c] : chosen;
        }
#pragma unroll
        for (int c = 0; c < CLASSES; c++) total += scores[c] = expf(scores[c] - top);
        float4 d[2] = {};
        const float share = 1 / total;
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
            scores[c] = (scores[c] * share - (c == right ? 1.f : 0.f)) * (1.f / BATCH);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                d[i].x = fmaf(scores[c], w[c][i].x, d[i].x);
                d[i].y = fmaf(scores[c], w[c][i].y, d[i].y);
                d[i].z = fmaf(scores[c], w[c][i].z, d[i].z);
                d[i].w = fmaf(scores[c], w[c][i].w, d[i].w);
            }
        }
        if (!there) return 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4& d2 = *reinterpret_cast<float4*>(&shared.d2[b][64 * i + 4 * lane]);
            d2 = {h[i].x <= 0 ? 0 : d[i].x, h[i].y <= 0 ? 0 : d[i].y, h[i].z <= 0 ? 0 : d[i].z, h[i].w <= 0 ? 0 : d[i].w};
        }
        if (lane == 0)
#pragma unroll
            for (int c = 0; c < CLASSES; c++) shared.d3[b][c] = scores[c];
        return logf(total) + top - chosen;
    }
};
