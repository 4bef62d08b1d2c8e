/* Shape inference: what a call's result will be, or why the call is wrong, before anything is
 * touched.
 *
 * Two tables, one function a rule: dtype rules (core/ops/infer_dtype.c) and shape rules (here and,
 * for views, in core/ops/infer_view.c). It runs on every operator call, so the common cases come
 * first in each rule and nothing is formatted unless something is wrong. */
#include <math.h>

#include "core/tensor/device.h"
#include "core/ops/rules.h"
#include "core/ops/schema.h"

#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

bool etch__infer_fail(const op_call *call, etch_status code, const char *format, ...) {
    char text[768];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    etch__error_at(call->site, code, "%s: %s", etch__ops[call->op].name, text);
    return false;
}
#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)

/* ---- shapes: helpers ---- */

/* Row-major strides of out's sizes. */
static bool finish(const op_call *call, tensor_meta *out) {
    out->offset = 0;
    if (unlikely(etch__row_major(out->ndim, out->size, out->stride) < 0))
        FAIL(ETCH_ERR_OVERFLOW, "a tensor of sizes %s does not fit in 63 bits of bytes",
             etch__shape_text(out->ndim, out->size).s);
    return true;
}

bool etch__wrap_dim(const op_call *call, int64_t dim, int ndim, int *out) {
    int n = ndim ? ndim : 1; /* a 0-d tensor has, as in ATen, the dimension 0 for this purpose */
    if (unlikely(dim < -n || dim >= n))
        FAIL(ETCH_ERR_DIM_RANGE, "expected a dimension from %d to %d, got %lld", -n, n - 1,
             (long long)dim);
    *out = (int)(dim < 0 ? dim + n : dim);
    return true;
}

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
    return finish(call, out);
}

/* The class word of an arange that cannot be: see arange_numel. */
enum { ARANGE_STEP_ZERO = -1, ARANGE_DIRECTION = -2, ARANGE_NOT_FINITE = -3 };

static bool arange_size_rule(const op_call *call, tensor_meta *out) {
    int64_t n = call->at[call->nat - 1];
    if (n == ARANGE_STEP_ZERO) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a step other than 0");
    if (n == ARANGE_DIRECTION)
        FAIL(ETCH_ERR_INVALID_ARGUMENT,
             "expected a step that leads from start to end, got the other sign");
    if (n < 0) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected finite start, end and step");
    out->ndim = 1, out->size[0] = n;
    return finish(call, out);
}

static bool same_sizes(const etch_tensor *a, const etch_tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->size[i] != b->size[i]) return false;
    return true;
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
    size_t used = 0;
    for (int i = 0; i < call->nin && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " and " : "",
                                 TEXT(call->in[i]));
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
        same = same && same_sizes(a, call->in[i]);
        if (call->in[i]->ndim > out->ndim) out->ndim = call->in[i]->ndim;
    }
    if (likely(same)) return copy_sizes(a, out);
    for (int i = 0; i < out->ndim; i++) out->size[i] = 1;
    for (int i = 0; i < call->nin; i++)
        if (!join_sizes(out->ndim, out->size, call->in[i])) return broadcast_fail(call);
    return finish(call, out);
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
        if (likely(same_sizes(self, t))) continue;
        memcpy(size, self->size, sizeof size);
        bool fits = t->ndim <= self->ndim && join_sizes(self->ndim, size, t) &&
                    !memcmp(size, self->size, sizeof *size * self->ndim);
        if (!fits)
            FAIL(ETCH_ERR_SHAPE, "expected sizes that broadcast to self %s, got %s", TEXT(self),
                 TEXT(t));
    }
    return true;
}

/* A kind never falls: real > integer > bool. */
static bool check_inplace_dtype(const op_call *call, etch_dtype computed) {
    etch_dtype self = call->in[0]->dtype;
    bool lost = (etch__is_float(computed) && !etch__is_float(self)) ||
                (computed != ETCH_BOOL && self == ETCH_BOOL);
    if (likely(!lost)) return true;
    FAIL(ETCH_ERR_DTYPE, "the result is of %s, which self of %s cannot hold",
         etch_dtype_name(computed), etch_dtype_name(self));
}

/* ---- shapes: reductions ---- */

enum { ALL_DIMS = -1 };

/* The dimensions and keepdim of a reduction: a list at[0..] or one dimension at[0]. */
typedef struct reduced {
    int64_t n; /* ALL_DIMS, or how many */
    const int64_t *dims;
    bool keepdim;
} reduced;

static reduced reduced_of(const op_call *call) {
    const int64_t *at = call->at;
    switch ((shape_rule)etch__ops[call->op].srule) {
    case SRULE_REDUCE_DIMS: {
        int64_t n = at[0] > 0 ? at[0] : 0; /* no list and an empty one both mean all */
        return (reduced){n ? n : ALL_DIMS, at + 1, at[1 + n] != 0};
    }
    case SRULE_REDUCE_DIM: return (reduced){at[0] == ETCH_NO_INT ? ALL_DIMS : 1, at, at[1] != 0};
    default: return (reduced){ALL_DIMS, NULL, false};
    }
}

static bool dims_mask(const op_call *call, const reduced *r, uint32_t *mask) {
    int ndim = call->in[0]->ndim, dim = 0;
    *mask = r->n == ALL_DIMS ? (1u << ndim) - 1 : 0;
    for (int i = 0; i < r->n; i++) {
        if (!etch__wrap_dim(call, r->dims[i], ndim, &dim)) return false;
        if (*mask >> dim & 1)
            FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected each dimension once, got %d twice", dim);
        *mask |= 1u << dim;
    }
    return true;
}

static bool reduce_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0];
    reduced r = reduced_of(call);
    reduce_kind how = (reduce_kind)etch__ops[call->op].impl;
    uint32_t mask;
    if (!dims_mask(call, &r, &mask)) return false;
    out->ndim = 0;
    for (int i = 0; i < t->ndim; i++) {
        bool gone = mask >> i & 1;
        if (gone && t->size[i] == 0 && how != REDUCE_SUM && how != REDUCE_MEAN &&
            how != REDUCE_PROD)
            FAIL(ETCH_ERR_EMPTY, "expected at least one element, got sizes %s", TEXT(t));
        if (!gone || r.keepdim) out->size[out->ndim++] = gone ? 1 : t->size[i];
    }
    return finish(call, out);
}

void etch__reduce_axes(const op_call *call, uint32_t *mask, bool *keepdim) {
    int ndim = call->in[0]->ndim;
    reduced r = reduced_of(call);
    *mask = r.n == ALL_DIMS ? (1u << ndim) - 1 : 0;
    for (int i = 0; i < r.n; i++)
        *mask |= 1u << (r.dims[i] < 0 ? r.dims[i] + (ndim ? ndim : 1) : r.dims[i]);
    *mask &= (1u << ndim) - 1; /* dimension 0 of a 0-d tensor */
    *keepdim = r.keepdim;
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
    return finish(call, out);
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
    return finish(call, out);
}

static bool dot_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *a = call->in[0], *b = call->in[1];
    if (!want_ndim(call, 0, "self", 1) || !want_ndim(call, 1, "tensor", 1)) return false;
    if (a->size[0] != b->size[0])
        FAIL(ETCH_ERR_SHAPE, "expected vectors of one length, got %s x %s", TEXT(a), TEXT(b));
    out->ndim = 0;
    return finish(call, out);
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
    return finish(call, out);
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
    return finish(call, out);
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
    return finish(call, out);
}

static bool has_sizes(const etch_tensor *t, int n, const int64_t *size) {
    return t->ndim == n && !memcmp(t->size, size, sizeof *size * (size_t)n);
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
        if (call->in[i] != ETCH_NONE && !has_sizes(call->in[i], n, size))
            FAIL(ETCH_ERR_SHAPE, "expected %s of sizes %s, got %s", i == 1 ? "weight" : "bias",
                 etch__shape_text(n, size).s, TEXT(call->in[i]));
    out->ndim = t->ndim;
    return copy_sizes(t, out);
}

/* ---- shapes: convolution ---- */

bool etch__conv_numbers(const op_call *call, conv_numbers *c) {
    int64_t *const lists[] = {c->stride, c->padding, c->dilation};
    static const char *const names[] = {"stride", "padding", "dilation"};
    const int64_t *at = call->at;
    for (int k = 0; k < 3; k++) {
        int64_t n = at[0], least = k == 1 ? 0 : 1;
        if (n != 1 && n != 2)
            FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected 1 or 2 values of %s, got %lld", names[k],
                 (long long)n);
        for (int d = 0; d < 2; d++) {
            lists[k][d] = at[n == 1 ? 1 : 1 + d];
            if (lists[k][d] < least || lists[k][d] > INT32_MAX)
                FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a %s of at least %lld, got %lld",
                     names[k], (long long)least, (long long)lists[k][d]);
        }
        at += 1 + n;
    }
    c->groups = at[0];
    return true;
}

static bool conv_channels(const op_call *call, const conv_numbers *c) {
    const etch_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    if (!want_ndim(call, 0, "input", 4) || !want_ndim(call, 1, "weight", 4)) return false;
    if (c->groups < 1 || c->groups > INT32_MAX || w->size[0] % c->groups)
        FAIL(ETCH_ERR_INVALID_ARGUMENT,
             "expected groups that divide %lld output channels, got %lld", (long long)w->size[0],
             (long long)c->groups);
    if (x->size[1] % c->groups || x->size[1] / c->groups != w->size[1])
        FAIL(ETCH_ERR_SHAPE,
             "expected input with groups x weight's input channels, got %s with weight %s and %lld "
             "groups",
             TEXT(x), TEXT(w), (long long)c->groups);
    if (!x->size[1]) FAIL(ETCH_ERR_SHAPE, "expected at least one input channel, got %s", TEXT(x));
    if (bias == ETCH_NONE || (bias->ndim == 1 && bias->size[0] == w->size[0])) return true;
    FAIL(ETCH_ERR_SHAPE, "expected bias of sizes [%lld], got %s", (long long)w->size[0],
         TEXT(bias));
}

static bool convolution_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *x = call->in[0], *w = call->in[1];
    conv_numbers c;
    if (!etch__conv_numbers(call, &c) || !conv_channels(call, &c)) return false;
    out->ndim = 4, out->size[0] = x->size[0], out->size[1] = w->size[0];
    for (int d = 0; d < 2; d++) {
        int64_t kernel = w->size[2 + d];
        __int128 room = (__int128)x->size[2 + d] + 2 * c.padding[d] - 1 -
                        (__int128)c.dilation[d] * (kernel - 1);
        if (kernel < 1 || room < 0 || room > INT64_MAX - 1)
            FAIL(ETCH_ERR_SHAPE,
                 "the kernel does not fit into the padded input: input %s, weight %s, padding "
                 "[%lld, %lld], dilation [%lld, %lld]",
                 TEXT(x), TEXT(w), (long long)c.padding[0], (long long)c.padding[1],
                 (long long)c.dilation[0], (long long)c.dilation[1]);
        out->size[2 + d] = (int64_t)room / c.stride[d] + 1;
    }
    return finish(call, out);
}

/* ---- the entry ---- */

static const shape_fn shape_rules[SRULE_COUNT] = {
    [SRULE_SIZE] = size_rule,
    [SRULE_ARANGE] = arange_size_rule,
    [SRULE_BROADCAST] = broadcast_rule,
    [SRULE_INPLACE] = inplace_rule,
    [SRULE_REDUCE_ALL] = reduce_rule,
    [SRULE_REDUCE_DIMS] = reduce_rule,
    [SRULE_REDUCE_DIM] = reduce_rule,
    [SRULE_MM] = mm_rule,
    [SRULE_ADDMM] = addmm_rule,
    [SRULE_MV] = mv_rule,
    [SRULE_DOT] = dot_rule,
    [SRULE_BMM] = bmm_rule,
    [SRULE_CAT] = cat_rule,
    [SRULE_SOFTMAX] = softmax_rule,
    [SRULE_INDEX_SELECT] = indexed_rule,
    [SRULE_GATHER] = indexed_rule,
    [SRULE_TAKE] = indexed_rule,
    [SRULE_SCATTER] = indexed_rule,
    [SRULE_INDEX_COPY] = indexed_rule,
    [SRULE_INDEX_PUT] = indexed_rule,
    [SRULE_ALONG_DIM] = softmax_rule,
    [SRULE_MATRICES] = matrices_rule,
    [SRULE_LAYER_NORM] = layer_norm_rule,
    [SRULE_CONVOLUTION] = convolution_rule,
};

/* The schema's argument that operand i is, or is in (of a list). */
static const schema_arg *operand_arg(op_id op, int i) {
    const op_schema *s = etch__schema(op);
    for (int k = 0; k < s->nargs; k++) {
        if (s->args[k].type == ARG_TENSORS) return &s->args[k];
        bool tensor = s->args[k].type == ARG_TENSOR || s->args[k].type == ARG_TENSOR_OPT;
        if (tensor && i-- == 0) return &s->args[k];
    }
    return NULL;
}

const char *etch__operand_name(op_id op, int i) {
    const schema_arg *a = operand_arg(op, i);
    return a ? a->name : "?";
}

bool etch__bad_operand(const op_call *call, int i) {
    return etch__bad_handle(call->in[i], etch__ops[call->op].name, etch__operand_name(call->op, i),
                            call->site);
}

static bool is_optional(op_id op, int i) {
    const schema_arg *a = operand_arg(op, i);
    return a && a->type == ARG_TENSOR_OPT;
}

bool etch__operands_present(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (unlikely(call->in[i]->dtype >= ETCH_DTYPE_COUNT) && !is_optional(call->op, i))
            FAIL(ETCH_ERR_INVALID_ARGUMENT, "argument \"%s\" is not optional, got ETCH_NONE",
                 etch__operand_name(call->op, i));
    return true;
}

/* Names the k-th scalar argument of the operator; seed and offset are the library's own. */
static const char *scalar_name(op_id op, int k) {
    const op_schema *s = etch__schema(op);
    for (int i = 0; i < s->nargs; i++)
        if (s->args[i].type == ARG_SCALAR && k-- == 0) return s->args[i].name;
    return "?";
}

bool etch__scalar_kinds_ok(const op_call *call) {
    for (int i = 0; i < call->nsc; i++)
        if (unlikely((unsigned)call->sc[i].kind > ETCH_SCALAR_REAL))
            FAIL(ETCH_ERR_INVALID_ARGUMENT,
                 "argument \"%s\": expected an etch_scalar of kind 0 to %d, got kind %d",
                 scalar_name(call->op, i), ETCH_SCALAR_REAL, (int)call->sc[i].kind);
    return true;
}

static inline bool any_absent(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (unlikely(call->in[i] == ETCH_NONE)) return true;
    return false;
}

/* ---- devices: all operands are on one, where the result will be too ---- */

static etch_status mixed_devices(const op_call *call, int device) {
    for (int i = 0; i < call->nin; i++)
        if (call->in[i] != ETCH_NONE && call->in[i]->device != device)
            return etch__error_at(call->site, ETCH_ERR_DEVICE,
                                  "%s: expected all tensors on one device, got \"%s\" on %s "
                                  "beside one on %s; copy one with etch_to_device",
                                  etch__ops[call->op].name, etch__operand_name(call->op, i),
                                  etch_device_name(call->in[i]->device), etch_device_name(device));
    return ETCH_OK;
}

static inline etch_status infer_device(const op_call *call, tensor_meta *out) {
    int device = call->nin ? call->in[0]->device : STATE_DEVICE(etch__tls.state), other = 0;
    for (int i = 1; i < call->nin; i++) other |= call->in[i]->device ^ device;
    out->device = (uint8_t)device;
    if (unlikely(call->op == OP_TO_DEVICE)) {
        int to = call->at[0] == (int)call->at[0] ? (int)call->at[0] : -1;
        if (!etch__device_check(to, etch__ops[OP_TO_DEVICE].name, call->site))
            return ETCH_ERR_DEVICE;
        out->device = (uint8_t)to;
    }
    return likely(!other) ? ETCH_OK : mixed_devices(call, device);
}

etch_status etch__infer(const op_call *call, tensor_meta *out, etch_dtype *compute_dtype) {
    if (unlikely(infer_device(call, out) != ETCH_OK)) return etch__tls.status;
    const op_info *op = &etch__ops[call->op];
    if (unlikely(call->op >= OP_COUNT)) return op->infer(call, out, compute_dtype);
    call_dtypes d;
    if (unlikely(any_absent(call)) && !etch__operands_present(call)) return etch__tls.status;
    if (!etch__dtype_rules[op->drule](call, &d)) return etch__tls.status;
    if (op->kind == KIND_INPLACE) {
        if (!check_inplace_dtype(call, d.result)) return etch__tls.status;
        d.result = call->in[0]->dtype;
    }
    out->dtype = (uint8_t)d.result;
    if (compute_dtype) *compute_dtype = d.compute;
    shape_fn rule = op->kind == KIND_VIEW ? etch__view_rules[op->srule] : shape_rules[op->srule];
    return rule(call, out) ? ETCH_OK : etch__tls.status;
}

etch_status etch__infer_under(uint64_t state, const op_call *call, tensor_meta *out,
                              etch_dtype *compute_dtype) {
    uint64_t now = etch__tls.state;
    etch__tls.state = state;
    etch_status status = etch__infer(call, out, compute_dtype);
    etch__tls.state = now;
    return status;
}

/* ---- static classes ---- */

static double scalar_real(const etch_scalar *s) {
    return s->kind == ETCH_SCALAR_REAL ? s->d : (double)s->i;
}

static int64_t exponent_class_of(double e) {
    static const struct {
        double value;
        exponent_class class;
    } classes[] = {{2, EXPONENT_TWO},        {3, EXPONENT_THREE}, {0.5, EXPONENT_HALF},
                   {-1, EXPONENT_MINUS_ONE}, {1, EXPONENT_ONE},   {0, EXPONENT_ZERO}};
    for (int i = 0; i < COUNT_OF(classes); i++)
        if (e == classes[i].value) return classes[i].class;
    return e == e && (double)(float)e != e ? EXPONENT_DOUBLE : EXPONENT_ANY;
}

/* Elements from start up to but without end, or an ARANGE_ code. Integers are counted exactly. */
static int64_t arange_numel(const etch_scalar *sc, int nsc) {
    bool real = false;
    for (int i = 0; i < nsc; i++) real |= sc[i].kind == ETCH_SCALAR_REAL;
    if (!real) {
        __int128 length = (__int128)sc[1].i - sc[0].i, step = sc[2].i;
        if (!step) return ARANGE_STEP_ZERO;
        if (length && (length < 0) != (step < 0)) return ARANGE_DIRECTION;
        __int128 n = (length + step + (step > 0 ? -1 : 1)) / step;
        return n > INT64_MAX ? INT64_MAX : (int64_t)n;
    }
    double start = scalar_real(&sc[0]), end = scalar_real(&sc[1]), step = scalar_real(&sc[2]);
    if (!isfinite(start) || !isfinite(end) || !isfinite(step)) return ARANGE_NOT_FINITE;
    if (step == 0) return ARANGE_STEP_ZERO;
    if (start != end && (end < start) != (step < 0)) return ARANGE_DIRECTION;
    double n = ceil((end - start) / step);
    return n < 0x1p63 ? (int64_t)n : INT64_MAX;
}

/* Not inlined, or its arithmetic might be moved out from where nothing traps. */
__attribute__((noinline)) static int64_t computed_class(const op_info *op, const etch_scalar *sc,
                                                        int nsc) {
    if (op->flags & OPF_CLASS_EXPONENT) return exponent_class_of(scalar_real(&sc[nsc - 1]));
    return arange_numel(sc, nsc);
}

int64_t etch__op_class(const op_info *op, const etch_scalar *sc, int nsc, const int64_t *at) {
    (void)at;
    const etch_scalar *last = &sc[nsc - 1];
    if (op->flags & OPF_CLASS_ALPHA)
        return last->kind == ETCH_SCALAR_REAL ? last->d == 1 : last->i == 1;
    if (!(op->flags & (OPF_CLASS_EXPONENT | OPF_CLASS_NUMEL))) return 0;
    unsigned traps = etch__fp_mask();
    int64_t class = computed_class(op, sc, nsc);
    etch__fp_unmask(traps);
    return class;
}
