/* Gradients of modules: of every ready-made layer against differences, in training and evaluation;
 * hooks on gradients; whole steps of training, compiled beside eager, bit for bit.
 * Labels: quick. */
#include <malloc.h>

#include "nn_support.h"

/* Other allocators do not say what is in use. */
#ifdef __SANITIZE_ADDRESS__
enum { MEASURED = 0 };
#else
enum { MEASURED = 1 };
#endif

/* ---- layers against differences ---- */

/* A number that depends on every element of the results otherwise. */
static etch_tensor *weighed(etch_module *m, etch_tensor *const *in, int nin, int nout) {
    etch_tensor *out[2], *total = NULL;
    etch_manual_seed(4); /* the same dropout each time */
    if (etch_module_call_n(m, in, nin, out, nout) != ETCH_OK) must(NULL);
    for (int i = 0; i < nout; i++) {
        etch_tensor *line = must(etch_arange(ETCH_F64, 0, etch_numel(out[i]), 1));
        etch_tensor *weights = must(etch_cos(must(etch_reshape(line, etch_sizes(out[i])))));
        etch_tensor *sum = must(etch_sum(must(etch_mul(out[i], weights))));
        total = total ? must(etch_add(total, sum)) : sum;
    }
    return total;
}

/* By how much it grows with element k of t, which is moved in place. */
static double slope(etch_module *m, etch_tensor *const *in, int nin, int nout, etch_tensor *t,
                    int64_t k) {
    double at[2] = {0}, h = 1e-5;
    ETCH_SCOPE {
        ETCH_NO_GRAD {
            etch_tensor *flat = must(etch_view(t, ETCH_SHAPE(etch_numel(t))));
            etch_tensor *one = must(etch_select(flat, 0, k));
            for (int i = 0; i < 2; i++) {
                must(etch_add_scalar_(one, i ? -2 * h : h));
                at[i] = etch_item(weighed(m, in, nin, nout));
            }
            must(etch_add_scalar_(one, h));
        }
    }
    return (at[0] - at[1]) / 2 / h;
}

static void has_slopes(etch_module *m, etch_tensor *const *in, int nin, int nout, etch_tensor *t,
                       const char *what) {
    if (!etch_grad_of(t)) fail_msg("%s: %s has no gradient", etch_module_type(m), what);
    const double *have = values(etch_grad_of(t));
    for (int64_t k = 0; k < etch_numel(t); k++) {
        double want = slope(m, in, nin, nout, t, k);
        if (fabs(have[k] - want) > 1e-6 * (1 + fabs(want)))
            fail_msg("%s: %s, element %d: want %.9g, have %.9g", etch_module_type(m), what, (int)k,
                     want, have[k]);
    }
}

/* Of inputs of floating point and of all parameters. m is freed. */
static void differentiate(etch_module *m, etch_tensor **in, int nin, int nout) {
    must(m);
    for (int i = 0; i < nin; i++)
        if (etch_dtype_of(in[i]) == ETCH_F64)
            in[i] = must(etch_requires_grad_(must(etch_clone(must(etch_detach(in[i])))), true));
    if (etch_backward(weighed(m, in, nin, nout)) != ETCH_OK) must(NULL);
    for (int i = 0; i < nin; i++)
        if (etch_dtype_of(in[i]) == ETCH_F64) has_slopes(m, in, nin, nout, in[i], "input");
    for (int i = 0; i < etch_module_parameter_count(m); i++)
        has_slopes(m, in, nin, nout, etch_module_parameter_at(m, i),
                   etch_module_parameter_name(m, i));
    etch_module_free(m);
}

static etch_tensor *noise(etch_shape sizes) {
    static uint64_t seed = 50;
    etch_manual_seed(seed++);
    return must(etch_randn(ETCH_F64, sizes));
}

static void check(etch_module *m, etch_shape sizes) {
    ETCH_SCOPE {
        etch_tensor *x = noise(sizes);
        differentiate(m, &x, 1, 1);
    }
}

static etch_module *evaluated(etch_module *m) {
    etch_module_call(m, noise(ETCH_SHAPE(8, 3)));
    assert_int_equal(etch_module_train(m, false), ETCH_OK);
    return m;
}

TEST(layers_have_gradients) {
    ETCH_SCOPE {
        check(etch_nn_linear(3, 4, ETCH_F64), ETCH_SHAPE(2, 3));
        check(etch_nn_silu(), ETCH_SHAPE(5));
        check(etch_nn_tanh(), ETCH_SHAPE(5));
        check(etch_nn_sigmoid(), ETCH_SHAPE(5));
        check(etch_nn_relu(), ETCH_SHAPE(9));
        check(etch_nn_gelu(false), ETCH_SHAPE(5));
        check(etch_nn_gelu(true), ETCH_SHAPE(5));
        check(etch_nn_dropout(0.5), ETCH_SHAPE(9));
        check(etch_nn_flatten(0, -1), ETCH_SHAPE(2, 3));
        check(etch_nn_conv1d(2, 4, 3, ETCH_F64, .stride = {2}, .padding = {1}, .groups = 2),
              ETCH_SHAPE(2, 2, 7));
        check(etch_nn_conv2d(2, 3, ETCH_SHAPE(3, 2), ETCH_F64, .padding = {1}, .stride = {2, 1},
                             .dilation = {1, 2}),
              ETCH_SHAPE(2, 2, 5, 6));
        check(etch_nn_max_pool2d(ETCH_SHAPE(2, 3), .stride = {2, 1}, .padding = {1}),
              ETCH_SHAPE(2, 5, 6));
        check(etch_nn_avg_pool2d(ETCH_SHAPE(3, 2), .padding = {1, -1}), ETCH_SHAPE(2, 5, 6));
    }
}

TEST(norms_have_gradients) {
    ETCH_SCOPE {
        check(etch_nn_layer_norm(ETCH_SHAPE(2, 3), ETCH_F64), ETCH_SHAPE(4, 2, 3));
        check(etch_nn_rms_norm(ETCH_SHAPE(5), ETCH_F64), ETCH_SHAPE(3, 5));
        check(etch_nn_group_norm(2, 4, ETCH_F64), ETCH_SHAPE(2, 4, 3));
        check(etch_nn_batch_norm1d(3, ETCH_F64), ETCH_SHAPE(4, 3, 2));
        check(etch_nn_batch_norm2d(3, ETCH_F64, .no_statistics = true), ETCH_SHAPE(2, 3, 2, 2));
        check(evaluated(etch_nn_batch_norm1d(3, ETCH_F64)), ETCH_SHAPE(4, 3));
    }
}

/* Statistics are no part of the tape: a step does not reach back into the last one. */
TEST(batch_norm_statistics_have_none) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_batch_norm1d(3, ETCH_F64));
        etch_tensor *x = must(etch_requires_grad_(noise(ETCH_SHAPE(4, 3)), true));
        for (int i = 0; i < 3; i++) {
            etch_tensor *y = must(etch_module_call(m, x));
            assert_false(etch_requires_grad(etch_module_buffer(m, "running_mean")));
            assert_false(etch_requires_grad(etch_module_buffer(m, "running_var")));
            assert_int_equal(etch_backward(must(etch_sum(must(etch_square(y))))), ETCH_OK);
        }
        etch_module_free(m);
    }
}

TEST(layers_of_several_tensors_have_gradients) {
    ETCH_SCOPE {
        etch_tensor *in[3];
        for (int i = 0; i < 3; i++) in[i] = noise(ETCH_SHAPE(2, i ? 4 : 3));
        differentiate(etch_nn_lstm_cell(3, 4, ETCH_F64), in, 3, 2);
        differentiate(etch_nn_gru_cell(3, 4, ETCH_F64), in, 2, 1);
        for (int i = 0; i < 3; i++) in[i] = noise(ETCH_SHAPE(2, 3, 4));
        differentiate(etch_nn_multihead_attention(4, 2, ETCH_F64, .causal = true), in, 1, 2);
        differentiate(etch_nn_multihead_attention(4, 2, ETCH_F64, .dropout = 0.3), in, 3, 1);
        const int64_t rows[] = {1, 4, 1};
        in[0] = must(etch_from_host(rows, ETCH_I64, ETCH_SHAPE(3)));
        differentiate(etch_nn_embedding(5, 2, ETCH_F64), in, 1, 1);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(frozen_modules_get_none) {
    ETCH_SCOPE {
        etch_module *layers[] = {etch_nn_linear(3, 3, ETCH_F64), etch_nn_linear(3, 2, ETCH_F64)};
        etch_module *m = must(etch_nn_sequential(layers, 2));
        assert_int_equal(etch_module_requires_grad_(layers[0], false), ETCH_OK);
        etch_tensor *y = must(etch_module_call(m, noise(ETCH_SHAPE(2, 3))));
        assert_int_equal(etch_backward(must(etch_sum(y))), ETCH_OK);
        assert_null(etch_grad_of(etch_module_parameter(m, "0.weight")));
        assert_non_null(etch_grad_of(etch_module_parameter(m, "1.weight")));
        etch_module_free(m);
    }
}

/* A weight of two layers gets the sum of what each would get. */
TEST(tied_weights_get_both) {
    ETCH_SCOPE {
        etch_module *layers[] = {etch_nn_linear(3, 3, ETCH_F64), etch_nn_linear(3, 3, ETCH_F64)};
        etch_module *m = must(etch_nn_sequential(layers, 2));
        etch_tensor *w = etch_module_parameter(m, "0.weight");
        assert_int_equal(etch_module_set_tensor(m, "1.weight", w), ETCH_OK);
        etch_tensor *x = noise(ETCH_SHAPE(2, 3));
        differentiate(m, &x, 1, 1);
    }
}

/* ---- hooks on gradients ---- */

typedef struct seen {
    int calls, i;
    double sum, factor; /* factor 0: leaves the gradient */
    bool fail;
    etch_module *of;
} seen;

static etch_tensor *watch(void *ctx, etch_module *m, int i, etch_tensor *grad) {
    seen *s = ctx;
    s->calls++, s->of = m, s->i = i;
    s->sum = etch_item(must(etch_sum(grad)));
    if (s->fail) return etch_set_error(ETCH_ERR_USER, "hook: refused"), NULL;
    return s->factor ? etch_mul_scalar(grad, s->factor) : NULL;
}

static etch_tensor *triple(etch_module *m, etch_tensor *x) {
    (void)m;
    return etch_mul_scalar(x, 3.0);
}

static etch_tensor *ones(void) {
    return must(etch_requires_grad_(must(etch_ones(ETCH_F64, ETCH_SHAPE(2))), true));
}

/* d(2 y)/dy = 2 for each of two elements, 6 for x. x goes around the module, too: that part is not
 * the module's. */
TEST(hooks_see_gradients_of_results_and_inputs) {
    ETCH_SCOPE {
        etch_module *m = must(etch_module_new("Triple", triple));
        etch_tensor *x = ones();
        seen result = {0}, input = {0};
        assert_true(etch_module_backward_pre_hook(m, watch, &result) != 0);
        assert_true(etch_module_backward_hook(m, watch, &input) != 0);
        etch_tensor *y = must(etch_mul_scalar(must(etch_module_call(m, x)), 2.0));
        etch_tensor *total = must(etch_sum(must(etch_add(y, x))));
        assert_int_equal(etch_backward(total), ETCH_OK);
        assert_true(result.calls == 1 && result.sum == 4 && result.of == m && result.i == 0);
        assert_true(input.calls == 1 && input.sum == 12 && input.of == m);
        near_values(etch_grad_of(x), (double[]){7, 7}, 0);
        ETCH_NO_GRAD { assert_false(etch_requires_grad(must(etch_module_call(m, x)))); }
        assert_int_equal(input.calls, 1);
        etch_module_free(m);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(hooks_change_gradients) {
    ETCH_SCOPE {
        etch_module *m = must(etch_module_new("Triple", triple));
        etch_tensor *x = ones();
        seen half = {.factor = 0.5}, ten = {.factor = 10}, last = {0};
        int64_t a = etch_module_backward_pre_hook(m, watch, &half);
        int64_t b = etch_module_backward_hook(m, watch, &ten);
        int64_t c = etch_module_backward_hook(m, watch, &last);
        assert_true(a && b && c && a != b && b != c);
        assert_int_equal(etch_backward(must(etch_sum(must(etch_module_call(m, x))))), ETCH_OK);
        assert_true(half.sum == 2 && ten.sum == 3 && last.sum == 30);
        near_values(etch_grad_of(x), (double[]){15, 15}, 0);
        etch_hook_remove(m, b);
        etch_zero_grad(x);
        etch_tensor *y = must(etch_sum(must(etch_module_call(m, x))));
        etch_hook_remove(m, a); /* after the call, before its gradient */
        assert_int_equal(etch_backward(y), ETCH_OK);
        near_values(etch_grad_of(x), (double[]){3, 3}, 0);
        assert_true(half.calls == 1 && ten.calls == 1 && last.calls == 2);
        etch_module_free(m);
    }
}

TEST(hooks_fail_and_go) {
    ETCH_SCOPE {
        etch_module *m = must(etch_module_new("Triple", triple));
        etch_tensor *x = ones(), *y;
        seen bad = {.fail = true};
        assert_true(etch_module_backward_hook(m, watch, &bad) != 0);
        y = must(etch_sum(must(etch_module_call(m, x))));
        FAILED_WITH(etch_backward(y) != ETCH_OK, ETCH_ERR_USER, "refused");
        assert_null(etch_grad_of(x));
        y = must(etch_sum(must(etch_module_call(m, x))));
        etch_module_free(m); /* the tape is still there */
        assert_int_equal(etch_backward(y), ETCH_OK);
        near_values(etch_grad_of(x), (double[]){3, 3}, 0);
        assert_int_equal(bad.calls, 1);
        FAILED_WITH(!etch_module_backward_hook(NULL, watch, NULL), ETCH_ERR_NULL,
                    "etch_module_backward_hook");
    }
}

/* The same of a compiled module, whose backward call is outside. */
TEST(hooks_of_compiled_modules) {
    static const char *const backends[] = {"eager", "native"};
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_module *m = must(etch_module_new("Triple", triple));
            seen result = {.factor = 2}, input = {0};
            assert_true(etch_module_backward_pre_hook(m, watch, &result) != 0);
            assert_true(etch_module_backward_hook(m, watch, &input) != 0);
            assert_int_equal(etch_module_compile(m, .backend = backends[b]), ETCH_OK);
            for (int i = 1; i < 4; i++) {
                etch_tensor *x = ones(), *y = must(etch_module_call(m, x));
                assert_int_equal(etch_backward(must(etch_sum(y))), ETCH_OK);
                near_values(etch_grad_of(x), (double[]){6, 6}, 0);
                assert_true(result.calls == i && input.calls == i && input.sum == 12);
            }
            etch_module_free(m);
        }
}

/* ---- whole steps ---- */

typedef struct training {
    etch_module *m;
    etch_optim *o;
} training;

static etch_status step(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    const training *t = ctx;
    (void)nin, (void)nout;
    etch_tensor *y = etch_module_call(t->m, in[0]);
    etch_tensor *loss = y ? etch_nn_cross_entropy(y, in[1]) : NULL;
    if (!loss || etch_backward(loss) != ETCH_OK || !etch_optim_clip_grad_norm(t->o, 1.0) ||
        etch_optim_step(t->o) != ETCH_OK || etch_optim_zero_grad(t->o) != ETCH_OK)
        return etch_last_status();
    out[0] = etch_detach(loss);
    return out[0] ? ETCH_OK : etch_last_status();
}

static training begin(void) {
    etch_manual_seed(9);
    etch_module *layers[] = {etch_nn_linear(4, 8, ETCH_F32),
                             etch_nn_batch_norm1d(8, ETCH_F32),
                             etch_nn_gelu(false),
                             etch_nn_dropout(0.25),
                             etch_nn_layer_norm(ETCH_SHAPE(8), ETCH_F32),
                             etch_nn_linear(8, 3, ETCH_F32)};
    training t = {.m = must(etch_nn_sequential(layers, 6))};
    t.o = must(etch_optim_adamw(t.m, .lr = 0.01));
    return t;
}

/* Losses, parameters and statistics of a compiled step are those of an eager one. */
TEST(compiled_training_is_eager_training) {
    static const char *const backends[] = {"eager", "native"};
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            training plain = begin(), fast = begin();
            same_tensors(plain.m, fast.m);
            const etch_compile_options options = {
                .struct_size = sizeof options, .backend = backends[b], .ctx = &fast};
            etch_function *f = must(etch_compile_n(step, &options));
            for (int i = 0; i < 8; i++)
                ETCH_SCOPE {
                    etch_manual_seed((uint64_t)(70 + i));
                    etch_tensor *in[2] = {must(etch_randn(ETCH_F32, ETCH_SHAPE(16, 4))), NULL};
                    in[1] = must(etch_argmax_dim(must(etch_narrow(in[0], 1, 0, 3)), 1, false));
                    etch_tensor *want, *have;
                    etch_manual_seed((uint64_t)i);
                    if (step(&plain, in, 2, &want, 1) != ETCH_OK) must(NULL);
                    etch_manual_seed((uint64_t)i);
                    if (etch_call_n(f, in, 2, &have, 1) != ETCH_OK) must(NULL);
                    assert_true(etch_bitwise_equal(want, have));
                    same_tensors(plain.m, fast.m);
                }
            etch_function_free(f);
            etch_optim_free(plain.o), etch_optim_free(fast.o);
            etch_module_free(plain.m), etch_module_free(fast.m);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- what a step costs ---- */

static etch_status update_all(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                              int nout) {
    (void)nin, (void)nout;
    out[0] = in[0];
    return etch_optim_step(ctx);
}

/* The kernels that compute parameters and state write them: nothing is copied behind them. */
TEST(updates_write_where_parameters_are) {
    enum { N = 4, SIDE = 128 };
    ETCH_SCOPE {
        etch_tensor *w[N], *x = must(etch_zeros(ETCH_F32, ETCH_SHAPE(1))), *y;
        for (int i = 0; i < N; i++) {
            w[i] = must(etch_randn(ETCH_F32, ETCH_SHAPE(SIDE, SIDE)));
            must(etch_requires_grad_(w[i], true));
            etch_set_grad(w[i], must(etch_randn(ETCH_F32, ETCH_SHAPE(SIDE, SIDE))));
        }
        etch_optim *o = must(etch_optim_adam(NULL));
        assert_true(etch_optim_add(o, w, N, .lr = 0.1) >= 0);
        etch_function *f = must(etch_compile(update_all, .ctx = o));
        for (int i = 0; i < 2; i++) assert_int_equal(etch_call_n(f, &x, 1, &y, 1), ETCH_OK);
        int64_t before = etch_function_counters(f).kernel_launches;
        assert_int_equal(etch_call_n(f, &x, 1, &y, 1), ETCH_OK);
        int64_t launches = etch_function_counters(f).kernel_launches - before;
        if (launches > 2) fail_msg("%d kernels", (int)launches);
        etch_function_free(f);
        etch_optim_free(o);
    }
}

static int64_t bytes_in_use(void) { return (int64_t)mallinfo2().uordblks; }

/* By no byte of tensors, and by less than one a step of the allocator's, which keeps some. */
TEST(many_steps_do_not_grow) {
    enum { WARM = 100, STEPS = 10000 };
    for (int compiled = 0; compiled < 2; compiled++)
        ETCH_SCOPE {
            training t = begin();
            const etch_compile_options options = {.struct_size = sizeof options, .ctx = &t};
            etch_function *f = must(etch_compile_n(step, &options));
            etch_tensor *in[2] = {must(etch_randn(ETCH_F32, ETCH_SHAPE(16, 4))), NULL};
            in[1] = must(etch_argmax_dim(must(etch_narrow(in[0], 1, 0, 3)), 1, false));
            int64_t bytes = 0, tensors = 0, heap = 0;
            for (int i = 0; i < STEPS; i++) {
                if (i == WARM) bytes = etch_memory().bytes_live, tensors = etch_memory().tensors;
                if (i == WARM) heap = bytes_in_use();
                ETCH_SCOPE {
                    etch_tensor *loss;
                    etch_status s =
                        compiled ? etch_call_n(f, in, 2, &loss, 1) : step(&t, in, 2, &loss, 1);
                    if (s != ETCH_OK) must(NULL);
                }
            }
            assert_int_equal(etch_memory().bytes_live, bytes);
            assert_int_equal(etch_memory().tensors, tensors);
            if (MEASURED) assert_true(bytes_in_use() - heap < STEPS);
            etch_function_free(f);
            etch_optim_free(t.o), etch_module_free(t.m);
        }
}
