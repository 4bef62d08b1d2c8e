/* Spaces: what reads the result of a product through a view that cuts its rows in other axes is
 * gone over by the product's own rows and columns,
 *
 *   c: [1024, 384] = mm(a, b), y: [8, 128, 384] = gelu(view(c))   ->   y, over [1024, 384]
 *
 * and so is what reads that, element for element, or row for row. So that all of them are of one
 * space, as the members of a kernel are, and the kernel can have the product (pass_join.c).
 *
 * Obligations: the elements are the same in the same row-major order, so every operand has to have
 * strides along the new axes; a reduction goes along the innermost axis, which stays; what uses an
 * element's index or writes in place is left as it is. Sizes are numbers. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/target.h"

typedef struct space_pass {
    ir *r;
    ir_uses uses;
    bool *follows; /* per node: a product that a kernel can have, or what reads one by its axes */
} space_pass;

/* Axes with more than one element. */
typedef struct axes {
    int n;
    int64_t size[ETCH_MAX_DIMS];
} axes;

static axes axes_of(const tensor_meta *m) {
    axes s;
    uint32_t kept;
    s.n = etch__squeeze(m, s.size, &kept);
    return s;
}

static bool same_axes(const axes *a, const axes *b) {
    return etch__same_dims(a->n, a->size, b->n, b->size);
}

static bool is_dense(const tensor_meta *m) {
    return etch__sizes_contiguous(m->ndim, m->size, m->stride);
}

/* Whether all elements that a node makes are read, once each and in their order. */
static bool reads_all(const ir *r, const ir_node *n, const ir_source *s) {
    if (s->version < 0) return false;
    const ir_version *v = &r->versions[s->version];
    int64_t elements = etch__meta_numel(&s->meta);
    if (v->node < 0 || v->memory || v->constant || elements != etch__meta_numel(&n->domain))
        return false;
    return s->whole || (is_dense(&s->meta) && is_dense(&v->meta) &&
                        s->meta.offset == v->meta.offset && elements == etch__meta_numel(&v->meta));
}

/* The axes of what the node makes. */
static axes made_by(const ir *r, const ir_node *n) {
    if (n->kind != IR_POINT && n->kind != IR_REDUCE) return axes_of(&r->versions[n->out].meta);
    tensor_meta m = n->domain;
    for (int d = 0; d < m.ndim; d++)
        if (n->kind == IR_REDUCE && n->mask >> d & 1) m.size[d] = 1;
    return axes_of(&m);
}

/* ---- another space ---- */

static bool can_change(const ir *r, const ir_node *n, const axes *to) {
    axes own = axes_of(&n->domain);
    int64_t stride[ETCH_MAX_DIMS];
    if (n->write || n->index || n->dead || !own.n || !to->n) return false;
    if (n->kind == IR_REDUCE) {
        int d = n->domain.ndim - 1;
        if (n->mask != 1u << d || n->domain.size[d] == 1) return false;
        if (own.size[own.n - 1] != to->size[to->n - 1]) return false;
    }
    for (int k = 0; k < n->nin; k++) {
        const ir_source *s = &sources(r, n)[k];
        if (s->version >= 0 && !etch__map_over(s, &n->domain, to->n, to->size, stride))
            return false;
    }
    return true;
}

static void set_axes(tensor_meta *m, const axes *to, const int64_t *stride) {
    m->ndim = (uint8_t)to->n;
    memcpy(m->size, to->size, (size_t)to->n * sizeof *to->size);
    memcpy(m->stride, stride, (size_t)to->n * sizeof *stride);
}

static bool change(const ir *r, ir_node *n, const axes *to) {
    int64_t stride[ETCH_MAX_DIMS];
    if (!can_change(r, n, to)) return false;
    for (int k = 0; k < n->nin; k++) {
        ir_source *s = &sources(r, n)[k];
        if (s->version < 0) continue;
        s->whole = s->whole || reads_all(r, n, s);
        etch__map_over(s, &n->domain, to->n, to->size, stride);
        set_axes(&s->meta, to, stride);
    }
    int64_t step = 1;
    for (int d = to->n - 1; d >= 0; d--) stride[d] = step, step *= to->size[d];
    set_axes(&n->domain, to, stride);
    if (n->kind == IR_REDUCE) n->mask = 1u << (to->n - 1);
    return true;
}

/* ---- what follows a product ---- */

/* What is made for this node alone comes along. */
static void take_makers(space_pass *p, const ir_node *n, const axes *to) {
    ir *r = p->r;
    for (int k = 0; k < n->nin; k++) {
        const ir_source *s = &sources(r, n)[k];
        if (!reads_all(r, n, s) || p->uses.readers[s->version] != 1) continue;
        ir_node *maker = &r->nodes[r->versions[s->version].node];
        if (maker->kind != IR_POINT || p->follows[maker - r->nodes] || !change(r, maker, to))
            continue;
        p->follows[maker - r->nodes] = true;
        take_makers(p, maker, to);
    }
}

static bool follow(space_pass *p, ir_node *n) {
    ir *r = p->r;
    for (int k = 0; k < n->nin; k++) {
        const ir_source *s = &sources(r, n)[k];
        if (!reads_all(r, n, s) || !p->follows[r->versions[s->version].node]) continue;
        axes own = axes_of(&n->domain), to = made_by(r, &r->nodes[r->versions[s->version].node]);
        if (same_axes(&own, &to)) return true;
        if (!change(r, n, &to)) continue;
        take_makers(p, n, &to);
        return true;
    }
    return false;
}

bool etch__pass_spaces(ir *r) {
    space_pass p = {.r = r};
    if (r->g->dynamic || !r->target->matmuls.wide) return true;
    p.follows = etch__arena_zeroed(r->memory, (size_t)r->nnodes + 1);
    if (!p.follows || !etch__ir_uses(r, &p.uses)) return false;
    for (int i = 0; i < r->nnodes; i++) {
        ir_node *n = &r->nodes[i];
        if (n->dead) continue;
        bool loop = n->kind == IR_POINT || n->kind == IR_REDUCE;
        p.follows[i] = loop ? follow(&p, n) : n->op == OP_MM && etch__may_join(r, n);
    }
    return true;
}
