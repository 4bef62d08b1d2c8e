/* See locks.h. One handler of fork takes the locks of the table in its order, so that no other
 * thread is in the middle of what they guard. */
#include "core/base/locks.h"

#include <stdio.h>
#include <time.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include "core/base/start.h"

enum { HELD, RENEWED, BY_HOOKS };

static const struct {
    const char *name;
    int at_fork;
} rows[LOCK_COUNT] = {
#define LOCK(name, at_fork, what) [LOCK_##name] = {#name, at_fork},
#include "core/base/locks.def"
#undef LOCK
};

pthread_mutex_t etch__locks[LOCK_COUNT] = {
#define LOCK(name, at_fork, what) [LOCK_##name] = PTHREAD_MUTEX_INITIALIZER,
#include "core/base/locks.def"
#undef LOCK
};

/* ---- the order ---- */

#ifndef NDEBUG
_Static_assert(LOCK_COUNT <= 64, "a bit a lock");
static __thread uint64_t held; /* by this thread */
static char disorder[64];

static void note(lock_id id) { held |= 1ull << id; }
static void check_order(lock_id id) {
    if (held >> id && !*disorder)
        snprintf(disorder, sizeof disorder, "%s under %s", rows[id].name,
                 rows[63 - __builtin_clzll(held)].name);
    note(id);
}
static void forget(lock_id id) { held &= ~(1ull << id); }
const char *etch__lock_disorder(void) { return *disorder ? disorder : NULL; }
#else
static void note(lock_id id) { (void)id; }
static void check_order(lock_id id) { (void)id; }
static void forget(lock_id id) { (void)id; }
const char *etch__lock_disorder(void) { return NULL; }
#endif

void etch__lock(lock_id id) {
    check_order(id);
    pthread_mutex_lock(&etch__locks[id]);
}

void etch__unlock(lock_id id) {
    forget(id);
    pthread_mutex_unlock(&etch__locks[id]);
}

bool etch__try_lock(lock_id id) {
    if (pthread_mutex_trylock(&etch__locks[id]) != 0) return false;
    note(id);
    return true;
}

/* ThreadSanitizer does not know pthread_mutex_clocklock, and is told. */
bool etch__lock_within(lock_id id, int64_t seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    check_order(id);
    if (pthread_mutex_clocklock(&etch__locks[id], CLOCK_MONOTONIC, &until) != 0) {
        forget(id);
        return false;
    }
#ifdef __SANITIZE_THREAD__
    __tsan_mutex_pre_lock(&etch__locks[id], __tsan_mutex_try_lock);
    __tsan_mutex_post_lock(&etch__locks[id], __tsan_mutex_try_lock, 0);
#endif
    return true;
}

/* ---- fork ---- */

static fork_hooks hooks_of[LOCK_COUNT];

void etch__at_fork(lock_id at, fork_hooks hooks) { hooks_of[at] = hooks; }

static bool is_taken(int id) { return rows[id].at_fork == HELD; }

static void before_fork(void) {
    for (int id = 0; id < LOCK_COUNT; id++) {
        if (is_taken(id)) etch__lock(id);
        if (hooks_of[id].before) hooks_of[id].before();
    }
}

static void in_parent(void) {
    for (int id = LOCK_COUNT - 1; id >= 0; id--) {
        if (hooks_of[id].parent) hooks_of[id].parent();
        if (is_taken(id)) etch__unlock(id);
    }
}

static void in_child(void) {
    for (int id = LOCK_COUNT - 1; id >= 0; id--) {
        if (rows[id].at_fork == RENEWED) pthread_mutex_init(&etch__locks[id], NULL);
        if (hooks_of[id].child) hooks_of[id].child();
        if (is_taken(id)) etch__unlock(id);
    }
}

void etch__start_locks(void) { pthread_atfork(before_fork, in_parent, in_child); }
