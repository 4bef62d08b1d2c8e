/* The batching rules, one function a name in the column `vmap` of core/ops/ops.def, and what they
 * share.
 *
 * A rule is given an operator call on samples, with the operands that are batched at the call's
 * level as they are below it: with the batch as dimension 0. It answers with the physical result,
 * whose dimension 0 is the batch, by ordinary operator calls. What inference says of one sample is
 * known, so the call is a legal one. */
#ifndef ETCH_CORE_TRANSFORMS_RULES_H
#define ETCH_CORE_TRANSFORMS_RULES_H

#include <etch/etch.h>

#include "core/dispatch/call.h"
#include "core/transforms/batch.h"

typedef struct batched_call {
    const op_call *call;    /* on samples */
    etch_tensor *const *in; /* operands; those that are batched, with the batch */
    const bool *batched;    /* by operand */
    const tensor_meta *one; /* the result of one sample */
    etch_dtype compute;     /* the dtype in which that is computed */
    int64_t size;           /* samples */
} batched_call;

typedef etch_tensor *(*batching_rule)(const batched_call *b);
#define RULE(name) etch_tensor *etch__batching_##name(const batched_call *b);
#include "core/transforms/batching.def"
/* BATCHING(name) { ... } is the function of a row. */
#define BATCHING(name) etch_tensor *etch__batching_##name(const batched_call *b)

/* ---- calling ---- */

/* The operator `op` at the call's line; scalars are those of the call. */
static inline etch_tensor *call_as(const batched_call *b, op_id op, etch_tensor *const *in,
                                   const int64_t *at, int nat) {
    const op_call *c = b->call;
    for (int i = 0; i < c->nin; i++)
        if (!in[i]) return NULL;
    return etch__operator(op, in, c->nin, c->sc, c->nsc, at, nat, c->site);
}
/* The call's own operator. */
static inline etch_tensor *call_again(const batched_call *b, etch_tensor *const *in,
                                      const int64_t *at, int nat) {
    return call_as(b, b->call->op, in, at, nat);
}

/* ---- operands ---- */

static inline int ndim_of_sample(const batched_call *b, int i) { return b->call->in[i]->ndim; }

/* The sizes of a meta or a tensor behind those of the batch. */
#define BATCH_AND(b, t) etch__batch_and((b)->size, (t)->ndim, (t)->size)
static inline etch_shape etch__batch_and(int64_t batch, int ndim, const int64_t *size) {
    etch_shape s = {.n = ndim + 1, .v = {batch}};
    memcpy(s.v + 1, size, (size_t)ndim * sizeof *size);
    return s;
}

/* Operand i with samples of at least ndim dimensions: ones come in front. One that is not batched
 * broadcasts as it is. */
etch_tensor *etch__padded(const batched_call *b, int i, int ndim);
/* Operand i with the batch, expanded where it has none. */
etch_tensor *etch__with_batch(const batched_call *b, int i);
/* The same, and a sample of no dimensions has one of size 1. */
etch_tensor *etch__with_dims(const batched_call *b, int i);
/* What an operator in place is to write, or a copy of it for one that is not. */
etch_tensor *etch__to_write(const batched_call *b);
/* In the sizes of the result. */
etch_tensor *etch__as_result(const batched_call *b, etch_tensor *t);

/* A dimension of a sample with ndim dimensions, in the physical tensor. */
static inline int64_t behind_batch(int64_t dim, int ndim) {
    return (dim < 0 ? dim + (ndim ? ndim : 1) : dim) + 1;
}

#endif
