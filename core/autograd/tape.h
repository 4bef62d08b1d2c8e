/* The tape: what operators have to be differentiated, and what their derivatives read.
 *
 * Each operator call with an operand that requires gradients makes a *node*: the call without its
 * tensors, an edge for each operand to the node that made it, and the *saved* values that its
 * derivative reads. A leaf is a node, too: one that keeps a gradient. Handles point to nodes and
 * nodes to nodes, never nodes to the user's handles: a saved value is a handle of the tape's own
 * over the same storage, with the version that it had. So a tape lives as long as a tensor that
 * depends on it and has no cycles.
 *
 * Inside a compiled function saved values are made by the operator `_saved`, which is traced like
 * any other. So a node that was made along a trace is like one of eager code, and what it saves is
 * produced only if it outlives the call. */
#ifndef ETCH_CORE_AUTOGRAD_TAPE_H
#define ETCH_CORE_AUTOGRAD_TAPE_H

#include "core/autograd/derivative.h"
#include "core/dispatch/dispatch.h"

typedef struct saved_value {
    etch_tensor *t; /* counted; NULL: not saved */
    unsigned version;
} saved_value;

typedef struct grad_hook {
    etch_grad_hook call;
    void *ctx;
    int64_t number;
} grad_hook;

/* Kinds of nodes: how the gradients of a node's operands follow from that of its result. */
typedef enum node_kind {
    NODE_OPERATOR, /* by the operator's derivative */
    NODE_LEAF,     /* keeps the gradient */
    NODE_RESTRIDE, /* a view made anew, after a write to the family: operand 0 is the family */
    NODE_WRITE,    /* the family after a write through a view: operands are family and view */
    NODE_BATCH,    /* into a batch (crossing.h): attributes are dimension, level, samples */
    NODE_UNBATCH,  /* out of it: the same */
    NODE_SHARED    /* the sum over the samples of a level */
} node_kind;

typedef struct tape_node tape_node;
struct tape_node {
    atomic_int refs;
    uint8_t kind;
    bool freed;   /* its saved values are gone */
    bool retains; /* its gradient is kept, as a leaf's is */
    uint8_t nsc, nat;
    uint16_t op, nin;
    uint16_t part_of;
    uint64_t number; /* in program order; those of operators are even: see etch__tape_number */
    const void *site;
    tape_node **edge;   /* where the gradients of operands go */
    value_shape *in;    /* of the operands */
    value_shape out;    /* of the result */
    saved_value *saved; /* by operand, then the result */
    etch_scalar *sc;
    int64_t *at;
    grad_origin *origin;         /* the compiled function that made it (counted), or NULL */
    tensor_meta *lies;           /* RESTRIDE, WRITE, READS_PLACES: where base and view lie */
    _Atomic(etch_tensor *) grad; /* counted; what it keeps */
    grad_hook *hooks;
    int nhooks;
    tape_node *next; /* while it is being freed */
};

/* Tensors over one storage, as far as gradients go: a base and its views. Who writes through one of
 * them changes them all, so `edge` is where the gradient of the base goes as it is now. */
typedef struct view_family {
    atomic_int refs;
    uint64_t writes; /* how often it was written under gradients */
    uint64_t number; /* of the last such write */
    tape_node *edge;
    value_shape shape; /* of the base, and where that lies */
    tensor_meta base;
    bool partial; /* the base is itself a view, of something unknown */
} view_family;

/* ---- nodes ---- */

uint64_t etch__tape_number(const tape_node *n); /* the next one, for n */
void etch__node_retain(tape_node *n);
void etch__tape_release(tape_node *n); /* NULL is none */
tape_node *etch__node_make(node_kind kind, int nin, int nsc, int nat);
/* Its saved values go; another backward over it is an error. */
void etch__node_free_saved(tape_node *n);

/* ---- edges ---- */

/* Where t's gradient goes now (borrowed); a view of a family that was written since is made anew.
 * false: out of memory. *edge has no node where t requires no gradients. */
bool etch__edge_of(etch_tensor *t, tape_node **edge);
/* The same for questions, which need no memory: of such a view, *old, it is the one that it had
 * before or the family's, and only whether there is one counts. */
tape_node *etch__edge_now(const etch_tensor *t, bool *old);
bool etch__set_edge(etch_tensor *t, tape_node *node);
value_shape etch__value_shape(const etch_tensor *t);
tensor_meta etch__place_of(const etch_tensor *t);

/* ---- values ---- */

/* A handle of the tape's own over t's storage (counted, in no scope). */
etch_tensor *etch__tape_alias(etch_tensor *t, const void *site);
/* Whether it is computed again when it is read. */
static inline bool etch__has_recipe(const etch_tensor *t) {
    t = etch__physical(t);
    return t->notes && t->notes->recipe;
}
/* How often what t lies over was written. */
unsigned etch__version_of(const etch_tensor *t);

/* The layer: an operator call, noted where it has to be. */
etch_tensor *etch__tape_operator(const op_call *call);
/* Whether operators are noted on this thread. */
static inline bool etch__taping(void) {
    return !(etch__tls.state & (STATE_NO_GRAD | STATE_INFERENCE));
}

/* ---- views.c ---- */

/* The view v of t, just made, joins t's family. */
bool etch__join_family(etch_tensor *v, etch_tensor *t);
/* self was written by an operator, whose node that is: all of its family follow. */
bool etch__family_written(etch_tensor *self, tape_node *node);
void etch__family_release(view_family *f);

/* ---- places.c ---- */

/* Zeros that lie in memory as `place` does, with its dtype, in what grad has of batches and
 * tangents. */
etch_tensor *etch__laid_as(const tensor_meta *place, etch_tensor *grad);
/* The gradient of a base, which lies at places[0], for that of a view of it at places[1]. */
etch_tensor *etch__grad_by_place(const tensor_meta *places, const value_shape *base,
                                 etch_tensor *grad);
/* RESTRIDE: the gradient of the family's base, for that of the view. WRITE, for that of the base:
 * of what was written, and of what was there before. NULL with an error. */
etch_tensor *etch__grad_of_base(const tape_node *n, etch_tensor *grad);
etch_tensor *etch__grad_of_view(const tape_node *n, etch_tensor *grad);
etch_tensor *etch__grad_beside_view(const tape_node *n, etch_tensor *grad);

#endif
