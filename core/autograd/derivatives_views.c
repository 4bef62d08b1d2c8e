/* Derivatives of views, and of what joins or cuts: the gradient goes back to where its elements
 * were, what was left out gets zeros. */
#include "core/autograd/rules.h"
#include "core/autograd/tape.h"

RULE(reshape) { d->to[0] = etch_reshape(d->grad, etch__sizes_of(&d->shape[0])); }

RULE(t) { d->to[0] = etch_t(d->grad); }

RULE(transpose) { d->to[0] = etch_transpose(d->grad, d->at[0], d->at[1]); }

RULE(permute) {
    etch_dims back = {.n = d->outshape->ndim};
    for (int i = 0; i < back.n; i++) back.v[wrapped_dim(d->at[1 + i], back.n)] = i;
    d->to[0] = etch_permute(d->grad, back);
}

/* ---- parts ---- */

/* The gradient in the part of zeros that the operator saw. */
static void place(const derivative_call *d, etch_tensor *zeros, etch_tensor *part) {
    if (etch_copy_(part, d->grad)) d->to[0] = zeros;
}

/* Number of the first element of a slice with a positive step. */
static int64_t first_of(int64_t start, int64_t size) {
    if (start == ETCH_ABSENT) return 0;
    if (start < 0) start += size;
    return start < 0 ? 0 : start;
}

/* All elements, in one order or the other, need no zeros. */
RULE(slice) {
    int dim = wrapped_dim(d->at[0], d->shape[0].ndim);
    int64_t size = d->shape[0].size[dim], count = d->outshape->size[dim], step = d->at[3];
    if (count == size) {
        bool turned = step < 0;
        d->to[0] = turned ? etch_slice(d->grad, dim, ETCH_ABSENT, ETCH_ABSENT, -1) : d->grad;
        return;
    }
    if (step > 0 && count > 0) {
        int64_t from = first_of(d->at[1], size);
        *d->part = (gradient_part){true, dim, from, count, count > 1 ? step : 1};
        d->to[0] = d->grad;
        return;
    }
    etch_tensor *zeros = zeros_like(d, 0, (etch_dtype)d->outshape->dtype);
    place(d, zeros, etch_slice(zeros, dim, d->at[1], d->at[2], step));
}

RULE(select) {
    int dim = wrapped_dim(d->at[0], d->shape[0].ndim);
    int64_t i = d->at[1] < 0 ? d->at[1] + d->shape[0].size[dim] : d->at[1];
    d->to[0] = etch_unsqueeze(d->grad, dim);
    if (d->shape[0].size[dim] > 1) *d->part = (gradient_part){true, dim, i, 1, 1};
}

RULE(diagonal) {
    etch_tensor *zeros = zeros_like(d, 0, (etch_dtype)d->outshape->dtype);
    place(d, zeros, etch_diagonal(zeros, d->at[0], d->at[1], d->at[2]));
}

RULE(tril) { d->to[0] = etch_tril(d->grad, d->at[0]); }
RULE(triu) { d->to[0] = etch_triu(d->grad, d->at[0]); }

/* ---- windows ---- */

/* Where the elements of all windows were along their dimension, window by window. */
static etch_tensor *places_of_windows(const derivative_call *d, int64_t windows) {
    etch_tensor *first = NULL, *inside = NULL;
    ETCH_ON(d->shape[0].device) {
        first = etch_mul_scalar(etch_arange(ETCH_I64, 0, windows, 1), d->at[2]);
        inside = etch_arange(ETCH_I64, 0, d->at[1], 1);
    }
    return etch_reshape(etch_add(etch_unsqueeze(first, 1), inside), ETCH_SHAPE(-1));
}

/* Windows one behind the other, which have all elements, are another shape of them; with gaps, a
 * part of them. Those that overlap are added. */
RULE(unfold) {
    const value_shape *whole = &d->shape[0];
    int dim = wrapped_dim(d->at[0], whole->ndim);
    if (!whole->ndim) {
        d->to[0] = etch_sum(grad_of(d));
        return;
    }
    int64_t windows = d->outshape->size[dim], length = d->at[1], step = d->at[2];
    bool gaps = step > length || windows * length < whole->size[dim];
    if (step >= length && gaps) {
        etch_tensor *zeros = zeros_like(d, 0, (etch_dtype)d->outshape->dtype);
        place(d, zeros, etch_unfold(zeros, dim, length, step));
        return;
    }
    etch_tensor *g = step < length ? grad_of(d) : d->grad;
    etch_shape size = etch__sizes_of(whole);
    size.v[dim] = windows * length;
    g = etch_reshape(etch_movedim(g, ETCH_DIMS(-1), ETCH_DIMS(dim + 1)), size);
    if (step < length) {
        etch_tensor *zeros = zeros_like(d, 0, dtype_of_rule(d));
        g = etch_index_add_(zeros, dim, places_of_windows(d, windows), g);
    }
    d->to[0] = g;
}

/* A view of any strides, by places in memory. */
RULE(as_strided) { d->to[0] = etch__grad_by_place(d->places, &d->shape[0], d->grad); }

/* ---- joins ---- */

/* A vector of nothing was left out, whatever the dimensions of the others. */
static bool left_out(const value_shape *s) { return s->ndim == 1 && !s->size[0]; }

RULE(cat) {
    int dim = wrapped_dim(d->at[0], d->outshape->ndim);
    int64_t from = 0;
    for (int i = 0; i < d->nin; i++) {
        const value_shape *s = &d->shape[i];
        int64_t n = left_out(s) ? 0 : s->size[dim];
        if (d->wants[i])
            d->to[i] = left_out(s) ? no_slope(d, i) : etch_slice(d->grad, dim, from, from + n, 1);
        from += n;
    }
}
