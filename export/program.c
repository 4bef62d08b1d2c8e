/* See program.h. */
#include "export/program.h"

#include "core/dispatch/dispatch.h"

void etch__program_free(program *p) {
    if (!p) return;
    etch__graph_free(p->g);
    for (int i = 0; p->captures && i < p->ncaptures; i++) etch__free(p->captures[i].name);
    etch__free(p->captures);
    etch__free(p->args);
    etch__free(p->results);
    etch__free(p->scalars);
    etch__free(p->dims);
    etch__free(p->formulas);
    etch__free(p);
}

int32_t etch__program_root(const program *p, int32_t value) {
    const graph *g = p->g;
    while (value >= g->ninputs) {
        const graph_node *n = &g->nodes[g->values[value].node];
        if (etch__ops[n->op].kind != KIND_VIEW) return -1;
        value = g->operands[n->in];
    }
    return value;
}

int etch__program_symbol(const program *p, int argument, int dim) {
    for (int i = 0; i < p->ndims; i++)
        if (p->dims[i].argument == argument && p->dims[i].dim == dim) return p->dims[i].symbol;
    return -1;
}

uint8_t *etch__program_written(const program *p) {
    const graph *g = p->g;
    uint8_t *written = etch__calloc((size_t)g->ninputs + 1, 1);
    for (int i = 0; written && i < g->nnodes; i++) {
        int32_t base = g->values[g->nodes[i].out].base;
        if (etch__ops[g->nodes[i].op].kind == KIND_INPLACE && base < g->ninputs) written[base] = 1;
    }
    for (int v = 0; written && v < g->ninputs; v++) written[v] = written[g->values[v].base];
    return written;
}

bool etch__program_extent(const tensor_meta *m, int64_t *least, int64_t *end) {
    int64_t low = 0, high = 0;
    *least = *end = 0;
    for (int d = 0; d < m->ndim; d++)
        if (m->size[d] == 0) return true;
    for (int d = 0; d < m->ndim; d++) {
        int64_t far;
        if (__builtin_mul_overflow(m->size[d] - 1, m->stride[d], &far)) return false;
        if (__builtin_add_overflow(far < 0 ? low : high, far, far < 0 ? &low : &high)) return false;
    }
    if (high >= INT64_MAX / 16 || low <= INT64_MIN / 16) return false;
    *least = low, *end = high + 1;
    return true;
}

/* ---- for inference ---- */

void etch__program_handle(etch_tensor *t, const tensor_meta *m) {
    etch__apply_meta(t, m);
    t->magic = TENSOR_ALIVE, t->deferred = 1, t->value = -1;
    atomic_store(&t->refs, 1 << 30);
}

op_call etch__program_call(const program *p, int i, etch_tensor *handles, etch_tensor **in) {
    const graph *g = p->g;
    const graph_node *n = &g->nodes[i];
    for (int k = 0; k < n->nin; k++) {
        int32_t v = g->operands[n->in + k];
        in[k] = v < 0 ? ETCH_NONE : &handles[v];
    }
    return (op_call){.op = n->op,
                     .nin = n->nin,
                     .nsc = n->nsc,
                     .nat = n->nat,
                     .in = in,
                     .sc = p->scalars + n->sc,
                     .at = g->attrs + n->at,
                     .site = n->site};
}

/* ---- differences ---- */

static const char *node_name(const program *p, int i) {
    return i < p->g->nnodes ? etch__ops[p->g->nodes[i].op].name : "the return";
}

static const char *node_line(const program *p, int i) {
    const char *line = i < p->g->nnodes ? etch__site_line(p->g->nodes[i].site) : "";
    return *line ? line : "?";
}

/* Lists of no words may be NULL. */
static bool same_words(const void *a, const void *b, size_t bytes) {
    return bytes == 0 || !memcmp(a, b, bytes);
}

static bool same_sizes(const program *a, const program *b, int i) {
    const graph *g = a->g, *h = b->g;
    const graph_node *m = &g->nodes[i], *n = &h->nodes[i];
    return same_words(g->attrs + m->at, h->attrs + n->at, m->nat * sizeof *g->attrs) &&
           etch__same_meta(&g->values[m->out].meta, &h->values[n->out].meta);
}

static bool same_node(const program *a, const program *b, int i) {
    const graph *g = a->g, *h = b->g;
    if (i >= g->nnodes || i >= h->nnodes) return false;
    const graph_node *m = &g->nodes[i], *n = &h->nodes[i];
    return m->op == n->op && m->nin == n->nin && m->nsc == n->nsc && m->nat == n->nat &&
           m->state == n->state && m->out == n->out && m->in == n->in && m->sc == n->sc &&
           m->at == n->at &&
           same_words(g->operands + m->in, h->operands + n->in, m->nin * sizeof *g->operands) &&
           same_words(g->scalar_kinds + m->sc, h->scalar_kinds + n->sc, m->nsc);
}

static double number(etch_scalar s) { return s.kind == ETCH_SCALAR_REAL ? s.d : (double)s.i; }

static bool same_scalars(const program *a, const program *b, int i) {
    const graph_node *n = &a->g->nodes[i];
    int count = etch__program_draws(a, i) ? n->nsc - 2 : n->nsc;
    for (int k = 0; k < count; k++) {
        etch_scalar x = a->scalars[n->sc + k], y = b->scalars[n->sc + k];
        if (x.i == y.i) continue;
        etch__why("%s at %s: scalar %d is %.17g in one call and %.17g in the next", node_name(a, i),
                  node_line(a, i), k, number(x), number(y));
        return false;
    }
    return true;
}

const char *etch__program_difference(const program *a, const program *b, bool resized) {
    if (a->nargs != b->nargs || a->ncaptures != b->ncaptures || a->g->ninputs != b->g->ninputs)
        return "it reads another number of tensors in the next call";
    for (int i = 0; i < a->g->nnodes || i < b->g->nnodes; i++) {
        if (!same_node(a, b, i) || (!resized && !same_sizes(a, b, i))) {
            return etch__why(
                "operator %d is %s at %s in one call, and %s at %s, or that with other "
                "operands or attributes, in the next",
                i, node_name(a, i), node_line(a, i), node_name(b, i), node_line(b, i));
        }
        if (!resized && !same_scalars(a, b, i)) return etch__tls.why;
    }
    if (a->nresults != b->nresults ||
        !same_words(a->results, b->results, (size_t)a->nresults * sizeof *a->results))
        return "it returns other tensors in the next call";
    return NULL;
}
