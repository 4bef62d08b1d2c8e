/* Reports about sizes that change between calls, 1 and 0 among them. See
 * cases_support.h: the rows are asked with sizes that become dynamic when seen to
 * change, and with dynamic ones from the start.
 * Labels: device. */
#include "cases_support.h"

BODY(sum_of_all, etch_sum(in[0]))

/* sum(take(buffer, index)), with ever other indices */
BODY(sum_of_taken, etch_sum(etch_take(in[0], in[1])))
BODY(sum_of_selected, etch_sum_dim(etch_index_select(in[0], 0, in[1]), ETCH_DIMS(0), false))

/* Reductions over an axis whose size was 1 when they were recorded. */
static void reductions_over_rows(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum_dim(in[0], ETCH_DIMS(0), true);
    out[1] = etch_amax(in[0], ETCH_DIMS(0), false);
    out[2] = etch_argmax_dim(in[0], 0, false);
    out[3] = etch_mean_dim(in[0], ETCH_DIMS(0), false);
}

static void centred_rows(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *mean = etch_mean_dim(in[0], ETCH_DIMS(0), true);
    out[0] = etch_sub(in[0], mean);
}

BODY(plus, etch_add(in[0], in[1]))
BODY(product, etch_mm(in[0], in[1]))
BODY(flat_of_transposed, etch_reshape(etch_t(in[0]), ETCH_SHAPE(-1)))

static void joined(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *parts[] = {in[0], in[1], in[0]};
    out[0] = etch_sum_dim(etch_cat(parts, 3, 0), ETCH_DIMS(0), false);
}

static void last_rows(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *tail = etch_slice(in[0], 0, -2, ETCH_ABSENT, 1);
    out[0] = etch_neg(tail);
    out[1] = etch_slice(in[0], 0, ETCH_ABSENT, ETCH_ABSENT, -1);
}

/* x / rms(x) * w + b, where eps is 0 and rms a whole number. */
static void rms_norm_scaled(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *ms = etch_mean_dim(etch_square(in[0]), ETCH_DIMS(-1), true);
    etch_tensor *normed = etch_div(in[0], etch_sqrt(ms));
    out[0] = etch_add(etch_mul(normed, in[1]), in[2]);
}

#define SCALED "f32[2]{10 100}", "f32[2]{1 2}"

static const case_row rows[] = {
    CALLS(mlx_3201_sum_traced_at_length_1, sum_of_all, CALL(IN("i64[1]{10}"), WANT("i64[]{10}")),
          CALL(IN("i64[2]{10 20}"), WANT("i64[]{30}")),
          CALL(IN("i64[3]{10 20 30}"), WANT("i64[]{60}")),
          CALL(IN("i64[4]{10 20 30 40}"), WANT("i64[]{100}")),
          CALL(IN("i64[0]{}"), WANT("i64[]{0}")), CALL(IN("i64[1]{7}"), WANT("i64[]{7}"))),
    CALLS(mlx_3201_sum_of_taken, sum_of_taken,
          CALL(IN("f32[5]{10..*5+10}", "i64[1]{0}"), WANT("f32[]{10}")),
          CALL(IN("f32[5]{10..*5+10}", "i64[2]{0 1}"), WANT("f32[]{30}")),
          CALL(IN("f32[5]{10..*5+10}", "i64[3]{0 1 2}"), WANT("f32[]{60}")),
          CALL(IN("f32[5]{10..*5+10}", "i64[4]{0 1 2 3}"), WANT("f32[]{100}"))),
    CALLS(mlx_3201_sum_of_selected_rows, sum_of_selected,
          CALL(IN("i64[3,2]{1..*6}", "i32[1]{2}"), WANT("i64[2]{5 6}")),
          CALL(IN("i64[3,2]{1..*6}", "i32[3]{0 0 1}"), WANT("i64[2]{5 8}")),
          CALL(IN("i64[4,2]{1..*8}", "i32[0]{}"), WANT("i64[2]{0 0}")),
          CALL(IN("i64[4,2]{1..*8}", "i32[2]{3 3}"), WANT("i64[2]{14 16}"))),
    CALLS(mlx_3201_reductions_traced_at_size_1, reductions_over_rows,
          CALL(IN("f32[1,2]{3 4}"),
               WANT("f32[1,2]{3 4}", "f32[2]{3 4}", "i64[2]{0 0}", "f32[2]{3 4}")),
          CALL(IN("f32[2,2]{3 4 5 2}"),
               WANT("f32[1,2]{8 6}", "f32[2]{5 4}", "i64[2]{1 0}", "f32[2]{4 3}")),
          CALL(IN("f32[4,2]{1 0 2 0 3 8 2 0}"),
               WANT("f32[1,2]{8 8}", "f32[2]{3 8}", "i64[2]{2 2}", "f32[2]{2 2}")),
          CALL(IN("f32[1,2]{5 6}"),
               WANT("f32[1,2]{5 6}", "f32[2]{5 6}", "i64[2]{0 0}", "f32[2]{5 6}"))),
    CALLS(mlx_3201_reductions_traced_at_size_3, reductions_over_rows,
          CALL(IN("f32[3,1]{3 5 4}"), WANT("f32[1,1]{12}", "f32[1]{5}", "i64[1]{1}", "f32[1]{4}")),
          CALL(IN("f32[1,1]{2}"), WANT("f32[1,1]{2}", "f32[1]{2}", "i64[1]{0}", "f32[1]{2}")),
          CALL(IN("f32[2,2]{2 4 4 2}"),
               WANT("f32[1,2]{6 6}", "f32[2]{4 4}", "i64[2]{1 0}", "f32[2]{3 3}"))),
    CALLS(mlx_3201_broadcast_back_traced_at_size_1, centred_rows,
          CALL(IN("f32[1,2]{3 4}"), WANT("f32[1,2]{0 0}")),
          CALL(IN("f32[2,2]{3 4 5 2}"), WANT("f32[2,2]{-1 1 1 -1}")),
          CALL(IN("f32[3,2]{0 3 3 0 0 0}"), WANT("f32[3,2]{-1 2 2 -1 -1 -1}"))),
    CALLS(mlx_3201_broadcast_of_size_1_then_more, plus,
          CALL(IN("i32[1,2]{1 2}", "i32[2,2]{10 20 30 40}"), WANT("i32[2,2]{11 22 31 42}")),
          CALL(IN("i32[2,2]{1 2 3 4}", "i32[2,2]{10 20 30 40}"), WANT("i32[2,2]{11 22 33 44}")),
          CALL(IN("i32[3,2]{1 2 3 4 5 6}", "i32[1,2]{10 20}"), WANT("i32[3,2]{11 22 13 24 15 26}")),
          CALL(IN("i32[0,2]{}", "i32[1,2]{10 20}"), WANT("i32[0,2]{}")),
          CALL(IN("i32[3,1]{1 2 3}", "i32[1,2]{10 20}"), WANT("i32[3,2]{11 21 12 22 13 23}"))),
    CALLS(mlx_3201_product_traced_at_depth_1, product,
          CALL(IN("f32[2,1]{1 2}", "f32[1,2]{3 4}"), WANT("f32[2,2]{3 4 6 8}")),
          CALL(IN("f32[2,2]{1 2 3 4}", "f32[2,2]{1 1 1 1}"), WANT("f32[2,2]{3 3 7 7}")),
          CALL(IN("f32[1,3]{1 2 3}", "f32[3,1]{1 10 100}"), WANT("f32[1,1]{321}")),
          CALL(IN("f32[2,0]{}", "f32[0,1]{}"), WANT("f32[2,1]{0 0}"))),
    CALLS(pt_174963_reshape_of_strided_of_many_sizes, flat_of_transposed,
          CALL(IN("i32[2,3]{0..*6}"), WANT("i32[6]{0 3 1 4 2 5}")),
          CALL(IN("i32[3,2]{0..*6}"), WANT("i32[6]{0 2 4 1 3 5}")),
          CALL(IN("i32[1,4]{0..*4}"), WANT("i32[4]{0..*4}")),
          CALL(IN("i32[4,1]{0..*4}"), WANT("i32[4]{0..*4}")),
          CALL(IN("i32[0,3]{}"), WANT("i32[0]{}"))),
    CALLS(mlx_3201_cat_of_many_sizes, joined,
          CALL(IN("i64[1]{1}", "i64[1]{10}"), WANT("i64[]{12}")),
          CALL(IN("i64[2]{1 2}", "i64[1]{10}"), WANT("i64[]{16}")),
          CALL(IN("i64[0]{}", "i64[3]{10 20 30}"), WANT("i64[]{60}")),
          CALL(IN("i64[3]{1 2 3}", "i64[0]{}"), WANT("i64[]{12}"))),
    CALLS(pt_174963_views_from_the_end, last_rows,
          CALL(IN("i8[3]{1 2 3}"), WANT("i8[2]{-2 -3}", "i8[3]{3 2 1}")),
          CALL(IN("i8[5]{1..*5}"), WANT("i8[2]{-4 -5}", "i8[5]{5 4 3 2 1}")),
          CALL(IN("i8[1]{1}"), WANT("i8[1]{-1}", "i8[1]{1}")),
          CALL(IN("i8[0]{}"), WANT("i8[0]{}", "i8[0]{}"))),
    CALLS(llama_17032_one_token_then_more, rms_norm_scaled,
          CALL(IN("f32[1,2]{3 3}", SCALED), WANT("f32[1,2]{11 102}")),
          CALL(IN("f32[2,2]{3 -3 1 7}", SCALED), WANT("f32[2,2]{11 -98 3 142}")),
          CALL(IN("f32[3,2]{5 5 -5 5 0 2}", "f32[2]{0 0}", "f32[2]{1 2}"),
               WANT("f32[3,2]{1 2 1 2 1 2}"))),
    CASE(llama_15660_norm_keeps_its_scale, rms_norm_scaled, IN("f32[2,2]{1 7 -7 1}", SCALED),
         WANT("f32[2,2]{3 142 -13 22}")),
};

CASES_MAIN(rows)
