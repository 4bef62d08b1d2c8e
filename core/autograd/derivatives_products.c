/* Derivatives of matrix products: of each factor it is the product of the gradient and the other
 * one, transposed. */
#include "core/autograd/rules.h"

RULE(mm) {
    if (d->wants[0]) d->to[0] = etch_mm(d->grad, etch_t(d->in[1]));
    if (d->wants[1]) d->to[1] = etch_mm(etch_t(d->in[0]), d->grad);
}

/* beta times self and alpha times the product. */
RULE(addmm) {
    etch_scalar beta = d->sc[0], alpha = d->sc[1];
    if (d->wants[0]) d->to[0] = times(grad_of(d), beta);
    if (d->wants[1]) d->to[1] = times(etch_mm(d->grad, etch_t(d->in[2])), alpha);
    if (d->wants[2]) d->to[2] = times(etch_mm(etch_t(d->in[1]), d->grad), alpha);
}

RULE(mv) {
    if (d->wants[0]) d->to[0] = etch_mul(etch_unsqueeze(d->grad, 1), d->in[1]);
    if (d->wants[1]) d->to[1] = etch_mv(etch_t(d->in[0]), d->grad);
}

RULE(dot) {
    if (d->wants[0]) d->to[0] = etch_mul(d->grad, d->in[1]);
    if (d->wants[1]) d->to[1] = etch_mul(d->grad, d->in[0]);
}

RULE(bmm) {
    if (d->wants[0]) d->to[0] = etch_bmm(d->grad, etch_transpose(d->in[1], 1, 2));
    if (d->wants[1]) d->to[1] = etch_bmm(etch_transpose(d->in[0], 1, 2), d->grad);
}
