/* The inner loops of reductions, for one instruction set: 64 lanes over a run, the fold of
 * lanes, and arg-max. The order is that of core/ops/expr.h; lanes are independent, so the compiler
 * may work on any number of them at a time. */
#include "backends/cpu/isa/extremes.h"
#include "backends/cpu/table.h"

#include <float.h>
#include <math.h>

#define IVDEP _Pragma("GCC ivdep")

#define TYPES(X, ...)                                                                              \
    X(F32, float, __VA_ARGS__)                                                                     \
    X(F64, double, __VA_ARGS__)                                                                    \
    X(I8, int8_t, __VA_ARGS__)                                                                     \
    X(I16, int16_t, __VA_ARGS__)                                                                   \
    X(I32, int32_t, __VA_ARGS__)                                                                   \
    X(I64, int64_t, __VA_ARGS__)                                                                   \
    X(U8, uint8_t, __VA_ARGS__)                                                                    \
    X(BOOL, uint8_t, __VA_ARGS__)

/* Integers wrap. */
#define TIMES(t, T)                                                                                \
    static inline T times_##t(T a, T b) { return (T)((uint64_t)a * (uint64_t)b); }
TIMES(I8, int8_t)
TIMES(I16, int16_t)
TIMES(I32, int32_t)
TIMES(I64, int64_t)
TIMES(U8, uint8_t)
static inline float times_F32(float a, float b) { return a * b; }
static inline double times_F64(double a, double b) { return a * b; }
static inline uint8_t times_BOOL(uint8_t a, uint8_t b) { return a & b; }

/* By primitive. */
#define COMBINE_ADD(t, a, b) ((a) + (b))
#define COMBINE_MUL(t, a, b) times_##t(a, b)
#define COMBINE_MAX(t, a, b) larger_##t(a, b)
#define COMBINE_MIN(t, a, b) smaller_##t(a, b)

/* Whole rounds of 64 lanes, then the first lanes once more. */
#define LANES(t, T, op, COMBINE)                                                                   \
    static void op##_lanes_##t(void *acc, const void *x, int64_t n) {                              \
        T lane[REDUCE_LANES];                                                                      \
        const T *p = x;                                                                            \
        memcpy(lane, acc, sizeof lane);                                                            \
        for (; n >= REDUCE_LANES; n -= REDUCE_LANES, p += REDUCE_LANES)                            \
            for (int l = 0; l < REDUCE_LANES; l++) lane[l] = (T)COMBINE(t, lane[l], p[l]);         \
        for (int l = 0; l < n; l++) lane[l] = (T)COMBINE(t, lane[l], p[l]);                        \
        memcpy(acc, lane, sizeof lane);                                                            \
    }                                                                                              \
    /* The lanes of a row: rounds of known lengths, of which the compiler makes vectors. */        \
    static void op##_row_##t(T *lane) {                                                            \
        T a[REDUCE_LANES / 2];                                                                     \
        for (int l = 0; l < 32; l++) a[l] = (T)COMBINE(t, lane[l], lane[l + 32]);                  \
        for (int l = 0; l < 16; l++) a[l] = (T)COMBINE(t, a[l], a[l + 16]);                        \
        for (int l = 0; l < 8; l++) a[l] = (T)COMBINE(t, a[l], a[l + 8]);                          \
        for (int l = 0; l < 4; l++) a[l] = (T)COMBINE(t, a[l], a[l + 4]);                          \
        for (int l = 0; l < 2; l++) a[l] = (T)COMBINE(t, a[l], a[l + 2]);                          \
        lane[0] = (T)COMBINE(t, a[0], a[1]);                                                       \
    }                                                                                              \
    static void op##_fold_##t(void *acc, int64_t nlanes, int64_t width) {                          \
        T *lane = acc;                                                                             \
        if (nlanes == REDUCE_LANES && width == 1) {                                                \
            op##_row_##t(lane);                                                                    \
            return;                                                                                \
        }                                                                                          \
        for (int w = REDUCE_LANES / 2; w >= 1; w /= 2)                                             \
            for (int l = 0; l < w && l + w < nlanes; l++) {                                        \
                T *a = lane + l * width, *b = lane + (l + w) * width;                              \
                IVDEP for (int64_t i = 0; i < width; i++) a[i] = (T)COMBINE(t, a[i], b[i]);        \
            }                                                                                      \
    }
#define FOLD(id, name, prim, start, wide) TYPES(LANES, name, COMBINE_##prim)
#include "core/ops/reductions.def"

#define START(t, T, lowest, highest)                                                               \
    static void start_##t(void *acc, int64_t n, double start) {                                    \
        T *a = acc, v = start == -INFINITY ? lowest : start == INFINITY ? highest : (T)start;      \
        for (int64_t i = 0; i < n; i++) a[i] = v;                                                  \
    }
START(F32, float, -INFINITY, INFINITY)
START(F64, double, -INFINITY, INFINITY)
START(I8, int8_t, INT8_MIN, INT8_MAX)
START(I16, int16_t, INT16_MIN, INT16_MAX)
START(I32, int32_t, INT32_MIN, INT32_MAX)
START(I64, int64_t, INT64_MIN, INT64_MAX)
START(U8, uint8_t, 0, UINT8_MAX)
START(BOOL, uint8_t, 0, 1)

/* The largest (smallest) value first, by lanes; then where it is. A NaN in it sends the search for
 * the first NaN. The two passes go over blocks, so that the second reads what is in the cache. */
#define BEST(t, T, name, fold, first, BEYOND)                                                      \
    static int64_t name##_##t(const void *x, int64_t n) {                                          \
        const T *p = x;                                                                            \
        int64_t index = 0;                                                                         \
        T best = p[0];                                                                             \
        for (int64_t from = 0; from < n && best == best; from += REDUCE_BLOCK) {                   \
            T lane[REDUCE_LANES];                                                                  \
            int64_t count = n - from < REDUCE_BLOCK ? n - from : REDUCE_BLOCK;                     \
            start_##t(lane, REDUCE_LANES, first);                                                  \
            fold##_lanes_##t(lane, p + from, count);                                               \
            fold##_fold_##t(lane, REDUCE_LANES, 1);                                                \
            T top = lane[0];                                                                       \
            if (top == top && !(top BEYOND best)) continue;                                        \
            int64_t i = from;                                                                      \
            if (top != top)                                                                        \
                while (p[i] == p[i]) i++;                                                          \
            else                                                                                   \
                while (p[i] != top) i++;                                                           \
            best = top, index = i;                                                                 \
        }                                                                                          \
        return index;                                                                              \
    }                                                                                              \
    static void name##_columns_##t(void *best, int64_t *index, const void *x, const int64_t *r,    \
                                   int64_t n) {                                                    \
        T *m = best;                                                                               \
        const T *p = x;                                                                            \
        IVDEP for (int64_t i = 0; i < n; i++) {                                                    \
            T a = m[i], b = p[i];                                                                  \
            bool take = (b BEYOND a) | ((b != b) & (a == a));                                      \
            m[i] = take ? b : a;                                                                   \
            index[i] = take ? r[i] : index[i];                                                     \
        }                                                                                          \
    }
TYPES(BEST, argmax, max, -INFINITY, >)
TYPES(BEST, argmin, min, INFINITY, <)

/* The lanes of rows as strips, for generated code. */
#define STRIPS(t, T, op)                                                                           \
    STRIP_OF(op##_lanes, t);                                                                       \
    STRIP_OF(op##_lanes, t) { (void)pb, (void)pc, op##_lanes_##t(dst, pa, n); }                    \
    STRIP_OF(op##_fold, t);                                                                        \
    STRIP_OF(op##_fold, t) { (void)pa, (void)pb, (void)pc, op##_fold_##t(dst, n, 1); }
TYPES(STRIPS, max)
TYPES(STRIPS, min)

#define EVERY(prefix)                                                                              \
    {                                                                                              \
        [ETCH_F32] = prefix##_F32, [ETCH_F64] = prefix##_F64, [ETCH_I8] = prefix##_I8,             \
        [ETCH_I16] = prefix##_I16, [ETCH_I32] = prefix##_I32, [ETCH_I64] = prefix##_I64,           \
        [ETCH_U8] = prefix##_U8, [ETCH_BOOL] = prefix##_BOOL                                       \
    }

const reduce_table ISA_NAME(reduce) = {
    .lanes =
        {
#define FOLD(id, name, ...) [REDUCE_##id] = EVERY(name##_lanes),
#include "core/ops/reductions.def"
        },
    .fold =
        {
#define FOLD(id, name, ...) [REDUCE_##id] = EVERY(name##_fold),
#include "core/ops/reductions.def"
        },
    .start = EVERY(start),
    .best = {EVERY(argmax), EVERY(argmin)},
    .best_columns = {EVERY(argmax_columns), EVERY(argmin_columns)},
};
