/* Writes that fail: what lies over the memory that was to be written, and comes later in the order
 * of the program, fails as well; the call fails with the first error; tensors of the caller that
 * depend on it keep what they held. Each program is called with good values until it runs compiled,
 * then with bad ones, on both backends and by every way to end a segment.
 * Labels: fake. */
#include <fenv.h>
#include <string.h>

#include "core/base/base.h"
#include "device_support.h"
#include "trace_support.h"

enum { ROWS = 4, COLUMNS = 6 };

static etch_tensor *captured; /* of the caller, never depends on what fails */
static etch_tensor *result;   /* of the caller, gets what the program computes */
static etch_tensor *kept, *early;
static bool late_now;

static etch_tensor *put(etch_tensor *t, etch_tensor *index) {
    return etch_index_fill_(t, 0, index, 9);
}

/* ---- programs: x of the caller, an index; none looks at what an operator in place returns ---- */

static etch_tensor *through_a_view(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    return etch_add_scalar(c, 1);
}

static etch_tensor *through_the_base(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2), *v = etch_slice(c, 1, 0, 3, 1);
    put(c, i);
    return etch_neg(v);
}

static etch_tensor *seen_in_another_view(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    etch_tensor *v = etch_slice(c, 1, 0, 3, 1), *u = etch_t(c);
    put(v, i);
    return etch_sum(etch_select(u, 0, 1));
}

static etch_tensor *view_made_later(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(c, i);
    return etch_select(etch_slice(c, 0, 0, 2, 1), 1, 0);
}

static etch_tensor *returns_the_base(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    return c;
}

static etch_tensor *writes_the_argument(etch_tensor *x, etch_tensor *i) {
    put(x, i);
    return etch_add_scalar(x, 1);
}

static etch_tensor *through_a_view_of_the_argument(etch_tensor *x, etch_tensor *i) {
    put(etch_slice(x, 1, 0, 3, 1), i);
    return etch_add_scalar(x, 1);
}

/* Nothing that is returned depends on it. */
static etch_tensor *writes_aside(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    return etch_neg(captured);
}

static etch_tensor *copies_to_the_caller(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    etch_copy_(result, c);
    return etch_neg(captured);
}

static etch_tensor *adds_to_the_caller(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    etch_add_(etch_slice(result, 0, 0, 2, 1), etch_slice(c, 0, 1, 3, 1));
    return etch_add_scalar(result, 1);
}

static etch_tensor *writes_twice(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    etch_add_scalar_(etch_slice(c, 0, 0, 2, 1), 1);
    return etch_exp(c);
}

/* What is written fails before the write does. */
static etch_tensor *writes_a_failure(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    etch_tensor *picked = etch_index_select(captured, 0, i);
    etch_copy_(etch_slice(c, 0, 0, 1, 1), picked);
    return etch_add_scalar(c, 1);
}

/* The failure is behind a break, before one, or seen after one. */
static etch_tensor *breaks_behind(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    etch_graph_break("test");
    etch_tensor *y = etch_add_scalar(c, 1);
    if (y) etch_copy_(result, y);
    return y;
}

static etch_tensor *breaks_before(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2), *u = etch_t(c);
    etch_graph_break("test");
    put(etch_slice(c, 1, 0, 3, 1), i);
    etch_tensor *y = etch_neg(u);
    etch_graph_break("test");
    etch_tensor *z = etch_add(u, y);
    if (z) etch_copy_(result, etch_t(z));
    return z;
}

static etch_tensor *argument_behind_a_break(etch_tensor *x, etch_tensor *i) {
    put(x, i);
    etch_graph_break("test");
    etch_tensor *y = etch_mul_scalar(etch_slice(x, 0, 0, 2, 1), 2);
    if (y) etch_add_(etch_slice(result, 0, 0, 2, 1), y);
    return y;
}

/* The body clears the error: what depends on the write fails with another. */
static etch_tensor *clears_the_error(etch_tensor *x, etch_tensor *i) {
    put(x, i);
    etch_flush();
    etch_clear_error();
    return etch_add_scalar(x, 1);
}

/* Used late: what was computed from it before the write is there. */
static etch_tensor *used_before(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2), *before = etch_neg(c);
    etch_graph_break("test");
    put(etch_slice(c, 1, 0, 3, 1), i);
    etch_flush();
    early = before ? etch_retain(before) : NULL;
    return etch_exp(c);
}

/* Another operator than the traces have, behind the write. */
static etch_tensor *diverges_behind(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    etch_tensor *y = late_now ? etch_exp(c) : etch_neg(c);
    if (y) etch_copy_(result, y);
    return y;
}

/* The mode of the processor is another one from there on, which ends the segment. */
static etch_tensor *rounds_up_behind(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2), *picked = etch_index_select(c, 0, i);
    fesetround(FE_UPWARD);
    etch_tensor *turned = etch_t(picked);
    fesetround(FE_TONEAREST);
    return turned;
}

static etch_tensor *outlives(etch_tensor *x, etch_tensor *i) {
    etch_tensor *c = etch_mul_scalar(x, 2);
    put(etch_slice(c, 1, 0, 3, 1), i);
    kept = etch_retain(etch_slice(c, 0, 1, 3, 1));
    return etch_exp(c);
}

/* ---- a kernel of the user that writes and fails ---- */

static etch_status sets_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (args[1].scalar.d > 100) return etch_set_error(ETCH_ERR_USER, "too large");
    return etch_fill_(out[0], args[1].scalar) ? ETCH_OK : etch_last_status();
}

static etch_tensor *set_first(etch_tensor *t, double v) {
    const etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = t},
                               {.tag = ETCH_VALUE_SCALAR, .scalar = etch_scalar_real(v)}};
    etch_tensor *out = NULL;
    etch_op_call(etch_op_find("failed::set"), args, 2, &out, 1);
    return out;
}

static etch_tensor *kernel_through_a_view(etch_tensor *x, etch_tensor *i) {
    (void)i;
    etch_tensor *c = etch_mul_scalar(x, 2);
    set_first(etch_slice(c, 1, 0, 3, 1), late_now ? 1000 : 5);
    etch_copy_(result, c);
    return etch_add_scalar(c, 1);
}

static etch_tensor *kernel_writes_the_argument(etch_tensor *x, etch_tensor *i) {
    (void)i;
    set_first(x, late_now ? 1000 : 5);
    etch_copy_(result, x);
    return etch_add_scalar(x, 1);
}

/* ---- the table ---- */

typedef struct program {
    const char *name;
    etch_fn2 body;
    etch_status status;
    bool breaks, pure; /* of the arguments alone: may be replayed */
} program;
#define P(name)                                                                                    \
    { #name, name, ETCH_ERR_INDEX, false, false }
#define R(name)                                                                                    \
    { #name, name, ETCH_ERR_INDEX, false, true }
#define B(name)                                                                                    \
    { #name, name, ETCH_ERR_INDEX, true, false }
#define K(name)                                                                                    \
    { #name, name, ETCH_ERR_USER, false, false }
static const program programs[] = {
    R(through_a_view),
    R(through_the_base),
    R(seen_in_another_view),
    R(view_made_later),
    R(returns_the_base),
    R(writes_the_argument),
    R(through_a_view_of_the_argument),
    P(writes_aside),
    P(copies_to_the_caller),
    P(adds_to_the_caller),
    R(writes_twice),
    P(writes_a_failure),
    B(breaks_behind),
    B(breaks_before),
    B(argument_behind_a_break),
    B(clears_the_error),
    B(used_before),
    P(diverges_behind),
    B(rounds_up_behind),
    P(outlives),
    K(kernel_through_a_view),
    K(kernel_writes_the_argument),
};

typedef struct state {
    etch_tensor *x, *index, *captured, *result;
} state;

static void drop_kept(void) {
    etch_release(early);
    etch_release(kept);
    early = kept = NULL;
}

static state fresh(int64_t index, int rows) {
    state s;
    s.x = arange_f32(rows, COLUMNS);
    s.index = etch_full(ETCH_I64, ETCH_SHAPE(1), (double)index);
    s.captured = etch_neg(arange_f32(rows, COLUMNS));
    s.result = etch_full(ETCH_F32, ETCH_SHAPE(rows, COLUMNS), 3);
    captured = s.captured, result = s.result;
    drop_kept();
    return s;
}

static void good_call(const program *p, etch_function *f, int rows) {
    state a = fresh(1, rows);
    etch_tensor *want = p->body(a.x, a.index);
    state b = fresh(1, rows);
    etch_tensor *got = etch_call(f, b.x, b.index);
    if (!got) print_message("%s: %s\n", p->name, etch_last_error());
    assert_same(got, want);
    assert_same(a.x, b.x);
    assert_same(a.result, b.result);
}

static void bad_call(const program *p, etch_function *f, int rows) {
    state a = fresh(1, rows), b = fresh(1000, rows);
    captured = b.captured, result = b.result;
    late_now = true;
    etch_tensor *got = etch_call(f, b.x, b.index);
    late_now = false;
    assert_null(got);
    if (p->body != clears_the_error) assert_int_equal(etch_last_status(), p->status);
    etch_clear_error();
    assert_same(b.x, a.x);
    assert_same(b.captured, a.captured);
    assert_same(b.result, a.result);
    if (early) { assert_same(early, etch_neg(etch_mul_scalar(a.x, 2))); }
    if (kept) {
        assert_null(etch_neg(kept));
        etch_clear_error();
    }
    drop_kept();
}

static void check(const program *p, etch_compile_options o) {
    o.struct_size = sizeof o;
    ETCH_SCOPE {
        etch_function *f = etch_compile_fn2(p->body, &o);
        for (int call = 0; call < 9; call++) {
            int rows = o.dynamic == ETCH_DYNAMIC_ON ? ROWS + call : ROWS;
            if (call % 3 == 2) bad_call(p, f, rows);
            else good_call(p, f, rows), drop_kept();
        }
        assert_true(etch_function_counters(f).plan_runs > 0);
        etch_function_free(f);
    }
}

static void check_all(etch_compile_options o) {
    test_set_blocking(true);
    for (int b = 0; b < 2; b++)
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
            if ((o.fullgraph && programs[i].breaks) || (o.replay && !programs[i].pure)) continue;
            o.backend = test_backends[b];
            check(&programs[i], o);
        }
    test_set_blocking(false);
}

TEST(plain) { check_all((etch_compile_options){0}); }
TEST(fullgraph) { check_all((etch_compile_options){.fullgraph = true}); }
TEST(replayed) { check_all((etch_compile_options){.replay = true}); }
TEST(dynamic) { check_all((etch_compile_options){.dynamic = ETCH_DYNAMIC_ON}); }

/* A plan of a disabled function's caller goes on with what the failed inner call left. */
static etch_function *inner, *disabled;
static etch_tensor *call_inner(etch_tensor *x, etch_tensor *i) { return etch_call(inner, x, i); }
static etch_tensor *asks_inner(etch_tensor *x, etch_tensor *i) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *z = etch_call(disabled, x, i);
    return z ? etch_add(y, z) : NULL;
}
static const program nested = {"nested", asks_inner, ETCH_ERR_INDEX, true, false};

TEST(in_an_inner_run) {
    inner = etch_compile(writes_the_argument);
    disabled = etch_disable(call_inner, false);
    test_set_blocking(true);
    check(&nested, (etch_compile_options){0});
    test_set_blocking(false);
    etch_function_free(inner);
    etch_function_free(disabled);
}

/* After the call has failed its arguments can be used again. */
TEST(arguments_are_usable_afterwards) {
    test_set_blocking(true);
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes_the_argument);
        for (int i = 0; i < 3; i++) good_call(&programs[5], f, ROWS);
        state s = fresh(1000, ROWS);
        assert_null(etch_call(f, s.x, s.index));
        etch_clear_error();
        assert_non_null(etch_neg(s.x));
        s.index = etch_full(ETCH_I64, ETCH_SHAPE(1), 0);
        assert_non_null(etch_call(f, s.x, s.index));
        etch_function_free(f);
    }
    test_set_blocking(false);
}

/* Doubles x, of which a part is the segment's first input, and then fails. */
static etch_tensor *writes_what_lies_under(etch_tensor *x, etch_tensor *i) {
    etch_tensor *rows = etch_slice(x, 0, 1, ROWS, 1);
    etch_graph_break("test");
    etch_tensor *y = etch_neg(rows);
    etch_mul_scalar_(x, 2);
    return etch_add(y, etch_index_select(captured, 0, i));
}

/* The segment is computed by its plan and then one by one; the write is made once, to all of x. */
TEST(writes_before_the_failure) {
    static const char *const names[] = {"eager", "aot_eager", "native"};
    test_set_blocking(true);
    for (int b = 0; b < 3; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(writes_what_lies_under, .backend = names[b]);
            for (int call = 0; call < 6; call++) {
                state a = fresh(call < 3 ? 1 : 1000, ROWS), want = fresh(1, ROWS);
                captured = a.captured;
                assert_int_equal(etch_call(f, a.x, a.index) == NULL, call >= 3);
                etch_clear_error();
                assert_same(a.x, etch_mul_scalar(want.x, 2));
            }
            assert_true(etch_function_counters(f).plan_runs > 0);
            etch_function_free(f);
        }
    test_set_blocking(false);
}

/* ---- no memory ---- */

static bool read_stale;

/* Reads what it wrote, and clears whatever error there is: the read is right, or fails. */
static etch_tensor *reads_its_write(etch_tensor *x, etch_tensor *i) {
    float seen[ROWS * COLUMNS];
    etch_tensor *y = etch_mul_scalar(x, 2);
    if (!put(etch_slice(x, 1, 0, 3, 1), i)) return NULL;
    if (etch_to_host(x, seen, sizeof seen) == ETCH_OK && seen[COLUMNS] != 9) read_stale = true;
    etch_clear_error();
    etch_copy_(result, etch_exp(captured));
    etch_flush();
    etch_clear_error();
    return etch_neg(y);
}

/* True: so many allocations were asked for that some failed. */
static bool call_without_memory(etch_function *f, int64_t from, int64_t count) {
    state a = fresh(1, ROWS);
    etch_tensor *want = reads_its_write(a.x, a.index);
    state b = fresh(1, ROWS);
    etch__fail_allocations(from, count);
    etch_tensor *got = etch_call(f, b.x, b.index);
    int64_t asked = etch__fail_allocations(-1, 1);
    etch_clear_error();
    assert_false(read_stale);
    if (got) {
        assert_same(got, want);
        assert_same(a.x, b.x);
        assert_same(a.result, b.result);
    }
    return asked > from;
}

/* However many allocations in a row fail, and from whichever on. */
TEST(without_memory) {
    test_set_blocking(true);
    for (int native = 0; native < 2; native++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(reads_its_write, .backend = test_backends[native]);
            for (int64_t count = 1; count <= 12; count++)
                for (int64_t from = 0, more = 1; more; from++)
                    ETCH_SCOPE {
                        for (int i = 0; i < 2; i++) assert_true(!call_without_memory(f, 9999, 1));
                        more = call_without_memory(f, from, count);
                    }
            assert_true(etch_function_counters(f).plan_runs > 0);
            etch_function_free(f);
        }
    test_set_blocking(false);
}

int main(int argc, char **argv) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = sets_first};
    if (!etch_op_register("failed::set(Tensor(a!) self, Scalar v) -> Tensor(a!)", &d)) return 1;
    return run_suite(argc, argv);
}
