/* How the processor computes: rounding, denormals as zero and traps, set by the program before a
 * call or in the middle of a body. Compiled code gives eager's bits under each, and nothing traps
 * while operators compute.
 * Labels: optimised. */
#include "device_support.h"
#include "trace_support.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

#include "tracer/learn/learn.h" /* etch__background_wait */

enum { DENORMALS_ZERO = 0x40, TO_NEAREST = 0, DOWN = 0x2000, UP = 0x4000, TO_ZERO = 0x6000 };
enum { FLUSH_TO_ZERO = 0x8000, MODE = 0xe040 };

static const unsigned modes[] = {TO_NEAREST,
                                 DOWN,
                                 UP,
                                 TO_ZERO,
                                 FLUSH_TO_ZERO,
                                 DENORMALS_ZERO,
                                 UP | FLUSH_TO_ZERO | DENORMALS_ZERO};
enum { MODES = sizeof modes / sizeof *modes };

static void set_mode(unsigned mode) { _mm_setcsr((_mm_getcsr() & ~(unsigned)MODE) | mode); }
static unsigned mode_now(void) { return _mm_getcsr() & MODE; }

/* From denormals to large numbers, none of which is a whole number. */
static etch_tensor *operands(etch_dtype dtype, int64_t n) {
    etch_tensor *powers = etch_sub_scalar(etch_mul_scalar(etch_arange(ETCH_F64, 0, n, 1), 3), 149);
    etch_tensor *x = etch_mul_scalar(etch_exp2(powers), 1.2345678901234567);
    assert_non_null(x);
    return etch_to(x, dtype);
}

/* Rounds in each operator; of small ones the products are denormal. */
static etch_tensor *rounds(etch_tensor *x) {
    etch_tensor *third = etch_div_scalar(x, 3);
    etch_tensor *y = etch_neg(etch_mul(third, etch_mul_scalar(x, 0.1)));
    etch_tensor *z = etch_add(etch_sqrt(third), etch_sub(x, etch_ones(ETCH_F32, ETCH_SHAPE(1))));
    return etch_add(etch_mul_scalar(y, 1e-3), etch_to(etch_to(z, ETCH_BF16), etch_dtype_of(x)));
}

/* The same as fn(x) with compiling off, under the mode of now. */
static void assert_as_eager(etch_function *f, etch_fn1 fn, etch_tensor *x) {
    unsigned before = mode_now();
    etch_tensor *expected = fn(x);
    for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), expected);
    assert_int_equal(mode_now(), before);
}

/* ---- rounding and denormals ---- */

/* Each mode at the call is a trace of its own, and stays. */
TEST(mode_of_the_caller) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(rounds, .backend = test_backends[b]);
            etch_tensor *x = operands(ETCH_F32, 80);
            for (int round = 0; round < 2; round++)
                for (int m = 0; m < MODES; m++) {
                    set_mode(modes[m]);
                    assert_as_eager(f, rounds, x);
                }
            set_mode(0);
            assert_counts(f, MODES, 5 * MODES);
            assert_int_equal(etch_function_counters(f).graph_breaks, 0);
            etch_function_free(f);
        }
}

static unsigned inner_mode;
static bool other_end;

/* What most programs do: the mode is set at the beginning, and put back at the end. */
static etch_tensor *sets_and_puts_back(etch_tensor *x) {
    unsigned before = mode_now();
    set_mode(inner_mode);
    etch_tensor *y = rounds(x);
    if (other_end) y = etch_div_scalar(y, 7);
    set_mode(before);
    return y;
}

/* One segment, whose operators run after the mode is back, by a plan or one by one. */
TEST(mode_inside_the_body) {
    for (int b = 0; b < 8; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(sets_and_puts_back, .backend = test_backends[b % 2],
                                            .fullgraph = b & 2, .replay = b & 4);
            etch_tensor *x = operands(ETCH_F32, 80);
            for (int m = 0; m < MODES && !(b & 4); m++) {
                inner_mode = modes[m], other_end = m % 2;
                assert_as_eager(f, sets_and_puts_back, x);
            }
            inner_mode = UP, other_end = false;
            assert_as_eager(f, sets_and_puts_back, x);
            set_mode(DOWN); /* another mode of the caller: to replay it is another call */
            assert_as_eager(f, sets_and_puts_back, x);
            set_mode(0);
            int graphs = b & 4 ? 1 : MODES; /* UP is there already */
            assert_counts(f, graphs, (graphs == 1 ? 5 : 20) + (b & 2 ? graphs : 0));
            etch_function_free(f);
        }
}

static etch_tensor *kept;

/* Three modes are three segments; the middle one is used late, and outlives the call. */
static etch_tensor *changes_in_the_middle(etch_tensor *x) {
    unsigned before = mode_now();
    etch_tensor *a = etch_div_scalar(x, 3), *spare = etch_div_scalar(x, 7);
    set_mode(inner_mode);
    etch_tensor *b = rounds(a);
    kept = other_end ? etch_retain(etch_div_scalar(b, 11)) : NULL;
    set_mode(before);
    etch_tensor *c = etch_div_scalar(b, 13);
    return other_end ? etch_add(c, spare) : c;
}

TEST(mode_between_operators) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(changes_in_the_middle, .backend = test_backends[b]);
            etch_tensor *x = operands(ETCH_F32, 80);
            for (int i = 0; i < 12; i++) {
                inner_mode = i % 4 / 2 ? UP : TO_ZERO | FLUSH_TO_ZERO;
                other_end = i > 5;
                etch_tensor *expected = changes_in_the_middle(x), *also = kept;
                assert_same(etch_call(f, x), expected);
                if (other_end) assert_same(kept, also);
                etch_release(kept), etch_release(also);
                assert_int_equal(mode_now(), 0);
            }
            assert_int_equal(etch_function_counters(f).graph_breaks, 24);
            etch_function_free(f);
        }
}

TEST(fullgraph_names_the_change) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(changes_in_the_middle, .fullgraph = true);
        inner_mode = UP, other_end = false;
        assert_null(etch_call(f, operands(ETCH_F32, 8)));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        assert_non_null(strstr(etch_last_error(), "rounding or denormals"));
        assert_non_null(strstr(etch_last_error(), "state"));
        etch_clear_error();
        set_mode(0);
        etch_function_free(f);
    }
}

/* Threads of the pool compute in the mode of the one that calls. */
TEST(mode_reaches_all_threads) {
    int before = etch_num_threads();
    ETCH_SCOPE {
        etch_function *f = etch_compile(sets_and_puts_back);
        etch_tensor *x = etch_div_scalar(etch_arange(ETCH_F32, 1, 3000001, 1), 1e20);
        inner_mode = UP | FLUSH_TO_ZERO, other_end = false;
        etch_set_num_threads(1);
        etch_tensor *expected = sets_and_puts_back(x);
        for (int threads = 1; threads <= 4; threads += 3) {
            etch_set_num_threads(threads);
            assert_same(sets_and_puts_back(x), expected);
            for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), expected);
        }
        etch_function_free(f);
    }
    etch_set_num_threads(before);
}

/* The thread in the background compiles what it would have compiled to nearest. */
TEST(mode_while_compiling) {
    ETCH_SCOPE {
        etch_tensor *x = operands(ETCH_F32, 80);
        for (int background = 0; background < 2; background++) {
            set_mode(UP | FLUSH_TO_ZERO | DENORMALS_ZERO);
            etch_function *f = etch_compile(rounds, .background = background);
            assert_as_eager(f, rounds, x);
            etch__background_wait();
            assert_as_eager(f, rounds, x);
            assert_int_equal(etch_function_counters(f).graphs, 1);
            set_mode(0);
            assert_as_eager(f, rounds, x);
            etch_function_free(f);
        }
    }
}

/* The operators' shadows under ETCH_CHECK=1 are of the mode of the call, too. */
TEST(mode_under_check) {
    setenv("ETCH_CHECK", "1", 1);
    ETCH_SCOPE {
        etch_function *f = etch_compile(sets_and_puts_back);
        etch_function *g = etch_compile(changes_in_the_middle);
        etch_tensor *x = operands(ETCH_F32, 80);
        inner_mode = DOWN | FLUSH_TO_ZERO, other_end = false;
        assert_as_eager(f, sets_and_puts_back, x);
        assert_as_eager(g, changes_in_the_middle, x);
        etch_function_free(f), etch_function_free(g);
    }
    unsetenv("ETCH_CHECK");
}

/* ---- every operator ---- */

typedef struct unary {
    const char *name;
    etch_fn1 fn;
} unary;

#define UNARY(name)                                                                                \
    { #name, etch_##name }
static const unary all_unary[] = {
    UNARY(neg),   UNARY(abs),  UNARY(relu),   UNARY(sqrt),  UNARY(rsqrt),   UNARY(exp),
    UNARY(log),   UNARY(sin),  UNARY(cos),    UNARY(tanh),  UNARY(sigmoid), UNARY(exp2),
    UNARY(expm1), UNARY(log2), UNARY(log10),  UNARY(log1p), UNARY(erf),     UNARY(tan),
    UNARY(asin),  UNARY(acos), UNARY(atan),   UNARY(sinh),  UNARY(cosh),    UNARY(reciprocal),
    UNARY(silu),  UNARY(gelu), UNARY(square), UNARY(floor), UNARY(ceil),    UNARY(trunc),
    UNARY(round), UNARY(sign), UNARY(frac),   UNARY(sum),   UNARY(mean),    UNARY(max),
    UNARY(min),   UNARY(prod),
};
enum { UNARIES = sizeof all_unary / sizeof *all_unary };

static const unary *tested;
static etch_tensor *apply(etch_tensor *x) { return etch_neg(tested->fn(etch_mul_scalar(x, 0.7))); }

static etch_tensor *apply_all_binary(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 0.3), *z = etch_div(x, y);
    z = etch_add(z, etch_sub(x, etch_mul(y, etch_pow(x, y))));
    z = etch_add(z, etch_fmod(x, y)), z = etch_add(z, etch_remainder(y, x));
    z = etch_add(z, etch_maximum(x, y));
    z = etch_add(z, etch_minimum(x, y)), z = etch_add(z, etch_pow_scalar(x, 2.5));
    return etch_add(z, etch_add_alpha(x, y, 0.3));
}

/* All in (0, 1): no reason to trap for any of the functions. */
static etch_tensor *benign(etch_dtype dtype, int64_t n) {
    etch_tensor *x = etch_add_scalar(etch_arange(ETCH_F64, 0, n, 1), 1);
    return etch_to(etch_div_scalar(x, (double)n + 1.5), dtype);
}

static const etch_dtype floats[] = {ETCH_F32, ETCH_F16, ETCH_F64, ETCH_BF16};

/* Fused code against eager kernels, whose compilers must not have assumed a mode. */
TEST(operators_under_each_mode) {
    for (int u = 0; u < UNARIES; u++)
        for (int d = 0; d < (u % 4 ? 2 : 4); d++)
            ETCH_SCOPE {
                tested = &all_unary[u];
                etch_function *f = etch_compile(apply);
                etch_tensor *x = etch_sub_scalar(benign(floats[d], 77), u % 2 ? 0 : 0.4);
                for (int m = 0; m < MODES; m++) {
                    set_mode(modes[m]);
                    etch_tensor *expected = apply(x);
                    for (int call = 0; call < 2; call++)
                        if (!etch_bitwise_equal(etch_call(f, x), expected))
                            fail_msg("%s of %s under %x", tested->name, etch_dtype_name(floats[d]),
                                     modes[m]);
                }
                set_mode(0);
                etch_function_free(f);
            }
    ETCH_SCOPE {
        etch_function *f = etch_compile(apply_all_binary);
        for (int m = 0; m < MODES; m++) {
            set_mode(modes[m]);
            assert_as_eager(f, apply_all_binary, benign(ETCH_F32, 77));
        }
        set_mode(0);
        etch_function_free(f);
    }
}

/* ---- traps ---- */

enum { TRAPS = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW };

/* Of all lengths, so that strips and vectors have lanes without data. */
TEST(nothing_traps_beyond_the_data) {
    feenableexcept(TRAPS);
    for (int u = 0; u <= UNARIES; u++)
        for (int d = 0; d < (u % 4 ? 2 : 4); d++)
            ETCH_SCOPE {
                tested = &all_unary[u % UNARIES];
                etch_fn1 fn = u < UNARIES ? apply : apply_all_binary;
                etch_function *f = etch_compile(fn, .dynamic = ETCH_DYNAMIC_ON);
                for (int64_t n = 1; n <= 70; n++) {
                    etch_tensor *x = benign(floats[d], n), *y = etch_call(f, x);
                    assert_same(y, fn(x));
                    assert_int_equal(fegetexcept(), TRAPS);
                }
                etch_function_free(f);
            }
    fedisableexcept(TRAPS);
}

static etch_tensor *divides_by_zero(etch_tensor *x) {
    etch_tensor *y = etch_div(x, etch_sub(x, x));
    feenableexcept(TRAPS);
    return etch_log(etch_neg(y));
}

/* Operators never trap, whatever their data: neither eagerly nor in a plan that runs later. */
TEST(operators_do_not_trap) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(divides_by_zero);
        etch_tensor *x = benign(ETCH_F32, 37), *expected = divides_by_zero(x);
        for (int call = 0; call < 3; call++) {
            assert_same(etch_call(f, x), expected);
            assert_int_equal(fegetexcept(), TRAPS);
            fedisableexcept(TRAPS);
        }
        assert_counts(f, 1, 2);
        etch_function_free(f);
    }
}

/* Nor do the numbers that are made of scalars and sizes, and elements as C numbers. */
static etch_tensor *computes_scalars(etch_tensor *x) {
    etch_tensor *one = etch_select(x, 0, 0);
    etch_tensor *y = etch_add(etch_pow_scalar(x, 1e39), etch_pow_scalar(x, 1e-50));
    y = etch_add(y, etch_add_alpha(x, y, 0.1));
    y = etch_add(y, etch_arange(ETCH_F32, 0, 0.25, 0.1)); /* the length is rounded */
    y = etch_mul(etch_gelu(y), etch_std(x));
    return etch_add(y, etch_var(one)); /* a division by no elements */
}

TEST(scalars_do_not_trap) {
    ETCH_SCOPE {
        etch_tensor *x = benign(ETCH_F32, 3), *expected = computes_scalars(x);
        etch_function *f = etch_compile(computes_scalars);
        assert_non_null(expected);
        /* What a GPU's driver computes for itself is inexact. */
        const int all = test_device() == ETCH_CPU ? FE_ALL_EXCEPT : TRAPS;
        feenableexcept(all);
        for (int call = 0; call < 3; call++) {
            assert_same(computes_scalars(x), expected);
            assert_same(etch_call(f, x), expected);
            assert_int_equal(etch_item_int(etch_select(x, 0, 1)), 0);
            assert_int_equal(fegetexcept(), all);
        }
        fedisableexcept(FE_ALL_EXCEPT);
        etch_function_free(f);
    }
}

/* Constants of a kept program are to nearest, whatever mode it is made in. It is made here: this
 * operator is called with this dtype by no other test. */
TEST(constants_are_to_nearest) {
    ETCH_SCOPE {
        etch_tensor *x = etch_arange(ETCH_F32, -4, 4, 0.008);
        etch_tensor *cube = etch_mul(etch_mul(x, x), x);
        fesetround(FE_UPWARD);
        assert_non_null(etch_gelu_with(x, true)); /* makes the program */
        fesetround(FE_TONEAREST);
        etch_tensor *inner = etch_add(x, etch_mul_scalar(cube, 0.044715));
        etch_tensor *t = etch_tanh(etch_mul_scalar(inner, 0.79788456080286535588));
        etch_tensor *expected = etch_mul(etch_mul_scalar(x, 0.5), etch_add_scalar(t, 1));
        assert_same(etch_gelu_with(x, true), expected);
    }
}

/* ---- texts ---- */

/* The digits that read as the number again do not depend on how the program computes. */
TEST(texts_are_the_same) {
    const double numbers[] = {1e-40, 5e-324, 0.1, 1 / 3., 1.7976931348623157e308, -INFINITY, NAN};
    char expected[400], text[400];
    for (int d = 0; d < 2; d++)
        ETCH_SCOPE {
            etch_tensor *x =
                etch_to(etch_from_host(numbers, ETCH_F64, ETCH_SHAPE(7)), floats[2 * d]);
            etch_format(x, expected, sizeof expected);
            feenableexcept(TRAPS);
            for (int m = 0; m < MODES; m++) {
                set_mode(modes[m]);
                etch_format(x, text, sizeof text);
                assert_int_equal(mode_now(), modes[m]);
                assert_string_equal(text, expected);
            }
            set_mode(0);
            assert_int_equal(fegetexcept(), TRAPS);
            fedisableexcept(TRAPS);
        }
}
