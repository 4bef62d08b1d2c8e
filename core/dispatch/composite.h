/* Composite operators: ordinary calls of other operators. */
#ifndef ETCH_CORE_DISPATCH_COMPOSITE_H
#define ETCH_CORE_DISPATCH_COMPOSITE_H

#include "core/ops/op.h"

etch_tensor *etch__composite_reshape(const op_call *call);
etch_tensor *etch__composite_contiguous(const op_call *call);
etch_tensor *etch__composite_matmul(const op_call *call);
etch_tensor *etch__composite_linear(const op_call *call);
etch_tensor *etch__composite_softmax(const op_call *call);
etch_tensor *etch__composite_log_softmax(const op_call *call);
etch_tensor *etch__composite_layer_norm(const op_call *call);
etch_tensor *etch__composite_conv2d(const op_call *call);
etch_tensor *etch__composite_index(const op_call *call);
etch_tensor *etch__composite_take_along_dim(const op_call *call);
etch_tensor *etch__composite_embedding(const op_call *call);
etch_tensor *etch__composite_one_hot(const op_call *call);
etch_tensor *etch__composite_nonzero(const op_call *call);
etch_tensor *etch__composite_masked_select(const op_call *call);
etch_tensor *etch__composite_narrow(const op_call *call);
etch_tensor *etch__composite_movedim(const op_call *call);
etch_tensor *etch__composite_flatten(const op_call *call);
etch_tensor *etch__composite_expand_as(const op_call *call);
etch_tensor *etch__composite_stack(const op_call *call);
etch_tensor *etch__composite_flip(const op_call *call);
etch_tensor *etch__composite_roll(const op_call *call);
etch_tensor *etch__composite_repeat(const op_call *call);
etch_tensor *etch__composite_slice_scatter(const op_call *call);
etch_tensor *etch__composite_select_scatter(const op_call *call);
etch_tensor *etch__composite_ldexp(const op_call *call);
etch_tensor *etch__composite_clamp_tensor(const op_call *call);
etch_tensor *etch__composite_var(const op_call *call);
etch_tensor *etch__composite_std(const op_call *call);
etch_tensor *etch__composite_logsumexp(const op_call *call);
etch_tensor *etch__composite_any(const op_call *call);
etch_tensor *etch__composite_all(const op_call *call);
etch_tensor *etch__composite_count_nonzero(const op_call *call);

/* index_put and index_put_ whose index is a mask, which has no kernel. */
etch_tensor *etch__put_by_mask(const op_call *call);

#endif
