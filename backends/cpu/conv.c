/* convolution. Of floats: conv_direct.c, whose tiles are stored here.
 *
 * Of integers the output of one image and group, [channels][positions], is the product of the
 * weights and the matrix of the input values under the kernel, transposed (conv_matrix.c). The
 * positions are cut into tiles by the sizes alone: a part of an image, or several small images. A
 * task builds the matrix of one tile, which stays in its cache, and multiplies it on its own
 * thread. */
#include "backends/cpu/conv.h"
#include "backends/cpu/conv_direct.h"
#include "core/base/pool.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"

/* ---- a tile ---- */

/* Adds the bias to n values of one channel, and stores them. */
static void finish_row(const conv *c, char *values, const void *bias, char *out, int64_t n) {
    strip_fn add = c->isa->strips->prim[PRIM_ADD][c->type];
    for (int64_t i = 0; c->bias && i < n; i += EAGER_STRIP)
        add(out + i * c->size, values + i * c->size, bias, NULL, at_most(n - i, EAGER_STRIP));
    if (!c->bias && out != values) memcpy(out, values, (size_t)(n * c->size));
}

/* The product's channels, each of which has the positions of all images of the tile. */
static void finish_tile(const conv *c, const conv_tile *t, char *sums, int64_t ld, char *y) {
    int64_t image = c->at.groups * c->out_channels * c->positions * c->size;
    double bias[EAGER_STRIP];
    for (int64_t k = 0; k < c->out_channels; k++) {
        int64_t channel = t->group * c->out_channels + k;
        if (c->bias)
            c->isa->strips->fill[etch__size_log2(c->type)](bias, c->bias + channel * c->size,
                                                           at_most(t->n, EAGER_STRIP));
        char *values = sums + k * ld * c->size, *out = y + k * c->positions * c->size;
        for (int64_t i = 0; i < t->images; i++)
            finish_row(c, values + i * t->n * c->size, bias, out + i * image, t->n);
    }
}

static bool do_tile(const conv *c, const conv_tile *t, char *matrix, char *sums) {
    int64_t channel = t->group * c->out_channels, n = t->images * t->n;
    int64_t at = (t->image * c->at.groups * c->out_channels + channel) * c->positions + t->first;
    bool direct = t->images == 1;
    char *y = c->y + at * c->size;
    library_product p = {.a = c->w + channel * c->rows * c->size,
                         .c = direct ? y : sums,
                         .lda = c->rows,
                         .ldc = direct ? c->positions : n,
                         .m = c->out_channels,
                         .n = n,
                         .k = c->rows,
                         .b_transposed = !c->lines};
    p.b = etch__conv_fill(c, matrix, t, &p.ldb);
    if (!etch__library_product(c->type, &p)) return false;
    finish_tile(c, t, p.c, p.ldc, y);
    return true;
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    conv *c = ctx;
    int64_t n = c->span * c->tile, all = etch__conv_spans(c) * c->tiles;
    int64_t matrix = c->plain ? 0 : c->rows * n * c->size;
    char *room = etch__malloc((size_t)(matrix + c->out_channels * n * c->size + 1));
    bool ok = room != NULL;
    for (int64_t k = begin; ok && k < end; k++) {
        conv_tile t = etch__conv_tile(c, k / all, k % all);
        ok = do_tile(c, &t, room, room + matrix);
    }
    etch__free(room);
    if (!ok) atomic_store(&c->failed, 1);
}

/* ---- of integers ---- */

static etch_status run_tiles(conv *c) {
    double work = (double)c->rows * (double)(c->span * c->tile) * (double)c->out_channels;
    atomic_init(&c->failed, 0);
    if (!etch__library_enter(c->type)) return etch__tls.status;
    etch__parallel(c->at.groups * etch__conv_spans(c) * c->tiles,
                   work > 262144 ? 1 : (int64_t)(262144 / work) + 1, tiles_task, c);
    etch__library_leave(c->type);
    return etch__conv_status(c);
}

static etch_status by_matrix(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2], *y = outs[0];
    conv c = {.isa = etch__isa_table(), .dtype = x->dtype, .y = etch__ptr(y)};
    void *copies[5] = {NULL, NULL, NULL, NULL, NULL};
    if (!etch__conv_numbers(call, &c.at)) return etch__tls.status;
    etch__conv_plan(&c, x->size, w->size, y->size);
    if (!etch__conv_fits(&c)) return etch__tls.status;
    bool ok = (c.x = etch__row_major_elements(x, true, &copies[0])) &&
              (c.w = etch__row_major_elements(w, true, &copies[1])) &&
              (bias == ETCH_NONE || (c.bias = etch__row_major_elements(bias, true, &copies[2])));
    ok = ok && (c.x = etch__conv_pixels(&c, c.x, &copies[3])) &&
         (c.w = etch__conv_places(&c, c.w, &copies[4]));
    etch_status status = ok ? run_tiles(&c) : ETCH_ERR_OUT_OF_MEMORY;
    for (int k = 0; k < 5; k++) etch__free(copies[k]);
    return status;
}

/* ---- of floats ---- */

/* Rows first .. + n of the tile, which are positions of one image from `position` on, to y in
 * planes. */
static void store_planes(const direct_conv *d, const etch_tensor *y, const product_tile *t,
                         int64_t first, int64_t n, char *room) {
    int64_t bytes = (int64_t)etch_dtype_size(y->dtype), row = t->row + first;
    int64_t image = row / d->n.positions, position = row % d->n.positions;
    int64_t at = (image * y->size[1] + t->col) * d->n.positions + position;
    const char *from = t->c + first * t->ldc * d->size;
    char *to = (char *)etch__ptr(y) + at * bytes;
    bool direct = d->type == y->dtype;
    etch__direct_turn(d, d->type, direct ? to : room, direct ? d->n.positions : n, from, t->ldc,
                      t->n, n);
    for (int64_t k = 0; !direct && k < t->n; k++)
        etch__store_rounded(y->dtype, to + k * d->n.positions * bytes, room + k * n * d->size, n);
}

/* The tile's rows to y with its channels innermost. */
static void store_rows(const direct_conv *d, const etch_tensor *y, const product_tile *t) {
    int64_t bytes = (int64_t)etch_dtype_size(y->dtype);
    for (int64_t r = 0; r < t->m; r++) {
        char *to = (char *)etch__ptr(y) + ((t->row + r) * y->size[1] + t->col) * bytes;
        char *from = t->c + r * t->ldc * d->size;
        if (d->type != y->dtype) etch__store_rounded(y->dtype, to, from, t->n);
        else memcpy(to, from, (size_t)(t->n * bytes));
    }
}

/* The tile's rows are those of planes. */
static void store_lines(const direct_conv *d, const etch_tensor *y, const product_tile *t) {
    int64_t bytes = (int64_t)etch_dtype_size(y->dtype);
    char *to = (char *)etch__ptr(y) + (t->row * d->n.positions + t->col) * bytes;
    for (int64_t k = 0; k < t->m; k++, to += d->n.positions * bytes)
        etch__store_rounded(y->dtype, to, t->c + k * t->ldc * d->size, t->n);
}

static void finish_direct(const void *ctx, const direct_conv *d, const product_tile *t,
                          char *room) {
    const etch_tensor *y = ctx;
    if (d->by_lines) {
        store_lines(d, y, t);
        return;
    }
    if (!y->contiguous) {
        store_rows(d, y, t);
        return;
    }
    int64_t n;
    for (int64_t first = 0; first < t->m; first += n) {
        n = at_most(d->n.positions - (t->row + first) % d->n.positions, t->m - first);
        store_planes(d, y, t, first, n, room);
    }
}

/* y is row-major, or has its channels innermost; a plan may ask for that of halves in the compute
 * type. */
static etch_status directly(const op_call *call, const etch_tensor *y) {
    conv_numbers at;
    direct_conv d;
    if (!etch__conv_numbers(call, &at)) return etch__tls.status;
    conv_sizes n = etch__conv_sizes(&at, call->in[0]->size, call->in[1]->size, y->size);
    bool ok = etch__direct_begin(&d, &n, call->in[0], call->in[1], call->in[2], y->contiguous);
    if ((d.by_lines || !d.planes) && d.type == y->dtype) d.y = etch__ptr(y);
    d.finish = finish_direct, d.ctx = y;
    etch_status status = ok ? etch__direct_run(&d) : ETCH_ERR_OUT_OF_MEMORY;
    etch__direct_end(&d);
    return status;
}

/* ---- the kernel ---- */

static etch_status convolution(const op_call *call, etch_tensor *const *outs) {
    if (outs[0]->numel == 0) return ETCH_OK;
    if (etch__conv_is_direct(outs[0]->dtype)) return directly(call, outs[0]);
    return by_matrix(call, outs);
}

void etch__start_cpu_convolution(void) { etch__register_kernel(OP_CONVOLUTION, convolution); }
