/* mm, addmm, mv, dot, bmm on a device.
 *
 * Each is a batch of M x K times K x N products in the compute type. With M, N and K all at most 64,
 * and for integers always, a thread computes one element by the chain acc = +0, k ascending,
 * acc = fma(a, b, acc). f32 ones of middle size are gemm.c's, by a rule on the sizes. The rest are
 * cuBLASLt's, with one algorithm for each shape and layout, chosen once by its own heuristic, so eager
 * and compiled calls use the same. Half types accumulate
 * in f32 and are rounded once. An operand that the library cannot read in place is copied first, by
 * a rule on the operator's own arguments. */
#include <pthread.h>
#include <xxhash.h>

#include "backends/cuda/gemm.h"
#include "backends/cuda/text.h"
#include "core/expr.h"

enum { SMALL = 64, WORKSPACE = 32 << 20 };

typedef struct operand {
    const etch_tensor *t;
    int64_t rows, cols, row, col, batch; /* extents, strides in elements */
    bool transposed;
    int64_t ld;
    void *address;
    etch_tensor copy; /* its storage is NULL where there is none */
} operand;

typedef struct product {
    cuda_stream *stream;
    cuda_device *device;
    etch_dtype dtype, type; /* storage and compute type */
    int64_t batch, m, n, k;
    operand a, b;
    void *c;
    bool wide; /* c is of the compute type */
} product;

/* ---- operands ---- */

static void shape_operand(operand *o, const etch_tensor *t, bool left) {
    int d = t->ndim;
    memset(o, 0, sizeof *o);
    o->t = t;
    o->batch = d == 3 ? t->stride[0] : 0;
    if (d == 1) {
        o->rows = left ? 1 : t->size[0], o->cols = left ? t->size[0] : 1;
        *(left ? &o->col : &o->row) = t->stride[0];
        return;
    }
    o->rows = t->size[d - 2], o->cols = t->size[d - 1];
    o->row = t->stride[d - 2], o->col = t->stride[d - 1];
}

/* What the library reads as it is; strides of axes with one element do not matter. */
static bool library_layout(operand *o, int64_t batches) {
    int64_t row = o->rows > 1 ? o->row : (o->cols > 1 ? o->cols : 1);
    int64_t col = o->cols > 1 ? o->col : 1;
    bool rows = col == 1 && row >= o->cols;
    if (!rows) {
        col = o->cols > 1 ? o->col : o->rows;
        row = o->rows > 1 ? o->row : 1;
        if (row != 1 || col < o->rows) return false;
    }
    o->transposed = !rows, o->ld = rows ? row : col;
    size_t start = (size_t)(o->t->offset * etch__item_size(o->t));
    return start % 16 == 0 && (batches == 1 || o->batch >= 0);
}

static etch_status copy_operand(operand *o, bool left) {
    etch_tensor *from = (etch_tensor *)o->t;
    tensor_meta m = {.dtype = from->dtype, .ndim = from->ndim, .device = from->device};
    memcpy(m.size, from->size, sizeof m.size);
    etch__row_major(m.ndim, m.size, m.stride);
    etch_tensor t = {.refs = 1, .magic = TENSOR_ALIVE}, *to = &t;
    etch__apply_meta(&t, &m);
    t.storage = etch__storage_new_on(t.device, (size_t)(t.numel * etch__item_size(&t)));
    if (!t.storage) return etch__tls.status;
    op_call clone = {.op = OP_CLONE, .nin = 1, .in = &from};
    etch_status status = etch__cuda_kernel(&clone, &to);
    etch__cuda_counts(etch__device_index(t.device))->operand_copies++;
    shape_operand(o, &t, left);
    o->copy = t;
    o->t = &o->copy;
    return status;
}

static etch_status prepare_operand(product *p, operand *o, const etch_tensor *t, bool left,
                                   bool library) {
    shape_operand(o, t, left);
    etch_status status = ETCH_OK;
    if (library && !library_layout(o, p->batch)) {
        status = copy_operand(o, left);
        library_layout(o, p->batch);
    }
    if (status == ETCH_OK) o->address = etch__ptr(o->t);
    return status;
}

/* ---- code of our own ---- */

/* ETCH_T is the storage type, ETCH_C the compute type. */
static const char chain_text[] =
    "struct etch_args {\n"
    "    const ETCH_T *a, *b;\n"
    "    void *c;\n"
    "    long long batch, m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col;\n"
    "};\n"
    "extern \"C\" __global__ void etch_chain(const __grid_constant__ etch_args p) {\n"
    "    long long total = p.batch * p.m * p.n;\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    for (; i < total; i += (long long)gridDim.x * blockDim.x) {\n"
    "        long long col = i % p.n, row = i / p.n % p.m, batch = i / p.n / p.m;\n"
    "        const ETCH_T *a = p.a + batch * p.a_batch + row * p.a_row;\n"
    "        const ETCH_T *b = p.b + batch * p.b_batch + col * p.b_col;\n"
    "        ETCH_C acc = 0;\n"
    "        #pragma unroll 8\n"
    "        for (long long k = 0; k < p.k; k++) {\n"
    "            ETCH_C x = LOAD(a[k * p.a_col]), y = LOAD(b[k * p.b_row]);\n"
    "            acc = CHAIN(x, y, acc);\n"
    "        }\n"
    "        STORE(p.c, i, acc);\n"
    "    }\n"
    "}\n";

/* The same chain for M, N and K of at most 64: a block of 256 threads has 16 x 16 elements, from
 * operands in shared memory. */
const char etch__cuda_small_text[] =
    "struct etch_args {\n"
    "    const ETCH_T *a, *b;\n"
    "    void *c;\n"
    "    long long batch, m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col;\n"
    "};\n"
    "struct alignas(sizeof(ETCH_C) < 4 ? 4 * sizeof(ETCH_C) : 16) quad {\n"
    "    ETCH_C e[4];\n"
    "};\n"
    "extern \"C\" __global__ void __launch_bounds__(256)\n"
    "    etch_small(const __grid_constant__ struct etch_args p) {\n"
    "    __shared__ quad left[16][17]; // four neighbours along k each\n"
    "    __shared__ ETCH_C right[64][16];\n"
    "    const int m = (int)p.m, n = (int)p.n, K = (int)p.k, t = threadIdx.x;\n"
    "    const int down = (m + 15) / 16, across = (n + 15) / 16;\n"
    "    for (long long u = blockIdx.x; u < p.batch * down * across; u += gridDim.x) {\n"
    "        const long long batch = u / (down * across);\n"
    "        const int row = (int)(u / across % down) * 16, col = (int)(u % across) * 16;\n"
    "        const ETCH_T *a = p.a + batch * p.a_batch, *b = p.b + batch * p.b_batch;\n"
    "        #pragma unroll 4\n"
    "        for (int i = t; i < 16 * K; i += 256) {\n"
    "            const int r = i / K, k = i - r * K;\n"
    "            if (row + r < m) left[r][k / 4].e[k % 4] = LOAD(a[(row + r) * p.a_row + k * "
    "p.a_col]);\n"
    "        }\n"
    "        #pragma unroll 4\n"
    "        for (int i = t; i < 16 * K; i += 256) {\n"
    "            const int c = i % 16, k = i / 16;\n"
    "            if (col + c < n) right[k][c] = LOAD(b[k * p.b_row + (col + c) * p.b_col]);\n"
    "        }\n"
    "        __syncthreads();\n"
    "        const int c = t % 16, r = t / 16;\n"
    "        ETCH_C acc = 0;\n"
    "        int k = 0;\n"
    "        #pragma unroll 4\n"
    "        for (; k + 4 <= K; k += 4) {\n"
    "            const quad x = left[r][k / 4];\n"
    "            #pragma unroll\n"
    "            for (int q = 0; q < 4; q++) acc = CHAIN(x.e[q], right[k + q][c], acc);\n"
    "        }\n"
    "        for (; k < K; k++) acc = CHAIN(left[r][k / 4].e[k % 4], right[k][c], acc);\n"
    "        if (row + r < m && col + c < n)\n"
    "            STORE(p.c, (batch * m + row + r) * n + col + c, acc);\n"
    "        __syncthreads();\n"
    "    }\n"
    "}\n";

static const char epilogue_text[] =
    "struct etch_args {\n"
    "    const ETCH_C *c;\n"
    "    const ETCH_T *self;\n"
    "    void *out;\n"
    "    long long m, n, self_row, self_col;\n"
    "    ETCH_C alpha, beta;\n"
    "    int scale, scale_self;\n"
    "};\n"
    "extern \"C\" __global__ void etch_epilogue(const __grid_constant__ etch_args p) {\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    for (; i < p.m * p.n; i += (long long)gridDim.x * blockDim.x) {\n"
    "        ETCH_C c = p.c[i];\n"
    "        if (p.scale) c = p.alpha * c;\n"
    "        if (p.self) {\n"
    "            ETCH_C self = LOAD(p.self[i / p.n * p.self_row + i % p.n * p.self_col]);\n"
    "            if (p.scale_self) self = p.beta * self;\n"
    "            c = self + c;\n"
    "        }\n"
    "        STORE(p.out, i, c);\n"
    "    }\n"
    "}\n";

/* The body behind the definitions that make it one of this dtype. */
char *etch__cuda_product_text(const void *ctx) {
    const product_text *t = ctx;
    etch_dtype d = t->dtype, type = etch__compute_type(d);
    bool half = type != d, real = etch__is_float(d);
    size_t room = strlen(etch__cuda_half_text) + strlen(t->body) + 1024;
    char *text = etch__malloc(room);
    if (!text) return NULL;
    const char *chain = d == ETCH_BOOL ? "((acc) | ((x) & (y)))"
                        : real         ? (type == ETCH_F64 ? "fma(x, y, acc)" : "fmaf(x, y, acc)")
                                       : "(ETCH_C)((unsigned long long)(acc) + "
                                         "(unsigned long long)(x) * (unsigned long long)(y))";
    snprintf(text, room,
             "%stypedef %s ETCH_T;\ntypedef %s ETCH_C;\n#define LOAD(v) %s\n"
             "#define STORE(c, i, v) (%s)\n#define CHAIN(x, y, acc) %s\n%s",
             half ? etch__cuda_half_text : "", etch__cuda_type_names[d],
             etch__cuda_type_names[type],
             half ? (d == ETCH_BF16 ? "load_half(v, 1)" : "load_half(v, 0)") : "(v)",
             half && !t->wide ? (d == ETCH_BF16 ? "((ETCH_T *)(c))[i] = store_half(v, 1)"
                                                : "((ETCH_T *)(c))[i] = store_half(v, 0)")
             : d == ETCH_BOOL ? "((ETCH_C *)(c))[i] = (v) != 0"
                              : "((ETCH_C *)(c))[i] = (v)",
             chain, t->body);
    return text;
}

static etch_status launch(const product *p, const char *body, const char *symbol, bool wide,
                          int64_t blocks, unsigned threads, void *parameter) {
    product_text ctx = {p->dtype, wide, body};
    uint8_t key[64];
    const char *why;
    int n = snprintf((char *)key, sizeof key, "%s 2 %d %d", symbol, p->dtype, wide);
    cuda_code *code =
        etch__cuda_code(p->device, key, (size_t)n, symbol, etch__cuda_product_text, &ctx, &why);
    if (!code) return etch__error(ETCH_ERR_COMPILE, "%s", why);
    unsigned grid[3] = {blocks < 1 << 20 ? (unsigned)blocks : 1 << 20, 1, 1},
             block[3] = {threads, 1, 1};
    etch_status status =
        etch__cuda_launch(p->stream, etch__cuda_function(code), symbol, grid, block, 0, parameter);
    etch__cuda_code_release(code);
    return status;
}

static etch_status chain(const product *p) {
    struct {
        const void *a, *b;
        void *c;
        long long batch, m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col;
    } args = {p->a.address, p->b.address, p->c,     p->batch,   p->m,     p->n,    p->k,
              p->a.batch,   p->a.row,     p->a.col, p->b.batch, p->b.row, p->b.col};
    if (p->m > SMALL || p->n > SMALL || p->k > SMALL)
        return launch(p, chain_text, "etch_chain", p->wide, (p->batch * p->m * p->n + 127) / 128,
                      128, &args);
    int64_t tiles = (p->m + 15) / 16 * ((p->n + 15) / 16);
    return launch(p, etch__cuda_small_text, "etch_small", p->wide, p->batch * tiles, 256, &args);
}

/* ---- cuBLASLt: a plan for each shape and layout, kept ---- */

typedef struct lt_key {
    int64_t device, dtype, wide, precision, batch, m, n, k;
    int64_t a_transposed, b_transposed, lda, ldb, a_batch, b_batch;
} lt_key;

typedef struct lt_plan {
    struct lt_plan *next;
    lt_key key;
    lt_desc desc;
    lt_layout a, b, c; /* column-major, as the library sees them: A is our right operand */
    lt_algo algo;
    size_t workspace;
} lt_plan;

enum { LT_SLOTS = 256 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static lt_plan *plans[LT_SLOTS];
static lt_handle handles[CUDA_DEVICES];

static int lt_type(etch_dtype d) {
    return d == ETCH_F64    ? LT_TYPE_F64
           : d == ETCH_F16  ? LT_TYPE_F16
           : d == ETCH_BF16 ? LT_TYPE_BF16
                            : LT_TYPE_F32;
}

static etch_status new_layout(lt_layout *layout, int type, int64_t rows, int64_t cols, int64_t ld,
                              int64_t batch, int64_t stride) {
    int32_t count = (int32_t)batch;
    etch_status status =
        LT(cublasLtMatrixLayoutCreate, layout, type, (uint64_t)rows, (uint64_t)cols, ld);
    if (status == ETCH_OK && batch > 1)
        status =
            LT(cublasLtMatrixLayoutSetAttribute, *layout, LT_LAYOUT_BATCH, &count, sizeof count);
    if (status == ETCH_OK && batch > 1)
        status = LT(cublasLtMatrixLayoutSetAttribute, *layout, LT_LAYOUT_BATCH_STRIDE, &stride,
                    sizeof stride);
    return status;
}

static void free_plan(lt_plan *l) {
    if (l->desc) etch__cuda.cublasLtMatmulDescDestroy(l->desc);
    if (l->a) etch__cuda.cublasLtMatrixLayoutDestroy(l->a);
    if (l->b) etch__cuda.cublasLtMatrixLayoutDestroy(l->b);
    if (l->c) etch__cuda.cublasLtMatrixLayoutDestroy(l->c);
    etch__free(l);
}

/* Row-major C = A B is column-major C' = B' A', where a row-major matrix is a column-major one with
 * rows and columns exchanged. */
static etch_status describe(lt_plan *l) {
    const lt_key *k = &l->key;
    etch_dtype d = (etch_dtype)k->dtype, out = k->wide ? etch__compute_type(d) : d;
    bool f64 = d == ETCH_F64;
    int compute = f64 ? LT_COMPUTE_64F : k->precision ? LT_COMPUTE_TF32 : LT_COMPUTE_32F;
    int32_t transa = (int32_t)k->b_transposed, transb = (int32_t)k->a_transposed;
    etch_status s =
        LT(cublasLtMatmulDescCreate, &l->desc, compute, f64 ? LT_TYPE_F64 : LT_TYPE_F32);
    if (s == ETCH_OK)
        s = LT(cublasLtMatmulDescSetAttribute, l->desc, LT_DESC_TRANSA, &transa, sizeof transa);
    if (s == ETCH_OK)
        s = LT(cublasLtMatmulDescSetAttribute, l->desc, LT_DESC_TRANSB, &transb, sizeof transb);
    if (s == ETCH_OK)
        s = new_layout(&l->a, lt_type(d), transa ? k->k : k->n, transa ? k->n : k->k, k->ldb,
                       k->batch, k->b_batch);
    if (s == ETCH_OK)
        s = new_layout(&l->b, lt_type(d), transb ? k->m : k->k, transb ? k->k : k->m, k->lda,
                       k->batch, k->a_batch);
    if (s == ETCH_OK) s = new_layout(&l->c, lt_type(out), k->n, k->m, k->n, k->batch, k->m * k->n);
    return s;
}

/* One algorithm, and only by what the key says: the least alignment that operands can have, no
 * reduction in place by several blocks. */
static etch_status choose(lt_plan *l, lt_handle handle) {
    lt_preference pref = NULL;
    lt_heuristic found;
    int got = 0;
    size_t workspace = WORKSPACE;
    uint32_t alignment = 16, scheme = LT_REDUCTION_COMPUTE_TYPE;
    etch_status s = LT(cublasLtMatmulPreferenceCreate, &pref);
    if (s == ETCH_OK)
        s = LT(cublasLtMatmulPreferenceSetAttribute, pref, LT_PREFERENCE_WORKSPACE, &workspace,
               sizeof workspace);
    if (s == ETCH_OK)
        s = LT(cublasLtMatmulPreferenceSetAttribute, pref, LT_PREFERENCE_REDUCTION, &scheme,
               sizeof scheme);
    for (int i = 0; s == ETCH_OK && i < 4; i++)
        s = LT(cublasLtMatmulPreferenceSetAttribute, pref, LT_PREFERENCE_ALIGNMENT + i, &alignment,
               sizeof alignment);
    if (s == ETCH_OK)
        s = LT(cublasLtMatmulAlgoGetHeuristic, handle, l->desc, l->a, l->b, l->c, l->c, pref, 1,
               &found, &got);
    if (s == ETCH_OK && !got)
        s = etch__error(ETCH_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for %lld x %lld x %lld",
                        (long long)l->key.m, (long long)l->key.n, (long long)l->key.k);
    if (pref) etch__cuda.cublasLtMatmulPreferenceDestroy(pref);
    if (s == ETCH_OK) l->algo = found.algo, l->workspace = found.workspace;
    return s;
}

/* The plan for the key, made under the lock, so that all threads have the same. It lives for ever: a
 * program has few shapes, and each takes under a KiB. */
static lt_plan *plan_for(const product *p, const lt_key *key, lt_handle *handle) {
    lt_plan **slot = &plans[XXH3_64bits(key, sizeof *key) % LT_SLOTS], *l = NULL;
    pthread_mutex_lock(&lock);
    lt_handle *h = &handles[p->device->index];
    etch_status s = *h ? ETCH_OK : LT(cublasLtCreate, h);
    for (l = *slot; l && memcmp(&l->key, key, sizeof *key) != 0;) l = l->next;
    if (s == ETCH_OK && !l && (l = etch__calloc(1, sizeof *l))) {
        l->key = *key;
        s = describe(l);
        if (s == ETCH_OK) s = choose(l, *h);
        if (s == ETCH_OK) l->next = *slot, *slot = l;
        else free_plan(l), l = NULL;
    }
    *handle = *h;
    pthread_mutex_unlock(&lock);
    return s == ETCH_OK ? l : NULL;
}

static etch_status library(const product *p) {
    static const float one_f = 1, zero_f = 0;
    static const double one_d = 1, zero_d = 0;
    bool f64 = p->dtype == ETCH_F64;
    lt_key key = {p->device->index,
                  p->dtype,
                  p->wide,
                  STATE_PRECISION(etch__tls.state),
                  p->batch,
                  p->m,
                  p->n,
                  p->k,
                  p->a.transposed,
                  p->b.transposed,
                  p->a.ld,
                  p->b.ld,
                  p->a.batch,
                  p->b.batch};
    lt_handle handle;
    lt_plan *l = plan_for(p, &key, &handle);
    cuda_block *workspace = l && l->workspace ? etch__cuda_allocate(p->stream, l->workspace) : NULL;
    if (!l || (l->workspace && !workspace)) return etch__tls.status;
    etch__cuda_note(p->stream, "cublasLtMatmul");
    etch_status s =
        LT(cublasLtMatmul, handle, l->desc, f64 ? (const void *)&one_d : &one_f, p->b.address, l->a,
           p->a.address, l->b, f64 ? (const void *)&zero_d : &zero_f, p->c, l->c, p->c, l->c,
           &l->algo, workspace ? etch__cuda_address(workspace) : NULL, l->workspace,
           etch__cuda_stream_handle(p->stream));
    etch__cuda_free(workspace);
    return s;
}

/* ---- addmm's epilogue: c = alpha * c, then self (times beta) + c ---- */

static bool is_value(etch_scalar s, int v) {
    return s.kind == ETCH_SCALAR_REAL ? s.d == v : s.i == v;
}

static etch_status epilogue(const product *p, const op_call *call, void *out) {
    const etch_tensor *self = is_value(call->sc[0], 0) ? NULL : call->in[0];
    size_t size = etch_dtype_size(p->type), at = 0;
    char args[96] = {0};
    uint64_t cells[2] = {etch__scalar_cell(call->sc[1], p->dtype),
                         etch__scalar_cell(call->sc[0], p->dtype)};
    int d = self ? self->ndim : 0;
    long long words[7] = {
        (long long)(uintptr_t)p->c,
        (long long)(self ? (uintptr_t)etch__ptr(self) : 0),
        (long long)(uintptr_t)out,
        p->m,
        p->n,
        d >= 2 && self->size[d - 2] > 1 ? self->stride[d - 2] : 0,
        d >= 1 && self->size[d - 1] > 1 ? self->stride[d - 1] : 0,
    };
    int flags[2] = {!is_value(call->sc[1], 1), !is_value(call->sc[0], 1)};
    memcpy(args, words, at = sizeof words);
    memcpy(args + at, &cells[0], size), at += size;
    memcpy(args + at, &cells[1], size), at += size;
    at = (at + 3) & ~(size_t)3;
    memcpy(args + at, flags, sizeof flags);
    return launch(p, epilogue_text, "etch_epilogue", false, (p->m * p->n + 127) / 128, 128, args);
}

/* ---- the kernel ---- */

static bool is_small(const product *p) {
    return !etch__is_float(p->dtype) || p->k == 0 ||
           (p->m <= SMALL && p->n <= SMALL && p->k <= SMALL);
}

static bool is_middle(const product *p) {
    const gemm sizes = {.batch = p->batch, .m = p->m, .n = p->n, .k = p->k};
    return p->dtype == ETCH_F32 && !STATE_PRECISION(etch__tls.state) &&
           etch__cuda_gemm_fits(p->device, &sizes);
}

static etch_status middle(const product *p) {
    const gemm g = {p->batch,   p->m,     p->n,     p->k,       p->a.address, p->b.address, p->c,
                    p->a.batch, p->a.row, p->a.col, p->b.batch, p->b.row,     p->b.col};
    return etch__cuda_gemm(p->stream, &g);
}

static etch_status multiply_into(product *p, const etch_tensor *a, const etch_tensor *b) {
    bool small = is_small(p), own = small || is_middle(p);
    etch_status s = prepare_operand(p, &p->a, a, true, !own);
    if (s == ETCH_OK) s = prepare_operand(p, &p->b, b, false, !own);
    if (s == ETCH_OK) s = small ? chain(p) : own ? middle(p) : library(p);
    etch__storage_release(p->a.copy.storage);
    etch__storage_release(p->b.copy.storage);
    return s;
}

static etch_status multiply(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    bool addmm = call->op == OP_ADDMM;
    const etch_tensor *a = call->in[addmm], *b = call->in[addmm + 1];
    product p = {.dtype = (etch_dtype)out->dtype};
    if (out->numel == 0) return ETCH_OK;
    if (!(p.stream = etch__cuda_stream(etch__device_index(out->device)))) return etch__tls.status;
    p.device = etch__cuda_stream_device(p.stream);
    p.type = etch__compute_type(p.dtype);
    p.batch = a->ndim == 3 ? a->size[0] : 1;
    p.m = a->ndim == 1 ? 1 : a->size[a->ndim - 2];
    p.k = a->size[a->ndim - 1];
    p.n = b->ndim == 1 ? 1 : b->size[b->ndim - 1];
    for (int i = 0; i < call->nin; i++)
        if (etch__cuda_use(p.stream, call->in[i]->storage) != ETCH_OK) return etch__tls.status;
    p.c = etch__ptr(out);
    if (!addmm) return multiply_into(&p, a, b);
    p.wide = p.type != p.dtype;
    cuda_block *wide = NULL;
    if (p.wide) {
        wide = etch__cuda_allocate(p.stream, (size_t)out->numel * etch_dtype_size(p.type));
        if (!wide) return etch__tls.status;
        p.c = etch__cuda_address(wide);
    }
    etch_status s = multiply_into(&p, a, b);
    if (s == ETCH_OK) s = epilogue(&p, call, etch__ptr(out));
    etch__cuda_free(wide);
    return s;
}

__attribute__((constructor)) static void register_products(void) {
    for (int op = 0; op < OP_COUNT; op++)
        if (etch__ops[op].kind == KIND_CONTRACTION) etch__cuda_register((op_id)op, multiply);
}
