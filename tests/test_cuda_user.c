/* What users bring to the CUDA backend, on the fakes, or with ETCH_TEST_REAL_GPU=1 on a real GPU:
 * kernels of their own for custom operators and overrides, and streams of their own. The user's
 * kernels are compiled and launched as a user of libcuda and NVRTC would.
 * Labels: driver long. */
#include "cuda_failing.h"

#include <pthread.h>

#include "backends/cuda/api.h"

/* On a real GPU no call is made to fail, and what only the fakes know is not asked. */

static etch_device second(void) { return ETCH_CUDA(etch_cuda_count() > 1); }
static unsigned long host_copies(void) {
    return on_real_gpu() ? 0 : calls_of("cuMemcpyDtoHAsync_v2");
}
static bool lives(const char *what, unsigned long n) { return on_real_gpu() || live(what) == n; }
/* Whether work waits for the streams, which hold it back (FAKE_CUDA_LAZY=1). */
static bool held(void) {
    return on_real_gpu() || ((unsigned long (*)(void))control("fake_cuda_pending"))();
}

static etch_tensor *ramp(int64_t n) { return etch_arange(ETCH_F32, 0, (double)n, 1); }
static etch_tensor *here(etch_tensor *t) { return etch_to_device(t, ETCH_CPU); }
static bool same(etch_tensor *a, etch_tensor *b) { return a && b && etch_bitwise_equal(a, b); }

static etch_tensor *random_of(etch_dtype dtype, etch_shape s) {
    return etch_to(etch_randn(ETCH_F64, s), dtype);
}

/* ---- the user's kernels ---- */

static const char source[] =
    "extern \"C\" __global__ void axpy(const float *a, const float *b, float *y, float s,\n"
    "                                  long long n) {\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    if (i < n) y[i] = s * a[i] + b[i];\n"
    "}\n"
    "extern \"C\" __global__ void bump(float *x, const float *by, long long n) {\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    if (i < n) x[i] += by[i];\n"
    "}\n";

static cu_module module;

/* Loads the kernels once; the context of the device is current. */
static cu_function function(const char *name) {
    char arch[40];
    const char *options[] = {arch, "-fmad=false"};
    cu_function f = NULL;
    if (!module) {
        nvrtc_program program = NULL;
        size_t bytes = 0;
        int major = 0, minor = 0;
        CHECK(!etch__cuda.cuDeviceGetAttribute(&major, CU_ATTRIBUTE_MAJOR, 0));
        CHECK(!etch__cuda.cuDeviceGetAttribute(&minor, CU_ATTRIBUTE_MINOR, 0));
        snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d", major, minor);
        CHECK(!etch__cuda.nvrtcCreateProgram(&program, source, "user.cu", 0, NULL, NULL));
        CHECK(!etch__cuda.nvrtcCompileProgram(program, 2, options));
        CHECK(!etch__cuda.nvrtcGetCUBINSize(program, &bytes) && bytes);
        char *cubin = malloc(bytes);
        CHECK(cubin && !etch__cuda.nvrtcGetCUBIN(program, cubin));
        CHECK(!etch__cuda.nvrtcDestroyProgram(&program));
        CHECK(!etch__cuda.cuModuleLoadData(&module, cubin));
        free(cubin);
    }
    return etch__cuda.cuModuleGetFunction(&f, module, name) ? NULL : f;
}

static etch_status issue(const char *name, void **parameters, int64_t n, etch_device device) {
    cu_stream stream = etch_cuda_stream(device);
    unsigned blocks = (unsigned)((n + 63) / 64);
    if (!n || !stream) return n ? etch_last_status() : ETCH_OK;
    cu_function f = function(name);
    bool ok =
        f && !etch__cuda.cuLaunchKernel(f, blocks, 1, 1, 64, 1, 1, 0, stream, parameters, NULL);
    return ok ? ETCH_OK : etch_set_error(ETCH_ERR_DEVICE, "the launch failed");
}

typedef struct journal {
    int cpu, cuda; /* calls of each kernel */
    int fail_at;   /* the call of cuda that fails, 1 the first; 0: none */
    bool keep;
    etch_tensor *kept[2];
} journal;

static journal log_of;

static void keep(journal *j, etch_tensor *a, etch_tensor *b) {
    if (!j->keep) return;
    j->kept[0] = etch_retain(a), j->kept[1] = etch_retain(b);
    j->keep = false;
}

static etch_status axpy_cuda(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                             etch_tensor *const *out, int nout) {
    journal *j = ctx;
    (void)op, (void)nargs, (void)nout;
    if (++j->cuda == j->fail_at) return etch_set_error(ETCH_ERR_USER, "axpy: asked to fail");
    etch_tensor *a = etch_contiguous(args[0].tensor), *b = etch_contiguous(args[1].tensor);
    if (!a || !b) return etch_last_status();
    CHECK(etch_device_of(a) == etch_device_of(out[0]) && etch_device_of(a) > 0);
    CHECK(etch_current_device() == etch_device_of(a));
    const void *pa = etch_data(a), *pb = etch_data(b);
    void *py = etch_data_mut(out[0]);
    float s = (float)args[2].scalar.d;
    long long n = etch_numel(out[0]);
    void *parameters[] = {&pa, &pb, &py, &s, &n};
    etch_status status = issue("axpy", parameters, n, etch_device_of(a));
    if (status == ETCH_OK) keep(j, args[0].tensor, out[0]);
    return status;
}

/* On the CPU (or with copies of tensors that are on a GPU), through operators. */
static etch_status axpy_cpu(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor *const *out, int nout) {
    journal *j = ctx;
    (void)op, (void)nargs, (void)nout;
    j->cpu++;
    CHECK(etch_device_of(args[0].tensor) == ETCH_CPU && etch_device_of(out[0]) == ETCH_CPU);
    CHECK(etch_current_device() == ETCH_CPU);
    etch_tensor *s = etch_full(ETCH_F32, ETCH_SHAPE(0), 0);
    s = etch_full(ETCH_F32, etch_sizes(out[0]), args[2].scalar.d);
    etch_tensor *y = etch_add(etch_mul(s, args[0].tensor), args[1].tensor);
    if (!etch_copy_(out[0], y)) return etch_last_status();
    keep(j, args[0].tensor, out[0]);
    return ETCH_OK;
}

static etch_status like_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0] = (etch_tensor_spec){etch_dtype_of(args[0].tensor), etch_sizes(args[0].tensor)};
    return ETCH_OK;
}

static etch_status bump_cuda(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                             etch_tensor *const *out, int nout) {
    (void)op, (void)nargs, (void)nout;
    ((journal *)ctx)->cuda++;
    CHECK(out[0] == args[0].tensor);
    void *px = etch_data_mut(out[0]);
    const void *pb = etch_data(args[1].tensor);
    long long n = etch_numel(out[0]);
    void *parameters[] = {&px, &pb, &n};
    return issue("bump", parameters, n, etch_device_of(out[0]));
}

static etch_status bump_cpu(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor *const *out, int nout) {
    (void)op, (void)nargs, (void)nout;
    ((journal *)ctx)->cpu++;
    return etch_add_(out[0], args[1].tensor) ? ETCH_OK : etch_last_status();
}

enum { ISSUES, CALLED, COPIES, KINDS };
static const etch_op *axpy_ops[KINDS], *bump_op;

static void register_all(void) {
    static const char *const schemas[KINDS] = {
        "user::axpy(Tensor a, Tensor b, Scalar s=2) -> Tensor",
        "user::axpy_called(Tensor a, Tensor b, Scalar s=2) -> Tensor",
        "user::axpy_copies(Tensor a, Tensor b, Scalar s=2) -> Tensor"};
    etch_op_definition d = {
        .struct_size = sizeof d, .cpu = axpy_cpu, .shape = like_first, .ctx = &log_of};
    for (int k = 0; k < KINDS; k++) {
        d.cuda = k == COPIES ? NULL : axpy_cuda;
        d.cuda_issues_only = k == ISSUES;
        CHECK((axpy_ops[k] = etch_op_register(schemas[k], &d)));
    }
    d = (etch_op_definition){
        .struct_size = sizeof d, .cpu = bump_cpu, .ctx = &log_of, .cuda = bump_cuda};
    CHECK(
        (bump_op = etch_op_register("user::bump_(Tensor(a!) self, Tensor by) -> Tensor(a!)", &d)));
}

static int kind;

static etch_tensor *axpy(etch_tensor *a, etch_tensor *b, double s) {
    etch_value args[3] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                          {.tag = ETCH_VALUE_TENSOR, .tensor = b},
                          {.tag = ETCH_VALUE_REAL, .d = s}};
    etch_tensor *out = NULL;
    return etch_op_call(axpy_ops[kind], args, 3, &out, 1) == ETCH_OK ? out : NULL;
}

static etch_tensor *bump(etch_tensor *a, etch_tensor *by) {
    etch_value args[2] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                          {.tag = ETCH_VALUE_TENSOR, .tensor = by}};
    etch_tensor *out = NULL;
    return etch_op_call(bump_op, args, 2, &out, 1) == ETCH_OK ? out : NULL;
}

/* Between operators that fuse, so that the compiled form has the operator's
 * operands in its arena. */
static etch_tensor *body(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = etch_mul(a, w);
    etch_tensor *c = axpy(b, a, 3);
    return etch_add(etch_relu(c), b);
}

static etch_tensor *writing_body(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_mul_scalar(x, 2);
    etch_tensor *b = etch_add_scalar(w, 1);
    bump(a, b);
    bump(x, a);
    return etch_sub(a, x);
}

/* ---- custom operators ---- */

TEST(eager_and_compiled) {
    register_all();
    for (kind = 0; kind < KINDS; kind++) {
        etch_tensor *x = ramp(200), *w = etch_add_scalar(ramp(200), 5), *want = body(x, w);
        etch_function *f = etch_compile(body, .fullgraph = true);
        for (etch_device d = gpu; d <= second(); d++) {
            etch_tensor *xd = etch_to_device(x, d), *wd = etch_to_device(w, d);
            module = NULL;
            log_of = (journal){0};
            ETCH_ON(d) CHECK(same(here(body(xd, wd)), want)); /* creation operators go there */
            for (int i = 0; i < 3; i++) CHECK(same(here(etch_call(f, xd, wd)), want));
            CHECK(log_of.cuda == (kind == COPIES ? 0 : 4));
            CHECK(log_of.cpu == (kind == COPIES ? 4 : 0));
        }
        int64_t devices = second() - gpu + 1;
        CHECK(etch_function_counters(f).graphs == devices);
        CHECK(etch_function_counters(f).plan_runs == 3 * devices);
        etch_function_free(f);
    }
}
TEST_AGAIN(eager_and_compiled, .setting = "FAKE_CUDA_LAZY=1")

TEST(views_and_empty_tensors) {
    register_all();
    for (kind = 0; kind < KINDS; kind++) {
        etch_tensor *m = etch_view(ramp(30), ETCH_SHAPE(5, 6)), *d = on_gpu(m);
        etch_tensor *back = etch_flip(m, ETCH_DIMS(0));
        CHECK(same(here(axpy(etch_t(d), etch_t(d), 2)), axpy(etch_t(m), etch_t(m), 2)));
        CHECK(same(here(axpy(etch_flip(d, ETCH_DIMS(0)), d, 2)), axpy(back, m, 2)));
        etch_tensor *expected = axpy(m, m, 2), *got = NULL;
        ETCH_ON(gpu) got = axpy(m, m, 2); /* on the CPU, and so is what the kernel creates */
        CHECK(same(got, expected));
        etch_tensor *none = etch_slice(d, 0, 2, 2, 1);
        CHECK(etch_numel(axpy(none, none, 2)) == 0);
    }
}

TEST(writes_in_place, .setting = "FAKE_CUDA_LAZY=1") {
    register_all();
    etch_function *f = etch_compile(writing_body, .fullgraph = true);
    for (int i = 0; i < 3; i++) {
        etch_tensor *x = ramp(90), *w = etch_add_scalar(ramp(90), i), *xd = on_gpu(x);
        log_of = (journal){0};
        etch_tensor *got = etch_call(f, xd, on_gpu(w)), *want = writing_body(x, w);
        CHECK(same(here(got), want) && same(here(xd), x));
        CHECK(log_of.cuda == 2);
    }
    CHECK(etch_function_counters(f).graphs == 1);
    etch_function_free(f);
}

/* A plan is one CUDA graph where the definition says that the work can be launched again; the
 * operator is then called only when its operands are elsewhere. */
TEST(reduce_overhead, .setting = "FAKE_CUDA_LAZY=1") {
    register_all();
    for (kind = 0; kind < KINDS; kind++) {
        etch_function *f = etch_compile(body, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        etch_tensor *w = on_gpu(ramp(100)), *kept[6];
        int64_t graphs = etch_device_stats(gpu).graph_launches;
        log_of = (journal){0};
        for (int i = 0; i < 6; i++) CHECK((kept[i] = etch_call(f, on_gpu(ramp(100)), w)));
        etch_tensor *want = body(ramp(100), here(w));
        for (int i = 0; i < 6; i++) CHECK(same(here(kept[i]), want));
        graphs = etch_device_stats(gpu).graph_launches - graphs;
        CHECK(graphs == (kind == ISSUES ? 5 : 0));
        CHECK(kind != CALLED || log_of.cuda == 6);
        CHECK(kind != ISSUES || log_of.cuda == 2); /* recording eagerly, recording the graph */
        etch_function_free(f);
    }
}

TEST(in_a_graph_of_the_users) {
    register_all();
    etch_cuda_graph *g = NULL;
    etch_tensor *x = on_gpu(ramp(64)), *y = NULL;
    CHECK(body(x, x));
    log_of = (journal){0};
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) y = body(x, x);
    CHECK(g && y && log_of.cuda == 1);
    etch_copy_(x, on_gpu(etch_neg(ramp(64))));
    for (int i = 0; i < 2; i++) CHECK(etch_cuda_graph_replay(g) == ETCH_OK);
    etch_tensor *minus = etch_neg(ramp(64));
    CHECK(log_of.cuda == 1 && same(here(y), body(minus, minus)));
    etch_cuda_graph_free(g);
}

/* ---- modes ---- */

typedef struct spy {
    int seen;
    bool answers;
} spy;

static etch_status spying(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                          etch_tensor **out, int nout) {
    spy *s = ctx;
    (void)nargs, (void)nout;
    if (!etch_op_is(op, "user::axpy")) return ETCH_DECLINED;
    s->seen++;
    CHECK(etch_device_of(args[0].tensor) == gpu);
    if (!s->answers) return ETCH_DECLINED;
    out[0] = etch_sub(args[0].tensor, args[1].tensor);
    return out[0] ? ETCH_OK : etch_last_status();
}

static etch_tensor *answered(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = etch_mul(a, w);
    etch_tensor *c = etch_sub(b, a);
    return etch_add(etch_relu(c), b);
}

TEST(under_modes) {
    register_all();
    etch_tensor *x = ramp(50), *xd = on_gpu(x), *want = body(x, x);
    for (int compiled = 0; compiled < 2; compiled++)
        for (int answers = 0; answers < 2; answers++) {
            spy s = {0, answers};
            etch_mode *m = etch_mode_new(spying, &s, .allow_compiled = compiled);
            etch_function *f = etch_compile(body);
            ETCH_WITH_MODE (m)
                for (int i = 0; i < 3; i++)
                    CHECK(same(here(etch_call(f, xd, xd)), answers ? answered(x, x) : want));
            CHECK(s.seen == 3);
            CHECK(etch_function_counters(f).plan_runs == (compiled ? 2 : 0));
            etch_function_free(f);
            etch_mode_free(m);
        }
}

/* ---- errors ---- */

TEST(callback_fails) {
    register_all();
    for (int mode = 0; mode < 2; mode++)
        for (int at = 1; at <= 3; at++) {
            etch_function *f = etch_compile(body, .mode = mode ? ETCH_MODE_REDUCE_OVERHEAD : 0);
            etch_tensor *x = on_gpu(ramp(40));
            int64_t tensors = etch_memory().tensors;
            ETCH_SCOPE {
                log_of = (journal){.fail_at = at};
                int failures = 0;
                for (int i = 0; i < 4; i++) {
                    etch_tensor *y = etch_call(f, x, x);
                    failures += !y;
                    CHECK(y || etch_last_status() == ETCH_ERR_USER);
                    CHECK(y || says(etch_last_error(), "asked to fail"));
                    etch_clear_error();
                }
                /* As a graph it is called twice, and what fails as a plan is tried again
                 * eagerly. */
                CHECK(failures <= 1 && (at > 1 || failures == 1));
                CHECK(same(here(etch_call(f, x, x)), body(ramp(40), ramp(40))));
            }
            etch_function_free(f);
            CHECK(etch_memory().tensors == tensors);
        }
}

static etch_status writes_outside(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    const void *pa = etch_data(args[0].tensor);
    void *py = NULL;
    float s = 1;
    long long n = etch_numel(out[0]);
    void *parameters[] = {&pa, &pa, &py, &s, &n};
    return issue("axpy", parameters, n, etch_device_of(out[0]));
}

/* The operator is among those that the fault lists. */
TEST(fault_names_the_operator) {
    etch_op_definition d = {
        .struct_size = sizeof d, .cpu = axpy_cpu, .shape = like_first, .cuda = writes_outside};
    const etch_op *op = etch_op_register("user::outside(Tensor a) -> Tensor", &d);
    etch_value args[1] = {{.tag = ETCH_VALUE_TENSOR, .tensor = on_gpu(ramp(20))}};
    etch_tensor *out = NULL;
    etch_status status = etch_op_call(op, args, 1, &out, 1);
    if (status == ETCH_OK) status = etch_synchronize(gpu);
    CHECK(status == ETCH_ERR_DEVICE && says(etch_last_error(), "user::outside"));
}

static char last_line[256];
static void keep_last(void *ctx, const char *line) {
    (void)ctx;
    snprintf(last_line, sizeof last_line, "%s", line);
}

/* The ready-made modes that look at tensors, on a GPU. */
TEST(ready_modes) {
    etch_mode *logging = etch_logging_mode((etch_line_sink){keep_last, NULL});
    etch_mode *validation = etch_validation_mode(false);
    etch_tensor *x = on_gpu(ramp(20)), *zero = on_gpu(etch_zeros(ETCH_F32, ETCH_SHAPE(20)));
    ETCH_WITH_MODE (logging) { etch_sin(x); }
    CHECK(!strcmp(last_line, "  result: f32[20] on cuda:0"));
    ETCH_WITH_MODE (validation) {
        CHECK(etch_sin(x));
        CHECK(!etch_div(zero, zero) && says(etch_last_error(), "the result contains NaN"));
    }
    etch_mode_free(logging);
    etch_mode_free(validation);
}

/* Not the same twice: what its registration promises is checked where its tensors are. */
static etch_status counts_calls(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)op, (void)nargs, (void)nout;
    etch_tensor *y = etch_add_scalar(args[0].tensor, ++((journal *)ctx)->cuda);
    return etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}

TEST(wrong_results_are_found) {
    char report[4096];
    etch_op_definition d = {.struct_size = sizeof d,
                            .cpu = counts_calls,
                            .shape = like_first,
                            .ctx = &log_of,
                            .cuda = counts_calls};
    register_all();
    const etch_op *op = etch_op_register("user::counts(Tensor a) -> Tensor", &d);
    etch_value args[3] = {{.tag = ETCH_VALUE_TENSOR, .tensor = on_gpu(ramp(20))},
                          {.tag = ETCH_VALUE_TENSOR, .tensor = on_gpu(ramp(20))},
                          {.tag = ETCH_VALUE_REAL, .d = 2}};
    etch_op_sample one = {args, 1}, all = {args, 3};
    CHECK(etch_opcheck(op, &one, 1, report, sizeof report) == ETCH_ERR_INVALID_ARGUMENT);
    CHECK(says(report, "purity"));
    etch_clear_error();
    for (int k = 0; k < KINDS; k++) {
        if (etch_opcheck(axpy_ops[k], &all, 1, report, sizeof report) == ETCH_OK) continue;
        fprintf(stderr, "%s\n", report);
        CHECK(!"opcheck");
    }
}

/* ---- what kernels keep ---- */

TEST(kept_tensors_stay, .setting = "FAKE_CUDA_LAZY=1") {
    register_all();
    for (kind = CALLED; kind < KINDS; kind++)
        for (int compiled = 0; compiled < 2; compiled++) {
            etch_function *f = etch_compile(body);
            etch_tensor *x = ramp(300), *xd = on_gpu(x);
            int64_t tensors = etch_memory().tensors;
            ETCH_SCOPE {
                CHECK(etch_call(f, xd, xd));
                CHECK(etch_call(f, xd, xd));
                log_of = (journal){.keep = true};
                CHECK(compiled ? etch_call(f, xd, xd) : body(xd, xd));
                for (int i = 0; i < 3; i++) CHECK(etch_call(f, on_gpu(etch_neg(x)), xd));
                etch_tensor *a = etch_add_scalar(x, 1), *b = etch_mul(a, x);
                CHECK(etch_device_of(log_of.kept[0]) == (kind == COPIES ? ETCH_CPU : gpu));
                CHECK(same(here(log_of.kept[0]), b) && same(here(log_of.kept[1]), axpy(b, a, 3)));
            }
            etch_function_free(f);
            CHECK(same(here(etch_neg(log_of.kept[0])), here(etch_neg(log_of.kept[0]))));
            for (int i = 0; i < 2; i++) etch_release(log_of.kept[i]);
            (void)tensors;
        }
}

/* ---- overrides ---- */

static int override_runs;
static etch_status relu_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor *const *out, int nout) {
    (void)op, (void)nargs, (void)nout;
    override_runs++;
    CHECK(etch_device_of(out[0]) == *(etch_device *)ctx);
    CHECK(etch_device_of(args[0].tensor) == *(etch_device *)ctx);
    etch_tensor *y = etch_add_scalar(args[0].tensor, 0.25);
    return etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}

static etch_tensor *with_relu(etch_tensor *x) {
    etch_tensor *a = etch_mul_scalar(x, -2);
    etch_tensor *b = etch_relu(a);
    return etch_add(b, a);
}

static etch_tensor *with_quarter(etch_tensor *x) {
    etch_tensor *a = etch_mul_scalar(x, -2);
    etch_tensor *b = etch_add_scalar(a, 0.25);
    return etch_add(b, a);
}

/* Of one kind of device; the other has its own kernel, before, meanwhile and after. */
TEST(overrides_are_of_one_device) {
    static const char *const names[] = {"cpu", "cuda"};
    etch_device devices[] = {ETCH_CPU, gpu};
    etch_tensor *x[2] = {etch_add_scalar(ramp(30), -9), NULL};
    x[1] = on_gpu(x[0]);
    for (int mode = 0; mode < 2; mode++)
        for (int k = 0; k < 2; k++) {
            etch_function *f =
                etch_compile(with_relu, .mode = mode ? ETCH_MODE_REDUCE_OVERHEAD : 0);
            etch_tensor *native = with_relu(x[0]), *replaced = with_quarter(x[0]);
            CHECK(same(here(with_relu(x[1])), native));
            for (int i = 0; i < 2; i++) CHECK(same(here(etch_call(f, x[1])), native));
            etch_override *o =
                etch_op_override(etch_op_find("relu"), names[k], relu_kernel, &devices[k]);
            CHECK(o);
            for (int d = 0; d < 2; d++) {
                override_runs = 0;
                CHECK(same(here(with_relu(x[d])), d == k ? replaced : native));
                for (int i = 0; i < 3; i++)
                    CHECK(same(here(etch_call(f, x[d])), d == k ? replaced : native));
                CHECK(override_runs == (d == k ? 4 : 0));
            }
            etch_op_override_undo(o);
            override_runs = 0;
            for (int d = 0; d < 2; d++)
                for (int i = 0; i < 2; i++) {
                    CHECK(same(here(with_relu(x[d])), native));
                    CHECK(same(here(etch_call(f, x[d])), native));
                }
            CHECK(override_runs == 0);
            etch_function_free(f);
        }
}

TEST(overrides_of_a_custom_operator) {
    register_all();
    etch_tensor *x = on_gpu(ramp(30)), *want = here(axpy(x, x, 2));
    log_of = (journal){0};
    kind = COPIES;
    etch_override *o = etch_op_override(axpy_ops[COPIES], "cuda", axpy_cuda, &log_of);
    etch_override *p = etch_op_override(axpy_ops[COPIES], "cpu", axpy_cpu, &log_of);
    CHECK(o && p && same(here(axpy(x, x, 2)), want) && log_of.cuda == 1 && log_of.cpu == 0);
    etch_op_override_undo(o);
    CHECK(same(here(axpy(x, x, 2)), want) && log_of.cuda == 1 && log_of.cpu == 1);
    etch_op_override_undo(p);
    CHECK(same(here(axpy(x, x, 2)), want) && log_of.cpu == 2);
}

/* ---- streams ---- */

static cu_stream new_stream(void) {
    cu_stream s = NULL;
    CHECK(etch_cuda_stream(gpu));
    CHECK(!etch__cuda.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING_));
    return s;
}

/* Streams that hold back their work show what nobody waits for. */
TEST(streams_of_the_users, .setting = "FAKE_CUDA_LAZY=1") {
    register_all();
    void *own = etch_cuda_stream(gpu);
    cu_stream s[3] = {new_stream(), new_stream(), NULL};
    etch_tensor *x = ramp(700), *want = body(body(x, x), x), *xd = on_gpu(x), *y = NULL;
    etch_function *f = etch_compile(body),
                  *g = etch_compile(body, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    for (int i = 0; i < 30; i++)
        ETCH_SCOPE {
            CHECK(etch_cuda_set_stream(gpu, s[i % 3]) == ETCH_OK);
            CHECK(etch_cuda_stream(gpu) == (s[i % 3] ? (void *)s[i % 3] : own));
            y = i % 2 ? body(xd, xd) : etch_call(i % 4 ? f : g, xd, xd);
            CHECK(etch_cuda_set_stream(gpu, s[(i / 3) % 3]) == ETCH_OK);
            y = i % 4 < 2 ? body(y, xd) : etch_call(i % 2 ? f : g, y, xd);
            CHECK(same(here(y), want));
        }
    CHECK(etch_cuda_set_stream(gpu, NULL) == ETCH_OK && etch_cuda_stream(gpu) == own);
    etch_function_free(f);
    etch_function_free(g);
}

static etch_tensor *with_products(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_softmax(etch_add_scalar(x, 1), 0);
    etch_tensor *b = axpy(etch_mm(a, w), a, 3);
    return etch_mm(etch_add(b, x), w);
}

/* A plan's graph goes where its thread's work goes, library products and the
 * user's work included. */
TEST(graphs_follow_the_stream, .setting = "FAKE_CUDA_LAZY=1") {
    register_all();
    cu_stream s[3] = {new_stream(), NULL, new_stream()};
    etch_function *f = etch_compile(with_products, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *w = on_gpu(random_of(ETCH_F32, ETCH_SHAPE(80, 80)));
    etch_device_stats_t before = etch_device_stats(gpu);
    for (int i = 0; i < 24; i++)
        ETCH_SCOPE {
            etch_tensor *x = on_gpu(random_of(ETCH_F32, ETCH_SHAPE(80, 80)));
            CHECK(etch_cuda_set_stream(gpu, s[i / 2 % 3]) == ETCH_OK);
            etch_tensor *y = etch_call(f, x, w), *z = etch_call(f, x, y);
            CHECK(etch_cuda_set_stream(gpu, s[i % 3]) == ETCH_OK);
            CHECK(same(y, with_products(x, w)) && same(z, with_products(x, y)));
        }
    etch_device_stats_t after = etch_device_stats(gpu);
    CHECK(after.graph_launches - before.graph_launches == 47);
    CHECK(after.graphs - before.graphs == 1);
    CHECK(etch_cuda_set_stream(gpu, NULL) == ETCH_OK);
    etch_function_free(f);
}

/* What was made on a stream lives on when that is gone, and its memory is used again. */
TEST(streams_may_be_destroyed, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *kept[8], *x = on_gpu(ramp(500));
    unsigned long streams = on_real_gpu() ? 0 : live("stream");
    for (int i = 0; i < 8; i++) {
        cu_stream s = new_stream();
        CHECK(etch_cuda_set_stream(gpu, s) == ETCH_OK);
        ETCH_SCOPE {
            for (int k = 0; k < 5; k++) CHECK(etch_add_scalar(x, k));
            CHECK((kept[i] = etch_keep(etch_add_scalar(x, i))));
        }
        CHECK(etch_cuda_set_stream(gpu, NULL) == ETCH_OK);
        CHECK(!etch__cuda.cuStreamDestroy_v2(s));
    }
    CHECK(lives("stream", streams));
    for (int i = 0; i < 8; i++) CHECK(same(here(kept[i]), etch_add_scalar(ramp(500), i)));
    CHECK(etch_synchronize(gpu) == ETCH_OK && etch_device_trim(gpu) == ETCH_OK);
}

TEST(streams_that_are_refused) {
    cu_stream other = NULL;
    CHECK(!etch_cuda_stream(ETCH_CPU) && etch_last_status() == ETCH_ERR_DEVICE);
    CHECK(says(etch_last_error(), "expected a GPU"));
    CHECK(!etch_cuda_stream(ETCH_CUDA(25)) && says(etch_last_error(), "cuda:25"));
    CHECK(etch_cuda_set_stream(ETCH_CUDA(25), NULL) == ETCH_ERR_DEVICE);
    void *own = etch_cuda_stream(gpu);
    if (second() != gpu) {
        CHECK(etch_cuda_stream(second()));
        CHECK(!etch__cuda.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING_));
        CHECK(etch_cuda_set_stream(gpu, other) == ETCH_ERR_DEVICE);
    }
    CHECK(etch_cuda_stream(gpu) == own && etch_item(etch_sum(on_gpu(ramp(4)))) == 6);
    etch_clear_error();
    etch_cuda_graph *g = NULL;
    cu_stream s = new_stream();
    etch_tensor *x = on_gpu(ramp(4));
    CHECK(etch_neg(x));
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) {
        CHECK(etch_cuda_set_stream(gpu, s) == ETCH_ERR_INVALID_ARGUMENT);
        etch_neg(x);
    }
    CHECK(g && etch_cuda_set_stream(gpu, own) == ETCH_OK && etch_cuda_stream(gpu) == own);
    etch_cuda_graph_free(g);
}

/* Code of the user makes another device's context current whenever it likes, also in a program that
 * never asks for a stream. */
TEST(contexts_of_the_users, .setting = "FAKE_CUDA_LAZY=1") {
    cu_context others = NULL;
    if (second() == gpu) return;
    CHECK(!etch__cuda.cuDevicePrimaryCtxRetain(&others, 1));
    CHECK(same(here(etch_sin(on_gpu(ramp(100)))), here(etch_sin(on_gpu(ramp(100))))));
    CHECK(!etch__cuda.cuCtxSetCurrent(others));
    CHECK(same(here(etch_neg(on_gpu(ramp(100)))), etch_neg(ramp(100))));
    etch_function *f = etch_compile(with_products, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *x = random_of(ETCH_F32, ETCH_SHAPE(80, 80)), *xd = on_gpu(x), *y = NULL;
    register_all();
    CHECK(function("axpy"));
    etch_tensor *want = with_products(xd, xd);
    for (int i = 0; i < 4; i++) {
        CHECK(!etch__cuda.cuCtxSetCurrent(others));
        y = i % 2 ? with_products(xd, xd) : etch_call(f, xd, xd);
        CHECK(!etch__cuda.cuCtxSetCurrent(others));
        etch_tensor *p = etch_to_pinned(y), *z = on_gpu(here(x));
        CHECK(!etch__cuda.cuCtxSetCurrent(others));
        CHECK(same(p, here(want)) && same(here(z), x));
        CHECK(!etch__cuda.cuCtxSetCurrent(others) && etch_device_trim(gpu) == ETCH_OK);
    }
    etch_function_free(f);
}

static cu_stream shared_stream;
static etch_tensor *shared;

static void *works_on_the_shared_stream(void *unused) {
    (void)unused;
    ETCH_SCOPE {
        CHECK(etch_cuda_set_stream(gpu, shared_stream) == ETCH_OK);
        for (int i = 0; i < 10; i++)
            CHECK(same(here(etch_add_scalar(shared, i)), etch_add_scalar(ramp(100), i)));
    }
    return NULL; /* its end gives the stream up */
}

TEST(streams_of_threads, .setting = "FAKE_CUDA_LAZY=1") {
    pthread_t t[3];
    shared_stream = new_stream();
    shared = on_gpu(ramp(100));
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&t[i], NULL, works_on_the_shared_stream, NULL));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    CHECK(!etch__cuda.cuStreamDestroy_v2(shared_stream));
    CHECK(same(here(etch_neg(shared)), etch_neg(ramp(100))));
    CHECK(etch_synchronize(gpu) == ETCH_OK);
}

static etch_tensor *asks_for_the_stream(etch_tensor *x) {
    etch_tensor *a = etch_add_scalar(x, 1);
    CHECK(etch_cuda_stream(gpu));
    return etch_mul(a, x);
}

TEST(asking_is_a_break) {
    etch_function *f = etch_compile(asks_for_the_stream);
    etch_tensor *x = on_gpu(ramp(9));
    for (int i = 0; i < 3; i++) CHECK(same(etch_call(f, x), asks_for_the_stream(x)));
    CHECK(etch_function_counters(f).graphs == 2 && etch_function_counters(f).plan_runs == 4);
    etch_function_free(f);
}

/* ---- pinned memory ---- */

/* A new pinned tensor with the ramp, shifted. */
static etch_tensor *pinned_ramp(int64_t n, float shift) {
    etch_tensor *t = etch_empty_pinned(ETCH_F32, ETCH_SHAPE(n));
    float *to = t ? etch_data_mut(t) : NULL;
    for (int64_t i = 0; to && i < n; i++) to[i] = (float)i + shift;
    return to ? t : NULL;
}

static etch_tensor *times_two(etch_tensor *x) {
    etch_tensor *a = etch_neg(x);
    return etch_mul_scalar(a, -2);
}

static etch_tensor *captured;
static etch_tensor *adds_captured(etch_tensor *x) {
    etch_tensor *a = etch_neg(x);
    return etch_sub(captured, a);
}
static etch_tensor *writes_captured(etch_tensor *x) {
    etch_add_(captured, x);
    return etch_neg(captured);
}

enum { WAYS = 7 };

/* Overwrites the pinned tensor, in one of many ways. */
static void overwrite(etch_tensor *p, int way, etch_function *writes) {
    captured = p;
    if (way == 0) CHECK(etch_fill_(p, -1));
    if (way == 1) CHECK(etch_fill_(etch_slice(p, 0, 1, ETCH_ABSENT, 1), -1));
    if (way == 2) memset(etch_data_mut(p), 0, 4);
    if (way == 3) CHECK(etch_call(writes, etch_ones(ETCH_F32, etch_sizes(p))));
    if (way == 4) CHECK(etch_neg_(p));
    if (way == 5) CHECK(etch_mul_(p, p));
    if (way == 6) CHECK(etch_call(writes, p));
}

/* Copies from it are not waited for, but by who writes to it. */
TEST(pinned_to_device, .setting = "FAKE_CUDA_LAZY=1") {
    enum { N = 3000 };
    etch_function *writes = etch_compile(writes_captured);
    for (int round = 0; round < 2; round++)
        for (int way = 0; way < WAYS; way++)
            ETCH_SCOPE {
                etch_tensor *p = pinned_ramp(N, (float)way);
                CHECK(p && etch_is_pinned(p) && etch_device_of(p) == ETCH_CPU);
                CHECK(etch_synchronize(gpu) == ETCH_OK && (on_real_gpu() || !held()));
                etch_tensor *d = on_gpu(p), *want = etch_add_scalar(ramp(N), way);
                CHECK(d && !etch_is_pinned(d));
                CHECK(held()); /* it was not waited for */
                overwrite(p, way, writes);
                CHECK(!same(p, want) && same(here(d), want));
            }
    CHECK(etch_function_counters(writes).graph_breaks == 0);
    etch_function_free(writes);
}

/* Who touches a copy that is under way waits for it. */
TEST(device_to_pinned, .setting = "FAKE_CUDA_LAZY=1") {
    enum { N = 3000 };
    etch_function *f = etch_compile(times_two), *g = etch_compile(adds_captured);
    float x[4];
    for (int round = 0; round < 3; round++)
        ETCH_SCOPE {
            etch_tensor *d = etch_add_scalar(on_gpu(ramp(N)), round), *p[6];
            etch_tensor *want = etch_add_scalar(ramp(N), round);
            for (int i = 0; i < 6; i++) CHECK((p[i] = etch_to_pinned(d)));
            CHECK(etch_is_pinned(p[0]) && etch_device_of(p[0]) == ETCH_CPU && held());
            CHECK(etch_item(etch_select(p[0], 0, N - 1)) == N - 1 + round);
            CHECK(((const float *)etch_data(p[1]))[7] == 7 + round);
            CHECK(same(etch_add(p[2], p[2]), etch_mul_scalar(want, 2)));
            CHECK(same(etch_call(f, p[3]), etch_mul_scalar(want, 2)));
            captured = p[4];
            CHECK(same(etch_call(g, ramp(N)), etch_add(want, ramp(N))));
            CHECK(etch_to_host(etch_slice(p[5], 0, 0, 4, 1), x, sizeof x) == ETCH_OK);
            CHECK(x[3] == 3 + round);
        }
    CHECK(etch_function_counters(f).graphs == 1 && etch_function_counters(f).plan_runs == 2);
    etch_function_free(f);
    etch_function_free(g);
}

/* Freed while a copy is under way, and used again. */
TEST(pinned_memory_is_kept, .setting = "FAKE_CUDA_LAZY=1") {
    enum { N = 2000, ROUNDS = 12 };
    etch_tensor *kept[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        ETCH_SCOPE {
            etch_tensor *d = etch_to_device(pinned_ramp(N, (float)i), (i % 2 ? second() : gpu));
            CHECK((kept[i] = etch_keep(d)));
            if (i % 3 == 2) CHECK(etch_synchronize((i % 2 ? second() : gpu)) == ETCH_OK);
            CHECK(etch_to_pinned(d));
        }
    for (int i = 0; i < ROUNDS; i++) CHECK(same(here(kept[i]), etch_add_scalar(ramp(N), i)));
    CHECK(on_real_gpu() || (live("host") > 0 && live("host") < 2 * ROUNDS));
    CHECK(etch_device_trim(gpu) == ETCH_OK && lives("host", 0));
}

TEST(pinned_views_and_devices, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *m = etch_view(ramp(30), ETCH_SHAPE(5, 6)), *d = on_gpu(m);
    CHECK(same(etch_to_pinned(etch_t(d)), etch_t(m)));
    CHECK(same(etch_to_pinned(etch_t(m)), etch_t(m)));
    CHECK(etch_numel(etch_to_pinned(etch_slice(d, 0, 2, 2, 1))) == 0);
    etch_tensor *p = etch_to_pinned(m), *both[2];
    for (int i = 0; i < 6; i++) CHECK((both[i % 2] = etch_to_device(p, (i % 2 ? second() : gpu))));
    CHECK(etch_fill_(p, 0));
    for (int i = 0; i < 2; i++) CHECK(same(here(both[i]), m));
    CHECK(same(here(on_gpu(etch_t(etch_to_pinned(m)))), etch_t(m)));
    ETCH_ON(second()) CHECK(etch_device_of(etch_to_pinned(d)) == ETCH_CPU);
    CHECK(!etch_empty_pinned(ETCH_F32, ETCH_SHAPE(2, -1)) && etch_last_status() == ETCH_ERR_SHAPE);
    CHECK(!etch_empty_pinned((etch_dtype)77, ETCH_SHAPE(2)));
    CHECK(!etch_to_pinned(NULL));
}

/* Between devices, of a tensor whose last work was on another stream. */
TEST(copies_between_devices, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *x = ramp(900), *d = on_gpu(x);
    cu_stream s = new_stream();
    for (int i = 1; i < 6; i++) {
        CHECK(etch_cuda_set_stream(gpu, s) == ETCH_OK);
        d = etch_add_scalar(d, 1);
        CHECK(etch_cuda_set_stream(gpu, NULL) == ETCH_OK);
        d = etch_to_device(etch_to_device(d, second()), gpu);
        CHECK(same(here(d), etch_add_scalar(x, i)));
    }
}

TEST(pinned_in_a_graph) {
    etch_cuda_graph *g = NULL;
    etch_tensor *p = pinned_ramp(50, 0), *y = NULL;
    CHECK(p && etch_neg(on_gpu(p)) && etch_synchronize(gpu) == ETCH_OK);
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) y = etch_neg(on_gpu(p));
    CHECK(g && y);
    for (int i = 0; i < 3; i++) {
        CHECK(etch_fill_(p, i));
        CHECK(etch_cuda_graph_replay(g) == ETCH_OK && etch_synchronize(gpu) == ETCH_OK);
        CHECK(same(here(y), etch_neg(etch_full(ETCH_F32, ETCH_SHAPE(50), i))));
    }
    etch_cuda_graph_free(g);
}

TEST(pinned_without_a_gpu, .setting = "ETCH_CUDA=0") {
    etch_tensor *p = pinned_ramp(20, 1);
    CHECK(p && !etch_is_pinned(p) && same(p, etch_add_scalar(ramp(20), 1)));
    CHECK(same(etch_to_pinned(p), p));
}

static bool pinned_program(float *y) {
    bool ok = false;
    ETCH_SCOPE {
        etch_tensor *p = pinned_ramp(16, 1), *d = p ? on_gpu(p) : NULL;
        etch_tensor *e = d && etch_fill_(p, 5) ? etch_to_device(p, second()) : NULL;
        etch_tensor *q = e ? etch_to_pinned(etch_add_scalar(d, 1)) : NULL;
        etch_tensor *r = q ? etch_to_pinned(e) : NULL, *all = r ? etch_add(q, r) : NULL;
        ok = all && etch_to_host(all, y, 16 * sizeof *y) == ETCH_OK;
    }
    return ok;
}

TEST(each_pinned_call_fails_once, .only_on_fakes = true) {
    float y[16];
    CHECK(pinned_program(y) && y[3] == 10);
    CHECK(each_call_fails(pinned_program) < 1000);
}

/* ---- convolution ---- */

typedef struct conv_case {
    int64_t images, channels, h, w, outputs, kh, kw;
    int64_t stride[2], padding[2], dilation[2], groups;
} conv_case;

static const conv_case *conv_now;
static etch_tensor *conv_body(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    const conv_case *c = conv_now;
    etch_shape s = ETCH_SHAPE(c->stride[0], c->stride[1]),
               p = ETCH_SHAPE(c->padding[0], c->padding[1]),
               d = ETCH_SHAPE(c->dilation[0], c->dilation[1]);
    return etch_conv2d(x, w, b, s, p, d, c->groups);
}

/* |got - exact| is at most the error of a sum of K terms and one rounding. */
static bool within_bound(etch_tensor *got, etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    static const double digits[ETCH_DTYPE_COUNT] = {
        [ETCH_F32] = 0x1p-24, [ETCH_F64] = 0x1p-53, [ETCH_BF16] = 0x1p-8, [ETCH_F16] = 0x1p-11};
    etch_dtype d = etch_dtype_of(x);
    double wide = d == ETCH_F64 ? 0x1p-53 : 0x1p-24;
    double terms = (double)(etch_numel(w) / etch_size(w, 0)) + 2;
    x = etch_to(x, ETCH_F64), w = etch_to(w, ETCH_F64);
    if (b != ETCH_NONE) b = etch_to(b, ETCH_F64);
    etch_tensor *exact = conv_body(x, w, b);
    etch_tensor *size = conv_body(etch_abs(x), etch_abs(w), b == ETCH_NONE ? b : etch_abs(b));
    etch_tensor *bound = etch_add(etch_mul_scalar(size, 2 * terms * wide),
                                  etch_mul_scalar(etch_abs(exact), 1.01 * digits[d]));
    bound = etch_add_scalar(bound, d == ETCH_F16 ? 0x1p-24 : 0);
    etch_tensor *off = etch_sub(etch_abs(etch_sub(etch_to(got, ETCH_F64), exact)), bound);
    return etch_item(etch_amax(off, ETCH_DIMS(0, 1, 2, 3), false)) <= 0;
}

static void check_conv(etch_dtype dtype, bool bias, bool strided) {
    const conv_case *c = conv_now;
    etch_function *f = etch_compile(conv_body);
    etch_tensor *x,
        *w = random_of(dtype, ETCH_SHAPE(c->outputs, c->channels / c->groups, c->kh, c->kw));
    x = random_of(dtype, ETCH_SHAPE(c->images, c->channels, c->h, c->w));
    if (strided)
        x = etch_transpose(random_of(dtype, ETCH_SHAPE(c->images, c->channels, c->w, c->h)), 2, 3);
    if (strided) w = etch_flip(etch_transpose(etch_transpose(w, 0, 1), 0, 1), ETCH_DIMS(0));
    etch_tensor *b = bias ? random_of(dtype, ETCH_SHAPE(2 * c->outputs)) : ETCH_NONE;
    if (bias) b = etch_slice(b, 0, 0, ETCH_ABSENT, 2);
    etch_tensor *xd = on_gpu(x), *wd = on_gpu(w), *bd = bias ? on_gpu(b) : b;
    if (strided) xd = etch_transpose(on_gpu(etch_contiguous(etch_transpose(x, 2, 3))), 2, 3);
    if (strided)
        wd = etch_permute(on_gpu(etch_contiguous(etch_permute(w, ETCH_DIMS(1, 2, 3, 0)))),
                          ETCH_DIMS(3, 0, 1, 2));
    unsigned long copies = host_copies();
    etch_tensor *got = conv_body(xd, wd, bd);
    CHECK(got && host_copies() == copies); /* not by way of the host */
    if (etch_numel(got)) CHECK(within_bound(here(got), x, w, b));
    for (int i = 0; i < 3; i++) CHECK(same(etch_call(f, xd, wd, bd), got));
    etch_function_free(f);
}

static const conv_case conv_cases[] = {
    {2, 3, 7, 9, 5, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 4, 12, 5, 70, 3, 2, {2, 1}, {0, 2}, {1, 2}, 1},
    {3, 8, 6, 6, 16, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 5, 11, 13, 6, 1, 1, {2, 3}, {0, 0}, {1, 1}, 1},
    {2, 6, 8, 8, 6, 3, 3, {1, 1}, {1, 1}, {1, 1}, 6},
    {2, 4, 9, 7, 8, 5, 3, {2, 2}, {2, 1}, {1, 1}, 2},
    {3, 6, 5, 6, 68, 2, 2, {1, 1}, {3, 0}, {2, 1}, 2},
    {1, 2, 1, 1, 3, 1, 1, {1, 1}, {4, 4}, {1, 1}, 1},
    {0, 3, 5, 5, 2, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 3, 20, 20, 66, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},
    {1, 80, 10, 10, 65, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 1, 3, 4, 2, 1, 2, {3, 2}, {5, 3}, {1, 2}, 1},
};
enum { CONV_CASES = sizeof conv_cases / sizeof *conv_cases };
static const etch_dtype conv_dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};

TEST(convolutions) {
    for (int k = 0; k < CONV_CASES; k++)
        for (int d = 0; d < 4; d++)
            for (int way = 0; way < 4; way++)
                ETCH_SCOPE {
                    etch_manual_seed((uint64_t)k);
                    conv_now = &conv_cases[k];
                    check_conv(conv_dtypes[d], way & 1, way & 2);
                }
}
TEST_AGAIN(convolutions, .setting = "FAKE_CUDA_LAZY=1")

/* More images than one matrix holds: two products, the second's results at an address that the
 * library can write to. */
TEST(convolution_in_parts) {
    static const conv_case parts = {14, 8, 63, 65, 1, 7, 7, {1, 1}, {0, 0}, {1, 1}, 1};
    conv_now = &parts;
    for (int bias = 0; bias < 2; bias++)
        ETCH_SCOPE { check_conv(ETCH_F64, bias, false); }
}

/* What it passes back to the input or the weight, whose sizes are those of `like`. */
static etch_tensor *conv_back(etch_tensor *g, etch_tensor *other, etch_tensor *like, bool weight) {
    const conv_case *c = conv_now;
    etch_shape s = ETCH_SHAPE(c->stride[0], c->stride[1]),
               p = ETCH_SHAPE(c->padding[0], c->padding[1]),
               d = ETCH_SHAPE(c->dilation[0], c->dilation[1]), size = etch_sizes(like);
    return weight ? etch_convolution_backward_weight(g, other, size, s, p, d, c->groups)
                  : etch_convolution_backward_input(g, other, size, s, p, d, c->groups);
}

/* Against the CPU's in f64; parts of a weight's sum are rounded each. */
static void check_conv_back(etch_dtype dtype, bool weight, double parts) {
    static const double digits[ETCH_DTYPE_COUNT] = {
        [ETCH_F32] = 0x1p-24, [ETCH_F64] = 0x1p-53, [ETCH_BF16] = 0x1p-8, [ETCH_F16] = 0x1p-11};
    const conv_case *c = conv_now;
    etch_tensor *x = random_of(dtype, ETCH_SHAPE(c->images, c->channels, c->h, c->w));
    etch_tensor *w =
        random_of(dtype, ETCH_SHAPE(c->outputs, c->channels / c->groups, c->kh, c->kw));
    etch_tensor *y = conv_body(x, w, ETCH_NONE);
    etch_tensor *g = etch_transpose(random_of(dtype, etch_sizes(etch_transpose(y, 2, 3))), 2, 3);
    etch_tensor *other = weight ? x : w, *like = weight ? w : x;
    etch_tensor *gd = etch_transpose(on_gpu(etch_contiguous(etch_transpose(g, 2, 3))), 2, 3);
    etch_tensor *od = on_gpu(other);
    unsigned long copies = host_copies();
    etch_tensor *got = conv_back(gd, od, like, weight);
    CHECK(got && host_copies() == copies); /* not by way of the host */
    g = etch_to(g, ETCH_F64), other = etch_to(other, ETCH_F64);
    etch_tensor *exact = conv_back(g, other, like, weight);
    etch_tensor *size = conv_back(etch_abs(g), etch_abs(other), like, weight);
    double terms = weight ? (double)(etch_numel(y) / c->outputs) : (double)etch_numel(w);
    double wide = dtype == ETCH_F64 ? 0x1p-53 : 0x1p-24;
    etch_tensor *bound =
        etch_add(etch_mul_scalar(size, 2 * (terms + 2) * wide + (parts - 1) * digits[dtype]),
                 etch_mul_scalar(etch_abs(exact), 1.01 * digits[dtype]));
    bound = etch_add_scalar(bound, dtype == ETCH_F16 ? 0x1p-24 : 0);
    etch_tensor *off = etch_sub(etch_abs(etch_sub(etch_to(here(got), ETCH_F64), exact)), bound);
    if (etch_numel(off)) CHECK(etch_item(etch_max(off)) <= 0);
}

TEST(convolutions_backward) {
    for (int k = 0; k < CONV_CASES; k++)
        for (int d = 0; d < 4; d++)
            for (int weight = 0; weight < 2; weight++)
                ETCH_SCOPE {
                    etch_manual_seed((uint64_t)k);
                    conv_now = &conv_cases[k];
                    check_conv_back(conv_dtypes[d], weight, 1);
                }
}

TEST(convolution_backward_in_parts) {
    static const conv_case parts = {14, 8, 63, 65, 1, 7, 7, {1, 1}, {0, 0}, {1, 1}, 1};
    conv_now = &parts;
    ETCH_SCOPE
        check_conv_back(ETCH_F64, true, 2);
}

/* An operator of the table that others are made of stays theirs. */
TEST(convolution_ignores_overrides) {
    static const conv_case small = {2, 3, 9, 9, 5, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1};
    etch_device d = gpu;
    conv_now = &small;
    etch_tensor *x = on_gpu(random_of(ETCH_F32, ETCH_SHAPE(2, 3, 9, 9)));
    etch_tensor *w = on_gpu(random_of(ETCH_F32, ETCH_SHAPE(5, 3, 3, 3)));
    etch_tensor *want = conv_body(x, w, ETCH_NONE);
    etch_override *o = etch_op_override(etch_op_find("bmm"), "cuda", relu_kernel, &d);
    override_runs = 0;
    CHECK(o && same(conv_body(x, w, ETCH_NONE), want) && override_runs == 0);
    etch_op_override_undo(o);
}

/* ---- powers of integers ---- */

static etch_tensor *powers(etch_tensor *x, etch_tensor *e) {
    etch_tensor *a = etch_pow(x, e);
    etch_tensor *b = etch_add(a, x);
    return etch_pow(b, etch_select(e, 0, 1));
}

static double exponent_now;
static etch_tensor *power_scalar(etch_tensor *x) {
    etch_scalar e = etch_scalar_int((int64_t)exponent_now);
    etch_tensor *a = etch_clone(x);
    etch_pow_scalar_(a, e);
    return etch_add(etch_pow_scalar(x, e), a);
}

/* As on the CPU, and there. */
TEST(powers_of_integers) {
    static const etch_dtype dtypes[] = {ETCH_I8, ETCH_I16, ETCH_I32, ETCH_I64, ETCH_U8, ETCH_BOOL};
    enum { N = sizeof dtypes / sizeof *dtypes };
    etch_tensor *line = etch_view(etch_arange(ETCH_F32, -12, 24, 1), ETCH_SHAPE(6, 6));
    for (int i = 0; i < N * N; i++)
        ETCH_SCOPE {
            etch_tensor *x = etch_to(line, dtypes[i % N]), *e = etch_to(line, dtypes[i / N]);
            e = etch_slice(etch_t(e), 0, 0, ETCH_ABSENT, 1);
            etch_tensor *xd = on_gpu(x), *ed = etch_t(on_gpu(etch_contiguous(etch_t(e))));
            etch_function *f = etch_compile(powers);
            unsigned long copies = host_copies();
            etch_tensor *got = powers(xd, ed);
            CHECK(host_copies() == copies);
            CHECK(same(here(got), powers(x, e)));
            for (int k = 0; k < 3; k++) CHECK(same(etch_call(f, xd, ed), got));
            etch_function_free(f);
            etch_function *g = etch_compile(power_scalar);
            for (exponent_now = -2; i < N && i != N - 1 && exponent_now < 9; exponent_now++) {
                CHECK(same(here(power_scalar(xd)), power_scalar(x)));
                CHECK(same(here(etch_call(g, xd)), power_scalar(x)));
            }
            etch_function_free(g);
        }
}

/* ---- failing calls ---- */

static cu_stream users_stream;

/* On a stream of the user's, every kind of operator. */
static bool program(float *y) {
    bool ok = false;
    ETCH_SCOPE {
        etch_function *f = etch_compile(body, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        bool set = f && etch_cuda_set_stream(gpu, users_stream) == ETCH_OK;
        etch_tensor *x = set ? on_gpu(ramp(16)) : NULL, *all = x;
        for (kind = 0; all && kind < KINDS; kind++) all = etch_add(all, body(x, x));
        for (kind = 0; all && kind < 3; kind++) all = etch_add(all, etch_call(f, x, x));
        ok = all && etch_to_host(all, y, 16 * sizeof *y) == ETCH_OK;
        etch_function_free(f);
    }
    return (etch_cuda_set_stream(gpu, NULL) == ETCH_OK) & ok;
}

static void begin_program(void) {
    register_all();
    users_stream = new_stream();
    CHECK(function("axpy"));
}

TEST(each_call_fails_once, .only_on_fakes = true) {
    begin_program();
    each_call_fails(program);
}

TEST(each_allocation_fails_once, .only_on_fakes = true) {
    begin_program();
    CHECK(each_allocation_fails(program) > 20);
}

/* ---- */

int main(int argc, char **argv) { return run_in_children(argc, argv); }
