/* What an interceptor mode costs: one operator on 10 elements eagerly, under a mode whose handler
 * passes everything on, under one that declines everything, and while the profiler records. */
#include "bench.h"

typedef struct job {
    etch_tensor *x, *y;
    etch_mode *mode;
    bool profiled;
} job;

static etch_status pass_on(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx;
    return etch_redispatch(op, args, nargs, out, nout);
}

static etch_status decline(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

/* A scope each hundred calls: its cost is not the operator's. */
static void add_many(const job *j, int64_t calls) {
    for (int64_t i = 0; i < calls; i += 100) {
        ETCH_SCOPE {
            for (int k = 0; k < 100; k++) etch_add(j->x, j->y);
        }
    }
}

static void run_add(void *ctx, int64_t calls) {
    const job *j = ctx;
    if (j->profiled) {
        ETCH_PROFILE (NULL) { add_many(j, calls); }
    } else if (j->mode) {
        ETCH_WITH_MODE (j->mode) { add_many(j, calls); }
    } else {
        add_many(j, calls);
    }
}

void bench_modes(void) {
    if (!bench_selected("overhead mode")) return;
    etch_mode *passing = etch_mode_new(pass_on, NULL), *declining = etch_mode_new(decline, NULL);
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(10));
        etch_tensor *y = etch_randn(ETCH_F32, ETCH_SHAPE(10));
        job eager = {x, y, NULL, false}, redispatch = {x, y, passing, false};
        job declined = {x, y, declining, false}, profiled = {x, y, NULL, true};
        bench_row row = {.workload = "overhead mode", .size = "10", .count = 4};
        row.variants[0] = (bench_variant){.name = "eager", .run = run_add, .ctx = &eager};
        row.variants[1] =
            (bench_variant){.name = "passing mode", .run = run_add, .ctx = &redispatch};
        row.variants[2] =
            (bench_variant){.name = "declining mode", .run = run_add, .ctx = &declined};
        row.variants[3] = (bench_variant){.name = "profiler", .run = run_add, .ctx = &profiled};
        bench_measure(&row);
    }
    etch_mode_free(declining);
    etch_mode_free(passing);
}
