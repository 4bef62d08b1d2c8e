/* etch_explain, the guards and recompiles channels of the log, the warning at the limit.
 * Labels: quick. */
#include "trace_support.h"

#include "core/base/base.h"

#include <stdlib.h>
#include <string.h>

static char logged[16384];
static int nlines;

static void keep(void *ctx, const char *line) {
    (void)ctx;
    nlines++;
    strncat(logged, line, sizeof logged - strlen(logged) - 2);
    strcat(logged, "\n");
}

static void begin_log(const char *channels) {
    logged[0] = 0, nlines = 0;
    etch_set_log_sink(keep, NULL);
    assert_int_equal(etch_set_logs(channels), ETCH_OK);
}

static void end_log(void) {
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
}

static char *text_of(const etch_function *f) {
    int64_t n = etch_explain_text(f, NULL, 0);
    assert_true(n > 0);
    char *text = malloc((size_t)n + 1);
    assert_int_equal(etch_explain_text(f, text, (size_t)n + 1), n);
    assert_int_equal(strlen(text), n);
    return text;
}

static etch_tensor *global;

static etch_tensor *with_break(etch_tensor *x) {
    etch_tensor *y = etch_add(x, global);
    if (etch_item(etch_sum(y)) > 0) return etch_neg(y);
    etch_graph_break("on purpose");
    return etch_mul_scalar(y, 3);
}

TEST(explains_nothing_called_yet) {
    etch_function *f = etch_compile(with_break, .name = "fresh");
    etch_explanation *e = etch_explain(f);
    assert_non_null(e);
    assert_string_equal(e->name, "fresh");
    assert_string_equal(e->backend, "native");
    assert_int_equal(e->calls + e->graph_count + e->ngraphs + e->nbreaks + e->nrecompiles, 0);
    assert_null(e->mode);
    etch_explanation_free(e);
    etch_explanation_free(NULL);
    etch_function_free(f);
    assert_null(etch_explain(NULL));
    assert_int_equal(etch_explain_text(NULL, NULL, 0), -1);
    etch_clear_error();
}

TEST(explains_graphs_and_breaks) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f =
                etch_compile(with_break, .name = "step", .backend = test_backends[b]);
            etch_tensor *x = arange_f32(4, 5);
            global = arange_f32(1, 5);
            for (int call = 0; call < 3; call++)
                assert_same(etch_call(f, x), etch_neg(etch_add(x, global)));
            etch_explanation *e = etch_explain(f);
            assert_string_equal(e->backend, test_backends[b]);
            assert_int_equal(e->calls, 3);
            assert_int_equal(e->graph_count, 2);
            assert_int_equal(e->op_count, 3);
            assert_int_equal(e->break_count, 3);
            assert_int_equal(e->recompile_count, 0);
            assert_int_equal(e->plan_runs, 4);
            assert_int_equal(e->ngraphs, 2);
            assert_string_equal(e->graphs[0].name, "step/0");
            assert_int_equal(e->graphs[0].operators, 2);
            assert_int_equal(e->graphs[0].kernels > 0, b);
            assert_non_null(strstr(e->graphs[0].guards, "tensor 0: f32[4, 5]"));
            assert_non_null(strstr(e->graphs[0].guards, "captured by add.Tensor (test_explain.c:"));
            assert_non_null(strstr(e->graphs[0].guards, "f32[1, 5]"));
            assert_true(e->graphs[0].seconds >= 0 && e->compile_seconds >= e->graphs[0].seconds);
            assert_int_equal(e->nbreaks, 1);
            assert_string_equal(e->breaks[0].reason, "item");
            assert_non_null(strstr(e->breaks[0].where, "test_explain.c:"));
            assert_non_null(strstr(e->breaks[0].hint, "etch_where"));
            assert_int_equal(e->nrecompiles, 0);
            assert_false(e->limit_reached);
            etch_explanation_free(e);
            char *text = text_of(f);
            assert_non_null(strstr(text, "3 calls, 2 graphs, 3 operators, 3 graph breaks"));
            assert_non_null(strstr(text, "graph step/0: 2 operators"));
            assert_non_null(strstr(text, "break at test_explain.c:"));
            assert_non_null(strstr(text, "item: "));
            free(text);
            etch_function_free(f);
        }
}

static int path;
static etch_tensor *kept;

static etch_tensor *changes(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    if (path == 1) return etch_sin(y);
    if (path == 2) kept = etch_retain(y);
    return etch_cos(y);
}

TEST(explains_recompiles) {
    begin_log("recompiles");
    ETCH_SCOPE {
        etch_function *f = etch_compile(changes, .dynamic = ETCH_DYNAMIC_OFF, .backend = "eager");
        etch_tensor *x = arange_f32(3, 8), *other = arange_f32(3, 9);
        path = 0;
        assert_non_null(etch_call(f, x));
        for (path = 0; path < 3; path++) assert_non_null(etch_call(f, path ? x : other));
        etch_release(kept);
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->recompile_count, 3);
        assert_int_equal(e->nrecompiles, 3);
        assert_string_equal(e->recompiles[0].reason, "guard_failed");
        assert_string_equal(e->recompiles[0].detail,
                            "tensor 0: size mismatch at dim 1: expected 8, got 9");
        assert_string_equal(e->recompiles[1].reason, "trace_diverged");
        assert_non_null(strstr(e->recompiles[1].detail, "expected cos ("));
        assert_non_null(strstr(e->recompiles[1].detail, "got sin"));
        assert_string_equal(e->recompiles[2].reason, "outputs_changed");
        etch_explanation_free(e);
        char *text = text_of(f);
        assert_non_null(strstr(text, "expected 8, got 9"));
        free(text);
        etch_function_free(f);
    }
    assert_non_null(strstr(logged, "changes: guard_failed: tensor 0: size mismatch at dim 1: "
                                   "expected 8, got 9"));
    assert_non_null(strstr(logged, "trace_diverged: expected cos"));
    end_log();
}

TEST(guards_channel) {
    begin_log("guards");
    ETCH_SCOPE {
        etch_function *f = etch_compile(with_break, .name = "logged", .backend = "eager");
        etch_function *d = etch_compile(with_break, .name = "dynamic", .backend = "eager",
                                        .dynamic = ETCH_DYNAMIC_ON);
        etch_tensor *x = etch_t(arange_f32(5, 4));
        global = arange_f32(1, 5);
        for (int call = 0; call < 2; call++) {
            assert_non_null(etch_call(f, x));
            assert_non_null(etch_call(d, x));
        }
        etch_function_free(f);
        etch_function_free(d);
    }
    assert_int_equal(nlines, 4); /* one a trace, when it is compiled */
    assert_non_null(strstr(logged, "etch: guards: logged/0: tensor 0: f32[4, 5] strides 1, 4; "));
    assert_non_null(strstr(logged, "dynamic/0: tensor 0: f32 of rank 2"));
    assert_non_null(strstr(logged, "default dtype f32"));
    end_log();
}

static etch_tensor *writes(etch_tensor *x) { return etch_add_(x, global); }

TEST(guards_of_written_inputs) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes, .backend = "eager");
        global = arange_f32(1, 5);
        assert_non_null(etch_call(f, arange_f32(4, 5)));
        etch_explanation *e = etch_explain(f);
        assert_non_null(strstr(e->graphs[0].guards, "inputs are written"));
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

static etch_status pass_on(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

TEST(explains_mode_fallbacks) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(changes, .backend = "eager");
        etch_mode *mode = etch_mode_new(pass_on, NULL, .name = "watcher");
        etch_tensor *x = arange_f32(3, 3);
        path = 0;
        ETCH_WITH_MODE (mode) assert_non_null(etch_call(f, x));
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->mode_fallbacks, 1);
        assert_string_equal(e->mode, "watcher");
        assert_int_equal(e->graph_count, 0);
        etch_explanation_free(e);
        char *text = text_of(f);
        assert_non_null(strstr(text, "1 call ran uncompiled under a mode, last 'watcher'"));
        free(text);
        etch_mode_free(mode);
        etch_function_free(f);
    }
}

/* One warning names function, last reason and hint; not retried until etch_reset. */
TEST(limit_warns_once) {
    begin_log("");
    ETCH_SCOPE {
        etch_function *f =
            etch_compile(changes, .name = "grows", .dynamic = ETCH_DYNAMIC_OFF, .backend = "eager");
        path = 0;
        for (int64_t n = 1; n <= 12; n++) {
            etch_tensor *x = arange_f32(1, n);
            for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), changes(x));
            assert_int_equal(etch_function_counters(f).graphs, n < 8 ? n : 8);
            assert_int_equal(nlines, n > 8);
        }
        assert_non_null(strstr(logged, "warning: grows: recompile_limit (8)"));
        assert_non_null(strstr(logged, "tensor 0: size mismatch at dim 1: expected 8, got 9"));
        assert_non_null(strstr(logged, "hint: "));
        etch_explanation *e = etch_explain(f);
        assert_true(e->limit_reached);
        etch_explanation_free(e);
        etch_reset(f);
        e = etch_explain(f);
        assert_false(e->limit_reached);
        etch_explanation_free(e);
        assert_non_null(etch_call(f, arange_f32(1, 30)));
        assert_int_equal(etch_function_counters(f).graphs, 9);
        assert_int_equal(nlines, 1);
        etch_function_free(f);
    }
    end_log();
}

static etch_function *asked;
static int answers;

/* What a program does with a warning: asks what the matter is, and computes. */
static void ask(void *ctx, const char *line) {
    (void)ctx, (void)line;
    free(text_of(asked));
    assert_true(etch_function_counters(asked).calls <= etch_counters().calls);
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 3);
        assert_true(etch_item(etch_sum(etch_sub(x, x))) == 0);
    }
    answers++;
}

/* A sink is called under no lock that these take, and what it computes is not recorded. */
TEST(sinks_may_ask) {
    ETCH_SCOPE {
        asked = etch_compile(changes, .dynamic = ETCH_DYNAMIC_OFF, .recompile_limit = 2);
        etch_set_log_sink(ask, NULL);
        assert_int_equal(etch_set_logs("all"), ETCH_OK);
        for (int64_t n = 1; n <= 4; n++)
            for (path = 0; path < 2; path++) {
                etch_tensor *x = arange_f32(1, n), *y = etch_call(asked, x);
                assert_same(y, changes(x));
            }
        end_log();
        assert_int_equal(etch_function_counters(asked).graphs, 2);
        assert_true(answers > 4);
        etch_function_free(asked);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* 256 graphs in all, as main says: other functions may compile again when some are gone. */
TEST(sum_of_graphs_is_limited) {
    begin_log("");
    etch_function *fs[40];
    path = 0;
    ETCH_SCOPE {
        int64_t graphs = 0;
        for (int i = 0; i < 40; i++) {
            fs[i] = etch_compile(changes, .dynamic = ETCH_DYNAMIC_OFF, .backend = "eager");
            for (int64_t n = 1; n <= 8; n++) {
                etch_tensor *x = arange_f32(1, n);
                assert_same(etch_call(fs[i], x), changes(x));
            }
            graphs += etch_function_counters(fs[i]).graphs;
        }
        assert_int_equal(graphs, 256);
        assert_non_null(strstr(logged, "graph_limit (256): "));
        assert_non_null(strstr(logged, "raise ETCH_GRAPH_LIMIT"));
        assert_null(strstr(logged, "last reason"));
        assert_int_equal(nlines, 1); /* one warning, whatever the number of functions */
        etch_function_free(fs[0]);
        etch_tensor *x = arange_f32(1, 3);
        etch_reset(fs[39]);
        for (int call = 0; call < 2; call++) assert_same(etch_call(fs[39], x), changes(x));
        assert_counts(fs[39], 1, 1);
        for (int i = 1; i < 40; i++) etch_function_free(fs[i]);
    }
    end_log();
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *many_breaks(etch_tensor *x) {
    for (int i = 0; i < 80; i++) {
        char why[32];
        snprintf(why, sizeof why, "number %d", i);
        x = etch_add_scalar(x, 1);
        etch_graph_break(why);
    }
    return x;
}

/* What is kept is bounded. */
TEST(lists_are_bounded) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(many_breaks, .backend = "eager", .stable_after = 1000);
        assert_non_null(etch_call(f, arange_f32(2, 2)));
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->break_count, 80);
        assert_int_equal(e->nbreaks, 64);
        assert_int_equal(e->dropped, 16);
        assert_string_equal(e->breaks[63].detail, "number 63");
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

TEST(explaining_survives_failed_allocations) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(with_break, .backend = "eager");
        global = arange_f32(1, 5);
        assert_non_null(etch_call(f, arange_f32(4, 5)));
        etch__fail_allocation(0);
        etch_explanation *e = etch_explain(f);
        etch__fail_allocation(-1);
        assert_null(e);
        assert_int_equal(etch_last_status(), ETCH_ERR_OUT_OF_MEMORY);
        etch_clear_error();
        etch_function_free(f);
    }
}

int main(int argc, char **argv) {
    setenv("ETCH_GRAPH_LIMIT", "256", 1);
    return run_suite(argc, argv);
}
