/* The scalar primitives of core/ops/prims.def over strips, for one instruction set.
 *
 * Plain loops are vectorised by the compiler; operands that are the same memory as the result
 * are no loop-carried dependence, which the pragma says. The transcendental ones are those of
 * functions.c. */
#include "backends/cpu/isa/divide.h"
#include "backends/cpu/isa/extremes.h"
#include "backends/cpu/isa/pick.h"
#include "backends/cpu/table.h"

#include <immintrin.h>
#include <math.h>

#define IVDEP _Pragma("GCC ivdep")
#define STRIP_ARGS void *dst, const void *a, const void *b, const void *c, int64_t n
#define UNUSED(v) (void)(v)

/* R, T: C types of result and operands. */
#define STRIP1(name, R, T, expression)                                                             \
    static void name(STRIP_ARGS) {                                                                 \
        UNUSED(b), UNUSED(c);                                                                      \
        R *d = dst;                                                                                \
        const T *pa = a;                                                                           \
        IVDEP for (int64_t i = 0; i < n; i++) {                                                    \
            T x = pa[i];                                                                           \
            d[i] = (R)(expression);                                                                \
        }                                                                                          \
    }
#define STRIP2(name, R, T, expression)                                                             \
    static void name(STRIP_ARGS) {                                                                 \
        UNUSED(c);                                                                                 \
        R *d = dst;                                                                                \
        const T *pa = a, *pb = b;                                                                  \
        IVDEP for (int64_t i = 0; i < n; i++) {                                                    \
            T x = pa[i], y = pb[i];                                                                \
            d[i] = (R)(expression);                                                                \
        }                                                                                          \
    }
#define STRIP3(name, R, C, T, expression)                                                          \
    static void name(STRIP_ARGS) {                                                                 \
        R *d = dst;                                                                                \
        const C *pa = a;                                                                           \
        const T *pb = b, *pc = c;                                                                  \
        IVDEP for (int64_t i = 0; i < n; i++) {                                                    \
            C x = pa[i];                                                                           \
            T y = pb[i], z = pc[i];                                                                \
            d[i] = (R)(expression);                                                                \
        }                                                                                          \
    }

/* X(suffix, C type) */
#define FLOAT_TYPES(X) X(F32, float) X(F64, double)
#define INT_TYPES(X) X(I8, int8_t) X(I16, int16_t) X(I32, int32_t) X(I64, int64_t) X(U8, uint8_t)
#define ALL_TYPES(X) FLOAT_TYPES(X) INT_TYPES(X) X(BOOL, uint8_t)

/* ---- arithmetic ---- */

/* Integers wrap: the library is built with -fwrapv. */
#define ARITHMETIC(t, T)                                                                           \
    STRIP2(add_##t, T, T, x + y)                                                                   \
    STRIP2(sub_##t, T, T, x - y)                                                                   \
    STRIP2(mul_##t, T, T, x *y)                                                                    \
    STRIP2(at_least_##t, T, T, ((y > x) | (y != y)) ? y : x)                                       \
    STRIP2(at_most_##t, T, T, ((y < x) | (y != y)) ? y : x)
FLOAT_TYPES(ARITHMETIC)
INT_TYPES(ARITHMETIC)
STRIP2(add_BOOL, uint8_t, uint8_t, x | y)
STRIP2(mul_BOOL, uint8_t, uint8_t, x &y)
STRIP2(at_least_BOOL, uint8_t, uint8_t, x > y ? x : y)
STRIP2(at_most_BOOL, uint8_t, uint8_t, x < y ? x : y)
#define EXTREMES(t, T)                                                                             \
    STRIP2(max_##t, T, T, larger_##t(x, y))                                                        \
    STRIP2(min_##t, T, T, smaller_##t(x, y))
ALL_TYPES(EXTREMES)

#define COMPARISONS(t, T)                                                                          \
    STRIP2(eq_##t, uint8_t, T, x == y)                                                             \
    STRIP2(ne_##t, uint8_t, T, x != y)                                                             \
    STRIP2(lt_##t, uint8_t, T, x < y)                                                              \
    STRIP2(le_##t, uint8_t, T, x <= y)
ALL_TYPES(COMPARISONS)
STRIP1(signbit_F32, uint8_t, uint32_t, x >> 31)
STRIP1(signbit_F64, uint8_t, uint64_t, x >> 63)
#define NEGATIVE(t, T) STRIP1(signbit_##t, uint8_t, T, x < 0)
NEGATIVE(I8, int8_t)
NEGATIVE(I16, int16_t)
NEGATIVE(I32, int32_t)
NEGATIVE(I64, int64_t)
STRIP1(signbit_U8, uint8_t, uint8_t, 0 & x)
STRIP1(signbit_BOOL, uint8_t, uint8_t, 0 & x)
/* On the bits: selection keeps a NaN as it is. */
STRIP3(select_8, uint8_t, uint8_t, uint8_t, x ? y : z)
STRIP3(select_16, uint16_t, uint8_t, uint16_t, x ? y : z)
STRIP3(select_32, uint32_t, uint8_t, uint32_t, x ? y : z)
STRIP3(select_64, uint64_t, uint8_t, uint64_t, x ? y : z)
#define select_F32 select_32
#define select_F64 select_64
#define select_I8 select_8
#define select_I16 select_16
#define select_I32 select_32
#define select_I64 select_64
#define select_U8 select_8
#define select_BOOL select_8
STRIP2(and_BOOL, uint8_t, uint8_t, (x != 0) & (y != 0))
STRIP2(or_BOOL, uint8_t, uint8_t, (x != 0) | (y != 0))
STRIP1(not_BOOL, uint8_t, uint8_t, x == 0)

STRIP2(div_F32, float, float, x / y)
STRIP2(div_F64, double, double, x / y)
STRIP1(sqrt_F32, float, float, __builtin_sqrtf(x))
STRIP1(sqrt_F64, double, double, __builtin_sqrt(x))
STRIP3(fma_F32, float, float, float, __builtin_fmaf(x, y, z))
STRIP3(fma_F64, double, double, double, __builtin_fma(x, y, z))
STRIP1(neg_F32, uint32_t, uint32_t, x ^ 0x80000000u)
STRIP1(neg_F64, uint64_t, uint64_t, x ^ 0x8000000000000000u)
STRIP1(abs_F32, uint32_t, uint32_t, x & 0x7fffffffu)
STRIP1(abs_F64, uint64_t, uint64_t, x & 0x7fffffffffffffffu)
#define SIGNS(t, T)                                                                                \
    STRIP1(neg_##t, T, T, -x)                                                                      \
    STRIP1(abs_##t, T, T, x < 0 ? -x : x)
SIGNS(I8, int8_t)
SIGNS(I16, int16_t)
SIGNS(I32, int32_t)
SIGNS(I64, int64_t)
STRIP1(neg_U8, uint8_t, uint8_t, -x)
STRIP1(abs_U8, uint8_t, uint8_t, x)
STRIP1(abs_BOOL, uint8_t, uint8_t, x)

/* Repeated squaring, wrapping; a negative exponent leaves 1 / x, which is whole for 1 and -1
 * only. */
#define INT_POW(t, T, U)                                                                           \
    static T power_##t(T x, T y) {                                                                 \
        U result = 1, base = (U)x;                                                                 \
        for (U e = (U)y; e; e >>= 1) {                                                             \
            if (e & 1) result = (U)((uint64_t)result * base);                                      \
            base = (U)((uint64_t)base * base);                                                     \
        }                                                                                          \
        return (T)result;                                                                          \
    }
#define SIGNED_POW(t, T, U)                                                                        \
    INT_POW(t, T, U)                                                                               \
    static T inverse_power_##t(T x, T y) { return x == 1 ? 1 : x != -1 ? 0 : y & 1 ? -1 : 1; }     \
    STRIP2(pow_##t, T, T, y < 0 ? inverse_power_##t(x, y) : power_##t(x, y))
SIGNED_POW(I8, int8_t, uint8_t)
SIGNED_POW(I16, int16_t, uint16_t)
SIGNED_POW(I32, int32_t, uint32_t)
SIGNED_POW(I64, int64_t, uint64_t)
INT_POW(U8, uint8_t, uint8_t)
STRIP2(pow_U8, uint8_t, uint8_t, power_U8(x, y))
STRIP2(pow_BOOL, uint8_t, uint8_t, x | (y == 0))

#define BITS(t, T)                                                                                 \
    enum { width_##t = 8 * sizeof(T) };                                                            \
    static inline bool shiftable_##t(T n) { return n >= 0 && n < (T)width_##t; }                   \
    STRIP2(bitand_##t, T, T, x &y)                                                                 \
    STRIP2(bitor_##t, T, T, x | y)                                                                 \
    STRIP2(bitxor_##t, T, T, x ^ y)                                                                \
    STRIP2(shl_##t, T, T, shiftable_##t(y) ? (uint64_t)x << (y & (width_##t - 1)) : 0)             \
    STRIP2(shr_##t, T, T, x >> (shiftable_##t(y) ? y & (width_##t - 1) : width_##t - 1))
BITS(I8, int8_t)
BITS(I16, int16_t)
BITS(I32, int32_t)
BITS(I64, int64_t)
STRIP2(bitand_U8, uint8_t, uint8_t, x &y)
STRIP2(bitor_U8, uint8_t, uint8_t, x | y)
STRIP2(bitxor_U8, uint8_t, uint8_t, x ^ y)
STRIP2(shl_U8, uint8_t, uint8_t, y < 8 ? x << (y & 7) : 0)
STRIP2(shr_U8, uint8_t, uint8_t, y < 8 ? x >> (y & 7) : 0)

#define DIVISIONS(t, T)                                                                            \
    STRIP2(quot_##t, T, T, quotient_##t(x, y))                                                     \
    STRIP2(rem_##t, T, T, rest_##t(x, y))
DIVISIONS(I8, int8_t)
DIVISIONS(I16, int16_t)
DIVISIONS(I32, int32_t)
DIVISIONS(U8, uint8_t)
#if defined(ETCH_ISA_avx512)
#define LONG_DIVISION(name, result)                                                                \
    static void name(STRIP_ARGS) {                                                                 \
        UNUSED(c);                                                                                 \
        for (int64_t i = 0; i < n; i += LONGS) {                                                   \
            __mmask8 there = n - i < LONGS ? (__mmask8)((1 << (n - i)) - 1) : 0xff;                \
            __m512i x = _mm512_maskz_loadu_epi64(there, (const int64_t *)a + i);                   \
            __m512i y = _mm512_set1_epi64(1);                                                      \
            y = _mm512_mask_loadu_epi64(y, there, (const int64_t *)b + i);                         \
            _mm512_mask_storeu_epi64((int64_t *)dst + i, there, result(x, y));                     \
        }                                                                                          \
    }
LONG_DIVISION(quot_I64, quotients_I64)
LONG_DIVISION(rem_I64, rests_I64)
#else
DIVISIONS(I64, int64_t)
#endif

/* ---- conversions ---- */

/* Between integers (wrapping), to floats, between floats: C's own conversion. */
#define CONVERT_C(f, F, t, T) STRIP1(convert_##f##_##t, T, F, x)
/* To bool: not zero (a NaN is not). */
#define CONVERT_BOOL(f, F) STRIP1(convert_##f##_BOOL, uint8_t, F, x != 0)
ALL_TYPES(CONVERT_BOOL)

/* Float to integer: truncated, saturating, NaN gives 0. Everything outside is replaced before
 * the cast, so that each lane's cast is defined; `lowest` and `over` (one past the top) are
 * exact in F. */
#define CONVERT_SATURATE(f, F, t, T, W, lowest, over, top)                                         \
    static inline T saturate_##f##_##t(F x) {                                                      \
        F y = x > (F)(lowest) ? x : (F)(lowest);                                                   \
        W v = (W)(y < (F)(over) ? y : (F)(lowest));                                                \
        v = x >= (F)(over) ? (W)(top) : v;                                                         \
        return (T)(x != x ? 0 : v);                                                                \
    }                                                                                              \
    STRIP1(convert_##f##_##t, T, F, saturate_##f##_##t(x))
#define CONVERT_FLOAT_INTS(f, F)                                                                   \
    CONVERT_SATURATE(f, F, I8, int8_t, int32_t, -128, 128, 127)                                    \
    CONVERT_SATURATE(f, F, I16, int16_t, int32_t, -32768, 32768, 32767)                            \
    CONVERT_SATURATE(f, F, I32, int32_t, int32_t, -0x1p31, 0x1p31, INT32_MAX)                      \
    CONVERT_SATURATE(f, F, I64, int64_t, int64_t, -0x1p63, 0x1p63, INT64_MAX)                      \
    CONVERT_SATURATE(f, F, U8, uint8_t, int32_t, 0, 256, 255)
FLOAT_TYPES(CONVERT_FLOAT_INTS)

CONVERT_C(F32, float, F64, double)
CONVERT_C(F64, double, F32, float)
#define CONVERT_INT(f, F)                                                                          \
    CONVERT_C(f, F, F32, float)                                                                    \
    CONVERT_C(f, F, F64, double)                                                                   \
    CONVERT_C(f, F, I8, int8_t)                                                                    \
    CONVERT_C(f, F, I16, int16_t)                                                                  \
    CONVERT_C(f, F, I32, int32_t)                                                                  \
    CONVERT_C(f, F, I64, int64_t)                                                                  \
    CONVERT_C(f, F, U8, uint8_t)
INT_TYPES(CONVERT_INT)
CONVERT_INT(BOOL, uint8_t)
CONVERT_C(F32, uint32_t, F32, uint32_t)
CONVERT_C(F64, uint64_t, F64, uint64_t)

/* ---- half types: integer arithmetic, the same bits everywhere ---- */

static inline uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
static inline float float_of(uint32_t u) {
    float v;
    memcpy(&v, &u, 4);
    return v;
}

/* One of two by masks: a choice by branches would keep the float arithmetic of an arm, which may
 * set flags, from being vectorised. */
static inline uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
    uint32_t mask = -(uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline uint32_t bf16_rounded(uint32_t u) {
    uint32_t nearest = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    uint32_t quiet = (u | 0x400000u) & 0xffff0000u;
    return (u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest;
}

/* Below 2^-14 the grid is the multiples of 2^-24: the significand is shifted to that unit, with
 * ties to even; q times 2^-24 is exact. */
static inline uint32_t f16_rounded(uint32_t u) {
    uint32_t mag = u & 0x7fffffffu, e = mag >> 23;
    uint32_t nearest = (mag + 0xfff + (mag >> 13 & 1)) & 0xffffe000u;
    nearest = nearest >= 0x47800000u ? 0x7f800000u : nearest;
    uint32_t m = (mag & 0x7fffffu) | 0x800000u;
    uint32_t s = e > 101 ? (e < 113 ? 126 - e : 14) : 25;
    int32_t q = (int32_t)((m + (1u << (s - 1)) - 1 + (m >> s & 1)) >> s);
    uint32_t small = bits_of((float)q * 0x1p-24f);
    uint32_t quiet = (mag | 0x400000u) & 0xffffe000u;
    uint32_t r = choose(mag < 0x38800000u, small, nearest);
    return (u & 0x80000000u) | choose(mag > 0x7f800000u, quiet, r);
}

static inline uint32_t f16_widened(uint32_t h) {
    uint32_t mag = (h & 0x7fffu) << 13;
    uint32_t normal = mag + (112u << 23);
    uint32_t special = mag + (224u << 23);
    uint32_t small = bits_of((float)(int32_t)(h & 0x7fffu) * 0x1p-24f);
    uint32_t r = choose(mag < (1u << 23), small, normal);
    return (h & 0x8000u) << 16 | choose(mag >= (31u << 23), special, r);
}

/* Of a value already on the grid. */
static inline uint16_t f16_narrowed(uint32_t u) {
    uint32_t mag = u & 0x7fffffffu;
    uint32_t normal = (mag - (112u << 23)) >> 13;
    uint32_t special = 0x7c00u | (mag >> 13 & 0x3ffu);
    float clamped = float_of(mag < 0x38800000u ? mag : 0);
    uint32_t small = (uint32_t)(int32_t)(clamped * 0x1p24f);
    uint32_t r = choose(mag < 0x38800000u, small, normal);
    r = choose(mag >= 0x7f800000u, special, r);
    return (uint16_t)((u >> 16 & 0x8000u) | (r & 0x7fffu));
}

STRIP1(round_bf16_F32, uint32_t, uint32_t, bf16_rounded(x))
STRIP1(widen_bf16, uint32_t, uint16_t, (uint32_t)x << 16)
STRIP1(narrow_bf16, uint16_t, uint32_t, x >> 16)
STRIP1(store_bf16, uint16_t, uint32_t, bf16_rounded(x) >> 16)

/* The processor's conversions round as told and keep denormals, whatever its modes are. They make
 * NaNs quiet, as rounding does; what is only widened or narrowed stays as it is: vectors with a NaN
 * take the way on the bits. */
#if defined(ETCH_ISA_avx512) || defined(ETCH_ISA_avx2)
#if defined(ETCH_ISA_avx512)
enum { HALVES = 16 };
typedef __m256i halves;
typedef __m512 floats;
#define FROM_HALVES(h) _mm512_cvtph_ps(h)
#define TO_HALVES(x) _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
static inline bool some_nan(floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
#else
enum { HALVES = 8 };
typedef __m128i halves;
typedef __m256 floats;
#define FROM_HALVES(h) _mm256_cvtph_ps(h)
#define TO_HALVES(x) _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
static inline bool some_nan(floats x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0;
}
#endif
static inline halves f16_load(const uint16_t *p) {
    halves h;
    memcpy(&h, p, sizeof h);
    return h;
}
static inline floats f32_load(const uint32_t *p) {
    floats x;
    memcpy(&x, p, sizeof x);
    return x;
}
static __attribute__((noinline)) void widen_bits(uint32_t *d, const uint16_t *p) {
    for (int i = 0; i < HALVES; i++) d[i] = f16_widened(p[i]);
}
static __attribute__((noinline)) void narrow_bits(uint16_t *d, const uint32_t *p) {
    for (int i = 0; i < HALVES; i++) d[i] = f16_narrowed(p[i]);
}
static inline void widen_halves(uint32_t *d, const uint16_t *p) {
    floats x = FROM_HALVES(f16_load(p));
    if (__builtin_expect(some_nan(x), 0)) widen_bits(d, p);
    else memcpy(d, &x, sizeof x);
}
static inline void narrow_halves(uint16_t *d, const uint32_t *p) {
    floats x = f32_load(p);
    halves h = TO_HALVES(x);
    if (__builtin_expect(some_nan(x), 0)) narrow_bits(d, p);
    else memcpy(d, &h, sizeof h);
}
static inline void store_halves(uint16_t *d, const uint32_t *p) {
    halves h = TO_HALVES(f32_load(p));
    memcpy(d, &h, sizeof h);
}
static inline void round_halves(uint32_t *d, const uint32_t *p) {
    floats x = FROM_HALVES(TO_HALVES(f32_load(p)));
    memcpy(d, &x, sizeof x);
}
#define HALF_STRIP(name, R, T, by, one)                                                            \
    static void name(STRIP_ARGS) {                                                                 \
        R *d = dst, to[HALVES];                                                                    \
        const T *p = a;                                                                            \
        UNUSED(b), UNUSED(c);                                                                      \
        for (; n >= HALVES; n -= HALVES, p += HALVES, d += HALVES) by(d, p);                       \
        if (n < 1) return;                                                                         \
        T from[HALVES] = {0};                                                                      \
        memcpy(from, p, (size_t)n * sizeof *p);                                                    \
        by(to, from);                                                                              \
        memcpy(d, to, (size_t)n * sizeof *d);                                                      \
    }
#else
#define HALF_STRIP(name, R, T, by, one) STRIP1(name, R, T, one)
#endif
HALF_STRIP(round_f16_F32, uint32_t, uint32_t, round_halves, f16_rounded(x))
HALF_STRIP(widen_f16, uint32_t, uint16_t, widen_halves, f16_widened(x))
HALF_STRIP(narrow_f16, uint16_t, uint32_t, narrow_halves, f16_narrowed(x))
HALF_STRIP(store_f16, uint16_t, uint32_t, store_halves, f16_narrowed(f16_rounded(x)))

#define ROUND_ROWS(name)                                                                           \
    static void name##_rows(void *dst, int64_t dst_row, const float *src, int64_t src_row,         \
                            int64_t rows, int64_t cols) {                                          \
        uint16_t *to = dst;                                                                        \
        for (int64_t r = 0; r < rows; r++) name(to + r * dst_row, src + r * src_row, 0, 0, cols);  \
    }
ROUND_ROWS(store_bf16)
ROUND_ROWS(store_f16)

/* ---- functions ---- */

#define DECLARE_GIVEN(name)
#define DECLARE_CONVERSION(name)
#define DECLARE_INLINE(name)
#define DECLARE_EAGER(name)
#define DECLARE_FUNCTION(name)                                                                     \
    STRIP_OF(name, f32);                                                                           \
    STRIP_OF(name, f64);
#define PRIM(id, name, arity, types, class, meaning) DECLARE_##class(name)
#include "core/ops/prims.def"

/* ---- moving elements ---- */

#define MOVES(bits)                                                                                \
    static void gather_##bits(void *dst, const void *src, int64_t stride, int64_t n) {             \
        uint##bits##_t *d = dst;                                                                   \
        const uint##bits##_t *s = src;                                                             \
        if (stride == 1) memcpy(d, s, (size_t)n * sizeof *d);                                      \
        else pick_##bits(d, s, stride, n);                                                         \
    }                                                                                              \
    static void scatter_##bits(void *dst, int64_t stride, const void *src, int64_t n) {            \
        uint##bits##_t *d = dst;                                                                   \
        const uint##bits##_t *s = src;                                                             \
        if (stride == 1) memcpy(d, s, (size_t)n * sizeof *d);                                      \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) d[i * stride] = s[i];                                  \
    }                                                                                              \
    static void block_##bits(void *dst, int64_t dst_row, int64_t dst_col, const void *src,         \
                             int64_t src_row, int64_t src_col, int64_t rows, int64_t cols) {       \
        uint##bits##_t *d = dst;                                                                   \
        const uint##bits##_t *s = src;                                                             \
        for (int64_t r = 0; r < rows; r++, d += dst_row, s += src_row)                             \
            for (int64_t c = 0; c < cols; c++) d[c * dst_col] = s[c * src_col];                    \
    }                                                                                              \
    static void fill_##bits(void *dst, const void *value, int64_t n) {                             \
        uint##bits##_t *d = dst, v;                                                                \
        memcpy(&v, value, sizeof v);                                                               \
        for (int64_t i = 0; i < n; i++) d[i] = v;                                                  \
    }
MOVES(8)
MOVES(16)
MOVES(32)
MOVES(64)

static void index_strip(int64_t *dst, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = first + i;
}

MOVE_OF(8);
MOVE_OF(16);
MOVE_OF(32);
MOVE_OF(64);
PAD_OF(8);
PAD_OF(16);
PAD_OF(32);
PAD_OF(64);
#define BY_BITS(name)                                                                              \
    {                                                                                              \
        [ETCH_I8] = ISA_NAME(name##_8), [ETCH_U8] = ISA_NAME(name##_8),                            \
        [ETCH_BOOL] = ISA_NAME(name##_8), [ETCH_I16] = ISA_NAME(name##_16),                        \
        [ETCH_BF16] = ISA_NAME(name##_16), [ETCH_F16] = ISA_NAME(name##_16),                       \
        [ETCH_I32] = ISA_NAME(name##_32), [ETCH_F32] = ISA_NAME(name##_32),                        \
        [ETCH_I64] = ISA_NAME(name##_64), [ETCH_F64] = ISA_NAME(name##_64)                         \
    }

/* Those of reduce.c. */
#define DECLARE_LANES(t, T)                                                                        \
    STRIP_OF(max_lanes, t);                                                                        \
    STRIP_OF(max_fold, t);                                                                         \
    STRIP_OF(min_lanes, t);                                                                        \
    STRIP_OF(min_fold, t);
ALL_TYPES(DECLARE_LANES)
#define OF_REDUCE(name)                                                                            \
    {                                                                                              \
        [ETCH_F32] = ISA_NAME(name##_F32), [ETCH_F64] = ISA_NAME(name##_F64),                      \
        [ETCH_I8] = ISA_NAME(name##_I8), [ETCH_I16] = ISA_NAME(name##_I16),                        \
        [ETCH_I32] = ISA_NAME(name##_I32), [ETCH_I64] = ISA_NAME(name##_I64),                      \
        [ETCH_U8] = ISA_NAME(name##_U8), [ETCH_BOOL] = ISA_NAME(name##_BOOL)                       \
    }

/* ---- the table ---- */

#define INT_STRIPS(name)                                                                           \
    [ETCH_I8] = name##_I8, [ETCH_I16] = name##_I16, [ETCH_I32] = name##_I32,                       \
    [ETCH_I64] = name##_I64, [ETCH_U8] = name##_U8
#define BOOL_STRIP(name) [ETCH_BOOL] = name##_BOOL
#define FLOAT_STRIPS(name) [ETCH_F32] = name##_F32, [ETCH_F64] = name##_F64
#define ALL_STRIPS(name) FLOAT_STRIPS(name), INT_STRIPS(name), BOOL_STRIP(name)
#define CONVERT_TO_ALL(f) [ETCH_##f] = {ALL_STRIPS(convert_##f)}

/* The strips of a row by its types and class. */
#define FUNCTION_STRIPS(name) [ETCH_F32] = ISA_NAME(name##_f32), [ETCH_F64] = ISA_NAME(name##_f64)
#define ANY_OF(floats, name) floats(name), INT_STRIPS(name), BOOL_STRIP(name)
#define NUMBERS_OF(floats, name) floats(name), INT_STRIPS(name)
#define FLOATS_OF(floats, name) floats(name)
#define INTEGERS_OF(floats, name) INT_STRIPS(name)
#define BOOLS_OF(floats, name) BOOL_STRIP(name)
#define F32_OF(floats, name) [ETCH_F32] = name##_F32
#define STRIPS_OF_ANY(real, whole, truth) ANY_OF
#define STRIPS_OF_NUMBERS(real, whole) NUMBERS_OF
#define STRIPS_OF_FLOATS(real) FLOATS_OF
#define STRIPS_OF_INTEGERS(whole) INTEGERS_OF
#define STRIPS_OF_BOOLS(truth) BOOLS_OF
#define STRIPS_OF_COMPARED(truth) ANY_OF
#define STRIPS_OF_F32(real) F32_OF
#define ROW_GIVEN(id, name, types)
#define ROW_CONVERSION(id, name, types)
#define ROW_INLINE(id, name, types) [PRIM_##id] = {STRIPS_OF_##types(FLOAT_STRIPS, name)},
#define ROW_EAGER(id, name, types) ROW_INLINE(id, name, types)
#define ROW_FUNCTION(id, name, types) [PRIM_##id] = {STRIPS_OF_##types(FUNCTION_STRIPS, name)},

const strip_table ISA_NAME(strips) = {
    .prim =
        {
#define PRIM(id, name, arity, types, class, meaning) ROW_##class(id, name, types)
#include "core/ops/prims.def"
            [STRIP_MOVE] = BY_BITS(move),
            [STRIP_PAD] = BY_BITS(pad),
            [STRIP_WIDEN] = {[ETCH_F16] = widen_f16},
            [STRIP_NARROW] = {[ETCH_F16] = narrow_f16},
            [STRIP_ROUND] = {[ETCH_F16] = store_f16},
            [STRIP_MAX_LANES] = OF_REDUCE(max_lanes),
            [STRIP_MAX_FOLD] = OF_REDUCE(max_fold),
            [STRIP_MIN_LANES] = OF_REDUCE(min_lanes),
            [STRIP_MIN_FOLD] = OF_REDUCE(min_fold),
        },
    .convert = {CONVERT_TO_ALL(F32), CONVERT_TO_ALL(F64), CONVERT_TO_ALL(I8), CONVERT_TO_ALL(I16),
                CONVERT_TO_ALL(I32), CONVERT_TO_ALL(I64), CONVERT_TO_ALL(U8), CONVERT_TO_ALL(BOOL)},
    .widen = {[ETCH_BF16] = widen_bf16, [ETCH_F16] = widen_f16},
    .narrow = {[ETCH_BF16] = narrow_bf16, [ETCH_F16] = narrow_f16},
    .round = {[ETCH_BF16] = store_bf16, [ETCH_F16] = store_f16},
    .round_rows = {[ETCH_BF16] = store_bf16_rows, [ETCH_F16] = store_f16_rows},
    .gather = {gather_8, gather_16, gather_32, gather_64},
    .scatter = {scatter_8, scatter_16, scatter_32, scatter_64},
    .block = {block_8, block_16, block_32, block_64},
    .fill = {fill_8, fill_16, fill_32, fill_64},
    .index = index_strip,
};
