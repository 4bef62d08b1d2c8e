/* Custom operators: registering them, in graphs between fused kernels, writing their argument,
 * failing, retaining what they get, under modes that allow compiled code, on several threads.
 * Labels: quick device fake. */
#include "trace_support.h"

#include <pthread.h>
#include <string.h>

#include "tools/verify/cblas_matmul.h"

/* ---- operators of this suite ---- */

typedef struct journal {
    int runs, fail_at; /* the run that fails, 1 the first; 0: none */
    etch_tensor *kept; /* what the kernel retained */
    bool keep;
    int inner; /* operators that it calls */
} journal;

static journal scale_log, bump_log, print_log;

/* out = a * s, element by element, any strides. */
static etch_status scale_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    journal *j = ctx;
    (void)op, (void)nout;
    j->runs++;
    if (j->runs == j->fail_at) return etch_set_error(ETCH_ERR_USER, "scale: asked to fail");
    if (j->keep) j->kept = etch_retain(args[0].tensor);
    etch_tensor *x = etch_mul_scalar(args[0].tensor, args[1].scalar);
    for (int i = 0; i < j->inner; i++) x = etch_clone(x);
    if (nargs != 2 || etch_is_deferred(x)) return ETCH_ERR_INTERNAL;
    return etch_copy_(out[0], x) ? ETCH_OK : etch_last_status();
}

static etch_status like_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (etch_ndim(args[0].tensor) > 2) return etch_set_error(ETCH_ERR_SHAPE, "rank above 2");
    out[0] = (etch_tensor_spec){etch_dtype_of(args[0].tensor), etch_sizes(args[0].tensor)};
    return ETCH_OK;
}

/* self += 1 where it says so: through its raw memory, contiguous only. */
static etch_status bump_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor *const *out, int nout) {
    journal *j = ctx;
    (void)op, (void)nargs, (void)nout;
    j->runs++;
    if (j->runs == j->fail_at) return ETCH_ERR_USER; /* without an error of its own */
    if (out[0] != args[0].tensor) return ETCH_ERR_INTERNAL;
    return etch_add_(out[0], args[1].tensor) ? ETCH_OK : etch_last_status();
}

static etch_status print_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)op, (void)nargs, (void)nout;
    ((journal *)ctx)->runs++;
    return etch_copy_(out[0], args[0].tensor) ? ETCH_OK : etch_last_status();
}

static const etch_op *scale_op, *bump_op, *print_op;

static const etch_op *add_op(const char *schema, etch_kernel cpu, etch_shape_fn shape, bool effects,
                             void *ctx) {
    etch_op_definition d = {
        .struct_size = sizeof d, .cpu = cpu, .shape = shape, .effects = effects, .ctx = ctx};
    return etch_op_register(schema, &d);
}

static bool register_all(void) {
    scale_op = add_op("test::scale(Tensor a, Scalar s=2) -> Tensor", scale_kernel, like_first,
                      false, &scale_log);
    bump_op = add_op("test::bump_(Tensor(a!) self, Tensor by) -> Tensor(a!)", bump_kernel, NULL,
                     false, &bump_log);
    print_op =
        add_op("test::print(Tensor a) -> Tensor", print_kernel, like_first, true, &print_log);
    return scale_op && bump_op && print_op && blas_op();
}

static void fresh(void) {
    scale_log = bump_log = print_log = (journal){0};
    etch_clear_error();
}
EACH_TEST(.before = fresh)

static etch_tensor *scale(etch_tensor *a, double s) {
    etch_value args[2] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                          {.tag = ETCH_VALUE_REAL, .d = s}};
    etch_tensor *out = NULL;
    return etch_op_call(scale_op, args, 2, &out, 1) == ETCH_OK ? out : NULL;
}

static etch_tensor *bump(etch_tensor *a, etch_tensor *by) {
    etch_value args[2] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                          {.tag = ETCH_VALUE_TENSOR, .tensor = by}};
    etch_tensor *out = NULL;
    return etch_op_call(bump_op, args, 2, &out, 1) == ETCH_OK ? out : NULL;
}

static etch_tensor *print_it(etch_tensor *a) {
    etch_value args[1] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a}};
    etch_tensor *out = NULL;
    return etch_op_call(print_op, args, 1, &out, 1) == ETCH_OK ? out : NULL;
}

#define FOR_BACKENDS(b)                                                                            \
    for (int b = 0; b < 2; b++)                                                                    \
        ETCH_SCOPE

/* ---- registering ---- */

TEST(schemas_that_do_not_parse) {
    static const char *const bad[] = {
        "scale(Tensor a) -> Tensor",
        "test::scale2",
        "test::scale2(Tensor a)",
        "test::scale2(Tensor a) -> Tensor, Tensor",
        "test::scale2(Tensor a) -> Scalar",
        "test::scale2(Scalar a) -> Tensor",
        "test::scale2(Matrix a) -> Tensor",
        "test::scale2(Tensor a, Tensor(a!) b) -> Tensor",
        "test::scale2(Tensor(a!) a) -> Tensor",
        "test::scale2(Tensor a -> Tensor",
        "test::scale2(Tensor a, Scalar b, Scalar c, Scalar d, Scalar e, Scalar f) -> Tensor",
        "test::scale2(Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor "
        "h, "
        "Tensor i, Tensor j, Tensor k) -> Tensor",
        "",
        "::(Tensor a) -> Tensor()",
    };
    int before;
    etch_op_list(&before);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        etch_clear_error();
        assert_null(add_op(bad[i], scale_kernel, like_first, false, NULL));
        assert_int_equal(etch_last_status(), ETCH_ERR_FORMAT);
        assert_non_null(strstr(etch_last_error(), "etch_op_register"));
    }
    assert_null(add_op(NULL, scale_kernel, like_first, false, NULL));
    assert_int_equal(etch_last_status(), ETCH_ERR_NULL);
    assert_null(add_op("test::scale2(Tensor a) -> Tensor", NULL, like_first, false, NULL));
    assert_null(add_op("test::scale2(Tensor a) -> Tensor", scale_kernel, NULL, false, NULL));
    assert_null(etch_op_register("test::scale2(Tensor a) -> Tensor", NULL));
    int after;
    etch_op_list(&after);
    assert_int_equal(before, after);
}

TEST(names_that_are_taken) {
    int before, after;
    etch_op_list(&before);
    assert_null(
        add_op("test::scale(Tensor other) -> Tensor", scale_kernel, like_first, false, NULL));
    assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(etch_last_error(), "taken"));
    etch_op_list(&after);
    assert_int_equal(before, after);
    assert_string_equal(etch_op_schema(scale_op), "test::scale(Tensor a, Scalar s=2) -> Tensor");
}

TEST(listed_and_found_by_name) {
    int n, found = 0;
    const etch_op *const *all = etch_op_list(&n);
    for (int i = 0; i < n; i++) found += all[i] == scale_op || all[i] == bump_op;
    assert_int_equal(found, 2);
    assert_ptr_equal(etch_op_find("test::scale"), scale_op);
    assert_string_equal(etch_op_name(scale_op), "test::scale");
    assert_true(etch_op_is(scale_op, "test::scale"));
    assert_null(etch_op_find("test::scales"));
}

TEST(boxed_calls) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 3), *y = NULL;
        etch_value by_default[1] = {{.tag = ETCH_VALUE_TENSOR, .tensor = x}};
        assert_int_equal(etch_op_call(scale_op, by_default, 1, &y, 1), ETCH_OK);
        assert_same(y, etch_mul_scalar(x, 2));
        etch_value by_name[2] = {{.name = "s", .tag = ETCH_VALUE_REAL, .d = 3},
                                 {.name = "a", .tag = ETCH_VALUE_TENSOR, .tensor = x}};
        assert_int_equal(etch_op_call(scale_op, by_name, 2, &y, 1), ETCH_OK);
        assert_same(y, etch_mul_scalar(x, 3.0));
        by_name[0].name = "t";
        assert_int_equal(etch_op_call(scale_op, by_name, 2, &y, 1), ETCH_ERR_NOT_FOUND);
        assert_int_equal(etch_op_call(scale_op, NULL, 0, &y, 1), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_op_call(scale_op, by_default, 1, &y, 2), ETCH_ERR_INVALID_ARGUMENT);
        by_default[0].tensor = NULL;
        assert_int_not_equal(etch_op_call(scale_op, by_default, 1, &y, 1), ETCH_OK);
        assert_null(y);
    }
}

/* ---- the CBLAS product ---- */

/* Small integers: every order of summation is exact. */
static etch_tensor *integers(etch_dtype dtype, int64_t rows, int64_t columns, int layout) {
    etch_tensor *line = etch_arange(ETCH_I64, 0, rows * columns * 2, 1);
    etch_tensor *whole = etch_view(line, ETCH_SHAPE(rows, 2 * columns));
    whole = etch_sub_scalar(whole, rows);
    whole = etch_to(whole, dtype);
    if (layout == 0) return etch_clone(etch_slice(whole, 1, 0, columns, 1));
    if (layout == 1) return etch_slice(whole, 1, 1, 2 * columns, 2);
    if (layout == 2) return etch_t(etch_clone(etch_t(etch_slice(whole, 1, 0, columns, 1))));
    etch_tensor *row = etch_slice(whole, 0, 0, 1, 1);
    return etch_expand(etch_slice(row, 1, 0, columns, 1), ETCH_SHAPE(rows, columns));
}

TEST(product_of_any_strides) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {3, 4, 5}, {1, 7, 2},
                                        {9, 1, 4}, {2, 0, 3}, {0, 3, 2}};
    for (int s = 0; s < 6; s++)
        for (int la = 0; la < 4; la++)
            for (int lb = 0; lb < 4; lb++)
                for (int d = 0; d < 2; d++)
                    ETCH_SCOPE {
                        const int64_t *n = shapes[s];
                        if ((n[0] == 0 || n[1] == 0) && la + lb) continue;
                        etch_tensor *a = integers(d ? ETCH_F64 : ETCH_F32, n[0], n[1], la);
                        etch_tensor *b = integers(d ? ETCH_F64 : ETCH_F32, n[1], n[2], lb);
                        etch_tensor *c = blas_matmul(a, b);
                        assert_non_null(c);
                        assert_same(c, etch_mm(a, b));
                    }
}

/* ---- in graphs ---- */

static etch_tensor *mixed(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_sin(x);
    a = etch_add_scalar(a, 1.0);
    etch_tensor *p = blas_matmul(a, w);
    etch_tensor *q = etch_relu(p);
    etch_tensor *r = scale(q, 0.5);
    etch_tensor *s = etch_mul(r, q);
    s = scale(etch_t(s), 3.0);
    return etch_add(s, etch_t(p));
}

TEST(opaque_between_fused_kernels) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(mixed, .backend = test_backends[b], .fullgraph = true);
        etch_tensor *x = arange_f32(8, 8), *w = arange_f32(8, 8);
        etch_tensor *expected = mixed(x, w);
        for (int i = 0; i < 3; i++) {
            scale_log.runs = 0;
            etch_tensor *y = etch_call(f, x, w);
            assert_same(y, expected);
            assert_int_equal(scale_log.runs, 2);
        }
        assert_counts(f, 1, 3);
        etch_function_free(f);
    }
}

static double factor;
static etch_tensor *scaled(etch_tensor *x) {
    etch_tensor *a = etch_exp(x);
    a = scale(a, factor);
    return etch_neg(a);
}

TEST(scalars_are_run_time_data) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(scaled, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(3, 5);
        for (factor = 1; factor < 5; factor++) assert_same(etch_call(f, x), scaled(x));
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
    }
}

static etch_tensor *sized(etch_tensor *x) {
    etch_tensor *a = etch_mul(x, x);
    a = scale(a, 0.25);
    return etch_add(a, x);
}

TEST(other_sizes) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(sized, .backend = test_backends[b]);
        for (int n = 2; n < 8; n++)
            for (int again = 0; again < 2; again++) {
                etch_tensor *x = arange_f32(n, 3);
                assert_same(etch_call(f, x), sized(x));
            }
        etch_function_free(f);
    }
}

static etch_tensor *twice_equal(etch_tensor *x) {
    etch_tensor *a = scale(x, 2.0);
    etch_tensor *b = scale(x, 2.0);
    scale(x, 5.0); /* nobody uses it */
    return etch_add(a, b);
}

/* One call in the program is one call of the kernel: not merged, not dropped. */
TEST(neither_merged_nor_dropped) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(twice_equal, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(2, 2);
        for (int i = 0; i < 3; i++) {
            scale_log.runs = 0;
            assert_same(etch_call(f, x), etch_mul_scalar(x, 4));
            assert_int_equal(scale_log.runs, 3);
        }
        etch_function_free(f);
    }
}

/* ---- writing the argument ---- */

static etch_tensor *writes(etch_tensor *x, etch_tensor *by) {
    etch_tensor *before = etch_mul_scalar(x, 10.0);
    bump(x, by);
    etch_tensor *between = etch_mul_scalar(x, 100.0);
    etch_add_scalar_(x, 0.5);
    bump(x, by);
    etch_tensor *after = etch_add(x, before);
    return etch_add(after, between);
}

TEST(in_place_keeps_the_order) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(writes, .backend = test_backends[b], .fullgraph = true);
        for (int i = 0; i < 3; i++) {
            etch_tensor *x = arange_f32(4, 4), *y = etch_clone(x), *by = etch_sin(x);
            etch_tensor *expected = writes(x, by), *got = etch_call(f, y, by);
            assert_same(got, expected);
            assert_same(y, x);
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
    }
}

static etch_tensor *writes_temporary(etch_tensor *x, etch_tensor *by) {
    etch_tensor *t = etch_add(x, by);
    etch_tensor *view = etch_select(t, 0, 1);
    bump(t, x);
    etch_tensor *same = bump(t, t);
    etch_tensor *c = etch_mul_scalar(view, 3.0);
    return etch_add(same, c);
}

TEST(in_place_on_a_temporary_and_its_view) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(writes_temporary, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(3, 3), *by = etch_cos(x);
        etch_tensor *expected = writes_temporary(x, by);
        for (int i = 0; i < 3; i++) assert_same(etch_call(f, x, by), expected);
        etch_function_free(f);
    }
}

/* ---- effects ---- */

static etch_tensor *with_effects(etch_tensor *x) {
    etch_tensor *a = etch_sin(x);
    a = print_it(a);
    return etch_cos(a);
}

TEST(effects_break_the_graph) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(with_effects, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(2, 5), *expected = with_effects(x);
        for (int i = 0; i < 3; i++) {
            print_log.runs = 0;
            etch_tensor *y = etch_call(f, x);
            assert_same(y, expected);
            assert_int_equal(print_log.runs, 1);
        }
        assert_int_equal(etch_function_counters(f).graphs, 2);
        assert_int_equal(etch_function_counters(f).graph_breaks, 3);
        etch_function_free(f);
        f = etch_compile(with_effects, .backend = test_backends[b], .fullgraph = true);
        print_log.runs = 0;
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        assert_int_equal(print_log.runs, 0);
        etch_function_free(f);
    }
}

/* ---- operators in kernels ---- */

TEST(kernels_call_operators_eagerly) {
    scale_log.inner = 5;
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(sized, .backend = test_backends[b], .fullgraph = true);
        etch_tensor *x = arange_f32(4, 3), *expected = sized(x);
        for (int i = 0; i < 3; i++) assert_same(etch_call(f, x), expected);
        assert_int_equal(etch_function_counters(f).graph_nodes, 3);
        etch_function_free(f);
    }
}

/* ---- failures ---- */

static etch_tensor *failing(etch_tensor *x) {
    etch_tensor *a = etch_sin(x);
    etch_tensor *b = scale(a, 2.0);
    return etch_add(b, a);
}

TEST(kernels_that_fail) {
    ETCH_SCOPE {
        scale_log.fail_at = 1;
        assert_null(failing(arange_f32(2, 2)));
        assert_int_equal(etch_last_status(), ETCH_ERR_USER);
        assert_non_null(strstr(etch_last_error(), "asked to fail"));
    }
    FOR_BACKENDS(b) {
        fresh();
        etch_function *f = etch_compile(failing, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(2, 2), *expected = failing(x), *copy = etch_clone(x);
        scale_log = (journal){.fail_at = 1};
        assert_null(etch_call(f, x)); /* while recording */
        assert_int_equal(etch_last_status(), ETCH_ERR_USER);
        scale_log.fail_at = 0;
        assert_same(etch_call(f, x), expected);
        assert_same(etch_call(f, x), expected);
        etch_clear_error();
        /* compiled: the plan's call, and the eager run of the segment that follows it, both fail */
        int64_t tensors = etch_memory().tensors;
        for (int again = 0; again < 2; again++) {
            scale_log = (journal){.fail_at = 1};
            etch_tensor *y = etch_call(f, x);
            if (!y) assert_int_equal(etch_last_status(), ETCH_ERR_USER);
            else assert_same(y, expected); /* the second run did not fail: the true result */
        }
        scale_log = (journal){0};
        assert_true(etch_memory().tensors <= tensors + 4);
        assert_same(etch_call(f, x), expected);
        assert_same(x, copy);
        etch_function_free(f);
    }
}

static int always_fails;
static etch_status moody_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (always_fails) return etch_set_error(ETCH_ERR_INDEX, "moody: not today");
    return etch_copy_(out[0], args[0].tensor) ? ETCH_OK : etch_last_status();
}

static const etch_op *moody_op(void) {
    static const etch_op *op;
    if (!op) op = add_op("test::moody(Tensor a) -> Tensor", moody_kernel, like_first, false, NULL);
    return op;
}

static etch_tensor *moody(etch_tensor *a) {
    etch_value args[1] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a}};
    etch_tensor *out = NULL;
    return etch_op_call(moody_op(), args, 1, &out, 1) == ETCH_OK ? out : NULL;
}

static etch_tensor *unused_failure(etch_tensor *x, etch_tensor *state) {
    etch_add_scalar_(state, 1.0);
    etch_tensor *a = etch_sin(x);
    moody(a);
    etch_mul_scalar_(state, 2.0);
    etch_tensor *b = moody(x);
    return etch_add(b, a);
}

/* Compiled, the error appears at the end of the segment; a failed call says
 * so, never a wrong value. */
TEST(a_failure_fails_the_compiled_call) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(unused_failure, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(2, 3), *s = etch_zeros(ETCH_F32, ETCH_SHAPE(2));
        always_fails = 0;
        for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, x, s));
        etch_tensor *t = etch_zeros(ETCH_F32, ETCH_SHAPE(2));
        for (int i = 0; i < 3; i++) assert_non_null(unused_failure(x, t));
        assert_same(s, t);
        always_fails = 1;
        etch_clear_error();
        assert_null(etch_call(f, x, s));
        assert_int_equal(etch_last_status(), ETCH_ERR_INDEX);
        assert_non_null(strstr(etch_last_error(), "not today"));
        always_fails = 0;
        etch_copy_(s, t);
        assert_non_null(etch_call(f, x, s));
        assert_non_null(unused_failure(x, t));
        assert_same(s, t);
        etch_function_free(f);
    }
}

TEST(a_failure_without_an_error_gets_one) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        etch_set_error(ETCH_ERR_IO, "an older error");
        bump_log.fail_at = 1;
        assert_null(bump(x, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_USER);
        assert_non_null(strstr(etch_last_error(), "test::bump_"));
        bump_log.fail_at = 0;
        etch_set_error(ETCH_ERR_IO, "an older error");
        assert_non_null(bump(x, x)); /* a success keeps it */
        assert_string_equal(etch_last_error(), "an older error");
    }
}

static etch_tensor *too_deep(etch_tensor *x) {
    etch_tensor *a = etch_sin(x);
    etch_tensor *b = scale(etch_unsqueeze(a, 0), 2.0);
    return b ? etch_squeeze_dim(b, 0) : etch_neg(a);
}

/* The shape function's error comes at the call, compiled or not, and the body may go on. */
TEST(shape_functions_that_fail) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(too_deep, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(2, 2), *expected = etch_neg(etch_sin(x));
        for (int i = 0; i < 3; i++) {
            etch_clear_error();
            assert_same(etch_call(f, x), expected);
            assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
            assert_non_null(strstr(etch_last_error(), "rank above 2"));
        }
        etch_function_free(f);
    }
}

static int bad_spec_kind;
static etch_status bad_spec(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)nout;
    static const etch_tensor_spec bad[] = {{(etch_dtype)77, {1, {2}}},
                                           {ETCH_F32, {9, {2}}},
                                           {ETCH_F32, {2, {2, -1}}},
                                           {ETCH_F32, {3, {INT64_MAX / 2, 8, 8}}}};
    out[0] = bad[bad_spec_kind];
    return ETCH_OK;
}

TEST(shape_functions_that_lie) {
    const etch_op *op =
        add_op("test::lies(Tensor a) -> Tensor", moody_kernel, bad_spec, false, NULL);
    ETCH_SCOPE {
        etch_value args[1] = {{.tag = ETCH_VALUE_TENSOR, .tensor = arange_f32(2, 2)}};
        for (bad_spec_kind = 0; bad_spec_kind < 4; bad_spec_kind++) {
            etch_tensor *y = NULL;
            assert_int_equal(etch_op_call(op, args, 1, &y, 1), ETCH_ERR_SHAPE);
            assert_null(y);
            assert_non_null(strstr(etch_last_error(), "test::lies"));
        }
    }
}

/* ---- a kernel that retains ---- */

static etch_tensor *keeps_inner(etch_tensor *x) {
    etch_tensor *a = etch_sin(x); /* an intermediate: memory of the arena when compiled */
    etch_tensor *b = scale(a, 2.0);
    etch_tensor *c = etch_exp(b);
    etch_tensor *d = blas_matmul(c, b);
    etch_tensor *e = blas_matmul(d, c);
    return etch_add(e, d);
}

TEST(retained_arguments_stay) {
    FOR_BACKENDS(b) {
        fresh();
        etch_function *f = etch_compile(keeps_inner, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(6, 6), *expected = keeps_inner(x), *sin = etch_sin(x);
        etch_tensor *kept[4];
        scale_log.keep = true;
        for (int i = 0; i < 4; i++) {
            assert_same(etch_call(f, x), expected);
            kept[i] = scale_log.kept;
        }
        scale_log.keep = false;
        etch_tensor *other = etch_mul_scalar(x, 0.5);
        etch_call(f, other);
        etch_call(f, other);
        etch_function_free(f);
        for (int i = 0; i < 4; i++) {
            assert_same(kept[i], sin);
            etch_release(kept[i]);
        }
    }
}

/* ---- modes that allow compiled code ---- */

typedef struct watch {
    int blas, scales, others;
    bool replace;
} watch;

static etch_status watch_handler(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor **out, int nout) {
    watch *w = ctx;
    (void)nargs, (void)nout;
    if (etch_op_is(op, "mylib::blas_matmul")) w->blas++;
    else if (op == scale_op) w->scales++;
    else w->others++;
    if (!w->replace || op != scale_op) return ETCH_DECLINED;
    out[0] = etch_neg(args[0].tensor);
    return out[0] ? ETCH_OK : etch_last_status();
}

TEST(modes_see_the_opaque_calls) {
    scale_log.inner = 2;
    FOR_BACKENDS(b) {
        watch outer = {0}, inner = {0};
        etch_mode *m = etch_mode_new(watch_handler, &outer, .allow_compiled = true);
        etch_mode *n = etch_mode_new(watch_handler, &inner, .allow_compiled = true);
        etch_function *f = etch_compile(mixed, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(8, 8), *w = arange_f32(8, 8), *expected = mixed(x, w);
        ETCH_WITH_MODE (m)
            ETCH_WITH_MODE (n)
                for (int i = 1; i <= 3; i++) {
                    assert_same(etch_call(f, x, w), expected);
                    assert_int_equal(inner.blas, i);
                    assert_int_equal(inner.scales, 2 * i);
                    assert_int_equal(inner.others, 0);
                    assert_int_equal(outer.blas, i);
                    assert_int_equal(outer.scales, 2 * i);
                    assert_int_equal(outer.others, 0);
                }
        assert_counts(f, 1, 2);
        etch_function_free(f);
        etch_mode_free(n);
        etch_mode_free(m);
    }
}

/* What a handler returns is what the program goes on with, on every path, and its operators are no
 * part of the graph. */
TEST(modes_replace_opaque_calls) {
    FOR_BACKENDS(b) {
        fresh();
        watch w = {.replace = true};
        etch_mode *m = etch_mode_new(watch_handler, &w, .allow_compiled = true);
        etch_function *f = etch_compile(sized, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(4, 3);
        etch_tensor *expected = etch_add(etch_neg(etch_mul(x, x)), x);
        ETCH_WITH_MODE (m)
            for (int i = 0; i < 3; i++) assert_same(etch_call(f, x), expected);
        assert_int_equal(scale_log.runs, 0);
        assert_int_equal(w.scales, 3);
        assert_int_equal(etch_function_counters(f).graph_nodes, 3);
        etch_tensor *plain = sized(x);
        assert_same(etch_call(f, x), plain); /* outside: the kernel again, the same code */
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
        etch_mode_free(m);
    }
}

/* ---- threads ---- */

typedef struct work {
    etch_function *f;
    int failures;
} work;

static void *call_often(void *arg) {
    work *w = arg;
    for (int i = 0; i < 50; i++)
        ETCH_SCOPE {
            etch_tensor *x = etch_add_scalar(arange_f32(5, 5), (double)i);
            etch_tensor *a = etch_sin(x);
            etch_tensor *p = blas_matmul(a, x);
            etch_tensor *expected = etch_relu(p);
            etch_tensor *y = etch_call(w->f, x);
            w->failures += !y || !etch_bitwise_equal(y, expected);
        }
    return NULL;
}

static etch_tensor *threaded(etch_tensor *x) {
    etch_tensor *a = etch_sin(x);
    etch_tensor *p = blas_matmul(a, x);
    return etch_relu(p);
}

TEST(several_threads) {
    for (int b = 0; b < 2; b++) {
        work w[4];
        pthread_t t[4];
        etch_function *f = etch_compile(threaded, .backend = test_backends[b]);
        for (int i = 0; i < 4; i++) {
            w[i] = (work){f, 0};
            assert_int_equal(pthread_create(&t[i], NULL, call_often, &w[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(t[i], NULL);
            assert_int_equal(w[i].failures, 0);
        }
        etch_function_free(f);
    }
}

static void *register_many(void *arg) {
    int *mine = arg;
    for (int i = 0; i < 20; i++) {
        char schema[64];
        snprintf(schema, sizeof schema, "race::op%d(Tensor a) -> Tensor", i);
        *mine += add_op(schema, moody_kernel, like_first, false, NULL) != NULL;
    }
    return NULL;
}

/* Each name once, whoever comes first. */
TEST(registering_on_several_threads) {
    pthread_t t[4];
    int mine[4] = {0}, sum = 0;
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, register_many, &mine[i]);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL), sum += mine[i];
    assert_int_equal(sum, 20);
    assert_non_null(etch_op_find("race::op19"));
}

/* ---- the seed program with products of the user's ---- */

static const etch_op *own_product;
static int own_calls;

static etch_status product_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    own_calls++;
    etch_tensor *product = etch_mm(args[0].tensor, args[1].tensor);
    return etch_copy_(out[0], product) ? ETCH_OK : etch_last_status();
}

static etch_status product_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(args[0].tensor);
    out->sizes = ETCH_SHAPE(etch_size(args[0].tensor, 0), etch_size(args[1].tensor, 1));
    return ETCH_OK;
}

static etch_tensor *product(etch_tensor *a, etch_tensor *b) {
    etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                         {.tag = ETCH_VALUE_TENSOR, .tensor = b}};
    etch_tensor *out = NULL;
    return etch_op_call(own_product, args, 2, &out, 1) == ETCH_OK ? out : NULL;
}

static etch_tensor *custom_step(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = product(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = product(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

/* One graph of 25 operators, 6 fused kernels, no library product, 10 calls of the custom one. */
TEST(seed_program_with_custom_products) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = product_kernel, .shape = product_shape};
    own_product = etch_op_register("test::product(Tensor a, Tensor b) -> Tensor", &d);
    assert_non_null(own_product);
    ETCH_SCOPE {
        etch_function *f = etch_compile(custom_step);
        etch_tensor *x = etch_sin(arange_f32(256, 256)), *w = etch_cos(x);
        etch_tensor *expected = custom_step(x, w);
        assert_same(etch_call(f, x, w), expected);
        own_calls = 0;
        assert_same(etch_call(f, x, w), expected);
        assert_int_equal(own_calls, 10);
        assert_counts(f, 1, 1);
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->op_count, 25);
        assert_int_equal(e->graphs[0].kernels, 6);
        assert_int_equal(e->graphs[0].products, 0);
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

int main(int argc, char **argv) { return register_all() ? run_suite(argc, argv) : 1; }
