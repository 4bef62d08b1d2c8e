/* Running what was deferred, node by node through the eager kernels: in an empty frame, each node
 * under its own recorded state word. */
#include "core/tensor/device.h"
#include "guards/alias.h"
#include "tracer/run/run.h"

/* ---- writes that failed ----
 *
 * A write that fails leaves the memory as it was. Whatever lies over it is, from there on, not what
 * the program computes: using it is a failure as well, and the call fails. Results of the segment
 * are failed for good; tensors from outside can be used again when the call has ended. */

static bool is_spoilt_in(const trace_run *r, const etch_storage *s) {
    for (int64_t i = 0; i < r->nspoilt; i++)
        if (r->spoilt[i] == s || etch__memory_overlaps(r->spoilt[i], s)) return true;
    return false;
}

bool etch__find_spoilt(const etch_tensor *t) {
    for (const trace_run *r = etch__tls.runs; r; r = r->below)
        if (unlikely(r->nspoilt) && t->storage && is_spoilt_in(r, t->storage)) return true;
    return false;
}

etch_status etch__spoilt_error(const char *user, const void *site) {
    if (etch__tls.status != ETCH_OK) {
        etch__tls.errors++;
        return etch__tls.status;
    }
    return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                          "%s: the tensor was to be written by an operator that failed before",
                          user);
}

/* Without memory to note it nothing more is computed. */
static void spoil(trace_run *r, etch_storage *s) {
    if (is_spoilt_in(r, s)) return;
    if (!etch__grow(&r->spoilt, &r->spoilt_cap, r->nspoilt + 1, sizeof *r->spoilt)) {
        r->poisoned = true;
        return;
    }
    etch__storage_retain(s);
    r->spoilt[r->nspoilt++] = s;
    etch__tls.marked++;
}

/* ---- node by node ---- */

static void fail_handle(etch_tensor *h) {
    h->failed = 1;
    h->deferred = 0;
}

static bool gather(trace_walk *w, const trace_node *n) {
    if (!etch__grow_lines(&w->room.inputs, &w->room.inputs_cap, n->nin + 1, sizeof *w->room.inputs))
        return false;
    bool ready = true;
    for (int i = 0; i < n->nin; i++) {
        w->room.inputs[i] = w->c.value[n->in[i]];
        ready &= !w->room.inputs[i]->failed && !etch__is_spoilt(w->room.inputs[i]);
    }
    return ready;
}

static void evaluate_view(trace_walk *w, const trace_node *n, etch_tensor *h) {
    h->storage = w->room.inputs[0]->storage;
    etch__storage_retain(h->storage);
    h->offset = w->room.inputs[0]->offset + etch__view_offset(w->seen.ints, n);
    h->deferred = 0;
}

static bool evaluate_kernel(const op_call *call, etch_tensor *h) {
    size_t bytes = (size_t)h->numel * etch_dtype_size(h->dtype);
    h->storage = etch__storage_new_on(h->device, bytes);
    h->deferred = !h->storage; /* kernels of users may call operators on it */
    if (h->storage && etch__run_kernel(call, h) == ETCH_OK) return true;
    etch__storage_release(h->storage);
    h->storage = NULL;
    return false;
}

/* The error of what was called, where it was called. An operand that failed before has its own. */
static void blame_node(const trace_node *n, bool ready) {
    const op_info *op = &etch__ops[n->part_of ? n->part_of - 1 : n->op];
    if (ready) etch__error_name(op->name, n->site, n->part_of != 0);
    else if (etch__tls.status != ETCH_OK) etch__tls.errors++;
    else
        etch__error_at(n->site, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: the computation of an operand failed before", op->name);
    etch__tls.failures++;
    if (n->c.inplace) etch__tls.lost = etch__tls.errors;
    etch__error_of_before();
}

/* A write that fails leaves its memory as it is, and fails the call. */
static void fail_node(trace_walk *w, const trace_node *n, etch_tensor *h, bool ready) {
    blame_node(n, ready);
    if (!n->c.inplace) {
        fail_handle(h);
        return;
    }
    w->run->write_failed = true;
    if (h->storage) spoil(w->run, h->storage);
}

/* What lies over memory that was to be written, also what was there before the write. */
static void fail_spoilt(trace_walk *w) {
    if (likely(!w->run->nspoilt)) return;
    for (int64_t i = 0; i < w->npath; i++) {
        etch_tensor *h = w->c.value[w->path[i]->c.out];
        if (!w->path[i]->c.inplace && h && !h->deferred && etch__is_spoilt(h)) fail_handle(h);
    }
}

static bool evaluate_write(const op_call *call, etch_tensor *h) {
    etch__before_write(h->storage);
    if (etch__run_kernel(call, h) != ETCH_OK) return false;
    etch__note_write(h->storage, call->op, call->site);
    return true;
}

static void evaluate_node(trace_walk *w, const trace_node *n) {
    etch_tensor *h = w->c.value[n->c.out];
    if (!gather(w, n)) {
        fail_node(w, n, h, false);
        return;
    }
    op_call call = etch__node_call(w->seen.ints, n);
    call.in = w->room.inputs, call.sc = w->c.scalar + n->c.sc;
    etch__state_enter(n->c.state);
    THREAD_COUNT(operators, 1);
    if (etch__ops[n->op].kind == KIND_VIEW) evaluate_view(w, n, h);
    else if (!(n->c.inplace ? evaluate_write(&call, h) : evaluate_kernel(&call, h)))
        fail_node(w, n, h, true);
}

/* Per node, whether live deferred handles depend on it; found from the back. */
static uint8_t *nodes_for_live(const trace_walk *w) {
    int32_t nvalues = w->path[w->npath - 1]->nvalues;
    uint8_t *run_it = etch__calloc((size_t)(w->npath + nvalues) + 1, 1);
    if (!run_it) return NULL;
    uint8_t *needed = run_it + w->npath;
    for (int64_t i = w->npath - 1; i >= 0; i--) {
        const trace_node *n = w->path[i];
        const etch_tensor *h = w->c.value[n->c.out];
        if (n->c.inplace || !h->deferred) continue;
        run_it[i] = needed[n->c.out] | etch__is_live(h);
        for (int k = 0; run_it[i] && k < n->nin; k++) needed[n->in[k]] = 1;
    }
    return run_it;
}

/* Per value: the last node that is run and uses or makes it. */
static void find_last_uses(const trace_walk *w, const uint8_t *run_it, int32_t *last_use) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        if (run_it && !run_it[i]) continue;
        last_use[n->c.out] = (int32_t)i;
        for (int k = 0; k < n->nin; k++) last_use[n->in[k]] = (int32_t)i;
    }
}

/* A result that only the walk has, behind its last use: it is as if it had never been computed. */
static void drop_dead(trace_walk *w, int32_t v) {
    etch_tensor *h = w->c.value[v];
    if (h->owner != w || h->failed || h->deferred || etch__is_live(h)) return;
    etch__storage_release(h->storage);
    h->storage = NULL;
    h->deferred = 1;
}

/* last_use NULL: there is no memory to know; everything is kept until the walk goes. */
static void evaluate_path(trace_walk *w, const uint8_t *run_it, const int32_t *last_use) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        if (run_it && !run_it[i]) continue;
        evaluate_node(w, n);
        if (!last_use) continue;
        if (last_use[n->c.out] == i) drop_dead(w, n->c.out);
        for (int k = 0; k < n->nin; k++)
            if (last_use[n->in[k]] == i) drop_dead(w, n->in[k]);
    }
}

void etch__evaluate_nodes(trace_walk *w, const uint8_t *run_it) {
    int32_t nvalues = w->path[w->npath - 1]->nvalues;
    int32_t *last_use = etch__quiet_malloc((size_t)nvalues * sizeof *last_use);
    if (last_use) find_last_uses(w, run_it, last_use);
    empty_frame frame = etch__push_frame();
    evaluate_path(w, run_it, last_use);
    fail_spoilt(w);
    frame.fp_changed = true;
    etch__pop_frame(&frame);
    etch__free(last_use);
}

etch_status etch__evaluate(trace_walk *w, bool live_only) {
    if (!w->npath) return ETCH_OK;
    uint8_t *run_it = live_only ? nodes_for_live(w) : NULL;
    if (live_only && !run_it) return ETCH_ERR_OUT_OF_MEMORY;
    if (unlikely(w->shadow != NULL) && !live_only) etch__check_before(w, NULL);
    etch__evaluate_nodes(w, run_it);
    etch__free(run_it);
    if (unlikely(w->shadow != NULL)) etch__check_after(w, NULL);
    return ETCH_OK;
}
