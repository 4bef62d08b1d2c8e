/* Batching rules of operators with an index tensor. One index for all samples is used as it is;
 * where each sample has its own, the operators that have an index for each element (gather,
 * scatter) do what is to be done, along the dimension that follows the batch. */
#include "core/transforms/rules.h"

/* ---- one index a sample ---- */

/* The vector index of each sample, [batch, k], spread to the sizes of `like` with k in place of
 * dimension dim. */
static etch_tensor *spread(const batched_call *b, int i, const etch_tensor *like, int dim) {
    etch_tensor *index = etch__with_dims(b, i);
    if (!index || !like) return NULL;
    etch_shape narrow = {.n = like->ndim}, wide = {.n = like->ndim};
    for (int d = 0; d < like->ndim; d++) {
        bool own = d == 0 || d == dim;
        wide.v[d] = d == dim ? index->size[1] : like->size[d];
        narrow.v[d] = own ? wide.v[d] : 1;
    }
    return etch_expand(etch_reshape(index, narrow), wide);
}

/* ---- reading ---- */

BATCHING(index_select) {
    int dim = (int)behind_batch(b->call->at[0], ndim_of_sample(b, 0));
    if (!b->batched[1])
        return etch__as_result(b, etch_index_select(etch__with_dims(b, 0), dim, b->in[1]));
    etch_tensor *x = etch__with_dims(b, 0);
    return etch__as_result(b, etch_gather(x, dim, spread(b, 1, x, dim)));
}

BATCHING(gather) {
    int dim = (int)behind_batch(b->call->at[0], ndim_of_sample(b, 0));
    return etch__as_result(b, etch_gather(etch__with_dims(b, 0), dim, etch__with_dims(b, 1)));
}

BATCHING(take) {
    if (!b->batched[0]) return etch_take(b->in[0], b->in[1]);
    etch_tensor *x = etch_reshape(b->in[0], ETCH_SHAPE(b->size, b->call->in[0]->numel));
    etch_tensor *index =
        etch_reshape(etch__with_batch(b, 1), ETCH_SHAPE(b->size, b->call->in[1]->numel));
    if (!index) return NULL;
    int64_t n = b->call->in[0]->numel; /* negative ones count from the end */
    index = etch_where(etch_lt_scalar(index, 0), etch_add_scalar(index, n), index);
    return etch__as_result(b, etch_gather(x, 1, index));
}

/* ---- writing by an index of as many dimensions ---- */

/* The value of scatter.value is a scalar, which stays. */
BATCHING(scatter) {
    const op_info *op = &etch__ops[b->call->op];
    op_id plain = op->kind == KIND_INPLACE ? op->plain : b->call->op;
    int dim = (int)behind_batch(b->call->at[0], ndim_of_sample(b, 0));
    etch_tensor *x = etch__to_write(b), *index = etch__with_dims(b, 1), *y = NULL;
    if (!x || !index) return NULL;
    if (plain == OP_SCATTER_VALUE) y = etch_scatter_value_(x, dim, index, b->call->sc[0]);
    else if (plain == OP_SCATTER_ADD) y = etch_scatter_add_(x, dim, index, etch__with_dims(b, 2));
    else y = etch_scatter_(x, dim, index, etch__with_dims(b, 2));
    return etch__as_result(b, y);
}

/* ---- writing by a vector of indices ---- */

static etch_tensor *write_by_one(const batched_call *b, op_id plain, etch_tensor *x, int dim) {
    etch_tensor *index = b->in[1];
    if (plain == OP_INDEX_FILL) return etch_index_fill_(x, dim, index, b->call->sc[0]);
    etch_tensor *source = etch__with_dims(b, 2);
    if (plain == OP_INDEX_ADD) return etch_index_add_(x, dim, index, source);
    return etch_index_copy_(x, dim, index, source);
}

static etch_tensor *write_by_each(const batched_call *b, op_id plain, etch_tensor *x, int dim) {
    etch_tensor *index = spread(b, 1, x, dim);
    if (plain == OP_INDEX_FILL) return etch_scatter_value_(x, dim, index, b->call->sc[0]);
    etch_tensor *source = etch__with_dims(b, 2);
    if (plain == OP_INDEX_ADD) return etch_scatter_add_(x, dim, index, source);
    return etch_scatter_(x, dim, index, source);
}

/* index_copy, index_add, index_fill. */
BATCHING(index_write) {
    const op_info *op = &etch__ops[b->call->op];
    op_id plain = op->kind == KIND_INPLACE ? op->plain : b->call->op;
    int dim = (int)behind_batch(b->call->at[0], ndim_of_sample(b, 0));
    etch_tensor *x = etch__to_write(b);
    if (!x) return NULL;
    etch_tensor *y =
        b->batched[1] ? write_by_each(b, plain, x, dim) : write_by_one(b, plain, x, dim);
    return etch__as_result(b, y);
}

/* Indices of dimension 0, of any sizes, laid flat; values broadcast to those sizes and the rest of
 * a sample's. Negative indices count from the end. */
BATCHING(index_put) {
    const etch_tensor *self = b->call->in[0], *at = b->call->in[1];
    etch_tensor *x = etch__to_write(b), *index = b->in[1];
    if (!x) return NULL;
    etch_shape values = {.n = 1, .v = {b->size}};
    for (int d = 0; d < at->ndim; d++) values.v[values.n++] = at->size[d];
    for (int d = 1; d < self->ndim; d++) values.v[values.n++] = self->size[d];
    etch_tensor *v = etch_expand(etch__padded(b, 2, values.n - 1), values);
    etch_shape flat = {.n = x->ndim};
    memcpy(flat.v, x->size, (size_t)x->ndim * sizeof *x->size);
    flat.v[1] = at->numel;
    v = etch_reshape(v, flat);
    index = etch_where(etch_lt_scalar(index, 0), etch_add_scalar(index, x->size[1]), index);
    batched_call flat_index = *b;
    etch_tensor *operands[] = {x,
                               index ? etch_reshape(index, b->batched[1]
                                                               ? ETCH_SHAPE(b->size, at->numel)
                                                               : ETCH_SHAPE(at->numel))
                                     : NULL,
                               v};
    flat_index.in = operands;
    if (v && v->dtype != x->dtype) v = operands[2] = etch_to(v, x->dtype);
    if (!v || !operands[1]) return NULL;
    bool adds = b->call->at[0] != 0;
    etch_tensor *y;
    if (b->batched[1]) {
        etch_tensor *wide = spread(&flat_index, 1, x, 1);
        y = adds ? etch_scatter_add_(x, 1, wide, v) : etch_scatter_(x, 1, wide, v);
    } else
        y = adds ? etch_index_add_(x, 1, operands[1], v) : etch_index_copy_(x, 1, operands[1], v);
    return etch__as_result(b, y);
}
