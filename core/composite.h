/* Composite operators: ordinary calls of other operators. */
#ifndef ETCH_CORE_COMPOSITE_H
#define ETCH_CORE_COMPOSITE_H

#include "core/op.h"

etch_tensor *etch__composite_reshape(const op_call *call);
etch_tensor *etch__composite_contiguous(const op_call *call);
etch_tensor *etch__composite_matmul(const op_call *call);
etch_tensor *etch__composite_linear(const op_call *call);
etch_tensor *etch__composite_softmax(const op_call *call);
etch_tensor *etch__composite_log_softmax(const op_call *call);
etch_tensor *etch__composite_layer_norm(const op_call *call);
etch_tensor *etch__composite_conv2d(const op_call *call);

#endif
