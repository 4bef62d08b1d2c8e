/* Products of bf16 by AMX (isa/amx.c). Its bits depend on K alone, so what follows chooses freely:
 *
 *   the left operand  C = A B, or C' = B' A', whose tiles are turned when they are done: a left
 *                     operand whose terms are neighbours in memory (the weight of a linear layer)
 *                     is read where it lies
 *   tiles             as many as keep all threads busy, small enough for the cache
 *   blocks of terms   two panels of the right operand fill half of the first cache
 *
 * The right operand is packed whole before the tiles begin, or tile by tile where it is large and
 * no tile needs what another one does; the left one, where it has to be, always tile by tile. */
#include "backends/cpu/product.h"
#include "backends/cpu/program.h"
#include "core/base/pool.h"

/* An operand as lanes (rows of A, columns of B) of terms, in elements from one to the next. */
typedef struct amx_side {
    const uint16_t *data;
    int64_t lane, term, batch, lanes;
    void *copy;
} amx_side;

typedef struct amx_plan {
    product *p;
    const amx_table *t;
    amx_side left, right;
    bool swapped;        /* left is B */
    bool direct;         /* whole panels of left are read where they lie */
    int64_t blocks;      /* of terms */
    char *packed;        /* right: [batch][panel][block]; NULL: packed tile by tile */
    int64_t packed_from; /* bytes from one product's to the next; 0: the same for all */
    int64_t rows, cols, row_tiles, col_tiles; /* of tiles, in lanes */
} amx_plan;

/* Of a tile of the result; blocks of terms in a step. */
enum { TILE_M = 128, TILE_N = 256, STEP_BLOCKS = 16 };
/* Where right is packed tile by tile: of so many bytes or more, for at most so many lanes. */
enum { LARGE_RIGHT = 1 << 20, TALL_ROWS = 512 };

bool etch__amx_takes(const product *p) {
    return p->dtype == ETCH_BF16 && p->isa->amx->multiply && etch__cpu_amx();
}

static int64_t panels(int64_t lanes) { return (lanes + AMX_LANES - 1) / AMX_LANES; }

/* ---- operands ---- */

static bool readable(const amx_side *s, int64_t terms) {
    return s->term == 1 || s->lane == 1 || s->lanes == 1 || terms == 1;
}

/* `o` with its lanes along rows or columns; one that has neighbours along neither is copied. */
static bool take_side(const product *p, const product_operand *o, bool by_rows, amx_side *s) {
    *s = (amx_side){(const uint16_t *)o->data,   by_rows ? o->row : o->col,
                    by_rows ? o->col : o->row,   o->batch,
                    by_rows ? o->rows : o->cols, NULL};
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

/* About what it costs to have a side as the left or the right one, in moves of an element. */
static double cost(const product *p, const amx_side *s, bool as_left) {
    double elements = (double)s->lanes * (double)p->k * (s->batch ? (double)p->batch : 1);
    bool terms = s->term == 1;
    return elements * (as_left ? (terms ? 0.2 : 3) : (terms ? 2 : 1));
}

static bool take_sides(amx_plan *m) {
    const product *p = m->p;
    amx_side a, b;
    if (!take_side(p, &p->a, true, &a)) return false;
    if (!take_side(p, &p->b, false, &b)) return etch__free(a.copy), false;
    double turned = (double)p->batch * (double)p->m * (double)p->n;
    m->swapped =
        cost(p, &b, true) + cost(p, &a, false) + turned < cost(p, &a, true) + cost(p, &b, false);
    m->left = m->swapped ? b : a, m->right = m->swapped ? a : b;
    return true;
}

/* ---- the right operand ---- */

/* Lanes or terms from begin to end of one product of the batch, whole panels or blocks of them. */
static void pack_part(const amx_plan *m, int64_t batch, int64_t begin, int64_t end) {
    const amx_side *s = &m->right;
    bool by_lane = s->term == 1;
    amx_pack part = {.to = m->packed + batch * m->packed_from,
                     .from = s->data + batch * s->batch,
                     .lane = s->lane,
                     .term = s->term,
                     .lanes = s->lanes,
                     .terms = m->p->k,
                     .panel = m->blocks * AMX_BLOCK,
                     .pairs = true};
    int64_t *n = by_lane ? &part.lanes : &part.terms, unit = by_lane ? AMX_LANES : AMX_TERMS;
    if (end * unit < *n) *n = end * unit;
    *n -= begin * unit;
    part.to = (char *)part.to + begin * (by_lane ? part.panel : AMX_BLOCK);
    part.from += begin * unit * (by_lane ? s->lane : s->term);
    m->t->pack(&part);
}

/* Units are panels where terms are neighbours in memory, else blocks of terms. */
static void pack_task(void *ctx, int64_t begin, int64_t end) {
    const amx_plan *m = ctx;
    int64_t n = m->right.term == 1 ? panels(m->right.lanes) : m->blocks;
    for (int64_t at = begin; at < end;) {
        int64_t first = at % n, last = first + (end - at) < n ? first + (end - at) : n;
        pack_part(m, at / n, first, last);
        at += last - first;
    }
}

static bool pack_right(amx_plan *m) {
    int64_t batch = m->right.batch ? m->p->batch : 1, n = panels(m->right.lanes);
    int64_t bytes = n * m->blocks * AMX_BLOCK, units = m->right.term == 1 ? n : m->blocks;
    if (bytes >= LARGE_RIGHT && m->left.lanes <= TALL_ROWS && !m->p->whole_rows) return true;
    if (!(m->packed = etch__aligned((size_t)(batch * bytes)))) return false;
    m->packed_from = m->right.batch ? bytes : 0;
    etch__parallel(batch * units, (1 << 16) * units / bytes + 1, pack_task, m);
    return true;
}

/* ---- tiles ---- */

/* Of a tile whose right operand is packed with it: rows of memory as long as the cache allows. */
static int64_t tall_cols(int64_t rows) { return rows <= 32 ? 1024 : rows <= 128 ? 256 : 128; }

static int64_t whole_panels(int64_t lanes, int64_t most) {
    int64_t n = (lanes + 2 * AMX_LANES - 1) / (2 * AMX_LANES) * 2 * AMX_LANES;
    return n < most ? n : most;
}

/* Tiles of whole rows of the result: as many rows as the cache holds, if every thread gets some. */
static void plan_bands(amx_plan *m) {
    int64_t side = TILE_M, threads = etch_num_threads();
    while (side > 32 && (side * m->p->n > (1 << 16) || side * threads > m->p->m)) side /= 2;
    m->rows = whole_panels(m->left.lanes, m->swapped ? m->left.lanes + 32 : side);
    m->cols = whole_panels(m->right.lanes, m->swapped ? side : m->right.lanes + 32);
    m->row_tiles = (m->left.lanes + m->rows - 1) / m->rows;
    m->col_tiles = (m->right.lanes + m->cols - 1) / m->cols;
}

/* The larger ones are, the less is read twice; but every thread should get some. */
static void plan_tiles(amx_plan *m) {
    if (m->p->whole_rows) {
        plan_bands(m);
        return;
    }
    int64_t wanted = 2 * (int64_t)etch_num_threads();
    int64_t rows = m->swapped ? TILE_N : TILE_M, cols = m->swapped ? TILE_M : TILE_N;
    m->rows = whole_panels(m->left.lanes, m->packed ? rows : TALL_ROWS);
    m->cols = whole_panels(m->right.lanes, m->packed ? cols : tall_cols(m->rows));
    for (;;) {
        m->row_tiles = (m->left.lanes + m->rows - 1) / m->rows;
        m->col_tiles = (m->right.lanes + m->cols - 1) / m->cols;
        if (m->p->batch * m->row_tiles * m->col_tiles >= wanted) return;
        if (!m->packed || m->rows <= 2 * AMX_LANES) return;
        m->rows = m->rows / 2 / AMX_LANES * AMX_LANES;
    }
}

/* Rows that lie a multiple of a page apart share the same few places of the first cache. */
static bool reads_directly(const amx_plan *m) {
    const amx_side *s = &m->left;
    bool crowded = s->lane * 2 % 2048 == 0 && m->cols > 4 * AMX_LANES;
    return s->term == 1 && m->p->k % AMX_TERMS == 0 && !crowded;
}

/* A thread's memory: the tile, the same turned, panels of left and of right. */
typedef struct amx_scratch {
    float *c, *turned;
    char *left, *right;
} amx_scratch;

static bool new_scratch(const amx_plan *m, amx_scratch *s) {
    int64_t tile = m->rows * (m->cols + AMX_LANES) * (int64_t)sizeof(float);
    int64_t left = m->rows / AMX_LANES * STEP_BLOCKS * AMX_BLOCK;
    int64_t right = m->packed ? 0 : m->cols / AMX_LANES * STEP_BLOCKS * AMX_BLOCK;
    char *memory = etch__aligned((size_t)(2 * tile + left + right));
    if (!memory) return false;
    *s = (amx_scratch){(float *)memory, (float *)(memory + tile), memory + 2 * tile,
                       memory + 2 * tile + left};
    return true;
}

/* Packs lanes of a side, args->blocks blocks of terms from block `at` on. */
static void pack_step(const amx_plan *m, const amx_args *args, const amx_side *side, char *to,
                      const uint16_t *from, int64_t lanes, int64_t at) {
    int64_t terms = m->p->k - at * AMX_TERMS, most = args->blocks * AMX_TERMS;
    m->t->pack(&(amx_pack){.to = to,
                           .from = from + at * AMX_TERMS * side->term,
                           .lane = side->lane,
                           .term = side->term,
                           .lanes = lanes,
                           .terms = terms < most ? terms : most,
                           .panel = args->blocks * AMX_BLOCK,
                           .pairs = side == &m->right});
}

/* Where the tile's rows of left lie: there, or packed; terms from block `at` on. */
static void give_left(const amx_plan *m, const amx_scratch *s, amx_args *args, const uint16_t *from,
                      int64_t lanes, int64_t at) {
    args->left = from + at * AMX_TERMS * m->left.term;
    args->left_row = m->left.lane * 2, args->left_block = 64;
    args->left_panel = AMX_LANES * args->left_row;
    if (m->direct && lanes % AMX_LANES == 0) return;
    pack_step(m, args, &m->left, s->left, from, lanes, at);
    args->left = s->left, args->left_row = 64, args->left_block = AMX_BLOCK;
    args->left_panel = args->blocks * AMX_BLOCK;
}

static void give_right(const amx_plan *m, const amx_scratch *s, amx_args *args, int64_t batch,
                       int64_t col, int64_t lanes, int64_t at) {
    args->right_panel = m->blocks * AMX_BLOCK;
    args->right =
        m->packed + batch * m->packed_from + col / AMX_LANES * args->right_panel + at * AMX_BLOCK;
    if (m->packed) return;
    const uint16_t *from = m->right.data + batch * m->right.batch + col * m->right.lane;
    pack_step(m, args, &m->right, s->right, from, lanes, at);
    args->right_panel = args->blocks * AMX_BLOCK;
    args->right = s->right;
}

static void copy_tile(const product *p, const product_tile *t) {
    const float *from = (const float *)t->c;
    float *to = (float *)p->c + (t->batch * p->m + t->row) * p->n + t->col;
    for (int64_t r = 0; r < t->m; r++)
        memcpy(to + r * p->n, from + r * t->ldc, (size_t)t->n * sizeof *to);
}

static void give_tile(const amx_plan *m, const amx_scratch *s, int64_t batch, int64_t row,
                      int64_t col, int64_t rows, int64_t cols) {
    const product *p = m->p;
    product_tile t = {batch, row, col, rows, cols, (char *)s->c, m->cols};
    if (m->swapped) {
        t = (product_tile){batch, col, row, cols, rows, (char *)s->turned, m->rows};
        m->t->turn(s->turned, m->rows, s->c, m->cols, panels(rows) * AMX_LANES,
                   panels(cols) * AMX_LANES);
    }
    if (p->finish) p->finish(p->ctx, p, &t);
    else copy_tile(p, &t);
}

static void compute_tile(const amx_plan *m, const amx_scratch *s, int64_t i) {
    int64_t batch = i / m->col_tiles / m->row_tiles;
    int64_t row = i / m->col_tiles % m->row_tiles * m->rows, col = i % m->col_tiles * m->cols;
    int64_t rows = m->left.lanes - row < m->rows ? m->left.lanes - row : m->rows;
    int64_t cols = m->right.lanes - col < m->cols ? m->right.lanes - col : m->cols;
    amx_args args = {.c = s->c, .ldc = m->cols, .rows = panels(rows), .cols = panels(cols)};
    const uint16_t *left = m->left.data + batch * m->left.batch + row * m->left.lane;
    for (int64_t at = 0; at < m->blocks; at += STEP_BLOCKS) {
        args.blocks = m->blocks - at < STEP_BLOCKS ? m->blocks - at : STEP_BLOCKS;
        args.adds = at > 0;
        give_right(m, s, &args, batch, col, cols, at);
        give_left(m, s, &args, left, rows, at);
        m->t->multiply(&args);
    }
    give_tile(m, s, batch, row, col, rows, cols);
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    const amx_plan *m = ctx;
    amx_scratch s;
    if (!new_scratch(m, &s)) {
        atomic_store(&m->p->status, 1);
        return;
    }
    m->t->enter();
    for (int64_t i = begin; i < end; i++) compute_tile(m, &s, i);
    m->t->leave();
    etch__free(s.c);
}

/* ---- the whole ---- */

etch_status etch__amx_run(product *p) {
    amx_plan m = {.p = p, .t = p->isa->amx, .blocks = (p->k + AMX_TERMS - 1) / AMX_TERMS};
    bool ok = take_sides(&m);
    if (ok && (ok = pack_right(&m))) {
        plan_tiles(&m);
        m.direct = reads_directly(&m);
        double work = (double)m.rows * (double)m.cols * (double)p->k / 32;
        int64_t grain = work > 262144 ? 1 : (int64_t)(262144 / work) + 1;
        etch__parallel(p->batch * m.row_tiles * m.col_tiles, grain, tiles_task, &m);
    }
    etch__free(m.left.copy);
    etch__free(m.right.copy);
    etch__free(m.packed);
    if (ok && !atomic_load(&p->status)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "product: no memory for tiles");
}
