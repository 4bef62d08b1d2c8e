/* Sums of products with a common operand (ETCH_RELAXED): one product of the sum of the others.
 *
 *   mm(a, w) + mm(b, w) -> mm(a + b, w)      a chain of such sums too, one after the other
 *   mm(a, w) - mm(a, v) -> mm(a, w - v)      and all of bmm
 *
 * No node is added: the sum's node becomes the product, the later product's the sum of operands,
 * with the program and scalars of the sum as it was, and the earlier product goes.
 *
 * What is added before it is multiplied must not leave the range of its dtype where the products
 * stay in it. So one of the two operands is known to be so small (jit/ir/range.c) that no finite
 * number is brought to infinity by it, as in x + sin(x), and a factor (alpha) must be 1. Partial
 * sums of the product can still be twice as large as those of either one: include/etch/compile.h
 * says so.
 *
 * Obligations: the sum is the only reader of both products; dtypes, settings and the sizes of what
 * is added are the same, so nothing is broadcast; what a product read is not overwritten until it
 * is read now; both are Etch's own operators on floats. The rounding of a + b to its dtype replaces
 * those of two products, so nothing of this happens under strict numerics. Products that are small
 * stay, with the bits of their chain, and those whose sum would cost more than a product. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/target.h"

/* ---- what a node is ---- */

static bool is_matmul(const ir *r, const ir_node *n) {
    if (n->dead || n->kind != IR_CALL || (n->op != OP_MM && n->op != OP_BMM)) return false;
    return !etch__op_is_users(n->op) && etch__is_float(n->dtype) && sources(r, n)[0].version >= 0 &&
           sources(r, n)[1].version >= 0;
}

static bool is_sum(const ir_node *n) {
    bool adds = n->op == OP_ADD_TENSOR || n->op == OP_ADD_TENSOR_;
    bool subtracts = n->op == OP_SUB_TENSOR || n->op == OP_SUB_TENSOR_;
    return !n->dead && n->kind == IR_POINT && !n->write && n->nin == 2 && (adds || subtracts);
}

/* The product that is operand k of the sum and read by nobody else, element for element. */
static ir_node *summand(const ir *r, const ir_uses *u, const ir_node *sum, int k) {
    const ir_source *s = &sources(r, sum)[k];
    if (s->version < 0 || !s->whole || !etch__same_elements(&s->meta, &sum->domain)) return NULL;
    const ir_version *v = &r->versions[s->version];
    if (v->node < 0 || v->memory || v->tied >= 0 || u->readers[s->version] != 1) return NULL;
    ir_node *n = &r->nodes[v->node];
    return is_matmul(r, n) && n->dtype == sum->dtype && n->dtype == v->meta.dtype ? n : NULL;
}

/* The operand that both products read, 0 or 1, where the other ones can be added; -1: neither. */
static int common_operand(const ir *r, const ir_node *p, const ir_node *q) {
    for (int k = 0; k < 2; k++) {
        const ir_source *a = &sources(r, p)[k], *b = &sources(r, q)[k];
        const tensor_meta *x = &sources(r, p)[1 - k].meta, *y = &sources(r, q)[1 - k].meta;
        if (a->version == b->version && etch__same_elements(&a->meta, &b->meta) &&
            etch__same_map(r, a, b) && etch__same_elements(x, y))
            return k;
    }
    return -1;
}

/* ---- whether it stays in the range ---- */

/* Less than half a unit in the last place of the largest number: adding it changes no finite number
 * by more than a rounding. Half of that, since jit/ir/range.c leaves roundings out. */
static double negligible(etch_dtype d) {
    return d == ETCH_F16 ? 8 : d == ETCH_BF16 ? 0x1p118 : d == ETCH_F32 ? 0x1p102 : 0x1p969;
}

static bool plain_sum(const ir *r, const ir_node *sum) {
    const graph_node *g = &r->g->nodes[sum->gnode];
    return g->nat && r->g->attrs[g->at + g->nat - 1] == 1;
}

static bool stays_in_range(const ir *r, const ir_node *sum, const ir_source *x,
                           const ir_source *y) {
    double limit = negligible(x->meta.dtype);
    return plain_sum(r, sum) &&
           (etch__largest(r, x->version) < limit || etch__largest(r, y->version) < limit);
}

/* ---- whether it pays ---- */

/* Multiplications that cost about what moving an element through memory three times does. */
static double worth(const ir *r, const ir_node *p) {
    bool fast = etch_dtype_size(p->dtype) < 4 || STATE_PRECISION(r->g->nodes[p->gnode].state) != 0;
    return fast ? 512 : 64;
}

/* The sum of two matrices S moves 3 S elements; gone are a product and the addition of the results
 * R, which have read S and the common operand C once more and moved R about four times. Where more
 * is moved now, the multiplications saved for each element of S must make up for it. */
static bool pays(const ir *r, const ir_node *p, int common) {
    const tensor_meta *a = &sources(r, p)[0].meta, *b = &sources(r, p)[1].meta;
    double batch = a->ndim == 3 ? (double)a->size[0] : 1, rows = (double)a->size[a->ndim - 2];
    double terms = (double)b->size[b->ndim - 2], columns = (double)b->size[b->ndim - 1];
    bool small = rows <= MATMUL_SMALL && terms <= MATMUL_SMALL && columns <= MATMUL_SMALL;
    if (small || batch * rows * terms * columns == 0) return false;
    double left = rows * terms, right = terms * columns, result = rows * columns;
    double sum = common ? left : right, other = common ? right : left;
    return 2 * sum <= other + 4 * result || (common ? columns : rows) > worth(r, p);
}

static bool wanted(ir *r, const ir_node *p, int common) {
    if (r->sums == SUMS_NONE) return false;
    bool good = pays(r, p, common);
    r->poor_sums |= !good;
    return good || r->sums == SUMS_ALL;
}

/* ---- the rewriting ---- */

/* Columns lie one after the other: added by columns, and read as they are. */
static bool by_columns(const tensor_meta *m) {
    int d = m->ndim;
    return m->stride[d - 2] == 1 && m->stride[d - 1] >= m->size[d - 2] && m->size[d - 1] > 1;
}

static void turn(tensor_meta *m) {
    int64_t *size = m->size + m->ndim - 2, *stride = m->stride + m->ndim - 2, keep;
    keep = size[0], size[0] = size[1], size[1] = keep;
    keep = stride[0], stride[0] = stride[1], stride[1] = keep;
}

static void turn_source(const ir *r, ir_source *s) {
    const ir_version *v = &r->versions[s->version];
    turn(&s->meta);
    ir_source own = {s->version, s->root, true, v->meta};
    s->whole = !v->memory && etch__same_map(r, s, &own);
}

/* Makes node n the sum of x and y as `sum` adds them; returns how a product reads it. */
static ir_source become_sum(ir *r, ir_node *n, ir_node *sum, ir_source x, ir_source y) {
    bool turned = by_columns(&x.meta) && by_columns(&y.meta);
    if (turned) turn_source(r, &x), turn_source(r, &y);
    tensor_meta m = x.meta;
    m.offset = 0;
    etch__row_major(m.ndim, m.size, m.stride);
    n->kind = IR_POINT, n->op = sum->op, n->gnode = sum->gnode, n->compute = sum->compute;
    n->program = sum->program, n->domain = m, n->sums = 0, n->merged = 0;
    sources(r, n)[0] = x, sources(r, n)[1] = y;
    ir_version *v = &r->versions[n->out];
    v->meta = m;
    ir_source out = {n->out, v->base, !turned, m};
    if (turned) turn(&out.meta);
    return out;
}

static void rewrite(ir *r, ir_uses *u, ir_node *sum, ir_node *p, ir_node *q, int common) {
    ir_source shared = sources(r, p)[common];
    ir_source x = sources(r, p)[1 - common], y = sources(r, q)[1 - common];
    ir_node *later = p < q ? q : p, *earlier = p < q ? p : q;
    int32_t merged = p->merged + q->merged + 1;
    ir_source in = become_sum(r, later, sum, x, y);
    earlier->dead = true;
    sum->kind = IR_CALL, sum->op = earlier->op, sum->gnode = earlier->gnode, sum->program = NULL;
    sum->sums = (uint8_t)(1 << (1 - common)), sum->merged = merged;
    sources(r, sum)[common] = shared, sources(r, sum)[1 - common] = in;
    r->versions[sum->out].meta = r->versions[earlier->out].meta;
    u->readers[shared.version]--, u->readers[earlier->out]--;
    r->has_sums = true;
}

static void try_sum(ir *r, ir_uses *u, ir_node *n) {
    ir_node *p = summand(r, u, n, 0), *q = summand(r, u, n, 1);
    if (!p || !q || p == q || p->op != q->op) return;
    if (r->g->nodes[p->gnode].state != r->g->nodes[q->gnode].state) return;
    if (!etch__still_there(r, u, p, n) || !etch__still_there(r, u, q, n)) return;
    int common = common_operand(r, p, q);
    if (common < 0) return;
    const ir_source *x = &sources(r, p)[1 - common], *y = &sources(r, q)[1 - common];
    if (stays_in_range(r, n, x, y) && wanted(r, p, common)) rewrite(r, u, n, p, q, common);
}

bool etch__pass_sums(ir *r) {
    ir_uses u;
    if (!etch__ir_uses(r, &u)) return false;
    for (int i = 0; i < r->nnodes; i++)
        if (is_sum(&r->nodes[i])) try_sum(r, &u, &r->nodes[i]);
    return true;
}
