/* Quotients of integers, towards zero, and what they leave; no divisor is 0. The smallest number
 * divided by -1 wraps.
 *
 * Processors divide integers one by one, and floats by vectors. A float quotient, however it is
 * rounded, has the whole part of the true one, which is a whole number or at least 1 / y away from
 * the next: of 16 bits in f32, of 32 bits in f64. */
#ifndef ETCH_BACKENDS_CPU_ISA_DIVIDE_H
#define ETCH_BACKENDS_CPU_ISA_DIVIDE_H

#include <immintrin.h>
#include <stdint.h>

#define SHORT_DIVISION(t, T)                                                                       \
    static inline T quotient_##t(T x, T y) { return (T)(int32_t)((float)x / (float)y); }           \
    static inline T rest_##t(T x, T y) { return (T)(x - quotient_##t(x, y) * y); }
SHORT_DIVISION(I8, int8_t)
SHORT_DIVISION(I16, int16_t)
SHORT_DIVISION(U8, uint8_t)

/* Without a branch, so that it is vectorised: by 1 instead of -1, and negated behind. */
static inline int32_t quotient_I32(int32_t x, int32_t y) {
    int32_t minus = -(y == -1), q = (int32_t)((double)x / (double)(y + (minus & 2)));
    return (int32_t)(((uint32_t)q ^ (uint32_t)minus) - (uint32_t)minus);
}
static inline int32_t rest_I32(int32_t x, int32_t y) {
    return (int32_t)((uint32_t)x - (uint32_t)quotient_I32(x, y) * (uint32_t)y);
}

#if defined(ETCH_ISA_avx512)
enum { LONGS = 8, NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

static inline __m512i estimated(__m512i x, __m512d y) {
    __m512d q = _mm512_div_round_pd(_mm512_cvt_roundepi64_pd(x, NEAREST), y, NEAREST);
    return _mm512_cvttpd_epi64(q);
}
static inline __m512i left_of(__m512i x, __m512i q, __m512i y) {
    return _mm512_sub_epi64(x, _mm512_mullo_epi64(q, y));
}

/* An estimate, off by some thousands at most, and another of what it leaves: their sum is off by
 * one at most. All wraps, so an estimate of 2^63, which no i64 is, does as well. */
static inline __m512i quotients_I64(__m512i x, __m512i y) {
    __m512i zero = _mm512_setzero_si512(), one = _mm512_set1_epi64(1);
    __m512d by = _mm512_cvt_roundepi64_pd(y, NEAREST);
    __m512i q = estimated(x, by);
    q = _mm512_add_epi64(q, estimated(left_of(x, q, y), by));
    __m512i r = left_of(x, q, y);
    __mmask8 other_sign = _mm512_movepi64_mask(_mm512_xor_si512(r, x));
    __mmask8 too_far = other_sign & _mm512_cmpneq_epi64_mask(r, zero);
    __mmask8 too_near = _mm512_cmpge_epu64_mask(_mm512_abs_epi64(r), _mm512_abs_epi64(y));
    too_near &= (__mmask8)~too_far;
    __mmask8 negative = _mm512_movepi64_mask(_mm512_xor_si512(x, y));
    __mmask8 up = (too_far & negative) | (too_near & ~negative), down = (too_far | too_near) & ~up;
    return _mm512_mask_sub_epi64(_mm512_mask_add_epi64(q, up, q, one), down, q, one);
}
static inline __m512i rests_I64(__m512i x, __m512i y) { return left_of(x, quotients_I64(x, y), y); }
#else
static inline int64_t quotient_I64(int64_t x, int64_t y) {
    return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}
static inline int64_t rest_I64(int64_t x, int64_t y) { return y == -1 ? 0 : x % y; }
#endif

#endif
