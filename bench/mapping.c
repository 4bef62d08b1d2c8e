/* Functions of one sample over a batch: by a loop, mapped (etch_vmap), and both compiled. All in
 * turn, the loop first: `speedup` is over it. */
#include "bench.h"

#include <stdio.h>

enum { SAMPLES = 256, WIDTH = 32 };

/* What a variant runs, on x of [samples, WIDTH] and w of [WIDTH, WIDTH]. */
typedef struct mapped_job {
    etch_fn2 loop;         /* or */
    etch_function *mapped; /* which may stand in a function that is compiled, or not: */
    etch_function *compiled;
    etch_tensor *x, *w;
} mapped_job;

/* ---- of one sample ---- */

static etch_tensor *wave(etch_tensor *x, etch_tensor *w) {
    (void)w;
    etch_tensor *s = etch_sin(x);
    etch_tensor *p = etch_mul(s, x);
    return etch_tanh(p);
}

static etch_tensor *loss(etch_tensor *x, etch_tensor *w) {
    etch_tensor *h = etch_tanh(etch_mv(w, x));
    etch_tensor *apart = etch_sub(h, x);
    return etch_mean(etch_square(apart));
}

static etch_tensor *gradient(etch_tensor *x, etch_tensor *w) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(w), true), *g = NULL;
    etch_tensor *l = loss(x, leaf);
    return etch_grad(&l, 1, &leaf, 1, NULL, NULL, &g) == ETCH_OK ? g : NULL;
}

/* ---- of all ---- */

static etch_tensor *over_samples(etch_fn2 one, etch_tensor *x, etch_tensor *w) {
    etch_tensor *y[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) y[i] = one(etch_select(x, 0, i), w);
    return etch_stack(y, SAMPLES, 0);
}
static etch_tensor *waves(etch_tensor *x, etch_tensor *w) { return over_samples(wave, x, w); }
static etch_tensor *losses(etch_tensor *x, etch_tensor *w) { return over_samples(loss, x, w); }
static etch_tensor *gradients(etch_tensor *x, etch_tensor *w) {
    return over_samples(gradient, x, w);
}

static ETCH_FN_N(calls_mapped, ctx, in, nin, out, nout) {
    return etch_call_n(ctx, in, nin, out, nout);
}

static etch_tensor *result(const mapped_job *j) {
    etch_function *f = j->compiled ? j->compiled : j->mapped;
    etch_tensor *y = f ? etch_call(f, j->x, j->w) : j->loop(j->x, j->w);
    if (!y) bench_fail("vmap");
    return y;
}

static void run_mapped(void *ctx, int64_t calls) {
    for (int64_t i = 0; i < calls; i++)
        ETCH_SCOPE { result(ctx); }
}

/* ---- rows ---- */

static const struct {
    const char *name;
    etch_fn2 one, loop;
} functions[] = {
    {"pointwise", wave, waves}, {"loss", loss, losses}, {"gradient", gradient, gradients}};

/* Compiles, and ends the program where results are not those of the loop. */
static double first_call_ms(const mapped_job *j, etch_tensor *expected) {
    double start = bench_now_us();
    etch_tensor *first = result(j);
    double took = (bench_now_us() - start) * 1e-3;
    if (!etch_allclose(first, expected, 1e-4, 1e-5, false)) bench_fail("vmap: other results");
    return took;
}

static void measure(int i) {
    static const char *const names[] = {"loop", "loop compiled", "vmap", "vmap compiled"};
    char size[64];
    snprintf(size, sizeof size, "%s %dx%d", functions[i].name, SAMPLES, WIDTH);
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(SAMPLES, WIDTH)), *w = bench_scaled(WIDTH);
        etch_tensor *expected = functions[i].loop(x, w);
        etch_function *f = etch_vmap(functions[i].one, ETCH_DIMS(0, ETCH_UNMAPPED), ETCH_DIMS(0));
        etch_function *g = etch_compile_fn2(functions[i].loop, NULL);
        etch_function *h = etch_compile(calls_mapped, .ctx = f, .fullgraph = true);
        mapped_job jobs[] = {{functions[i].loop, NULL, NULL, x, w},
                             {functions[i].loop, NULL, g, x, w},
                             {NULL, f, NULL, x, w},
                             {NULL, f, h, x, w}};
        bench_row row = {.workload = "vmap", .size = size, .count = 4};
        for (int k = 0; k < row.count; k++) {
            row.variants[k] = (bench_variant){.name = names[k], .run = run_mapped, .ctx = &jobs[k]};
            double ms = first_call_ms(&jobs[k], expected);
            if (jobs[k].compiled) row.variants[k].first_call_ms = ms;
        }
        bench_measure(&row);
        etch_function_free(g), etch_function_free(h), etch_function_free(f);
    }
}

void bench_mapping(void) {
    for (int i = 0; i < (int)(sizeof functions / sizeof *functions) && bench_selected("vmap"); i++)
        measure(i);
}
