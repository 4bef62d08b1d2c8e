/* Composite operators over indices, and those whose result's size depends on data: these read their
 * operand, inside a compiled function a graph break. */
#include "core/dispatch/composite.h"
#include "core/tensor/device.h"
#include "core/tensor/element.h"
#include "core/ops/expr.h"
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__), NULL
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

/* ---- by index ---- */

/* Rows of t by an index of any sizes, which take the place of dimension 0. */
static etch_tensor *rows_of(const op_call *call, etch_tensor *t, etch_tensor *index) {
    etch_dims size = {0};
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    if (index->ndim + t->ndim - 1 > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected a result of at most %d dimensions, got %d", ETCH_MAX_DIMS,
             index->ndim + t->ndim - 1);
    for (int d = 0; d < index->ndim; d++) size.v[size.n++] = index->size[d];
    for (int d = 1; d < t->ndim; d++) size.v[size.n++] = t->size[d];
    etch_tensor *flat = etch_reshape(index, ETCH_SHAPE(index->numel));
    etch_tensor *rows = flat ? etch_index_select(t, 0, flat) : NULL;
    return rows ? etch_reshape(rows, size) : NULL;
}

etch_tensor *etch__composite_embedding(const op_call *call) {
    if (!etch__is_integer(call->in[1]->dtype))
        FAIL(ETCH_ERR_DTYPE, "expected indices of integers, got %s",
             etch_dtype_name(call->in[1]->dtype));
    if (call->in[0]->ndim != 2)
        FAIL(ETCH_ERR_SHAPE, "expected a weight with 2 dimensions, got %s", TEXT(call->in[0]));
    return rows_of(call, call->in[0], call->in[1]);
}

static bool want_integers(const op_call *call, const etch_tensor *index) {
    etch_dtype d = index->dtype;
    if (!etch__is_float(d) && d != ETCH_BOOL) return true;
    return etch__infer_fail(call, ETCH_ERR_DTYPE, "expected an index of integers, got %s",
                            etch_dtype_name(d));
}

/* Negative indices, which count from the end of n elements, from the start. */
static etch_tensor *from_start(etch_tensor *index, int64_t n) {
    if (index->dtype != ETCH_I64 && !(index = etch_to(index, ETCH_I64))) return NULL;
    etch_tensor *below = etch_lt_scalar(index, 0);
    etch_tensor *wrapped = below ? etch_add_scalar(index, n) : NULL;
    return wrapped ? etch_where(below, wrapped, index) : NULL;
}

/* Both broadcast to each other but along dim. */
etch_tensor *etch__composite_take_along_dim(const op_call *call) {
    etch_tensor *t = call->in[0], *index = call->in[1];
    etch_dims a = {.n = t->ndim}, b = {.n = t->ndim};
    int dim = 0;
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    if (!want_integers(call, index)) return NULL;
    if (index->ndim != t->ndim)
        FAIL(ETCH_ERR_SHAPE, "expected indices with %d dimensions, as self, got %s", t->ndim,
             TEXT(index));
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim)) return NULL;
    for (int d = 0; d < t->ndim; d++) {
        int64_t larger = t->size[d] == 1 ? index->size[d] : t->size[d];
        a.v[d] = d == dim ? t->size[d] : larger, b.v[d] = d == dim ? index->size[d] : larger;
    }
    if (!(t = etch_expand(t, a)) || !(index = etch_expand(index, b))) return NULL;
    return (index = from_start(index, t->size[dim])) ? etch_gather(t, dim, index) : NULL;
}

/* One more than the largest class, which is read; 0 with the error set. */
static int64_t count_classes(const op_call *call, etch_tensor *t) {
    host_view view;
    if (!t->numel)
        return etch__infer_fail(call, ETCH_ERR_EMPTY,
                                "expected a number of classes for an empty tensor, got -1");
    etch_tensor *top = want_integers(call, t) ? etch_max(t) : NULL;
    if (!top || !etch__read(top, etch__ops[call->op].name, REASON_BREAK_NONZERO, call->site))
        return 0;
    const etch_tensor *h = etch__host_view(top, &view);
    int64_t most = h ? etch__element_int(h->dtype, etch__ptr(h)) : -1;
    etch__host_view_end(&view);
    return h && most < 0 ? 1 : most + 1; /* the scatter refuses what is negative */
}

/* By a scatter, which refuses classes out of range. */
etch_tensor *etch__composite_one_hot(const op_call *call) {
    etch_tensor *t = call->in[0];
    etch_dims size = {.n = t->ndim + 1};
    int64_t classes = call->at[0];
    if (classes == 0 || classes < -1 || t->ndim == ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_INVALID_ARGUMENT,
             "expected at least 1 class (or -1) and at most %d dimensions, got %lld classes of %s",
             ETCH_MAX_DIMS - 1, (long long)classes, TEXT(t));
    if (classes < 0 && !(classes = count_classes(call, t))) return NULL;
    for (int d = 0; d < t->ndim; d++) size.v[d] = t->size[d];
    size.v[t->ndim] = classes;
    etch_tensor *zeros = NULL;
    ETCH_ON(t->device) zeros = etch_zeros(ETCH_I64, size);
    etch_tensor *index = zeros ? etch_unsqueeze(t, -1) : NULL;
    return index ? etch_scatter_value(zeros, -1, index, 1) : NULL;
}

/* ---- by value ---- */

typedef struct positions {
    int64_t *at; /* flat, row-major */
    int64_t n, seen, cap;
    etch_dtype dtype;
} positions;

static bool find_row(void *ctx, const char *const *p, const int64_t *step, int64_t n) {
    positions *f = ctx;
    const char *x = p[0];
    bool real = etch__is_float(f->dtype);
    for (int64_t i = 0; i < n; i++, x += step[0], f->seen++) {
        bool zero = real ? etch__element_real(f->dtype, x) == 0 : !etch__element_int(f->dtype, x);
        if (zero) continue;
        if (f->n == f->cap && !etch__grow(&f->at, &f->cap, f->n + 1, sizeof *f->at)) return false;
        f->at[f->n++] = f->seen;
    }
    return true;
}

/* false with the error set; the caller frees f->at. */
static bool find_nonzero(const op_call *call, const etch_tensor *t, positions *f) {
    *f = (positions){.dtype = t->dtype};
    if (!etch__read(t, etch__ops[call->op].name, REASON_BREAK_NONZERO, call->site)) return false;
    host_view v;
    const etch_tensor *h = etch__host_view(t, &v);
    bool ok = h && etch__each_row(&h, 1, find_row, f);
    etch__host_view_end(&v);
    return ok;
}

/* An i64 tensor of these numbers beside t. */
static etch_tensor *numbers_beside(const etch_tensor *t, const int64_t *numbers, etch_dims size) {
    static const int64_t none;
    etch_tensor *made = NULL;
    ETCH_ON(t->device) made = etch_from_host(numbers ? numbers : &none, ETCH_I64, size);
    return made;
}

/* Flat positions as an i64 vector. */
static etch_tensor *flat_positions(const op_call *call, const etch_tensor *t) {
    positions f;
    etch_tensor *index = NULL;
    if (find_nonzero(call, t, &f)) index = numbers_beside(t, f.at, ETCH_SHAPE(f.n));
    etch__free(f.at);
    return index;
}

etch_tensor *etch__composite_nonzero(const op_call *call) {
    etch_tensor *t = call->in[0], *result = NULL;
    positions f;
    int64_t *rows = NULL;
    if (find_nonzero(call, t, &f)) rows = etch__malloc((size_t)(f.n * t->ndim + 1) * sizeof *rows);
    for (int64_t i = 0; rows && i < f.n; i++)
        for (int d = t->ndim - 1; d >= 0; d--) {
            rows[i * t->ndim + d] = f.at[i] % t->size[d];
            f.at[i] /= t->size[d];
        }
    if (rows) result = numbers_beside(t, rows, ETCH_SHAPE(f.n, t->ndim));
    etch__free(rows);
    etch__free(f.at);
    return result;
}

/* The sizes to which a and b broadcast; false with the error set. */
static bool common_sizes(const op_call *call, const etch_tensor *a, const etch_tensor *b,
                         etch_dims *size) {
    size->n = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int d = 0; d < size->n; d++) {
        int i = d - size->n + a->ndim, j = d - size->n + b->ndim;
        int64_t x = i < 0 ? 1 : a->size[i], y = j < 0 ? 1 : b->size[j];
        if (x != y && x != 1 && y != 1)
            return etch__infer_fail(call, ETCH_ERR_SHAPE,
                                    "expected sizes that broadcast, got %s and %s", TEXT(a),
                                    TEXT(b));
        size->v[d] = x == 1 ? y : x;
    }
    return true;
}

static bool want_mask(const op_call *call) {
    if (call->in[1]->dtype == ETCH_BOOL) return true;
    return etch__infer_fail(call, ETCH_ERR_DTYPE, "expected a mask of bool, got %s",
                            etch_dtype_name(call->in[1]->dtype));
}

etch_tensor *etch__composite_masked_select(const op_call *call) {
    etch_dims size = {0};
    if (!want_mask(call) || !common_sizes(call, call->in[0], call->in[1], &size)) return NULL;
    etch_tensor *mask = etch_expand(call->in[1], size);
    etch_tensor *index = mask ? flat_positions(call, mask) : NULL;
    etch_tensor *t = index ? etch_expand(call->in[0], size) : NULL;
    if (!t || !(t = etch_reshape(t, ETCH_SHAPE(t->numel)))) return NULL;
    return etch_index_select(t, 0, index);
}

/* The sizes of t with the first dimensions, which the mask covers, as one; false with the error. */
static bool masked_sizes(const op_call *call, etch_dims *size) {
    const etch_tensor *t = call->in[0], *mask = call->in[1];
    *size = (etch_dims){.n = 1, .v = {mask->numel}};
    if (mask->ndim > t->ndim || memcmp(mask->size, t->size, mask->ndim * sizeof *t->size))
        return etch__infer_fail(call, ETCH_ERR_SHAPE,
                                "expected a mask of the first sizes of self, %s, got %s", TEXT(t),
                                TEXT(mask));
    if (t->ndim - mask->ndim + 1 > ETCH_MAX_DIMS)
        return etch__infer_fail(call, ETCH_ERR_SHAPE, "expected a mask with a dimension");
    for (int d = mask->ndim; d < t->ndim; d++) size->v[size->n++] = t->size[d];
    return true;
}

static etch_tensor *index_by_mask(const op_call *call) {
    etch_tensor *t = call->in[0];
    etch_dims size;
    if (!masked_sizes(call, &size)) return NULL;
    etch_tensor *index = flat_positions(call, call->in[1]);
    if (!index || !(t = etch_reshape(t, size))) return NULL;
    return etch_index_select(t, 0, index);
}

/* ---- values put where a mask holds ---- */

/* Whether the values are the same for every place of the mask: their last dimensions, the rest's,
 * are all that they have but for ones. */
static bool same_everywhere(const etch_tensor *v, const etch_dims *size) {
    return v->ndim < size->n || (v->ndim == size->n && v->size[0] == 1);
}

/* Then nothing has to be known of the mask: a selection. */
static etch_tensor *put_same(const op_call *call, etch_tensor *v, const etch_dims *size) {
    etch_tensor *t = call->in[0], *mask = call->in[1];
    etch_dims rest = {.n = size->n - 1}, wide = {.n = t->ndim};
    for (int d = 0; d < t->ndim; d++) wide.v[d] = d < mask->ndim ? mask->size[d] : 1;
    for (int d = 1; d < size->n; d++) rest.v[d - 1] = size->v[d];
    if (v->ndim == size->n) v = etch_select(v, 0, 0);
    v = v ? etch_expand(v, rest) : NULL;
    mask = v ? etch_reshape(mask, wide) : NULL;
    if (mask && call->at[0]) v = etch_add(t, v);
    return mask && v ? etch_where(mask, v, t) : NULL;
}

/* Else one row of values for each place: the mask is read. */
static etch_tensor *put_each(const op_call *call, etch_tensor *v, const etch_dims *size) {
    etch_tensor *t = call->in[0], *index = flat_positions(call, call->in[1]);
    if (!index) return NULL;
    if (v->ndim != size->n || v->size[0] != index->numel)
        FAIL(ETCH_ERR_SHAPE, "expected values for the %lld places of the mask, got %s",
             (long long)index->numel, TEXT(v));
    etch_tensor *flat = etch_reshape(t, *size);
    etch_tensor *put = flat ? etch_index_put(flat, index, v, call->at[0] != 0) : NULL;
    return put ? etch_reshape(put, etch_sizes(t)) : NULL;
}

etch_tensor *etch__put_by_mask(const op_call *call) {
    etch_tensor *t = call->in[0], *v = call->in[2];
    etch_dims size;
    if (!masked_sizes(call, &size)) return NULL;
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    if (v->dtype != t->dtype)
        FAIL(ETCH_ERR_DTYPE, "expected values of %s, as self, got %s", etch_dtype_name(t->dtype),
             etch_dtype_name(v->dtype));
    etch_tensor *put = (same_everywhere(v, &size) ? put_same : put_each)(call, v, &size);
    bool in_place = etch__ops[call->op].kind == KIND_INPLACE;
    return put && in_place ? etch_copy_(t, put) : put;
}

/* Negative integers count from the end, so they are wrapped first. */
etch_tensor *etch__composite_index(const op_call *call) {
    etch_tensor *t = call->in[0], *index = call->in[1];
    if (index->dtype == ETCH_BOOL) return index_by_mask(call);
    if (etch__is_float(index->dtype))
        FAIL(ETCH_ERR_DTYPE, "expected indices of integers or bool, got %s",
             etch_dtype_name(index->dtype));
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    return (index = from_start(index, t->size[0])) ? rows_of(call, t, index) : NULL;
}
