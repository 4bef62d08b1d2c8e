/* Late values that depend on memory which their own segment writes.
 *
 * At a break such values are produced if they are alive. In a loop that writes its state and opens
 * no scope, every temporary is: then it is cheaper to copy the inputs that the segment writes
 * before it runs, and to leave them deferred (the leaf is *lean*). Used after all, they are
 * computed once more from the inputs and these copies, writes included, in handles of their own
 * but for those that somebody waits for. */
#include "core/tensor/device.h"
#include "guards/alias.h"
#include "tracer/run/run.h"

/* ---- copies ---- */

static kept_input *find_kept(const trace_walk *w, const etch_storage *s) {
    for (int i = 0; i < w->nkept_inputs; i++)
        if (w->kept_inputs[i].real == s) return &w->kept_inputs[i];
    return NULL;
}

static bool copy_all(etch_storage *to, etch_storage *from) {
    if (!from->bytes) return true;
    if (from->device)
        return etch__device_kind(from->device)->copy(to, 0, from, 0, from->bytes) == ETCH_OK;
    memcpy(to->data, from->data, from->bytes);
    return true;
}

static bool keep_input(trace_walk *w, etch_storage *s) {
    if (!s || find_kept(w, s)) return true;
    if (!etch__grow(&w->kept_inputs, &w->kept_inputs_cap, w->nkept_inputs + 1,
                    sizeof *w->kept_inputs))
        return false;
    etch_storage *copy = etch__storage_new_on(s->device, s->bytes);
    if (!copy || !copy_all(copy, s)) {
        etch__storage_release(copy);
        return false;
    }
    etch__storage_retain(s);
    w->kept_inputs[w->nkept_inputs++] = (kept_input){s, copy};
    return true;
}

/* Whether somebody waits for a value which the code does not produce, and which is gone then. */
static bool has_lost(const trace_walk *w, const trace_leaf *leaf, const segment_code *code) {
    for (int i = 0; i < leaf->nsteps; i++) {
        int32_t v = leaf->steps[i].out;
        if (code->slot[v] == OUT_MISSING && code->tainted[v] && etch__is_live(w->c.value[v]))
            return true;
    }
    return false;
}

bool etch__keep_inputs(trace_walk *w, const trace_leaf *leaf, const segment_code *code) {
    if (!leaf->lean || !has_lost(w, leaf, code)) return true;
    bool ok = true;
    for (int i = 0; ok && i < w->nargs + leaf->nbound; i++) {
        int32_t v = i < w->nargs ? i : leaf->bound[i - w->nargs];
        if (leaf->written[v]) ok = keep_input(w, w->c.value[v]->storage);
    }
    return ok;
}

bool etch__late_reads(const trace_walk *w, const etch_storage *s) {
    for (int32_t v = 0; w->end.pending && v < w->leaf->nvalues; v++) {
        const etch_tensor *t = w->c.value[v];
        const etch_storage *own = t ? t->storage : NULL;
        if (w->leaf->lean && t && t->owner == w) continue; /* is computed again */
        if (own && (own == s || etch__memory_overlaps(own, s)) && !find_kept(w, own)) return true;
    }
    return false;
}

/* ---- computing ---- */

/* Whose memory the value lies in: of inputs that share a storage, the first one. */
static int32_t memory_of(const trace_walk *w, int32_t v) {
    int32_t base = w->leaf->base[v];
    return w->leaf->writes_inputs ? w->seen.alias[base] : base;
}

/* Per node of the path, whether it is run: what the values that somebody waits for are made of, as
 * they were at the segment's end. Found from the back, by the memory that is needed there. */
static uint8_t *nodes_to_run(const trace_walk *w) {
    const trace_leaf *leaf = w->leaf;
    uint8_t *run_it = etch__calloc((size_t)(leaf->npath + leaf->nvalues) + 1, 1);
    if (!run_it) return NULL;
    uint8_t *needed = run_it + leaf->npath;
    for (int i = 0; i < leaf->nsteps; i++) {
        const etch_tensor *h = w->c.value[leaf->steps[i].out];
        if (h->deferred && etch__is_live(h)) needed[memory_of(w, leaf->steps[i].out)] = 1;
    }
    for (int i = leaf->npath - 1; i >= 0; i--) {
        const trace_node *n = leaf->path[i];
        run_it[i] = needed[memory_of(w, n->c.out)];
        for (int k = 0; run_it[i] && k < n->nin; k++) needed[memory_of(w, n->in[k])] = 1;
    }
    return run_it;
}

/* A handle with the looks of t: over the storage, or (NULL) deferred. */
static etch_tensor *stand_in(trace_walk *w, const etch_tensor *t, etch_storage *s) {
    etch_tensor *h = etch__handle_like(t, s, t->offset);
    if (h) h->owner = w, h->deferred = !s;
    return h;
}

/* What stands for a value: itself, or a handle that is let go. */
static bool put_value(trace_walk *w, etch_tensor **own, int32_t v) {
    etch_tensor *t = w->c.value[v];
    bool result = t->owner == w;
    const kept_input *kept = t->storage ? find_kept(w, t->storage) : NULL;
    if (own[v]) return true;
    if (result && !(t->deferred && etch__is_live(t))) own[v] = stand_in(w, t, NULL);
    else own[v] = kept && !result ? stand_in(w, t, kept->copy) : t;
    return own[v] != NULL;
}

static bool put_values(trace_walk *w, etch_tensor **own, const uint8_t *run_it) {
    bool ok = true;
    for (int64_t i = 0; ok && i < w->npath; i++) {
        const trace_node *n = w->path[i];
        if (!run_it[i]) continue;
        ok = put_value(w, own, n->c.out);
        for (int k = 0; ok && k < n->nin; k++) ok = put_value(w, own, n->in[k]);
    }
    return ok;
}

etch_status etch__evaluate_kept(trace_walk *w) {
    int32_t n = w->leaf->nvalues;
    etch_tensor **real = w->c.value, **own = etch__calloc((size_t)n + 1, sizeof(*own));
    uint8_t *run_it = own ? nodes_to_run(w) : NULL;
    bool ok = run_it && put_values(w, own, run_it);
    if (ok) {
        w->c.value = own;
        etch__evaluate_nodes(w, run_it);
        w->c.value = real;
    }
    for (int32_t v = 0; own && v < n; v++)
        if (own[v] != real[v]) etch_release(own[v]);
    etch__free(own);
    etch__free(run_it);
    if (unlikely(w->shadow != NULL)) etch__check_after(w, NULL);
    return ok ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
}
