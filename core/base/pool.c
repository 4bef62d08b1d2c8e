/* The thread pool: workers behind a count.
 *
 * A parallel region takes a count of the current pool, so that another thread may change the number
 * of threads meanwhile; the last count destroys. Regions started inside a task run on their own
 * thread. A forked child has none of the workers: it forgets the pool, whose memory cannot be
 * reclaimed safely, and makes another at its first region. */
#include "core/base/locks.h"
#include "core/base/start.h"
#include "core/base/pool.h"

#include <etch/etch.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <xmmintrin.h>

#include "core/base/workers.h"

typedef struct pool {
    atomic_int refs;
    int threads; /* wanted, the caller included */
    unsigned regions;
    struct workers *workers;
} pool;

static pool *current; /* under lock; NULL until the first region */
/* The parent's pool in a forked child, kept reachable: without `volatile` a compiler leaves out
 * what is never read, and a leak checker finds it lost. */
static pool *volatile abandoned;
static atomic_int nthreads;   /* 0: not yet known */
static __thread bool in_task; /* this thread is inside a region */

static void in_child(void) {
    if (current) abandoned = current;
    current = NULL;
    in_task = false;
}

void etch__start_pool(void) { etch__at_fork(LOCK_POOL, (fork_hooks){.child = in_child}); }

static int processors(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return 1;
}

enum { MAX_THREADS = 1024 };

int etch_num_threads(void) {
    int n = atomic_load_explicit(&nthreads, memory_order_relaxed);
    if (likely(n > 0)) return n;
    int64_t wanted = etch__param_int(PARAM_NUM_THREADS);
    int first = wanted > 0 ? (int)(wanted < MAX_THREADS ? wanted : MAX_THREADS) : processors();
    int expected = 0;
    return atomic_compare_exchange_strong(&nthreads, &expected, first) ? first : expected;
}

static void pool_release(pool *p) {
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1) return;
    etch__workers_free(p->workers);
    etch__free(p);
}

etch_status etch_set_num_threads(int n) {
    if (n < 1 || n > MAX_THREADS)
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_INVALID_ARGUMENT,
                              "etch_set_num_threads: expected 1 to %d threads, got %d", MAX_THREADS,
                              n);
    etch__lock(LOCK_POOL);
    pool *old = NULL;
    if (current && current->threads != n) old = current, current = NULL;
    atomic_store(&nthreads, n);
    etch__unlock(LOCK_POOL);
    pool_release(old);
    return ETCH_OK;
}

/* A system that gives no more threads may do so later. */
enum { ASK_AGAIN = 256 };

static int missing(const pool *p) { return p->threads - 1 - etch__workers_count(p->workers); }

static void complete(pool *p) {
    if (unlikely(missing(p)) && ++p->regions % ASK_AGAIN == 0) etch__workers_complete(p->workers);
}

static pool *pool_new(int threads, const char **why) {
    pool *p = etch__calloc(1, sizeof *p);
    if (!p) return NULL;
    p->threads = threads;
    atomic_init(&p->refs, 1);
    p->workers = etch__workers_new(threads - 1, why);
    if (!p->workers) etch__free(p), p = NULL;
    return p;
}

/* The current pool with a count for the caller, or NULL where none can be made: then the region
 * runs on its own thread, which is no error. */
static pool *pool_get(int threads) {
    bool clean = etch_last_status() == ETCH_OK;
    const char *why = NULL;
    etch__lock(LOCK_POOL);
    if (!current) current = pool_new(threads, &why);
    pool *p = current;
    if (p) atomic_fetch_add(&p->refs, 1), complete(p);
    int fewer = p ? missing(p) : 0;
    etch__unlock(LOCK_POOL);
    if (!p && clean) etch_clear_error();
    if (why)
        etch__warn("%d of %d threads could not be made (%s): kernels run on the others", fewer,
                   threads, why);
    return p;
}

typedef struct region {
    void (*task)(void *ctx, int64_t begin, int64_t end);
    void *ctx;
    int64_t n, grain, grains, pieces;
    unsigned mxcsr;
} region;

/* Where piece i begins: all have as many grains, up to one. */
static int64_t piece_at(const region *r, int64_t i) {
    int64_t at = i * (r->grains / r->pieces) + i * (r->grains % r->pieces) / r->pieces;
    return i < r->pieces ? at * r->grain : r->n;
}

/* Rounding and denormal mode come from the caller; exception flags stay the worker's own. */
static void run_piece(void *arg, int64_t i) {
    const region *r = arg;
    unsigned mine = _mm_getcsr();
    bool was = in_task;
    in_task = true;
    _mm_setcsr((r->mxcsr & ~0x3fu) | (mine & 0x3fu));
    r->task(r->ctx, piece_at(r, i), piece_at(r, i + 1));
    _mm_setcsr(mine);
    in_task = was;
}

void etch__parallel(int64_t n, int64_t grain, void (*task)(void *ctx, int64_t begin, int64_t end),
                    void *ctx) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    int threads = n <= grain || in_task ? 1 : etch_num_threads();
    pool *p = threads > 1 ? pool_get(threads) : NULL;
    if (!p) {
        task(ctx, 0, n);
        return;
    }
    /* A few pieces a thread even out what the others do, in whole grains; as many for each. */
    int64_t grains = (n + grain - 1) / grain, most = 4 * (int64_t)threads;
    region r = {task, ctx, n, grain, grains, grains < 2 * most ? grains : most, _mm_getcsr()};
    etch__workers_run(p->workers, run_piece, &r, r.pieces);
    pool_release(p);
}
