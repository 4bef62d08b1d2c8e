/* Loop IR -> CUDA C.
 *
 *   MAP     a thread takes chunks: `vector` neighbours along the innermost axis
 *   ROW     a team of threads holds the 64 lanes of a row; for each block of 4096 elements it adds
 *           chunks to the lanes and folds them; block results fold by pairs as they come. Where
 *           rows are few, several teams take aligned ranges of a row's blocks and fold at the end
 *   COLUMN  32 columns side by side, the lanes of each spread over the warps of the block
 *   FINISH  as ROW, but what is folded are 32 partial results at a time
 *
 * A chunk is loaded as a whole before anything of it is stored, so an output may be the memory of an
 * input with the same map. All threads of a warp walk the same loops around shuffles and barriers;
 * those without work (`live`, `stop`) take part with values that nobody reads.
 *
 * The body is written first; of what stands before it (pointers, sizes, helper functions) only the
 * names that are mentioned are declared. Names: v3 value 3, n0 extent of axis 0, i0 index along it,
 * p2 access 2, s2_0 its stride along axis 0, q2 where it begins for the row, x2 elements loaded, y2
 * results, lane5 the lanes of reduction 5, stack5 its block results. */
#include "jit/cuda_gen.h"

enum { HEAD, NAMES, SIZES, UNIFORMS, BODY, PARTS };

typedef struct gen {
    const loop_kernel *k;
    const cuda_variant *v;
    cuda_layout l;
    int naxes, axis; /* axis: see etch__cuda_axis */
    bool needed[LOOP_MAX_CODE];
    cuda_text part[PARTS], *t;
    int indent;
} gen;

typedef struct name {
    char s[48];
} name;

static void line(gen *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
static name text(const char *format, ...) __attribute__((format(printf, 1, 2)));

static name text(const char *format, ...) {
    name n;
    va_list args;
    va_start(args, format);
    vsnprintf(n.s, sizeof n.s, format, args);
    va_end(args);
    return n;
}

static void margin(gen *g) { etch__cuda_put(g->t, "%*s", 4 * g->indent, ""); }

/* One line of code. A line that ends in { is followed by deeper ones, until close. */
static void line(gen *g, const char *format, ...) {
    char s[320];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s, sizeof s, format, args);
    va_end(args);
    margin(g);
    etch__cuda_put(g->t, "%s\n", s);
    if (n > 0 && n < (int)sizeof s && s[n - 1] == '{') g->indent++;
}

static void close(gen *g) {
    g->indent--;
    line(g, "}");
}

static void unrolled(gen *g, const char *var, int n) {
    line(g, "#pragma unroll");
    line(g, "for (int %s = 0; %s < %d; %s++) {", var, var, n, var);
}

/* ---- what the code has ---- */

static etch_dtype dtype_of(const gen *g, int a) { return (etch_dtype)g->k->access[a].dtype; }
static const char *storage_of(const gen *g, int a) { return etch__cuda_storage(dtype_of(g, a)); }
static const char *type_of(const gen *g, int v) {
    return etch__cuda_type((etch_dtype)g->k->code[v].p.type);
}
static bool used(const gen *g, int a, int stage) { return etch__cuda_uses(g->k, a, stage); }
static bool loaded(const gen *g, int a, int stage) {
    return !g->k->access[a].store && used(g, a, stage);
}
static bool is_reduce(const gen *g, int v) { return g->k->code[v].kind == LOOP_REDUCE; }

/* Reductions in the order of the code. */
#define FOR_REDUCTIONS(v)                                                                          \
    for (int v = 0; v < g->k->ncode; v++)                                                          \
        if (is_reduce(g, v))

/* ---- places ---- */

static bool moves(const gen *g, int x) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->k->access[a].step[x] != STEP_ZERO && (used(g, a, 0) || used(g, a, 1))) return true;
    return false;
}

/* Splits the row-major number over axes [from, to): i<from> ... as far as they are wanted. */
static void decompose(gen *g, const char *number, int from, int to) {
    name left = text("%s", number);
    int first = from;
    while (first < to && !moves(g, first)) first++;
    for (int x = to - 1; x >= first; x--) {
        if (x == from) {
            line(g, "const idx i%d = %s;", x, left.s);
            return;
        }
        line(g, "const idx r%d = quot(%s, n%d);", x, left.s, x);
        if (moves(g, x)) line(g, "const idx i%d = %s - r%d * n%d;", x, left.s, x, x);
        left = text("r%d", x);
    }
}

/* Elements from [0, ..., 0] to the indices along axes [from, to); "" for none. */
typedef struct offset {
    char s[200];
} offset;

static offset offset_over(const gen *g, int a, int from, int to) {
    offset o = {""};
    int n = 0;
    for (int x = from; x < to; x++) {
        int step = g->k->access[a].step[x];
        if (step == STEP_ZERO) continue;
        n += snprintf(o.s + n, sizeof o.s - (size_t)n,
                      step == STEP_ONE ? "%si%d" : "%si%d * s%d_%d", n ? " + " : "", x, a, x);
    }
    return o;
}

/* ---- chunks ---- */

/* How elements of an access come in a chunk of stage 0. */
typedef enum coming {
    SAME,   /* one for the whole row: loaded before */
    SINGLE, /* one for the chunk */
    VECTOR, /* neighbours */
    SPREAD  /* at a stride */
} coming;

/* vector, depth: elements and chunks that the code at hand takes. checked: a chunk may begin or end
 * outside. */
typedef struct chunk {
    int vector, depth;
    bool checked;
} chunk;

static bool same_in_row(const gen *g, int a) {
    if (g->k->variant == LOOP_MAP) return false;
    for (int x = g->k->npar; x < g->naxes; x++)
        if (g->k->access[a].step[x] != STEP_ZERO) return false;
    return true;
}

static coming coming_of(const gen *g, const chunk *c, int a) {
    if (!g->k->access[a].store && same_in_row(g, a)) return SAME;
    int step = g->axis < 0 ? STEP_ZERO : g->k->access[a].step[g->axis];
    if (c->vector == 1 || (step == STEP_ZERO && !g->k->access[a].store)) return SINGLE;
    return step == STEP_ONE ? VECTOR : SPREAD;
}

/* Where the row's part of an access begins, and the offset of a chunk in it. */
static const char *base_of(const gen *g) { return g->k->variant == LOOP_MAP ? "p" : "q"; }

static offset chunk_offset(const gen *g, int a) {
    int from = g->k->variant == LOOP_MAP ? 0 : g->k->npar;
    offset o = offset_over(g, a, from, g->naxes);
    return o.s[0] ? o : (offset){"0"};
}

static name along(const gen *g, int a) {
    int step = g->axis < 0 ? STEP_ZERO : g->k->access[a].step[g->axis];
    return step == STEP_ZERO  ? text("0")
           : step == STEP_ONE ? text("j")
                              : text("j * s%d_%d", a, g->axis);
}

/* x2, x2[k], x2.e[j] or x2[k].e[j] */
static name element(const gen *g, const chunk *c, int a) {
    coming how = coming_of(g, c, a);
    bool lanes = how == VECTOR || how == SPREAD;
    return text("x%d%s%s", a, c->depth > 1 && how != SAME ? "[k]" : "", lanes ? ".e[j]" : "");
}

static name vector_type(const gen *g, const chunk *c, int a) {
    return text("vec<%s, %d>", storage_of(g, a), c->vector);
}

static bool declared_by_load(const chunk *c, coming how) {
    return c->depth == 1 && (how == SINGLE || (how == VECTOR && !c->checked));
}

static void declare_loaded(gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++) {
        coming how = coming_of(g, c, a);
        if (!loaded(g, a, 0) || how == SAME || declared_by_load(c, how)) continue;
        name type = how == SINGLE ? text("%s", storage_of(g, a)) : vector_type(g, c, a);
        if (c->depth > 1) line(g, "%s x%d[%d];", type.s, a, c->depth);
        else line(g, "%s x%d;", type.s, a);
    }
}

static void load_spread(gen *g, const chunk *c, int a) {
    line(g, "#pragma unroll");
    line(g, "for (int j = 0; j < %d; j++)", c->vector);
    line(g, "    %s%s = %s%d[%s + %s];", c->checked ? "if (j < m) " : "", element(g, c, a).s,
         base_of(g), a, chunk_offset(g, a).s, along(g, a).s);
}

static void load_vector(gen *g, const chunk *c, int a, const char *to, const char *o) {
    name type = vector_type(g, c, a);
    if (!c->checked) {
        line(g, "%s = *(const %s *)(%s%d + %s);", to, type.s, base_of(g), a, o);
        return;
    }
    line(g, "if (m >= %d) {", c->vector);
    line(g, "%s = *(const %s *)(%s%d + %s);", to, type.s, base_of(g), a, o);
    g->indent--;
    line(g, "} else {");
    load_spread(g, c, a);
    close(g);
}

static void load_chunk(gen *g, const chunk *c, int a) {
    coming how = coming_of(g, c, a);
    offset o = chunk_offset(g, a);
    name to = text("x%d%s", a, c->depth > 1 ? "[k]" : "");
    if (how == SPREAD) {
        load_spread(g, c, a);
        return;
    }
    if (declared_by_load(c, how)) {
        name type = how == SINGLE ? text("%s", storage_of(g, a)) : vector_type(g, c, a);
        to = text("const %s x%d", type.s, a);
    }
    if (how == SINGLE) line(g, "%s = %s%d[%s];", to.s, base_of(g), a, o.s);
    else load_vector(g, c, a, to.s, o.s);
}

/* ---- values ---- */

static void put_comment(gen *g, const loop_instr *i) {
    const char *type = etch_dtype_name((etch_dtype)i->p.type);
    if (i->kind == LOOP_PRIM)
        etch__cuda_put(g->t, " // %s %s\n", etch__prims[i->p.prim].text, type);
    else
        etch__cuda_put(g->t, " // %s %s @%d\n", i->kind == LOOP_LOAD ? "load" : "store",
                       etch_dtype_name(dtype_of(g, (int)i->p.imm.i)), (int)i->p.imm.i);
}

static void put_prim(gen *g, int v, const char *index) {
    const loop_instr *i = &g->k->code[v];
    name x[3];
    for (int n = 0; n < 3; n++) x[n] = text("v%d", etch__loop_operand(i, n));
    margin(g);
    etch__cuda_put(g->t, "const %s v%d = ", type_of(g, v), v);
    if (i->p.prim == PRIM_INDEX) etch__cuda_put(g->t, "(i64)(%s)", index);
    else etch__cuda_prim(g->t, &i->p, x[0].s, x[1].s, x[2].s);
    etch__cuda_put(g->t, ";");
    put_comment(g, i);
}

static void put_load(gen *g, int v, const char *e) {
    const loop_instr *i = &g->k->code[v];
    margin(g);
    etch__cuda_put(g->t, "const %s v%d = ", type_of(g, v), v);
    etch__cuda_from_storage(g->t, dtype_of(g, (int)i->p.imm.i), e);
    etch__cuda_put(g->t, ";");
    put_comment(g, i);
}

static void put_store(gen *g, const loop_instr *i, const char *to) {
    name v = text("v%d", i->p.a);
    margin(g);
    etch__cuda_put(g->t, "%s = ", to);
    etch__cuda_to_storage(g->t, dtype_of(g, (int)i->p.imm.i), v.s);
    etch__cuda_put(g->t, ";");
    put_comment(g, i);
}

static void put_combine(gen *g, int v, const char *to, const char *acc, const char *x) {
    const loop_instr *i = &g->k->code[v];
    margin(g);
    etch__cuda_put(g->t, "%s = ", to);
    etch__cuda_combine(g->t, (reduce_kind)i->p.imm.i, (etch_dtype)i->p.type, acc, x);
    etch__cuda_put(g->t, ";\n");
}

static void store_element(gen *g, const chunk *c, const loop_instr *i) {
    int a = (int)i->p.imm.i;
    if (coming_of(g, c, a) == VECTOR) {
        put_store(g, i, text("y%d.e[j]", a).s);
        return;
    }
    offset o = chunk_offset(g, a), to;
    if (c->vector == 1) snprintf(to.s, sizeof to.s, "%s%d[%.150s]", base_of(g), a, o.s);
    else snprintf(to.s, sizeof to.s, "%s%d[%.150s + %s]", base_of(g), a, o.s, along(g, a).s);
    put_store(g, i, to.s);
}

static void add_to_lane(gen *g, const chunk *c, int v) {
    name lane = text("lane%d[%s]", v, c->vector > 1 ? "j" : "0"),
         x = text("v%d", g->k->code[v].p.a);
    if (g->l.chunks > 1) lane = text("lane%d[k %% %d]", v, g->l.chunks);
    put_combine(g, v, lane.s, lane.s, x.s);
}

/* Stage 0 for one element. */
static void element_code(gen *g, const chunk *c) {
    const char *index = c->vector > 1 ? "index + j" : "index";
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (i->kind == LOOP_REDUCE) add_to_lane(g, c, v);
        else if (i->stage != 0 || etch__loop_uniform(i) || !g->needed[v]) continue;
        else if (i->kind == LOOP_LOAD) put_load(g, v, element(g, c, (int)i->p.imm.i).s);
        else if (i->kind == LOOP_STORE) store_element(g, c, i);
        else put_prim(g, v, index);
    }
}

static bool is_result(const gen *g, const chunk *c, int a) {
    return g->k->access[a].store && used(g, a, 0) && coming_of(g, c, a) == VECTOR;
}

static void declare_results(gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (is_result(g, c, a)) line(g, "%s y%d;", vector_type(g, c, a).s, a);
}

static void store_results(gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!is_result(g, c, a)) continue;
        offset o = chunk_offset(g, a);
        if (c->checked) line(g, "if (m >= %d) {", c->vector);
        line(g, "*(%s *)(%s%d + %s) = y%d;", vector_type(g, c, a).s, base_of(g), a, o.s, a);
        if (!c->checked) continue;
        g->indent--;
        line(g, "} else {");
        line(g, "#pragma unroll");
        line(g, "for (int j = 0; j < %d; j++)", c->vector);
        line(g, "    if (j < m) %s%d[%s + j] = y%d.e[j];", base_of(g), a, o.s, a);
        close(g);
    }
}

/* ---- where chunk k lies ---- */

static bool wants_index(const gen *g, int stage) {
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (i->stage == stage && i->kind == LOOP_PRIM && i->p.prim == PRIM_INDEX && g->needed[v])
            return true;
    }
    return false;
}

/* Elements between the chunks of a thread. */
static int chunk_stride(const gen *g) {
    if (g->k->variant == LOOP_MAP) return g->l.threads;
    return g->k->variant == LOOP_ROW ? g->l.team * g->l.vector : g->l.teams;
}

/* What of a chunk comes now: its loads, its code and stores, or both. */
typedef struct phase {
    bool loads, code;
} phase;

static bool stores_chunks(const gen *g) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->k->access[a].store && used(g, a, 0)) return true;
    return false;
}

static bool loads_chunks(const gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (loaded(g, a, 0) && coming_of(g, c, a) != SAME) return true;
    return false;
}

static bool place_opens(const gen *g, const chunk *c) {
    if (c->depth == 1) return false;
    return g->k->variant == LOOP_MAP ? g->l.vector == 1 : c->checked;
}

static void place_in_map(gen *g, const chunk *c) {
    if (g->l.vector > 1) return; /* map_vectors has done it */
    if (c->depth > 1) line(g, "const idx index = at + k * %d;", chunk_stride(g));
    if (c->depth > 1) line(g, "if (index < units) {");
    decompose(g, "index", 0, g->naxes);
}

static void place_in_row(gen *g, const chunk *c, phase now) {
    bool offsets = (now.loads && loads_chunks(g, c)) || (now.code && stores_chunks(g));
    bool index = now.code && wants_index(g, 0);
    const char *r = c->depth > 1 ? "r" : "at";
    if (c->depth > 1 && (offsets || index || c->checked))
        line(g, "const idx r = at + k * %d;", chunk_stride(g));
    if (c->checked && c->depth > 1) line(g, "if (r < stop) {");
    if (c->checked && c->vector > 1) line(g, "const idx m = stop - %s;", r);
    if (offsets) decompose(g, r, g->k->npar, g->naxes);
    if (index) line(g, "const idx index = row * reduced + %s;", r);
}

static void for_chunks(gen *g, const chunk *c, phase now) {
    if (c->depth > 1) unrolled(g, "k", c->depth);
    if (g->k->variant == LOOP_MAP) place_in_map(g, c);
    else place_in_row(g, c, now);
}

static void end_chunks(gen *g, const chunk *c) {
    if (place_opens(g, c)) close(g);
    if (c->depth > 1) close(g);
}

static void load_chunks(gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (loaded(g, a, 0) && coming_of(g, c, a) != SAME) load_chunk(g, c, a);
}

/* Loads, stage 0, stores: all of them in this order. */
static void chunk_code(gen *g, const chunk *c) {
    bool apart = c->depth > 1 && loads_chunks(g, c);
    declare_loaded(g, c);
    for_chunks(g, c, (phase){true, !apart});
    load_chunks(g, c);
    if (apart) end_chunks(g, c), for_chunks(g, c, (phase){false, true});
    declare_results(g, c);
    if (c->vector > 1) unrolled(g, "j", c->vector);
    if (c->vector > 1 && c->checked) line(g, "if (j >= m) break;");
    element_code(g, c);
    if (c->vector > 1) close(g);
    store_results(g, c);
    end_chunks(g, c);
}

/* ---- MAP ---- */

static void map_vectors(gen *g) {
    int x = g->axis, n = g->l.vector;
    chunk whole = {n, 1, false}, one = {1, 1, false};
    line(g, "const idx per_row = (n%d + %d) / %d;", x, n - 1, n);
    line(g, "const idx units = %sper_row;", x > 0 ? "outer * " : "");
    line(g,
         "for (idx u = (idx)blockIdx.x * %d + threadIdx.x; u < units; u += (idx)gridDim.x * %d) {",
         g->l.threads, g->l.threads);
    if (x > 0) line(g, "const idx row = quot(u, per_row), first = (u - row * per_row) * %d;", n);
    else line(g, "const idx first = u * %d;", n);
    decompose(g, "row", 0, x);
    line(g, "if (first + %d <= n%d) {", n, x);
    line(g, "const idx i%d = first;", x);
    if (wants_index(g, 0))
        line(g, x > 0 ? "const idx index = row * n%d + first;" : "const idx index = first;", x);
    chunk_code(g, &whole);
    g->indent--;
    line(g, "} else {");
    line(g, "#pragma unroll 1");
    line(g, "for (idx i%d = first; i%d < n%d; i%d++) {", x, x, x, x);
    if (wants_index(g, 0))
        line(g, x > 0 ? "const idx index = row * n%d + i%d;" : "const idx index = i%d;", x, x);
    chunk_code(g, &one);
    close(g), close(g), close(g);
}

static void map_elements(gen *g) {
    chunk c = {1, g->l.depth, false};
    int step = g->l.threads * g->l.depth;
    const char *at = c.depth > 1 ? "at" : "index";
    line(g, "const idx units = %s;", g->k->npar ? "rows" : "1");
    line(g,
         "for (idx %s = (idx)blockIdx.x * %d + threadIdx.x; %s < units; %s += (idx)gridDim.x * %d) "
         "{",
         at, step, at, at, step);
    chunk_code(g, &c);
    close(g);
}

/* ---- rows: what a row has before its blocks ---- */

/* Where each access begins in the row whose indices are there, and what it loads once. */
static void begin_row(gen *g) {
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!used(g, a, 0) && !used(g, a, 1)) continue;
        offset o = offset_over(g, a, 0, g->k->npar);
        line(g, "%s *const q%d = p%d%s%s;", storage_of(g, a), a, a, o.s[0] ? " + " : "", o.s);
    }
    for (int a = 0; a < g->k->naccesses; a++)
        if (loaded(g, a, 0) && same_in_row(g, a))
            line(g, "const %s x%d = live ? *q%d : (%s)0;", storage_of(g, a), a, a,
                 storage_of(g, a));
}

static int levels(const gen *g) { return g->v->index_bits == 32 ? 20 : 52; }

static void begin_stack(gen *g) {
    FOR_REDUCTIONS(v) line(g, "%s stack%d[%d];", type_of(g, v), v, levels(g));
    line(g, "int top = 0;");
}

/* Swallows one entry of the stack for each trailing one bit of the leaf's number n. */
static void push(gen *g, const char *n) {
    line(g, "for (idx b = %s; b & 1; b >>= 1) {", n);
    line(g, "top--;");
    FOR_REDUCTIONS(v) {
        name lane = text("lane%d[0]", v), entry = text("stack%d[top]", v);
        put_combine(g, v, lane.s, entry.s, lane.s);
    }
    close(g);
    FOR_REDUCTIONS(v) line(g, "stack%d[top] = lane%d[0];", v, v);
    line(g, "top++;");
}

static void finish_stack(gen *g) {
    line(g, "for (; top > 1; top--) {");
    FOR_REDUCTIONS(v) {
        name a = text("stack%d[top - 2]", v), b = text("stack%d[top - 1]", v);
        put_combine(g, v, a.s, a.s, b.s);
    }
    close(g);
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
    line(g, "if (%s) {", who);
    FOR_REDUCTIONS(v)
    if (reads_value(g, v)) line(g, "const %s v%d = stack%d[0];", type_of(g, v), v, v);
    for (int a = 0; a < g->k->naccesses; a++)
        if (loaded(g, a, 1)) line(g, "const %s x%d = *q%d;", storage_of(g, a), a, a);
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        int a = (int)i->p.imm.i;
        if (i->stage != 1 || i->kind == LOOP_REDUCE || etch__loop_uniform(i) || !g->needed[v])
            continue;
        if (i->kind == LOOP_LOAD) put_load(g, v, text("x%d", a).s);
        else if (i->kind == LOOP_STORE) put_store(g, i, text("*q%d", a).s);
        else put_prim(g, v, "row");
    }
    close(g);
}

static void write_cells(gen *g, const char *who) {
    int q = 0;
    line(g, "if (%s) {", who);
    FOR_REDUCTIONS(v) {
        margin(g);
        etch__cuda_put(g->t, "*(%s *)(cells + (%d * rows + row) * blocks + block) = lane%d[0];\n",
                       type_of(g, v), q++, v);
    }
    close(g);
}

/* ---- leaves: 64 lanes over a block ---- */

static void begin_lanes(gen *g, int n) {
    FOR_REDUCTIONS(v) {
        const loop_instr *i = &g->k->code[v];
        line(g, "%s lane%d[%d];", type_of(g, v), v, n);
        line(g, "for (int l = 0; l < %d; l++) lane%d[l] =", n, v);
        g->t->n--; /* the line goes on */
        etch__cuda_put(g->t, " ");
        etch__cuda_identity(g->t, (reduce_kind)i->p.imm.i, (etch_dtype)i->p.type);
        etch__cuda_put(g->t, ";\n");
    }
}

/* Adds the elements of `block` that the thread has; `who` has any. */
static void add_block(gen *g, const char *who, const char *first) {
    int n = g->l.vector, span = chunk_stride(g);
    chunk many = {n, g->l.depth, false}, few = {n, g->l.chunks, true};
    begin_lanes(g, n * g->l.chunks);
    line(g, "idx at = block * %d + %s;", REDUCE_BLOCK, first);
    line(g, "const idx past = (block + 1) * %d;", REDUCE_BLOCK);
    line(g, "const idx stop = !(%s) ? 0 : past < reduced ? past : reduced;", who);
    line(g, "for (; at + %d <= stop; at += %d) {", (g->l.depth - 1) * span + n, g->l.depth * span);
    chunk_code(g, &many);
    close(g);
    line(g, "for (; at < stop; at += %d) {", g->l.chunks * span);
    chunk_code(g, &few);
    close(g);
}

/* lane[l] = op(lane[l], lane[l + w]) for those w whose partner the same thread has. */
static void fold_inside(gen *g, int v, int n) {
    if (n < 2) return;
    line(g, "#pragma unroll");
    line(g, "for (int w = %d; w >= 1; w /= 2)", n / 2);
    line(g, "    for (int l = 0; l < w; l++) {");
    g->indent++;
    line(g, "const %s x = lane%d[l], y = lane%d[l + w];", type_of(g, v), v, v);
    name to = text("lane%d[l]", v);
    put_combine(g, v, to.s, "x", "y");
    g->indent -= 2;
    line(g, "    }");
}

static void fold_between(gen *g, int v) {
    line(g, "#pragma unroll");
    line(g, "for (int w = %d; w >= 1; w /= 2)", g->l.team / 2);
    line(g, "    for (int l = 0; l < %d; l++) {", g->l.vector);
    g->indent++;
    line(g, "const %s x = lane%d[l], y = down(x, w, %d);", type_of(g, v), v, g->l.team);
    name to = text("lane%d[l]", v);
    put_combine(g, v, to.s, "x", "y");
    g->indent -= 2;
    line(g, "    }");
}

/* Lanes lie chunk by chunk, in a chunk thread by thread, in a thread side by side. */
static void fold_row_lanes(gen *g) {
    FOR_REDUCTIONS(v) {
        if (g->l.chunks > 1) fold_inside(g, v, g->l.chunks);
        fold_between(g, v);
        if (g->l.vector > 1) fold_inside(g, v, g->l.vector);
    }
}

/* Those of one column are spread over the warps. */
static void fold_column_lanes(gen *g) {
    FOR_REDUCTIONS(v) {
        const char *t = type_of(g, v);
        fold_inside(g, v, g->l.chunks);
        line(g, "{");
        line(g, "%s *const mine = (%s *)(shared + threadIdx.x);", t, t);
        line(g, "*mine = lane%d[0];", v);
        line(g, "__syncthreads();");
        line(g, "for (int w = %d; w >= 1; w /= 2) {", g->l.teams / 2);
        line(g, "if (t < w) {");
        line(g, "const %s x = *mine, y = *(%s *)(shared + threadIdx.x + w * %d);", t, t,
             CUDA_COLUMNS);
        put_combine(g, v, "*mine", "x", "y");
        close(g);
        line(g, "__syncthreads();");
        close(g);
        line(g, "lane%d[0] = *mine;", v);
        close(g);
    }
}

/* FINISH: cells block * 32 ... of each reduction, by pairs in the warp. */
static void fold_cells(gen *g) {
    int q = 0;
    line(g, "const idx cell = leaf * %d + t;", CUDA_LEAF);
    FOR_REDUCTIONS(v) {
        const loop_instr *i = &g->k->code[v];
        line(g, "%s lane%d[1] = {", type_of(g, v), v);
        g->indent--, g->t->n--;
        etch__cuda_identity(g->t, (reduce_kind)i->p.imm.i, (etch_dtype)i->p.type);
        etch__cuda_put(g->t, "};\n");
        margin(g);
        etch__cuda_put(g->t, "if (live && cell < blocks) lane%d[0] = ", v);
        etch__cuda_put(g->t, "*(%s *)(cells + (%d * rows + row) * blocks + cell);\n", type_of(g, v),
                       q++);
        line(g, "for (int w = 1; w < %d; w *= 2) {", CUDA_LEAF);
        line(g, "const %s x = lane%d[0], y = down(x, w, 32);", type_of(g, v), v);
        line(g, "if (t + w < 32 && cell + w < blocks)");
        g->indent++;
        name to = text("lane%d[0]", v);
        put_combine(g, v, to.s, "x", "y");
        g->indent--;
        close(g);
    }
}

/* ---- ROW and FINISH ---- */

static void team_of_thread(gen *g) {
    line(g, "const int t = threadIdx.x %% %d, team = threadIdx.x / %d;", g->l.team, g->l.team);
}

/* Teams of one row fold their results by pairs. */
static void fold_teams(gen *g) {
    line(g, "if (share > 1) {");
    line(g, "const idx parts = (leaves + span - 1) / span;");
    FOR_REDUCTIONS(v) {
        const char *t = type_of(g, v);
        line(g, "{");
        line(g, "%s *const mine = (%s *)(shared + team);", t, t);
        line(g, "if (t == 0 && top > 0) *mine = stack%d[0];", v);
        line(g, "__syncthreads();");
        line(g, "for (idx w = 1; w < parts; w *= 2) {");
        line(g, "if (t == 0 && part %% (2 * w) == 0 && part + w < parts) {");
        line(g, "const %s x = *mine, y = *(%s *)(shared + team + w);", t, t);
        put_combine(g, v, "*mine", "x", "y");
        close(g);
        line(g, "__syncthreads();");
        close(g);
        line(g, "if (t == 0 && top > 0) stack%d[0] = *mine;", v);
        close(g);
    }
    close(g);
}

/* How many teams share a row (see etch__cuda_shape), and how many leaves each of them takes. */
static void share_rows(gen *g) {
    line(g, "__shared__ u64 shared[%d];", g->l.teams);
    line(g, "idx share = 1, span = 1;");
    line(g,
         "while (share < %d && share < leaves && rows * share < (idx)gridDim.x * %d) share *= 2;",
         g->l.teams, g->l.teams);
    line(g, "while (span * share < leaves) span *= 2;");
    line(g, "const idx together = %d / share, part = team %% share;", g->l.teams);
}

static void whole_rows(gen *g) {
    bool cells = g->k->split == SPLIT_FINISH;
    team_of_thread(g);
    share_rows(g);
    line(g, "for (idx first = (idx)blockIdx.x * together; first < rows; "
            "first += (idx)gridDim.x * together) {");
    line(g, "const idx row = first + team / share;");
    line(g, "const bool live = row < rows;");
    decompose(g, "row", 0, g->k->npar);
    begin_row(g);
    begin_stack(g);
    line(g, "for (idx n = 0; n < span; n++) {");
    line(g, "const idx %s = part * span + n;", cells ? "leaf" : "block");
    line(g, "const bool there = live && %s < leaves;", cells ? "leaf" : "block");
    if (cells) fold_cells(g);
    else add_block(g, "there", g->l.vector > 1 ? text("t * %d", g->l.vector).s : "t");
    if (!cells) fold_row_lanes(g);
    line(g, "if (there) {");
    push(g, "n");
    close(g), close(g);
    finish_stack(g);
    fold_teams(g);
    finish_row(g, "live && part == 0 && t == 0");
    close(g);
}

static void row_blocks(gen *g) {
    team_of_thread(g);
    line(g, "const idx units = rows * blocks;");
    line(g, "for (idx first = (idx)blockIdx.x * %d; first < units; first += (idx)gridDim.x * %d) {",
         g->l.teams, g->l.teams);
    line(g,
         "const idx unit = first + team, row = quot(unit, blocks), block = unit - row * blocks;");
    line(g, "const bool live = unit < units;");
    decompose(g, "row", 0, g->k->npar);
    begin_row(g);
    add_block(g, "live", g->l.vector > 1 ? text("t * %d", g->l.vector).s : "t");
    fold_row_lanes(g);
    write_cells(g, "live && t == 0");
    close(g);
}

/* ---- COLUMN ---- */

static void column_place(gen *g) {
    int x = g->k->npar - 1;
    bool partial = g->k->split == SPLIT_PARTIAL;
    const char *unit = partial ? "whole" : "unit";
    if (partial)
        line(g, "const idx whole = quot(unit, blocks), block = unit - whole * blocks;");
    if (x > 0) line(g, "const idx line = quot(%s, tiles);", unit);
    if (x > 0) line(g, "const idx i%d = (%s - line * tiles) * %d + c;", x, unit, CUDA_COLUMNS);
    else line(g, "const idx i%d = %s * %d + c;", x, unit, CUDA_COLUMNS);
    if (partial || wants_index(g, 0) || wants_index(g, 1)) {
        if (x > 0) line(g, "const idx row = line * n%d + i%d;", x, x);
        else line(g, "const idx row = i%d;", x);
    }
    line(g, "const bool live = i%d < n%d;", x, x);
    decompose(g, "line", 0, x);
    begin_row(g);
}

static void columns(gen *g) {
    bool partial = g->k->split == SPLIT_PARTIAL;
    int x = g->k->npar - 1;
    line(g, "const int c = threadIdx.x %% %d, t = threadIdx.x / %d;", CUDA_COLUMNS, CUDA_COLUMNS);
    line(g, "__shared__ u64 shared[%d];", g->l.threads);
    line(g, "const idx tiles = (n%d + %d) / %d;", x, CUDA_COLUMNS - 1, CUDA_COLUMNS);
    line(g, "const idx units = %stiles%s;", x > 0 ? "outer * " : "", partial ? " * blocks" : "");
    line(g, "for (idx unit = blockIdx.x; unit < units; unit += gridDim.x) {");
    column_place(g);
    if (!partial) begin_stack(g);
    if (!partial) line(g, "for (idx block = 0; block < blocks; block++) {");
    add_block(g, "live", "t");
    fold_column_lanes(g);
    if (partial) write_cells(g, "live && t == 0");
    if (!partial) push(g, "block"), close(g), finish_stack(g), finish_row(g, "live && t == 0");
    close(g);
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
        if (!etch__loop_uniform(i) || !mentioned(g, text("v%d", v).s)) continue;
        margin(g);
        etch__cuda_put(g->t, "const %s v%d = ", type_of(g, v), v);
        if (i->p.prim == PRIM_CONST) etch__cuda_constant(g->t, &i->p);
        else if (i->p.prim == PRIM_SCALAR) etch__cuda_scalar(g->t, &i->p);
        else etch__cuda_prim(g->t, &count, "(i64)reduced", "", "");
        etch__cuda_put(g->t, ";");
        put_comment(g, i);
    }
}

/* A product of extents under a name, where that is mentioned. */
static void size_of(gen *g, const char *called, int from, int to) {
    if (!mentioned(g, called)) return;
    margin(g);
    etch__cuda_put(g->t, "const idx %s = ", called);
    for (int x = from; x < to; x++) etch__cuda_put(g->t, "%sn%d", x > from ? " * " : "", x);
    etch__cuda_put(g->t, from < to ? ";\n" : "1;\n");
}

static void sizes(gen *g) {
    bool leaves = mentioned(g, "leaves"), blocks = leaves || mentioned(g, "blocks");
    if (blocks || mentioned(g, "reduced")) {
        margin(g);
        etch__cuda_put(g->t, "const idx reduced = ");
        for (int x = g->k->npar; x < g->naxes; x++)
            etch__cuda_put(g->t, "%sn%d", x > g->k->npar ? " * " : "", x);
        etch__cuda_put(g->t, ";\n");
    }
    size_of(g, "rows", 0, g->k->npar);
    size_of(g, "outer", 0, g->k->npar - 1);
    if (blocks) line(g, "const idx blocks = (reduced + %d) / %d;", REDUCE_BLOCK - 1, REDUCE_BLOCK);
    if (leaves && g->k->split == SPLIT_FINISH)
        line(g, "const idx leaves = (blocks + %d) / %d;", CUDA_LEAF - 1, CUDA_LEAF);
    else if (leaves) line(g, "const idx leaves = blocks;");
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
    for (int a = 0; a < g->k->naccesses; a++) {
        const char *t = storage_of(g, a);
        if (!mentioned(g, text("p%d", a).s)) continue;
        margin(g);
        etch__cuda_put(g->t, "%s *const p%d = (%s *)a.ptr[%d];", t, a, t, a);
        put_access_comment(g, a);
    }
    if (mentioned(g, "cells + ")) line(g, "u64 *const cells = (u64 *)a.ptr[%d];", g->k->naccesses);
    for (int x = 0; x < g->naxes; x++)
        if (mentioned(g, text("n%d", x).s)) line(g, "const idx n%d = (idx)a.dims[%d];", x, x);
    for (int a = 0; a < g->k->naccesses; a++)
        for (int x = 0; x < g->naxes; x++)
            if (mentioned(g, text("s%d_%d", a, x).s))
                line(g, "const idx s%d_%d = (idx)a.dims[%d];", a, x, g->naxes * (a + 1) + x);
}

static void head(gen *g) {
    static const char *const variants[] = {"map", "row", "column"};
    static const char *const splits[] = {"", ", partial", ", finish"};
    const loop_kernel *k = g->k;
    char symbol[CUDA_SYMBOL_MAX];
    etch__cuda_symbol(k, symbol);
    line(g, "// kernel %s: %s%s, %d + %d axes; vector %d, %d threads", symbol + 5,
         variants[k->variant], splits[k->split], k->npar, k->nred, g->l.vector, g->l.threads);
    etch__cuda_prelude(g->t, g->v->index_bits, g->part[BODY].p);
    line(g, "%s", "");
    line(g, "struct etch_args {");
    line(g, "void *ptr[%d];", k->naccesses + 1);
    if (g->naxes) line(g, "long long dims[%d];", g->naxes * (k->naccesses + 1));
    if (k->nscalars) line(g, "unsigned long long cells[%d];", k->nscalars);
    g->indent--;
    line(g, "};\n");
    line(g, "extern \"C\" __global__ void __launch_bounds__(%d)", g->l.threads);
    line(g, "    %s(const __grid_constant__ struct etch_args a) {", symbol);
    g->indent--;
}

/* ---- the whole ---- */

static void body(gen *g) {
    if (g->k->split == SPLIT_FINISH) whole_rows(g);
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

char *etch__cuda_source(const loop_kernel *k, const cuda_variant *v) {
    gen g = {.k = k, .v = v, .l = etch__cuda_layout(k, v), .naxes = k->npar + k->nred};
    void (*const parts[PARTS])(gen *) = {head, names, sizes, uniforms, body};
    cuda_text all = {0};
    g.axis = etch__cuda_axis(k);
    etch__cuda_needed(k, g.needed);
    for (int p = PARTS - 1; p >= 0 && !all.failed; p--) {
        write_part(&g, p, p == HEAD ? 0 : 1, parts[p]);
        all.failed = g.part[p].failed;
    }
    for (int p = 0; p < PARTS; p++) {
        if (!all.failed) etch__cuda_put(&all, "%s", g.part[p].p);
        etch__free(g.part[p].p);
    }
    if (!all.failed) etch__cuda_put(&all, "}\n");
    if (!all.failed) return all.p;
    etch__free(all.p);
    return NULL;
}
