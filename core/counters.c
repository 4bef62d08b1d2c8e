/* The process's counters. Operators are counted by each thread for itself: a locked add would cost
 * more than the rest of a small operator. */
#include <etch/debug.h>

#include "core/dispatch.h"

counters etch__counters;
static _Atomic int64_t operators_at_reset;

#define COUNTER(name) +1
enum {
    COUNTERS = 1 /* operators */
#include "core/counters.def"
};
#undef COUNTER
_Static_assert(sizeof(etch_counters_t) == COUNTERS * sizeof(int64_t), "counters.def and debug.h");

etch_counters_t etch_counters(void) {
    etch_counters_t c;
    counters sum = {0};
    etch__trace_hooks.add_counts(&sum);
#define COUNTER(name)                                                                              \
    c.name = sum.name + atomic_load_explicit(&etch__counters.name, memory_order_relaxed);
#include "core/counters.def"
#undef COUNTER
    c.operators = etch__thread_counts().operators - operators_at_reset;
    return c;
}

void etch_counters_reset(void) {
#define COUNTER(name) atomic_store_explicit(&etch__counters.name, 0, memory_order_relaxed);
#include "core/counters.def"
#undef COUNTER
    etch__trace_hooks.reset_counts();
    operators_at_reset = etch__thread_counts().operators;
}
