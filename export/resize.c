/* A program for other sizes: attributes and scalars by their formulas, everything else inferred
 * anew, node by node. What an instance computes is checked as what was read of a file is: a formula
 * may give words that no operator takes. */
#include "core/dispatch/dispatch.h"
#include "export/program.h"

typedef struct resizing {
    const program *from;
    const int64_t *sizes;
    program *to;
    etch_tensor *handles; /* that look like the values, for inference */
    etch_tensor **in;
    int64_t *words; /* all attributes */
} resizing;

static bool does_not_fit(const char *what, int number) {
    return etch__false(ETCH_ERR_SHAPE, "with these sizes %s %d has no value that fits", what,
                       number);
}

/* ---- words and scalars ---- */

static bool compute_formulas(resizing *r) {
    const program *p = r->from;
    for (int i = 0; i < p->nformulas; i++) {
        const program_formula *f = &p->formulas[i];
        int64_t value;
        if (!etch__formula_value(f, r->sizes, &value)) return does_not_fit("formula", i);
        if (f->target == TARGET_WORD) r->words[f->index] = value;
        else r->to->scalars[f->index].i = value;
    }
    return true;
}

/* ---- values ---- */

/* Arguments whose sizes change lie row-major. */
static bool resize_input(const resizing *r, int argument, tensor_meta *m) {
    const program *p = r->from;
    bool changes = false;
    for (int d = 0; argument >= 0 && d < m->ndim; d++) {
        int symbol = etch__program_symbol(p, argument, d);
        if (symbol < 0) continue;
        m->size[d] = r->sizes[symbol], changes = true;
    }
    if (!changes || etch__row_major(m->ndim, m->size, m->stride) >= 0) return true;
    return does_not_fit("argument", argument);
}

static bool add_inputs(resizing *r) {
    const program *p = r->from;
    for (int v = 0; v < p->g->ninputs; v++) {
        tensor_meta m = p->g->values[v].meta;
        int argument = p->nargs - 1;
        while (argument >= 0 && p->args[argument].input != v) argument--;
        if (!resize_input(r, argument, &m) || etch__graph_add_input(r->to->g, &m) < 0) return false;
        r->to->g->values[v].base = p->g->values[v].base;
        etch__program_handle(&r->handles[v], &m);
    }
    return true;
}

/* ---- nodes ---- */

static bool infer(const resizing *r, int i, op_call *call, tensor_meta *m) {
    const op_info *op = &etch__ops[call->op];
    if (op->flags & (OPF_CLASS_ALPHA | OPF_CLASS_EXPONENT | OPF_CLASS_NUMEL))
        r->words[r->from->g->nodes[i].at + call->nat - 1] =
            etch__op_class(op, call->sc, call->nsc, call->at);
    if (!etch__normal_form(call)) return does_not_fit("operator", i);
    return etch__infer_under(r->from->g->nodes[i].state, call, m, NULL) == ETCH_OK;
}

static bool add_node(resizing *r, int i) {
    const graph *g = r->from->g;
    const graph_node *n = &g->nodes[i];
    tensor_meta m;
    op_call call = etch__program_call(r->from, i, r->handles, r->in);
    call.sc = r->to->scalars + n->sc, call.at = r->words + n->at;
    if (!infer(r, i, &call, &m)) return false;
    int at = etch__graph_add_node(r->to->g, &call, g->operands + n->in, &m);
    if (at < 0) return false;
    r->to->g->nodes[at].state = n->state;
    if (etch__ops[n->op].kind != KIND_INPLACE) etch__program_handle(&r->handles[n->out], &m);
    return true;
}

/* ---- all of it ---- */

static void *copy_of(const void *list, size_t bytes) {
    void *copy = etch__calloc(1, bytes + 1);
    if (copy && bytes) memcpy(copy, list, bytes);
    return copy;
}

static bool begin(resizing *r) {
    const program *p = r->from;
    const graph *g = p->g;
    program *to = r->to = etch__calloc(1, sizeof *to);
    if (!to) return false;
    to->mode = p->mode, to->numerics = p->numerics, to->fp = p->fp, to->writes = p->writes;
    to->nargs = p->nargs, to->ncaptures = p->ncaptures, to->nresults = p->nresults;
    to->args = copy_of(p->args, (size_t)p->nargs * sizeof *p->args);
    to->results = copy_of(p->results, (size_t)p->nresults * sizeof *p->results);
    to->scalars = copy_of(p->scalars, (size_t)g->nscalars * sizeof *p->scalars);
    to->g = etch__graph_new(g->name);
    r->words = copy_of(g->attrs, (size_t)g->nattrs * sizeof *g->attrs);
    r->handles = etch__calloc((size_t)g->nvalues + 1, sizeof *r->handles);
    r->in = etch__calloc((size_t)g->noperands + 1, sizeof *r->in);
    if (!to->g) return false;
    to->g->dynamic = g->dynamic, to->g->any_mode = g->any_mode;
    return to->args && to->results && to->scalars && r->words && r->handles && r->in;
}

program *etch__program_resize(const program *p, const int64_t *sizes) {
    resizing r = {.from = p, .sizes = sizes};
    bool ok = begin(&r) && compute_formulas(&r) && add_inputs(&r);
    for (int i = 0; ok && i < p->g->nnodes; i++) ok = add_node(&r, i);
    for (int k = 0; ok && k < p->g->noutputs; k++)
        ok = etch__graph_add_output(r.to->g, p->g->outputs[k]);
    etch__free(r.words);
    etch__free(r.handles);
    etch__free(r.in);
    if (ok) return r.to;
    etch__program_free(r.to);
    return NULL;
}
