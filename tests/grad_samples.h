/* Sample calls of every operator that has a derivative, for the checks of test_gradcheck.c.
 *
 *     SAMPLE(MUL_TENSOR, etch_mul(x[0], x[1]), V(3, 4), V(4))
 *
 * names the operator that is meant, a call of it, and the operands x[0], x[1], ... Values are in
 * general position: no two are equal, none is near 0 or half a whole number, where functions have
 * kinks and jumps. Each sample runs with operands of several layouts, or contiguous ones only
 * (SAMPLE_LAID), for calls that depend on strides. */
#ifndef ETCH_TESTS_GRAD_SAMPLES_H
#define ETCH_TESTS_GRAD_SAMPLES_H

#include <etch/etch.h>

#include "core/ops/op.h"

enum { SAMPLE_INPUTS = 5 };

typedef struct input {
    char kind; /* v: values, p: positive ones, u: in (-1, 1), c: values that need no gradient,
                  i: indices, b: bools, n: ETCH_NONE, 0: the end */
    etch_shape size;
    int64_t below; /* of indices: these differ, or with `same` come more than once, or count from
                      the end */
    bool same, back;
} input;

typedef struct sample {
    op_id op;
    int line;
    const char *text;
    etch_tensor *(*call)(etch_tensor **x);
    bool laid, rough; /* contiguous only; no second derivative */
    input in[SAMPLE_INPUTS];
    struct sample *next;
} sample;

static sample *samples;

#define V(...) ((input){.kind = 'v', .size = ETCH_SHAPE(__VA_ARGS__)})
#define P(...) ((input){.kind = 'p', .size = ETCH_SHAPE(__VA_ARGS__)})
#define U(...) ((input){.kind = 'u', .size = ETCH_SHAPE(__VA_ARGS__)})
#define C(...) ((input){.kind = 'c', .size = ETCH_SHAPE(__VA_ARGS__)})
#define B(...) ((input){.kind = 'b', .size = ETCH_SHAPE(__VA_ARGS__)})
#define NOTHING ((input){.kind = 'n'})
/* Indices below n: each once along a row, some from the end, or 0 and 1 several times. */
#define I(n, ...) ((input){.kind = 'i', .size = ETCH_SHAPE(__VA_ARGS__), .below = n})
#define I_BACK(n, ...)                                                                             \
    ((input){.kind = 'i', .size = ETCH_SHAPE(__VA_ARGS__), .below = n, .back = true})
#define I_SAME(...)                                                                                \
    ((input){.kind = 'i', .size = ETCH_SHAPE(__VA_ARGS__), .below = 2, .same = true})

#define SAMPLE(ID, expression, ...)                                                                \
    SAMPLE_AT(__COUNTER__, ID, false, false, expression, __VA_ARGS__)
#define SAMPLE_LAID(ID, expression, ...)                                                           \
    SAMPLE_AT(__COUNTER__, ID, true, false, expression, __VA_ARGS__)
#define SAMPLE_AT(number, ...) SAMPLE_NAMED(number, __VA_ARGS__)
#define SAMPLE_NAMED(number, ID, laid_, rough_, expression, ...)                                   \
    static etch_tensor *sample_call_##number(etch_tensor **x) { return expression; }               \
    __attribute__((constructor)) static void sample_add_##number(void) {                           \
        static sample s;                                                                           \
        s = (sample){.op = OP_##ID,                                                                \
                     .line = __LINE__,                                                             \
                     .text = #expression,                                                          \
                     .call = sample_call_##number,                                                 \
                     .laid = laid_,                                                                \
                     .rough = rough_,                                                              \
                     .in = {__VA_ARGS__},                                                          \
                     .next = samples};                                                             \
        samples = &s;                                                                              \
    }

/* Attention's own operators have kernels on the CPU alone. */
static inline bool sample_runs_here(const sample *s) {
    return !(etch_current_device() && s->op >= OP_ATTENTION && s->op <= OP_ATTENTION_KEPT);
}

#define S(...) ETCH_SHAPE(__VA_ARGS__)
/* A new tensor that may be written. */
#define COPY(t) etch_clone(t)

/* ---- copies and casts ---- */

SAMPLE(CLONE, etch_clone(x[0]), V(3, 4))
SAMPLE(TO_COPY, etch_to(x[0], ETCH_F64), V(3))
SAMPLE(TO_COPY, etch_to(etch_mul(x[0], x[0]), ETCH_F64), V())
SAMPLE(TO_DEVICE, etch_to_device(x[0], ETCH_CPU), V(2, 2))
SAMPLE(COPY_, etch_add(etch_copy_(COPY(x[0]), x[1]), x[0]), V(3, 4), V(4))
SAMPLE(FILL_SCALAR_, etch_add(etch_fill_(COPY(x[0]), 2), x[0]), V(3))
SAMPLE(ZERO_, etch_add(etch_zero_(COPY(x[0])), x[0]), V(3))

/* ---- arithmetic ---- */

SAMPLE(ADD_TENSOR, etch_add(x[0], x[1]), V(3, 4), V(4))
SAMPLE(ADD_TENSOR, etch_add_alpha(x[0], x[1], 0.75), V(2, 1, 3), V(4, 1))
SAMPLE(ADD_TENSOR, etch_add(x[0], x[1]), V(), V(3))
SAMPLE(ADD_TENSOR, etch_add(x[0], x[1]), V(0, 3), V(3))
SAMPLE(ADD_TENSOR_, etch_add_(COPY(x[0]), x[1]), V(3, 4), V(4))
SAMPLE(ADD_SCALAR, etch_add_scalar(x[0], 2.5), V(3, 4))
SAMPLE(ADD_SCALAR_, etch_add_scalar_(COPY(x[0]), 2.5), V(3, 4))
SAMPLE(SUB_TENSOR, etch_sub(x[0], x[1]), V(3, 1), V(4))
SAMPLE(SUB_TENSOR, etch_sub_alpha(x[0], x[1], -1.5), V(3, 4), V())
SAMPLE(SUB_TENSOR_, etch_sub_(COPY(x[0]), x[1]), V(3, 4), V(3, 1))
SAMPLE(SUB_SCALAR, etch_sub_scalar(x[0], 2), V(3, 4))
SAMPLE(SUB_SCALAR_, etch_sub_scalar_(COPY(x[0]), 2), V(3, 4))
SAMPLE(RSUB_SCALAR, etch_rsub_scalar(x[0], 2), V(3, 4))
SAMPLE(MUL_TENSOR, etch_mul(x[0], x[1]), V(3, 4), V(4))
SAMPLE(MUL_TENSOR, etch_mul(x[0], x[1]), V(), V(3, 2))
SAMPLE(MUL_TENSOR, etch_mul(x[0], x[0]), V(3))
SAMPLE(MUL_TENSOR, etch_mul(x[0], x[1]), V(3, 4), C(3, 1))
SAMPLE(MUL_TENSOR, etch_mul(x[0], x[1]), V(3, 2), I(9, 2))
SAMPLE(MUL_TENSOR_, etch_mul_(COPY(x[0]), x[1]), V(3, 4), V(4))
SAMPLE(MUL_SCALAR, etch_mul_scalar(x[0], -1.25), V(3, 4))
SAMPLE(MUL_SCALAR_, etch_mul_scalar_(COPY(x[0]), 3), V(3, 4))
SAMPLE(DIV_TENSOR, etch_div(x[0], x[1]), V(3, 4), V(4))
SAMPLE(DIV_TENSOR, etch_div(x[0], x[1]), V(1, 3), V(2, 1))
SAMPLE(DIV_TENSOR, etch_div(x[0], x[1]), I(5, 3), P(2, 3))
SAMPLE(DIV_TENSOR_, etch_div_(COPY(x[0]), x[1]), V(3, 4), P())
SAMPLE(DIV_SCALAR, etch_div_scalar(x[0], 3), V(3, 4))
SAMPLE(DIV_SCALAR_, etch_div_scalar_(COPY(x[0]), -0.5), V(3, 4))
SAMPLE(POW_TENSOR, etch_pow(x[0], x[1]), P(3, 4), V(4))
SAMPLE(POW_TENSOR, etch_pow(x[0], x[1]), I(5, 3), V(2, 3))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], 2), V(3, 4))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], 3.0), V(3, 4))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], -1), V(3))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], 0.5), P(3))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], 1.7), P(3))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], 1), V(3))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], 0), V(3))
SAMPLE(POW_SCALAR, etch_pow_scalar(x[0], 5), V())
SAMPLE(POW_SCALAR_, etch_pow_scalar_(COPY(x[0]), 3), V(3))
SAMPLE(MAXIMUM, etch_maximum(x[0], x[1]), V(3, 4), V(4))
SAMPLE(MINIMUM, etch_minimum(x[0], x[1]), V(3, 4), V(3, 1))
SAMPLE(NEG, etch_neg(x[0]), V(3, 4))
SAMPLE(NEG_, etch_neg_(COPY(x[0])), V(3, 4))
SAMPLE(ABS, etch_abs(x[0]), V(3, 4))
SAMPLE(ABS_, etch_abs_(COPY(x[0])), V(3, 4))
SAMPLE(RELU, etch_relu(x[0]), V(3, 4))
SAMPLE(RELU_, etch_relu_(COPY(x[0])), V(3, 4))
SAMPLE(SQUARE, etch_square(x[0]), V(3, 4))
SAMPLE(FMOD_TENSOR, etch_fmod(x[0], x[1]), V(3, 4), V(4))
SAMPLE(FMOD_SCALAR, etch_fmod_scalar(x[0], 0.7), V(3, 4))
SAMPLE(REMAINDER_TENSOR, etch_remainder(x[0], x[1]), V(3, 4), V(4))
SAMPLE(REMAINDER_SCALAR, etch_remainder_scalar(x[0], -0.7), V(3, 4))
SAMPLE(FLOOR_DIVIDE_TENSOR, etch_floor_divide(x[0], x[1]), V(3, 4), V(4))
SAMPLE(FLOOR_DIVIDE_SCALAR, etch_floor_divide_scalar(x[0], 0.7), V(3, 4))

/* ---- functions ---- */

SAMPLE(SQRT, etch_sqrt(x[0]), P(3, 4))
SAMPLE(SQRT_, etch_sqrt_(COPY(x[0])), P(3))
SAMPLE(RSQRT, etch_rsqrt(x[0]), P(3, 4))
SAMPLE(RSQRT_, etch_rsqrt_(COPY(x[0])), P(3))
SAMPLE(EXP, etch_exp(x[0]), V(3, 4))
SAMPLE(EXP, etch_exp(x[0]), V(0))
SAMPLE(EXP_, etch_exp_(COPY(x[0])), V(3))
SAMPLE(LOG, etch_log(x[0]), P(3, 4))
SAMPLE(LOG_, etch_log_(COPY(x[0])), P(3))
SAMPLE(SIN, etch_sin(x[0]), V(3, 4))
SAMPLE(SIN_, etch_sin_(COPY(x[0])), V(3))
SAMPLE(COS, etch_cos(x[0]), V(3, 4))
SAMPLE(COS_, etch_cos_(COPY(x[0])), V(3))
SAMPLE(TANH, etch_tanh(x[0]), V(3, 4))
SAMPLE(TANH_, etch_tanh_(COPY(x[0])), V(3))
SAMPLE(SIGMOID, etch_sigmoid(x[0]), V(3, 4))
SAMPLE(SIGMOID_, etch_sigmoid_(COPY(x[0])), V(3))
SAMPLE(EXP2, etch_exp2(x[0]), V(3, 4))
SAMPLE(EXPM1, etch_expm1(x[0]), V(3, 4))
SAMPLE(LOG2, etch_log2(x[0]), P(3, 4))
SAMPLE(LOG10, etch_log10(x[0]), P(3, 4))
SAMPLE(LOG1P, etch_log1p(x[0]), P(3, 4))
SAMPLE(ERF, etch_erf(x[0]), V(3, 4))
SAMPLE(TAN, etch_tan(x[0]), U(3, 4))
SAMPLE(ASIN, etch_asin(x[0]), U(3, 4))
SAMPLE(ACOS, etch_acos(x[0]), U(3, 4))
SAMPLE(ATAN, etch_atan(x[0]), V(3, 4))
SAMPLE(SINH, etch_sinh(x[0]), V(3, 4))
SAMPLE(COSH, etch_cosh(x[0]), V(3, 4))
SAMPLE(RECIPROCAL, etch_reciprocal(x[0]), V(3, 4))
SAMPLE(RECIPROCAL_, etch_reciprocal_(COPY(x[0])), V(3))
SAMPLE(SILU, etch_silu(x[0]), V(3, 4))
SAMPLE(GELU, etch_gelu(x[0]), V(3, 4))
SAMPLE(GELU, etch_gelu_with(x[0], true), V(3, 4))
SAMPLE(FLOOR, etch_floor(x[0]), V(3, 4))
SAMPLE(FLOOR_, etch_floor_(COPY(x[0])), V(3))
SAMPLE(CEIL, etch_ceil(x[0]), V(3, 4))
SAMPLE(TRUNC, etch_trunc(x[0]), V(3, 4))
SAMPLE(ROUND, etch_round(x[0]), V(3, 4))
SAMPLE(ROUND_, etch_round_(COPY(x[0])), V(3))
SAMPLE(SIGN, etch_sign(x[0]), V(3, 4))
SAMPLE(FRAC, etch_frac(x[0]), V(3, 4))

/* ---- choices ---- */

SAMPLE(CLAMP, etch_clamp(x[0], -0.75, 0.9), V(3, 4))
SAMPLE(CLAMP_, etch_clamp_(COPY(x[0]), -0.75, 0.9), V(3, 4))
SAMPLE(CLAMP_MIN, etch_clamp_min(x[0], 0.1), V(3, 4))
SAMPLE(CLAMP_MIN_, etch_clamp_min_(COPY(x[0]), 0.1), V(3, 4))
SAMPLE(CLAMP_MAX, etch_clamp_max(x[0], 0.1), V(3, 4))
SAMPLE(CLAMP_MAX_, etch_clamp_max_(COPY(x[0]), 0.1), V(3, 4))
SAMPLE(WHERE, etch_where(x[0], x[1], x[2]), B(3, 4), V(4), V(3, 1))
SAMPLE(WHERE, etch_where(x[0], x[1], x[2]), B(2, 1), V(), V(3))
SAMPLE(COPYSIGN_TENSOR, etch_copysign(x[0], x[1]), V(3, 4), V(4))
SAMPLE(FMAX, etch_fmax(x[0], x[1]), V(3, 4), V(4))
SAMPLE(FMIN, etch_fmin(x[0], x[1]), V(3, 4), V(4))
SAMPLE(MASKED_FILL, etch_masked_fill(x[0], x[1], 7), V(3, 4), B(4))
SAMPLE(MASKED_FILL, etch_masked_fill(x[0], x[1], 7), V(4), B(3, 1))
SAMPLE(MASKED_FILL_, etch_masked_fill_(COPY(x[0]), x[1], 7), V(3, 4), B(4))

/* ---- three operands ---- */

SAMPLE(ADDCMUL, etch_addcmul(x[0], x[1], x[2], 0.5), V(3, 4), V(4), V(3, 1))
SAMPLE(ADDCMUL, etch_addcmul(x[0], x[1], x[2], 1), V(), V(4), V(3, 1))
SAMPLE(ADDCMUL_, etch_addcmul_(COPY(x[0]), x[1], x[2], 2), V(3, 4), V(4), V(3, 1))
SAMPLE(ADDCDIV, etch_addcdiv(x[0], x[1], x[2], -0.5), V(3, 4), V(4), V(3, 1))
SAMPLE(ADDCDIV_, etch_addcdiv_(COPY(x[0]), x[1], x[2], 1), V(3, 4), V(4), V(3, 1))
SAMPLE(LERP_SCALAR, etch_lerp(x[0], x[1], 0.25), V(3, 4), V(4))
SAMPLE(LERP_SCALAR, etch_lerp(x[0], x[1], 0.75), V(3), V(2, 1))
SAMPLE(LERP_SCALAR_, etch_lerp_(COPY(x[0]), x[1], 0.25), V(3, 4), V(4))
SAMPLE(LERP_TENSOR, etch_lerp_tensor(x[0], x[1], x[2]), V(3, 4), V(4), V(3, 1))

/* ---- reductions ---- */

SAMPLE(SUM, etch_sum(x[0]), V(3, 4))
SAMPLE(SUM, etch_sum(x[0]), V())
SAMPLE(SUM, etch_sum(x[0]), V(0, 2))
SAMPLE(SUM_DIM, etch_sum_dim(x[0], S(-1), false), V(3, 4))
SAMPLE(SUM_DIM, etch_sum_dim(x[0], S(0, 2), true), V(2, 3, 2))
SAMPLE(SUM_DIM, etch_sum_dim(x[0], S(0, 2), false), V(2, 3, 2))
SAMPLE(SUM_DIM, etch_sum_dim(x[0], ETCH_ALL_DIMS, true), V(2, 3))
SAMPLE(SUM_DIM, etch_sum_dim(x[0], S(0), false), V())
SAMPLE(MEAN, etch_mean(x[0]), V(3, 4))
SAMPLE(MEAN_DIM, etch_mean_dim(x[0], S(1), false), V(3, 4))
SAMPLE(MEAN_DIM, etch_mean_dim(x[0], S(0, -1), true), V(2, 3, 2))
SAMPLE(MEAN_DIM, etch_mean_dim(x[0], S(1), false), V(3, 1))
SAMPLE(MAX, etch_max(x[0]), V(3, 4))
SAMPLE(MAX, etch_max(x[0]), V())
SAMPLE(MIN, etch_min(x[0]), V(3, 4))
SAMPLE(AMAX, etch_amax(x[0], S(1), false), V(3, 4))
SAMPLE(AMAX, etch_amax(x[0], S(0, 2), true), V(2, 3, 2))
SAMPLE(AMAX, etch_amax(x[0], ETCH_ALL_DIMS, false), V(2, 3))
SAMPLE(AMIN, etch_amin(x[0], S(-2), true), V(3, 4))
SAMPLE(PROD, etch_prod(x[0]), V(2, 3))
SAMPLE(PROD, etch_prod(x[0]), V())
SAMPLE(PROD, etch_prod(x[0]), V(0))
SAMPLE(PROD_DIM, etch_prod_dim(x[0], 1, false), V(2, 4))
SAMPLE(PROD_DIM, etch_prod_dim(x[0], -2, true), V(3, 2))
SAMPLE(PROD_DIM, etch_prod_dim(x[0], 0, false), V(1, 2))
SAMPLE(PROD_DIM, etch_prod_dim(x[0], 0, false), V())
SAMPLE(CUMSUM, etch_cumsum(x[0], 1), V(2, 4))
SAMPLE(CUMSUM, etch_cumsum(x[0], -2), V(3, 2))
SAMPLE(CUMSUM, etch_cumsum(x[0], 0), V())
SAMPLE(CUMPROD, etch_cumprod(x[0], 1), V(2, 4))
SAMPLE(CUMPROD, etch_cumprod(x[0], -3), V(3, 2, 1))
SAMPLE(CUMPROD, etch_cumprod(x[0], 0), V())
SAMPLE(CUMPROD, etch_cumprod(x[0], 0), V(0, 2))

/* ---- products ---- */

SAMPLE(MM, etch_mm(x[0], x[1]), V(3, 4), V(4, 2))
SAMPLE(MM, etch_mm(x[0], x[1]), V(3, 0), V(0, 2))
SAMPLE(ADDMM, etch_addmm(x[0], x[1], x[2]), V(2), V(3, 4), V(4, 2))
SAMPLE(ADDMM, etch_addmm_scaled(x[0], x[1], x[2], 0.5, -2), V(3, 1), V(3, 4), V(4, 2))
SAMPLE(MV, etch_mv(x[0], x[1]), V(3, 4), V(4))
SAMPLE(DOT, etch_dot(x[0], x[1]), V(4), V(4))
SAMPLE(BMM, etch_bmm(x[0], x[1]), V(2, 3, 4), V(2, 4, 2))

/* ---- views ---- */

SAMPLE_LAID(VIEW, etch_view(x[0], S(2, 6)), V(3, 4))
SAMPLE(TRANSPOSE, etch_transpose(x[0], 0, -1), V(2, 3, 4))
SAMPLE(T, etch_t(x[0]), V(3, 4))
SAMPLE(T, etch_t(x[0]), V(3))
SAMPLE(PERMUTE, etch_permute(x[0], S(2, 0, -2)), V(2, 3, 4))
SAMPLE(SLICE, etch_slice(x[0], 0, 1, 5, 2), V(6, 2))
SAMPLE(SLICE, etch_slice(x[0], -1, ETCH_ABSENT, ETCH_ABSENT, -1), V(2, 3))
SAMPLE(SLICE, etch_slice(x[0], 1, -1, 0, -2), V(2, 6))
SAMPLE(SLICE, etch_slice(x[0], 0, 2, 2, 1), V(3))
SAMPLE(SELECT, etch_select(x[0], 1, -1), V(3, 4))
SAMPLE(SELECT, etch_select(x[0], 0, 1), V(3))
SAMPLE(EXPAND, etch_expand(x[0], S(2, 3, 4)), V(3, 1))
SAMPLE(EXPAND, etch_expand(x[0], S(2, -1)), V(3))
SAMPLE(EXPAND, etch_expand(x[0], S(2, 2)), V())
SAMPLE(SQUEEZE, etch_squeeze(x[0]), V(1, 3, 1))
SAMPLE(SQUEEZE_DIM, etch_squeeze_dim(x[0], -1), V(1, 3, 1))
SAMPLE(UNSQUEEZE, etch_unsqueeze(x[0], 1), V(3, 2))
SAMPLE(UNFOLD, etch_unfold(x[0], 1, 3, 1), V(2, 6))
SAMPLE(UNFOLD, etch_unfold(x[0], 0, 2, 3), V(7, 2))
SAMPLE(UNFOLD, etch_unfold(x[0], 0, 2, 2), V(4))
SAMPLE(UNFOLD, etch_unfold(x[0], 1, 2, 2), V(2, 4, 3))
SAMPLE(UNFOLD, etch_unfold(x[0], 0, 2, 2), V(5))
SAMPLE(UNFOLD, etch_unfold(x[0], 0, 1, 1), V())
SAMPLE(DIAGONAL, etch_diagonal(x[0], 0, 0, 1), V(3, 3))
SAMPLE(DIAGONAL, etch_diagonal(x[0], 1, -1, 0), V(3, 2, 4))
SAMPLE(DIAGONAL, etch_diagonal(x[0], -1, 0, 2), V(3, 2, 4))
SAMPLE_LAID(AS_STRIDED, etch_as_strided(x[0], S(2, 3), S(1, 2)), V(12))
SAMPLE_LAID(AS_STRIDED, etch_as_strided(x[0], S(3, 3), S(1, 1)), V(12))
SAMPLE_LAID(AS_STRIDED, etch_as_strided(etch_slice(x[0], 0, 1, 4, 1), S(2, 2), S(4, 2)), V(4, 4))
SAMPLE_LAID(AS_STRIDED, etch_as_strided(etch_expand(x[0], S(3, 4)), S(4), S(1)), V(4))
SAMPLE(TRIL, etch_tril(x[0], 0), V(3, 4))
SAMPLE(TRIL, etch_tril(x[0], -1), V(2, 3, 3))
SAMPLE(TRIU, etch_triu(x[0], 1), V(3, 4))

/* ---- joins ---- */

SAMPLE(CAT, etch_cat(x, 2, 0), V(2, 3), V(1, 3))
SAMPLE(CAT, etch_cat(x, 3, -1), V(2, 3), V(0), V(2, 1))
SAMPLE(CAT, etch_cat(x, 4, 0), V(1), V(2), V(3), V(1))
SAMPLE(CAT, etch_cat(((etch_tensor *[]){x[0], x[1], x[0]}), 3, 0), V(2), C(1))

/* ---- indices ---- */

SAMPLE(INDEX_SELECT, etch_index_select(x[0], 1, x[1]), V(2, 4), I_SAME(3))
SAMPLE(INDEX_SELECT, etch_index_select(x[0], 0, x[1]), V(4), I(4, 2))
SAMPLE(INDEX_SELECT, etch_index_select(x[0], 0, x[1]), V(), I(1, 1))
SAMPLE(INDEX_SELECT, etch_index_select(x[0], -2, x[1]), V(3, 2), I(3, 0))
SAMPLE(GATHER, etch_gather(x[0], 1, x[1]), V(3, 4), I(4, 2, 3))
SAMPLE(GATHER, etch_gather(x[0], 0, x[1]), V(3, 4), I_SAME(2, 4))
SAMPLE(GATHER, etch_gather(x[0], 0, x[1]), V(), I(1, 1))
SAMPLE(GATHER, etch_gather(x[0], 0, x[1]), V(3), I(3, 0))
SAMPLE(TAKE, etch_take(x[0], x[1]), V(3, 4), I(12, 2, 3))
SAMPLE(TAKE, etch_take(x[0], x[1]), V(3, 4), I_BACK(12, 3))
SAMPLE(SCATTER_SRC, etch_scatter(x[0], 1, x[1], x[2]), V(3, 4), I(4, 2, 2), V(2, 2))
SAMPLE(SCATTER_SRC, etch_scatter(x[0], -1, x[1], x[2]), V(3, 4), I(4, 2, 2), V(3, 3))
SAMPLE(SCATTER_SRC, etch_scatter(x[0], 0, x[1], x[2]), V(3), I(3), V(2))
SAMPLE(SCATTER_SRC, etch_scatter(x[0], 0, x[1], x[2]), V(3), I(3, 0), V(2))
SAMPLE(SCATTER_SRC_, etch_scatter_(COPY(x[0]), 1, x[1], x[2]), V(3, 4), I(4, 2, 2), V(2, 2))
SAMPLE(SCATTER_VALUE, etch_scatter_value(x[0], 1, x[1], 5), V(3, 4), I(4, 2, 2))
SAMPLE(SCATTER_VALUE_, etch_scatter_value_(COPY(x[0]), 1, x[1], 5), V(3, 4), I(4, 2, 2))
SAMPLE(SCATTER_ADD, etch_scatter_add(x[0], 0, x[1], x[2]), V(3, 4), I_SAME(2, 2), V(2, 3))
SAMPLE(SCATTER_ADD_, etch_scatter_add_(COPY(x[0]), 0, x[1], x[2]), V(3, 4), I(3, 2, 2), V(2, 2))
SAMPLE(INDEX_COPY, etch_index_copy(x[0], 0, x[1], x[2]), V(3, 2), I(3, 2), V(2, 2))
SAMPLE(INDEX_COPY, etch_index_copy(x[0], 0, x[1], x[2]), V(), I(1, 1), V())
SAMPLE(INDEX_COPY_, etch_index_copy_(COPY(x[0]), -1, x[1], x[2]), V(2, 3), I(3, 2), V(2, 2))
SAMPLE(INDEX_ADD, etch_index_add(x[0], 1, x[1], x[2]), V(2, 3), I_SAME(4), V(2, 4))
SAMPLE(INDEX_ADD_, etch_index_add_(COPY(x[0]), 0, x[1], x[2]), V(3), I(3, 2), V(2))
SAMPLE(INDEX_FILL, etch_index_fill(x[0], 0, x[1], 3), V(3, 2), I(3, 2))
SAMPLE(INDEX_FILL_, etch_index_fill_(COPY(x[0]), 1, x[1], 3), V(2, 3), I(3, 2))
SAMPLE(INDEX_PUT, etch_index_put(x[0], x[1], x[2], false), V(4, 2), I(4, 3), V(3, 2))
SAMPLE(INDEX_PUT, etch_index_put(x[0], x[1], x[2], false), V(4, 2), I_BACK(4, 2), V(2))
SAMPLE(INDEX_PUT, etch_index_put(x[0], x[1], x[2], true), V(4, 2), I_SAME(2, 3), V(3, 1))
SAMPLE(INDEX_PUT, etch_index_put(x[0], x[1], x[2], false), V(3), I(3), V())
SAMPLE(INDEX_PUT, etch_index_put(x[0], x[1], x[2], false), V(3, 4), B(3, 4), V())
SAMPLE(INDEX_PUT_, etch_index_put_(COPY(x[0]), x[1], x[2], true), V(4, 2), I(4, 3), V(2))

/* ---- normalisations ---- */

SAMPLE(SOFTMAX_RAW, etch_softmax_raw(x[0], 1, false), V(3, 4))
SAMPLE(SOFTMAX_RAW, etch_softmax_raw(x[0], 0, false), V(3, 2))
SAMPLE(SOFTMAX_RAW, etch_softmax_raw(x[0], -1, false), V())
SAMPLE(LOG_SOFTMAX_RAW, etch_log_softmax_raw(x[0], -1, false), V(3, 4))
SAMPLE(LOG_SOFTMAX_RAW, etch_log_softmax_raw(x[0], 0, false), V(3, 2))
SAMPLE(NATIVE_LAYER_NORM, etch_native_layer_norm(x[0], S(4), x[1], x[2], 1e-3), V(3, 4), V(4), V(4))
SAMPLE(NATIVE_LAYER_NORM, etch_native_layer_norm(x[0], S(2, 2), x[1], ETCH_NONE, 0.1), V(3, 2, 2),
       V(2, 2))
SAMPLE(NATIVE_LAYER_NORM, etch_native_layer_norm(x[0], S(3), ETCH_NONE, x[1], 0.1), V(2, 3), V(3))
SAMPLE(NATIVE_LAYER_NORM, etch_native_layer_norm(x[0], S(3), ETCH_NONE, ETCH_NONE, 0.1), V(3))

/* ---- convolution ---- */

#define CONV(stride, padding, dilation, groups)                                                    \
    etch_convolution(x[0], x[1], x[2], stride, padding, dilation, groups)
SAMPLE(CONVOLUTION, CONV(S(1), S(0), S(1), 1), V(2, 2, 3, 4), V(3, 2, 2, 2), V(3))
SAMPLE(CONVOLUTION, CONV(S(2, 1), S(1, 2), S(1), 1), V(1, 2, 4, 4), V(2, 2, 3, 2), V(2))
SAMPLE(CONVOLUTION, CONV(S(1), S(1), S(2, 1), 2), V(1, 4, 5, 3), V(2, 2, 2, 3), NOTHING)
SAMPLE(CONVOLUTION, CONV(S(2), S(1), S(1), 2), V(2, 2, 5, 6), V(4, 1, 2, 2), V(4))
SAMPLE(CONVOLUTION, CONV(S(3, 2), S(2), S(1, 2), 1), V(1, 1, 6, 5), V(1, 1, 1, 2), NOTHING)
SAMPLE(CONVOLUTION, CONV(S(2), S(3), S(1), 1), V(1, 1, 3, 3), V(1, 1, 1, 1), V(1))
SAMPLE(CONVOLUTION, CONV(S(1), S(0), S(1), 1), V(0, 2, 3, 4), V(3, 2, 2, 2), V(3))

#define BACKWARD(to, size, stride, padding, dilation, groups)                                      \
    etch_convolution_backward_##to(x[0], x[1], size, stride, padding, dilation, groups)
SAMPLE(CONVOLUTION_BACKWARD_INPUT, BACKWARD(input, S(2, 2, 3, 4), S(1), S(0), S(1), 1),
       V(2, 3, 2, 3), V(3, 2, 2, 2))
SAMPLE(CONVOLUTION_BACKWARD_INPUT, BACKWARD(input, S(1, 2, 5, 6), S(2, 3), S(1, 2), S(1, 2), 2),
       V(1, 4, 3, 3), V(4, 1, 2, 2))
SAMPLE(CONVOLUTION_BACKWARD_WEIGHT, BACKWARD(weight, S(3, 2, 2, 2), S(1), S(0), S(1), 1),
       V(2, 3, 2, 3), V(2, 2, 3, 4))
SAMPLE(CONVOLUTION_BACKWARD_WEIGHT, BACKWARD(weight, S(4, 1, 2, 2), S(2, 3), S(1, 2), S(1, 2), 2),
       V(1, 4, 3, 3), V(1, 2, 5, 6))

/* ---- attention ---- */

#define ATTENTION(mask, causal) etch_attention_raw(x[0], x[1], x[2], mask, causal, 0.7)
SAMPLE(ATTENTION, ATTENTION(ETCH_NONE, false), V(3, 4), V(5, 4), V(5, 2))
SAMPLE(ATTENTION, ATTENTION(ETCH_NONE, true), V(2, 4, 3, 2), V(2, 2, 5, 2), V(2, 2, 5, 3))
SAMPLE(ATTENTION, ATTENTION(x[3], true), V(2, 4, 3, 2), V(2, 2, 3, 2), V(2, 2, 3, 3), V(4, 1, 3))
SAMPLE(ATTENTION, ATTENTION(x[3], false), V(4, 3, 2), V(2, 3, 2), V(2, 3, 3), V(1, 3, 1))
SAMPLE(ATTENTION, ATTENTION(x[3], false), V(2, 3, 2), V(2, 4, 2), V(2, 4, 3), B(3, 4))
SAMPLE(ATTENTION, ATTENTION(ETCH_NONE, false), V(2, 3, 2), V(2, 0, 2), V(2, 0, 3))
SAMPLE(ATTENTION_DROPOUT,
       etch_attention_dropout_raw(x[0], x[1], x[2], x[3], etch_to(x[4], ETCH_F64), true, 0.7, 0.3),
       V(4, 3, 2), V(2, 4, 2), V(2, 4, 3), V(3, 4), C(1))
#define ATTENTION_BACK(mask, causal)                                                               \
    etch_attention_backward_raw(x[3], ATTENTION(mask, causal), x[0], x[1], x[2], mask, ETCH_NONE,  \
                                causal, 0.7, 0)
SAMPLE(ATTENTION_BACKWARD, ATTENTION_BACK(ETCH_NONE, false), V(3, 4), V(5, 4), V(5, 2), V(3, 2))
SAMPLE(ATTENTION_BACKWARD, ATTENTION_BACK(x[4], true), V(4, 3, 2), V(2, 3, 2), V(2, 3, 3),
       V(4, 3, 3), V(4, 1, 3))
SAMPLE(ATTENTION_BACKWARD, ATTENTION_BACK(x[4], false), V(2, 3, 2), V(2, 4, 2), V(2, 4, 3),
       V(2, 3, 3), B(3, 4))
#define DROPPED_WITH(seed)                                                                         \
    etch_attention_dropout_raw(x[0], x[1], x[2], ETCH_NONE, seed, false, 0.7, 0.3)
#define DROPPED_BACK(seed)                                                                         \
    etch_attention_backward_raw(x[3], DROPPED_WITH(seed), x[0], x[1], x[2], ETCH_NONE, seed,       \
                                false, 0.7, 0.3)
SAMPLE(ATTENTION_BACKWARD, DROPPED_BACK(etch_to(x[4], ETCH_F64)), V(4, 3, 2), V(2, 4, 2),
       V(2, 4, 3), V(4, 3, 3), C(1))

/* ---- pooling ---- */

#define MAX_POOL(kernel, stride, padding, dilation, ceil)                                          \
    etch_max_pool2d(x[0], kernel, stride, padding, dilation, ceil)
SAMPLE(MAX_POOL2D, MAX_POOL(S(2), S(0), S(0), S(1), false), V(2, 2, 4, 6))
SAMPLE(MAX_POOL2D, MAX_POOL(S(3, 2), S(1, 2), S(1), S(1, 2), false), V(2, 4, 5))
SAMPLE(MAX_POOL2D, MAX_POOL(S(2), S(2), S(1), S(1), true), V(1, 2, 3, 4))
SAMPLE(MAX_POOL2D, MAX_POOL(S(2), S(2), S(0), S(1), false), V(0, 2, 4, 4))

#define AVG_POOL(kernel, stride, padding, ceil, counts, divisor)                                   \
    etch_avg_pool2d(x[0], kernel, stride, padding, ceil, counts, divisor)
SAMPLE(AVG_POOL2D, AVG_POOL(S(2), S(0), S(0), false, true, 0), V(2, 2, 4, 6))
SAMPLE(AVG_POOL2D, AVG_POOL(S(3, 2), S(1, 2), S(1), false, false, 0), V(2, 4, 5))
SAMPLE(AVG_POOL2D, AVG_POOL(S(2), S(2), S(1), true, true, 3), V(1, 2, 3, 4))
SAMPLE(AVG_POOL2D, AVG_POOL(S(2), S(2), S(0), false, true, 0), V(0, 2, 4, 4))

#define AVG_BACK(size, kernel, stride, padding, ceil, counts, divisor)                             \
    etch_avg_pool2d_backward(x[0], size, kernel, stride, padding, ceil, counts, divisor)
SAMPLE(AVG_POOL2D_BACKWARD, AVG_BACK(S(2, 4, 6), S(2), S(0), S(0), false, true, 0), V(2, 2, 3))
SAMPLE(AVG_POOL2D_BACKWARD, AVG_BACK(S(1, 2, 3, 4), S(2), S(1, 2), S(1), true, false, 0),
       V(1, 2, 4, 3))

/* ---- what is made of others ---- */

SAMPLE(RESHAPE, etch_reshape(x[0], S(4, -1)), V(2, 6))
SAMPLE(CONTIGUOUS, etch_contiguous(x[0]), V(2, 3))
SAMPLE(MATMUL, etch_matmul(x[0], x[1]), V(2, 1, 2, 3), V(3, 3, 2))
SAMPLE(MATMUL, etch_matmul(x[0], x[1]), V(3), V(2, 3, 2))
SAMPLE(MATMUL, etch_matmul(x[0], x[1]), V(2, 2, 3), V(3))
SAMPLE(NARROW, etch_narrow(x[0], 1, 1, 2), V(2, 4))
SAMPLE(MOVEDIM, etch_movedim(x[0], S(0), S(-1)), V(2, 3, 2))
SAMPLE(FLATTEN, etch_flatten(x[0], 1, -1), V(2, 2, 2))
SAMPLE(ZEROS_LIKE, etch_add(etch_zeros_like(x[0]), x[0]), V(3, 4))
SAMPLE(ONES_LIKE, etch_add_(etch_ones_like(x[0]), x[0]), V(3, 4))
SAMPLE(FULL_LIKE, etch_mul(etch_full_like(x[0], 2.5), x[0]), V(3, 4))
SAMPLE(EXPAND_AS, etch_expand_as(x[0], x[1]), V(3), C(2, 3))
SAMPLE(STACK, etch_stack(x, 2, 1), V(2, 3), V(2, 3))
SAMPLE(FLIP, etch_flip(x[0], S(0, 1)), V(2, 3))
SAMPLE(ROLL, etch_roll(x[0], S(1, -2), S(0, 1)), V(2, 3))
SAMPLE(REPEAT, etch_repeat(x[0], S(2, 1, 2)), V(2, 2))
SAMPLE(TILE, etch_tile(x[0], S(2)), V(2, 2))
SAMPLE(SLICE_SCATTER, etch_slice_scatter(x[0], x[1], 0, 1, 4, 2), V(4, 2), V(2, 2))
SAMPLE(SELECT_SCATTER, etch_select_scatter(x[0], x[1], 1, 0), V(3, 2), V(3))
SAMPLE(LDEXP, etch_ldexp(x[0], x[1]), V(3), I(5, 3))
SAMPLE(LDEXP, etch_ldexp(x[0], x[1]), V(3), V(3))
SAMPLE(CLAMP_TENSOR, etch_clamp_tensor(x[0], x[1], ETCH_NONE), V(3, 4), V(4))
SAMPLE(VAR, etch_var_dim(x[0], S(1), 1, false), V(2, 4))
SAMPLE(VAR, etch_var(x[0]), V(2, 3))
SAMPLE(STD, etch_std_dim(x[0], S(0), 0, true), V(4, 2))
SAMPLE(LOGSUMEXP, etch_logsumexp(x[0], S(1), false), V(2, 4))
SAMPLE(INDEX, etch_index(x[0], x[1]), V(4, 2), I_BACK(4, 3))
SAMPLE(INDEX, etch_index(x[0], x[1]), V(3, 2), B(3))
SAMPLE(TAKE_ALONG_DIM, etch_take_along_dim(x[0], x[1], 1), V(3, 4), I(4, 3, 2))
SAMPLE(EMBEDDING, etch_embedding(x[0], x[1]), V(4, 3), I_SAME(2, 2))
SAMPLE(MASKED_SELECT, etch_masked_select(x[0], x[1]), V(3, 4), B(4))
SAMPLE(SOFTMAX, etch_softmax(x[0], -1), V(2, 3))
SAMPLE(LOG_SOFTMAX, etch_log_softmax(x[0], 0), V(2, 3))
SAMPLE(LAYER_NORM, etch_layer_norm(x[0], S(4), x[1], x[2], 1e-3), V(2, 4), V(4), V(4))
SAMPLE(LINEAR, etch_linear(x[0], x[1], x[2]), V(2, 3), V(4, 3), V(4))
SAMPLE(LINEAR, etch_linear(x[0], x[1], x[2]), V(2, 2, 3), V(4, 3), NOTHING)
SAMPLE(SCALED_DOT_PRODUCT_ATTENTION,
       etch_scaled_dot_product_attention(x[0], x[1], x[2], x[3], 0, true, 0), V(2, 4, 3, 2),
       V(2, 2, 5, 2), V(2, 2, 5, 3), V(5))
SAMPLE(CONV2D, etch_conv2d(x[0], x[1], x[2], S(1), S(1), S(1), 1), V(2, 3, 4), V(2, 2, 2, 2), V(2))
SAMPLE(MAX_POOL1D, etch_max_pool1d(x[0], S(2), S(1), S(1), S(1), false), V(2, 5))
SAMPLE(AVG_POOL1D, etch_avg_pool1d(x[0], S(3), S(2), S(1), true, false), V(2, 2, 6))

/* ---- weights of few bits ---- */

/* A product with a weight of 5 rows. */
static inline etch_tensor *few_bits(etch_tensor *x, int bits, int64_t group, etch_dtype kind) {
    int64_t columns = etch_size(x, -1);
    etch_tensor *w = etch_sin(etch_arange(ETCH_F32, 0, (double)(5 * columns), 1)), *q, *scales;
    w = etch_view(w, S(5, columns));
    if (etch_quantize_with(w, bits, group, kind, &q, &scales) != ETCH_OK) return NULL;
    return etch_linear_q(x, q, scales, ETCH_NONE);
}
SAMPLE(LINEAR_Q_RAW, few_bits(x[0], 8, 0, ETCH_F32), V(2, 6))
SAMPLE(LINEAR_Q_RAW, few_bits(x[0], 4, 8, ETCH_BF16), V(2, 1, 16))
SAMPLE(LINEAR_Q_RAW, few_bits(x[0], 4, 0, ETCH_F32), V(3))
SAMPLE(LINEAR_Q_RAW, few_bits(x[0], 8, 0, ETCH_BF16), V(0, 4))
SAMPLE(LINEAR_Q, etch_add(few_bits(x[0], 4, 8, ETCH_F32), x[1]), V(2, 8), V(5))

#endif
