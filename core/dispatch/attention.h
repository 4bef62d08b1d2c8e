/* Attention written out in ordinary operators: for what a device has no kernel for, and for what is
 * derived of it. Heads that share keys are [..., shared, heads / shared, length, width] there, with
 * 1 in place of the second for keys and values; where none share, the tensors are as they came. */
#ifndef ETCH_CORE_DISPATCH_ATTENTION_H
#define ETCH_CORE_DISPATCH_ATTENTION_H

#include <etch/etch.h>

#include "core/tensor/tensor.h"

enum { ATTENTION_WIDTH_MOST = 256 }; /* of all operands: what devices have kernels for */

typedef struct attention_parts {
    etch_tensor *q, *k, *v, *mask; /* in groups; mask: or ETCH_NONE */
    int64_t shared;                /* heads of keys; 0: none share */
    bool causal;
    etch_scalar scale;
} attention_parts;

attention_parts etch__attention_parts(etch_tensor *q, etch_tensor *k, etch_tensor *v,
                                      etch_tensor *mask, bool causal, etch_scalar scale);
/* A tensor of all heads in groups, and back; a mask. */
etch_tensor *etch__attention_in_groups(const attention_parts *p, etch_tensor *t);
etch_tensor *etch__attention_mask_in_groups(const attention_parts *p, etch_tensor *mask);
etch_tensor *etch__attention_joined(const attention_parts *p, etch_tensor *t);
/* What goes to keys or values, summed over the heads that share one. */
etch_tensor *etch__attention_shared(const attention_parts *p, etch_tensor *t);
/* The weights of each query's keys: softmax, or 0 where a mask leaves no key. */
etch_tensor *etch__attention_weights(const attention_parts *p);

#endif
