/* Build, of products whose operator does more than multiply: on a target that gives products in the
 * compute type, tile by tile, and of f32 where a kernel can have the product,
 *
 *   addmm(self, a, b)   ->  c = product(a, b), then self + c, rounded where it is of halves
 *   mm(a, b) of halves  ->  c = product(a, b), then c rounded
 *   convolution(x, w, bias) of halves
 *                       ->  c = convolution(x, w, bias), then c rounded
 *
 * so that what is made of c can share a kernel with what follows, and c itself stay in the cache
 * (pass_join.c; there what found nobody to share with becomes the operator again).
 *
 * Obligations: the arithmetic is that of backends/cpu/matmul.c, or of backends/cuda/matmul.c for
 * sizes that kernels take, primitive by primitive; an addmm whose alpha and beta are not both 1,
 * which is a static class of it, stays whole. Under relaxed numerics, where products may merge
 * (pass_sums.c), all do. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/formula.h"
#include "jit/ir/target.h"

static bool is_wide_convolution(const ir *r, const graph_node *x) {
    etch_dtype d = r->g->values[x->out].meta.dtype, type = etch__compute_type(d);
    return r->target->channels_last && r->target->channels_last(x->op, type) &&
           !etch__op_is_users(x->op) && !r->g->dynamic && type != d;
}

/* Whether a kernel takes products of these sizes (pass_join.c). */
static bool joins(const ir *r, const graph_node *x) {
    if (!r->target->matmuls.joins || r->g->dynamic || STATE_PRECISION(x->state)) return false;
    const tensor_meta *a = &r->g->values[r->g->operands[x->in + 1]].meta;
    const tensor_meta *b = &r->g->values[r->g->operands[x->in + 2]].meta;
    const matmul_sizes s = {.m = a->size[0], .n = b->size[1], .k = a->size[1], .dtype = ETCH_F32};
    return r->target->matmuls.joins(r->device, &s, true);
}

bool etch__is_wide_product(const ir *r, int gnode) {
    const graph_node *x = &r->g->nodes[gnode];
    if (x->op == OP_CONVOLUTION) return is_wide_convolution(r, x);
    if (x->op != OP_MM && x->op != OP_ADDMM) return false;
    etch_dtype d = r->g->values[x->out].meta.dtype;
    if (r->numerics == ETCH_RELAXED || !etch__is_float(d)) return false;
    if (etch__op_is_users(x->op) || etch__op_is_users(OP_MM)) return false;
    if (x->op == OP_ADDMM && r->g->attrs[x->at] != 1) return false;
    if (!r->target->matmuls.wide) return x->op == OP_ADDMM && d == ETCH_F32 && joins(r, x);
    return x->op == OP_ADDMM || etch__compute_type(d) != d;
}

/* ---- what is made of it ---- */

static void finish(prim_program *p, bool adds, etch_dtype dtype) {
    etch_dtype type = etch__compute_type(dtype);
    *p = (prim_program){.nin = adds ? 2 : 1};
    int c = etch__formula_input(p, type, 0);
    if (adds) etch__formula_put(p, PRIM_ADD, type, etch__formula_input(p, dtype, 1), c);
    etch__formula_round(p, dtype);
}

/* ---- nodes ---- */

static int32_t add_product(ir *r, int gnode, const ir_source *in) {
    const graph_node *x = &r->g->nodes[gnode];
    tensor_meta wide = r->g->values[x->out].meta;
    wide.dtype = (uint8_t)etch__compute_type(wide.dtype);
    ir_node n = {.kind = IR_CALL, .op = OP_MM, .gnode = gnode, .nin = 2, .dtype = wide.dtype};
    if (x->op == OP_CONVOLUTION) n.op = x->op, n.nin = 3;
    return etch__ir_add(r, &n, in + (x->op == OP_ADDMM), x->out, &wide);
}

/* What is added to the product; version -1: nothing. */
static ir_source addend(const graph_node *x, const ir_source *in) {
    return x->op == OP_ADDMM ? in[0] : (ir_source){.version = -1};
}

int32_t etch__add_wide_product(ir *r, int gnode, const ir_source *in) {
    const graph_node *x = &r->g->nodes[gnode];
    const tensor_meta *m = &r->g->values[x->out].meta;
    int32_t product = add_product(r, gnode, in);
    if (product < 0) return -1;
    const ir_version *c = &r->versions[r->nodes[product].out];
    ir_source both[2] = {{r->nodes[product].out, c->base, true, c->meta}, addend(x, in)};
    bool adds = both[1].version >= 0;
    ir_node n = {.kind = IR_POINT,
                 .op = x->op,
                 .gnode = gnode,
                 .nin = adds ? 2 : 1,
                 .dtype = m->dtype,
                 .compute = c->meta.dtype,
                 .domain = *m};
    prim_program p;
    finish(&p, adds, m->dtype);
    if (!(n.program = etch__ir_program(r, &p))) return -1;
    int32_t node = etch__ir_add(r, &n, both, x->out, m);
    return node < 0 ? -1 : r->nodes[node].out;
}

bool etch__is_whole_operator(const ir *r, const ir_node *product, const ir_node *n) {
    return product->gnode == n->gnode && product->gnode >= 0 && n->kind == IR_POINT &&
           sources(r, n)[0].version == product->out;
}

/* The product's node becomes the operator's call. */
bool etch__become_operator(ir *r, ir_node *product, const ir_node *n) {
    ir_source in[3] = {sources(r, n)[n->nin - 1], sources(r, product)[0], sources(r, product)[1]};
    int first = n->op == OP_MM, nin = 3 - first;
    if (n->op == OP_CONVOLUTION) memcpy(in, sources(r, product), sizeof in);
    if (!etch__arena_grow(r->memory, &r->sources, &r->sources_cap, r->nsources + nin,
                          sizeof *r->sources))
        return false;
    memcpy(r->sources + r->nsources, in + first, (size_t)nin * sizeof *in);
    product->op = n->op, product->nin = nin, product->in = r->nsources;
    product->out = n->out, product->dtype = n->dtype;
    r->versions[n->out].node = (int32_t)(product - r->nodes);
    r->nsources += nin;
    return true;
}
