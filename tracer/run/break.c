/* Graph breaks: what ends a segment from inside the body. */
#include "tracer/run/run.h"
#include "tracer/tell/event.h"

static etch_status refuse_break(trace_run *r, reason_id why, const void *site, const char *text) {
    const reason_info *reason = &etch__reasons[why];
    r->poisoned = true;
    return etch__error_at(site, ETCH_ERR_GRAPH_BREAK,
                          "%s: %s, but the graph breaks here: %s: %s%s%s; hint: %s", r->f->name,
                          r->see ? "it is to be exported" : "fullgraph = true", reason->name,
                          reason->text, text ? ": " : "", text ? text : "", reason->hint);
}

/* The error that poisoned the run is the reason, while it is there. */
etch_status etch__poisoned(const trace_run *r, const void *site) {
    if (etch__tls.status != ETCH_OK) {
        etch__tls.errors++;
        return etch__tls.status;
    }
    return etch__error_at(site, r->f->options.fullgraph ? ETCH_ERR_GRAPH_BREAK : ETCH_ERR_USER,
                          "%s: the call has failed before, and computes nothing any more",
                          r->f->name);
}

/* A break ends the segment; t is what it reads. Between segments there is nothing to break. */
static etch_status break_graph(trace_run *r, reason_id why, const void *site, const etch_tensor *t,
                               const char *text) {
    if (r->f->options.fullgraph && !r->eager_by_stance) return refuse_break(r, why, site, text);
    if (!r->replay.broke) r->replay.broke = why + 1, r->replay.broke_site = site;
    bool matched = r->walk && r->walk->mode == WALK_MATCH;
    if (r->walk) {
        trace_event e = {.why = why, .site = site, .detail = text, .known = matched};
        etch__event(r->f, EVENT_BREAK, &e);
    }
    etch__end_segment(r, why, site, t);
    r->eager = false;
    return r->poisoned ? etch__poisoned(r, site) : ETCH_OK;
}

etch_status etch__break_graph(trace_run *r, reason_id why, const void *site, const etch_tensor *t,
                              const char *text) {
    attempt a;
    etch__attempt(&a);
    bool recorded = r->walk && r->walk->mode != WALK_MATCH; /* and so told of, with its place */
    if (recorded) site = etch__user_site(site, NULL);
    etch_status status = break_graph(r, why, site, t, text);
    if (status == ETCH_OK) etch__succeeded(&a);
    return status;
}

/* The walk of this run that has to produce t; NULL with the error set if t is another thread's.
 * What belongs to an outer run is produced at once. */
trace_walk *etch__owner_in(trace_run *r, const etch_tensor *t, const void *site) {
    trace_walk *w = t->owner;
    if (w && w->run == r) return w;
    for (trace_run *o = r->outer; w && o; o = o->outer)
        if (w->run == o) {
            etch__late_use(o, w, t);
            return w;
        }
    return etch__null_at(
        site, ETCH_ERR_DEFERRED_ELSEWHERE,
        "the tensor is a deferred tensor of a function that runs on another thread; call "
        "etch_flush there first");
}

etch_status etch_graph_break(const char *why) {
    trace_run *r = etch__current_run();
    attempt a;
    if (!r) return ETCH_OK;
    etch__attempt(&a);
    const void *site = __builtin_return_address(0);
    etch_status status = etch__break_graph(r, REASON_BREAK_USER, site, NULL, why);
    if (status != ETCH_OK) return status;
    return etch__succeeded(&a) ? ETCH_OK : etch__tls.status;
}
