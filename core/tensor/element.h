/* Elements of a tensor one by one, as C numbers: for what reads values on the host (printing,
 * comparing, copying out). Not for kernels. */
#ifndef ETCH_CORE_TENSOR_ELEMENT_H
#define ETCH_CORE_TENSOR_ELEMENT_H

#include "core/tensor/tensor.h"

/* The element of dtype at p: reals and integers as double, the latter rounded. */
double etch__element_real(etch_dtype dtype, const void *p);
/* The same as int64: reals saturate, NaN gives 0. */
int64_t etch__element_int(etch_dtype dtype, const void *p);

/* Calls row for stretches of n elements along the last dimension of `count` (1 or 2) tensors of the
 * same sizes, in row-major order; p and step (in bytes) are each tensor's. Stops where row returns
 * false, and returns whether none did. */
typedef bool (*element_row)(void *ctx, const char *const *p, const int64_t *step, int64_t n);
bool etch__each_row(const etch_tensor *const *t, int count, element_row row, void *ctx);

/* Copies the elements, row-major, to dst. */
void etch__copy_out(const etch_tensor *t, void *dst);

/* t is a tensor whose data is there now: checks the handle, that it is not ETCH_NONE, materialises.
 */
bool etch__read(const etch_tensor *t, const char *function, reason_id why, const void *site);

#endif
