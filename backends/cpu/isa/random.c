/* Philox 4x32-10 and its way to uniform numbers, for one instruction set. */
#include "backends/cpu/table.h"

#include <immintrin.h>

#if defined(ETCH_ISA_avx512)
typedef uint64_t vec __attribute__((vector_size(64)));
#define MULTIPLY(a, b) ((vec)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined(ETCH_ISA_avx2)
typedef uint64_t vec __attribute__((vector_size(32)));
#define MULTIPLY(a, b) ((vec)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#else
typedef uint64_t vec __attribute__((vector_size(16)));
#define MULTIPLY(a, b) ((vec)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#endif
enum { W = sizeof(vec) / 8 };

/* Words are the low halves of 64-bit lanes, as the instruction for 32 x 32 -> 64 bits wants
 * them; the high halves hold what is left over and are never looked at. */
static void philox_vector(uint64_t seed, uint64_t first, uint64_t words[4][W]) {
    vec c0, c1, c2 = {0}, c3 = {0}, m0 = {0}, m1 = {0};
    for (int i = 0; i < W; i++) c0[i] = first + (uint64_t)i;
    c1 = c0 >> 32, m0 += 0xD2511F53u, m1 += 0xCD9E8D57u;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    _Pragma("GCC unroll 10") for (int round = 0; round < 10; round++) {
        vec p0 = MULTIPLY(m0, c0), p1 = MULTIPLY(m1, c2);
        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0, c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c1 = p1, c3 = p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    memcpy(words[0], &c0, sizeof c0), memcpy(words[1], &c1, sizeof c1);
    memcpy(words[2], &c2, sizeof c2), memcpy(words[3], &c3, sizeof c3);
}

static void philox(uint64_t seed, uint64_t first, uint32_t *const w[4], int64_t n) {
    uint64_t words[4][W];
    for (int64_t i = 0; i < n; i += W) {
        philox_vector(seed, first + (uint64_t)i, words);
        int64_t count = n - i < W ? n - i : W;
        for (int k = 0; k < 4; k++) {
            if (count == W)
                for (int j = 0; j < W; j++) w[k][i + j] = (uint32_t)words[k][j];
            else
                for (int64_t j = 0; j < count; j++) w[k][i + j] = (uint32_t)words[k][j];
        }
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
