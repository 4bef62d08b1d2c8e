/* Kernels that follow a product tile by tile (jit/fuse/pass_join.c): while a tile lies in the
 * cache, the generated kernel does its part of the work. */
#ifndef ETCH_BACKENDS_CPU_JOINED_H
#define ETCH_BACKENDS_CPU_JOINED_H

#include "jit/plan/native_plan.h"

typedef struct joined_product joined_product;

/* NULL: no memory. */
joined_product *etch__joined_new(const lowered *low);
/* The arguments are those of the kernel's accesses, then A and B. */
etch_status etch__joined_run(const kernel_step *k, void *const *args, const uint64_t *cells);

/* target_matmuls.joins */
bool etch__cpu_joins(int device, const matmul_sizes *s, bool alone);

#endif
