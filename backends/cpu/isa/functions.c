/* The transcendental primitives of core/prims.def over strips, for one instruction set: loops over
 * the functions of core/functions.h, which the compiler makes vectors of. Eager kernels and
 * generated code call these same strips, so they agree bit for bit.
 *
 * Loops have no remainder: the last elements are copied into a whole vector, padded with ones, so
 * that a few elements cost one vector and a value does not depend on its position. */
#include "backends/cpu/table.h"

#define FN static inline __attribute__((always_inline, unused))
#define TABLE static const
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;

#ifdef __FMA__
#define EXACT_FMA 1
FN double fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
FN float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
#define EXACT_FMA 0
FN double fma_f64(double a, double b, double c) { return a * b + c; }
FN float fma_f32(float a, float b, float c) { return a * b + c; }
#endif
FN double abs_f64(double x) { return __builtin_fabs(x); }
FN float abs_f32(float x) { return __builtin_fabsf(x); }
FN double root_f64(double x) { return __builtin_sqrt(x); }
FN float root_f32(float x) { return __builtin_sqrtf(x); }
FN u64 high_product(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
#define SAME_BITS(suffix, T, U)                                                                    \
    FN U bits_##suffix(T x) {                                                                      \
        U u;                                                                                       \
        memcpy(&u, &x, sizeof u);                                                                  \
        return u;                                                                                  \
    }                                                                                              \
    FN T real_##suffix(U u) {                                                                      \
        T x;                                                                                       \
        memcpy(&x, &u, sizeof x);                                                                  \
        return x;                                                                                  \
    }
SAME_BITS(f64, double, u64)
SAME_BITS(f32, float, u32)

#define F64 1
#include "core/functions.h"
#undef F64
#define F64 0
#include "core/functions.h"

#if defined(ETCH_ISA_avx512)
enum { VECTOR_BYTES = 64 };
#elif defined(ETCH_ISA_avx2)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif

/* Elements that are looked through for far ones at a time. */
enum { CHUNK = 64 };

/* One operand. Writing over it is in place, no loop-carried dependence, which the pragma says. */
#define STRIP1(name, t, T)                                                                         \
    STRIP_OF(name, t);                                                                             \
    void ISA_NAME(name##_##t)(void *dst, const void *pa, const void *pb, const void *pc,           \
                              int64_t count) {                                                     \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        const int64_t n = count & -(int64_t)W;                                                     \
        const T *a = pa;                                                                           \
        T *d = dst, tail[W];                                                                       \
        (void)pb, (void)pc;                                                                        \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) d[i] = name##_##t(a[i]);              \
        if (n == count) return;                                                                    \
        for (int i = 0; i < W; i++) tail[i] = n + i < count ? a[n + i] : 1;                        \
        for (int i = 0; i < W; i++) tail[i] = name##_##t(tail[i]);                                 \
        memcpy(d + n, tail, (size_t)(count - n) * sizeof(T));                                      \
    }

FN bool any_far_f32(const float *x, int64_t n) {
    u32 far = 0;
    for (int64_t i = 0; i < n; i++) far |= far_bits_f32(x[i]);
    return far >> 31;
}
FN bool any_far_f64(const double *x, int64_t n) {
    u64 far = 0;
    for (int64_t i = 0; i < n; i++) far |= far_bits_f64(x[i]);
    return far >> 63;
}

/* One operand, of which far ones are rare: a chunk without them is one loop, the others are put
 * right from a copy, as the result may lie over the operand. */
#define STRIP_NEAR(name, t, T)                                                                     \
    STRIP_OF(name, t);                                                                             \
    void ISA_NAME(name##_##t)(void *dst, const void *pa, const void *pb, const void *pc,           \
                              int64_t count) {                                                     \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        T x[CHUNK];                                                                                \
        (void)pb, (void)pc;                                                                        \
        for (int64_t at = 0; at < count; at += CHUNK) {                                            \
            const int64_t rest = count - at, m = rest < CHUNK ? rest : CHUNK;                      \
            const int64_t n = (m + W - 1) & -(int64_t)W;                                           \
            T *d = (T *)dst + at, y[CHUNK];                                                        \
            memcpy(x, (const T *)pa + at, (size_t)m * sizeof(T));                                  \
            for (int64_t i = m; i < n; i++) x[i] = 1;                                              \
            for (int64_t i = 0; i < n; i++) y[i] = near_##name##_##t(x[i]);                        \
            if (any_far_##t(x, n))                                                                 \
                for (int64_t i = 0; i < m; i++)                                                    \
                    if (is_far_##t(x[i])) y[i] = name##_##t(x[i]);                                 \
            memcpy(d, y, (size_t)m * sizeof(T));                                                   \
        }                                                                                          \
    }

#define STRIP2(name, t, T)                                                                         \
    STRIP_OF(name, t);                                                                             \
    void ISA_NAME(name##_##t)(void *dst, const void *pa, const void *pb, const void *pc,           \
                              int64_t count) {                                                     \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        const int64_t n = count & -(int64_t)W;                                                     \
        const T *a = pa, *b = pb;                                                                  \
        T *d = dst, tail[W], other[W];                                                             \
        (void)pc;                                                                                  \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) d[i] = name##_##t(a[i], b[i]);        \
        if (n == count) return;                                                                    \
        for (int i = 0; i < W; i++) tail[i] = n + i < count ? a[n + i] : 1;                        \
        for (int i = 0; i < W; i++) other[i] = n + i < count ? b[n + i] : 1;                       \
        for (int i = 0; i < W; i++) tail[i] = name##_##t(tail[i], other[i]);                       \
        memcpy(d + n, tail, (size_t)(count - n) * sizeof(T));                                      \
    }

#define FUNCTION(id, name, form) form(name, f32, float) form(name, f64, double)
#include "backends/cpu/isa/functions.def"
STRIP2(pow, f32, float)
STRIP2(pow, f64, double)
