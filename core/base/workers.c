/* See workers.h.
 *
 * A round of work has a number; threads wait for the next one, for a while in a loop and then in
 * the kernel. Each has a share of the round's pieces: it takes from the front, and when nothing is
 * left it takes from the ends of the others' shares. When the caller finds no more pieces it shuts
 * the gate, and waits for those who are inside; who comes late finds it shut and waits for another
 * round. So a thread that has no processor on a busy machine keeps nobody, unless it has lost it in
 * the middle of a piece. */
#include "core/base/workers.h"

#include <errno.h>
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/stack.h"

static const uint32_t SHUT = 1u << 31;

/* How long the loop lasts: the next kernel of a plan comes sooner, a sleeper is late. By the clock,
 * since a pause takes 10 cycles on some processors and 140 on others. */
enum { SPIN_NANOSECONDS = 2000000, PAUSES = 64 };

/* Lines of its own, since the owner writes at each piece. */
typedef struct share {
    _Alignas(64) _Atomic int64_t left; /* pieces that nobody has; below 0 by those who tried */
    _Atomic int64_t end;               /* others take the one before it */
    int64_t begin;                     /* the owner takes this one */
} share;

typedef struct worker {
    workers *all;
    int number;     /* of its share; the caller's is 0 */
    uint32_t round; /* the last one before it was made */
    pthread_t thread;
} worker;

struct workers {
    pthread_mutex_t lock; /* a round, or a change of the threads */
    int wanted, count;
    void (*task)(void *ctx, int64_t i); /* NULL: the threads end */
    void *ctx;
    _Alignas(64) _Atomic uint32_t round;
    _Alignas(64) _Atomic uint32_t gate; /* SHUT, and how many threads are inside */
    worker *thread;
    share share[]; /* wanted + 1 */
};

/* ---- waiting ---- */

static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Until the word is another one, or the time is over. */
static void spin(_Atomic uint32_t *word, uint32_t value) {
    for (int64_t now = 0, end = 0; now <= end; now = etch__now()) {
        for (int i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(word, memory_order_relaxed) != value) return;
            _mm_pause();
        }
        if (end == 0) end = etch__now() + SPIN_NANOSECONDS;
    }
}

/* Returns the word's value once it is another one. */
static uint32_t wait_while(_Atomic uint32_t *word, uint32_t value) {
    uint32_t now;
    spin(word, value);
    while ((now = atomic_load_explicit(word, memory_order_acquire)) == value) sleep_on(word, value);
    return now;
}

/* ---- shares ---- */

static bool take(share *s) {
    return atomic_load_explicit(&s->left, memory_order_relaxed) > 0 &&
           atomic_fetch_sub_explicit(&s->left, 1, memory_order_relaxed) > 0;
}

static void deal(workers *w, int64_t n) {
    int shares = w->count + 1;
    for (int k = 0; k < shares; k++) {
        share *s = &w->share[k];
        int64_t begin = n / shares * k + (k < n % shares ? k : n % shares);
        int64_t length = n / shares + (k < n % shares);
        s->begin = begin;
        atomic_store_explicit(&s->left, length, memory_order_relaxed);
        atomic_store_explicit(&s->end, begin + length, memory_order_relaxed);
    }
}

static void work_off(workers *w, int own) {
    int shares = w->count + 1;
    share *mine = &w->share[own];
    while (take(mine)) w->task(w->ctx, mine->begin++);
    for (int k = 1; k < shares; k++) {
        share *s = &w->share[(own + k) % shares];
        while (take(s))
            w->task(w->ctx, atomic_fetch_sub_explicit(&s->end, 1, memory_order_relaxed) - 1);
    }
}

/* ---- the threads ---- */

/* Into the round that is going on, which may be a later one than was waited for. */
static bool enter(workers *w) {
    uint32_t gate = atomic_load_explicit(&w->gate, memory_order_relaxed);
    while (!(gate & SHUT))
        if (atomic_compare_exchange_weak_explicit(&w->gate, &gate, gate + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* The last one wakes the caller, who waits only when the gate is shut. */
static void leave(workers *w) {
    if (atomic_fetch_sub_explicit(&w->gate, 1, memory_order_release) == SHUT + 1)
        wake_all(&w->gate);
}

static void *serve(void *of) {
    const worker *me = of;
    workers *w = me->all;
    for (uint32_t round = me->round;;) {
        round = wait_while(&w->round, round);
        if (!enter(w)) continue;
        bool ends = !w->task;
        if (!ends) work_off(w, me->number);
        leave(w);
        if (ends) return NULL;
    }
}

/* With the lock, or alone. Signals are the program's threads'. */
static int add_threads(workers *w) {
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!error && w->count < w->wanted) {
        worker *t = &w->thread[w->count];
        *t = (worker){.all = w, .number = w->count + 1, .round = w->round};
        error = etch__thread_start(&t->thread, serve, t);
        if (!error) w->count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void begin_round(workers *w) {
    atomic_store_explicit(&w->gate, 0, memory_order_release);
    atomic_fetch_add_explicit(&w->round, 1, memory_order_release);
    wake_all(&w->round);
}

workers *etch__workers_new(int n, const char **why) {
    workers *w = etch__aligned_zeroed(sizeof *w + ((size_t)n + 1) * sizeof(share));
    if (!w) return NULL;
    w->thread = etch__calloc((size_t)n, sizeof *w->thread);
    if (!w->thread) return etch__free(w), NULL;
    pthread_mutex_init(&w->lock, NULL);
    w->wanted = n, w->gate = SHUT;
    int error = add_threads(w);
    *why = error ? strerror(error) : NULL;
    return w;
}

void etch__workers_free(workers *w) {
    if (!w) return;
    w->task = NULL;
    begin_round(w);
    for (int i = 0; i < w->count; i++) pthread_join(w->thread[i].thread, NULL);
    pthread_mutex_destroy(&w->lock);
    etch__free(w->thread);
    etch__free(w);
}

int etch__workers_count(const workers *w) { return w->count; }

void etch__workers_complete(workers *w) {
    if (pthread_mutex_trylock(&w->lock) != 0) return;
    add_threads(w);
    pthread_mutex_unlock(&w->lock);
}

void etch__workers_run(workers *w, void (*task)(void *ctx, int64_t i), void *ctx, int64_t n) {
    pthread_mutex_lock(&w->lock);
    deal(w, n);
    w->task = task, w->ctx = ctx;
    begin_round(w);
    work_off(w, 0);
    uint32_t gate = atomic_fetch_or_explicit(&w->gate, SHUT, memory_order_acquire) | SHUT;
    while (gate != SHUT) gate = wait_while(&w->gate, gate);
    pthread_mutex_unlock(&w->lock);
}
