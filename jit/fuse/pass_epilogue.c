/* Products that do more than multiply (ETCH_RELAXED, on a device): what follows a product joins it,
 * and a copy that was made for a product only gives way to what it copies.
 *
 *   mm(a, b) + row            -> one call, MATMUL_BIAS; so is addmm with a row
 *   relu, gelu(tanh) of these -> the same with MATMUL_RELU, MATMUL_GELU
 *   mm(clone(t(a)), b)        -> mm(t(a), b)
 *
 * Obligations: what stood between product and result has no other reader; dtypes and sizes are
 * those of the product; a version that is read later than before is overwritten by nobody until
 * then. Results change in their last bits, so nothing of this happens under strict numerics. The
 * last node becomes the call; dce takes away what it stands for. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/target.h"

/* ---- what a node is ---- */

/* A product of matrices that the library computes. */
static bool is_matmul(const ir *r, const ir_node *n) {
    if (n->dead || n->kind != IR_CALL || (n->op != OP_MM && n->op != OP_ADDMM)) return false;
    if (etch__op_is_users(n->op)) return false;
    const tensor_meta *a = &sources(r, n)[n->op == OP_ADDMM].meta;
    const tensor_meta *b = &sources(r, n)[(n->op == OP_ADDMM) + 1].meta;
    int64_t rows = a->size[0], terms = a->size[1], columns = b->size[1];
    if (!rows || !terms || columns < 2) return false;
    return rows > MATMUL_SMALL || terms > MATMUL_SMALL || columns > MATMUL_SMALL;
}

static bool has_epilogues(etch_dtype d) { return d == ETCH_F32 || d == ETCH_F16 || d == ETCH_BF16; }

/* One row for all rows of the product. */
static bool is_row(const ir_source *s, const tensor_meta *product) {
    const tensor_meta *m = &s->meta;
    int64_t columns = product->size[1];
    if (s->version < 0 || m->dtype != product->dtype) return false;
    bool row = m->ndim == 1 || (m->ndim == 2 && m->size[0] == 1);
    return row && m->size[m->ndim - 1] == columns;
}

/* The last attribute: of add, whether alpha is 1; of gelu, whether it is the tanh form. */
static bool last_attribute(const ir *r, const ir_node *n) {
    const graph_node *g = &r->g->nodes[n->gnode];
    return g->nat && r->g->attrs[g->at + g->nat - 1] == 1;
}

/* What the node would be as part of a product, or 0. */
static uint8_t part_of_epilogue(const ir *r, const ir_node *n) {
    if (n->dead || n->kind != IR_POINT || n->write || n->gnode < 0) return 0;
    if (etch__op_is_users(n->op)) return 0;
    if (n->op == OP_RELU || n->op == OP_RELU_) return MATMUL_RELU;
    if (n->op == OP_GELU) return last_attribute(r, n) ? MATMUL_GELU : 0;
    if (n->op == OP_ADD_TENSOR || n->op == OP_ADD_TENSOR_)
        return last_attribute(r, n) ? MATMUL_BIAS : 0;
    return 0;
}

/* ---- epilogues ---- */

/* The product whose result the source is, if nobody else reads it. */
static ir_node *sole_matmul(const ir *r, const ir_uses *u, const ir_source *s) {
    if (s->version < 0 || !s->whole) return NULL;
    const ir_version *v = &r->versions[s->version];
    if (v->node < 0 || v->memory || v->tied >= 0 || u->readers[s->version] != 1) return NULL;
    ir_node *n = &r->nodes[v->node];
    if (!is_matmul(r, n) || !has_epilogues(n->dtype)) return NULL;
    return etch__may_join(r, n) ? NULL : n; /* it takes in more, by pass_join.c */
}

/* Makes node n the product p with one more part; `row`: the bias, or NULL. */
static bool become(ir *r, ir_node *n, const ir_node *p, uint8_t part, const ir_source *row) {
    ir_source in[4];
    int nin = p->nin;
    memcpy(in, sources(r, p), (size_t)nin * sizeof *in);
    if (row) in[nin++] = *row;
    if (!etch__arena_grow(r->memory, &r->sources, &r->sources_cap, r->nsources + nin,
                          sizeof *r->sources))
        return false;
    memcpy(r->sources + r->nsources, in, (size_t)nin * sizeof *in);
    n->program = NULL;
    n->kind = IR_CALL, n->op = p->op, n->gnode = p->gnode, n->index = false;
    n->epilogue = p->epilogue | part, n->sums = p->sums, n->merged = p->merged;
    n->nin = nin, n->in = r->nsources;
    r->nsources += nin;
    return true;
}

static bool absorb_bias(ir *r, const ir_uses *u, ir_node *n) {
    for (int k = 0; k < 2; k++) {
        const ir_source *row = &sources(r, n)[1 - k];
        const ir_node *p = sole_matmul(r, u, &sources(r, n)[k]);
        if (!p || p->op != OP_MM || p->epilogue || !etch__still_there(r, u, p, n)) continue;
        const tensor_meta *m = &r->versions[p->out].meta;
        if (etch__same_elements(m, &r->versions[n->out].meta) && is_row(row, m))
            return become(r, n, p, MATMUL_BIAS, row);
    }
    return true;
}

static bool absorb_activation(ir *r, const ir_uses *u, ir_node *n, uint8_t part) {
    const ir_node *p = sole_matmul(r, u, sources(r, n));
    if (!p || p->epilogue & (MATMUL_RELU | MATMUL_GELU)) return true;
    if (!etch__still_there(r, u, p, n)) return true;
    if (p->op == OP_ADDMM && !(p->epilogue & MATMUL_BIAS)) return true;
    if (!etch__same_elements(&r->versions[p->out].meta, &r->versions[n->out].meta)) return true;
    return become(r, n, p, part, NULL);
}

static bool absorb(ir *r, const ir_uses *u, ir_node *n) {
    uint8_t part = part_of_epilogue(r, n);
    if (part) return part == MATMUL_BIAS ? absorb_bias(r, u, n) : absorb_activation(r, u, n, part);
    if (is_matmul(r, n) && n->op == OP_ADDMM && has_epilogues(n->dtype) &&
        is_row(sources(r, n), &r->versions[n->out].meta))
        n->epilogue = MATMUL_BIAS;
    return true;
}

/* ---- copies that only turn an operand ---- */

/* What cuBLASLt reads as it is, if it begins at a multiple of 16 bytes. */
static bool readable(const tensor_meta *m) {
    int64_t rows = m->size[0], columns = m->size[1];
    bool by_rows = m->stride[1] == 1 && m->stride[0] >= columns;
    bool by_columns = m->stride[0] == 1 && m->stride[1] >= rows;
    int64_t start = m->offset * (int64_t)etch_dtype_size(m->dtype);
    return m->ndim == 2 && start % 16 == 0 && (by_rows || by_columns);
}

static void read_original(const ir *r, const ir_uses *u, const ir_node *n, ir_source *s) {
    if (s->version < 0 || !s->whole || r->versions[s->version].node < 0) return;
    const ir_node *copy = &r->nodes[r->versions[s->version].node];
    if (copy->kind != IR_POINT || copy->op != OP_CLONE || copy->write || copy->gnode < 0) return;
    const ir_source *from = sources(r, copy);
    if (from->version < 0 || !etch__still_there(r, u, copy, n)) return;
    if (!etch__same_elements(&from->meta, &s->meta) || !readable(&from->meta)) return;
    *s = *from;
}

/* ---- the whole ---- */

static bool rewrite(ir *r, const ir_uses *u) {
    for (int i = 0; i < r->nnodes; i++)
        if (!r->nodes[i].dead && !absorb(r, u, &r->nodes[i])) return false;
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        int first = n->op == OP_ADDMM;
        if (!is_matmul(r, n) || !etch__is_float(n->dtype)) continue;
        for (int k = first; k < first + 2; k++) read_original(r, u, n, &sources(r, n)[k]);
    }
    return true;
}

bool etch__pass_epilogue(ir *r) {
    ir_uses u;
    return etch__ir_uses(r, &u) && rewrite(r, &u);
}
