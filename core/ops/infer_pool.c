/* Sizes of pooling: windows over the last two dimensions of [(N), C, H, W].
 *
 * A window begins at the padding or inside; with ceil_mode the last one may reach beyond the
 * padding at the end. None may lie in the padding as a whole: it would have no largest element. */
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)

/* ---- the numbers ---- */

bool etch__take_pair(const op_call *call, const int64_t **at, const char *name, int64_t least,
                     bool may_lack, int64_t pair[2]) {
    int64_t n = *(*at)++;
    pair[0] = pair[1] = 0;
    if (n == 0 && may_lack) return true;
    if (n != 1 && n != 2)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected 1 or 2 values of %s, got %lld", name,
             (long long)n);
    for (int d = 0; d < 2; d++) {
        pair[d] = (*at)[n == 1 ? 0 : d];
        if (pair[d] < least || pair[d] > INT32_MAX)
            FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a %s of at least %lld, got %lld", name,
                 (long long)least, (long long)pair[d]);
    }
    *at += n;
    return true;
}

bool etch__pool_numbers(const op_call *call, pool_numbers *p) {
    bool max = call->op == OP_MAX_POOL2D || call->op == OP_MAX_POOL2D_INDICES;
    const int64_t *at = call->at;
    if (call->op == OP_AVG_POOL2D_BACKWARD) at += 1 + at[0];
    *p = (pool_numbers){.dilation = {1, 1}, .counts_padding = true};
    if (!etch__take_pair(call, &at, "kernel_size", 1, false, p->kernel) ||
        !etch__take_pair(call, &at, "stride", 0, true, p->stride) ||
        !etch__take_pair(call, &at, "padding", 0, false, p->padding) ||
        (max && !etch__take_pair(call, &at, "dilation", 1, false, p->dilation)))
        return false;
    p->ceil = *at++;
    if (!max) p->counts_padding = at[0], p->divisor = at[1];
    for (int d = 0; d < 2; d++) {
        if (!p->stride[d]) p->stride[d] = p->kernel[d];
        if (2 * p->padding[d] > p->kernel[d])
            FAIL(ETCH_ERR_INVALID_ARGUMENT,
                 "expected a padding of at most half of the kernel, got %lld of %lld elements",
                 (long long)p->padding[d], (long long)p->kernel[d]);
    }
    return true;
}

/* ---- sizes ---- */

/* From the first to the last element of a window. */
static int64_t reach_of(const pool_numbers *p, int d) {
    return (p->kernel[d] - 1) * p->dilation[d] + 1;
}

/* A dilated window that begins in the padding may step over a plane that is smaller. */
static bool misses(const pool_numbers *p, int d, int64_t in, int64_t out) {
    for (int64_t o = 0, at = -p->padding[d]; o < out && at < 0; o++, at += p->stride[d])
        if ((at % p->dilation[d] + p->dilation[d]) % p->dilation[d] >= in) return true;
    return false;
}

static bool pooled_size(const op_call *call, const pool_numbers *p, int d, int64_t in,
                        int64_t *out) {
    int64_t step = p->stride[d];
    __int128 room = (__int128)in + 2 * p->padding[d] - reach_of(p, d);
    if (in < 1 || room < (p->ceil ? 1 - step : 0))
        FAIL(ETCH_ERR_SHAPE,
             "the window does not fit into the padded input: %s %lld, kernel %lld, padding %lld, "
             "dilation %lld",
             d ? "width" : "height", (long long)in, (long long)p->kernel[d],
             (long long)p->padding[d], (long long)p->dilation[d]);
    *out = (int64_t)((room + (p->ceil ? step - 1 : 0)) / step) + 1;
    if (p->ceil && (__int128)(*out - 1) * step >= (__int128)in + p->padding[d]) --*out;
    if (in < p->dilation[d] && misses(p, d, in, *out))
        FAIL(ETCH_ERR_SHAPE,
             "a window would hold nothing but padding: %s %lld, padding %lld, dilation %lld",
             d ? "width" : "height", (long long)in, (long long)p->padding[d],
             (long long)p->dilation[d]);
    return true;
}

/* The sizes of the result, from n sizes of the input. */
static bool pooled_sizes(const op_call *call, int n, const int64_t *in, int64_t *out) {
    pool_numbers p;
    if (!etch__pool_numbers(call, &p)) return false;
    for (int k = 0; k < n - 2; k++) out[k] = in[k];
    for (int d = 0; d < 2; d++)
        if (!pooled_size(call, &p, d, in[n - 2 + d], &out[n - 2 + d])) return false;
    return true;
}

bool etch__pool_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *x = call->in[0];
    if (x->ndim != 3 && x->ndim != 4)
        FAIL(ETCH_ERR_SHAPE, "expected an input of sizes [N, C, H, W] or [C, H, W], got %s",
             etch__shape_text(x->ndim, x->size).s);
    out->ndim = x->ndim;
    return pooled_sizes(call, x->ndim, x->size, out->size) && etch__row_major_result(call, out);
}

bool etch__pool_backward_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *g = call->in[0];
    int64_t n = call->at[0], want[4];
    const int64_t *size = call->at + 1;
    if (n != 3 && n != 4)
        FAIL(ETCH_ERR_SHAPE, "expected 3 or 4 sizes of the input, got %lld", (long long)n);
    for (int d = 0; d < n; d++)
        if (size[d] < 0)
            FAIL(ETCH_ERR_SHAPE, "expected sizes that are not negative, got %lld",
                 (long long)size[d]);
    if (!pooled_sizes(call, (int)n, size, want)) return false;
    if (!etch__same_dims(g->ndim, g->size, (int)n, want))
        FAIL(ETCH_ERR_SHAPE, "expected grad_output of sizes %s, got %s",
             etch__shape_text((int)n, want).s, etch__shape_text(g->ndim, g->size).s);
    out->ndim = (uint8_t)n;
    memcpy(out->size, size, (size_t)n * sizeof *size);
    return etch__row_major_result(call, out);
}
