/* Initialisations by name: bounds, moments and structure of what they draw, over the floating
 * dtypes; what they refuse.
 * Labels: quick. */
#include "nn_support.h"

enum { OUT = 40, IN = 50, N = OUT * IN };

/* Mean and standard deviation of the elements, and the ends. */
typedef struct moments {
    double mean, std, low, high;
} moments;

static moments moments_of(etch_tensor *t) {
    const double *v = values(t), n = (double)etch_numel(t);
    moments m = {.low = INFINITY, .high = -INFINITY};
    for (int i = 0; i < etch_numel(t); i++) m.mean += v[i] / n;
    for (int i = 0; i < etch_numel(t); i++) {
        m.std += pow(v[i] - m.mean, 2) / n;
        m.low = fmin(m.low, v[i]), m.high = fmax(m.high, v[i]);
    }
    m.std = sqrt(m.std);
    return m;
}

/* Of 2000 numbers: five standard errors of the mean, and 10 % of the deviation. */
static void is_drawn(etch_tensor *t, double mean, double std) {
    moments m = moments_of(t);
    if (fabs(m.mean - mean) > 5 * std / sqrt(N) || fabs(m.std / std - 1) > 0.1)
        fail_msg("expected %g +- %g, got %g +- %g", mean, std, m.mean, m.std);
}

/* Also: within the bounds, and near to both. */
static void is_uniform(etch_tensor *t, double low, double high) {
    moments m = moments_of(t);
    double e = epsilon_of(etch_dtype_of(t)) * (fabs(low) + fabs(high));
    is_drawn(t, (low + high) / 2, (high - low) / sqrt(12));
    assert_true(m.low >= low - e && m.high <= high + e);
    assert_true(m.low < low + 0.01 * (high - low) && m.high > high - 0.01 * (high - low));
}

#define INIT(t, ...) assert_int_equal(etch_nn_init(t, __VA_ARGS__), ETCH_OK)

TEST(constants) {
    ETCH_SCOPE {
        etch_tensor *t = must(etch_randn(ETCH_BF16, ETCH_SHAPE(3)));
        INIT(t, "ones");
        near_values(t, (double[]){1, 1, 1}, 0);
        INIT(t, "constant", .value = -2.5);
        near_values(t, (double[]){-2.5, -2.5, -2.5}, 0);
        INIT(t, "zeros");
        near_values(t, (double[]){0, 0, 0}, 0);
        etch_tensor *none = must(etch_zeros(ETCH_F32, ETCH_SHAPE(0, 3)));
        INIT(none, "orthogonal");
    }
}

TEST(plain_random_numbers) {
    const etch_dtype types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};
    etch_manual_seed(5);
    for (int d = 0; d < 4; d++)
        ETCH_SCOPE {
            etch_tensor *t = must(etch_zeros(types[d], ETCH_SHAPE(OUT, IN)));
            INIT(t, "uniform");
            is_uniform(t, 0, 1);
            INIT(t, "uniform", .low = -3, .high = -1);
            is_uniform(t, -3, -1);
            INIT(t, "normal");
            is_drawn(t, 0, 1);
            INIT(t, "normal", .mean = 4, .std = 0.5);
            is_drawn(t, 4, 0.5);
            assert_true(moments_of(t).high > 5); /* no uniform */
        }
}

/* fan_in 50, fan_out 40. */
TEST(by_fans) {
    etch_manual_seed(6);
    ETCH_SCOPE {
        etch_tensor *t = must(etch_zeros(ETCH_F32, ETCH_SHAPE(OUT, IN)));
        INIT(t, "xavier_uniform");
        is_uniform(t, -sqrt(6. / 90), sqrt(6. / 90));
        INIT(t, "xavier_uniform", .gain = 3);
        is_uniform(t, -3 * sqrt(6. / 90), 3 * sqrt(6. / 90));
        INIT(t, "xavier_normal");
        is_drawn(t, 0, sqrt(2. / 90));
        INIT(t, "kaiming_uniform");
        is_uniform(t, -sqrt(6. / 50), sqrt(6. / 50));
        INIT(t, "kaiming_uniform", .slope = 2, .fan_out = true);
        is_uniform(t, -sqrt(6. / 5 / 40), sqrt(6. / 5 / 40));
        INIT(t, "kaiming_normal");
        is_drawn(t, 0, sqrt(2. / 50));
        etch_tensor *conv = must(etch_zeros(ETCH_F32, ETCH_SHAPE(8, 10, 5, 5)));
        INIT(conv, "kaiming_normal");
        is_drawn(conv, 0, sqrt(2. / 250));
        INIT(conv, "kaiming_uniform", .fan_out = true);
        is_uniform(conv, -sqrt(6. / 200), sqrt(6. / 200));
    }
}

/* Deviation of a normal distribution cut at +-c: sqrt(1 - 2 c phi(c) / (1 - 2 Phi(-c))). */
static double cut_std(double c) {
    double density = exp(-0.5 * c * c) / sqrt(2 * acos(-1));
    return sqrt(1 - 2 * c * density / erf(c / sqrt(2)));
}

TEST(truncated_normal_numbers) {
    etch_manual_seed(7);
    ETCH_SCOPE {
        etch_tensor *t = must(etch_zeros(ETCH_F64, ETCH_SHAPE(OUT, IN)));
        INIT(t, "trunc_normal");
        is_drawn(t, 0, cut_std(2));
        moments m = moments_of(t);
        assert_true(m.low >= -2 && m.high <= 2 && m.low < -1.9 && m.high > 1.9);
        INIT(t, "trunc_normal", .mean = 10, .std = 0.1, .low = 9.95, .high = 10.05);
        is_drawn(t, 10, 0.1 * cut_std(0.5));
        INIT(t, "trunc_normal", .low = 6, .high = 7); /* far out, where shares near 1 are equal */
        m = moments_of(t);
        assert_true(m.low >= 6 && m.high <= 7 && m.high > 6.5);
        assert_true(fabs(m.mean - 6.1584) < 0.02); /* 6 + about 1 / 6, by the tail's fall */
        INIT(t, "trunc_normal", .low = -7, .high = -6);
        assert_true(fabs(moments_of(t).mean + 6.1584) < 0.02);
    }
}

static double product(const double *v, int a, int b, int n, int next, int step) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += v[a * next + i * step] * v[b * next + i * step];
    return sum;
}

TEST(orthogonal_rows_or_columns) {
    etch_manual_seed(8);
    for (int tall = 0; tall < 2; tall++)
        for (int f32 = 0; f32 < 2; f32++)
            ETCH_SCOPE {
                etch_shape sizes = tall ? ETCH_SHAPE(24, 2, 4) : ETCH_SHAPE(8, 4, 6);
                etch_tensor *t = must(etch_zeros(f32 ? ETCH_F32 : ETCH_F64, sizes));
                INIT(t, "orthogonal", .gain = 2);
                for (int a = 0; a < 8; a++)
                    for (int b = 0; b < 8; b++) {
                        double p = product(values(t), a, b, 24, tall ? 1 : 24, tall ? 8 : 1);
                        assert_true(fabs(p - (a == b ? 4 : 0)) < (f32 ? 1e-6 : 1e-14));
                    }
                assert_true(fabs(moments_of(t).mean) < 0.2);
            }
}

TEST(init_refuses) {
    ETCH_SCOPE {
        etch_tensor *t = must(etch_ones(ETCH_F32, ETCH_SHAPE(3)));
        etch_tensor *whole = must(etch_ones(ETCH_I32, ETCH_SHAPE(3, 3)));
        FAILED_WITH(etch_nn_init(t, "xavier") != ETCH_OK, ETCH_ERR_NOT_FOUND, "got 'xavier'");
        FAILED_WITH(etch_nn_init(t, "xavier_uniform") != ETCH_OK, ETCH_ERR_SHAPE, "got sizes [3]");
        FAILED_WITH(etch_nn_init(t, "orthogonal") != ETCH_OK, ETCH_ERR_SHAPE, "orthogonal");
        FAILED_WITH(etch_nn_init(whole, "ones") != ETCH_OK, ETCH_ERR_DTYPE, "got i32");
        FAILED_WITH(etch_nn_init(t, "uniform", .low = 2, .high = 1) != ETCH_OK,
                    ETCH_ERR_INVALID_ARGUMENT, "got 2, 1");
        FAILED_WITH(etch_nn_init(t, "normal", .std = -1) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "etch_nn_init");
        FAILED_WITH(etch_nn_init(NULL, "ones") != ETCH_OK, ETCH_ERR_NULL, "etch_nn_init");
        near_values(t, (double[]){1, 1, 1}, 0);
    }
}
