/* The engine: runs a tape backward. See engine.c. */
#ifndef ETCH_CORE_AUTOGRAD_ENGINE_H
#define ETCH_CORE_AUTOGRAD_ENGINE_H

#include "core/autograd/tape.h"

/* What a backward call asks for: gradients of `n` outputs, added to leaves or, with ninputs, given
 * for those inputs alone (counted handles; NULL where nothing flows). */
typedef struct backward_request {
    tape_node *const *outputs;
    etch_tensor *const *seeds; /* a gradient for each output, of its sizes and dtype; NULL: ones */
    int n;
    tape_node *const *inputs;
    etch_tensor **grads;
    int ninputs;
    bool retain, create;
    const void *site;
} backward_request;

etch_status etch__run_backward(backward_request *request);

/* A gradient becomes one of the shape: summed over what was broadcast, or expanded; converted;
 * moved. NULL with an error. */
etch_tensor *etch__fit_gradient(etch_tensor *grad, const value_shape *shape);

#endif
