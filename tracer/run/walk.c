/* A walk: one thread's passage through a segment, matching it or recording it.
 *
 * What a walk holds: a count of every captured tensor it has met. In matching, of the tree's spare
 * handles, one per node, which it hands out again as long as nobody else holds them. In recording,
 * of every argument; of what has run it needs no more than the address and what it looked like, so
 * results are *watched*, and their storage goes when the program lets go of it, as in eager code;
 * once the recording has ended, inputs are watched, too. So no address that a walk compares with
 * can come to mean another tensor.
 *
 * In matching, arguments are *borrowed*: the caller has a count of each until the call returns,
 * and counts of a tensor that several threads pass would make its cache line wander between
 * them. The one who could take the caller's count away is the body, by etch_release on this
 * thread: then the walk takes counts first (etch__trace_hooks.own_borrowed). It also takes them
 * when it outlives its segment. */
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

/* ---- making and sizing ---- */

/* Room for every node that the tree has now. */
static bool size_for_tree(trace_walk *w) {
    trace_tree *t = w->tree;
    int32_t limit = atomic_load_explicit(&t->nnodes, memory_order_acquire);
    if (limit == w->c.limit && w->values_cap) return true;
    int64_t values = t->max_values > w->nargs ? t->max_values : w->nargs;
    if (!etch__grow_lines(&w->c.value, &w->values_cap, values + 1, sizeof *w->c.value) ||
        !etch__grow_lines(&w->c.scalar, &w->scalars_cap, t->max_scalars + 1, sizeof *w->c.scalar) ||
        !etch__grow_lines(&w->ints, &w->ints_cap, t->max_ints + 1, sizeof *w->ints) ||
        (t->max_ints &&
         !etch__grow_lines(&w->bound, &w->bound_cap, values + 1, sizeof *w->bound)) ||
        !etch__grow_lines(&w->c.handle, &w->handles_cap, limit + 1, sizeof *w->c.handle))
        return false;
    w->c.limit = limit;
    return true;
}

/* ---- sizes seen ----
 *
 * Where sizes are run-time, inferring those of every result costs more than the match itself. So a
 * walk remembers what it saw: c.sizes is a new number whenever something is not as it was when the
 * walk last passed here (an argument's or captured tensor's sizes, an attribute, a result), and a
 * handle carries the number under which its sizes were last found right. While they agree, nothing
 * upstream of the node has changed, and the sizes hold. */

static void note_change(trace_walk *w) {
    if (++w->c.sizes) return;
    w->c.sizes = 1;
    w->recent.code = NULL;
    for (int64_t i = 0; i < w->handles_cap; i++)
        if (w->c.handle[i]) w->c.handle[i]->sizes = 0;
}

void etch__walk_changed(trace_walk *w) { note_change(w); }

static void see_bound(trace_walk *w, int32_t value, const etch_tensor *t) {
    if (etch__guard_holds(&w->bound[value], t)) return;
    etch__guard_make(t, &w->bound[value]);
    note_change(w);
}

static trace_walk *take_spare(trace_tree *tree) {
    for (unsigned i = 0; i < SPARE_WALKS; i++) {
        _Atomic(trace_walk *) *place = &tree->spare[(etch__tls.number + i) % SPARE_WALKS].walk;
        if (!atomic_load_explicit(place, memory_order_relaxed)) continue;
        trace_walk *w = atomic_exchange_explicit(place, NULL, memory_order_acquire);
        if (w) return w;
    }
    return NULL;
}

trace_walk *etch__walk_take(trace_run *r, trace_tree *tree) {
    trace_walk *w = tree ? take_spare(tree) : NULL;
    if (!w && !(w = etch__aligned_zeroed(sizeof *w))) return NULL;
    w->run = r;
    w->tree = tree;
    w->mode = tree ? WALK_MATCH : WALK_RECORD;
    if (!tree) return w;
    w->nargs = tree->nargs;
    if (!size_for_tree(w)) {
        etch__walk_free(w);
        return NULL;
    }
    w->c.last = &tree->root.c;
    w->c.next = atomic_load_explicit(&tree->root.c.next, memory_order_acquire);
    return w;
}

void etch__walk_free(trace_walk *w) {
    if (!w) return;
    for (int64_t i = 0; i < w->handles_cap; i++) etch_release(w->c.handle[i]);
    etch__free(w->c.value);
    etch__free(w->c.handle);
    etch__free(w->c.scalar);
    etch__free(w->path);
    etch__free(w->want);
    etch__free(w->inputs);
    etch__free(w->outputs);
    etch__free(w->alias);
    etch__free(w->ints);
    etch__free(w->metas);
    etch__free(w->bound);
    etch__free(w->key);
    for (int i = 0; i < KEPT_CODES; i++)
        if (w->kept[i].code) etch__code_release(w->kept[i].leaf, w->kept[i].code);
    etch__walk_forget_numbers(w);
    etch__drop_kept_inputs(w);
    etch__free(w->kept_inputs);
    etch__shadow_free(w->shadow);
    etch__free(w);
}

bool etch__walk_bind_args(trace_walk *w, etch_tensor *const *in, int nin) {
    w->entry = true;
    if (!etch__grow_lines(&w->c.value, &w->values_cap, nin + 1, sizeof *w->c.value)) return false;
    if (w->mode != WALK_MATCH && !etch__walk_room_for_numbers(w, nin)) return false;
    w->nargs = nin;
    for (int i = 0; i < nin; i++) w->c.value[i] = in[i];
    w->nvalues = nin;
    for (int i = 0; w->mode != WALK_MATCH && i < nin; i++) etch__walk_number(w, i);
    w->borrows = true;
    w->next_borrower = etch__tls.borrower;
    etch__tls.borrower = w;
    if (w->mode != WALK_MATCH) etch__walk_own_args(w);
    else if (w->tree->dynamic)
        for (int i = 0; i < nin; i++)
            if (!etch__walk_hides(w, i)) see_bound(w, i, in[i]);
    return true;
}

static void stop_borrowing(trace_walk *w) {
    trace_walk *first = etch__tls.borrower, **link = &first;
    while (*link != w) link = &(*link)->next_borrower;
    *link = w->next_borrower;
    etch__tls.borrower = first;
    w->borrows = false;
}

void etch__walk_own_args(trace_walk *w) {
    if (!w->borrows) return;
    stop_borrowing(w);
    for (int i = 0; i < w->nargs; i++) etch_retain(w->c.value[i]);
}

static void own_borrowed(const etch_tensor *t) {
    for (trace_walk *w = etch__tls.borrower, *next; w; w = next) {
        next = w->next_borrower;
        for (int i = 0; i < w->nargs; i++)
            if (w->c.value[i] == t) {
                etch__walk_own_args(w);
                break;
            }
    }
}

__attribute__((constructor)) static void register_borrowing(void) {
    etch__trace_hooks.own_borrowed = own_borrowed;
}

static int64_t values_so_far(const trace_walk *w) {
    if (w->leaf) return w->leaf->nvalues;
    return w->mode == WALK_MATCH ? ((const trace_node *)w->c.last)->nvalues : w->nvalues;
}

bool etch__walk_touches(const trace_walk *w, const etch_storage *s) {
    for (int64_t v = 0, n = values_so_far(w); v < n; v++) {
        const etch_tensor *t = w->c.value[v];
        const etch_storage *own = t ? t->storage : NULL;
        if (!own) continue;
        if (s ? own == s || etch__memory_overlaps(own, s)
              : own->exposed & (EXPOSED_WRAPPED | EXPOSED_WRITERS))
            return true;
    }
    return false;
}

/* ---- giving up ---- */

/* A fresh deferred handle for a node; the walk has one count of it. */
static etch_tensor *deferred_handle(trace_walk *w, const tensor_meta *meta, int32_t value) {
    etch_tensor *h = etch__tensor_alloc();
    if (!h) return NULL;
    etch__apply_meta(h, meta);
    h->deferred = 1;
    h->owner = w;
    h->value = value;
    return h;
}

/* A deferred handle like one that was used. A view's offset is set when it gets its storage. */
static etch_tensor *fresh_handle(trace_walk *w, const etch_tensor *used) {
    etch_tensor *h = etch__tensor_alloc();
    if (!h) return NULL;
    size_t meta = offsetof(etch_tensor, size);
    memcpy((char *)h + meta, (const char *)used + meta, sizeof *h - meta);
    h->dtype = used->dtype, h->ndim = used->ndim, h->device = used->device;
    h->numel = used->numel, h->contiguous = used->contiguous;
    h->deferred = 1;
    h->owner = w;
    h->value = used->value;
    h->sizes = used->sizes;
    return h;
}

/* A matched node's handle stays with the walk if nobody else holds it and it is still
 * unused; else a new one takes its place, so that the next walk finds it ready (or makes
 * it, if memory is short). */
static void give_up_handle(trace_walk *w, int32_t id) {
    etch_tensor *h = w->c.handle[id];
    if (!h) return;
    if (h->deferred && !h->failed && !h->marks &&
        atomic_load_explicit(&h->refs, memory_order_acquire) == 1)
        return;
    h->owner = NULL;
    w->c.handle[id] = fresh_handle(w, h);
    etch_release(h);
}

static void give_up_matched_node(trace_walk *w, const trace_node *n) {
    for (int k = 0; k < n->ncaptures; k++) {
        etch_release(w->c.value[n->captures[k].value]);
        w->c.value[n->captures[k].value] = NULL;
    }
    if (n->c.inplace) return;
    give_up_handle(w, n->c.id);
    w->c.value[n->c.out] = NULL;
}

static void give_up_matched(trace_walk *w) {
    const trace_leaf *leaf = w->leaf;
    if (!leaf) {
        for (const trace_node *n = (trace_node *)w->c.last; n != &w->tree->root; n = n->parent)
            give_up_matched_node(w, n);
        return;
    }
    for (int i = 0; i < leaf->nbound; i++) {
        etch_release(w->c.value[leaf->bound[i]]);
        w->c.value[leaf->bound[i]] = NULL;
    }
    for (int i = 0; i < leaf->nsteps; i++) {
        give_up_handle(w, leaf->steps[i].id);
        w->c.value[leaf->steps[i].out] = NULL;
    }
}

static void give_up_input(trace_walk *w, int32_t v) {
    if (w->watches) etch__tensor_unwatch(w->c.value[v]);
    else etch_release(w->c.value[v]);
    w->c.value[v] = NULL;
}

static void give_up_result(trace_walk *w, int32_t v) {
    etch_tensor *h = w->c.value[v];
    w->c.value[v] = NULL;
    if (w->mode == WALK_RECORD) {
        etch__tensor_unwatch(h);
        return;
    }
    h->owner = NULL;
    etch_release(h);
}

static void give_up_recorded(trace_walk *w) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        for (int k = 0; k < n->ncaptures; k++) give_up_input(w, n->captures[k].value);
        if (!n->c.inplace) give_up_result(w, n->c.out);
    }
    for (int64_t i = w->shared; i < w->npath; i++) etch__node_free(w->path[i]);
    w->npath = w->shared = 0;
    if (w->want) memset(w->want, 0, (size_t)w->want_cap);
    etch__walk_forget_numbers(w);
}

static void give_up_args(trace_walk *w) {
    if (w->borrows) stop_borrowing(w);
    else
        for (int i = 0; i < w->nargs; i++) give_up_input(w, i);
    for (int i = 0; i < w->nargs; i++) w->c.value[i] = NULL;
}

static void watch_input(etch_tensor *t) {
    etch__tensor_watch(t);
    etch_release(t);
}

void etch__walk_watch(trace_walk *w) {
    if (w->watches) return;
    etch__walk_own_args(w);
    for (int i = 0; i < w->nargs; i++) watch_input(w->c.value[i]);
    for (int64_t i = 0; i < w->npath; i++)
        for (int k = 0; k < w->path[i]->ncaptures; k++)
            watch_input(w->c.value[w->path[i]->captures[k].value]);
    w->watches = true;
}

static int counts_of_recording(const trace_walk *w, const etch_tensor *t) {
    int n = 0;
    for (int v = 0; v < w->nargs; v++) n += w->c.value[v] == t;
    for (int64_t i = 0; i < w->npath; i++)
        for (int k = 0; k < w->path[i]->ncaptures; k++)
            n += w->c.value[w->path[i]->captures[k].value] == t;
    return n;
}

int etch__walk_counts(const trace_walk *w, const etch_tensor *t) {
    if (w->mode == WALK_RECORD) return w->watches ? 0 : counts_of_recording(w, t);
    int n = 0;
    for (int64_t v = w->borrows ? w->nargs : 0; v < w->values_cap; v++) n += w->c.value[v] == t;
    return n;
}

void etch__walk_recycle(trace_walk *w) {
    give_up_args(w);
    if (w->mode == WALK_MATCH) give_up_matched(w);
    else give_up_recorded(w);
    trace_tree *tree = w->tree;
    if (unlikely(w->nkept_inputs > 0)) etch__drop_kept_inputs(w);
    if (unlikely(w->run->replayed != NULL)) note_change(w); /* those sizes were not seen */
    if (unlikely(w->shadow != NULL)) etch__shadow_free(w->shadow), w->shadow = NULL;
    w->nvalues = w->nscalars = w->nints = 0;
    w->dynamic = w->dynamic_entry = false;
    w->leaf = NULL;
    w->ran = NULL;
    w->pending = w->recorded = w->published = w->recompile = w->entry = w->watches = false;
    for (unsigned i = 0; tree && i < SPARE_WALKS; i++) {
        _Atomic(trace_walk *) *place = &tree->spare[(etch__tls.number + i) % SPARE_WALKS].walk;
        trace_walk *none = NULL;
        if (atomic_load_explicit(place, memory_order_relaxed)) continue;
        if (atomic_compare_exchange_strong_explicit(place, &none, w, memory_order_release,
                                                    memory_order_relaxed))
            return;
    }
    etch__walk_free(w);
}

/* ---- matching ---- */

static const capture *captured_operand(const trace_node *n, int operand) {
    for (int k = 0; k < n->ncaptures; k++)
        if (n->captures[k].operand == operand) return &n->captures[k];
    return NULL;
}

static bool captured_fits(const capture *c, const etch_tensor *t, bool by_rank) {
    if (!by_rank) return etch__guard_holds(&c->guard, t) && !etch__marked_dynamic(t);
    const dim_marks fixed = {.fixed = c->fixed};
    return etch__guard_holds_rank(&c->guard, t) &&
           (likely(!c->fixed && !t->marks) || etch__marks_hold(&fixed, &c->guard, t));
}

/* A slot that two operands share is bound by the first of them. */
static bool operand_fits(const trace_walk *w, const trace_node *n, const op_call *call, int i,
                         bool by_rank) {
    const capture *c = captured_operand(n, i);
    if (c && call->in[i]->owner == w) return false;
    if (c) return captured_fits(c, call->in[i], by_rank);
    for (int k = 0; k < n->ncaptures; k++)
        if (n->captures[k].value == n->in[i])
            return call->in[i] == call->in[n->captures[k].operand];
    return w->c.value[n->in[i]] == call->in[i];
}

/* by_rank: whatever the sizes are. */
static bool fits(const trace_walk *w, const trace_node *n, const op_call *call, bool by_rank) {
    if (!(by_rank ? etch__similar_call : etch__same_call)(n, call, etch__state_now())) return false;
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
static void put_ints(trace_walk *w, const trace_node *n, const op_call *call, int64_t view_offset) {
    if (call->nat) memcpy(w->ints + n->ints, call->at, call->nat * sizeof *w->ints);
    w->ints[n->ints + call->nat] = view_offset;
}

/* Whether the walk has these very words already. */
static bool has_ints(const trace_walk *w, const trace_node *n, const op_call *call,
                     int64_t view_offset) {
    return w->ints[n->ints + call->nat] == view_offset &&
           (!call->nat || !memcmp(w->ints + n->ints, call->at, call->nat * sizeof *w->ints));
}

static bool has_meta(const etch_tensor *h, const tensor_meta *m) {
    size_t bytes = (size_t)m->ndim * sizeof *m->size;
    return h->dtype == m->dtype && h->ndim == m->ndim && !memcmp(h->size, m->size, bytes) &&
           !memcmp(h->stride, m->stride, bytes);
}

/* Takes over what was inferred, under a new stamp if it is not what was there. The cursor compares
 * attributes with the recorded ones, so only with these can it go on alone. */
static void take_result(trace_walk *w, const trace_node *n, const op_call *call, etch_tensor *h,
                        const tensor_meta *meta) {
    bool known = has_ints(w, n, call, meta->offset) && (n->c.inplace || has_meta(h, meta));
    if (!known) note_change(w);
    put_ints(w, n, call, meta->offset);
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

etch_tensor *etch__walk_handle(trace_walk *w, const trace_node *n) {
    etch_tensor **h = &w->c.handle[n->c.id];
    if (!*h) *h = deferred_handle(w, &n->meta, n->c.out);
    return *h;
}

/* The result's handle, given to the innermost scope; for an in-place node the first operand. */
static etch_tensor *matched_result(trace_walk *w, const trace_node *n, const op_call *call) {
    etch_tensor *h = n->c.inplace ? call->in[0] : etch__walk_handle(w, n);
    for (int k = 0; n->dynamic && k < n->ncaptures; k++)
        see_bound(w, n->captures[k].value, call->in[n->captures[k].operand]);
    if (!h || (n->dynamic && !dynamic_result(w, n, call, h))) return NULL;
    if (n->c.inplace) return h;
    if (!etch__scope_push(h)) return NULL;
    atomic_store_explicit(&h->refs, 2, memory_order_relaxed);
    return h;
}

etch_tensor *etch__walk_match(trace_walk *w, const op_call *call) {
    trace_node *n = find_match(w, call);
    if (!n) return NULL;
    if (n->c.id >= w->c.limit && !size_for_tree(w)) return NULL;
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

/* ---- recording ---- */

static bool room_for_node(trace_walk *w, const op_call *call) {
    return etch__grow(&w->path, &w->path_cap, w->npath + 1, sizeof *w->path) &&
           etch__grow_lines(&w->c.value, &w->values_cap, w->nvalues + call->nin + 1,
                            sizeof *w->c.value) &&
           etch__grow_lines(&w->c.scalar, &w->scalars_cap, w->nscalars + call->nsc,
                            sizeof *w->c.scalar) &&
           etch__grow_lines(&w->ints, &w->ints_cap, w->nints + call->nat + 1, sizeof *w->ints) &&
           etch__grow_lines(&w->want, &w->want_cap, w->nvalues + call->nin + 1, 1) &&
           etch__walk_room_for_numbers(w, call->nin + 1);
}

/* Operand positions; tensors not met before become captured slots. */
static bool bind_operands(trace_walk *w, trace_node *n, const op_call *call) {
    int64_t cap = 0;
    for (int i = 0; i < call->nin; i++) {
        int32_t v = etch__walk_find(w, call->in[i]);
        if (v < 0) {
            if (!etch__grow(&n->captures, &cap, n->ncaptures + 1, sizeof *n->captures))
                return false;
            v = (int32_t)w->nvalues++;
            w->c.value[v] = etch_retain(call->in[i]);
            etch__walk_number(w, v);
            capture *c = &n->captures[n->ncaptures++];
            c->value = v, c->operand = i;
            etch__guard_make(call->in[i], &c->guard);
            c->fixed = call->in[i]->marks ? call->in[i]->marks->fixed : 0;
        }
        n->in[i] = v;
        if (i < CURSOR_MAX_IN) n->c.in[i] = v;
    }
    return true;
}

/* What has run is watched; what is deferred, and to be computed, is the walk's. */
static void add_result(trace_walk *w, trace_node *n, etch_tensor *h) {
    n->c.out = (int32_t)w->nvalues++;
    w->c.value[n->c.out] = h;
    etch__walk_number(w, n->c.out);
    if (w->mode == WALK_RECORD) etch__tensor_watch(h);
    else etch_retain(h);
}

/* Fills the node's meta and value from the result. */
static void record_result(trace_walk *w, trace_node *n, const op_call *call, etch_tensor *h) {
    n->meta.dtype = h->dtype, n->meta.ndim = h->ndim, n->meta.device = h->device;
    memcpy(n->meta.size, h->size, sizeof h->size);
    memcpy(n->meta.stride, h->stride, sizeof h->stride);
    if (etch__ops[call->op].kind == KIND_VIEW) n->meta.offset = h->offset - call->in[0]->offset;
    if (n->c.inplace) n->c.out = n->in[0];
    else add_result(w, n, h);
    n->c.sc = (int32_t)w->nscalars;
    for (int i = 0; i < call->nsc; i++) w->c.scalar[w->nscalars++] = call->sc[i];
    n->ints = (int32_t)w->nints;
    if (n->dynamic) {
        put_ints(w, n, call, n->meta.offset);
        w->nints += call->nat + 1;
    }
    n->nints = (int32_t)w->nints;
    n->nvalues = (int32_t)w->nvalues, n->nscalars = (int32_t)w->nscalars;
    if (w->mode == WALK_SHAPES && !n->c.inplace) h->value = n->c.out;
}

/* The result without its data: what fullgraph records with. */
static etch_tensor *shape_result(trace_walk *w, const op_call *call) {
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
    if (etch__ops[call->op].kind == KIND_INPLACE) return call->in[0];
    etch_tensor *h = deferred_handle(w, &meta, -1);
    if (!h) return NULL;
    if (etch__scope_push(h)) return h;
    etch__tensor_destroy(h);
    return NULL;
}

/* The node is made first, so that nothing can fail once the operator has run. */
etch_tensor *etch__walk_record(trace_walk *w, const op_call *call) {
    if (!room_for_node(w, call)) return NULL;
    trace_node *n = etch__node_new(call, etch__state_now());
    if (!n) return NULL;
    n->dynamic = w->dynamic;
    if (n->dynamic) n->c.key |= CURSOR_DYNAMIC;
    int64_t values = w->nvalues;
    etch_tensor *h = NULL;
    if (bind_operands(w, n, call))
        h = w->mode == WALK_SHAPES ? shape_result(w, call) : etch__run_eager(call);
    if (h) {
        record_result(w, n, call, h);
        w->path[w->npath++] = n;
        return h;
    }
    while (w->nvalues > values) {
        etch_release(w->c.value[--w->nvalues]);
        w->c.value[w->nvalues] = NULL;
    }
    etch__node_free(n);
    return NULL;
}

/* ---- handles that will never be computed ---- */

static void fail_handle(const trace_walk *w, int32_t value) {
    etch_tensor *h = w->c.value[value];
    if (!h || !h->deferred || h->owner != w) return;
    h->failed = 1, h->deferred = 0;
    etch__tls.failures++;
}

void etch__walk_fail(trace_walk *w) {
    const trace_leaf *leaf = w->leaf;
    if (w->mode != WALK_MATCH)
        for (int64_t v = 0; v < w->nvalues; v++) fail_handle(w, (int32_t)v);
    else if (leaf)
        for (int i = 0; i < leaf->nsteps; i++) fail_handle(w, leaf->steps[i].out);
    else
        for (const trace_node *n = (trace_node *)w->c.last; n != &w->tree->root; n = n->parent)
            fail_handle(w, n->c.out);
}

/* ---- what identifies the sizes of a dynamic walk ---- */

static void put_key(trace_walk *w, const etch_tensor *t) {
    for (int d = 0; d < t->ndim; d++) {
        w->key[w->nkey++] = t->size[d];
        w->key[w->nkey++] = t->stride[d];
    }
}

bool etch__walk_key(trace_walk *w, const int32_t *inputs, int ninputs) {
    int64_t need = (int64_t)ninputs * 2 * ETCH_MAX_DIMS + w->nints;
    if (!etch__grow_lines(&w->key, &w->key_cap, need + 1, sizeof *w->key)) return false;
    w->nkey = 0;
    for (int i = 0; i < ninputs; i++) put_key(w, w->c.value[inputs[i]]);
    if (w->nints) memcpy(w->key + w->nkey, w->ints, (size_t)w->nints * sizeof *w->key);
    w->nkey += w->nints;
    return true;
}

bool etch__walk_metas(trace_walk *w) {
    if (!etch__grow(&w->metas, &w->metas_cap, w->nvalues + 1, sizeof *w->metas)) return false;
    for (int64_t v = 0; v < w->nvalues; v++) etch__guard_make(w->c.value[v], &w->metas[v]);
    return true;
}

/* ---- from matching to recording ---- */

bool etch__walk_path(trace_walk *w) {
    int64_t n = 0;
    const trace_node *root = &w->tree->root;
    for (const trace_node *p = (trace_node *)w->c.last; p != root; p = p->parent) n++;
    if (!etch__grow(&w->path, &w->path_cap, n, sizeof *w->path)) return false;
    w->npath = w->shared = n;
    for (trace_node *p = (trace_node *)w->c.last; p != root; p = p->parent) w->path[--n] = p;
    return true;
}

/* The handles of the matched nodes pass from the node table to the value table; those that were
 * computed become ordinary ones, which are watched. */
static void own_results(trace_walk *w, walk_mode mode) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        if (n->c.inplace) continue;
        etch_tensor *h = w->c.handle[n->c.id];
        w->c.handle[n->c.id] = NULL;
        if (mode != WALK_RECORD) continue;
        h->owner = NULL;
        etch__tensor_watch(h);
        etch_release(h);
    }
}

bool etch__walk_to_recording(trace_walk *w, walk_mode mode) {
    const trace_node *last = (trace_node *)w->c.last;
    if (!etch__walk_path(w)) return false;
    etch__walk_own_args(w);
    note_change(w); /* the attribute words from here on become those of the recording */
    w->nvalues = last->nvalues;
    w->nscalars = last->nscalars;
    w->nints = last->nints;
    w->dynamic = last->dynamic || w->tree->dynamic;
    w->dynamic_entry = w->tree->dynamic;
    if (!etch__grow_lines(&w->want, &w->want_cap, w->nvalues + 1, 1) ||
        !etch__walk_room_for_numbers(w, 0))
        return false;
    if (mode == WALK_RECORD) {
        etch__evaluate(w, false);
        etch__shadow_free(w->shadow), w->shadow = NULL;
        TRACE_COUNT(w->run->f, eager_runs, w->npath > 0);
    }
    own_results(w, mode);
    w->mode = mode;
    return true;
}
