/* softmax, log_softmax and layer norm on a device.
 *
 * A row is read once and kept in registers: thread t of THREADS has the elements (c * THREADS + t)
 * * V + j, c < CHUNKS, j < V. It adds its own in that order, a warp folds by butterflies, the
 * warps' results fold the same way. All of that follows from the row's length and the dtypes alone.
 * A row too long for the registers is read again for each pass (CHUNKS 0). Rows along an axis that
 * is not the innermost are worked on 32 neighbours side by side, 8 threads each. Halves are
 * computed in f32 and rounded once. */
#include "backends/cuda/text.h"

#define OPERATIONS                                                                                 \
    "#define LOWEST (-(VALUE_0)__int_as_float(0x7f800000))\n"                                      \
    "__device__ inline VALUE_0 larger(VALUE_0 a, VALUE_0 b) {\n"                                   \
    "    return a > b || a != a ? a : b;\n"                                                        \
    "}\n"                                                                                          \
    "template <bool MAX> __device__ inline VALUE_0 join(VALUE_0 a, VALUE_0 b) {\n"                 \
    "    return MAX ? larger(a, b) : a + b;\n"                                                     \
    "}\n"

static const char row_text[] = OPERATIONS
    "struct etch_args {\n"
    "    const ETCH_0 *x;\n"
    "    ETCH_1 *y;\n"
    "    const ETCH_2 *weight;\n"
    "    const ETCH_3 *bias;\n"
    "    i64 rows, n, wide, wide_parameters;\n"
    "    VALUE_0 eps;\n"
    "};\n"
    "template <class T> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) neighbours {\n"
    "    T e[V];\n"
    "};\n"
    "template <class T>\n"
    "__device__ inline void get(const T *p, i64 at, i64 n, bool wide, VALUE_0 absent, VALUE_0 *v) "
    "{\n"
    "    if (wide && at < n) {\n"
    "        const neighbours<T> x = *(const neighbours<T> *)(p + at);\n"
    "        #pragma unroll\n"
    "        for (int j = 0; j < V; j++) v[j] = value(x.e[j]);\n"
    "    } else {\n"
    "        #pragma unroll\n"
    "        for (int j = 0; j < V; j++) v[j] = at + j < n ? (VALUE_0)value(p[at + j]) : absent;\n"
    "    }\n"
    "}\n"
    "template <class T>\n"
    "__device__ inline void set(T *p, i64 at, i64 n, bool wide, const VALUE_0 *v) {\n"
    "    if (wide && at < n) {\n"
    "        neighbours<T> x;\n"
    "        #pragma unroll\n"
    "        for (int j = 0; j < V; j++) put(&x.e[j], v[j]);\n"
    "        *(neighbours<T> *)(p + at) = x;\n"
    "    } else {\n"
    "        #pragma unroll\n"
    "        for (int j = 0; j < V; j++)\n"
    "            if (at + j < n) put(p + at + j, v[j]);\n"
    "    }\n"
    "}\n"
    "/* The same for all threads of the row. */\n"
    "template <bool MAX> __device__ inline VALUE_0 fold(VALUE_0 a, VALUE_0 *part) {\n"
    "    #pragma unroll\n"
    "    for (int d = 16; d > 0; d /= 2) a = join<MAX>(a, __shfl_xor_sync(0xffffffffu, a, d));\n"
    "#if THREADS > 32\n"
    "    const int t = threadIdx.x;\n"
    "    if (t % 32 == 0) part[t / 32] = a;\n"
    "    __syncthreads();\n"
    "    a = t % 32 < THREADS / 32 ? part[t % 32] : MAX ? LOWEST : -(VALUE_0)0;\n"
    "    __syncthreads();\n"
    "    #pragma unroll\n"
    "    for (int d = 16; d > 0; d /= 2) a = join<MAX>(a, __shfl_xor_sync(0xffffffffu, a, d));\n"
    "#endif\n"
    "    return a;\n"
    "}\n"
    "#if CHUNKS\n"
    "#define EACH _Pragma(\"unroll\") for (int c = 0; c < CHUNKS; c++)\n"
    "#define READ(v, absent) VALUE_0 *const v = kept + c * V\n"
    "#else\n"
    "#define EACH for (i64 c = 0; c < chunks; c++)\n"
    "#define READ(v, absent) VALUE_0 v[V]; get(x, (c * THREADS + t) * V, a.n, wide, absent, v)\n"
    "#endif\n"
    "#define AT ((c * (i64)THREADS + t) * V)\n"
    "#define VALUES _Pragma(\"unroll\") for (int j = 0; j < V; j++)\n"
    "extern \"C\" __global__ void __launch_bounds__(THREADS < 128 ? 128 : THREADS)\n"
    "    etch_rows(const __grid_constant__ etch_args a) {\n"
    "    __shared__ VALUE_0 part[32];\n"
    "    const int group = THREADS < 128 ? threadIdx.x / THREADS : 0, t = threadIdx.x % THREADS;\n"
    "    const int groups = THREADS < 128 ? 128 / THREADS : 1;\n"
    "    const bool wide = a.wide;\n"
    "    const i64 chunks = (a.n + THREADS * V - 1) / (THREADS * V);\n"
    "    (void)chunks;\n"
    "    for (i64 first = (i64)blockIdx.x * groups; first < a.rows; first += (i64)gridDim.x * "
    "groups) {\n"
    "        const i64 row = first + group;\n"
    "        const bool live = row < a.rows;\n"
    "        const ETCH_0 *x = a.x + (live ? row : 0) * a.n;\n"
    "        ETCH_1 *y = a.y + row * a.n;\n"
    "#if CHUNKS\n"
    "        VALUE_0 kept[CHUNKS * V];\n"
    "        EACH get(x, AT, a.n, wide, NORM ? (VALUE_0)0 : LOWEST, kept + c * V);\n"
    "#endif\n"
    "#if NORM\n"
    "        VALUE_0 sum = -(VALUE_0)0, squares = -(VALUE_0)0;\n"
    "        EACH {\n"
    "            READ(v, 0);\n"
    "            VALUES if (AT + j < a.n) sum = sum + v[j];\n"
    "        }\n"
    "        const VALUE_0 mean = fold<false>(sum, part) / (VALUE_0)a.n;\n"
    "        EACH {\n"
    "            READ(v, 0);\n"
    "            VALUES if (AT + j < a.n) {\n"
    "                const VALUE_0 d = v[j] - mean;\n"
    "                squares = squares + d * d;\n"
    "            }\n"
    "        }\n"
    "        const VALUE_0 variance = fold<false>(squares, part) / (VALUE_0)a.n;\n"
    "        const VALUE_0 scale = (VALUE_0)1 / sqrt(variance + a.eps);\n"
    "        if (live) EACH {\n"
    "            READ(v, 0);\n"
    "            VALUE_0 p[V];\n"
    "            VALUES v[j] = (v[j] - mean) * scale;\n"
    "            if (a.weight) {\n"
    "                get(a.weight, AT, a.n, a.wide_parameters, 0, p);\n"
    "                VALUES v[j] = v[j] * p[j];\n"
    "            }\n"
    "            if (a.bias) {\n"
    "                get(a.bias, AT, a.n, a.wide_parameters, 0, p);\n"
    "                VALUES v[j] = v[j] + p[j];\n"
    "            }\n"
    "            set(y, AT, a.n, wide, v);\n"
    "        }\n"
    "#else\n"
    "        VALUE_0 max = LOWEST, sum = -(VALUE_0)0;\n"
    "        EACH {\n"
    "            READ(v, LOWEST);\n"
    "            VALUES max = larger(max, v[j]);\n"
    "        }\n"
    "        max = fold<true>(max, part);\n"
    "        EACH {\n"
    "            READ(v, LOWEST);\n"
    "            VALUES {\n"
    "                const VALUE_0 e = exp(v[j] - max);\n"
    "                if (AT + j < a.n) sum = sum + e;\n"
    "                if (CHUNKS && !LOGARITHM) v[j] = e;\n"
    "            }\n"
    "        }\n"
    "        sum = fold<false>(sum, part);\n"
    "        if (LOGARITHM) sum = log(sum);\n"
    "        if (live) EACH {\n"
    "            READ(v, LOWEST);\n"
    "            VALUES {\n"
    "                if (LOGARITHM) v[j] = v[j] - max - sum;\n"
    "                else v[j] = (CHUNKS ? v[j] : exp(v[j] - max)) / sum;\n"
    "            }\n"
    "            set(y, AT, a.n, wide, v);\n"
    "        }\n"
    "#endif\n"
    "    }\n"
    "}\n";

/* x[outer][n][inner]; a block of 256 threads has 32 neighbours of the inner axis. */
static const char column_text[] = OPERATIONS
    "struct etch_args {\n"
    "    const ETCH_0 *x;\n"
    "    ETCH_1 *y;\n"
    "    i64 outer, n, inner;\n"
    "};\n"
    "template <bool MAX> __device__ inline VALUE_0 fold(VALUE_0 v, VALUE_0 (*part)[32]) {\n"
    "    const int t = threadIdx.x / 32, c = threadIdx.x % 32;\n"
    "    part[t][c] = v;\n"
    "    __syncthreads();\n"
    "    for (int w = 4; w > 0; w /= 2) {\n"
    "        if (t < w) part[t][c] = join<MAX>(part[t][c], part[t + w][c]);\n"
    "        __syncthreads();\n"
    "    }\n"
    "    v = part[0][c];\n"
    "    __syncthreads();\n"
    "    return v;\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(256)\n"
    "    etch_columns(const __grid_constant__ etch_args a) {\n"
    "    __shared__ VALUE_0 part[8][32];\n"
    "    const i64 strips = (a.inner + 31) / 32;\n"
    "    for (i64 u = blockIdx.x; u < a.outer * strips; u += gridDim.x) {\n"
    "        const i64 column = u % strips * 32 + threadIdx.x % 32;\n"
    "        const i64 t = threadIdx.x / 32, n = column < a.inner ? a.n : 0;\n"
    "        const i64 at = u / strips * a.n * a.inner + column;\n"
    "        VALUE_0 max = LOWEST, sum = -(VALUE_0)0;\n"
    "        for (i64 i = t; i < n; i += 8) max = larger(max, value(a.x[at + i * a.inner]));\n"
    "        max = fold<true>(max, part);\n"
    "        for (i64 i = t; i < n; i += 8) sum = sum + exp(value(a.x[at + i * a.inner]) - max);\n"
    "        sum = fold<false>(sum, part);\n"
    "        if (LOGARITHM) sum = log(sum);\n"
    "        for (i64 i = t; i < n; i += 8) {\n"
    "            const VALUE_0 d = value(a.x[at + i * a.inner]) - max;\n"
    "            put(a.y + at + i * a.inner, LOGARITHM ? d - sum : exp(d) / sum);\n"
    "        }\n"
    "    }\n"
    "}\n";

enum { KEPT = 32, THREADS_MOST = 1024 };

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
    k->symbol = "etch_rows", k->body = row_text;
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
    k->symbol = "etch_columns", k->body = column_text;
    snprintf(k->defines, sizeof k->defines, "#define LOGARITHM %d\n", logarithm);
    return etch__cuda_run_text(s, k, a.outer * ((inner + 31) / 32), 256, &a);
}

static etch_status softmax(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], *x, temporary;
    if (!out->numel) return ETCH_OK;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    bool logarithm = call->op == OP_LOG_SOFTMAX_RAW;
    int64_t inner = 1, n = 1;
    int dim = etch__cuda_dim(call);
    for (int d = dim; d < out->ndim; d++) *(d == dim ? &n : &inner) *= out->size[d];
    etch_status status = etch__cuda_dense(call->in[0], &temporary, &x);
    if (status == ETCH_OK) {
        kernel_text k = {.ndtypes = 4};
        k.dtype[0] = x->dtype, k.dtype[1] = out->dtype;
        k.dtype[2] = k.dtype[3] = k.dtype[0];
        row_args a = {.x = etch__ptr(x), .y = etch__ptr(out), .rows = out->numel / n, .n = n};
        status = inner > 1 ? run_columns(s, &k, &a, inner, logarithm)
                           : run_rows(s, &k, &a, false, logarithm);
    }
    etch__cuda_drop(&temporary);
    return status;
}

static etch_status layer_norm(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], *in[3] = {NULL, NULL, NULL}, temporary[3];
    if (!out->numel) return ETCH_OK;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    memset(temporary, 0, sizeof temporary);
    kernel_text k = {.ndtypes = 4};
    etch_status status = ETCH_OK;
    for (int i = 0; i < 3; i++) {
        bool there = call->in[i] != ETCH_NONE;
        k.dtype[i ? i + 1 : 0] = (there ? call->in[i] : call->in[0])->dtype;
        if (there && status == ETCH_OK)
            status = etch__cuda_dense(call->in[i], &temporary[i], &in[i]);
    }
    k.dtype[1] = out->dtype;
    if (status == ETCH_OK) {
        row_args a = {.x = etch__ptr(in[0]), .y = etch__ptr(out), .n = 1};
        a.weight = in[1] ? etch__ptr(in[1]) : NULL, a.bias = in[2] ? etch__ptr(in[2]) : NULL;
        a.eps = etch__scalar_cell(call->sc[0], etch__compute_type(k.dtype[0]));
        for (int64_t i = 0; i < call->at[0]; i++) a.n *= call->at[1 + i];
        a.rows = out->numel / a.n;
        status = run_rows(s, &k, &a, true, false);
    }
    for (int i = 0; i < 3; i++) etch__cuda_drop(&temporary[i]);
    return status;
}

__attribute__((constructor)) static void register_norms(void) {
    etch__cuda_register(OP_SOFTMAX_RAW, softmax);
    etch__cuda_register(OP_LOG_SOFTMAX_RAW, softmax);
    etch__cuda_register(OP_NATIVE_LAYER_NORM, layer_norm);
}
