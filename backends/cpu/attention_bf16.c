/* Attention of bf16 by panels of bf16 (isa/amx.c, isa/dots.c): keys and values are packed once,
 * those of a head that several share, too; then blocks of few queries, whose tiles of scores and
 * weights stay in the first cache, meet blocks of keys as in attention.c. Scores and sums are f32,
 * weights are rounded to bf16 for their product with the values, and summed as they were before. */
#include "backends/cpu/attention.h"
#include "backends/cpu/product.h"
#include "core/base/pool.h"

enum { QUERIES = 64, KEYS = 512, PACKED_KEYS = 256 };

typedef struct bf16_attention {
    attention *a;
    const panel_table *t;
    char *keys, *values;                                  /* packed: [head][panel][block] */
    int64_t key_panel, key_head, value_panel, value_head; /* bytes from one to the next */
    int64_t terms, shared; /* blocks of a key's width; heads of keys */
} bf16_attention;

static int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

bool etch__attention_bf16_takes(const attention *a) {
    const panel_table *t = a->dtype == ETCH_BF16 ? etch__panels_for(a->isa, a->dtype) : NULL;
    return t && t->left == ETCH_BF16 && !a->drops;
}

static void plan(bf16_attention *m) {
    attention *a = m->a;
    int64_t n = (a->keys + KEYS - 1) / KEYS;
    a->query_block = at_most(a->queries, QUERIES);
    a->key_block = n > 1 ? at_most(whole((a->keys + n - 1) / n, BF16_TERMS), KEYS) : a->keys;
    a->pitch = whole(a->key_block, BF16_TERMS) + PANEL_LANES;
    m->terms = whole(a->width, BF16_TERMS) / BF16_TERMS;
    m->shared = a->batches * a->shared;
    m->key_panel = m->terms * PANEL_BLOCK;
    m->key_head = whole(a->keys, PANEL_LANES) / PANEL_LANES * m->key_panel;
    m->value_panel = whole(a->keys, BF16_TERMS) / BF16_TERMS * PANEL_BLOCK;
    m->value_head = whole(a->out_width, PANEL_LANES) / PANEL_LANES * m->value_panel;
}

/* ---- packing ---- */

/* Keys as lanes, or values as terms, `count` of them from `at` on; copied where there are
 * neighbours in memory along neither. */
static void pack_rows(const bf16_attention *m, const attention_operand *o, int64_t head, int64_t at,
                      int64_t count, uint16_t *copy) {
    const attention *a = m->a;
    bool keys = o == &a->k;
    int64_t cols = keys ? a->width : a->out_width, row = o->row, col = o->col;
    const char *from = etch__attention_row(a, o, head * a->group, a->group, at);
    if (col != 1 && row != 1) {
        etch__attention_copy(a, o, copy, cols, from, count, cols);
        from = (const char *)copy, row = cols, col = 1;
    }
    panel_pack p = {.from = from, .pairs = true};
    p.lane = keys ? row : col, p.term = keys ? col : row;
    p.lanes = keys ? count : cols, p.terms = keys ? cols : count;
    p.panel = keys ? m->key_panel : m->value_panel;
    p.to = keys ? m->keys + head * m->key_head + at / PANEL_LANES * m->key_panel
                : m->values + head * m->value_head + at / BF16_TERMS * PANEL_BLOCK;
    m->t->pack[ETCH_BF16](&p);
}

static void pack_task(void *ctx, int64_t begin, int64_t end) {
    const bf16_attention *m = ctx;
    attention *a = m->a;
    int64_t pieces = (a->keys + PACKED_KEYS - 1) / PACKED_KEYS;
    int64_t widest = a->width > a->out_width ? a->width : a->out_width;
    uint16_t *copy = etch__malloc((size_t)(PACKED_KEYS * widest) * sizeof *copy);
    if (!copy) atomic_store(&a->failed, ETCH_ERR_OUT_OF_MEMORY);
    for (int64_t i = begin; copy && i < end; i++) {
        int64_t at = i % pieces * PACKED_KEYS, n = at_most(a->keys - at, PACKED_KEYS);
        pack_rows(m, &a->k, i / pieces, at, n, copy);
        pack_rows(m, &a->v, i / pieces, at, n, copy);
    }
    etch__free(copy);
}

static void pack_all(bf16_attention *m) {
    const attention *a = m->a;
    int64_t pieces = (a->keys + PACKED_KEYS - 1) / PACKED_KEYS;
    int64_t each = at_most(a->keys, PACKED_KEYS) * (a->width + a->out_width) + 1;
    etch__parallel(m->shared * pieces, 65536 / each + 1, pack_task, m);
}

/* ---- blocks of queries ---- */

typedef struct bf16_room {
    attention_room room;
    attention_tile tile;
    uint16_t *q, *weights;
    float *sum_of_values;
    int64_t q_pitch, weight_pitch, sum_pitch;
} bf16_room;

static void cut(const bf16_attention *m, bf16_room *r) {
    const attention *a = m->a;
    int64_t rows = whole(a->query_block, PANEL_LANES);
    r->room.used = 0;
    r->q_pitch = m->terms * BF16_TERMS, r->weight_pitch = whole(a->key_block, BF16_TERMS);
    r->sum_pitch = whole(a->out_width, PANEL_LANES);
    r->q = etch__attention_cut(&r->room, rows * r->q_pitch, 2);
    r->tile.scores = etch__attention_cut(&r->room, rows * a->pitch, 4);
    r->weights = etch__attention_cut(&r->room, rows * r->weight_pitch, 2);
    r->sum_of_values = etch__attention_cut(&r->room, rows * r->sum_pitch, 4);
    etch__attention_cut_rows(a, &r->room, &r->tile);
}

/* Queries as a left operand's rows, zeros behind their width. */
static void load_queries(const bf16_attention *m, bf16_room *r, int64_t head, int64_t from,
                         int64_t rows) {
    const attention *a = m->a;
    const char *x = etch__attention_row(a, &a->q, head, 1, from);
    if (a->width < r->q_pitch) memset(r->q, 0, (size_t)(rows * r->q_pitch) * sizeof *r->q);
    etch__attention_copy(a, &a->q, r->q, r->q_pitch, x, rows, a->width);
}

void etch__attention_panels(const panel_table *t, const panel_product *p) {
    int64_t row = p->pitch ? p->pitch * 2 : 64;
    t->multiply(&(panel_args){.left = p->left,
                              .right = p->right,
                              .left_row = row,
                              .left_block = p->pitch ? 64 : PANEL_BLOCK,
                              .left_panel = p->pitch ? PANEL_LANES * row : p->blocks * PANEL_BLOCK,
                              .right_panel = p->right_panel,
                              .right_term = 64,
                              .c = p->c,
                              .ldc = p->ldc,
                              .rows = p->rows,
                              .cols = whole(p->cols, PANEL_LANES) / PANEL_LANES,
                              .blocks = p->blocks,
                              .words = p->blocks * (PANEL_BLOCK / 64),
                              .adds = p->adds});
}

float etch__attention_scale_scores(const attention *a, const attention_tile *t,
                                   const attention_place *at, bool all) {
    if (!all && !a->masked && a->scale > 0) return (float)a->scale;
    float scale[ATTENTION_ROWS];
    for (int64_t r = 0; r < t->rows; r++) scale[r] = (float)a->scale;
    a->isa->attention->scale[ETCH_F32](t->scores, t->pitch, t->rows, t->keys, scale);
    if (a->masked) etch__attention_mask(a, t, at);
    return 1;
}

static void meet(const bf16_attention *m, bf16_room *r, const attention_place *at, int64_t rows,
                 int64_t keys) {
    const attention *a = m->a;
    int64_t shared = at->head / a->group;
    const char *k = m->keys + shared * m->key_head + at->key / PANEL_LANES * m->key_panel;
    const char *v = m->values + shared * m->value_head + at->key / BF16_TERMS * PANEL_BLOCK;
    attention_tile *t = &r->tile;
    etch__attention_set_tile(a, t, at, rows, keys);
    etch__attention_panels(m->t, &(panel_product){.left = r->q,
                                                  .pitch = r->q_pitch,
                                                  .right = k,
                                                  .right_panel = m->key_panel,
                                                  .c = t->scores,
                                                  .ldc = t->pitch,
                                                  .rows = rows,
                                                  .cols = keys,
                                                  .blocks = m->terms});
    float scale = etch__attention_scale_scores(a, t, at, false);
    a->isa->attention->soften_bf16(t, scale, r->weights, r->weight_pitch);
    if (at->key > 0)
        a->isa->attention->scale[ETCH_F32](r->sum_of_values, r->sum_pitch, rows, a->out_width,
                                           t->shrink);
    etch__attention_panels(m->t, &(panel_product){.left = r->weights,
                                                  .pitch = r->weight_pitch,
                                                  .right = v,
                                                  .right_panel = m->value_panel,
                                                  .c = r->sum_of_values,
                                                  .ldc = r->sum_pitch,
                                                  .rows = rows,
                                                  .cols = a->out_width,
                                                  .blocks = whole(keys, BF16_TERMS) / BF16_TERMS,
                                                  .adds = at->key > 0});
}

static void attend(const bf16_attention *m, bf16_room *r, int64_t head, int64_t from) {
    const attention *a = m->a;
    int64_t rows = at_most(a->queries - from, a->query_block);
    int64_t seen = etch__attention_seen(a, from, rows);
    load_queries(m, r, head, from, rows);
    etch__attention_start(a, &r->tile);
    for (int64_t key = 0; key < seen; key += a->key_block) {
        const attention_place at = {head, from, key};
        meet(m, r, &at, rows, at_most(seen - key, a->key_block));
    }
    etch__attention_store(a, &r->tile, r->sum_of_values, r->sum_pitch, head, from, rows);
}

static void blocks_task(void *ctx, int64_t begin, int64_t end) {
    const bf16_attention *m = ctx;
    bf16_room r = {.room.memory = NULL};
    int64_t blocks = (m->a->queries + m->a->query_block - 1) / m->a->query_block;
    cut(m, &r);
    void *memory = etch__attention_open(m->a, &r.room);
    if (!memory) return;
    cut(m, &r);
    memset(r.room.memory, 0, r.room.used); /* rows that a panel has too many */
    m->t->enter();
    for (int64_t i = begin; i < end; i++) attend(m, &r, i / blocks, i % blocks * m->a->query_block);
    m->t->leave();
    etch__free(memory);
}

/* ---- the whole ---- */

etch_status etch__attention_of_bf16(attention *a) {
    bf16_attention m = {.a = a, .t = etch__panels_for(a->isa, a->dtype)};
    plan(&m);
    size_t keys = (size_t)(m.shared * m.key_head);
    char *packed = etch__malloc(keys + (size_t)(m.shared * m.value_head) + 64);
    if (!packed) return ETCH_ERR_OUT_OF_MEMORY;
    m.keys = (char *)(((uintptr_t)packed + 63) & ~(uintptr_t)63), m.values = m.keys + keys;
    pack_all(&m);
    int64_t blocks = (a->queries + a->query_block - 1) / a->query_block;
    double work = (double)a->query_block * (double)a->keys * (double)(a->width + a->out_width);
    if (atomic_load(&a->failed) == ETCH_OK)
        etch__attention_run(a, a->batches * a->heads * blocks, work / 8, blocks_task, &m);
    etch__free(packed);
    return etch__attention_status(a);
}
