/* A device's own clock: when the work that it was given began and ended, for ETCH_TRACE and
 * profiles. core names no device; a backend whose work goes on behind the call that issues it puts
 * its functions here at load.
 *
 * The times come later than the work, without anybody waiting for them: when more work is timed,
 * when somebody waits for the device, and when a report or a profile is written. Nothing here fails
 * or sets an error. What cannot be timed is lost, and `told` so. */
#ifndef ETCH_CORE_BASE_DEVICE_CLOCK_H
#define ETCH_CORE_BASE_DEVICE_CLOCK_H

#include "core/base/base.h"

/* Span i went from begin[i] to end[i], in nanoseconds since the first span began. */
typedef struct clock_times {
    int n;
    const int64_t *begin, *end;
} clock_times;

/* Work to be timed: spans, one behind the other. */
typedef struct clock_order {
    int device, nspans; /* nspans: at most */
    bool profile;       /* each span becomes an event of the profile */
    /* Called once where the run was begun and kept, on any thread: with the times, or NULL where
     * they are lost. May be NULL. */
    void (*told)(void *to, const clock_times *t);
    void *to;
} clock_order;

typedef struct clock_run clock_run;
typedef struct device_clock {
    /* Of what the thread is about to issue. NULL: it is not timed. */
    clock_run *(*begin)(const clock_order *o);
    /* Around the calls that issue a span's work; the name is copied. */
    void (*span_begin)(clock_run *r, const char *name);
    void (*span_end)(clock_run *r);
    /* keep: false where the work has failed and nobody is to be told of it. */
    void (*end)(clock_run *r, bool keep);
    /* Waits for all that was kept, and tells of it; keeps nothing where nothing records. */
    void (*settle)(void);
} device_clock;

extern const device_clock *etch__device_clock; /* NULL: there is none */

static inline void etch__clock_settle(void) {
    if (etch__device_clock) etch__device_clock->settle();
}
/* One span, for work that is no plan's. */
static inline clock_run *etch__clock_begin_one(const clock_order *o, const char *name) {
    clock_run *r = etch__device_clock ? etch__device_clock->begin(o) : NULL;
    if (r) etch__device_clock->span_begin(r, name);
    return r;
}
static inline void etch__clock_end_one(clock_run *r, bool keep) {
    if (!r) return;
    etch__device_clock->span_end(r);
    etch__device_clock->end(r, keep);
}

#endif
