/* What the suites of exported functions share: functions that are exported, what they are to give,
 * and processes in which there is no compiler. */
#ifndef ETCH_TESTS_EXPORT_SUPPORT_H
#define ETCH_TESTS_EXPORT_SUPPORT_H

#include "device_support.h"
#include "examples/digits_cnn.h"
#include "file_support.h"

#include <sys/wait.h>

#include <etch/debug.h>

enum { EXAMPLE_CALLS = 3, EXAMPLE_IN = 4, EXAMPLE_OUT = 4 };

/* A function that is exported, with all that belongs to it. */
typedef struct export_example {
    const char *name;
    void (*make)(struct export_example *x);  /* tensors of the CPU */
    void (*begin)(struct export_example *x); /* when they lie where they are to lie; or NULL */
    etch_fn_n body;
    void (*vary)(struct export_example *x, int call); /* other arguments for a call, or NULL */
    int nin, nout;
    etch_tensor *in[EXAMPLE_IN];
    etch_tensor *captured[4];
    etch_module *module;
    etch_optim *optim;
    etch_function *f;
} export_example;

NN_FN etch_status done(etch_tensor *t) { return t ? ETCH_OK : etch_last_status(); }

/* ---- the first program of the README ---- */

NN_FN ETCH_FN_N(seed_body, ctx, in, nin, out, nout) {
    etch_tensor *x = in[0], *w = in[1];
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = etch_mm(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return done(out[0] = x);
}

NN_FN void make_seed(export_example *x) {
    x->in[0] = etch_randn(ETCH_F32, ETCH_SHAPE(64, 64));
    x->in[1] = etch_full(ETCH_F32, ETCH_SHAPE(64, 64), 0.01);
}

/* ---- the network for digits ---- */

NN_FN ETCH_FN_N(cnn_body, ctx, in, nin, out, nout) {
    const export_example *x = ctx;
    ETCH_NO_GRAD
        out[0] = etch_module_call(x->module, in[0]);
    return done(out[0]);
}

NN_FN void make_cnn(export_example *x) {
    x->module = must(digits_cnn());
    x->in[0] = etch_randn(ETCH_F32, ETCH_SHAPE(16, 1, 8, 8));
}

/* ---- a whole step of training it ---- */

NN_FN ETCH_FN_N(train_body, ctx, in, nin, out, nout) {
    const export_example *x = ctx;
    etch_tensor *scores = etch_module_call(x->module, in[0]);
    etch_tensor *loss = scores ? etch_nn_cross_entropy(scores, in[1]) : NULL;
    if (!loss || etch_backward(loss) != ETCH_OK || etch_optim_step(x->optim) != ETCH_OK ||
        etch_optim_zero_grad(x->optim) != ETCH_OK)
        return etch_last_status();
    return done(out[0] = etch_detach(loss));
}

NN_FN etch_tensor *some_classes(int64_t n, int64_t below) {
    return must(
        etch_to(etch_floor(etch_mul_scalar(etch_rand(ETCH_F32, ETCH_SHAPE(n)), below)), ETCH_I64));
}

NN_FN void make_training(export_example *x) {
    make_cnn(x);
    x->in[1] = some_classes(16, 10);
}
NN_FN void begin_training(export_example *x) {
    x->optim = must(etch_optim_sgd(x->module, .lr = 0.05, .momentum = 0.9));
}

/* ---- views, random numbers, several results, integers, what is returned as it is ---- */

NN_FN ETCH_FN_N(mixed_body, ctx, in, nin, out, nout) {
    const export_example *x = ctx;
    etch_tensor *a = etch_mul_scalar(in[0], 1.5);
    etch_tensor *row = etch_select(a, 0, 1);
    etch_tensor *noise = etch_rand(ETCH_F32, ETCH_SHAPE(4, 6));
    etch_tensor *sum = etch_add(a, noise);
    out[0] = etch_add(sum, x->captured[0]);
    out[1] = etch_t(a);
    out[2] = etch_mul(row, x->captured[1]);
    out[3] = in[1];
    return done(out[2]);
}

NN_FN void make_mixed(export_example *x) {
    x->in[0] = etch_randn(ETCH_F32, ETCH_SHAPE(4, 6));
    x->in[1] = etch_arange(ETCH_I64, etch_scalar_int(0), etch_scalar_int(5), etch_scalar_int(1));
    etch_tensor *base = etch_randn(ETCH_F32, ETCH_SHAPE(6, 8));
    x->captured[0] = etch_t(etch_narrow(base, 1, 2, 4)); /* strided, over part of the storage */
    x->captured[1] = etch_select(base, 1, 7);            /* and another part of it */
}

/* ---- what is written: a counter of its own, and an argument ---- */

NN_FN ETCH_FN_N(writes_body, ctx, in, nin, out, nout) {
    const export_example *x = ctx;
    etch_tensor *count = etch_add_scalar_(x->captured[0], 1);
    etch_tensor *more = etch_add(in[0], count);
    if (!more || !etch_mul_scalar_(in[0], 0.5)) return etch_last_status();
    return done(out[0] = more);
}

NN_FN void make_writes(export_example *x) {
    x->in[0] = etch_randn(ETCH_F32, ETCH_SHAPE(7));
    x->captured[0] = etch_zeros(ETCH_F32, ETCH_SHAPE(1));
}

/* ---- run-time sizes: a batch of sequences, both of any length ---- */

NN_FN ETCH_FN_N(sizes_body, ctx, in, nin, out, nout) {
    const export_example *x = ctx;
    int64_t batch = etch_size(in[0], 0), length = etch_size(in[0], 1);
    etch_tensor *flat = etch_view(in[0], ETCH_SHAPE(batch * length, 8));
    etch_tensor *hidden = etch_relu(etch_mm(flat, x->captured[0]));
    etch_tensor *mean = etch_mul_scalar(etch_sum(hidden), 1.0 / (double)(batch * length));
    etch_tensor *places =
        etch_arange(ETCH_F32, etch_scalar_int(0), etch_scalar_int(length), etch_scalar_int(1));
    etch_tensor *shaped = etch_view(hidden, ETCH_SHAPE(batch, length, 4));
    etch_tensor *later = etch_slice(shaped, 1, length / 2, length, 1);
    etch_tensor *weights = etch_softmax(etch_add(etch_select(shaped, 2, 0), places), -1);
    out[0] = etch_add(weights, etch_div(in[1], mean));
    out[1] = etch_sum_dim(later, ETCH_DIMS(1), false);
    return out[0] ? done(out[1]) : etch_last_status();
}

NN_FN void size_arguments(export_example *x, int64_t batch, int64_t length) {
    x->in[0] = etch_randn(ETCH_F32, ETCH_SHAPE(batch, length, 8));
    x->in[1] = etch_randn(ETCH_F32, ETCH_SHAPE(batch, 1));
}

NN_FN void make_sizes(export_example *x) {
    size_arguments(x, 3, 6);
    x->captured[0] = etch_randn(ETCH_F32, ETCH_SHAPE(8, 4));
}
NN_FN void mark_sizes(export_example *x) {
    etch_mark_dynamic(x->in[0], 0, 1, 0);
    etch_mark_dynamic(x->in[0], 1, 1, 500);
    etch_mark_dynamic(x->in[1], 0, 1, 0);
}

NN_FN void vary_sizes(export_example *x, int call) {
    static const int64_t sizes[EXAMPLE_CALLS][2] = {{2, 17}, {1, 1}, {31, 400}};
    size_arguments(x, sizes[call][0], sizes[call][1]);
}

static export_example export_examples[] = {
    {.name = "seed", .make = make_seed, .body = seed_body, .nin = 2, .nout = 1},
    {.name = "cnn", .make = make_cnn, .body = cnn_body, .nin = 1, .nout = 1},
    {.name = "training",
     .make = make_training,
     .begin = begin_training,
     .body = train_body,
     .nin = 2,
     .nout = 1},
    {.name = "mixed", .make = make_mixed, .body = mixed_body, .nin = 2, .nout = 4},
    {.name = "writes", .make = make_writes, .body = writes_body, .nin = 1, .nout = 1},
    {.name = "sizes",
     .make = make_sizes,
     .begin = mark_sizes,
     .body = sizes_body,
     .vary = vary_sizes,
     .nin = 2,
     .nout = 2},
};
enum { EXPORT_EXAMPLES = sizeof export_examples / sizeof *export_examples };

/* Where the suite's tensors lie. They are made on the CPU, since filling them elsewhere takes
 * kernels, and a process without a compiler has the file's only. Sharing and marks stay. */
NN_FN void move_inputs(export_example *x) {
    for (int i = 0; test_device() != ETCH_CPU && i < x->nin; i++) {
        etch_tensor *t = x->in[i];
        x->in[i] = must(etch_to_device(t, test_device()));
    }
}

NN_FN void move_example(export_example *x) {
    if (test_device() == ETCH_CPU) return;
    move_inputs(x);
    for (int i = 0; i < 4 && x->captured[i]; i++)
        x->captured[i] = must(etch_to_device(x->captured[i], test_device()));
    if (x->module && etch_module_to_device(x->module, test_device()) != ETCH_OK) must(NULL);
}

/* In an open scope; the same numbers in each process. */
NN_FN export_example *example_arguments(int i) {
    export_example *x = &export_examples[i];
    etch_manual_seed(100 + (uint64_t)i);
    ETCH_ON(ETCH_CPU)
    x->make(x);
    move_example(x);
    return x;
}

NN_FN export_example *begin_example(int i) {
    export_example *x = example_arguments(i);
    if (x->begin) x->begin(x);
    x->f = must(etch_compile(x->body, .ctx = x, .name = x->name));
    return x;
}

NN_FN void end_example(export_example *x) {
    etch_function_free(x->f);
    etch_optim_free(x->optim);
    etch_module_free(x->module);
    x->f = NULL, x->optim = NULL, x->module = NULL;
}

NN_FN void export_example_to(export_example *x, const char *path) {
    if (etch_export(x->f, x->in, x->nin, path, .nout = x->nout, .module = x->module) != ETCH_OK)
        must(NULL);
}

/* ---- what it is to give ---- */

typedef struct expected {
    etch_named_tensor list[128];
    char name[128][64];
    int n;
} expected;

NN_FN void expect_tensor(expected *e, const char *name, etch_tensor *t) {
    assert_true(e->n < 128);
    snprintf(e->name[e->n], sizeof e->name[0], "%s", name);
    e->list[e->n] = (etch_named_tensor){e->name[e->n], must(etch_clone(must(t)))};
    e->n++;
}

NN_FN void result_name(char *name, size_t n, int call, int i) {
    snprintf(name, n, "call %d result %d", call, i);
}

NN_FN void vary_inputs(export_example *x, int call) {
    ETCH_ON(ETCH_CPU)
    x->vary(x, call);
    move_inputs(x);
}

/* Some calls of the function itself, compiled, and what they have written. */
NN_FN void expect_calls(export_example *x, expected *e) {
    char name[64];
    etch_manual_seed(7);
    for (int call = 0; call < EXAMPLE_CALLS; call++) {
        etch_tensor *out[EXAMPLE_OUT];
        if (x->vary) vary_inputs(x, call);
        if (etch_call_n(x->f, x->in, x->nin, out, x->nout) != ETCH_OK) must(NULL);
        for (int i = 0; i < x->nout; i++) {
            result_name(name, sizeof name, call, i);
            expect_tensor(e, name, out[i]);
        }
    }
    expect_tensor(e, "argument", x->in[0]);
    for (int i = 0; i < etch_module_parameter_count(x->module); i++)
        expect_tensor(e, etch_module_parameter_name(x->module, i),
                      etch_module_parameter_at(x->module, i));
}

/* ---- the same calls of the imported function ---- */

NN_FN void same_as(const etch_safetensors *want, const char *name, etch_tensor *have) {
    int k = etch_safetensors_find(want, name);
    if (k < 0) fail_msg("nothing is known of %s", name);
    if (!etch_bitwise_equal(must(etch_safetensors_tensor(want, k)), must(have)))
        fail_msg("%s differs", name);
}

/* compiled: each call runs kernels, of the file or made here. On a device operators' own kernels
 * are counted as well. */
NN_FN void calls_are_the_same(etch_imported *f, export_example *x, const etch_safetensors *want,
                              bool compiled) {
    char name[64];
    etch_manual_seed(7);
    for (int call = 0; call < EXAMPLE_CALLS; call++) {
        etch_tensor *out[EXAMPLE_OUT];
        if (x->vary) vary_inputs(x, call);
        int64_t before = etch_counters().kernel_launches;
        if (etch_imported_call(f, x->in, x->nin, out, x->nout) != ETCH_OK) must(NULL);
        bool launched = etch_counters().kernel_launches > before;
        assert_true(launched == compiled || test_device() != ETCH_CPU);
        for (int i = 0; i < x->nout; i++) {
            result_name(name, sizeof name, call, i);
            same_as(want, name, out[i]);
        }
    }
    same_as(want, "argument", x->in[0]);
    for (int i = 0; i < etch_imported_num_weights(f); i++)
        if (etch_safetensors_find(want, etch_imported_weight_name(f, i)) >= 0)
            same_as(want, etch_imported_weight_name(f, i), etch_imported_weight(f, i));
}

/* ---- processes ---- */

/* This program once more, with its first arguments as given, where no helper can be found. */
NN_FN int run_without_compiler(const char *what, const char *a, const char *b) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("ETCH_JIT", "/nonexistent/etch-jit", 1);
        setenv("ETCH_CUDA_NVRTC", "/nonexistent/libnvrtc.so", 1);
        setenv("ETCH_CACHE_SIZE", "0", 1);
        execl("/proc/self/exe", "suite", what, a, b, (char *)NULL);
        _exit(99);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

#endif
