/* Whole functions: eager, compiled (the seed rows relaxed as well), and beside them a bound of
 * the machine: for memory-bound rows a plain copy that moves the same bytes, for the seed rows
 * their ten products alone. */
#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

etch_tensor *bench_seed(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = etch_mm(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

/* tanh(x * y + 1) * sigmoid(x) - exp(-y * y) */
etch_tensor *bench_chain(etch_tensor *x, etch_tensor *y) {
    etch_tensor *product = etch_mul(x, y);
    etch_tensor *shifted = etch_add_scalar(product, 1.0);
    etch_tensor *left = etch_tanh(shifted);
    etch_tensor *gate = etch_sigmoid(x);
    etch_tensor *gated = etch_mul(left, gate);
    etch_tensor *negative = etch_neg(y);
    etch_tensor *square = etch_mul(negative, y);
    etch_tensor *bell = etch_exp(square);
    return etch_sub(gated, bell);
}

/* (x * 2 + y) * x - y */
static etch_tensor *cheap(etch_tensor *x, etch_tensor *y) {
    etch_tensor *twice = etch_mul_scalar(x, 2.0);
    etch_tensor *sum = etch_add(twice, y);
    etch_tensor *product = etch_mul(sum, x);
    return etch_sub(product, y);
}

/* x * rsqrt(mean(x * x, -1) + 1e-5) * y */
static etch_tensor *rms(etch_tensor *x, etch_tensor *y) {
    etch_tensor *square = etch_mul(x, x);
    etch_tensor *mean = etch_mean_dim(square, ETCH_DIMS(-1), true);
    etch_tensor *shifted = etch_add_scalar(mean, 1e-5);
    etch_tensor *factor = etch_rsqrt(shifted);
    etch_tensor *scaled = etch_mul(x, factor);
    return etch_mul(scaled, y);
}

static etch_tensor *colsum(etch_tensor *x, etch_tensor *y) {
    etch_tensor *product = etch_mul(x, y);
    return etch_sum_dim(product, ETCH_DIMS(0), false);
}

etch_tensor *bench_allsum(etch_tensor *x, etch_tensor *y) {
    etch_tensor *product = etch_mul(x, y);
    return etch_sum(product);
}

static etch_tensor *tiny(etch_tensor *x, etch_tensor *y) {
    etch_tensor *sum = etch_add(x, y);
    return etch_relu(sum);
}

etch_tensor *bench_scaled(int64_t n) {
    etch_tensor *w = etch_randn(ETCH_F32, ETCH_SHAPE(n, n));
    return etch_div_scalar(w, sqrt((double)n));
}

/* What the variants of one row work on. */
typedef struct job {
    etch_fn2 body;
    etch_function *f;
    etch_tensor *x, *y;
    char *from, *to;
    size_t bytes;
} job;

static void run_eager(void *ctx, int64_t calls) {
    job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        ETCH_SCOPE { j->body(j->x, j->y); }
    }
}

static void run_compiled(void *ctx, int64_t calls) {
    job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        ETCH_SCOPE { etch_call(j->f, j->x, j->y); }
    }
}

static void run_products(void *ctx, int64_t calls) {
    job *j = ctx;
    for (int64_t i = 0; i < 10 * calls; i++) {
        ETCH_SCOPE { etch_mm(j->x, j->y); }
    }
}

enum { MAX_COPIERS = 64 };

/* One thread's part of a copy. */
typedef struct part {
    pthread_t thread;
    char *to;
    const char *from;
    size_t bytes;
    int64_t calls;
} part;

static void *copy_part(void *arg) {
    part *p = arg;
    for (int64_t i = 0; i < p->calls; i++) {
        memcpy(p->to, p->from, p->bytes);
        __asm__ volatile("" : : "r"(p->to) : "memory");
    }
    return NULL;
}

/* The same number of threads as the library uses, each with its own range. */
static void run_copy(void *ctx, int64_t calls) {
    job *j = ctx;
    part parts[MAX_COPIERS];
    int n = etch_num_threads();
    if (n > MAX_COPIERS) n = MAX_COPIERS;
    for (int i = 0; i < n; i++) {
        size_t begin = j->bytes * (size_t)i / (size_t)n,
               end = j->bytes * (size_t)(i + 1) / (size_t)n;
        parts[i] = (part){0, j->to + begin, j->from + begin, end - begin, calls};
    }
    for (int i = 1; i < n; i++)
        if (pthread_create(&parts[i].thread, NULL, copy_part, &parts[i]) != 0) bench_fail("copy");
    copy_part(&parts[0]);
    for (int i = 1; i < n; i++) pthread_join(parts[i].thread, NULL);
}

/* The eager result alone: what it needed on the way is free again for the calls that follow. */
static etch_tensor *eager_result(const job *j) {
    etch_tensor *result = NULL;
    ETCH_SCOPE { result = etch_keep(j->body(j->x, j->y)); }
    return result;
}

/* First call of the compiled function, in milliseconds; the second one must
 * give the eager result. */
static double first_call(job *j, const char *workload, etch_numerics numerics) {
    double elapsed = 0;
    ETCH_SCOPE {
        etch_tensor *expected = eager_result(j);
        ETCH_SCOPE {
            double start = bench_now_us();
            etch_call(j->f, j->x, j->y);
            elapsed = bench_now_us() - start;
        }
        etch_tensor *compiled = etch_call(j->f, j->x, j->y);
        if (!compiled) bench_fail(workload);
        if (!bench_as_expected(expected, compiled, numerics))
            bench_fail("compiled differs from eager");
    }
    return elapsed * 1e-3;
}

/* A workload's first row compiles its kernels, which the other sizes use as well. */
static double compile_ms(const char *workload, double first_call) {
    static struct {
        const char *workload;
        double ms;
    } known[16];
    int i = 0;
    while (i < 15 && known[i].workload && strcmp(known[i].workload, workload) != 0) i++;
    if (!known[i].workload) known[i].workload = workload, known[i].ms = first_call;
    return known[i].ms;
}

/* The seed program's other variants; `relaxed` is theirs to fill. */
static void add_seed_variants(bench_row *row, job *j, job *relaxed) {
    *relaxed = *j;
    relaxed->f = etch_compile(j->body, .name = "seed_relaxed", .numerics = ETCH_RELAXED);
    double first = first_call(relaxed, "seed", ETCH_RELAXED);
    row->variants[row->count++] = (bench_variant){
        .name = "relaxed", .run = run_compiled, .ctx = relaxed, .first_call_ms = first};
    row->variants[row->count++] =
        (bench_variant){.name = "ten products alone", .run = run_products, .ctx = j};
}

/* copy_bytes: half of what the row moves, since a copy reads and writes; 0: no copy. */
static void run_row(const char *workload, etch_fn2 body, job *j, size_t copy_bytes) {
    char size[48];
    int n = 0;
    etch_shape s = etch_sizes(j->x);
    for (int d = 0; d < s.n; d++)
        n += snprintf(size + n, sizeof size - (size_t)n, d ? "x%lld" : "%lld", (long long)s.v[d]);
    j->body = body, j->f = etch_compile(body, .name = workload);
    double first = first_call(j, workload, ETCH_STRICT);
    bench_row row = {.workload = workload, .size = size, .count = 2};
    row.variants[0] = (bench_variant){.name = "eager", .run = run_eager, .ctx = j};
    row.variants[1] =
        (bench_variant){.name = "compiled", .run = run_compiled, .ctx = j, .first_call_ms = first};
    row.variants[1].compile_ms = compile_ms(workload, first);
    job relaxed = {.f = NULL};
    if (body == bench_seed) add_seed_variants(&row, j, &relaxed);
    if (copy_bytes) {
        j->bytes = copy_bytes, j->from = calloc(1, copy_bytes), j->to = malloc(copy_bytes);
        if (!j->from || !j->to) bench_fail("copy buffers");
        memset(j->from, 1, copy_bytes), memset(j->to, 2, copy_bytes);
        row.variants[row.count++] = (bench_variant){.name = "copy", .run = run_copy, .ctx = j};
    }
    bench_measure(&row);
    etch_function_free(j->f);
    etch_function_free(relaxed.f);
    free(j->from), free(j->to);
    j->from = j->to = NULL;
}

typedef struct pointwise {
    const char *name;
    etch_fn2 body;
    size_t arrays; /* read or written once each */
} pointwise;

static const pointwise pointwise_rows[] = {
    {"cheap", cheap, 3},   {"chain", bench_chain, 3},   {"rms", rms, 3},
    {"colsum", colsum, 2}, {"allsum", bench_allsum, 2},
};

etch_fn2 bench_body(const char *name, size_t *arrays) {
    *arrays = 0;
    if (strcmp(name, "tiny") == 0) return tiny;
    for (size_t i = 0; i < sizeof pointwise_rows / sizeof pointwise_rows[0]; i++) {
        if (strcmp(pointwise_rows[i].name, name) != 0) continue;
        *arrays = pointwise_rows[i].arrays;
        return pointwise_rows[i].body;
    }
    return NULL;
}

static void bench_pointwise(int64_t n) {
    ETCH_SCOPE {
        job j = {.x = etch_randn(ETCH_F32, ETCH_SHAPE(n, n)),
                 .y = etch_randn(ETCH_F32, ETCH_SHAPE(n, n))};
        size_t array = (size_t)(n * n) * sizeof(float);
        for (size_t i = 0; i < sizeof pointwise_rows / sizeof pointwise_rows[0]; i++) {
            const pointwise *p = &pointwise_rows[i];
            if (bench_selected(p->name)) run_row(p->name, p->body, &j, array * p->arrays / 2);
        }
    }
}

void bench_workloads(void) {
    static const int64_t seed_sizes[] = {10, 64, 256, 512, 1024};
    static const int64_t sizes[] = {64, 1024, 4096};
    etch_manual_seed(0);
    for (size_t i = 0; i < sizeof seed_sizes / sizeof *seed_sizes && bench_selected("seed"); i++) {
        ETCH_SCOPE {
            int64_t n = seed_sizes[i];
            job j = {.x = etch_randn(ETCH_F32, ETCH_SHAPE(n, n)), .y = bench_scaled(n)};
            run_row("seed", bench_seed, &j, 0);
        }
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) bench_pointwise(sizes[i]);
    if (!bench_selected("tiny")) return;
    ETCH_SCOPE {
        job j = {.x = etch_randn(ETCH_F32, ETCH_SHAPE(10)),
                 .y = etch_randn(ETCH_F32, ETCH_SHAPE(10))};
        run_row("tiny", tiny, &j, 0);
    }
}
