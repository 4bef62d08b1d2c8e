/* Batched tensors: handles that show one sample of a tensor which has the batch as its first
 * dimension (docs/transforms.md). Their operators are answered by batching rules, on the physical
 * tensors below; so no mode, trace or kernel ever sees one. Each has a level, the number of the
 * call of a mapped function that made it. */
#ifndef ETCH_CORE_TRANSFORMS_BATCH_H
#define ETCH_CORE_TRANSFORMS_BATCH_H

#include "core/ops/op.h"

static inline bool etch__is_batched(const etch_tensor *t) {
    return t && t->layers >> LAYER_VMAP & 1;
}
static inline uint32_t etch__level_of(const etch_tensor *t) {
    return etch__is_batched(t) ? t->notes->level : 0;
}
/* What lies below all its levels: t itself where it has none. */
static inline const etch_tensor *etch__physical(const etch_tensor *t) {
    while (etch__is_batched(t)) t = t->notes->inner;
    return t;
}
/* The samples at t's own level. */
static inline int64_t etch__batch_size(const etch_tensor *t) { return t->notes->inner->size[0]; }

/* A batched tensor over inner (which is counted; its dimension 0 is the batch), in no scope, with
 * count 1. inner's levels are lower. */
etch_tensor *etch__batch_over(etch_tensor *inner, uint32_t level);
/* The same in the innermost scope; NULL stays. */
etch_tensor *etch__batch_made(etch_tensor *inner, uint32_t level);

/* The levels of a value, highest first; 0 behind the last. */
typedef struct batch_levels {
    uint32_t level[BATCH_LEVELS];
} batch_levels;
batch_levels etch__levels_of(const etch_tensor *t);
bool etch__has_level(const batch_levels *levels, uint32_t level);

/* Whether a is batched wherever b is. */
bool etch__batched_as(const etch_tensor *a, const etch_tensor *b);

/* ---- the open levels of a thread ---- */

/* Opens one for the innermost scope, with which it ends if nobody closes it; 0 with an error where
 * too many are open. */
uint32_t etch__level_open(uint8_t randomness, int64_t size);
/* The thread's room for levels, made at the first; false: out of memory. */
bool etch__levels_ready(void);
void etch__level_close(uint32_t level);
void etch__drop_left_levels(void);
bool etch__level_is_open(uint32_t level);
/* A number above all that there are: levels of tangents come from the same row. */
uint32_t etch__next_level(void);

/* ---- from and to the physical tensor ----
 *
 * They know nothing of tapes (see core/autograd/crossing.h), and call operators. */

/* t with its dimension dim (counted from the front) as the batch of a level. */
etch_tensor *etch__batch(etch_tensor *t, int dim, uint32_t level);
/* The other way round: the batch becomes dimension dim of the result. What is not batched at that
 * level is expanded to `size` samples. */
etch_tensor *etch__unbatch(etch_tensor *t, int dim, uint32_t level, int64_t size);
/* The sum over all samples of one level. */
etch_tensor *etch__sum_batch(etch_tensor *t, uint32_t level);
/* Zeros of these sizes, batched as any of the n tensors is (NULLs among them count for nothing),
 * with tangents of 0 where any has one; n <= ZEROS_LIKE. */
enum { ZEROS_LIKE = 4 };
etch_tensor *etch__zeros_batched(etch_dtype dtype, etch_shape size, int device,
                                 etch_tensor *const *like, int n);

/* Whether what `other` has of batches and tangents can be written into t. */
bool etch__holds(const etch_tensor *t, const etch_tensor *other);
/* A copy of t, into which the others can be written. */
etch_tensor *etch__copy_batched_as(etch_tensor *t, etch_tensor *const *others, int n);

/* The same batched tensor over another physical one (counted; in no scope). */
etch_tensor *etch__rebatched(const etch_tensor *t, etch_tensor *physical);

#endif
