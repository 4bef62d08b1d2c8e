/* Our own kernel for products of halves that fill a device of compute capability 9.0: alone, or
 * (join.c) one or two of the same left operand with what is computed of them. */
#ifndef ETCH_BACKENDS_CUDA_BROAD_H
#define ETCH_BACKENDS_CUDA_BROAD_H

#include "backends/cuda/runtime.h"
#include "core/base/text.h"
#include "jit/cuda/cuda_source.h"
#include "jit/ir/target.h"

enum { BROAD_MOST = 2 };

/* C[i] (row-major, dense) = A B[i]; strides in elements. */
typedef struct broad {
    etch_dtype dtype;
    int products;
    int64_t m, n, k;
    const void *a, *b[BROAD_MOST];
    int64_t a_row, a_col, b_row[BROAD_MOST], b_col[BROAD_MOST];
} broad;

/* Whether a product is this kernel's: by a rule on sizes, strides, and the device. */
bool etch__cuda_broad_fits(const cuda_device *d, const matmul_sizes *s);
/* One product to c, on the stream. */
etch_status etch__cuda_broad(cuda_stream *s, const broad *g, void *c);

/* For tests: the rule, or all products that the kernel can have, or none. */
enum { BROAD_RULE, BROAD_ALWAYS, BROAD_NEVER };
extern int etch__cuda_broad_force;

/* ---- parts of the kernel ---- */

/* The kernel for operands at multiples of 16 whose maps the driver can make, or for any. */
bool etch__cuda_broad_maps(const cuda_device *d);

/* How the kernel is made: `vector` elements are followed at a time, none goes over an edge. */
typedef struct broad_variant {
    uint8_t products, bf16, vector, whole, maps;
} broad_variant;
broad_variant etch__cuda_broad_variant(const broad *g, int vector, bool maps);
/* The kernel etch_broad, behind a text that has struct etch_args, vec and after(). */
void etch__cuda_broad_text(growing_text *to, const broad_variant *v);
uint64_t etch__cuda_broad_hash(void);

cuda_shape etch__cuda_broad_shape(const cuda_device *d, const broad *g, bool maps);
/* The parameter: `after` bytes of struct etch_args stand `before` bytes behind its start, as
 * etch__cuda_broad_before says; the rest is filled here. The bytes of all; 0: the error is set. */
size_t etch__cuda_broad_before(const broad_variant *v);
size_t etch__cuda_broad_fill(const broad *g, const broad_variant *v, size_t after, void *to);

#endif
