/* Reports about many arguments, long chains and large extents. See cases_support.h.
 * Labels: device long. */
#include "cases_support.h"

/* Pairwise sums of 64 arguments in six levels. */
static void tree_of_sums(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *level[64];
    for (int i = 0; i < 64; i++) level[i] = in[i];
    for (int n = 32; n >= 1; n /= 2)
        for (int i = 0; i < n; i++) level[i] = etch_add(level[2 * i], level[2 * i + 1]);
    out[0] = level[0];
}

/* The same with all sums of the first level as results. */
static void tree_with_first_level(etch_tensor *const *in, etch_tensor **out) {
    tree_of_sums(in, out);
    for (int i = 0; i < 32; i++) out[i + 1] = etch_add(in[2 * i], in[2 * i + 1]);
}

/* t3 += sum(t1, 1); t2 += t3, a thousand times */
static void thousand_rounds(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *t2 = in[1], *t3 = in[1];
    for (int i = 0; i < 1000; i++) {
        t3 = etch_add(t3, etch_sum_dim(in[0], ETCH_DIMS(1), false));
        t2 = etch_add(t2, t3);
    }
    out[0] = t2;
}

static void chain_of_2000(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *y = in[0];
    for (int i = 0; i < 1000; i++) y = etch_sub_scalar(etch_add(y, in[0]), 1);
    out[0] = y;
}

/* One kernel would read far more arguments than a kernel may have, and write as many. */
static void sixty_products(etch_tensor *const *in, etch_tensor **out) {
    for (int i = 0; i < 60; i++) out[i] = etch_mul(in[i], in[59 - i]);
}

static void long_broadcast(etch_tensor *const *in, etch_tensor **out) {
    int64_t n = etch_size(in[1], 1);
    etch_tensor *a = etch_expand(in[0], ETCH_SHAPE(2, n));
    etch_tensor *b = etch_expand(in[1], ETCH_SHAPE(2, n));
    out[0] = etch_add(a, b);
}

static void long_broadcast_turned(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum_dim(etch_add(etch_t(in[0]), etch_t(in[1])), ETCH_DIMS(0), false);
}

/* A transposed copy whose tiles threads share, and sums down its columns. */
static void transposed_copy(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_sum_dim(etch_contiguous(etch_t(in[0])), ETCH_DIMS(1), false);
    out[1] = etch_select(etch_clone(etch_t(in[0])), 0, 1);
}

/* Scans whose parts threads share. */
static void running_sums(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_cumsum(in[0], 0);
    out[1] = etch_cumsum(etch_t(in[1]), 1);
}

static void eight_dimensions(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *p = etch_permute(in[0], ETCH_DIMS(7, 6, 5, 4, 3, 2, 1, 0));
    etch_tensor *sum = etch_add(p, in[0]);
    out[0] = etch_sum_dim(sum, ETCH_DIMS(1, 3, 5, 7), false);
    out[1] = etch_sum_dim(p, ETCH_DIMS(0, 2, 4, 6), false);
}

#define X8(x) x, x, x, x, x, x, x, x
#define X32(x) X8(x), X8(x), X8(x), X8(x)
#define X60(x) X32(x), X8(x), X8(x), X8(x), x, x, x, x

static const case_row rows[] = {
    CASE(mlx_c707b2b0a_sixty_four_arguments, tree_of_sums,
         IN(X32("i32[2]{1 2}"), X32("i32[2]{1 2}")), WANT("i32[2]{64 128}")),
    CASE(mlx_c707b2b0a_first_level_returned, tree_with_first_level,
         IN(X32("f32[2]{1 2}"), X32("f32[2]{1 2}")), WANT("f32[2]{64 128}", X32("f32[2]{2 4}"))),
    CASE(mlx_c707b2b0a_sixty_results, sixty_products, IN(X60("i64[3]{2 3 -4}")),
         WANT(X60("i64[3]{4 9 16}"))),
    CASE(af_1646_thousand_rounds, thousand_rounds, IN("f32[2,3]{1*6}", "f32[2]{0 0}"),
         WANT("f32[2]{1501500 1501500}")),
    CASE(af_1646_chain_of_two_thousand, chain_of_2000, IN("i32[3]{1 2 3}"),
         WANT("i32[3]{1 1002 2003}")),
    CASE(af_a0a9a4f42_rows_of_three_million, long_broadcast,
         IN("i32[2,1]{0 1}", "i32[1,3145728]{0..*3145728}"),
         WANT("i32[2,3145728]{0..*3145728 1..*3145728}")),
    CASE(af_2348_three_million_rows, long_broadcast_turned,
         IN("i32[2,1]{0 1}", "i32[1,3145728]{0..*3145728}"),
         WANT("i64[2]{4947800752128 4947803897856}")),
    CASE(ggml_b1712969_transposed_copy, transposed_copy, IN("i32[1000,70]{0..*70000}"),
         WANT("i64[70]{34965000..*70+1000}", "i32[1000]{1..*1000+70}")),
    CASE(ggml_391d7449_running_sums, running_sums, IN("i32[100000]{1*100000}", "i64[300,2]{2*600}"),
         WANT("i64[100000]{1..*100000}", "i64[2,300]{2..*300+2 2..*300+2}")),
    CASE(af_a0a9a4f42_eight_dimensions, eight_dimensions, IN("i16[2,1,2,1,2,1,2,1]{0..*16}"),
         WANT("i64[2,2,2,2]{120..*16+16}", "i64[2,2,2,2]{0 8 4 12 2 10 6 14 1 9 5 13 3 11 7 15}")),
};

CASES_MAIN(rows)
