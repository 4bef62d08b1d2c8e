/* Derivatives where calculus alone does not say what they are: at ties, kinks, bounds and zeros,
 * beside NaN and infinities, and for indices that come twice.
 * Labels: device quick. */
#include <etch/etch.h>
#include <math.h>
#include <string.h>

#include "etch_test.h"

#define S(...) ETCH_SHAPE(__VA_ARGS__)
#define COUNT(...) ((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)))
/* A leaf of these numbers; what needs no gradient. */
#define F(...) leaf(COUNT(__VA_ARGS__), (double[]){__VA_ARGS__}, true)
#define K(...) leaf(COUNT(__VA_ARGS__), (double[]){__VA_ARGS__}, false)
#define I(...) etch_to(K(__VA_ARGS__), ETCH_I64)

static etch_tensor *leaf(int n, const double *v, bool grad) {
    etch_tensor *t = etch_from_host(v, ETCH_F64, S(n));
    return grad ? etch_requires_grad_(t, true) : t;
}

static etch_tensor *matrix(etch_tensor *t, int64_t rows, int64_t columns) {
    return etch_reshape(t, S(rows, columns));
}

static void numbers(etch_tensor *t, int n, const double *want) {
    double have[64];
    if (!t) fail_msg("%s", etch_last_error());
    assert_int_equal(etch_numel(t), n);
    assert_int_equal(etch_to_host(etch_to(t, ETCH_F64), have, (size_t)n * sizeof *have), ETCH_OK);
    for (int i = 0; i < n; i++)
        if (!(have[i] == want[i] || (isnan(have[i]) && isnan(want[i]))))
            fail_msg("element %d: want %.17g, have %.17g", i, want[i], have[i]);
}

/* Of the sum of y. */
static etch_tensor *grad(etch_tensor *y, etch_tensor *x, bool create) {
    const etch_grad_options o = {
        .struct_size = sizeof o, .retain_graph = true, .create_graph = create};
    etch_tensor *g = NULL, *sum = etch_sum(y);
    if (etch_grad(&sum, 1, &x, 1, NULL, &o, &g) != ETCH_OK) fail_msg("%s", etch_last_error());
    return g;
}
/* The gradient of the sum of y for x is these numbers. */
#define GRAD(y, x, ...) numbers(grad(y, x, false), COUNT(__VA_ARGS__), (double[]){__VA_ARGS__})

/* ---- choices ---- */

TEST(ties_share) {
    ETCH_SCOPE {
        etch_tensor *x = F(1, 2, 3), *y = F(3, 2, 1), *m = etch_maximum(x, y);
        GRAD(m, x, 0, 0.5, 1);
        GRAD(m, y, 1, 0.5, 0);
        m = etch_minimum(x, y);
        GRAD(m, x, 1, 0.5, 0);
        GRAD(m, y, 0, 0.5, 1);
        m = etch_fmax(x, y);
        GRAD(m, x, 0, 0.5, 1);
        GRAD(m, y, 1, 0.5, 0);
        m = etch_fmin(x, y);
        GRAD(m, x, 1, 0.5, 0);
        GRAD(m, y, 0, 0.5, 1);
        etch_tensor *t = F(4, 7, 7, 1, 7, 7);
        GRAD(etch_max(t), t, 0, 0.25, 0.25, 0, 0.25, 0.25);
        GRAD(etch_amax(matrix(t, 2, 3), S(1), false), t, 0, 0.5, 0.5, 0, 0.5, 0.5);
        GRAD(etch_amin(matrix(t, 3, 2), S(0), true), t, 1, 0, 0, 1, 0, 0);
        etch_tensor *zeros = F(0.0, -0.0);
        GRAD(etch_max(zeros), zeros, 0.5, 0.5);
    }
}

TEST(choices_beside_nan) {
    ETCH_SCOPE {
        etch_tensor *x = F(NAN, 1), *y = F(1, NAN);
        GRAD(etch_maximum(x, y), x, 1, 1);
        GRAD(etch_maximum(x, y), y, 1, 1);
        GRAD(etch_fmax(x, y), x, 0, 1);
        GRAD(etch_fmin(x, y), y, 1, 0);
        GRAD(etch_fmax(F(NAN, 1), x), x, 0, 0.5);
        x = F(NAN, 1), y = F(NAN, NAN);
        GRAD(etch_fmax(x, y), x, 1, 1);
        GRAD(etch_fmin(x, y), y, 0, 0);
        y = F(1, NAN);
        etch_tensor *t = F(3, NAN, 2, NAN);
        GRAD(etch_max(t), t, 0, 0.5, 0, 0.5);
        GRAD(etch_relu(x), x, 1, 1);
        GRAD(etch_clamp(x, 0, 2), x, 0, 1);
        GRAD(etch_abs(x), x, 0, 1);
    }
}

/* As PyTorch's: no gradient ends where a number is so large that a composite treats it apart. */
TEST(at_infinity_and_beyond_the_range) {
    ETCH_SCOPE {
        etch_tensor *x = F(INFINITY, -INFINITY, NAN, -2, -0.0);
        GRAD(etch_abs(x), x, 1, -1, 0, -1, 0);
        GRAD(etch_copysign(x, K(1, 1, 1, 1, 1)), x, NAN, NAN, NAN, -1, 0);
        x = F(1, 1, -1, 1, 1, INFINITY, INFINITY, 0);
        etch_tensor *e = F(INFINITY, 3000, 3000, -INFINITY, -3000, INFINITY, -INFINITY, 3000);
        etch_tensor *y = etch_ldexp(x, e);
        GRAD(y, x, INFINITY, INFINITY, INFINITY, 0, 0, INFINITY, 0, INFINITY);
        GRAD(y, e, INFINITY, INFINITY, -INFINITY, 0, 0, INFINITY, NAN, NAN);
        e = F(NAN, 2);
        GRAD(etch_ldexp(K(1, 3), e), e, NAN, 12 * log(2));
    }
}

TEST(kinks_and_bounds) {
    ETCH_SCOPE {
        etch_tensor *x = F(-1, -0.0, 0, 0.5, 1, 2);
        GRAD(etch_relu(x), x, 0, 0, 0, 1, 1, 1);
        GRAD(etch_abs(x), x, -1, 0, 0, 1, 1, 1);
        GRAD(etch_clamp(x, 0, 1), x, 0, 1, 1, 1, 1, 0);
        GRAD(etch_clamp(x, 1, 0), x, 0, 0, 0, 0, 0, 0);
        GRAD(etch_clamp_min(x, 0), x, 0, 1, 1, 1, 1, 1);
        GRAD(etch_clamp_max(x, 1), x, 1, 1, 1, 1, 1, 0);
        GRAD(etch_copysign(x, K(-1, 1, 1, -1, -1, 1)), x, 1, 0, 0, -1, -1, 1);
        etch_tensor *half = etch_requires_grad_(etch_to(K(0.1, 0.2), ETCH_BF16), true);
        GRAD(etch_clamp(half, 0.1, 0.2), half, 1, 1); /* bounds are rounded as the numbers are */
    }
}

TEST(steps_have_the_gradient_zero) {
    ETCH_SCOPE {
        etch_tensor *x = F(-1.5, 0, 2.5), *y = F(2, 2, 2);
        GRAD(etch_floor(x), x, 0, 0, 0);
        GRAD(etch_ceil(x), x, 0, 0, 0);
        GRAD(etch_round(x), x, 0, 0, 0);
        GRAD(etch_trunc(x), x, 0, 0, 0);
        GRAD(etch_sign(x), x, 0, 0, 0);
        GRAD(etch_floor_divide(x, y), x, 0, 0, 0);
        GRAD(etch_floor_divide(x, y), y, 0, 0, 0);
        GRAD(etch_frac(x), x, 1, 1, 1);
        GRAD(etch_copysign(x, y), y, 0, 0, 0);
    }
}

TEST(rests_of_divisions) {
    ETCH_SCOPE {
        etch_tensor *x = F(7, -7, 7, 0.7), *y = F(2, 2, -2, 0.1);
        GRAD(etch_remainder(x, y), y, -3, 4, 4, -6); /* 0.7 is less than 7 times 0.1 */
        GRAD(etch_fmod(x, y), y, -3, 3, 3, -6);
        GRAD(etch_fmod(x, y), x, 1, 1, 1, 1);
        etch_tensor *far = F(INFINITY);
        GRAD(etch_fmod(K(3), far), far, 0);
    }
}

/* ---- what is not chosen does not matter ---- */

TEST(no_nan_from_what_is_left_out) {
    ETCH_SCOPE {
        etch_tensor *x = F(4, 0), *big = K(INFINITY, INFINITY);
        etch_tensor *root = etch_sqrt(x);
        GRAD(root, x, 0.25, INFINITY);
        GRAD(etch_where(etch_gt_scalar(x, 0), root, x), root, 1, 0);
        GRAD(etch_mul(etch_masked_fill(x, etch_eq_scalar(x, 0), 1), big), x, INFINITY, 0);
        GRAD(etch_mul(etch_relu(x), big), x, INFINITY, 0);
        GRAD(etch_mul(etch_clamp_min(x, 1), big), x, INFINITY, 0);
        GRAD(etch_log(x), x, 0.25, INFINITY);
    }
}

TEST(powers_at_zero) {
    ETCH_SCOPE {
        etch_tensor *x = F(0, 0, 0, 3), *e = F(0, 1, 2, 0);
        GRAD(etch_pow(x, e), x, 0, 1, 0, 0);
        GRAD(etch_pow(x, e), e, 0, 0, 0, log(3));
        GRAD(etch_pow_scalar(x, 0), x, 0, 0, 0, 0);
        GRAD(etch_pow_scalar(x, 0.0), x, 0, 0, 0, 0);
        GRAD(etch_pow_scalar(x, 1), x, 1, 1, 1, 1);
        GRAD(etch_pow_scalar(x, 2), x, 0, 0, 0, 6);
        GRAD(grad(etch_pow_scalar(x, 2), x, true), x, 2, 2, 2, 2);
    }
}

/* ---- products with zeros ---- */

TEST(products_with_zeros) {
    ETCH_SCOPE {
        etch_tensor *one = F(2, 0, 3), *two = F(2, 0, 3, 0), *none = F(2, 5);
        GRAD(etch_prod(none), none, 5, 2);
        GRAD(etch_prod(one), one, 0, 6, 0);
        GRAD(etch_prod(two), two, 0, 0, 0, 0);
        GRAD(etch_prod_dim(matrix(two, 2, 2), 1, false), two, 0, 2, 0, 3);
        /* of abc: the gradients' sum is bc + ac + ab */
        GRAD(grad(etch_prod(one), one, true), one, 3, 5, 2);
        GRAD(grad(etch_prod(two), two, true), two, 0, 6, 0, 6);
    }
}

TEST(running_products_with_zeros) {
    ETCH_SCOPE {
        etch_tensor *w = K(1, 10, 100, 1000);
        etch_tensor *x = F(2, 0, 3, 4), *y = F(0, 0, 5, 7), *z = F(2, 3, 5, 7);
        /* w0 a + w1 ab + w2 abc + w3 abcd */
        GRAD(etch_mul(etch_cumprod(x, 0), w), x, 1, 20 + 600 + 24000, 0, 0);
        GRAD(etch_mul(etch_cumprod(y, 0), w), y, 1, 0, 0, 0);
        GRAD(etch_mul(etch_cumprod(z, 0), w), z, 1 + 30 + 1500 + 105000, 20 + 1000 + 70000,
             600 + 42000, 30000);
    }
}

TEST(running_products_with_zeros_twice) {
    ETCH_SCOPE {
        etch_tensor *x = F(2, 0, 3), *y = F(0, 0, 5), *cube = F(2, 0, 3);
        /* of a + ab + abc the gradients' sum is 1 + b + bc + a + ac + ab */
        GRAD(grad(etch_cumprod(x, 0), x, true), x, 0 + 1 + 3 + 0, 1 + 3 + 2, 0 + 2);
        GRAD(grad(etch_cumprod(y, 0), y, true), y, 1 + 5, 1 + 5, 0);
        /* and of these sums the third is (1 + c + 1 + b) + (1 + c + a) + (b + a), differentiated */
        etch_tensor *second = grad(grad(etch_cumprod(cube, 0), cube, true), cube, true);
        GRAD(second, cube, 2, 2, 2);
    }
}

/* ---- reductions ---- */

TEST(spread_of_equal_numbers) {
    ETCH_SCOPE {
        etch_tensor *x = F(2, 2, 2, 1, 2, 3);
        GRAD(etch_std_dim(matrix(x, 2, 3), S(1), 1, false), x, 0, 0, 0, -0.5, 0, 0.5);
        etch_tensor *same = F(2, 2);
        GRAD(etch_layer_norm(same, S(2), ETCH_NONE, ETCH_NONE, 1e-5), same, 0, 0);
    }
}

TEST(sums_of_exponentials_with_infinities) {
    ETCH_SCOPE {
        etch_tensor *x = F(0, -INFINITY), *y = F(-INFINITY, 1);
        GRAD(etch_logsumexp(x, S(0), false), x, 1, 0);
        GRAD(etch_mul(etch_softmax(x, 0), K(5, 3)), x, 0, 0);
        GRAD(etch_mul(etch_log_softmax(y, 0), K(0, 1)), y, 0, 0);
        /* that largest number is taken out first leaves no trace in the gradient */
        etch_tensor *big = F(1000, 1000);
        GRAD(etch_logsumexp(big, S(0), true), big, 0.5, 0.5);
    }
}

/* ---- indices ---- */

TEST(indices_that_come_twice) {
    ETCH_SCOPE {
        etch_tensor *x = F(1, 2, 3), *v = F(5, 6, 7), *w = K(1, 10, 100), *twice = I(2, 0, 2);
        GRAD(etch_mul(etch_index_select(x, 0, twice), w), x, 10, 0, 101);
        GRAD(etch_mul(etch_gather(x, 0, twice), w), x, 10, 0, 101);
        GRAD(etch_mul(etch_take(x, I(-1, 0, 2)), w), x, 10, 0, 101);
        etch_tensor *put = etch_mul(etch_scatter(x, 0, twice, v), w);
        GRAD(put, x, 0, 10, 0);
        GRAD(put, v, 100, 1, 100);
        put = etch_mul(etch_index_put(x, twice, v, false), w);
        GRAD(put, x, 0, 10, 0);
        GRAD(put, v, 100, 1, 100);
        put = etch_mul(etch_index_put(x, twice, v, true), w);
        GRAD(put, x, 1, 10, 100);
        GRAD(put, v, 100, 1, 100);
        GRAD(etch_mul(etch_index_copy(x, 0, twice, v), w), v, 100, 1, 100);
    }
}

/* Rows of halves are added in f32. */
TEST(many_halves_are_added) {
    ETCH_SCOPE {
        etch_tensor *table = etch_requires_grad_(etch_zeros(ETCH_BF16, S(2, 1)), true);
        etch_tensor *index = etch_zeros(ETCH_I64, S(1000));
        GRAD(etch_embedding(table, index), table, 1000, 0);
        etch_tensor *t = etch_requires_grad_(etch_zeros(ETCH_BF16, S(600)), true);
        etch_tensor *windows = grad(etch_unfold(t, 0, 300, 1), t, false);
        numbers(etch_select(windows, 0, 299), 1, (double[]){300});
    }
}

/* ---- joins ---- */

TEST(a_join_of_many) {
    ETCH_SCOPE {
        etch_tensor *x[100], *g[100];
        for (int i = 0; i < 100; i++) x[i] = i % 7 == 3 ? F(i) : F(i, i, i);
        etch_tensor *y = etch_sum(etch_square(etch_cat(x, 100, 0)));
        assert_int_equal(etch_grad(&y, 1, x, 100, NULL, NULL, g), ETCH_OK);
        for (int i = 0; i < 100; i++) numbers(etch_select(g[i], 0, 0), 1, (double[]){2.0 * i});
    }
}

/* Views over memory that several elements share: each gets its part. */
TEST(places_that_are_shared) {
    ETCH_SCOPE {
        etch_tensor *x = F(1, 2, 3, 4);
        etch_tensor *wide = etch_expand(x, S(3, 4));
        GRAD(etch_as_strided(wide, S(3), S(1)), x, 1, 1, 1, 0);
        GRAD(etch_as_strided(x, S(3, 2), S(1, 1)), x, 1, 2, 2, 1);
        GRAD(etch_as_strided(etch_unfold(x, 0, 2, 1), S(4), S(1)), x, 1, 1, 1, 1);
    }
}

/* ---- compiled, with sizes that change ---- */

static etch_tensor *many_operators(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_conv2d(x, w, ETCH_NONE, S(2), S(1), S(1), 1);
    y = etch_flatten(etch_amax(etch_unfold(y, 3, 2, 1), S(-1), false), 1, -1);
    y = etch_softmax(etch_narrow(y, 1, 1, etch_size(y, 1) - 2), -1);
    etch_tensor *part = etch_cumsum(etch_slice(y, 0, 1, ETCH_ABSENT, 1), 0);
    return etch_mean(etch_square(etch_cat(((etch_tensor *[]){y, part}), 2, 0)));
}

/* The gradients for x and w. */
static ETCH_FN_N(step, ctx, in, nin, out, nout) {
    etch_tensor *loss = many_operators(in[0], in[1]);
    return etch_grad(&loss, 1, in, 2, NULL, NULL, out);
}

/* One product for all rows of the batch: no weight for each matrix, and no sum of such. */
TEST(a_weight_of_a_batch_gets_one_product) {
    etch_profile_entry seen[64];
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F64, S(5, 3, 4));
        etch_tensor *w = etch_requires_grad_(etch_randn(ETCH_F64, S(2, 4)), true);
        etch_tensor *y = etch_linear(x, w, ETCH_NONE), *g = NULL;
        ETCH_PROFILE (NULL) { g = grad(y, w, false); }
        int n = etch_profile_entries(seen, 64);
        for (int i = 0; i < n; i++) assert_string_not_equal(seen[i].name, "aten::bmm");
        assert_true(n > 0 && n <= 64);
        etch_tensor *rows = etch_reshape(x, S(15, 4));
        etch_tensor *want = etch_expand(etch_sum_dim(rows, S(0), true), S(2, 4));
        etch_tensor *error = etch_amax(etch_abs(etch_sub(g, want)), S(0, 1), false);
        assert_true(etch_item(error) < 1e-12);
        assert_true(etch_ndim(y) == 3 && etch_size(y, 0) == 5 && etch_size(y, 2) == 2);
    }
}

/* ---- parts of one value ---- */

static bool ran(const char *name) {
    etch_profile_entry seen[64];
    int n = etch_profile_entries(seen, 64);
    bool found = false;
    for (int i = 0; i < n; i++) found |= !strcmp(seen[i].name, name);
    assert_true(n > 0 && n <= 64);
    return found;
}

static etch_tensor *cut(etch_tensor *x, int64_t from, int64_t to, int64_t step, double factor) {
    return etch_mul_scalar(etch_slice(x, 0, from, to, step), factor);
}

static etch_tensor *both(etch_tensor *a, etch_tensor *b) {
    return etch_add(etch_sum(a), etch_sum(b));
}

TEST(parts_side_by_side_need_no_zeros) {
    ETCH_SCOPE {
        etch_tensor *x = F(1, 2, 3, 4, 5), *g = NULL;
        etch_tensor *y = both(cut(x, -2, ETCH_ABSENT, 1, 3), cut(x, 0, 3, 1, 2));
        ETCH_PROFILE (NULL) { g = grad(y, x, false); }
        numbers(g, 5, (double[]){2, 2, 2, 3, 3});
        assert_false(ran("aten::zeros") || ran("aten::add.Tensor"));
        etch_tensor *m = F(1, 2, 3, 4), *row = etch_select(matrix(m, 2, 2), 0, -1);
        y = both(etch_mul_scalar(row, 5), etch_select(matrix(m, 2, 2), 0, 0));
        GRAD(y, m, 1, 1, 5, 5);
        numbers(grad(etch_square(etch_mul(cut(m, 0, 2, 1, 1), cut(m, 2, 4, 1, 1))), m, true), 4,
                (double[]){18, 64, 6, 32});
    }
}

TEST(parts_with_gaps_overlaps_and_wholes) {
    ETCH_SCOPE {
        etch_tensor *x = F(1, 2, 3, 4, 5, 6);
        GRAD(both(cut(x, 0, 1, 1, 2), cut(x, 4, 6, 1, 3)), x, 2, 0, 0, 0, 3, 3);
        GRAD(both(cut(x, 0, 4, 1, 2), cut(x, 3, 6, 1, 3)), x, 2, 2, 2, 5, 3, 3);
        GRAD(both(cut(x, 0, 6, 2, 2), cut(x, 1, 6, 2, 3)), x, 2, 3, 2, 3, 2, 3);
        GRAD(both(cut(x, 5, -100, -2, 2), cut(x, 1, 6, 1, 3)), x, 0, 5, 3, 5, 3, 5);
        GRAD(both(cut(x, 1, 2, 7, 2), cut(x, 3, 3, 1, 3)), x, 0, 2, 0, 0, 0, 0);
        GRAD(etch_add(both(cut(x, 0, 3, 1, 2), x), etch_sum(cut(x, 3, 6, 1, 4))), x, 3, 3, 3, 5, 5,
             5);
        etch_tensor *m = matrix(x, 2, 3); /* along both dimensions */
        GRAD(both(etch_slice(m, 0, 0, 1, 1), etch_slice(m, 1, 2, 3, 1)), x, 1, 1, 2, 0, 0, 1);
    }
}

TEST(sizes_may_change) {
    etch_function *f = etch_compile(step);
    etch_tensor *have[2], *want[2];
    for (int64_t n = 2; n < 8; n++)
        ETCH_SCOPE {
            etch_tensor *x = etch_randn(ETCH_F32, S(n, 2, 6, 5)), *in[2];
            in[0] = etch_requires_grad_(x, true);
            in[1] = etch_requires_grad_(etch_randn(ETCH_F32, S(3, 2, 3, 3)), true);
            assert_int_equal(step(NULL, in, 2, want, 2), ETCH_OK);
            assert_int_equal(etch_call_n(f, in, 2, have, 2), ETCH_OK);
            for (int k = 0; k < 2; k++) assert_true(etch_bitwise_equal(have[k], want[k]));
        }
    assert_true(etch_function_counters(f).graphs <= 3);
    etch_function_free(f);
}
