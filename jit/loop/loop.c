/* The loop IR as bytes, and what makes a kernel valid.
 *
 * The bytes identify a kernel: they hold every field that shapes the code and none that does not,
 * so two equal kernels have equal bytes whatever lies in unused fields. They are also what crosses
 * to the helper, which is why the parser trusts nothing. This file is compiled into libetch and
 * etch-jit and therefore uses nothing but the C library and core/ops/prims.c. */
#include "jit/loop/loop.h"

enum { LOOP_MAGIC = 0x37494c45 }; /* "ELI7": the number changes with the format */

bool etch__loop_can_emit(prim_id prim, etch_dtype type) {
    if (!etch__prim_gives(prim, type) || etch__prims[prim].class == CLASS_EAGER) return false;
    return !etch__prim_is_function((int)prim) || etch__is_float(type);
}

/* ---- validity ---- */

int etch__loop_arity(const loop_instr *i) {
    if (i->kind == LOOP_PRIM) return i->p.prim < PRIM_COUNT ? etch__prims[i->p.prim].arity : 0;
    return i->kind == LOOP_STORE || i->kind == LOOP_REDUCE;
}

int etch__loop_operand(const loop_instr *i, int n) {
    return n == 0 ? i->p.a : n == 1 ? i->p.b : i->p.c;
}

static etch_dtype operand_type(const loop_instr *i, int n) {
    if (i->kind == LOOP_PRIM) {
        if (i->p.prim == PRIM_CONVERT || etch__prim_compares(i->p.prim)) return i->p.from;
        if (i->p.prim == PRIM_SELECT && n == 0) return ETCH_BOOL;
    }
    return i->p.type;
}

bool etch__loop_uniform(const loop_instr *i) {
    return i->kind == LOOP_PRIM &&
           (i->p.prim == PRIM_CONST || i->p.prim == PRIM_SCALAR || i->p.prim == PRIM_NREDUCED);
}

bool etch__loop_sees(int stage, int made) {
    return stage == made || (made < stage && (made % 2 || stage % 2 == 0));
}

/* Whether code of stage `stage` may name value v. */
static bool visible(const loop_instr *v, int stage) {
    return v->kind != LOOP_STORE && (etch__loop_uniform(v) || etch__loop_sees(stage, v->stage));
}

int etch__loop_last_stage(const loop_kernel *k) {
    int last = 0;
    for (int v = 0; v < k->ncode; v++)
        if (k->code[v].stage > last) last = k->code[v].stage;
    return last;
}

void etch__loop_stage_code(const loop_kernel *k, int stage, bool *runs) {
    memset(runs, 0, (size_t)k->ncode * sizeof *runs);
    for (int v = k->ncode - 1; v >= 0; v--) {
        const loop_instr *i = &k->code[v];
        runs[v] |= i->kind == LOOP_REDUCE ? i->stage == stage + 1 : i->stage == stage;
        if (!runs[v] || stage % 2) continue;
        for (int n = 0; n < etch__loop_arity(i); n++) {
            int o = etch__loop_operand(i, n);
            if (k->code[o].stage % 2 == 0) runs[o] = true;
        }
    }
}

static const char *check_operands(const loop_kernel *k, int at) {
    const loop_instr *i = &k->code[at];
    int stage = i->kind == LOOP_REDUCE ? i->stage - 1 : i->stage;
    for (int n = 0; n < etch__loop_arity(i); n++) {
        int v = etch__loop_operand(i, n);
        if (v < 0 || v >= at) return "an operand does not name an earlier value";
        if (!visible(&k->code[v], stage)) return "an operand is no value of this stage";
        if (k->code[v].p.type != operand_type(i, n)) return "an operand has the wrong type";
    }
    return NULL;
}

static const char *check_access(const loop_kernel *k, const loop_instr *i) {
    if (i->p.imm.i < 0 || i->p.imm.i >= k->naccesses) return "an access number is out of range";
    const loop_access *a = &k->access[i->p.imm.i];
    if (a->store != (i->kind == LOOP_STORE))
        return "an access is not of the kind that the code needs";
    if (i->p.type != etch__compute_type(a->dtype)) return "an access has another type";
    return NULL;
}

static const char *check_prim(const loop_kernel *k, const loop_instr *i) {
    if (i->p.prim >= PRIM_COUNT || !etch__loop_can_emit((prim_id)i->p.prim, i->p.type))
        return "a primitive is not for this type";
    if (i->p.prim == PRIM_SCALAR && (i->p.imm.i < 0 || i->p.imm.i >= k->nscalars))
        return "a scalar number is out of range";
    if (i->p.prim == PRIM_SCALAR && i->p.from >= ETCH_DTYPE_COUNT) return "a scalar has no dtype";
    if ((i->p.prim == PRIM_CONVERT || etch__prim_compares(i->p.prim)) &&
        !etch__is_compute_type(i->p.from))
        return "`from` is no compute type";
    if (i->p.prim == PRIM_NREDUCED && !k->nred) return "a count without a reduction";
    return NULL;
}

static const char *check_reduce(const loop_kernel *k, const loop_instr *i) {
    int64_t kind = i->p.imm.i;
    if (!k->nred) return "a reduction without reduced axes";
    if (kind < 0 || kind >= REDUCE_COUNT || etch__reduction((reduce_kind)kind)->fold != kind)
        return "a reduction is none of sum, product, max, min";
    return etch__is_compute_type(i->p.type) ? NULL : "a reduction has no accumulator type";
}

static const char *check_instr(const loop_kernel *k, int at) {
    const loop_instr *i = &k->code[at];
    const char *why = NULL;
    bool reduced = i->kind == LOOP_REDUCE || k->nred;
    if (i->stage >= LOOP_STAGES || (i->stage && !reduced)) return "a stage is out of range";
    if (i->kind == LOOP_REDUCE && i->stage % 2 == 0) return "a reduction belongs to an odd stage";
    switch (i->kind) {
    case LOOP_PRIM: why = check_prim(k, i); break;
    case LOOP_LOAD:
    case LOOP_STORE: why = check_access(k, i); break;
    case LOOP_REDUCE: why = check_reduce(k, i); break;
    default: return "an instruction has no kind";
    }
    return why ? why : check_operands(k, at);
}

static const char *check_shape(const loop_kernel *k) {
    if (k->variant > LOOP_COLUMN || k->split > SPLIT_FINISH) return "no such variant or split";
    if (k->npar + k->nred > LOOP_MAX_AXES) return "too many axes";
    if (k->naccesses < 0 || k->naccesses > LOOP_MAX_ACCESSES) return "too many accesses";
    if (k->ncode < 0 || k->ncode > LOOP_MAX_CODE) return "too much code";
    if (k->nscalars < 0 || k->nscalars > UINT16_MAX) return "too many scalars";
    if ((k->variant == LOOP_MAP) != (k->nred == 0)) return "reduced axes and variant disagree";
    if (k->variant == LOOP_COLUMN && k->npar == 0) return "columns without a parallel axis";
    if (k->variant == LOOP_MAP && k->split != SPLIT_NONE) return "a map cannot be split";
    if (k->tile > TILE_TURNED) return "no such tile";
    if (k->tile && k->variant != LOOP_COLUMN && (k->variant != LOOP_MAP || k->npar < 2))
        return "a tile has two axes";
    if (k->tile == TILE_TURNED && k->variant != LOOP_MAP) return "only maps are turned";
    return NULL;
}

static const char *check_accesses(const loop_kernel *k) {
    for (int a = 0; a < k->naccesses; a++) {
        if (k->access[a].dtype >= ETCH_DTYPE_COUNT) return "an access has no dtype";
        if (k->access[a].store > 1) return "an access is neither loaded nor stored";
        if (k->access[a].sums > (k->access[a].dtype == ETCH_F32 && !k->access[a].store))
            return "sums of bf16 are loaded as f32";
        for (int x = 0; x < k->npar + k->nred; x++)
            if (k->access[a].step[x] > STEP_VAR) return "a step has no class";
    }
    return NULL;
}

/* The index of an element must grow by the same along a strip. */
static const char *check_tile(const loop_kernel *k) {
    bool uneven = k->tile == TILE_TURNED || (k->tile && k->variant == LOOP_COLUMN);
    for (int i = 0; uneven && i < k->ncode; i++)
        if (k->code[i].kind == LOOP_PRIM && k->code[i].p.prim == PRIM_INDEX &&
            k->code[i].stage % 2 == 0)
            return "a tile has no index";
    return NULL;
}

static const char *check_stores(const loop_kernel *k) {
    bool stored[LOOP_MAX_ACCESSES] = {false};
    for (int i = 0; i < k->ncode; i++) {
        if (k->code[i].kind != LOOP_STORE) continue;
        if (stored[k->code[i].p.imm.i]) return "an access is stored twice";
        stored[k->code[i].p.imm.i] = true;
    }
    return NULL;
}

bool etch__loop_valid(const loop_kernel *k, const char **why) {
    const char *fault = check_shape(k);
    if (!fault) fault = check_accesses(k);
    for (int i = 0; !fault && i < k->ncode; i++) fault = check_instr(k, i);
    if (!fault) fault = check_stores(k);
    if (!fault) fault = check_tile(k);
    if (!fault && etch__loop_last_stage(k) > 1 &&
        (k->variant != LOOP_ROW || k->split != SPLIT_NONE))
        fault = "more than two stages are for whole rows";
    if (fault && why) *why = fault;
    return !fault;
}

/* ---- sizes ---- */

static int64_t product(const int64_t *v, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++) p *= v[i];
    return p;
}

static int64_t strips_of(int64_t n) { return (n + STRIP - 1) / STRIP; }

static int64_t blocks_of(const loop_kernel *k, const int64_t *dims) {
    int64_t n = (product(dims + k->npar, k->nred) + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
    return n > 0 ? n : 1;
}

static bool is_call(const loop_instr *i) {
    bool rounds = i->p.prim == PRIM_ROUND_F16; /* where the processor does it */
    return i->kind == LOOP_PRIM && (rounds || etch__prim_is_function(i->p.prim));
}

static int bytes_of(const loop_kernel *k, int access) {
    static const uint8_t bytes[ETCH_DTYPE_COUNT] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
    return bytes[k->access[access].dtype];
}

/* Strips and buffers of a kernel's widest strip should lie in the first-level cache; from 2,112
 * bytes on memcpy() takes a way that costs more to begin than such a copy takes. A turned tile has
 * room for some whole cache lines of either side in any case: short pieces of many lines take
 * longer than what the second-level cache does. */
int etch__loop_width(const loop_kernel *k) {
    enum { CACHED = 16 << 10, ARRAYS = 512 << 10, COPIED = 2048, TURNED = 1024 };
    if (k->variant == LOOP_MAP && !k->tile && k->ncode <= 2) return 4096; /* it copies or fills */
    int width = k->variant == LOOP_MAP ? 2048 : 1024, cached = 0, arrays = k->naccesses + k->ncode;
    bool turned = k->tile == TILE_TURNED, runs = k->variant == LOOP_MAP && !turned;
    for (int a = 0; a < k->naccesses; a++) {
        cached += bytes_of(k, a) + 4 * (k->access[a].dtype == ETCH_F16);
        while (runs && width * bytes_of(k, a) > COPIED) width /= 2;
    }
    for (int i = 0; i < k->ncode; i++)
        if (is_call(&k->code[i])) cached += 16, arrays += 2;
    int least = turned ? TURNED : STRIP;
    while (width > least && width * cached > CACHED) width /= 2;
    while (width > STRIP && width * arrays * 8 > ARRAYS) width /= 2;
    return width;
}

/* Rows of a turned tile for which a cache line of memory that runs across them is moved whole. */
static int line_rows(const loop_kernel *k) {
    enum { LINE = 64 };
    int rows = 1, inner = k->npar - 1;
    for (int a = 0; a < k->naccesses; a++) {
        const loop_access *x = &k->access[a];
        if (x->step[inner] != STEP_VAR || x->step[inner - 1] != STEP_ONE) continue;
        if (LINE / bytes_of(k, a) > rows) rows = LINE / bytes_of(k, a);
    }
    return rows;
}

int etch__loop_turned_columns(const loop_kernel *k) {
    enum { FEWEST = 16 };
    int columns = etch__loop_width(k) / line_rows(k);
    return columns < FEWEST ? FEWEST : columns < TILE_COLUMNS ? columns : TILE_COLUMNS;
}

void etch__loop_tile(const loop_kernel *k, const int64_t *dims, int64_t *rows, int64_t *columns) {
    int64_t inner = dims[k->npar - 1], outer = dims[k->npar - 2], width = etch__loop_width(k);
    int64_t most = width;
    if (k->tile == TILE_TURNED) {
        int64_t fewest = etch__loop_turned_columns(k), room = width / (outer < 1 ? 1 : outer);
        most = room < fewest ? fewest : room < TILE_COLUMNS ? room : TILE_COLUMNS;
    }
    *columns = inner < 1 ? 1 : inner < most ? inner : most;
    *rows = width / *columns;
}

static int64_t tiles_of(const loop_kernel *k, const int64_t *dims) {
    int64_t rows, columns, outer = dims[k->npar - 2], inner = dims[k->npar - 1];
    etch__loop_tile(k, dims, &rows, &columns);
    return product(dims, k->npar - 2) * ((outer + rows - 1) / rows) *
           ((inner + columns - 1) / columns);
}

int64_t etch__loop_units(const loop_kernel *k, const int64_t *dims) {
    if (k->variant == LOOP_MAP && k->tile) return tiles_of(k, dims);
    if (k->split == SPLIT_FINISH || (k->variant == LOOP_ROW && k->split == SPLIT_NONE))
        return product(dims, k->npar);
    int64_t units = product(dims, k->npar);
    if (k->variant != LOOP_ROW)
        units = k->npar ? product(dims, k->npar - 1) * strips_of(dims[k->npar - 1]) : 1;
    return k->split == SPLIT_PARTIAL ? units * blocks_of(k, dims) : units;
}

int64_t etch__loop_scratch_cells(const loop_kernel *k, const int64_t *dims) {
    int64_t reductions = 0;
    for (int i = 0; i < k->ncode; i++) reductions += k->code[i].kind == LOOP_REDUCE;
    return reductions * product(dims, k->npar) * blocks_of(k, dims);
}

int etch__loop_rows_kept(const loop_kernel *k) {
    enum { MOST = 4, MANY = 16 };
    int calls = 0;
    for (int i = 0; i < k->ncode; i++) calls += is_call(&k->code[i]);
    if (k->variant != LOOP_ROW || etch__loop_last_stage(k) < 2 || calls > MANY) return 0;
    return calls < MOST ? calls : MOST;
}

/* Arrays of the generator: a buffer an access, a strip a value, one for each operand of a call in
 * each stage that is emitted and for that of a reduction; lanes and block results of reductions. */
uint32_t etch__loop_stack(const loop_kernel *k) {
    enum { BASE = 32 << 10, ROW_REDUCTION = 1 << 10, COLUMN_REDUCTION = 56 << 10 };
    bool wide = k->variant == LOOP_MAP || k->tile;
    uint32_t array = 8 * (uint32_t)(wide ? etch__loop_width(k) : STRIP);
    uint32_t arrays = (uint32_t)(k->naccesses + k->ncode), reductions = 0, calls = 0;
    for (int i = 0; i < k->ncode; i++) {
        const loop_instr *c = &k->code[i];
        reductions += c->kind == LOOP_REDUCE;
        calls += is_call(c);
    }
    arrays += 2 * calls * (uint32_t)(etch__loop_last_stage(k) + 1) + reductions;
    uint32_t bytes = arrays * array + 8 * ROW_KEPT * (uint32_t)etch__loop_rows_kept(k) +
                     reductions * (k->variant == LOOP_COLUMN ? COLUMN_REDUCTION : ROW_REDUCTION);
    return BASE + (bytes < LOOP_STACK_MAX ? bytes : LOOP_STACK_MAX);
}

/* ---- bytes ---- */

typedef struct writer {
    uint8_t *buf;
    size_t n, cap;
} writer;

static void put(writer *w, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++, w->n++)
        if (w->n < w->cap) w->buf[w->n] = (uint8_t)(v >> (8 * i));
}

static bool has_imm(const loop_instr *i) {
    return i->kind != LOOP_PRIM || i->p.prim == PRIM_CONST || i->p.prim == PRIM_SCALAR;
}

static bool has_from(const loop_instr *i) {
    return i->kind == LOOP_PRIM && (i->p.prim == PRIM_CONVERT || i->p.prim == PRIM_SCALAR ||
                                    etch__prim_compares(i->p.prim));
}

static void put_instr(writer *w, const loop_instr *i) {
    put(w, i->kind, 1), put(w, i->stage, 1);
    put(w, i->kind == LOOP_PRIM ? i->p.prim : 0, 1), put(w, i->p.type, 1);
    put(w, has_from(i) ? i->p.from : 0, 1);
    for (int n = 0; n < etch__loop_arity(i); n++) put(w, (uint16_t)etch__loop_operand(i, n), 2);
    if (has_imm(i)) put(w, (uint64_t)i->p.imm.i, 8);
}

/* The number of bytes that the kernel takes; they are all there if that is at most cap. */
size_t etch__loop_serialise(const loop_kernel *k, uint8_t *buf, size_t cap) {
    writer w = {buf, 0, cap};
    put(&w, LOOP_MAGIC, 4);
    put(&w, k->variant, 1), put(&w, k->split, 1), put(&w, k->tile, 1), put(&w, k->npar, 1),
        put(&w, k->nred, 1);
    put(&w, k->any_mode, 1);
    put(&w, (uint64_t)k->naccesses, 2), put(&w, (uint64_t)k->nscalars, 2),
        put(&w, (uint64_t)k->ncode, 2);
    for (int a = 0; a < k->naccesses; a++) {
        put(&w, k->access[a].dtype, 1), put(&w, k->access[a].store, 1);
        put(&w, k->access[a].sums, 1);
        for (int x = 0; x < k->npar + k->nred; x++) put(&w, k->access[a].step[x], 1);
    }
    for (int i = 0; i < k->ncode; i++) put_instr(&w, &k->code[i]);
    return w.n;
}

typedef struct reader {
    const uint8_t *p, *end;
    bool bad;
} reader;

static uint64_t get(reader *r, int bytes) {
    if (r->end - r->p < bytes) return r->bad = true, r->p = r->end, 0;
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)r->p[i] << (8 * i);
    r->p += bytes;
    return v;
}

static void get_instr(reader *r, loop_instr *i) {
    i->kind = (uint8_t)get(r, 1), i->stage = (uint8_t)get(r, 1);
    i->p.prim = (uint8_t)get(r, 1), i->p.type = (uint8_t)get(r, 1), i->p.from = (uint8_t)get(r, 1);
    int16_t *operand[3] = {&i->p.a, &i->p.b, &i->p.c};
    for (int n = 0; n < etch__loop_arity(i); n++) *operand[n] = (int16_t)get(r, 2);
    if (has_imm(i)) i->p.imm.i = (int64_t)get(r, 8);
}

/* False unless the n bytes are exactly one valid kernel. The name is left empty. */
bool etch__loop_parse(const uint8_t *buf, size_t n, loop_kernel *k) {
    reader r = {buf, buf + n, false};
    memset(k, 0, sizeof *k);
    if (get(&r, 4) != LOOP_MAGIC) return false;
    k->variant = (uint8_t)get(&r, 1), k->split = (uint8_t)get(&r, 1);
    k->tile = (uint8_t)get(&r, 1);
    k->npar = (uint8_t)get(&r, 1), k->nred = (uint8_t)get(&r, 1);
    uint64_t any_mode = get(&r, 1);
    k->any_mode = any_mode == 1;
    k->naccesses = (int)get(&r, 2), k->nscalars = (int)get(&r, 2), k->ncode = (int)get(&r, 2);
    if (r.bad || any_mode > 1 || check_shape(k)) return false;
    for (int a = 0; a < k->naccesses; a++) {
        k->access[a].dtype = (uint8_t)get(&r, 1), k->access[a].store = (uint8_t)get(&r, 1);
        k->access[a].sums = (uint8_t)get(&r, 1);
        for (int x = 0; x < k->npar + k->nred; x++) k->access[a].step[x] = (uint8_t)get(&r, 1);
    }
    for (int i = 0; i < k->ncode && !r.bad; i++) get_instr(&r, &k->code[i]);
    return !r.bad && r.p == r.end && etch__loop_valid(k, NULL);
}
