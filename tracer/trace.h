/* Traces: what is recorded of a function, and one thread's walk along it.
 *
 *   etch_function -> generation -> trace_tree (segments with one root) -> trace_node ... -> trace_leaf
 *
 * A *segment* runs from the entry or a graph break to the next break or the return. Segments with one
 * root form a tree; an edge is an operator with its static attributes, state word, operand positions
 * and the guards of the captured tensors that it meets first; an end is an edge too, and carries the
 * leaf with the compiled code of its whole path. Published nodes never change but for the links to
 * children, the predicted successor and the leaf's code; they live as long as their generation.
 *
 * Values are numbered along a path: arguments, then captured tensors and results as they appear. A
 * *walk* is one thread's passage through a segment: matching it against a tree, or recording it. A
 * *run* is one call of a compiled function: a chain of walks. */
#ifndef ETCH_TRACER_TRACE_H
#define ETCH_TRACER_TRACE_H

#include <pthread.h>

#include "core/backend.h"
#include "core/cursor.h"
#include "core/dispatch.h"
#include "guards/guard.h"

typedef struct trace_leaf trace_leaf;
typedef struct trace_tree trace_tree;
typedef struct generation generation;

/* A captured tensor first met at a node: the slot it binds, and what it must look like. */
typedef struct capture {
    int32_t value, operand;
    tensor_meta guard;
} capture;

typedef struct trace_node {
    cursor_node c; /* first: the cursor walks these */
    struct trace_node *parent;
    _Atomic(struct trace_node *) child, sibling;
    uint16_t op, nin;
    uint8_t nsc, nat;
    int32_t *in; /* all operand positions */
    capture *captures;
    int ncaptures;
    int32_t nvalues, nscalars; /* after this node */
    tensor_meta meta;          /* of the result; the offset of a view is relative to in[0] */
    const void *site;          /* of the recorded call */
    reason_id end;             /* an end edge: the break's reason, END_RETURN for the return */
    trace_leaf *leaf;          /* an end edge: what it leads to */
} trace_node;

#define END_RETURN REASON_COUNT

/* Compiled code of a leaf for one aliasing pattern of its inputs. Immutable once published. */
typedef struct segment_code {
    plan *plan;
    int nin, nout;
    int32_t *in;     /* values that are the plan's inputs */
    int32_t *out;    /* values (bases) whose storage it produces */
    int32_t *slot;   /* per value: index into out of its base, OUT_INPUT if its base is an input
                        (then base[v] says which), OUT_MISSING otherwise */
    int32_t *base;   /* per value: the value over whose storage it lies */
    int32_t *alias;  /* per input: lowest input with the same storage; checked where inputs are written */
    struct segment_code *next; /* another aliasing pattern */
} segment_code;

enum { OUT_MISSING = -1, OUT_INPUT = -2 };

struct trace_leaf {
    trace_tree *tree;
    trace_node *end;
    trace_node **path;
    int npath, nvalues, nscalars;
    uint8_t *want;    /* per value: its storage is wanted after the segment (under the function's lock) */
    uint8_t *tainted; /* per value: depends on storage that the segment itself writes */
    uint8_t *written; /* per value that is an input: the segment writes its storage */
    bool writes_inputs;
    int recorded;     /* recordings in a row */
    int codes;        /* graphs compiled for it */
    bool stale;       /* `want` has grown since the last compile */
    _Atomic(segment_code *) code;
    const void *site; /* of the break that ends it */
};

enum { SPARE_WALKS = 8 };

struct trace_tree {
    generation *gen;
    bool entry;
    int nargs;
    tensor_meta *guards; /* of the arguments, for an entry */
    trace_node root;
    int32_t nnodes;      /* node ids given out */
    int number;          /* for names: function/number */
    int nleaves;
    _Atomic int ncompiled;
    bool limited;        /* the recompile limit is reached (resume trees; entries use the generation's) */
    _Atomic(struct walk *) spare[SPARE_WALKS];
    _Atomic(trace_tree *) next;
};

/* All traces of a function between two resets. */
struct generation {
    atomic_int refs;
    _Atomic(trace_tree *) entries, resumes;
    int ntrees, entry_leaves, graphs;
    bool entry_limited;
    void **blocks; /* everything to be freed with it */
    int64_t nblocks, blocks_cap;
    trace_leaf **leaves;
    int64_t nleaves, leaves_cap;
};

typedef enum function_kind { FN_0, FN_1, FN_2, FN_3, FN_4, FN_N } function_kind;

struct etch_function {
    atomic_int refs; /* the handle's, and one for each run */
    function_kind kind;
    void (*fn)(void);
    void *ctx;
    etch_compile_options options;
    char *name;
    const backend *backend;
    pthread_mutex_t lock;         /* publishing, leaves' want, generation changes */
    pthread_mutex_t compile_lock; /* one compile at a time */
    _Atomic(generation *) gen;
    trace_leaf *last_recorded; /* for stable_after */
    counters counts;
    struct etch_function *next; /* list of all functions */
};

/* ---- walking ------------------------------------------------------------------------------------ */

typedef enum walk_mode {
    WALK_MATCH,  /* answered with deferred handles along the tree */
    WALK_RECORD, /* executed one by one, and recorded */
    WALK_SHAPES  /* recorded with deferred handles: fullgraph */
} walk_mode;

typedef struct walk {
    trace_cursor c; /* first */
    struct run *run;
    trace_tree *tree; /* NULL: a recording whose tree is not there yet */
    walk_mode mode;
    bool pending;     /* ended; some of its live handles are still deferred */
    bool recorded;    /* ended in recording and not yet published */
    trace_leaf *leaf; /* ended in matching */
    reason_id end;
    const void *end_site;
    int nargs;
    int64_t nvalues, values_cap, nscalars, scalars_cap, handles_cap;
    trace_node **path; /* recording: the nodes so far, shared prefix first */
    int64_t npath, path_cap;
    int64_t shared;    /* of these, how many belong to the tree */
    uint8_t *want;     /* recording: per value, used after the segment's end */
    int64_t want_cap;
    etch_tensor **inputs; /* scratch of a flush */
    int64_t inputs_cap;
    etch_storage **outputs;
    int64_t outputs_cap;
    struct walk *next; /* in the run's list of ended walks, newest first */
} walk;

typedef struct run {
    etch_function *f;
    generation *gen;
    walk *walk;     /* the segment being walked; NULL between a break and the next operator */
    walk *ended;    /* earlier segments of this call that are still needed */
    bool eager;     /* the limit is reached: no recording until the segment ends */
    int64_t scope;  /* the call's own scope */
    etch_storage **exposed;
    int64_t nexposed, exposed_cap;
    pthread_t thread;
} run;

/* tracer/tree.c: nodes and trees */
generation *etch__generation_new(void);
void etch__generation_release(generation *g);
/* Memory that dies with the generation (under the function's lock). */
void *etch__generation_alloc(generation *g, size_t bytes);
trace_node *etch__node_new(const op_call *call);
void etch__node_free(trace_node *n);
/* The child of parent that the call fits, binding nothing: those without captures first. */
bool etch__same_call(const trace_node *n, const op_call *call, uint64_t state);
trace_tree *etch__find_entry(generation *g, etch_tensor *const *in, int nin);
trace_tree *etch__find_resume(generation *g, const op_call *call, uint64_t state);
trace_node *etch__find_end(const trace_node *n, reason_id end);
/* Inserts an ended recording; takes over its nodes. NULL: the limit, no memory, or a generation that
 * is no longer the function's. The function's lock is held. */
trace_leaf *etch__publish(walk *w);

/* tracer/walk.c: one segment */
walk *etch__walk_take(run *r, trace_tree *tree);
void etch__walk_recycle(walk *w);
void etch__walk_free(walk *w);
bool etch__walk_bind_args(walk *w, etch_tensor *const *in, int nin);
etch_tensor *etch__walk_match(walk *w, const op_call *call);
etch_tensor *etch__walk_record(walk *w, const op_call *call);
/* Runs the nodes matched so far through the eager kernels; the walk then records. */
void etch__walk_to_recording(walk *w);
int32_t etch__walk_find(const walk *w, const etch_tensor *t);

/* tracer/evaluate.c: nodes through the eager kernels, plans */
etch_status etch__evaluate(walk *w, trace_node *const *path, int64_t npath, bool live_only);
etch_status etch__run_code(walk *w, const trace_leaf *leaf, const segment_code *code);
/* The code of the leaf for the aliasing of this walk's inputs; NULL where there is none. */
const segment_code *etch__pick_code(const walk *w, const trace_leaf *leaf);
void etch__walk_path(const trace_node *last, walk *w);

/* tracer/compile.c: leaves to code */
/* Compiles the leaf for its wanted values and the aliasing of the given inputs. */
void etch__compile_leaf(etch_function *f, trace_leaf *leaf, const int32_t *alias);
graph *etch__leaf_graph(const trace_leaf *leaf, const char *name, const int32_t *alias,
                        segment_code *code);
void etch__fill_alias(etch_tensor *const *value, const trace_leaf *leaf, int32_t *alias);

#endif
