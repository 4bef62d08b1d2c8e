/* Reports about integers: wrapping, promotion, division, shifts, conversions, and code for one
 * dtype used for another. See cases_support.h.
 * Labels: device sanitizer. */
#include "cases_support.h"

/* ---- wrapping in the tensor's own width ---- */

BODY(doubled_to_i16, etch_to(etch_add(in[0], in[0]), ETCH_I16))
BODY(doubled_to_i64, etch_to(etch_add(in[0], in[0]), ETCH_I64))
BODY(squared_to_i32, etch_to(etch_mul(in[0], in[0]), ETCH_I32))
BODY(neg_below_4, etch_lt_scalar(etch_neg(in[0]), 4))
BODY(neg_plus, etch_add(etch_neg(in[0]), in[1]))
BODY(distance, etch_abs(etch_sub(in[0], in[1])))
BODY(clamp_1000, etch_clamp(in[0], -1000, 1000))
BODY(one_minus, etch_rsub_scalar(in[0], 1))
BODY(minus, etch_sub(in[0], in[1]))

/* c (x + y) and c x + c y */
static void distributed(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *sum = etch_add(in[0], in[1]);
    out[0] = etch_mul(in[2], sum);
    etch_tensor *a = etch_mul(in[2], in[0]);
    etch_tensor *b = etch_mul(in[2], in[1]);
    out[1] = etch_add(a, b);
}

#define WRAPS_DISTRIBUTED(dtype, a, b, c, sum)                                                     \
    CASE(pt_109105_overflow_in_any_form_##dtype, distributed,                                      \
         IN(#dtype "[2]{" a "}", #dtype "[2]{" b "}", #dtype "[]{" c "}"),                         \
         WANT(#dtype "[2]{" sum "}", #dtype "[2]{" sum "}"))

#define DISTANCE(dtype, one_two)                                                                   \
    CASE(tg_04f2327ca3_abs_of_difference_##dtype, distance,                                        \
         IN(#dtype "[2]{2 1}", #dtype "[2]{1 2}"), WANT(#dtype "[2]{1 " one_two "}"))

/* ---- division ---- */

BODY(floor_divide, etch_floor_divide(in[0], in[1]))
BODY(remainder_by, etch_remainder(in[0], in[1]))
BODY(fmod_by, etch_fmod(in[0], in[1]))

/* Forms that a simplifier might take for (6 x + 2) / 3 = 2 x, and the like. */
static void divided_forms(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *a = etch_add_scalar(etch_mul_scalar(in[0], 6), 2);
    out[0] = etch_floor_divide_scalar(a, 3);
    out[1] = etch_floor_divide_scalar(etch_floor_divide_scalar(in[0], 2), 3);
    out[2] = etch_remainder_scalar(etch_add_scalar(etch_mul_scalar(in[0], 4), 1), 4);
    out[3] = etch_mul_scalar(etch_floor_divide_scalar(in[0], 4), 4);
}

/* ---- shifts ---- */

BODY(shifted_left, etch_left_shift(in[0], in[1]))
BODY(shifted_right, etch_right_shift(in[0], in[1]))
BODY(left_64, etch_left_shift_scalar(in[0], 64))
BODY(right_64, etch_right_shift_scalar(in[0], 64))

/* ---- conversions ---- */

BODY(to_u8, etch_to(in[0], ETCH_U8))
BODY(to_i32, etch_to(in[0], ETCH_I32))
BODY(to_i8_to_i64, etch_to(etch_to(in[0], ETCH_I8), ETCH_I64))
BODY(sum_of_log_to_i32, etch_to(etch_sum(etch_log(in[0])), ETCH_I32))

/* The same with the conversion inside the sum: sum(dtype=int32). */
static void sum_of_log_in_i32(etch_tensor *const *in, etch_tensor **out) {
    etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = etch_log(in[0])},
                         {.name = "dtype", .tag = ETCH_VALUE_DTYPE, .dtype = ETCH_I32}};
    if (etch_op_call(etch_op_find("sum"), args, 2, out, 1) != ETCH_OK) out[0] = NULL;
}

/* ---- promotion by an exponent ---- */

BODY(times_power_of_2, etch_ldexp(in[0], in[1]))

/* ---- dtypes that share code, reductions that share a loop ---- */

/* f32(i32(a)) f32(i32(b)) */
static void product_by_way_of_i32(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *a = etch_to(etch_to(in[0], ETCH_I32), ETCH_F32);
    etch_tensor *b = etch_to(etch_to(in[1], ETCH_I32), ETCH_F32);
    out[0] = etch_mul(a, b);
}

static void argmax_and_min(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_argmax_dim(in[0], 1, false);
    out[1] = etch_amin(in[0], ETCH_DIMS(1), false);
    out[2] = etch_add(out[0], out[1]);
}

#define TENS(a, b) IN(a "[2,1]{10 20}", b "[1,2]{1 2}"), WANT("f32[2,2]{10 20 20 40}")

static const case_row rows[] = {
    CASE(pt_105264_u8_sum_wraps_0d, doubled_to_i16, IN("u8[]{128}"), WANT("i16[]{0}")),
    CASE(pt_105264_u8_sum_wraps, doubled_to_i16, IN("u8[3]{128 127 255}"),
         WANT("i16[3]{0 254 254}")),
    CASE(pt_105264_i8_sum_wraps, doubled_to_i16, IN("i8[3]{100 -128 64}"),
         WANT("i16[3]{-56 0 -128}")),
    CASE(pt_105264_i16_sum_wraps, doubled_to_i64, IN("i16[2]{32767 -32768}"), WANT("i64[2]{-2 0}")),
    CASE(pt_105264_i32_sum_wraps, doubled_to_i64, IN("i32[2]{2147483647 -2147483648}"),
         WANT("i64[2]{-2 0}")),
    CASE(pt_105264_u8_product_wraps, squared_to_i32, IN("u8[2]{16 255}"), WANT("i32[2]{0 1}")),
    CASE(pt_105264_i16_product_wraps, squared_to_i32, IN("i16[2]{256 -32768}"),
         WANT("i32[2]{0 0}")),
    WRAPS_DISTRIBUTED(i8, "100 -100", "50 -50", "1", "-106 106"),
    WRAPS_DISTRIBUTED(u8, "200 1", "100 2", "3", "132 9"),
    WRAPS_DISTRIBUTED(i16, "30000 1", "10000 2", "1", "-25536 3"),
    WRAPS_DISTRIBUTED(i32, "2000000000 1", "1000000000 2", "1", "-1294967296 3"),
    WRAPS_DISTRIBUTED(i64, "9223372036854775807 1", "1 2", "1", "-9223372036854775808 3"),
    CASE(pt_93829_negated_u8_is_u8, neg_below_4, IN("u8[3]{6 0 253}"), WANT("bool[3]{0 1 1}")),
    CASE(pt_96604_negated_u8_plus_f32, neg_plus, IN("u8[2]{7 0}", "f32[2]{0.5 0.5}"),
         WANT("f32[2]{249.5 0.5}")),
    CASE(pt_161763_negated_u8_plus_i64, neg_plus, IN("u8[2]{7 255}", "i64[2]{1000 0}"),
         WANT("i64[2]{1249 1}")),
    DISTANCE(u8, "255"),
    DISTANCE(i8, "1"),
    DISTANCE(i16, "1"),
    DISTANCE(i32, "1"),
    DISTANCE(i64, "1"),
    DISTANCE(f16, "1"),
    DISTANCE(f32, "1"),
    DISTANCE(f64, "1"),
    DISTANCE(bf16, "1"),
    CASE(exact_clamp_bounds_saturate, clamp_1000, IN("i8[3]{-128 0 127}"),
         WANT("i8[3]{-128 0 127}")),
    CASE(exact_clamp_bounds_saturate_u8, clamp_1000, IN("u8[2]{0 255}"), WANT("u8[2]{0 255}")),
    CASE_WITH(pt_195674_one_minus_bool, one_minus, .no_plan = true, IN("bool[2]{1 0}"),
              FAILS(ETCH_ERR_DTYPE)),
    CASE_WITH(pt_195674_bool_minus_bool, minus, .no_plan = true, IN("bool[2]{1 0}", "bool[2]{1 0}"),
              FAILS(ETCH_ERR_DTYPE)),

    CASE(tg_10064_floor_divide_of_negatives, floor_divide,
         IN("i32[6]{-7 7 -7 7 -1 -6}", "i32[6]{2 -2 -2 2 3 3}"), WANT("i32[6]{-4 -4 3 3 -1 -2}")),
    CASE(tg_10064_floor_divide_i8, floor_divide, IN("i8[3]{-128 -127 -128}", "i8[3]{-1 2 3}"),
         WANT("i8[3]{-128 -64 -43}")),
    CASE(tg_10229_remainder_of_negatives, remainder_by,
         IN("i64[6]{-7 7 -7 7 -1 -6}", "i64[6]{3 -3 -3 3 3 3}"), WANT("i64[6]{2 -2 -1 1 2 0}")),
    CASE(tg_10229_fmod_of_negatives, fmod_by, IN("i16[4]{-7 7 -7 7}", "i16[4]{3 -3 -3 3}"),
         WANT("i16[4]{-1 1 -1 1}")),
    CASE(tg_10229_smallest_by_minus_one, floor_divide,
         IN("i64[2]{-9223372036854775808 5}", "i64[2]{-1 -1}"),
         WANT("i64[2]{-9223372036854775808 -5}")),
    CASE(tg_10229_smallest_rest_by_minus_one, remainder_by,
         IN("i32[2]{-2147483648 5}", "i32[2]{-1 -1}"), WANT("i32[2]{0 0}")),
    CASE(tg_10064_forms_of_division, divided_forms, IN("i32[5]{-2 -1 0 1 -7}"),
         WANT("i32[5]{-4 -2 0 2 -14}", "i32[5]{-1 -1 0 0 -2}", "i32[5]{1 1 1 1 1}",
              "i32[5]{-4 -4 0 0 -8}")),
    CASE_WITH(exact_division_by_zero_is_an_error, floor_divide, .no_plan = true,
              IN("i32[3]{1 2 3}", "i32[3]{1 0 1}"), FAILS(ETCH_ERR_DIVISION_BY_ZERO)),
    CASE_WITH(exact_remainder_by_zero_is_an_error, remainder_by, .no_plan = true,
              IN("u8[3]{1 2 3}", "u8[3]{1 1 0}"), FAILS(ETCH_ERR_DIVISION_BY_ZERO)),

    CASE(pt_143566_left_shift_by_width, left_64, IN("i64[2]{1000 -1}"), WANT("i64[2]{0 0}")),
    CASE(pt_143555_right_shift_by_width, right_64, IN("i64[2]{1000 -1}"), WANT("i64[2]{0 -1}")),
    CASE(pt_143566_left_shift_i32, shifted_left, IN("i32[4]{1000 -1 1 1}", "i32[4]{32 40 31 0}"),
         WANT("i32[4]{0 0 -2147483648 1}")),
    CASE(pt_143555_right_shift_i32, shifted_right,
         IN("i32[4]{-1 1000 -1 -8}", "i32[4]{31 32 100 1}"), WANT("i32[4]{-1 0 -1 -4}")),
    CASE(pt_143566_left_shift_i8, shifted_left, IN("i8[3]{1 1 3}", "i8[3]{7 8 6}"),
         WANT("i8[3]{-128 0 -64}")),
    CASE(pt_143555_right_shift_u8, shifted_right, IN("u8[3]{255 255 255}", "u8[3]{7 8 200}"),
         WANT("u8[3]{1 0 0}")),

    CASE(pt_131910_negative_f32_to_u8, to_u8, IN("f32[4]{-1.5 -0.5 -1e30 -inf}"),
         WANT("u8[4]{0 0 0 0}")),
    CASE(tg_6305_conversion_saturates, to_u8, IN("f32[5]{255.9 256 1e30 inf nan}"),
         WANT("u8[5]{255 255 255 255 0}")),
    CASE(tg_6305_conversion_saturates_f64, to_i32, IN("f64[5]{-3e9 3e9 nan -1.9 1.9}"),
         WANT("i32[5]{-2147483648 2147483647 0 -1 1}")),
    CASE(tg_6305_conversion_saturates_f16, to_i8_to_i64, IN("f16[4]{-1000 1000 -128 inf}"),
         WANT("i64[4]{-128 127 -128 127}")),
    CASE(pt_131910_integers_wrap, to_u8, IN("i32[4]{-1 256 257 -300}"), WANT("u8[4]{255 0 1 212}")),
    CASE(pt_190421_sum_of_minus_infinity_to_i32, sum_of_log_to_i32, IN("f32[2]{0 1}"),
         WANT("i32[]{-2147483648}")),
    CASE(pt_190421_sum_of_minus_infinity_in_i32, sum_of_log_in_i32, IN("f32[2]{0 1}"),
         WANT("i32[]{-2147483648}")),

    CASE(pt_197091_bool_by_f16_is_f16, times_power_of_2, IN("bool[2]{1 0}", "f16[2]{3 2}"),
         WANT("f16[2]{8 0}")),
    CASE(pt_197091_f16_by_f32_is_f32, times_power_of_2, IN("f16[2]{1.5 -1}", "f32[2]{2 -1}"),
         WANT("f32[2]{6 -0.5}")),
    CALLS_WITH(mlx_3338_dtypes_do_not_share_code, product_by_way_of_i32, .graphs = 5,
               CALL(TENS("i16", "i8")), CALL(TENS("u8", "i8")), CALL(TENS("i8", "u8")),
               CALL(TENS("i64", "bf16")), CALL(TENS("f16", "i16"))),
    CASE(pt_190421_elements_are_converted_first, sum_of_log_in_i32, IN("f32[3]{1 2.8 2.8}"),
         WANT("i32[]{2}")),
    CASE(mlx_3338_alone, product_by_way_of_i32, TENS("i16", "i8")),
    CASE(mlx_3338_alone_turned_round, product_by_way_of_i32, TENS("i8", "i16")),
    CASE(pt_94055_argmax_and_min_of_integers, argmax_and_min, IN("i64[2,4]{3 9 -1 9 5 5 7 6}"),
         WANT("i64[2]{1 2}", "i64[2]{-1 5}", "i64[2]{0 7}")),
    CASE(pt_94055_argmax_and_min_of_i8, argmax_and_min, IN("i8[2,3]{-128 -128 -128 1 2 127}"),
         WANT("i64[2]{0 2}", "i8[2]{-128 1}", "i64[2]{-128 3}")),
};

CASES_MAIN(rows)
