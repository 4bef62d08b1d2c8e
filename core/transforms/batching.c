/* The table of batching rules: which operator has which. */
#include "core/transforms/batching.h"

#include "core/transforms/rules.h"

/* Every operator that is not made of others has one: the build names who does not. */
enum {
#define RULE(name) has_batching_##name = 1,
#include "core/transforms/batching.def"
    has_batching_NONE = 0
};
#define OP(id, name, schema, cfn, kind, drule, srule, impl, flags, plain, derivative, vmap)        \
    _Static_assert(has_batching_##vmap, name ": its row in core/ops/ops.def needs a batching "     \
                                             "rule");
#define COMPOSITE_OP(...)
#include "operators.def"

static const batching_rule rules[OP_COUNT] = {
#define OP(id, name, schema, cfn, kind, drule, srule, impl, flags, plain, derivative, vmap)        \
    [OP_##id] = etch__batching_##vmap,
#define COMPOSITE_OP(...)
#include "operators.def"
};

batching_rule etch__batching(op_id op) {
    return op < OP_COUNT ? rules[op] : etch__batching_of_users;
}
