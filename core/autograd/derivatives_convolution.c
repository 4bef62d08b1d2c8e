/* Derivatives of convolution and of its backward operators. Each is linear in both operands, so the
 * three pass into each other: with y = x * w, of the gradient of x that of y is a convolution with
 * w, and so on. */
#include "core/autograd/rules.h"

typedef struct conv {
    etch_dims given; /* of backward operators: the sizes of the result */
    etch_dims stride, padding, dilation;
    int64_t groups;
} conv;

static conv conv_of(const derivative_call *d, bool backward) {
    conv c = {.groups = 0};
    const int64_t *at = d->at;
    if (backward) c.given = etch__take_dims(&at);
    c.stride = etch__take_dims(&at), c.padding = etch__take_dims(&at),
    c.dilation = etch__take_dims(&at);
    c.groups = *at;
    return c;
}

static etch_tensor *forward(const conv *c, etch_tensor *x, etch_tensor *w) {
    return etch_convolution(x, w, ETCH_NONE, c->stride, c->padding, c->dilation, c->groups);
}
static etch_tensor *to_input(const conv *c, etch_tensor *g, etch_tensor *w, etch_shape size) {
    return etch_convolution_backward_input(g, w, size, c->stride, c->padding, c->dilation,
                                           c->groups);
}
static etch_tensor *to_weight(const conv *c, etch_tensor *g, etch_tensor *x, etch_shape size) {
    return etch_convolution_backward_weight(g, x, size, c->stride, c->padding, c->dilation,
                                            c->groups);
}

RULE(convolution) {
    conv c = conv_of(d, false);
    etch_shape x = etch__sizes_of(&d->shape[0]), w = etch__sizes_of(&d->shape[1]);
    if (d->wants[0]) d->to[0] = to_input(&c, d->grad, d->in[1], x);
    if (d->wants[1]) d->to[1] = to_weight(&c, d->grad, d->in[0], w);
    if (d->wants[2]) d->to[2] = etch_sum_dim(d->grad, ETCH_DIMS(0, 2, 3), false);
}

RULE(convolution_backward_input) {
    conv c = conv_of(d, true);
    etch_shape w = etch__sizes_of(&d->shape[1]);
    if (d->wants[0]) d->to[0] = forward(&c, d->grad, d->in[1]);
    if (d->wants[1]) d->to[1] = to_weight(&c, d->in[0], d->grad, w);
}

RULE(convolution_backward_weight) {
    conv c = conv_of(d, true);
    etch_shape x = etch__sizes_of(&d->shape[1]);
    if (d->wants[0]) d->to[0] = forward(&c, d->in[1], d->grad);
    if (d->wants[1]) d->to[1] = to_input(&c, d->in[0], d->grad, x);
}
