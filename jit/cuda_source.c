/* Loop IR -> CUDA C.
 *
 *   MAP     a thread takes chunks: `vector` neighbours along the innermost axis
 *   ROW     a team of threads holds the 64 lanes of a row; for each block of 4096 elements it adds
 *           chunks to the lanes and folds them; block results fold by pairs as they come. Where
 *           rows are few, several teams take aligned ranges of a row's blocks and fold at the end
 *           Where a kernel goes over its rows again, a block has a row: what its threads reduce
 *           lies in shared memory, where the lanes take it in order; the row may stay in registers
 *   COLUMN  columns side by side, several neighbours a thread; the lanes of each column are spread
 *           over the warps of the block
 *   FINISH  as ROW, but what is folded are partial results, several a thread at a time
 *
 * All threads of a warp walk the same loops around shuffles and barriers;
 * those without work (`live`, `stop`) take part with values that nobody reads.
 *
 * The body is written first; of what stands before it (pointers, sizes, helper functions) only the
 * names that are mentioned are declared. Names: v3 value 3, n0 extent of axis 0, i0 index along it,
 * p2 access 2, s2_0 its stride along axis 0, q2 where it begins for the row, x2 elements loaded, y2
 * results, lane5 the lanes of reduction 5, stack5 its block results. */
#include "jit/cuda_gen.h"

enum { HEAD, NAMES, SIZES, UNIFORMS, BODY, PARTS };
_Static_assert((int)PARTS == (int)CUDA_PARTS, "the parts have names");

/* ---- MAP ---- */

static void map_vectors(gen *g) {
    int x = g->axis, n = g->l.vector;
    chunk whole = {n, 1, false}, one = {1, 1, false};
    etch__cuda_line(g, "const idx per_row = (n%d + %d) / %d;", x, n - 1, n);
    etch__cuda_line(g, "const idx units = %sper_row;", x > 0 ? "outer * " : "");
    etch__cuda_line(
        g,
        "for (idx u = (idx)blockIdx.x * %d + threadIdx.x; u < units; u += (idx)gridDim.x * %d) {",
        g->l.threads, g->l.threads);
    if (x > 0)
        etch__cuda_line(g, "const idx row = quot(u, per_row), first = (u - row * per_row) * %d;",
                        n);
    else etch__cuda_line(g, "const idx first = u * %d;", n);
    etch__cuda_decompose(g, "row", 0, x);
    etch__cuda_line(g, "if (first + %d <= n%d) {", n, x);
    etch__cuda_line(g, "const idx i%d = first;", x);
    if (etch__cuda_wants_index(g, 0))
        etch__cuda_line(
            g, x > 0 ? "const idx index = row * n%d + first;" : "const idx index = first;", x);
    etch__cuda_chunk_code(g, &whole);
    g->indent--;
    etch__cuda_line(g, "} else {");
    etch__cuda_line(g, "#pragma unroll 1");
    etch__cuda_line(g, "for (idx i%d = first; i%d < n%d; i%d++) {", x, x, x, x);
    if (etch__cuda_wants_index(g, 0))
        etch__cuda_line(g, x > 0 ? "const idx index = row * n%d + i%d;" : "const idx index = i%d;",
                        x, x);
    etch__cuda_chunk_code(g, &one);
    etch__cuda_close(g), etch__cuda_close(g), etch__cuda_close(g);
}

static void map_elements(gen *g) {
    chunk c = {1, g->l.depth, false};
    int step = g->l.threads * g->l.depth;
    const char *at = c.depth > 1 ? "at" : "index";
    etch__cuda_line(g, "const idx units = %s;", g->k->npar ? "rows" : "1");
    etch__cuda_line(
        g,
        "for (idx %s = (idx)blockIdx.x * %d + threadIdx.x; %s < units; %s += (idx)gridDim.x * %d) "
        "{",
        at, step, at, at, step);
    etch__cuda_chunk_code(g, &c);
    etch__cuda_close(g);
}

/* ---- rows: what a row has before its blocks ---- */

/* One element for the whole row. */
static bool loaded_once(const gen *g, int a) {
    return !g->k->access[a].store && etch__cuda_uses_any(g->k, a, false) &&
           etch__cuda_same_in_row(g, a);
}

/* Where accesses of the stages over elements, over rows, begin in the row
 * whose indices are there. */
static void row_places(gen *g, bool elements, bool rows) {
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!(elements && etch__cuda_uses_any(g->k, a, false)) &&
            !(rows && etch__cuda_uses_any(g->k, a, true)))
            continue;
        offset o = etch__cuda_offset_over(g, a, 0, g->k->npar);
        etch__cuda_line(g, "%s *const q%d = p%d%s%s;", storage_of(g, a), a, a, o.s[0] ? " + " : "",
                        o.s);
    }
}

/* Of the columns of the thread; where there is no such column it is no matter what. */
static void load_by_column(gen *g, int a) {
    const char *t = storage_of(g, a);
    bool vector = g->k->access[a].step[g->axis] == STEP_ONE;
    name type = etch__cuda_text("vec<%s, %d>", t, g->l.vector);
    etch__cuda_line(g, "%s x%d = {};", type.s, a);
    etch__cuda_line(g, "if (live)");
    if (vector) {
        etch__cuda_line(g, "    x%d = *(const %s *)q%d;", a, type.s, a);
        return;
    }
    etch__cuda_line(g, "    for (int j = 0; j < %d; j++) x%d.e[j] = q%d[j * s%d_%d];", g->l.vector,
                    a, a, a, g->axis);
}

static void load_once(gen *g) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (!loaded_once(g, a)) continue;
        else if (etch__cuda_by_column(g, a)) load_by_column(g, a);
        else
            etch__cuda_line(g, "const %s x%d = live ? *q%d : (%s)0;", storage_of(g, a), a, a,
                            storage_of(g, a));
}

static void begin_row(gen *g) {
    row_places(g, true, true);
    load_once(g);
}

static int levels(const gen *g) { return g->v->index_bits == 32 ? 20 : 52; }

static void begin_stack(gen *g) {
    FOR_REDUCTIONS(v) etch__cuda_line(g, "%s stack%d[%d];", type_of(g, v), v, levels(g));
    etch__cuda_line(g, "int top = 0;");
}

/* Swallows one entry of the stack for each trailing one bit of the leaf's number n. */
static void push(gen *g, const char *n) {
    etch__cuda_line(g, "for (idx b = %s; b & 1; b >>= 1) {", n);
    etch__cuda_line(g, "top--;");
    FOR_REDUCTIONS(v) {
        name lane = etch__cuda_text("lane%d[0]", v), entry = etch__cuda_text("stack%d[top]", v);
        etch__cuda_put_combine(g, v, lane.s, entry.s, lane.s);
    }
    etch__cuda_close(g);
    FOR_REDUCTIONS(v) etch__cuda_line(g, "stack%d[top] = lane%d[0];", v, v);
    etch__cuda_line(g, "top++;");
}

static void finish_stack(gen *g) {
    etch__cuda_line(g, "for (; top > 1; top--) {");
    FOR_REDUCTIONS(v) {
        name a = etch__cuda_text("stack%d[top - 2]", v), b = etch__cuda_text("stack%d[top - 1]", v);
        etch__cuda_put_combine(g, v, a.s, a.s, b.s);
    }
    etch__cuda_close(g);
}

static bool reads_value(const gen *g, int v) {
    for (int u = v + 1; u < g->k->ncode; u++) {
        const loop_instr *i = &g->k->code[u];
        for (int n = 0; g->needed[u] && n < etch__loop_arity(i); n++)
            if (etch__loop_operand(i, n) == v) return true;
    }
    return false;
}

/* Stage 1 for element `row`; the results are at the bottom of the stacks. */
static void finish_row(gen *g, const char *who) {
    etch__cuda_line(g, "if (%s) {", who);
    FOR_REDUCTIONS(v)
    if (reads_value(g, v)) etch__cuda_line(g, "const %s v%d = stack%d[0];", type_of(g, v), v, v);
    for (int a = 0; a < g->k->naccesses; a++)
        if (loaded(g, a, 1)) etch__cuda_line(g, "const %s x%d = *q%d;", storage_of(g, a), a, a);
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        int a = (int)i->p.imm.i;
        if (i->stage != 1 || i->kind == LOOP_REDUCE || etch__loop_uniform(i) || !g->needed[v])
            continue;
        if (i->kind == LOOP_LOAD) etch__cuda_put_load(g, v, etch__cuda_text("x%d", a).s);
        else if (i->kind == LOOP_STORE) etch__cuda_put_store(g, i, etch__cuda_text("*q%d", a).s);
        else etch__cuda_put_prim(g, v, "row");
    }
    etch__cuda_close(g);
}

static void write_cells(gen *g, const char *who) {
    int q = 0;
    etch__cuda_line(g, "if (%s) {", who);
    FOR_REDUCTIONS(v) {
        etch__cuda_margin(g);
        etch__cuda_put(g->t, "*(%s *)(cells + (%d * rows + row) * blocks + block) = lane%d[0];\n",
                       type_of(g, v), q++, v);
    }
    etch__cuda_close(g);
}

/* ---- leaves: 64 lanes over a block ---- */

static void begin_lanes(gen *g, int n) {
    FOR_REDUCTIONS(v) {
        const loop_instr *i = &g->k->code[v];
        etch__cuda_line(g, "%s lane%d[%d];", type_of(g, v), v, n);
        etch__cuda_line(g, "for (int l = 0; l < %d; l++) lane%d[l] =", n, v);
        g->t->n--; /* the line goes on */
        etch__cuda_put(g->t, " ");
        etch__cuda_identity(g->t, (reduce_kind)i->p.imm.i, (etch_dtype)i->p.type);
        etch__cuda_put(g->t, ";\n");
    }
}

/* Adds the elements of `block` that the thread has; `who` has any. */
static void add_block(gen *g, const char *who, const char *first) {
    int n = g->l.vector, span = etch__cuda_chunk_stride(g), length = etch__cuda_chunk_length(g);
    chunk many = {n, g->l.depth, false}, few = {n, g->l.chunks, true};
    begin_lanes(g, n * g->l.chunks);
    etch__cuda_line(g, "idx at = block * %d + %s;", REDUCE_BLOCK, first);
    etch__cuda_line(g, "const idx past = (block + 1) * %d;", REDUCE_BLOCK);
    etch__cuda_line(g, "const idx stop = !(%s) ? 0 : past < reduced ? past : reduced;", who);
    etch__cuda_line(g, "for (; at + %d <= stop; at += %d) {", (g->l.depth - 1) * span + length,
                    g->l.depth * span);
    etch__cuda_chunk_code(g, &many);
    etch__cuda_close(g);
    etch__cuda_line(g, "for (; at < stop; at += %d) {", g->l.chunks * span);
    etch__cuda_chunk_code(g, &few);
    etch__cuda_close(g);
}

/* lane[l] = op(lane[l], lane[l + w]) for those w whose partner the same
 * thread has, down to `least`. */
static void fold_inside(gen *g, int v, int n, int least) {
    if (n <= least) return;
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int w = %d; w >= %d; w /= 2)", n / 2, least);
    etch__cuda_line(g, "    for (int l = 0; l < w; l++) {");
    g->indent++;
    etch__cuda_line(g, "const %s x = lane%d[l], y = lane%d[l + w];", type_of(g, v), v, v);
    name to = etch__cuda_text("lane%d[l]", v);
    etch__cuda_put_combine(g, v, to.s, "x", "y");
    g->indent -= 2;
    etch__cuda_line(g, "    }");
}

static void fold_between(gen *g, int v) {
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int w = %d; w >= 1; w /= 2)", g->l.team / 2);
    etch__cuda_line(g, "    for (int l = 0; l < %d; l++) {", g->l.vector);
    g->indent++;
    etch__cuda_line(g, "const %s x = lane%d[l], y = down(x, w, %d);", type_of(g, v), v, g->l.team);
    name to = etch__cuda_text("lane%d[l]", v);
    etch__cuda_put_combine(g, v, to.s, "x", "y");
    g->indent -= 2;
    etch__cuda_line(g, "    }");
}

/* Lanes lie chunk by chunk, in a chunk thread by thread, in a thread side by side. */
static void fold_row_lanes(gen *g) {
    FOR_REDUCTIONS(v) {
        if (g->l.chunks > 1) fold_inside(g, v, g->l.chunks, 1);
        fold_between(g, v);
        if (g->l.vector > 1) fold_inside(g, v, g->l.vector, 1);
    }
}

/* Those of one column are spread over the warps: team by team they lie in shared memory, and the
 * first threads get a column each. */
static void fold_column_lanes(gen *g) {
    int columns = g->l.columns;
    FOR_REDUCTIONS(v) {
        fold_inside(g, v, g->l.chunks * g->l.vector, g->l.vector);
        etch__cuda_line(g, "{");
        etch__cuda_line(g, "%s *const lanes = (%s *)shared;", type_of(g, v), type_of(g, v));
        etch__cuda_line(g, "for (int j = 0; j < %d; j++)", g->l.vector);
        etch__cuda_line(g, "    lanes[t * %d + c + j] = lane%d[j];", columns, v);
        etch__cuda_line(g, "__syncthreads();");
        etch__cuda_line(g, "for (int w = %d; w >= %d; w /= 2) {", g->l.teams / 2 * columns,
                        columns);
        etch__cuda_line(g, "for (int l = threadIdx.x; l < w; l += %d) {", g->l.threads);
        etch__cuda_line(g, "const %s x = lanes[l], y = lanes[l + w];", type_of(g, v));
        etch__cuda_put_combine(g, v, "lanes[l]", "x", "y");
        etch__cuda_close(g);
        etch__cuda_line(g, "__syncthreads();");
        etch__cuda_close(g);
        etch__cuda_line(g, "if (threadIdx.x < %d) lane%d[0] = lanes[threadIdx.x];", columns, v);
        etch__cuda_line(g, "__syncthreads();");
        etch__cuda_close(g);
    }
}

static void load_cells(gen *g, int v, int q) {
    const loop_instr *i = &g->k->code[v];
    etch__cuda_line(g, "%s lane%d[%d];", type_of(g, v), v, CUDA_CELLS);
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int k = 0; k < %d; k++) {", CUDA_CELLS);
    etch__cuda_margin(g);
    etch__cuda_put(g->t, "lane%d[k] = ", v);
    etch__cuda_identity(g->t, (reduce_kind)i->p.imm.i, (etch_dtype)i->p.type);
    etch__cuda_put(g->t, ";\n");
    etch__cuda_line(g, "if (live && cell + k < blocks)");
    etch__cuda_line(g, "    lane%d[k] = *(%s *)(cells + (%d * rows + row) * blocks + cell + k);", v,
                    type_of(g, v), q);
    etch__cuda_close(g);
}

/* lane[k] = op(lane[k], lane[k + w]) for w = 1, 2 ... as far as there are cells. */
static void fold_neighbours(gen *g, int v) {
    name to = etch__cuda_text("lane%d[k]", v), by = etch__cuda_text("lane%d[k + w]", v);
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int w = 1; w < %d; w *= 2)", CUDA_CELLS);
    etch__cuda_line(g, "    for (int k = 0; k < %d; k += 2 * w)", CUDA_CELLS);
    etch__cuda_line(g, "        if (cell + k + w < blocks)");
    g->indent += 3;
    etch__cuda_put_combine(g, v, to.s, to.s, by.s);
    g->indent -= 3;
}

/* FINISH: cells leaf * CUDA_LEAF ... of each reduction, by pairs in the
 * thread, then in the warp. */
static void fold_cells(gen *g) {
    int q = 0;
    etch__cuda_line(g, "const idx cell = leaf * %d + t * %d;", CUDA_LEAF, CUDA_CELLS);
    FOR_REDUCTIONS(v) load_cells(g, v, q++);
    FOR_REDUCTIONS(v) {
        name to = etch__cuda_text("lane%d[0]", v);
        fold_neighbours(g, v);
        etch__cuda_line(g, "for (int w = 1; w < 32; w *= 2) {");
        etch__cuda_line(g, "const %s x = lane%d[0], y = down(x, w, 32);", type_of(g, v), v);
        etch__cuda_line(g, "if (cell + w * %d < blocks)", CUDA_CELLS);
        g->indent++;
        etch__cuda_put_combine(g, v, to.s, "x", "y");
        g->indent--;
        etch__cuda_close(g);
    }
}

/* ---- ROW and FINISH ---- */

static void team_of_thread(gen *g) {
    etch__cuda_line(g, "const int t = threadIdx.x %% %d, team = threadIdx.x / %d;", g->l.team,
                    g->l.team);
}

/* The first of the warps that share a row folds the results of all, `mine` and those behind it. */
static void fold_warps(gen *g, int v) {
    const char *t = type_of(g, v);
    etch__cuda_line(g, "if (part == 0) {");
    etch__cuda_line(g, "%s all = *(%s *)(shared + (t < parts ? team + t : team));", t, t);
    etch__cuda_line(g, "for (int w = 1; w < 32; w *= 2) {");
    etch__cuda_line(g, "const %s y = down(all, w, 32);", t);
    etch__cuda_line(g, "if (t + w < parts)");
    g->indent++;
    etch__cuda_put_combine(g, v, "all", "all", "y");
    g->indent--;
    etch__cuda_close(g);
    etch__cuda_line(g, "stack%d[0] = all;", v);
    etch__cuda_close(g);
    etch__cuda_line(g, "__syncthreads();");
}

static void fold_through_shared(gen *g, int v) {
    const char *t = type_of(g, v);
    etch__cuda_line(g, "for (idx w = 1; w < parts; w *= 2) {");
    etch__cuda_line(g, "if (t == 0 && part %% (2 * w) == 0 && part + w < parts) {");
    etch__cuda_line(g, "const %s x = *mine, y = *(%s *)(shared + team + w);", t, t);
    etch__cuda_put_combine(g, v, "*mine", "x", "y");
    etch__cuda_close(g);
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_close(g);
    etch__cuda_line(g, "if (t == 0 && top > 0) stack%d[0] = *mine;", v);
}

/* Teams of one row fold their results by pairs. */
static void fold_teams(gen *g) {
    etch__cuda_line(g, "if (share > 1) {");
    etch__cuda_line(g, "const idx parts = (leaves + span - 1) / span;");
    FOR_REDUCTIONS(v) {
        const char *t = type_of(g, v);
        etch__cuda_line(g, "{");
        etch__cuda_line(g, "%s *const mine = (%s *)(shared + team);", t, t);
        etch__cuda_line(g, "if (t == 0 && top > 0) *mine = stack%d[0];", v);
        etch__cuda_line(g, "__syncthreads();");
        if (g->k->split == SPLIT_FINISH) fold_warps(g, v);
        else fold_through_shared(g, v);
        etch__cuda_close(g);
    }
    etch__cuda_close(g);
}

/* How many teams share a row (see etch__cuda_shape), and how many leaves each of them takes. */
static void share_rows(gen *g) {
    etch__cuda_line(g, "__shared__ u64 shared[%d];", g->l.teams);
    etch__cuda_line(g, "idx share = 1, span = 1;");
    etch__cuda_line(
        g, "while (share < %d && share < leaves && rows * share < (idx)gridDim.x * %d) share *= 2;",
        g->l.teams, g->l.teams);
    etch__cuda_line(g, "while (span * share < leaves) span *= 2;");
    etch__cuda_line(g, "const idx together = %d / share, part = team %% share;", g->l.teams);
}

static void whole_rows(gen *g) {
    bool cells = g->k->split == SPLIT_FINISH;
    team_of_thread(g);
    share_rows(g);
    etch__cuda_line(g, "for (idx first = (idx)blockIdx.x * together; first < rows; "
                       "first += (idx)gridDim.x * together) {");
    etch__cuda_line(g, "const idx row = first + team / share;");
    etch__cuda_line(g, "const bool live = row < rows;");
    etch__cuda_decompose(g, "row", 0, g->k->npar);
    begin_row(g);
    begin_stack(g);
    etch__cuda_line(g, "for (idx n = 0; n < span; n++) {");
    etch__cuda_line(g, "const idx %s = part * span + n;", cells ? "leaf" : "block");
    etch__cuda_line(g, "const bool there = live && %s < leaves;", cells ? "leaf" : "block");
    if (cells) fold_cells(g);
    else add_block(g, "there", g->l.vector > 1 ? etch__cuda_text("t * %d", g->l.vector).s : "t");
    if (!cells) fold_row_lanes(g);
    etch__cuda_line(g, "if (there) {");
    push(g, "n");
    etch__cuda_close(g), etch__cuda_close(g);
    finish_stack(g);
    fold_teams(g);
    finish_row(g, "live && part == 0 && t == 0");
    etch__cuda_close(g);
}

static void row_blocks(gen *g) {
    team_of_thread(g);
    etch__cuda_line(g, "const idx units = rows * blocks;");
    etch__cuda_line(
        g, "for (idx first = (idx)blockIdx.x * %d; first < units; first += (idx)gridDim.x * %d) {",
        g->l.teams, g->l.teams);
    etch__cuda_line(
        g, "const idx unit = first + team, row = quot(unit, blocks), block = unit - row * blocks;");
    etch__cuda_line(g, "const bool live = unit < units;");
    etch__cuda_decompose(g, "row", 0, g->k->npar);
    begin_row(g);
    add_block(g, "live", g->l.vector > 1 ? etch__cuda_text("t * %d", g->l.vector).s : "t");
    fold_row_lanes(g);
    write_cells(g, "live && t == 0");
    etch__cuda_close(g);
}

/* ---- rows that are gone over again ---- */

/* Elements whose values lie in shared memory together. */
static int piece_of(const gen *g) { return g->l.threads * g->l.vector * g->l.depth; }

/* Words that the reductions behind the stage need; at: per reduction its first. */
static int words_of_stage(gen *g, int *at) {
    int words = 0;
    FOR_REDUCTIONS(v) {
        if (at) at[v] = words;
        words += piece_of(g) * (int)etch_dtype_size((etch_dtype)g->k->code[v].p.type) / 8;
    }
    return words;
}

static int shared_words(gen *g) {
    int most = 1, last = etch__loop_last_stage(g->k);
    for (g->stage = 0; g->stage <= last; g->stage += 2) {
        int words = words_of_stage(g, NULL);
        if (words > most) most = words;
    }
    return most;
}

enum { HELD_BYTES = 256 };

/* What of a row stays in registers, by the stage that comes first. */
static void choose_held(gen *g) {
    int bytes = 0;
    for (int s = 0; g->l.hold && s < LOOP_STAGES; s += 2)
        for (int a = 0; a < g->k->naccesses; a++) {
            int size = (int)etch_dtype_size(dtype_of(g, a));
            int more = g->l.hold * g->l.vector * (size < 4 ? 4 : size);
            if (g->held[a] || !loaded(g, a, s) || etch__cuda_same_in_row(g, a)) continue;
            if (bytes + more > HELD_BYTES) continue;
            bytes += more, g->held[a] = s + 1;
        }
}

/* The chunks of the piece that begins at `base`, each thread's. */
static void piece_chunks(gen *g) {
    chunk c = {g->l.vector, g->l.depth, true};
    bool guard = c.depth == 1;
    etch__cuda_line(g, "const idx at = base + t * %d;", g->l.vector);
    if (guard) etch__cuda_line(g, "if (at < stop) {");
    etch__cuda_chunk_code(g, &c);
    if (guard) etch__cuda_close(g);
}

static void add_piece(gen *g) {
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_line(g, "if (t < %d) {", REDUCE_LANES);
    etch__cuda_line(g, "const int n = stop - base < %d ? (int)(stop - base) : %d;", piece_of(g),
                    piece_of(g));
    etch__cuda_line(g, "#pragma unroll 8");
    etch__cuda_line(g, "for (int e = t; e < n; e += %d) {", REDUCE_LANES);
    FOR_REDUCTIONS(v) {
        name lane = etch__cuda_text("lane%d[0]", v), x = etch__cuda_text("vals%d[e]", v);
        etch__cuda_put_combine(g, v, lane.s, lane.s, x.s);
    }
    etch__cuda_close(g), etch__cuda_close(g);
}

/* The upper lanes come through shared memory, each in the place that its own thread read. */
static void fold_block_lanes(gen *g) {
    int half = REDUCE_LANES / 2;
    etch__cuda_line(g, "if (t >= %d && t < %d) {", half, REDUCE_LANES);
    FOR_REDUCTIONS(v) etch__cuda_line(g, "vals%d[t] = lane%d[0];", v, v);
    etch__cuda_close(g);
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_line(g, "if (t < %d) {", half);
    FOR_REDUCTIONS(v) {
        name lane = etch__cuda_text("lane%d[0]", v), x = etch__cuda_text("vals%d[t + %d]", v, half);
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
static void reduce_held(gen *g) {
    begin_lanes(g, 1);
    etch__cuda_line(g, "const idx base = 0, stop = reduced;");
    piece_chunks(g);
    add_piece(g);
    fold_block_lanes(g);
    etch__cuda_line(g, "if (t == 0) {");
    FOR_REDUCTIONS(v) etch__cuda_line(g, "vals%d[0] = lane%d[0];", v, v);
    etch__cuda_close(g);
}

static void reduce_blocks(gen *g) {
    begin_stack(g);
    etch__cuda_line(g, "for (idx block = 0; block < blocks; block++) {");
    begin_lanes(g, 1);
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
    push(g, "block");
    etch__cuda_close(g);
    etch__cuda_line(g, "__syncthreads();");
    etch__cuda_close(g);
    etch__cuda_line(g, "if (t == 0) {");
    finish_stack(g);
    FOR_REDUCTIONS(v) etch__cuda_line(g, "vals%d[0] = stack%d[0];", v, v);
    etch__cuda_close(g);
}

/* The odd stage at hand, by all threads; the first one stores. */
static void row_code(gen *g) {
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
            etch__cuda_line(g, "if (t == 0)");
            etch__cuda_put_store(g, i, etch__cuda_text("*q%d", a).s);
        }
    }
}

/* An even stage with the odd one behind it. */
static void reduce_pass(gen *g, int stage) {
    int at[LOOP_MAX_CODE];
    etch__cuda_enter_stage(g, stage);
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
    etch__cuda_enter_stage(g, stage + 1);
    row_code(g);
}

enum { LAST_DEPTH = 4 };

/* The last stage, of elements. */
static void last_pass(gen *g, int stage) {
    chunk c = {g->l.vector, g->l.hold ? g->l.hold : LAST_DEPTH, true};
    bool guard = c.depth == 1;
    etch__cuda_enter_stage(g, stage);
    etch__cuda_line(g, "const idx stop = reduced;");
    if (g->l.hold) etch__cuda_line(g, "{");
    if (g->l.hold) etch__cuda_line(g, "const idx at = t * %d;", c.vector);
    else
        etch__cuda_line(g, "for (idx at = t * %d; at < stop; at += %d) {", c.vector,
                        c.depth * g->l.threads * c.vector);
    if (guard) etch__cuda_line(g, "if (at < stop) {");
    etch__cuda_chunk_code(g, &c);
    if (guard) etch__cuda_close(g);
    etch__cuda_close(g);
}

static void rows_again(gen *g) {
    int last = etch__loop_last_stage(g->k), stage = 0;
    chunk held = {g->l.vector, g->l.depth, true};
    etch__cuda_line(g, "__shared__ u64 shared[%d];", shared_words(g));
    etch__cuda_line(g, "const int t = threadIdx.x;");
    for (int a = 0; a < g->k->naccesses; a++)
        if (loaded_once(g, a)) {
            etch__cuda_line(g, "const bool live = true;");
            break;
        }
    etch__cuda_line(g, "for (idx row = blockIdx.x; row < rows; row += gridDim.x) {");
    etch__cuda_decompose(g, "row", 0, g->k->npar);
    begin_row(g);
    choose_held(g);
    etch__cuda_declare_held(g, &held);
    for (; stage < last; stage += 2) reduce_pass(g, stage);
    if (stage == last) last_pass(g, stage);
    etch__cuda_close(g);
}

/* ---- COLUMN ---- */

/* The tile of the unit and the indices along the axes outside. */
static void tile_place(gen *g) {
    int x = g->k->npar - 1;
    bool partial = g->k->split == SPLIT_PARTIAL;
    const char *unit = partial ? "whole" : "unit";
    if (partial)
        etch__cuda_line(g, "const idx whole = quot(unit, blocks), block = unit - whole * blocks;");
    if (x > 0) etch__cuda_line(g, "const idx line = quot(%s, tiles);", unit);
    if (x > 0) etch__cuda_line(g, "const idx tile = (%s - line * tiles) * %d;", unit, g->l.columns);
    else etch__cuda_line(g, "const idx tile = %s * %d;", unit, g->l.columns);
    etch__cuda_decompose(g, "line", 0, x);
}

/* Column `c` of the tile, whose number may be wanted. */
static void column_place(gen *g, const char *c, bool number) {
    int x = g->k->npar - 1;
    etch__cuda_line(g, "const idx i%d = tile + %s;", x, c);
    if (number && x > 0) etch__cuda_line(g, "const idx row = line * n%d + i%d;", x, x);
    else if (number) etch__cuda_line(g, "const idx row = i%d;", x);
    etch__cuda_line(g, "const bool live = i%d < n%d;", x, x);
}

/* What comes of a column, by the thread that has it. */
static void end_columns(gen *g) {
    bool partial = g->k->split == SPLIT_PARTIAL;
    etch__cuda_line(g, "if (threadIdx.x < %d) {", g->l.columns);
    column_place(g, "threadIdx.x", partial || etch__cuda_wants_index(g, 1));
    if (!partial) row_places(g, false, true);
    if (partial) write_cells(g, "live");
    else finish_row(g, "live");
    etch__cuda_close(g);
}

/* Words for the lanes of one reduction. */
static int lane_words(gen *g) {
    int most = 1;
    FOR_REDUCTIONS(v) {
        int size = (int)etch_dtype_size((etch_dtype)g->k->code[v].p.type);
        if (size > most) most = size;
    }
    return g->l.teams * g->l.columns * most / 8;
}

static void columns(gen *g) {
    bool partial = g->k->split == SPLIT_PARTIAL;
    int x = g->k->npar - 1, team = g->l.team, wide = g->l.columns;
    if (g->l.vector > 1)
        etch__cuda_line(g, "const int c = threadIdx.x %% %d * %d, t = threadIdx.x / %d;", team,
                        g->l.vector, team);
    else etch__cuda_line(g, "const int c = threadIdx.x %% %d, t = threadIdx.x / %d;", team, team);
    etch__cuda_line(g, "__shared__ u64 shared[%d];", lane_words(g));
    etch__cuda_line(g, "const idx tiles = (n%d + %d) / %d;", x, wide - 1, wide);
    etch__cuda_line(g, "const idx units = %stiles%s;", x > 0 ? "outer * " : "",
                    partial ? " * blocks" : "");
    etch__cuda_line(g, "for (idx unit = blockIdx.x; unit < units; unit += gridDim.x) {");
    tile_place(g);
    column_place(g, "c", etch__cuda_wants_index(g, 0));
    row_places(g, true, false);
    load_once(g);
    if (!partial) begin_stack(g);
    if (!partial) etch__cuda_line(g, "for (idx block = 0; block < blocks; block++) {");
    add_block(g, "live", "t");
    fold_column_lanes(g);
    if (!partial) push(g, "block"), etch__cuda_close(g), finish_stack(g);
    end_columns(g);
    etch__cuda_close(g);
}

/* ---- what stands before the body ---- */

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool has_word(const char *s, const char *word) {
    size_t n = strlen(word);
    for (const char *at = s; at && (at = strstr(at, word)); at += n)
        if ((at == s || !is_letter(at[-1])) && !is_letter(at[n])) return true;
    return false;
}

/* Whether what is written so far names it. */
static bool mentioned(const gen *g, const char *word) {
    for (int p = 0; p < PARTS; p++)
        if (has_word(g->part[p].p, word)) return true;
    return false;
}

static void uniforms(gen *g) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        prim_instr count = {.prim = PRIM_CONVERT, .type = i->p.type, .from = ETCH_I64};
        if (!etch__loop_uniform(i) || !mentioned(g, etch__cuda_text("v%d", v).s)) continue;
        etch__cuda_margin(g);
        etch__cuda_put(g->t, "const %s v%d = ", type_of(g, v), v);
        if (i->p.prim == PRIM_CONST) etch__cuda_constant(g->t, &i->p);
        else if (i->p.prim == PRIM_SCALAR) etch__cuda_scalar(g->t, &i->p);
        else etch__cuda_prim(g->t, &count, "(i64)reduced", "", "");
        etch__cuda_put(g->t, ";");
        etch__cuda_put_comment(g, i);
    }
}

/* A product of extents under a name, where that is mentioned. */
static void size_of(gen *g, const char *called, int from, int to) {
    if (!mentioned(g, called)) return;
    etch__cuda_margin(g);
    etch__cuda_put(g->t, "const idx %s = ", called);
    for (int x = from; x < to; x++) etch__cuda_put(g->t, "%sn%d", x > from ? " * " : "", x);
    etch__cuda_put(g->t, from < to ? ";\n" : "1;\n");
}

static void sizes(gen *g) {
    bool leaves = mentioned(g, "leaves"), blocks = leaves || mentioned(g, "blocks");
    if (blocks || mentioned(g, "reduced")) {
        etch__cuda_margin(g);
        etch__cuda_put(g->t, "const idx reduced = ");
        for (int x = g->k->npar; x < g->naxes; x++)
            etch__cuda_put(g->t, "%sn%d", x > g->k->npar ? " * " : "", x);
        etch__cuda_put(g->t, ";\n");
    }
    size_of(g, "rows", 0, g->k->npar);
    size_of(g, "outer", 0, g->k->npar - 1);
    if (blocks)
        etch__cuda_line(g, "const idx blocks = (reduced + %d) / %d;", REDUCE_BLOCK - 1,
                        REDUCE_BLOCK);
    if (leaves && g->k->split == SPLIT_FINISH)
        etch__cuda_line(g, "const idx leaves = (blocks + %d) / %d;", CUDA_LEAF - 1, CUDA_LEAF);
    else if (leaves) etch__cuda_line(g, "const idx leaves = blocks;");
}

static void put_access_comment(gen *g, int a) {
    const loop_access *x = &g->k->access[a];
    etch__cuda_put(g->t, " // %s %s [", x->store ? "store" : "load",
                   etch_dtype_name(dtype_of(g, a)));
    for (int i = 0; i < g->naxes; i++)
        etch__cuda_put(g->t, "%s%c", i && i == g->k->npar ? "|" : "", "01s"[x->step[i]]);
    etch__cuda_put(g->t, "]\n");
}

static void names(gen *g) {
    if (g->v->tested) etch__cuda_line(g, "if (*a.failed != ~0ull) return;");
    for (int a = 0; a < g->k->naccesses; a++) {
        const char *t = storage_of(g, a);
        if (!mentioned(g, etch__cuda_text("p%d", a).s)) continue;
        etch__cuda_margin(g);
        etch__cuda_put(g->t, "%s *const p%d = (%s *)a.ptr[%d];", t, a, t, a);
        put_access_comment(g, a);
    }
    if (mentioned(g, "cells + "))
        etch__cuda_line(g, "u64 *const cells = (u64 *)a.ptr[%d];", g->k->naccesses);
    for (int x = 0; x < g->naxes; x++)
        if (mentioned(g, etch__cuda_text("n%d", x).s))
            etch__cuda_line(g, "const idx n%d = (idx)a.dims[%d];", x, x);
    for (int a = 0; a < g->k->naccesses; a++)
        for (int x = 0; x < g->naxes; x++)
            if (mentioned(g, etch__cuda_text("s%d_%d", a, x).s))
                etch__cuda_line(g, "const idx s%d_%d = (idx)a.dims[%d];", a, x,
                                g->naxes * (a + 1) + x);
}

static void put_args(gen *g) {
    const loop_kernel *k = g->k;
    etch__cuda_line(g, "struct etch_args {");
    etch__cuda_line(g, "void *ptr[%d];", k->naccesses + 1);
    if (g->naxes) etch__cuda_line(g, "long long dims[%d];", g->naxes * (k->naccesses + 1));
    if (k->nscalars) etch__cuda_line(g, "unsigned long long cells[%d];", k->nscalars);
    if (g->v->tested) etch__cuda_line(g, "const volatile unsigned long long *failed;");
    g->indent--;
    etch__cuda_line(g, "};\n");
}

static void head(gen *g) {
    static const char *const variants[] = {"map", "row", "column"};
    static const char *const splits[] = {"", ", partial", ", finish"};
    const loop_kernel *k = g->k;
    char symbol[CUDA_SYMBOL_MAX];
    etch__cuda_symbol(k, symbol);
    etch__cuda_line(g, "// kernel %s: %s%s, %d + %d axes; vector %d, %d threads", symbol + 5,
                    variants[k->variant], splits[k->split], k->npar, k->nred, g->l.vector,
                    g->l.threads);
    etch__cuda_prelude(g->t, g->v->index_bits, g->part[BODY].p);
    etch__cuda_line(g, "%s", "");
    put_args(g);
    /* Where few threads have many chunks in flight: with one block a processor in mind, the
     * compiler leaves their loads together; else it saves registers and loads some of them late. */
    bool deep = g->l.depth > g->l.chunks && (etch__cuda_on_columns(k) || k->split == SPLIT_PARTIAL);
    etch__cuda_line(g, "extern \"C\" __global__ void __launch_bounds__(%d%s)", g->l.threads,
                    deep ? ", 1" : "");
    etch__cuda_line(g, "    %s(const __grid_constant__ struct etch_args a) {", symbol);
    g->indent--;
}

/* ---- the whole ---- */

static void body(gen *g) {
    etch__cuda_enter_stage(g, 0);
    if (g->k->split == SPLIT_FINISH) whole_rows(g);
    else if (etch__cuda_has_passes(g->k)) rows_again(g);
    else if (g->k->variant == LOOP_COLUMN) columns(g);
    else if (g->k->variant == LOOP_ROW && g->k->split == SPLIT_PARTIAL) row_blocks(g);
    else if (g->k->variant == LOOP_ROW) whole_rows(g);
    else if (g->l.vector > 1) map_vectors(g);
    else map_elements(g);
}

static void write_part(gen *g, int part, int indent, void (*what)(gen *)) {
    g->t = &g->part[part], g->indent = indent;
    etch__cuda_put(g->t, "%s", "");
    what(g);
}

static char *source(gen *g, void (*const parts[PARTS])(gen *)) {
    cuda_text all = {0};
    g->naxes = g->k->npar + g->k->nred, g->l = etch__cuda_layout(g->k, g->v);
    g->axis = etch__cuda_axis(g->k);
    etch__cuda_needed(g->k, g->needed);
    for (int p = PARTS - 1; p >= 0 && !all.failed; p--) {
        write_part(g, p, p == HEAD ? 0 : 1, parts[p]);
        all.failed = g->part[p].failed;
    }
    for (int p = 0; p < PARTS; p++) {
        if (!all.failed) etch__cuda_put(&all, "%s", g->part[p].p);
        etch__free(g->part[p].p);
    }
    if (!all.failed) etch__cuda_put(&all, "}\n");
    if (!all.failed) return all.p;
    etch__free(all.p);
    return NULL;
}

char *etch__cuda_source(const loop_kernel *k, const cuda_variant *v) {
    static void (*const parts[PARTS])(gen *) = {head, names, sizes, uniforms, body};
    gen g = {.k = k, .v = v};
    return source(&g, parts);
}

/* ---- a map as a function ---- */

static void after_head(gen *g) {
    etch__cuda_prelude(g->t, g->v->index_bits, g->part[BODY].p);
    etch__cuda_line(g, "%s", "");
    put_args(g);
    etch__cuda_margin(g);
    etch__cuda_put(g->t, "__device__ __forceinline__ void after(const etch_args &a, idx row, "
                         "idx first, idx columns");
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!(g->given >> a & 1)) continue;
        if (g->l.vector > 1)
            etch__cuda_put(g->t, ", const vec<%s, %d> x%d", storage_of(g, a), g->l.vector, a);
        else etch__cuda_put(g->t, ", const %s x%d", storage_of(g, a), a);
    }
    etch__cuda_put(g->t, ") {\n");
}

static void after_body(gen *g) {
    chunk c = {g->l.vector, 1, false};
    etch__cuda_enter_stage(g, 0);
    etch__cuda_line(g, "const idx index = row * columns + first;");
    if (c.vector > 1 && g->naxes == 1) etch__cuda_line(g, "const idx i0 = index;");
    if (c.vector > 1 && g->naxes == 2) etch__cuda_line(g, "const idx i0 = row, i1 = first;");
    etch__cuda_chunk_code(g, &c);
}

char *etch__cuda_after_source(const loop_kernel *k, const cuda_variant *v, uint32_t given) {
    static void (*const parts[PARTS])(gen *) = {after_head, names, sizes, uniforms, after_body};
    gen g = {.k = k, .v = v, .given = given};
    return source(&g, parts);
}
