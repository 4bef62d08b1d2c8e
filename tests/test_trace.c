/* Traces: what is one graph and what is another, recordings that fail, functions in functions,
 * call sites, limits and counts, resets and jumps. Programs give what they give uncompiled, with
 * exactly as many graphs as there are different traces.
 * Labels: quick device sanitizer fake. */
#include "log_support.h"
#include "trace_support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what is recorded ---- */

static int call_number;

static etch_tensor *alternating(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    if (call_number % 2) return etch_mul(y, x);
    etch_tensor *z = etch_sin(y);
    return etch_sub(z, x);
}

static etch_tensor *writes_input(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_add_(x, y);
    return etch_sub(x, y);
}

typedef struct program {
    const char *name;
    etch_fn1 fn;
    int graphs, runs; /* expected over ten calls */
    bool feed_back;   /* the argument lives on from call to call */
} program;

static const program programs[] = {
    {"alternating static counter", alternating, 2, 8, false},
    {"input written in place", writes_input, 1, 9, true},
};

/* One call of the program number `call`, on argument x. */
static etch_tensor *one_call(etch_function *f, int call, etch_tensor *x) {
    call_number = call;
    etch_tensor *y = etch_call(f, x);
    if (!y) print_error("%s\n", etch_last_error());
    assert_non_null(y);
    return y;
}

static void run_program(const program *p, const char *backend) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(p->fn, .backend = backend);
        etch_function *plain = etch_compile(p->fn, .disable = true);
        etch_tensor *x = arange_f32(7, 9), *x2 = etch_clone(x);
        for (int call = 0; call < 10; call++) {
            etch_tensor *a = p->feed_back ? x : etch_clone(x);
            etch_tensor *b = p->feed_back ? x2 : etch_clone(x2);
            etch_tensor *y = one_call(f, call, a);
            assert_same(y, one_call(plain, call, b));
            assert_same(a, b);
        }
        assert_counts(f, p->graphs, p->runs);
        assert_counts(plain, 0, 0);
        etch_function_free(f);
        etch_function_free(plain);
    }
    assert_int_equal(etch_memory().tensors, 0);
    assert_int_equal(etch_memory().bytes_live, 0);
}

TEST(ten_calls) {
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (int b = 0; b < 2; b++) run_program(&programs[i], test_backends[b]);
}

TEST(seed_program_is_one_graph) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(seed_program, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(8, 8), *w = etch_sin(arange_f32(8, 8));
            etch_tensor *expected = seed_program(x, w);
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
        etch_function *f = etch_compile(seed_program);
        etch_tensor *x = etch_sin(arange_f32(256, 256)), *w = etch_cos(x);
        etch_tensor *expected = seed_program(x, w);
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
    etch_function *f = etch_compile(seed_program);
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

static int run_disabled_child(void) {
    int bad = 0;
    ETCH_SCOPE {
        etch_function *f = etch_compile(seed_program, .fullgraph = true);
        etch_tensor *x = arange_f32(8, 8), *w = etch_sin(x);
        for (int call = 0; call < 3; call++)
            bad |= !etch_bitwise_equal(etch_call(f, x, w), seed_program(x, w));
        etch_counters_t c = etch_counters();
        bad |= (c.graphs || c.plan_runs || c.kernels) << 1 | (c.calls != 3) << 2;
        etch_function_free(f);
    }
    return bad;
}

TEST(compile_disable_makes_no_graphs_and_no_files) {
    char dir[] = "/tmp/etch-trace-XXXXXX";
    assert_non_null(mkdtemp(dir));
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        setenv("ETCH_COMPILE_DISABLE", "1", 1);
        setenv("ETCH_CACHE_DIR", dir, 1);
        execl("/proc/self/exe", "test_trace", "--disabled-child", (char *)NULL);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(rmdir(dir), 0); /* fails if there is a file in it */
}

/* ---- divergence and errors ---- */

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

static etch_tensor *fails_in_the_middle(etch_tensor *x) {
    etch_add_scalar_(x, 1);
    if (call_number == 3) return etch_mm(x, etch_zeros(ETCH_F32, ETCH_SHAPE(1, 1)));
    return etch_neg(x);
}

/* Rule 7 and 9: a failing operator gives its error at its call; what was before it has happened. */
TEST(rule7_error_in_body) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(fails_in_the_middle, .backend = test_backends[b]);
            etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(3, 3));
            for (int call = 0; call < 6; call++) {
                call_number = call;
                etch_clear_error();
                etch_tensor *y = etch_call(f, x);
                assert_int_equal(y == NULL, call == 3);
                assert_int_equal(etch_last_status(), call == 3 ? ETCH_ERR_SHAPE : ETCH_OK);
                etch_tensor *expected = etch_full(ETCH_F32, ETCH_SHAPE(3, 3), call + 1);
                assert_same(x, expected);
            }
            assert_int_equal(etch_function_counters(f).graphs, 1);
            etch_function_free(f);
        }
    etch_clear_error();
}

/* ---- lifetime ---- */

static etch_function *self;

static etch_tensor *resets_itself(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    if (call_number == 2) etch_reset(self);
    return etch_mul(y, y);
}

/* Rule 15: a run publishes nothing into a later generation. */
TEST(rule15_reset_inside) {
    ETCH_SCOPE {
        self = etch_compile(resets_itself);
        etch_tensor *x = arange_f32(5, 5), *expected = NULL;
        for (call_number = 0; call_number < 6; call_number++) {
            etch_tensor *y = etch_call(self, x);
            if (!expected) expected = y;
            assert_same(y, expected);
        }
        assert_counts(self, 2, 4); /* calls 1 and 2, then 4 and 5 */
        etch_function_free(self);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

static jmp_buf jump;

static etch_tensor *jumps(etch_tensor *x) {
    etch_add_scalar_(x, 1);
    etch_tensor *y = etch_neg(x);
    if (call_number % 2) longjmp(jump, 1);
    return y;
}

/* Rule 15: a run left by longjmp is abandoned: its prefix has happened. */
TEST(rule15_longjmp) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(jumps);
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(3, 3));
        for (call_number = 0; call_number < 6; call_number++) {
            int64_t scope = etch_scope_begin();
            if (!setjmp(jump)) {
                etch_tensor *y = etch_call(f, x);
                assert_non_null(y);
            }
            etch_scope_end(scope);
            etch_tensor *expected = etch_full(ETCH_F32, ETCH_SHAPE(3, 3), call_number + 1);
            assert_same(x, expected);
        }
        etch_function_free(f);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_function *in_disabled;
static bool catches;

static etch_tensor *jumps_inside(etch_tensor *x) {
    etch_tensor *y = etch_sin(x);
    if (call_number % 2) longjmp(jump, 1);
    return etch_add(y, x);
}

static etch_tensor *disabled_body(etch_tensor *x) {
    int64_t scope = etch_scope_begin();
    if (catches && setjmp(jump)) {
        etch_scope_end(scope);
        return etch_neg(x);
    }
    return etch_call(in_disabled, x); /* its scope is closed with this body's */
}

static etch_tensor *around_disabled(etch_tensor *x) {
    etch_add_scalar_(x, 1);
    etch_tensor *y = etch_call(self, etch_cos(x));
    return y ? etch_mul(y, x) : NULL;
}

static etch_tensor *without_compiling(etch_tensor *x) {
    etch_tensor *c = etch_cos(x);
    etch_tensor *y = call_number % 2 ? etch_neg(c) : etch_add(etch_sin(c), c);
    return etch_mul(y, x);
}

/* Rule 15: past two calls, one in a disabled function of the other, and past the inner one only. */
TEST(rule15_longjmp_out_of_disabled) {
    etch_function *f = etch_compile(around_disabled);
    in_disabled = etch_compile(jumps_inside), self = etch_disable(disabled_body, false);
    ETCH_SCOPE {
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(3, 3));
        for (int turn = 0; turn < 12; turn++) {
            volatile int64_t scope = etch_scope_begin();
            call_number = turn, catches = turn >= 6;
            if (catches || !setjmp(jump)) {
                etch_tensor *y = etch_call(f, x);
                if (!y) print_error("%s\n", etch_last_error());
                assert_same(y, without_compiling(x));
            }
            etch_scope_end(scope);
            etch_tensor *expected = etch_full(ETCH_F32, ETCH_SHAPE(3, 3), turn + 1);
            assert_same(x, expected);
        }
    }
    etch_function_free(f);
    etch_function_free(self);
    etch_function_free(in_disabled);
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- functions in functions; call sites, whose functions stay ---- */

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

static etch_tensor *inner_scope(etch_tensor *x) {
    etch_tensor *y = NULL;
    ETCH_SCOPE {
        etch_tensor *t = etch_add_scalar(x, 1);
        y = etch_keep(etch_mul(t, t));
    }
    return etch_sub(y, x);
}

static etch_function *inner_function;

static etch_tensor *outer(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    etch_tensor *z = etch_call(inner_function, y);
    return etch_mul(z, y);
}

/* Rule 14: a compiled function called in the body is recorded into the outer trace. */
TEST(rule14_nesting) {
    ETCH_SCOPE {
        inner_function = etch_compile(inner_scope);
        etch_function *f = etch_compile(outer);
        etch_tensor *x = arange_f32(5, 5);
        etch_function *plain = etch_compile(outer, .disable = true);
        etch_tensor *expected = outer(x);
        for (int call = 0; call < 4; call++) assert_same(etch_call(f, x), expected);
        assert_counts(f, 1, 3);
        assert_int_equal(etch_function_counters(f).graph_nodes, 5);
        etch_function_free(f);
        etch_function_free(plain);
        etch_function_free(inner_function);
        inner_function = etch_compile(inner_scope, .disable = true);
        f = etch_compile(outer);
        for (int call = 0; call < 4; call++) assert_same(etch_call(f, x), expected);
        assert_counts(f, 2, 6); /* before and after the disabled function */
        etch_function_free(f);
        etch_function_free(inner_function);
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

/* ---- when a trace is compiled ---- */

TEST(stable_after) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(inner_scope, .stable_after = 3);
        etch_tensor *x = arange_f32(5, 5), *expected = inner_scope(x);
        for (int call = 0; call < 5; call++) {
            assert_same(etch_call(f, x), expected);
            assert_counts(f, call >= 2, call > 2 ? call - 2 : 0);
        }
        etch_function_free(f);
    }
}

#define assert_graphs(f, n) assert_int_equal(etch_function_counters(f).graphs, (n))

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

static double global_scalar;

static etch_tensor *scaled(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, global_scalar);
    return etch_add_scalar(y, 1);
}

TEST(recompile_limit) {
    etch_set_log_sink(NULL, NULL);
    ETCH_SCOPE {
        etch_function *f = etch_compile(scaled, .dynamic = ETCH_DYNAMIC_OFF, .backend = "eager",
                                        .recompile_limit = 8);
        etch_function *full = etch_compile(scaled, .dynamic = ETCH_DYNAMIC_OFF, .backend = "eager",
                                           .fullgraph = true, .recompile_limit = 2);
        global_scalar = 2;
        for (int64_t n = 1; n <= 12; n++) {
            etch_tensor *x = arange_f32(1, n);
            assert_same(etch_call(f, x), scaled(x));
            assert_int_equal(etch_function_counters(f).graphs, n < 8 ? n : 8);
            etch_tensor *y = etch_call(full, x);
            assert_int_equal(y == NULL, n > 2);
        }
        assert_int_equal(etch_last_status(), ETCH_ERR_RECOMPILE_LIMIT);
        etch_tensor *x = arange_f32(1, 3);
        assert_same(etch_call(f, x), scaled(x)); /* what is compiled stays in use */
        assert_int_equal(etch_function_counters(f).plan_runs, 1);
        etch_reset(f);
        x = arange_f32(1, 20);
        assert_same(etch_call(f, x), scaled(x));
        assert_int_equal(etch_function_counters(f).graphs, 9);
        etch_function_free(f);
        etch_function_free(full);
    }
    etch_clear_error();
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--disabled-child")) return run_disabled_child();
    return run_suite(argc, argv);
}
