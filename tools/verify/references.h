/* What the functions of core/ops/prims.def should be: in long double, whose 64 digits leave an
 * error of about 2^-10 ulp of f64. And operands that show what they are worth, for etch-verify and
 * tests. A function that C has not (sigmoidl) is written here. */
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

static inline long double sigmoidl(long double x) { return 1 / (1 + expl(-x)); }
static inline long double silul(long double x) {
    return isinf(x) ? (x < 0 ? NAN : x) : x < -11000 ? -0.0L : x / (1 + expl(-x));
}

static const reference references[] = {
#define PRIM(id, name, arity, types, class, meaning)
#define FUNCTION(id, name, strip, text, low, high, ...) {#name, name##l, etch_##name, __VA_ARGS__},
#include "core/ops/prims.def"
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
