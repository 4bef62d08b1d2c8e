/* The expression of every pointwise operator, once, and what wraps it into a program: loads, the
 * conversion to the common dtype, the conversion and rounding to the output dtype.
 *
 * An operator's row in core/ops/ops.def names its expression; expr_<name> below writes it. */
#include "core/ops/expr.h"

#include <math.h>

typedef struct builder {
    prim_program *p;
    const etch_dtype *in;
    int nin;
    etch_dtype compute; /* the common dtype; bf16 and f16 mean f32 rounded */
    etch_dtype type;    /* its compute type */
    int64_t op_class;
    bool full;
    /* Which values are known to lie on the grid of a half dtype: as bits 1 << dtype. */
    uint16_t exact[PROGRAM_MAX];
} builder;

enum { EXACT_ALL = (1 << ETCH_BF16) | (1 << ETCH_F16) };

/* ---- instructions ---- */

static int emit(builder *b, prim_id prim, etch_dtype type, etch_dtype from, int x, int y, int z) {
    if (b->p->n == PROGRAM_MAX) return b->full = true, 0;
    prim_instr *i = &b->p->code[b->p->n];
    memset(i, 0, sizeof *i);
    i->prim = (uint8_t)prim, i->type = (uint8_t)type, i->from = (uint8_t)from;
    i->a = (int16_t)x, i->b = (int16_t)y, i->c = (int16_t)z;
    b->exact[b->p->n] = type == ETCH_BOOL ? EXACT_ALL : 0;
    return b->p->n++;
}

static int unary(builder *b, prim_id prim, int x) {
    return emit(b, prim, b->type, b->type, x, 0, 0);
}

static int binary(builder *b, prim_id prim, int x, int y) {
    return emit(b, prim, b->type, b->type, x, y, 0);
}

static int compare(builder *b, prim_id prim, int x, int y) {
    return emit(b, prim, ETCH_BOOL, b->type, x, y, 0);
}

/* The result is one of the operands' values (up to its sign), so it stays on their grid. */
static int keeps_grid(builder *b, int v, int x, int y) {
    b->exact[v] = b->exact[x] & b->exact[y];
    return v;
}

static int constant(builder *b, etch_dtype type, double v) {
    prim_instr c = {.imm.i = (int64_t)v};
    if (etch__is_float(type)) c.imm.d = v;
    for (int i = 0; i < b->p->n; i++) {
        const prim_instr *p = &b->p->code[i];
        if (p->prim == PRIM_CONST && p->type == type && p->imm.i == c.imm.i) return i;
    }
    int k = emit(b, PRIM_CONST, type, type, 0, 0, 0);
    b->p->code[k].imm = c.imm;
    b->exact[k] = EXACT_ALL; /* 0, 1 and the like are the only constants that are results */
    return k;
}

/* A constant of the compute type that no half dtype needs to hold. */
static int real(builder *b, double v) {
    int k = constant(b, b->type, v);
    b->exact[k] = 0;
    return k;
}

static int scalar_as(builder *b, int k, etch_dtype dtype) {
    int v = emit(b, PRIM_SCALAR, etch__compute_type(dtype), dtype, 0, 0, 0);
    b->p->code[v].imm.i = k;
    b->exact[v] = (uint16_t)(1 << dtype);
    if (k >= b->p->nsc) b->p->nsc = k + 1;
    return v;
}

/* Scalar k rounded to the common dtype, as a tensor's element is. */
static int scalar(builder *b, int k) { return scalar_as(b, k, b->compute); }
/* Scalar k in the compute type: f32 beside half types, so that a factor is not rounded first. */
static int factor(builder *b, int k) { return scalar_as(b, k, b->type); }

static etch_dtype type_of(const builder *b, int v) { return b->p->code[v].type; }

/* v as a value of `dtype`: in its compute type and, for half types, on its grid. */
static int convert(builder *b, int v, etch_dtype dtype) {
    etch_dtype to = etch__compute_type(dtype), from = type_of(b, v);
    uint16_t exact = b->exact[v];
    if (from != to) {
        v = emit(b, PRIM_CONVERT, to, from, v, 0, 0);
        if (from == ETCH_BOOL) b->exact[v] = EXACT_ALL;
        exact = b->exact[v];
    }
    if ((dtype != ETCH_BF16 && dtype != ETCH_F16) || exact >> dtype & 1) return v;
    v = emit(b, dtype == ETCH_BF16 ? PRIM_ROUND_BF16 : PRIM_ROUND_F16, to, to, v, 0, 0);
    b->exact[v] = (uint16_t)(1 << dtype);
    return v;
}

static int load(builder *b, int k) {
    etch_dtype dtype = k < b->nin ? b->in[k] : b->compute;
    int v = emit(b, PRIM_INPUT, etch__compute_type(dtype), dtype, 0, 0, 0);
    b->p->code[v].imm.i = k;
    b->exact[v] |= (uint16_t)(1 << dtype);
    return v;
}

/* Operand k in the common dtype. */
static int operand(builder *b, int k) { return convert(b, load(b, k), b->compute); }
/* The second operand: a tensor's, or the first scalar. */
static int second(builder *b) { return b->nin > 1 ? operand(b, 1) : scalar(b, 0); }
/* The same for a second factor or divisor, which stays in f32 where the common dtype is a half one
 * though its own is wider: a scalar, and a 0-d tensor beside others. */
static int second_factor(builder *b) {
    if (b->nin < 2) return factor(b, 0);
    bool wider = b->compute != b->type && b->in[1] <= ETCH_F64;
    return wider ? convert(b, load(b, 1), ETCH_F32) : operand(b, 1);
}
/* Operand k as a truth value. */
static int truth(builder *b, int k) { return convert(b, operand(b, k), ETCH_BOOL); }

/* ---- the expressions: each returns the value that is the result ---- */

static int expr_identity(builder *b) { return operand(b, 0); }
static int expr_second(builder *b) { return operand(b, 1); }
static int expr_zero(builder *b) { return constant(b, b->type, 0); }
static int expr_one(builder *b) { return constant(b, b->type, 1); }
static int expr_scalar(builder *b) { return scalar(b, 0); }

/* start + step * index, in f64 or i64, rounded once. */
static int expr_arange(builder *b) {
    etch_dtype wide = etch__is_float(b->compute) ? ETCH_F64 : ETCH_I64;
    int start = scalar_as(b, 0, wide), step = scalar_as(b, 2, wide);
    int i = emit(b, PRIM_INDEX, ETCH_I64, ETCH_I64, 0, 0, 0);
    i = convert(b, i, wide);
    i = emit(b, PRIM_MUL, wide, wide, i, step, 0);
    return emit(b, PRIM_ADD, wide, wide, start, i, 0);
}

/* x, or alpha, the scalar behind the operands, times x; class 1 says that alpha is 1. */
static int scaled(builder *b, int x) {
    return b->op_class == 1 ? x : binary(b, PRIM_MUL, scalar(b, b->nin > 1 ? 0 : 1), x);
}

static int expr_add(builder *b) {
    int x = operand(b, 0), y = second(b);
    return binary(b, PRIM_ADD, x, scaled(b, y));
}
static int expr_sub(builder *b) {
    int x = operand(b, 0), y = second(b);
    return binary(b, PRIM_SUB, x, scaled(b, y));
}
static int expr_rsub(builder *b) {
    int x = operand(b, 0), y = second(b);
    return binary(b, PRIM_SUB, y, scaled(b, x));
}

static int binary_of(builder *b, prim_id prim) {
    int x = operand(b, 0), y = second(b);
    return binary(b, prim, x, y);
}
static int by_factor(builder *b, prim_id prim) {
    int x = operand(b, 0);
    return binary(b, prim, x, second_factor(b));
}
static int expr_mul(builder *b) { return by_factor(b, PRIM_MUL); }
static int expr_div(builder *b) { return by_factor(b, PRIM_DIV); }
static int expr_pow(builder *b) { return binary_of(b, PRIM_POW); }

static int choice_of(builder *b, prim_id prim) {
    int x = operand(b, 0), y = operand(b, 1);
    return keeps_grid(b, binary(b, prim, x, y), x, y);
}
static int expr_maximum(builder *b) { return choice_of(b, PRIM_MAX); }
static int expr_minimum(builder *b) { return choice_of(b, PRIM_MIN); }

/* By an exponent that f32 cannot hold: rounding it would cost more than the power itself. */
static int double_power(builder *b, int x) {
    int wide = convert(b, x, ETCH_F64), e = scalar_as(b, 0, ETCH_F64);
    return convert(b, emit(b, PRIM_POW, ETCH_F64, ETCH_F64, wide, e, 0), ETCH_F32);
}

/* Integers take the general way for the classes that need a float. */
static int expr_pow_scalar(builder *b) {
    int x = operand(b, 0);
    bool real = etch__is_float(b->compute);
    switch (b->op_class) {
    case EXPONENT_TWO: return binary(b, PRIM_MUL, x, x);
    case EXPONENT_THREE: return binary(b, PRIM_MUL, binary(b, PRIM_MUL, x, x), x);
    case EXPONENT_ONE: return x;
    case EXPONENT_ZERO: return constant(b, b->type, 1);
    case EXPONENT_HALF:
        if (real) return unary(b, PRIM_SQRT, x);
        break;
    case EXPONENT_MINUS_ONE:
        if (real) return binary(b, PRIM_DIV, constant(b, b->type, 1), x);
        break;
    case EXPONENT_DOUBLE:
        if (b->compute == ETCH_F32) return double_power(b, x);
        break;
    default: break;
    }
    return binary(b, PRIM_POW, x, scalar(b, 0));
}

static int sign_of(builder *b, prim_id prim) {
    int x = operand(b, 0);
    return keeps_grid(b, unary(b, prim, x), x, x);
}
static int expr_neg(builder *b) { return sign_of(b, PRIM_NEG); }
static int expr_abs(builder *b) { return sign_of(b, PRIM_ABS); }

/* x, or 0 where that is more: NaN and -0 stay. */
static int expr_relu(builder *b) {
    int x = operand(b, 0);
    int zero = constant(b, b->type, 0);
    return keeps_grid(b, binary(b, PRIM_AT_LEAST, x, zero), x, zero);
}

/* Whether the result is rounded to a half dtype from f32. */
static bool is_half(const builder *b) { return b->compute == ETCH_BF16 || b->compute == ETCH_F16; }

/* Cheaper where most of its digits are rounded off. */
static prim_id for_dtype(const builder *b, prim_id prim) {
    if (!is_half(b)) return prim;
    return prim == PRIM_SIGMOID ? PRIM_SIGMOID_HALF : prim == PRIM_SILU ? PRIM_SILU_HALF : prim;
}

static int unary_of(builder *b, prim_id prim) {
    return unary(b, for_dtype(b, prim), operand(b, 0));
}
static int expr_sqrt(builder *b) { return unary_of(b, PRIM_SQRT); }
/* Each function of one operand is an expression by its name: expr_exp. */
#define PRIM(id, name, arity, types, class, meaning)
#define FUNCTION(id, name, ...)                                                                    \
    static inline int expr_##name(builder *b) { return unary_of(b, PRIM_##id); }
#include "core/ops/prims.def"
static int expr_rsqrt(builder *b) {
    int root = unary_of(b, PRIM_SQRT);
    return binary(b, PRIM_DIV, constant(b, b->type, 1), root);
}
static int expr_reciprocal(builder *b) {
    int x = operand(b, 0);
    return binary(b, PRIM_DIV, constant(b, b->type, 1), x);
}
static int expr_square(builder *b) {
    int x = operand(b, 0);
    return binary(b, PRIM_MUL, x, x);
}
/* (x * 0.5) * (1 + erf(x * sqrt(1/2))), or with tanh(sqrt(2/pi) * (x + 0.044715 x^3)) for erf. */
static int expr_gelu(builder *b) {
    if (is_half(b) && !b->op_class) return unary_of(b, PRIM_GELU_HALF);
    int x = operand(b, 0), inner, one = constant(b, b->type, 1);
    if (b->op_class) {
        int cube = binary(b, PRIM_MUL, binary(b, PRIM_MUL, x, x), x);
        inner = binary(b, PRIM_ADD, x, binary(b, PRIM_MUL, real(b, 0.044715), cube));
        inner = binary(b, PRIM_MUL, real(b, 0.79788456080286535588), inner);
        inner = unary(b, PRIM_TANH, inner);
    } else {
        inner = unary(b, PRIM_ERF, binary(b, PRIM_MUL, x, real(b, 0.70710678118654752440)));
    }
    int half = binary(b, PRIM_MUL, x, real(b, 0.5));
    return binary(b, PRIM_MUL, half, binary(b, PRIM_ADD, one, inner));
}

/* ---- rounding to whole numbers: from conversions, which vectorise; integers stay ---- */

static int select(builder *b, int condition, int x, int y) {
    return emit(b, PRIM_SELECT, b->type, b->type, condition, x, y);
}

/* From here on every float is whole. */
static double whole_from(const builder *b) { return b->type == ETCH_F64 ? 0x1p52 : 0x1p23; }

/* The whole number r, which lost the sign of a zero, instead of x where x is not whole anyway. */
static int whole_result(builder *b, int x, int r) {
    int zero = binary(b, PRIM_MUL, x, constant(b, b->type, 0)); /* of the sign of x */
    r = select(b, compare(b, PRIM_EQ, r, constant(b, b->type, 0)), zero, r);
    int fraction = compare(b, PRIM_LT, unary(b, PRIM_ABS, x), real(b, whole_from(b)));
    return select(b, fraction, r, x);
}

static int truncated(builder *b, int x) {
    etch_dtype whole = b->type == ETCH_F64 ? ETCH_I64 : ETCH_I32;
    int i = emit(b, PRIM_CONVERT, whole, b->type, x, 0, 0);
    return whole_result(b, x, emit(b, PRIM_CONVERT, b->type, whole, i, 0, 0));
}

static int expr_trunc(builder *b) {
    int x = operand(b, 0);
    return etch__is_float(b->compute) ? truncated(b, x) : x;
}
static int expr_frac(builder *b) {
    int x = operand(b, 0);
    return binary(b, PRIM_SUB, x, truncated(b, x));
}
static int floored(builder *b, int x) {
    int t = truncated(b, x);
    int below = binary(b, PRIM_SUB, t, constant(b, b->type, 1));
    return select(b, compare(b, PRIM_LT, x, t), below, t);
}
static int expr_floor(builder *b) {
    int x = operand(b, 0);
    return etch__is_float(b->compute) ? floored(b, x) : x;
}
static int expr_ceil(builder *b) {
    int x = operand(b, 0);
    if (!etch__is_float(b->compute)) return x;
    int t = truncated(b, x);
    int above = binary(b, PRIM_ADD, t, constant(b, b->type, 1));
    return select(b, compare(b, PRIM_LT, t, x), above, t);
}
/* Halves to even: adding 2^23 (2^52) to |x| leaves no bits for a fraction. */
static int expr_round(builder *b) {
    int x = operand(b, 0);
    if (!etch__is_float(b->compute)) return x;
    int large = real(b, whole_from(b)), zero = constant(b, b->type, 0);
    int r = binary(b, PRIM_ADD, unary(b, PRIM_ABS, x), large);
    r = binary(b, PRIM_SUB, r, large);
    r = select(b, compare(b, PRIM_LT, x, zero), unary(b, PRIM_NEG, r), r);
    return whole_result(b, x, r);
}
/* (0 < x) - (x < 0), so 0 for NaN; a bool is its own. */
static int expr_sign(builder *b) {
    int x = operand(b, 0), zero = constant(b, b->type, 0);
    if (b->type == ETCH_BOOL) return x;
    int above = convert(b, compare(b, PRIM_LT, zero, x), b->compute);
    int below = convert(b, compare(b, PRIM_LT, x, zero), b->compute);
    return keeps_grid(b, binary(b, PRIM_SUB, above, below), above, below);
}
static int expr_isnan(builder *b) {
    int x = operand(b, 0);
    return compare(b, PRIM_NE, x, x);
}

/* ---- signs and classes of numbers ---- */

static int sign_bit(builder *b, int x) { return compare(b, PRIM_SIGNBIT, x, 0); }
static int expr_signbit(builder *b) { return sign_bit(b, operand(b, 0)); }

static int magnitude_to_infinity(builder *b, prim_id prim) {
    int x = unary(b, PRIM_ABS, operand(b, 0));
    return compare(b, prim, x, real(b, INFINITY));
}
static int expr_isinf(builder *b) {
    if (!etch__is_float(b->compute)) return constant(b, ETCH_BOOL, 0);
    return magnitude_to_infinity(b, PRIM_EQ);
}
static int expr_isfinite(builder *b) {
    if (!etch__is_float(b->compute)) return constant(b, ETCH_BOOL, 1);
    return magnitude_to_infinity(b, PRIM_LT);
}
static int expr_copysign(builder *b) {
    int x = unary(b, PRIM_ABS, operand(b, 0)), y = operand(b, 1);
    return select(b, sign_bit(b, y), unary(b, PRIM_NEG, x), x);
}

/* The other operand instead of a NaN, the first where they are equal. */
static int choice_of_numbers(builder *b, prim_id prim) {
    int x = operand(b, 0), y = operand(b, 1);
    int r = binary(b, prim, x, y);
    if (!etch__is_float(b->compute)) return r;
    r = select(b, compare(b, PRIM_NE, y, y), x, r);
    return keeps_grid(b, select(b, compare(b, PRIM_NE, x, x), y, r), x, y);
}
static int expr_fmax(builder *b) { return choice_of_numbers(b, PRIM_AT_LEAST); }
static int expr_fmin(builder *b) { return choice_of_numbers(b, PRIM_AT_MOST); }

/* ---- three operands ---- */

/* self + value * tensor1 * tensor2, or / tensor2, from the left. */
static int add_combined(builder *b, prim_id prim) {
    int x = operand(b, 0), y = operand(b, 1), z = operand(b, 2);
    return binary(b, PRIM_ADD, x, binary(b, prim, binary(b, PRIM_MUL, factor(b, 0), y), z));
}
static int expr_addcmul(builder *b) { return add_combined(b, PRIM_MUL); }
static int expr_addcdiv(builder *b) { return add_combined(b, PRIM_DIV); }

/* From the nearer end, so that a weight of 1 gives the end exactly. */
static int interpolate(builder *b, int x, int y, int w) {
    int way = binary(b, PRIM_SUB, y, x), one = constant(b, b->type, 1);
    int forth = binary(b, PRIM_ADD, x, binary(b, PRIM_MUL, w, way));
    int back = binary(b, PRIM_SUB, y, binary(b, PRIM_MUL, way, binary(b, PRIM_SUB, one, w)));
    return select(b, compare(b, PRIM_LT, unary(b, PRIM_ABS, w), real(b, 0.5)), forth, back);
}
static int expr_lerp(builder *b) {
    int x = operand(b, 0), y = operand(b, 1);
    return interpolate(b, x, y, b->nin > 2 ? operand(b, 2) : factor(b, 0));
}
static int expr_masked_fill(builder *b) {
    int x = operand(b, 0), mask = convert(b, load(b, 1), ETCH_BOOL), value = scalar(b, 0);
    return keeps_grid(b, select(b, mask, value, x), value, x);
}

/* ---- bits ---- */

/* Bools take the logical primitive. */
static int bits_of(builder *b, prim_id prim, prim_id logical) {
    return binary_of(b, b->type == ETCH_BOOL ? logical : prim);
}
static int expr_bitwise_and(builder *b) { return bits_of(b, PRIM_BITAND, PRIM_AND); }
static int expr_bitwise_or(builder *b) { return bits_of(b, PRIM_BITOR, PRIM_OR); }
static int expr_bitwise_xor(builder *b) { return bits_of(b, PRIM_BITXOR, PRIM_NE); }
static int expr_bitwise_not(builder *b) {
    int x = operand(b, 0);
    if (b->type == ETCH_BOOL) return unary(b, PRIM_NOT, x);
    return binary(b, PRIM_BITXOR, x, constant(b, b->type, -1));
}
static int expr_left_shift(builder *b) { return binary_of(b, PRIM_SHL); }
static int expr_right_shift(builder *b) { return binary_of(b, PRIM_SHR); }

/* ---- divisions with a rest ---- */

static int expr_fmod(builder *b) { return binary_of(b, PRIM_REM); }

/* Whether the rest r of a division by y is not 0 and of the other sign. */
static int crosses(builder *b, int r, int y) {
    int zero = constant(b, b->type, 0);
    int differ = emit(b, PRIM_NE, ETCH_BOOL, ETCH_BOOL, compare(b, PRIM_LT, r, zero),
                      compare(b, PRIM_LT, y, zero), 0);
    return emit(b, PRIM_AND, ETCH_BOOL, ETCH_BOOL, compare(b, PRIM_NE, r, zero), differ, 0);
}

/* The rest with the sign of the divisor. */
static int modulo(builder *b, int x, int y) {
    int r = binary(b, PRIM_REM, x, y);
    return select(b, crosses(b, r, y), binary(b, PRIM_ADD, r, y), r);
}
static int expr_remainder(builder *b) {
    int x = operand(b, 0), y = second(b);
    return modulo(b, x, y);
}

/* As Python's //: from the exact rest, since the quotient itself may round up to a whole number. */
static int float_floor_divide(builder *b, int x, int y) {
    int zero = constant(b, b->type, 0), one = constant(b, b->type, 1);
    int plain = binary(b, PRIM_DIV, x, y), r = binary(b, PRIM_REM, x, y);
    int q = binary(b, PRIM_DIV, binary(b, PRIM_SUB, x, r), y);
    q = select(b, crosses(b, r, y), binary(b, PRIM_SUB, q, one), q);
    int whole = floored(b, q);
    int up = compare(b, PRIM_LT, real(b, 0.5), binary(b, PRIM_SUB, q, whole));
    whole = select(b, up, binary(b, PRIM_ADD, whole, one), whole);
    /* a zero of the quotient's sign; plain is finite there */
    whole = select(b, compare(b, PRIM_EQ, q, zero), binary(b, PRIM_MUL, plain, zero), whole);
    return select(b, compare(b, PRIM_EQ, y, zero), plain, whole);
}
static int floor_divided(builder *b, int x, int y) {
    if (etch__is_float(b->compute)) return float_floor_divide(b, x, y);
    int q = binary(b, PRIM_QUOT, x, y);
    int r = binary(b, PRIM_SUB, x, binary(b, PRIM_MUL, q, y)); /* all wraps: no second division */
    int below = binary(b, PRIM_SUB, q, constant(b, b->type, 1));
    return select(b, crosses(b, r, y), below, q);
}
static int expr_floor_divide(builder *b) {
    int x = operand(b, 0), y = second_factor(b);
    return floor_divided(b, x, y);
}

/* ---- clamp ---- */

/* Scalar k in the common dtype; integers saturate. */
static int bound(builder *b, int k) {
    static const double low[] = {[ETCH_I8] = INT8_MIN,
                                 [ETCH_I16] = INT16_MIN,
                                 [ETCH_I32] = INT32_MIN,
                                 [ETCH_U8] = 0,
                                 [ETCH_BOOL] = 0};
    static const double high[] = {[ETCH_I8] = INT8_MAX,
                                  [ETCH_I16] = INT16_MAX,
                                  [ETCH_I32] = INT32_MAX,
                                  [ETCH_U8] = UINT8_MAX,
                                  [ETCH_BOOL] = 1};
    if (etch__is_float(b->compute) || b->compute == ETCH_I64) return scalar(b, k);
    int v = scalar_as(b, k, ETCH_I64);
    v = emit(b, PRIM_MAX, ETCH_I64, ETCH_I64, v, constant(b, ETCH_I64, low[b->compute]), 0);
    v = emit(b, PRIM_MIN, ETCH_I64, ETCH_I64, v, constant(b, ETCH_I64, high[b->compute]), 0);
    return convert(b, v, b->compute);
}
static int bounded(builder *b, prim_id prim, int x, int k) {
    int limit = bound(b, k);
    return keeps_grid(b, binary(b, prim, x, limit), x, limit);
}
static int expr_clamp_min(builder *b) { return bounded(b, PRIM_AT_LEAST, operand(b, 0), 0); }
static int expr_clamp_max(builder *b) { return bounded(b, PRIM_AT_MOST, operand(b, 0), 0); }
static int expr_clamp(builder *b) {
    int x = bounded(b, PRIM_AT_LEAST, operand(b, 0), 0);
    return bounded(b, PRIM_AT_MOST, x, 1);
}

static int compare_of(builder *b, prim_id prim) {
    int x = operand(b, 0), y = second(b);
    return compare(b, prim, x, y);
}
/* Greater is less with the operands exchanged. */
static int compare_swapped(builder *b, prim_id prim) {
    int x = operand(b, 0), y = second(b);
    return compare(b, prim, y, x);
}
static int expr_eq(builder *b) { return compare_of(b, PRIM_EQ); }
static int expr_ne(builder *b) { return compare_of(b, PRIM_NE); }
static int expr_lt(builder *b) { return compare_of(b, PRIM_LT); }
static int expr_le(builder *b) { return compare_of(b, PRIM_LE); }
static int expr_gt(builder *b) { return compare_swapped(b, PRIM_LT); }
static int expr_ge(builder *b) { return compare_swapped(b, PRIM_LE); }

static int logic(builder *b, prim_id prim, int x, int y) {
    return emit(b, prim, ETCH_BOOL, ETCH_BOOL, x, y, 0);
}
static int expr_logical_not(builder *b) { return logic(b, PRIM_NOT, truth(b, 0), 0); }
static int expr_logical_and(builder *b) {
    int x = truth(b, 0), y = truth(b, 1);
    return logic(b, PRIM_AND, x, y);
}
static int expr_logical_or(builder *b) {
    int x = truth(b, 0), y = truth(b, 1);
    return logic(b, PRIM_OR, x, y);
}

static int expr_logical_xor(builder *b) {
    int x = truth(b, 0), y = truth(b, 1);
    return logic(b, PRIM_NE, x, y);
}

/* The condition keeps its own dtype; only the values are brought to the common one. */
static int expr_where(builder *b) {
    int condition = convert(b, load(b, 0), ETCH_BOOL);
    int x = operand(b, 1), y = operand(b, 2);
    return keeps_grid(b, emit(b, PRIM_SELECT, b->type, b->type, condition, x, y), x, y);
}

/* ---- from operator to program ---- */

typedef int (*expr_fn)(builder *b);

#define expr_NONE NULL
static const expr_fn expressions[OP_COUNT] = {
#define EXPRESSION(id, name, schema, cfn, kind, drule, srule, impl, ...) [OP_##id] = expr_##impl,
#define OP(...)
#define POINTWISE_OP EXPRESSION
#define INPLACE_OP EXPRESSION
#define CREATION_OP EXPRESSION
#include "operators.def"
};

bool etch__has_expression(op_id op) { return (unsigned)op < OP_COUNT && expressions[op]; }

bool etch__expr_build(op_id op, const etch_dtype *in, int nin, etch_dtype compute, etch_dtype out,
                      int64_t op_class, prim_program *p) {
    if ((unsigned)op >= OP_COUNT || !expressions[op] || etch__op_is_users(op)) return false;
    builder b = {.p = p, .in = in, .nin = nin, .compute = compute, .op_class = op_class};
    b.type = etch__compute_type(compute);
    p->n = p->nsc = 0, p->nin = nin;
    int v = expressions[op](&b);
    p->result = convert(&b, v, out);
    return !b.full;
}
