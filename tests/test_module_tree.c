/* Modules as trees: names, numbers, tied tensors, buffers, settings that go down, forwards of
 * several tensors and their hooks, what types of the user keep, copies.
 * Labels: quick. */
#include "nn_support.h"

/* ---- a type of the user's: y = x scale + shift; two tensors in, sum and difference out ---- */

static etch_status pair_forward(etch_module *m, etch_tensor *const *in, int nin, etch_tensor **out,
                                int nout) {
    (void)m;
    if (nin != 2 || nout < 1 || nout > 2)
        return etch_set_error(ETCH_ERR_INVALID_ARGUMENT, "Pair: expected two tensors");
    out[0] = etch_add(in[0], in[1]);
    if (nout == 2) out[1] = etch_sub(in[0], in[1]);
    return out[nout - 1] ? ETCH_OK : etch_last_status();
}

static etch_tensor *identity(etch_module *m, etch_tensor *x) {
    (void)m;
    return x;
}

static etch_tensor *filled(double value, int64_t n) {
    return must(etch_full(ETCH_F32, ETCH_SHAPE(n), value));
}

/* outer: [a, b], child "in" of [c, a (tied)] with a buffer [n]. */
static etch_module *tree(void) {
    etch_module *m = must(etch_module_new("Outer", identity));
    etch_module *inner = must(etch_module_new("Inner", identity));
    etch_tensor *a = filled(1, 2), *b = filled(2, 3), *c = filled(3, 4), *n = filled(4, 5);
    assert_int_equal(etch_module_add_child(m, "in", inner), ETCH_OK);
    assert_int_equal(etch_module_add_parameter(m, "a", a), ETCH_OK);
    assert_int_equal(etch_module_add_parameter(inner, "c", c), ETCH_OK);
    assert_int_equal(etch_module_add_parameter(inner, "again", a), ETCH_OK);
    assert_int_equal(etch_module_add_buffer(inner, "n", n), ETCH_OK);
    assert_int_equal(etch_module_add_parameter(m, "b", b), ETCH_OK);
    return m;
}

static void has_names(etch_module *m, const char *const *parameters, int n, const char *buffer) {
    assert_int_equal(etch_module_parameter_count(m), n);
    for (int i = 0; i < n; i++) {
        assert_string_equal(etch_module_parameter_name(m, i), parameters[i]);
        assert_ptr_equal(etch_module_parameter_at(m, i), etch_module_parameter(m, parameters[i]));
    }
    assert_int_equal(etch_module_buffer_count(m), 1);
    assert_string_equal(etch_module_buffer_name(m, 0), buffer);
    assert_ptr_equal(etch_module_buffer_at(m, 0), etch_module_buffer(m, buffer));
}

/* ---- names ---- */

TEST(lists_have_each_tensor_once) {
    ETCH_SCOPE {
        etch_module *m = tree(), *inner = etch_module_child(m, 0);
        has_names(m, (const char *[]){"a", "b", "in.c"}, 3, "in.n");
        has_names(inner, (const char *[]){"c", "again"}, 2, "n");
        assert_ptr_equal(etch_module_parameter(m, "in.again"), etch_module_parameter(m, "a"));
        assert_int_equal(etch_module_child_count(m), 1);
        assert_string_equal(etch_module_child_name(m, 0), "in");
        assert_ptr_equal(etch_module_find(m, "in"), inner);
        assert_ptr_equal(etch_module_find(m, ""), m);
        assert_null(etch_module_parameter_at(m, 3));
        assert_null(etch_module_parameter_name(m, -1));
        assert_null(etch_module_buffer_at(m, 1));
        assert_null(etch_module_buffer_name(m, 1));
        assert_null(etch_module_child_name(m, 1));
        assert_int_equal(etch_module_parameter_count(NULL), 0);
        assert_int_equal(etch_module_buffer_count(NULL), 0);
        assert_int_equal(etch_module_child_count(NULL), 0);
        etch_module_free(m);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(lists_follow_what_is_added_below) {
    ETCH_SCOPE {
        etch_module *m = tree(), *inner = etch_module_child(m, 0);
        assert_int_equal(etch_module_parameter_count(m), 3);
        etch_module *low = must(etch_nn_linear(2, 2, ETCH_F32));
        assert_int_equal(etch_module_add_child(inner, "low", low), ETCH_OK);
        has_names(m, (const char *[]){"a", "b", "in.c", "in.low.weight", "in.low.bias"}, 5, "in.n");
        assert_int_equal(etch_module_add_parameter(low, "more", filled(0, 1)), ETCH_OK);
        assert_string_equal(etch_module_parameter_name(m, 5), "in.low.more");
        assert_ptr_equal(etch_module_find(m, "in.low"), low);
        etch_module_free(m);
    }
}

TEST(a_tensor_can_take_the_place_of_another) {
    ETCH_SCOPE {
        etch_module *m = tree();
        etch_tensor *t = filled(9, 4);
        assert_int_equal(etch_module_set_tensor(m, "in.c", t), ETCH_OK);
        assert_ptr_equal(etch_module_parameter_at(m, 2), t);
        assert_int_equal(etch_module_set_tensor(m, "in.n", t), ETCH_OK); /* tied: a parameter */
        assert_int_equal(etch_module_buffer_count(m), 0);
        assert_int_equal(etch_module_set_tensor(m, "in.c", etch_module_parameter(m, "in.c")),
                         ETCH_OK);
        FAILED_WITH(etch_module_set_tensor(m, "in.x", t) != ETCH_OK, ETCH_ERR_NOT_FOUND,
                    "Outer has no parameter or buffer 'in.x'");
        FAILED_WITH(etch_module_set_tensor(m, "in.c", NULL) != ETCH_OK, ETCH_ERR_NULL,
                    "etch_module_set_tensor");
        etch_module_free(m);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(names_that_are_refused) {
    ETCH_SCOPE {
        etch_module *m = tree();
        etch_tensor *t = filled(0, 1);
        const char *const bad[] = {"a", "in", "x.y", ""};
        for (int i = 0; i < 4; i++) {
            FAILED_WITH(etch_module_add_buffer(m, bad[i], t) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                        "etch_module_add_buffer: expected a name");
            FAILED_WITH(etch_module_add_parameter(m, bad[i], t) != ETCH_OK,
                        ETCH_ERR_INVALID_ARGUMENT, bad[i]);
        }
        FAILED_WITH(etch_module_add_buffer(m, "x", ETCH_NONE) != ETCH_OK, ETCH_ERR_NULL,
                    "etch_module_add_buffer");
        FAILED_WITH(!etch_module_buffer(m, "in.a"), ETCH_ERR_NOT_FOUND, "no buffer 'in.a'");
        FAILED_WITH(!etch_module_buffer(m, "nobody.n"), ETCH_ERR_NOT_FOUND, "etch_module_buffer");
        FAILED_WITH(!etch_module_parameter(m, "in.n"), ETCH_ERR_NOT_FOUND, "no parameter");
        FAILED_WITH(!etch_module_find(m, "in.c"), ETCH_ERR_NOT_FOUND, "no child 'in.c'");
        FAILED_WITH(etch_module_add_child(etch_module_child(m, 0), "up", m) != ETCH_OK,
                    ETCH_ERR_INVALID_ARGUMENT, "etch_module_add_child");
        etch_module_free(m);
    }
}

/* ---- forwards of several tensors ---- */

TEST(several_tensors) {
    ETCH_SCOPE {
        etch_module *m = must(etch_module_new_n("Pair", pair_forward));
        etch_tensor *in[2] = {filled(5, 3), filled(2, 3)}, *out[2] = {NULL};
        assert_int_equal(etch_module_call_n(m, in, 2, out, 2), ETCH_OK);
        near_values(out[0], (double[]){7, 7, 7}, 0);
        near_values(out[1], (double[]){3, 3, 3}, 0);
        same_compiled(m, in, 2, 1);
        same_compiled(m, in, 2, 2);
        FAILED_WITH(!etch_module_call(m, in[0]), ETCH_ERR_INVALID_ARGUMENT, "Pair");
        FAILED_WITH(etch_module_call_n(m, in, 1, out, 2) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "Pair");
        assert_true(!out[0] && !out[1]);
        FAILED_WITH(etch_module_call_n(m, in, 17, out, 1) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "up to 16 tensors, got 17");
        FAILED_WITH(etch_module_call_n(m, NULL, 2, out, 1) != ETCH_OK, ETCH_ERR_NULL,
                    "etch_module_call_n");
        FAILED_WITH(!etch_module_new_n("Pair", NULL), ETCH_ERR_NULL, "etch_module_new_n");
        etch_module_free(m);
    }
}

/* The two forms call each other's modules. */
TEST(one_tensor_through_the_general_form) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_relu());
        etch_tensor *in[2] = {filled(-1, 3), filled(2, 3)}, *y = NULL;
        assert_int_equal(etch_module_call_n(m, in, 1, &y, 1), ETCH_OK);
        near_values(y, (double[]){0, 0, 0}, 0);
        FAILED_WITH(etch_module_call_n(m, in, 2, &y, 1) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "ReLU takes one tensor and gives one, got 2");
        assert_null(y);
        etch_module_free(m);
    }
}

static etch_tensor *nothing(etch_module *m, etch_tensor *x) {
    (void)m, (void)x;
    return NULL;
}

TEST(a_forward_that_gives_nothing_has_failed) {
    ETCH_SCOPE {
        etch_module *m = must(etch_module_new("Nothing", nothing));
        FAILED_WITH(!etch_module_call(m, filled(1, 1)), ETCH_ERR_USER, "Nothing gave no tensor 0");
        etch_module_free(m);
    }
}

/* ---- hooks of the general form ---- */

typedef struct doubling {
    int which, calls;
    bool fail;
} doubling;

static etch_status double_input(void *ctx, etch_module *m, etch_tensor **in, int nin) {
    doubling *d = ctx;
    (void)m;
    assert_int_equal(nin, 2);
    d->calls++;
    in[d->which] = etch_mul_scalar(in[d->which], 2);
    if (d->fail) return etch_set_error(ETCH_ERR_USER, "hook: refused");
    return ETCH_OK;
}

static etch_status double_result(void *ctx, etch_module *m, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout) {
    (void)in;
    assert_int_equal(nin * 10 + nout, 22);
    return double_input(ctx, m, out, nout);
}

TEST(hooks_of_several_tensors) {
    for (int compiled = 0; compiled < 2; compiled++)
        ETCH_SCOPE {
            etch_module *m = must(etch_module_new_n("Pair", pair_forward));
            etch_tensor *in[2] = {filled(5, 3), filled(2, 3)}, *out[2];
            doubling before = {.which = 1}, after = {.which = 0};
            if (compiled) assert_int_equal(etch_module_compile(m, .fullgraph = true), ETCH_OK);
            int64_t a = etch_module_forward_pre_hook_n(m, double_input, &before);
            int64_t b = etch_module_forward_hook_n(m, double_result, &after);
            assert_true(a && b && a != b);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(etch_module_call_n(m, in, 2, out, 2), ETCH_OK);
                near_values(out[0], (double[]){18, 18, 18}, 0);
                near_values(out[1], (double[]){1, 1, 1}, 0);
            }
            assert_int_equal(before.calls + after.calls, 6);
            near_values(in[1], (double[]){2, 2, 2}, 0); /* the caller's own array */
            before.fail = true;
            FAILED_WITH(etch_module_call_n(m, in, 2, out, 2) != ETCH_OK, ETCH_ERR_USER, "refused");
            assert_true(!out[0] && !out[1]);
            etch_hook_remove(m, a);
            assert_int_equal(etch_module_call_n(m, in, 2, out, 2), ETCH_OK);
            near_values(out[0], (double[]){14, 14, 14}, 0);
            after.fail = true;
            FAILED_WITH(etch_module_call_n(m, in, 2, out, 2) != ETCH_OK, ETCH_ERR_USER, "refused");
            etch_module_free(m);
        }
    FAILED_WITH(!etch_module_forward_hook_n(NULL, double_result, NULL), ETCH_ERR_NULL,
                "etch_module_forward_hook_n");
    FAILED_WITH(!etch_module_forward_pre_hook_n(NULL, double_input, NULL), ETCH_ERR_NULL,
                "etch_module_forward_pre_hook_n");
}

static etch_tensor *negate(void *ctx, etch_module *m, etch_tensor *x) {
    (void)ctx, (void)m;
    return etch_neg(x);
}

/* A hook of one tensor on a module of several sees the first. */
TEST(hooks_of_one_tensor_see_the_first) {
    ETCH_SCOPE {
        etch_module *m = must(etch_module_new_n("Pair", pair_forward));
        etch_tensor *in[2] = {filled(5, 1), filled(2, 1)}, *out[2];
        assert_true(etch_module_forward_pre_hook(m, negate, NULL) != 0);
        assert_int_equal(etch_module_call_n(m, in, 2, out, 2), ETCH_OK);
        near_values(out[0], (double[]){-3}, 0);
        near_values(out[1], (double[]){-7}, 0);
        etch_module_free(m);
    }
}

/* ---- settings ---- */

TEST(settings_go_down) {
    ETCH_SCOPE {
        etch_module *m = tree(), *inner = etch_module_child(m, 0);
        assert_true(etch_module_is_training(m) && etch_module_is_training(inner));
        assert_int_equal(etch_module_train(m, false), ETCH_OK);
        assert_false(etch_module_is_training(m) || etch_module_is_training(inner));
        assert_int_equal(etch_module_train(inner, true), ETCH_OK);
        assert_true(!etch_module_is_training(m) && etch_module_is_training(inner));
        assert_false(etch_module_is_training(NULL));
        FAILED_WITH(etch_module_train(NULL, true) != ETCH_OK, ETCH_ERR_NULL, "etch_module_train");
        etch_module_free(m);
    }
}

TEST(parameters_require_gradients) {
    ETCH_SCOPE {
        etch_module *m = tree(), *copy;
        etch_tensor *whole = must(etch_ones(ETCH_I64, ETCH_SHAPE(1)));
        assert_int_equal(etch_module_add_parameter(m, "whole", whole), ETCH_OK);
        assert_false(etch_requires_grad(whole));
        assert_false(etch_requires_grad(etch_module_buffer(m, "in.n")));
        assert_true(etch_requires_grad(etch_module_parameter(m, "in.c")));
        etch_tensor *result = must(etch_neg(etch_module_parameter(m, "a")));
        FAILED_WITH(etch_module_add_parameter(m, "x", result) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "got as 'x' the result");
        FAILED_WITH(etch_module_set_tensor(m, "b", result) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "etch_module_set_tensor");
        assert_int_equal(etch_module_requires_grad_(etch_module_child(m, 0), false), ETCH_OK);
        assert_int_equal(etch_module_to(m, ETCH_F64), ETCH_OK);
        copy = must(etch_module_copy(m));
        for (int i = 0; i < 2; i++) {
            etch_module *of = i ? copy : m;
            assert_false(etch_requires_grad(etch_module_parameter(of, "in.c")));
            assert_false(etch_requires_grad(etch_module_parameter(of, "a"))); /* tied */
            assert_true(etch_requires_grad(etch_module_parameter(of, "b")));
            assert_true(etch_is_leaf(etch_module_parameter(of, "b")));
        }
        etch_tensor *t = filled(0, 4);
        assert_int_equal(etch_module_set_tensor(m, "in.c", t), ETCH_OK);
        assert_false(etch_requires_grad(t));
        assert_int_equal(etch_module_set_tensor(m, "b", t), ETCH_OK);
        assert_true(etch_requires_grad(t));
        etch_module_free(m);
        etch_module_free(copy);
    }
}

TEST(gradients_are_dropped) {
    ETCH_SCOPE {
        etch_module *m = tree();
        etch_tensor *b = etch_module_parameter(m, "b"), *a = etch_module_parameter(m, "in.again");
        assert_int_equal(etch_set_grad(b, filled(1, 3)), ETCH_OK);
        assert_int_equal(etch_set_grad(a, filled(1, 2)), ETCH_OK);
        assert_non_null(etch_grad_of(b));
        assert_int_equal(etch_module_zero_grad(m), ETCH_OK);
        assert_true(!etch_grad_of(b) && !etch_grad_of(a));
        etch_module_free(m);
    }
    FAILED_WITH(etch_module_zero_grad(NULL) != ETCH_OK, ETCH_ERR_NULL, "etch_module_zero_grad");
    FAILED_WITH(etch_module_requires_grad_(NULL, true) != ETCH_OK, ETCH_ERR_NULL,
                "etch_module_requires_grad_");
}

TEST(to_another_dtype) {
    ETCH_SCOPE {
        etch_module *m = tree();
        etch_tensor *whole = must(etch_ones(ETCH_I64, ETCH_SHAPE(1)));
        assert_int_equal(etch_module_add_buffer(m, "count", whole), ETCH_OK);
        assert_int_equal(etch_module_to(m, ETCH_F64), ETCH_OK);
        assert_int_equal(etch_dtype_of(etch_module_parameter(m, "in.c")), ETCH_F64);
        assert_int_equal(etch_dtype_of(etch_module_buffer(m, "in.n")), ETCH_F64);
        near_values(etch_module_parameter(m, "in.c"), (double[]){3, 3, 3, 3}, 0);
        assert_ptr_equal(etch_module_buffer(m, "count"), whole);
        assert_ptr_equal(etch_module_parameter(m, "in.again"), etch_module_parameter(m, "a"));
        assert_int_equal(etch_module_parameter_count(m), 3);
        etch_tensor *a = etch_module_parameter(m, "a");
        assert_int_equal(etch_module_to(m, ETCH_F64), ETCH_OK);
        assert_ptr_equal(etch_module_parameter(m, "a"), a);
        FAILED_WITH(etch_module_to(m, ETCH_I32) != ETCH_OK, ETCH_ERR_DTYPE, "etch_module_to");
        assert_int_equal(etch_module_to_device(m, etch_current_device()), ETCH_OK);
        assert_ptr_equal(etch_module_parameter(m, "a"), a);
        FAILED_WITH(etch_module_to_device(m, ETCH_CUDA(77)) != ETCH_OK, ETCH_ERR_DEVICE, "");
        assert_ptr_equal(etch_module_parameter(m, "a"), a);
        etch_module_free(m);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* A compiled module goes on with its new tensors. */
TEST(compiled_to_another_dtype) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_linear(3, 2, ETCH_F32));
        etch_tensor *x = must(etch_randn(ETCH_F64, ETCH_SHAPE(4, 3))), *want, *y;
        assert_int_equal(etch_module_compile(m), ETCH_OK);
        etch_tensor *narrow = must(etch_module_call(m, must(etch_to(x, ETCH_F32))));
        assert_int_equal(etch_dtype_of(narrow), ETCH_F32);
        assert_int_equal(etch_module_to(m, ETCH_F64), ETCH_OK);
        want = must(
            etch_linear(x, etch_module_parameter(m, "weight"), etch_module_parameter(m, "bias")));
        for (int i = 0; i < 3; i++) {
            y = must(etch_module_call(m, x));
            assert_true(etch_bitwise_equal(y, want));
        }
        etch_module_free(m);
    }
}

/* ---- what types keep, and copies ---- */

static int freed, copied;
static void count_free(void *ctx) { freed++, free(ctx); }
static void *count_copy(void *ctx) {
    int *copy = malloc(sizeof *copy);
    copied++, *copy = *(int *)ctx + 1;
    return copy;
}
static void *no_copy(void *ctx) {
    (void)ctx;
    return etch_set_error(ETCH_ERR_USER, "copy: refused"), NULL;
}

TEST(ctx_and_config) {
    etch_module *m = must(etch_module_new("Own", identity));
    int first = 1, *second = malloc(sizeof *second);
    *second = 2, freed = copied = 0;
    assert_null(etch_module_ctx(m));
    assert_int_equal(etch_module_set_ctx(m, &first, NULL, NULL), ETCH_OK);
    etch_module *copy = must(etch_module_copy(m));
    assert_ptr_equal(etch_module_ctx(copy), &first);
    etch_module_free(copy);
    assert_int_equal(etch_module_set_ctx(m, second, count_copy, count_free), ETCH_OK);
    assert_int_equal(etch_module_set_config(m, "two"), ETCH_OK);
    copy = must(etch_module_copy(m));
    assert_int_equal(*(int *)etch_module_ctx(copy), 3);
    assert_string_equal(etch_module_config(copy), "two");
    etch_module_free(copy);
    assert_int_equal(freed * 10 + copied, 11);
    assert_int_equal(etch_module_set_config(m, NULL), ETCH_OK);
    assert_null(etch_module_config(m));
    assert_int_equal(etch_module_set_ctx(m, second, NULL, count_free), ETCH_OK);
    FAILED_WITH(!etch_module_copy(m), ETCH_ERR_UNSUPPORTED, "the ctx of Own");
    assert_int_equal(etch_module_set_ctx(m, second, no_copy, count_free), ETCH_OK);
    FAILED_WITH(!etch_module_copy(m), ETCH_ERR_USER, "refused");
    assert_int_equal(etch_module_set_ctx(m, &first, NULL, NULL), ETCH_OK);
    assert_int_equal(freed, 2);
    etch_module_free(m);
    FAILED_WITH(etch_module_set_ctx(NULL, NULL, NULL, NULL) != ETCH_OK, ETCH_ERR_NULL,
                "etch_module_set_ctx");
    FAILED_WITH(etch_module_set_config(NULL, "") != ETCH_OK, ETCH_ERR_NULL,
                "etch_module_set_config");
}

TEST(a_copy_is_deep) {
    ETCH_SCOPE {
        etch_module *m = tree();
        assert_int_equal(etch_module_train(etch_module_child(m, 0), false), ETCH_OK);
        assert_true(etch_module_forward_pre_hook(m, negate, NULL) != 0);
        assert_int_equal(etch_module_compile(m), ETCH_OK);
        etch_module *copy = must(etch_module_copy(m));
        has_names(copy, (const char *[]){"a", "b", "in.c"}, 3, "in.n");
        same_tensors(m, copy);
        assert_true(etch_module_is_training(copy));
        assert_false(etch_module_is_training(etch_module_child(copy, 0)));
        assert_null(etch_module_is_compiled(copy));
        etch_tensor *x = filled(1, 1);
        assert_ptr_equal(etch_module_call(copy, x), x); /* no hook */
        etch_tensor *a = etch_module_parameter(copy, "a");
        assert_ptr_equal(etch_module_parameter(copy, "in.again"), a);
        assert_ptr_not_equal(a, etch_module_parameter(m, "a"));
        ETCH_NO_GRAD { must(etch_zero_(a)); }
        near_values(etch_module_parameter(m, "a"), (double[]){1, 1}, 0);
        etch_module_free(m);
        near_values(etch_module_parameter(copy, "in.again"), (double[]){0, 0}, 0);
        etch_module *part = must(etch_module_copy(etch_module_child(copy, 0)));
        etch_module_free(copy);
        has_names(part, (const char *[]){"c", "again"}, 2, "n"); /* without a parent */
        etch_module_free(part);
    }
    assert_int_equal(etch_memory().tensors, 0);
    FAILED_WITH(!etch_module_copy(NULL), ETCH_ERR_NULL, "etch_module_copy");
}

/* Making and copying need no scope. */
TEST(no_scope_is_needed) {
    etch_module *layers[] = {etch_nn_conv2d(1, 2, ETCH_SHAPE(2, 2), ETCH_F32),
                             etch_nn_batch_norm2d(2, ETCH_F32), etch_nn_lstm_cell(2, 2, ETCH_F32),
                             etch_nn_multihead_attention(2, 1, ETCH_F32),
                             etch_nn_embedding(2, 2, ETCH_F32)};
    etch_module *m = must(etch_nn_sequential(layers, 5)), *copy = must(etch_module_copy(m));
    same_tensors(m, copy);
    etch_module_free(m);
    etch_module_free(copy);
    assert_int_equal(etch_memory().tensors, 0);
}
