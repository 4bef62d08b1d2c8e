/* The transcendental primitives of core/prims.def, written once for both types: included twice by
 * backends/cpu/isa/functions.c, with F64 1 and then 0, for every instruction set, and put into
 * CUDA C as text by jit/cuda_functions.c.
 *
 * Every function is straight-line code over selections, so that a loop over it becomes vectors and
 * no operand is slower than another. Two rules follow: operands for which f(x) is x or a constant
 * are replaced by 0 before arithmetic, and denormal results are made as integers, because a
 * product with denormal numbers traps on some processors. Where rounding would cost more than the
 * last half ulp, a pair (x, x_low) stands for the sum of both. The coefficients are near-minimax
 * (Chebyshev) over the range that the comment names; docs/numerics.md has the errors that result.
 *
 * Who includes this defines FN (how a function is declared), TABLE (a constant array), EXACT_FMA
 * (0: fma rounds twice), the types i32 u32 i64 u64, and for both suffixes fma_, abs_, root_, bits_
 * (of the number) and real_ (of the bits), high_product (upper 64 bits of u64 x u64). An empty
 * line ends a unit of the text; a unit without a function is always there. */

#undef F
#undef K
#undef REAL
#undef UINT
#undef SINT
#undef DIGITS
#undef BIAS
#if F64
#define F(name) name##_f64
#define K(wide, narrow) wide
#define REAL double
#define UINT u64
#define SINT i64
#define DIGITS 52
#define BIAS 1023
#else
#define F(name) name##_f32
#define K(wide, narrow) narrow
#define REAL float
#define UINT u32
#define SINT i32
#define DIGITS 23
#define BIAS 127
#endif

#ifndef FMA
#define FMA(a, b, c) F(fma)(a, b, c)
/* Polynomials, the highest coefficient first; x2 and x4 are powers of x. */
#define QUAD(x, x2, a, b, c, d) FMA(FMA(a, x, b), x2, FMA(c, x, d))
#define TRIPLE(x, x2, a, b, c) FMA(a, x2, FMA(b, x, c))
#define AND4(x, x2, x4, h, a, b, c, d) FMA(h, x4, QUAD(x, x2, a, b, c, d))
#define AND8(x, x2, x4, h, a, b, c, d, ...)                                                        \
    AND4(x, x2, x4, AND4(x, x2, x4, h, a, b, c, d), __VA_ARGS__)
#define AND12(x, x2, x4, h, a, b, c, d, ...)                                                       \
    AND8(x, x2, x4, AND4(x, x2, x4, h, a, b, c, d), __VA_ARGS__)
#define AND16(x, x2, x4, h, a, b, c, d, ...)                                                       \
    AND12(x, x2, x4, AND4(x, x2, x4, h, a, b, c, d), __VA_ARGS__)
#define AND20(x, x2, x4, h, a, b, c, d, ...)                                                       \
    AND16(x, x2, x4, AND4(x, x2, x4, h, a, b, c, d), __VA_ARGS__)
/* x + WHOLE has the nearest whole number in its low bits; ONES + a whole number is that number. */
#define WHOLE K(0x1.8p52, 0x1.8p23f)
#define ONES K(0x1p52, 0x1p23f)
#define TINY K(0x1p-60, 0x1p-30f)
#define LEAST_NORMAL K(0x1p-1022, 0x1p-126f)
#define EXPONENT K(0x7ff0000000000000u, 0x7f800000u)
#define SIGN K(0x8000000000000000u, 0x80000000u)
#define INF F(real)(EXPONENT)
#define NOT_A_NUMBER F(real)(K(0x7ff8000000000000u, 0x7fc00000u))
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
    return FMA(-a, b, x);
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
    REAL rest = F(residue)(n, q, d) + (n_low - q * d_low);
    REAL sum = FMA(rest, inverse, q);
    *low = FMA(rest, inverse, q - sum);
    return sum;
}

/* 1 / s within one part in 70, for corrections; finite for 0. */
FN REAL F(rough_inverse)(REAL s) {
    REAL y = F(real)(K(0x7fde623822fc16e6u, 0x7ef311c7u) - F(bits)(s));
    return y * (2 - s * y);
}

/* x, or 0 where it is so small that functions are x or constant. */
FN REAL F(calm)(REAL x) { return F(abs)(x) < TINY ? 0 : x; }

FN REAL F(limited)(REAL x, REAL low, REAL high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* ---- exponentials ---- */

/* 2^n p, p from 2^-2 to 2^20; b is n + WHOLE. A denormal result is made as an integer. */
FN REAL F(scaled)(REAL p, REAL b) {
    UINT high = F(bits)(p) + (F(bits)(b) << DIGITS);
    REAL multiple = F(real)(high + ((UINT)K(1074, 149) << DIGITS));
    UINT low = F(bits)(multiple + ONES) - F(bits)(ONES);
    SINT above = (SINT)high;
    high = above > (SINT)EXPONENT ? EXPONENT : high;
    return F(real)(above < (SINT)1 << DIGITS ? low : high);
}

/* exp(r + r_low) - 1 as a pair, |r| up to half of log 2. */
FN REAL F(grown)(REAL r, REAL r_low, REAL *low) {
    REAL r2 = r * r, r4 = r2 * r2, half = FMA(K(0.5, 0.5f), r2, r_low);
#if F64
    REAL q = AND8(r, r2, r4, FMA(2.09112987659402e-09, r, 2.5100472505694996e-08),
                  2.7557282838800484e-07, 2.7557268276905696e-06, 2.4801587317228724e-05,
                  0.00019841269863171557, 0.0013888888888886537, 0.008333333333330039,
                  0.041666666666666664, 0.16666666666666669);
#else
    REAL q = AND4(r, r2, r4, 0.00019882773f, 0.00139262508f, 0.00833332084f, 0.0416665542f,
                  0.166666667f);
#endif
    REAL t = FMA(r2 * r, q, half), s = r + t;
    *low = (r - s) + t;
    return s;
}

/* x = n log 2 + r + r_low, |n| up to 2^11 (2^8). */
FN REAL F(reduced_exp)(REAL x, REAL *n, REAL *b, REAL *r_low) {
    *b = FMA(x, LOG2E, WHOLE);
    *n = *b - WHOLE;
    REAL high = FMA(*n, -LN2_SHORT, x), r = FMA(*n, -LN2_REST, high);
    *r_low = FMA(*n, -LN2_REST, high - r);
    return r;
}

FN REAL F(exp)(REAL x) {
    REAL n, b, r_low, low;
    REAL y = F(calm)(F(limited)(x, K(-746, -105), K(710, 89)));
    REAL r = F(reduced_exp)(y, &n, &b, &r_low);
    y = F(scaled)(1 + F(grown)(r, r_low, &low), b);
    return x == x ? y : x;
}

FN REAL F(exp2)(REAL x) {
    REAL low, y = F(calm)(F(limited)(x, K(-1080, -155), K(1024, 128)));
    REAL b = y + WHOLE, r = y - (b - WHOLE), t = r * LN2;
    REAL t_low = FMA(r, LN2_LOW, F(lost_product)(r, LN2, t));
    y = F(scaled)(1 + F(grown)(t, t_low, &low), b);
    return x == x ? y : x;
}

/* (exp(x) - 1) / 4 as a pair; the quarter cannot overflow. */
FN REAL F(quarter_growth)(REAL x, REAL *low) {
    REAL n, b, r_low, s_low;
    REAL r = F(reduced_exp)(x, &n, &b, &r_low);
    REAL s = F(grown)(r, r_low, &s_low);
    REAL k = F(real)((F(bits)(b) + (BIAS - 2)) << DIGITS);
    REAL a = k - K(0.25, 0.25f), a_low = (k - a) - K(0.25, 0.25f), m = k * s;
    REAL v = a + m, w = ((a - v) + m) + FMA(k, s_low, a_low);
    REAL sum = v + w;
    *low = (v - sum) + w;
    return sum;
}

FN REAL F(expm1)(REAL x) {
    REAL low, y = F(calm)(F(limited)(x, K(-43, -20), K(710, 89)));
    y = 4 * F(quarter_growth)(y, &low);
    return !(F(abs)(x) >= TINY) ? x : y;
}

/* E / (E + 2), E = exp(2 |x|) - 1 */
FN REAL F(tanh)(REAL x) {
    REAL low, rest, y = F(calm)(F(limited)(F(abs)(x), 0, K(20, 10)));
    REAL e = F(quarter_growth)(2 * y, &low), d = e + K(0.5, 0.5f);
    y = F(quotient)(e, low, d, F(lost_sum)(e, K(0.5, 0.5f), d) + low, &rest);
    return !(F(abs)(x) >= TINY) ? x : F(signed_as)(y, x);
}

/* (E + E / (E + 1)) / 2, E = exp(|x|) - 1 */
FN REAL F(sinh)(REAL x) {
    REAL low, rest, y = F(calm)(F(limited)(F(abs)(x), 0, K(710.5, 89.5f)));
    REAL e = F(quarter_growth)(y, &low), some = e > K(0x1p100, 0x1p60f) ? K(0x1p100, 0x1p60f) : e;
    REAL d = some + K(0.25, 0.25f);
    REAL q = F(quotient)(some, low, d, F(lost_sum)(some, K(0.25, 0.25f), d) + low, &rest);
    q = K(0.25, 0.25f) * q;
    REAL sum = e + q, lost = (e - sum) + q;
    y = 2 * (sum + (lost + FMA(K(0.25, 0.25f), rest, low)));
    return !(F(abs)(x) >= TINY) ? x : F(signed_as)(y, x);
}

FN REAL F(cosh)(REAL x) {
    REAL low, y = F(calm)(F(limited)(F(abs)(x), 0, K(710.5, 89.5f)));
    REAL e = F(quarter_growth)(y, &low), sum = e + K(0.25, 0.25f);
    REAL lost = F(lost_sum)(e, K(0.25, 0.25f), sum) + low;
    REAL inverse = 1 / FMA(e > K(0x1p100, 0x1p60f) ? K(0x1p100, 0x1p60f) : e, 4, 1);
    y = 2 * (sum + FMA(K(0.25, 0.25f), inverse, lost));
    return x == x ? y : x;
}

/* factor / (1 + exp(-x)): where x < 0, factor exp(x) / (1 + exp(x)). */
FN REAL F(logistic)(REAL x, REAL factor) {
    REAL n, b, r_low, low, rest, y = -F(abs)(x);
    y = F(calm)(y < K(-760, -120) ? K(-760, -120) : y);
    REAL r = F(reduced_exp)(y, &n, &b, &r_low);
    REAL s = F(grown)(r, r_low, &low), p = 1 + s;
    low = ((1 - p) + s) + low;
    REAL m = n < K(-900, -90) ? K(-900, -90) + WHOLE : b;
    REAL k = F(real)((F(bits)(m) + BIAS) << DIGITS), e = p * k;
    REAL d = 1 + e, d_low = FMA(low, k, (1 - d) + e);
    REAL above = x < 0 ? p : 1, above_low = x < 0 ? low : 0, top = above * factor;
    REAL top_low = FMA(above_low, factor, F(lost_product)(above, factor, top));
    REAL q = F(quotient)(top, top_low, d, d_low, &rest);
    return F(scaled)(q, x < 0 ? b : WHOLE);
}

FN REAL F(sigmoid)(REAL x) {
    REAL y = F(logistic)(x, 1);
    return x == x ? y : x;
}

/* x / 2 for small x, of a denormal by its integer, ties to even. */
FN REAL F(half_of)(REAL x) {
    UINT u = F(bits)(x) & ~SIGN, low = (u >> 1) + (u & u >> 1 & 1);
    UINT high = u - ((UINT)1 << DIGITS);
    u = u < (UINT)2 << DIGITS ? low : high;
    return F(real)(u | (F(bits)(x) & SIGN));
}

/* x sigmoid(x) */
FN REAL F(silu)(REAL x) {
    REAL size = F(abs)(x), y = F(logistic)(x, F(limited)(size, TINY, K(0x1p19, 0x1p19f)));
    y = F(signed_as)(y, x);
    y = size < TINY ? F(half_of)(x) : y;
    y = x == -INF ? NOT_A_NUMBER : y;
    return !(x <= K(0x1p19, 0x1p19f)) ? x : y;
}

/* ---- logarithms ---- */

/* x = 2^e (1 + f), 1 + f from the root of 1/2 to the root of 2; denormals by their integer. */
FN REAL F(reduced_log)(REAL x, REAL *e) {
    const UINT low = K(0x3fe6a09e667f3bcdu, 0x3f3504f3u);
    REAL whole = F(real)(F(bits)(x) | F(bits)(ONES)) - ONES;
    bool denormal = x < LEAST_NORMAL;
    UINT u = denormal ? F(bits)(whole) : F(bits)(x);
    UINT k = (u + (((UINT)BIAS << DIGITS) - low)) >> DIGITS;
    *e = F(real)(k | F(bits)(ONES)) - (ONES + (denormal ? K(2097, 276) : BIAS));
    return F(real)(u - (k << DIGITS) + ((UINT)BIAS << DIGITS)) - 1;
}

/* log(1 + f) - f */
FN REAL F(log_rest)(REAL f) {
    REAL f2 = f * f, f4 = f2 * f2;
#if F64
    REAL p =
        AND20(f, f2, f4, 0.02326410778979151, -0.05396431571065815, 0.05919124390584625,
              -0.051385630848545784, 0.05065308436417936, -0.05500674000546895, 0.0589854017332325,
              -0.06256787239944622, 0.06666014732774624, -0.07142414601647261, 0.07692315900612398,
              -0.0833335005291839, 0.09090909371978043, -0.09999999634270115, 0.1111111109982403,
              -0.12500000004330505, 0.14285714285851, -0.16666666666643182, 0.19999999999999457,
              -0.2500000000000004, 0.3333333333333333);
#else
    REAL p = AND8(f, f2, f4, 0.0697158481f, -0.114800684f, 0.116855803f, -0.124256546f,
                  0.142490396f, -0.166678031f, 0.200007162f, -0.24999997f, 0.333333312f);
#endif
    return f2 * FMA(f, p, K(-0.5, -0.5f));
}

/* The logarithm y of x, put right where x is no positive number. */
FN REAL F(log_special)(REAL x, REAL y) {
    y = x < INF ? y : x;
    y = x < 0 ? NOT_A_NUMBER : y;
    return x == 0 ? -INF : y;
}

/* e log 2 + f + t, f + t being log(1 + f) */
FN REAL F(log_sum)(REAL e, REAL f, REAL t) {
    REAL k = e * LN2_SHORT, high = k + f, low = (k - high) + f;
    return high + (low + FMA(e, LN2_REST, t));
}

FN REAL F(log)(REAL x) {
    REAL e, f = F(reduced_log)(x, &e);
    return F(log_special)(x, F(log_sum)(e, f, F(log_rest)(f)));
}

/* log(1 + f) times c + c_low; *low is what the result has lost. */
FN REAL F(log_in_base)(REAL f, REAL c, REAL c_low, REAL *low) {
    REAL t = F(log_rest)(f), h = f + t, rest = (f - h) + t, p = h * c;
    *low = F(lost_product)(h, c, p) + FMA(h, c_low, rest * c);
    return p;
}

FN REAL F(log2)(REAL x) {
    REAL e, low, f = F(reduced_log)(x, &e), p = F(log_in_base)(f, LOG2E, LOG2E_LOW, &low);
    REAL sum = e + p;
    return F(log_special)(x, sum + (((e - sum) + p) + low));
}

FN REAL F(log10)(REAL x) {
    REAL e, low, f = F(reduced_log)(x, &e), p = F(log_in_base)(f, LOG10E, LOG10E_LOW, &low);
    REAL k = e * LOG10_2_SHORT, sum = k + p;
    return F(log_special)(x, sum + (((k - sum) + p) + FMA(e, LOG10_2_REST, low)));
}

/* What 1 + x loses goes into f, and what f loses of it is divided by 1 + f. */
FN REAL F(log1p)(REAL x) {
    REAL e, y = F(calm)(x), u = 1 + y, lost = F(lost_sum)(1, y, u);
    REAL f = F(reduced_log)(u, &e),
         c = lost * F(real)(F(bits)(BIAS + WHOLE - (e < BIAS ? e : BIAS - 1)) << DIGITS);
    REAL h = f + c, rest = (f - h) + c;
    REAL t = FMA(rest, FMA(h, h - 1, 1), F(log_rest)(h));
    y = F(log_special)(u, F(log_sum)(e, h, t));
    return !(F(abs)(x) >= TINY) ? x : y;
}

/* ---- powers ---- */

/* log2 as a pair, to about 2^-65 (2^-40): with s = f / (2 + f) and z = s^2,
 * log(1 + f) = s (2 + z (2/3 + z Q(z))). */
FN REAL F(log2_pair)(REAL x, REAL *low) {
    REAL e, s_low, f = F(reduced_log)(x, &e), d = 2 + f, d_low = f - (d - 2);
    REAL s = F(quotient)(f, 0, d, d_low, &s_low);
    REAL z = s * s, z_low = FMA(2 * s, s_low, F(lost_product)(s, s, z)), z2 = z * z, z4 = z2 * z2;
#if F64
    REAL q = z * AND8(z, z2, z4, 0.1076362151501126, 0.10456195110401492, 0.11766819021629554,
                      0.13333296397963834, 0.1538461576290815, 0.1818181817964499,
                      0.2222222222222847, 0.28571428571428564, 0.4);
#else
    REAL q = z * QUAD(z, z2, 0.1912133f, 0.222047299f, 0.285715321f, 0.399999999f);
    z4 = z4;
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

/* All bits set, or none: conditions that are combined. */
FN UINT F(mask)(bool condition) { return 0 - (UINT)condition; }
FN REAL F(pick)(UINT mask, REAL yes, REAL no) {
    return F(real)((F(bits)(yes) & mask) | (F(bits)(no) & ~mask));
}

/* r is |x|^y for ordinary numbers; now for all. */
FN REAL F(power_special)(REAL x, REAL y, REAL r) {
    REAL size = F(abs)(x), times = F(abs)(y), half = K(0.5, 0.5f) * F(limited)(times, 1, 4 * ONES);
    UINT whole = F(mask)(times >= ONES) | F(mask)((times + ONES) - ONES == times);
    UINT odd = whole & F(mask)(half < ONES) & F(mask)((half + ONES) - ONES != half);
    UINT grows = F(mask)(size > 1) ^ F(mask)(!(y > 0));
    UINT ends = F(mask)(size == 0) | F(mask)(size == INF) | F(mask)(times == INF);
    r = F(pick)(ends, F(real)(grows & EXPONENT), r);
    r = size == 1 ? 1 : r;
    r = F(real)(F(bits)(r) | (odd & F(bits)(x) & SIGN));
    r = F(pick)(F(mask)(x < 0) & F(mask)(size < INF) & ~whole, NOT_A_NUMBER, r);
    r = F(pick)(F(mask)(x == x) & F(mask)(y == y), r, x + y);
    return F(pick)(F(mask)(y == 0) | F(mask)(x == 1), 1, r);
}

FN REAL F(pow)(REAL x, REAL y) {
    const REAL most = K(0x1p70, 0x1p40f), least = K(0x1p-70, 0x1p-40f), end = K(1100, 160);
    REAL low, lost, size = F(abs)(x), times = F(limited)(F(abs)(y), least, most);
    size = size > 0 ? size : 1;
    size = size < INF ? size : 1;
    REAL h = F(log2_pair)(size, &low), a = F(signed_as)(times, y);
    REAL p = a * h, p_low = FMA(a, low, F(lost_product)(a, h, p));
    p_low = F(abs)(p) > end ? 0 : p_low;
    p = F(limited)(p, -end, K(1024.25, 128.25f));
    REAL b = p + WHOLE, r = p - (b - WHOLE), t = r * LN2;
    REAL t_low = F(lost_product)(r, LN2, t) + FMA(r, LN2_LOW, p_low * LN2), sum = t + t_low;
    t_low = (t - sum) + t_low;
    return F(power_special)(x, y, F(scaled)(1 + F(grown)(sum, t_low, &lost), b));
}

/* ---- trigonometry ---- */

/* x = k pi/2 + r + r_low, |x| < 2^40; the low bits of the result are those of k. f32 reduces in
 * f64. */
FN UINT F(reduced_near)(REAL x, REAL *r, REAL *r_low) {
#if F64
    REAL b = FMA(x, 0x1.45f306dc9c883p-1, WHOLE), k = b - WHOLE;
    REAL a = residue_f64(x, k, HALF_PI), p = k * HALF_PI_LOW, h = a - p;
    REAL low = lost_sum_f64(a, -p, h) - lost_product_f64(k, HALF_PI_LOW, p);
    low = FMA(k, 0x1.f1976b7ed8fbcp-110, low);
    *r = h + low;
    *r_low = (h - *r) + low;
    return bits_f64(b);
#else
    double b = fma_f64((double)x, 0x1.45f306dc9c883p-1, 0x1.8p52), k = b - 0x1.8p52;
    double a = residue_f64((double)x, k, 0x1.921fb54442d18p+0);
    a = fma_f64(-k, 0x1.1a62633145c07p-54, a);
    *r = (float)a;
    *r_low = (float)(a - (double)*r);
    return (u32)bits_f64(b);
#endif
}

/* 2 / pi behind the point, after a word of zeros. */
#if F64
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
#if F64
FN u64 reduced_far(double x, double *r, double *r_low) {
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

/* sin(r) - r and cos(r) - (1 - z / 2), z = r^2, r up to pi/4 */
FN REAL F(sin_rest)(REAL r, REAL z, REAL z2) {
#if F64
    REAL p = AND4(z, z2, z2 * z2, FMA(-7.586455940017973e-13, z, 1.605852751943773e-10),
                  -2.5052106206531682e-08, 2.755731921926441e-06, -0.00019841269841264968,
                  0.008333333333333331);
#else
    REAL p = TRIPLE(z, z2, 2.72487017e-06f, -0.000198400773f, 0.00833333186f);
#endif
    return r * z * FMA(z, p, K(-0.16666666666666666, -0.166666667f));
}
FN REAL F(cos_rest)(REAL z, REAL z2) {
#if F64
    REAL p = AND4(z, z2, z2 * z2, FMA(-1.1382280957702634e-11, z, 2.0876141380294955e-09),
                  -2.7557317248229367e-07, 2.480158729872029e-05, -0.0013888888888887367,
                  0.041666666666666664);
#else
    REAL p = TRIPLE(z, z2, 2.45469318e-05f, -0.00138882984f, 0.0416666646f);
#endif
    return z2 * p;
}

/* sin(r + r_low + k pi/2) */
FN REAL F(turned)(REAL r, REAL r_low, UINT k) {
    REAL z = r * r, z2 = z * z, half = K(0.5, 0.5f) * z, w = 1 - half;
    REAL s = r + (F(sin_rest)(r, z, z2) + FMA(-half, r_low, r_low));
    REAL c = w + (((1 - w) - half) + FMA(-r, r_low, F(cos_rest)(z, z2)));
    UINT odd = 0 - (k & 1), u = (F(bits)(c) & odd) | (F(bits)(s) & ~odd);
    return F(real)(u ^ ((k & 2) << K(62, 30)));
}

/* tan(r + r_low + k pi/2), the quotient of two pairs */
FN REAL F(slope)(REAL r, REAL r_low, UINT k) {
    REAL z = r * r, z2 = z * z, z_low = F(lost_product)(r, r, z), half = K(0.5, 0.5f) * z;
    REAL more = FMA(r * z_low, K(-0.16666666666666666, -0.166666667f), FMA(-half, r_low, r_low));
    REAL t = F(sin_rest)(r, z, z2) + more, s = r + t, s_low = (r - s) + t;
    REAL w = 1 - half, v = FMA(K(-0.5, -0.5f), z_low, FMA(-r, r_low, F(cos_rest)(z, z2)));
    v = ((1 - w) - half) + v;
    REAL c = w + v, c_low = (w - c) + v, low;
    bool odd = (k & 1) != 0;
    return F(quotient)(odd ? -c : s, odd ? -c_low : s_low, odd ? s : c, odd ? s_low : c_low, &low);
}

/* For |x| < 2^40, infinities and NaN; loops of the CPU treat the others one by one. */
FN REAL F(near_sin)(REAL x) {
    REAL r, r_low;
    UINT k = F(reduced_near)(F(calm)(x), &r, &r_low);
    r = F(turned)(r, r_low, k);
    return F(abs)(x) < TINY ? x : r;
}
FN REAL F(near_cos)(REAL x) {
    REAL r, r_low;
    UINT k = F(reduced_near)(F(calm)(x), &r, &r_low);
    return F(turned)(r, r_low, k + 1);
}
FN REAL F(near_tan)(REAL x) {
    REAL r, r_low;
    UINT k = F(reduced_near)(F(calm)(x), &r, &r_low);
    r = F(slope)(r, r_low, k);
    return F(abs)(x) < TINY ? x : r;
}
/* The upper bit says that x is finite and too large for that. */
FN UINT F(far_bits)(REAL x) {
    UINT u = F(bits)(x) & ~SIGN;
    return ~(u - F(bits)(K(0x1p40, 0x1p40f))) & (u - EXPONENT);
}
FN bool F(is_far)(REAL x) { return (F(far_bits)(x) & SIGN) != 0; }

FN UINT F(reduced)(REAL x, REAL *r, REAL *r_low) {
    double wide, wide_low;
    u64 k = reduced_far((double)x, &wide, &wide_low);
    *r = (REAL)wide;
    *r_low = (REAL)((wide - (double)*r) + wide_low);
    return (UINT)k;
}

FN REAL F(sin)(REAL x) {
    REAL r, r_low;
    if (!F(is_far)(x)) return F(near_sin)(x);
    UINT k = F(reduced)(x, &r, &r_low);
    return F(turned)(r, r_low, k);
}

FN REAL F(cos)(REAL x) {
    REAL r, r_low;
    if (!F(is_far)(x)) return F(near_cos)(x);
    UINT k = F(reduced)(x, &r, &r_low);
    return F(turned)(r, r_low, k + 1);
}

FN REAL F(tan)(REAL x) {
    REAL r, r_low;
    if (!F(is_far)(x)) return F(near_tan)(x);
    UINT k = F(reduced)(x, &r, &r_low);
    return F(slope)(r, r_low, k);
}

/* By an argument w up to 1/2: |x|, pi/4 with (|x| - 1) / (|x| + 1), or pi/2 with -1 / |x|. */
FN REAL F(atan)(REAL x) {
    REAL a = F(calm)(F(limited)(F(abs)(x), 0, K(0x1p60, 0x1p30f)));
    bool low = a<K(0.5, 0.5f), high = a> 2;
    REAL n = low ? a : high ? -1 : a - 1, most = low ? 0 : a, one = high ? 0 : 1;
    REAL d = most + one, d_low = F(lost_sum)(most, one, d);
    REAL from = low ? 0 : high ? HALF_PI : K(0.5, 0.5f) * HALF_PI;
    REAL from_low = low ? 0 : high ? HALF_PI_LOW : K(0.5, 0.5f) * HALF_PI_LOW;
    REAL w_low, w = F(quotient)(n, 0, d, d_low, &w_low), z = w * w, z2 = z * z, z4 = z2 * z2;
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
    return !(F(abs)(x) >= TINY) ? x : F(signed_as)(y, x);
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
    REAL a = F(calm)(F(abs)(x)), z = a > K(0.5, 0.5f) ? K(0.5, 0.5f) * (1 - a) : a * a;
    REAL root = F(root)(z), s = a > K(0.5, 0.5f) ? root : a;
    REAL low = K(0.5, 0.5f) * F(residue)(z, root, root) * F(rough_inverse)(root);
    *t = FMA(s, F(asin_rest)(z), a > K(0.5, 0.5f) ? low : 0);
    return s;
}

FN REAL F(asin)(REAL x) {
    REAL t, s = F(asin_half)(x, &t), v = HALF_PI - 2 * s, low = (HALF_PI - v) - 2 * s;
    REAL y = F(abs)(x) > K(0.5, 0.5f) ? v + (low + FMA(-2, t, HALF_PI_LOW)) : s + t;
    y = F(abs)(x) > 1 ? NOT_A_NUMBER : F(signed_as)(y, x);
    return !(F(abs)(x) >= TINY) ? x : y;
}

/* pi/2 - asin(x); pi - 2 asin(s) below -1/2, 2 asin(s) above 1/2 */
FN REAL F(acos)(REAL x) {
    REAL t, s = F(asin_half)(x, &t);
    bool far = x < K(-0.5, -0.5f), negative = x < 0;
    REAL from = far ? 2 * HALF_PI : HALF_PI, from_low = far ? 2 * HALF_PI_LOW : HALF_PI_LOW;
    REAL less = far ? 2 * s : negative ? -s : s, less_low = far ? 2 * t : negative ? -t : t;
    REAL v = from - less, low = (from - v) - less;
    REAL y = x > K(0.5, 0.5f) ? 2 * (s + t) : v + (low + (from_low - less_low));
    y = F(abs)(x) > 1 ? NOT_A_NUMBER : y;
    return x == x ? y : x;
}

/* ---- erf ---- */

/* Below 3/4: x + x P(x^2). Above: 1 - exp(u(|x| - 3/4)). Of a denormal x by its integer. */
FN REAL F(erf)(REAL x) {
    const REAL change = K(0.75, 0.75f);
    REAL a = F(abs)(x), t = F(limited)(F(calm)(a), 0, change), n, b, r_low, low;
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
    const REAL u0 = -1.241867260678887, u0_low = -6.515855086183219e-17;
#else
    REAL p = AND4(z, z2, z4, 7.87587506e-05f, -0.000801686429f, 0.00518908742f, -0.026854212f,
                  0.112835947f);
    p = FMA(z, FMA(z, p, -0.376126267f), 0.128379166f);
    REAL u = AND4(v, v2, v4, TRIPLE(v, v2, -1.78883013e-05f, 0.000304749364f, -0.00242148324f),
                  0.0127820036f, -0.0529211141f, -0.807848735f, -2.2258738f);
    const REAL u0 = -1.2418673f, u0_low = 4.41984971e-08f;
#endif
    REAL w = v * u, lost;
    u = u0 + w, lost = ((u0 - u) + w) + u0_low;
    REAL r = F(reduced_exp)(u, &n, &b, &r_low);
    REAL s = F(grown)(r, r_low + lost, &low), g = 1 + s;
    REAL k = F(real)((F(bits)(b) + BIAS) << DIGITS), e = g * k, c = 1 - e;
    REAL far = c + (((1 - c) - e) - k * (((1 - g) + s) + low));
    REAL normal = a < LEAST_NORMAL ? 1 : a, y = FMA(normal, p, normal);
    y = a < change ? y : far;
    REAL whole = F(real)(F(bits)(a) | F(bits)(ONES)) - ONES;
    UINT more = F(bits)(FMA(whole, K(0.12837916709551256, 0.128379166f), ONES)) - F(bits)(ONES);
    y = a < LEAST_NORMAL ? F(real)(F(bits)(a) + more) : y;
    return x == x ? F(signed_as)(y, x) : x;
}
