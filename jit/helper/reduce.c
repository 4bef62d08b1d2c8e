/* Reductions in the canonical order of core/ops/expr.h.
 *
 * A block of REDUCE_BLOCK elements is accumulated in REDUCE_LANES lanes. ROW: the strip lies along
 * the reduced elements, so its blocks of 64 go to the lanes one upon the other; sums keep the lanes
 * in vector registers where eight suffice. COLUMN: the strip lies across, each row of it goes to
 * one lane of every column. Then the lanes fold, and the block results fold by pairs as they come:
 * the stack holds one result for each set bit in the number of blocks done. */
#include "gen.h"

enum { STACK_LEVELS = 48 };

static type element(const emitter *g, const gen_reduction *r) { return g->storage[r->dtype]; }

static val load(emitter *g, const gen_reduction *r, val p, val index) {
    return gen_load(g, r->dtype, rv(keep(g, element(g, r), rv(elem(g, p, index)), "e")));
}

static void store(emitter *g, const gen_reduction *r, val p, val index, val v) {
    set(g, elem(g, p, index), gen_store(g, r->dtype, v));
}

/* p[to] = op(p[to], q[from]) */
static void combine(emitter *g, const gen_reduction *r, val p, val to, val q, val from) {
    val x = rv(keep(g, g->compute[r->dtype], load(g, r, p, to), "x"));
    val y = rv(keep(g, g->compute[r->dtype], load(g, r, q, from), "y"));
    store(g, r, p, to, gen_combine(g, r->kind, r->dtype, x, y));
}

/* Vector registers that hold the lanes, or 0 where the lanes are kept in memory. */
static int registers(const emitter *g, const gen_reduction *r) {
    bool fits = r->dtype == ETCH_F32 || r->dtype == ETCH_F64 || r->dtype == ETCH_I64;
    if (g->k->variant != LOOP_ROW || r->kind != REDUCE_SUM || !fits) return 0;
    int n = REDUCE_LANES / vec_lanes(g, r->dtype);
    return n <= COUNT_OF(r->vec) ? n : 0;
}

static void new_reduction(emitter *g, gen_reduction *r, int at) {
    const loop_instr *i = &g->k->code[at];
    bool row = g->k->variant == LOOP_ROW;
    r->at = at, r->dtype = i->p.type, r->kind = (reduce_kind)i->p.imm.i;
    if (g->k->split != SPLIT_FINISH) {
        r->lanes =
            gen_array(g, element(g, r), row ? REDUCE_LANES : REDUCE_LANES * g->cells, "lanes");
        r->stack = gen_array(g, element(g, r), STACK_LEVELS * g->cells, "stack");
        r->nvec = registers(g, r);
        for (int n = 0; n < r->nvec; n++) r->vec[n] = gen_local(g, vec_type(g, r->dtype), "lane");
    }
}

void gen_reductions(emitter *g) {
    for (int at = 0; at < g->k->ncode; at++)
        if (g->k->code[at].kind == LOOP_REDUCE) new_reduction(g, &g->red[g->nred++], at);
}

/* ---- lanes ---- */

/* Reductions of the sweep at hand. */
#define FOR_REDUCTIONS(q)                                                                          \
    for (int q = 0; q < g->nred; q++)                                                              \
        if (g->k->code[g->red[q].at].stage == g->sweep + 1)

void gen_lanes_reset(emitter *g) {
    FOR_REDUCTIONS(q) {
        gen_reduction *r = &g->red[q];
        val first = gen_identity(g, r->kind, r->dtype);
        for (int n = 0; n < r->nvec; n++) set(g, r->vec[n], vec_splat(g, r->dtype, first));
        if (r->nvec) continue;
        bool row = g->k->variant == LOOP_ROW;
        val count = row ? num(g, REDUCE_LANES) : mul(g, g->used, g->pitch);
        gen_loop l = for_begin(g, num(g, 0), count, 1, "l");
        store(g, r, r->lanes, rv(l.i), first);
        for_end(g, &l);
    }
}

static void add_vectors(emitter *g, const gen_reduction *r, val from) {
    int lanes = vec_lanes(g, r->dtype);
    gen_loop l = for_begin(g, num(g, 0), rv(g->trip), REDUCE_LANES, "j");
    for (int n = 0; n < r->nvec; n++) {
        val x = vec_load(g, r->dtype, from, add(g, rv(l.i), num(g, n * lanes)));
        set(g, r->vec[n], op(g, GCC_JIT_BINARY_OP_PLUS, vec_type(g, r->dtype), rv(r->vec[n]), x));
    }
    for_end(g, &l);
}

static void add_elements(emitter *g, const gen_reduction *r, val from) {
    gen_loop b = for_begin(g, num(g, 0), rv(g->trip), REDUCE_LANES, "j");
    gen_loop l = for_begin(g, num(g, 0), num(g, REDUCE_LANES), 1, "l");
    combine(g, r, r->lanes, rv(l.i), from, add(g, rv(b.i), rv(l.i)));
    for_end(g, &l);
    for_end(g, &b);
}

/* What stands behind the valid elements changes nothing. */
static void neutralise(emitter *g, const gen_reduction *r, val from) {
    val none = gen_store(g, r->dtype, gen_identity(g, r->kind, r->dtype));
    gen_if part = if_begin(g, cmp(g, GCC_JIT_COMPARISON_NE, rv(g->n), rv(g->trip)));
    val whole = op(g, GCC_JIT_BINARY_OP_BITWISE_AND, g->t_long, rv(g->n), num(g, -REDUCE_LANES));
    val last = gcc_jit_lvalue_get_address(elem(g, from, whole), NULL);
    gen_pad(g, r->dtype, last, last, none, sub(g, rv(g->n), whole));
    if_end(g, &part);
}

void gen_lanes_add_strip(emitter *g) {
    FOR_REDUCTIONS(q) {
        gen_reduction *r = &g->red[q];
        val from = gen_elements(g, g->k->code[r->at].p.a);
        neutralise(g, r, from);
        if (r->nvec) add_vectors(g, r, from);
        else add_elements(g, r, from);
    }
}

bool gen_reduces_memory(const emitter *g, const loop_instr *reduce) {
    const loop_instr *i = &g->k->code[reduce->p.a];
    int last = g->k->npar + g->k->nred - 1;
    if (reduce->p.imm.i != REDUCE_MAX && reduce->p.imm.i != REDUCE_MIN) return false;
    if (i->kind != LOOP_LOAD || i->stage != reduce->stage - 1) return false;
    const loop_access *a = &g->k->access[i->p.imm.i];
    return a->dtype == reduce->p.type && a->step[last] == STEP_ONE;
}

void gen_lanes_add_memory(emitter *g, val n) {
    FOR_REDUCTIONS(q) {
        gen_reduction *r = &g->red[q];
        int load = g->k->code[r->at].p.a, a = (int)g->k->code[load].p.imm.i;
        int strip = r->kind == REDUCE_MAX ? STRIP_MAX_LANES : STRIP_MIN_LANES;
        gen_strip_call(g, strip, r->dtype, r->lanes, rv(g->access[a].base), n);
    }
}

void gen_lane_add(emitter *g, const loop_instr *reduce, val v) {
    const gen_reduction *r = g->red;
    while (&g->k->code[r->at] != reduce) r++;
    val at = rv(keep(g, g->t_long, add(g, rv(g->lane), g->i), "at"));
    val acc = rv(keep(g, g->compute[r->dtype], load(g, r, r->lanes, at), "acc"));
    store(g, r, r->lanes, at, gen_combine(g, r->kind, r->dtype, acc, v));
}

/* Folds registers to one, which goes to memory; returns the lanes that are left. */
static int fold_vectors(emitter *g, gen_reduction *r) {
    if (!r->nvec) return REDUCE_LANES;
    for (int left = r->nvec / 2; left >= 1; left /= 2)
        for (int n = 0; n < left; n++)
            set(g, r->vec[n],
                op(g, GCC_JIT_BINARY_OP_PLUS, vec_type(g, r->dtype), rv(r->vec[n]),
                   rv(r->vec[n + left])));
    vec_store(g, r->dtype, r->lanes, num(g, 0), rv(r->vec[0]));
    return vec_lanes(g, r->dtype);
}

/* The largest and the smallest are folded by the library, which has vectors for the last rounds. */
static void fold_row(emitter *g, gen_reduction *r) {
    if (r->kind == REDUCE_MAX || r->kind == REDUCE_MIN) {
        int fold = r->kind == REDUCE_MAX ? STRIP_MAX_FOLD : STRIP_MIN_FOLD;
        gen_strip_call(g, fold, r->dtype, r->lanes, r->lanes, num(g, REDUCE_LANES));
        return;
    }
    for (int w = fold_vectors(g, r) / 2; w >= 1; w /= 2) {
        gen_loop l = for_begin(g, num(g, 0), num(g, w), 1, "l");
        combine(g, r, r->lanes, rv(l.i), r->lanes, add(g, rv(l.i), num(g, w)));
        for_end(g, &l);
    }
}

/* Lane l of all columns is row l: rows fold as wholes, those that have something. The others hold
 * what changes nothing, so nobody has cleared them. */
static void fold_columns(emitter *g, gen_reduction *r) {
    var half = keep(g, g->t_long, num(g, REDUCE_LANES / 2), "w");
    gen_loop w = while_begin(g);
    while_test(g, &w, cmp(g, GCC_JIT_COMPARISON_GT, rv(half), num(g, 0)));
    val rows = mul(g, rv(half), g->pitch);
    rows = rv(keep(g, g->t_long, rows, "rows"));
    val some = mul(g, sub(g, g->used, rv(half)), g->pitch);
    some = rv(keep(g, g->t_long, some, "some"));
    int block = g->k->tile ? 1 : BLOCK; /* rows of a tile end anywhere */
    gen_loop l = for_begin(g, num(g, 0), min_of(g, rows, some), block, "l");
    gen_loop j = {0};
    if (block > 1) j = for_begin(g, num(g, 0), num(g, block), 1, "j");
    val at = block > 1 ? rv(keep(g, g->t_long, add(g, rv(l.i), rv(j.i)), "at")) : rv(l.i);
    combine(g, r, r->lanes, at, r->lanes, add(g, at, rows));
    if (block > 1) for_end(g, &j);
    for_end(g, &l);
    set(g, half, op(g, GCC_JIT_BINARY_OP_RSHIFT, g->t_long, rv(half), num(g, 1)));
    for_end(g, &w);
}

void gen_lanes_fold(emitter *g) {
    FOR_REDUCTIONS(q)(g->k->variant == LOOP_ROW ? fold_row : fold_columns)(g, &g->red[q]);
}

/* ---- blocks ---- */

static val level(emitter *g, val top, int below) {
    return mul(g, sub(g, top, num(g, below)), num(g, g->cells));
}

/* Of a block result. Tiles that are wider than `cells` have one block. */
static val elements(emitter *g) { return g->k->tile ? g->pitch : num(g, g->cells); }

/* to[j] = op(p[j], q[j]) for each element of a block result */
static void combine_cells(emitter *g, const gen_reduction *r, val to, val to_at, val p, val p_at,
                          val q, val q_at) {
    gen_loop l = for_begin(g, num(g, 0), elements(g), 1, "l");
    val x = load(g, r, p, add(g, p_at, rv(l.i)));
    x = rv(keep(g, g->compute[r->dtype], x, "x"));
    val y = load(g, r, q, add(g, q_at, rv(l.i)));
    y = rv(keep(g, g->compute[r->dtype], y, "y"));
    store(g, r, to, add(g, to_at, rv(l.i)), gen_combine(g, r->kind, r->dtype, x, y));
    for_end(g, &l);
}

var gen_stack_begin(emitter *g) { return keep(g, g->t_long, num(g, 0), "top"); }

/* The new result swallows one entry of the stack for each trailing one bit of the block's number.
 */
void gen_stack_push(emitter *g, var top, val block) {
    var bitsleft = keep(g, g->t_long, block, "t");
    gen_loop w = while_begin(g);
    val odd = op(g, GCC_JIT_BINARY_OP_BITWISE_AND, g->t_long, rv(bitsleft), num(g, 1));
    while_test(g, &w, cmp(g, GCC_JIT_COMPARISON_NE, odd, num(g, 0)));
    val last = rv(keep(g, g->t_long, level(g, rv(top), 1), "last"));
    FOR_REDUCTIONS(q)
    combine_cells(g, &g->red[q], g->red[q].lanes, num(g, 0), g->red[q].stack, last, g->red[q].lanes,
                  num(g, 0));
    set(g, top, sub(g, rv(top), num(g, 1)));
    set(g, bitsleft, op(g, GCC_JIT_BINARY_OP_RSHIFT, g->t_long, rv(bitsleft), num(g, 1)));
    for_end(g, &w);
    FOR_REDUCTIONS(q) {
        gen_reduction *r = &g->red[q];
        val to = rv(keep(g, g->t_long, level(g, rv(top), 0), "to"));
        gen_loop l = for_begin(g, num(g, 0), elements(g), 1, "l");
        set(g, elem(g, r->stack, add(g, to, rv(l.i))), rv(elem(g, r->lanes, rv(l.i))));
        for_end(g, &l);
    }
    set(g, top, add(g, rv(top), num(g, 1)));
}

void gen_stack_finish(emitter *g, var top) {
    gen_loop w = while_begin(g);
    while_test(g, &w, cmp(g, GCC_JIT_COMPARISON_GT, rv(top), num(g, 1)));
    val left = rv(keep(g, g->t_long, level(g, rv(top), 2), "left"));
    val right = rv(keep(g, g->t_long, level(g, rv(top), 1), "right"));
    FOR_REDUCTIONS(q)
    combine_cells(g, &g->red[q], g->red[q].stack, left, g->red[q].stack, left, g->red[q].stack,
                  right);
    set(g, top, sub(g, rv(top), num(g, 1)));
    for_end(g, &w);
}

/* ---- split reductions ---- */

static int element_size(etch_dtype t) {
    static const uint8_t bytes[ETCH_DTYPE_COUNT] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
    return bytes[t];
}

/* The cells of reduction q, as its own element type with a step of 8 bytes. */
static val scratch(emitter *g, int q, val *step) {
    type e = g->storage[g->red[q].dtype], pointer = gcc_jit_type_get_pointer(e);
    val address = cast(g, rv(elem(g, g->args, num(g, g->k->naccesses))), pointer);
    int size = element_size(g->red[q].dtype);
    *step = num(g, 8 / size);
    val first = mul(g, mul(g, mul(g, num(g, q), g->parallel), g->blocks), *step);
    return gcc_jit_lvalue_get_address(elem(g, address, first), NULL);
}

/* Cells [q][element + l][block] of the n elements of a strip. */
void gen_scratch_write(emitter *g, val element_at, val block) {
    for (int q = 0; q < g->nred; q++) {
        val step, cells = scratch(g, q, &step);
        cells = rv(keep(g, gcc_jit_rvalue_get_type(cells), cells, "cells"));
        val count = g->cells == 1 ? num(g, 1) : g->k->tile ? g->pitch : rv(g->n);
        gen_loop l = for_begin(g, num(g, 0), count, 1, "l");
        val cell = add(g, mul(g, add(g, element_at, rv(l.i)), g->blocks), block);
        set(g, elem(g, cells, mul(g, cell, step)), rv(elem(g, g->red[q].lanes, rv(l.i))));
        for_end(g, &l);
    }
}

/* Folds the cells of one element by pairs, in place. */
static void fold_cells(emitter *g, int q, val element_at) {
    gen_reduction *r = &g->red[q];
    val step, cells = scratch(g, q, &step);
    val first = mul(g, mul(g, element_at, g->blocks), step);
    cells = gcc_jit_lvalue_get_address(elem(g, cells, first), NULL);
    cells = rv(keep(g, gcc_jit_rvalue_get_type(cells), cells, "cells"));
    r->scratch = cells;
    var s = keep(g, g->t_long, num(g, 1), "s");
    gen_loop outer = while_begin(g);
    while_test(g, &outer, cmp(g, GCC_JIT_COMPARISON_LT, rv(s), g->blocks));
    var i = keep(g, g->t_long, num(g, 0), "i");
    gen_loop inner = while_begin(g);
    val other = add(g, rv(i), rv(s));
    while_test(g, &inner, cmp(g, GCC_JIT_COMPARISON_LT, other, g->blocks));
    combine(g, r, cells, mul(g, rv(i), step), cells, mul(g, other, step));
    set(g, i, add(g, other, rv(s)));
    for_end(g, &inner);
    set(g, s, add(g, rv(s), rv(s)));
    for_end(g, &outer);
}

void gen_scratch_fold(emitter *g, val element_at) {
    for (int q = 0; q < g->nred; q++) fold_cells(g, q, element_at);
}

void gen_results(emitter *g) {
    FOR_REDUCTIONS(q) {
        gen_reduction *r = &g->red[q];
        gen_value *v = &g->value[r->at];
        val from = g->k->split == SPLIT_FINISH ? r->scratch : r->stack;
        v->strip = from;
        if (!g->scalar) continue;
        v->now = keep(g, g->compute[r->dtype], load(g, r, from, num(g, 0)), "sum");
        v->loop = EVERY_LOOP;
    }
}
