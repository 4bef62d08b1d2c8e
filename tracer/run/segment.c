/* Ending a segment: by its plan, or through the eager kernels as the end of a recording; and what
 * happens to it afterwards: published, compiled, evaluated late, given back. Rules by number are
 * those of the cursor, docs/architecture.md. */
#include "tracer/trace/recipe.h"
#include "tracer/run/run.h"
#include "tracer/tell/event.h"
#include "tracer/tell/report.h"

/* ---- settling: recordings become leaves, leaves get code ---- */

static int stable_after(const etch_function *f) {
    return f->options.stable_after > 1 ? f->options.stable_after : 1;
}

void etch__warn_of_limit(trace_run *r) {
    if (likely(!r->warning.due)) return;
    r->warning.due = false;
    etch__event_limit(r->f, r->warning.graphs);
}

/* A recording's sizes were noted when it ended. */
static bool request_for(trace_walk *w, trace_leaf *leaf, compile_request *q) {
    saved_error before;
    etch__quick_save(&before);
    bool ok = !leaf->dynamic || w->mode != WALK_MATCH || etch__walk_metas(w);
    etch__quick_restore(&before);
    *q = (compile_request){w->run->f, leaf, &w->seen, COMPILE_FOR_CALL};
    return ok;
}

void etch__ask_code_for(trace_walk *w, trace_leaf *leaf) {
    compile_request q;
    if (request_for(w, leaf, &q)) etch__ask_code(&q);
}

trace_leaf *etch__settle(trace_run *r, trace_walk *w) {
    if (!etch__may_compile()) return NULL;
    attempt a;
    etch__attempt(&a);
    pthread_mutex_lock(&r->f->lock);
    trace_leaf *leaf = etch__publish(r->f, r->gen, w, &r->warning);
    w->rec.published = true;
    if (w->entry) r->replay.leaf = leaf;
    if (leaf && r->noted != etch__tls.noted) leaf->noted = true;
    if (leaf && r->backwards != etch__tls.backwards && !r->f->backward) leaf->joint = true;
    bool ripe = leaf && (leaf->codes || leaf->times_recorded >= stable_after(r->f));
    pthread_mutex_unlock(&r->f->lock);
    etch__warn_of_limit(r);
    if (ripe) etch__ask_code_for(w, leaf);
    etch__succeeded(&a);
    return leaf;
}

/* A handle that is the walk's alone lets go of its edge, as it does when it dies: a leaf made of
 * a deferred value would keep its gradient, for which nobody can ask any more. Whether any had
 * one. */
static bool drop_dead_leaves(trace_walk *w) {
    bool any = false;
    for (int64_t v = 0; v < w->nvalues; v++) {
        etch_tensor *h = w->c.value[v];
        if (!h || !h->owner || etch__is_live(h) || !h->layers) continue;
        etch__drop_grad(h->notes);
        h->layers = 0, any = true;
    }
    return any;
}

void etch__note_live(trace_walk *w, uint8_t bit) {
    if (w->mode != WALK_RECORD) drop_dead_leaves(w);
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        const etch_tensor *h = w->c.value[n->c.out];
        bool live = w->mode == WALK_RECORD ? !etch__tensor_is_dead(h) : etch__is_live(h);
        if (n->c.inplace || !live) continue;
        bool saved = h->view & VIEW_SAVED && bit == WANT_VALUE;
        w->rec.want[n->c.out] |= saved ? WANT_SAVED : bit;
    }
}

/* What compiling needs to know of the inputs, while the walk still holds them: which share a
 * storage, and, of a dynamic walk, all sizes. */
static bool describe_inputs(trace_walk *w) {
    int32_t *inputs = etch__malloc(((size_t)w->nvalues + 1) * sizeof *inputs);
    if (!inputs) return false;
    int n = etch__path_inputs(w->path, w->npath, w->nargs, inputs, &(int){0});
    bool ok = etch__walk_alias(w, inputs, n) &&
              (!w->rec.dynamic || (etch__walk_key(w, inputs, n) && etch__walk_metas(w)));
    etch__free(inputs);
    return ok;
}

/* ---- late use (rule 6) ---- */

static bool has_live_deferred(const trace_walk *w) {
    for (int i = 0; i < w->leaf->nsteps; i++) {
        const etch_tensor *h = w->c.value[w->leaf->steps[i].out];
        if (h->deferred && etch__is_live(h)) return true;
    }
    return false;
}

void etch__note_used_late(trace_run *r, trace_walk *w, const etch_tensor *t) {
    trace_leaf *leaf = w->leaf;
    pthread_mutex_lock(&r->f->lock);
    for (int i = 0; i < leaf->nsteps; i++) {
        int32_t v = leaf->steps[i].out;
        const etch_tensor *h = w->c.value[v];
        bool other = t ? h != t : !h->deferred || !etch__is_live(h);
        if (leaf->want[v] & WANT_VALUE || other) continue;
        leaf->want[v] |= WANT_VALUE;
        leaf->stale = w->end.recompile = true;
    }
    pthread_mutex_unlock(&r->f->lock);
}

/* Evaluates all that is live and still deferred of an ended segment. The second time in one run, as
 * in a loop that breaks, its leaf is compiled again at once; else when the call has ended. */
void etch__late_use(trace_run *r, trace_walk *w, const etch_tensor *t) {
    if (!w->end.pending) return;
    w->end.pending = false;
    if (!has_live_deferred(w)) return;
    trace_leaf *leaf = w->leaf;
    etch__note_used_late(r, w, t);
    etch_status status = !etch__walk_path(w) ? ETCH_ERR_OUT_OF_MEMORY
                         : leaf->lean        ? etch__evaluate_kept(w)
                                             : etch__evaluate(w, true);
    if (status != ETCH_OK) etch__walk_fail(w);
    etch__drop_kept_inputs(w);
    char line[160] = "";
    if (etch__log_on(LOG_TRACE))
        snprintf(line, sizeof line, "%s: late use of a tensor of segment %d", r->f->name,
                 leaf->tree->number);
    etch__event(r->f, EVENT_LATE_USE,
                &(trace_event){REASON_RECOMPILE_LATE_USE, .site = leaf->site, .line = line});
    if (atomic_exchange(&leaf->late_run, r) == r) etch__ask_code_for(w, leaf);
}

void etch__late_use_all(trace_run *r) {
    for (trace_walk *w = r->pending; w; w = w->next) etch__late_use(r, w, NULL);
}

/* ---- ending a segment ---- */

void etch__note_used(trace_walk *w, const etch_tensor *t) {
    int32_t v = t ? etch__walk_find(w, t) : -1;
    if (v >= 0 && v < w->rec.want_cap) w->rec.want[v] |= WANT_VALUE;
}

void etch__end_recorded(trace_walk *w, const etch_tensor *t) {
    saved_error before; /* what cannot be described is not published, that is all */
    etch__quick_save(&before);
    w->end.publishable = describe_inputs(w);
    etch__quick_restore(&before);
    etch__note_used(w, t);
    if (w->end.why == REASON_BREAK_FLUSH) etch__note_live(w, WANT_VALUE);
    else if (w->end.why != END_RETURN) etch__note_live(w, WANT_LIVE);
}

/* Whether the code produces all that must be there after the segment (rule 5). */
static bool code_suffices(trace_walk *w, const trace_leaf *leaf, const segment_code *code,
                          const etch_tensor *t) {
    bool all = w->end.why == END_RETURN || w->end.why == REASON_BREAK_FLUSH;
    for (int i = 0; i < code->nmissing; i++) {
        int32_t v = code->made[i];
        const etch_tensor *h = w->c.value[v];
        if (likely(!etch__is_live(h)) || !h->deferred) continue;
        if (all && etch__gets_recipe(code, h, v)) continue;
        if (all || h == t || (code->tainted[v] && !leaf->lean)) return false;
        w->end.pending = true; /* for late use */
    }
    return true;
}

/* A segment that ran eagerly would have to be compiled anew. */
static void note_recompile(trace_run *r, reason_id why, const void *site) {
    if (why != REASON_RECOMPILE_DIVERGED)
        etch__event(r->f, EVENT_RECOMPILE, &(trace_event){.why = why, .site = site});
    r->refused |= etch__stance == ETCH_STANCE_FAIL_ON_RECOMPILE;
}

/* Walks whose deferred handles have died meanwhile go back to their trees, and let go of what they
 * hold: a loop that breaks in its body leaves one every round. Few are looked through each time,
 * many once they have grown by an eighth. */
static void recycle_dead(trace_run *r) {
    if (r->npending <= r->recycle_at) return;
    for (trace_walk **link = &r->pending; *link;) {
        trace_walk *w = *link;
        if (w->end.recompile || (w->end.pending && has_live_deferred(w))) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        r->npending--;
        etch__tls.watches--;
        etch__walk_recycle(w);
    }
    r->recycle_at = r->npending + r->npending / 8;
}

void etch__before_plan(const trace_walk *w, const trace_leaf *leaf) {
    for (int i = 0; etch__tls.watches && i < leaf->ninputs; i++) {
        int32_t v = leaf->inputs[i];
        if (leaf->written[v]) etch__before_write(w->c.value[v]->storage);
    }
}

static bool run_plan(trace_run *r, trace_walk *w, trace_leaf *leaf, const etch_tensor *t) {
    bool overlap;
    segment_code *code = etch__pick_code(w, leaf, &overlap);
    if (overlap)
        etch__event(r->f, EVENT_RECOMPILE,
                    &(trace_event){.why = REASON_RECOMPILE_OVERLAP, .site = leaf->site});
    if (!code && leaf->dynamic && leaf->codes && !overlap) {
        /* Other sizes than ever before: a plan for them, from kernels that are there. */
        compile_request q;
        if (request_for(w, leaf, &q)) etch__ask_code_now(&q);
        code = etch__keep_instance(w, leaf);
    }
    bool suffices = code && (code_suffices(w, leaf, code, t) ||
                             (drop_dead_leaves(w) && code_suffices(w, leaf, code, t)));
    if (code && !suffices) note_recompile(r, REASON_RECOMPILE_OUTPUTS, leaf->site);
    suffices = suffices && etch__keep_inputs(w, leaf, code);
    return suffices && (etch__run_code(w, leaf, code) == ETCH_OK || r->poisoned);
}

/* A plan that fails before it has written leaves no error: the eager kernels tell what is wrong. */
static inline __attribute__((always_inline)) bool
run_matched(trace_run *r, trace_walk *w, trace_leaf *leaf, const etch_tensor *t) {
    if (!leaf->npath) return true;
    recycle_dead(r);
    if (leaf->writes_inputs) etch__before_plan(w, leaf);
    saved_error before;
    etch__quick_save(&before);
    bool done = run_plan(r, w, leaf, t);
    if (likely(!r->poisoned)) etch__quick_restore(&before);
    return done;
}

static bool writes(const trace_walk *w) {
    for (const trace_node *n = (const trace_node *)w->c.last; n != &w->tree->root; n = n->parent)
        if (n->c.inplace) return true;
    return false;
}

/* There is no memory even to go over the nodes: nothing of the segment is computed. Nobody has
 * noted which memory it was to write, so that nothing more is computed from there on. */
static void lose_segment(trace_run *r, trace_walk *w) {
    etch__walk_fail(w);
    etch__tls.lost = etch__tls.errors;
    r->poisoned |= writes(w);
}

/* Ends a matched segment: by its plan, or through the eager kernels as the end of a recording. */
void etch__end_matched(trace_run *r, trace_walk *w, const etch_tensor *t) {
    const trace_node *last = (const trace_node *)w->c.last;
    trace_node *end = etch__find_end(last, w->end.why);
    if (end) {
        w->leaf = end->leaf;
        etch__predict(last, end);
        if (run_matched(r, w, end->leaf, t)) return;
        if (etch__report_on() && end->leaf->report) end->leaf->report->eager++;
        w->end.pending = false;
    } else {
        etch__event_diverged(r->f, (const trace_node *)w->c.next, NULL, w->end.site);
        note_recompile(r, REASON_RECOMPILE_DIVERGED, NULL);
    }
    w->leaf = NULL;
    if (etch__walk_to_recording(w, WALK_RECORD)) etch__end_recorded(w, t);
    else lose_segment(r, w);
}

/* The walk has ended: it is kept while its recording or its deferred handles are of use. */
void etch__retire_walk(trace_run *r, trace_walk *w) {
    r->walk = NULL;
    STOP_TRACING;
    if (!w->end.publishable && !w->end.pending) {
        etch__walk_recycle(w);
        return;
    }
    if (w->end.publishable) etch__walk_watch(w);
    else etch__walk_own_args(w);
    trace_walk **list = w->end.publishable ? &r->recordings : &r->pending;
    r->npending += w->end.pending;
    if (list == &r->pending) etch__tls.watches++;
    w->next = *list;
    *list = w;
}

void etch__end_segment(trace_run *r, reason_id why, const void *site, const etch_tensor *t) {
    trace_walk *w = r->walk;
    if (!w) return;
    w->end.why = why;
    w->end.site = site;
    if (w->mode == WALK_MATCH) etch__end_matched(r, w, t);
    else etch__end_recorded(w, t);
    etch__retire_walk(r, w);
}
