/* The transcendental primitives of core/ops/prims.def over strips, for one instruction set: loops
 * over the functions of core/ops/functions.h, a vector at a time. Eager kernels and generated code
 * call these same strips, so they agree bit for bit.
 *
 * The last elements are copied into a whole vector, so that a few cost one vector and a value does
 * not depend on its position. */
#include "backends/cpu/isa/lanes.h"
#include "backends/cpu/table.h"

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
