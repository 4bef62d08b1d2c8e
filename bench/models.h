/* Whole models as a user writes them, forward passes only: what bench/model_rows.c measures beside
 * the peers of bench/model_peers.py, which are written alike and take the same weights.
 *
 * A forward function asks for its weights in the order in which it needs them; its first run makes
 * them, later ones get the same again. So the function alone says what they are. */
#ifndef ETCH_BENCH_MODELS_H
#define ETCH_BENCH_MODELS_H

#include <etch/etch.h>

enum { MODEL_WEIGHTS = 320 };

/* A model of one row, and its weights. */
typedef struct net {
    int64_t layers, width, heads, inner;
    int64_t length; /* decode: the keys that are seen, that of the step included */
    etch_dtype dtype;
    int bits; /* of the weights of products; 0: they are of the dtype */
    etch_tensor *weights[MODEL_WEIGHTS];
    int count, next;
} net;

typedef struct model_row {
    const char *name;
    etch_tensor *(*forward)(net *n, etch_tensor *x);
    int64_t sizes[4]; /* of the input; 0: not there */
    int64_t layers, width, heads, inner, length;
    bool gpu; /* a row of GPUs, in the dtype; those of the CPU run in f32 and bf16 */
    etch_dtype dtype;
    int bits; /* 8, a scale for each row; 4, one for each 32 numbers; then in f32 alone */
} model_row;

/* Ends with one without a name. */
extern const model_row model_rows[];

#endif
