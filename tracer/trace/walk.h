/* A walk: one thread's passage through a segment, as data: tracer/run/ moves it along, and
 * tracer/learn/ publishes what it has recorded. Its parts by state: what both matching and
 * recording have; what a recording has beside that; how it ended; what it keeps for the next
 * call. */
#ifndef ETCH_TRACER_TRACE_WALK_H
#define ETCH_TRACER_TRACE_WALK_H

#include "tracer/trace/tree.h"

typedef enum walk_mode {
    WALK_MATCH,  /* answered with deferred handles along the tree */
    WALK_RECORD, /* executed one by one, and recorded */
    WALK_SHAPES  /* recorded with deferred handles: fullgraph */
} walk_mode;

/* ---- recording ---- */

enum {
    WANT_VALUE = 1, /* used after the segment's end */
    WANT_LIVE = 2,  /* alive at the break that ended the segment */
    WANT_SAVED = 4  /* used after it by derivatives alone */
};

/* Numbers of values, found by address. See tracer/run/values.c. */
typedef struct value_numbers {
    int32_t *slots;
    size_t mask;
    int64_t used;
} value_numbers;

typedef struct recording {
    value_numbers numbers;
    uint8_t *want; /* WANT_ bits per value */
    int64_t want_cap;
    bool dynamic;       /* the nodes from here on have run-time sizes */
    bool dynamic_entry; /* so have the arguments */
    bool watches;       /* ended: of its inputs, too, it has no counts, see etch__walk_watch */
    bool published;     /* ended: during this run */
} recording;

/* ---- at the end ---- */

typedef struct walk_end {
    reason_id why;
    const void *site;
    bool publishable; /* it ended in recording, and its inputs are described */
    bool pending;     /* some of its live handles are still deferred */
    bool recompile;   /* its leaf lacks a value that was used after all */
    const segment_code *ran;
} walk_end;

/* ---- kept for the next call ---- */

/* Code of a dynamic leaf that a walk has run, with a count of it: for the same sizes it is found
 * again without the function's lock. */
typedef struct kept_code {
    trace_leaf *leaf;
    segment_code *code;
} kept_code;

enum { KEPT_CODES = 4 };

/* Where sizes are run-time: what was seen last. */
typedef struct seen_sizes {
    tensor_meta *bound; /* of arguments and captured tensors */
    int64_t bound_cap;
    kept_code recent; /* what ran last, under this stamp */
    uint16_t recent_stamp;
    kept_code kept[KEPT_CODES];
    unsigned next_kept; /* the one that is given to another code next */
} seen_sizes;

/* Room for the operands of a node or a plan, and for a plan's results. */
typedef struct flush_room {
    etch_tensor **inputs;
    etch_storage **outputs;
    int64_t inputs_cap, outputs_cap;
} flush_room;

/* What a segment wrote, as it was before. See tracer/run/late.c. */
typedef struct kept_input {
    etch_storage *real, *copy;
} kept_input;

/* Nodes by the values that they make, and those that write. See tracer/run/makers.c. */
typedef struct made_by {
    const trace_node **node, **writes;
    int64_t node_cap, writes_cap, nwrites;
    const trace_node *upto; /* the last that is in it; NULL: none is */
    walk_mode mode;         /* of the walk then, as the next two */
    int64_t shared;
    const trace_leaf *leaf;
} made_by;

typedef struct trace_walk {
    trace_cursor c; /* first */
    struct trace_run *run;
    trace_tree *tree; /* NULL: a recording whose tree is not there yet */
    walk_mode mode;
    bool entry;   /* begins at the entry of the call */
    bool borrows; /* matching: has no counts of its arguments, see etch__walk_own_args */
    int nargs;
    int64_t nvalues, values_cap, nscalars, scalars_cap, handles_cap;
    trace_node **path; /* the nodes so far (matching: when they are asked for) */
    int64_t npath, path_cap;
    int64_t shared;   /* of these, how many belong to the tree; they come first */
    trace_leaf *leaf; /* ended in matching: where */
    input_case seen;  /* the attribute words so far; ended: of the inputs */
    recording rec;
    made_by made;
    walk_end end;
    seen_sizes sizes;
    flush_room room;
    kept_input *kept_inputs;
    int64_t nkept_inputs, kept_inputs_cap;
    struct shadow *shadow;            /* under ETCH_CHECK: see tracer/run/check.c; else NULL */
    struct trace_walk *next_borrower; /* in the thread's list */
    struct trace_walk *next;          /* in one of the run's lists, newest first */
} trace_walk;

/* Whether somebody else has a count of a result of which the walk has one. */
static inline bool etch__is_live(const etch_tensor *h) {
    return atomic_load_explicit(&h->refs, memory_order_acquire) > 1;
}

/* Whether the value is an argument that the walk's tree does not guard: as if it were not there. */
static inline bool etch__walk_hides(const trace_walk *w, int64_t value) {
    return value < w->nargs && w->tree && !w->tree->guard.read[value];
}

/* How far the first element of a view is from that of its base, with these attribute words. */
static inline int64_t etch__view_offset(const int64_t *ints, const trace_node *n) {
    return n->dynamic ? ints[n->ints + n->nat] : n->meta.offset;
}
/* The attributes of the node's call; and all of it but for operands and scalars. */
static inline const int64_t *etch__node_attributes(const int64_t *ints, const trace_node *n) {
    return n->dynamic ? ints + n->ints : n->c.at;
}
static inline op_call etch__node_call(const int64_t *ints, const trace_node *n) {
    return (op_call){.op = n->op,
                     .part_of = n->part_of,
                     .nin = n->nin,
                     .nsc = n->nsc,
                     .nat = n->nat,
                     .at = etch__node_attributes(ints, n),
                     .site = n->site};
}

#endif
