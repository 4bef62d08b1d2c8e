/* What is remembered of a function for etch_explain: a bounded list of each kind. */
#ifndef ETCH_TRACER_STORY_H
#define ETCH_TRACER_STORY_H

#include "core/base/base.h"

enum { STORY_MAX = 64, STORY_DETAIL = 192 };

typedef enum story_list { STORY_NONE, STORY_BREAKS, STORY_RECOMPILES, STORY_MODE } story_list;

typedef struct story_event {
    reason_id why;
    const void *site;
    char *detail; /* NULL: none */
    int64_t count;
} story_event;

typedef struct story_graph {
    char *name, *guards;
    int operators, kernels, products;
    double seconds;
    int64_t saved_bytes;
} story_graph;

typedef struct story {
    story_event *breaks, *recompiles;
    story_graph *graphs;
    int nbreaks, nrecompiles, ngraphs;
    int64_t breaks_cap, recompiles_cap, graphs_cap, dropped;
    double seconds;
    char mode[64];
} story;

struct etch_function;

/* Each may be called with the function's lock held. A lack of memory only counts as dropped.
 * STORY_MODE keeps the last one, whose name is the detail. */
void etch__story_note(struct etch_function *f, story_list list, reason_id why, const void *site,
                      const char *detail);
/* guards is taken over, the name copied. */
void etch__note_graph(struct etch_function *f, const story_graph *g);
/* "reason: detail" of the last recompile into buf, "" without one. */
void etch__last_recompile(struct etch_function *f, char *buf, size_t n);

#endif
