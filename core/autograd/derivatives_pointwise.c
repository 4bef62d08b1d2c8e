/* Derivatives of pointwise operators. Formulas are those of calculus where nothing else is said. */
#include "core/autograd/rules.h"

RULE(identity) { d->to[0] = d->grad; }

/* alpha is 1 in class 1, and then not multiplied by. */
static etch_tensor *times_alpha(const derivative_call *d, double sign) {
    bool one = d->at[0] == 1;
    if (one) return sign < 0 ? etch_neg(d->grad) : d->grad;
    etch_tensor *scaled = etch_mul_scalar(d->grad, d->sc[0]);
    return sign < 0 && scaled ? etch_neg(scaled) : scaled;
}

RULE(add) {
    d->to[0] = d->grad;
    if (d->wants[1]) d->to[1] = times_alpha(d, 1);
}

RULE(sub) {
    d->to[0] = d->grad;
    if (d->wants[1]) d->to[1] = times_alpha(d, -1);
}

RULE(mul) {
    if (d->wants[0]) d->to[0] = etch_mul(d->grad, d->in[1]);
    if (d->wants[1]) d->to[1] = etch_mul(d->grad, d->in[0]);
}

RULE(mul_scalar) { d->to[0] = etch_mul_scalar(d->grad, d->sc[0]); }

RULE(relu) { d->to[0] = etch_mul(d->grad, etch_gt_scalar(d->result, 0)); }

RULE(exp) { d->to[0] = etch_mul(d->grad, d->result); }

RULE(copy_) { d->to[1] = d->grad; }

/* What was there before does not matter. */
RULE(constant_) { (void)d; }
