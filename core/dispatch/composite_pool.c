/* Pooling of one dimension: of planes of height 1. */
#include "core/dispatch/composite.h"

/* The one value of the list at *at for the width; false with the error set. */
static bool take_width(const op_call *call, const int64_t **at, int64_t height, etch_dims *pair) {
    int64_t n = *(*at)++;
    *pair = (etch_dims){.n = 2, .v = {height, 0}};
    if (n == 1) pair->v[1] = *(*at)++;
    if (n == 0 || n == 1) return true;
    return etch__false_at(call->site, ETCH_ERR_INVALID_ARGUMENT,
                          "%s: expected one value of each list, got %lld", etch__ops[call->op].name,
                          (long long)n);
}

static etch_tensor *pool1d(const op_call *call) {
    const int64_t *at = call->at;
    bool max = call->op == OP_MAX_POOL1D;
    etch_dims kernel, stride, padding, dilation;
    if (!take_width(call, &at, 1, &kernel) || !take_width(call, &at, 1, &stride) ||
        !take_width(call, &at, 0, &padding) || (max && !take_width(call, &at, 1, &dilation)))
        return NULL;
    etch_tensor *x = etch_unsqueeze(call->in[0], -2);
    if (!x) return NULL;
    etch_tensor *y = max ? etch_max_pool2d(x, kernel, stride, padding, dilation, at[0])
                         : etch_avg_pool2d(x, kernel, stride, padding, at[0], at[1], 0);
    return y ? etch_squeeze_dim(y, -2) : NULL;
}

etch_tensor *etch__composite_max_pool1d(const op_call *call) { return pool1d(call); }
etch_tensor *etch__composite_avg_pool1d(const op_call *call) { return pool1d(call); }
