/* Uses of what is deferred from outside of its segment: reads and writes by the body, by another
 * run of the thread, or by a function of the user; etch_flush. Rules by number are those of the
 * cursor, docs/architecture.md. */
#include "tracer/run/run.h"
#include "core/base/start.h"

/* ---- between two operators, and before writes ---- */

/* The run behind a function of the user that was called between two operators of its body: its
 * segment ends there, and goes on behind. */
static void end_interrupted(empty_frame *f, reason_id why, const void *site) {
    trace_run *r = f->run;
    empty_frame *frames = etch__tls.interrupted;
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

static bool interrupts(const empty_frame *f, const etch_storage *s) {
    const trace_run *r = f->run;
    const trace_walk *w = r ? r->walk : NULL;
    return w && has_deferred(w) && (!s || etch__walk_touches(w, s));
}

static bool depends_on(const trace_walk *w, const etch_storage *s) {
    return w->end.pending && (s ? etch__late_reads(w, s) : etch__walk_touches(w, NULL));
}

/* With so many ended segments looking for those that depend on a write costs more than it saves. */
enum { FEW_WATCHES = 64 };

static void before_traced_read(const etch_storage *s) {
    for (empty_frame *f = etch__tls.interrupted; f; f = f->outer)
        if (interrupts(f, s)) end_interrupted(f, REASON_BREAK_WRITTEN, NULL);
}

static void before_traced_write(const etch_storage *s) {
    if (s) before_traced_read(s);
    bool all = etch__tls.watches > FEW_WATCHES;
    for (trace_run *r = etch__tls.runs; r; r = r->below)
        for (trace_walk *w = r->pending; w; w = w->next)
            if (all || depends_on(w, s)) etch__late_use(r, w, NULL);
}

/* Plans learn what a flush finds, those of segments that were recorded too. */
static void produce_all(const void *site) {
    for (empty_frame *f = etch__tls.interrupted; f; f = f->outer)
        if (interrupts(f, NULL)) end_interrupted(f, REASON_BREAK_FLUSH, site);
    for (trace_run *r = etch__tls.runs; r; r = r->below) {
        for (trace_walk *w = r->recordings; w; w = w->next) etch__note_live(w, WANT_VALUE);
        etch__late_use_all(r);
    }
}

/* ---- reads ---- */

static etch_status read_in_run(const etch_tensor *t, reason_id why, const void *site) {
    trace_run *r = etch__current_run();
    if (!r && !t) {
        produce_all(site);
        return ETCH_OK;
    }
    if (!r)
        return etch__error_at(
            site, etch__tls.in_flush ? ETCH_ERR_DEFERRED_IN_FLUSH : ETCH_ERR_DEFERRED_ELSEWHERE,
            "the tensor is a deferred tensor of a function that is running elsewhere");
    if (t && t->deferred && !etch__owner_in(r, t, site)) return ETCH_ERR_DEFERRED_ELSEWHERE;
    etch_status status = etch__break_graph(r, why, site, t, NULL);
    if (status != ETCH_OK) return status;
    if (why == REASON_BREAK_FLUSH && !t) produce_all(site);
    if (t && t->deferred) etch__late_use(r, t->owner, t);
    if (t && t->deferred)
        return etch__error_at(site, ETCH_ERR_INTERNAL, "a deferred tensor was not produced");
    if (t && unlikely(etch__is_spoilt(t))) return etch__spoilt_error(etch__reasons[why].name, site);
    return ETCH_OK;
}

/* Who reads a tensor is told whether that is there; who reads none, of all that has failed. */
static etch_status trace_read(const etch_tensor *t, reason_id why, const void *site) {
    attempt a;
    etch__attempt(&a);
    etch_status status = read_in_run(t, why, site);
    if (status != ETCH_OK) return status;
    return etch__succeeded(&a) || t ? ETCH_OK : etch__tls.status;
}

void etch__start_uses(void) {
    etch__trace_hooks.read = trace_read;
    etch__trace_hooks.before_write = before_traced_write;
    etch__trace_hooks.before_read = before_traced_read;
}
