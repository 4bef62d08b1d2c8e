/* Batching rules of views and joins: the same view of each sample, behind the batch. */
#include "core/transforms/rules.h"

/* The call's own attributes, of which some are changed. */
typedef struct attributes {
    int64_t v[OP_MAX_ATTRS];
    int n;
} attributes;

static attributes given(const batched_call *b) {
    attributes a = {.n = b->call->nat};
    memcpy(a.v, b->call->at, (size_t)a.n * sizeof *a.v);
    return a;
}
static void move_behind(attributes *a, int i, int ndim) { a->v[i] = behind_batch(a->v[i], ndim); }

static etch_tensor *with(const batched_call *b, const attributes *a) {
    return call_again(b, b->in, a->v, a->n);
}

/* ---- other sizes ---- */

BATCHING(view) { return etch_view(b->in[0], BATCH_AND(b, b->one)); }

/* Dimensions of size 1 come and go without a copy. */
BATCHING(squeeze) { return etch_view(b->in[0], BATCH_AND(b, b->one)); }

BATCHING(unsqueeze) {
    attributes a = given(b);
    move_behind(&a, 0, ndim_of_sample(b, 0) + 1);
    return with(b, &a);
}

BATCHING(expand) {
    etch_tensor *t = etch__padded(b, 0, b->one->ndim);
    return t ? etch_expand(t, BATCH_AND(b, b->one)) : NULL;
}

/* ---- another order ---- */

BATCHING(t) {
    return ndim_of_sample(b, 0) < 2 ? etch_detach(b->in[0]) : etch_transpose(b->in[0], 1, 2);
}

BATCHING(transpose) {
    int ndim = ndim_of_sample(b, 0);
    if (!ndim) return etch_detach(b->in[0]);
    attributes a = given(b);
    move_behind(&a, 0, ndim), move_behind(&a, 1, ndim);
    return with(b, &a);
}

BATCHING(permute) {
    int ndim = ndim_of_sample(b, 0);
    etch_dims dims = {.n = ndim + 1};
    for (int d = 0; d < ndim; d++) dims.v[d + 1] = behind_batch(b->call->at[d + 1], ndim);
    return etch_permute(b->in[0], dims);
}

/* ---- parts ---- */

/* slice, select: dimension, then what of it. */
BATCHING(part) {
    attributes a = given(b);
    move_behind(&a, 0, ndim_of_sample(b, 0));
    return with(b, &a);
}

/* Of a number there is one window, at most: itself. */
BATCHING(unfold) {
    int ndim = ndim_of_sample(b, 0);
    attributes a = given(b);
    move_behind(&a, 0, ndim);
    if (ndim) return with(b, &a);
    etch_tensor *t = etch_unfold(etch__with_dims(b, 0), 1, a.v[1], a.v[2]);
    return t ? etch_view(t, BATCH_AND(b, b->one)) : NULL;
}

BATCHING(diagonal) {
    int ndim = ndim_of_sample(b, 0);
    attributes a = given(b);
    move_behind(&a, 1, ndim), move_behind(&a, 2, ndim);
    return with(b, &a);
}

BATCHING(as_strided) {
    etch_shape size = BATCH_AND(b, b->one);
    etch_dims stride = {.n = size.n, .v = {b->in[0]->stride[0]}};
    memcpy(stride.v + 1, b->one->stride, b->one->ndim * sizeof *b->one->stride);
    return etch_as_strided(b->in[0], size, stride);
}

/* ---- joins ---- */

/* A vector of nothing is left out, whatever the dimensions of the others. */
static bool is_left_out(const batched_call *b, int i) {
    const etch_tensor *t = b->call->in[i];
    return t->ndim == 1 && !t->size[0] && b->one->ndim != 1;
}

BATCHING(cat) {
    int nin = b->call->nin, n = 0;
    etch_tensor **parts = etch__calloc((size_t)nin, sizeof *parts), *y = NULL;
    if (!parts) return NULL;
    for (int i = 0; n >= 0 && i < nin; i++) {
        if (is_left_out(b, i)) continue;
        n = (parts[n] = etch__with_batch(b, i)) ? n + 1 : -1;
    }
    if (n > 0) y = etch_cat(parts, n, behind_batch(b->call->at[0], b->one->ndim));
    etch__free(parts);
    return y && y->dtype != b->one->dtype ? etch_to(y, (etch_dtype)b->one->dtype) : y;
}
