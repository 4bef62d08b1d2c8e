/* Nodes, versions and programs go to the ends of the ir's arrays: shared by the passes that make
 * them. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/ir.h"

/* In memory of its own: row-major, or as the operator lays out its result that made the base, which
 * maps are over. */
static void lie_apart(const ir *r, int32_t base, tensor_meta *m) {
    const tensor_meta *made = &r->g->values[base].meta;
    bool like = base >= r->g->ninputs && etch__same_dims(m->ndim, m->size, made->ndim, made->size);
    if (like) memcpy(m->stride, made->stride, sizeof made->stride);
    else etch__row_major(m->ndim, m->size, m->stride);
    m->offset = 0;
}

int32_t etch__ir_version(ir *r, int32_t base, int32_t node, const tensor_meta *m) {
    if (!etch__arena_grow(r->memory, &r->versions, &r->versions_cap, r->nversions + 1,
                          sizeof *r->versions))
        return -1;
    ir_version *v = &r->versions[r->nversions];
    *v =
        (ir_version){.base = base, .node = node, .tied = -1, .meta = *m, .group = -1, .buffer = -1};
    if (node >= 0) lie_apart(r, base, &v->meta);
    return r->nversions++;
}

int32_t etch__ir_add(ir *r, const ir_node *n, const ir_source *in, int32_t base,
                     const tensor_meta *m) {
    if (!etch__arena_grow(r->memory, &r->nodes, &r->nodes_cap, r->nnodes + 1, sizeof *r->nodes) ||
        !etch__arena_grow(r->memory, &r->sources, &r->sources_cap, r->nsources + n->nin + 1,
                          sizeof *r->sources))
        return -1;
    int32_t out = etch__ir_version(r, base, r->nnodes, m);
    if (out < 0) return -1;
    r->nodes[r->nnodes] = *n;
    r->nodes[r->nnodes].in = r->nsources;
    r->nodes[r->nnodes].out = out;
    r->nodes[r->nnodes].group = -1;
    if (n->nin) memcpy(r->sources + r->nsources, in, n->nin * sizeof *in);
    r->nsources += n->nin;
    return r->nnodes++;
}

prim_program *etch__ir_program(const ir *r, const prim_program *p) {
    size_t bytes = offsetof(prim_program, code) + p->n * sizeof p->code[0];
    prim_program *copy = etch__arena_new(r->memory, bytes);
    if (copy) memcpy(copy, p, bytes);
    return copy;
}

bool etch__copy_node(const ir *r, const tensor_meta *domain, const ir_source *target, ir_node *n) {
    etch_dtype dtype = domain->dtype;
    prim_program p;
    *n = (ir_node){.kind = IR_POINT,
                   .op = OP_CLONE,
                   .gnode = -1,
                   .nin = 1,
                   .compute = dtype,
                   .dtype = dtype,
                   .domain = *domain,
                   .write = target != NULL};
    if (target) n->target = *target;
    if (!etch__expr_build(OP_CLONE, &dtype, 1, dtype, dtype, 0, &p))
        return etch__error(ETCH_ERR_INTERNAL, "clone has no expression"), false;
    n->program = etch__ir_program(r, &p);
    return n->program != NULL;
}
