/* The table of derivatives: which operator has which. */
#include "core/autograd/rules.h"

/* Results that never require gradients: comparisons, indices, what is made of nothing. */
static const derivative derivative_CONSTANT = {
    "CONSTANT", NULL, {NO_GRADIENT, NO_GRADIENT, NO_GRADIENT}};

static const derivative derivative_NONE;

#define DERIVATIVE(name, reads0, reads1, reads2)                                                   \
    static const derivative derivative_##name = {                                                  \
        #name, etch__derivative_##name, {reads0, reads1, reads2}};
#include "core/autograd/derivatives.def"
#undef DERIVATIVE

static const derivative *const derivatives[OP_COUNT] = {
#define OP(id, name, schema, cfn, kind, drule, srule, impl, flags, plain, rule, vmap)              \
    [OP_##id] = &derivative_##rule,
#define COMPOSITE_OP(...)
#include "operators.def"
};

const derivative *etch__derivative(op_id op) {
    const derivative *d = op < OP_COUNT ? derivatives[op] : NULL;
    return d == &derivative_NONE ? NULL : d;
}
