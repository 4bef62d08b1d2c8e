/* The edges of numbers, and operators of one family that must have one rule: zeros of either sign,
 * signs of NaN, scalars beside half types, empty dimensions, bools among numbers, masks, negative
 * indices. The right results are those of ATen's operators on a CPU. See cases_support.h. */
#include "cases_support.h"

#define THIRD (1.0 / 3)

/* ---- zeros ---- */

BODY(larger, etch_maximum(in[0], in[1]))
BODY(smaller, etch_minimum(in[0], in[1]))
BODY(larger_number, etch_fmax(in[0], in[1]))
BODY(smaller_number, etch_fmin(in[0], in[1]))
BODY(clamp_to_one, etch_clamp(in[0], 0.0, 1.0))
BODY(at_least_zero, etch_clamp_min(in[0], 0.0))
BODY(at_most_zero, etch_clamp_max(in[0], 0.0))
BODY(running_sum, etch_cumsum(in[0], 0))

static void all_relus(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_relu(in[0]);
    out[1] = etch_relu_(etch_clone(in[0]));
}

static void extremes(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_max(in[0]), out[1] = etch_min(in[0]);
    out[2] = etch_amax(in[0], ETCH_DIMS(0), false), out[3] = etch_amin(in[0], ETCH_DIMS(0), false);
    out[4] = etch_amax(in[0], ETCH_DIMS(1), false), out[5] = etch_amin(in[0], ETCH_DIMS(1), false);
}

static void sums(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum(in[0]), out[1] = etch_mean(in[0]);
    out[2] = etch_sum_dim(in[0], ETCH_DIMS(0), false);
    out[3] = etch_mean_dim(in[0], ETCH_DIMS(1), false);
}

/* ---- signs of NaN ---- */

BODY(sign_bit, etch_signbit(in[0]))
static void copied_signs(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_copysign(in[1], in[0]);
    out[1] = etch_signbit(etch_copysign(in[0], in[1]));
    out[2] = etch_signbit(etch_neg(in[0]));
}

/* ---- scalars ---- */

BODY(plus_third, etch_add_scalar(in[0], THIRD))
BODY(minus_third, etch_sub_scalar(in[0], THIRD))
BODY(third_minus, etch_rsub_scalar(in[0], THIRD))
BODY(times_2049, etch_mul_scalar(in[0], 2049))
BODY(rest_of_tenth, etch_remainder_scalar(in[0], 0.1))
BODY(below_tenth, etch_lt_scalar(in[0], 0.1))
BODY(lerp_third, etch_lerp(in[0], in[1], THIRD))
BODY(addcmul_third, etch_addcmul(in[0], in[1], in[2], THIRD))
BODY(addcdiv_third, etch_addcdiv(in[0], in[1], in[2], THIRD))
BODY(addmm_third, etch_addmm_scaled(in[0], in[1], in[2], 0.1, THIRD))
BODY(plus, etch_add(in[0], in[1]))
BODY(times, etch_mul(in[0], in[1]))
BODY(over, etch_div(in[0], in[1]))
BODY(floor_divide, etch_floor_divide(in[0], in[1]))
BODY(floor_over_tenth, etch_floor_divide_scalar(in[0], 0.1))

/* In place as well. */
static void times_third(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_mul_scalar(in[0], THIRD);
    out[1] = etch_mul_scalar_(etch_clone(in[0]), THIRD);
}
static void over_tenth(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_div_scalar(in[0], 0.1);
    out[1] = etch_div_scalar_(etch_clone(in[0]), 0.1);
}
static void to_the_2_1(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_pow_scalar(in[0], 2.1);
    out[1] = etch_pow_scalar_(etch_clone(in[0]), 2.1);
}

/* ---- empty dimensions ---- */

BODY(lse_columns, etch_logsumexp(in[0], ETCH_DIMS(0), false))
BODY(lse_rows, etch_logsumexp(in[0], ETCH_DIMS(-1), true))
BODY(lse_all, etch_logsumexp(in[0], ETCH_ALL_DIMS, false))
BODY(joined_two, etch_cat((etch_tensor *const *)in, 2, 1))
BODY(joined_three, etch_cat((etch_tensor *const *)in, 3, 0))

/* ---- bools and small integers ---- */

BODY(square, etch_square(in[0]))
BODY(sign, etch_sign(in[0]))
BODY(rest, etch_remainder(in[0], in[1]))
BODY(shifted, etch_left_shift(in[0], in[1]))
BODY(clamp_bools, etch_clamp(in[0], 0, 1))
BODY(minus, etch_sub(in[0], in[1]))
BODY(addcmul_true, etch_addcmul(in[0], in[1], in[2], (bool)1))
BODY(addcdiv_true, etch_addcdiv(in[0], in[1], in[2], (bool)1))
BODY(addcmul_half, etch_addcmul(in[0], in[1], in[2], 1.5))
BODY(add_true, etch_add_alpha(in[0], in[1], (bool)1))
BODY(convolved, etch_conv2d(in[0], in[1], in[2], ETCH_DIMS(1), ETCH_DIMS(1), ETCH_DIMS(1), 1))
BODY(convolved_apart,
     etch_conv2d(in[0], in[1], ETCH_NONE, ETCH_DIMS(2, 1), ETCH_DIMS(0), ETCH_DIMS(1), 2))
static void truths(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_any(in[0]), out[1] = etch_all(in[0]);
    out[2] = etch_any_dim(in[0], ETCH_DIMS(0), true);
    out[3] = etch_all_dim(in[0], ETCH_DIMS(0), false);
}

/* ---- powers of two ---- */

BODY(ldexp_of, etch_ldexp(in[0], in[1]))

/* ---- indices ---- */

BODY(along_rows, etch_take_along_dim(in[0], in[1], 1))
BODY(along_columns, etch_take_along_dim(in[0], in[1], 0))
BODY(put, etch_index_put(in[0], in[1], in[2], false))
BODY(put_sum, etch_index_put(in[0], in[1], in[2], true))
BODY(put_, etch_index_put_(in[0], in[1], in[2], false))
BODY(put_sum_, etch_index_put_(in[0], in[1], in[2], true))
BODY(classes_of, etch_one_hot(in[0], -1))
BODY(no_classes, etch_one_hot(in[0], 0))
BODY(rolled, etch_roll(in[0], ETCH_DIMS(1), ETCH_DIMS(0)))
BODY(rolled_flat, etch_roll(in[0], ETCH_DIMS(1), ETCH_ALL_DIMS))

/* Elements chosen by a mask: one for each of them, or one for all. */
#define PUT_CASES(type)                                                                            \
    CASE_WITH(aten_put_each_##type, put, .breaks = true,                                           \
              IN(#type "[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", #type "[2,1]{7 1}"),                \
              WANT(#type "[3,2]{7 7 2 3 1 1}")),                                                   \
        CASE_WITH(aten_put_in_place_each_##type, put_, .breaks = true,                             \
                  IN(#type "[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", #type "[2,1]{7 1}"),            \
                  WANT(#type "[3,2]{7 7 2 3 1 1}"), AFTER(#type "[3,2]{7 7 2 3 1 1}")),            \
        CASE(aten_put_one_##type, put,                                                             \
             IN(#type "[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", #type "[]{9}"),                      \
             WANT(#type "[3,2]{9 9 2 3 9 9}")),                                                    \
        CASE(aten_put_in_place_one_##type, put_,                                                   \
             IN(#type "[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", #type "[]{9}"),                      \
             WANT(#type "[3,2]{9 9 2 3 9 9}"), AFTER(#type "[3,2]{9 9 2 3 9 9}"))

static const case_row rows[] = {
    CASE(aten_relu_f32, all_relus,
         IN("f32[35]{-0 0 -1 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
            "-0 -0 -0 -0 -0 -0 -0 -0 -0}"),
         WANT("f32[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0}",
              "f32[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0}")),
    CASE(aten_maximum_zeros_f32, larger,
         IN("f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f32[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f32[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 "
              "nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_f32, smaller,
         IN("f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f32[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f32[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_maximum_zeros_swapped_f32, larger,
         IN("f32[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}",
            "f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f32[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 "
              "nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_swapped_f32, smaller,
         IN("f32[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}",
            "f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f32[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_fmax_zeros_f32, larger_number,
         IN("f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f32[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f32[40]{-0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 "
              "0 -0 0 1 0 0 1}")),
    CASE(aten_fmin_zeros_f32, smaller_number,
         IN("f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f32[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f32[40]{-0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 "
              "0 1 -0 0 -0 0 -0 -1 0 1}")),
    CASE(aten_clamp_zeros_f32, clamp_to_one,
         IN("f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f32[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_min_zeros_f32, at_least_zero,
         IN("f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f32[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_max_zeros_f32, at_most_zero,
         IN("f32[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f32[40]{-0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 "
              "-1 nan 0 -0 0 -0 0 0 -1 nan 0}")),
    CASE(aten_extremes_of_zeros_few_f32, extremes, IN("f32[3,3]{-0 0 -0 -0 -0 -0 0 -0 0}"),
         WANT("f32[]{0}", "f32[]{-0}", "f32[3]{0 0 0}", "f32[3]{-0 -0 -0}", "f32[3]{0 -0 0}",
              "f32[3]{-0 -0 -0}")),
    CASE(aten_sum_of_negative_zeros_2_f32, sums, IN("f32[2,3]{-0*6}"),
         WANT("f32[]{0}", "f32[]{0}", "f32[3]{0*3}", "f32[2]{0*2}")),
    CASE(aten_sum_of_negative_zeros_70_f32, sums, IN("f32[70,2]{-0*140}"),
         WANT("f32[]{0}", "f32[]{0}", "f32[2]{0*2}", "f32[70]{0*70}")),
    CASE(aten_cumsum_of_negative_zeros_f32, running_sum, IN("f32[3]{-0 -0 1}"),
         WANT("f32[3]{0 0 1}")),
    CASE(aten_sign_bit_of_nan_f32, sign_bit, IN("f32[4]{nan -nan -0 -inf}"),
         WANT("bool[4]{0 1 1 1}")),
    CASE(aten_copysign_of_nan_f32, copied_signs, IN("f32[3]{nan -nan -0}", "f32[3]{1 2 -3}"),
         WANT("f32[3]{1 -2 -3}", "bool[3]{0 0 1}", "bool[3]{1 0 0}")),
    CASE(aten_logsumexp_of_nothing_f32, lse_columns, IN("f32[0,2]{}"), WANT("f32[2]{-inf -inf}")),
    CASE(aten_logsumexp_of_no_columns_f32, lse_columns, IN("f32[2,0]{}"), WANT("f32[0]{}")),
    CASE(aten_relu_f64, all_relus,
         IN("f64[35]{-0 0 -1 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
            "-0 -0 -0 -0 -0 -0 -0 -0 -0}"),
         WANT("f64[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0}",
              "f64[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0}")),
    CASE(aten_maximum_zeros_f64, larger,
         IN("f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f64[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f64[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 "
              "nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_f64, smaller,
         IN("f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f64[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f64[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_maximum_zeros_swapped_f64, larger,
         IN("f64[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}",
            "f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f64[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 "
              "nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_swapped_f64, smaller,
         IN("f64[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}",
            "f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f64[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_fmax_zeros_f64, larger_number,
         IN("f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f64[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f64[40]{-0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 "
              "0 -0 0 1 0 0 1}")),
    CASE(aten_fmin_zeros_f64, smaller_number,
         IN("f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f64[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f64[40]{-0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 "
              "0 1 -0 0 -0 0 -0 -1 0 1}")),
    CASE(aten_clamp_zeros_f64, clamp_to_one,
         IN("f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f64[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_min_zeros_f64, at_least_zero,
         IN("f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f64[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_max_zeros_f64, at_most_zero,
         IN("f64[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f64[40]{-0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 "
              "-1 nan 0 -0 0 -0 0 0 -1 nan 0}")),
    CASE(aten_extremes_of_zeros_few_f64, extremes, IN("f64[3,3]{-0 0 -0 -0 -0 -0 0 -0 0}"),
         WANT("f64[]{0}", "f64[]{-0}", "f64[3]{0 0 0}", "f64[3]{-0 -0 -0}", "f64[3]{0 -0 0}",
              "f64[3]{-0 -0 -0}")),
    CASE(aten_sum_of_negative_zeros_2_f64, sums, IN("f64[2,3]{-0*6}"),
         WANT("f64[]{0}", "f64[]{0}", "f64[3]{0*3}", "f64[2]{0*2}")),
    CASE(aten_sum_of_negative_zeros_70_f64, sums, IN("f64[70,2]{-0*140}"),
         WANT("f64[]{0}", "f64[]{0}", "f64[2]{0*2}", "f64[70]{0*70}")),
    CASE(aten_cumsum_of_negative_zeros_f64, running_sum, IN("f64[3]{-0 -0 1}"),
         WANT("f64[3]{0 0 1}")),
    CASE(aten_sign_bit_of_nan_f64, sign_bit, IN("f64[4]{nan -nan -0 -inf}"),
         WANT("bool[4]{0 1 1 1}")),
    CASE(aten_copysign_of_nan_f64, copied_signs, IN("f64[3]{nan -nan -0}", "f64[3]{1 2 -3}"),
         WANT("f64[3]{1 -2 -3}", "bool[3]{0 0 1}", "bool[3]{1 0 0}")),
    CASE(aten_logsumexp_of_nothing_f64, lse_columns, IN("f64[0,2]{}"), WANT("f64[2]{-inf -inf}")),
    CASE(aten_logsumexp_of_no_columns_f64, lse_columns, IN("f64[2,0]{}"), WANT("f64[0]{}")),
    CASE(aten_relu_bf16, all_relus,
         IN("bf16[35]{-0 0 -1 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
            "-0 -0 -0 -0 -0 -0 -0 -0 -0}"),
         WANT("bf16[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0 -0}",
              "bf16[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0 -0}")),
    CASE(aten_maximum_zeros_bf16, larger,
         IN("bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}",
            "bf16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 "
            "0 0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("bf16[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 "
              "0 nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_bf16, smaller,
         IN("bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}",
            "bf16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 "
            "0 0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("bf16[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_maximum_zeros_swapped_bf16, larger,
         IN("bf16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 "
            "0 0 nan 0 -0 -0 0 -0 0 0 nan}",
            "bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("bf16[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 "
              "0 nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_swapped_bf16, smaller,
         IN("bf16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 "
            "0 0 nan 0 -0 -0 0 -0 0 0 nan}",
            "bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("bf16[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_fmax_zeros_bf16, larger_number,
         IN("bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}",
            "bf16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 "
            "0 0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("bf16[40]{-0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 "
              "0 -0 0 1 0 0 1}")),
    CASE(aten_fmin_zeros_bf16, smaller_number,
         IN("bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}",
            "bf16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 "
            "0 0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("bf16[40]{-0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 "
              "-1 0 1 -0 0 -0 0 -0 -1 0 1}")),
    CASE(aten_clamp_zeros_bf16, clamp_to_one,
         IN("bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("bf16[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_min_zeros_bf16, at_least_zero,
         IN("bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("bf16[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_max_zeros_bf16, at_most_zero,
         IN("bf16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 "
            "-1 nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("bf16[40]{-0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 "
              "-1 nan 0 -0 0 -0 0 0 -1 nan 0}")),
    CASE(aten_extremes_of_zeros_few_bf16, extremes, IN("bf16[3,3]{-0 0 -0 -0 -0 -0 0 -0 0}"),
         WANT("bf16[]{0}", "bf16[]{-0}", "bf16[3]{0 0 0}", "bf16[3]{-0 -0 -0}", "bf16[3]{0 -0 0}",
              "bf16[3]{-0 -0 -0}")),
    CASE(aten_sum_of_negative_zeros_2_bf16, sums, IN("bf16[2,3]{-0*6}"),
         WANT("bf16[]{0}", "bf16[]{0}", "bf16[3]{0*3}", "bf16[2]{0*2}")),
    CASE(aten_sum_of_negative_zeros_70_bf16, sums, IN("bf16[70,2]{-0*140}"),
         WANT("bf16[]{0}", "bf16[]{0}", "bf16[2]{0*2}", "bf16[70]{0*70}")),
    CASE(aten_cumsum_of_negative_zeros_bf16, running_sum, IN("bf16[3]{-0 -0 1}"),
         WANT("bf16[3]{0 0 1}")),
    CASE(aten_sign_bit_of_nan_bf16, sign_bit, IN("bf16[4]{nan -nan -0 -inf}"),
         WANT("bool[4]{0 1 1 1}")),
    CASE(aten_copysign_of_nan_bf16, copied_signs, IN("bf16[3]{nan -nan -0}", "bf16[3]{1 2 -3}"),
         WANT("bf16[3]{1 -2 -3}", "bool[3]{0 0 1}", "bool[3]{1 0 0}")),
    CASE(aten_logsumexp_of_nothing_bf16, lse_columns, IN("bf16[0,2]{}"),
         WANT("bf16[2]{-inf -inf}")),
    CASE(aten_logsumexp_of_no_columns_bf16, lse_columns, IN("bf16[2,0]{}"), WANT("bf16[0]{}")),
    CASE(aten_relu_f16, all_relus,
         IN("f16[35]{-0 0 -1 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
            "-0 -0 -0 -0 -0 -0 -0 -0 -0}"),
         WANT("f16[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0}",
              "f16[35]{-0 0 0 nan 2 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 -0 "
              "-0 -0 -0 -0 -0 -0 -0 -0 -0}")),
    CASE(aten_maximum_zeros_f16, larger,
         IN("f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f16[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 "
              "nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_f16, smaller,
         IN("f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f16[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_maximum_zeros_swapped_f16, larger,
         IN("f16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}",
            "f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f16[40]{0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 nan nan 0 0 -0 0 1 0 "
              "nan nan 0 0 -0 0 1 0 nan nan}")),
    CASE(aten_minimum_zeros_swapped_f16, smaller,
         IN("f16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}",
            "f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f16[40]{-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan "
              "-0 -0 -0 0 -0 -1 nan nan -0 -0 -0 0 -0 -1 nan nan}")),
    CASE(aten_fmax_zeros_f16, larger_number,
         IN("f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f16[40]{-0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 0 -0 0 1 0 0 1 -0 "
              "0 -0 0 1 0 0 1}")),
    CASE(aten_fmin_zeros_f16, smaller_number,
         IN("f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}",
            "f16[40]{0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 0 nan 0 -0 -0 0 -0 0 "
            "0 nan 0 -0 -0 0 -0 0 0 nan}"),
         WANT("f16[40]{-0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 0 1 -0 0 -0 0 -0 -1 "
              "0 1 -0 0 -0 0 -0 -1 0 1}")),
    CASE(aten_clamp_zeros_f16, clamp_to_one,
         IN("f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f16[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_min_zeros_f16, at_least_zero,
         IN("f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f16[40]{-0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 nan 1 -0 0 -0 0 1 0 "
              "nan 1 -0 0 -0 0 1 0 nan 1}")),
    CASE(aten_clamp_max_zeros_f16, at_most_zero,
         IN("f16[40]{-0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 nan 1 -0 0 -0 0 1 -1 "
            "nan 1 -0 0 -0 0 1 -1 nan 1}"),
         WANT("f16[40]{-0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 -1 nan 0 -0 0 -0 0 0 "
              "-1 nan 0 -0 0 -0 0 0 -1 nan 0}")),
    CASE(aten_extremes_of_zeros_few_f16, extremes, IN("f16[3,3]{-0 0 -0 -0 -0 -0 0 -0 0}"),
         WANT("f16[]{0}", "f16[]{-0}", "f16[3]{0 0 0}", "f16[3]{-0 -0 -0}", "f16[3]{0 -0 0}",
              "f16[3]{-0 -0 -0}")),
    CASE(aten_sum_of_negative_zeros_2_f16, sums, IN("f16[2,3]{-0*6}"),
         WANT("f16[]{0}", "f16[]{0}", "f16[3]{0*3}", "f16[2]{0*2}")),
    CASE(aten_sum_of_negative_zeros_70_f16, sums, IN("f16[70,2]{-0*140}"),
         WANT("f16[]{0}", "f16[]{0}", "f16[2]{0*2}", "f16[70]{0*70}")),
    CASE(aten_cumsum_of_negative_zeros_f16, running_sum, IN("f16[3]{-0 -0 1}"),
         WANT("f16[3]{0 0 1}")),
    CASE(aten_sign_bit_of_nan_f16, sign_bit, IN("f16[4]{nan -nan -0 -inf}"),
         WANT("bool[4]{0 1 1 1}")),
    CASE(aten_copysign_of_nan_f16, copied_signs, IN("f16[3]{nan -nan -0}", "f16[3]{1 2 -3}"),
         WANT("f16[3]{1 -2 -3}", "bool[3]{0 0 1}", "bool[3]{1 0 0}")),
    CASE(aten_logsumexp_of_nothing_f16, lse_columns, IN("f16[0,2]{}"), WANT("f16[2]{-inf -inf}")),
    CASE(aten_logsumexp_of_no_columns_f16, lse_columns, IN("f16[2,0]{}"), WANT("f16[0]{}")),
    CASE(aten_logsumexp_keeps_dims, lse_rows, IN("f32[2,0]{}"), WANT("f32[2,1]{-inf -inf}")),
    CASE(aten_logsumexp_of_all, lse_all, IN("i64[0]{}"), WANT("f32[]{-inf}")),
    CASE(aten_add_scalar_bf16, plus_third, IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{3.328125 7.34375 -1.3671875 0.6328125 100.5 -10.6875}")),
    CASE(aten_sub_scalar_bf16, minus_third, IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{2.671875 6.65625 -2.03125 -0.033203125 99.5 -11.3125}")),
    CASE(aten_rsub_scalar_bf16, third_minus, IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{-2.671875 -6.65625 2.03125 0.033203125 -99.5 11.3125}")),
    CASE(aten_mul_scalar_bf16, times_third, IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{1 2.328125 -0.56640625 0.10009765625 33.25 -3.671875}",
              "bf16[6]{1 2.328125 -0.56640625 0.10009765625 33.25 -3.671875}")),
    CASE(aten_div_scalar_bf16, over_tenth, IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{30 70 -17 3 1000 -110}", "bf16[6]{30 70 -17 3 1000 -110}")),
    CASE(aten_floor_divide_scalar_bf16, floor_over_tenth,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"), WANT("bf16[6]{29 69 -18 3 1000 -110}")),
    CASE(aten_remainder_scalar_bf16, rest_of_tenth, IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{0.09716796875 0.09326171875 0.0986328125 0.00048828125 0.00244140625 "
              "0.0107421875}")),
    CASE(aten_pow_scalar_bf16, to_the_2_1, IN("bf16[6]{3 7 1.703125 0.30078125 100 11}"),
         WANT("bf16[6]{10 58.75 3.046875 0.0810546875 15424 152}",
              "bf16[6]{10 58.75 3.046875 0.0810546875 15424 152}")),
    CASE(aten_lt_scalar_bf16, below_tenth, IN("bf16[3]{0.10009765625 0.10009765625 0.09912109375}"),
         WANT("bool[3]{0 0 1}")),
    CASE(aten_addcmul_bf16, addcmul_third,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}",
            "bf16[6]{1.5 -2.296875 0.69921875 9 0.10009765625 5}",
            "bf16[6]{0.30078125 1.1015625 -3 2 7 1.296875}"),
         WANT("bf16[6]{3.15625 6.15625 -2.40625 6.3125 100 -8.8125}")),
    CASE(aten_addcdiv_bf16, addcdiv_third,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}",
            "bf16[6]{1.5 -2.296875 0.69921875 9 0.10009765625 5}",
            "bf16[6]{0.30078125 1.1015625 -3 2 7 1.296875}"),
         WANT("bf16[6]{4.65625 6.3125 -1.78125 1.796875 100 -9.6875}")),
    CASE(aten_lerp_bf16, lerp_third,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}",
            "bf16[6]{1.5 -2.296875 0.69921875 9 0.10009765625 5}"),
         WANT("bf16[6]{2.5 3.90625 -0.90234375 3.203125 66.5 -5.65625}")),
    CASE(aten_mul_0d_bf16, times,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}", "f32[]{0.3333333432674408}"),
         WANT("bf16[6]{1 2.328125 -0.56640625 0.10009765625 33.25 -3.671875}")),
    CASE(aten_0d_mul_bf16, times,
         IN("f32[]{0.3333333432674408}", "bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{1 2.34375 -0.5703125 0.1005859375 33.5 -3.671875}")),
    CASE(aten_div_0d_bf16, over,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}", "f32[]{0.3333333432674408}"),
         WANT("bf16[6]{9 21 -5.125 0.90234375 300 -33}")),
    CASE(aten_floor_divide_0d_bf16, floor_divide,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}", "f32[]{0.10000000149011612}"),
         WANT("bf16[6]{29 69 -18 3 1000 -110}")),
    CASE(aten_add_0d_bf16, plus,
         IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}", "f32[]{0.3333333432674408}"),
         WANT("bf16[6]{3.328125 7.34375 -1.3671875 0.6328125 100.5 -10.6875}")),
    CASE(aten_addmm_bf16, addmm_third,
         IN("bf16[2,2]{1 2 3 4}", "bf16[2,2]{1 2 3 4}", "bf16[2,2]{1 0 0 1}"),
         WANT("bf16[2,2]{0.43359375 0.8671875 1.296875 1.734375}")),
    CASE(aten_mul_int_scalar_bf16, times_2049, IN("bf16[6]{3 7 -1.703125 0.30078125 100 -11}"),
         WANT("bf16[6]{6144 14336 -3488 616 204800 -22528}")),
    CASE(aten_add_scalar_f16, plus_third, IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{3.333984375 7.33203125 -1.3701171875 0.63330078125 100.3125 -10.6640625}")),
    CASE(aten_sub_scalar_f16, minus_third, IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{2.666015625 6.66796875 -2.037109375 -0.033203125 99.6875 -11.3359375}")),
    CASE(aten_rsub_scalar_f16, third_minus, IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{-2.666015625 -6.66796875 2.037109375 0.033203125 -99.6875 11.3359375}")),
    CASE(aten_mul_scalar_f16, times_third, IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{1 2.333984375 -0.56787109375 0.10003662109375 33.34375 -3.666015625}",
              "f16[6]{1 2.333984375 -0.56787109375 0.10003662109375 33.34375 -3.666015625}")),
    CASE(aten_div_scalar_f16, over_tenth, IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{30 70 -17.03125 3 1000 -110}", "f16[6]{30 70 -17.03125 3 1000 -110}")),
    CASE(aten_floor_divide_scalar_f16, floor_over_tenth,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"), WANT("f16[6]{29 69 -18 3 999 -110}")),
    CASE(aten_remainder_scalar_f16, rest_of_tenth,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{0.000732421875 0.001708984375 0.096435546875 0.0001220703125 0.0244140625 "
              "0.0972900390625}")),
    CASE(aten_pow_scalar_f16, to_the_2_1, IN("f16[6]{3 7 1.703125 0.300048828125 100 11}"),
         WANT("f16[6]{10.0390625 59.46875 3.05859375 0.079833984375 15824 153.625}",
              "f16[6]{10.0390625 59.46875 3.05859375 0.079833984375 15824 153.625}")),
    CASE(aten_lt_scalar_f16, below_tenth,
         IN("f16[3]{0.0999755859375 0.10009765625 0.0989990234375}"), WANT("bool[3]{0 0 1}")),
    CASE(aten_addcmul_f16, addcmul_third,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}",
            "f16[6]{1.5 -2.30078125 0.7001953125 9 0.0999755859375 5}",
            "f16[6]{0.300048828125 1.099609375 -3 2 7 1.2998046875}"),
         WANT("f16[6]{3.150390625 6.15625 -2.40234375 6.30078125 100.25 -8.8359375}")),
    CASE(aten_addcdiv_f16, addcdiv_third,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}",
            "f16[6]{1.5 -2.30078125 0.7001953125 9 0.0999755859375 5}",
            "f16[6]{0.300048828125 1.099609375 -3 2 7 1.2998046875}"),
         WANT("f16[6]{4.66796875 6.30078125 -1.78125 1.7998046875 100 -9.71875}")),
    CASE(aten_lerp_f16, lerp_third,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}",
            "f16[6]{1.5 -2.30078125 0.7001953125 9 0.0999755859375 5}"),
         WANT("f16[6]{2.5 3.900390625 -0.90185546875 3.19921875 66.6875 -5.66796875}")),
    CASE(aten_mul_0d_f16, times,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}", "f32[]{0.3333333432674408}"),
         WANT("f16[6]{1 2.333984375 -0.56787109375 0.10003662109375 33.34375 -3.666015625}")),
    CASE(aten_0d_mul_f16, times,
         IN("f32[]{0.3333333432674408}", "f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{1 2.33203125 -0.5673828125 0.0999755859375 33.3125 -3.666015625}")),
    CASE(aten_div_0d_f16, over,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}", "f32[]{0.3333333432674408}"),
         WANT("f16[6]{9 21 -5.109375 0.900390625 300 -33}")),
    CASE(aten_floor_divide_0d_f16, floor_divide,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}", "f32[]{0.10000000149011612}"),
         WANT("f16[6]{29 69 -18 3 999 -110}")),
    CASE(aten_add_0d_f16, plus,
         IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}", "f32[]{0.3333333432674408}"),
         WANT("f16[6]{3.333984375 7.33203125 -1.3701171875 0.63330078125 100.3125 -10.6640625}")),
    CASE(aten_addmm_f16, addmm_third,
         IN("f16[2,2]{1 2 3 4}", "f16[2,2]{1 2 3 4}", "f16[2,2]{1 0 0 1}"),
         WANT("f16[2,2]{0.433349609375 0.86669921875 1.2998046875 1.7333984375}")),
    CASE(aten_mul_int_scalar_f16, times_2049, IN("f16[6]{3 7 -1.703125 0.300048828125 100 -11}"),
         WANT("f16[6]{6148 14344 -3490 615 inf -22544}")),
    CASE(aten_add_scalar_f32, plus_third, IN("f32[6]{3 7 -1.703125 0.30000001192092896 100 -11}"),
         WANT("f32[6]{3.3333332538604736 7.333333492279053 -1.3697916269302368 0.6333333253860474 "
              "100.33333587646484 -10.666666984558105}")),
    CASE(aten_sub_scalar_f32, minus_third, IN("f32[6]{3 7 -1.703125 0.30000001192092896 100 -11}"),
         WANT("f32[6]{2.6666667461395264 6.666666507720947 -2.0364582538604736 "
              "-0.03333333134651184 99.66666412353516 -11.333333015441895}")),
    CASE(aten_rsub_scalar_f32, third_minus, IN("f32[6]{3 7 -1.703125 0.30000001192092896 100 -11}"),
         WANT("f32[6]{-2.6666667461395264 -6.666666507720947 2.0364582538604736 "
              "0.03333333134651184 -99.66666412353516 11.333333015441895}")),
    CASE(aten_mul_scalar_f32, times_third, IN("f32[6]{3 7 -1.703125 0.30000001192092896 100 -11}"),
         WANT("f32[6]{1 2.3333334922790527 -0.5677083730697632 0.10000000894069672 "
              "33.333335876464844 -3.6666667461395264}",
              "f32[6]{1 2.3333334922790527 -0.5677083730697632 0.10000000894069672 "
              "33.333335876464844 -3.6666667461395264}")),
    CASE(aten_div_scalar_f32, over_tenth, IN("f32[6]{3 7 -1.703125 0.30000001192092896 100 -11}"),
         WANT("f32[6]{30 70 -17.03125 3 1000 -110}", "f32[6]{30 70 -17.03125 3 1000 -110}")),
    CASE(aten_floor_divide_scalar_f32, floor_over_tenth,
         IN("f32[6]{3 7 -1.703125 0.30000001192092896 100 -11}"),
         WANT("f32[6]{29 69 -18 3 999 -110}")),
    CASE(aten_remainder_scalar_f32, rest_of_tenth,
         IN("f32[6]{3 7 -1.703125 0.30000001192092896 100 -11}"),
         WANT("f32[6]{0.09999995678663254 0.09999989718198776 0.09687502682209015 "
              "7.450580596923828e-09 0.09999851137399673 1.6391277313232422e-07}")),
    CASE(aten_pow_scalar_f32, to_the_2_1, IN("f32[6]{3 7 1.703125 0.30000001192092896 100 11}"),
         WANT("f32[6]{10.045108795166016 59.52588653564453 3.0592691898345947 0.07979114353656769 "
              "15848.931640625 153.7887725830078}",
              "f32[6]{10.045108795166016 59.52588653564453 3.0592691898345947 0.07979114353656769 "
              "15848.931640625 153.7887725830078}")),
    CASE(aten_lt_scalar_f32, below_tenth,
         IN("f32[3]{0.10000000149011612 0.10009765625 0.0989999994635582}"),
         WANT("bool[3]{0 0 1}")),
    CASE(aten_cat_skips_first_f32, joined_two, IN("f32[0]{}", "f32[3,2]{0 1 2 3 4 5}"),
         WANT("f32[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_last_f32, joined_two, IN("f32[3,2]{0 1 2 3 4 5}", "f32[0]{}"),
         WANT("f32[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_first_f64, joined_two, IN("f64[0]{}", "f64[3,2]{0 1 2 3 4 5}"),
         WANT("f64[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_last_f64, joined_two, IN("f64[3,2]{0 1 2 3 4 5}", "f64[0]{}"),
         WANT("f64[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_first_bf16, joined_two, IN("bf16[0]{}", "bf16[3,2]{0 1 2 3 4 5}"),
         WANT("bf16[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_last_bf16, joined_two, IN("bf16[3,2]{0 1 2 3 4 5}", "bf16[0]{}"),
         WANT("bf16[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_first_f16, joined_two, IN("f16[0]{}", "f16[3,2]{0 1 2 3 4 5}"),
         WANT("f16[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_last_f16, joined_two, IN("f16[3,2]{0 1 2 3 4 5}", "f16[0]{}"),
         WANT("f16[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_skips_both_ends, joined_three, IN("f32[0]{}", "f32[1,2,2]{1 1 1 1}", "f32[0]{}"),
         WANT("f32[1,2,2]{1 1 1 1}")),
    CASE(aten_cat_skips_all, joined_three, IN("f32[0]{}", "f32[0]{}", "f32[0]{}"),
         WANT("f32[0]{}")),
    CASE(aten_cat_promotes_with_skipped, joined_two, IN("f64[0]{}", "f32[3,2]{0 1 2 3 4 5}"),
         WANT("f64[3,2]{0 1 2 3 4 5}")),
    CASE(aten_cat_counts_empty_matrices, joined_two, IN("f32[2,0]{}", "f32[2,1]{1 1}"),
         WANT("f32[2,1]{1 1}")),
    CASE_WITH(aten_cat_refuses_other_sizes, joined_three, .no_plan = true,
              IN("f32[0,3]{}", "f32[2,2]{1 1 1 1}", "f32[0]{}"), FAILS(ETCH_ERR_SHAPE)),
    CASE(aten_square_of_bool, square, IN("bool[3]{1 0 1}"), WANT("i64[3]{1 0 1}")),
    CASE(aten_square_of_u8, square, IN("u8[2]{2 16}"), WANT("u8[2]{4 0}")),
    CASE(aten_sign_of_bool, sign, IN("bool[3]{1 0 1}"), WANT("bool[3]{1 0 1}")),
    CASE(aten_sign_of_u8, sign, IN("u8[3]{0 2 3}"), WANT("u8[3]{0 1 1}")),
    CASE(aten_remainder_of_bool, rest, IN("bool[3]{1 0 1}", "i64[3]{-2 3 5}"),
         WANT("i64[3]{-1 0 1}")),
    CASE_WITH(aten_remainder_of_bools, rest, .no_plan = true,
              IN("bool[3]{1 0 1}", "bool[3]{1 0 1}"), FAILS(ETCH_ERR_DTYPE)),
    CASE(aten_shift_of_bool, shifted, IN("bool[3]{1 0 1}", "i64[3]{1 2 3}"), WANT("i64[3]{2 0 8}")),
    CASE(aten_clamp_of_bool, clamp_bools, IN("bool[3]{1 0 1}"), WANT("i64[3]{1 0 1}")),
    CASE_WITH(aten_difference_with_bool, minus, .no_plan = true,
              IN("i64[3]{-2 3 5}", "bool[3]{1 0 1}"), FAILS(ETCH_ERR_DTYPE)),
    CASE(aten_addcmul_by_true, addcmul_true, IN("f32[3]{1 2 3}", "f32[3]{1 2 3}", "f32[3]{1 2 3}"),
         WANT("f32[3]{2 6 12}")),
    CASE(aten_addcdiv_by_true, addcdiv_true, IN("f32[3]{1 2 3}", "f32[3]{1 2 3}", "f32[3]{1 2 3}"),
         WANT("f32[3]{2 3 4}")),
    CASE(aten_addcmul_by_true_i32, addcmul_true,
         IN("i32[3]{-2 3 5}", "i32[3]{-2 3 5}", "i32[3]{-2 3 5}"), WANT("i32[3]{2 12 30}")),
    CASE(aten_addcmul_by_half_i32, addcmul_half,
         IN("i32[3]{-2 3 5}", "i32[3]{-2 3 5}", "i32[3]{-2 3 5}"), WANT("i32[3]{2 12 30}")),
    CASE(aten_addcmul_of_bools_and_reals, addcmul_true,
         IN("f32[3]{1 2 3}", "bool[3]{1 0 1}", "f32[3]{1 2 3}"), WANT("f32[3]{2 2 6}")),
    CASE_WITH(aten_alpha_of_true, add_true, .no_plan = true, IN("f32[3]{1 2 3}", "f32[3]{1 2 3}"),
              FAILS(ETCH_ERR_DTYPE)),
    CASE(aten_truths_of_some_u8, truths, IN("u8[2,2]{0 2 1 3}"),
         WANT("u8[]{1}", "u8[]{0}", "u8[1,2]{1 1}", "u8[2]{0 1}")),
    CASE(aten_truths_of_none_u8, truths, IN("u8[2,2]{0 0 0 0}"),
         WANT("u8[]{0}", "u8[]{0}", "u8[1,2]{0 0}", "u8[2]{0 0}")),
    CASE(aten_truths_of_nothing_u8, truths, IN("u8[0,2]{}"),
         WANT("u8[]{0}", "u8[]{1}", "u8[1,2]{0 0}", "u8[2]{1 1}")),
    CASE(aten_truths_of_some_i8, truths, IN("i8[2,2]{0 2 1 3}"),
         WANT("bool[]{1}", "bool[]{0}", "bool[1,2]{1 1}", "bool[2]{0 1}")),
    CASE(aten_truths_of_none_i8, truths, IN("i8[2,2]{0 0 0 0}"),
         WANT("bool[]{0}", "bool[]{0}", "bool[1,2]{0 0}", "bool[2]{0 0}")),
    CASE(aten_truths_of_nothing_i8, truths, IN("i8[0,2]{}"),
         WANT("bool[]{0}", "bool[]{1}", "bool[1,2]{0 0}", "bool[2]{1 1}")),
    CASE(aten_truths_of_some_i32, truths, IN("i32[2,2]{0 2 1 3}"),
         WANT("bool[]{1}", "bool[]{0}", "bool[1,2]{1 1}", "bool[2]{0 1}")),
    CASE(aten_truths_of_none_i32, truths, IN("i32[2,2]{0 0 0 0}"),
         WANT("bool[]{0}", "bool[]{0}", "bool[1,2]{0 0}", "bool[2]{0 0}")),
    CASE(aten_truths_of_nothing_i32, truths, IN("i32[0,2]{}"),
         WANT("bool[]{0}", "bool[]{1}", "bool[1,2]{0 0}", "bool[2]{1 1}")),
    CASE(aten_truths_of_some_bool, truths, IN("bool[2,2]{0 1 1 1}"),
         WANT("bool[]{1}", "bool[]{0}", "bool[1,2]{1 1}", "bool[2]{0 1}")),
    CASE(aten_truths_of_none_bool, truths, IN("bool[2,2]{0 0 0 0}"),
         WANT("bool[]{0}", "bool[]{0}", "bool[1,2]{0 0}", "bool[2]{0 0}")),
    CASE(aten_truths_of_nothing_bool, truths, IN("bool[0,2]{}"),
         WANT("bool[]{0}", "bool[]{1}", "bool[1,2]{0 0}", "bool[2]{1 1}")),
    CASE(aten_truths_of_some_f32, truths, IN("f32[2,2]{0 2 1 3}"),
         WANT("bool[]{1}", "bool[]{0}", "bool[1,2]{1 1}", "bool[2]{0 1}")),
    CASE(aten_truths_of_none_f32, truths, IN("f32[2,2]{0 0 0 0}"),
         WANT("bool[]{0}", "bool[]{0}", "bool[1,2]{0 0}", "bool[2]{0 0}")),
    CASE(aten_truths_of_nothing_f32, truths, IN("f32[0,2]{}"),
         WANT("bool[]{0}", "bool[]{1}", "bool[1,2]{0 0}", "bool[2]{1 1}")),
    CASE_WITH(aten_convolution_i8, convolved, .plain = false,
              IN("i8[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 "
                 "53 60 67 74 81 88 95 102 109 116 123 -126 -119 -112 -105 -98 -91 -84 -77 -70 -63 "
                 "-56 -49 -42 -35 -28 -21 -14 -7}",
                 "i8[2,2,2,2]{-20 -17 -14 -11 -8 -5 -2 1 4 7 10 13 16 19 22 25}", "i8[2]{5 -6}"),
              WANT("i8[2,2,4,5]{121 -117 -43 31 13 -99 117 97 77 33 29 37 17 -3 81 113 -41 121 27 "
                   "-71 78 -112 122 100 -46 -110 10 54 98 -10 -110 -70 -26 18 -90 -58 -36 30 96 -2 "
                   "-23 123 -59 15 -115 -99 -107 -127 109 65 29 69 49 29 113 1 7 -87 75 89 62 -128 "
                   "106 84 -46 -110 42 86 -126 22 -110 -38 6 50 -58 -42 12 78 -112 30}")),
    CASE(aten_convolution_apart_i8, convolved_apart,
         IN("i8[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 53 60 "
            "67 74 81 88 95 102 109 116 123 -126 -119 -112 -105 -98 -91 -84 -77 -70 -63 -56 -49 "
            "-42 -35 -28 -21 -14 -7}",
            "i8[2,1,2,2]{-20 -17 -14 -11 4 7 10 13}"),
         WANT("i8[2,2,1,3]{-32 46 124 -104 -122 116 48 126 -52 -24 -42 -60}")),
    CASE_WITH(aten_convolution_i16, convolved, .plain = false,
              IN("i16[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 "
                 "53 60 67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 "
                 "207 214 221 228 235 242 249}",
                 "i16[2,2,2,2]{-20 -17 -14 -11 -8 -5 -2 1 4 7 10 13 16 19 22 25}", "i16[2]{5 -6}"),
              WANT("i16[2,2,4,5]{889 1931 1749 1567 781 1949 3957 3425 2893 1313 1053 1829 1297 "
                   "765 81 113 -41 -391 -741 -583 -946 -1392 -902 -412 -46 -366 10 822 1634 1014 "
                   "1426 3258 4070 4882 2470 966 2012 2334 2656 1278 -791 -2437 -2619 -2801 -1907 "
                   "-3427 -8811 -9343 -9875 -6079 -4323 -10939 -11471 -12003 -7311 -3583 -8441 "
                   "-8791 -9141 -5287 5438 10368 10858 11348 5330 10386 19498 20310 21122 9750 "
                   "12178 22746 23558 24370 11206 5334 9740 10062 10384 4638}")),
    CASE(aten_convolution_apart_i16, convolved_apart,
         IN("i16[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 53 60 "
            "67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 207 214 "
            "221 228 235 242 249}",
            "i16[2,1,2,2]{-20 -17 -14 -11 4 7 10 13}"),
         WANT("i16[2,2,1,3]{4064 3630 3196 920 1158 1396 -6352 -6786 -7220 6632 6870 7108}")),
    CASE_WITH(aten_convolution_i32, convolved, .plain = false,
              IN("i32[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 "
                 "53 60 67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 "
                 "207 214 221 228 235 242 249}",
                 "i32[2,2,2,2]{-20 -17 -14 -11 -8 -5 -2 1 4 7 10 13 16 19 22 25}", "i32[2]{5 -6}"),
              WANT("i32[2,2,4,5]{889 1931 1749 1567 781 1949 3957 3425 2893 1313 1053 1829 1297 "
                   "765 81 113 -41 -391 -741 -583 -946 -1392 -902 -412 -46 -366 10 822 1634 1014 "
                   "1426 3258 4070 4882 2470 966 2012 2334 2656 1278 -791 -2437 -2619 -2801 -1907 "
                   "-3427 -8811 -9343 -9875 -6079 -4323 -10939 -11471 -12003 -7311 -3583 -8441 "
                   "-8791 -9141 -5287 5438 10368 10858 11348 5330 10386 19498 20310 21122 9750 "
                   "12178 22746 23558 24370 11206 5334 9740 10062 10384 4638}")),
    CASE(aten_convolution_apart_i32, convolved_apart,
         IN("i32[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 53 60 "
            "67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 207 214 "
            "221 228 235 242 249}",
            "i32[2,1,2,2]{-20 -17 -14 -11 4 7 10 13}"),
         WANT("i32[2,2,1,3]{4064 3630 3196 920 1158 1396 -6352 -6786 -7220 6632 6870 7108}")),
    CASE_WITH(aten_convolution_i64, convolved, .plain = false,
              IN("i64[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 "
                 "53 60 67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 "
                 "207 214 221 228 235 242 249}",
                 "i64[2,2,2,2]{-20 -17 -14 -11 -8 -5 -2 1 4 7 10 13 16 19 22 25}", "i64[2]{5 -6}"),
              WANT("i64[2,2,4,5]{889 1931 1749 1567 781 1949 3957 3425 2893 1313 1053 1829 1297 "
                   "765 81 113 -41 -391 -741 -583 -946 -1392 -902 -412 -46 -366 10 822 1634 1014 "
                   "1426 3258 4070 4882 2470 966 2012 2334 2656 1278 -791 -2437 -2619 -2801 -1907 "
                   "-3427 -8811 -9343 -9875 -6079 -4323 -10939 -11471 -12003 -7311 -3583 -8441 "
                   "-8791 -9141 -5287 5438 10368 10858 11348 5330 10386 19498 20310 21122 9750 "
                   "12178 22746 23558 24370 11206 5334 9740 10062 10384 4638}")),
    CASE(aten_convolution_apart_i64, convolved_apart,
         IN("i64[2,2,3,4]{-80 -73 -66 -59 -52 -45 -38 -31 -24 -17 -10 -3 4 11 18 25 32 39 46 53 60 "
            "67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 207 214 "
            "221 228 235 242 249}",
            "i64[2,1,2,2]{-20 -17 -14 -11 4 7 10 13}"),
         WANT("i64[2,2,1,3]{4064 3630 3196 920 1158 1396 -6352 -6786 -7220 6632 6870 7108}")),
    CASE_WITH(aten_convolution_u8, convolved, .plain = false,
              IN("u8[2,2,3,4]{176 183 190 197 204 211 218 225 232 239 246 253 4 11 18 25 32 39 46 "
                 "53 60 67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 "
                 "207 214 221 228 235 242 249}",
                 "u8[2,2,2,2]{236 239 242 245 248 251 254 1 4 7 10 13 16 19 22 25}",
                 "u8[2]{5 250}"),
              WANT("u8[2,2,4,5]{121 139 213 31 13 157 117 97 77 33 29 37 17 253 81 113 215 121 27 "
                   "185 78 144 122 100 210 146 10 54 98 246 146 186 230 18 166 198 220 30 96 254 "
                   "233 123 197 15 141 157 149 129 109 65 29 69 49 29 113 1 7 169 75 89 62 128 106 "
                   "84 210 146 42 86 130 22 146 218 6 50 198 214 12 78 144 30}")),
    CASE(aten_convolution_apart_u8, convolved_apart,
         IN("u8[2,2,3,4]{176 183 190 197 204 211 218 225 232 239 246 253 4 11 18 25 32 39 46 53 60 "
            "67 74 81 88 95 102 109 116 123 130 137 144 151 158 165 172 179 186 193 200 207 214 "
            "221 228 235 242 249}",
            "u8[2,1,2,2]{236 239 242 245 4 7 10 13}"),
         WANT("u8[2,2,1,3]{224 46 124 152 134 116 48 126 204 232 214 196}")),
    CASE(aten_ldexp_f32, ldexp_of,
         IN("f32[8]{1.0000000031710769e-30 1.0000000150474662e+30 1 1.5 2.802596928649634e-45 -1 0 "
            "-0}",
            "i32[8]{200 -200 -149 -149 276 -100000 100000 5}"),
         WANT("f32[8]{1.6069380493547143e+30 6.223015371501754e-31 1.401298464324817e-45 "
              "2.802596928649634e-45 inf -0 0 -0}")),
    CASE(aten_ldexp_f64, ldexp_of,
         IN("f64[7]{1e-300 1.9999 5e-324 1 1e+300 -3 1e-10}",
            "i64[7]{1990 -1070 2000 2000 -2060 -1073 -1030}"),
         WANT("f64[7]{1.1212213821037642e+299 1.6e-322 5.67251933470834e+278 inf 7.554e-321 "
              "-3e-323 8.69e-321}")),
    CASE(aten_ldexp_f32_far, ldexp_of,
         IN("f32[3]{1 1 0}", "i64[3]{1099511627776 -1099511627776 4611686018427387904}"),
         WANT("f32[3]{inf 0 0}")),
    CASE(aten_ldexp_f16, ldexp_of,
         IN("f16[3]{0.0010004043579101562 60000 -8.5}", "i32[3]{20 -30 3}"),
         WANT("f16[3]{1049 5.5909156799316406e-05 -68}")),
    CASE(aten_ldexp_bf16, ldexp_of,
         IN("bf16[3]{0.00099945068359375 59904 -8.5}", "i32[3]{20 -30 3}"),
         WANT("bf16[3]{1048 5.5789947509765625e-05 -68}")),
    CASE(aten_ldexp_i32, ldexp_of, IN("i32[2]{3 -5}", "i64[2]{2 -1}"), WANT("f32[2]{12 -2.5}")),
    CASE(aten_ldexp_i32_f16, ldexp_of, IN("i32[2]{3 -5}", "f16[2]{2 -1}"), WANT("f16[2]{12 -2.5}")),
    CASE(aten_ldexp_of_infinity, ldexp_of, IN("f32[3]{inf nan -inf}", "i32[3]{-100000 3 100000}"),
         WANT("f32[3]{inf nan -inf}")),
    CASE(aten_take_along_rows_i64, along_rows, IN("f32[2,3]{0 1 2 3 4 5}", "i64[2,2]{-1 0 1 -3}"),
         WANT("f32[2,2]{2 0 4 3}")),
    CASE(aten_take_along_rows_i32, along_rows, IN("f32[2,3]{0 1 2 3 4 5}", "i32[2,2]{-1 0 1 -3}"),
         WANT("f32[2,2]{2 0 4 3}")),
    CASE(aten_take_along_rows_i8, along_rows, IN("f32[2,3]{0 1 2 3 4 5}", "i8[2,2]{-1 0 1 -3}"),
         WANT("f32[2,2]{2 0 4 3}")),
    CASE(aten_take_along_columns, along_columns, IN("f32[2,3]{0 1 2 3 4 5}", "i64[1,3]{-1 0 -2}"),
         WANT("f32[1,3]{3 1 2}")),
    CASE(aten_take_along_spread, along_columns, IN("f32[2,3]{0 1 2 3 4 5}", "i64[3,1]{-1 0 -2}"),
         WANT("f32[3,3]{3 4 5 0 1 2 0 1 2}")),
    CASE_WITH(aten_take_along_too_low, along_rows, .no_plan = true,
              IN("f32[2,3]{0 1 2 3 4 5}", "i64[2,1]{-4 0}"), FAILS(ETCH_ERR_INDEX)),
    CASE_WITH(aten_take_along_too_high, along_rows, .no_plan = true,
              IN("f32[2,3]{0 1 2 3 4 5}", "i64[2,1]{3 0}"), FAILS(ETCH_ERR_INDEX)),
    CASE_WITH(aten_take_along_reals, along_rows, .no_plan = true,
              IN("f32[2,3]{0 1 2 3 4 5}", "f32[2,3]{0 1 2 3 4 5}"), FAILS(ETCH_ERR_DTYPE)),
    PUT_CASES(f32),
    PUT_CASES(f64),
    PUT_CASES(bf16),
    PUT_CASES(f16),
    PUT_CASES(i8),
    PUT_CASES(i16),
    PUT_CASES(i32),
    PUT_CASES(i64),
    PUT_CASES(u8),
    CASE_WITH(aten_put_each_bool, put, .breaks = true,
              IN("bool[3,2]{0 0 0 0 1 1}", "bool[3]{1 0 1}", "bool[2,1]{1 1}"),
              WANT("bool[3,2]{1 1 0 0 1 1}")),
    CASE_WITH(aten_put_in_place_each_bool, put_, .breaks = true,
              IN("bool[3,2]{0 0 0 0 1 1}", "bool[3]{1 0 1}", "bool[2,1]{1 1}"),
              WANT("bool[3,2]{1 1 0 0 1 1}"), AFTER("bool[3,2]{1 1 0 0 1 1}")),
    CASE(aten_put_one_bool, put, IN("bool[3,2]{0 0 0 0 1 1}", "bool[3]{1 0 1}", "bool[]{1}"),
         WANT("bool[3,2]{1 1 0 0 1 1}")),
    CASE(aten_put_in_place_one_bool, put_,
         IN("bool[3,2]{0 0 0 0 1 1}", "bool[3]{1 0 1}", "bool[]{1}"),
         WANT("bool[3,2]{1 1 0 0 1 1}"), AFTER("bool[3,2]{1 1 0 0 1 1}")),
    CASE(aten_put_row, put, IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", "f32[2]{7 8}"),
         WANT("f32[3,2]{7 8 2 3 7 8}")),
    CASE(aten_put_sum_of_row, put_sum,
         IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", "f32[1,2]{1 2}"),
         WANT("f32[3,2]{1 3 2 3 5 7}")),
    CASE(aten_put_sum_in_place, put_sum_,
         IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", "f32[1,2]{1 2}"),
         WANT("f32[3,2]{1 3 2 3 5 7}"), AFTER("f32[3,2]{1 3 2 3 5 7}")),
    CASE_WITH(aten_put_sum_each, put_sum, .breaks = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", "f32[2,2]{1 2 3 4}"),
              WANT("f32[3,2]{1 3 2 3 7 9}")),
    CASE_WITH(aten_put_flat, put, .breaks = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[3,2]{0 0 0 1 1 1}", "f32[3]{7 8 9}"),
              WANT("f32[3,2]{0 1 2 7 8 9}")),
    CASE_WITH(aten_put_flat_in_place, put_, .breaks = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[3,2]{0 0 0 1 1 1}", "f32[3]{7 8 9}"),
              WANT("f32[3,2]{0 1 2 7 8 9}"), AFTER("f32[3,2]{0 1 2 7 8 9}")),
    CASE(aten_put_everywhere, put, IN("f32[3,2]{0 1 2 3 4 5}", "bool[]{1}", "f32[]{5}"),
         WANT("f32[3,2]{5 5 5 5 5 5}")),
    CASE_WITH(aten_put_nowhere, put, .breaks = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{0 0 0}", "f32[0,2]{}"),
              WANT("f32[3,2]{0 1 2 3 4 5}")),
    CASE_WITH(aten_put_too_many, put, .no_plan = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", "f32[3,2]{0 0 0 0 0 0}"),
              FAILS(ETCH_ERR_SHAPE)),
    CASE_WITH(aten_put_wide_values, put, .no_plan = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", "f32[1,1,2]{0 0}"),
              FAILS(ETCH_ERR_SHAPE)),
    CASE_WITH(aten_put_other_mask, put, .no_plan = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[4]{1 1 1 1}", "f32[]{5}"), FAILS(ETCH_ERR_SHAPE)),
    CASE_WITH(aten_put_other_dtype, put, .no_plan = true,
              IN("f32[3,2]{0 1 2 3 4 5}", "bool[3]{1 0 1}", "f64[2]{7 8}"), FAILS(ETCH_ERR_DTYPE)),
    CASE_WITH(aten_one_hot_counts, classes_of, .breaks = true, IN("i64[2]{0 2}"),
              WANT("i64[2,3]{1 0 0 0 0 1}")),
    CASE_WITH(aten_one_hot_counts_0d, classes_of, .breaks = true, IN("i64[]{5}"),
              WANT("i64[6]{0 0 0 0 0 1}")),
    CASE_WITH(aten_one_hot_of_nothing, classes_of, .no_plan = true, IN("i64[0]{}"),
              FAILS(ETCH_ERR_EMPTY)),
    CASE_WITH(aten_one_hot_of_negative, classes_of, .no_plan = true, IN("i64[1]{-1}"),
              FAILS(ETCH_ERR_INDEX)),
    CASE_WITH(aten_one_hot_of_no_classes, no_classes, .no_plan = true, IN("i64[1]{0}"),
              FAILS(ETCH_ERR_INVALID_ARGUMENT)),
    CASE_WITH(aten_roll_of_0d, rolled, .no_plan = true, IN("f32[]{3}"), FAILS(ETCH_ERR_DIM_RANGE)),
    CASE(aten_roll_of_0d_flat, rolled_flat, IN("f32[]{3}"), WANT("f32[]{3}")),
};

CASES_MAIN(rows)
