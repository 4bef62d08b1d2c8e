/* The rows of bench/models.c, eager, compiled and compiled with relaxed numerics, in f32 and bf16.
 * Where ETCH_BENCH_MODELS names a folder, each row's weights, input and result are written into it,
 * so that peers compute the same and are compared. */
#include "bench.h"
#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a row's variants run. */
typedef struct model_job {
    const model_row *row;
    net net;
    etch_function *strict, *relaxed;
    etch_tensor *x;
} model_job;

static etch_tensor *forward(model_job *j) {
    j->net.next = 0;
    return j->row->forward(&j->net, j->x);
}

static ETCH_FN_N(body, ctx, in, nin, out, nout) {
    out[0] = forward(ctx);
    return out[0] ? ETCH_OK : etch_last_status();
}

static etch_tensor *call(model_job *j, etch_function *f) {
    etch_tensor *out = NULL;
    if (etch_call_n(f, &j->x, 1, &out, 1) != ETCH_OK) bench_fail(j->row->name);
    return out;
}

static void run_eager(void *ctx, int64_t calls) {
    for (int64_t i = 0; i < calls; i++)
        ETCH_SCOPE {
            if (!forward(ctx)) bench_fail("an eager model");
        }
}

static void run_strict(void *ctx, int64_t calls) {
    for (int64_t i = 0; i < calls; i++)
        ETCH_SCOPE { call(ctx, ((model_job *)ctx)->strict); }
}

static void run_relaxed(void *ctx, int64_t calls) {
    for (int64_t i = 0; i < calls; i++)
        ETCH_SCOPE { call(ctx, ((model_job *)ctx)->relaxed); }
}

/* "1x128x384", of decode the keys. */
static void describe(const model_row *row, char *text, size_t room) {
    int at = 0;
    if (row->length) at = snprintf(text, room, "%lld", (long long)row->length);
    for (int d = 0; !row->length && d < 4 && row->sizes[d]; d++)
        at +=
            snprintf(text + at, room - (size_t)at, d ? "x%lld" : "%lld", (long long)row->sizes[d]);
}

static void save(const model_job *j, const char *size, etch_tensor *result) {
    const char *folder = getenv("ETCH_BENCH_MODELS");
    if (!folder) return;
    char path[4200], names[MODEL_WEIGHTS][16];
    etch_named_tensor all[MODEL_WEIGHTS + 2] = {{"x", j->x}, {"y", result}};
    for (int i = 0; i < j->net.count; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        all[i + 2] = (etch_named_tensor){names[i], j->net.weights[i]};
    }
    snprintf(path, sizeof path, "%s/%s-%s-%s.safetensors", folder, j->row->name, size,
             etch_dtype_name(j->net.dtype));
    if (etch_safetensors_save(path, all, j->net.count + 2, NULL, 0) != ETCH_OK) bench_fail(path);
}

/* Milliseconds of the first call; the second one's result is compared. */
static double first_call(model_job *j, etch_function *f, etch_numerics numerics,
                         etch_tensor *expected) {
    double start = bench_now_us(), elapsed = 0;
    ETCH_SCOPE {
        call(j, f);
        elapsed = bench_now_us() - start;
        if (!bench_as_expected(expected, call(j, f), numerics)) bench_fail(j->row->name);
    }
    return elapsed * 1e-3;
}

static void begin(model_job *j, const model_row *row, etch_dtype dtype) {
    etch_manual_seed(0);
    *j = (model_job){.row = row};
    j->net = (net){row->layers, row->width, row->heads, row->inner, row->length, dtype, {0}, 0, 0};
    etch_shape sizes = {.n = 0};
    while (sizes.n < 4 && row->sizes[sizes.n]) sizes.v[sizes.n] = row->sizes[sizes.n], sizes.n++;
    j->x = etch_to(etch_randn(ETCH_F32, sizes), dtype);
    j->strict = etch_compile(body, .name = row->name, .fullgraph = true, .ctx = j);
    j->relaxed = etch_compile(body, .name = row->name, .fullgraph = true, .ctx = j,
                              .numerics = ETCH_RELAXED);
    if (!j->x || !j->strict || !j->relaxed) bench_fail(row->name);
}

static void end(model_job *j) {
    etch_function_free(j->strict);
    etch_function_free(j->relaxed);
    for (int i = 0; i < j->net.count; i++) etch_release(j->net.weights[i]);
}

static void measure(const model_row *row, etch_dtype dtype) {
    model_job j;
    char size[48];
    begin(&j, row, dtype);
    describe(row, size, sizeof size);
    etch_tensor *expected = NULL;
    ETCH_SCOPE { expected = etch_keep(forward(&j)); }
    if (!expected) bench_fail(row->name);
    save(&j, size, expected);
    bench_row r = {
        .workload = row->name, .size = size, .dtype = etch_dtype_name(dtype), .count = 3};
    double strict = first_call(&j, j.strict, ETCH_STRICT, expected);
    double relaxed = first_call(&j, j.relaxed, ETCH_RELAXED, expected);
    r.variants[0] = (bench_variant){.name = "eager", .run = run_eager, .ctx = &j};
    r.variants[1] =
        (bench_variant){.name = "compiled", .run = run_strict, .ctx = &j, .first_call_ms = strict};
    r.variants[2] =
        (bench_variant){.name = "relaxed", .run = run_relaxed, .ctx = &j, .first_call_ms = relaxed};
    r.variants[1].compile_ms = strict;
    bench_measure(&r);
    end(&j);
}

void bench_models(void) {
    for (const model_row *row = model_rows; row->name; row++)
        for (int half = 0; half < 2 && bench_named(row->name); half++)
            ETCH_SCOPE { measure(row, half ? ETCH_BF16 : ETCH_F32); }
}
