/* ETCH_RELAXED and ETCH_MODE_MAX_AUTOTUNE with tensors on the suite's device: relaxed products have the
 * right values whatever joins them, and what must not join does not; tuned kernels have eager's bits.
 * On the CPU nothing is relaxed or tuned, and the values are the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device_support.h"
#include "tuned_programs.h"

static bool on_device(void) { return where != ETCH_CPU; }

static char logged[1 << 16];

static void keep_log(void *ctx, const char *line) {
    (void)ctx;
    size_t at = strlen(logged);
    snprintf(logged + at, sizeof logged - at, "%s\n", line);
}

static bool says(const char *text, const char *part) { return strstr(text, part) != NULL; }

/* ---- relaxed products ---- */

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
    assert_true(etch_set_logs("schedule") == ETCH_OK);
    etch_set_log_sink(keep_log, NULL);
    assert_true(etch_call(f, x, w, b));
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

static void check_relaxed(etch_fn3 body, etch_dtype dtype, bool joined) {
    ETCH_SCOPE {
        etch_tensor *x = operand_of(dtype, ETCH_SHAPE(M, K)),
                    *w = operand_of(dtype, ETCH_SHAPE(K, N));
        etch_tensor *b = operand_of(dtype, ETCH_SHAPE(N)), *eager = body(x, w, b);
        etch_function *f = etch_compile(body, .numerics = ETCH_RELAXED), *g = etch_compile(body);
        char *steps = schedule_of(f, x, w, b);
        bool one = !says(steps, "/0: step 1: ") && !says(steps, "/0: step 0: kernel") &&
                   says(steps, "product");
        assert_int_equal(joined_in(steps), joined && on_device());
        if (joined && on_device()) assert_true(one);
        assert_true(close_to(etch_call(f, x, w, b), body, x, w, b));
        steps = schedule_of(g, x, w, b);
        assert_true(!joined_in(steps));
        for (int i = 0; i < 2; i++) assert_true(etch_bitwise_equal(etch_call(g, x, w, b), eager));
        etch_function_free(f);
        etch_function_free(g);
    }
}

static void epilogues(void **state) {
    (void)state;
    static const etch_fn3 bodies[] = {bias_relu,  bias_gelu,   only_bias,
                                      only_relu,  only_gelu,   addmm_alone,
                                      addmm_relu, linear_gelu, changed_in_place};
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F16};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        for (int d = 0; d < 3; d++) check_relaxed(bodies[i], dtypes[d], true);
    for (size_t i = 0; i < 2; i++) check_relaxed(bodies[i], ETCH_F64, false);
}

/* ---- what does not join ---- */

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

static void what_does_not_join(void **state) {
    (void)state;
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

static etch_tensor *spread_bias(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *two = after_each_other(b, b);
    return etch_gelu_with(etch_add(etch_mm(x, w), etch_slice(two, 0, 0, 2 * N, 2)), true);
}

static void by_a_kernel_of_our_own(void **state) {
    (void)state;
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
                assert_int_equal(joined_in(steps), on_device());
                assert_true(close_to(etch_call(f, x, w, b), bodies[i], x, w, b));
                etch_function_free(f);
            }
        }
}

static void nan_goes_through(void **state) {
    (void)state;
    etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(M, K), (double)NAN), *y;
    etch_tensor *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N)),
                *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
    etch_function *f = etch_compile(bias_relu, .numerics = ETCH_RELAXED);
    x = etch_to_device(x, where);
    assert_true(etch_call(f, x, w, b) && (y = etch_call(f, x, w, b)));
    assert_true(etch_item(etch_all(etch_isnan(y))) == 1);
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

static void copies_of_operands(void **state) {
    (void)state;
    static const etch_fn3 bodies[] = {copied_operand, copied_then_changed, copied_input_changed};
    for (int i = 0; i < 3; i++) {
        ETCH_SCOPE {
            etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(K, M));
            etch_tensor *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N)),
                        *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
            etch_function *f = etch_compile(bodies[i], .numerics = ETCH_RELAXED);
            etch_tensor *y = etch_clone(x);
            bool no_kernel = !says(schedule_of(f, y, w, b), "/0: step 0: kernel");
            assert_int_equal(no_kernel, i == 0 && on_device());
            assert_true(close_to(etch_call(f, etch_clone(x), w, b), bodies[i], x, w, b));
            etch_function_free(f);
        }
    }
}

/* ---- graphs, threads ---- */

static void bias_in_a_graph(void **state) {
    (void)state;
    etch_function *f =
        etch_compile(read_twice, .mode = ETCH_MODE_REDUCE_OVERHEAD, .numerics = ETCH_RELAXED);
    etch_function *g =
        etch_compile(bias_relu, .mode = ETCH_MODE_REDUCE_OVERHEAD, .numerics = ETCH_RELAXED);
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    for (int i = 0; i < 4; i++) {
        etch_tensor *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
        assert_true(close_to(etch_call(f, x, w, b), read_twice, x, w, b));
        assert_true(close_to(etch_call(g, x, w, b), bias_relu, x, w, b));
    }
    etch_function_free(f);
    etch_function_free(g);
}

static etch_tensor *two_layers(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *h = etch_relu(etch_add(etch_mm(x, w), b));
    return etch_gelu_with(etch_mm(h, etch_t(w)), true);
}

static void layers_in_a_graph(void **state) {
    (void)state;
    etch_function *f =
        etch_compile(two_layers, .mode = ETCH_MODE_REDUCE_OVERHEAD, .numerics = ETCH_RELAXED);
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    for (int i = 0; i < 4; i++) {
        etch_tensor *b = operand_of(ETCH_F32, ETCH_SHAPE(N));
        assert_true(close_to(etch_call(f, x, w, b), two_layers, x, w, b));
    }
    if (on_device()) assert_true(etch_device_stats(where).graph_launches > 0);
    etch_function_free(f);
}

static etch_function *shared;

/* NULL: all is right. */
static void *own_bias(void *number) {
    bool ok = true;
    ETCH_SCOPE {
        etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K));
        etch_tensor *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
        double value = 100.0 * (double)(intptr_t)number;
        etch_tensor *b = etch_to_device(etch_full(ETCH_F32, ETCH_SHAPE(N), value), where);
        for (int i = 0; i < 8; i++) ok &= close_to(etch_call(shared, x, w, b), bias_relu, x, w, b);
    }
    return ok ? NULL : number;
}

static void threads_have_biases(void **state) {
    (void)state;
    pthread_t t[3];
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    shared = etch_compile(bias_relu, .numerics = ETCH_RELAXED);
    assert_true(etch_call(shared, x, w, operand_of(ETCH_F32, ETCH_SHAPE(N))));
    for (intptr_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&t[i], NULL, own_bias, (void *)(i + 1)), 0);
    for (int i = 0; i < 3; i++) {
        void *wrong;
        pthread_join(t[i], &wrong);
        assert_null(wrong);
    }
    etch_function_free(shared);
}

/* ---- tuned kernels ---- */

static void check_tuned(etch_fn2 body, int64_t rows, int64_t columns) {
    ETCH_SCOPE {
        etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(rows, columns));
        etch_tensor *y = operand_of(ETCH_F32, ETCH_SHAPE(rows, columns)), *want = body(x, y);
        etch_function *f = etch_compile(body, .mode = ETCH_MODE_MAX_AUTOTUNE);
        for (int i = 0; i < 3; i++) assert_true(etch_bitwise_equal(etch_call(f, x, y), want));
        etch_function_free(f);
    }
}

static void tuned_kernels_have_the_bits_of_eager(void **state) {
    (void)state;
    static const etch_fn2 bodies[] = {mixed, rows, columns, all, norm, turned};
    int64_t before = etch_counters().candidates_timed;
    for (int i = 0; i < 6; i++) {
        check_tuned(bodies[i], 96, 80);
        check_tuned(bodies[i], 40, 1031);
    }
    check_tuned(all, 1, 20000);
    int64_t timed = etch_counters().candidates_timed - before;
    assert_true(on_device() || timed == 0); /* on a device the disk cache may know it all */
}

static void tuned_products_are_close(void **state) {
    (void)state;
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F16};
    for (int d = 0; d < 3; d++) {
        ETCH_SCOPE {
            etch_tensor *x = operand_of(dtypes[d], ETCH_SHAPE(M, K));
            etch_tensor *w = operand_of(dtypes[d], ETCH_SHAPE(K, N));
            etch_tensor *b = operand_of(dtypes[d], ETCH_SHAPE(N));
            etch_function *f =
                etch_compile(bias_gelu, .mode = ETCH_MODE_MAX_AUTOTUNE, .numerics = ETCH_RELAXED);
            for (int i = 0; i < 3; i++)
                assert_true(close_to(etch_call(f, x, w, b), bias_gelu, x, w, b));
            etch_function_free(f);
        }
    }
}

static int64_t mark;

static int begin(void **state) {
    (void)state;
    mark = etch_scope_begin();
    return 0;
}

static int end(void **state) {
    (void)state;
    etch_scope_end(mark);
    return 0;
}

#define IN_SCOPE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void) {
    where = test_device();
    const struct CMUnitTest tests[] = {
        IN_SCOPE(epilogues),
        IN_SCOPE(what_does_not_join),
        IN_SCOPE(by_a_kernel_of_our_own),
        IN_SCOPE(nan_goes_through),
        IN_SCOPE(copies_of_operands),
        IN_SCOPE(bias_in_a_graph),
        IN_SCOPE(layers_in_a_graph),
        IN_SCOPE(threads_have_biases),
        IN_SCOPE(tuned_kernels_have_the_bits_of_eager),
        IN_SCOPE(tuned_products_are_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
