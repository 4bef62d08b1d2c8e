/* The cursor: what the fast path of an operator call compares with, and nothing more.
 *
 * The tracer builds trees of these nodes; core only walks along them. A call that fits the next
 * node is answered with that node's deferred handle, in a dozen loads and compares; any other call
 * takes the dispatcher's ordinary way, which ends in the tracer. */
#ifndef ETCH_CORE_DISPATCH_CURSOR_H
#define ETCH_CORE_DISPATCH_CURSOR_H

#include "core/ops/op.h"

enum { CURSOR_MAX_IN = 4 };

/* Operator and operand counts in one word, so that one compare checks them all. */
static inline uint64_t etch__call_key(unsigned op, unsigned nin, unsigned nsc, unsigned nat) {
    return (uint64_t)op | (uint64_t)nin << 16 | (uint64_t)nsc << 32 | (uint64_t)nat << 40;
}
static inline unsigned etch__key_op(uint64_t key) { return key & 0xffff; }
static inline unsigned etch__key_attributes(uint64_t key) { return key >> 40 & 0xff; }
#define KEY_SCALARS ((uint64_t)0xff << 32)

typedef struct cursor_node {
    uint64_t key;                       /* etch__call_key; CURSOR_END for the end of a segment */
    uint64_t state;                     /* the state word at the call */
    _Atomic(struct cursor_node *) next; /* the node that followed last time */
    int32_t id;                         /* in its tree: index of its handle */
    int32_t out;                        /* value it defines; for INPLACE the value of in[0] */
    int32_t sc;                         /* index of its first run-time scalar */
    uint8_t inplace;
    uint8_t kind[OP_MAX_SCALARS]; /* etch_scalar_kind of each scalar */
    int32_t in[CURSOR_MAX_IN];    /* values of the first operands */
    const int64_t *at;            /* static attributes */
} cursor_node;

#define CURSOR_END UINT64_MAX
/* In the key of a node with run-time sizes: no call has it. */
#define CURSOR_DYNAMIC ((uint64_t)1 << 63)

typedef struct trace_cursor {
    cursor_node *next;    /* what is expected now; never NULL */
    cursor_node *last;    /* what was matched last (the root at first) */
    etch_tensor **value;  /* handles by value number; NULL while a slot is unbound */
    etch_tensor **handle; /* spare handles by node id; NULL where one must be made */
    etch_scalar *scalar;
    int32_t limit;  /* the three arrays are sized for nodes with smaller ids */
    uint16_t sizes; /* stamp of the sizes that this walk sees. A spare handle with the same stamp
                       has those that its node's call would give now, so that nothing is inferred */
} trace_cursor;

/* Whether a call with this key is one of a node with run-time sizes, which are known. */
static inline bool etch__cursor_knows(const trace_cursor *c, const cursor_node *n, uint64_t key) {
    const etch_tensor *h = c->handle[n->id];
    return n->key == (key | CURSOR_DYNAMIC) && !n->inplace && h && h->sizes == c->sizes;
}

/* The deferred handle of the call if it is just what the cursor expects, else NULL. */
static inline __attribute__((always_inline)) etch_tensor *
etch__cursor_match(trace_cursor *c, uint64_t key, etch_tensor *const *in, int nin,
                   const etch_scalar *sc, int nsc, const int64_t *at, int nat) {
    cursor_node *n = c->next;
    if (unlikely(n->state != etch__state_now() || n->id >= c->limit)) return NULL;
    if (unlikely(n->key != key && !etch__cursor_knows(c, n, key))) return NULL;
    for (int i = 0; i < nin; i++)
        if (unlikely(c->value[n->in[i]] != in[i] || !in[i])) return NULL;
    for (int i = 0; i < nsc; i++)
        if (unlikely(n->kind[i] != sc[i].kind)) return NULL;
    for (int i = 0; i < nat; i++)
        if (unlikely(n->at[i] != at[i])) return NULL;
    etch_tensor *h = in[0];
    if (!n->inplace) {
        h = c->handle[n->id];
        if (unlikely(!h || etch__tls.nitems == etch__tls.items_cap)) return NULL;
        atomic_store_explicit(&h->refs, 2, memory_order_relaxed); /* the walk's and the scope's */
        etch__tls.items[etch__tls.nitems++] = h;
        c->value[n->out] = h;
    }
    for (int i = 0; i < nsc; i++) c->scalar[n->sc + i] = sc[i];
    c->last = n;
    c->next = atomic_load_explicit(&n->next, memory_order_acquire); /* published by any thread */
    return h;
}

#endif
