/* Loop IR as CUDA C: the source of one kernel, and how it is launched. Pure functions of data: no
 * driver is needed.
 *
 * The source is complete (no includes) for NVRTC and nvcc, with the flags
 *   -std=c++17 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false
 * The kernel is
 *   extern "C" __global__ void SYMBOL(const __grid_constant__ struct etch_args a)
 *   struct etch_args {
 *       void *ptr[naccesses + 1];       the scratch of a split reduction last
 *       long long dims[naxes * (naccesses + 1)];   left out where it has no element, as
 *       unsigned long long cells[nscalars];        this one
 *   };
 * and what it computes is that of loop.h, bit for bit the same for every variant and launch shape.
 * No extent may be 0. Any grid up to that of etch__cuda_shape works: the kernels stride over
 * their units. */
#ifndef ETCH_JIT_CUDA_CUDA_SOURCE_H
#define ETCH_JIT_CUDA_CUDA_SOURCE_H

#include "jit/loop/loop.h"

/* How a loop kernel is laid out on the device; part of the kernel's identity. */
typedef struct cuda_variant {
    uint8_t index_bits; /* 32 or 64 */
    uint8_t vector; /* 1, 2, 4, 8: elements that a thread takes together along the innermost axis
                           (MAP, COLUMN: parallel, ROW: reduced). Above 1, the addresses of accesses
                           with STEP_ONE along it are aligned to 16 bytes, and their other strides
                           are multiples of it; so is the extent of that axis in COLUMN, and where
                           several axes are reduced */
    uint8_t tile;   /* threads per block = 32 << tile; 0 to 5 */
    uint8_t hold;   /* kernels that go over their rows again: chunks of a row that a thread keeps in
                       registers, the threads of a row holding all of it; 0: it loads them again */
    uint8_t warps;  /* of these: 1: a row is held by as many threads of a warp as have its 64 lanes,
                       `vector` each; 0: by a block */
    uint8_t even;   /* an even_rows: code that the rows do not need is left out */
    uint8_t tested; /* 1: a last argument, the address of a word; unless all its bits are set the
                       kernel does nothing */
} cuda_variant;

/* What is known of the extents: any variant may know less than is true. */
typedef enum even_rows {
    EVEN_NOT,
    EVEN_VECTORS, /* the extent along the vectors' axis is a multiple of the vector */
    EVEN_BLOCKS   /* and what is reduced one of what the code takes at once: REDUCE_BLOCK elements;
                     kernels that hold a row: all that its threads hold */
} even_rows;

typedef struct cuda_shape {
    uint32_t grid[3], block[3], shared;
} cuda_shape;

/* The choice made without tuning, from extents, dtypes, steps, and bit a of `aligned` set where
 * args[a] is a multiple of 16. Every variant with the same index_bits, at most its vector, hold 0
 * and even 0 is right as well. */
cuda_variant etch__cuda_choose(const loop_kernel *k, const int64_t *dims, uint32_t aligned);
/* Sets `hold`, `warps` and `even` to what rows of these extents ask for, with the variant's other
 * fields: to be called where those were changed, or come from other extents. */
void etch__cuda_fit_rows(const loop_kernel *k, cuda_variant *v, const int64_t *dims);
cuda_shape etch__cuda_shape(const loop_kernel *k, const cuda_variant *v, const int64_t *dims);

/* The source of one kernel; etch__free it. NULL: out of memory. */
char *etch__cuda_source(const loop_kernel *k, const cuda_variant *v);
/* The same as a device function for one block of the kernel's threads, to be called by all of them:
 *   void run(const etch_args &a)
 * A thread of a MAP has so many elements in flight. */
char *etch__cuda_run_source(const loop_kernel *k, const cuda_variant *v, int depth);
/* A MAP of one stage as a device function, for a kernel that has the elements of some loads itself
 * (bit a of `given`: those of access a):
 *   void after(const etch_args &a, idx row, idx first, idx columns, T x<a> ...)
 * does what the kernel does for v->vector neighbours from `first` on in a row of a space of
 * two axes, the inner one `columns` long. Of the kernel's axes there are one, that are the
 * two merged, or two. T is vec<V, vector> of the type V that the access's elements are computed in
 * (vec has an array e), or V where vector is 1. */
char *etch__cuda_after_source(const loop_kernel *k, const cuda_variant *v, uint32_t given);

/* The bytes of etch_args, always below 4096 for kernels of at most LOOP_MAX_CODE scalars. Filling
 * takes what a loop_fn takes; args[naccesses] is read for split kernels alone. */
size_t etch__cuda_args_size(const loop_kernel *k);
void etch__cuda_args_fill(const loop_kernel *k, void *const *args, const int64_t *dims,
                          const uint64_t *cells, void *to);

#endif
