/* Nodes and edges: making them as operators are called, and letting them go. See tape.h. */
#include "core/autograd/tape.h"

#include "core/base/start.h"
#include "core/dispatch/call.h"
#include "core/transforms/tangent.h"

/* ---- the life of a node ---- */

static size_t padded(size_t bytes) { return (bytes + 15) & ~(size_t)15; }

/* One block holds all of it. */
tape_node *etch__node_make(node_kind kind, int nin, int nsc, int nat) {
    size_t edges = padded((size_t)nin * sizeof(tape_node *));
    size_t shapes = padded((size_t)nin * sizeof(value_shape));
    size_t saved = padded((size_t)(nin + 1) * sizeof(saved_value));
    size_t scalars = padded((size_t)nsc * sizeof(etch_scalar));
    size_t head = padded(sizeof(tape_node));
    size_t bytes = head + edges + shapes + saved + scalars + (size_t)nat * sizeof(int64_t);
    char *block = etch__malloc(bytes);
    if (!block) return NULL;
    memset(block, 0, head + edges + shapes + saved);
    tape_node *n = (tape_node *)block;
    n->refs = 1;
    n->kind = (uint8_t)kind, n->nin = (uint16_t)nin, n->nsc = (uint8_t)nsc, n->nat = (uint8_t)nat;
    n->edge = (tape_node **)(block + head);
    n->in = (value_shape *)(block + head + edges);
    n->saved = (saved_value *)(block + head + edges + shapes);
    n->sc = (etch_scalar *)(block + head + edges + shapes + saved);
    n->at = (int64_t *)(block + head + edges + shapes + saved + scalars);
    return n;
}

void etch__node_retain(tape_node *n) {
    if (n) atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
}

void etch__node_free_saved(tape_node *n) {
    n->freed = n->kind != NODE_LEAF;
    for (int i = 0; i <= n->nin; i++) {
        etch_release(n->saved[i].t);
        n->saved[i].t = NULL;
    }
}

static void free_node(tape_node *n) {
    etch__node_free_saved(n);
    etch_release(atomic_load(&n->grad));
    etch__free(n->lies);
    if (n->origin) etch__trace_hooks.drop_origin(n->origin);
    etch__free(n->hooks);
    etch__free(n);
}

static bool last_count(tape_node *n) {
    return n && atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) == 1;
}

/* Nodes whose last reference went, by `next`: of the outermost release that runs, NULL: none. */
static __thread tape_node **dying;

static void add_dying(tape_node *n) {
    if (!last_count(n)) return;
    n->next = *dying;
    *dying = n;
}

/* A list in place of recursion, for what a node's saved values end as well (the tapes of their
 * tangents): a tape may be a million operators long. */
void etch__tape_release(tape_node *n) {
    if (dying) {
        add_dying(n);
        return;
    }
    tape_node *first = NULL;
    dying = &first;
    add_dying(n);
    while ((n = first)) {
        first = n->next;
        for (int i = 0; i < n->nin; i++) add_dying(n->edge[i]);
        free_node(n);
    }
    dying = NULL;
}

/* A tensor with an edge, a family or tangents goes. */
static void drop(tensor_notes *notes) {
    if (!notes) return;
    etch__drop_tangents(notes);
    tape_node *n = notes->edge;
    if (notes->recipe) etch__trace_hooks.drop_recipe(notes->recipe);
    notes->recipe = NULL;
    view_family *f = notes->family;
    notes->edge = NULL, notes->family = NULL;
    etch__tape_release(n);
    etch__family_release(f);
}

/* ---- values ---- */

value_shape etch__value_shape(const etch_tensor *t) {
    int n = t->ndim;
    value_shape s = {.dtype = t->dtype, .ndim = t->ndim, .device = t->device};
    s.columns = n >= 2 && t->stride[n - 2] == 1 && t->stride[n - 1] > 1;
    memcpy(s.size, t->size, (size_t)t->ndim * sizeof *s.size);
    if (unlikely(etch__is_batched(t))) s.levels = etch__levels_of(t);
    return s;
}

tensor_meta etch__place_of(const etch_tensor *t) {
    tensor_meta m = {.dtype = t->dtype, .ndim = t->ndim, .device = t->device};
    const etch_tensor *p = etch__physical(t);
    m.offset = p->deferred ? etch__trace_hooks.offset(p) : p->offset;
    memcpy(m.size, t->size, (size_t)t->ndim * sizeof *m.size);
    memcpy(m.stride, t->stride, (size_t)t->ndim * sizeof *m.stride);
    return m;
}

unsigned etch__version_of(const etch_tensor *t) {
    t = etch__physical(t);
    if (unlikely(t->deferred || etch__tls.run)) return etch__trace_hooks.version(t);
    return atomic_load_explicit(&t->storage->version, memory_order_relaxed);
}

static etch_tensor *alias_outside(const etch_tensor *t) {
    etch_tensor *h = etch__tensor_alloc();
    tensor_meta m = etch__place_of(t);
    if (h) etch__lie_over(h, &m, t->storage);
    return h;
}

static etch_tensor *alias_of_batched(const etch_tensor *t, const void *site) {
    etch_tensor *inner = etch__tape_alias(t->notes->inner, site);
    etch_tensor *h = inner ? etch__batch_over(inner, t->notes->level) : NULL;
    etch_release(inner);
    return h;
}

static etch_tensor *alias_of_value(etch_tensor *t, const void *site) {
    if (unlikely(etch__is_batched(t))) return alias_of_batched(t, site);
    if (!(etch__tls.layers >> LAYER_TRACER & 1)) return alias_outside(t);
    etch_tensor *const in[] = {t};
    op_call call = {.op = OP_SAVED, .nin = 1, .in = in, .site = site};
    etch_tensor *h = etch__operator_unseen(&call);
    if (h) h->view |= VIEW_SAVED;
    return etch_retain(h);
}

etch_tensor *etch__tape_alias(etch_tensor *t, const void *site) {
    etch_tensor *h = alias_of_value(t, site);
    if (!h || etch__carry_tangents(h, t)) return h;
    etch_release(h);
    return NULL;
}

/* ---- edges ---- */

bool etch__set_edge(etch_tensor *t, tape_node *node) {
    tensor_notes *notes = etch__notes(t);
    if (!notes) return false;
    tape_node *before = notes->edge;
    etch__node_retain(node);
    notes->edge = node;
    t->layers |= 1u << LAYER_AUTOGRAD;
    etch__tape_release(before);
    return true;
}

/* ---- noting operators ---- */

/* Per thread; a node's number is larger than those of the nodes that it points to, whoever made
 * them. Even: odd ones are of views that were made anew (views.c). */
static __thread uint64_t last_number;

uint64_t etch__tape_number(const tape_node *n) {
    for (int i = 0; i < n->nin; i++)
        if (n->edge[i] && n->edge[i]->number > last_number) last_number = n->edge[i]->number;
    return last_number = (last_number | 1) + 1;
}

static bool save(tape_node *n, int i, etch_tensor *t) {
    if (n->saved[i].t || t == ETCH_NONE) return true;
    n->saved[i] = (saved_value){etch__tape_alias(t, n->site), etch__version_of(t)};
    return n->saved[i].t != NULL;
}

/* Old contents of what is about to be written. */
static bool save_copy(tape_node *n, etch_tensor *t) {
    etch_tensor *const in[] = {t};
    op_call call = {.op = OP_CLONE, .nin = 1, .in = in, .site = n->site};
    etch_tensor *copy = etch_retain(etch__operator_unseen(&call));
    if (!copy || !etch__carry_tangents(copy, t)) return etch_release(copy), false;
    n->saved[0] = (saved_value){copy, etch__version_of(copy)};
    return true;
}

/* What the wanted derivatives read of the operands, as they are before the call. */
static bool save_operands(tape_node *n, const derivative *d, const op_call *call) {
    bool writes = etch__ops[call->op].kind == KIND_INPLACE;
    for (int i = 0; i < n->nin; i++) {
        if (!n->edge[i]) continue;
        unsigned reads = etch__derivative_reads(d, i);
        for (int k = 0; k < n->nin; k++) {
            bool read = reads & READS_ALL || (k < SAVED_OPERANDS && reads >> k & 1);
            if (!read || n->saved[k].t) continue;
            if (!(writes && k == 0 ? save_copy(n, call->in[0]) : save(n, k, call->in[k])))
                return false;
        }
    }
    return true;
}

static bool some_reads(const tape_node *n, const derivative *d, unsigned what) {
    bool reads = false;
    for (int i = 0; d && i < n->nin; i++)
        reads |= n->edge[i] && etch__derivative_reads(d, i) & what;
    return reads;
}

static bool save_places(tape_node *n, const op_call *call, const etch_tensor *h) {
    if (!(n->lies = etch__malloc(2 * sizeof *n->lies))) return false;
    n->lies[0] = etch__place_of(call->in[0]), n->lies[1] = etch__place_of(h);
    return true;
}

/* The call's node before the call: NULL with *ok where no operand wants a gradient. */
static tape_node *begin_node(const op_call *call, const derivative *d, bool *ok) {
    tape_node *edges[CURSOR_MAX_IN], **edge = edges;
    bool wanted = false, writes = etch__ops[call->op].kind == KIND_INPLACE;
    *ok = true;
    if (call->nin > CURSOR_MAX_IN && !(edge = etch__malloc((size_t)call->nin * sizeof *edge)))
        return *ok = false, NULL;
    for (int i = 0; *ok && i < call->nin; i++) {
        *ok = etch__edge_of(call->in[i], &edge[i]);
        wanted |= i == 0 && edge[0] && writes; /* its gradient ends here, if nothing else */
        if (d && etch__derivative_reads(d, i) & NO_GRADIENT) edge[i] = NULL;
        wanted |= edge[i] != NULL;
    }
    tape_node *n = NULL;
    if (*ok && wanted) *ok = (n = etch__node_make(NODE_OPERATOR, call->nin, call->nsc, call->nat));
    for (int i = 0; n && i < call->nin; i++) {
        etch__node_retain(edge[i]);
        n->edge[i] = edge[i];
        n->in[i] = etch__value_shape(call->in[i]);
    }
    if (edge != edges) etch__free(edge);
    return n;
}

static void describe(tape_node *n, const op_call *call) {
    const op_call *outer = etch__tls.composite;
    n->op = call->op, n->part_of = call->part_of;
    n->site = outer ? outer->site : call->site;
    if (call->nsc) memcpy(n->sc, call->sc, call->nsc * sizeof *n->sc);
    if (call->nat) memcpy(n->at, call->at, call->nat * sizeof *n->at);
    n->number = etch__tape_number(n);
    etch__tls.noted++;
    if (unlikely(etch__tls.run != NULL)) n->origin = etch__trace_hooks.origin();
}

/* The result is there: it gets the node. */
static bool end_node(tape_node *n, const derivative *d, const op_call *call, etch_tensor *h) {
    n->out = etch__value_shape(h);
    if (some_reads(n, d, READS_RESULT | READS_ALL) && !save(n, n->nin, h)) return false;
    if (some_reads(n, d, READS_PLACES) && !save_places(n, call, h)) return false;
    if (etch__ops[call->op].kind == KIND_INPLACE) return etch__family_written(h, n);
    return etch__set_edge(h, n);
}

static bool is_operand(const op_call *call, const etch_tensor *h) {
    for (int i = 0; i < call->nin; i++)
        if (call->in[i] == h) return true;
    return false;
}

/* A handler may answer with a tensor that is somebody's: its history stays as it is. */
static etch_tensor *own_result(const op_call *call, etch_tensor *h) {
    if (!h || etch__ops[call->op].kind == KIND_INPLACE) return h;
    bool has_history = h->layers >> LAYER_AUTOGRAD & 1;
    if (likely(!has_history && !(etch__tls.mode_level && is_operand(call, h)))) return h;
    etch_tensor *const in[] = {h};
    op_call detach = {.op = OP_DETACH, .nin = 1, .in = in, .site = call->site};
    etch_tensor *alias = etch__operator_unseen(&detach); /* else the handler would answer again */
    return alias && etch__carry_tangents(alias, h) ? alias : NULL;
}

/* Writing into a leaf would lose what it was; a view whose family is not known, whom to tell. */
static bool may_write(const op_call *call, const tape_node *n) {
    etch_tensor *self = call->in[0];
    const char *name = etch__ops[call->op].name;
    const view_family *f = self->notes ? self->notes->family : NULL;
    const tape_node *at = f ? f->edge : self->notes ? self->notes->edge : NULL;
    if (at && at->kind == NODE_LEAF)
        return etch__false_at(call->site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: expected a tensor that may be written, got %s that requires "
                              "gradients; write it in ETCH_NO_GRAD, or a result computed from it",
                              name, f && !self->notes->base ? "a view of a leaf" : "a leaf");
    if (n && (f ? f->partial : self->view))
        return etch__false_at(call->site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: a value that requires gradients is to be written into a view "
                              "that was made where none were noted (in ETCH_NO_GRAD, by "
                              "etch_detach, or before the first etch_requires_grad_): make the "
                              "view anew",
                              name);
    return true;
}

/* An operator with an operand that has gradients, or a view. */
static etch_tensor *noted_operator(const op_call *call) {
    const derivative *d = etch__derivative(call->op);
    uint8_t kind = etch__ops[call->op].kind;
    bool ok;
    tape_node *n = begin_node(call, d, &ok);
    if (ok && kind == KIND_INPLACE) ok = may_write(call, n);
    if (n) describe(n, call);
    if (ok && n && d) ok = save_operands(n, d, call);
    etch_tensor *h = ok ? own_result(call, etch__operator_below(call)) : NULL;
    if (h && kind == KIND_VIEW && call->op != OP_DETACH && !etch__join_family(h, call->in[0]))
        h = NULL;
    if (h && n && etch__is_float(h->dtype) && !end_node(n, d, call, h)) h = NULL;
    etch__tape_release(n);
    return h;
}

static bool operands_usable(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (!etch__usable(call->in[i])) return false;
    return true;
}

etch_tensor *etch__tape_operator(const op_call *call) {
    if (!etch__taping() || etch__in_parts(call) || !operands_usable(call))
        return etch__operator_below(call);
    return noted_operator(call);
}

void etch__start_tape(void) {
    etch__drop_grad = drop;
    etch__register_layer(LAYER_AUTOGRAD, etch__tape_operator);
}
