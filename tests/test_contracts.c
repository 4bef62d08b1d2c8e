/* The contracts that a user chooses at etch_compile: `replay`, and marks on dimensions.
 * Labels: quick device sanitizer. */
#include <string.h>

#include "core/dispatch/dispatch.h"
#include "device_support.h"
#include "trace_support.h"

static int body_runs;
static double scalar = 2;
static etch_tensor *captured;
static const char *backend = "eager";

static char log_lines[16][512];
static int nlog;
static void keep_line(void *ctx, const char *line) {
    (void)ctx;
    if (nlog < 16) snprintf(log_lines[nlog++], sizeof log_lines[0], "%s", line);
}

static bool logged(const char *what) {
    for (int i = 0; i < nlog; i++)
        if (strstr(log_lines[i], what)) return true;
    return false;
}

/* Runs the check on both backends. */
static void on_both(void (*check)(void)) {
    for (int i = 0; i < 2; i++) {
        backend = test_backends[i];
        body_runs = 0, scalar = 2, nlog = 0;
        ETCH_SCOPE { check(); }
        etch_clear_error();
    }
}

#define REPLAY(fn, ...) etch_compile(fn, .backend = backend, .replay = true, ##__VA_ARGS__)

static etch_tensor *numbers(int64_t rows, int64_t columns, double add) {
    etch_tensor *x = arange_f32(rows, columns);
    return etch_add_scalar(x, add);
}

/* ---- replay ---- */

static etch_tensor *scaled(etch_tensor *x) {
    body_runs++;
    etch_tensor *y = etch_mul_scalar(x, scalar);
    return etch_add(y, x);
}

static void body_is_run_once(void) {
    etch_function *f = REPLAY(scaled);
    for (int i = 0; i < 4; i++) {
        etch_tensor *x = numbers(3, 4, i);
        etch_tensor *twice = etch_mul_scalar(x, 2);
        etch_tensor *expected = etch_add(twice, x);
        assert_same(etch_call(f, x), expected);
    }
    assert_int_equal(body_runs, 1);
    assert_counts(f, 1, 3);
    etch_function_free(f);
}
TEST(replay_runs_the_body_once) { on_both(body_is_run_once); }

/* Stale by contract: the scalar is as recorded. */
static void stale_scalar(void) {
    etch_function *f = REPLAY(scaled);
    etch_tensor *x = numbers(2, 3, 0);
    etch_tensor *first = etch_call(f, x);
    scalar = 5;
    assert_same(etch_call(f, x), first);
    etch_reset(f);
    etch_tensor *times = etch_mul_scalar(x, 5);
    etch_tensor *expected = etch_add(times, x);
    assert_same(etch_call(f, x), expected);
    assert_int_equal(body_runs, 2);
    etch_function_free(f);
}
TEST(replay_is_stale) { on_both(stale_scalar); }

static void failing_guards(void) {
    etch_function *f = REPLAY(scaled);
    etch_tensor *x = numbers(4, 6, 0);
    etch_tensor *sliced = etch_slice(x, 1, 0, 3, 1);
    etch_tensor *wide = etch_to(x, ETCH_F64);
    etch_tensor *const in[] = {x, sliced, wide, numbers(2, 3, 1), numbers(9, 3, 1)};
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < COUNT_OF(in); i++) {
            etch_tensor *twice = etch_mul_scalar(in[i], 2);
            etch_tensor *expected = etch_add(twice, in[i]);
            assert_same(etch_call(f, in[i]), expected);
        }
    /* Sizes of one dynamic trace are replays of their own. */
    assert_true(body_runs <= 2 * COUNT_OF(in));
    int before = body_runs;
    for (int i = 0; i < COUNT_OF(in); i++) assert_non_null(etch_call(f, in[i]));
    assert_int_equal(body_runs, before);
    assert_int_equal(etch_set_default_dtype(ETCH_F64), ETCH_OK);
    assert_non_null(etch_call(f, x));
    assert_int_equal(body_runs, before + 1);
    assert_int_equal(etch_set_default_dtype(ETCH_F32), ETCH_OK);
    etch_function_free(f);
}
TEST(replay_is_guarded) { on_both(failing_guards); }

static etch_tensor *writes_first(etch_tensor *x, etch_tensor *y) {
    body_runs++;
    etch_tensor *z = etch_mul_scalar(y, 3);
    etch_add_(x, z);
    return etch_sub(x, y);
}

/* The same handle twice, two handles over one storage, and two storages. */
static void same_handles(void) {
    etch_function *f = REPLAY(writes_first);
    for (int i = 0; i < 9; i++) {
        etch_tensor *x = numbers(2, 4, i), *y = numbers(2, 4, 1), *other = numbers(2, 4, i);
        etch_tensor *view = etch_view(x, ETCH_SHAPE(2, 4));
        etch_tensor *second = i % 3 == 0 ? y : i % 3 == 1 ? x : view;
        etch_tensor *view2 = etch_view(other, ETCH_SHAPE(2, 4));
        etch_tensor *second2 = i % 3 == 0 ? y : i % 3 == 1 ? other : view2;
        etch_tensor *got = etch_call(f, x, second);
        int runs = body_runs;
        etch_tensor *expected = writes_first(other, second2);
        body_runs = runs;
        assert_same(got, expected);
        assert_same(x, other);
    }
    /* The view shares the replay of two handles; its code is another. */
    assert_int_equal(body_runs, 2);
    etch_function_free(f);
}
TEST(rule10_replay_guards_same_handles) { on_both(same_handles); }

static etch_tensor *uses_captured(etch_tensor *x) {
    body_runs++;
    return etch_mul(x, captured);
}

static void captured_as_recorded(void) {
    etch_function *f = REPLAY(uses_captured);
    etch_tensor *x = numbers(2, 2, 0);
    ETCH_SCOPE {
        captured = numbers(2, 2, 10);
        assert_non_null(etch_call(f, x));
        etch_tensor *again = etch_add_scalar(captured, 0);
        etch_fill_(captured, 7); /* its values now, not then */
        etch_tensor *sevens = etch_mul_scalar(x, 7);
        assert_same(etch_call(f, x), sevens);
        captured = again;
        assert_same(etch_call(f, x), sevens);
    }
    captured = NULL; /* the recorded one lives as long as the trace */
    etch_tensor *sevens = etch_mul_scalar(x, 7);
    assert_same(etch_call(f, x), sevens);
    assert_int_equal(body_runs, 1);
    etch_function_free(f);
}
TEST(rule12_replay_keeps_captured_tensors) { on_both(captured_as_recorded); }

/* An argument that is the captured tensor makes another trace. */
static void captured_is_argument(void) {
    etch_function *f = REPLAY(uses_captured);
    etch_tensor *x = numbers(2, 2, 0);
    captured = numbers(2, 2, 10);
    assert_non_null(etch_call(f, x));
    etch_tensor *squared = etch_mul(captured, captured);
    assert_same(etch_call(f, captured), squared);
    assert_int_equal(body_runs, 2);
    etch_function_free(f);
}
TEST(rule10_replay_captured_argument) { on_both(captured_is_argument); }

static etch_status several(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                           int nout) {
    (void)ctx, (void)nin, (void)nout;
    body_runs++;
    out[0] = in[1];
    out[1] = etch_neg(in[0]);
    out[2] = out[1];
    out[3] = etch_t(in[0]);
    out[4] = captured;
    return ETCH_OK;
}

static void identities(void) {
    etch_function *f =
        etch_compile_n(several, &(etch_compile_options){.struct_size = sizeof(etch_compile_options),
                                                        .backend = backend,
                                                        .replay = true});
    captured = numbers(1, 1, 0);
    etch_tensor *before = NULL;
    for (int i = 0; i < 3; i++) {
        etch_tensor *in[] = {numbers(2, 3, i), numbers(1, 2, i)}, *out[5];
        assert_int_equal(etch_call_n(f, in, 2, out, 4), ETCH_OK);
        assert_ptr_equal(out[0], in[1]);
        assert_ptr_equal(out[1], out[2]);
        assert_ptr_not_equal(out[1], before);
        before = out[1];
        etch_tensor *negated = etch_neg(in[0]);
        assert_same(out[1], negated);
        assert_true(etch_shares_storage(out[3], in[0]));
    }
    assert_int_equal(body_runs, 1);
    etch_tensor *in[] = {numbers(2, 3, 0), numbers(1, 2, 0)}, *out[5];
    for (int i = 0; i < 2; i++) assert_int_equal(etch_call_n(f, in, 2, out, 5), ETCH_OK);
    assert_ptr_equal(out[4], captured);
    assert_int_equal(body_runs, 3); /* which no operator has: run each time */
    etch_function_free(f);
}
TEST(replay_keeps_identities) { on_both(identities); }

static etch_tensor *noisy(etch_tensor *x) {
    body_runs++;
    etch_tensor *noise = etch_rand(ETCH_F32, ETCH_SHAPE(2, 3));
    etch_tensor *more = etch_randn(ETCH_F32, ETCH_SHAPE(2, 3));
    etch_tensor *y = etch_add(x, noise);
    return etch_mul(y, more);
}

static void random_numbers(void) {
    etch_function *f = REPLAY(noisy);
    etch_tensor *x = numbers(2, 3, 0), *got[3];
    etch_manual_seed(7);
    for (int i = 0; i < 3; i++) got[i] = etch_call(f, x);
    assert_int_equal(body_runs, 1);
    etch_manual_seed(7);
    for (int i = 0; i < 3; i++) {
        etch_tensor *expected = noisy(x);
        assert_same(got[i], expected);
    }
    etch_function_free(f);
}
TEST(replay_draws_fresh_numbers) { on_both(random_numbers); }

static etch_tensor *breaks(etch_tensor *x) {
    body_runs++;
    etch_tensor *sum = etch_sum(x);
    return etch_add_scalar(x, etch_item(sum));
}

static etch_tensor *makes_result(etch_tensor *x) {
    body_runs++;
    float one = 1;
    etch_neg(x);
    return etch_from_host(&one, ETCH_F32, ETCH_SHAPE());
}

static etch_tensor *uses_made(etch_tensor *x) {
    float one = 1;
    etch_tensor *t = etch_from_host(&one, ETCH_F32, ETCH_SHAPE());
    body_runs++;
    etch_tensor *y = etch_neg(x);
    etch_add_(t, etch_sum(y));
    return t;
}

static void not_replayed(etch_fn1 body, const char *why) {
    nlog = 0, body_runs = 0;
    etch_set_log_sink(keep_line, NULL);
    etch_set_logs("perf_hints");
    etch_function *f = REPLAY(body, .name = "step");
    for (int i = 0; i < 4; i++) {
        etch_tensor *x = numbers(2, 2, i);
        etch_tensor *got = etch_call(f, x);
        int runs = body_runs;
        etch_tensor *expected = body(x);
        body_runs = runs;
        assert_same(got, expected);
    }
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    assert_int_equal(body_runs, 4);
    assert_int_equal(nlog, 1);
    assert_true(logged("step: not_replayable"));
    assert_true(logged(why));
    etch_function_free(f);
}

static void bodies_not_replayed(void) {
    not_replayed(breaks, "a tensor's value was read as a number");
    not_replayed(makes_result, "a tensor that none of its operators made");
    not_replayed(uses_made, "a tensor that none of its operators made");
}
TEST(replay_needs_one_segment) { on_both(bodies_not_replayed); }

static etch_tensor *divides(etch_tensor *x, etch_tensor *y) {
    body_runs++;
    etch_tensor *z = etch_floor_divide(x, y);
    etch_add_(x, z);
    return etch_add(z, z);
}

/* A check that fails in a replayed call: the error of the body's call, inputs
 * as eager leaves them. */
static void errors_on_data(void) {
    etch_function *f = REPLAY(divides);
    test_set_blocking(true);
    for (int i = 0; i < 4; i++) {
        etch_tensor *x = etch_full(ETCH_I32, ETCH_SHAPE(3), 9);
        etch_tensor *y = etch_full(ETCH_I32, ETCH_SHAPE(3), i == 2 ? 0 : 2);
        etch_tensor *got = etch_call(f, x, y);
        etch_tensor *nine = etch_full(ETCH_I32, ETCH_SHAPE(3), i == 2 ? 9 : 13);
        assert_same(x, nine);
        if (i == 2) {
            assert_null(got);
            assert_int_equal(etch_last_status(), ETCH_ERR_DIVISION_BY_ZERO);
            etch_clear_error();
        } else {
            assert_non_null(got);
        }
    }
    test_set_blocking(false);
    assert_int_equal(body_runs, 1);
    etch_function_free(f);
}
TEST(rule9_replay_reports_errors_on_data) { on_both(errors_on_data); }

static etch_function *inner;
static etch_tensor *outer(etch_tensor *x) {
    etch_tensor *y = etch_call(inner, x);
    return etch_neg(y);
}

static void nested(void) {
    inner = REPLAY(scaled);
    etch_function *f = etch_compile(outer, .backend = backend);
    etch_tensor *x = numbers(2, 2, 0);
    for (int i = 0; i < 3; i++) {
        scalar = i; /* recorded into the outer function: verified */
        etch_tensor *times = etch_mul_scalar(x, i);
        etch_tensor *sum = etch_add(times, x);
        etch_tensor *expected = etch_neg(sum);
        assert_same(etch_call(f, x), expected);
    }
    assert_int_equal(body_runs, 3);
    etch_function_free(f);
    etch_function_free(inner);
}
TEST(rule14_replay_inside_is_recorded) { on_both(nested); }

static void with_others(void) {
    etch_tensor *x = numbers(2, 2, 0);
    etch_function *f = REPLAY(scaled, .fullgraph = true, .stable_after = 2);
    for (int i = 0; i < 5; i++) assert_non_null(etch_call(f, x));
    assert_int_equal(body_runs, 2);
    assert_int_equal(etch_set_stance(ETCH_STANCE_FORCE_EAGER), ETCH_OK);
    assert_non_null(etch_call(f, x));
    assert_int_equal(body_runs, 3);
    assert_int_equal(etch_set_stance(ETCH_STANCE_FAIL_ON_RECOMPILE), ETCH_OK);
    assert_non_null(etch_call(f, x));
    assert_int_equal(body_runs, 3);
    assert_null(etch_call(f, numbers(3, 3, 0)));
    assert_int_equal(etch_last_status(), ETCH_ERR_RECOMPILE);
    assert_int_equal(etch_set_stance(ETCH_STANCE_DEFAULT), ETCH_OK);
    etch_function_free(f);
}
TEST(replay_obeys_stances_and_options) { on_both(with_others); }

/* Replayed and verified walks of one dynamic trace take turns, captured
 * tensors of other strides too. */
static void taking_turns(void) {
    etch_function *f = REPLAY(uses_captured, .dynamic = ETCH_DYNAMIC_ON);
    for (int i = 0; i < 60; i++) {
        int64_t n = 2 + i % 5, m = 2 + i % 7;
        etch_tensor *x = numbers(n, m, i),
                    *now = i % 3 ? numbers(n, m, i) : etch_t(numbers(m, n, i));
        if (i % 4 == 0) etch_set_default_dtype(i % 8 ? ETCH_F64 : ETCH_F32); /* guarded */
        int before = body_runs;
        captured = etch_retain(now);
        etch_tensor *got = etch_call(f, x);
        if (body_runs > before) assert_same(got, etch_mul(x, now));
        else assert_int_equal(etch_numel(got), n * m);
        etch_release(now);
    }
    etch_set_default_dtype(ETCH_F32);
    etch_function_free(f);
}
TEST(replays_and_matches_take_turns) { on_both(taking_turns); }

/* A replay for each of very many sizes: at some point the body just runs. */
static void many_sizes(void) {
    etch_function *f = REPLAY(scaled, .dynamic = ETCH_DYNAMIC_ON);
    for (int round = 0; round < 2; round++)
        for (int n = 1; n <= 100; n++) {
            etch_tensor *x = numbers(n, 2, 0);
            etch_tensor *twice = etch_mul_scalar(x, 2);
            etch_tensor *expected = etch_add(twice, x);
            assert_same(etch_call(f, x), expected);
        }
    assert_int_equal(body_runs, 136);
    etch_function_free(f);
}
TEST(replay_is_bounded) { on_both(many_sizes); }

/* ---- marks on dimensions ---- */

static etch_tensor *plain(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    return etch_sub(y, x);
}

static etch_tensor *dynamic_arg(int64_t rows, int64_t min, int64_t max) {
    etch_tensor *x = numbers(rows, 3, 0);
    assert_int_equal(etch_mark_dynamic(x, 0, min, max), ETCH_OK);
    return x;
}

static void call_with(etch_function *f, etch_fn1 body, etch_tensor *x, int graphs) {
    etch_tensor *expected = body(x);
    assert_same(etch_call(f, x), expected);
    assert_int_equal(etch_function_counters(f).graphs, graphs);
}

static void marked_from_the_start(void) {
    etch_function *f = etch_compile(plain, .backend = backend);
    for (int64_t rows = 2; rows < 9; rows++) call_with(f, plain, dynamic_arg(rows, 0, 0), 1);
    call_with(f, plain, numbers(20, 3, 0), 1);
    assert_int_equal(etch_function_counters(f).divergences, 0);
    etch_function_free(f);
    /* Without the mark the second size makes a second graph. */
    f = etch_compile(plain, .backend = backend);
    call_with(f, plain, numbers(5, 3, 0), 1);
    call_with(f, plain, numbers(6, 3, 0), 2);
    etch_function_free(f);
    /* A trace for one size does not serve a dimension that is marked. */
    f = etch_compile(plain, .backend = backend);
    call_with(f, plain, numbers(5, 3, 0), 1);
    call_with(f, plain, dynamic_arg(5, 0, 0), 2);
    call_with(f, plain, dynamic_arg(7, 0, 0), 2);
    etch_function_free(f);
}
TEST(marked_dynamic_is_one_graph) { on_both(marked_from_the_start); }

static void bounds(void) {
    etch_set_log_sink(keep_line, NULL);
    etch_set_logs("recompiles,guards");
    etch_function *f = etch_compile(plain, .backend = backend);
    call_with(f, plain, dynamic_arg(4, 2, 8), 1);
    assert_true(logged("f32 of rank 2, dim 0 from 2 to 8"));
    call_with(f, plain, numbers(8, 3, 0), 1);
    call_with(f, plain, numbers(2, 3, 0), 1);
    call_with(f, plain, numbers(9, 3, 0), 2);
    assert_true(
        logged("tensor 0: size out of bounds at dim 0, marked dynamic: expected 2 to 8, got 9"));
    call_with(f, plain, numbers(1, 3, 0), 2);
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    etch_function_free(f);
}
TEST(bounds_are_guarded) { on_both(bounds); }

static void fixed_sizes(void) {
    for (int on = 0; on < 2; on++) {
        etch_function *f = etch_compile(plain, .backend = backend,
                                        .dynamic = on ? ETCH_DYNAMIC_ON : ETCH_DYNAMIC_AUTO);
        for (int i = 0; i < 8; i++) {
            etch_tensor *x = numbers(4 + i % 4, 3, 0);
            assert_int_equal(etch_mark_static(x, -2), ETCH_OK);
            call_with(f, plain, x, i < 4 ? i + 1 : 4);
        }
        etch_function_free(f);
    }
    /* The other dimension is free. */
    etch_function *f = etch_compile(plain, .backend = backend);
    for (int i = 0; i < 4; i++) {
        etch_tensor *x = numbers(4, 2 + i, 0);
        assert_int_equal(etch_mark_static(x, 0), ETCH_OK);
        call_with(f, plain, x, i ? 2 : 1);
    }
    etch_function_free(f);
}
TEST(marked_static_is_guarded) { on_both(fixed_sizes); }

static void assert_specialised(const etch_tensor *got, const char *what, int line) {
    char where[64];
    snprintf(where, sizeof where, "test_contracts.c:%d", line);
    assert_null(got);
    assert_int_equal(etch_last_status(), ETCH_ERR_SPECIALISED);
    assert_non_null(strstr(etch_last_error(), what));
    if (line) assert_non_null(strstr(etch_last_error(), where));
    etch_clear_error();
}

static etch_status repeat_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    etch_tensor *y = etch_mul_scalar(args[0].tensor, (double)args[1].i);
    return y && etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}

static etch_status repeat_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(args[0].tensor);
    out->sizes = etch_sizes(args[0].tensor);
    return ETCH_OK;
}

static int op_line;
static int64_t fixed_number;

static etch_tensor *size_as_attribute(etch_tensor *x) {
    etch_tensor *y = etch_neg(x), *out[1] = {NULL};
    int64_t n = fixed_number ? fixed_number : etch_size(x, 0);
    etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = y}, {.tag = ETCH_VALUE_INT, .i = n}};
    op_line = __LINE__ + 1;
    etch_op_call(etch_op_find("contracts::times"), args, 2, out, 1);
    body_runs++;
    return out[0];
}

/* A size that an operator keeps in the trace, where it stands for the number of an axis: an error
 * for a marked dimension, else another trace. */
static void attribute_of_the_size(void) {
    etch_function *f = etch_compile(size_as_attribute, .backend = backend);
    call_with(f, size_as_attribute, dynamic_arg(4, 0, 0), 1);
    call_with(f, size_as_attribute, dynamic_arg(4, 0, 0), 1);
    assert_specialised(etch_call(f, dynamic_arg(5, 0, 0)),
                       "contracts::times takes the size of dimension 0 of argument 0", op_line);
    call_with(f, size_as_attribute, numbers(5, 3, 0), 2);
    fixed_number = 9; /* no size at all */
    call_with(f, size_as_attribute, dynamic_arg(6, 0, 0), 3);
    fixed_number = 0;
    etch_function_free(f);
}
TEST(specialised_attribute_is_an_error) { on_both(attribute_of_the_size); }

static void all_sizes_fixed(void) {
    etch_function *f = etch_compile(plain, .backend = backend, .dynamic = ETCH_DYNAMIC_OFF);
    etch_tensor *x = dynamic_arg(4, 0, 0);
    etch_tensor *got = etch_call(f, x);
    assert_specialised(got, "ETCH_DYNAMIC_OFF", __LINE__ - 1);
    assert_int_equal(etch_mark_static(x, 0), ETCH_OK); /* the later mark counts */
    call_with(f, plain, x, 1);
    etch_function_free(f);
    f = etch_compile(uses_captured, .backend = backend, .dynamic = ETCH_DYNAMIC_OFF);
    captured = dynamic_arg(4, 0, 0);
    assert_specialised(etch_call(f, numbers(4, 3, 0)), "mul.Tensor captures", 0);
    etch_function_free(f);
}
TEST(specialised_function_is_an_error) { on_both(all_sizes_fixed); }

static etch_tensor *breaks_between(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    etch_graph_break("here");
    etch_tensor *z = etch_exp(y);
    return etch_sub(z, y);
}

static void segments_and_captured(void) {
    etch_function *f = etch_compile(breaks_between, .backend = backend);
    for (int64_t rows = 2; rows < 7; rows++)
        call_with(f, breaks_between, dynamic_arg(rows, 0, 0), 2);
    etch_function_free(f);
    f = etch_compile(uses_captured, .backend = backend);
    for (int64_t rows = 2; rows < 7; rows++) {
        captured = dynamic_arg(rows, 0, 0);
        etch_tensor *one = etch_slice(captured, 0, 0, 1, 1);
        call_with(f, uses_captured, one, 1);
    }
    etch_function_free(f);
    f = etch_compile(uses_captured, .backend = backend, .dynamic = ETCH_DYNAMIC_ON);
    for (int i = 0; i < 6; i++) {
        captured = numbers(2 + i % 3, 3, 0);
        assert_int_equal(etch_mark_static(captured, 0), ETCH_OK);
        call_with(f, uses_captured, numbers(1, 3, i), i < 3 ? i + 1 : 3);
    }
    etch_function_free(f);
}
TEST(marks_reach_segments_and_captured_tensors) { on_both(segments_and_captured); }

static etch_tensor *marks_inside(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    if (body_runs++ == 1) assert_int_equal(etch_mark_dynamic(y, 0, 0, 0), ETCH_OK);
    captured = etch_retain(y);
    return etch_neg(y);
}

/* Results have no marks, and one that a result of the body got does not come
 * back in a later call. */
static void not_inherited(void) {
    etch_function *f = etch_compile(plain, .backend = backend);
    for (int64_t rows = 4; rows < 6; rows++)
        call_with(f, plain, etch_neg(dynamic_arg(rows, 0, 0)), (int)rows - 3);
    etch_function_free(f);
    f = etch_compile(marks_inside, .backend = backend);
    etch_function *off = etch_compile(plain, .backend = backend, .dynamic = ETCH_DYNAMIC_OFF);
    for (int i = 0; i < 4; i++) {
        assert_non_null(etch_call(f, numbers(2, 3, 0)));
        etch_tensor *got = etch_call(off, captured);
        etch_release(captured);
        if (i == 1) assert_specialised(got, "ETCH_DYNAMIC_OFF", 0);
        else assert_non_null(got);
    }
    etch_function_free(f);
    etch_function_free(off);
}
TEST(marks_are_not_inherited) { on_both(not_inherited); }

TEST(bad_marks) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(4, 3, 0);
        assert_int_equal(etch_mark_dynamic(x, 2, 0, 0), ETCH_ERR_DIM_RANGE);
        assert_int_equal(etch_mark_static(x, -3), ETCH_ERR_DIM_RANGE);
        assert_int_equal(etch_mark_dynamic(x, 0, 5, 4), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(x, 0, -1, 4), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(x, 0, 5, 9), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(x, 0, 0, 3), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_mark_dynamic(ETCH_NONE, 0, 0, 0), ETCH_ERR_INVALID_ARGUMENT);
        etch_clear_error();
        assert_int_equal(etch_mark_dynamic(NULL, 0, 0, 0), ETCH_ERR_NULL);
        assert_int_equal(etch_mark_static(NULL, 0), ETCH_ERR_NULL);
        etch_clear_error();
    }
}

int main(int argc, char **argv) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = repeat_kernel, .shape = repeat_shape};
    if (!etch_op_register("contracts::times(Tensor self, int dim) -> Tensor", &d)) return 1;
    return run_suite(argc, argv);
}
