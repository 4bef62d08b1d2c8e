/* Products by panels (isa/panels.c, dots.c, amx.c). Their bits depend on K alone, so what follows
 * chooses freely:
 *
 *   the left operand  C = A B, or C' = B' A', whose tiles are turned when they are done: a left
 *                     operand whose terms are neighbours in memory (the weight of a linear layer)
 *                     is read where it lies
 *   tiles             as many as keep all threads busy, small enough for the cache
 *   blocks of terms   two panels of the right operand fill half of the first cache
 *
 * The right operand is packed whole before the tiles begin, or tile by tile where it is large and
 * no tile needs what another one does; the left one, where it has to be, always tile by tile, but
 * once for tiles beside each other if one step has all terms. Panels of a B that is multiplied by
 * again, a weight, are kept with the version of its storage's contents (core/tensor/forms.h). */
#include "backends/cpu/product.h"
#include "backends/cpu/program.h"
#include "core/base/counters.h"
#include "core/base/pool.h"
#include "core/tensor/forms.h"

/* An operand as lanes (rows of A, columns of B) of terms, in elements from one to the next. */
typedef struct panel_side {
    const char *data;
    int64_t lane, term, batch, lanes;
    void *copy;
} panel_side;

typedef struct panel_plan {
    product *p;
    const panel_table *t;
    panel_side left, right;
    int size;                  /* bytes of an element of both */
    bool swapped;              /* left is B */
    bool direct, direct_right; /* panels of left, of right are read where they lie */
    bool in_place;             /* tiles are computed where the result lies */
    int64_t blocks;            /* of terms */
    int64_t per_word;          /* terms in 4 bytes of a panel */
    char *packed;              /* right: [batch][panel][block]; NULL: packed tile by tile */
    etch_storage *own;         /* its memory, or NULL */
    bool keep;                 /* what is packed will be asked for again */
    int64_t packed_from;       /* bytes from one product's to the next; 0: the same for all */
    int64_t rows, cols, row_tiles, col_tiles; /* of tiles, in lanes */
    int64_t band;     /* row tiles whose rows of left stay in the cache, beside each other */
    int64_t together; /* blocks of right that a tile packs at a time, whole steps */
} panel_plan;

/* Of a tile of the result. */
enum { TILE_M = 128, TILE_N = 256 };
/* Where right is packed tile by tile: of so many bytes or more, for at most so many lanes. */
enum { LARGE_RIGHT = 1 << 20, TALL_ROWS = 512 };
/* Where right is read once or so: not even packed, if it need not be. */
enum { RARE_ROWS = 16 };
/* Of tiles by panels that are there: rows, columns (fewer of panels that are long, so that all of
 * them stay in the second-level cache), and the bytes of left that stay. */
enum { KEPT_M = 64, KEPT_N = 256, KEPT_LONG_N = 128, KEPT_LEFT = 1 << 20, MOST_HELD = 8 };
enum { LONG_PANEL = 32 << 10 };

const panel_table *etch__panels_for(const isa_table *isa, etch_dtype dtype) {
    if (dtype == ETCH_BF16 && isa->amx->multiply && etch__cpu_amx()) return isa->amx;
    if (dtype == ETCH_BF16 && isa->bf16->multiply && etch__cpu_level() >= CPU_LEVEL_DOTS)
        return isa->bf16;
    return isa->f32->multiply && isa->f32->pack[dtype] ? isa->f32 : NULL;
}

static int64_t panels(int64_t lanes) { return (lanes + PANEL_LANES - 1) / PANEL_LANES; }

/* ---- operands ---- */

static bool readable(const panel_side *s, int64_t terms) {
    return s->term == 1 || s->lane == 1 || s->lanes == 1 || terms == 1;
}

/* `o` with its lanes along rows or columns; one that has neighbours along neither is copied. */
static bool take_side(const product *p, const product_operand *o, bool by_rows, panel_side *s) {
    *s = (panel_side){o->data,  by_rows ? o->row : o->col,   by_rows ? o->col : o->row,
                      o->batch, by_rows ? o->rows : o->cols, NULL};
    if (readable(s, p->k)) return true;
    int64_t batch = o->batch ? p->batch : 1;
    etch_storage memory = {.data = (void *)(uintptr_t)o->data};
    etch_tensor t = {.dtype = p->dtype,
                     .ndim = 3,
                     .size = {batch, s->lanes, p->k},
                     .stride = {o->batch, s->lane, s->term},
                     .numel = batch * s->lanes * p->k,
                     .storage = &memory};
    if (!(s->data = etch__row_major_elements(&t, false, &s->copy))) return false;
    s->lane = p->k, s->term = 1, s->batch = o->batch ? s->lanes * p->k : 0;
    return true;
}

static bool lies_packed(const panel_plan *m) { return m->p->dtype != m->t->left; }

/* About what it costs to have a side as the left or the right one, in moves of an element: to read
 * or to pack it, and, where that depends on the lanes, to multiply. */
static double cost(const panel_plan *m, const panel_side *s, bool as_left) {
    const product *p = m->p;
    double elements = (double)s->lanes * (double)p->k * (s->batch ? (double)p->batch : 1);
    bool terms = s->term == 1;
    if (!as_left) return elements * (terms ? 2 : 1);
    return elements * (!terms ? 3 : lies_packed(m) ? 1 : 0.2);
}

/* What multiplying costs beyond what it has to: a panel of the right side is whole. */
static double waste(const panel_plan *m, const panel_side *left, const panel_side *right) {
    double more = (double)(panels(right->lanes) * PANEL_LANES - right->lanes);
    if (m->t->whole) return 0;
    return 0.4 * (double)m->p->batch * (double)left->lanes * more * (double)m->p->k;
}

/* What the panels of B depend on beside the contents of its storage. */
static form_key key_of(const panel_plan *m) {
    const product_operand *b = &m->p->b;
    return (form_key){{FORM_PANELS, m->p->dtype, b->data - (const char *)b->storage->data, m->p->k,
                       m->p->n, b->row, b->col}};
}

/* Whether B's panels are there, or worth keeping when they are made. Measured: with AMX, and on
 * processors that have it, up to twice as fast, f32 3 to 20 %; f32 4 % slower on Zen 5. */
static bool keeps(panel_plan *m) {
    const product *p = m->p;
    if (!m->t->keeps || etch__cpu_level() < CPU_LEVEL_AMX || !p->b.storage || p->batch > 1 ||
        p->m <= RARE_ROWS)
        return false;
    form_key key = key_of(m);
    m->own = etch__form_find(p->b.storage, &key, &m->keep);
    return m->own || m->keep;
}

static bool take_sides(panel_plan *m) {
    const product *p = m->p;
    panel_side a, b;
    if (!take_side(p, &p->a, true, &a)) return false;
    if (!take_side(p, &p->b, false, &b)) return etch__free(a.copy), false;
    double turned = (double)p->batch * (double)p->m * (double)p->n;
    m->swapped = !keeps(m) && cost(m, &b, true) + cost(m, &a, false) + waste(m, &b, &a) + turned <
                                  cost(m, &a, true) + cost(m, &b, false) + waste(m, &a, &b);
    m->left = m->swapped ? b : a, m->right = m->swapped ? a : b;
    return true;
}

/* ---- the right operand ---- */

/* Lanes or terms from begin to end of one product of the batch, whole panels or blocks of them. */
static void pack_part(const panel_plan *m, int64_t batch, int64_t begin, int64_t end) {
    const panel_side *s = &m->right;
    bool by_lane = s->term == 1;
    panel_pack part = {.to = m->packed + batch * m->packed_from,
                       .from = s->data + batch * s->batch * m->size,
                       .lane = s->lane,
                       .term = s->term,
                       .lanes = s->lanes,
                       .terms = m->p->k,
                       .panel = m->blocks * PANEL_BLOCK,
                       .pairs = true};
    int64_t *n = by_lane ? &part.lanes : &part.terms, unit = by_lane ? PANEL_LANES : m->t->terms;
    if (end * unit < *n) *n = end * unit;
    *n -= begin * unit;
    part.to = (char *)part.to + begin * (by_lane ? part.panel : PANEL_BLOCK);
    part.from += begin * unit * (by_lane ? s->lane : s->term) * m->size;
    m->t->pack[m->p->dtype](&part);
}

/* Units are panels where terms are neighbours in memory, else blocks of terms. */
static void pack_task(void *ctx, int64_t begin, int64_t end) {
    const panel_plan *m = ctx;
    int64_t n = m->right.term == 1 ? panels(m->right.lanes) : m->blocks;
    for (int64_t at = begin; at < end;) {
        int64_t first = at % n, last = first + (end - at) < n ? first + (end - at) : n;
        pack_part(m, at / n, first, last);
        at += last - first;
    }
}

static bool pack_whole(panel_plan *m, int64_t units, int64_t bytes) {
    int64_t batch = m->right.batch ? m->p->batch : 1;
    if (!(m->own = etch__storage_new((size_t)(batch * bytes)))) return false;
    m->packed = m->own->data;
    m->packed_from = m->right.batch ? bytes : 0;
    etch__parallel(batch * units, (1 << 16) * units / bytes + 1, pack_task, m);
    if (!m->keep) return true;
    form_key key = key_of(m);
    etch__form_keep(m->p->b.storage, &key, m->own);
    etch__counters.weights_packed++;
    return true;
}

static bool pack_right(panel_plan *m) {
    if (m->own) return m->packed = m->own->data, true;
    m->direct_right = m->left.lanes <= RARE_ROWS && m->t->strides && m->right.lane == 1 &&
                      m->right.lanes % PANEL_LANES == 0 && m->p->dtype == m->t->left;
    if (m->direct_right) return true;
    int64_t n = panels(m->right.lanes), bytes = n * m->blocks * PANEL_BLOCK;
    int64_t tall = m->t->whole ? TALL_ROWS : TILE_M;
    if (!m->keep && bytes >= LARGE_RIGHT && m->left.lanes <= tall && !m->p->whole_rows) return true;
    return pack_whole(m, m->right.term == 1 ? n : m->blocks, bytes);
}

/* ---- tiles ---- */

static int64_t whole_panels(int64_t lanes, int64_t most) {
    int64_t n = (lanes + 2 * PANEL_LANES - 1) / (2 * PANEL_LANES) * 2 * PANEL_LANES;
    return n < most ? n : most;
}

/* Of tiles whose right operand is packed with them: as much as the cache allows, of few lanes rows
 * of memory that are long. */
static void plan_tall(panel_plan *m) {
    int64_t cols = m->t->whole              ? (m->rows <= 32    ? 1024
                                               : m->rows <= 128 ? 256
                                                                : 128)
                   : m->left.lanes > TILE_M ? 128
                   : m->right.term != 1     ? 256
                                            : (m->left.lanes <= RARE_ROWS ? 64 : 128);
    m->rows = whole_panels(m->left.lanes, TALL_ROWS);
    m->cols = whole_panels(m->right.lanes, cols);
    int64_t steps = m->t->whole || m->left.lanes > TILE_M ? 1 : 256 / cols;
    m->together = steps * m->t->step;
}

/* Of tiles that find right packed, where one call has all terms: small enough for what follows to
 * find them in the first cache, and so many after one another along the same columns that their
 * rows of left stay in the second one. */
static void plan_kept(panel_plan *m) {
    bool longs = m->t->whole && m->blocks * PANEL_BLOCK > LONG_PANEL;
    m->rows = whole_panels(m->left.lanes, KEPT_M);
    m->cols = whole_panels(m->right.lanes, longs ? KEPT_LONG_N : KEPT_N);
    int64_t bytes = m->rows * m->blocks * 64;
    m->band = at_most(bytes < KEPT_LEFT ? KEPT_LEFT / bytes : 1, MOST_HELD);
}

/* Tiles of whole rows of the result: as many rows as the cache holds, if every thread gets some. */
static void plan_bands(panel_plan *m) {
    int64_t side = TILE_M, threads = etch_num_threads();
    while (side > 32 && (side * m->p->n > (1 << 16) || side * threads > m->p->m)) side /= 2;
    m->rows = whole_panels(m->left.lanes, m->swapped ? m->left.lanes + 32 : side);
    m->cols = whole_panels(m->right.lanes, m->swapped ? side : m->right.lanes + 32);
    m->row_tiles = (m->left.lanes + m->rows - 1) / m->rows;
    m->col_tiles = (m->right.lanes + m->cols - 1) / m->cols;
}

/* The larger ones are, the less is read twice; but every thread should get some. */
static void plan_tiles(panel_plan *m) {
    if (m->p->whole_rows) {
        plan_bands(m);
        return;
    }
    int64_t wanted = 2 * (int64_t)etch_num_threads();
    int64_t rows = m->swapped ? TILE_N : TILE_M, cols = m->swapped ? TILE_M : TILE_N;
    m->rows = whole_panels(m->left.lanes, rows);
    m->cols = whole_panels(m->right.lanes, cols);
    if (!m->packed) plan_tall(m);
    else if (m->t->keeps && !m->swapped) plan_kept(m);
    for (;;) {
        m->row_tiles = (m->left.lanes + m->rows - 1) / m->rows;
        m->col_tiles = (m->right.lanes + m->cols - 1) / m->cols;
        if (m->p->batch * m->row_tiles * m->col_tiles >= wanted) return;
        if (!m->packed || m->rows <= 2 * PANEL_LANES) return;
        m->rows = m->rows / 2 / PANEL_LANES * PANEL_LANES;
    }
}

/* Rows that lie a multiple of a page apart share the same few places of the first cache. */
static bool reads_directly(const panel_plan *m) {
    const panel_side *s = &m->left;
    bool crowded = m->t->whole && s->lane * m->size % 2048 == 0 && m->cols > 4 * PANEL_LANES;
    int64_t unit = m->t->whole ? m->t->terms : m->per_word;
    return s->term == 1 && m->p->k % unit == 0 && !crowded && !lies_packed(m);
}

/* A thread's memory: the tile, the same turned, panels of left and of right. A storage's, since
 * those are kept for the next product. */
typedef struct panel_scratch {
    float *c, *turned;
    char *left, *right;
    /* What each place of `left` was packed from, with all its terms; NULL: with some. */
    const char *held[MOST_HELD];
    etch_storage *memory;
} panel_scratch;

static int64_t left_bytes(const panel_plan *m) {
    return panels(m->rows) * at_most(m->blocks, m->t->step) * PANEL_BLOCK;
}

/* Of left, packed, at a time. */
static int64_t places(const panel_plan *m) { return m->direct ? 1 : m->band; }

static bool new_scratch(const panel_plan *m, panel_scratch *s) {
    int64_t tile = m->rows * (m->cols + PANEL_LANES) * (int64_t)sizeof(float);
    int64_t left = places(m) * left_bytes(m);
    int64_t right = m->packed ? 0 : panels(m->cols) * m->together * PANEL_BLOCK;
    int64_t turned = m->swapped ? tile : 0;
    if (!(s->memory = etch__storage_new((size_t)(tile + turned + left + right)))) return false;
    char *at = s->memory->data;
    s->c = (float *)(void *)at, s->turned = (float *)(void *)(at + tile);
    s->left = at + tile + turned, s->right = s->left + left;
    memset(s->held, 0, sizeof s->held);
    return true;
}

/* Packs lanes of a side, so many blocks of terms from block `at` on. */
static void pack_blocks(const panel_plan *m, const panel_side *side, char *to, const char *from,
                        int64_t lanes, int64_t at, int64_t blocks) {
    int64_t terms = m->p->k - at * m->t->terms, most = blocks * m->t->terms;
    m->t->pack[m->p->dtype](&(panel_pack){.to = to,
                                          .from = from + at * m->t->terms * side->term * m->size,
                                          .lane = side->lane,
                                          .term = side->term,
                                          .lanes = lanes,
                                          .terms = terms < most ? terms : most,
                                          .panel = blocks * PANEL_BLOCK,
                                          .pairs = side == &m->right});
}

/* Where the tile's rows of left lie: there, or packed; terms from block `at` on. */
static void give_left(const panel_plan *m, panel_scratch *s, panel_args *args, const char *from,
                      int64_t row, int64_t lanes, int64_t at) {
    args->left = from + at * 64;
    args->left_row = m->left.lane * m->size, args->left_block = 64;
    args->left_panel = PANEL_LANES * args->left_row;
    if (m->direct && (!m->t->whole || lanes % PANEL_LANES == 0)) return;
    int64_t place = row / m->rows % places(m);
    char *to = s->left + place * left_bytes(m);
    if (s->held[place] != from) pack_blocks(m, &m->left, to, from, lanes, at, args->blocks);
    s->held[place] = m->blocks <= m->t->step ? from : NULL;
    args->left = to, args->left_row = 64, args->left_block = PANEL_BLOCK;
    args->left_panel = args->blocks * PANEL_BLOCK;
}

static void give_right(const panel_plan *m, const panel_scratch *s, panel_args *args, int64_t batch,
                       int64_t col, int64_t lanes, int64_t at) {
    const char *from = m->right.data + (batch * m->right.batch + col * m->right.lane) * m->size;
    args->right_panel = m->blocks * PANEL_BLOCK, args->right_term = 64;
    if (m->packed) {
        args->right = m->packed + batch * m->packed_from + col / PANEL_LANES * args->right_panel +
                      at * PANEL_BLOCK;
    } else if (m->direct_right) {
        args->right_panel = 64, args->right_term = m->right.term * m->size;
        args->right = from + at * m->t->terms * args->right_term;
    } else {
        int64_t first = at / m->together * m->together;
        int64_t blocks = at_most(m->blocks - first, m->together);
        if (at == first) pack_blocks(m, &m->right, s->right, from, lanes, at, blocks);
        args->right_panel = blocks * PANEL_BLOCK;
        args->right = s->right + (at - first) * PANEL_BLOCK;
    }
}

/* The tile where the result lies. */
static char *place_of(const product *p, const product_tile *t) {
    return p->c + ((t->batch * p->m + t->row) * p->n + t->col) * (int64_t)sizeof(float);
}

static void copy_tile(const product *p, product_tile *t) {
    const char *from = t->c;
    t->c = place_of(p, t);
    for (int64_t r = 0; r < t->m; r++)
        memcpy(t->c + r * p->n * 4, from + r * t->ldc * 4, (size_t)t->n * 4);
    t->ldc = p->n;
}

static void give_tile(const panel_plan *m, const panel_scratch *s, product_tile t, bool there) {
    const product *p = m->p;
    if (m->swapped) {
        m->t->turn(s->turned, m->rows, s->c, m->cols, panels(t.m) * PANEL_LANES,
                   panels(t.n) * PANEL_LANES);
        t = (product_tile){t.batch, t.col, t.row, t.n, t.m, (char *)s->turned, m->rows};
    }
    if (p->c && !there) copy_tile(p, &t);
    if (p->finish) p->finish(p->ctx, p, &t);
}

/* Rows and columns of left and right: bands of rows, in those along columns first. */
static product_tile tile_number(const panel_plan *m, const panel_scratch *s, int64_t i) {
    int64_t of_batch = m->row_tiles * m->col_tiles, of_band = m->band * m->col_tiles;
    int64_t first = i % of_batch / of_band * m->band, in_band = i % of_batch % of_band;
    int64_t band = at_most(m->row_tiles - first, m->band);
    product_tile t = {.batch = i / of_batch, .c = (char *)s->c, .ldc = m->cols};
    t.row = (first + in_band % band) * m->rows, t.col = in_band / band * m->cols;
    t.m = at_most(m->left.lanes - t.row, m->rows), t.n = at_most(m->right.lanes - t.col, m->cols);
    return t;
}

static void compute_tile(const panel_plan *m, panel_scratch *s, int64_t i) {
    product_tile t = tile_number(m, s, i);
    bool there = m->in_place && t.n % PANEL_LANES == 0;
    if (there) t.c = place_of(m->p, &t), t.ldc = m->p->n;
    panel_args args = {.c = (float *)(void *)t.c, .ldc = t.ldc, .rows = t.m, .cols = panels(t.n)};
    const char *left = m->left.data + (t.batch * m->left.batch + t.row * m->left.lane) * m->size;
    for (int64_t at = 0; at < m->blocks; at += m->t->step) {
        args.blocks = at_most(m->blocks - at, m->t->step);
        args.words = at_most((m->p->k + m->per_word - 1) / m->per_word - at * 16, args.blocks * 16);
        args.adds = at > 0;
        give_right(m, s, &args, t.batch, t.col, t.n, at);
        give_left(m, s, &args, left, t.row, t.m, at);
        m->t->multiply(&args);
    }
    give_tile(m, s, t, there);
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    const panel_plan *m = ctx;
    panel_scratch s;
    if (!new_scratch(m, &s)) {
        atomic_store(&m->p->status, 1);
        return;
    }
    m->t->enter();
    for (int64_t i = begin; i < end; i++) compute_tile(m, &s, i);
    m->t->leave();
    etch__storage_release(s.memory);
}

/* Products of two numbers, a store with them, that are worth handing to another thread: some
 * microseconds. */
enum { WORTH = 1 << 18 };

/* Of tiles that a thread takes at a time: enough to be worth it; all that have the same rows of
 * left where those are packed once, if there are such for every thread. */
static int64_t tiles_together(const panel_plan *m) {
    double work = (double)m->rows * (double)m->cols * (double)(m->p->k + PANEL_LANES);
    int64_t worth = work > WORTH ? 1 : (int64_t)(WORTH / work) + 1;
    int64_t threads = etch_num_threads(), tiles = m->p->batch * m->row_tiles * m->col_tiles;
    bool once = !m->direct && m->blocks <= m->t->step && m->col_tiles > worth;
    if (once && m->band > 1) return (tiles + threads - 1) / threads;
    return once && m->p->batch * m->row_tiles % threads == 0 ? m->col_tiles : worth;
}

/* ---- the whole ---- */

etch_status etch__panels_run(product *p) {
    panel_plan m = {.p = p, .t = p->panels, .size = 1 << etch__size_log2(p->dtype), .band = 1};
    m.blocks = (p->k + m.t->terms - 1) / m.t->terms, m.per_word = m.t->terms / 16;
    bool ok = take_sides(&m);
    if (ok && (ok = pack_right(&m))) {
        plan_tiles(&m);
        m.direct = reads_directly(&m);
        m.in_place = p->c && !m.swapped && !m.t->whole;
        int64_t tiles = p->batch * m.row_tiles * m.col_tiles;
        etch__parallel(tiles, tiles_together(&m), tiles_task, &m);
    }
    etch__free(m.left.copy);
    etch__free(m.right.copy);
    etch__storage_release(m.own);
    if (ok && !atomic_load(&p->status)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "product: no memory for tiles");
}
