/* The unit loops of a kernel: which elements a strip has, where its accesses lie.
 *
 *   MAP     for each row of the innermost axis: for each strip; or for each tile
 *   ROW     for each parallel element: for each block: for each strip of reduced elements; stage 1;
 *           then stages 2, 4, ... over the reduced elements again, and the odd ones between them
 *   COLUMN  for each strip of columns, in parts of `part`: for each block: for each reduced row, or
 *           for each tile of them; stage 1
 *   FINISH  for each parallel element: fold its blocks; stage 1 */
#include "gen.h"

static int naxes(const emitter *g) { return g->k->npar + g->k->nred; }

static etch_dtype dtype_of(const emitter *g, int a) { return g->k->access[a].dtype; }

static int size_of(etch_dtype d) {
    static const uint8_t bytes[ETCH_DTYPE_COUNT] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
    return bytes[d];
}

static type element_ptr(const emitter *g, int a) {
    return gcc_jit_type_get_pointer(g->storage[dtype_of(g, a)]);
}

static val at_offset(emitter *g, val pointer, val offset) {
    return gcc_jit_lvalue_get_address(elem(g, pointer, offset), NULL);
}

/* ---- what is set up once per call ---- */

static void mark_used(emitter *g) {
    for (int s = 0; s <= etch__loop_last_stage(g->k); s++) {
        if (g->k->split != SPLIT_NONE && (g->k->split == SPLIT_FINISH) != (s == 1)) continue;
        etch__loop_stage_code(g->k, s, g->runs);
        for (int v = 0; v < g->k->ncode; v++) {
            const loop_instr *i = &g->k->code[v];
            if (g->runs[v] && (i->kind == LOOP_LOAD || i->kind == LOOP_STORE))
                g->access[i->p.imm.i].used[s] = true;
        }
    }
}

static bool used(const emitter *g, int a) {
    for (int s = 0; s < LOOP_STAGES; s++)
        if (g->access[a].used[s]) return true;
    return false;
}

static void read_dims(emitter *g) {
    for (int x = 0; x < naxes(g); x++)
        g->extent[x] = rv(keep(g, g->t_long, rv(elem(g, g->dims, num(g, x))), "extent"));
    for (int a = 0; a < g->k->naccesses; a++) {
        for (int x = 0; used(g, a) && x < naxes(g); x++) {
            val at = num(g, naxes(g) * (a + 1) + x);
            if (g->k->access[a].step[x] == STEP_ONE) g->access[a].stride[x] = num(g, 1);
            if (g->k->access[a].step[x] == STEP_VAR)
                g->access[a].stride[x] = rv(keep(g, g->t_long, rv(elem(g, g->dims, at)), "stride"));
        }
    }
}

static val product(emitter *g, int from, int to) {
    val p = num(g, 1);
    for (int x = from; x < to; x++) p = x == from ? g->extent[x] : mul(g, p, g->extent[x]);
    return rv(keep(g, g->t_long, p, "size"));
}

static val rounded_up(emitter *g, val n, int to) {
    return quot(g, add(g, n, num(g, to - 1)), num(g, to));
}

static void read_sizes(emitter *g) {
    g->parallel = product(g, 0, g->k->npar);
    if (!g->k->nred) return;
    g->reduced = product(g, g->k->npar, naxes(g));
    val b = rv(keep(g, g->t_long, rounded_up(g, g->reduced, REDUCE_BLOCK), "blocks"));
    g->blocks = choose(g, g->t_long, cmp(g, GCC_JIT_COMPARISON_LT, b, num(g, 1)), num(g, 1), b);
}

/* Beside the tile of a product, whose rows are short, what is the same for all of its rows is
 * widened once: that takes as long as a rounding. */
static bool is_kept(const emitter *g, int a) {
    const loop_access *x = &g->k->access[a];
    bool tile = false;
    for (int k = 0; k < g->k->naccesses; k++) tile |= g->k->access[k].sums;
    if (!tile || g->k->variant != LOOP_MAP || g->k->tile || g->k->npar < 2) return false;
    for (int k = 0; k < g->k->npar - 1; k++)
        if (x->step[k] != STEP_ZERO) return false;
    return !x->store && x->dtype == ETCH_BF16 && x->step[g->k->npar - 1] == STEP_ONE;
}

static void new_accesses(emitter *g) {
    for (int a = 0; a < g->k->naccesses; a++) {
        gen_access *x = &g->access[a];
        if (!used(g, a)) continue;
        x->unit = gen_local(g, element_ptr(g, a), "unit");
        x->base = gen_local(g, element_ptr(g, a), "base");
        x->source = gen_local(g, element_ptr(g, a), "source");
        x->uniform = gen_local(g, g->compute[dtype_of(g, a)], "same");
        x->buffer = gen_array(g, g->storage[dtype_of(g, a)], g->width, "buffer");
        x->kept = is_kept(g, a);
        if (x->kept || gen_is_widened(g, a))
            x->wide = gen_array(g, g->storage[ETCH_F32], g->width, "wide");
        if (g->k->access[a].store && !x->wide && gen_direct(g))
            x->target = gen_local(g, element_ptr(g, a), "target");
    }
}

static val scalar_value(emitter *g, const loop_instr *i) {
    etch_dtype d = etch__compute_type(i->p.from);
    val cell = at_offset(g, g->scalars, num(g, i->p.imm.i));
    val e = rv(elem(g, cast(g, cell, gcc_jit_type_get_pointer(g->storage[d])), num(g, 0)));
    val v = gen_load(g, d, rv(keep(g, g->storage[d], e, "cell")));
    return gen_convert(g, d, i->p.type, rv(keep(g, g->compute[d], v, "scalar")));
}

static val constant_value(emitter *g, const loop_instr *i) {
    etch_dtype t = i->p.type;
    if (etch__is_float(t)) return gen_real(g, t, i->p.imm.d);
    if (t == ETCH_BOOL) return cast(g, constant(g, g->t_int, i->p.imm.i != 0), g->t_bool);
    return constant(g, g->compute[t], i->p.imm.i);
}

/* A number whose value the compiler cannot use: the product that it would leave out of x * 1
 * flushes denormals. */
static val opaque(emitter *g, etch_dtype t, val x) {
    return rv(keep(g, gcc_jit_type_get_volatile(g->compute[t]), x, "opaque"));
}

/* Constants, scalars and the count of reduced elements are the same for all strips. */
static void set_uniforms(emitter *g) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (!etch__loop_uniform(i)) continue;
        val x = i->p.prim == PRIM_CONST    ? constant_value(g, i)
                : i->p.prim == PRIM_SCALAR ? scalar_value(g, i)
                                           : gen_convert(g, ETCH_I64, i->p.type, g->reduced);
        if (g->k->any_mode && etch__is_float(i->p.type)) x = opaque(g, i->p.type, x);
        g->value[v].now = keep(g, g->compute[i->p.type], x, "uniform");
        g->value[v].loop = EVERY_LOOP;
    }
}

/* ---- where accesses lie ---- */

/* Splits a row-major number over axes [from, to) into index[]. */
static void decompose(emitter *g, val number, int from, int to, val *index) {
    var left = keep(g, g->t_long, number, "left");
    for (int x = to - 1; x > from; x--) {
        index[x] = rv(keep(g, g->t_long, rem(g, rv(left), g->extent[x]), "index"));
        set(g, left, quot(g, rv(left), g->extent[x]));
    }
    if (from < to) index[from] = rv(left);
}

static val offset_over(emitter *g, int a, int from, int to, val *index) {
    val offset = NULL;
    for (int x = from; x < to; x++) {
        if (g->k->access[a].step[x] == STEP_ZERO) continue;
        val part = g->k->access[a].step[x] == STEP_ONE ? index[x]
                                                       : mul(g, index[x], g->access[a].stride[x]);
        offset = offset ? add(g, offset, part) : part;
    }
    return offset;
}

static void move(emitter *g, var to, val pointer, val offset) {
    set(g, to, offset ? at_offset(g, pointer, offset) : pointer);
}

/* unit pointers from the arguments, with the parallel axes [0, to) at index[] */
static void set_units(emitter *g, int to, val *index) {
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!used(g, a)) continue;
        val start = cast(g, rv(elem(g, g->args, num(g, a))), element_ptr(g, a));
        move(g, g->access[a].unit, start, offset_over(g, a, 0, to, index));
    }
}

/* base pointers of a stage's accesses from the unit's, `first` elements along axis x (-1: none) */
static void set_bases(emitter *g, int stage, int x, val first) {
    for (int a = 0; a < g->k->naccesses; a++) {
        gen_access *s = &g->access[a];
        if (!s->used[stage]) continue;
        val offset =
            x < 0 || g->k->access[a].step[x] == STEP_ZERO ? NULL : mul(g, first, s->stride[x]);
        move(g, s->base, rv(s->unit), offset);
    }
}

static void set_length(emitter *g, val n) {
    set(g, g->n, n);
    val up = op(g, GCC_JIT_BINARY_OP_BITWISE_AND, g->t_long, add(g, rv(g->n), num(g, BLOCK - 1)),
                num(g, -BLOCK));
    set(g, g->trip, up);
}

/* ---- sources and results ---- */

static void copy(emitter *g, etch_dtype d, val to, val from, val n) {
    type p = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_VOID_PTR);
    val bytes =
        cast(g, mul(g, n, num(g, size_of(d))), gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_SIZE_T));
    val args[3] = {cast(g, to, p), cast(g, from, p), bytes};
    gcc_jit_block_add_eval(g->at, NULL, builtin(g, "__builtin_memcpy", 3, args));
}

/* buffer[at + j] = from[j * stride] for j < n */
static void gather(emitter *g, int a, val at, val from, val n, val stride) {
    gen_loop l = for_begin(g, num(g, 0), n, 1, "j");
    set(g, elem(g, g->access[a].buffer, add(g, at, rv(l.i))),
        rv(elem(g, from, mul(g, rv(l.i), stride))));
    for_end(g, &l);
}

/* What is no run of memory moves by the library's ways, whose cost is that of a call: the compiler
 * makes gather instructions of a loop, which take longer than single loads. */
static void gather_strip(emitter *g, int a, int x) {
    val stride = g->access[a].stride[x] ? g->access[a].stride[x] : num(g, 0);
    gen_block inside = {g->access[a].buffer, num(g, 0), num(g, 1)};
    gen_block outside = {rv(g->access[a].base), num(g, 0), stride};
    gen_move(g, dtype_of(g, a), inside, outside, num(g, 1), rv(g->n));
}

static void scatter_strip(emitter *g, int a, val results, int x) {
    val stride = x >= 0 && g->access[a].stride[x] ? g->access[a].stride[x] : num(g, 0);
    gen_block inside = {results, num(g, 0), num(g, 1)};
    gen_block outside = {rv(g->access[a].base), num(g, 0), stride};
    gen_move(g, dtype_of(g, a), outside, inside, num(g, 1), rv(g->n));
}

static void scatter(emitter *g, val results, val at, val to, val n, val stride) {
    gen_loop l = for_begin(g, num(g, 0), n, 1, "j");
    set(g, elem(g, to, mul(g, rv(l.i), stride)), rv(elem(g, results, add(g, at, rv(l.i)))));
    for_end(g, &l);
}

/* What stands behind the valid elements is computed with, so it must be initialised. */
static void pad(emitter *g, int a) {
    val to = gcc_jit_lvalue_get_address(elem(g, g->access[a].buffer, rv(g->n)), NULL);
    val n = mul(g, sub(g, rv(g->trip), rv(g->n)), num(g, size_of(dtype_of(g, a))));
    val args[3] = {cast(g, to, gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_VOID_PTR)),
                   constant(g, g->t_int, 0),
                   cast(g, n, gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_SIZE_T))};
    gcc_jit_block_add_eval(g->at, NULL, builtin(g, "__builtin_memset", 3, args));
}

static void source_contiguous(emitter *g, int a) {
    gen_access *s = &g->access[a];
    gen_if whole = if_begin(g, cmp(g, GCC_JIT_COMPARISON_EQ, rv(g->n), rv(g->trip)));
    set(g, s->source, rv(s->base));
    if_else(g, &whole);
    etch_dtype d = dtype_of(g, a);
    gen_pad(g, d, s->buffer, rv(s->base), constant(g, g->storage[d], 0), rv(g->n));
    set(g, s->source, s->buffer);
    if_end(g, &whole);
}

static void source_uniform(emitter *g, int a) {
    gen_access *s = &g->access[a];
    val e = rv(keep(g, g->storage[dtype_of(g, a)], rv(elem(g, rv(s->base), num(g, 0))), "e"));
    set(g, s->uniform, gen_load(g, dtype_of(g, a), e));
}

/* Makes the strip along axis x readable: bases, n and trip are set. */
static void set_sources(emitter *g, int stage, int x) {
    for (int a = 0; a < g->k->naccesses; a++) {
        gen_access *s = &g->access[a];
        if (!s->used[stage] || g->k->access[a].store || s->kept) continue;
        if (gen_uniform_load(g, stage, a)) {
            source_uniform(g, a);
            continue;
        }
        if (g->k->access[a].step[x] == STEP_ONE) {
            source_contiguous(g, a);
        } else {
            gather_strip(g, a, x);
            pad(g, a);
            set(g, s->source, s->buffer);
        }
        gen_widen_source(g, a);
    }
}

/* Results go to memory itself where they make up a run of it, as `run` says, that is no operand's
 * or may take the place of one, and else to the buffer. */
static void set_target(emitter *g, int a, val run) {
    gen_access *s = &g->access[a];
    if (!s->target) return;
    set(g, s->target, s->buffer);
    if (!run) return;
    type p = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_VOID_PTR);
    val base = cast(g, rv(s->base), p);
    bool in_place = gen_in_place(g);
    for (int l = 0; l < g->k->naccesses; l++)
        if (used(g, l) && !g->k->access[l].store && !(in_place && !gen_uniform_load(g, 0, l)))
            run = both(g, run,
                       cmp(g, GCC_JIT_COMPARISON_NE, cast(g, rv(g->access[l].base), p), base));
    gen_if i = if_begin(g, run);
    set(g, s->target, rv(s->base));
    if_end(g, &i);
}

/* Copies a run of results, unless they are there already. */
static void copy_run(emitter *g, int a, val results) {
    val base = rv(g->access[a].base);
    gen_if i = {NULL, NULL};
    if (g->access[a].target) i = if_begin(g, cmp(g, GCC_JIT_COMPARISON_NE, results, base));
    copy(g, dtype_of(g, a), base, results, rv(g->n));
    if (g->access[a].target) if_end(g, &i);
}

static void copy_out(emitter *g, const loop_instr *store, int x) {
    int a = (int)store->p.imm.i;
    bool run = x >= 0 && g->k->access[a].step[x] == STEP_ONE;
    val results = gen_results_of(g, store);
    if (!results) return;
    if (gen_converts_out(g, store)) {
        gen_convert_out(g, store, run ? rv(g->access[a].base) : g->access[a].buffer);
        if (run) return;
        results = g->access[a].buffer;
    }
    if (run) {
        copy_run(g, a, results);
    } else {
        scatter_strip(g, a, results, x);
    }
}

static void copy_all_out(emitter *g, int stage, int x) {
    for (int v = 0; v < g->k->ncode; v++)
        if (g->k->code[v].kind == LOOP_STORE && g->k->code[v].stage == stage)
            copy_out(g, &g->k->code[v], x);
}

/* ---- tiles: blocks of rows x columns, n elements in all ---- */

typedef struct tile {
    int stage, row, column; /* axes */
    val rows, columns;
} tile;

static val stride_along(emitter *g, int a, int x) {
    val s = g->access[a].stride[x];
    return s ? s : num(g, 0);
}

static void move_tile(emitter *g, const tile *t, int a, val strip) {
    gen_block inside = {strip, t->columns, num(g, 1)};
    gen_block outside = {rv(g->access[a].base), stride_along(g, a, t->row),
                         stride_along(g, a, t->column)};
    bool store = g->k->access[a].store;
    gen_move(g, dtype_of(g, a), store ? outside : inside, store ? inside : outside, t->rows,
             t->columns);
}

/* Whether rows follow one another without a gap. */
static val one_run(emitter *g, const tile *t, int a) {
    val follows = cmp(g, GCC_JIT_COMPARISON_EQ, stride_along(g, a, t->row), t->columns);
    return either(g, follows, cmp(g, GCC_JIT_COMPARISON_EQ, t->rows, num(g, 1)));
}

static void tile_source(emitter *g, const tile *t, int a) {
    gen_access *s = &g->access[a];
    bool along = g->k->access[a].step[t->column] == STEP_ONE;
    gen_if run = {NULL, NULL};
    if (along) {
        run = if_begin(g, one_run(g, t, a));
        set(g, s->source, rv(s->base));
        if_else(g, &run);
    }
    move_tile(g, t, a, s->buffer);
    set(g, s->source, s->buffer);
    if (along) if_end(g, &run);
    gen_widen_source(g, a);
}

/* Results that are no run of memory. */
static void scatter_tile(emitter *g, const tile *t, const loop_instr *store) {
    int a = (int)store->p.imm.i;
    bool converts = gen_converts_out(g, store);
    if (converts) gen_convert_out(g, store, g->access[a].buffer);
    move_tile(g, t, a, converts ? g->access[a].buffer : gen_results_of(g, store));
}

static void tile_out(emitter *g, const tile *t, const loop_instr *store) {
    int a = (int)store->p.imm.i;
    if (g->k->access[a].step[t->column] != STEP_ONE) {
        scatter_tile(g, t, store);
        return;
    }
    gen_if run = if_begin(g, one_run(g, t, a));
    if (gen_converts_out(g, store)) gen_convert_out(g, store, rv(g->access[a].base));
    else copy_run(g, a, gen_results_of(g, store));
    if_else(g, &run);
    scatter_tile(g, t, store);
    if_end(g, &run);
}

/* All of a tile whose bases are set. Its length is not rounded up: where a strip is as long as a
 * tile is, the end of a loop is little of it. */
static void whole_tile(emitter *g, const tile *t) {
    set(g, g->n, mul(g, t->rows, t->columns));
    set(g, g->trip, rv(g->n));
    for (int a = 0; a < g->k->naccesses; a++) {
        bool along = g->k->access[a].step[t->column] == STEP_ONE;
        if (!g->access[a].used[t->stage]) continue;
        if (g->k->access[a].store) set_target(g, a, along ? one_run(g, t, a) : NULL);
        else if (gen_uniform_load(g, t->stage, a)) source_uniform(g, a);
        else tile_source(g, t, a);
    }
    gen_strip(g, t->stage);
    for (int v = 0; v < g->k->ncode; v++)
        if (g->k->code[v].kind == LOOP_STORE && g->k->code[v].stage == t->stage)
            tile_out(g, t, &g->k->code[v]);
}

/* ---- the odd stage behind the sweep, for one element ---- */

static void finish_element(emitter *g, val element) {
    int stage = g->sweep + 1;
    g->scalar = true;
    gen_results(g);
    set_bases(g, stage, -1, NULL);
    set(g, g->index0, element);
    set(g, g->n, num(g, 1)), set(g, g->trip, num(g, 1));
    set_sources(g, stage, -1);
    gen_strip(g, stage);
    if (stage < etch__loop_last_stage(g->k)) gen_keep_for_row(g, stage);
    g->scalar = g->k->split == SPLIT_FINISH;
}

/* ---- MAP ---- */

static val strips_of(emitter *g, val inner) {
    val s = rv(keep(g, g->t_long, rounded_up(g, inner, STRIP), "strips"));
    return choose(g, g->t_long, cmp(g, GCC_JIT_COMPARISON_LT, s, num(g, 1)), num(g, 1), s);
}

static void widen_row(emitter *g, int a) {
    gen_access *s = &g->access[a];
    source_contiguous(g, a);
    gen_loop l = for_begin(g, num(g, 0), rv(g->trip), 1, "j");
    val e = rv(keep(g, g->storage[ETCH_BF16], rv(elem(g, rv(s->source), rv(l.i))), "e"));
    set(g, elem(g, s->wide, rv(l.i)), gen_load(g, ETCH_BF16, e));
    for_end(g, &l);
}

/* Of the strip that begins at element `first` of the row, unless they are there. */
static void widen_rows(emitter *g, val first) {
    val other = either(g, cmp(g, GCC_JIT_COMPARISON_NE, first, rv(g->kept_first)),
                       cmp(g, GCC_JIT_COMPARISON_NE, rv(g->n), rv(g->kept_n)));
    gen_if i = if_begin(g, other);
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->access[a].kept) widen_row(g, a);
    set(g, g->kept_first, first);
    set(g, g->kept_n, rv(g->n));
    if_end(g, &i);
}

static bool keeps_rows(const emitter *g) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->access[a].kept) return true;
    return false;
}

/* From strip number `strip` on, to strip `stop` at most. */
static void map_strip(emitter *g, val row, val strip, val stop, val inner) {
    int x = g->k->npar - 1;
    val first = rv(keep(g, g->t_long, mul(g, strip, num(g, STRIP)), "first"));
    val end = min_of(g, inner, mul(g, stop, num(g, STRIP)));
    set_length(g, min_of(g, sub(g, end, first), num(g, g->width)));
    set_bases(g, 0, x, first);
    set(g, g->index0, add(g, mul(g, row, inner), first));
    if (keeps_rows(g)) widen_rows(g, first);
    set_sources(g, 0, x);
    val whole = cmp(g, GCC_JIT_COMPARISON_EQ, rv(g->n), rv(g->trip));
    for (int a = 0; a < g->k->naccesses; a++)
        if (used(g, a) && g->k->access[a].store)
            set_target(g, a, x >= 0 && g->k->access[a].step[x] == STEP_ONE ? whole : NULL);
    gen_strip(g, 0);
    copy_all_out(g, 0, x);
}

/* An access that is contiguous from row to row but not along the strip: neighbouring rows use the
 * same cache lines, so several rows are taken together, strip by strip. */
static bool rows_share_lines(const emitter *g) {
    int inner = g->k->npar - 1;
    for (int a = 0; inner > 0 && a < g->k->naccesses; a++)
        if (used(g, a) && g->k->access[a].step[inner] == STEP_VAR &&
            g->k->access[a].step[inner - 1] == STEP_ONE)
            return true;
    return false;
}

enum { ROWS_TOGETHER = 16 };

static void map_row_strip(emitter *g, val row, val strip, val stop, val inner, int outer) {
    val index[LOOP_MAX_AXES];
    decompose(g, row, 0, outer, index);
    set_units(g, outer, index);
    map_strip(g, row, strip, stop, inner);
}

/* Strips [s, stop) of rows [row, row + rows). */
static void map_rows(emitter *g, val row, val rows, val s, val stop, val inner, int outer) {
    val index[LOOP_MAX_AXES];
    if (!rows) {
        decompose(g, row, 0, outer, index);
        set_units(g, outer, index);
    }
    gen_loop t = for_begin(g, s, stop, g->width / STRIP, "t");
    if (rows) {
        gen_loop r = for_begin(g, num(g, 0), rows, 1, "r");
        val at = rv(keep(g, g->t_long, add(g, row, rv(r.i)), "at"));
        map_row_strip(g, at, rv(t.i), stop, inner, outer);
        for_end(g, &r);
    } else {
        map_strip(g, row, rv(t.i), stop, inner);
    }
    for_end(g, &t);
}

/* How many whole rows the units [u, end) hold, 1 to ROWS_TOGETHER; 1 in the middle of a row. */
static val rows_ahead(emitter *g, val left, val strips, val s) {
    val whole = min_of(g, quot(g, left, strips), num(g, ROWS_TOGETHER));
    val several = both(g, cmp(g, GCC_JIT_COMPARISON_EQ, s, num(g, 0)),
                       cmp(g, GCC_JIT_COMPARISON_GT, whole, num(g, 1)));
    return choose(g, g->t_long, several, whole, num(g, 1));
}

static val most_of(emitter *g, val a, val b) { /* of longs */
    return choose(g, g->t_long, cmp(g, GCC_JIT_COMPARISON_LT, a, b), b, a);
}

static val kept(emitter *g, val v, const char *name) { return rv(keep(g, g->t_long, v, name)); }

/* Tile number `down` of those below one another, `across` of those beside one another. */
static void map_tile(emitter *g, val rest, val down, val across, val rows, val columns) {
    int x = g->k->npar - 1, y = x - 1;
    val index[LOOP_MAX_AXES], first = kept(g, mul(g, across, columns), "first");
    decompose(g, rest, 0, y, index);
    index[y] = kept(g, mul(g, down, rows), "row");
    set_units(g, x, index);
    set_bases(g, 0, x, first);
    val row = add(g, mul(g, rest, g->extent[y]), index[y]);
    set(g, g->index0, add(g, mul(g, row, g->extent[x]), first));
    tile t = {0, y, x, min_of(g, rows, sub(g, g->extent[y], index[y])),
              min_of(g, columns, sub(g, g->extent[x], first))};
    whole_tile(g, &t);
}

/* As etch__loop_tile has it. */
static val most_columns(emitter *g) {
    if (g->k->tile != TILE_TURNED) return num(g, g->width);
    val outer = most_of(g, g->extent[g->k->npar - 2], num(g, 1));
    val room = kept(g, quot(g, num(g, g->width), outer), "room");
    val fewest = num(g, etch__loop_turned_columns(g->k));
    return kept(g, min_of(g, most_of(g, room, fewest), num(g, TILE_COLUMNS)), "most");
}

static void gen_map_tiles(emitter *g) {
    int x = g->k->npar - 1, y = x - 1;
    val columns = min_of(g, most_of(g, g->extent[x], num(g, 1)), most_columns(g));
    columns = kept(g, columns, "columns");
    val rows = kept(g, quot(g, num(g, g->width), columns), "rows");
    val across = quot(g, sub(g, add(g, g->extent[x], columns), num(g, 1)), columns);
    val down = quot(g, sub(g, add(g, g->extent[y], rows), num(g, 1)), rows);
    across = kept(g, across, "across"), down = kept(g, down, "down");
    g->index_step = num(g, 1);
    gen_loop u = for_begin(g, g->begin, g->end, 1, "u");
    val left = kept(g, quot(g, rv(u.i), across), "left");
    val rest = kept(g, quot(g, left, down), "rest");
    map_tile(g, rest, kept(g, rem(g, left, down), "down"), kept(g, rem(g, rv(u.i), across), "at"),
             rows, columns);
    for_end(g, &u);
}

static void gen_map(emitter *g) {
    int outer = g->k->npar > 0 ? g->k->npar - 1 : 0;
    val inner = g->k->npar ? g->extent[outer] : num(g, 1);
    val strips = strips_of(g, inner);
    var u = keep(g, g->t_long, g->begin, "u");
    var row = keep(g, g->t_long, quot(g, rv(u), strips), "row");
    var s = keep(g, g->t_long, rem(g, rv(u), strips), "s");
    g->index_step = num(g, 1);
    if (keeps_rows(g)) {
        g->kept_first = keep(g, g->t_long, num(g, -1), "kept_first");
        g->kept_n = keep(g, g->t_long, num(g, 0), "kept_n");
    }
    gen_loop l = while_begin(g);
    while_test(g, &l, cmp(g, GCC_JIT_COMPARISON_LT, rv(u), g->end));
    val left = rv(keep(g, g->t_long, sub(g, g->end, rv(u)), "left"));
    val rows = rows_share_lines(g) ? rows_ahead(g, left, strips, rv(s)) : NULL;
    val stop = min_of(g, strips, add(g, rv(s), left));
    map_rows(g, rv(row), rows, rv(s), stop, inner, outer);
    val done = sub(g, stop, rv(s));
    set(g, u, add(g, rv(u), rows ? mul(g, done, rows) : done));
    set(g, row, add(g, rv(row), rows ? rows : num(g, 1)));
    set(g, s, num(g, 0));
    for_end(g, &l);
}

/* ---- ROW ---- */

/* Several reduced axes: a strip of consecutive logical indices may lie in several rows of the
 * innermost one. Walks its pieces: body(g, position in the strip, length), bases set to the piece.
 */
static void for_pieces(emitter *g, val r, void (*body)(emitter *, val, val)) {
    int last = naxes(g) - 1;
    val index[LOOP_MAX_AXES];
    var row = keep(g, g->t_long, quot(g, r, g->extent[last]), "row");
    var c = keep(g, g->t_long, rem(g, r, g->extent[last]), "c");
    var pos = keep(g, g->t_long, num(g, 0), "pos");
    gen_loop l = while_begin(g);
    while_test(g, &l, cmp(g, GCC_JIT_COMPARISON_LT, rv(pos), rv(g->n)));
    val len = min_of(g, sub(g, rv(g->n), rv(pos)), sub(g, g->extent[last], rv(c)));
    decompose(g, rv(row), g->k->npar, last, index);
    index[last] = rv(c);
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->access[a].used[g->sweep])
            move(g, g->access[a].base, rv(g->access[a].unit),
                 offset_over(g, a, g->k->npar, last + 1, index));
    body(g, rv(pos), len);
    set(g, pos, add(g, rv(pos), len));
    set(g, row, add(g, rv(row), num(g, 1)));
    set(g, c, num(g, 0));
    for_end(g, &l);
}

static val last_stride(emitter *g, int a) {
    val s = g->access[a].stride[naxes(g) - 1];
    return s ? s : num(g, 0);
}

static void gather_piece(emitter *g, val pos, val len) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->access[a].used[g->sweep] && !g->k->access[a].store &&
            !gen_uniform_load(g, g->sweep, a))
            gather(g, a, pos, rv(g->access[a].base), len, last_stride(g, a));
}

static void scatter_piece(emitter *g, val pos, val len) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (i->kind != LOOP_STORE || i->stage != g->sweep) continue;
        int a = (int)i->p.imm.i;
        val results = gen_converts_out(g, i) ? g->access[a].buffer : gen_results_of(g, i);
        scatter(g, results, pos, rv(g->access[a].base), len, last_stride(g, a));
    }
}

static void pad_all(emitter *g) {
    for (int a = 0; a < g->k->naccesses; a++) {
        gen_access *s = &g->access[a];
        if (!s->used[g->sweep] || g->k->access[a].store) continue;
        if (gen_uniform_load(g, g->sweep, a)) {
            set(g, s->base, rv(s->unit));
            source_uniform(g, a);
        } else {
            pad(g, a);
            set(g, s->source, s->buffer);
            gen_widen_source(g, a);
        }
    }
}

static void convert_all(emitter *g) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (i->kind == LOOP_STORE && i->stage == g->sweep && gen_converts_out(g, i))
            gen_convert_out(g, i, g->access[i->p.imm.i].buffer);
    }
}

static bool stores_in_sweep(const emitter *g) {
    for (int v = 0; v < g->k->ncode; v++)
        if (g->k->code[v].kind == LOOP_STORE && g->k->code[v].stage == g->sweep) return true;
    return false;
}

static void row_strip(emitter *g, val r) {
    int last = naxes(g) - 1;
    if (g->k->nred == 1) {
        set_bases(g, g->sweep, last, r);
        set_sources(g, g->sweep, last);
    } else {
        for_pieces(g, r, gather_piece);
        pad_all(g);
    }
    gen_strip(g, g->sweep);
    gen_lanes_add_strip(g);
    if (g->k->nred == 1) {
        copy_all_out(g, g->sweep, last);
    } else if (stores_in_sweep(g)) {
        convert_all(g);
        for_pieces(g, r, scatter_piece);
    }
}

static val block_end(emitter *g, val block) {
    return min_of(g, mul(g, add(g, block, num(g, 1)), num(g, REDUCE_BLOCK)), g->reduced);
}

static void row_strips(emitter *g, val element, val first, val stop) {
    gen_loop l = for_begin(g, first, stop, g->width, "r");
    set_length(g, min_of(g, sub(g, stop, rv(l.i)), num(g, g->width)));
    set(g, g->index0, add(g, mul(g, element, g->reduced), rv(l.i)));
    gen_place_in_row(g, rv(l.i));
    row_strip(g, rv(l.i));
    for_end(g, &l);
}

/* Whether the sweep does nothing but find the largest or smallest of runs of memory. */
static bool reduces_memory(const emitter *g) {
    if (g->k->nred != 1 || stores_in_sweep(g)) return false;
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (i->kind == LOOP_REDUCE && i->stage == g->sweep + 1 && !gen_reduces_memory(g, i))
            return false;
    }
    return true;
}

static void row_block(emitter *g, val element, val block) {
    val first = mul(g, block, num(g, REDUCE_BLOCK)), stop = block_end(g, block);
    gen_lanes_reset(g);
    if (reduces_memory(g)) {
        set_bases(g, g->sweep, naxes(g) - 1, first);
        gen_lanes_add_memory(g, sub(g, stop, first));
    } else {
        row_strips(g, element, first, stop);
    }
    gen_lanes_fold(g);
}

/* A sweep with the odd stage behind it. */
static void row_reduce(emitter *g, val element) {
    var top = gen_stack_begin(g);
    gen_loop b = for_begin(g, num(g, 0), g->blocks, 1, "block");
    row_block(g, element, rv(b.i));
    gen_stack_push(g, top, rv(b.i));
    for_end(g, &b);
    gen_stack_finish(g, top);
    finish_element(g, element);
}

static void row_sweeps(emitter *g, val element) {
    int last = etch__loop_last_stage(g->k);
    for (g->sweep = 0; g->sweep < last; g->sweep += 2) row_reduce(g, element);
    if (g->sweep == last) row_strips(g, element, num(g, 0), g->reduced);
    g->sweep = 0;
}

static void gen_row(emitter *g) {
    val index[LOOP_MAX_AXES];
    bool partial = g->k->split == SPLIT_PARTIAL;
    gen_loop u = for_begin(g, g->begin, g->end, 1, "u");
    val p = partial ? quot(g, rv(u.i), g->blocks) : rv(u.i);
    p = rv(keep(g, g->t_long, p, "element"));
    decompose(g, p, 0, g->k->npar, index);
    set_units(g, g->k->npar, index);
    g->index_step = num(g, 1);
    if (partial) {
        val block = rv(keep(g, g->t_long, rem(g, rv(u.i), g->blocks), "block"));
        row_block(g, p, block);
        gen_scratch_write(g, p, block);
    } else {
        row_sweeps(g, p);
    }
    for_end(g, &u);
}

/* ---- COLUMN ---- */

typedef struct column_part {
    val element; /* parallel number of its first column */
    val column;
} column_part;

/* Bases at reduced element r of the part's first column, and the lane of r. */
static void move_to(emitter *g, const column_part *c, val r) {
    int x = g->k->npar - 1, last = naxes(g);
    val index[LOOP_MAX_AXES];
    decompose(g, r, g->k->npar, last, index);
    for (int a = 0; a < g->k->naccesses; a++) {
        gen_access *s = &g->access[a];
        if (!s->used[0]) continue;
        val offset = offset_over(g, a, g->k->npar, last, index);
        val along = g->k->access[a].step[x] == STEP_ZERO ? NULL : mul(g, c->column, s->stride[x]);
        if (offset && along) offset = add(g, offset, along);
        move(g, s->base, rv(s->unit), offset ? offset : along);
    }
    val lane = op(g, GCC_JIT_BINARY_OP_BITWISE_AND, g->t_long, r, num(g, REDUCE_LANES - 1));
    set(g, g->lane, mul(g, lane, g->pitch));
}

static void column_row(emitter *g, const column_part *c, val r) {
    int x = g->k->npar - 1;
    move_to(g, c, r);
    set(g, g->index0, add(g, mul(g, c->element, g->reduced), r));
    g->index_step = g->reduced;
    set_sources(g, 0, x);
    gen_strip(g, 0);
    copy_all_out(g, 0, x);
}

/* Reduced elements [r, r + rows) of all columns, each its own lane. */
static void column_tile(emitter *g, const column_part *c, val r, val rows) {
    move_to(g, c, r);
    tile t = {0, naxes(g) - 1, g->k->npar - 1, rows, g->pitch};
    whole_tile(g, &t);
}

/* Tiles of as many rows as there is room for, up to the end of the innermost axis and of the lanes.
 */
static void column_tiles(emitter *g, const column_part *c, val first, val end) {
    val room = quot(g, num(g, g->width), g->pitch);
    room = min_of(g, room, num(g, REDUCE_LANES));
    var r = keep(g, g->t_long, first, "r");
    gen_loop l = while_begin(g);
    while_test(g, &l, cmp(g, GCC_JIT_COMPARISON_LT, rv(r), end));
    val inner = g->extent[naxes(g) - 1];
    val lane = op(g, GCC_JIT_BINARY_OP_BITWISE_AND, g->t_long, rv(r), num(g, REDUCE_LANES - 1));
    val rows = min_of(g, sub(g, end, rv(r)), room);
    rows = min_of(g, rows, sub(g, num(g, REDUCE_LANES), lane));
    rows = min_of(g, rows, sub(g, inner, rem(g, rv(r), inner)));
    column_tile(g, c, rv(r), rows);
    set(g, r, add(g, rv(r), rows));
    for_end(g, &l);
}

static void column_block(emitter *g, const column_part *c, val block) {
    val first = rv(keep(g, g->t_long, mul(g, block, num(g, REDUCE_BLOCK)), "first"));
    val end = rv(keep(g, g->t_long, block_end(g, block), "end"));
    val lanes = min_of(g, sub(g, end, first), num(g, REDUCE_LANES));
    val none = cmp(g, GCC_JIT_COMPARISON_LT, lanes, num(g, 1));
    g->used = rv(keep(g, g->t_long, choose(g, g->t_long, none, num(g, 1), lanes), "used"));
    gen_lanes_reset(g);
    if (g->k->tile) {
        column_tiles(g, c, first, end);
    } else {
        gen_loop l = for_begin(g, first, end, 1, "r");
        column_row(g, c, rv(l.i));
        for_end(g, &l);
    }
    gen_lanes_fold(g);
}

static void finish_columns(emitter *g, const column_part *c) {
    int x = g->k->npar - 1;
    gen_results(g);
    set_bases(g, 1, x, c->column);
    if (g->k->tile) set_length(g, g->pitch);
    set(g, g->index0, c->element);
    g->index_step = num(g, 1);
    set_sources(g, 1, x);
    gen_strip(g, 1);
    copy_all_out(g, 1, x);
}

static void column_unit(emitter *g, const column_part *c, val block) {
    if (block) {
        column_block(g, c, block);
        gen_scratch_write(g, c->element, block);
        return;
    }
    var top = gen_stack_begin(g);
    gen_loop b = for_begin(g, num(g, 0), g->blocks, 1, "block");
    column_block(g, c, rv(b.i));
    gen_stack_push(g, top, rv(b.i));
    for_end(g, &b);
    gen_stack_finish(g, top);
    finish_columns(g, c);
}

/* Of tiles as many as leave room for all that is reduced, if that is little. */
static val part_of_columns(emitter *g) {
    if (!g->k->tile) return num(g, g->width);
    val most = quot(g, num(g, g->width), most_of(g, g->reduced, num(g, 1)));
    most = min_of(g, most_of(g, most, num(g, TILE_COLUMNS)), num(g, STRIP));
    return rv(keep(g, g->t_long, most, "part"));
}

static void gen_column(emitter *g) {
    int outer = g->k->npar - 1;
    g->part = part_of_columns(g);
    bool partial = g->k->split == SPLIT_PARTIAL;
    val inner = g->extent[outer], strips = strips_of(g, inner), index[LOOP_MAX_AXES], block = NULL;
    gen_loop u = for_begin(g, g->begin, g->end, 1, "u");
    var v = keep(g, g->t_long, rv(u.i), "v");
    if (partial) {
        block = rv(keep(g, g->t_long, rem(g, rv(v), g->blocks), "block"));
        set(g, v, quot(g, rv(v), g->blocks));
    }
    val row = rv(keep(g, g->t_long, quot(g, rv(v), strips), "row"));
    val first = mul(g, rem(g, rv(v), strips), num(g, STRIP));
    first = rv(keep(g, g->t_long, first, "first"));
    decompose(g, row, 0, outer, index);
    set_units(g, outer, index);
    val stop = min_of(g, add(g, first, num(g, STRIP)), inner);
    gen_loop c = for_begin(g, first, stop, 1, "c");
    c.step = g->part;
    set_length(g, min_of(g, sub(g, stop, rv(c.i)), g->part));
    g->pitch = g->k->tile ? rv(keep(g, g->t_long, rv(g->n), "pitch")) : num(g, g->width);
    column_part part = {add(g, mul(g, row, inner), rv(c.i)), rv(c.i)};
    part.element = rv(keep(g, g->t_long, part.element, "element"));
    column_unit(g, &part, block);
    for_end(g, &c);
    for_end(g, &u);
}

/* ---- FINISH ---- */

static void gen_finish(emitter *g) {
    val index[LOOP_MAX_AXES];
    gen_loop u = for_begin(g, g->begin, g->end, 1, "u");
    decompose(g, rv(u.i), 0, g->k->npar, index);
    set_units(g, g->k->npar, index);
    gen_scratch_fold(g, rv(u.i));
    finish_element(g, rv(u.i));
    for_end(g, &u);
}

/* ---- the function ---- */

/* The lanes of all reductions of COLUMN together should lie in the first-level cache. */
static int column_width(const emitter *g) {
    int bytes = 0;
    for (int v = 0; v < g->k->ncode; v++)
        if (g->k->code[v].kind == LOOP_REDUCE)
            bytes += REDUCE_LANES * size_of(g->k->code[v].p.type);
    return bytes * 128 <= 32768 ? 128 : 64;
}

static void new_function(emitter *g, const char *symbol) {
    type p_void = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_VOID_PTR);
    type t[5] = {gcc_jit_type_get_pointer(p_void), gcc_jit_type_get_pointer(g->t_long),
                 gcc_jit_type_get_pointer(g->t_u64), g->t_long, g->t_long};
    static const char *const names[5] = {"args", "dims", "scalars", "begin", "end"};
    gcc_jit_param *p[5];
    for (int n = 0; n < 5; n++) p[n] = gcc_jit_context_new_param(g->c, NULL, t[n], names[n]);
    g->fn = gcc_jit_context_new_function(g->c, NULL, GCC_JIT_FUNCTION_EXPORTED, g->t_void, symbol,
                                         5, p, 0);
    val *to[5] = {&g->args, &g->dims, &g->scalars, &g->begin, &g->end};
    for (int n = 0; n < 5; n++) *to[n] = gcc_jit_param_as_rvalue(p[n]);
    g->at = gcc_jit_function_new_block(g->fn, "entry");
}

void gen_kernel(emitter *g, const char *symbol) {
    gen_types(g);
    new_function(g, symbol);
    g->scalar = g->k->split == SPLIT_FINISH;
    bool column = g->k->variant == LOOP_COLUMN, wide = g->k->variant == LOOP_MAP || g->k->tile;
    g->cells = !column ? 1 : g->k->tile ? TILE_COLUMNS : column_width(g);
    g->width = wide ? etch__loop_width(g->k) : column ? g->cells : STRIP;
    g->n = gen_local(g, g->t_long, "n"), g->trip = gen_local(g, g->t_long, "trip");
    g->index0 = gen_local(g, g->t_long, "index0"), g->lane = gen_local(g, g->t_long, "lane_at");
    mark_used(g);
    read_dims(g);
    read_sizes(g);
    new_accesses(g);
    set_uniforms(g);
    gen_plan_values(g);
    gen_plan_nans(g);
    gen_reductions(g);
    if (g->k->split == SPLIT_FINISH) gen_finish(g);
    else if (g->k->variant == LOOP_MAP && g->k->tile) gen_map_tiles(g);
    else if (g->k->variant == LOOP_MAP) gen_map(g);
    else if (g->k->variant == LOOP_ROW) gen_row(g);
    else gen_column(g);
    gcc_jit_block_end_with_void_return(g->at, NULL);
}
