/* Philox 4x32-10 and its way to uniform numbers, for one instruction set: plain loops over counters. */
#include "backends/cpu/table.h"

static inline uint32_t high(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }

static void philox(uint64_t seed, uint64_t first, uint32_t *const w[4], int64_t n) {
    uint32_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {
        uint64_t counter = first + (uint64_t)i;
        uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        _Pragma("GCC unroll 10") for (int round = 0; round < 10; round++) {
            uint32_t n0 = high(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = high(0xD2511F53u, c0) ^ c3 ^ k1;
            c1 = 0xCD9E8D57u * c2, c3 = 0xD2511F53u * c0, c0 = n0, c2 = n2;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        w0[i] = c0, w1[i] = c1, w2[i] = c2, w3[i] = c3;
    }
}

static void uniform_f32(float *dst, const uint32_t *w, int bits, int64_t n) {
    int shift = 32 - bits;
    float scale = 1.0f / (float)(1 << bits);
    for (int64_t i = 0; i < n; i++) dst[i] = (float)(int32_t)(w[i] >> shift) * scale;
}

static void uniform_f64(double *dst, const uint32_t *hi, const uint32_t *lo, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t v = ((uint64_t)hi[i] << 32 | lo[i]) >> 11;
        dst[i] = (double)(int64_t)v * 0x1p-53;
    }
}

const random_table ISA_NAME(random) = {
    .philox = philox, .uniform_f32 = uniform_f32, .uniform_f64 = uniform_f64};
