/* Verified traces: programs whose hidden state, captured tensors, scalars and escaping results
 * change from call to call give what they give uncompiled, with exactly as many graphs as there are
 * different traces. Each program runs on both backends.
 * Labels: quick device sanitizer fake. */
#include "core/base/base.h"
#include "device_support.h"
#include "trace_support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the programs ---- */

static int call_number;
static etch_tensor *global_tensor, *kept;
static double global_scalar;

static etch_tensor *alternating(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    if (call_number % 2) return etch_mul(y, x);
    etch_tensor *z = etch_sin(y);
    return etch_sub(z, x);
}

static etch_tensor *captured(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, global_tensor);
    return etch_add(y, global_tensor);
}

static etch_tensor *scaled(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, global_scalar);
    return etch_add_scalar(y, 1);
}

static etch_tensor *keeps_once(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *z = etch_exp(y);
    if (call_number == 2) kept = etch_retain(z);
    return etch_add(z, x);
}

static etch_tensor *reads_and_branches(etch_tensor *x) {
    etch_tensor *sum = etch_sum(x);
    if (etch_item(sum) > 0) return etch_add_scalar(x, 1);
    return etch_sub_scalar(x, 1);
}

static etch_tensor *writes_input(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_add_(x, y);
    return etch_sub(x, y);
}

/* ---- ten calls each ---- */

typedef struct program {
    const char *name;
    etch_fn1 fn;
    int graphs, runs; /* expected over ten calls */
    bool negate;      /* every other argument is negated */
    bool feed_back;   /* the argument lives on from call to call */
} program;

static const program programs[] = {
    {"alternating static counter", alternating, 2, 8, false, false},
    {"captured tensor swapped", captured, 1, 9, false, false},
    {"scalar changes each call", scaled, 1, 9, false, false},
    {"intermediate kept on call 3 only", keeps_once, 2, 8, false, false},
    {"value read and branched on", reads_and_branches, 3, 17, true, false},
    {"input written in place", writes_input, 1, 9, false, true},
};

/* One call of the program number `call`, on argument x. */
static etch_tensor *one_call(etch_function *f, int call, etch_tensor *x) {
    call_number = call;
    global_scalar = 0.5 + call;
    global_tensor = etch_full(ETCH_F32, ETCH_SHAPE(7, 9), 1.5 * call - 4);
    assert_non_null(global_tensor);
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
            etch_tensor *a = p->negate && call % 2 ? etch_neg(x) : p->feed_back ? x : etch_clone(x);
            etch_tensor *b = p->negate && call % 2 ? etch_neg(x2)
                             : p->feed_back        ? x2
                                                   : etch_clone(x2);
            etch_tensor *y = one_call(f, call, a);
            etch_tensor *kept_compiled = kept;
            kept = NULL;
            etch_tensor *expected = one_call(plain, call, b);
            assert_same(y, expected);
            assert_same(a, b);
            if (kept) assert_same(kept_compiled, kept);
            else assert_null(kept_compiled);
            etch_release(kept_compiled);
            etch_release(kept);
            kept = NULL;
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

/* ---- loops that break ---- */

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

/* ---- raw memory ---- */

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

/* ---- the rules of the cursor ---- */

static etch_tensor *identity(etch_tensor *x) { return x; }

TEST(no_operator_no_graph) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(identity);
        etch_tensor *x = arange_f32(2, 2);
        for (int call = 0; call < 3; call++) assert_ptr_equal(etch_call(f, x), x);
        assert_counts(f, 0, 0);
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

/* A view of an argument that itself lies at another offset than the recorded one. */
TEST(offset_is_not_guarded) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(view_of_input);
        etch_tensor *base = arange_f32(12, 3);
        for (int64_t row = 0; row < 8; row++) {
            etch_tensor *x = etch_slice(base, 0, row, row + 4, 1);
            assert_same(etch_call(f, x), view_of_input(x));
            assert_int_equal(etch_storage_offset(etch_call(f, x)), (row + 1) * 3);
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
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

static etch_tensor *two_arguments(etch_tensor *x, etch_tensor *y) {
    etch_add_scalar_(x, 1);
    etch_tensor *z = etch_mul(x, y);
    etch_mul_(y, z);
    return etch_add(x, y);
}

/* Rule 10: storages that are the same or disjoint are guarded; views of one base overlap. */
TEST(rule10_aliases) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(two_arguments, .backend = test_backends[b]);
            etch_function *plain = etch_compile(two_arguments, .disable = true);
            for (int call = 0; call < 12; call++) {
                etch_tensor *base = arange_f32(8, 4), *base2 = etch_clone(base);
                int64_t other = call % 3 == 0   ? 4
                                : call % 3 == 1 ? 0
                                                : 2; /* disjoint, same, overlap */
                etch_tensor *x = etch_slice(base, 0, 0, 4, 1), *x2 = etch_slice(base2, 0, 0, 4, 1);
                etch_tensor *y = etch_slice(base, 0, other, other + 4, 1);
                etch_tensor *y2 = etch_slice(base2, 0, other, other + 4, 1);
                if (call >= 6) y = etch_clone(y), y2 = etch_clone(y2);
                assert_same(etch_call(f, x, y), etch_call(plain, x2, y2));
                assert_same(base, base2);
            }
            assert_int_equal(etch_function_counters(f).graphs, 2); /* one storage, or two */
            etch_function_free(f);
            etch_function_free(plain);
        }
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

/* ---- results and their scopes ---- */

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

static void optimised(void *memory) {
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
        etch_tensor *w = etch_wrap_host(memory, ETCH_F32, ETCH_SHAPE(3, 3), optimised, memory);
        y = etch_keep(etch_add(y, w));
    }
    return etch_mul(y, x);
}

/* What the function optimised that frees wrapped memory is no part of the trace. */
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

/* ---- options ---- */

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
        execl("/proc/self/exe", "test_trace", "--short-segments", NULL);
        _exit(9);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

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

static etch_tensor *breaks_after_write(etch_tensor *x) {
    etch_mul_scalar_(x, 2);
    last_value = etch_item(etch_sum(x));
    return etch_neg(x);
}

/* A break is an error before any tensor was changed. */
TEST(fullgraph_break) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(breaks_after_write, .fullgraph = true);
        etch_tensor *x = arange_f32(5, 5), *before = etch_clone(x);
        for (int call = 0; call < 3; call++) {
            etch_clear_error();
            assert_null(etch_call(f, x));
            assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
            assert_non_null(strstr(etch_last_error(), "item"));
            assert_non_null(strstr(etch_last_error(), "etch_where"));
            assert_same(x, before);
        }
        assert_counts(f, 0, 0);
        etch_function_free(f);
    }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
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

/* ---- random numbers, states, call sites ---- */

static etch_tensor *noisy(etch_tensor *x) {
    etch_tensor *r = etch_randn(ETCH_F32, ETCH_SHAPE(4, 4));
    etch_tensor *y = etch_add(x, r);
    etch_tensor *s = etch_rand(ETCH_F32, ETCH_SHAPE(4, 4));
    return etch_mul(y, s);
}

TEST(random_stream) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(noisy, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(4, 4), *got[5];
            etch_manual_seed(7);
            for (int call = 0; call < 5; call++) got[call] = etch_call(f, x);
            etch_manual_seed(7);
            for (int call = 0; call < 5; call++) {
                assert_same(got[call], noisy(x));
                if (call) assert_false(etch_bitwise_equal(got[call], got[call - 1]));
            }
            assert_counts(f, 1, 4);
            etch_function_free(f);
        }
}

static etch_tensor *mean_of_ints(etch_tensor *x) { return etch_div(x, x); }

/* Rule 2: the default dtype is part of the state word. */
TEST(rule2_default_dtype) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(mean_of_ints);
        etch_tensor *x = etch_arange(ETCH_I32, 1, 9, 1);
        for (int call = 0; call < 6; call++) {
            etch_set_default_dtype(call % 2 ? ETCH_F64 : ETCH_F32);
            etch_tensor *y = etch_call(f, x);
            assert_int_equal(etch_dtype_of(y), call % 2 ? ETCH_F64 : ETCH_F32);
        }
        etch_set_default_dtype(ETCH_F32);
        assert_counts(f, 2, 4);
        etch_function_free(f);
    }
}

static etch_tensor *plus_one(etch_tensor *x) { return etch_add_scalar(x, 1); }
static etch_tensor *plus_two(etch_tensor *x) { return etch_add_scalar(x, 2); }

TEST(call_sites) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        for (int call = 0; call < 4; call++) {
            etch_fn1 fn = call % 2 ? plus_one : plus_two;
            etch_tensor *y = ETCH_CALL_COMPILED(fn, x);
            assert_same(y, fn(x));
        }
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

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--short-segments")) return run_short_segments();
    return run_suite(argc, argv);
}
