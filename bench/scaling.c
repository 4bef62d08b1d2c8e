/* Two threads against one: a product, a pointwise chain, a full sum. The bits are the same. */
#include "bench.h"

typedef struct job {
    etch_function *f;
    etch_tensor *x, *y;
} job;

static void run(void *ctx, int64_t calls) {
    job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        ETCH_SCOPE { etch_call(j->f, j->x, j->y); }
    }
}

static etch_tensor *product(etch_tensor *x, etch_tensor *y) { return etch_mm(x, y); }

static void scale(const char *workload, etch_fn2 body, int64_t n, const char *size) {
    if (!bench_selected(workload)) return;
    ETCH_SCOPE {
        job j = {etch_compile(body, .name = workload), bench_scaled(n), bench_scaled(n)};
        bench_row row = {.workload = workload, .size = size, .count = 2};
        row.variants[0] = (bench_variant){.name = "compiled", .run = run, .ctx = &j, .threads = 1};
        row.variants[1] = (bench_variant){.name = "compiled", .run = run, .ctx = &j, .threads = 2};
        bench_measure(&row);
        etch_function_free(j.f);
    }
}

void bench_scaling(void) {
    scale("scaling product", product, 1024, "1024x1024");
    scale("scaling chain", bench_chain, 1024, "1024x1024");
    scale("scaling allsum", bench_allsum, 1024, "1024x1024");
    scale("scaling allsum", bench_allsum, 4096, "4096x4096");
}
