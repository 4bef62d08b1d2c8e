/* Recording: an operator runs (or, on shapes alone, is deferred) and is noted as a node. */
#include "tracer/run/run.h"

static bool room_for_node(trace_walk *w, const op_call *call) {
    return etch__grow(&w->path, &w->path_cap, w->npath + 1, sizeof *w->path) &&
           etch__grow_lines(&w->c.value, &w->values_cap, w->nvalues + call->nin + 1,
                            sizeof *w->c.value) &&
           etch__grow_lines(&w->c.scalar, &w->scalars_cap, w->nscalars + call->nsc,
                            sizeof *w->c.scalar) &&
           etch__grow_lines(&w->seen.ints, &w->seen.ints_cap, w->seen.nints + call->nat + 1,
                            sizeof *w->seen.ints) &&
           etch__grow_lines(&w->rec.want, &w->rec.want_cap, w->nvalues + call->nin + 1, 1) &&
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
            etch__capture_make(&n->captures[n->ncaptures++], call->in[i], v, i);
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
    n->ints = (int32_t)w->seen.nints;
    if (n->dynamic) {
        etch__walk_put_ints(w, n, call, n->meta.offset);
        w->seen.nints += call->nat + 1;
    }
    n->nints = (int32_t)w->seen.nints;
    n->nvalues = (int32_t)w->nvalues, n->nscalars = (int32_t)w->nscalars;
    n->nwrites = (w->npath ? w->path[w->npath - 1]->nwrites : 0) + n->c.inplace;
    if (w->mode == WALK_SHAPES && !n->c.inplace) h->value = n->c.out;
}

/* The result without its data: what fullgraph records with. */
static etch_tensor *shape_result(trace_walk *w, const op_call *call) {
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
    if (etch__ops[call->op].kind == KIND_INPLACE) return call->in[0];
    etch_tensor *h = etch__deferred_handle(w, &meta, -1);
    if (!h) return NULL;
    h->view = etch__ops[call->op].kind == KIND_VIEW;
    if (etch__scope_push(h)) return h;
    etch__tensor_destroy(h);
    return NULL;
}

/* The node is made first, so that nothing can fail once the operator has run. */
etch_tensor *etch__walk_record(trace_walk *w, const op_call *call) {
    if (!room_for_node(w, call)) return NULL;
    trace_node *n = etch__node_new(call, etch__state_now());
    if (!n) return NULL;
    n->dynamic = w->rec.dynamic;
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

/* ---- from matching to recording ---- */

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
    etch__walk_changed(w); /* the attribute words from here on become those of the recording */
    w->nvalues = last->nvalues;
    w->nscalars = last->nscalars;
    w->seen.nints = last->nints;
    w->rec.dynamic = last->dynamic || w->tree->guard.dynamic;
    w->rec.dynamic_entry = w->tree->guard.dynamic;
    if (!etch__grow_lines(&w->rec.want, &w->rec.want_cap, w->nvalues + 1, 1) ||
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
