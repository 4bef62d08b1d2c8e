/* Handles for a function of the user that computes an operator on a device: it may keep what it is
 * given, but what a plan hands on are tensors of the plan's own, in memory that the plan uses again. */
#ifndef ETCH_CORE_LEND_H
#define ETCH_CORE_LEND_H

#include "core/op.h"

typedef etch_status (*lent_call)(const void *ctx, const op_call *call, etch_tensor *const *out);

/* fn with handles of its own over the same memory of the device. Memory of a plan that somebody still
 * holds afterwards gets a block of its own, with what it holds by then. */
etch_status etch__lend(const op_call *call, etch_tensor *const *out, lent_call fn, const void *ctx);

/* fn with copies in host memory, of the same strides; its result is copied back. Waits for the
 * device. */
etch_status etch__lend_copies(const op_call *call, etch_tensor *const *out, lent_call fn,
                              const void *ctx);

#endif
