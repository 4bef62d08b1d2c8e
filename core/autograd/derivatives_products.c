/* Derivatives of matrix products: of each factor it is the product of the gradient and the other
 * one, transposed. Of a factor that is the transpose of a matrix (the weight of a linear layer)
 * the transpose is computed, so that the matrix itself gets a gradient by rows, and nothing is
 * copied. */
#include "core/autograd/rules.h"

static etch_tensor *turned(etch_tensor *t) { return etch_transpose(t, -2, -1); }

typedef etch_tensor *(*product)(etch_tensor *a, etch_tensor *b);

/* Of the left factor, and of the right one. */
static etch_tensor *of_left(product multiply, etch_tensor *grad, etch_tensor *right, bool columns) {
    if (columns) return turned(multiply(right, turned(grad)));
    return multiply(grad, turned(right));
}
static etch_tensor *of_right(product multiply, etch_tensor *grad, etch_tensor *left, bool columns) {
    if (columns) return turned(multiply(turned(grad), left));
    return multiply(turned(left), grad);
}

RULE(mm) {
    if (d->wants[0]) d->to[0] = of_left(etch_mm, d->grad, d->in[1], d->shape[0].columns);
    if (d->wants[1]) d->to[1] = of_right(etch_mm, d->grad, d->in[0], d->shape[1].columns);
}

/* beta times self and alpha times the product. */
RULE(addmm) {
    etch_scalar beta = d->sc[0], alpha = d->sc[1];
    if (d->wants[0]) d->to[0] = times(grad_of(d), beta);
    if (d->wants[1])
        d->to[1] = times(of_left(etch_mm, d->grad, d->in[2], d->shape[1].columns), alpha);
    if (d->wants[2])
        d->to[2] = times(of_right(etch_mm, d->grad, d->in[1], d->shape[2].columns), alpha);
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
    if (d->wants[0]) d->to[0] = of_left(etch_bmm, d->grad, d->in[1], d->shape[0].columns);
    if (d->wants[1]) d->to[1] = of_right(etch_bmm, d->grad, d->in[0], d->shape[1].columns);
}
