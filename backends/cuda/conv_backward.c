/* What a convolution passes back, on a device.
 *
 * To the input: a convolution of the gradient with the kernels turned around. Where there is a
 * stride, or more padding than a kernel reaches, the gradient is laid apart in zeros first.
 *
 * To the weight: for each group the product of the gradient, [channels][images * positions], and
 * the matrix of the input values under the kernel, transposed; images that have no room in one
 * matrix come in parts, which are added in order (of half types: rounded each). Groups of few
 * channels have a kernel of our own. */
#include "backends/cuda/conv.h"
#include "core/base/start.h"

/* ---- to the input ---- */

/* The sizes of the convolution that has been, and copies of its operands. */
typedef struct backward {
    conv c; /* x or w is the result */
    etch_tensor *g;
    etch_tensor apart, turned;
} backward;

/* How far from the edge the first value of the gradient lies, along dimension k. */
static int64_t margin(const conv *c, int k) {
    return c->at.dilation[k] * (c->kernel[k] - 1) - c->at.padding[k];
}

/* Along dimension k of what lies apart: n values of the gradient from `skip` on lie from `first`
 * on. Others are outside, in the padding. */
typedef struct lying {
    int64_t skip, n, first;
} lying;

static lying lying_of(const conv *c, int k, int64_t room) {
    int64_t step = c->at.stride[k], first = margin(c, k);
    int64_t skip = first < 0 ? (-first + step - 1) / step : 0;
    first += skip * step;
    int64_t inside = first < room ? (room - first + step - 1) / step : 0;
    int64_t n = c->out[k] - skip < inside ? c->out[k] - skip : inside;
    return (lying){skip, n < 0 ? 0 : n, first};
}

/* The gradient as a convolution without stride and padding sees it. */
static etch_status lay_apart(backward *b) {
    const conv *c = &b->c;
    int64_t size[4] = {b->g->size[0], b->g->size[1]}, n[4], from = 0, to = 0;
    int64_t stride[4], part_stride[4];
    for (int k = 0; k < 2; k++) size[2 + k] = c->in[k] + c->at.dilation[k] * (c->kernel[k] - 1);
    etch__row_major(4, size, stride);
    memcpy(part_stride, stride, sizeof stride);
    memcpy(n, size, sizeof n);
    for (int k = 0; k < 2; k++) {
        lying l = lying_of(c, k, size[2 + k]);
        from += l.skip * b->g->stride[2 + k], to += l.first * stride[2 + k];
        n[2 + k] = l.n, part_stride[2 + k] *= c->at.stride[k];
    }
    if (!etch__place_new(&b->apart, b->g->dtype, 4, size, b->g->device)) return etch__tls.status;
    etch_tensor *u = &b->apart;
    etch_status status = etch__cuda_conv_op(c, OP_ZERO_, 1, &u, u);
    if (status != ETCH_OK || !n[2] || !n[3]) return status;
    etch_tensor part = etch__place_view(u, to, 4, n, part_stride);
    etch_tensor values = etch__place_view(b->g, from, 4, n, b->g->stride);
    return etch__place_copy(&part, &values, c->site);
}

/* [groups][in_channels][out_channels], each kernel from its end, from weights that are dense. */
static etch_status turn_kernels(backward *b) {
    const conv *c = &b->c;
    int64_t places = c->kernel[0] * c->kernel[1], groups = c->at.groups;
    const int64_t size[5] = {groups, c->in_channels, c->out_channels, c->kernel[0], c->kernel[1]};
    const int64_t stride[5] = {c->out_channels * c->rows, places, c->rows, -c->kernel[1], -1};
    const int64_t whole[4] = {groups * c->in_channels, c->out_channels, size[3], size[4]};
    int64_t packed[5];
    etch__row_major(5, size, packed);
    if (!etch__place_new(&b->turned, c->w->dtype, 4, whole, c->w->device)) return etch__tls.status;
    etch_tensor from = etch__place_view(c->w, places - 1, 5, size, stride);
    etch_tensor to = etch__place_view(&b->turned, 0, 5, size, packed);
    return etch__place_copy(&to, &from, c->site);
}

/* As a convolution of its own. */
static etch_status run_input(backward *b) {
    const conv *c = &b->c;
    bool plain =
        c->at.stride[0] == 1 && c->at.stride[1] == 1 && margin(c, 0) >= 0 && margin(c, 1) >= 0;
    etch_status status = turn_kernels(b);
    if (status == ETCH_OK && !plain) status = lay_apart(b);
    if (status != ETCH_OK) return status;
    conv back = {.s = c->s, .site = c->site, .w = &b->turned, .bias = ETCH_NONE, .y = c->x};
    back.x = plain ? b->g : &b->apart;
    back.at = c->at;
    for (int k = 0; k < 2; k++)
        back.at.stride[k] = 1, back.at.padding[k] = plain ? margin(c, k) : 0;
    return etch__cuda_conv_plan(&back) ? etch__cuda_conv_run(&back) : etch__tls.status;
}

static etch_status zero(const conv *c, etch_tensor *t) {
    return etch__cuda_conv_op(c, OP_ZERO_, 1, &t, t);
}

static bool start(backward *b, const op_call *call, etch_tensor *out) {
    b->c.site = call->site, b->c.bias = ETCH_NONE, b->g = call->in[0];
    return etch__conv_numbers(call, &b->c.at) && (b->c.s = etch__cuda_begin(call, out));
}

/* The sizes of the convolution that has been: its output is the gradient. */
static bool plan(backward *b) {
    b->c.y = b->g;
    return etch__cuda_conv_plan(&b->c);
}

static etch_status backward_input(const op_call *call, etch_tensor *const *outs) {
    backward b = {.c = {.x = outs[0]}};
    etch_tensor dense = {.storage = NULL};
    if (!outs[0]->numel) return ETCH_OK;
    if (!start(&b, call, outs[0])) return etch__tls.status;
    if (!b.g->numel) return zero(&b.c, outs[0]);
    etch_status status = etch__place_dense(call->in[1], &dense, &b.c.w, call->site);
    if (status == ETCH_OK) status = plan(&b) ? run_input(&b) : etch__tls.status;
    etch__place_free(&dense);
    etch__place_free(&b.turned);
    etch__place_free(&b.apart);
    return status;
}

/* ---- to the weight ---- */

#include "embedded/conv_weight.cu.inc"

static etch_status few_weights(const backward *b) {
    const conv *c = &b->c;
    struct {
        const void *x, *g;
        void *y;
        int64_t units, rows, images, channels, group, in_channels, positions;
        conv_window at;
    } a = {etch__ptr(c->x),
           etch__ptr(b->g),
           etch__ptr(c->w),
           c->w->numel,
           c->rows,
           c->images,
           c->at.groups * c->out_channels,
           c->out_channels,
           c->in_channels,
           c->positions,
           etch__cuda_conv_window(c)};
    return etch__cuda_conv_text(c, "etch_weight", conv_weight_text, a.units, &a);
}

/* n images of a group: into sum, on top of what `before` has where it is not NULL. */
static etch_status add_images(const backward *b, int64_t group, int64_t first, int64_t n,
                              etch_tensor *before, etch_tensor *sum) {
    const conv *c = &b->c;
    int64_t columns = n * c->positions, channels = c->at.groups * c->out_channels;
    const int64_t sizes[3] = {c->out_channels, n, c->positions};
    int64_t at = (first * channels + group * c->out_channels) * c->positions;
    etch_tensor g =
        etch__place_view(b->g, at, 3, sizes, (int64_t[]){c->positions, channels * c->positions, 1});
    etch_tensor m = {.storage = NULL}, flat = {.storage = NULL};
    bool ready = etch__place_new(&m, sum->dtype, 2, (int64_t[]){c->rows, columns}, sum->device) &&
                 etch__place_new(&flat, sum->dtype, 3, sizes, sum->device);
    etch_status status =
        ready ? etch__cuda_conv_matrix(c, group, first, n, true, &m) : etch__tls.status;
    if (status == ETCH_OK) status = etch__place_copy(&flat, &g, c->site);
    if (status == ETCH_OK) {
        etch_tensor left = etch__place_view(&flat, 0, 2, (int64_t[]){c->out_channels, columns},
                                            (int64_t[]){columns, 1});
        etch_tensor right =
            etch__place_view(&m, 0, 2, (int64_t[]){columns, c->rows}, (int64_t[]){1, columns});
        etch_tensor *const in[3] = {before, &left, &right};
        status = before ? etch__cuda_conv_op(c, OP_ADDMM, 3, in, sum)
                        : etch__cuda_conv_op(c, OP_MM, 2, in + 1, sum);
    }
    etch__place_free(&m);
    etch__place_free(&flat);
    return status;
}

/* The library wants results that begin at a multiple of 16 bytes: sums of a group are its own. */
static etch_status group_weights(const backward *b, int64_t group) {
    const conv *c = &b->c;
    const int64_t size[2] = {c->out_channels, c->rows};
    int64_t step = CONV_WORKSPACE / etch__item_size(c->w) / c->positions / c->rows;
    etch_tensor sum[2] = {{.storage = NULL}, {.storage = NULL}};
    etch_status status = ETCH_OK;
    int last = 1;
    if (step < 1) step = 1;
    for (int64_t at = 0; status == ETCH_OK && at < c->images; at += step) {
        int64_t n = c->images - at < step ? c->images - at : step;
        etch_tensor *before = at ? &sum[last] : NULL, *now = &sum[last = 1 - last];
        bool ready = now->storage || etch__place_new(now, c->w->dtype, 2, size, c->w->device);
        status = ready ? add_images(b, group, at, n, before, now) : etch__tls.status;
    }
    if (status == ETCH_OK) {
        etch_tensor to =
            etch__place_view(c->w, group * size[0] * size[1], 2, size, (int64_t[]){c->rows, 1});
        status = etch__place_copy(&to, &sum[last], c->site);
    }
    for (int k = 0; k < 2; k++) etch__place_free(&sum[k]);
    return status;
}

static etch_status run_weight(const backward *b) {
    etch_status status = ETCH_OK;
    if (etch__cuda_conv_few(&b->c)) return few_weights(b);
    for (int64_t k = 0; status == ETCH_OK && k < b->c.at.groups; k++) status = group_weights(b, k);
    return status;
}

static etch_status backward_weight(const op_call *call, etch_tensor *const *outs) {
    backward b = {.c = {.x = call->in[1], .w = outs[0]}};
    etch_tensor dense = {.storage = NULL};
    if (!outs[0]->numel) return ETCH_OK;
    if (!start(&b, call, outs[0])) return etch__tls.status;
    if (!b.g->numel) return zero(&b.c, outs[0]);
    etch_status status = etch__place_dense(call->in[0], &dense, &b.g, call->site);
    if (status == ETCH_OK) status = plan(&b) ? run_weight(&b) : etch__tls.status;
    etch__place_free(&dense);
    return status;
}

void etch__start_cuda_convolution_backward(void) {
    etch__cuda_register(OP_CONVOLUTION_BACKWARD_INPUT, backward_input);
    etch__cuda_register(OP_CONVOLUTION_BACKWARD_WEIGHT, backward_weight);
}
