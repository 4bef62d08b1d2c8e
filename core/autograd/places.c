/* Gradients by place: what views made anew, writes through views, and views of any strides pass on,
 * in a flat tensor that stands for the memory in which the base lies. See tape.h. */
#include "core/autograd/tape.h"

#include <etch/etch.h>

#include <stdlib.h>

/* ---- places ---- */

/* The lowest and highest element of a place. */
static void reach_of(const tensor_meta *p, int64_t *low, int64_t *high) {
    *low = *high = p->offset;
    for (int d = 0; d < p->ndim; d++) {
        int64_t far = (p->size[d] - 1) * p->stride[d];
        *(far < 0 ? low : high) += far;
    }
}

static bool is_empty(const tensor_meta *p) {
    for (int d = 0; d < p->ndim; d++)
        if (!p->size[d]) return true;
    return false;
}

/* The view of a flat tensor, whose first element is number `first`, that lies where p does. */
static etch_tensor *lay(etch_tensor *flat, int64_t first, const tensor_meta *p) {
    int64_t low, high;
    etch_dims size = {.n = p->ndim}, stride = {.n = p->ndim};
    reach_of(p, &low, &high);
    for (int d = 0; d < p->ndim; d++) {
        size.v[d] = p->size[d];
        stride.v[d] = p->stride[d] < 0 ? -p->stride[d] : p->stride[d];
    }
    etch_tensor *t = etch_slice(flat, 0, low - first, high - first + 1, 1);
    t = etch_as_strided(t, size, stride);
    for (int d = 0; t && d < p->ndim; d++)
        if (p->stride[d] < 0) t = etch_slice(t, d, ETCH_ABSENT, ETCH_ABSENT, -1);
    return t;
}

/* Batched as the gradient is that is to be written into them. */
static etch_tensor *zeros(etch_tensor *grad, const value_shape *like, etch_shape size) {
    return etch__zeros_batched((etch_dtype)like->dtype, size, like->device, &grad, 1);
}

static etch_tensor *zeros_for(const tensor_meta *base, etch_tensor *grad, const value_shape *like) {
    int64_t low, high;
    reach_of(base, &low, &high);
    return zeros(grad, like, ETCH_SHAPE(high - low + 1));
}

etch_tensor *etch__laid_as(const tensor_meta *place, etch_tensor *grad) {
    int64_t low, high;
    value_shape like = {.dtype = place->dtype, .device = place->device};
    if (is_empty(place)) return etch_clone(grad);
    reach_of(place, &low, &high);
    etch_tensor *flat = zeros_for(place, grad, &like);
    return flat ? lay(flat, low, place) : NULL;
}

/* A flat copy of the memory of which grad is the gradient, where the base lies. */
static etch_tensor *flattened(const tensor_meta *base, etch_tensor *grad, const value_shape *like) {
    int64_t low, high;
    reach_of(base, &low, &high);
    etch_tensor *flat = zeros_for(base, grad, like);
    etch_tensor *at = flat ? lay(flat, low, base) : NULL;
    return at && etch_copy_(at, grad) ? flat : NULL;
}

/* The element numbers of a place, in row-major order, as a flat tensor of integers. */
static etch_tensor *numbers_of(const tensor_meta *p, int64_t first) {
    etch_tensor *sum = NULL;
    ETCH_ON(p->device) sum = etch_full(ETCH_I64, ETCH_SHAPE(1), p->offset - first);
    for (int d = 0; sum && d < p->ndim; d++) {
        etch_tensor *steps = NULL;
        ETCH_ON(p->device) steps = etch_arange(ETCH_I64, 0, p->size[d], 1);
        steps = etch_mul_scalar(steps, p->stride[d]);
        sum = etch_add(etch_unsqueeze(sum, -1), steps);
        sum = etch_reshape(sum, ETCH_SHAPE(-1));
    }
    return sum;
}

/* Whether elements of a place may share memory: its strides, in rising order, do not nest. */
static bool overlaps(const tensor_meta *p) {
    bool done[ETCH_MAX_DIMS] = {0};
    int64_t reach = 0;
    for (int round = 0; round < p->ndim; round++) {
        int least = -1;
        for (int d = 0; d < p->ndim; d++)
            if (!done[d] && (least < 0 || llabs(p->stride[d]) < llabs(p->stride[least]))) least = d;
        done[least] = true;
        if (p->size[least] == 1) continue;
        if (llabs(p->stride[least]) <= reach) return true;
        reach += (p->size[least] - 1) * llabs(p->stride[least]);
    }
    return false;
}

/* How many elements of a place share memory with each. */
static etch_tensor *count_at(const tensor_meta *p, const value_shape *like) {
    int64_t low, high;
    reach_of(p, &low, &high);
    etch_tensor *flat = zeros_for(p, NULL, like), *one = NULL;
    ETCH_ON(like->device) one = etch_ones((etch_dtype)like->dtype, ETCH_SHAPE());
    flat = flat ? etch_index_put_(flat, numbers_of(p, low), one, true) : NULL;
    return flat ? lay(flat, low, p) : NULL;
}

etch_tensor *etch__grad_by_place(const tensor_meta *places, const value_shape *shape,
                                 etch_tensor *grad) {
    const tensor_meta *base = &places[0], *view = &places[1];
    int64_t low, high;
    if (is_empty(base)) return zeros(grad, shape, etch__sizes_of(shape));
    reach_of(base, &low, &high);
    etch_tensor *flat = zeros_for(base, grad, shape);
    if (is_empty(view) || !flat) return flat ? lay(flat, low, base) : NULL;
    if (overlaps(view)) {
        etch_tensor *values = etch_reshape(grad, ETCH_SHAPE(-1));
        if (!etch_index_put_(flat, numbers_of(view, low), values, true)) return NULL;
    } else {
        etch_tensor *at = lay(flat, low, view);
        if (!at || !etch_copy_(at, grad)) return NULL;
    }
    etch_tensor *g = lay(flat, low, base);
    return g && overlaps(base) ? etch_div(g, count_at(base, shape)) : g;
}

etch_tensor *etch__grad_of_base(const tape_node *n, etch_tensor *grad) {
    return etch__grad_by_place(n->lies, &n->in[0], grad);
}

etch_tensor *etch__grad_of_view(const tape_node *n, etch_tensor *grad) {
    const tensor_meta *base = &n->lies[0];
    int64_t low, high;
    if (is_empty(&n->lies[1])) return zeros(grad, &n->in[1], etch__sizes_of(&n->in[1]));
    reach_of(base, &low, &high);
    etch_tensor *flat = flattened(base, grad, &n->out);
    return flat ? lay(flat, low, &n->lies[1]) : NULL;
}

etch_tensor *etch__grad_beside_view(const tape_node *n, etch_tensor *grad) {
    const tensor_meta *base = &n->lies[0], *view = &n->lies[1];
    int64_t low, high;
    if (is_empty(base) || is_empty(view)) return grad;
    reach_of(base, &low, &high);
    etch_tensor *flat = flattened(base, grad, &n->out);
    etch_tensor *at = flat ? lay(flat, low, view) : NULL;
    return at && etch_zero_(at) ? lay(flat, low, base) : NULL;
}
