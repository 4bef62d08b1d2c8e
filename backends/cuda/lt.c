/* Products by cuBLASLt: a plan for each shape and layout, kept.
 *
 * A plan has one algorithm, the first that the library's own heuristic names, so eager and compiled
 * calls use the same and their bits are equal. Relaxed products that may be timed have plans of
 * their own, with several algorithms of which the fastest is found at the first run and kept; and
 * so have those with an epilogue. */
#include <pthread.h>
#include <xxhash.h>

#include "core/base/locks.h"
#include "backends/cuda/matmul.h"
#include "backends/cuda/tune.h"
#include "jit/ir/ir.h"

enum { WORKSPACE = 32 << 20, ALGORITHMS = 8 };

typedef struct lt_key {
    int64_t device, dtype, wide, precision, batch, m, n, k;
    int64_t a_transposed, b_transposed, lda, ldb, a_batch, b_batch;
    int64_t timed, epilogue;
} lt_key;

typedef struct lt_plan {
    struct lt_plan *next;
    lt_key key;
    lt_desc desc;
    lt_layout a, b, c; /* column-major, as the library sees them: A is our right operand */
    lt_heuristic algorithm[ALGORITHMS];
    int n;             /* of them; 0: the library has none */
    atomic_int chosen; /* -1: to be timed */
} lt_plan;

enum { LT_SLOTS = 256 };
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

static etch_status describe_epilogue(lt_plan *l) {
    int64_t e = l->key.epilogue;
    int32_t value = (e & MATMUL_BIAS ? LT_EPILOGUE_BIAS : 0) |
                    (e & MATMUL_RELU ? LT_EPILOGUE_RELU : 0) |
                    (e & MATMUL_GELU ? LT_EPILOGUE_GELU : 0);
    return LT(cublasLtMatmulDescSetAttribute, l->desc, LT_DESC_EPILOGUE, &value, sizeof value);
}

/* Row-major C = A B is column-major C' = B' A', where a row-major matrix is a column-major one with
 * rows and columns exchanged. */
static etch_status describe(lt_plan *l) {
    const lt_key *k = &l->key;
    etch_dtype d = k->dtype, out = k->wide ? etch__compute_type(d) : d;
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
    return s == ETCH_OK && k->epilogue ? describe_epilogue(l) : s;
}

/* Only by what the key says: the least alignment that operands can have, no reduction in place by
 * several blocks. */
static etch_status prefer(lt_preference pref) {
    size_t workspace = WORKSPACE;
    uint32_t alignment = 16, scheme = LT_REDUCTION_COMPUTE_TYPE;
    etch_status s = LT(cublasLtMatmulPreferenceSetAttribute, pref, LT_PREFERENCE_WORKSPACE,
                       &workspace, sizeof workspace);
    if (s == ETCH_OK)
        s = LT(cublasLtMatmulPreferenceSetAttribute, pref, LT_PREFERENCE_REDUCTION, &scheme,
               sizeof scheme);
    for (int i = 0; s == ETCH_OK && i < 4; i++)
        s = LT(cublasLtMatmulPreferenceSetAttribute, pref, LT_PREFERENCE_ALIGNMENT + i, &alignment,
               sizeof alignment);
    return s;
}

/* The heuristic's answers that can be used. */
static etch_status find_algorithms(lt_plan *l, lt_handle handle, lt_preference pref) {
    int got = 0, wanted = l->key.timed ? ALGORITHMS : 1;
    int status = etch__cuda.cublasLtMatmulAlgoGetHeuristic(handle, l->desc, l->a, l->b, l->c, l->c,
                                                           pref, wanted, l->algorithm, &got);
    if (status && status != LT_NOT_SUPPORTED)
        return etch__lt_failed("cublasLtMatmulAlgoGetHeuristic", status);
    for (int i = 0; !status && i < got; i++)
        if (!l->algorithm[i].state) l->algorithm[l->n++] = l->algorithm[i];
    atomic_init(&l->chosen, l->n > 1 ? -1 : 0);
    return ETCH_OK;
}

static etch_status choose(lt_plan *l, lt_handle handle) {
    lt_preference pref = NULL;
    etch_status s = LT(cublasLtMatmulPreferenceCreate, &pref);
    if (s == ETCH_OK) s = prefer(pref);
    if (s == ETCH_OK) s = find_algorithms(l, handle, pref);
    if (pref) etch__cuda.cublasLtMatmulPreferenceDestroy(pref);
    return s;
}

/* The plan for the key, made under the lock, so that all threads have the same. It lives for ever:
 * a program has few shapes, and each takes under a KiB. */
static lt_plan *plan_for(const matmul *p, const lt_key *key, lt_handle *handle) {
    lt_plan **slot = &plans[XXH3_64bits(key, sizeof *key) % LT_SLOTS], *l = NULL;
    etch__lock(LOCK_CUDA_LT);
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
    etch__unlock(LOCK_CUDA_LT);
    return s == ETCH_OK ? l : NULL;
}

/* ---- running ---- */

typedef struct lt_run {
    const matmul *p;
    lt_plan *plan;
    lt_handle handle;
} lt_run;

/* The bias lies in the descriptor, which other threads use as well: hence the
 * lock around the call. */
static etch_status run_matmul(const lt_run *r, const lt_heuristic *how, cuda_block *workspace) {
    static const float one_f = 1, zero_f = 0;
    static const double one_d = 1, zero_d = 0;
    const matmul *p = r->p;
    const lt_plan *l = r->plan;
    bool f64 = p->dtype == ETCH_F64, bias = p->epilogue & MATMUL_BIAS;
    etch_status s = ETCH_OK;
    if (bias) {
        etch__lock(LOCK_CUDA_LT);
        s = LT(cublasLtMatmulDescSetAttribute, l->desc, LT_DESC_BIAS, &p->bias, sizeof p->bias);
    }
    if (s == ETCH_OK)
        s = LT(cublasLtMatmul, r->handle, l->desc, f64 ? (const void *)&one_d : &one_f,
               p->b.address, l->a, p->a.address, l->b, f64 ? (const void *)&zero_d : &zero_f, p->c,
               l->c, p->c, l->c, &how->algo, workspace ? etch__cuda_address(workspace) : NULL,
               how->workspace, etch__cuda_stream_handle(p->stream));
    if (bias) etch__unlock(LOCK_CUDA_LT);
    return s;
}

static etch_status issue(void *ctx, int i) {
    const lt_run *r = ctx;
    const lt_heuristic *how = &r->plan->algorithm[i];
    cuda_block *workspace = NULL;
    if (how->workspace && !(workspace = etch__cuda_allocate(r->p->stream, how->workspace)))
        return etch__tls.status;
    etch__cuda_note(r->p->stream, "cublasLtMatmul");
    etch_status s = run_matmul(r, how, workspace);
    etch__cuda_free(workspace);
    return s;
}

/* ---- which algorithm ---- */

static void describe_algorithm(void *ctx, int i, char *text, size_t room) {
    const lt_run *r = ctx;
    snprintf(text, room, "algorithm %d with %zu KiB", i, r->plan->algorithm[i].workspace / 1024);
}

/* A choice holds for the very algorithm that it was made for: another version of the
 * library may list others. */
typedef struct lt_choice {
    int64_t index;
    lt_algo algo;
} lt_choice;

static size_t choice_key(const lt_plan *l, char *key, size_t room) {
    size_t n = (size_t)snprintf(key, room, "cublasLt") + 1;
    lt_key sizes = l->key;
    sizes.device = 0;
    memcpy(key + n, &sizes, sizeof sizes);
    return n + sizeof sizes;
}

static bool find_choice(const lt_run *r, int *index) {
    char key[64 + sizeof(lt_key)];
    lt_choice c;
    size_t n = choice_key(r->plan, key, sizeof key);
    if (!etch__cuda_choice_find(r->p->device, key, n, &c, sizeof c)) return false;
    if (c.index < 0 || c.index >= r->plan->n) return false;
    *index = (int)c.index;
    return !memcmp(&r->plan->algorithm[*index].algo, &c.algo, sizeof c.algo);
}

static void keep_choice(const lt_run *r, int index) {
    char key[64 + sizeof(lt_key)];
    lt_choice c = {index, r->plan->algorithm[index].algo};
    size_t n = choice_key(r->plan, key, sizeof key);
    etch__cuda_choice_keep(r->p->device, key, n, &c, sizeof c);
}

/* The result is written by every candidate, and none reads it. */
static int chosen(const lt_run *r) {
    int index = atomic_load(&r->plan->chosen);
    if (index >= 0) return index;
    if (!find_choice(r, &index)) {
        char name[96];
        if (!etch__cuda_can_time(r->p->stream)) return 0;
        snprintf(name, sizeof name, "product %lld x %lld x %lld", (long long)r->p->m,
                 (long long)r->p->k, (long long)r->p->n);
        const tune_set set = {name, r->plan->n, (void *)r, issue, describe_algorithm};
        index = etch__cuda_fastest(r->p->stream, &set);
        if (index >= 0) keep_choice(r, index);
        else index = 0;
    }
    atomic_store(&r->plan->chosen, index);
    return index;
}

etch_status etch__cuda_lt(const matmul *p) {
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
                  p->b.batch,
                  p->timed,
                  p->epilogue};
    lt_run r = {.p = p};
    if (!(r.plan = plan_for(p, &key, &r.handle))) return etch__tls.status;
    if (!r.plan->n)
        return etch__error(ETCH_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for %lld x %lld x %lld",
                           (long long)key.m, (long long)key.n, (long long)key.k);
    return issue(&r, chosen(&r));
}
