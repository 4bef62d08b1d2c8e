/* convolution on a device: as on the CPU, the output of an image is the product of the weights and
 * the matrix of the input values under the kernel (its rows: input channel and place in the kernel;
 * its columns: positions).
 *
 * A kernel lays the matrix out for as many images as fit in a workspace; the product is the
 * library's, through the operators bmm, mm and addmm, and so has one algorithm for each shape.
 * Groups of few channels are computed element by element, by the chain acc = +0, acc = fma(weight,
 * value, acc) in the order of the matrix' rows. Which way is taken is a function of the sizes. Half
 * types accumulate in f32 and are rounded once, after the bias. */
#include <limits.h>

#include "backends/cuda/conv.h"
#include "core/base/start.h"

/* ---- code of our own ---- */

#include "embedded/conv_matrix.cu.inc"
#include "embedded/conv_direct.cu.inc"
#include "embedded/conv_bias.cu.inc"

conv_window etch__cuda_conv_window(const conv *c) {
    const conv_numbers *at = &c->at;
    const int64_t *s = c->x->stride;
    return (conv_window){
        c->in[0],        c->in[1],      c->out[1],      c->kernel[0],   c->kernel[1],
        at->stride[0],   at->stride[1], at->padding[0], at->padding[1], at->dilation[0],
        at->dilation[1], s[0],          s[1],           s[2],           s[3]};
}

/* Whether something that kernels count goes beyond 31 bits. */
static bool is_far(const conv *c) {
    int64_t channels =
        c->at.groups * (c->out_channels > c->in_channels ? c->out_channels : c->in_channels);
    double most = (double)(c->images + 1) * (double)(c->positions + 1024);
    double lines = (double)(c->images + 1) * (double)(channels > c->rows ? channels : c->rows);
    double reach = (double)(c->in[0] + c->in[1]) + 1024;
    for (int k = 0; k < 2; k++)
        reach += (double)c->out[k] * (double)c->at.stride[k] + (double)c->at.padding[k] +
                 (double)c->kernel[k] * (double)c->at.dilation[k];
    return most > 1e9 || lines * (double)((c->positions + 255) / 256 + 1) > 1e9 || reach > 1e9 ||
           (double)c->w->numel > 1e9;
}

etch_status etch__cuda_conv_text(const conv *c, const char *symbol, const char *body,
                                 int64_t blocks, void *args) {
    kernel_text k = {.symbol = symbol, .body = body, .ndtypes = 1};
    k.dtype[0] = c->y->dtype;
    bool real = etch__is_float(k.dtype[0]);
    snprintf(k.defines, sizeof k.defines,
             "#define INDEX %s\n#define FMA(x, y, z) %s\n#define SUM(x, y) %s\n",
             is_far(c) ? "i64" : "int",
             !real ? "(VALUE_0)((u64)(x) * (u64)(y) + (u64)(z))"
             : etch__compute_type(k.dtype[0]) == ETCH_F64 ? "fma(x, y, z)"
                                                          : "fmaf(x, y, z)",
             real ? "((x) + (y))" : "(VALUE_0)((u64)(x) + (u64)(y))");
    return etch__cuda_run_text(c->s, &k, blocks, 256, args);
}

/* ---- element by element ---- */

static etch_status direct(const conv *c) {
    struct {
        const void *x, *w, *bias;
        void *y;
        int64_t units, chunks, channels, group, in_channels, positions, bias_step;
        conv_window at;
    } a = {.x = etch__ptr(c->x),
           .w = etch__ptr(c->w),
           .bias = c->bias == ETCH_NONE ? NULL : etch__ptr(c->bias),
           .y = etch__ptr(c->y),
           .channels = c->out_channels * c->at.groups,
           .group = c->out_channels,
           .in_channels = c->in_channels,
           .positions = c->positions,
           .bias_step = c->bias == ETCH_NONE ? 0 : c->bias->stride[0],
           .at = etch__cuda_conv_window(c)};
    a.chunks = (c->positions + 255) / 256;
    a.units = c->images * a.channels * a.chunks;
    return etch__cuda_conv_text(c, "etch_direct", conv_direct_text, a.units, &a);
}

/* ---- by products ---- */

etch_status etch__cuda_conv_matrix(const conv *c, int64_t group, int64_t first, int64_t n,
                                   bool flat, etch_tensor *m) {
    struct {
        const void *x;
        void *m;
        int64_t units, chunks, rows, positions, m_image, m_row;
        conv_window at;
    } a = {.m = etch__ptr(m),
           .rows = c->rows,
           .positions = c->positions,
           .at = etch__cuda_conv_window(c)};
    int64_t at = first * a.at.x_image + group * c->in_channels * a.at.x_channel;
    a.x = (const char *)etch__ptr(c->x) + at * etch__item_size(c->x);
    a.m_image = flat ? c->positions : c->rows * c->positions;
    a.m_row = flat ? n * c->positions : c->positions;
    a.chunks = (c->positions + 1023) / 1024;
    a.units = n * c->rows * a.chunks;
    return etch__cuda_conv_text(c, "etch_windows", conv_matrix_text, a.units, &a);
}

etch_status etch__cuda_conv_op(const conv *c, op_id op, int nin, etch_tensor *const *in,
                               etch_tensor *out) {
    static const etch_scalar ones[2] = {{.kind = ETCH_SCALAR_INT, .i = 1},
                                        {.kind = ETCH_SCALAR_INT, .i = 1}};
    op_call call = {.op = (uint16_t)op,
                    .nin = (uint16_t)nin,
                    .nsc = op == OP_ADDMM ? 2 : 0,
                    .in = in,
                    .sc = ones,
                    .site = c->site};
    bool before = etch__tls.own_kernels;
    etch__tls.own_kernels = true;
    etch_status status = etch__cuda_kernel(&call, &out);
    etch__tls.own_kernels = before;
    return status;
}

/* One group, n images at once: each a product, written where it belongs. */
static etch_status batched(const conv *c, int64_t first, int64_t n) {
    int64_t plane = c->out_channels * c->positions;
    const int64_t sizes[3][3] = {{n, c->out_channels, c->rows},
                                 {n, c->rows, c->positions},
                                 {n, c->out_channels, c->positions}};
    const int64_t strides[3][3] = {
        {0, c->rows, 1}, {c->x->stride[0], c->x->stride[1], 1}, {plane, c->positions, 1}};
    etch_tensor w = etch__place_view(c->w, 0, 3, sizes[0], strides[0]);
    etch_tensor y = etch__place_view(c->y, first * plane, 3, sizes[2], strides[2]);
    etch_tensor m = etch__place_view(c->x, first * c->x->stride[0], 3, sizes[1], strides[1]);
    etch_status status = ETCH_OK;
    if (!c->plain) {
        if (!etch__place_new(&m, c->x->dtype, 3, sizes[1], c->x->device)) return etch__tls.status;
        status = etch__cuda_conv_matrix(c, 0, first, n, false, &m);
    }
    if (status == ETCH_OK)
        status = etch__cuda_conv_op(c, OP_BMM, 2, (etch_tensor *const[]){&w, &m}, &y);
    if (!c->plain) etch__place_free(&m);
    return status;
}

/* The product of a group's weights with m into t, [channels][n * positions], the bias added. */
static etch_status flat_product(const conv *c, int64_t group, etch_tensor *m, etch_tensor *t) {
    int64_t at = group * c->out_channels;
    etch_tensor w = etch__place_view(c->w, at * c->rows, 2, (int64_t[]){c->out_channels, c->rows},
                                     (int64_t[]){c->rows, 1});
    if (c->bias == ETCH_NONE)
        return etch__cuda_conv_op(c, OP_MM, 2, (etch_tensor *const[]){&w, m}, t);
    int64_t step = c->bias->stride[0];
    etch_tensor bias = etch__place_view(c->bias, at * step, 2, (int64_t[]){c->out_channels, 1},
                                        (int64_t[]){step, 1});
    return etch__cuda_conv_op(c, OP_ADDMM, 3, (etch_tensor *const[]){&bias, &w, m}, t);
}

/* A group for n images as one product, whose result is then brought to its place. */
static etch_status flat(const conv *c, int64_t group, int64_t first, int64_t n) {
    int64_t columns = n * c->positions, channels = c->at.groups * c->out_channels;
    const int64_t sizes[3] = {n, c->out_channels, c->positions};
    int64_t at = (first * channels + group * c->out_channels) * c->positions;
    etch_tensor y =
        etch__place_view(c->y, at, 3, sizes, (int64_t[]){channels * c->positions, c->positions, 1});
    etch_tensor m = {.storage = NULL}, t = {.storage = NULL};
    int device = c->y->device;
    etch_dtype dtype = c->y->dtype;
    bool ready = etch__place_new(&m, dtype, 2, (int64_t[]){c->rows, columns}, device) &&
                 etch__place_new(&t, dtype, 2, (int64_t[]){c->out_channels, columns}, device);
    etch_status status =
        ready ? etch__cuda_conv_matrix(c, group, first, n, true, &m) : etch__tls.status;
    if (status == ETCH_OK) status = flat_product(c, group, &m, &t);
    if (status == ETCH_OK) {
        etch_tensor from = etch__place_view(&t, 0, 3, sizes, (int64_t[]){c->positions, columns, 1});
        status = etch__place_copy(&y, &from, c->site);
    }
    etch__place_free(&m);
    etch__place_free(&t);
    return status;
}

static etch_status add_bias(const conv *c) {
    struct {
        void *y;
        const void *bias;
        int64_t n, channels, positions, bias_step;
    } a = {etch__ptr(c->y), etch__ptr(c->bias), c->y->numel,
           c->out_channels, c->positions,       c->bias->stride[0]};
    return etch__cuda_conv_text(c, "etch_add_bias", conv_bias_text, (a.n + 255) / 256, &a);
}

/* ---- the kernel ---- */

enum { DIRECT_CHANNELS = 16, DIRECT_ROWS = 1024 };

bool etch__cuda_conv_plan(conv *c) {
    bool one = true;
    c->images = c->x->size[0];
    c->in_channels = c->w->size[1], c->out_channels = c->w->size[0] / c->at.groups;
    for (int d = 0; d < 2; d++) {
        c->in[d] = c->x->size[2 + d], c->out[d] = c->y->size[2 + d];
        c->kernel[d] = c->w->size[2 + d];
        one = one && c->kernel[d] == 1 && c->at.stride[d] == 1 && c->at.padding[d] == 0;
    }
    c->rows = c->in_channels * c->kernel[0] * c->kernel[1];
    c->positions = c->out[0] * c->out[1];
    bool dense =
        (c->in[1] == 1 || c->x->stride[3] == 1) && (c->in[0] == 1 || c->x->stride[2] == c->in[1]);
    c->plain = one && dense;
    if (c->positions <= INT_MAX && c->rows <= INT_MAX && c->images <= INT_MAX) return true;
    etch__error_at(c->site, ETCH_ERR_UNSUPPORTED, "convolution: a plane or kernel is too large");
    return false;
}

bool etch__cuda_conv_few(const conv *c) {
    return c->at.groups > 1 && c->out_channels <= DIRECT_CHANNELS && c->rows <= DIRECT_ROWS;
}

/* Images for one product. The library wants results that begin at a multiple of 16 bytes. */
static int64_t images_at_once(const conv *c) {
    int64_t size = etch__item_size(c->y), n = CONV_WORKSPACE / size / c->positions / c->rows;
    if (n >= c->images) return c->images;
    int64_t plane = c->out_channels * c->positions * size, step = 1;
    while (step * plane % 16) step *= 2;
    n = n / step * step;
    return n < step ? step : n;
}

static etch_status by_products(const conv *c) {
    bool half = etch__compute_type(c->y->dtype) != c->y->dtype;
    bool bias = c->bias != ETCH_NONE, in_place = c->at.groups == 1 && !(half && bias);
    int64_t step = images_at_once(c);
    etch_status status = ETCH_OK;
    for (int64_t first = 0; status == ETCH_OK && first < c->images; first += step) {
        int64_t n = c->images - first < step ? c->images - first : step;
        if (in_place) status = batched(c, first, n);
        for (int64_t g = 0; !in_place && status == ETCH_OK && g < c->at.groups; g++)
            status = flat(c, g, first, n);
    }
    return status == ETCH_OK && in_place && bias ? add_bias(c) : status;
}

etch_status etch__cuda_conv_run(const conv *c) {
    return etch__cuda_conv_few(c) ? direct(c) : by_products(c);
}

static etch_status convolution(const op_call *call, etch_tensor *const *outs) {
    conv c = {.x = call->in[0], .bias = call->in[2], .y = outs[0], .site = call->site};
    etch_tensor dense = {.storage = NULL};
    if (!c.y->numel) return ETCH_OK;
    if (!etch__conv_numbers(call, &c.at) || !(c.s = etch__cuda_begin(call, c.y)))
        return etch__tls.status;
    etch_status status = etch__place_dense(call->in[1], &dense, &c.w, NULL);
    if (status == ETCH_OK)
        status = etch__cuda_conv_plan(&c) ? etch__cuda_conv_run(&c) : etch__tls.status;
    etch__place_free(&dense);
    return status;
}

void etch__start_cuda_convolution(void) { etch__cuda_register(OP_CONVOLUTION, convolution); }
