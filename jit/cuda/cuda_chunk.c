/* The code of a chunk: `vector` neighbours along the innermost axis, `depth` of them at a time.
 *
 * A chunk is loaded as a whole before anything of it is stored, so an output may be the memory of
 * an input with the same map, and the loads of all its parts are in flight together. */
#include "jit/cuda/cuda_gen.h"

/* ---- lines ---- */

cuda_name etch__cuda_text(const char *format, ...) {
    cuda_name n;
    va_list args;
    va_start(args, format);
    vsnprintf(n.s, sizeof n.s, format, args);
    va_end(args);
    return n;
}

void etch__cuda_margin(cuda_gen *g) { etch__text_put(g->t, "%*s", 4 * g->indent, ""); }

void etch__cuda_line(cuda_gen *g, const char *format, ...) {
    char s[320];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s, sizeof s, format, args);
    va_end(args);
    etch__cuda_margin(g);
    etch__text_put(g->t, "%s\n", s);
    if (n > 0 && n < (int)sizeof s && s[n - 1] == '{') g->indent++;
}

void etch__cuda_close(cuda_gen *g) {
    g->indent--;
    etch__cuda_line(g, "}");
}

void etch__cuda_unrolled(cuda_gen *g, const char *var, int n) {
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int %s = 0; %s < %d; %s++) {", var, var, n, var);
}

/* ---- places ---- */

static bool moves(const cuda_gen *g, int x) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->k->access[a].step[x] != STEP_ZERO &&
            (etch__cuda_uses_any(g->k, a, false) || etch__cuda_uses_any(g->k, a, true)))
            return true;
    return false;
}

void etch__cuda_decompose(cuda_gen *g, const char *number, int from, int to) {
    cuda_name left = etch__cuda_text("%s", number);
    int first = from;
    while (first < to && !moves(g, first)) first++;
    for (int x = to - 1; x >= first; x--) {
        if (x == from) {
            etch__cuda_line(g, "[[maybe_unused]] const idx i%d = %s;", x, left.s);
            return;
        }
        etch__cuda_line(g, "const idx r%d = quot(%s, n%d);", x, left.s, x);
        if (moves(g, x))
            etch__cuda_line(g, "[[maybe_unused]] const idx i%d = %s - r%d * n%d;", x, left.s, x, x);
        left = etch__cuda_text("r%d", x);
    }
}

cuda_offset etch__cuda_offset_over(const cuda_gen *g, int a, int from, int to) {
    cuda_offset o = {""};
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

/* How elements of an access come in a chunk. */
typedef enum coming {
    SAME,   /* one for the whole row: loaded before */
    SINGLE, /* one for the chunk */
    VECTOR, /* neighbours */
    SPREAD  /* at a stride */
} coming;

/* A chunk that lies along the reduced axis may end outside, but in rows of whole ones; columns are
 * whole. */
static bool ragged(const cuda_gen *g, const chunk *c) {
    return c->checked && c->vector > 1 && !g->v->even && !etch__cuda_on_columns(g->k);
}

bool etch__cuda_same_in_row(const cuda_gen *g, int a) {
    if (g->k->variant == LOOP_MAP) return false;
    for (int x = g->k->npar; x < g->naxes; x++)
        if (g->k->access[a].step[x] != STEP_ZERO) return false;
    return true;
}

bool etch__cuda_by_column(const cuda_gen *g, int a) {
    return etch__cuda_on_columns(g->k) && g->l.vector > 1 &&
           g->k->access[a].step[g->axis] != STEP_ZERO;
}

static coming coming_of(const cuda_gen *g, const chunk *c, int a) {
    if (!g->k->access[a].store && etch__cuda_same_in_row(g, a)) return SAME;
    int step = g->axis < 0 ? STEP_ZERO : g->k->access[a].step[g->axis];
    if (c->vector == 1 || (step == STEP_ZERO && !g->k->access[a].store)) return SINGLE;
    return step == STEP_ONE ? VECTOR : SPREAD;
}

/* Where the row's part of an access begins, and the offset of a chunk in it. */
static const char *base_of(const cuda_gen *g) { return g->k->variant == LOOP_MAP ? "p" : "q"; }

static cuda_offset chunk_offset(const cuda_gen *g, int a) {
    int from = g->k->variant == LOOP_MAP ? 0 : g->k->npar;
    cuda_offset o = etch__cuda_offset_over(g, a, from, g->naxes);
    return o.s[0] ? o : (cuda_offset){"0"};
}

static cuda_name along(const cuda_gen *g, int a) {
    int step = g->axis < 0 ? STEP_ZERO : g->k->access[a].step[g->axis];
    return step == STEP_ZERO  ? etch__cuda_text("0")
           : step == STEP_ONE ? etch__cuda_text("j")
                              : etch__cuda_text("j * s%d_%d", a, g->axis);
}

/* x2, x2[k], x2.e[j] or x2[k].e[j] */
static cuda_name element(const cuda_gen *g, const chunk *c, int a) {
    coming how = coming_of(g, c, a);
    bool lanes = how == VECTOR || how == SPREAD || (how == SAME && etch__cuda_by_column(g, a));
    return etch__cuda_text("x%d%s%s", a, c->depth > 1 && how != SAME ? "[k]" : "",
                           lanes ? ".e[j]" : "");
}

static cuda_name vector_type(const cuda_gen *g, const chunk *c, int a) {
    return etch__cuda_text("vec<%s, %d>", storage_of(g, a), c->vector);
}

static bool declared_by_load(const cuda_gen *g, const chunk *c, int a, coming how) {
    return !g->held[a] && c->depth == 1 && (how == SINGLE || (how == VECTOR && !ragged(g, c)));
}

static void declare(cuda_gen *g, const chunk *c, int a) {
    bool single = coming_of(g, c, a) == SINGLE;
    cuda_name type = single ? etch__cuda_text("%s", storage_of(g, a)) : vector_type(g, c, a);
    if (c->depth > 1) etch__cuda_line(g, "%s x%d[%d];", type.s, a, c->depth);
    else etch__cuda_line(g, "%s x%d;", type.s, a);
}

static void declare_loaded(cuda_gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++) {
        coming how = coming_of(g, c, a);
        if (!loaded(g, a, g->stage) || g->given >> a & 1 || g->held[a] || how == SAME ||
            declared_by_load(g, c, a, how))
            continue;
        declare(g, c, a);
    }
}

void etch__cuda_declare_held(cuda_gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->held[a]) declare(g, c, a);
}

void etch__cuda_enter_stage(cuda_gen *g, int stage) {
    g->stage = stage;
    etch__loop_stage_code(g->k, stage, g->runs);
}

static void load_spread(cuda_gen *g, const chunk *c, int a) {
    etch__cuda_line(g, "#pragma unroll");
    etch__cuda_line(g, "for (int j = 0; j < %d; j++)", c->vector);
    etch__cuda_line(g, "    %s%s = %s%d[%s + %s];", ragged(g, c) ? "if (j < m) " : "",
                    element(g, c, a).s, base_of(g), a, chunk_offset(g, a).s, along(g, a).s);
}

/* Whether nobody writes what the kernel reads, which is more than its first-level cache holds.
 * Vectors alone: what the kernel for whole plans keeps in shared memory comes one by one. */
static bool read_once(const cuda_gen *g, const chunk *c, int a) {
    for (int s = 0; s < g->k->naccesses; s++)
        if (g->k->access[s].store && used(g, s, 0)) return false;
    return g->k->split == SPLIT_PARTIAL && g->k->variant == LOOP_ROW &&
           c->vector * (int)etch_dtype_size(dtype_of(g, a)) == 16;
}

static void load_vector(cuda_gen *g, const chunk *c, int a, const char *to, const char *o) {
    cuda_name type = vector_type(g, c, a);
    const char *from = read_once(g, c, a) ? "read_once(" : "*", *end = *from == '*' ? "" : ")";
    if (ragged(g, c)) etch__cuda_line(g, "if (m >= %d) {", c->vector);
    etch__cuda_line(g, "%s = %s(const %s *)(%s%d + %s)%s;", to, from, type.s, base_of(g), a, o,
                    end);
    if (!ragged(g, c)) return;
    g->indent--;
    etch__cuda_line(g, "} else {");
    load_spread(g, c, a);
    etch__cuda_close(g);
}

static void load_chunk(cuda_gen *g, const chunk *c, int a) {
    coming how = coming_of(g, c, a);
    cuda_offset o = chunk_offset(g, a);
    cuda_name to = etch__cuda_text("x%d%s", a, c->depth > 1 ? "[k]" : "");
    if (how == SPREAD) {
        load_spread(g, c, a);
        return;
    }
    if (declared_by_load(g, c, a, how)) {
        cuda_name type =
            how == SINGLE ? etch__cuda_text("%s", storage_of(g, a)) : vector_type(g, c, a);
        to = etch__cuda_text("const %s x%d", type.s, a);
    }
    if (how == SINGLE) etch__cuda_line(g, "%s = %s%d[%s];", to.s, base_of(g), a, o.s);
    else load_vector(g, c, a, to.s, o.s);
}

/* ---- values ---- */

void etch__cuda_put_comment(cuda_gen *g, const loop_instr *i) {
    const char *type = etch_dtype_name(i->p.type);
    if (i->kind == LOOP_PRIM)
        etch__text_put(g->t, " // %s %s\n", etch__prims[i->p.prim].name, type);
    else
        etch__text_put(g->t, " // %s %s @%d\n", i->kind == LOOP_LOAD ? "load" : "store",
                       etch_dtype_name(dtype_of(g, (int)i->p.imm.i)), (int)i->p.imm.i);
}

void etch__cuda_put_prim(cuda_gen *g, int v, const char *index) {
    const loop_instr *i = &g->k->code[v];
    cuda_name x[3];
    for (int n = 0; n < 3; n++) x[n] = etch__cuda_text("v%d", etch__loop_operand(i, n));
    etch__cuda_margin(g);
    etch__text_put(g->t, "const %s v%d = ", type_of(g, v), v);
    if (i->p.prim == PRIM_INDEX) etch__text_put(g->t, "(i64)(%s)", index);
    else etch__cuda_prim(g->t, &i->p, x[0].s, x[1].s, x[2].s);
    etch__text_put(g->t, ";");
    etch__cuda_put_comment(g, i);
}

void etch__cuda_put_load(cuda_gen *g, int v, const char *e) {
    const loop_instr *i = &g->k->code[v];
    etch__cuda_margin(g);
    etch__text_put(g->t, "const %s v%d = ", type_of(g, v), v);
    if (g->given >> i->p.imm.i & 1) etch__text_put(g->t, "%s", e);
    else etch__cuda_from_storage(g->t, dtype_of(g, (int)i->p.imm.i), e);
    etch__text_put(g->t, ";");
    etch__cuda_put_comment(g, i);
}

void etch__cuda_put_store(cuda_gen *g, const loop_instr *i, const char *to) {
    cuda_name v = etch__cuda_text("v%d", i->p.a);
    etch__cuda_margin(g);
    etch__text_put(g->t, "%s = ", to);
    etch__cuda_to_storage(g->t, dtype_of(g, (int)i->p.imm.i), v.s);
    etch__text_put(g->t, ";");
    etch__cuda_put_comment(g, i);
}

void etch__cuda_put_combine(cuda_gen *g, int v, const char *to, const char *acc, const char *x) {
    const loop_instr *i = &g->k->code[v];
    etch__cuda_margin(g);
    etch__text_put(g->t, "%s = ", to);
    etch__cuda_combine(g->t, (reduce_kind)i->p.imm.i, i->p.type, acc, x);
    etch__text_put(g->t, ";\n");
}

static void store_element(cuda_gen *g, const chunk *c, const loop_instr *i) {
    int a = (int)i->p.imm.i;
    if (coming_of(g, c, a) == VECTOR) {
        etch__cuda_put_store(g, i, etch__cuda_text("y%d.e[j]", a).s);
        return;
    }
    cuda_offset o = chunk_offset(g, a), to;
    if (c->vector == 1) snprintf(to.s, sizeof to.s, "%s%d[%.150s]", base_of(g), a, o.s);
    else snprintf(to.s, sizeof to.s, "%s%d[%.150s + %s]", base_of(g), a, o.s, along(g, a).s);
    etch__cuda_put_store(g, i, to.s);
}

/* Whether what a chunk gives to the reductions goes to shared memory as a vector. */
static bool gives_vectors(const cuda_gen *g, const chunk *c) {
    return etch__cuda_shares_rows(g->k, g->v) && c->vector > 1 && !ragged(g, c);
}

static void declare_terms(cuda_gen *g, const chunk *c) {
    FOR_REDUCTIONS(v) {
        if (gives_vectors(g, c))
            etch__cuda_line(g, "vec<%s, %d> terms%d;", type_of(g, v), c->vector, v);
    }
}

static void store_terms(cuda_gen *g, const chunk *c) {
    FOR_REDUCTIONS(v) {
        if (gives_vectors(g, c))
            etch__cuda_line(g, "*(vec<%s, %d> *)(vals%d + (%s - base)) = terms%d;", type_of(g, v),
                            c->vector, v, c->depth > 1 ? "r" : "at", v);
    }
}

static void add_to_lane(cuda_gen *g, const chunk *c, int v) {
    if (gives_vectors(g, c)) {
        etch__cuda_line(g, "terms%d.e[j] = v%d;", v, g->k->code[v].p.a);
        return;
    }
    if (etch__cuda_shares_rows(g->k, g->v)) {
        etch__cuda_line(g, "vals%d[%s - base%s] = v%d;", v, c->depth > 1 ? "r" : "at",
                        c->vector > 1 ? " + j" : "", g->k->code[v].p.a);
        return;
    }
    int n = c->vector;
    cuda_name lane = etch__cuda_text("lane%d[%s]", v, n > 1 ? "j" : "0"),
              x = etch__cuda_text("v%d", g->k->code[v].p.a);
    if (g->l.chunks > 1 && n > 1)
        lane = etch__cuda_text("lane%d[k %% %d * %d + j]", v, g->l.chunks, n);
    else if (g->l.chunks > 1) lane = etch__cuda_text("lane%d[k %% %d]", v, g->l.chunks);
    etch__cuda_put_combine(g, v, lane.s, lane.s, x.s);
}

/* The stage for one element. */
static void element_code(cuda_gen *g, const chunk *c) {
    const char *index = c->vector == 1                ? "index"
                        : etch__cuda_on_columns(g->k) ? "index + j * reduced"
                                                      : "index + j";
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (!g->runs[v] || etch__loop_uniform(i) || !g->needed[v]) continue;
        else if (i->kind == LOOP_REDUCE) add_to_lane(g, c, v);
        else if (i->kind == LOOP_LOAD) etch__cuda_put_load(g, v, element(g, c, (int)i->p.imm.i).s);
        else if (i->kind == LOOP_STORE) store_element(g, c, i);
        else etch__cuda_put_prim(g, v, index);
    }
}

static bool is_result(const cuda_gen *g, const chunk *c, int a) {
    return g->k->access[a].store && used(g, a, g->stage) && coming_of(g, c, a) == VECTOR;
}

static void declare_results(cuda_gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (is_result(g, c, a)) etch__cuda_line(g, "%s y%d;", vector_type(g, c, a).s, a);
}

static void store_results(cuda_gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++) {
        if (!is_result(g, c, a)) continue;
        cuda_offset o = chunk_offset(g, a);
        if (ragged(g, c)) etch__cuda_line(g, "if (m >= %d) {", c->vector);
        etch__cuda_line(g, "*(%s *)(%s%d + %s) = y%d;", vector_type(g, c, a).s, base_of(g), a, o.s,
                        a);
        if (!ragged(g, c)) continue;
        g->indent--;
        etch__cuda_line(g, "} else {");
        etch__cuda_line(g, "#pragma unroll");
        etch__cuda_line(g, "for (int j = 0; j < %d; j++)", c->vector);
        etch__cuda_line(g, "    if (j < m) %s%d[%s + j] = y%d.e[j];", base_of(g), a, o.s, a);
        etch__cuda_close(g);
    }
}

/* ---- where chunk k lies ---- */

bool etch__cuda_wants_index(const cuda_gen *g, int stage) {
    bool code[LOOP_MAX_CODE];
    etch__loop_stage_code(g->k, stage, code);
    for (int v = 0; v < g->k->ncode; v++) {
        const loop_instr *i = &g->k->code[v];
        if (code[v] && i->kind == LOOP_PRIM && i->p.prim == PRIM_INDEX && g->needed[v]) return true;
    }
    return false;
}

int etch__cuda_chunk_stride(const cuda_gen *g) {
    if (g->k->variant == LOOP_MAP) return g->l.threads;
    return g->k->variant == LOOP_ROW ? g->l.team * g->l.vector : g->l.teams;
}

int etch__cuda_chunk_length(const cuda_gen *g) {
    return etch__cuda_on_columns(g->k) ? 1 : g->l.vector;
}

/* What of a chunk comes now: its loads, its code and stores, or both. */
typedef struct phase {
    bool loads, code;
} phase;

static bool stores_chunks(const cuda_gen *g) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (g->k->access[a].store && used(g, a, g->stage)) return true;
    return false;
}

/* Whether the chunks of the access are loaded now; what is held may be there. */
static bool loads_now(const cuda_gen *g, const chunk *c, int a) {
    return loaded(g, a, g->stage) && !(g->given >> a & 1) && coming_of(g, c, a) != SAME &&
           (!g->held[a] || g->held[a] == g->stage + 1);
}

static bool loads_chunks(const cuda_gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (loads_now(g, c, a)) return true;
    return false;
}

static bool place_opens(const cuda_gen *g, const chunk *c) {
    if (c->depth == 1) return false;
    return g->k->variant == LOOP_MAP ? g->l.vector == 1 : c->checked;
}

static void place_in_map(cuda_gen *g, const chunk *c) {
    if (g->l.vector > 1) return; /* map_vectors has done it */
    if (c->depth > 1)
        etch__cuda_line(g, "const idx index = at + k * %d;", etch__cuda_chunk_stride(g));
    if (c->depth > 1) etch__cuda_line(g, "if (index < units) {");
    etch__cuda_decompose(g, "index", 0, g->naxes);
}

static void place_in_row(cuda_gen *g, const chunk *c, phase now) {
    bool offsets = (now.loads && loads_chunks(g, c)) || (now.code && stores_chunks(g));
    bool index = now.code && etch__cuda_wants_index(g, g->stage);
    const char *r = c->depth > 1 ? "r" : "at";
    bool terms = now.code && etch__cuda_shares_rows(g->k, g->v); /* to shared memory */
    if (c->depth > 1 && (offsets || index || terms || c->checked))
        etch__cuda_line(g, "const idx r = at + k * %d;", etch__cuda_chunk_stride(g));
    if (c->checked && c->depth > 1) etch__cuda_line(g, "if (r < stop) {");
    if (ragged(g, c)) etch__cuda_line(g, "const idx m = stop - %s;", r);
    if (offsets) etch__cuda_decompose(g, r, g->k->npar, g->naxes);
    if (index) etch__cuda_line(g, "const idx index = row * reduced + %s;", r);
}

static void for_chunks(cuda_gen *g, const chunk *c, phase now) {
    if (c->depth > 1) etch__cuda_unrolled(g, "k", c->depth);
    if (g->k->variant == LOOP_MAP) place_in_map(g, c);
    else place_in_row(g, c, now);
}

static void end_chunks(cuda_gen *g, const chunk *c) {
    if (place_opens(g, c)) etch__cuda_close(g);
    if (c->depth > 1) etch__cuda_close(g);
}

static void load_chunks(cuda_gen *g, const chunk *c) {
    for (int a = 0; a < g->k->naccesses; a++)
        if (loads_now(g, c, a)) load_chunk(g, c, a);
}

void etch__cuda_chunk_code(cuda_gen *g, const chunk *c) {
    bool apart = c->depth > 1 && loads_chunks(g, c);
    declare_loaded(g, c);
    for_chunks(g, c, (phase){true, !apart});
    load_chunks(g, c);
    if (apart) end_chunks(g, c), for_chunks(g, c, (phase){false, true});
    declare_results(g, c), declare_terms(g, c);
    if (c->vector > 1) etch__cuda_unrolled(g, "j", c->vector);
    if (ragged(g, c)) etch__cuda_line(g, "if (j >= m) break;");
    element_code(g, c);
    if (c->vector > 1) etch__cuda_close(g);
    store_results(g, c), store_terms(g, c);
    end_chunks(g, c);
}
