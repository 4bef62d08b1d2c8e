/* Derivatives of reductions and scans. The gradient of a result gets the reduced dimensions back,
 * of size 1, over which the engine expands it. */
#include "core/autograd/rules.h"
#include "core/autograd/tape.h"
#include "core/transforms/tangent.h"

/* ---- the reduced dimensions ---- */

reduced etch__reduced_of(const derivative_call *d) {
    reduced r = {.size = etch__sizes_of(&d->shape[0]), .count = 1};
    etch__reduced_axes(d->op, r.size.n, d->at, &r.mask, &r.keepdim);
    for (int i = 0; i < r.size.n; i++) {
        if (!(r.mask >> i & 1)) continue;
        r.count *= r.size.v[i];
        r.size.v[i] = 1;
        r.dims.v[r.dims.n++] = i;
    }
    return r;
}

static etch_tensor *kept(const reduced *r, etch_tensor *t) {
    return r->keepdim || !r->dims.n ? t : etch_reshape(t, r->size);
}

/* ---- sums and means ---- */

RULE(sum) {
    reduced r = etch__reduced_of(d);
    d->to[0] = kept(&r, d->grad);
}

RULE(mean) {
    reduced r = etch__reduced_of(d);
    d->to[0] = kept(&r, etch_div_scalar(grad_of(d), (double)r.count));
}

/* ---- the largest and the smallest: shared evenly by all that are; NaNs are where there are some,
 * since the result is one then ---- */

RULE(extreme) {
    reduced r = etch__reduced_of(d);
    etch_tensor *is_result = etch_eq(d->in[0], kept(&r, d->result));
    is_result = etch_logical_or(is_result, etch_isnan(d->in[0]));
    etch_tensor *count = r.dims.n ? etch_sum_dim(is_result, r.dims, true) : NULL;
    etch_tensor *share = kept(&r, grad_of(d));
    if (count) share = etch_div(share, count);
    d->to[0] = etch_masked_fill(share, etch_logical_not(is_result), 0);
}

/* ---- products ---- */

/* t, but the last along dim, behind a 1: moved on by one. */
static etch_tensor *moved_on(const derivative_call *d, etch_tensor *t, int dim) {
    if (!t) return NULL;
    etch_shape one = etch_sizes(t);
    int64_t n = one.v[dim];
    one.v[dim] = 1;
    etch_tensor *parts[2] = {NULL, etch_slice(t, dim, 0, n - 1, 1)};
    ETCH_ON(d->shape[0].device) parts[0] = etch_ones(etch_dtype_of(t), one);
    return parts[0] && parts[1] ? etch_cat(parts, 2, dim) : NULL;
}

/* The product of all others along dim, without a division, since any of them may be 0: of those
 * before times those behind. */
static etch_tensor *product_of_others(const derivative_call *d, etch_tensor *t, int dim) {
    etch_tensor *before = etch_cumprod(moved_on(d, t, dim), dim);
    etch_tensor *flipped = etch_flip(t, ETCH_DIMS(dim));
    etch_tensor *behind = etch_cumprod(moved_on(d, flipped, dim), dim);
    return etch_mul(before, etch_flip(behind, ETCH_DIMS(dim)));
}

RULE(prod) {
    etch_tensor *t = operand(d, 0);
    if (!d->shape[0].ndim) d->to[0] = d->grad;
    else if (!t || !t->numel) d->to[0] = no_slope(d, 0);
    else {
        etch_tensor *flat = etch_reshape(t, ETCH_SHAPE(-1));
        etch_tensor *slope = etch_mul(grad_of(d), product_of_others(d, flat, 0));
        d->to[0] = etch_reshape(slope, etch__sizes_of(&d->shape[0]));
    }
}

RULE(prod_dim) {
    reduced r = etch__reduced_of(d);
    etch_tensor *t = operand(d, 0);
    if (!r.dims.n) d->to[0] = d->grad;
    else if (!t || !t->numel) d->to[0] = no_slope(d, 0);
    else d->to[0] = etch_mul(kept(&r, grad_of(d)), product_of_others(d, t, (int)r.dims.v[0]));
}

/* ---- scans ---- */

/* Of an element and all behind it. */
static etch_tensor *sums_from_behind(etch_tensor *t, int dim) {
    etch_tensor *flipped = etch_flip(t, ETCH_DIMS(dim));
    return etch_flip(etch_cumsum(flipped, dim), ETCH_DIMS(dim));
}

RULE(cumsum) {
    int ndim = d->shape[0].ndim;
    if (!ndim) d->to[0] = d->grad;
    else d->to[0] = sums_from_behind(grad_of(d), wrapped_dim(d->at[0], ndim));
}

/* With y the running products of x, an element gets the sum of g y from there on, divided by it.
 * Behind the first 0 there is nothing, and the first 0 gets the same sum with a 1 in its place. */
static etch_tensor *cumprod_slope(etch_tensor *g, etch_tensor *x, int dim) {
    etch_tensor *zero = etch_eq_scalar(x, 0);
    etch_tensor *zeros = etch_cumsum(zero, dim);
    etch_tensor *first = etch_logical_and(zero, etch_eq_scalar(zeros, 1));
    etch_tensor *filled = etch_masked_fill(x, first, 1);
    etch_tensor *before = sums_from_behind(etch_mul(g, etch_cumprod(x, dim)), dim);
    etch_tensor *at = sums_from_behind(etch_mul(g, etch_cumprod(filled, dim)), dim);
    etch_tensor *sum = etch_div(etch_where(first, at, before), filled);
    etch_tensor *behind = etch_logical_and(etch_gt_scalar(zeros, 0), etch_logical_not(first));
    return etch_masked_fill(sum, behind, 0);
}

/* For gradients of gradients, where the masks above would not do, of rows of n elements: element k
 * gets the product of those before it times the sum over j >= k of g[j] times the product of those
 * between. n^2 of these. */
static etch_tensor *cumprod_slope_of_rows(const derivative_call *d, etch_tensor *g, etch_tensor *x,
                                          int64_t rows, int64_t n) {
    etch_tensor *i = NULL;
    ETCH_ON(d->shape[0].device) i = etch_arange(ETCH_I64, 0, n, 1);
    etch_tensor *k = etch_unsqueeze(i, 1);
    etch_tensor *wide = etch_expand(etch_unsqueeze(x, 1), ETCH_SHAPE(rows, n, n));
    etch_tensor *between = etch_cumprod(etch_masked_fill(wide, etch_le(i, k), 1), 2);
    etch_tensor *terms = etch_mul(etch_unsqueeze(g, 1), between);
    terms = etch_masked_fill(terms, etch_lt(i, k), 0);
    etch_tensor *before = etch_cumprod(moved_on(d, x, 1), 1);
    return etch_mul(before, etch_sum_dim(terms, ETCH_DIMS(2), false));
}

static etch_tensor *as_rows(etch_tensor *t, int dim, int64_t rows, int64_t n) {
    return etch_reshape(etch_transpose(t, dim, -1), ETCH_SHAPE(rows, n));
}

static etch_tensor *exact_cumprod_slope(const derivative_call *d, etch_tensor *g, etch_tensor *x,
                                        int dim) {
    etch_shape size = etch__sizes_of(&d->shape[0]);
    int64_t n = size.v[dim], rows = x ? x->numel / n : 0;
    etch_tensor *slope =
        cumprod_slope_of_rows(d, as_rows(g, dim, rows, n), as_rows(x, dim, rows, n), rows, n);
    size.v[dim] = size.v[size.n - 1];
    size.v[size.n - 1] = n;
    return etch_transpose(etch_reshape(slope, size), dim, -1);
}

/* Whether the gradient is differentiated once more, in either mode. */
static bool is_differentiated(const derivative_call *d) {
    return etch__taping() || etch__tangent_level(d->grad, 0) || etch__tangent_level(d->in[0], 0);
}

RULE(cumprod) {
    int ndim = d->shape[0].ndim, dim = wrapped_dim(d->at[0], ndim);
    etch_tensor *g = grad_of(d), *x = operand(d, 0);
    if (!ndim) d->to[0] = d->grad;
    else if (!x || !x->numel) d->to[0] = no_slope(d, 0);
    else if (is_differentiated(d)) d->to[0] = exact_cumprod_slope(d, g, x, dim);
    else d->to[0] = cumprod_slope(g, x, dim);
}
