/* Weights of 8 and 4 bits: what is packed and unpacked, products against f64 of the unpacked
 * weight within the bound that etch/nn.h states, in every instruction set with the same bits,
 * compiled beside eager; numbers that are none; and what is refused.
 * Labels: quick optimised. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <etch/etch.h>
#include <etch/nn.h>

#include "backends/cpu/table.h"
#include "etch_test.h"

#define S ETCH_SHAPE
#define COUNT(a) (sizeof(a) / sizeof *(a))

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

typedef struct size_case {
    int64_t m, n, k, group;
} size_case;

static const size_case sizes[] = {
    {1, 16, 64, 0},     {1, 1, 1, 0},      {3, 17, 5, 0},     {5, 40, 256, 32},
    {2, 33, 192, 64},   {9, 16, 384, 128}, {4, 5, 400, 200},  {1, 31, 1031, 0},
    {7, 48, 24, 8},     {0, 3, 8, 0},      {2, 0, 8, 0},      {2, 3, 0, 0},
    {1, 100, 4096, 64}, {6, 15, 129, 0},   {1, 130, 256, 32}, {3, 64, 256, 128},
};

/* Both kinds of scales. */
static const etch_dtype kinds[] = {ETCH_F32, ETCH_BF16};

/* The first column is large, so that others become few steps. */
static etch_tensor *weight_of(const size_case *c) {
    etch_tensor *w = must(etch_randn(ETCH_F32, S(c->n, c->k)));
    if (c->k > 8) etch_mul_scalar_(etch_slice(w, 1, 0, 1, 1), 4);
    return w;
}

static float f32_at(const etch_tensor *t, int64_t i) {
    return ((const float *)etch_data((etch_tensor *)t))[i];
}

/* ---- packing ---- */

static int64_t groups_of(const size_case *c) { return c->group && c->k ? c->k / c->group : 1; }

/* In f32, and what a scale is of the largest value in a group. */
static etch_tensor *wide_scales(etch_tensor *scales) { return must(etch_to(scales, ETCH_F32)); }

static float scale_of(float largest, double most, etch_dtype kind) {
    float scale = largest / (float)most;
    uint32_t bits;
    if (kind == ETCH_F32) return scale;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&scale, &bits, sizeof bits);
    return scale;
}

static void check_packed(const size_case *c, int bits, etch_tensor *w, etch_dtype kind) {
    etch_tensor *q, *scales;
    assert_int_equal(etch_quantize_with(w, bits, c->group, kind, &q, &scales), ETCH_OK);
    assert_int_equal(etch_dtype_of(scales), kind);
    assert_int_equal(etch_dtype_of(q), bits == 8 ? ETCH_I8 : ETCH_U8);
    assert_int_equal(etch_size(scales, 0), groups_of(c));
    etch_tensor *back = must(etch_dequantize_weight(q, scales, c->k));
    scales = wide_scales(scales);
    double most = bits == 8 ? 127 : 7;
    for (int64_t row = 0; row < c->n; row++)
        for (int64_t k = 0; k < c->k; k++) {
            int64_t n = c->k / groups_of(c), g = k / n;
            float largest = 0;
            for (int64_t i = 0; i < n; i++)
                largest = fmaxf(largest, fabsf(f32_at(w, row * c->k + g * n + i)));
            float scale = scale_of(largest, most, kind);
            assert_true(f32_at(scales, g * c->n + row) == scale);
            double v = f32_at(w, row * c->k + k), got = f32_at(back, row * c->k + k);
            assert_true(fabs(got - v) <= scale / 2.0 * (1 + 0x1p-20));
            double steps = scale > 0 ? nearbyint(got / scale) : 0;
            assert_true(fabs(steps) <= most && got == (float)(steps * scale));
        }
}

TEST(packed_and_unpacked) {
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int bits = 4; bits <= 8; bits += 4)
            for (size_t k = 0; k < COUNT(kinds); k++)
                ETCH_SCOPE { check_packed(&sizes[i], bits, weight_of(&sizes[i]), kinds[k]); }
}

/* 4 bits in groups of 32 with scales of bf16 are 4.5 bits a weight. */
TEST(scales_of_bf16_are_half_of_the_bytes) {
    ETCH_SCOPE {
        etch_tensor *w = must(etch_randn(ETCH_F32, S(64, 256))), *q, *scales;
        assert_int_equal(etch_quantize_with(w, 4, 32, ETCH_BF16, &q, &scales), ETCH_OK);
        int64_t bytes = etch_numel(q) + 2 * etch_numel(scales);
        assert_int_equal(etch_dtype_of(scales), ETCH_BF16);
        assert_int_equal(bytes * 16, 9 * etch_numel(w));
    }
}

/* Two places by hand: 8 bits [columns / 4][16][4]; 4 bits in low and high nibbles, plus 8. */
TEST(where_a_number_lies) {
    ETCH_SCOPE {
        etch_tensor *w = must(etch_zeros(ETCH_F32, S(18, 16))), *q, *scales;
        etch_fill_(etch_select(etch_select(w, 0, 17), 0, 6), 2);
        assert_int_equal(etch_quantize(w, 8, 0, &q, &scales), ETCH_OK);
        assert_int_equal(etch_numel(q), 2 * 4 * 64);
        const int8_t *bytes = etch_data(q);
        for (int i = 0; i < 512; i++)
            assert_int_equal(bytes[i], i == ((1 * 4 + 1) * 16 + 1) * 4 + 2 ? 127 : 0);
        assert_int_equal(etch_quantize(w, 4, 8, &q, &scales), ETCH_OK);
        const uint8_t *pairs = etch_data(q);
        for (int i = 0; i < 256; i++)
            assert_int_equal(pairs[i], i == ((1 * 2 + 0) * 16 + 1) * 4 + 2 ? 0xf8 : 0x88);
    }
}

/* ---- products ---- */

/* What the header allows for row r of x and row n of the weight; *y: the exact result. */
static double bound_of(const size_case *c, const float *x, const float *w, double *y) {
    double bound = 0, sum = 0, products = 0;
    int64_t group = c->group && c->k ? c->group : c->k, blocks = 0;
    for (int64_t at = 0; at < c->k; blocks++) {
        int64_t left = group - at % group, n = left < 128 ? left : 128;
        double largest = 0, weights = 0;
        for (int64_t k = at; k < at + n; k++) {
            largest = fmax(largest, fabs(x[k])), weights += fabs(w[k]);
            sum += (double)x[k] * w[k], products += fabs((double)x[k] * w[k]);
        }
        bound += ((largest / 127 + 0x1p-149) / 2 + 0x1p-22 * largest) * weights;
        at += n;
    }
    *y = sum;
    return bound + (double)blocks * (0x1p-22 * products + 0x1p-149);
}

static double rounding_of(etch_dtype d) {
    return d == ETCH_BF16 ? 0x1p-8 : d == ETCH_F16 ? 0x1p-11 : 0x1p-24;
}

static void check_product(const size_case *c, int bits, etch_dtype dtype, etch_dtype kind) {
    etch_tensor *q, *scales, *x = must(etch_to(etch_randn(ETCH_F32, S(c->m, c->k)), dtype));
    assert_int_equal(etch_quantize_with(weight_of(c), bits, c->group, kind, &q, &scales), ETCH_OK);
    etch_tensor *y = must(etch_linear_q(x, q, scales, ETCH_NONE));
    assert_int_equal(etch_dtype_of(y), dtype);
    const float *w = etch_data(must(etch_dequantize_weight(q, scales, c->k)));
    const float *wide = etch_data(must(etch_to(x, ETCH_F32)));
    const float *got = etch_data(must(etch_to(y, ETCH_F32)));
    for (int64_t i = 0; i < c->m * c->n; i++) {
        double exact, unit = dtype == ETCH_F16 ? 0x1p-25 : 0;
        double bound = bound_of(c, wide + i / c->n * c->k, w + i % c->n * c->k, &exact);
        bound += (fabs(exact) + bound) * rounding_of(dtype) + unit;
        if (!(fabs(got[i] - exact) <= bound))
            fail_msg("%d bits, %lld x %lld x %lld in %lld: %g for %g, bound %g", bits,
                     (long long)c->m, (long long)c->n, (long long)c->k, (long long)c->group,
                     (double)got[i], exact, bound);
    }
}

TEST(products_are_within_the_bound) {
    const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F16};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (int bits = 4; bits <= 8; bits += 4)
                for (size_t k = 0; k < COUNT(kinds); k++)
                    ETCH_SCOPE { check_product(&sizes[i], bits, dtypes[d], kinds[k]); }
}

/* An f64 x is multiplied as it is. */
TEST(of_f64_nothing_is_rounded) {
    for (size_t i = 0; i < 2 * COUNT(sizes); i++)
        ETCH_SCOPE {
            const size_case *c = &sizes[i / 2];
            etch_tensor *x = must(etch_randn(ETCH_F64, S(c->m, c->k))), *q, *scales;
            assert_int_equal(
                etch_quantize_with(weight_of(c), 8, c->group, kinds[i % 2], &q, &scales), ETCH_OK);
            etch_tensor *w = must(etch_to(etch_dequantize_weight(q, scales, c->k), ETCH_F64));
            etch_tensor *want = must(etch_linear(x, w, ETCH_NONE));
            etch_tensor *got = must(etch_linear_q(x, q, scales, ETCH_NONE));
            assert_true(etch_allclose(got, want, 1e-12, 1e-12, false));
        }
}

/* ---- the same bits, however it is computed ---- */

/* Some rows by each set's functions, with what a kernel gives them. */
static void multiply(const quantized_table *t, bool vnni, const quantized_rows *rows, float *y) {
    quantized_rows q = *rows;
    q.y = y;
    (vnni ? t->rows_vnni : t->rows)(&q);
}

/* Scales of f32, or the same of bf16. */
static const void *some_scales(bool halves) {
    static float wide[128 * 64];
    static uint16_t upper[COUNT(wide)];
    srand(5);
    for (size_t i = 0; i < COUNT(wide); i++) {
        float scale = (float)(rand() % 1000 - 500) / 777;
        uint32_t bits;
        memcpy(&bits, &scale, sizeof bits);
        upper[i] = (uint16_t)(bits >> 16), bits &= halves ? 0xffff0000 : 0xffffffff;
        memcpy(&wide[i], &bits, sizeof bits);
    }
    return halves ? (const void *)upper : wide;
}

static void check_kind(bool nibbles, bool halves, int64_t columns, int64_t group, int64_t count,
                       int64_t rows) {
    enum { MOST = 1024, ROWS = 9 };
    static uint8_t w[4 * MOST * 16];
    static int8_t x[ROWS * MOST];
    static float wide[MOST], x_scales[ROWS * MOST], y[4][ROWS * 64];
    static int32_t x_sums[ROWS * MOST];
    for (size_t i = 0; i < sizeof w; i++) w[i] = (uint8_t)rand();
    int64_t blocks = columns / group * ((group + 127) / 128), pitch = (columns + 7) / 8 * 8;
    for (int set = 0; set < CPU_ISA_COUNT; set++) {
        const quantized_table *t = etch__isa_tables[set].quantized;
        if ((cpu_isa)set > etch__cpu_isa()) continue;
        srand(7);
        for (int64_t r = 0; r < count; r++)
            for (int64_t b = 0, at = 0; at < columns; b++) {
                int64_t left = group - at % group, n = left < 128 ? left : 128, i = r * blocks + b;
                int8_t *q = x + r * pitch + at;
                for (int64_t k = 0; k < n; k++)
                    wide[k] = (float)(rand() - RAND_MAX / 2) * (b % 3 == 1 ? 1e-42f : 1e-9f);
                if (b % 5 == 4) wide[n / 2] = INFINITY;
                x_scales[i] = t->block(wide, n, q, &x_sums[i]);
                if (isnan(x_scales[i])) x_scales[i] = 0.25f; /* the sums count here */
                at += n;
            }
        quantized_rows q = {.w = w,
                            .w_pitch = MOST * 16,
                            .scales = some_scales(halves),
                            .x = x,
                            .x_scales = x_scales,
                            .x_sums = x_sums,
                            .pitch = rows,
                            .rows = rows,
                            .columns = columns,
                            .group = group,
                            .count = count,
                            .x_pitch = pitch,
                            .blocks = blocks,
                            .y_pitch = 64,
                            .nibbles = nibbles,
                            .halves = halves};
        multiply(t, false, &q, y[set]);
        for (int64_t r = 0; r < count; r++)
            assert_memory_equal(y[set] + r * 64, y[0] + r * 64, sizeof(float) * (size_t)rows);
        if (!t->rows_vnni || !__builtin_cpu_supports("avx512vnni")) continue;
        multiply(t, true, &q, y[3]);
        for (int64_t r = 0; r < count; r++)
            assert_memory_equal(y[3] + r * 64, y[0] + r * 64, sizeof(float) * (size_t)rows);
    }
}

static void check_sets(bool nibbles, int64_t columns, int64_t group, int64_t count, int64_t rows) {
    check_kind(nibbles, false, columns, group, count, rows);
    check_kind(nibbles, true, columns, group, count, rows);
}

TEST(every_set_gives_the_same_bits) {
    for (int nibbles = 0; nibbles < 2; nibbles++)
        for (int64_t count = 1; count <= 9; count += 2) {
            check_sets(nibbles, 1024, 1024, count, 16);
            check_sets(nibbles, 1024, 64, count, 13);
            check_sets(nibbles, 512, 32, count, 64);
            check_sets(nibbles, 512, 64, count, 64);
            check_sets(nibbles, 512, 128, count, 64);
            check_sets(nibbles, 96, 32, count, 63);
            check_sets(nibbles, 512, 256, count, 41);
            check_sets(nibbles, 400, 200, count, 1);
            check_sets(nibbles, 8, 8, count, 16);
        }
    check_sets(false, 13, 13, 3, 16);
    check_sets(true, 13, 13, 3, 16);
}

static etch_tensor *body(etch_tensor *x, etch_tensor *q, etch_tensor *scales, etch_tensor *bias) {
    etch_tensor *y = etch_linear_q(etch_mul_scalar(x, 1.5), q, scales, bias);
    return y ? etch_relu(y) : NULL;
}

static void check_compiled(const size_case *c, int bits, etch_dtype dtype, etch_dtype kind,
                           etch_function *f) {
    etch_tensor *q, *scales, *x = must(etch_to(etch_randn(ETCH_F32, S(c->m, c->k)), dtype));
    etch_tensor *bias = must(etch_to(etch_randn(ETCH_F32, S(c->n)), dtype));
    assert_int_equal(etch_quantize_with(weight_of(c), bits, c->group, kind, &q, &scales), ETCH_OK);
    etch_tensor *eager = must(body(x, q, scales, bias));
    for (int threads = 1; threads <= 2; threads++) {
        assert_int_equal(etch_set_num_threads(threads), ETCH_OK);
        for (int call = 0; call < 2; call++)
            assert_true(etch_bitwise_equal(must(etch_call(f, x, q, scales, bias)), eager));
        assert_true(etch_bitwise_equal(must(body(x, q, scales, bias)), eager));
    }
}

TEST(compiled_equals_eager) {
    const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F64};
    int before = etch_num_threads();
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (int bits = 4; bits <= 8; bits += 4) {
            etch_function *f = etch_compile(body, .fullgraph = true, .recompile_limit = 64);
            assert_non_null(f);
            for (size_t i = 0; i < 2 * COUNT(sizes); i++)
                ETCH_SCOPE { check_compiled(&sizes[i / 2], bits, dtypes[d], kinds[i % 2], f); }
            etch_function_free(f);
        }
    etch_set_num_threads(before);
}

/* Rows do not depend on their neighbours, nor on where operands lie. */
TEST(layouts_and_rows) {
    ETCH_SCOPE {
        const size_case c = {7, 37, 256, 64};
        etch_tensor *x = must(etch_randn(ETCH_F32, S(c.m, c.k))), *q, *scales;
        assert_int_equal(etch_quantize(weight_of(&c), 4, c.group, &q, &scales), ETCH_OK);
        etch_tensor *y = must(etch_linear_q(x, q, scales, ETCH_NONE));
        etch_tensor *turned = must(etch_t(etch_contiguous(etch_t(x))));
        etch_tensor *other_scales = must(etch_t(etch_contiguous(etch_t(scales))));
        etch_tensor *other_q = must(etch_transpose(etch_contiguous(etch_transpose(q, 0, 2)), 0, 2));
        assert_true(
            etch_bitwise_equal(must(etch_linear_q(turned, other_q, other_scales, ETCH_NONE)), y));
        for (int64_t r = 0; r < c.m; r++) {
            etch_tensor *row = must(etch_linear_q(etch_select(x, 0, r), q, scales, ETCH_NONE));
            assert_int_equal(etch_ndim(row), 1);
            assert_true(etch_bitwise_equal(row, must(etch_select(y, 0, r))));
        }
        etch_tensor *deep = must(etch_view(x, S(7, 1, 1, 256)));
        deep = must(etch_linear_q(deep, q, scales, ETCH_NONE));
        assert_true(etch_bitwise_equal(must(etch_view(deep, S(7, 37))), y));
    }
}

/* ---- numbers that are none, and tiny ones ---- */

TEST(nan_and_infinity_make_their_rows_nan) {
    ETCH_SCOPE {
        etch_tensor *w = must(etch_ones(ETCH_F32, S(3, 16))), *q, *scales;
        etch_tensor *x = must(etch_ones(ETCH_F32, S(3, 16)));
        etch_fill_(etch_select(etch_select(w, 0, 1), 0, 3), NAN);
        etch_fill_(etch_select(etch_select(x, 0, 0), 0, 9), INFINITY);
        etch_fill_(etch_select(etch_select(x, 0, 2), 0, 0), NAN);
        for (int bits = 4; bits <= 8; bits += 4) {
            assert_int_equal(etch_quantize(w, bits, 8, &q, &scales), ETCH_OK);
            etch_tensor *y = must(etch_linear_q(x, q, scales, ETCH_NONE));
            for (int i = 0; i < 9; i++) {
                bool none = i / 3 != 1 || i % 3 == 1;
                float v = f32_at(y, i);
                assert_true(none ? isnan(v) : fabsf(v - 16) < 1e-5f);
            }
        }
    }
}

TEST(tiny_numbers) {
    const float tiny[] = {1e-31f, 1e-38f, FLT_MIN, 1e-40f, 0x1p-149f, 0};
    for (size_t t = 0; t < COUNT(tiny); t++)
        ETCH_SCOPE {
            etch_tensor *w = must(etch_full(ETCH_F32, S(2, 8), 3.0)), *q, *scales;
            etch_tensor *x = must(etch_full(ETCH_F32, S(1, 8), tiny[t]));
            assert_int_equal(etch_quantize(w, 8, 0, &q, &scales), ETCH_OK);
            float y = f32_at(must(etch_linear_q(x, q, scales, ETCH_NONE)), 1);
            double scale = tiny[t] / 127.0 + 0x1p-149, w_sum = 24;
            assert_true(fabs(y - w_sum * tiny[t]) <=
                        (scale / 2 + 0x1p-20 * tiny[t]) * w_sum + 0x1p-149);
            etch_tensor *small = must(etch_full(ETCH_F32, S(2, 8), tiny[t]));
            assert_int_equal(etch_quantize(small, 4, 0, &q, &scales), ETCH_OK);
            float back = f32_at(must(etch_dequantize_weight(q, scales, 8)), 3);
            assert_true(fabs(back - (double)tiny[t]) <= (tiny[t] / 7.0 + 0x1p-149) / 2);
        }
}

/* What a scale of f16 could not hold stays what it is; below the normal numbers there is less. */
TEST(scales_of_bf16_hold_every_size) {
    const float factors[] = {1e6f, 1e-9f, 1e38f, 1e-36f, 1e-40f, 0x1p-149f};
    for (size_t i = 0; i < COUNT(factors); i++)
        for (int bits = 4; bits <= 8; bits += 4)
            ETCH_SCOPE {
                etch_tensor *w = must(etch_rand(ETCH_F32, S(3, 64))), *q, *scales;
                w = must(etch_mul_scalar(w, (double)factors[i]));
                assert_int_equal(etch_quantize_with(w, bits, 32, ETCH_BF16, &q, &scales), ETCH_OK);
                etch_tensor *back = must(etch_dequantize_weight(q, scales, 64));
                scales = wide_scales(scales);
                for (int64_t k = 0; k < 3 * 64; k++) {
                    double scale = f32_at(scales, k % 64 / 32 * 3 + k / 64);
                    double error = fabs((double)f32_at(back, k) - f32_at(w, k));
                    assert_true(isfinite(scale) && (scale > 0 || factors[i] < 1e-38f));
                    assert_true(error <= scale / 2 * (1 + 0x1p-20) + 0x1p-127);
                    assert_true(scale < 0x1p-126 || error <= scale / 2 * (1 + 0x1p-20) + 0x1p-149);
                }
            }
}

/* ---- gradients ---- */

static void check_gradient(etch_dtype kind) {
    ETCH_SCOPE {
        etch_tensor *w = must(etch_randn(ETCH_F32, S(5, 24))), *q, *scales;
        etch_tensor *x = must(etch_randn(ETCH_F32, S(3, 24))),
                    *g = must(etch_randn(ETCH_F32, S(3, 5)));
        assert_int_equal(etch_quantize_with(w, 8, 8, kind, &q, &scales), ETCH_OK);
        etch_requires_grad_(x, true);
        etch_requires_grad_(scales, true); /* gets none */
        etch_tensor *y = must(etch_linear_q(x, q, scales, ETCH_NONE));
        assert_int_equal(etch_backward(must(etch_sum(must(etch_mul(y, g))))), ETCH_OK);
        etch_tensor *want = must(etch_mm(g, etch_dequantize_weight(q, scales, 24)));
        assert_true(etch_allclose(must(etch_grad_of(x)), want, 1e-5, 1e-6, false));
        assert_null(etch_grad_of(scales));
    }
}

TEST(the_gradient_is_that_of_the_numbers) {
    for (size_t k = 0; k < COUNT(kinds); k++) check_gradient(kinds[k]);
}

/* ---- what is refused ---- */

#define REFUSED(expression, status, text)                                                          \
    do {                                                                                           \
        assert_true(!(expression));                                                                \
        ASSERT_REFUSED(status, text);                                                              \
    } while (0)

TEST(bad_inputs_are_refused) {
    ETCH_SCOPE {
        etch_tensor *w = must(etch_ones(ETCH_F32, S(4, 64))), *q, *scales;
        REFUSED(etch_quantize(w, 5, 0, &q, &scales) == ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                "8 or 4 bits, got 5");
        REFUSED(etch_quantize(w, 4, 48, &q, &scales) == ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                "divides the 64 columns");
        REFUSED(etch_quantize(w, 4, 4, &q, &scales) == ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                "multiple of 8");
        REFUSED(etch_quantize(w, 4, -8, &q, &scales) == ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                "got -8");
        REFUSED(etch_quantize(etch_to(w, ETCH_I32), 8, 0, &q, &scales) == ETCH_OK, ETCH_ERR_DTYPE,
                "f32, bf16 or f16, got i32");
        REFUSED(etch_quantize(etch_view(w, S(256)), 8, 0, &q, &scales) == ETCH_OK, ETCH_ERR_SHAPE,
                "[out, in]");
        REFUSED(etch_quantize(NULL, 8, 0, &q, &scales) == ETCH_OK, ETCH_ERR_NULL, "a weight");
        REFUSED(etch_quantize(w, 8, 0, NULL, &scales) == ETCH_OK, ETCH_ERR_NULL, "places");
        REFUSED(etch_quantize_with(w, 4, 32, ETCH_F16, &q, &scales) == ETCH_OK, ETCH_ERR_DTYPE,
                "scales of f32 or bf16, got f16");
        REFUSED(etch_quantize_weight(w, etch_ones(ETCH_F16, S(1, 4)), 8), ETCH_ERR_DTYPE,
                "scales of f32 or bf16");
        assert_int_equal(etch_quantize(w, 4, 32, &q, &scales), ETCH_OK);
        etch_tensor *x = must(etch_ones(ETCH_F32, S(2, 64)));
        REFUSED(etch_linear_q(etch_ones(ETCH_F32, S(2, 32)), q, scales, ETCH_NONE), ETCH_ERR_SHAPE,
                "packed weight [1, 4, 16, 4]");
        REFUSED(etch_linear_q(etch_ones(ETCH_F32, S(2, 65)), q, scales, ETCH_NONE), ETCH_ERR_SHAPE,
                "multiple of 8 among 65 columns");
        REFUSED(etch_linear_q(etch_ones(ETCH_I32, S(2, 64)), q, scales, ETCH_NONE), ETCH_ERR_DTYPE,
                "floating point, got i32");
        REFUSED(etch_linear_q(x, w, scales, ETCH_NONE), ETCH_ERR_DTYPE, "i8 (8 bits) or u8");
        REFUSED(etch_linear_q(x, q, etch_to(scales, ETCH_F16), ETCH_NONE), ETCH_ERR_DTYPE,
                "scales of f32 or bf16");
        REFUSED(etch_linear_q(x, etch_to(q, ETCH_I8), scales, ETCH_NONE), ETCH_ERR_SHAPE,
                "packed weight [1, 16, 16, 4]");
        REFUSED(etch_linear_q(etch_ones(ETCH_F32, S()), q, scales, ETCH_NONE), ETCH_ERR_SHAPE,
                "[..., in]");
        REFUSED(etch_linear_q(x, q, scales, etch_ones(ETCH_F32, S(5))), ETCH_ERR_SHAPE, "a bias");
        REFUSED(etch_linear_q(x, q, scales, etch_ones(ETCH_BF16, S(4))), ETCH_ERR_DTYPE,
                "a bias of f32");
        REFUSED(etch_dequantize_weight(q, scales, -1), ETCH_ERR_INVALID_ARGUMENT, "at least 0");
    }
}
