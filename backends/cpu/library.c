/* Products by libraries, on one thread each: oneDNN for f32, OpenBLAS for f64; of integers, which
 * wrap and for which there is none, by loops of our own. */
#include <cblas.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>

#include "core/base/locks.h"
#include "core/base/start.h"
#include "backends/cpu/library.h"
#include "backends/cpu/table.h"
#include "core/base/thread.h"
#include "core/base/workers.h"

/* ---- oneDNN ---- */

static pthread_once_t dnnl_once = PTHREAD_ONCE_INIT;

/* Before oneDNN's first use, so that ETCH_CPU_ISA holds for it as well. */
static void limit_dnnl(void) {
    /* 0: no limit. Versions 2 call it dnnl_cpu_isa_all, versions 3 dnnl_cpu_isa_default. */
    static const dnnl_cpu_isa_t limits[CPU_ISA_COUNT] = {[CPU_ISA_BASELINE] = dnnl_cpu_isa_sse41,
                                                         [CPU_ISA_AVX2] = dnnl_cpu_isa_avx2,
                                                         [CPU_ISA_AVX512] = (dnnl_cpu_isa_t)0};
    dnnl_set_max_cpu_isa(limits[etch__cpu_isa()]);
}

static bool product_f32(const library_product *l) {
    int threads = omp_get_max_threads();
    if (threads != 1) omp_set_num_threads(1);
    dnnl_status_t status =
        dnnl_sgemm(l->a_transposed ? 'T' : 'N', l->b_transposed ? 'T' : 'N', l->m, l->n, l->k, 1.0f,
                   l->a, l->lda, l->b, l->ldb, l->adds ? 1.0f : 0.0f, l->c, l->ldc);
    if (threads != 1) omp_set_num_threads(threads);
    return status == dnnl_success;
}

/* ---- OpenBLAS ---- */

static bool product_f64(const library_product *l) {
    cblas_dgemm(CblasRowMajor, l->a_transposed ? CblasTrans : CblasNoTrans,
                l->b_transposed ? CblasTrans : CblasNoTrans, (int)l->m, (int)l->n, (int)l->k, 1.0,
                l->a, (int)l->lda, l->b, (int)l->ldb, l->adds ? 1.0 : 0.0, l->c, (int)l->ldc);
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

/* ---- all of them ---- */

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
    if (!etch__is_float(type)) return whole_product(type, l);
    return type == ETCH_F32 ? product_f32(l) : product_f64(l);
}

void etch__start_cpu_libraries(void) {
    etch__at_fork(LOCK_BLAS, (fork_hooks){.parent = note_fork, .child = forget_users});
}
