/* What is known of the bits of NaNs, in numbers that come of bf16: the low half of a loaded or
 * rounded one is 0, and arithmetic gives an operand's NaN, made quiet, or the processor's own,
 * whose low half is 0 as well; so do sums of products of them. Adding half of a unit to such bits
 * and cutting the low half off gives them again: a rounding of them needs no case for NaN. */
#include <math.h>

#include "gen.h"

static bool all_short(const emitter *g, const loop_instr *i) {
    for (int n = 0; n < etch__loop_arity(i); n++)
        if (!g->value[etch__loop_operand(i, n)].short_nan) return false;
    return true;
}

static void note_prim(const emitter *g, const loop_instr *i, gen_value *x) {
    if (i->p.type != ETCH_F32) return;
    switch (i->p.prim) {
    case PRIM_CONST: x->short_nan = !isnan(i->p.imm.d); break;
    case PRIM_ROUND_BF16: x->short_nan = x->quiet_nan = true; break;
    case PRIM_ADD:
    case PRIM_SUB:
    case PRIM_MUL:
    case PRIM_DIV:
    case PRIM_FMA: x->short_nan = x->quiet_nan = all_short(g, i); break;
    case PRIM_NEG:
    case PRIM_ABS:
    case PRIM_AT_LEAST:
    case PRIM_AT_MOST: x->short_nan = all_short(g, i); break;
    default: break;
    }
}

static void note_load(const loop_access *a, gen_value *x) {
    x->short_nan = a->dtype == ETCH_BF16 || a->sums;
    x->quiet_nan = a->sums;
}

void gen_plan_nans(emitter *g) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        gen_value *x = &g->value[v];
        if (i->kind == LOOP_LOAD) note_load(&g->k->access[i->p.imm.i], x);
        if (i->kind == LOOP_PRIM) note_prim(g, i, x);
    }
}

bool gen_rounds_without_nans(const emitter *g, const prim_instr *p) {
    const gen_value *x = &g->value[p->a];
    return x->short_nan && x->quiet_nan;
}
