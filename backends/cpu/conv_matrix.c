/* Tiles of a convolution and their matrix: a row for each position, which has the input values
 * under the kernel there, place after place, and of a place all channels. So what is moved are runs
 * of channels (of a whole row of the kernel where columns are neighbours), which costs little
 * beside the product even where planes are as narrow as the kernel. Input and weight are brought
 * into that order, channels innermost, once a call.
 *
 * Where such runs are short and planes wide it is transposed: a line for each channel and place of
 * the kernel, of which runs of positions are moved, and nothing is brought into another order.
 */
#include <limits.h>

#include "backends/cpu/conv.h"
#include "backends/cpu/reach.h"
#include "core/base/pool.h"
#include "core/dispatch/dispatch.h"

/* ---- sizes and tiles ---- */

enum { TILE_MATRIX = 1 << 17, TILE_LEAST = 64, TILE_MOST = 256, NARROW = 12, WIDE = 16 };

static void plan_tiles(conv *c) {
    int64_t tile = TILE_MATRIX / (c->rows + 1) / 16 * 16;
    tile = tile < TILE_LEAST ? TILE_LEAST : at_most(tile, TILE_MOST);
    c->plain = c->plain && c->positions >= TILE_LEAST;
    c->lines = c->plain || (c->in_channels * c->kernel[1] <= NARROW && c->out[1] >= WIDE);
    c->span = c->plain || !c->positions ? 1 : tile / c->positions;
    c->span = c->span < 1 ? 1 : at_most(c->span, c->images + !c->images);
    c->tile = at_most(tile, c->positions);
    c->tiles = c->tile ? (c->positions + c->tile - 1) / c->tile : 0;
}

void etch__conv_plan(conv *c, const int64_t *x, const int64_t *w, const int64_t *y) {
    c->type = etch__compute_type(c->dtype), c->size = (int)etch_dtype_size(c->type);
    c->images = x[0], c->in_channels = w[1], c->out_channels = w[0] / c->at.groups;
    c->plain = true;
    for (int d = 0; d < 2; d++) {
        c->in[d] = x[2 + d], c->out[d] = y[2 + d], c->kernel[d] = w[2 + d];
        if (c->kernel[d] != 1 || c->at.stride[d] != 1 || c->at.padding[d]) c->plain = false;
    }
    c->places = c->kernel[0] * c->kernel[1], c->rows = c->in_channels * c->places;
    c->pixels = c->in[0] * c->in[1], c->positions = c->out[0] * c->out[1];
    plan_tiles(c);
}

bool etch__conv_fits(const conv *c) {
    if (c->positions <= INT_MAX && c->rows <= INT_MAX && c->out_channels <= INT_MAX &&
        c->pixels <= INT_MAX)
        return true;
    etch__error(ETCH_ERR_UNSUPPORTED, "convolution: a plane or kernel is too large");
    return false;
}

int64_t etch__conv_spans(const conv *c) { return (c->images + c->span - 1) / c->span; }

conv_tile etch__conv_tile(const conv *c, int64_t group, int64_t k) {
    conv_tile t = {
        .group = group, .image = k / c->tiles * c->span, .first = k % c->tiles * c->tile};
    t.images = at_most(c->images - t.image, c->span);
    t.n = at_most(c->positions - t.first, c->tile);
    return t;
}

etch_status etch__conv_status(const conv *c) {
    if (!atomic_load(&c->failed)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "convolution: no memory for a tile");
}

/* ---- channels innermost ---- */

typedef struct swap_job {
    const conv *c;
    char *to;
    const char *from;
    int64_t rows, columns, chunk, chunks; /* columns that are done at once */
} swap_job;

enum { SWAP_COLUMNS = 64, SWAP_ROWS = 16 };
typedef uint32_t quad __attribute__((vector_size(16)));

/* Four by four elements of four bytes. */
static inline void swap_four(uint32_t *to, int64_t to_row, const uint32_t *from, int64_t from_row) {
    quad a, b, c, d;
    memcpy(&a, from, 16), memcpy(&b, from + from_row, 16);
    memcpy(&c, from + 2 * from_row, 16), memcpy(&d, from + 3 * from_row, 16);
    quad low = __builtin_shuffle(a, b, (quad){0, 4, 1, 5});
    quad high = __builtin_shuffle(a, b, (quad){2, 6, 3, 7});
    quad low2 = __builtin_shuffle(c, d, (quad){0, 4, 1, 5});
    quad high2 = __builtin_shuffle(c, d, (quad){2, 6, 3, 7});
    a = __builtin_shuffle(low, low2, (quad){0, 1, 4, 5});
    b = __builtin_shuffle(low, low2, (quad){2, 3, 6, 7});
    c = __builtin_shuffle(high, high2, (quad){0, 1, 4, 5});
    d = __builtin_shuffle(high, high2, (quad){2, 3, 6, 7});
    memcpy(to, &a, 16), memcpy(to + to_row, &b, 16);
    memcpy(to + 2 * to_row, &c, 16), memcpy(to + 3 * to_row, &d, 16);
}

/* Columns of a plane from `at` on and rows from r on, fewer than a block of each. */
static void swap_rest(const swap_job *j, char *to, const char *from, int64_t r, int64_t rows,
                      int64_t at, int64_t n) {
    int64_t size = j->c->size;
    if (rows > 0 && n > 0)
        j->c->isa->strips->block[etch__size_log2(j->c->type)](
            to + (at * j->rows + r) * size, j->rows, 1, from + (r * j->columns + at) * size, 1,
            j->columns, n, rows);
}

/* Columns at .. + n of a plane, in blocks that stay in the nearest cache. */
static void swap_columns(const swap_job *j, char *to, const char *from, int64_t at, int64_t n) {
    bool fours = j->c->size == 4;
    for (int64_t r = 0; r < j->rows; r += SWAP_ROWS) {
        int64_t rows = at_most(j->rows - r, SWAP_ROWS);
        int64_t down = fours ? rows & -4 : 0, across = fours ? n & -4 : 0;
        for (int64_t k = 0; k < across; k += 4)
            for (int64_t i = 0; i < down; i += 4)
                swap_four((uint32_t *)to + (at + k) * j->rows + r + i, j->rows,
                          (const uint32_t *)from + (r + i) * j->columns + at + k, j->columns);
        swap_rest(j, to, from, r, down, at + across, n - across);
        swap_rest(j, to, from, r + down, rows - down, at, n);
    }
}

static void swap_task(void *ctx, int64_t begin, int64_t end) {
    const swap_job *j = ctx;
    for (int64_t k = begin; k < end; k++) {
        int64_t plane = k / j->chunks * j->rows * j->columns * j->c->size;
        int64_t at = k % j->chunks * j->chunk;
        swap_columns(j, j->to + plane, j->from + plane, at, at_most(j->columns - at, j->chunk));
    }
}

void etch__conv_swap(const conv *c, char *to, const char *from, int64_t count, int64_t rows,
                     int64_t columns) {
    swap_job j = {.c = c, .to = to, .from = from, .rows = rows, .columns = columns};
    j.chunk = SWAP_COLUMNS, j.chunks = (columns + SWAP_COLUMNS - 1) / SWAP_COLUMNS;
    etch__parallel(count * j.chunks, 65536 / (rows * SWAP_COLUMNS) + 1, swap_task, &j);
}

static const char *swapped(const conv *c, const char *from, int64_t count, int64_t columns,
                           void **copy) {
    if (c->lines || c->in_channels == 1 || columns == 1) return from;
    *copy = etch__malloc((size_t)(count * c->in_channels * columns * c->size));
    if (*copy) etch__conv_swap(c, *copy, from, count, c->in_channels, columns);
    return *copy;
}

const char *etch__conv_pixels(const conv *c, const char *x, void **copy) {
    return swapped(c, x, c->images * c->at.groups, c->pixels, copy);
}

const char *etch__conv_places(const conv *c, const char *w, void **copy) {
    return swapped(c, w, c->at.groups * c->out_channels, c->places, copy);
}

/* ---- runs ---- */

/* Runs are short: what the C library spends on deciding how to move them would show. The last
 * piece may overlap the one before. */
static inline void copy_run(char *to, const char *from, int64_t bytes) {
    if (bytes >= 16) {
        for (int64_t i = 0; i < bytes - 16; i += 16) memcpy(to + i, from + i, 16);
        memcpy(to + bytes - 16, from + bytes - 16, 16);
    } else if (bytes >= 8) {
        memcpy(to, from, 8);
        memcpy(to + bytes - 8, from + bytes - 8, 8);
    } else if (bytes >= 4) {
        memcpy(to, from, 4);
        memcpy(to + bytes - 4, from + bytes - 4, 4);
    } else {
        for (; bytes > 0; bytes--) *to++ = *from++;
    }
}

static inline void clear_run(char *to, int64_t bytes) {
    static const char zeros[64];
    for (; bytes > 64; bytes -= 64, to += 64) memcpy(to, zeros, 64);
    copy_run(to, zeros, bytes);
}

/* n values, each added to one that lies `step` after the last. */
static inline void add_apart(const conv *c, char *to, const char *from, int64_t step, int64_t n) {
    if (step == 1 && n >= 16) {
        c->isa->strips->prim[PRIM_ADD][c->type](to, to, from, NULL, n);
    } else if (c->type == ETCH_F32) {
        float *y = (float *)to;
        const float *x = (const float *)from;
        for (int64_t i = 0; i < n; i++) y[i * step] += x[i];
    } else {
        double *y = (double *)to;
        const double *x = (const double *)from;
        for (int64_t i = 0; i < n; i++) y[i * step] += x[i];
    }
}

static inline void add_run(const conv *c, char *to, const char *from, int64_t n) {
    add_apart(c, to, from, 1, n);
}

/* ---- the window of a position ---- */

/* Columns begin .. end of the kernel lie inside of a row of the input, from column `at` on. */
typedef struct window {
    int64_t row, begin, end, at; /* row: that under row 0 of the kernel */
} window;

static inline window window_at(const conv *c, int64_t oh, int64_t ow) {
    int64_t step = c->at.dilation[1], at = ow * c->at.stride[1] - c->at.padding[1];
    reach r = reach_of(at, step, c->kernel[1], c->in[1]);
    return (window){.row = oh * c->at.stride[0] - c->at.padding[0],
                    .begin = r.begin,
                    .end = r.end,
                    .at = at + r.begin * step};
}

/* The input's row under row kh of the kernel, of elements of `bytes`; NULL: padding. */
static inline char *row_of(const conv *c, const char *pixels, const window *w, int64_t kh,
                           int64_t bytes) {
    int64_t row = w->row + kh * c->at.dilation[0];
    if (row < 0 || row >= c->in[0] || w->begin >= w->end) return NULL;
    return (char *)pixels + (row * c->in[1] + w->at) * bytes;
}

/* One row of the kernel: padding, values, padding. */
static inline void fill_row(const conv *c, char *to, const char *row, const window *w,
                            int64_t bytes) {
    int64_t step = c->at.dilation[1] * bytes, all = c->kernel[1];
    if (!row) {
        clear_run(to, all * bytes);
        return;
    }
    if (w->begin) clear_run(to, w->begin * bytes);
    if (step == bytes) copy_run(to + w->begin * bytes, row, (w->end - w->begin) * bytes);
    else
        for (int64_t k = w->begin; k < w->end; k++, row += step)
            copy_run(to + k * bytes, row, bytes);
    if (w->end < all) clear_run(to + w->end * bytes, (all - w->end) * bytes);
}

static char *fill_image(const conv *c, char *to, const char *pixels, int64_t first, int64_t n) {
    int64_t bytes = c->in_channels * c->size, oh = first / c->out[1], ow = first % c->out[1];
    for (int64_t k = 0; k < n; k++) {
        window w = window_at(c, oh, ow);
        for (int64_t kh = 0; kh < c->kernel[0]; kh++, to += c->kernel[1] * bytes)
            fill_row(c, to, row_of(c, pixels, &w, kh, bytes), &w, bytes);
        if (++ow == c->out[1]) ow = 0, oh++;
    }
    return to;
}

static inline void add_row(const conv *c, char *row, const char *from, const window *w,
                           int64_t channels) {
    int64_t step = c->at.dilation[1], bytes = channels * c->size;
    if (step == 1) add_run(c, row, from + w->begin * bytes, (w->end - w->begin) * channels);
    else
        for (int64_t k = w->begin; k < w->end; k++, row += step * bytes)
            add_run(c, row, from + k * bytes, channels);
}

static const char *add_image(const conv *c, char *pixels, int64_t channels, const char *from,
                             int64_t first, int64_t n) {
    int64_t bytes = channels * c->size, oh = first / c->out[1], ow = first % c->out[1];
    for (int64_t k = 0; k < n; k++) {
        window w = window_at(c, oh, ow);
        for (int64_t kh = 0; kh < c->kernel[0]; kh++, from += c->kernel[1] * bytes) {
            char *row = row_of(c, pixels, &w, kh, bytes);
            if (row) add_row(c, row, from, &w, channels);
        }
        if (++ow == c->out[1]) ow = 0, oh++;
    }
    return from;
}

/* ---- lines ---- */

/* The columns of the output that have a column of the input under column kw of the kernel: at `at`
 * + the output's, times the stride. */
static reach columns_under(const conv *c, int64_t kw) {
    int64_t at = kw * c->at.dilation[1] - c->at.padding[1];
    return reach_of(at, c->at.stride[1], c->out[1], c->in[1]);
}

/* n positions of one row of the output, from column ow on; row: of the input, NULL: padding. */
static void fill_run(const conv *c, char *to, const char *row, const reach *r, int64_t ow,
                     int64_t n) {
    int64_t begin = r->begin - ow, end = at_most(r->end - ow, n), step = c->at.stride[1];
    if (begin < 0) begin = 0;
    if (!row || begin >= end) begin = end = n;
    clear_run(to, begin * c->size);
    if (end > begin)
        c->isa->strips->gather[etch__size_log2(c->type)](
            to + begin * c->size, row + ((ow + begin) * step + r->at) * c->size, step, end - begin);
    clear_run(to + end * c->size, (n - end) * c->size);
}

static void add_back(const conv *c, char *row, const char *from, const reach *r, int64_t ow,
                     int64_t n) {
    int64_t begin = r->begin - ow, end = at_most(r->end - ow, n), step = c->at.stride[1];
    if (begin < 0) begin = 0;
    if (row && begin < end)
        add_apart(c, row + ((ow + begin) * step + r->at) * c->size, from + begin * c->size, step,
                  end - begin);
}

/* Positions first .. + n of a line, for place (kh, column of the reach) of the plane: filled, or
 * added back. */
static void do_line(const conv *c, char *line, char *plane, int64_t kh, const reach *r,
                    const conv_tile *t, bool adds) {
    int64_t oh = t->first / c->out[1], ow = t->first % c->out[1], run;
    for (int64_t done = 0; done < t->n; done += run, ow = 0, oh++) {
        int64_t ih = oh * c->at.stride[0] - c->at.padding[0] + kh * c->at.dilation[0];
        char *row = ih < 0 || ih >= c->in[0] ? NULL : plane + ih * c->in[1] * c->size;
        run = at_most(c->out[1] - ow, t->n - done);
        if (adds) add_back(c, row, line + done * c->size, r, ow, run);
        else fill_run(c, line + done * c->size, row, r, ow, run);
    }
}

/* All lines of a matrix; images of so many channels lie `stride` elements apart. */
static void do_lines(const conv *c, char *line, char *planes, int64_t channels, int64_t stride,
                     const conv_tile *t, bool adds) {
    for (int64_t k = 0; k < channels * c->places; k++) {
        char *plane = planes + k / c->places * c->pixels * c->size;
        int64_t kh = k % c->places / c->kernel[1];
        reach r = columns_under(c, k % c->kernel[1]);
        for (int64_t i = 0; i < t->images; i++, line += t->n * c->size)
            do_line(c, line, plane + i * stride * c->size, kh, &r, t, adds);
    }
}

/* ---- the matrix ---- */

const char *etch__conv_fill(const conv *c, char *room, const conv_tile *t, int64_t *ld) {
    int64_t image = c->in_channels * c->pixels, stride = c->at.groups * image;
    const char *x = c->x + (t->image * stride + t->group * image) * c->size;
    *ld = c->plain ? c->pixels : c->lines ? t->images * t->n : c->rows;
    if (c->plain) return x + t->first * c->size;
    if (c->lines) do_lines(c, room, (char *)x, c->in_channels, stride, t, false);
    char *to = room;
    for (int64_t k = 0; !c->lines && k < t->images; k++)
        to = fill_image(c, to, x + k * stride * c->size, t->first, t->n);
    return room;
}

void etch__conv_add(const conv *c, char *to, int64_t channels, const char *matrix,
                    const conv_tile *t) {
    int64_t image = channels * c->pixels;
    if (c->lines) do_lines(c, (char *)matrix, to, channels, image, t, true);
    for (int64_t k = 0; !c->lines && k < t->images; k++)
        matrix = add_image(c, to + k * image * c->size, channels, matrix, t->first, t->n);
}

/* ---- the output's side ---- */

static void gather_innermost(const conv *c, const char *g, const conv_tile *t, int64_t channels,
                             char *room) {
    int64_t all = c->at.groups * c->out_channels;
    strip_shape shape = {channels, t->images * t->n, 1, 1, all};
    for (int64_t i = 0; i < t->images; i++)
        c->isa->strips->prim[STRIP_MOVE][c->type](
            room + i * t->n * c->size, g + i * c->positions * all * c->size, &shape, NULL, t->n);
}

const char *etch__conv_gather(const conv *c, const char *g, const conv_tile *t, int64_t first,
                              int64_t channels, char *room, int64_t *ld) {
    int64_t all = c->at.groups * c->out_channels, bytes = t->n * c->size;
    g += t->image * all * c->positions * c->size;
    *ld = t->images > 1 || c->innermost ? t->images * t->n : c->positions;
    if (c->innermost) {
        gather_innermost(c, g + (t->first * all + first) * c->size, t, channels, room);
        return room;
    }
    g += (first * c->positions + t->first) * c->size;
    if (t->images == 1) return g;
    for (int64_t k = 0; k < channels; k++)
        for (int64_t i = 0; i < t->images; i++)
            copy_run(room + (k * t->images + i) * bytes, g + (i * all + k) * c->positions * c->size,
                     bytes);
    return room;
}
