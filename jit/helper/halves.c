/* f16 where the processor converts it: strips of a kernel are widened and narrowed by calls of the
 * library, which has the instructions; written out on the bits, as the vectoriser takes it
 * (prims.c), a conversion is a score of operations.
 *
 * A load is read as the f32 that its strip was widened to, a store's values lie as f32 until they
 * are narrowed. A rounding is a call as well, or one with the narrowing where only a store reads
 * it. Single elements (the odd stages of rows), and sets without the instructions, take prims.c. */
#include "gen.h"

static bool converts(const emitter *g) {
    return g->isa >= CPU_ISA_AVX2 && g->k->split != SPLIT_FINISH;
}

/* Whether the stage works on strips. */
static bool in_strips(const emitter *g, int stage) {
    return converts(g) && (g->k->variant != LOOP_ROW || stage % 2 == 0);
}

static int readers_of(const emitter *g, int v, int *last) {
    int readers = 0;
    for (int n = v + 1; n < g->k->ncode; n++)
        for (int k = 0; k < etch__loop_arity(&g->k->code[n]); k++)
            if (etch__loop_operand(&g->k->code[n], k) == v) readers++, *last = n;
    return readers;
}

bool gen_is_rounding_call(const emitter *g, int v) {
    const loop_instr *i = &g->k->code[v];
    return i->kind == LOOP_PRIM && i->p.prim == PRIM_ROUND_F16 && in_strips(g, i->stage);
}

bool gen_rounds_in_store(const emitter *g, int v) {
    int store;
    if (!gen_is_rounding_call(g, v) || readers_of(g, v, &store) != 1) return false;
    const loop_instr *i = &g->k->code[store];
    return i->kind == LOOP_STORE && i->stage == g->k->code[v].stage &&
           g->k->access[i->p.imm.i].dtype == ETCH_F16;
}

/* Whether some load or store of the access is more than a copy of memory. */
static bool computes(const emitter *g, int access) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        int store;
        if ((i->kind != LOOP_LOAD && i->kind != LOOP_STORE) || i->p.imm.i != access) continue;
        if (i->kind == LOOP_STORE) return !gen_copies(g, i);
        if (readers_of(g, v, &store) != 1) return true;
        const loop_instr *reader = &g->k->code[store];
        return reader->kind != LOOP_STORE || !gen_copies(g, reader);
    }
    return false;
}

bool gen_is_widened(const emitter *g, int access) {
    if (g->k->access[access].dtype != ETCH_F16 || !computes(g, access)) return false;
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if ((i->kind == LOOP_LOAD || i->kind == LOOP_STORE) && i->p.imm.i == access)
            return in_strips(g, i->stage);
    }
    return false;
}

val gen_source(const emitter *g, int access) {
    const gen_access *a = &g->access[access];
    return a->wide ? a->wide : rv(a->source);
}

void gen_widen_source(emitter *g, int access) {
    const gen_access *a = &g->access[access];
    if (a->wide) gen_strip_call(g, STRIP_WIDEN, ETCH_F16, a->wide, rv(a->source), rv(g->trip));
}

bool gen_widens(const emitter *g, int stage, etch_dtype from, etch_dtype to) {
    return from == ETCH_F16 && to == ETCH_F32 && in_strips(g, stage);
}

static etch_dtype dtype_of(const emitter *g, const loop_instr *i) {
    return g->k->access[i->p.imm.i].dtype;
}

bool gen_converts_out(const emitter *g, const loop_instr *store) {
    if (g->access[store->p.imm.i].wide) return true;
    return gen_copies(g, store) && dtype_of(g, &g->k->code[store->p.a]) != dtype_of(g, store);
}

void gen_convert_out(emitter *g, const loop_instr *store, val to) {
    int strip = STRIP_WIDEN;
    if (dtype_of(g, store) == ETCH_F16)
        strip = gen_rounds_in_store(g, store->p.a) ? STRIP_ROUND : STRIP_NARROW;
    gen_strip_call(g, strip, ETCH_F16, to, gen_results_of(g, store), rv(g->n));
}
