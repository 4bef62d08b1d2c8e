/* Rows that are gone over again. A block has a row: what its threads reduce lies in shared memory,
 * piece by piece, where the lanes take it in order; the row may stay in registers. Or a team of
 * threads has one, of which each adds the lanes of its own elements: rows that are short enough to
 * stay in registers. */
#include "jit/cuda/cuda_gen.h"

/* ---- what lies in shared memory, what in registers ---- */

/* Elements whose values lie in shared memory together. */
static int piece_of(const cuda_gen *g) { return g->l.threads * g->l.vector * g->l.depth; }

/* Words that the reductions behind the stage need; at: per reduction its first. */
static int words_of_stage(cuda_gen *g, int *at) {
    int words = 0;
    FOR_REDUCTIONS(v) {
        if (at) at[v] = words;
        words += piece_of(g) * (int)etch_dtype_size(g->k->code[v].p.type) / 8;
    }
    return words;
}

static int shared_words(cuda_gen *g) {
    int most = 1, last = etch__loop_last_stage(g->k);
    for (g->stage = 0; g->stage <= last; g->stage += 2) {
        int words = words_of_stage(g, NULL);
        if (words > most) most = words;
    }
    return most;
}

enum { HELD_BYTES = 256 };

/* What of a row stays in registers, by the stage that comes first. */
static void choose_held(cuda_gen *g) {
    int bytes = 0;
    for (int s = 0; g->l.hold && s < LOOP_STAGES; s += 2)
        for (int a = 0; a < g->k->naccesses; a++) {
            int size = (int)etch_dtype_size(dtype_of(g, a));
            int more = g->l.hold * g->l.vector * (size < 4 && !g->v->warps ? 4 : size);
            if (g->held[a] || !loaded(g, a, s) || etch__cuda_same_in_row(g, a)) continue;
            if (bytes + more > HELD_BYTES) continue;
            bytes += more, g->held[a] = s + 1;
        }
}

/* Whether a row may end within what its threads take at once. */
static bool checked(const cuda_gen *g) { return g->v->even != EVEN_BLOCKS; }

/* ---- a sweep that reduces ---- */

/* The chunks of the piece that begins at `base`, each thread's. */
static void piece_chunks(cuda_gen *g) {
    chunk c = {g->l.vector, g->l.depth, checked(g)};
    bool guard = c.depth == 1 && c.checked;
    etch__cuda_line(g, "const idx at = base + t * %d;", g->l.vector);
    if (guard) etch__cuda_line(g, "if (at < stop) {");
    etch__cuda_chunk_code(g, &c);
    if (guard) etch__cuda_close(g);
}

static void add_piece(cuda_gen *g) {
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_line(g, "if (t < %d) {", REDUCE_LANES);
    if (!checked(g)) etch__cuda_line(g, "const int n = t + %d;", piece_of(g));
    else
        etch__cuda_line(g, "const int n = stop - base < %d ? (int)(stop - base) : %d;", piece_of(g),
                        piece_of(g));
    etch__cuda_line(g, "#pragma unroll 8");
    etch__cuda_line(g, "for (int e = t; e < n; e += %d) {", REDUCE_LANES);
    FOR_REDUCTIONS(v) {
        cuda_name lane = etch__cuda_text("lane%d[0]", v), x = etch__cuda_text("vals%d[e]", v);
        etch__cuda_put_combine(g, v, lane.s, lane.s, x.s);
    }
    etch__cuda_close(g), etch__cuda_close(g);
}

/* The upper lanes come through shared memory, each in the place that its own thread read. */
static void fold_block_lanes(cuda_gen *g) {
    int half = REDUCE_LANES / 2;
    etch__cuda_line(g, "if (t >= %d && t < %d) {", half, REDUCE_LANES);
    FOR_REDUCTIONS(v) etch__cuda_line(g, "vals%d[t] = lane%d[0];", v, v);
    etch__cuda_close(g);
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_line(g, "if (t < %d) {", half);
    FOR_REDUCTIONS(v) {
        cuda_name lane = etch__cuda_text("lane%d[0]", v),
                  x = etch__cuda_text("vals%d[t + %d]", v, half);
        etch__cuda_put_combine(g, v, lane.s, lane.s, x.s);
        etch__cuda_line(g, "#pragma unroll");
        etch__cuda_line(g, "for (int w = %d; w >= 1; w /= 2) {", half / 2);
        etch__cuda_line(g, "const %s x = lane%d[0], y = down(x, w, 32);", type_of(g, v), v);
        etch__cuda_put_combine(g, v, lane.s, "x", "y");
        etch__cuda_close(g);
    }
    etch__cuda_close(g);
}

/* One block of the canonical order in one piece. */
static void reduce_held(cuda_gen *g) {
    etch__cuda_begin_lanes(g, 1);
    etch__cuda_line(g, "const idx base = 0%s;", checked(g) ? ", stop = reduced" : "");
    piece_chunks(g);
    add_piece(g);
    fold_block_lanes(g);
    etch__cuda_line(g, "if (t == 0) {");
    FOR_REDUCTIONS(v) etch__cuda_line(g, "vals%d[0] = lane%d[0];", v, v);
    etch__cuda_close(g);
}

static void reduce_blocks(cuda_gen *g) {
    etch__cuda_begin_stack(g);
    etch__cuda_line(g, "for (idx block = 0; block < blocks; block++) {");
    etch__cuda_begin_lanes(g, 1);
    etch__cuda_line(g, "const idx past = (block + 1) * %d, stop = past < reduced ? past : reduced;",
                    REDUCE_BLOCK);
    etch__cuda_line(g, "for (idx base = block * %d; base < stop; base += %d) {", REDUCE_BLOCK,
                    piece_of(g));
    piece_chunks(g);
    add_piece(g);
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_close(g);
    fold_block_lanes(g);
    etch__cuda_line(g, "if (t == 0) {");
    etch__cuda_push_leaf(g, "block");
    etch__cuda_close(g);
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_close(g);
    etch__cuda_line(g, "if (t == 0) {");
    etch__cuda_finish_stack(g);
    FOR_REDUCTIONS(v) etch__cuda_line(g, "vals%d[0] = stack%d[0];", v, v);
    etch__cuda_close(g);
}

/* The odd stage at hand, by all threads; the first one stores. */
static void row_code(cuda_gen *g) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (loaded(g, a, g->stage))
            etch__cuda_line(g, "const %s x%d = *q%d;", storage_of(g, a), a, a);
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        int a = (int)i->p.imm.i;
        if (!g->runs[v] || i->kind == LOOP_REDUCE || etch__loop_uniform(i) || !g->needed[v])
            continue;
        if (i->kind == LOOP_LOAD) etch__cuda_put_load(g, v, etch__cuda_text("x%d", a).s);
        else if (i->kind == LOOP_PRIM) etch__cuda_put_prim(g, v, "row");
        else {
            etch__cuda_line(g, g->v->warps && checked(g) ? "if (live && t == 0)" : "if (t == 0)");
            etch__cuda_put_store(g, i, etch__cuda_text("*q%d", a).s);
        }
    }
}

/* An even stage of a team, whose first thread has the results in the end. */
static void reduce_by_team(cuda_gen *g) {
    chunk c = {g->l.vector, g->l.depth, checked(g)};
    bool guard = c.depth == 1 && c.checked;
    etch__cuda_begin_lanes(g, c.vector);
    etch__cuda_line(g, guard ? "if (at < stop) {" : "{");
    etch__cuda_chunk_code(g, &c);
    etch__cuda_close(g);
    etch__cuda_fold_row_lanes(g);
    FOR_REDUCTIONS(v)
    etch__cuda_line(g, "const %s v%d = of_first(lane%d[0], %d);", type_of(g, v), v, v, g->l.team);
}

static void reduce_by_block(cuda_gen *g) {
    int at[LOOP_MAX_CODE];
    words_of_stage(g, at);
    FOR_REDUCTIONS(v)
    etch__cuda_line(g, "%s *const vals%d = (%s *)(shared + %d);", type_of(g, v), v, type_of(g, v),
                    at[v]);
    etch__cuda_line(g, "{");
    if (g->l.hold) reduce_held(g);
    else reduce_blocks(g);
    etch__cuda_close(g);
    etch__cuda_line(g, "__syncthreads();");
    FOR_REDUCTIONS(v) etch__cuda_line(g, "const %s v%d = vals%d[0];", type_of(g, v), v, v);
    etch__cuda_line(g, "__syncthreads();");
}

/* An even stage with the odd one behind it. */
static void reduce_sweep(cuda_gen *g, int stage) {
    etch__cuda_enter_stage(g, stage);
    if (g->v->warps) reduce_by_team(g);
    else reduce_by_block(g);
    etch__cuda_enter_stage(g, stage + 1);
    row_code(g);
}

/* ---- the last sweep, and all of them ---- */

enum { LAST_DEPTH = 4 };

/* The last stage, of elements. */
static void last_sweep(cuda_gen *g, int stage) {
    chunk c = {g->l.vector, g->l.hold ? g->l.hold : LAST_DEPTH, checked(g)};
    bool guard = c.depth == 1 && c.checked;
    etch__cuda_enter_stage(g, stage);
    if (c.checked && !g->v->warps) etch__cuda_line(g, "const idx stop = reduced;");
    if (g->l.hold) etch__cuda_line(g, "{");
    if (g->v->warps) etch__cuda_line(g, "%s", "");
    else if (g->l.hold) etch__cuda_line(g, "const idx at = t * %d;", c.vector);
    else
        etch__cuda_line(g, "for (idx at = t * %d; at < stop; at += %d) {", c.vector,
                        c.depth * g->l.threads * c.vector);
    if (guard) etch__cuda_line(g, "if (at < stop) {");
    etch__cuda_chunk_code(g, &c);
    if (guard) etch__cuda_close(g);
    etch__cuda_close(g);
}

static bool loads_once(const cuda_gen *g) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (etch__cuda_loaded_once(g, a)) return true;
    return false;
}

/* The threads of a row, and the loop over rows. A team behind the last row looks at that one, but
 * takes no elements and stores nothing. */
static void begin_teams(cuda_gen *g) {
    etch__cuda_line(g, "const int t = threadIdx.x %% %d, team = threadIdx.x / %d;", g->l.team,
                    g->l.team);
    etch__cuda_line(g, "const idx at = t * %d;", g->l.vector);
    etch__cuda_line(g,
                    "for (idx first = (idx)blockIdx.x * %d; first < rows; "
                    "first += (idx)gridDim.x * %d) {",
                    g->l.teams, g->l.teams);
    if (checked(g)) {
        etch__cuda_line(g, "const bool live = first + team < rows;");
        etch__cuda_line(g, "const idx row = live ? first + team : rows - 1;");
        etch__cuda_line(g, "const idx stop = live ? reduced : 0;");
    } else {
        if (loads_once(g)) etch__cuda_line(g, "const bool live = true;");
        etch__cuda_line(g, "const idx row = first + team;");
    }
}

static void begin_blocks(cuda_gen *g) {
    etch__cuda_line(g, "alignas(16) __shared__ u64 shared[%d];", shared_words(g));
    etch__cuda_line(g, "const int t = threadIdx.x;");
    if (loads_once(g)) etch__cuda_line(g, "const bool live = true;");
    etch__cuda_line(g, "for (idx row = blockIdx.x; row < rows; row += gridDim.x) {");
}

void etch__cuda_sweeps(cuda_gen *g) {
    int last = etch__loop_last_stage(g->k), stage = 0;
    chunk held = {g->l.vector, g->l.depth, true};
    if (g->v->warps) begin_teams(g);
    else begin_blocks(g);
    etch__cuda_decompose(g, "row", 0, g->k->npar);
    etch__cuda_begin_row(g);
    choose_held(g);
    etch__cuda_declare_held(g, &held);
    for (; stage < last; stage += 2) reduce_sweep(g, stage);
    if (stage == last) last_sweep(g, stage);
    etch__cuda_close(g);
}
