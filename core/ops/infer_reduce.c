/* Reductions: which dimensions go, the sizes that are left, and in which dtype they accumulate. */
#include "core/ops/expr.h"
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

enum { ALL_DIMS = -1 };

/* The dimensions and keepdim of a reduction: a list at[0..] or one dimension at[0]. */
typedef struct reduced {
    int64_t n; /* ALL_DIMS, or how many */
    const int64_t *dims;
    bool keepdim;
} reduced;

static reduced reduced_of(op_id op, const int64_t *at) {
    switch ((shape_rule)etch__ops[op].srule) {
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

bool etch__reduce_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0];
    reduced r = reduced_of(call->op, call->at);
    reduce_kind how = (reduce_kind)etch__ops[call->op].impl;
    uint32_t mask;
    if (!dims_mask(call, &r, &mask)) return false;
    out->ndim = 0;
    for (int i = 0; i < t->ndim; i++) {
        bool gone = mask >> i & 1;
        if (gone && t->size[i] == 0 && !etch__reduction(how)->wide)
            FAIL(ETCH_ERR_EMPTY, "expected at least one element, got sizes %s", TEXT(t));
        if (!gone || r.keepdim) out->size[out->ndim++] = gone ? 1 : t->size[i];
    }
    return etch__row_major_result(call, out);
}

void etch__reduced_axes(op_id op, int ndim, const int64_t *at, uint32_t *mask, bool *keepdim) {
    reduced r = reduced_of(op, at);
    *mask = r.n == ALL_DIMS ? (1u << ndim) - 1 : 0;
    for (int i = 0; i < r.n; i++)
        *mask |= 1u << (r.dims[i] < 0 ? r.dims[i] + (ndim ? ndim : 1) : r.dims[i]);
    *mask &= (1u << ndim) - 1; /* dimension 0 of a 0-d tensor */
    *keepdim = r.keepdim;
}

void etch__reduce_axes(const op_call *call, uint32_t *mask, bool *keepdim) {
    etch__reduced_axes(call->op, call->in[0]->ndim, call->at, mask, keepdim);
}

reduce_plan etch__reduce_plan(const op_call *call, etch_dtype out) {
    reduce_plan plan = {.kind = (reduce_kind)etch__ops[call->op].impl};
    bool wide = etch__reduction(plan.kind)->wide;
    plan.element = wide ? out : call->in[0]->dtype;
    plan.acc = wide && !etch__is_float(out) ? ETCH_I64 : etch__compute_type(plan.element);
    return plan;
}
