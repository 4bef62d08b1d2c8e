/* Published traces: what is recorded of a function.
 *
 *   etch_function -> generation -> trace_tree (segments with one root)
 *       -> trace_node -> trace_node ... -> trace_leaf
 *
 * A *segment* runs from the entry or a graph break to the next break or the return. Segments with
 * one root form a tree; an edge is an operator with its static attributes, state word, operand
 * positions and the guards of the captured tensors that it meets first; an end is an edge too, and
 * carries the leaf with the compiled code of its whole path. Published nodes never change but for
 * the links to children, the predicted successor and the leaf's code; they live as long as their
 * generation. Values are numbered along a path: arguments, then captured tensors and results as
 * they appear. */
#ifndef ETCH_TRACER_TRACE_TREE_H
#define ETCH_TRACER_TRACE_TREE_H

#include <pthread.h>

#include "core/graph/backend.h"
#include "core/dispatch/cursor.h"
#include "guards/capture.h"
#include "guards/entry.h"
#include "guards/limit.h"

typedef struct trace_leaf trace_leaf;
typedef struct trace_tree trace_tree;
typedef struct generation generation;
struct trace_walk;  /* tracer/trace/walk.h */
struct replay;      /* tracer/run/replay.c */
struct constant;    /* tracer/run/wrappers.c */
struct report_tree; /* tracer/tell/report.h; each is NULL where nothing is recorded */
struct report_leaf;
struct report_graph;

/* ---- nodes ---- */

typedef struct trace_node {
    cursor_node c; /* first: the cursor walks these */
    struct trace_node *parent;
    _Atomic(struct trace_node *) child, sibling;
    uint16_t op, nin;
    uint8_t nsc, nat;
    uint16_t part_of; /* as the recorded call's (core/ops/op.h) */
    int32_t *in;      /* all operand positions */
    capture *captures;
    int ncaptures;
    int32_t nvalues, nscalars; /* after this node */
    int32_t nwrites;           /* operators that write, up to this one */
    tensor_meta meta;          /* of the result; the offset of a view is relative to in[0] */
    bool dynamic; /* sizes and positions are run-time: only dtypes, ranks and the rest must agree */
    int32_t
        ints; /* dynamic: index of its attribute words in the walk's, and behind them, of a view,
                     the offset relative to in[0] */
    int32_t nints;    /* after this node */
    const void *site; /* of the recorded call */
    reason_id end;    /* an end edge: the break's reason, END_RETURN for the return */
    trace_leaf *leaf; /* an end edge: what it leads to */
} trace_node;

#define END_RETURN REASON_COUNT

trace_node *etch__node_new(const op_call *call, uint64_t state);
void etch__node_free(trace_node *n);
/* The child that stands for the same calls, NULL if there is none. */
trace_node *etch__find_child(const trace_node *at, const trace_node *like);
trace_node *etch__find_end(const trace_node *n, reason_id end);

/* Notes what followed a node. Other threads read the node, so it is written only if that is new. */
static inline void etch__predict(const trace_node *n, trace_node *follows) {
    cursor_node *c = &((trace_node *)n)->c;
    if (atomic_load_explicit(&c->next, memory_order_relaxed) != &follows->c)
        atomic_store_explicit(&c->next, &follows->c, memory_order_release);
}

/* ---- leaves and their code ---- */

/* What code of a leaf is made for: which inputs share a storage, and, where sizes are run-time,
 * these. Of an ended walk. */
typedef struct input_case {
    int32_t *alias;     /* per value that is an input: the lowest input over the same storage */
    int64_t *key;       /* sizes and strides of the inputs, then the ints */
    int64_t *ints;      /* attribute words of dynamic nodes, see trace_node.ints */
    tensor_meta *metas; /* of every value */
    int64_t nkey, nints;
    int64_t alias_cap, key_cap, ints_cap, metas_cap;
} input_case;

typedef struct recipe recipe; /* tracer/trace/recipe.h */

/* Compiled code of a leaf for one aliasing pattern of its inputs, and for one set of sizes if
 * the leaf is dynamic (the kernels are shared by all sizes: making it costs a plan, no
 * compile). Immutable once published; newer code goes before older code of the same pattern,
 * which runs may still be using. */
typedef struct segment_code {
    plan *plan;
    int nin, nout;
    int32_t *in;      /* values that are the plan's inputs */
    int32_t *out;     /* values (bases) whose storage it produces */
    int32_t *slot;    /* per value: index into out of its base, OUT_INPUT if its base is an input,
                       OUT_MISSING otherwise */
    int32_t *alias;   /* per value that is an input: the lowest input over the same storage, checked
                       where inputs are written; any other value: itself */
    uint8_t *tainted; /* per value: depends on storage that the segment itself writes */
    int64_t *offset;  /* per value: elements from the first element of its base */
    int32_t *made;    /* values that nodes make: those that it does not produce, then the others */
    int nmissing, nmade;
    int64_t *key; /* dynamic: the sizes it is for (input_case.key) */
    int64_t nkey;
    int version;     /* dynamic: of the leaf's wanted values */
    atomic_int refs; /* dynamic: the list's, and one a walk that keeps it */
    recipe *recipe;  /* counted: of what only tapes want and it does not produce; or NULL */
    struct report_graph *report;
    struct segment_code *next; /* older code, or another aliasing pattern */
} segment_code;

enum { OUT_MISSING = -1, OUT_INPUT = -2 };

/* What flushing and recycling need of a node that makes a handle. */
typedef struct path_step {
    int32_t id, out;
} path_step;

struct trace_leaf {
    trace_tree *tree;
    trace_node *end;
    trace_node **path;
    path_step *steps; /* of the nodes that are not in place */
    int32_t *inputs;  /* values: the arguments that its operators read, then */
    int32_t *bound;   /* (behind them) captured tensors */
    int32_t *base;    /* per value: the value over whose storage it lies */
    int64_t *offset;  /* per value: elements from the base's first element (not where dynamic) */
    int npath, nsteps, ninputs, nbound, nvalues, nscalars, nargs;
    uint8_t *want;    /* per value: WANT_VALUE, WANT_SAVED: its storage is wanted after the segment
                       (under the lock) */
    uint8_t *tainted; /* per value: is so under any aliasing that was recorded (under the lock) */
    uint8_t *written; /* per value that is an input: the segment writes its storage */
    bool writes_inputs;
    _Atomic bool lean;  /* copies what it writes rather than produce all that lives at its break */
    int times_recorded; /* in a row */
    int codes;          /* graphs compiled for it */
    int graph;          /* the newest one's number under the root (under the lock) */
    bool dynamic;       /* has nodes or arguments with run-time sizes */
    atomic_bool noted, joint; /* runs noted operators for gradients; had a backward pass inside */
    atomic_int version;       /* dynamic: raised by each compile for more wanted values */
    int instances;            /* dynamic: codes on the list */
    _Atomic(const void *) late_run; /* the run that last used one of its values late */
    bool stale;                     /* `want` has grown since the last compile */
    bool queued;                    /* to be compiled in the background (under the lock) */
    bool provisional;               /* its newest code is (under the lock) */
    _Atomic(segment_code *) code;
    const void *site; /* of the break that ends it */
    struct report_leaf *report;
};

/* Whether an operator of the path reads the value. */
bool etch__path_reads(trace_node *const *path, int64_t npath, int32_t value);
/* Values that operators of the path read and do not make: arguments, then captured tensors. Returns
 * how many; *nread gets how many are arguments. */
int etch__path_inputs(trace_node *const *path, int64_t npath, int nargs, int32_t *inputs,
                      int *nread);
/* Marks the values that depend on storage which the segment writes. */
void etch__find_tainted(const trace_leaf *leaf, const int32_t *alias, uint8_t *tainted);

/* Whether the code is for inputs that alias so. */
static inline bool etch__alias_fits(const trace_leaf *leaf, const segment_code *code,
                                    const int32_t *alias) {
    return !leaf->writes_inputs ||
           !memcmp(code->alias, alias, (size_t)leaf->nvalues * sizeof *alias);
}
/* Of a dynamic leaf, whether it is for this case. */
bool etch__instance_fits(const trace_leaf *leaf, const segment_code *code, const input_case *seen);
/* The first such one, with a count of it, to be given back with etch__code_release: codes of a
 * dynamic leaf come and go. The function's lock is held. */
segment_code *etch__find_instance(trace_leaf *leaf, const input_case *seen);
void etch__code_release(const trace_leaf *leaf, segment_code *code);
void etch__code_free(segment_code *code);

/* ---- trees and generations ---- */

enum { SPARE_WALKS = 8 };

/* A walk that no run uses, in a cache line of its own. */
typedef struct spare_walk {
    _Alignas(64) _Atomic(struct trace_walk *) walk;
} spare_walk;

struct trace_tree {
    generation *gen;
    bool entry;
    entry_guard guard; /* of a tree that is no entry: without arguments */
    trace_node root;
    _Atomic int32_t nnodes; /* node ids given out; stored after the two maxima */
    _Atomic int32_t max_values, max_scalars, max_ints; /* over all paths */
    int number;                                        /* for names: function/number */
    int ngraphs; /* compiled under this root: all but the first have it in their names (lock) */
    root_limit limit; /* of an entry, the generation's counts instead */
    _Atomic int ncompiled;
    spare_walk spare[SPARE_WALKS];
    struct report_tree *report;
    _Atomic(trace_tree *) next;
};

/* All traces of a function between two resets. */
struct generation {
    struct generation *next; /* in the function's list of retired ones */
    uint64_t epoch;          /* of the overrides that its plans know */
    _Atomic(trace_tree *) entries, resumes;
    struct constant *constants; /* values assumed constant (under the function's lock) */
    int ntrees, graphs;
    root_limit entry_limit;
    _Atomic bool warned;              /* once, of the first limit that is reached */
    _Atomic(struct replay *) replays; /* what calls need not run the body for */
    atomic_bool unreplayable;         /* the reason was logged */
    trace_node **nodes;               /* all published ones */
    int64_t nnodes, nodes_cap;
    trace_leaf **leaves;
    int64_t nleaves, leaves_cap;
};

generation *etch__generation_new(void);
void etch__generation_free(generation *g);
void etch__tree_free(trace_tree *t);
/* The tree whose guards hold: by sizes, else by ranks. similar: of one with other sizes, too. */
trace_tree *etch__find_entry(generation *g, etch_tensor *const *in, int nin);
bool etch__similar_entry(generation *g, etch_tensor *const *in, int nin);
/* With just this first operator, else with a similar one. */
trace_tree *etch__find_resume(generation *g, const op_call *call, uint64_t state);
static inline root_limit *etch__limit_of(generation *g, trace_tree *tree) {
    return !tree || tree->entry ? &g->entry_limit : &tree->limit;
}

/* How what other parts hang on traces is freed with them. They register at load. */
typedef struct trace_parts {
    void (*free_walk)(struct trace_walk *w);
    void (*free_replays)(struct replay *p);
    void (*free_constants)(struct constant *c);
} trace_parts;
extern trace_parts etch__trace_parts;

#endif
