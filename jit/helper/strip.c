/* The body of one strip.
 *
 * A strip is computed by loops over its elements, which gcc vectorises, and between them by calls
 * of the library's functions over strips. Each value has a depth: that of its operands, plus one
 * behind a call. Loop d computes the values of depth d; what a later loop or a call needs is
 * spilled to a local strip, but for loads and the index, which are taken again. Results go to
 * local strips too and are copied out at the end, so no loop stores where another loads; where
 * there is but one loop they may go to memory, also in place of an operand. */
#include "gen.h"

static const loop_instr *instr(const emitter *g, int v) { return &g->k->code[v]; }

static bool is_prim(const loop_instr *i, prim_id p) {
    return i->kind == LOOP_PRIM && i->p.prim == p;
}

static bool is_call(const emitter *g, int v) {
    const loop_instr *i = instr(g, v);
    if (gen_is_rounding_call(g, v)) return !gen_rounds_in_store(g, v);
    return i->kind == LOOP_PRIM && etch__prim_is_function(i->p.prim);
}

bool gen_uniform_load(const emitter *g, int stage, int access) {
    const loop_kernel *k = g->k;
    const loop_access *a = &k->access[access];
    if (k->variant == LOOP_COLUMN || k->variant == LOOP_MAP) {
        if (k->npar == 0 || g->scalar) return true;
        int rows = k->variant == LOOP_MAP ? k->npar - 2 : k->npar + k->nred - 1;
        bool one_row = !k->tile || stage % 2 || a->step[rows] == STEP_ZERO;
        return one_row && a->step[k->npar - 1] == STEP_ZERO;
    }
    if (stage % 2) return true;
    for (int x = k->npar; x < k->npar + k->nred; x++)
        if (a->step[x] != STEP_ZERO) return false;
    return true;
}

static bool same_bits(etch_dtype storage) {
    return storage != ETCH_BF16 && storage != ETCH_F16 && storage != ETCH_BOOL;
}

/* The stage in which an instruction uses its operands. */
static int stage_of(const loop_instr *i) { return i->stage - (i->kind == LOOP_REDUCE); }

/* A value of an odd stage that a later one reads: kept in a variable for the whole row. */
static bool kept_for_row(const emitter *g, int v, int stage) {
    return instr(g, v)->stage % 2 && instr(g, v)->stage < stage;
}

/* Same value for all elements of a strip of the stage, in a variable. */
static bool uniform_in(const emitter *g, int v, int stage) {
    const loop_instr *i = instr(g, v);
    if (i->kind == LOOP_LOAD) return gen_uniform_load(g, i->stage, (int)i->p.imm.i);
    if (kept_for_row(g, v, stage)) return true;
    if (i->kind == LOOP_REDUCE) return g->scalar;
    return etch__loop_uniform(i);
}

static bool uniform(const emitter *g, int v) { return uniform_in(g, v, g->stage); }

/* A load whose memory can be read by a call or by the lanes as it is. */
static bool direct(const emitter *g, int v) {
    const loop_instr *i = instr(g, v);
    return i->kind == LOOP_LOAD && !gen_uniform_load(g, i->stage, (int)i->p.imm.i) &&
           (g->access[i->p.imm.i].wide || same_bits(g->k->access[i->p.imm.i].dtype));
}

/* Cheaper to take again in another loop than to spill. */
static bool repeatable(const emitter *g, int v, int stage) {
    const loop_instr *i = instr(g, v);
    return uniform_in(g, v, stage) || i->kind == LOOP_LOAD || i->kind == LOOP_REDUCE ||
           is_prim(i, PRIM_INDEX);
}

/* ---- plan ---- */

/* A call reads its operands from memory, or from a strip filled with one value. */
static void plan_call(emitter *g, int v) {
    const loop_instr *i = instr(g, v);
    g->value[v].called = g->value[v].spilled = true;
    g->value[v].depth++;
    for (int n = 0; n < etch__loop_arity(i); n++) {
        int o = etch__loop_operand(i, n);
        if (!uniform_in(g, o, i->stage) && !direct(g, o) && instr(g, o)->kind != LOOP_REDUCE)
            g->value[o].spilled = true;
    }
}

static void plan_plain(emitter *g, int v) {
    const loop_instr *i = instr(g, v);
    for (int n = 0; n < etch__loop_arity(i); n++) {
        int o = etch__loop_operand(i, n);
        if (g->value[o].depth < g->value[v].depth && !repeatable(g, o, stage_of(i)))
            g->value[o].spilled = true;
    }
    if (i->kind == LOOP_REDUCE && g->k->variant == LOOP_ROW && !direct(g, i->p.a) &&
        !kept_for_row(g, i->p.a, stage_of(i)))
        g->value[i->p.a].spilled = true;
}

/* As an operand of the stage: what is there from before its strip, and a
 * REDUCE as a value, has 0. */
static int depth_of(const emitter *g, int v, int stage) {
    return instr(g, v)->kind == LOOP_REDUCE || kept_for_row(g, v, stage) ? 0 : g->value[v].depth;
}

/* Whether a sweep behind that of the value needs it again. */
static bool needed_again(const emitter *g, int v) {
    bool runs[LOOP_MAX_CODE];
    int last = etch__loop_last_stage(g->k);
    for (int stage = instr(g, v)->stage + 2; stage <= last; stage += 2) {
        etch__loop_stage_code(g->k, stage, runs);
        if (runs[v]) return true;
    }
    return false;
}

/* What is called in one sweep and needed in another stays for as long a row as there is room for.
 */
static void plan_rows(emitter *g) {
    int left = etch__loop_rows_kept(g->k);
    for (int v = 0; left && v < g->k->ncode; v++) {
        gen_value *x = &g->value[v];
        if (!x->called || instr(g, v)->stage % 2 || !needed_again(g, v)) continue;
        x->strip = gen_array(g, g->storage[instr(g, v)->p.type], ROW_KEPT, "row");
        x->in_row = keep(g, gcc_jit_rvalue_get_type(x->strip), x->strip, "in_row");
        left--;
    }
}

void gen_place_in_row(emitter *g, val r) {
    val whole = cmp(g, GCC_JIT_COMPARISON_LE, g->reduced, num(g, ROW_KEPT));
    for (int v = 0; v < g->k->ncode; v++) {
        gen_value *x = &g->value[v];
        if (!x->in_row) continue;
        val at = choose(g, g->t_long, whole, r, num(g, 0));
        set(g, x->in_row, gcc_jit_lvalue_get_address(elem(g, x->strip, at), NULL));
    }
}

void gen_plan_values(emitter *g) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = instr(g, v);
        for (int n = 0; n < etch__loop_arity(i); n++) {
            int d = depth_of(g, etch__loop_operand(i, n), stage_of(i));
            if (d > g->value[v].depth) g->value[v].depth = d;
        }
        if (is_call(g, v)) plan_call(g, v);
        else plan_plain(g, v);
    }
    plan_rows(g);
}

/* ---- values ---- */

static etch_dtype type_of(const emitter *g, int v) { return instr(g, v)->p.type; }

static var now(emitter *g, int v, val x, int loop) {
    g->value[v].now = keep(g, g->compute[type_of(g, v)], x, "v");
    g->value[v].loop = loop;
    return g->value[v].now;
}

/* The store that takes the result of a call which nothing else reads, or NULL. */
static const loop_instr *store_of_call(const emitter *g, int v) {
    const loop_instr *store = NULL;
    for (int n = v + 1; g->value[v].called && n < g->k->ncode; n++)
        for (int k = 0; k < etch__loop_arity(instr(g, n)); k++) {
            if (etch__loop_operand(instr(g, n), k) != v) continue;
            if (store || instr(g, n)->kind != LOOP_STORE) return NULL;
            store = instr(g, n);
        }
    return store && same_bits(g->k->access[store->p.imm.i].dtype) ? store : NULL;
}

static val strip_of(emitter *g, int v) {
    gen_value *x = &g->value[v];
    const loop_instr *store = store_of_call(g, v);
    if (store && g->access[store->p.imm.i].target) return rv(g->access[store->p.imm.i].target);
    if (x->in_row) return rv(x->in_row);
    if (!x->strip) x->strip = gen_array(g, g->storage[type_of(g, v)], g->width, "strip");
    return x->strip;
}

static val from_strip(emitter *g, int v) {
    val e = rv(elem(g, strip_of(g, v), g->i));
    return gen_load(g, type_of(g, v), rv(keep(g, g->storage[type_of(g, v)], e, "e")));
}

static val index_value(emitter *g) {
    if (g->scalar) return rv(g->index0);
    return add(g, rv(g->index0), mul(g, g->i, g->index_step));
}

static val loaded(emitter *g, const loop_instr *i) {
    etch_dtype d = g->k->access[i->p.imm.i].dtype;
    val e = rv(elem(g, gen_source(g, (int)i->p.imm.i), g->i));
    if (g->access[i->p.imm.i].wide) return e;
    return gen_load(g, d, rv(keep(g, g->storage[d], e, "e")));
}

/* The value of v for element g->i. */
static val use(emitter *g, int v) {
    gen_value *x = &g->value[v];
    const loop_instr *i = instr(g, v);
    if (i->kind == LOOP_LOAD && uniform(g, v)) return rv(g->access[i->p.imm.i].uniform);
    if (x->now && (x->loop == g->loops || x->loop == EVERY_LOOP)) return rv(x->now);
    if (i->kind == LOOP_LOAD) return rv(now(g, v, loaded(g, i), g->loops));
    if (is_prim(i, PRIM_INDEX)) return rv(now(g, v, index_value(g), g->loops));
    return rv(now(g, v, from_strip(g, v), g->loops));
}

/* ---- loops ---- */

/* gcc compares the memory of each store with that of each load and of the other stores before it
 * vectorises a loop, up to so many times. */
bool gen_direct(const emitter *g) {
    enum { COMPARED = 8 };
    int loads = 0, stores = 0;
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->k->access[a].store) stores++;
        else loads += !gen_uniform_load(g, 0, a);
    return g->k->variant == LOOP_MAP && loads * stores + stores * (stores - 1) / 2 <= COMPARED;
}

static int stores_of(const emitter *g) {
    int stores = 0;
    for (int n = 0; n < g->k->ncode; n++) stores += instr(g, n)->kind == LOOP_STORE;
    return stores;
}

/* One loop with one store: an element is stored when all has been loaded that it is made of, and
 * gcc vectorises that for memory that is the same or lies apart. */
bool gen_in_place(const emitter *g) {
    for (int v = 0; v < g->k->ncode; v++)
        if (g->value[v].depth) return false;
    return stores_of(g) == 1;
}

/* The only store of a kernel, of what was loaded: memory is copied, or widened on the way. With
 * others, what one of them writes could be what is loaded. */
bool gen_copies(const emitter *g, const loop_instr *i) {
    const loop_instr *v = instr(g, i->p.a);
    if (g->scalar || v->kind != LOOP_LOAD || gen_uniform_load(g, v->stage, (int)v->p.imm.i))
        return false;
    etch_dtype from = g->k->access[v->p.imm.i].dtype, to = g->k->access[i->p.imm.i].dtype;
    return stores_of(g) == 1 && (from == to || gen_widens(g, i->stage, from, to));
}

/* What a store takes: of a rounding that it does itself, the operand. */
static int stored_value(const emitter *g, const loop_instr *store) {
    return gen_rounds_in_store(g, store->p.a) ? instr(g, store->p.a)->p.a : store->p.a;
}

/* Stores whose value lies in a strip as it must come out need no loop. The strip of a value that is
 * kept for the row has but one element. */
static bool copied_from_strip(const emitter *g, const loop_instr *i) {
    int v = stored_value(g, i);
    return !g->scalar && g->value[v].spilled && !kept_for_row(g, v, i->stage) &&
           (g->access[i->p.imm.i].wide || same_bits(g->k->access[i->p.imm.i].dtype));
}

/* The only store of a kernel, of what was loaded, narrowed: it reads where the load does. */
static bool narrowed(const emitter *g, const loop_instr *i) {
    int v = stored_value(g, i);
    return !g->scalar && g->access[i->p.imm.i].wide && stores_of(g) == 1 && direct(g, v);
}

val gen_results_of(emitter *g, const loop_instr *store) {
    const gen_access *a = &g->access[store->p.imm.i];
    if (g->scalar) return NULL;
    if (gen_copies(g, store)) return rv(g->access[instr(g, store->p.a)->p.imm.i].source);
    if (copied_from_strip(g, store)) return strip_of(g, stored_value(g, store));
    if (narrowed(g, store)) return gen_source(g, (int)instr(g, stored_value(g, store))->p.imm.i);
    return a->wide ? a->wide : a->target ? rv(a->target) : a->buffer;
}

static bool has_loop_code(const emitter *g, int v) {
    const loop_instr *i = instr(g, v);
    switch ((loop_kind)i->kind) {
    case LOOP_PRIM:
        if (etch__loop_uniform(i)) return g->value[v].spilled;
        if (gen_rounds_in_store(g, v)) return false;
        return !is_call(g, v) && (g->value[v].spilled || i->p.prim != PRIM_INDEX);
    case LOOP_LOAD: return g->value[v].spilled;
    case LOOP_STORE: return !gen_copies(g, i) && !copied_from_strip(g, i) && !narrowed(g, i);
    case LOOP_REDUCE: return g->k->variant == LOOP_COLUMN;
    }
    return false;
}

static void emit_store(emitter *g, const loop_instr *i) {
    gen_access *a = &g->access[i->p.imm.i];
    if (a->wide && !g->scalar) {
        set(g, elem(g, a->wide, g->i), use(g, stored_value(g, i)));
        return;
    }
    val to = g->scalar ? rv(a->base) : a->target ? rv(a->target) : a->buffer;
    val e = gen_store(g, g->k->access[i->p.imm.i].dtype, use(g, i->p.a));
    set(g, elem(g, to, g->i), e);
}

static void spill(emitter *g, int v) {
    val e = gen_store(g, type_of(g, v), use(g, v));
    set(g, elem(g, strip_of(g, v), g->i), e);
}

static void emit_instr(emitter *g, int v) {
    const loop_instr *i = instr(g, v);
    if (i->kind == LOOP_STORE) {
        emit_store(g, i);
        return;
    }
    if (i->kind == LOOP_REDUCE) {
        gen_lane_add(g, i, use(g, i->p.a));
        return;
    }
    if (i->kind == LOOP_PRIM && !etch__loop_uniform(i) && i->p.prim != PRIM_INDEX) {
        val x[3] = {NULL, NULL, NULL};
        for (int n = 0; n < etch__loop_arity(i); n++) x[n] = use(g, etch__loop_operand(i, n));
        now(g, v, gen_prim(g, &i->p, x[0], x[1], x[2]), g->loops);
    }
    if (g->value[v].spilled) spill(g, v);
}

static void emit_loop(emitter *g, int depth) {
    bool any = false;
    for (int v = 0; v < g->k->ncode; v++)
        any |= g->runs[v] && g->value[v].depth == depth && has_loop_code(g, v);
    if (!any) return;
    g->loops++;
    gen_loop l = {0};
    if (!g->scalar) l = for_begin(g, num(g, 0), rv(g->trip), 1, "i");
    g->i = g->scalar ? num(g, 0) : rv(l.i);
    for (int v = 0; v < g->k->ncode; v++)
        if (g->runs[v] && g->value[v].depth == depth && has_loop_code(g, v)) emit_instr(g, v);
    if (!g->scalar) for_end(g, &l);
}

/* ---- calls ---- */

/* A strip of one value for all elements. */
static val filled(emitter *g, etch_dtype t, val x, val trip) {
    val to = gen_array(g, g->storage[t], g->width, "same");
    val same = rv(keep(g, g->compute[t], x, "all"));
    gen_loop l = for_begin(g, num(g, 0), trip, 1, "j");
    set(g, elem(g, to, rv(l.i)), same);
    for_end(g, &l);
    return to;
}

val gen_elements(emitter *g, int v) {
    if (kept_for_row(g, v, g->stage)) return filled(g, type_of(g, v), use(g, v), rv(g->trip));
    if (!g->value[v].spilled && direct(g, v)) return gen_source(g, (int)instr(g, v)->p.imm.i);
    return strip_of(g, v);
}

static void call(emitter *g, int v) {
    const loop_instr *i = instr(g, v);
    etch_dtype t = type_of(g, v);
    val from[2] = {NULL, NULL}, trip = g->scalar ? num(g, 1) : rv(g->trip);
    g->i = num(g, 0);
    for (int n = 0; n < etch__loop_arity(i); n++) {
        int o = etch__loop_operand(i, n);
        bool same = g->scalar || uniform(g, o);
        from[n] = same ? filled(g, t, use(g, o), trip) : gen_elements(g, o);
    }
    gen_function_call(g, i->p.prim, t, strip_of(g, v), from[0], from[1] ? from[1] : from[0], trip);
}

/* What an earlier sweep has called is still there if the row is one strip, or is kept. */
static bool called_before(const emitter *g, int v) {
    return g->value[v].called && !g->scalar && instr(g, v)->stage < g->stage;
}

static val is_lost(emitter *g, bool in_row) {
    return cmp(g, GCC_JIT_COMPARISON_GT, g->reduced, num(g, in_row ? ROW_KEPT : g->width));
}

static void emit_call(emitter *g, int v) {
    bool again = called_before(g, v);
    gen_if row = {NULL, NULL};
    g->loops++;
    if (again) row = if_begin(g, is_lost(g, g->value[v].in_row != NULL));
    call(g, v);
    if (again) if_end(g, &row);
}

/* Notes which values of the strip at hand such calls alone read, by way of others or not. */
static void find_idle(emitter *g) {
    for (int v = g->k->ncode - 1; v >= 0; v--) {
        bool before = g->runs[v] && instr(g, v)->stage < g->stage;
        g->value[v].idle = before && !g->value[v].called && !uniform(g, v);
        for (int n = v + 1; g->value[v].idle && n < g->k->ncode; n++)
            for (int k = 0; g->runs[n] && k < etch__loop_arity(instr(g, n)); k++)
                if (etch__loop_operand(instr(g, n), k) == v)
                    g->value[v].idle &= called_before(g, n) || g->value[n].idle;
    }
}

/* A loop for calls that are not made, if the row is kept, is none. */
static void emit_loop_of(emitter *g, int depth) {
    bool idle = !g->scalar && g->k->variant == LOOP_ROW && g->stage > 0, in_row = true;
    for (int v = 0; v < g->k->ncode; v++) {
        if (g->runs[v] && called_before(g, v)) in_row &= g->value[v].in_row != NULL;
        if (g->runs[v] && g->value[v].depth == depth && has_loop_code(g, v))
            idle &= g->value[v].idle;
    }
    gen_if row = {NULL, NULL};
    if (idle) row = if_begin(g, is_lost(g, in_row));
    emit_loop(g, depth);
    if (idle) if_end(g, &row);
}

void gen_strip(emitter *g, int stage) {
    int deepest = 0;
    g->stage = stage;
    etch__loop_stage_code(g->k, stage, g->runs);
    find_idle(g);
    for (int v = 0; v < g->k->ncode; v++)
        if (g->runs[v] && g->value[v].depth > deepest) deepest = g->value[v].depth;
    for (int d = 0; d <= deepest; d++) {
        for (int v = 0; d && v < g->k->ncode; v++)
            if (g->runs[v] && g->value[v].called && g->value[v].depth == d) emit_call(g, v);
        emit_loop_of(g, d);
    }
}

void gen_keep_for_row(emitter *g, int stage) {
    g->i = num(g, 0);
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = instr(g, v);
        if (i->stage != stage || i->kind != LOOP_PRIM || etch__loop_uniform(i)) continue;
        if (!g->value[v].now)
            now(g, v, is_prim(i, PRIM_INDEX) ? index_value(g) : from_strip(g, v), 0);
        g->value[v].loop = EVERY_LOOP;
    }
}
