/* The process's counters. Operators and launches are counted by each thread for itself: a locked
 * add would cost more than the rest of a small operator. */
#include <etch/debug.h>
#include <pthread.h>

#include "core/base/locks.h"
#include "core/base/counters.h"
#include "core/base/hooks.h"

counters etch__counters;
static thread_counts at_reset;

#define COUNTER(name) +1
enum {
    COUNTERS = 3 /* kernel_launches, library_calls, operators */
#include "core/base/counters.def"
};
#undef COUNTER
_Static_assert(sizeof(etch_counters_t) == COUNTERS * sizeof(int64_t), "counters.def and debug.h");

etch_counters_t etch_counters(void) {
    etch_counters_t c;
    counters sum = {0};
    etch__trace_hooks.add_counts(&sum);
#define COUNTER(name)                                                                              \
    c.name = sum.name + atomic_load_explicit(&etch__counters.name, memory_order_relaxed);
#include "core/base/counters.def"
#undef COUNTER
    thread_counts now = etch__thread_counts();
    etch__lock(LOCK_COUNTERS);
    c.kernel_launches = now.kernel_launches - at_reset.kernel_launches;
    c.library_calls = now.library_calls - at_reset.library_calls;
    c.operators = now.operators - at_reset.operators;
    etch__unlock(LOCK_COUNTERS);
    return c;
}

void etch_counters_reset(void) {
#define COUNTER(name) atomic_store_explicit(&etch__counters.name, 0, memory_order_relaxed);
#include "core/base/counters.def"
#undef COUNTER
    etch__trace_hooks.reset_counts();
    thread_counts now = etch__thread_counts();
    etch__lock(LOCK_COUNTERS);
    at_reset = now;
    etch__unlock(LOCK_COUNTERS);
}
