/* The threads of one pool: made at once, as many as the system gives; waiting for work; joined. */
#ifndef ETCH_CORE_BASE_WORKERS_H
#define ETCH_CORE_BASE_WORKERS_H

#include "core/base/base.h"

typedef struct workers workers;

/* Up to n threads (0 is a number like any other); NULL where there is no memory for the record of
 * them, and *why is left alone. Where the system gives fewer, *why is errno's text, else NULL. */
workers *etch__workers_new(int n, const char **why);
/* Ends and joins them; nobody may be in etch__workers_run. */
void etch__workers_free(workers *w);
int etch__workers_count(const workers *w);
/* Tries to make those that are missing, unless a round is going on. */
void etch__workers_complete(workers *w);

/* Calls task(ctx, i) for all i < n, each once, on the caller and the threads: neighbouring numbers
 * on one thread as long as all are equally fast. One caller at a time, others wait. */
void etch__workers_run(workers *w, void (*task)(void *ctx, int64_t i), void *ctx, int64_t n);

#endif
