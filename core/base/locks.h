/* The process-wide locks, in one order (core/base/locks.def), and what happens to them at fork. */
#ifndef ETCH_CORE_BASE_LOCKS_H
#define ETCH_CORE_BASE_LOCKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum lock_id {
#define LOCK(name, at_fork, what) LOCK_##name,
#include "core/base/locks.def"
#undef LOCK
    LOCK_COUNT
} lock_id;

extern pthread_mutex_t etch__locks[LOCK_COUNT]; /* themselves for waits on conditions alone */
void etch__lock(lock_id id);
void etch__unlock(lock_id id);
/* Whether the lock was free, and is the caller's now; the same after waiting for some seconds. */
bool etch__try_lock(lock_id id);
bool etch__lock_within(lock_id id, int64_t seconds);

/* What else a part does around fork: after its lock is taken, and before it is given back. Those
 * that have nothing to do are NULL. Said as the part starts. */
typedef struct fork_hooks {
    void (*before)(void), (*parent)(void), (*child)(void);
} fork_hooks;
void etch__at_fork(lock_id at, fork_hooks hooks);

/* The first two locks that a debug build saw taken in the wrong order, "A under B", or NULL. */
const char *etch__lock_disorder(void);

#endif
