/* Modules: parameters and children, hooks, compiling in place, and the rows of the seed's test of
 * in-place compilation that need only this. */
#include "trace_support.h"

#include <string.h>

/* The seed's ToyModel: relu(linear(x)). */
static etch_module *toy(void) {
    etch_module *layers[2] = {etch_nn_linear(10, 10, ETCH_F32), etch_nn_relu()};
    return etch_nn_sequential(layers, 2);
}

static etch_tensor *by_hand(const etch_module *m, etch_tensor *x) {
    etch_tensor *w = etch_module_parameter(m, "0.weight");
    etch_tensor *y = etch_addmm(etch_module_parameter(m, "0.bias"), x, etch_t(w));
    return etch_relu(y);
}

TEST(parameters_and_children) {
    ETCH_SCOPE {
        int64_t before = etch_memory().tensors;
        etch_module *m = toy();
        assert_non_null(m);
        assert_string_equal(etch_module_type(m), "Sequential");
        assert_string_equal(etch_module_type(etch_module_child(m, 1)), "ReLU");
        assert_null(etch_module_child(m, 2));
        assert_int_equal(etch_module_parameter_count(m), 2);
        assert_int_equal(etch_size(etch_module_parameter(m, "0.weight"), 0), 10);
        assert_null(etch_module_parameter(m, "weight"));
        assert_int_equal(etch_last_status(), ETCH_ERR_NOT_FOUND);
        assert_null(etch_module_parameter(m, "7.weight"));
        etch_tensor *t = etch_zeros(ETCH_F32, ETCH_SHAPE(1));
        assert_int_equal(etch_module_add_parameter(m, "extra", t), ETCH_OK);
        assert_int_equal(etch_module_add_parameter(m, "extra", t), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_module_add_parameter(m, "a.b", t), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_module_add_parameter(m, NULL, t), ETCH_ERR_NULL);
        assert_ptr_equal(etch_module_parameter(m, "extra"), t);
        etch_module_free(m);
        assert_int_equal(etch_memory().tensors, before + 1);
    }
    etch_module_free(NULL);
}

TEST(bad_modules) {
    ETCH_SCOPE {
        assert_null(etch_nn_linear(0, 3, ETCH_F32));
        assert_null(etch_nn_linear(3, 3, ETCH_I32));
        assert_null(etch_module_new("x", NULL));
        assert_null(etch_module_call(NULL, arange_f32(1, 1)));
        etch_module *broken[2] = {etch_nn_relu(), NULL};
        assert_null(etch_nn_sequential(broken, 2));
        etch_module *m = toy();
        etch_clear_error();
        assert_null(etch_module_call(m, arange_f32(3, 4)));
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        etch_module_free(m);
    }
}

/* A module has one parent at most, which frees it. */
TEST(one_parent) {
    ETCH_SCOPE {
        etch_module *relu = etch_nn_relu(), *m = toy(), *twice[2] = {relu, relu};
        etch_clear_error();
        assert_int_equal(etch_module_add_child(m, "self", m), ETCH_ERR_INVALID_ARGUMENT);
        etch_module *first = etch_module_child(m, 0), *taken[2] = {relu, first};
        assert_int_equal(etch_module_add_child(relu, "taken", first), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_module_add_child(first, "above", m), ETCH_ERR_INVALID_ARGUMENT);
        etch_clear_error();
        etch_module_free(first);
        assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
        etch_clear_error();
        assert_null(etch_nn_sequential(taken, 2)); /* relu is freed, first stays */
        assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(etch_last_error(), "expected a module without a parent"));
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(4, 10));
        assert_same(etch_module_call(m, x), by_hand(m, x));
        twice[0] = twice[1] = etch_nn_relu();
        assert_null(etch_nn_sequential(twice, 2));
        etch_clear_error();
        assert_null(etch_nn_sequential(NULL, 2));
        assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
        etch_clear_error();
        assert_null(etch_nn_sequential(twice, -1));
        assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
        etch_clear_error();
        etch_module_free(m);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(eager_is_the_same_by_hand) {
    ETCH_SCOPE {
        etch_module *m = toy();
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(4, 10));
        assert_same(etch_module_call(m, x), by_hand(m, x));
        etch_tensor *three = etch_randn(ETCH_F32, ETCH_SHAPE(2, 4, 10));
        etch_tensor *y = etch_module_call(m, three);
        assert_int_equal(etch_ndim(y), 3);
        etch_tensor *part = by_hand(m, etch_select(three, 0, 1));
        assert_true(etch_allclose(etch_select(y, 0, 1), part, 1e-5, 1e-5, false));
        etch_module_free(m);
    }
}

/* ---- the seed's rows ---- */

static void count_one(void *ctx) { ++*(int *)ctx; }

TEST(compile_then_call_is_one_graph) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_module *m = toy();
            int starts = 0;
            int64_t handle = etch_on_compile_start(count_one, &starts);
            assert_int_equal(etch_module_compile(m, .backend = test_backends[b]), ETCH_OK);
            etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(10, 10));
            assert_same(etch_module_call(m, x), by_hand(m, x));
            assert_int_equal(starts, 1);
            assert_same(etch_module_call(m, x), by_hand(m, x));
            assert_int_equal(starts, 1);
            etch_function *f = etch_module_is_compiled(m);
            assert_counts(f, 1, 1);
            etch_callback_remove(handle);
            etch_module_free(m);
        }
}

TEST(is_compiled_before_and_after) {
    ETCH_SCOPE {
        etch_module *m = toy();
        assert_null(etch_module_is_compiled(m));
        assert_int_equal(etch_module_compile(m), ETCH_OK);
        assert_non_null(etch_module_is_compiled(m));
        assert_int_equal(etch_module_compile(m, .backend = "none"), ETCH_ERR_NOT_FOUND);
        assert_non_null(etch_module_is_compiled(m)); /* as it was */
        assert_int_equal(etch_module_compile_with(NULL, NULL), ETCH_ERR_NULL);
        etch_module_free(m);
        assert_null(etch_module_is_compiled(NULL));
    }
}

static char printed[64];
static void print_started(void *ctx) { (void)ctx, strcat(printed, "Compilation started.\n"); }
static void print_ended(void *ctx) { (void)ctx, strcat(printed, "Compilation ended.\n"); }

TEST(callbacks_around_the_compile) {
    ETCH_SCOPE {
        int64_t start = etch_on_compile_start(print_started, NULL);
        int64_t end = etch_on_compile_end(print_ended, NULL);
        etch_module *m = toy();
        printed[0] = 0;
        etch_module_compile(m, .backend = "eager", .fullgraph = true);
        assert_non_null(etch_module_call(m, etch_randn(ETCH_F32, ETCH_SHAPE(10, 10))));
        assert_string_equal(printed, "Compilation started.\nCompilation ended.\n");
        etch_callback_remove(start);
        etch_callback_remove(end);
        etch_module_free(m);
    }
}

/* model.compile(backend=cnt); model(x) -> frame_count 1 */
TEST(a_compile_counter_counts_one_graph) {
    ETCH_SCOPE {
        etch_compile_counts counts = {0};
        etch_module *m = toy();
        const char *counter = etch_compile_counter(&counts);
        assert_int_equal(etch_module_compile(m, .backend = counter), ETCH_OK);
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(10, 10));
        for (int i = 0; i < 3; i++) assert_same(etch_module_call(m, x), by_hand(m, x));
        assert_int_equal(counts.frame_count, 1);
        assert_int_equal(etch_unregister_backend(counter), ETCH_OK);
        etch_module_free(m);
    }
}

/* Names and parameters are what they were before. */
TEST(compiling_changes_no_names) {
    ETCH_SCOPE {
        etch_module *m = toy();
        etch_tensor *w = etch_module_parameter(m, "0.weight");
        etch_module_compile(m);
        etch_module_call(m, etch_randn(ETCH_F32, ETCH_SHAPE(1, 10)));
        assert_ptr_equal(etch_module_parameter(m, "0.weight"), w);
        assert_int_equal(etch_module_parameter_count(m), 2);
        etch_module_free(m);
    }
}

/* ---- hooks ---- */

typedef struct seen {
    int calls;
    double factor; /* 0: leaves the tensor as it is */
    bool fail;
    etch_module *of;
    int64_t remove; /* takes this hook away when it is called */
} seen;

static etch_tensor *before(void *ctx, etch_module *m, etch_tensor *x) {
    seen *s = ctx;
    s->calls++, s->of = m;
    if (s->remove) etch_hook_remove(m, s->remove);
    if (s->fail) return etch_set_error(ETCH_ERR_USER, "hook: refused"), NULL;
    return s->factor ? etch_mul_scalar(x, s->factor) : NULL;
}

static etch_tensor *after(void *ctx, etch_module *m, etch_tensor *x, etch_tensor *y) {
    (void)x;
    return before(ctx, m, y);
}

TEST(hooks_before_and_after) {
    ETCH_SCOPE {
        etch_module *m = toy();
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(3, 10)), *plain = by_hand(m, x);
        seen watch = {0}, twice = {.factor = 2}, half = {.factor = 0.5};
        etch_set_error(ETCH_ERR_IO, "an older error"); /* no failure of the hook's */
        int64_t a = etch_module_forward_pre_hook(m, before, &watch);
        assert_same(etch_module_call(m, x), plain);
        assert_int_equal(watch.calls, 1);
        assert_string_equal(etch_last_error(), "an older error");
        assert_ptr_equal(watch.of, m);
        int64_t b = etch_module_forward_hook(m, after, &half);
        assert_same(etch_module_call(m, x), etch_mul_scalar(plain, 0.5));
        int64_t c = etch_module_forward_pre_hook(m, before, &twice);
        etch_tensor *both = etch_mul_scalar(by_hand(m, etch_mul_scalar(x, 2)), 0.5);
        assert_same(etch_module_call(m, x), both);
        assert_true(a && b && c && a != b && b != c);
        etch_hook_remove(m, b);
        etch_hook_remove(m, c);
        assert_same(etch_module_call(m, x), plain);
        etch_hook_remove(m, a);
        etch_hook_remove(m, a);
        etch_hook_remove(m, 0);
        assert_same(etch_module_call(m, x), plain);
        assert_int_equal(watch.calls, 4);
        assert_int_equal(half.calls, 2);
        assert_int_equal(etch_module_forward_hook(m, NULL, NULL), 0);
        etch_module_free(m);
    }
}

TEST(hooks_of_children) {
    ETCH_SCOPE {
        etch_module *m = toy();
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(3, 10));
        seen zero = {.factor = -1};
        etch_module_forward_hook(etch_module_child(m, 1), after, &zero);
        assert_same(etch_module_call(m, x), etch_mul_scalar(by_hand(m, x), -1.0));
        etch_module_free(m);
    }
}

TEST(hooks_that_fail_or_remove_themselves) {
    ETCH_SCOPE {
        etch_module *m = toy();
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(3, 10)), *plain = by_hand(m, x);
        seen bad = {.fail = true}, once = {0}, last = {0};
        int64_t handle = etch_module_forward_pre_hook(m, before, &bad);
        assert_null(etch_module_call(m, x));
        assert_non_null(strstr(etch_last_error(), "refused"));
        etch_hook_remove(m, handle);
        once.remove = etch_module_forward_pre_hook(m, before, &once);
        etch_module_forward_pre_hook(m, before, &last);
        for (int i = 1; i < 4; i++) assert_same(etch_module_call(m, x), plain);
        assert_int_equal(once.calls, 1);
        assert_int_equal(last.calls, 3);
        etch_module_free(m);
    }
}

/* A hook's operators are part of the graph; a hook added or removed changes the trace, at most once
 * compiled each. */
TEST(hooks_of_compiled_modules) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_module *m = toy();
            etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(3, 10)), *plain = by_hand(m, x);
            etch_module_compile(m, .backend = test_backends[b]);
            seen twice = {.factor = 2};
            for (int i = 0; i < 3; i++) assert_same(etch_module_call(m, x), plain);
            int64_t handle = etch_module_forward_hook(m, after, &twice);
            for (int i = 0; i < 3; i++)
                assert_same(etch_module_call(m, x), etch_mul_scalar(plain, 2));
            assert_int_equal(twice.calls, 3);
            etch_function *f = etch_module_is_compiled(m);
            assert_int_equal(etch_function_counters(f).graphs, 2);
            assert_int_equal(etch_function_counters(f).graph_breaks, 0);
            etch_hook_remove(m, handle);
            for (int i = 0; i < 3; i++) assert_same(etch_module_call(m, x), plain);
            assert_int_equal(etch_function_counters(f).graphs, 2);
            etch_module_free(m);
        }
}

/* A compiled child of a compiled module is recorded into it. */
TEST(compiled_children) {
    ETCH_SCOPE {
        etch_module *m = toy();
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(3, 10)), *plain = by_hand(m, x);
        etch_module_compile(etch_module_child(m, 0));
        assert_same(etch_module_call(m, x), plain);
        assert_same(etch_module_call(m, x), plain);
        etch_module_compile(m, .fullgraph = true);
        for (int i = 0; i < 3; i++) assert_same(etch_module_call(m, x), plain);
        assert_int_equal(etch_function_counters(etch_module_is_compiled(m)).graphs, 1);
        etch_module_free(m);
    }
}
