/* `replay = true`: once the trace of a body is compiled, calls whose guards hold do not run the
 * body.
 *
 * What the body did is kept as a `replay`: arguments as they looked and which of them were one
 * handle, captured tensors, scalars, which values were returned. A replayed call walks straight to
 * the end of the trace with these (etch__replay_run stands in for the body), so that everything
 * after it, a failed check or a write included, goes the way of every other call. Only one segment
 * from entry to return can be replayed: what a break hands to the user's code is not in the trace.
 */
#include "tracer/tell/event.h"
#include "tracer/run/run.h"
#include "core/base/start.h"

/* A random operator takes fresh numbers each time. */
typedef struct random_draw {
    int32_t scalar; /* of (seed, offset) */
    int64_t numel;
} random_draw;

struct replay {
    struct replay *next;
    trace_leaf *leaf;
    uint64_t state; /* of the thread when the call began */
    int nin, nout, nbound, nrandom, nscalars, nints;
    tensor_meta *guards; /* of the arguments: sizes too, since the body may have looked at them */
    tensor_meta *metas;  /* of the values, where sizes are run-time; else NULL */
    etch_tensor **bound; /* captured tensors, a count of each, in the order of the path */
    etch_scalar *scalars;
    random_draw *random;
    int64_t *ints;
    int32_t *same; /* per argument: the first one with the same handle */
    int32_t *out;  /* values */
};

enum { MAX_REPLAYS = 64 };

static void free_replays(replay *p) {
    while (p) {
        replay *next = p->next;
        for (int i = 0; i < p->nbound; i++) etch_release(p->bound[i]);
        etch__free(p);
        p = next;
    }
}

void etch__start_replays(void) { etch__trace_parts.free_replays = free_replays; }

/* ---- finding ---- */

static int32_t first_same(etch_tensor *const *in, int i) {
    int32_t k = 0;
    while (in[k] != in[i]) k++;
    return k;
}

/* Which slots hold one handle is part of the guard (rule 10 of docs/architecture.md), captured ones
 * included. */
static bool same_handles(const replay *p, etch_tensor *const *in) {
    for (int i = 0; i < p->nin; i++) {
        if (first_same(in, i) != p->same[i]) return false;
        for (int k = 0; k < p->nbound; k++)
            if (in[i] == p->bound[k]) return false;
    }
    return true;
}

static bool holds(const replay *p, const call_io *io) {
    if (p->nin != io->nin || p->nout != io->nout || p->state != etch__state_now()) return false;
    for (int i = 0; i < io->nin; i++)
        if (!etch__guard_holds(&p->guards[i], io->in[i])) return false;
    return same_handles(p, io->in);
}

/* Whether the body would note operators for gradients. */
static bool would_note(const replay *p, const call_io *io) {
    bool layered = false;
    for (int i = 0; i < io->nin; i++) layered |= io->in[i]->layers != 0;
    for (int k = 0; k < p->nbound; k++) layered |= p->bound[k]->layers != 0;
    return layered && (etch__tls.ntangents || etch__tls.nlevels ||
                       !(etch__tls.state & (STATE_NO_GRAD | STATE_INFERENCE)));
}

const replay *etch__replay_find(const generation *g, const call_io *io) {
    const replay *p = atomic_load_explicit(&g->replays, memory_order_acquire);
    while (p && !holds(p, io)) p = p->next;
    bool apart = p && unlikely(atomic_load_explicit(&etch__layered, memory_order_relaxed)) &&
                 would_note(p, io);
    return apart ? NULL : p;
}

trace_tree *etch__replay_tree(const replay *p) { return p->leaf->tree; }

/* ---- noting what a body did ---- */

typedef struct value_counts {
    int64_t nvalues, nscalars, nints;
} value_counts;

static value_counts counts_of(const trace_walk *w) {
    const trace_node *last = (const trace_node *)w->c.last;
    if (w->mode == WALK_MATCH) return (value_counts){last->nvalues, last->nscalars, last->nints};
    return (value_counts){w->nvalues, w->nscalars, w->seen.nints};
}

static void refuse(trace_run *r, const char *why, const void *site) {
    if (atomic_exchange(&r->gen->unreplayable, true)) return;
    const char *line = site ? etch__site_line(site) : "";
    char detail[256];
    snprintf(detail, sizeof detail, "%s%s%s", why, line[0] ? " at " : "", line);
    etch__event(r->f, EVENT_REPLAY, &(trace_event){REASON_EAGER_REPLAY, .detail = detail});
}

static bool owned_by_call(const trace_run *r, const etch_tensor *t) {
    const etch_thread *thread = &etch__tls;
    for (int64_t i = thread->scope_start[r->scope]; i < thread->nitems; i++)
        if (thread->items[i] == t) return true;
    return false;
}

static bool is_captured(const trace_walk *w, int32_t v) {
    for (int64_t i = 0; i < w->npath; i++)
        for (int k = 0; k < w->path[i]->ncaptures; k++)
            if (w->path[i]->captures[k].value == v) return true;
    return false;
}

/* The value that a result is, -1 where only the body can make it. */
static int32_t result_value(const trace_run *r, int64_t nvalues, const etch_tensor *t) {
    const trace_walk *w = r->walk;
    for (int64_t v = nvalues - 1; v >= 0; v--)
        if (w->c.value[v] == t)
            return is_captured(w, (int32_t)v) && owned_by_call(r, t) ? -1 : (int32_t)v;
    return -1;
}

static void count_parts(const trace_walk *w, replay *p) {
    for (int64_t i = 0; i < w->npath; i++) {
        p->nbound += w->path[i]->ncaptures;
        p->nrandom += (etch__ops[w->path[i]->op].flags & OPF_RANDOM) != 0;
    }
}

static bool is_dynamic(const trace_walk *w) {
    if (w->mode != WALK_MATCH) return w->rec.dynamic;
    return w->tree->guard.dynamic || ((const trace_node *)w->c.last)->dynamic;
}

/* One block: the widest items first. */
static replay *alloc_replay(const trace_walk *w, int nin, int nout) {
    value_counts s = counts_of(w);
    replay head = {.nin = nin, .nout = nout};
    count_parts(w, &head);
    int64_t nmetas = is_dynamic(w) ? s.nvalues : 0;
    size_t bytes = sizeof head + (size_t)(nin + nmetas) * sizeof(tensor_meta) +
                   (size_t)head.nbound * sizeof(etch_tensor *) +
                   (size_t)s.nscalars * sizeof(etch_scalar) +
                   (size_t)head.nrandom * sizeof(random_draw) + (size_t)s.nints * sizeof(int64_t) +
                   (size_t)(nin + nout) * sizeof(int32_t);
    replay *p = etch__calloc(1, bytes);
    if (!p) return NULL;
    *p = head;
    p->nscalars = (int)s.nscalars, p->nints = (int)s.nints;
    p->guards = (tensor_meta *)(p + 1);
    p->metas = nmetas ? p->guards + nin : NULL;
    p->bound = (etch_tensor **)(p->guards + nin + nmetas);
    p->scalars = (etch_scalar *)(p->bound + p->nbound);
    p->random = (random_draw *)(p->scalars + s.nscalars);
    p->ints = (int64_t *)(p->random + p->nrandom);
    p->same = (int32_t *)(p->ints + s.nints);
    p->out = p->same + nin;
    return p;
}

static void fill_from_path(const trace_walk *w, replay *p) {
    int nbound = 0, nrandom = 0;
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        for (int k = 0; k < n->ncaptures; k++)
            p->bound[nbound++] = etch_retain(w->c.value[n->captures[k].value]);
        if (etch__ops[n->op].flags & OPF_RANDOM)
            p->random[nrandom++] = (random_draw){n->c.sc + n->nsc - 2, w->c.value[n->c.out]->numel};
    }
}

static void fill(const trace_run *r, replay *p) {
    const trace_walk *w = r->walk;
    for (int i = 0; i < p->nin; i++) {
        etch__guard_make(w->c.value[i], &p->guards[i]);
        p->same[i] = first_same(w->c.value, i);
    }
    for (int64_t v = 0; p->metas && v < counts_of(w).nvalues; v++)
        etch__guard_make(w->c.value[v], &p->metas[v]);
    fill_from_path(w, p);
    if (p->nscalars) memcpy(p->scalars, w->c.scalar, (size_t)p->nscalars * sizeof *p->scalars);
    if (p->nints) memcpy(p->ints, w->seen.ints, (size_t)p->nints * sizeof *p->ints);
}

/* Why the walk cannot be replayed, or NULL. */
static const char *obstacle(const trace_run *r) {
    const trace_walk *w = r->walk;
    if (r->replay.broke) return etch__reasons[r->replay.broke - 1].text;
    if (r->noted != etch__tls.noted || r->backwards != etch__tls.backwards)
        return "it records or computes gradients";
    return w && !w->entry ? "it has more than one segment" : NULL;
}

/* Where the tree does not guard an argument, whether the body meant that or a captured tensor that
 * is the same now cannot be told. */
static bool captures_argument(const trace_walk *w) {
    for (int64_t i = 0; i < w->npath; i++)
        for (int k = 0; k < w->path[i]->ncaptures; k++)
            for (int a = 0; a < w->nargs; a++)
                if (etch__walk_hides(w, a) &&
                    w->c.value[a] == w->c.value[w->path[i]->captures[k].value])
                    return true;
    return false;
}

static bool full(const generation *g) {
    int n = 0;
    for (const replay *p = g->replays; p; p = p->next) n++;
    return n >= MAX_REPLAYS;
}

/* A failed allocation only means that the next call runs the body again. So does a failure that the
 * body has met and gone past: what it did then need not be what its arguments make it do, since
 * memory may have been short. */
void etch__replay_note(trace_run *r, const call_io *io) {
    trace_walk *w = r->walk;
    const char *why = obstacle(r);
    if (why) refuse(r, why, r->replay.broke_site);
    if (why || !w || r->eager || r->errors != etch__tls.errors || full(r->gen)) return;
    saved_error error;
    etch__error_save(&error);
    bool ok = w->mode != WALK_MATCH || etch__walk_path(w);
    bool noted = ok && w->npath && !captures_argument(w);
    replay *p = noted ? alloc_replay(w, w->nargs, io->nout) : NULL;
    for (int i = 0; p && i < io->nout; i++) {
        p->out[i] = result_value(r, counts_of(w).nvalues, io->out[i]);
        if (p->out[i] >= 0) continue;
        refuse(r, "it returns a tensor that none of its operators made", NULL);
        etch__free(p);
        p = NULL;
    }
    if (p) fill(r, p);
    if (p) p->state = r->replay.state;
    r->replay.made = p;
    etch__error_restore(&error);
}

/* The call has ended: what it did can be replayed if its trace has code. */
void etch__replay_publish(trace_run *r, bool ended_well) {
    replay *p = r->replay.made;
    generation *g = r->gen;
    r->replay.made = NULL;
    if (!p) return;
    pthread_mutex_lock(&r->f->lock);
    p->leaf = r->replay.leaf;
    bool fits = ended_well && p->leaf && p->leaf->codes && r->f->gen == g &&
                p->nbound == p->leaf->nbound && p->nscalars == p->leaf->nscalars;
    if (fits) {
        p->next = g->replays;
        atomic_store_explicit(&g->replays, p, memory_order_release);
    }
    pthread_mutex_unlock(&r->f->lock);
    if (!fits) free_replays(p);
}

/* ---- replaying ---- */

static bool make_handles(trace_walk *w, const trace_leaf *leaf) {
    for (int i = 0; i < leaf->npath; i++)
        if (!leaf->path[i]->c.inplace && !etch__walk_handle(w, leaf->path[i])) return false;
    return true;
}

static void bind_values(trace_walk *w, const replay *p) {
    const trace_leaf *leaf = p->leaf;
    if (p->metas) etch__walk_changed(w);
    for (int k = 0; k < p->nbound; k++) w->c.value[leaf->bound[k]] = etch_retain(p->bound[k]);
    for (int i = 0; i < leaf->nsteps; i++) {
        etch_tensor *h = w->c.handle[leaf->steps[i].id];
        w->c.value[leaf->steps[i].out] = h;
        if (!p->metas) continue;
        etch__apply_meta(h, &p->metas[leaf->steps[i].out]);
        h->sizes = 0;
    }
    if (p->nscalars) memcpy(w->c.scalar, p->scalars, (size_t)p->nscalars * sizeof *p->scalars);
    if (p->nints) memcpy(w->seen.ints, p->ints, (size_t)p->nints * sizeof *p->ints);
    w->c.last = &leaf->end->parent->c;
    w->c.next = &leaf->end->c;
}

static void draw_random(trace_walk *w, const replay *p) {
    for (int i = 0; i < p->nrandom; i++) {
        uint64_t seed, offset;
        etch__random_reserve(p->random[i].numel, &seed, &offset);
        w->c.scalar[p->random[i].scalar] = etch_scalar_int((int64_t)seed);
        w->c.scalar[p->random[i].scalar + 1] = etch_scalar_int((int64_t)offset);
    }
}

/* A result of the trace belongs to the call's scope, once; what came in stays where it is. */
static bool give_result(trace_walk *w, etch_tensor *h) {
    if (h->owner != w || !h->deferred) return true;
    if (atomic_load_explicit(&h->refs, memory_order_relaxed) > 1) return true;
    if (!etch__scope_push(h)) return false;
    etch_retain(h);
    return true;
}

etch_status etch__replay_run(trace_run *r, const replay *p, const call_io *io) {
    trace_walk *w = r->walk;
    if (!make_handles(w, p->leaf)) return ETCH_ERR_OUT_OF_MEMORY;
    bind_values(w, p);
    draw_random(w, p);
    for (int i = 0; i < io->nout; i++) {
        io->out[i] = w->c.value[p->out[i]];
        if (!give_result(w, io->out[i])) return etch__tls.status;
    }
    return ETCH_OK;
}

/* ---- ETCH_CHECK: what the body does against what would be replayed ---- */

static bool same_step(const replay *p, const trace_walk *w, const trace_node *a,
                      const trace_node *b) {
    const int64_t *at = etch__node_attributes(p->ints, a);
    const int64_t *bt = etch__node_attributes(w->seen.ints, b);
    return a->op == b->op && a->nin == b->nin && a->nsc == b->nsc && a->nat == b->nat &&
           a->c.state == b->c.state && !memcmp(a->c.kind, b->c.kind, sizeof a->c.kind) &&
           !memcmp(a->in, b->in, a->nin * sizeof *a->in) && !memcmp(at, bt, a->nat * sizeof *at);
}

static bool same_step_scalars(trace_run *r, const replay *p, const trace_node *a,
                              const trace_node *b) {
    int n = etch__ops[a->op].flags & OPF_RANDOM ? a->nsc - 2 : a->nsc;
    for (int i = 0; i < n; i++) {
        etch_scalar x = p->scalars[a->c.sc + i], y = r->walk->c.scalar[b->c.sc + i];
        if (x.i == y.i) continue;
        bool real = x.kind == ETCH_SCALAR_REAL;
        etch__check_failed(r, b->site,
                           "replay differs from the body: %s: scalar %d: replay has "
                           "%.17g, the body %.17g",
                           etch__ops[a->op].name, i, real ? x.d : (double)x.i,
                           real ? y.d : (double)y.i);
        return false;
    }
    return true;
}

/* Another tensor is no difference while it has the same values and nothing tells them apart. */
static bool same_bound(trace_run *r, const etch_tensor *recorded, const etch_tensor *now,
                       const trace_node *n, bool identity) {
    if (recorded == now) return true;
    bool same = recorded->dtype == now->dtype && !identity && recorded->storage && now->storage &&
                etch__same_values(recorded, now);
    if (!same)
        etch__check_failed(r, n->site,
                           "replay differs from the body: %s: replay has the captured "
                           "tensor of the recorded call, the body another one with other values",
                           etch__ops[n->op].name);
    return same;
}

/* A captured tensor that is written, viewed or returned is this one and no other. */
static bool identity_matters(const replay *p, int32_t v) {
    const trace_leaf *leaf = p->leaf;
    for (int i = 0; i < p->nout; i++)
        if (leaf->base[p->out[i]] == v) return true;
    return leaf->written[v];
}

static bool same_step_captures(trace_run *r, const replay *p, const trace_node *a,
                               const trace_node *b, int *bound) {
    if (a->ncaptures != b->ncaptures) return false;
    for (int k = 0; k < a->ncaptures; k++, *bound += 1)
        if (!same_bound(r, p->bound[*bound], r->walk->c.value[b->captures[k].value], b,
                        identity_matters(p, a->captures[k].value)))
            return false;
    return true;
}

static bool same_path(trace_run *r, const replay *p) {
    const trace_walk *w = r->walk;
    int bound = 0;
    for (int64_t i = 0; i < p->leaf->npath || i < w->npath; i++) {
        const trace_node *a = i < p->leaf->npath ? p->leaf->path[i] : NULL;
        const trace_node *b = i < w->npath ? w->path[i] : NULL;
        if (!a || !b || !same_step(p, w, a, b)) {
            etch__check_failed(
                r, b ? b->site : NULL,
                "replay differs from the body: operator %lld: "
                "replay has %s (%s), the body %s%s",
                (long long)i, a ? etch__ops[a->op].name : "the return",
                a ? etch__line_or_unknown(a->site) : "?", b ? etch__ops[b->op].name : "the return",
                a && b && a->op == b->op ? " with other operands, attributes or state" : "");
            return false;
        }
        if (!same_step_scalars(r, p, a, b) || !same_step_captures(r, p, a, b, &bound)) return false;
    }
    return true;
}

void etch__replay_compare(trace_run *r, const replay *p, etch_tensor *const *out) {
    trace_walk *w = r->walk;
    const char *why = obstacle(r);
    if (why || !w)
        etch__check_failed(r, r->replay.broke_site,
                           "replay differs from the body, which now breaks the "
                           "graph: %s",
                           why ? why : "it runs eagerly");
    if (why || !w || (w->mode == WALK_MATCH && !etch__walk_path(w)) || !same_path(r, p)) return;
    for (int i = 0; i < p->nout; i++)
        if (w->c.value[p->out[i]] != out[i]) {
            etch__check_failed(r, NULL, "replay differs from the body: result %d is another tensor",
                               i);
            return;
        }
}
