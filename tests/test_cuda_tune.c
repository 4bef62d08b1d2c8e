/* ETCH_MODE_MAX_AUTOTUNE and ETCH_RELAXED on the fakes of the driver: choices are made by timing,
 * kept in memory and on disk, change no bit of generated kernels, and failing to make one changes
 * nothing. Where a test has to know what is fastest, the fake's clock is told
 * (fake_cuda_set_elapsed).
 * Labels: long optimised. */
#include "cuda_child.h"
#include "tuned_programs.h"

#include <math.h>
#include <pthread.h>

/* factor below 1: the later a candidate is timed, the faster it seems (soon so fast that it is run
 * many times). 1: all the same. 0: the real clock. */
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
TEST(bits_are_those_of_eager) {
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

TEST(written_once) {
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

TEST(odd_addresses) {
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

TEST(the_fastest_is_chosen) {
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

TEST(equal_times_leave_the_default) {
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
    log_tuning();
    set_clock(1);
    run_twice(mixed, x, y);
    CHECK(timed() > 0);
    for (char *line = strtok(logged, "\n"); line; line = strtok(NULL, "\n"))
        CHECK(strstr(line, "(chosen)") < strchr(line, ',')); /* the first of each line */
}

TEST(other_modes_time_nothing) {
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

TEST(first_process, .setting = "ETCH_CACHE_SIZE=100000000") {
    in_cache();
    CHECK(timed() > 0);
}

TEST(second_process, .setting = "ETCH_CACHE_SIZE=100000000") {
    in_cache();
    CHECK(timed() == 0 && etch_counters().kernels_compiled == 0 && etch_counters().cache_hits > 0);
    CHECK(calls_of("cuEventElapsedTime") == 0 && calls_of("nvrtcCompileProgram") == 0);
    CHECK(says(logged, "x 1024 threads by 1, as chosen before"));
    etch_cache_clear();
    rmdir(cache_dir);
}

/* ---- slow kernels ---- */

/* What takes a second is timed once for each candidate (and once to see that). */
TEST(slow_kernels_are_timed_less) {
    etch_tensor *x = numbers(80, 100), *y = numbers(80, 100);
    ((void (*)(double, double))control("fake_cuda_set_elapsed"))(1000.0, 1.0);
    run_twice(mixed, x, y);
    unsigned long sets = 3; /* threads, vectors, grids */
    CHECK(timed() > 0 && calls_of("cuEventElapsedTime") == (unsigned long)timed() + sets);
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
TEST(each_timing_call_fails) {
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
TEST(each_call_fails_once) {
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
TEST(inside_a_recording) {
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

TEST(threads_share_a_choice, .setting = "FAKE_CUDA_LAZY=1") {
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
    CHECK(close_to(y, body, x, w, b));
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

TEST(algorithms_are_timed, .setting = "ETCH_CACHE_SIZE=100000000") {
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

TEST(algorithms_are_kept, .setting = "ETCH_CACHE_SIZE=100000000") {
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

TEST(timing_a_product_fails) {
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
    if (got) CHECK(close_to(got, body, x, w, b));
    etch_clear_error();
    CHECK(close_to(etch_call(f, x, w, b), body, x, w, b));
    etch_function_free(f);
    return fails;
}

TEST(each_call_of_a_product_fails) {
    bool go_on = true;
    for (int n = 1; go_on; n += 1 + n / 32) {
        ETCH_SCOPE { go_on = epilogue_fails_at(n) || n < 4; }
        CHECK(n < 1000);
    }
}

int main(int argc, char **argv) {
    where = gpu;
    return mkdtemp(cache_dir) ? run_in_children(argc, argv) : 1;
}
