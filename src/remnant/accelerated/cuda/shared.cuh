// The shared memory of a block.
#pragma once
#include <product.cuh>

struct Shared {
    float x[BATCH][STRIDE], kept[BATCH][STRIDE];
    float h1[BATCH][WIDE], kept1[BATCH][WIDE], h2[BATCH][WIDE], kept2[BATCH][WIDE], d2[BATCH][WIDE];
    float w3[2 * CLASS_PAIRS][WIDE];
    float d3[BATCH][MOST_CLASSES], d1[BATCH][16];  // d1 holds only the block's own units
    float sums[WARPS][ITEMS], mine1[ITEMS], mine2[ITEMS];
    long long rows[3][16];
    int label[2][16];
    float loss[16];
};
