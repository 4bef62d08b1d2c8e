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

static void scan_reals(double *p, const scan *s) {
    double so_far = s->product ? 1 : 0;
    for (int64_t i = 0; i < s->n; i++, p += s->inner) {
        so_far = s->product ? so_far * *p : so_far + *p;
        *p = so_far;
    }
}

static void scan_integers(uint64_t *p, const scan *s) {
    uint64_t so_far = s->product ? 1 : 0;
    for (int64_t i = 0; i < s->n; i++, p += s->inner) {
        so_far = s->product ? so_far * *p : so_far + *p;
        *p = so_far;
    }
}

static void scan_task(void *ctx, int64_t begin, int64_t end) {
    const scan *s = ctx;
    for (int64_t k = begin; k < end; k++) {
        int64_t at = k / s->inner * s->n * s->inner + k % s->inner;
        if (s->real) scan_reals((double *)s->data + at, s);
        else scan_integers((uint64_t *)s->data + at, s);
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
