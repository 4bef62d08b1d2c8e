/* etch_opcheck: honest registrations pass; each kind of lie is found and named, those of
 * derivatives too.
 * Labels: quick. */
#include "trace_support.h"

#include <string.h>

#include "tools/verify/cblas_matmul.h"

static char report[4096];

static const etch_op *add_op(const char *schema, etch_kernel cpu, etch_shape_fn shape) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = cpu, .shape = shape};
    const etch_op *op = etch_op_register(schema, &d);
    assert_non_null(op);
    return op;
}

/* The check of one sample with tensors a (and b, if there) and, if asked for, a scalar. */
static etch_status check(const etch_op *op, etch_tensor *a, etch_tensor *b, const double *scalar) {
    etch_value args[3] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a}};
    int n = 1;
    if (b) args[n++] = (etch_value){.tag = ETCH_VALUE_TENSOR, .tensor = b};
    if (scalar)
        args[n++] = (etch_value){.tag = ETCH_VALUE_SCALAR, .scalar = etch_scalar_real(*scalar)};
    etch_op_sample sample = {args, n};
    etch_clear_error();
    return etch_opcheck(op, &sample, 1, report, sizeof report);
}

/* derivative: what the report says of it. */
static void honest(const etch_op *op, etch_tensor *a, etch_tensor *b, const char *derivative) {
    etch_status status = check(op, a, b, NULL);
    if (status != ETCH_OK) print_message("%s", report);
    assert_int_equal(status, ETCH_OK);
    assert_non_null(strstr(report, "1 samples, 0 faults"));
    assert_non_null(strstr(report, derivative));
}

static void fault_is(const etch_op *op, etch_tensor *a, etch_tensor *b, const char *what) {
    assert_int_equal(check(op, a, b, NULL), ETCH_ERR_INVALID_ARGUMENT);
    if (!strstr(report, what)) print_message("%s", report);
    assert_non_null(strstr(report, what));
    assert_non_null(strstr(etch_last_error(), "etch_opcheck"));
}

TEST(the_cblas_product) {
    for (int d = 0; d < 2; d++)
        ETCH_SCOPE {
            etch_dtype dtype = d ? ETCH_F64 : ETCH_F32;
            honest(blas_op(), etch_randn(dtype, ETCH_SHAPE(5, 7)),
                   etch_randn(dtype, ETCH_SHAPE(7, 4)), "derivative: none");
            honest(blas_op(), etch_randn(dtype, ETCH_SHAPE(65, 130)),
                   etch_t(etch_randn(dtype, ETCH_SHAPE(33, 130))), "derivative: none");
        }
}

TEST(built_in_operators) {
    ETCH_SCOPE {
        etch_tensor *a = arange_f32(3, 4), *b = etch_cos(a);
        const char *checked = "derivative: checked\n";
        honest(etch_op_find("add.Tensor"), a, b, checked);
        honest(etch_op_find("add_.Tensor"), a, b, checked);
        honest(etch_op_find("relu"), etch_select(a, 0, 1), NULL, checked);
        honest(etch_op_find("sum"), a, NULL, checked);
        honest(etch_op_find("t"), a, NULL, checked);
        honest(etch_op_find("mul.Tensor"), etch_to(a, ETCH_F64), etch_to(b, ETCH_F64), checked);
        honest(etch_op_find("div_.Tensor"), etch_to(a, ETCH_F64), etch_to(b, ETCH_F64), checked);
        honest(etch_op_find("mm"), b, etch_t(b), checked);
        honest(etch_op_find("relu"), a, NULL, checked); /* a kink at 0 */
        honest(etch_op_find("floor"), etch_add_scalar(a, 0.5), NULL, checked);
        honest(etch_op_find("relu"), etch_to(a, ETCH_I64), NULL,
               "derivative: not compared with differences");
        honest(etch_op_find("tanh"), etch_to(a, ETCH_BF16), NULL,
               "derivative: not compared with differences");
        etch_tensor *both[2] = {a, b};
        etch_value list = {.tag = ETCH_VALUE_TENSORS, .tensors = {both, 2}};
        etch_op_sample sample = {&list, 1};
        etch_status status = etch_opcheck(etch_op_find("cat"), &sample, 1, report, sizeof report);
        if (status != ETCH_OK) print_message("%s", report);
        assert_int_equal(status, ETCH_OK);
    }
}

/* ---- liars ---- */

static etch_status like_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0] = (etch_tensor_spec){etch_dtype_of(args[0].tensor), etch_sizes(args[0].tensor)};
    return ETCH_OK;
}

static etch_status writes_secretly(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                   etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (!etch_copy_(out[0], args[0].tensor)) return etch_last_status();
    return etch_add_scalar_(args[0].tensor, 1.0) ? ETCH_OK : etch_last_status();
}

static int calls;
static etch_status counts(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                          etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    return etch_copy_(out[0], etch_add_scalar(args[0].tensor, calls++)) ? ETCH_OK
                                                                        : etch_last_status();
}

/* Reads memory as if it were contiguous. */
static etch_status blind_to_strides(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                    etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    const float *from = etch_data(args[0].tensor);
    memcpy(etch_data_mut(out[0]), from, (size_t)etch_numel(out[0]) * sizeof *from);
    return ETCH_OK;
}

static etch_status looks_at_values(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                   etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    int64_t n = etch_item(etch_select(etch_select(args[0].tensor, 0, 0), 0, 0)) != 0 ? 2 : 3;
    out[0] = (etch_tensor_spec){ETCH_F32, ETCH_SHAPE(n)};
    return ETCH_OK;
}

static etch_status fills(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout, (void)args;
    return etch_fill_(out[0], 1.0) ? ETCH_OK : etch_last_status();
}

static etch_status size_of_scalar(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0] = (etch_tensor_spec){ETCH_F32, ETCH_SHAPE((int64_t)args[1].scalar.d)};
    return ETCH_OK;
}

static etch_status always_fails(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout, (void)args, (void)out;
    return etch_set_error(ETCH_ERR_USER, "no kernel today");
}

TEST(each_lie_is_found) {
    ETCH_SCOPE {
        etch_tensor *a = arange_f32(4, 4);
        fault_is(add_op("lie::writes(Tensor a) -> Tensor", writes_secretly, like_first), a, NULL,
                 "mutation: tensor 0 was changed");
        fault_is(add_op("lie::counts(Tensor a) -> Tensor", counts, like_first), a, NULL,
                 "purity: a second call");
        fault_is(add_op("lie::blind(Tensor a) -> Tensor", blind_to_strides, like_first), a, NULL,
                 "strides: arguments that are not contiguous");
        fault_is(add_op("lie::looks(Tensor a) -> Tensor", fills, looks_at_values), a, NULL,
                 "shape: the result's dtype or sizes change");
        fault_is(add_op("lie::fails(Tensor a) -> Tensor", always_fails, like_first), a, NULL,
                 "sample: the plain call failed: no kernel today");
        double three = 3;
        const etch_op *sized =
            add_op("lie::sized(Tensor a, Scalar n) -> Tensor", fills, size_of_scalar);
        assert_int_equal(check(sized, a, NULL, &three), ETCH_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(report, "shape: the result's dtype or sizes change"));
    }
}

/* ---- derivatives that lie: of x x y ---- */

static etch_status square_times(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    etch_tensor *x = args[0].tensor, *y = args[1].tensor;
    return etch_copy_(out[0], etch_mul(etch_mul(x, x), y)) ? ETCH_OK : etch_last_status();
}

typedef enum lie {
    TRUTH,
    WRONG_FACTOR,
    NONE_FOR_Y,
    NOT_TRACED,
    UNWANTED,
    WRITES_GRAD,
    WRITES_X,
    WRITES_RESULT,
    CHANGES,
    WRONG_SECOND,
    BLIND,
    BY_WANTS,
    FAILS,
    OTHER_SIZES,
    LIES
} lie;

/* Reads numbers, which no tape and no trace sees. */
static etch_tensor *as_number(etch_tensor *t) {
    etch_tensor *copy = etch_empty(ETCH_F64, etch_sizes(t));
    double v[16];
    if (!copy || etch_to_host(t, v, sizeof *v * (size_t)etch_numel(t)) != ETCH_OK) return NULL;
    return etch_copy_(copy, etch_from_host(v, ETCH_F64, etch_sizes(t)));
}

/* Reads the gradient as if it were contiguous. */
static etch_tensor *blindly(etch_tensor *t) {
    etch_tensor *flat = etch_as_strided(t, ETCH_SHAPE(1), ETCH_SHAPE(1));
    return etch_is_contiguous(t) ? t : etch_mul_scalar(etch_expand(flat, etch_sizes(t)), 0.5);
}

static etch_status lies(void *ctx, const etch_op *op, const etch_derivative_call *d) {
    const lie what = *(const lie *)ctx;
    etch_tensor *x = d->args[0].tensor, *y = d->args[1].tensor, *g = d->grad;
    (void)op;
    if (what == FAILS) return etch_set_error(ETCH_ERR_USER, "no derivative today");
    if (what == CHANGES) g = etch_add_scalar(g, 1e-9 * calls++);
    if (what == NOT_TRACED) y = as_number(y);
    if (what == WRONG_SECOND) x = etch_detach(x);
    if (what == BLIND) g = blindly(g);
    etch_tensor *xy = etch_mul(x, y), *xx = etch_mul(x, x);
    if (d->wants[0]) d->grads[0] = etch_mul(g, etch_mul_scalar(xy, what == WRONG_FACTOR ? 3 : 2));
    if (d->wants[1] || what == UNWANTED) d->grads[1] = etch_mul(g, xx);
    if (what == NONE_FOR_Y) d->grads[1] = NULL;
    if (what == BY_WANTS && !d->wants[0]) d->grads[1] = etch_mul_scalar(d->grads[1], 1 + 1e-9);
    if (what == OTHER_SIZES && d->wants[0]) d->grads[0] = etch_ones(ETCH_F64, ETCH_SHAPE(5));
    ETCH_NO_GRAD {
        if (what == WRITES_GRAD) etch_zero_(d->grad);
        if (what == WRITES_X) etch_add_scalar_(d->args[0].tensor, 1);
        if (what == WRITES_RESULT) etch_zero_(d->result);
    }
    return ETCH_OK;
}

TEST(each_lie_of_a_derivative_is_found) {
    static const char *const found[LIES] = {
        [WRONG_FACTOR] = "sample 0: gradient: tensor 0, element 0: ",
        [NONE_FOR_Y] = "gradient: tensor 1, element 0: no gradient, that is 0, differences give",
        [NOT_TRACED] = "gradient of gradient: tensor 1, element 0: ",
        [UNWANTED] = "gradient wanted: tensor 1 gets a gradient that nobody wants",
        [WRITES_GRAD] = "gradient writes: the derivative has changed its gradient",
        [WRITES_X] = "gradient writes: the derivative has changed tensor 0",
        [WRITES_RESULT] = "gradient writes: the derivative has changed the result",
        [CHANGES] = "gradient native: the compiled call gives other bits",
        [WRONG_SECOND] = "gradient of gradient: tensor 0, element 0: ",
        [BLIND] = "gradient strides: tensor 0 gets another gradient",
        [BY_WANTS] = "gradient wanted: tensor 1 gets another gradient where no other is wanted",
        [FAILS] = "gradient: etch_grad failed: no derivative today",
        [OTHER_SIZES] = "gradient: etch_grad failed: ",
    };
    static lie lie_of[LIES];
    ETCH_SCOPE {
        etch_tensor *x = etch_add_scalar(etch_rand(ETCH_F64, ETCH_SHAPE(3, 4)), 0.5);
        etch_tensor *y = etch_add_scalar(etch_rand(ETCH_F64, ETCH_SHAPE(3, 4)), 0.5);
        for (int k = 0; k < LIES; k++) {
            char schema[64];
            lie_of[k] = (lie)k;
            snprintf(schema, sizeof schema, "lie::derivative%d(Tensor x, Tensor y) -> Tensor", k);
            etch_op_definition d = {.struct_size = sizeof d,
                                    .cpu = square_times,
                                    .shape = like_first,
                                    .ctx = &lie_of[k],
                                    .derivative = lies};
            const etch_op *op = etch_op_register(schema, &d);
            assert_non_null(op);
            if (k) fault_is(op, x, y, found[k]);
            else honest(op, x, y, "derivative: checked\n");
            if (!k) honest(op, etch_to(x, ETCH_F32), etch_to(y, ETCH_F32), "derivative: checked\n");
        }
    }
}

/* An honest operator that breaks the graph, one that writes as declared, one that is random. */
TEST(declared_is_no_fault) {
    ETCH_SCOPE {
        etch_op_definition d = {
            .struct_size = sizeof d, .cpu = counts, .shape = like_first, .effects = true};
        const etch_op *op = etch_op_register("check::counts(Tensor a) -> Tensor", &d);
        etch_value arg = {.tag = ETCH_VALUE_TENSOR, .tensor = arange_f32(2, 2)};
        etch_op_sample sample = {&arg, 1};
        etch_status status = etch_opcheck(op, &sample, 1, report, sizeof report);
        assert_int_equal(status, ETCH_ERR_INVALID_ARGUMENT);
        assert_null(strstr(report, "purity"));
        assert_null(strstr(report, "graph breaks"));
        etch_dims size = ETCH_SHAPE(3, 3);
        etch_value ints = {.tag = ETCH_VALUE_INTS, .ints = size};
        sample = (etch_op_sample){&ints, 1};
        assert_int_equal(etch_opcheck(etch_op_find("rand"), &sample, 1, report, sizeof report),
                         ETCH_OK);
    }
}

TEST(reports) {
    ETCH_SCOPE {
        etch_value arg = {.tag = ETCH_VALUE_TENSOR, .tensor = arange_f32(2, 2)};
        etch_op_sample samples[2] = {{&arg, 1}, {&arg, 0}};
        const etch_op *op = etch_op_find("relu");
        assert_int_equal(etch_opcheck(op, samples, 2, report, sizeof report),
                         ETCH_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(report, "sample 1: sample: the plain call failed"));
        assert_null(strstr(report, "sample 0"));
        memset(report, 'x', sizeof report);
        etch_opcheck(op, samples, 2, report, 12);
        assert_int_equal(strlen(report), 11);
        assert_int_equal(report[12], 'x');
        assert_int_equal(etch_opcheck(op, samples, 1, NULL, 0), ETCH_OK);
        assert_int_equal(etch_opcheck(NULL, samples, 1, NULL, 0), ETCH_ERR_NULL);
        assert_int_equal(etch_opcheck(op, NULL, 1, NULL, 0), ETCH_ERR_NULL);
    }
}
