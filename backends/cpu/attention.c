/* softmax(q k' scale + mask) v, head by head, without the matrix of all scores.
 *
 * A block of queries meets one block of keys after the other: a tile of scores becomes
 * exponentials under the running maximum of its rows, what was summed before shrinks to that
 * maximum, and the tile times the block of values is added. The blocks are a function of the sizes,
 * and a block of queries is computed on one thread, so that bits depend on neither threads nor
 * neighbours. Products are one-thread calls of the library in f32 (f64 of f64); half types are
 * widened block by block. Queries, keys and values are read where they are, whatever their strides.
 *
 * Keys behind a query (causal) are skipped block by block. The sum of a row of which no key takes
 * part is 0, and so is its result. */
#include "backends/cpu/attention.h"
#include "core/base/pool.h"
#include "core/base/start.h"

#include <limits.h>
#include <math.h>

/* ---- operands ---- */

/* Axes of t that are missing or of size 1 are broadcast. */
void etch__attention_operand_of(const attention *a, attention_operand *o, const etch_tensor *t) {
    int d = t->ndim, ndim = a->nbatch + 3;
    int64_t stride[ETCH_MAX_DIMS + 1];
    for (int i = 0; i < ndim; i++) {
        int own = i - ndim + d;
        stride[i] = own < 0 || t->size[own] == 1 ? 0 : t->stride[own];
    }
    o->data = etch__ptr(t), o->dtype = t->dtype;
    o->head = stride[a->nbatch], o->row = stride[a->nbatch + 1], o->col = stride[a->nbatch + 2];
    memcpy(o->batch, stride, (size_t)a->nbatch * sizeof *stride);
}

/* Blocks of nearly equal lengths, at most `limit`. */
static int64_t block_of(int64_t n, int64_t limit) {
    int64_t blocks = (n + limit - 1) / limit;
    return blocks > 1 ? at_most(((n + blocks - 1) / blocks + 15) / 16 * 16, limit) : n;
}

static void plan_sizes(attention *a, const etch_tensor *q, const etch_tensor *k,
                       const etch_tensor *v) {
    int d = q->ndim;
    a->nbatch = d > 3 ? d - 3 : 0, a->batches = 1;
    for (int i = 0; i < a->nbatch; i++) a->batches *= a->batch[i] = q->size[i];
    a->heads = d > 2 ? q->size[d - 3] : 1, a->shared = d > 2 ? k->size[d - 3] : 1;
    a->group = a->shared ? a->heads / a->shared : 1;
    a->queries = q->size[d - 2], a->keys = k->size[d - 2];
    a->width = q->size[d - 1], a->out_width = v->size[d - 1];
    a->query_block = block_of(a->queries, ATTENTION_ROWS);
    a->key_block = block_of(a->keys, ATTENTION_KEYS);
    a->pitch = (a->key_block + 15) / 16 * 16 + 16; /* no power of two */
}

static double real_of(etch_scalar s) { return s.kind == ETCH_SCALAR_REAL ? s.d : (double)s.i; }

void etch__attention_set_dropout(attention *a, etch_scalar rate, const etch_tensor *seed,
                                 int64_t heads) {
    a->dropout = real_of(rate), a->seed = etch__ptr(seed);
    a->seed_step = seed->stride[0], a->per_seed = heads / seed->numel;
}

void etch__attention_plan(attention *a, const op_call *call, int at) {
    etch_tensor *const *in = call->in + at;
    const etch_tensor *mask = in[3], *seed = call->nin > at + 4 ? in[4] : ETCH_NONE;
    a->isa = etch__isa_table();
    a->dtype = in[0]->dtype, a->type = etch__compute_type(a->dtype);
    a->size = (int)etch_dtype_size(a->type);
    plan_sizes(a, in[0], in[1], in[2]);
    etch__attention_operand_of(a, &a->q, in[0]);
    etch__attention_operand_of(a, &a->k, in[1]);
    etch__attention_operand_of(a, &a->v, in[2]);
    a->masked = mask != ETCH_NONE;
    if (a->masked) etch__attention_operand_of(a, &a->mask, mask);
    a->causal = call->at[0] != 0, a->scale = real_of(call->sc[0]);
    a->drops = seed != ETCH_NONE;
    if (a->drops) etch__attention_set_dropout(a, call->sc[1], seed, a->batches * a->heads);
    atomic_init(&a->failed, ETCH_OK);
}

/* Where the matrix of a query's head begins; group heads share one. */
static const char *head_of(const attention *a, const attention_operand *o, int64_t head,
                           int64_t group) {
    int64_t offset = head % a->heads / group * o->head, batch = head / a->heads;
    for (int i = a->nbatch - 1; i >= 0; i--) {
        offset += batch % a->batch[i] * o->batch[i];
        batch /= a->batch[i];
    }
    return o->data + (offset << etch__size_log2(o->dtype));
}

/* ---- memory ---- */

void *etch__attention_cut(attention_room *r, int64_t elements, int64_t size) {
    size_t at = r->used;
    r->used += ((size_t)(elements * size) + 63) & ~(size_t)63;
    return r->memory ? r->memory + at : NULL;
}

void *etch__attention_open(attention *a, attention_room *r) {
    void *memory = etch__malloc(r->used + 64);
    if (!memory) atomic_store(&a->failed, ETCH_ERR_OUT_OF_MEMORY);
    r->memory = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    return memory;
}

void etch__attention_cut_block(const attention *a, attention_room *r, attention_block *b,
                               int64_t rows, int64_t cols) {
    b->own = etch__attention_cut(r, rows * cols, a->size);
    b->raw = a->dtype == a->type ? NULL : etch__attention_cut(r, rows * cols, 2);
    b->rows = 0;
}

void etch__attention_cut_rows(const attention *a, attention_room *r, attention_tile *t) {
    t->max = etch__attention_cut(r, ATTENTION_ROWS, a->size);
    t->sum = etch__attention_cut(r, ATTENTION_ROWS, a->size);
    t->shrink = etch__attention_cut(r, ATTENTION_ROWS, a->size);
}

/* ---- blocks ---- */

/* The library takes rows with gaps. */
static bool in_place(const attention *a, const attention_operand *o, int64_t rows, int64_t cols) {
    if (a->dtype != a->type || (o->col != 1 && cols > 1)) return false;
    return rows == 1 || (o->row >= cols && o->row <= INT_MAX);
}

void etch__attention_copy(const attention *a, const attention_operand *o, void *to, int64_t pitch,
                          const char *from, int64_t rows, int64_t cols) {
    int log2 = etch__size_log2(o->dtype);
    if (o->col != 1 && cols > 1) {
        a->isa->strips->block[log2](to, pitch, 1, from, o->row, o->col, rows, cols);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)to + (r * pitch << log2), from + r * o->row * (1 << log2),
               (size_t)cols << log2);
}

static void copy_block(const attention *a, const attention_operand *o, const attention_block *b,
                       const char *from, int64_t rows, int64_t cols) {
    strip_fn widen = a->isa->strips->widen[o->dtype];
    bool gaps = o->col != 1 && cols > 1;
    if (gaps || !widen) etch__attention_copy(a, o, widen ? b->raw : b->own, cols, from, rows, cols);
    for (int64_t r = 0; widen && r < rows; r++) {
        const void *x = gaps ? (char *)b->raw + r * cols * 2 : from + r * o->row * 2;
        widen((char *)b->own + r * cols * a->size, x, NULL, NULL, cols);
    }
}

static void load(const attention *a, const attention_operand *o, attention_block *b, const char *x,
                 int64_t rows, int64_t cols) {
    if (in_place(a, o, rows, cols)) {
        b->data = x, b->pitch = rows > 1 ? o->row : cols, b->rows = 0;
        return;
    }
    copy_block(a, o, b, x, rows, cols);
    b->data = b->own, b->pitch = cols;
}

const char *etch__attention_row(const attention *a, const attention_operand *o, int64_t head,
                                int64_t group, int64_t from) {
    return head_of(a, o, head, group) + from * o->row * (1 << etch__size_log2(o->dtype));
}

void etch__attention_load_rows(const attention *a, const attention_operand *o, attention_block *b,
                               int64_t head, int64_t from, int64_t rows, int64_t cols) {
    load(a, o, b, etch__attention_row(a, o, head, 1, from), rows, cols);
}

/* What was copied for the queries before is often what is needed again. */
void etch__attention_load(const attention *a, const attention_operand *o, attention_block *b,
                          int64_t head, int64_t from, int64_t rows, int64_t cols) {
    int64_t shared = head / a->group;
    if (b->shared == shared && b->from == from && b->rows >= rows) return;
    b->shared = shared, b->from = from, b->rows = rows;
    load(a, o, b, etch__attention_row(a, o, head, a->group, from), rows, cols);
}

/* Each of the rows times the scale. */
void etch__attention_scale(const attention *a, void *rows, int64_t count, int64_t width) {
    union {
        float f32[ATTENTION_ROWS];
        double f64[ATTENTION_ROWS];
    } scale;
    uint64_t cell = etch__scalar_cell(etch_scalar_real(a->scale), a->type);
    a->isa->strips->fill[etch__size_log2(a->type)](&scale, &cell, count);
    a->isa->attention->scale[a->type](rows, width, count, width, &scale);
}

void etch__attention_load_queries(const attention *a, attention_block *b, int64_t head,
                                  int64_t from, int64_t rows) {
    copy_block(a, &a->q, b, etch__attention_row(a, &a->q, head, 1, from), rows, a->width);
    etch__attention_scale(a, b->own, rows, a->width);
    b->data = b->own, b->pitch = a->width;
}

bool etch__attention_multiply(attention *a, const library_product *p) {
    if (p->m == 0 || p->n == 0) return true;
    if (p->k > 0 && etch__library_product(a->type, p)) return true;
    for (int64_t r = 0; p->k == 0 && !p->adds && r < p->m; r++)
        memset((char *)p->c + r * p->ldc * a->size, 0, (size_t)(p->n * a->size));
    if (p->k > 0) atomic_store(&a->failed, ETCH_ERR_OUT_OF_MEMORY);
    return p->k == 0;
}

/* ---- masks ---- */

/* n elements of the mask of storage dtype `from` on, as neighbours. */
static const void *mask_row(const attention *a, const char *from, int64_t n, void *buffer) {
    int log2 = etch__size_log2(a->mask.dtype);
    if (a->mask.col == 1) return from;
    if (a->mask.col == 0) a->isa->strips->fill[log2](buffer, from, n);
    else a->isa->strips->gather[log2](buffer, from, a->mask.col, n);
    return buffer;
}

void etch__attention_mask(const attention *a, const attention_tile *t, const attention_place *at) {
    const strip_table *table = a->isa->strips;
    const attention_operand *m = &a->mask;
    double row[ATTENTION_KEYS], wide[ATTENTION_KEYS], none[ATTENTION_KEYS];
    bool truths = m->dtype == ETCH_BOOL;
    uint64_t cell = etch__scalar_cell(etch_scalar_real(-INFINITY), a->type);
    const char *from = head_of(a, m, at->head, 1);
    from += (at->query * m->row + at->key * m->col) * (1 << etch__size_log2(m->dtype));
    if (truths) table->fill[etch__size_log2(a->type)](none, &cell, t->keys);
    for (int64_t r = 0; r < t->rows; r++) {
        char *s = (char *)t->scores + r * t->pitch * a->size;
        const void *x =
            mask_row(a, from + r * m->row * (1 << etch__size_log2(m->dtype)), t->keys, row);
        if (truths) {
            table->prim[PRIM_SELECT][a->type](s, x, s, none, t->keys);
            continue;
        }
        strip_fn widen = table->widen[m->dtype];
        if (widen) widen(wide, x, NULL, NULL, t->keys), x = wide;
        table->prim[PRIM_ADD][a->type](s, s, x, NULL, t->keys);
    }
}

/* ---- dropout ---- */

/* The key is the seed's bits, the counter the weight's place in its sample. */
static void drop_row(const attention *a, void *row, int64_t head, int64_t query, int64_t key,
                     int64_t n) {
    uint32_t words[4][ATTENTION_KEYS];
    float u[ATTENTION_KEYS], p = (float)a->dropout;
    uint32_t *const w[4] = {words[0], words[1], words[2], words[3]};
    double factor = a->dropout < 1 ? 1 / (1 - a->dropout) : 0;
    uint64_t seed;
    memcpy(&seed, a->seed + head / a->per_seed * a->seed_step, sizeof seed);
    int64_t first = (head % a->per_seed * a->queries + query) * a->keys + key;
    a->isa->random->philox(seed, (uint64_t)first, w, n);
    a->isa->random->uniform_f32(u, words[0], 24, n);
    float *f32 = row, by = (float)factor;
    double *f64 = row;
    for (int64_t i = 0; i < n && a->type == ETCH_F32; i++) f32[i] = u[i] < p ? 0 : f32[i] * by;
    for (int64_t i = 0; i < n && a->type == ETCH_F64; i++) f64[i] = u[i] < p ? 0 : f64[i] * factor;
}

void etch__attention_drop(const attention *a, const attention_tile *t, void *rows,
                          const attention_place *at) {
    for (int64_t r = 0; r < t->rows; r++)
        drop_row(a, (char *)rows + r * t->pitch * a->size, at->head, at->query + r, at->key,
                 t->keys);
}

/* ---- tiles ---- */

void etch__attention_set_tile(const attention *a, attention_tile *t, const attention_place *at,
                              int64_t rows, int64_t keys) {
    t->pitch = a->pitch, t->rows = rows, t->keys = keys;
    t->first = a->causal ? at->query + 1 - at->key : keys, t->step = a->causal;
}

bool etch__attention_scores(attention *a, const attention_tile *t, const attention_block *q,
                            const attention_block *k, const attention_place *at) {
    const library_product product = {.a = q->data,
                                     .b = k->data,
                                     .c = t->scores,
                                     .lda = q->pitch,
                                     .ldb = k->pitch,
                                     .ldc = t->pitch,
                                     .m = t->rows,
                                     .n = t->keys,
                                     .k = a->width,
                                     .b_transposed = true};
    if (!etch__attention_multiply(a, &product)) return false;
    if (a->masked) etch__attention_mask(a, t, at);
    return true;
}

void etch__attention_start(const attention *a, attention_tile *t) {
    uint64_t none = etch__scalar_cell(etch_scalar_real(-INFINITY), a->type);
    a->isa->strips->fill[etch__size_log2(a->type)](t->max, &none, ATTENTION_ROWS);
    memset(t->sum, 0, (size_t)(ATTENTION_ROWS * a->size));
}

void etch__attention_invert(const attention *a, void *sums) {
    float *f32 = sums;
    double *f64 = sums;
    for (int r = 0; r < ATTENTION_ROWS; r++)
        if (a->type == ETCH_F32) f32[r] = f32[r] == 0 ? 0 : 1 / f32[r];
        else f64[r] = f64[r] == 0 ? 0 : 1 / f64[r];
}

/* ---- forward ---- */

typedef struct forward_room {
    attention_room room;
    attention_block q, k, v;
    attention_tile tile;
    void *sum_of_values; /* [query_block][out_width] */
} forward_room;

static void cut_forward(const attention *a, forward_room *f) {
    attention_room *r = &f->room;
    r->used = 0;
    f->tile.scores = etch__attention_cut(r, a->query_block * a->pitch, a->size);
    f->sum_of_values = etch__attention_cut(r, a->query_block * a->out_width, a->size);
    etch__attention_cut_block(a, r, &f->q, a->query_block, a->width);
    etch__attention_cut_block(a, r, &f->k, a->key_block, a->width);
    etch__attention_cut_block(a, r, &f->v, a->key_block, a->out_width);
    etch__attention_cut_rows(a, r, &f->tile);
}

/* One block of keys and values. */
static bool meet(attention *a, forward_room *f, const attention_place *at, int64_t rows,
                 int64_t keys) {
    attention_tile *t = &f->tile;
    etch__attention_set_tile(a, t, at, rows, keys);
    etch__attention_load(a, &a->k, &f->k, at->head, at->key, keys, a->width);
    if (!etch__attention_scores(a, t, &f->q, &f->k, at)) return false;
    a->isa->attention->soften[a->type](t);
    if (at->key > 0)
        a->isa->attention->scale[a->type](f->sum_of_values, a->out_width, rows, a->out_width,
                                          t->shrink);
    if (a->drops) etch__attention_drop(a, t, t->scores, at);
    etch__attention_load(a, &a->v, &f->v, at->head, at->key, keys, a->out_width);
    return etch__attention_multiply(a, &(library_product){.a = t->scores,
                                                          .b = f->v.data,
                                                          .c = f->sum_of_values,
                                                          .lda = t->pitch,
                                                          .ldb = f->v.pitch,
                                                          .ldc = a->out_width,
                                                          .m = rows,
                                                          .n = a->out_width,
                                                          .k = keys,
                                                          .adds = at->key > 0});
}

static const char zero[8];

void etch__attention_store(const attention *a, attention_tile *t, void *values, int64_t pitch,
                           int64_t head, int64_t from, int64_t rows) {
    int64_t n = a->out_width, step = a->y.row * (1 << etch__size_log2(a->dtype));
    char *out = (char *)(uintptr_t)etch__attention_row(a, &a->y, head, 1, from);
    const char *inverse = t->sum;
    etch__attention_invert(a, t->sum);
    a->isa->attention->scale[a->type](values, pitch, rows, n, t->sum);
    for (int64_t r = 0; r < rows; r++) {
        char *x = (char *)values + r * pitch * a->size;
        if (!memcmp(inverse + r * a->size, zero, (size_t)a->size))
            memset(x, 0, (size_t)(n * a->size));
        etch__store_rounded(a->dtype, out + r * step, x, n);
    }
}

static void attend(attention *a, forward_room *f, int64_t head, int64_t from) {
    int64_t rows = at_most(a->queries - from, a->query_block);
    int64_t seen = etch__attention_seen(a, from, rows);
    etch__attention_load_queries(a, &f->q, head, from, rows);
    etch__attention_start(a, &f->tile);
    for (int64_t key = 0; key < seen; key += a->key_block) {
        const attention_place at = {head, from, key};
        if (!meet(a, f, &at, rows, at_most(seen - key, a->key_block))) return;
    }
    etch__attention_store(a, &f->tile, f->sum_of_values, a->out_width, head, from, rows);
}

static void forward_task(void *ctx, int64_t begin, int64_t end) {
    attention *a = ctx;
    forward_room f = {.room.memory = NULL};
    cut_forward(a, &f);
    void *memory = etch__attention_open(a, &f.room);
    if (!memory) return;
    cut_forward(a, &f);
    int64_t blocks = (a->queries + a->query_block - 1) / a->query_block;
    for (int64_t i = begin; i < end; i++) attend(a, &f, i / blocks, i % blocks * a->query_block);
    etch__free(memory);
}

etch_status etch__attention_run(attention *a, int64_t n, double work,
                                void (*task)(void *ctx, int64_t begin, int64_t end), void *ctx) {
    etch__parallel(n, work > 262144 ? 1 : (int64_t)(262144 / (work + 1)) + 1, task, ctx);
    return etch__attention_status(a);
}

etch_status etch__attention_status(attention *a) {
    if (atomic_load(&a->failed) == ETCH_OK) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY,
                       "attention: no memory for blocks of %lld queries and %lld keys of width "
                       "%lld",
                       (long long)a->query_block, (long long)a->key_block, (long long)a->width);
}

static etch_status attention_kernel(const op_call *call, etch_tensor *const *outs) {
    attention a;
    if (outs[0]->numel == 0) return ETCH_OK;
    etch__attention_plan(&a, call, 0);
    etch__attention_operand_of(&a, &a.y, outs[0]);
    if (etch__attention_bf16_takes(&a)) return etch__attention_of_bf16(&a);
    if (!etch__library_enter(a.type)) return etch__tls.status;
    int64_t blocks = (a.queries + a.query_block - 1) / a.query_block;
    double work = (double)a.query_block * (double)a.keys * (double)(a.width + a.out_width);
    etch_status status =
        etch__attention_run(&a, a.batches * a.heads * blocks, work, forward_task, &a);
    etch__library_leave(a.type);
    return status;
}

void etch__start_cpu_attention(void) {
    etch__register_kernel(OP_ATTENTION, attention_kernel);
    etch__register_kernel(OP_ATTENTION_DROPOUT, attention_kernel);
}
