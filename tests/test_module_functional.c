/* etch_functional_call: other tensors in the places of a module's parameters, and its own behind
 * it, whatever came between; gradients, tangents and maps over stacked parameters, compiled too.
 * Labels: quick. */
#include "nn_support.h"

#define assert_same(a, b) assert_true(etch_bitwise_equal((a), (b)))

enum { PARAMETERS = 4, MODELS = 5 };

static etch_module *net(void) {
    etch_module *layers[] = {etch_nn_linear(3, 4, ETCH_F32), etch_nn_tanh(),
                             etch_nn_linear(4, 2, ETCH_F32)};
    return must(etch_nn_sequential(layers, 3));
}

static etch_tensor *input(void) {
    etch_tensor *t = etch_arange(ETCH_F32, 0, 18, 1);
    return must(etch_reshape(etch_sin(t), ETCH_SHAPE(6, 3)));
}

/* Parameters of another model: those of m, bent. */
static void others(const etch_module *m, double by, etch_tensor **params) {
    ETCH_NO_GRAD {
        for (int i = 0; i < PARAMETERS; i++) {
            etch_tensor *t = etch_mul_scalar(etch_module_parameter_at(m, i), 1 + by);
            params[i] = must(etch_add_scalar(etch_sin(t), by / 7));
        }
    }
}

static etch_tensor *by_hand(etch_tensor *const *p, etch_tensor *x) {
    etch_tensor *h = etch_tanh(etch_linear(x, p[0], p[1]));
    return must(etch_linear(h, p[2], p[3]));
}

static etch_tensor *called(etch_module *m, etch_tensor *const *params, etch_tensor *x) {
    etch_tensor *y = NULL;
    etch_functional_call(m, params, PARAMETERS, &x, 1, &y, 1);
    return must(y);
}

/* ---- the call ---- */

TEST(others_are_used_and_its_own_are_back) {
    etch_module *m = net();
    ETCH_SCOPE {
        etch_tensor *x = input(), *own[PARAMETERS], *p[PARAMETERS];
        etch_tensor *before = must(etch_module_call(m, x));
        for (int i = 0; i < PARAMETERS; i++) own[i] = etch_module_parameter_at(m, i);
        int64_t tensors = etch_memory().tensors;
        ETCH_SCOPE {
            others(m, 0.5, p);
            assert_same(called(m, p, x), by_hand(p, x));
            p[1] = p[2] = NULL;
            etch_tensor *const mixed[] = {p[0], own[1], own[2], p[3]};
            assert_same(called(m, p, x), by_hand(mixed, x));
        }
        assert_int_equal(etch_memory().tensors, tensors);
        for (int i = 0; i < PARAMETERS; i++)
            assert_ptr_equal(etch_module_parameter_at(m, i), own[i]);
        assert_string_equal(etch_module_parameter_name(m, 3), "2.bias");
        assert_same(etch_module_call(m, x), before);
    }
    etch_module_free(m);
}

static etch_tensor *adds_both(etch_module *m, etch_tensor *x) {
    etch_tensor *again = etch_module_parameter(m, "in.again"); /* by name, from above */
    etch_tensor *sum = etch_add(x, etch_module_parameter(etch_module_find(m, "in"), "again"));
    return etch_add(sum, etch_mul(again, etch_module_parameter(m, "a")));
}

static etch_tensor *itself(etch_module *m, etch_tensor *x) { return m ? x : NULL; }

TEST(a_tied_parameter_has_one_tensor) {
    etch_module *m = must(etch_module_new("Outer", adds_both));
    etch_module *inner = must(etch_module_new("Inner", itself));
    ETCH_SCOPE {
        etch_tensor *a = etch_ones(ETCH_F32, ETCH_SHAPE(2)), *y = NULL;
        assert_int_equal(etch_module_add_child(m, "in", inner), ETCH_OK);
        assert_int_equal(etch_module_add_parameter(m, "a", a), ETCH_OK);
        assert_int_equal(etch_module_add_parameter(inner, "again", a), ETCH_OK);
        etch_tensor *other = etch_full(ETCH_F32, ETCH_SHAPE(2), 3);
        assert_int_equal(etch_functional_call(m, &other, 1, &a, 1, &y, 1), ETCH_OK);
        near_values(y, (double[]){13, 13}, 0); /* 1 + 3 + 3 * 3 */
        assert_ptr_equal(etch_module_parameter(m, "in.again"), a);
        assert_ptr_equal(etch_module_parameter(m, "a"), a);
    }
    etch_module_free(m);
}

/* ---- what fails ---- */

static etch_tensor *fails(etch_module *m, etch_tensor *x) {
    (void)m, (void)x;
    return etch_set_error(ETCH_ERR_USER, "no result today"), NULL;
}

static etch_tensor *replaces(etch_module *m, etch_tensor *x) {
    etch_tensor *t = etch_mul_scalar(x, 2);
    return etch_module_set_tensor(m, "w", t) == ETCH_OK ? etch_module_parameter(m, "w") : NULL;
}

static void comes_back(etch_forward forward, bool ok) {
    etch_module *m = must(etch_module_new("Odd", forward));
    ETCH_SCOPE {
        int64_t tensors = etch_memory().tensors;
        ETCH_SCOPE {
            etch_tensor *w = etch_ones(ETCH_F32, ETCH_SHAPE(2)), *x = etch_neg(w), *y = x;
            assert_int_equal(etch_module_add_parameter(m, "w", w), ETCH_OK);
            etch_tensor *other = etch_clone(x);
            assert_int_equal(etch_functional_call(m, &other, 1, &x, 1, &y, 1) == ETCH_OK, ok);
            assert_true(ok ? y != x : y == NULL);
            assert_ptr_equal(etch_module_parameter(m, "w"), w);
        }
        assert_int_equal(etch_memory().tensors, tensors + 1);
    }
    etch_module_free(m);
}

TEST(its_own_are_back_behind_errors_and_replacements) {
    comes_back(fails, false);
    comes_back(replaces, true);
}

TEST(what_does_not_fit) {
    etch_module *m = net();
    ETCH_SCOPE {
        etch_tensor *x = input(), *p[PARAMETERS], *y = x;
        others(m, 1, p);
        FAILED_WITH(etch_functional_call(m, p, 3, &x, 1, &y, 1), ETCH_ERR_INVALID_ARGUMENT,
                    "the 4 parameters of Sequential, got 3");
        assert_null(y);
        FAILED_WITH(etch_functional_call(m, p, -1, &x, 1, &y, 1), ETCH_ERR_INVALID_ARGUMENT, "-1");
        FAILED_WITH(etch_functional_call(NULL, p, 4, &x, 1, &y, 1), ETCH_ERR_NULL, "a module");
        FAILED_WITH(etch_functional_call(m, NULL, 4, &x, 1, &y, 1), ETCH_ERR_NULL, "parameters");
        FAILED_WITH(etch_functional_call(m, p, 4, NULL, 1, &y, 1), ETCH_ERR_NULL, "tensors");
        etch_tensor *fitting = p[2];
        p[2] = etch_t(fitting);
        FAILED_WITH(etch_functional_call(m, p, 4, &x, 1, &y, 1), ETCH_ERR_SHAPE,
                    "expected for '2.weight' of Sequential (parameter 2) f32[2, 4], got f32[4, 2]");
        p[2] = etch_to(fitting, ETCH_F64);
        FAILED_WITH(etch_functional_call(m, p, 4, &x, 1, &y, 1), ETCH_ERR_DTYPE, "got f64[2, 4]");
        p[2] = ETCH_NONE;
        FAILED_WITH(etch_functional_call(m, p, 4, &x, 1, &y, 1), ETCH_ERR_SHAPE, "NULL keeps");
        p[2] = fitting;
        assert_same(called(m, p, x), by_hand(p, x));
    }
    etch_module_free(m);
}

/* ---- gradients and tangents ---- */

TEST(gradients_reach_what_was_given) {
    etch_module *m = net();
    ETCH_SCOPE {
        etch_tensor *x = input(), *p[PARAMETERS], *have[PARAMETERS], *want[PARAMETERS];
        others(m, 0.3, p);
        for (int i = 0; i < PARAMETERS; i++) must(etch_requires_grad_(p[i], true));
        etch_tensor *loss = etch_sum(etch_square(called(m, p, x)));
        assert_int_equal(etch_grad(&loss, 1, p, PARAMETERS, NULL, NULL, have), ETCH_OK);
        loss = etch_sum(etch_square(by_hand(p, x)));
        assert_int_equal(etch_grad(&loss, 1, p, PARAMETERS, NULL, NULL, want), ETCH_OK);
        for (int i = 0; i < PARAMETERS; i++) {
            assert_same(have[i], want[i]);
            assert_null(etch_grad_of(etch_module_parameter_at(m, i)));
        }
    }
    etch_module_free(m);
}

/* in: the parameters, x. */
static ETCH_FN_N(model, ctx, in, nin, out, nout) {
    return etch_functional_call(ctx, in, PARAMETERS, in + PARAMETERS, nin - PARAMETERS, out, nout);
}

/* Along a direction of the parameters, against the difference of two models. */
TEST(tangents_reach_what_was_given) {
    etch_module *m = must(net());
    assert_int_equal(etch_module_to(m, ETCH_F64), ETCH_OK);
    ETCH_SCOPE {
        etch_tensor *in[PARAMETERS + 1], *along[PARAMETERS + 1] = {NULL}, *y, *dy, *at[2];
        others(m, 0.3, in), others(m, 0.9, along);
        in[PARAMETERS] = etch_to(input(), ETCH_F64);
        assert_int_equal(etch_jvp(ETCH_CALLABLE(model, m), in, along, PARAMETERS + 1, &y, &dy, 1),
                         ETCH_OK);
        for (int k = 0; k < 2; k++) {
            etch_tensor *moved[PARAMETERS];
            for (int i = 0; i < PARAMETERS; i++)
                moved[i] = etch_add(in[i], etch_mul_scalar(along[i], k ? 1e-5 : -1e-5));
            at[k] = called(m, moved, in[PARAMETERS]);
        }
        etch_tensor *slope = etch_div_scalar(etch_sub(at[1], at[0]), 2e-5);
        assert_true(etch_allclose(dy, must(slope), 1e-8, 1e-8, false));
        assert_same(y, called(m, in, in[PARAMETERS]));
    }
    etch_module_free(m);
}

/* ---- many models ---- */

static void stack_models(const etch_module *m, etch_tensor **in) {
    etch_tensor *p[MODELS][PARAMETERS], *column[MODELS];
    for (int k = 0; k < MODELS; k++) others(m, 0.2 * k, p[k]);
    for (int i = 0; i < PARAMETERS; i++) {
        for (int k = 0; k < MODELS; k++) column[k] = p[k][i];
        in[i] = must(etch_stack(column, MODELS, 0));
    }
}

static void are_those_of_each(etch_module *m, etch_tensor *ys, etch_tensor *const *in,
                              bool mapped) {
    for (int k = 0; k < MODELS; k++) {
        etch_tensor *p[PARAMETERS], *x = in[PARAMETERS];
        for (int i = 0; i < PARAMETERS; i++) p[i] = etch_select(in[i], 0, k);
        etch_tensor *y = by_hand(p, mapped ? etch_select(x, 0, k) : x);
        assert_true(etch_allclose(etch_select(must(ys), 0, k), y, 1e-5, 1e-6, false));
    }
    assert_ptr_equal(etch_module_parameter(m, "0.weight"), etch_module_parameter_at(m, 0));
    assert_int_equal(etch_ndim(etch_module_parameter_at(m, 0)), 2);
}

static etch_function *ensemble;
static ETCH_FN_N(calls_ensemble, ctx, in, nin, out, nout) {
    (void)ctx;
    return etch_call_n(ensemble, in, nin, out, nout);
}

static void map_models(etch_module *m, bool mapped) {
    int64_t x_dim = mapped ? 0 : ETCH_UNMAPPED;
    ensemble = must(etch_vmap(ETCH_CALLABLE(model, m), ETCH_DIMS(0, 0, 0, 0, x_dim), ETCH_DIMS(0)));
    ETCH_SCOPE {
        etch_tensor *in[PARAMETERS + 1], *y = NULL, *fast = NULL;
        stack_models(m, in);
        in[PARAMETERS] = mapped ? etch_stack((etch_tensor *[]){input(), input(), etch_neg(input()),
                                                               input(), etch_exp(input())},
                                             MODELS, 0)
                                : input();
        etch_call_n(ensemble, in, PARAMETERS + 1, &y, 1);
        are_those_of_each(m, y, in, mapped);
        etch_function *f = etch_compile(calls_ensemble, .fullgraph = true);
        for (int i = 0; i < 3; i++) {
            if (etch_call_n(f, in, PARAMETERS + 1, &fast, 1)) fail_msg("%s", etch_last_error());
            assert_same(fast, y);
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        assert_int_equal(etch_function_counters(f).plan_runs, 3);
        etch_function_free(f);
    }
    etch_function_free(ensemble);
}

TEST(models_are_mapped_by_their_parameters) {
    etch_module *m = net();
    map_models(m, false);
    map_models(m, true);
    etch_module_free(m);
}

/* What it captures is batched, its argument is not. */
TEST(a_compiled_module_is_mapped_by_its_parameters) {
    etch_module *m = net();
    assert_int_equal(etch_module_compile(m), ETCH_OK);
    ETCH_SCOPE {
        etch_tensor *x = input(), *p[PARAMETERS];
        others(m, 0.5, p);
        for (int i = 0; i < 3; i++) {
            assert_true(etch_bitwise_equal(called(m, p, x), by_hand(p, x)));
            etch_module_call(m, x);
        }
        map_models(m, false);
        map_models(m, true);
        assert_same(called(m, p, x), by_hand(p, x));
    }
    etch_module_free(m);
}

/* ---- one plan for all tensors ---- */

static etch_module *compiled_with;
static ETCH_FN_N(calls_model, ctx, in, nin, out, nout) {
    (void)ctx;
    return model(compiled_with, in, nin, out, nout);
}

TEST(compiled_with_new_tensors_at_each_call) {
    compiled_with = net();
    etch_function *f = etch_compile(calls_model, .fullgraph = true);
    ETCH_SCOPE {
        for (int i = 0; i < 4; i++) {
            etch_tensor *in[PARAMETERS + 1], *y = NULL;
            others(compiled_with, 0.1 * i, in), in[PARAMETERS] = input();
            if (etch_call_n(f, in, PARAMETERS + 1, &y, 1)) fail_msg("%s", etch_last_error());
            assert_same(y, by_hand(in, in[PARAMETERS]));
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        assert_int_equal(etch_function_counters(f).plan_runs, 4);
    }
    etch_function_free(f);
    etch_module_free(compiled_with);
}
