/* Calls inside a run that are not simply recorded: off the record, on values that must be there
 * first, on shapes alone. */
#include "tracer/run/run.h"

etch_status etch__call_off(trace_run *r, etch_function *f, const call_io *io) {
    etch_status status = etch__break_graph(r, REASON_BREAK_DISABLED, io->site, NULL, f->name);
    if (status != ETCH_OK) return status;
    r->disabled++;
    status = etch__call_in_scope(f, io);
    r->disabled--;
    return status;
}

/* What earlier segments have left deferred of the operands. */
static bool produce_operands(trace_run *r, const call_io *io) {
    for (int i = 0; i < io->nin; i++) {
        etch_tensor *t = io->in[i];
        if (!t->deferred || t->owner == r->walk) continue;
        trace_walk *owner = etch__owner_in(r, t, NULL);
        if (!owner) return false;
        etch__late_use(r, owner, t);
        if (!etch__handle_ok(t, "etch_call", "an argument", NULL)) return false;
    }
    return true;
}

bool etch__stop_matching(trace_run *r, const call_io *io) {
    trace_walk *w = r->walk;
    if (!produce_operands(r, io)) return false;
    if (!w || w->mode != WALK_MATCH) return true;
    if (!etch__may_compile()) etch__obey_stance(r, NULL);
    if (r->poisoned) return etch__poisoned(r, NULL), false;
    if (r->eager_by_stance || etch__root_limited(r, w->tree)) {
        if (!etch__go_on_eagerly(r, w)) return false;
        etch__walk_recycle(w);
        return true;
    }
    STOP_TRACING;
    return etch__walk_to_recording(w, r->f->options.fullgraph ? WALK_SHAPES : WALK_RECORD);
}

etch_status etch__learn_shapes(trace_run *r, etch_function *f, const call_io *io,
                               tensor_meta *meta) {
    trace_walk *outer = r->walk, *w = etch__walk_take(r, NULL);
    if (!w) return ETCH_ERR_OUT_OF_MEMORY;
    w->mode = WALK_SHAPES;
    r->walk = w;
    etch_tensor *out = NULL;
    call_io own = {.in = io->in, .nin = io->nin, .out = &out, .nout = 1};
    int64_t scope = etch_scope_begin();
    etch_status status = scope < 0 ? etch__tls.status : etch__call_in_scope(f, &own);
    if (status == ETCH_OK) etch__guard_make(out, meta);
    etch_scope_end(scope);
    etch__walk_fail(w);
    etch__walk_recycle(w);
    r->walk = outer;
    return status;
}
