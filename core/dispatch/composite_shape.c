/* Composite operators that rearrange: parts, joins, repetitions, and copies with a part replaced.
 */
#include "core/dispatch/composite.h"
#include "core/dispatch/dispatch.h"
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__), NULL
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

/* The list at *at, which moves behind it; a count that inference would refuse sets the error. */
static bool take_list(const op_call *call, const int64_t **at, etch_dims *list) {
    int64_t n = *(*at)++;
    list->n = (int32_t)n;
    if (n < -1 || n > ETCH_MAX_DIMS)
        return etch__infer_fail(call, ETCH_ERR_SHAPE, "expected at most %d numbers in a list",
                                ETCH_MAX_DIMS);
    for (int64_t i = 0; i < n; i++) list->v[i] = *(*at)++;
    return true;
}

static etch_dims sizes_of(const etch_tensor *t) {
    etch_dims d = {.n = t->ndim};
    for (int i = 0; i < t->ndim; i++) d.v[i] = t->size[i];
    return d;
}

/* Dimension numbers wrapped, each once; false with the error set. */
static bool wrap_dims(const op_call *call, etch_dims *dims, int ndim) {
    uint32_t seen = 0;
    for (int i = 0; i < dims->n; i++) {
        int dim = 0;
        if (!etch__wrap_dim(call, dims->v[i], ndim, &dim)) return false;
        if (seen >> dim & 1)
            return etch__infer_fail(call, ETCH_ERR_INVALID_ARGUMENT,
                                    "expected each dimension once, got %d twice", dim);
        seen |= 1u << dim;
        dims->v[i] = dim;
    }
    return true;
}

/* ---- views ---- */

etch_tensor *etch__composite_narrow(const op_call *call) {
    etch_tensor *t = call->in[0];
    int64_t start = call->at[1], length = call->at[2];
    int dim = 0;
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim)) return NULL;
    int64_t n = t->size[dim], from = start < 0 ? start + n : start;
    if (from < 0 || from > n || length < 0 || length > n - from)
        FAIL(ETCH_ERR_INDEX, "expected a range inside of 0 to %lld, got %lld elements from %lld",
             (long long)n, (long long)length, (long long)start);
    return etch_slice(t, dim, from, from + length, 1);
}

etch_tensor *etch__composite_movedim(const op_call *call) {
    etch_tensor *t = call->in[0];
    const int64_t *at = call->at;
    etch_dims from, to, order = {.n = t->ndim};
    if (!take_list(call, &at, &from) || !take_list(call, &at, &to)) return NULL;
    if (from.n != to.n)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected as many destinations as sources, got %d and %d",
             to.n, from.n);
    if (!wrap_dims(call, &from, t->ndim) || !wrap_dims(call, &to, t->ndim)) return NULL;
    if (!t->ndim) return etch_permute(t, order);
    uint32_t moved = 0;
    for (int i = 0; i < t->ndim; i++) order.v[i] = -1;
    for (int i = 0; i < from.n; i++) order.v[to.v[i]] = from.v[i], moved |= 1u << from.v[i];
    for (int i = 0, next = 0; i < t->ndim; i++) {
        if (order.v[i] >= 0) continue;
        while (moved >> next & 1) next++;
        order.v[i] = next++;
    }
    return etch_permute(t, order);
}

etch_tensor *etch__composite_flatten(const op_call *call) {
    etch_tensor *t = call->in[0];
    int first = 0, last = 0;
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &first)) return NULL;
    if (!etch__wrap_dim(call, call->at[1], t->ndim, &last)) return NULL;
    if (!t->ndim) return etch_reshape(t, ETCH_SHAPE(1));
    if (first > last)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected start_dim not after end_dim, got %d and %d",
             first, last);
    if (first == last) return t;
    etch_dims size = {.n = t->ndim - (last - first)};
    for (int i = 0; i < size.n; i++) size.v[i] = t->size[i <= first ? i : i + last - first];
    for (int i = first + 1; i <= last; i++) size.v[first] *= t->size[i];
    return etch_reshape(t, size);
}

etch_tensor *etch__composite_expand_as(const op_call *call) {
    return etch_expand(call->in[0], sizes_of(call->in[1]));
}

/* ---- joins ---- */

etch_tensor *etch__composite_stack(const op_call *call) {
    int dim = 0;
    if (!call->nin) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected at least one tensor");
    const etch_tensor *first = call->in[0];
    if (!etch__wrap_dim(call, call->at[0], first->ndim + 1, &dim)) return NULL;
    etch_tensor **list = etch__malloc(call->nin * sizeof *list), *joined = NULL;
    int n = 0;
    for (; list && n < call->nin; n++) {
        const etch_tensor *t = call->in[n];
        if (!SAME_SIZES(t, first)) {
            etch__infer_fail(call, ETCH_ERR_SHAPE, "expected tensors of one size, got %s and %s",
                             TEXT(first), TEXT(t));
            break;
        }
        if (!(list[n] = etch_unsqueeze(call->in[n], dim))) break;
    }
    if (list && n == call->nin) joined = etch_cat(list, n, dim);
    etch__free(list);
    return joined;
}

etch_tensor *etch__composite_flip(const op_call *call) {
    etch_tensor *t = call->in[0];
    const int64_t *at = call->at;
    etch_dims dims;
    if (!take_list(call, &at, &dims) || !wrap_dims(call, &dims, t->ndim)) return NULL;
    for (int i = 0; i < dims.n && t && t->ndim; i++)
        t = etch_slice(t, dims.v[i], ETCH_ABSENT, ETCH_ABSENT, -1);
    return t ? etch_clone(t) : NULL;
}

/* The same operators whatever the shift is, so that it is a run-time value of a trace. */
static etch_tensor *roll_dim(etch_tensor *t, int64_t shift, int64_t dim) {
    int64_t n = t->size[dim], start = n ? -(shift % n) : 0;
    if (start < 0) start += n;
    etch_tensor *part[2] = {etch_slice(t, dim, start, n, 1), NULL};
    if (part[0]) part[1] = etch_slice(t, dim, 0, start, 1);
    return part[1] ? etch_cat(part, 2, dim) : NULL;
}

/* No dimensions: as if it were flat. */
etch_tensor *etch__composite_roll(const op_call *call) {
    etch_tensor *self = call->in[0], *t = self;
    const int64_t *at = call->at;
    etch_dims shifts, dims;
    if (!take_list(call, &at, &shifts) || !take_list(call, &at, &dims)) return NULL;
    bool flat = dims.n <= 0;
    if (shifts.n != (flat ? 1 : dims.n))
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a shift for each dimension, got %d for %d",
             shifts.n, dims.n);
    if (!flat && !t->ndim)
        FAIL(ETCH_ERR_DIM_RANGE, "expected no dimensions to roll a 0-d tensor along");
    if (!wrap_dims(call, &dims, t->ndim)) return NULL;
    if (flat) t = etch_reshape(t, ETCH_SHAPE(-1)), dims = ETCH_SHAPE(0);
    for (int i = 0; i < dims.n && t && t->ndim; i++) t = roll_dim(t, shifts.v[i], dims.v[i]);
    if (t && flat) t = etch_reshape(t, sizes_of(self));
    bool fresh = t && t != self && !etch_shares_storage(t, self);
    return !t || fresh ? t : etch_clone(t);
}

/* ---- repetitions ---- */

/* t with dimension dim `times` times, one after the other: a view where the size is 1. */
static etch_tensor *repeat_dim(etch_tensor *t, int dim, int64_t times) {
    etch_dims wide = sizes_of(t), size = wide;
    size.v[dim] *= times;
    if (t->size[dim] == 1) return etch_expand(t, size);
    etch_dims fold = {.n = 3, .v = {1, t->size[dim], 1}};
    for (int i = 0; i < t->ndim; i++)
        if (i != dim) fold.v[i < dim ? 0 : 2] *= t->size[i];
    etch_tensor *folded = etch_reshape(t, fold);
    if (folded) folded = etch_unsqueeze(folded, 1);
    if (folded) folded = etch_expand(folded, ETCH_SHAPE(fold.v[0], times, fold.v[1], fold.v[2]));
    return folded ? etch_reshape(folded, size) : NULL;
}

/* t of sizes {s0, s1} as a view of sizes {times0, s0, times1, s1}, copied: the same operators
 * whatever the numbers are, so that they are run-time values of a trace. */
static etch_tensor *repeat_view(etch_tensor *t, const etch_dims *size, const etch_dims *times) {
    etch_dims thin = {.n = 2 * size->n}, wide, whole = *size;
    int before = size->n - times->n;
    for (int i = 0; i < size->n; i++) thin.v[2 * i] = 1, thin.v[2 * i + 1] = size->v[i];
    wide = thin;
    for (int i = 0; i < times->n; i++) {
        wide.v[2 * (before + i)] = times->v[i];
        if (__builtin_mul_overflow(whole.v[before + i], times->v[i], &whole.v[before + i]))
            whole.v[before + i] = INT64_MAX; /* the view of these sizes is refused */
    }
    if ((t = etch_reshape(t, thin))) t = etch_expand(t, wide);
    if (t) t = etch_clone(t);
    return t ? etch_view(t, whole) : NULL;
}

/* tile fills its list up with ones, repeat needs a number for each dimension. */
etch_tensor *etch__composite_repeat(const op_call *call) {
    etch_tensor *t = call->in[0];
    const int64_t *at = call->at;
    etch_dims times, size = {0};
    if (!take_list(call, &at, &times)) return NULL;
    if (call->op == OP_REPEAT && times.n < t->ndim)
        FAIL(ETCH_ERR_SHAPE, "expected a number for each of %d dimensions, got %d", t->ndim,
             times.n);
    for (int i = 0; i < times.n; i++)
        if (times.v[i] < 0)
            FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected numbers that are not negative, got %s",
                 etch__shape_text(times.n, times.v).s);
    int n = times.n > t->ndim ? times.n : t->ndim;
    for (int i = 0; i < n; i++) size.v[size.n++] = i < n - t->ndim ? 1 : t->size[i - n + t->ndim];
    if (2 * n <= ETCH_MAX_DIMS) return repeat_view(t, &size, &times);
    etch_tensor *x = n > t->ndim ? etch_reshape(t, size) : t;
    for (int pass = 0; pass < 2; pass++) /* what copies, then what is a view */
        for (int i = 0; i < times.n && x; i++) {
            int dim = i + n - times.n;
            bool view = size.v[dim] == 1;
            if (times.v[i] != 1 && view == (pass == 1)) x = repeat_dim(x, dim, times.v[i]);
        }
    return x ? etch_clone(x) : NULL;
}

/* ---- as large as another ---- */

etch_tensor *etch__composite_zeros_like(const op_call *call) {
    return etch__zeros_to_fill(call->in[0]);
}

etch_tensor *etch__composite_ones_like(const op_call *call) {
    etch_tensor *t = etch__zeros_to_fill(call->in[0]);
    return t ? etch_fill_(t, 1) : NULL;
}

etch_tensor *etch__composite_full_like(const op_call *call) {
    etch_tensor *t = etch__zeros_to_fill(call->in[0]);
    return t ? etch_fill_(t, call->sc[0]) : NULL;
}

/* ---- copies with a part replaced ---- */

static bool same_sizes(const op_call *call, const etch_tensor *part, const etch_tensor *src) {
    if (SAME_SIZES(part, src)) return true;
    return etch__infer_fail(call, ETCH_ERR_SHAPE, "expected src of sizes %s, got %s", TEXT(part),
                            TEXT(src));
}

etch_tensor *etch__composite_slice_scatter(const op_call *call) {
    const int64_t *at = call->at;
    etch_tensor *whole = etch__copy_to_fill(call->in[0], call->in[1]);
    etch_tensor *part = whole ? etch_slice(whole, at[0], at[1], at[2], at[3]) : NULL;
    if (!part || !same_sizes(call, part, call->in[1])) return NULL;
    return etch_copy_(part, call->in[1]) ? whole : NULL;
}

etch_tensor *etch__composite_select_scatter(const op_call *call) {
    etch_tensor *whole = etch__copy_to_fill(call->in[0], call->in[1]);
    etch_tensor *part = whole ? etch_select(whole, call->at[0], call->at[1]) : NULL;
    if (!part || !same_sizes(call, part, call->in[1])) return NULL;
    return etch_copy_(part, call->in[1]) ? whole : NULL;
}
