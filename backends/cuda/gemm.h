/* Our own kernel for f32 products that are too small to keep the library's tiles busy. */
#ifndef ETCH_BACKENDS_CUDA_GEMM_H
#define ETCH_BACKENDS_CUDA_GEMM_H

#include "backends/cuda/runtime.h"

/* C (row-major, dense) = A B in f32, `batch` times; strides in elements. */
typedef struct gemm {
    int64_t batch, m, n, k;
    const void *a, *b;
    void *c;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col;
} gemm;

/* Whether this kernel is to be used: a rule on the sizes and on the device's multiprocessors. */
bool etch__cuda_gemm_fits(const cuda_device *d, const gemm *g);
etch_status etch__cuda_gemm(cuda_stream *s, const gemm *g);

/* For tests: GEMM_RULE, or always this tile (GEMM_NEVER: none). */
enum { GEMM_RULE = -2, GEMM_NEVER = -1, GEMM_LOW = 0, GEMM_TALL = 1 };
extern int etch__cuda_gemm_force;

#endif
