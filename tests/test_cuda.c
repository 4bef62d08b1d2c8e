/* The CUDA backend on the fakes of fake_cuda/: devices, copies, tensors of a device inside compiled
 * functions, CUDA graphs, and what happens when a call of the driver fails.
 *
 * What the fakes are told is read when they are opened, and a driver does not survive a fork, so each
 * test is a child process, forked before this one has asked for a GPU. CHECK ends the child. */
#include "trace_support.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) give_up(#condition, __LINE__);                                           \
    } while (0)

static void give_up(const char *what, int line) {
    fprintf(stderr, "test_cuda.c:%d: %s; last error: %s\n", line, what, etch_last_error());
    _exit(1);
}

static bool says(const char *text, const char *part) { return strstr(text, part) != NULL; }

/* ---- children ---- */

static char fakes[3][1024];

static void use_fakes(void) {
    static const char *const names[] = {"cuda", "nvrtc", "cublaslt"};
    static const char *const variables[] = {"ETCH_CUDA_DRIVER", "ETCH_CUDA_NVRTC",
                                            "ETCH_CUDA_CUBLASLT"};
    for (int i = 0; i < 3; i++) {
        snprintf(fakes[i], sizeof fakes[i], "%s/tests/fake_cuda/libfake_%s.so",
                 ETCH_TEST_BINARY_DIR, names[i]);
        setenv(variables[i], fakes[i], 1);
    }
    setenv("FAKE_CUDA_CACHE", ETCH_TEST_BINARY_DIR "/tests/fake_cuda/kernels", 0);
    setenv("ETCH_CACHE_SIZE", "0", 1);
    unsetenv("ETCH_CUDA");
}

/* A test: its body with one more setting of the environment ("NAME=value", or NULL). */
typedef struct child_test {
    void (*body)(void);
    const char *setting;
} child_test;

static void in_child(void **state) {
    const child_test *t = *state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (t->setting) putenv((char *)t->setting);
        ETCH_SCOPE { t->body(); }
        fflush(NULL);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* A function of the fake driver's control.h. */
static void *control(const char *name) {
    void *driver = dlopen(fakes[0], RTLD_NOW | RTLD_LOCAL), *at = driver ? dlsym(driver, name) : 0;
    CHECK(at);
    return at;
}

static void fail_after(int n) { ((void (*)(int))control("fake_cuda_fail_after"))(n); }
static void fail_symbol(const char *symbol, int n) {
    ((void (*)(const char *, int))control("fake_cuda_fail_symbol"))(symbol, n);
}
static unsigned long failed(void) {
    return ((unsigned long (*)(void))control("fake_cuda_failed"))();
}
static unsigned long calls_of(const char *symbol) {
    return ((unsigned long (*)(const char *))control("fake_cuda_count"))(symbol);
}
static unsigned long live(const char *kind) {
    return ((unsigned long (*)(const char *))control("fake_cuda_live"))(kind);
}

static const etch_device gpu = ETCH_CUDA(0);

static etch_tensor *ramp(int64_t n) { return etch_arange(ETCH_F32, 0, (double)n, 1); }
static etch_tensor *on_gpu(etch_tensor *t) { return etch_to_device(t, gpu); }

/* ---- devices ---- */

static void hidden(void) {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "ETCH_CUDA=0"));
    CHECK(etch_set_device(gpu) == ETCH_ERR_DEVICE);
    CHECK(says(etch_last_error(), "cuda:0") && says(etch_last_error(), "ETCH_CUDA=0"));
    CHECK(etch_current_device() == ETCH_CPU);
    CHECK(!on_gpu(ramp(3)));
    etch_clear_error();
    CHECK(etch_item(etch_sum(ramp(4))) == 6);
}

static void not_found(void) {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "driver was not found"));
}

/* A library that is there but has not what is called: another one in the driver's place. */
static void too_old(void) {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "the CUDA driver is too old: it has no cuInit"));
}

static void old_version(void) {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "too old") && says(etch_cuda_absent(), "11.4"));
}

static void no_devices(void) {
    CHECK(etch_cuda_count() == 0);
    CHECK(*etch_cuda_absent());
    CHECK(etch_set_device(gpu) == ETCH_ERR_DEVICE);
}

static void numbers_that_do_not_exist(void) {
    static const etch_device wrong[] = {ETCH_CUDA(2), ETCH_CUDA(31), ETCH_CUDA(63), 1000, -1, -100};
    CHECK(etch_cuda_count() == 2 && !*etch_cuda_absent());
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        etch_clear_error();
        CHECK(etch_set_device(wrong[i]) == ETCH_ERR_DEVICE);
        CHECK(says(etch_last_error(), "cuda:1"));
        CHECK(!etch_to_device(ramp(2), wrong[i]) && etch_last_status() == ETCH_ERR_DEVICE);
        CHECK(etch_synchronize(wrong[i]) == ETCH_ERR_DEVICE);
        CHECK(etch_device_trim(wrong[i]) == ETCH_ERR_DEVICE);
        CHECK(etch_device_stats(wrong[i]).launches == 0);
    }
    CHECK(etch_current_device() == ETCH_CPU);
}

static void mixed_devices(void) {
    etch_tensor *a = ramp(4), *b = on_gpu(a), *c = etch_to_device(a, ETCH_CUDA(1));
    CHECK(b && c && !etch_add(a, b) && etch_last_status() == ETCH_ERR_DEVICE);
    CHECK(says(etch_last_error(), "cpu") && says(etch_last_error(), "cuda:0"));
    etch_clear_error();
    CHECK(!etch_mul(b, c));
    CHECK(says(etch_last_error(), "cuda:1") && says(etch_last_error(), "cuda:0"));
    etch_clear_error();
    CHECK(!etch_add_(b, a) && etch_last_status() == ETCH_ERR_DEVICE);
    CHECK(etch_bitwise_equal(etch_to_device(b, ETCH_CPU), a));
}

/* ---- copies and reads ---- */

static void goes_and_returns(etch_tensor *t) {
    CHECK(t);
    for (etch_device d = gpu; d <= ETCH_CUDA(1); d++) {
        etch_tensor *there = etch_to_device(t, d);
        CHECK(there && etch_device_of(there) == d);
        CHECK(etch_bitwise_equal(there, t));
        etch_tensor *other = etch_to_device(there, d == gpu ? ETCH_CUDA(1) : gpu);
        CHECK(other && etch_bitwise_equal(other, there));
        etch_tensor *back = etch_to_device(other, ETCH_CPU);
        CHECK(back && etch_device_of(back) == ETCH_CPU && etch_bitwise_equal(back, t));
    }
}

/* The same view of a tensor there and here. */
static void views_return(etch_tensor *(*view)(etch_tensor *t)) {
    etch_tensor *t = etch_view(ramp(24), ETCH_SHAPE(4, 6));
    goes_and_returns(view(t));
    etch_tensor *there = view(on_gpu(t));
    CHECK(there && etch_bitwise_equal(there, view(t)));
    CHECK(etch_bitwise_equal(etch_to_device(there, ETCH_CPU), view(t)));
}

static etch_tensor *backwards(etch_tensor *t) {
    return etch_slice(etch_transpose(t, 0, 1), 0, ETCH_ABSENT, ETCH_ABSENT, -2);
}
static etch_tensor *at_an_offset(etch_tensor *t) { return etch_slice(t, 0, 1, 3, 1); }
static etch_tensor *one(etch_tensor *t) { return etch_select(etch_select(t, 0, 2), 0, 3); }
static etch_tensor *expanded(etch_tensor *t) {
    return etch_expand(etch_slice(t, 0, 2, 3, 1), ETCH_SHAPE(5, 6));
}
static etch_tensor *nothing(etch_tensor *t) { return etch_slice(t, 1, 3, 3, 1); }

static void to_device_and_back(void) {
    views_return(backwards);
    views_return(at_an_offset);
    views_return(one);
    views_return(expanded);
    views_return(nothing);
    goes_and_returns(etch_zeros(ETCH_BOOL, ETCH_SHAPE(0)));
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) goes_and_returns(etch_to(ramp(7), (etch_dtype)d));
}

static void host_reads(void) {
    etch_tensor *a = etch_view(ramp(6), ETCH_SHAPE(2, 3)), *b = on_gpu(a);
    char here[256], there[256], path[] = "/tmp/etch-cuda-XXXXXX.npy";
    float x[6];
    CHECK(etch_item(one(on_gpu(etch_view(ramp(24), ETCH_SHAPE(4, 6))))) == 15);
    CHECK(etch_item_int(etch_sum(b)) == 15);
    etch_format(a, here, sizeof here);
    etch_format(b, there, sizeof there);
    CHECK(!strcmp(here, there) || says(there, "cuda:0"));
    CHECK(etch_to_host(etch_transpose(b, 0, 1), x, sizeof x) == ETCH_OK && x[1] == 3 && x[2] == 1);
    CHECK(etch_equal(a, b) && etch_allclose(b, a, 0, 0, false) && !etch_equal(b, etch_neg(b)));
    CHECK(close(mkstemps(path, 4)) == 0 && etch_npy_save(path, b) == ETCH_OK);
    ETCH_ON(gpu) {
        etch_tensor *loaded = etch_npy_load(path);
        CHECK(loaded && etch_device_of(loaded) == gpu && etch_bitwise_equal(loaded, a));
    }
    remove(path);
}

/* ---- the current device ---- */

static void inside_another(void) { ETCH_ON(ETCH_CPU) CHECK(etch_device_of(ramp(2)) == ETCH_CPU); }

static void current_device(void) {
    float x[2] = {1, 2};
    ETCH_ON(gpu) {
        CHECK(etch_current_device() == gpu);
        CHECK(etch_device_of(etch_zeros(ETCH_F32, ETCH_SHAPE(2))) == gpu);
        CHECK(etch_device_of(etch_from_host(x, ETCH_F32, ETCH_SHAPE(2))) == gpu);
        etch_tensor *empty = etch_from_host(x, ETCH_F32, ETCH_SHAPE(0, 2));
        CHECK(etch_device_of(empty) == gpu);
        CHECK(etch_add(empty, etch_ones(ETCH_F32, ETCH_SHAPE(2))));
        inside_another();
        CHECK(etch_current_device() == gpu);
    }
    CHECK(etch_current_device() == ETCH_CPU);
    etch_manual_seed(7);
    etch_tensor *here = etch_rand(ETCH_F32, ETCH_SHAPE(9));
    etch_manual_seed(7);
    ETCH_ON(gpu) CHECK(etch_bitwise_equal(etch_rand(ETCH_F32, ETCH_SHAPE(9)), here));
}

static etch_tensor *adds_a_new_one(etch_tensor *x) {
    etch_tensor *y = etch_full(ETCH_F32, ETCH_SHAPE(5), 2);
    return etch_add(x, y);
}

static etch_tensor *switches_inside(etch_tensor *x) {
    etch_tensor *y = NULL;
    ETCH_ON(gpu) y = etch_mul_scalar(etch_ones(ETCH_F32, ETCH_SHAPE(5)), 3);
    return etch_add(etch_relu(x), y);
}

/* Called where the argument lies, then where it does not: an error of the body, as eager has it. */
static void creation_inside_compiled(void) {
    etch_function *f = etch_compile(adds_a_new_one), *g = etch_compile(switches_inside);
    etch_tensor *x = ramp(5), *there = on_gpu(x);
    for (int i = 0; i < 3; i++) {
        CHECK(etch_bitwise_equal(etch_call(f, x), adds_a_new_one(x)));
        ETCH_ON(gpu) {
            etch_tensor *y = etch_call(f, there);
            CHECK(y && etch_device_of(y) == gpu && etch_bitwise_equal(y, adds_a_new_one(there)));
        }
        CHECK(!etch_call(f, there) && etch_last_status() == ETCH_ERR_DEVICE);
        etch_clear_error();
        CHECK(etch_bitwise_equal(etch_call(g, there), switches_inside(there)));
        CHECK(etch_current_device() == ETCH_CPU);
    }
    CHECK(etch_function_counters(g).plan_runs > 0);
    etch_function_free(f);
    etch_function_free(g);
}

/* ---- compiled functions ---- */

static etch_tensor *chain(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_mm(x, w);
    etch_tensor *b = etch_relu(etch_add(a, x));
    return etch_sub(b, etch_mean_dim(b, ETCH_DIMS(1), true));
}

static etch_tensor *square_on(etch_device d, int64_t n, double shift) {
    etch_tensor *line = etch_arange(ETCH_F32, shift, shift + (double)(n * n), 1);
    return etch_to_device(etch_div_scalar(etch_view(line, ETCH_SHAPE(n, n)), 7), d);
}

static void guards_on_device(void) {
    char text[8192];
    etch_function *f = etch_compile(chain);
    for (int i = 0; i < 2; i++)
        for (etch_device d = ETCH_CPU; d <= ETCH_CUDA(1); d++) {
            etch_tensor *x = square_on(d, 6, i), *w = square_on(d, 6, 3);
            etch_tensor *y = etch_call(f, x, w);
            CHECK(y && etch_device_of(y) == d && etch_bitwise_equal(y, chain(x, w)));
        }
    CHECK(etch_function_counters(f).graphs == 3);
    CHECK(etch_function_counters(f).plan_runs == 3);
    etch_explain_text(f, text, sizeof text);
    CHECK(says(text, "cuda:0") || says(text, "device"));
    etch_function_free(f);
}

static etch_tensor *copies_inside(etch_tensor *x) {
    etch_tensor *y = etch_relu(etch_add_scalar(x, 1));
    etch_tensor *z = etch_to_device(y, ETCH_CPU);
    return etch_mul_scalar(etch_neg(z), 2);
}

static void copy_is_a_break(void) {
    etch_function *f = etch_compile(copies_inside);
    etch_function *whole = etch_compile(copies_inside, .fullgraph = true);
    etch_tensor *x = on_gpu(ramp(5));
    for (int i = 0; i < 3; i++) {
        etch_tensor *y = etch_call(f, x);
        CHECK(y && etch_device_of(y) == ETCH_CPU && etch_bitwise_equal(y, copies_inside(x)));
    }
    CHECK(etch_function_counters(f).graphs == 2 && etch_function_counters(f).plan_runs == 4);
    CHECK(!etch_call(whole, x) && etch_last_status() == ETCH_ERR_GRAPH_BREAK);
    etch_function_free(f);
    etch_function_free(whole);
}

static etch_tensor *two_devices(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = etch_mul_scalar(y, 2);
    return etch_add(etch_sum(a), etch_to_device(etch_sum(b), etch_device_of(x)));
}

static void mixed_segment(void) {
    etch_function *f = etch_compile(two_devices);
    etch_tensor *x = ramp(5), *y = on_gpu(ramp(4));
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(f, x, y), two_devices(x, y)));
    CHECK(etch_counters().compile_failures == 0);
    etch_function_free(f);
}

/* ---- CUDA graphs ---- */

static void reduce_overhead(void) {
    etch_function *f = etch_compile(chain, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *w = square_on(gpu, 6, 3), *results[4], *expected[4];
    for (int i = 0; i < 4; i++) {
        etch_tensor *x = square_on(gpu, 6, i);
        expected[i] = chain(x, w);
        results[i] = etch_call(f, x, w);
        CHECK(results[i]);
    }
    etch_device_stats_t s = etch_device_stats(gpu);
    CHECK(s.graphs <= 1 && s.graph_launches <= 3 && s.operand_copies == 0);
    for (int i = 0; i < 4; i++) CHECK(etch_bitwise_equal(results[i], expected[i]));
    CHECK(etch_function_counters(f).graphs == 1);
    etch_function_free(f);
}

/* ---- ETCH_CHECK=1 ---- */

static etch_tensor *writes_its_argument(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *rows = etch_slice(x, 0, 1, 3, 1);
    etch_add_(rows, etch_slice(y, 0, 0, 2, 1));
    return etch_mul(x, y);
}

static etch_tensor *captured;
static etch_tensor *adds_captured(etch_tensor *x) { return etch_add(x, captured); }

/* Shadows lie on the device too; a replay that is stale there is found. */
static void checking_mode(void) {
    ETCH_SCOPE
        ETCH_ON(ETCH_CUDA(0)) {
            etch_function *f = etch_compile(writes_its_argument);
            for (int i = 0; i < 4; i++) {
                etch_tensor *x = ramp(4), *same = ramp(4);
                etch_tensor *got = etch_call(f, x), *want = writes_its_argument(same);
                CHECK(got && etch_bitwise_equal(got, want) && etch_bitwise_equal(x, same));
            }
            etch_function *g = etch_compile(adds_captured, .replay = true);
            for (int i = 0; i < 4; i++) {
                captured = ramp(4); /* another one with the same values */
                CHECK(etch_call(g, ramp(4)));
            }
            captured = etch_neg(ramp(4));
            CHECK(!etch_call(g, ramp(4)) && etch_last_status() == ETCH_ERR_CHECK);
            CHECK(says(etch_last_error(), "captured tensor"));
            etch_function_free(f);
            etch_function_free(g);
        }
}

/* ---- memory ---- */

static void out_of_memory(void) {
    enum { N = 1 << 20 };
    etch_tensor *kept[64];
    int n = 0;
    ETCH_SCOPE {
        for (; n < 64; n++)
            if (!(kept[n] = etch_to_device(etch_full(ETCH_F32, ETCH_SHAPE(N), n), gpu))) break;
        CHECK(n > 1 && n < 64 && etch_last_status() == ETCH_ERR_OUT_OF_MEMORY);
        CHECK(says(etch_last_error(), "cuda:0"));
        etch_clear_error();
        for (int i = 0; i < n; i++) CHECK(etch_item(etch_select(kept[i], 0, N - 1)) == i);
    }
    etch_tensor *x = on_gpu(ramp(N));
    CHECK(x && etch_item(etch_select(etch_add(x, x), 0, N - 1)) == 2.0 * (N - 1));
    etch_device_stats_t s = etch_device_stats(gpu);
    CHECK(s.bytes_peak >= s.bytes_live && s.bytes_live >= 4 * N);
}

/* ---- failing calls ---- */

/* Eager, compiled, as a graph. Its result in y; false: some call failed with an error. */
static bool program(float *y) {
    bool ok = false;
    ETCH_SCOPE {
        etch_function *f = etch_compile(chain);
        etch_function *g = etch_compile(chain, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        etch_tensor *x = square_on(gpu, 4, 1), *w = square_on(gpu, 4, 2);
        etch_tensor *all = x && w ? chain(x, w) : NULL;
        for (int i = 0; all && i < 3; i++) all = etch_add(all, etch_call(f, x, w));
        for (int i = 0; all && i < 3; i++) all = etch_add(all, etch_call(g, x, w));
        ok = all && etch_to_host(all, y, 16 * sizeof *y) == ETCH_OK;
        etch_function_free(f);
        etch_function_free(g);
    }
    return ok;
}

static void each_call_fails_once(void) {
    float expected[16], y[16];
    CHECK(program(expected) && etch_last_status() == ETCH_OK);
    CHECK(program(expected));
    etch_device_trim(gpu);
    int64_t tensors = etch_memory().tensors;
    int64_t bytes = etch_device_stats(gpu).bytes_live;
    unsigned long modules = live("module"), graphs = live("graph"), execs = live("exec");
    int errors = 0, n = 1;
    for (; n < 5000; n++) {
        unsigned long before = failed();
        fail_after(n);
        bool ok = program(y);
        bool fell = failed() > before;
        fail_after(0);
        CHECK(ok || fell);
        CHECK(ok || etch_last_status() != ETCH_OK);
        if (ok) CHECK(!memcmp(y, expected, sizeof y)); /* helped itself, or nothing failed */
        errors += !ok;
        etch_clear_error();
        if (!fell) break;
        CHECK(program(y) && !memcmp(y, expected, sizeof y));
        CHECK(etch_memory().tensors == tensors);
        CHECK(etch_device_stats(gpu).bytes_live == bytes);
        etch_device_trim(gpu);
    }
    CHECK(n > 20 && n < 5000 && errors > 0);
    CHECK(live("graph") <= graphs && live("exec") <= execs && live("module") <= modules + 8);
}

/* ---- kernels that cannot be built ---- */

static char logged[8192];
static void keep_log(void *ctx, const char *line) {
    (void)ctx;
    strncat(logged, line, sizeof logged - strlen(logged) - 2);
    strcat(logged, "\n");
}

static void kernel_that_does_not_build(void) {
    etch_function *f = etch_compile(chain);
    etch_tensor *x = square_on(gpu, 4, 1), *w = square_on(gpu, 4, 2);
    etch_tensor *expected = chain(x, w);
    CHECK(expected);
    etch_set_log_sink(keep_log, NULL);
    etch_set_logs("fusion");
    unsigned long before = calls_of("nvrtcCompileProgram");
    fail_symbol("nvrtcCompileProgram", 1);
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(f, x, w), expected));
    fail_symbol(NULL, 0);
    CHECK(calls_of("nvrtcCompileProgram") > before);
    CHECK(etch_counters().compile_failures == 1);
    CHECK(says(logged, "NVRTC"));
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    etch_function_free(f);
}

/* The kernel of an eager operator itself: an error `compile`, and the next call tries again. */
static void eager_kernel_that_does_not_build(void) {
    etch_tensor *x = on_gpu(ramp(5));
    fail_symbol("nvrtcCompileProgram", 1);
    etch_tensor *y = etch_tanh(x);
    fail_symbol(NULL, 0);
    CHECK(y || etch_last_status() == ETCH_ERR_COMPILE);
    etch_clear_error();
    CHECK(etch_allclose(etch_tanh(x), etch_tanh(ramp(5)), 1e-6, 1e-6, false));
}

/* ---- threads and processes ---- */

static void *works_on_its_own_stream(void *number) {
    etch_function *f = NULL;
    ETCH_SCOPE {
        f = etch_compile(chain);
        for (int i = 0; i < 4; i++) {
            double shift = (double)(intptr_t)number + i;
            etch_tensor *x = square_on(gpu, 5, shift), *w = square_on(gpu, 5, 2);
            etch_tensor *y = etch_call(f, x, w);
            CHECK(y && etch_allclose(y, chain(square_on(0, 5, shift), square_on(0, 5, 2)), 1e-5,
                                     1e-5, false));
        }
    }
    etch_function_free(f);
    return NULL;
}

static etch_tensor *shared_by_threads;

static void *reads_what_another_wrote(void *unused) {
    (void)unused;
    ETCH_SCOPE {
        etch_tensor *y = etch_add_scalar(shared_by_threads, 1);
        CHECK(etch_item(etch_sum(y)) == 1000.0 * 3);
    }
    return NULL;
}

/* Streams that hold back their work show what nobody waits for. */
static void threads_have_streams(void) {
    pthread_t t[3];
    for (intptr_t i = 0; i < 3; i++)
        CHECK(!pthread_create(&t[i], NULL, works_on_its_own_stream, (void *)i));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    shared_by_threads = etch_add(on_gpu(etch_ones(ETCH_F32, ETCH_SHAPE(1000))),
                                 on_gpu(etch_ones(ETCH_F32, ETCH_SHAPE(1000))));
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&t[i], NULL, reads_what_another_wrote, NULL));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
}

static void fork_after_use(void) {
    etch_tensor *x = on_gpu(ramp(5)), *y = ramp(3);
    CHECK(etch_item(etch_sum(x)) == 10);
    pid_t child = fork();
    if (child == 0) {
        CHECK(!etch_add(x, x) && etch_last_status() == ETCH_ERR_DEVICE);
        CHECK(says(etch_last_error(), "forked child"));
        etch_clear_error();
        CHECK(isnan(etch_item(etch_select(x, 0, 1))));
        etch_clear_error();
        CHECK(etch_item(etch_sum(y)) == 3);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(etch_item(etch_sum(x)) == 10);
}

/* ---- the disk cache ---- */

static char cache_dir[] = "/tmp/etch-cuda-cache-XXXXXX";

static void fills_the_cache(void) {
    setenv("ETCH_CACHE_DIR", cache_dir, 1);
    float y[16];
    CHECK(program(y) && etch_counters().kernels_compiled > 0);
}

static void compiles_nothing(void) {
    setenv("ETCH_CACHE_DIR", cache_dir, 1);
    float y[16];
    CHECK(program(y) && etch_counters().kernels_compiled == 0 && etch_counters().cache_hits > 0);
    CHECK(calls_of("nvrtcCompileProgram") == 0);
    etch_cache_clear();
    rmdir(cache_dir);
}

/* ---- */

#define IN_CHILD(of_body, of_setting)                                                              \
    {                                                                                              \
#of_body, in_child, NULL, NULL, &(child_test) { of_body, of_setting }                      \
    }

int main(void) {
    if (system("g++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: the fakes compile kernels with g++, which is not here");
        return 77;
    }
    use_fakes();
    if (!mkdtemp(cache_dir)) return 1;
    const struct CMUnitTest tests[] = {
        IN_CHILD(hidden, "ETCH_CUDA=0"),
        IN_CHILD(not_found, "ETCH_CUDA_DRIVER=/no/such/libcuda.so"),
        IN_CHILD(too_old, "ETCH_CUDA_DRIVER=libm.so.6"),
        IN_CHILD(old_version, "FAKE_CUDA_VERSION=11040"),
        IN_CHILD(no_devices, "FAKE_CUDA_DEVICES=0"),
        IN_CHILD(numbers_that_do_not_exist, NULL),
        IN_CHILD(mixed_devices, NULL),
        IN_CHILD(to_device_and_back, NULL),
        IN_CHILD(host_reads, NULL),
        IN_CHILD(current_device, NULL),
        IN_CHILD(creation_inside_compiled, NULL),
        IN_CHILD(guards_on_device, NULL),
        IN_CHILD(copy_is_a_break, NULL),
        IN_CHILD(mixed_segment, NULL),
        IN_CHILD(reduce_overhead, NULL),
        IN_CHILD(checking_mode, "ETCH_CHECK=1"),
        IN_CHILD(out_of_memory, "FAKE_CUDA_MEMORY=33554432"),
        IN_CHILD(each_call_fails_once, NULL),
        IN_CHILD(kernel_that_does_not_build, NULL),
        IN_CHILD(eager_kernel_that_does_not_build, NULL),
        IN_CHILD(threads_have_streams, "FAKE_CUDA_LAZY=1"),
        IN_CHILD(fork_after_use, NULL),
        IN_CHILD(fills_the_cache, "ETCH_CACHE_SIZE=100000000"),
        IN_CHILD(compiles_nothing, "ETCH_CACHE_SIZE=100000000"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
