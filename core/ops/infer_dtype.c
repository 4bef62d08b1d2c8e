/* Dtype rules: in which dtype a call computes and what its result is, as ATen has it. */
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)

static etch_dtype dtype_of(const etch_tensor *t) { return t->dtype; }
static const char *name_of(etch_dtype d) { return etch_dtype_name(d); }

static etch_dtype scalar_dtype(const etch_scalar *s) {
    if (s->kind == ETCH_SCALAR_REAL) return etch_default_dtype();
    return s->kind == ETCH_SCALAR_BOOL ? ETCH_BOOL : ETCH_I64;
}

/* ATen's categories: what has lower priority (a 0-d tensor beside others, a scalar beside tensors)
 * decides only where it is of a higher kind: bool < integer < float. ETCH_DTYPE_COUNT: absent. */
static etch_dtype combine(etch_dtype high, etch_dtype low) {
    if (high == ETCH_DTYPE_COUNT) return low;
    if (low == ETCH_DTYPE_COUNT || etch__is_float(high)) return high;
    return high == ETCH_BOOL || etch__is_float(low) ? etch_promote_types(high, low) : high;
}

static etch_dtype join(etch_dtype so_far, etch_dtype next) {
    return so_far == ETCH_DTYPE_COUNT ? next : etch_promote_types(so_far, next);
}

/* Promotes in[first..nin) and, if not NULL, a scalar operand. */
static etch_dtype promote(const op_call *call, int first, const etch_scalar *scalar) {
    etch_dtype dims = ETCH_DTYPE_COUNT, zero = ETCH_DTYPE_COUNT;
    for (int i = first; i < call->nin; i++) {
        etch_dtype *into = call->in[i]->ndim ? &dims : &zero;
        *into = join(*into, dtype_of(call->in[i]));
    }
    etch_dtype tensors = combine(dims, zero);
    return scalar ? combine(tensors, scalar_dtype(scalar)) : tensors;
}

/* Of the scalars of a pointwise call the first is an operand where there is one tensor only; the
 * last one may be a factor: alpha, which the result's dtype must be able to hold, or the value of
 * addcmul, which is converted to it. */
static const etch_scalar *operand_scalar(const op_call *call) {
    return call->nin == 1 && call->nsc ? call->sc : NULL;
}

static bool check_alpha(const op_call *call, etch_dtype d) {
    int operands = call->nin == 1 && call->nsc;
    for (int i = operands; i < call->nsc; i++) {
        etch_scalar_kind kind = call->sc[i].kind;
        if (kind == ETCH_SCALAR_REAL && !etch__is_float(d))
            FAIL(ETCH_ERR_DTYPE,
                 "expected an integer factor (alpha) for a result of %s, got a real one",
                 name_of(d));
        if (kind == ETCH_SCALAR_BOOL && d != ETCH_BOOL)
            FAIL(ETCH_ERR_DTYPE,
                 "expected a number as factor (alpha) for a result of %s, got a bool", name_of(d));
    }
    return true;
}

static bool promote_rule(const op_call *call, call_dtypes *d) {
    const etch_scalar *scalar = operand_scalar(call);
    bool same =
        !scalar && (call->nin == 1 || (call->nin == 2 && call->in[0]->dtype == call->in[1]->dtype));
    d->compute = same ? dtype_of(call->in[0]) : promote(call, 0, scalar);
    d->result = d->compute;
    bool alpha = call->nsc && etch__ops[call->op].flags & OPF_CLASS_ALPHA;
    return !alpha || check_alpha(call, d->result);
}

/* Bools beside numbers are numbers, but in differences, where a mistake is likelier. */
static bool promote_nobool_rule(const op_call *call, call_dtypes *d) {
    const etch_scalar *scalar = operand_scalar(call);
    bool got_bool = scalar && scalar->kind == ETCH_SCALAR_BOOL;
    for (int i = 0; i < call->nin; i++) got_bool |= call->in[i]->dtype == ETCH_BOOL;
    if (!promote_rule(call, d)) return false;
    bool difference = etch__ops[call->op].flags & OPF_CLASS_ALPHA;
    if (unlikely(got_bool) && (difference || d->compute == ETCH_BOOL))
        FAIL(ETCH_ERR_DTYPE, "expected numbers, got bool (use etch_to, or a logical operator)");
    return true;
}

/* A power of bools is one of integers. */
static bool square_rule(const op_call *call, call_dtypes *d) {
    d->compute = dtype_of(call->in[0]);
    if (d->compute == ETCH_BOOL) d->compute = ETCH_I64;
    d->result = d->compute;
    return true;
}

static bool promote_float_rule(const op_call *call, call_dtypes *d) {
    if (!promote_rule(call, d)) return false;
    if (!etch__is_float(d->compute)) d->compute = d->result = etch_default_dtype();
    return true;
}

static bool compare_rule(const op_call *call, call_dtypes *d) {
    if (!promote_rule(call, d)) return false;
    d->result = ETCH_BOOL;
    return true;
}

static bool where_rule(const op_call *call, call_dtypes *d) {
    if (call->in[0]->dtype != ETCH_BOOL)
        FAIL(ETCH_ERR_DTYPE, "expected a condition of bool, got %s",
             name_of(dtype_of(call->in[0])));
    d->compute = d->result = promote(call, 1, NULL);
    return true;
}

/* The dtype attribute, -1 when absent, always the last one before a class word. */
static bool dtype_attr(const op_call *call, int at, etch_dtype absent, call_dtypes *d) {
    int64_t v = call->at[at];
    if (unlikely(v < -1 || v >= ETCH_DTYPE_COUNT))
        FAIL(ETCH_ERR_DTYPE, "expected a dtype, got the number %lld", (long long)v);
    d->compute = d->result = v < 0 ? absent : v;
    return true;
}

static bool attr_rule(const op_call *call, call_dtypes *d) {
    return dtype_attr(call, call->nat - 1, etch_default_dtype(), d);
}

static bool attr_float_rule(const op_call *call, call_dtypes *d) {
    if (!attr_rule(call, d)) return false;
    if (!etch__is_float(d->result))
        FAIL(ETCH_ERR_DTYPE, "expected a floating dtype, got %s", name_of(d->result));
    return true;
}

static bool fill_rule(const op_call *call, call_dtypes *d) {
    return dtype_attr(call, call->nat - 1, scalar_dtype(call->sc), d);
}

static bool arange_rule(const op_call *call, call_dtypes *d) {
    etch_dtype absent = ETCH_I64;
    for (int i = 0; i < call->nsc; i++)
        if (call->sc[i].kind == ETCH_SCALAR_REAL) absent = etch_default_dtype();
    return dtype_attr(call, 0, absent, d);
}

static bool cast_rule(const op_call *call, call_dtypes *d) {
    return dtype_attr(call, 0, dtype_of(call->in[0]), d);
}

/* Products do not promote: a mixed one is nearly always a mistake, and ATen refuses it, too. */
static bool same_rule(const op_call *call, call_dtypes *d) {
    d->compute = d->result = dtype_of(call->in[0]);
    for (int i = 1; i < call->nin; i++)
        if (call->in[i]->dtype != call->in[0]->dtype)
            FAIL(ETCH_ERR_DTYPE, "expected operands of one dtype, got %s and %s",
                 name_of(d->result), name_of(dtype_of(call->in[i])));
    if (etch__ops[call->op].kind != KIND_CONTRACTION) return true;
    if (d->result == ETCH_BOOL) FAIL(ETCH_ERR_DTYPE, "expected numbers, got bool");
    for (int i = 0; i < call->nsc; i++)
        if (call->sc[i].kind == ETCH_SCALAR_REAL && !etch__is_float(d->result))
            FAIL(ETCH_ERR_DTYPE, "expected integer factors for operands of %s, got a real one",
                 name_of(d->result));
    return true;
}

static bool copy_rule(const op_call *call, call_dtypes *d) {
    d->compute = d->result = dtype_of(call->in[0]);
    return true;
}

static bool sum_rule(const op_call *call, call_dtypes *d) {
    etch_dtype in = dtype_of(call->in[0]);
    return dtype_attr(call, call->nat - 1, etch__is_float(in) ? in : ETCH_I64, d);
}

static bool mean_rule(const op_call *call, call_dtypes *d) {
    if (!dtype_attr(call, call->nat - 1, dtype_of(call->in[0]), d)) return false;
    if (!etch__is_float(d->result))
        FAIL(ETCH_ERR_DTYPE,
             "expected a floating dtype, got %s (give a dtype, or use etch_to first)",
             name_of(d->result));
    return true;
}

static bool index_rule(const op_call *call, call_dtypes *d) {
    d->compute = dtype_of(call->in[0]), d->result = ETCH_I64;
    return true;
}

static bool want_floats(const op_call *call, etch_dtype d) {
    if (likely(etch__is_float(d))) return true;
    FAIL(ETCH_ERR_DTYPE, "expected a floating dtype, got %s (use etch_to first)", name_of(d));
}

static bool float_rule(const op_call *call, call_dtypes *d) {
    return promote_rule(call, d) && want_floats(call, d->compute);
}

static bool bits_rule(const op_call *call, call_dtypes *d) {
    if (!promote_rule(call, d)) return false;
    if (etch__is_float(d->compute))
        FAIL(ETCH_ERR_DTYPE, "expected integers or bool, got %s", name_of(d->compute));
    return true;
}

static bool integer_rule(const op_call *call, call_dtypes *d) {
    return promote_nobool_rule(call, d) && bits_rule(call, d);
}

static bool clamp_rule(const op_call *call, call_dtypes *d) {
    d->compute = dtype_of(call->in[0]);
    for (int i = 0; i < call->nsc; i++)
        d->compute = combine(d->compute, scalar_dtype(&call->sc[i]));
    if (d->compute == ETCH_BOOL) FAIL(ETCH_ERR_DTYPE, "expected numbers, got bool");
    d->result = d->compute;
    return true;
}

static bool masked_fill_rule(const op_call *call, call_dtypes *d) {
    if (call->in[1]->dtype != ETCH_BOOL)
        FAIL(ETCH_ERR_DTYPE, "expected a mask of bool, got %s", name_of(dtype_of(call->in[1])));
    return copy_rule(call, d);
}

static bool indexed_rule(const op_call *call, call_dtypes *d) {
    etch_dtype index = dtype_of(call->in[1]);
    copy_rule(call, d);
    if (etch__is_float(index) || index == ETCH_BOOL)
        FAIL(ETCH_ERR_DTYPE, "expected an index of integers, got %s", name_of(index));
    if (call->nin == 3 && call->in[2]->dtype != call->in[0]->dtype)
        FAIL(ETCH_ERR_DTYPE, "expected values of %s, as self, got %s", name_of(d->result),
             name_of(dtype_of(call->in[2])));
    return true;
}

static bool softmax_dtype_rule(const op_call *call, call_dtypes *d) {
    d->compute = d->result = dtype_of(call->in[0]);
    if (!want_floats(call, d->compute)) return false;
    if (!call->at[1]) return true;
    if (d->compute != ETCH_BF16 && d->compute != ETCH_F16)
        FAIL(ETCH_ERR_DTYPE, "half_to_float expects bf16 or f16, got %s", name_of(d->compute));
    d->result = ETCH_F32;
    return true;
}

static bool layer_norm_dtype_rule(const op_call *call, call_dtypes *d) {
    d->compute = d->result = dtype_of(call->in[0]);
    if (!want_floats(call, d->compute)) return false;
    bool half = etch__is_half(d->compute);
    for (int i = 1; i < call->nin; i++) {
        etch_dtype w = dtype_of(call->in[i]);
        if (call->in[i] == ETCH_NONE || w == d->compute || (half && w == ETCH_F32)) continue;
        FAIL(ETCH_ERR_DTYPE, "expected %s of %s%s, got %s", i == 1 ? "weight" : "bias",
             name_of(d->compute), half ? " or f32" : "", name_of(w));
    }
    return true;
}

/* Operands have one dtype but for the last: the mask may be of bools, the seed is of f64. */
static bool attention_dtype_rule(const op_call *call, call_dtypes *d) {
    int seed = call->op == OP_ATTENTION ? -1 : call->nin - 1, mask = seed < 0 ? 3 : seed - 1;
    d->compute = d->result = dtype_of(call->in[0]);
    if (!want_floats(call, d->compute)) return false;
    for (int i = 1; i < mask; i++)
        if (dtype_of(call->in[i]) != d->compute)
            FAIL(ETCH_ERR_DTYPE, "expected %s of %s as %s, got %s", etch__operand_name(call->op, i),
                 name_of(d->compute), etch__operand_name(call->op, 0),
                 name_of(dtype_of(call->in[i])));
    etch_dtype m = call->in[mask] == ETCH_NONE ? ETCH_BOOL : dtype_of(call->in[mask]);
    bool half = etch__is_half(d->compute);
    if (m != ETCH_BOOL && m != d->compute && !(half && m == ETCH_F32))
        FAIL(ETCH_ERR_DTYPE, "expected attn_mask of bool%s or %s, got %s", half ? ", f32" : "",
             name_of(d->compute), name_of(m));
    if (seed >= 0 && call->in[seed] != ETCH_NONE && dtype_of(call->in[seed]) != ETCH_F64)
        FAIL(ETCH_ERR_DTYPE, "expected seed of f64, got %s", name_of(dtype_of(call->in[seed])));
    return true;
}

static bool attention_kept_dtype_rule(const op_call *call, call_dtypes *d) {
    d->compute = d->result = ETCH_F64;
    if (dtype_of(call->in[0]) == ETCH_F64) return true;
    FAIL(ETCH_ERR_DTYPE, "expected seed of f64, got %s", name_of(dtype_of(call->in[0])));
}

static bool convolution_dtype_rule(const op_call *call, call_dtypes *d) {
    d->compute = d->result = dtype_of(call->in[0]);
    for (int i = 1; i < call->nin; i++)
        if (call->in[i] != ETCH_NONE && call->in[i]->dtype != call->in[0]->dtype)
            FAIL(ETCH_ERR_DTYPE, "expected operands of one dtype, got %s and %s",
                 name_of(d->result), name_of(dtype_of(call->in[i])));
    if (d->compute == ETCH_BOOL) FAIL(ETCH_ERR_DTYPE, "expected numbers, got bool");
    return true;
}

static bool same_float_rule(const op_call *call, call_dtypes *d) {
    return same_rule(call, d) && want_floats(call, d->compute);
}

static bool max_pool_dtype_rule(const op_call *call, call_dtypes *d) {
    d->compute = d->result = dtype_of(call->in[0]);
    if (d->compute == ETCH_BOOL) FAIL(ETCH_ERR_DTYPE, "expected numbers, got bool");
    if (call->op == OP_MAX_POOL2D_INDICES) d->result = ETCH_I64;
    return true;
}

static bool no_dtype_rule(const op_call *call, call_dtypes *d) {
    (void)d;
    FAIL(ETCH_ERR_INTERNAL, "a composite operator has no inference of its own");
}

const dtype_fn etch__dtype_rules[DRULE_COUNT] = {
#define DTYPE_RULE(id, function) [DRULE_##id] = function,
#include "core/ops/rules.def"
};
