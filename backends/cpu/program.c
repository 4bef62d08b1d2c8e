/* Runs an expression strip by strip: every value of the program is a strip in a temporary, the
 * operands themselves are read in place where they are contiguous and gathered into a temporary
 * where not. */
#include "backends/cpu/program.h"

/* ---- translation ---- */

typedef struct translator {
    const prim_program *p;
    const etch_dtype *in;
    cpu_program *out;
    const strip_table *table;
    uint8_t slot[PROGRAM_MAX];     /* where each value lies */
    int16_t last_use[PROGRAM_MAX]; /* instruction that reads it last */
    uint64_t busy;                 /* bit per temporary */
    bool once[PROGRAM_MAX];        /* computed before the first strip */
    bool failed;
} translator;

static uint8_t take_temp(translator *t) {
    int k = __builtin_ctzll(~t->busy);
    if (k + SLOT_TEMP > 60) return t->failed = true, SLOT_TEMP;
    t->busy |= 1ull << k;
    if (k >= t->out->ntemps) t->out->ntemps = k + 1;
    return (uint8_t)(SLOT_TEMP + k);
}

static void drop_temp(translator *t, uint8_t slot) {
    if (slot >= SLOT_TEMP) t->busy &= ~(1ull << (slot - SLOT_TEMP));
}

static void add_step(translator *t, strip_fn fn, uint8_t dst, uint8_t a, uint8_t b, uint8_t c) {
    t->out->steps[t->out->nsteps++] = (program_step){fn, dst, a, b, c};
}

static void add_fill(translator *t, int k, const prim_instr *i) {
    cpu_program *o = t->out;
    if (o->nfills == COUNT_OF(o->fills)) {
        t->failed = true;
        return;
    }
    program_fill f = {.scalar = -1, .log2 = (uint8_t)etch__size_log2(i->type)};
    if (i->prim == PRIM_SCALAR) f.scalar = (int8_t)i->imm.i, f.from = i->from;
    else
        f.cell = etch__scalar_cell(etch__is_float(i->type) ? etch_scalar_real(i->imm.d)
                                                           : etch_scalar_int(i->imm.i),
                                   i->type);
    f.slot = t->slot[k] = take_temp(t);
    t->last_use[k] = INT16_MAX; /* filled once for all strips */
    o->fills[o->nfills++] = f;
}

static void add_input(translator *t, int k, const prim_instr *i, etch_dtype out) {
    int number = (int)i->imm.i;
    bool only = t->p->n == 1;
    t->out->loads[number] = true;
    strip_fn widen = t->table->widen[t->in[number]];
    t->slot[k] = (uint8_t)number;
    if (!widen || (only && t->in[number] == out)) return;
    t->slot[k] = only && !t->table->narrow[out] ? SLOT_OUT : take_temp(t);
    add_step(t, widen, t->slot[k], (uint8_t)number, 0, 0);
    t->out->cost += 1;
}

static bool is_fill(int prim) { return prim == PRIM_SCALAR || prim == PRIM_CONST; }

static strip_fn strip_of(const translator *t, const prim_instr *i) {
    if (i->prim == PRIM_CONVERT) return t->table->convert[i->from][i->type];
    return t->table->prim[i->prim][etch__prim_compares(i->prim) ? i->from : i->type];
}

static void add_compute(translator *t, int k, const prim_instr *i, bool to_output) {
    strip_fn fn = i->prim == PRIM_INDEX ? NULL : strip_of(t, i);
    if (!fn && i->prim != PRIM_INDEX) t->failed = true;
    int arity = etch__prims[i->prim].arity;
    uint8_t a = arity > 0 ? t->slot[i->a] : 0, b = arity > 1 ? t->slot[i->b] : 0;
    uint8_t c = arity > 2 ? t->slot[i->c] : 0;
    t->slot[k] = to_output ? SLOT_OUT : take_temp(t);
    add_step(t, fn, t->slot[k], a, b, c);
    t->out->cost += etch__prim_cost(i->prim);
    const int16_t operands[3] = {i->a, i->b, i->c};
    for (int j = 0; j < arity; j++)
        if (t->last_use[operands[j]] == k) drop_temp(t, t->slot[operands[j]]);
}

/* What is made of scalars and constants alone is computed before the first strip, and stays. */
static void add_uniforms(translator *t) {
    bool uniform[PROGRAM_MAX] = {0};
    int cost = t->out->cost;
    for (int k = 0; k < t->p->n && !t->failed; k++) {
        const prim_instr *i = &t->p->code[k];
        const int16_t operands[3] = {i->a, i->b, i->c};
        int arity = etch__prims[i->prim].arity;
        uniform[k] = arity > 0 || is_fill(i->prim);
        for (int j = 0; j < arity; j++) uniform[k] &= uniform[operands[j]];
        if (k == t->p->result) uniform[k] = false;
        if (!uniform[k] || is_fill(i->prim)) continue;
        t->last_use[k] = INT16_MAX;
        add_compute(t, k, i, false);
        t->once[k] = true;
    }
    t->out->nonce = t->out->nsteps, t->out->cost = cost;
}

/* Whether all that is left is to round the value to what it is stored as: the store does it. */
static bool rounds_for_store(const translator *t, int k, etch_dtype out) {
    prim_id round = out == ETCH_BF16 ? PRIM_ROUND_BF16 : PRIM_ROUND_F16;
    const prim_instr *i = &t->p->code[k];
    if (k != t->p->result || k != t->p->n - 1 || !t->table->round[out]) return false;
    return i->prim == round;
}

/* Stores the result where the last step has not put it into the output already. */
static void add_store(translator *t, etch_dtype out) {
    static const etch_dtype same_size[4] = {ETCH_I8, ETCH_I16, ETCH_I32, ETCH_I64};
    const prim_instr *i = &t->p->code[t->p->result];
    bool rounds = rounds_for_store(t, t->p->result, out);
    uint8_t slot = t->slot[rounds ? i->a : t->p->result];
    if (slot == SLOT_OUT) return;
    strip_fn store = rounds ? t->table->round[out] : t->table->narrow[out];
    if (i->prim == PRIM_INPUT && t->in[i->imm.i] == out) slot = (uint8_t)i->imm.i, store = NULL;
    etch_dtype raw = same_size[etch__size_log2(out)];
    add_step(t, store ? store : t->table->convert[raw][raw], SLOT_OUT, slot, 0, 0);
    t->out->cost += 1;
}

bool etch__program_build(const prim_program *p, const etch_dtype *in, etch_dtype out,
                         cpu_program *program) {
    translator t = {.p = p, .in = in, .out = program, .table = etch__isa_table()->strips};
    memset(program, 0, sizeof *program);
    program->out_log2 = (uint8_t)etch__size_log2(out);
    for (int k = 0; k < p->nin && k < PROGRAM_INPUTS; k++)
        program->in_log2[k] = (uint8_t)etch__size_log2(in[k]);
    for (int k = 0; k < p->n; k++) {
        const prim_instr *i = &p->code[k];
        const int16_t operands[3] = {i->a, i->b, i->c};
        for (int j = 0; j < etch__prims[i->prim].arity; j++) t.last_use[operands[j]] = (int16_t)k;
    }
    t.last_use[p->result] = INT16_MAX;
    /* Filled temporaries come first: they hold their value from before the first step. */
    for (int k = 0; k < p->n; k++)
        if (is_fill(p->code[k].prim)) add_fill(&t, k, &p->code[k]);
    add_uniforms(&t);
    for (int k = 0; k < p->n && !t.failed; k++) {
        const prim_instr *i = &p->code[k];
        if (t.once[k]) continue;
        bool last = k == p->n - 1 && k == p->result && !t.table->narrow[out];
        if (i->prim == PRIM_INPUT) add_input(&t, k, i, out);
        else if (!is_fill(i->prim) && !rounds_for_store(&t, k, out)) add_compute(&t, k, i, last);
    }
    add_store(&t, out);
    return !t.failed;
}

/* ---- running ---- */

typedef struct strip_buffer {
    char bytes[EAGER_STRIP * 8] __attribute__((aligned(64)));
} strip_buffer;

static inline void run_step(const program_step *s, const strip_table *table, void *const *slot,
                            int64_t first, int64_t n) {
    if (likely(s->fn != NULL)) s->fn(slot[s->dst], slot[s->a], slot[s->b], slot[s->c], n);
    else table->index(slot[s->dst], first, n);
}

static void set_up(const cpu_program *p, const strip_table *table, const etch_scalar *scalars,
                   strip_buffer *temps, void **slot, int64_t n) {
    for (int k = 0; k < p->ntemps; k++) slot[SLOT_TEMP + k] = temps[k].bytes;
    for (int k = 0; k < p->nfills; k++) {
        const program_fill *f = &p->fills[k];
        uint64_t cell = f->cell;
        if (f->scalar >= 0) cell = etch__scalar_cell(scalars[f->scalar], f->from);
        table->fill[f->log2](slot[f->slot], &cell, n);
    }
    for (int k = 0; k < p->nonce; k++) run_step(&p->steps[k], table, slot, 0, n);
}

static inline void run_steps(const cpu_program *p, const strip_table *table, void *const *slot,
                             int64_t first, int64_t n) {
    for (int k = p->nonce; k < p->nsteps; k++) run_step(&p->steps[k], table, slot, first, n);
}

void etch__program_run(const cpu_program *p, void *const base[SLOT_TEMP],
                       const etch_scalar *scalars, int64_t begin, int64_t end) {
    const strip_table *table = etch__isa_table()->strips;
    strip_buffer temps[p->ntemps ? p->ntemps : 1];
    void *slot[SLOT_TEMP + 64];
    /* A program without temporaries is one pass over its operands, whatever their length. */
    int64_t strip = p->ntemps ? EAGER_STRIP : end - begin;
    set_up(p, table, scalars, temps, slot, end - begin < strip ? end - begin : strip);
    for (int64_t i = begin; i < end; i += strip) {
        for (int k = 0; k < PROGRAM_INPUTS; k++) slot[k] = (char *)base[k] + (i << p->in_log2[k]);
        slot[SLOT_OUT] = (char *)base[SLOT_OUT] + (i << p->out_log2);
        run_steps(p, table, slot, i, end - i < strip ? end - i : strip);
    }
}

/* Moves rows x cols elements between an operand, with these strides, and a strip. */
static void move_block(const strip_table *table, int log2, char *operand, int64_t row, int64_t col,
                       char *strip, int64_t rows, int64_t cols, bool out) {
    static const etch_dtype of_size[4] = {ETCH_I8, ETCH_I16, ETCH_I32, ETCH_I64};
    strip_fn move = table->prim[STRIP_MOVE][of_size[log2]];
    strip_shape in_shape = {rows, cols, 1, row, col}, out_shape = {rows, row, col, cols, 1};
    if (out) move(operand, strip, &out_shape, NULL, cols);
    else move(strip, operand, &in_shape, NULL, cols);
}

/* Moves n elements from flat position `first` between a strided operand and a strip: whole rows
 * many at a time, others one by one. */
static void move_rows(const strip_table *table, const strided_space *space, const int64_t *stride,
                      int log2, void *operand, void *strip, int64_t first, int64_t n, bool out) {
    int last = space->ndim - 1;
    int64_t at[ETCH_MAX_DIMS], offset = 0, rest = first;
    for (int d = last; d >= 0; d--) {
        at[d] = rest % space->size[d], rest /= space->size[d];
        offset += at[d] * stride[d];
    }
    for (int64_t done = 0, inner = space->size[last]; done < n;) {
        int64_t run = inner - at[last], rows = last > 0 && at[last] == 0 ? (n - done) / inner : 0;
        if (run > n - done) run = n - done;
        if (rows > 1) rows = at_most(rows, space->size[last - 1] - at[last - 1]);
        char *p = (char *)operand + offset * (1 << log2), *s = (char *)strip + (done << log2);
        if (rows > 1) {
            move_block(table, log2, p, stride[last - 1], stride[last], s, rows, inner, out);
            run = rows * inner, at[last - 1] += rows - 1, at[last] = inner - run;
            offset += (rows - 1) * stride[last - 1] + (inner - run) * stride[last];
        } else if (out) table->scatter[log2](p, stride[last], s, run);
        else if (stride[last] == 0) table->fill[log2](s, p, run);
        else table->gather[log2](s, p, stride[last], run);
        done += run, at[last] += run, offset += run * stride[last];
        for (int d = last; d > 0 && at[d] == space->size[d]; d--) {
            offset += stride[d - 1] - at[d] * stride[d];
            at[d] = 0, at[d - 1]++;
        }
    }
}

static int64_t offset_of(const strided_space *space, const int64_t *stride, int64_t flat) {
    int64_t offset = 0;
    for (int d = space->ndim - 1; d >= 0; d--) {
        offset += flat % space->size[d] * stride[d];
        flat /= space->size[d];
    }
    return offset;
}

void etch__program_run_strided(const cpu_program *p, const strided_space *space,
                               void *const base[SLOT_TEMP], const etch_scalar *scalars,
                               int64_t begin, int64_t end) {
    const strip_table *table = etch__isa_table()->strips;
    strip_buffer temps[p->ntemps + SLOT_TEMP];
    strip_buffer *stage =
        &temps[p->ntemps]; /* for operands that are not read or written in place */
    void *slot[SLOT_TEMP + 64];
    int64_t inner = space->size[space->ndim - 1];
    bool long_rows = inner >= 64; /* then a strip never crosses rows */
    set_up(p, table, scalars, temps, slot, end - begin < EAGER_STRIP ? end - begin : EAGER_STRIP);
    for (int64_t i = begin, n; i < end; i += n) {
        n = end - i < EAGER_STRIP ? end - i : EAGER_STRIP;
        if (long_rows && n > inner - i % inner) n = inner - i % inner;
        bool direct[SLOT_TEMP];
        for (int k = 0; k < SLOT_TEMP; k++) {
            int log2 = k == SLOT_OUT ? p->out_log2 : p->in_log2[k];
            const int64_t *stride = space->stride[k];
            slot[k] = stage[k].bytes;
            if (k != SLOT_OUT && !p->loads[k]) continue;
            direct[k] = stride[space->ndim - 1] == 1 && (long_rows || space->ndim == 1);
            if (direct[k]) slot[k] = (char *)base[k] + offset_of(space, stride, i) * (1 << log2);
            else if (k != SLOT_OUT)
                move_rows(table, space, stride, log2, base[k], slot[k], i, n, false);
        }
        run_steps(p, table, slot, i, n);
        if (!direct[SLOT_OUT])
            move_rows(table, space, space->stride[SLOT_OUT], p->out_log2, base[SLOT_OUT],
                      slot[SLOT_OUT], i, n, true);
    }
}

/* ---- blocks ---- */

enum { BLOCK_ROWS = 16, BLOCK_COLS = EAGER_STRIP / BLOCK_ROWS };

static int64_t blocks_of(int64_t extent, int64_t side) { return (extent + side - 1) / side; }

int64_t etch__program_blocks(const cpu_program *p, const strided_space *s) {
    int last = s->ndim - 1;
    if (s->ndim < 2 || s->size[last] < BLOCK_COLS || s->size[last - 1] < BLOCK_ROWS) return 0;
    bool across = false;
    for (int k = 0; k < PROGRAM_INPUTS; k++)
        across |= p->loads[k] && s->stride[k][last - 1] == 1 && s->stride[k][last] >= 16;
    if (!across) return 0;
    return s->numel / (s->size[last] * s->size[last - 1]) * blocks_of(s->size[last], BLOCK_COLS) *
           blocks_of(s->size[last - 1], BLOCK_ROWS);
}

void etch__program_run_blocks(const cpu_program *p, const strided_space *s,
                              void *const base[SLOT_TEMP], const etch_scalar *scalars,
                              int64_t begin, int64_t end) {
    const strip_table *table = etch__isa_table()->strips;
    strip_buffer temps[p->ntemps + SLOT_TEMP];
    void *slot[SLOT_TEMP + 64];
    int last = s->ndim - 1;
    int64_t height = s->size[last - 1], width = s->size[last];
    int64_t across = blocks_of(width, BLOCK_COLS), down = blocks_of(height, BLOCK_ROWS);
    for (int k = 0; k < SLOT_TEMP; k++) slot[k] = temps[p->ntemps + k].bytes;
    set_up(p, table, scalars, temps, slot, EAGER_STRIP);
    for (int64_t i = begin; i < end; i++) {
        int64_t col = i % across * BLOCK_COLS, row = i / across % down * BLOCK_ROWS;
        int64_t first = i / across / down * height * width + row * width + col;
        int64_t cols = width - col < BLOCK_COLS ? width - col : BLOCK_COLS;
        int64_t rows = height - row < BLOCK_ROWS ? height - row : BLOCK_ROWS;
        char *at[SLOT_TEMP];
        for (int k = 0; k < SLOT_TEMP; k++) {
            int log2 = k == SLOT_OUT ? p->out_log2 : p->in_log2[k];
            if (k != SLOT_OUT && !p->loads[k]) continue;
            at[k] = (char *)base[k] + offset_of(s, s->stride[k], first) * (1 << log2);
            if (k != SLOT_OUT)
                move_block(table, log2, at[k], s->stride[k][last - 1], s->stride[k][last], slot[k],
                           rows, cols, false);
        }
        run_steps(p, table, slot, 0, rows * cols);
        move_block(table, p->out_log2, at[SLOT_OUT], s->stride[SLOT_OUT][last - 1],
                   s->stride[SLOT_OUT][last], slot[SLOT_OUT], rows, cols, true);
    }
}

void etch__copy_contiguous(void *dst, const etch_tensor *t) {
    const strip_table *table = etch__isa_table()->strips;
    strided_space space = {.ndim = t->ndim, .numel = t->numel};
    int log2 = etch__size_log2(t->dtype);
    if (t->numel == 0) return;
    memcpy(space.size, t->size, sizeof space.size);
    if (t->ndim == 0) space.ndim = 1, space.size[0] = 1;
    move_rows(table, &space, t->ndim ? t->stride : space.size, log2, etch__ptr(t), dst, 0, t->numel,
              false);
}

const void *etch__row_major_elements(const etch_tensor *t, bool wide, void **copy) {
    strip_fn widen = wide ? etch__isa_table()->strips->widen[t->dtype] : NULL;
    const void *elements = etch__ptr(t);
    void *packed = *copy = NULL;
    if (!t->contiguous) {
        if (!(packed = etch__malloc((size_t)(t->numel * etch__item_size(t)) + 1))) return NULL;
        etch__copy_contiguous(packed, t);
        elements = *copy = packed;
    }
    if (!widen) return elements;
    if ((*copy = etch__malloc((size_t)t->numel * sizeof(float) + 1)))
        widen(*copy, elements, NULL, NULL, t->numel);
    etch__free(packed);
    return *copy;
}

void etch__store_rounded(etch_dtype dtype, void *to, const void *values, int64_t n) {
    const strip_table *table = etch__isa_table()->strips;
    if (table->round[dtype]) table->round[dtype](to, values, NULL, NULL, n);
    else memcpy(to, values, (size_t)n << etch__size_log2(dtype));
}

/* Level k of the stack holds the fold of 2^k neighbouring blocks, as the bits of the block's number
 * say; what is left at the end folds from the right. */
void etch__fold_blocks(strip_fn combine, int64_t blocks, int64_t width, int64_t bytes,
                       block_fn block, const void *ctx, void *result) {
    if (blocks == 1) {
        block(ctx, 0, result);
        return;
    }
    int levels = 64 - __builtin_clzll((uint64_t)blocks), top = 0;
    char stack[levels + 1][STRIP_BYTES] __attribute__((aligned(64)));
    for (int64_t b = 0; b < blocks; b++) {
        block(ctx, b, stack[top++]);
        for (int64_t k = b + 1; k % 2 == 0; k /= 2, top--)
            combine(stack[top - 2], stack[top - 2], stack[top - 1], NULL, width);
    }
    for (; top > 1; top--) combine(stack[top - 2], stack[top - 2], stack[top - 1], NULL, width);
    memcpy(result, stack[0], (size_t)bytes);
}
