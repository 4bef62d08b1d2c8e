/* ETCH_TRACE: functions, traces, breaks and limits, recorded as the program runs and written as one
 * JSON document and one HTML page a process. Graphs, plans and kernels are core/observe/report.h's.
 * */
#ifndef ETCH_TRACER_REPORT_H
#define ETCH_TRACER_REPORT_H

#include "core/observe/report.h"
#include "tracer/trace/function.h"

#include <etch/debug.h>

enum {
    REPORT_MAX_FUNCTIONS = 4096,
    REPORT_MAX_EVENTS = 512, /* a function */
    REPORT_MAX_NODES = 1 << 18,
    REPORT_MAX_LIMITS = 64 /* a tree */
};

typedef struct report_node {
    int32_t parent; /* -1: the root */
    const char *op, *where;
    char *text; /* "%3 = mul.Tensor(%1, %2)" and what the result looks like */
} report_node;

typedef struct report_leaf {
    struct report_leaf *next; /* of the tree, newest first */
    int32_t node;             /* its last operator, -1: the root */
    reason_id end;
    const char *where; /* of the break that ends it */
    int recorded;
    int64_t first;         /* when */
    _Atomic int64_t eager; /* calls that matched it and ran operator by operator all the same */
    report_graph *graphs;  /* newest first */
} report_leaf;

/* A path that was turned away: the recompile limit was reached. */
typedef struct report_limit {
    int32_t node;
    const char *op, *where;
    int64_t count, first;
} report_limit;

typedef struct report_tree {
    struct report_tree *next; /* of the function, newest first */
    int number, generation;
    bool entry, dynamic;
    char *guards; /* of the arguments, for an entry */
    report_node *nodes;
    report_leaf *leaves;
    report_limit *limits;
    int64_t nnodes, nodes_cap, nlimits, limits_cap;
} report_tree;

typedef enum report_event_kind {
    REPORT_NONE = -1,
    REPORT_BREAK,
    REPORT_RECOMPILE,
    REPORT_MODE,
    REPORT_LIMIT, /* arguments that fit no trace, and the limit is reached */
    REPORT_RESET
} report_event_kind;

/* What happened alike, and how often. */
typedef struct report_event {
    uint8_t kind;
    reason_id why;
    const char *where;
    char *detail;
    char *source; /* the line's text */
    int64_t count, first;
} report_event;

typedef struct report_function {
    struct report_function *next; /* newest first */
    int number, generations;
    char *name, *options;
    const char *backend;
    etch_function *f; /* NULL: it was freed, and `counts` are its last */
    etch_counters_t counts;
    report_time calls;
    report_tree *trees;
    report_event *events;
    int64_t nevents, events_cap;
} report_function;

extern report_function *etch__report_functions; /* under the lock */
extern int64_t etch__report_began;              /* etch__now */
extern int etch__report_parent;                 /* of a forked process, else 0 */

/* Each is called only while etch__report_on(). */
report_function *etch__report_function(etch_function *f); /* NULL: dropped */
void etch__report_function_gone(etch_function *f);
void etch__report_event(etch_function *f, report_event_kind kind, reason_id why, const void *site,
                        const char *detail);
/* An ended recording became (or was) this leaf. The function's lock is held. */
void etch__report_published(etch_function *f, trace_leaf *leaf);
/* The limit kept a path out that would go on with op (NULL: would end) behind last. */
void etch__report_limited(etch_function *f, trace_tree *tree, const trace_node *last,
                          const op_call *call);
/* Around the backend's work on a leaf's graph; the second only where the first said true. */
bool etch__report_compiling(const trace_leaf *leaf, const graph *g, bool instance);
void etch__report_compiled(const trace_leaf *leaf, segment_code *code, etch_status status);

/* Begins recording, to be written to dir. false: dir is too long. */
bool etch__report_begin(const char *dir);
/* Tests: stops, and forgets everything. Functions that were recorded must be gone. */
void etch__report_end(void);
/* Paths of this process's files: what = "json" or "html". */
void etch__report_path(const char *what, char *buf, size_t n);

/* What is asked for before the lock is taken. */
typedef struct report_totals {
    etch_counters_t counts;
    int threads;
} report_totals;

/* tracer/tell/report_json.c: the document, under the lock. false: an error of the file. */
bool etch__report_json(FILE *f, const report_totals *totals);

#endif
