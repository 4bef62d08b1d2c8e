/* See probe.h.
 *
 * Dimensions that are marked dynamic and had one size are taken for one symbol, as a batch is in
 * several arguments. The body is recorded with the least sizes, and with some that are not far from
 * those of the example; the tensors for that have no memory, since nothing is computed. What
 * differs between the recordings gets a formula, or the export is refused. */
#include "export/probe.h"

#include "core/dispatch/dispatch.h"

/* ---- symbols ---- */

static bool add_dim(program *p, const etch_tensor *t, int argument, int dim) {
    const dim_marks *m = etch__marks(t);
    int s = 0;
    while (s < p->nsymbols && p->symbols[s].size != t->size[dim]) s++;
    if (s == SYMBOLS_MAX)
        return etch__false_at(NULL, ETCH_ERR_UNSUPPORTED,
                              "etch_export: expected up to %d different sizes that are marked "
                              "dynamic",
                              SYMBOLS_MAX);
    program_symbol *symbol = &p->symbols[s];
    if (s == p->nsymbols) p->symbols[p->nsymbols++] = (program_symbol){0, INT64_MAX, t->size[dim]};
    if (symbol->min < m->min[dim]) symbol->min = m->min[dim];
    if (symbol->max > m->max[dim]) symbol->max = m->max[dim];
    p->dims[p->ndims++] = (program_dim){argument, dim, s};
    return true;
}

/* Their strides follow from the sizes, and who shares memory with them would not. */
static bool argument_ok(const program *p, etch_tensor *const *in, int nin, int i) {
    const char *why = !in[i]->contiguous          ? "is not row-major"
                      : etch_requires_grad(in[i]) ? "requires gradients"
                                                  : NULL;
    for (int k = 0; k < nin; k++)
        if (p->writes && k != i && in[k] != ETCH_NONE && in[k] != in[i] &&
            in[k]->storage == in[i]->storage)
            why = "shares its storage with another one, and storages are written";
    if (!why) return true;
    return etch__false_at(NULL, ETCH_ERR_UNSUPPORTED,
                          "etch_export: %s: argument %d has a dimension that is marked dynamic, "
                          "and %s",
                          p->g->name, i, why);
}

static bool find_symbols(program *p, etch_tensor *const *in, int nin) {
    p->dims = etch__calloc((size_t)nin * ETCH_MAX_DIMS + 1, sizeof *p->dims);
    if (!p->dims) return false;
    for (int i = 0; i < nin; i++) {
        const dim_marks *m = in[i] == ETCH_NONE ? NULL : etch__marks(in[i]);
        if (!m || !m->dynamic) continue;
        if (!argument_ok(p, in, nin, i)) return false;
        for (int d = 0; d < in[i]->ndim; d++)
            if (m->dynamic >> d & 1 && !add_dim(p, in[i], i, d)) return false;
    }
    p->g->dynamic = p->nsymbols > 0;
    return true;
}

/* ---- sizes to try ---- */

/* Not far from the example, within the bounds, and in another relation to each other each time. */
static int64_t size_to_try(const program_symbol *s, int symbol, int k) {
    static const int64_t steps[PROBES] = {0, 0, 1, 3, 8, 2, 13, 5};
    if (k == 0) return s->size;
    if (k == 1) return s->min;
    int64_t low = s->size > s->min + 2 ? s->size - 2 : s->min;
    int64_t size = low + steps[(k + 3 * symbol) % PROBES] + (symbol + 1) * (k % 3) + 1;
    return size <= s->max ? size : s->min + size % (s->max - s->min + 1);
}

static bool probe_sizes(const program *p, int k, int64_t *sizes) {
    if (!p->nsymbols || k >= PROBES) return false;
    for (int s = 0; s < p->nsymbols; s++) sizes[s] = size_to_try(&p->symbols[s], s, k);
    return true;
}

enum { SUBSETS_MAX = 5, RUNGS = 6 }; /* of so many symbols all subsets */

static int64_t clipped(const program_symbol *s, int64_t size) {
    return size < s->min ? s->min : size > s->max ? s->max : size;
}

/* Powers of 4, of one symbol or of all: on a device operators have kernels for small and for large
 * sizes. */
static bool sizes_of_ladder(const program *p, int k, int64_t *sizes) {
    int rung = k / (p->nsymbols + 1), which = k % (p->nsymbols + 1);
    if (!p->nsymbols || rung >= RUNGS || !etch__program_device(p)) return false;
    for (int s = 0; s < p->nsymbols; s++) {
        bool on = which == p->nsymbols || which == s;
        sizes[s] = on ? clipped(&p->symbols[s], (int64_t)4 << 2 * rung) : p->symbols[s].size;
    }
    return true;
}

/* A size of 1 is a dimension that kernels do not go along, which can be any of them, by themselves
 * or together; those behind the fifth are one with it. */
bool etch__sizes_with_code(const program *p, int k, int64_t *sizes) {
    if (k < PROBES) return probe_sizes(p, k, sizes);
    int n = p->nsymbols < SUBSETS_MAX ? p->nsymbols : SUBSETS_MAX, subset = k - PROBES;
    if (!n || subset >= 1 << n) return sizes_of_ladder(p, subset - (1 << n), sizes);
    for (int s = 0; s < p->nsymbols; s++) {
        bool one = subset >> (s < n ? s : n - 1) & 1 && p->symbols[s].min <= 1;
        sizes[s] = one ? 1 : size_to_try(&p->symbols[s], s, 4);
    }
    return true;
}

/* ---- recording with them ---- */

/* A tensor of such sizes, over no memory. */
static etch_tensor *stand_in(const program *p, const etch_tensor *t, int argument,
                             const int64_t *sizes, etch_storage *nothing) {
    tensor_meta m = {.dtype = t->dtype, .ndim = t->ndim, .device = t->device};
    for (int d = 0; d < t->ndim; d++) {
        int symbol = etch__program_symbol(p, argument, d);
        m.size[d] = symbol < 0 ? t->size[d] : sizes[symbol];
    }
    etch_tensor *made = etch__tensor_alloc();
    if (!made) return NULL;
    if (etch__row_major(m.ndim, m.size, m.stride) >= 0) {
        etch__lie_over(made, &m, nothing);
        if (etch__scope_push(made)) return made;
    }
    etch__tensor_destroy(made);
    return NULL;
}

static bool make_arguments(const program *p, etch_tensor *const *in, const int64_t *sizes,
                           etch_storage *nothing, etch_tensor **args) {
    for (int i = 0; i < p->nargs; i++) {
        bool resized = false;
        for (int d = 0; in[i] != ETCH_NONE && d < in[i]->ndim; d++)
            resized |= etch__program_symbol(p, i, d) >= 0;
        args[i] = p->args[i].same < i ? args[p->args[i].same]
                  : resized           ? stand_in(p, in[i], i, sizes, nothing)
                                      : in[i];
        if (!args[i]) return false;
    }
    return true;
}

static bool record_with(etch_function *f, const program *p, etch_tensor *const *in, int nout,
                        const int64_t *sizes, recorded *out) {
    etch_tensor **args = etch__calloc((size_t)p->nargs + 1, sizeof *args);
    etch_storage *nothing = args ? etch__storage_over(etch__program_device(p), NULL, 0) : NULL;
    bool ok = false;
    if (nothing)
        ETCH_SCOPE
            ok = make_arguments(p, in, sizes, nothing, args) &&
                 etch__record_once(f, args, p->nargs, nout, out);
    if (nothing) etch__storage_release(nothing);
    etch__free(args);
    return ok;
}

static bool wrong_size(const program *p, const int64_t *sizes, const char *why) {
    char text[160];
    int n = 0;
    for (int s = 0; s < p->nsymbols; s++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld", s ? ", " : "",
                      (long long)sizes[s]);
    if (why)
        return etch__false_at(NULL, ETCH_ERR_UNSUPPORTED,
                              "etch_export: %s: what it does changes with sizes that are marked "
                              "dynamic (%s): %s",
                              p->g->name, text, why);
    char cause[400];
    etch_status status = etch__tls.status;
    snprintf(cause, sizeof cause, "%s", etch_last_error());
    etch_clear_error();
    return etch__false_at(NULL, status,
                          "etch_export: %s: it fails with sizes that are marked dynamic (%s); give "
                          "etch_mark_dynamic bounds, or leave the mark out: %s",
                          p->g->name, text, cause);
}

/* ---- formulas ---- */

typedef struct probing {
    program *p;
    recorded probe[PROBES];
    int n;
    int64_t sizes[PROBES][SYMBOLS_MAX];
    int64_t cap;
} probing;

static int64_t seen(const program *p, formula_target target, int index) {
    return target == TARGET_WORD ? p->g->attrs[index] : p->scalars[index].i;
}

static bool is_constant(const probing *b, formula_target target, int index) {
    for (int k = 1; k < b->n; k++)
        if (seen(b->probe[k].p, target, index) != seen(b->p, target, index)) return false;
    return true;
}

static bool no_formula(const probing *b, int node, formula_target target, int place) {
    const graph_node *n = &b->p->g->nodes[node];
    return etch__false_at(
        n->site, ETCH_ERR_SPECIALISED,
        "etch_export: %s: %s: %s %d depends on sizes that are marked dynamic in a "
        "way that is no product, sum or quotient of them",
        b->p->g->name, etch__ops[n->op].name, target == TARGET_WORD ? "attribute" : "scalar",
        place);
}

static bool find_formula(probing *b, int node, formula_target target, int index, int place) {
    program *p = b->p;
    int64_t y[PROBES];
    if (is_constant(b, target, index)) return true;
    if (!etch__grow(&p->formulas, &b->cap, p->nformulas + 1, sizeof *p->formulas)) return false;
    program_formula *f = &p->formulas[p->nformulas];
    *f = (program_formula){.target = target, .index = index};
    for (int k = 0; k < b->n; k++) y[k] = seen(b->probe[k].p, target, index);
    bool real = target == TARGET_SCALAR && p->scalars[index].kind == ETCH_SCALAR_REAL;
    if (!etch__formula_find(f, real, p->nsymbols, b->n, b->sizes, y))
        return no_formula(b, node, target, place);
    p->nformulas++;
    return true;
}

/* The class of a call follows from its scalars, seeds are drawn. */
static bool find_of_node(probing *b, int i) {
    const graph_node *n = &b->p->g->nodes[i];
    const int classes = OPF_CLASS_ALPHA | OPF_CLASS_EXPONENT | OPF_CLASS_NUMEL;
    int nat = n->nat - (etch__ops[n->op].flags & classes ? 1 : 0);
    int nsc = n->nsc - (etch__program_draws(b->p, i) ? 2 : 0);
    for (int k = 0; k < nat; k++)
        if (!find_formula(b, i, TARGET_WORD, n->at + k, k)) return false;
    for (int k = 0; k < nsc; k++)
        if (!find_formula(b, i, TARGET_SCALAR, n->sc + k, k)) return false;
    return true;
}

/* The program with a probe's sizes is what was recorded with them. */
static bool agrees(const probing *b, int k) {
    program *made = etch__program_resize(b->p, b->sizes[k]);
    const char *why = made ? etch__program_difference(b->probe[k].p, made, false) : NULL;
    etch__program_free(made);
    return made && (!why || wrong_size(b->p, b->sizes[k], why));
}

static bool probe_all(probing *b, etch_function *f, etch_tensor *const *in, int nout) {
    int64_t sizes[SYMBOLS_MAX];
    for (; probe_sizes(b->p, b->n, sizes); b->n++) {
        memcpy(b->sizes[b->n], sizes, sizeof sizes);
        if (!record_with(f, b->p, in, nout, sizes, &b->probe[b->n]))
            return wrong_size(b->p, sizes, NULL);
        const char *why = etch__program_difference(b->p, b->probe[b->n].p, true);
        if (why) return b->n++, wrong_size(b->p, sizes, why);
    }
    bool ok = true;
    for (int i = 0; ok && i < b->p->g->nnodes; i++) ok = find_of_node(b, i);
    for (int k = 0; ok && k < b->n; k++) ok = agrees(b, k);
    return ok;
}

bool etch__probe_sizes(etch_function *f, etch_tensor *const *in, int nin, int nout, recorded *r) {
    if (!find_symbols(r->p, in, nin)) return false;
    if (!r->p->nsymbols) return true;
    probing *b = etch__calloc(1, sizeof *b);
    if (!b) return false;
    b->p = r->p;
    bool ok = probe_all(b, f, in, nout);
    for (int k = 0; k < b->n; k++) etch__recorded_free(&b->probe[k]);
    etch__free(b);
    return ok;
}
