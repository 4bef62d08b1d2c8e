/* Sizes of attention: query [..., heads, queries, width], key and value [..., fewer heads, keys,
 * width] with the leading dimensions of query. Without a dimension of heads there is one head.
 *
 * Its strides: where query lies as [..., queries, heads, width], as heads cut out of a projection
 * do, the result does, too, so that heads are put together without a copy. */
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

static bool ranks_fit(const op_call *call, etch_tensor *const *in) {
    int d = in[0]->ndim;
    if (d < 2)
        FAIL(ETCH_ERR_SHAPE, "expected query with at least 2 dimensions, got %s", TEXT(in[0]));
    for (int i = 1; i < 3; i++)
        if (in[i]->ndim != d)
            FAIL(ETCH_ERR_SHAPE, "expected %s with %d dimensions as query %s, got %s",
                 i == 1 ? "key" : "value", d, TEXT(in[0]), TEXT(in[i]));
    return true;
}

/* The dimensions in front of heads are equal, key and value have as many heads as each other, and
 * these divide those of query. */
static bool heads_fit(const op_call *call, etch_tensor *const *in) {
    const etch_tensor *q = in[0], *k = in[1], *v = in[2];
    int d = q->ndim;
    for (int i = 0; i < d - 3; i++)
        if (k->size[i] != q->size[i] || v->size[i] != q->size[i])
            FAIL(ETCH_ERR_SHAPE,
                 "expected query, key and value with equal sizes in front of heads, got %s, %s and "
                 "%s",
                 TEXT(q), TEXT(k), TEXT(v));
    if (d < 3) return true;
    int64_t heads = q->size[d - 3], shared = k->size[d - 3];
    if (v->size[d - 3] != shared)
        FAIL(ETCH_ERR_SHAPE, "expected value with %lld heads as key %s, got %s", (long long)shared,
             TEXT(k), TEXT(v));
    if (shared ? heads % shared != 0 : heads != 0)
        FAIL(ETCH_ERR_SHAPE,
             "expected query with a multiple of the %lld heads of key and value, got %lld: query "
             "%s, key %s",
             (long long)shared, (long long)heads, TEXT(q), TEXT(k));
    return true;
}

static bool lengths_fit(const op_call *call, etch_tensor *const *in) {
    const etch_tensor *q = in[0], *k = in[1], *v = in[2];
    int d = q->ndim;
    if (k->size[d - 1] != q->size[d - 1])
        FAIL(ETCH_ERR_SHAPE, "expected key of width %lld as query %s, got %s",
             (long long)q->size[d - 1], TEXT(q), TEXT(k));
    if (v->size[d - 2] != k->size[d - 2])
        FAIL(ETCH_ERR_SHAPE, "expected value of length %lld as key %s, got %s",
             (long long)k->size[d - 2], TEXT(k), TEXT(v));
    return true;
}

static bool mask_fits(const op_call *call, etch_tensor *const *in) {
    const etch_tensor *q = in[0], *mask = in[3];
    int d = q->ndim;
    int64_t size[ETCH_MAX_DIMS];
    if (mask == ETCH_NONE) return true;
    memcpy(size, q->size, sizeof size);
    size[d - 1] = in[1]->size[d - 2];
    bool fits = mask->ndim <= d;
    for (int i = 0; fits && i < mask->ndim; i++) {
        int64_t n = mask->size[i];
        fits = n == 1 || n == size[d - mask->ndim + i];
    }
    if (fits) return true;
    FAIL(ETCH_ERR_SHAPE, "expected attn_mask that broadcasts to the scores %s, got %s",
         etch__shape_text(d, size).s, TEXT(mask));
}

static bool seed_fits(const op_call *call, const etch_tensor *seed, int64_t heads) {
    if (seed == ETCH_NONE) return true;
    if (seed->ndim == 1 && seed->numel > 0 && heads % seed->numel == 0) return true;
    FAIL(ETCH_ERR_SHAPE,
         "expected seed with one number, or one for each of equally many heads, "
         "got %s",
         TEXT(seed));
}

static int64_t all_heads(const etch_tensor *q) {
    int64_t n = 1;
    for (int i = 0; i < q->ndim - 2; i++) n *= q->size[i];
    return n;
}

static bool operands_fit(const op_call *call, etch_tensor *const *in, const etch_tensor *seed) {
    return ranks_fit(call, in) && heads_fit(call, in) && lengths_fit(call, in) &&
           mask_fits(call, in) && seed_fits(call, seed, all_heads(in[0]));
}

/* Whether query lies as [..., queries, heads, width], the dimension with the largest stride first,
 * gaps or not. Those of one element lie anywhere; with one head or one query that order is
 * row-major as well. */
static bool heads_lie_inside(const etch_tensor *q) {
    int d = q->ndim;
    if (d < 3 || q->size[d - 3] < 2 || q->size[d - 2] < 2) return false;
    int64_t inside = q->stride[d - 3], outside = q->stride[d - 2];
    if (inside >= outside || (q->size[d - 1] > 1 && q->stride[d - 1] >= inside)) return false;
    for (int i = d - 4; i >= 0; i--) {
        if (q->size[i] < 2) continue;
        if (q->stride[i] < outside) return false;
        outside = q->stride[i];
    }
    return true;
}

static bool is_empty(const tensor_meta *m) {
    for (int i = 0; i < m->ndim; i++)
        if (m->size[i] == 0) return true;
    return false;
}

bool etch__attention_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *q = call->in[0], *v = call->in[2];
    if (!operands_fit(call, call->in, call->nin > 4 ? call->in[4] : ETCH_NONE)) return false;
    out->ndim = q->ndim;
    memcpy(out->size, q->size, sizeof out->size);
    out->size[q->ndim - 1] = v->size[v->ndim - 1];
    if (!etch__row_major_result(call, out)) return false;
    if (is_empty(out) || !heads_lie_inside(q)) return true;
    int64_t width = out->size[q->ndim - 1], *stride = out->stride + q->ndim - 3;
    stride[0] = width, stride[1] = out->size[q->ndim - 3] * width;
    return true;
}

/* grad_output and result have the sizes of attention's result. */
bool etch__attention_backward_rule(const op_call *call, tensor_meta *out) {
    etch_tensor *const *in = call->in + 2;
    if (!operands_fit(call, in, in[4])) return false;
    int64_t size[ETCH_MAX_DIMS], total = 0;
    int d = in[0]->ndim;
    memcpy(size, in[0]->size, sizeof size);
    size[d - 1] = in[2]->size[d - 1];
    for (int i = 0; i < 2; i++)
        if (!etch__same_dims(call->in[i]->ndim, call->in[i]->size, d, size))
            FAIL(ETCH_ERR_SHAPE, "expected %s of sizes %s, got %s", i ? "result" : "grad_output",
                 etch__shape_text(d, size).s, TEXT(call->in[i]));
    for (int i = 0; i < 3; i++)
        if (__builtin_add_overflow(total, in[i]->numel, &total))
            FAIL(ETCH_ERR_OVERFLOW, "the gradients do not fit in 63 bits of elements");
    out->ndim = 1, out->size[0] = total;
    return etch__row_major_result(call, out);
}

bool etch__attention_kept_rule(const op_call *call, tensor_meta *out) {
    int64_t n = call->at[0], heads = 1;
    const int64_t *size = call->at + 1;
    if (n < 2 || n > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected 2 to %d sizes, got %lld", ETCH_MAX_DIMS, (long long)n);
    for (int i = 0; i < n; i++)
        if ((out->size[i] = size[i]) < 0)
            FAIL(ETCH_ERR_SHAPE, "expected sizes that are not negative, got %s",
                 etch__shape_text((int)n, size).s);
    out->ndim = (uint8_t)n;
    if (!etch__row_major_result(call, out)) return false;
    for (int i = 0; i < n - 2; i++) heads *= size[i];
    return seed_fits(call, call->in[0], heads);
}
