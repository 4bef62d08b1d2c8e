/* What core/ops/functions.h computes with, for one instruction set: vectors of all lanes of a
 * register (suffixes f32v, f64v), and single numbers (f32, f64) for operands that are treated one
 * by one.
 *
 * A truth is what comparing two vectors gives: a mask register in AVX-512, else lanes of all bits
 * set or none. Operators of C do the rest: + - * / on reals, & | ~ ^ << >> + - on words. The first
 * n lanes can be read from memory, ones behind them, and stored. The inverse is 1 / x, or what is
 * within 2^-14 of it where the processor defines that exactly. */
#ifndef ETCH_BACKENDS_CPU_ISA_LANES_H
#define ETCH_BACKENDS_CPU_ISA_LANES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define FN static inline __attribute__((always_inline, unused))
#define TABLE static const
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;

/* ---- single numbers ---- */

#define ONE_NUMBER(t, T, U, S, f)                                                                  \
    typedef T reals_##t;                                                                           \
    typedef U words_##t;                                                                           \
    typedef S ints_##t;                                                                            \
    typedef bool truth_##t;                                                                        \
    FN U bits_##t(T x) {                                                                           \
        U u;                                                                                       \
        memcpy(&u, &x, sizeof u);                                                                  \
        return u;                                                                                  \
    }                                                                                              \
    FN T real_##t(U u) {                                                                           \
        T x;                                                                                       \
        memcpy(&x, &u, sizeof x);                                                                  \
        return x;                                                                                  \
    }                                                                                              \
    FN T abs_##t(T x) { return __builtin_fabs##f(x); }                                             \
    FN T root_##t(T x) { return __builtin_sqrt##f(x); }                                            \
    FN bool less_##t(T a, T b) { return a < b; }                                                   \
    FN bool same_##t(T a, T b) { return a == b; }                                                  \
    FN bool int_less_##t(S a, S b) { return a < b; }                                               \
    FN T where_##t(bool m, T a, T b) { return m ? a : b; }                                         \
    FN T most_##t(T a, T b) { return a > b ? a : b; }                                              \
    FN T least_##t(T a, T b) { return a < b ? a : b; }                                             \
    FN bool no_##t(bool m) { return !m; }                                                          \
    FN bool odd_##t(U u) { return u & 1; }                                                         \
    FN T inverse_##t(T x) { return 1 / x; }
ONE_NUMBER(f32, float, u32, i32, f)
ONE_NUMBER(f64, double, u64, i64, )
FN u64 high_product(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }

/* ---- vectors ---- */

#if defined(ETCH_ISA_avx512)
enum { VECTOR_BYTES = 64 };
#define REGISTER(operation) _mm512_##operation
#elif defined(ETCH_ISA_avx2)
enum { VECTOR_BYTES = 32 };
#define REGISTER(operation) _mm256_##operation
#else
enum { VECTOR_BYTES = 16 };
#define REGISTER(operation) _mm_##operation
#endif

#define VECTOR(t, s, T, U, S, SIGN)                                                                \
    typedef T reals_##t __attribute__((vector_size(VECTOR_BYTES)));                                \
    typedef U words_##t __attribute__((vector_size(VECTOR_BYTES)));                                \
    typedef S ints_##t __attribute__((vector_size(VECTOR_BYTES)));                                 \
    FN words_##t bits_##t(reals_##t x) { return (words_##t)x; }                                    \
    FN reals_##t real_##t(words_##t u) { return (reals_##t)u; }                                    \
    FN reals_##t abs_##t(reals_##t x) { return (reals_##t)((words_##t)x & ~(U)SIGN); }             \
    FN reals_##t most_##t(reals_##t a, reals_##t b) { return REGISTER(max_##s)(a, b); }            \
    FN reals_##t least_##t(reals_##t a, reals_##t b) { return REGISTER(min_##s)(a, b); }           \
    FN reals_##t root_##t(reals_##t x) { return REGISTER(sqrt_##s)(x); }
VECTOR(f32v, ps, float, u32, i32, 0x80000000u)
VECTOR(f64v, pd, double, u64, i64, 0x8000000000000000u)

#if defined(ETCH_ISA_avx512)
#define MASKED(t, s, i, M)                                                                         \
    typedef M truth_##t;                                                                           \
    FN M less_##t(reals_##t a, reals_##t b) { return _mm512_cmp_##s##_mask(a, b, _CMP_LT_OQ); }    \
    FN M same_##t(reals_##t a, reals_##t b) { return _mm512_cmp_##s##_mask(a, b, _CMP_EQ_OQ); }    \
    FN M int_less_##t(ints_##t a, ints_##t b) {                                                    \
        return _mm512_cmplt_##i##_mask((__m512i)a, (__m512i)b);                                    \
    }                                                                                              \
    FN M odd_##t(words_##t u) {                                                                    \
        return _mm512_test_##i##_mask((__m512i)u, (__m512i)((words_##t){0} + 1));                  \
    }                                                                                              \
    FN M no_##t(M m) { return (M)~m; }                                                             \
    FN bool any_##t(M m) { return m != 0; }                                                        \
    FN reals_##t where_##t(M m, reals_##t a, reals_##t b) {                                        \
        return _mm512_mask_blend_##s(m, b, a);                                                     \
    }                                                                                              \
    FN reals_##t first_##t(const void *p, int64_t n) {                                             \
        return _mm512_mask_loadu_##s((reals_##t){0} + 1, (M)((1u << n) - 1), p);                   \
    }                                                                                              \
    FN void store_first_##t(void *p, int64_t n, reals_##t x) {                                     \
        _mm512_mask_storeu_##s(p, (M)((1u << n) - 1), x);                                          \
    }
MASKED(f32v, ps, epi32, __mmask16)
MASKED(f64v, pd, epi64, __mmask8)
FN reals_f32v inverse_f32v(reals_f32v x) { return _mm512_rcp14_ps(x); }
FN reals_f64v inverse_f64v(reals_f64v x) { return 1 / x; }
#else
#ifdef ETCH_ISA_avx2
#define CHOSEN(t, s, m, a, b) REGISTER(blendv_##s)(b, a, (reals_##t)m)
#else
#define CHOSEN(t, s, m, a, b) (reals_##t)((m & (ints_##t)a) | (~m & (ints_##t)b))
#endif
#define LANES(t, s)                                                                                \
    typedef ints_##t truth_##t;                                                                    \
    FN truth_##t less_##t(reals_##t a, reals_##t b) { return (truth_##t)(a < b); }                 \
    FN truth_##t same_##t(reals_##t a, reals_##t b) { return (truth_##t)(a == b); }                \
    FN truth_##t int_less_##t(ints_##t a, ints_##t b) { return (truth_##t)(a < b); }               \
    FN truth_##t odd_##t(words_##t u) { return (truth_##t)(0 - (u & 1)); }                         \
    FN truth_##t no_##t(truth_##t m) { return ~m; }                                                \
    FN bool any_##t(truth_##t m) { return REGISTER(movemask_##s)((reals_##t)m) != 0; }             \
    FN reals_##t where_##t(truth_##t m, reals_##t a, reals_##t b) {                                \
        return CHOSEN(t, s, m, a, b);                                                              \
    }                                                                                              \
    FN reals_##t inverse_##t(reals_##t x) { return 1 / x; }                                        \
    FN reals_##t first_##t(const void *p, int64_t n) {                                             \
        reals_##t x = (reals_##t){0} + 1;                                                          \
        memcpy(&x, p, (size_t)n * sizeof x[0]);                                                    \
        return x;                                                                                  \
    }                                                                                              \
    FN void store_first_##t(void *p, int64_t n, reals_##t x) {                                     \
        memcpy(p, &x, (size_t)n * sizeof x[0]);                                                    \
    }
LANES(f32v, ps)
LANES(f64v, pd)
#endif

/* ---- a b + c and c - a b ---- */

#define FNMA_OF(t)                                                                                 \
    FN reals_##t fnma_##t(reals_##t a, reals_##t b, reals_##t c) { return fma_##t(-a, b, c); }
#ifdef __FMA__
#define EXACT_FMA 1
FN double fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
FN float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#define FUSED(t, s)                                                                                \
    FN reals_##t fma_##t(reals_##t a, reals_##t b, reals_##t c) {                                  \
        return REGISTER(fmadd_##s)(a, b, c);                                                       \
    }                                                                                              \
    FN reals_##t fnma_##t(reals_##t a, reals_##t b, reals_##t c) {                                 \
        return REGISTER(fnmadd_##s)(a, b, c);                                                      \
    }
FUSED(f64v, pd)
FUSED(f32v, ps)
#else
#define EXACT_FMA 0
#define ROUNDED_TWICE(t)                                                                           \
    FN reals_##t fma_##t(reals_##t a, reals_##t b, reals_##t c) { return a * b + c; }
ROUNDED_TWICE(f64)
ROUNDED_TWICE(f32)
ROUNDED_TWICE(f64v)
ROUNDED_TWICE(f32v)
FNMA_OF(f64v)
FNMA_OF(f32v)
#endif
FNMA_OF(f64)
FNMA_OF(f32)

#endif
