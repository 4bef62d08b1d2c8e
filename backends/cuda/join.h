/* Kernels that compute products and what is made of them: target_matmuls.joins, and launchers of
 * such kernels. */
#ifndef ETCH_BACKENDS_CUDA_JOIN_H
#define ETCH_BACKENDS_CUDA_JOIN_H

#include "backends/cuda/code.h"
#include "backends/cuda/launcher.h"

bool etch__cuda_joins(int device, const matmul_sizes *s, bool alone);

/* Lives as long as its launcher. NULL: *why says what failed; empty where the
 * thread's error does. */
typedef struct cuda_join cuda_join;
cuda_join *etch__cuda_join_new(cuda_device *d, const lowered *low, uint32_t aligned,
                               const char **why);
void etch__cuda_join_free(cuda_join *j);
etch_status etch__cuda_join_resolve(cuda_join *j, void *const *args, const uint64_t *cells,
                                    cuda_launch *out);

#endif
