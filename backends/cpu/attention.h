/* What attention's forward and backward kernels share: the operands, tiles of scores and the memory
 * that a thread works in. */
#ifndef ETCH_BACKENDS_CPU_ATTENTION_H
#define ETCH_BACKENDS_CPU_ATTENTION_H

#include "backends/cpu/library.h"
#include "backends/cpu/program.h"
#include "core/dispatch/dispatch.h"

/* [batch..., heads, rows, columns] in memory: strides in elements, 0 where it is broadcast. */
typedef struct attention_operand {
    const char *data;
    etch_dtype dtype;
    int64_t row, col, head, batch[ETCH_MAX_DIMS];
} attention_operand;

typedef struct attention {
    const isa_table *isa;
    etch_dtype dtype, type; /* of the operands, and in which is computed */
    int size;               /* bytes of an element of `type` */
    int nbatch;
    int64_t batch[ETCH_MAX_DIMS], batches; /* sizes, and how many that are */
    int64_t heads, shared, group;          /* of queries; of keys and values, and how many of the
                                            * former have one of these: none where there are none */
    int64_t queries, keys, width,
        out_width;                         /* width: of a query and a key; out_width: of a value */
    int64_t query_block, key_block, pitch; /* tiles: functions of the sizes alone */
    attention_operand q, k, v, mask;
    attention_operand y; /* the result, where that is computed: rows of neighbours */
    bool masked, causal, drops;
    double scale, dropout;
    const double *seed; /* one a sample, which is `per_seed` heads */
    int64_t seed_step, per_seed;
    atomic_int failed; /* the first failure: a status */
} attention;

/* Attention of this call, whose tensors are the operands from number `at` on: query, key,
 * value, mask and, with dropout, seed. */
void etch__attention_plan(attention *a, const op_call *call, int at);
void etch__attention_operand_of(const attention *a, attention_operand *o, const etch_tensor *t);
void etch__attention_set_dropout(attention *a, etch_scalar rate, const etch_tensor *seed,
                                 int64_t heads);

/* ---- blocks, and the memory for them ---- */

/* A block of rows in the compute type. */
typedef struct attention_block {
    const void *data;
    int64_t pitch;
    int64_t shared, from, rows; /* what `own` holds; rows 0: nothing */
    void *own, *raw;            /* memory for a copy; the same of a half type with gaps */
} attention_block;

/* What a thread works in: pieces of one block of memory, at lines. Without memory they are counted
 * alone. */
typedef struct attention_room {
    char *memory;
    size_t used;
} attention_room;
void *etch__attention_cut(attention_room *r, int64_t elements, int64_t size);
/* The memory for what was counted, to be freed; NULL: there is none, which is noted. */
void *etch__attention_open(attention *a, attention_room *r);
/* Room for a block of rows and for what its copy takes. */
void etch__attention_cut_block(const attention *a, attention_room *r, attention_block *b,
                               int64_t rows, int64_t cols);
void etch__attention_cut_rows(const attention *a, attention_room *r, attention_tile *t);

/* Where row `from` of a query's head begins, `group` of which share one. */
const char *etch__attention_row(const attention *a, const attention_operand *o, int64_t head,
                                int64_t group, int64_t from);
/* Rows as they are, those of `to` one behind the other. */
void etch__attention_copy(const attention *a, const attention_operand *o, void *to, int64_t pitch,
                          const char *from, int64_t rows, int64_t cols);
/* Rows of keys or values of a query head, in place where the library can read them. */
void etch__attention_load(const attention *a, const attention_operand *o, attention_block *b,
                          int64_t head, int64_t from, int64_t rows, int64_t cols);
/* Rows of an operand that has query's heads. */
void etch__attention_load_rows(const attention *a, const attention_operand *o, attention_block *b,
                               int64_t head, int64_t from, int64_t rows, int64_t cols);
/* Queries are copied, times the scale. */
void etch__attention_load_queries(const attention *a, attention_block *b, int64_t head,
                                  int64_t from, int64_t rows);
void etch__attention_scale(const attention *a, void *rows, int64_t count, int64_t width);

/* ---- tiles ---- */

/* One product of the library; false: it has failed, which is noted. */
bool etch__attention_multiply(attention *a, const library_product *p);

/* Scores of `tile` from queries and keys, and the mask over them. */
typedef struct attention_place {
    int64_t head, query, key; /* of batch x heads, and the first ones of the tile */
} attention_place;
bool etch__attention_scores(attention *a, const attention_tile *tile, const attention_block *q,
                            const attention_block *k, const attention_place *at);
/* The mask over scores. */
void etch__attention_mask(const attention *a, const attention_tile *t, const attention_place *at);
/* Weights (or what goes back to them): 0, or one over the chance of being kept times as much. */
void etch__attention_drop(const attention *a, const attention_tile *tile, void *rows,
                          const attention_place *at);

/* Keys that the queries [from, from + rows) see at all. */
static inline int64_t etch__attention_seen(const attention *a, int64_t from, int64_t rows) {
    return a->causal ? at_most(a->keys, from + rows) : a->keys;
}
/* What rows have seen no keys: maxima of -inf, sums of 0. */
void etch__attention_start(const attention *a, attention_tile *t);
/* One over each sum, and 0 for a sum of nothing. */
void etch__attention_invert(const attention *a, void *sums);
/* The tile of these rows and keys, of which the causal mask leaves a triangle. */
void etch__attention_set_tile(const attention *a, attention_tile *t, const attention_place *at,
                              int64_t rows, int64_t keys);
/* The rows of a head's queries from `from` on: a row's sum of values over its sum of weights,
 * rounded. Of a row of no keys 0, whatever values are. */
void etch__attention_store(const attention *a, attention_tile *t, void *values, int64_t pitch,
                           int64_t head, int64_t from, int64_t rows);

/* ---- the whole ---- */

/* attention_bf16.c: whether it takes a call, and computes it. */
bool etch__attention_bf16_takes(const attention *a);
etch_status etch__attention_of_bf16(attention *a);
/* A product of panels: rows of bf16, `pitch` elements apart, or, with pitch 0, panels of rows, by
 * panels of columns, each of so many blocks of terms. */
typedef struct panel_product {
    const void *left;
    int64_t pitch;
    const char *right;
    int64_t right_panel;
    float *c;
    int64_t ldc, rows, cols, blocks;
    bool adds;
} panel_product;
void etch__attention_panels(const panel_table *t, const panel_product *p);
/* Scores are multiplied by the scale and masked; what keeps their order is left to be multiplied
 * by, where that is asked for. */
float etch__attention_scale_scores(const attention *a, const attention_tile *t,
                                   const attention_place *at, bool all);

/* Gradients of query, key and value, row-major. attention_bf16_backward.c: of what is taken. */
typedef struct attention_backward {
    attention a;
    attention_operand g, result;
    char *to_q, *to_k, *to_v;
} attention_backward;
etch_status etch__attention_backward_of_bf16(attention_backward *j);

/* That of `failed`, with the error set. */
etch_status etch__attention_status(attention *a);
/* Runs `task` over n pieces of that much work each. */
etch_status etch__attention_run(attention *a, int64_t n, double work,
                                void (*task)(void *ctx, int64_t begin, int64_t end), void *ctx);

#endif
