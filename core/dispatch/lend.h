/* Handles for a function of the user that computes an operator: it may keep what it is given, which
 * then goes on holding what it held; but those who called the operator write their tensors later,
 * and plans use their memory again. */
#ifndef ETCH_CORE_DISPATCH_LEND_H
#define ETCH_CORE_DISPATCH_LEND_H

#include "core/ops/op.h"

typedef etch_status (*lent_call)(const void *ctx, const op_call *call, etch_tensor *const *out);

/* fn with handles of its own over the same memory. What somebody still holds afterwards gets a
 * block of its own, with what it holds by then. */
etch_status etch__lend(const op_call *call, etch_tensor *const *out, lent_call fn, const void *ctx);

/* fn with copies in host memory, of the same strides; its result is copied back. Waits for the
 * device. */
etch_status etch__lend_copies(const op_call *call, etch_tensor *const *out, lent_call fn,
                              const void *ctx);

#endif
