/* What the kernels that move elements about share: tensors of their own over memory that lasts for
 * one call, and copies with conversion through the kernel of copy_. */
#ifndef ETCH_BACKENDS_CPU_PLACE_H
#define ETCH_BACKENDS_CPU_PLACE_H

#include "core/dispatch/dispatch.h"

/* A contiguous tensor; NULL storage on lack of memory (the error is set). */
bool etch__place_new(etch_tensor *t, etch_dtype dtype, int ndim, const int64_t *size);
/* May be called for one whose making failed. */
void etch__place_free(etch_tensor *t);
/* to = from, converted. Same sizes. */
etch_status etch__place_copy(etch_tensor *to, etch_tensor *from, const void *site);
/* Whether they may have memory in common (it may say yes wrongly, never no). */
bool etch__place_overlap(const etch_tensor *a, const etch_tensor *b);

#endif
