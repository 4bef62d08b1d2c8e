/* What convolution and its backward operators share: sizes, tiles of positions, and the matrix of
 * the input values under the kernel (conv_matrix.c). See conv.c. */
#ifndef ETCH_BACKENDS_CPU_CONV_H
#define ETCH_BACKENDS_CPU_CONV_H

#include "backends/cpu/library.h"
#include "backends/cpu/program.h"
#include "core/ops/rules.h"

typedef struct conv {
    const isa_table *isa;
    etch_dtype dtype, type;   /* storage and compute type */
    int size;                 /* bytes of the compute type */
    const char *x, *w, *bias; /* row-major, in the compute type; bias may be NULL */
    char *y;
    conv_numbers at;
    int64_t images, in_channels, out_channels; /* channels of a group */
    int64_t in[2], out[2], kernel[2];
    int64_t places, rows; /* of the kernel; with the channels: terms of a sum */
    int64_t pixels, positions;
    int64_t span, tile, tiles; /* images of a tile; positions of each in it; tiles of an image */
    bool lines;                /* the matrix has a row for each term, not for each position */
    bool plain; /* lines: a kernel of one element, stride 1, no padding: the input is the matrix */
    bool innermost; /* the result's gradient lies with its channels innermost */
    atomic_int failed;
} conv;

/* Positions first .. + n of `images` images from `image` on, of one group. Where a tile has several
 * images, it has all their positions. */
typedef struct conv_tile {
    int64_t group, image, images, first, n;
} conv_tile;

/* From the sizes of input, weight and output; the numbers are there. */
void etch__conv_plan(conv *c, const int64_t *x, const int64_t *w, const int64_t *y);
/* Sizes are ints for the libraries: false with the error set. */
bool etch__conv_fits(const conv *c);
int64_t etch__conv_spans(const conv *c); /* groups of images that share a tile */
/* Tile k of those of a span; all images' tiles are spans * tiles. */
conv_tile etch__conv_tile(const conv *c, int64_t group, int64_t k);
/* Sets the error of a task that found no memory. */
etch_status etch__conv_status(const conv *c);

/* Of each of `count` planes [rows][columns], one behind the other, the transposed one. */
void etch__conv_swap(const conv *c, char *to, const char *from, int64_t count, int64_t rows,
                     int64_t columns);
/* x, or w, as the matrix wants it. Where that is not by lines it has the channels of a group
 * innermost: [images][groups][pixels][channels], or [output channels][places][channels]. Its own
 * memory, or a *copy, to be freed. NULL: no memory. */
const char *etch__conv_pixels(const conv *c, const char *x, void **copy);
const char *etch__conv_places(const conv *c, const char *w, void **copy);

/* The matrix of a tile, [positions][places][channels], or by lines [channels][places][positions],
 * from c's x, which lies as above: filled into room, or x itself. *ld is the distance of rows. */
const char *etch__conv_fill(const conv *c, char *room, const conv_tile *t, int64_t *ld);
/* The reverse: each element of the matrix is added to the one that it came from; those are of the
 * tile's images only, with so many channels. */
void etch__conv_add(const conv *c, char *to, int64_t channels, const char *matrix,
                    const conv_tile *t);

/* The gradient g of a tile's output channels, `channels` of all groups' from `first` on, as
 * [channels][positions of all images]: where it lies, or copied into room. *ld is the distance of
 * channels. */
const char *etch__conv_gather(const conv *c, const char *g, const conv_tile *t, int64_t first,
                              int64_t channels, char *room, int64_t *ld);

#endif
