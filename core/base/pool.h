/* The thread pool: made at first need, made anew after fork, smaller where the system gives fewer
 * threads.
 *
 * Workers take along the caller's rounding and denormal mode (MXCSR). Re-entrant calls (from inside
 * a task) run on the calling thread. */
#ifndef ETCH_CORE_BASE_POOL_H
#define ETCH_CORE_BASE_POOL_H

#include "core/base/base.h"

/* Calls task(ctx, begin, end) on disjoint ranges that cover 0..n), each of at least
 * `grain` elements but for the last, on up to etch_num_threads threads. Which range
 * goes where is unspecified. */
void etch__parallel(int64_t n, int64_t grain, void (*task)(void *ctx, int64_t begin, int64_t end),
                    void *ctx);

#endif
