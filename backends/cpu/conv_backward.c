/* What a convolution passes back, in the tiles of conv.c.
 *
 * To the weight: the product of the gradient of a tile's positions and the matrix of the input
 * values under the kernel, added up over tiles and images. These are dealt out into parts by the
 * sizes alone; each part adds in its order, and the parts are added in theirs. Large weights have
 * few parts, but then tasks for some of the output channels each.
 *
 * To the input: the product of the gradient, transposed, and the weights is that of the matrix;
 * each of its elements is added where it came from. A task has some channels of a span of images,
 * so nobody else adds there.
 *
 * Half types are computed in f32 and rounded once, at the end. */
#include "backends/cpu/conv.h"
#include "backends/cpu/conv_direct.h"
#include "core/base/pool.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"

static int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* n values of the compute type, which it overwrites, as elements of the dtype. */
static void store(const conv *c, char *out, char *values, int64_t n) {
    if (c->type != c->dtype) etch__store_rounded(c->dtype, out, values, n);
    else if (out != values) memcpy(out, values, (size_t)(n * c->size));
}

/* In the compute type, planes or channels innermost as it lies. NULL: no memory. */
static const char *take_gradient(conv *c, const etch_tensor *g, void **copy) {
    etch_tensor t = etch__channels_last(g);
    c->innermost = etch__lies_innermost(g);
    return etch__row_major_elements(c->innermost ? &t : g, true, copy);
}

/* Planes [columns][rows] of the compute type, back in the order of the result's elements; room has
 * as many. */
static void store_planes(const conv *c, char *out, char *planes, int64_t rows, int64_t columns,
                         char *room) {
    bool direct = c->type == c->dtype, flat = rows == 1 || columns == 1;
    char *to = flat ? planes : direct ? out : room;
    if (!flat) etch__conv_swap(c, to, planes, 1, columns, rows);
    store(c, out, to, rows * columns);
}

/* ---- to the weight ---- */

typedef struct weight_job {
    conv c;
    const char *g; /* the gradient of the result, in the compute type */
    char *sums;    /* [parts] of the weight's elements, channels innermost */
    int64_t numel, tiles, parts, block, blocks; /* tiles of all images; output channels at once */
} weight_job;

enum { CHANNELS = 128, MOST_PARTS = 16, PARTS_BYTES = 64 << 20 };

static void plan_weight(weight_job *j) {
    conv *c = &j->c;
    j->numel = c->at.groups * c->out_channels * c->rows;
    j->tiles = etch__conv_spans(c) * c->tiles;
    j->parts = at_most(PARTS_BYTES / (j->numel * c->size) + 1, MOST_PARTS);
    j->parts = at_most(j->parts, j->tiles);
    j->blocks = parts_of(c->out_channels, CHANNELS);
    j->block = parts_of(c->out_channels, j->blocks);
}

/* One tile's product for output channels first .. + m of its group. */
static bool add_tile(const weight_job *j, const conv_tile *t, int64_t first, int64_t m, char *sum,
                     bool adds, char *room) {
    const conv *c = &j->c;
    int64_t channel = t->group * c->out_channels + first, n = t->images * t->n, ld;
    const char *g = etch__conv_gather(c, j->g, t, channel, m, room, &ld);
    library_product p = {.a = g,
                         .c = sum,
                         .lda = ld,
                         .ldc = c->rows,
                         .m = m,
                         .n = c->rows,
                         .k = n,
                         .b_transposed = c->lines,
                         .adds = adds};
    p.b = etch__conv_fill(c, room + m * n * c->size, t, &p.ldb);
    return etch__library_product(c->type, &p);
}

static bool do_part(const weight_job *j, int64_t unit, char *room) {
    const conv *c = &j->c;
    int64_t block = unit % j->blocks, group = unit / j->blocks % c->at.groups;
    int64_t part = unit / j->blocks / c->at.groups, first = block * j->block;
    int64_t begin = part * j->tiles / j->parts, end = (part + 1) * j->tiles / j->parts;
    int64_t m = at_most(c->out_channels - first, j->block);
    int64_t at = part * j->numel + (group * c->out_channels + first) * c->rows;
    bool ok = true;
    for (int64_t k = begin; ok && k < end; k++) {
        conv_tile t = etch__conv_tile(c, group, k);
        ok = add_tile(j, &t, first, m, j->sums + at * c->size, k > begin, room);
    }
    return ok;
}

static void parts_task(void *ctx, int64_t begin, int64_t end) {
    weight_job *j = ctx;
    conv *c = &j->c;
    int64_t n = c->span * c->tile, rows = j->block + (c->plain ? 0 : c->rows);
    char *room = etch__malloc((size_t)(rows * n * c->size) + 1);
    bool ok = room != NULL;
    for (int64_t k = begin; ok && k < end; k++) ok = do_part(j, k, room);
    etch__free(room);
    if (!ok) atomic_store(&c->failed, 1);
}

/* The weights of output channels begin .. end: the parts' sums, added to those of the first, in the
 * weight's order. */
static void sum_task(void *ctx, int64_t begin, int64_t end) {
    weight_job *j = ctx;
    conv *c = &j->c;
    strip_fn add = c->isa->strips->prim[PRIM_ADD][c->type];
    int64_t bytes = c->rows * c->size;
    char *room = etch__malloc((size_t)bytes);
    for (int64_t k = begin; room && k < end; k++) {
        char *sum = j->sums + k * bytes;
        for (int64_t part = 1; part < j->parts; part++)
            add(sum, sum, sum + part * j->numel * c->size, NULL, c->rows);
        char *out = c->y + k * c->rows * (int64_t)etch_dtype_size(c->dtype);
        if (c->lines) store(c, out, sum, c->rows);
        else store_planes(c, out, sum, c->in_channels, c->places, room);
    }
    if (!room) atomic_store(&c->failed, 1);
    etch__free(room);
}

static etch_status run_weight(weight_job *j) {
    conv *c = &j->c;
    j->sums = etch__malloc((size_t)(j->parts * j->numel * c->size));
    if (!j->sums) return etch__error(ETCH_ERR_OUT_OF_MEMORY, "convolution: no memory for sums");
    if (!etch__library_enter(c->type)) {
        etch__free(j->sums);
        return etch__tls.status;
    }
    etch__parallel(j->parts * c->at.groups * j->blocks, 1, parts_task, j);
    etch__library_leave(c->type);
    if (!atomic_load(&c->failed))
        etch__parallel(c->at.groups * c->out_channels, 65536 / (j->parts * c->rows) + 1, sum_task,
                       j);
    etch__free(j->sums);
    return etch__conv_status(c);
}

static void *zeroed(const etch_tensor *t) {
    return memset(etch__ptr(t), 0, (size_t)(t->numel * etch__item_size(t)));
}

/* In the order of the matrix; where it lies so, and one group has all channels, as it is. */
static bool take_pixels(conv *c, const etch_tensor *x, void **copies) {
    etch_tensor t = etch__channels_last(x);
    bool lies = etch__lies_innermost(x) && !c->lines && c->at.groups == 1;
    c->x = etch__row_major_elements(lies ? &t : x, true, &copies[0]);
    return c->x && (lies || (c->x = etch__conv_pixels(c, c->x, &copies[1])));
}

static etch_status backward_weight(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *g = call->in[0], *x = call->in[1], *w = outs[0];
    weight_job j = {.c = {.isa = etch__isa_table(), .dtype = g->dtype}};
    void *copies[3] = {NULL, NULL, NULL};
    if (!w->numel) return ETCH_OK;
    j.c.y = zeroed(w);
    if (!g->numel) return ETCH_OK;
    if (!etch__conv_numbers(call, &j.c.at)) return etch__tls.status;
    etch__conv_plan(&j.c, x->size, w->size, g->size);
    if (!etch__conv_fits(&j.c)) return etch__tls.status;
    plan_weight(&j);
    bool ok = take_pixels(&j.c, x, copies) && (j.g = take_gradient(&j.c, g, &copies[2]));
    etch_status status = ok ? run_weight(&j) : ETCH_ERR_OUT_OF_MEMORY;
    for (int k = 0; k < 3; k++) etch__free(copies[k]);
    return status;
}

/* ---- to the input ---- */

typedef struct input_job {
    conv c;                /* x is not there: y is its gradient */
    const char *g;         /* as above */
    int64_t block, blocks; /* input channels of a group at once */
    bool innermost;        /* y has its channels innermost */
    char *w; /* [groups][blocks][output channels][places][channels of the block]; not for lines */
} input_job;

/* The input channels of one block, of a span of images. */
typedef struct input_unit {
    int64_t group, span, first, channels;
} input_unit;

enum { MATRIX_COLUMNS = 256 };

static const char *weights_of(const input_job *j, int64_t group, int64_t first) {
    const conv *c = &j->c;
    return j->w +
           (group * c->out_channels * c->rows + first * c->places * c->out_channels) * c->size;
}

/* Blocks begin .. end of the weights, channels innermost. */
static void weights_task(void *ctx, int64_t begin, int64_t end) {
    input_job *j = ctx;
    const conv *c = &j->c;
    for (int64_t k = begin; k < end; k++) {
        int64_t group = k / j->blocks, first = k % j->blocks * j->block;
        int64_t channels = at_most(c->in_channels - first, j->block), n = channels * c->places;
        const char *from = c->w + (group * c->out_channels * c->rows + first * c->places) * c->size;
        char *to = (char *)weights_of(j, group, first);
        for (int64_t m = 0; m < c->out_channels; m++, from += c->rows * c->size, to += n * c->size)
            etch__conv_swap(c, to, from, 1, channels, c->places);
    }
}

/* The matrix of a tile by lines: of the channels as they are. */
static library_product lines_product(const input_job *j, const input_unit *u, const conv_tile *t,
                                     const char *g, int64_t ld, char *matrix) {
    const conv *c = &j->c;
    int64_t at = u->group * c->out_channels * c->rows + u->first * c->places;
    return (library_product){.a = c->w + at * c->size,
                             .b = g,
                             .c = matrix,
                             .lda = c->rows,
                             .ldb = ld,
                             .ldc = c->plain ? c->positions : t->images * t->n,
                             .m = u->channels * c->places,
                             .n = t->images * t->n,
                             .k = c->out_channels,
                             .a_transposed = true};
}

static library_product matrix_product(const input_job *j, const input_unit *u, const conv_tile *t,
                                      const char *g, int64_t ld, char *matrix) {
    int64_t columns = u->channels * j->c.places;
    return (library_product){.a = g,
                             .b = weights_of(j, u->group, u->first),
                             .c = matrix,
                             .lda = ld,
                             .ldb = columns,
                             .ldc = columns,
                             .m = t->images * t->n,
                             .n = columns,
                             .k = j->c.out_channels,
                             .a_transposed = true};
}

/* The gradient of the pixels of a span, which are 0: [images][pixels][channels], or as lines are.
 */
static bool fill_pixels(const input_job *j, const input_unit *u, char *pixels, char *room) {
    const conv *c = &j->c;
    for (int64_t k = 0; k < c->tiles; k++) {
        conv_tile t = etch__conv_tile(c, u->group, u->span * c->tiles + k);
        int64_t ld;
        char *matrix = room + c->out_channels * t.images * t.n * c->size;
        const char *g =
            etch__conv_gather(c, j->g, &t, u->group * c->out_channels, c->out_channels, room, &ld);
        if (c->plain) matrix = pixels + t.first * c->size;
        library_product p = (c->lines ? lines_product : matrix_product)(j, u, &t, g, ld, matrix);
        if (!etch__library_product(c->type, &p)) return false;
        if (!c->plain) etch__conv_add(c, pixels, u->channels, matrix, &t);
    }
    return true;
}

static char *result_of(const input_job *j, const input_unit *u, int64_t image) {
    const conv *c = &j->c;
    int64_t all = c->at.groups * c->in_channels, channel = u->group * c->in_channels + u->first;
    int64_t at = image * all * c->pixels + channel * (j->innermost ? 1 : c->pixels);
    return c->y + at * (int64_t)etch_dtype_size(c->dtype);
}

/* Whether the pixels of a unit lie in the result as fill_pixels makes them. */
static bool lie_in_result(const input_job *j, const input_unit *u, int64_t images) {
    const conv *c = &j->c;
    if (c->type != c->dtype) return false;
    if (j->innermost) return !c->lines && u->channels == c->at.groups * c->in_channels;
    return c->lines && images == 1;
}

/* Pixel after pixel, whose channels are neighbours. */
static void store_pixels(const input_job *j, const input_unit *u, char *out, char *pixels) {
    const conv *c = &j->c;
    int64_t all = c->at.groups * c->in_channels * (int64_t)etch_dtype_size(c->dtype);
    for (int64_t p = 0; p < c->pixels; p++, out += all, pixels += u->channels * c->size)
        store(c, out, pixels, u->channels);
}

static void store_image(const input_job *j, const input_unit *u, char *out, char *pixels,
                        char *room) {
    const conv *c = &j->c;
    if (j->innermost) {
        if (c->lines) etch__conv_swap(c, room, pixels, 1, u->channels, c->pixels);
        store_pixels(j, u, out, c->lines ? room : pixels);
    } else if (c->lines) store(c, out, pixels, u->channels * c->pixels);
    else store_planes(c, out, pixels, u->channels, c->pixels, room);
}

/* room: the pixels of a span and of one more image, then gradient and matrix of a tile. */
static bool do_unit(const input_job *j, const input_unit *u, char *room) {
    const conv *c = &j->c;
    int64_t image = u->channels * c->pixels, first = u->span * c->span;
    int64_t images = at_most(c->images - first, c->span);
    bool direct = lie_in_result(j, u, images);
    char *spare = room + images * image * c->size, *to = direct ? result_of(j, u, first) : room;
    if (!c->plain) memset(to, 0, (size_t)(images * image * c->size));
    if (!fill_pixels(j, u, to, spare + image * c->size)) return false;
    for (int64_t k = 0; !direct && k < images; k++)
        store_image(j, u, result_of(j, u, first + k), to + k * image * c->size, spare);
    return true;
}

static void units_task(void *ctx, int64_t begin, int64_t end) {
    input_job *j = ctx;
    conv *c = &j->c;
    int64_t n = c->span * c->tile, pixels = (c->span + 1) * j->block * c->pixels;
    int64_t tile = (c->out_channels + j->block * c->places) * n;
    char *room = etch__malloc((size_t)((pixels + tile) * c->size));
    bool ok = room != NULL;
    for (int64_t k = begin; ok && k < end; k++) {
        input_unit u = {.group = k / j->blocks % c->at.groups,
                        .span = k / j->blocks / c->at.groups,
                        .first = k % j->blocks * j->block};
        u.channels = at_most(c->in_channels - u.first, j->block);
        ok = do_unit(j, &u, room);
    }
    etch__free(room);
    if (!ok) atomic_store(&c->failed, 1);
}

static void plan_input(input_job *j) {
    conv *c = &j->c;
    int64_t channels = (MATRIX_COLUMNS / c->places + 16) / 16 * 16;
    j->block = at_most(channels, c->in_channels);
    j->blocks = parts_of(c->in_channels, j->block);
}

static etch_status run_input(input_job *j) {
    conv *c = &j->c;
    double work =
        (double)(j->block * c->places) * (double)(c->span * c->positions) * (double)c->out_channels;
    if (!c->lines) etch__parallel(c->at.groups * j->blocks, 1, weights_task, j);
    if (!etch__library_enter(c->type)) return etch__tls.status;
    etch__parallel(etch__conv_spans(c) * c->at.groups * j->blocks,
                   work > 262144 ? 1 : (int64_t)(262144 / work) + 1, units_task, j);
    etch__library_leave(c->type);
    return etch__conv_status(c);
}

static etch_status backward_input(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *g = call->in[0], *w = call->in[1], *x = outs[0];
    input_job j = {.c = {.isa = etch__isa_table(), .dtype = g->dtype}};
    void *copies[2] = {NULL, NULL};
    if (!x->numel) return ETCH_OK;
    j.c.y = etch__ptr(x);
    if (!g->numel) {
        zeroed(x);
        return ETCH_OK;
    }
    if (!etch__conv_numbers(call, &j.c.at)) return etch__tls.status;
    etch__conv_plan(&j.c, x->size, w->size, g->size);
    if (!etch__conv_fits(&j.c)) return etch__tls.status;
    plan_input(&j);
    j.innermost = !x->contiguous;
    bool ok = (j.g = take_gradient(&j.c, g, &copies[0])) &&
              (j.c.w = etch__row_major_elements(w, true, &copies[1])) &&
              (j.c.lines || (j.w = etch__malloc((size_t)(w->numel * j.c.size))));
    etch_status status = ok ? run_input(&j) : ETCH_ERR_OUT_OF_MEMORY;
    for (int k = 0; k < 2; k++) etch__free(copies[k]);
    etch__free(j.w);
    return status;
}

void etch__start_cpu_convolution_backward(void) {
    etch__register_kernel(OP_CONVOLUTION_BACKWARD_INPUT, backward_input);
    etch__register_kernel(OP_CONVOLUTION_BACKWARD_WEIGHT, backward_weight);
}
