/* Running sums and products, triangles, argmax and argmin on a device.
 *
 * A scan goes along its line in f64 or i64, each result rounded once, as on the CPU: a thread has a
 * line. Of equal extremes the one with the lowest logical index is taken, so the order in which
 * threads compare does not matter. */
#include "backends/cuda/text.h"
#include "core/base/start.h"

/* ---- scans ---- */

#include "embedded/scan.cu.inc"

/* The dimensions of t but `dim`. */
static void other_dims(text_dims *d, const etch_tensor *t, int dim) {
    d->n = 0;
    for (int k = 0; k < t->ndim; k++)
        if (k != dim) d->size[d->n] = t->size[k], d->stride[d->n++] = t->stride[k];
}

static etch_status scan(cuda_stream *s, const op_call *call, etch_tensor *out) {
    etch_tensor *in = call->in[0];
    if (in->dtype != out->dtype || !out->ndim) { /* converted first, then in place */
        etch_status status = etch__place_copy(out, in, call->site);
        if (status != ETCH_OK || !out->ndim) return status;
        in = out;
    }
    struct {
        const void *x;
        void *y;
        text_dims lines;
        int64_t nlines, n, step, inner;
    } a = {.x = etch__ptr(in), .y = etch__ptr(out), .inner = 1};
    int dim = etch__place_dim(call);
    other_dims(&a.lines, in, dim);
    a.n = in->size[dim], a.step = in->stride[dim], a.nlines = out->numel / a.n;
    for (int d = dim + 1; d < out->ndim; d++) a.inner *= out->size[d];
    kernel_text k = {.symbol = "etch_scan", .body = scan_text, .ndtypes = 1};
    k.dtype[0] = out->dtype;
    snprintf(k.defines, sizeof k.defines, "#define WIDE %s\n#define PRODUCT %d\n",
             etch__is_float(k.dtype[0]) ? "double" : "u64", call->op == OP_CUMPROD);
    return etch__cuda_run_text(s, &k, (a.nlines + 63) / 64, 64, &a);
}

/* ---- triangles ---- */

#include "embedded/triangle.cu.inc"

static const char *word_of(const etch_tensor *t) {
    int64_t size = etch__item_size(t);
    return size == 1 ? "unsigned char" : size == 2 ? "unsigned short" : size == 4 ? "int" : "i64";
}

static etch_status triangle(cuda_stream *s, const op_call *call, etch_tensor *out) {
    etch_tensor *in = call->in[0];
    struct {
        const void *x;
        void *y;
        text_dims dims;
        int64_t n, rows, columns, diagonal;
    } a = {.x = etch__ptr(in), .y = etch__ptr(out), .n = out->numel, .diagonal = call->at[0]};
    etch__cuda_dims(&a.dims, in);
    a.rows = out->size[out->ndim - 2], a.columns = out->size[out->ndim - 1];
    kernel_text k = {.symbol = "etch_triangle", .body = triangle_text};
    snprintf(k.defines, sizeof k.defines, "#define WORD %s\n#define LOWER %d\n", word_of(out),
             call->op == OP_TRIL);
    return etch__cuda_run_text(s, &k, (a.n + 255) / 256, 256, &a);
}

/* ---- argmax and argmin ---- */

#include "embedded/extreme.cu.inc"

static etch_status extreme(cuda_stream *s, const op_call *call, etch_tensor *out) {
    etch_tensor *in = call->in[0];
    struct {
        const void *x;
        void *y;
        text_dims kept, reduced;
        int64_t nkept, nreduced;
    } a = {.x = etch__ptr(in), .y = etch__ptr(out), .nkept = 1, .nreduced = 1};
    uint32_t mask;
    bool keepdim, inner = false;
    etch__reduce_axes(call, &mask, &keepdim);
    for (int d = 0; d < in->ndim; d++) {
        bool reduced = mask >> d & 1;
        text_dims *to = reduced ? &a.reduced : &a.kept;
        *(reduced ? &a.nreduced : &a.nkept) *= in->size[d];
        to->size[to->n] = in->size[d], to->stride[to->n++] = in->stride[d];
        inner |= reduced && in->stride[d] == 1;
    }
    int team = a.nreduced >= 256 && (inner || a.nkept < 4096) ? 128
               : a.nreduced >= 16 && inner                    ? 16
                                                              : 1;
    kernel_text k = {.symbol = "etch_extreme", .body = extreme_text, .ndtypes = 1};
    k.dtype[0] = in->dtype;
    snprintf(k.defines, sizeof k.defines, "#define TEAM %d\n#define LARGEST %d\n", team,
             call->op == OP_ARGMAX);
    return etch__cuda_run_text(s, &k, (a.nkept + 128 / team - 1) / (128 / team), 128, &a);
}

void etch__start_cuda_scans(void) {
    etch__cuda_register_text(OP_CUMSUM, scan);
    etch__cuda_register_text(OP_CUMPROD, scan);
    etch__cuda_register_text(OP_TRIL, triangle);
    etch__cuda_register_text(OP_TRIU, triangle);
    etch__cuda_register_text(OP_ARGMAX, extreme);
    etch__cuda_register_text(OP_ARGMIN, extreme);
}
