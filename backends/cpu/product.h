/* Products of matrices on the CPU, tile by tile: C = A B of a batch of M x K times K x N.
 *
 * Three ways, by dtype and sizes alone: with M, N and K all at most MATMUL_SMALL the chain of
 * isa/product.c; f32 and the half types by panels where the instruction set has them
 * (panel_product.c); else f32 (and the half types, widened to it) by oneDNN, f64 by OpenBLAS;
 * integers by loops of our own. The result is cut into tiles, each computed on one thread; for a
 * library the tiles are fixed by (M, N, K) alone, since the bits of its products depend on their
 * shape.
 *
 * Whoever asks for a product may give what is to be done to each tile while it lies in the cache:
 * that makes no difference to the tile's bits. */
#ifndef ETCH_BACKENDS_CPU_PRODUCT_H
#define ETCH_BACKENDS_CPU_PRODUCT_H

#include <stdatomic.h>

#include "backends/cpu/table.h"

typedef enum product_way { PRODUCT_CHAIN, PRODUCT_LIBRARY, PRODUCT_PANELS } product_way;

/* One operand: a matrix, or a batch of them. As it is asked for, `data` is of the product's dtype,
 * and the strides are any; then `data` becomes what the way reads. */
typedef struct product_operand {
    const char *data;
    int64_t rows, cols;
    int64_t row, col, batch; /* strides in elements */
    bool transposed;         /* column-major: ld is the stride of a column */
    int64_t ld;
    void *copy;            /* to be freed */
    etch_storage *storage; /* where it lies, if panels of its contents may be kept; or NULL */
} product_operand;

/* Rows row to row + m, columns col to col + n of one product of the batch, in the compute type. */
typedef struct product_tile {
    int64_t batch, row, col, m, n;
    char *c;
    int64_t ldc; /* in elements */
} product_tile;

typedef struct product {
    const isa_table *isa;
    etch_dtype dtype, type; /* storage and compute type */
    int size;               /* bytes of an element of the compute type */
    product_way way;
    const panel_table *panels; /* of PRODUCT_PANELS */
    bool small;                /* M, N and K are at most MATMUL_SMALL */
    int64_t batch, m, n, k;
    product_operand a, b;
    char *c;         /* [batch][m][n] in the compute type, or NULL: tiles lie in scratch */
    bool whole_rows; /* `finish` is given tiles of n columns */
    /* Called with each tile, on its thread, or NULL. */
    void (*finish)(const void *ctx, const struct product *p, const product_tile *t);
    const void *ctx;
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    atomic_int status; /* the first failure of a tile */
} product;

/* dtype, batch, m, n, k; what is left is as for a product of zeros. a, b, c, finish, ctx are the
 * caller's to set. */
void etch__product_init(product *p, etch_dtype dtype, int64_t batch, int64_t m, int64_t n,
                        int64_t k);
/* Computes it, and frees what it needed. Not ETCH_OK: the error is set. */
etch_status etch__product_run(product *p);

/* panel_product.c: the table by whose panels products of a dtype are, or NULL; and such a one. */
const panel_table *etch__panels_for(const isa_table *isa, etch_dtype dtype);
etch_status etch__panels_run(product *p);
/* few_product.c: of few rows (or columns) of bf16, whether it is one; the same. */
bool etch__few_takes(const product *p);
etch_status etch__few_run(product *p);

#endif
