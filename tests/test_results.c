/* Results of compiled functions: which tensors they are, who owns them, what they share, values
 * that escape, lists of results that lie over lists of arguments, and bits that must be exact.
 * Labels: quick device sanitizer fake. */
#include "core/base/base.h"
#include "device_support.h"
#include "trace_support.h"

#include <stdlib.h>

/* ---- identity ---- */

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
            int wanted = 1 + call % 3;
            assert_int_equal(etch_call_n(f, &x, 1, out, wanted), ETCH_OK);
            returns_some(NULL, &x, 1, expected, wanted);
            for (int i = 0; i < wanted; i++) assert_same(out[i], expected[i]);
        }
        assert_counts(f, 3, 6);
        etch_function_free(f);
    }
}

static etch_status two_results(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    assert_int_equal(nin, 1);
    assert_int_equal(nout, 2);
    out[0] = etch_mul_scalar(in[0], *(double *)ctx);
    out[1] = etch_sum(out[0]);
    return out[1] ? ETCH_OK : etch_last_status();
}

TEST(general_form) {
    ETCH_SCOPE {
        double factor = 3;
        etch_function *f = etch_compile(two_results, .ctx = &factor);
        etch_tensor *x = arange_f32(3, 3), *out[2];
        for (int call = 0; call < 4; call++) {
            factor = call;
            assert_int_equal(etch_call_n(f, &x, 1, out, 2), ETCH_OK);
            etch_tensor *expected = etch_mul_scalar(x, factor);
            assert_same(out[0], expected);
            assert_same(out[1], etch_sum(expected));
        }
        assert_counts(f, 1, 3);
        etch_function_free(f);
    }
}

static etch_tensor *view_of_input(etch_tensor *x) { return etch_slice(x, 0, 1, 3, 1); }

TEST(output_is_view_of_input) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(view_of_input);
        etch_tensor *x = arange_f32(4, 3);
        for (int call = 0; call < 3; call++) {
            etch_tensor *y = etch_call(f, x);
            assert_true(etch_shares_storage(x, y));
            assert_int_equal(etch_storage_offset(y), 3);
            etch_fill_(y, call);
            assert_true(etch_item(etch_select(etch_select(x, 0, 1), 0, 0)) == call);
        }
        etch_function_free(f);
    }
}

static etch_tensor *kept;

static etch_tensor *same_twice(etch_tensor *x) {
    etch_tensor *a = etch_exp(x);
    etch_tensor *b = etch_exp(x);
    etch_add_scalar_(a, 1);
    kept = etch_retain(b);
    return a;
}

/* Rule 18: two equal subexpressions returned, one then written. */
TEST(rule18_merged_results) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(same_twice);
        etch_tensor *x = arange_f32(3, 3), *expected = etch_exp(x);
        for (int call = 0; call < 4; call++) {
            etch_tensor *a = etch_call(f, x);
            assert_false(etch_shares_storage(a, kept));
            etch_fill_(a, 0);
            assert_same(kept, expected);
            etch_release(kept);
        }
        kept = NULL;
        etch_function_free(f);
    }
}

/* ---- values that escape ---- */

static int call_number;

static etch_tensor *keeps_third(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    if (call_number == 2) kept = etch_retain(y);
    return etch_neg(y);
}

TEST(intermediate_kept_on_the_third_call) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(keeps_third, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 3), *expected = etch_neg(etch_exp(x));
            for (call_number = 0; call_number < 6; call_number++)
                assert_same(etch_call(f, x), expected);
            assert_same(kept, etch_exp(x));
            etch_release(kept);
            kept = NULL;
            assert_counts(f, 2,
                          4); /* the third call ran eagerly; calls 4 to 6 run the second plan */
            etch_function_free(f);
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

/* ---- scopes ---- */

static etch_tensor *inner_scope(etch_tensor *x) {
    etch_tensor *y = NULL;
    ETCH_SCOPE {
        etch_tensor *t = etch_add_scalar(x, 1);
        y = etch_keep(etch_mul(t, t));
    }
    return etch_sub(y, x);
}

/* Rule 4: closing a scope inside the body ends no segment. */
TEST(rule4_inner_scope) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(inner_scope);
        etch_tensor *x = arange_f32(5, 5), *expected = inner_scope(x);
        for (int call = 0; call < 5; call++) assert_same(etch_call(f, x), expected);
        assert_counts(f, 1, 4);
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

static etch_tensor *forgets_to_keep(etch_tensor *x) {
    etch_tensor *y;
    ETCH_SCOPE {
        y = etch_sin(x);
        if (call_number > 3) etch_graph_break("why not");
    }
    return y;
}

/* A result that was released is the error, recorded or matched, and no tensor of a walk's. */
TEST(result_of_closed_scope) {
    for (int way = 0; way < 3; way++)
        ETCH_SCOPE {
            etch_function *f =
                etch_compile(forgets_to_keep, .replay = way == 1, .fullgraph = way == 2);
            etch_tensor *x = arange_f32(3, 3);
            for (call_number = 0; call_number < (way == 2 ? 4 : 8); call_number++) {
                etch_clear_error();
                assert_null(etch_call(f, x));
                assert_int_equal(etch_last_status(), ETCH_ERR_RELEASED);
            }
            etch_function_free(f);
        }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *leaves_scopes_open(etch_tensor *x) {
    for (int i = 0; i < call_number % 3; i++) etch_scope_begin();
    etch_tensor *y = etch_sin(x);
    etch_scope_begin();
    return etch_keep(etch_add(y, x));
}

/* Scopes that the body leaves open are closed for it; its results stay. */
TEST(scopes_left_open) {
    for (int way = 0; way < 3; way++)
        ETCH_SCOPE {
            etch_function *f =
                etch_compile(leaves_scopes_open, .replay = way == 1, .disable = way == 2);
            etch_tensor *x = arange_f32(3, 3), *expected = etch_add(etch_sin(x), x);
            for (call_number = 0; call_number < 7; call_number++)
                assert_same(etch_call(f, x), expected);
            etch_function_free(f);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_function *at_free;

static void computes(void *memory) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        assert_same(etch_call(at_free, x), etch_neg(x));
    }
    free(memory);
    call_number++;
}

static etch_tensor *negated(etch_tensor *x) { return etch_neg(x); }

static etch_tensor *wraps_memory(etch_tensor *x) {
    etch_tensor *y = etch_sin(x);
    ETCH_SCOPE {
        float *memory = calloc(9, sizeof *memory);
        etch_tensor *w = etch_wrap_host(memory, ETCH_F32, ETCH_SHAPE(3, 3), computes, memory);
        y = etch_keep(etch_add(y, w));
    }
    return etch_mul(y, x);
}

/* What the function computes that frees wrapped memory is no part of the trace. */
TEST(freeing_memory_may_compute) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        at_free = etch_compile(negated);
        etch_function *f = etch_compile(wraps_memory);
        etch_tensor *x = arange_f32(3, 3), *expected = etch_mul(etch_sin(x), x);
        call_number = 0;
        for (int call = 0; call < 5; call++) assert_same(etch_call(f, x), expected);
        assert_int_equal(call_number, 5);
        etch_function_free(f);
        etch_function_free(at_free);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- in place of arguments ---- */

/* Writes a result before it reads the argument that may lie in the same place. */
static etch_status step(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    (void)ctx, (void)nin, (void)nout;
    out[0] = etch_mul_scalar(in[1], 1);
    out[1] = etch_add(in[0], in[1]);
    return out[1] ? ETCH_OK : etch_last_status();
}

/* A step of a state, whose lists of arguments and results are one, or have entries in common. */
TEST(results_in_place_of_arguments) {
    static const double fibonacci[] = {0, 1, 1, 2, 3, 5, 8, 13, 21};
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(step, .backend = test_backends[b]);
            etch_tensor *s[3] = {etch_full(ETCH_F32, ETCH_SHAPE(2), 0),
                                 etch_full(ETCH_F32, ETCH_SHAPE(2), 1), NULL};
            for (int i = 1; i < 8; i++) {
                assert_int_equal(etch_call_n(f, s, 2, s, 2), ETCH_OK);
                assert_true(etch_item(etch_select(s[0], 0, 1)) == fibonacci[i]);
                assert_true(etch_item(etch_select(s[1], 0, 1)) == fibonacci[i + 1]);
            }
            assert_counts(f, 1, 6);
            etch_tensor *first = s[0];
            assert_int_equal(etch_call_n(f, s, 2, s + 1, 2), ETCH_OK);
            assert_ptr_equal(s[0], first);
            assert_true(etch_item(etch_select(s[2], 0, 0)) == 34);
            etch_tensor *before[3] = {s[0], etch_zeros(ETCH_F32, ETCH_SHAPE(3)), s[2]};
            s[1] = before[1]; /* no sum with that */
            assert_true(etch_call_n(f, s, 2, s + 1, 2) != ETCH_OK);
            assert_ptr_equal(s[0], before[0]);
            assert_ptr_equal(s[1], before[1]);
            assert_null(s[2]);
            etch_clear_error();
            etch_function_free(f);
        }
}

/* More of them than are copied to the stack; where memory for that fails, so does the call. */
static etch_status rotate(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    (void)ctx;
    for (int i = 0; i < nout; i++) out[i] = etch_add_scalar(in[(i + 1) % nin], 1);
    return out[nout - 1] ? ETCH_OK : etch_last_status();
}

TEST(many_results_in_place) {
    ETCH_SCOPE {
        enum { N = 40 };
        etch_function *f = etch_compile(rotate);
        etch_tensor *s[N];
        for (int i = 0; i < N; i++) s[i] = etch_full(ETCH_F32, ETCH_SHAPE(2), i);
        for (int call = 1; call <= 3; call++) {
            assert_int_equal(etch_call_n(f, s, N, s, N), ETCH_OK);
            for (int i = 0; i < N; i++)
                assert_true(etch_item(etch_select(s[i], 0, 1)) == (i + call) % N + call);
        }
        etch_tensor *first = s[0];
        etch__fail_allocation(0);
        assert_int_equal(etch_call_n(f, s, N, s, N), ETCH_ERR_OUT_OF_MEMORY);
        etch__fail_allocation(-1);
        assert_ptr_equal(s[0], first);
        etch_clear_error();
        etch_function_free(f);
    }
}

/* out of a boxed call is an entry of its list. */
TEST(boxed_result_in_place_of_an_argument) {
    ETCH_SCOPE {
        etch_tensor *list[2] = {arange_f32(2, 3), arange_f32(2, 3)};
        etch_value args[] = {{.tag = ETCH_VALUE_TENSORS, .tensors = {list, 2}}};
        etch_tensor *wanted = etch_cat(list, 2, 0);
        assert_int_equal(etch_op_call(etch_op_find("cat"), args, 1, list, 1), ETCH_OK);
        assert_same(list[0], wanted);
    }
}

/* ---- exact bits ---- */

/* The same numbers through an offset, a flip, a step, zero strides and a shift over itself. */
static etch_tensor *views_of_every_kind(etch_tensor *x) {
    etch_tensor *offset = etch_slice(x, 0, 2, ETCH_ABSENT, 1);
    etch_tensor *flipped = etch_slice(offset, 0, ETCH_ABSENT, ETCH_ABSENT, -1);
    etch_tensor *stepped = etch_slice(x, 0, 7, ETCH_ABSENT, -2);
    etch_tensor *wide = etch_expand(etch_select(x, 0, 3), ETCH_SHAPE(4));
    etch_tensor *sum = etch_add(etch_slice(flipped, 0, 0, 4, 1), stepped);
    return etch_add(sum, wide);
}

TEST(exact_views) {
    static const int32_t values[] = {0, 1, 2, 3, 4, 5, 6, 7}, want[] = {17, 14, 11, 8};
    ETCH_SCOPE {
        etch_tensor *x = etch_from_host(values, ETCH_I32, ETCH_SHAPE(8));
        etch_tensor *right = etch_from_host(want, ETCH_I32, ETCH_SHAPE(4));
        assert_same(views_of_every_kind(x), right);
        for (int b = 0; b < 2; b++) {
            etch_function *f = etch_compile(views_of_every_kind, .backend = test_backends[b]);
            for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), right);
            assert_counts(f, 1, 2);
            etch_function_free(f);
        }
    }
}

static etch_tensor *twice(etch_tensor *x) { return etch_mul_scalar(x, 2); }

/* Denormals survive before any generated code is loaded, in it, and eagerly afterwards. */
TEST(exact_denormals_before_and_after) {
    ETCH_SCOPE {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(100), 1e-42);
        assert_true(etch_item(etch_max(twice(x))) > 1.9e-42);
        etch_function *f = etch_compile(twice);
        for (int call = 0; call < 2; call++)
            assert_true(etch_item(etch_min(etch_call(f, x))) > 1.9e-42);
        assert_counts(f, 1, 1);
        assert_true(etch_item(etch_max(twice(x))) > 1.9e-42);
        etch_function_free(f);
    }
}
