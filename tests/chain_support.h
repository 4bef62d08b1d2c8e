/* Sums of bf16 as the processor's tiles make them, written out. */
#ifndef ETCH_TESTS_CHAIN_SUPPORT_H
#define ETCH_TESTS_CHAIN_SUPPORT_H

#include <math.h>
#include <stdint.h>

static inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

/* AMX: 32 terms at a time, those at even and at odd places apart. */
static inline float tile_chain(const float *x, const float *y, int64_t k) {
    float sum = 0;
    for (int64_t at = 0; at < k; at += 32) {
        float part[2] = {0, 0};
        for (int64_t i = at; i < at + 32 && i < k; i++)
            part[i % 2] = flushed(fmaf(flushed(x[i]), flushed(y[i]), part[i % 2]));
        sum = flushed(sum + flushed(part[0] + part[1]));
    }
    return sum;
}

#endif
