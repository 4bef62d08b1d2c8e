/* etch_explain: why a function was compiled, compiled again, broken into several graphs, or not
 * compiled. */
#ifndef ETCH_EXPLAIN_H
#define ETCH_EXPLAIN_H

#include <etch/debug.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A graph that was compiled. */
typedef struct etch_explained_graph {
    const char *name;   /* "step/0"; further graphs of one root are "step/0.1" and so on */
    const char *guards; /* "tensor 0: f32[8, 4]; ..." */
    int operators;
    int kernels, products; /* generated kernels and library products of one run */
    double seconds;        /* compiling it took */
    int64_t saved_bytes;   /* of what it makes and tapes keep for backward; each storage once */
} etch_explained_graph;

/* A graph break met while recording, or why a graph was needed beyond the first. */
typedef struct etch_explained_event {
    const char *reason; /* "item", "guard_failed", ... */
    const char *text;   /* the reason as a sentence */
    const char *detail; /* what was expected and what came; the user's text; "" */
    const char *where;  /* "file.c:12" of the call; "" at the entry or the return, and without debug
                           information */
    const char *hint;
    int64_t count; /* of a break: recordings that met it (runs of compiled code that break are
                      counted in break_count only); of a recompile: how often */
} etch_explained_event;

typedef struct etch_explanation {
    const char *name, *backend;
    int64_t calls;
    int64_t graph_count, op_count; /* graphs compiled since the start, and operators in them */
    int64_t break_count;           /* graph breaks of all calls, recorded or compiled */
    int64_t recompile_count;       /* graphs beyond the first under one root */
    int64_t plan_runs, eager_runs; /* runs of compiled code, and of segments that did not fit */
    int64_t mode_fallbacks;        /* calls that ran uncompiled because a mode was active */
    const char *mode;              /* the last such mode, or NULL */
    bool limit_reached;            /* the recompile limit, since the last etch_reset */
    double compile_seconds;        /* the sum over all graphs */
    int ngraphs, nbreaks, nrecompiles;
    const etch_explained_graph *graphs;
    const etch_explained_event *breaks, *recompiles;
    int64_t dropped; /* graphs and events beyond the 64 of each kind that are kept */
} etch_explanation;

/* What is known of f now; free it with etch_explanation_free. NULL on error. */
ETCH_API etch_explanation *etch_explain(const etch_function *f);
ETCH_API void etch_explanation_free(etch_explanation *e); /* NULL is a no-op */
/* The same as text into buf (at most n bytes with the final NUL); returns the length it needs
 * without the NUL, or -1. */
ETCH_API int64_t etch_explain_text(const etch_function *f, char *buf, size_t n);

/* With ETCH_TRACE=DIR in the environment, what happens to compiled functions is recorded, and at
 * the end of the process written to DIR/etch-PROGRAM-PID.json and, as a page for people, .html.
 * This writes both at once, with all until now; the end writes them again. invalid_argument where
 * ETCH_TRACE is not set; io. */
ETCH_API etch_status etch_trace_write(void);

#ifdef __cplusplus
}
#endif
#endif
