/* Derivatives of functions of one number, as calculus has them: of the operand x, or of the result
 * y where that is shorter. */
#include "core/autograd/rules.h"

/* SLOPE(name, formula): the gradient times what the formula gives. */
#define SLOPE(name, formula)                                                                       \
    RULE(name) { d->to[0] = etch_mul(grad_of(d), formula); }
#define x operand(d, 0)
#define y result(d)

static const double ln2 = 0.69314718055994530942, ln10 = 2.30258509299404568402;

/* ---- powers and logarithms ---- */

RULE(sqrt) { d->to[0] = etch_div(grad_of(d), etch_mul_scalar(y, 2)); }
RULE(log) { d->to[0] = etch_div(grad_of(d), x); }
RULE(log2) { d->to[0] = etch_div(grad_of(d), etch_mul_scalar(x, ln2)); }
RULE(log10) { d->to[0] = etch_div(grad_of(d), etch_mul_scalar(x, ln10)); }
RULE(log1p) { d->to[0] = etch_div(grad_of(d), etch_add_scalar(x, 1)); }
SLOPE(rsqrt, etch_mul_scalar(etch_pow_scalar(y, 3), -0.5))
SLOPE(reciprocal, etch_neg(etch_square(y)))
SLOPE(exp, y)
SLOPE(exp2, etch_mul_scalar(y, ln2))
SLOPE(expm1, etch_add_scalar(y, 1))

/* ---- angles ---- */

static etch_tensor *one_less_square(etch_tensor *t) { return etch_rsub_scalar(etch_square(t), 1); }
static etch_tensor *one_and_square(etch_tensor *t) { return etch_add_scalar(etch_square(t), 1); }

SLOPE(sin, etch_cos(x))
SLOPE(cos, etch_neg(etch_sin(x)))
SLOPE(tan, one_and_square(y))
SLOPE(asin, etch_rsqrt(one_less_square(x)))
SLOPE(acos, etch_neg(etch_rsqrt(one_less_square(x))))
RULE(atan) { d->to[0] = etch_div(grad_of(d), one_and_square(x)); }
SLOPE(sinh, etch_cosh(x))
SLOPE(cosh, etch_sinh(x))

/* ---- of neural networks ---- */

SLOPE(tanh, one_less_square(y))
SLOPE(sigmoid, etch_mul(y, etch_rsub_scalar(y, 1)))
/* 2 / sqrt(pi) exp(-x^2) */
SLOPE(erf, etch_mul_scalar(etch_exp(etch_neg(etch_square(x))), 1.12837916709551257390))

/* x s(x), of which the slope is s (1 + x (1 - s)). */
static etch_tensor *silu_slope(etch_tensor *t) {
    etch_tensor *s = etch_sigmoid(t);
    return etch_mul(s, etch_add_scalar(etch_mul(t, etch_rsub_scalar(s, 1)), 1));
}
SLOPE(silu, silu_slope(x))

/* x times the normal distribution's Phi, of which the slope is Phi + x phi. */
static etch_tensor *gelu_slope(etch_tensor *t) {
    etch_tensor *erf = etch_erf(etch_mul_scalar(t, 0.70710678118654752440));
    etch_tensor *below = etch_mul_scalar(etch_add_scalar(erf, 1), 0.5);
    etch_tensor *density = etch_exp(etch_mul_scalar(etch_square(t), -0.5));
    density = etch_mul_scalar(density, 0.39894228040143267794);
    return etch_add(below, etch_mul(t, density));
}

/* The same with (1 + tanh u) / 2 for Phi, u = sqrt(2 / pi) (x + 0.044715 x^3). */
static etch_tensor *gelu_tanh_slope(etch_tensor *t) {
    const double scale = 0.79788456080286535588, cube = 0.044715;
    etch_tensor *square = etch_square(t);
    etch_tensor *u = etch_mul(t, etch_add_scalar(etch_mul_scalar(square, cube), 1));
    etch_tensor *tanh = etch_tanh(etch_mul_scalar(u, scale));
    etch_tensor *below = etch_mul_scalar(etch_add_scalar(tanh, 1), 0.5);
    etch_tensor *du = etch_add_scalar(etch_mul_scalar(square, 3 * cube), 1);
    etch_tensor *density = etch_mul(one_less_square(tanh), etch_mul_scalar(du, 0.5 * scale));
    return etch_add(below, etch_mul(t, density));
}
SLOPE(gelu, d->at[0] ? gelu_tanh_slope(x) : gelu_slope(x))
