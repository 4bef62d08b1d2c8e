/* The f32 products of backends/cuda/gemm.c on the fakes of the driver: bit for bit the chain that
 * the file names, for both tiles and every layout, eager, compiled and in a CUDA graph; and the
 * rule that chooses between this kernel and the library. With
 * ETCH_TEST_REAL_GPU=1 on a real GPU.
 * Labels: driver sanitizer long optimised. */
#include <etch/etch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etch_test.h"
#include "backends/cuda/gemm.h"
#include "cuda_fakes.h"

static void by_rule(void) { etch__cuda_gemm_force = GEMM_RULE; }
EACH_TEST(.after = by_rule)

/* ---- what the kernel is to compute ---- */

static float element(const etch_tensor *t, const float *data, int64_t i, int64_t j) {
    return data[i * etch_size(t, 1) + j];
}

static float chain(const etch_tensor *a, const float *x, const etch_tensor *b, const float *y,
                   int64_t row, int64_t col) {
    float slice[8] = {0}, sum;
    int64_t k = etch_size(a, 1), filled = (k + 63) / 64 * 64;
    for (int64_t i = 0; i < filled; i++) {
        float *acc = &slice[i / 8 % 8];
        *acc = i < k ? fmaf(element(a, x, row, i), element(b, y, i, col), *acc) : fmaf(0, 0, *acc);
    }
    sum = slice[0];
    for (int s = 1; s < 8; s++) sum += slice[s];
    return sum;
}

/* Of two matrices on the CPU, of any strides. */
static etch_tensor *expected(etch_tensor *a, etch_tensor *b) {
    a = etch_contiguous(a), b = etch_contiguous(b);
    int64_t m = etch_size(a, 0), n = etch_size(b, 1);
    etch_tensor *c = etch_zeros(ETCH_F32, ETCH_SHAPE(m, n));
    const float *x = etch_data(a), *y = etch_data(b);
    float *z = etch_data_mut(c);
    if (!x || !y || !z) fail_msg("%s", etch_last_error());
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) z[i * n + j] = chain(a, x, b, y, i, j);
    etch_data_end(a), etch_data_end(b), etch_data_end(c);
    return c;
}

static etch_tensor *numbers(uint64_t seed, etch_shape shape) {
    etch_manual_seed(seed);
    etch_tensor *t = etch_randn(ETCH_F32, shape);
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

static etch_tensor *moved(etch_tensor *t, etch_device device) {
    etch_tensor *m = etch_to_device(t, device);
    if (!m) fail_msg("%s", etch_last_error());
    return m;
}

static void same(etch_tensor *got, etch_tensor *want, const char *what) {
    if (!got) fail_msg("%s: %s", what, etch_last_error());
    if (!etch_bitwise_equal(moved(got, ETCH_CPU), want)) fail_msg("%s: other bits", what);
}

/* ---- layouts ---- */

/* The matrix of these elements (on the CPU) on the device in one of the layouts. */
enum { DENSE, TURNED, OFFSET, TURNED_OFFSET, EVERY_OTHER, LAYOUTS };
static const char *const layout_names[] = {"dense", "transposed", "offset", "transposed, offset",
                                           "every other"};

static etch_tensor *laid_out(etch_tensor *t, int layout) {
    int64_t rows = etch_size(t, 0), cols = etch_size(t, 1);
    if (layout == DENSE) return moved(t, gpu);
    if (layout == TURNED) return etch_t(moved(etch_contiguous(etch_t(t)), gpu));
    if (layout == TURNED_OFFSET) return etch_t(laid_out(etch_contiguous(etch_t(t)), OFFSET));
    int64_t step = layout == EVERY_OTHER ? 2 : 1;
    etch_tensor *room = etch_zeros(ETCH_F32, ETCH_SHAPE(rows + 1, step * cols + 3));
    room = moved(room, gpu);
    etch_tensor *part =
        etch_slice(etch_slice(room, 0, 1, rows + 1, 1), 1, 3, 3 + step * cols, step);
    if (!etch_copy_(part, moved(t, gpu))) fail_msg("%s", etch_last_error());
    return part;
}

static void check_layouts(int64_t m, int64_t n, int64_t k, int a_layout, int b_layout) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(1, ETCH_SHAPE(m, k)), *b = numbers(2, ETCH_SHAPE(k, n));
        etch_tensor *want = expected(a, b);
        etch_tensor *x = laid_out(a, a_layout), *y = laid_out(b, b_layout);
        char what[120];
        for (int tile = GEMM_LOW; tile <= GEMM_TALL; tile++) {
            etch__cuda_gemm_force = tile;
            snprintf(what, sizeof what, "%d x %d x %d, %s by %s, tile %d", (int)m, (int)n, (int)k,
                     layout_names[a_layout], layout_names[b_layout], tile);
            etch_device_stats_t before = etch_device_stats(gpu);
            same(etch_mm(x, y), want, what);
            assert_int_equal(etch_device_stats(gpu).launches, before.launches + 1);
            assert_int_equal(etch_device_stats(gpu).operand_copies, before.operand_copies);
        }
    }
}

TEST(every_layout) {
    for (int a = 0; a < LAYOUTS; a++)
        for (int b = 0; b < LAYOUTS; b++) {
            check_layouts(68, 36, 72, a, b);
            check_layouts(128, 64, 128, a, b); /* without edges */
        }
}

TEST(borders_of_tiles) {
    static const int64_t sizes[][3] = {{64, 32, 128}, {65, 33, 64},  {63, 31, 65}, {66, 1, 63},
                                       {1, 67, 9},    {32, 64, 127}, {70, 34, 1},  {96, 40, 200},
                                       {64, 32, 512}, {66, 33, 450}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        check_layouts(s[0], s[1], s[2], DENSE, DENSE);
        check_layouts(s[0], s[1], s[2], TURNED, TURNED);
        check_layouts(s[0], s[1], s[2], DENSE, TURNED);
    }
}

/* What is beyond K is no part of a product, even beside infinities and in rows that lie behind. */
TEST(zeros_beyond) {
    ETCH_SCOPE {
        etch_tensor *a = etch_full(ETCH_F32, ETCH_SHAPE(70, 9), INFINITY);
        etch_tensor *b = etch_full(ETCH_F32, ETCH_SHAPE(9, 40), 2.0);
        etch__cuda_gemm_force = GEMM_TALL;
        etch_tensor *room = moved(etch_full(ETCH_F32, ETCH_SHAPE(70, 16), NAN), gpu);
        etch_tensor *part = etch_slice(room, 1, 0, 9, 1);
        if (!etch_copy_(part, moved(a, gpu))) fail_msg("%s", etch_last_error());
        same(etch_mm(part, moved(b, gpu)), etch_full(ETCH_F32, ETCH_SHAPE(70, 40), INFINITY),
             "infinities");
    }
}

/* ---- operators ---- */

TEST(batches) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(3, ETCH_SHAPE(3, 66, 40)), *b = numbers(4, ETCH_SHAPE(3, 40, 34));
        etch_tensor *turned =
            etch_transpose(moved(etch_contiguous(etch_transpose(b, 1, 2)), gpu), 1, 2);
        etch_tensor *one = etch_expand(moved(etch_slice(a, 0, 1, 2, 1), gpu), ETCH_DIMS(3, 66, 40));
        etch__cuda_gemm_force = GEMM_LOW;
        etch_tensor *c = etch_bmm(moved(a, gpu), moved(b, gpu)),
                    *d = etch_bmm(moved(a, gpu), turned), *e = etch_bmm(one, turned);
        for (int i = 0; i < 3; i++) {
            etch_tensor *want = expected(etch_select(a, 0, i), etch_select(b, 0, i));
            same(etch_select(c, 0, i), want, "batch");
            same(etch_select(d, 0, i), want, "batch, transposed");
            same(etch_select(e, 0, i), expected(etch_select(a, 0, 1), etch_select(b, 0, i)),
                 "one for all");
        }
    }
}

TEST(with_addition) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(5, ETCH_SHAPE(66, 20)), *b = numbers(6, ETCH_SHAPE(20, 34)),
                    *row = numbers(7, ETCH_SHAPE(34));
        etch__cuda_gemm_force = GEMM_TALL;
        same(etch_addmm(moved(row, gpu), moved(a, gpu), moved(b, gpu)),
             etch_add(row, expected(a, b)), "addmm");
    }
}

TEST(vectors) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(8, ETCH_SHAPE(67, 70)), *v = numbers(9, ETCH_SHAPE(70));
        etch_tensor *want = expected(a, etch_view(v, ETCH_SHAPE(70, 1)));
        etch__cuda_gemm_force = GEMM_LOW;
        same(etch_mv(moved(a, gpu), moved(v, gpu)), etch_view(want, ETCH_SHAPE(67)), "mv");
    }
}

/* ---- compiled ---- */

static etch_tensor *layers(etch_tensor *x, etch_tensor *w) {
    etch_tensor *h = etch_relu(etch_add(etch_mm(x, w), x));
    return etch_mm(h, etch_t(w));
}

TEST(compiled) {
    etch__cuda_gemm_force = GEMM_TALL;
    ETCH_SCOPE {
        etch_tensor *x = numbers(10, ETCH_SHAPE(72, 72)), *w = numbers(11, ETCH_SHAPE(72, 72));
        etch_tensor *h = etch_relu(etch_add(expected(x, w), x)), *want = expected(h, etch_t(w));
        x = moved(x, gpu), w = moved(w, gpu);
        same(layers(x, w), want, "eager");
        etch_function *f = etch_compile(layers),
                      *g = etch_compile(layers, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        for (int i = 0; i < 4; i++) {
            same(etch_call(f, x, w), want, "compiled");
            same(etch_call(g, x, w), want, "graph");
        }
        assert_true(etch_device_stats(gpu).graph_launches > 0);
        etch_function_free(f);
        etch_function_free(g);
    }
}

/* ---- the rule ---- */

static bool ruled(int64_t batch, int64_t m, int64_t n, int64_t k) {
    const cuda_device d = {.multiprocessors = 132, .shared = 232448};
    const gemm g = {.batch = batch, .m = m, .n = n, .k = k};
    return etch__cuda_gemm_tile(&d, &g) != GEMM_NEVER;
}

TEST(rule) {
    assert_true(ruled(1, 512, 512, 512));
    assert_true(ruled(1, 96, 96, 96));
    assert_true(ruled(1, 256, 256, 256));
    assert_true(ruled(4, 128, 128, 128));
    assert_false(ruled(1, 2048, 2048, 512));     /* many tiles */
    assert_false(ruled(1, 512, 512, 8192));      /* long chains */
    assert_false(ruled(1, 64, 128, 1024));       /* and few tiles */
    assert_false(ruled(1, 1, 512, 512));         /* a vector */
    assert_false(ruled(1000, 64, 128, 64));      /* a large batch */
    assert_false(ruled(1ll << 40, 512, 512, 8)); /* no overflow */
}

/* The fake's device has two multiprocessors, so this one is ruled in by itself. */
TEST(what_the_rule_does) {
    if (real_gpu) skip();
    ETCH_SCOPE {
        etch_tensor *a = numbers(12, ETCH_SHAPE(32, 66)), *b = numbers(13, ETCH_SHAPE(66, 40));
        etch_tensor *x = moved(a, gpu), *y = moved(b, gpu);
        int64_t before = etch_device_stats(gpu).launches;
        same(etch_mm(x, y), expected(a, b), "by rule");
        assert_int_equal(etch_device_stats(gpu).launches, before + 1);
        assert_int_equal(etch_set_matmul_precision(ETCH_HIGH), ETCH_OK);
        assert_non_null(etch_mm(x, y));
        assert_int_equal(etch_set_matmul_precision(ETCH_HIGHEST), ETCH_OK);
        assert_int_equal(etch_device_stats(gpu).launches, before + 1); /* TF32: the library */
        assert_non_null(etch_mm(etch_to(x, ETCH_F64), etch_to(y, ETCH_F64)));
        etch__cuda_gemm_force = GEMM_NEVER;
        before = etch_device_stats(gpu).launches;
        assert_non_null(etch_mm(x, y));
        assert_int_equal(etch_device_stats(gpu).launches, before);
    }
}

int main(int argc, char **argv) { return use_fakes() ? run_suite(argc, argv) : 1; }
