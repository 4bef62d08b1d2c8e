/* Convolution of bf16 by the tiles of AMX (isa/amx.c), where the processor has them: an element's
 * terms are those of its position, place after place of the kernel and of each all channels, in
 * blocks of BF16_TERMS; what the last block lacks is zero. So bits depend on sizes alone.
 *
 * A task takes some positions and some output channels. It copies what lies under its positions
 * into rows of all terms, once for all of its channels. */
#include "backends/cpu/conv_direct.h"

#include "backends/cpu/program.h"
#include "backends/cpu/reach.h"
#include "core/base/pool.h"

/* Terms that are neighbours, and output channels, from which on a block is worth its zeros. */
enum { FEWEST_TERMS = 8, FEWEST_CHANNELS = 16 };

bool etch__conv_by_tiles(const conv_sizes *n, etch_dtype dtype) {
    const isa_table *isa = etch__isa_table();
    if (dtype != ETCH_BF16 || n->apart || n->out_channels < FEWEST_CHANNELS) return false;
    int64_t run = n->in_channels * (etch__conv_has_runs(n) ? n->kernel[1] : 1);
    return run >= FEWEST_TERMS && isa->amx->multiply && etch__cpu_amx();
}

static int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

static int64_t blocks_of(const direct_conv *d) {
    return parts_of(d->n.in_channels * d->n.places, BF16_TERMS);
}

/* ---- the weight ---- */

typedef struct tile_weights {
    const direct_conv *d;
    const uint16_t *from; /* row-major */
    char *to;
    int64_t terms, panels, panel; /* of a group; bytes of a panel */
    atomic_int failed;
} tile_weights;

/* [channels][places] to [places][channels]. */
static void order_terms(const direct_conv *d, uint16_t *to, const uint16_t *from) {
    for (int64_t k = 0; k < d->n.in_channels; k++)
        for (int64_t p = 0; p < d->n.places; p++) to[p * d->n.in_channels + k] = *from++;
}

static void pack_panel(const tile_weights *j, int64_t panel, uint16_t *room) {
    int64_t group = panel / j->panels, first = panel % j->panels * PANEL_LANES;
    panel_pack p = {.to = j->to + panel * j->panel,
                    .lane = j->terms,
                    .term = 1,
                    .lanes = at_most(j->d->n.out_channels - first, PANEL_LANES),
                    .terms = j->terms,
                    .panel = j->panel,
                    .pairs = true};
    const uint16_t *from = j->from + (group * j->d->n.out_channels + first) * j->terms;
    for (int64_t k = 0; j->d->n.places > 1 && k < p.lanes; k++)
        order_terms(j->d, room + k * j->terms, from + k * j->terms);
    p.from = (const char *)(j->d->n.places > 1 ? room : from);
    j->d->isa->amx->pack[ETCH_BF16](&p);
}

static void pack_task(void *ctx, int64_t begin, int64_t end) {
    tile_weights *j = ctx;
    uint16_t *room = etch__malloc((size_t)(j->terms * PANEL_LANES) * sizeof *room);
    for (int64_t k = begin; room && k < end; k++) pack_panel(j, k, room);
    if (!room) atomic_store(&j->failed, 1);
    etch__free(room);
}

int64_t etch__tiles_weight_bytes(const direct_conv *d) {
    return d->n.groups * (d->width / PANEL_LANES) * blocks_of(d) * PANEL_BLOCK;
}

bool etch__tiles_pack(const direct_conv *d, const void *w, char *to) {
    tile_weights j = {.d = d, .from = w, .to = to, .terms = d->n.in_channels * d->n.places};
    j.panels = d->width / PANEL_LANES, j.panel = blocks_of(d) * PANEL_BLOCK;
    etch__parallel(d->n.groups * j.panels, 65536 / (j.terms * PANEL_LANES) + 1, pack_task, &j);
    return !atomic_load(&j.failed);
}

/* ---- tiles ---- */

/* Of a tile; and how much the terms of its rows may be, if they are not few. */
enum { ROWS_MOST = 128, ROWS_FEW = 64, ROWS_LEAST = 32, COLUMNS_MOST = 256, COLUMNS_LEAST = 64 };
enum { TERM_BYTES = 512 << 10 };

/* Every thread should get some; what is cut in columns shares the copies of the rows. Of few rows
 * the time is that of fetching the weights: they are not cut, so that each weight comes once. */
void etch__tiles_plan(direct_conv *d) {
    bool few = d->n.rows <= ROWS_FEW;
    int64_t each = few && d->n.places > 1 ? 2 : 4; /* where all copy the rows, fewer */
    int64_t wanted = etch_num_threads() > 1 ? each * (int64_t)etch_num_threads() : 1;
    int64_t row = blocks_of(d) * 64, rows = few ? ROWS_FEW : ROWS_MOST, columns = COLUMNS_MOST;
    while (rows > ROWS_LEAST && ((!few && rows * row > TERM_BYTES) || rows >= 2 * d->n.rows))
        rows /= 2;
    for (;;) {
        d->tile_rows = rows, d->tile_columns = at_most(columns, d->width);
        d->row_tiles = parts_of(d->n.rows, rows);
        d->column_tiles = parts_of(d->width, d->tile_columns);
        if (d->n.groups * d->row_tiles * d->column_tiles >= wanted) return;
        if (!few && rows > ROWS_LEAST && d->n.rows > rows / 2) rows /= 2;
        else if (columns > COLUMNS_LEAST) columns /= 2;
        else return;
    }
}

/* A thread's memory: terms of its rows, their sums. Rows of both are an odd number of lines of the
 * cache apart, if they are long. */
typedef struct tile_scratch {
    int64_t row, group; /* of which the terms are there; -1: of none */
    int64_t pitch;      /* bytes from row to row of the terms */
    char *terms, *c, *turned, *memory;
} tile_scratch;

static int64_t pitch_of(const direct_conv *d) {
    int64_t columns = parts_of(d->tile_columns, 2 * PANEL_LANES) * 2 * PANEL_LANES;
    return columns % 128 ? columns : columns + PANEL_LANES;
}

static bool new_scratch(const direct_conv *d, tile_scratch *s) {
    int64_t rows = parts_of(d->tile_rows, PANEL_LANES) * PANEL_LANES;
    int64_t tile = rows * pitch_of(d) * (int64_t)sizeof(float);
    *s = (tile_scratch){.row = -1, .pitch = (blocks_of(d) | 1) * 64};
    if (!(s->memory = etch__aligned((size_t)(2 * tile + rows * s->pitch)))) return false;
    s->c = s->memory, s->turned = s->c + tile, s->terms = s->turned + tile;
    return true;
}

/* What lies under one row of the kernel: padding, values, padding. x: the row of the input; NULL:
 * padding. */
static char *copy_row(const direct_conv *d, char *to, const char *x, const reach *r) {
    void (*copy)(char *, const char *, int64_t) = d->isa->conv->copy;
    int64_t run = d->n.in_channels * 2, step = d->n.at.dilation[1] * d->x_column;
    char *end = to + d->n.kernel[1] * run;
    if (!x || r->begin >= r->end) return copy(to, NULL, end - to), end;
    if (r->begin) copy(to, NULL, r->begin * run);
    to += r->begin * run, x += r->at * d->x_column + r->begin * step;
    if (step == run) copy(to, x, (r->end - r->begin) * run);
    for (int64_t k = r->begin; step != run && k < r->end; k++, x += step)
        copy(to + (k - r->begin) * run, x, run);
    to += (r->end - r->begin) * run;
    if (to < end) copy(to, NULL, end - to);
    return end;
}

/* Whether no padding lies under a position whose first value is in row ih, column iw, and what lies
 * under a row of the kernel is one run of memory. */
static bool in_runs(const direct_conv *d, int64_t ih, int64_t iw) {
    const conv_sizes *n = &d->n;
    int64_t high = (n->kernel[0] - 1) * n->at.dilation[0], width = n->kernel[1] - 1;
    bool runs = !width || n->at.dilation[1] * d->x_column == n->in_channels * 2;
    return runs && ih >= 0 && iw >= 0 && ih + high < n->in[0] &&
           iw + width * n->at.dilation[1] < n->in[1];
}

/* The terms of a position; x: its image. */
static void copy_position(const direct_conv *d, char *to, const char *x, int64_t oh, int64_t ow) {
    const conv_sizes *n = &d->n;
    int64_t ih = oh * n->at.stride[0] - n->at.padding[0];
    int64_t iw = ow * n->at.stride[1] - n->at.padding[1];
    char *end = to + blocks_of(d) * 64;
    if (in_runs(d, ih, iw)) {
        int64_t run = n->kernel[1] * n->in_channels * 2;
        d->isa->conv->copy_runs(to, x + ih * d->x_row + iw * d->x_column,
                                n->at.dilation[0] * d->x_row, n->kernel[0], run);
        to += n->kernel[0] * run;
    } else {
        reach r = reach_of(iw, n->at.dilation[1], n->kernel[1], n->in[1]);
        for (int64_t h = 0; h < n->kernel[0]; h++, ih += n->at.dilation[0])
            to = copy_row(d, to, ih < 0 || ih >= n->in[0] ? NULL : x + ih * d->x_row, &r);
    }
    if (to < end) d->isa->conv->copy(to, NULL, end - to);
}

static void copy_terms(const direct_conv *d, tile_scratch *s, const product_tile *t,
                       int64_t group) {
    if (s->row == t->row && s->group == group) return;
    s->row = t->row, s->group = group;
    int64_t oh = t->row % d->n.positions / d->n.out[1], ow = t->row % d->n.out[1];
    const char *x = d->x + t->row / d->n.positions * d->x_image + group * d->n.in_channels * 2;
    for (int64_t r = 0; r < t->m; r++) {
        copy_position(d, s->terms + r * s->pitch, x, oh, ow);
        if (++ow < d->n.out[1]) continue;
        ow = 0;
        if (++oh == d->n.out[0]) oh = 0, x += d->x_image;
    }
}

/* Whether each position's terms are its pixel, whole blocks, and pixels lie evenly; rows a multiple
 * of a page apart share the same few places of the first cache. */
static bool lies_in_rows(const direct_conv *d) {
    const conv_sizes *n = &d->n;
    bool even = (n->in[0] == 1 || d->x_row == n->in[1] * d->x_column) &&
                (n->images == 1 || d->x_image == n->in[0] * n->in[1] * d->x_column);
    return n->places == 1 && n->at.stride[0] == 1 && n->at.stride[1] == 1 && !n->at.padding[0] &&
           !n->at.padding[1] && n->in_channels % BF16_TERMS == 0 && even && d->x_column > 0 &&
           d->x_column % 2048 != 0;
}

/* Where the tile's rows are read: as they lie, if they are whole panels, or copied. */
static void give_rows(const direct_conv *d, tile_scratch *s, const product_tile *t, int64_t group,
                      panel_args *p) {
    p->left = s->terms, p->left_row = s->pitch;
    if (t->m % PANEL_LANES == 0 && lies_in_rows(d)) {
        p->left = d->x + t->row * d->x_column + group * d->n.in_channels * 2;
        p->left_row = d->x_column;
    } else {
        copy_terms(d, s, t, group);
    }
    p->left_block = 64, p->left_panel = PANEL_LANES * p->left_row;
}

/* With all terms at once: sums stay in the processor's tiles. */
static void multiply_tile(const direct_conv *d, panel_args *p, const product_tile *t,
                          const char *w) {
    p->blocks = blocks_of(d), p->words = p->blocks * 16;
    p->right = w, p->right_panel = p->blocks * PANEL_BLOCK, p->right_term = 64;
    p->c = (float *)(void *)t->c, p->ldc = t->ldc;
    p->rows = t->m, p->cols = parts_of(t->n, PANEL_LANES);
    d->isa->amx->multiply(p);
}

static void add_bias(const direct_conv *d, const product_tile *t, const char *bias) {
    for (int64_t r = 0; r < t->m; r++) {
        char *c = t->c + r * t->ldc * d->size;
        d->isa->strips->prim[PRIM_ADD][d->type](c, c, bias, NULL, t->n);
    }
}

static void do_tile(const direct_conv *d, tile_scratch *s, int64_t unit) {
    int64_t tile = unit % d->column_tiles, group = unit / d->column_tiles % d->n.groups;
    int64_t row = unit / d->column_tiles / d->n.groups, column = tile * d->tile_columns;
    product_tile t = {.row = row * d->tile_rows,
                      .col = group * d->n.out_channels + column,
                      .c = s->c,
                      .ldc = pitch_of(d)};
    t.m = at_most(d->n.rows - t.row, d->tile_rows);
    t.n = at_most(d->n.out_channels - column, d->tile_columns);
    int64_t first = group * d->width + column;
    panel_args p = {.adds = false};
    give_rows(d, s, &t, group, &p);
    multiply_tile(d, &p, &t, d->w + first * blocks_of(d) * 64);
    if (d->bias) add_bias(d, &t, d->bias + first * d->size);
    d->finish(d->ctx, d, &t, s->turned);
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    direct_conv *d = ctx;
    tile_scratch s;
    if (!new_scratch(d, &s)) {
        atomic_store(&d->failed, 1);
        return;
    }
    d->isa->amx->enter();
    for (int64_t i = begin; i < end; i++) do_tile(d, &s, i);
    d->isa->amx->leave();
    etch__free(s.memory);
}

void etch__tiles_run(direct_conv *d) {
    double terms = (double)blocks_of(d) * BF16_TERMS;
    double work = (double)d->tile_rows * (double)d->tile_columns * terms;
    etch__parallel(d->row_tiles * d->n.groups * d->column_tiles,
                   work > 2097152 ? 1 : (int64_t)(2097152 / work) + 1, tiles_task, d);
}
