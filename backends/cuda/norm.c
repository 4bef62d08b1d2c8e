/* softmax, log_softmax and layer norm on a device.
 *
 * Layer norm of rows of some length is a generated kernel (jit/ir/pass_norms.c), which what is
 * before and behind it joins in compiled functions; an eager call is a plan of the one operator.
 * The rest has the kernels here:
 *
 * A row is read once and kept in registers: thread t of THREADS has the elements (c * THREADS + t)
 * * V + j, c < CHUNKS, j < V. It adds its own in that order, a warp folds by butterflies, the
 * warps' results fold the same way. All of that follows from the row's length and the dtypes alone.
 * A row too long for the registers is read again for each pass (CHUNKS 0). Rows along an axis that
 * is not the innermost are worked on 32 neighbours side by side, 8 threads each. Halves are
 * computed in f32 and rounded once. */
#include "backends/cuda/text.h"
#include "core/base/start.h"
#include "jit/loop/loop.h"

#include "embedded/norm_rows.cu.inc"
#include "embedded/norm_columns.cu.inc"

enum { KEPT = 32, THREADS_MOST = 1024, GENERATED_SINCE = 256 };

/* A generated kernel has a block for each row, and would compute the exponentials of a softmax
 * twice. Of a dynamic graph the operator stays a call, whose sizes decide here. */
bool etch__cuda_makes_norm(uint16_t op, bool dynamic, int64_t rows, int64_t reduced) {
    return op == OP_NATIVE_LAYER_NORM && !dynamic && reduced >= GENERATED_SINCE &&
           !etch__loop_splits(rows, rows, reduced);
}

/* How the row is dealt out: at least 4 chunks a thread until there are 1024 threads. */
typedef struct row_shape {
    int vector, threads, chunks;
} row_shape;

static row_shape shape_of(etch_dtype d, int64_t n) {
    row_shape r = {16 / (int)etch_dtype_size(d), 32, 0};
    int64_t total = (n + r.vector - 1) / r.vector;
    while (r.threads < THREADS_MOST && total > 4 * r.threads) r.threads *= r.threads == 32 ? 4 : 2;
    int64_t chunks = (total + r.threads - 1) / r.threads;
    r.chunks = chunks * r.vector <= KEPT ? (int)chunks : 0;
    return r;
}

typedef struct row_args {
    const void *x;
    void *y;
    const void *weight, *bias;
    int64_t rows, n, wide, wide_parameters;
    uint64_t eps;
} row_args;

static bool aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

static etch_status run_rows(cuda_stream *s, kernel_text *k, row_args *a, bool norm,
                            bool logarithm) {
    row_shape r = shape_of(k->dtype[0], a->n);
    a->wide = aligned(a->x) && aligned(a->y) && a->n % r.vector == 0;
    a->wide_parameters = aligned(a->weight) && aligned(a->bias) && a->n % r.vector == 0;
    k->symbol = "etch_rows", k->body = norm_rows_text;
    snprintf(k->defines, sizeof k->defines,
             "#define V %d\n#define THREADS %d\n#define CHUNKS %d\n#define NORM %d\n"
             "#define LOGARITHM %d\n",
             r.vector, r.threads, r.chunks, norm, logarithm);
    int groups = r.threads < 128 ? 128 / r.threads : 1;
    return etch__cuda_run_text(s, k, (a->rows + groups - 1) / groups,
                               (unsigned)(r.threads * groups), a);
}

static etch_status run_columns(cuda_stream *s, kernel_text *k, const row_args *r, int64_t inner,
                               bool logarithm) {
    struct {
        const void *x;
        void *y;
        int64_t outer, n, inner;
    } a = {r->x, r->y, r->rows / inner, r->n, inner};
    k->symbol = "etch_columns", k->body = norm_columns_text;
    snprintf(k->defines, sizeof k->defines, "#define LOGARITHM %d\n", logarithm);
    return etch__cuda_run_text(s, k, a.outer * ((inner + 31) / 32), 256, &a);
}

static etch_status softmax(cuda_stream *s, const op_call *call, etch_tensor *out) {
    etch_tensor *x, temporary;
    bool logarithm = call->op == OP_LOG_SOFTMAX_RAW;
    int64_t inner = 1, n = 1;
    int dim = etch__place_dim(call);
    for (int d = dim; d < out->ndim; d++) *(d == dim ? &n : &inner) *= out->size[d];
    etch_status status = etch__place_dense(call->in[0], &temporary, &x, NULL);
    if (status == ETCH_OK) {
        kernel_text k = {.ndtypes = 4};
        k.dtype[0] = x->dtype, k.dtype[1] = out->dtype;
        k.dtype[2] = k.dtype[3] = k.dtype[0];
        row_args a = {.x = etch__ptr(x), .y = etch__ptr(out), .rows = out->numel / n, .n = n};
        status = inner > 1 ? run_columns(s, &k, &a, inner, logarithm)
                           : run_rows(s, &k, &a, false, logarithm);
    }
    etch__place_free(&temporary);
    return status;
}

static etch_status norm_rows(cuda_stream *s, const op_call *call, etch_tensor *out, int64_t n) {
    etch_tensor *in[3] = {NULL, NULL, NULL}, temporary[3];
    memset(temporary, 0, sizeof temporary);
    kernel_text k = {.ndtypes = 4};
    etch_status status = ETCH_OK;
    for (int i = 0; i < 3; i++) {
        bool there = call->in[i] != ETCH_NONE;
        k.dtype[i ? i + 1 : 0] = (there ? call->in[i] : call->in[0])->dtype;
        if (there && status == ETCH_OK)
            status = etch__place_dense(call->in[i], &temporary[i], &in[i], NULL);
    }
    k.dtype[1] = out->dtype;
    if (status == ETCH_OK) {
        row_args a = {.x = etch__ptr(in[0]), .y = etch__ptr(out), .n = n};
        a.weight = in[1] ? etch__ptr(in[1]) : NULL, a.bias = in[2] ? etch__ptr(in[2]) : NULL;
        a.eps = etch__scalar_cell(call->sc[0], etch__compute_type(k.dtype[0]));
        a.rows = out->numel / n;
        status = run_rows(s, &k, &a, true, false);
    }
    for (int i = 0; i < 3; i++) etch__place_free(&temporary[i]);
    return status;
}

static etch_status layer_norm(cuda_stream *s, const op_call *call, etch_tensor *out) {
    int64_t n = 1;
    for (int64_t i = 0; i < call->at[0]; i++) n *= call->at[1 + i];
    if (n > 0 && etch__cuda_makes_norm(call->op, false, out->numel / n, n))
        return etch__cuda_by_plan(call, &out);
    return norm_rows(s, call, out, n);
}

void etch__start_cuda_norms(void) {
    etch__cuda_register_text(OP_SOFTMAX_RAW, softmax);
    etch__cuda_register_text(OP_LOG_SOFTMAX_RAW, softmax);
    etch__cuda_register_text(OP_NATIVE_LAYER_NORM, layer_norm);
}
