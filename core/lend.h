/* Handles for a function of the user that computes an operator: it may keep what it is given, but
 * what a plan hands on are tensors of the plan's own, in memory that the plan uses again. */
#ifndef ETCH_CORE_LEND_H
#define ETCH_CORE_LEND_H

#include "core/op.h"

typedef etch_status (*lent_call)(const void *ctx, const op_call *call, etch_tensor *const *out);

/* Whether the storage lies in memory that is used again: what the lender must have back. */
typedef bool (*lent_memory)(const void *lender, const etch_storage *s);

/* fn with handles of its own over the same memory. What is the lender's and somebody still holds
 * afterwards gets a block of its own, with what it holds by then. */
etch_status etch__lend(const op_call *call, etch_tensor *const *out, lent_memory lent,
                       const void *lender, lent_call fn, const void *ctx);
/* The lender's memory where that is a plan on a device: what no allocation there gave. */
bool etch__lent_by_device(const void *unused, const etch_storage *s);

/* fn with copies in host memory, of the same strides; its result is copied back. Waits for the
 * device. */
etch_status etch__lend_copies(const op_call *call, etch_tensor *const *out, lent_call fn,
                              const void *ctx);

#endif
