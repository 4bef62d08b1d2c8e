/* Loop IR -> CUDA C: what stands before the body, and the whole. The bodies:
 *
 *   MAP     (cuda_map.c) a thread takes chunks: `vector` neighbours along the innermost axis
 *   ROW     (cuda_rows.c) a team of threads holds the 64 lanes of a row; for each block of 4096
 *           elements it adds chunks to the lanes and folds them; block results fold by pairs as
 *           they come. Where rows are few, several teams take aligned ranges of a row's blocks and
 *           fold at the end.
 *           Where a kernel goes over its rows again (cuda_sweeps.c), a block has a row
 *   COLUMN  (cuda_columns.c) columns side by side, several neighbours a thread; the lanes of each
 *           column are spread over the warps of the block
 *   FINISH  as ROW, but what is folded are partial results, several a thread at a time
 *
 * All threads of a warp walk the same loops around shuffles and barriers; those without work
 * (`live`, `stop`) take part with values that nobody reads.
 *
 * The body is written first; of what stands before it (pointers, sizes, helper functions) only the
 * names that are mentioned are declared. Names: v3 value 3, n0 extent of axis 0, i0 index along it,
 * p2 access 2, s2_0 its stride along axis 0, q2 where it begins for the row, x2 elements loaded, y2
 * results, lane5 the lanes of reduction 5, stack5 its block results. */
#include "jit/cuda/cuda_gen.h"

enum { HEAD, NAMES, SIZES, UNIFORMS, BODY, PARTS };
_Static_assert((int)PARTS == (int)CUDA_PARTS, "the parts have names");

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
static bool mentioned(const cuda_gen *g, const char *word) {
    for (int p = 0; p < PARTS; p++)
        if (has_word(g->part[p].p, word)) return true;
    return false;
}

static void uniforms(cuda_gen *g) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        prim_instr count = {.prim = PRIM_CONVERT, .type = i->p.type, .from = ETCH_I64};
        if (!etch__loop_uniform(i) || !mentioned(g, etch__cuda_text("v%d", v).s)) continue;
        etch__cuda_margin(g);
        etch__text_put(g->t, "const %s v%d = ", type_of(g, v), v);
        if (i->p.prim == PRIM_CONST) etch__cuda_constant(g->t, &i->p);
        else if (i->p.prim == PRIM_SCALAR) etch__cuda_scalar(g->t, &i->p);
        else etch__cuda_prim(g->t, &count, "(i64)reduced", "", "");
        etch__text_put(g->t, ";");
        etch__cuda_put_comment(g, i);
    }
}

/* A product of extents under a name, where that is mentioned. */
static void size_of(cuda_gen *g, const char *called, int from, int to) {
    if (!mentioned(g, called)) return;
    etch__cuda_margin(g);
    etch__text_put(g->t, "const idx %s = ", called);
    for (int x = from; x < to; x++) etch__text_put(g->t, "%sn%d", x > from ? " * " : "", x);
    etch__text_put(g->t, from < to ? ";\n" : "1;\n");
}

static void sizes(cuda_gen *g) {
    bool leaves = mentioned(g, "leaves"), blocks = leaves || mentioned(g, "blocks");
    if (blocks || mentioned(g, "reduced")) {
        etch__cuda_margin(g);
        etch__text_put(g->t, "const idx reduced = ");
        for (int x = g->k->npar; x < g->naxes; x++)
            etch__text_put(g->t, "%sn%d", x > g->k->npar ? " * " : "", x);
        etch__text_put(g->t, ";\n");
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

static void put_access_comment(cuda_gen *g, int a) {
    const loop_access *x = &g->k->access[a];
    etch__text_put(g->t, " // %s %s [", x->store ? "store" : "load",
                   etch_dtype_name(dtype_of(g, a)));
    for (int i = 0; i < g->naxes; i++)
        etch__text_put(g->t, "%s%c", i && i == g->k->npar ? "|" : "", "01s"[x->step[i]]);
    etch__text_put(g->t, "]\n");
}

static void names(cuda_gen *g) {
    if (g->v->tested) etch__cuda_line(g, "if (*a.failed != ~0ull) return;");
    for (int a = 0; a < g->k->naccesses; a++) {
        const char *t = storage_of(g, a);
        if (!mentioned(g, etch__cuda_text("p%d", a).s)) continue;
        etch__cuda_margin(g);
        etch__text_put(g->t, "%s *const p%d = (%s *)a.ptr[%d];", t, a, t, a);
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

static void put_args(cuda_gen *g) {
    const loop_kernel *k = g->k;
    etch__cuda_line(g, "struct etch_args {");
    etch__cuda_line(g, "void *ptr[%d];", k->naccesses + 1);
    if (g->naxes) etch__cuda_line(g, "long long dims[%d];", g->naxes * (k->naccesses + 1));
    if (k->nscalars) etch__cuda_line(g, "unsigned long long cells[%d];", k->nscalars);
    if (g->v->tested) etch__cuda_line(g, "const volatile unsigned long long *failed;");
    g->indent--;
    etch__cuda_line(g, "};\n");
}

static void head(cuda_gen *g) {
    static const char *const variants[] = {"map", "row", "column"};
    static const char *const splits[] = {"", ", partial", ", finish"};
    const loop_kernel *k = g->k;
    char symbol[LOOP_SYMBOL_MAX];
    etch__loop_symbol(k, symbol);
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

static void body(cuda_gen *g) {
    etch__cuda_enter_stage(g, 0);
    if (g->k->split == SPLIT_FINISH) etch__cuda_whole_rows(g);
    else if (etch__cuda_has_sweeps(g->k)) etch__cuda_sweeps(g);
    else if (g->k->variant == LOOP_COLUMN) etch__cuda_columns(g);
    else if (g->k->variant == LOOP_ROW && g->k->split == SPLIT_PARTIAL) etch__cuda_row_blocks(g);
    else if (g->k->variant == LOOP_ROW) etch__cuda_whole_rows(g);
    else etch__cuda_map(g);
}

static void write_part(cuda_gen *g, int part, int indent, void (*what)(cuda_gen *)) {
    g->t = &g->part[part], g->indent = indent;
    etch__text_put(g->t, "%s", "");
    what(g);
}

static char *source(cuda_gen *g, void (*const parts[PARTS])(cuda_gen *)) {
    growing_text all = {0};
    g->naxes = g->k->npar + g->k->nred, g->l = etch__cuda_layout(g->k, g->v);
    if (g->depth && g->k->variant == LOOP_MAP) g->l.depth = g->depth;
    g->axis = etch__cuda_axis(g->k);
    etch__cuda_needed(g->k, g->needed);
    for (int p = PARTS - 1; p >= 0 && !all.failed; p--) {
        write_part(g, p, p == HEAD ? 0 : 1, parts[p]);
        all.failed = g->part[p].failed;
    }
    for (int p = 0; p < PARTS; p++) {
        if (!all.failed) etch__text_put(&all, "%s", g->part[p].p);
        etch__free(g->part[p].p);
    }
    etch__text_put(&all, "}\n");
    return etch__text_end(&all);
}

char *etch__cuda_source(const loop_kernel *k, const cuda_variant *v) {
    static void (*const parts[PARTS])(cuda_gen *) = {head, names, sizes, uniforms, body};
    cuda_gen g = {.k = k, .v = v};
    return source(&g, parts);
}

/* ---- as one step of a block ---- */

static void run_head(cuda_gen *g) {
    etch__cuda_prelude(g->t, g->v->index_bits, g->part[BODY].p);
    etch__cuda_line(g, "%s", "");
    put_args(g);
    etch__cuda_line(g, "static __device__ __forceinline__ void run(const etch_args &a) {");
    etch__cuda_line(g, "const struct { unsigned x; } blockIdx = {0}, gridDim = {1}; // one block");
}

char *etch__cuda_run_source(const loop_kernel *k, const cuda_variant *v, int depth) {
    static void (*const parts[PARTS])(cuda_gen *) = {run_head, names, sizes, uniforms, body};
    cuda_gen g = {.k = k, .v = v, .depth = depth};
    return source(&g, parts);
}

/* ---- a map as a function ---- */

static void after_head(cuda_gen *g) {
    etch__cuda_prelude(g->t, g->v->index_bits, g->part[BODY].p);
    etch__cuda_line(g, "%s", "");
    put_args(g);
    etch__cuda_margin(g);
    etch__text_put(g->t, "__device__ __forceinline__ void after(const etch_args &a, idx row, "
                         "idx first, idx columns");
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!(g->given >> a & 1)) continue;
        const char *t = etch__cuda_type(dtype_of(g, a));
        if (g->l.vector > 1) etch__text_put(g->t, ", const vec<%s, %d> x%d", t, g->l.vector, a);
        else etch__text_put(g->t, ", const %s x%d", t, a);
    }
    etch__text_put(g->t, ") {\n");
}

static void after_body(cuda_gen *g) {
    chunk c = {g->l.vector, 1, false};
    etch__cuda_enter_stage(g, 0);
    etch__cuda_line(g, "const idx index = row * columns + first;");
    if (c.vector > 1 && g->naxes == 1) etch__cuda_line(g, "const idx i0 = index;");
    if (c.vector > 1 && g->naxes == 2) etch__cuda_line(g, "const idx i0 = row, i1 = first;");
    etch__cuda_chunk_code(g, &c);
}

char *etch__cuda_after_source(const loop_kernel *k, const cuda_variant *v, uint32_t given) {
    static void (*const parts[PARTS])(cuda_gen *) = {after_head, names, sizes, uniforms,
                                                     after_body};
    cuda_gen g = {.k = k, .v = v, .given = given};
    return source(&g, parts);
}
