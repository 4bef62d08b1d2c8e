/* What happened, for people: breaks, divergences, guards that failed, the recompile limit. */
#include "tracer/tell/log.h"

static const char *line_of(const void *site) {
    const char *line = etch__site_line(site);
    return line[0] ? line : "?";
}

void etch__log_break(etch_function *f, reason_id why, const void *site, const char *text) {
    etch__count_reason(why);
    etch__note_break(f, why, site, text);
    if (!etch__log_on(LOG_GRAPH_BREAKS)) return;
    const reason_info *reason = &etch__reasons[why];
    etch__log(LOG_GRAPH_BREAKS, "%s: %s: %s: %s%s%s; hint: %s", f->name, line_of(site),
              reason->name, reason->text, text ? ": " : "", text ? text : "", reason->hint);
}

/* To the channel of recompiles, where that is off to another one. */
static void log_recompile(log_channel other, etch_function *f, const char *where, reason_id why,
                          const char *text) {
    if (!etch__log_on(LOG_RECOMPILES) && !etch__log_on(other)) return;
    etch__log(etch__log_on(LOG_RECOMPILES) ? LOG_RECOMPILES : other, "%s: %s%s%s: %s", f->name,
              where, where[0] ? ": " : "", etch__reasons[why].name, text);
}

void etch__log_diverged(etch_function *f, const trace_node *expected, const op_call *call,
                        const void *site) {
    etch__count_reason(REASON_RECOMPILE_DIVERGED);
    bool end = expected->c.key == CURSOR_END;
    bool operands = !end && call && expected->op == call->op;
    char text[STORY_DETAIL];
    snprintf(text, sizeof text, "expected %s (%s), got %s%s",
             end ? "the end of the segment" : etch__ops[expected->op].name,
             line_of(end ? expected->leaf->site : expected->site),
             call ? etch__ops[call->op].name : "the end of the segment",
             operands ? " with other operands, attributes or state" : "");
    etch__note_recompile(f, REASON_RECOMPILE_DIVERGED, site, text);
    log_recompile(LOG_TRACE, f, line_of(site), REASON_RECOMPILE_DIVERGED, text);
}

/* Against the newest entry: it is the likeliest to be meant. */
void etch__log_guards(etch_function *f, const generation *g, etch_tensor *const *in, int nin) {
    const trace_tree *t = g->entries;
    if (!t) return;
    etch__count_reason(REASON_RECOMPILE_GUARD);
    char text[STORY_DETAIL];
    etch__entry_explain(&t->guard, in, nin, text, sizeof text);
    etch__note_recompile(f, REASON_RECOMPILE_GUARD, NULL, text);
    log_recompile(LOG_GUARDS, f, "", REASON_RECOMPILE_GUARD, text);
}

/* Under no lock: a sink may ask etch_explain what the matter is. Of the limit of all functions'
 * graphs the last recompile of this one says nothing. */
void etch__warn_limit(etch_function *f, bool graphs) {
    reason_id why = graphs ? REASON_EAGER_GRAPHS : REASON_EAGER_LIMIT;
    const reason_info *reason = &etch__reasons[why];
    int64_t limit = etch__recompile_limit(&f->options);
    if (graphs) limit = etch__param_int(PARAM_GRAPH_LIMIT);
    char last[STORY_DETAIL + 64] = "";
    if (!graphs) etch__last_recompile(f, last, sizeof last);
    etch__count_reason(why);
    etch__warn("%s: %s (%lld): %s%s%s; hint: %s", f->name, reason->name, (long long)limit,
               reason->text, last[0] ? "; last reason: " : "", last, reason->hint);
}
