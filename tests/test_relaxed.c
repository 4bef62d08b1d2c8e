/* ETCH_RELAXED and ETCH_MODE_MAX_AUTOTUNE with tensors on the suite's device: relaxed products have
 * the right values whatever joins them, and what must not join does not; sums of products become
 * products of sums, and which must not do not; tuned kernels have eager's bits. On the CPU nothing
 * joins a product and nothing is tuned.
 * Labels: device fake optimised. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "etch_test.h"
#include "backends/cuda/gemm.h"
#include "core/graph/backend.h"
#include "core/dispatch/dispatch.h"
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

TEST(epilogues) {
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

TEST(what_does_not_join) {
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

TEST(by_a_kernel_of_our_own) {
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

TEST(nan_goes_through) {
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

TEST(copies_of_operands) {
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

TEST(bias_in_a_graph) {
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

TEST(layers_in_a_graph) {
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

TEST(threads_have_biases) {
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

/* ---- sums of products ---- */

/* Arguments of a body: a and b are M x K, w and v K x N; in f64 for the expected value. What is
 * added before it is multiplied must be known to be small: sines. */
typedef etch_tensor *(*sum_body)(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v);

static etch_tensor *right_common(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    return etch_add(etch_mm(a, w), etch_mm(etch_sin(b), w));
}

static etch_tensor *left_common(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)b;
    return etch_add(etch_mm(a, w), etch_mm(a, etch_sin(v)));
}

static etch_tensor *difference(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *later = etch_mm(etch_tanh(b), w), *earlier = etch_mm(a, w);
    return etch_sub(earlier, later);
}

static etch_tensor *factors(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    etch_tensor *p = etch_add_alpha(etch_mm(a, w), etch_mm(etch_sin(b), w), 2.5);
    return etch_sub_alpha(p, etch_mm(etch_sin(a), v), -3);
}

/* Four products of w, added one after the other. */
static etch_tensor *chain(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *p = etch_add(etch_mm(a, w), etch_mm(etch_sigmoid(b), w));
    etch_tensor *q = etch_sub(p, etch_mm(etch_sin(a), w));
    return etch_add(etch_mm(etch_mul(etch_sin(a), etch_cos(b)), w), q);
}

static etch_tensor *tree(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *p = etch_add(etch_mm(a, w), etch_mm(etch_softmax(b, 1), w));
    etch_tensor *q = etch_mm(etch_cos(a), w), *r = etch_mm(etch_cos(b), w);
    return etch_sub(p, etch_sub(q, r));
}

static etch_tensor *two_factors(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    etch_tensor *s = etch_sin(b), *p = etch_add(etch_mm(a, w), etch_mm(s, w));
    return etch_add(p, etch_add(etch_mm(a, v), etch_mm(s, v)));
}

static etch_tensor *in_place(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *p = etch_mm(a, w);
    etch_sub_(p, etch_mm(etch_erf(b), w));
    etch_fill_(etch_select(p, 0, 2), 5);
    return p;
}

static etch_tensor *turned_views(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    etch_tensor *p = etch_mm(etch_t(w), etch_t(a)), *q = etch_mm(etch_t(w), etch_t(etch_sin(b)));
    etch_tensor *r = etch_mm(etch_t(v), etch_t(etch_sin(a)));
    return etch_sub(etch_add(p, q), etch_add(r, etch_mm(etch_t(v), etch_t(b))));
}

static etch_tensor *odd_views(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *half = etch_slice(w, 0, 1, ETCH_ABSENT, 2);
    etch_tensor *back = etch_slice(a, 1, ETCH_ABSENT, ETCH_ABSENT, -2);
    etch_tensor *row = etch_expand(etch_slice(etch_sin(b), 0, 3, 4, 1), ETCH_SHAPE(M, K));
    return etch_add(etch_mm(back, half), etch_mm(etch_slice(row, 1, 0, ETCH_ABSENT, 2), half));
}

static etch_tensor *batches(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    etch_tensor *x = etch_view(a, ETCH_SHAPE(1, M, K)),
                *y = etch_view(etch_sin(b), ETCH_SHAPE(1, M, K));
    etch_tensor *two = etch_view(after_each_other(w, v), ETCH_SHAPE(2, K, N));
    etch_tensor *left = etch_expand(x, ETCH_SHAPE(2, M, K)),
                *right = etch_expand(y, ETCH_SHAPE(2, M, K));
    return etch_add(etch_bmm(left, two), etch_bmm(right, two));
}

/* The sum has other axes than the products. */
/* Each is a product of rows, of which the sum sees another shape. */
static etch_tensor *three_axes(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *x = etch_view(a, ETCH_SHAPE(2, M / 2, K)),
                *y = etch_view(etch_cos(b), ETCH_SHAPE(2, M / 2, K));
    etch_tensor *p = etch_add(etch_matmul(x, w), etch_matmul(y, w));
    return etch_sum_dim(etch_relu(p), ETCH_DIMS(1), false);
}

static etch_tensor *few_rows(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    return right_common(etch_slice(a, 0, 0, 1, 1), etch_slice(b, 0, 4, 5, 1), w, v);
}

/* What the products read is written after them. */
static etch_tensor *written_after(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    etch_tensor *x = etch_clone(a), *p = right_common(x, b, w, v);
    etch_fill_(etch_select(x, 0, 3), 1);
    return etch_add(p, etch_sum(x));
}

static etch_tensor *input_after(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    etch_tensor *p = right_common(a, b, w, v);
    etch_mul_scalar_(etch_select(a, 0, 3), 2);
    return p;
}

static etch_tensor *with_row(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    return etch_relu(etch_add(right_common(a, b, w, v), etch_select(v, 0, 0)));
}

/* ---- sums that stay ---- */

static etch_tensor *nothing_common(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    return etch_add(etch_mm(a, w), etch_mm(etch_sin(b), v));
}

static etch_tensor *other_view(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    return etch_add(etch_mm(a, w),
                    etch_mm(etch_sin(b), etch_slice(w, 1, ETCH_ABSENT, ETCH_ABSENT, -1)));
}

static etch_tensor *other_reader(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *p = etch_mm(a, w);
    return etch_mul(etch_add(p, etch_mm(etch_sin(b), w)), p);
}

static etch_tensor *another_result(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *p = etch_mm(a, w);
    return after_each_other(etch_add(p, etch_mm(etch_sin(b), w)), p);
}

static etch_tensor *twice(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)b, (void)v;
    etch_tensor *p = etch_mm(a, w);
    return etch_add(p, p);
}

static etch_tensor *spread_sum(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    return etch_add(etch_mm(a, w), etch_mm(etch_slice(etch_sin(b), 0, 0, 1, 1), w));
}

static etch_tensor *turned_sum(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)a, (void)b;
    etch_tensor *x = etch_slice(w, 0, 0, N, 1), *y = etch_slice(v, 0, 0, N, 1);
    return etch_add(etch_mm(x, x), etch_t(etch_mm(y, x)));
}

static etch_tensor *rewritten_between(etch_tensor *a, etch_tensor *b, etch_tensor *w,
                                      etch_tensor *v) {
    (void)v;
    etch_tensor *x = etch_clone(a), *p = etch_mm(x, w);
    etch_fill_(etch_select(x, 0, 3), 1);
    return etch_add(etch_add(p, etch_mm(etch_sin(b), w)), etch_sum(x));
}

static etch_tensor *common_changed(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_tensor *y = etch_clone(w), *p = etch_mm(a, y);
    etch_fill_(etch_select(y, 0, 3), 1);
    return etch_add(p, etch_mm(etch_sin(b), y));
}

static etch_tensor *narrow(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    return right_common(a, b, etch_slice(w, 1, 0, 8, 1), v);
}

static etch_tensor *small(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    etch_tensor *x = etch_slice(etch_slice(a, 0, 0, 64, 1), 1, 0, 64, 1);
    etch_tensor *y = etch_slice(etch_slice(b, 0, 0, 64, 1), 1, 0, 64, 1);
    return right_common(x, y, etch_slice(etch_slice(w, 0, 0, 64, 1), 1, 0, 64, 1), v);
}

static etch_tensor *two_dtypes(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    return etch_add(etch_mm(a, w), etch_mm(etch_to(b, ETCH_F64), etch_to(w, ETCH_F64)));
}

static etch_tensor *two_settings(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    etch_matmul_precision before = etch_get_matmul_precision();
    etch_tensor *p = etch_mm(a, w);
    etch_set_matmul_precision(ETCH_HIGH);
    etch_tensor *q = etch_mm(etch_sin(b), w);
    etch_set_matmul_precision(before);
    return etch_add(p, q);
}

/* ---- sums that could leave the range ---- */

static etch_tensor *unknown(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    return etch_add(etch_mm(a, w), etch_mm(b, w));
}

static etch_tensor *grows(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    return etch_add(etch_mm(a, w), etch_mm(etch_exp(etch_sin(etch_mul(b, b))), w));
}

static etch_tensor *no_bound(etch_tensor *a, etch_tensor *b, etch_tensor *w, etch_tensor *v) {
    (void)v;
    return etch_sub(etch_mm(a, w), etch_mm(etch_mul_scalar(etch_sin(b), 2), w));
}

/* ---- what is made of them ---- */

typedef struct sum_case {
    sum_body body;
    int products, relaxed; /* of a strict plan, of a relaxed one */
} sum_case;

static const sum_case sums[] = {
    {right_common, 2, 1},   {left_common, 2, 1},
    {difference, 2, 1},     {factors, 3, 3},
    {chain, 4, 1},          {tree, 4, 1},
    {two_factors, 4, 2},    {in_place, 2, 1},
    {turned_views, 4, 2},   {odd_views, 2, 1},
    {batches, 2, 1},        {three_axes, 2, 2},
    {few_rows, 2, 1},       {written_after, 2, 1},
    {input_after, 2, 1},    {with_row, 2, 1},
    {nothing_common, 2, 2}, {other_view, 2, 2},
    {other_reader, 2, 2},   {another_result, 2, 2},
    {twice, 1, 1},          {spread_sum, 2, 2},
    {turned_sum, 2, 2},     {two_dtypes, 2, 2},
    {common_changed, 2, 2}, {rewritten_between, 2, 2},
    {narrow, 2, 2},         {small, 2, 2},
    {two_settings, 2, 2},   {unknown, 2, 2},
    {grows, 2, 2},          {no_bound, 2, 2},
};

/* Within the roundings of operands and results to the dtype. */
static bool near(etch_tensor *got, sum_body body, etch_dtype dtype, etch_tensor *const *in) {
    bool half = dtype == ETCH_BF16 || dtype == ETCH_F16;
    half |= body == two_settings && on_device(); /* TF32 */
    double bound = half ? 0.4 : dtype == ETCH_F32 ? 1e-4 : 1e-11;
    etch_tensor *want = body(wide(in[0]), wide(in[1]), wide(in[2]), wide(in[3]));
    return got && etch_allclose(wide(got), want, half ? 0.04 : bound, bound, false);
}

/* The body may write its first argument, and leaves the same bits there. */
static etch_tensor *call_with(etch_function *f, sum_body body, etch_tensor *const *in) {
    etch_tensor *mine = etch_clone(in[0]), *expected = etch_clone(in[0]);
    etch_tensor *y = etch_call(f, mine, in[1], in[2], in[3]);
    body(expected, in[1], in[2], in[3]);
    return etch_bitwise_equal(mine, expected) ? y : NULL;
}

static int64_t products_of(etch_function *f, etch_tensor *const *in) {
    int64_t before = etch_counters().library_calls;
    assert_true(etch_call(f, etch_clone(in[0]), in[1], in[2], in[3]));
    return etch_counters().library_calls - before;
}

static void check_sum(const sum_case *c, etch_dtype dtype) {
    ETCH_SCOPE {
        etch_tensor *in[4] = {
            operand_of(dtype, ETCH_SHAPE(M, K)), operand_of(dtype, ETCH_SHAPE(M, K)),
            operand_of(dtype, ETCH_SHAPE(K, N)), operand_of(dtype, ETCH_SHAPE(K, N))};
        etch_tensor *eager = c->body(etch_clone(in[0]), in[1], in[2], in[3]);
        etch_function *f = etch_compile(c->body, .numerics = ETCH_RELAXED);
        etch_function *g = etch_compile(c->body);
        for (int i = 0; i < 2; i++) {
            assert_true(near(call_with(f, c->body, in), c->body, dtype, in));
            assert_true(etch_bitwise_equal(call_with(g, c->body, in), eager));
        }
        assert_int_equal(products_of(f, in), c->relaxed);
        assert_int_equal(products_of(g, in), c->products);
        etch_function_free(f);
        etch_function_free(g);
    }
}

TEST(sums_of_products) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        for (int d = 0; d < 4; d++)
            if (d == 0 || sums[i].relaxed < sums[i].products) check_sum(&sums[i], dtypes[d]);
}

/* Products of finite numbers in the range stay there, whatever is added before: at the largest
 * number of each dtype with factors that bring it down. */
TEST(nothing_leaves_the_range) {
    static const struct {
        etch_dtype dtype;
        double most, factor;
    } edges[] = {{ETCH_F16, 65504, 0x1p-9},
                 {ETCH_BF16, 0x1.fep127, 0x1p-100},
                 {ETCH_F32, 0x1.fffffep127, 0x1p-100},
                 {ETCH_F64, 0x1.fffffffffffffp1023, 0x1p-1000}};
    static const sum_body bodies[] = {unknown, right_common, left_common, difference, chain, tree};
    for (int d = 0; d < 4; d++)
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++)
            ETCH_SCOPE {
                etch_dtype t = edges[d].dtype;
                etch_tensor *a = etch_full(t, ETCH_SHAPE(M, K), edges[d].most);
                etch_tensor *w = etch_full(t, ETCH_SHAPE(K, N), edges[d].factor / K);
                etch_function *f = etch_compile(bodies[k], .numerics = ETCH_RELAXED);
                for (int i = 0; i < 2; i++) {
                    etch_tensor *y = etch_call(f, a, a, w, w), *eager = bodies[k](a, a, w, w);
                    assert_int_equal(etch_item(etch_all(etch_isfinite(eager))), 1);
                    assert_true(etch_allclose(wide(y), wide(eager), 0.02, 0, false));
                }
                etch_function_free(f);
            }
}

/* Integers, and small products of any dtype, have the bits of eager code under either numerics. */
TEST(sums_with_exact_bits) {
    static const etch_dtype dtypes[] = {ETCH_I32, ETCH_I64, ETCH_F32};
    for (int d = 0; d < 3; d++) {
        ETCH_SCOPE {
            sum_body body = dtypes[d] == ETCH_F32 ? small : unknown;
            etch_tensor *a = operand_of(dtypes[d], ETCH_SHAPE(M, K)),
                        *b = operand_of(dtypes[d], ETCH_SHAPE(M, K));
            etch_tensor *w = operand_of(dtypes[d], ETCH_SHAPE(K, N)), *eager = body(a, b, w, w);
            etch_function *f = etch_compile(body, .numerics = ETCH_RELAXED);
            for (int i = 0; i < 3; i++)
                assert_true(etch_bitwise_equal(etch_call(f, a, b, w, w), eager));
            etch_function_free(f);
        }
    }
}

/* Twice what it should be, so that it is seen. */
static etch_status own_product(void *runs, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor *const *out, int nout) {
    (void)op, (void)nargs, (void)nout;
    ++*(int *)runs;
    etch_tensor *twice_left = etch_mul_scalar(args[0].tensor, 2);
    etch_tensor *batch = etch_bmm(etch_unsqueeze(twice_left, 0), etch_unsqueeze(args[1].tensor, 0));
    return etch_copy_(out[0], etch_squeeze(batch)) ? ETCH_OK : etch_last_status();
}

TEST(products_of_the_user_stay) {
    int runs = 0;
    etch_override *o =
        etch_op_override(etch_op_find("mm"), on_device() ? "cuda" : "cpu", own_product, &runs);
    etch_tensor *a = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    etch_tensor *b = etch_sin(a), *eager = right_common(a, b, w, w);
    etch_function *f = etch_compile(right_common, .numerics = ETCH_RELAXED);
    assert_true(o && etch_call(f, a, b, w, w));
    int before = runs;
    assert_true(etch_bitwise_equal(etch_call(f, a, b, w, w), eager));
    assert_int_equal(runs - before, 2);
    etch_function_free(f);
    etch_op_override_undo(o);
}

/* ---- the seed program ---- */

static etch_tensor *seed(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, w);
        etch_tensor *b = etch_mm(etch_sin(x), w);
        x = etch_relu(etch_add(a, b));
    }
    return x;
}

static void count_seed(etch_function *f, etch_tensor *x, etch_tensor *w, int products) {
    etch_counters_t before = etch_counters();
    assert_true(etch_call(f, x, w));
    assert_int_equal(etch_counters().library_calls - before.library_calls, products);
    if (!on_device()) /* where relu may join a product */
        assert_int_equal(etch_counters().kernel_launches - before.kernel_launches, 6);
}

TEST(seed_program) {
    etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(M, M));
    etch_tensor *w = etch_div_scalar(operand_of(ETCH_F32, ETCH_SHAPE(M, M)), 10);
    etch_tensor *eager = seed(x, w), *exact = seed(wide(x), wide(w));
    etch_function *f = etch_compile(seed, .numerics = ETCH_RELAXED), *g = etch_compile(seed);
    for (int i = 0; i < 2; i++) {
        assert_true(etch_allclose(wide(etch_call(f, x, w)), exact, 1e-4, 1e-4, false));
        assert_true(etch_bitwise_equal(etch_call(g, x, w), eager));
    }
    count_seed(f, x, w, 5);
    count_seed(g, x, w, 10);
    etch_function_free(f);
    etch_function_free(g);
}

/* ---- logs, epilogues ---- */

TEST(sums_in_the_logs) {
    etch_tensor *a = operand_of(ETCH_F32, ETCH_SHAPE(M, K)),
                *w = operand_of(ETCH_F32, ETCH_SHAPE(K, N));
    etch_tensor *b = etch_sin(a), *v = etch_sin(w);
    for (int i = 0; i < 2; i++) {
        etch_function *f = etch_compile(i ? with_row : chain, .numerics = ETCH_RELAXED);
        *logged = 0;
        assert_true(etch_set_logs("fusion,schedule") == ETCH_OK);
        etch_set_log_sink(keep_log, NULL);
        assert_true(etch_call(f, a, b, w, v));
        etch_set_logs("");
        assert_true(says(logged, i ? "stands for 2 products with one right operand"
                                   : "stands for 4 products with one right operand"));
        assert_true(says(logged, "= the sum in %"));
        assert_int_equal(i && on_device(), joined_in(logged));
        etch_function_free(f);
    }
}

/* ---- sizes that change ---- */

static etch_tensor *grown(etch_tensor *x, etch_tensor *w) {
    return etch_add(etch_mm(x, w), etch_mm(etch_sin(x), w));
}

/* Small products stay, the others become one; the kernels of both are there
 * from the first size on. */
TEST(one_graph_for_all_sizes) {
    static const int64_t sizes[] = {3, 2, 64, 65, 200, 5, 300};
    etch_tensor *w = operand_of(ETCH_F32, ETCH_SHAPE(24, 48));
    for (int from = 0; from < 2; from++) {
        etch_function *f =
            etch_compile(grown, .numerics = ETCH_RELAXED, .dynamic = ETCH_DYNAMIC_ON);
        for (int i = 0; i < 7; i++) {
            int64_t n = sizes[(i + 4 * from) % 7];
            etch_tensor *x = operand_of(ETCH_F32, ETCH_SHAPE(n, 24)), *eager = grown(x, w);
            etch_counters_t a = etch_counters();
            etch_tensor *y = etch_call(f, x, w);
            etch_counters_t b = etch_counters();
            assert_true(etch_allclose(wide(y), grown(wide(x), wide(w)), 1e-4, 1e-4, false));
            assert_true(n > 64 || etch_bitwise_equal(y, eager));
            if (i) assert_int_equal(b.library_calls - a.library_calls, n > 64 ? 1 : 2);
            if (i && !on_device())
                assert_int_equal(b.kernels_compiled + b.cache_hits,
                                 a.kernels_compiled + a.cache_hits);
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
    }
}

/* ---- allocations ---- */

static etch_status compile_graph(const graph *g, plan **out) {
    backend_options options = {.numerics = ETCH_RELAXED};
    *out = NULL;
    return etch__backend_find("native")->compile(g, &options, out);
}

TEST(every_allocation_fails_once) {
    ONLY_ON_CPU();
    graph *g = etch__graph_parse("graph s(%0: f32[70, 70], %1: f32[70, 70]) {\n"
                                 "%2: f32[70, 70] = mm(%0, %1)\n"
                                 "%3: f32[70, 70] = sin(%0)\n"
                                 "%4: f32[70, 70] = mm(%3, %1)\n"
                                 "%5: f32[70, 70] = add.Tensor(%2, %4, $0: int) {1}\n"
                                 "return %5\n}");
    assert_non_null(g);
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        int native = 0;
        g->dynamic = dynamic;
        for (int n = 0; !native; n++) {
            plan *p;
            etch__fail_allocation(n);
            etch_status status = compile_graph(g, &p);
            etch__fail_allocation(-1);
            if (status != ETCH_OK) assert_int_equal(status, ETCH_ERR_OUT_OF_MEMORY);
            else native = p->nmatmuls == 1; /* else it is the eager plan */
            etch__plan_release(p);
            assert_true(n < 10000);
        }
    }
    etch__graph_free(g);
    etch_clear_error();
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

TEST(tuned_kernels_have_the_bits_of_eager) {
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

TEST(tuned_products_are_close) {
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

static void in_scope(const etch_test *t) {
    ETCH_SCOPE { t->body(); }
}
EACH_TEST(.around = in_scope)

int main(int argc, char **argv) {
    where = test_device();
    etch__cuda_gemm_force = GEMM_NEVER; /* the library's products: test_cuda_join has the others */
    return run_suite(argc, argv);
}
