/* Exported functions in fresh processes that have no compiler: the first call beside a warm one.
 * This program exports each function, and starts itself with --exported-child and neither a helper,
 * nor NVRTC, nor the kernels that a cache keeps. A call is timed to the end of what it started. */
#include "bench.h"
#include "examples/digits_cnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLS = 50, BATCH = 64 };

typedef struct exported {
    const char *name, *size;
    void (*begin)(struct exported *e);
    etch_fn_n body;
    int nin;
    bool any_batch, trains;
    etch_tensor *in[2];
    etch_module *module;
    etch_optim *optim;
} exported;

/* ---- functions ---- */

static ETCH_FN_N(seed, ctx, in, nin, out, nout) {
    out[0] = bench_seed(in[0], in[1]);
    return out[0] ? ETCH_OK : etch_last_status();
}

static ETCH_FN_N(predict, ctx, in, nin, out, nout) {
    const exported *e = ctx;
    etch_tensor *scores = NULL;
    ETCH_NO_GRAD
        scores = etch_module_call(e->module, in[0]);
    out[0] = scores ? etch_argmax_dim(scores, 1, false) : NULL;
    return out[0] ? ETCH_OK : etch_last_status();
}

static ETCH_FN_N(train, ctx, in, nin, out, nout) {
    const exported *e = ctx;
    etch_tensor *scores = etch_module_call(e->module, in[0]);
    etch_tensor *loss = scores ? etch_nn_cross_entropy(scores, in[1]) : NULL;
    if (!loss || etch_backward(loss) != ETCH_OK || etch_optim_step(e->optim) != ETCH_OK ||
        etch_optim_zero_grad(e->optim) != ETCH_OK)
        return etch_last_status();
    out[0] = etch_detach(loss);
    return out[0] ? ETCH_OK : etch_last_status();
}

static void begin_seed(exported *e) {
    e->in[0] = etch_randn(ETCH_F32, ETCH_SHAPE(256, 256)), e->in[1] = bench_scaled(256);
}

static void begin_cnn(exported *e) {
    e->module = digits_cnn();
    e->in[0] = etch_rand(ETCH_F32, ETCH_SHAPE(BATCH, 1, 8, 8));
}

static void begin_step(exported *e) {
    begin_cnn(e);
    e->in[1] = etch_zeros(ETCH_I64, ETCH_SHAPE(BATCH));
}

static const exported functions[] = {
    {.name = "seed", .size = "256x256", .begin = begin_seed, .body = seed, .nin = 2},
    {.name = "digits CNN", .size = "64x1x8x8", .begin = begin_cnn, .body = predict, .nin = 1},
    {.name = "any batch",
     .size = "64x1x8x8",
     .begin = begin_cnn,
     .body = predict,
     .nin = 1,
     .any_batch = true},
    {.name = "step",
     .size = "64x1x8x8",
     .begin = begin_step,
     .body = train,
     .nin = 2,
     .trains = true},
};

/* All is made on the CPU: filling tensors takes kernels on a device. */
static exported begin(int i) {
    exported e = functions[i];
    etch_device device = etch_current_device();
    etch_manual_seed(0);
    ETCH_ON(ETCH_CPU)
    e.begin(&e);
    for (int k = 0; k < e.nin; k++) {
        etch_tensor *there = etch_to_device(e.in[k], device);
        if (!there) bench_fail(e.name);
        e.in[k] = there;
    }
    if (e.module && etch_module_to_device(e.module, device) != ETCH_OK) bench_fail(e.name);
    return e;
}

static void end(exported *e) {
    etch_optim_free(e->optim);
    etch_module_free(e->module);
}

/* ---- the process that loads ---- */

/* Microseconds of a call, to its end. */
static double call(etch_imported *f, const exported *e) {
    double start = bench_now_us();
    ETCH_SCOPE {
        etch_tensor *out;
        if (etch_imported_call(f, e->in, e->nin, &out, 1) != ETCH_OK ||
            etch_synchronize(etch_current_device()) != ETCH_OK)
            bench_fail(e->name);
    }
    return bench_now_us() - start;
}

int bench_exported_child(const char *device, int number, const char *path) {
    if (etch_set_device(etch_device_parse(device)) != ETCH_OK) bench_fail(device);
    ETCH_SCOPE {
        exported e = begin(number);
        if (etch_synchronize(etch_current_device()) != ETCH_OK) bench_fail(device);
        double start = bench_now_us(), warm[CALLS];
        etch_imported *f = etch_import(path);
        if (!f) bench_fail(path);
        double loaded = bench_now_us() - start, first = call(f, &e);
        for (int i = 0; i < CALLS; i++) warm[i] = call(f, &e);
        if (etch_counters().kernels_compiled) bench_fail("something was compiled");
        printf("%f %f %f\n", loaded, first, bench_median(warm, CALLS));
        etch_imported_free(f);
        end(&e);
    }
    return 0;
}

/* ---- the process that exports ---- */

static bool run_child(const char *self, const char *device, int number, const char *path,
                      double times[3]) {
    char command[8192];
    snprintf(command, sizeof command,
             "ETCH_JIT=/nonexistent ETCH_CUDA_NVRTC=/nonexistent ETCH_CACHE_SIZE=0 "
             "CUDA_CACHE_DISABLE=1 '%s' --exported-child %s %d '%s'",
             self, device, number, path);
    FILE *pipe = popen(command, "r");
    if (!pipe) return false;
    int fields = fscanf(pipe, "%lf %lf %lf", &times[0], &times[1], &times[2]);
    return pclose(pipe) == 0 && fields == 3;
}

static void measure(const char *self, const char *device, int number, const char *path) {
    exported e = begin(number);
    if (e.any_batch) etch_mark_dynamic(e.in[0], 0, 1, 0);
    if (e.trains) e.optim = etch_optim_sgd(e.module, .lr = 0.01, .momentum = 0.9);
    etch_function *f = etch_compile(e.body, .ctx = &e, .name = e.name);
    bool written = etch_export(f, e.in, e.nin, path, .module = e.module) == ETCH_OK;
    etch_function_free(f);
    if (!written) return bench_report("exported", e.name), end(&e);
    double loads[BENCH_ROUNDS], first[BENCH_ROUNDS], warm[BENCH_ROUNDS];
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        double t[3];
        if (!run_child(self, device, number, path, t)) return bench_report("exported", e.name);
        loads[r] = t[0], first[r] = t[1], warm[r] = t[2];
    }
    char what[64];
    snprintf(what, sizeof what, "%s %s", e.name, e.size);
    double later = bench_median(warm, BENCH_ROUNDS), at_first = bench_median(first, BENCH_ROUNDS);
    bench_print_on(device, "exported", what, 1, "import", bench_median(loads, BENCH_ROUNDS), 0, 0);
    bench_print_on(device, "exported", what, 1, "calls", later, at_first * 1e-3, 0);
    end(&e);
}

void bench_exported(const char *self, bool cuda) {
    if (!bench_selected("exported")) return;
    char path[] = "/tmp/etch-exported-XXXXXX";
    int file = mkstemp(path);
    if (file < 0) bench_fail("mkstemp");
    close(file);
    for (int i = 0; i < (int)(sizeof functions / sizeof *functions); i++)
        ETCH_SCOPE { measure(self, cuda ? "cuda:0" : "cpu", i, path); }
    unlink(path);
}
