/* What the arguments of a call must look like for a tree of traces to be entered. */
#ifndef ETCH_GUARDS_ENTRY_H
#define ETCH_GUARDS_ENTRY_H

#include "guards/guard.h"

typedef struct entry_guard {
    int nargs;
    bool dynamic;      /* dtype and rank only */
    tensor_meta *meta; /* of the arguments; NULL where no arguments are guarded */
    uint8_t *read;     /* which of them count: what an operator of the first path reads. Any other
                          is, where another path reads it, a captured tensor of that node */
    dim_marks *marks;  /* of the arguments, where sizes are run-time; NULL: none */
} entry_guard;

/* Of arguments as they are now; `read` is still to be filled. false: no memory. */
bool etch__entry_make(entry_guard *g, etch_tensor *const *in, int nin, bool dynamic);
void etch__entry_free(entry_guard *g);

/* FIT_RANK: whatever the sizes are, but for marks. FIT_SIMILAR: it could be so, had it been
 * recorded with run-time sizes. */
typedef enum entry_fit { FIT_EXACT, FIT_RANK, FIT_SIMILAR } entry_fit;
bool etch__entry_fits(const entry_guard *g, etch_tensor *const *in, int nin, entry_fit how);
/* FIT_EXACT, in line: what every call begins with. */
static inline bool etch__entry_fits_exactly(const entry_guard *g, etch_tensor *const *in, int nin) {
    if (g->nargs != nin) return false;
    for (int i = 0; i < nin; i++)
        if (g->read[i] && !(etch__guard_holds(&g->meta[i], in[i]) && !etch__marked_dynamic(in[i])))
            return false;
    return true;
}
/* As it was made. */
static inline bool etch__entry_holds(const entry_guard *g, etch_tensor *const *in, int nin) {
    return g->dynamic ? etch__entry_fits(g, in, nin, FIT_RANK)
                      : etch__entry_fits_exactly(g, in, nin);
}

/* The first thing that does not fit; "" where all does. */
void etch__entry_explain(const entry_guard *g, etch_tensor *const *in, int nin, char *buf,
                         size_t n);

#endif
