/* Custom operators mapped and in forward mode: by their rules, one by one without, wrong rules, and
 * what etch_opcheck says of them. Labels: quick. */
#include <etch/opcheck.h>
#include <string.h>

#include "trace_support.h"

/* test::dist(a, b): the distance of two vectors, and operators that are wrong somewhere. */
static int kernels, batches;

static etch_tensor *distance(etch_tensor *a, etch_tensor *b, etch_dims dims) {
    return etch_sqrt(etch_sum_dim(etch_square(etch_sub(a, b)), dims, false));
}

static etch_status dist_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    kernels++;
    etch_tensor *d = distance(args[0].tensor, args[1].tensor, ETCH_DIMS(0));
    return etch_copy_(out[0], d) ? ETCH_OK : etch_last_status();
}

static etch_status dist_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (etch_ndim(args[0].tensor) != 1 || etch_ndim(args[1].tensor) != 1)
        return etch_set_error(ETCH_ERR_SHAPE, "expected two vectors");
    out[0] = (etch_tensor_spec){etch_dtype_of(args[0].tensor), ETCH_SHAPE()};
    return ETCH_OK;
}

static etch_tensor *dist_vmap(void *ctx, const etch_op *op, const etch_vmap_call *call) {
    (void)op;
    batches++;
    etch_tensor *d = distance(call->args[0].tensor, call->args[1].tensor, ETCH_DIMS(-1));
    if (ctx == &kernels) return etch_unsqueeze(d, 0); /* the wrong sizes */
    return ctx == &batches ? etch_mul_scalar(d, 2) : d;
}

static etch_status dist_derivative(void *ctx, const etch_op *op, const etch_derivative_call *call) {
    (void)ctx, (void)op;
    etch_tensor *off = etch_sub(call->args[0].tensor, call->args[1].tensor);
    etch_tensor *g = etch_mul(etch_div(off, call->result), call->grad);
    if (call->wants[0]) call->grads[0] = g;
    if (call->wants[1]) call->grads[1] = etch_neg(g);
    return ETCH_OK;
}

static etch_tensor *dist_jvp(void *ctx, const etch_op *op, const etch_jvp_call *call) {
    (void)op;
    etch_tensor *off = etch_sub(call->args[0].tensor, call->args[1].tensor), *t = NULL;
    for (int i = 0; i < 2; i++) {
        if (!call->tangents[i]) continue;
        etch_tensor *along = etch_dot(off, call->tangents[i]);
        if (i && ctx != &batches) along = etch_neg(along); /* else the wrong sign */
        t = t ? etch_add(t, along) : along;
    }
    return etch_div(t, call->result);
}

static const etch_op *with_rules, *without, *badly_shaped, *wrong;

static const etch_op *make(const char *schema, bool rules, void *ctx) {
    etch_op_definition d = {
        .struct_size = sizeof d, .cpu = dist_kernel, .shape = dist_shape, .ctx = ctx};
    if (rules) d.vmap = dist_vmap, d.jvp = dist_jvp, d.derivative = dist_derivative;
    return etch_op_register(schema, &d);
}

static void register_all(void) {
    if (with_rules) return;
    with_rules = make("test::dist(Tensor a, Tensor b) -> Tensor", true, NULL);
    without = make("test::dist_plain(Tensor a, Tensor b) -> Tensor", false, NULL);
    badly_shaped = make("test::dist_badly(Tensor a, Tensor b) -> Tensor", true, &kernels);
    wrong = make("test::dist_wrong(Tensor a, Tensor b) -> Tensor", true, &batches);
    assert_true(with_rules && without && badly_shaped && wrong);
}
EACH_TEST(.before = register_all)

static etch_value tensor_value(etch_tensor *t) {
    return (etch_value){.tag = ETCH_VALUE_TENSOR, .tensor = t};
}

static const etch_op *called;
static etch_tensor *dist(etch_tensor *a, etch_tensor *b) {
    etch_value args[] = {tensor_value(a), tensor_value(b)};
    etch_tensor *y = NULL;
    return etch_op_call(called, args, 2, &y, 1) == ETCH_OK ? y : NULL;
}

static etch_tensor *numbers(int64_t rows, double phase) {
    etch_tensor *i = etch_arange(ETCH_F64, 0, rows * 3, 1);
    return etch_reshape(etch_sin(etch_add_scalar(etch_mul_scalar(i, 1.3), phase)),
                        ETCH_SHAPE(rows, 3));
}

static etch_tensor *mapped(etch_dims in_dims, etch_tensor *a, etch_tensor *b) {
    etch_function *f = etch_vmap(dist, in_dims, ETCH_DIMS(0));
    etch_tensor *y = etch_call(f, a, b);
    etch_function_free(f);
    return y;
}

static bool near(etch_tensor *a, etch_tensor *b) {
    if (!a || !b) fail_msg("%s", etch_last_error());
    return etch_item(etch_max(etch_abs(etch_sub(a, b)))) < 1e-12;
}

TEST(a_rule_takes_the_batch_at_once) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(4, 0), *b = numbers(4, 2), *c = etch_select(b, 0, 1);
        called = with_rules, kernels = batches = 0;
        assert_true(near(mapped(ETCH_DIMS(0), a, b), distance(a, b, ETCH_DIMS(1))));
        assert_true(near(mapped(ETCH_DIMS(0, ETCH_UNMAPPED), a, c), distance(a, c, ETCH_DIMS(1))));
        assert_true(kernels == 0 && batches == 2);
    }
}

TEST(without_one_it_is_called_for_each_sample) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(4, 0), *b = numbers(4, 2);
        called = without, kernels = 0;
        assert_true(near(mapped(ETCH_DIMS(0), a, b), distance(a, b, ETCH_DIMS(1))));
        assert_int_equal(kernels, 4);
        assert_int_equal(etch_numel(mapped(ETCH_DIMS(0), numbers(0, 0), numbers(0, 1))), 0);
    }
}

static etch_tensor *gradient(etch_tensor *a, etch_tensor *b) {
    etch_tensor *in[] = {a, b}, *g[2], *y = NULL;
    return etch_vjp(dist, in, 2, NULL, &y, 1, g) == ETCH_OK ? g[0] : NULL;
}

TEST(tangents_and_gradients_of_samples) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(4, 0), *b = numbers(4, 2);
        called = with_rules;
        etch_function *f = etch_vmap(gradient, ETCH_DIMS(0), ETCH_DIMS(0));
        etch_tensor *g = etch_call(f, a, b);
        etch_function_free(f);
        etch_tensor *want =
            etch_div(etch_sub(a, b), etch_unsqueeze(distance(a, b, ETCH_DIMS(1)), 1));
        assert_true(near(g, want));
        etch_tensor *in[] = {etch_select(a, 0, 0), etch_select(b, 0, 0)};
        etch_tensor *j = etch_jacobian(dist, in, 2, .mode = ETCH_JACOBIAN_FORWARD);
        assert_true(near(j, etch_select(want, 0, 0)));
        j = etch_jacobian(dist, in, 2, .argument = 1, .mode = ETCH_JACOBIAN_REVERSE);
        assert_true(near(j, etch_neg(etch_select(want, 0, 0))));
    }
}

TEST(what_is_missing_or_wrong_is_said) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(4, 0), *b = numbers(4, 2);
        etch_tensor *in[] = {etch_select(a, 0, 0), etch_select(b, 0, 0)}, *y = NULL, *t = NULL;
        called = badly_shaped;
        assert_null(mapped(ETCH_DIMS(0), a, b));
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        assert_non_null(strstr(etch_last_error(), "[4]"));
        called = without;
        etch_clear_error();
        assert_int_not_equal(etch_jvp(dist, in, in, 2, &y, &t, 1), ETCH_OK);
        assert_int_equal(etch_last_status(), ETCH_ERR_NOT_DIFFERENTIABLE);
        assert_non_null(strstr(etch_last_error(), "test::dist_plain"));
        etch_clear_error();
    }
}

static char report[4096];
static etch_status check(const etch_op *op) {
    etch_value args[] = {tensor_value(etch_select(numbers(4, 0), 0, 1)),
                         tensor_value(etch_select(numbers(4, 2), 0, 1))};
    etch_op_sample sample = {args, 2};
    return etch_opcheck(op, &sample, 1, report, sizeof report);
}

TEST(opcheck_compares_rules) {
    ETCH_SCOPE {
        if (check(with_rules) != ETCH_OK) fail_msg("%s", report);
        if (check(without) != ETCH_OK) fail_msg("%s", report);
        assert_int_equal(check(badly_shaped), ETCH_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(report, "mapped"));
        assert_int_equal(check(wrong), ETCH_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(report, "mapped: sample 0"));
        assert_non_null(strstr(report, "tangent: tensor 1"));
        etch_clear_error();
    }
}
