/* One operator call inside a compiled function: along the trace, into a recording, or at once. */
#include "core/mode.h"
#include "core/profile.h"
#include "tracer/run.h"
#include "tracer/trace.h"

/* ---- operators ---- */

/* A tensor that was evaluated late beside another one is used, too. */
static void want_used(run *r, const etch_tensor *t) {
    for (walk *w = r->pending; w; w = w->next)
        if (w == t->owner && w->leaf) etch__want_late(r, w, t);
}

/* Deferred operands of earlier segments are produced; recordings learn what is used of them. */
static bool prepare_operands(run *r, const op_call *call) {
    for (int i = 0; i < call->nin; i++) {
        etch_tensor *t = call->in[i];
        if (t->deferred && t->owner != r->walk) {
            walk *w = etch__owner_in(r, t, call->site);
            if (!w) return false;
            etch__late_use(r, w, t);
            if (!etch__check_handle(t)) return false;
        } else if (unlikely(t->owner && t->owner != r->walk)) {
            want_used(r, t);
        }
        for (walk *w = r->recorded; w; w = w->next) etch__mark_want(w, t);
    }
    return true;
}

/* Operands that were deferred until now may turn out to have failed. */
static bool operands_there(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (!etch__check_handle(call->in[i])) return false;
    return true;
}

static etch_tensor *run_now(run *r, const op_call *call) {
    if (etch__ops[call->op].kind == KIND_INPLACE) etch__late_use_all(r);
    return operands_there(call) ? etch__run_eager(call) : NULL;
}

static etch_tensor *record(run *r, walk *w, const op_call *call) {
    if (w->mode == WALK_RECORD && etch__ops[call->op].kind == KIND_INPLACE) etch__late_use_all(r);
    return operands_there(call) ? etch__walk_record(w, call) : NULL;
}

/* Whether a new path under this root would be one too many. */
bool etch__root_limited(run *r, trace_tree *tree) {
    pthread_mutex_lock(&r->f->lock);
    bool full = etch__at_limit(r, tree);
    pthread_mutex_unlock(&r->f->lock);
    return full;
}

/* Lets operators match along the walk; under modes (which then allow compiled code) they go the
 * long way, so that handlers are found, and where memory is exposed, so that writes to it are. */
void etch__follow(run *r, walk *w) {
    bool alone = etch__tls.layers == 1u << LAYER_TRACER && !r->nexposed;
    if (w->mode != WALK_MATCH || !alone) return;
    for (int i = 0; w->entry && i < w->nargs; i++)
        alone &= !etch__exposed_bits(w->c.value[i]);
    if (alone) etch__tls.cursor = &w->c;
}

/* Captured memory that is exposed: the same. */
static void stop_following(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (etch__exposed_bits(call->in[i])) STOP_TRACING;
}

walk *etch__begin_recording(run *r) {
    walk *w = etch__walk_take(r, NULL);
    if (w && r->f->options.fullgraph) w->mode = WALK_SHAPES;
    if (w) w->dynamic = r->f->options.dynamic == ETCH_DYNAMIC_ON;
    return r->walk = w;
}

/* A recording of this very call with such a first operator is published and compiled when it is
 * entered again. */
static void settle_earlier(run *r, const op_call *call) {
    for (walk *w = r->recorded; w; w = w->next)
        if (!w->published && w->npath && !w->entry &&
            etch__similar_call(w->path[0], call, etch__tls.state))
            etch__settle(r, w);
}

/* The stance forbids to record a new path: the run goes on eagerly, or fails. */
void etch__obey_stance(run *r, const void *site) {
    if (etch__stance == ETCH_STANCE_FAIL_ON_RECOMPILE) {
        r->poisoned = true;
        etch__refuse_compile(r->f, site);
    } else {
        r->eager = r->by_stance = true;
    }
}

/* Whether an operator was overridden since the call was entered: then the traces of the rest of it
 * would mix kernels. */
bool etch__outdated(const run *r) {
    return r->gen->epoch != atomic_load_explicit(&etch__override_epoch, memory_order_acquire);
}

/* The segment that begins with this call. NULL: r->eager, or an error. */
static walk *begin_segment(run *r, const op_call *call) {
    if (unlikely(etch__forced_eager())) {
        r->eager = r->by_stance = true;
        return NULL;
    }
    if (unlikely(etch__outdated(r))) {
        r->eager = true;
        return NULL;
    }
    if (r->recorded) settle_earlier(r, call);
    trace_tree *tree = etch__find_resume(r->gen, call, etch__tls.state);
    if (!tree || !atomic_load_explicit(&tree->ncompiled, memory_order_acquire)) {
        if (tree && tree->limited) r->eager = true;
        else if (!etch__may_compile()) etch__obey_stance(r, call->site);
        return r->eager || r->poisoned ? NULL : etch__begin_recording(r);
    }
    walk *w = r->walk = etch__walk_take(r, tree);
    if (w) etch__follow(r, w);
    return w;
}

/* The matched prefix has run; the rest of the segment runs eagerly. */
bool etch__go_on_eagerly(run *r, walk *w) {
    etch__late_use_all(r);
    if (!etch__walk_to_recording(w, WALK_RECORD)) return false;
    r->walk = NULL;
    r->eager = true;
    STOP_TRACING;
    return true;
}

static etch_tensor *diverge_limited(run *r, walk *w, const op_call *call) {
    if (r->f->options.fullgraph && !r->by_stance) {
        r->poisoned = true;
        etch__error_at(
            call->site, ETCH_ERR_RECOMPILE_LIMIT,
            "%s: fullgraph = true, but the trace does not fit and the recompile limit is "
            "reached; etch_reset forgets the traces",
            r->f->name);
        return NULL;
    }
    if (!etch__go_on_eagerly(r, w)) return NULL;
    etch_tensor *h = run_now(r, call);
    etch__walk_recycle(w);
    return h;
}

/* The call is not what the trace has here (rule 7). One that fails by itself does not move the
 * cursor. */
static etch_tensor *diverge(run *r, walk *w, const op_call *call) {
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
    bool empty = w->c.last == &w->tree->root.c;
    if (!empty || w->entry) {
        TRACE_COUNT(r->f, divergences, 1);
        etch__log_diverged(w, call);
    }
    if (!etch__may_compile()) etch__obey_stance(r, call->site);
    if (r->poisoned) return NULL;
    if (r->by_stance || etch__root_limited(r, w->tree)) return diverge_limited(r, w, call);
    bool full = r->f->options.fullgraph;
    bool sizes_only = r->f->options.dynamic != ETCH_DYNAMIC_OFF && etch__walk_similar(w, call);
    if (!full) etch__late_use_all(r);
    if (!etch__walk_to_recording(w, full ? WALK_SHAPES : WALK_RECORD)) return NULL;
    w->dynamic |= sizes_only;
    STOP_TRACING;
    return record(r, w, call);
}

etch_tensor *etch__traced_operator(const op_call *call) {
    run *r = etch__current_run();
    if (!r || r->poisoned) return r ? NULL : etch__run_eager(call);
    if (!prepare_operands(r, call)) return NULL;
    if (unlikely(etch__mode_entered_since(r->modes))) return run_now(r, call);
    reason_id now = etch__runs_at_once(call);
    if (now != END_RETURN) {
        /* After the break, operands may be deferred tensors of the segment that it ended. */
        if (etch__break_graph(r, now, call->site, NULL, NULL) != ETCH_OK) return NULL;
        return prepare_operands(r, call) ? run_now(r, call) : NULL;
    }
    if (r->eager || r->off) return run_now(r, call);
    walk *w = r->walk ? r->walk : begin_segment(r, call);
    if (!w) return r->eager ? run_now(r, call) : NULL;
    bool long_match = false;
    if (w->mode == WALK_MATCH) {
        etch_tensor *h = etch__walk_match(w, call);
        if (h) {
            stop_following(call);
            return h;
        }
        long_match = etch__find_end((trace_node *)w->c.last, REASON_BREAK_LENGTH) != NULL;
        if (!long_match) return diverge(r, w, call);
    }
    if (long_match || w->npath >= etch__param_int(PARAM_MAX_SEGMENT)) {
        if (etch__break_graph(r, REASON_BREAK_LENGTH, call->site, NULL, NULL) != ETCH_OK)
            return NULL;
        return etch__traced_operator(call);
    }
    return record(r, w, call);
}
