/* Our own kernel for f32 products that are too small to keep the library's tiles busy: alone, or
 * (join.c) with what is computed of the result. */
#ifndef ETCH_BACKENDS_CUDA_GEMM_H
#define ETCH_BACKENDS_CUDA_GEMM_H

#include "backends/cuda/runtime.h"
#include "jit/cuda/cuda_source.h"

/* C (row-major, dense) = A B in f32, `batch` times; strides in elements. */
typedef struct gemm {
    int64_t batch, m, n, k;
    const void *a, *b;
    void *c;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col;
} gemm;

/* The tile that a block computes: GEMM_NEVER where the product is the library's, by a rule on the
 * sizes and on the device's multiprocessors. */
enum { GEMM_RULE = -2, GEMM_NEVER = -1, GEMM_LOW = 0, GEMM_TALL = 1 };
int etch__cuda_gemm_tile(const cuda_device *d, const gemm *g);
etch_status etch__cuda_gemm(cuda_stream *s, const gemm *g);

/* For tests: GEMM_RULE, or always this tile (GEMM_NEVER: none). */
extern int etch__cuda_gemm_force;

/* ---- parts of the kernel ---- */

/* CUDA C: namespace tile with struct product and sums_of<VARIANT>; HEIGHT is 8
 * with GEMM_ROWS_64, else 4. */
extern const char *const etch__cuda_tile_text;
uint64_t etch__cuda_tile_hash(void);

/* What the code is made for: 64 rows, the operands dense along k, their quads aligned, all tiles
 * and runs of k whole. */
enum {
    GEMM_ROWS_64 = 1,
    GEMM_A_ALONG_K = 2,
    GEMM_B_ALONG_K = 4,
    GEMM_A_WIDE = 8,
    GEMM_B_WIDE = 16,
    GEMM_WHOLE = 32
};
unsigned etch__cuda_gemm_variant(const gemm *g, bool tall);

/* struct product of the text. */
typedef struct gemm_words {
    const void *a, *b;
    long long a_batch, a_row, a_col, b_batch, b_row, b_col;
    int m, n, k, tiles;
} gemm_words;
gemm_words etch__cuda_gemm_words(const gemm *g, bool tall);

/* One block a tile, and what a function needs for that much shared memory. */
cuda_shape etch__cuda_gemm_shape(const gemm *g, bool tall);

#endif
