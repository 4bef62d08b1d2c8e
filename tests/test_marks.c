/* Marks on dimensions: dynamic within bounds, static; what a function makes of them, and what is
 * wrong.
 * Labels: quick device sanitizer. */
#include <string.h>

#include "core/dispatch/dispatch.h"
#include "device_support.h"
#include "trace_support.h"

static int body_runs;
static etch_tensor *captured;
static const char *backend = "eager";
static char log_lines[16][512];
static int nlog;

static void keep_line(void *ctx, const char *line) {
    (void)ctx;
    if (nlog < 16) snprintf(log_lines[nlog++], sizeof log_lines[0], "%s", line);
}

static bool logged(const char *what) {
    for (int i = 0; i < nlog; i++)
        if (strstr(log_lines[i], what)) return true;
    return false;
}

/* Each test runs on both backends. */
static void on_both(const etch_test *t) {
    for (int i = 0; i < 2; i++) {
        backend = test_backends[i];
        body_runs = 0, nlog = 0;
        ETCH_SCOPE { t->body(); }
        etch_clear_error();
    }
}
EACH_TEST(.around = on_both)

static etch_tensor *numbers(int64_t rows, int64_t columns, double add) {
    etch_tensor *x = arange_f32(rows, columns);
    return etch_add_scalar(x, add);
}

static etch_tensor *uses_captured(etch_tensor *x) { return etch_mul(x, captured); }

static etch_tensor *plain(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    return etch_sub(y, x);
}

static etch_tensor *dynamic_arg(int64_t rows, int64_t min, int64_t max) {
    etch_tensor *x = numbers(rows, 3, 0);
    assert_int_equal(etch_mark_dynamic(x, 0, min, max), ETCH_OK);
    return x;
}

static void call_with(etch_function *f, etch_fn1 body, etch_tensor *x, int graphs) {
    etch_tensor *expected = body(x);
    assert_same(etch_call(f, x), expected);
    assert_int_equal(etch_function_counters(f).graphs, graphs);
}

TEST(marked_dynamic_is_one_graph) {
    etch_function *f = etch_compile(plain, .backend = backend);
    for (int64_t rows = 2; rows < 9; rows++) call_with(f, plain, dynamic_arg(rows, 0, 0), 1);
    call_with(f, plain, numbers(20, 3, 0), 1);
    assert_int_equal(etch_function_counters(f).divergences, 0);
    etch_function_free(f);
    /* Without the mark the second size makes a second graph. */
    f = etch_compile(plain, .backend = backend);
    call_with(f, plain, numbers(5, 3, 0), 1);
    call_with(f, plain, numbers(6, 3, 0), 2);
    etch_function_free(f);
    /* A trace for one size does not serve a dimension that is marked. */
    f = etch_compile(plain, .backend = backend);
    call_with(f, plain, numbers(5, 3, 0), 1);
    call_with(f, plain, dynamic_arg(5, 0, 0), 2);
    call_with(f, plain, dynamic_arg(7, 0, 0), 2);
    etch_function_free(f);
}

TEST(bounds_are_guarded) {
    etch_set_log_sink(keep_line, NULL);
    etch_set_logs("recompiles,guards");
    etch_function *f = etch_compile(plain, .backend = backend);
    call_with(f, plain, dynamic_arg(4, 2, 8), 1);
    assert_true(logged("f32 of rank 2, dim 0 from 2 to 8"));
    call_with(f, plain, numbers(8, 3, 0), 1);
    call_with(f, plain, numbers(2, 3, 0), 1);
    call_with(f, plain, numbers(9, 3, 0), 2);
    assert_true(
        logged("tensor 0: size out of bounds at dim 0, marked dynamic: expected 2 to 8, got 9"));
    call_with(f, plain, numbers(1, 3, 0), 2);
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    etch_function_free(f);
}

TEST(marked_static_is_guarded) {
    for (int on = 0; on < 2; on++) {
        etch_function *f = etch_compile(plain, .backend = backend,
                                        .dynamic = on ? ETCH_DYNAMIC_ON : ETCH_DYNAMIC_AUTO);
        for (int i = 0; i < 8; i++) {
            etch_tensor *x = numbers(4 + i % 4, 3, 0);
            assert_int_equal(etch_mark_static(x, -2), ETCH_OK);
            call_with(f, plain, x, i < 4 ? i + 1 : 4);
        }
        etch_function_free(f);
    }
    /* The other dimension is free. */
    etch_function *f = etch_compile(plain, .backend = backend);
    for (int i = 0; i < 4; i++) {
        etch_tensor *x = numbers(4, 2 + i, 0);
        assert_int_equal(etch_mark_static(x, 0), ETCH_OK);
        call_with(f, plain, x, i ? 2 : 1);
    }
    etch_function_free(f);
}

static void assert_specialised(const etch_tensor *got, const char *what, int line) {
    char where[64];
    snprintf(where, sizeof where, "test_marks.c:%d", line);
    assert_null(got);
    assert_int_equal(etch_last_status(), ETCH_ERR_SPECIALISED);
    assert_non_null(strstr(etch_last_error(), what));
    if (line) assert_non_null(strstr(etch_last_error(), where));
    etch_clear_error();
}

static etch_status repeat_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    etch_tensor *y = etch_mul_scalar(args[0].tensor, (double)args[1].i);
    return y && etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}

static etch_status repeat_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(args[0].tensor);
    out->sizes = etch_sizes(args[0].tensor);
    return ETCH_OK;
}

static int op_line;
static int64_t fixed_number;

static etch_tensor *size_as_attribute(etch_tensor *x) {
    etch_tensor *y = etch_neg(x), *out[1] = {NULL};
    int64_t n = fixed_number ? fixed_number : etch_size(x, 0);
    etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = y}, {.tag = ETCH_VALUE_INT, .i = n}};
    op_line = __LINE__ + 1;
    etch_op_call(etch_op_find("marks::times"), args, 2, out, 1);
    return out[0];
}

/* A size that an operator keeps in the trace, where it stands for the number of an axis: an error
 * for a marked dimension, else another trace. */
TEST(specialised_attribute_is_an_error) {
    etch_function *f = etch_compile(size_as_attribute, .backend = backend);
    call_with(f, size_as_attribute, dynamic_arg(4, 0, 0), 1);
    call_with(f, size_as_attribute, dynamic_arg(4, 0, 0), 1);
    assert_specialised(etch_call(f, dynamic_arg(5, 0, 0)),
                       "marks::times takes the size of dimension 0 of argument 0", op_line);
    call_with(f, size_as_attribute, numbers(5, 3, 0), 2);
    fixed_number = 9; /* no size at all */
    call_with(f, size_as_attribute, dynamic_arg(6, 0, 0), 3);
    fixed_number = 0;
    etch_function_free(f);
}

TEST(specialised_function_is_an_error) {
    etch_function *f = etch_compile(plain, .backend = backend, .dynamic = ETCH_DYNAMIC_OFF);
    etch_tensor *x = dynamic_arg(4, 0, 0);
    etch_tensor *got = etch_call(f, x);
    assert_specialised(got, "ETCH_DYNAMIC_OFF", __LINE__ - 1);
    assert_int_equal(etch_mark_static(x, 0), ETCH_OK); /* the later mark counts */
    call_with(f, plain, x, 1);
    etch_function_free(f);
    f = etch_compile(uses_captured, .backend = backend, .dynamic = ETCH_DYNAMIC_OFF);
    captured = dynamic_arg(4, 0, 0);
    assert_specialised(etch_call(f, numbers(4, 3, 0)), "mul.Tensor captures", 0);
    etch_function_free(f);
}

static etch_tensor *breaks_between(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    etch_graph_break("here");
    etch_tensor *z = etch_exp(y);
    return etch_sub(z, y);
}

TEST(marks_reach_segments_and_captured_tensors) {
    etch_function *f = etch_compile(breaks_between, .backend = backend);
    for (int64_t rows = 2; rows < 7; rows++)
        call_with(f, breaks_between, dynamic_arg(rows, 0, 0), 2);
    etch_function_free(f);
    f = etch_compile(uses_captured, .backend = backend);
    for (int64_t rows = 2; rows < 7; rows++) {
        captured = dynamic_arg(rows, 0, 0);
        etch_tensor *one = etch_slice(captured, 0, 0, 1, 1);
        call_with(f, uses_captured, one, 1);
    }
    etch_function_free(f);
    f = etch_compile(uses_captured, .backend = backend, .dynamic = ETCH_DYNAMIC_ON);
    for (int i = 0; i < 6; i++) {
        captured = numbers(2 + i % 3, 3, 0);
        assert_int_equal(etch_mark_static(captured, 0), ETCH_OK);
        call_with(f, uses_captured, numbers(1, 3, i), i < 3 ? i + 1 : 3);
    }
    etch_function_free(f);
}

static etch_tensor *marks_inside(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    if (body_runs++ == 1) assert_int_equal(etch_mark_dynamic(y, 0, 0, 0), ETCH_OK);
    captured = etch_retain(y);
    return etch_neg(y);
}

/* Results have no marks, and one that a result of the body got does not come
 * back in a later call. */
TEST(marks_are_not_inherited) {
    etch_function *f = etch_compile(plain, .backend = backend);
    for (int64_t rows = 4; rows < 6; rows++)
        call_with(f, plain, etch_neg(dynamic_arg(rows, 0, 0)), (int)rows - 3);
    etch_function_free(f);
    f = etch_compile(marks_inside, .backend = backend);
    etch_function *off = etch_compile(plain, .backend = backend, .dynamic = ETCH_DYNAMIC_OFF);
    for (int i = 0; i < 4; i++) {
        assert_non_null(etch_call(f, numbers(2, 3, 0)));
        etch_tensor *got = etch_call(off, captured);
        etch_release(captured);
        if (i == 1) assert_specialised(got, "ETCH_DYNAMIC_OFF", 0);
        else assert_non_null(got);
    }
    etch_function_free(f);
    etch_function_free(off);
}

TEST(bad_marks) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(4, 3, 0);
        assert_int_equal(etch_mark_dynamic(x, 2, 0, 0), ETCH_ERR_DIM_RANGE);
        assert_int_equal(etch_mark_static(x, -3), ETCH_ERR_DIM_RANGE);
        assert_int_equal(etch_mark_dynamic(x, 0, 5, 4), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(x, 0, -1, 4), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(x, 0, 5, 9), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(x, 0, 0, 3), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(ETCH_NONE, 0, 0, 0), ETCH_ERR_INVALID_ARGUMENT);
        etch_clear_error();
        assert_int_equal(etch_mark_dynamic(NULL, 0, 0, 0), ETCH_ERR_NULL);
        assert_int_equal(etch_mark_static(NULL, 0), ETCH_ERR_NULL);
        etch_clear_error();
    }
}

int main(int argc, char **argv) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = repeat_kernel, .shape = repeat_shape};
    if (!etch_op_register("marks::times(Tensor self, int dim) -> Tensor", &d)) return 1;
    return run_suite(argc, argv);
}
