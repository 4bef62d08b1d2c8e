/* Derivatives: what the rules of operators are given and what they answer.
 *
 * A rule is a function of ordinary operator calls, named in the column `derivative` of
 * core/ops/ops.def, with a row in derivatives.def that says what it reads. It is given the gradient
 * of the operator's result and sets those of the operands that are wanted. What it sets may be of
 * any sizes that broadcast with the operand's, and of another float dtype: the engine sums or
 * expands, then converts. Sizes of operands that were not saved are in `shape`. A rule that runs to
 * its end with an operator failing (NULL) fails by that error. */
#ifndef ETCH_CORE_AUTOGRAD_DERIVATIVE_H
#define ETCH_CORE_AUTOGRAD_DERIVATIVE_H

#include <etch/grad.h>

#include "core/transforms/batch.h"

/* What the gradient of one operand reads: a bit each. */
enum {
    READS_NOTHING = 0,
    READS_0 = 1,
    READS_1 = 2,
    READS_2 = 4,
    READS_ALL = 0x10,    /* all operands, and the result */
    READS_PLACES = 0x20, /* where operand 0 and the result lie in memory */
    READS_RESULT = 0x40,
    NO_GRADIENT = 0x80 /* of this operand there is none: indices, conditions */
};
/* How many operands have a column of their own. */
enum { SAVED_OPERANDS = 3 };

/* What a value looks like, and so its gradient. */
typedef struct value_shape {
    uint8_t dtype, ndim, device;
    bool columns; /* its matrices are transposed: elements of a column are neighbours */
    int64_t size[ETCH_MAX_DIMS];
    batch_levels levels; /* at which it is batched */
} value_shape;
static inline etch_shape etch__sizes_of(const value_shape *s) {
    etch_shape sizes = {.n = s->ndim};
    for (int d = 0; d < s->ndim; d++) sizes.v[d] = s->size[d];
    return sizes;
}

/* Which elements of an operand a gradient belongs to, those of all others being 0: `count` from
 * `from` on, `step` apart, along `dim`. */
typedef struct gradient_part {
    bool some; /* false: it is the gradient of all of it */
    int dim;
    int64_t from, count, step; /* step > 0 */
} gradient_part;

typedef struct derivative_call {
    etch_tensor *grad;      /* of the result */
    etch_tensor *const *in; /* operands that were saved, else NULL */
    etch_tensor *result;    /* or NULL where it was not saved */
    const etch_scalar *sc;
    const int64_t *at;
    const value_shape *shape;    /* of the operands */
    const value_shape *outshape; /* of the result */
    const tensor_meta *places;   /* of operand 0 and the result, or NULL where that is not read */
    int nin;
    const bool *wants;   /* by operand */
    etch_tensor **to;    /* gradients of operands, NULL at first; NULL stays for "none" */
    gradient_part *part; /* of what to[0] is the gradient: at first of all of operand 0 */
    uint16_t op;
    uint8_t nsc, nat;
} derivative_call;

typedef void (*derivative_rule)(const derivative_call *d);

/* A call in forward mode: the derivative of its result, from those of its operands. */
typedef struct forward_call {
    const derivative_call *d; /* with all operands and the result; no gradient */
    const struct op_call *call;
    etch_tensor *const *tangent; /* by operand, or NULL */
    const struct derivative *derivative;
} forward_call;

typedef etch_tensor *(*forward_rule)(const forward_call *f);

typedef struct derivative {
    const char *name;
    derivative_rule rule;          /* NULL: the result never requires gradients */
    forward_rule forward;          /* NULL: of a custom operator, or where there is no rule */
    uint8_t reads[SAVED_OPERANDS]; /* by operand; the last one stands for all that follow */
} derivative;

/* The derivative of an operator; NULL: there is none. */
const derivative *etch__derivative(op_id op);
/* What the gradient of operand i reads. */
static inline unsigned etch__derivative_reads(const derivative *d, int i) {
    return d->reads[i < SAVED_OPERANDS ? i : SAVED_OPERANDS - 1];
}

#endif
