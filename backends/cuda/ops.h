/* Operators with device kernels of their own. */
#ifndef ETCH_BACKENDS_CUDA_OPS_H
#define ETCH_BACKENDS_CUDA_OPS_H

#include "backends/cuda/code.h"

/* As op_kernel: out[0] is allocated, inputs are materialised, all on one device. */
typedef etch_status (*cuda_kernel)(const op_call *call, etch_tensor *const *out);
void etch__cuda_register(op_id op, cuda_kernel kernel);

/* Whether the operator has a kernel of its own, which issues work and does not wait. */
bool etch__cuda_issues(uint16_t op);

/* The entry for every operator. */
etch_status etch__cuda_kernel(const op_call *call, etch_tensor *const *out);

#endif
