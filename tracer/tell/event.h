/* One recorder of what happens to a compiled function. Whoever wants to know reads the row of
 * tracer/tell/events.def: counters, logs, etch_explain, the profile, ETCH_TRACE. */
#ifndef ETCH_TRACER_TELL_EVENT_H
#define ETCH_TRACER_TELL_EVENT_H

#include "tracer/trace/function.h"

typedef enum event_id {
#define EVENT(id, ...) EVENT_##id,
#include "tracer/tell/events.def"
#undef EVENT
    EVENT_COUNT
} event_id;

typedef struct trace_event {
    reason_id why;
    const void *site;   /* the call where it happened, or NULL */
    const char *detail; /* what belongs to the reason's sentence, or NULL */
    const char *line;   /* what is logged in place of the sentence, or NULL */
    bool known;         /* the same as before, in a trace that has it: only counted */
} trace_event;

void etch__event(etch_function *f, event_id id, const trace_event *e);

/* A divergence: the call (NULL: the end of the segment, at `site`) is not what the trace has. */
void etch__event_diverged(etch_function *f, const trace_node *expected, const op_call *call,
                          const void *site);
/* No entry of the generation fits. */
void etch__event_unguarded(etch_function *f, const generation *g, etch_tensor *const *in, int nin);
/* Warns, once: the function runs eagerly from here on. graphs: the limit of all functions' graphs.
 * */
void etch__event_limit(etch_function *f, bool graphs);

/* What must hold for the leaf's code to run, as one line; etch__free it. */
char *etch__guards_text(const trace_leaf *leaf);

#endif
