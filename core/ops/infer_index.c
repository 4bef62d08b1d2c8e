/* Shape rules of the operators that take an index tensor: sizes only, core/ops/infer_shape.c
 * adds strides. The dimension is attribute 0, the index in[1], values to write in[2]; a 0-d tensor
 * counts as one of a single element. */
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

static bool sizes_of(const etch_tensor *t, tensor_meta *out) {
    out->ndim = t->ndim;
    memcpy(out->size, t->size, sizeof out->size);
    return true;
}

static bool want_vector(const op_call *call) {
    const etch_tensor *index = call->in[1];
    if (index->ndim <= 1) return true;
    FAIL(ETCH_ERR_SHAPE, "expected an index with at most 1 dimension, got %s", TEXT(index));
}

static bool index_select_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0], *index = call->in[1];
    int dim = 0;
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim) || !want_vector(call)) return false;
    if (!t->ndim && index->numel != 1)
        FAIL(ETCH_ERR_SHAPE, "expected one index for a 0-d tensor, got %s", TEXT(index));
    sizes_of(t, out);
    if (t->ndim) out->size[dim] = index->numel;
    return true;
}

/* Whether index lies inside of t but along dimension `free` (-1: none); a message names t. */
static bool index_fits(const op_call *call, const etch_tensor *t, const char *name, int free) {
    const etch_tensor *index = call->in[1];
    bool fits = (index->ndim ? index->ndim : 1) == (t->ndim ? t->ndim : 1);
    for (int d = 0; d < t->ndim || d < index->ndim; d++) {
        int64_t wanted = d < index->ndim ? index->size[d] : 1, there = d < t->ndim ? t->size[d] : 1;
        fits &= d == free || wanted <= there;
    }
    if (fits || !index->numel) return true;
    FAIL(ETCH_ERR_SHAPE, "expected an index inside of the sizes of %s%s, %s, got %s", name,
         free < 0 ? "" : " but for dim", TEXT(t), TEXT(index));
}

static bool gather_rule(const op_call *call, tensor_meta *out) {
    int dim = 0;
    if (!etch__wrap_dim(call, call->at[0], call->in[0]->ndim, &dim)) return false;
    return index_fits(call, call->in[0], "self", dim) && sizes_of(call->in[1], out);
}

static bool scatter_rule(const op_call *call, tensor_meta *out) {
    int dim = 0;
    if (!etch__wrap_dim(call, call->at[0], call->in[0]->ndim, &dim)) return false;
    if (!index_fits(call, call->in[0], "self", dim)) return false;
    if (call->nin == 3 && !index_fits(call, call->in[2], "src", -1)) return false;
    return sizes_of(call->in[0], out);
}

static bool index_copy_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0], *source = call->in[call->nin - 1];
    int dim = 0;
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim) || !want_vector(call)) return false;
    sizes_of(t, out);
    if (call->nin == 2) return true;
    tensor_meta want = *out;
    if (t->ndim) want.size[dim] = call->in[1]->numel;
    if (SAME_SIZES(&want, source) && (t->ndim || call->in[1]->numel == 1)) return true;
    FAIL(ETCH_ERR_SHAPE, "expected a source of sizes %s, got %s",
         etch__shape_text(want.ndim, want.size).s, TEXT(source));
}

/* The values broadcast to index x the rest of self. */
static bool index_put_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0], *index = call->in[1], *values = call->in[2];
    int64_t size[2 * ETCH_MAX_DIMS];
    int n = 0;
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    for (int d = 0; d < index->ndim; d++) size[n++] = index->size[d];
    for (int d = 1; d < t->ndim; d++) size[n++] = t->size[d];
    if (n > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected at most %d dimensions of index and self together, got %d",
             ETCH_MAX_DIMS, n);
    bool fits = values->ndim <= n;
    for (int d = 0; fits && d < values->ndim; d++)
        fits = values->size[d] == 1 || values->size[d] == size[n - values->ndim + d];
    if (fits) return sizes_of(t, out);
    FAIL(ETCH_ERR_SHAPE, "expected values that broadcast to %s, got %s",
         etch__shape_text(n, size).s, TEXT(values));
}

bool etch__index_rule(const op_call *call, tensor_meta *out) {
    switch ((shape_rule)etch__ops[call->op].srule) {
    case SRULE_INDEX_SELECT: return index_select_rule(call, out);
    case SRULE_GATHER: return gather_rule(call, out);
    case SRULE_TAKE: return sizes_of(call->in[1], out);
    case SRULE_SCATTER: return scatter_rule(call, out);
    case SRULE_INDEX_COPY: return index_copy_rule(call, out);
    default: return index_put_rule(call, out);
    }
}

bool etch__index_adds(const op_call *call) {
    switch (call->op) {
    case OP_SCATTER_ADD:
    case OP_SCATTER_ADD_:
    case OP_INDEX_ADD:
    case OP_INDEX_ADD_: return true;
    case OP_INDEX_PUT:
    case OP_INDEX_PUT_: return call->at[0] != 0;
    default: return false;
    }
}
