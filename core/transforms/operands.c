/* What batching rules share: their operands as they need them. */
#include "core/transforms/rules.h"

etch_tensor *etch__padded(const batched_call *b, int i, int ndim) {
    etch_tensor *t = b->in[i];
    int have = ndim_of_sample(b, i);
    if (t == ETCH_NONE || !b->batched[i] || have >= ndim) return t;
    etch_shape s = {.n = ndim + 1, .v = {b->size}};
    for (int d = 0; d < ndim; d++)
        s.v[1 + d] = d < ndim - have ? 1 : t->size[1 + d - (ndim - have)];
    return etch_view(t, s);
}

etch_tensor *etch__with_batch(const batched_call *b, int i) {
    etch_tensor *t = b->in[i];
    if (b->batched[i]) return t;
    etch_shape s = BATCH_AND(b, t);
    return etch_expand(etch_unsqueeze(t, 0), s);
}

etch_tensor *etch__with_dims(const batched_call *b, int i) {
    etch_tensor *t = etch__with_batch(b, i);
    return t && t->ndim == 1 ? etch_unsqueeze(t, 1) : t;
}

etch_tensor *etch__to_write(const batched_call *b) {
    bool in_place = etch__ops[b->call->op].kind == KIND_INPLACE;
    etch_tensor *t = in_place ? b->in[0] : etch__with_batch(b, 0);
    if (t && !in_place) t = etch__copy_batched_as(t, b->in + 1, b->call->nin - 1);
    return t && t->ndim == 1 ? etch_unsqueeze(t, 1) : t;
}

etch_tensor *etch__as_result(const batched_call *b, etch_tensor *t) {
    etch_shape s = BATCH_AND(b, b->one);
    if (!t || etch__same_dims(t->ndim, t->size, s.n, s.v)) return t;
    return etch_reshape(t, s);
}
