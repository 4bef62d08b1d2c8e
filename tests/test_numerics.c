/* How near the functions are to the exact results: each primitive in f32 and f64, for each
 * instruction set that this processor has, within the bound that docs/numerics.md states; pow with
 * all pairs of special operands; generated code, which takes the same bits, and rounds every bf16.
 * Labels: optimised. */
#include "cpu_support.h"

#include <fenv.h>

#include "backends/cpu/table.h"
#include "tools/verify/references.h"

enum { N = 60000 };
static const double bound = 1.0;

static prim_id prim_named(const char *name) {
    for (int p = 0; p < PRIM_COUNT; p++)
        if (!strcmp(etch__prims[p].name, name)) return (prim_id)p;
    fail_msg("no primitive %s", name);
    return PRIM_COUNT;
}

static double x[N], y[N];
static float narrow_x[N], narrow_y[N];

static void run_strip(const strip_table *table, prim_id p, bool wide, int n) {
    if (wide) table->prim[p][ETCH_F64](y, x, NULL, NULL, n);
    else table->prim[p][ETCH_F32](narrow_y, narrow_x, NULL, NULL, n);
    for (int i = 0; !wide && i < n; i++) y[i] = narrow_y[i];
}

static void check_function(const strip_table *table, const reference *r, bool wide) {
    uint64_t state = 7;
    double worst = 0, at = 0;
    for (int i = 0; i < N; i++) {
        x[i] = reference_operand(r, wide, i, &state);
        if (!wide) x[i] = narrow_x[i] = (float)x[i];
    }
    run_strip(table, prim_named(r->name), wide, N);
    for (int i = 0; i < N; i++) {
        double e = reference_error(wide, y[i], r->exact(x[i]));
        if (e > worst) worst = e, at = x[i];
    }
    if (worst > bound) fail_msg("%s of f%d: %.3f ulp at %a", r->name, wide ? 64 : 32, worst, at);
}

TEST(functions_are_within_an_ulp) {
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int k = 0; k < REFERENCES; k++)
            for (int wide = 0; wide < 2; wide++)
                check_function(etch__isa_tables[isa].strips, &references[k], wide);
}

/* ---- functions of results that are rounded to a half dtype ---- */

static long double exact_gelu(long double v) {
    return isinf(v) ? (v < 0 ? NAN : v) : v * 0.5L * erfcl(-v / sqrtl(2));
}

typedef struct half_case {
    etch_tensor *(*op)(etch_tensor *x);
    long double (*exact)(long double x);
    double low; /* up to it the result is 0 */
} half_case;

enum { HALVES = 1 << 16 };

/* In ulp of the dtype; at what is nothing: as if within. */
static double half_error(const half_case *c, etch_dtype d, double v, double got) {
    long double exact = c->exact(v);
    int exponent, digits = d == ETCH_BF16 ? 8 : 11, least = d == ETCH_BF16 ? -125 : -13;
    if (isnan(v) || isnan((double)exact)) return isnan(got) ? 0 : INFINITY;
    if (v <= c->low && !isinf(v)) return got == 0 ? 0 : INFINITY;
    if (isinf(got) || isinf((double)exact)) return got == (double)exact ? 0 : INFINITY;
    frexpl(exact, &exponent);
    if (exponent < least) exponent = least;
    return (double)(fabsl(got - exact) / ldexpl(1, exponent - digits));
}

/* All numbers of the dtype. */
static void check_halves(const half_case *c, etch_dtype d) {
    static uint16_t bits[HALVES];
    static double at[HALVES], got[HALVES];
    for (int i = 0; i < HALVES; i++) bits[i] = (uint16_t)i;
    ETCH_SCOPE {
        etch_tensor *operands = etch_from_host(bits, d, ETCH_SHAPE(HALVES));
        etch_tensor *results = etch_to(c->op(operands), ETCH_F64);
        assert_int_equal(etch_to_host(etch_to(operands, ETCH_F64), at, sizeof at), ETCH_OK);
        assert_int_equal(etch_to_host(results, got, sizeof got), ETCH_OK);
    }
    for (int i = 0; i < HALVES; i++)
        if (half_error(c, d, at[i], got[i]) > 0.52)
            fail_msg("at %g of dtype %d: %g", at[i], (int)d, got[i]);
}

TEST(functions_of_halves) {
    static const half_case cases[] = {{etch_sigmoid, sigmoidl, -INFINITY},
                                      {etch_silu, silul, -INFINITY},
                                      {etch_gelu, exact_gelu, -6}};
    for (int k = 0; k < 3; k++)
        check_halves(&cases[k], ETCH_BF16), check_halves(&cases[k], ETCH_F16);
}

/* Every function is held to a bound; pow, rests and those of halves by tests of their own. */
TEST(every_function_has_a_reference) {
    for (int p = 0; p < PRIM_COUNT; p++) {
        int found = 0;
        for (int k = 0; k < REFERENCES; k++)
            found += !strcmp(references[k].name, etch__prims[p].name);
        bool half = p == PRIM_SIGMOID_HALF || p == PRIM_SILU_HALF || p == PRIM_GELU_HALF;
        bool other = p == PRIM_POW || p == PRIM_REM || half;
        assert_int_equal(found, etch__prim_is_function(p) && !other);
    }
}

/* Far arguments are reduced by all bits of 2 / pi that they need. */
TEST(far_arguments) {
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int k = 0; k < REFERENCES; k++) {
            const reference *r = &references[k];
            if (r->exact != sinl && r->exact != cosl && r->exact != tanl) continue;
            for (int i = 0; i < 984; i++) x[i] = ldexp(i % 2 ? -1.7 : 1.3, i + 40);
            run_strip(etch__isa_tables[isa].strips, prim_named(r->name), true, 984);
            for (int i = 0; i < 984; i++) {
                double e = reference_error(true, y[i], r->exact(x[i]));
                if (e > bound) fail_msg("%s of %a: %.3f ulp", r->name, x[i], e);
            }
        }
}

/* ---- pow ---- */

static double power_operand(int k, bool second, uint64_t *state) {
    static const double special[] = {
        0, -0.0, INFINITY, -INFINITY, NAN,   1,    -1,    0.5,           -0.5,   2,     -2,
        3, -3,   2.5,      7.5,       1e-42, 1e30, -1e30, 0x1.000001p23, 0x1p53, 5e-324};
    enum { S = sizeof special / sizeof *special };
    double part = (double)(reference_bits(state) >> 11) * 0x1p-53;
    if (k < S * S) return special[second ? k % S : k / S];
    if (k % 3 == 0) return second ? floor(part * 40) - 20 : part * -20;
    if (k % 3 == 1) return second ? part * 200 - 100 : 0.5 + part * 1.5;
    return second ? part * 10 - 5 : part * 1e6;
}

static void check_power(const strip_table *table, bool wide) {
    static double b[N];
    static float narrow_b[N];
    uint64_t state = 9;
    for (int i = 0; i < N; i++) {
        x[i] = power_operand(i, false, &state), b[i] = power_operand(i, true, &state);
        if (!wide) x[i] = narrow_x[i] = (float)x[i], b[i] = narrow_b[i] = (float)b[i];
    }
    if (wide) table->prim[PRIM_POW][ETCH_F64](y, x, b, NULL, N);
    else table->prim[PRIM_POW][ETCH_F32](narrow_y, narrow_x, narrow_b, NULL, N);
    for (int i = 0; i < N; i++) {
        double got = wide ? y[i] : narrow_y[i];
        double e = reference_error(wide, got, powl(x[i], b[i]));
        if (e > bound)
            fail_msg("pow(%a, %a) of f%d is %a: %.3f ulp", x[i], b[i], wide ? 64 : 32, got, e);
    }
}

TEST(powers_are_within_an_ulp) {
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int wide = 0; wide < 2; wide++) check_power(etch__isa_tables[isa].strips, wide);
}

/* ---- rests of divisions ---- */

/* Pairs whose quotients are near whole numbers, of all sizes, with all digits and more; and some of
 * any bits. */
static double dividend(int k, double divisor, uint64_t *state) {
    double part = (double)(reference_bits(state) >> 11) * 0x1p-53;
    if (k % 4 == 0) return power_operand(k / 4, false, state);
    if (k % 4 == 1) return divisor * floor(ldexp(part, k % 64));
    if (k % 4 == 2) return nextafter(divisor * floor(ldexp(part, k % 30)), k % 8 < 4 ? 0 : 1e300);
    return ldexp(part - 0.5, k % 160 - 80);
}

static double divisor(int k, uint64_t *state) {
    double part = (double)(reference_bits(state) >> 11) * 0x1p-53;
    if (k % 4 == 0) return power_operand(k / 4, true, state);
    if (k % 7 == 0) return ldexp(part, -100 - k % 49);
    if (k % 7 == 1) return ldexp(part, -960 - k % 114);
    return (k % 3 ? 1 : -1) * (k % 5 ? part * 100 + 1e-3 : floor(part * 9) + 1);
}

static void check_rests(const strip_table *table, bool wide) {
    static double b[N];
    static float narrow_b[N];
    uint64_t state = 5;
    for (int i = 0; i < N; i++) {
        b[i] = divisor(i, &state);
        if (!wide) b[i] = narrow_b[i] = (float)b[i];
        x[i] = dividend(i, b[i], &state);
        if (!wide) x[i] = narrow_x[i] = (float)x[i];
    }
    if (wide) table->prim[PRIM_REM][ETCH_F64](y, x, b, NULL, N);
    else table->prim[PRIM_REM][ETCH_F32](narrow_y, narrow_x, narrow_b, NULL, N);
    for (int i = 0; i < N; i++) {
        double got = wide ? y[i] : narrow_y[i], want = fmod(x[i], b[i]);
        bool same = isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(want);
        if (!same) fail_msg("fmod(%a, %a) of f%d: %a", x[i], b[i], wide ? 64 : 32, got);
    }
}

/* However the processor rounds. */
TEST(rests_are_exact) {
    static const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int k = 0; k < 8; k++) {
            fesetround(modes[k / 2]);
            check_rests(etch__isa_tables[isa].strips, k % 2);
            fesetround(FE_TONEAREST);
        }
}

/* ---- compiled ---- */

static const reference *compiled_one;
static etch_tensor *one_function(etch_tensor *t) { return compiled_one->op(t); }

TEST(compiled_functions_have_the_same_bits) {
    for (int k = 0; k < REFERENCES; k++)
        for (int wide = 0; wide < 2; wide++)
            ETCH_SCOPE {
                uint64_t seed = 11;
                etch_dtype dtype = wide ? ETCH_F64 : ETCH_F32;
                for (int i = 0; i < 3001; i++)
                    x[i] = reference_operand(&references[k], wide, i, &seed);
                etch_tensor *t = etch_from_host(x, ETCH_F64, ETCH_SHAPE(3001));
                t = etch_to(t, dtype);
                compiled_one = &references[k];
                etch_tensor *want = one_function(t);
                etch_function *f = etch_compile(one_function, .fullgraph = true);
                etch_call(f, t);
                etch_tensor *have = etch_call(f, t);
                assert_true(etch_bitwise_equal(want, have));
                etch_function_free(f);
            }
}

/* ---- roundings without a case for NaN ---- */

static etch_tensor *rounded_often(etch_tensor *p, etch_tensor *q) {
    etch_tensor *z = etch_mul(etch_sub(p, q), etch_div(q, p));
    return etch_relu(etch_add(etch_neg(z), etch_mul_scalar(etch_abs(p), 0.5)));
}

/* Of f32, whose NaNs may have any bits, rounded. */
static etch_tensor *of_f32(etch_tensor *p, etch_tensor *q) {
    return etch_add(etch_to(etch_mul(p, q), ETCH_BF16), etch_to(p, ETCH_BF16));
}

static void check_bits(etch_fn2 fn, etch_tensor *p, etch_tensor *q) {
    etch_function *f = etch_compile(fn, .fullgraph = true);
    etch_tensor *want = fn(p, q), *have = etch_call(f, p, q);
    if (!want || !have) fail_msg("%s", etch_last_error());
    assert_true(same_tensor(want, have));
    etch_function_free(f);
}

/* Every value as p, each beside some other, which NaNs of all payloads come from. */
TEST(every_bf16_is_rounded_as_eager) {
    enum { ALL = 65536 };
    ETCH_SCOPE {
        etch_tensor *p = etch_empty(ETCH_BF16, ETCH_SHAPE(ALL));
        etch_tensor *q = etch_empty(ETCH_BF16, ETCH_SHAPE(ALL));
        uint16_t *a = etch_data_mut(p), *b = etch_data_mut(q);
        for (int i = 0; i < ALL; i++) a[i] = (uint16_t)i, b[i] = (uint16_t)(i * 40503u + 11);
        check_bits(rounded_often, p, q);
        etch_tensor *wide = etch_empty(ETCH_F32, ETCH_SHAPE(ALL));
        etch_tensor *last = etch_ones(ETCH_F32, ETCH_SHAPE(ALL));
        uint32_t *bits = etch_data_mut(wide);
        for (int i = 0; i < ALL; i++) bits[i] = (uint32_t)i << 16 | (uint32_t)(i * 40503u & 0xffff);
        check_bits(of_f32, wide, last);
    }
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
