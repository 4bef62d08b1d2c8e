/* etch_op_override: eager and compiled code see it, traces are left once, inside a body it is a
 * graph break, and several may be undone in any order.
 * Labels: quick device fake. */
#include "trace_support.h"

#include <string.h>

#include "device_support.h"

/* Of the device that the tensors of the suite lie on. */
#define DEVICE_UNDER_TEST (test_device() == ETCH_CPU ? "cpu" : "cuda")

typedef struct journal {
    int runs;
    double add; /* added to the native result, so that each override is seen */
} journal;

/* mm as a sum of columns times rows, plus a number; through operators only. */
static etch_status mm_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                             etch_tensor *const *out, int nout) {
    journal *j = ctx;
    (void)op, (void)nargs, (void)nout;
    j->runs++;
    etch_tensor *b = etch_unsqueeze(args[1].tensor, 0);
    etch_tensor *a = etch_unsqueeze(args[0].tensor, 2);
    etch_tensor *terms = etch_mul(a, b);
    etch_tensor *sum = etch_sum_dim(terms, ETCH_DIMS(1), false);
    sum = etch_add_scalar(sum, j->add);
    return etch_copy_(out[0], sum) ? ETCH_OK : etch_last_status();
}

static etch_status relu_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor *const *out, int nout) {
    journal *j = ctx;
    (void)op, (void)nargs, (void)nout;
    j->runs++;
    etch_tensor *y = etch_add_scalar(args[0].tensor, j->add);
    return etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}

static const etch_op *mm(void) { return etch_op_find("mm"); }
static const etch_op *relu(void) { return etch_op_find("relu"); }

static etch_tensor *body(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_sin(x);
    etch_tensor *p = etch_mm(a, w);
    etch_tensor *r = etch_relu(p);
    return etch_add_scalar(r, 1.0);
}

#define FOR_BACKENDS(b)                                                                            \
    for (int b = 0; b < 2; b++)                                                                    \
        ETCH_SCOPE

TEST(eager_sees_it) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(4, 4), *native = etch_mm(x, x);
        journal j = {0, 1000};
        etch_override *o = etch_op_override(mm(), DEVICE_UNDER_TEST, mm_kernel, &j);
        assert_non_null(o);
        etch_tensor *y = etch_mm(x, x);
        assert_true(etch_allclose(y, etch_add_scalar(native, 1000.0), 1e-5, 1e-3, false));
        assert_int_equal(j.runs, 1);
        etch_tensor *through_matmul = etch_matmul(x, x); /* a composite reaches mm as well */
        assert_same(through_matmul, y);
        etch_op_override_undo(o);
        assert_same(etch_mm(x, x), native);
        assert_int_equal(j.runs, 2);
    }
}

TEST(compiled_sees_it_and_compiles_once) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(body, .backend = test_backends[b], .fullgraph = true);
        etch_tensor *x = arange_f32(4, 4), *w = arange_f32(4, 4), *native = body(x, w);
        for (int i = 0; i < 3; i++) assert_same(etch_call(f, x, w), native);
        assert_int_equal(etch_function_counters(f).graphs, 1);
        journal j = {0, 50};
        etch_override *o = etch_op_override(mm(), DEVICE_UNDER_TEST, mm_kernel, &j);
        etch_tensor *replaced = body(x, w);
        assert_false(etch_bitwise_equal(replaced, native));
        for (int i = 0; i < 3; i++) {
            j.runs = 0;
            assert_same(etch_call(f, x, w), replaced);
            assert_int_equal(j.runs, 1);
        }
        assert_int_equal(etch_function_counters(f).graphs, 2);
        etch_op_override_undo(o);
        j.runs = 0;
        for (int i = 0; i < 3; i++) assert_same(etch_call(f, x, w), native);
        assert_int_equal(etch_function_counters(f).graphs, 3);
        assert_int_equal(j.runs, 0);
        etch_function_free(f);
    }
}

/* A fused pointwise operator becomes a call of the user's kernel, once a call. */
TEST(pointwise_becomes_opaque) {
    FOR_BACKENDS(b) {
        etch_function *f = etch_compile(body, .backend = test_backends[b]);
        etch_tensor *x = arange_f32(5, 5), *native = body(x, x);
        assert_same(etch_call(f, x, x), native);
        assert_same(etch_call(f, x, x), native);
        journal j = {0, 0.25};
        etch_override *o = etch_op_override(relu(), DEVICE_UNDER_TEST, relu_kernel, &j);
        etch_tensor *replaced = body(x, x);
        for (int i = 0; i < 3; i++) {
            j.runs = 0;
            assert_same(etch_call(f, x, x), replaced);
            assert_int_equal(j.runs, 1);
        }
        etch_op_override_undo(o);
        assert_same(etch_call(f, x, x), native);
        assert_same(etch_call(f, x, x), native);
        etch_function_free(f);
    }
}

static journal inside = {0, 7};
static etch_tensor *overrides_inside(etch_tensor *x) {
    etch_tensor *sum = etch_zeros(ETCH_F32, etch_sizes(x));
    for (int i = 0; i < 3; i++) {
        etch_tensor *y = etch_relu(x);
        etch_override *o = etch_op_override(relu(), DEVICE_UNDER_TEST, relu_kernel, &inside);
        if (!o) return NULL;
        etch_tensor *z = etch_relu(x);
        etch_op_override_undo(o);
        y = etch_mul(y, z);
        sum = etch_add(sum, y);
    }
    return sum;
}

TEST(inside_a_body_it_breaks) {
    FOR_BACKENDS(b) {
        etch_tensor *x = arange_f32(3, 3), *expected = overrides_inside(x);
        etch_function *f = etch_compile(overrides_inside, .backend = test_backends[b]);
        for (int i = 0; i < 3; i++) {
            inside.runs = 0;
            assert_same(etch_call(f, x), expected);
            assert_int_equal(inside.runs, 3);
        }
        assert_true(etch_function_counters(f).graph_breaks > 0);
        etch_function_free(f);
        f = etch_compile(overrides_inside, .backend = test_backends[b], .fullgraph = true);
        etch_clear_error();
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        assert_non_null(strstr(etch_last_error(), "override"));
        etch_function_free(f);
        assert_same(overrides_inside(x), expected); /* nothing is left overridden */
    }
}

TEST(undone_out_of_order) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(3, 3), *native = etch_relu(x);
        journal j[3] = {{0, 1}, {0, 2}, {0, 4}};
        etch_override *o[3];
        etch_tensor *with[3];
        for (int i = 0; i < 3; i++) with[i] = etch_add_scalar(x, j[i].add);
        for (int i = 0; i < 3; i++) {
            o[i] = etch_op_override(relu(), DEVICE_UNDER_TEST, relu_kernel, &j[i]);
            assert_same(etch_relu(x), with[i]);
        }
        etch_op_override_undo(o[1]); /* from the middle */
        assert_same(etch_relu(x), with[2]);
        etch_op_override_undo(o[2]);
        assert_same(etch_relu(x), with[0]);
        etch_op_override_undo(o[0]);
        assert_same(etch_relu(x), native);
        o[0] = etch_op_override(relu(), DEVICE_UNDER_TEST, relu_kernel, &j[0]);
        o[1] = etch_op_override(relu(), DEVICE_UNDER_TEST, relu_kernel, &j[1]);
        etch_op_override_undo(o[0]); /* from the bottom */
        assert_same(etch_relu(x), with[1]);
        etch_op_override_undo(o[1]);
        assert_same(etch_relu(x), native);
    }
}

static etch_status nested_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor *const *out, int nout) {
    (void)op, (void)nargs, (void)nout;
    ((journal *)ctx)->runs++;
    etch_tensor *y = etch_relu(args[0].tensor);
    return y && etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}

/* An override of one operator that calls another overridden one. */
TEST(kernels_call_overridden_operators) {
    FOR_BACKENDS(b) {
        etch_tensor *x = arange_f32(3, 3);
        journal j = {0, 3}, k = {0, 0};
        etch_override *o = etch_op_override(relu(), DEVICE_UNDER_TEST, relu_kernel, &j);
        etch_override *p =
            etch_op_override(etch_op_find("sin"), DEVICE_UNDER_TEST, nested_kernel, &k);
        etch_function *f = etch_compile(body, .backend = test_backends[b]);
        etch_tensor *expected = body(x, x);
        j.runs = k.runs = 0;
        for (int i = 1; i < 4; i++) {
            assert_same(etch_call(f, x, x), expected);
            assert_int_equal(j.runs, 2 * i);
            assert_int_equal(k.runs, i);
        }
        etch_function_free(f);
        etch_op_override_undo(p);
        etch_op_override_undo(o);
    }
}

static etch_status failing_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_ERR_UNSUPPORTED;
}

TEST(kernels_that_fail) {
    FOR_BACKENDS(b) {
        etch_tensor *x = arange_f32(3, 3), *native = body(x, x);
        etch_function *f = etch_compile(body, .backend = test_backends[b]);
        etch_override *o = etch_op_override(mm(), DEVICE_UNDER_TEST, failing_kernel, NULL);
        for (int i = 0; i < 3; i++) {
            etch_clear_error();
            assert_null(etch_call(f, x, x));
            assert_int_equal(etch_last_status(), ETCH_ERR_UNSUPPORTED);
            assert_non_null(strstr(etch_last_error(), "mm: the kernel failed"));
        }
        etch_op_override_undo(o);
        assert_same(etch_call(f, x, x), native);
        etch_function_free(f);
    }
}

typedef struct watch {
    int mms, others;
} watch;

static etch_status watch_handler(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor **out, int nout) {
    watch *w = ctx;
    (void)args, (void)nargs, (void)out, (void)nout;
    if (etch_op_is(op, "mm")) w->mms++;
    else w->others++;
    return ETCH_DECLINED;
}

/* Overridden operators are opaque nodes: modes that allow compiled code are offered them. */
TEST(modes_see_them) {
    FOR_BACKENDS(b) {
        etch_tensor *x = arange_f32(3, 3);
        watch w = {0};
        journal j = {0, 3};
        etch_override *o = etch_op_override(mm(), DEVICE_UNDER_TEST, mm_kernel, &j);
        etch_mode *m = etch_mode_new(watch_handler, &w, .allow_compiled = true);
        etch_function *f = etch_compile(body, .backend = test_backends[b]);
        etch_tensor *expected = body(x, x);
        ETCH_WITH_MODE (m)
            for (int i = 1; i < 4; i++) {
                assert_same(etch_call(f, x, x), expected);
                assert_int_equal(w.mms, i);
                assert_int_equal(w.others, 0);
            }
        etch_function_free(f);
        etch_mode_free(m);
        etch_op_override_undo(o);
    }
}

TEST(refused) {
    journal j = {0};
    etch_clear_error();
    assert_null(etch_op_override(etch_op_find("transpose"), DEVICE_UNDER_TEST, mm_kernel, &j));
    assert_int_equal(etch_last_status(), ETCH_ERR_UNSUPPORTED);
    assert_null(etch_op_override(etch_op_find("matmul"), DEVICE_UNDER_TEST, mm_kernel, &j));
    assert_int_equal(etch_last_status(), ETCH_ERR_UNSUPPORTED);
    assert_null(etch_op_override(mm(), "tpu", mm_kernel, &j));
    assert_int_equal(etch_last_status(), ETCH_ERR_DEVICE);
    assert_null(etch_op_override(NULL, DEVICE_UNDER_TEST, mm_kernel, &j));
    assert_null(etch_op_override(mm(), DEVICE_UNDER_TEST, NULL, &j));
    assert_int_equal(etch_last_status(), ETCH_ERR_NULL);
    etch_op_override_undo(NULL);
}
