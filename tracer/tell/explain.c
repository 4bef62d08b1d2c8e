/* What is remembered of each function, and etch_explain. */
#include "tracer/tell/report.h"
#include "core/base/start.h"
#include "core/base/locks.h"
#include "core/base/text.h"

#include <etch/explain.h>

/* One lock for all stories: they change when something is recorded, never in steady state. It may
 * be taken with a function's lock held, and nothing else is taken under it. */

/* ---- remembering ---- */

static void free_events(story_event *e, int n) {
    for (int i = 0; i < n; i++) etch__free(e[i].detail);
    etch__free(e);
}

static void free_story(story *s) {
    free_events(s->breaks, s->nbreaks);
    free_events(s->recompiles, s->nrecompiles);
    for (int i = 0; i < s->ngraphs; i++) {
        etch__free(s->graphs[i].name);
        etch__free(s->graphs[i].guards);
    }
    etch__free(s->graphs);
}

static void function_gone(etch_function *f) {
    if (etch__report_on()) etch__report_function_gone(f);
    free_story(&f->story);
}

static void function_forgotten(etch_function *f) {
    if (etch__report_on() && f->report) etch__report_event(f, REPORT_RESET, END_RETURN, NULL, NULL);
}

void etch__start_stories(void) {
    etch__function_watch.gone = function_gone;
    etch__function_watch.forgotten = function_forgotten;
}

static bool same_event(const story_event *e, reason_id why, const void *site, const char *detail) {
    if (e->why != why || e->site != site) return false;
    return !strcmp(e->detail ? e->detail : "", detail ? detail : "");
}

static bool note(story_event **events, int *n, int64_t *cap, reason_id why, const void *site,
                 const char *detail) {
    for (int i = 0; i < *n; i++)
        if (same_event(&(*events)[i], why, site, detail)) {
            (*events)[i].count++;
            return true;
        }
    if (*n == STORY_MAX || !etch__grow(events, cap, *n + 1, sizeof **events)) return false;
    char *copy = detail && *detail ? etch__strdup(detail) : NULL;
    if (detail && *detail && !copy) return false;
    (*events)[(*n)++] = (story_event){why, site, copy, 1};
    return true;
}

/* Remembering must not disturb: the error that is there stays. */
void etch__story_note(etch_function *f, story_list list, reason_id why, const void *site,
                      const char *detail) {
    story *s = &f->story;
    if (list == STORY_NONE) return;
    KEEP_ERROR;
    etch__lock(LOCK_STORIES);
    if (list == STORY_MODE) snprintf(s->mode, sizeof s->mode, "%s", detail);
    else if (list == STORY_BREAKS)
        s->dropped += !note(&s->breaks, &s->nbreaks, &s->breaks_cap, why, site, detail);
    else
        s->dropped += !note(&s->recompiles, &s->nrecompiles, &s->recompiles_cap, why, site, detail);
    etch__unlock(LOCK_STORIES);
}

void etch__note_graph(etch_function *f, const story_graph *g) {
    story *s = &f->story;
    KEEP_ERROR;
    char *copy = etch__strdup(g->name);
    etch__lock(LOCK_STORIES);
    s->seconds += g->seconds;
    bool room = copy && s->ngraphs < STORY_MAX &&
                etch__grow(&s->graphs, &s->graphs_cap, s->ngraphs + 1, sizeof *s->graphs);
    if (room) s->graphs[s->ngraphs] = *g, s->graphs[s->ngraphs++].name = copy;
    s->dropped += !room;
    etch__unlock(LOCK_STORIES);
    if (!room) etch__free(copy), etch__free(g->guards);
}

void etch__last_recompile(etch_function *f, char *buf, size_t n) {
    buf[0] = 0;
    etch__lock(LOCK_STORIES);
    const story *s = &f->story;
    if (s->nrecompiles) {
        const story_event *e = &s->recompiles[s->nrecompiles - 1];
        snprintf(buf, n, "%s%s%s", etch__reasons[e->why].name, e->detail ? ": " : "",
                 e->detail ? e->detail : "");
    }
    etch__unlock(LOCK_STORIES);
}

/* ---- explaining: one block that holds structs, then strings ---- */

/* First a pass that counts the bytes of the strings, then one that puts them. */
typedef struct string_room {
    char *at; /* NULL while counting */
    size_t bytes;
} string_room;

static const char *put(string_room *room, const char *text) {
    size_t n = strlen(text) + 1;
    room->bytes += n;
    if (!room->at) return "";
    char *to = room->at;
    memcpy(to, text, n);
    room->at += n;
    return to;
}

/* `where` is still the address: looking up its line takes another lock. */
static void put_event(string_room *room, const story_event *e, etch_explained_event *to) {
    const char *detail = put(room, e->detail ? e->detail : "");
    if (!to) return;
    const reason_info *r = &etch__reasons[e->why];
    *to = (etch_explained_event){r->name, r->text, detail, e->site, r->hint, e->count};
}

static void put_graph(string_room *room, const story_graph *g, etch_explained_graph *to) {
    const char *name = put(room, g->name), *guards = put(room, g->guards ? g->guards : "");
    if (!to) return;
    *to = (etch_explained_graph){name,        guards,     g->operators,  g->kernels,
                                 g->products, g->seconds, g->saved_bytes};
}

static void put_story(string_room *room, const etch_function *f, etch_explanation *e) {
    const story *s = &f->story;
    etch_explained_graph *graphs = e ? (etch_explained_graph *)(e + 1) : NULL;
    etch_explained_event *breaks = e ? (etch_explained_event *)(graphs + s->ngraphs) : NULL;
    etch_explained_event *recompiles = e ? breaks + s->nbreaks : NULL;
    const char *name = put(room, f->name), *backend_name = put(room, f->backend->name);
    const char *mode = put(room, s->mode);
    for (int i = 0; i < s->ngraphs; i++) put_graph(room, &s->graphs[i], e ? &graphs[i] : NULL);
    for (int i = 0; i < s->nbreaks; i++) put_event(room, &s->breaks[i], e ? &breaks[i] : NULL);
    for (int i = 0; i < s->nrecompiles; i++)
        put_event(room, &s->recompiles[i], e ? &recompiles[i] : NULL);
    if (!e) return;
    e->name = name, e->backend = backend_name, e->mode = s->mode[0] ? mode : NULL;
    e->graphs = graphs, e->breaks = breaks, e->recompiles = recompiles;
    e->ngraphs = s->ngraphs, e->nbreaks = s->nbreaks, e->nrecompiles = s->nrecompiles;
    e->compile_seconds = s->seconds, e->dropped = s->dropped;
}

static void put_counts(etch_function *f, etch_explanation *e) {
    etch_counters_t c = etch_function_counters(f);
    e->calls = c.calls;
    e->graph_count = c.graphs, e->op_count = c.graph_nodes;
    e->break_count = c.graph_breaks, e->recompile_count = c.recompiles;
    e->plan_runs = c.plan_runs, e->eager_runs = c.eager_runs;
    e->mode_fallbacks = c.mode_fallbacks;
    pthread_mutex_lock(&f->lock);
    e->limit_reached = atomic_load(&f->gen)->warned;
    pthread_mutex_unlock(&f->lock);
}

static etch_explained_event *breaks_of(etch_explanation *e) {
    return (etch_explained_event *)e->breaks;
}

/* The recompiles lie behind the breaks. */
static void find_lines(etch_explained_event *events, int n) {
    for (int i = 0; i < n; i++) events[i].where = etch__site_line(events[i].where);
}

etch_explanation *etch_explain(const etch_function *f_) {
    etch_function *f = (etch_function *)f_;
    if (!f)
        return etch__null_at(NULL, ETCH_ERR_NULL, "etch_explain: expected a function, got NULL");
    string_room room = {0};
    etch__lock(LOCK_STORIES);
    put_story(&room, f, NULL);
    size_t structs =
        sizeof(etch_explanation) + (size_t)f->story.ngraphs * sizeof(etch_explained_graph) +
        (size_t)(f->story.nbreaks + f->story.nrecompiles) * sizeof(etch_explained_event);
    etch_explanation *e = etch__calloc(1, structs + room.bytes);
    if (e) {
        room.at = (char *)e + structs;
        put_story(&room, f, e);
    }
    etch__unlock(LOCK_STORIES);
    if (!e) return NULL;
    put_counts(f, e);
    find_lines(breaks_of(e), e->nbreaks + e->nrecompiles);
    return e;
}

void etch_explanation_free(etch_explanation *e) { etch__free(e); }

/* ---- as text ---- */

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

static void say_event(bounded_text *t, const char *kind, const char *where, const char *how_often,
                      const etch_explained_event *e) {
    etch__text_add(t, "  %s at %s", kind, e->where[0] ? e->where : where);
    if (e->count > 1) etch__text_add(t, " (%lld %s)", (long long)e->count, how_often);
    etch__text_add(t, ": %s: %s%s%s\n", e->reason, e->text, e->detail[0] ? ": " : "", e->detail);
    if (e->hint[0]) etch__text_add(t, "    hint: %s\n", e->hint);
}

static void say_break(bounded_text *t, const etch_explained_event *e) {
    say_event(t, "break", "an unknown line", "recordings", e);
}

/* Guards are looked at on entry; what else has no line is found when the body returns. */
static void say_recompile(bounded_text *t, const etch_explained_event *e) {
    bool entry = !strcmp(e->reason, etch__reasons[REASON_RECOMPILE_GUARD].name);
    say_event(t, "recompile", entry ? "the entry" : "the return", "times", e);
}

static void say_graph(bounded_text *t, const etch_explained_graph *g) {
    etch__text_add(t, "  graph %s: %d operator%s, %d kernel%s, %d product%s, compiled in %.1f ms\n",
                   g->name, g->operators, plural(g->operators), g->kernels, plural(g->kernels),
                   g->products, plural(g->products), g->seconds * 1e3);
    if (g->saved_bytes)
        etch__text_add(t, "    saves %lld bytes for backward\n", (long long)g->saved_bytes);
    if (g->guards[0]) etch__text_add(t, "    guards: %s\n", g->guards);
}

static void say_summary(bounded_text *t, const etch_explanation *e) {
    etch__text_add(
        t,
        "%s (backend %s): %lld call%s, %lld graph%s, %lld operator%s, %lld graph break%s, "
        "%lld recompile%s in all calls\n",
        e->name, e->backend, (long long)e->calls, plural(e->calls), (long long)e->graph_count,
        plural(e->graph_count), (long long)e->op_count, plural(e->op_count),
        (long long)e->break_count, plural(e->break_count), (long long)e->recompile_count,
        plural(e->recompile_count));
    etch__text_add(
        t, "  compiled code ran %lld time%s, %lld segment%s ran eagerly; compiling took %.1f ms\n",
        (long long)e->plan_runs, plural(e->plan_runs), (long long)e->eager_runs,
        plural(e->eager_runs), e->compile_seconds * 1e3);
    if (e->mode_fallbacks)
        etch__text_add(t, "  %lld call%s ran uncompiled under a mode, last '%s'\n",
                       (long long)e->mode_fallbacks, plural(e->mode_fallbacks),
                       e->mode ? e->mode : "?");
    if (e->limit_reached)
        etch__text_add(t, "  the recompile limit is reached: new paths run eagerly\n");
}

int64_t etch_explain_text(const etch_function *f, char *buf, size_t n) {
    etch_explanation *e = etch_explain(f);
    bounded_text t = {buf, buf ? n : 0, 0};
    if (!e) return -1;
    say_summary(&t, e);
    for (int i = 0; i < e->ngraphs; i++) say_graph(&t, &e->graphs[i]);
    for (int i = 0; i < e->nbreaks; i++) say_break(&t, &e->breaks[i]);
    for (int i = 0; i < e->nrecompiles; i++) say_recompile(&t, &e->recompiles[i]);
    if (e->dropped) etch__text_add(&t, "  %lld more not kept\n", (long long)e->dropped);
    etch_explanation_free(e);
    return (int64_t)t.n;
}
