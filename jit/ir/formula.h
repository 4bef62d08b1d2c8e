/* Programs of nodes that passes write: a line of code at a time, the last one is the result. */
#ifndef ETCH_JIT_IR_FORMULA_H
#define ETCH_JIT_IR_FORMULA_H

#include "core/ops/expr.h"

static inline int etch__formula_put(prim_program *p, prim_id prim, etch_dtype type, int a, int b) {
    p->code[p->n] = (prim_instr){.prim = (uint8_t)prim,
                                 .type = (uint8_t)type,
                                 .from = (uint8_t)type,
                                 .a = (int16_t)a,
                                 .b = (int16_t)b};
    return p->result = p->n++;
}

/* Operand k, of this dtype, in the compute type. */
static inline int etch__formula_input(prim_program *p, etch_dtype dtype, int k) {
    int v = etch__formula_put(p, PRIM_INPUT, etch__compute_type(dtype), 0, 0);
    p->code[v].from = (uint8_t)dtype, p->code[v].imm.i = k;
    return v;
}

/* The result on the grid of a half type. */
static inline void etch__formula_round(prim_program *p, etch_dtype to) {
    if (to == ETCH_BF16) etch__formula_put(p, PRIM_ROUND_BF16, ETCH_F32, p->result, 0);
    if (to == ETCH_F16) etch__formula_put(p, PRIM_ROUND_F16, ETCH_F32, p->result, 0);
}

#endif
