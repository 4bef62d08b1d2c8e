/* Reports about NaN, infinities, signed zeros, denormals and rounding. See cases_support.h.
 * Labels: device long. */
#include "cases_support.h"

/* ---- NaN ---- */

BODY(clamp_min_half, etch_clamp_min(in[0], 0.5))
BODY(clamp_max_half, etch_clamp_max(in[0], 0.5))
BODY(clamp_both, etch_clamp(in[0], -0.5, 0.5))
BODY(maximum, etch_maximum(in[0], in[1]))
BODY(minimum, etch_minimum(in[0], in[1]))
BODY(relu, etch_relu(in[0]))
BODY(argmax, etch_argmax(in[0]))
BODY(argmin, etch_argmin(in[0]))
BODY(argmin_columns, etch_argmin_dim(in[0], 0, false))
BODY(argmax_rows, etch_argmax_dim(in[0], 1, false))
BODY(largest, etch_max(in[0]))
BODY(amax_rows, etch_amax(in[0], ETCH_DIMS(1), false))
BODY(amin_columns, etch_amin(in[0], ETCH_DIMS(0), false))
BODY(times_zero, etch_mul_scalar(in[0], 0))
BODY(times, etch_mul(in[0], in[1]))

/* The NaN policies of a reduction and of the index that belongs to it. */
static void max_and_argmax(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_max(in[0]);
    out[1] = etch_argmax(in[0]);
}

/* The same maximum of constants, which may be folded, and of an argument. */
static void folded_maximum(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *zero = etch_zeros(ETCH_F32, ETCH_SHAPE(3));
    etch_tensor *nan = etch_div(zero, zero);
    out[0] = etch_max(nan);
    out[1] = etch_max(etch_div(in[0], in[0]));
    etch_tensor *last = etch_cat((etch_tensor *[]){etch_ones(ETCH_F32, ETCH_SHAPE(3)), nan}, 2, 0);
    out[2] = etch_amax(last, ETCH_DIMS(0), false);
}

#define NAN_IN_MAXIMUM(dtype)                                                                      \
    CASE(pt_93784_nan_in_maximum_##dtype, maximum,                                                 \
         IN(#dtype "[3]{nan 1 2}", #dtype "[3]{0.5 nan 3}"), WANT(#dtype "[3]{nan nan 3}")),       \
        CASE(pt_93784_nan_in_minimum_##dtype, minimum,                                             \
             IN(#dtype "[3]{nan 1 2}", #dtype "[3]{0.5 nan 3}"), WANT(#dtype "[3]{nan nan 2}")),   \
        CASE(pt_93784_nan_in_clamp_##dtype, clamp_min_half, IN(#dtype "[3]{nan 0.25 1}"),          \
             WANT(#dtype "[3]{nan 0.5 1}")),                                                       \
        CASE(pt_118266_argmax_nan_first_##dtype, argmax, IN(#dtype "[2]{nan 4.6}"),                \
             WANT("i64[]{0}")),                                                                    \
        CASE(tvm_19518_max_keeps_nan_##dtype, largest, IN(#dtype "[70]{0*66 nan 5*3}"),            \
             WANT(#dtype "[]{nan}"))

/* ---- running sums and spreads of extreme values ---- */

BODY(running_sum, etch_cumsum(in[0], 0))
BODY(spread, etch_std_dim(in[0], ETCH_DIMS(0), 0, false))

static void var_and_mean_of_scalar(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_var_dim(in[0], ETCH_ALL_DIMS, 4.9, false);
    out[1] = etch_mean(in[0]);
    out[2] = etch_var_dim(in[0], ETCH_ALL_DIMS, 0, false);
}

/* ---- signed zeros, denormals, infinities ---- */

BODY(sign_bit, etch_signbit(in[0]))

BODY(frac, etch_frac(in[0]))
BODY(plus, etch_add(in[0], in[1]))
BODY(times_one, etch_mul_scalar(in[0], 1.0))
BODY(halved_twice, etch_mul_scalar(etch_mul_scalar(in[0], 0.5), 0.5))
BODY(root_of_square, etch_sqrt(etch_abs(etch_square(in[0]))))

/* 1 / -0 is -inf: the sign of a zero as a value. */
static void frac_then_reciprocal(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_reciprocal(etch_frac(in[0]));
}

/* ---- softmax of large numbers ---- */

BODY(softmax_of_scaled, etch_softmax(etch_mul_scalar(in[0], -1.7e14), -1))

static void softmax_by_hand(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *x = etch_mul_scalar(in[0], -1.7e14);
    etch_tensor *m = etch_amax(x, ETCH_DIMS(-1), true);
    etch_tensor *e = etch_exp(etch_sub(x, m));
    out[0] = etch_div(e, etch_sum_dim(e, ETCH_DIMS(-1), true));
}

/* ---- division of reals, rounded scalars ---- */

BODY(floor_divide, etch_floor_divide(in[0], in[1]))
BODY(by_tenth, etch_floor_divide_scalar(in[0], 0.1))
BODY(remainder_by, etch_remainder(in[0], in[1]))
BODY(remainder_tiny, etch_remainder_scalar(in[0], 1e-20))
BODY(fmod_by_1_7, etch_fmod_scalar(in[0], 1.7))
BODY(remainder_by_1_7, etch_remainder_scalar(in[0], 1.7))
BODY(minus_tenth, etch_add_scalar(in[0], -0.1))

/* ---- two functions that differ in a constant of theirs ---- */

/* -sum(p log p) in nats and in bits, in thousandths. */
static void entropies(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *nats = etch_neg(etch_sum(etch_mul(in[0], etch_log(in[0]))));
    etch_tensor *bits = etch_neg(etch_sum(etch_mul(in[0], etch_log2(in[0]))));
    etch_tensor *both[] = {nats, bits};
    out[0] = etch_round(etch_mul_scalar(etch_stack(both, 2, 0), 1000));
}

static const case_row rows[] = {
    NAN_IN_MAXIMUM(f16),
    NAN_IN_MAXIMUM(bf16),
    NAN_IN_MAXIMUM(f32),
    NAN_IN_MAXIMUM(f64),
    CASE(pt_93784_clamp_max_nan, clamp_max_half, IN("f16[3]{nan 0.25 1}"),
         WANT("f16[3]{nan 0.25 0.5}")),
    CASE(pt_93784_clamp_nan, clamp_both, IN("f32[2,2]{nan -2 2 0}"),
         WANT("f32[2,2]{nan -0.5 0.5 0}")),
    CASE(pt_93784_relu_nan, relu, IN("f32[4]{nan -1 1 inf}"), WANT("f32[4]{nan 0 1 inf}")),
    CASE(pt_93784_clamp_int_by_real_is_real, clamp_min_half, IN("i32[3]{0 1 -5}"),
         WANT("f32[3]{0.5 1 0.5}")),
    CASE(pt_93784_clamp_u8_by_real_is_real, clamp_max_half, IN("u8[2]{0 1}"),
         WANT("f32[2]{0 0.5}")),
    CASE(pt_118266_argmax_first_nan_of_two, argmax, IN("f32[4]{1 nan 9 nan}"), WANT("i64[]{1}")),
    CASE(pt_118266_argmax_nan_in_rows, argmax_rows, IN("f32[3,3]{nan 5 6 1 nan 9 1 2 2}"),
         WANT("i64[3]{0 1 1}")),
    CASE(mlx_4274_argmax_agrees_with_max, max_and_argmax, IN("f32[3]{1 nan 2}"),
         WANT("f32[]{nan}", "i64[]{1}")),
    CASE(mlx_4274_argmax_agrees_with_max_inf, max_and_argmax, IN("f32[3]{-inf inf inf}"),
         WANT("f32[]{inf}", "i64[]{1}")),
    CASE(af_2130_min_over_axis_with_nan, amin_columns, IN("f32[2,3]{1 nan 3 4 0 nan}"),
         WANT("f32[3]{1 nan nan}")),
    CASE(af_2130_max_over_axis_with_nan, amax_rows, IN("f64[2,3]{1 nan 3 4 0 -1}"),
         WANT("f64[2]{nan 4}")),
    CASE(af_2130_argmin_over_axis_with_nan, argmin_columns, IN("f32[2,3]{1 nan 3 4 0 nan}"),
         WANT("i64[3]{0 0 1}")),
    CASE(pt_118266_argmin_nan_first, argmin, IN("f64[3]{-5 nan -7}"), WANT("i64[]{1}")),
    CASE(pt_118266_argmin_ties, argmin, IN("f16[4]{2 1 1 3}"), WANT("i64[]{1}")),
    CASE(pt_132107_running_sum_of_inf, running_sum, IN("f64[100]{inf*100}"),
         WANT("f64[100]{inf*100}")),
    CASE(pt_132107_running_sum_of_inf_f32, running_sum, IN("f32[5]{1 inf 2 -inf 3}"),
         WANT("f32[5]{1 inf inf nan nan}")),
    CASE(pt_132107_running_sum_of_columns, running_sum, IN("f16[3,2]{1 -inf 2 1 3 2}"),
         WANT("f16[3,2]{1 -inf 3 -inf 6 -inf}")),
    CASE(mlx_4044_running_sum_with_nan, running_sum, IN("bf16[4]{1 nan 2 3}"),
         WANT("bf16[4]{1 nan nan nan}")),
    CASE(pt_197089_std_of_huge, spread, IN("f32[2]{1.2676506002282294e30 3.802951800684688e30}"),
         WANT("f32[]{1.2676506002282294e30}")),
    CASE(pt_197089_std_of_tiny, spread, IN("f32[2]{7.888609052210118e-31 2.3665827156630354e-30}"),
         WANT("f32[]{7.888609052210118e-31}")),
    CASE(pt_197089_std_far_from_zero, spread, IN("f32[2]{16777214 16777216}"), WANT("f32[]{1}")),
    CASE(pt_113167_var_of_a_scalar, var_and_mean_of_scalar, IN("f32[]{3}"),
         WANT("f32[]{nan}", "f32[]{3}", "f32[]{0}")),
    CASE(jax_4780_zero_times_nan, times_zero, IN("f32[5]{nan inf -inf -1 2}"),
         WANT("f32[5]{nan nan nan -0 0}")),
    CASE(jax_4780_zero_times_nan_tensor, times, IN("f64[3]{0 nan inf}", "f64[3]{nan 0 0}"),
         WANT("f64[3]{nan nan nan}")),
    CASE(xla_21461_folded_max_with_nan, folded_maximum, IN("f32[2]{0 1}"),
         WANT("f32[]{nan}", "f32[]{nan}", "f32[]{nan}")),

    CASE(pt_183606_frac_of_negative_zero, frac, IN("f32[5]{-0 0 -1.5 2.25 -3}"),
         WANT("f32[5]{0 0 -0.5 0.25 0}")),
    CASE(pt_183606_frac_of_infinity, frac, IN("f64[3]{inf -inf nan}"), WANT("f64[3]{nan nan nan}")),
    CASE(pt_183606_frac_sign_seen, frac_then_reciprocal, IN("f64[3]{-0 0 -2}"),
         WANT("f64[3]{inf inf inf}")),
    CASE(pt_187935_sign_bit_f64, sign_bit, IN("f64[6]{-0 0 -1 inf -inf 1e-320}"),
         WANT("bool[6]{1 0 1 0 1 0}")),
    CASE(pt_187935_sign_bit_f32, sign_bit, IN("f32[4]{-0 0 -1e-45 1}"), WANT("bool[4]{1 0 1 0}")),
    CASE(pt_187935_sign_bit_f16, sign_bit, IN("f16[3]{-0 0 -6e-8}"), WANT("bool[3]{1 0 1}")),
    CASE(pt_187935_sign_bit_bf16, sign_bit, IN("bf16[2]{-0 0}"), WANT("bool[2]{1 0}")),
    CASE(pt_187935_sign_bit_i8, sign_bit, IN("i8[3]{-128 0 127}"), WANT("bool[3]{1 0 0}")),
    CASE(pt_187935_sign_bit_u8, sign_bit, IN("u8[2]{128 0}"), WANT("bool[2]{0 0}")),
    CASE(pt_183606_negative_zero_plus_zero, plus, IN("f32[3]{-0 -0 0}", "f32[3]{0 -0 -0}"),
         WANT("f32[3]{0 -0 0}")),
    CASE(pt_126848_denormals_f32, times_one, IN("f32[4]{8.816207631167156e-39 1e-45 -1e-45 1}"),
         WANT("f32[4]{8.816207631167156e-39 1e-45 -1e-45 1}")),
    CASE(pt_126848_denormals_halved, halved_twice, IN("f32[2]{1.1754943508222875e-38 5.6e-45}"),
         WANT("f32[2]{2.938735877055719e-39 1.4e-45}")),
    CASE(pt_126848_denormals_f64, halved_twice, IN("f64[2]{2e-323 2.2250738585072014e-308}"),
         WANT("f64[2]{5e-324 5.562684646268003e-309}")),
    CASE(pt_126848_denormals_f16, times_one, IN("f16[2]{6e-8 -6e-8}"), WANT("f16[2]{6e-8 -6e-8}")),
    CASE(pt_126848_denormals_sum, plus, IN("f32[1]{1e-45}", "f32[1]{1e-45}"),
         WANT("f32[1]{2.8e-45}")),
    CASE(exact_root_of_square_of_largest, root_of_square,
         IN("f32[2]{3.4028234663852886e38 -3.4028234663852886e38}"), WANT("f32[2]{inf inf}")),

    CASE(pt_100775_softmax_of_one_column, softmax_of_scaled, IN("f32[3,1]{1 -1 3e20}"),
         WANT("f32[3,1]{1 1 1}")),
    CASE(pt_163932_softmax_of_two_columns, softmax_of_scaled, IN("f32[2,2]{1 2 5 5}"),
         WANT("f32[2,2]{1 0 0.5 0.5}")),
    CASE(pt_163932_softmax_by_hand, softmax_by_hand, IN("f32[2,2]{1 2 5 5}"),
         WANT("f32[2,2]{1 0 0.5 0.5}")),
    CASE(pt_100775_softmax_by_hand_of_one_column, softmax_by_hand, IN("f64[2,1]{1 -7}"),
         WANT("f64[2,1]{1 1}")),

    CASE(pt_197895_floor_divide, floor_divide, IN("f64[3]{1 0.5 6}", "f64[3]{0.1 0.1 0.2}"),
         WANT("f64[3]{9 4 29}")),
    CASE(pt_197895_floor_divide_negative, floor_divide, IN("f64[2]{-1 1}", "f64[2]{0.1 -0.1}"),
         WANT("f64[2]{-10 -10}")),
    CASE(pt_197895_floor_divide_by_scalar, by_tenth, IN("f64[2]{1 0.5}"), WANT("f64[2]{9 4}")),
    CASE(pt_194345_remainder_of_far_numbers, remainder_tiny, IN("f64[1]{1e10}"),
         WANT("f64[1]{4.313564341284728e-21}")),
    CASE(pt_194345_remainder_of_far_tensors, remainder_by, IN("f64[1]{1e10}", "f64[1]{1e-20}"),
         WANT("f64[1]{4.313564341284728e-21}")),
    CASE(pt_186875_fmod_by_rounded_scalar, fmod_by_1_7, IN("bf16[2]{1.703125 -1.703125}"),
         WANT("bf16[2]{0 -0}")),
    CASE(pt_183083_remainder_by_rounded_scalar, remainder_by_1_7, IN("bf16[2]{1.703125 -1.703125}"),
         WANT("bf16[2]{0 -0}")),
    CASE(pt_186875_fmod_by_rounded_scalar_f16, fmod_by_1_7,
         IN("f16[2]{1.7001953125 -1.7001953125}"), WANT("f16[2]{0 -0}")),
    CASE(pt_185605_bf16_plus_f64_tensor, plus, IN("bf16[1]{0.10009765625}", "f64[]{-0.1}"),
         WANT("bf16[1]{0}")),
    CASE(pt_185605_bf16_plus_scalar, minus_tenth, IN("bf16[1]{0.10009765625}"), WANT("bf16[1]{0}")),

    CASE(mlx_18672fbef_log_bases_do_not_merge, entropies, IN("f32[4]{0.1 0.2 0.3 0.4}"),
         WANT("f32[2]{1280 1846}")),
};

CASES_MAIN(rows)
