/* Reports about strides, offsets, views of views, 0-d and empty tensors. See cases_support.h: each
 * row is asked with its arguments stepped and turned round in memory, too.
 * Labels: device sanitizer. */
#include "cases_support.h"

/* ---- indices are logical ---- */

BODY(argmax, etch_argmax(in[0]))
BODY(argmax_of_t, etch_argmax(etch_t(in[0])))

static void sin_then_argmax(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *t = etch_t(in[0]);
    etch_sin_(t);
    out[0] = etch_argmax(t);
    etch_copy_(t, etch_sign(t));
}

static void argmax_of_flipped(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *flipped = etch_slice(in[0], 1, ETCH_ABSENT, ETCH_ABSENT, -1);
    out[0] = etch_argmax(flipped);
    out[1] = etch_argmax_dim(flipped, 1, false);
    out[2] = etch_argmax_dim(flipped, 0, true);
}

static void min_and_max_of_rows(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_amin(in[0], ETCH_DIMS(1), false);
    out[1] = etch_amax(in[0], ETCH_DIMS(1), false);
}

static void argmin_of_rows(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_argmin_dim(in[0], 1, false);
    out[1] = etch_argmax_dim(in[0], 1, false);
    out[2] = etch_argmin(etch_t(in[0]));
}

static void argmax_after_flip(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *flipped = etch_flip(in[0], ETCH_DIMS(0, 1));
    out[0] = etch_argmax(flipped);
    out[1] = flipped;
}

/* ---- reductions of views ---- */

static void sum_of_permuted(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *p = etch_permute(in[0], ETCH_DIMS(2, 0, 1));
    out[0] = etch_sum_dim(p, ETCH_DIMS(2), false);
    out[1] = etch_sum_dim(p, ETCH_DIMS(0), false);
    out[2] = etch_sum(etch_select(p, 0, 1));
}

static void two_ranges_of_one_base(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *largest = etch_max(etch_slice(in[0], 0, 1, 4, 1));
    etch_tensor *smallest = etch_min(etch_slice(in[0], 0, 1, 3, 1));
    out[0] = etch_sub(largest, smallest);
}

static void sum_of_indexed_in_a_tree(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *doubled = etch_mul_scalar(in[0], 2);
    etch_tensor *element = etch_select(etch_select(doubled, 0, 1), 0, 2);
    out[0] = etch_add(etch_sum(element), etch_sum(etch_add(doubled, element)));
}

static void sum_by_hand_of_transposed(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *t = etch_transpose(in[0], 0, 1), *sum = etch_select(t, 0, 0);
    for (int64_t i = 1; i < 4; i++) sum = etch_add(sum, etch_select(t, 0, i));
    out[0] = sum;
    out[1] = etch_sum_dim(t, ETCH_DIMS(0), false);
}

/* ---- views at an offset, views of views ---- */

static void moddims_at_an_offset(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *v = etch_reshape(etch_slice(in[0], 0, 1, ETCH_ABSENT, 1), ETCH_SHAPE(2, 4, 5));
    etch_tensor *part = etch_slice(etch_slice(v, 1, 0, 3, 1), 2, 0, 3, 1);
    out[0] = etch_add_scalar(part, 0);
    out[1] = part;
}

static void moddims_three_times(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *a = etch_reshape(in[0], ETCH_SHAPE(25));
    etch_tensor *b = etch_reshape(etch_reshape(a, ETCH_SHAPE(1, 5, 5)), ETCH_SHAPE(5, 5));
    out[0] = etch_add(b, b);
    etch_tensor *flat = etch_reshape(in[0], ETCH_SHAPE(25));
    out[1] = etch_add(flat, flat);
}

static void moddims_in_a_tree(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *sum = etch_reshape(etch_add(in[0], in[1]), ETCH_SHAPE(100));
    etch_tensor *more = etch_reshape(etch_add_scalar(sum, 2), ETCH_SHAPE(4, 25));
    etch_tensor *twice = etch_add(more, more);
    out[0] = etch_reshape(etch_add_scalar(twice, 4), ETCH_SHAPE(10, 10));
}

static void tiled_then_moddims(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *tiled = etch_expand(etch_unsqueeze(in[0], 0), ETCH_SHAPE(3, 2, 2));
    out[0] = etch_add_scalar(etch_reshape(tiled, ETCH_SHAPE(6, 2)), 1);
    etch_tensor *flat = etch_reshape(in[0], ETCH_SHAPE(4, 1));
    out[1] = etch_add_scalar(etch_expand(flat, ETCH_SHAPE(4, 3)), 1);
}

static void reshape_of_strided(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *t = etch_t(in[0]);
    out[0] = etch_reshape(t, ETCH_SHAPE(-1));
    out[1] = etch_contiguous(etch_slice(t, 0, 0, ETCH_ABSENT, 2));
    out[2] = etch_clone(t);
}

static void columns_first_output(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *buffer = etch_empty(etch_dtype_of(in[0]), ETCH_SHAPE(3, 2));
    out[0] = etch_t(buffer);
    etch_copy_(out[0], in[0]);
    out[1] = etch_add_scalar(out[0], 1);
    out[2] = etch_add_scalar_(etch_t(etch_clone(etch_t(in[0]))), 1);
}

/* Strides over the memory of a channels-last image. */
static void strided_over_channels_last(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *image = etch_permute(in[0], ETCH_DIMS(0, 3, 1, 2));
    etch_tensor *strided = etch_as_strided(image, ETCH_SHAPE(2, 3), ETCH_SHAPE(1, 2));
    out[0] = etch_add_scalar(strided, 1);
    out[1] = etch_neg(image);
}

static void conv_of_a_view(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *view = etch_transpose(etch_slice(in[0], 2, 1, ETCH_ABSENT, 1), 2, 3);
    out[0] = etch_conv2d(view, in[1], ETCH_NONE, ETCH_DIMS(1), ETCH_DIMS(0), ETCH_DIMS(1), 1);
}

/* ---- 0-d and empty ---- */

static void zero_d_reductions(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_mean_dim(in[0], ETCH_DIMS(0), false);
    out[1] = etch_sum_dim(in[0], ETCH_DIMS(-1), true);
    out[2] = etch_amax(in[0], ETCH_DIMS(0), false);
    out[3] = etch_argmax_dim(in[0], 0, false);
    out[4] = etch_softmax(in[0], 0);
}

static void zero_d_scans(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_cumsum(in[0], 0);
    out[1] = etch_flip(in[0], ETCH_DIMS(0));
}

BODY(running_sum, etch_cumsum(in[0], -1))

/* Sizes that depend on data: the operator reads, which is a graph break. */
static void nonzero_of_square(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_nonzero(etch_mul(in[0], in[0]));
}

static void selected_by_mask(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *positive = etch_gt_scalar(in[0], 0);
    out[0] = etch_neg(etch_masked_select(in[0], positive));
}

BODY(taken, etch_take(in[0], in[1]))

static void of_nothing(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum(in[0]);
    out[1] = etch_mean(in[0]);
}

static void rows_of_nothing(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum_dim(in[0], ETCH_DIMS(1), false);
    out[1] = etch_sum_dim(in[0], ETCH_DIMS(0), false);
}

BODY(largest, etch_max(in[0]))
BODY(largest_of_rows, etch_amax(in[0], ETCH_DIMS(1), false))
BODY(argmax_of_rows, etch_argmax_dim(in[0], -1, false))

static void empty_view_at_the_end(etch_tensor *const *in, etch_tensor **out) {
    int64_t n = etch_size(in[0], 0);
    etch_tensor *none = etch_slice(in[0], 0, n, n, 1);
    out[0] = etch_add_scalar(none, 1);
    out[1] = etch_sum(none);
    etch_tensor *parts[] = {none, in[0], none};
    out[2] = etch_cat(parts, 3, 0);
}

BODY(elementwise_of_nothing, etch_exp(etch_add(in[0], in[1])))

static const case_row rows[] = {
    CASE(pt_118177_argmax_of_transposed, argmax_of_t, IN("f32[2,3]{0 5 1 2 3 4}"),
         WANT("i64[]{2}")),
    CASE(pt_118177_argmax_ties, argmax_of_t, IN("i32[2,3]{0 1 7 7 0 0}"), WANT("i64[]{1}")),
    CASE(pt_183082_argmax_after_sin_in_place, sin_then_argmax,
         IN("f32[5,7]{0*11 1.5 0*8 1.25 0*14}"), WANT("i64[]{21}"),
         AFTER("f32[5,7]{0*11 1 0*8 1 0*14}")),
    CASE(pt_183894_argmax_of_flipped, argmax_of_flipped, IN("i8[2,3]{9 5 1 2 9 4}"),
         WANT("i64[]{2}", "i64[2]{2 1}", "i64[1,3]{1 1 0}")),
    CASE(pt_118177_argmax_4d, argmax, IN("f64[2,1,2,3]{0*7 3 1 3 0 0}"), WANT("i64[]{7}")),
    CASE(pt_184893_min_and_max_of_bool, min_and_max_of_rows, IN("bool[3,32]{1*31 0 0*31 1 1*32}"),
         WANT("bool[3]{0 0 1}", "bool[3]{1 1 1}")),
    CASE(pt_184893_argmin_of_bool, argmin_of_rows, IN("bool[3,32]{1*31 0 0*31 1 1*32}"),
         WANT("i64[3]{31 0 0}", "i64[3]{0 31 0}", "i64[]{1}")),
    CASE(pt_118177_argmin_of_transposed, argmin_of_rows, IN("f32[2,3]{3 5 1 2 0 1}"),
         WANT("i64[2]{2 1}", "i64[2]{1 0}", "i64[]{3}")),
    CASE(pt_183894_argmax_after_flip, argmax_after_flip, IN("f32[2,3]{9 5 1 2 9 4}"),
         WANT("i64[]{1}", "f32[2,3]{4 9 2 1 5 9}")),
    CASE(llama_25568_sum_of_permuted, sum_of_permuted, IN("f32[2,3,2]{0..*12}"),
         WANT("f32[2,2]{6 24 9 27}", "f32[2,3]{1 5 9 13 17 21}", "f32[]{36}")),
    CASE(llama_25568_sum_of_permuted_i16, sum_of_permuted, IN("i16[2,3,2]{0..*12}"),
         WANT("i64[2,2]{6 24 9 27}", "i64[2,3]{1 5 9 13 17 21}", "i64[]{36}")),
    CASE(tg_9987_two_ranges_of_one_base, two_ranges_of_one_base, IN("i32[4]{0..*4}"),
         WANT("i32[]{2}")),
    CASE(af_981_sum_of_indexed_in_a_tree, sum_of_indexed_in_a_tree, IN("f32[2,3]{0..*6}"),
         WANT("f32[]{100}")),
    CASE(pt_189401_unrolled_sum_of_transposed, sum_by_hand_of_transposed, IN("f32[3,4]{0..*12}"),
         WANT("f32[3]{6 22 38}", "f32[3]{6 22 38}")),

    CASE(af_1275_offset_of_a_view, moddims_at_an_offset, IN("i32[41]{0..*41}"),
         WANT("i32[2,3,3]{1 2 3 6 7 8 11 12 13 21 22 23 26 27 28 31 32 33}",
              "i32[2,3,3]{1 2 3 6 7 8 11 12 13 21 22 23 26 27 28 31 32 33}")),
    CASE(af_86cdffd21_moddims_three_times, moddims_three_times, IN("f32[5,5]{1*25}"),
         WANT("f32[5,5]{2*25}", "f32[25]{2*25}")),
    CASE(af_86cdffd21_moddims_in_order, moddims_three_times, IN("i16[5,5]{0..*25}"),
         WANT("i16[5,5]{0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 32 34 36 38 40 42 44 46 48}",
              "i16[25]{0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 32 34 36 38 40 42 44 46 48}")),
    CASE(af_86cdffd21_moddims_in_a_tree, moddims_in_a_tree,
         IN("f32[10,10]{1*100}", "f32[10,10]{1*100}"), WANT("f32[10,10]{12*100}")),
    CASE(af_86cdffd21_tile_and_moddims, tiled_then_moddims, IN("f32[2,2]{1 2 3 4}"),
         WANT("f32[6,2]{2..*4 2..*4 2..*4}", "f32[4,3]{2*3 3*3 4*3 5*3}")),
    CASE(pt_183771_reshape_of_strided, reshape_of_strided, IN("i32[2,3]{0..*6}"),
         WANT("i32[6]{0 3 1 4 2 5}", "i32[2,2]{0 3 2 5}", "i32[3,2]{0 3 1 4 2 5}")),
    CASE(pt_130394_columns_first_output, columns_first_output, IN("f32[2,3]{1..*6}"),
         WANT("f32[2,3]{1..*6}", "f32[2,3]{2..*6}", "f32[2,3]{2..*6}")),
    CASE_WITH(pt_172693_as_strided_of_channels_last, strided_over_channels_last, .plain = true,
              IN("f32[1,2,2,2]{0..*8}"),
              WANT("f32[2,3]{1 3 5 2 4 6}", "f32[1,2,2,2]{-0 -2 -4 -6 -1 -3 -5 -7}")),
    CASE(ggml_f771037f_conv_of_a_view, conv_of_a_view,
         IN("f32[1,1,4,3]{0..*12}", "f32[1,1,2,2]{1 10 100 1000}"),
         WANT("f32[1,1,2,2]{7463 10796 8574 11907}")),

    CASE(pt_193265_reductions_of_0d, zero_d_reductions, IN("f32[]{3}"),
         WANT("f32[]{3}", "f32[]{3}", "f32[]{3}", "i64[]{0}", "f32[]{1}")),
    CASE(pt_102546_reductions_of_0d_f64, zero_d_reductions, IN("f64[]{-2}"),
         WANT("f64[]{-2}", "f64[]{-2}", "f64[]{-2}", "i64[]{0}", "f64[]{1}")),
    CASE(pt_184089_scans_of_0d, zero_d_scans, IN("f32[]{3}"), WANT("f32[]{3}", "f32[]{3}")),
    CASE(pt_184089_scans_of_0d_i64, zero_d_scans, IN("i64[]{-3}"), WANT("i64[]{-3}", "i64[]{-3}")),
    CASE(mlx_4079_running_sum_of_nothing, running_sum, IN("f32[0]{}"), WANT("f32[0]{}")),
    CASE(mlx_4079_running_sums_of_no_columns, running_sum, IN("i32[3,0]{}"), WANT("i64[3,0]{}")),
    CASE(mlx_4079_running_sums_of_no_rows, running_sum, IN("f64[0,2]{}"), WANT("f64[0,2]{}")),
    CASE_WITH(tg_7c3e3fa154_nonzero, nonzero_of_square, .breaks = true, IN("f32[4]{0 3 0 -5}"),
              WANT("i64[2,1]{1 3}")),
    CASE_WITH(tg_7c3e3fa154_nonzero_of_a_matrix, nonzero_of_square, .breaks = true,
              IN("i32[2,2]{0 3 4 0}"), WANT("i64[2,2]{0 1 1 0}")),
    CASE_WITH(tg_7c3e3fa154_nonzero_of_a_scalar, nonzero_of_square, .breaks = true, IN("f32[]{2}"),
              WANT("i64[1,0]{}")),
    CASE_WITH(tg_7c3e3fa154_nonzero_of_a_zero, nonzero_of_square, .breaks = true, IN("f32[]{0}"),
              WANT("i64[0,0]{}")),
    CASE_WITH(tg_7c3e3fa154_nonzero_of_zeros, nonzero_of_square, .breaks = true,
              IN("f32[2,3]{0*6}"), WANT("i64[0,2]{}")),
    CASE_WITH(tg_7c3e3fa154_masked_select, selected_by_mask, .breaks = true, IN("i8[4]{1 -2 3 0}"),
              WANT("i8[2]{-1 -3}")),
    CASE_WITH(tg_7c3e3fa154_masked_select_of_none, selected_by_mask, .breaks = true,
              IN("f32[2,2]{0 -1 -2 -3}"), WANT("f32[0]{}")),
    CASE_WITH(tg_7c3e3fa154_masked_select_of_a_scalar, selected_by_mask, .breaks = true,
              IN("f64[]{2}"), WANT("f64[1]{-2}")),
    CASE_WITH(exact_index_out_of_range_is_an_error, taken, .no_plan = true,
              IN("f32[2,2]{1 2 3 4}", "i64[2]{0 4}"), FAILS(ETCH_ERR_INDEX)),
    CASE(llama_25568_take_is_logical, taken, IN("f32[2,3]{1..*6}", "i64[4]{5 0 -1 3}"),
         WANT("f32[4]{6 1 6 4}")),
    CASE(exact_sum_of_nothing, of_nothing, IN("f32[0]{}"), WANT("f32[]{0}", "f32[]{nan}")),
    CASE(exact_sum_of_no_rows, of_nothing, IN("f64[3,0]{}"), WANT("f64[]{0}", "f64[]{nan}")),
    CASE(mlx_4079_sum_of_rows_of_nothing, rows_of_nothing, IN("f32[3,0]{}"),
         WANT("f32[3]{0 0 0}", "f32[0]{}")),
    CASE_WITH(exact_max_of_nothing_is_an_error, largest, .no_plan = true, IN("f32[0]{}"),
              FAILS(ETCH_ERR_EMPTY)),
    CASE_WITH(mlx_4340_max_of_empty_rows_is_an_error, largest_of_rows, .no_plan = true,
              IN("f32[2,0]{}"), FAILS(ETCH_ERR_EMPTY)),
    CASE_WITH(mlx_4340_argmax_of_nothing_is_an_error, argmax, .no_plan = true, IN("i32[0]{}"),
              FAILS(ETCH_ERR_EMPTY)),
    CASE(mlx_4340_max_of_no_rows, largest_of_rows, IN("f32[0,2]{}"), WANT("f32[0]{}")),
    CASE(mlx_4340_argmax_of_no_rows, argmax_of_rows, IN("f32[0,2]{}"), WANT("i64[0]{}")),
    CASE(ggml_40d3da91_empty_view_at_the_end, empty_view_at_the_end, IN("f32[3]{1 2 3}"),
         WANT("f32[0]{}", "f32[]{0}", "f32[3]{1 2 3}")),
    CASE(ggml_40d3da91_empty_rows_at_the_end, empty_view_at_the_end, IN("i32[2,2]{1..*4}"),
         WANT("i32[0,2]{}", "i64[]{0}", "i32[2,2]{1..*4}")),
    CASE(mlx_4079_elementwise_of_nothing, elementwise_of_nothing, IN("f32[0,2]{}", "f32[1,2]{1 2}"),
         WANT("f32[0,2]{}")),
};

CASES_MAIN(rows)
