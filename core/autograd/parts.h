/* Gradients of parts of one value, until they are put together. See parts.c. */
#ifndef ETCH_CORE_AUTOGRAD_PARTS_H
#define ETCH_CORE_AUTOGRAD_PARTS_H

#include "core/autograd/derivative.h"

typedef struct gradient_parts {
    struct {
        gradient_part at;
        etch_tensor *grad; /* counted */
    } * v;
    int64_t n, cap;
} gradient_parts;

bool etch__parts_add(gradient_parts *parts, const gradient_part *at, etch_tensor *grad);
/* The gradient of the whole value, in memory of its own; NULL with the error set. */
etch_tensor *etch__parts_sum(const gradient_parts *parts, const value_shape *shape);
void etch__parts_free(gradient_parts *parts);

#endif
