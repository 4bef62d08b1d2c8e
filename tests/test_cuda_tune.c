/* ETCH_MODE_MAX_AUTOTUNE and ETCH_RELAXED on the fakes of the driver: choices are made by timing, kept
 * in memory and on disk, change no bit of generated kernels, and failing to make one changes nothing.
 * Where a test has to know what is fastest, the fake's clock is told (fake_cuda_set_elapsed). */
#include "cuda_child.h"

#include <math.h>
#include <pthread.h>

/* factor below 1: the later a candidate is timed, the faster it seems (soon so fast that it is run many
 * times). 1: all the same. 0: the real clock. */
static void set_clock(double factor) {
    ((void (*)(double, double))control("fake_cuda_set_elapsed"))(1.0, factor);
}

static char logged[1 << 16];

static void keep_log(void *ctx, const char *line) {
    (void)ctx;
    size_t at = strlen(logged);
    snprintf(logged + at, sizeof logged - at, "%s\n", line);
}

static void log_tuning(void) {
    CHECK(etch_set_logs("autotune") == ETCH_OK);
    etch_set_log_sink(keep_log, NULL);
}

static etch_tensor *numbers(int64_t rows, int64_t columns) {
    return on_gpu(etch_randn(ETCH_F32, ETCH_SHAPE(rows, columns)));
}

static etch_tensor *mixed(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_mul(x, y), etch_tanh(x));
}

static etch_tensor *rows(etch_tensor *x, etch_tensor *y) {
    return etch_sum_dim(etch_mul(x, y), ETCH_SHAPE(1), false);
}

static etch_tensor *columns(etch_tensor *x, etch_tensor *y) {
    return etch_sum_dim(etch_mul(x, y), ETCH_SHAPE(0), false);
}

static etch_tensor *all(etch_tensor *x, etch_tensor *y) { return etch_sum(etch_mul(x, y)); }

static etch_tensor *norm(etch_tensor *x, etch_tensor *y) {
    return etch_softmax(etch_add(x, y), -1);
}

static etch_tensor *turned(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_t(x), etch_sin(etch_t(y)));
}

static etch_function *tuned(etch_fn2 body) {
    return etch_compile(body, .mode = ETCH_MODE_MAX_AUTOTUNE);
}

static int64_t timed(void) { return etch_counters().candidates_timed; }

/* ---- bits ---- */

static void same_as_eager(etch_fn2 body, int64_t n, int64_t m) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(n, m), *y = numbers(n, m), *want = body(x, y);
        etch_function *f = tuned(body);
        int64_t before = timed();
        for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(f, x, y), want));
        CHECK(timed() > before);
        etch_function_free(f);
    }
}

/* Every candidate's layout is chosen by one of the clocks for one of the functions. */
static void bits_are_those_of_eager(void) {
    static const etch_fn2 bodies[] = {mixed, rows, columns, all, norm, turned};
    for (int i = 0; i < 6; i++) {
        set_clock(i % 2 ? 0.9 : 0);
        same_as_eager(bodies[i], 96, 80);
        set_clock(i % 2 ? 0 : 0.9);
        same_as_eager(bodies[i], 40, 1031);
    }
    same_as_eager(all, 1, 20000);
}

/* What a kernel reads and writes is not written by the candidates that are timed. */
static etch_tensor *in_place(etch_tensor *x, etch_tensor *y) {
    etch_add_(x, etch_mul(y, y));
    return etch_mul(x, y);
}

static void written_once(void) {
    set_clock(0.9);
    etch_tensor *x = numbers(70, 90), *y = numbers(70, 90), *want = etch_clone(x);
    etch_function *f = tuned(in_place);
    for (int i = 0; i < 4; i++) {
        etch_tensor *expected = in_place(want, y), *got = etch_call(f, x, y);
        CHECK(etch_bitwise_equal(got, expected) && etch_bitwise_equal(x, want));
    }
    CHECK(timed() > 0);
    etch_function_free(f);
}

/* Results at odd addresses: in a slice of a larger tensor that is written in place. */
static etch_tensor *into_slice(etch_tensor *x, etch_tensor *y) {
    etch_tensor *part = etch_slice(etch_view(x, ETCH_SHAPE(-1)), 0, 3, 5003, 1);
    etch_mul_(part, etch_slice(etch_view(y, ETCH_SHAPE(-1)), 0, 1, 5001, 1));
    return etch_add_scalar(part, 1);
}

static void odd_addresses(void) {
    set_clock(0.9);
    etch_tensor *x = numbers(60, 90), *y = numbers(60, 90), *want = etch_clone(x);
    etch_function *f = tuned(into_slice);
    for (int i = 0; i < 3; i++) {
        etch_tensor *expected = into_slice(want, y), *got = etch_call(f, x, y);
        CHECK(etch_bitwise_equal(got, expected) && etch_bitwise_equal(x, want));
    }
    etch_function_free(f);
}

/* ---- the choice ---- */

static void run_twice(etch_fn2 body, etch_tensor *x, etch_tensor *y) {
    etch_function *f = tuned(body);
    CHECK(etch_call(f, x, y) && etch_call(f, x, y));
    etch_function_free(f);
}

static void the_fastest_is_chosen(void) {
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
    log_tuning();
    set_clock(0.9); /* of threads the last are 1024; of vectors the last has one element */
    run_twice(mixed, x, y);
    CHECK(says(logged, "x 1024 threads by 1") && says(logged, "us (chosen)"));
    int64_t once = timed();
    *logged = 0;
    run_twice(mixed, x, y); /* another function, the same kernel */
    CHECK(timed() == once && says(logged, "x 1024 threads by 1, as chosen before"));
    *logged = 0;
    x = numbers(127, 128), y = numbers(127, 128); /* of the same class: one more than fits is not */
    run_twice(mixed, x, y);
    CHECK(timed() > once && !says(logged, "as chosen before"));
    once = timed();
    x = numbers(128, 128), y = numbers(128, 128);
    run_twice(mixed, x, y);
    CHECK(timed() == once && says(logged, "as chosen before"));
}

static void equal_times_leave_the_default(void) {
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
    log_tuning();
    set_clock(1);
    run_twice(mixed, x, y);
    CHECK(timed() > 0);
    for (char *line = strtok(logged, "\n"); line; line = strtok(NULL, "\n"))
        CHECK(strstr(line, "(chosen)") < strchr(line, ',')); /* the first of each line */
}

static void other_modes_time_nothing(void) {
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
    for (int mode = 0; mode < 2; mode++) {
        etch_function *f = etch_compile(mixed, .mode = (etch_mode_kind)mode);
        CHECK(etch_call(f, x, y) && etch_call(f, x, y));
        etch_function_free(f);
    }
    CHECK(timed() == 0 && calls_of("cuEventElapsedTime") == 0);
}

/* ---- on disk ---- */

static char cache_dir[] = "/tmp/etch-cuda-tune-XXXXXX";

static void in_cache(void) {
    setenv("ETCH_CACHE_DIR", cache_dir, 1);
    log_tuning();
    set_clock(0.9);
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
    run_twice(mixed, x, y);
}

static void first_process(void) {
    in_cache();
    CHECK(timed() > 0);
}

static void second_process(void) {
    in_cache();
    CHECK(timed() == 0 && etch_counters().kernels_compiled == 0 && etch_counters().cache_hits > 0);
    CHECK(calls_of("cuEventElapsedTime") == 0 && calls_of("nvrtcCompileProgram") == 0);
    CHECK(says(logged, "x 1024 threads by 1, as chosen before"));
    etch_cache_clear();
    rmdir(cache_dir);
}

/* ---- failures ---- */

static void fails_at(const char *symbol, int n) {
    set_clock(0.9);
    ETCH_SCOPE {
        etch_tensor *x = numbers(80, 100), *y = numbers(80, 100), *want = mixed(x, y);
        etch_function *f = tuned(mixed);
        CHECK(etch_bitwise_equal(etch_call(f, x, y), want));
        int64_t before = timed();
        unsigned long failures = failed();
        *logged = 0;
        fail_symbol(symbol, n);
        CHECK(etch_bitwise_equal(etch_call(f, x, y), want) && etch_last_status() == ETCH_OK);
        fail_symbol(NULL, 0);
        CHECK(failed() == failures + 1 && timed() == before && says(logged, "not tuned"));
        CHECK(etch_bitwise_equal(etch_call(f, x, y), want) && timed() == before);
        CHECK(!says(logged, "as chosen before"));
        etch_function_free(f);
    }
}

/* The default choice stays for the function whose timing failed; the next one is tuned. */
static void each_timing_call_fails(void) {
    static const struct {
        const char *symbol;
        int n;
    } cases[] = {{"nvrtcCompileProgram", 1}, {"cuEventCreate", 1},      {"cuEventCreate", 2},
                 {"cuEventRecord", 1},       {"cuEventRecord", 2},      {"cuEventSynchronize", 1},
                 {"cuEventSynchronize", 5},  {"cuEventElapsedTime", 1}, {"cuEventElapsedTime", 11},
                 {"cuLaunchKernel", 1},      {"cuLaunchKernel", 7}};
    log_tuning();
    set_clock(0.9);
    unsetenv("FAKE_CUDA_CACHE");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) fails_at(cases[i].symbol, cases[i].n);
    CHECK(live("event") <= 1);
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
    run_twice(mixed, x, y);
    CHECK(timed() > 0 && says(logged, "1024 threads by 1"));
}

/* Whatever call fails, the next call of the function has the right bits. */
static void each_call_fails_once(void) {
    int64_t before = -1;
    for (int n = 1; before != timed(); n++) {
        ETCH_SCOPE {
            etch_tensor *x = numbers(64, 70), *y = numbers(64, 70),
                        *want = in_place(etch_clone(x), y);
            etch_function *f = tuned(in_place);
            CHECK(etch_call(f, etch_clone(x), y));
            etch_tensor *given = etch_clone(x);
            unsigned long failures = failed();
            before = -1;
            set_clock(0.9);
            fail_after(n);
            etch_tensor *got = etch_call(f, given, y);
            fail_after(0);
            if (failed() == failures) before = timed();
            CHECK(got ? etch_bitwise_equal(got, want) : etch_last_status() != ETCH_OK);
            etch_clear_error();
            CHECK(etch_bitwise_equal(etch_call(f, etch_clone(x), y), want));
            etch_function_free(f);
        }
        CHECK(n < 1000);
    }
}

/* ---- streams ---- */

/* Nothing can be timed while the stream records; the next launch is timed. */
static void inside_a_recording(void) {
    set_clock(0.9);
    CHECK(etch_set_device(gpu) == ETCH_OK);
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100), *want = mixed(x, y), *got = NULL;
    etch_function *f = tuned(mixed);
    CHECK(etch_call(f, x, y));
    etch_cuda_graph *g = NULL;
    ETCH_CUDA_GRAPH(g) { got = etch_call(f, x, y); }
    CHECK(g && got && timed() == 0);
    CHECK(etch_cuda_graph_replay(g) == ETCH_OK && etch_bitwise_equal(got, want));
    CHECK(etch_bitwise_equal(etch_call(f, x, y), want) && timed() > 0);
    etch_cuda_graph_free(g);
    etch_function_free(f);
}

static etch_function *shared;

static void *calls_shared(void *unused) {
    (void)unused;
    ETCH_SCOPE {
        for (int i = 0; i < 3; i++) {
            etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
            CHECK(etch_bitwise_equal(etch_call(shared, x, y), mixed(x, y)));
        }
    }
    return NULL;
}

static void threads_share_a_choice(void) {
    pthread_t t[3];
    set_clock(1);
    etch_tensor *x = numbers(80, 100);
    shared = tuned(mixed);
    CHECK(etch_call(shared, x, x));
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&t[i], NULL, calls_shared, NULL));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    CHECK(timed() > 0);
    etch_function_free(shared);
}

/* ---- relaxed products ---- */

enum { M = 96, K = 80, N = 72 };

static etch_tensor *operand_of(etch_dtype dtype, etch_shape shape) {
    return on_gpu(etch_to(etch_randn(ETCH_F32, shape), dtype));
}

static etch_tensor *bias_relu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu(etch_add(etch_mm(x, w), b));
}

static etch_tensor *bias_gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_gelu_with(etch_add(b, etch_mm(x, w)), true);
}

static etch_tensor *only_bias(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_add(etch_mm(x, w), etch_view(b, ETCH_SHAPE(1, N)));
}

static etch_tensor *only_relu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_relu(etch_mm(x, w));
}

static etch_tensor *only_gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_gelu_with(etch_mm(x, w), true);
}

static etch_tensor *addmm_alone(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_addmm(b, x, w);
}

static etch_tensor *addmm_relu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu(etch_addmm(b, x, w));
}

static etch_tensor *linear_gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_gelu_with(etch_linear(x, etch_t(w), b), true);
}

static etch_tensor *changed_in_place(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu_(etch_add_(etch_mm(x, w), b));
}

static char *schedule_of(etch_function *f, etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    *logged = 0;
    CHECK(etch_set_logs("schedule") == ETCH_OK);
    etch_set_log_sink(keep_log, NULL);
    CHECK(etch_call(f, x, w, b));
    etch_set_logs("");
    return logged;
}

/* Whether a product of the schedule has something joined to it. */
static bool joined_in(const char *steps) {
    const char *product = strstr(steps, ": product"), *end = product ? strchr(product, '\n') : NULL;
    for (; product && product < end; product++)
        if (*product == ',') return true;
    return false;
}

static etch_tensor *wide(etch_tensor *t) { return etch_to(etch_to_device(t, ETCH_CPU), ETCH_F64); }

/* As the program in f64 says, as far as the dtype goes. */
static void close_to(etch_tensor *got, etch_fn3 body, etch_tensor *x, etch_tensor *w,
                     etch_tensor *b) {
    double bound = etch_dtype_of(got) == ETCH_F32 ? 2e-5 : 4e-2;
    etch_tensor *want = body(wide(x), wide(w), wide(b));
    CHECK(etch_allclose(wide(got), want, bound, bound, false));
}

static void check_relaxed(etch_fn3 body, etch_dtype dtype, bool joined) {
    ETCH_SCOPE {
        etch_tensor *x = operand_of(dtype, ETCH_SHAPE(M, K)),
                    *w = operand_of(dtype, ETCH_SHAPE(K, N));
        etch_tensor *b = operand_of(dtype, ETCH_SHAPE(N)), *eager = body(x, w, b);
        etch_function *f = etch_compile(body, .numerics = ETCH_RELAXED), *g = etch_compile(body);
        char *steps = schedule_of(f, x, w, b);
        bool one = !says(steps, "/0: step 1: ") && !says(steps, "/0: step 0: kernel") &&
                   says(steps, "product");
        CHECK(one == joined);
        close_to(etch_call(f, x, w, b), body, x, w, b);
        steps = schedule_of(g, x, w, b);
        CHECK(!joined_in(steps));
        for (int i = 0; i < 2; i++) CHECK(etch_bitwise_equal(etch_call(g, x, w, b), eager));
        etch_function_free(f);
        etch_function_free(g);
    }
}

static void epilogues(void) {
    static const etch_fn3 bodies[] = {bias_relu,  bias_gelu,   only_bias,
                                      only_relu,  only_gelu,   addmm_alone,
                                      addmm_relu, linear_gelu, changed_in_place};
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F16};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        for (int d = 0; d < 3; d++) check_relaxed(bodies[i], dtypes[d], true);
    for (size_t i = 0; i < 2; i++) check_relaxed(bodies[i], ETCH_F64, false);
}

/* ---- what does not join ---- */

static etch_tensor *after_each_other(etch_tensor *a, etch_tensor *b) {
    etch_tensor *const list[] = {a, b};
    return etch_cat(list, 2, 0);
}

static etch_tensor *read_twice(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *p = etch_mm(x, w);
    return etch_mul(etch_relu(etch_add(p, b)), p);
}

static etch_tensor *erf_gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_gelu(etch_mm(x, w));
}

static etch_tensor *alpha_of_two(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_add_alpha(etch_mm(x, w), b, 2.0);
}

static etch_tensor *full_matrix(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_add(etch_mm(x, w), etch_expand(etch_view(b, ETCH_SHAPE(1, N)), ETCH_SHAPE(M, N)));
}

static etch_tensor *wider_result(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_add(etch_mm(x, w), etch_to(b, ETCH_F64));
}

static etch_tensor *relu_of_view(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_relu(etch_t(etch_mm(x, w)));
}

static etch_tensor *column_of_bias(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_add(etch_mm(x, w),
                    etch_view(etch_slice(after_each_other(b, b), 0, 0, M, 1), ETCH_SHAPE(M, 1)));
}

/* The operand is written between the product and what follows it. */
static etch_tensor *written_between(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *y = etch_clone(x), *p = etch_mm(y, w);
    etch_fill_(etch_select(y, 0, 3), 1);
    return etch_add(etch_relu(etch_add(p, b)), etch_sum(y));
}

static etch_tensor *both_results(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *p = etch_mm(x, w);
    return after_each_other(p, etch_relu(etch_add(p, b)));
}

static void what_does_not_join(void) {
    static const etch_fn3 bodies[] = {read_twice,     erf_gelu,        alpha_of_two,
                                      full_matrix,    wider_result,    relu_of_view,
                                      column_of_bias, written_between, both_results};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        check_relaxed(bodies[i], ETCH_F32, false);
}

/* ---- epilogues that the library cannot do: the same by a kernel of our own ---- */

static etch_tensor *scaled_relu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu(etch_addmm_scaled(b, x, w, 0.5, -2.0));
}

static etch_tensor *scaled_gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_gelu_with(etch_addmm_scaled(b, x, w, 3, 1), true);
}

static etch_tensor *without_self(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu(etch_addmm_scaled(etch_mul_scalar(b, (double)NAN), x, w, 0, 1));
}

static etch_tensor *odd_bias(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *two = after_each_other(b, b);
    return etch_relu(etch_add(etch_mm(x, w), etch_slice(two, 0, 1, N + 1, 1)));
}

static etch_tensor *spread_bias(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *two = after_each_other(b, b);
    return etch_gelu_with(etch_add(etch_mm(x, w), etch_slice(two, 0, 0, 2 * N, 2)), true);
}

static void by_a_kernel_of_our_own(void) {
    static const etch_fn3 bodies[] = {scaled_relu, scaled_gelu, without_self, odd_bias,
                                      spread_bias};
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F16};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        for (int d = 0; d < 3; d++) {
            ETCH_SCOPE {
                etch_tensor *x = operand_of(dtypes[d], ETCH_SHAPE(M, K));
                etch_tensor *w = operand_of(dtypes[d], ETCH_SHAPE(K, N));
                etch_tensor *b = operand_of(dtypes[d], ETCH_SHAPE(N));
                etch_function *f = etch_compile(bodies[i], .numerics = ETCH_RELAXED);
                char *steps = schedule_of(f, x, w, b);
                CHECK(joined_in(steps));
                close_to(etch_call(f, x, w, b), bodies[i], x, w, b);
                etch_function_free(f);
            }
        }
}

static void nan_goes_through(void) {
    etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(M, K), (double)NAN), *y;
    etch_tensor *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N)),
                *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
    etch_function *f = etch_compile(bias_relu, .numerics = ETCH_RELAXED);
    x = on_gpu(x);
    CHECK(etch_call(f, x, w, b) && (y = etch_call(f, x, w, b)));
    CHECK(etch_item(etch_all(etch_isnan(y))) == 1);
    etch_function_free(f);
}

/* ---- copies of operands ---- */

static etch_tensor *copied_operand(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_mm(etch_contiguous(etch_t(x)), w);
}

/* The copy is read after what it copies has changed. */
static etch_tensor *copied_then_changed(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *y = etch_mul_scalar(x, 2), *copy = etch_contiguous(etch_t(y));
    etch_fill_(etch_select(y, 0, 1), 7);
    return etch_add(etch_mm(copy, w), etch_add(etch_sum(y), b));
}

static etch_tensor *copied_input_changed(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *copy = etch_contiguous(etch_t(x));
    etch_add_scalar_(etch_select(x, 0, 1), 1);
    return etch_add(etch_mm(copy, w), b);
}

static void copies_of_operands(void) {
    static const etch_fn3 bodies[] = {copied_operand, copied_then_changed, copied_input_changed};
    for (int i = 0; i < 3; i++) {
        ETCH_SCOPE {
            etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(K, M));
            etch_tensor *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N)),
                        *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
            etch_function *f = etch_compile(bodies[i], .numerics = ETCH_RELAXED);
            etch_tensor *y = etch_clone(x);
            CHECK(!says(schedule_of(f, y, w, b), "/0: step 0: kernel") == (i == 0));
            close_to(etch_call(f, etch_clone(x), w, b), bodies[i], x, w, b);
            etch_function_free(f);
        }
    }
}

/* ---- graphs, threads ---- */

static void bias_in_a_graph(void) {
    etch_function *f =
        etch_compile(read_twice, .mode = ETCH_MODE_REDUCE_OVERHEAD, .numerics = ETCH_RELAXED);
    etch_function *g =
        etch_compile(bias_relu, .mode = ETCH_MODE_REDUCE_OVERHEAD, .numerics = ETCH_RELAXED);
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    for (int i = 0; i < 4; i++) {
        etch_tensor *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
        close_to(etch_call(f, x, w, b), read_twice, x, w, b);
        close_to(etch_call(g, x, w, b), bias_relu, x, w, b);
    }
    etch_function_free(f);
    etch_function_free(g);
}

static etch_tensor *two_layers(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *h = etch_relu(etch_add(etch_mm(x, w), b));
    return etch_gelu_with(etch_mm(h, etch_t(w)), true);
}

static void layers_in_a_graph(void) {
    etch_function *f =
        etch_compile(two_layers, .mode = ETCH_MODE_REDUCE_OVERHEAD, .numerics = ETCH_RELAXED);
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    for (int i = 0; i < 4; i++) {
        etch_tensor *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
        close_to(etch_call(f, x, w, b), two_layers, x, w, b);
    }
    CHECK(etch_device_stats(gpu).graph_launches > 0);
    etch_function_free(f);
}

static void *own_bias(void *number) {
    ETCH_SCOPE {
        etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                    *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
        etch_tensor *b =
            on_gpu(etch_full(ETCH_F32, ETCH_SHAPE(N), 100.0 * (double)(intptr_t)number));
        for (int i = 0; i < 8; i++) close_to(etch_call(shared, x, w, b), bias_relu, x, w, b);
    }
    return NULL;
}

static void threads_have_biases(void) {
    pthread_t t[3];
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    shared = etch_compile(bias_relu, .numerics = ETCH_RELAXED);
    CHECK(etch_call(shared, x, w, operand_of(ETCH_F32, ETCH_SHAPE(N))));
    for (intptr_t i = 0; i < 3; i++) CHECK(!pthread_create(&t[i], NULL, own_bias, (void *)i));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    etch_function_free(shared);
}

/* ---- algorithms ---- */

static etch_function *relaxed_tuned(etch_fn3 body) {
    return etch_compile(body, .mode = ETCH_MODE_MAX_AUTOTUNE, .numerics = ETCH_RELAXED);
}

/* The fake's algorithms differ in their bits; the last of the list is the fastest by this clock. */
static void tuned_products(etch_fn3 body, etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_function *f = relaxed_tuned(body), *g = etch_compile(body, .mode = ETCH_MODE_MAX_AUTOTUNE);
    etch_tensor *eager = body(x, w, b);
    CHECK(etch_call(f, x, w, b));
    etch_tensor *y = etch_call(f, x, w, b);
    close_to(y, body, x, w, b);
    CHECK(!etch_bitwise_equal(y, eager) && etch_bitwise_equal(etch_call(f, x, w, b), y));
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(g, x, w, b), eager));
    etch_function_free(f);
    etch_function_free(g);
}

static etch_tensor *bare(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_mm(x, w);
}

static void algorithms_in_cache(void) {
    setenv("ETCH_CACHE_DIR", cache_dir, 1);
    log_tuning();
    set_clock(0.9);
    etch_manual_seed(3);
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    etch_tensor *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
    tuned_products(bias_relu, x, w, b);
    tuned_products(bare, x, w, b);
}

static void algorithms_are_timed(void) {
    algorithms_in_cache();
    CHECK(says(logged, "product 96 x 80 x 72: algorithm 0 with 1024 KiB"));
    CHECK(says(logged, "algorithm 2 with 0 KiB 0.0") || says(logged, "us (chosen)"));
    int64_t before = timed();
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    etch_function *f = relaxed_tuned(bare);
    CHECK(etch_call(f, x, w, w) && etch_call(f, x, w, w) && timed() == before);
    etch_function_free(f);
}

static void algorithms_are_kept(void) {
    algorithms_in_cache();
    CHECK(timed() == 0 && calls_of("cuEventElapsedTime") == 0 && !says(logged, "algorithm 0"));
    etch_cache_clear();
    rmdir(cache_dir);
}

static void product_fails_at(const char *symbol, int n, int64_t rows) {
    set_clock(0.9);
    ETCH_SCOPE {
        etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(rows, K)),
                    *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
        etch_function *f = relaxed_tuned(bare);
        etch_tensor *first = etch_mm(x, w);
        CHECK(etch_call(f, x, w, w));
        unsigned long failures = failed();
        int64_t before = timed();
        fail_symbol(symbol, n);
        etch_tensor *y = etch_call(f, x, w, w);
        fail_symbol(NULL, 0);
        CHECK(failed() == failures + 1 && timed() == before && etch_bitwise_equal(y, first));
        CHECK(etch_bitwise_equal(etch_call(f, x, w, w), first) && timed() == before);
        etch_function_free(f);
    }
}

static void timing_a_product_fails(void) {
    static const char *const symbols[] = {"cuEventCreate", "cuEventRecord", "cuEventSynchronize",
                                          "cuEventElapsedTime", "cublasLtMatmul"};
    for (int i = 0; i < 5; i++)
        for (int n = 1; n <= 2; n++) product_fails_at(symbols[i], n, 68 + 8 * i + 4 * n);
}

/* With an epilogue, whatever call fails: an error or the right values, and no harm done. */
static bool epilogue_fails_at(int n) {
    etch_fn3 body = n % 2 ? bias_gelu : odd_bias;
    etch_tensor *x = operand_of(ETCH_BF16, ETCH_SHAPE(64 + n, 16));
    etch_tensor *w = operand_of(ETCH_BF16, ETCH_SHAPE(16, N)),
                *b = operand_of(ETCH_BF16, ETCH_SHAPE(N));
    etch_function *f = relaxed_tuned(body);
    CHECK(etch_call(f, x, w, b));
    unsigned long failures = failed();
    set_clock(0.9);
    fail_after(n);
    etch_tensor *got = etch_call(f, x, w, b);
    fail_after(0);
    bool fails = failed() > failures;
    CHECK(got || etch_last_status() != ETCH_OK);
    if (got) close_to(got, body, x, w, b);
    etch_clear_error();
    close_to(etch_call(f, x, w, b), body, x, w, b);
    etch_function_free(f);
    return fails;
}

static void each_call_of_a_product_fails(void) {
    bool go_on = true;
    for (int n = 1; go_on; n += 1 + n / 32) {
        ETCH_SCOPE { go_on = epilogue_fails_at(n) || n < 4; }
        CHECK(n < 1000);
    }
}

int main(void) {
    if (!use_fakes()) return 77;
    if (!mkdtemp(cache_dir)) return 1;
    const struct CMUnitTest tests[] = {
        IN_CHILD(bits_are_those_of_eager, NULL),
        IN_CHILD(written_once, NULL),
        IN_CHILD(odd_addresses, NULL),
        IN_CHILD(the_fastest_is_chosen, NULL),
        IN_CHILD(equal_times_leave_the_default, NULL),
        IN_CHILD(other_modes_time_nothing, NULL),
        IN_CHILD(first_process, "ETCH_CACHE_SIZE=100000000"),
        IN_CHILD(second_process, "ETCH_CACHE_SIZE=100000000"),
        IN_CHILD(each_timing_call_fails, NULL),
        IN_CHILD(each_call_fails_once, NULL),
        IN_CHILD(inside_a_recording, NULL),
        IN_CHILD(threads_share_a_choice, "FAKE_CUDA_LAZY=1"),
        IN_CHILD(epilogues, NULL),
        IN_CHILD(what_does_not_join, NULL),
        IN_CHILD(by_a_kernel_of_our_own, NULL),
        IN_CHILD(nan_goes_through, NULL),
        IN_CHILD(copies_of_operands, NULL),
        IN_CHILD(bias_in_a_graph, NULL),
        IN_CHILD(layers_in_a_graph, NULL),
        IN_CHILD(threads_have_biases, "FAKE_CUDA_LAZY=1"),
        IN_CHILD(algorithms_are_timed, "ETCH_CACHE_SIZE=100000000"),
        IN_CHILD(algorithms_are_kept, "ETCH_CACHE_SIZE=100000000"),
        IN_CHILD(timing_a_product_fails, NULL),
        IN_CHILD(each_call_of_a_product_fails, NULL),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
