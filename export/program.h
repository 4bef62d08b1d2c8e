/* A program: what an exported function is, without its code. Its graph; where the graph's inputs
 * come from; its scalars; which values are the results. export/record.c makes one of a recording,
 * export/text.c writes and reads it, export/check.c looks at what was read, export/imported.c runs
 * it. */
#ifndef ETCH_EXPORT_PROGRAM_H
#define ETCH_EXPORT_PROGRAM_H

#include "core/graph/graph.h"
#include "export/sizes.h"

enum { PROGRAM_ARGS_MAX = 1 << 16 };

/* Inputs of the graph are the arguments (those that are not ETCH_NONE), then what is captured. */
typedef struct program_argument {
    int32_t input; /* of the graph, or -1: ETCH_NONE */
    int32_t same;  /* the first argument that is the same handle */
} program_argument;

/* A captured tensor lies over a stored one, from that element on. */
typedef struct program_capture {
    char *name; /* of the stored tensor */
    int64_t offset;
} program_capture;

typedef struct program {
    graph *g;
    etch_mode_kind mode;
    etch_numerics numerics;
    unsigned fp; /* how the processor computes: FP_MODE bits */
    int nargs, ncaptures, nresults;
    program_argument *args;
    program_capture *captures;
    int32_t *results;     /* values of the graph */
    etch_scalar *scalars; /* of the graph; seeds and offsets of random operators are drawn anew */
    bool writes;          /* some input: then which of them share a storage is as recorded */
    /* Sizes that may be others than in the graph. */
    int nsymbols, ndims, nformulas;
    program_symbol symbols[SYMBOLS_MAX];
    program_dim *dims;
    program_formula *formulas;
} program;

void etch__program_free(program *p);
/* The input on whose storage the value lies, as its chain of views began; -1: none. */
int32_t etch__program_root(const program *p, int32_t value);
/* Whether node i takes its last two scalars from the generator of random numbers. */
static inline bool etch__program_draws(const program *p, int i) {
    return (etch__ops[p->g->nodes[i].op].flags & OPF_RANDOM) != 0;
}

static inline int etch__first_capture(const program *p) { return p->g->ninputs - p->ncaptures; }
/* All its tensors lie there. */
static inline int etch__program_device(const program *p) {
    return p->g->nvalues ? p->g->values[0].meta.device : 0;
}
/* Per input: whether a call writes its storage. To be freed; NULL without memory. */
uint8_t *etch__program_written(const program *p);
/* Elements of a tensor that looks so, from the least (not above 0) to the one behind the last; both
 * 0 where it has none. false: more than any memory has. */
bool etch__program_extent(const tensor_meta *m, int64_t *least, int64_t *end);

/* The first difference, as a sentence; NULL: there is none. Lives until the next call. resized: of
 * two recordings with other sizes, which may differ in attributes, scalars and sizes. */
const char *etch__program_difference(const program *a, const program *b, bool resized);
/* The symbol of an argument's dimension, or -1. */
int etch__program_symbol(const program *p, int argument, int dim);

/* ---- for inference: zeroed handles without data that look like the values ---- */

void etch__program_handle(etch_tensor *t, const tensor_meta *m);
/* The call of node i on them, with the program's scalars and words; in: room for its operands. */
op_call etch__program_call(const program *p, int i, etch_tensor *handles, etch_tensor **in);

/* ---- resize.c ---- */

/* The program with other sizes of its symbols, inferred anew; captures have no names in it. NULL
 * with the error set where the sizes do not fit. */
program *etch__program_resize(const program *p, const int64_t *sizes);

/* ---- text.c: two texts, of the graph and of the rest, to be freed with etch__free ---- */

char *etch__program_text(const program *p);
/* From both; the names of captures are not set. NULL with the error format. */
program *etch__program_read(const char *graph, const char *rest);

/* ---- check.c ---- */

/* Whether running it cannot go wrong but by its data: everything that was read is looked at, and
 * inferred once more. false with the error format. */
bool etch__program_check(program *p, const char *function);

#endif
