/* When compiling is worth it: sizes as run-time extents against fixed ones, what breaks cost, and
 * bodies that it does not pay for. The column breakeven_calls says after how many calls the first,
 * compiling one has been made up for. */
#include "bench.h"

#include <stdio.h>

/* ---- static against dynamic ---- */

static etch_tensor *columns(etch_tensor *x, etch_tensor *y) {
    etch_tensor *product = etch_mul(x, y);
    etch_tensor *sums = etch_sum_dim(product, ETCH_DIMS(0), true);
    return etch_sub(x, sums);
}

typedef struct sized_row {
    const char *name;
    etch_fn2 body;
    int64_t n;
} sized_row;

static const sized_row sized[] = {
    {"chain", bench_chain, 4}, {"chain", bench_chain, 64}, {"chain", bench_chain, 1024},
    {"columns", columns, 64},  {"columns", columns, 1024}, {"seed", bench_seed, 10},
    {"seed", bench_seed, 64},  {"seed", bench_seed, 256},
};

/* The dynamic one has seen other sizes first. */
static etch_function *compiled(const sized_row *r, etch_dynamic dynamic) {
    etch_function *f = etch_compile_fn2(
        r->body, &(etch_compile_options){.struct_size = sizeof(etch_compile_options),
                                         .name = r->name,
                                         .dynamic = dynamic});
    for (int64_t n = r->n; dynamic == ETCH_DYNAMIC_ON && n < r->n + 3; n++) {
        ETCH_SCOPE { etch_call(f, bench_scaled(n), bench_scaled(n)); }
    }
    return f;
}

static void measure_sized(const sized_row *r) {
    ETCH_SCOPE {
        char size[64];
        snprintf(size, sizeof size, "%s %lldx%lld", r->name, (long long)r->n, (long long)r->n);
        bench_job fixed = {.f = compiled(r, ETCH_DYNAMIC_OFF), .x = bench_scaled(r->n)};
        fixed.y = bench_scaled(r->n);
        bench_job dynamic = {.f = compiled(r, ETCH_DYNAMIC_ON), .x = fixed.x, .y = fixed.y};
        bench_row row = {.workload = "sizes", .size = size, .count = 2};
        row.best = true;
        row.variants[0] =
            (bench_variant){.name = "static", .run = bench_run_compiled, .ctx = &fixed};
        row.variants[1] =
            (bench_variant){.name = "dynamic", .run = bench_run_compiled, .ctx = &dynamic};
        bench_measure(&row);
        etch_function_free(fixed.f), etch_function_free(dynamic.f);
    }
}

/* ---- breaks ---- */

/* Ten rounds of three operators; after some of them a value is read. */
static etch_tensor *with_breaks(etch_tensor *x, etch_tensor *y, int breaks) {
    etch_tensor *row = etch_select(y, 0, 0);
    etch_tensor *at = etch_select(row, 0, 0);
    for (int i = 0; i < 10; i++) {
        etch_tensor *product = etch_mul(x, y);
        etch_tensor *shifted = etch_add_scalar(product, 0.5);
        x = etch_tanh(shifted);
        if (i % 2 == 0 && i / 2 < breaks && etch_item(at) == 1234.5) return x;
    }
    return x;
}
static etch_tensor *breaks_0(etch_tensor *x, etch_tensor *y) { return with_breaks(x, y, 0); }
static etch_tensor *breaks_1(etch_tensor *x, etch_tensor *y) { return with_breaks(x, y, 1); }
static etch_tensor *breaks_5(etch_tensor *x, etch_tensor *y) { return with_breaks(x, y, 5); }

/* The first size compiles; the others use the same kernels.
 *
 * All in turn: eager, then compiled without breaks, with one, with five. */
static void measure_breaks(int64_t n) {
    static const struct {
        const char *name;
        etch_fn2 body;
    } bodies[] = {{"0 breaks", breaks_0}, {"1 break", breaks_1}, {"5 breaks", breaks_5}};
    static double compile_ms[3];
    ETCH_SCOPE {
        char size[64];
        snprintf(size, sizeof size, "30 operators %lldx%lld", (long long)n, (long long)n);
        bench_job jobs[4] = {{.body = breaks_0, .x = bench_scaled(n), .y = bench_scaled(n)}};
        bench_row row = {.workload = "breaks", .size = size, .count = 4};
        row.best = true;
        row.variants[0] = (bench_variant){.name = "eager", .run = bench_run_eager, .ctx = &jobs[0]};
        for (int i = 0; i < 3; i++) {
            bench_job *j = &jobs[i + 1];
            *j = (bench_job){.f = etch_compile_fn2(bodies[i].body, NULL), .x = jobs[0].x};
            j->y = jobs[0].y;
            double start = bench_now_us();
            bench_run_compiled(j, 1);
            row.variants[i + 1] = (bench_variant){.name = bodies[i].name,
                                                  .run = bench_run_compiled,
                                                  .ctx = j,
                                                  .first_call_ms = (bench_now_us() - start) * 1e-3};
            if (!compile_ms[i]) compile_ms[i] = row.variants[i + 1].first_call_ms;
            row.variants[i + 1].compile_ms = compile_ms[i];
        }
        bench_measure(&row);
        for (int i = 1; i < 4; i++) etch_function_free(jobs[i].f);
    }
}

void bench_whether(void) {
    for (size_t i = 0; i < sizeof sized / sizeof *sized && bench_selected("sizes"); i++)
        measure_sized(&sized[i]);
    static const int64_t sizes[] = {4, 64, 512};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && bench_selected("breaks"); i++)
        measure_breaks(sizes[i]);
}
