/* One product on a device: what matmul.c (operands, products of our own), lt.c (cuBLASLt) and
 * epilogue.c (relaxed products with what follows them) share. */
#ifndef ETCH_BACKENDS_CUDA_MATMUL_H
#define ETCH_BACKENDS_CUDA_MATMUL_H

#include "backends/cuda/ops.h"
#include "core/ops/expr.h"

typedef struct matmul_operand {
    const etch_tensor *t;
    int64_t rows, cols, row, col, batch; /* extents, strides in elements */
    bool transposed;
    int64_t ld;
    void *address;
    etch_tensor copy; /* its storage is NULL where there is none */
} matmul_operand;

typedef struct matmul {
    cuda_stream *stream;
    cuda_device *device;
    etch_dtype dtype, type; /* storage and compute type */
    int64_t batch, m, n, k;
    matmul_operand a, b;
    void *c;
    bool wide;        /* c is of the compute type */
    bool timed;       /* relaxed: the library's algorithm that proved fastest, not its first */
    uint8_t epilogue; /* MATMUL_*: what the library does to the result */
    const void *bias;
} matmul;

/* ---- matmul.c ---- */

/* Everything but the operands, from a call and its result. */
etch_status etch__cuda_matmul_begin(matmul *p, const op_call *call, const etch_tensor *out);
/* C = A B, by the library above a certain size. */
etch_status etch__cuda_multiply(matmul *p, const etch_tensor *a, const etch_tensor *b);
/* Whether C is computed by code of our own, which knows no epilogue. */
bool etch__cuda_matmul_small(const matmul *p);
/* What follows a product: times alpha, plus self (broadcast, NULL: none) times beta, then what
 * `epilogue` has of MATMUL_RELU and MATMUL_GELU. */
typedef struct matmul_after {
    const etch_tensor *self;
    etch_scalar alpha, beta;
    uint8_t epilogue;
} matmul_after;
/* out = that of A B, in the compute type and by code of our own. */
etch_status etch__cuda_multiply_and(matmul *p, const etch_tensor *a, const etch_tensor *b,
                                    const matmul_after *f, const etch_tensor *out);

/* ---- lt.c ---- */

/* ETCH_ERR_UNSUPPORTED: the library cannot do it. */
etch_status etch__cuda_lt(const matmul *p);

/* ---- epilogue.c ---- */

/* out = what follows of A B, by the library where it can. */
etch_status etch__cuda_multiply_with(matmul *p, const etch_tensor *a, const etch_tensor *b,
                                     const matmul_after *f, const etch_tensor *out);

/* target_matmuls.run. */
etch_status etch__cuda_matmul(const op_call *call, uint8_t epilogue, etch_tensor *out);

#endif
