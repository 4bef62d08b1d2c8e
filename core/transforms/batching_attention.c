/* Batching rules of attention: the batch is one more dimension in front of heads, or heads where
 * there are none. Operands without a batch are expanded, which copies nothing. */
#include "core/transforms/rules.h"

/* Operands from number `at` on: query, key, value, mask, seed. Each sample has its seed, or all
 * have equal ones. */
static void with_batch(const batched_call *b, int at, etch_tensor **in) {
    for (int i = 0; i < b->call->nin; i++) {
        if (b->in[i] == ETCH_NONE) in[i] = ETCH_NONE;
        else if (i == at + 3) in[i] = etch__padded(b, i, ndim_of_sample(b, at));
        else in[i] = etch__with_batch(b, i);
    }
    if (b->call->nin > at + 4 && in[at + 4] != ETCH_NONE)
        in[at + 4] = etch_reshape(in[at + 4], ETCH_SHAPE(-1));
}

BATCHING(attention) {
    etch_tensor *in[5];
    with_batch(b, 0, in);
    return call_again(b, in, b->call->at, b->call->nat);
}

/* Of one vector for all samples, one for each. */
BATCHING(attention_backward) {
    etch_tensor *in[7], *part[3];
    int64_t from = 0;
    with_batch(b, 2, in);
    etch_tensor *all = call_again(b, in, b->call->at, b->call->nat);
    for (int i = 0; i < 3; i++) {
        int64_t n = b->call->in[2 + i]->numel;
        etch_tensor *t = etch_slice(all, 0, from, from + b->size * n, 1);
        if (!(part[i] = etch_view(t, ETCH_SHAPE(b->size, n)))) return NULL;
        from += b->size * n;
    }
    return etch_cat(part, 3, 1);
}
