/* Forward mode: the layer that computes tangents beside results, and its rules. */
#ifndef ETCH_CORE_AUTOGRAD_FORWARD_H
#define ETCH_CORE_AUTOGRAD_FORWARD_H

#include "core/autograd/derivative.h"

/* FORWARD(name) { ... } is the function of a column of derivatives.def. */
#define FORWARD(name) etch_tensor *etch__forward_##name(const forward_call *f)
FORWARD(SYMMETRIC);
FORWARD(LINEAR);
FORWARD(FACTORS);
FORWARD(extreme);
FORWARD(prod);
FORWARD(prod_dim);
FORWARD(cumprod);
FORWARD(addmm);
FORWARD(log_softmax);
FORWARD(native_layer_norm);
FORWARD(convolution);
FORWARD(linear_q);
FORWARD(max_pool2d);
FORWARD(attention);
FORWARD(attention_backward);
FORWARD(of_users); /* registered with the operator */

/* t as a tangent of a value of this shape: expanded and converted to it. */
etch_tensor *etch__fit_tangent(etch_tensor *t, const value_shape *shape);

#endif
