/* The rows of the tables "Capture and compile", "Guards, recompiles, dynamic sizes" and "Graph
 * breaks": each a test, with exact counts of graphs. What happens eagerly is what is expected.
 * Labels: quick device fake. */
#include "trace_support.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define assert_graphs(f, n) assert_int_equal(etch_function_counters(f).graphs, (n))

static char logged[16384];

static void keep_log(void *ctx, const char *line) {
    (void)ctx;
    strncat(logged, line, sizeof logged - strlen(logged) - 2);
    strcat(logged, "\n");
}

static void begin_log(const char *channels) {
    logged[0] = 0;
    etch_set_log_sink(keep_log, NULL);
    assert_int_equal(etch_set_logs(channels), ETCH_OK);
}

static void end_log(void) {
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
}

/* ==== capture and compile ==== */

static etch_tensor *seed_step(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = etch_mm(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

TEST(seed_program_is_one_graph) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(seed_step, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(8, 8), *w = etch_sin(arange_f32(8, 8));
            etch_tensor *expected = seed_step(x, w);
            assert_same(etch_call(f, x, w), expected);
            assert_counts(f, 1, 0);
            assert_int_equal(etch_function_counters(f).graph_nodes, 25);
            assert_same(etch_call(f, x, w), expected);
            assert_counts(f, 1, 1);
            etch_function_free(f);
        }
}

TEST(seed_program_has_ten_products_and_six_kernels) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(seed_step);
        etch_tensor *x = etch_sin(arange_f32(256, 256)), *w = etch_cos(x);
        etch_tensor *expected = seed_step(x, w);
        for (int call = 0; call < 2; call++) assert_same(etch_call(f, x, w), expected);
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->graphs[0].products, 10);
        assert_int_equal(e->graphs[0].kernels, 6);
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

static etch_tensor *mul_add_two(etch_tensor *x, etch_tensor *y) {
    etch_tensor *product = etch_mul(x, y);
    return etch_add_scalar(product, 2);
}

/* ETCH_LOGS=graph prints the two nodes, and the text parses back. */
TEST(graph_log_parses_back) {
    begin_log("graph");
    ETCH_SCOPE {
        etch_function *f = etch_compile(mul_add_two, .name = "fx", .backend = "eager");
        etch_tensor *x = arange_f32(2, 3);
        assert_non_null(etch_call(f, x, x));
        etch_function_free(f);
    }
    static const char prefix[] = "etch: graph: ";
    char text[4096] = "";
    for (char *line = strtok(logged, "\n"); line; line = strtok(NULL, "\n")) {
        assert_int_equal(strncmp(line, prefix, sizeof prefix - 1), 0);
        strcat(strcat(text, line + sizeof prefix - 1), "\n");
    }
    assert_non_null(strstr(text, "mul.Tensor"));
    etch_graph *g = etch_graph_parse(text);
    assert_non_null(g);
    assert_int_equal(etch_graph_num_nodes(g), 2);
    assert_string_equal(etch_op_name(etch_node_op(etch_graph_last(g))), "add.Scalar");
    etch_graph_free(g);
    end_log();
}

TEST(nothing_called_compiles_nothing) {
    etch_function *f = etch_compile(seed_step);
    assert_counts(f, 0, 0);
    etch_function_free(f);
}

static etch_tensor *identity(etch_tensor *x) { return x; }

TEST(no_operator_is_no_graph_and_no_failure) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(identity, .recompile_limit = 1);
        for (int64_t n = 1; n < 20; n++) {
            etch_tensor *x = arange_f32(1, n);
            assert_ptr_equal(etch_call(f, x), x);
        }
        etch_counters_t c = etch_function_counters(f);
        assert_int_equal(c.graphs + c.plan_runs + c.compile_failures + c.divergences, 0);
        etch_function_free(f);
    }
}

TEST(each_wrapper_has_its_own_segments) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(mul_add_two), *g = etch_compile(mul_add_two);
        etch_tensor *x = arange_f32(2, 3);
        for (int call = 0; call < 2; call++) assert_non_null(etch_call(f, x, x));
        assert_counts(f, 1, 1);
        assert_counts(g, 0, 0);
        assert_non_null(etch_call(g, x, x));
        assert_counts(g, 1, 0);
        etch_function_free(f);
        etch_function_free(g);
        int64_t before = etch_counters().graphs;
        for (int call = 0; call < 3; call++) {
            assert_non_null(ETCH_CALL_COMPILED(mul_add_two, x, x));
            assert_non_null(ETCH_CALL_COMPILED(mul_add_two, x, x));
        }
        assert_int_equal(etch_counters().graphs - before, 2);
    }
}

static etch_function *inner;

static etch_tensor *calls_compiled(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_tensor *z = etch_call(inner, y, x);
    return etch_neg(z);
}

TEST(compiled_call_inside_is_inlined) {
    ETCH_SCOPE {
        inner = etch_compile(mul_add_two);
        etch_function *f = etch_compile(calls_compiled);
        etch_tensor *x = arange_f32(3, 3), *expected = etch_neg(mul_add_two(etch_exp(x), x));
        for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), expected);
        assert_counts(f, 1, 2);
        assert_int_equal(etch_function_counters(f).graph_nodes, 4);
        assert_counts(inner, 0, 0);
        etch_function_free(f);
        etch_function_free(inner);
    }
}

static int call_number;

static etch_tensor *fails_first(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    if (!call_number) return etch_mm(y, etch_zeros(ETCH_F32, ETCH_SHAPE(99, 1)));
    return etch_neg(y);
}

TEST(failing_recording_is_not_published) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(fails_first, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        call_number = 0;
        for (int call = 0; call < 3; call++) assert_null(etch_call(f, x));
        assert_counts(f, 0, 0);
        etch_clear_error();
        for (call_number = 1; call_number < 4; call_number++)
            assert_same(etch_call(f, x), fails_first(x));
        assert_counts(f, 1, 2);
        assert_int_equal(etch_function_counters(f).divergences, 0);
        etch_function_free(f);
    }
    etch_clear_error();
}

static etch_status returns_thrice(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                  int nout) {
    (void)ctx, (void)nin, (void)nout;
    out[0] = etch_neg(in[0]);
    out[1] = in[0];
    out[2] = out[0];
    return ETCH_OK;
}

TEST(identity_of_results_is_kept) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(returns_thrice);
        etch_tensor *x = arange_f32(3, 3), *out[3];
        for (int call = 0; call < 3; call++) {
            assert_int_equal(etch_call_n(f, &x, 1, out, 3), ETCH_OK);
            assert_ptr_equal(out[1], x);
            assert_ptr_equal(out[2], out[0]);
            assert_same(out[0], etch_neg(x));
        }
        assert_counts(f, 1, 2);
        etch_function_free(f);
    }
}

static int wanted;

static etch_status returns_some(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                int nout) {
    (void)ctx, (void)nin;
    etch_tensor *y = in[0];
    for (int i = 0; i < nout; i++) out[i] = y = etch_add_scalar(y, i + 1);
    return ETCH_OK;
}

/* Each number of results is a trace of its own; a shorter one is a prefix of a longer one. */
TEST(different_numbers_of_outputs) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(returns_some, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3), *out[4], *expected[4];
        for (int call = 0; call < 9; call++) {
            wanted = 1 + call % 3;
            assert_int_equal(etch_call_n(f, &x, 1, out, wanted), ETCH_OK);
            returns_some(NULL, &x, 1, expected, wanted);
            for (int i = 0; i < wanted; i++) assert_same(out[i], expected[i]);
        }
        assert_counts(f, 3, 6);
        etch_function_free(f);
    }
}

static etch_tensor *branch_on_shape(etch_tensor *x) {
    int64_t rows = etch_size(x, 0);
    etch_tensor *y = etch_exp(x);
    return rows > 4 ? etch_neg(y) : etch_sin(y);
}

TEST(branch_on_shape_is_one_graph_an_outcome) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(branch_on_shape, .dynamic = ETCH_DYNAMIC_OFF);
        for (int call = 0; call < 6; call++) {
            etch_tensor *x = arange_f32(call % 2 ? 3 : 6, 4);
            assert_same(etch_call(f, x), branch_on_shape(x));
        }
        assert_counts(f, 2, 4);
        assert_int_equal(etch_function_counters(f).graph_breaks, 0);
        etch_function_free(f);
    }
}

static etch_tensor *branch_on_static(etch_tensor *x) {
    static int calls;
    etch_tensor *y = etch_exp(x);
    etch_tensor *z = calls++ % 2 ? etch_neg(y) : etch_sin(y);
    return etch_add(z, x);
}

TEST(hidden_state_is_trace_diverged) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(branch_on_static, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3), *y = etch_exp(x);
        for (int call = 0; call < 6; call++)
            assert_same(etch_call(f, x), etch_add(call % 2 ? etch_neg(y) : etch_sin(y), x));
        assert_counts(f, 2, 4);
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->nrecompiles, 1);
        assert_string_equal(e->recompiles[0].reason, "trace_diverged");
        assert_non_null(strstr(e->recompiles[0].detail, "got neg"));
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

static etch_tensor *global_tensor, *kept;

static etch_tensor *captures(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, global_tensor);
    return etch_add(y, global_tensor);
}

TEST(captured_tensor_is_rebound) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(captures);
        etch_tensor *x = arange_f32(3, 3);
        for (int call = 0; call < 5; call++) {
            global_tensor = etch_full(ETCH_F32, ETCH_SHAPE(3, 3), call + 0.5);
            assert_same(etch_call(f, x), captures(x));
        }
        assert_counts(f, 1, 4);
        global_tensor = etch_full(ETCH_F64, ETCH_SHAPE(3, 3), 2); /* does not fit its guard */
        for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), captures(x));
        assert_graphs(f, 2);
        etch_function_free(f);
    }
}

static etch_tensor *keeps_third(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    if (call_number == 2) kept = etch_retain(y);
    return etch_neg(y);
}

TEST(intermediate_kept_on_the_third_call) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(keeps_third);
        etch_tensor *x = arange_f32(3, 3), *expected = etch_neg(etch_exp(x));
        for (call_number = 0; call_number < 6; call_number++)
            assert_same(etch_call(f, x), expected);
        assert_same(kept, etch_exp(x));
        etch_release(kept);
        kept = NULL;
        assert_counts(f, 2, 4); /* the third call ran eagerly; calls 4 to 6 run the second plan */
        etch_function_free(f);
    }
}

static etch_tensor *through_scope(etch_tensor *x) {
    etch_tensor *y = NULL;
    ETCH_SCOPE {
        etch_tensor *t = etch_exp(x);
        y = etch_keep(call_number % 2 ? x : etch_neg(t));
    }
    return y;
}

TEST(argument_through_an_inner_scope) {
    int64_t before = etch_memory().tensors; /* call sites keep theirs */
    ETCH_SCOPE {
        etch_function *f = etch_compile(through_scope);
        etch_tensor *x = arange_f32(3, 3), *copy = etch_clone(x);
        for (call_number = 0; call_number < 6; call_number++) {
            etch_tensor *y = etch_call(f, x);
            if (call_number % 2) assert_ptr_equal(y, x);
            else assert_same(y, etch_neg(etch_exp(copy)));
        }
        assert_same(x, copy);
        etch_function_free(f);
    }
    assert_int_equal(etch_memory().tensors, before);
}

static etch_tensor *splits(etch_tensor *x) {
    etch_tensor *sum = NULL;
    for (int64_t at = 0; at < etch_size(x, 0); at += 4) {
        etch_tensor *part = etch_slice(x, 0, at, at + 4, 1);
        sum = sum ? etch_add(sum, part) : part;
    }
    return etch_neg(sum);
}

TEST(split_with_8_then_12_rows) {
    for (int d = 0; d < 3; d++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(splits, .dynamic = (etch_dynamic)d, .backend = "eager");
            for (int call = 0; call < 6; call++) {
                etch_tensor *x = arange_f32(call % 2 ? 12 : 8, 3);
                assert_same(etch_call(f, x), splits(x));
            }
            assert_true(etch_function_counters(f).graphs <= 3);
            assert_true(etch_function_counters(f).plan_runs >= 3);
            etch_function_free(f);
        }
}

static etch_tensor *plus_one(etch_tensor *x) { return etch_add_scalar(x, 1); }
static etch_tensor *times_two(etch_tensor *x) { return etch_mul_scalar(x, 2); }

TEST(one_site_with_two_functions) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        etch_counters_t before = etch_counters();
        for (int call = 0; call < 8; call++) {
            etch_fn1 fn = call % 2 ? plus_one : times_two;
            assert_same(ETCH_CALL_COMPILED(fn, x), fn(x));
        }
        assert_int_equal(etch_counters().graphs - before.graphs, 2);
        assert_int_equal(etch_counters().plan_runs - before.plan_runs, 6);
        assert_int_equal(etch_counters().divergences, before.divergences);
    }
}

static etch_tensor *history[16];

static etch_tensor *appends(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    history[call_number] = etch_retain(y);
    etch_tensor *z = etch_add(y, history[0]);
    return etch_neg(z);
}

/* It escapes, without a break. */
TEST(handle_kept_in_an_array) {
    int64_t before = etch_memory().tensors; /* call sites keep theirs */
    ETCH_SCOPE {
        etch_function *f = etch_compile(appends);
        for (call_number = 0; call_number < 5; call_number++) {
            etch_tensor *x = etch_add_scalar(arange_f32(3, 3), call_number);
            etch_tensor *y = etch_call(f, x);
            assert_same(history[call_number], etch_exp(x));
            assert_same(y, etch_neg(etch_add(etch_exp(x), history[0])));
        }
        assert_int_equal(etch_function_counters(f).graph_breaks, 0);
        assert_true(etch_function_counters(f).graphs <= 2);
        for (int i = 0; i < 5; i++) etch_release(history[i]);
        etch_function_free(f);
    }
    assert_int_equal(etch_memory().tensors, before);
}

static etch_tensor *sets_state(etch_tensor *x) {
    etch_tensor *a = etch_div(x, x); /* integers: the default dtype */
    etch_set_default_dtype(call_number % 2 ? ETCH_F64 : ETCH_F32);
    etch_tensor *b = etch_div(x, x);
    etch_set_default_dtype(ETCH_F32);
    int outer = call_number % 3 ? -1 : etch_inference_begin();
    etch_tensor *c = etch_add(a, b);
    if (outer >= 0) etch_inference_end(outer);
    return c;
}

/* The default dtype and inference are in the state word. */
TEST(state_changed_inside_the_body) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(sets_state, .backend = "eager");
        etch_tensor *x = etch_arange(ETCH_I32, 1, 9, 1);
        for (call_number = 0; call_number < 12; call_number++) {
            etch_tensor *y = etch_call(f, x);
            assert_int_equal(etch_dtype_of(y), call_number % 2 ? ETCH_F64 : ETCH_F32);
            assert_same(y, sets_state(x));
        }
        assert_counts(f, 4, 8);
        etch_function_free(f);
    }
}

static etch_tensor *seeds_inside(etch_tensor *x) {
    etch_manual_seed((uint64_t)call_number);
    etch_tensor *r = etch_randn(ETCH_F32, ETCH_SHAPE(4, 4));
    return etch_add(x, r);
}

TEST(seed_is_read_at_the_call) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(seeds_inside);
        etch_tensor *x = arange_f32(4, 4);
        for (call_number = 0; call_number < 4; call_number++)
            assert_same(etch_call(f, x), seeds_inside(x));
        assert_counts(f, 1, 3);
        etch_function_free(f);
    }
}

static bool other_path;

static etch_tensor *two_paths(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    return other_path ? etch_sin(y) : etch_neg(y);
}

/* stable_after = 3: calls 1 to 3 are eager, and a differing one restarts the count. */
TEST(differing_call_restarts_the_count) {
    static const int numbers[] = {0, 0, 1, 0, 0, 0, 0, 1, 1, 1};
    static const int graphs[] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 2};
    ETCH_SCOPE {
        etch_function *f = etch_compile(two_paths, .stable_after = 3, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        for (int call = 0; call < 10; call++) {
            other_path = numbers[call];
            assert_same(etch_call(f, x), two_paths(x));
            assert_graphs(f, graphs[call]);
        }
        etch_function_free(f);
    }
}

/* ---- ETCH_COMPILE_DISABLE=1, in a process of its own ---- */

static int run_disabled_child(void) {
    int bad = 0;
    ETCH_SCOPE {
        etch_function *f = etch_compile(seed_step, .fullgraph = true);
        etch_tensor *x = arange_f32(8, 8), *w = etch_sin(x);
        for (int call = 0; call < 3; call++)
            bad |= !etch_bitwise_equal(etch_call(f, x, w), seed_step(x, w));
        etch_counters_t c = etch_counters();
        bad |= (c.graphs || c.plan_runs || c.kernels) << 1 | (c.calls != 3) << 2;
        etch_function_free(f);
    }
    return bad;
}

TEST(compile_disable_makes_no_graphs_and_no_files) {
    char dir[] = "/tmp/etch-guards-XXXXXX";
    assert_non_null(mkdtemp(dir));
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        setenv("ETCH_COMPILE_DISABLE", "1", 1);
        setenv("ETCH_CACHE_DIR", dir, 1);
        execl("/proc/self/exe", "test_guards", "--disabled-child", (char *)NULL);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(rmdir(dir), 0); /* fails if there is a file in it */
}

/* ==== guards, recompiles, dynamic sizes ==== */

/* Never more graphs than PyTorch makes, whatever the sizes. */
TEST(sizes_make_no_more_graphs_than_pytorch) {
    static const int64_t sizes[] = {5, 6, 7, 8, 1, 0, 2};
    static const int most[] = {1, 2, 2, 2, 3, 4, 4, 5, 6};
    ETCH_SCOPE {
        etch_function *f = etch_compile(times_two, .backend = "eager");
        for (int i = 0; i < 9; i++) {
            etch_tensor *x = i < 7    ? etch_zeros(ETCH_F32, ETCH_SHAPE(sizes[i], 3))
                             : i == 7 ? etch_ones(ETCH_F64, ETCH_SHAPE(2, 3))
                                      : etch_t(arange_f32(3, 4));
            assert_same(etch_call(f, x), times_two(x));
            assert_true(etch_function_counters(f).graphs <= most[i]);
        }
        etch_function_free(f);
    }
}

TEST(dynamic_on_is_one_graph) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(two_paths, .dynamic = ETCH_DYNAMIC_ON);
        other_path = false;
        for (int64_t n = 2; n <= 100000; n *= 7)
            ETCH_SCOPE {
                etch_tensor *x = arange_f32(1, n);
                assert_same(etch_call(f, x), two_paths(x));
            }
        assert_graphs(f, 1);
        assert_int_equal(etch_function_counters(f).plan_runs, 5);
        etch_function_free(f);
    }
}

static double real_scalar;
static int64_t int_scalar;

static etch_tensor *by_real(etch_tensor *x) { return etch_mul_scalar(x, real_scalar); }
static etch_tensor *by_int(etch_tensor *x) { return etch_add_scalar(x, int_scalar); }

TEST(float_scalars_are_parameters) {
    static const double values[] = {2, 2, 3, 4, 5};
    ETCH_SCOPE {
        etch_function *f = etch_compile(by_real);
        etch_tensor *x = arange_f32(3, 3);
        for (int i = 0; i < 5; i++) {
            real_scalar = values[i];
            assert_same(etch_call(f, x), by_real(x));
            assert_counts(f, 1, i);
        }
        etch_function_free(f);
    }
}

TEST(int_scalars_are_parameters) {
    static const int values[] = {2, 3, 4, 1, 0};
    ETCH_SCOPE {
        etch_function *f = etch_compile(by_int);
        etch_tensor *x = arange_f32(3, 3);
        for (int i = 0; i < 5; i++) {
            int_scalar = values[i];
            assert_same(etch_call(f, x), by_int(x));
            assert_counts(f, 1, i);
        }
        etch_function_free(f);
    }
}

TEST(nan_and_negative_zero_are_plain_parameters) {
    static const double values[] = {1, NAN, -0.0, 0.0, -INFINITY, NAN, -0.0};
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(by_real, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 3);
            for (int i = 0; i < 7; i++) {
                real_scalar = values[i];
                assert_same(etch_call(f, x), by_real(x)); /* compares the signs of zeros */
            }
            assert_counts(f, 1, 6);
            etch_function_free(f);
        }
}

static int axis;
static bool keepdim;
static etch_dtype to_dtype;

static etch_tensor *by_attributes(etch_tensor *x) {
    etch_tensor *s = etch_sum_dim(x, ETCH_DIMS(axis), keepdim);
    etch_tensor *c = etch_to(s, to_dtype);
    return etch_pow_scalar(c, real_scalar);
}

/* What selects behaviour is a static attribute: each change is a trace of its own. */
TEST(static_attributes_recompile) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(by_attributes, .backend = "eager");
        etch_tensor *x = arange_f32(4, 4);
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < 6; i++) {
                axis = i == 1, keepdim = i == 2;
                to_dtype = i == 3 ? ETCH_F64 : ETCH_F32;
                real_scalar = i == 4 ? 2 : i == 5 ? 1.25 : 1.5; /* the class of the exponent */
                assert_same(etch_call(f, x), by_attributes(x));
                assert_graphs(f, round ? 5 : i < 5 ? i + 1 : 5);
            }
        etch_function_free(f);
    }
}

static int rounds;
static double last_value;

static etch_tensor *loop_that_breaks(etch_tensor *x) {
    for (int i = 0; i < rounds; i++) {
        etch_tensor *y = etch_mul_scalar(x, 1.01);
        x = etch_add_scalar(y, 0.25);
        last_value = etch_item(etch_sum(x));
    }
    return x;
}

TEST(loop_that_breaks_has_one_segment_for_its_body) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(loop_that_breaks, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        for (rounds = 1; rounds <= 100; rounds += 33)
            assert_same(etch_call(f, x), loop_that_breaks(x));
        assert_graphs(f, 2); /* the entry, and the body after a break */
        etch_function_free(f);
    }
}

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

/* ==== graph breaks ==== */

static etch_tensor *item_program(etch_tensor *x) {
    double sum = etch_item(etch_sum(x));
    return etch_mul_scalar(x, sum);
}

static etch_tensor *branch_program(etch_tensor *x) {
    etch_tensor *sum = etch_sum(x);
    if (etch_item(sum) > 0) return etch_add_scalar(x, 1);
    return etch_sub_scalar(x, 1);
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
            assert_graphs(f, graphs);
            assert_int_equal(etch_function_counters(f).graph_breaks, 6);
            etch_function_free(f);
        }
}

TEST(item_with_both_signs_is_two_graphs) { both_signs(item_program, 2); }

TEST(branch_with_both_outcomes_is_three_graphs) { both_signs(branch_program, 3); }

/* Runs fn(x) with standard output in a file; returns what was printed. */
static char *output_of(etch_function *f, etch_fn1 fn, etch_tensor *x) {
    char path[] = "/tmp/etch-guards-XXXXXX";
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
    assert_non_null(strstr(logged, "graph_breaks: stormy: test_guards.c:"));
    assert_non_null(strstr(logged, "because of the weather"));
    assert_non_null(strstr(logged, "hint: remove the call"));
    end_log();
}

static etch_tensor *writes_then_reads(etch_tensor *x) {
    etch_add_scalar_(x, 1);
    double sum = etch_item(etch_sum(x));
    return etch_mul_scalar(x, sum);
}

TEST(fullgraph_break_names_reason_line_and_hint) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes_then_reads, .fullgraph = true);
        etch_tensor *x = arange_f32(3, 3), *before = etch_clone(x);
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        assert_non_null(strstr(etch_last_error(), "item"));
        assert_non_null(strstr(etch_last_error(), "test_guards.c:"));
        assert_non_null(strstr(etch_last_error(), "etch_where"));
        assert_same(x, before);
        etch_function_free(f);
    }
    etch_clear_error();
}

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

/* ==== arguments that no operator reads ==== */

static bool read_second;

/* The second argument: looked at by C code, read on one path only, and returned. */
static etch_status reads_one(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                             int nout) {
    (void)ctx, (void)nin, (void)nout;
    double size = in[1] == ETCH_NONE || !etch_ndim(in[1]) ? 1 : (double)etch_size(in[1], 0);
    etch_tensor *y = etch_mul_scalar(etch_add_(in[0], in[0]), size);
    if (read_second) y = etch_add(y, etch_sum(in[1]));
    out[0] = etch_exp(y), out[1] = in[1];
    return ETCH_OK;
}

/* Of any dtype, rank and size, absent, the tensor that is written, a view of it, its memory. */
static etch_tensor *any_tensor(int i, etch_tensor *x) {
    switch (i % 8) {
    case 0: return etch_ones(ETCH_F32, ETCH_SHAPE(i + 1));
    case 1: return etch_ones(ETCH_I64, ETCH_SHAPE(2, i));
    case 2: return read_second ? etch_ones(ETCH_F16, ETCH_SHAPE(i)) : ETCH_NONE;
    case 3: return x;
    case 4: return etch_slice(x, 0, 1, 3, 1);
    case 5: return etch_wrap_host(etch_data_mut(x), ETCH_F32, ETCH_SHAPE(i % 12), NULL, NULL);
    case 6: return etch_t(etch_ones(ETCH_F64, ETCH_SHAPE(3, i)));
    default: return etch_zeros(ETCH_BOOL, ETCH_SHAPE(0));
    }
}

static void call_reads_one(etch_function *f, etch_function *plain, int i, int64_t rows) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(rows, 3), *x2 = etch_clone(x), *out[2], *expected[2];
        etch_tensor *u = any_tensor(i, x), *u2 = any_tensor(i, x2);
        assert_int_equal(etch_call_n(plain, (etch_tensor *[]){x2, u2}, 2, expected, 2), ETCH_OK);
        assert_int_equal(etch_call_n(f, (etch_tensor *[]){x, u}, 2, out, 2), ETCH_OK);
        assert_same(out[0], expected[0]);
        assert_same(x, x2);
        assert_ptr_equal(out[1], u);
    }
}

TEST(unread_argument_is_not_guarded) {
    read_second = false;
    int64_t before = etch_memory().tensors;
    for (int b = 0; b < 4; b++) {
        etch_dynamic dynamic = b < 2 ? ETCH_DYNAMIC_AUTO : ETCH_DYNAMIC_ON;
        etch_function *f =
            etch_compile(reads_one, .backend = test_backends[b % 2], .dynamic = dynamic);
        etch_function *plain = etch_compile(reads_one, .disable = true);
        for (int i = 0; i < 40; i++) call_reads_one(f, plain, i, 4);
        assert_counts(f, 1, 39);
        assert_int_equal(etch_function_counters(f).instances, 0);
        etch_function_free(f), etch_function_free(plain);
    }
    assert_int_equal(etch_memory().tensors, before);
}

/* Its sizes change, then those of the one that is read: run-time sizes are for what is read. */
TEST(unread_argument_beside_changing_sizes) {
    read_second = false;
    etch_function *f = etch_compile(reads_one), *plain = etch_compile(reads_one, .disable = true);
    for (int i = 0; i < 40; i++) call_reads_one(f, plain, i, 4 + i / 10);
    assert_counts(f, 2, 38);
    assert_int_equal(etch_function_counters(f).instances, 2);
    etch_function_free(f), etch_function_free(plain);
}

static etch_tensor *sums_second(etch_tensor *x, etch_tensor *u) {
    etch_tensor *y = etch_exp(x);
    return read_second ? etch_add(y, etch_sum(u)) : y;
}

/* An argument that one path reads is guarded there, like a captured tensor. */
TEST(argument_read_on_one_path) {
    for (int b = 0; b < 4; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(sums_second, .backend = test_backends[b % 2]);
            etch_tensor *x = arange_f32(4, 3);
            for (int i = 0; i < 60; i++) {
                read_second = (i % 2) ^ (b / 2);
                etch_tensor *u = read_second ? arange_f32(1, 1 + i) : any_tensor(i % 2, x);
                assert_same(etch_call(f, x, u), sums_second(x, u));
                assert_same(etch_call(f, x, x), sums_second(x, x));
            }
            assert_graphs(f, 4); /* each path, and what is read of sizes that change, or twice */
            etch_function_free(f);
        }
}

static etch_tensor *sums_floats(etch_tensor *x, etch_tensor *u) {
    body_calls++;
    etch_tensor *y = etch_exp(x);
    return etch_dtype_of(u) == ETCH_F32 ? etch_add(y, etch_sum(u)) : y;
}

/* `replay` takes no argument for a captured tensor, which it would keep. */
TEST(argument_read_on_one_path_under_replay) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(sums_floats, .replay = true);
        etch_tensor *x = arange_f32(4, 3), *whole = etch_zeros(ETCH_I64, ETCH_SHAPE(2));
        body_calls = 0;
        for (int i = 0; i < 4; i++) assert_non_null(etch_call(f, x, whole));
        assert_int_equal(body_calls, 1);
        for (int i = 0; i < 4; i++) {
            etch_tensor *u = etch_full(ETCH_F32, ETCH_SHAPE(2), i);
            assert_same(etch_call(f, x, u), etch_add(etch_exp(x), etch_sum(u)));
        }
        assert_int_equal(body_calls, 5);
        assert_graphs(f, 2);
        etch_function_free(f);
    }
}

/* Under stable_after, fullgraph and replay the same holds. */
TEST(unread_argument_under_other_options) {
    read_second = false;
    for (int b = 0; b < 3; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(sums_second, .stable_after = b == 0 ? 3 : 0,
                                            .fullgraph = b == 1, .replay = b == 2);
            etch_tensor *x = arange_f32(4, 3);
            for (int i = 0; i < 20; i++) {
                etch_tensor *u = any_tensor(i, x);
                assert_same(etch_call(f, x, u), sums_second(x, u));
            }
            assert_graphs(f, 1);
            etch_function_free(f);
        }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--disabled-child")) return run_disabled_child();
    return run_suite(argc, argv);
}
