/* Batching rules by operator. */
#ifndef ETCH_CORE_TRANSFORMS_BATCHING_H
#define ETCH_CORE_TRANSFORMS_BATCHING_H

#include "core/ops/op.h"

struct batched_call;
/* Never NULL for an operator that is not made of others. */
etch_tensor *(*etch__batching(op_id op))(const struct batched_call *b);

#endif
