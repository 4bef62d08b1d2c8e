/* Operators with device kernels of their own. */
#ifndef ETCH_BACKENDS_CUDA_OPS_H
#define ETCH_BACKENDS_CUDA_OPS_H

#include "backends/cuda/code.h"
#include "core/ops/expr.h"

/* As op_kernel: out[0] is allocated, inputs are materialised, all on one device. */
typedef etch_status (*cuda_kernel)(const op_call *call, etch_tensor *const *out);
void etch__cuda_register(op_id op, cuda_kernel kernel);
/* The same for one that checks its data (faults.h), and where that is wrong leaves what
 * it is to write as it is. */
void etch__cuda_register_checking(op_id op, cuda_kernel kernel);
/* The call as a native plan of one operator; on the CPU where the jit has none. */
etch_status etch__cuda_by_plan(const op_call *call, etch_tensor *const *out);

/* Products as CUDA C: the body behind the definitions that make it one of the dtype (wide: the
 * result is of the compute type; far: of 2^31 elements or more); etch__free it. The small one is a
 * device function run(args, block, blocks) for 256 threads and K of at most k_most, 16 or 64;
 * struct etch_args has addresses of A, B and C, then batch, M, N, K and the strides (batch, row,
 * column) of A and of B, words of 64 bits. */
typedef struct matmul_text {
    etch_dtype dtype;
    bool wide, far;
    int k_most;
    const char *body;
} matmul_text;
char *etch__cuda_matmul_text(const void *matmul_text);

/* Compiles the code that the first n bytes of the key name, and launches it, `shared` bytes of
 * shared memory a block; blocks go on where there are too many for a grid. */
etch_status etch__cuda_run_code(cuda_stream *s, const uint8_t *key, int n, const char *symbol,
                                code_source source, const void *ctx, int64_t blocks,
                                unsigned threads, unsigned shared, void *parameter);

/* Whether the operator has a kernel of its own, which issues work and does not wait. */
bool etch__cuda_issues(uint16_t op);
/* Whether normalisations of such rows are generated kernels, eager as compiled (norm.c). */
bool etch__cuda_makes_norm(uint16_t op, bool dynamic, int64_t rows, int64_t reduced);

/* The entry for every operator. */
etch_status etch__cuda_kernel(const op_call *call, etch_tensor *const *out);

#endif
