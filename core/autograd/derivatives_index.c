/* Derivatives of operators with an index tensor. Reading is answered by adding where was read, and
 * writing by reading where was written; what a write has covered gets nothing. Where an index comes
 * twice, all values that were written there get the gradient, though only the last one stayed. */
#include "core/autograd/rules.h"

/* Added in f32 for halves, in the order of the index. */
static etch_tensor *room(const derivative_call *d) { return zeros_like(d, 0, dtype_of_rule(d)); }

/* ---- reading ---- */

RULE(index_select) { d->to[0] = etch_index_add_(room(d), d->at[0], d->in[1], grad_of(d)); }

RULE(gather) { d->to[0] = etch_scatter_add_(room(d), d->at[0], d->in[1], grad_of(d)); }

/* Of a tensor as if it were flat. */
RULE(take) {
    etch_tensor *flat = etch_reshape(room(d), ETCH_SHAPE(-1));
    flat = etch_index_put_(flat, d->in[1], grad_of(d), true);
    d->to[0] = etch_reshape(flat, etch__sizes_of(&d->shape[0]));
}

/* ---- writing by an index of as many dimensions ---- */

/* The gradient of src, which may reach beyond the index: nothing was taken from there. */
static etch_tensor *read_back(const derivative_call *d) {
    const value_shape *index = &d->shape[1], *src = &d->shape[2];
    etch_tensor *g = etch_gather(d->grad, d->at[0], d->in[1]);
    if (!g || !src->ndim || SAME_SIZES(src, index)) return g;
    if (!g->numel) return no_slope(d, 2);
    etch_tensor *zeros = zeros_like(d, 2, etch_dtype_of(g)), *part = zeros;
    for (int k = 0; k < src->ndim; k++)
        part = etch_slice(part, k, 0, k < index->ndim ? index->size[k] : 1, 1);
    return etch_copy_(part, g) ? zeros : NULL;
}

RULE(scatter) {
    if (d->wants[0]) d->to[0] = etch_scatter_value(d->grad, d->at[0], d->in[1], 0);
    if (d->nin > 2 && d->wants[2]) d->to[2] = read_back(d);
}

RULE(scatter_add) {
    d->to[0] = d->grad;
    if (d->wants[2]) d->to[2] = read_back(d);
}

/* ---- writing by a vector of indices ---- */

RULE(index_fill) { d->to[0] = etch_index_fill(d->grad, d->at[0], d->in[1], 0); }

RULE(index_copy) {
    if (d->wants[0]) d->to[0] = etch_index_fill(d->grad, d->at[0], d->in[1], 0);
    if (d->wants[2]) d->to[2] = etch_index_select(d->grad, d->at[0], d->in[1]);
}

RULE(index_add) {
    d->to[0] = d->grad;
    if (d->wants[2]) d->to[2] = etch_index_select(d->grad, d->at[0], d->in[1]);
}

/* The values broadcast, which the engine undoes. */
RULE(index_put) {
    bool adds = d->at[0] != 0;
    if (d->wants[0] && adds) d->to[0] = d->grad;
    else if (d->wants[0]) {
        etch_tensor *zero = zeros_of(d->outshape, etch_dtype_of(d->grad), ETCH_SHAPE());
        d->to[0] = etch_index_put(d->grad, d->in[1], zero, false);
    }
    if (d->wants[2]) d->to[2] = etch_index(d->grad, d->in[1]);
}
