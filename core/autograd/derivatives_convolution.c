/* Derivatives of convolution, which are convolutions: that of the input is one of the gradient,
 * moved apart by the stride, with the kernels turned around; that of the weight is one of the input
 * with the gradient as its kernels, where images and channels change places and so do stride and
 * dilation. */
#include "core/autograd/rules.h"

#include "core/ops/rules.h"

typedef struct conv {
    conv_numbers at;
    int64_t images, groups, in_channels, out_channels; /* channels of a group */
    const int64_t *in, *out, *kernel;                  /* two sizes each */
} conv;

static conv conv_of(const derivative_call *d) {
    const value_shape *x = &d->shape[0], *w = &d->shape[1];
    conv c = {.images = x->size[0],
              .in = x->size + 2,
              .out = d->outshape->size + 2,
              .kernel = w->size + 2,
              .in_channels = w->size[1]};
    const op_call call = {.op = d->op, .at = d->at};
    etch__conv_numbers(&call, &c.at);
    c.groups = c.at.groups;
    c.out_channels = w->size[0] / c.groups;
    return c;
}

/* ---- of the input ---- */

/* Each kernel from its end, for the other direction. */
static etch_tensor *turned(const conv *c, etch_tensor *w) {
    w = etch_flip(w, ETCH_DIMS(2, 3));
    w = etch_reshape(
        w, ETCH_SHAPE(c->groups, c->out_channels, c->in_channels, c->kernel[0], c->kernel[1]));
    return etch_reshape(
        etch_transpose(w, 1, 2),
        ETCH_SHAPE(c->groups * c->in_channels, c->out_channels, c->kernel[0], c->kernel[1]));
}

/* How far from the edge the first value of the gradient lies, along dimension k. */
static int64_t margin(const conv *c, int k) {
    return c->at.dilation[k] * (c->kernel[k] - 1) - c->at.padding[k];
}

/* Along dimension 2 + k: the part of g that lies inside, and where in zeros it lies. */
static bool lay(const conv *c, int k, etch_tensor **g, etch_tensor **zeros) {
    int64_t step = c->at.stride[k], first = margin(c, k),
            room = c->in[k] + first + c->at.padding[k];
    int64_t skip = first < 0 ? (-first + step - 1) / step : 0, n = c->out[k];
    first += skip * step;
    int64_t inside = first < room ? (room - first + step - 1) / step : 0;
    if (skip + inside < n) n = skip + inside;
    *g = etch_slice(*g, 2 + k, skip, n, 1);
    *zeros =
        etch_slice(*zeros, 2 + k, first, first + (n > skip ? (n - skip - 1) * step + 1 : 0), step);
    return *g && *zeros;
}

/* The gradient as a convolution without stride and padding sees it. */
static etch_tensor *moved_apart(const conv *c, const derivative_call *d) {
    etch_shape size = etch__sizes_of(d->outshape);
    for (int k = 0; k < 2; k++) size.v[2 + k] = c->in[k] + c->at.dilation[k] * (c->kernel[k] - 1);
    etch_tensor *zeros = zeros_of(d->outshape, etch_dtype_of(d->grad), size);
    etch_tensor *part = zeros, *g = d->grad;
    if (!lay(c, 0, &g, &part) || !lay(c, 1, &g, &part)) return NULL;
    return etch_copy_(part, g) ? zeros : NULL;
}

static etch_tensor *input_slope(const conv *c, const derivative_call *d) {
    etch_dims dilation = {2, {c->at.dilation[0], c->at.dilation[1]}};
    etch_dims pad = {2, {margin(c, 0), margin(c, 1)}}, one = {1, {1}};
    bool plain = pad.v[0] >= 0 && pad.v[1] >= 0 && c->at.stride[0] == 1 && c->at.stride[1] == 1;
    etch_tensor *g = plain ? d->grad : moved_apart(c, d);
    if (!plain) pad = ETCH_DIMS(0);
    return etch_convolution(g, turned(c, d->in[1]), ETCH_NONE, one, pad, dilation, c->groups);
}

/* ---- of the weight ---- */

/* [images][group][channel] to [channel][group][images], or for the kernels to
 * [group][channel][images], with the first two as one. */
static etch_tensor *exchanged(const conv *c, etch_tensor *t, int64_t channels, const int64_t *size,
                              bool kernels) {
    t = etch_reshape(t, ETCH_SHAPE(c->images, c->groups, channels, size[0], size[1]));
    t = etch_permute(t, kernels ? ETCH_DIMS(1, 2, 0, 3, 4) : ETCH_DIMS(2, 1, 0, 3, 4));
    return etch_reshape(t, kernels ? ETCH_SHAPE(c->groups * channels, c->images, size[0], size[1])
                                   : ETCH_SHAPE(channels, c->groups * c->images, size[0], size[1]));
}

/* What the stride has left over at the end of the input would give more places than kernels
 * have. */
static etch_tensor *weight_slope(const conv *c, const derivative_call *d) {
    etch_dims stride = {2, {c->at.stride[0], c->at.stride[1]}};
    etch_dims pad = {2, {c->at.padding[0], c->at.padding[1]}};
    etch_dims dilation = {2, {c->at.dilation[0], c->at.dilation[1]}};
    etch_tensor *x = exchanged(c, d->in[0], c->in_channels, c->in, false);
    etch_tensor *g = exchanged(c, d->grad, c->out_channels, c->out, true);
    etch_tensor *w = etch_convolution(x, g, ETCH_NONE, dilation, pad, stride, c->groups);
    for (int k = 0; k < 2; k++) w = etch_slice(w, 2 + k, 0, c->kernel[k], 1);
    return etch_transpose(w, 0, 1);
}

RULE(convolution) {
    conv c = conv_of(d);
    bool nothing = !c.images || !c.out_channels;
    if (d->wants[0]) d->to[0] = nothing ? no_slope(d, 0) : input_slope(&c, d);
    if (d->wants[1]) d->to[1] = nothing ? no_slope(d, 1) : weight_slope(&c, d);
    if (d->wants[2]) d->to[2] = etch_sum_dim(grad_of(d), ETCH_DIMS(0, 2, 3), false);
}
