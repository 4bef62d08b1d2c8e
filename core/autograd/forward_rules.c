/* Rules of forward mode: the tangent of a result from those of the operands. See
 * derivatives.def. */
#include "core/autograd/forward.h"
#include "core/autograd/rules.h"

#include "core/dispatch/call.h"

etch_tensor *etch__fit_tangent(etch_tensor *t, const value_shape *shape) {
    if (t && t->device != shape->device) t = etch_to_device(t, shape->device);
    if (t && !SAME_SIZES(t, shape)) t = etch_expand(t, etch__sizes_of(shape));
    if (t && t->dtype != shape->dtype) t = etch_to(t, (etch_dtype)shape->dtype);
    return t;
}

/* ---- sums of what the operands contribute ---- */

static bool has_tangent(const forward_call *f, int i) {
    return f->tangent[i] && !(etch__derivative_reads(f->derivative, i) & NO_GRADIENT);
}

static etch_tensor *plus(etch_tensor *sum, etch_tensor *t) {
    return sum && t ? etch_add(sum, t) : t;
}

/* The operator with one operand, or all, replaced. */
static etch_tensor *call_with(const forward_call *f, etch_tensor *const *in,
                              const etch_scalar *sc) {
    const op_call *c = f->call;
    return etch__operator(c->op, in, c->nin, sc, c->nsc, c->at, c->nat, c->site);
}

/* ---- symmetric: pointwise operators, softmax ---- */

static etch_tensor *by_derivative(const forward_call *f, int i) {
    derivative_call d = *f->d;
    bool wants[3] = {i == 0, i == 1, i == 2};
    etch_tensor *to[3] = {NULL};
    gradient_part part = {.some = false};
    d.grad = etch__fit_tangent(f->tangent[i], d.outshape);
    d.wants = wants, d.to = to, d.part = &part;
    if (d.grad) f->derivative->rule(&d);
    return to[i] ? etch__fit_tangent(to[i], d.outshape) : NULL;
}

FORWARD(SYMMETRIC) {
    if (etch__ops[f->call->op].kind == KIND_VIEW || f->call->op == OP_TO_DEVICE)
        return etch__forward_LINEAR(f);
    etch_tensor *sum = NULL;
    for (int i = 0; i < f->d->nin; i++)
        if (has_tangent(f, i) && !(sum = plus(sum, by_derivative(f, i)))) return NULL;
    return sum;
}

/* ---- linear in all operands together ---- */

/* in: room for the operands. */
static etch_tensor *on_tangents(const forward_call *f, etch_tensor **in) {
    etch_scalar sc[OP_MAX_SCALARS];
    for (int i = 0; i < f->call->nsc; i++) sc[i] = etch_scalar_int(0);
    for (int i = 0; i < f->d->nin; i++) {
        bool apart = etch__derivative_reads(f->derivative, i) & NO_GRADIENT ||
                     !etch__is_float(f->d->shape[i].dtype);
        in[i] = apart ? f->d->in[i] : f->tangent[i] ? f->tangent[i] : etch_zeros_like(f->d->in[i]);
        if (!in[i]) return NULL;
    }
    return call_with(f, in, sc);
}

FORWARD(LINEAR) {
    etch_tensor **in = etch__calloc((size_t)f->d->nin, sizeof *in);
    etch_tensor *t = in ? on_tangents(f, in) : NULL;
    etch__free(in);
    return t;
}

/* ---- products ---- */

/* The call with the tangent of operand i in its place; of the others, `keep` as they are. */
static etch_tensor *with_tangent(const forward_call *f, int i, int keep) {
    etch_tensor *in[SAVED_OPERANDS];
    for (int k = 0; k < f->d->nin; k++)
        in[k] = k == i ? f->tangent[k] : k < keep ? f->d->in[k] : ETCH_NONE;
    return call_with(f, in, f->call->sc);
}

FORWARD(FACTORS) {
    etch_tensor *sum = NULL;
    for (int i = 0; i < f->d->nin; i++)
        if (has_tangent(f, i) && !(sum = plus(sum, with_tangent(f, i, f->d->nin)))) return NULL;
    return sum;
}

FORWARD(addmm) {
    etch_tensor *const *in = f->d->in, *const *t = f->tangent;
    etch_scalar beta = f->call->sc[0], alpha = f->call->sc[1];
    etch_tensor *sum = NULL;
    if (t[1]) sum = plus(sum, times(etch_mm(t[1], in[2]), alpha));
    if (t[2]) sum = plus(sum, times(etch_mm(in[1], t[2]), alpha));
    if (t[0]) sum = plus(sum, times(t[0], beta));
    return sum;
}

FORWARD(convolution) {
    etch_tensor *sum = NULL;
    for (int i = 0; i < 2; i++)
        if (f->tangent[i] && !(sum = plus(sum, with_tangent(f, i, 2)))) return NULL;
    if (!f->tangent[2]) return sum;
    etch_tensor *bias = etch_reshape(f->tangent[2], ETCH_SHAPE(-1, 1, 1));
    return sum ? etch_add(sum, bias) : bias;
}

/* ---- pooling ---- */

/* That of the element which is the largest of its window. */
FORWARD(max_pool2d) {
    const int64_t *at = f->d->at;
    etch_dims kernel = etch__take_dims(&at), stride = etch__take_dims(&at);
    etch_dims padding = etch__take_dims(&at), dilation = etch__take_dims(&at);
    etch_tensor *places =
        etch_max_pool2d_indices(f->d->in[0], kernel, stride, padding, dilation, *at);
    etch_tensor *planes = etch_flatten(f->tangent[0], -2, -1);
    etch_tensor *t = etch_gather(planes, -1, etch_flatten(places, -2, -1));
    return etch_reshape(t, etch__sizes_of(f->d->outshape));
}

/* ---- reductions ---- */

static etch_tensor *summed(const forward_call *f, const reduced *r, etch_tensor *t) {
    if (r->dims.n) t = etch_sum_dim(t, r->dims, true);
    return etch_reshape(t, etch__sizes_of(f->d->outshape));
}

static etch_tensor *tangent_of(const forward_call *f, int i) {
    return in_dtype(f->tangent[i], dtype_of_rule(f->d));
}

/* The mean over all that are the result, as the gradient is shared among them. */
FORWARD(extreme) {
    const derivative_call *d = f->d;
    reduced r = etch__reduced_of(d);
    etch_tensor *y = etch_reshape(d->result, r.size);
    etch_tensor *is_result = etch_logical_or(etch_eq(d->in[0], y), etch_isnan(d->in[0]));
    etch_tensor *t = etch_masked_fill(tangent_of(f, 0), etch_logical_not(is_result), 0);
    etch_tensor *count = summed(f, &r, etch_to(is_result, dtype_of_rule(d)));
    return etch_div(summed(f, &r, t), count);
}

/* Each element's tangent times the product of all others along dim, without a division. */
static etch_tensor *with_one_replaced(const forward_call *f, etch_tensor *t, int dim,
                                      bool running) {
    etch_tensor *x = operand(f->d, 0);
    int64_t n = x ? x->size[dim] : 0;
    etch_shape wide = x ? etch_sizes(x) : (etch_shape){0};
    etch_tensor *i = NULL;
    if (!x || wide.n == ETCH_MAX_DIMS)
        return x ? etch__null_at(NULL, ETCH_ERR_SHAPE,
                                 "prod: expected at most %d dimensions in forward mode",
                                 ETCH_MAX_DIMS - 1)
                 : NULL;
    ETCH_ON(x->device) i = etch_arange(ETCH_I64, 0, n, 1);
    etch_tensor *last = etch_movedim(x, ETCH_DIMS(dim), ETCH_DIMS(-1)); /* [..., n] */
    etch_shape s = etch_sizes(last);
    s.v[s.n] = s.v[s.n - 1], s.v[s.n - 1] = n, s.n++;
    etch_tensor *rows = etch_expand(etch_unsqueeze(last, -2), s); /* row j: without element j */
    etch_tensor *same = etch_eq(etch_unsqueeze(i, 1), i);
    etch_tensor *products = etch_cumprod(etch_masked_fill(rows, same, 1), -1);
    t = etch_unsqueeze(etch_movedim(t, ETCH_DIMS(dim), ETCH_DIMS(-1)), -1);
    etch_tensor *terms = etch_mul(products, t);
    if (running) terms = etch_masked_fill(terms, etch_gt(etch_unsqueeze(i, 1), i), 0);
    else terms = etch_select(terms, -1, -1);
    etch_tensor *sum = etch_sum_dim(terms, ETCH_DIMS(running ? -2 : -1), false);
    return running ? etch_movedim(sum, ETCH_DIMS(-1), ETCH_DIMS(dim)) : sum;
}

/* Of no elements the product is 1, whatever. */
static etch_tensor *of_nothing(const forward_call *f) {
    return zeros_of(f->d->outshape, dtype_of_rule(f->d), etch__sizes_of(f->d->outshape));
}

FORWARD(prod) {
    const value_shape *s = &f->d->shape[0];
    etch_tensor *x = f->d->in[0];
    if (!s->ndim) return f->tangent[0];
    if (!x->numel) return of_nothing(f);
    etch_tensor *flat = etch_reshape(x, ETCH_SHAPE(-1));
    derivative_call d = *f->d;
    forward_call g = *f;
    d.in = &flat, g.d = &d;
    etch_tensor *t = etch_reshape(tangent_of(f, 0), ETCH_SHAPE(-1));
    return flat ? with_one_replaced(&g, t, 0, false) : NULL;
}

FORWARD(prod_dim) {
    reduced r = etch__reduced_of(f->d);
    if (!r.dims.n) return f->tangent[0];
    if (!f->d->in[0]->numel) return of_nothing(f);
    etch_tensor *t = with_one_replaced(f, tangent_of(f, 0), (int)r.dims.v[0], false);
    return t ? etch_reshape(t, etch__sizes_of(f->d->outshape)) : NULL;
}

FORWARD(cumprod) {
    int ndim = f->d->shape[0].ndim;
    if (!ndim) return f->tangent[0];
    if (!f->d->in[0]->numel) return of_nothing(f);
    return with_one_replaced(f, tangent_of(f, 0), wrapped_dim(f->d->at[0], ndim), true);
}

/* ---- normalisations ---- */

/* t - sum of exp(y) t */
FORWARD(log_softmax) {
    etch_tensor *t = tangent_of(f, 0);
    etch_tensor *mean = etch_mul(etch_exp(result(f->d)), t);
    return etch_sub(t, etch_sum_dim(mean, ETCH_DIMS(f->d->at[0]), true));
}

/* What the input, the weight and the bias contribute. */
FORWARD(native_layer_norm) {
    norm n = etch__norm_of(f->d);
    etch_tensor *sum = NULL;
    if (f->tangent[0]) sum = etch__norm_slope(&n, tangent_of(f, 0));
    if (sum && f->d->in[1] != ETCH_NONE) sum = etch_mul(sum, operand(f->d, 1));
    if (f->tangent[1]) sum = plus(sum, etch_mul(n.x, tangent_of(f, 1)));
    if (f->tangent[2]) sum = plus(sum, tangent_of(f, 2));
    return sum;
}

/* ---- weights of few bits ---- */

FORWARD(linear_q) {
    const derivative_call *d = f->d;
    int64_t columns = d->shape[0].size[d->shape[0].ndim - 1];
    etch_tensor *w = etch_dequantize_weight(d->in[1], d->in[2], columns);
    return w ? etch_linear(tangent_of(f, 0), in_dtype(w, dtype_of_rule(d)), ETCH_NONE) : NULL;
}
