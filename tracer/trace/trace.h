/* Traces: what is recorded of a function, and one thread's walk along it.
 *
 *   etch_function -> generation -> trace_tree (segments with one root)
 *       -> trace_node -> trace_node ... -> trace_leaf
 *
 * A *segment* runs from the entry or a graph break to the next break or the return. Segments with
 * one root form a tree; an edge is an operator with its static attributes, state word, operand
 * positions and the guards of the captured tensors that it meets first; an end is an edge too, and
 * carries the leaf with the compiled code of its whole path. Published nodes never change but for
 * the links to children, the predicted successor and the leaf's code; they live as long as their
 * generation.
 *
 * Values are numbered along a path: arguments, then captured tensors and results as they appear. A
 * *walk* is one thread's passage through a segment: matching it against a tree, or recording it. A
 * *run* is one call of a compiled function: a chain of walks. */
#ifndef ETCH_TRACER_TRACE_H
#define ETCH_TRACER_TRACE_H

#include <pthread.h>

#include "core/graph/backend.h"
#include "core/dispatch/cursor.h"
#include "core/dispatch/dispatch.h"
#include "guards/guard.h"
#include "tracer/tell/story.h"

typedef struct trace_leaf trace_leaf;
typedef struct trace_tree trace_tree;
typedef struct generation generation;
typedef struct replay replay;
struct report_function; /* tracer/tell/report.h; each is NULL where nothing is recorded */
struct report_tree;
struct report_leaf;
struct report_graph;

/* A captured tensor first met at a node: the slot it binds, and what it must look like. */
typedef struct capture {
    int32_t value, operand;
    uint8_t fixed; /* dimensions that are marked static: their sizes count, whatever `dynamic` */
    tensor_meta guard;
} capture;

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
    int64_t *key; /* dynamic: the sizes it is for (see walk.key) */
    int64_t nkey;
    int version;     /* dynamic: of the leaf's wanted values */
    atomic_int refs; /* dynamic: the list's, and one a walk that keeps it */
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
    uint8_t
        *want; /* per value: its storage is wanted after the segment (under the function's lock) */
    uint8_t *tainted; /* per value: is so under any aliasing that was recorded (under the lock) */
    uint8_t *written; /* per value that is an input: the segment writes its storage */
    bool writes_inputs;
    _Atomic bool lean;  /* copies what it writes rather than produce all that lives at its break */
    int recorded;       /* recordings in a row */
    int codes;          /* graphs compiled for it */
    int graph;          /* the newest one's number under the root (under the lock) */
    bool dynamic;       /* has nodes or arguments with run-time sizes */
    atomic_int version; /* dynamic: raised by each compile for more wanted values */
    int instances;      /* dynamic: codes on the list */
    _Atomic(const void *) late_run; /* the run that last used one of its values late */
    bool stale;                     /* `want` has grown since the last compile */
    bool queued;                    /* to be compiled in the background (under the lock) */
    bool provisional;               /* its newest code is (under the lock) */
    _Atomic(segment_code *) code;
    const void *site; /* of the break that ends it */
    struct report_leaf *report;
};

enum { SPARE_WALKS = 8 };

/* A walk that no run uses, in a cache line of its own. */
typedef struct spare_walk {
    _Alignas(64) _Atomic(struct trace_walk *) walk;
} spare_walk;

struct trace_tree {
    generation *gen;
    bool entry;
    int nargs;
    bool dynamic;        /* an entry whose arguments are guarded by dtype and rank only */
    tensor_meta *guards; /* of the arguments, for an entry */
    uint8_t *guarded;    /* which of them count: what an operator of the first path reads. Any other
                            is, where another path reads it, a captured tensor of that node */
    dim_marks *marks;    /* of the arguments, for an entry with run-time sizes; NULL: none */
    trace_node root;
    _Atomic int32_t nnodes; /* node ids given out; stored after the two maxima */
    _Atomic int32_t max_values, max_scalars, max_ints; /* over all paths */
    int number;                                        /* for names: function/number */
    int ngraphs; /* compiled under this root: all but the first have it in their names (lock) */
    int nleaves;
    _Atomic int ncompiled;
    _Atomic bool
        limited; /* the recompile limit is reached (resume trees; entries use the generation's) */
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
    int ntrees, entry_leaves, graphs;
    _Atomic bool entry_limited, warned; /* once, of the first limit that is reached */
    _Atomic(replay *) replays;          /* what calls need not run the body for */
    atomic_bool unreplayable;           /* the reason was logged */
    trace_node **nodes;                 /* all published ones */
    int64_t nnodes, nodes_cap;
    trace_leaf **leaves;
    int64_t nleaves, leaves_cap;
};

/* FN_0 to FN_8: so many tensors, one result. */
typedef enum function_kind {
    FN_0,
    FN_1,
    FN_2,
    FN_3,
    FN_4,
    FN_5,
    FN_6,
    FN_7,
    FN_8,
    FN_N
} function_kind;

enum { SHARDS = 8 };

/* What every call of a function writes, apart for threads, so that they do not wait for
 * each other's cache lines. */
typedef struct function_shard {
    _Alignas(64) atomic_int pins; /* runs that have not ended */
    counters counts;
} function_shard;

/* What a call of the handle is inside a compiled function (tracer/run/wrappers.c). */
typedef enum wrapper_kind { WRAP_NONE, WRAP_DISABLE, WRAP_ALLOW, WRAP_CONSTANT } wrapper_kind;

struct etch_function {
    function_shard shard[SHARDS]; /* by the thread's number */
    atomic_bool freed;            /* the handle is gone; the last run's end makes it collectable */
    function_kind kind;
    void (*fn)(void);
    void *ctx;
    etch_compile_options options;
    wrapper_kind wrap;
    bool recursive;             /* of a disabled one: so are the functions it calls */
    struct allowed_fn *allowed; /* of one that is allowed in graphs */
    uint64_t serial;            /* of one whose value is assumed constant */
    char *name;
    const backend *backend;
    pthread_mutex_t lock;         /* publishing, leaves' want, generation changes */
    pthread_mutex_t compile_lock; /* one compile at a time */
    _Atomic(generation *) gen;
    _Atomic(generation *) retired; /* freed when no run is left that may be using them */
    story story;                   /* for etch_explain; has a lock of its own */
    _Atomic(struct report_function *) report;
    struct etch_function *next; /* list of all functions */
};

/* ---- walking ---- */

enum {
    WANT_VALUE = 1, /* used after the segment's end */
    WANT_LIVE = 2   /* alive at the break that ended the segment */
};

typedef enum walk_mode {
    WALK_MATCH,  /* answered with deferred handles along the tree */
    WALK_RECORD, /* executed one by one, and recorded */
    WALK_SHAPES  /* recorded with deferred handles: fullgraph */
} walk_mode;

/* Code of a dynamic leaf that a walk has run, with a count of it: for the same sizes it is found
 * again without the function's lock. */
typedef struct kept_code {
    trace_leaf *leaf;
    segment_code *code;
} kept_code;

enum { KEPT_CODES = 4 };

/* See tracer/values.c. */
typedef struct value_numbers {
    int32_t *place;
    size_t mask;
    int64_t used;
} value_numbers;

/* What a segment wrote, as it was before. See tracer/late.c. */
typedef struct kept_input {
    etch_storage *real, *copy;
} kept_input;

typedef struct trace_walk {
    trace_cursor c; /* first */
    struct trace_run *run;
    trace_tree *tree; /* NULL: a recording whose tree is not there yet */
    walk_mode mode;
    bool pending;     /* ended; some of its live handles are still deferred */
    bool entry;       /* begins at the entry of the call */
    bool borrows;     /* matching: has no counts of its arguments, see etch__walk_own_args */
    bool recorded;    /* ended in recording */
    bool watches;     /* of its inputs, too, it has no counts any more, see etch__walk_watch */
    bool published;   /* ended in recording, and published during this run */
    bool recompile;   /* ended in matching; its leaf lacks a value that was used after all */
    trace_leaf *leaf; /* ended in matching: where */
    reason_id end;
    const void *end_site;
    int nargs;
    int64_t nvalues, values_cap, nscalars, scalars_cap, handles_cap;
    value_numbers numbers; /* recording: of values by address */
    trace_node **path;     /* recording: the nodes so far, shared prefix first */
    int64_t npath, path_cap;
    int64_t shared;     /* of these, how many belong to the tree */
    bool dynamic;       /* recording: the nodes from here on have run-time sizes */
    bool dynamic_entry; /* recording: so have the arguments */
    int64_t *ints;      /* attribute words of dynamic nodes, see trace_node.ints */
    int64_t nints, ints_cap;
    tensor_meta *metas; /* dynamic, ended: of every value, for making code */
    int64_t metas_cap;
    int64_t *key; /* dynamic, ended: sizes and strides of the inputs, then the ints */
    int64_t nkey, key_cap;
    uint8_t *want; /* recording: WANT_ bits per value */
    int64_t want_cap;
    etch_tensor **inputs; /* scratch of a flush */
    int64_t inputs_cap;
    etch_storage **outputs;
    int64_t outputs_cap;
    kept_input *kept_inputs;
    int64_t nkept_inputs, kept_inputs_cap;
    int32_t *alias;
    int64_t alias_cap;
    tensor_meta
        *bound; /* of arguments and captured tensors, as seen last (trees with run-time sizes) */
    int64_t bound_cap;
    kept_code recent; /* what ran last, for these sizes */
    uint16_t recent_sizes;
    const segment_code *ran; /* ended: the code that ran, if any */
    kept_code kept[KEPT_CODES];
    unsigned next_kept;               /* the place that is given to another code next */
    struct trace_walk *next_borrower; /* in the thread's list */
    struct shadow *shadow;            /* under ETCH_CHECK: see tracer/run/check.c; else NULL */
    struct trace_walk *next;          /* in one of the run's lists, newest first */
} trace_walk;

/* A raw pointer that a run holds: what it has added to the storage's `exposed`. */
typedef struct exposure {
    etch_storage *storage;
    unsigned counts;
} exposure;

typedef struct trace_run {
    struct trace_run *outer; /* the run in a disabled function of which this one began, or NULL */
    struct trace_run
        *below; /* the one that this thread began before it and has not ended, or NULL */
    etch_function *f;
    generation *gen;
    trace_walk *walk;     /* the segment being walked; NULL between a break and the next operator */
    trace_walk *recorded; /* earlier segments of this call to be published */
    trace_walk *pending;  /* earlier segments some of whose live handles may still be deferred */
    int npending, sweep_at; /* how many; at how many the dead ones are looked for */
    bool eager;             /* the limit is reached: no recording until the segment ends */
    bool failed;            /* a write that was evaluated after its call */
    bool poisoned;    /* fullgraph failed, or a plan after writing: nothing deferred may be computed
                      any more */
    bool by_stance;   /* runs eagerly because of the stance: fullgraph does not matter */
    bool warn_limit;  /* the limit was reached just now: etch__warn_limit */
    bool warn_graphs; /* it is that of all functions' graphs */
    bool refused;     /* needed a compile that the stance forbids, and ran eagerly */
    int off;          /* inside how many disabled functions */
    int nconstants;   /* calls of functions assumed constant */
    int modes;        /* how many modes were entered before the call */
    int64_t scope;    /* the call's own */
    int32_t outer_guard; /* guard_scope before the call */
    exposure *exposed;
    int64_t nexposed, exposed_cap;
    etch_storage **spoilt; /* what such writes were to change; a count of each */
    int64_t nspoilt, spoilt_cap;
    /* For `replay`: what this call did, the leaf of its first segment, its first break (+ 1). */
    replay *replay;
    const struct replay *replayed; /* what holds for the arguments, or NULL */
    trace_leaf *leaf;
    uint64_t state;  /* when the call began */
    unsigned errors; /* the thread's then */
    int broke;
    const void *broke_site;
    bool marked;  /* an argument has a dimension that is marked dynamic */
    bool worker;  /* stands for a job of the compiling thread, not for a call */
    bool betters; /* that job: to compile what comes in place of provisional code */
    int lost; /* under ETCH_CHECK: an operator whose write failed at its call (+ 1), and where */
    const void *lost_site;
    bool check, differs; /* ETCH_CHECK is set; it has found a difference, the first: */
    char *difference;
    const void *difference_site;
    pthread_t thread;
} trace_run;

/* tracer/trace/tree.c: nodes and trees */
generation *etch__generation_new(void);
void etch__generation_free(generation *g);
trace_node *etch__node_new(const op_call *call, uint64_t state);
void etch__node_free(trace_node *n);
/* Operator, static attributes, scalar kinds and state word agree; operands are not looked at. */
bool etch__same_call(const trace_node *n, const op_call *call, uint64_t state);
/* The same but for sizes and positions among the attributes. */
bool etch__similar_call(const trace_node *n, const op_call *call, uint64_t state);
/* The first static attribute in which a call like the node's differs; -1 if there is none. */
int etch__static_difference(const trace_node *n, const op_call *call);
/* The tree whose guards hold: by sizes, else by ranks. similar: of one with other sizes, too. */
trace_tree *etch__find_entry(generation *g, etch_tensor *const *in, int nin);
bool etch__similar_entry(generation *g, etch_tensor *const *in, int nin);
/* With just this first operator, else with a similar one. */
trace_tree *etch__find_resume(generation *g, const op_call *call, uint64_t state);
trace_node *etch__find_end(const trace_node *n, reason_id end);
/* Inserts an ended recording; takes over its nodes. NULL: the limit, no memory, or a generation
 * that is no longer the function's. The function's lock is held. */
trace_leaf *etch__publish(trace_walk *w);
/* Whether the root (NULL: the entry) may get no more alternatives. The function's lock is held. */
bool etch__at_limit(trace_run *r, trace_tree *tree);

/* Values that operators of the path read and do not make: arguments, then captured tensors. Returns
 * how many; *nread gets how many are arguments. */
int etch__path_inputs(trace_node *const *path, int64_t npath, int nargs, int32_t *inputs,
                      int *nread);

/* Marks the values that depend on storage which the segment writes. */
void etch__find_tainted(const trace_leaf *leaf, const int32_t *alias, uint8_t *tainted);

/* tracer/run/walk.c: one segment */
trace_walk *etch__walk_take(trace_run *r, trace_tree *tree);
/* Sizes are no longer those that the walk has seen. */
void etch__walk_changed(trace_walk *w);
/* The spare handle of a node; NULL with out_of_memory. */
etch_tensor *etch__walk_handle(trace_walk *w, const trace_node *n);
/* Whether a value of the walk lies over s (NULL: over memory that the user holds). */
bool etch__walk_touches(const trace_walk *w, const etch_storage *s);
/* Gives up everything the walk holds and puts it back to its tree, or frees it. */
void etch__walk_recycle(trace_walk *w);
void etch__walk_free(trace_walk *w);
bool etch__walk_bind_args(trace_walk *w, etch_tensor *const *in, int nin);
/* Takes a count of each argument where the walk has none yet. */
void etch__walk_own_args(trace_walk *w);
/* Whether the tree has, next, a call that differs in nothing but sizes. */
bool etch__walk_similar(const trace_walk *w, const op_call *call);
/* Of an ended dynamic walk: its key; and the metas of all values while it still holds them. */
bool etch__walk_key(trace_walk *w, const int32_t *inputs, int ninputs);
bool etch__walk_metas(trace_walk *w);
/* The deferred handle of a call that the tree has next; NULL without an error if it has not. */
etch_tensor *etch__walk_match(trace_walk *w, const op_call *call);
etch_tensor *etch__walk_record(trace_walk *w, const op_call *call);
/* From matching to recording after the nodes matched so far: they run through the eager kernels,
 * or stay deferred where shapes only are recorded. */
bool etch__walk_to_recording(trace_walk *w, walk_mode mode);
/* What is still deferred fails: there is no memory to compute it. */
void etch__walk_fail(trace_walk *w);
/* Whether the value is an argument that the walk's tree does not guard: as if it were not there. */
static inline bool etch__walk_hides(const trace_walk *w, int64_t value) {
    return value < w->nargs && w->tree && !w->tree->guarded[value];
}
/* An ended recording gives up its counts: what it has met it need only know again. */
void etch__walk_watch(trace_walk *w);
/* How many counts of t the walk has. */
int etch__walk_counts(const trace_walk *w, const etch_tensor *t);
/* Whether somebody else has a count of a result of which the walk has one. */
static inline bool etch__is_live(const etch_tensor *h) {
    return atomic_load_explicit(&h->refs, memory_order_acquire) > 1;
}
/* Fills path with the nodes from the root to the last matched one. */
bool etch__walk_path(trace_walk *w);

/* tracer/learn/values.c: values by address, in recordings */
/* The number of a value, -1 if the walk has not met the tensor. */
int32_t etch__walk_find(const trace_walk *w, const etch_tensor *t);
/* Notes the number of a value, for which there must be room: that of so many more. */
void etch__walk_number(trace_walk *w, int32_t value);
bool etch__walk_room_for_numbers(trace_walk *w, int64_t more);
void etch__walk_forget_numbers(trace_walk *w);

/* tracer/run/late.c: late values that depend on memory which their own segment writes */
/* Before the code of a lean leaf runs: copies what it writes, if somebody waits for what is gone
 * then. false: there is no memory for it. */
bool etch__keep_inputs(trace_walk *w, const trace_leaf *leaf, const segment_code *code);
void etch__drop_kept_inputs(trace_walk *w);
/* Whether late values of an ended walk are made of that memory, as it is. */
bool etch__late_reads(const trace_walk *w, const etch_storage *s);
/* Computes all that is alive and deferred of an ended walk of a lean leaf, from inputs alone. */
etch_status etch__evaluate_kept(trace_walk *w);

/* Notes what followed a node. Other threads read the node, so it is written only if that is new. */
static inline void etch__predict(const trace_node *n, trace_node *follows) {
    cursor_node *c = &((trace_node *)n)->c;
    if (atomic_load_explicit(&c->next, memory_order_relaxed) != &follows->c)
        atomic_store_explicit(&c->next, &follows->c, memory_order_release);
}

/* How far the first element of a view is from that of its base in this walk. */
static inline int64_t etch__view_offset(const trace_walk *w, const trace_node *n) {
    return n->dynamic ? w->ints[n->ints + n->nat] : n->meta.offset;
}

/* tracer/run/evaluate.c: nodes through the eager kernels, plans */
/* Runs the path's nodes one by one, each under its own state word, into the handles that stand for
 * them. live_only: just what the live deferred handles need. Failures mark handles as failed. */
etch_status etch__evaluate(trace_walk *w, bool live_only);
/* Per node of the path whether it is run; NULL: all. */
void etch__evaluate_nodes(trace_walk *w, const uint8_t *run_it);
bool etch__memory_overlaps(const etch_storage *a, const etch_storage *b);
/* Whether a write to the tensor's memory has failed in one of this thread's runs: then it is not
 * what the program has computed. */
bool etch__find_spoilt(const etch_tensor *t);
static inline bool etch__is_spoilt(const etch_tensor *t) {
    return unlikely(etch__tls.marked) && etch__find_spoilt(t);
}
/* Sets the error of using it, where there is none: the first one stays. */
etch_status etch__spoilt_error(const char *user, const void *site);
/* The code of the leaf for the aliasing (and, where it is dynamic, the sizes) of this walk's
 * inputs; NULL where there is none. overlap: two different storages share memory, which no code
 * handles. The walk keeps what it gets. */
segment_code *etch__pick_code(trace_walk *w, trace_leaf *leaf, bool *overlap);
/* Of a dynamic leaf, by the key and aliasing that the walk has already. The first one is kept by
 * the walk, the other to be given back with etch__code_release. */
segment_code *etch__keep_instance(trace_walk *w, trace_leaf *leaf);
segment_code *etch__find_instance(trace_walk *w, trace_leaf *leaf);
void etch__code_release(trace_leaf *leaf, segment_code *code);
/* Runs a plan and gives storage to the live handles. */
etch_status etch__run_code(trace_walk *w, const trace_leaf *leaf, const segment_code *code);
/* A frame in which operators run eagerly, whatever the thread is tracing, and nothing traps. */
typedef struct empty_frame {
    trace_cursor *cursor;
    void *run;
    uint64_t state;
    uint32_t layers;
    bool in_flush;
    unsigned fp; /* MXCSR; where the frame has changed it, it is put back */
    bool fp_changed;
} empty_frame;
empty_frame etch__push_frame(void);
void etch__pop_frame(const empty_frame *frame);
/* How the processor computes in the frame, as a plan of operators under that state word needs. */
void etch__frame_mode(empty_frame *frame, uint64_t state);

/* Graphs of all functions together; so many make the limit. */
extern atomic_int etch__live_graphs;

/* tracer/learn/compile.c: leaves to code */
/* Compiles the leaf for its wanted values, and for the aliasing and sizes of an ended walk. */
void etch__compile_leaf(etch_function *f, trace_leaf *leaf, trace_walk *w);
/* Whether it would do anything. */
bool etch__code_missing(etch_function *f, trace_leaf *leaf, trace_walk *w);
/* Per value that is an input: the lowest input over the same storage. */
bool etch__fill_alias(trace_walk *w, const int32_t *inputs, int ninputs);

/* tracer/tell/log.c: what happened, for people */
/* What must hold for the leaf's code to run, as one line; etch__free it. */
char *etch__guards_text(const trace_leaf *leaf);
void etch__log_break(const trace_run *r, reason_id why, const void *site, const char *text);
void etch__log_diverged(const trace_walk *w, const op_call *call);
void etch__log_guards(const trace_run *r, etch_tensor *const *in, int nin);
void etch__warn_limit(trace_run *r);

/* Counts for the function and the process. */
#define TRACE_COUNT(f, name, n)                                                                    \
    (atomic_fetch_add_explicit(&(f)->shard[etch__tls.number % SHARDS].counts.name, (n),            \
                               memory_order_relaxed))

#endif
