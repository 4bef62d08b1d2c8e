/* The profiler's hooks. Where nothing records, each costs one load and one predicted branch. */
#ifndef ETCH_CORE_BASE_PROFILE_H
#define ETCH_CORE_BASE_PROFILE_H

#include <etch/profile.h>
#include <stdatomic.h>

#include "core/base/base.h"

extern atomic_bool etch__profiling __attribute__((visibility("hidden")));
static inline bool etch__profile_on(void) {
    return unlikely(atomic_load_explicit(&etch__profiling, memory_order_relaxed));
}

/* The start of an event, 0 where nothing records; an event that starts at 0 is none. */
static inline int64_t etch__profile_start(void) { return etch__profile_on() ? etch__now() : 0; }
/* An event from start until now, named "name" or "name: detail"; both are copied. */
void etch__profile_add(etch_profile_kind kind, int64_t start, const char *name, const char *detail);
static inline void etch__profile_end_event(etch_profile_kind kind, int64_t start, const char *name,
                                           const char *detail) {
    if (unlikely(start)) etch__profile_add(kind, start, name, detail);
}
/* For the backend of a device: the profile that is running has a number, and takes an event of that
 * device for it that began when the host's clock said start; or it is told that one was lost. */
int etch__profile_number(void);
void etch__profile_add_device(int number, int device, int64_t start, int64_t ns, const char *name);
void etch__profile_lost(int64_t events);
/* An event without a duration. */
static inline void etch__profile_mark(etch_profile_kind kind, const char *name,
                                      const char *detail) {
    if (etch__profile_on()) etch__profile_add(kind, etch__now(), name, detail);
}

#endif
