/* The one clock: it goes on evenly, whatever the time of day is set to. */
#include "core/base/base.h"

#include <time.h>

int64_t etch__now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
