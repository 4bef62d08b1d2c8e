/* Pooling of one plane, for one instruction set.
 *
 * A row of the output is made of one row of the input after the other and, in each, one column of
 * the kernel after the other, for all windows at once: so each window sees its elements in the
 * order in which they lie, and neighbours are computed together. What goes back to the input
 * arrives there in the order of the windows. */
#include "backends/cpu/reach.h"
#include "backends/cpu/table.h"

#include <math.h>
#include <string.h>

/* Windows of a row that have column kw of the kernel inside: at `at` + the stride times the
 * window's number. */
static inline reach windows_of(const pool_plane *p, int64_t kw) {
    int64_t at = kw * p->at.dilation[1] - p->at.padding[1];
    return reach_of(at, p->at.stride[1], p->out[1], p->in[1]);
}

/* Rows, or columns, of the kernel that window o has inside; it begins at `at`, in the padding or
 * not. */
static inline reach inside_of(const pool_plane *p, int d, int64_t o) {
    int64_t at = o * p->at.stride[d] - p->at.padding[d];
    return reach_of(at, p->at.dilation[d], p->at.kernel[d], p->in[d]);
}

/* By how much the elements of window o count along a dimension, where all count: with the padding,
 * but not what lies behind it. */
static inline int64_t count_of(const pool_plane *p, int d, int64_t o) {
    reach i = inside_of(p, d, o);
    if (!p->at.counts_padding) return i.end - i.begin;
    int64_t rest = p->in[d] + p->at.padding[d] - i.at;
    return rest < p->at.kernel[d] ? rest : p->at.kernel[d];
}

static inline int64_t divisor_of(const pool_plane *p, int64_t rows, int64_t ow) {
    return p->at.divisor ? p->at.divisor : rows * count_of(p, 1, ow);
}

/* ---- the largest ---- */

enum { FOUND = 256 }; /* windows whose places are looked for at once */

#define LARGEST(t, T, LEAST)                                                                       \
    static inline void take_row_##t(T *restrict y, const T *restrict x, int64_t step, int64_t n) { \
        if (step == 1)                                                                             \
            for (int64_t i = 0; i < n; i++) y[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i];      \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T v = x[i * step];                                                                 \
                y[i] = v > y[i] || v != v ? v : y[i];                                              \
            }                                                                                      \
    }                                                                                              \
    static void largest_##t(const pool_plane *p, const void *from, void *to) {                     \
        T *y = to;                                                                                 \
        for (int64_t oh = 0; oh < p->out[0]; oh++, y += p->out[1]) {                               \
            reach rows = inside_of(p, 0, oh);                                                      \
            for (int64_t i = 0; i < p->out[1]; i++) y[i] = LEAST;                                  \
            for (int64_t kh = rows.begin; kh < rows.end; kh++) {                                   \
                const T *x = (const T *)from + (rows.at + kh * p->at.dilation[0]) * p->in[1];      \
                for (int64_t kw = 0; kw < p->at.kernel[1]; kw++) {                                 \
                    reach r = windows_of(p, kw);                                                   \
                    if (r.begin < r.end)                                                           \
                        take_row_##t(y + r.begin, x + r.at + r.begin * p->at.stride[1],            \
                                     p->at.stride[1], r.end - r.begin);                            \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* Windows from .. + n of a row: `most` is the largest so far, at y. */                        \
    static inline void find_row_##t(T *restrict most, int64_t *restrict y, const T *restrict x,    \
                                    int64_t at, int64_t step, int64_t n) {                         \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T v = x[i * step];                                                                     \
            bool more = v > most[i] || v != v;                                                     \
            most[i] = more ? v : most[i];                                                          \
            y[i] = more ? at + i * step : y[i];                                                    \
        }                                                                                          \
    }                                                                                              \
    static void find_##t(const pool_plane *p, const T *x, const reach *rows, int64_t from,         \
                         int64_t n, int64_t *y) {                                                  \
        T most[FOUND];                                                                             \
        int64_t step = p->at.stride[1], first = rows->at + rows->begin * p->at.dilation[0];        \
        for (int64_t i = 0; i < n; i++) {                                                          \
            reach columns = inside_of(p, 1, from + i);                                             \
            y[i] = first * p->in[1] + columns.at + columns.begin * p->at.dilation[1];              \
            most[i] = LEAST;                                                                       \
        }                                                                                          \
        for (int64_t kh = rows->begin; kh < rows->end; kh++)                                       \
            for (int64_t kw = 0; kw < p->at.kernel[1]; kw++) {                                     \
                reach r = windows_of(p, kw);                                                       \
                int64_t begin = r.begin > from ? r.begin : from;                                   \
                int64_t end = r.end < from + n ? r.end : from + n;                                 \
                int64_t row = (rows->at + kh * p->at.dilation[0]) * p->in[1];                      \
                int64_t at = row + r.at + begin * step;                                            \
                if (begin < end)                                                                   \
                    find_row_##t(most + begin - from, y + begin - from, x + at, at, step,          \
                                 end - begin);                                                     \
            }                                                                                      \
    }                                                                                              \
    static void place_##t(const pool_plane *p, const void *x, int64_t *y) {                        \
        for (int64_t oh = 0; oh < p->out[0]; oh++, y += p->out[1]) {                               \
            reach rows = inside_of(p, 0, oh);                                                      \
            for (int64_t from = 0; from < p->out[1]; from += FOUND) {                              \
                int64_t rest = p->out[1] - from;                                                   \
                find_##t(p, x, &rows, from, rest < FOUND ? rest : FOUND, y + from);                \
            }                                                                                      \
        }                                                                                          \
    }
LARGEST(F32, float, -INFINITY)
LARGEST(F64, double, -INFINITY)
LARGEST(I8, int8_t, INT8_MIN)
LARGEST(I16, int16_t, INT16_MIN)
LARGEST(I32, int32_t, INT32_MIN)
LARGEST(I64, int64_t, INT64_MIN)
LARGEST(U8, uint8_t, 0)

/* ---- the largest, of pixels ---- */

static inline float float_of_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounding, which planes of bf16 go through, makes every NaN quiet. */
#define SAME(x) (x)
#define QUIET(x) (x | 0x40)
#define PIXELS(t, T, V, VALUE, NAN_OF, LEAST)                                                      \
    static inline void take_pixel_##t(T *restrict y, const T *restrict x, int64_t n) {             \
        for (int64_t i = 0; i < n; i++) {                                                          \
            V v = VALUE(x[i]), most = VALUE(y[i]);                                                 \
            T larger = v > most ? x[i] : y[i];                                                     \
            y[i] = v != v ? NAN_OF(x[i]) : larger;                                                 \
        }                                                                                          \
    }                                                                                              \
    static void pixels_##t(const pool_plane *p, const void *from, void *to, int64_t channels,      \
                           int64_t oh) {                                                           \
        reach rows = inside_of(p, 0, oh);                                                          \
        T *y = to;                                                                                 \
        for (int64_t ow = 0; ow < p->out[1]; ow++, y += channels) {                                \
            reach columns = inside_of(p, 1, ow);                                                   \
            for (int64_t i = 0; i < channels; i++) y[i] = LEAST;                                   \
            for (int64_t kh = rows.begin; kh < rows.end; kh++) {                                   \
                const T *x =                                                                       \
                    (const T *)from + (rows.at + kh * p->at.dilation[0]) * p->in[1] * channels;    \
                for (int64_t kw = columns.begin; kw < columns.end; kw++)                           \
                    take_pixel_##t(y, x + (columns.at + kw * p->at.dilation[1]) * channels,        \
                                   channels);                                                      \
            }                                                                                      \
        }                                                                                          \
    }
PIXELS(F32, float, float, SAME, SAME, -INFINITY)
PIXELS(F64, double, double, SAME, SAME, -INFINITY)
PIXELS(BF16, uint16_t, float, float_of_bf16, QUIET, 0xff80)

/* ---- the mean ---- */

#define MEAN(t, T)                                                                                 \
    static void add_rows_##t(const pool_plane *p, const T *from, const reach *rows, T *y) {        \
        int64_t step = p->at.stride[1];                                                            \
        for (int64_t kh = rows->begin; kh < rows->end; kh++)                                       \
            for (int64_t kw = 0; kw < p->at.kernel[1]; kw++) {                                     \
                reach r = windows_of(p, kw);                                                       \
                const T *x = from + (rows->at + kh) * p->in[1] + r.at;                             \
                for (int64_t i = r.begin; i < r.end; i++) y[i] += x[i * step];                     \
            }                                                                                      \
    }                                                                                              \
    static void mean_##t(const pool_plane *p, const void *from, void *to) {                        \
        T *y = to;                                                                                 \
        for (int64_t oh = 0; oh < p->out[0]; oh++, y += p->out[1]) {                               \
            reach rows = inside_of(p, 0, oh);                                                      \
            int64_t count = count_of(p, 0, oh);                                                    \
            memset(y, 0, (size_t)p->out[1] * sizeof *y);                                           \
            add_rows_##t(p, from, &rows, y);                                                       \
            for (int64_t i = 0; i < p->out[1]; i++) y[i] /= (T)divisor_of(p, count, i);            \
        }                                                                                          \
    }                                                                                              \
    /* The windows' parts of a row's gradient, to one row of the input. */                         \
    static void give_row_##t(const pool_plane *p, T *x, const T *g, int64_t count) {               \
        for (int64_t ow = 0; ow < p->out[1]; ow++) {                                               \
            reach columns = inside_of(p, 1, ow);                                                   \
            T part = g[ow] / (T)divisor_of(p, count, ow);                                          \
            for (int64_t kw = columns.begin; kw < columns.end; kw++) x[columns.at + kw] += part;   \
        }                                                                                          \
    }                                                                                              \
    static void spread_##t(const pool_plane *p, const void *from, void *to) {                      \
        const T *g = from;                                                                         \
        memset(to, 0, (size_t)(p->in[0] * p->in[1]) * sizeof(T));                                  \
        for (int64_t oh = 0; oh < p->out[0]; oh++, g += p->out[1]) {                               \
            reach rows = inside_of(p, 0, oh);                                                      \
            int64_t count = count_of(p, 0, oh);                                                    \
            for (int64_t kh = rows.begin; kh < rows.end; kh++)                                     \
                give_row_##t(p, (T *)to + (rows.at + kh) * p->in[1], g, count);                    \
        }                                                                                          \
    }
MEAN(F32, float)
MEAN(F64, double)

const pool_table ISA_NAME(pool) = {
    .largest = {[ETCH_F32] = largest_F32,
                [ETCH_F64] = largest_F64,
                [ETCH_I8] = largest_I8,
                [ETCH_I16] = largest_I16,
                [ETCH_I32] = largest_I32,
                [ETCH_I64] = largest_I64,
                [ETCH_U8] = largest_U8},
    .place = {[ETCH_F32] = place_F32,
              [ETCH_F64] = place_F64,
              [ETCH_I8] = place_I8,
              [ETCH_I16] = place_I16,
              [ETCH_I32] = place_I32,
              [ETCH_I64] = place_I64,
              [ETCH_U8] = place_U8},
    .pixels = {[ETCH_F32] = pixels_F32, [ETCH_F64] = pixels_F64, [ETCH_BF16] = pixels_BF16},
    .mean = {[ETCH_F32] = mean_F32, [ETCH_F64] = mean_F64},
    .spread = {[ETCH_F32] = spread_F32, [ETCH_F64] = spread_F64},
};
