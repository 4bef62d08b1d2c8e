/* Ending a segment: by its plan, or through the eager kernels as the end of a recording; and what
 * happens to it afterwards: published, compiled, evaluated late, given back. Rules by number are
 * those of the cursor, docs/architecture.md. */
#include "core/dispatch/mode.h"
#include "core/base/profile.h"
#include "tracer/tell/report.h"
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

/* ---- settling: recordings become leaves, leaves get code ---- */

static int stable_after(const etch_function *f) {
    return f->options.stable_after > 1 ? f->options.stable_after : 1;
}

/* Publishes an ended recording, and compiles its leaf when it has been seen often enough. */
trace_leaf *etch__settle(trace_run *r, trace_walk *w) {
    if (!etch__may_compile()) return NULL;
    attempt a;
    etch__attempt(&a);
    pthread_mutex_lock(&r->f->lock);
    trace_leaf *leaf = etch__publish(w);
    w->published = true;
    if (w->entry) r->leaf = leaf;
    bool ripe = leaf && (leaf->codes || leaf->recorded >= stable_after(r->f));
    pthread_mutex_unlock(&r->f->lock);
    if (unlikely(r->warn_limit)) etch__warn_limit(r);
    if (ripe) etch__want_code(r->f, leaf, w);
    etch__succeeded(&a);
    return leaf;
}

void etch__mark_live(trace_walk *w, uint8_t bit) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        const etch_tensor *h = w->c.value[n->c.out];
        bool live = w->mode == WALK_RECORD ? !etch__tensor_is_dead(h) : etch__is_live(h);
        if (n->c.inplace || !live) continue;
        w->want[n->c.out] |= bit;
    }
}

/* What compiling needs to know of the inputs, while the walk still holds them: which share a
 * storage, and, of a dynamic walk, all sizes. */
static bool describe_inputs(trace_walk *w) {
    int32_t *inputs = etch__malloc(((size_t)w->nvalues + 1) * sizeof *inputs);
    if (!inputs) return false;
    int n = etch__path_inputs(w->path, w->npath, w->nargs, inputs, &(int){0});
    bool ok = etch__fill_alias(w, inputs, n) &&
              (!w->dynamic || (etch__walk_key(w, inputs, n) && etch__walk_metas(w)));
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

/* Its leaf learns that a value is wanted after the segment: t, or (NULL) all that is live. */
void etch__want_late(trace_run *r, trace_walk *w, const etch_tensor *t) {
    trace_leaf *leaf = w->leaf;
    pthread_mutex_lock(&r->f->lock);
    for (int i = 0; i < leaf->nsteps; i++) {
        int32_t v = leaf->steps[i].out;
        const etch_tensor *h = w->c.value[v];
        if (leaf->want[v] || (t ? h != t : !h->deferred || !etch__is_live(h))) continue;
        leaf->want[v] = 1;
        leaf->stale = w->recompile = true;
    }
    pthread_mutex_unlock(&r->f->lock);
}

/* Evaluates all that is live and still deferred of an ended segment. The second time in one run, as
 * in a loop that breaks, its leaf is compiled again at once; else when the call has ended. */
void etch__late_use(trace_run *r, trace_walk *w, const etch_tensor *t) {
    if (!w->pending) return;
    w->pending = false;
    if (!has_live_deferred(w)) return;
    trace_leaf *leaf = w->leaf;
    etch__want_late(r, w, t);
    etch_status status = !etch__walk_path(w) ? ETCH_ERR_OUT_OF_MEMORY
                         : leaf->lean        ? etch__evaluate_kept(w)
                                             : etch__evaluate(w, true);
    if (status != ETCH_OK) etch__walk_fail(w);
    etch__drop_kept_inputs(w);
    etch__count_reason(REASON_RECOMPILE_LATE_USE);
    etch__note_recompile(r->f, REASON_RECOMPILE_LATE_USE, leaf->site, NULL);
    TRACE_COUNT(r->f, late_uses, 1);
    etch__log(LOG_TRACE, "%s: late use of a tensor of segment %d", r->f->name, leaf->tree->number);
    if (atomic_exchange(&leaf->late_run, r) == r) etch__want_code(r->f, leaf, w);
}

void etch__late_use_all(trace_run *r) {
    for (trace_walk *w = r->pending; w; w = w->next) etch__late_use(r, w, NULL);
}

/* ---- foreign uses: by another run of the thread, or by a function of the user ---- */

/* The run behind a function of the user that was called between two operators of its body: its
 * segment ends there, and goes on behind. */
static void end_interrupted(user_frame *f, reason_id why, const void *site) {
    trace_run *r = f->run;
    user_frame *frames = etch__tls.interrupted;
    etch__tls.interrupted = NULL; /* what is called meanwhile is no such place */
    etch__break_graph(r, why, site, NULL, NULL);
    etch__tls.interrupted = frames;
    f->cursor = NULL;
}

/* Whether a segment that is being walked has deferred values (those of a recording are there). */
static bool has_deferred(const trace_walk *w) {
    if (w->mode == WALK_MATCH) return w->c.last != &w->tree->root.c;
    return w->mode == WALK_SHAPES && w->npath;
}

static bool interrupts(const user_frame *f, const etch_storage *s) {
    const trace_run *r = f->run;
    const trace_walk *w = r ? r->walk : NULL;
    return w && has_deferred(w) && (!s || etch__walk_touches(w, s));
}

static bool depends_on(const trace_walk *w, const etch_storage *s) {
    return w->pending && (s ? etch__late_reads(w, s) : etch__walk_touches(w, NULL));
}

/* With so many ended segments looking for those that depend on a write costs more than it saves. */
enum { FEW_WATCHES = 64 };

static void before_traced_read(const etch_storage *s) {
    for (user_frame *f = etch__tls.interrupted; f; f = f->outer)
        if (interrupts(f, s)) end_interrupted(f, REASON_BREAK_WRITTEN, NULL);
}

void etch__before_traced_write(const etch_storage *s) {
    if (s) before_traced_read(s);
    bool all = etch__tls.watches > FEW_WATCHES;
    for (trace_run *r = etch__tls.runs; r; r = r->below)
        for (trace_walk *w = r->pending; w; w = w->next)
            if (all || depends_on(w, s)) etch__late_use(r, w, NULL);
}

/* Plans learn what a flush finds, those of segments that were recorded too. */
void etch__produce_all(const void *site) {
    for (user_frame *f = etch__tls.interrupted; f; f = f->outer)
        if (interrupts(f, NULL)) end_interrupted(f, REASON_BREAK_FLUSH, site);
    for (trace_run *r = etch__tls.runs; r; r = r->below) {
        for (trace_walk *w = r->recorded; w; w = w->next) etch__mark_live(w, WANT_VALUE);
        etch__late_use_all(r);
    }
}

__attribute__((constructor)) static void register_writes(void) {
    etch__trace_hooks.before_write = etch__before_traced_write;
    etch__trace_hooks.before_read = before_traced_read;
}

/* ---- ending a segment ---- */

void etch__mark_want(trace_walk *w, const etch_tensor *t) {
    int32_t v = t ? etch__walk_find(w, t) : -1;
    if (v >= 0 && v < w->want_cap) w->want[v] |= WANT_VALUE;
}

void etch__end_recorded(trace_walk *w, const etch_tensor *t) {
    saved_error before; /* what cannot be described is not published, that is all */
    etch__quick_save(&before);
    w->recorded = describe_inputs(w);
    etch__quick_restore(&before);
    etch__mark_want(w, t);
    if (w->end == REASON_BREAK_FLUSH) etch__mark_live(w, WANT_VALUE);
    else if (w->end != END_RETURN) etch__mark_live(w, WANT_LIVE);
}

/* Whether the code produces all that must be there after the segment (rule 5). */
static bool code_suffices(trace_walk *w, const trace_leaf *leaf, const segment_code *code,
                          const etch_tensor *t) {
    bool all = w->end == END_RETURN || w->end == REASON_BREAK_FLUSH;
    for (int i = 0; i < code->nmissing; i++) {
        int32_t v = code->made[i];
        const etch_tensor *h = w->c.value[v];
        if (likely(!etch__is_live(h)) || !h->deferred) continue;
        if (all || h == t || (code->tainted[v] && !leaf->lean)) return false;
        w->pending = true; /* for late use */
    }
    return true;
}

/* A segment that ran eagerly would have to be compiled anew. */
static void note_recompile(trace_run *r, reason_id why, const void *site) {
    if (why != REASON_RECOMPILE_DIVERGED) {
        etch__count_reason(why);
        etch__note_recompile(r->f, why, site, NULL);
    }
    r->refused |= etch__stance == ETCH_STANCE_FAIL_ON_RECOMPILE;
}

/* Walks whose deferred handles have died meanwhile go back to their trees, and let go of what they
 * hold: a loop that breaks in its body leaves one every round. Few are looked through each time,
 * many once they have grown by an eighth. */
static void sweep_pending(trace_run *r) {
    if (r->npending <= r->sweep_at) return;
    for (trace_walk **link = &r->pending; *link;) {
        trace_walk *w = *link;
        if (w->recompile || (w->pending && has_live_deferred(w))) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        r->npending--;
        etch__tls.watches--;
        etch__walk_recycle(w);
    }
    r->sweep_at = r->npending + r->npending / 8;
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
    if (overlap) etch__count_reason(REASON_RECOMPILE_OVERLAP);
    if (overlap) etch__note_recompile(r->f, REASON_RECOMPILE_OVERLAP, leaf->site, NULL);
    if (!code && leaf->dynamic && leaf->codes && !overlap) {
        /* Other sizes than ever before: a plan for them, from kernels that are there. */
        etch__compile_leaf(r->f, leaf, w);
        code = etch__keep_instance(w, leaf);
    }
    bool suffices = code && code_suffices(w, leaf, code, t);
    if (code && !suffices) note_recompile(r, REASON_RECOMPILE_OUTPUTS, leaf->site);
    suffices = suffices && etch__keep_inputs(w, leaf, code);
    return suffices && (etch__run_code(w, leaf, code) == ETCH_OK || r->poisoned);
}

/* A plan that fails before it has written leaves no error: the eager kernels tell what is wrong. */
static inline __attribute__((always_inline)) bool
run_matched(trace_run *r, trace_walk *w, trace_leaf *leaf, const etch_tensor *t) {
    if (!leaf->npath) return true;
    sweep_pending(r);
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
    trace_node *end = etch__find_end(last, w->end);
    if (end) {
        w->leaf = end->leaf;
        etch__predict(last, end);
        if (run_matched(r, w, end->leaf, t)) return;
        if (etch__report_on() && end->leaf->report) end->leaf->report->eager++;
        w->pending = false;
    } else {
        TRACE_COUNT(r->f, divergences, 1);
        etch__log_diverged(w, NULL);
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
    if (!w->recorded && !w->pending) {
        etch__walk_recycle(w);
        return;
    }
    if (w->recorded) etch__walk_watch(w);
    else etch__walk_own_args(w);
    trace_walk **list = w->recorded ? &r->recorded : &r->pending;
    r->npending += w->pending;
    if (list == &r->pending) etch__tls.watches++;
    w->next = *list;
    *list = w;
}

void etch__end_segment(trace_run *r, reason_id why, const void *site, const etch_tensor *t) {
    trace_walk *w = r->walk;
    if (!w) return;
    w->end = why;
    w->end_site = site;
    if (w->mode == WALK_MATCH) etch__end_matched(r, w, t);
    else etch__end_recorded(w, t);
    etch__retire_walk(r, w);
}
