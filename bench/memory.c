/* Peaks of memory: ordinary programs (programs.c) eagerly, in the first call of the compiled
 * function and in a later one. Bytes of tensors above what the caller holds; the scratch memory of
 * a plan on the CPU, which is none of tensors, is not in them. */
#include "bench.h"
#include "programs.h"

#include <stdio.h>

enum { SIDE = 512 };

static void call(const bench_job *j) {
    ETCH_SCOPE {
        etch_tensor *out = j->f ? etch_call(j->f, j->x, j->y) : j->body(j->x, j->y);
        if (!out) bench_fail("memory");
    }
}

static double peak_mib(const bench_job *j) {
    etch_memory_reset_peak();
    int64_t before = etch_memory().bytes_live;
    call(j);
    return (double)(etch_memory().bytes_peak - before) / (1 << 20);
}

static void print_line(const bench_program *p, const char *variant, double mib, double eager) {
    printf("memory %s,%dx%d,%s,%.2f,%.2f\n", p->name, SIDE, SIDE, variant, mib, mib / eager);
    fflush(stdout);
}

static void measure(const bench_program *p, etch_tensor *x, etch_tensor *y) {
    bench_job job = {.body = p->body, .x = x, .y = y};
    double eager = peak_mib(&job);
    print_line(p, "eager", eager, eager);
    job.f = etch_compile(p->body);
    if (!job.f) bench_fail(p->name);
    print_line(p, "first call", peak_mib(&job), eager);
    peak_mib(&job);
    print_line(p, "later call", peak_mib(&job), eager);
    etch_function_free(job.f);
}

void bench_memory(void) {
    if (!bench_selected("memory")) return;
    printf("workload,size,variant,peak_mib,ratio\n");
    for (const bench_program *p = bench_programs; p->name; p++) {
        ETCH_SCOPE { measure(p, bench_scaled(SIDE), bench_scaled(SIDE)); }
    }
    bench_training_memory();
}
