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
#include "guards/alias.h"
#include "core/base/start.h"
#include "tracer/run/run.h"

/* ---- making and sizing ---- */

bool etch__walk_fit(trace_walk *w) {
    trace_tree *t = w->tree;
    int32_t limit = atomic_load_explicit(&t->nnodes, memory_order_acquire);
    if (limit == w->c.limit && w->values_cap) return true;
    int64_t values = t->max_values > w->nargs ? t->max_values : w->nargs;
    if (!etch__grow_lines(&w->c.value, &w->values_cap, values + 1, sizeof *w->c.value) ||
        !etch__grow_lines(&w->c.scalar, &w->scalars_cap, t->max_scalars + 1, sizeof *w->c.scalar) ||
        !etch__grow_lines(&w->seen.ints, &w->seen.ints_cap, t->max_ints + 1,
                          sizeof *w->seen.ints) ||
        (t->max_ints && !etch__grow_lines(&w->sizes.bound, &w->sizes.bound_cap, values + 1,
                                          sizeof *w->sizes.bound)) ||
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

void etch__walk_changed(trace_walk *w) {
    if (++w->c.sizes) return;
    w->c.sizes = 1;
    w->sizes.recent.code = NULL;
    for (int64_t i = 0; i < w->handles_cap; i++)
        if (w->c.handle[i]) w->c.handle[i]->sizes = 0;
}

void etch__walk_see(trace_walk *w, int32_t value, const etch_tensor *t) {
    if (etch__guard_holds(&w->sizes.bound[value], t)) return;
    etch__guard_make(t, &w->sizes.bound[value]);
    etch__walk_changed(w);
}

static void free_walk(trace_walk *w) {
    if (!w) return;
    for (int64_t i = 0; i < w->handles_cap; i++) etch_release(w->c.handle[i]);
    etch__free(w->c.value);
    etch__free(w->c.handle);
    etch__free(w->c.scalar);
    etch__free(w->path);
    etch__free(w->rec.want);
    etch__free(w->room.inputs);
    etch__free(w->room.outputs);
    etch__free(w->seen.alias);
    etch__free(w->seen.ints);
    etch__free(w->seen.metas);
    etch__free(w->sizes.bound);
    etch__free(w->seen.key);
    for (int i = 0; i < KEPT_CODES; i++)
        if (w->sizes.kept[i].code) etch__code_release(w->sizes.kept[i].leaf, w->sizes.kept[i].code);
    etch__walk_forget_numbers(w);
    etch__makers_free(w);
    etch__drop_kept_inputs(w);
    etch__free(w->kept_inputs);
    etch__shadow_free(w->shadow);
    etch__free(w);
}

static trace_walk *take_spare(trace_tree *tree) {
    for (unsigned i = 0; i < SPARE_WALKS; i++) {
        _Atomic(trace_walk *) *spare = &tree->spare[(etch__tls.number + i) % SPARE_WALKS].walk;
        if (!atomic_load_explicit(spare, memory_order_relaxed)) continue;
        trace_walk *w = atomic_exchange_explicit(spare, NULL, memory_order_acquire);
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
    w->nargs = tree->guard.nargs;
    if (!etch__walk_fit(w)) {
        free_walk(w);
        return NULL;
    }
    w->c.last = &tree->root.c;
    w->c.next = atomic_load_explicit(&tree->root.c.next, memory_order_acquire);
    return w;
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
    else if (w->tree->guard.dynamic)
        for (int i = 0; i < nin; i++)
            if (!etch__walk_hides(w, i)) etch__walk_see(w, i, in[i]);
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

void etch__start_borrowing(void) {
    etch__trace_hooks.own_borrowed = own_borrowed;
    etch__trace_parts.free_walk = free_walk;
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

etch_tensor *etch__handle_like(const etch_tensor *t, etch_storage *s, int64_t offset) {
    etch_tensor *h = etch__tensor_alloc();
    if (!h) return NULL;
    tensor_meta meta;
    etch__guard_make(t, &meta);
    etch__apply_meta(h, &meta);
    h->offset = offset;
    if ((h->storage = s)) etch__storage_retain(s);
    return h;
}

/* The walk has one count of it. */
etch_tensor *etch__deferred_handle(trace_walk *w, const tensor_meta *meta, int32_t value) {
    etch_tensor *h = etch__tensor_alloc();
    if (!h) return NULL;
    etch__apply_meta(h, meta);
    h->deferred = 1;
    h->owner = w;
    h->value = value;
    return h;
}

etch_tensor *etch__walk_handle(trace_walk *w, const trace_node *n) {
    etch_tensor **h = &w->c.handle[n->c.id];
    if (!*h && (*h = etch__deferred_handle(w, &n->meta, n->c.out)))
        (*h)->view = etch__ops[n->op].kind == KIND_VIEW;
    return *h;
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
    h->view = used->view & VIEW_MADE;
    return h;
}

/* A matched node's handle stays with the walk if nobody else holds it and it is still
 * unused; else a new one takes its place, so that the next walk finds it ready (or makes
 * it, if memory is short). */
static void give_up_handle(trace_walk *w, int32_t id) {
    etch_tensor *h = w->c.handle[id];
    if (!h) return;
    if (h->deferred && !h->failed && !h->notes &&
        atomic_load_explicit(&h->refs, memory_order_acquire) == 1) {
        h->view &= VIEW_MADE;
        return;
    }
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
    if (w->rec.watches) etch__tensor_unwatch(w->c.value[v]);
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
    if (w->rec.want) memset(w->rec.want, 0, (size_t)w->rec.want_cap);
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
    if (w->rec.watches) return;
    etch__walk_own_args(w);
    for (int i = 0; i < w->nargs; i++) watch_input(w->c.value[i]);
    for (int64_t i = 0; i < w->npath; i++)
        for (int k = 0; k < w->path[i]->ncaptures; k++)
            watch_input(w->c.value[w->path[i]->captures[k].value]);
    w->rec.watches = true;
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
    if (w->mode == WALK_RECORD) return w->rec.watches ? 0 : counts_of_recording(w, t);
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
    if (unlikely(w->run->replay.holds != NULL))
        etch__walk_changed(w); /* those sizes were not seen */
    if (unlikely(w->shadow != NULL)) etch__shadow_free(w->shadow), w->shadow = NULL;
    w->nvalues = w->nscalars = w->seen.nints = 0;
    w->entry = w->rec.dynamic = w->rec.dynamic_entry = w->rec.watches = w->rec.published = false;
    w->leaf = NULL;
    w->made.upto = NULL;
    w->end = (walk_end){0};
    for (unsigned i = 0; tree && i < SPARE_WALKS; i++) {
        _Atomic(trace_walk *) *spare = &tree->spare[(etch__tls.number + i) % SPARE_WALKS].walk;
        trace_walk *none = NULL;
        if (atomic_load_explicit(spare, memory_order_relaxed)) continue;
        if (atomic_compare_exchange_strong_explicit(spare, &none, w, memory_order_release,
                                                    memory_order_relaxed))
            return;
    }
    free_walk(w);
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

void etch__drop_kept_inputs(trace_walk *w) {
    for (int i = 0; i < w->nkept_inputs; i++) {
        etch__storage_release(w->kept_inputs[i].real);
        etch__storage_release(w->kept_inputs[i].copy);
    }
    w->nkept_inputs = 0;
}

/* ---- what code has to be for: aliases, and sizes where they are run-time ---- */

static void put_key(trace_walk *w, const etch_tensor *t) {
    for (int d = 0; d < t->ndim; d++) {
        w->seen.key[w->seen.nkey++] = t->size[d];
        w->seen.key[w->seen.nkey++] = t->stride[d];
    }
}

bool etch__walk_alias(trace_walk *w, const int32_t *inputs, int ninputs) {
    input_case *c = &w->seen;
    int64_t room = etch__alias_room(w->nvalues, ninputs);
    if (!etch__grow_lines(&c->alias, &c->alias_cap, room, sizeof *c->alias)) return false;
    etch__alias_fill(w->c.value, inputs, ninputs, c->alias, w->nvalues);
    return true;
}

bool etch__walk_key(trace_walk *w, const int32_t *inputs, int ninputs) {
    int64_t need = (int64_t)ninputs * 2 * ETCH_MAX_DIMS + w->seen.nints;
    if (!etch__grow_lines(&w->seen.key, &w->seen.key_cap, need + 1, sizeof *w->seen.key))
        return false;
    w->seen.nkey = 0;
    for (int i = 0; i < ninputs; i++) put_key(w, w->c.value[inputs[i]]);
    if (w->seen.nints)
        memcpy(w->seen.key + w->seen.nkey, w->seen.ints,
               (size_t)w->seen.nints * sizeof *w->seen.key);
    w->seen.nkey += w->seen.nints;
    return true;
}

bool etch__walk_metas(trace_walk *w) {
    if (!etch__grow(&w->seen.metas, &w->seen.metas_cap, w->nvalues + 1, sizeof *w->seen.metas))
        return false;
    for (int64_t v = 0; v < w->nvalues; v++) etch__guard_make(w->c.value[v], &w->seen.metas[v]);
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
