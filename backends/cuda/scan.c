/* Running sums and products, triangles, argmax and argmin on a device.
 *
 * A scan goes along its line in f64 or i64, each result rounded once, as on the CPU: a thread has a
 * line. Of equal extremes the one with the lowest logical index is taken, so the order in which
 * threads compare does not matter. */
#include "backends/cuda/text.h"

/* ---- scans ---- */

static const char scan_text[] =
    "struct etch_args {\n"
    "    const ETCH_0 *x;\n"
    "    ETCH_0 *y;\n"
    "    etch_dims lines;\n"
    "    i64 nlines, n, step, inner;\n"
    "};\n"
    "extern \"C\" __global__ void etch_scan(const __grid_constant__ etch_args a) {\n"
    "    i64 line = blockIdx.x * (i64)blockDim.x + threadIdx.x;\n"
    "    for (; line < a.nlines; line += (i64)gridDim.x * blockDim.x) {\n"
    "        const ETCH_0 *x = a.x + place(a.lines, line);\n"
    "        ETCH_0 *y = a.y + line / a.inner * a.n * a.inner + line % a.inner;\n"
    "        WIDE so_far = PRODUCT;\n"
    "        for (i64 i = 0; i < a.n; i++) {\n"
    "            const WIDE v = (WIDE)value(x[i * a.step]);\n"
    "            so_far = PRODUCT ? so_far * v : so_far + v;\n"
    "            put(y + i * a.inner, so_far);\n"
    "        }\n"
    "    }\n"
    "}\n";

/* The dimensions of t but `dim`. */
static void other_dims(text_dims *d, const etch_tensor *t, int dim) {
    d->n = 0;
    for (int k = 0; k < t->ndim; k++)
        if (k != dim) d->size[d->n] = t->size[k], d->stride[d->n++] = t->stride[k];
}

static etch_status scan(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], *in = call->in[0];
    if (!out->numel) return ETCH_OK;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    if (in->dtype != out->dtype || !out->ndim) { /* converted first, then in place */
        etch_status status = etch__cuda_copy(out, in, call->site);
        if (status != ETCH_OK || !out->ndim) return status;
        in = out;
    }
    struct {
        const void *x;
        void *y;
        text_dims lines;
        int64_t nlines, n, step, inner;
    } a = {.x = etch__ptr(in), .y = etch__ptr(out), .inner = 1};
    int dim = etch__cuda_dim(call);
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

static const char triangle_text[] =
    "struct etch_args {\n"
    "    const WORD *x;\n"
    "    WORD *y;\n"
    "    etch_dims dims;\n"
    "    i64 n, rows, columns, diagonal;\n"
    "};\n"
    "extern \"C\" __global__ void etch_triangle(const __grid_constant__ etch_args a) {\n"
    "    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;\n"
    "    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {\n"
    "        const i64 c = i % a.columns, r = i / a.columns % a.rows;\n"
    "        const bool keep = LOWER ? c - r <= a.diagonal : c - r >= a.diagonal;\n"
    "        a.y[i] = keep ? a.x[place(a.dims, i)] : (WORD)0;\n"
    "    }\n"
    "}\n";

static const char *word_of(const etch_tensor *t) {
    int64_t size = etch__item_size(t);
    return size == 1 ? "unsigned char" : size == 2 ? "unsigned short" : size == 4 ? "int" : "i64";
}

static etch_status triangle(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], *in = call->in[0];
    if (!out->numel) return ETCH_OK;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
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

/* TEAM threads have one result. better(): whether (v, i) is to be taken before (w, j). */
static const char extreme_text[] =
    "struct etch_args {\n"
    "    const ETCH_0 *x;\n"
    "    i64 *y;\n"
    "    etch_dims kept, reduced;\n"
    "    i64 nkept, nreduced;\n"
    "};\n"
    "__device__ inline bool better(VALUE_0 v, i64 i, VALUE_0 w, i64 j) {\n"
    "    if (j < 0 || i < 0) return i >= 0;\n"
    "    const bool vn = v != v, wn = w != w;\n"
    "    if (vn || wn) return vn && (!wn || i < j);\n"
    "    return v == w ? i < j : LARGEST ? v > w : v < w;\n"
    "}\n"
    "extern \"C\" __global__ void etch_extreme(const __grid_constant__ etch_args a) {\n"
    "    __shared__ VALUE_0 values[128];\n"
    "    __shared__ i64 numbers[128];\n"
    "    const int t = threadIdx.x, lane = t % TEAM;\n"
    "    for (i64 base = (i64)blockIdx.x * (128 / TEAM); base < a.nkept;\n"
    "         base += (i64)gridDim.x * (128 / TEAM)) {\n"
    "        const i64 k = base + t / TEAM;\n"
    "        VALUE_0 best = 0;\n"
    "        i64 at = -1;\n"
    "        if (k < a.nkept) {\n"
    "            const ETCH_0 *x = a.x + place(a.kept, k);\n"
    "            for (i64 i = lane; i < a.nreduced; i += TEAM) {\n"
    "                const VALUE_0 v = value(x[place(a.reduced, i)]);\n"
    "                if (better(v, i, best, at)) best = v, at = i;\n"
    "            }\n"
    "        }\n"
    "#if TEAM > 1\n"
    "        values[t] = best, numbers[t] = at;\n"
    "        __syncthreads();\n"
    "        for (int w = TEAM / 2; w > 0; w /= 2) {\n"
    "            if (lane < w && better(values[t + w], numbers[t + w], values[t], numbers[t]))\n"
    "                values[t] = values[t + w], numbers[t] = numbers[t + w];\n"
    "            __syncthreads();\n"
    "        }\n"
    "        at = numbers[t];\n"
    "        __syncthreads();\n"
    "#endif\n"
    "        if (lane == 0 && k < a.nkept) a.y[k] = at;\n"
    "    }\n"
    "}\n";

static etch_status extreme(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], *in = call->in[0];
    if (!out->numel) return ETCH_OK;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
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

__attribute__((constructor)) static void register_scans(void) {
    etch__cuda_register(OP_CUMSUM, scan);
    etch__cuda_register(OP_CUMPROD, scan);
    etch__cuda_register(OP_TRIL, triangle);
    etch__cuda_register(OP_TRIU, triangle);
    etch__cuda_register(OP_ARGMAX, extreme);
    etch__cuda_register(OP_ARGMIN, extreme);
}
