/* The derivative of a product with a weight of few bits: of the input alone, and as if it were
 * exact, that is by the numbers which the integers stand for. */
#include "core/autograd/rules.h"

/* [out, in], in the dtype in which rules compute. */
static etch_tensor *numbers(const derivative_call *d) {
    int ndim = d->shape[0].ndim;
    etch_tensor *w = etch_dequantize_weight(d->in[1], d->in[2], d->shape[0].size[ndim - 1]);
    return in_dtype(w, dtype_of_rule(d));
}

RULE(linear_q) {
    etch_tensor *w = d->wants[0] ? numbers(d) : NULL;
    if (w) d->to[0] = etch_matmul(grad_of(d), w);
}
