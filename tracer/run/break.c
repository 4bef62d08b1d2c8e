/* Graph breaks: what ends a segment from inside the body, where a deferred tensor lies, and memory
 * to which the user holds a pointer. */
#include "core/dispatch/mode.h"
#include "core/base/profile.h"
#include "tracer/tell/report.h"
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

/* ---- breaks ---- */

static etch_status refuse_break(trace_run *r, reason_id why, const void *site, const char *text) {
    const reason_info *reason = &etch__reasons[why];
    r->poisoned = true;
    return etch__error_at(site, ETCH_ERR_GRAPH_BREAK,
                          "%s: fullgraph = true, but the graph breaks here: %s: %s%s%s; hint: %s",
                          r->f->name, reason->name, reason->text, text ? ": " : "",
                          text ? text : "", reason->hint);
}

/* The error that poisoned the run is the reason, while it is there. */
etch_status etch__poisoned(const trace_run *r, const void *site) {
    if (etch__tls.status != ETCH_OK) {
        etch__tls.errors++;
        return etch__tls.status;
    }
    return etch__error_at(site, r->f->options.fullgraph ? ETCH_ERR_GRAPH_BREAK : ETCH_ERR_USER,
                          "%s: the call has failed before, and computes nothing any more",
                          r->f->name);
}

/* A break ends the segment; t is what it reads. Between segments there is nothing to break. */
static etch_status break_graph(trace_run *r, reason_id why, const void *site, const etch_tensor *t,
                               const char *text) {
    if (r->f->options.fullgraph && !r->by_stance) return refuse_break(r, why, site, text);
    if (!r->broke) r->broke = why + 1, r->broke_site = site;
    bool matched = r->walk && r->walk->mode == WALK_MATCH;
    if (r->walk) {
        TRACE_COUNT(r->f, graph_breaks, 1);
        etch__profile_mark(ETCH_PROFILE_BREAK, r->f->name, etch__reasons[why].name);
        if (etch__report_on()) etch__report_event(r->f, REPORT_BREAK, why, site, text);
        if (!matched) etch__log_break(r, why, site, text);
    }
    etch__end_segment(r, why, site, t);
    r->eager = false;
    return r->poisoned ? etch__poisoned(r, site) : ETCH_OK;
}

etch_status etch__break_graph(trace_run *r, reason_id why, const void *site, const etch_tensor *t,
                              const char *text) {
    attempt a;
    etch__attempt(&a);
    bool recorded = r->walk && r->walk->mode != WALK_MATCH; /* and so told of, with its place */
    if (recorded) site = etch__user_site(site, NULL);
    etch_status status = break_graph(r, why, site, t, text);
    if (status == ETCH_OK) etch__succeeded(&a);
    return status;
}

/* The walk of this run that has to produce t; NULL with the error set if t is another thread's.
 * What belongs to an outer run is produced at once. */
trace_walk *etch__owner_in(trace_run *r, const etch_tensor *t, const void *site) {
    trace_walk *w = t->owner;
    if (w && w->run == r) return w;
    for (trace_run *o = r->outer; w && o; o = o->outer)
        if (w->run == o) {
            etch__late_use(o, w, t);
            return w;
        }
    etch__error_at(
        site, ETCH_ERR_DEFERRED_ELSEWHERE,
        "the tensor is a deferred tensor of a function that runs on another thread; call "
        "etch_flush there first");
    return NULL;
}

static etch_status trace_read(const etch_tensor *t, reason_id why, const void *site) {
    trace_run *r = etch__current_run();
    if (!r && !t) {
        etch__produce_all(site);
        return ETCH_OK;
    }
    if (!r)
        return etch__error_at(
            site, etch__tls.in_flush ? ETCH_ERR_DEFERRED_IN_FLUSH : ETCH_ERR_DEFERRED_ELSEWHERE,
            "the tensor is a deferred tensor of a function that is running elsewhere");
    if (t && t->deferred && !etch__owner_in(r, t, site)) return ETCH_ERR_DEFERRED_ELSEWHERE;
    etch_status status = etch__break_graph(r, why, site, t, NULL);
    if (status != ETCH_OK) return status;
    if (why == REASON_BREAK_FLUSH && !t) etch__produce_all(site);
    if (t && t->deferred) etch__late_use(r, t->owner, t);
    if (t && t->deferred)
        return etch__error_at(site, ETCH_ERR_INTERNAL, "a deferred tensor was not produced");
    if (t && unlikely(etch__is_spoilt(t))) return etch__spoilt_error(etch__reasons[why].name, site);
    return ETCH_OK;
}

/* Who reads a tensor is told whether that is there; who reads none, of all that has failed. */
etch_status etch__trace_read(const etch_tensor *t, reason_id why, const void *site) {
    attempt a;
    etch__attempt(&a);
    etch_status status = trace_read(t, why, site);
    if (status != ETCH_OK) return status;
    return etch__succeeded(&a) || t ? ETCH_OK : etch__tls.status;
}

etch_status etch_graph_break(const char *why) {
    trace_run *r = etch__current_run();
    attempt a;
    if (!r) return ETCH_OK;
    etch__attempt(&a);
    const void *site = __builtin_return_address(0);
    etch_status status = etch__break_graph(r, REASON_BREAK_USER, site, NULL, why);
    if (status != ETCH_OK) return status;
    return etch__succeeded(&a) ? ETCH_OK : etch__tls.status;
}

/* ---- where a deferred handle lies ---- */

/* The node whose result a deferred handle stands for. */
static const trace_node *maker_of(const etch_tensor *t) {
    const trace_walk *w = t->owner;
    const trace_node *n = NULL;
    if (w->mode == WALK_MATCH && !w->leaf)
        for (n = (const trace_node *)w->c.last; n->c.out != t->value || n->c.inplace;)
            n = n->parent;
    else
        for (int64_t i = 0; i < (w->leaf ? w->leaf->npath : w->npath); i++) {
            n = w->leaf ? w->leaf->path[i] : w->path[i];
            if (n->c.out == t->value && !n->c.inplace) break;
        }
    return n;
}

/* The handle over whose storage t will lie, along the views to a result or an input; *offset: how
 * many elements further on. */
static const etch_tensor *root_of(const etch_tensor *t, int64_t *offset) {
    *offset = 0;
    while (t->deferred && t->owner) { /* without an owner: a value of a user's graph */
        const trace_walk *w = t->owner;
        const trace_node *n = maker_of(t);
        if (!n || etch__ops[n->op].kind != KIND_VIEW) return t;
        *offset += etch__view_offset(w, n);
        t = w->c.value[n->in[0]];
    }
    *offset += t->offset;
    return t;
}

bool etch__trace_same_storage(const etch_tensor *a, const etch_tensor *b) {
    int64_t offset;
    a = root_of(a, &offset), b = root_of(b, &offset);
    return a == b || (a->storage && a->storage == b->storage);
}

int64_t etch__trace_offset(const etch_tensor *t) {
    int64_t offset;
    root_of(t, &offset);
    return offset;
}

/* ---- exposed memory (rule 8 of docs/architecture.md) ---- */

static exposure *find_exposure(trace_run *r, const etch_storage *s) {
    for (int64_t i = 0; i < r->nexposed; i++)
        if (r->exposed[i].storage == s) return &r->exposed[i];
    return NULL;
}

/* Of this run; others may hold pointers to the same memory. */
void etch__end_exposure(trace_run *r, const etch_storage *s) {
    exposure *e = find_exposure(r, s);
    if (!e) return;
    exposure ended = *e;
    *e = r->exposed[--r->nexposed];
    etch__tls.marked--;
    atomic_fetch_sub(&ended.storage->exposed, ended.counts);
    etch__storage_release(ended.storage);
}

static exposure *add_exposure(trace_run *r, etch_storage *s) {
    if (!etch__grow(&r->exposed, &r->exposed_cap, r->nexposed + 1, sizeof *r->exposed)) return NULL;
    etch__storage_retain(s);
    etch__tls.marked++;
    r->exposed[r->nexposed] = (exposure){s, 0};
    return &r->exposed[r->nexposed++];
}

/* Whoever gets a pointer to write through may write at once. */
etch_status etch__trace_expose(const etch_tensor *t, unsigned counts, const void *site) {
    trace_run *r = etch__current_run();
    etch_storage *s = t->storage;
    (void)site;
    if (s && counts & EXPOSED_WRITERS) etch__before_write(s);
    if (!r || !s) return ETCH_OK;
    if (!counts) {
        etch__end_exposure(r, s);
        return ETCH_OK;
    }
    exposure *e = find_exposure(r, s);
    if (!e && !(e = add_exposure(r, s))) return ETCH_ERR_OUT_OF_MEMORY;
    atomic_fetch_add(&s->exposed, counts & ~e->counts);
    e->counts |= counts;
    return ETCH_OK;
}

unsigned etch__exposed_beneath(const etch_storage *s) {
    unsigned counts = 0;
    for (const trace_run *r = etch__tls.runs; r; r = r->below)
        for (int64_t i = 0; i < r->nexposed; i++)
            if (etch__memory_overlaps(r->exposed[i].storage, s)) counts |= r->exposed[i].counts;
    return counts;
}

/* A view of memory that is exposed for reading may be deferred, and is then written. A copy that is
 * under way is waited for here, so that code need not. */
static bool touches_exposed(const op_call *call) {
    bool writes = etch__ops[call->op].kind == KIND_INPLACE;
    int64_t offset;
    for (int i = 0; i < call->nin; i++) {
        if (unlikely(etch__await_copy(call->in[i]) != ETCH_OK)) return true;
        unsigned bits =
            etch__exposed_bits(writes && i == 0 ? root_of(call->in[0], &offset) : call->in[i]);
        if (bits & EXPOSED_WRITERS || (bits && writes && i == 0)) return true;
    }
    return false;
}

/* Why the call must not be deferred, or END_RETURN. */
reason_id etch__runs_at_once(const op_call *call) {
    if (etch__ops[call->op].flags & OPF_EFFECTS) return REASON_BREAK_EFFECTS;
    if (call->op == OP_TO_DEVICE && call->at[0] != call->in[0]->device) return REASON_BREAK_DEVICE;
    return touches_exposed(call) ? REASON_BREAK_EXPOSED : END_RETURN;
}
