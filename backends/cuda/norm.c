/* softmax, log_softmax and layer norm on a device: a block a row. A row of up to 32,768 elements is
 * read once, into registers, 16 bytes an access where it lies so; a longer one is read again for each
 * pass. Everything is computed in f32 (f64 of f64), half types are rounded once.
 *
 * The order of the sums is fixed by the row's length, dtype and place in its storage alone: a thread's
 * values in order, then the threads of a warp by halves, then the warps in order. */
#include "backends/cuda/ops.h"

enum { WARP = 32, KEPT = 32 };

/* Before it: THREADS, VEC (elements an access), GROUPS (accesses a thread; 0: rows are read again). */
static const char head_text[] =
    "struct etch_args {\n"
    "    const ETCH_T *x;\n"
    "    void *y;\n"
    "    const ETCH_W *weight, *bias;\n"
    "    long long rows, n, inner;\n"
    "    ETCH_C eps;\n"
    "};\n"
    "struct alignas(sizeof(ETCH_T) * VEC) vec {\n"
    "    ETCH_T e[VEC];\n"
    "};\n"
    "__device__ inline ETCH_C larger(ETCH_C a, ETCH_C b) { return a > b || a != a ? a : b; }\n"
    "__device__ inline ETCH_C sum(ETCH_C a, ETCH_C b) { return a + b; }\n"
    "#define ACROSS(v, op) \\\n"
    "    for (int w = 16; w; w /= 2) v = op(v, __shfl_down_sync(0xffffffffu, v, w)); \\\n"
    "    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v; \\\n"
    "    __syncthreads(); \\\n"
    "    v = shared[0]; \\\n"
    "    for (int w = 1; w < THREADS / 32; w++) v = op(v, shared[w]); \\\n"
    "    __syncthreads();\n"
    "#if GROUPS\n"
    "#define ROW ETCH_C v[GROUPS * VEC]; \\\n"
    "    _Pragma(\"unroll\") \\\n"
    "    for (int g = 0; g < GROUPS; g++) { \\\n"
    "        const long long i = ((long long)g * THREADS + threadIdx.x) * VEC; \\\n"
    "        vec e = {}; \\\n"
    "        if (i < p.n) e = *(const vec *)(x + i * p.inner); \\\n"
    "        _Pragma(\"unroll\") for (int j = 0; j < VEC; j++) v[g * VEC + j] = LOAD(e.e[j]); \\\n"
    "    }\n"
    "#define EACH(i, value, ...) \\\n"
    "    _Pragma(\"unroll\") \\\n"
    "    for (int q = 0; q < GROUPS * VEC; q++) { \\\n"
    "        const long long i = ((long long)(q / VEC) * THREADS + threadIdx.x) * VEC + q % VEC; "
    "\\\n"
    "        ETCH_C &value = v[q]; \\\n"
    "        if (i < p.n) { __VA_ARGS__ } \\\n"
    "    }\n"
    "#define PUT \\\n"
    "    _Pragma(\"unroll\") \\\n"
    "    for (int g = 0; g < GROUPS; g++) { \\\n"
    "        const long long i = ((long long)g * THREADS + threadIdx.x) * VEC; \\\n"
    "        out e; \\\n"
    "        _Pragma(\"unroll\") for (int j = 0; j < VEC; j++) STORE(e.e, j, v[g * VEC + j]); \\\n"
    "        if (i < p.n) *(out *)((ETCH_O *)p.y + start + i * p.inner) = e; \\\n"
    "    }\n"
    "struct alignas(sizeof(ETCH_O) * VEC > 16 ? 16 : sizeof(ETCH_O) * VEC) out {\n"
    "    ETCH_O e[VEC];\n"
    "};\n"
    "#else\n"
    "#define ROW\n"
    "#define EACH(i, value, ...) \\\n"
    "    for (long long i = threadIdx.x; i < p.n; i += THREADS) { \\\n"
    "        ETCH_C value = LOAD(x[i * p.inner]); \\\n"
    "        __VA_ARGS__ \\\n"
    "    }\n"
    "#endif\n"
    "extern \"C\" __global__ void __launch_bounds__(THREADS)\n"
    "    etch_rows(const __grid_constant__ struct etch_args p) {\n"
    "    __shared__ ETCH_C shared[THREADS / 32];\n"
    "    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {\n"
    "        const long long start = row / p.inner * p.n * p.inner + row % p.inner;\n"
    "        const ETCH_T *x = p.x + start;\n"
    "        ROW\n";

/* With GROUPS the passes change the values that are kept, and PUT stores them; without, each pass
 * computes from the element again and the last one stores. */
static const char softmax_text[] =
    "        ETCH_C m = -INFINITY;\n"
    "        EACH(i, a, m = larger(m, a);)\n"
    "        ACROSS(m, larger)\n"
    "        ETCH_C s = 0;\n"
    "        EACH(i, a, a = EXP(a - m); s = s + a;)\n"
    "        ACROSS(s, sum)\n"
    "#if GROUPS\n"
    "        EACH(i, a, a = a / s;)\n"
    "        PUT\n"
    "#else\n"
    "        EACH(i, a, STORE(p.y, start + i * p.inner, EXP(a - m) / s);)\n"
    "#endif\n"
    "    }\n}\n";

static const char log_softmax_text[] =
    "        ETCH_C m = -INFINITY;\n"
    "        EACH(i, a, m = larger(m, a);)\n"
    "        ACROSS(m, larger)\n"
    "        ETCH_C s = 0;\n"
    "        EACH(i, a, s = s + EXP(a - m);)\n"
    "        ACROSS(s, sum)\n"
    "        s = LOG(s);\n"
    "#if GROUPS\n"
    "        EACH(i, a, a = (a - m) - s;)\n"
    "        PUT\n"
    "#else\n"
    "        EACH(i, a, STORE(p.y, start + i * p.inner, (a - m) - s);)\n"
    "#endif\n"
    "    }\n}\n";

static const char layer_norm_text[] =
    "        ETCH_C mean = 0;\n"
    "        EACH(i, a, mean = mean + a;)\n"
    "        ACROSS(mean, sum)\n"
    "        mean = mean / (ETCH_C)p.n;\n"
    "        ETCH_C s = 0;\n"
    "        EACH(i, a, const ETCH_C d = a - mean; s = s + d * d;)\n"
    "        ACROSS(s, sum)\n"
    "        const ETCH_C scale = 1 / SQRT(s / (ETCH_C)p.n + p.eps);\n"
    "#define NORM(a, i) \\\n"
    "        ETCH_C z = (a - mean) * scale; \\\n"
    "        if (p.weight) z = z * LOADW(p.weight[i]); \\\n"
    "        if (p.bias) z = z + LOADW(p.bias[i]);\n"
    "#if GROUPS\n"
    "        EACH(i, a, NORM(a, i) a = z;)\n"
    "        PUT\n"
    "#else\n"
    "        EACH(i, a, NORM(a, i) STORE(p.y, start + i, z);)\n"
    "#endif\n"
    "    }\n}\n";

typedef struct rows {
    const char *body, *name;
    etch_dtype in, out, weight_dtype;
    int threads, vec, groups;
} rows;

static const char *type_name(etch_dtype d) {
    return d == ETCH_F64 ? "double" : d == ETCH_F32 ? "float" : "unsigned short";
}

static char *text_of(const void *ctx) {
    const rows *r = ctx;
    bool f64 = r->in == ETCH_F64,
         half = r->weight_dtype == ETCH_BF16 || r->weight_dtype == ETCH_F16;
    size_t room = sizeof head_text + strlen(r->body) + 1024;
    char *body = etch__malloc(room);
    if (!body) return NULL;
    snprintf(body, room,
             "#define THREADS %d\n#define VEC %d\n#define GROUPS %d\ntypedef %s ETCH_W;\n"
             "typedef %s ETCH_O;\n#define LOADW(v) %s\n#define EXP %s\n#define LOG %s\n"
             "#define SQRT %s\n#ifndef INFINITY\n#define INFINITY "
             "__int_as_float(0x7f800000)\n#endif\n%s%s",
             r->threads, r->vec, r->groups, type_name(r->weight_dtype), type_name(r->out),
             half ? (r->weight_dtype == ETCH_BF16 ? "load_half(v, 1)" : "load_half(v, 0)") : "(v)",
             f64 ? "exp" : "expf", f64 ? "log" : "logf", f64 ? "sqrt" : "sqrtf", head_text,
             r->body);
    product_text product = {r->in, r->out != r->in, body};
    char *text = etch__cuda_product_text(&product);
    etch__free(body);
    return text;
}

/* About four accesses a thread. */
static void plan_row(rows *r, int64_t n, bool wide) {
    int size = (int)etch_dtype_size(r->in);
    r->vec = wide ? 16 / size : 1;
    int64_t groups = (n + r->vec - 1) / r->vec;
    r->threads = WARP;
    while (r->threads < 1024 && r->threads * 4 < groups) r->threads *= 2;
    r->groups = (int)((groups + r->threads - 1) / r->threads);
    if ((groups + r->threads - 1) / r->threads * r->vec > KEPT) r->groups = 0, r->vec = 1;
}

typedef struct rows_args {
    const void *x;
    void *y;
    const void *weight, *bias;
    long long rows, n, inner;
    union {
        float f;
        double d;
        uint64_t cell;
    } eps;
} rows_args;

static etch_status launch(rows *r, rows_args *a, const etch_tensor *x, const etch_tensor *y) {
    uint8_t key[96];
    const char *why;
    cuda_stream *s = etch__cuda_stream(etch__device_index(y->device));
    if (!s || etch__cuda_use(s, x->storage) != ETCH_OK) return etch__tls.status;
    int64_t size = etch__item_size(x);
    a->x = etch__ptr(x), a->y = etch__ptr(y);
    plan_row(r, a->n, a->inner == 1 && a->n * size % 16 == 0 && x->offset * size % 16 == 0);
    int n = snprintf((char *)key, sizeof key, "%s 1 %d %d %d %d %d %d", r->name, r->in, r->out,
                     r->weight_dtype, r->threads, r->vec, r->groups);
    cuda_code *code =
        etch__cuda_code(etch__cuda_stream_device(s), key, (size_t)n, "etch_rows", text_of, r, &why);
    if (!code) return etch__error(ETCH_ERR_COMPILE, "%s", why);
    unsigned grid[3] = {a->rows < 1 << 30 ? (unsigned)a->rows : 1 << 30, 1, 1},
             block[3] = {(unsigned)r->threads, 1, 1};
    etch_status status =
        etch__cuda_launch(s, etch__cuda_function(code), r->name, grid, block, 0, a);
    etch__cuda_code_release(code);
    return status;
}

/* A contiguous handle over t's elements: itself, or a copy in *copy, whose storage is to be released. */
static const etch_tensor *contiguous(const etch_tensor *t, etch_tensor *copy) {
    memset(copy, 0, sizeof *copy);
    if (t->contiguous) return t;
    etch_tensor *from = (etch_tensor *)t, *to = copy;
    tensor_meta m = {.dtype = t->dtype, .ndim = t->ndim, .device = t->device};
    memcpy(m.size, t->size, sizeof m.size);
    etch__row_major(m.ndim, m.size, m.stride);
    atomic_init(&copy->refs, 1);
    copy->magic = TENSOR_ALIVE;
    etch__apply_meta(copy, &m);
    copy->storage = etch__storage_new_on(t->device, (size_t)(t->numel * etch__item_size(t)));
    op_call clone = {.op = OP_CLONE, .nin = 1, .in = &from};
    if (copy->storage && etch__cuda_kernel(&clone, &to) == ETCH_OK) return copy;
    return NULL;
}

static etch_status softmax(const op_call *call, etch_tensor *const *out) {
    const etch_tensor *x = call->in[0];
    bool log = call->op == OP_LOG_SOFTMAX_RAW;
    rows r = {.body = log ? log_softmax_text : softmax_text,
              .name = log ? "log_softmax" : "softmax",
              .in = (etch_dtype)x->dtype,
              .out = (etch_dtype)out[0]->dtype,
              .weight_dtype = ETCH_F32};
    rows_args a = {.rows = 1, .n = 1, .inner = 1};
    int dim = (int)(call->at[0] < 0 ? call->at[0] + x->ndim : call->at[0]);
    if (x->numel == 0) return ETCH_OK;
    for (int d = 0; d < x->ndim; d++) {
        *(d == dim ? &a.n : &a.rows) *= x->size[d];
        if (d > dim) a.inner *= x->size[d];
    }
    etch_tensor copy;
    const etch_tensor *dense = contiguous(x, &copy);
    etch_status status = dense ? launch(&r, &a, dense, out[0]) : etch__tls.status;
    etch__storage_release(copy.storage);
    return status;
}

static etch_status layer_norm(const op_call *call, etch_tensor *const *out) {
    const etch_tensor *x = call->in[0], *dense[3] = {NULL};
    etch_tensor copy[3] = {{.dtype = 0}};
    etch_status status = ETCH_OK;
    if (x->numel == 0) return ETCH_OK;
    for (int i = 0; i < 3 && status == ETCH_OK; i++)
        if (call->in[i] != ETCH_NONE && !(dense[i] = contiguous(call->in[i], &copy[i])))
            status = etch__tls.status;
    const etch_tensor *w = dense[1] ? dense[1] : dense[2];
    rows r = {.body = layer_norm_text,
              .name = "layer_norm",
              .in = (etch_dtype)x->dtype,
              .out = (etch_dtype)out[0]->dtype,
              .weight_dtype = w ? (etch_dtype)w->dtype : ETCH_F32};
    rows_args a = {.n = 1, .inner = 1};
    for (int64_t i = 0; i < call->at[0]; i++) a.n *= call->at[1 + i];
    a.rows = x->numel / a.n;
    a.weight = dense[1] ? etch__ptr(dense[1]) : NULL;
    a.bias = dense[2] ? etch__ptr(dense[2]) : NULL;
    a.eps.cell = etch__scalar_cell(call->sc[0], etch__compute_type(r.in));
    bool same = !dense[1] || !dense[2] || dense[1]->dtype == dense[2]->dtype;
    if (status == ETCH_OK && same) status = launch(&r, &a, dense[0], out[0]);
    for (int i = 0; i < 3; i++) etch__storage_release(copy[i].storage);
    return status == ETCH_OK && !same ? etch__run_on_host(call, out) : status;
}

__attribute__((constructor)) static void register_norms(void) {
    etch__cuda_register(OP_SOFTMAX_RAW, softmax);
    etch__cuda_register(OP_LOG_SOFTMAX_RAW, softmax);
    etch__cuda_register(OP_NATIVE_LAYER_NORM, layer_norm);
}
