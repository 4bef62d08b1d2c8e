/* What convolution and its backward operators share: sizes, tiles of positions, and the matrix of
 * the input values under the kernel. See conv.c. */
#ifndef ETCH_BACKENDS_CPU_CONV_H
#define ETCH_BACKENDS_CPU_CONV_H

#include "backends/cpu/program.h"
#include "core/ops/rules.h"

typedef struct conv {
    const isa_table *isa;
    etch_dtype dtype, type;   /* storage and compute type */
    int size;                 /* bytes of the compute type */
    const char *x, *w, *bias; /* row-major, in the compute type; bias may be NULL */
    char *y;
    conv_numbers at;
    int64_t in_channels, out_channels; /* of a group */
    int64_t in[2], out[2], kernel[2];
    int64_t rows, positions, tile, tiles;
    bool plain; /* a kernel of one element, stride 1, no padding: the input is the matrix */
    atomic_int failed;
} conv;

/* From the sizes of input, weight and output; the numbers are there. */
void etch__conv_plan(conv *c, const int64_t *x, const int64_t *w, const int64_t *y);
/* Sizes are ints for the libraries: false with the error set. */
bool etch__conv_fits(const conv *c);

/* Of n neighbouring positions in a row of the output, from column ow on: [begin, end) are those
 * whose value under column kw of the kernel lies inside of a row of the input: at `at` for the
 * first of them, then at each step of the stride. */
typedef struct conv_span {
    int64_t begin, end, at;
} conv_span;
conv_span etch__conv_span(const conv *c, int64_t kw, int64_t ow, int64_t n);

/* The row of the input under row kh of the kernel at row oh of the output; -1: padding. */
int64_t etch__conv_row(const conv *c, int64_t kh, int64_t oh);

/* Rows of the matrix for a group's planes x: input channel and place in the kernel; columns: n
 * positions from `first` on. */
void etch__conv_fill_matrix(const conv *c, char *dst, const char *x, int64_t first, int64_t n);

#endif
