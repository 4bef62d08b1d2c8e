/* The table of derivatives: which operator has which. */
#include "core/autograd/forward.h"
#include "core/autograd/rules.h"
#include "core/dispatch/dispatch.h"

/* Results that never require gradients: comparisons, indices, what is made of nothing. */
static const derivative derivative_CONSTANT = {
    "CONSTANT", NULL, NULL, {NO_GRADIENT, NO_GRADIENT, NO_GRADIENT}};

#define DERIVATIVE(name, reads0, reads1, reads2, forward)                                          \
    static const derivative derivative_##name = {                                                  \
        #name, etch__derivative_##name, etch__forward_##forward, {reads0, reads1, reads2}};
#include "core/autograd/derivatives.def"

/* Every operator that is not made of others has one: the build names who does not. */
enum {
#define DERIVATIVE(name, ...) has_derivative_##name = 1,
#include "core/autograd/derivatives.def"
    has_derivative_CONSTANT = 1,
    has_derivative_NONE = 0
};
#define OP(id, name, schema, cfn, kind, drule, srule, impl, flags, plain, rule, vmap)              \
    _Static_assert(has_derivative_##rule, name ": its row in core/ops/ops.def needs a "            \
                                               "derivative");
#define COMPOSITE_OP(...)
#include "operators.def"

static const derivative *const derivatives[OP_COUNT] = {
#define OP(id, name, schema, cfn, kind, drule, srule, impl, flags, plain, rule, vmap)              \
    [OP_##id] = &derivative_##rule,
#define COMPOSITE_OP(...)
#include "operators.def"
};

static const derivative of_users = {"of the user",
                                    etch__derivative_of_users,
                                    etch__forward_of_users,
                                    {READS_ALL, READS_ALL, READS_ALL}};

/* Of one that can only be differentiated forward; backward says so where it arrives. */
static const derivative forward_of_users = {"of the user",
                                            etch__no_derivative_of_users,
                                            etch__forward_of_users,
                                            {READS_NOTHING, READS_NOTHING, READS_NOTHING}};

const derivative *etch__derivative(op_id op) {
    if (op < OP_COUNT) return derivatives[op];
    const custom_rules *rules = etch__custom_rules(op);
    if (rules->derivative) return &of_users;
    return rules->jvp ? &forward_of_users : NULL;
}
