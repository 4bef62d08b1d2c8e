/* Convolution of floats without a matrix of the values under the kernel: see conv_direct.c. */
#ifndef ETCH_BACKENDS_CPU_CONV_DIRECT_H
#define ETCH_BACKENDS_CPU_CONV_DIRECT_H

#include <stdatomic.h>

#include "backends/cpu/product.h"
#include "core/ops/rules.h"

/* The sizes of a convolution. Rows are the positions of all images, columns the output channels. */
typedef struct conv_sizes {
    conv_numbers at;
    int64_t images, channels; /* of the input */
    /* Groups of channels that share sums, and the channels of one. Where each channel is a group by
     * itself (`apart`) there is one, of all output channels, each made of one of the input's. */
    int64_t groups, in_channels, out_channels;
    bool apart;
    int64_t in[2], out[2], kernel[2];
    int64_t places, positions, rows;
} conv_sizes;

typedef struct direct_conv {
    conv_sizes n;
    const isa_table *isa;
    etch_dtype dtype, type; /* storage and compute type */
    int size;               /* bytes of the compute type */
    bool halves;            /* operands are multiplied as they lie, as bf16 */
    bool pairs;             /* of whose channels two count as one: a word of `size` bytes */
    bool tiles;             /* conv_tiles.c */
    bool planes;            /* the result lies so: tiles are made of runs that do well there */
    /* conv_lines.c: tiles are rows of the planes of all channels, to which t->row and t->col of
     * `finish` count; x is row-major, of the dtype, w [..][places][input channels][CONV_LINES]. */
    bool by_lines;
    /* The input in the compute type (or halves), channels innermost; bytes from one image, row,
     * column to the next. */
    const char *x;
    int64_t x_image, x_row, x_column;
    const char *zeros; /* as long as all channels, and as one place: what lies in the padding */
    /* [groups][panels][places][input channels][output channels of the panel]; of tiles as they say
     */
    const char *w;
    const char *bias;     /* [groups][width], or NULL */
    int64_t panel, width; /* output channels of a panel, and of all panels of a group */
    char *y;              /* where tiles are stored, or NULL: they lie in scratch */
    /* Called with each tile that does not lie in y, on its thread: columns are those of all groups.
     * The room is as large as the tile. */
    void (*finish)(const void *ctx, const struct direct_conv *d, const product_tile *t, char *room);
    const void *ctx;
    int64_t tile_rows, tile_columns, row_tiles, column_tiles; /* of a group */
    void *copies[3];                                          /* to be freed */
    etch_storage *held[2]; /* that the input's copy and w lie in */
    atomic_int failed;
} direct_conv;

/* Whether convolutions of the dtype are computed so. */
bool etch__conv_is_direct(etch_dtype dtype);
/* Whether their products are those of pairs of bf16. */
bool etch__conv_has_pairs(const conv_sizes *n, etch_dtype dtype);
conv_sizes etch__conv_sizes(const conv_numbers *at, const int64_t *x, const int64_t *w,
                            const int64_t *y);
/* From operands, bias NULL or ETCH_NONE for none; `planes`: so the result will lie. false: no
 * memory. Left are y, finish, ctx. */
bool etch__direct_begin(direct_conv *d, const conv_sizes *n, const etch_tensor *x,
                        const etch_tensor *w, const etch_tensor *bias, bool planes);
etch_status etch__direct_run(direct_conv *d);
/* Frees what begin made, whether it has failed or not. */
void etch__direct_end(direct_conv *d);

/* A handle of the same elements in the order images, rows, columns, channels. */
etch_tensor etch__channels_last(const etch_tensor *x);
/* Whether the channels of a pixel, of which there are several, are neighbours. */
bool etch__lies_innermost(const etch_tensor *x);
/* to[r * to_pitch + c] = from[c * from_pitch + r], elements of a dtype. */
void etch__direct_turn(const direct_conv *d, etch_dtype dtype, char *to, int64_t to_pitch,
                       const char *from, int64_t from_pitch, int64_t rows, int64_t columns);
/* conv_lines.c: whether a convolution whose result lies in planes is computed row by row. */
bool etch__conv_by_lines(const conv_sizes *n, etch_dtype dtype);
bool etch__lines_begin(direct_conv *d, const etch_tensor *x, const etch_tensor *w,
                       const etch_tensor *bias);
void etch__lines_run(direct_conv *d);

/* conv_tiles.c: whether a convolution is computed by tiles of AMX; how it is cut, its weight (row
 * by row, of bf16) and its run. */
bool etch__conv_by_tiles(const conv_sizes *n, etch_dtype dtype);
void etch__tiles_plan(direct_conv *d);
int64_t etch__tiles_weight_bytes(const direct_conv *d);
bool etch__tiles_pack(const direct_conv *d, const void *w, char *to); /* false: no memory */
void etch__tiles_run(direct_conv *d);

/* conv_input.c: x; n changes where a row of the kernel becomes one place. false: no memory. */
bool etch__direct_input(direct_conv *d, const etch_tensor *x);
bool etch__conv_has_runs(const conv_sizes *n); /* whether it does */
/* conv_weights.c: w, panel by panel; bias with zeros for what a panel has too much. false: no
 * memory. */
bool etch__direct_weights(direct_conv *d, const etch_tensor *w, const etch_tensor *bias);

#endif
