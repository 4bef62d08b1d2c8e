/* The transcendental primitives of core/ops/prims.def, written once: for vectors of numbers by
 * backends/cpu/isa/functions.c, for every instruction set, and as text put into CUDA C by
 * jit/cuda/cuda_functions.c. Both types come from this text, which is included with F64 1 and then
 * 0.
 *
 * Every function is straight-line code over selections, so that lanes are independent. Those that
 * matter most have a short way besides, quick_f, for the operands that plain_f accepts; which way
 * is taken depends on the operand alone. Products with denormal numbers trap on some processors:
 * so operands for which f(x) is x or a constant are replaced by 0 before arithmetic, and denormal
 * results are made as integers. Where rounding would cost more than the last half ulp, a pair
 * (x, x_low) stands for the sum of both. The coefficients are near-minimax (Chebyshev) over the
 * range that the comment names; docs/numerics.md has the errors that result.
 *
 * Who includes this defines F(name) (the name with a suffix), FN (how a function is declared),
 * TABLE (a constant array), EXACT_FMA (0: fma rounds twice), ALL(x) and ALL_WORDS(x) (a number in
 * every lane), SINGLE (1: REAL is one number), the types i32 u32 i64 u64, F(reals) F(words) F(ints)
 * F(truth), and the operations of backends/cpu/isa/lanes.h. An empty line ends a unit of the text;
 * a unit without a function is always there. */

#undef K
#undef W
#undef REAL
#undef UINT
#undef SINT
#undef TRUTH
#undef DIGITS
#undef BIAS
#define REAL F(reals)
#define UINT F(words)
#define SINT F(ints)
#define TRUTH F(truth)
#if F64
#define K(wide, narrow) ALL(wide)
#define W(wide, narrow) ALL_WORDS(wide)
#define DIGITS 52
#define BIAS 1023
#else
#define K(wide, narrow) ALL(narrow)
#define W(wide, narrow) ALL_WORDS(narrow)
#define DIGITS 23
#define BIAS 127
#endif

#ifndef FMA
#define FMA(a, b, c) F(fma)(ALL(a), ALL(b), ALL(c))
/* c - a b */
#define FNMA(a, b, c) F(fnma)(ALL(a), ALL(b), ALL(c))
#define WHERE(truth, yes, no) F(where)(truth, ALL(yes), ALL(no))
#define LESS(a, b) F(less)(ALL(a), ALL(b))
#define SAME(a, b) F(same)(ALL(a), ALL(b))
/* The larger and the smaller; where one is NaN, the second. */
#define MOST(a, b) F(most)(ALL(a), ALL(b))
#define LEAST(a, b) F(least)(ALL(a), ALL(b))
/* The smaller; where one is NaN, either. */
#ifndef LESSER
#define LESSER(a, b) LEAST(a, b)
#endif
#define NOT(truth) F(no)(truth)
/* Polynomials, the highest coefficient first; x2 and x4 are powers of x. */
#define QUAD(x, x2, a, b, c, d) FMA(FMA(a, x, b), x2, FMA(c, x, d))
#define TRIPLE(x, a, b, c) FMA(FMA(a, x, b), x, c)
#define AND4(x, x2, x4, h, a, b, c, d) FMA(h, x4, QUAD(x, x2, a, b, c, d))
#define AND8(x, x2, x4, h, a, b, c, d, ...)                                                        \
    AND4(x, x2, x4, AND4(x, x2, x4, h, a, b, c, d), __VA_ARGS__)
#define AND12(x, x2, x4, h, a, b, c, d, ...)                                                       \
    AND8(x, x2, x4, AND4(x, x2, x4, h, a, b, c, d), __VA_ARGS__)
#define AND16(x, x2, x4, h, a, b, c, d, ...)                                                       \
    AND12(x, x2, x4, AND4(x, x2, x4, h, a, b, c, d), __VA_ARGS__)
/* x + WHOLE has the nearest whole number in its low bits; ONES + a whole number is that number. */
#define WHOLE K(0x1.8p52, 0x1.8p23f)
#define ONES K(0x1p52, 0x1p23f)
#define ONES_BITS W(0x4330000000000000u, 0x4b000000u)
#define TINY K(0x1p-60, 0x1p-30f)
#define LEAST_NORMAL K(0x1p-1022, 0x1p-126f)
#define EXPONENT W(0x7ff0000000000000u, 0x7f800000u)
#define SIGN W(0x8000000000000000u, 0x80000000u)
#define INF F(real)(EXPONENT)
#define NOT_A_NUMBER F(real)(W(0xfff8000000000000u, 0xffc00000u))
#define LOG2E K(0x1.71547652b82fep+0, 0x1.715476p+0f)
#define LOG2E_LOW K(0x1.777d0ffda0d24p-56, 0x1.4ae0cp-26f)
#define LOG10E K(0x1.bcb7b1526e50ep-2, 0x1.bcb7b2p-2f)
#define LOG10E_LOW K(0x1.95355baaafad3p-57, -0x1.5b235ep-27f)
#define LN2 K(0x1.62e42fefa39efp-1, 0x1.62e43p-1f)
#define LN2_LOW K(0x1.abc9e3b39803fp-56, -0x1.05c61p-29f)
/* Short: the product with an exponent is exact. */
#define LN2_SHORT K(0x1.62e42fefa3800p-1, 0x1.62e4p-1f)
#define LN2_REST K(0x1.ef35793c76730p-45, 0x1.7f7d1cp-20f)
#define LOG10_2_SHORT K(0x1.34413509f7000p-2, 0x1.344p-2f)
#define LOG10_2_REST K(0x1.3fde623e2566bp-43, 0x1.3509f8p-18f)
#define HALF_PI K(0x1.921fb54442d18p+0, 0x1.921fb6p+0f)
#define HALF_PI_LOW K(0x1.1a62633145c07p-54, -0x1.777a5cp-25f)
#define SPLIT K(0x8000001p0, 0x1001p0f)
/* How an angle is reduced. */
#define NEAR 0
#define QUICK 1
#define FAR 2
#define HALF K(0.5, 0.5f)
#define QUARTER K(0.25, 0.25f)
#endif

/* ---- exact steps ---- */

/* What a * b = p has lost. Without fma from the halves of both (Dekker). */
FN REAL F(lost_product)(REAL a, REAL b, REAL p) {
#if EXACT_FMA
    return FMA(a, b, -p);
#else
    REAL a1 = a * SPLIT, b1 = b * SPLIT;
    a1 = a1 - (a1 - a), b1 = b1 - (b1 - b);
    REAL a2 = a - a1, b2 = b - b1;
    return ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2;
#endif
}

/* x - a * b where a * b is nearly x. */
FN REAL F(residue)(REAL x, REAL a, REAL b) {
#if EXACT_FMA
    return FNMA(a, b, x);
#else
    REAL p = a * b;
    return (x - p) - F(lost_product)(a, b, p);
#endif
}

/* What a + b = s has lost. */
FN REAL F(lost_sum)(REAL a, REAL b, REAL s) {
    REAL v = s - a;
    return (a - (s - v)) + (b - v);
}

/* x, which has no sign, with that of y. */
FN REAL F(signed_as)(REAL x, REAL y) { return F(real)(F(bits)(x) | (F(bits)(y) & SIGN)); }

/* The quotient of two pairs; *low is what it has lost. One division. */
FN REAL F(quotient)(REAL n, REAL n_low, REAL d, REAL d_low, REAL *low) {
    REAL inverse = 1 / d, q = n * inverse;
    REAL rest = F(residue)(n, q, d) + FNMA(q, d_low, n_low);
    REAL sum = FMA(rest, inverse, q);
    *low = FMA(rest, inverse, q - sum);
    return sum;
}

/* 1 / s within one part in 70, for corrections; finite for 0. */
FN REAL F(rough_inverse)(REAL s) {
    REAL y = F(real)(W(0x7fde623822fc16e6u, 0x7ef311c7u) - F(bits)(s));
    return y * (2 - s * y);
}

/* Whether functions are x or constant there. */
FN TRUTH F(is_tiny)(REAL x) { return LESS(F(abs)(x), TINY); }

/* x, or 0 where it is so small that functions are x or constant. */
FN REAL F(calm)(REAL x) { return WHERE(F(is_tiny)(x), 0, x); }

/* x between two bounds; NaN stays. */
FN REAL F(limited)(REAL x, REAL low, REAL high) { return LEAST(high, MOST(low, x)); }

/* ---- exponentials ---- */

/* 2^n, n from -BIAS + 1 to BIAS, where b is n + WHOLE. */
FN REAL F(power_of_2)(REAL b) { return F(real)((F(bits)(b) + BIAS) << DIGITS); }

/* 2^n p, p from 2^-2 to 2^20; b is n + WHOLE. A denormal result is made as an integer. */
FN REAL F(scaled)(REAL p, REAL b) {
    UINT high = F(bits)(p) + (F(bits)(b) << DIGITS);
    REAL multiple = F(real)(high + (W(1074, 149) << DIGITS));
    UINT low = F(bits)(multiple + ONES) - ONES_BITS;
    TRUTH small = F(int_less)((SINT)high, (SINT)(W(1, 1) << DIGITS));
    REAL y = WHERE(small, F(real)(low), LEAST(F(real)(high), INF));
    return WHERE(SAME(p, p), y, p);
}

/* (exp(r) - 1 - r) / r^2, |r| up to half of log 2 */
FN REAL F(exp_rest)(REAL r) {
#if F64
    REAL r2 = r * r, r4 = r2 * r2;
    return AND8(r, r2, r4, FMA(2.4999959358611648e-8, r, 2.7630378562111276e-7),
                2.7557587361585228e-6, 2.4801492763030273e-5, 0.00019841269504742677,
                0.0013888888943922317, 0.0083333333334956352, 0.04166666666652919,
                0.1666666666666641, 0.50000000000000107);
#else
    REAL h = FMA(0.00138144544f, r * r, FMA(0.00836878177f, r, 0.0416683927f));
    return FMA(h, r * r, FMA(0.166665196f, r, 0.49999994f));
#endif
}

/* exp(r + r_low) - 1 as a pair, |r| up to half of log 2. */
FN REAL F(grown)(REAL r, REAL r_low, REAL *low) {
    REAL r2 = r * r, half = FMA(HALF, r2, r_low);
#if F64
    REAL r4 = r2 * r2;
    REAL q = AND8(r, r2, r4, FMA(2.09112987659402e-09, r, 2.5100472505694996e-08),
                  2.7557282838800484e-07, 2.7557268276905696e-06, 2.4801587317228724e-05,
                  0.00019841269863171557, 0.0013888888888886537, 0.008333333333330039,
                  0.041666666666666664, 0.16666666666666669);
#else
    REAL q = TRIPLE(r, TRIPLE(r, 0.00019882773f, 0.00139262508f, 0.00833332084f), 0.0416665542f,
                    0.166666667f);
#endif
    REAL t = FMA(r2 * r, q, half), s = r + t;
    *low = (r - s) + t;
    return s;
}

/* x = n log 2 + r + r_low, |n| up to 2^11 (2^8); *b is n + WHOLE. */
FN REAL F(reduced_pair)(REAL x, REAL *n, REAL *b, REAL *r_low) {
    *b = FMA(x, LOG2E, WHOLE);
    *n = *b - WHOLE;
    REAL high = FNMA(*n, LN2_SHORT, x), r = FNMA(*n, LN2_REST, high);
    *r_low = FNMA(*n, LN2_REST, high - r);
    return r;
}

/* The same without r_low. */
FN REAL F(reduced)(REAL x, REAL *n, REAL *b) {
    REAL r_low;
    return F(reduced_pair)(x, n, b, &r_low);
}

/* exp(r), |r| up to half of log 2 */
FN REAL F(exp_near_1)(REAL r) {
#if EXACT_FMA
    return FMA(FMA(F(exp_rest)(r), r, 1), r, 1);
#else
    return 1 + (r + r * r * F(exp_rest)(r));
#endif
}

FN REAL F(exp)(REAL x) {
    REAL n, b, y = F(calm)(F(limited)(x, K(-746, -105), K(710, 89)));
    REAL r = F(reduced)(y, &n, &b);
    return F(scaled)(F(exp_near_1)(r), b);
}

/* Where neither the result nor a step towards it is special. */
FN TRUTH F(plain_exp)(REAL x) { return LESS(F(abs)(x), K(708, 87)); }
FN REAL F(quick_exp)(REAL x) {
    REAL n, b, r = F(reduced)(F(calm)(x), &n, &b);
    return F(real)(F(bits)(F(exp_near_1)(r)) + (F(bits)(b) << DIGITS));
}

/* 2^r, |r| up to 1/2 */
FN REAL F(power_near_1)(REAL r) {
#if !EXACT_FMA
    REAL low, t = r * LN2, t_low = FMA(r, LN2_LOW, F(lost_product)(r, LN2, t));
    return 1 + F(grown)(t, t_low, &low);
#elif F64
    REAL r2 = r * r, r4 = r2 * r2;
    REAL h = QUAD(r, r2, 2.5729324177362304e-11, 4.4558179083360645e-10, 7.0548973041554993e-9,
                  1.0178057087733941e-7);
    h = AND4(r, r2, r4, h, 1.3215486808705563e-6, 1.5252733841556773e-5, 0.00015403530393370733,
             0.0013333558146406471);
    h = TRIPLE(r, TRIPLE(r, h, 0.0096181291076284795, 0.055504108664821627), 0.24022650695910071,
               LN2_LOW);
    return 1 + FMA(r, LN2, r * h);
#else
    REAL h = TRIPLE(r, 0.000154531634f, 0.00133908633f, 0.00961808302f);
    return FMA(TRIPLE(r, FMA(h, r, 0.0555035695f), 0.240226507f, 0.693147182f), r, 1);
#endif
}

FN REAL F(exp2)(REAL x) {
    REAL y = F(calm)(F(limited)(x, K(-1080, -155), K(1024, 128)));
    REAL b = y + WHOLE, n = b - WHOLE, r = y - n;
    return F(scaled)(F(power_near_1)(r), b);
}

FN TRUTH F(plain_exp2)(REAL x) { return LESS(F(abs)(x), K(1021, 125)); }
FN REAL F(quick_exp2)(REAL x) {
    REAL y = F(calm)(x), b = y + WHOLE, r = y - (b - WHOLE);
    return F(real)(F(bits)(F(power_near_1)(r)) + (F(bits)(b) << DIGITS));
}

/* (exp(x) - 1) / 4 as a pair; the quarter cannot overflow. */
FN REAL F(quarter_growth)(REAL x, REAL *low) {
    REAL n, b, r_low, s_low, r = F(reduced_pair)(x, &n, &b, &r_low);
    REAL s = F(grown)(r, r_low, &s_low), k = F(power_of_2)(b - 2);
    REAL a = k - QUARTER, v = FMA(k, s, a), w = FMA(k, s, a - v);
    *low = FMA(k, s_low, w + ((k - a) - QUARTER));
    return v;
}

FN REAL F(expm1)(REAL x) {
    REAL low, y = F(calm)(F(limited)(x, K(-43, -20), K(710, 89)));
    y = F(quarter_growth)(y, &low);
    return WHERE(F(is_tiny)(x), x, 4 * (y + low));
}

/* E / (E + 2), E = exp(2 |x|) - 1 */
FN REAL F(tanh)(REAL x) {
    REAL low, rest, y = F(calm)(LEAST(K(20, 10), F(abs)(x)));
    REAL e = F(quarter_growth)(2 * y, &low), d = e + HALF;
    REAL d_low = F(lost_sum)(e, HALF, d) + low;
    y = F(quotient)(e, low, d, d_low, &rest);
    return WHERE(F(is_tiny)(x), x, F(signed_as)(y, x));
}

/* Below 0.6: x + x^3 P(x^2). Above: 1 - 2 / (E + 1), E = exp(2 |x|) = 2^n (1 + s). */
FN TRUTH F(plain_tanh)(REAL x) { return LESS(F(abs)(x), K(19, 9)); }
FN REAL F(quick_tanh)(REAL x) {
    REAL n, b, a = F(calm)(F(abs)(x)), z = a * a;
#if F64
    REAL z2 = z * z, z4 = z2 * z2;
    REAL p = AND8(z, z2, z4,
                  TRIPLE(z, -1.833596211003942e-5, 8.1547378065253651e-5, -0.00023225104067938509),
                  0.0005880541548418729, -0.0014554648028007449, 0.0035920831663434575,
                  -0.0088632321135414732, 0.021869488383780929, -0.053968253964757625,
                  0.13333333333330196, -0.33333333333333329);
#else
    REAL h = TRIPLE(z, -0.00626911968f, 0.0211109594f, -0.0538739488f);
    REAL p = TRIPLE(z, h, 0.133329153f, -0.333333313f);
#endif
    REAL small = FMA(a * z, p, F(abs)(x));
    REAL r = F(reduced)(2 * a, &n, &b), s = FMA(r * r, F(exp_rest)(r), r);
    REAL k = F(real)((F(bits)(b) + (BIAS - 1)) << DIGITS), c = k + HALF;
    REAL g = F(inverse)(FMA(k, s, c)), rest = F(residue)(F(residue)(ALL(1), g, c), g * k, s);
    REAL large = 1 - FMA(g, rest, g);
    return F(signed_as)(WHERE(LESS(a, K(0.6, 0.6f)), small, large), x);
}

/* (E + E / (E + 1)) / 2, E = exp(|x|) - 1 */
FN REAL F(sinh)(REAL x) {
    REAL low, rest, y = F(calm)(LEAST(K(710.5, 89.5f), F(abs)(x)));
    REAL e = F(quarter_growth)(y, &low), some = LEAST(K(0x1p100, 0x1p60f), e);
    REAL d = some + QUARTER, d_low = F(lost_sum)(some, QUARTER, d) + low;
    REAL q = QUARTER * F(quotient)(some, low, d, d_low, &rest);
    REAL sum = e + q, lost = (e - sum) + q;
    y = 2 * (sum + (lost + FMA(QUARTER, rest, low)));
    return WHERE(F(is_tiny)(x), x, F(signed_as)(y, x));
}

FN REAL F(cosh)(REAL x) {
    REAL low, y = F(calm)(LEAST(K(710.5, 89.5f), F(abs)(x)));
    REAL e = F(quarter_growth)(y, &low), sum = e + QUARTER;
    REAL lost = F(lost_sum)(e, QUARTER, sum) + low;
    REAL inverse = 1 / FMA(LEAST(K(0x1p100, 0x1p60f), e), 4, 1);
    return 2 * (sum + FMA(QUARTER, inverse, lost));
}

/* factor / (1 + exp(-x)): with u = 2^-|n| and c the smaller of 1 and 2^n, exp(-x) being
 * 2^n (1 + s), it is factor / (1 + u + c s), times 2^-n where n > 0. */
FN REAL F(logistic)(REAL x, REAL factor, REAL *power) {
    REAL n, b, y = F(calm)(F(limited)(-x, K(-100, -60), K(760, 120)));
    REAL r_low, r = F(reduced_pair)(y, &n, &b, &r_low), s = FMA(r * r, F(exp_rest)(r), r);
    n = LEAST(K(900, 100), n);
    REAL u = F(power_of_2)(WHOLE - F(abs)(n));
    REAL c = WHERE(LESS(0, n), 1, u), a = 1 + u, d = FMA(c, s, a);
    REAL d_low = FMA(c, r_low, FMA(c, s, a - d)) + (u - (a - 1));
    REAL inverse = 1 / d, q = factor * inverse;
    REAL rest = FNMA(q, d_low, F(residue)(factor, q, d));
    *power = MOST(0, b - WHOLE);
    return FMA(rest, inverse, q);
}

/* Where no power of 2 is special: the same divisor, and the factor that is left. One that is not
 * exact needs what the reduction has lost. */
FN REAL F(logistic_divisor)(REAL x, bool exactly, REAL *d_low, REAL *power) {
    REAL n, b, lost, r = F(reduced_pair)(-x, &n, &b, &lost), t = F(exp_rest)(r);
    REAL s = FMA(r * r, t, r);
    if (!EXACT_FMA) lost = lost + ((r - s) + r * r * t);
    REAL k = F(power_of_2)(b), inverse = F(real)((W(2 * BIAS, 2 * BIAS) << DIGITS) - F(bits)(k));
    REAL u = LEAST(k, inverse), c = LEAST(k, 1), a = 1 + u, d = FMA(c, s, a);
    *d_low = FMA(c, s, a - d) + (u - (a - 1));
    if (exactly) *d_low = FMA(c, lost, *d_low);
    *power = LEAST(inverse, 1);
    return d;
}

FN TRUTH F(plain_sigmoid)(REAL x) { return LESS(F(abs)(x), K(700, 86)); }
FN REAL F(quick_sigmoid)(REAL x) {
    REAL power, d_low, d = F(logistic_divisor)(F(calm)(x), false, &d_low, &power);
    REAL q = F(inverse)(d);
    return power * FMA(FNMA(q, d_low, F(residue)(ALL(1), q, d)), q, q);
}

FN REAL F(sigmoid)(REAL x) {
    REAL m, q = F(logistic)(x, ALL(1), &m);
    return F(scaled)(q, WHOLE - m);
}

/* x / 2 for small x, of a denormal by its integer, ties to even. */
FN REAL F(half_of)(REAL x) {
    UINT u = F(bits)(x) & ~SIGN, low = (u >> 1) + (u & u >> 1 & 1);
    UINT high = u - (W(1, 1) << DIGITS);
    TRUTH small = F(int_less)((SINT)u, (SINT)(W(2, 2) << DIGITS));
    return F(signed_as)(WHERE(small, F(real)(low), F(real)(high)), x);
}

/* x sigmoid(x) */
FN REAL F(silu)(REAL x) {
    REAL m, y = F(logistic)(x, F(limited)(F(abs)(x), TINY, K(0x1p19, 0x1p19f)), &m);
    y = F(signed_as)(F(scaled)(y, WHOLE - m), x);
    y = WHERE(F(is_tiny)(x), F(half_of)(x), y);
    y = WHERE(SAME(x, -INF), NOT_A_NUMBER, y);
    return WHERE(NOT(LESS(x, K(0x1p19, 0x1p19f))), x, y);
}

FN TRUTH F(plain_silu)(REAL x) { return LESS(F(abs)(x), K(700, 86)) & SAME(x, F(calm)(x)); }
FN REAL F(quick_silu)(REAL x) {
    REAL power, d_low, y = F(calm)(x), d = F(logistic_divisor)(y, true, &d_low, &power);
    REAL inverse = F(inverse)(d), q = y * inverse;
    REAL rest = FNMA(q, d_low, F(residue)(y, q, d));
    return F(signed_as)(power * FMA(rest, inverse, q), x);
}

/* ---- logarithms ---- */

/* x = 2^e (1 + f), 1 + f from the root of 1/2 to the root of 2; denormals by their integer. */
FN REAL F(reduced_log)(REAL x, REAL *e) {
    const UINT low = W(0x3fe6a09e667f3bcdu, 0x3f3504f3u);
    REAL whole = F(real)(F(bits)(x) | ONES_BITS) - ONES;
    TRUTH denormal = LESS(x, LEAST_NORMAL);
    UINT u = F(bits)(WHERE(denormal, whole, x));
    UINT k = (u + ((W(BIAS, BIAS) << DIGITS) - low)) >> DIGITS;
    *e = F(real)(k | ONES_BITS) - WHERE(denormal, ONES + K(2097, 276), ONES + BIAS);
    return F(real)(u - (k << DIGITS) + (W(BIAS, BIAS) << DIGITS)) - 1;
}

/* The logarithm y of x, put right where x is no positive number. */
FN REAL F(log_special)(REAL x, REAL y) {
    y = WHERE(LESS(x, INF), y, x);
    y = WHERE(LESS(x, 0), NOT_A_NUMBER, y);
    return WHERE(SAME(x, 0), -INF, y);
}

/* c times (log(1 + f) - f) / f^2; c is a constant, and so are the products with it. */
FN REAL F(log_rest)(REAL f, REAL c) {
#if F64
    REAL f2 = f * f, f4 = f2 * f2;
    REAL h = AND4(f, f2, f4, 0.02326410778979151 * c, -0.05396431571065815 * c,
                  0.05919124390584625 * c, -0.051385630848545784 * c, 0.05065308436417936 * c);
    h = AND8(f, f2, f4, h, -0.05500674000546895 * c, 0.0589854017332325 * c,
             -0.06256787239944622 * c, 0.06666014732774624 * c, -0.07142414601647261 * c,
             0.07692315900612398 * c, -0.0833335005291839 * c, 0.09090909371978043 * c);
    REAL p = AND8(f, f2, f4, h, -0.09999999634270115 * c, 0.1111111109982403 * c,
                  -0.12500000004330505 * c, 0.14285714285851 * c, -0.16666666666643182 * c,
                  0.19999999999999457 * c, -0.2500000000000004 * c, 0.3333333333333333 * c);
#else
    REAL h = TRIPLE(f, 0.0697158481f * c, -0.114800684f * c, 0.116855803f * c);
    h = TRIPLE(f, h, -0.124256546f * c, 0.142490396f * c);
    REAL p = TRIPLE(f, TRIPLE(f, h, -0.166678031f * c, 0.200007162f * c), -0.24999997f * c,
                    0.333333312f * c);
#endif
    return FMA(f, p, -0.5f * c);
}

/* e log 2 + f + t, f + t being log(1 + f) */
FN REAL F(log_sum)(REAL e, REAL f, REAL t) {
    REAL k = e * LN2_SHORT, high = k + f, low = (k - high) + f;
    return high + (low + FMA(e, LN2_REST, t));
}

/* For normal positive numbers. */
FN TRUTH F(plain_log)(REAL x) {
    UINT u = F(bits)(x) + SIGN - F(bits)(LEAST_NORMAL);
    return F(int_less)((SINT)u, (SINT)(SIGN + EXPONENT - F(bits)(LEAST_NORMAL)));
}
FN REAL F(quick_reduced_log)(REAL x, REAL *e) {
    const UINT low = W(0x3fe6a09e667f3bcdu, 0x3f3504f3u), bias = W(BIAS, BIAS) << DIGITS;
    UINT u = F(bits)(x) + (bias - low);
    *e = F(real)((u >> DIGITS) | ONES_BITS) - (ONES + BIAS);
    return F(real)((u & ~(EXPONENT | SIGN)) + low) - 1;
}
FN REAL F(quick_log)(REAL x) {
    REAL e, f = F(quick_reduced_log)(x, &e);
    return F(log_sum)(e, f, f * f * F(log_rest)(f, ALL(1)));
}

FN REAL F(log)(REAL x) {
    REAL e, f = F(reduced_log)(x, &e);
    return F(log_special)(x, F(log_sum)(e, f, f * f * F(log_rest)(f, ALL(1))));
}

/* k + log(1 + f) times c + c_low, where k is 0 or larger than the other; rest is what k lacks. */
FN REAL F(log_in_base)(REAL k, REAL rest, REAL f, REAL c, REAL c_low) {
    REAL p = f * c, p_low = FMA(f, c_low, F(lost_product)(f, c, p));
    REAL sum = k + p, low = ((k - sum) + p) + (p_low + rest), t = F(log_rest)(f, c), f2 = f * f;
    if (!EXACT_FMA) low = low + (F(lost_product)(f, f, f2) * t + F(lost_product)(f2, t, f2 * t));
    return sum + FMA(f2, t, low);
}

FN REAL F(log2)(REAL x) {
    REAL e, f = F(reduced_log)(x, &e);
    return F(log_special)(x, F(log_in_base)(e, 0 * e, f, LOG2E, LOG2E_LOW));
}

FN REAL F(quick_log2)(REAL x) {
    REAL e, f = F(quick_reduced_log)(x, &e);
    return F(log_in_base)(e, 0 * e, f, LOG2E, LOG2E_LOW);
}

FN REAL F(log10)(REAL x) {
    REAL e, f = F(reduced_log)(x, &e);
    REAL y = F(log_in_base)(e * LOG10_2_SHORT, e * LOG10_2_REST, f, LOG10E, LOG10E_LOW);
    return F(log_special)(x, y);
}

FN REAL F(quick_log10)(REAL x) {
    REAL e, f = F(quick_reduced_log)(x, &e);
    return F(log_in_base)(e * LOG10_2_SHORT, e * LOG10_2_REST, f, LOG10E, LOG10E_LOW);
}

/* u = 1 + x has lost c, which divided by 1 + f is added to f. */
FN REAL F(log1p)(REAL x) {
    REAL e, y = F(calm)(x), u = 1 + y, more = MOST(1, y), lost = LEAST(y, 1) - (u - more);
    REAL f = F(quick_reduced_log)(u, &e);
    REAL c = lost * F(power_of_2)(WHOLE - LEAST(K(100, 100), e));
    y = F(log_sum)(e, f, FMA(c, FMA(f, f - 1, 1), f * f * F(log_rest)(f, ALL(1))));
    return WHERE(F(is_tiny)(x), x, F(log_special)(u, y));
}

/* ---- powers ---- */

/* log2 as a pair, to about 2^-65 (2^-40): with s = f / (2 + f) and z = s^2,
 * log(1 + f) = s (2 + z (2/3 + z Q(z))). */
FN REAL F(log2_pair)(REAL x, REAL *low) {
    REAL e, s_low, f = F(reduced_log)(x, &e), d = 2 + f, d_low = f - (d - 2);
    REAL s = F(quotient)(f, ALL(0), d, d_low, &s_low);
    REAL z = s * s, z_low = FMA(2 * s, s_low, F(lost_product)(s, s, z)), z2 = z * z;
#if F64
    REAL z4 = z2 * z2;
    REAL q = z * AND8(z, z2, z4, 0.1076362151501126, 0.10456195110401492, 0.11766819021629554,
                      0.13333296397963834, 0.1538461576290815, 0.1818181817964499,
                      0.2222222222222847, 0.28571428571428564, 0.4);
#else
    REAL q = z * QUAD(z, z2, 0.1912133f, 0.222047299f, 0.285715321f, 0.399999999f);
#endif
    const REAL third = K(0x1.5555555555555p-1, 0x1.555556p-1f);
    const REAL third_low = K(0x1.5555555555555p-55, -0x1.555556p-26f);
    REAL a = third + q, a_low = ((third - a) + q) + FMA(K(0.4, 0.4f), z_low, third_low);
    REAL w = z * a, w_low = FMA(z_low, a, FMA(z, a_low, F(lost_product)(z, a, w)));
    REAL g = 2 + w, g_low = ((2 - g) + w) + w_low;
    REAL t = s * g, t_low = FMA(s_low, g, FMA(s, g_low, F(lost_product)(s, g, t)));
    REAL p = t * LOG2E, p_low = FMA(t_low, LOG2E, FMA(t, LOG2E_LOW, F(lost_product)(t, LOG2E, p)));
    REAL sum = e + p;
    *low = ((e - sum) + p) + p_low;
    return sum;
}

/* r is |x|^y for ordinary numbers; now for all. */
FN REAL F(power_special)(REAL x, REAL y, REAL r) {
    REAL size = F(abs)(x), times = F(abs)(y), half = HALF * F(limited)(times, ALL(1), 4 * ONES);
    TRUTH whole = NOT(LESS(times, ONES)) | SAME((times + ONES) - ONES, times);
    TRUTH odd = whole & LESS(half, ONES) & NOT(SAME((half + ONES) - ONES, half));
    TRUTH grows = LESS(1, size) ^ NOT(LESS(0, y));
    TRUTH ends = SAME(size, 0) | SAME(size, INF) | SAME(times, INF);
    r = WHERE(ends, WHERE(grows, INF, 0), r);
    r = WHERE(SAME(size, 1), 1, r);
    r = WHERE(odd, F(signed_as)(r, x), r);
    r = WHERE(LESS(x, 0) & LESS(size, INF) & NOT(whole), NOT_A_NUMBER, r);
    r = WHERE(SAME(x, x) & SAME(y, y), r, x + y);
    return WHERE(SAME(y, 0) | SAME(x, 1), 1, r);
}

FN REAL F(pow)(REAL x, REAL y) {
    const REAL most = K(0x1p70, 0x1p40f), least = K(0x1p-70, 0x1p-40f), end = K(1100, 160);
    REAL low, lost, size = F(abs)(x), times = F(limited)(F(abs)(y), least, most);
    size = WHERE(LESS(0, size) & LESS(size, INF), size, 1);
    REAL h = F(log2_pair)(size, &low), a = F(signed_as)(times, y);
    REAL p = a * h, p_low = FMA(a, low, F(lost_product)(a, h, p));
    p_low = WHERE(LESS(end, F(abs)(p)), 0, p_low);
    p = F(limited)(p, -end, K(1024.25, 128.25f));
    REAL b = p + WHOLE, n = b - WHOLE, r = p - n, t = r * LN2;
    REAL t_low = F(lost_product)(r, LN2, t) + FMA(r, LN2_LOW, p_low * LN2), sum = t + t_low;
    t_low = (t - sum) + t_low;
    return F(power_special)(x, y, F(scaled)(1 + F(grown)(sum, t_low, &lost), b));
}

/* ---- trigonometry ---- */

/* x = k pi/2 + r + r_low, |x| up to 2^40 (2^20); the low bits of the result are those of k. The
 * first difference is exact, and a multiple of an ulp of what is subtracted next. */
FN UINT F(reduced_near)(REAL x, REAL *r, REAL *r_low) {
    REAL b = FMA(x, K(0x1.45f306dc9c883p-1, 0x1.45f306p-1f), WHOLE), k = b - WHOLE;
    REAL a = F(residue)(x, k, HALF_PI), p = k * HALF_PI_LOW,
         p_low = F(lost_product)(k, HALF_PI_LOW, p);
    *r = a - p;
    *r_low = FMA(k, K(0x1.f1976b7ed8fbcp-110, 0x1.ee59dap-50f), ((a - *r) - p) - p_low);
    return F(bits)(b);
}

/* The same up to 2^20 (2^11), where k times the first 32 (12) bits of the rest is exact. */
FN UINT F(quick_reduced)(REAL x, REAL *r, REAL *r_low) {
#if !EXACT_FMA
    return F(reduced_near)(x, r, r_low);
#endif
    const REAL middle = K(0x1.1a626332p-54, -0x1.778p-25f);
    REAL b = FMA(x, K(0x1.45f306dc9c883p-1, 0x1.45f306p-1f), WHOLE), k = b - WHOLE;
    REAL a = FNMA(k, HALF_PI, x);
    *r = FNMA(k, middle, a);
    *r_low = FNMA(k, K(-0x1.747f23e32ed70p-87, 0x1.68c234p-39f), FNMA(k, middle, a - *r));
    return F(bits)(b);
}

/* 2 / pi behind the point, after a word of zeros. */
#if F64 && SINGLE
TABLE u64 two_over_pi[21] = {0x0000000000000000u, 0xa2f9836e4e441529u, 0xfc2757d1f534ddc0u,
                             0xdb6295993c439041u, 0xfe5163abdebbc561u, 0xb7246e3a424dd2e0u,
                             0x06492eea09d1921cu, 0xfe1deb1cb129a73eu, 0xe88235f52ebb4484u,
                             0xe99c7026b45f7e41u, 0x3991d639835339f4u, 0x9c845f8bbdf9283bu,
                             0x1ff897ffde05980fu, 0xef2f118b5a0a6d1fu, 0x6d367ecf27cb09b7u,
                             0x4f463f669e5fea2du, 0x7527bac7ebe5f17bu, 0x3d0739f78a5292eau,
                             0x6bfb5fb11f8d5d08u, 0x56033046fc7b6babu, 0xf0cfbc209af4361du};
#endif

/* The same for larger x (Payne and Hanek): the significand times the 192 bits of 2 / pi that
 * decide; what lies above is a multiple of 4, what lies below is too small. */
#if F64 && SINGLE
FN u64 F(reduced_far)(double x, double *r, double *r_low) {
    u64 u = bits_f64(x), sign = u & 0x8000000000000000u;
    u64 m = (u & 0xfffffffffffffu) | 0x10000000000000u;
    i32 at = (i32)(u >> 52 & 0x7ff) - 1013, shift = at & 63;
    const u64 *t = two_over_pi + (at >> 6);
    u64 w2 = t[0] << shift | t[1] >> 1 >> (63 - shift);
    u64 w1 = t[1] << shift | t[2] >> 1 >> (63 - shift);
    u64 w0 = t[2] << shift | t[3] >> 1 >> (63 - shift);
    u64 low = high_product(m, w0) + m * w1;
    u64 top = high_product(m, w1) + m * w2 + (low < m * w1);
    u64 k = (top + 0x2000000000000000u) >> 62;
    i64 part = (i64)(top << 2 | low >> 62);
    double h1 = (double)(i32)(part >> 32) * 0x1p-32;
    double h2 = (double)(part & 0xffffffff) * 0x1p-64 + (double)(low << 2) * 0x1p-128;
    double h = h1 + h2, h_low = (h1 - h) + h2, p = h * 0x1.921fb54442d18p+0;
    double p_low = lost_product_f64(h, 0x1.921fb54442d18p+0, p) + h * 0x1.1a62633145c07p-54;
    p_low = fma_f64(h_low, 0x1.921fb54442d18p+0, p_low);
    double sum = p + p_low, rest = (p - sum) + p_low;
    *r = real_f64(bits_f64(sum) ^ sign), *r_low = real_f64(bits_f64(rest) ^ sign);
    return sign ? 0 - k : k;
}
#endif

/* 2^e 2 / pi without multiples of 4 for e = -8, 0, ... 104, each of the first two parts having 22
 * bits. */
#if !F64 && SINGLE
TABLE double parts_of_two_over_pi[15][3] = {
    {0x1.45e0000000000p-9, 0x1.306dc80000000p-21, 0x1.c882a53f84eb0p-45},
    {0x1.45f3000000000p-1, 0x1.b727200000000p-23, 0x1.054a7f09d5f48p-46},
    {0x1.7cc1b00000000p+1, 0x1.c9c8800000000p-21, 0x1.529fc2757d1f5p-44},
    {0x1.836e400000000p+0, 0x1.c882a00000000p-21, 0x1.4fe13abe8fa9ap-43},
    {0x1.b727200000000p+1, 0x1.054a700000000p-22, 0x1.e13abe8fa9a6fp-43},
    {0x1.2722080000000p+1, 0x1.4a7f000000000p-22, 0x1.3abe8fa9a6ee0p-43},
    {0x1.220a900000000p+1, 0x1.3f84e80000000p-21, 0x1.7d1f534ddc0dbp-44},
    {0x1.529f000000000p-4, 0x1.84eaf80000000p-21, 0x1.1f534ddc0db63p-44},
    {0x1.29fc200000000p+0, 0x1.d5f4700000000p-22, 0x1.a9a6ee06db14bp-43},
    {0x1.fc27500000000p+0, 0x1.f47d400000000p-22, 0x1.a6ee06db14acdp-43},
    {0x1.3abe800000000p-3, 0x1.f534c00000000p-24, 0x1.dc0db6295993cp-44},
    {0x1.abe8f80000000p+1, 0x1.4d37700000000p-22, 0x1.b6c52b3278872p-49},
    {0x1.e8fa980000000p+1, 0x1.3770300000000p-22, 0x1.b6295993c4390p-44},
    {0x1.f534d00000000p+0, 0x1.b81b680000000p-21, 0x1.14acc9e21c821p-43},
    {0x1.34ddc00000000p+0, 0x1.b6c5000000000p-25, 0x1.5993c439041fep-44}};
#endif

/* The same for f32: |x| = 2^e m, m whole and below 2^31, whose products with parts are exact. */
#if !F64 && SINGLE
FN u32 F(reduced_far)(float x, float *r, float *r_low) {
    i32 at = ((i32)(bits_f32(x) >> 23 & 0xff) - 142) >> 3;
    const double *t = parts_of_two_over_pi[at];
    double m = (double)x * real_f64((u64)(1031 - 8 * at) << 52);
    double p1 = m * t[0], b1 = p1 + 0x1.8p52, p2 = m * t[1] + (p1 - (b1 - 0x1.8p52));
    double b2 = p2 + 0x1.8p52, h = ((p2 - (b2 - 0x1.8p52)) + m * t[2]) * 0x1.921fb54442d18p+0;
    *r = (float)h, *r_low = (float)(h - (double)*r);
    return (u32)(bits_f64(b1) + bits_f64(b2));
}
#endif

/* (sin(r) - r) / r^3 and (cos(r) - (1 - z / 2)) / z^2, z = r^2, r up to pi/4 */
FN REAL F(sin_rest)(REAL z) {
#if F64
    REAL z2 = z * z;
    REAL p = AND4(z, z2, z2 * z2, FMA(-7.586455940017973e-13, z, 1.605852751943773e-10),
                  -2.5052106206531682e-08, 2.755731921926441e-06, -0.00019841269841264968,
                  0.008333333333333331);
#else
    REAL p = TRIPLE(z, 2.72487017e-06f, -0.000198400773f, 0.00833333186f);
#endif
    return FMA(z, p, K(-0.16666666666666666, -0.166666667f));
}
FN REAL F(cos_rest)(REAL z) {
#if F64
    REAL z2 = z * z;
    return AND4(z, z2, z2 * z2, FMA(-1.1382280957702634e-11, z, 2.0876141380294955e-09),
                -2.7557317248229367e-07, 2.480158729872029e-05, -0.0013888888888887367,
                0.041666666666666664);
#else
    return TRIPLE(z, 2.45469318e-05f, -0.00138882984f, 0.0416666646f);
#endif
}

/* sin(r + r_low + k pi/2) */
FN REAL F(turned)(REAL r, REAL r_low, UINT k) {
    REAL z = r * r, half = HALF * z, w = 1 - half;
    REAL s = r + FMA(r * z, F(sin_rest)(z), FNMA(half, r_low, r_low));
    REAL c = w + FMA(z * z, F(cos_rest)(z), FNMA(r, r_low, (1 - w) - half));
    return F(real)(F(bits)(WHERE(F(odd)(k), c, s)) ^ ((k << (DIGITS == 52 ? 62 : 30)) & SIGN));
}

/* tan(r + r_low + k pi/2), the quotient of two pairs */
FN REAL F(slope)(REAL r, REAL r_low, UINT k) {
    REAL z = r * r, z_low = F(lost_product)(r, r, z), half = HALF * z;
    REAL more = FMA(r * z_low, K(-0.16666666666666666, -0.166666667f), FNMA(half, r_low, r_low));
    REAL t = FMA(r * z, F(sin_rest)(z), more), s = r + t, s_low = (r - s) + t;
    REAL w = 1 - half, v = FNMA(HALF, z_low, FNMA(r, r_low, z * z * F(cos_rest)(z)));
    v = ((1 - w) - half) + v;
    REAL c = w + v, c_low = (w - c) + v, low;
    REAL n = WHERE(F(odd)(k), -c, s), n_low = WHERE(F(odd)(k), -c_low, s_low);
    return F(quotient)(n, n_low, WHERE(F(odd)(k), s, c), WHERE(F(odd)(k), s_low, c_low), &low);
}

FN UINT F(reduced_angle)(REAL x, int how, REAL *r, REAL *r_low) {
#if SINGLE
    if (how == FAR) return F(reduced_far)(x, r, r_low);
#endif
    return how == QUICK ? F(quick_reduced)(x, r, r_low) : F(reduced_near)(x, r, r_low);
}

FN REAL F(sin_by)(REAL x, int how) {
    REAL r, r_low;
    UINT k = F(reduced_angle)(F(calm)(x), how, &r, &r_low);
    return WHERE(F(is_tiny)(x), x, F(turned)(r, r_low, k));
}
FN REAL F(cos_by)(REAL x, int how) {
    REAL r, r_low;
    UINT k = F(reduced_angle)(F(calm)(x), how, &r, &r_low);
    return F(turned)(r, r_low, k + 1);
}
FN REAL F(tan_by)(REAL x, int how) {
    REAL r, r_low;
    UINT k = F(reduced_angle)(F(calm)(x), how, &r, &r_low);
    return WHERE(F(is_tiny)(x), x, F(slope)(r, r_low, k));
}

FN TRUTH F(plain_angle)(REAL x) { return LESS(F(abs)(x), K(0x1p20, 0x1p11f)); }
FN REAL F(quick_sin)(REAL x) { return F(sin_by)(x, QUICK); }
FN REAL F(quick_cos)(REAL x) { return F(cos_by)(x, QUICK); }
FN REAL F(quick_tan)(REAL x) { return F(tan_by)(x, QUICK); }

/* Infinities and NaN are near; of vectors the far ones are treated one by one. */
FN TRUTH F(is_far)(REAL x) { return LESS(K(0x1p40, 0x1p20f), F(abs)(x)) & LESS(F(abs)(x), INF); }
#if SINGLE
FN REAL F(sin)(REAL x) { return F(is_far)(x) ? F(sin_by)(x, FAR) : F(sin_by)(x, NEAR); }
FN REAL F(cos)(REAL x) { return F(is_far)(x) ? F(cos_by)(x, FAR) : F(cos_by)(x, NEAR); }
FN REAL F(tan)(REAL x) { return F(is_far)(x) ? F(tan_by)(x, FAR) : F(tan_by)(x, NEAR); }
#endif

/* By an argument w up to 1/2: |x|, pi/4 with (|x| - 1) / (|x| + 1), or pi/2 with -1 / |x|. */
FN REAL F(atan)(REAL x) {
    REAL a = F(calm)(LEAST(K(0x1p60, 0x1p30f), F(abs)(x)));
    TRUTH low = LESS(a, HALF), high = LESS(2, a);
    REAL n = WHERE(low, a, WHERE(high, -1, a - 1));
    REAL some = WHERE(low, 0, a), one = WHERE(high, 0, 1);
    REAL d = some + one, d_low = F(lost_sum)(some, one, d);
    REAL from = WHERE(low, 0, WHERE(high, HALF_PI, HALF * HALF_PI));
    REAL from_low = WHERE(low, 0, WHERE(high, HALF_PI_LOW, HALF * HALF_PI_LOW));
    REAL w_low, w = F(quotient)(n, ALL(0), d, d_low, &w_low), z = w * w, z2 = z * z, z4 = z2 * z2;
#if F64
    REAL p =
        AND12(z, z2, z4, -0.0092110635046279265, 0.024999689507521367, -0.038062247949966869,
              0.046278700864186541, -0.052400641544110685, 0.058795731077996842,
              -0.066664351441431374, 0.076922946774826348, -0.090909086188653884,
              0.11111111100881761, -0.14285714285598741, 0.19999999999999485, -0.33333333333333331);
#else
    REAL p = AND4(z, z2, z4, FMA(0.0422474998f, z, -0.0823497628f), 0.11006777f, -0.142797929f,
                  0.19999875f, -0.333333329f);
#endif
    REAL v = from + w, lost = (from - v) + w;
    REAL y = v + (lost + FMA(w * z, p, w_low + from_low));
    return WHERE(F(is_tiny)(x), x, F(signed_as)(y, x));
}

/* (asin(s) - s) / s, z = s^2 up to 1/4 */
FN REAL F(asin_rest)(REAL z) {
    REAL z2 = z * z, z4 = z2 * z2;
#if F64
    return z * AND12(z, z2, z4, 0.02877844261259304, -0.014881409392818066, 0.017419357964884856,
                     0.00545087818772055, 0.010324318288744113, 0.011478952690257387,
                     0.013971235301124539, 0.017352391265909227, 0.022372173002005596,
                     0.030381944137085216, 0.04464285714637338, 0.07499999999998425,
                     0.16666666666666669);
#else
    return z * AND4(z, z2, z4, FMA(0.0337007263f, z, 0.0171437168f), 0.0311017278f, 0.0445993192f,
                    0.0750009476f, 0.166666663f);
#endif
}

/* Above 1/2, asin(a) = pi/2 - 2 asin(s), s the root of (1 - a) / 2. The result is s; asin of it is
 * s + *t. */
FN REAL F(asin_half)(REAL x, REAL *t) {
    REAL a = F(calm)(F(abs)(x));
    TRUTH above = LESS(HALF, a);
    REAL z = WHERE(above, FNMA(HALF, a, HALF), a * a), root = F(root)(z), s = WHERE(above, root, a);
    REAL low = HALF * F(residue)(z, root, root) * F(rough_inverse)(root);
    *t = FMA(s, F(asin_rest)(z), WHERE(above, low, 0));
    return s;
}

FN REAL F(asin)(REAL x) {
    REAL t, s = F(asin_half)(x, &t), v = HALF_PI - 2 * s, low = (HALF_PI - v) - 2 * s;
    REAL size = F(abs)(x), y = WHERE(LESS(HALF, size), v + (low + FNMA(2, t, HALF_PI_LOW)), s + t);
    y = WHERE(LESS(1, size), NOT_A_NUMBER, F(signed_as)(y, x));
    return WHERE(F(is_tiny)(x), x, y);
}

/* pi/2 - asin(x); pi - 2 asin(s) below -1/2, 2 asin(s) above 1/2 */
FN REAL F(acos)(REAL x) {
    REAL t, s = F(asin_half)(x, &t);
    TRUTH far = LESS(x, -HALF), negative = LESS(x, 0);
    REAL from = WHERE(far, 2 * HALF_PI, HALF_PI),
         from_low = WHERE(far, 2 * HALF_PI_LOW, HALF_PI_LOW);
    REAL less = WHERE(far, 2 * s, WHERE(negative, -s, s));
    REAL less_low = WHERE(far, 2 * t, WHERE(negative, -t, t));
    REAL v = from - less, low = (from - v) - less;
    REAL y = WHERE(LESS(HALF, x), 2 * (s + t), v + (low + (from_low - less_low)));
    return WHERE(LESS(1, F(abs)(x)), NOT_A_NUMBER, y);
}

/* ---- erf ---- */

/* Below 3/4: x + x P(x^2). Above: 1 - exp(u(|x| - 3/4)). Of a denormal x by its integer. */
FN REAL F(erf)(REAL x) {
    const REAL change = K(0.75, 0.75f);
    REAL a = F(abs)(x), t = LEAST(change, F(calm)(a)), n, b, r_low, low;
    REAL v = F(limited)(a, change, K(6, 4)) - change, v2 = v * v, v4 = v2 * v2;
    REAL z = t * t, z2 = z * z, z4 = z2 * z2;
#if F64
    REAL p = AND8(z, z2, z4, FMA(-7.795898827002142e-10, z, 1.3720064546777686e-08),
                  -1.6208483801871705e-07, 1.6447424703317362e-06, -1.492473690741966e-05,
                  0.00012055294904839707, -0.0008548325975389692, 0.0052239776071164225,
                  -0.02686617064323777, 0.11283791670945006);
    p = FMA(z, FMA(z, p, -0.37612638903183543), 0.12837916709551256);
    REAL u =
        AND16(v, v2, v4, FMA(1.826738907672301e-12, v, -5.477936868354375e-11),
              7.631418304179769e-10, -6.5544409538215226e-09, 3.863693916158838e-08,
              -1.6248400371024657e-07, 4.716692757630798e-07, -7.038292614025691e-07,
              -1.4379703310784588e-06, 1.4356386917553817e-05, -5.4317627581528156e-05,
              0.00010590291564352086, 0.00012961379718439417, -0.0022704460219676696,
              0.01270562508311636, -0.05289998956541464, -0.8078515419199234, -2.2258736679806765);
    const REAL u0 = ALL(-1.241867260678887), u0_low = ALL(-6.515855086183219e-17);
#else
    REAL p = AND4(z, z2, z4, 7.87587506e-05f, -0.000801686429f, 0.00518908742f, -0.026854212f,
                  0.112835947f);
    p = FMA(z, FMA(z, p, -0.376126267f), 0.128379166f);
    REAL u = AND4(v, v2, v4, TRIPLE(v, -1.78883013e-05f, 0.000304749364f, -0.00242148324f),
                  0.0127820036f, -0.0529211141f, -0.807848735f, -2.2258738f);
    const REAL u0 = ALL(-1.2418673f), u0_low = ALL(4.41984971e-08f);
#endif
    REAL w = v * u, lost;
    u = u0 + w, lost = ((u0 - u) + w) + u0_low;
    REAL r = F(reduced_pair)(u, &n, &b, &r_low);
    REAL s = F(grown)(r, r_low + lost, &low), g = 1 + s;
    REAL k = F(power_of_2)(b), e = g * k, c = 1 - e;
    REAL far = c + (((1 - c) - e) - k * (((1 - g) + s) + low));
    TRUTH denormal = LESS(a, LEAST_NORMAL);
    REAL normal = WHERE(denormal, 1, a), y = WHERE(LESS(a, change), FMA(normal, p, normal), far);
    REAL whole = F(real)(F(bits)(a) | ONES_BITS) - ONES;
    UINT more = F(bits)(FMA(whole, K(0.12837916709551256, 0.128379166f), ONES)) - ONES_BITS;
    y = WHERE(denormal, F(real)(F(bits)(a) + more), y);
    return WHERE(SAME(x, x), F(signed_as)(y, x), x);
}

/* ---- results that are rounded to bf16 or f16 at once ----
 *
 * Within 2^-16 of themselves, so that the rounded result is within 0.504 ulp of bf16 and 0.54 of
 * f16. Of f64 the names are the functions themselves. APPROXIMATE: the processor has instructions
 * for 2^x and 1 / x that are good enough here, approximate_power and approximate_inverse. */

/* 2^x for x from -150 to 0. */
FN REAL F(half_power)(REAL x) {
#if defined(APPROXIMATE) && !F64
    return approximate_power(x + 64) * 0x1p-64f;
#else
    REAL b = x + WHOLE, r = x - (b - WHOLE);
    REAL p = TRIPLE(r, TRIPLE(r, 0.0095701f, 0.05591786f, 0.24024745f), 0.69312181f, 0.99999926f);
    REAL above = F(real)(F(bits)(p) + ((F(bits)(b) + W(64, 64)) << DIGITS));
    return above * K(0x1p-64, 0x1p-64f); /* a denormal one is rounded here */
#endif
}

/* 1 / d for d from 1 to 2: a parabola, and two steps of Newton's method. */
FN REAL F(half_inverse)(REAL d) {
#if defined(APPROXIMATE) && !F64
    return approximate_inverse(d);
#else
    REAL y = TRIPLE(d, 0.32322704f, -1.45452938f, 2.12120053f);
    y = FMA(y, FNMA(d, y, 1), y);
    return FMA(y, FNMA(d, y, 1), y);
#endif
}

/* Of NaN it is some number. */
FN REAL F(number_sigmoid_half)(REAL x) {
    REAL u = F(half_power)(-LESSER(ALL(150), F(abs)(x) * LOG2E));
    return WHERE(LESS(x, 0), u, 1) * F(half_inverse)(1 + u);
}

FN REAL F(sigmoid_half)(REAL x) {
#if F64
    return F(sigmoid)(x);
#else
    return WHERE(SAME(x, x), F(number_sigmoid_half)(x), x);
#endif
}

FN REAL F(silu_half)(REAL x) {
#if F64
    return F(silu)(x);
#else
    return x * F(number_sigmoid_half)(x);
#endif
}

/* x (1 + erf(x / sqrt(2))) / 2: below 0 the factor is half of erfc(|x| / sqrt(2)) = 2^q(|x|),
 * which is nothing from 6 on. */
FN REAL F(gelu_half)(REAL x) {
#if F64
    return x * HALF * (1 + F(erf)(x * K(0.70710678118654752440, 0.707106781f)));
#else
    REAL a = F(abs)(x), t = LESSER(ALL(6), a), t2 = t * t, t4 = t2 * t2;
    REAL h = QUAD(t, t2, 0.0084768485f, -0.0538909407f, -0.458541583f, -1.15121437f);
    h = FMA(TRIPLE(t, -1.79378235e-06f, 6.07262001e-05f, -0.000923186048f), t4, h);
    REAL e = HALF * F(half_power)(t * h);
    e = WHERE(LESS(a, 6), e, 0);
    return x * WHERE(LESS(x, 0), e, 1 - e);
#endif
}
