/* A run: one call of a compiled function.
 *
 *   call -> entry segment -> break -> next operator -> segment -> ... -> return
 *
 * A segment is matched against the tree of its root if that has compiled code, else recorded. What
 * does not fit is run operator by operator, so nothing is ever lost; what was learned is published
 * when the call has ended well. Rules by number are those of the cursor, docs/architecture.md. */
#include "core/dispatch/mode.h"
#include "core/base/profile.h"
#include "tracer/tell/report.h"
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

/* ---- beginning and ending a call ---- */

static __thread trace_run *suspended; /* see call_in_own_run */

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
    if (unlikely(f->options.replay)) r->state = etch__state_now();
    r->errors = etch__tls.errors;
    r->check = etch__checking() && f->options.numerics == ETCH_STRICT;
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
    etch__free(r->difference);
    etch__function_unpin(r->f);
    if (unlikely(etch__tls.spare_run != NULL)) etch__free(r);
    else etch__tls.spare_run = r;
}

/* Sizes are run-time from the start if asked for, else once a call differs in nothing else. */
static bool wants_dynamic(const trace_run *r, const trace_tree *tree, etch_tensor *const *in,
                          int nin) {
    if (tree) return tree->dynamic;
    if (r->marked) return true;
    if (r->f->options.dynamic == ETCH_DYNAMIC_AUTO) return etch__similar_entry(r->gen, in, nin);
    return r->f->options.dynamic == ETCH_DYNAMIC_ON;
}

/* The first segment: along the tree whose guards hold, or recording. NULL: r->eager or an error. */
static trace_walk *begin_entry(trace_run *r, etch_tensor *const *in, int nin) {
    for (int i = 0; i < nin; i++) r->marked |= etch__marked_dynamic(in[i]);
    int64_t start = etch__profile_start();
    trace_tree *known = etch__find_entry(r->gen, in, nin), *tree = known;
    etch__profile_end_event(ETCH_PROFILE_GUARDS, start, r->f->name, NULL);
    bool dynamic = wants_dynamic(r, tree, in, nin);
    if (tree && !atomic_load_explicit(&tree->ncompiled, memory_order_acquire)) tree = NULL;
    if (!tree && !etch__may_compile()) {
        etch__obey_stance(r, NULL);
        return NULL;
    }
    if (!known && !r->gen->entry_limited) etch__log_guards(r, in, nin);
    if (!tree && !known && etch__root_limited(r, NULL)) {
        r->eager = true;
        if (etch__report_on())
            etch__report_event(r->f, REPORT_LIMIT, REASON_EAGER_LIMIT, NULL, NULL);
        return NULL;
    }
    trace_walk *w = tree ? etch__walk_take(r, tree) : etch__begin_recording(r);
    if (w && !tree) w->dynamic = w->dynamic_entry = dynamic, w->tree = known;
    if (w && !etch__walk_bind_args(w, in, nin)) {
        etch__walk_recycle(w);
        w = NULL;
    }
    return r->walk = w;
}

/* Along the trace that is to be replayed. */
static trace_walk *begin_replay(trace_run *r, const replay *p, etch_tensor *const *in, int nin) {
    trace_walk *w = etch__walk_take(r, etch__replay_tree(p));
    if (w && !etch__walk_bind_args(w, in, nin)) {
        etch__walk_recycle(w);
        w = NULL;
    }
    return r->walk = w;
}

static bool enter(trace_run *r, const replay *p, etch_tensor *const *in, int nin) {
    etch_thread *t = &etch__tls;
    trace_walk *w = p ? begin_replay(r, p, in, nin) : begin_entry(r, in, nin);
    if (!w && (!r->eager || r->by_stance)) return false;
    if (r->eager && r->f->options.fullgraph) {
        etch__error_at(
            NULL, ETCH_ERR_RECOMPILE_LIMIT,
            "%s: fullgraph = true, but no trace fits the arguments and the recompile limit "
            "is reached; etch_reset forgets the traces",
            r->f->name);
        return false;
    }
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

/* Closes what the body has opened and not closed; results pass to the scope around. */
static void close_deeper(int64_t scope, etch_status status, etch_tensor **out, int nout) {
    while (etch__tls.nscopes > scope + 1) {
        for (int i = 0; status == ETCH_OK && i < nout; i++) etch_keep(out[i]);
        etch_scope_end(etch__tls.nscopes - 1);
    }
}

/* Moves what the call's scope owns of the results to the caller's scope, then closes it. */
static etch_status close_scope(trace_run *r, etch_status status, etch_tensor **out, int nout) {
    close_deeper(r->scope, status, out, nout);
    for (int i = 0; status == ETCH_OK && i < nout; i++) status = hand_over(r, out[i], i);
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
    if (w->recorded) etch__mark_live(w, WANT_VALUE);
    trace_leaf *leaf = w->recorded ? etch__settle(r, w) : NULL;
    if (leaf && leaf->writes_inputs) etch__before_plan(w, leaf);
    segment_code *code = leaf ? etch__pick_code(w, leaf, &overlap) : NULL;
    saved_error before;
    etch__quick_save(&before);
    bool done = code && etch__run_code(w, leaf, code) == ETCH_OK;
    if (!r->poisoned) etch__quick_restore(&before);
    if (!done && !r->poisoned) etch__evaluate(w, false);
    w->recorded = false;
}

static void end_return(trace_run *r) {
    trace_walk *w = r->walk;
    etch__late_use_all(r);
    if (!w) return;
    w->end = END_RETURN;
    w->end_site = NULL;
    if (w->mode == WALK_MATCH) etch__end_matched(r, w, NULL);
    else etch__end_recorded(w, NULL);
    if (w->mode == WALK_SHAPES) run_shapes(r, w);
    if (w->mode == WALK_MATCH) r->leaf = w->leaf;
    etch__retire_walk(r, w);
}

/* In the order of the program. */
static void turn_recorded(trace_run *r) {
    trace_walk *turned = NULL;
    while (r->recorded) {
        trace_walk *w = r->recorded;
        r->recorded = w->next;
        w->next = turned;
        turned = w;
    }
    r->recorded = turned;
}

static void settle_all(trace_run *r, bool publish) {
    turn_recorded(r);
    while (r->pending) {
        trace_walk *w = r->pending;
        r->pending = w->next;
        etch__tls.watches--;
        if (publish && w->recompile) etch__want_code(r->f, w->leaf, w);
        etch__walk_recycle(w);
    }
    while (r->recorded) {
        trace_walk *w = r->recorded;
        r->recorded = w->next;
        if (publish) {
            etch__mark_live(w, WANT_VALUE);
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

/* Whether the body, or what was computed for it, has set an error that is still there. */
static bool own_error(unsigned errors) {
    return etch__tls.status != ETCH_OK && etch__tls.errors != errors;
}

static etch_status failed_result(const trace_run *r, int i) {
    if (own_error(r->errors)) return etch__tls.status;
    return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                          "%s: result %d: the tensor's own computation failed before", r->f->name,
                          i);
}

static etch_status finish(trace_run *r, etch_status status, etch_tensor **out, int nout) {
    if (unlikely(r->f->options.replay) && status == ETCH_OK) {
        if (!r->replayed) etch__replay_note(r, out, nout);
        else if (r->check) etch__replay_compare(r, r->replayed, out);
    }
    status = close_scope(r, status, out, nout);
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
    if (unlikely(r->replay != NULL)) etch__replay_publish(r, status == ETCH_OK);
    etch__quick_restore(&error);
    if (unlikely(r->check) && status == ETCH_OK) etch__check_lost(r);
    if (unlikely(r->differs)) status = etch__check_report(r);
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (unlikely(out[i]->failed)) status = failed_result(r, i);
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
 * whose disabled functions it was. One that is left goes on, as after call_in_own_run. */
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

/* ---- calling ---- */

static etch_status scope_was_closed(void) {
    return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                          "etch_call: the body closed a scope that it had not opened");
}

/* What the body says has gone wrong has an error, too; what it did wrong without saying so fails it
 * where more than a result is lost. */
static inline etch_status checked_status(const etch_function *f, unsigned errors,
                                         etch_status status) {
    if (status == ETCH_OK) return etch__lost_since(errors) ? etch__tls.status : ETCH_OK;
    bool known = (unsigned)status < ETCH_STATUS_COUNT;
    if (own_error(errors)) return etch__tls.status = known ? status : ETCH_ERR_USER;
    if (!known)
        return etch__error_at(NULL, ETCH_ERR_USER, "%s: the body returned %d, which is no status",
                              f->name, (int)status);
    return etch__error_at(NULL, status, "%s: the body returned the error %s", f->name,
                          etch_status_name(status));
}

static inline etch_status results_of(const etch_function *f, unsigned errors, etch_status status,
                                     etch_tensor *const *out, int nout) {
    status = checked_status(f, errors, status);
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (!out[i])
            status = own_error(errors) ? etch__tls.status
                                       : etch__error_at(NULL, ETCH_ERR_USER,
                                                        "%s: the body returned NULL", f->name);
    return status;
}

etch_status etch__checked_results(const etch_function *f, unsigned errors, etch_status status,
                                  etch_tensor *const *out, int nout) {
    return results_of(f, errors, status, out, nout);
}

/* scope: the call's own, on top of which the body has closed all others or not. */
static etch_status checked_results(const etch_function *f, int64_t scope, unsigned errors,
                                   etch_status status, etch_tensor **out, int nout) {
    if (etch__tls.nscopes <= scope) return scope_was_closed();
    return results_of(f, errors, status, out, nout);
}

/* The body in a scope of its own, operators as the thread runs them anyway (rule 4). */
etch_status etch__call_in_scope(etch_function *f, etch_tensor *const *in, int nin,
                                etch_tensor **out, int nout) {
    int64_t scope = etch_scope_begin();
    if (scope < 0) return etch__tls.status;
    unsigned errors = etch__tls.errors;
    etch_status status = etch__call_body(f, in, nin, out, nout);
    status = checked_results(f, scope, errors, status, out, nout);
    close_deeper(scope, status, out, nout);
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (!etch_keep(out[i])) status = etch__tls.status;
    etch_scope_end(scope);
    return status;
}

static etch_status call_at(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                           int nout, const void *site);

/* Inside a disabled function, a compiled one starts a run of its own. */
static etch_status call_in_own_run(trace_run *r, etch_function *f, etch_tensor *const *in, int nin,
                                   etch_tensor **out, int nout, const void *site) {
    trace_run *before = suspended;
    for (int i = 0; i < nin; i++) {
        if (in[i]->deferred) etch__late_use(r, in[i]->owner, in[i]);
        if (etch__is_spoilt(in[i])) return etch__spoilt_error(f->name, site);
    }
    for (trace_walk *w = r->recorded; w; w = w->next)
        for (int i = 0; i < nin; i++) etch__mark_want(w, in[i]);
    suspended = r;
    empty_frame frame = etch__push_frame();
    etch__tls.in_flush = frame.in_flush;
    etch__tls.layers = frame.layers & ~(1u << LAYER_TRACER);
    etch__fp_control(frame.fp);
    etch_status status = call_at(f, in, nin, out, nout, site);
    uint64_t state = etch__tls.state;
    frame.fp_changed = false;
    etch__pop_frame(&frame);
    etch__tls.state = state;
    suspended = before;
    return status;
}

etch_status etch__call_off(trace_run *r, etch_function *f, etch_tensor *const *in, int nin,
                           etch_tensor **out, int nout, const void *site) {
    etch_status status = etch__break_graph(r, REASON_BREAK_DISABLED, site, NULL, f->name);
    if (status != ETCH_OK) return status;
    r->off++;
    status = etch__call_in_scope(f, in, nin, out, nout);
    r->off--;
    return status;
}

/* With a run active the body is recorded into it, unless its own options forbid that (rule 14). */
static etch_status call_nested(trace_run *r, etch_function *f, etch_tensor *const *in, int nin,
                               etch_tensor **out, int nout, const void *site) {
    bool disabled = etch__disabled(f) || (r->off && etch__blocking_mode());
    if (r->off && !disabled) return call_in_own_run(r, f, in, nin, out, nout, site);
    if (r->off || (!disabled && f->options.numerics == r->f->options.numerics))
        return etch__call_in_scope(f, in, nin, out, nout);
    return etch__call_off(r, f, in, nin, out, nout, site);
}

bool etch__stop_matching(trace_run *r, etch_tensor *const *in, int nin) {
    trace_walk *w = r->walk;
    for (int i = 0; i < nin; i++)
        if (in[i]->deferred && in[i]->owner != w) {
            trace_walk *owner = etch__owner_in(r, in[i], NULL);
            if (!owner) return false;
            etch__late_use(r, owner, in[i]);
            if (!etch__handle_ok(in[i], "etch_call", "an argument", NULL)) return false;
        }
    if (!w || w->mode != WALK_MATCH) return true;
    bool full = r->f->options.fullgraph;
    if (!etch__may_compile()) etch__obey_stance(r, NULL);
    if (r->poisoned) return etch__poisoned(r, NULL), false;
    if (r->by_stance || etch__root_limited(r, w->tree)) {
        if (!etch__go_on_eagerly(r, w)) return false;
        etch__walk_recycle(w);
        return true;
    }
    STOP_TRACING;
    return etch__walk_to_recording(w, full ? WALK_SHAPES : WALK_RECORD);
}

etch_status etch__learn_shapes(trace_run *r, etch_function *f, etch_tensor *const *in, int nin,
                               tensor_meta *meta) {
    trace_walk *outer = r->walk, *w = etch__walk_take(r, NULL);
    if (!w) return ETCH_ERR_OUT_OF_MEMORY;
    w->mode = WALK_SHAPES;
    r->walk = w;
    etch_tensor *out = NULL;
    int64_t scope = etch_scope_begin();
    etch_status status = scope < 0 ? etch__tls.status : etch__call_in_scope(f, in, nin, &out, 1);
    if (status == ETCH_OK) etch__guard_make(out, meta);
    etch_scope_end(scope);
    etch__walk_fail(w);
    etch__walk_recycle(w);
    r->walk = outer;
    return status;
}

static etch_status call_traced(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    trace_run *r = take_run(f);
    if (!r) return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status;
    const replay *p = NULL;
    if (unlikely(f->options.replay)) r->replayed = etch__replay_find(r->gen, in, nin, nout);
    if (!r->check) p = r->replayed; /* else the body is run, and compared with it */
    saved_error before;
    etch__quick_save(&before);
    if (enter(r, p, in, nin)) {
        etch__quick_restore(&before);
        status = p ? etch__replay_run(r, p, out, nout) : etch__call_body(f, in, nin, out, nout);
        if (etch__current_run() != r) return scope_was_closed(); /* and the run abandoned */
        status = checked_results(f, r->scope, r->errors, status, out, nout);
        if (r->poisoned && status == ETCH_OK) status = etch__poisoned(r, NULL);
        status = finish(r, status, out, nout);
    } else {
        status = etch__tls.status;
        if (r->walk) etch__walk_recycle(r->walk);
        if (r->by_stance) etch__quick_restore(&before);
        if (r->by_stance) status = etch__call_in_scope(f, in, nin, out, nout);
    }
    give_back_run(r);
    return status;
}

/* The call may free the function, but not its record. */
static etch_status call_reported(etch_function *f, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout) {
    report_function *report = etch__report_function(f);
    int64_t start = etch__report_now();
    etch_status status = call_traced(f, in, nin, out, nout);
    if (report) etch__report_add_time(&report->calls, start);
    return status;
}

static bool counts_ok(const etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                      int nout) {
    if (nin < 0 || (f->kind != FN_N && nin != (int)f->kind))
        etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT, "%s: expected %d arguments, got %d",
                       f->name, f->kind == FN_N ? 0 : (int)f->kind, nin);
    else if (nout < 0 || (f->kind != FN_N && nout != 1))
        etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: the function has 1 result, asked for %d", f->name, nout);
    else if ((nin && !in) || (nout && !out))
        etch__error_at(NULL, ETCH_ERR_NULL, "%s: expected an array of %s, got NULL", f->name,
                       nin && !in ? "arguments" : "results");
    else return true;
    return false;
}

/* Names of functions do not live for ever, which the one that an older error goes on with must. */
static bool bad_argument(const etch_function *f, const etch_tensor *t, int i, const void *site) {
    bool released = t && t->magic != TENSOR_ALIVE;
    if (etch__tls.status != ETCH_OK && !released)
        etch__error_follows("etch_call", "an argument", site);
    else if (!t)
        etch__error_at(site, ETCH_ERR_NULL, "%s: argument %d: expected a tensor, got NULL", f->name,
                       i);
    else if (released)
        etch__error_at(site, ETCH_ERR_RELEASED,
                       "%s: argument %d was released before (keep it with etch_keep or "
                       "etch_retain)",
                       f->name, i);
    else
        etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: argument %d: the tensor's own computation failed before", f->name, i);
    return false;
}

static bool arguments_ok(const etch_function *f, etch_tensor *const *in, int nin,
                         const void *site) {
    for (int i = 0; i < nin; i++)
        if (unlikely(!etch__usable(in[i]))) return bad_argument(f, in[i], i, site);
    if (likely(etch__tls.nscopes)) return true;
    if (etch__scope_lost(site)) return false;
    etch__error_at(site, ETCH_ERR_NO_SCOPE,
                   "%s: no scope is open on this thread to own the result: put the "
                   "call into ETCH_SCOPE { ... }",
                   f->name);
    return false;
}

/* A function for which every size is fixed cannot take a dimension that is marked dynamic. */
static bool marks_ok(const etch_function *f, etch_tensor *const *in, int nin, const void *site) {
    for (int i = 0; f->options.dynamic == ETCH_DYNAMIC_OFF && i < nin; i++) {
        if (!etch__marked_dynamic(in[i])) continue;
        etch__error_at(site, ETCH_ERR_SPECIALISED,
                       "%s: dimension %d of argument %d is marked dynamic, but the function was "
                       "compiled with ETCH_DYNAMIC_OFF, which fixes every size",
                       f->name, __builtin_ctz(in[i]->marks->dynamic), i);
        return false;
    }
    return true;
}

static etch_status call_under_mode(const etch_mode *mode, etch_function *f, etch_tensor *const *in,
                                   int nin, etch_tensor **out, int nout) {
    if (f->options.fullgraph)
        return etch__error_at(NULL, ETCH_ERR_MODE_ACTIVE,
                              "%s: fullgraph = true, but an interceptor mode is "
                              "active; leave the mode first",
                              f->name);
    etch__count_reason(REASON_EAGER_MODE);
    etch__note_mode(f, etch_mode_name(mode));
    TRACE_COUNT(f, mode_fallbacks, 1);
    etch__log(LOG_MODES, "'%s' is active, running %s() uncompiled", etch_mode_name(mode), f->name);
    return etch__call_in_scope(f, in, nin, out, nout);
}

static etch_status call_function(etch_function *f, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout, const void *site) {
    if (!arguments_ok(f, in, nin, site)) return etch__tls.status;
    TRACE_COUNT(f, calls, 1);
    trace_run *r = etch__current_run();
    if (unlikely(f->wrap)) return etch__call_wrapped(f, in, nin, out, nout, site);
    if (r) return call_nested(r, f, in, nin, out, nout, site);
    if (etch__disabled(f)) return etch__call_in_scope(f, in, nin, out, nout);
    const etch_mode *mode = etch__tls.mode_level ? etch__blocking_mode() : NULL;
    if (unlikely(mode)) return call_under_mode(mode, f, in, nin, out, nout);
    for (int i = 0; i < nin; i++)
        if (unlikely(in[i]->deferred) &&
            etch__materialise(in[i], "etch_call", REASON_BREAK_FLUSH, site) != ETCH_OK)
            return etch__tls.status;
    if (unlikely(!marks_ok(f, in, nin, site))) return etch__tls.status;
    if (etch__report_on()) return call_reported(f, in, nin, out, nout);
    return call_traced(f, in, nin, out, nout);
}

static void clear(etch_tensor **out, int nout) {
    for (int i = 0; i < nout; i++) out[i] = NULL;
}

/* The body may free the function, so its name is kept for the profile. */
static etch_status call_profiled(etch_function *f, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout, const void *site) {
    char name[64];
    snprintf(name, sizeof name, "%s", f->name);
    int64_t start = etch__profile_now();
    etch_status status = call_function(f, in, nin, out, nout, site);
    etch__profile_add(ETCH_PROFILE_CALL, start, name, NULL);
    return status;
}

/* Memory that a copy is still filling, or reading, is no exposed memory to the body. What the
 * function captures is not known yet. */
static etch_status await_copies(etch_tensor *const *in, int nin) {
    etch__before_read(NULL);
    for (int i = 0; i < nin; i++)
        if (in[i] && in[i]->magic == TENSOR_ALIVE && etch__await_copy(in[i]) != ETCH_OK)
            return etch__tls.status;
    return ETCH_OK;
}

/* Whether an array begins among the n entries of another. */
static inline bool begins_in(etch_tensor *const *at, etch_tensor *const *list, int n) {
    return (uintptr_t)at - (uintptr_t)list < (size_t)n * sizeof *list;
}

static etch_status call_at(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                           int nout, const void *site);

/* Results go to the places of arguments: the body reads copies of those, an error leaves them. Few
 * are copied to the stack, which a body may also leave by longjmp. */
static etch_status call_in_place(etch_function *f, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout, const void *site) {
    etch_tensor *few[32], **own = few;
    if (nin > COUNT_OF(few) && !(own = etch__malloc((size_t)nin * sizeof *own)))
        return etch__tls.status;
    memcpy(own, in, (size_t)nin * sizeof *own);
    etch_status status = call_at(f, own, nin, out, nout, site);
    for (int i = 0; status != ETCH_OK && i < nout; i++)
        if (begins_in(out + i, in, nin)) out[i] = own[(etch_tensor *const *)(out + i) - in];
    if (own != few) etch__free(own);
    return status;
}

/* The function may be gone. */
static etch_status failed_silently(etch_status status, const void *site) {
    return etch__error_at(site, status, "etch_call: it failed without a reason: %s",
                          etch_status_name(status));
}

static etch_status call_at(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                           int nout, const void *site) {
    if (unlikely(!f))
        return etch__error_at(NULL, ETCH_ERR_NULL, "etch_call: expected a function, got NULL");
    if (unlikely(!counts_ok(f, in, nin, out, nout))) return etch__tls.status;
    if (unlikely(begins_in(out, in, nin) || begins_in(in, out, nout)))
        return call_in_place(f, in, nin, out, nout, site);
    clear(out, nout);
    if (unlikely(await_copies(in, nin) != ETCH_OK)) return etch__tls.status;
    unsigned errors = etch__tls.errors;
    etch_status status = unlikely(etch__profile_on()) ? call_profiled(f, in, nin, out, nout, site)
                                                      : call_function(f, in, nin, out, nout, site);
    if (likely(status == ETCH_OK)) return ETCH_OK;
    clear(out, nout);
    return own_error(errors) ? status : failed_silently(status, site);
}

etch_status etch_call_n(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                        int nout) {
    return call_at(f, in, nin, out, nout, __builtin_return_address(0));
}

etch_tensor *etch_call_one(etch_function *f, etch_tensor *const *in, int nin) {
    etch_tensor *out = NULL;
    const void *site = __builtin_return_address(0);
    return call_at(f, in, nin, &out, 1, site) == ETCH_OK ? out : NULL;
}

/* ---- hooks ---- */

static void free_spare_run(etch_thread *t) {
    etch__free(t->spare_run);
    t->spare_run = NULL;
}

__attribute__((constructor)) static void register_tracer(void) {
    etch__at_thread_end(free_spare_run);
    etch__register_layer(LAYER_TRACER, etch__traced_operator);
    etch__trace_hooks.read = etch__trace_read;
    etch__trace_hooks.expose = etch__trace_expose;
    etch__trace_hooks.same_storage = etch__trace_same_storage;
    etch__trace_hooks.offset = etch__trace_offset;
    etch__trace_hooks.abandon = trace_abandon;
}
