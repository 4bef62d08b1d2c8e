/* Batching rules of products, layer norm, convolution and pooling. A factor that has no batch is
 * not copied for each sample where the others' batch can go into its rows, or into a convolution's
 * images. */
#include "core/transforms/rules.h"

/* ---- matrices ---- */

/* [batch, n, k] times one [k, m]: one product of batch x n rows. */
static etch_tensor *rows_times(const batched_call *b, etch_tensor *x, etch_tensor *w) {
    etch_tensor *rows = etch_reshape(x, ETCH_SHAPE(b->size * x->size[1], x->size[2]));
    etch_tensor *y = etch_mm(rows, w);
    return y ? etch_view(y, ETCH_SHAPE(b->size, x->size[1], w->size[1])) : NULL;
}

/* Operands i and k as a product of matrices. */
static etch_tensor *product(const batched_call *b, int i, int k) {
    if (!b->batched[k]) return rows_times(b, b->in[i], b->in[k]);
    return etch_bmm(etch__with_batch(b, i), etch__with_batch(b, k));
}

BATCHING(mm) { return product(b, 0, 1); }

static etch_tensor *times(etch_tensor *t, etch_scalar s) {
    return etch__scalar_is(s, 1) ? t : etch_mul_scalar(t, s);
}

/* beta times self and alpha times the product; a beta of 0 takes no NaN from self. */
BATCHING(addmm) {
    etch_scalar beta = b->call->sc[0], alpha = b->call->sc[1];
    bool one_product = !b->batched[1] && !b->batched[2];
    etch_tensor *y = one_product ? etch_mm(b->in[1], b->in[2]) : product(b, 1, 2);
    y = times(y, alpha);
    etch_tensor *self = etch__scalar_is(beta, 0) ? NULL : times(etch__padded(b, 0, 2), beta);
    if (!etch__scalar_is(beta, 0)) y = etch_add(self, y);
    if (y && y->ndim == 2) y = etch_expand(etch_unsqueeze(y, 0), BATCH_AND(b, b->one));
    return y;
}

/* ---- vectors ---- */

BATCHING(mv) {
    etch_tensor *m = b->in[0], *v = etch__with_batch(b, 1);
    if (!b->batched[0]) return etch_mm(v, etch_t(m));
    if (!b->batched[1]) {
        etch_tensor *rows = etch_reshape(m, ETCH_SHAPE(b->size * m->size[1], m->size[2]));
        return etch__as_result(b, etch_mv(rows, b->in[1]));
    }
    return etch__as_result(b, etch_bmm(m, etch_unsqueeze(v, 2)));
}

BATCHING(dot) {
    etch_tensor *x = etch__with_batch(b, 0), *y = etch__with_batch(b, 1);
    return etch__as_result(b, etch_bmm(etch_unsqueeze(x, 1), etch_unsqueeze(y, 2)));
}

/* ---- batches of matrices: batches of batches ---- */

static etch_tensor *as_matrices(const batched_call *b, int i) {
    etch_tensor *t = etch__with_batch(b, i);
    return t ? etch_reshape(t, ETCH_SHAPE(t->size[0] * t->size[1], t->size[2], t->size[3])) : NULL;
}

BATCHING(bmm) { return etch__as_result(b, etch_bmm(as_matrices(b, 0), as_matrices(b, 1))); }

/* The batch goes before the rows of x. */
BATCHING(linear_q) {
    if (b->batched[1] || b->batched[2]) return etch__batching_each_sample(b);
    return call_again(b, b->in, b->call->at, b->call->nat);
}

/* ---- layer norm ---- */

/* Weight and bias of each sample go behind the dimensions that are normalised one by one. */
static etch_tensor *for_rows(const batched_call *b, int i) {
    return b->batched[i] ? etch__padded(b, i, b->one->ndim) : b->in[i];
}

BATCHING(layer_norm) {
    const op_call *c = b->call;
    if (!b->batched[1] && !b->batched[2]) return call_again(b, b->in, c->at, c->nat);
    etch_tensor *in[] = {b->in[0], ETCH_NONE, ETCH_NONE};
    etch_tensor *y = call_again(b, in, c->at, c->nat);
    if (b->in[1] != ETCH_NONE) y = etch_mul(y, for_rows(b, 1));
    if (b->in[2] != ETCH_NONE) y = etch_add(y, for_rows(b, 2));
    return y;
}

/* ---- convolution ---- */

/* stride, padding, dilation, groups, from attribute `from` on. */
typedef struct conv {
    etch_dims stride, padding, dilation;
    int64_t groups;
} conv;

static conv conv_of(const batched_call *b, bool backward) {
    const int64_t *at = b->call->at;
    conv c;
    if (backward) etch__take_dims(&at);
    c.stride = etch__take_dims(&at), c.padding = etch__take_dims(&at),
    c.dilation = etch__take_dims(&at);
    c.groups = *at;
    return c;
}

/* Dimensions d and d + 1 as one. */
static etch_tensor *joined(etch_tensor *t, int d) {
    if (!t) return NULL;
    etch_shape s = {.n = t->ndim - 1};
    for (int i = 0; i < s.n; i++) s.v[i] = t->size[i < d ? i : i + 1];
    s.v[d] = t->size[d] * t->size[d + 1];
    return etch_reshape(t, s);
}

/* Images of all samples behind each other. */
static etch_tensor *as_images(const batched_call *b, int i) {
    return joined(etch__with_batch(b, i), 0);
}
/* [batch, images, channels, ...] as images of batch x channels, so that each sample is a group. */
static etch_tensor *as_channels(const batched_call *b, int i) {
    etch_tensor *t = etch__with_batch(b, i);
    return t ? joined(etch_transpose(t, 0, 1), 1) : NULL;
}
/* [images, batch x channels, ...] back to samples, which have the sizes of the result. */
static etch_tensor *from_channels(const batched_call *b, etch_tensor *t) {
    etch_shape s = {.n = 5, .v = {b->one->size[0], b->size}};
    for (int d = 1; d < b->one->ndim; d++) s.v[d + 1] = b->one->size[d];
    t = etch_reshape(t, s);
    return t ? etch_transpose(t, 0, 1) : NULL;
}

static etch_tensor *plus_bias(const batched_call *b, etch_tensor *y) {
    if (b->in[2] == ETCH_NONE || !y) return y;
    etch_tensor *bias = b->in[2];
    int64_t batch = b->batched[2] ? b->size : 1;
    bias = etch_reshape(bias, ETCH_SHAPE(batch, 1, b->call->in[2]->size[0], 1, 1));
    return etch_add(y, bias);
}

BATCHING(convolution) {
    conv c = conv_of(b, false);
    if (!b->batched[1] && !b->batched[2])
        return etch__as_result(b, etch_convolution(as_images(b, 0), b->in[1], b->in[2], c.stride,
                                                   c.padding, c.dilation, c.groups));
    etch_tensor *y;
    if (b->batched[1])
        y = from_channels(b, etch_convolution(as_channels(b, 0), as_images(b, 1), ETCH_NONE,
                                              c.stride, c.padding, c.dilation, c.groups * b->size));
    else
        y = etch__as_result(b, etch_convolution(as_images(b, 0), b->in[1], ETCH_NONE, c.stride,
                                                c.padding, c.dilation, c.groups));
    return plus_bias(b, y);
}

static etch_shape sizes_of_result(const batched_call *b) {
    etch_shape s = {.n = b->one->ndim};
    memcpy(s.v, b->one->size, b->one->ndim * sizeof *s.v);
    return s;
}

BATCHING(convolution_backward_input) {
    conv c = conv_of(b, true);
    etch_shape s = sizes_of_result(b);
    if (!b->batched[1]) {
        s.v[0] *= b->size;
        return etch__as_result(b, etch_convolution_backward_input(as_images(b, 0), b->in[1], s,
                                                                  c.stride, c.padding, c.dilation,
                                                                  c.groups));
    }
    s.v[1] *= b->size;
    return from_channels(b, etch_convolution_backward_input(as_channels(b, 0), as_images(b, 1), s,
                                                            c.stride, c.padding, c.dilation,
                                                            c.groups * b->size));
}

/* Each sample has a weight of its own. */
BATCHING(convolution_backward_weight) {
    conv c = conv_of(b, true);
    etch_shape s = sizes_of_result(b);
    s.v[0] *= b->size;
    return etch__as_result(b, etch_convolution_backward_weight(as_channels(b, 0), as_channels(b, 1),
                                                               s, c.stride, c.padding, c.dilation,
                                                               c.groups * b->size));
}

/* ---- pooling ---- */

/* The list of input sizes in front of the attributes, of all samples. */
static int all_images(const batched_call *b, int64_t *at, int nat) {
    if (at[0] == 4) {
        at[1] *= b->size;
        return nat;
    }
    memmove(at + 2, at + 1, (size_t)(nat - 1) * sizeof *at);
    at[0]++, at[1] = b->size;
    return nat + 1;
}

/* A batch of single images is one of images. */
BATCHING(pool) {
    int64_t at[OP_MAX_ATTRS];
    int nat = b->call->nat;
    etch_tensor *x = ndim_of_sample(b, 0) == 4 ? as_images(b, 0) : etch__with_batch(b, 0);
    memcpy(at, b->call->at, (size_t)nat * sizeof *at);
    if (b->call->op == OP_AVG_POOL2D_BACKWARD) nat = all_images(b, at, nat);
    return etch__as_result(b, call_again(b, &x, at, nat));
}
