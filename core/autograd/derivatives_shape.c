/* Derivatives of reductions, products and views. */
#include "core/autograd/rules.h"

/* The engine expands to the operand's sizes. */
RULE(sum) { d->to[0] = d->grad; }

RULE(mm) {
    if (d->wants[0]) d->to[0] = etch_mm(d->grad, etch_t(d->in[1]));
    if (d->wants[1]) d->to[1] = etch_mm(etch_t(d->in[0]), d->grad);
}

RULE(reshape) { d->to[0] = etch_reshape(d->grad, etch__sizes_of(&d->shape[0])); }

RULE(t) { d->to[0] = etch_t(d->grad); }
