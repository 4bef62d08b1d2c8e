/* What the functions of one operand should be: in long double, whose 64 digits leave an error of
 * about 2^-10 ulp of f64. And operands that show what they are worth, for etch-verify and tests. */
#ifndef ETCH_TOOLS_VERIFY_REFERENCES_H
#define ETCH_TOOLS_VERIFY_REFERENCES_H

#include <etch/etch.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct reference {
    const char *name;
    long double (*exact)(long double x);
    etch_tensor *(*op)(etch_tensor *x);
    double low, high;           /* where it is neither constant nor infinite in f32 */
    double low_wide, high_wide; /* and in f64 */
    double special;             /* an operand outside of the ordinary range */
} reference;

static inline long double exact_sigmoid(long double x) { return 1 / (1 + expl(-x)); }
static inline long double exact_silu(long double x) {
    return isinf(x) ? (x < 0 ? NAN : x) : x < -11000 ? -0.0L : x / (1 + expl(-x));
}

static const reference references[] = {
    {"exp", expl, etch_exp, -104, 89, -746, 710, -1e4},
    {"exp2", exp2l, etch_exp2, -150, 128, -1075, 1024, -1e4},
    {"expm1", expm1l, etch_expm1, -18, 89, -38, 710, -1e4},
    {"sigmoid", exact_sigmoid, etch_sigmoid, -104, 18, -746, 38, -1e4},
    {"silu", exact_silu, etch_silu, -108, 18, -752, 38, -1e4},
    {"tanh", tanhl, etch_tanh, -10, 10, -20, 20, 1e4},
    {"sinh", sinhl, etch_sinh, -90, 90, -711, 711, 1e4},
    {"cosh", coshl, etch_cosh, -90, 90, -711, 711, 1e4},
    {"log", logl, etch_log, 0.5, 2, 0.5, 2, 0},
    {"log2", log2l, etch_log2, 0.5, 2, 0.5, 2, 0},
    {"log10", log10l, etch_log10, 0.5, 2, 0.5, 2, 0},
    {"log1p", log1pl, etch_log1p, -1, 2, -1, 2, -1},
    {"sin", sinl, etch_sin, -100, 100, -100, 100, 1e6},
    {"cos", cosl, etch_cos, -100, 100, -100, 100, 1e6},
    {"tan", tanl, etch_tan, -100, 100, -100, 100, 1e6},
    {"asin", asinl, etch_asin, -1, 1, -1, 1, 2},
    {"acos", acosl, etch_acos, -1, 1, -1, 1, 2},
    {"atan", atanl, etch_atan, -8, 8, -8, 8, 1e30},
    {"erf", erfl, etch_erf, -4, 4, -6, 6, 1e4},
};
enum { REFERENCES = sizeof references / sizeof *references };

/* Pseudo-random, the same everywhere. */
static inline uint64_t reference_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Operand k: numbers that are special; every third one of any exponent and sign; the others even
 * over the range, or over a part of it around 0. */
static inline double reference_operand(const reference *r, bool wide, int64_t k, uint64_t *state) {
    static const double special[] = {
        0,      -0.0,    INFINITY, -INFINITY, NAN,       1,    -1,    0.5,   -0.5,  2,     -2,
        -90,    -104,    -1e4,     1e4,       -745,      -750, 88.73, 709.8, 710.4, 1e-42, -1e-42,
        1e-310, -1e-310, 5e-324,   0x1p-126,  0x1p-1022, 1e30, -1e30, 1e300, -1e300};
    uint64_t u = reference_bits(state);
    double part = (double)(u >> 11) * 0x1p-53, low = wide ? r->low_wide : r->low, v;
    if (k < (int64_t)(sizeof special / sizeof *special)) return special[k];
    if (k % 3 == 1) return low + part * ((wide ? r->high_wide : r->high) - low);
    if (k % 3 == 2) return (low + part * ((wide ? r->high_wide : r->high) - low)) / 64;
    if (wide) return memcpy(&v, &u, 8), v;
    uint32_t narrow = (uint32_t)u;
    float f;
    return memcpy(&f, &narrow, 4), f;
}

/* The distance of y from the exact result in ulp of the dtype. Infinity is the power of two behind
 * the largest number; a NaN or a zero of the other sign is infinitely far off. */
static inline double reference_error(bool wide, double y, long double exact) {
    int digits = wide ? DBL_MANT_DIG : FLT_MANT_DIG, least = wide ? DBL_MIN_EXP : FLT_MIN_EXP;
    int most = wide ? DBL_MAX_EXP : FLT_MAX_EXP, exponent;
    if (isnan(exact) || isnan(y)) return isnan(exact) && isnan(y) ? 0 : INFINITY;
    long double end = ldexpl(1, most);
    if (fabsl(exact) > end) exact = copysignl(end, exact);
    if (exact == 0 && y == 0) return !signbit(exact) == !signbit(y) ? 0 : INFINITY;
    long double got = isinf(y) ? copysignl(end, y) : (long double)y;
    frexpl(exact, &exponent);
    if (exponent < least) exponent = least;
    if (exponent > most) exponent = most;
    return (double)(fabsl(got - exact) / ldexpl(1, exponent - digits));
}

#endif
