/* Tells of what happens, to each reader whose column of tracer/tell/events.def says something. */
#include "tracer/tell/event.h"

#include "core/base/profile.h"
#include "tracer/tell/report.h"

enum { COUNTER_NONE = -1, PROFILE_NONE = -1, LOG_NONE = -1 };
enum { PROFILE_BREAK = ETCH_PROFILE_BREAK };

static const struct {
    int8_t counter, list, profile, report, log, log_instead;
} rows[EVENT_COUNT] = {
#define EVENT(id, counter, list, profile, report, log, instead)                                    \
    [EVENT_##id] = {COUNTER_##counter, STORY_##list, PROFILE_##profile,                            \
                    REPORT_##report,   LOG_##log,    LOG_##instead},
#include "tracer/tell/events.def"
#undef EVENT
};

/* ---- the readers ---- */

/* Breaks and hints say all of the reason; what is recompiled says what was expected. */
static void put_line(etch_function *f, log_channel channel, const trace_event *e, bool sentence) {
    const reason_info *reason = &etch__reasons[e->why];
    const char *detail = e->detail ? e->detail : "",
               *where = e->site ? etch__line_or_unknown(e->site) : "";
    const char *colon = *where ? ": " : "";
    if (e->line) etch__log(channel, "%s", e->line);
    else if (sentence)
        etch__log(channel, "%s: %s%s%s: %s%s%s; hint: %s", f->name, where, colon, reason->name,
                  reason->text, *detail ? ": " : "", detail, reason->hint);
    else etch__log(channel, "%s: %s%s%s: %s", f->name, where, colon, reason->name, detail);
}

static void log_event(etch_function *f, event_id id, const trace_event *e) {
    int channel = rows[id].log, instead = rows[id].log_instead;
    if (channel >= 0 && !etch__log_on((log_channel)channel)) channel = instead;
    if (channel >= 0 && etch__log_on((log_channel)channel))
        put_line(f, (log_channel)channel, e, rows[id].log != LOG_RECOMPILES);
}

void etch__event(etch_function *f, event_id id, const trace_event *e) {
    int counter = rows[id].counter, profile = rows[id].profile, report = rows[id].report;
    if (counter >= 0)
        atomic_fetch_add_explicit(&(&f->shard[etch__tls.number % SHARDS].counts.calls)[counter], 1,
                                  memory_order_relaxed);
    if (profile >= 0)
        etch__profile_mark((etch_profile_kind)profile, f->name, etch__reasons[e->why].name);
    if (report >= 0 && etch__report_on())
        etch__report_event(f, (report_event_kind)report, e->why, e->site, e->detail);
    if (e->known) return;
    etch__count_reason(e->why);
    etch__story_note(f, (story_list)rows[id].list, e->why, e->site, e->detail);
    log_event(f, id, e);
}

/* ---- those whose detail takes some finding out ---- */

void etch__event_diverged(etch_function *f, const trace_node *expected, const op_call *call,
                          const void *site) {
    bool end = expected->c.key == CURSOR_END;
    bool operands = !end && call && expected->op == call->op;
    char text[STORY_DETAIL];
    snprintf(text, sizeof text, "expected %s (%s), got %s%s",
             end ? "the end of the segment" : etch__ops[expected->op].name,
             etch__line_or_unknown(end ? expected->leaf->site : expected->site),
             call ? etch__ops[call->op].name : "the end of the segment",
             operands ? " with other operands, attributes or state" : "");
    etch__event(f, EVENT_DIVERGED,
                &(trace_event){.why = REASON_RECOMPILE_DIVERGED, .site = site, .detail = text});
}

/* Against the newest entry: it is the likeliest to be meant. */
void etch__event_unguarded(etch_function *f, const generation *g, etch_tensor *const *in, int nin) {
    const trace_tree *t = g->entries;
    if (!t) return;
    char text[STORY_DETAIL];
    etch__entry_explain(&t->guard, in, nin, text, sizeof text);
    etch__event(f, EVENT_UNGUARDED, &(trace_event){.why = REASON_RECOMPILE_GUARD, .detail = text});
}

/* Under no lock: a sink may ask etch_explain what the matter is. Of the limit of all functions'
 * graphs the last recompile of this one says nothing. */
void etch__event_limit(etch_function *f, bool graphs) {
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
