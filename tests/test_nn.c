/* softmax, layer norm, gelu, linear, convolution and the newer pointwise operators: against plain
 * references in double, against the same arithmetic spelled out in other operators (bit for bit,
 * which pins the order of sums), and compiled against eager.
 * Labels: device long optimised. */
#include <etch/etch.h>

#include "cpu_support.h"
#include "device_support.h"

static const char *const backends[] = {"eager", "native"};
static const etch_dtype float_types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};

/* The call gives NULL with this code and a text that holds `word`. */
#define REFUSED(code, word, call)                                                                  \
    do {                                                                                           \
        etch_clear_error();                                                                        \
        assert_null(test_settled(call));                                                           \
        ASSERT_REFUSED(code, word);                                                                \
    } while (0)

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

static double epsilon(etch_dtype d) {
    return d == ETCH_F64 ? 0x1p-52 : d == ETCH_F32 ? 0x1p-23 : d == ETCH_F16 ? 0x1p-10 : 0x1p-7;
}

/* Within `units` of the dtype's precision at the value (or at 1, whichever is
 * larger times scale). */
static void assert_near(const etch_tensor *t, int64_t i, double want, double scale, double units) {
    double have = get(t, i).d, e = epsilon(t->dtype);
    if (isnan(want) ? isnan(have) : want == have) return;
    double room = units * e * (fabs(want) + scale);
    if (fabs(have - want) <= room) return;
    fail_msg("element %lld of %s: want %.17g, have %.17g", (long long)i, etch_dtype_name(t->dtype),
             want, have);
}

/* The same arithmetic as these separate operators: bit for bit on the CPU. A device's rows have an
 * order of sums of their own, so there it is near; and for any strides of the operand the same. */
static void assert_spelled(etch_tensor *have, etch_tensor *spelled, etch_tensor *of_dense,
                           double scale, double units) {
    assert_true(same_tensor(have, of_dense));
    if (!have->device) assert_true(same_tensor(have, spelled));
    for (int64_t i = 0; i < have->numel; i++) assert_near(have, i, get(spelled, i).d, scale, units);
}

/* ---- softmax ---- */

typedef struct line {
    int64_t first, step, n; /* flat positions of one row */
} line;

static line line_of(const etch_tensor *t, int dim, int64_t flat) {
    line l = {0, 1, t->ndim ? t->size[dim] : 1};
    for (int d = dim + 1; d < t->ndim; d++) l.step *= t->size[d];
    l.first = t->ndim ? flat / (l.step * l.n) * l.step * l.n + flat % l.step : 0;
    return l;
}

/* In long double, so that f64 is checked as well. */
static void check_line(const etch_tensor *x, line l, const etch_tensor *y, const etch_tensor *z) {
    long double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < l.n; k++) top = fmaxl(top, get(x, l.first + k * l.step).d);
    for (int64_t k = 0; k < l.n; k++) sum += expl(get(x, l.first + k * l.step).d - top);
    for (int64_t k = 0; k < l.n; k++) {
        int64_t at = l.first + k * l.step;
        long double below = get(x, at).d - top;
        assert_near(y, at, (double)(expl(below) / sum), 0x1p-20, 16);
        assert_near(z, at, (double)(below - logl(sum)), 1, 4);
    }
}

static void check_softmax(etch_tensor *x, int dim) {
    etch_tensor *y = must(etch_softmax(x, dim)), *z = must(etch_log_softmax(x, dim - x->ndim));
    assert_true(y->contiguous && y->dtype == x->dtype && y->ndim == x->ndim);
    x = plain_numbers(x);
    for (int64_t i = 0; i < x->numel; i++) {
        line l = line_of(x, dim, i);
        if (l.first == i) check_line(x, l, y, z);
    }
}

TEST(softmax_values) {
    const etch_shape shapes[] = {ETCH_SHAPE(1),       ETCH_SHAPE(7),         ETCH_SHAPE(3, 5),
                                 ETCH_SHAPE(2, 600),  ETCH_SHAPE(9, 1),      ETCH_SHAPE(37, 41),
                                 ETCH_SHAPE(2, 3, 4), ETCH_SHAPE(2, 19, 35), ETCH_SHAPE(0, 4),
                                 ETCH_SHAPE(4, 0),    ETCH_SHAPE(131)};
    for (int s = 0; s < COUNT_OF(shapes); s++)
        for (int d = 0; d < COUNT_OF(float_types); d++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    etch_tensor *x = make(float_types[d], shapes[s], (layout)how, true);
                    for (int dim = 0; dim < x->ndim; dim++) check_softmax(x, dim);
                }
    ETCH_SCOPE { check_softmax(make(ETCH_F32, ETCH_SHAPE(), LAYOUT_ROW, true), 0); }
}

/* The same arithmetic as separate operators, in f32 or f64: pins the order of the sum. */
static etch_tensor *spelled_softmax(etch_tensor *x, int dim, bool log_form) {
    etch_dtype type = x->dtype == ETCH_F64 ? ETCH_F64 : ETCH_F32;
    etch_tensor *wide = must(etch_to(x, type));
    etch_tensor *d = must(etch_sub(wide, must(etch_amax(wide, ETCH_DIMS(dim), true))));
    etch_tensor *e = must(etch_exp(d)), *s = must(etch_sum_dim(e, ETCH_DIMS(dim), true));
    etch_tensor *y = log_form ? etch_sub(d, must(etch_log(s))) : etch_div(e, s);
    return must(etch_to(must(y), x->dtype));
}

TEST(softmax_bits) {
    const etch_shape shapes[] = {ETCH_SHAPE(3, 70),      ETCH_SHAPE(2, 9001), ETCH_SHAPE(4500, 21),
                                 ETCH_SHAPE(3, 130, 33), ETCH_SHAPE(70, 200), ETCH_SHAPE(9000, 40)};
    for (int s = 0; s < COUNT_OF(shapes); s++)
        for (int d = 0; d < COUNT_OF(float_types); d++)
            ETCH_SCOPE {
                etch_tensor *x = make(float_types[d], shapes[s], LAYOUT_GAPS, s % 2 == 0);
                etch_tensor *dense = must(etch_clone(x));
                for (int dim = 0; dim < x->ndim; dim++) {
                    assert_spelled(must(etch_softmax(x, dim)), spelled_softmax(x, dim, false),
                                   must(etch_softmax(dense, dim)), 0x1p-20, 16);
                    assert_spelled(must(etch_log_softmax(x, dim)), spelled_softmax(x, dim, true),
                                   must(etch_log_softmax(dense, dim)), 1, 4);
                }
            }
}

TEST(softmax_odd_rows) {
    ETCH_SCOPE {
        const double rows[4][3] = {{-INFINITY, -INFINITY, -INFINITY},
                                   {NAN, 1, 2},
                                   {-INFINITY, 0, 0},
                                   {-1.7e38, -1.7e38, 1}};
        etch_tensor *x = make_view(ETCH_F32, ETCH_SHAPE(4, 3), LAYOUT_COLUMN);
        for (int i = 0; i < 12; i++) put(x, i, real_number(rows[i / 3][i % 3]));
        etch_tensor *y = must(etch_softmax(x, 1)), *z = must(etch_log_softmax(x, 1));
        for (int i = 0; i < 6; i++) assert_true(isnan(get(y, i).d) && isnan(get(z, i).d));
        assert_true(get(y, 6).d == 0 && get(y, 7).d == 0.5 && get(y, 8).d == 0.5);
        assert_true(get(z, 6).d == -INFINITY);
        assert_true(get(y, 9).d == 0 && get(y, 11).d == 1);
        etch_tensor *one = must(etch_softmax(
            must(etch_mul_scalar(make(ETCH_F32, ETCH_SHAPE(5, 1), LAYOUT_ROW, true), -1.7e14)),
            -1));
        for (int i = 0; i < 5; i++) assert_true(get(one, i).d == 1);
    }
}

TEST(softmax_dtypes_and_errors) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_BF16, ETCH_SHAPE(3, 8), LAYOUT_ROW, true);
        etch_tensor *wide = must(etch_softmax_raw(x, 1, true));
        assert_int_equal(wide->dtype, ETCH_F32);
        etch_tensor *of_wide = must(etch_softmax(must(etch_to(x, ETCH_F32)), 1));
        assert_spelled(wide, of_wide, must(etch_softmax_raw(must(etch_clone(x)), 1, true)), 0, 4);
        assert_true(same_tensor(must(etch_softmax_as(x, 1, ETCH_F64)),
                                must(etch_softmax(must(etch_to(x, ETCH_F64)), 1))));
        etch_tensor *i = make(ETCH_I32, ETCH_SHAPE(3, 8), LAYOUT_ROW, true);
        assert_int_equal(must(etch_softmax_as(i, 1, ETCH_F32))->dtype, ETCH_F32);
        REFUSED(ETCH_ERR_DTYPE, "softmax.int: expected a floating dtype, got i32",
                etch_softmax(i, 1));
        REFUSED(ETCH_ERR_DTYPE, "half_to_float", etch_softmax_raw(wide, 1, true));
        REFUSED(ETCH_ERR_DIM_RANGE, "log_softmax.int", etch_log_softmax(x, 2));
        REFUSED(ETCH_ERR_DIM_RANGE, "softmax.int", etch_softmax(x, -3));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "ETCH_NONE", etch_softmax(ETCH_NONE, 0));
        REFUSED(ETCH_ERR_NULL, "", etch_softmax(NULL, 0));
    }
}

/* ---- layer norm ---- */

static void check_layer_norm(etch_tensor *x, etch_shape size, etch_tensor *w, etch_tensor *bias,
                             double eps) {
    etch_tensor *y = must(etch_layer_norm(x, size, w, bias, eps));
    int64_t n = 1;
    for (int d = 0; d < size.n; d++) n *= size.v[d];
    for (int64_t i = 0; i < x->numel; i++) {
        long double mean = 0, var = 0;
        for (int64_t k = 0; k < n; k++) mean += (long double)get(x, i / n * n + k).d / n;
        for (int64_t k = 0; k < n; k++) var += powl(get(x, i / n * n + k).d - mean, 2) / n;
        double v = (double)((get(x, i).d - mean) / sqrtl(var + eps));
        if (w != ETCH_NONE) v *= get(w, i % n).d;
        if (bias != ETCH_NONE) v += get(bias, i % n).d;
        /* what is lost in x - mean grows with the scale */
        assert_near(y, i, v, 8 + 8 / (double)sqrtl(var + eps), 8);
    }
}

TEST(layer_norm_values) {
    const etch_shape shapes[] = {ETCH_SHAPE(4, 6), ETCH_SHAPE(3, 130), ETCH_SHAPE(2, 5, 8),
                                 ETCH_SHAPE(0, 8), ETCH_SHAPE(4, 1),   ETCH_SHAPE(3, 2, 33)};
    for (int s = 0; s < COUNT_OF(shapes); s++)
        for (int d = 0; d < COUNT_OF(float_types); d++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    etch_tensor *x = make(float_types[d], shapes[s], (layout)how, true);
                    for (int n = 1; n < x->ndim; n++) {
                        etch_shape size = {.n = n};
                        memcpy(size.v, x->size + x->ndim - n, (size_t)n * sizeof *size.v);
                        etch_tensor *w = make(float_types[d], size, (layout)how, true);
                        etch_tensor *b = make(float_types[d], size, LAYOUT_ROW, true);
                        check_layer_norm(x, size, w, b, 1e-5);
                        check_layer_norm(x, size, ETCH_NONE, b, 0.5);
                        check_layer_norm(x, size, w, ETCH_NONE, 1e-5);
                        check_layer_norm(x, size, ETCH_NONE, ETCH_NONE, 1e-3);
                    }
                }
}

/* As separate operators: ((x - mean) * (1 / sqrt(var + eps))) * w + b. */
TEST(layer_norm_bits) {
    for (int64_t n = 60; n < 20000; n = n * 7 + 13)
        for (int d = 0; d < 2; d++)
            ETCH_SCOPE {
                etch_dtype t = float_types[d];
                etch_tensor *x = make(t, ETCH_SHAPE(3, n), LAYOUT_COLUMN, true);
                etch_tensor *w = make(t, ETCH_SHAPE(n), LAYOUT_ROW, true);
                etch_tensor *b = make(t, ETCH_SHAPE(n), LAYOUT_GAPS, true);
                etch_tensor *c = must(etch_sub(x, must(etch_mean_dim(x, ETCH_DIMS(1), true))));
                etch_tensor *var = must(etch_mean_dim(must(etch_mul(c, c)), ETCH_DIMS(1), true));
                etch_tensor *r = must(etch_rsqrt(must(etch_add_scalar(var, 1e-5))));
                etch_tensor *want = must(etch_add(must(etch_mul(must(etch_mul(c, r)), w)), b));
                etch_tensor *dense = must(etch_clone(x));
                assert_spelled(must(etch_layer_norm(x, ETCH_SHAPE(n), w, b, 1e-5)), want,
                               must(etch_layer_norm(dense, ETCH_SHAPE(n), w, b, 1e-5)), 8, 8);
            }
}

TEST(layer_norm_dtypes_and_errors) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F16, ETCH_SHAPE(3, 8), LAYOUT_ROW, true);
        etch_tensor *w = make(ETCH_F32, ETCH_SHAPE(8), LAYOUT_ROW, true);
        etch_tensor *seven = make(ETCH_F16, ETCH_SHAPE(7), LAYOUT_ROW, true);
        etch_tensor *i = make(ETCH_I32, ETCH_SHAPE(3, 8), LAYOUT_ROW, true);
        etch_tensor *f = make(ETCH_F32, ETCH_SHAPE(3, 8), LAYOUT_ROW, true);
        etch_tensor *d = make(ETCH_F64, ETCH_SHAPE(8), LAYOUT_ROW, true), *none = ETCH_NONE;
        check_layer_norm(x, ETCH_SHAPE(8), w, ETCH_NONE, 1e-5); /* f32 weights beside halves */
        put(f, 3, real_number(NAN));
        etch_tensor *y = must(etch_layer_norm(f, ETCH_SHAPE(8), none, none, 1e-5));
        assert_true(isnan(get(y, 0).d) && isfinite(get(y, 8).d));
        REFUSED(ETCH_ERR_SHAPE, "ends in sizes [7]",
                etch_layer_norm(x, ETCH_SHAPE(7), none, none, 1e-5));
        REFUSED(ETCH_ERR_SHAPE, "weight of sizes [8], got [7]",
                etch_layer_norm(x, ETCH_SHAPE(8), seven, none, 1e-5));
        REFUSED(ETCH_ERR_SHAPE, "bias", etch_layer_norm(x, ETCH_SHAPE(8), none, seven, 1e-5));
        REFUSED(ETCH_ERR_SHAPE, "normalized_shape",
                etch_layer_norm(x, ETCH_SHAPE(), none, none, 1e-5));
        REFUSED(ETCH_ERR_DTYPE, "floating", etch_layer_norm(i, ETCH_SHAPE(8), none, none, 1e-5));
        REFUSED(ETCH_ERR_DTYPE, "weight of f32, got f64",
                etch_layer_norm(f, ETCH_SHAPE(8), d, none, 1e-5));
        REFUSED(ETCH_ERR_NULL, "", etch_layer_norm(f, ETCH_SHAPE(8), NULL, none, 1e-5));
    }
}

/* ---- linear ---- */

TEST(linear_values) {
    const etch_shape shapes[] = {ETCH_SHAPE(9),          ETCH_SHAPE(5, 9), ETCH_SHAPE(2, 3, 9),
                                 ETCH_SHAPE(2, 2, 3, 9), ETCH_SHAPE(0, 9), ETCH_SHAPE(200, 9)};
    for (int s = 0; s < COUNT_OF(shapes); s++)
        for (int d = 0; d < COUNT_OF(float_types); d++)
            for (int how = 0; how < 3; how++)
                ETCH_SCOPE {
                    etch_dtype t = float_types[d];
                    etch_tensor *x = make(t, shapes[s], (layout)how, true);
                    etch_tensor *w = make(t, ETCH_SHAPE(4, 9), (layout)how, true);
                    etch_tensor *b = make(t, ETCH_SHAPE(4), LAYOUT_GAPS, true);
                    etch_tensor *y = must(etch_linear(x, w, b));
                    etch_tensor *z = must(etch_linear(x, w, ETCH_NONE));
                    assert_int_equal(y->ndim, x->ndim);
                    assert_int_equal(y->size[y->ndim - 1], 4);
                    for (int64_t i = 0; i < y->numel; i++) {
                        double sum = 0;
                        for (int k = 0; k < 9; k++)
                            sum += get(x, i / 4 * 9 + k).d * get(w, i % 4 * 9 + k).d;
                        assert_near(z, i, sum, 4, 4);
                        assert_near(y, i, sum + get(b, i % 4).d, 4, 4);
                    }
                }
}

TEST(linear_errors) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, ETCH_SHAPE(5, 9), LAYOUT_ROW, true);
        etch_tensor *w = make(ETCH_F32, ETCH_SHAPE(4, 9), LAYOUT_ROW, true);
        etch_tensor *b = make(ETCH_F32, ETCH_SHAPE(5), LAYOUT_ROW, true);
        etch_tensor *cube = make(ETCH_F32, ETCH_SHAPE(4, 3, 3), LAYOUT_ROW, true);
        REFUSED(ETCH_ERR_SHAPE, "linear: expected bias", etch_linear(x, w, b));
        REFUSED(ETCH_ERR_SHAPE, "weight with 1 or 2 dimensions", etch_linear(w, cube, ETCH_NONE));
        REFUSED(ETCH_ERR_SHAPE, "linear: expected input whose last",
                etch_linear(must(etch_t(x)), w, ETCH_NONE));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "\"weight\" is not optional",
                etch_linear(x, ETCH_NONE, ETCH_NONE));
        REFUSED(ETCH_ERR_NULL, "", etch_linear(x, w, NULL));
        /* by name, the bias left out, given as none, given */
        const etch_op *op = etch_op_find("linear");
        etch_tensor *out[3];
        etch_tensor *four = make(ETCH_F32, ETCH_SHAPE(4), LAYOUT_ROW, true);
        etch_value v[3] = {{.tag = ETCH_VALUE_TENSOR, .tensor = x},
                           {.tag = ETCH_VALUE_TENSOR, .tensor = w},
                           {.tag = ETCH_VALUE_NONE}};
        assert_int_equal(etch_op_call(op, v, 2, &out[0], 1), ETCH_OK);
        assert_int_equal(etch_op_call(op, v, 3, &out[1], 1), ETCH_OK);
        v[2] = (etch_value){.tag = ETCH_VALUE_TENSOR, .tensor = four};
        assert_int_equal(etch_op_call(op, v, 3, &out[2], 1), ETCH_OK);
        assert_true(same_tensor(out[0], out[1]));
        assert_true(same_tensor(out[2], must(etch_linear(x, w, four))));
        v[2] = (etch_value){.tag = ETCH_VALUE_BOOL};
        assert_int_equal(etch_op_call(op, v, 3, &out[2], 1), ETCH_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(etch_last_error(), "Tensor?"));
    }
}

/* ---- convolution ---- */

typedef struct conv_case {
    etch_shape x, w, stride, padding, dilation;
    int64_t groups;
} conv_case;

static double conv_of(const conv_case *c, const etch_tensor *x, const etch_tensor *w,
                      const etch_tensor *y, int64_t flat) {
    int64_t ow = flat % y->size[3], oh = flat / y->size[3] % y->size[2];
    int64_t oc = flat / y->size[3] / y->size[2] % y->size[1];
    int64_t n = flat / y->size[3] / y->size[2] / y->size[1];
    int64_t first = oc / (w->size[0] / c->groups) * w->size[1];
    double sum = 0;
    for (int64_t ic = 0; ic < w->size[1]; ic++)
        for (int64_t kh = 0; kh < w->size[2]; kh++)
            for (int64_t kw = 0; kw < w->size[3]; kw++) {
                int last = c->stride.n - 1, plast = c->padding.n - 1, dlast = c->dilation.n - 1;
                int64_t ih = oh * c->stride.v[0] - c->padding.v[0] + kh * c->dilation.v[0];
                int64_t iw =
                    ow * c->stride.v[last] - c->padding.v[plast] + kw * c->dilation.v[dlast];
                if (ih < 0 || iw < 0 || ih >= x->size[2] || iw >= x->size[3]) continue;
                int64_t at = ((n * x->size[1] + first + ic) * x->size[2] + ih) * x->size[3] + iw;
                int64_t wt = ((oc * w->size[1] + ic) * w->size[2] + kh) * w->size[3] + kw;
                sum += get(x, at).d * get(w, wt).d;
            }
    return sum;
}

#define S ETCH_SHAPE
static const conv_case conv_cases[] = {
    {S(2, 3, 7, 8), S(5, 3, 3, 3), S(1), S(1), S(1), 1},
    {S(1, 4, 9, 6), S(6, 2, 3, 2), S(2, 1), S(0, 2), S(1), 2},
    {S(3, 6, 5, 5), S(6, 1, 3, 3), S(1), S(1), S(1), 6},
    {S(1, 2, 11, 12), S(3, 2, 3, 3), S(1), S(2), S(3, 2), 1},
    {S(2, 8, 6, 7), S(4, 8, 1, 1), S(1), S(0), S(1), 1},
    {S(2, 8, 6, 7), S(4, 8, 1, 1), S(3), S(1), S(1), 1},
    {S(1, 1, 1, 1), S(1, 1, 1, 1), S(1), S(0), S(1), 1},
    {S(1, 1, 2, 2), S(2, 1, 5, 5), S(1), S(4), S(1), 1},
    {S(1, 3, 4, 40), S(2, 3, 2, 3), S(1, 4), S(3, 9), S(1), 1},
    {S(0, 3, 7, 8), S(5, 3, 3, 3), S(1), S(1), S(1), 1},
    {S(1, 5, 40, 33), S(3, 5, 3, 3), S(1), S(1), S(1), 1}, /* several tiles */
    {S(11, 2, 8, 8), S(3, 2, 3, 3), S(1), S(1), S(1), 1},  /* several images a tile */
    {S(19, 6, 5, 6), S(4, 3, 2, 3), S(2), S(1), S(1, 2), 2},
    {S(2, 4, 17, 19), S(6, 2, 1, 1), S(1), S(0), S(1), 2}, /* the input is the matrix */
};

TEST(convolution_values) {
    for (int k = 0; k < COUNT_OF(conv_cases); k++)
        for (int d = 0; d < COUNT_OF(float_types); d++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    const conv_case *c = &conv_cases[k];
                    etch_dtype t = float_types[d];
                    etch_tensor *x = make(t, c->x, (layout)how, true);
                    etch_tensor *w =
                        make(t, c->w, how == LAYOUT_GAPS ? LAYOUT_COLUMN : LAYOUT_ROW, true);
                    etch_tensor *b = make(t, S(c->w.v[0]), (layout)how, true);
                    etch_tensor *y =
                        must(etch_conv2d(x, w, b, c->stride, c->padding, c->dilation, c->groups));
                    etch_tensor *z = must(etch_convolution(x, w, ETCH_NONE, c->stride, c->padding,
                                                           c->dilation, c->groups));
                    assert_int_equal(y->size[0], c->x.v[0]);
                    assert_true(y->numel > 0 || c->x.v[0] == 0);
                    etch_tensor *px = plain_numbers(x), *pw = plain_numbers(w);
                    for (int64_t i = 0; i < y->numel; i++) {
                        double sum = conv_of(c, px, pw, y, i);
                        int64_t channel = i / y->size[2] / y->size[3] % y->size[1];
                        assert_near(z, i, sum, 16, 8);
                        assert_near(y, i, sum + get(b, channel).d, 16, 8);
                    }
                }
}

TEST(convolution_threads_and_batches) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(3, 16, 30, 31), LAYOUT_ROW, true), *first = NULL;
        etch_tensor *w = make(ETCH_F32, S(24, 16, 3, 3), LAYOUT_ROW, true), *none = ETCH_NONE;
        for (int threads = 1; threads <= 4; threads++) {
            etch_set_num_threads(threads);
            etch_tensor *y = must(etch_conv2d(x, w, none, S(1), S(1), S(1), 1));
            if (!first) first = y;
            assert_true(same_tensor(first, y));
        }
        etch_set_num_threads(2);
        etch_tensor *small = make(ETCH_F32, S(37, 3, 7, 7), LAYOUT_ROW, true); /* shared tiles */
        etch_tensor *v = make(ETCH_F32, S(5, 3, 3, 3), LAYOUT_ROW, true);
        etch_tensor *y = must(etch_conv2d(small, v, none, S(1), S(1), S(1), 1));
        etch_set_num_threads(1);
        assert_true(same_tensor(y, must(etch_conv2d(small, v, none, S(1), S(1), S(1), 1))));
        etch_set_num_threads(2);
        /* one image without its batch dimension; an image's bits do not depend on the others */
        etch_tensor *single =
            must(etch_conv2d(must(etch_select(x, 0, 1)), w, none, S(1), S(1), S(1), 1));
        assert_int_equal(single->ndim, 3);
        assert_true(same_tensor(single, must(etch_select(first, 0, 1))));
    }
}

/* A sum and that of the absolute values. */
typedef struct exact_sum {
    long double sum, size;
} exact_sum;

static void add_product(exact_sum *s, double a, double b) {
    s->sum += a * b, s->size += fabs(a * b);
}

/* The products that a result's element is the sum of, one after the other: what it passes back. x
 * and w are row-major doubles. */
static void pass_back(const conv_case *c, const etch_tensor *x, const etch_tensor *w,
                      const etch_tensor *g, int64_t flat, exact_sum *dx, exact_sum *dw) {
    int64_t ow = flat % g->size[3], oh = flat / g->size[3] % g->size[2];
    int64_t oc = flat / g->size[3] / g->size[2] % g->size[1];
    int64_t n = flat / g->size[3] / g->size[2] / g->size[1];
    int64_t first = oc / (w->size[0] / c->groups) * w->size[1];
    int64_t wt = oc * w->size[1] * w->size[2] * w->size[3];
    const double *xs = etch__ptr(x), *ws = etch__ptr(w), v = get(g, flat).d;
    for (int64_t ic = first; ic < first + w->size[1]; ic++)
        for (int64_t kh = 0; kh < w->size[2]; kh++)
            for (int64_t kw = 0; kw < w->size[3]; kw++, wt++) {
                int64_t ih = oh * c->stride.v[0] - c->padding.v[0] + kh * c->dilation.v[0];
                int64_t iw = ow * c->stride.v[c->stride.n - 1] - c->padding.v[c->padding.n - 1] +
                             kw * c->dilation.v[c->dilation.n - 1];
                if (ih < 0 || iw < 0 || ih >= x->size[2] || iw >= x->size[3]) continue;
                int64_t at = ((n * x->size[1] + ic) * x->size[2] + ih) * x->size[3] + iw;
                add_product(&dx[at], v, ws[wt]);
                add_product(&dw[wt], v, xs[at]);
            }
}

#define BACK(to, c, g, other, size)                                                                \
    must(etch_convolution_backward_##to(g, other, size, (c)->stride, (c)->padding, (c)->dilation,  \
                                        (c)->groups))

static void check_pass_back(const conv_case *c, etch_dtype t, layout how) {
    etch_tensor *x = make(t, c->x, how, true), *w = make(t, c->w, how, true);
    etch_tensor *y =
        must(etch_convolution(x, w, ETCH_NONE, c->stride, c->padding, c->dilation, c->groups));
    etch_tensor *g = make(t, etch_sizes(y), how, true);
    etch_tensor *to_x = BACK(input, c, g, w, c->x), *to_w = BACK(weight, c, g, x, c->w);
    exact_sum *dx = calloc((size_t)x->numel + 1, sizeof *dx);
    exact_sum *dw = calloc((size_t)w->numel + 1, sizeof *dw);
    etch_tensor *px = plain_numbers(x), *pw = plain_numbers(w);
    for (int64_t i = 0; i < g->numel; i++) pass_back(c, px, pw, g, i, dx, dw);
    for (int k = 0; k < 4; k++)
        assert_true(to_x->size[k] == c->x.v[k] && to_w->size[k] == c->w.v[k]);
    for (int64_t i = 0; i < x->numel; i++)
        assert_near(to_x, i, (double)dx[i].sum, (double)dx[i].size, 16);
    for (int64_t i = 0; i < w->numel; i++)
        assert_near(to_w, i, (double)dw[i].sum, (double)dw[i].size, 16);
    free(dx);
    free(dw);
}

TEST(convolution_backward_values) {
    static const conv_case more[] = {
        {S(20, 3, 9, 9), S(150, 3, 3, 3), S(1), S(1), S(1), 1}, /* many output channels */
        {S(2, 40, 6, 5), S(4, 40, 3, 3), S(2), S(1), S(1), 1},  /* many input channels */
        {S(2, 2, 3, 4), S(4, 1, 1, 2), S(3, 2), S(5, 3), S(1, 2), 2},
    };
    for (int k = 0; k < COUNT_OF(conv_cases) + COUNT_OF(more); k++)
        for (int d = 0; d < COUNT_OF(float_types); d++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    int rest = k - COUNT_OF(conv_cases);
                    check_pass_back(rest < 0 ? &conv_cases[k] : &more[rest], float_types[d],
                                    (layout)how);
                }
}

static void check_back_threads(const conv_case *c) {
    etch_tensor *x = make(ETCH_F32, c->x, LAYOUT_ROW, true), *first[2] = {NULL};
    etch_tensor *w = make(ETCH_F32, c->w, LAYOUT_ROW, true);
    etch_shape sizes = S(c->x.v[0], c->w.v[0], c->x.v[2], c->x.v[3]);
    etch_tensor *g = make(ETCH_F32, sizes, LAYOUT_ROW, true);
    for (int threads = 1; threads <= 4; threads++) {
        etch_set_num_threads(threads);
        etch_tensor *back[2] = {BACK(input, c, g, w, c->x), BACK(weight, c, g, x, c->w)};
        for (int k = 0; k < 2; k++) {
            if (!first[k]) first[k] = back[k];
            assert_true(same_tensor(first[k], back[k]));
        }
    }
    etch_set_num_threads(2);
}

TEST(convolution_backward_threads) {
    static const conv_case cases[] = {
        {S(9, 6, 20, 21), S(140, 6, 3, 3), S(1), S(1), S(1), 1},
        {S(37, 40, 6, 5), S(8, 40, 3, 3), S(1), S(1), S(1), 1}, /* shared tiles */
    };
    for (int k = 0; k < COUNT_OF(cases); k++)
        ETCH_SCOPE { check_back_threads(&cases[k]); }
}

TEST(convolution_backward_errors) {
    ETCH_SCOPE {
        etch_tensor *g = make(ETCH_F32, S(1, 6, 3, 3), LAYOUT_ROW, true);
        etch_tensor *w = make(ETCH_F32, S(6, 4, 3, 3), LAYOUT_ROW, true);
        etch_tensor *i = must(etch_to(g, ETCH_I32)), *d = must(etch_to(w, ETCH_F64));
        etch_shape one = S(1), none = S(0), x = S(1, 4, 5, 5);
#define INPUT(g, w, size) etch_convolution_backward_input(g, w, size, one, none, one, 1)
#define WEIGHT(g, x, size) etch_convolution_backward_weight(g, x, size, one, none, one, 1)
        must(INPUT(g, w, x));
        REFUSED(ETCH_ERR_SHAPE, "grad_output of sizes [1, 6, 4, 3], got [1, 6, 3, 3]",
                INPUT(g, w, S(1, 4, 6, 5)));
        REFUSED(ETCH_ERR_SHAPE, "4 sizes", INPUT(g, w, S(1, 4, 5)));
        REFUSED(ETCH_ERR_SHAPE, "4 sizes", INPUT(g, w, S(1, 4, -5, 5)));
        REFUSED(ETCH_ERR_SHAPE, "input channels", INPUT(g, w, S(1, 3, 5, 5)));
        REFUSED(ETCH_ERR_SHAPE, "weight with 4 dimensions",
                INPUT(g, must(etch_select(w, 0, 0)), x));
        REFUSED(ETCH_ERR_SHAPE, "does not fit", WEIGHT(g, must(INPUT(g, w, x)), S(6, 4, 6, 3)));
        REFUSED(ETCH_ERR_DTYPE, "one dtype", INPUT(g, d, x));
        REFUSED(ETCH_ERR_DTYPE, "floating", INPUT(i, must(etch_to(w, ETCH_I32)), x));
    }
}

TEST(convolution_odd_values) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(1, 1, 5, 5), LAYOUT_ROW, true);
        etch_tensor *w = make(ETCH_F32, S(1, 1, 3, 3), LAYOUT_ROW, true);
        put(x, 0, real_number(NAN)), put(x, 24, real_number(INFINITY));
        etch_tensor *y = must(etch_conv2d(x, w, ETCH_NONE, S(1), S(0), S(1), 1));
        assert_true(isnan(get(y, 0).d) && isfinite(get(y, 1).d) && !isfinite(get(y, 8).d));
    }
}

TEST(convolution_errors) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(1, 4, 5, 5), LAYOUT_ROW, true), *none = ETCH_NONE;
        etch_tensor *w = make(ETCH_F32, S(6, 4, 3, 3), LAYOUT_ROW, true);
        etch_tensor *b = make(ETCH_F32, S(5), LAYOUT_ROW, true);
        etch_tensor *d = make(ETCH_F64, S(1, 4, 5, 5), LAYOUT_ROW, true);
        etch_tensor *i = make(ETCH_I32, S(1, 4, 5, 5), LAYOUT_ROW, true);
        etch_tensor *flat = make(ETCH_F32, S(4, 5), LAYOUT_ROW, true);
        REFUSED(ETCH_ERR_SHAPE, "bias of sizes [6], got [5]",
                etch_conv2d(x, w, b, S(1), S(0), S(1), 1));
        REFUSED(ETCH_ERR_SHAPE, "4 dimensions", etch_conv2d(flat, w, none, S(1), S(0), S(1), 1));
        REFUSED(ETCH_ERR_SHAPE, "input channels", etch_conv2d(x, w, none, S(1), S(0), S(1), 2));
        REFUSED(ETCH_ERR_SHAPE, "does not fit", etch_conv2d(x, w, none, S(1), S(0), S(3), 1));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "stride", etch_conv2d(x, w, none, S(0), S(0), S(1), 1));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "padding",
                etch_conv2d(x, w, none, S(1), S(-1), S(1), 1));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "dilation",
                etch_conv2d(x, w, none, S(1), S(0), S(1, 0), 1));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "1 or 2 values of stride",
                etch_conv2d(x, w, none, S(1, 1, 1), S(0), S(1), 1));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "groups", etch_conv2d(x, w, none, S(1), S(0), S(1), 4));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "groups", etch_conv2d(x, w, none, S(1), S(0), S(1), 0));
        REFUSED(ETCH_ERR_DTYPE, "one dtype", etch_conv2d(d, w, none, S(1), S(0), S(1), 1));
        etch_tensor *truth = must(etch_ne_scalar(i, 0));
        REFUSED(ETCH_ERR_DTYPE, "bool", etch_conv2d(truth, truth, none, S(1), S(0), S(1), 1));
        /* defaults by name */
        const etch_op *op = etch_op_find("aten::conv2d");
        etch_tensor *out = NULL;
        etch_value v[2] = {{.tag = ETCH_VALUE_TENSOR, .tensor = x},
                           {.tag = ETCH_VALUE_TENSOR, .tensor = w}};
        assert_int_equal(etch_op_call(op, v, 2, &out, 1), ETCH_OK);
        assert_true(same_tensor(out, must(etch_conv2d(x, w, none, S(1), S(0), S(1), 1))));
    }
}

/* ---- compiled ---- */

static etch_tensor *weight, *bias_of, *kernel;

static etch_tensor *network(etch_tensor *x) {
    etch_tensor *h = etch_linear(x, weight, bias_of);
    etch_tensor *g = etch_gelu(h);
    etch_tensor *t = etch_gelu_with(h, true);
    etch_tensor *s = etch_add(g, t);
    etch_tensor *n = etch_layer_norm(s, ETCH_SHAPE(20), bias_of, ETCH_NONE, 1e-5);
    etch_tensor *a = etch_softmax(n, -1);
    etch_tensor *l = etch_log_softmax(a, 0);
    return etch_silu(l);
}

static etch_tensor *pictures(etch_tensor *x) {
    etch_tensor *y =
        etch_conv2d(x, kernel, ETCH_NONE, ETCH_SHAPE(1), ETCH_SHAPE(1), ETCH_SHAPE(1), 1);
    etch_tensor *r = etch_relu(y);
    return etch_softmax(r, 1);
}

static etch_tensor *roundings(etch_tensor *x) {
    etch_tensor *big = etch_mul_scalar(x, 3.7);
    etch_tensor *f = etch_floor(big);
    etch_tensor *c = etch_ceil(big);
    etch_tensor *t = etch_trunc(big);
    etch_tensor *r = etch_round(big);
    etch_tensor *p = etch_frac(big);
    etch_tensor *s = etch_sign(big);
    etch_tensor *k = etch_clamp(big, -2.5, 1.25);
    etch_tensor *m = etch_remainder_scalar(big, 0.7);
    etch_tensor *q = etch_floor_divide_scalar(big, 0.7);
    etch_tensor *n = etch_isnan(x);
    etch_tensor *parts[] = {f, c, t, r, p, s, k, m, q, n};
    etch_tensor *all = etch_cat(parts, 10, 0);
    return all;
}

static etch_tensor *functions(etch_tensor *x) {
    etch_tensor *parts[] = {etch_erf(x),    etch_exp2(x),      etch_expm1(x), etch_log2(x),
                            etch_log10(x),  etch_log1p(x),     etch_tan(x),   etch_asin(x),
                            etch_acos(x),   etch_atan(x),      etch_sinh(x),  etch_cosh(x),
                            etch_square(x), etch_reciprocal(x)};
    return etch_cat(parts, COUNT_OF(parts), 0);
}

static etch_tensor *bits(etch_tensor *x) {
    etch_tensor *other = etch_mul_scalar(x, 5);
    etch_tensor *parts[] = {etch_bitwise_and(x, other),    etch_bitwise_or(x, other),
                            etch_bitwise_xor(x, other),    etch_bitwise_not(x),
                            etch_left_shift(x, other),     etch_right_shift(x, other),
                            etch_left_shift_scalar(x, 3),  etch_right_shift_scalar(x, 100),
                            etch_clamp(x, -1000, 1000),    etch_floor_divide_scalar(x, -3),
                            etch_remainder_scalar(x, -3),  etch_fmod_scalar(x, 3),
                            etch_bitwise_xor_scalar(x, 77)};
    return etch_cat(parts, COUNT_OF(parts), 0);
}

/* An absent operand beside a write to an input. */
static etch_tensor *writes(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar_(x, 1);
    etch_tensor *n = etch_layer_norm(y, ETCH_SHAPE(12), ETCH_NONE, ETCH_NONE, 1e-5);
    etch_tensor *l = etch_linear(n, weight, ETCH_NONE);
    return etch_add(l, l);
}

/* Twice compiled (recorded, then run from the plan) against twice eager. */
static void compiled_as_eager(etch_fn1 fn, etch_tensor *x) {
    etch_tensor *want = must(fn(x));
    for (int b = 0; b < COUNT_OF(backends); b++) {
        etch_function *f = etch_compile(fn, .backend = backends[b], .fullgraph = true);
        assert_non_null(f);
        for (int call = 0; call < 3; call++) {
            etch_tensor *y = must(etch_call(f, x));
            if (!etch_bitwise_equal(want, y))
                fail_msg("%s, call %d of %s", backends[b], call, etch_dtype_name(x->dtype));
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        assert_true(etch_function_counters(f).plan_runs >= 2);
        etch_function_free(f);
    }
}

TEST(compiled) {
    for (int d = 0; d < COUNT_OF(float_types); d++)
        ETCH_SCOPE {
            etch_dtype t = float_types[d];
            layout how = (layout)(d % 3);
            weight = make(t, S(20, 12), LAYOUT_ROW, true);
            bias_of = make(t, S(20), LAYOUT_ROW, true);
            kernel = make(t, S(6, 3, 3, 3), LAYOUT_ROW, true);
            compiled_as_eager(network, make(t, S(30, 12), (layout)how, true));
            compiled_as_eager(network, make(t, S(2, 5, 12), (layout)how, true));
            compiled_as_eager(writes, make(t, S(30, 12), (layout)how, true));
            compiled_as_eager(pictures, make(t, S(2, 3, 9, 7), (layout)how, true));
            compiled_as_eager(roundings, make(t, S(40, 31), (layout)how, false));
            compiled_as_eager(functions, make(t, S(20, 31), (layout)how, false));
        }
    const etch_dtype ints[] = {ETCH_I8, ETCH_I16, ETCH_I32, ETCH_I64};
    for (int d = 0; d < COUNT_OF(ints); d++)
        ETCH_SCOPE { compiled_as_eager(bits, make(ints[d], S(13, 29), LAYOUT_GAPS, false)); }
}

/* gelu fuses with its neighbours: one kernel. */
static etch_tensor *gelu_chain(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *g = etch_gelu(y);
    etch_tensor *f = etch_floor(g);
    return etch_sub(g, f);
}

TEST(gelu_fuses) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(33, 65), LAYOUT_ROW, true);
        must(gelu_chain(x)); /* on a device eager operators have kernels as well */
        int64_t before = etch_counters().kernels;
        etch_function *f = etch_compile(gelu_chain, .backend = "native");
        etch_tensor *y = must(etch_call(f, x));
        assert_true(etch_bitwise_equal(y, must(gelu_chain(x))));
        assert_int_equal(etch_counters().kernels - before, 1);
        etch_function_free(f);
    }
}

/* ---- division by zero ---- */

static etch_tensor *divides(etch_tensor *x, etch_tensor *y) {
    etch_tensor *unused = etch_remainder(x, y);
    etch_tensor *sum = etch_add(x, y);
    return unused ? sum : NULL;
}

TEST(division_by_zero) {
    ETCH_SCOPE {
        etch_tensor *x = must(etch_full(ETCH_I32, S(4), 7)), *z = must(etch_zeros(ETCH_I32, S(4)));
        etch_tensor *y = must(etch_full(ETCH_I32, S(4), -2));
        REFUSED(ETCH_ERR_DIVISION_BY_ZERO, "remainder", etch_remainder(x, z));
        REFUSED(ETCH_ERR_DIVISION_BY_ZERO, "fmod", etch_fmod_scalar(x, 0));
        REFUSED(ETCH_ERR_DIVISION_BY_ZERO, "floor_divide", etch_floor_divide(x, must(etch_t(z))));
        etch_tensor *small = must(etch_full(ETCH_I8, S(4), 7)); /* 256 is 0 in i8 */
        REFUSED(ETCH_ERR_DIVISION_BY_ZERO, "fmod", etch_fmod_scalar(small, 256));
        /* a 0-d tensor does not widen the others: 65536 is 0 in 16 bits */
        etch_tensor *narrow = must(etch_to(x, ETCH_I16));
        etch_tensor *wide = must(etch_full(ETCH_I64, ETCH_SHAPE(), 65536));
        REFUSED(ETCH_ERR_DIVISION_BY_ZERO, "remainder", etch_remainder(narrow, wide));
        REFUSED(ETCH_ERR_DIVISION_BY_ZERO, "floor_divide", etch_floor_divide(narrow, wide));
        assert_non_null(
            etch_remainder(must(etch_empty(ETCH_I32, S(0))), must(etch_empty(ETCH_I32, S(0)))));
        for (int b = 0; b < COUNT_OF(backends); b++) {
            etch_function *f = etch_compile(divides, .backend = backends[b]);
            for (int call = 0; call < 3; call++) must(etch_call(f, x, y));
            etch_clear_error();
            /* the result does not depend on it, but the operator is never removed */
            etch_tensor *r = test_settled(etch_call(f, x, z));
            assert_int_equal(etch_last_status(), ETCH_ERR_DIVISION_BY_ZERO);
            assert_non_null(strstr(etch_last_error(), "remainder"));
            etch_clear_error();
            (void)r;
            must(etch_call(f, x, y));
            etch_function_free(f);
        }
    }
}

/* ---- promised results ---- */

static double one_real(etch_tensor *t) { return get(must(t), 0).d; }
static int64_t one_int(etch_tensor *t) { return get(must(t), 0).i; }

TEST(promised_results) {
    ETCH_SCOPE {
        etch_tensor *i = must(etch_full(ETCH_I32, S(1), -7)),
                    *two = must(etch_full(ETCH_I32, S(1), 2));
        assert_int_equal(one_int(etch_floor_divide(i, two)), -4);
        etch_tensor *three = must(etch_full(ETCH_I32, S(1), 3));
        assert_int_equal(one_int(etch_remainder(i, three)), 2);
        assert_int_equal(one_int(etch_fmod(i, three)), -1);
        etch_tensor *least = must(etch_full(ETCH_I32, S(1), INT32_MIN));
        assert_int_equal(one_int(etch_floor_divide_scalar(least, -1)), INT32_MIN);
        assert_int_equal(one_int(etch_remainder_scalar(least, -1)), 0);
        etch_tensor *k = must(etch_full(ETCH_I64, S(1), 1000));
        assert_int_equal(one_int(etch_left_shift_scalar(k, 64)), 0);
        assert_int_equal(one_int(etch_right_shift_scalar(k, 64)), 0);
        assert_int_equal(one_int(etch_right_shift_scalar(must(etch_full(ETCH_I32, S(1), -1)), 31)),
                         -1);
        etch_tensor *small = must(etch_full(ETCH_I8, S(1), -100));
        etch_tensor *same = must(etch_clamp(small, -1000, 1000));
        assert_int_equal(same->dtype, ETCH_I8);
        assert_int_equal(one_int(same), -100);
        assert_int_equal(must(etch_clamp_min(small, 0.5))->dtype, ETCH_F32);
        etch_tensor *one = must(etch_full(ETCH_F64, S(1), 1.0)),
                    *half = must(etch_full(ETCH_F64, S(1), 0.5));
        etch_tensor *six = must(etch_full(ETCH_F64, S(1), 6.0));
        assert_true(one_real(etch_floor_divide_scalar(one, 0.1)) == 9);
        assert_true(one_real(etch_floor_divide_scalar(half, 0.1)) == 4);
        assert_true(one_real(etch_floor_divide_scalar(six, 0.2)) == 29);
        double r = one_real(etch_remainder_scalar(must(etch_full(ETCH_F64, S(1), 1e10)), 1e-20));
        assert_true(r >= 0 && r < 1e-20);
        etch_tensor *b = must(etch_full(ETCH_BF16, S(1), 1.703125));
        assert_true(same_number(get(must(etch_fmod_scalar(b, 1.7)), 0), real_number(0.0)));
        assert_true(
            same_number(get(must(etch_fmod_scalar(must(etch_neg(b)), 1.7)), 0), real_number(-0.0)));
        etch_tensor *nan = must(etch_full(ETCH_F16, S(1), NAN));
        assert_true(isnan(one_real(etch_clamp_min(nan, 0.5))));
        assert_true(isnan(one_real(etch_clamp(nan, 0, 1))));
        etch_tensor *zero = must(etch_full(ETCH_F32, S(1), -0.0));
        assert_true(same_number(get(must(etch_frac(zero)), 0), real_number(0.0)));
        assert_true(same_number(get(must(etch_floor(zero)), 0), real_number(-0.0)));
        assert_true(one_real(etch_round(must(etch_full(ETCH_F32, S(1), 2.5)))) == 2);
        assert_true(isinf(one_real(etch_square(must(etch_full(ETCH_F32, S(1), 3.4e38))))));
        REFUSED(ETCH_ERR_DTYPE, "integers", etch_bitwise_and(one, one));
        REFUSED(ETCH_ERR_DTYPE, "integers", etch_left_shift(one, one));
        REFUSED(ETCH_ERR_DTYPE, "floating", etch_gelu(i));
        REFUSED(ETCH_ERR_DTYPE, "bool", etch_clamp(must(etch_eq(one, one)), (bool)0, (bool)1));
    }
}

/* ---- what a mode sees ---- */

static char seen[512];

static etch_status note(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                        etch_tensor **out, int nout) {
    (void)ctx, (void)args, (void)nargs, (void)out, (void)nout;
    strcat(strcat(seen, etch_op_name(op)), " ");
    return ETCH_DECLINED;
}

static const char *parts_of(etch_mode *m, int which, etch_tensor *x) {
    seen[0] = 0;
    ETCH_WITH_MODE (m) {
        if (which == 0) must(etch_linear(x, weight, bias_of));
        if (which == 1) must(etch_softmax(x, 1));
        if (which == 2) must(etch_conv2d(x, kernel, ETCH_NONE, S(1), S(0), S(1), 1));
        if (which == 3) must(etch_layer_norm(x, S(4), ETCH_NONE, ETCH_NONE, 1e-5));
    }
    return seen;
}

TEST(modes_see) {
    ETCH_SCOPE {
        weight = make(ETCH_F32, S(3, 4), LAYOUT_ROW, true);
        bias_of = make(ETCH_F32, S(3), LAYOUT_ROW, true);
        kernel = make(ETCH_F32, S(1, 1, 2, 2), LAYOUT_ROW, true);
        etch_tensor *x = make(ETCH_F32, S(2, 4), LAYOUT_ROW, true);
        etch_tensor *image = make(ETCH_F32, S(1, 1, 4, 4), LAYOUT_ROW, true);
        etch_mode *plain = etch_mode_new(note, NULL, .name = "plain");
        etch_mode *whole = etch_mode_new(note, NULL, .name = "whole", .composite = true);
        assert_string_equal(parts_of(plain, 0, x), "t addmm ");
        assert_string_equal(parts_of(plain, 1, x), "_softmax ");
        assert_string_equal(parts_of(plain, 2, image), "convolution ");
        assert_string_equal(parts_of(plain, 3, x), "native_layer_norm ");
        assert_string_equal(parts_of(whole, 0, x), "linear t addmm ");
        assert_string_equal(parts_of(whole, 1, x), "softmax.int _softmax ");
        assert_string_equal(parts_of(whole, 2, image), "conv2d convolution ");
        ETCH_INFERENCE { assert_string_equal(parts_of(plain, 0, x), "linear t addmm "); }
        etch_mode_free(plain);
        etch_mode_free(whole);
    }
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
