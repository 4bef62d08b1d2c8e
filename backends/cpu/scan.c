/* Running sums and products, and the triangles of matrices.
 *
 * A scan goes in f64 or i64 from the first element to the last, each result rounded once; so no
 * split over threads can change a bit (lines are independent). */
#include "core/dispatch/place.h"
#include "core/base/start.h"
#include "core/ops/expr.h"
#include "core/base/pool.h"

typedef struct scan {
    void *data; /* contiguous, f64 or i64: [outer][n][inner] */
    int64_t n, inner;
    bool real, product;
} scan;

/* FOUR lines of neighbouring elements, each with a chain of its own; and `width` lines side by
 * side, row upon row, or one by one where they are few. */
enum { FOUR = 4, MAX_ROW = 1024 };
#define SCAN(name, T, start, op)                                                                   \
    static void name##_lines(T *p, int64_t n, int64_t lines) {                                     \
        for (; lines >= FOUR; lines -= FOUR, p += FOUR * n) {                                      \
            T so_far[FOUR] = {start, start, start, start};                                         \
            for (int64_t i = 0; i < n; i++)                                                        \
                for (int k = 0; k < FOUR; k++)                                                     \
                    p[k * n + i] = so_far[k] = so_far[k] op p[k * n + i];                          \
        }                                                                                          \
        for (; lines > 0; lines--, p += n) {                                                       \
            T so_far = start;                                                                      \
            for (int64_t i = 0; i < n; i++) p[i] = so_far = so_far op p[i];                        \
        }                                                                                          \
    }                                                                                              \
    static void name##_rows(T *p, int64_t n, int64_t inner, int64_t width) {                       \
        for (int64_t k = 0; width < FOUR && k < width; k++) {                                      \
            T so_far = start;                                                                      \
            for (int64_t i = 0; i < n; i++)                                                        \
                p[i * inner + k] = so_far = so_far op p[i * inner + k];                            \
        }                                                                                          \
        if (width < FOUR) return;                                                                  \
        for (int64_t c = 0; c < width; c++) p[c] = (T)start op p[c];                               \
        for (int64_t i = 1; i < n; i++) {                                                          \
            T *before = p;                                                                         \
            p += inner;                                                                            \
            for (int64_t c = 0; c < width; c++) p[c] = before[c] op p[c];                          \
        }                                                                                          \
    }
SCAN(sum_reals, double, 0, +)
SCAN(multiply_reals, double, 1, *)
SCAN(sum_integers, uint64_t, 0, +)
SCAN(multiply_integers, uint64_t, 1, *)

static void scan_lines(const scan *s, int64_t at, int64_t lines) {
    if (s->real && s->product) multiply_reals_lines((double *)s->data + at, s->n, lines);
    else if (s->real) sum_reals_lines((double *)s->data + at, s->n, lines);
    else if (s->product) multiply_integers_lines((uint64_t *)s->data + at, s->n, lines);
    else sum_integers_lines((uint64_t *)s->data + at, s->n, lines);
}

static void scan_rows(const scan *s, int64_t at, int64_t width) {
    int64_t n = s->n, inner = s->inner;
    if (s->real && s->product) multiply_reals_rows((double *)s->data + at, n, inner, width);
    else if (s->real) sum_reals_rows((double *)s->data + at, n, inner, width);
    else if (s->product) multiply_integers_rows((uint64_t *)s->data + at, n, inner, width);
    else sum_integers_rows((uint64_t *)s->data + at, n, inner, width);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void scan_task(void *ctx, int64_t begin, int64_t end) {
    const scan *s = ctx;
    if (s->inner == 1) {
        scan_lines(s, begin * s->n, end - begin);
        return;
    }
    for (int64_t k = begin, width; k < end; k += width) {
        int64_t column = k % s->inner;
        width = least(least(end - k, s->inner - column), MAX_ROW);
        scan_rows(s, k / s->inner * s->n * s->inner + column, width);
    }
}

static void run_scan(const op_call *call, etch_tensor *t) {
    int dim = etch__place_dim(call);
    scan s = {.data = etch__ptr(t), .n = t->size[dim], .inner = 1};
    s.real = t->dtype == ETCH_F64, s.product = call->op == OP_CUMPROD;
    for (int d = dim + 1; d < t->ndim; d++) s.inner *= t->size[d];
    etch__parallel(t->numel / s.n, 32768 / s.n + 1, scan_task, &s);
}

/* Converted to the result's dtype first, as the dtype argument says. */
static etch_status scan_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], wide, *in = call->in[0];
    etch_dtype acc = etch__is_float(out->dtype) ? ETCH_F64 : ETCH_I64;
    if (!out->numel) return ETCH_OK;
    if (in->dtype != out->dtype || !out->ndim) {
        etch_status status = etch__place_copy(out, in, call->site);
        if (status != ETCH_OK || !out->ndim) return status;
        in = out;
    }
    if (!etch__place_new(&wide, acc, out->ndim, out->size, 0)) return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status = etch__place_copy(&wide, in, call->site);
    if (status == ETCH_OK) {
        run_scan(call, &wide);
        status = etch__place_copy(out, &wide, call->site);
    }
    etch__place_free(&wide);
    return status;
}

/* ---- triangles ---- */

static etch_status triangle_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    if (!out->numel) return ETCH_OK;
    etch_status status = etch__place_copy(out, call->in[0], call->site);
    if (status != ETCH_OK) return status;
    int64_t rows = out->size[out->ndim - 2], columns = out->size[out->ndim - 1];
    size_t size = (size_t)etch__item_size(out);
    char *row = etch__ptr(out);
    bool lower = call->op == OP_TRIL;
    for (int64_t r = 0; r < out->numel / columns; r++, row += (size_t)columns * size) {
        /* The first column that the lower triangle lacks, the first that the upper one has. */
        __int128 edge = (__int128)(r % rows) + call->at[0] + lower;
        int64_t cut = edge < 0 ? 0 : edge > columns ? columns : (int64_t)edge;
        if (lower) memset(row + (size_t)cut * size, 0, (size_t)(columns - cut) * size);
        else memset(row, 0, (size_t)cut * size);
    }
    return ETCH_OK;
}

void etch__start_cpu_scans(void) {
    etch__register_kernel(OP_CUMSUM, scan_kernel);
    etch__register_kernel(OP_CUMPROD, scan_kernel);
    etch__register_kernel(OP_TRIL, triangle_kernel);
    etch__register_kernel(OP_TRIU, triangle_kernel);
}
