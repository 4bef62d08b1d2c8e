/* What happened, for people: breaks, divergences, guards that failed, the recompile limit. */
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

static const char *line_of(const void *site) {
    const char *line = etch__site_line(site);
    return line[0] ? line : "?";
}

void etch__log_break(const trace_run *r, reason_id why, const void *site, const char *text) {
    etch__count_reason(why);
    etch__note_break(r->f, why, site, text);
    if (!etch__log_on(LOG_GRAPH_BREAKS)) return;
    const reason_info *reason = &etch__reasons[why];
    etch__log(LOG_GRAPH_BREAKS, "%s: %s: %s: %s%s%s; hint: %s", r->f->name, line_of(site),
              reason->name, reason->text, text ? ": " : "", text ? text : "", reason->hint);
}

void etch__log_diverged(const trace_walk *w, const op_call *call) {
    etch__count_reason(REASON_RECOMPILE_DIVERGED);
    const trace_node *expected = (const trace_node *)w->c.next;
    bool end = expected->c.key == CURSOR_END;
    bool operands = !end && call && expected->op == call->op;
    const void *site = call ? call->site : w->end_site;
    char text[STORY_DETAIL];
    snprintf(text, sizeof text, "expected %s (%s), got %s%s",
             end ? "the end of the segment" : etch__ops[expected->op].name,
             line_of(end ? expected->leaf->site : expected->site),
             call ? etch__ops[call->op].name : "the end of the segment",
             operands ? " with other operands, attributes or state" : "");
    etch__note_recompile(w->run->f, REASON_RECOMPILE_DIVERGED, site, text);
    if (!etch__log_on(LOG_RECOMPILES) && !etch__log_on(LOG_TRACE)) return;
    etch__log(etch__log_on(LOG_RECOMPILES) ? LOG_RECOMPILES : LOG_TRACE, "%s: %s: %s: %s",
              w->run->f->name, line_of(site), etch__reasons[REASON_RECOMPILE_DIVERGED].name, text);
}

static void explain_guard(const trace_tree *t, const etch_tensor *x, int i, char *buf, size_t n) {
    if (t->dynamic && t->marks) etch__marks_explain(&t->marks[i], &t->guards[i], x, i, buf, n);
    if (!buf[0]) etch__guard_explain(&t->guards[i], x, i, buf, n);
    if (!buf[0] && !t->dynamic && etch__marked_dynamic(x))
        snprintf(buf, n, "tensor %d: a dimension is marked dynamic: expected fixed sizes", i);
}

/* Against the newest entry: it is the likeliest to be meant. */
void etch__log_guards(const trace_run *r, etch_tensor *const *in, int nin) {
    const trace_tree *t = r->gen->entries;
    if (!t) return;
    etch__count_reason(REASON_RECOMPILE_GUARD);
    char text[STORY_DETAIL] = "";
    if (t->nargs != nin)
        snprintf(text, sizeof text, "expected %d arguments, got %d", t->nargs, nin);
    for (int i = 0; i < nin && i < t->nargs && !text[0]; i++)
        if (t->guarded[i]) explain_guard(t, in[i], i, text, sizeof text);
    etch__note_recompile(r->f, REASON_RECOMPILE_GUARD, NULL, text);
    if (!etch__log_on(LOG_RECOMPILES) && !etch__log_on(LOG_GUARDS)) return;
    etch__log(etch__log_on(LOG_RECOMPILES) ? LOG_RECOMPILES : LOG_GUARDS, "%s: %s: %s", r->f->name,
              etch__reasons[REASON_RECOMPILE_GUARD].name, text);
}

/* Under no lock: a sink may ask etch_explain what the matter is. Of the limit of all functions'
 * graphs the last recompile of this one says nothing. */
void etch__warn_limit(trace_run *r) {
    r->warn_limit = false;
    reason_id why = r->warn_graphs ? REASON_EAGER_GRAPHS : REASON_EAGER_LIMIT;
    const reason_info *reason = &etch__reasons[why];
    int64_t limit = r->f->options.recompile_limit > 0 ? r->f->options.recompile_limit : 8;
    if (r->warn_graphs) limit = etch__param_int(PARAM_GRAPH_LIMIT);
    char last[STORY_DETAIL + 64] = "";
    if (!r->warn_graphs) etch__last_recompile(r->f, last, sizeof last);
    etch__count_reason(why);
    etch__warn("%s: %s (%lld): %s%s%s; hint: %s", r->f->name, reason->name, (long long)limit,
               reason->text, last[0] ? "; last reason: " : "", last, reason->hint);
}

/* ---- guards as text ---- */

typedef struct guard_text {
    char *s;
    int64_t n, cap;
    bool failed;
} guard_text;

static void put(guard_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(guard_text *t, const char *format, ...) {
    char piece[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    if (n >= (int)sizeof piece) n = sizeof piece - 1;
    if (t->failed || !etch__grow(&t->s, &t->cap, t->n + n + 1, 1)) {
        t->failed = true;
        return;
    }
    memcpy(t->s + t->n, piece, (size_t)n + 1);
    t->n += n;
}

/* Sizes of a dynamic trace are run-time. */
static void put_guard(guard_text *t, const tensor_meta *g, bool dynamic) {
    char text[256];
    if (g->dtype >= ETCH_DTYPE_COUNT) {
        put(t, "none");
    } else if (dynamic) {
        put(t, "%s of rank %d", etch_dtype_name(g->dtype), g->ndim);
    } else {
        etch__guard_text(g, text, sizeof text);
        put(t, "%s", text);
        if (etch__sizes_contiguous(g->ndim, g->size, g->stride)) return;
        for (int d = 0; d < g->ndim; d++)
            put(t, "%s%lld", d ? ", " : " strides ", (long long)g->stride[d]);
    }
}

static void put_marks(guard_text *t, const dim_marks *m, const tensor_meta *g) {
    for (int d = 0; d < g->ndim; d++)
        if (m->fixed >> d & 1) put(t, ", dim %d fixed at %lld", d, (long long)g->size[d]);
        else if (m->dynamic >> d & 1 && m->max[d] < INT64_MAX)
            put(t, ", dim %d from %lld to %lld", d, (long long)m->min[d], (long long)m->max[d]);
        else if (m->dynamic >> d & 1) put(t, ", dim %d at least %lld", d, (long long)m->min[d]);
}

static void put_state(guard_text *t, uint64_t state) {
    put(t, "%sstate: default dtype %s%s%s", t->n ? "; " : "", etch_dtype_name(STATE_DTYPE(state)),
        state & STATE_INFERENCE ? ", inference" : "", state & 1 ? ", gradients" : "");
    static const char *const rounding[] = {"", ", rounding down", ", rounding up",
                                           ", rounding to zero"};
    unsigned fp = STATE_FP(state);
    put(t, "%s%s%s", rounding[fp >> 13 & 3], fp & 0x8000 ? ", flush to zero" : "",
        fp & 0x40 ? ", denormals are zero" : "");
}

char *etch__guards_text(const trace_leaf *leaf) {
    guard_text t = {0};
    for (int i = 0; leaf->tree->guards && i < leaf->nargs; i++) {
        if (!leaf->tree->guarded[i]) continue;
        put(&t, "%stensor %d: ", t.n ? "; " : "", i);
        put_guard(&t, &leaf->tree->guards[i], leaf->tree->dynamic);
        if (leaf->tree->marks) put_marks(&t, &leaf->tree->marks[i], &leaf->tree->guards[i]);
    }
    for (int i = 0; i < leaf->npath; i++)
        for (int k = 0; k < leaf->path[i]->ncaptures; k++) {
            const trace_node *n = leaf->path[i];
            put(&t, "%scaptured by %s (%s): ", t.n ? "; " : "", etch__ops[n->op].name,
                line_of(n->site));
            put_guard(&t, &n->captures[k].guard, n->dynamic);
        }
    if (leaf->npath) put_state(&t, leaf->path[0]->c.state);
    if (leaf->writes_inputs)
        put(&t, "; inputs are written: each two have the same storage or none in common, as here");
    if (!t.failed) return t.s;
    etch__free(t.s);
    return NULL;
}
