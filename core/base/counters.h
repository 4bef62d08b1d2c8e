/* The counters of core/base/counters.def, and where they are kept. */
#ifndef ETCH_CORE_BASE_COUNTERS_H
#define ETCH_CORE_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* Counters: the process's, added to atomically. */
typedef struct counters {
#define COUNTER(name) _Atomic int64_t name;
#include "core/base/counters.def"
#undef COUNTER
} counters;
extern counters etch__counters;

/* By number: (&c->calls)[COUNTER_graphs]. */
typedef enum counter_id {
#define COUNTER(name) COUNTER_##name,
#include "core/base/counters.def"
#undef COUNTER
    COUNTER_COUNT
} counter_id;
_Static_assert(sizeof(counters) == COUNTER_COUNT * sizeof(int64_t), "counters lie side by side");

#endif
