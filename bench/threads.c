/* Two threads that call one compiled function, against one thread that does: how many calls both
 * make in a time, over how many one makes. 2 is ideal. Each thread has arguments of its own, or
 * both have the same. Beside it the same ratio for bare loops that share nothing, which is what the
 * machine itself gives (two processors may be one core, and others may use them).
 *
 * The ratio is printed by the clock and by the threads' own processor time. The second one does not
 * see what other processes take away; it sees cache lines that wander between threads, and does not
 * see waiting for a lock (there is none: tests/test_steady.c). The library's own pool is off: each
 * call stays on its thread. */
#include "bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

enum { THREADS = 2, SAMPLES = 80, TURNS = 2 };

/* Microseconds a call: by the clock, and of processor time. */
typedef struct spent {
    double wall, cpu;
} spent;

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    void (*run)(void *ctx, int64_t calls);
    void *ctx;
    int64_t calls;
    int number;
    double begin[SAMPLES], end[SAMPLES], cpu[SAMPLES];
} worker;

static double cpu_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Each on a processor of its own: else both may share one for longer than a sample lasts. */
static void pin(int number) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && number-- == 0) CPU_SET(cpu, &one);
    if (CPU_COUNT(&one)) pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static void *work(void *arg) {
    worker *w = arg;
    pin(w->number);
    ETCH_SCOPE {
        w->run(w->ctx, w->calls);
        for (int i = 0; i < SAMPLES; i++) {
            pthread_barrier_wait(w->start);
            w->cpu[i] = cpu_now_us();
            w->begin[i] = bench_now_us();
            w->run(w->ctx, w->calls);
            w->end[i] = bench_now_us();
            w->cpu[i] = cpu_now_us() - w->cpu[i];
        }
    }
    return NULL;
}

/* The best of the samples, each from the first thread's beginning to the last one's end. What
 * another process takes away is nothing of the library's. */
static void keep_best(spent *best, const worker *w, int n) {
    for (int i = 0; i < SAMPLES; i++) {
        double begin = 1e300, end = 0, cpu = 0;
        for (int k = 0; k < n; k++) {
            if (w[k].begin[i] < begin) begin = w[k].begin[i];
            if (w[k].end[i] > end) end = w[k].end[i];
            if (w[k].cpu[i] > cpu) cpu = w[k].cpu[i];
        }
        double calls = (double)w[0].calls;
        if ((end - begin) / calls < best->wall) best->wall = (end - begin) / calls;
        if (cpu / calls < best->cpu) best->cpu = cpu / calls;
    }
}

static void together(void (*run)(void *, int64_t), void *const *ctx, int n, int64_t calls,
                     spent *best) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    worker w[THREADS];
    for (int i = 0; i < n; i++) {
        w[i] = (worker){.start = &start, .run = run, .ctx = ctx[i], .calls = calls, .number = i};
        if (pthread_create(&w[i].thread, NULL, work, &w[i]) != 0) bench_fail("threads");
    }
    for (int i = 0; i < n; i++) pthread_join(w[i].thread, NULL);
    keep_best(best, w, n);
    pthread_barrier_destroy(&start);
}

static void measure(const char *workload, const char *size, const char *name,
                    void (*run)(void *, int64_t), void *const *ctx) {
    int64_t calls = 1;
    for (double start = bench_now_us(); bench_now_us() - start < 1000; calls++) run(ctx[0], 1);
    spent one = {1e30, 1e30}, two = {1e30, 1e30};
    for (int i = 0; i < TURNS; i++) {
        together(run, ctx, 1, calls, &one);
        together(run, ctx, THREADS, calls, &two);
    }
    char variant[64];
    bench_print(workload, size, 1, name, one.wall, 0, 1);
    bench_print(workload, size, THREADS, name, two.wall / THREADS, 0,
                THREADS * one.wall / two.wall);
    snprintf(variant, sizeof variant, "%s (processor time)", name);
    bench_print(workload, size, THREADS, variant, two.cpu / THREADS, 0,
                THREADS * one.cpu / two.cpu);
}

typedef struct job {
    etch_function *f;
    etch_tensor *x, *y;
} job;

static void call(void *ctx, int64_t calls) {
    const job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        ETCH_SCOPE {
            if (!etch_call(j->f, j->x, j->y)) bench_fail("threads");
        }
    }
}

static etch_tensor *add(etch_tensor *x, etch_tensor *y) { return etch_add(x, y); }

typedef struct shared_row {
    const char *size;
    etch_fn2 body;
    int64_t n;
    etch_dynamic dynamic;
} shared_row;

static const shared_row rows[] = {
    {"one operator 4x4", add, 4, ETCH_DYNAMIC_AUTO},
    {"one operator 4x4 dynamic", add, 4, ETCH_DYNAMIC_ON},
    {"seed 10x10", bench_seed, 10, ETCH_DYNAMIC_AUTO},
    {"seed 64x64", bench_seed, 64, ETCH_DYNAMIC_AUTO},
    {"chain 64x64", bench_chain, 64, ETCH_DYNAMIC_AUTO},
    {"chain 256x256", bench_chain, 256, ETCH_DYNAMIC_AUTO},
};

static void measure_row(const shared_row *r) {
    ETCH_SCOPE {
        etch_function *f = etch_compile_fn2(
            r->body, &(etch_compile_options){.struct_size = sizeof(etch_compile_options),
                                             .name = "threads",
                                             .dynamic = r->dynamic});
        job jobs[THREADS];
        for (int i = 0; i < THREADS; i++)
            jobs[i] = (job){f, etch_randn(ETCH_F32, ETCH_SHAPE(r->n, r->n)), bench_scaled(r->n)};
        call(&jobs[0], 3);
        void *private[THREADS] = {&jobs[0], &jobs[1]}, *shared[THREADS] = {&jobs[0], &jobs[0]};
        measure("two threads", r->size, "own arguments", call, private);
        measure("two threads", r->size, "shared arguments", call, shared);
        etch_function_free(f);
    }
}

void bench_threads(void) {
    if (!bench_selected("two threads")) return;
    int before = etch_num_threads();
    etch_set_num_threads(1);
    void *nothing[THREADS] = {NULL, NULL};
    measure("two threads", "bare cursor", "bare loop", bench_bare_cursor, nothing);
    measure("two threads", "bare floats", "bare loop", bench_bare_floats, nothing);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) measure_row(&rows[i]);
    etch_set_num_threads(before);
}
