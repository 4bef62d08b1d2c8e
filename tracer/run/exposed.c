/* Memory beneath deferred handles: where they will lie, and to which of it the user holds a
 * pointer. */
#include "guards/alias.h"
#include "core/base/start.h"
#include "tracer/run/run.h"

/* ---- where a deferred handle lies ---- */

/* The handle over whose storage t will lie, along the views to a result or an input; *offset: how
 * many elements further on. */
static const etch_tensor *root_of(const etch_tensor *t, int64_t *offset) {
    *offset = 0;
    while (t->deferred && t->owner) { /* without an owner: a value of a user's graph */
        const trace_walk *w = t->owner;
        const trace_node *n = etch__node_of(t);
        if (!n || etch__ops[n->op].kind != KIND_VIEW) return t;
        *offset += etch__view_offset(w->seen.ints, n);
        t = w->c.value[n->in[0]];
    }
    *offset += t->offset;
    return t;
}

static bool trace_same_storage(const etch_tensor *a, const etch_tensor *b) {
    int64_t offset;
    a = root_of(a, &offset), b = root_of(b, &offset);
    return a == b || (a->storage && a->storage == b->storage);
}

/* How often what a walk has deferred so far writes the memory of root. One that runs its operators
 * at once has deferred none; one that has ended counts where its code has not produced root. */
static unsigned deferred_writes(trace_walk *w, const etch_tensor *root) {
    return w && w->mode != WALK_RECORD ? etch__walk_writes(w, root, trace_same_storage) : 0;
}

/* What was written by the present segments, or is itself deferred still, has that many more writes
 * before it. */
static unsigned trace_version(const etch_tensor *t) {
    int64_t offset;
    const etch_tensor *root = root_of(t, &offset);
    unsigned version = root->storage ? atomic_load(&root->storage->version) : 0;
    for (const trace_run *r = etch__tls.runs; r; r = r->below)
        version += deferred_writes(r->walk, root);
    if (root->deferred && root->owner && root->owner->leaf)
        version += deferred_writes(root->owner, root);
    return version;
}

static int64_t trace_offset(const etch_tensor *t) {
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
static etch_status trace_expose(const etch_tensor *t, unsigned counts, const void *site) {
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

void etch__start_memory(void) {
    etch__trace_hooks.expose = trace_expose;
    etch__trace_hooks.same_storage = trace_same_storage;
    etch__trace_hooks.offset = trace_offset;
    etch__trace_hooks.version = trace_version;
}
