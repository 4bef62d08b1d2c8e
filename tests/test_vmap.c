/* etch_vmap beside the operators: the rules of docs/transforms.md one by one, what cannot be
 * mapped, gradients in and around it, and what it does inside compiled functions. Labels: quick. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "trace_support.h"

/* ---- helpers ---- */

static etch_tensor *numbers(etch_shape size, double scale) {
    int64_t n = 1;
    for (int i = 0; i < size.n; i++) n *= size.v[i];
    etch_tensor *t = etch_arange(ETCH_F32, 0, n, 1);
    return etch_reshape(etch_sin(etch_mul_scalar(t, scale)), size);
}

#define assert_fails(code, part, call)                                                             \
    do {                                                                                           \
        etch_clear_error();                                                                        \
        assert_null(call);                                                                         \
        assert_int_equal(etch_last_status(), code);                                                \
        if (!strstr(etch_last_error(), part)) fail_msg("%s", etch_last_error());                   \
        etch_clear_error();                                                                        \
    } while (0)

static bool are_close(etch_tensor *a, etch_tensor *b, double bound) {
    if (!a || !b) fail_msg("%s", etch_last_error());
    return etch_item(etch_max(etch_abs(etch_sub(a, b)))) < bound;
}

/* f mapped, called once, freed. */
static etch_tensor *map1(etch_fn1 fn, etch_dims in, etch_dims out, etch_tensor *x) {
    etch_function *f = etch_vmap(fn, in, out);
    etch_tensor *y = etch_call(f, x);
    etch_function_free(f);
    return y;
}
static etch_tensor *map2(etch_fn2 fn, etch_dims in, etch_tensor *x, etch_tensor *y) {
    etch_function *f = etch_vmap(fn, in, ETCH_DIMS(0));
    etch_tensor *z = etch_call(f, x, y);
    etch_function_free(f);
    return z;
}

/* ---- what the body sees ---- */

static etch_tensor *sees_a_sample(etch_tensor *x) {
    assert_int_equal(etch_ndim(x), 2);
    assert_int_equal(etch_size(x, 0), 3);
    assert_int_equal(etch_size(x, -1), 4);
    assert_int_equal(etch_numel(x), 12);
    assert_int_equal(etch_dtype_of(x), ETCH_F32);
    assert_int_equal(etch_stride(x, 0), 20); /* of [3, 5, 4] */
    return etch_sum_dim(x, ETCH_DIMS(1), false);
}

TEST(the_body_sees_one_sample) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(3, 5, 4), 1.3);
        etch_tensor *y = map1(sees_a_sample, ETCH_DIMS(1), ETCH_DIMS(1), x);
        assert_same(y, etch_sum_dim(x, ETCH_DIMS(2), false));
    }
}

static etch_tensor *itself(etch_tensor *x) { return x; }
static etch_tensor *captured;
static etch_tensor *what_is_captured(etch_tensor *x) { return x ? captured : NULL; }
static ETCH_FN_N(twice_the_same, ctx, in, nin, out, nout) {
    out[0] = out[1] = etch_neg(in[0]);
    return out[0] ? ETCH_OK : etch_last_status();
}

TEST(what_is_returned_need_not_be_made) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(2, 3), 1), *out[2];
        assert_same(map1(itself, ETCH_DIMS(0), ETCH_DIMS(0), x), x);
        assert_same(map1(itself, ETCH_DIMS(0), ETCH_DIMS(1), x), etch_t(x));
        captured = numbers(ETCH_SHAPE(2), 2);
        etch_tensor *y = map1(what_is_captured, ETCH_DIMS(1), ETCH_DIMS(0), x);
        assert_same(y, etch_expand(captured, ETCH_SHAPE(3, 2)));
        assert_non_null(etch_zero_(y)); /* it has memory of its own */
        assert_true(etch_item(etch_max(captured)) > 0);
        y = map1(what_is_captured, ETCH_DIMS(1), ETCH_DIMS(ETCH_UNMAPPED), x);
        assert_same(y, captured);
        etch_function *f = etch_vmap(twice_the_same, ETCH_DIMS(0), ETCH_DIMS(0, 1));
        assert_int_equal(etch_call_n(f, &x, 1, out, 2), ETCH_OK);
        assert_same(out[0], etch_neg(x));
        assert_same(out[1], etch_t(etch_neg(x)));
        etch_function_free(f);
    }
}

static int bodies;
static etch_tensor *counts(etch_tensor *x) {
    bodies++;
    return etch_mul_scalar(x, 2);
}

TEST(a_batch_may_be_empty_or_of_one) {
    ETCH_SCOPE {
        bodies = 0;
        etch_tensor *none = etch_zeros(ETCH_F32, ETCH_SHAPE(0, 3));
        etch_tensor *y = map1(counts, ETCH_DIMS(0), ETCH_DIMS(-1), none);
        assert_int_equal(etch_size(y, 0), 3);
        assert_int_equal(etch_size(y, 1), 0);
        etch_tensor *one = numbers(ETCH_SHAPE(3, 1), 1);
        assert_same(map1(counts, ETCH_DIMS(1), ETCH_DIMS(0), one), etch_t(etch_mul_scalar(one, 2)));
        assert_int_equal(bodies, 2);
    }
}

/* ---- dtypes of samples without dimensions ---- */

static etch_tensor *(*two_operands)(etch_tensor *, etch_tensor *);
static etch_tensor *by_sample(etch_tensor *x) { return two_operands(captured, x); }
static etch_tensor *in_place_by_sample(etch_tensor *x) {
    etch_tensor *own = etch_add(captured, etch_mul_scalar(x, 0));
    return two_operands(own, x);
}

static void check_factors(etch_fn1 body, etch_dtype half, etch_dtype wide) {
    captured = etch_to(numbers(ETCH_SHAPE(40), 1.7), half);
    etch_tensor *x = etch_to(etch_add_scalar(numbers(ETCH_SHAPE(9), 0.9), 2), wide), *want[9];
    for (int i = 0; i < 9; i++) want[i] = body(etch_select(x, 0, i));
    assert_same(map1(body, ETCH_DIMS(0), ETCH_DIMS(0), x), etch_stack(want, 9, 0));
}

/* They stay as wide as they are beside half types: etch/tensor.h says which operands do. */
TEST(wide_factors_of_half_types) {
    static etch_tensor *(*const ops[])(etch_tensor *, etch_tensor *) = {
        etch_mul, etch_div, etch_floor_divide, etch_add};
    static etch_tensor *(*const writing[])(etch_tensor *, etch_tensor *) = {etch_mul_, etch_div_};
    for (int half = 0; half < 2; half++)
        for (int wide = 0; wide < 2; wide++)
            ETCH_SCOPE {
                etch_dtype h = half ? ETCH_F16 : ETCH_BF16, w = wide ? ETCH_F64 : ETCH_F32;
                for (int i = 0; i < 4; i++) two_operands = ops[i], check_factors(by_sample, h, w);
                for (int i = 0; i < 2; i++)
                    two_operands = writing[i], check_factors(in_place_by_sample, h, w);
            }
}

/* ---- what cannot be mapped ---- */

static etch_tensor *branches(etch_tensor *x) {
    return etch_item(etch_sum(x)) > 0 ? x : etch_neg(x);
}
static etch_tensor *writes_captured(etch_tensor *x) { return etch_add_(captured, x); }
static etch_tensor *draws(etch_tensor *x) {
    return etch_add(x, etch_rand(ETCH_F32, etch_sizes(x)));
}
static etch_tensor *has_no_size(etch_tensor *x) { return etch_nonzero(x); }
static etch_tensor *prints(etch_tensor *x) {
    etch_print(x);
    return etch_last_status() == ETCH_OK ? x : NULL;
}
static etch_tensor *does_not_fit(etch_tensor *x) { return etch_add(x, captured); }
static etch_tensor *uses_captured(etch_tensor *x) { return etch_add(x, captured); }
static etch_tensor *leaks(etch_tensor *x) { return captured = etch_retain(etch_neg(x)); }

TEST(reading_a_batched_value_is_an_error_with_its_line) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
        assert_fails(ETCH_ERR_BATCHED, "etch_where", map1(branches, ETCH_DIMS(0), ETCH_DIMS(0), x));
        etch_clear_error();
        map1(branches, ETCH_DIMS(0), ETCH_DIMS(0), x);
        assert_non_null(strstr(etch_last_error(), "test_vmap.c:"));
        assert_fails(ETCH_ERR_BATCHED, "etch_", map1(has_no_size, ETCH_DIMS(0), ETCH_DIMS(0), x));
        assert_fails(ETCH_ERR_BATCHED, "etch_print", map1(prints, ETCH_DIMS(0), ETCH_DIMS(0), x));
    }
}

TEST(a_batched_value_is_not_written_into_what_all_share) {
    ETCH_SCOPE {
        captured = etch_zeros(ETCH_F32, ETCH_SHAPE(3));
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
        assert_fails(ETCH_ERR_BATCHED, "etch_zeros_like",
                     map1(writes_captured, ETCH_DIMS(0), ETCH_DIMS(0), x));
        assert_true(etch_item(etch_max(etch_abs(captured))) == 0);
    }
}

TEST(errors_show_the_sizes_of_a_sample) {
    ETCH_SCOPE {
        captured = etch_zeros(ETCH_F32, ETCH_SHAPE(5));
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
        assert_fails(ETCH_ERR_SHAPE, "[3]", map1(does_not_fit, ETCH_DIMS(0), ETCH_DIMS(0), x));
    }
}

TEST(a_batched_tensor_ends_with_its_call) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
        assert_non_null(map1(leaks, ETCH_DIMS(0), ETCH_DIMS(0), x));
        assert_fails(ETCH_ERR_BATCHED, "has ended", etch_neg(captured));
        assert_fails(ETCH_ERR_BATCHED, "has ended",
                     map1(uses_captured, ETCH_DIMS(0), ETCH_DIMS(0), x));
        etch_release(captured);
    }
}

TEST(dimensions_that_do_not_fit) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1), *y = numbers(ETCH_SHAPE(5, 3), 1);
        assert_fails(ETCH_ERR_DIM_RANGE, "[4, 3]", map1(itself, ETCH_DIMS(2), ETCH_DIMS(0), x));
        assert_fails(ETCH_ERR_DIM_RANGE, "[4, 3]", map1(itself, ETCH_DIMS(-3), ETCH_DIMS(0), x));
        assert_fails(ETCH_ERR_DIM_RANGE, "out_dims", map1(itself, ETCH_DIMS(0), ETCH_DIMS(2), x));
        assert_fails(ETCH_ERR_INVALID_ARGUMENT, "maps none",
                     map1(itself, ETCH_DIMS(ETCH_UNMAPPED), ETCH_DIMS(0), x));
        assert_fails(ETCH_ERR_INVALID_ARGUMENT, "argument 1 has 5 samples",
                     map2(etch_mul, ETCH_DIMS(0), x, y));
        assert_fails(ETCH_ERR_BATCHED, "ETCH_UNMAPPED",
                     map1(itself, ETCH_DIMS(0), ETCH_DIMS(ETCH_UNMAPPED), x));
        assert_fails(ETCH_ERR_DIM_RANGE, "[]",
                     map1(itself, ETCH_DIMS(0), ETCH_DIMS(0), etch_zeros(ETCH_F32, ETCH_SHAPE())));
    }
}

/* ---- random numbers ---- */

static etch_tensor *with_randomness(etch_randomness r, etch_tensor *x) {
    etch_function *f = etch_vmap(draws, ETCH_DIMS(0), ETCH_DIMS(0), .randomness = r);
    etch_tensor *y = etch_call(f, x);
    etch_function_free(f);
    return y;
}

TEST(random_numbers_follow_what_was_asked_for) {
    ETCH_SCOPE {
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(3, 4));
        assert_fails(ETCH_ERR_BATCHED, "ETCH_RANDOM_DIFFERENT",
                     with_randomness(ETCH_RANDOM_ERROR, x));
        etch_tensor *y = with_randomness(ETCH_RANDOM_SAME, x);
        assert_same(etch_select(y, 0, 0), etch_select(y, 0, 2));
        y = with_randomness(ETCH_RANDOM_DIFFERENT, x);
        assert_false(etch_equal(etch_select(y, 0, 0), etch_select(y, 0, 1)));
        assert_int_equal(etch_ndim(y), 2);
        assert_non_null(etch_rand(ETCH_F32, ETCH_SHAPE(2))); /* as ever outside */
    }
}

static etch_tensor *draws_at_two_levels(etch_tensor *x) {
    etch_function *f =
        etch_vmap(draws, ETCH_DIMS(0), ETCH_DIMS(0), .randomness = ETCH_RANDOM_DIFFERENT);
    etch_tensor *y = etch_call(f, x);
    etch_function_free(f);
    return y;
}

TEST(each_level_has_its_own_randomness) {
    ETCH_SCOPE {
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(2, 3, 4));
        etch_function *f = etch_vmap(draws_at_two_levels, ETCH_DIMS(0), ETCH_DIMS(0),
                                     .randomness = ETCH_RANDOM_SAME);
        etch_tensor *y = etch_call(f, x);
        assert_same(etch_select(y, 0, 0), etch_select(y, 0, 1));
        etch_tensor *inner = etch_select(y, 0, 0);
        assert_false(etch_equal(etch_select(inner, 0, 0), etch_select(inner, 0, 1)));
        etch_function_free(f);
        assert_fails(ETCH_ERR_BATCHED, "random",
                     map1(draws_at_two_levels, ETCH_DIMS(0), ETCH_DIMS(0), x));
    }
}

/* ---- in place ---- */

static etch_tensor *writes_through_views(etch_tensor *x, etch_tensor *y) {
    etch_tensor *t = etch_mul_scalar(x, 1);
    etch_copy_(etch_slice(t, 0, 0, 2, 1), etch_slice(y, 0, 1, 3, 1));
    etch_tensor *v = etch_select(t, 0, 2);
    etch_mul_(v, etch_select(y, 0, 0));
    return etch_add(t, v);
}

static etch_tensor *loop2(etch_fn2 fn, etch_tensor *x, etch_tensor *y) {
    etch_tensor *parts[8];
    int64_t n = etch_size(x, 0);
    for (int64_t b = 0; b < n; b++) parts[b] = fn(etch_select(x, 0, b), etch_select(y, 0, b));
    return etch_stack(parts, (int)n, 0);
}

TEST(views_of_a_sample_are_written_with_it) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1), *y = numbers(ETCH_SHAPE(4, 3), 2);
        assert_same(map2(writes_through_views, ETCH_DIMS(0), x, y),
                    loop2(writes_through_views, x, y));
    }
}

static etch_tensor *gradient_through(bool mapped, etch_tensor *x, etch_tensor *y) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true), *g = NULL;
    etch_tensor *z = mapped ? map2(writes_through_views, ETCH_DIMS(0), leaf, y)
                            : loop2(writes_through_views, leaf, y);
    etch_tensor *loss = etch_sum(etch_square(z));
    if (!loss || etch_grad(&loss, 1, &leaf, 1, NULL, NULL, &g) != ETCH_OK)
        fail_msg("%s", etch_last_error());
    return g;
}

TEST(gradients_flow_through_writes_and_views) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1), *y = numbers(ETCH_SHAPE(4, 3), 2);
        assert_true(are_close(gradient_through(true, x, y), gradient_through(false, x, y), 1e-6));
    }
}

static etch_tensor *writes_its_argument(etch_tensor *x) { return etch_add_scalar_(x, 1); }

TEST(an_argument_that_is_written_is_the_callers) {
    ETCH_SCOPE {
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(2, 3));
        assert_non_null(map1(writes_its_argument, ETCH_DIMS(1), ETCH_DIMS(0), x));
        assert_same(x, etch_ones(ETCH_F32, ETCH_SHAPE(2, 3)));
        etch_tensor *wide = etch_expand(etch_zeros(ETCH_F32, ETCH_SHAPE(3)), ETCH_SHAPE(2, 3));
        assert_fails(ETCH_ERR_BATCHED, "all samples share",
                     map1(writes_its_argument, ETCH_DIMS(0), ETCH_DIMS(0), wide));
    }
}

/* ---- gradients ---- */

static etch_tensor *w, *v;
static etch_tensor *loss_of(etch_tensor *x) {
    etch_tensor *h = etch_tanh(etch_mv(w, x));
    return etch_mean(etch_square(etch_sub(etch_mv(v, h), x)));
}

/* Two gradients per sample, of tensors that all samples share. */
static ETCH_FN_N(both_gradients, ctx, in, nin, out, nout) {
    etch_tensor *loss = loss_of(in[0]), *leaves[] = {w, v};
    return etch_grad(&loss, 1, leaves, 2, NULL, NULL, out);
}

static void make_weights(void) {
    w = etch_requires_grad_(etch_clone(numbers(ETCH_SHAPE(4, 3), 1)), true);
    v = etch_requires_grad_(etch_clone(numbers(ETCH_SHAPE(3, 4), 2)), true);
}

TEST(gradients_for_each_sample) {
    ETCH_SCOPE {
        make_weights();
        etch_tensor *x = numbers(ETCH_SHAPE(5, 3), 0.7), *g[2];
        etch_function *f = etch_vmap(both_gradients, ETCH_DIMS(0), ETCH_DIMS(0));
        if (etch_call_n(f, &x, 1, g, 2) != ETCH_OK) fail_msg("%s", etch_last_error());
        etch_function_free(f);
        for (int64_t b = 0; b < 5; b++) {
            etch_tensor *loss = loss_of(etch_select(x, 0, b)), *leaves[] = {w, v}, *one[2];
            assert_int_equal(etch_grad(&loss, 1, leaves, 2, NULL, NULL, one), ETCH_OK);
            for (int k = 0; k < 2; k++)
                assert_true(are_close(etch_select(g[k], 0, b), one[k], 1e-6));
        }
        assert_null(etch_grad_of(w));
    }
}

static etch_tensor *leaves_a_gradient(etch_tensor *x) {
    etch_tensor *loss = loss_of(x);
    return etch_backward(loss) == ETCH_OK ? loss : NULL;
}
static etch_tensor *has_leaves_of_its_own(etch_tensor *x) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true);
    if (etch_backward(etch_sum(etch_square(leaf))) != ETCH_OK) return NULL;
    if (etch_backward(etch_sum(leaf)) != ETCH_OK) return NULL; /* the same for each sample */
    return etch_grad_of(leaf);
}

TEST(backward_inside_is_for_batched_leaves) {
    ETCH_SCOPE {
        make_weights();
        etch_tensor *x = numbers(ETCH_SHAPE(5, 3), 0.7);
        assert_fails(ETCH_ERR_BATCHED, "etch_grad",
                     map1(leaves_a_gradient, ETCH_DIMS(0), ETCH_DIMS(0), x));
        etch_tensor *g = map1(has_leaves_of_its_own, ETCH_DIMS(0), ETCH_DIMS(0), x);
        assert_same(g, etch_add_scalar(etch_add(x, x), 1));
    }
}

/* The square of the length of a sample's gradient: differentiated again outside. */
static etch_tensor *penalty(etch_tensor *x) {
    etch_tensor *loss = loss_of(x), *g = NULL;
    etch_grad_options o = {.struct_size = sizeof o, .create_graph = true};
    if (etch_grad(&loss, 1, &w, 1, NULL, &o, &g) != ETCH_OK) return NULL;
    return etch_sum(etch_square(g));
}

static etch_tensor *looped_penalty(etch_tensor *x) {
    etch_tensor *sum = NULL;
    for (int64_t b = 0; b < etch_size(x, 0); b++) {
        etch_tensor *p = penalty(etch_select(x, 0, b));
        sum = sum ? etch_add(sum, p) : p;
    }
    return sum;
}

TEST(gradients_of_gradients_of_each_sample) {
    ETCH_SCOPE {
        make_weights();
        etch_tensor *x = numbers(ETCH_SHAPE(5, 3), 0.7), *leaves[] = {w, v}, *a[2], *b[2];
        etch_tensor *sum = etch_sum(map1(penalty, ETCH_DIMS(0), ETCH_DIMS(0), x));
        if (!sum || etch_grad(&sum, 1, leaves, 2, NULL, NULL, a) != ETCH_OK)
            fail_msg("%s", etch_last_error());
        sum = looped_penalty(x);
        assert_int_equal(etch_grad(&sum, 1, leaves, 2, NULL, NULL, b), ETCH_OK);
        for (int k = 0; k < 2; k++) assert_true(are_close(a[k], b[k], 1e-5));
    }
}

/* A Jacobian: backward for each row of the unit matrix, over a tape that has a level of its own. */
static etch_tensor *inner_sum(etch_tensor *row) { return etch_sum(etch_sin(row)); }
static etch_tensor *output, *at;
static etch_tensor *row_of_jacobian(etch_tensor *unit) {
    etch_tensor *g = NULL;
    etch_grad_options o = {.struct_size = sizeof o, .retain_graph = true};
    return etch_grad(&output, 1, &at, 1, &unit, &o, &g) == ETCH_OK ? g : NULL;
}

TEST(levels_of_different_calls_meet_in_a_gradient) {
    ETCH_SCOPE {
        at = etch_requires_grad_(etch_clone(numbers(ETCH_SHAPE(3, 2), 1)), true);
        output = map1(inner_sum, ETCH_DIMS(0), ETCH_DIMS(0), at);
        etch_tensor *unit = etch_to(etch_eq(etch_unsqueeze(etch_arange(ETCH_I64, 0, 3, 1), 1),
                                            etch_arange(ETCH_I64, 0, 3, 1)),
                                    ETCH_F32);
        etch_tensor *j = map1(row_of_jacobian, ETCH_DIMS(0), ETCH_DIMS(0), unit);
        etch_tensor *want = etch_mul(etch_unsqueeze(unit, 2), etch_cos(etch_detach(at)));
        assert_true(are_close(j, want, 1e-6));
    }
}

static etch_tensor *ones_for(void *ctx, etch_tensor *g) {
    (void)ctx;
    return etch_ones(ETCH_F32, etch_sizes(g));
}
static etch_tensor *with_a_hook(etch_tensor *x) {
    etch_tensor *h = etch_mul(x, w);
    etch_add_grad_hook(h, ones_for, NULL);
    return etch_sum(h);
}

TEST(what_a_hook_returns_is_each_samples) {
    ETCH_SCOPE {
        w = etch_requires_grad_(etch_clone(numbers(ETCH_SHAPE(3), 1)), true);
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(4, 3)), *g = NULL;
        etch_tensor *sum = etch_sum(map1(with_a_hook, ETCH_DIMS(0), ETCH_DIMS(0), x));
        assert_int_equal(etch_grad(&sum, 1, &w, 1, NULL, NULL, &g), ETCH_OK);
        assert_same(g, etch_full(ETCH_F32, ETCH_SHAPE(3), 4));
    }
}

/* ---- hooks, kept gradients and kept tapes of mapped functions, and compiled ---- */

static int hooks_run;
static etch_tensor *square_it(void *ctx, etch_tensor *g) {
    (void)ctx;
    hooks_run++;
    assert_int_equal(etch_ndim(g), 1); /* of one sample */
    return etch_mul(g, g);
}
static etch_tensor *refuses(void *ctx, etch_tensor *g) {
    (void)ctx, (void)g;
    etch_set_error(ETCH_ERR_UNSUPPORTED, "the hook does not like it");
    return NULL;
}

/* The gradient for the sample through a hook on what is computed of it. */
static etch_tensor *hooked_gradient(etch_tensor *x) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true), *g = NULL;
    etch_tensor *h = etch_mul(leaf, w), *kept = etch_sin(h);
    int64_t number = etch_add_grad_hook(h, square_it, NULL), other;
    other = etch_add_grad_hook(kept, refuses, NULL);
    etch_remove_grad_hook(kept, other);
    if (!number || !other || etch_retain_grad(kept) != ETCH_OK) return NULL;
    etch_tensor *sum = etch_sum(kept);
    if (etch_grad(&sum, 1, &leaf, 1, NULL, NULL, &g) != ETCH_OK) return NULL;
    return g;
}
static etch_tensor *kept_gradient(etch_tensor *x) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true), *h = etch_square(leaf);
    if (etch_retain_grad(h) != ETCH_OK || etch_backward(etch_sum(etch_mul(h, x))) != ETCH_OK)
        return NULL;
    return etch_add(etch_grad_of(h), etch_grad_of(leaf));
}
static etch_tensor *refused_gradient(etch_tensor *x) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true), *h = etch_square(leaf);
    etch_add_grad_hook(h, refuses, NULL);
    return etch_backward(etch_sum(h)) == ETCH_OK ? etch_grad_of(leaf) : NULL;
}
/* One tape, two backward passes, the second with another gradient. */
static etch_tensor *twice_over_one_tape(etch_tensor *x) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true), *one = NULL, *two = NULL;
    etch_tensor *y = etch_tanh(etch_mul(leaf, leaf));
    etch_grad_options keep = {.struct_size = sizeof keep, .retain_graph = true};
    if (etch_grad(&y, 1, &leaf, 1, &x, &keep, &one) != ETCH_OK) return NULL;
    if (etch_grad(&y, 1, &leaf, 1, &one, NULL, &two) != ETCH_OK) return NULL;
    return etch_add(one, two);
}
static etch_tensor *tape_is_gone(etch_tensor *x) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true), *g = NULL;
    etch_tensor *y = etch_tanh(etch_mul(leaf, leaf));
    if (etch_grad(&y, 1, &leaf, 1, &x, NULL, &g) != ETCH_OK) return NULL;
    return etch_grad(&y, 1, &leaf, 1, &x, NULL, &g) == ETCH_OK ? g : NULL;
}

static etch_function *mapped;
static etch_tensor *calls_mapped(etch_tensor *x) { return etch_call(mapped, x); }

/* fn mapped is the loop over samples; compiled, that bit for bit in every call. */
static void as_the_loop(etch_fn1 fn, bool whole) {
    etch_tensor *x = numbers(ETCH_SHAPE(5, 3), 0.7);
    mapped = etch_vmap(fn, ETCH_DIMS(0), ETCH_DIMS(0));
    etch_function *f = etch_compile(calls_mapped, .fullgraph = whole);
    etch_tensor *want = etch_call(mapped, x);
    if (!want) fail_msg("%s", etch_last_error());
    for (int64_t b = 0; b < 5; b++) assert_same(etch_select(want, 0, b), fn(etch_select(x, 0, b)));
    for (int i = 0; i < 4; i++) {
        x = numbers(ETCH_SHAPE(5, 3), 0.7 + i);
        assert_same(etch_call(f, x), etch_call(mapped, x));
    }
    etch_function_free(f);
    etch_function_free(mapped);
}

TEST(hooks_in_a_mapped_function) {
    ETCH_SCOPE {
        w = etch_requires_grad_(etch_clone(numbers(ETCH_SHAPE(3), 1)), true);
        etch_tensor *x = numbers(ETCH_SHAPE(5, 3), 0.7);
        hooks_run = 0;
        assert_non_null(map1(hooked_gradient, ETCH_DIMS(0), ETCH_DIMS(0), x));
        assert_int_equal(hooks_run, 1); /* once for all samples */
        as_the_loop(hooked_gradient, true);
        as_the_loop(kept_gradient, true);
        assert_fails(ETCH_ERR_UNSUPPORTED, "does not like it",
                     map1(refused_gradient, ETCH_DIMS(0), ETCH_DIMS(0), x));
        assert_null(etch_grad_of(w));
    }
}

TEST(kept_tapes_in_a_mapped_function) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(5, 3), 0.7);
        as_the_loop(twice_over_one_tape, true);
        assert_fails(ETCH_ERR_GRAPH_FREED, "retain",
                     map1(tape_is_gone, ETCH_DIMS(0), ETCH_DIMS(0), x));
    }
}

static etch_tensor *both_rounds(etch_tensor *x) {
    etch_grad_options keep = {.struct_size = sizeof keep, .retain_graph = true};
    etch_tensor *sum = etch_sum(etch_call(mapped, x));
    if (etch_backward_from(&sum, 1, NULL, &keep) != ETCH_OK || etch_backward(sum) != ETCH_OK)
        return NULL;
    etch_tensor *g = etch_clone(etch_grad_of(w));
    return etch_zero_grad(w) == ETCH_OK && etch_zero_grad(v) == ETCH_OK ? g : NULL;
}

/* The tape of a mapped call, kept outside of it: twice the gradient, and hooks see it summed. */
TEST(a_kept_tape_over_a_mapped_call) {
    ETCH_SCOPE {
        make_weights();
        mapped = etch_vmap(loss_of, ETCH_DIMS(0), ETCH_DIMS(0));
        etch_function *f = etch_compile(both_rounds, .fullgraph = true);
        etch_tensor *x = numbers(ETCH_SHAPE(5, 3), 0.7), *g = NULL;
        etch_tensor *sum = etch_sum(etch_call(mapped, x));
        assert_int_equal(etch_grad(&sum, 1, &w, 1, NULL, NULL, &g), ETCH_OK);
        etch_tensor *twice = both_rounds(x);
        assert_same(twice, etch_add(g, g));
        for (int i = 0; i < 4; i++) {
            etch_tensor *y = numbers(ETCH_SHAPE(5, 3), 0.3 + i);
            assert_same(etch_call(f, y), both_rounds(y));
        }
        etch_function_free(f);
        etch_function_free(mapped);
    }
}

/* ---- compiled ---- */

static etch_function *mapped_losses;
static etch_tensor *losses(etch_tensor *x) { return etch_call(mapped_losses, x); }
static etch_tensor *step(etch_tensor *x) {
    etch_tensor *loss = etch_mean(etch_call(mapped_losses, x));
    if (etch_backward(loss) != ETCH_OK) return NULL;
    ETCH_NO_GRAD {
        etch_sub_(w, etch_mul_scalar(etch_grad_of(w), 0.1));
        etch_zero_grad(w);
        etch_zero_grad(v);
    }
    return etch_detach(loss);
}

TEST(inside_a_compiled_function_it_is_part_of_the_graph) {
    ETCH_SCOPE {
        make_weights();
        mapped_losses = etch_vmap(loss_of, ETCH_DIMS(0), ETCH_DIMS(0));
        etch_function *f = etch_compile(losses, .fullgraph = true);
        for (int64_t n = 3; n < 9; n++) { /* and of any number of samples */
            etch_tensor *x = numbers(ETCH_SHAPE(n, 3), 0.3 * (double)n);
            for (int i = 0; i < 3; i++) assert_same(etch_call(f, x), losses(x));
        }
        etch_function_free(f);
        etch_function_free(mapped_losses);
    }
}

static etch_tensor *train(bool compiled) {
    make_weights();
    etch_function *f = etch_compile(step, .fullgraph = true, .disable = !compiled);
    etch_tensor *x = numbers(ETCH_SHAPE(6, 3), 0.9), *last = NULL;
    for (int i = 0; i < 6; i++)
        if (!(last = etch_call(f, x))) fail_msg("%s", etch_last_error());
    etch_function_free(f);
    return etch_add(etch_detach(w), last);
}

TEST(a_training_step_with_a_mapped_loss_is_one_graph) {
    ETCH_SCOPE {
        mapped_losses = etch_vmap(loss_of, ETCH_DIMS(0), ETCH_DIMS(0));
        assert_same(train(true), train(false));
        etch_function_free(mapped_losses);
    }
}

static etch_tensor *breaks(etch_tensor *x) {
    etch_tensor *y = etch_sin(x);
    etch_graph_break("here");
    return etch_mul(y, x);
}
static etch_tensor *calls_breaks(etch_tensor *x) {
    return etch_add_scalar(map1(breaks, ETCH_DIMS(0), ETCH_DIMS(0), etch_neg(x)), 1);
}

TEST(a_graph_break_in_a_mapped_function) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(calls_breaks);
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
        for (int i = 0; i < 4; i++) assert_same(etch_call(f, x), calls_breaks(x));
        etch_function_free(f);
    }
}

static etch_function *compiled_sine;
static etch_tensor *sine(etch_tensor *x) { return etch_sin(etch_mul_scalar(x, 2)); }
static etch_tensor *calls_compiled(etch_tensor *x) { return etch_call(compiled_sine, x); }
static etch_tensor *calls_it_with_nothing_batched(etch_tensor *x) {
    return etch_add(etch_call(compiled_sine, captured), x);
}

TEST(a_compiled_function_inside_is_part_of_the_mapped_one) {
    ETCH_SCOPE {
        compiled_sine = etch_compile(sine, .replay = true);
        captured = numbers(ETCH_SHAPE(3), 1);
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
        for (int i = 0; i < 3; i++) {
            assert_same(map1(calls_compiled, ETCH_DIMS(0), ETCH_DIMS(0), x), sine(x));
            assert_same(map1(calls_it_with_nothing_batched, ETCH_DIMS(0), ETCH_DIMS(0), x),
                        etch_add(sine(captured), x));
        }
        assert_same(etch_call(compiled_sine, captured), sine(captured));
        etch_function_free(compiled_sine);
    }
}

/* Backward outside, over a tape that a compiled function has made. */
TEST(backward_outside_of_a_compiled_function) {
    ETCH_SCOPE {
        make_weights();
        mapped_losses = etch_vmap(loss_of, ETCH_DIMS(0), ETCH_DIMS(0));
        etch_function *f = etch_compile(losses);
        etch_tensor *x = numbers(ETCH_SHAPE(6, 3), 0.9), *leaves[] = {w, v}, *a[2], *b[2];
        etch_tensor *sum = etch_sum(losses(x));
        assert_int_equal(etch_grad(&sum, 1, leaves, 2, NULL, NULL, b), ETCH_OK);
        for (int i = 0; i < 4; i++) {
            sum = etch_sum(etch_call(f, x));
            if (etch_grad(&sum, 1, leaves, 2, NULL, NULL, a) != ETCH_OK)
                fail_msg("%s", etch_last_error());
            for (int k = 0; k < 2; k++) assert_same(a[k], b[k]);
        }
        etch_function_free(f);
        etch_function_free(mapped_losses);
    }
}

/* ---- modes, threads, errors ---- */

static int64_t seen_rows;
static etch_status sees(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                        etch_tensor **out, int nout) {
    (void)ctx, (void)nargs, (void)out, (void)nout;
    if (!strcmp(etch_op_name(op), "tanh")) seen_rows = etch_size(args[0].tensor, 0);
    return ETCH_DECLINED;
}
static etch_tensor *softened(etch_tensor *x) { return etch_softmax(etch_tanh(x), 0); }

TEST(modes_see_whole_batches) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(7, 3), 1);
        etch_mode *m = etch_mode_new(sees, NULL, .composite = true);
        seen_rows = 0;
        ETCH_WITH_MODE (m) assert_non_null(map1(softened, ETCH_DIMS(0), ETCH_DIMS(0), x));
        assert_int_equal(seen_rows, 7);
        etch_mode_free(m);
    }
}

static void *maps_many_times(void *arg) {
    for (int i = 0; i < 50; i++)
        ETCH_SCOPE {
            etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
            etch_tensor *y = etch_call((etch_function *)arg, x);
            if (!y || !etch_equal(y, sine(x))) return arg;
        }
    return NULL;
}

TEST(threads_map_at_once) {
    pthread_t thread[3];
    void *failed = NULL;
    etch_function *f = etch_vmap(sine, ETCH_DIMS(0), ETCH_DIMS(0));
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, maps_many_times, f);
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    etch_function_free(f);
}

static jmp_buf out_of_here;
static etch_tensor *jumps(etch_tensor *x) {
    (void)x;
    longjmp(out_of_here, 1);
}

TEST(a_body_that_jumps_out_leaves_nothing_behind) {
    etch_function *f = etch_vmap(jumps, ETCH_DIMS(0), ETCH_DIMS(0));
    int64_t mark = etch_scope_begin();
    if (!setjmp(out_of_here)) etch_call(f, numbers(ETCH_SHAPE(4, 3), 1));
    etch_scope_end(mark);
    ETCH_SCOPE {
        assert_non_null(etch_rand(ETCH_F32, ETCH_SHAPE(2)));
        etch_tensor *x = numbers(ETCH_SHAPE(4, 3), 1);
        assert_same(map1(sine, ETCH_DIMS(0), ETCH_DIMS(0), x), sine(x));
    }
    etch_function_free(f);
}

static int depth;
static etch_tensor *deeper(etch_tensor *x) {
    if (!depth--) return etch_neg(x);
    return map1(deeper, ETCH_DIMS(0), ETCH_DIMS(0), x);
}

TEST(levels_end) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(1, 2, 1, 2, 1));
        depth = 4;
        assert_same(map1(deeper, ETCH_DIMS(0), ETCH_DIMS(0), x), etch_neg(x));
        depth = 5; /* one more than it has dimensions */
        assert_fails(ETCH_ERR_DIM_RANGE, "[]", map1(deeper, ETCH_DIMS(0), ETCH_DIMS(0), x));
    }
}
