/* Whole functions on a GPU: eager, compiled, compiled in modes reduce-overhead and max-autotune
 * (with products: the three relaxed as well), and for memory-bound rows a plain copy on the device
 * that moves the same bytes. Samples of many calls, each ended by a synchronisation. Memory-bound
 * rows go round several sets of inputs, together larger than the second-level cache. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

enum { SETS = 4 };

typedef struct job {
    etch_fn2 body;
    etch_function *f;
    etch_tensor *x[SETS], *y[SETS];
    int sets, next;
} job;

static void run_eager(void *ctx, int64_t calls) {
    job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        j->next = (j->next + 1) % j->sets;
        ETCH_SCOPE { j->body(j->x[j->next], j->y[j->next]); }
    }
}

static void run_compiled(void *ctx, int64_t calls) {
    job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        j->next = (j->next + 1) % j->sets;
        ETCH_SCOPE { etch_call(j->f, j->x[j->next], j->y[j->next]); }
    }
}

static void run_copy(void *ctx, int64_t calls) {
    job *j = ctx;
    for (int64_t i = 0; i < calls; i++) {
        j->next = (j->next + 1) % j->sets;
        ETCH_SCOPE { etch_to_device(j->x[j->next], etch_current_device()); }
    }
}

static double first_call(job *j, const char *workload, etch_numerics numerics) {
    double elapsed = 0;
    ETCH_SCOPE {
        etch_tensor *expected = j->body(j->x[0], j->y[0]);
        etch_synchronize(etch_current_device());
        double start = bench_now_us();
        etch_call(j->f, j->x[0], j->y[0]);
        etch_synchronize(etch_current_device());
        elapsed = bench_now_us() - start;
        etch_tensor *compiled = etch_call(j->f, j->x[0], j->y[0]);
        if (!compiled) bench_fail(workload);
        if (!bench_as_expected(expected, compiled, numerics))
            bench_fail("compiled differs from eager");
    }
    return elapsed * 1e-3;
}

const bench_form bench_forms[BENCH_FORMS] = {
    {"compiled", ETCH_MODE_DEFAULT, ETCH_STRICT},
    {"reduce-overhead", ETCH_MODE_REDUCE_OVERHEAD, ETCH_STRICT},
    {"max-autotune", ETCH_MODE_MAX_AUTOTUNE, ETCH_STRICT},
    {"relaxed", ETCH_MODE_DEFAULT, ETCH_RELAXED},
    {"reduce-overhead relaxed", ETCH_MODE_REDUCE_OVERHEAD, ETCH_RELAXED},
    {"max-autotune relaxed", ETCH_MODE_MAX_AUTOTUNE, ETCH_RELAXED}};

static bench_variant variant_of(const bench_form *form, const char *workload, job *j) {
    j->f = etch_compile(j->body, .name = workload, .mode = form->mode, .numerics = form->numerics);
    double first = first_call(j, workload, form->numerics);
    return (bench_variant){.name = form->name,
                           .run = run_compiled,
                           .ctx = j,
                           .first_call_ms = first,
                           .compile_ms = first};
}

/* copied: the arrays that the row moves, in halves of a copy's traffic; 0:
 * no copy, and products. */
static void run_row(const char *workload, etch_fn2 body, job *j, etch_dtype dtype, size_t copied) {
    char size[48];
    snprintf(size, sizeof size, "%lldx%lld", (long long)etch_size(j->x[0], 0),
             (long long)(etch_ndim(j->x[0]) > 1 ? etch_size(j->x[0], 1) : 1));
    bench_row row = {.workload = workload,
                     .size = size,
                     .dtype = etch_dtype_name(dtype),
                     .device = "cuda",
                     .count = 1};
    job jobs[BENCH_FORMS];
    int n = copied ? BENCH_STRICT_FORMS : BENCH_FORMS;
    j->body = body;
    row.variants[0] = (bench_variant){.name = "eager", .run = run_eager, .ctx = j};
    for (int i = 0; i < n; i++) {
        jobs[i] = *j;
        row.variants[row.count++] = variant_of(&bench_forms[i], workload, &jobs[i]);
    }
    char copy[48];
    snprintf(copy, sizeof copy, "copy of one array (row moves %zu/2)", copied);
    if (copied)
        row.variants[row.count++] = (bench_variant){.name = copy, .run = run_copy, .ctx = j};
    bench_measure(&row);
    for (int i = 0; i < n; i++) etch_function_free(jobs[i].f);
}

/* A layer: the bias is a row of the weight. */
static etch_tensor *layer(etch_tensor *x, etch_tensor *w) {
    return etch_gelu_with(etch_add(etch_mm(x, w), etch_select(w, 0, 0)), true);
}

static etch_tensor *softmax(etch_tensor *x, etch_tensor *y) {
    (void)y;
    return etch_softmax(x, -1);
}

static etch_tensor *layer_norm(etch_tensor *x, etch_tensor *y) {
    (void)y;
    return etch_layer_norm(x, ETCH_SHAPE(etch_size(x, 1)), ETCH_NONE, ETCH_NONE, 1e-5);
}

static void seed_row(int64_t n, etch_dtype dtype) {
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(n, n)), *w = bench_scaled(n);
        job j = {.x = {etch_to(x, dtype)}, .y = {etch_to(w, dtype)}, .sets = 1};
        run_row("seed", bench_seed, &j, dtype, 0);
    }
}

static void layer_row(int64_t n, etch_dtype dtype) {
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(n, n)), *w = bench_scaled(n);
        job j = {.x = {etch_to(x, dtype)}, .y = {etch_to(w, dtype)}, .sets = 1};
        run_row("layer", layer, &j, dtype, 0);
    }
}

static void memory_row(const char *name, etch_fn2 body, size_t arrays, int64_t n) {
    if (!bench_selected(name)) return;
    ETCH_SCOPE {
        job j = {.sets = SETS};
        for (int i = 0; i < SETS; i++) {
            j.x[i] = etch_randn(ETCH_F32, ETCH_SHAPE(n, n));
            j.y[i] = etch_randn(ETCH_F32, ETCH_SHAPE(n, n));
        }
        run_row(name, body, &j, ETCH_F32, arrays);
    }
}

void bench_device(void) {
    static const char *const names[] = {"cheap", "chain", "rms", "colsum", "allsum"};
    static const int64_t seeds[] = {10, 64, 256, 512, 1024, 4096}, sizes[] = {1024, 4096};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds && bench_selected("seed"); i++)
        seed_row(seeds[i], ETCH_F32);
    if (bench_selected("seed")) seed_row(1024, ETCH_BF16), seed_row(4096, ETCH_BF16);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes && bench_selected("layer"); s++)
        layer_row(sizes[s], ETCH_F32), layer_row(sizes[s], ETCH_BF16);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            size_t arrays = 0;
            etch_fn2 body = bench_body(names[i], &arrays);
            memory_row(names[i], body, arrays, sizes[s]);
        }
        memory_row("softmax", softmax, 2, sizes[s]);
        memory_row("layer_norm", layer_norm, 2, sizes[s]);
    }
    if (!bench_selected("tiny")) return;
    ETCH_SCOPE {
        size_t arrays;
        job j = {.x = {etch_randn(ETCH_F32, ETCH_SHAPE(10))},
                 .y = {etch_randn(ETCH_F32, ETCH_SHAPE(10))},
                 .sets = 1};
        run_row("tiny", bench_body("tiny", &arrays), &j, ETCH_F32, 0);
    }
}
