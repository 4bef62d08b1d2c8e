/* Into a batch and out of it, with gradients: what etch_vmap does with arguments and results. */
#ifndef ETCH_CORE_AUTOGRAD_CROSSING_H
#define ETCH_CORE_AUTOGRAD_CROSSING_H

#include <etch/grad.h>

#include "core/autograd/tape.h"

/* t with its dimension dim (counted from the front) as the batch of a level. */
etch_tensor *etch__into_batch(etch_tensor *t, int dim, uint32_t level);
/* The batch of t becomes dimension dim; what has none is expanded to `size` samples. A new
 * handle. */
etch_tensor *etch__out_of_batch(etch_tensor *t, int dim, uint32_t level, int64_t size);
/* A gradient for a value of this shape: summed over the samples of levels that have ended and of
 * which the value has none. */
etch_tensor *etch__leave_levels(etch_tensor *g, const value_shape *shape);
/* The gradient of the operand of such a node. */
etch_tensor *etch__grad_across(const tape_node *n, etch_tensor *grad);

/* etch_grad for what is made of it: errors are those of the function of this name, called there. */
typedef struct gradients_of {
    etch_tensor *const *outputs, *const *inputs, *const *grad_outputs;
    int nout, nin;
    const etch_grad_options *options;
    etch_tensor **grads;
} gradients_of;
etch_status etch__grad_for(const char *function, const void *site, bool takes_gradients,
                           const gradients_of *g);

/* Another handle of t's value, with its tangents; without its history. */
etch_tensor *etch__without_history(etch_tensor *t);

#endif
