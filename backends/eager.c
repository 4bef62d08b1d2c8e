/* Backend "eager", and the plan that every other backend falls back to: the graph's nodes, one by
 * one, through the eager kernels.
 *
 * A value lives until the last node that names it, or any view of it, has run (views hold a count
 * of the storage). Where the graph writes an input, all memory is allocated before the first node
 * runs, so that a failed allocation leaves the inputs as they were: values of one size that do not
 * live at one time share a *slot*. And where a check on data comes behind a write, what the input
 * held is kept aside and put back if the check fails. */
#include "core/dispatch/dispatch.h"
#include "core/base/start.h"
#include "core/graph/backend.h"
#include "core/tensor/device.h"
#include "core/base/profile.h"

typedef struct eager_plan {
    plan p;
    graph *g;
    int32_t *last; /* per value: the last node that names it; nnodes for outputs */
    int32_t *slot; /* per value with a storage of its own, where the graph writes an input */
    int32_t nslots;
    int32_t most_operands; /* of a node */
    bool writes_input, checks_late;
} eager_plan;

/* ---- one run ---- */

typedef struct eager_run {
    const eager_plan *p;
    const plan_io *io;
    etch_tensor **value; /* a count of each, inputs aside */
    etch_tensor **in;    /* room for the operands of a node */
    etch_storage **kept; /* per input that was written: what it held */
    etch_storage **slot; /* allocated before the first node; NULL where each is at its own */
    bool wrote;          /* an input */
} eager_run;

/* Bytes of the input's own span, to its copy or back. */
static etch_status move_span(const etch_tensor *t, etch_storage *kept, bool back) {
    size_t from, bytes;
    etch__span(t, &from, &bytes);
    etch_storage *s = t->storage;
    if (t->device && back) return etch__device_kind(t->device)->copy(s, from, kept, 0, bytes);
    if (t->device) return etch__device_kind(t->device)->copy(kept, 0, s, from, bytes);
    char *here = (char *)s->data + from;
    memcpy(back ? here : kept->data, back ? kept->data : here, bytes);
    return ETCH_OK;
}

static bool keep_input(eager_run *r, int32_t v) {
    const etch_tensor *t = r->value[v];
    size_t from, bytes;
    if (r->kept[v] || !t->numel) return true;
    etch__span(t, &from, &bytes);
    r->kept[v] = etch__storage_new_on(t->device, bytes);
    return r->kept[v] && move_span(t, r->kept[v], false) == ETCH_OK;
}

/* Of all inputs over memory that the graph writes, before any is: one of them may be a part of
 * another. */
static bool keep_inputs(eager_run *r) {
    const graph *g = r->p->g;
    bool ok = true;
    for (int i = 0; ok && i < g->nnodes; i++) {
        int32_t base = g->values[g->nodes[i].out].base;
        if (etch__ops[g->nodes[i].op].kind != KIND_INPLACE) continue;
        for (int32_t v = 0; ok && v < g->ninputs; v++)
            if (g->values[v].base == base) ok = keep_input(r, v);
    }
    return ok;
}

/* After a failure, with the error kept: the inputs hold what they did. */
static void put_back(eager_run *r) {
    KEEP_ERROR;
    bool ok = r->p->checks_late;
    for (int v = 0; ok && v < r->p->g->ninputs; v++)
        if (r->kept[v]) ok = move_span(r->value[v], r->kept[v], true) == ETCH_OK;
    r->wrote &= !ok;
}

static size_t bytes_of(const graph *g, int v) {
    const tensor_meta *m = &g->values[v].meta;
    size_t bytes = etch_dtype_size(m->dtype);
    for (int d = 0; d < m->ndim; d++) bytes *= (size_t)m->size[d];
    return bytes;
}

static bool make_handle(eager_run *r, int v) {
    if (!r->value[v] && (r->value[v] = etch__tensor_alloc()))
        etch__apply_meta(r->value[v], &r->p->g->values[v].meta);
    return r->value[v] != NULL;
}

/* Slots that a kernel of the user still holds are not written: the value gets a new one. */
static etch_storage *take_storage(eager_run *r, int v) {
    etch_storage *s = r->slot ? r->slot[r->p->slot[v]] : NULL;
    if (!s || atomic_load(&s->refs) > 1)
        return etch__storage_new_on(r->value[v]->device, bytes_of(r->p->g, v));
    etch__storage_retain(s);
    return s;
}

/* The handle of a computed value: over its own storage, or for views over its operand's. */
static bool make_value(eager_run *r, int v) {
    const graph *g = r->p->g;
    const graph_node *n = &g->nodes[g->values[v].node];
    if (v < g->ninputs || (r->value[v] && r->value[v]->storage)) return true;
    if (!make_handle(r, v)) return false;
    etch_tensor *t = r->value[v];
    if (etch__ops[n->op].kind != KIND_VIEW) return (t->storage = take_storage(r, v)) != NULL;
    int32_t of = g->operands[n->in];
    t->storage = r->value[of]->storage;
    /* An input may lie at another offset than the one recorded. */
    t->offset += r->value[of]->offset - g->values[of].meta.offset;
    etch__storage_retain(t->storage);
    return true;
}

/* All that the run needs. */
static bool make_all(eager_run *r) {
    const graph *g = r->p->g;
    bool ok = true;
    r->slot = etch__calloc((size_t)r->p->nslots + 1, sizeof *r->slot);
    if (!r->slot) return false;
    for (int v = g->ninputs; ok && v < g->nvalues; v++) {
        int32_t slot = r->p->slot[v];
        ok = make_handle(r, v);
        if (slot < 0 || r->slot[slot] || !ok) continue;
        r->slot[slot] = etch__storage_new_on(g->values[v].meta.device, bytes_of(g, v));
        ok = r->slot[slot] != NULL;
    }
    return ok;
}

static void drop_value(eager_run *r, int32_t v) {
    if (v < r->p->g->ninputs || !r->value[v]) return;
    etch_release(r->value[v]);
    r->value[v] = NULL;
}

static void drop_after(eager_run *r, int node) {
    const graph *g = r->p->g;
    const graph_node *n = &g->nodes[node];
    for (int i = 0; i < n->nin; i++) {
        int32_t v = g->operands[n->in + i];
        if (v >= 0 && r->p->last[v] == node) drop_value(r, v);
    }
    if (r->p->last[n->out] == node) drop_value(r, n->out);
}

static etch_status run_node(eager_run *r, const graph_node *n) {
    const graph *g = r->p->g;
    const op_info *op = &etch__ops[n->op];
    if (!make_value(r, n->out)) return ETCH_ERR_OUT_OF_MEMORY;
    op_kernel kernel =
        op->kind == KIND_VIEW ? NULL : etch__kernel_on(n->op, r->value[n->out]->device);
    if (!kernel && (op->kind == KIND_VIEW || n->op == OP_EMPTY)) return ETCH_OK;
    if (!kernel) return etch__error(ETCH_ERR_UNSUPPORTED, "%s has no kernel", op->name);
    for (int i = 0; i < n->nin; i++) {
        int32_t v = g->operands[n->in + i];
        r->in[i] = v < 0 ? ETCH_NONE : r->value[v];
    }
    op_call call = {
        n->op,  n->nin, n->nsc, n->nat, n->part_of, r->in, r->io->scalars + n->sc, g->attrs + n->at,
        n->site};
    etch__tls.state = n->state;
    etch_status status = etch__call_kernel(kernel, &call, &r->value[n->out], true);
    /* Only a kernel of the user's may have written before it fails. */
    bool may_have_written = status == ETCH_OK || etch__op_is_users(n->op);
    if (op->kind != KIND_INPLACE || !may_have_written) return status;
    r->wrote |= g->values[n->out].base < g->ninputs;
    return status;
}

static etch_status run_nodes(eager_run *r) {
    const graph *g = r->p->g;
    if (r->p->writes_input && !make_all(r)) return ETCH_ERR_OUT_OF_MEMORY;
    if (r->p->checks_late && !keep_inputs(r)) return etch__tls.status;
    for (int i = 0; i < g->nnodes; i++) {
        etch_status status = run_node(r, &g->nodes[i]);
        if (status != ETCH_OK) return status;
        drop_after(r, i);
    }
    return ETCH_OK;
}

static etch_status eager_run_plan(plan *p, const plan_io *io) {
    eager_plan *e = (eager_plan *)p;
    const graph *g = e->g;
    eager_run r = {.p = e, .io = io};
    r.value = etch__calloc(g->nvalues + g->ninputs + e->most_operands + 1, sizeof *r.value);
    if (!r.value) return ETCH_ERR_OUT_OF_MEMORY;
    r.kept = (etch_storage **)(r.value + g->nvalues);
    r.in = r.value + g->nvalues + g->ninputs;
    for (int i = 0; i < g->ninputs; i++) r.value[i] = io->inputs[i];
    uint64_t state = etch__tls.state;
    etch_status status = run_nodes(&r);
    etch__tls.state = state;
    if (status != ETCH_OK) put_back(&r);
    if (status != ETCH_OK && r.wrote && io->wrote) *io->wrote = true;
    for (int k = 0; status == ETCH_OK && k < g->noutputs; k++) {
        io->outputs[k] = r.value[g->outputs[k]]->storage;
        etch__storage_retain(io->outputs[k]);
    }
    for (int v = g->ninputs; v < g->nvalues; v++) drop_value(&r, v);
    for (int v = 0; v < g->ninputs; v++) etch__storage_release(r.kept[v]);
    for (int i = 0; r.slot && i < e->nslots; i++) etch__storage_release(r.slot[i]);
    etch__free(r.slot);
    etch__free(r.value);
    return status;
}

/* ---- the plan ---- */

static void eager_destroy(plan *p) {
    eager_plan *e = (eager_plan *)p;
    etch__graph_free(e->g);
    etch__free(e->last);
    etch__free(e->slot);
    etch__free(e);
}

static void find_last_uses(eager_plan *e) {
    const graph *g = e->g;
    for (int i = 0; i < g->nnodes; i++) {
        const graph_node *n = &g->nodes[i];
        e->last[n->out] = i;
        if (n->nin > e->most_operands) e->most_operands = n->nin;
        for (int k = 0; k < n->nin; k++)
            if (g->operands[n->in + k] >= 0) e->last[g->operands[n->in + k]] = i;
        if (etch__ops[n->op].flags & OPF_MAY_FAIL) e->checks_late |= e->writes_input;
        if (etch__ops[n->op].kind == KIND_INPLACE && g->values[n->out].base < g->ninputs)
            e->writes_input = true;
        if (etch__ops[n->op].kind == KIND_CONTRACTION) e->p.nmatmuls++;
    }
    for (int k = 0; k < g->noutputs; k++) e->last[g->outputs[k]] = g->nnodes;
}

/* Per value: the last node at which its storage is in use, by itself or by a view. */
static void find_storage_ends(const eager_plan *e, int32_t *end) {
    const graph *g = e->g;
    for (int v = 0; v < g->nvalues; v++) {
        int32_t base = g->values[v].base;
        if (end[base] < e->last[v]) end[base] = e->last[v];
    }
}

/* A slot that is free when node i runs: one of this size and device, whose value has gone. */
static int32_t free_slot(const eager_plan *e, const int32_t *holder, const int32_t *end, int32_t v,
                         int32_t i) {
    const graph *g = e->g;
    for (int32_t s = 0; s < e->nslots; s++)
        if (end[holder[s]] < i && bytes_of(g, holder[s]) == bytes_of(g, v) &&
            g->values[holder[s]].meta.device == g->values[v].meta.device)
            return s;
    return e->nslots;
}

/* In the order of the run; holder: per slot, the value that had it last. */
static bool give_slots(eager_plan *e) {
    const graph *g = e->g;
    int32_t *end = etch__calloc(2 * (size_t)g->nvalues + 1, sizeof *end);
    e->slot = etch__malloc(((size_t)g->nvalues + 1) * sizeof *e->slot);
    bool ok = end && e->slot;
    int32_t *holder = ok ? end + g->nvalues : NULL;
    if (ok) find_storage_ends(e, end);
    for (int v = 0; ok && v < g->nvalues; v++) {
        bool own = v >= g->ninputs && etch__ops[g->nodes[g->values[v].node].op].kind != KIND_VIEW;
        e->slot[v] = own ? free_slot(e, holder, end, v, g->values[v].node) : -1;
        if (!own) continue;
        holder[e->slot[v]] = v;
        if (e->slot[v] == e->nslots) e->nslots++;
    }
    etch__free(end);
    return ok;
}

etch_status etch__eager_plan(const graph *g, plan **out) {
    eager_plan *e = etch__calloc(1, sizeof *e);
    if (!e) return ETCH_ERR_OUT_OF_MEMORY;
    e->g = etch__graph_copy(g);
    e->last = etch__calloc(g->nvalues + 1, sizeof *e->last);
    if (!e->g || !e->last) {
        eager_destroy(&e->p);
        return ETCH_ERR_OUT_OF_MEMORY;
    }
    find_last_uses(e);
    if (e->writes_input && !give_slots(e)) {
        eager_destroy(&e->p);
        return ETCH_ERR_OUT_OF_MEMORY;
    }
    atomic_init(&e->p.refs, 1);
    e->p.run = eager_run_plan, e->p.destroy = eager_destroy;
    *out = &e->p;
    return ETCH_OK;
}

static etch_status eager_compile(const graph *g, const backend_options *options, plan **out) {
    (void)options;
    return etch__eager_plan(g, out);
}

static const backend eager = {.name = "eager", .compile = eager_compile};

void etch__start_eager(void) { etch__backend_register(&eager); }
