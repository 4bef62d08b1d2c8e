/* The gradients of attention's query, key and value in bf16, by panels of bf16 (isa/amx.c,
 * isa/dots.c), in the order of attention_backward.c: weights W and slopes D are computed in f32 and
 * rounded to bf16 for their products, dv += W' g, dk += D' q, dq += D k, whose sums are f32. What
 * belongs to one head of keys is packed once, on the thread that adds to it. */
#include "backends/cpu/attention.h"
#include "backends/cpu/product.h"

enum { KEYS = 256 };

/* Panels of lanes by blocks of terms. */
typedef struct packed_rows {
    char *at;
    int64_t panel; /* bytes from one to the next */
} packed_rows;

/* Rows of an operand, behind their columns zeros up to a whole block. */
typedef struct plain_rows {
    uint16_t *at;
    int64_t pitch;
} plain_rows;

typedef struct bf16_room {
    attention_room room;
    attention_block g, result; /* in f32 */
    attention_tile tile;       /* weights */
    float *slopes, *means;
    plain_rows queries, gradients, keys; /* keys: or values, before they are packed */
    uint16_t *weights, *rounded;         /* tiles of W and D in bf16 */
    packed_rows k, v, k_turned;          /* by key, or by column with keys as terms */
    packed_rows q_turned, g_turned;      /* by column, with queries as terms */
    packed_rows turned;                  /* a tile by key, with queries as terms */
    float *to_q, *to_k, *to_v;
    int64_t q_cols, v_cols; /* of the last three */
} bf16_room;

typedef struct bf16_backward {
    attention_backward *j;
    const panel_table *t;
} bf16_backward;

static int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int64_t blocks_of(int64_t terms) { return whole(terms, BF16_TERMS) / BF16_TERMS; }

/* ---- memory ---- */

static packed_rows cut_panels(attention_room *r, int64_t lanes, int64_t terms) {
    int64_t panel = blocks_of(terms) * PANEL_BLOCK;
    char *at = etch__attention_cut(r, whole(lanes, PANEL_LANES) / PANEL_LANES * panel, 1);
    return (packed_rows){at, panel};
}

static plain_rows cut_plain(attention_room *r, int64_t rows, int64_t cols) {
    int64_t pitch = whole(cols, BF16_TERMS);
    return (plain_rows){etch__attention_cut(r, whole(rows, PANEL_LANES) * pitch, 2), pitch};
}

static void cut(const attention *a, bf16_room *b) {
    attention_room *r = &b->room;
    int64_t rows = whole(a->query_block, PANEL_LANES), tile = rows * a->pitch;
    int64_t widest = a->width > a->out_width ? a->width : a->out_width;
    r->used = 0;
    b->q_cols = whole(a->width, PANEL_LANES), b->v_cols = whole(a->out_width, PANEL_LANES);
    etch__attention_cut_block(a, r, &b->g, a->query_block, a->out_width);
    etch__attention_cut_block(a, r, &b->result, a->query_block, a->out_width);
    etch__attention_cut_rows(a, r, &b->tile);
    b->means = etch__attention_cut(r, ATTENTION_ROWS, 4);
    b->tile.scores = etch__attention_cut(r, tile, 4);
    b->slopes = etch__attention_cut(r, tile, 4);
    b->weights = etch__attention_cut(r, tile, 2), b->rounded = etch__attention_cut(r, tile, 2);
    b->queries = cut_plain(r, rows, a->width), b->gradients = cut_plain(r, rows, a->out_width);
    b->keys = cut_plain(r, a->keys, widest);
    b->k = cut_panels(r, a->keys, a->width), b->v = cut_panels(r, a->keys, a->out_width);
    b->k_turned = cut_panels(r, a->width, a->keys);
    b->q_turned = cut_panels(r, a->width, rows), b->g_turned = cut_panels(r, a->out_width, rows);
    b->turned = cut_panels(r, a->key_block, rows);
    b->to_q = etch__attention_cut(r, rows * b->q_cols, 4);
    b->to_k = etch__attention_cut(r, whole(a->keys, PANEL_LANES) * b->q_cols, 4);
    b->to_v = etch__attention_cut(r, whole(a->keys, PANEL_LANES) * b->v_cols, 4);
}

/* ---- operands ---- */

static void load(const attention *a, const attention_operand *o, const plain_rows *to,
                 const char *from, int64_t rows, int64_t cols) {
    if (cols % BF16_TERMS) memset(to->at, 0, (size_t)(rows * to->pitch) * 2);
    etch__attention_copy(a, o, to->at, to->pitch, from, rows, cols);
}

/* Elements [row][col]: lanes are the rows and terms the columns, or the other way round. */
static void pack(const bf16_backward *m, const packed_rows *to, const void *from, int64_t pitch,
                 int64_t rows, int64_t cols, bool turned, bool left) {
    m->t->pack[ETCH_BF16](&(panel_pack){.to = to->at,
                                        .from = from,
                                        .lane = turned ? 1 : pitch,
                                        .term = turned ? pitch : 1,
                                        .lanes = turned ? cols : rows,
                                        .terms = turned ? rows : cols,
                                        .panel = to->panel,
                                        .pairs = !left});
}

static void load_keys(const bf16_backward *m, bf16_room *b, int64_t head) {
    const attention *a = &m->j->a;
    load(a, &a->k, &b->keys, etch__attention_row(a, &a->k, head, a->group, 0), a->keys, a->width);
    pack(m, &b->k, b->keys.at, b->keys.pitch, a->keys, a->width, false, false);
    pack(m, &b->k_turned, b->keys.at, b->keys.pitch, a->keys, a->width, true, false);
    load(a, &a->v, &b->keys, etch__attention_row(a, &a->v, head, a->group, 0), a->keys,
         a->out_width);
    pack(m, &b->v, b->keys.at, b->keys.pitch, a->keys, a->out_width, false, false);
}

/* Queries and what goes back to their results; panels of fewer rows have as many blocks. */
static void load_rows(const bf16_backward *m, bf16_room *b, const attention_place *at,
                      int64_t rows) {
    attention_backward *j = m->j;
    const attention *a = &j->a;
    const char *q = etch__attention_row(a, &a->q, at->head, 1, at->query);
    const char *g = etch__attention_row(a, &j->g, at->head, 1, at->query);
    load(a, &a->q, &b->queries, q, rows, a->width);
    load(a, &j->g, &b->gradients, g, rows, a->out_width);
    pack(m, &b->q_turned, b->queries.at, b->queries.pitch, rows, a->width, true, false);
    pack(m, &b->g_turned, b->gradients.at, b->gradients.pitch, rows, a->out_width, true, false);
    etch__attention_load_rows(a, &j->g, &b->g, at->head, at->query, rows, a->out_width);
    etch__attention_load_rows(a, &j->result, &b->result, at->head, at->query, rows, a->out_width);
    a->isa->attention->dots[ETCH_F32](b->means, b->g.data, b->g.pitch, b->result.data,
                                      b->result.pitch, rows, a->out_width);
}

/* ---- one block of queries ---- */

/* c = rows of queries (or of gradients) times keys (or values) from a key on. */
static void meet_keys(const bf16_backward *m, const plain_rows *left, const packed_rows *right,
                      float *c, const attention_tile *t, int64_t key) {
    etch__attention_panels(m->t,
                           &(panel_product){.left = left->at,
                                            .pitch = left->pitch,
                                            .right = right->at + key / PANEL_LANES * right->panel,
                                            .right_panel = right->panel,
                                            .c = c,
                                            .ldc = t->pitch,
                                            .rows = t->rows,
                                            .cols = t->keys,
                                            .blocks = right->panel / PANEL_BLOCK});
}

static void scores_of(const bf16_backward *m, bf16_room *b, const attention_place *at, int64_t rows,
                      int64_t keys) {
    const attention *a = &m->j->a;
    etch__attention_set_tile(a, &b->tile, at, rows, keys);
    meet_keys(m, &b->queries, &b->k, b->tile.scores, &b->tile, at->key);
    etch__attention_scale_scores(a, &b->tile, at, true);
}

/* The maxima of rows and one over their sums. */
static void weigh_rows(const bf16_backward *m, bf16_room *b, attention_place at, int64_t rows,
                       int64_t seen) {
    const attention *a = &m->j->a;
    etch__attention_start(a, &b->tile);
    for (; at.key < seen; at.key += a->key_block) {
        scores_of(m, b, &at, rows, at_most(seen - at.key, a->key_block));
        a->isa->attention->soften[ETCH_F32](&b->tile);
    }
    etch__attention_invert(a, b->tile.sum);
}

/* A tile in bf16, with zeros behind its keys up to a whole block. */
static void round_tile(const attention_tile *t, float *from, uint16_t *to) {
    int64_t end = whole(t->keys, BF16_TERMS);
    for (int64_t r = 0; r < t->rows; r++, from += t->pitch, to += t->pitch) {
        etch__store_rounded(ETCH_BF16, to, from, t->keys);
        memset(to + t->keys, 0, (size_t)(end - t->keys) * sizeof *to);
    }
}

/* W and D, rounded. Of a single block of keys the exponentials are there. */
static void weights_of(const bf16_backward *m, bf16_room *b, const attention_place *at,
                       int64_t rows, int64_t keys) {
    const attention *a = &m->j->a;
    attention_tile *t = &b->tile;
    if (a->keys <= a->key_block) {
        a->isa->attention->scale[ETCH_F32](t->scores, t->pitch, rows, keys, t->sum);
    } else {
        scores_of(m, b, at, rows, keys);
        a->isa->attention->weigh[ETCH_F32](t);
    }
    meet_keys(m, &b->gradients, &b->v, b->slopes, t, at->key);
    a->isa->attention->slope[ETCH_F32](t, b->slopes, b->means);
    round_tile(t, t->scores, b->weights);
    round_tile(t, b->slopes, b->rounded);
}

/* to += x' y, x a tile. */
static void add_turned(const bf16_backward *m, bf16_room *b, const uint16_t *x,
                       const packed_rows *y, float *to, int64_t cols) {
    const attention_tile *t = &b->tile;
    const packed_rows left = {b->turned.at, blocks_of(t->rows) * PANEL_BLOCK};
    pack(m, &left, x, t->pitch, t->rows, t->keys, true, true);
    etch__attention_panels(m->t, &(panel_product){.left = left.at,
                                                  .right = y->at,
                                                  .right_panel = y->panel,
                                                  .c = to,
                                                  .ldc = cols,
                                                  .rows = t->keys,
                                                  .cols = cols,
                                                  .blocks = left.panel / PANEL_BLOCK,
                                                  .adds = true});
}

static void meet(const bf16_backward *m, bf16_room *b, const attention_place *at, int64_t rows,
                 int64_t keys) {
    const attention *a = &m->j->a;
    weights_of(m, b, at, rows, keys);
    add_turned(m, b, b->weights, &b->g_turned, b->to_v + at->key * b->v_cols, b->v_cols);
    add_turned(m, b, b->rounded, &b->q_turned, b->to_k + at->key * b->q_cols, b->q_cols);
    etch__attention_panels(
        m->t, &(panel_product){.left = b->rounded,
                               .pitch = a->pitch,
                               .right = b->k_turned.at + at->key / BF16_TERMS * PANEL_BLOCK,
                               .right_panel = b->k_turned.panel,
                               .c = b->to_q,
                               .ldc = b->q_cols,
                               .rows = rows,
                               .cols = a->width,
                               .blocks = blocks_of(keys),
                               .adds = at->key > 0});
}

/* Rows of sums, times the scale where they are of scores, rounded. */
static void store(const attention *a, char *out, int64_t first, float *sums, int64_t pitch,
                  int64_t rows, int64_t cols, bool scaled) {
    float scale = (float)a->scale;
    for (int64_t r = 0; r < rows; r++, sums += pitch) {
        if (scaled) a->isa->attention->scale[ETCH_F32](sums, pitch, 1, cols, &scale);
        etch__store_rounded(ETCH_BF16, out + (first + r * cols) * 2, sums, cols);
    }
}

static void pass_rows(const bf16_backward *m, bf16_room *b, int64_t head, int64_t from) {
    const attention *a = &m->j->a;
    int64_t rows = at_most(a->queries - from, a->query_block);
    int64_t seen = etch__attention_seen(a, from, rows);
    attention_place at = {head, from, 0};
    load_rows(m, b, &at, rows);
    weigh_rows(m, b, at, rows, seen);
    if (!seen) memset(b->to_q, 0, (size_t)(rows * b->q_cols) * sizeof *b->to_q);
    for (; at.key < seen; at.key += a->key_block)
        meet(m, b, &at, rows, at_most(seen - at.key, a->key_block));
    store(a, m->j->to_q, (head * a->queries + from) * a->width, b->to_q, b->q_cols, rows, a->width,
          true);
}

/* ---- one head of keys and values ---- */

static void pass_head(const bf16_backward *m, bf16_room *b, int64_t shared) {
    const attention *a = &m->j->a;
    size_t rows = (size_t)whole(a->keys, PANEL_LANES);
    memset(b->to_k, 0, rows * (size_t)b->q_cols * sizeof *b->to_k);
    memset(b->to_v, 0, rows * (size_t)b->v_cols * sizeof *b->to_v);
    if (a->group) load_keys(m, b, shared * a->group);
    for (int64_t head = shared * a->group; head < (shared + 1) * a->group; head++)
        for (int64_t from = 0; from < a->queries; from += a->query_block)
            pass_rows(m, b, head, from);
    store(a, m->j->to_k, shared * a->keys * a->width, b->to_k, b->q_cols, a->keys, a->width, true);
    store(a, m->j->to_v, shared * a->keys * a->out_width, b->to_v, b->v_cols, a->keys, a->out_width,
          false);
}

static void heads_task(void *ctx, int64_t begin, int64_t end) {
    const bf16_backward *m = ctx;
    attention *a = &m->j->a;
    bf16_room b = {.room.memory = NULL};
    cut(a, &b);
    void *memory = etch__attention_open(a, &b.room);
    if (!memory) return;
    cut(a, &b);
    memset(b.room.memory, 0, b.room.used); /* what a panel has too many */
    m->t->enter();
    for (int64_t i = begin; i < end; i++) pass_head(m, &b, i);
    m->t->leave();
    etch__free(memory);
}

etch_status etch__attention_backward_of_bf16(attention_backward *j) {
    attention *a = &j->a;
    bf16_backward m = {j, etch__panels_for(a->isa, a->dtype)};
    double work =
        (double)(a->queries * a->group) * (double)a->keys * (double)(a->width + a->out_width);
    a->key_block = a->keys > KEYS ? KEYS : a->keys;
    a->pitch = whole(a->key_block, BF16_TERMS) + PANEL_LANES;
    return etch__attention_run(a, a->batches * a->shared, work / 4, heads_task, &m);
}
