/* What a call costs before any data is touched.
 *
 * Kernels are taken out by making operators dead: a body whose chain of operators dies in an inner
 * scope and does not reach the result. The cursor compares every one of them, the plan keeps one
 * kernel. Two such bodies of different length give the cost of one operator by subtraction. */
#include "bench.h"

static etch_tensor *one_operator(etch_tensor *x, etch_tensor *y) { return etch_add(x, y); }

/* Five operators whose results die here. */
static void five_dead(etch_tensor *x, etch_tensor *y) {
    ETCH_SCOPE {
        etch_tensor *a = etch_mul(x, y);
        etch_tensor *b = etch_add(a, x);
        etch_tensor *c = etch_neg(b);
        etch_tensor *d = etch_maximum(c, y);
        etch_relu(d);
    }
}

static etch_tensor *dead_body(etch_tensor *x, etch_tensor *y, int rounds) {
    for (int i = 0; i < rounds; i++) five_dead(x, y);
    return etch_relu(x);
}
static etch_tensor *dead_25(etch_tensor *x, etch_tensor *y) { return dead_body(x, y, 5); }
static etch_tensor *dead_125(etch_tensor *x, etch_tensor *y) { return dead_body(x, y, 25); }

/* Eager beside compiled; returns the compiled median. */
static double overhead(const char *workload, const char *size, etch_fn2 body, etch_shape shape) {
    double median = 0;
    ETCH_SCOPE {
        bench_job j = {body, etch_compile_fn2(body, NULL), etch_randn(ETCH_F32, shape),
                       etch_randn(ETCH_F32, shape)};
        bench_row row = {.workload = workload, .size = size, .count = 2};
        row.variants[0] = (bench_variant){.name = "eager", .run = bench_run_eager, .ctx = &j};
        row.variants[1] = (bench_variant){.name = "compiled", .run = bench_run_compiled, .ctx = &j};
        bench_measure(&row);
        median = row.variants[1].median_us;
        etch_function_free(j.f);
    }
    return median;
}

/* One cheap operator, and as many guarded arguments as are passed: what an argument more costs
 * is its checks and guards. */
static etch_status first_only(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                              int nout) {
    (void)ctx, (void)nin, (void)nout;
    out[0] = etch_relu(in[0]);
    return out[0] ? ETCH_OK : etch_last_status();
}

enum { MANY = 8 };

typedef struct guard_job {
    etch_function *f;
    etch_tensor *in[MANY];
    int nin;
} guard_job;

static void run_guards(void *ctx, int64_t calls) {
    guard_job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        ETCH_SCOPE {
            etch_tensor *out;
            if (etch_call_n(j->f, j->in, j->nin, &out, 1) != ETCH_OK) bench_fail("guards");
        }
    }
}

static void bench_guards(void) {
    ETCH_SCOPE {
        guard_job one = {.f = etch_compile(first_only), .nin = 1};
        guard_job many = {.f = etch_compile(first_only), .nin = MANY};
        for (int i = 0; i < MANY; i++)
            one.in[i] = many.in[i] = etch_randn(ETCH_F32, ETCH_SHAPE(1, 2, 3));
        bench_row row = {.workload = "overhead guards", .size = "1x2x3", .count = 2};
        row.best = true;
        row.variants[0] = (bench_variant){.name = "1 argument", .run = run_guards, .ctx = &one};
        row.variants[1] = (bench_variant){.name = "8 arguments", .run = run_guards, .ctx = &many};
        bench_measure(&row);
        double each = (row.variants[1].best_us - row.variants[0].best_us) / (MANY - 1);
        bench_print("overhead guards", "1x2x3", etch_num_threads(), "eight tensors", MANY * each, 0,
                    0);
        etch_function_free(one.f), etch_function_free(many.f);
    }
}

static void bench_cursor(void) {
    double short_call = overhead("overhead 25 dead operators", "1", dead_25, ETCH_SHAPE(1));
    double long_call = overhead("overhead 125 dead operators", "1", dead_125, ETCH_SHAPE(1));
    bench_print("overhead cursor", "one operator", etch_num_threads(), "compiled",
                (long_call - short_call) / 100, 0, 0);
    bench_row row = {.workload = "overhead cursor", .size = "one operator", .count = 1};
    row.divisor = 25;
    row.variants[0] = (bench_variant){.name = "bare loop", .run = bench_bare_cursor};
    bench_measure(&row);
}

void bench_overheads(void) {
    if (bench_selected("overhead one operator"))
        overhead("overhead one operator", "10", one_operator, ETCH_SHAPE(10));
    if (bench_selected("overhead 25 operators"))
        overhead("overhead 25 operators", "1x1", bench_seed, ETCH_SHAPE(1, 1));
    if (bench_selected("overhead cursor")) bench_cursor();
    if (bench_selected("overhead guards")) bench_guards();
}
