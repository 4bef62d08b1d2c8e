/* Shape and dtype inference: ATen's results, and an error with code and words for each wrong call.
 * Labels: quick. */
#include "infer_util.h"

#include <math.h>

#define I(v) etch_scalar_int(v)
#define R(v) etch_scalar_real(v)
#define B(v) etch_scalar_bool(v)
#define S ETCH_SHAPE

static etch_tensor f23, f3, f23t, d23, i23, l23, u23, b23, f0, d0, i0, b0, bf23, h23;

static void make_tensors(void) {
    f23 = meta(ETCH_F32, S(2, 3)), f3 = meta(ETCH_F32, S(3)), d23 = meta(ETCH_F64, S(2, 3));
    f23t = strided(ETCH_F32, S(2, 3), S(1, 2), 0);
    i23 = meta(ETCH_I32, S(2, 3)), l23 = meta(ETCH_I64, S(2, 3)), u23 = meta(ETCH_U8, S(2, 3));
    b23 = meta(ETCH_BOOL, S(2, 3)), bf23 = meta(ETCH_BF16, S(2, 3)), h23 = meta(ETCH_F16, S(2, 3));
    f0 = meta(ETCH_F32, S()), d0 = meta(ETCH_F64, S()), i0 = meta(ETCH_I64, S());
    b0 = meta(ETCH_BOOL, S());
}

/* ---- dtypes ---- */

TEST(promotes_as_aten) {
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&f23, &f23));
    GIVES(OP_MUL_TENSOR, ETCH_F64, ETCH_F64, S(2, 3), TENSORS(&f23, &d23));
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&f23, &l23));
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&bf23, &h23));
    GIVES(OP_MUL_TENSOR, ETCH_BF16, ETCH_BF16, S(2, 3), TENSORS(&bf23, &l23));
    GIVES(OP_MUL_TENSOR, ETCH_I64, ETCH_I64, S(2, 3), TENSORS(&i23, &l23));
    GIVES(OP_MUL_TENSOR, ETCH_BOOL, ETCH_BOOL, S(2, 3), TENSORS(&b23, &b23));
    /* a 0-d tensor decides only by a higher kind */
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&f23, &d0));
    GIVES(OP_MUL_TENSOR, ETCH_F64, ETCH_F64, S(2, 3), TENSORS(&i23, &d0));
    GIVES(OP_MUL_TENSOR, ETCH_I32, ETCH_I32, S(2, 3), TENSORS(&i0, &i23));
    GIVES(OP_MUL_TENSOR, ETCH_I64, ETCH_I64, S(2, 3), TENSORS(&b23, &i0));
    GIVES(OP_MUL_TENSOR, ETCH_F64, ETCH_F64, S(), TENSORS(&f0, &d0));
    /* and so does a scalar */
    GIVES(OP_MUL_SCALAR, ETCH_BF16, ETCH_BF16, S(2, 3), TENSORS(&bf23), SCALARS(R(2.5)));
    GIVES(OP_MUL_SCALAR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&i23), SCALARS(R(2.5)));
    GIVES(OP_MUL_SCALAR, ETCH_U8, ETCH_U8, S(2, 3), TENSORS(&u23), SCALARS(I(1000)));
    GIVES(OP_MUL_SCALAR, ETCH_I64, ETCH_I64, S(2, 3), TENSORS(&b23), SCALARS(I(2)));
    GIVES(OP_MUL_SCALAR, ETCH_U8, ETCH_U8, S(2, 3), TENSORS(&u23), SCALARS(B(true)));
    GIVES(OP_MUL_SCALAR, ETCH_F32, ETCH_F32, S(), TENSORS(&b0), SCALARS(R(1)));
    GIVES(OP_ADD_SCALAR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&i23), SCALARS(R(2), R(1)));
}

TEST(default_dtype_is_the_threads) {
    assert_int_equal(etch_set_default_dtype(ETCH_F64), ETCH_OK);
    GIVES(OP_MUL_SCALAR, ETCH_F64, ETCH_F64, S(2, 3), TENSORS(&i23), SCALARS(R(2.5)));
    GIVES(OP_MUL_SCALAR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&f23), SCALARS(R(2.5)));
    GIVES(OP_SIN, ETCH_F64, ETCH_F64, S(2, 3), TENSORS(&i23));
    assert_int_equal(etch_set_default_dtype(ETCH_I32), ETCH_ERR_DTYPE);
    assert_int_equal(etch_default_dtype(), ETCH_F64);
    assert_int_equal(etch_set_default_dtype(ETCH_F32), ETCH_OK);
    GIVES(OP_SIN, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&b23));
    GIVES(OP_DIV_TENSOR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&i23, &i23));
    GIVES(OP_DIV_TENSOR, ETCH_F16, ETCH_F16, S(2, 3), TENSORS(&h23, &i23));
}

TEST(comparisons_give_bool) {
    GIVES(OP_LT_TENSOR, ETCH_F64, ETCH_BOOL, S(2, 3), TENSORS(&f23, &d23));
    GIVES(OP_EQ_SCALAR, ETCH_F32, ETCH_BOOL, S(2, 3), TENSORS(&i23), SCALARS(R(0.5)));
    GIVES(OP_LOGICAL_NOT, ETCH_U8, ETCH_BOOL, S(2, 3), TENSORS(&u23));
    GIVES(OP_WHERE, ETCH_F64, ETCH_F64, S(2, 3), TENSORS(&b0, &f3, &d23));
    REFUSED(OP_WHERE, ETCH_ERR_DTYPE, "expected a condition of bool, got u8",
            TENSORS(&u23, &f23, &f23));
}

TEST(casts_sums_and_the_like) {
    GIVES(OP_TO_COPY, ETCH_I8, ETCH_I8, S(2, 3), TENSORS(&f23), ATTRS(ETCH_I8));
    GIVES(OP_TO_COPY, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&f23), ATTRS(-1));
    REFUSED(OP_TO_COPY, ETCH_ERR_DTYPE, "expected a dtype, got the number 99", TENSORS(&f23),
            ATTRS(99));
    GIVES(OP_SUM, ETCH_I64, ETCH_I64, S(), TENSORS(&u23), ATTRS(-1));
    GIVES(OP_SUM, ETCH_I64, ETCH_I64, S(), TENSORS(&b23), ATTRS(-1));
    GIVES(OP_SUM, ETCH_BF16, ETCH_BF16, S(), TENSORS(&bf23), ATTRS(-1));
    GIVES(OP_SUM, ETCH_F64, ETCH_F64, S(), TENSORS(&i23), ATTRS(ETCH_F64));
    GIVES(OP_MEAN, ETCH_F32, ETCH_F32, S(), TENSORS(&i23), ATTRS(ETCH_F32));
    REFUSED(OP_MEAN, ETCH_ERR_DTYPE, "expected a floating dtype, got i32", TENSORS(&i23),
            ATTRS(-1));
    GIVES(OP_ARGMAX, ETCH_F32, ETCH_I64, S(), TENSORS(&f23), ATTRS(ETCH_NO_INT, 0));
    GIVES(OP_ARGMIN, ETCH_BOOL, ETCH_I64, S(), TENSORS(&b23), ATTRS(ETCH_NO_INT, 0));
}

TEST(bool_has_no_minus) {
    REFUSED(OP_SUB_TENSOR, ETCH_ERR_DTYPE, "got bool", TENSORS(&b23, &b23), SCALARS(I(1)));
    REFUSED(OP_SUB_TENSOR, ETCH_ERR_DTYPE, "got bool", TENSORS(&f23, &b23), SCALARS(I(1)));
    REFUSED(OP_SUB_SCALAR, ETCH_ERR_DTYPE, "got bool", TENSORS(&f23), SCALARS(B(1), I(1)));
    REFUSED(OP_NEG, ETCH_ERR_DTYPE, "got bool", TENSORS(&b23));
    REFUSED(OP_RELU, ETCH_ERR_DTYPE, "got bool", TENSORS(&b23));
}

TEST(alpha_must_fit_the_result) {
    REFUSED(OP_ADD_TENSOR, ETCH_ERR_DTYPE, "alpha", TENSORS(&i23, &i23), SCALARS(R(0.5)));
    REFUSED(OP_ADD_TENSOR, ETCH_ERR_DTYPE, "alpha", TENSORS(&i23, &i23), SCALARS(B(true)));
    GIVES(OP_ADD_TENSOR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&f23, &i23), SCALARS(R(0.5)));
    GIVES(OP_ADD_TENSOR, ETCH_BOOL, ETCH_BOOL, S(2, 3), TENSORS(&b23, &b23), SCALARS(I(1)));
}

TEST(in_place_keeps_its_dtype) {
    GIVES(OP_ADD_TENSOR_, ETCH_F64, ETCH_F32, S(2, 3), TENSORS(&f23, &d23), SCALARS(I(1)));
    GIVES(OP_MUL_TENSOR_, ETCH_I64, ETCH_U8, S(2, 3), TENSORS(&u23, &l23));
    GIVES(OP_COPY_, ETCH_U8, ETCH_U8, S(2, 3), TENSORS(&u23, &f23), ATTRS(0));
    GIVES(OP_FILL_SCALAR_, ETCH_BOOL, ETCH_BOOL, S(2, 3), TENSORS(&b23), SCALARS(R(1.5)));
    REFUSED(OP_ADD_TENSOR_, ETCH_ERR_DTYPE, "of f32, which self of i32 cannot hold",
            TENSORS(&i23, &f23), SCALARS(I(1)));
    REFUSED(OP_MUL_SCALAR_, ETCH_ERR_DTYPE, "cannot hold", TENSORS(&i23), SCALARS(R(2)));
    REFUSED(OP_MUL_TENSOR_, ETCH_ERR_DTYPE, "cannot hold", TENSORS(&b23, &u23));
    REFUSED(OP_DIV_TENSOR_, ETCH_ERR_DTYPE, "cannot hold", TENSORS(&i23, &i23));
    REFUSED(OP_SIN_, ETCH_ERR_DTYPE, "cannot hold", TENSORS(&i23));
}

TEST(products_do_not_promote) {
    etch_tensor d34 = meta(ETCH_F64, S(3, 4)), b34 = meta(ETCH_BOOL, S(3, 4));
    etch_tensor l34 = meta(ETCH_I64, S(3, 4));
    REFUSED(OP_MM, ETCH_ERR_DTYPE, "got f32 and f64", TENSORS(&f23, &d34));
    REFUSED(OP_MM, ETCH_ERR_DTYPE, "got bool", TENSORS(&b23, &b34));
    REFUSED(OP_ADDMM, ETCH_ERR_DTYPE, "integer factors", TENSORS(&i0, &l23, &l34),
            SCALARS(I(1), R(0.5)));
}

/* ---- shapes: creation and pointwise ---- */

TEST(creation) {
    const int64_t big = INT64_C(1) << 31;
    GIVES(OP_ZEROS, ETCH_F32, ETCH_F32, S(), ATTRS(0, -1));
    GIVES(OP_ZEROS, ETCH_I8, ETCH_I8, S(2, 0, 4), ATTRS(3, 2, 0, 4, ETCH_I8));
    GIVES(OP_FULL, ETCH_I64, ETCH_I64, S(2), SCALARS(I(1)), ATTRS(1, 2, -1));
    GIVES(OP_FULL, ETCH_BOOL, ETCH_BOOL, S(2), SCALARS(B(1)), ATTRS(1, 2, -1));
    GIVES(OP_FULL, ETCH_F32, ETCH_F32, S(2), SCALARS(R(1)), ATTRS(1, 2, -1));
    REFUSED(OP_ZEROS, ETCH_ERR_SHAPE, "not negative, got [2, -1]", ATTRS(2, 2, -1, ETCH_F32));
    REFUSED(OP_ZEROS, ETCH_ERR_SHAPE, "0 to 8 dimensions, got 9", ATTRS(9, 1, 1, 1, 1, 1, 1, 1, 1));
    REFUSED(OP_ZEROS, ETCH_ERR_OVERFLOW, "63 bits", ATTRS(2, big, big, ETCH_F32));
    REFUSED(OP_ZEROS, ETCH_ERR_OVERFLOW, "63 bits", ATTRS(3, big, big, big, ETCH_I8));
    REFUSED(OP_RANDN, ETCH_ERR_DTYPE, "expected a floating dtype, got i32", SCALARS(I(0), I(0)),
            ATTRS(1, 2, ETCH_I32));
}

static int64_t numel(etch_scalar start, etch_scalar end, etch_scalar step) {
    int64_t dtype = -1;
    return etch__op_class(&etch__ops[OP_ARANGE], (etch_scalar[]){start, end, step}, 3, &dtype);
}

TEST(arange) {
    assert_int_equal(numel(I(0), I(5), I(1)), 5);
    assert_int_equal(numel(I(0), I(5), I(2)), 3);
    assert_int_equal(numel(I(5), I(0), I(-2)), 3);
    assert_int_equal(numel(I(3), I(3), I(1)), 0);
    assert_int_equal(numel(R(0), R(1), R(0.25)), 4);
    assert_int_equal(numel(I(0), R(1.1), R(0.25)), 5);
    assert_int_equal(numel(I(INT64_MIN), I(INT64_MAX), I(1)), INT64_MAX);
    GIVES(OP_ARANGE, ETCH_I64, ETCH_I64, S(5), SCALARS(I(0), I(5), I(1)), ATTRS(-1, 5));
    GIVES(OP_ARANGE, ETCH_F32, ETCH_F32, S(5), SCALARS(I(0), R(5), I(1)), ATTRS(-1, 5));
    GIVES(OP_ARANGE, ETCH_I8, ETCH_I8, S(0), SCALARS(I(5), I(5), I(1)), ATTRS(ETCH_I8, 0));
#define ARANGE_REFUSED(code, words, a, b, c)                                                       \
    REFUSED(OP_ARANGE, code, words, SCALARS(a, b, c), ATTRS(-1, numel(a, b, c)))
    ARANGE_REFUSED(ETCH_ERR_INVALID_ARGUMENT, "other than 0", I(0), I(5), I(0));
    ARANGE_REFUSED(ETCH_ERR_INVALID_ARGUMENT, "other than 0", R(0), I(5), I(0));
    ARANGE_REFUSED(ETCH_ERR_INVALID_ARGUMENT, "the other sign", I(0), I(5), I(-1));
    ARANGE_REFUSED(ETCH_ERR_INVALID_ARGUMENT, "finite", R(0), R(INFINITY), I(1));
    ARANGE_REFUSED(ETCH_ERR_INVALID_ARGUMENT, "finite", R(0), R(NAN), I(1));
    ARANGE_REFUSED(ETCH_ERR_OVERFLOW, "63 bits", I(INT64_MIN), I(INT64_MAX), I(1));
    ARANGE_REFUSED(ETCH_ERR_OVERFLOW, "63 bits", R(0), R(1e300), I(1));
}

TEST(broadcasts) {
    etch_tensor f213 = meta(ETCH_F32, S(2, 1, 3)), f41 = meta(ETCH_F32, S(4, 1));
    etch_tensor f03 = meta(ETCH_F32, S(0, 3)), f13 = meta(ETCH_F32, S(1, 3));
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(2, 4, 3), TENSORS(&f213, &f41));
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(2, 3), TENSORS(&f3, &f23));
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(0, 3), TENSORS(&f03, &f13));
    GIVES(OP_MUL_TENSOR, ETCH_F32, ETCH_F32, S(), TENSORS(&f0, &f0));
    REFUSED(OP_MUL_TENSOR, ETCH_ERR_SHAPE, "got [0, 3] and [2, 3]", TENSORS(&f03, &f23));
    REFUSED(OP_MUL_TENSOR, ETCH_ERR_SHAPE, "got [2, 3] and [4, 1]", TENSORS(&f23, &f41));
    /* results are row-major whatever the operands are */
    VIEWS(OP_CLONE, S(2, 3), S(3, 1), 0, TENSORS(&f23t));
    VIEWS(OP_MUL_TENSOR, S(2, 3), S(3, 1), 0, TENSORS(&f23t, &f23t));
    /* broadcasting two expanded giants must not wrap */
    etch_tensor wide = strided(ETCH_I8, S(1, INT64_C(1) << 40), S(0, 0), 0);
    etch_tensor tall = strided(ETCH_I8, S(INT64_C(1) << 40, 1), S(0, 0), 0);
    REFUSED(OP_MUL_TENSOR, ETCH_ERR_OVERFLOW, "63 bits", TENSORS(&wide, &tall));
}

TEST(in_place_shapes) {
    etch_tensor expanded = strided(ETCH_F32, S(2, 3), S(0, 1), 0),
                f123 = meta(ETCH_F32, S(1, 2, 3));
    etch_tensor part = strided(ETCH_F32, S(2, 3), S(6, 2), 5);
    VIEWS(OP_ADD_TENSOR_, S(2, 3), S(6, 2), 5, TENSORS(&part, &f3), SCALARS(I(1)));
    REFUSED(OP_ADD_TENSOR_, ETCH_ERR_SHAPE, "broadcast to self [3], got [2, 3]", TENSORS(&f3, &f23),
            SCALARS(I(1)));
    REFUSED(OP_COPY_, ETCH_ERR_SHAPE, "broadcast to self", TENSORS(&f23, &f123), ATTRS(0));
    REFUSED(OP_RELU_, ETCH_ERR_SHAPE, "use etch_clone", TENSORS(&expanded));
}

/* ---- reductions ---- */

TEST(reduces) {
    uint32_t mask;
    bool keep;
    etch_tensor f234 = meta(ETCH_F32, S(2, 3, 4)), empty = meta(ETCH_F32, S(0, 3));
    GIVES(OP_SUM_DIM, ETCH_F32, ETCH_F32, S(2, 4), TENSORS(&f234), ATTRS(1, 1, 0, -1));
    GIVES(OP_SUM_DIM, ETCH_F32, ETCH_F32, S(1, 3, 1), TENSORS(&f234), ATTRS(2, -1, 0, 1, -1));
    GIVES(OP_SUM_DIM, ETCH_F32, ETCH_F32, S(), TENSORS(&f234), ATTRS(-1, 0, -1));
    GIVES(OP_AMAX, ETCH_F32, ETCH_F32, S(1, 1, 1), TENSORS(&f234), ATTRS(0, 1));
    GIVES(OP_ARGMAX, ETCH_F32, ETCH_I64, S(2, 3), TENSORS(&f234), ATTRS(-1, 0));
    GIVES(OP_SUM_DIM, ETCH_F32, ETCH_F32, S(), TENSORS(&f0), ATTRS(1, -1, 0, -1));
    GIVES(OP_SUM, ETCH_F32, ETCH_F32, S(), TENSORS(&empty), ATTRS(-1));
    GIVES(OP_AMAX, ETCH_F32, ETCH_F32, S(0), TENSORS(&empty), ATTRS(1, 1, 0));
    REFUSED(OP_MAX, ETCH_ERR_EMPTY, "at least one element, got sizes [0, 3]", TENSORS(&empty));
    REFUSED(OP_AMIN, ETCH_ERR_EMPTY, "at least one element", TENSORS(&empty), ATTRS(1, 0, 0));
    REFUSED(OP_SUM_DIM, ETCH_ERR_DIM_RANGE, "expected a dimension from -2 to 1, got 5",
            TENSORS(&f23), ATTRS(1, 5, 0, -1));
    REFUSED(OP_SUM_DIM, ETCH_ERR_INVALID_ARGUMENT, "got 1 twice", TENSORS(&f23),
            ATTRS(2, 1, -1, 0, -1));
    op_call call = call_of(OP_SUM_DIM, ARGS(TENSORS(&f234), ATTRS(2, -1, 0, 1, -1)));
    etch__reduce_axes(&call, &mask, &keep);
    assert_int_equal(mask, 5);
    assert_true(keep);
    call = call_of(OP_SUM, ARGS(TENSORS(&f234), ATTRS(-1)));
    etch__reduce_axes(&call, &mask, &keep);
    assert_int_equal(mask, 7);
    assert_false(keep);
    call = call_of(OP_ARGMAX, ARGS(TENSORS(&f0), ATTRS(-1, 0)));
    etch__reduce_axes(&call, &mask, &keep);
    assert_int_equal(mask, 0);
}

/* ---- products ---- */

TEST(products) {
    etch_tensor a = meta(ETCH_F32, S(3, 4)), b = meta(ETCH_F32, S(4, 5)), v = meta(ETCH_F32, S(4));
    etch_tensor c = meta(ETCH_F32, S(2, 3, 4)), e = meta(ETCH_F32, S(2, 4, 1));
    etch_tensor e3 = meta(ETCH_F32, S(3, 4, 1)), v2 = meta(ETCH_F32, S(2));
    GIVES(OP_MM, ETCH_F32, ETCH_F32, S(2, 4), TENSORS(&f23, &a));
    REFUSED(OP_MM, ETCH_ERR_SHAPE, "expected mat2 with 3 rows, got 4: [2, 3] x [4, 5]",
            TENSORS(&f23, &b));
    REFUSED(OP_MM, ETCH_ERR_SHAPE, "expected mat2 with 2 dimensions, got 1: [3]",
            TENSORS(&f23, &f3));
    GIVES(OP_ADDMM, ETCH_F32, ETCH_F32, S(2, 4), TENSORS(&v, &f23, &a), SCALARS(I(1), I(1)));
    GIVES(OP_ADDMM, ETCH_F32, ETCH_F32, S(2, 4), TENSORS(&f0, &f23, &a), SCALARS(I(1), I(1)));
    REFUSED(OP_ADDMM, ETCH_ERR_SHAPE, "broadcasts to [2, 4], got [2, 3]", TENSORS(&f23, &f23, &a),
            SCALARS(I(1), I(1)));
    GIVES(OP_MV, ETCH_F32, ETCH_F32, S(3), TENSORS(&a, &v));
    REFUSED(OP_MV, ETCH_ERR_SHAPE, "expected vec with 4 elements, got 2", TENSORS(&a, &v2));
    GIVES(OP_DOT, ETCH_F32, ETCH_F32, S(), TENSORS(&v, &v));
    REFUSED(OP_DOT, ETCH_ERR_SHAPE, "one length, got [4] x [2]", TENSORS(&v, &v2));
    GIVES(OP_BMM, ETCH_F32, ETCH_F32, S(2, 3, 1), TENSORS(&c, &e));
    REFUSED(OP_BMM, ETCH_ERR_SHAPE, "a batch of 2, got 3", TENSORS(&c, &e3));
    REFUSED(OP_BMM, ETCH_ERR_SHAPE, "with 4 rows, got 3", TENSORS(&c, &c));
}

/* ---- views ---- */

TEST(view) {
    etch_tensor f46 = meta(ETCH_F32, S(4, 6)), rows = strided(ETCH_F32, S(2, 6), S(12, 1), 3);
    etch_tensor gap = strided(ETCH_F32, S(4, 3), S(6, 1), 0), none = meta(ETCH_F32, S(0, 3));
    VIEWS(OP_VIEW, S(2, 2, 6), S(12, 6, 1), 0, TENSORS(&f46), ATTRS(3, 2, 2, 6));
    VIEWS(OP_VIEW, S(24), S(1), 0, TENSORS(&f46), ATTRS(1, -1));
    VIEWS(OP_VIEW, S(2, 3, 2), S(12, 2, 1), 3, TENSORS(&rows), ATTRS(3, 2, -1, 2));
    VIEWS(OP_VIEW, S(2, 2, 3), S(12, 6, 1), 0, TENSORS(&gap), ATTRS(3, 2, 2, 3));
    VIEWS(OP_VIEW, S(1, 4, 1, 3), S(24, 6, 3, 1), 0, TENSORS(&gap), ATTRS(4, 1, 4, 1, 3));
    VIEWS(OP_VIEW, S(3, 0), S(1, 1), 0, TENSORS(&none), ATTRS(2, 3, -1));
    VIEWS(OP_VIEW, S(), S(), 0, TENSORS(&f0), ATTRS(0));
    REFUSED(OP_VIEW, ETCH_ERR_SHAPE, "use etch_reshape", TENSORS(&f23t), ATTRS(1, 6));
    REFUSED(OP_VIEW, ETCH_ERR_SHAPE, "24 elements do not fit sizes [5, 5]", TENSORS(&f46),
            ATTRS(2, 5, 5));
    REFUSED(OP_VIEW, ETCH_ERR_SHAPE, "24 elements do not fit sizes [5, -1]", TENSORS(&f46),
            ATTRS(2, 5, -1));
    REFUSED(OP_VIEW, ETCH_ERR_SHAPE, "at most one -1, got [-1, -1]", TENSORS(&f46),
            ATTRS(2, -1, -1));
    REFUSED(OP_VIEW, ETCH_ERR_SHAPE, "got [-2]", TENSORS(&f46), ATTRS(1, -2));
    REFUSED(OP_VIEW, ETCH_ERR_SHAPE, "could be anything", TENSORS(&none), ATTRS(2, 0, -1));
}

TEST(reorders) {
    etch_tensor f234 = meta(ETCH_F32, S(2, 3, 4));
    VIEWS(OP_TRANSPOSE, S(4, 3, 2), S(1, 4, 12), 0, TENSORS(&f234), ATTRS(0, -1));
    VIEWS(OP_TRANSPOSE, S(), S(), 0, TENSORS(&f0), ATTRS(0, -1));
    VIEWS(OP_T, S(3, 2), S(1, 3), 0, TENSORS(&f23));
    VIEWS(OP_T, S(3), S(1), 0, TENSORS(&f3));
    VIEWS(OP_PERMUTE, S(4, 2, 3), S(1, 12, 4), 0, TENSORS(&f234), ATTRS(3, 2, 0, -2));
    REFUSED(OP_TRANSPOSE, ETCH_ERR_DIM_RANGE, "from -3 to 2, got 3", TENSORS(&f234), ATTRS(0, 3));
    REFUSED(OP_T, ETCH_ERR_SHAPE, "at most 2 dimensions, got 3", TENSORS(&f234));
    REFUSED(OP_PERMUTE, ETCH_ERR_INVALID_ARGUMENT, "got 0 twice", TENSORS(&f234),
            ATTRS(3, 0, 1, -3));
    REFUSED(OP_PERMUTE, ETCH_ERR_SHAPE, "expected 3 dimension numbers", TENSORS(&f234),
            ATTRS(2, 0, 1));
}

TEST(slices_as_python) {
    const int64_t no = ETCH_NO_INT, far = INT64_MAX;
    etch_tensor t = strided(ETCH_F32, S(2, 10), S(20, 2), 1);
#define SLICED(n, stride, offset, ...)                                                             \
    VIEWS(OP_SLICE, S(2, n), S(20, stride), offset, TENSORS(&t), ATTRS(1, __VA_ARGS__))
    SLICED(10, 2, 1, no, no, 1);
    SLICED(3, 2, 5, 2, 5, 1);
    SLICED(4, 6, 1, 0, far, 3);
    SLICED(3, 2, 15, -3, no, 1);
    SLICED(7, 2, 1, -99, -3, 1);
    SLICED(0, 2, 1 + 14, 7, 3, 1);
    SLICED(0, 2, 1 + 20, 50, far, 1);
    SLICED(10, -2, 19, no, no, -1);
    SLICED(4, -6, 19, no, no, -3);
    SLICED(3, -2, 11, 5, 2, -1);
    SLICED(6, -2, 11, 5, no, -1);
    SLICED(1, -2, 1, 0, no, -1);
    SLICED(0, -2, 1 + 4, 2, 5, -1);
    SLICED(10, -2, 19, 99, -99, -1);
    SLICED(1, 2, 1, 0, no, INT64_MAX);
    SLICED(1, 2, 19, no, no, -INT64_MAX);
    etch_tensor none = meta(ETCH_F32, S(0));
    VIEWS(OP_SLICE, S(0), S(-1), 0, TENSORS(&none), ATTRS(0, no, no, -1));
    REFUSED(OP_SLICE, ETCH_ERR_INVALID_ARGUMENT, "step other than 0", TENSORS(&t),
            ATTRS(1, 0, 5, 0));
    REFUSED(OP_SLICE, ETCH_ERR_SHAPE, "0-d", TENSORS(&f0), ATTRS(0, 0, 5, 1));
    REFUSED(OP_SLICE, ETCH_ERR_DIM_RANGE, "from -2 to 1, got 2", TENSORS(&t), ATTRS(2, 0, 5, 1));
}

TEST(selects) {
    etch_tensor none = meta(ETCH_F32, S(0, 3));
    VIEWS(OP_SELECT, S(2), S(3), 2, TENSORS(&f23), ATTRS(1, -1));
    VIEWS(OP_SELECT, S(3), S(1), 3, TENSORS(&f23), ATTRS(0, 1));
    VIEWS(OP_SELECT, S(), S(), 1, TENSORS(&f3), ATTRS(0, 1));
    REFUSED(OP_SELECT, ETCH_ERR_INDEX, "expected an index from -3 to 2, got 3", TENSORS(&f23),
            ATTRS(1, 3));
    REFUSED(OP_SELECT, ETCH_ERR_INDEX, "is empty", TENSORS(&none), ATTRS(0, 0));
    REFUSED(OP_SELECT, ETCH_ERR_SHAPE, "0-d", TENSORS(&f0), ATTRS(0, 0));
}

TEST(expands_and_squeezes) {
    etch_tensor f131 = meta(ETCH_F32, S(1, 3, 1)), f8 = meta(ETCH_F32, S(1, 1, 1, 1, 1, 1, 1, 1));
    const int64_t big = INT64_C(1) << 32;
    VIEWS(OP_EXPAND, S(4, 2, 3, 5), S(0, 0, 1, 0), 0, TENSORS(&f131), ATTRS(4, 4, 2, -1, 5));
    VIEWS(OP_EXPAND, S(1, 3, 1), S(3, 1, 1), 0, TENSORS(&f131), ATTRS(3, -1, -1, -1));
    VIEWS(OP_EXPAND, S(2), S(0), 0, TENSORS(&f0), ATTRS(1, 2));
    REFUSED(OP_EXPAND, ETCH_ERR_SHAPE, "[3] do not expand to [4]", TENSORS(&f3), ATTRS(1, 4));
    REFUSED(OP_EXPAND, ETCH_ERR_SHAPE, "do not expand to [3]", TENSORS(&f23), ATTRS(1, 3));
    REFUSED(OP_EXPAND, ETCH_ERR_SHAPE, "do not expand to [-1, 3]", TENSORS(&f3), ATTRS(2, -1, 3));
    REFUSED(OP_EXPAND, ETCH_ERR_OVERFLOW, "63 bits", TENSORS(&f0), ATTRS(2, big, big));
    VIEWS(OP_SQUEEZE, S(3), S(1), 0, TENSORS(&f131));
    VIEWS(OP_SQUEEZE_DIM, S(3, 1), S(1, 1), 0, TENSORS(&f131), ATTRS(0));
    VIEWS(OP_SQUEEZE_DIM, S(1, 3, 1), S(3, 1, 1), 0, TENSORS(&f131), ATTRS(1));
    VIEWS(OP_SQUEEZE_DIM, S(), S(), 0, TENSORS(&f0), ATTRS(-1));
    VIEWS(OP_UNSQUEEZE, S(2, 1, 3), S(3, 3, 1), 0, TENSORS(&f23), ATTRS(1));
    VIEWS(OP_UNSQUEEZE, S(2, 3, 1), S(3, 1, 1), 0, TENSORS(&f23), ATTRS(-1));
    VIEWS(OP_UNSQUEEZE, S(1), S(1), 0, TENSORS(&f0), ATTRS(0));
    REFUSED(OP_UNSQUEEZE, ETCH_ERR_DIM_RANGE, "from -3 to 2, got 3", TENSORS(&f23), ATTRS(3));
    REFUSED(OP_UNSQUEEZE, ETCH_ERR_SHAPE, "at most 7 dimensions", TENSORS(&f8), ATTRS(0));
}

TEST(cats) {
    etch_tensor f43 = meta(ETCH_F32, S(4, 3)), f24 = meta(ETCH_F32, S(2, 4));
    GIVES(OP_CAT, ETCH_F32, ETCH_F32, S(6, 3), TENSORS(&f23, &f43), ATTRS(0));
    GIVES(OP_CAT, ETCH_F64, ETCH_F64, S(2, 10), TENSORS(&f24, &d23, &i23), ATTRS(-1));
    REFUSED(OP_CAT, ETCH_ERR_SHAPE, "got [2, 4] in tensor 1", TENSORS(&f23, &f24), ATTRS(0));
    REFUSED(OP_CAT, ETCH_ERR_SHAPE, "got [3] in tensor 1", TENSORS(&f23, &f3), ATTRS(0));
    REFUSED(OP_CAT, ETCH_ERR_SHAPE, "0-d", TENSORS(&f0, &f0), ATTRS(0));
    REFUSED(OP_CAT, ETCH_ERR_DIM_RANGE, "from -2 to 1, got 2", TENSORS(&f23, &f23), ATTRS(2));
    REFUSED(OP_CAT, ETCH_ERR_INVALID_ARGUMENT, "at least one tensor", ATTRS(0));
}

static int64_t class_of(op_id op, etch_scalar last) {
    etch_scalar sc[2] = {I(7), last};
    return etch__op_class(&etch__ops[op], sc, 2, NULL);
}

TEST(classes) {
    assert_int_equal(class_of(OP_ADD_TENSOR, I(1)), 1);
    assert_int_equal(class_of(OP_ADD_TENSOR, R(1)), 1);
    assert_int_equal(class_of(OP_ADD_TENSOR, R(NAN)), 0);
    assert_int_equal(class_of(OP_ADD_TENSOR, I(2)), 0);
    assert_int_equal(class_of(OP_POW_SCALAR, R(2)), EXPONENT_TWO);
    assert_int_equal(class_of(OP_POW_SCALAR, I(3)), EXPONENT_THREE);
    assert_int_equal(class_of(OP_POW_SCALAR, R(0.5)), EXPONENT_HALF);
    assert_int_equal(class_of(OP_POW_SCALAR, I(-1)), EXPONENT_MINUS_ONE);
    assert_int_equal(class_of(OP_POW_SCALAR, R(1)), EXPONENT_ONE);
    assert_int_equal(class_of(OP_POW_SCALAR, R(-0.0)), EXPONENT_ZERO);
    assert_int_equal(class_of(OP_POW_SCALAR, R(NAN)), EXPONENT_ANY);
    assert_int_equal(class_of(OP_POW_SCALAR, R(2.5)), EXPONENT_ANY);
    assert_int_equal(class_of(OP_MUL_SCALAR, I(1)), 0);
}

/* Every operator that is no composite has rules; every pair of dtypes promotes the same both ways.
 */
TEST(tables_are_whole) {
    for (int i = 0; i < OP_COUNT; i++) {
        bool composite = etch__ops[i].kind == KIND_COMPOSITE;
        assert_true(composite == (etch__ops[i].drule == DRULE_NONE));
        assert_true(composite == (etch__ops[i].srule == SRULE_NONE));
        if (etch__ops[i].kind == KIND_VIEW) assert_non_null(etch__view_rules[etch__ops[i].srule]);
    }
    for (int a = 0; a < ETCH_DTYPE_COUNT; a++)
        for (int b = 0; b < ETCH_DTYPE_COUNT; b++) {
            etch_dtype p = etch_promote_types(a, b);
            assert_int_equal(p, etch_promote_types(b, a));
            assert_int_equal(p, etch_promote_types(p, a));
        }
    assert_int_equal(etch_promote_types(ETCH_U8, ETCH_I8), ETCH_I16);
    assert_int_equal(etch_promote_types(ETCH_BOOL, ETCH_U8), ETCH_U8);
    assert_int_equal(etch_promote_types(ETCH_F16, ETCH_BF16), ETCH_F32);
    assert_int_equal(etch_promote_types(ETCH_F16, ETCH_I64), ETCH_F16);
    assert_int_equal(etch_promote_types((etch_dtype)77, ETCH_I64), ETCH_DTYPE_COUNT);
}

int main(int argc, char **argv) {
    make_tensors();
    return run_suite(argc, argv);
}
