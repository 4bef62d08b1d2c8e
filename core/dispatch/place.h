/* What the kernels that move elements about share, on any device: tensors of their own over memory
 * that lasts for one call, copies with conversion through the kernel of copy_, and dimensions of
 * which a 0-d tensor has one of a single element. */
#ifndef ETCH_CORE_DISPATCH_PLACE_H
#define ETCH_CORE_DISPATCH_PLACE_H

#include "core/dispatch/dispatch.h"

/* A contiguous tensor; NULL storage on lack of memory (the error is set). */
bool etch__place_new(etch_tensor *t, etch_dtype dtype, int ndim, const int64_t *size, int device);
/* May be called for one whose making failed. */
void etch__place_free(etch_tensor *t);
/* A handle over the memory of `of`, at an offset in elements from its first. */
etch_tensor etch__place_view(const etch_tensor *of, int64_t offset, int ndim, const int64_t *size,
                             const int64_t *stride);
/* to = from, converted. Same sizes. */
etch_status etch__place_copy(etch_tensor *to, etch_tensor *from, const void *site);
/* *use: t itself where it is contiguous, or has no memory in common with out; else a copy of it, in
 * a new `place`. */
etch_status etch__place_dense(etch_tensor *t, etch_tensor *place, etch_tensor **use,
                              const void *site);
etch_status etch__place_apart(etch_tensor *t, const etch_tensor *out, etch_tensor *place,
                              etch_tensor **use, const void *site);
/* Whether elements of the two lie in one range of addresses: they may have memory in common.
 * Storages do not say: in a plan each operand of a call has one of its own. */
bool etch__place_overlap(const etch_tensor *a, const etch_tensor *b);
/* cat: each tensor is copied into its slice of the result, so that dtypes convert. */
etch_status etch__place_cat(const op_call *call, etch_tensor *const *out);

static inline int etch__place_dims(const etch_tensor *t) { return t->ndim ? t->ndim : 1; }
static inline int64_t etch__place_size(const etch_tensor *t, int d) {
    return t->ndim ? t->size[d] : 1;
}
static inline int64_t etch__place_stride(const etch_tensor *t, int d) {
    return t->ndim ? t->stride[d] : 1;
}
/* Attribute 0 as a dimension of the first operand. */
static inline int etch__place_dim(const op_call *call) {
    return (int)(call->at[0] < 0 ? call->at[0] + etch__place_dims(call->in[0]) : call->at[0]);
}

#endif
