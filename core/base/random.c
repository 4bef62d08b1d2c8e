/* The process's generator: a seed, and an offset that every random operator moves on by the numbers
 * it takes. What element i of an operator becomes is a function of (seed, offset + i) alone. */
#include <etch/etch.h>
#include <pthread.h>

#include "core/base/base.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t current_seed, current_offset;

static void lock_for_fork(void) { pthread_mutex_lock(&lock); }
static void unlock_after_fork(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
}

void etch_manual_seed(uint64_t seed) {
    pthread_mutex_lock(&lock);
    current_seed = seed;
    current_offset = 0;
    pthread_mutex_unlock(&lock);
}

void etch__random_reserve(int64_t n, uint64_t *seed, uint64_t *offset) {
    pthread_mutex_lock(&lock);
    *seed = current_seed;
    *offset = current_offset;
    current_offset += (uint64_t)n;
    pthread_mutex_unlock(&lock);
}
