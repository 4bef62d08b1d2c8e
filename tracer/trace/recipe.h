/* What a plan need not produce of what tapes keep, since it is computed again when it is read. */
#ifndef ETCH_TRACER_TRACE_RECIPE_H
#define ETCH_TRACER_TRACE_RECIPE_H

#include "tracer/trace/walk.h"

/* One operator of a segment that is to be called again. */
typedef struct recipe_step {
    op_call call;    /* without tensors and scalars */
    uint64_t state;  /* under which it was called */
    int32_t out, sc; /* its value, and its first scalar, in the trace */
    const int32_t *in;
} recipe_step;

/* Counted: by the code that it is of, and by runs whose tapes hold values of it. It is all that is
 * needed of the trace, which may go. */
struct recipe {
    atomic_int refs;
    int nsteps, nsources, nvalues, nscalars;
    recipe_step *steps;
    int32_t *source;     /* values that the steps start from, which are produced */
    tensor_meta *lies;   /* of each source: where in its storage */
    uint8_t *recomputed; /* per value */
    int32_t *in;
    int64_t *at;
};

/* Which storages the code produces: keep, per value that is a base. What only tapes want is left
 * out where fewer bytes that are kept give it in a few cheap operators; budget:
 * etch_compile_options. false: out of memory. */
bool etch__choose_kept(const trace_leaf *leaf, const input_case *sizes, double budget,
                       uint8_t *keep);
/* How what is wanted and not kept is computed. *made stays NULL where there is none. */
bool etch__recipe_make(const trace_leaf *leaf, const input_case *sizes, const uint8_t *keep,
                       recipe **made);
void etch__recipe_release(recipe *r);

#endif
