/* Convolution of floats, tile by tile: some positions times some output channels, whose sums are
 * made of the input where it lies (isa/conv.c). A tile has a table of where the values under each
 * place of the kernel begin, which is all that stride, dilation, padding and groups are.
 *
 * The input is read with its channels innermost, as it lies or as a copy; the weight is packed in
 * panels of output channels (conv_weights.c). An element's arithmetic does not depend on tiles, so
 * they are cut by what threads and caches want. Half types are computed in f32 and rounded once,
 * after the bias; of bf16 the products of pairs of channels are the processor's, where it has them
 * and channels are even; or in tiles of AMX (conv_tiles.c). */
#include "backends/cpu/conv_direct.h"

#include "backends/cpu/program.h"
#include "backends/cpu/reach.h"
#include "core/base/pool.h"

/* ---- sizes ---- */

bool etch__conv_is_direct(etch_dtype dtype) { return etch__is_float(dtype); }

bool etch__conv_has_pairs(const conv_sizes *n, etch_dtype dtype) {
    return dtype == ETCH_BF16 && etch__isa_table()->conv->pairs && !n->apart &&
           n->in_channels % 2 == 0 && etch__cpu_level() >= CPU_LEVEL_DOTS &&
           !etch__conv_by_tiles(n, dtype);
}

conv_sizes etch__conv_sizes(const conv_numbers *at, const int64_t *x, const int64_t *w,
                            const int64_t *y) {
    conv_sizes n = {.at = *at, .images = x[0], .channels = x[1], .in_channels = w[1]};
    n.apart = at->groups > 1 && w[1] == 1 && w[0] == at->groups;
    n.groups = n.apart ? 1 : at->groups, n.out_channels = w[0] / n.groups;
    for (int d = 0; d < 2; d++) n.in[d] = x[2 + d], n.out[d] = y[2 + d], n.kernel[d] = w[2 + d];
    n.places = n.kernel[0] * n.kernel[1], n.positions = n.out[0] * n.out[1];
    n.rows = n.images * n.positions;
    return n;
}

static int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Of a tile; terms of a channel's sum that are done at once, whose weights stay in the cache. */
enum { TILE_ROWS_MOST = 96, TILE_COLUMNS_MOST = 256, TERMS = 512 };
/* Runs of planes that kernels are fastest at are multiples of this. */
enum { PLANE_RUN = 64 };

/* So that each thread has as many: of few tiles one more is much. */
static void even_out(direct_conv *d, int64_t *rows) {
    int64_t threads = etch_num_threads(), others = d->n.groups * d->column_tiles;
    int64_t tiles = d->row_tiles, most = d->n.rows / (2 * CONV_ROWS);
    if (d->planes || tiles * others > 16 * threads) return;
    while (tiles * others % threads && tiles < most) tiles++;
    if (tiles * others % threads) return;
    *rows = parts_of(d->n.rows, tiles);
    d->row_tiles = parts_of(d->n.rows, *rows);
}

/* Every thread should get some; narrow tiles share what is done for their rows. */
static void plan_tiles(direct_conv *d) {
    int64_t panels = d->width / d->panel + (d->width % d->panel > 0), most;
    int64_t wanted = etch_num_threads() > 1 ? 4 * (int64_t)etch_num_threads() : 1;
    int64_t rows = parts_of(d->n.rows, parts_of(d->n.rows, TILE_ROWS_MOST));
    if (d->planes && rows > PLANE_RUN / 2) rows = 2 * PLANE_RUN;
    for (most = parts_of(TILE_COLUMNS_MOST, d->panel);; most = parts_of(most, 2)) {
        int64_t columns = parts_of(panels, parts_of(panels, most));
        d->tile_columns = at_most(columns * d->panel, d->width);
        d->column_tiles = parts_of(d->width, d->tile_columns);
        d->row_tiles = parts_of(d->n.rows, rows);
        if (most == 1 || d->n.groups * d->row_tiles * d->column_tiles >= wanted) break;
    }
    while (rows > (d->planes ? PLANE_RUN : 2 * CONV_ROWS) &&
           d->n.groups * d->row_tiles * d->column_tiles < wanted)
        d->row_tiles = parts_of(d->n.rows, rows = parts_of(rows, 2));
    even_out(d, &rows);
    d->tile_rows = rows;
}

/* ---- the whole ---- */

bool etch__direct_begin(direct_conv *d, const conv_sizes *n, const etch_tensor *x,
                        const etch_tensor *w, const etch_tensor *bias, bool planes) {
    *d = (direct_conv){.n = *n, .isa = etch__isa_table(), .dtype = x->dtype};
    d->planes = planes && n->positions > 1 && n->out_channels * n->groups > 1;
    d->type = etch__compute_type(d->dtype), d->size = (int)etch_dtype_size(d->type);
    int64_t lanes = d->isa->conv->lanes[d->type];
    d->panel = lanes * d->isa->conv->vectors;
    d->width = parts_of(n->out_channels, lanes) * lanes;
    d->pairs = etch__conv_has_pairs(n, d->dtype), d->tiles = etch__conv_by_tiles(n, d->dtype);
    d->halves = d->pairs || d->tiles;
    d->by_lines = planes && etch__conv_by_lines(n, d->dtype);
    if (d->by_lines) return etch__lines_begin(d, x, w, bias);
    if (d->tiles) etch__tiles_plan(d);
    else plan_tiles(d);
    if (!etch__direct_weights(d, w, bias) || !etch__direct_input(d, x)) return false;
    if (d->pairs) d->n.in_channels /= 2;
    return true;
}

void etch__direct_end(direct_conv *d) {
    for (int k = 0; k < 3; k++) etch__free(d->copies[k]);
    for (int k = 0; k < 2; k++) etch__storage_release(d->held[k]);
}

/* ---- where the values of a tile lie ---- */

/* Rows are dealt out to groups of at most CONV_ROWS, all of about as many. */
typedef struct row_groups {
    int64_t count, rows, longer; /* groups; rows of each, one more in the first `longer` */
} row_groups;

static row_groups groups_of(int64_t rows) {
    int64_t count = parts_of(rows, CONV_ROWS);
    return (row_groups){count, rows / count, rows % count};
}

/* Bytes from the first value under the kernel to that under each place. */
static void find_places(const direct_conv *d, int64_t *at) {
    const conv_sizes *n = &d->n;
    for (int64_t h = 0; h < n->kernel[0]; h++)
        for (int64_t w = 0; w < n->kernel[1]; w++)
            *at++ = h * n->at.dilation[0] * d->x_row + w * n->at.dilation[1] * d->x_column;
}

/* A row of the output: what of the kernel's rows lies inside, and where the first is, from x on. */
typedef struct output_row {
    const char *x;
    int64_t first;
    reach rows;
} output_row;

static output_row row_at(const direct_conv *d, int64_t image, int64_t oh) {
    const conv_sizes *n = &d->n;
    int64_t ih = oh * n->at.stride[0] - n->at.padding[0];
    return (output_row){d->x + image * d->x_image, ih * d->x_row,
                        reach_of(ih, n->at.dilation[0], n->kernel[0], n->in[0])};
}

/* The places under its position ow. */
static void find_row(const direct_conv *d, const output_row *o, int64_t ow, const int64_t *at,
                     const char **to) {
    const conv_sizes *n = &d->n;
    int64_t iw = ow * n->at.stride[1] - n->at.padding[1], first = o->first + iw * d->x_column;
    reach columns = reach_of(iw, n->at.dilation[1], n->kernel[1], n->in[1]);
    bool whole =
        o->rows.end - o->rows.begin == n->kernel[0] && columns.end - columns.begin == n->kernel[1];
    for (int64_t p = 0; whole && p < n->places; p++) to[p * CONV_ROWS] = o->x + (first + at[p]);
    for (int64_t p = 0; !whole && p < n->places; p++) {
        int64_t h = p / n->kernel[1], w = p % n->kernel[1];
        bool inside =
            h >= o->rows.begin && h < o->rows.end && w >= columns.begin && w < columns.end;
        to[p * CONV_ROWS] = inside ? o->x + (first + at[p]) : d->zeros;
    }
}

/* The table of rows first .. + count: [group of rows][place][row of the group]. */
static void find_rows(const direct_conv *d, const char **table, const int64_t *at, int64_t first,
                      int64_t count) {
    row_groups g = groups_of(count);
    int64_t image = first / d->n.positions, oh = first % d->n.positions / d->n.out[1];
    int64_t ow = first % d->n.out[1];
    output_row o = row_at(d, image, oh);
    for (int64_t k = 0; k < g.count; k++, table += CONV_ROWS * d->n.places)
        for (int64_t r = 0; r < g.rows + (k < g.longer); r++) {
            find_row(d, &o, ow, at, table + r);
            if (++ow < d->n.out[1]) continue;
            ow = 0;
            if (++oh == d->n.out[0]) oh = 0, image++;
            o = row_at(d, image, oh);
        }
}

/* ---- a tile ---- */

/* A thread's memory: the table of the rows that it is at, the places' distances, a tile. */
typedef struct direct_scratch {
    int64_t row; /* of the table; -1: none */
    const char **table;
    int64_t *at;
    char *c, *turned, *memory;
} direct_scratch;

static bool new_scratch(const direct_conv *d, direct_scratch *s) {
    int64_t table = (d->tile_rows + CONV_ROWS) * CONV_ROWS * d->n.places, places = d->n.places;
    int64_t tile = d->tile_rows * (d->tile_columns + d->panel) * d->size;
    int64_t bytes = (table + places) * (int64_t)sizeof(void *);
    bytes = (bytes + 63) & -64;
    if (!(s->memory = etch__aligned((size_t)(bytes + 2 * tile)))) return false;
    s->row = -1, s->table = (const char **)s->memory, s->at = (int64_t *)(s->table + table);
    s->c = s->memory + bytes, s->turned = s->c + tile;
    find_places(d, s->at);
    return true;
}

/* Some places, or some channels of one, of a panel. */
static void add_terms(const direct_conv *d, const direct_scratch *s, const product_tile *t,
                      conv_panel p, int64_t place) {
    row_groups g = groups_of(t->m);
    void (*sums)(const conv_panel *) =
        (d->n.apart ? d->isa->conv->apart : d->isa->conv->multiply)[d->type];
    int64_t step = p.vectors * d->isa->conv->lanes[d->type] * d->size;
    p.ahead = (const char *)p.w + p.places * p.terms * step, p.ahead_step = step / g.count;
    const char *const *rows = s->table + place * CONV_ROWS;
    for (int64_t k = 0; k < g.count; k++, rows += CONV_ROWS * d->n.places) {
        p.rows = rows, p.count = (int)(g.rows + (k < g.longer));
        (d->pairs ? d->isa->conv->pairs : sums)(&p);
        p.c = (char *)p.c + p.count * p.ldc * d->size;
        p.ahead += p.places * p.terms * p.ahead_step;
    }
}

/* Columns of a panel: `column` is that in the group. */
static void sum_panel(const direct_conv *d, const direct_scratch *s, const product_tile *t,
                      int64_t group, int64_t column, char *c) {
    int64_t width = at_most(d->width - column, d->panel), channels = d->n.in_channels;
    int64_t places = channels < TERMS ? TERMS / channels : 1;
    int64_t terms = parts_of(channels, parts_of(channels, TERMS));
    const char *w = d->w + (group * d->width + column) * d->n.places * channels * d->size;
    conv_panel p = {.c = c, .ldc = t->ldc, .vectors = (int)(width / d->isa->conv->lanes[d->type])};
    for (int64_t place = 0; place < d->n.places; place += places)
        for (int64_t k = 0; k < channels; k += terms, p.adds = true) {
            p.places = at_most(d->n.places - place, places);
            p.terms = at_most(channels - k, terms);
            p.offset = (group * channels + k) * d->size;
            p.w = w + (place * channels + k) * width * d->size;
            bool last = place + places >= d->n.places && k + terms >= channels;
            p.bias = last && d->bias ? d->bias + (group * d->width + column) * d->size : NULL;
            add_terms(d, s, t, p, place);
        }
}

/* The same where channels are apart: no value behind the last channel is read. */
static void sum_apart(const direct_conv *d, const direct_scratch *s, const product_tile *t,
                      int64_t column, char *c) {
    int64_t lanes = d->isa->conv->lanes[d->type], width = at_most(d->width - column, d->panel);
    int64_t whole = at_most(d->n.out_channels - column, width) / lanes * lanes;
    for (int64_t k = 0; k < width; k += whole && !k ? whole : lanes) {
        conv_panel p = {.c = c + k * d->size, .ldc = t->ldc, .places = d->n.places};
        p.vectors = k < whole ? (int)(whole / lanes) : 1;
        p.lanes = k < whole ? 0 : (int)(d->n.out_channels - column - k);
        p.offset = (column + k) * d->size;
        p.w = d->w + (column * d->n.places + k) * d->size, p.pitch = width;
        p.bias = d->bias ? d->bias + (column + k) * d->size : NULL;
        add_terms(d, s, t, p, 0);
    }
}

/* Whether a tile's whole vectors may be stored into y itself. */
static bool lies_in_result(const direct_conv *d, const product_tile *t) {
    return d->y && t->n % d->isa->conv->lanes[d->type] == 0;
}

static void do_tile(const direct_conv *d, direct_scratch *s, int64_t unit) {
    int64_t tile = unit % d->column_tiles, group = unit / d->column_tiles % d->n.groups;
    int64_t row = unit / d->column_tiles / d->n.groups, column = tile * d->tile_columns;
    int64_t all = d->n.groups * d->n.out_channels;
    product_tile t = {.row = row * d->tile_rows, .col = group * d->n.out_channels + column};
    t.m = at_most(d->n.rows - t.row, d->tile_rows);
    t.n = at_most(d->n.out_channels - column, d->tile_columns);
    bool direct = lies_in_result(d, &t);
    t.ldc = direct ? all : d->tile_columns;
    t.c = direct ? d->y + (t.row * all + t.col) * d->size : s->c;
    if (s->row != row) find_rows(d, s->table, s->at, t.row, t.m);
    s->row = row;
    for (int64_t c = 0; c < t.n; c += d->panel)
        if (d->n.apart) sum_apart(d, s, &t, column + c, t.c + c * d->size);
        else sum_panel(d, s, &t, group, column + c, t.c + c * d->size);
    if (!direct) d->finish(d->ctx, d, &t, s->turned);
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    direct_conv *d = ctx;
    direct_scratch s;
    if (!new_scratch(d, &s)) {
        atomic_store(&d->failed, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++) do_tile(d, &s, i);
    etch__free(s.memory);
}

etch_status etch__direct_run(direct_conv *d) {
    double terms = (double)d->n.places * (double)(d->n.apart ? 16 : d->n.in_channels);
    double work = (double)d->tile_rows * (double)d->tile_columns * terms;
    atomic_init(&d->failed, 0);
    if (d->by_lines) etch__lines_run(d);
    else if (d->tiles) etch__tiles_run(d);
    else
        etch__parallel(d->row_tiles * d->n.groups * d->column_tiles,
                       work > 262144 ? 1 : (int64_t)(262144 / work) + 1, tiles_task, d);
    if (!atomic_load(&d->failed)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "convolution: no memory for a tile");
}
