/* The transcendental primitives of core/ops/prims.def over strips, for one instruction set: loops
 * over the functions of core/ops/functions.h, a vector at a time. Eager kernels and generated code
 * call these same strips, so they agree bit for bit.
 *
 * The last elements are copied into a whole vector, so that a few cost one vector and a value does
 * not depend on its position. */
#include "backends/cpu/isa/lanes.h"
#include "backends/cpu/table.h"

#include <math.h>

/* ---- the functions, of single numbers and of vectors ---- */

#define SINGLE 1
#define ALL(x) ((REAL)(x))
#define ALL_WORDS(x) ((UINT)(x))
#define F(name) name##_f64
#define F64 1
#include "core/ops/functions.h"
#undef F
#undef F64
#define F(name) name##_f32
#define F64 0
#include "core/ops/functions.h"
#undef F
#undef F64
#undef ALL
#undef ALL_WORDS
#undef SINGLE

/* Subtracting 0 changes no number; with it one becomes a vector. */
#define SINGLE 0
#define ALL(x) ((x) - (REAL){0})
#define ALL_WORDS(x) ((x) - (UINT){0})
#define F(name) name##_f64v
#define F64 1
#include "core/ops/functions.h"
#undef F
#undef F64
#define F(name) name##_f32v
#define F64 0
#include "core/ops/functions.h"

/* ---- strips ---- */

/* One operand. Two vectors at a time, where there are registers for both: their instructions are
 * mixed (library.cmake), since those of one wait for each other for most of the time. */
enum { PAIRED = VECTOR_BYTES == 64 };
#define STRIP_PLAIN(name, t, T) STRIP_BY(name, name, t, T)
#define STRIP_BY(name, vector, t, T)                                                               \
    STRIP_OF(name, t);                                                                             \
    STRIP_OF(name, t) {                                                                            \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        const T *a = pa;                                                                           \
        T *d = dst;                                                                                \
        (void)pb, (void)pc;                                                                        \
        for (; PAIRED && n >= 2 * W; n -= 2 * W, a += 2 * W, d += 2 * W) {                         \
            reals_##t##v v, w;                                                                     \
            memcpy(&v, a, sizeof v), memcpy(&w, a + W, sizeof w);                                  \
            v = vector##_##t##v(v), w = vector##_##t##v(w);                                        \
            memcpy(d, &v, sizeof v), memcpy(d + W, &w, sizeof w);                                  \
        }                                                                                          \
        for (; n >= W; n -= W, a += W, d += W) {                                                   \
            reals_##t##v v;                                                                        \
            memcpy(&v, a, sizeof v);                                                               \
            v = vector##_##t##v(v);                                                                \
            memcpy(d, &v, sizeof v);                                                               \
        }                                                                                          \
        if (n) store_first_##t##v(d, n, vector##_##t##v(first_##t##v(a, n)));                      \
    }

/* One operand, with a shorter way for vectors of plain numbers. Each lane goes its own way, so that
 * the value does not depend on its neighbours; the shorter way sees no other numbers, which would
 * be slow there. */
#define STRIP_QUICK(name, t, T) QUICK_STRIP(name, plain_##name, t, T)
#define QUICK_STRIP(name, plain, t, T)                                                             \
    static __attribute__((noinline)) reals_##t##v mixed_##name##_##t(reals_##t##v x) {             \
        truth_##t##v is_plain = plain##_##t##v(x);                                                 \
        reals_##t##v some = where_##t##v(is_plain, x, (reals_##t##v){0} + 1);                      \
        return where_##t##v(is_plain, quick_##name##_##t##v(some), name##_##t##v(x));              \
    }                                                                                              \
    FN reals_##t##v both_##name##_##t##v(reals_##t##v x) {                                         \
        bool special = any_##t##v(no_##t##v(plain##_##t##v(x)));                                   \
        if (__builtin_expect(special, 0)) return mixed_##name##_##t(x);                            \
        return quick_##name##_##t##v(x);                                                           \
    }                                                                                              \
    STRIP_BY(name, both_##name, t, T)

#define STRIP_LOG(name, t, T) QUICK_STRIP(name, plain_log, t, T)

/* sin, cos and tan: the longer way is for large operands, of which the largest are treated one by
 * one. */
#define STRIP_ANGLE(name, t, T)                                                                    \
    FN reals_##t##v name##_##t##v(reals_##t##v x) {                                                \
        reals_##t##v y = name##_by_##t##v(x, NEAR);                                                \
        for (unsigned i = 0; i < sizeof x / sizeof(T); i++)                                        \
            if (is_far_##t(x[i])) y[i] = name##_##t(x[i]);                                         \
        return y;                                                                                  \
    }                                                                                              \
    QUICK_STRIP(name, plain_angle, t, T)

#define STRIP2(name, t, T)                                                                         \
    STRIP_OF(name, t);                                                                             \
    STRIP_OF(name, t) {                                                                            \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        const T *a = pa, *b = pb;                                                                  \
        T *d = dst;                                                                                \
        (void)pc;                                                                                  \
        for (; n >= W; n -= W, a += W, b += W, d += W) {                                           \
            reals_##t##v v, w;                                                                     \
            memcpy(&v, a, sizeof v), memcpy(&w, b, sizeof w);                                      \
            v = name##_##t##v(v, w);                                                               \
            memcpy(d, &v, sizeof v);                                                               \
        }                                                                                          \
        if (n) {                                                                                   \
            reals_##t##v v = name##_##t##v(first_##t##v(a, n), first_##t##v(b, n));                \
            store_first_##t##v(d, n, v);                                                           \
        }                                                                                          \
    }

#define PRIM(id, name, arity, types, class, meaning)
#define FUNCTION(id, name, strip, ...)                                                             \
    STRIP_##strip(name, f32, float) STRIP_##strip(name, f64, double)
#define HALF_FUNCTION(id, name, ...) STRIP_PLAIN(name, f32, float) STRIP_PLAIN(name, f64, double)
#include "core/ops/prims.def"
STRIP2(pow, f32, float)
STRIP2(pow, f64, double)

/* ---- the rest of a division, exact ---- */

/* Where |x| < |y| it is x. Else the quotient cut off is the right one, or one too large where it
 * was rounded up to a whole number; either rest is a multiple of an ulp of y, not above y, so that
 * one fused operation gives it exactly, however the processor rounds. That holds for quotients that
 * have all digits left of the point, and divisors of which an ulp is no denormal; the numbers that
 * are left go one by one. */
#if EXACT_FMA
#if defined(ETCH_ISA_avx512)
#define CUT(s, x) REGISTER(roundscale_##s)(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)
#else
#define CUT(s, x) REGISTER(round_##s)(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)
#endif
#define REM(t, T, s, digits, infinite, least, by_one)                                              \
    static __attribute__((noinline)) void rest_one_by_one_##t(T *r, const T *x, const T *y,        \
                                                              const T *plain, unsigned n) {        \
        for (unsigned i = 0; i < n; i++)                                                           \
            if (plain[i] == 0) r[i] = by_one(x[i], y[i]);                                          \
    }                                                                                              \
    FN reals_##t##v rem_##t##v(reals_##t##v x, reals_##t##v y) {                                   \
        const reals_##t##v zero = {0}, one = zero + 1;                                             \
        const ints_##t##v none = {0}, top = none + (ints_##t)infinite;                             \
        reals_##t##v a = abs_##t##v(x), b = abs_##t##v(y);                                         \
        ints_##t##v m = (ints_##t##v)a, n = (ints_##t##v)b;                                        \
        truth_##t##v below = int_less_##t##v(m, n) & int_less_##t##v(n, top + 1);                  \
        truth_##t##v near = int_less_##t##v(m - n, none + ((ints_##t)digits << digits)) &          \
                            int_less_##t##v(m, top) & no_##t##v(int_less_##t##v(m, n)) &           \
                            no_##t##v(int_less_##t##v(n, none + (ints_##t)least));                 \
        reals_##t##v c = where_##t##v(near, a, one), d = where_##t##v(near, b, one);               \
        reals_##t##v r = fnma_##t##v(CUT(s, c / d), d, c);                                         \
        r = abs_##t##v(where_##t##v(less_##t##v(r, zero), r + d, r));                              \
        r = real_##t##v(bits_##t##v(r) | (bits_##t##v(x) ^ bits_##t##v(a)));                       \
        r = where_##t##v(below, x, r);                                                             \
        if (__builtin_expect(any_##t##v(no_##t##v(below | near)), 0)) {                            \
            reals_##t##v plain = where_##t##v(below | near, one, zero);                            \
            rest_one_by_one_##t((T *)&r, (const T *)&x, (const T *)&y, (const T *)&plain,          \
                                VECTOR_BYTES / sizeof(T));                                         \
        }                                                                                          \
        return r;                                                                                  \
    }                                                                                              \
    STRIP2(rem, t, T)
REM(f32, float, ps, 23, 0x7f800000, 0x0c000000, fmodf)
REM(f64, double, pd, 52, 0x7ff0000000000000, 0x0350000000000000, fmod)
#else
#define REM(t, T, by_one)                                                                          \
    STRIP_OF(rem, t);                                                                              \
    STRIP_OF(rem, t) {                                                                             \
        const T *a = pa, *b = pb;                                                                  \
        T *d = dst;                                                                                \
        (void)pc;                                                                                  \
        for (int64_t i = 0; i < n; i++) d[i] = by_one(a[i], b[i]);                                 \
    }
REM(f32, float, fmodf)
REM(f64, double, fmod)
#endif
