/* What the generated operator functions (ops_functions.c) are made of. */
#ifndef ETCH_CORE_DISPATCH_CALL_H
#define ETCH_CORE_DISPATCH_CALL_H

#include "core/dispatch/cursor.h"
#include "core/dispatch/dispatch.h"

/* Appends a list attribute: count, then values. A count outside -1..8 becomes one too many, which
 * inference rejects. */
static inline int etch__put_dims(int64_t *at, int n, const etch_dims *d) {
    int count = d->n < -1 || d->n > ETCH_MAX_DIMS ? ETCH_MAX_DIMS + 1 : d->n;
    at[n++] = count;
    for (int i = 0; i < count && i < ETCH_MAX_DIMS; i++) at[n++] = d->v[i];
    if (unlikely(count > ETCH_MAX_DIMS)) at[n++] = 0;
    return n;
}

/* A list of tensors from the user. */
static inline bool etch__list_ok(op_id op, etch_tensor *const *list, int n, const void *site) {
    if (likely(n >= 0 && n <= UINT16_MAX && (list || !n))) return true;
    if (n < 0 || n > UINT16_MAX)
        etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT, "%s: expected 0 to %d tensors, got %d",
                       etch__ops[op].name, UINT16_MAX, n);
    else
        etch__error_at(site, ETCH_ERR_NULL, "%s: expected a list of tensors, got NULL",
                       etch__ops[op].name);
    return false;
}

/* Views: who shares a storage is noted where gradients are in use. */
static inline __attribute__((always_inline)) bool etch__is_view(op_id op) {
    switch (op) {
#define OP(...)
#define VIEW_OP(id, ...) case OP_##id:
#include "operators.def"
        return true;
    default: return false;
    }
}

/* Whether a layer above the cursor has to see the call. */
static inline __attribute__((always_inline)) bool etch__is_layered(op_id op, etch_tensor *const *in,
                                                                   int nin) {
    unsigned what = atomic_load_explicit(&etch__layered, memory_order_relaxed);
    if (likely(!what)) return false;
    bool layered = what & LAYERED_VIEWS && etch__is_view(op);
    for (int i = 0; i < nin; i++) layered |= in[i] && in[i]->layers;
    return layered;
}

/* An operator call in normal form: along the cursor where one is active, else dispatched. */
static inline __attribute__((always_inline)) etch_tensor *
etch__operator(op_id op, etch_tensor *const *in, int nin, const etch_scalar *sc, int nsc,
               const int64_t *at, int nat, const void *site) {
    trace_cursor *c = etch__tls.cursor;
    if (c && nin > 0 && nin <= CURSOR_MAX_IN && likely(!etch__is_layered(op, in, nin))) {
        uint64_t key = etch__call_key(op, (unsigned)nin, (unsigned)nsc, (unsigned)nat);
        etch_tensor *h = etch__cursor_match(c, key, in, nin, sc, nsc, at, nat);
        if (likely(h)) return h;
    }
    const op_call *composite = etch__tls.composite;
    if (unlikely(composite)) site = composite->site;
    op_call call = {.op = (uint16_t)op,
                    .part_of = unlikely(composite) ? (uint16_t)(composite->op + 1) : 0,
                    .nin = (uint16_t)nin,
                    .nsc = (uint8_t)nsc,
                    .nat = (uint8_t)nat,
                    .in = in,
                    .sc = sc,
                    .at = at,
                    .site = site};
    return etch__dispatch(&call);
}

static inline etch_tensor *etch__follow_cursor(const op_call *call) {
    trace_cursor *c = etch__tls.cursor;
    if (!c || call->nin == 0 || call->nin > CURSOR_MAX_IN) return NULL;
    uint64_t key = etch__call_key(call->op, call->nin, call->nsc, call->nat);
    return etch__cursor_match(c, key, call->in, call->nin, call->sc, call->nsc, call->at,
                              call->nat);
}

/* The same below all layers that see calls by their operands; and unseen by modes, too. */
static inline etch_tensor *etch__operator_below(const op_call *call) {
    etch_tensor *h = etch__follow_cursor(call);
    return likely(h) ? h : etch__dispatch_layerless(call);
}
static inline etch_tensor *etch__operator_unseen(const op_call *call) {
    etch_tensor *h = etch__follow_cursor(call);
    if (likely(h)) return h;
    unsigned seen = 0;
    for (int i = 0; i < call->nin; i++) seen |= call->in[i]->layers;
    return unlikely(seen >> LAYER_VMAP & 1) ? etch__dispatch_layerless(call)
                                            : etch__dispatch_below(LAYER_MODES, call);
}

/* Seed and first offset of a random operator's result, reserved at the call. */
static inline void etch__put_random(etch_scalar *sc, const etch_dims *size) {
    if (unlikely(etch__tls.replayed)) {
        sc[0] = etch__tls.replayed[0], sc[1] = etch__tls.replayed[1];
        return;
    }
    uint64_t seed, offset;
    int64_t n = 1;
    for (int i = 0; i < size->n && i < ETCH_MAX_DIMS; i++)
        if (size->v[i] < 0 || __builtin_mul_overflow(n, size->v[i], &n)) n = 0;
    etch__random_reserve(n, &seed, &offset);
    sc[0] = etch_scalar_int((int64_t)seed), sc[1] = etch_scalar_int((int64_t)offset);
}

#endif
