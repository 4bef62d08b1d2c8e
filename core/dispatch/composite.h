/* Composite operators: ordinary calls of other operators. */
#ifndef ETCH_CORE_DISPATCH_COMPOSITE_H
#define ETCH_CORE_DISPATCH_COMPOSITE_H

#include "core/dispatch/dispatch.h"

/* One function a name in the impl column of core/ops/ops.def, in a core/dispatch/composite*.c. */
#define OP(...)
#define COMPOSITE_OP(id, name, schema, cfn, kind, drule, srule, impl, ...)                         \
    etch_tensor *etch__composite_##impl(const op_call *call);
#include "operators.def"

/* index_put and index_put_ whose index is a mask, which has no kernel. */
etch_tensor *etch__put_by_mask(const op_call *call);

/* Whether derivatives may be taken through t. */
static inline bool etch__has_slope(const etch_tensor *t) {
    return t->layers & (1u << LAYER_AUTOGRAD | 1u << LAYER_FORWARD);
}

#endif
