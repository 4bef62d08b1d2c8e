/* What kernels of the user keep: it goes on holding what it held when the kernel returned, whatever
 * is written later, eagerly and compiled, of custom operators and overrides: operands, results, the
 * argument that is written, views, members of lists. A handler of a mode gets the caller's own.
 * Labels: fake. */
#include <string.h>

#include <etch/mode.h>

#include "core/base/base.h"
#include "device_support.h"
#include "trace_support.h"

enum { CALLS = 5 };

typedef enum keep_what {
    OPERAND,
    RESULT,
    VIEW_OF_OPERAND,
    VIEW_OF_RESULT,
    SECOND,
    NOTHING
} keep_what;

static keep_what what;
static bool keeping;
static etch_tensor *kept;

static etch_tensor *member(const etch_value *arg, int i) {
    return arg->tag == ETCH_VALUE_TENSORS ? arg->tensors.items[i] : arg[i].tensor;
}

/* out = a + b, with a in a list or not; keeps something. */
static etch_status keeps(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    etch_tensor *a = member(args, 0), *b = member(args, 1);
    etch_tensor *sum = etch_add(a, b);
    if (!sum || !etch_copy_(out[0], sum)) return etch_last_status();
    if (!keeping) return ETCH_OK;
    keeping = false;
    switch (what) {
    case OPERAND: kept = a; break;
    case SECOND: kept = b; break;
    case RESULT: kept = out[0]; break;
    case VIEW_OF_OPERAND: kept = etch_slice(etch_t(a), 0, 1, 3, 1); break;
    case VIEW_OF_RESULT: kept = etch_select(out[0], 0, 1); break;
    case NOTHING: kept = NULL; break;
    }
    etch_retain(kept);
    return ETCH_OK;
}

static etch_status like_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(member(args, 0));
    out->sizes = etch_sizes(member(args, 0));
    return ETCH_OK;
}

static etch_tensor *call_two(const char *name, etch_tensor *a, etch_tensor *b) {
    const etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                               {.tag = ETCH_VALUE_TENSOR, .tensor = b}};
    etch_tensor *out = NULL;
    etch_op_call(etch_op_find(name), args, 2, &out, 1);
    return out;
}

static etch_tensor *call_list(etch_tensor *a, etch_tensor *b) {
    etch_tensor *list[] = {a, b};
    const etch_value arg = {.tag = ETCH_VALUE_TENSORS, .tensors = {list, 2}};
    etch_tensor *out = NULL;
    etch_op_call(etch_op_find("kept::list"), &arg, 1, &out, 1);
    return out;
}

/* ---- programs: all that the kernel got is written afterwards ---- */

static etch_tensor *spoil(etch_tensor *x, etch_tensor *y, etch_tensor *out) {
    etch_add_scalar_(x, 100);
    etch_mul_scalar_(y, -3);
    etch_fill_(etch_slice(out, 0, 0, 1, 1), 7);
    return etch_add(etch_add(x, y), out);
}

/* Operands of the caller, and of the function itself; one memory under both. */
static etch_tensor *of_arguments(etch_tensor *x, etch_tensor *y) {
    etch_tensor *out = call_two("kept::two", x, y);
    return spoil(x, y, out);
}
static etch_tensor *of_intermediates(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_exp(x), *b = etch_neg(y), *out = call_two("kept::two", a, b);
    return spoil(a, b, out);
}
static etch_tensor *of_views(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_slice(x, 0, 1, 4, 1), *b = etch_slice(x, 0, 0, 3, 1);
    etch_tensor *out = call_two("kept::two", a, b);
    etch_add_scalar_(x, 100);
    etch_mul_scalar_(y, -3);
    etch_fill_(etch_slice(out, 0, 0, 1, 1), 7);
    return etch_add(out, a);
}
static etch_tensor *of_lists(etch_tensor *x, etch_tensor *y) {
    etch_tensor *out = call_list(x, y);
    return spoil(x, y, out);
}
static etch_tensor *written(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_neg(x), *out = call_two("kept::into", a, y);
    return spoil(x, y, out);
}
static etch_tensor *written_argument(etch_tensor *x, etch_tensor *y) {
    etch_tensor *out = call_two("kept::into", x, y);
    etch_tensor *twice = etch_add(out, out);
    etch_add_scalar_(x, 100);
    etch_mul_scalar_(y, -3);
    return etch_add(twice, x);
}
static etch_tensor *overridden(etch_tensor *x, etch_tensor *y) {
    etch_tensor *out = etch_mul(x, y);
    return spoil(x, y, out);
}

static const etch_fn2 programs[] = {of_arguments, of_intermediates, of_views,  of_lists,
                                    written,      written_argument, overridden};

/* ---- what is kept against a clone that is kept ---- */

/* The contents when the kernel returned: the same call with everything cloned first, nothing
 * written behind it. */
static etch_tensor *expected(int p, etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = p == 1 ? etch_exp(x) : p == 4 ? etch_neg(x) : etch_clone(x);
    etch_tensor *b = p == 1 ? etch_neg(y) : etch_clone(y);
    if (p == 2)
        a = etch_clone(etch_slice(x, 0, 1, 4, 1)), b = etch_clone(etch_slice(x, 0, 0, 3, 1));
    etch_tensor *out = etch_add(a, b);
    if (p == 4 || p == 5) a = out;
    switch (what) {
    case OPERAND: return a;
    case SECOND: return b;
    case RESULT: return out;
    case VIEW_OF_OPERAND: return etch_slice(etch_t(a), 0, 1, 3, 1);
    case VIEW_OF_RESULT: return etch_select(out, 0, 1);
    case NOTHING: break;
    }
    return NULL;
}

static void check_call(int p, etch_function *f, int i) {
    etch_tensor *x = etch_add_scalar(arange_f32(4, 6), i), *y = etch_exp(x);
    etch_tensor *want = expected(p, x, y), *a = etch_clone(x), *b = etch_clone(y);
    etch_tensor *result = programs[p](a, b);
    assert_non_null(result);
    keeping = true;
    etch_tensor *got = etch_call(f, x, y);
    if (!got) print_message("program %d: %s\n", p, etch_last_error());
    assert_same(got, result);
    assert_same(x, a);
    assert_same(y, b);
    assert_false(keeping);
    if (want) {
        assert_same(kept, want);
        etch_add_scalar_(kept, 1); /* it is the keeper's own */
        assert_same(x, a);
        assert_same(got, result);
    }
    etch_release(kept);
    kept = NULL;
}

static void check_program(int p, etch_compile_options o) {
    o.struct_size = sizeof o;
    etch_function *f = etch_compile_fn2(programs[p], &o);
    for (int i = 0; i < CALLS; i++)
        ETCH_SCOPE { check_call(p, f, i); }
    etch_function_free(f);
}

static void check_all(int from, int to) {
    for (int w = OPERAND; w <= NOTHING; w++)
        for (int p = from; p < to; p++) {
            what = (keep_what)w;
            check_program(p, (etch_compile_options){.disable = true});
            for (int b = 0; b < 2; b++)
                check_program(p, (etch_compile_options){.backend = test_backends[b]});
        }
}

TEST(custom_kernels_keep) { check_all(0, 6); }

TEST(overrides_keep) {
    const char *device = test_device() == ETCH_CPU ? "cpu" : "cuda";
    etch_override *o = etch_op_override(etch_op_find("mul.Tensor"), device, keeps, NULL);
    assert_non_null(o);
    check_all(6, 7);
    etch_op_override_undo(o);
}

/* Nothing is copied where nothing is kept: no allocation of the operands' size. */
TEST(nothing_kept_is_nothing_copied) {
    ETCH_SCOPE {
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(256, 256)), *y = etch_clone(x);
        what = NOTHING, keeping = false;
        call_two("kept::two", x, y);
        etch_memory_reset_peak();
        int64_t live = etch_memory().bytes_live;
        call_two("kept::two", x, y); /* its result and what the kernel computes */
        assert_true(etch_memory().bytes_peak <= live + (2 << 18) + (1 << 17));
    }
}

/* Operands over one memory stay so, and lists may be long. */
static bool shared;
static etch_status looks(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    shared = etch_shares_storage(member(args, 0), member(args, 1));
    kept = etch_retain(args->tensors.items[args->tensors.count - 1]);
    return etch_fill_(out[0], (double)args->tensors.count) ? ETCH_OK : etch_last_status();
}
TEST(long_lists) {
    ETCH_SCOPE {
        enum { MANY = 3000 };
        static etch_tensor *list[MANY];
        etch_tensor *base = etch_zeros(ETCH_F32, ETCH_SHAPE(MANY, 2));
        for (int i = 0; i < MANY; i++) list[i] = etch_select(base, 0, i);
        const etch_value arg = {.tag = ETCH_VALUE_TENSORS, .tensors = {list, MANY}};
        etch_tensor *out = NULL;
        assert_int_equal(etch_op_call(etch_op_find("kept::look"), &arg, 1, &out, 1), ETCH_OK);
        assert_true(shared);
        etch_fill_(base, 5);
        assert_true(etch_item(etch_sum(kept)) == 0);
        etch_release(kept);
        kept = NULL;
    }
}

/* An empty tensor has sizes that reach backwards, and no memory. */
TEST(nothing_is_kept_of_nothing) {
    ETCH_SCOPE {
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(0, 3)), *y = etch_clone(x);
        what = OPERAND, keeping = true;
        assert_non_null(call_two("kept::two", x, y));
        assert_int_equal(etch_numel(kept), 0);
        assert_true(etch_bitwise_equal(kept, x));
        etch_release(kept);
        kept = NULL;
    }
}

/* A handler is code of the caller's side: what it keeps is the caller's tensor. */
static etch_status handler(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx;
    if (!kept && etch_op_is(op, "exp")) kept = etch_retain(args[0].tensor);
    return etch_redispatch(op, args, nargs, out, nout);
}
TEST(handlers_keep_the_callers_own) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(4, 6);
        etch_mode *mode = etch_mode_new(handler, NULL);
        ETCH_WITH_MODE (mode) { etch_exp(x); }
        assert_ptr_equal(kept, x);
        etch_fill_(x, 2);
        assert_true(etch_item(etch_sum(kept)) == 48);
        etch_release(kept);
        kept = NULL;
        etch_mode_free(mode);
    }
}

/* ---- no memory ---- */

static etch_tensor *neg_of_two(etch_tensor *x) { return etch_neg(call_two("kept::two", x, x)); }

/* What is kept without memory for its copy has failed, or is a view, which shows something. */
TEST(nothing_is_kept_without_memory) {
    for (int w = OPERAND; w <= VIEW_OF_RESULT; w++)
        for (int64_t from = 0, more = 1; more; from++)
            ETCH_SCOPE {
                etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3, 3));
                what = (keep_what)w, keeping = true, kept = NULL;
                etch__fail_allocation(from);
                etch_tensor *y = neg_of_two(x);
                more = etch__fail_allocation(-1) > from;
                etch_clear_error();
                etch_zero_(x);
                double sum = kept ? etch_item(etch_sum(kept)) : 0;
                bool sure = y || w == OPERAND || w == RESULT; /* else a view of what is written */
                if (kept && sure && etch_last_status() == ETCH_OK)
                    assert_true(sum == (w == OPERAND ? 9 : w == RESULT ? 18 : 6));
                assert_true(!y || !kept || etch_last_status() == ETCH_OK);
                etch_release(kept);
                etch_clear_error();
            }
}

int main(int argc, char **argv) {
    etch_op_definition d = {
        .struct_size = sizeof d, .cpu = keeps, .cuda = keeps, .shape = like_first};
    etch_op_definition l = {
        .struct_size = sizeof l, .cpu = looks, .cuda = looks, .shape = like_first};
    if (!etch_op_register("kept::two(Tensor a, Tensor b) -> Tensor", &d) ||
        !etch_op_register("kept::list(Tensor[] a) -> Tensor", &d) ||
        !etch_op_register("kept::look(Tensor[] a) -> Tensor", &l) ||
        !etch_op_register("kept::into(Tensor(a!) self, Tensor b) -> Tensor(a!)", &d))
        return 1;
    return run_suite(argc, argv);
}
