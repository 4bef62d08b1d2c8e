/* Backends: what a user's backend may do with a graph, the ones that the library has, counting.
 * Labels: quick device fake. */
#include "plan_util.h"

#include "core/graph/graph_public.h"
#include "core/ops/op.h"

#include <etch/backend.h>
#include <stdlib.h>
#include <string.h>

#define assert_same(a, b) assert_true(etch_bitwise_equal((a), (b)))

static etch_tensor *ramp(int64_t rows, int64_t columns) {
    etch_tensor *line = etch_arange(ETCH_F32, -3.0, (double)(rows * columns) - 3.0, 1);
    return etch_div_scalar(etch_view(line, ETCH_SHAPE(rows, columns)), 7.0);
}

static char last_line[512];
static int nwarnings;
static void sink(void *ctx, const char *line) {
    (void)ctx;
    if (strstr(line, "warning")) nwarnings++, snprintf(last_line, sizeof last_line, "%s", line);
}

/* ---- the list ---- */

static bool is_listed(const char *name) {
    for (const char *const *n = etch_list_backends(); *n; n++)
        if (!strcmp(*n, name)) return true;
    return false;
}

TEST(list_backends_shows_all) {
    assert_true(is_listed("eager"));
    assert_true(is_listed("aot_eager"));
    assert_true(is_listed("native"));
    assert_false(is_listed("inductor")); /* an alias */
}

/* ---- a user's backend: answers ---- */

static double factor = 2.5;
static etch_tensor *program(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_mm(x, w);
    etch_tensor *b = etch_mul_scalar(a, factor);
    etch_tensor *c = etch_sin(b);
    return etch_add(c, x);
}

static etch_status by_eager(void *ctx, etch_graph *g, etch_runnable *out) {
    int *graphs = ctx;
    (*graphs)++;
    assert_int_equal(etch_graph_num_nodes(g), 4);
    out->backend = "eager";
    return ETCH_OK;
}

static etch_function *compile_program(const char *name) {
    etch_function *f = etch_compile(program, .backend = name);
    assert_non_null(f);
    return f;
}

/* Calls f four times with changing scalars and compares with `expected`. */
static void check_calls(etch_function *f, etch_fn2 expected) {
    etch_tensor *x = ramp(5, 5), *w = etch_cos(x);
    for (int call = 0; call < 4; call++) {
        factor = 2.5 + call;
        etch_tensor *y = etch_call(f, x, w);
        if (!y) print_error("%s\n", etch_last_error());
        assert_same(y, expected(x, w));
    }
    assert_int_equal(etch_function_counters(f).graphs, 1);
    assert_int_equal(etch_function_counters(f).plan_runs, 3);
}

TEST(runs_the_graph_by_another_backend) {
    int graphs = 0;
    assert_int_equal(etch_register_backend("mine", by_eager, &graphs), ETCH_OK);
    assert_true(is_listed("mine"));
    ETCH_SCOPE {
        etch_function *f = compile_program("mine");
        check_calls(f, program);
        etch_function_free(f);
    }
    assert_int_equal(graphs, 1);
    assert_int_equal(etch_unregister_backend("mine"), ETCH_OK);
    assert_false(is_listed("mine"));
}

typedef struct own_code {
    int runs, destroyed;
    double param;
    etch_status fail;
} own_code;

static etch_status own_run(void *ctx, etch_tensor *const *in, int nin, const etch_scalar *params,
                           int nparams, etch_tensor **out, int nout) {
    own_code *code = ctx;
    assert_int_equal(nin, 2);
    assert_int_equal(nparams, 2); /* the factor, and alpha of add */
    assert_int_equal(nout, 1);
    if (code->fail) return code->fail;
    code->runs++;
    code->param = params[0].d;
    etch_tensor *y = etch_mul_scalar(etch_mm(in[0], in[1]), params[0]);
    out[0] = etch_t(etch_t(etch_add(etch_sin(y), in[0])));
    return ETCH_OK;
}

static void own_destroy(void *ctx) { ((own_code *)ctx)->destroyed++; }

static etch_status by_itself(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)g;
    out->run = own_run, out->ctx = ctx, out->destroy = own_destroy;
    return ETCH_OK;
}

/* ---- what is called may call ---- */

static etch_tensor *cosine(etch_tensor *x) { return etch_cos(x); }
static etch_function *sizes, *other_sizes;
static int destroyed, compiles, later;

static etch_status call_inner(void *ctx, etch_tensor *const *in, int nin, const etch_scalar *params,
                              int nparams, etch_tensor **out, int nout) {
    (void)nin, (void)params, (void)nparams, (void)nout;
    out[0] = etch_call_one(ctx, in, 1);
    return out[0] ? ETCH_OK : etch_last_status();
}

static void free_inner(void *ctx) {
    etch_function_free(ctx);
    etch_counters();
    destroyed++;
}

/* Code that is made of a compiled function, which goes with it. */
static etch_status by_function(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx, (void)g;
    out->run = call_inner, out->destroy = free_inner;
    out->ctx = etch_compile(cosine);
    return out->ctx ? ETCH_OK : etch_last_status();
}

/* Resetting everything gives code back under no lock; so does making room for other sizes. */
TEST(code_that_owns_functions) {
    destroyed = 0;
    assert_int_equal(etch_register_backend("inner", by_function, NULL), ETCH_OK);
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine, .backend = "inner", .dynamic = ETCH_DYNAMIC_ON);
        for (int64_t n = 2; n < 72; n++) {
            etch_tensor *x = ramp(n, 3);
            for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), etch_cos(x));
        }
        etch_reset(NULL);
        assert_true(destroyed > 64);
        etch_function_free(f);
    }
    assert_int_equal(etch_unregister_backend("inner"), ETCH_OK);
    assert_int_equal(etch_memory().tensors, 0);
}

static void call_both(void *ctx) {
    (void)ctx;
    compiles++;
    ETCH_SCOPE {
        etch_tensor *x = ramp(3 + compiles, 4);
        assert_same(etch_call(sizes, x), etch_cos(x));
        assert_same(etch_call(other_sizes, x), etch_cos(x));
    }
}

/* A callback may call the very function that is being compiled: it does not wait for itself. */
TEST(callbacks_may_call) {
    compiles = 0;
    ETCH_SCOPE {
        sizes = etch_compile(cosine), other_sizes = etch_compile(cosine);
        int64_t handle = etch_on_compile_start(call_both, NULL);
        etch_tensor *x = ramp(5, 5);
        for (int call = 0; call < 3; call++) assert_same(etch_call(sizes, x), etch_cos(x));
        assert_true(compiles >= 2);
        assert_true(etch_function_counters(sizes).plan_runs > 0);
        etch_callback_remove(handle);
        etch_function_free(sizes);
        etch_function_free(other_sizes);
    }
}

static int64_t once_handle;
static void once(void *ctx) {
    (void)ctx;
    etch_callback_remove(once_handle);
}
static void count_later(void *ctx) {
    (void)ctx;
    later++;
}

/* One that removes itself takes no turn away from the next. */
TEST(callbacks_may_remove_themselves) {
    once_handle = etch_on_compile_start(once, NULL);
    int64_t handle = etch_on_compile_start(count_later, NULL);
    later = 0;
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine);
        for (int call = 0; call < 2; call++) etch_call(f, ramp(5, 5));
        assert_int_equal(later, 1);
        etch_function_free(f);
    }
    etch_callback_remove(handle);
}

TEST(runs_a_function_of_its_own) {
    own_code code = {0};
    assert_int_equal(etch_register_backend("own", by_itself, &code), ETCH_OK);
    ETCH_SCOPE {
        etch_function *f = compile_program("own");
        check_calls(f, program);
        assert_int_equal(code.runs, 3);
        assert_true(code.param == 5.5);
        /* A failing run is done again by the eager kernels. */
        code.fail = ETCH_ERR_UNSUPPORTED;
        etch_tensor *x = ramp(5, 5), *w = etch_cos(x);
        assert_same(etch_call(f, x, w), program(x, w));
        assert_int_equal(code.destroyed, 0);
        etch_function_free(f);
    }
    assert_int_equal(code.destroyed, 1);
    etch_unregister_backend("own");
    etch_clear_error();
}

static etch_status returns_input(void *ctx, etch_tensor *const *in, int nin,
                                 const etch_scalar *params, int nparams, etch_tensor **out,
                                 int nout) {
    (void)nin, (void)params, (void)nparams, (void)nout;
    out[0] = ctx ? etch_t(in[0]) : in[0];
    return ETCH_OK;
}

static etch_status by_input(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)g;
    out->run = returns_input, out->ctx = ctx;
    return ETCH_OK;
}

static etch_tensor *twice(etch_tensor *x) { return etch_mul_scalar(x, 2); }

/* Outputs never share storage with inputs or one another; a wrong shape is an error of the run. */
TEST(outputs_are_taken_over) {
    assert_int_equal(etch_register_backend("input", by_input, NULL), ETCH_OK);
    assert_int_equal(etch_register_backend("turned", by_input, &factor), ETCH_OK);
    ETCH_SCOPE {
        etch_function *f = etch_compile(twice, .backend = "input");
        etch_function *turned = etch_compile(twice, .backend = "turned");
        etch_tensor *x = ramp(3, 5);
        for (int call = 0; call < 3; call++) {
            etch_tensor *y = etch_call(f, x);
            assert_false(etch_shares_storage(y, x));
            assert_same(y, call ? x : twice(x));
            assert_same(etch_call(turned, x), twice(x));
        }
        assert_int_equal(etch_function_counters(turned).plan_runs, 0);
        etch_function_free(f);
        etch_function_free(turned);
    }
    etch_unregister_backend("input");
    etch_unregister_backend("turned");
    etch_clear_error();
}

static etch_status gives_up(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)g, (void)out;
    return ctx ? etch_set_error(ETCH_ERR_UNSUPPORTED, "no such chip") : ETCH_OK;
}

/* A backend that cannot compile leaves a function that works, with one warning. */
TEST(failing_backend_runs_eagerly) {
    etch_set_log_sink(sink, NULL);
    assert_int_equal(etch_register_backend("chip", gives_up, &factor), ETCH_OK);
    assert_int_equal(etch_register_backend("empty", gives_up, NULL), ETCH_OK);
    for (int i = 0; i < 2; i++)
        ETCH_SCOPE {
            nwarnings = 0;
            etch_clear_error();
            etch_function *f = compile_program(i ? "empty" : "chip");
            check_calls(f, program);
            assert_int_equal(nwarnings, 1);
            assert_non_null(strstr(last_line, i ? "neither" : "no such chip"));
            assert_int_equal(etch_last_status(), ETCH_OK);
            etch_function_free(f);
        }
    etch_unregister_backend("chip");
    etch_unregister_backend("empty");
    etch_set_log_sink(NULL, NULL);
}

TEST(bad_registrations) {
    assert_int_equal(etch_register_backend("eager", by_eager, NULL), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_register_backend("inductor", by_eager, NULL), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_register_backend(NULL, by_eager, NULL), ETCH_ERR_NULL);
    assert_int_equal(etch_register_backend("null", NULL, NULL), ETCH_ERR_NULL);
    assert_int_equal(etch_unregister_backend("native"), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_unregister_backend("nobody"), ETCH_ERR_NOT_FOUND);
    assert_null(etch_compile(twice, .backend = "nobody"));
    assert_int_equal(etch_last_status(), ETCH_ERR_NOT_FOUND);
    etch_clear_error();
}

/* A function outlives its backend's name: what is compiled stays, the next graph runs eagerly. */
TEST(function_outlives_its_backend) {
    int graphs = 0;
    assert_int_equal(etch_register_backend("short", by_eager, &graphs), ETCH_OK);
    ETCH_SCOPE {
        etch_function *f = compile_program("short");
        check_calls(f, program);
        etch_unregister_backend("short");
        etch_reset(f);
        etch_counters_t before = etch_function_counters(f);
        etch_tensor *x = ramp(3, 3);
        for (int call = 0; call < 3; call++) assert_same(etch_call(f, x, x), program(x, x));
        assert_int_equal(etch_function_counters(f).plan_runs, before.plan_runs + 2);
        etch_function_free(f);
    }
    assert_int_equal(graphs, 1);
}

/* ---- a user's backend: reading and editing ---- */

static etch_value value_arg(const etch_node *n) {
    return (etch_value){.tag = ETCH_VALUE_TENSOR, .tensor = etch_node_value(n)};
}

static void read_graph(etch_graph *g) {
    static const char *const names[] = {"mm", "mul.Scalar", "sin", "add.Tensor"};
    etch_value args[ETCH_NODE_MAX_ARGS];
    int i = 0;
    for (etch_node *n = etch_graph_first(g); n; n = etch_node_next(n))
        assert_string_equal(etch_op_name(etch_node_op(n)), names[i++]);
    assert_int_equal(i, 4);
    for (etch_node *n = etch_graph_last(g); n; n = etch_node_prev(n)) i--;
    assert_int_equal(i, 0);
    assert_int_equal(etch_graph_num_inputs(g), 2);
    assert_int_equal(etch_graph_num_outputs(g), 1);
    assert_int_equal(etch_graph_num_params(g), 2);
    assert_ptr_equal(etch_graph_output(g, 0), etch_graph_last(g));
    assert_null(etch_graph_output(g, 1));
    assert_null(etch_node_op(etch_graph_input(g, 1)));
    assert_int_equal(etch_node_uses(etch_graph_input(g, 0)), 2);

    etch_node *mul = etch_node_next(etch_graph_first(g));
    assert_int_equal(etch_node_args(mul, args), 2);
    assert_ptr_equal(args[0].tensor, etch_node_value(etch_graph_first(g)));
    assert_int_equal(args[1].tag, ETCH_VALUE_PARAM);
    assert_int_equal(args[1].param.number, 0);
    assert_int_equal(args[1].param.kind, ETCH_SCALAR_REAL);
    assert_int_equal(etch_size(etch_node_value(mul), 1), 5);
    assert_ptr_equal(etch_graph_node_of(g, etch_node_value(mul)), mul);
    assert_int_equal(etch_node_args(etch_graph_last(g), args), 3);
    assert_string_equal(args[2].name, "alpha");
}

/* Values have no data: using it is an error, not a crash. */
static void misuse_values(etch_graph *g) {
    etch_tensor *t = etch_node_value(etch_graph_first(g));
    ETCH_SCOPE {
        assert_null(etch_neg(t));
        assert_null(etch_data(t));
        assert_int_equal(etch_print(t) == ETCH_OK, false);
        assert_false(etch_shares_storage(t, etch_zeros(ETCH_F32, ETCH_SHAPE(1))));
        assert_null(etch_graph_node_of(g, etch_zeros(ETCH_F32, ETCH_SHAPE(1))));
    }
    etch_clear_error();
}

static etch_status edit_graph(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx;
    read_graph(g);
    misuse_values(g);
    /* sin becomes cos, a relu(0.25 * x) comes before the sum, the mul is scaled by its own factor.
     * */
    etch_node *mul = etch_node_next(etch_graph_first(g)), *sine = etch_node_next(mul);
    etch_value args[ETCH_NODE_MAX_ARGS];
    int n = etch_node_args(mul, args);
    args[0] = value_arg(mul);
    etch_node *again = etch_graph_insert(g, sine, etch_op_find("mul.Scalar"), args, n);
    assert_non_null(again);
    assert_int_equal(etch_graph_replace_uses(g, mul, again), ETCH_OK);
    assert_int_equal(etch_node_uses(mul), 1);
    etch_value x = value_arg(again);
    etch_node *cosine = etch_graph_replace(g, sine, etch_op_find("cos"), &x, 1);
    assert_non_null(cosine);
    etch_value quarter[] = {value_arg(etch_graph_input(g, 0)), {.tag = ETCH_VALUE_REAL, .d = 0.25}};
    etch_node *scaled =
        etch_graph_insert(g, etch_graph_last(g), etch_op_find("mul.Scalar"), quarter, 2);
    x = value_arg(scaled);
    etch_node *relu = etch_graph_insert(g, etch_graph_last(g), etch_op_find("relu"), &x, 1);
    etch_value sum[] = {value_arg(cosine), value_arg(relu)};
    assert_non_null(etch_graph_replace(g, etch_graph_last(g), etch_op_find("add.Tensor"), sum, 2));
    assert_int_equal(etch_graph_num_nodes(g), 7);
    out->backend = ctx;
    return ETCH_OK;
}

static etch_tensor *edited_program(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_mm(x, w);
    etch_tensor *b = etch_mul_scalar(a, factor);
    etch_tensor *c = etch_cos(etch_mul_scalar(b, factor));
    return etch_add(c, etch_relu(etch_mul_scalar(x, 0.25)));
}

TEST(edited_graphs_run) {
    static char native[] = "native", eager[] = "eager";
    for (int i = 0; i < 2; i++)
        ETCH_SCOPE {
            assert_int_equal(etch_register_backend("edit", edit_graph, i ? native : eager),
                             ETCH_OK);
            etch_function *f = compile_program("edit");
            etch_tensor *x = ramp(5, 5), *w = etch_cos(x);
            for (int call = 0; call < 4; call++) {
                factor = 1.5 + call;
                assert_same(etch_call(f, x, w), (call ? edited_program : program)(x, w));
            }
            assert_int_equal(etch_function_counters(f).plan_runs, 3);
            etch_function_free(f);
            etch_unregister_backend("edit");
        }
}

/* ---- edits on parsed graphs, and their text ---- */

static const char sample[] = "graph s/0(%0: f32[4, 3], %1: f32[3]) {\n"
                             "  %2: f32[4, 3] = mul.Tensor(%0, %1)\n"
                             "  %3: f32[3, 4 : 1, 3] = t(%2)\n"
                             "  %4: f32[3, 4] = mul.Scalar(%3, $0: real)\n"
                             "  add_.Tensor(%4, %3, $1: int) {1}\n"
                             "  return %4, %2\n"
                             "}\n";

static char *format(const etch_graph *g) {
    int64_t n = etch_graph_format(g, NULL, 0);
    assert_true(n > 0);
    char *text = malloc((size_t)n + 1);
    assert_int_equal(etch_graph_format(g, text, (size_t)n + 1), n);
    assert_int_equal(strlen(text), n);
    return text;
}

TEST(text_parses_back) {
    etch_graph *g = etch_graph_parse(sample);
    char *text = format(g);
    assert_string_equal(text, sample);
    free(text);
    char cut[16];
    assert_int_equal(etch_graph_format(g, cut, sizeof cut), sizeof sample - 1);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    etch_graph_free(g);
    assert_null(etch_graph_parse("graph s/0("));
    assert_int_equal(etch_last_status(), ETCH_ERR_FORMAT);
    assert_null(etch_graph_parse(NULL));
    etch_graph_free(NULL);
    etch_clear_error();
}

/* Constants of edits are in the text, and come back from it. */
TEST(constants_parse_back) {
    etch_graph *g = etch_graph_parse(sample);
    etch_node *mul = etch_node_next(etch_node_next(etch_graph_first(g)));
    etch_value args[ETCH_NODE_MAX_ARGS];
    int n = etch_node_args(mul, args);
    args[1] = (etch_value){.tag = ETCH_VALUE_REAL, .d = 0.1};
    assert_non_null(etch_graph_replace(g, mul, etch_node_op(mul), args, n));
    char *text = format(g);
    assert_non_null(strstr(text, "constants $0 = 0.1"));
    etch_graph *again = etch_graph_parse(text);
    assert_non_null(again);
    etch_node_args(etch_node_next(etch_node_next(etch_graph_first(again))), args);
    assert_int_equal(args[1].tag, ETCH_VALUE_SCALAR);
    assert_true(args[1].scalar.d == 0.1);
    char *twice_text = format(again);
    assert_string_equal(text, twice_text);
    free(text);
    free(twice_text);
    etch_graph_free(g);
    etch_graph_free(again);
    assert_null(etch_graph_parse("graph s/0(%0: f32[4]) {\n  return\n}\nconstants $9 = 1\n"));
    assert_null(etch_graph_parse("graph s/0(%0: f32[4]) {\n  return\n}\nrest\n"));
    etch_clear_error();
}

#define REFUSED(call, code)                                                                        \
    do {                                                                                           \
        etch_clear_error();                                                                        \
        (void)(call);                                                                              \
        assert_int_equal(etch_last_status(), code);                                                \
    } while (0)

/* What must not be done is refused, and leaves the graph as it was. */
TEST(wrong_edits_are_refused) {
    etch_graph *g = etch_graph_parse(sample), *other = etch_graph_parse(sample);
    etch_node *mul = etch_graph_first(g), *write = etch_graph_last(g);
    etch_value x = value_arg(etch_graph_input(g, 0)), v = value_arg(etch_graph_input(g, 1));
    etch_value pair[] = {x, v}, foreign = value_arg(etch_graph_input(other, 0));
    etch_value param = {.tag = ETCH_VALUE_PARAM, .param = {.number = 7}};
    etch_value wrong_param[] = {x, param};
    REFUSED(etch_graph_erase(g, mul), ETCH_ERR_INVALID_ARGUMENT);
    REFUSED(etch_graph_erase(g, etch_graph_input(g, 0)), ETCH_ERR_INVALID_ARGUMENT);
    REFUSED(etch_graph_erase(other, mul), ETCH_ERR_INVALID_ARGUMENT);
    REFUSED(etch_graph_insert(g, mul, etch_op_find("mm"), pair, 2), ETCH_ERR_SHAPE);
    REFUSED(etch_graph_insert(g, mul, etch_op_find("sin"), &foreign, 1), ETCH_ERR_NOT_FOUND);
    REFUSED(etch_graph_insert(g, mul, etch_op_find("sin"), NULL, 0), ETCH_ERR_INVALID_ARGUMENT);
    REFUSED(etch_graph_insert(g, mul, etch_op_find("matmul"), pair, 2), ETCH_ERR_UNSUPPORTED);
    REFUSED(etch_graph_insert(g, mul, etch_op_find("rand"), NULL, 0), ETCH_ERR_UNSUPPORTED);
    REFUSED(etch_graph_insert(g, mul, etch_op_find("mul.Scalar"), wrong_param, 2),
            ETCH_ERR_INVALID_ARGUMENT);
    REFUSED(etch_graph_insert(NULL, NULL, etch_op_find("sin"), &x, 1), ETCH_ERR_NULL);
    REFUSED(etch_graph_replace(g, mul, etch_op_find("t"), &x, 1), ETCH_ERR_SHAPE);
    REFUSED(etch_graph_replace(g, write, etch_op_find("sin"), &x, 1), ETCH_ERR_INVALID_ARGUMENT);
    REFUSED(etch_graph_replace_uses(g, mul, etch_graph_input(g, 1)), ETCH_ERR_SHAPE);
    char *text = format(g);
    assert_string_equal(text, sample);
    free(text);
    /* Used before it is computed: found when the graph is closed. */
    etch_value late = value_arg(etch_node_next(etch_node_next(mul)));
    assert_non_null(etch_graph_insert(g, mul, etch_op_find("sin"), &late, 1));
    REFUSED(etch_graph_format(g, NULL, 0), ETCH_ERR_INVALID_ARGUMENT);
    /* A call that writes can always go. */
    assert_int_equal(etch_graph_erase(other, etch_graph_last(other)), ETCH_OK);
    assert_int_equal(etch_graph_num_nodes(other), 3);
    etch_graph_free(g);
    etch_graph_free(other);
    etch_clear_error();
}

/* Outputs that an edit makes inputs, views or equal become copies. */
TEST(outputs_stay_outputs) {
    etch_graph *g = etch_graph_parse("graph s/0(%0: f32[4, 4]) {\n"
                                     "  %1: f32[4, 4] = sin(%0)\n"
                                     "  %2: f32[4, 4] = cos(%0)\n"
                                     "  %3: f32[4, 4] = exp(%0)\n"
                                     "  return %1, %2, %3\n}\n");
    etch_node *a = etch_graph_output(g, 0), *b = etch_graph_output(g, 1);
    etch_value x = value_arg(etch_graph_input(g, 0));
    assert_int_equal(etch_graph_replace_uses(g, a, etch_graph_input(g, 0)), ETCH_OK);
    assert_non_null(etch_graph_replace(g, b, etch_op_find("t"), &x, 1));
    assert_int_equal(etch_graph_replace_uses(g, etch_graph_output(g, 2), etch_graph_output(g, 0)),
                     ETCH_OK);
    graph_scalar *scalars;
    graph *closed = etch__graph_close(g, &scalars);
    assert_non_null(closed);
    assert_int_equal(closed->noutputs, 3);
    check_graph(closed, -1, -1);
    etch__free(scalars);
    etch__graph_free(closed);
    etch_graph_free(g);
}

/* ---- a custom operator in place of a product ---- */

static int products;

static etch_status product_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    products++;
    return etch_copy_(out[0], etch_mm(args[0].tensor, args[1].tensor)) ? ETCH_OK
                                                                       : etch_last_status();
}

static etch_status product_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(args[0].tensor);
    out->sizes = ETCH_SHAPE(etch_size(args[0].tensor, 0), etch_size(args[1].tensor, 1));
    return ETCH_OK;
}

static etch_status use_custom(void *ctx, etch_graph *g, etch_runnable *out) {
    for (etch_node *n = etch_graph_first(g), *next; n; n = next) {
        next = etch_node_next(n);
        etch_value args[ETCH_NODE_MAX_ARGS];
        if (!etch_op_is(etch_node_op(n), "mm")) continue;
        int count = etch_node_args(n, args);
        if (!etch_graph_replace(g, n, ctx, args, count)) return etch_last_status();
    }
    char *text = format(g);
    etch_graph *again = etch_graph_parse(text);
    assert_non_null(again); /* names of custom operators parse */
    etch_graph_free(again);
    free(text);
    out->backend = "native";
    return ETCH_OK;
}

TEST(custom_operator_replaces_products) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = product_kernel, .shape = product_shape};
    const etch_op *op = etch_op_register("backendtest::product(Tensor a, Tensor b) -> Tensor", &d);
    assert_non_null(op);
    assert_int_equal(etch_register_backend("custom", use_custom, (void *)op), ETCH_OK);
    ETCH_SCOPE {
        etch_function *f = compile_program("custom");
        check_calls(f, program);
        assert_int_equal(products, 3);
        etch_function_free(f);
    }
    etch_unregister_backend("custom");
}

/* ---- aot_eager ---- */

static const char *const written_graphs[] = {
    /* whole results, several versions, views of them */
    "graph a(%0: f32[6, 5], %1: f32[5]) {\n"
    "%2: f32[6, 5] = sin(%0)\n"
    "%3: f32[5, 6 : 1, 5] = t(%2)\n"
    "add_.Tensor(%2, %1, $0: int) {1}\n"
    "%4: f32[5, 6] = exp(%3)\n"
    "mul_.Tensor(%2, %0)\n"
    "%5: f32[5, 6] = exp(%3)\n"
    "return %2, %4, %5\n}",
    /* an input, read before and after; through a view of it */
    "graph b(%0: f32[6, 5], %1: f32[6, 5]) {\n"
    "%2: f32[6, 5] = cos(%0)\n"
    "add_.Scalar(%0, $0: real, $1: int) {1}\n"
    "%3: f32[5, 6 : 1, 5] = t(%0)\n"
    "%4: f32[5, 5 : 1, 5]@5 = slice.Tensor(%3) {1, 1, 6, 1}\n"
    "relu_(%4)\n"
    "%5: f32[6, 5] = add.Tensor(%0, %1, $2: int) {1}\n"
    "return %2, %5\n}",
    /* another dtype; copies and fills */
    "graph c(%0: bf16[4, 4], %1: f32[4, 4]) {\n"
    "mul_.Tensor(%0, %1)\n"
    "copy_(%1, %0) {0}\n"
    "%2: f32[4]@8 = select.int(%1) {0, 2}\n"
    "fill_.Scalar(%1, $0: int)\n"
    "%3: f32[4, 4] = neg(%1)\n"
    "zero_(%1)\n"
    "return %3\n}",
    /* a transposed input */
    "graph d(%0: f32[4, 7 : 1, 4]) {\n"
    "%1: f32[7 : 4]@1 = select.int(%0) {0, 1}\n"
    "add_.Tensor(%0, %1, $0: int) {1}\n"
    "mul_.Scalar(%1, $1: real)\n"
    "%2: f32[4, 7] = neg(%0)\n"
    "return %2\n}",
    /* shared and overlapping inputs are run as they are */
    "graph e(%0: f32[4, 4], %1: f32[4, 4] over %0) {\n"
    "neg_(%0)\n"
    "%2: f32[4, 4] = exp(%1)\n"
    "return %2\n}",
};

TEST(aot_equals_eager) {
    for (int i = 0; i < COUNT_OF(written_graphs); i++) {
        graph *g = etch__graph_parse(written_graphs[i]);
        if (!g) fail_msg("graph %d: %s", i, etch_last_error());
        plan *eager = compile_with("eager", g), *aot = compile_with("aot_eager", g);
        for (int seed = 0; seed < 4; seed++) run_and_compare(g, eager, aot, 31 + seed, seed);
        etch__plan_release(eager);
        etch__plan_release(aot);
        etch__graph_free(g);
    }
}

static etch_tensor *writes(etch_tensor *x) {
    etch_tensor *y = etch_slice(x, 0, 1, 3, 1);
    etch_add_scalar_(y, 1);
    etch_mul_(x, etch_exp(x));
    return etch_sum(y);
}

TEST(aot_compiles_functions) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes, .backend = "aot_eager", .fullgraph = true);
        etch_tensor *a = ramp(4, 3), *b = etch_clone(a);
        for (int call = 0; call < 3; call++) {
            assert_same(etch_call(f, a), writes(b));
            assert_same(a, b);
        }
        assert_int_equal(etch_function_counters(f).plan_runs, 3);
        etch_function_free(f);
    }
}

TEST(aot_survives_failed_allocations) {
    graph *g = etch__graph_parse(written_graphs[0]);
    backend_options options = {0};
    for (int n = 0;; n++) {
        plan *p = NULL;
        etch__fail_allocation(n);
        etch_status status = etch__backend_find("aot_eager")->compile(g, &options, &p);
        etch__fail_allocation(-1);
        if (status == ETCH_OK) {
            etch__plan_release(p);
            assert_true(n > 20);
            break;
        }
        assert_int_equal(status, ETCH_ERR_OUT_OF_MEMORY);
    }
    etch__graph_free(g);
    etch_clear_error();
}

/* Opening, editing and closing fail cleanly at every allocation. */
TEST(edits_survive_failed_allocations) {
    for (int n = 0;; n++) {
        etch__fail_allocation(n);
        etch_graph *g = etch_graph_parse(sample);
        int64_t length = -1;
        if (g) {
            etch_value x = value_arg(etch_graph_input(g, 0));
            if (etch_graph_insert(g, NULL, etch_op_find("sin"), &x, 1))
                length = etch_graph_format(g, NULL, 0);
        }
        int64_t asked = etch__fail_allocation(-1);
        etch_graph_free(g);
        if (length > 0 && asked <= n) break;
        assert_int_equal(etch_last_status(), ETCH_ERR_OUT_OF_MEMORY);
    }
    etch_clear_error();
}

/* ---- counting ---- */

static etch_tensor *one_break(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    etch_graph_break("test");
    etch_tensor *z = etch_sin(y);
    return etch_mul(z, z);
}

TEST(compile_counter_counts) {
    etch_compile_counts counts, other;
    const char *counter = etch_compile_counter(&counts), *second = etch_compile_counter(&other);
    assert_non_null(counter);
    assert_true(is_listed(counter));
    assert_string_not_equal(counter, second);
    ETCH_SCOPE {
        etch_function *f = etch_compile(one_break, .backend = counter);
        assert_int_equal(counts.frame_count, 0); /* nothing called yet */
        etch_tensor *x = ramp(3, 3);
        for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), one_break(x));
        assert_int_equal(counts.frame_count, 2);
        assert_int_equal(counts.op_count, 3);
        assert_int_equal(other.frame_count, 0);
        etch_function_free(f);
    }
    etch_unregister_backend(counter);
    etch_unregister_backend(second);
    assert_null(etch_compile_counter(NULL));
    etch_clear_error();
}
