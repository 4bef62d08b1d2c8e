/* A run: one call of a compiled function.
 *
 *   call -> entry segment -> break -> next operator -> segment -> ... -> return
 *
 * A segment is matched against the tree of its root if that has compiled code, else recorded. What
 * does not fit is run operator by operator, so nothing is ever lost; what was learned is published
 * when the call has ended well. Rules by number are those of the cursor, docs/architecture.md. */
#include "core/dispatch/mode.h"
#include "core/base/start.h"
#include "core/base/profile.h"
#include "tracer/run/run.h"
#include "tracer/tell/event.h"
#include "tracer/tell/report.h"

/* ---- beginning and ending a call ---- */

/* The run in whose disabled function this thread is. */
static __thread trace_run *suspended;

trace_run *etch__suspend(trace_run *r) {
    trace_run *before = suspended;
    suspended = r;
    return before;
}

void etch__unsuspend(trace_run *before) { suspended = before; }

static trace_run *take_run(etch_function *f) {
    trace_run *r = etch__tls.spare_run;
    etch__tls.spare_run = NULL;
    if (unlikely(!r) && !(r = etch__malloc(sizeof *r))) return NULL;
    memset(r, 0, sizeof *r);
    r->outer = suspended;
    r->below = etch__tls.runs;
    etch__tls.runs = r;
    etch__function_pin(f);
    r->f = f;
    if (unlikely(f->options.replay)) r->replay.state = etch__state_now();
    r->noted = etch__tls.noted, r->backwards = etch__tls.backwards;
    r->errors = etch__tls.errors;
    r->check.on = etch__checking() && f->options.numerics == ETCH_STRICT;
    r->gen = atomic_load_explicit(&f->gen, memory_order_acquire);
    if (unlikely(r->gen->epoch !=
                 atomic_load_explicit(&etch__override_epoch, memory_order_acquire))) {
        etch_reset(f);
        r->gen = atomic_load_explicit(&f->gen, memory_order_acquire);
    }
    return r;
}

static void give_back_run(trace_run *r) {
    while (r->nexposed) etch__end_exposure(r, r->exposed[0].storage);
    etch__tls.marked -= (int)r->nspoilt;
    while (r->nspoilt) etch__storage_release(r->spoilt[--r->nspoilt]);
    etch__tls.runs = r->below;
    etch__free(r->spoilt);
    etch__free(r->exposed);
    etch__free(r->check.text);
    etch__function_unpin(r->f);
    if (unlikely(etch__tls.spare_run != NULL)) etch__free(r);
    else etch__tls.spare_run = r;
}

/* Sizes are run-time from the start if asked for, else once a call differs in nothing else. */
static bool wants_dynamic(const trace_run *r, const trace_tree *tree, const call_io *io) {
    if (tree) return tree->guard.dynamic;
    if (r->marked) return true;
    if (r->f->options.dynamic == ETCH_DYNAMIC_AUTO)
        return etch__similar_entry(r->gen, io->in, io->nin);
    return r->f->options.dynamic == ETCH_DYNAMIC_ON;
}

/* The first segment: along the tree whose guards hold, or recording. NULL: r->eager or an error. */
static trace_walk *begin_entry(trace_run *r, const call_io *io) {
    for (int i = 0; i < io->nin; i++) r->marked |= etch__marked_dynamic(io->in[i]);
    int64_t start = etch__profile_start();
    trace_tree *known = etch__find_entry(r->gen, io->in, io->nin), *tree = known;
    etch__profile_end_event(ETCH_PROFILE_GUARDS, start, r->f->name, NULL);
    bool dynamic = wants_dynamic(r, tree, io);
    if (tree && !atomic_load_explicit(&tree->ncompiled, memory_order_acquire)) tree = NULL;
    if (!tree && !etch__may_compile()) {
        etch__obey_stance(r, NULL);
        return NULL;
    }
    if (!known && !r->gen->entry_limit.reached)
        etch__event_unguarded(r->f, r->gen, io->in, io->nin);
    if (!tree && !known && etch__root_limited(r, NULL)) {
        r->eager = true;
        etch__event(r->f, EVENT_LIMIT, &(trace_event){.why = REASON_EAGER_LIMIT, .known = true});
        return NULL;
    }
    trace_walk *w = tree ? etch__walk_take(r, tree) : etch__begin_recording(r);
    if (w && !tree) w->rec.dynamic = w->rec.dynamic_entry = dynamic, w->tree = known;
    if (w && !etch__walk_bind_args(w, io->in, io->nin)) {
        etch__walk_recycle(w);
        w = NULL;
    }
    return r->walk = w;
}

/* Along the trace that is to be replayed. */
static trace_walk *begin_replay(trace_run *r, const replay *p, const call_io *io) {
    trace_walk *w = etch__walk_take(r, etch__replay_tree(p));
    if (w && !etch__walk_bind_args(w, io->in, io->nin)) {
        etch__walk_recycle(w);
        w = NULL;
    }
    return r->walk = w;
}

static bool enter(trace_run *r, const replay *p, const call_io *io) {
    etch_thread *t = &etch__tls;
    trace_walk *w = p ? begin_replay(r, p, io) : begin_entry(r, io);
    if (!w && (!r->eager || r->eager_by_stance)) return false;
    if (r->eager && r->f->options.fullgraph)
        return etch__false_at(
            NULL, ETCH_ERR_RECOMPILE_LIMIT,
            "%s: fullgraph = true, but no trace fits the arguments and the recompile limit "
            "is reached; etch_reset forgets the traces",
            r->f->name);
    r->scope = etch_scope_begin();
    if (r->scope < 0) return false;
    r->outer_guard = t->guard_scope;
    t->guard_scope = (int32_t)r->scope;
    t->run = r;
    t->layers |= 1u << LAYER_TRACER;
    r->modes = t->nmodes;
    if (r->walk) etch__follow(r, r->walk);
    return true;
}

/* How many counts of t the run's walks have. */
static int counts_of_walks(const trace_run *r, const etch_tensor *t) {
    int n = r->walk ? etch__walk_counts(r->walk, t) : 0;
    for (const trace_walk *w = r->pending; w; w = w->next) n += etch__walk_counts(w, t);
    return n;
}

/* Moves a result from the call's scope to the caller's. One that the call's scope does not own must
 * have another owner: a tensor of an inner scope that is closed lives in walks only. */
static etch_status hand_over(const trace_run *r, etch_tensor *t, int i) {
    const etch_thread *thread = &etch__tls;
    int64_t start = thread->scope_start[r->scope];
    bool alive = t->magic == TENSOR_ALIVE;
    if (alive && !etch_keep(t)) return thread->status;
    if (likely(thread->scope_start[r->scope] != start) || t == ETCH_NONE) return ETCH_OK;
    if (alive && atomic_load_explicit(&t->refs, memory_order_acquire) > counts_of_walks(r, t))
        return ETCH_OK;
    return etch__error_at(
        NULL, ETCH_ERR_RELEASED,
        "%s: result %d was released before the body returned: the scope that owned "
        "it is closed (return etch_keep(t) from ETCH_SCOPE)",
        r->f->name, i);
}

/* Moves what the call's scope owns of the results to the caller's scope, then closes it. */
static etch_status close_scope(trace_run *r, etch_status status, const call_io *io) {
    etch__close_deeper(r->scope, status, io);
    for (int i = 0; status == ETCH_OK && i < io->nout; i++) status = hand_over(r, io->out[i], i);
    etch__tls.guard_scope = r->outer_guard;
    STOP_TRACING;
    etch_scope_end(r->scope);
    return status;
}

static void drop_walk(trace_run *r, trace_walk *w) {
    bool compute = !r->poisoned;
    if (w->mode == WALK_MATCH) etch__walk_to_recording(w, compute ? WALK_RECORD : WALK_SHAPES);
    else if (w->mode == WALK_SHAPES && compute) etch__evaluate(w, false);
    etch__walk_fail(w);
    etch__walk_recycle(w);
}

/* A call that fails: its matched prefix has happened, nothing is published. */
static void drop_segment(trace_run *r) {
    saved_error why; /* the call's failure, whatever fails of its prefix now */
    etch__quick_save(&why);
    trace_walk *w = r->walk;
    r->walk = NULL;
    etch__late_use_all(r); /* of segments that have ended, too */
    if (w) drop_walk(r, w);
    etch__quick_restore(&why);
}

/* fullgraph's first call: everything is still deferred; compile, then run the plan. */
static void run_shapes(trace_run *r, trace_walk *w) {
    bool overlap;
    if (w->end.publishable) etch__note_live(w, WANT_VALUE);
    trace_leaf *leaf = w->end.publishable ? etch__settle(r, w) : NULL;
    if (leaf && leaf->writes_inputs) etch__before_plan(w, leaf);
    segment_code *code = leaf ? etch__pick_code(w, leaf, &overlap) : NULL;
    saved_error before;
    etch__quick_save(&before);
    bool done = code && etch__run_code(w, leaf, code) == ETCH_OK;
    if (!r->poisoned) etch__quick_restore(&before);
    if (!done && !r->poisoned) etch__evaluate(w, false);
    w->end.publishable = false;
}

static void end_return(trace_run *r) {
    trace_walk *w = r->walk;
    etch__late_use_all(r);
    if (!w) return;
    w->end.why = END_RETURN;
    w->end.site = NULL;
    if (w->mode == WALK_MATCH) etch__end_matched(r, w, NULL);
    else etch__end_recorded(w, NULL);
    if (w->mode == WALK_SHAPES) run_shapes(r, w);
    if (w->mode == WALK_MATCH) r->replay.leaf = w->leaf;
    etch__retire_walk(r, w);
}

/* In the order of the program. */
static void turn_recorded(trace_run *r) {
    trace_walk *turned = NULL;
    while (r->recordings) {
        trace_walk *w = r->recordings;
        r->recordings = w->next;
        w->next = turned;
        turned = w;
    }
    r->recordings = turned;
}

static void settle_all(trace_run *r, bool publish) {
    turn_recorded(r);
    while (r->pending) {
        trace_walk *w = r->pending;
        r->pending = w->next;
        etch__tls.watches--;
        if (publish && w->end.recompile) etch__ask_code_for(w, w->leaf);
        etch__walk_recycle(w);
    }
    while (r->recordings) {
        trace_walk *w = r->recordings;
        r->recordings = w->next;
        if (publish) {
            etch__note_live(w, WANT_VALUE);
            etch__settle(r, w);
        }
        etch__walk_recycle(w);
    }
}

static void leave(void) {
    etch__tls.run = NULL;
    etch__tls.cursor = NULL;
    etch__tls.layers &= ~(1u << LAYER_TRACER);
}

static etch_status failed_result(const trace_run *r, int i) {
    if (etch__own_error(r->errors)) return etch__tls.status;
    return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                          "%s: result %d: the tensor's own computation failed before", r->f->name,
                          i);
}

static etch_status show(trace_run *r, const call_io *io) {
    trace_walk *w = r->walk;
    if (!w || w->mode != WALK_SHAPES)
        return etch__error_at(NULL, ETCH_ERR_INTERNAL, "%s: it was not recorded", r->f->name);
    w->end.why = END_RETURN;
    etch__note_live(w, WANT_VALUE);
    return r->see(r->see_ctx, w, io->out);
}

/* A call on shapes alone ends as one that has failed: what is deferred is never computed. */
static etch_status finish_shown(trace_run *r, etch_status status, const call_io *io) {
    status = close_scope(r, status, io);
    if (status == ETCH_OK && r->poisoned) status = etch__poisoned(r, NULL);
    if (status == ETCH_OK) status = show(r, io);
    r->poisoned = true;
    drop_segment(r);
    leave();
    settle_all(r, false);
    return status;
}

static etch_status finish(trace_run *r, etch_status status, const call_io *io) {
    if (unlikely(r->see != NULL)) return finish_shown(r, status, io);
    if (unlikely(r->f->options.replay) && status == ETCH_OK) {
        if (!r->replay.holds) etch__replay_note(r, io);
        else if (r->check.on) etch__replay_compare(r, r->replay.holds, io->out);
    }
    status = close_scope(r, status, io);
    attempt a;
    etch__attempt(&a);
    if (status == ETCH_OK) end_return(r);
    else drop_segment(r);
    if (status == ETCH_OK && r->poisoned) status = etch__poisoned(r, NULL);
    if (status == ETCH_OK && etch__lost_since(r->errors)) status = etch__tls.status;
    if (status == ETCH_OK) etch__succeeded(&a);
    if (status == ETCH_OK && r->refused) status = etch__refuse_compile(r->f, NULL);
    leave();
    saved_error error; /* what fails from here on fails nobody */
    etch__quick_save(&error);
    settle_all(r, status == ETCH_OK && !etch__outdated(r));
    if (unlikely(r->replay.made != NULL)) etch__replay_publish(r, status == ETCH_OK);
    etch__quick_restore(&error);
    if (unlikely(r->check.on) && status == ETCH_OK) etch__check_lost(r);
    if (unlikely(r->check.differs)) status = etch__check_report(r);
    for (int i = 0; status == ETCH_OK && i < io->nout; i++)
        if (unlikely(io->out[i]->failed)) status = failed_result(r, i);
    return status;
}

static void abandon(trace_run *r) {
    etch__tls.run = r;
    etch__tls.guard_scope = r->outer_guard;
    suspended = r->outer;
    drop_segment(r);
    leave();
    settle_all(r, false);
    give_back_run(r);
}

/* The call's scope was closed from outside, by longjmp past the call (rule 15), and past those in
 * whose disabled functions it was. One that is left goes on, as after
 * etch__unsuspend. */
static void trace_abandon(int64_t mark) {
    trace_run *r = etch__current_run(), *outer;
    if (!r) etch__tls.guard_scope = -1;
    for (; r && r->scope >= mark; r = outer) {
        outer = r->outer;
        abandon(r);
    }
    if (!r) {
        etch__reset_disabled();
        return;
    }
    suspended = r->outer;
    etch__tls.run = r;
    etch__tls.layers |= 1u << LAYER_TRACER;
}

static etch_status call_in(trace_run *r, const call_io *io) {
    etch_function *f = r->f;
    etch_status status;
    const replay *p = NULL;
    if (unlikely(f->options.replay)) r->replay.holds = etch__replay_find(r->gen, io);
    if (!r->check.on) p = r->replay.holds; /* else the body is run, and compared with it */
    saved_error before;
    etch__quick_save(&before);
    if (enter(r, p, io)) {
        etch__quick_restore(&before);
        status = p ? etch__replay_run(r, p, io) : etch__call_body(&f->body, io);
        if (etch__current_run() != r) return etch__scope_was_closed(); /* and the run abandoned */
        status = etch__results_in_scope(f->name, r->scope, r->errors, status, io);
        if (r->poisoned && status == ETCH_OK) status = etch__poisoned(r, NULL);
        status = finish(r, status, io);
    } else {
        status = etch__tls.status;
        if (r->walk) etch__walk_recycle(r->walk);
        if (r->eager_by_stance) etch__quick_restore(&before);
        if (r->eager_by_stance) status = etch__call_in_scope(f, io);
    }
    give_back_run(r);
    return status;
}

etch_status etch__call_traced(etch_function *f, const call_io *io) {
    trace_run *r = take_run(f);
    return r ? call_in(r, io) : ETCH_ERR_OUT_OF_MEMORY;
}

etch_status etch__view_call(etch_function *f, const call_io *io, trace_viewer see, void *ctx) {
    trace_run *r = take_run(f);
    if (!r) return ETCH_ERR_OUT_OF_MEMORY;
    r->see = see, r->see_ctx = ctx;
    r->check.on = false; /* there is no data to compare */
    return call_in(r, io);
}

static void free_spare_run(etch_thread *t) {
    etch__free(t->spare_run);
    t->spare_run = NULL;
}

void etch__start_runs(void) {
    etch__at_thread_end(free_spare_run);
    etch__trace_hooks.abandon = trace_abandon;
}
