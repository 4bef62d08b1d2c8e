/* The thread's state, and the list of all of them, over which per-thread counts are summed. */
#include "core/base/locks.h"
#include "core/base/start.h"
#include "core/base/thread.h"

#include <pthread.h>

__thread etch_thread etch__tls = {
    .state = (uint64_t)ETCH_F32 << 8, .body_scope = -1, .guard_scope = -1, .error = "", .why = ""};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static etch_thread *threads;
static thread_counts departed; /* counts of threads that have ended */

static void add_counts(thread_counts *sum, const thread_counts *c) {
    sum->tensors += __atomic_load_n(&c->tensors, __ATOMIC_RELAXED);
    sum->operators += __atomic_load_n(&c->operators, __ATOMIC_RELAXED);
    sum->allocations += __atomic_load_n(&c->allocations, __ATOMIC_RELAXED);
    sum->kernel_launches += __atomic_load_n(&c->kernel_launches, __ATOMIC_RELAXED);
    sum->library_calls += __atomic_load_n(&c->library_calls, __ATOMIC_RELAXED);
    sum->small_bytes += __atomic_load_n(&c->small_bytes, __ATOMIC_RELAXED);
}

/* What ends with a thread, in the order in which it was said. */
enum { MAX_ENDINGS = 8 };
static void (*endings[MAX_ENDINGS])(etch_thread *t);
static int nendings;

void etch__at_thread_end(void (*end)(etch_thread *t)) { endings[nendings++] = end; }

static void thread_ends(void *p) {
    etch_thread *t = p;
    for (int i = 0; i < nendings; i++) endings[i](t);
    etch__lock(LOCK_THREADS);
    for (etch_thread **link = &threads; *link; link = &(*link)->next)
        if (*link == t) {
            *link = t->next;
            break;
        }
    add_counts(&departed, &t->counts);
    t->counts = (thread_counts){0};
    t->registered = false;
    etch__unlock(LOCK_THREADS);
}

/* In the child only the forking thread lives on: the others' counts stay, their blocks do not. */
static void in_child(void) {
    for (etch_thread *t = threads; t; t = t->next)
        if (t != &etch__tls) add_counts(&departed, &t->counts);
    if (etch__tls.registered) threads = &etch__tls, etch__tls.next = NULL;
    else threads = NULL;
}

static void set_up(void) {
    pthread_key_create(&key, thread_ends);
    etch__at_fork(LOCK_THREADS, (fork_hooks){.child = in_child});
}

void etch__start_threads(void) { pthread_once(&once, set_up); }

void etch__thread_register(void) {
    pthread_once(&once, set_up);
    static _Atomic unsigned numbers;
    pthread_setspecific(key, &etch__tls);
    etch__tls.number = numbers++;
    etch__lock(LOCK_THREADS);
    etch__tls.next = threads;
    threads = &etch__tls;
    etch__tls.registered = true;
    etch__unlock(LOCK_THREADS);
}

thread_counts etch__thread_counts(void) {
    etch__lock(LOCK_THREADS);
    thread_counts sum = departed;
    for (etch_thread *t = threads; t; t = t->next) add_counts(&sum, &t->counts);
    etch__unlock(LOCK_THREADS);
    return sum;
}

const char *etch_version(void) { return ETCH_VERSION_STRING; }
