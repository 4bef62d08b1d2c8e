/* Guards of the entry: see entry.h. */
#include "guards/entry.h"

static bool copy_marks(entry_guard *g, etch_tensor *const *in) {
    for (int i = 0; i < g->nargs; i++) {
        if (!etch__marks(in[i])) continue;
        if (!g->marks && !(g->marks = etch__calloc((size_t)g->nargs, sizeof *g->marks)))
            return false;
        g->marks[i] = *etch__marks(in[i]);
    }
    return true;
}

bool etch__entry_make(entry_guard *g, etch_tensor *const *in, int nin, bool dynamic) {
    g->nargs = nin, g->dynamic = dynamic;
    g->meta = etch__calloc((size_t)nin + 1, sizeof *g->meta);
    g->read = etch__calloc((size_t)nin + 1, 1);
    if (!g->meta || !g->read || (dynamic && !copy_marks(g, in))) return false;
    for (int i = 0; i < nin; i++) etch__guard_make(in[i], &g->meta[i]);
    return true;
}

void etch__entry_free(entry_guard *g) {
    etch__free(g->meta);
    etch__free(g->read);
    etch__free(g->marks);
}

static bool argument_fits(const entry_guard *g, int i, const etch_tensor *x, entry_fit how) {
    const tensor_meta *m = &g->meta[i];
    if (!etch__guard_holds_rank(m, x)) return false;
    if (how == FIT_SIMILAR) return etch__fixed_sizes_agree(m, x);
    return likely(!g->marks && !etch__marks(x)) ||
           etch__marks_hold(g->marks ? &g->marks[i] : NULL, m, x);
}

bool etch__entry_fits(const entry_guard *g, etch_tensor *const *in, int nin, entry_fit how) {
    if (how == FIT_EXACT) return etch__entry_fits_exactly(g, in, nin);
    if (g->nargs != nin) return false;
    for (int i = 0; i < nin; i++)
        if (g->read[i] && !argument_fits(g, i, in[i], how)) return false;
    return true;
}

static void explain_argument(const entry_guard *g, const etch_tensor *x, int i, char *buf,
                             size_t n) {
    if (g->dynamic && g->marks) etch__marks_explain(&g->marks[i], &g->meta[i], x, i, buf, n);
    if (!buf[0]) etch__guard_explain(&g->meta[i], x, i, buf, n);
    if (!buf[0] && !g->dynamic && etch__marked_dynamic(x))
        snprintf(buf, n, "tensor %d: a dimension is marked dynamic: expected fixed sizes", i);
}

void etch__entry_explain(const entry_guard *g, etch_tensor *const *in, int nin, char *buf,
                         size_t n) {
    buf[0] = 0;
    if (g->nargs != nin) snprintf(buf, n, "expected %d arguments, got %d", g->nargs, nin);
    for (int i = 0; i < nin && i < g->nargs && !buf[0]; i++)
        if (g->read[i]) explain_argument(g, in[i], i, buf, n);
}
