/* The rules of derivatives, one function a row of derivatives.def, and what they share.
 *
 * A rule that computes more than one product works in f32 where the operator's result is of a half
 * type, as the operator itself did: grad_of, operand and result give what it reads in that dtype,
 * and the engine rounds once, to the operand's. */
#ifndef ETCH_CORE_AUTOGRAD_RULES_H
#define ETCH_CORE_AUTOGRAD_RULES_H

#include <etch/etch.h>

#include "core/autograd/derivative.h"

#define DERIVATIVE(name, ...) void etch__derivative_##name(const derivative_call *d);
#include "core/autograd/derivatives.def"

/* Of an operator that the user registered with one. */
void etch__derivative_of_users(const derivative_call *d);
void etch__no_derivative_of_users(const derivative_call *d);

/* RULE(name) { ... } is the function of a row. */
#define RULE(name) void etch__derivative_##name(const derivative_call *d)

/* ---- what a rule reads ---- */

static inline etch_tensor *in_dtype(etch_tensor *t, etch_dtype dtype) {
    return t && t->dtype != dtype ? etch_to(t, dtype) : t;
}
/* That of the result, f32 for a half one. */
static inline etch_dtype dtype_of_rule(const derivative_call *d) {
    etch_dtype dtype = d->outshape->dtype;
    return etch__is_half(dtype) ? ETCH_F32 : dtype;
}
static inline etch_tensor *grad_of(const derivative_call *d) {
    return in_dtype(d->grad, dtype_of_rule(d));
}
static inline etch_tensor *operand(const derivative_call *d, int i) {
    return in_dtype(d->in[i], dtype_of_rule(d));
}
static inline etch_tensor *result(const derivative_call *d) {
    return in_dtype(d->result, dtype_of_rule(d));
}

/* ---- what a rule makes ---- */

static inline etch_tensor *zeros_of(const value_shape *s, etch_dtype dtype, etch_shape sizes) {
    etch_tensor *t = NULL;
    ETCH_ON(s->device) t = etch_zeros(dtype, sizes);
    return t;
}
/* Zeros with the sizes of operand i, into which parts of the gradient are written by indices that
 * are operands: batched as these are. */
static inline etch_tensor *zeros_like(const derivative_call *d, int i, etch_dtype dtype) {
    const value_shape *s = &d->shape[i];
    etch_tensor *like[] = {d->grad, d->nin > 1 ? d->in[1] : NULL};
    return etch__zeros_batched(dtype, etch__sizes_of(s), s->device, like, 2);
}
/* The gradient 0 of operand i, which the engine expands. */
static inline etch_tensor *no_slope(const derivative_call *d, int i) {
    return zeros_of(&d->shape[i], (etch_dtype)d->shape[i].dtype, ETCH_SHAPE());
}

/* ---- scalars ---- */

static inline double real_of(etch_scalar s) {
    return s.kind == ETCH_SCALAR_REAL ? s.d : (double)s.i;
}
/* A factor of 1, as most are, costs nothing. */
static inline etch_tensor *times(etch_tensor *t, etch_scalar factor) {
    return real_of(factor) == 1 ? t : etch_mul_scalar(t, factor);
}

/* ---- dimensions ---- */

static inline int wrapped_dim(int64_t dim, int ndim) {
    return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim);
}
/* The dimensions that a reduction of operand 0 is over. */
typedef struct reduced {
    uint32_t mask;
    bool keepdim;
    etch_dims size, dims; /* the operand's sizes with 1 for what is reduced; what is reduced */
    int64_t count;        /* elements that come to one */
} reduced;
reduced etch__reduced_of(const derivative_call *d);

/* ---- layer norm ---- */

typedef struct norm {
    etch_dims dims;        /* that are normalised: the last ones */
    etch_tensor *x, *rstd; /* the input less its mean, times rstd: one over its deviation */
} norm;
norm etch__norm_of(const derivative_call *d);
/* The normalisation's derivative, whose matrix is symmetric, times w. */
etch_tensor *etch__norm_slope(const norm *n, etch_tensor *w);

#endif
