/* Derivatives of pointwise operators: arithmetic, selection, rounding. Formulas are those of
 * calculus where nothing else is said; at a jump or a kink the gradient is that of one side, and
 * where two operands are equal each gets half of it. */
#include <math.h>

#include "core/autograd/rules.h"

RULE(identity) { d->to[0] = d->grad; }

/* Steps: flat wherever they have a slope. */
RULE(step) {
    d->to[0] = no_slope(d, 0);
    if (d->nin > 1 && d->wants[1]) d->to[1] = no_slope(d, 1);
}

RULE(copy_) { d->to[1] = d->grad; }

/* What was there before does not matter. */
RULE(constant_) { (void)d; }

/* ---- sums ---- */

RULE(add) {
    d->to[0] = d->grad;
    if (d->wants[1]) d->to[1] = times(d->grad, d->sc[0]);
}

RULE(sub) {
    d->to[0] = d->grad;
    if (d->wants[1]) d->to[1] = etch_neg(times(d->grad, d->sc[0]));
}

RULE(rsub) { d->to[0] = etch_neg(times(d->grad, d->sc[1])); }

RULE(neg) { d->to[0] = etch_neg(d->grad); }

/* ---- products and quotients ---- */

RULE(mul) {
    if (d->wants[0]) d->to[0] = etch_mul(grad_of(d), operand(d, 1));
    if (d->wants[1]) d->to[1] = etch_mul(grad_of(d), operand(d, 0));
}

RULE(mul_scalar) { d->to[0] = etch_mul_scalar(d->grad, d->sc[0]); }

RULE(div) {
    etch_tensor *g = grad_of(d), *x = operand(d, 0), *y = operand(d, 1);
    if (d->wants[0]) d->to[0] = etch_div(g, y);
    if (d->wants[1]) d->to[1] = etch_neg(etch_mul(g, etch_div(etch_div(x, y), y)));
}

RULE(div_scalar) { d->to[0] = etch_div_scalar(d->grad, d->sc[0]); }

RULE(square) { d->to[0] = etch_mul(grad_of(d), etch_mul_scalar(operand(d, 0), 2)); }

RULE(addcmul) {
    etch_tensor *g = grad_of(d);
    d->to[0] = g;
    if (d->wants[1]) d->to[1] = times(etch_mul(g, operand(d, 2)), d->sc[0]);
    if (d->wants[2]) d->to[2] = times(etch_mul(g, operand(d, 1)), d->sc[0]);
}

RULE(addcdiv) {
    etch_tensor *g = grad_of(d), *x = operand(d, 1), *y = operand(d, 2);
    d->to[0] = g;
    if (d->wants[1]) d->to[1] = times(etch_div(g, y), d->sc[0]);
    if (d->wants[2]) d->to[2] = etch_neg(times(etch_mul(g, etch_div(etch_div(x, y), y)), d->sc[0]));
}

RULE(lerp) {
    etch_tensor *g = grad_of(d), *weight = operand(d, 2);
    if (d->wants[0]) d->to[0] = etch_mul(g, etch_rsub_scalar(weight, 1));
    if (d->wants[1]) d->to[1] = etch_mul(g, weight);
    if (d->wants[2]) d->to[2] = etch_mul(g, etch_sub(operand(d, 1), operand(d, 0)));
}

RULE(lerp_scalar) {
    double weight = real_of(d->sc[0]);
    d->to[0] = etch_mul_scalar(d->grad, 1 - weight);
    if (d->wants[1]) d->to[1] = etch_mul_scalar(d->grad, weight);
}

/* ---- powers ---- */

/* To the power of 0 everything is 1, 0 too. */
RULE(pow_scalar) {
    etch_scalar e = d->sc[0], less = e;
    if (real_of(e) == 0) {
        d->to[0] = no_slope(d, 0);
        return;
    }
    if (e.kind == ETCH_SCALAR_REAL) less.d -= 1;
    else less = etch_scalar_int(e.i - 1);
    etch_tensor *slope = etch_mul_scalar(etch_pow_scalar(operand(d, 0), less), real_of(e));
    d->to[0] = etch_mul(grad_of(d), slope);
}

/* 0 to a power that is not negative does not change with the power. */
RULE(pow) {
    etch_tensor *g = grad_of(d), *x = operand(d, 0), *e = operand(d, 1);
    if (d->wants[0]) {
        etch_tensor *slope = etch_mul(e, etch_pow(x, etch_sub_scalar(e, 1)));
        d->to[0] = etch_masked_fill(etch_mul(g, slope), etch_eq_scalar(e, 0), 0);
    }
    if (d->wants[1]) {
        etch_tensor *flat = etch_logical_and(etch_eq_scalar(x, 0), etch_ge_scalar(e, 0));
        etch_tensor *slope = etch_mul(result(d), etch_log(x));
        d->to[1] = etch_masked_fill(etch_mul(g, slope), flat, 0);
    }
}

/* ---- signs ---- */

RULE(abs) { d->to[0] = etch_mul(d->grad, etch_sign(d->in[0])); }

/* Where x and its result have one sign the result is x's magnitude as it is; 0 has no slope, and
 * that of NaN and infinity is NaN. */
RULE(copysign) {
    if (d->wants[0]) {
        etch_tensor *slope = etch_mul(etch_sign(d->in[0]), etch_sign(d->result));
        slope = etch_masked_fill(slope, etch_logical_not(etch_isfinite(d->in[0])), NAN);
        d->to[0] = etch_mul(d->grad, slope);
    }
    if (d->wants[1]) d->to[1] = no_slope(d, 1);
}

/* ---- choices ---- */

/* Operand i gets nothing where the other one is chosen; beside a NaN both get all. */
static void choose(const derivative_call *d, etch_tensor *less, etch_tensor *more) {
    etch_tensor *half = etch_mul_scalar(d->grad, 0.5);
    etch_tensor *g = etch_where(etch_eq(d->in[0], d->in[1]), half, d->grad);
    if (d->wants[0]) d->to[0] = etch_masked_fill(g, less, 0);
    if (d->wants[1]) d->to[1] = etch_masked_fill(g, more, 0);
}
RULE(maximum) { choose(d, etch_lt(d->in[0], d->in[1]), etch_lt(d->in[1], d->in[0])); }
RULE(minimum) { choose(d, etch_lt(d->in[1], d->in[0]), etch_lt(d->in[0], d->in[1])); }

/* The same, but a number is chosen before a NaN, and the first of two NaNs. */
static void choose_number(const derivative_call *d, etch_tensor *first) {
    etch_tensor *equal = etch_eq(d->in[0], d->in[1]);
    etch_tensor *g = etch_where(equal, etch_mul_scalar(d->grad, 0.5), d->grad);
    first = etch_logical_or(first, etch_isnan(d->in[1]));
    etch_tensor *second = etch_logical_not(etch_logical_or(first, equal));
    if (d->wants[0]) d->to[0] = etch_masked_fill(g, second, 0);
    if (d->wants[1]) d->to[1] = etch_masked_fill(g, first, 0);
}
RULE(fmax) { choose_number(d, etch_gt(d->in[0], d->in[1])); }
RULE(fmin) { choose_number(d, etch_lt(d->in[0], d->in[1])); }

RULE(where) {
    if (d->wants[1]) d->to[1] = etch_masked_fill(d->grad, etch_logical_not(d->in[0]), 0);
    if (d->wants[2]) d->to[2] = etch_masked_fill(d->grad, d->in[0], 0);
}

RULE(masked_fill) { d->to[0] = etch_masked_fill(d->grad, d->in[1], 0); }

/* Flat at 0, and a NaN lets everything through. */
RULE(relu) { d->to[0] = etch_masked_fill(d->grad, etch_le_scalar(d->result, 0), 0); }

/* ---- bounds: the slope is 1 at the bounds themselves; the bounds are compared in the operand's
 * dtype, as the operator did ---- */

static etch_tensor *inside(const derivative_call *d, etch_tensor *stays) {
    return etch_masked_fill(d->grad, etch_logical_not(stays), 0);
}
RULE(clamp_min) { d->to[0] = inside(d, etch_ge_scalar(d->in[0], d->sc[0])); }
RULE(clamp_max) { d->to[0] = inside(d, etch_le_scalar(d->in[0], d->sc[0])); }
RULE(clamp) {
    etch_tensor *above = etch_ge_scalar(d->in[0], d->sc[0]);
    d->to[0] = inside(d, etch_logical_and(above, etch_le_scalar(d->in[0], d->sc[1])));
}

/* ---- rests of divisions: x less a whole number times y; that number is constant between
 * jumps ---- */

RULE(remainder) {
    d->to[0] = d->grad;
    if (d->wants[1]) {
        etch_tensor *number = etch_floor_divide(operand(d, 0), operand(d, 1));
        d->to[1] = etch_neg(etch_mul(grad_of(d), number));
    }
}

/* The number from the exact rest: the quotient itself may round up to a whole number. */
RULE(fmod) {
    d->to[0] = d->grad;
    if (d->wants[1]) {
        etch_tensor *whole = etch_sub(operand(d, 0), result(d));
        etch_tensor *number = etch_round(etch_div(whole, operand(d, 1)));
        d->to[1] = etch_neg(etch_mul(grad_of(d), number));
    }
}
