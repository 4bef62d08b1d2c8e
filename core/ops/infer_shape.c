/* Shape rules: sizes and strides of results that are no views, from those of the operands. */
#include "core/base/text.h"
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

/* ---- shapes: helpers ---- */

static bool want_ndim(const op_call *call, int i, const char *name, int ndim) {
    const etch_tensor *t = call->in[i];
    if (likely(t->ndim == ndim)) return true;
    FAIL(ETCH_ERR_SHAPE, "expected %s with %d dimension%s, got %d: %s", name, ndim,
         ndim == 1 ? "" : "s", t->ndim, TEXT(t));
}

/* ---- shapes: creation and pointwise ---- */

static bool size_rule(const op_call *call, tensor_meta *out) {
    int64_t n = call->at[0];
    if (n < 0 || n > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected 0 to %d dimensions, got %lld", ETCH_MAX_DIMS, (long long)n);
    out->ndim = (uint8_t)n;
    for (int i = 0; i < n; i++)
        if ((out->size[i] = call->at[1 + i]) < 0)
            FAIL(ETCH_ERR_SHAPE, "expected sizes that are not negative, got %s",
                 etch__shape_text((int)n, call->at + 1).s);
    return etch__row_major_result(call, out);
}

static bool arange_size_rule(const op_call *call, tensor_meta *out) {
    int64_t n = call->at[call->nat - 1];
    if (n == ARANGE_STEP_ZERO) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a step other than 0");
    if (n == ARANGE_DIRECTION)
        FAIL(ETCH_ERR_INVALID_ARGUMENT,
             "expected a step that leads from start to end, got the other sign");
    if (n < 0) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected finite start, end and step");
    out->ndim = 1, out->size[0] = n;
    return etch__row_major_result(call, out);
}

/* Joins t's sizes into size[0..ndim), t->ndim <= ndim; false where they do not broadcast. */
static bool join_sizes(int ndim, int64_t *size, const etch_tensor *t) {
    for (int i = 0, at = ndim - t->ndim; i < t->ndim; i++, at++) {
        if (t->size[i] == size[at] || t->size[i] == 1) continue;
        if (size[at] != 1) return false;
        size[at] = t->size[i];
    }
    return true;
}

static bool broadcast_fail(const op_call *call) {
    char text[640] = "";
    bounded_text t = {text, sizeof text, 0};
    for (int i = 0; i < call->nin; i++)
        etch__text_add(&t, "%s%s", i ? " and " : "", TEXT(call->in[i]));
    FAIL(ETCH_ERR_SHAPE, "expected sizes that broadcast, got %s", text);
}

/* Row-major, without the checks that the sizes of an existing tensor have passed. */
static bool copy_sizes(const etch_tensor *t, tensor_meta *out) {
    int64_t step = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        out->size[i] = t->size[i], out->stride[i] = step;
        step *= t->size[i] > 1 ? t->size[i] : 1;
    }
    out->offset = 0;
    return true;
}

static bool broadcast_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *a = call->in[0];
    bool same = true;
    out->ndim = a->ndim;
    for (int i = 1; i < call->nin; i++) {
        same = same && SAME_SIZES(a, call->in[i]);
        if (call->in[i]->ndim > out->ndim) out->ndim = call->in[i]->ndim;
    }
    if (likely(same)) return copy_sizes(a, out);
    for (int i = 0; i < out->ndim; i++) out->size[i] = 1;
    for (int i = 0; i < call->nin; i++)
        if (!join_sizes(out->ndim, out->size, call->in[i])) return broadcast_fail(call);
    return etch__row_major_result(call, out);
}

/* The meta of self, whose elements must have memory of their own each. */
static bool written_self(const op_call *call, tensor_meta *out) {
    const etch_tensor *self = call->in[0];
    out->ndim = self->ndim, out->offset = self->offset;
    for (int i = 0; i < self->ndim; i++) {
        out->size[i] = self->size[i], out->stride[i] = self->stride[i];
        if (unlikely(self->stride[i] == 0 && self->size[i] > 1))
            FAIL(ETCH_ERR_SHAPE,
                 "self of sizes %s is expanded: several of its elements are one in "
                 "memory (use etch_clone first)",
                 TEXT(self));
    }
    return true;
}

/* In place: the others broadcast to self. */
static bool inplace_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *self = call->in[0];
    if (!written_self(call, out)) return false;
    for (int i = 1; i < call->nin; i++) {
        const etch_tensor *t = call->in[i];
        int64_t size[ETCH_MAX_DIMS];
        if (likely(SAME_SIZES(self, t))) continue;
        memcpy(size, self->size, sizeof size);
        bool fits = t->ndim <= self->ndim && join_sizes(self->ndim, size, t) &&
                    !memcmp(size, self->size, sizeof *size * self->ndim);
        if (!fits)
            FAIL(ETCH_ERR_SHAPE, "expected sizes that broadcast to self %s, got %s", TEXT(self),
                 TEXT(t));
    }
    return true;
}

/* ---- shapes: products ---- */

static bool mm_sizes(const op_call *call, const char *left, int l, const char *right,
                     tensor_meta *out) {
    const etch_tensor *a = call->in[l], *b = call->in[l + 1];
    if (!want_ndim(call, l, left, 2) || !want_ndim(call, l + 1, right, 2)) return false;
    if (a->size[1] != b->size[0])
        FAIL(ETCH_ERR_SHAPE, "expected %s with %lld rows, got %lld: %s x %s", right,
             (long long)a->size[1], (long long)b->size[0], TEXT(a), TEXT(b));
    out->ndim = 2, out->size[0] = a->size[0], out->size[1] = b->size[1];
    return etch__row_major_result(call, out);
}

static bool mm_rule(const op_call *call, tensor_meta *out) {
    return mm_sizes(call, "self", 0, "mat2", out);
}

static bool addmm_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *self = call->in[0];
    if (!mm_sizes(call, "mat1", 1, "mat2", out)) return false;
    int64_t size[2] = {out->size[0], out->size[1]};
    bool fits = self->ndim <= 2 && join_sizes(2, size, self) && size[0] == out->size[0] &&
                size[1] == out->size[1];
    if (fits) return true;
    FAIL(ETCH_ERR_SHAPE, "expected self that broadcasts to %s, got %s",
         etch__shape_text(2, out->size).s, TEXT(self));
}

static bool mv_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *a = call->in[0], *b = call->in[1];
    if (!want_ndim(call, 0, "self", 2) || !want_ndim(call, 1, "vec", 1)) return false;
    if (a->size[1] != b->size[0])
        FAIL(ETCH_ERR_SHAPE, "expected vec with %lld elements, got %lld: %s x %s",
             (long long)a->size[1], (long long)b->size[0], TEXT(a), TEXT(b));
    out->ndim = 1, out->size[0] = a->size[0];
    return etch__row_major_result(call, out);
}

static bool dot_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *a = call->in[0], *b = call->in[1];
    if (!want_ndim(call, 0, "self", 1) || !want_ndim(call, 1, "tensor", 1)) return false;
    if (a->size[0] != b->size[0])
        FAIL(ETCH_ERR_SHAPE, "expected vectors of one length, got %s x %s", TEXT(a), TEXT(b));
    out->ndim = 0;
    return etch__row_major_result(call, out);
}

static bool bmm_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *a = call->in[0], *b = call->in[1];
    if (!want_ndim(call, 0, "self", 3) || !want_ndim(call, 1, "mat2", 3)) return false;
    if (a->size[0] != b->size[0])
        FAIL(ETCH_ERR_SHAPE, "expected mat2 with a batch of %lld, got %lld: %s x %s",
             (long long)a->size[0], (long long)b->size[0], TEXT(a), TEXT(b));
    if (a->size[2] != b->size[1])
        FAIL(ETCH_ERR_SHAPE, "expected mat2 with %lld rows, got %lld: %s x %s",
             (long long)a->size[2], (long long)b->size[1], TEXT(a), TEXT(b));
    out->ndim = 3;
    out->size[0] = a->size[0], out->size[1] = a->size[1], out->size[2] = b->size[2];
    return etch__row_major_result(call, out);
}

/* What cat leaves out, whatever the rank of the others, as ATen does. */
static bool is_nothing(const etch_tensor *t) { return t->ndim == 1 && t->numel == 0; }

static bool cat_rule(const op_call *call, tensor_meta *out) {
    int dim = 0, model = 0;
    if (!call->nin) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected at least one tensor, got none");
    while (model < call->nin - 1 && is_nothing(call->in[model])) model++;
    const etch_tensor *first = call->in[model];
    if (!first->ndim) FAIL(ETCH_ERR_SHAPE, "expected tensors with a dimension, got a 0-d one");
    if (!etch__wrap_dim(call, call->at[0], first->ndim, &dim)) return false;
    out->ndim = first->ndim;
    memcpy(out->size, first->size, sizeof out->size);
    for (int i = model + 1; i < call->nin; i++) {
        const etch_tensor *t = call->in[i];
        if (is_nothing(t)) continue;
        bool fits = t->ndim == first->ndim;
        for (int k = 0; fits && k < t->ndim; k++) fits = k == dim || t->size[k] == first->size[k];
        if (!fits)
            FAIL(ETCH_ERR_SHAPE, "expected sizes %s but for dimension %d, got %s in tensor %d",
                 TEXT(first), dim, TEXT(t), i);
        if (__builtin_add_overflow(out->size[dim], t->size[dim], &out->size[dim]))
            FAIL(ETCH_ERR_OVERFLOW, "the joined size does not fit in 63 bits");
    }
    return etch__row_major_result(call, out);
}

/* ---- shapes: normalisations ---- */

static bool softmax_rule(const op_call *call, tensor_meta *out) {
    int dim;
    out->ndim = call->in[0]->ndim;
    return etch__wrap_dim(call, call->at[0], out->ndim, &dim) && copy_sizes(call->in[0], out);
}

static bool matrices_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0];
    if (t->ndim < 2) FAIL(ETCH_ERR_SHAPE, "expected at least 2 dimensions, got %s", TEXT(t));
    out->ndim = t->ndim;
    return copy_sizes(t, out);
}

/* What the index rules leave to do: a new contiguous result, or self. */
static bool indexed_rule(const op_call *call, tensor_meta *out) {
    if (!etch__index_rule(call, out)) return false;
    if (etch__ops[call->op].kind == KIND_INPLACE) return written_self(call, out);
    return etch__row_major_result(call, out);
}

static bool layer_norm_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0];
    int n = (int)call->at[0];
    const int64_t *size = call->at + 1;
    if (n < 1 || n > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected a normalized_shape of 1 to %d sizes, got %d", ETCH_MAX_DIMS,
             n);
    if (n > t->ndim || memcmp(t->size + t->ndim - n, size, sizeof *size * (size_t)n))
        FAIL(ETCH_ERR_SHAPE, "expected an input that ends in sizes %s, got %s",
             etch__shape_text(n, size).s, TEXT(t));
    for (int i = 1; i < call->nin; i++)
        if (call->in[i] != ETCH_NONE &&
            !etch__same_dims(call->in[i]->ndim, call->in[i]->size, n, size))
            FAIL(ETCH_ERR_SHAPE, "expected %s of sizes %s, got %s", i == 1 ? "weight" : "bias",
                 etch__shape_text(n, size).s, TEXT(call->in[i]));
    out->ndim = t->ndim;
    return copy_sizes(t, out);
}

/* ---- shapes: convolution ---- */

/* Behind the list of sizes that a backward operator has. */
static const int64_t *lists_of(const op_call *call) {
    return call->at + (call->op == OP_CONVOLUTION ? 0 : 1 + call->at[0]);
}

bool etch__conv_numbers(const op_call *call, conv_numbers *c) {
    const int64_t *at = lists_of(call);
    if (!etch__take_pair(call, &at, "stride", 1, false, c->stride) ||
        !etch__take_pair(call, &at, "padding", 0, false, c->padding) ||
        !etch__take_pair(call, &at, "dilation", 1, false, c->dilation))
        return false;
    c->groups = at[0];
    return true;
}

/* x and w: four sizes each. */
static bool conv_channels(const op_call *call, const conv_numbers *c, const int64_t *x,
                          const int64_t *w) {
    if (c->groups < 1 || c->groups > INT32_MAX || w[0] % c->groups)
        FAIL(ETCH_ERR_INVALID_ARGUMENT,
             "expected groups that divide %lld output channels, got %lld", (long long)w[0],
             (long long)c->groups);
    if (x[1] % c->groups || x[1] / c->groups != w[1])
        FAIL(ETCH_ERR_SHAPE,
             "expected input with groups x weight's input channels, got %s with weight %s and %lld "
             "groups",
             etch__shape_text(4, x).s, etch__shape_text(4, w).s, (long long)c->groups);
    if (!x[1])
        FAIL(ETCH_ERR_SHAPE, "expected at least one input channel, got %s",
             etch__shape_text(4, x).s);
    return true;
}

/* The sizes of the result. */
static bool conv_sizes(const op_call *call, const conv_numbers *c, const int64_t *x,
                       const int64_t *w, int64_t *out) {
    if (!conv_channels(call, c, x, w)) return false;
    out[0] = x[0], out[1] = w[0];
    for (int d = 0; d < 2; d++) {
        int64_t kernel = w[2 + d];
        __int128 room =
            (__int128)x[2 + d] + 2 * c->padding[d] - 1 - (__int128)c->dilation[d] * (kernel - 1);
        if (kernel < 1 || room < 0 || room > INT64_MAX - 1)
            FAIL(ETCH_ERR_SHAPE,
                 "the kernel does not fit into the padded input: input %s, weight %s, padding "
                 "[%lld, %lld], dilation [%lld, %lld]",
                 etch__shape_text(4, x).s, etch__shape_text(4, w).s, (long long)c->padding[0],
                 (long long)c->padding[1], (long long)c->dilation[0], (long long)c->dilation[1]);
        out[2 + d] = (int64_t)room / c->stride[d] + 1;
    }
    return true;
}

static bool convolution_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    conv_numbers c;
    if (!etch__conv_numbers(call, &c)) return false;
    if (!want_ndim(call, 0, "input", 4) || !want_ndim(call, 1, "weight", 4)) return false;
    out->ndim = 4;
    if (!conv_sizes(call, &c, x->size, w->size, out->size)) return false;
    if (bias != ETCH_NONE && !etch__same_dims(bias->ndim, bias->size, 1, w->size))
        FAIL(ETCH_ERR_SHAPE, "expected bias of sizes [%lld], got %s", (long long)w->size[0],
             TEXT(bias));
    return etch__row_major_result(call, out);
}

/* Of the input or the weight, whose sizes are given, where the result's gradient and the other one
 * are operands. */
static bool convolution_backward_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *g = call->in[0], *other = call->in[1];
    bool weight = call->op == OP_CONVOLUTION_BACKWARD_WEIGHT;
    const int64_t *size = call->at + 1;
    int64_t want[4];
    conv_numbers c;
    for (int d = 0; d < 4; d++)
        if (call->at[0] != 4 || size[d] < 0)
            FAIL(ETCH_ERR_SHAPE, "expected 4 sizes that are not negative, got %lld",
                 (long long)call->at[0]);
    if (!etch__conv_numbers(call, &c) || !want_ndim(call, 0, "grad_output", 4) ||
        !want_ndim(call, 1, weight ? "input" : "weight", 4) ||
        !conv_sizes(call, &c, weight ? other->size : size, weight ? size : other->size, want))
        return false;
    if (!etch__same_dims(g->ndim, g->size, 4, want))
        FAIL(ETCH_ERR_SHAPE, "expected grad_output of sizes %s, got %s",
             etch__shape_text(4, want).s, TEXT(g));
    out->ndim = 4;
    memcpy(out->size, size, 4 * sizeof *size);
    return etch__row_major_result(call, out);
}

/* ---- the table ---- */

const shape_fn etch__shape_rules[SRULE_COUNT] = {
#define SHAPE_RULE(id, function) [SRULE_##id] = function,
#include "core/ops/rules.def"
};
