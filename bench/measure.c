/* Timing in interleaved rounds, and the CSV.
 *
 * A served row (bench_serve) is described on standard output, then samples are asked for by number:
 *
 *   > @row,seed,64x64,f32,cpu        < 1          one sample of variant 1, in microseconds a call
 *   > @variant,2,eager,0.00          > @us,46.1
 *   > @variant,2,compiled,85.2       < next       the next row
 *   > @ready
 * A variant has its threads and the milliseconds of its first call. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool serving;
static clockid_t which_clock = CLOCK_MONOTONIC;
static const double sample_us = 10000; /* a timed sample lasts at least this long */

double bench_now_us(void) {
    struct timespec t;
    clock_gettime(which_clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Microseconds for `calls` calls, on the variant's number of threads. */
static double run_timed(bench_variant *v, int64_t calls) {
    int before = etch_num_threads();
    if (v->threads) etch_set_num_threads(v->threads);
    double start = bench_now_us();
    v->run(v->ctx, calls);
    if (etch_current_device() != ETCH_CPU && etch_synchronize(etch_current_device()) != ETCH_OK)
        bench_fail("synchronize");
    double elapsed = bench_now_us() - start;
    if (v->threads) etch_set_num_threads(before);
    return elapsed;
}

/* Calls that fill a sample. Warms the variant up on the way. */
static int64_t calibrate(bench_variant *v) {
    int64_t calls = 1;
    run_timed(v, 1);
    for (;;) {
        double elapsed = run_timed(v, calls);
        if (elapsed >= sample_us) return calls;
        double factor = elapsed > 0 ? sample_us / elapsed * 1.2 : 16;
        calls = factor > 16 ? calls * 16 : (int64_t)((double)calls * factor) + 1;
    }
}

static void print_start(const bench_row *row, int threads, const char *variant, double median_us,
                        double first_call_ms, double speedup) {
    printf("%s,%s,%s,%s,%d,%s,%.4f,", row->workload, row->size, row->dtype ? row->dtype : "f32",
           row->device ? row->device : "cpu", threads, variant, median_us);
    if (first_call_ms > 0) printf("%.2f", first_call_ms);
    printf(",");
    if (speedup > 0) printf("%.2f", speedup);
    printf(",");
}

void bench_print_on(const char *device, const char *workload, const char *size, int threads,
                    const char *variant, double median_us, double first_call_ms, double speedup) {
    bench_row row = {.workload = workload, .size = size, .device = device};
    print_start(&row, threads, variant, median_us, first_call_ms, speedup);
    printf("\n");
    fflush(stdout);
}

void bench_print(const char *workload, const char *size, int threads, const char *variant,
                 double median_us, double first_call_ms, double speedup) {
    bench_print_on("cpu", workload, size, threads, variant, median_us, first_call_ms, speedup);
}

/* Each call saves what it is faster than one of the first variant. */
static void print_breakeven(double compile_us, double eager_us, double compiled_us) {
    double saved = eager_us - compiled_us;
    if (compile_us > 0 && saved > eager_us * 0.01) printf("%.0f", compile_us / saved + 0.5);
    else if (compile_us > 0) printf("never");
    printf("\n");
    fflush(stdout);
}

void bench_use_processor_time(void) { which_clock = CLOCK_PROCESS_CPUTIME_ID; }

void bench_serve(bool processor_time) {
    serving = true;
    if (processor_time) bench_use_processor_time();
}

/* Half a millisecond and more of the same work first: another program ran just before. */
static double sample(bench_variant *v, int64_t calls) {
    run_timed(v, calls / 16 + 1);
    return run_timed(v, calls) / (double)calls;
}

static void describe(const bench_row *row) {
    printf("@row,%s,%s,%s,%s\n", row->workload, row->size, row->dtype ? row->dtype : "f32",
           row->device ? row->device : "cpu");
    for (int i = 0; i < row->count; i++) {
        const bench_variant *v = &row->variants[i];
        printf("@variant,%d,%s,%.2f\n", v->threads ? v->threads : etch_num_threads(), v->name,
               v->first_call_ms);
    }
    printf("@ready\n");
    fflush(stdout);
}

/* Samples until the next row is asked for; ends the program with its input. */
static void serve(bench_row *row, const int64_t *calls) {
    char line[64];
    describe(row);
    while (fgets(line, sizeof line, stdin)) {
        int v = atoi(line);
        if (strcmp(line, "next\n") == 0) return;
        if (v < 0 || v >= row->count) break;
        printf("@us,%.4f\n", sample(&row->variants[v], calls[v]));
        fflush(stdout);
    }
    exit(0);
}

void bench_measure(bench_row *row) {
    double times[BENCH_MAX_VARIANTS][BENCH_SHORT_ROUNDS];
    int rounds = row->best ? BENCH_SHORT_ROUNDS : BENCH_ROUNDS;
    int64_t calls[BENCH_MAX_VARIANTS];
    for (int v = 0; v < row->count; v++) calls[v] = calibrate(&row->variants[v]);
    if (serving) {
        serve(row, calls);
        return;
    }
    for (int v = 0; v < row->count && row->best; v++) calls[v] = calls[v] / 16 + 1;
    for (int r = 0; r < rounds; r++) {
        for (int v = 0; v < row->count; v++)
            times[v][r] = run_timed(&row->variants[v], calls[v]) / (double)calls[v];
    }
    double divisor = row->divisor > 0 ? row->divisor : 1;
    for (int i = 0; i < row->count; i++) {
        bench_variant *v = &row->variants[i];
        v->median_us = bench_median(times[i], rounds) / divisor;
        v->best_us = times[i][0] / divisor; /* sorted by now */
        if (row->best) v->median_us = v->best_us;
        double first = row->variants[0].median_us;
        print_start(row, v->threads ? v->threads : etch_num_threads(), v->name, v->median_us,
                    v->first_call_ms, first / v->median_us);
        print_breakeven(v->compile_ms * 1e3, first, v->median_us);
    }
}

bool bench_as_expected(etch_tensor *expected, etch_tensor *got, etch_numerics numerics) {
    if (numerics == ETCH_STRICT) return etch_bitwise_equal(expected, got);
    double bound = etch_dtype_size(etch_dtype_of(got)) < 4 ? 3e-2 : 1e-4;
    etch_tensor *want = etch_to(expected, ETCH_F32);
    etch_tensor *error = etch_sub(etch_to(got, ETCH_F32), want);
    return sqrt(etch_item(etch_sum(etch_square(error)))) <=
           bound * sqrt(etch_item(etch_sum(etch_square(want))));
}

void bench_run_eager(void *ctx, int64_t calls) {
    bench_job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        ETCH_SCOPE { j->body(j->x, j->y); }
    }
}

void bench_run_compiled(void *ctx, int64_t calls) {
    bench_job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        ETCH_SCOPE {
            if (!etch_call(j->f, j->x, j->y)) bench_fail("a compiled call");
        }
    }
}
