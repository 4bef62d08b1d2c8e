/* Whole steps of training, forward, backward and update: eager, and as one compiled function, on a
 * GPU also in mode reduce-overhead; their peaks of memory. The models are those of
 * bench/models.py. */
#include "examples/digits_cnn.h"
#include "examples/transformer.h"
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SYMBOLS = 96,
    ADAM_TENSORS = 64,
    ADAM_ROWS = 625,
    ADAM_COLUMNS = 250,
    STEPS = 6,
    PARAMETERS = 96
};

/* What a row trains, on one batch. */
typedef struct trainee {
    etch_module *model; /* NULL: gradients are given */
    etch_optim *optim;
    etch_function *f;
    etch_tensor *x, *y;
    bool compiled, capturable;
} trainee;

/* ---- steps ---- */

static etch_tensor *loss_of(const trainee *t, etch_tensor *x, etch_tensor *y) {
    etch_tensor *scores = etch_module_call(t->model, x);
    if (scores && etch_ndim(scores) == 3) scores = etch_flatten(scores, 0, 1);
    return scores ? etch_nn_cross_entropy(scores, y) : NULL;
}

static ETCH_FN_N(step, ctx, in, nin, out, nout) {
    const trainee *t = ctx;
    etch_tensor *loss = loss_of(t, in[0], in[1]);
    if (!loss || etch_backward(loss) != ETCH_OK || etch_optim_step(t->optim) != ETCH_OK ||
        etch_optim_zero_grad(t->optim) != ETCH_OK)
        return etch_last_status();
    out[0] = etch_detach(loss);
    return out[0] ? ETCH_OK : etch_last_status();
}

/* The optimiser alone. */
static ETCH_FN_N(update, ctx, in, nin, out, nout) {
    const trainee *t = ctx;
    out[0] = in[0];
    return etch_optim_step(t->optim);
}

/* Into *loss where it is given, which waits for the step. */
static bool try_step(trainee *t, double *loss) {
    bool ok = false;
    ETCH_SCOPE {
        etch_tensor *const in[2] = {t->x, t->y};
        etch_tensor *out = NULL;
        etch_status status = t->compiled ? etch_call_n(t->f, in, 2, &out, 1)
                             : t->model  ? step(t, in, 2, &out, 1)
                                         : update(t, in, 2, &out, 1);
        if (loss && out) *loss = etch_item(out);
        ok = status == ETCH_OK && (!loss || etch_synchronize(etch_current_device()) == ETCH_OK);
    }
    return ok;
}

static void run(void *ctx, int64_t calls) {
    for (int64_t i = 0; i < calls; i++)
        if (!try_step(ctx, NULL)) bench_fail("a step of training");
}

/* ---- models ---- */

static etch_module *mlp(void) {
    etch_module *layers[] = {etch_nn_flatten(1, -1), etch_nn_linear(784, 512, ETCH_F32),
                             etch_nn_relu(), etch_nn_linear(512, 10, ETCH_F32)};
    return etch_nn_sequential(layers, 4);
}

static etch_tensor *classes(int64_t n, int64_t below) {
    return etch_to(etch_floor(etch_mul_scalar(etch_rand(ETCH_F32, ETCH_SHAPE(n)), below)),
                   ETCH_I64);
}

static void begin_mlp(trainee *t) {
    t->model = mlp(), t->optim = etch_optim_sgd(t->model, .lr = 0.01);
    t->x = etch_randn(ETCH_F32, ETCH_SHAPE(128, 784)), t->y = classes(128, 10);
}

static void begin_images(trainee *t, etch_module *model) {
    t->model = model, t->optim = etch_optim_sgd(t->model, .lr = 0.01);
    t->x = etch_randn(ETCH_F32, ETCH_SHAPE(64, 1, 8, 8)), t->y = classes(64, 10);
}
static void begin_cnn(trainee *t) { begin_images(t, digits_cnn()); }
static void begin_pool(trainee *t) { begin_images(t, digits_pool_cnn()); }

static void begin_transformer(trainee *t) {
    t->model = new_transformer(SYMBOLS),
    t->optim = etch_optim_adamw(t->model, .lr = 1e-4, .capturable = t->capturable);
    t->y = classes((int64_t)16 * CONTEXT, SYMBOLS);
    t->x = etch_reshape(classes((int64_t)16 * CONTEXT, SYMBOLS), ETCH_SHAPE(16, CONTEXT));
}

static void begin_adam(trainee *t) {
    t->optim = etch_optim_adam(NULL, .lr = 1e-4, .capturable = t->capturable);
    t->x = t->y = etch_zeros(ETCH_F32, ETCH_SHAPE(1));
    etch_tensor *all[ADAM_TENSORS];
    for (int i = 0; i < ADAM_TENSORS; i++) {
        etch_shape size = ETCH_SHAPE(ADAM_ROWS, ADAM_COLUMNS);
        all[i] = etch_requires_grad_(etch_randn(ETCH_F32, size), true);
        etch_set_grad(all[i], etch_randn(ETCH_F32, size));
    }
    if (etch_optim_add_with(t->optim, all, ADAM_TENSORS, NULL) < 0) bench_fail("adam");
}

/* ---- rows ---- */

typedef struct training_row {
    const char *name, *size;
    void (*begin)(trainee *t);
} training_row;

static const training_row rows[] = {{"train_mlp", "128x784", begin_mlp},
                                    {"train_cnn", "64x1x8x8", begin_cnn},
                                    {"train_pool", "64x1x8x8", begin_pool},
                                    {"train_transformer", "16x64", begin_transformer},
                                    {"adam", "64x625x250", begin_adam}};

/* form is NULL: eager. Steps of one CUDA graph keep the step's number on the GPU. */
static void begin(const training_row *row, trainee *t, const bench_form *form) {
    etch_mode_kind mode = form ? form->mode : ETCH_MODE_DEFAULT;
    etch_manual_seed(0);
    *t = (trainee){.compiled = form, .capturable = mode == ETCH_MODE_REDUCE_OVERHEAD};
    row->begin(t);
    t->f = etch_compile(t->model ? step : update, .fullgraph = true, .name = row->name, .ctx = t,
                        .mode = mode);
    if (!t->optim || !t->x || !t->y || !t->f) bench_fail(row->name);
}

static void end(trainee *t) {
    etch_function_free(t->f);
    etch_optim_free(t->optim);
    etch_module_free(t->model);
}

/* What t begins with, and the losses of its first steps, for peers. */
static void save(const training_row *row, const trainee *t, const double losses[STEPS]) {
    const char *folder = getenv("ETCH_BENCH_MODELS");
    if (!folder || !t->model) return;
    char path[4200];
    etch_tensor *seen = etch_from_host(losses, ETCH_F64, ETCH_SHAPE(STEPS));
    etch_named_tensor all[PARAMETERS] = {{"x", t->x}, {"y", t->y}, {"losses", seen}};
    int n = 3, count = etch_module_parameter_count(t->model);
    if (n + count > PARAMETERS) bench_fail("more parameters than there is room for");
    for (int i = 0; i < count; i++)
        all[n++] = (etch_named_tensor){etch_module_parameter_name(t->model, i),
                                       etch_module_parameter_at(t->model, i)};
    snprintf(path, sizeof path, "%s/%s-%s-f32.safetensors", folder, row->name, row->size);
    if (etch_safetensors_save(path, all, n, NULL, 0) != ETCH_OK) bench_fail(path);
}

/* The first steps of a form, whose losses are to be those of eager steps. */
static double first_steps(const training_row *row, trainee *t, const bench_form *form,
                          double losses[STEPS]) {
    const char *name = form ? form->name : "eager";
    double start = bench_now_us(), first = 0;
    for (int i = 0; i < STEPS; i++) {
        double loss = 0;
        if (!try_step(t, &loss)) return bench_report(row->name, name), 0;
        if (i == 0) first = (bench_now_us() - start) * 1e-3;
        if (!form) losses[i] = loss;
        if (fabs(loss - losses[i]) <= 1e-5 * fabs(losses[i])) continue;
        fprintf(stderr, "loss %d is %.9g, eagerly %.9g: ", i, loss, losses[i]);
        return bench_report(row->name, name), 0;
    }
    return first;
}

static void measure(const training_row *row) {
    enum { MOST = 1 + BENCH_STRICT_FORMS };
    const bench_form *forms[MOST] = {NULL, &bench_forms[0], &bench_forms[1]};
    trainee all[MOST];
    double losses[STEPS];
    bench_row r = {
        .workload = row->name, .size = row->size, .device = bench_on_gpu() ? "cuda" : "cpu"};
    int n = bench_on_gpu() ? 3 : 2;
    for (int i = 0; i < n; i++) {
        begin(row, &all[i], forms[i]); /* all begin alike */
        if (i == 1) save(row, &all[i], losses);
        double first = first_steps(row, &all[i], forms[i], losses);
        if (first <= 0 && i == 0) n = 1;
        if (first <= 0) continue;
        bench_variant *v = &r.variants[r.count++];
        *v = (bench_variant){.name = "eager", .run = run, .ctx = &all[i]};
        if (forms[i]) v->name = forms[i]->name, v->first_call_ms = v->compile_ms = first;
    }
    if (r.count) bench_measure(&r);
    for (int i = 0; i < n; i++) end(&all[i]);
}

void bench_training(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ETCH_SCOPE {
            if (bench_on_gpu() ? bench_named(rows[i].name) : bench_selected(rows[i].name))
                measure(&rows[i]);
        }
}

/* ---- saved for backward ---- */

/* The loss alone: backward runs outside, on what the forward plan has saved. */
static ETCH_FN_N(forward, ctx, in, nin, out, nout) {
    out[0] = loss_of(ctx, in[0], in[1]);
    return out[0] ? ETCH_OK : etch_last_status();
}

static double saved_mib(trainee *t, double budget) {
    etch_function *f = etch_compile(forward, .fullgraph = true, .ctx = t, .memory_budget = budget);
    etch_tensor *const in[2] = {t->x, t->y};
    for (int i = 0; i < 3; i++)
        ETCH_SCOPE {
            etch_tensor *loss = NULL;
            if (!f || etch_call_n(f, in, 2, &loss, 1) != ETCH_OK || etch_backward(loss) != ETCH_OK)
                bench_fail("saved");
            etch_optim_zero_grad(t->optim);
        }
    etch_explanation *e = etch_explain(f);
    double mib = (double)e->graphs[e->ngraphs - 1].saved_bytes / (1 << 20);
    etch_explanation_free(e);
    etch_function_free(f);
    return mib;
}

/* Of the rows that have a model: with the default budget of memory, and with nothing computed
 * again. */
void bench_saved(void) {
    if (!bench_selected("saved")) return;
    printf("workload,size,variant,saved_mib\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ETCH_SCOPE {
            trainee t;
            begin(&rows[i], &t, NULL);
            if (t.model) {
                printf("saved %s,%s,compiled,%.3f\n", rows[i].name, rows[i].size, saved_mib(&t, 0));
                printf("saved %s,%s,whole,%.3f\n", rows[i].name, rows[i].size, saved_mib(&t, 1));
            }
            end(&t);
        }
}

/* ---- memory ---- */

/* Above what lives between steps, of a step that is not the first. */
static double peak_mib(trainee *t, bool compiled) {
    t->compiled = compiled;
    run(t, 2);
    etch_memory_reset_peak();
    int64_t before = etch_memory().bytes_live;
    run(t, 1);
    return (double)(etch_memory().bytes_peak - before) / (1 << 20);
}

void bench_training_memory(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ETCH_SCOPE {
            trainee t;
            begin(&rows[i], &t, NULL);
            double eager = peak_mib(&t, false), compiled = peak_mib(&t, true);
            printf("memory %s,%s,eager,%.2f,1.00\n", rows[i].name, rows[i].size, eager);
            printf("memory %s,%s,compiled,%.2f,%.2f\n", rows[i].name, rows[i].size, compiled,
                   compiled / eager);
            end(&t);
        }
}
