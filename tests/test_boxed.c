/* Boxed calls: by name, by position and by schema name, in the normal form of the typed functions;
 * a clear error for each wrong call. A kernel of the test's own shows the normal form that arrives.
 * Labels: quick. */
#include "etch_test.h"
#include "core/dispatch/dispatch.h"
#include "core/ops/schema.h"

/* ---- what arrives at the kernel ---- */

typedef struct arrived {
    int calls, op, nin, nsc, nat;
    etch_tensor *in[4];
    etch_scalar sc[OP_MAX_SCALARS];
    int64_t at[OP_MAX_ATTRS];
} arrived;

static arrived last;

static etch_status show(const op_call *call, etch_tensor *const *out) {
    arrived now = {.calls = last.calls + 1,
                   .op = call->op,
                   .nin = call->nin,
                   .nsc = call->nsc,
                   .nat = call->nat};
    (void)out;
    for (int i = 0; i < call->nin && i < 4; i++) now.in[i] = call->in[i];
    for (int i = 0; i < call->nsc; i++) now.sc[i] = call->sc[i];
    for (int i = 0; i < call->nat; i++) now.at[i] = call->at[i];
    last = now;
    return ETCH_OK;
}

static void register_kernels(void) {
    for (int i = 0; i < OP_COUNT; i++) etch__register_kernel(i, show);
}

static void assert_same(const arrived *a, const arrived *b) {
    assert_int_equal(a->op, b->op);
    assert_int_equal(a->nin, b->nin);
    assert_int_equal(a->nsc, b->nsc);
    assert_int_equal(a->nat, b->nat);
    for (int i = 0; i < a->nin; i++) assert_ptr_equal(a->in[i], b->in[i]);
    for (int i = 0; i < a->nsc; i++) {
        assert_int_equal(a->sc[i].kind, b->sc[i].kind);
        assert_int_equal(a->sc[i].i, b->sc[i].i);
    }
    for (int i = 0; i < a->nat; i++) assert_int_equal(a->at[i], b->at[i]);
}

/* ---- values ---- */

static etch_value tensor(etch_tensor *t) {
    return (etch_value){.tag = ETCH_VALUE_TENSOR, .tensor = t};
}
static etch_value integer(int64_t i) { return (etch_value){.tag = ETCH_VALUE_INT, .i = i}; }
static etch_value real(double d) { return (etch_value){.tag = ETCH_VALUE_REAL, .d = d}; }
static etch_value boolean(bool b) { return (etch_value){.tag = ETCH_VALUE_BOOL, .b = b}; }
static etch_value ints(etch_dims d) { return (etch_value){.tag = ETCH_VALUE_INTS, .ints = d}; }
static etch_value dtype(etch_dtype d) { return (etch_value){.tag = ETCH_VALUE_DTYPE, .dtype = d}; }
static etch_value none(void) { return (etch_value){.tag = ETCH_VALUE_NONE}; }
static etch_value named(const char *name, etch_value v) {
    v.name = name;
    return v;
}

static etch_tensor *result;

static etch_status call(const char *name, int n, const etch_value *values) {
    const etch_op *op = etch_op_find(name);
    assert_non_null(op);
    etch_clear_error();
    return etch_op_call(op, values, n, &result, 1);
}
#define CALL(name, ...)                                                                            \
    call(name, (int)(sizeof((etch_value[]){__VA_ARGS__}) / sizeof(etch_value)),                    \
         (etch_value[]){__VA_ARGS__})

#define REFUSED(code, words, name, ...)                                                            \
    do {                                                                                           \
        int calls_ = last.calls;                                                                   \
        assert_int_equal(CALL(name, __VA_ARGS__), code);                                           \
        assert_int_equal(etch_last_status(), code);                                                \
        assert_null(result);                                                                       \
        assert_int_equal(last.calls, calls_);                                                      \
        if (!strstr(etch_last_error(), words))                                                     \
            fail_msg("expected \"%s\" in \"%s\"", words, etch_last_error());                       \
    } while (0)

/* The boxed call arrives as the typed one does. */
#define SAME(typed, name, ...)                                                                     \
    do {                                                                                           \
        assert_non_null(typed);                                                                    \
        arrived expected_ = last;                                                                  \
        assert_int_equal(CALL(name, __VA_ARGS__), ETCH_OK);                                        \
        assert_int_equal(last.calls, expected_.calls + 1);                                         \
        assert_same(&last, &expected_);                                                            \
    } while (0)

static etch_tensor *ones(int64_t n, int64_t m) {
    etch_shape s = ETCH_SHAPE(n, m);
    return etch__tensor_new(ETCH_F32, s.n, s.v);
}

/* ---- finding ---- */

TEST(finds_operators) {
    assert_ptr_equal(etch_op_find("add.Tensor"), &etch__ops[OP_ADD_TENSOR]);
    assert_ptr_equal(etch_op_find("aten::add.Tensor"), &etch__ops[OP_ADD_TENSOR]);
    assert_ptr_equal(etch_op_find("add"), &etch__ops[OP_ADD_TENSOR]);
    assert_ptr_equal(etch_op_find("aten::add"), &etch__ops[OP_ADD_TENSOR]);
    assert_ptr_equal(etch_op_find("add.Scalar"), &etch__ops[OP_ADD_SCALAR]);
    assert_ptr_equal(etch_op_find("sum"), &etch__ops[OP_SUM]);
    assert_ptr_equal(etch_op_find("add_"), &etch__ops[OP_ADD_TENSOR_]);
    static const char *const absent[] = {"ad", "add.", "add.tensor", "aten::", "", "Tensor"};
    for (int i = 0; i < COUNT_OF(absent); i++) {
        assert_null(etch_op_find(absent[i]));
        assert_int_equal(etch_last_status(), ETCH_ERR_NOT_FOUND);
        etch_clear_error();
    }
    assert_null(etch_op_find(NULL));
    assert_int_equal(etch_last_status(), ETCH_ERR_NULL);
    assert_string_equal(etch_op_name(etch_op_find("mm")), "mm");
    assert_string_equal(etch_op_schema(etch_op_find("mm")),
                        "mm(Tensor self, Tensor mat2) -> Tensor");
    assert_null(etch_op_name(NULL));
    etch_clear_error();
}

TEST(lists_and_schemas) {
    int count = 0;
    const etch_op *const *list = etch_op_list(&count);
    assert_int_equal(count, OP_COUNT);
    assert_null(list[count]);
    for (int i = 0; i < count; i++) {
        const op_schema *s = etch__schema(list[i]->id);
        int tensors = 0, lists = 0;
        assert_ptr_equal(etch_op_find(etch_op_name(list[i])), list[i]);
        assert_true(s->nargs > 0); /* it parses */
        for (int k = 0; k < s->nargs; k++) {
            tensors += s->args[k].type == ARG_TENSOR;
            lists += s->args[k].type == ARG_TENSORS;
            assert_true(*s->args[k].name);
            assert_non_null(strstr(list[i]->schema, s->args[k].name));
        }
        /* core/dispatch/boxed.c counts on it */
        assert_true(lists == 0 || (lists == 1 && tensors == 0));
        assert_true((list[i]->kind == KIND_INPLACE) == s->args[0].written);
    }
    const op_schema *s = etch__schema(OP_SLICE);
    assert_int_equal(s->nargs, 5);
    assert_string_equal(s->args[1].name, "dim");
    assert_true(s->args[1].has_default && s->args[1].value.i == 0);
    assert_true(s->args[2].has_default && s->args[2].value.i == ETCH_NO_INT);
    assert_true(s->args[4].has_default && s->args[4].value.i == 1);
    assert_false(s->args[0].has_default);
    s = etch__schema(OP_SUM_DIM);
    assert_true(!s->args[2].keyword_only && s->args[3].keyword_only);
    assert_true(s->args[3].value.i == -1 && s->args[2].value.i == 0);
}

/* ---- calling ---- */

TEST(arrives_as_the_typed_call) {
    ETCH_SCOPE {
        etch_tensor *a = ones(2, 3), *b = ones(2, 3), *c = ones(3, 2);
        SAME(etch_add(a, b), "add.Tensor", tensor(a), tensor(b));
        SAME(etch_add_alpha(a, b, 2), "add.Tensor", tensor(a), tensor(b),
             named("alpha", integer(2)));
        SAME(etch_add_alpha(a, b, 2.5), "add", named("alpha", real(2.5)), named("other", tensor(b)),
             named("self", tensor(a)));
        SAME(etch_mul_scalar(a, (bool)1), "mul.Scalar", tensor(a), boolean(true));
        SAME(etch_mul_scalar(a, 3), "mul.Scalar", tensor(a),
             (etch_value){.tag = ETCH_VALUE_SCALAR, .scalar = etch_scalar_int(3)});
        SAME(etch_pow_scalar(a, 0.5), "pow.Tensor_Scalar", tensor(a), real(0.5));
        SAME(etch_sum(a), "sum", tensor(a));
        SAME(etch_sum_dim(a, ETCH_DIMS(1), true), "sum.dim_IntList", tensor(a), ints(ETCH_DIMS(1)),
             boolean(true));
        SAME(etch_argmax(a), "argmax", tensor(a));
        SAME(etch_argmax_dim(a, 1, false), "argmax", tensor(a), integer(1));
        SAME(etch_to(a, ETCH_I8), "_to_copy", tensor(a), named("dtype", dtype(ETCH_I8)));
        SAME(etch_mm(a, c), "mm", tensor(a), tensor(c));
        SAME(etch_addmm(a, a, ones(3, 3)), "addmm", tensor(last.in[0]), tensor(last.in[1]),
             tensor(last.in[2]));
        SAME(etch_zeros(ETCH_F64, ETCH_SHAPE(2, 2)), "zeros", ints(ETCH_DIMS(2, 2)),
             named("dtype", dtype(ETCH_F64)));
        SAME(etch_full(ETCH_F32, ETCH_SHAPE(2), 7), "full", ints(ETCH_DIMS(2)), integer(7),
             named("dtype", dtype(ETCH_F32)));
        SAME(etch_arange(ETCH_I64, 0, 10, 3), "arange", integer(0), integer(10), integer(3),
             named("dtype", dtype(ETCH_I64)));
        SAME(etch_add_(a, b), "add_.Tensor", tensor(a), tensor(b));
        assert_ptr_equal(result, a);
        etch_tensor *list[] = {a, b};
        SAME(etch_cat(list, 2, 1), "cat",
             (etch_value){.tag = ETCH_VALUE_TENSORS, .tensors = {list, 2}}, integer(1));
    }
}

TEST(views_and_composites) {
    ETCH_SCOPE {
        etch_tensor *a = ones(4, 6);
        assert_int_equal(CALL("slice", tensor(a), integer(1), none(), integer(4), integer(2)),
                         ETCH_OK);
        assert_int_equal(etch_size(result, 1), 2);
        assert_int_equal(etch_stride(result, 1), 2);
        assert_int_equal(CALL("slice.Tensor", tensor(a), named("step", integer(-1))), ETCH_OK);
        assert_int_equal(etch_stride(result, 0), -6);
        assert_int_equal(CALL("reshape", tensor(a), ints(ETCH_DIMS(-1))), ETCH_OK);
        assert_int_equal(etch_size(result, 0), 24);
        assert_int_equal(CALL("aten::t", tensor(a)), ETCH_OK);
        assert_true(etch_shares_storage(result, a));
    }
}

TEST(random_numbers_go_on) {
    ETCH_SCOPE {
        assert_int_equal(CALL("randn", ints(ETCH_DIMS(2, 3))), ETCH_OK);
        assert_int_equal(last.nsc, 2);
        etch_scalar seed = last.sc[0], offset = last.sc[1];
        assert_non_null(etch_randn(ETCH_F32, ETCH_SHAPE(2, 3)));
        assert_int_equal(last.sc[0].i, seed.i);
        assert_true(last.sc[1].i >= offset.i + 6);
    }
}

TEST(wrong_calls) {
    const etch_status bad = ETCH_ERR_INVALID_ARGUMENT;
    ETCH_SCOPE {
        etch_tensor *a = ones(2, 3), *b = ones(2, 4);
        etch_value ta = tensor(a), tb = tensor(a);
        REFUSED(ETCH_ERR_NOT_FOUND, "add.Tensor: no argument \"beta\"; expected self, other, alpha",
                "add", ta, tb, named("beta", integer(1)));
        REFUSED(bad, "argument \"other\" of type Tensor is missing", "add", ta);
        REFUSED(bad, "argument \"dim\" of type int[]? is missing", "sum.dim_IntList", ta);
        REFUSED(bad, "argument \"self\" is given twice", "add", ta, tb, named("self", ta));
        REFUSED(bad, "argument \"alpha\" is given twice", "add", ta, tb, named("alpha", integer(1)),
                named("alpha", integer(1)));
        REFUSED(bad, "at most 2 values by position", "add", ta, tb, integer(1));
        REFUSED(bad, "at most 1 values by position", "neg", ta, tb);
        REFUSED(bad, "value 1 by position comes after one by name", "add", named("self", ta), tb);
        REFUSED(bad, "argument \"other\": expected Tensor, got an int", "add", ta, integer(1));
        REFUSED(bad, "argument \"other\": expected Scalar, got a tensor", "mul.Scalar", ta, tb);
        REFUSED(bad, "argument \"other\": expected Scalar, got none", "mul.Scalar", ta, none());
        REFUSED(bad, "argument \"keepdim\": expected bool, got an int", "sum.dim_IntList", ta,
                ints(ETCH_DIMS(0)), integer(1));
        REFUSED(bad, "argument \"dim\": expected int[]?, got an int", "sum.dim_IntList", ta,
                integer(1));
        REFUSED(bad, "argument \"dim\": expected int?, got a real", "argmax", ta, real(1));
        REFUSED(bad, "argument \"dtype\": expected ScalarType?, got an int", "sum", ta,
                named("dtype", integer(1)));
        REFUSED(bad, "argument \"size\": expected int[], got none", "zeros", none());
        REFUSED(bad, "argument \"tensors\": expected Tensor[], got a tensor", "cat", ta);
        REFUSED(bad, "expected 0 to 65535 tensors, got 2 at NULL", "cat",
                ((etch_value){.tag = ETCH_VALUE_TENSORS, .tensors = {NULL, 2}}));
        REFUSED(ETCH_ERR_SHAPE, "expected 0 to 8 ints, got 9", "zeros", ints((etch_dims){.n = 9}));
        REFUSED(bad, "tag 77", "neg", ((etch_value){.tag = (etch_value_tag)77}));
        /* what inference refuses, with the operator's name */
        REFUSED(ETCH_ERR_SHAPE, "mul.Tensor: expected sizes that broadcast, got [2, 3] and [2, 4]",
                "mul", ta, tensor(b));
        REFUSED(ETCH_ERR_NULL, "NULL", "add", ta, tensor(NULL));
        REFUSED(ETCH_ERR_INVALID_ARGUMENT, "not optional", "add", ta, tensor(ETCH_NONE));
        const etch_op *add = etch_op_find("add");
        etch_tensor *out[2];
        assert_int_equal(etch_op_call(add, (etch_value[]){ta, tb}, 2, out, 2), bad);
        assert_non_null(strstr(etch_last_error(), "room for 1 result, got 2"));
        assert_int_equal(etch_op_call(NULL, NULL, 0, out, 1), ETCH_ERR_NULL);
        assert_int_equal(etch_op_call(add, NULL, 2, out, 1), ETCH_ERR_NULL);
        assert_int_equal(etch_op_call(add, (etch_value[]){ta, tb}, 2, NULL, 1), ETCH_ERR_NULL);
    }
    etch_clear_error();
}

int main(int argc, char **argv) {
    register_kernels();
    return run_suite(argc, argv);
}
