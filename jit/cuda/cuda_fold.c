/* What rows and columns share: the elements that a row has once, the 64 lanes of a block, the stack
 * on which block results fold by pairs, and what is made of the result. */
#include "jit/cuda/cuda_gen.h"

/* ---- what a row has before its blocks ---- */

/* One element for the whole row. */
bool etch__cuda_loaded_once(const cuda_gen *g, int a) {
    return !g->k->access[a].store && etch__cuda_uses_any(g->k, a, false) &&
           etch__cuda_same_in_row(g, a);
}

/* Where accesses of the stages over elements, over rows, begin in the row
 * whose indices are there. */
void etch__cuda_row_places(cuda_gen *g, bool elements, bool rows) {
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!(elements && etch__cuda_uses_any(g->k, a, false)) &&
            !(rows && etch__cuda_uses_any(g->k, a, true)))
            continue;
        cuda_offset o = etch__cuda_offset_over(g, a, 0, g->k->npar);
        etch__cuda_line(g, "%s *const q%d = p%d%s%s;", storage_of(g, a), a, a, o.s[0] ? " + " : "",
                        o.s);
    }
}

/* Of the columns of the thread; where there is no such column it is no matter what. */
static void load_by_column(cuda_gen *g, int a) {
    const char *t = storage_of(g, a);
    bool vector = g->k->access[a].step[g->axis] == STEP_ONE;
    cuda_name type = etch__cuda_text("vec<%s, %d>", t, g->l.vector);
    etch__cuda_line(g, "%s x%d = {};", type.s, a);
    etch__cuda_line(g, "if (live)");
    if (vector) {
        etch__cuda_line(g, "    x%d = *(const %s *)q%d;", a, type.s, a);
        return;
    }
    etch__cuda_line(g, "    for (int j = 0; j < %d; j++) x%d.e[j] = q%d[j * s%d_%d];", g->l.vector,
                    a, a, a, g->axis);
}

void etch__cuda_load_once(cuda_gen *g) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (!etch__cuda_loaded_once(g, a)) continue;
        else if (etch__cuda_by_column(g, a)) load_by_column(g, a);
        else
            etch__cuda_line(g, "const %s x%d = live ? *q%d : (%s)0;", storage_of(g, a), a, a,
                            storage_of(g, a));
}

void etch__cuda_begin_row(cuda_gen *g) {
    etch__cuda_row_places(g, true, true);
    etch__cuda_load_once(g);
}

/* ---- block results ---- */

static int levels(const cuda_gen *g) { return g->v->index_bits == 32 ? 20 : 52; }

void etch__cuda_begin_stack(cuda_gen *g) {
    FOR_REDUCTIONS(v) etch__cuda_line(g, "%s stack%d[%d];", type_of(g, v), v, levels(g));
    etch__cuda_line(g, "int top = 0;");
}

/* Swallows one entry of the stack for each trailing one bit of the leaf's number n. */
void etch__cuda_push_leaf(cuda_gen *g, const char *n) {
    etch__cuda_line(g, "for (idx b = %s; b & 1; b >>= 1) {", n);
    etch__cuda_line(g, "top--;");
    FOR_REDUCTIONS(v) {
        cuda_name lane = etch__cuda_text("lane%d[0]", v),
                  entry = etch__cuda_text("stack%d[top]", v);
        etch__cuda_put_combine(g, v, lane.s, entry.s, lane.s);
    }
    etch__cuda_close(g);
    FOR_REDUCTIONS(v) etch__cuda_line(g, "stack%d[top] = lane%d[0];", v, v);
    etch__cuda_line(g, "top++;");
}

void etch__cuda_finish_stack(cuda_gen *g) {
    etch__cuda_line(g, "#pragma unroll 1");
    etch__cuda_line(g, "for (; top > 1; top--) {");
    FOR_REDUCTIONS(v) {
        cuda_name a = etch__cuda_text("stack%d[top - 2]", v),
                  b = etch__cuda_text("stack%d[top - 1]", v);
        etch__cuda_put_combine(g, v, a.s, a.s, b.s);
    }
    etch__cuda_close(g);
}

/* ---- what comes of a row ---- */

static bool reads_value(const cuda_gen *g, int v) {
    for (int u = v + 1; u < g->k->ncode; u++) {
        const loop_instr *i = &g->k->code[u];
        for (int n = 0; g->needed[u] && n < etch__loop_arity(i); n++)
            if (etch__loop_operand(i, n) == v) return true;
    }
    return false;
}

/* Stage 1 for element `row`; the results are at the bottom of the stacks. */
void etch__cuda_finish_row(cuda_gen *g, const char *who) {
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

void etch__cuda_write_cells(cuda_gen *g, const char *who) {
    int q = 0;
    etch__cuda_line(g, "if (%s) {", who);
    FOR_REDUCTIONS(v) {
        etch__cuda_margin(g);
        etch__text_put(g->t, "*(%s *)(cells + (%d * rows + row) * blocks + block) = lane%d[0];\n",
                       type_of(g, v), q++, v);
    }
    etch__cuda_close(g);
}

/* ---- leaves: 64 lanes over a block ---- */

void etch__cuda_begin_lanes(cuda_gen *g, int n) {
    FOR_REDUCTIONS(v) {
        const loop_instr *i = &g->k->code[v];
        etch__cuda_line(g, "%s lane%d[%d];", type_of(g, v), v, n);
        etch__cuda_line(g, "for (int l = 0; l < %d; l++) lane%d[l] =", n, v);
        g->t->n--; /* the line goes on */
        etch__text_put(g->t, " ");
        etch__cuda_identity(g->t, (reduce_kind)i->p.imm.i, i->p.type);
        etch__text_put(g->t, ";\n");
    }
}

/* Adds the elements of `block` that the thread has; `who` has any. */
void etch__cuda_add_block(cuda_gen *g, const char *who, const char *first) {
    int n = g->l.vector, span = etch__cuda_chunk_stride(g), length = etch__cuda_chunk_length(g);
    chunk many = {n, g->l.depth, false}, few = {n, g->l.chunks, true};
    etch__cuda_begin_lanes(g, n * g->l.chunks);
    etch__cuda_line(g, "idx at = block * %d + %s;", REDUCE_BLOCK, first);
    etch__cuda_line(g, "const idx past = (block + 1) * %d;", REDUCE_BLOCK);
    etch__cuda_line(g, "const idx stop = !(%s) ? 0 : past < reduced ? past : reduced;", who);
    etch__cuda_line(g, "for (; at + %d <= stop; at += %d) {", (g->l.depth - 1) * span + length,
                    g->l.depth * span);
    etch__cuda_chunk_code(g, &many);
    etch__cuda_close(g);
    if (g->v->even == EVEN_BLOCKS) return;
    etch__cuda_line(g, "for (; at < stop; at += %d) {", g->l.chunks * span);
    etch__cuda_chunk_code(g, &few);
    etch__cuda_close(g);
}

/* lane[l] = op(lane[l], lane[l + w]) for those w whose partner the same
 * thread has, down to `least`. */
void etch__cuda_fold_inside(cuda_gen *g, int v, int n, int least) {
    if (n <= least) return;
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int w = %d; w >= %d; w /= 2)", n / 2, least);
    etch__cuda_line(g, "    for (int l = 0; l < w; l++) {");
    g->indent++;
    etch__cuda_line(g, "const %s x = lane%d[l], y = lane%d[l + w];", type_of(g, v), v, v);
    cuda_name to = etch__cuda_text("lane%d[l]", v);
    etch__cuda_put_combine(g, v, to.s, "x", "y");
    g->indent -= 2;
    etch__cuda_line(g, "    }");
}
