/* Learning to read handwritten digits: a perceptron 64-128-10 and a small convolutional net, each
 * trained twice from the same weights, eagerly and as one compiled function that holds forward,
 * backward and the optimiser. Both must stay equal to the last bit.
 *
 * digits [digits.csv.gz] [--epochs 50] [--seeds 1] [--out digits.out] [--device cuda]
 *
 * Every fifth row is for the test. The accuracy is the median over the seeds. The folder gets the
 * losses (CSV, and PNG where gnuplot is installed) and the weights, before and after. */
#include "device.h"
#include "digits_cnn.h"
#include "digits_data.h"
#include "training.h"

enum { BATCH = 64, MAX_SEEDS = 99 };

/* ---- data ---- */

typedef struct digits {
    etch_tensor *images, *labels;           /* f32 [rows, 1, 8, 8] from 0 to 1, i64 [rows] */
    etch_tensor *test_images, *test_labels; /* the same */
} digits;

/* The rows that are for the test, or the others. */
static void select_rows(const double *pixels, const int64_t *labels, bool test, etch_tensor **x,
                        etch_tensor **y) {
    static float chosen[DIGITS_ROWS * DIGITS_PIXELS];
    static int64_t answers[DIGITS_ROWS];
    int64_t n = digits_choose(pixels, labels, test, chosen, answers);
    *x = etch_from_host(chosen, ETCH_F32, ETCH_SHAPE(n, 1, 8, 8));
    *y = etch_from_host(answers, ETCH_I64, ETCH_SHAPE(n));
}

static bool load_digits(const char *path, digits *d) {
    static double pixels[DIGITS_ROWS * DIGITS_PIXELS];
    static int64_t labels[DIGITS_ROWS];
    if (!digits_read(path, pixels, labels)) return false;
    select_rows(pixels, labels, false, &d->images, &d->labels);
    select_rows(pixels, labels, true, &d->test_images, &d->test_labels);
    return d->images && d->labels && d->test_images && d->test_labels;
}

/* ---- models ---- */

static etch_module *new_mlp(void) {
    etch_module *layers[] = {
        etch_nn_flatten(1, -1),
        etch_nn_linear(64, 128, ETCH_F32),
        etch_nn_relu(),
        etch_nn_linear(128, 10, ETCH_F32),
    };
    return etch_nn_sequential(layers, 4);
}

/* ---- training ---- */

/* One update; in: images, labels, the rows of the batch. out: the loss. This is all that is
 * compiled, as it stands. */
static ETCH_FN_N(train_step, ctx, in, nin, out, nout) {
    const learner *l = ctx;
    etch_tensor *images = etch_index_select(in[0], 0, in[2]);
    etch_tensor *labels = etch_index_select(in[1], 0, in[2]);
    etch_tensor *logits = etch_module_call(l->model, images);
    etch_tensor *loss = etch_nn_cross_entropy(logits, labels, .label_smoothing = 0.1);
    if (etch_backward(loss) != ETCH_OK) return etch_last_status();
    if (etch_optim_step(l->optim) != ETCH_OK) return etch_last_status();
    if (etch_optim_zero_grad(l->optim) != ETCH_OK) return etch_last_status();
    out[0] = etch_detach(loss);
    return out[0] ? ETCH_OK : etch_last_status();
}

static double accuracy(etch_module *m, const digits *d) {
    double right = 0;
    ETCH_SCOPE {
        ETCH_NO_GRAD {
            etch_tensor *logits = etch_module_call(m, d->test_images);
            etch_tensor *guess = etch_argmax_dim(logits, 1, false);
            etch_tensor *hits = etch_to(etch_eq(guess, d->test_labels), ETCH_F32);
            right = etch_item(etch_mean(hits));
        }
    }
    return right;
}

/* A run of one model: two learners that go through the same batches. */
typedef struct run {
    const char *name;
    const char *folder;
    int epochs;
    learner eager, compiled;
    curve losses;
    bool equal;
    int64_t steps;
} run;

static bool train_batch(run *r, const digits *d, const int64_t *rows, double *sum) {
    bool ok = false;
    ETCH_SCOPE {
        etch_tensor *index = etch_from_host(rows, ETCH_I64, ETCH_SHAPE(BATCH));
        etch_tensor *const in[] = {d->images, d->labels, index};
        etch_tensor *one = learn(&r->eager, in, 3), *other = learn(&r->compiled, in, 3);
        ok = one && other;
        r->equal = r->equal && ok && etch_bitwise_equal(one, other);
        if (ok) curve_add(&r->losses, ++r->steps, etch_item(one), etch_item(other));
        if (ok) *sum += etch_item(one);
    }
    return ok;
}

/* Each row once, but for the few that fill no batch. */
static bool train_epoch(run *r, const digits *d, uint64_t *chance, double *loss) {
    static int64_t order[DIGITS_ROWS];
    int64_t n = etch_size(d->images, 0), batches = n / BATCH;
    for (int64_t i = 0; i < n; i++) order[i] = i;
    shuffle(order, n, chance);
    *loss = 0;
    for (int64_t b = 0; b < batches; b++)
        if (!train_batch(r, d, order + b * BATCH, loss)) return false;
    *loss /= (double)batches;
    r->equal = r->equal && same_models(r->eager.model, r->compiled.model);
    return true;
}

/* The twin starts as a copy. */
static bool begin_run(run *r, etch_module *model, const digits *d) {
    etch_schedule schedule = {.kind = ETCH_SCHEDULE_ONE_CYCLE,
                              .total = r->epochs * (etch_size(d->images, 0) / BATCH)};
    etch_module *twin = model ? etch_module_copy(model) : NULL;
    etch_optim *o = twin ? etch_optim_adamw(model, .lr = 1e-2) : NULL;
    etch_optim *p = twin ? etch_optim_adamw(twin, .lr = 1e-2) : NULL;
    bool ok = learner_begin(&r->eager, model, o, train_step, false);
    ok = learner_begin(&r->compiled, twin, p, train_step, true) && ok;
    return ok && etch_optim_set_schedule(o, &schedule) == ETCH_OK &&
           etch_optim_set_schedule(p, &schedule) == ETCH_OK &&
           save_model(model, r->folder, r->name, "initial") &&
           curve_begin(&r->losses, r->folder, r->name);
}

static bool train(run *r, const digits *d, uint64_t seed) {
    for (int epoch = 1; epoch <= r->epochs; epoch++) {
        double loss;
        r->eager.ms = r->compiled.ms = 0;
        if (!train_epoch(r, d, &seed, &loss)) return false;
        if (epoch > 2 && epoch < r->epochs && epoch % 5) continue;
        printf("%s: epoch %2d/%d  loss %.4f  accuracy %.4f  eager %6.1f ms  compiled %6.1f ms%s\n",
               r->name, epoch, r->epochs, loss, accuracy(r->compiled.model, d), r->eager.ms,
               r->compiled.ms, epoch == 1 ? " (with the compile)" : "");
        fflush(stdout);
    }
    r->equal = r->equal && same_learners(&r->eager, &r->compiled, r->folder);
    return save_model(r->compiled.model, r->folder, r->name, "trained");
}

/* Accuracy of one model after all epochs; below 0: it failed, which has been said. */
static double learn_digits(run *r, etch_module *(*make)(void), const digits *d, uint64_t seed) {
    etch_manual_seed(seed);
    etch_module *model = make();
    bool ok = begin_run(r, model, d);
    if (ok) printf("%s: %lld parameters\n", r->name, (long long)parameters_of(model));
    ok = ok && train(r, d, seed);
    double result = ok ? accuracy(r->compiled.model, d) : -1;
    if (!ok) fprintf(stderr, "digits: %s: %s\n", r->name, etch_last_error());
    curve_end(&r->losses);
    learner_end(&r->eager), learner_end(&r->compiled);
    return result;
}

/* ---- all of it ---- */

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int main(int argc, char **argv) {
    if (!use_device(&argc, argv)) return 2;
    int epochs = take_count(&argc, argv, "--epochs", "50");
    int seeds = take_count(&argc, argv, "--seeds", "1");
    const char *folder = take_option(&argc, argv, "--out", "digits.out");
    const char *path = argc > 1 ? argv[1] : "examples/data/digits.csv.gz";
    double mlp[MAX_SEEDS], cnn[MAX_SEEDS];
    bool equal = true, ok = seeds <= MAX_SEEDS && make_folder(folder);
    if (!ok) return 2;
    ETCH_SCOPE {
        digits d;
        ok = load_digits(path, &d);
        for (int s = 0; ok && s < seeds; s++) {
            run a = {.name = "mlp", .folder = folder, .epochs = epochs, .equal = true};
            run b = {.name = "cnn", .folder = folder, .epochs = epochs, .equal = true};
            mlp[s] = learn_digits(&a, new_mlp, &d, (uint64_t)s);
            cnn[s] = learn_digits(&b, digits_pool_cnn, &d, (uint64_t)s);
            ok = mlp[s] >= 0 && cnn[s] >= 0;
            equal = equal && a.equal && b.equal;
        }
    }
    if (!ok) return 1;
    printf("digits: mlp=%.4f cnn=%.4f equal=%s\n", median(mlp, seeds), median(cnn, seeds),
           equal ? "bitwise" : "DIFFERENT");
    return equal ? 0 : 1;
}
