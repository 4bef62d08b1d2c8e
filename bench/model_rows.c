/* The rows of bench/models.c, eager and compiled: on the CPU, in f32 and bf16, also with relaxed
 * numerics; on a GPU, each in its dtype, in the modes reduce-overhead and max-autotune too. Where
 * ETCH_BENCH_MODELS names a folder, each row's weights, input and result are written into it, so
 * that peers compute the same and are compared. */
#include "bench.h"
#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct model_job {
    const model_row *row;
    net net;
    etch_tensor *x;
} model_job;

/* What a variant runs; f is NULL: eagerly. */
typedef struct form_job {
    model_job *model;
    etch_function *f;
} form_job;

static etch_tensor *forward(model_job *j) {
    j->net.next = 0;
    return j->row->forward(&j->net, j->x);
}

static ETCH_FN_N(body, ctx, in, nin, out, nout) {
    out[0] = forward(ctx);
    return out[0] ? ETCH_OK : etch_last_status();
}

static etch_tensor *call(form_job *j) {
    etch_tensor *out = NULL;
    if (!j->f) return forward(j->model);
    return etch_call_n(j->f, &j->model->x, 1, &out, 1) == ETCH_OK ? out : NULL;
}

static void run(void *ctx, int64_t calls) {
    form_job *j = ctx;
    for (int64_t i = 0; i < calls; i++)
        ETCH_SCOPE {
            if (!call(j)) bench_fail(j->model->row->name);
        }
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

/* Milliseconds of the first call; the second and the third one's results are compared. 0: it
 * failed, or a result differs. */
static double first_call(form_job *j, const bench_form *form, etch_tensor *expected) {
    double start = bench_now_us(), elapsed = 0;
    bool right = false;
    ETCH_SCOPE {
        right = call(j) && etch_synchronize(etch_current_device()) == ETCH_OK;
        elapsed = bench_now_us() - start;
        for (int i = 0; right && i < 2; i++) {
            etch_tensor *got = call(j);
            right = got && bench_as_expected(expected, got, form->numerics);
            if (got && !right) fprintf(stderr, "%s differs from eager: ", form->name);
        }
    }
    if (!right) bench_report(j->model->row->name, form->name);
    return right ? elapsed * 1e-3 : 0;
}

static void begin(model_job *j, const model_row *row, etch_dtype dtype) {
    etch_manual_seed(0);
    *j = (model_job){.row = row};
    j->net = (net){.layers = row->layers,
                   .width = row->width,
                   .heads = row->heads,
                   .inner = row->inner,
                   .length = row->length,
                   .dtype = dtype,
                   .bits = row->bits};
    etch_shape sizes = {.n = 0};
    while (sizes.n < 4 && row->sizes[sizes.n]) sizes.v[sizes.n] = row->sizes[sizes.n], sizes.n++;
    j->x = etch_to(etch_randn(ETCH_F32, sizes), dtype);
    if (!j->x) bench_fail(row->name);
}

/* A variant of the row, unless the form fails. */
static void add_form(bench_row *row, form_job *job, const bench_form *form, etch_tensor *expected) {
    job->f = etch_compile(body, .name = row->workload, .fullgraph = true, .ctx = job->model,
                          .mode = form->mode, .numerics = form->numerics);
    double first = first_call(job, form, expected);
    if (first <= 0) return;
    row->variants[row->count++] =
        (bench_variant){.name = form->name, .run = run, .ctx = job, .first_call_ms = first};
    if (form->numerics == ETCH_STRICT) row->variants[row->count - 1].compile_ms = first;
}

static void measure_forms(model_job *j, bench_row *row, etch_tensor *expected) {
    form_job eager = {j, NULL}, jobs[BENCH_FORMS] = {{j, NULL}};
    row->variants[row->count++] = (bench_variant){.name = "eager", .run = run, .ctx = &eager};
    for (int i = 0; i < BENCH_FORMS; i++) {
        const bench_form *form = &bench_forms[i];
        jobs[i].model = j;
        if (bench_on_gpu() ? form->numerics == ETCH_STRICT : form->mode == ETCH_MODE_DEFAULT)
            add_form(row, &jobs[i], form, expected);
    }
    bench_measure(row);
    for (int i = 0; i < BENCH_FORMS; i++) etch_function_free(jobs[i].f);
}

static void measure(const model_row *row, etch_dtype dtype) {
    model_job j;
    char size[48];
    begin(&j, row, dtype);
    describe(row, size, sizeof size);
    etch_tensor *expected = NULL;
    ETCH_SCOPE { expected = etch_keep(forward(&j)); }
    bench_row r = {.workload = row->name,
                   .size = size,
                   .dtype = etch_dtype_name(dtype),
                   .device = row->gpu ? "cuda" : "cpu"};
    if (expected) {
        save(&j, size, expected);
        measure_forms(&j, &r, expected);
    } else bench_report(row->name, "eager");
    for (int i = 0; i < j.net.count; i++) etch_release(j.net.weights[i]);
}

void bench_models(void) {
    for (const model_row *row = model_rows; row->name; row++) {
        if (row->gpu != bench_on_gpu() || !bench_named(row->name)) continue;
        ETCH_SCOPE { measure(row, row->gpu ? row->dtype : ETCH_F32); }
        ETCH_SCOPE {
            if (!row->gpu && !row->bits) measure(row, ETCH_BF16);
        }
    }
}
