/* Exported functions: a network for digits learns for a while in this process, which then writes
 * the step of training and the prediction to files; another process, in which there is no compiler,
 * loads them, goes on with the training, and predicts.
 *
 *     export [DIGITS.csv.gz]            both, the files in a folder for temporary ones
 *     export [DIGITS.csv.gz] --save FOLDER, --load FOLDER: one of them */
#include "digits_cnn.h"
#include "digits_data.h"
#include "training.h"

#include <sys/wait.h>
#include <unistd.h>

enum { TRAIN = 1600, BATCH = 64, ROUNDS = 8 };

static const char *const default_digits = "../../examples/data/digits.csv.gz";

/* ---- data: the same in both processes ---- */

typedef struct digits {
    etch_tensor *pixels, *labels;
} digits;

static bool read_digits(const char *path, digits *d) {
    static double pixels[DIGITS_ROWS * DIGITS_PIXELS];
    static int64_t labels[DIGITS_ROWS];
    if (!digits_read(path, pixels, labels)) return false;
    etch_tensor *wide = etch_from_host(pixels, ETCH_F64, ETCH_SHAPE(DIGITS_ROWS, 1, 8, 8));
    etch_tensor *scaled = etch_mul_scalar(etch_to(wide, ETCH_F32), 1.0 / 16);
    *d = (digits){scaled, etch_from_host(labels, ETCH_I64, ETCH_SHAPE(DIGITS_ROWS))};
    return d->pixels && d->labels;
}

static void batch_at(const digits *d, int64_t at, etch_tensor **in) {
    in[0] = etch_narrow(d->pixels, 0, at, BATCH);
    in[1] = etch_narrow(d->labels, 0, at, BATCH);
}

/* ---- the functions ---- */

typedef struct network {
    etch_module *model;
    etch_optim *optim;
} network;

static ETCH_FN_N(step, ctx, in, nin, out, nout) {
    const network *n = ctx;
    etch_tensor *scores = etch_module_call(n->model, in[0]);
    etch_tensor *loss = scores ? etch_nn_cross_entropy(scores, in[1]) : NULL;
    if (!loss || etch_backward(loss) != ETCH_OK || etch_optim_step(n->optim) != ETCH_OK ||
        etch_optim_zero_grad(n->optim) != ETCH_OK)
        return etch_last_status();
    out[0] = etch_detach(loss);
    return out[0] ? ETCH_OK : etch_last_status();
}

static ETCH_FN_N(predict, ctx, in, nin, out, nout) {
    const network *n = ctx;
    etch_tensor *scores = NULL;
    ETCH_NO_GRAD
        scores = etch_module_call(n->model, in[0]);
    out[0] = scores ? etch_argmax_dim(scores, 1, false) : NULL;
    return out[0] ? ETCH_OK : etch_last_status();
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, etch_last_error());
    return 1;
}

static const char *file_in(const char *folder, const char *name) {
    static char path[2][512];
    static int next;
    char *p = path[next++ % 2];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

/* ---- the process that writes ---- */

static bool train_here(etch_function *f, const digits *d) {
    etch_tensor *in[2], *loss;
    for (int64_t at = 0; at + BATCH <= TRAIN; at += BATCH)
        ETCH_SCOPE {
            batch_at(d, at, in);
            if (etch_call_n(f, in, 2, &loss, 1) != ETCH_OK) return false;
            if (at + 2 * BATCH > TRAIN)
                printf("  loss here, after a round: %.4f\n", etch_item(loss));
        }
    return true;
}

/* The prediction takes any number of images, the step always BATCH of them. */
static int write_files(const network *n, const digits *d, const char *folder) {
    etch_function *train = etch_compile(step, .ctx = (void *)n);
    etch_function *guess = etch_compile(predict, .ctx = (void *)n);
    etch_tensor *in[2], *images = etch_narrow(d->pixels, 0, 0, 100);
    batch_at(d, 0, in);
    etch_mark_dynamic(images, 0, 1, 0);
    bool ok =
        train_here(train, d) &&
        etch_export(train, in, 2, file_in(folder, "step.etch"), .module = n->model) == ETCH_OK &&
        etch_export(guess, &images, 1, file_in(folder, "predict.etch"), .module = n->model) ==
            ETCH_OK;
    etch_function_free(train);
    etch_function_free(guess);
    return ok ? 0 : failed("export");
}

static int save(const char *folder, const char *data) {
    int status = 1;
    ETCH_SCOPE {
        digits d;
        etch_manual_seed(1);
        network n = {.model = digits_cnn()};
        n.optim = n.model ? etch_optim_sgd(n.model, .lr = 0.03, .momentum = 0.9) : NULL;
        if (n.optim && read_digits(data, &d)) status = write_files(&n, &d, folder);
        etch_optim_free(n.optim);
        etch_module_free(n.model);
    }
    return status;
}

/* ---- the process that loads ---- */

/* Of this thread: on a busy machine it waits for processors as well. */
static double processor_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static bool train_there(etch_imported *f, const digits *d) {
    etch_tensor *in[2], *loss;
    double first = 0, busy = 0, warm = 1e9;
    for (int round = 0; round < ROUNDS; round++)
        for (int64_t at = 0; at + BATCH <= TRAIN; at += BATCH)
            ETCH_SCOPE {
                batch_at(d, at, in);
                double start = now_ms(), before = processor_ms();
                if (etch_imported_call(f, in, 2, &loss, 1) != ETCH_OK) return false;
                double took = now_ms() - start;
                if (round + at == 0) first = took, busy = processor_ms() - before;
                else if (took < warm) warm = took;
                if (at + 2 * BATCH > TRAIN && round % 3 == 1)
                    printf("  loss there, after round %d: %.4f\n", round + 2, etch_item(loss));
            }
    printf("  a step takes %.2f ms, the first one took %.2f ms (%.2f of the processor)\n", warm,
           first, busy);
    return true;
}

/* The step has the parameters, which the prediction is to use now. */
static void copy_weights(etch_imported *from, etch_imported *to) {
    for (int i = 0; i < etch_imported_num_weights(to); i++)
        for (int k = 0; k < etch_imported_num_weights(from); k++)
            if (!strcmp(etch_imported_weight_name(to, i), etch_imported_weight_name(from, k)))
                etch_copy_(etch_imported_weight(to, i), etch_imported_weight(from, k));
}

static bool count_right(etch_imported *f, const digits *d) {
    bool ok = false;
    ETCH_SCOPE {
        int64_t rest = DIGITS_ROWS - TRAIN;
        etch_tensor *images = etch_narrow(d->pixels, 0, TRAIN, rest);
        etch_tensor *guess = etch_imported_call_one(f, &images, 1);
        etch_tensor *right = guess ? etch_eq(guess, etch_narrow(d->labels, 0, TRAIN, rest)) : NULL;
        double n = right ? etch_item(etch_sum(etch_to(right, ETCH_F32))) : 0;
        printf("  %g of %lld other digits are read right\n", n, (long long)rest);
        ok = n > 0.85 * (double)rest;
    }
    return ok;
}

static int load(const char *folder, const char *data) {
    int status = 1;
    double start = now_ms();
    etch_imported *train = etch_import(file_in(folder, "step.etch"));
    etch_imported *guess = etch_import(file_in(folder, "predict.etch"));
    if (!train || !guess) return failed("import");
    printf("  both files are loaded in %.2f ms\n", now_ms() - start);
    ETCH_SCOPE {
        digits d;
        bool ok = read_digits(data, &d) && train_there(train, &d);
        if (ok) copy_weights(train, guess);
        status = ok && count_right(guess, &d) ? 0 : failed("the imported functions");
    }
    if (etch_counters().kernels_compiled) status = 1, puts("  something was compiled");
    etch_imported_free(train);
    etch_imported_free(guess);
    return status;
}

/* ---- both ---- */

/* This program again, where neither a helper nor the cache of kernels can be found. */
static int load_elsewhere(const char *folder, const char *data) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("ETCH_JIT", "/nonexistent/etch-jit", 1);
        setenv("ETCH_CACHE_SIZE", "0", 1);
        execl("/proc/self/exe", "export", data, "--load", folder, (char *)NULL);
        _exit(99);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *save_to = take_option(&argc, argv, "--save", NULL);
    const char *load_from = take_option(&argc, argv, "--load", NULL);
    const char *data = argc > 1 ? argv[1] : default_digits;
    char folder[] = "/tmp/etch-export-XXXXXX";
    if (save_to) return save(save_to, data);
    if (load_from) return load(load_from, data);
    if (!mkdtemp(folder)) return 1;
    puts("this process:");
    int status = save(folder, data);
    if (!status) puts("another process, without a compiler:");
    if (!status) status = load_elsewhere(folder, data);
    unlink(file_in(folder, "step.etch"));
    unlink(file_in(folder, "predict.etch"));
    rmdir(folder);
    puts(status ? "export: FAILED" : "export: ok");
    return status;
}
