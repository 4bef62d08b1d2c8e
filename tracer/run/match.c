/* Matching: which node of the tree an operator call is, and what its result looks like. */
#include "guards/call.h"
#include "tracer/run/run.h"

static const capture *captured_operand(const trace_node *n, int operand) {
    for (int k = 0; k < n->ncaptures; k++)
        if (n->captures[k].operand == operand) return &n->captures[k];
    return NULL;
}

/* A slot that two operands share is bound by the first of them. */
static bool operand_fits(const trace_walk *w, const trace_node *n, const op_call *call, int i,
                         bool by_rank) {
    const capture *c = captured_operand(n, i);
    if (c && call->in[i]->owner == w) return false;
    if (c) return etch__capture_fits(c, call->in[i], by_rank);
    for (int k = 0; k < n->ncaptures; k++)
        if (n->captures[k].value == n->in[i])
            return call->in[i] == call->in[n->captures[k].operand];
    return w->c.value[n->in[i]] == call->in[i];
}

/* by_rank: whatever the sizes are. */
static bool fits(const trace_walk *w, const trace_node *n, const op_call *call, bool by_rank) {
    if (!(by_rank ? etch__similar_call : etch__same_call)(&n->c, call, etch__state_now()))
        return false;
    for (int i = 0; i < call->nin; i++)
        if (!operand_fits(w, n, call, i, by_rank)) return false;
    return true;
}

bool etch__walk_similar(const trace_walk *w, const op_call *call) {
    const trace_node *last = (const trace_node *)w->c.last;
    for (trace_node *n = atomic_load_explicit(&last->child, memory_order_acquire); n;
         n = n->sibling)
        if (n->c.key != CURSOR_END && fits(w, n, call, true)) return true;
    return false;
}

/* Fixed sizes are tried before run-time ones, bound positions before unbound slots. */
static trace_node *find_match(const trace_walk *w, const op_call *call) {
    const trace_node *last = (const trace_node *)w->c.last;
    for (int pass = 0; pass < 4; pass++) {
        bool dynamic = pass & 2, captures = pass & 1;
        for (trace_node *n = atomic_load_explicit(&last->child, memory_order_acquire); n;
             n = n->sibling)
            if (n->c.key != CURSOR_END && n->dynamic == dynamic && (n->ncaptures > 0) == captures &&
                fits(w, n, call, dynamic))
                return n;
    }
    return NULL;
}

/* The attribute words of a dynamic node's call, and how far a view's offset is from its base's. */
void etch__walk_put_ints(trace_walk *w, const trace_node *n, const op_call *call,
                         int64_t view_offset) {
    if (call->nat) memcpy(w->seen.ints + n->ints, call->at, call->nat * sizeof *w->seen.ints);
    w->seen.ints[n->ints + call->nat] = view_offset;
}

/* Whether the walk has these very words already. */
static bool has_ints(const trace_walk *w, const trace_node *n, const op_call *call,
                     int64_t view_offset) {
    return w->seen.ints[n->ints + call->nat] == view_offset &&
           (!call->nat ||
            !memcmp(w->seen.ints + n->ints, call->at, call->nat * sizeof *w->seen.ints));
}

static bool has_meta(const etch_tensor *h, const tensor_meta *m) {
    return h->dtype == m->dtype && SAME_SIZES(h, m) && SAME_STRIDES(h, m);
}

/* Takes over what was inferred, under a new stamp if it is not what was there. The cursor compares
 * attributes with the recorded ones, so only with these can it go on alone. */
static void take_result(trace_walk *w, const trace_node *n, const op_call *call, etch_tensor *h,
                        const tensor_meta *meta) {
    bool known = has_ints(w, n, call, meta->offset) && (n->c.inplace || has_meta(h, meta));
    if (!known) etch__walk_changed(w);
    etch__walk_put_ints(w, n, call, meta->offset);
    if (n->c.inplace) return;
    etch__apply_meta(h, meta);
    bool recorded = !call->nat || !memcmp(n->c.at, call->at, call->nat * sizeof *n->c.at);
    h->sizes = recorded ? w->c.sizes : 0;
}

/* The sizes of a dynamic node's result are those of this call. */
static bool dynamic_result(trace_walk *w, const trace_node *n, const op_call *call,
                           etch_tensor *h) {
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return false;
    if (meta.dtype != n->meta.dtype || meta.ndim != n->meta.ndim) return false;
    if (meta.device != n->meta.device) return false;
    meta.offset -= etch__ops[n->op].kind == KIND_VIEW ? call->in[0]->offset : meta.offset;
    take_result(w, n, call, h, &meta);
    return true;
}

/* The result's handle, given to the innermost scope; for an in-place node the first operand. */
static etch_tensor *matched_result(trace_walk *w, const trace_node *n, const op_call *call) {
    etch_tensor *h = n->c.inplace ? call->in[0] : etch__walk_handle(w, n);
    for (int k = 0; n->dynamic && k < n->ncaptures; k++)
        etch__walk_see(w, n->captures[k].value, call->in[n->captures[k].operand]);
    if (!h || (n->dynamic && !dynamic_result(w, n, call, h))) return NULL;
    if (n->c.inplace) return h;
    if (!etch__scope_push(h)) return NULL;
    atomic_store_explicit(&h->refs, 2, memory_order_relaxed);
    return h;
}

etch_tensor *etch__walk_match(trace_walk *w, const op_call *call) {
    trace_node *n = find_match(w, call);
    if (!n) return NULL;
    if (n->c.id >= w->c.limit && !etch__walk_fit(w)) return NULL;
    etch_tensor *h = matched_result(w, n, call);
    if (!h) return NULL;
    for (int k = 0; k < n->ncaptures; k++) {
        const capture *c = &n->captures[k];
        w->c.value[c->value] = etch_retain(call->in[c->operand]);
    }
    if (!n->c.inplace) w->c.value[n->c.out] = h;
    for (int i = 0; i < call->nsc; i++) w->c.scalar[n->c.sc + i] = call->sc[i];
    etch__predict((trace_node *)w->c.last, n);
    w->c.last = &n->c;
    w->c.next = atomic_load_explicit(&n->c.next, memory_order_acquire);
    return h;
}
