/* convolution: the output of one image and group, [channels][positions], is the product of the
 * weights and the matrix of the input values under the kernel (its rows: input channel and place in
 * the kernel; its columns: positions).
 *
 * The positions are cut into tiles by the sizes alone. A task builds the matrix of one tile, which
 * stays in its cache, and multiplies it on its own thread, so the bits do not depend on the number
 * of threads. Half types are computed in f32 and rounded once, after the bias. */
#include <limits.h>

#include "backends/cpu/conv.h"
#include "backends/cpu/library.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"
#include "core/base/pool.h"

/* ---- the matrix of a tile ---- */

conv_span etch__conv_span(const conv *c, int64_t kw, int64_t ow, int64_t n) {
    int64_t step = c->at.stride[1], iw = ow * step - c->at.padding[1] + kw * c->at.dilation[1];
    int64_t begin = iw < 0 ? (-iw + step - 1) / step : 0;
    int64_t end = iw >= c->in[1] ? 0 : (c->in[1] - 1 - iw) / step + 1;
    if (begin > n) begin = n;
    if (end > n) end = n;
    if (end < begin) end = begin;
    return (conv_span){begin, end, iw + begin * step};
}

int64_t etch__conv_row(const conv *c, int64_t kh, int64_t oh) {
    int64_t ih = oh * c->at.stride[0] - c->at.padding[0] + kh * c->at.dilation[0];
    return ih >= 0 && ih < c->in[0] ? ih : -1;
}

/* Values under one place of the kernel for positions (oh, ow) .. + n of one output row; `row` is
 * the input row, NULL in the padding. */
static void fill_run(const conv *c, char *dst, const char *row, int64_t kw, int64_t ow, int64_t n) {
    conv_span s = etch__conv_span(c, kw, ow, n);
    if (!row) s.begin = s.end = n;
    memset(dst, 0, (size_t)(s.begin * c->size));
    if (s.end > s.begin)
        c->isa->strips->gather[etch__size_log2(c->type)](
            dst + s.begin * c->size, row + s.at * c->size, c->at.stride[1], s.end - s.begin);
    memset(dst + s.end * c->size, 0, (size_t)((n - s.end) * c->size));
}

/* One row of the matrix: channel plane `x`, place (kh, kw), positions first .. + n. */
static void fill_row(const conv *c, char *dst, const char *x, int64_t kh, int64_t kw, int64_t first,
                     int64_t n) {
    for (int64_t done = 0; done < n;) {
        int64_t oh = (first + done) / c->out[1], ow = (first + done) % c->out[1];
        int64_t run = c->out[1] - ow < n - done ? c->out[1] - ow : n - done;
        int64_t ih = etch__conv_row(c, kh, oh);
        fill_run(c, dst + done * c->size, ih < 0 ? NULL : x + ih * c->in[1] * c->size, kw, ow, run);
        done += run;
    }
}

void etch__conv_fill_matrix(const conv *c, char *dst, const char *x, int64_t first, int64_t n) {
    for (int64_t channel = 0; channel < c->in_channels; channel++) {
        for (int64_t kh = 0; kh < c->kernel[0]; kh++)
            for (int64_t kw = 0; kw < c->kernel[1]; kw++, dst += n * c->size)
                fill_row(c, dst, x, kh, kw, first, n);
        x += c->in[0] * c->in[1] * c->size;
    }
}

/* ---- a tile ---- */

/* Adds the bias to n values of one channel, rounds and stores them. */
static void finish_row(const conv *c, char *values, int64_t channel, char *out, int64_t n) {
    const strip_table *table = c->isa->strips;
    double bias[EAGER_STRIP];
    if (c->bias)
        table->fill[etch__size_log2(c->type)](bias, c->bias + channel * c->size,
                                              n < EAGER_STRIP ? n : EAGER_STRIP);
    for (int64_t i = 0; c->bias && i < n; i += EAGER_STRIP) {
        char *v = values + i * c->size;
        table->prim[PRIM_ADD][c->type](v, v, bias, NULL, n - i < EAGER_STRIP ? n - i : EAGER_STRIP);
    }
    if (c->type == c->dtype) return; /* the values lie in the output already */
    etch__store_rounded(c->dtype, out, values, n);
}

static bool do_tile(const conv *c, int64_t unit, char *matrix, char *product) {
    int64_t first = unit % c->tiles * c->tile, image = unit / c->tiles / c->at.groups;
    int64_t group = unit / c->tiles % c->at.groups, plane = c->in[0] * c->in[1];
    int64_t n = c->positions - first < c->tile ? c->positions - first : c->tile;
    const char *x = c->x + (image * c->at.groups + group) * c->in_channels * plane * c->size;
    int64_t channel = group * c->out_channels;
    int64_t at = (image * c->at.groups * c->out_channels + channel) * c->positions + first;
    bool direct = c->type == c->dtype;
    char *y = c->y + at * (int64_t)etch_dtype_size(c->dtype);
    library_product p = {.a = c->w + channel * c->rows * c->size,
                         .b = c->plain ? x + first * c->size : matrix,
                         .c = direct ? y : product,
                         .lda = c->rows,
                         .ldb = c->plain ? plane : n,
                         .ldc = direct ? c->positions : n,
                         .m = c->out_channels,
                         .n = n,
                         .k = c->rows};
    if (!c->plain) etch__conv_fill_matrix(c, matrix, x, first, n);
    if (!etch__library_product(c->type, &p)) return false;
    for (int64_t k = 0; k < c->out_channels; k++)
        finish_row(c, (char *)p.c + k * p.ldc * c->size, channel + k, y + k * c->positions * 2, n);
    return true;
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    conv *c = ctx;
    int64_t matrix = c->plain ? 0 : c->rows * c->tile * c->size;
    int64_t product = c->type == c->dtype ? 0 : c->out_channels * c->tile * c->size;
    char *room = etch__malloc((size_t)(matrix + product + 1));
    bool ok = room != NULL;
    for (int64_t k = begin; ok && k < end; k++) ok = do_tile(c, k, room, room + matrix);
    etch__free(room);
    if (!ok) atomic_store(&c->failed, 1);
}

/* ---- the kernel ---- */

enum { TILE_MATRIX = 1 << 17, TILE_LEAST = 64, TILE_MOST = 512 };

void etch__conv_plan(conv *c, const int64_t *x, const int64_t *w, const int64_t *y) {
    c->type = etch__compute_type(c->dtype), c->size = (int)etch_dtype_size(c->type);
    c->in_channels = w[1], c->out_channels = w[0] / c->at.groups;
    bool one = true;
    for (int d = 0; d < 2; d++) {
        c->in[d] = x[2 + d], c->out[d] = y[2 + d], c->kernel[d] = w[2 + d];
        one = one && c->kernel[d] == 1 && c->at.stride[d] == 1 && c->at.padding[d] == 0;
    }
    c->plain = one;
    c->rows = c->in_channels * c->kernel[0] * c->kernel[1];
    c->positions = c->out[0] * c->out[1];
    int64_t tile = TILE_MATRIX / (c->rows + 1) / 16 * 16;
    c->tile = tile < TILE_LEAST ? TILE_LEAST : tile > TILE_MOST ? TILE_MOST : tile;
    if (c->tile > c->positions) c->tile = c->positions;
    c->tiles = (c->positions + c->tile - 1) / c->tile;
}

bool etch__conv_fits(const conv *c) {
    if (c->positions <= INT_MAX && c->rows <= INT_MAX && c->out_channels <= INT_MAX &&
        c->in[0] * c->in[1] <= INT_MAX)
        return true;
    etch__error(ETCH_ERR_UNSUPPORTED, "convolution: a plane or kernel is too large");
    return false;
}

static etch_status run_tiles(conv *c, int64_t images) {
    if (!etch__conv_fits(c)) return etch__tls.status;
    double work = (double)c->rows * (double)c->tile * (double)c->out_channels;
    atomic_init(&c->failed, 0);
    if (!etch__library_enter(c->type)) return etch__tls.status;
    etch__parallel(images * c->at.groups * c->tiles,
                   work > 262144 ? 1 : (int64_t)(262144 / work) + 1, tiles_task, c);
    etch__library_leave(c->type);
    if (!atomic_load(&c->failed)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "convolution: no memory for a tile");
}

static etch_status convolution(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2], *y = outs[0];
    conv c = {.isa = etch__isa_table(), .dtype = x->dtype, .y = etch__ptr(y)};
    void *copies[3] = {NULL, NULL, NULL};
    if (y->numel == 0) return ETCH_OK;
    if (!etch__conv_numbers(call, &c.at)) return etch__tls.status;
    etch__conv_plan(&c, x->size, w->size, y->size);
    bool ok = (c.x = etch__row_major_elements(x, true, &copies[0])) &&
              (c.w = etch__row_major_elements(w, true, &copies[1])) &&
              (bias == ETCH_NONE || (c.bias = etch__row_major_elements(bias, true, &copies[2])));
    etch_status status = ok ? run_tiles(&c, x->size[0]) : ETCH_ERR_OUT_OF_MEMORY;
    for (int k = 0; k < 3; k++) etch__free(copies[k]);
    return status;
}

void etch__start_cpu_convolution(void) { etch__register_kernel(OP_CONVOLUTION, convolution); }
