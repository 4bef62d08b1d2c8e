/* Pinned host memory, for core's copies (kind.c). */
#ifndef ETCH_BACKENDS_CUDA_PINNED_H
#define ETCH_BACKENDS_CUDA_PINNED_H

#include "backends/cuda/runtime.h"

etch_status etch__cuda_allocate_pinned(int index, etch_storage *s);
etch_status etch__cuda_settle(etch_storage *s);
/* Around issuing a copy to s that uses the pinned storage, which is then under way. */
etch_status etch__cuda_pinned_begin(cuda_stream *s, etch_storage *storage);
etch_status etch__cuda_pinned_end(cuda_stream *s, etch_storage *storage, etch_status status);
/* Gives unused blocks back to the driver. */
void etch__cuda_trim_pinned(void);

#endif
