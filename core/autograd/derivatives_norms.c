/* Derivatives of normalisations, computed in f32 for halves as these are. */
#include "core/autograd/rules.h"

/* y (g - sum of g y) */
RULE(softmax) {
    etch_tensor *g = grad_of(d), *y = result(d);
    etch_tensor *sum = etch_sum_dim(etch_mul(g, y), ETCH_DIMS(d->at[0]), true);
    d->to[0] = etch_mul(y, etch_sub(g, sum));
}

/* g - exp(y) sum of g */
RULE(log_softmax) {
    etch_tensor *g = grad_of(d);
    etch_tensor *sum = etch_sum_dim(g, ETCH_DIMS(d->at[0]), true);
    d->to[0] = etch_sub(g, etch_mul(etch_exp(result(d)), sum));
}

/* ---- layer norm ---- */

norm etch__norm_of(const derivative_call *d) {
    norm n = {.dims = {.n = (int32_t)d->at[0]}};
    for (int i = 0; i < n.dims.n; i++) n.dims.v[i] = i - n.dims.n;
    etch_tensor *x = operand(d, 0);
    etch_tensor *off = etch_sub(x, etch_mean_dim(x, n.dims, true));
    etch_tensor *variance = etch_mean_dim(etch_square(off), n.dims, true);
    n.rstd = etch_rsqrt(etch_add_scalar(variance, d->sc[0]));
    n.x = etch_mul(off, n.rstd);
    return n;
}

/* rstd (w - mean of w - x mean of w x), w the gradient times the weight */
etch_tensor *etch__norm_slope(const norm *n, etch_tensor *w) {
    etch_tensor *along = etch_mean_dim(etch_mul(w, n->x), n->dims, true);
    etch_tensor *level = etch_mean_dim(w, n->dims, true);
    etch_tensor *rest = etch_sub(etch_sub(w, level), etch_mul(n->x, along));
    return etch_mul(n->rstd, rest);
}

/* Weight and bias belong to the last dimensions: the engine sums over the others. */
RULE(native_layer_norm) {
    etch_tensor *g = grad_of(d), *weight = operand(d, 1);
    norm n = {.x = NULL};
    if (d->wants[0] || d->wants[1]) n = etch__norm_of(d);
    if (d->wants[0]) d->to[0] = etch__norm_slope(&n, weight ? etch_mul(g, weight) : g);
    if (d->wants[1]) d->to[1] = etch_mul(g, n.x);
    d->to[2] = g;
}
