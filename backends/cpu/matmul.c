/* mm, addmm, mv, dot, bmm.
 *
 * Each is a batch of M x K times K x N products in the compute type. With M, N and K all at most 64
 * the chain of isa/matmul.c runs. Otherwise the result is cut into tiles by (M, N, K) alone, and
 * each tile is one call of a library on one thread: oneDNN for f32, OpenBLAS for f64; integers have
 * their own loops. The half types are widened to f32, multiplied, and rounded once.
 *
 * Operands with unit stride along a row or a column go to the library as they are (a column-major
 * one as transposed); any other is copied first. That rule sees the operator's own arguments only.
 */
#include <cblas.h>
#include <limits.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>

#include "core/base/locks.h"
#include "core/base/start.h"
#include "backends/cpu/library.h"
#include "backends/cpu/program.h"
#include "core/dispatch/dispatch.h"
#include "core/base/pool.h"
#include "core/base/workers.h"

/* ---- one operand ---- */

/* A matrix, or a batch of them, in the compute type. */
typedef struct operand {
    const char *data;
    int64_t rows, cols;
    int64_t row, col, batch; /* strides in elements */
    bool transposed;         /* column-major: ld is the stride of a column */
    int64_t ld;
    void *copy; /* to be freed */
} operand;

typedef struct matmul {
    const isa_table *isa;
    etch_dtype dtype, type; /* storage and compute type */
    int size;               /* bytes of an element of the compute type */
    int64_t batch, m, n, k;
    operand a, b;
    char *c;   /* [batch][m][n] in the compute type */
    bool adds; /* to what c holds */
    bool small;
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    atomic_int status; /* the first failure of a tile */
} matmul;

/* What the library takes as it is: unit stride along one axis, rows (or columns) that do not
 * overlap. The stride of an axis of one element does not matter. */
static bool library_layout(operand *o) {
    int64_t row = o->rows > 1 ? o->row : (o->cols > 1 ? o->cols : 1);
    int64_t col = o->cols > 1 ? o->col : 1;
    if (col == 1 && row >= o->cols) {
        o->transposed = false, o->ld = row;
        return row <= INT_MAX;
    }
    col = o->cols > 1 ? o->col : o->rows;
    row = o->rows > 1 ? o->row : 1;
    if (row == 1 && col >= o->rows) {
        o->transposed = true, o->ld = col;
        return col <= INT_MAX;
    }
    return false;
}

/* Takes rows, cols and strides from the last axes of t; a vector is a column, or a row for the
 * left. */
static void shape_operand(operand *o, const etch_tensor *t, const int64_t *stride, bool left) {
    int d = t->ndim;
    o->batch = d == 3 ? stride[0] : 0;
    if (d >= 2) {
        o->rows = t->size[d - 2], o->cols = t->size[d - 1];
        o->row = stride[d - 2], o->col = stride[d - 1];
        return;
    }
    int64_t n = t->size[0], s = stride[0];
    o->rows = left ? 1 : n, o->cols = left ? n : 1;
    o->row = left ? n * s : s, o->col = left ? s : 1;
}

static etch_status prepare_operand(const matmul *p, operand *o, const etch_tensor *t, bool left) {
    shape_operand(o, t, t->stride, left);
    o->data = etch__ptr(t);
    bool library = !p->small && etch__is_float(p->type);
    bool rows = p->small || left || o->col == 1; /* what the loops over integers are fast at */
    if (p->type == p->dtype && (library ? library_layout(o) : rows)) return ETCH_OK;
    int64_t row_major[ETCH_MAX_DIMS];
    etch__row_major(t->ndim, t->size, row_major);
    if (!(o->data = etch__row_major_elements(t, true, &o->copy))) return ETCH_ERR_OUT_OF_MEMORY;
    shape_operand(o, t, row_major, left);
    if (library && !library_layout(o))
        return etch__error(ETCH_ERR_UNSUPPORTED, "product: a row is too long for the library");
    return ETCH_OK;
}

/* ---- libraries, one thread each ---- */

static pthread_once_t dnnl_once = PTHREAD_ONCE_INIT;

/* Before oneDNN's first use, so that ETCH_CPU_ISA holds for it as well. */
static void limit_dnnl(void) {
    /* 0: no limit. Versions 2 call it dnnl_cpu_isa_all, versions 3 dnnl_cpu_isa_default. */
    static const dnnl_cpu_isa_t limits[CPU_ISA_COUNT] = {[CPU_ISA_BASELINE] = dnnl_cpu_isa_sse41,
                                                         [CPU_ISA_AVX2] = dnnl_cpu_isa_avx2,
                                                         [CPU_ISA_AVX512] = (dnnl_cpu_isa_t)0};
    dnnl_set_max_cpu_isa(limits[etch__cpu_isa()]);
}

static const char *tile_of(const operand *o, int size, int64_t batch, int64_t row, int64_t col) {
    return o->data + (batch * o->batch + row * o->row + col * o->col) * size;
}

static bool tile_f32(const matmul *p, const char *a, const char *b, char *c, int64_t m, int64_t n) {
    int threads = omp_get_max_threads();
    if (threads != 1) omp_set_num_threads(1);
    dnnl_status_t status = dnnl_sgemm(p->a.transposed ? 'T' : 'N', p->b.transposed ? 'T' : 'N', m,
                                      n, p->k, 1.0f, (const float *)a, p->a.ld, (const float *)b,
                                      p->b.ld, p->adds ? 1.0f : 0.0f, (float *)c, p->n);
    if (threads != 1) omp_set_num_threads(threads);
    return status == dnnl_success;
}

static bool tile_f64(const matmul *p, const char *a, const char *b, char *c, int64_t m, int64_t n) {
    cblas_dgemm(CblasRowMajor, p->a.transposed ? CblasTrans : CblasNoTrans,
                p->b.transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)p->k, 1.0,
                (const double *)a, (int)p->a.ld, (const double *)b, (int)p->b.ld,
                p->adds ? 1.0 : 0.0, (double *)c, (int)p->n);
    return true;
}

/* OpenBLAS has one thread count for the process: one while any product of ours runs, then the
 * user's again. */
static int blas_users, blas_threads; /* the user's number while ours is set, else 0 */
static atomic_bool blas_bare;        /* a fork has ended its threads, in the parent as well */

static void note_fork(void) { blas_bare = true; }

/* A forked child has none of the threads that may be inside a product. */
static void forget_users(void) { blas_users = 0, blas_bare = true; }

/* OpenBLAS without threads makes them when their number is set, and raises SIGINT where it cannot;
 * so whether it can is tried before. */
static bool blas_can_start(void) {
    const char *why = "out of memory";
    int n = openblas_get_num_procs();
    workers *trial = etch__workers_new((n > blas_threads ? n : blas_threads) - 1, &why);
    etch__workers_free(trial);
    if (trial && !why) return true;
    return etch__false(
        ETCH_ERR_UNSUPPORTED,
        "product: after a fork OpenBLAS has to make its threads anew, which cannot be made "
        "now (%s); with OPENBLAS_NUM_THREADS=1 it needs none",
        why);
}

static bool blas_begin(void) {
    int before = blas_threads;
    if (!blas_threads) blas_threads = openblas_get_num_threads();
    if (blas_threads == 1) return true;
    if (blas_bare && !blas_can_start()) return blas_threads = before, false;
    openblas_set_num_threads(1);
    blas_bare = false;
    return true;
}

static bool blas_enter(void) {
    etch__lock(LOCK_BLAS);
    bool ok = blas_users > 0 || blas_begin();
    blas_users += ok;
    etch__unlock(LOCK_BLAS);
    return ok;
}

static void blas_leave(void) {
    etch__lock(LOCK_BLAS);
    if (--blas_users == 0) {
        if (blas_threads != 1) openblas_set_num_threads(blas_threads);
        blas_threads = 0;
    }
    etch__unlock(LOCK_BLAS);
}

bool etch__library_enter(etch_dtype type) {
    if (type == ETCH_F64) return blas_enter();
    if (type == ETCH_F32) pthread_once(&dnnl_once, limit_dnnl);
    return true;
}

void etch__library_leave(etch_dtype type) {
    if (type == ETCH_F64) blas_leave();
}

/* No library has wrapping integers. */
static bool whole_product(etch_dtype type, const library_product *l) {
    product_args args = {.a = l->a,
                         .b = l->b,
                         .c = l->c,
                         .a_row = l->a_transposed ? 1 : l->lda,
                         .a_col = l->a_transposed ? l->lda : 1,
                         .b_row = l->b_transposed ? 1 : l->ldb,
                         .b_col = l->b_transposed ? l->ldb : 1,
                         .ldc = l->ldc,
                         .m = l->m,
                         .n = l->n,
                         .k = l->k};
    etch__isa_table()->product->chain[type](&args);
    return true;
}

bool etch__library_product(etch_dtype type, const library_product *l) {
    matmul p = {.k = l->k, .n = l->ldc, .a.ld = l->lda, .b.ld = l->ldb, .adds = l->adds};
    p.a.transposed = l->a_transposed, p.b.transposed = l->b_transposed;
    if (!etch__is_float(type)) return whole_product(type, l);
    bool f32 = type == ETCH_F32;
    return (f32 ? tile_f32 : tile_f64)(&p, l->a, l->b, l->c, l->m, l->n);
}

/* ---- tiles ---- */

/* Tiles of about 256 elements a side, 128 where that gives few. A function of the sizes alone,
 * since the bits of a library product depend on its shape. */
static int64_t tile_side(int64_t extent, int64_t m, int64_t n) {
    int64_t side = m * n > 512 * 512 ? 256 : 128;
    int64_t count = (extent + side - 1) / side;
    return count > 1 ? ((extent + count - 1) / count + 15) / 16 * 16 : extent;
}

static void plan_tiles(matmul *p) {
    p->small = p->m <= MATMUL_SMALL && p->n <= MATMUL_SMALL && p->k <= MATMUL_SMALL;
    p->tile_m = p->m, p->tile_n = p->n, p->tiles_m = p->tiles_n = 1;
    if (p->small) return;
    p->tile_m = tile_side(p->m, p->m, p->n);
    p->tile_n = tile_side(p->n, p->m, p->n);
    p->tiles_m = (p->m + p->tile_m - 1) / p->tile_m;
    p->tiles_n = (p->n + p->tile_n - 1) / p->tile_n;
}

static bool chain_tile(const matmul *p, const char *a, const char *b, char *c, int64_t m,
                       int64_t n) {
    product_args args = {.a = a,
                         .b = b,
                         .c = c,
                         .a_row = p->a.row,
                         .a_col = p->a.col,
                         .b_row = p->b.row,
                         .b_col = p->b.col,
                         .ldc = p->n,
                         .m = m,
                         .n = n,
                         .k = p->k};
    p->isa->product->chain[p->type](&args);
    return true;
}

static void do_tile(matmul *p, int64_t batch, int64_t row, int64_t col) {
    int64_t m = p->m - row < p->tile_m ? p->m - row : p->tile_m;
    int64_t n = p->n - col < p->tile_n ? p->n - col : p->tile_n;
    const char *a = tile_of(&p->a, p->size, batch, row, 0);
    const char *b = tile_of(&p->b, p->size, batch, 0, col);
    char *c = p->c + ((batch * p->m + row) * p->n + col) * p->size;
    bool ok;
    if (p->small || !etch__is_float(p->type)) ok = chain_tile(p, a, b, c, m, n);
    else if (p->type == ETCH_F32) ok = tile_f32(p, a, b, c, m, n);
    else ok = tile_f64(p, a, b, c, m, n);
    if (!ok) atomic_store(&p->status, 1);
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    matmul *p = ctx;
    for (int64_t t = begin; t < end; t++) {
        int64_t col = t % p->tiles_n, row = t / p->tiles_n % p->tiles_m;
        do_tile(p, t / p->tiles_n / p->tiles_m, row * p->tile_m, col * p->tile_n);
    }
}

/* c = a times b. */
static etch_status run_matmul(matmul *p) {
    if (p->k == 0) {
        memset(p->c, 0, (size_t)(p->batch * p->m * p->n) * (size_t)p->size);
        return ETCH_OK;
    }
    if (p->small && p->batch == 1) {
        do_tile(p, 0, 0, 0);
        return ETCH_OK;
    }
    bool library = !p->small && etch__is_float(p->type);
    if (library && p->k > INT_MAX)
        return etch__error(ETCH_ERR_UNSUPPORTED, "product: more than 2^31 - 1 terms");
    if (library && !etch__library_enter(p->type)) return etch__tls.status;
    double work = (double)p->tile_m * (double)p->tile_n * (double)p->k; /* of one tile */
    int64_t grain = work > 262144 ? 1 : (int64_t)(262144 / work) + 1;
    etch__parallel(p->batch * p->tiles_m * p->tiles_n, grain, tiles_task, p);
    if (library) etch__library_leave(p->type);
    if (!atomic_load(&p->status)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "product: oneDNN failed on %lld x %lld x %lld",
                       (long long)p->m, (long long)p->n, (long long)p->k);
}

/* ---- epilogue ---- */

typedef struct epilogue {
    const matmul *p;
    const etch_tensor *self; /* addmm: added; else NULL */
    uint64_t alpha, beta;    /* cells of the compute type */
    bool scale, scale_self;  /* alpha, beta differ from 1 */
    char *out;
} epilogue;

/* n neighbours of row `row` from column `col` of self (broadcast) in the compute type. */
static void load_self(const epilogue *e, void *dst, void *raw, int64_t row, int64_t col,
                      int64_t n) {
    const etch_tensor *s = e->self;
    const strip_table *table = e->p->isa->strips;
    strip_fn widen = table->widen[e->p->dtype];
    int d = s->ndim, log2 = etch__size_log2(e->p->dtype);
    int64_t row_stride = d >= 2 && s->size[d - 2] > 1 ? s->stride[d - 2] : 0;
    int64_t col_stride = d >= 1 && s->size[d - 1] > 1 ? s->stride[d - 1] : 0;
    const char *p =
        (const char *)etch__ptr(s) + (row * row_stride + col * col_stride) * (1 << log2);
    void *to = widen ? raw : dst;
    if (col_stride) table->gather[log2](to, p, col_stride, n);
    else table->fill[log2](to, p, n);
    if (widen) widen(dst, raw, NULL, NULL, n);
}

/* c = alpha * c, then self (times beta) + c; rounds and stores. */
static void epilogue_strip(const epilogue *e, int64_t row, int64_t col, int64_t n) {
    const matmul *p = e->p;
    const strip_table *table = p->isa->strips;
    double self[EAGER_STRIP], other[EAGER_STRIP];
    int64_t at = row * p->n + col;
    int log2 = etch__size_log2(p->type);
    void *c = p->c + at * p->size;
    if (e->scale) {
        table->fill[log2](other, &e->alpha, n);
        table->prim[PRIM_MUL][p->type](c, other, c, NULL, n);
    }
    if (e->self) {
        load_self(e, self, other, row, col, n);
        if (e->scale_self) {
            table->fill[log2](other, &e->beta, n);
            table->prim[PRIM_MUL][p->type](self, other, self, NULL, n);
        }
        table->prim[PRIM_ADD][p->type](c, self, c, NULL, n);
    }
    if (p->type == p->dtype) return; /* c is the output */
    etch__store_rounded(p->dtype, e->out + at * 2, c, n);
}

static void epilogue_task(void *ctx, int64_t begin, int64_t end) {
    const epilogue *e = ctx;
    for (int64_t row = begin; row < end; row++)
        for (int64_t col = 0; col < e->p->n; col += EAGER_STRIP) {
            int64_t rest = e->p->n - col;
            epilogue_strip(e, row, col, rest < EAGER_STRIP ? rest : EAGER_STRIP);
        }
}

static void run_epilogue(epilogue *e) {
    const matmul *p = e->p;
    if (!e->scale && !e->self && p->type == p->dtype) return;
    etch__parallel(p->batch * p->m, 32768 / (p->n + 1) + 1, epilogue_task, e);
}

/* ---- the kernel ---- */

static void plan_epilogue(const op_call *call, epilogue *e, const matmul *p) {
    if (call->op != OP_ADDMM) return;
    if (!etch__scalar_is(call->sc[0], 0))
        e->self = call->in[0]; /* beta = 0 does not even read self */
    e->scale_self = !etch__scalar_is(call->sc[0], 1), e->scale = !etch__scalar_is(call->sc[1], 1);
    e->beta = etch__scalar_cell(call->sc[0], p->type);
    e->alpha = etch__scalar_cell(call->sc[1], p->type);
}

static void plan_sizes(matmul *p, const etch_tensor *a, const etch_tensor *b) {
    bool vector = b->ndim == 1;
    p->batch = a->ndim == 3 ? a->size[0] : 1;
    p->m = a->ndim == 1 ? 1 : a->size[a->ndim - 2];
    p->k = a->size[a->ndim - 1];
    p->n = vector ? 1 : b->size[b->ndim - 1];
    plan_tiles(p);
}

static etch_status multiply(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    int left = call->op == OP_ADDMM;
    const etch_tensor *a = call->in[left], *b = call->in[left + 1];
    matmul p; /* not cleared whole: that costs more than a product of a few elements */
    epilogue e;
    if (out->numel == 0) return ETCH_OK;
    p.isa = etch__isa_table(), p.dtype = out->dtype;
    p.a.copy = p.b.copy = NULL, p.adds = false;
    atomic_init(&p.status, 0);
    e.p = &p, e.self = NULL, e.out = etch__ptr(out), e.scale = false;
    p.type = etch__compute_type(p.dtype), p.size = 1 << etch__size_log2(p.type);
    plan_sizes(&p, a, b);
    plan_epilogue(call, &e, &p);
    void *wide = NULL;
    etch_status status = ETCH_OK;
    p.c = e.out;
    if (p.type != p.dtype) {
        p.c = wide = etch__malloc((size_t)out->numel * (size_t)p.size);
        if (!wide) return ETCH_ERR_OUT_OF_MEMORY;
    }
    if (p.k > 0) status = prepare_operand(&p, &p.a, a, true);
    if (p.k > 0 && status == ETCH_OK) status = prepare_operand(&p, &p.b, b, false);
    if (status == ETCH_OK) status = run_matmul(&p);
    if (status == ETCH_OK) run_epilogue(&e);
    etch__free(p.a.copy);
    etch__free(p.b.copy);
    etch__free(wide);
    return status;
}

void etch__start_cpu_products(void) {
    etch__at_fork(LOCK_BLAS, (fork_hooks){.parent = note_fork, .child = forget_users});
    for (int op = 0; op < OP_COUNT; op++)
        if (etch__ops[op].kind == KIND_CONTRACTION) etch__register_kernel(op, multiply);
}
