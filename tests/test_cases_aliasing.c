/* Reports about views, writes in place, results that share memory with arguments, and buffers that
 * a planner used twice. See cases_support.h.
 * Labels: device long. */
#include "cases_support.h"

#include <math.h>

static etch_tensor *rows_from(etch_tensor *x, int64_t first, int64_t end) {
    return etch_slice(x, 0, first, end, 1);
}

static etch_tensor *reversed(etch_tensor *x) {
    return etch_slice(x, 0, ETCH_ABSENT, ETCH_ABSENT, -1);
}

/* ---- a write after a read ---- */

static void product_then_write(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_mm(in[0], in[1]);
    etch_tensor *wide = etch_expand(in[0], ETCH_SHAPE(1, 2, 4));
    etch_fill_(etch_select(etch_select(wide, 0, 0), 0, 1), 1);
}

static void sum_then_zero(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum(in[0]);
    out[1] = etch_add_scalar(in[0], 10);
    out[2] = etch_softmax(in[0], 0);
    etch_zero_(in[0]);
}

static void add_then_write_part(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_add_scalar(in[0], 10);
    etch_fill_(rows_from(in[0], 0, 1), 9);
}

static void add_then_flip(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_add(in[0], in[1]);
    etch_tensor *flipped = etch_slice(in[0], 1, ETCH_ABSENT, ETCH_ABSENT, -1);
    etch_copy_(in[0], flipped);
}

/* y is a copy of x with other first rows; then x is zeroed. */
static void copy_then_zero(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_clone(in[0]);
    etch_copy_(rows_from(out[0], 0, 2), in[1]);
    etch_tensor *parts[] = {in[1], rows_from(in[0], 2, ETCH_ABSENT)};
    out[1] = etch_cat(parts, 2, 0);
    etch_zero_(in[0]);
}

static void scatter_then_zero(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_slice_scatter(in[0], in[1], 0, 1, 3, 1);
    etch_zero_(in[0]);
}

static void flip_onto_itself(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_add(in[0], in[1]);
    etch_copy_(in[0], etch_flip(in[0], ETCH_DIMS(1)));
}

/* x[[0, 0]] += x[[0, 0]]: reads, adds, writes the last of the two. */
static void duplicate_index(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *rows = etch_index_select(in[0], 0, in[1]);
    etch_index_put_(in[0], in[1], etch_add(rows, rows), false);
    out[0] = rows;
}

static void duplicate_index_accumulated(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *rows = etch_index_select(in[0], 0, in[1]);
    etch_index_put_(in[0], in[1], rows, true);
    out[0] = rows;
}

/* ---- overlapping reads and writes of one buffer ---- */

static void shift_down(etch_tensor *const *in, etch_tensor **out) {
    etch_copy_(rows_from(in[0], 1, ETCH_ABSENT), rows_from(in[0], 0, -1));
    out[0] = etch_add_scalar(in[0], 0);
}

static void shift_up(etch_tensor *const *in, etch_tensor **out) {
    etch_copy_(rows_from(in[0], 0, -1), rows_from(in[0], 1, ETCH_ABSENT));
    out[0] = etch_add_scalar(in[0], 0);
}

static void add_own_reverse(etch_tensor *const *in, etch_tensor **out) {
    etch_add_(in[0], reversed(in[0]));
    out[0] = etch_mul_scalar(in[0], 1);
}

static void add_own_transpose(etch_tensor *const *in, etch_tensor **out) {
    etch_add_(in[0], etch_t(in[0]));
    out[0] = etch_mul_scalar(in[0], 1);
}

/* Every fifth column, doubled in place. */
static void double_some_columns(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *v = etch_slice(in[0], 1, 0, ETCH_ABSENT, 5);
    etch_add_(v, v);
    out[0] = etch_sum_dim(in[0], ETCH_DIMS(1), false);
}

static void double_unfolded(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *v = etch_unfold(in[0], 1, 1, 5);
    etch_add_(v, v);
    out[0] = etch_sum_dim(in[0], ETCH_DIMS(1), false);
}

static void sums_of_windows(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum_dim(etch_unfold(in[0], 0, 3, 1), ETCH_DIMS(-1), false);
}

/* acc[0] += x[i], one element at a time, through the same two cells. */
static void sum_in_memory(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *cells = etch_zeros(ETCH_I64, ETCH_SHAPE(2));
    for (int64_t i = 0; i < 200; i++) {
        etch_tensor *cell = etch_select(cells, 0, 0);
        etch_add_(cell, etch_select(in[0], 0, i));
        etch_copy_(etch_select(cells, 0, 1), cell);
    }
    out[0] = cells;
}

/* ---- arguments that are views of one another, or the same ---- */

static void write_base_return_view(etch_tensor *const *in, etch_tensor **out) {
    etch_add_scalar_(in[0], 100);
    out[0] = etch_select(in[1], 0, 0);
}

static void write_view_return_base(etch_tensor *const *in, etch_tensor **out) {
    etch_mul_scalar_(in[1], 2);
    out[0] = etch_add(in[0], in[0]);
}

static void write_first_read_second(etch_tensor *const *in, etch_tensor **out) {
    etch_add_scalar_(in[0], 1);
    out[0] = etch_add(in[0], in[1]);
}

static void read_both(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_mul(in[0], in[1]);
}

/* ---- views over graph breaks ---- */

static void alias_over_a_break(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *a = rows_from(in[0], 0, 1);
    etch_tensor *b = etch_squeeze(a);
    etch_tensor *first = etch_select(a, 0, 0);
    etch_fill_(first, 0);
    if (etch_item(first) < 1e5) etch_fill_(first, 2);
    out[0] = b;
}

static void one_step_of_adam(etch_tensor *const *in, etch_tensor **m, etch_tensor **v) {
    etch_tensor *p = in[0], *step = in[1], *g = etch_mul_scalar(p, 2);
    etch_add_scalar_(step, 1);
    *m = etch_add(etch_mul_scalar(*m, 0.9), etch_mul_scalar(g, 0.1));
    *v = etch_add(etch_mul_scalar(*v, 0.999), etch_mul_scalar(etch_square(g), 0.001));
    double s = etch_item(step);
    etch_tensor *root = etch_div_scalar(etch_sqrt(*v), sqrt(1 - pow(0.999, s)));
    etch_tensor *denominator = etch_add_scalar(root, 1e-8);
    etch_addcdiv_(p, *m, denominator, -0.001 / (1 - pow(0.9, s)));
}

static void adam_in_a_loop(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *m = etch_zeros(ETCH_F64, ETCH_SHAPE(2)), *v = etch_zeros(ETCH_F64, ETCH_SHAPE(2));
    for (int i = 0; i < 4; i++) one_step_of_adam(in, &m, &v);
    out[0] = in[0];
}

/* ---- memory planned twice ---- */

static void equals_maximum(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *m = etch_amax(in[0], ETCH_DIMS(2, 4), true);
    out[0] = etch_eq(in[0], m);
}

static void chain_of_sums(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *sum = out[1] = in[0];
    for (int i = 0; i < 5; i++) {
        out[i + 1] = i ? etch_add(out[i], out[i]) : etch_add(in[0], in[0]);
        sum = etch_add(sum, out[i + 1]);
    }
    out[0] = sum;
}

static void sum_of_six(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *sum = in[0], *y = in[0];
    for (int i = 1; i < 6; i++) {
        out[i] = y = etch_mul(y, in[0]);
        sum = etch_add(sum, y);
    }
    out[0] = sum;
}

static void second_half_and_new(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *parts[] = {rows_from(in[0], etch_size(in[0], 0) / 2, ETCH_ABSENT), in[1]};
    out[0] = etch_cat(parts, 2, 0);
}

static void push_in_place(etch_tensor *const *in, etch_tensor **out) {
    for (int i = 0; i < 3; i++) {
        etch_tensor *parts[] = {rows_from(in[0], 1, ETCH_ABSENT), in[1]};
        etch_copy_(in[0], etch_cat(parts, 2, 0));
    }
    out[0] = etch_add_scalar(in[0], 0);
}

static void slices_plus_one(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *big = etch_zeros(ETCH_F32, ETCH_SHAPE(50));
    for (int i = 0; i < 5; i++) {
        etch_tensor *v = etch_view(rows_from(big, 10 * i, 10 * i + 10), ETCH_SHAPE(2, 5));
        etch_copy_(v, etch_add(v, in[0]));
    }
    out[0] = big;
}

/* Intermediates of ever other sizes, alignments and dtypes, each alive with the next. */
static void buffers_of_other_sizes(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *rows = etch_sum_dim(in[0], ETCH_DIMS(1), true);
    etch_tensor *bytes = etch_to(in[0], ETCH_U8);
    etch_tensor *wide = etch_to(etch_mm(in[0], etch_t(in[0])), ETCH_F64);
    etch_tensor *one = etch_sum(wide);
    etch_tensor *narrow = etch_to(etch_add(bytes, bytes), ETCH_I16);
    out[0] = etch_sum(etch_add(etch_mul(narrow, rows), one));
    out[1] = etch_add(wide, rows);
}

/* Its backward pass, written over x: dx = r (dz - x sum(x dz) / (n (ms + eps))), in 1/10000. */
static void rms_norm_backward(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *x = in[0], *dz = in[1];
    etch_tensor *ms = etch_add_scalar(etch_mean(etch_square(x)), 1e-4);
    etch_tensor *dot = etch_sum(etch_mul(x, dz));
    etch_tensor *scale = etch_div(dot, etch_mul_scalar(ms, 4));
    etch_tensor *inner = etch_sub(dz, etch_mul(x, scale));
    etch_copy_(x, etch_mul(inner, etch_rsqrt(ms)));
    out[0] = etch_round(etch_mul_scalar(x, 10000));
    etch_copy_(x, out[0]);
}

static const case_row rows[] = {
    CASE(pt_175791_write_stays_after_the_read, product_then_write,
         IN("f32[2,4]{0..*8}", "f32[4,2]{1*8}"), WANT("f32[2,2]{6 6 22 22}"),
         AFTER("f32[2,4]{0..*4 1*4}")),
    CASE(pt_175791_write_after_reductions, sum_then_zero, IN("f32[4]{1 1 1 1}"),
         WANT("f32[]{4}", "f32[4]{11 11 11 11}", "f32[4]{0.25*4}"), AFTER("f32[4]{0*4}")),
    CASE(tg_17074_lazy_sum_then_write, add_then_write_part, IN("i32[2]{1 2}"),
         WANT("i32[2]{11 12}"), AFTER("i32[2]{9 2}")),
    CASE(pt_162410_sum_then_flip_in_place, add_then_flip,
         IN("f32[3,4]{0..*12}", "f32[3,4]{100..*12}"),
         WANT("f32[3,4]{100 102 104 106 108 110 112 114 116 118 120 122}"),
         AFTER("f32[3,4]{3 2 1 0 7 6 5 4 11 10 9 8}")),
    CASE(pt_198094_result_is_no_view_of_zeroed_input, copy_then_zero,
         IN("i32[4]{1 2 3 4}", "i32[2]{7 8}"), WANT("i32[4]{7 8 3 4}", "i32[4]{7 8 3 4}"),
         AFTER("i32[4]{0 0 0 0}")),
    CASE(pt_198094_scattered_slice_is_no_view, scatter_then_zero,
         IN("f32[4]{1 2 3 4}", "f32[2]{8 9}"), WANT("f32[4]{1 8 9 4}"), AFTER("f32[4]{0*4}")),
    CASE(pt_162410_flip_onto_itself, flip_onto_itself, IN("f32[2,3]{0..*6}", "f32[2,3]{10*6}"),
         WANT("f32[2,3]{10..*6}"), AFTER("f32[2,3]{2 1 0 5 4 3}")),
    CASE(pt_174074_duplicate_index, duplicate_index, IN("f64[3]{5 6 7}", "i64[2]{0 0}"),
         WANT("f64[2]{5 5}"), AFTER("f64[3]{10 6 7}")),
    CASE(pt_174074_duplicate_index_of_rows, duplicate_index,
         IN("i32[2,2]{1 2 3 4}", "i64[3]{1 1 1}"), WANT("i32[3,2]{3 4 3 4 3 4}"),
         AFTER("i32[2,2]{1 2 6 8}")),
    CASE(pt_174074_duplicate_index_accumulated, duplicate_index_accumulated,
         IN("f64[3]{5 6 7}", "i64[2]{0 0}"), WANT("f64[2]{5 5}"), AFTER("f64[3]{15 6 7}")),
    CASE(pt_162410_shift_down, shift_down, IN("i64[5]{1..*5}"), WANT("i64[5]{1 1 2 3 4}"),
         AFTER("i64[5]{1 1 2 3 4}")),
    CASE(pt_162410_shift_down_rows, shift_down, IN("f32[3,2]{1..*6}"),
         WANT("f32[3,2]{1 2 1 2 3 4}"), AFTER("f32[3,2]{1 2 1 2 3 4}")),
    CASE(pt_162410_shift_up, shift_up, IN("i8[5]{1..*5}"), WANT("i8[5]{2 3 4 5 5}"),
         AFTER("i8[5]{2 3 4 5 5}")),
    CASE(pt_162410_add_own_reverse, add_own_reverse, IN("f32[5]{1..*5}"), WANT("f32[5]{6*5}"),
         AFTER("f32[5]{6*5}")),
    CASE(pt_162410_add_own_transpose, add_own_transpose, IN("f64[2,2]{1 2 3 4}"),
         WANT("f64[2,2]{2 5 5 8}"), AFTER("f64[2,2]{2 5 5 8}")),
    CASE(pt_198102_only_covered_columns, double_some_columns, IN("f32[2,7]{1..*14}"),
         WANT("f32[2]{35 98}"), AFTER("f32[2,7]{2 2 3 4 5 12 7 16 9 10 11 12 26 14}")),
    CASE(pt_198102_unfolded_in_place, double_unfolded, IN("f32[2,7]{1..*14}"),
         WANT("f32[2]{35 98}"), AFTER("f32[2,7]{2 2 3 4 5 12 7 16 9 10 11 12 26 14}")),
    CASE(pt_198102_sums_of_windows, sums_of_windows, IN("i32[5]{1..*5}"), WANT("i64[3]{6 9 12}")),
    CASE(lj_843_stores_forwarded_to_loads, sum_in_memory, IN("i64[200]{1..*200}"),
         WANT("i64[2]{20100 20100}")),

    /* an argument that is a view of a written one runs eagerly */
    CASE_WITH(pt_198095_view_of_a_written_argument, write_base_return_view, .no_plan = true,
              IN("f32[3]{1 2 3}", "#0[1:]"), WANT("f32[]{102}"), AFTER("f32[3]{101 102 103}")),
    CASE_WITH(pt_198095_written_view_of_an_argument, write_view_return_base, .no_plan = true,
              IN("i32[3]{1 2 3}", "#0[1:2]"), WANT("i32[3]{2 8 6}"), AFTER("i32[3]{1 4 3}")),
    CASE(pt_198095_the_same_argument_twice, write_first_read_second, IN("i32[2]{1 2}", "#0"),
         WANT("i32[2]{4 6}"), AFTER("i32[2]{2 3}")),
    CASE(pt_198095_overlapping_arguments_only_read, read_both, IN("i32[4]{1 2 3 4}", "#0[3:4]"),
         WANT("i32[4]{4 8 12 16}")),
    CALLS(pt_198095_disjoint_then_same_then_overlapping, write_first_read_second,
          CALL(IN("i32[2]{1 2}", "i32[2]{10 20}"), WANT("i32[2]{12 23}"), AFTER("i32[2]{2 3}")),
          CALL(IN("i32[2]{1 2}", "#0"), WANT("i32[2]{4 6}"), AFTER("i32[2]{2 3}")),
          CALL(IN("i32[2]{1 2}", "#0[0:1]"), WANT("i32[2]{4 5}"), AFTER("i32[2]{2 3}")),
          CALL(IN("i32[2]{1 2}", "i32[2]{10 20}"), WANT("i32[2]{12 23}"), AFTER("i32[2]{2 3}"))),

    CASE_WITH(pt_97083_alias_over_a_break, alias_over_a_break, .breaks = true, IN("f32[3]{5 6 7}"),
              WANT("f32[]{2}"), AFTER("f32[3]{2 6 7}")),
    CASE_WITH(pt_185382_adam_in_a_loop, adam_in_a_loop, .breaks = true,
              IN("f64[2]{1 -2}", "f64[]{0}"),
              WANT("f64[2]{0.9960002269257634 -1.9960001131228111}"),
              AFTER("f64[2]{0.9960002269257634 -1.9960001131228111}", "f64[]{4}")),

    CASE(mlx_1234_equals_maximum_over_two_axes, equals_maximum, IN("f32[1,2,2,2,2,64]{0..*1024}"),
         WANT("bool[1,2,2,2,2,64]{0*320 1*64 0*64 1*64 0*320 1*64 0*64 1*64}")),
    CASE(mlx_950_chain_with_all_results, chain_of_sums, IN("i32[1]{1}"),
         WANT("i32[1]{63}", "i32[1]{2}", "i32[1]{4}", "i32[1]{8}", "i32[1]{16}", "i32[1]{32}")),
    CASE(mlx_950_six_results_summed, sum_of_six, IN("i32[1]{1}"),
         WANT("i32[1]{6}", "i32[1]{1}", "i32[1]{1}", "i32[1]{1}", "i32[1]{1}", "i32[1]{1}")),
    CALLS(tg_14689_output_fed_back, second_half_and_new,
          CALL(IN("i32[1048576]{0..*1048576}", "i32[524288]{1048576..*524288}"),
               WANT("i32[1048576]{524288..*1048576}")),
          CALL(IN("<0", "i32[524288]{7*524288}"), WANT("i32[1048576]{1048576..*524288 7*524288}")),
          CALL(IN("<0", "i32[524288]{9*524288}"), WANT("i32[1048576]{7*524288 9*524288}"))),
    CASE(tg_15698_pushed_onto_itself, push_in_place, IN("f32[5]{1..*5}", "f32[1]{9}"),
         WANT("f32[5]{4 5 9 9 9}"), AFTER("f32[5]{4 5 9 9 9}")),
    CASE(tg_15698_rows_pushed_onto_themselves, push_in_place,
         IN("i16[4,2]{1..*8}", "i16[1,2]{8 9}"), WANT("i16[4,2]{7 8 8 9 8 9 8 9}"),
         AFTER("i16[4,2]{7 8 8 9 8 9 8 9}")),
    CASE(tg_a53187eef7_disjoint_slices_assigned, slices_plus_one, IN("f32[]{1}"),
         WANT("f32[50]{1*50}")),
    CASE(ggml_999_buffers_of_other_sizes, buffers_of_other_sizes, IN("f32[2,3]{1..*6}"),
         WANT("f32[]{1452}", "f64[2,2]{20 38 47 92}")),
    CASE(ggml_1491_rms_norm_backward_in_place, rms_norm_backward,
         IN("f32[4]{1 0 0 0}", "f32[4]{1 0 0 0}"), WANT("f32[4]{8 0 0 0}"),
         AFTER("f32[4]{8 0 0 0}")),
};

CASES_MAIN(rows)
