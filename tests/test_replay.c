/* `replay`: when the body is not run, guards, captured tensors, identities, random numbers,
 * errors. What a replayed call gives is what a call gives.
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

/* Each test runs on both backends. */
static void on_both(const etch_test *t) {
    for (int i = 0; i < 2; i++) {
        backend = test_backends[i];
        body_runs = 0, scalar = 2, nlog = 0;
        ETCH_SCOPE { t->body(); }
        etch_clear_error();
    }
}
EACH_TEST(.around = on_both)

#define REPLAY(fn, ...) etch_compile(fn, .backend = backend, .replay = true, ##__VA_ARGS__)

static etch_tensor *numbers(int64_t rows, int64_t columns, double add) {
    etch_tensor *x = arange_f32(rows, columns);
    return etch_add_scalar(x, add);
}

static etch_tensor *scaled(etch_tensor *x) {
    body_runs++;
    etch_tensor *y = etch_mul_scalar(x, scalar);
    return etch_add(y, x);
}

TEST(replay_runs_the_body_once) {
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

/* Stale by contract: the scalar is as recorded. */
TEST(replay_is_stale) {
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

TEST(replay_is_guarded) {
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

static etch_tensor *writes_first(etch_tensor *x, etch_tensor *y) {
    body_runs++;
    etch_tensor *z = etch_mul_scalar(y, 3);
    etch_add_(x, z);
    return etch_sub(x, y);
}

/* The same handle twice, two handles over one storage, and two storages. */
TEST(rule10_replay_guards_same_handles) {
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

static etch_tensor *uses_captured(etch_tensor *x) {
    body_runs++;
    return etch_mul(x, captured);
}

TEST(rule12_replay_keeps_captured_tensors) {
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

/* An argument that is the captured tensor makes another trace. */
TEST(rule10_replay_captured_argument) {
    etch_function *f = REPLAY(uses_captured);
    etch_tensor *x = numbers(2, 2, 0);
    captured = numbers(2, 2, 10);
    assert_non_null(etch_call(f, x));
    etch_tensor *squared = etch_mul(captured, captured);
    assert_same(etch_call(f, captured), squared);
    assert_int_equal(body_runs, 2);
    etch_function_free(f);
}

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

TEST(replay_keeps_identities) {
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

static etch_tensor *noisy(etch_tensor *x) {
    body_runs++;
    etch_tensor *noise = etch_rand(ETCH_F32, ETCH_SHAPE(2, 3));
    etch_tensor *more = etch_randn(ETCH_F32, ETCH_SHAPE(2, 3));
    etch_tensor *y = etch_add(x, noise);
    return etch_mul(y, more);
}

TEST(replay_draws_fresh_numbers) {
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

TEST(replay_needs_one_segment) {
    not_replayed(breaks, "a tensor's value was read as a number");
    not_replayed(makes_result, "a tensor that none of its operators made");
    not_replayed(uses_made, "a tensor that none of its operators made");
}

static etch_tensor *divides(etch_tensor *x, etch_tensor *y) {
    body_runs++;
    etch_tensor *z = etch_floor_divide(x, y);
    etch_add_(x, z);
    return etch_add(z, z);
}

/* A check that fails in a replayed call: the error of the body's call, inputs
 * as eager leaves them. */
TEST(rule9_replay_reports_errors_on_data) {
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

static etch_tensor *goes_on(etch_tensor *x) {
    body_runs++;
    etch_tensor *y = etch_neg(x);
    if (!y) etch_clear_error();
    etch_tensor *z = etch_exp(y ? y : x);
    if (!z) etch_clear_error();
    return z ? z : y ? y : x;
}

/* A body that goes on where memory is short does so in that call alone. */
TEST(replay_keeps_no_shortage) {
    bool asked = true;
    for (int64_t k = 0; asked; k++)
        ETCH_SCOPE {
            etch_function *f = REPLAY(goes_on);
            etch_tensor *x = numbers(3, 4, -5), *expected = etch_exp(etch_neg(x));
            body_runs = 0;
            etch__fail_allocation(k);
            etch_call(f, x);
            asked = etch__fail_allocation(-1) > k;
            etch_clear_error();
            for (int i = 0; i < 3; i++) assert_same(etch_call(f, x), expected);
            assert_in_range(body_runs, 1, asked ? 3 : 1);
            etch_function_free(f);
        }
}

static etch_function *inner;

static etch_tensor *outer(etch_tensor *x) {
    etch_tensor *y = etch_call(inner, x);
    return etch_neg(y);
}

TEST(rule14_replay_inside_is_recorded) {
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

TEST(replay_obeys_stances_and_options) {
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

/* Replayed and verified walks of one dynamic trace take turns, captured
 * tensors of other strides too. */
TEST(replays_and_matches_take_turns) {
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

/* A replay for each of very many sizes: at some point the body just runs. */
TEST(replay_is_bounded) {
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
