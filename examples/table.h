/* What the examples share: a clock, the median of five, and one row of the table they print. */
#ifndef ETCH_EXAMPLES_TABLE_H
#define ETCH_EXAMPLES_TABLE_H

#include <etch/etch.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median_of_5(double times[5]) {
    qsort(times, 5, sizeof times[0], compare_doubles);
    return times[2];
}

typedef struct table_row {
    const char *name;
    double eager_ms, compiled_ms, first_call_ms;
    const etch_function *f;
    int64_t kernels; /* generated for all graphs of f */
    int64_t breaks;  /* of one call */
    bool equal;      /* compiled results have the bits of the eager ones */
} table_row;

static inline void table_head(void) {
    printf("%-20s %11s %11s %8s %11s %7s %7s %8s  %s\n", "", "eager", "compiled", "speedup",
           "first call", "graphs", "breaks", "kernels", "bits");
}

static inline void table_print(const table_row *r) {
    etch_counters_t c = etch_function_counters(r->f);
    printf("%-20s %8.3f ms %8.3f ms %7.2fx %8.1f ms %7lld %7lld %8lld  %s\n", r->name, r->eager_ms,
           r->compiled_ms, r->eager_ms / r->compiled_ms, r->first_call_ms, (long long)c.graphs,
           (long long)r->breaks, (long long)r->kernels, r->equal ? "equal" : "DIFFERENT");
    fflush(stdout);
}

/* Whether the row is as it must be: the same bits, and plans that ran. Says why not. */
static inline bool table_check(const table_row *r) {
    etch_counters_t c = etch_function_counters(r->f);
    if (r->equal && c.graphs > 0 && c.plan_runs > 0 && c.compile_failures == 0) return true;
    printf("%s: %s (plans run: %lld, failed compiles: %lld) %s\n", r->name,
           r->equal ? "not compiled" : "results differ", (long long)c.plan_runs,
           (long long)c.compile_failures, etch_last_error());
    return false;
}

#endif
