/* ETCH_TRACE: what is recorded of functions and traces, and when the files are written.
 *
 * Everything hangs below the list of functions, under one lock that is taken last; source lines are
 * looked up before it is. Records are copies: functions and traces may be gone when they are
 * written. */
#include "core/base/locks.h"
#include "core/base/start.h"
#include "core/base/signals.h"
#include "core/base/text.h"
#include "tracer/tell/event.h"
#include "tracer/tell/report.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <etch/explain.h>

report_function *etch__report_functions;
int64_t etch__report_began;
int etch__report_parent;

static char directory[4096];
static int nfunctions;
static int64_t nnodes;
static atomic_bool forked; /* nothing was recorded since: there is nothing to write */
static atomic_bool warned; /* of records that are missing */

static void lock_records(void) { etch__lock(LOCK_REPORT); }
static void unlock_records(void) { etch__unlock(LOCK_REPORT); }

static void dropped(void) { __atomic_fetch_add(&etch__report_dropped, 1, __ATOMIC_RELAXED); }

static int64_t since_start(void) { return etch__now() - etch__report_began; }

/* ---- functions ---- */

static char *options_text(const etch_function *f) {
    static const char *const modes[] = {"default", "reduce-overhead", "max-autotune"};
    static const char *const dynamics[] = {"auto", "off", "on"};
    const etch_compile_options *o = &f->options;
    char text[256];
    snprintf(text, sizeof text, "mode %s, dynamic %s, numerics %s, recompile limit %d%s%s%s",
             modes[o->mode], dynamics[o->dynamic],
             o->numerics == ETCH_RELAXED ? "relaxed" : "strict", etch__recompile_limit(o),
             o->fullgraph ? ", fullgraph" : "", o->replay ? ", replay" : "",
             o->background ? ", background" : "");
    return etch__report_strdup(text);
}

/* Under the lock. */
static report_function *new_function(etch_function *f) {
    report_function *r = nfunctions < REPORT_MAX_FUNCTIONS ? etch__report_zeroed(sizeof *r) : NULL;
    if (!r) return NULL;
    r->number = nfunctions++;
    r->name = etch__report_strdup(f->name);
    r->options = options_text(f);
    r->backend = f->backend->name;
    r->f = f;
    r->next = etch__report_functions;
    return etch__report_functions = r;
}

report_function *etch__report_function(etch_function *f) {
    report_function *r = atomic_load_explicit(&f->report, memory_order_acquire);
    if (likely(r && !atomic_load_explicit(&forked, memory_order_relaxed))) return r;
    lock_records();
    forked = false;
    r = atomic_load(&f->report);
    if (!r) r = new_function(f);
    if (!r) dropped();
    atomic_store_explicit(&f->report, r, memory_order_release);
    unlock_records();
    return r;
}

void etch__report_function_gone(etch_function *f) {
    report_function *r = atomic_load(&f->report);
    if (!r) return;
    lock_records();
    r->counts = etch_function_counters(f);
    r->f = NULL;
    unlock_records();
}

/* ---- events ---- */

static report_event *find_event(const report_function *r, report_event_kind kind, reason_id why,
                                const char *where, const char *detail) {
    for (int64_t i = 0; i < r->nevents; i++) {
        report_event *e = &r->events[i];
        if (e->kind == kind && e->why == why && !strcmp(e->where, where) &&
            !strcmp(e->detail ? e->detail : "", detail))
            return e;
    }
    return NULL;
}

/* false: there was none like it. */
static bool count_event(report_function *r, report_event_kind kind, reason_id why,
                        const char *where, const char *detail) {
    lock_records();
    report_event *e = find_event(r, kind, why, where, detail);
    if (e) e->count++;
    if (kind == REPORT_RESET) r->generations++;
    unlock_records();
    return e != NULL;
}

/* Under the lock. Another thread may have been here before. */
static void add_event(report_function *r, report_event_kind kind, reason_id why, const char *where,
                      const char *detail, const char *source) {
    report_event *e = find_event(r, kind, why, where, detail);
    if (e) {
        e->count++;
    } else if (r->nevents == REPORT_MAX_EVENTS) {
        dropped();
    } else if (etch__report_grow(&r->events, &r->events_cap, r->nevents + 1, sizeof *r->events)) {
        r->events[r->nevents++] = (report_event){
            (uint8_t)kind, why, where, etch__report_strdup(detail), etch__report_strdup(source), 1,
            since_start()};
    }
}

void etch__report_event(etch_function *f, report_event_kind kind, reason_id why, const void *site,
                        const char *detail) {
    report_function *r = etch__report_function(f);
    if (!r) return;
    const char *where = etch__site_line(site);
    if (!count_event(r, kind, why, where, detail ? detail : "")) {
        char source[256];
        etch__site_source(site, source, sizeof source);
        lock_records();
        add_event(r, kind, why, where, detail ? detail : "", source);
        unlock_records();
    }
}

/* ---- traces ---- */

static char *arguments_text(const trace_tree *t) {
    char text[1024] = "", one[256];
    bounded_text to = {text, sizeof text, 0};
    for (int i = 0; i < t->guard.nargs; i++) {
        const tensor_meta *g = &t->guard.meta[i];
        if (!t->guard.read[i]) snprintf(one, sizeof one, "any");
        else if (g->dtype >= ETCH_DTYPE_COUNT) snprintf(one, sizeof one, "none");
        else if (!t->guard.dynamic) etch__guard_text(g, one, sizeof one);
        else snprintf(one, sizeof one, "%s of rank %d", etch_dtype_name(g->dtype), g->ndim);
        etch__text_add(&to, "%s%s", i ? ", " : "", one);
    }
    return etch__report_strdup(text);
}

/* Under the lock. */
static report_tree *tree_of(report_function *r, trace_tree *t) {
    if (t->report) return t->report;
    report_tree *to = etch__report_zeroed(sizeof *to);
    if (!to) return NULL;
    to->number = t->number, to->generation = r->generations;
    to->entry = t->entry, to->dynamic = t->guard.dynamic;
    to->guards = t->entry ? arguments_text(t) : NULL;
    to->next = r->trees;
    r->trees = to;
    return t->report = to;
}

static char *call_text(const trace_node *n) {
    char text[512], meta[200];
    bounded_text to = {text, sizeof text, 0};
    if (!n->c.inplace) etch__text_add(&to, "%%%d = ", n->c.out);
    etch__text_add(&to, "%s(", etch__ops[n->op].name);
    for (int i = 0; i < n->nin && to.n < sizeof text - 240; i++)
        etch__text_add(&to, "%s%%%d", i ? ", " : "", n->in[i]);
    if (n->dynamic)
        snprintf(meta, sizeof meta, "%s of rank %d", etch_dtype_name(n->meta.dtype), n->meta.ndim);
    else etch__guard_text(&n->meta, meta, sizeof meta);
    etch__text_add(&to, ")  %s", meta);
    return etch__report_strdup(text);
}

/* Nodes are numbered as they are published, so a path brings each number at most one further. */
static bool add_nodes(report_tree *t, const trace_leaf *leaf, const char *const *lines) {
    int32_t parent = -1;
    for (int i = 0; i < leaf->npath; i++) {
        const trace_node *n = leaf->path[i];
        if (n->c.id >= t->nnodes) {
            if (n->c.id > t->nnodes || nnodes == REPORT_MAX_NODES) return dropped(), false;
            if (!etch__report_grow(&t->nodes, &t->nodes_cap, t->nnodes + 1, sizeof *t->nodes))
                return false;
            t->nodes[t->nnodes++] =
                (report_node){parent, etch__ops[n->op].name, lines[i], call_text(n)};
            nnodes++;
        }
        parent = n->c.id;
    }
    return true;
}

static report_leaf *new_leaf(report_tree *t, const trace_leaf *leaf, const char *const *lines,
                             const char *where) {
    report_leaf *to = add_nodes(t, leaf, lines) ? etch__report_zeroed(sizeof *to) : NULL;
    if (!to) return NULL;
    to->node = leaf->npath ? leaf->path[leaf->npath - 1]->c.id : -1;
    to->end = leaf->end->end;
    to->where = where;
    to->first = since_start();
    to->next = t->leaves;
    return t->leaves = to;
}

void etch__report_published(etch_function *f, trace_leaf *leaf) {
    report_function *r = etch__report_function(f);
    const char **lines = NULL;
    int64_t cap = 0;
    if (!r || !etch__report_grow(&lines, &cap, leaf->npath + 1, sizeof *lines)) return;
    for (int i = 0; i < leaf->npath; i++) lines[i] = etch__site_line(leaf->path[i]->site);
    const char *where = etch__site_line(leaf->site);
    lock_records();
    report_tree *t = tree_of(r, leaf->tree);
    if (t && !leaf->report) leaf->report = new_leaf(t, leaf, lines, where);
    if (leaf->report) leaf->report->recorded++;
    unlock_records();
    etch__free(lines);
}

static void add_limit(report_tree *t, int32_t node, const char *op, const char *where) {
    for (int64_t i = 0; i < t->nlimits; i++) {
        report_limit *l = &t->limits[i];
        if (l->node != node || strcmp(l->op, op) || strcmp(l->where, where)) continue;
        l->count++;
        return;
    }
    if (t->nlimits == REPORT_MAX_LIMITS) dropped();
    else if (etch__report_grow(&t->limits, &t->limits_cap, t->nlimits + 1, sizeof *t->limits))
        t->limits[t->nlimits++] = (report_limit){node, op, where, 1, since_start()};
}

void etch__report_limited(etch_function *f, trace_tree *tree, const trace_node *last,
                          const op_call *call) {
    report_function *r = etch__report_function(f);
    if (!r) return;
    const char *where = call ? etch__site_line(call->site) : "";
    int32_t node = last == &tree->root ? -1 : last->c.id;
    lock_records();
    report_tree *t = tree_of(r, tree);
    if (t && node < t->nnodes) add_limit(t, node, call ? etch__ops[call->op].name : "", where);
    unlock_records();
}

/* ---- compiles ---- */

bool etch__report_compiling(const trace_leaf *leaf, const graph *g, bool instance) {
    return leaf->report && etch__report_begin_graph(g, instance, leaf->report->graphs);
}

void etch__report_compiled(const trace_leaf *leaf, segment_code *code, etch_status status) {
    saved_error error;
    report_graph *g = etch__report_end_graph(status, &code->report);
    if (!g) return;
    etch__error_save(&error);
    g->guards = etch__guards_text(leaf);
    etch__error_restore(&error);
    lock_records();
    g->start -= etch__report_began;
    g->provisional = status == ETCH_OK && code->plan->provisional;
    g->next = leaf->report->graphs;
    leaf->report->graphs = g;
    unlock_records();
}

/* ---- files ---- */

/* "DIR/etch-PROGRAM-PID.WHAT"; of the program's name what is harmless in a file's. */
void etch__report_path(const char *what, char *buf, size_t n) {
    char program[64];
    snprintf(program, sizeof program, "%s", program_invocation_short_name);
    for (char *p = program; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              *p == '_' || *p == '-'))
            *p = '_';
    snprintf(buf, n, "%s/etch-%s-%d.%s", directory, program, (int)getpid(), what);
}

#include "embedded/report_page.html.inc"
enum { PAGE = sizeof report_page_text - 1 };
static const char mark[] = "@TRACE@"; /* where the page has the document */

static size_t mark_at(void) {
    for (size_t i = 0; i + sizeof mark - 1 <= PAGE; i++)
        if (!memcmp(report_page_text + i, mark, sizeof mark - 1)) return i;
    return PAGE;
}

static bool put_page(FILE *f, const report_totals *totals) {
    size_t at = mark_at(), rest = at + sizeof mark - 1;
    return fwrite(report_page_text, 1, at, f) == at && etch__report_json(f, totals) &&
           fwrite(report_page_text + rest, 1, PAGE - rest, f) == PAGE - rest;
}

/* A reader never sees half a file: it gets its name when it is complete. */
static bool put_file(const char *what, bool (*put)(FILE *, const report_totals *),
                     const report_totals *totals) {
    static char path[sizeof directory + 128], part[sizeof path + 8]; /* one thread at a time */
    etch__report_path(what, path, sizeof path);
    snprintf(part, sizeof part, "%s.part", path);
    held_signals held;
    FILE *f = fopen(part, "we");
    if (!f) return false;
    lock_records();
    etch__signals_hold(&held);
    bool ok = put(f, totals);
    unlock_records();
    ok = fclose(f) == 0 && ok && rename(part, path) == 0;
    etch__signals_release(&held);
    if (!ok) {
        int error = errno;
        unlink(part);
        errno = error;
    }
    return ok;
}

/* One thread at a time, since the files have the same names. Not waited for at a fork: the child
 * begins anew. */

static bool write_files(void) {
    report_totals totals = {etch_counters(), etch_num_threads()};
    etch__clock_settle();
    etch__lock(LOCK_REPORT_FILES);
    bool ok = (mkdir(directory, 0777) == 0 || errno == EEXIST) &&
              put_file("json", etch__report_json, &totals) && put_file("html", put_page, &totals);
    etch__unlock(LOCK_REPORT_FILES);
    return ok;
}

static void warn_of_gaps(void) {
    int64_t n = __atomic_load_n(&etch__report_dropped, __ATOMIC_RELAXED);
    if (n && !atomic_exchange(&warned, true))
        etch__warn("ETCH_TRACE: %lld records are missing: no memory, or too many of one kind",
                   (long long)n);
}

etch_status etch_trace_write(void) {
    if (!etch__report_on())
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_INVALID_ARGUMENT,
                              "etch_trace_write: nothing is recorded; set ETCH_TRACE=DIR");
    if (!write_files())
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_IO,
                              "etch_trace_write: cannot write to %s: %m", directory);
    warn_of_gaps();
    return ETCH_OK;
}

/* ---- begin and end ---- */

bool etch__report_begin(const char *dir) {
    char here[2048] = "";
    if (dir[0] != '/' && !getcwd(here, sizeof here)) return false; /* the program may leave it */
    int n = snprintf(directory, sizeof directory, "%s%s%s", here, here[0] ? "/" : "", dir);
    if (n >= (int)sizeof directory - 128) return false;
    etch__report_began = etch__now();
    etch__report_parent = 0, forked = false;
    warned = false;
    etch__reporting = true;
    return true;
}

static void forget_tree(report_tree *t) {
    for (int64_t i = 0; i < t->nnodes; i++) etch__free(t->nodes[i].text);
    while (t->leaves) {
        report_leaf *next = t->leaves->next;
        etch__free(t->leaves);
        t->leaves = next;
    }
    etch__free(t->nodes), etch__free(t->limits), etch__free(t->guards), etch__free(t);
}

static void forget_function(report_function *r) {
    while (r->trees) {
        report_tree *next = r->trees->next;
        forget_tree(r->trees);
        r->trees = next;
    }
    for (int64_t i = 0; i < r->nevents; i++)
        etch__free(r->events[i].detail), etch__free(r->events[i].source);
    etch__free(r->events), etch__free(r->name), etch__free(r->options), etch__free(r);
}

void etch__report_end(void) {
    etch__reporting = false;
    etch__clock_settle();
    lock_records();
    while (etch__report_functions) {
        report_function *next = etch__report_functions->next;
        forget_function(etch__report_functions);
        etch__report_functions = next;
    }
    etch__report_forget();
    nfunctions = 0, nnodes = 0;
    unlock_records();
}

/* A child has its parent's traces and goes on with them, under a name of its own; one that only
 * ends, as after a failed exec, writes nothing. */
static void in_child(void) {
    forked = etch__reporting;
    etch__report_parent = (int)getppid();
}

void etch__start_report(void) {
    etch__at_fork(LOCK_REPORT, (fork_hooks){.child = in_child});
    const char *dir = etch__param(PARAM_TRACE);
    if (*dir && !etch__report_begin(dir)) etch__warn("ETCH_TRACE: the path is too long: %s", dir);
}

__attribute__((destructor)) static void at_exit(void) {
    if (!etch__report_on() || forked) return;
    etch_set_log_sink(NULL, NULL); /* what the program gave may be gone with it */
    if (write_files()) warn_of_gaps();
    else etch__warn("ETCH_TRACE: cannot write to %s: %m", directory);
}
