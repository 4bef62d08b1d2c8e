/* Build, of normalisations: softmax, log_softmax and layer norm as reductions of rows and pointwise
 * nodes, so that they share kernels with what is before and behind them.
 *
 * Obligation: the arithmetic is that of backends/cpu/norm.c, primitive by primitive: everything
 * between the operand and the result is in the compute type, reductions in the canonical order of
 * core/ops/expr.h. What goes over its rows again has to lie along the innermost axis, in rows for
 * which the target has generated kernels (on the CPU those that are worth a unit of work each);
 * other ones stay calls of the operator's kernel, which reads its operand once where several
 * generated kernels would go through memory. On a GPU the eager kernel is a generated one itself
 * for the same rows (backends/cuda/norm.c). */
#include "core/dispatch/dispatch.h"
#include "jit/ir/formula.h"
#include "jit/ir/target.h"

typedef struct norm {
    ir *r;
    int gnode;
    int32_t base; /* the operator's result */
    uint32_t mask;
    etch_dtype type; /* what everything is computed in */
    tensor_meta all, rows;
    bool failed; /* no memory */
} norm;

/* ---- programs ---- */

static int input(prim_program *p, const ir_source *in, int k) {
    return etch__formula_input(p, in[k].meta.dtype, k);
}

/* in[a] prim in[b] */
static int of_two(prim_program *p, prim_id prim, etch_dtype type, const ir_source *in, int a,
                  int b) {
    int x = input(p, in, a), y = input(p, in, b);
    return etch__formula_put(p, prim, type, x, y);
}

/* ---- nodes ---- */

static ir_source whole_of(const norm *n, int32_t node) {
    const ir_version *v = &n->r->versions[n->r->nodes[node].out];
    return (ir_source){n->r->nodes[node].out, v->base, true, v->meta};
}

static ir_source add(norm *n, ir_node *x, const ir_source *in, const tensor_meta *m) {
    x->op = n->r->g->nodes[n->gnode].op, x->gnode = n->gnode;
    x->dtype = m->dtype, x->compute = (uint8_t)n->type;
    int32_t node = n->failed ? -1 : etch__ir_add(n->r, x, in, n->base, m);
    if (node >= 0) return whole_of(n, node);
    n->failed = true;
    return (ir_source){.version = -1};
}

static ir_source reduced(norm *n, reduce_kind kind, const ir_source *of) {
    ir_node x = {.kind = IR_REDUCE, .nin = 1, .mask = n->mask, .domain = n->all};
    x.reduce = (reduce_plan){kind, of->meta.dtype, n->type};
    return add(n, &x, of, &n->rows);
}

static ir_source pointwise(norm *n, const prim_program *p, const ir_source *in, int nin,
                           const tensor_meta *m) {
    ir_node x = {.kind = IR_POINT, .nin = nin, .domain = *m};
    if (!(x.program = etch__ir_program(n->r, p))) n->failed = true;
    return add(n, &x, in, m);
}

/* A value for each element, in the compute type. */
static ir_source of_elements(norm *n, const prim_program *p, const ir_source *in, int nin) {
    return pointwise(n, p, in, nin, &n->all);
}

static ir_source of_rows(norm *n, const prim_program *p, const ir_source *in, int nin) {
    return pointwise(n, p, in, nin, &n->rows);
}

static ir_source result(norm *n, prim_program *p, const ir_source *in, int nin) {
    const tensor_meta *m = &n->r->g->values[n->base].meta;
    etch__formula_round(p, m->dtype);
    return pointwise(n, p, in, nin, m);
}

/* ---- softmax ---- */

static ir_source exp_of_difference(norm *n, const ir_source *x, const ir_source *top) {
    prim_program p = {.nin = 2};
    const ir_source in[2] = {*x, *top};
    int d = of_two(&p, PRIM_SUB, n->type, in, 0, 1);
    etch__formula_put(&p, PRIM_EXP, n->type, d, 0);
    return of_elements(n, &p, in, 2);
}

/* exp(x - max) / their sum */
static ir_source softmax(norm *n, const ir_source *x) {
    ir_source top = reduced(n, REDUCE_MAX, x);
    ir_source e = exp_of_difference(n, x, &top), sum = reduced(n, REDUCE_SUM, &e);
    prim_program p = {.nin = 2};
    const ir_source in[2] = {e, sum};
    of_two(&p, PRIM_DIV, n->type, in, 0, 1);
    return result(n, &p, in, 2);
}

/* (x - max) - log(sum of exp(x - max)) */
static ir_source log_softmax(norm *n, const ir_source *x) {
    ir_source top = reduced(n, REDUCE_MAX, x);
    ir_source e = exp_of_difference(n, x, &top), sum = reduced(n, REDUCE_SUM, &e);
    prim_program log = {.nin = 1}, p = {.nin = 3};
    int v = input(&log, &sum, 0);
    etch__formula_put(&log, PRIM_LOG, n->type, v, 0);
    const ir_source in[3] = {*x, top, of_rows(n, &log, &sum, 1)};
    int d = of_two(&p, PRIM_SUB, n->type, in, 0, 1);
    v = input(&p, in, 2);
    etch__formula_put(&p, PRIM_SUB, n->type, d, v);
    return result(n, &p, in, 3);
}

/* ---- layer norm ---- */

static ir_source square_of_difference(norm *n, const ir_source *x, const ir_source *mean) {
    prim_program p = {.nin = 2};
    const ir_source in[2] = {*x, *mean};
    int d = of_two(&p, PRIM_SUB, n->type, in, 0, 1);
    etch__formula_put(&p, PRIM_MUL, n->type, d, d);
    return of_elements(n, &p, in, 2);
}

/* 1 / sqrt(variance + eps) */
static ir_source scale_of(norm *n, const ir_source *variance) {
    prim_program p = {.nin = 1, .nsc = 1};
    int v = input(&p, variance, 0), eps = etch__formula_put(&p, PRIM_SCALAR, n->type, 0, 0);
    v = etch__formula_put(&p, PRIM_ADD, n->type, v, eps);
    v = etch__formula_put(&p, PRIM_SQRT, n->type, v, 0);
    int one = etch__formula_put(&p, PRIM_CONST, n->type, 0, 0);
    p.code[one].imm.d = 1;
    etch__formula_put(&p, PRIM_DIV, n->type, one, v);
    return of_rows(n, &p, variance, 1);
}

/* (x - mean) * scale, times weight, plus bias where there are such. */
static ir_source layer_norm(norm *n, const ir_source *x) {
    ir_source mean = reduced(n, REDUCE_MEAN, x), square = square_of_difference(n, x, &mean);
    ir_source variance = reduced(n, REDUCE_MEAN, &square);
    const ir_source in[5] = {x[0], mean, scale_of(n, &variance), x[1], x[2]};
    prim_program p = {.nin = 5};
    int v = of_two(&p, PRIM_SUB, n->type, in, 0, 1);
    static const prim_id steps[3] = {PRIM_MUL, PRIM_MUL, PRIM_ADD};
    for (int k = 2; k < 5; k++) {
        if (in[k].version < 0) continue;
        int other = input(&p, in, k);
        v = etch__formula_put(&p, steps[k - 2], n->type, v, other);
    }
    return result(n, &p, in, 5);
}

/* ---- which ---- */

static uint32_t last_axes(int ndim, int count) { return ((1u << count) - 1) << (ndim - count); }

/* The reduced axes; 0: they are not the innermost ones. */
static uint32_t mask_of(const graph *g, const graph_node *x) {
    const int64_t *at = g->attrs + x->at;
    int ndim = g->values[x->out].meta.ndim;
    if (x->op == OP_NATIVE_LAYER_NORM) return last_axes(ndim, (int)at[0]);
    int dim = (int)(at[0] < 0 ? at[0] + ndim : at[0]);
    return ndim && dim == ndim - 1 ? last_axes(ndim, 1) : 0;
}

static bool good_sizes(const ir *r, const graph_node *x, uint32_t mask) {
    const tensor_meta *m = &r->g->values[x->out].meta;
    int64_t rows = 1, reduced = 1;
    for (int d = 0; d < m->ndim; d++) *(mask >> d & 1 ? &reduced : &rows) *= m->size[d];
    if (rows == 0 || reduced <= 1) return false;
    return r->target->makes_norm(x->op, r->g->dynamic, rows, reduced);
}

/* Whether the operand's rows run across memory: such kernels would be no rows. */
static bool lies_across(const ir *r, const graph_node *x, uint32_t mask) {
    const tensor_meta *m = &r->g->values[r->g->operands[x->in]].meta;
    if (r->device != ETCH_CPU || r->g->dynamic) return false;
    return etch__row_order(m->ndim, m->size, m->stride, mask) < 0;
}

bool etch__is_norm(const ir *r, int gnode) {
    const graph_node *x = &r->g->nodes[gnode];
    bool is =
        x->op == OP_SOFTMAX_RAW || x->op == OP_LOG_SOFTMAX_RAW || x->op == OP_NATIVE_LAYER_NORM;
    if (!is || !r->target->makes_norm || etch__op_is_users(x->op)) return false;
    uint32_t mask = mask_of(r->g, x);
    return mask && good_sizes(r, x, mask) && !lies_across(r, x, mask);
}

static void begin(norm *n, ir *r, int gnode) {
    const graph *g = r->g;
    const graph_node *x = &g->nodes[gnode];
    *n = (norm){.r = r, .gnode = gnode, .base = x->out, .mask = mask_of(g, x)};
    n->type = etch__compute_type(g->values[g->operands[x->in]].meta.dtype);
    n->all = g->values[x->out].meta;
    n->all.dtype = (uint8_t)n->type;
    n->rows = n->all;
    for (int d = 0; d < n->rows.ndim; d++)
        if (n->mask >> d & 1) n->rows.size[d] = 1;
}

int32_t etch__add_norm(ir *r, int gnode, const ir_source *in) {
    norm n;
    begin(&n, r, gnode);
    op_id op = r->g->nodes[gnode].op;
    ir_source y = op == OP_SOFTMAX_RAW       ? softmax(&n, in)
                  : op == OP_LOG_SOFTMAX_RAW ? log_softmax(&n, in)
                                             : layer_norm(&n, in);
    return n.failed ? -1 : y.version;
}
