/* ETCH_CHECK=1 (rule 19 of docs/architecture.md): a difference between compiled and eager results
 * is found, named and returned as an error; where there is none, nothing changes.
 * Labels: quick device fake. */
#include <stdlib.h>
#include <string.h>

#include "core/dispatch/dispatch.h"
#include "device_support.h"
#include "trace_support.h"

static char log_lines[16][1024];
static int nlog, line, body_runs;
static void keep_line(void *ctx, const char *text) {
    (void)ctx;
    if (nlog < 16) snprintf(log_lines[nlog++], sizeof log_lines[0], "%s", text);
}

/* The operator on the next line is the one to be named. */
#define NEXT_LINE (line = __LINE__ + 1)

static void assert_reported(const char *const *parts) {
    char where[64];
    snprintf(where, sizeof where, "test_check.c:%d", line);
    assert_int_equal(etch_last_status(), ETCH_ERR_CHECK);
    assert_true(nlog >= 1);
    assert_non_null(strstr(log_lines[0], "check_failed"));
    for (int i = 0; parts[i]; i++) {
        const char *part = strcmp(parts[i], "LINE") ? parts[i] : where;
        if (!strstr(etch_last_error(), part) || !strstr(log_lines[0], part))
            fail_msg("\"%s\" is not in \"%s\" and \"%s\"", part, etch_last_error(), log_lines[0]);
    }
    nlog = 0;
    etch_clear_error();
}
#define assert_found(result, ...)                                                                  \
    do {                                                                                           \
        assert_null(result);                                                                       \
        assert_reported((const char *const[]){__VA_ARGS__, NULL});                                 \
    } while (0)

static void assert_quiet(void) {
    if (nlog) fail_msg("%s", log_lines[0]);
    assert_int_equal(etch_last_status(), ETCH_OK);
}

/* ---- a backend that is wrong: it subtracts where the program adds ---- */

static etch_status subtracts(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx;
    for (etch_node *n = etch_graph_first(g), *next; n; n = next) {
        next = etch_node_next(n);
        const char *name = etch_op_name(etch_node_op(n));
        const char *wrong = !strcmp(name, "add.Tensor")    ? "sub.Tensor"
                            : !strcmp(name, "add_.Tensor") ? "sub_.Tensor"
                                                           : NULL;
        etch_value args[ETCH_NODE_MAX_ARGS];
        int nargs = etch_node_args(n, args);
        const etch_op *op = wrong ? etch_op_find(wrong) : NULL;
        bool ok = !op || (strchr(wrong, '_') ? etch_graph_insert(g, n, op, args, nargs) &&
                                                   etch_graph_erase(g, n) == ETCH_OK
                                             : etch_graph_replace(g, n, op, args, nargs) != NULL);
        if (!ok) return etch_last_status();
    }
    out->backend = "eager";
    return ETCH_OK;
}

static etch_tensor *adds(etch_tensor *x, etch_tensor *y) {
    body_runs++;
    etch_tensor *a = etch_mul(x, y);
    NEXT_LINE;
    etch_tensor *b = etch_add(a, y);
    return etch_neg(etch_neg(b));
}

/* Only a result that is produced can be compared: the operator named is the one that made it. */
static etch_tensor *returns_sum(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_mul(x, y);
    NEXT_LINE;
    etch_tensor *b = etch_add(a, y);
    body_runs++; /* behind the operator: a call in tail position has no line here */
    return b;
}

TEST(rule19_wrong_code_is_found) {
    float xs[] = {1, 2, 3, 4, 5, 6}, ys[] = {1, 0, 0, 0, 8, 0};
    ETCH_SCOPE {
        etch_function *f = etch_compile(returns_sum, .backend = "subtracts", .name = "step");
        etch_tensor *x = etch_from_host(xs, ETCH_F32, ETCH_SHAPE(2, 3));
        etch_tensor *y = etch_from_host(ys, ETCH_F32, ETCH_SHAPE(2, 3));
        assert_non_null(etch_call(f, x, y)); /* recorded: eager */
        assert_quiet();
        body_runs = 0;
        assert_found(etch_call(f, x, y), "add.Tensor: element [0, 0]: expected 2, got 0", "LINE");
        assert_int_equal(body_runs, 1); /* the body runs once */
        ys[0] = 0;
        y = etch_from_host(ys, ETCH_F32, ETCH_SHAPE(2, 3));
        assert_found(etch_call(f, x, y), "element [1, 1]: expected 48, got 32", "LINE");
        ys[4] = 0;
        y = etch_from_host(ys, ETCH_F32, ETCH_SHAPE(2, 3));
        assert_non_null(etch_call(f, x, y)); /* nothing differs */
        assert_quiet();
        etch_function_free(f);
    }
}

/* fullgraph runs the plan in its first call, too. */
TEST(rule19_wrong_code_under_fullgraph) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(adds, .backend = "subtracts", .fullgraph = true);
        etch_tensor *x = etch_ones(ETCH_I32, ETCH_SHAPE(2));
        for (int i = 0; i < 2; i++)
            assert_found(etch_call(f, x, x), "neg: element [0]: expected 2, got 0");
        etch_function_free(f);
    }
}

static etch_tensor *writes(etch_tensor *x, etch_tensor *y) {
    etch_tensor *v = etch_select(x, 0, 1);
    NEXT_LINE;
    etch_add_(v, y);
    return etch_neg(x);
}

TEST(rule19_wrong_writes_are_found) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes, .backend = "subtracts");
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2, 2));
        etch_tensor *y = etch_ones(ETCH_F32, ETCH_SHAPE(2));
        assert_non_null(etch_call(f, x, y));
        assert_quiet();
        assert_found(etch_call(f, x, y), "add_.Tensor: element [1, 0]: expected 3, got 1", "LINE");
        etch_function_free(f);
    }
}

static etch_tensor *read_then_more(etch_tensor *x, etch_tensor *y) {
    NEXT_LINE;
    etch_tensor *a = etch_add(x, y);
    double v = etch_item(a);
    return etch_mul_scalar(y, v);
}

/* The difference is at the break; the call that meets it fails, after its body. */
TEST(rule19_at_a_break) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(read_then_more, .backend = "subtracts");
        etch_tensor *x = etch_full(ETCH_F64, ETCH_SHAPE(), 3);
        assert_non_null(etch_call(f, x, x));
        assert_found(etch_call(f, x, x), "add.Tensor: element []: expected 6, got 0", "LINE");
        etch_function_free(f);
    }
}

/* ---- raw writes through a pointer got before the call ---- */

static float *pointer;
static bool write_now;

static etch_tensor *written_meanwhile(etch_tensor *x) {
    NEXT_LINE;
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = etch_mul(a, a);
    if (write_now) pointer[1] = 7;
    return etch_sub(b, x);
}

TEST(rule8_raw_writes_are_found) {
    ONLY_ON_CPU();
    for (int i = 0; i < 2; i++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(written_meanwhile, .backend = test_backends[i]);
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3));
            pointer = etch_data_mut(x);
            write_now = false;
            for (int k = 0; k < 3; k++) assert_non_null(etch_call(f, x));
            assert_quiet();
            write_now = true;
            assert_found(etch_call(f, x), "add.Scalar: element [1]: expected 2, got 8", "LINE",
                         "pointer got before the call");
            etch_function_free(f);
        }
}

static etch_tensor *written_over(etch_tensor *x) {
    NEXT_LINE;
    etch_add_scalar_(x, 1);
    if (write_now) pointer[2] = 5;
    return etch_mul_scalar(x, 2);
}

/* A raw write over what a deferred operator was to write. */
TEST(rule8_raw_writes_over_results_are_found) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_function *f = etch_compile(written_over, .backend = "eager");
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3));
        pointer = etch_data_mut(x);
        write_now = false;
        for (int k = 0; k < 3; k++) assert_non_null(etch_call(f, x));
        assert_quiet();
        write_now = true;
        assert_found(etch_call(f, x), "add_.Scalar: element [2]: expected 5, got 6", "LINE");
        etch_function_free(f);
    }
}

static etch_tensor *flushes_first(etch_tensor *x) {
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_flush();
    pointer[1] = 9;
    return etch_mul(a, x);
}

static etch_tensor *takes_it_inside(etch_tensor *x) {
    etch_tensor *a = etch_add_scalar(x, 1);
    float *p = etch_data_mut(x);
    p[1] += 1;
    return etch_mul(a, x);
}

TEST(rule8_allowed_raw_writes_are_not_reported) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_function *f = etch_compile(flushes_first), *g = etch_compile(takes_it_inside);
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3));
        pointer = etch_data_mut(x);
        for (int i = 0; i < 3; i++) {
            assert_non_null(etch_call(f, x));
            assert_non_null(etch_call(g, x));
        }
        assert_quiet();
        etch_function_free(f);
        etch_function_free(g);
    }
}

/* ---- replay ---- */

static double factor;
static bool other_path, read_it;
static etch_tensor *captured;

static etch_tensor *hidden_state(etch_tensor *x) {
    etch_tensor *noise = etch_rand(ETCH_F32, ETCH_SHAPE(2));
    NEXT_LINE;
    etch_tensor *y = etch_mul_scalar(x, factor);
    etch_tensor *z;
    if (factor == 2) NEXT_LINE;
    z = etch_add(y, captured);
    if (read_it) etch_item(etch_sum(z));
    if (other_path) {
        NEXT_LINE;
        z = etch_sin(z);
    }
    return etch_add(z, noise);
}

/* A table made anew in each call has the same values. */
static void restore(void) {
    static const float values[] = {4, 5};
    factor = 2, other_path = read_it = false;
    captured = etch_from_host(values, ETCH_F32, ETCH_SHAPE(2));
}

TEST(stale_replay_is_found) {
    for (int i = 0; i < 2; i++)
        ETCH_SCOPE {
            restore();
            etch_function *f =
                etch_compile(hidden_state, .backend = test_backends[i], .replay = true);
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2));
            for (int k = 0; k < 4; k++) {
                if (!etch_call(f, x)) fail_msg("%s", etch_last_error());
                restore();
            }
            assert_quiet();
            factor = 3;
            assert_found(etch_call(f, x), "mul.Scalar: scalar 0: replay has 2, the body 3", "LINE");
            restore();
            captured = etch_zeros(ETCH_F32, ETCH_SHAPE(2));
            assert_found(etch_call(f, x), "add.Tensor: ", "captured tensor", "LINE");
            restore();
            other_path = true;
            assert_found(etch_call(f, x), "operator 3: replay has add.Tensor", "the body sin",
                         "LINE");
            restore();
            read_it = true;
            etch_tensor *broken = etch_call(f, x);
            line = 0;
            assert_null(broken);
            assert_int_equal(etch_last_status(), ETCH_ERR_CHECK);
            assert_non_null(strstr(etch_last_error(), "now breaks the graph"));
            nlog = 0;
            etch_clear_error();
            restore();
            assert_non_null(etch_call(f, x));
            assert_quiet();
            etch_function_free(f);
        }
}

/* What a recorded call had as argument and as captured tensor is its argument from then on. */
static etch_tensor *adds_captured(etch_tensor *x) { return etch_add(x, captured); }

TEST(replay_of_a_captured_argument_is_found) {
    ETCH_SCOPE {
        restore();
        etch_function *f = etch_compile(adds_captured, .replay = true);
        for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, captured));
        assert_quiet();
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2));
        assert_null(etch_call(f, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_CHECK);
        assert_non_null(strstr(etch_last_error(), "the body add.Tensor with other operands"));
        nlog = 0;
        etch_clear_error();
        etch_function_free(f);
    }
}

/* ---- right programs are left alone ---- */

static etch_tensor *divides(etch_tensor *x, etch_tensor *y) {
    etch_tensor *q = etch_floor_divide(x, y);
    etch_tensor *v = etch_slice(x, 0, 1, 3, 1);
    etch_add_(v, etch_slice(q, 0, 0, 2, 1));
    return etch_add(q, x);
}

TEST(errors_are_those_of_the_program) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(divides);
        for (int i = 0; i < 4; i++) {
            etch_tensor *x = etch_full(ETCH_I32, ETCH_SHAPE(3), 9);
            etch_tensor *y = etch_full(ETCH_I32, ETCH_SHAPE(3), i == 2 ? 0 : 2);
            etch_tensor *got = etch_call(f, x, y);
            assert_int_equal(nlog, 0);
            if (i != 2) assert_non_null(got);
            else assert_int_equal(etch_last_status(), ETCH_ERR_DIVISION_BY_ZERO);
        }
        etch_clear_error();
        etch_function_free(f);
    }
}

static etch_tensor *late(etch_tensor *x) {
    etch_tensor *a = etch_mul_scalar(x, 3);
    etch_tensor *b = etch_exp(a);
    etch_item(etch_sum(a));
    if (other_path) etch_add_scalar_(a, 1);
    return other_path ? etch_add(a, b) : a;
}

static etch_tensor *overlapping(etch_tensor *x, etch_tensor *y) {
    etch_add_scalar_(x, 1);
    return etch_mul(x, y);
}

TEST(rule6_and_rule10_are_not_reported) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(late), *g = etch_compile(overlapping);
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(8));
        for (int i = 0; i < 8; i++) {
            other_path = i % 4 == 3;
            etch_tensor *a = etch_slice(x, 0, 0, 6, 1), *b = etch_slice(x, 0, 2, 8, 1);
            etch_tensor *c = a; /* memory of the host over memory of x, where x lies on the host */
            if (test_device() == ETCH_CPU)
                c = etch_wrap_host((float *)etch_data(x) + i % 2, ETCH_F32, ETCH_SHAPE(6), NULL,
                                   NULL);
            assert_non_null(etch_call(f, x));
            assert_non_null(etch_call(g, a, i % 2 ? b : a));
            assert_non_null(etch_call(g, a, c));
        }
        assert_quiet();
        etch_function_free(f);
        etch_function_free(g);
    }
}

/* Each allocation fails in turn: the call reports that, or gives the right
 * bits; nothing is left. */
TEST(failing_allocations) {
    other_path = true;
    etch_memory_stats before = etch_memory();
    int64_t asked = 1;
    for (int64_t n = 0; n < asked; n++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(late), *g = etch_compile(overlapping);
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(4)),
                        *y = etch_ones(ETCH_F32, ETCH_SHAPE(4));
            for (int i = 0; i < 2; i++) assert_non_null(etch_call(f, x)), etch_call(g, y, x);
            etch__fail_allocation(n);
            etch_tensor *a = etch_call(f, x), *b = a ? etch_call(g, y, x) : NULL;
            asked = etch__fail_allocation(-1);
            if (nlog) fail_msg("allocation %lld: %s", (long long)n, log_lines[0]);
            if (!b && etch_last_status() != ETCH_ERR_OUT_OF_MEMORY)
                fail_msg("allocation %lld: %s", (long long)n, etch_last_error());
            if (a) assert_same(a, late(x));
            if (b) assert_same(b, etch_full(ETCH_F32, ETCH_SHAPE(4), 4));
            etch_clear_error();
            etch_function_free(f);
            etch_function_free(g);
        }
    assert_true(asked > 20);
    assert_int_equal(etch_memory().tensors, before.tensors);
    assert_int_equal(etch_memory().bytes_live, before.bytes_live);
}

/* ---- mapped functions ---- */

static etch_function *mapped;
static etch_tensor *sample(etch_tensor *x) {
    etch_tensor *leaf = etch_requires_grad_(etch_detach(x), true), *g = NULL;
    etch_tensor *y = etch_mul(leaf, leaf), *sum;
    NEXT_LINE;
    sum = etch_sum(etch_add(y, leaf));
    return etch_grad(&sum, 1, &leaf, 1, NULL, NULL, &g) == ETCH_OK ? etch_mul(sum, g) : NULL;
}
static etch_tensor *maps(etch_tensor *x) { return etch_exp(etch_call(mapped, x)); }
static etch_tensor *maps_sum(etch_tensor *x) { return etch_call(mapped, x); }
static etch_tensor *sample_sum(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, x);
    NEXT_LINE;
    return etch_add(y, x);
}

/* Nothing differs in mapped gradients; wrong code of a mapped function is found, with the line of
 * the sample's operator. */
TEST(mapped_functions_are_checked) {
    ETCH_SCOPE {
        etch_tensor *x = etch_reshape(etch_arange(ETCH_F32, 1, 7, 1), ETCH_SHAPE(2, 3));
        mapped = etch_vmap(sample, ETCH_DIMS(0), ETCH_DIMS(0));
        etch_function *f = etch_compile(maps, .fullgraph = true);
        etch_tensor *want = maps(x);
        for (int i = 0; i < 4; i++) assert_same(etch_call(f, x), want);
        assert_quiet();
        assert_true(etch_function_counters(f).plan_runs > 0);
        etch_function_free(f);
        etch_function_free(mapped);
        mapped = etch_vmap(sample_sum, ETCH_DIMS(0), ETCH_DIMS(0));
        f = etch_compile(maps_sum, .backend = "subtracts");
        assert_non_null(etch_call(f, x)); /* recorded: eager */
        assert_found(etch_call(f, x), "add.Tensor: element [0, 0]: expected 2, got 0", "LINE");
        etch_function_free(f);
        etch_function_free(mapped);
    }
}

static void set_up(void) {
    nlog = 0, line = 0;
    etch_clear_error();
    etch_set_log_sink(keep_line, NULL);
}
EACH_TEST(.before = set_up)

int main(int argc, char **argv) {
    setenv("ETCH_CHECK", "1", 1);
    if (etch_register_backend("subtracts", subtracts, NULL) != ETCH_OK) return 1;
    return run_suite(argc, argv);
}
