/* Every pointwise and in-place operator of the table against a plain reference in double or int64:
 * all dtypes, layouts, broadcasts and odd values. What one rounding decides is compared bit for
 * bit; the transcendental functions have a tolerance in units of the last place of the result's
 * dtype.
 * Labels: kernels sanitizer optimised. */
#include "cpu_support.h"
#include "device_support.h"
#include "tools/verify/references.h"

/* ---- the reference ---- */

/* The compute dtype of the call at hand: intermediate results are rounded to its compute type. */
static etch_dtype computing;
static double rnd(double v) { return computing == ETCH_F64 ? v : (double)(float)v; }

typedef struct operands {
    double x, y, z;  /* floats, in the compute dtype; z: the third operand */
    int64_t i, j, k; /* integers */
    double s[4];     /* scalars in the compute dtype */
    int64_t t[4];
    bool condition;
    const etch_scalar *given;
    bool flag; /* the first attribute */
} operands;

typedef struct op_reference {
    const char *name; /* as in the table, without in-place underscore and overload */
    double ulp;       /* 0: exact */
    double (*real)(const operands *o);
    int64_t (*whole)(const operands *o);
} op_reference;

#define REAL(name, expression)                                                                     \
    static double name##_real(const operands *o) {                                                 \
        (void)o;                                                                                   \
        return (expression);                                                                       \
    }
#define WHOLE(name, expression)                                                                    \
    static int64_t name##_whole(const operands *o) {                                               \
        (void)o;                                                                                   \
        return (int64_t)(expression);                                                              \
    }
#define BOTH(name, real, whole) REAL(name, real) WHOLE(name, whole)
#define U(v) ((uint64_t)(v))

/* x, or y where it is further. */
static double at_least(double x, double y) { return isnan(y) || y > x ? y : x; }
static double at_most(double x, double y) { return isnan(y) || y < x ? y : x; }
/* -0 is below +0. */
static double larger(double x, double y) {
    return !isnan(x) && x == y && signbit(x) ? y : at_least(x, y);
}
static double smaller(double x, double y) {
    return !isnan(x) && x == y && signbit(y) ? y : at_most(x, y);
}
static double power(double x, double e) {
    if (e == 2) return rnd(x * x);
    if (e == 3) return rnd(rnd(x * x) * x);
    if (e == 0.5) return rnd(sqrt(x));
    if (e == -1) return rnd(1 / x);
    if (e == 1) return x;
    return e == 0 ? 1 : rnd(pow(x, e));
}
static int64_t whole_power(int64_t x, int64_t e) {
    if (e < 0) return x == 1 ? 1 : x == -1 ? (e % 2 ? -1 : 1) : 0;
    uint64_t r = 1;
    for (; e > 0; e--) r *= U(x); /* exponents are small: see keeps_tame */
    return (int64_t)r;
}

BOTH(add_tensor, rnd(o->x + rnd(o->s[0] * o->y)),
     computing == ETCH_BOOL ? U(o->i | (o->t[0] & o->j)) : U(o->i) + U(o->t[0]) * U(o->j))
BOTH(add_scalar, rnd(o->x + rnd(o->s[0] * o->s[1])),
     computing == ETCH_BOOL ? U(o->i | (o->t[0] & o->t[1])) : U(o->i) + U(o->t[0]) * U(o->t[1]))
BOTH(sub_tensor, rnd(o->x - rnd(o->s[0] * o->y)), U(o->i) - U(o->t[0]) * U(o->j))
BOTH(sub_scalar, rnd(o->x - rnd(o->s[0] * o->s[1])), U(o->i) - U(o->t[0]) * U(o->t[1]))
BOTH(rsub_scalar, rnd(o->s[0] - rnd(o->s[1] * o->x)), U(o->t[0]) - U(o->t[1]) * U(o->i))
BOTH(mul_tensor, rnd(o->x * o->y), U(o->i) * U(o->j))
BOTH(mul_scalar, rnd(o->x * o->s[0]), U(o->i) * U(o->t[0]))
REAL(div_tensor, rnd(o->x / o->y))
REAL(div_scalar, rnd(o->x / o->s[0]))
BOTH(pow_tensor, rnd(pow(o->x, o->y)), whole_power(o->i, o->j))
BOTH(pow_scalar, power(o->x, o->s[0]), whole_power(o->i, o->t[0]))
BOTH(maximum, larger(o->x, o->y), o->i > o->j ? o->i : o->j)
BOTH(minimum, smaller(o->x, o->y), o->i < o->j ? o->i : o->j)
BOTH(neg, -o->x, 0 - U(o->i))
BOTH(abs, fabs(o->x), o->i < 0 ? 0 - U(o->i) : U(o->i))
BOTH(relu, at_least(o->x, 0), o->i > 0 ? o->i : 0)
REAL(sqrt, rnd(sqrt(o->x)))
REAL(rsqrt, rnd(1 / rnd(sqrt(o->x))))
#define PRIM(id, name, arity, types, class, meaning)
#define FUNCTION(id, name, ...) REAL(name, (double)name##l(o->x))
#include "core/ops/prims.def"
REAL(reciprocal, rnd(1 / o->x))
static double ref_gelu(double x, bool by_tanh) {
    if (!by_tanh) return rnd(x * 0.5) * rnd(1 + rnd(erf(rnd(x * rnd(0.70710678118654752440)))));
    double cube = rnd(rnd(rnd(x * x) * x) * rnd(0.044715));
    double inner = rnd(rnd(0.79788456080286535588) * rnd(x + cube));
    return rnd(x * 0.5) * rnd(1 + rnd(tanh(inner)));
}
REAL(gelu, ref_gelu(o->x, o->flag))
BOTH(square, rnd(o->x * o->x), U(o->i) * U(o->i))
BOTH(floor, floor(o->x), o->i)
BOTH(ceil, ceil(o->x), o->i)
BOTH(trunc, trunc(o->x), o->i)
BOTH(round, nearbyint(o->x), o->i)
BOTH(sign, (o->x > 0) - (o->x < 0), (o->i > 0) - (o->i < 0))
REAL(frac, rnd(o->x - trunc(o->x)))
BOTH(isnan, isnan(o->x), 0)
WHOLE(bitwise_not, computing == ETCH_BOOL ? !o->i : ~o->i)
BOTH(logical_xor, (o->x != 0) != (o->y != 0), !o->i != !o->j)
WHOLE(bitwise_and, o->i & o->j)
WHOLE(bitwise_or, o->i | o->j)
WHOLE(bitwise_xor, o->i ^ o->j)
WHOLE(bitwise_and_scalar, o->i & o->t[0])
WHOLE(bitwise_or_scalar, o->i | o->t[0])
WHOLE(bitwise_xor_scalar, o->i ^ o->t[0])
static int64_t shifted(int64_t x, int64_t n, bool left) {
    int64_t width = 8 * (int64_t)etch_dtype_size(computing);
    if (n >= 0 && n < width) return left ? (int64_t)(U(x) << n) : x >> n;
    return !left && x < 0 ? -1 : 0;
}
WHOLE(left_shift, shifted(o->i, o->j, true))
WHOLE(right_shift, shifted(o->i, o->j, false))
WHOLE(left_shift_scalar, shifted(o->i, o->t[0], true))
WHOLE(right_shift_scalar, shifted(o->i, o->t[0], false))
/* By the magnitude in 128 bits, so that nothing overflows. */
static int64_t quotient(int64_t x, int64_t y, bool down) {
    __int128 q = (__int128)x / y, r = (__int128)x - q * y;
    return (int64_t)(down && r != 0 && (r < 0) != (y < 0) ? q - 1 : q);
}
static int64_t rest(int64_t x, int64_t y, bool down) {
    return (int64_t)((__int128)x - (__int128)quotient(x, y, down) * y);
}
static double real_rest(double x, double y) {
    double r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? rnd(r + y) : r;
}
/* The floor of the quotient that is next to the exact one: (x - rest) / y is whole but for
 * rounding. */
static double real_quotient(double x, double y) {
    if (y == 0) return rnd(x / y);
    double r = fmod(x, y), q = rnd(rnd(x - r) / y);
    if (r != 0 && (r < 0) != (y < 0)) q = rnd(q - 1);
    if (q == 0) return copysign(0, x / y);
    return q - floor(q) > 0.5 ? rnd(floor(q) + 1) : floor(q);
}
BOTH(fmod, fmod(o->x, o->y), rest(o->i, o->j, false))
BOTH(fmod_scalar, fmod(o->x, o->s[0]), rest(o->i, o->t[0], false))
BOTH(remainder, real_rest(o->x, o->y), rest(o->i, o->j, true))
BOTH(remainder_scalar, real_rest(o->x, o->s[0]), rest(o->i, o->t[0], true))
BOTH(floor_divide, real_quotient(o->x, o->y), quotient(o->i, o->j, true))
BOTH(floor_divide_scalar, real_quotient(o->x, o->s[0]), quotient(o->i, o->t[0], true))
static int64_t clamped(int64_t v, etch_scalar low, etch_scalar high) {
    if (v < low.i) v = low.i;
    return v > high.i ? high.i : v;
}
static etch_scalar saturated(etch_scalar s) {
    number n = ref_convert(real_number((double)s.i), computing);
    return s.i > -(1ll << 52) && s.i < 1ll << 52 ? etch_scalar_int(n.i) : s;
}
#define LEAST etch_scalar_int(INT64_MIN)
#define MOST etch_scalar_int(INT64_MAX)
#define BOUND(k) saturated(o->given[k])
BOTH(clamp, at_most(at_least(o->x, o->s[0]), o->s[1]), clamped(o->i, BOUND(0), BOUND(1)))
BOTH(clamp_min, at_least(o->x, o->s[0]), clamped(o->i, BOUND(0), MOST))
BOTH(clamp_max, at_most(o->x, o->s[0]), clamped(o->i, LEAST, BOUND(0)))
BOTH(eq_tensor, o->x == o->y, o->i == o->j)
BOTH(ne_tensor, o->x != o->y, o->i != o->j)
BOTH(lt_tensor, o->x < o->y, o->i < o->j)
BOTH(le_tensor, o->x <= o->y, o->i <= o->j)
BOTH(gt_tensor, o->x > o->y, o->i > o->j)
BOTH(ge_tensor, o->x >= o->y, o->i >= o->j)
BOTH(eq_scalar, o->x == o->s[0], o->i == o->t[0])
BOTH(ne_scalar, o->x != o->s[0], o->i != o->t[0])
BOTH(lt_scalar, o->x < o->s[0], o->i < o->t[0])
BOTH(le_scalar, o->x <= o->s[0], o->i <= o->t[0])
BOTH(gt_scalar, o->x > o->s[0], o->i > o->t[0])
BOTH(ge_scalar, o->x >= o->s[0], o->i >= o->t[0])
BOTH(logical_not, o->x == 0, o->i == 0)
BOTH(logical_and, o->x != 0 && o->y != 0, o->i && o->j)
BOTH(logical_or, o->x != 0 || o->y != 0, o->i || o->j)
BOTH(signbit, signbit(o->x) != 0, o->i < 0)
BOTH(isinf, isinf(o->x), 0)
BOTH(isfinite, isfinite(o->x), 1)
REAL(copysign, isnan(o->x) ? NAN : copysign(o->x, o->y))
BOTH(fmax,
     isnan(o->x)   ? o->y
     : isnan(o->y) ? o->x
                   : at_least(o->x, o->y),
     o->i > o->j ? o->i : o->j)
BOTH(fmin, isnan(o->x) ? o->y : isnan(o->y) ? o->x : at_most(o->x, o->y), o->i < o->j ? o->i : o->j)
BOTH(addcmul, rnd(o->x + rnd(rnd(o->s[0] * o->y) * o->z)), U(o->i) + U(o->t[0]) * U(o->j) * U(o->k))
REAL(addcdiv, rnd(o->x + rnd(rnd(o->s[0] * o->y) / o->z)))
static double between(double x, double y, double w) {
    double way = rnd(y - x);
    return fabs(w) < 0.5 ? rnd(x + rnd(w * way)) : rnd(y - rnd(way * rnd(1 - w)));
}
REAL(lerp, between(o->x, o->y, o->z))
REAL(lerp_scalar, between(o->x, o->y, o->s[0]))
BOTH(masked_fill, o->condition ? o->s[0] : o->x, o->condition ? o->t[0] : o->i)
BOTH(where, o->condition ? o->y : o->z, o->condition ? o->j : o->k)
BOTH(identity, o->x, o->i)
BOTH(second, o->y, o->j)
BOTH(fill, o->s[0], o->t[0])
BOTH(zero, 0, 0)

#define REF(name, fn, ulp)                                                                         \
    { name, ulp, fn##_real, fn##_whole }
#define REF_REAL(name, fn, ulp)                                                                    \
    { name, ulp, fn##_real, NULL }
#define REF_WHOLE(name, fn)                                                                        \
    { name, 0, NULL, fn##_whole }
static const op_reference op_references[] = {
#define PRIM(id, name, arity, types, class, meaning)
#define FUNCTION(id, name, ...) REF_REAL(#name, name, 4),
#include "core/ops/prims.def"
    REF("add.Tensor", add_tensor, 0),
    REF("add.Scalar", add_scalar, 0),
    REF("sub.Tensor", sub_tensor, 0),
    REF("sub.Scalar", sub_scalar, 0),
    REF("rsub.Scalar", rsub_scalar, 0),
    REF("mul.Tensor", mul_tensor, 0),
    REF("mul.Scalar", mul_scalar, 0),
    REF_REAL("div.Tensor", div_tensor, 0),
    REF_REAL("div.Scalar", div_scalar, 0),
    REF("pow.Tensor_Tensor", pow_tensor, 4),
    REF("pow.Tensor_Scalar", pow_scalar, 4),
    REF("pow.Scalar", pow_scalar, 4),
    REF("maximum", maximum, 0),
    REF("minimum", minimum, 0),
    REF("neg", neg, 0),
    REF("abs", abs, 0),
    REF("relu", relu, 0),
    REF_REAL("sqrt", sqrt, 0),
    REF_REAL("rsqrt", rsqrt, 0),
    REF_REAL("reciprocal", reciprocal, 0),
    REF_REAL("gelu", gelu, 8),
    REF("square", square, 0),
    REF("floor", floor, 0),
    REF("ceil", ceil, 0),
    REF("trunc", trunc, 0),
    REF("round", round, 0),
    REF("sign", sign, 0),
    REF("isnan", isnan, 0),
    REF("logical_xor", logical_xor, 0),
    REF("clamp", clamp, 0),
    REF("clamp_min", clamp_min, 0),
    REF("clamp_max", clamp_max, 0),
    REF_REAL("frac", frac, 0),
    REF_WHOLE("bitwise_not", bitwise_not),
    REF_WHOLE("bitwise_and.Tensor", bitwise_and),
    REF_WHOLE("bitwise_and.Scalar", bitwise_and_scalar),
    REF_WHOLE("bitwise_or.Tensor", bitwise_or),
    REF_WHOLE("bitwise_or.Scalar", bitwise_or_scalar),
    REF_WHOLE("bitwise_xor.Tensor", bitwise_xor),
    REF_WHOLE("bitwise_xor.Scalar", bitwise_xor_scalar),
    REF_WHOLE("bitwise_left_shift.Tensor", left_shift),
    REF_WHOLE("bitwise_left_shift.Tensor_Scalar", left_shift_scalar),
    REF_WHOLE("bitwise_right_shift.Tensor", right_shift),
    REF_WHOLE("bitwise_right_shift.Tensor_Scalar", right_shift_scalar),
    REF("fmod.Tensor", fmod, 0),
    REF("fmod.Scalar", fmod_scalar, 0),
    REF("remainder.Tensor", remainder, 0),
    REF("remainder.Scalar", remainder_scalar, 0),
    REF("floor_divide", floor_divide, 0),
    REF("floor_divide.Scalar", floor_divide_scalar, 0),
    REF("eq.Tensor", eq_tensor, 0),
    REF("ne.Tensor", ne_tensor, 0),
    REF("lt.Tensor", lt_tensor, 0),
    REF("le.Tensor", le_tensor, 0),
    REF("gt.Tensor", gt_tensor, 0),
    REF("ge.Tensor", ge_tensor, 0),
    REF("eq.Scalar", eq_scalar, 0),
    REF("ne.Scalar", ne_scalar, 0),
    REF("lt.Scalar", lt_scalar, 0),
    REF("le.Scalar", le_scalar, 0),
    REF("gt.Scalar", gt_scalar, 0),
    REF("ge.Scalar", ge_scalar, 0),
    REF("logical_not", logical_not, 0),
    REF("logical_and", logical_and, 0),
    REF("logical_or", logical_or, 0),
    REF("signbit", signbit, 0),
    REF("isinf", isinf, 0),
    REF("isfinite", isfinite, 0),
    REF_REAL("copysign.Tensor", copysign, 0),
    REF("fmax", fmax, 0),
    REF("fmin", fmin, 0),
    REF("addcmul", addcmul, 0),
    REF_REAL("addcdiv", addcdiv, 0),
    REF_REAL("lerp.Tensor", lerp, 0),
    REF_REAL("lerp.Scalar", lerp_scalar, 0),
    REF("masked_fill.Scalar", masked_fill, 0),
    REF("where.self", where, 0),
    REF("_to_copy", identity, 0),
    REF("clone", identity, 0),
    REF("copy_", second, 0),
    REF("fill_.Scalar", fill, 0),
    REF("zero_", zero, 0),
};

/* "add_.Tensor" is computed as "add.Tensor". */
static const op_reference *reference_of(const char *name) {
    char plain[64];
    for (int exact = 1; exact >= 0; exact--) {
        int n = 0;
        for (const char *p = name; *p; p++)
            if (exact || *p != '_' || (p[1] != '.' && p[1])) plain[n++] = *p;
        plain[n] = 0;
        for (int k = 0; k < COUNT_OF(op_references); k++)
            if (strcmp(op_references[k].name, plain) == 0) return &op_references[k];
    }
    return NULL;
}

/* Distance of a from the true value v, in units in the last place of dtype d at v. */
static double ulps(double a, double v, etch_dtype d) {
    if (isnan(v) || isnan(a)) return isnan(v) && isnan(a) ? 0 : INFINITY;
    static const int bits[] = {24, 53, 8, 11}, least[] = {-126, -1022, -126, -14};
    number top = ref_convert(real_number(v), d);
    if (isinf(a) || isinf(top.d)) {
        /* at the edge of overflow either side is near enough */
        return a == top.d || fabs(v) > ldexp(1, d == ETCH_F64   ? 1023
                                                : d == ETCH_F16 ? 15
                                                                : 127) *
                                           1.9
                   ? 0
                   : INFINITY;
    }
    int e = v == 0 ? least[d] : ilogb(v);
    if (e < least[d]) e = least[d];
    return fabs(a - v) / ldexp(1, e - bits[d] + 1);
}

/* ---- one call ---- */

typedef struct trial {
    op_call call;
    etch_tensor *in[3];
    etch_scalar sc[4];
    int64_t at[4];
    etch_dtype compute;
} trial;

static int count_of(const char *schema, const char *word) {
    int n = 0;
    for (const char *p = schema; (p = strstr(p, word)) && p < strstr(schema, "->"); p++) n++;
    return n;
}

static void set_trial(trial *t, op_id op) {
    const op_info *info = &etch__ops[op];
    memset(t, 0, sizeof *t);
    int tensors = count_of(info->schema, "Tensor ") + count_of(info->schema, "Tensor(a!) ");
    t->call = (op_call){.op = (uint16_t)op,
                        .nin = (uint16_t)tensors,
                        .in = t->in,
                        .sc = t->sc,
                        .at = t->at,
                        .nsc = (uint8_t)count_of(info->schema, "Scalar ")};
    if (op == OP_TO_COPY) t->at[t->call.nat++] = -1;
    if (op == OP_GELU) t->at[t->call.nat++] = (test_random() & 1) != 0;
    if (op == OP_COPY_) t->at[t->call.nat++] = 0;
    for (int k = 0; k < t->call.nsc; k++) t->sc[k] = etch_scalar_int(1);
}

/* Which operand is a condition, a bool beside the others; -1: none. */
static int condition_of(const trial *t) {
    if (t->call.op == OP_WHERE) return 0;
    return t->call.op == OP_MASKED_FILL || t->call.op == OP_MASKED_FILL_ ? 1 : -1;
}

static void finish_trial(trial *t) {
    const op_info *info = &etch__ops[t->call.op];
    if (!(info->flags & OPF_CLASS)) return;
    t->at[t->call.nat] = etch__op_class(info, t->sc, t->call.nsc, t->at);
    t->call.nat++;
}

/* Flat position in `in` of element `flat` of the broadcast shape of `out`. */
static int64_t broadcast_flat(const etch_tensor *in, const etch_tensor *out, int64_t flat) {
    int64_t at[ETCH_MAX_DIMS], result = 0;
    if (in->numel == out->numel) return flat; /* the sizes differ by ones at most */
    for (int d = out->ndim - 1; d >= 0; d--) at[d] = flat % out->size[d], flat /= out->size[d];
    for (int d = 0; d < in->ndim; d++) {
        int64_t k = at[out->ndim - in->ndim + d];
        result = result * in->size[d] + (in->size[d] == 1 ? 0 : k);
    }
    return result;
}

static number scalar_number(etch_scalar s) {
    return s.kind == ETCH_SCALAR_REAL ? real_number(s.d) : whole_number(s.i);
}

/* Whether scalar k, or (k < 0) a second operand of a wider type, is a factor, which stays in the
 * compute type. */
static bool is_factor(op_id op, int k) {
    switch (op) {
    case OP_MUL_TENSOR:
    case OP_MUL_TENSOR_:
    case OP_DIV_TENSOR:
    case OP_DIV_TENSOR_:
    case OP_FLOOR_DIVIDE_TENSOR: return k < 0;
    case OP_MUL_SCALAR:
    case OP_MUL_SCALAR_:
    case OP_DIV_SCALAR:
    case OP_DIV_SCALAR_:
    case OP_FLOOR_DIVIDE_SCALAR:
    case OP_ADDCMUL:
    case OP_ADDCMUL_:
    case OP_ADDCDIV:
    case OP_ADDCDIV_:
    case OP_LERP_SCALAR:
    case OP_LERP_SCALAR_: return k >= 0;
    default: return false;
    }
}

/* The dtype that scalar k is rounded to: none, f64, for an exponent beside f32. */
static etch_dtype scalar_rounds_to(const trial *t, int k) {
    op_id op = t->call.op;
    bool power = op == OP_POW_SCALAR || op == OP_POW_SCALAR_;
    if (power && t->compute == ETCH_F32) return ETCH_F64;
    return is_factor(op, k) ? etch__compute_type(t->compute) : t->compute;
}

static number expected(const trial *t, const op_reference *r, const number *value, etch_dtype out,
                       double *exact) {
    operands o = {0};
    double *real[3] = {&o.x, &o.y, &o.z};
    int64_t *whole[3] = {&o.i, &o.j, &o.k};
    int condition = condition_of(t);
    for (int k = 0; k < t->call.nin; k++) {
        bool wider = k == 1 && is_factor(t->call.op, -1) && t->in[1]->dtype <= ETCH_F64;
        etch_dtype to = wider ? etch__compute_type(t->compute) : t->compute;
        number v = k == condition ? value[k] : ref_convert(value[k], to);
        *real[k] = v.d, *whole[k] = v.i;
    }
    o.condition = condition >= 0 && *whole[condition] != 0;
    o.given = t->sc, o.flag = t->at[0] != 0;
    for (int k = 0; k < t->call.nsc; k++) {
        number v = ref_convert(scalar_number(t->sc[k]), scalar_rounds_to(t, k));
        o.s[k] = v.d, o.t[k] = v.i;
    }
    bool truth = etch__ops[t->call.op].drule == etch__ops[OP_EQ_TENSOR].drule; /* gives a bool */
    computing = t->compute;
    number v;
    if (is_float(t->compute)) {
        v = real_number(r->real(&o));
        *exact = v.d;
        v = truth ? whole_number(v.d != 0) : ref_convert(v, t->compute);
    } else {
        assert_non_null(r->whole);
        v = whole_number(ref_wrap(r->whole(&o), truth ? ETCH_BOOL : t->compute));
    }
    return ref_convert(v, out);
}

/* Whether an integer divisor is 0 in the common dtype. */
static bool divides_by_zero(const trial *t) {
    if (!(etch__ops[t->call.op].flags & OPF_MAY_FAIL) || is_float(t->compute)) return false;
    if (t->call.nin == 1) return ref_convert(scalar_number(t->sc[0]), t->compute).i == 0;
    for (int64_t i = 0; i < t->in[1]->numel; i++)
        if (get(t->in[1], i).i == 0) return true;
    return false;
}

static void mend_divisor(trial *t, number *before) {
    if (t->call.nin == 1) {
        t->sc[0] = etch_scalar_int(7);
        return;
    }
    for (int64_t i = 0; i < t->in[1]->numel; i++)
        if (get(t->in[1], i).i == 0) put(t->in[1], i, before[i] = whole_number(1));
    for (int64_t i = 0; i < t->in[1]->numel; i++) before[i] = get(t->in[1], i);
}

/* Runs the trial and compares every element; false when inference rejects the combination. */
static bool run_trial(trial *t) {
    const op_info *info = &etch__ops[t->call.op];
    const op_reference *r = reference_of(info->name);
    if (!r) fail_msg("no reference for %s", info->name);
    tensor_meta meta;
    finish_trial(t);
    if (etch__infer(&t->call, &meta, &t->compute) != ETCH_OK) {
        etch_clear_error();
        return false;
    }
    number *before[3] = {0};
    for (int k = 0; k < t->call.nin; k++) {
        before[k] = malloc((size_t)(t->in[k]->numel + 1) * sizeof(number));
        for (int64_t i = 0; i < t->in[k]->numel; i++) before[k][i] = get(t->in[k], i);
    }
    if (divides_by_zero(t)) {
        assert_null(test_settled(etch__dispatch(&t->call)));
        assert_int_equal(etch_last_status(), ETCH_ERR_DIVISION_BY_ZERO);
        etch_clear_error();
        mend_divisor(t, before[1]);
    }
    etch_tensor *y = etch__dispatch(&t->call);
    if (!y) fail_msg("%s: %s", info->name, etch_last_error());
    if (info->kind == KIND_INPLACE) assert_ptr_equal(y, t->in[0]);
    else assert_true(y->contiguous);
    for (int64_t i = 0; i < y->numel; i++) {
        number value[3] = {{0}}, have = get(y, i);
        double exact = 0;
        for (int k = 0; k < t->call.nin; k++) value[k] = before[k][broadcast_flat(t->in[k], y, i)];
        number want = expected(t, r, value, y->dtype, &exact);
        if (same_number(want, have)) continue;
        double off = have.real && r->ulp ? ulps(have.d, exact, y->dtype) : INFINITY;
        /* 1 + erf cancels: the error is one of 1, times the operand */
        if (t->call.op == OP_GELU &&
            fabs(have.d - exact) <=
                4 * fabs(value[0].d) * 0x1p-24 * (y->dtype == ETCH_F64 ? 0x1p-29 : 1))
            off = 0;
        if (off <= r->ulp) continue;
        fail_msg("%s of %s[%g %lld], %s[%g %lld] scalar %g/%lld: want %.17g %lld, have %.17g %lld "
                 "(%g ulp)",
                 info->name, etch_dtype_name(t->in[0]->dtype), value[0].d, (long long)value[0].i,
                 etch_dtype_name(t->compute), value[1].d, (long long)value[1].i, t->sc[0].d,
                 (long long)t->sc[0].i, want.d, (long long)want.i, have.d, (long long)have.i, off);
    }
    for (int k = 0; k < t->call.nin; k++) free(before[k]);
    return true;
}

/* Powers of integers with huge exponents would take the reference for ever. */
static bool keeps_tame(op_id op) {
    return op == OP_POW_TENSOR || op == OP_POW_SCALAR || op == OP_POW_SCALAR_;
}

static bool is_expression(int op) {
    return etch__has_expression(op) && etch__ops[op].kind != KIND_CREATION;
}
static bool is_mine(int op) { return is_expression(op) && test_share(op); }
static bool are_mine(int op, int dtype) {
    return is_expression(op) && test_share((long)op * ETCH_DTYPE_COUNT + dtype);
}

/* ---- tests ---- */

TEST(every_operator_has_a_reference) {
    for (int op = 0; op < OP_COUNT; op++)
        if (is_expression(op) && !reference_of(etch__ops[op].name))
            fail_msg("no reference for %s", etch__ops[op].name);
}

TEST(every_operator_in_every_dtype, .deals = true) {
    for (int op = 0; op < OP_COUNT; op++)
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
            for (int how = 0; are_mine(op, d) && how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    trial t;
                    set_trial(&t, op);
                    bool inplace = etch__ops[op].kind == KIND_INPLACE, tame = keeps_tame(op);
                    if (inplace && how == LAYOUT_EXPANDED) continue;
                    for (int k = 0; k < t.call.nin; k++)
                        t.in[k] = make(d, ETCH_SHAPE(7, 41), (layout)how, tame);
                    int c = condition_of(&t);
                    if (c >= 0) t.in[c] = make(ETCH_BOOL, ETCH_SHAPE(7, 41), (layout)how, true);
                    run_trial(&t);
                }
}

/* Every pair of dtypes, for the operators with two tensors. */
TEST(mixed_dtypes, .deals = true) {
    int ran = 0, asked = 0;
    for (int op = 0; op < OP_COUNT; op++)
        for (int d = 0; is_mine(op) && d < ETCH_DTYPE_COUNT * ETCH_DTYPE_COUNT; d++)
            ETCH_SCOPE {
                trial t;
                set_trial(&t, op);
                if (t.call.nin < 2) continue;
                bool tame = keeps_tame(op);
                t.in[0] = make((d / ETCH_DTYPE_COUNT), ETCH_SHAPE(90), LAYOUT_ROW, tame);
                t.in[1] = make((d % ETCH_DTYPE_COUNT), ETCH_SHAPE(90), LAYOUT_ROW, tame);
                t.in[2] = t.in[0];
                int c = condition_of(&t);
                if (c >= 0) t.in[c] = make(ETCH_BOOL, ETCH_SHAPE(90), LAYOUT_ROW, true);
                ran += run_trial(&t), asked++;
            }
    assert_true(ran >= asked / 10); /* the others are refused: not every pair is for every one */
    assert_true(ran > 1000 || !test_share(0) || !test_share(1));
}

TEST(scalars_and_classes, .deals = true) {
    const etch_scalar values[] = {
        etch_scalar_real(2),    etch_scalar_real(0.5),  etch_scalar_real(-1),
        etch_scalar_real(1),    etch_scalar_real(3),    etch_scalar_real(0),
        etch_scalar_real(0.1),  etch_scalar_real(-0.0), etch_scalar_real(NAN),
        etch_scalar_real(1e30), etch_scalar_int(2),     etch_scalar_int(1),
        etch_scalar_int(0),     etch_scalar_int(-3),    etch_scalar_int(300),
        etch_scalar_bool(true)};
    for (int op = 0; op < OP_COUNT; op++)
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
            for (int v = 0; are_mine(op, d) && v < COUNT_OF(values) * COUNT_OF(values); v++)
                ETCH_SCOPE {
                    trial t;
                    set_trial(&t, op);
                    if (!t.call.nsc || (t.call.nsc == 1 && v >= COUNT_OF(values))) break;
                    t.sc[0] = values[v % COUNT_OF(values)];
                    if (t.call.nsc == 2) t.sc[1] = values[v / COUNT_OF(values)];
                    for (int k = 0; k < t.call.nin; k++)
                        t.in[k] = make(k == condition_of(&t) ? ETCH_BOOL : d, ETCH_SHAPE(19),
                                       LAYOUT_ROW, keeps_tame(op));
                    run_trial(&t);
                }
}

TEST(shapes_and_broadcasts, .deals = true) {
    const etch_shape shapes[][2] = {
        {ETCH_SHAPE(), ETCH_SHAPE()},
        {ETCH_SHAPE(1), ETCH_SHAPE(1)},
        {ETCH_SHAPE(0), ETCH_SHAPE(0)},
        {ETCH_SHAPE(0, 3), ETCH_SHAPE(1, 3)},
        {ETCH_SHAPE(5), ETCH_SHAPE()},
        {ETCH_SHAPE(3, 5), ETCH_SHAPE(5)},
        {ETCH_SHAPE(3, 5), ETCH_SHAPE(3, 1)},
        {ETCH_SHAPE(4, 300), ETCH_SHAPE(4, 1)},
        {ETCH_SHAPE(4, 300), ETCH_SHAPE(300)},
        {ETCH_SHAPE(2, 1, 3, 70), ETCH_SHAPE(5, 1, 70)},
        {ETCH_SHAPE(2, 1, 2, 1, 2, 1, 2, 3), ETCH_SHAPE(3, 1, 2, 1, 2, 1, 1)},
        {ETCH_SHAPE(1500), ETCH_SHAPE(1500)},
        {ETCH_SHAPE(700, 2), ETCH_SHAPE(700, 2)},
        {ETCH_SHAPE(2, 35, 70),
         ETCH_SHAPE(35, 70)}, /* whole and partial blocks of transposed operands */
    };
    const op_id ops[] = {OP_ADD_TENSOR, OP_LT_TENSOR, OP_MAXIMUM, OP_ADD_TENSOR_,
                         OP_COPY_,      OP_EXP,       OP_WHERE};
    const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_I64, ETCH_U8};
    for (int s = 0; s < COUNT_OF(shapes); s++)
        for (int k = 0; k < COUNT_OF(ops) * COUNT_OF(dtypes) * LAYOUT_COUNT * LAYOUT_COUNT; k++)
            ETCH_SCOPE {
                if (!test_share(s * 31 + k)) continue;
                trial t;
                op_id op = ops[k % COUNT_OF(ops)];
                int rest = k / COUNT_OF(ops), d = rest % COUNT_OF(dtypes),
                    hows = rest / COUNT_OF(dtypes);
                layout first = (layout)(hows % LAYOUT_COUNT), other = (layout)(hows / LAYOUT_COUNT);
                set_trial(&t, op);
                if (etch__ops[op].kind == KIND_INPLACE && first == LAYOUT_EXPANDED) continue;
                if (t.call.nin == 1 && other != first) continue;
                t.in[0] = make(op == OP_WHERE ? ETCH_BOOL : dtypes[d], shapes[s][0], first, false);
                t.in[1] = make(dtypes[d], shapes[s][1], other, false);
                t.in[2] = make(dtypes[d], shapes[s][0], other, false);
                run_trial(&t);
            }
}

/* Writing into a view of what is read: as if everything had been read first. */
TEST(overlapping_in_place) {
    for (int shift = 1; shift <= 3; shift++)
        for (int n = 5; n <= 3000; n *= 5)
            ETCH_SCOPE {
                for (int forward = 0; forward < 2; forward++) {
                    etch_tensor *base = make(ETCH_F32, ETCH_SHAPE(n + shift), LAYOUT_ROW, true);
                    etch_tensor *low = etch_slice(base, 0, 0, n, 1);
                    etch_tensor *high = etch_slice(base, 0, shift, n + shift, 1);
                    assert_non_null(low);
                    assert_non_null(high);
                    trial t;
                    set_trial(&t, OP_ADD_TENSOR_);
                    t.in[0] = forward ? high : low, t.in[1] = forward ? low : high;
                    assert_true(run_trial(&t));
                    set_trial(&t, OP_COPY_);
                    t.in[0] = forward ? low : high, t.in[1] = forward ? high : low;
                    assert_true(run_trial(&t));
                }
                etch_tensor *m = make(ETCH_F32, ETCH_SHAPE(30, 30), LAYOUT_ROW, true);
                trial t;
                set_trial(&t, OP_ADD_TENSOR_);
                t.in[0] = m, t.in[1] = etch_t(m);
                assert_true(run_trial(&t));
                t.call.nat = 0;
                t.in[1] = etch_select(m, 0, 3); /* a row of itself */
                assert_true(run_trial(&t));
                t.call.nat = 0;
                t.in[1] = m;
                assert_true(run_trial(&t));
            }
}

TEST(threads_do_not_matter) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, ETCH_SHAPE(500, 301), LAYOUT_ROW, true), *first[4] = {0};
        for (int threads = 1; threads <= 4; threads *= 2) {
            etch_set_num_threads(threads);
            etch_manual_seed(7);
            etch_tensor *y[4] = {etch_sigmoid(x), etch_sin(etch_t(x)),
                                 etch_randn(ETCH_F32, ETCH_SHAPE(100003)),
                                 etch_rand(ETCH_F64, ETCH_SHAPE(50000))};
            for (int k = 0; k < 4; k++) {
                assert_non_null(y[k]);
                if (!first[k]) first[k] = y[k];
                assert_true(same_tensor(first[k], y[k]));
            }
        }
    }
    etch_set_num_threads(2);
}

/* What a strip computes for an element does not depend on where the element stands. */
TEST(position_does_not_matter, .deals = true) {
    const op_id ops[] = {OP_EXP, OP_LOG, OP_SIN, OP_COS, OP_TANH, OP_SIGMOID};
    for (int k = 0; k < COUNT_OF(ops); k++)
        for (int d = ETCH_F32; d <= ETCH_F64; d++)
            ETCH_SCOPE {
                if (!test_share(2 * k + d)) continue;
                etch_tensor *x = make(d, ETCH_SHAPE(100), LAYOUT_ROW, false);
                trial t;
                set_trial(&t, ops[k]);
                t.in[0] = x;
                etch_tensor *whole = etch__dispatch(&t.call);
                for (int from = 0; from < 99; from += 7)
                    for (int to = from + 1; to < 100; to += 9) {
                        t.in[0] = etch_slice(x, 0, from, to, 1);
                        assert_true(same_tensor(etch__dispatch(&t.call),
                                                etch_slice(whole, 0, from, to, 1)));
                    }
            }
}

TEST(creation) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        ETCH_SCOPE {
            etch_dtype dtype = d;
            etch_tensor *z = etch_zeros(dtype, ETCH_SHAPE(3, 5)),
                        *o = etch_ones(dtype, ETCH_SHAPE(700));
            etch_tensor *f = etch_full(dtype, ETCH_SHAPE(2, 3), 2.7);
            assert_non_null(z);
            assert_non_null(o);
            assert_non_null(f);
            for (int i = 0; i < 15; i++)
                assert_true(same_number(get(z, i), ref_convert(whole_number(0), dtype)));
            for (int i = 0; i < 700; i++)
                assert_true(same_number(get(o, i), ref_convert(whole_number(1), dtype)));
            for (int i = 0; i < 6; i++)
                assert_true(same_number(get(f, i), ref_convert(real_number(2.7), dtype)));
        }
}

TEST(aranges) {
    ETCH_SCOPE {
        etch_tensor *i = etch_arange(ETCH_I64, 5, 1000, 3);
        assert_non_null(i);
        assert_int_equal(i->numel, 332);
        for (int k = 0; k < 332; k++) assert_int_equal(get(i, k).i, 5 + 3 * k);
        etch_tensor *f = etch_arange(ETCH_F32, 0.5, 100.0, 0.1);
        assert_non_null(f);
        for (int64_t k = 0; k < f->numel; k++)
            assert_true(get(f, k).d == (double)(float)(0.5 + 0.1 * (double)k));
        etch_tensor *down = etch_arange(ETCH_F64, 3, -3, -1);
        assert_non_null(down);
        assert_int_equal(down->numel, 6);
        assert_true(get(down, 5).d == -2);
        etch_tensor *large =
            etch_arange(ETCH_I32, 0, 100000, 1); /* over several strips and threads */
        assert_non_null(large);
        for (int k = 0; k < 100000; k++) assert_int_equal(get(large, k).i, k);
    }
}

/* Philox 4x32-10 as its authors give it, and rand's way to numbers. */
static void philox_block(uint64_t seed, uint64_t counter, uint32_t w[4]) {
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int r = 0; r < 10; r++) {
        uint64_t p = 0xD2511F53ull * c[0], q = 0xCD9E8D57ull * c[2];
        uint32_t n[4] = {(uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q,
                         (uint32_t)(p >> 32) ^ c[3] ^ k[1], (uint32_t)p};
        memcpy(c, n, sizeof c);
        k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    }
    memcpy(w, c, sizeof c);
}

TEST(random_numbers) {
    uint32_t w[4];
    philox_block(0, 0, w); /* the published vector for zero counter and key */
    const uint32_t published[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(w, published, sizeof published);
    ETCH_SCOPE {
        etch_manual_seed(0x123456789abcdefull);
        etch_tensor *a = etch_rand(ETCH_F32, ETCH_SHAPE(1000)),
                    *b = etch_rand(ETCH_F64, ETCH_SHAPE(77));
        etch_tensor *n = etch_randn(ETCH_F64, ETCH_SHAPE(300));
        assert_non_null(a);
        assert_non_null(b);
        assert_non_null(n);
        for (int i = 0; i < 1000; i++) {
            philox_block(0x123456789abcdefull, (uint64_t)i, w);
            assert_true(get(a, i).d == (w[0] >> 8) * 0x1p-24);
        }
        for (int i = 0; i < 77; i++) {
            philox_block(0x123456789abcdefull, (uint64_t)(1000 + i), w);
            assert_true(get(b, i).d == (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1p-53);
        }
        for (int i = 0; i < 300; i++) {
            philox_block(0x123456789abcdefull, (uint64_t)(1077 + i), w);
            double u = (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1p-53;
            double v = (double)(((uint64_t)w[2] << 32 | w[3]) >> 11) * 0x1p-53;
            double want = sqrt(-2 * log(1 - u)) * cos(2 * 3.14159265358979323846 * v);
            assert_true(fabs(get(n, i).d - want) < 1e-12);
        }
        for (int d = ETCH_F32; d <= ETCH_F16; d++) {
            etch_tensor *u = etch_rand(d, ETCH_SHAPE(20000));
            etch_tensor *g = etch_randn(d, ETCH_SHAPE(20000));
            assert_non_null(u);
            assert_non_null(g);
            double mean = 0, mean_g = 0, square = 0;
            for (int i = 0; i < 20000; i++) {
                double v = get(u, i).d, x = get(g, i).d;
                assert_true(v >= 0 && v < 1);
                mean += v / 20000, mean_g += x / 20000, square += x * x / 20000;
            }
            assert_true(fabs(mean - 0.5) < 0.02 && fabs(mean_g) < 0.05 && fabs(square - 1) < 0.06);
        }
    }
}

TEST(cats) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        ETCH_SCOPE {
            etch_tensor *a = make(d, ETCH_SHAPE(2, 3), LAYOUT_COLUMN, false);
            etch_tensor *b = make(d, ETCH_SHAPE(2, 0), LAYOUT_ROW, false);
            etch_tensor *c = make(d, ETCH_SHAPE(2, 400), LAYOUT_GAPS, false);
            etch_tensor *in[] = {a, b, c};
            const int64_t at[] = {-1};
            op_call call = {.op = OP_CAT, .nin = 3, .in = in, .nat = 1, .at = at};
            etch_tensor *y = etch__dispatch(&call);
            if (!y) fail_msg("%s", etch_last_error());
            assert_int_equal(y->size[1], 403);
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < 403; k++)
                    assert_true(same_number(get(y, r * 403 + k),
                                            k < 3 ? get(a, r * 3 + k) : get(c, r * 400 + k - 3)));
        }
}

/* Facts that the project promises by name. */
TEST(promised_results) {
    ETCH_SCOPE {
        etch_tensor *i = make_view(ETCH_I32, ETCH_SHAPE(1), LAYOUT_ROW);
        put(i, 0, whole_number(2147483647));
        assert_int_equal(get(etch_to(etch_add(i, i), ETCH_I64), 0).i, -2);
        etch_tensor *u = make_view(ETCH_U8, ETCH_SHAPE(1), LAYOUT_ROW);
        put(u, 0, whole_number(128));
        assert_int_equal(get(etch_to(etch_add(u, u), ETCH_I16), 0).i, 0);
        put(u, 0, whole_number(6));
        assert_int_equal(get(etch_lt_scalar(etch_neg(u), 4), 0).i, 0);
        etch_tensor *z = make_view(ETCH_F32, ETCH_SHAPE(1), LAYOUT_ROW);
        put(z, 0, real_number(-0.0));
        assert_true(same_number(get(etch_relu(z), 0), real_number(-0.0)));
        put(z, 0, real_number(NAN));
        assert_true(isnan(get(etch_relu(z), 0).d));
        put(z, 0, real_number(0x1p-149));
        assert_true(get(etch_mul_scalar(z, 1.0), 0).d == 0x1p-149);
    }
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
