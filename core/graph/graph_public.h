/* From the compiler's graph to the one that users edit, and back. */
#ifndef ETCH_CORE_GRAPH_GRAPH_PUBLIC_H
#define ETCH_CORE_GRAPH_GRAPH_PUBLIC_H

#include "core/graph/graph.h"

/* Where a run-time scalar of a lowered graph comes from: a parameter of the
 * original, or an edit. */
typedef struct graph_scalar {
    int param;         /* -1: value */
    etch_scalar value; /* its kind counts for parameters, too */
} graph_scalar;

/* An editable copy of g; etch_graph_free it. */
etch_graph *etch__graph_open(const graph *g);
void etch__graph_set_instance(etch_graph *e, bool instance);
/* The compiler's graph of e as it is now, with the origin of each of its scalars (etch__free them).
 * Inputs and outputs keep their numbers. Results get their metas anew. NULL with the error set
 * where an edit left something that does not fit. */
graph *etch__graph_close(const etch_graph *e, graph_scalar **scalars);

#endif
