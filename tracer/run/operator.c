/* One operator call inside a compiled function: along the trace, into a recording, or at once. */
#include "core/dispatch/mode.h"
#include "core/base/start.h"
#include "guards/call.h"
#include "tracer/run/run.h"
#include "tracer/tell/event.h"
#include "tracer/tell/report.h"

/* ---- operators ---- */

/* A tensor that was evaluated late beside another one is used, too. What the plan itself has
 * produced is known to be. */
static void want_used(trace_run *r, const etch_tensor *t) {
    for (trace_walk *w = r->pending; w; w = w->next)
        if (w == t->owner && w->leaf && !(w->end.ran && w->end.ran->slot[t->value] >= 0))
            etch__note_used_late(r, w, t);
}

static bool has_spoilt(const op_call *call) {
    bool spoilt = false;
    if (likely(!etch__tls.marked)) return false;
    for (int i = 0; i < call->nin; i++) spoilt |= etch__is_spoilt(call->in[i]);
    if (unlikely(spoilt)) etch__spoilt_error(etch__ops[call->op].name, call->site);
    return spoilt;
}

/* Deferred operands of earlier segments are produced; recordings learn what is used of them. */
static bool prepare_operands(trace_run *r, const op_call *call) {
    for (int i = 0; i < call->nin; i++) {
        etch_tensor *t = call->in[i];
        if (t->deferred && t->owner != r->walk) {
            trace_walk *w = etch__owner_in(r, t, call->site);
            if (!w) return false;
            etch__late_use(r, w, t);
            if (!etch__operand_ok(call, i)) return false;
        } else if (unlikely(t->owner && t->owner != r->walk)) {
            want_used(r, t);
        }
        for (trace_walk *w = r->recordings; w; w = w->next) etch__note_used(w, t);
    }
    return !has_spoilt(call);
}

/* Operands that were deferred until now may turn out to have failed. */
static bool operands_there(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (!etch__operand_ok(call, i)) return false;
    return !has_spoilt(call);
}

static etch_tensor *run_now(const op_call *call) {
    return operands_there(call) ? etch__run_eager(call) : NULL;
}

/* A marked operand makes what is recorded from here on have run-time sizes. */
static bool obey_marks(trace_run *r, trace_walk *w, const op_call *call) {
    for (int i = 0; i < call->nin; i++) {
        if (likely(!etch__marked_dynamic(call->in[i]))) continue;
        w->rec.dynamic = true;
        if (r->f->options.dynamic != ETCH_DYNAMIC_OFF) continue;
        etch__error_at(call->site, ETCH_ERR_SPECIALISED,
                       "%s: %s captures a tensor with a dimension that is marked dynamic, but the "
                       "function was compiled with ETCH_DYNAMIC_OFF, which fixes every size",
                       r->f->name, etch__ops[call->op].name);
        return false;
    }
    return true;
}

static etch_tensor *record(trace_run *r, trace_walk *w, const op_call *call) {
    if (!operands_there(call) || !obey_marks(r, w, call)) return NULL;
    etch_tensor *h = etch__walk_record(w, call);
    if (unlikely(r->check.on) && h && w->mode == WALK_SHAPES)
        etch__check_call(w, w->path[w->npath - 1]);
    return h;
}

/* Whether a new path under this root would be one too many. */
bool etch__root_limited(trace_run *r, trace_tree *tree) {
    pthread_mutex_lock(&r->f->lock);
    int most = etch__recompile_limit(&r->f->options);
    bool full = etch__at_limit(etch__limit_of(r->gen, tree), most, &r->gen->warned, &r->warning);
    pthread_mutex_unlock(&r->f->lock);
    etch__warn_of_limit(r);
    return full;
}

/* Lets operators match along the walk; under modes (which then allow compiled code) they go the
 * long way, so that handlers are found, and where memory is exposed, so that writes to it are. */
void etch__follow(trace_run *r, trace_walk *w) {
    bool alone = etch__tls.layers == 1u << LAYER_TRACER && !r->nexposed;
    if (w->mode != WALK_MATCH || !alone) return;
    for (int i = 0; w->entry && i < w->nargs; i++)
        alone &= etch__walk_hides(w, i) || !etch__exposed_bits(w->c.value[i]);
    if (alone && !r->check.on) etch__tls.cursor = &w->c;
}

/* Captured memory that is exposed: the same. */
static void stop_following(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (etch__exposed_bits(call->in[i])) STOP_TRACING;
}

trace_walk *etch__begin_recording(trace_run *r) {
    trace_walk *w = etch__walk_take(r, NULL);
    if (w && r->f->options.fullgraph) w->mode = WALK_SHAPES;
    if (w) w->rec.dynamic = r->f->options.dynamic == ETCH_DYNAMIC_ON || r->marked;
    return r->walk = w;
}

/* A recording of this very call with such a first operator is published and compiled when it is
 * entered again. */
static void settle_earlier(trace_run *r, const op_call *call) {
    for (trace_walk *w = r->recordings; w; w = w->next)
        if (!w->rec.published && w->npath && !w->entry &&
            etch__similar_call(&w->path[0]->c, call, etch__state_now()))
            etch__settle(r, w);
}

/* The stance forbids to record a new path: the run goes on eagerly, or fails. */
void etch__obey_stance(trace_run *r, const void *site) {
    if (etch__stance == ETCH_STANCE_FAIL_ON_RECOMPILE) {
        r->poisoned = true;
        etch__refuse_compile(r->f, site);
    } else {
        r->eager = r->eager_by_stance = true;
    }
}

/* Whether an operator was overridden since the call was entered: then the traces of the rest of it
 * would mix kernels. */
bool etch__outdated(const trace_run *r) {
    return r->gen->epoch != atomic_load_explicit(&etch__override_epoch, memory_order_acquire);
}

/* The segment that begins with this call. NULL: r->eager, or an error. */
static trace_walk *begin_segment(trace_run *r, const op_call *call) {
    if (unlikely(etch__forced_eager())) {
        r->eager = r->eager_by_stance = true;
        return NULL;
    }
    if (unlikely(etch__outdated(r))) {
        r->eager = true;
        return NULL;
    }
    if (r->recordings) settle_earlier(r, call);
    trace_tree *tree = etch__find_resume(r->gen, call, etch__state_now());
    if (!tree || !atomic_load_explicit(&tree->ncompiled, memory_order_acquire)) {
        if (tree && tree->limit.reached) {
            r->eager = true;
            if (etch__report_on()) etch__report_limited(r->f, tree, &tree->root, call);
        } else if (!etch__may_compile()) {
            etch__obey_stance(r, call->site);
        }
        return r->eager || r->poisoned ? NULL : etch__begin_recording(r);
    }
    trace_walk *w = r->walk = etch__walk_take(r, tree);
    if (w) etch__follow(r, w);
    return w;
}

/* The matched prefix has run; the rest of the segment runs eagerly. */
bool etch__go_on_eagerly(trace_run *r, trace_walk *w) {
    if (!etch__walk_to_recording(w, WALK_RECORD)) return false;
    r->walk = NULL;
    r->eager = true;
    STOP_TRACING;
    return true;
}

static etch_tensor *diverge_limited(trace_run *r, trace_walk *w, const op_call *call) {
    if (r->f->options.fullgraph && !r->eager_by_stance) {
        r->poisoned = true;
        etch__error_at(
            call->site, ETCH_ERR_RECOMPILE_LIMIT,
            "%s: fullgraph = true, but the trace does not fit and the recompile limit is "
            "reached; etch_reset forgets the traces",
            r->f->name);
        return NULL;
    }
    if (etch__report_on() && !r->eager_by_stance)
        etch__report_limited(r->f, w->tree, (const trace_node *)w->c.last, call);
    if (!etch__go_on_eagerly(r, w)) return NULL;
    etch_tensor *h = run_now(call);
    etch__walk_recycle(w);
    return h;
}

/* The dimension whose size was and is the attribute: marked dynamic, of argument *arg; else -1. */
static int marked_dim(const trace_walk *w, int64_t was, int64_t is, int *arg) {
    for (*arg = 0; *arg < w->nargs; *arg += 1) {
        const etch_tensor *t = w->c.value[*arg];
        for (int d = 0; etch__marked_dynamic(t) && d < t->ndim; d++)
            if (etch__marks(t)->dynamic >> d & 1 && t->size[d] == is &&
                w->tree->guard.meta[*arg].size[d] == was)
                return d;
    }
    return -1;
}

/* A size that is marked dynamic has become part of the trace. */
static bool specialised(trace_run *r, const trace_walk *w, const op_call *call) {
    if (!r->marked || !w->entry || !w->tree->guard.meta) return false;
    const trace_node *n = ((const trace_node *)w->c.last)->child;
    for (int arg; n; n = n->sibling) {
        int k = n->c.key == CURSOR_END ? -1 : etch__static_difference(&n->c, call);
        int d = k < 0 ? -1 : marked_dim(w, n->c.at[k], call->at[k], &arg);
        if (d < 0) continue;
        etch__error_at(
            call->site, ETCH_ERR_SPECIALISED,
            "%s: %s takes the size of dimension %d of argument %d as an attribute that is "
            "part of the trace (it was %lld, now it is %lld), but the dimension is marked "
            "dynamic",
            r->f->name, etch__ops[call->op].name, d, arg, (long long)n->c.at[k],
            (long long)call->at[k]);
        return true;
    }
    return false;
}

/* The call is not what the trace has here (rule 7 of docs/architecture.md). One that fails by
 * itself does not move the cursor. */
static etch_tensor *diverge(trace_run *r, trace_walk *w, const op_call *call) {
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
    if (unlikely(specialised(r, w, call))) return NULL;
    bool empty = w->c.last == &w->tree->root.c;
    if (!empty || w->entry) {
        etch__event_diverged(r->f, (const trace_node *)w->c.next, call, call->site);
    }
    if (!etch__may_compile()) etch__obey_stance(r, call->site);
    if (r->poisoned) return NULL;
    if (r->eager_by_stance || etch__root_limited(r, w->tree)) return diverge_limited(r, w, call);
    bool full = r->f->options.fullgraph;
    bool sizes_only = r->f->options.dynamic != ETCH_DYNAMIC_OFF && etch__walk_similar(w, call);
    if (!etch__walk_to_recording(w, full ? WALK_SHAPES : WALK_RECORD)) return NULL;
    w->rec.dynamic |= sizes_only;
    STOP_TRACING;
    return record(r, w, call);
}

/* A segment's plan runs under one mode of the processor: an operator under another one ends it. */
static bool changes_mode(const trace_walk *w) {
    const cursor_node *last = w->mode == WALK_MATCH ? w->c.last : NULL;
    if (w->mode != WALK_MATCH && w->npath) last = &w->path[w->npath - 1]->c;
    bool empty = !last || (w->tree && last == &w->tree->root.c);
    return !empty && STATE_FP(last->state ^ etch__state_now());
}

static etch_tensor *operator_of_run(const op_call *call);

/* Ends the segment before the call, which begins another one. */
static etch_tensor *break_before(trace_run *r, reason_id why, const char *text,
                                 const op_call *call) {
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
    if (etch__break_graph(r, why, call->site, NULL, text) != ETCH_OK) return NULL;
    return operands_there(call) ? operator_of_run(call) : NULL;
}

static inline etch_tensor *traced_operator(const op_call *call) {
    trace_run *r = etch__current_run();
    if (!r) return etch__run_eager(call);
    if (unlikely(r->poisoned)) return etch__poisoned(r, call->site), NULL;
    if (!prepare_operands(r, call)) return NULL;
    if (unlikely(etch__mode_entered_since(r->modes))) return run_now(call);
    reason_id now = etch__runs_at_once(call);
    if (now != END_RETURN) {
        /* What cannot be called is its own error, and no break. */
        tensor_meta meta;
        if (etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
        /* After the break, operands may be deferred tensors of the segment that it ended. */
        if (etch__break_graph(r, now, call->site, NULL, NULL) != ETCH_OK) return NULL;
        return prepare_operands(r, call) ? run_now(call) : NULL;
    }
    if (r->eager || r->disabled) return run_now(call);
    if (r->walk && unlikely(changes_mode(r->walk)))
        return break_before(r, REASON_BREAK_STATE, "rounding or denormals", call);
    trace_walk *w = r->walk ? r->walk : begin_segment(r, call);
    if (!w) return r->eager ? run_now(call) : NULL;
    bool long_match = false;
    if (w->mode == WALK_MATCH) {
        etch_tensor *h = etch__walk_match(w, call);
        if (h) {
            stop_following(call);
            if (unlikely(r->check.on)) etch__check_call(w, (const trace_node *)w->c.last);
            return h;
        }
        long_match = etch__find_end((trace_node *)w->c.last, REASON_BREAK_LENGTH) != NULL;
        if (!long_match) return diverge(r, w, call);
    }
    /* A segment has one operator at least. */
    if (long_match || (w->npath && w->npath >= etch__param_int(PARAM_MAX_SEGMENT)))
        return break_before(r, REASON_BREAK_LENGTH, NULL, call);
    return record(r, w, call);
}

static etch_tensor *operator_of_run(const op_call *call) {
    attempt a;
    etch__attempt(&a);
    etch_tensor *h = traced_operator(call);
    if (likely(h != NULL)) etch__succeeded(&a);
    return h;
}

void etch__start_operators(void) { etch__register_layer(LAYER_TRACER, operator_of_run); }
