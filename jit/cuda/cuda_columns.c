/* COLUMN: columns side by side, several neighbours a thread; the lanes of each are spread over the
 * warps of the block. */
#include "jit/cuda/cuda_gen.h"

/* Those of one column are spread over the warps: team by team they lie in shared memory, and the
 * first threads get a column each. */
static void fold_column_lanes(cuda_gen *g) {
    int columns = g->l.columns;
    FOR_REDUCTIONS(v) {
        etch__cuda_fold_inside(g, v, g->l.chunks * g->l.vector, g->l.vector);
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

/* The tile of the unit and the indices along the axes outside. */
static void tile_place(cuda_gen *g) {
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
static void column_place(cuda_gen *g, const char *c, bool number) {
    int x = g->k->npar - 1;
    etch__cuda_line(g, "const idx i%d = tile + %s;", x, c);
    if (number && x > 0) etch__cuda_line(g, "const idx row = line * n%d + i%d;", x, x);
    else if (number) etch__cuda_line(g, "const idx row = i%d;", x);
    etch__cuda_line(g, "const bool live = i%d < n%d;", x, x);
}

/* What comes of a column, by the thread that has it. */
static void end_columns(cuda_gen *g) {
    bool partial = g->k->split == SPLIT_PARTIAL;
    etch__cuda_line(g, "if (threadIdx.x < %d) {", g->l.columns);
    column_place(g, "threadIdx.x", partial || etch__cuda_wants_index(g, 1));
    if (!partial) etch__cuda_row_places(g, false, true);
    if (partial) etch__cuda_write_cells(g, "live");
    else etch__cuda_finish_row(g, "live");
    etch__cuda_close(g);
}

/* Words for the lanes of one reduction. */
static int lane_words(cuda_gen *g) {
    int most = 1;
    FOR_REDUCTIONS(v) {
        int size = (int)etch_dtype_size(g->k->code[v].p.type);
        if (size > most) most = size;
    }
    return g->l.teams * g->l.columns * most / 8;
}

void etch__cuda_columns(cuda_gen *g) {
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
    etch__cuda_row_places(g, true, false);
    etch__cuda_load_once(g);
    if (!partial) etch__cuda_begin_stack(g);
    if (!partial) etch__cuda_line(g, "for (idx block = 0; block < blocks; block++) {");
    etch__cuda_add_block(g, "live", "t");
    fold_column_lanes(g);
    if (!partial) etch__cuda_push_leaf(g, "block"), etch__cuda_close(g), etch__cuda_finish_stack(g);
    end_columns(g);
    etch__cuda_close(g);
}
