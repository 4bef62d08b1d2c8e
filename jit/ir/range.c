/* Between which numbers the finite values of a version lie, as far as the programs of its nodes
 * tell by interval arithmetic: what a relaxed rewriting may rely on. Roundings are left out, so a
 * user keeps a margin of a few units. */
#include <math.h>

#include "jit/ir/ir.h"

enum { RANGE_DEPTH = 6 };

static const ir_range everything = {-INFINITY, INFINITY};

static ir_range symmetric(double most) { return (ir_range){-most, most}; }

/* What a number of the dtype can be. */
static ir_range of_dtype(etch_dtype d) {
    switch (d) {
    case ETCH_BF16: return symmetric(0x1.fep127);
    case ETCH_F16: return symmetric(65504);
    case ETCH_F32: return symmetric(0x1.fffffep127);
    case ETCH_I8: return (ir_range){INT8_MIN, INT8_MAX};
    case ETCH_I16: return (ir_range){INT16_MIN, INT16_MAX};
    case ETCH_I32: return (ir_range){INT32_MIN, INT32_MAX};
    case ETCH_I64: return symmetric(0x1p63);
    case ETCH_U8: return (ir_range){0, UINT8_MAX};
    case ETCH_BOOL: return (ir_range){0, 1};
    default: return everything;
    }
}

static ir_range span(double a, double b, double c, double d) {
    if (isnan(a) || isnan(b) || isnan(c) || isnan(d)) return everything;
    return (ir_range){fmin(fmin(a, b), fmin(c, d)), fmax(fmax(a, b), fmax(c, d))};
}

static ir_range quotient(ir_range a, ir_range b) {
    if (b.low <= 0 && b.high >= 0) return everything;
    return span(a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high);
}

static ir_range product(ir_range a, ir_range b) {
    return span(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high);
}

static ir_range absolute(ir_range a) {
    double most = fmax(fabs(a.low), fabs(a.high));
    bool over = a.low <= 0 && a.high >= 0;
    return (ir_range){over ? 0 : fmin(fabs(a.low), fabs(a.high)), most};
}

/* Of a primitive whose operands lie in a, b and c. */
static ir_range of_prim(const prim_instr *i, ir_range a, ir_range b, ir_range c) {
    switch ((prim_id)i->prim) {
    case PRIM_CONST:
        return etch__is_float(i->type) ? (ir_range){i->imm.d, i->imm.d} : of_dtype(i->type);
    case PRIM_CONVERT:
    case PRIM_ROUND_BF16:
    case PRIM_ROUND_F16: return a;
    case PRIM_ADD: return (ir_range){a.low + b.low, a.high + b.high};
    case PRIM_SUB: return (ir_range){a.low - b.high, a.high - b.low};
    case PRIM_MUL: return product(a, b);
    case PRIM_DIV: return quotient(a, b);
    case PRIM_NEG: return (ir_range){-a.high, -a.low};
    case PRIM_ABS: return absolute(a);
    case PRIM_MAX:
    case PRIM_AT_LEAST: return (ir_range){fmax(a.low, b.low), fmax(a.high, b.high)};
    case PRIM_MIN:
    case PRIM_AT_MOST: return (ir_range){fmin(a.low, b.low), fmin(a.high, b.high)};
    case PRIM_SELECT: return (ir_range){fmin(b.low, c.low), fmax(b.high, c.high)};
    default: return (ir_range){etch__prims[i->prim].low, etch__prims[i->prim].high};
    }
}

/* Integers wrap, so arithmetic may leave the interval, but never the dtype's range. */
static ir_range kept_by(const prim_instr *i, ir_range r) {
    ir_range most = of_dtype(i->type);
    bool whole = !etch__is_float(i->type), out = r.low < most.low || r.high > most.high;
    if (isnan(r.low) || isnan(r.high)) return most;
    if (whole) return out || i->prim == PRIM_CONVERT ? most : r;
    return (ir_range){fmax(r.low, most.low), fmin(r.high, most.high)};
}

static ir_range of_version(const ir *r, int32_t version, int depth);

static ir_range of_program(const ir *r, const ir_node *n, int depth) {
    ir_range v[PROGRAM_MAX];
    const prim_program *p = n->program;
    for (int k = 0; k < p->n; k++) {
        const prim_instr *i = &p->code[k];
        int arity = etch__prims[i->prim].arity;
        ir_range a = arity > 0 ? v[i->a] : everything, b = arity > 1 ? v[i->b] : everything;
        ir_range c = arity > 2 ? v[i->c] : everything;
        v[k] = i->prim == PRIM_INPUT ? of_version(r, sources(r, n)[i->imm.i].version, depth - 1)
                                     : kept_by(i, of_prim(i, a, b, c));
    }
    return v[p->result];
}

static ir_range of_version(const ir *r, int32_t version, int depth) {
    if (version < 0) return everything;
    const ir_version *v = &r->versions[version];
    ir_range all = of_dtype(v->meta.dtype);
    if (v->node < 0 || depth < 0) return all;
    const ir_node *n = &r->nodes[v->node];
    if (n->write || n->dtype != v->meta.dtype) return all;
    /* Whole or in parts (pass_norms.c): exp of what is at most 0, and its share of a sum. */
    if (n->kind != IR_REDUCE && n->op == OP_SOFTMAX_RAW) return (ir_range){0, 1};
    if (n->kind != IR_POINT || !n->program) return all;
    ir_range known = of_program(r, n, depth);
    return (ir_range){fmax(known.low, all.low), fmin(known.high, all.high)};
}

double etch__largest(const ir *r, int32_t version) {
    ir_range v = of_version(r, version, RANGE_DEPTH);
    return fmax(fabs(v.low), fabs(v.high));
}
