/* ETCH_TRACE: the records of graphs, plans and kernels (see core/observe/report.h). */
#include "core/base/locks.h"
#include "core/observe/report.h"

#include <time.h>

#include "core/base/thread.h"

atomic_bool etch__reporting;
report_graph **etch__report_graphs;
report_kernel *etch__report_kernels;
int64_t etch__report_ngraphs, etch__report_nkernels, etch__report_dropped;
static int64_t graphs_cap, kernels_cap;
static report_graph *all; /* with those that have no number */

/* What the thread is compiling. */
static __thread report_graph *current __attribute__((tls_model("initial-exec")));

static report_graph *here(void) { return etch__report_on() ? current : NULL; }

/* ---- time and memory ---- */

/* A minimum of 0 says that there is none yet, so a run takes a nanosecond at least. */
void etch__report_add_ns(report_time *t, int64_t ns) {
    int64_t seen = 0;
    if (ns < 1) ns = 1;
    atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->total, ns, memory_order_relaxed);
    atomic_compare_exchange_strong(&t->first, &seen, ns);
    for (seen = t->max; seen < ns && !atomic_compare_exchange_weak(&t->max, &seen, ns);) {}
    for (seen = t->min;
         (!seen || seen > ns) && !atomic_compare_exchange_weak(&t->min, &seen, ns);) {}
}

void etch__report_add_time(report_time *t, int64_t start) {
    etch__report_add_ns(t, etch__now() - start);
}

static void dropped(void) { __atomic_fetch_add(&etch__report_dropped, 1, __ATOMIC_RELAXED); }

char *etch__report_strdup(const char *text) {
    if (!text) return NULL;
    KEEP_ERROR;
    size_t n = strlen(text);
    if (n > REPORT_MAX_TEXT) n = REPORT_MAX_TEXT;
    char *copy = etch__malloc(n + 1);
    if (copy) memcpy(copy, text, n), copy[n] = 0;
    else dropped();
    return copy;
}

bool etch__report_grow(void *items, int64_t *cap, int64_t need, size_t size) {
    if (need <= *cap) return true;
    KEEP_ERROR;
    bool ok = etch__grow(items, cap, need, size);
    if (!ok) dropped();
    return ok;
}

void *etch__report_zeroed(size_t bytes) {
    KEEP_ERROR;
    void *p = etch__calloc(1, bytes);
    if (!p) dropped();
    return p;
}

/* ---- a device's own times ---- */

/* Of a run with a span a step; else there is nothing to be said of steps. */
static void add_steps(report_graph *g, const clock_times *t) {
    int64_t idle = 0;
    if (t->n != g->nsteps) return;
    for (int i = 0; i < t->n; i++) {
        etch__report_add_ns(&g->steps[i].device, t->end[i] - t->begin[i]);
        if (i && t->begin[i] > t->end[i - 1]) idle += t->begin[i] - t->end[i - 1];
    }
    etch__report_add_ns(&g->device_idle, idle);
}

void etch__report_device_sample(void *to, const clock_times *t) {
    if (t) add_steps(to, t);
    else dropped();
}

void etch__report_device_whole(void *to, const clock_times *t) {
    report_graph *g = to;
    if (t) etch__report_add_ns(&g->device_run, t->end[t->n - 1] - t->begin[0]);
    else dropped();
}

void etch__report_device_steps(void *to, const clock_times *t) {
    if (t) add_steps(to, t);
    etch__report_device_whole(to, t);
}

/* ---- steps of the plan that is being made ---- */

static void drop_steps(report_graph *g) {
    for (int64_t i = 0; i < g->nsteps; i++) etch__free(g->steps[i].text);
    g->nsteps = 0;
}

void etch__report_restart_steps(void) {
    report_graph *g = here();
    if (!g) return;
    drop_steps(g);
    etch__free(g->notes);
    g->notes = NULL;
}

void etch__report_step(report_step_kind kind, const char *name, const char *text, int64_t bytes) {
    report_graph *g = here();
    if (!g || !etch__report_grow(&g->steps, &g->steps_cap, g->nsteps + 1, sizeof *g->steps)) return;
    report_step *s = &g->steps[g->nsteps++];
    memset(s, 0, sizeof *s);
    s->kind = (uint8_t)kind, s->kernel = -1, s->bytes = bytes;
    snprintf(s->name, sizeof s->name, "%s", name);
    s->text = etch__report_strdup(text);
}

void etch__report_schedule(const char *text, int64_t operator_bytes) {
    report_graph *g = here();
    if (!g) return;
    snprintf(g->schedule, sizeof g->schedule, "%s", text);
    g->operator_bytes = operator_bytes;
}

void etch__report_saved(int64_t bytes) {
    report_graph *g = here();
    if (g) g->saved_bytes = bytes;
}

void etch__report_note(const char *format, ...) {
    report_graph *g = here();
    char line[400];
    if (!g) return;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    size_t n = g->notes ? strlen(g->notes) : 0, more = strlen(line);
    bool again = n >= more && !strcmp(g->notes + n - more, line);
    if (again || n + more > REPORT_MAX_TEXT) return;
    int64_t cap = g->notes ? (int64_t)n + 1 : 0;
    if (!etch__report_grow(&g->notes, &cap, (int64_t)(n + more + 2), 1)) return;
    sprintf(g->notes + n, "%s%s", n ? "\n" : "", line);
}

void etch__report_fallback(reason_id reason, const char *why) {
    report_graph *g = here();
    char text[512];
    if (!g) return;
    snprintf(text, sizeof text, "%s: %s: %s", etch__reasons[reason].name,
             etch__reasons[reason].text, why);
    etch__free(g->why);
    g->why = etch__report_strdup(text);
    g->outcome = OUTCOME_FALLBACK;
    drop_steps(g);
}

/* ---- kernels ---- */

/* Under the lock; -1: not there. */
static int32_t find_kernel(uint64_t hash, size_t bytes) {
    for (int64_t i = 0; i < etch__report_nkernels; i++)
        if (etch__report_kernels[i].hash == hash && etch__report_kernels[i].bytes == bytes)
            return (int32_t)i;
    return -1;
}

void etch__report_kernel(uint64_t hash, size_t bytes, const char *symbol, const char *loop) {
    etch__lock(LOCK_REPORT);
    int64_t n = etch__report_nkernels;
    if (find_kernel(hash, bytes) >= 0) {
    } else if (n == REPORT_MAX_KERNELS) {
        dropped();
    } else if (etch__report_grow(&etch__report_kernels, &kernels_cap, n + 1,
                                 sizeof *etch__report_kernels)) {
        report_kernel *k = &etch__report_kernels[etch__report_nkernels++];
        *k = (report_kernel){.hash = hash, .bytes = bytes, .loop = etch__report_strdup(loop)};
        snprintf(k->symbol, sizeof k->symbol, "%s", symbol);
    }
    etch__unlock(LOCK_REPORT);
}

void etch__report_kernel_made(uint64_t hash, size_t bytes, bool compiled, double ms,
                              const char *dump) {
    etch__lock(LOCK_REPORT);
    int32_t at = find_kernel(hash, bytes);
    if (at >= 0) {
        report_kernel *k = &etch__report_kernels[at];
        k->compiled = compiled, k->ms = ms;
        if (dump && !k->dump) k->dump = etch__report_strdup(dump);
    }
    etch__unlock(LOCK_REPORT);
}

void etch__report_kernel_step(int number, uint64_t hash, size_t bytes) {
    report_graph *g = here();
    if (!g) return;
    etch__lock(LOCK_REPORT);
    int32_t at = find_kernel(hash, bytes);
    for (int64_t i = 0; i < g->nsteps; i++)
        if (g->steps[i].kind == STEP_KERNEL && number-- == 0) g->steps[i].kernel = at;
    etch__unlock(LOCK_REPORT);
}

/* ---- graphs ---- */

static bool same_steps(const report_graph *a, const report_graph *b) {
    if (a->nsteps != b->nsteps) return false;
    for (int64_t i = 0; i < a->nsteps; i++)
        if (a->steps[i].kind != b->steps[i].kind || a->steps[i].kernel != b->steps[i].kernel ||
            strcmp(a->steps[i].name, b->steps[i].name))
            return false;
    return true;
}

/* Plans for other sizes mostly have the steps of the first, and are counted with it. */
static report_graph *resolve(report_graph *g) {
    if (g->runs) return g->runs;
    g->runs = g;
    for (report_graph *old = g->like; old && g->instance && g->runs == g; old = old->next)
        if (old->outcome == g->outcome && same_steps(old, g)) g->runs = old;
    return g->runs;
}

report_graph *etch__report_plan(int nsteps) {
    report_graph *g = here() ? resolve(current) : NULL;
    return g && g->nsteps == nsteps ? g : NULL; /* else there was no memory for some */
}

static void free_graph(report_graph *g) {
    drop_steps(g);
    etch__free(g->steps);
    etch__free(g->name);
    etch__free(g->text);
    etch__free(g->guards);
    etch__free(g->why);
    etch__free(g->notes);
    etch__free(g);
}

bool etch__report_begin_graph(const graph *g, bool instance, report_graph *like) {
    report_graph *r = etch__report_zeroed(sizeof *r);
    if (!r) return false;
    saved_error error;
    etch__error_save(&error);
    char *text = etch__graph_text(g);
    etch__error_restore(&error);
    r->text = etch__report_strdup(text);
    etch__free(text);
    r->name = etch__report_strdup(g->name);
    r->operators = g->nnodes, r->instance = instance;
    r->start = etch__now();
    r->like = like, r->outer = current;
    current = r;
    return true;
}

/* Under the lock. One beyond the bound has no number and is not written, but lives on: its plan
 * notes times in it. */
static void keep_graph(report_graph *g) {
    int64_t n = etch__report_ngraphs;
    g->older = all, all = g;
    g->number = -1;
    if (n == REPORT_MAX_GRAPHS) {
        dropped();
    } else if (etch__report_grow(&etch__report_graphs, &graphs_cap, n + 1,
                                 sizeof *etch__report_graphs)) {
        g->number = (int32_t)n;
        etch__report_graphs[etch__report_ngraphs++] = g;
    }
}

report_graph *etch__report_end_graph(etch_status status, report_graph **runs) {
    report_graph *g = current, *to = status == ETCH_OK ? resolve(g) : NULL;
    current = g->outer;
    g->compile_ns = etch__now() - g->start;
    if (status != ETCH_OK) {
        g->outcome = OUTCOME_FAILED;
        g->why = etch__report_strdup(etch__tls.error);
    }
    bool merged = to && to != g;
    etch__lock(LOCK_REPORT);
    if (merged) to->instances++;
    else keep_graph(g);
    etch__unlock(LOCK_REPORT);
    *runs = to;
    if (merged) free_graph(g);
    return merged ? NULL : g;
}

void etch__report_drop_graph(void) {
    report_graph *g = current;
    current = g->outer;
    free_graph(g);
}

void etch__report_forget(void) {
    while (all) {
        report_graph *older = all->older;
        free_graph(all);
        all = older;
    }
    for (int64_t i = 0; i < etch__report_nkernels; i++) {
        etch__free(etch__report_kernels[i].loop);
        etch__free(etch__report_kernels[i].dump);
    }
    etch__free(etch__report_graphs);
    etch__free(etch__report_kernels);
    etch__report_graphs = NULL, etch__report_kernels = NULL;
    etch__report_ngraphs = etch__report_nkernels = etch__report_dropped = 0;
    graphs_cap = kernels_cap = 0;
}
