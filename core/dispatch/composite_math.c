/* Composite operators that compute: reductions made of others, and small formulas. */
#include "core/dispatch/composite.h"
#include "core/dispatch/dispatch.h"
#include "core/ops/expr.h"
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__), NULL

/* ---- the reduced dimensions: an int[]? at attribute 0 ---- */

static etch_dims reduced_dims(const op_call *call) {
    etch_dims d = {.n = (int32_t)call->at[0]};
    for (int i = 0; i < d.n && i < ETCH_MAX_DIMS; i++) d.v[i] = call->at[1 + i];
    return d;
}

static bool keeps_dims(const op_call *call) {
    return call->at[1 + (call->at[0] > 0 ? call->at[0] : 0)] != 0;
}

/* As a mask. A 0-d tensor has dimensions 0 and -1, none of which is there; dimensions out of range,
 * and more of them than a tensor can have, are the reduction's to refuse. */
static uint32_t reduced_mask(const etch_dims *d, int ndim) {
    uint32_t mask = d->n > 0 ? 0 : (1u << ndim) - 1;
    for (int i = 0; i < d->n && i < ETCH_MAX_DIMS; i++) {
        int64_t k = d->v[i] < 0 ? d->v[i] + ndim : d->v[i];
        if (k >= 0 && k < ndim) mask |= 1u << k;
    }
    return mask;
}

/* ---- variances ---- */

static etch_tensor *variance(const op_call *call) {
    etch_tensor *x = call->in[0];
    etch_dims dims = reduced_dims(call);
    if (!etch__is_float(x->dtype))
        FAIL(ETCH_ERR_DTYPE, "expected a floating dtype, got %s (use etch_to first)",
             etch_dtype_name(x->dtype));
    etch_tensor *wide = x->dtype == ETCH_F64 ? x : etch_to(x, ETCH_F64);
    etch_tensor *mean = wide ? etch_mean_dim(wide, dims, true) : NULL;
    etch_tensor *off = mean ? etch_sub(wide, mean) : NULL;
    etch_tensor *squares = off ? etch_square(off) : NULL;
    etch_tensor *sum = squares ? etch_sum_dim(squares, dims, keeps_dims(call)) : NULL;
    if (!sum) return NULL;
    int64_t n = 1;
    uint32_t mask = reduced_mask(&dims, x->ndim);
    for (int d = 0; d < x->ndim; d++)
        if (mask >> d & 1) n *= x->size[d];
    const etch_scalar *s = call->sc;
    double count = (double)n - (s->kind == ETCH_SCALAR_REAL ? s->d : (double)s->i);
    return etch_div_scalar(sum, count > 0 ? count : 0.0);
}

static etch_tensor *narrowed(etch_tensor *t, const etch_tensor *like) {
    return !t || t->dtype == like->dtype ? t : etch_to(t, like->dtype);
}

etch_tensor *etch__composite_var(const op_call *call) {
    return narrowed(variance(call), call->in[0]);
}

/* Of equal numbers the gradient is 0, where that of the root would be infinite. */
etch_tensor *etch__composite_std(const op_call *call) {
    etch_tensor *t = variance(call);
    if (t && etch__has_slope(t)) t = etch_masked_fill(t, etch_eq_scalar(t, 0), 0);
    return narrowed(t ? etch_sqrt(t) : NULL, call->in[0]);
}

/* ---- log of a sum of exponentials ---- */

static etch_tensor *without_dims(etch_tensor *t, uint32_t mask) {
    etch_dims size = {0};
    for (int d = 0; d < t->ndim; d++)
        if (!(mask >> d & 1)) size.v[size.n++] = t->size[d];
    return etch_view(t, size);
}

/* Whether each result is one of no elements. */
static bool reduces_nothing(const etch_tensor *t, const etch_dims *d) {
    uint32_t mask = reduced_mask(d, t->ndim);
    for (int i = 0; i < t->ndim; i++)
        if (mask >> i & 1 && !t->size[i]) return true;
    return false;
}

static etch_tensor *log_of_sum(etch_tensor *powers, const op_call *call) {
    etch_tensor *sum = etch_sum_dim(powers, reduced_dims(call), keeps_dims(call));
    return sum ? etch_log(sum) : NULL;
}

/* The largest is taken out first, unless it is infinite: then the difference would be NaN. */
etch_tensor *etch__composite_logsumexp(const op_call *call) {
    etch_tensor *x = call->in[0];
    etch_dims dims = reduced_dims(call);
    if (!etch__is_float(x->dtype) && !(x = etch_to(x, etch_default_dtype()))) return NULL;
    if (reduces_nothing(x, &dims)) return log_of_sum(x, call); /* of 0: -inf */
    etch_tensor *top = etch_amax(x, dims, true);
    etch_tensor *infinite = top ? etch_isinf(top) : NULL;
    if (!infinite || !(top = etch_masked_fill(top, infinite, 0))) return NULL;
    if (etch__has_slope(top)) top = etch_detach(top); /* whatever it is the result is the same */
    etch_tensor *below = etch_sub(x, top);
    etch_tensor *powers = below ? etch_exp(below) : NULL;
    etch_tensor *sum = powers ? etch_sum_dim(powers, dims, true) : NULL;
    etch_tensor *log = sum ? etch_log(sum) : NULL;
    etch_tensor *y = log ? etch_add(log, top) : NULL;
    return !y || keeps_dims(call) ? y : without_dims(y, reduced_mask(&dims, x->ndim));
}

/* ---- truth: sums, so that what is empty has a value, too ---- */

/* As in ATen the truth of u8 is one of u8. */
static etch_tensor *truth_of(etch_tensor *t, const op_call *call) {
    return !t || call->in[0]->dtype != ETCH_U8 ? t : etch_to(t, ETCH_U8);
}

etch_tensor *etch__composite_any(const op_call *call) {
    etch_tensor *truth = etch_ne_scalar(call->in[0], 0);
    etch_tensor *n = truth ? etch_sum_dim(truth, reduced_dims(call), keeps_dims(call)) : NULL;
    return n ? truth_of(etch_gt_scalar(n, 0), call) : NULL;
}

etch_tensor *etch__composite_all(const op_call *call) {
    etch_tensor *lie = etch_logical_not(call->in[0]);
    etch_tensor *n = lie ? etch_sum_dim(lie, reduced_dims(call), keeps_dims(call)) : NULL;
    return n ? truth_of(etch_eq_scalar(n, 0), call) : NULL;
}

etch_tensor *etch__composite_count_nonzero(const op_call *call) {
    etch_tensor *truth = etch_ne_scalar(call->in[0], 0);
    return truth ? etch_sum_dim(truth, reduced_dims(call), false) : NULL;
}

/* ---- formulas ---- */

/* The dtype of a product of floats: of a's dtype and b's, or the default one. */
static etch_dtype float_dtype(const etch_tensor *a, const etch_tensor *b) {
    tensor_meta m;
    etch_dtype compute;
    etch_tensor *in[2] = {(etch_tensor *)a, (etch_tensor *)b};
    const op_call div = {.op = OP_DIV_TENSOR, .nin = 2, .in = in};
    return etch__infer(&div, &m, &compute) == ETCH_OK ? m.dtype : ETCH_DTYPE_COUNT;
}

/* x times two to the whole numbers e, in f64, rounded once: what lies outside of +-200 goes first,
 * in halves. So no factor leaves the range, and a subnormal result is reached by the last one
 * alone: before it the value is 2^200 times as large, or goes to zero all the same. Beyond +-2200
 * every number is zero or infinite. */
static etch_tensor *scaled_by_powers(etch_tensor *x, etch_tensor *e) {
    etch_tensor *last = NULL, *rest = NULL, *half = NULL;
    if ((e = etch_clamp(e, -2200, 2200))) last = etch_clamp(e, -200, 200);
    if (last && (rest = etch_sub(e, last))) half = etch_trunc(etch_mul_scalar(rest, 0.5));
    if (half) rest = etch_sub(rest, half);
    etch_tensor *const exponent[3] = {half, half ? rest : NULL, last};
    for (int k = 0; k < 3 && x; k++) {
        etch_tensor *power = exponent[k] ? etch_exp2(exponent[k]) : NULL;
        x = power ? etch_mul(x, power) : NULL;
    }
    return x;
}

/* By a power of two that need not be a number of the result's dtype itself. Real exponents take the
 * power in f64, too, and as it is: they may have gradients, which end where one is clamped. */
etch_tensor *etch__composite_ldexp(const op_call *call) {
    etch_tensor *x = call->in[0], *e = call->in[1];
    bool whole = !etch__is_float(e->dtype);
    etch_dtype dtype = float_dtype(x, e);
    if (dtype == ETCH_DTYPE_COUNT) return NULL;
    if (!(x = etch_to(x, ETCH_F64)) || !(e = etch_to(e, ETCH_F64))) return NULL;
    if (whole) x = scaled_by_powers(x, e);
    else x = (e = etch_exp2(e)) ? etch_mul(x, e) : NULL;
    return x && dtype != ETCH_F64 ? etch_to(x, dtype) : x;
}

etch_tensor *etch__composite_clamp_tensor(const op_call *call) {
    etch_tensor *t = call->in[0], *low = call->in[1], *high = call->in[2];
    if (low == ETCH_NONE && high == ETCH_NONE)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected min, max or both, got none");
    if (low != ETCH_NONE) t = etch_maximum(t, low);
    return t && high != ETCH_NONE ? etch_minimum(t, high) : t;
}
