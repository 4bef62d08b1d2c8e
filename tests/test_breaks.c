/* Breaks, and the segments between them: loops, reads of values, printing, raw memory, values that
 * are used late, and what fullgraph makes of a break. Counts of graphs are exact.
 * Labels: quick device sanitizer fake. */
#include "device_support.h"
#include "log_support.h"
#include "trace_support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- loops ---- */

static int trips;

static etch_tensor *loop_without_breaks(etch_tensor *x) {
    for (int i = 0; i < trips; i++) x = etch_add_scalar(x, i);
    return x;
}

/* Without a break each trip count is a path, up to the limit; then eager, with right values. */
TEST(trip_counts_are_paths) {
    etch_set_logs("");
    ETCH_SCOPE {
        etch_function *f = etch_compile(loop_without_breaks, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        for (trips = 1; trips <= 6; trips++)
            for (int call = 0; call < 2; call++)
                assert_same(etch_call(f, x), loop_without_breaks(x));
        assert_counts(f, 6, 6);
        etch_function_free(f);
    }
}

static int64_t graphs(const etch_function *f) { return etch_function_counters(f).graphs; }
static double total;

static etch_tensor *loop_that_breaks(etch_tensor *x) {
    for (int i = 0; i < trips; i++) {
        x = etch_mul_scalar(x, 0.5);
        total += etch_item(etch_sum(x));
    }
    return x;
}

/* Every trip count from 1 to 100 runs the same two segments: the entry and the body. Some of them
 * on a device, where tools make each break slow. */
TEST(one_segment_for_every_trip_count) {
    const int step = test_device() == ETCH_CPU ? 1 : 9;
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(loop_that_breaks, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 3);
            uint64_t breaks = 0;
            for (trips = 1; trips <= 100; breaks += (uint64_t)trips, trips += step)
                ETCH_SCOPE {
                    total = 0;
                    etch_tensor *expected = loop_that_breaks(x);
                    double expected_total = total;
                    total = 0;
                    assert_same(etch_call(f, x), expected);
                    assert_true(total == expected_total);
                }
            assert_int_equal(graphs(f), 2);
            assert_int_equal(etch_function_counters(f).graph_breaks, breaks);
            etch_function_free(f);
        }
}

static int rounds;
static double last_value;

static etch_tensor *breaking_loop(etch_tensor *x) {
    for (int i = 0; i < rounds; i++) {
        etch_tensor *y = etch_mul_scalar(x, 1.001);
        x = etch_add_scalar(y, 0.25);
        last_value = etch_item(etch_sum(x));
    }
    return x;
}

/* The entry segment, and one for the body, whatever the trip count; all rounds but the first two
 * run compiled code. */
TEST(loop_that_breaks) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(breaking_loop, .backend = test_backends[b]);
            etch_function *plain = etch_compile(breaking_loop, .disable = true);
            etch_tensor *x = arange_f32(7, 9);
            rounds = 500;
            etch_tensor *y = etch_call(f, x);
            double value = last_value;
            etch_tensor *expected = etch_call(plain, x);
            assert_same(y, expected);
            assert_true(value == last_value);
            assert_counts(f, 2, 498);
            rounds = 7;
            y = etch_call(f, x);
            assert_same(y, etch_call(plain, x));
            assert_counts(f, 2, 505);
            etch_function_free(f);
            etch_function_free(plain);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *nine_breaks(etch_tensor *x) {
    for (int i = 0; i < 9; i++) {
        /* Each round begins with another operator, so each is a segment of its own. */
        etch_tensor *y = i % 3 == 0   ? etch_add_scalar(x, i)
                         : i % 3 == 1 ? etch_mul_scalar(x, 1.5)
                                      : etch_sub(x, x);
        for (int k = 0; k < i; k++) y = etch_neg(y);
        x = y;
        last_value = etch_item(etch_sum(x));
    }
    return etch_exp(x);
}

/* Nine breaks in a straight body make ten segments; the limit is not touched. */
TEST(straight_breaks) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(nine_breaks, .backend = "eager");
        etch_function *plain = etch_compile(nine_breaks, .disable = true);
        etch_tensor *x = arange_f32(3, 4);
        for (int call = 0; call < 4; call++) assert_same(etch_call(f, x), etch_call(plain, x));
        etch_counters_t c = etch_function_counters(f);
        assert_int_equal(c.graphs, 10);
        assert_int_equal(c.plan_runs, 30);
        assert_int_equal(c.graph_breaks, 36);
        etch_function_free(f);
        etch_function_free(plain);
    }
}

/* ---- reads of values ---- */

static etch_tensor *item_program(etch_tensor *x) {
    double sum = etch_item(etch_sum(x));
    return etch_mul_scalar(x, sum);
}

static void both_signs(etch_fn1 fn, int graphs) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(fn, .backend = test_backends[b]);
            etch_tensor *x = etch_exp(arange_f32(3, 3)), *negative = etch_neg(x);
            for (int call = 0; call < 6; call++) {
                etch_tensor *a = call % 2 ? negative : x;
                assert_same(etch_call(f, a), fn(a));
            }
            assert_counts(f, graphs, 12 - graphs); /* two segments a call */
            assert_int_equal(etch_function_counters(f).graph_breaks, 6);
            etch_function_free(f);
        }
}

TEST(item_with_both_signs_is_two_graphs) { both_signs(item_program, 2); }

static etch_tensor *branch_program(etch_tensor *x) {
    etch_tensor *sum = etch_sum(x);
    if (etch_item(sum) > 0) return etch_add_scalar(x, 1);
    return etch_sub_scalar(x, 1);
}

TEST(branch_with_both_outcomes_is_three_graphs) { both_signs(branch_program, 3); }

static etch_tensor *branch_by_where(etch_tensor *x) {
    etch_tensor *positive = etch_gt_scalar(etch_sum(x), 0);
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = etch_sub_scalar(x, 1);
    return etch_where(positive, a, b);
}

TEST(where_does_not_break) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(branch_by_where, .fullgraph = true);
        etch_tensor *x = etch_exp(arange_f32(3, 3)), *negative = etch_neg(x);
        for (int call = 0; call < 4; call++) {
            etch_tensor *a = call % 2 ? negative : x;
            assert_same(etch_call(f, a), branch_program(a));
        }
        assert_counts(f, 1, 4);
        etch_function_free(f);
    }
}

static etch_tensor *branches(etch_tensor *x) {
    if (etch_item(etch_sum(x)) > 0) return etch_add_scalar(x, 1);
    return etch_sub_scalar(x, 1);
}

TEST(hint_of_a_break_names_the_operator) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(branches, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        for (int call = 0; call < 2; call++) assert_non_null(etch_call(f, x));
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->nbreaks, 1);
        assert_string_equal(e->breaks[0].reason, "item");
        assert_non_null(strstr(e->breaks[0].hint, "etch_where"));
        assert_non_null(strstr(e->breaks[0].where, "test_breaks.c:"));
        assert_int_equal(e->break_count, 2);
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

/* ---- printing, and breaks that are asked for ---- */

/* Runs fn(x) with standard output in a file; returns what was printed. */
static char *output_of(etch_function *f, etch_fn1 fn, etch_tensor *x) {
    char path[] = "/tmp/etch-breaks-XXXXXX";
    int file = mkstemp(path), before = dup(1);
    assert_true(file >= 0 && before >= 0);
    fflush(stdout);
    dup2(file, 1);
    etch_tensor *y = f ? etch_call(f, x) : fn(x);
    fflush(stdout);
    dup2(before, 1);
    close(before);
    assert_non_null(y);
    off_t n = lseek(file, 0, SEEK_END);
    char *text = calloc(1, (size_t)n + 1);
    assert_int_equal(pread(file, text, (size_t)n, 0), n);
    close(file);
    unlink(path);
    return text;
}

static etch_tensor *prints(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    etch_print(y);
    etch_tensor *z = etch_mul_scalar(y, 2);
    printf("between\n");
    etch_print(z);
    printf("after\n");
    return etch_neg(z);
}

static void check_prints(etch_fn1 fn, int graphs, int breaks) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(fn, .backend = "eager");
        for (int call = 0; call < 4; call++) {
            etch_tensor *x = etch_add_scalar(arange_f32(2, 2), call);
            char *eager = output_of(NULL, fn, x), *compiled = output_of(f, fn, x);
            assert_true(strlen(eager) > 0);
            assert_string_equal(eager, compiled);
            free(eager);
            free(compiled);
        }
        assert_counts(f, graphs, 3 * (breaks + 1));
        assert_int_equal(etch_function_counters(f).graph_breaks, 4 * breaks);
        etch_function_free(f);
    }
}

TEST(print_breaks_and_prints_in_order) { check_prints(prints, 3, 2); }

static etch_tensor *prints_nine_times(etch_tensor *x) {
    for (int i = 0; i < 9; i++) {
        /* another first operator each time, so that each segment has a root of its own */
        etch_tensor *y = i % 2 ? etch_sum_dim(x, ETCH_DIMS(0), true) : etch_cos(x);
        for (int k = 0; k < i; k++) y = etch_add_scalar(y, k);
        x = i % 2 ? etch_add(x, y) : y;
        etch_print(x);
    }
    return etch_neg(x);
}

TEST(nine_prints_are_ten_segments) { check_prints(prints_nine_times, 10, 9); }

static etch_tensor *explicit_break(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_graph_break("because of the weather");
    etch_tensor *z = etch_neg(y);
    return z;
}

TEST(explicit_break_is_logged) {
    begin_log("graph_breaks");
    ETCH_SCOPE {
        etch_function *f = etch_compile(explicit_break, .name = "stormy", .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), explicit_break(x));
        assert_counts(f, 2, 4);
        etch_function_free(f);
    }
    assert_non_null(strstr(logged, "graph_breaks: stormy: test_breaks.c:"));
    assert_non_null(strstr(logged, "because of the weather"));
    assert_non_null(strstr(logged, "hint: remove the call"));
    end_log();
}

/* ---- raw memory ---- */

static int call_number;

/* One call of the program number `call`, on argument x. */
static etch_tensor *one_call(etch_function *f, int call, etch_tensor *x) {
    call_number = call;
    etch_tensor *y = etch_call(f, x);
    if (!y) print_error("%s\n", etch_last_error());
    assert_non_null(y);
    return y;
}

static etch_tensor *writes_through_pointer(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    float *data = etch_data_mut(y);
    data[0] = 100.0f + (float)call_number;
    etch_tensor *z = etch_add_scalar(y, 1); /* reads exposed memory: runs at once */
    data[1] = -100.0f;
    etch_tensor *w = etch_add(y, z);
    etch_data_end(y);
    return etch_mul(w, y);
}

TEST(raw_writes) {
    ONLY_ON_CPU();
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(writes_through_pointer, .backend = test_backends[b]);
            etch_function *plain = etch_compile(writes_through_pointer, .disable = true);
            etch_tensor *x = arange_f32(7, 9);
            for (int call = 0; call < 10; call++)
                assert_same(one_call(f, call, x), one_call(plain, call, x));
            assert_counts(f, 2, 18); /* before the pointer, and after its end */
            etch_function_free(f);
            etch_function_free(plain);
        }
}

/* ---- values used late ---- */

static bool use_late;

static etch_tensor *late(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_tensor *z = etch_add(y, x);
    last_value = etch_item(etch_sum(z));
    return use_late ? etch_mul(y, z) : etch_neg(z);
}

/* Rule 6: used after a break although no recording did so. */
TEST(rule6_late_use) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(late, .backend = test_backends[b]);
            etch_function *plain = etch_compile(late, .disable = true);
            etch_tensor *x = arange_f32(5, 5);
            for (int call = 0; call < 8; call++) {
                use_late = call >= 3;
                assert_same(etch_call(f, x), etch_call(plain, x));
            }
            etch_counters_t c = etch_function_counters(f);
            assert_int_equal(c.late_uses, 1);
            assert_int_equal(c.graphs, 4); /* prefix, its union, two ends */
            etch_function_free(f);
            etch_function_free(plain);
        }
}

static etch_tensor *late_after_write(etch_tensor *x) {
    etch_tensor *y = etch_exp(x); /* used late, after x has been written */
    etch_tensor *z = etch_add_scalar(x, 1);
    last_value = etch_item(etch_sum(z));
    etch_mul_scalar_(x, 2);
    return use_late ? etch_mul(y, x) : etch_neg(x);
}

TEST(rule6_write_before_late_use) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(late_after_write, .backend = test_backends[b]);
            etch_function *plain = etch_compile(late_after_write, .disable = true);
            for (int call = 0; call < 8; call++) {
                use_late = call >= 3;
                etch_tensor *x = arange_f32(5, 5), *x2 = etch_clone(x);
                assert_same(etch_call(f, x), etch_call(plain, x2));
                assert_same(x, x2);
            }
            etch_function_free(f);
            etch_function_free(plain);
        }
}

/* ---- fullgraph ---- */

static etch_tensor *inner_scope(etch_tensor *x) {
    etch_tensor *y = NULL;
    ETCH_SCOPE {
        etch_tensor *t = etch_add_scalar(x, 1);
        y = etch_keep(etch_mul(t, t));
    }
    return etch_sub(y, x);
}

TEST(fullgraph) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f =
                etch_compile(inner_scope, .fullgraph = true, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(5, 5), *expected = inner_scope(x);
            for (int call = 0; call < 4; call++) assert_same(etch_call(f, x), expected);
            assert_counts(f, 1, 4); /* the first call, too, ran the plan */
            etch_function_free(f);
        }
}

static etch_tensor *writes_then_reads(etch_tensor *x) {
    etch_add_scalar_(x, 1);
    double sum = etch_item(etch_sum(x));
    return etch_mul_scalar(x, sum);
}

/* A break is an error before any tensor was changed. */
TEST(fullgraph_break_names_reason_line_and_hint) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes_then_reads, .fullgraph = true);
        etch_tensor *x = arange_f32(3, 3), *before = etch_clone(x);
        for (int call = 0; call < 3; call++) {
            etch_clear_error();
            assert_null(etch_call(f, x));
            assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
            assert_non_null(strstr(etch_last_error(), "item"));
            assert_non_null(strstr(etch_last_error(), "test_breaks.c:"));
            assert_non_null(strstr(etch_last_error(), "etch_where"));
            assert_same(x, before);
        }
        assert_counts(f, 0, 0);
        etch_function_free(f);
    }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
}

static bool other_path;
static int body_calls;

static etch_tensor *counts_calls(etch_tensor *x) {
    body_calls++;
    etch_add_scalar_(x, 1);
    etch_tensor *y = etch_exp(x);
    return other_path ? etch_sin(y) : etch_neg(y);
}

/* fullgraph and the limit: an error, before the body where the guards fail, else at the operator
 * that differs; no tensor was changed. */
TEST(fullgraph_at_the_limit) {
    begin_log("");
    ETCH_SCOPE {
        etch_function *f = etch_compile(counts_calls, .fullgraph = true, .recompile_limit = 1,
                                        .dynamic = ETCH_DYNAMIC_OFF);
        etch_tensor *x = arange_f32(3, 3), *y = arange_f32(4, 4);
        other_path = false;
        assert_non_null(etch_call(f, x));
        etch_tensor *x_before = etch_clone(x), *y_before = etch_clone(y);
        body_calls = 0;
        assert_null(etch_call(f, y));
        assert_int_equal(etch_last_status(), ETCH_ERR_RECOMPILE_LIMIT);
        assert_int_equal(body_calls, 0);
        assert_same(y, y_before);
        etch_clear_error();
        other_path = true;
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_RECOMPILE_LIMIT);
        assert_int_equal(body_calls, 1);
        assert_same(x, x_before);
        other_path = false;
        assert_non_null(etch_call(f, x));
        etch_function_free(f);
    }
    end_log();
    etch_clear_error();
}

/* ---- the length of a segment ---- */

/* In a process of its own, since the environment is read once. */
static int run_short_segments(void) {
    alarm(120);
    int wrong = 0;
    ETCH_SCOPE {
        etch_function *f = etch_compile(inner_scope);
        etch_tensor *x = arange_f32(5, 5), *expected = inner_scope(x);
        for (int call = 0; call < 4; call++) {
            etch_tensor *y = etch_call(f, x);
            wrong += !y || !etch_bitwise_equal(y, expected);
        }
        wrong += etch_function_counters(f).graph_breaks == 0;
        etch_function_free(f);
    }
    return wrong;
}

/* ETCH_MAX_SEGMENT=0 still lets a segment have an operator. */
TEST(shortest_segments) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        setenv("ETCH_MAX_SEGMENT", "0", 1);
        execl("/proc/self/exe", "test_breaks", "--short-segments", NULL);
        _exit(9);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--short-segments")) return run_short_segments();
    return run_suite(argc, argv);
}
