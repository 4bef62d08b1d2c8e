/* Gradients: what the tape holds and the engine sums, what fails and how; and programs whose
 * gradients have the same bits whether forward, backward, both or neither are compiled.
 * Labels: quick fake. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/tensor/tensor.h"
#include "device_support.h"
#include "trace_support.h"

enum { MOST = 4, CALLS = 5 };

static etch_tensor *numbers(etch_shape size, double first) {
    int64_t n = 1;
    for (int d = 0; d < size.n; d++) n *= size.v[d];
    etch_tensor *t = etch_arange(ETCH_F32, 0, n, 1);
    return etch_reshape(etch_add_scalar(etch_mul_scalar(t, 0.25), first), size);
}

static etch_tensor *leaf(etch_shape size, double first) {
    return etch_requires_grad_(numbers(size, first), true);
}

static float at(etch_tensor *t, int i) {
    float all[256];
    assert_non_null(t);
    assert_int_equal(etch_to_host(t, all, sizeof *all * (size_t)etch_numel(t)), ETCH_OK);
    return all[i];
}

static void refused(bool failed, etch_status code, const char *text) {
    if (!failed || etch_last_status() != code || !strstr(etch_last_error(), text))
        fail_msg("expected \"%s\" in %s: %s", text, etch_status_name(etch_last_status()),
                 etch_last_error());
    etch_clear_error();
}

/* ---- leaves ---- */

TEST(leaves_accumulate) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(2, 3), 1), *x = numbers(ETCH_SHAPE(2, 3), 2);
        assert_true(etch_requires_grad(w) && etch_is_leaf(w));
        assert_true(!etch_requires_grad(x) && etch_is_leaf(x));
        assert_null(etch_grad_of(w));
        etch_tensor *loss = etch_sum(etch_mul(w, x));
        assert_true(etch_requires_grad(loss) && !etch_is_leaf(loss));
        assert_int_equal(etch_backward(loss), ETCH_OK);
        etch_tensor *grad = etch_grad_of(w);
        assert_same(grad, x);
        assert_false(etch_shares_storage(grad, x));
        assert_int_equal(etch_backward(etch_sum(etch_mul(w, x))), ETCH_OK);
        assert_ptr_equal(etch_grad_of(w), grad); /* written in place */
        assert_same(grad, etch_add(x, x));
        assert_int_equal(etch_zero_grad(w), ETCH_OK);
        assert_null(etch_grad_of(w));
        assert_null(etch_grad_of(x));
    }
}

TEST(what_may_require_gradients) {
    ETCH_SCOPE {
        etch_tensor *whole = etch_arange(ETCH_I64, 0, 3, 1), *w = leaf(ETCH_SHAPE(3), 1);
        refused(!etch_requires_grad_(whole, true), ETCH_ERR_DTYPE,
                "floating-point numbers, got i64");
        assert_ptr_equal(etch_requires_grad_(whole, false), whole);
        etch_tensor *y = etch_mul(w, w);
        assert_ptr_equal(etch_requires_grad_(y, true), y);
        refused(!etch_requires_grad_(y, false), ETCH_ERR_INVALID_ARGUMENT, "expected a leaf");
        assert_false(etch_requires_grad(etch_gt_scalar(w, 0)));
        assert_false(etch_requires_grad(etch_to(w, ETCH_I32)));
        assert_false(etch_requires_grad(etch_detach(w)));
        assert_true(etch_shares_storage(etch_detach(w), w));
        assert_ptr_equal(etch_requires_grad_(w, false), w);
        assert_false(etch_requires_grad(etch_mul(w, w)));
    }
}

/* Also where a tape still holds the leaf. */
TEST(a_leaf_no_more_has_no_gradient) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 1), *y = etch_sum(etch_mul(w, w));
        const etch_grad_options keep = {.struct_size = sizeof keep, .retain_graph = true};
        etch_backward_from(&y, 1, NULL, &keep);
        etch_tensor *grad = etch_retain(etch_grad_of(w));
        etch_requires_grad_(w, false);
        assert_int_equal(atomic_load(&grad->refs), 1); /* the test's own */
        etch_release(grad);
        assert_null(etch_grad_of(w));
        etch_requires_grad_(w, true);
        assert_null(etch_grad_of(w));
    }
}

/* The handler's own answer is somebody's tensor: it does not get a history by that. */
static etch_status answer_operand(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor **out, int nout) {
    (void)op, (void)args, (void)nargs, (void)nout;
    out[0] = ctx;
    return ETCH_OK;
}

TEST(a_handlers_operand_stays_without_history) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 1), *x = numbers(ETCH_SHAPE(3), 2), *y = NULL;
        etch_mode *mode = etch_mode_new(answer_operand, x);
        ETCH_WITH_MODE (mode) y = etch_mul(w, x);
        etch_mode_free(mode);
        assert_true(etch_requires_grad(y) && !etch_requires_grad(x));
        assert_int_equal(etch_backward(etch_sum(y)), ETCH_OK);
        assert_same(etch_grad_of(w), x);
    }
}

static etch_status count_call(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor **out, int nout) {
    (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    ++*(int *)ctx;
    return ETCH_DECLINED;
}

/* What the tape does for itself (keeping the old contents of what is written, among it) is no
 * operator of the program. */
TEST(modes_see_what_the_program_calls) {
    int calls = 0;
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 1), *x = numbers(ETCH_SHAPE(3), 2);
        etch_mode *mode = etch_mode_new(count_call, &calls);
        ETCH_WITH_MODE (mode) {
            etch_mul_(x, w);
            etch_exp(x);
        }
        etch_mode_free(mode);
        assert_int_equal(calls, 2);
    }
}

TEST(blocks_without_gradients) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 1), *y = NULL;
        assert_true(etch_grad_enabled());
        ETCH_NO_GRAD {
            assert_false(etch_grad_enabled());
            ETCH_NO_GRAD
                y = etch_mul(w, w);
            assert_false(etch_grad_enabled());
            assert_false(etch_requires_grad(y));
            assert_non_null(etch_add_(w, y)); /* a leaf may be written here */
        }
        assert_true(etch_grad_enabled());
        ETCH_INFERENCE
            assert_false(etch_requires_grad(etch_mul(w, w)));
        assert_true(etch_requires_grad(w));
        refused(etch_backward(etch_sum(y)) != ETCH_OK, ETCH_ERR_NO_GRAD, "output 0 does not");
    }
}

/* ---- the engine ---- */

/* 1e8 + 1 - 1e8: the sum depends on the order, and the operator called last comes first. */
TEST(sums_come_in_falling_program_order) {
    ETCH_SCOPE {
        etch_tensor *w = etch_requires_grad_(etch_ones(ETCH_F32, ETCH_SHAPE()), true);
        etch_tensor *a = etch_mul_scalar(w, 1), *b = etch_mul_scalar(w, 1e8);
        etch_tensor *c = etch_mul_scalar(w, -1e8);
        etch_backward(etch_add(etch_add(c, a), b));
        assert_float_equal(at(etch_grad_of(w), 0), 1, 0); /* -1e8 + 1e8 + 1 */
        etch_zero_grad(w);
        b = etch_mul_scalar(w, 1e8), a = etch_mul_scalar(w, 1), c = etch_mul_scalar(w, -1e8);
        etch_backward(etch_add(etch_add(c, a), b));
        assert_float_equal(at(etch_grad_of(w), 0), 0, 0); /* -1e8 + 1 + 1e8 */
    }
}

TEST(a_tape_runs_once_unless_retained) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(2), 3), *y = etch_sum(etch_mul(w, w));
        const etch_grad_options keep = {.struct_size = sizeof keep, .retain_graph = true};
        assert_int_equal(etch_backward_from(&y, 1, NULL, &keep), ETCH_OK);
        assert_int_equal(etch_backward(y), ETCH_OK);
        assert_float_equal(at(etch_grad_of(w), 0), 12, 0);
        refused(etch_backward(y) != ETCH_OK, ETCH_ERR_GRAPH_FREED, "retain_graph");
        assert_float_equal(at(etch_grad_of(w), 0), 12, 0);
    }
}

TEST(gradients_for_inputs_alone) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(2), 3), *v = leaf(ETCH_SHAPE(2), 1);
        etch_tensor *mid = etch_mul(w, w), *y = etch_sum(etch_mul(mid, w));
        etch_tensor *inputs[] = {w, mid, v}, *grads[3];
        const etch_grad_options some = {
            .struct_size = sizeof some, .retain_graph = true, .allow_unused = true};
        refused(etch_grad(&y, 1, inputs, 3, NULL, NULL, grads) != ETCH_OK, ETCH_ERR_UNUSED,
                "input 2");
        y = etch_sum(etch_mul(mid = etch_mul(w, w), w)), inputs[1] = mid;
        assert_int_equal(etch_grad(&y, 1, inputs, 3, NULL, &some, grads), ETCH_OK);
        assert_float_equal(at(grads[0], 0), 27, 0);
        assert_float_equal(at(grads[1], 0), 3, 0);
        assert_null(grads[2]);
        assert_null(etch_grad_of(w));
    }
}

TEST(gradients_of_gradients) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(2), 3), *first, *second;
        const etch_grad_options create = {.struct_size = sizeof create, .create_graph = true};
        etch_tensor *y = etch_sum(etch_mul(etch_mul(w, w), w));
        assert_int_equal(etch_grad(&y, 1, &w, 1, NULL, &create, &first), ETCH_OK);
        assert_true(etch_requires_grad(first));
        etch_tensor *z = etch_sum(etch_exp(etch_mul_scalar(first, 0.01)));
        assert_int_equal(etch_grad(&z, 1, &w, 1, NULL, NULL, &second), ETCH_OK);
        assert_float_equal(at(second, 0), 0.01 * 6 * 3 * exp(0.27), 1e-5);
    }
}

TEST(seeds) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(2, 2), 3), *y = etch_mul(w, w);
        refused(etch_backward(y) != ETCH_OK, ETCH_ERR_SHAPE, "one element, got sizes [2, 2]");
        etch_tensor *bad = etch_ones(ETCH_F32, ETCH_SHAPE(2)), *seed = numbers(ETCH_SHAPE(2, 2), 1);
        refused(etch_backward_from(&y, 1, &bad, NULL) != ETCH_OK, ETCH_ERR_SHAPE, "got f32 [2]");
        assert_int_equal(etch_backward_from(&y, 1, &seed, NULL), ETCH_OK);
        etch_tensor *want = NULL;
        ETCH_NO_GRAD
            want = etch_add(etch_mul(seed, w), etch_mul(seed, w));
        assert_same(etch_grad_of(w), want);
    }
}

/* Neither the run nor the end of a long tape recurses. */
TEST(long_chains) {
    ETCH_SCOPE {
        etch_tensor *w = etch_requires_grad_(etch_ones(ETCH_F32, ETCH_SHAPE()), true), *y = NULL;
        etch_assign(&y, etch_mul_scalar(w, 2));
        for (int i = 0; i < 100000; i++)
            ETCH_SCOPE
                etch_assign(&y, etch_add_scalar(y, 1));
        assert_int_equal(etch_backward(y), ETCH_OK);
        assert_float_equal(at(etch_grad_of(w), 0), 2, 0);
    }
}

static etch_tensor *twice(void *ctx, etch_tensor *grad) {
    ++*(int *)ctx;
    return etch_mul_scalar(grad, 2);
}
static etch_tensor *failing(void *ctx, etch_tensor *grad) {
    (void)ctx, (void)grad;
    etch_set_error(ETCH_ERR_USER, "no");
    return NULL;
}

TEST(hooks_and_kept_gradients) {
    int called = 0;
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(2), 3), *y = etch_mul(w, w);
        int64_t hook = etch_add_grad_hook(y, twice, &called);
        assert_int_equal(etch_retain_grad(y), ETCH_OK);
        assert_int_equal(etch_backward(etch_sum(y)), ETCH_OK);
        assert_int_equal(called, 1);
        assert_float_equal(at(etch_grad_of(y), 0), 2, 0);
        assert_float_equal(at(etch_grad_of(w), 0), 12, 0);
        etch_remove_grad_hook(y, hook);
        etch_zero_grad(w);
        y = etch_mul(w, w);
        etch_add_grad_hook(w, failing, NULL);
        refused(etch_backward(etch_sum(y)) != ETCH_OK, ETCH_ERR_USER, "no");
        assert_null(etch_grad_of(w));
    }
}

/* ---- writes in place ---- */

TEST(writes_to_what_derivatives_read) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 3), *x = numbers(ETCH_SHAPE(3), 1);
        etch_tensor *y = etch_mul(w, x);
        etch_add_(x, x);
        refused(etch_backward(etch_sum(y)) != ETCH_OK, ETCH_ERR_MODIFIED, "add_.Tensor");
        y = etch_exp(w);
        etch_mul_scalar_(y, 2);
        refused(etch_backward(etch_sum(y)) != ETCH_OK, ETCH_ERR_MODIFIED,
                "derivative of exp (test_grad.c:");
        y = etch_add(w, x); /* reads nothing */
        etch_add_(x, x);
        assert_int_equal(etch_backward(etch_sum(y)), ETCH_OK);
        refused(!etch_add_(w, x), ETCH_ERR_INVALID_ARGUMENT, "a leaf that requires");
        refused(!etch_add_(etch_select(w, 0, 0), etch_select(x, 0, 0)), ETCH_ERR_INVALID_ARGUMENT,
                "a view of a leaf");
    }
}

/* A row of a buffer is written, then the whole is used: and the same without writes. */
TEST(writes_through_views) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 1), *buffer = etch_zeros(ETCH_F32, ETCH_SHAPE(2, 3));
        etch_tensor *row = etch_select(buffer, 0, 1), *other = etch_t(buffer);
        etch_copy_(row, etch_mul(w, w));
        etch_mul_scalar_(row, 3);
        assert_true(etch_requires_grad(buffer) && etch_requires_grad(other));
        etch_tensor *x = numbers(ETCH_SHAPE(3, 2), 2);
        assert_int_equal(etch_backward(etch_sum(etch_mul(other, x))), ETCH_OK);
        etch_tensor *got = etch_grad_of(w);
        for (int i = 0; i < 3; i++) {
            double wi = 1 + 0.25 * i, xi = 2 + 0.25 * (2 * i + 1);
            assert_float_equal(at(got, i), 3 * 2 * wi * xi, 1e-5);
        }
    }
}

/* What is asked of a view whose base was written is answered without a new edge, and what needs one
 * says that there is no memory. */
TEST(questions_need_no_memory) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 1), *buffer = etch_zeros(ETCH_F32, ETCH_SHAPE(2, 3));
        etch_tensor *row = etch_select(buffer, 0, 1), *plain = etch_select(buffer, 0, 0);
        assert_true(!etch_requires_grad(row) && etch_is_leaf(row));
        etch_copy_(etch_select(buffer, 0, 1), w);
        etch__fail_allocations(0, 1000);
        bool needs = etch_requires_grad(row), leaf_now = etch_is_leaf(row);
        bool again = etch_requires_grad_(row, true) == row, off = etch_requires_grad_(row, false);
        bool dropped = etch_zero_grad(row) == ETCH_OK && !etch_grad_of(row);
        etch_clear_error();
        bool kept = etch_retain_grad(plain) == ETCH_OK;
        etch_status status = etch_last_status();
        etch__fail_allocations(-1, 1);
        etch_clear_error();
        assert_true(needs && again && dropped);
        assert_false(leaf_now || off || kept);
        assert_int_equal(status, ETCH_ERR_OUT_OF_MEMORY);
        assert_int_equal(etch_retain_grad(plain), ETCH_OK);
        assert_int_equal(etch_backward(etch_sum(etch_mul_scalar(row, 2))), ETCH_OK);
        assert_float_equal(at(etch_grad_of(w), 1), 2, 0);
    }
}

TEST(views_of_nobody) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(3), 1), *buffer = etch_zeros(ETCH_F32, ETCH_SHAPE(2, 3));
        etch_tensor *row = NULL;
        ETCH_NO_GRAD
            row = etch_select(buffer, 0, 1);
        refused(!etch_copy_(row, w), ETCH_ERR_INVALID_ARGUMENT, "make the view anew");
        assert_non_null(etch_copy_(buffer, etch_expand(w, ETCH_SHAPE(2, 3))));
        assert_true(etch_requires_grad(buffer));
        assert_non_null(etch_zero_(buffer));
        assert_int_equal(etch_backward(etch_sum(buffer)), ETCH_OK);
        assert_null(etch_grad_of(w)); /* it was written over */
    }
}

/* ---- operators of the user ---- */

/* x^2 y, and its derivative. */
static etch_status square_times(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    etch_tensor *x = args[0].tensor, *y = args[1].tensor;
    return etch_copy_(out[0], etch_mul(etch_mul(x, x), y)) ? ETCH_OK : etch_last_status();
}
static etch_status as_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    *out = (etch_tensor_spec){etch_dtype_of(args[0].tensor), etch_sizes(args[0].tensor)};
    return ETCH_OK;
}
static etch_status derive(void *ctx, const etch_op *op, const etch_derivative_call *d) {
    (void)op;
    etch_tensor *x = d->args[0].tensor, *y = d->args[1].tensor;
    if (ctx && *(bool *)ctx) return etch_set_error(ETCH_ERR_USER, "not today");
    if (d->wants[0]) d->grads[0] = etch_mul(d->grad, etch_mul_scalar(etch_mul(x, y), 2));
    if (d->wants[1]) d->grads[1] = etch_mul(d->grad, etch_mul(x, x));
    return ETCH_OK;
}

static const etch_op *with_derivative, *without;
static bool fails;

static void register_operators(void) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = square_times, .shape = as_first};
    if (with_derivative) return;
    without = etch_op_register("test_grad::without(Tensor x, Tensor y) -> Tensor", &d);
    d.derivative = derive, d.ctx = &fails;
    with_derivative = etch_op_register("test_grad::with(Tensor x, Tensor y) -> Tensor", &d);
    assert_true(without && with_derivative);
}

static etch_tensor *call_op(const etch_op *op, etch_tensor *x, etch_tensor *y) {
    const etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = x},
                               {.tag = ETCH_VALUE_TENSOR, .tensor = y}};
    etch_tensor *out = NULL;
    etch_op_call(op, args, 2, &out, 1);
    return out;
}

static etch_tensor *of_user(etch_tensor *x, etch_tensor *y) {
    return etch_sum(etch_exp(etch_mul_scalar(call_op(with_derivative, x, y), 0.01)));
}

TEST(operators_of_the_user) {
    register_operators();
    ETCH_SCOPE {
        etch_tensor *x = leaf(ETCH_SHAPE(2, 3), 1), *y = leaf(ETCH_SHAPE(2, 3), 2);
        etch_tensor *first, *second;
        etch_backward(etch_sum(call_op(with_derivative, x, y)));
        assert_float_equal(at(etch_grad_of(x), 1), 2 * 1.25 * 2.25, 0);
        assert_float_equal(at(etch_grad_of(y), 1), 1.25 * 1.25, 0);
        refused(etch_backward(etch_sum(call_op(without, x, y))) != ETCH_OK,
                ETCH_ERR_NOT_DIFFERENTIABLE, "test_grad::without (test_grad.c:");
        fails = true;
        refused(etch_backward(etch_sum(call_op(with_derivative, x, y))) != ETCH_OK, ETCH_ERR_USER,
                "not today");
        fails = false;
        const etch_grad_options create = {.struct_size = sizeof create, .create_graph = true};
        etch_tensor *z = etch_sum(call_op(with_derivative, x, y));
        assert_int_equal(etch_grad(&z, 1, &x, 1, NULL, &create, &first), ETCH_OK);
        z = etch_sum(first);
        assert_int_equal(etch_grad(&z, 1, &y, 1, NULL, NULL, &second), ETCH_OK);
        assert_float_equal(at(second, 1), 2 * 1.25, 0);
    }
}

/* ---- threads ---- */

typedef struct training {
    etch_tensor *shared;
    bool failed; /* assertions are the main thread's */
} training;

static void *train(void *ctx) {
    training *t = ctx;
    ETCH_ON(test_device())
    for (int i = 0; i < 50; i++)
        ETCH_SCOPE {
            etch_tensor *w = leaf(ETCH_SHAPE(8), 1);
            etch_backward(etch_sum(etch_mul(etch_mul(w, w), t->shared)));
            t->failed |= !etch_grad_of(w);
        }
    return NULL;
}

TEST(separate_graphs_on_threads) {
    ETCH_SCOPE {
        etch_tensor *shared = etch_requires_grad_(etch_ones(ETCH_F32, ETCH_SHAPE(8)), true);
        training of[3];
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) {
            of[i] = (training){shared, false};
            pthread_create(&threads[i], NULL, train, &of[i]);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
            assert_false(of[i].failed);
        }
        assert_float_equal(at(etch_grad_of(shared), 0), 150, 0);
    }
}

/* ---- compiled ---- */

/* in[0..n) are leaves; the result is a scalar. */
typedef struct program {
    const char *name;
    etch_tensor *(*body)(etch_tensor *a, etch_tensor *b);
} program;

static etch_tensor *global; /* something that a body captures */

static etch_tensor *shared_sums(etch_tensor *x, etch_tensor *y) {
    return etch_sum(etch_add(etch_add(etch_mul(x, y), x), y));
}
static etch_tensor *captured(etch_tensor *x, etch_tensor *y) {
    return etch_sum(etch_add(etch_add(etch_mul(x, global), x), etch_mul(global, y)));
}
static etch_tensor *read_inside(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_exp(etch_mul_scalar(etch_mul(x, y), 0.1));
    return etch_item(etch_sum(z)) > 3 ? etch_sum(etch_mul(z, x)) : etch_sum(etch_mul(z, y));
}
static etch_tensor *written_result(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_mul(x, y), *row = etch_select(z, 0, 0);
    etch_mul_scalar_(row, 3);
    etch_add_(z, x);
    return etch_sum(etch_mul(z, z));
}
static etch_tensor *filled_buffer(etch_tensor *x, etch_tensor *y) {
    etch_tensor *buffer = etch_zeros(ETCH_F32, ETCH_SHAPE(2, 3));
    etch_copy_(etch_select(buffer, 0, 1), etch_select(x, 0, 0));
    return etch_sum(etch_mul(buffer, y));
}
static etch_tensor *written_view_before(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_mul_scalar(x, 2), *v = etch_slice(z, 1, 0, 2, 1);
    etch_mul_(z, y);
    return etch_add(etch_sum(etch_mul(v, v)), etch_sum(z));
}
static etch_tensor *product(etch_tensor *x, etch_tensor *y) {
    return etch_sum(etch_relu(etch_mm(x, etch_t(y))));
}
/* At the break some of what the tape keeps stays deferred beside what is used later. */
static etch_tensor *broken_between(etch_tensor *x, etch_tensor *y) {
    etch_tensor *h = etch_mm(x, etch_t(y)), *cube = etch_mul(etch_mul(h, h), h);
    etch_tensor *late = etch_exp(etch_mul_scalar(cube, -0.01));
    double sum = etch_item(etch_sum(h));
    return etch_mul_scalar(etch_sum(etch_mul(etch_mul(late, h), cube)), sum > 0 ? 2 : 3);
}
static etch_tensor *minus_zero(etch_tensor *x, etch_tensor *y) {
    return etch_sum(etch_mul(etch_mul_scalar(x, -0.0), etch_detach(y)));
}

static const program programs[] = {
    {"broken_between", broken_between},
    {"of_user", of_user},
    {"shared_sums", shared_sums},
    {"captured", captured},
    {"read_inside", read_inside},
    {"written_result", written_result},
    {"filled_buffer", filled_buffer},
    {"written_view_before", written_view_before},
    {"product", product},
    {"minus_zero", minus_zero},
};

/* What is compiled. */
typedef enum way { PLAIN, FORWARD, STEP, WAYS } way;

static etch_tensor *(*body)(etch_tensor *a, etch_tensor *b);

static etch_tensor *step(etch_tensor *a, etch_tensor *b) {
    etch_tensor *loss = body(a, b);
    return loss && etch_backward(loss) == ETCH_OK ? loss : NULL;
}

typedef struct outcome {
    etch_tensor *loss, *grad[3];
} outcome;

/* Gradients of two rounds: absent, then present. */
static outcome round_of(way how, etch_function *f, etch_tensor *a, etch_tensor *b) {
    outcome o = {0};
    for (int twice = 0; twice < 2; twice++) {
        o.loss = how == PLAIN ? step(a, b) : etch_call(f, a, b);
        if (!o.loss) fail_msg("%s", etch_last_error());
        if (how == FORWARD && etch_backward(o.loss) != ETCH_OK) fail_msg("%s", etch_last_error());
    }
    etch_tensor *const leaves[] = {a, b, global};
    for (int i = 0; i < 3; i++) {
        o.grad[i] = etch_grad_of(leaves[i]) ? etch_clone(etch_grad_of(leaves[i])) : NULL;
        etch_zero_grad(leaves[i]);
    }
    return o;
}

static void same_outcome(const program *p, way how, int call, outcome got, outcome want) {
    if (!etch_bitwise_equal(got.loss, want.loss))
        fail_msg("%s, way %d, call %d: loss", p->name, how, call);
    for (int i = 0; i < 3; i++)
        if (!want.grad[i] != !got.grad[i] ||
            (want.grad[i] && !etch_bitwise_equal(got.grad[i], want.grad[i])))
            fail_msg("%s, way %d, call %d: gradient %d", p->name, how, call, i);
}

static void check_program(const program *p, way how, double budget) {
    body = p->body;
    etch_function *f =
        how == FORWARD ? etch_compile(p->body, .memory_budget = budget) : etch_compile(step);
    for (int call = 0; call < CALLS; call++)
        ETCH_SCOPE {
            global = leaf(ETCH_SHAPE(2, 3), 0.5 * call);
            etch_tensor *a = leaf(ETCH_SHAPE(2, 3), call), *b = leaf(ETCH_SHAPE(2, 3), 1 - call);
            if (call == 3) b = a;
            if (call == 4) global = a;
            outcome want = round_of(PLAIN, NULL, a, b), got = round_of(how, f, a, b);
            same_outcome(p, how, call, got, want);
        }
    etch_function_free(f);
}

TEST(compiled_forward_has_the_same_gradients) {
    register_operators();
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        check_program(&programs[i], FORWARD, 0);
}

TEST(compiled_steps_have_the_same_gradients) {
    register_operators();
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        check_program(&programs[i], STEP, 0);
}

/* Written-out GELU of a product: of what derivatives read all but the noise follows from it. */
static etch_tensor *gelu_of_product(etch_tensor *x, etch_tensor *y) {
    etch_tensor *h = etch_mm(x, etch_t(y)), *cube = etch_mul(etch_mul(h, h), h);
    etch_tensor *inner = etch_add(h, etch_mul_scalar(cube, 0.044715));
    etch_tensor *t = etch_tanh(etch_mul_scalar(inner, 0.79788456));
    etch_tensor *noise = etch_rand(ETCH_F32, ETCH_SHAPE(2, 2)); /* never drawn twice */
    return etch_sum(etch_mul(noise, etch_mul(etch_mul_scalar(h, 0.5), etch_add_scalar(t, 1))));
}

static int64_t bytes_saved(etch_function *f) {
    etch_explanation *e = etch_explain(f);
    int64_t bytes = e->graphs[e->ngraphs - 1].saved_bytes;
    assert_int_equal(etch_function_counters(f).saved_bytes, bytes);
    etch_explanation_free(e);
    return bytes;
}

TEST(what_is_computed_again_has_the_same_bits) {
    static const double budgets[] = {0, 1};
    static const int64_t bytes[] = {32, 96}; /* the product and the noise; all */
    register_operators();
    for (int b = 0; b < 2; b++) {
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
            check_program(&programs[i], FORWARD, budgets[b]);
        ETCH_SCOPE {
            etch_tensor *x = leaf(ETCH_SHAPE(2, 3), 0.5), *y = leaf(ETCH_SHAPE(2, 3), 0.25);
            etch_function *f = etch_compile(gelu_of_product, .memory_budget = budgets[b]);
            for (int i = 0; i < 3; i++) {
                etch_manual_seed(i);
                etch_backward(etch_call(f, x, y));
                etch_tensor *got = etch_clone(etch_grad_of(x));
                etch_zero_grad(x);
                etch_manual_seed(i);
                etch_backward(gelu_of_product(x, y));
                assert_same(got, etch_grad_of(x));
                etch_zero_grad(x);
            }
            assert_int_equal(bytes_saved(f), bytes[b]);
            etch_function_free(f);
        }
    }
}

/* What was written after the call is no source of what derivatives read. */
static etch_tensor *tanh_of(etch_tensor *x, etch_tensor *y) {
    return etch_sum(etch_mul(etch_tanh(etch_mul_scalar(x, 0.5)), etch_detach(y)));
}

TEST(arguments_may_be_written_before_backward) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(tanh_of);
        etch_tensor *x = leaf(ETCH_SHAPE(2, 3), 0.5), *y = numbers(ETCH_SHAPE(2, 3), 0.25);
        for (int i = 0; i < 4; i++) {
            etch_tensor *got = etch_call(f, x, y), *want = tanh_of(x, y);
            ETCH_NO_GRAD
                etch_add_(x, y);
            etch_backward(got);
            etch_tensor *first = etch_clone(etch_grad_of(x));
            etch_zero_grad(x);
            etch_backward(want);
            assert_same(first, etch_grad_of(x));
            etch_zero_grad(x);
        }
        etch_function_free(f);
    }
}

/* Two calls are kept, and run backward in reverse when function and traces are gone. */
TEST(kept_calls_outlive_their_function) {
    ETCH_SCOPE {
        global = leaf(ETCH_SHAPE(2, 3), 1);
        etch_tensor *a = leaf(ETCH_SHAPE(2, 3), 2), *b = leaf(ETCH_SHAPE(2, 3), 3);
        etch_function *f = etch_compile(captured);
        for (int i = 0; i < 3; i++) etch_call(f, a, b);
        etch_tensor *one = etch_call(f, a, b), *two = etch_call(f, b, a);
        etch_function_free(f);
        etch_backward(two), etch_backward(one);
        etch_tensor *got = etch_clone(etch_grad_of(a));
        etch_zero_grad(a);
        one = captured(a, b), two = captured(b, a);
        etch_backward(two), etch_backward(one);
        assert_same(got, etch_grad_of(a));
    }
}

static etch_tensor *modified_inside(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_mul(x, global);
    etch_add_(global, y);
    return etch_sum(z);
}
static etch_tensor *modified_result(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_exp(etch_mul(x, y)), *sum = etch_sum(z);
    etch_mul_scalar_(z, 2);
    return sum;
}

/* What eager code refuses is refused at every call, whatever is compiled. */
TEST(compiled_code_finds_what_was_modified) {
    etch_tensor *(*const bodies[])(etch_tensor *, etch_tensor *) = {modified_inside,
                                                                    modified_result};
    for (int k = 0; k < 2; k++) {
        body = bodies[k];
        etch_function *forward = etch_compile(bodies[k]), *whole = etch_compile(step);
        for (int call = 0; call < CALLS; call++)
            ETCH_SCOPE {
                global = numbers(ETCH_SHAPE(2, 3), 1);
                etch_tensor *a = leaf(ETCH_SHAPE(2, 3), 2), *b = numbers(ETCH_SHAPE(2, 3), 3);
                etch_tensor *loss = etch_call(forward, a, b);
                assert_non_null(loss);
                refused(etch_backward(loss) != ETCH_OK, ETCH_ERR_MODIFIED, "written in place");
                refused(!etch_call(whole, a, b), ETCH_ERR_MODIFIED, "written in place");
            }
        etch_function_free(forward);
        etch_function_free(whole);
    }
}

/* exp and its product keep their operands' results: x y (read by nothing) is not kept. */
static etch_tensor *told(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_exp(etch_mul(x, y));
    return etch_sum(etch_mul(z, x));
}

static char logged[16384];
static void take_line(void *ctx, const char *line) {
    (void)ctx;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", line);
}

TEST(graphs_with_gradients_are_told) {
    etch_set_log_sink(take_line, NULL);
    assert_int_equal(etch_set_logs("joint_graph,forward_graph,backward_graph"), ETCH_OK);
    ETCH_SCOPE {
        etch_tensor *a = leaf(ETCH_SHAPE(2, 3), 0.5), *b = leaf(ETCH_SHAPE(2, 3), 0.25);
        body = told;
        etch_function *f = etch_compile(told, .memory_budget = 1),
                      *whole = etch_compile(step, .name = "whole");
        for (int i = 0; i < 3; i++) assert_int_equal(etch_backward(etch_call(f, a, b)), ETCH_OK);
        assert_non_null(etch_call(whole, a, b));
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->graph_count, 1);
        assert_int_equal(e->graphs[0].saved_bytes, 2 * 3 * 4);
        etch_explanation_free(e);
        etch_function_free(f), etch_function_free(whole);
    }
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    assert_non_null(strstr(logged, "forward_graph: graph told/0("));
    assert_non_null(strstr(logged, "forward_graph: told/0: 24 bytes are saved"));
    assert_non_null(strstr(logged, "backward_graph: graph told backward/0("));
    assert_non_null(strstr(logged, "joint_graph: graph whole/0("));
}

/* 2 s (1 - s) at s = sigmoid(2 x): the derivative reads what the operator itself wrote. */
static etch_tensor *wrote_its_result(etch_tensor *x, etch_tensor *y) {
    (void)y;
    return etch_sigmoid_(etch_mul_scalar(x, 2));
}

static const char *const backends[] = {"eager", "aot_eager", "native"};

/* Who runs a plan counts its writes; a plan that did so, too, made such derivatives errors. */
TEST(plans_count_no_writes) {
    body = wrote_its_result;
    for (int k = 0; k < 3; k++) {
        etch_function *forward = etch_compile(wrote_its_result, .backend = backends[k]);
        etch_function *whole = etch_compile(step, .backend = backends[k]);
        for (int call = 0; call < CALLS; call++)
            ETCH_SCOPE {
                etch_tensor *x = leaf(ETCH_SHAPE(), 0.5);
                assert_int_equal(etch_backward(etch_call(forward, x, x)), ETCH_OK);
                assert_float_equal(at(etch_grad_of(x), 0), 0.39322387, 1e-6);
                assert_non_null(etch_call(whole, x, x));
                assert_float_equal(at(etch_grad_of(x), 0), 2 * 0.39322387, 1e-6);
            }
        etch_function_free(forward), etch_function_free(whole);
    }
}

static etch_tensor *modified_before_a_break(etch_tensor *x) {
    etch_tensor *most = etch_max(x);
    etch_clamp_min_(most, 1);
    etch_graph_break("what the segment did not produce is still deferred");
    refused(etch_backward(most) != ETCH_OK, ETCH_ERR_MODIFIED, "the derivative of max");
    return x;
}

/* The first segment's code does not produce what the second one reads after all: it was written. */
TEST(versions_of_what_a_segment_left_deferred) {
    for (int k = 0; k < 3; k++) {
        etch_function *f = etch_compile(modified_before_a_break, .backend = backends[k]);
        for (int call = 0; call < CALLS; call++)
            ETCH_SCOPE {
                etch_tensor *x = leaf(ETCH_SHAPE(2, 3), 1);
                assert_non_null(etch_call(f, x));
                assert_null(etch_grad_of(x));
            }
        etch_function_free(f);
    }
}

static int divisor;
static etch_tensor *dividing(void *ctx, etch_tensor *grad) {
    (void)ctx;
    etch_tensor *one = etch_ones(ETCH_I32, ETCH_SHAPE());
    return etch_mul(grad, etch_floor_divide_scalar(one, divisor));
}

/* A check of data that fails when the backward function computes what it deferred. */
TEST(compiled_backward_tells_what_failed) {
    body = shared_sums;
    for (int k = 0; k < 3; k++) {
        etch_function *f = etch_compile(shared_sums, .backend = backends[k]);
        for (int call = 0; call < CALLS; call++)
            ETCH_SCOPE {
                etch_tensor *x = leaf(ETCH_SHAPE(2), 1), *y = numbers(ETCH_SHAPE(2), 3);
                etch_add_grad_hook(x, dividing, NULL);
                divisor = call < CALLS - 1;
                etch_tensor *loss = etch_call(f, x, y);
                if (!divisor)
                    refused(etch_backward(loss) != ETCH_OK, ETCH_ERR_DIVISION_BY_ZERO, "by 0");
                else assert_int_equal(etch_backward(loss), ETCH_OK);
                assert_int_equal(etch_grad_of(x) != NULL, divisor);
            }
        etch_function_free(f);
    }
}

/* A replay would compute results and note nothing: the body runs where gradients are wanted, and
 * only there. */
TEST(replays_stand_aside) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(shared_sums, .replay = true);
        etch_tensor *a = numbers(ETCH_SHAPE(2, 3), 2), *b = numbers(ETCH_SHAPE(2, 3), 3);
        for (int i = 0; i < 4; i++) etch_call(f, a, b);
        etch_requires_grad_(a, true);
        for (int i = 0; i < 4; i++) {
            etch_tensor *loss = etch_call(f, a, b);
            assert_true(etch_requires_grad(loss));
            assert_int_equal(etch_backward(loss), ETCH_OK);
            ETCH_NO_GRAD
                assert_false(etch_requires_grad(etch_call(f, a, b)));
        }
        etch_tensor *sum = etch_clone(etch_grad_of(a)), *step = NULL;
        etch_zero_grad(a);
        etch_backward(shared_sums(a, b));
        step = etch_grad_of(a);
        assert_same(sum, etch_add(etch_add(etch_add(step, step), step), step));
        etch_function_free(f);
    }
}

/* Parameters and gradients live on from step to step, and nothing else does. */
static etch_tensor *sgd_step(etch_tensor *x, etch_tensor *y) {
    etch_zero_grad(global);
    etch_tensor *error = etch_sub(etch_mm(x, global), y);
    etch_tensor *loss = etch_sum(etch_mul(error, error));
    if (etch_backward(loss) != ETCH_OK) return NULL;
    ETCH_NO_GRAD
        etch_sub_(global, etch_mul_scalar(etch_grad_of(global), 0.001));
    return loss;
}

/* Whether there is something to differentiate changes from call to call: nothing is guarded, and
 * each way is compiled once. */
static etch_tensor *if_required(etch_tensor *x) {
    etch_tensor *loss = etch_sum(etch_exp(etch_mul(x, global)));
    if (etch_requires_grad(loss) && etch_backward(loss) != ETCH_OK) return NULL;
    return etch_detach(loss);
}

/* Leaves the gradient in *grad. */
static etch_tensor *call_if_required(etch_function *f, etch_tensor *x, int turn,
                                     etch_tensor **grad) {
    etch_tensor *y = NULL;
    etch_requires_grad_(global, turn != 1);
    if (turn == 2)
        ETCH_NO_GRAD
            y = f ? etch_call(f, x) : if_required(x);
    else y = f ? etch_call(f, x) : if_required(x);
    *grad = etch_grad_of(global) ? etch_clone(etch_grad_of(global)) : NULL;
    etch_zero_grad(global);
    return y;
}

TEST(what_requires_gradients_changes_between_calls) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(if_required, .fullgraph = true);
        etch_tensor *x = numbers(ETCH_SHAPE(4), -1), *want, *got;
        global = numbers(ETCH_SHAPE(4), 1);
        for (int i = 0; i < 12; i++) {
            etch_tensor *y = call_if_required(NULL, x, i % 3, &want);
            etch_tensor *z = call_if_required(f, x, i % 3, &got);
            if (!z) fail_msg("%s", etch_last_error());
            assert_same(z, y);
            assert_int_equal(got != NULL, i % 3 == 0);
            if (got) assert_same(got, want);
        }
        assert_int_equal(etch_function_counters(f).graphs, 3); /* a block without is its own root */
        etch_function_free(f);
    }
}

/* A leaf of the body's own: its gradient dies with it, and is no output. */
static etch_tensor *slope_of_exp(etch_tensor *x) {
    etch_tensor *own = etch_requires_grad_(etch_clone(x), true);
    etch_tensor *powers = etch_exp(own);
    etch_tensor *sum = etch_sum(powers);
    if (etch_backward(sum) != ETCH_OK) return NULL;
    return etch_clone(etch_grad_of(own));
}

TEST(leaves_of_the_body) {
    for (int full = 0; full < 2; full++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(slope_of_exp, .fullgraph = full);
            etch_tensor *x = numbers(ETCH_SHAPE(4), -1);
            for (int i = 0; i < CALLS; i++) {
                etch_tensor *y = etch_call(f, x);
                if (!y) fail_msg("%s", etch_last_error());
                assert_same(y, slope_of_exp(x));
            }
            assert_int_equal(etch_function_counters(f).eager_runs, 0);
            assert_int_equal(etch_function_counters(f).plan_runs, full ? CALLS : CALLS - 1);
            etch_function_free(f);
        }
}

TEST(modes_see_what_backward_calls) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_SHAPE(2, 3), 1), *loss = etch_sum(etch_sin(w));
        etch_mode *mode = etch_statistics_mode();
        ETCH_WITH_MODE (mode) {
            assert_int_equal(etch_statistics_mode_count(mode, "cos"), 0);
            assert_int_equal(etch_backward(loss), ETCH_OK);
        }
        assert_int_equal(etch_statistics_mode_count(mode, "cos"), 1);
        etch_mode_free(mode);
    }
}

TEST(a_training_step_is_one_graph) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_SHAPE(5, 3), -1), *y = numbers(ETCH_SHAPE(5, 2), 1);
        etch_tensor *one = leaf(ETCH_SHAPE(3, 2), 1), *two = leaf(ETCH_SHAPE(3, 2), 1);
        etch_function *f = etch_compile(sgd_step, .fullgraph = true);
        int64_t live = 0, tensors = 0;
        for (int i = 0; i < 40; i++)
            ETCH_SCOPE {
                global = one;
                etch_tensor *want = sgd_step(x, y);
                global = two;
                etch_tensor *got = etch_call(f, x, y);
                if (!got) fail_msg("%s", etch_last_error());
                assert_same(got, want);
                assert_same(two, one);
                if (i == 20) live = etch_memory().bytes_live, tensors = etch_memory().tensors;
                if (i <= 20) continue;
                assert_int_equal(etch_memory().bytes_live, live);
                assert_int_equal(etch_memory().tensors, tensors);
            }
        assert_int_equal(etch_function_counters(f).graph_breaks, 0);
        assert_int_equal(etch_function_counters(f).recompiles, 0);
        etch_function_free(f);
    }
}
