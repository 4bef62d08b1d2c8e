/* etch_jvp, etch_vjp, etch_jacobian, etch_hessian: textbook functions, inside of each other,
 * compiled, and what does not fit. Forward mode of each operator is in test_forward_ops.c. Labels:
 * quick. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "trace_support.h"

static etch_tensor *vec(int n, const double *v) {
    return etch_from_host(v, ETCH_F64, ETCH_SHAPE(n));
}
#define VEC(...)                                                                                   \
    vec((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static void assert_near(etch_tensor *t, const double *want, int n, double bound) {
    double got[32];
    if (!t) fail_msg("%s", etch_last_error());
    assert_int_equal(etch_numel(t), n);
    assert_int_equal(etch_to_host(etch_to(t, ETCH_F64), got, sizeof *got * (size_t)n), ETCH_OK);
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= bound)) fail_msg("%d: %.15g for %.15g", i, got[i], want[i]);
}

#define assert_fails(code, part, call)                                                             \
    do {                                                                                           \
        etch_clear_error();                                                                        \
        assert_false(call);                                                                        \
        assert_int_equal(etch_last_status(), code);                                                \
        if (!strstr(etch_last_error(), part)) fail_msg("%s", etch_last_error());                   \
        etch_clear_error();                                                                        \
    } while (0)

/* ---- textbook functions ---- */

/* x = r cos(a), y = r sin(a) */
static etch_tensor *polar(etch_tensor *p) {
    etch_tensor *r = etch_select(p, 0, 0), *a = etch_select(p, 0, 1);
    etch_tensor *xy[2] = {etch_mul(r, etch_cos(a)), etch_mul(r, etch_sin(a))};
    return etch_stack(xy, 2, 0);
}

/* (1 - x)^2 + 100 (y - x^2)^2 */
static etch_tensor *rosenbrock(etch_tensor *p) {
    etch_tensor *x = etch_select(p, 0, 0), *y = etch_select(p, 0, 1);
    etch_tensor *valley = etch_square(etch_sub(y, etch_square(x)));
    return etch_add(etch_square(etch_rsub_scalar(x, 1)), etch_mul_scalar(valley, 100));
}

/* x^T A x / 2 */
static etch_tensor *matrix;
static etch_tensor *quadratic(etch_tensor *x) {
    return etch_mul_scalar(etch_dot(x, etch_mv(matrix, x)), 0.5);
}

static void check_polar(etch_jacobian_mode mode, int64_t chunk) {
    const double r = 1.5, a = 0.7;
    etch_tensor *p = VEC(r, a);
    etch_tensor *j = etch_jacobian(polar, &p, 1, .mode = mode, .chunk = chunk);
    assert_near(j, (double[]){cos(a), -r * sin(a), sin(a), r * cos(a)}, 4, 1e-14);
    assert_int_equal(etch_ndim(j), 2);
}

TEST(jacobians) {
    ETCH_SCOPE
        for (etch_jacobian_mode mode = ETCH_JACOBIAN_AUTO; mode <= ETCH_JACOBIAN_REVERSE; mode++)
            for (int64_t chunk = 0; chunk < 3; chunk++) check_polar(mode, chunk);
}

TEST(hessians) {
    ETCH_SCOPE {
        const double x = -1.2, y = 1;
        etch_tensor *p = VEC(x, y);
        etch_tensor *h = etch_hessian(rosenbrock, &p, 1);
        assert_near(h, (double[]){2 - 400 * y + 1200 * x * x, -400 * x, -400 * x, 200}, 4, 1e-10);
        matrix = etch_reshape(VEC(2, 1, 0, 1, 3, -1, 0, -1, 4), ETCH_SHAPE(3, 3));
        p = VEC(0.3, -0.4, 0.5);
        assert_near(etch_hessian(quadratic, &p, 1, .chunk = 2),
                    (double[]){2, 1, 0, 1, 3, -1, 0, -1, 4}, 9, 1e-12);
    }
}

static etch_tensor *of_matrices(etch_tensor *a, etch_tensor *b) { return etch_mm(a, b); }

TEST(jacobians_have_the_sizes_of_result_and_argument) {
    ETCH_SCOPE {
        etch_tensor *in[] = {etch_reshape(VEC(1, 2, 3, 4, 5, 6), ETCH_SHAPE(2, 3)),
                             etch_reshape(VEC(1, 0, 2, 1, 0, 3), ETCH_SHAPE(3, 2))};
        etch_tensor *forward =
            etch_jacobian(of_matrices, in, 2, .argument = 1, .mode = ETCH_JACOBIAN_FORWARD);
        etch_tensor *reverse =
            etch_jacobian(of_matrices, in, 2, .argument = 1, .mode = ETCH_JACOBIAN_REVERSE);
        assert_int_equal(etch_ndim(forward), 4);
        assert_int_equal(etch_size(forward, 2), 3);
        assert_same(forward, reverse);
        assert_near(etch_select(etch_select(forward, 0, 1), 0, 0), (double[]){4, 0, 5, 0, 6, 0}, 6,
                    1e-14);
    }
}

static etch_tensor *constant(etch_tensor *x) {
    etch_tensor *t = NULL;
    if (x) t = VEC(1, 2);
    return t;
}

TEST(what_does_not_depend_has_zeros) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(1, 2, 3), *y = NULL, *t = NULL;
        const double zeros[6] = {0};
        for (etch_jacobian_mode mode = ETCH_JACOBIAN_AUTO; mode <= ETCH_JACOBIAN_REVERSE; mode++)
            assert_near(etch_jacobian(constant, &x, 1, .mode = mode), zeros, 6, 0);
        assert_int_equal(etch_jvp(constant, &x, &x, 1, &y, &t, 1), ETCH_OK);
        assert_near(t, zeros, 2, 0);
        assert_int_equal(etch_vjp(constant, &x, 1, &y, &y, 1, &t), ETCH_OK);
        assert_near(t, zeros, 3, 0);
    }
}

/* ---- inside of each other ---- */

/* The classical trap: d/dx (x d/dy (x + y)) at 1 is 1, and 2 where levels are confused. */
static etch_tensor *outer_x;
static etch_tensor *plus_outer(etch_tensor *y) { return etch_add(outer_x, y); }
static etch_tensor *times_inner(etch_tensor *x) {
    etch_tensor *y = NULL, *t = NULL, *one = VEC(1), *at = VEC(1);
    outer_x = x;
    return etch_jvp(plus_outer, &at, &one, 1, &y, &t, 1) == ETCH_OK ? etch_mul(x, t) : NULL;
}

TEST(levels_are_not_confused) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(1), *one = VEC(1), *y = NULL, *t = NULL;
        assert_int_equal(etch_jvp(times_inner, &x, &one, 1, &y, &t, 1), ETCH_OK);
        assert_near(t, (double[]){1}, 1, 0);
    }
}

/* Derivatives of sin by etch_jvp of etch_jvp of ... */
static int order;
static etch_tensor *derivative(etch_tensor *x) {
    if (!order) return etch_sin(x);
    etch_tensor *y = NULL, *t = NULL, *one = etch_ones(ETCH_F64, etch_sizes(x));
    int of = order--;
    etch_status status = etch_jvp(derivative, &x, &one, 1, &y, &t, 1);
    order = of;
    return status == ETCH_OK ? t : NULL;
}

TEST(derivatives_of_any_order) {
    const double x = 0.4, want[5] = {sin(x), cos(x), -sin(x), -cos(x), sin(x)};
    ETCH_SCOPE
        for (order = 0; order < 5; order++) assert_near(derivative(VEC(x)), &want[order], 1, 1e-14);
}

/* A loss of a second derivative, as of a differential equation, and its gradient for a
 * parameter. */
static etch_tensor *parameter;
static etch_tensor *wave(etch_tensor *x) { return etch_sin(etch_mul(parameter, x)); }
static etch_tensor *slope(etch_tensor *x) {
    etch_tensor *y = NULL, *t = NULL, *one = etch_ones(ETCH_F64, etch_sizes(x));
    return etch_jvp(wave, &x, &one, 1, &y, &t, 1) == ETCH_OK ? t : NULL;
}
static etch_tensor *curvature(etch_tensor *x) {
    etch_tensor *y = NULL, *t = NULL, *one = etch_ones(ETCH_F64, etch_sizes(x));
    return etch_jvp(slope, &x, &one, 1, &y, &t, 1) == ETCH_OK ? t : NULL;
}

TEST(gradients_of_second_derivatives) {
    ETCH_SCOPE {
        const double k = 1.3, x = 0.7;
        parameter = etch_requires_grad_(VEC(k), true);
        etch_tensor *c = curvature(VEC(x)), *g = NULL; /* -k^2 sin(k x) */
        assert_near(etch_detach(c), (double[]){-k * k * sin(k * x)}, 1, 1e-14);
        assert_int_equal(etch_grad(&c, 1, &parameter, 1, NULL, NULL, &g), ETCH_OK);
        assert_near(g, (double[]){-2 * k * sin(k * x) - k * k * x * cos(k * x)}, 1, 1e-13);
    }
}

static etch_tensor *jacobian_of_polar(etch_tensor *p) { return etch_jacobian(polar, &p, 1); }

TEST(jacobians_of_jacobians_and_of_batches) {
    ETCH_SCOPE {
        etch_tensor *p = VEC(1.5, 0.7);
        etch_tensor *second = etch_jacobian(jacobian_of_polar, &p, 1);
        assert_int_equal(etch_ndim(second), 3);
        assert_near(etch_select(second, 0, 0), (double[]){0, -sin(0.7), -sin(0.7), -1.5 * cos(0.7)},
                    4, 1e-14);
        etch_tensor *batch = etch_reshape(VEC(1.5, 0.7, 2, -0.3, 1, 0), ETCH_SHAPE(3, 2));
        etch_function *f = etch_vmap(jacobian_of_polar, ETCH_DIMS(0), ETCH_DIMS(0));
        etch_tensor *j = etch_call(f, batch);
        etch_function_free(f);
        for (int64_t b = 0; b < 3; b++)
            assert_same(etch_select(j, 0, b), jacobian_of_polar(etch_select(batch, 0, b)));
    }
}

/* ---- compiled ---- */

static etch_tensor *hessian_of_rosenbrock(etch_tensor *p) {
    return etch_hessian(rosenbrock, &p, 1);
}
static etch_tensor *newton(etch_tensor *p) { /* one step of a line search along the gradient */
    etch_tensor *y = NULL, *g = NULL, *t = NULL, *slope_there = NULL;
    if (etch_vjp(rosenbrock, &p, 1, NULL, &y, 1, &g) != ETCH_OK) return NULL;
    if (etch_jvp(rosenbrock, &p, &g, 1, &t, &slope_there, 1) != ETCH_OK) return NULL;
    return etch_sub(p, etch_mul_scalar(etch_mul(g, etch_div(y, slope_there)), 0.5));
}

TEST(inside_compiled_functions_all_of_it_is_one_graph) {
    etch_fn1 bodies[] = {hessian_of_rosenbrock, jacobian_of_polar, newton, curvature, slope};
    for (int i = 0; i < 5; i++)
        ETCH_SCOPE {
            parameter = VEC(1.3, 0.2);
            etch_function *f = etch_compile(bodies[i], .fullgraph = true);
            for (int k = 0; k < 4; k++) {
                etch_tensor *p = VEC(0.3 + k, 0.4);
                etch_tensor *got = etch_call(f, p);
                if (!got) fail_msg("%d: %s", i, etch_last_error());
                assert_same(got, bodies[i](p));
            }
            assert_int_equal(etch_function_counters(f).graphs, 1);
            etch_function_free(f);
        }
}

/* A tangent passes through a compiled function as through its body. */
static etch_function *compiled;
static etch_tensor *calls_compiled(etch_tensor *p) { return etch_call(compiled, p); }

TEST(through_a_compiled_function) {
    ETCH_SCOPE {
        compiled = etch_compile(rosenbrock);
        etch_tensor *p = VEC(-1.2, 1), *d = VEC(0.5, -1), *y = NULL, *t = NULL, *want = NULL;
        assert_int_equal(etch_jvp(rosenbrock, &p, &d, 1, &y, &want, 1), ETCH_OK);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(etch_jvp(calls_compiled, &p, &d, 1, &y, &t, 1), ETCH_OK);
            assert_same(t, want);
            assert_same(y, rosenbrock(p));
            assert_same(etch_call(compiled, p), rosenbrock(p)); /* and without one */
        }
        etch_function_free(compiled);
    }
}

/* ---- in place ---- */

static etch_tensor *writes(etch_tensor *x) {
    etch_tensor *y = etch_clone(x), *v = etch_slice(y, 0, 1, 3, 1);
    etch_mul_(y, etch_sin(x));
    etch_square(v);
    etch_mul_scalar_(v, 3);
    etch_zero_(etch_select(y, 0, 2));
    etch_exp_(etch_select(y, 0, 0));
    return etch_add(y, x); /* x's tangent is what it was */
}

TEST(tangents_are_written_with_their_tensors) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(0.3, 0.5, 0.7), *j = etch_jacobian(writes, &x, 1);
        double want[9] = {0}, a = 0.3, b = 0.5;
        want[0] = exp(a * sin(a)) * (sin(a) + a * cos(a)) + 1;
        want[4] = 3 * (sin(b) + b * cos(b)) + 1;
        want[8] = 1;
        assert_near(j, want, 9, 1e-14);
        assert_near(x, (double[]){0.3, 0.5, 0.7}, 3, 0);
    }
}

static etch_tensor *writes_its_argument(etch_tensor *x) { return etch_mul_scalar_(x, 2); }
static etch_tensor *into_a_view_without(etch_tensor *x) {
    etch_tensor *base = etch_zeros(ETCH_F64, ETCH_SHAPE(3));
    return etch_copy_(etch_slice(base, 0, 0, 2, 1), x) ? base : NULL;
}

TEST(writes_that_reach_further) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(1, 2), *t = VEC(1, 1), *y = NULL, *ty = NULL;
        assert_int_equal(etch_jvp(writes_its_argument, &x, &t, 1, &y, &ty, 1), ETCH_OK);
        assert_near(ty, (double[]){2, 2}, 2, 0);
        assert_near(t, (double[]){1, 1}, 2, 0); /* the direction is the caller's, and stays */
        assert_near(x, (double[]){2, 4}, 2, 0);
        assert_fails(ETCH_ERR_INVALID_ARGUMENT, "view of a tensor that has none",
                     etch_jvp(into_a_view_without, &x, &t, 1, &y, &ty, 1) == ETCH_OK);
        assert_null(y);
        assert_null(ty);
    }
}

/* ---- what does not fit ---- */

static etch_tensor *fails(etch_tensor *x) { return etch_mm(x, x); }
static etch_tensor *steps(etch_tensor *x) { return etch_argmax(x); }
static ETCH_FN_N(gives_none, ctx, in, nin, out, nout) { return ETCH_OK; }

TEST(what_does_not_fit) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(1, 2), *t = VEC(1, 1, 1), *y = NULL, *ty = NULL;
        etch_tensor *i = etch_arange(ETCH_I64, 0, 2, 1);
        assert_fails(ETCH_ERR_SHAPE, "tangent 0",
                     etch_jvp(polar, &x, &t, 1, &y, &ty, 1) == ETCH_OK);
        assert_fails(ETCH_ERR_DTYPE, "tangent 0",
                     etch_jvp(polar, &x, &i, 1, &y, &ty, 1) == ETCH_OK);
        assert_fails(ETCH_ERR_INVALID_ARGUMENT, "1 arguments",
                     etch_jvp(polar, &x, &x, 2, &y, &ty, 1) == ETCH_OK);
        assert_fails(ETCH_ERR_SHAPE, "mm", etch_jvp(fails, &x, &x, 1, &y, &ty, 1) == ETCH_OK);
        assert_fails(ETCH_ERR_SHAPE,
                     "etch_vjp: expected an output of one element, got sizes [2]; give a gradient "
                     "for it, or sum it",
                     etch_vjp(polar, &x, 1, NULL, &y, 1, &ty) == ETCH_OK);
        assert_fails(ETCH_ERR_SHAPE, "etch_vjp: expected a gradient with the sizes of its output",
                     etch_vjp(polar, &x, 1, &t, &y, 1, &ty) == ETCH_OK);
        assert_fails(ETCH_ERR_SHAPE, "etch_vjp: expected a gradient with the sizes of its output",
                     etch_vjp(polar, &x, 1, &i, &y, 1, &ty) == ETCH_OK); /* of whole numbers */
        assert_fails(ETCH_ERR_DTYPE, "floating", etch_jacobian(polar, &i, 1));
        assert_fails(ETCH_ERR_DTYPE, "argument 0 is not of floating-point numbers",
                     etch_jvp(polar, &i, &i, 1, &y, &ty, 1) == ETCH_OK);
        assert_fails(ETCH_ERR_INVALID_ARGUMENT, "argument",
                     etch_jacobian(polar, &x, 1, .argument = 1));
        assert_fails(ETCH_ERR_SHAPE,
                     "etch_hessian: expected an output of one element, got sizes [2]; sum it",
                     etch_hessian(polar, &x, 1));
        const etch_callable none = ETCH_CALLABLE(gives_none, NULL);
        assert_fails(ETCH_ERR_USER,
                     "etch_jacobian: ", etch_jacobian(none, &x, 1, .mode = ETCH_JACOBIAN_FORWARD));
        assert_fails(ETCH_ERR_USER, "etch_hessian: ", etch_hessian(none, &x, 1));
        assert_int_equal(etch_jvp(steps, &x, &x, 1, &y, &ty, 1), ETCH_OK); /* no reals: zeros */
        assert_int_equal(etch_item_int(ty), 0);
        assert_non_null(etch_neg(x)); /* all levels have ended */
    }
}

/* Gradients of other floating dtypes are rounded to that of the result. */
TEST(gradients_of_another_dtype) {
    ETCH_SCOPE {
        etch_tensor *x = etch_to(VEC(0.5, -2), ETCH_F32), *wide = VEC(1.0 / 3, 1e-60);
        etch_tensor *narrow = etch_to(wide, ETCH_F32), *y, *a, *b;
        assert_int_equal(etch_vjp(polar, &x, 1, &wide, &y, 1, &a), ETCH_OK);
        assert_int_equal(etch_vjp(polar, &x, 1, &narrow, &y, 1, &b), ETCH_OK);
        assert_int_equal(etch_dtype_of(a), ETCH_F32);
        assert_same(a, b);
    }
}

static jmp_buf out_of_here;
static etch_tensor *jumps(etch_tensor *x) {
    (void)x;
    longjmp(out_of_here, 1);
}

static void jump_out(etch_tensor *x, bool forward) {
    etch_tensor *y = NULL, *t = NULL;
    int64_t mark = etch_scope_begin();
    if (setjmp(out_of_here)) {
    } else if (forward) etch_jvp(jumps, &x, &x, 1, &y, &t, 1);
    else etch_vjp(jumps, &x, 1, NULL, &y, 1, &t);
    etch_scope_end(mark);
}

/* Nothing of the call is left: no level, no tape, no memory. */
TEST(a_function_that_jumps_out) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(0.2, 0.1), *y = NULL, *t = NULL;
        for (int way = 0; way < 2; way++) {
            for (int i = 0; i < 50; i++) jump_out(x, way);
            size_t before = mallinfo2().uordblks;
            for (int i = 0; i < 50; i++) jump_out(x, way);
            assert_int_equal(mallinfo2().uordblks, before);
            assert_int_equal(etch_jvp(rosenbrock, &x, &x, 1, &y, &t, 1), ETCH_OK);
            assert_false(etch_requires_grad(y) || etch_requires_grad(t));
        }
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* Where nothing requires gradients around, nothing does afterwards. */
TEST(no_history_is_left) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(0.2, 0.1), *y = NULL, *g = NULL;
        ETCH_NO_GRAD
            assert_int_equal(etch_vjp(rosenbrock, &x, 1, NULL, &y, 1, &g), ETCH_OK);
        assert_false(etch_requires_grad(y) || etch_requires_grad(g) || etch_requires_grad(x));
        etch_requires_grad_(x, true);
        assert_int_equal(etch_vjp(rosenbrock, &x, 1, NULL, &y, 1, &g), ETCH_OK);
        assert_true(etch_requires_grad(y) && etch_requires_grad(g));
        assert_null(etch_grad_of(x));
    }
}

/* A tape that has saved a result has its tangent, too, which was computed from that result: with
 * its level it goes. */
static etch_tensor *sin_of_exp(etch_tensor *x) { return etch_sin(etch_exp(x)); }
static etch_tensor *its_gradient(etch_tensor *x) {
    etch_tensor *y = NULL, *g = NULL, *one = etch_ones(ETCH_F64, etch_sizes(x));
    return etch_vjp(sin_of_exp, &x, 1, &one, &y, 1, &g) == ETCH_OK ? g : NULL;
}
static void forward_over_reverse(void) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(0.2, 0.1), *y = NULL, *t = NULL;
        assert_int_equal(etch_jvp(its_gradient, &x, &x, 1, &y, &t, 1), ETCH_OK);
        assert_non_null(etch_hessian(rosenbrock, &x, 1));
    }
}

TEST(tapes_with_tangents_leave_nothing_behind) {
    forward_over_reverse();
    etch_memory_stats before = etch_memory();
    for (int i = 0; i < 20; i++) forward_over_reverse();
    etch_memory_stats after = etch_memory();
    assert_int_equal(after.tensors, before.tensors);
    assert_int_equal(after.bytes_live, before.bytes_live);
}

static etch_tensor *kept;
static etch_tensor *keeps_history(etch_tensor *x) {
    kept = etch_retain(etch_exp(etch_mul(parameter, x)));
    return etch_sin(kept);
}

/* A tensor that the body has kept is an ordinary one afterwards. */
TEST(what_outlives_its_level) {
    ETCH_SCOPE {
        parameter = etch_requires_grad_(VEC(0.5), true);
        etch_tensor *x = VEC(0.7), *y = NULL, *t = NULL, *g = NULL;
        assert_int_equal(etch_jvp(keeps_history, &x, &x, 1, &y, &t, 1), ETCH_OK);
        etch_tensor *after = etch_square(kept);
        assert_int_equal(etch_grad(&after, 1, &parameter, 1, NULL, NULL, &g), ETCH_OK);
        assert_near(g, (double[]){2 * 0.7 * exp(0.7)}, 1, 1e-14);
        etch_release(kept);
    }
}

/* ---- as many at once as was asked for, in as many dimensions as there are ---- */

static int bodies;
static etch_tensor *counted_square(etch_tensor *x) {
    bodies++;
    return etch_square(x);
}

TEST(chunks_are_as_small_as_asked_for) {
    ETCH_SCOPE {
        etch_tensor *x = etch_arange(ETCH_F64, 0, 70, 1);
        etch_tensor *all = etch_jacobian(counted_square, &x, 1, .mode = ETCH_JACOBIAN_FORWARD),
                    *part;
        bodies = 0;
        part = etch_jacobian(counted_square, &x, 1, .mode = ETCH_JACOBIAN_FORWARD, .chunk = 1);
        assert_int_equal(bodies, 70);
        assert_same(part, all);
        assert_same(
            etch_jacobian(counted_square, &x, 1, .mode = ETCH_JACOBIAN_REVERSE, .chunk = 69), all);
    }
}

TEST(too_many_dimensions) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F64, ETCH_SHAPE(1, 2, 1, 2, 1));
        etch_tensor *most = etch_ones(ETCH_F64, ETCH_SHAPE(1, 2, 1, 1, 1, 1, 1, 1));
        for (etch_jacobian_mode m = ETCH_JACOBIAN_AUTO; m <= ETCH_JACOBIAN_REVERSE; m++) {
            assert_fails(ETCH_ERR_SHAPE, "at most 8 dimensions",
                         etch_jacobian(etch_neg, &x, 1, .mode = m));
            assert_fails(ETCH_ERR_SHAPE, "dimensions",
                         etch_jacobian(constant, &most, 1, .mode = m));
        }
        assert_fails(ETCH_ERR_SHAPE, "etch_hessian", etch_hessian(etch_sum, &x, 1));
        assert_fails(ETCH_ERR_SHAPE, "at most 7", etch_hessian(etch_sum, &most, 1));
    }
}

/* Blocks without gradients are about what goes on, not about what is asked for in them. */
TEST(in_blocks_without_gradients) {
    ETCH_SCOPE {
        etch_tensor *x = etch_requires_grad_(VEC(1.5, 0.7), true), *j = NULL, *h = NULL;
        for (etch_jacobian_mode mode = ETCH_JACOBIAN_AUTO; mode <= ETCH_JACOBIAN_REVERSE; mode++) {
            etch_tensor *want = etch_jacobian(polar, &x, 1, .mode = mode);
            assert_true(etch_requires_grad(want));
            ETCH_NO_GRAD
                j = etch_jacobian(polar, &x, 1, .mode = mode);
            assert_false(etch_requires_grad(j));
            assert_same(j, want);
            ETCH_INFERENCE
                j = etch_jacobian(polar, &x, 1, .mode = mode);
            assert_false(etch_requires_grad(j));
            assert_same(j, want);
        }
        ETCH_NO_GRAD
            h = etch_hessian(rosenbrock, &x, 1);
        assert_false(etch_requires_grad(h));
        assert_same(h, etch_hessian(rosenbrock, &x, 1));
    }
}

/* A tape with tangents is let go of as it was made, however long it is: without recursion. */
static etch_tensor *many_sines(etch_tensor *x) {
    for (int i = 0; i < 20000; i++) x = etch_sin(x);
    return x;
}
static etch_tensor *slope_of_many_sines(etch_tensor *x) {
    etch_tensor *y = NULL, *g = NULL;
    return etch_vjp(many_sines, &x, 1, NULL, &y, 1, &g) == ETCH_OK ? g : NULL;
}

TEST(long_tapes_with_tangents) {
    ETCH_SCOPE {
        etch_tensor *x = VEC(0.5), *y = NULL, *t = NULL, *one = VEC(1), *twice = NULL;
        assert_int_equal(etch_jvp(slope_of_many_sines, &x, &one, 1, &y, &t, 1), ETCH_OK);
        assert_int_equal(etch_vjp(slope_of_many_sines, &x, 1, NULL, &y, 1, &twice), ETCH_OK);
        assert_near(t, (double[]){etch_item(twice)}, 1, 1e-9);
    }
}
