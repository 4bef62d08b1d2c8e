/* Derivatives of pooling. The largest element of a window gets the window's gradient, the first one
 * where there are several; where it is, is found again from the operand. A mean is linear: it and
 * its backward operator pass into each other. */
#include "core/autograd/rules.h"

/* The two dimensions of a plane as one. */
static etch_tensor *flat(etch_tensor *t) { return t ? etch_flatten(t, -2, -1) : NULL; }

RULE(max_pool2d) {
    const int64_t *at = d->at;
    etch_dims kernel = etch__take_dims(&at), stride = etch__take_dims(&at);
    etch_dims padding = etch__take_dims(&at), dilation = etch__take_dims(&at);
    etch_shape sizes = etch__sizes_of(&d->shape[0]), planes = sizes;
    etch_tensor *places =
        flat(etch_max_pool2d_indices(d->in[0], kernel, stride, padding, dilation, *at));
    planes.v[--planes.n - 1] *= sizes.v[sizes.n - 1];
    etch_tensor *const like[] = {d->grad, places};
    etch_tensor *zeros = etch__zeros_batched(dtype_of_rule(d), planes, d->shape[0].device, like, 2);
    d->to[0] = etch_reshape(etch_scatter_add_(zeros, -1, places, flat(grad_of(d))), sizes);
}

RULE(avg_pool2d) {
    const int64_t *at = d->at;
    etch_dims kernel = etch__take_dims(&at), stride = etch__take_dims(&at),
              padding = etch__take_dims(&at);
    d->to[0] = etch_avg_pool2d_backward(d->grad, etch__sizes_of(&d->shape[0]), kernel, stride,
                                        padding, at[0], at[1], at[2]);
}

RULE(avg_pool2d_backward) {
    const int64_t *at = d->at + 1 + d->at[0];
    etch_dims kernel = etch__take_dims(&at), stride = etch__take_dims(&at),
              padding = etch__take_dims(&at);
    d->to[0] = etch_avg_pool2d(d->grad, kernel, stride, padding, at[0], at[1], at[2]);
}
