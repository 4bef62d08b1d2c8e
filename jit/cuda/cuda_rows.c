/* ROW and FINISH: teams of threads hold the lanes of a row, or fold its partial results. */
#include "jit/cuda/cuda_gen.h"

/* ---- lanes ---- */

static void fold_between(cuda_gen *g, int v) {
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int w = %d; w >= 1; w /= 2)", g->l.team / 2);
    etch__cuda_line(g, "    for (int l = 0; l < %d; l++) {", g->l.vector);
    g->indent++;
    etch__cuda_line(g, "const %s x = lane%d[l], y = down(x, w, %d);", type_of(g, v), v, g->l.team);
    cuda_name to = etch__cuda_text("lane%d[l]", v);
    etch__cuda_put_combine(g, v, to.s, "x", "y");
    g->indent -= 2;
    etch__cuda_line(g, "    }");
}

/* Lanes lie chunk by chunk, in a chunk thread by thread, in a thread side by side. */
void etch__cuda_fold_row_lanes(cuda_gen *g) {
    FOR_REDUCTIONS(v) {
        if (g->l.chunks > 1) etch__cuda_fold_inside(g, v, g->l.chunks, 1);
        fold_between(g, v);
        if (g->l.vector > 1) etch__cuda_fold_inside(g, v, g->l.vector, 1);
    }
}

/* ---- partial results ---- */

static void load_cells(cuda_gen *g, int v, int q) {
    const loop_instr *i = &g->k->code[v];
    etch__cuda_line(g, "%s lane%d[%d];", type_of(g, v), v, CUDA_CELLS);
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int k = 0; k < %d; k++) {", CUDA_CELLS);
    etch__cuda_margin(g);
    etch__text_put(g->t, "lane%d[k] = ", v);
    etch__cuda_identity(g->t, (reduce_kind)i->p.imm.i, i->p.type);
    etch__text_put(g->t, ";\n");
    etch__cuda_line(g, "if (live && cell + k < blocks)");
    etch__cuda_line(g, "    lane%d[k] = *(%s *)(cells + (%d * rows + row) * blocks + cell + k);", v,
                    type_of(g, v), q);
    etch__cuda_close(g);
}

/* lane[k] = op(lane[k], lane[k + w]) for w = 1, 2 ... as far as there are cells. */
static void fold_neighbours(cuda_gen *g, int v) {
    cuda_name to = etch__cuda_text("lane%d[k]", v), by = etch__cuda_text("lane%d[k + w]", v);
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
static void fold_cells(cuda_gen *g) {
    int q = 0;
    etch__cuda_line(g, "const idx cell = leaf * %d + t * %d;", CUDA_LEAF, CUDA_CELLS);
    FOR_REDUCTIONS(v) load_cells(g, v, q++);
    FOR_REDUCTIONS(v) {
        cuda_name to = etch__cuda_text("lane%d[0]", v);
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

/* ---- several teams a row ---- */

/* The first of the warps that share a row folds the results of all, `mine` and those behind it. */
static void fold_warps(cuda_gen *g, int v) {
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

static void fold_through_shared(cuda_gen *g, int v) {
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
static void fold_teams(cuda_gen *g) {
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
static void share_rows(cuda_gen *g) {
    etch__cuda_line(g, "__shared__ u64 shared[%d];", g->l.teams);
    etch__cuda_line(g, "idx share = 1, span = 1;");
    etch__cuda_line(
        g, "while (share < %d && share < leaves && rows * share < (idx)gridDim.x * %d) share *= 2;",
        g->l.teams, g->l.teams);
    etch__cuda_line(g, "while (span * share < leaves) span *= 2;");
    etch__cuda_line(g, "const idx together = %d / share, part = team %% share;", g->l.teams);
}

/* ---- the kernels ---- */

static void team_of_thread(cuda_gen *g) {
    etch__cuda_line(g, "const int t = threadIdx.x %% %d, team = threadIdx.x / %d;", g->l.team,
                    g->l.team);
}

void etch__cuda_whole_rows(cuda_gen *g) {
    bool cells = g->k->split == SPLIT_FINISH;
    team_of_thread(g);
    share_rows(g);
    etch__cuda_line(g, "for (idx first = (idx)blockIdx.x * together; first < rows; "
                       "first += (idx)gridDim.x * together) {");
    etch__cuda_line(g, "const idx row = first + team / share;");
    etch__cuda_line(g, "const bool live = row < rows;");
    etch__cuda_decompose(g, "row", 0, g->k->npar);
    etch__cuda_begin_row(g);
    etch__cuda_begin_stack(g);
    etch__cuda_line(g, "for (idx n = 0; n < span; n++) {");
    etch__cuda_line(g, "const idx %s = part * span + n;", cells ? "leaf" : "block");
    etch__cuda_line(g, "const bool there = live && %s < leaves;", cells ? "leaf" : "block");
    if (cells) fold_cells(g);
    else
        etch__cuda_add_block(g, "there",
                             g->l.vector > 1 ? etch__cuda_text("t * %d", g->l.vector).s : "t");
    if (!cells) etch__cuda_fold_row_lanes(g);
    etch__cuda_line(g, "if (there) {");
    etch__cuda_push_leaf(g, "n");
    etch__cuda_close(g), etch__cuda_close(g);
    etch__cuda_finish_stack(g);
    fold_teams(g);
    etch__cuda_finish_row(g, "live && part == 0 && t == 0");
    etch__cuda_close(g);
}

void etch__cuda_row_blocks(cuda_gen *g) {
    team_of_thread(g);
    etch__cuda_line(g, "const idx units = rows * blocks;");
    etch__cuda_line(
        g, "for (idx first = (idx)blockIdx.x * %d; first < units; first += (idx)gridDim.x * %d) {",
        g->l.teams, g->l.teams);
    etch__cuda_line(
        g, "const idx unit = first + team, row = quot(unit, blocks), block = unit - row * blocks;");
    etch__cuda_line(g, "const bool live = unit < units;");
    etch__cuda_decompose(g, "row", 0, g->k->npar);
    etch__cuda_begin_row(g);
    etch__cuda_add_block(g, "live",
                         g->l.vector > 1 ? etch__cuda_text("t * %d", g->l.vector).s : "t");
    etch__cuda_fold_row_lanes(g);
    etch__cuda_write_cells(g, "live && t == 0");
    etch__cuda_close(g);
}
