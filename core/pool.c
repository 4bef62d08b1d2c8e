/* The thread pool: pthreadpool behind a count.
 *
 * A parallel region takes a count of the current pool, so that another thread may change the number
 * of threads meanwhile; the last count destroys. Regions started inside a task run on their own
 * thread. A forked child has none of the workers: it forgets the pool, whose memory cannot be
 * reclaimed safely, and makes another at its first region. */
#include "core/pool.h"

#include <etch/etch.h>
#include <pthread.h>
#include <pthreadpool.h>
#include <sched.h>
#include <stdatomic.h>
#include <xmmintrin.h>

typedef struct pool {
    atomic_int refs;
    int threads;
    pthreadpool_t workers;
} pool;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pool *current;         /* under lock; NULL until the first region */
static pool *abandoned;       /* the parent's pool in a forked child, kept reachable */
static atomic_int nthreads;   /* 0: not yet known */
static __thread bool in_task; /* this thread is inside a region */

/* The fork handlers hold the lock across fork, so that the child finds it free. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
    if (current) abandoned = current;
    current = NULL;
    in_task = false;
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}

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
    pthreadpool_destroy(p->workers);
    etch__free(p);
}

etch_status etch_set_num_threads(int n) {
    if (n < 1 || n > MAX_THREADS)
        return etch__error(ETCH_ERR_INVALID_ARGUMENT, "threads: expected 1 to %d, got %d",
                           MAX_THREADS, n);
    pthread_mutex_lock(&lock);
    pool *old = NULL;
    if (current && current->threads != n) old = current, current = NULL;
    atomic_store(&nthreads, n);
    pthread_mutex_unlock(&lock);
    pool_release(old);
    return ETCH_OK;
}

static pool *pool_new(int threads) {
    pool *p = etch__malloc(sizeof *p);
    if (!p) return NULL;
    p->threads = threads;
    atomic_init(&p->refs, 1);
    p->workers = pthreadpool_create((size_t)threads);
    if (!p->workers) etch__free(p), p = NULL;
    return p;
}

/* The current pool with a count for the caller, or NULL where none can be made: then the region
 * runs on its own thread, which is no error. */
static pool *pool_get(int threads) {
    bool clean = etch_last_status() == ETCH_OK;
    pthread_mutex_lock(&lock);
    if (!current) current = pool_new(threads);
    pool *p = current;
    if (p) atomic_fetch_add(&p->refs, 1);
    pthread_mutex_unlock(&lock);
    if (!p && clean) etch_clear_error();
    return p;
}

/* ThreadSanitizer does not see how pthreadpool hands work out and waits for it. */
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define GIVE(region) __tsan_release((void *)(region))
#define TAKE(region) __tsan_acquire((void *)(region))
#else
#define GIVE(region) ((void)(region))
#define TAKE(region) ((void)(region))
#endif

typedef struct region {
    void (*task)(void *ctx, int64_t begin, int64_t end);
    void *ctx;
    unsigned mxcsr;
} region;

/* Rounding and denormal mode come from the caller; exception flags stay the worker's own. */
static void run_task(void *arg, size_t begin, size_t count) {
    const region *r = arg;
    TAKE(r);
    unsigned mine = _mm_getcsr();
    bool was = in_task;
    in_task = true;
    _mm_setcsr((r->mxcsr & ~0x3fu) | (mine & 0x3fu));
    r->task(r->ctx, (int64_t)begin, (int64_t)(begin + count));
    _mm_setcsr(mine);
    in_task = was;
    GIVE(r);
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
    /* A few pieces a thread even out what the others do, in whole grains. */
    int64_t grains = (n + grain - 1) / grain, per = grains / (4 * (int64_t)threads);
    region r = {task, ctx, _mm_getcsr()};
    GIVE(&r);
    pthreadpool_parallelize_1d_tile_1d(p->workers, run_task, &r, (size_t)n,
                                       (size_t)((per > 1 ? per : 1) * grain), 0);
    TAKE(&r);
    pool_release(p);
}
