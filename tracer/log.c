/* What happened, for people: breaks, divergences, guards that failed, the recompile limit. */
#include "tracer/run.h"
#include "tracer/trace.h"

static const char *line_of(const void *site) {
    const char *line = etch__site_line(site);
    return line[0] ? line : "?";
}

void etch__log_break(const run *r, reason_id why, const void *site, const char *text) {
    etch__count_reason(why);
    if (!etch__log_on(LOG_GRAPH_BREAKS)) return;
    const reason_info *reason = &etch__reasons[why];
    etch__log(LOG_GRAPH_BREAKS, "%s: %s: %s: %s%s%s; hint: %s", r->f->name, line_of(site),
              reason->name, reason->text, text ? ": " : "", text ? text : "", reason->hint);
}

void etch__log_diverged(const walk *w, const op_call *call) {
    etch__count_reason(REASON_RECOMPILE_DIVERGED);
    if (!etch__log_on(LOG_RECOMPILES) && !etch__log_on(LOG_TRACE)) return;
    const trace_node *expected = (const trace_node *)w->c.next;
    bool end = expected->c.key == CURSOR_END;
    bool operands = !end && call && expected->op == call->op;
    char text[512];
    snprintf(text, sizeof text, "%s: %s: %s: expected %s (%s), got %s%s", w->run->f->name,
             line_of(call ? call->site : w->end_site),
             etch__reasons[REASON_RECOMPILE_DIVERGED].name,
             end ? "the end of the segment" : etch__ops[expected->op].name,
             line_of(end ? expected->leaf->site : expected->site),
             call ? etch__ops[call->op].name : "the end of the segment",
             operands ? " with other operands, attributes or state" : "");
    etch__log(etch__log_on(LOG_RECOMPILES) ? LOG_RECOMPILES : LOG_TRACE, "%s", text);
}

void etch__log_guards(const run *r, etch_tensor *const *in, int nin) {
    const trace_tree *t = r->gen->entries;
    if (!t || !(etch__log_on(LOG_RECOMPILES) || etch__log_on(LOG_GUARDS))) return;
    etch__count_reason(REASON_RECOMPILE_GUARD);
    char text[160] = "";
    if (t->nargs != nin)
        snprintf(text, sizeof text, "expected %d arguments, got %d", t->nargs, nin);
    for (int i = 0; i < nin && i < t->nargs && !text[0]; i++)
        etch__guard_explain(&t->guards[i], in[i], i, text, sizeof text);
    etch__log(etch__log_on(LOG_RECOMPILES) ? LOG_RECOMPILES : LOG_GUARDS, "%s: %s: %s", r->f->name,
              etch__reasons[REASON_RECOMPILE_GUARD].name, text);
}

void etch__warn_limit(const run *r) {
    const reason_info *reason = &etch__reasons[REASON_EAGER_LIMIT];
    int limit = r->f->options.recompile_limit;
    etch__count_reason(REASON_EAGER_LIMIT);
    etch__warn("%s: %s (%d): %s; hint: %s", r->f->name, reason->name, limit > 0 ? limit : 8,
               reason->text, reason->hint);
}
