/* Convolution to few output channels, in planes: the lanes of a vector are positions of a row; in
 * conv_direct.c they are channels, of which most would be missing. The arithmetic of an element is
 * the same.
 *
 * A tile is some rows of an image, for all channels. What lies under them is copied with its
 * padding into memory that stays in the nearest caches, unless it may be read as it lies. */
#include "backends/cpu/conv_direct.h"
#include "backends/cpu/program.h"
#include "core/base/pool.h"

/* Bytes that a tile's input should have at most, and the rows that it should have at least, since
 * those around them are copied as well; input channels at most, so that it can. */
enum { LINE_BYTES = 64 << 10, LINE_ROWS = 8, LINE_CHANNELS_MOST = 64 };

bool etch__conv_by_lines(const conv_sizes *n, etch_dtype dtype) {
    int64_t lanes = etch__isa_table()->conv->lanes[etch__compute_type(dtype)];
    return !etch__conv_has_pairs(n, dtype) && !etch__conv_by_tiles(n, dtype) && n->groups == 1 &&
           !n->apart && n->at.stride[1] == 1 && n->out[1] >= lanes &&
           2 * n->out_channels <= lanes && n->in_channels <= LINE_CHANNELS_MOST;
}

/* ---- begin ---- */

/* [output channels / CONV_LINES][places][input channels][output channels]: as they are read. */
static void order_weights(const direct_conv *d, char *to, const char *w) {
    const conv_sizes *n = &d->n;
    for (int64_t first = 0; first < n->out_channels; first += CONV_LINES)
        for (int64_t p = 0; p < n->places; p++)
            for (int64_t k = 0; k < n->in_channels; k++)
                for (int64_t m = first; m < n->out_channels && m < first + CONV_LINES; m++) {
                    memcpy(to, w + ((m * n->in_channels + k) * n->places + p) * d->size,
                           (size_t)d->size);
                    to += d->size;
                }
}

static bool take_weights(direct_conv *d, const etch_tensor *w) {
    void *copy = NULL;
    const char *from = etch__row_major_elements(w, true, &copy);
    char *to = from ? etch__malloc((size_t)(w->numel * d->size) + 1) : NULL;
    if (to) order_weights(d, to, from);
    etch__free(copy);
    return (d->w = d->copies[1] = to);
}

static int64_t rows_under(const direct_conv *d, int64_t rows) {
    const conv_sizes *n = &d->n;
    return (rows - 1) * n->at.stride[0] + (n->kernel[0] - 1) * n->at.dilation[0] + 1;
}

static void plan_lines(direct_conv *d) {
    const conv_sizes *n = &d->n;
    int64_t pitch = n->in[1] + 2 * n->at.padding[1], row = n->in_channels * pitch * d->size;
    int64_t wanted = etch_num_threads() > 1 ? 4 * (int64_t)etch_num_threads() : 1;
    int64_t rows = n->out[0];
    while (rows > LINE_ROWS && (rows_under(d, rows) * row > LINE_BYTES ||
                                n->images * ((n->out[0] + rows - 1) / rows) < wanted))
        rows = (rows + 1) / 2;
    d->tile_rows = rows, d->row_tiles = (n->out[0] + rows - 1) / rows;
}

bool etch__lines_begin(direct_conv *d, const etch_tensor *x, const etch_tensor *w,
                       const etch_tensor *bias) {
    bool has = bias && bias != ETCH_NONE;
    const void *to = NULL;
    if (has && !(to = etch__row_major_elements(bias, true, &d->copies[2]))) return false;
    d->bias = to;
    plan_lines(d);
    d->x = etch__row_major_elements(x, false, &d->copies[0]);
    return (d->x || !x->numel) && take_weights(d, w);
}

/* ---- a tile's input ---- */

/* Rows of an image as the tile reads them: from, of elements of the compute type. */
typedef struct line_input {
    const char *x;
    int64_t channel, row; /* elements from one to the next */
} line_input;

static bool lies_as_read(const direct_conv *d) {
    return d->type == d->dtype && !d->n.at.padding[0] && !d->n.at.padding[1];
}

static void fill_row(const direct_conv *d, char *to, const char *from) {
    int64_t n = d->n.in[1], pad = d->n.at.padding[1] * d->size;
    strip_fn widen = d->isa->strips->widen[d->dtype];
    memset(to, 0, (size_t)pad);
    memset(to + pad + n * d->size, 0, (size_t)pad);
    if (widen) widen(to + pad, from, NULL, NULL, n);
    else memcpy(to + pad, from, (size_t)(n * d->size));
}

/* What lies under output rows first .. + rows of an image. */
static line_input input_of(const direct_conv *d, int64_t image, int64_t first, int64_t rows,
                           char *room) {
    const conv_sizes *n = &d->n;
    int64_t bytes = (int64_t)etch_dtype_size(d->dtype), pixels = n->in[0] * n->in[1];
    int64_t top = first * n->at.stride[0] - n->at.padding[0], count = rows_under(d, rows);
    int64_t pitch = n->in[1] + 2 * n->at.padding[1];
    const char *x = d->x + image * n->in_channels * pixels * bytes;
    if (lies_as_read(d)) return (line_input){x + top * n->in[1] * bytes, pixels, n->in[1]};
    char *to = room;
    for (int64_t k = 0; k < n->in_channels; k++, x += pixels * bytes)
        for (int64_t r = top; r < top + count; r++, to += pitch * d->size)
            if (r < 0 || r >= n->in[0]) memset(to, 0, (size_t)(pitch * d->size));
            else fill_row(d, to, x + r * n->in[1] * bytes);
    return (line_input){room, count * pitch, pitch};
}

/* ---- a tile ---- */

static void sum_lines(const direct_conv *d, const line_input *in, const product_tile *t) {
    const conv_sizes *n = &d->n;
    int64_t terms = n->places * n->in_channels, row = n->at.stride[0] * in->row * d->size;
    conv_line l = {.channel = in->channel,
                   .row = in->row * n->at.dilation[0],
                   .column = n->at.dilation[1],
                   .ldc = t->ldc,
                   .terms = n->in_channels,
                   .n = n->out[1]};
    memcpy(l.kernel, n->kernel, sizeof l.kernel);
    for (int64_t r = 0; r * l.n < t->n; r++)
        for (int64_t m = 0; m < t->m; m += CONV_LINES) {
            l.count = (int)at_most(t->m - m, CONV_LINES);
            l.x = in->x + r * row, l.w = d->w + m * terms * d->size;
            l.bias = d->bias ? d->bias + m * d->size : NULL;
            l.c = t->c + (m * t->ldc + r * l.n) * d->size;
            d->isa->conv->lines[d->type](&l);
        }
}

static void do_lines(const direct_conv *d, int64_t unit, char *room, char *c) {
    const conv_sizes *n = &d->n;
    int64_t image = unit / d->row_tiles, first = unit % d->row_tiles * d->tile_rows;
    int64_t rows = at_most(n->out[0] - first, d->tile_rows);
    product_tile t = {.row = image * n->out_channels,
                      .col = first * n->out[1],
                      .m = n->out_channels,
                      .n = rows * n->out[1]};
    t.ldc = d->y ? n->positions : t.n;
    t.c = d->y ? d->y + (t.row * n->positions + t.col) * d->size : c;
    line_input in = input_of(d, image, first, rows, room);
    sum_lines(d, &in, &t);
    if (!d->y) d->finish(d->ctx, d, &t, NULL);
}

static void lines_task(void *ctx, int64_t begin, int64_t end) {
    direct_conv *d = ctx;
    const conv_sizes *n = &d->n;
    int64_t pitch = n->in[1] + 2 * n->at.padding[1];
    int64_t in = lies_as_read(d) ? 0 : rows_under(d, d->tile_rows) * pitch * n->in_channels;
    int64_t out = d->y ? 0 : d->tile_rows * n->out[1] * n->out_channels;
    char *room = etch__aligned((size_t)((in + out) * d->size + 1));
    if (!room) {
        atomic_store(&d->failed, 1);
        return;
    }
    for (int64_t k = begin; k < end; k++) do_lines(d, k, room, room + in * d->size);
    etch__free(room);
}

void etch__lines_run(direct_conv *d) {
    const conv_sizes *n = &d->n;
    double work =
        (double)(d->tile_rows * n->out[1] * n->out_channels) * (double)(n->places * n->in_channels);
    etch__parallel(n->images * d->row_tiles, work > 262144 ? 1 : (int64_t)(262144 / work) + 1,
                   lines_task, d);
}
