/* The process's generator: a seed, and an offset that every random operator moves on by the numbers
 * it takes. What element i of an operator becomes is a function of (seed, offset + i) alone. */
#include <etch/etch.h>
#include <pthread.h>

#include "core/base/locks.h"
#include "core/base/base.h"

static uint64_t current_seed, current_offset;

void etch_manual_seed(uint64_t seed) {
    etch__lock(LOCK_RANDOM);
    current_seed = seed;
    current_offset = 0;
    etch__unlock(LOCK_RANDOM);
}

void etch__random_reserve(int64_t n, uint64_t *seed, uint64_t *offset) {
    etch__lock(LOCK_RANDOM);
    *seed = current_seed;
    *offset = current_offset;
    current_offset += (uint64_t)n;
    etch__unlock(LOCK_RANDOM);
}
