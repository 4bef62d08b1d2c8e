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

#endif
