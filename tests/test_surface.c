/* The public surface around etch_compile: callbacks, disabled, allowed and constant functions,
 * stances, modes of compiling.
 * Labels: device fake. */
#include "trace_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the five prototypes are fixed ---- */

#define HAS_TYPE(f, ...) _Static_assert(_Generic(&(f), __VA_ARGS__ : 1, default : 0), #f)
HAS_TYPE(etch_reset, void (*)(etch_function *));
HAS_TYPE(etch_list_backends, const char *const *(*)(void));
HAS_TYPE(etch_disable, etch_function *(*)(etch_callable, bool));
HAS_TYPE(etch_allow_in_graph, etch_function *(*)(etch_callable));
HAS_TYPE(etch_assume_constant, etch_function *(*)(etch_callable));

/* ---- callbacks ---- */

static char printed[512];
static int counter;

static void say(void *ctx) { strncat(printed, ctx, sizeof printed - strlen(printed) - 1); }

static void count_up(void *ctx) {
    (void)ctx;
    char line[32];
    snprintf(line, sizeof line, "Counter = %d\n", ++counter);
    say(line);
}

typedef struct listeners {
    int64_t start, end;
} listeners;

static listeners listen_counting(void) {
    printed[0] = 0, counter = 0;
    listeners l = {etch_on_compile_start(count_up, NULL), etch_on_compile_end(count_up, NULL)};
    assert_true(l.start && l.end && l.start != l.end);
    return l;
}

static void stop_listening(listeners l) {
    etch_callback_remove(l.start);
    etch_callback_remove(l.end);
}

static etch_tensor *weight, *bias;

static etch_tensor *toy_model(etch_tensor *x) {
    etch_tensor *wt = etch_t(weight);
    etch_tensor *product = etch_mm(x, wt);
    etch_tensor *linear = etch_add(product, bias);
    return etch_relu(linear);
}

TEST(compilation_callback) {
    printed[0] = 0;
    int64_t start = etch_on_compile_start(say, "Compilation started.\n");
    int64_t end = etch_on_compile_end(say, "Compilation ended.\n");
    ETCH_SCOPE {
        weight = arange_f32(10, 10), bias = arange_f32(1, 10);
        etch_function *f = etch_compile(toy_model, .backend = "eager", .fullgraph = true);
        etch_tensor *x = etch_cos(arange_f32(10, 10));
        assert_string_equal(printed, "");
        assert_same(etch_call(f, x), toy_model(x));
        assert_string_equal(printed, "Compilation started.\nCompilation ended.\n");
        assert_same(etch_call(f, x), toy_model(x));
        assert_string_equal(printed, "Compilation started.\nCompilation ended.\n");
        etch_callback_remove(start);
        etch_callback_remove(end);
        etch_reset(f);
        assert_non_null(etch_call(f, x));
        assert_string_equal(printed, "Compilation started.\nCompilation ended.\n");
        etch_function_free(f);
    }
}

static etch_tensor *one_break(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    etch_graph_break("test");
    return etch_sin(y);
}

TEST(compilation_callback_with_graph_break) {
    listeners l = listen_counting();
    ETCH_SCOPE {
        etch_function *f = etch_compile(one_break, .backend = "eager");
        etch_tensor *x = arange_f32(10, 10);
        assert_same(etch_call(f, x), one_break(x));
        assert_string_equal(printed, "Counter = 1\nCounter = 2\nCounter = 3\nCounter = 4\n");
        etch_function_free(f);
    }
    stop_listening(l);
}

static etch_status pass_on(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

TEST(no_callback_without_compile) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(one_break, .backend = "eager", .recompile_limit = 1,
                                        .dynamic = ETCH_DYNAMIC_OFF);
        etch_tensor *x = arange_f32(3, 3), *other = arange_f32(4, 4);
        assert_non_null(etch_call(f, x));
        listeners l = listen_counting();
        assert_non_null(etch_call(f, x)); /* a guard hit */
        etch_mode *mode = etch_mode_new(pass_on, NULL);
        ETCH_WITH_MODE (mode) assert_non_null(etch_call(f, x));
        assert_int_equal(etch_function_counters(f).mode_fallbacks, 1);
        etch_mode_free(mode);
        etch_set_logs("");
        assert_same(etch_call(f, other), one_break(other)); /* the limit */
        assert_same(etch_call(f, other), one_break(other));
        assert_int_equal(counter, 0);
        stop_listening(l);
        etch_function_free(f);
    }
}

static etch_status refuse(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx, (void)g, (void)out;
    assert_int_equal(counter, 1); /* the start has been called */
    return etch_set_error(ETCH_ERR_COMPILE, "refused");
}

static void drop_line(void *ctx, const char *line) { (void)ctx, (void)line; }

TEST(end_callback_when_compiling_fails) {
    etch_set_log_sink(drop_line, NULL);
    assert_int_equal(etch_register_backend("refuses", refuse, NULL), ETCH_OK);
    listeners l = listen_counting();
    ETCH_SCOPE {
        etch_function *f = etch_compile(toy_model, .backend = "refuses");
        weight = arange_f32(3, 3), bias = arange_f32(1, 3);
        etch_tensor *x = arange_f32(3, 3);
        assert_same(etch_call(f, x), toy_model(x));
        assert_int_equal(counter, 2);
        etch_function_free(f);
    }
    stop_listening(l);
    etch_unregister_backend("refuses");
    etch_set_log_sink(NULL, NULL);
}

/* ---- modes of compiling ---- */

TEST(compile_modes) {
    static const etch_mode_kind kinds[] = {ETCH_MODE_DEFAULT, ETCH_MODE_REDUCE_OVERHEAD,
                                           ETCH_MODE_MAX_AUTOTUNE};
    ETCH_SCOPE {
        weight = arange_f32(4, 4), bias = arange_f32(1, 4);
        etch_tensor *x = arange_f32(4, 4);
        for (int i = 0; i < 3; i++) {
            etch_function *f = etch_compile(toy_model, .mode = kinds[i]);
            for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), toy_model(x));
            assert_counts(f, 1, 2);
            etch_function_free(f);
        }
    }
}

/* ---- disabled ---- */

static etch_function *inner, *innermost;
static int inner_calls;
static double seen;

static etch_tensor *square(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, x);
    return etch_add_scalar(y, 0.5);
}

static etch_tensor *reads(etch_tensor *x) {
    inner_calls++;
    seen = etch_item(etch_sum(x));
    return etch_mul_scalar(x, seen > 0 ? 2 : 3);
}

static etch_tensor *calls_inner(etch_tensor *x) {
    etch_tensor *a = etch_exp(x);
    etch_tensor *b = etch_sub(a, x);
    etch_tensor *c = etch_call(inner, b);
    etch_tensor *d = etch_mul(c, b);
    return etch_neg(d);
}

static etch_tensor *inner_plain(etch_tensor *x) {
    etch_tensor *a = etch_exp(x);
    etch_tensor *b = etch_sub(a, x);
    etch_tensor *c = reads(b);
    etch_tensor *d = etch_mul(c, b);
    return etch_neg(d);
}

static char last_line[512];
static void keep_line(void *ctx, const char *line) {
    (void)ctx;
    snprintf(last_line, sizeof last_line, "%s", line);
}

TEST(disabled_function_breaks) {
    etch_set_log_sink(keep_line, NULL);
    etch_set_logs("graph_breaks");
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            inner = etch_disable(reads, true);
            etch_function *f = etch_compile(calls_inner, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 4);
            for (int call = 0; call < 5; call++) {
                etch_tensor *a = call % 2 ? etch_neg(x) : etch_clone(x);
                inner_calls = 0;
                etch_tensor *y = etch_call(f, a);
                assert_int_equal(inner_calls, 1);
                assert_same(y, inner_plain(a));
            }
            assert_counts(f, 2, 8); /* before and after, the read inside is no break */
            assert_int_equal(etch_function_counters(f).graph_breaks, 5);
            assert_int_equal(etch_function_counters(f).late_uses, 0);
            etch_function_free(f);
            etch_function_free(inner);
        }
    assert_non_null(strstr(last_line, "disabled"));
    assert_non_null(strstr(last_line, "test_surface.c:"));
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
}

TEST(disabled_function_under_fullgraph) {
    ETCH_SCOPE {
        inner = etch_disable(reads, true);
        etch_function *f = etch_compile(calls_inner, .fullgraph = true);
        etch_tensor *x = arange_f32(3, 4);
        inner_calls = 0;
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        assert_int_equal(inner_calls, 0);
        etch_function_free(f);
        etch_function_free(inner);
    }
    etch_clear_error();
}

static etch_tensor *calls_innermost(etch_tensor *x) {
    etch_tensor *y = etch_call(innermost, x);
    return etch_add_scalar(y, 1);
}

TEST(disabled_recursively_or_not) {
    for (int recursive = 0; recursive < 2; recursive++)
        ETCH_SCOPE {
            innermost = etch_compile(square);
            inner = etch_disable(calls_innermost, recursive);
            etch_function *f = etch_compile(calls_inner, .backend = "eager");
            etch_tensor *x = arange_f32(3, 4);
            for (int call = 0; call < 4; call++) {
                etch_tensor *b = etch_sub(etch_exp(x), x);
                etch_tensor *c = etch_add_scalar(square(b), 1);
                assert_same(etch_call(f, x), etch_neg(etch_mul(c, b)));
            }
            assert_counts(innermost, recursive ? 0 : 1, recursive ? 0 : 3);
            assert_counts(f, 2, 6);
            /* The same outside of a run. */
            for (int call = 0; call < 4; call++)
                assert_same(etch_call(inner, x), etch_add_scalar(square(x), 1));
            assert_counts(innermost, recursive ? 0 : 1, recursive ? 0 : 7);
            etch_function_free(f);
            etch_function_free(inner);
            assert_same(etch_call(innermost, x), square(x)); /* enabled again */
            assert_counts(innermost, 1, recursive ? 0 : 8);
            etch_function_free(innermost);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *outer_value;

static etch_tensor *uses_outer(etch_tensor *x) { return etch_add(x, outer_value); }

static etch_tensor *captures(etch_tensor *x) {
    outer_value = etch_exp(x);
    etch_tensor *b = etch_neg(x);
    etch_tensor *c = etch_call(inner, b);
    etch_mul_scalar_(outer_value, 2);
    return etch_add(c, outer_value);
}

/* What the disabled body uses beside its arguments is there, too. */
TEST(disabled_function_captures) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            inner = etch_disable(uses_outer, false);
            etch_function *f = etch_compile(captures, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 4);
            etch_tensor *e = etch_exp(x);
            etch_tensor *expected = etch_add(etch_add(etch_neg(x), e), etch_mul_scalar(e, 2));
            for (int call = 0; call < 4; call++) assert_same(etch_call(f, x), expected);
            assert_counts(f, 2, 6);
            etch_function_free(f);
            etch_function_free(inner);
        }
}

/* ---- allowed in graphs ---- */

TEST(allowed_function_is_one_node) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            inner = etch_allow_in_graph(reads);
            assert_non_null(inner);
            etch_function *f = etch_compile(calls_inner, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 4);
            for (int call = 0; call < 5; call++) {
                etch_tensor *a = call % 2 ? etch_neg(x) : etch_clone(x);
                inner_calls = 0;
                etch_tensor *y = etch_call(f, a);
                assert_int_equal(inner_calls, 1); /* the first call learns and records at once */
                assert_same(y, inner_plain(a));
            }
            etch_counters_t c = etch_function_counters(f);
            assert_int_equal(c.graphs, 1);
            assert_int_equal(c.graph_nodes, 5);
            assert_int_equal(c.plan_runs, 4);
            assert_int_equal(c.graph_breaks, 0);
            /* Outside of a run it is the function. */
            assert_same(etch_call(inner, x), reads(x));
            etch_function_free(f);
            etch_function_free(inner);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *pure_inner(etch_tensor *x) {
    inner_calls++;
    return etch_sum_dim(etch_mul(x, x), ETCH_DIMS(0), false);
}

static etch_tensor *sums(etch_tensor *x) {
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = etch_call(inner, a);
    return etch_add(a, b);
}

static etch_tensor *sums_plain(etch_tensor *x) {
    etch_tensor *a = etch_add_scalar(x, 1);
    return etch_add(a, pure_inner(a));
}

/* Under fullgraph the result is learnt from shapes; one that reads must have been called before. */
TEST(allowed_function_under_fullgraph) {
    ETCH_SCOPE {
        inner = etch_allow_in_graph(pure_inner);
        etch_function *f = etch_compile(sums, .fullgraph = true);
        for (int64_t n = 3; n < 6; n++) {
            etch_tensor *x = arange_f32(n, 4);
            for (int call = 0; call < 3; call++) {
                etch_tensor *y = etch_call(f, x);
                if (!y) print_error("%s\n", etch_last_error());
                assert_same(y, sums_plain(x));
            }
        }
        assert_int_equal(etch_function_counters(f).graphs <= 3, 1);
        assert_int_equal(etch_function_counters(f).plan_runs, 9);
        etch_function_free(f);
        etch_function_free(inner);

        inner = etch_allow_in_graph(reads);
        f = etch_compile(calls_inner, .fullgraph = true);
        etch_tensor *x = arange_f32(5, 7); /* not seen before */
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        etch_clear_error();
        etch_function *warm = etch_compile(calls_inner);
        assert_same(etch_call(warm, x), inner_plain(x));
        for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), inner_plain(x));
        assert_counts(f, 1, 2);
        etch_function_free(warm);
        etch_function_free(f);
        etch_function_free(inner);
    }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
}

/* New sizes at the matched call: the segment goes on recording, values are right. */
TEST(allowed_function_with_other_sizes) {
    static const etch_dynamic kinds[] = {ETCH_DYNAMIC_OFF, ETCH_DYNAMIC_AUTO, ETCH_DYNAMIC_ON};
    for (int i = 0; i < 3; i++)
        ETCH_SCOPE {
            inner = etch_allow_in_graph(pure_inner);
            etch_function *f = etch_compile(sums, .dynamic = kinds[i], .backend = "eager");
            for (int64_t n = 2; n < 8; n++)
                for (int call = 0; call < 2; call++) {
                    etch_tensor *x = arange_f32(n, 10 + i);
                    assert_same(etch_call(f, x), sums_plain(x));
                }
            assert_int_equal(etch_function_counters(f).graph_breaks, 0);
            assert_true(etch_function_counters(f).graphs <= (i ? 2 : 6));
            etch_function_free(f);
            etch_function_free(inner);
        }
}

static int64_t result_size;

static etch_tensor *sized(etch_tensor *x) { return etch_slice(x, 0, 0, result_size, 1); }

static etch_tensor *calls_sized(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    return etch_call(inner, y);
}

/* Another shape for the same arguments is an error; the result never aliases an argument. */
TEST(allowed_function_changes_its_mind) {
    ETCH_SCOPE {
        inner = etch_allow_in_graph(sized);
        etch_function *f = etch_compile(calls_sized, .backend = "eager");
        etch_tensor *x = arange_f32(6, 2);
        result_size = 4;
        for (int call = 0; call < 2; call++) {
            etch_tensor *y = etch_call(f, x);
            assert_int_equal(etch_size(y, 0), 4);
            assert_int_equal(etch_storage_offset(y), 0);
            assert_false(etch_shares_storage(y, x));
        }
        result_size = 5;
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        etch_clear_error();
        result_size = 4;
        assert_non_null(etch_call(f, x));
        etch_function_free(f);
        etch_function_free(inner);
    }
    etch_clear_error();
}

static etch_status two_results(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    (void)nin;
    inner_calls++;
    for (int i = 0; i < nout; i++) out[i] = etch_mul_scalar(in[0], *(double *)ctx + i);
    return ETCH_OK;
}

static int wanted_results;

static etch_tensor *calls_general(etch_tensor *x) {
    etch_tensor *y = etch_neg(x), *out[2];
    if (etch_call_n(inner, &y, 1, out, wanted_results) != ETCH_OK) return NULL;
    return etch_add(out[0], out[wanted_results - 1]);
}

TEST(allowed_general_function) {
    double factor = 3;
    ETCH_SCOPE {
        inner = (etch_allow_in_graph)(ETCH_CALLABLE(two_results, &factor));
        etch_function *f = etch_compile(calls_general);
        etch_tensor *x = arange_f32(2, 2);
        wanted_results = 1;
        for (int call = 0; call < 3; call++) {
            factor = call;
            assert_same(etch_call(f, x), etch_mul_scalar(etch_neg(x), 2 * factor));
        }
        assert_counts(f, 1, 2);
        wanted_results = 2;
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_UNSUPPORTED);
        etch_function_free(f);
        etch_function_free(inner);
    }
    etch_clear_error();
}

/* ---- assumed constant ---- */

static double setting;

static etch_tensor *read_setting(void) {
    inner_calls++;
    etch_tensor *t = etch_full(ETCH_F32, ETCH_SHAPE(1), setting);
    seen = etch_item(t); /* a read: no break */
    return t;
}

static etch_tensor *uses_setting(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_tensor *k = etch_call_one(inner, NULL, 0);
    etch_tensor *z = etch_mul(y, k);
    etch_tensor *k2 = etch_call_one(inner, NULL, 0);
    return etch_add(z, k2);
}

static etch_tensor *setting_plain(etch_tensor *x, double k, double k2) {
    etch_tensor *a = etch_full(ETCH_F32, ETCH_SHAPE(1), k);
    etch_tensor *b = etch_full(ETCH_F32, ETCH_SHAPE(1), k2);
    return etch_add(etch_mul(etch_exp(x), a), b);
}

TEST(constant_function_is_called_once) {
    for (int full = 0; full < 2; full++)
        ETCH_SCOPE {
            inner = etch_assume_constant(read_setting);
            etch_function *f = etch_compile(uses_setting, .fullgraph = full);
            etch_tensor *x = arange_f32(3, 4);
            inner_calls = 0;
            for (int call = 0; call < 4; call++) {
                setting = 2 + call;
                assert_same(etch_call(f, x), setting_plain(x, 2, 2)); /* stale, as asked for */
            }
            assert_int_equal(inner_calls, 2); /* each call of it once, when recorded */
            assert_counts(f, 1, 3 + full);
            assert_int_equal(etch_function_counters(f).graph_breaks, 0);
            etch_reset(f);
            setting = 9;
            assert_same(etch_call(f, x), setting_plain(x, 9, 9));
            setting = 10; /* outside it is the function */
            assert_same(etch_call_one(inner, NULL, 0), etch_full(ETCH_F32, ETCH_SHAPE(1), 10));
            etch_function_free(f);
            etch_function_free(inner);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *norm(etch_tensor *x) {
    inner_calls++;
    return etch_sum(etch_mul(x, x));
}

static etch_tensor *divides(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    etch_tensor *n = etch_call(inner, y);
    return etch_div(y, n);
}

/* Of a computed argument: its value when recorded. */
TEST(constant_function_of_an_argument) {
    ETCH_SCOPE {
        inner = etch_assume_constant(norm);
        etch_function *f = etch_compile(divides);
        etch_tensor *x = arange_f32(3, 4), *y = etch_add_scalar(x, 1);
        etch_tensor *n = norm(y);
        inner_calls = 0;
        for (int call = 0; call < 3; call++) {
            etch_tensor *a = etch_add_scalar(x, call);
            assert_same(etch_call(f, a), etch_div(etch_add_scalar(a, 1), n));
        }
        assert_int_equal(inner_calls, 1);
        assert_counts(f, 1, 2);
        etch_function *full = etch_compile(divides, .fullgraph = true);
        assert_null(etch_call(full, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_UNSUPPORTED);
        etch_function_free(full);
        etch_function_free(f);
        etch_function_free(inner);
    }
    etch_clear_error();
}

/* ---- wrappers: bad input, and modes ---- */

TEST(bad_callables) {
    assert_null((etch_disable)((etch_callable){1, NULL, NULL}, true));
    assert_int_equal(etch_last_status(), ETCH_ERR_NULL);
    assert_null((etch_allow_in_graph)((etch_callable){9, (void (*)(void))reads, NULL}));
    assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
    ETCH_SCOPE {
        inner = etch_assume_constant(norm);
        etch_tensor *x = arange_f32(2, 2);
        assert_null(etch_call(inner, x, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
        etch_function_free(inner);
    }
    etch_clear_error();
}

static int handled;
static etch_status count_calls(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    handled++;
    return ETCH_DECLINED;
}

/* Under a mode all is eager, and the mode sees what the functions call. */
TEST(wrappers_under_a_mode) {
    ETCH_SCOPE {
        etch_function *made[] = {etch_disable(pure_inner, false), etch_allow_in_graph(pure_inner),
                                 etch_assume_constant(pure_inner)};
        etch_mode *mode = etch_mode_new(count_calls, NULL);
        etch_tensor *x = arange_f32(3, 4), *expected = sums_plain(x);
        for (int i = 0; i < 3; i++) {
            inner = made[i];
            etch_function *f = etch_compile(sums);
            handled = 0;
            ETCH_WITH_MODE (mode) assert_same(etch_call(f, x), expected);
            assert_int_equal(handled, 4);
            assert_counts(f, 0, 0);
            etch_function_free(f);
            etch_function_free(inner);
        }
        etch_mode_free(mode);
    }
}

/* ---- stances ---- */

static bool other_path;

static etch_tensor *two_paths(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    return other_path ? etch_sin(y) : etch_cos(y);
}

TEST(stance_force_eager) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(two_paths);
        etch_tensor *x = arange_f32(3, 3);
        assert_same(etch_call(f, x), two_paths(x));
        assert_int_equal(etch_set_stance(ETCH_STANCE_FORCE_EAGER), ETCH_OK);
        assert_int_equal(etch_current_stance(), ETCH_STANCE_FORCE_EAGER);
        for (int call = 0; call < 3; call++) {
            other_path = call == 1;
            assert_same(etch_call(f, x), two_paths(x));
        }
        assert_counts(f, 1, 0);
        assert_int_equal(etch_set_stance(ETCH_STANCE_DEFAULT), ETCH_OK);
        other_path = false;
        assert_same(etch_call(f, x), two_paths(x));
        assert_counts(f, 1, 1);
        assert_int_equal(etch_set_stance((etch_stance)9), ETCH_ERR_INVALID_ARGUMENT);
        etch_function_free(f);
    }
    etch_clear_error();
}

TEST(stance_eager_on_recompile) {
    for (int full = 0; full < 2; full++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(two_paths, .fullgraph = full);
            etch_tensor *x = arange_f32(3, 3), *y = arange_f32(4, 4);
            etch_set_stance(ETCH_STANCE_EAGER_ON_RECOMPILE);
            other_path = false;
            for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), two_paths(x));
            assert_counts(f, 0, 0); /* not even the first compile */
            etch_set_stance(ETCH_STANCE_DEFAULT);
            assert_same(etch_call(f, x), two_paths(x));
            etch_set_stance(ETCH_STANCE_EAGER_ON_RECOMPILE);
            etch_counters_t before = etch_function_counters(f);
            for (int call = 0; call < 6; call++) {
                other_path = call % 3 == 1; /* diverges */
                etch_tensor *a = call % 3 == 2 ? y : x;
                etch_tensor *z = etch_call(f, a);
                if (!z) print_error("%s\n", etch_last_error());
                assert_same(z, two_paths(a));
            }
            assert_counts(f, 1, before.plan_runs + 2);
            etch_set_stance(ETCH_STANCE_DEFAULT);
            other_path = true;
            assert_same(etch_call(f, x), two_paths(x));
            assert_int_equal(etch_function_counters(f).graphs, 2);
            etch_function_free(f);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(stance_fail_on_recompile) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(two_paths);
        etch_tensor *x = arange_f32(3, 3), *y = arange_f32(4, 4);
        other_path = false;
        assert_same(etch_call(f, x), two_paths(x));
        etch_set_stance(ETCH_STANCE_FAIL_ON_RECOMPILE);
        assert_same(etch_call(f, x), two_paths(x));
        for (int i = 0; i < 2; i++) {
            other_path = i;
            etch_clear_error();
            assert_null(etch_call(f, i ? x : y));
            assert_int_equal(etch_last_status(), ETCH_ERR_RECOMPILE);
            assert_non_null(strstr(etch_last_error(), "two_paths"));
        }
        other_path = false;
        assert_same(etch_call(f, x), two_paths(x));
        assert_counts(f, 1, 2);
        etch_set_stance(ETCH_STANCE_DEFAULT);
        assert_same(etch_call(f, y), two_paths(y));
        assert_int_equal(etch_function_counters(f).graphs, 2);
        etch_function_free(f);
    }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *kept;
static bool keep_it;

static etch_tensor *keeps(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    if (keep_it) kept = etch_retain(y);
    return etch_neg(y);
}

/* An escaping tensor would need more outputs: eager, or an error at the end of the call. */
TEST(stance_and_escaping_tensor) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(keeps, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        keep_it = false;
        assert_same(etch_call(f, x), keeps(x));
        keep_it = true;
        etch_set_stance(ETCH_STANCE_EAGER_ON_RECOMPILE);
        assert_same(etch_call(f, x), etch_neg(etch_exp(x)));
        assert_same(kept, etch_exp(x));
        etch_release(kept);
        etch_set_stance(ETCH_STANCE_FAIL_ON_RECOMPILE);
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_RECOMPILE);
        etch_clear_error();
        assert_same(kept, etch_exp(x));
        etch_release(kept);
        etch_set_stance(ETCH_STANCE_DEFAULT);
        assert_counts(f, 1, 0);
        keep_it = false;
        assert_same(etch_call(f, x), keeps(x));
        assert_counts(f, 1, 1);
        etch_function_free(f);
    }
    kept = NULL;
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_stance inner_stance;

static etch_tensor *sets_stance(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_set_stance(inner_stance);
    etch_tensor *z = etch_neg(y);
    etch_graph_break("here");
    etch_tensor *w = etch_sin(z);
    etch_set_stance(ETCH_STANCE_DEFAULT);
    return w;
}

/* One set in the body counts from the next segment on. */
TEST(stance_set_in_the_body) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(sets_stance, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3), *expected = etch_sin(etch_neg(etch_exp(x)));
        for (int call = 0; call < 8; call++) {
            inner_stance = call % 4 == 1 ? ETCH_STANCE_FORCE_EAGER
                           : call < 4    ? ETCH_STANCE_EAGER_ON_RECOMPILE
                                         : ETCH_STANCE_DEFAULT;
            etch_tensor *y = etch_call(f, x);
            if (!y) print_error("call %d: %s\n", call, etch_last_error());
            assert_same(y, expected);
        }
        assert_int_equal(etch_function_counters(f).graphs, 2);
        etch_function_free(f);
    }
}

/* ---- functions of five to eight tensors ---- */

#define T etch_tensor
static T *five(T *a, T *b, T *c, T *d, T *e) {
    return etch_sub(etch_add(a, b), etch_mul(c, etch_sub(d, e)));
}
static T *six(T *a, T *b, T *c, T *d, T *e, T *f) { return etch_sub(five(a, b, c, d, e), f); }
static T *seven(T *a, T *b, T *c, T *d, T *e, T *f, T *g) {
    return etch_mul(six(a, b, c, d, e, f), g);
}
static T *eight(T *a, T *b, T *c, T *d, T *e, T *f, T *g, T *h) {
    return etch_sub(seven(a, b, c, d, e, f, g), h);
}
#undef T

static ETCH_FN_N(first_and_sum, ctx, in, nin, out, nout) {
    out[0] = etch_neg(in[0]);
    out[1] = etch_add(in[0], in[1]);
    return out[1] ? ETCH_OK : etch_last_status();
}

TEST(up_to_eight_tensors) {
    etch_function *f5 = etch_compile(five), *f6 = etch_compile(six), *f7 = etch_compile(seven),
                  *f8 = etch_compile(eight, .fullgraph = true), *off = etch_disable(eight, false);
    ETCH_SCOPE {
        etch_tensor *x[8], *two[2];
        for (int i = 0; i < 8; i++) x[i] = etch_full(ETCH_F32, ETCH_SHAPE(3), 1 + i * i);
#define FIVE x[0], x[1], x[2], x[3], x[4]
        for (int call = 0; call < 3; call++) {
            assert_same(etch_call(f5, FIVE), five(FIVE));
            assert_same(etch_call(f6, FIVE, x[5]), six(FIVE, x[5]));
            assert_same(etch_call(f7, FIVE, x[5], x[6]), seven(FIVE, x[5], x[6]));
            etch_tensor *right = eight(FIVE, x[5], x[6], x[7]);
            assert_same(etch_call(f8, FIVE, x[5], x[6], x[7]), right);
            assert_same(ETCH_CALL_COMPILED(eight, FIVE, x[5], x[6], x[7]), right);
            assert_same(etch_call(off, FIVE, x[5], x[6], x[7]), right);
        }
        assert_null(etch_call(f8, FIVE));
        assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
        etch_function *n = etch_compile(first_and_sum);
        assert_int_equal(etch_call_n(n, x, 2, two, 2), ETCH_OK);
        assert_float_equal(etch_item(etch_sum(two[1])), 9, 0);
        etch_function_free(n);
#undef FIVE
    }
    assert_int_equal(etch_function_counters(f8).plan_runs, 3);
    etch_function_free(f5), etch_function_free(f6), etch_function_free(f7);
    etch_function_free(f8), etch_function_free(off);
    etch_clear_error();
}
