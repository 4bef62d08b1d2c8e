/* What happened, for people: breaks, divergences, guards that failed, the recompile limit. */
#ifndef ETCH_TRACER_TELL_LOG_H
#define ETCH_TRACER_TELL_LOG_H

#include "tracer/trace/function.h"

/* What must hold for the leaf's code to run, as one line; etch__free it. */
char *etch__guards_text(const trace_leaf *leaf);
void etch__log_break(etch_function *f, reason_id why, const void *site, const char *text);
/* The call (NULL: the end of the segment, at `site`) is not what the trace has next. */
void etch__log_diverged(etch_function *f, const trace_node *expected, const op_call *call,
                        const void *site);
/* No entry of the generation fits. */
void etch__log_guards(etch_function *f, const generation *g, etch_tensor *const *in, int nin);
/* graphs: the limit of all functions' graphs. */
void etch__warn_limit(etch_function *f, bool graphs);

#endif
