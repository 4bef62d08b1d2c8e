/* The graph container: growing arrays behind the plain struct that everyone reads.
 *
 * A graph is built by appending only; passes of a backend work on their own structures. */
#include "core/graph/graph.h"

typedef struct graph_store {
    graph g; /* first: a graph * is a graph_store * */
    int64_t values_cap, nodes_cap, operands_cap, scalars_cap, attrs_cap, outputs_cap;
} graph_store;

graph *etch__graph_new(const char *name) {
    graph_store *s = etch__calloc(1, sizeof *s);
    if (!s) return NULL;
    if (!(s->g.name = etch__strdup(name))) {
        etch__free(s);
        return NULL;
    }
    return &s->g;
}

void etch__graph_free(graph *g) {
    if (!g) return;
    etch__free((void *)g->name);
    etch__free(g->values);
    etch__free(g->nodes);
    etch__free(g->operands);
    etch__free(g->scalar_kinds);
    etch__free(g->attrs);
    etch__free(g->outputs);
    etch__free(g);
}

/* Appends n items to one of the arrays; the caller writes its count once all arrays have room. */
#define APPEND(s, array, count, cap, items, n)                                                     \
    append(&(s)->g.array, &(s)->cap, (s)->g.count, items, n, sizeof *(s)->g.array)

static bool append(void *array, int64_t *cap, int count, const void *items, int64_t n,
                   size_t size) {
    if (n == 0) return true;
    if (count + n > INT32_MAX) return etch__false(ETCH_ERR_OVERFLOW, "a graph is too large");
    if (!etch__grow(array, cap, count + n, size)) return false;
    memcpy(*(char **)array + count * size, items, n * size);
    return true;
}

graph *etch__graph_copy(const graph *g) {
    graph *copy = etch__graph_new(g->name);
    if (!copy) return NULL;
    graph_store *s = (graph_store *)copy;
    bool ok = APPEND(s, values, nvalues, values_cap, g->values, g->nvalues) &&
              APPEND(s, nodes, nnodes, nodes_cap, g->nodes, g->nnodes) &&
              APPEND(s, operands, noperands, operands_cap, g->operands, g->noperands) &&
              APPEND(s, scalar_kinds, nscalars, scalars_cap, g->scalar_kinds, g->nscalars) &&
              APPEND(s, attrs, nattrs, attrs_cap, g->attrs, g->nattrs) &&
              APPEND(s, outputs, noutputs, outputs_cap, g->outputs, g->noutputs);
    if (!ok) {
        etch__graph_free(copy);
        return NULL;
    }
    copy->dynamic = g->dynamic, copy->any_mode = g->any_mode;
    copy->ninputs = g->ninputs, copy->nvalues = g->nvalues, copy->nnodes = g->nnodes;
    copy->noperands = g->noperands, copy->nscalars = g->nscalars, copy->nattrs = g->nattrs;
    copy->noutputs = g->noutputs;
    return copy;
}

int etch__graph_add_input(graph *g, const tensor_meta *meta) {
    graph_store *s = (graph_store *)g;
    graph_value v = {*meta, -1, g->nvalues};
    if (!APPEND(s, values, nvalues, values_cap, &v, 1)) return -1;
    g->ninputs++;
    return g->nvalues++;
}

int etch__graph_add_node(graph *g, const op_call *call, const int32_t *operands,
                         const tensor_meta *out) {
    graph_store *s = (graph_store *)g;
    const op_info *op = &etch__ops[call->op];
    graph_node n = {.op = call->op,
                    .nin = call->nin,
                    .nsc = call->nsc,
                    .nat = call->nat,
                    .part_of = call->part_of,
                    .out = op->kind == KIND_INPLACE ? operands[0] : g->nvalues,
                    .in = g->noperands,
                    .sc = g->nscalars,
                    .at = g->nattrs,
                    .state = etch__tls.state,
                    .site = call->site};
    uint8_t kinds[256];
    for (int i = 0; i < call->nsc; i++) kinds[i] = (uint8_t)call->sc[i].kind;
    if (!APPEND(s, operands, noperands, operands_cap, operands, call->nin) ||
        !APPEND(s, scalar_kinds, nscalars, scalars_cap, kinds, call->nsc) ||
        !APPEND(s, attrs, nattrs, attrs_cap, call->at, call->nat))
        return -1;
    if (op->kind != KIND_INPLACE) {
        int32_t base = op->kind == KIND_VIEW ? g->values[operands[0]].base : g->nvalues;
        graph_value v = {*out, g->nnodes, base};
        if (!APPEND(s, values, nvalues, values_cap, &v, 1)) return -1;
    }
    if (!APPEND(s, nodes, nnodes, nodes_cap, &n, 1)) return -1;
    g->noperands += call->nin, g->nscalars += call->nsc, g->nattrs += call->nat;
    if (op->kind != KIND_INPLACE) g->nvalues++;
    return g->nnodes++;
}

bool etch__graph_add_output(graph *g, int32_t value) {
    graph_store *s = (graph_store *)g;
    if (!APPEND(s, outputs, noutputs, outputs_cap, &value, 1)) return false;
    g->noutputs++;
    return true;
}

/* ---- equality ---- */

static bool same_node(const graph_node *a, const graph_node *b) {
    return a->op == b->op && a->nin == b->nin && a->nsc == b->nsc && a->nat == b->nat &&
           a->out == b->out && a->in == b->in && a->sc == b->sc && a->at == b->at &&
           a->state == b->state;
}

static bool same_words(const void *a, const void *b, size_t bytes) {
    return bytes == 0 || !memcmp(a, b, bytes);
}

bool etch__graph_equal(const graph *a, const graph *b) {
    if (a->ninputs != b->ninputs || a->nvalues != b->nvalues || a->nnodes != b->nnodes ||
        a->noperands != b->noperands || a->nscalars != b->nscalars || a->nattrs != b->nattrs ||
        a->noutputs != b->noutputs)
        return false;
    for (int i = 0; i < a->nvalues; i++)
        if (!etch__same_meta(&a->values[i].meta, &b->values[i].meta) ||
            a->values[i].node != b->values[i].node || a->values[i].base != b->values[i].base)
            return false;
    for (int i = 0; i < a->nnodes; i++)
        if (!same_node(&a->nodes[i], &b->nodes[i])) return false;
    return same_words(a->operands, b->operands, a->noperands * sizeof *a->operands) &&
           same_words(a->scalar_kinds, b->scalar_kinds, a->nscalars) &&
           same_words(a->attrs, b->attrs, a->nattrs * sizeof *a->attrs) &&
           same_words(a->outputs, b->outputs, a->noutputs * sizeof *a->outputs);
}
