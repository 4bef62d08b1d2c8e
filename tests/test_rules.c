/* The rules of the cursor (docs/architecture.md), a test each that is named after its rule; the
 * page says which tests of other suites hold them. Each program runs on both backends, eight calls,
 * and gives the bits of the same program uncompiled.
 * Labels: quick device sanitizer. */
#include <stdlib.h>
#include <string.h>

#include "core/dispatch/dispatch.h"
#include "device_support.h"
#include "trace_support.h"

static const char *backend;
static int number; /* of the call: the hidden state of the programs */
static etch_tensor *kept, *captured;
static double seen;

static etch_tensor *argument(int i) { return etch_add_scalar(arange_f32(4, 6), i); }

/* Eight calls of body on arguments that change; returns the function for its counters. */
static etch_function *eight_calls(etch_fn1 body) {
    etch_function *f = etch_compile(body, .backend = backend);
    etch_function *plain = etch_compile(body, .disable = true);
    for (number = 0; number < 8; number++) {
        etch_tensor *a = argument(number), *b = argument(number);
        kept = NULL;
        etch_tensor *got = etch_call(f, a), *kept_compiled = kept;
        double seen_compiled = seen;
        kept = NULL;
        etch_tensor *expected = etch_call(plain, b);
        assert_non_null(expected);
        assert_same(got, expected);
        assert_same(a, b);
        assert_true(seen_compiled == seen);
        assert_int_equal(kept != NULL, kept_compiled != NULL);
        if (kept) assert_same(kept_compiled, kept);
        etch_release(kept);
        etch_release(kept_compiled);
    }
    etch_function_free(plain);
    return f;
}

static void on_both(const etch_test *t) {
    for (int i = 0; i < 2; i++) {
        backend = test_backends[i];
        seen = 0;
        ETCH_SCOPE { t->body(); }
    }
    etch_clear_error();
}
EACH_TEST(.around = on_both)

/* ---- 1: segments belong to the function, one first operator has one tree ---- */

static etch_tensor *breaks_in_a_loop(etch_tensor *x) {
    for (int i = 0; i <= number; i++) {
        etch_tensor *y = etch_mul_scalar(x, 0.5);
        etch_tensor *sum = etch_sum(y);
        seen = etch_item(sum);
        x = etch_add_scalar(y, 1);
    }
    return x;
}

TEST(rule1_segments_belong_to_the_function) {
    etch_function *f = eight_calls(breaks_in_a_loop);
    /* entry, the loop's body, the return behind it */
    assert_int_equal(etch_function_counters(f).graphs, 3);
    etch_function_free(f);
}

/* ---- 2: what matching compares ---- */

static etch_tensor *kinds_and_operands(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    etch_scalar s = number % 2 ? etch_scalar_int(number) : etch_scalar_real(number + 0.5);
    etch_tensor *z = (etch_mul_scalar)(y, s);
    return number % 4 < 2 ? etch_sub(z, x) : etch_sub(x, z);
}

TEST(rule2_matching_compares_kinds_and_handles) {
    etch_function *f = eight_calls(kinds_and_operands);
    assert_int_equal(etch_function_counters(f).graphs, 4); /* two kinds, two orders */
    etch_function_free(f);
}

/* ---- 3: nothing slips past a trace ---- */

static etch_tensor *changes_settings(etch_tensor *x) {
    etch_manual_seed((uint64_t)number);
    etch_tensor *noise = etch_rand(ETCH_F32, ETCH_SHAPE(4, 6));
    etch_set_default_dtype(number % 2 ? ETCH_F64 : ETCH_F32);
    etch_tensor *i = etch_arange(ETCH_I32, 0, 6, 1);
    etch_tensor *s = etch_sin(i); /* integers become the default dtype */
    etch_set_default_dtype(ETCH_F32);
    etch_tensor *y = etch_add(x, noise);
    return etch_mul(y, s);
}

TEST(rule3_settings_do_not_slip_past) { etch_function_free(eight_calls(changes_settings)); }

/* ---- 4: a result moves to the caller's scope, what came in stays ---- */

static etch_tensor *through_scopes(etch_tensor *x) {
    etch_tensor *y = NULL;
    ETCH_SCOPE {
        etch_tensor *z = etch_neg(x);
        ETCH_SCOPE { y = etch_keep(etch_keep(etch_exp(z))); }
        y = etch_keep(y);
    }
    return number % 3 ? y : number % 2 ? x : captured;
}

TEST(rule4_results_move_to_the_callers_scope) {
    captured = argument(3);
    etch_function *f = eight_calls(through_scopes);
    etch_tensor *x = argument(0), *y = NULL;
    ETCH_SCOPE {
        number = 3;
        assert_ptr_equal(etch_call(f, x), x);
        number = 1;
        y = etch_keep(etch_call(f, x));
    }
    assert_int_equal(etch_numel(x), 24);
    assert_int_equal(etch_numel(y), 24);
    etch_function_free(f);
}

/* ---- 5: a flush produces storage; an escaping view brings its base ---- */

static etch_tensor *view_escapes(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *t = etch_t(y);
    etch_tensor *v = etch_select(t, 0, 1);
    if (number >= 4) kept = etch_retain(t);
    return number % 2 ? v : etch_exp(v);
}

TEST(rule5_an_escaping_view_brings_its_base) {
    etch_function *f = eight_calls(view_escapes);
    /* Two paths; the first of them was compiled again with one more output, the other had it. */
    assert_true(etch_function_counters(f).graphs <= 4);
    assert_true(etch_function_counters(f).plan_runs >= 2);
    number = 5;
    kept = NULL;
    etch_tensor *v = etch_call(f, argument(0));
    assert_true(etch_shares_storage(v, kept));
    etch_fill_(kept, 9);
    assert_true(etch_item(etch_sum(v)) == 36);
    etch_release(kept);
    etch_function_free(f);
}

/* ---- 7: on divergence the prefix has run, its handles are ordinary ones ---- */

static etch_tensor *diverges(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    etch_add_(x, y);
    for (int i = 0; i < number % 4; i++) y = etch_sin(y);
    return etch_sub(y, x);
}

TEST(rule7_divergence_runs_the_prefix) {
    etch_function *f = eight_calls(diverges);
    assert_int_equal(etch_function_counters(f).graphs, 4);
    assert_int_equal(etch_function_counters(f).plan_runs, 4);
    etch_function_free(f);
}

/* ---- 9: errors on data appear at the flush, with the line of the call, before any write ---- */

static int line;
static etch_tensor *divides_then_writes(etch_tensor *x) {
    etch_tensor *one = etch_ones(ETCH_I32, ETCH_SHAPE(4, 6));
    etch_tensor *i = etch_to(x, ETCH_I32);
    line = __LINE__ + 1;
    etch_tensor *q = etch_floor_divide(one, i);
    etch_add_(x, one);
    return etch_add(q, i);
}

TEST(rule9_errors_on_data_name_the_operators_line) {
    etch_function *f = etch_compile(divides_then_writes, .backend = backend);
    test_set_blocking(true);
    for (int i = 0; i < 6; i++) {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(4, 6), i % 3);
        etch_tensor *got = etch_call(f, x);
        /* A failing check stops its own results; the writes behind it happen where eager code,
         * which goes on, makes them. */
        assert_true(etch_item(etch_select(etch_select(x, 0, 0), 0, 0)) == i % 3 + 1);
        if (i % 3) {
            assert_non_null(got);
            continue;
        }
        char where[64];
        snprintf(where, sizeof where, "test_rules.c:%d", line);
        assert_null(got);
        assert_int_equal(etch_last_status(), ETCH_ERR_DIVISION_BY_ZERO);
        assert_non_null(strstr(etch_last_error(), where));
        etch_clear_error();
    }
    test_set_blocking(false);
    etch_function_free(f);
}

/* Checks that can only be made once something was written: eager code goes on behind them, and a
 * compiled call leaves what that leaves. */
typedef etch_tensor *(*late_check)(etch_tensor *x, etch_tensor *y);

static etch_tensor *divides_what_was_written(etch_tensor *x, etch_tensor *y) {
    etch_add_(x, y);
    etch_tensor *q = etch_floor_divide(x, y);
    etch_mul_scalar_(etch_slice(x, 0, 1, 3, 1), 2);
    return q;
}
static etch_tensor *puts_twice(etch_tensor *x, etch_tensor *y) {
    etch_index_put_(x, etch_slice(y, 0, 0, 1, 1), etch_full(ETCH_I64, ETCH_SHAPE(), 7), false);
    return etch_index_put_(x, y, etch_full(ETCH_I64, ETCH_SHAPE(), 5), true);
}
static etch_tensor *divides_and_adds(etch_tensor *x, etch_tensor *y) {
    etch_add_scalar_(y, 1);
    etch_tensor *rest = etch_remainder(x, y);
    etch_add_(etch_slice(x, 0, 0, 2, 1), etch_slice(rest, 0, 1, 3, 1));
    return rest;
}

/* The operand of the check and the write are of one space. */
static etch_tensor *triples_and_adds(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_mul_scalar(x, 3);
    etch_add_(x, a);
    return etch_floor_divide(a, y);
}

/* What the check needs could share a kernel with what comes after the write. */
static etch_tensor *checks_and_reads_again(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_mul_scalar(y, 3), *q = etch_floor_divide(a, y);
    etch_mul_scalar_(etch_slice(x, 0, 1, 3, 1), 2);
    etch_tensor *b = etch_add(a, etch_mul_scalar(x, 5));
    etch_add_(etch_slice(x, 0, 0, 1, 1), etch_slice(b, 0, 1, 2, 1));
    return etch_cat((etch_tensor *[]){b, q}, 2, 0);
}

static etch_tensor *three(int64_t a, int64_t b, int64_t c) {
    etch_tensor *t = etch_empty(ETCH_I64, ETCH_SHAPE(3));
    const int64_t v[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        etch_copy_(etch_select(t, 0, i), etch_full(ETCH_I64, ETCH_SHAPE(), (double)v[i]));
    return t;
}

/* The same elements, not at the beginning of their storage. */
static etch_tensor *behind(etch_tensor *t) {
    etch_tensor *room = etch_zeros(ETCH_I64, ETCH_SHAPE(5)), *v = etch_slice(room, 0, 2, 5, 1);
    return etch_copy_(v, t);
}

TEST(rule9_checks_after_writes) {
    static const late_check bodies[] = {divides_what_was_written, puts_twice, divides_and_adds,
                                        triples_and_adds, checks_and_reads_again};
    test_set_blocking(true);
    for (int k = 0; k < 5; k++) {
        etch_function *f = etch_compile(bodies[k], .backend = backend);
        for (int i = 0; i < 8; i++) {
            const int64_t bad[] = {0, 9, -1, 0, 0};
            int64_t last = i % 4 == 3 ? bad[k] : 1 + i % 2;
            etch_tensor *x = three(30, 20, 10), *y = three(1, 1, last);
            etch_tensor *a = three(30, 20, 10), *b = three(1, 1, last);
            if (i % 2) x = behind(x), y = behind(y);
            etch_tensor *want = bodies[k](a, b);
            etch_status status = want ? ETCH_OK : etch_last_status();
            etch_clear_error();
            etch_tensor *got = etch_call(f, x, y);
            assert_int_equal(status != ETCH_OK, i % 4 == 3);
            assert_int_equal(etch_last_status(), status);
            etch_clear_error();
            if (want) assert_same(got, want);
            assert_same(x, a);
            assert_same(y, b);
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
    }
    test_set_blocking(false);
}

/* ---- 12: captured tensors are bound when first met, in each run ---- */

static etch_tensor *two_captured(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, captured);
    captured = etch_slice(captured, 0, 0, 4, 1);
    return etch_add(y, captured);
}

TEST(rule12_captured_tensors_are_bound_in_each_run) {
    etch_function *f = etch_compile(two_captured, .backend = backend);
    for (int i = 0; i < 8; i++) {
        etch_tensor *c = captured = argument(i), *x = argument(1);
        etch_tensor *got = etch_call(f, x);
        etch_tensor *product = etch_mul(x, c);
        assert_same(got, etch_add(product, c));
    }
    assert_int_equal(etch_function_counters(f).graphs, 1);
    etch_function_free(f);
}

/* ---- 13: inside a flush operators run eagerly, calls start runs of their own ---- */

static etch_function *inner;
static etch_tensor *outer_deferred;
static etch_status inside_status;
static int kernels;

static etch_tensor *inner_body(etch_tensor *x) { return etch_exp(etch_neg(x)); }

static etch_status calling_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    kernels++;
    if (outer_deferred && etch_is_deferred(outer_deferred)) {
        assert_null(etch_neg(outer_deferred));
        inside_status = etch_last_status();
        etch_clear_error();
    }
    etch_tensor *y = etch_call(inner, args[0].tensor);
    assert_false(etch_is_deferred(y));
    return etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}

static etch_status same_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(args[0].tensor);
    out->sizes = etch_sizes(args[0].tensor);
    return ETCH_OK;
}

static etch_tensor *uses_kernel(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 0.25), *out = NULL;
    etch_tensor *held = outer_deferred = etch_sin(y);
    etch_value arg = {.tag = ETCH_VALUE_TENSOR, .tensor = y};
    etch_op_call(etch_op_find("rules::calling"), &arg, 1, &out, 1);
    return etch_add(out, held);
}

TEST(rule13_a_flush_has_an_empty_frame) {
    inner = etch_compile(inner_body, .backend = backend);
    inside_status = ETCH_OK;
    etch_function *f = eight_calls(uses_kernel);
    assert_int_equal(kernels % 16, 0);
    assert_int_equal(inside_status, ETCH_ERR_DEFERRED_IN_FLUSH);
    assert_int_equal(etch_function_counters(f).graphs, 1);
    assert_int_equal(etch_function_counters(inner).graphs, 1);
    outer_deferred = NULL;
    etch_function_free(f);
    etch_function_free(inner);
}

/* ---- 17: a mode breaks, and under it the body is eager ---- */

static etch_mode *mode;
static int handled;

static etch_status counts_calls(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor **out, int nout) {
    (void)ctx;
    handled++;
    return etch_redispatch(op, args, nargs, out, nout);
}

static etch_tensor *enters_mode(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    ETCH_WITH_MODE (mode) {
        y = etch_exp(y);
        y = etch_neg(y);
    }
    return etch_add(y, x);
}

TEST(rule17_a_mode_breaks_and_sees_everything) {
    handled = 0;
    etch_function *f = eight_calls(enters_mode);
    assert_int_equal(handled, 2 * 16);
    assert_int_equal(etch_function_counters(f).graphs, 2); /* before and behind it */
    assert_int_equal(etch_function_counters(f).plan_runs, 14);
    etch_function_free(f);
}

/* ---- 18: run-time scalars and random numbers never merge ---- */

static etch_tensor *equal_looking(etch_tensor *x) {
    etch_tensor *a = etch_mul_scalar(x, number);
    etch_tensor *b = etch_mul_scalar(x, number % 2 ? number : 1 - number);
    etch_manual_seed(4);
    etch_tensor *r = etch_rand(ETCH_F32, ETCH_SHAPE(4, 6));
    etch_tensor *s = etch_rand(ETCH_F32, ETCH_SHAPE(4, 6));
    etch_tensor *t = etch_sub(r, s);
    etch_tensor *u = etch_sub(a, b);
    return etch_add(t, u);
}

TEST(rule18_scalars_and_random_numbers_never_merge) {
    etch_function *f = eight_calls(equal_looking);
    assert_int_equal(etch_function_counters(f).graphs, 1);
    etch_function_free(f);
}

int main(int argc, char **argv) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = calling_kernel, .shape = same_shape};
    mode = etch_mode_new(counts_calls, NULL);
    if (!mode || !etch_op_register("rules::calling(Tensor self) -> Tensor", &d)) return 1;
    int failed = run_suite(argc, argv);
    etch_mode_free(mode);
    return failed;
}
