/* What was read of a file is looked at before it runs: kernels and plans trust a graph. Files whose
 * hash is right come here, too: they may be of somebody who knows how to make one. */
#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"
#include "export/program.h"

static bool fault(const char *what, int number) {
    return etch__false(ETCH_ERR_FORMAT, "its program is damaged: %s %d", what, number);
}

/* ---- inputs ---- */

static bool inputs_ok(const program *p) {
    const graph *g = p->g;
    for (int v = 0; v < g->ninputs; v++) {
        const graph_value *in = &g->values[v];
        int64_t least, end;
        bool base_ok = in->base <= v && g->values[in->base].base == in->base;
        if (!base_ok || in->meta.offset || !etch__program_extent(&in->meta, &least, &end))
            return fault("input", v);
    }
    return true;
}

/* Arguments are the first inputs, in their order; all others are captured. */
static bool arguments_ok(const program *p) {
    int next = 0;
    for (int i = 0; i < p->nargs; i++) {
        const program_argument *a = &p->args[i];
        if (a->input >= 0 && a->input != next++) return fault("argument", i);
        const program_argument *first = &p->args[a->same];
        bool both = (a->input < 0) == (first->input < 0) && first->same == a->same;
        if (!both || (a->input >= 0 && !etch__same_meta(&p->g->values[a->input].meta,
                                                        &p->g->values[first->input].meta)))
            return fault("argument", i);
    }
    return next + p->ncaptures == p->g->ninputs || fault("the number of captures,", p->ncaptures);
}

/* ---- nodes ---- */

/* The word that selects what an operator computes is what its scalars say. */
static bool class_ok(const op_call *call) {
    const op_info *op = &etch__ops[call->op];
    if (op->flags & OPF_SELECTS) return call->nat && (call->at[call->nat - 1] & ~(int64_t)1) == 0;
    if (!(op->flags & (OPF_CLASS_ALPHA | OPF_CLASS_EXPONENT | OPF_CLASS_NUMEL))) return true;
    return call->at[call->nat - 1] == etch__op_class(op, call->sc, call->nsc, call->at);
}

static bool state_ok(const graph_node *n) {
    const uint64_t known = 0xff00u | STATE_INFERENCE | STATE_TUNED | 0x8 | 0x30 | 0xff0000u;
    return !(n->state & ~known) && STATE_DTYPE(n->state) < ETCH_DTYPE_COUNT;
}

static bool node_ok(const program *p, int i, etch_tensor *handles, etch_tensor **in) {
    const graph *g = p->g;
    const graph_node *n = &g->nodes[i];
    const op_info *op = &etch__ops[n->op];
    const op_call call = etch__program_call(p, i, handles, in);
    tensor_meta m;
    if (!state_ok(n) || op->flags & OPF_EFFECTS || !class_ok(&call) ||
        !etch__operands_present(&call))
        return fault("operator", i);
    if (etch__infer_under(n->state, &call, &m, NULL) != ETCH_OK) return false;
    if (op->kind == KIND_INPLACE) return true;
    if (!etch__same_meta(&m, &g->values[n->out].meta)) return fault("the value of operator", i);
    return true;
}

static bool nodes_ok(const program *p) {
    const graph *g = p->g;
    etch_tensor *handles = etch__calloc((size_t)g->nvalues + 1, sizeof *handles);
    etch_tensor **in = etch__calloc((size_t)g->noperands + 1, sizeof *in);
    bool ok = handles && in;
    for (int v = 0; ok && v < g->nvalues; v++)
        etch__program_handle(&handles[v], &g->values[v].meta);
    for (int i = 0; ok && i < g->nnodes; i++) ok = node_ok(p, i, handles, in);
    etch__free(handles);
    etch__free(in);
    return ok;
}

/* ---- results ---- */

static bool results_ok(const program *p) {
    const graph *g = p->g;
    for (int i = 0; i < p->nresults; i++) {
        int32_t base = g->values[p->results[i]].base;
        bool there = base < g->ninputs;
        for (int k = 0; k < g->noutputs; k++) there |= g->outputs[k] == base;
        if (!there) return fault("result", i);
    }
    for (int k = 0; k < g->noutputs; k++)
        for (int j = 0; j < k; j++)
            if (g->outputs[j] == g->outputs[k]) return fault("output", k);
    return true;
}

/* All on one device, which is there. */
static bool device_ok(const program *p, const char *function) {
    const graph *g = p->g;
    for (int v = 1; v < g->nvalues; v++)
        if (g->values[v].meta.device != g->values[0].meta.device)
            return fault("the device of value", v);
    int device = etch__program_device(p);
    return !device || etch__device_check(device, function, NULL);
}

/* ---- run-time sizes ---- */

/* One symbol a dimension, of the size that the graph has; each place has one formula at most. */
static bool dims_ok(const program *p) {
    for (int i = 0; i < p->ndims; i++) {
        const program_dim *d = &p->dims[i];
        int32_t input = p->args[d->argument].input;
        if (input < 0) return fault("size", i);
        const tensor_meta *m = &p->g->values[input].meta;
        bool again = etch__program_symbol(p, d->argument, d->dim) != d->symbol;
        if (d->dim >= m->ndim || again || m->size[d->dim] != p->symbols[d->symbol].size)
            return fault("size", i);
    }
    for (int i = 1; i < p->nformulas; i++)
        for (int k = 0; k < i; k++)
            if (p->formulas[i].target == p->formulas[k].target &&
                p->formulas[i].index == p->formulas[k].index)
                return fault("formula", i);
    return true;
}

/* With the sizes that it was recorded with, the formulas give what was recorded. */
static bool sizes_ok(const program *p) {
    int64_t sizes[SYMBOLS_MAX];
    if (!dims_ok(p)) return false;
    if (!p->nsymbols) return !p->nformulas || fault("formula", 0);
    for (int s = 0; s < p->nsymbols; s++) sizes[s] = p->symbols[s].size;
    program *same = etch__program_resize(p, sizes);
    if (!same) return false;
    bool ok = etch__graph_equal(same->g, p->g);
    for (int i = 0; ok && i < p->g->nscalars; i++) ok = same->scalars[i].i == p->scalars[i].i;
    etch__program_free(same);
    return ok || fault("a formula of", p->nformulas);
}

bool etch__program_check(program *p, const char *function) {
    const graph *g = p->g;
    p->writes = false;
    for (int i = 0; i < g->nnodes; i++)
        p->writes |= etch__ops[g->nodes[i].op].kind == KIND_INPLACE &&
                     g->values[g->nodes[i].out].base < g->ninputs;
    return inputs_ok(p) && arguments_ok(p) && device_ok(p, function) && nodes_ok(p) &&
           results_ok(p) && sizes_ok(p);
}
