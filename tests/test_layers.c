/* Ready-made layers: each against plain loops in double, over the floating dtypes, with strides;
 * compiled against eager bit for bit; what they refuse.
 * Labels: quick. */
#include "device_support.h"
#include "nn_support.h"

static const etch_dtype float_types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};

static etch_tensor *noise(etch_dtype dtype, etch_shape sizes) {
    return must(etch_randn(dtype, sizes));
}

static etch_tensor *call(etch_module *m, etch_tensor *x) { return must(etch_module_call(m, x)); }

static const double *parameter(etch_module *m, const char *name) {
    return values(must(etch_module_parameter(m, name)));
}

/* The result of m for x has the sizes and values, for x with other strides the same bits, compiled
 * too. m is freed. */
static void check(etch_module *m, etch_tensor *x, etch_shape sizes, const double *want,
                  double units) {
    etch_tensor *y = call(must(m), x);
    has_sizes(y, sizes);
    assert_int_equal(etch_dtype_of(y), etch_dtype_of(x));
    near_values(y, want, units);
    near_values(call(m, stepped(x)), want, units);
    same_compiled(m, &x, 1, 1);
    etch_module_free(m);
}

/* ---- linear, pointwise ---- */

TEST(linear_is_a_sum_of_products) {
    for (int d = 0; d < 4; d++)
        for (int bias = 0; bias < 2; bias++)
            ETCH_SCOPE {
                etch_module *m = must(etch_nn_linear_with(5, 3, float_types[d], bias));
                assert_int_equal(etch_module_parameter_count(m), 1 + bias);
                etch_tensor *x = noise(float_types[d], ETCH_SHAPE(2, 4, 5));
                const double *v = values(x), *w = parameter(m, "weight");
                const double *b = bias ? parameter(m, "bias") : NULL;
                double want[24];
                for (int i = 0; i < 24; i++) {
                    want[i] = b ? b[i % 3] : 0;
                    for (int k = 0; k < 5; k++) want[i] += v[i / 3 * 5 + k] * w[i % 3 * 5 + k];
                }
                check(m, x, ETCH_SHAPE(2, 4, 3), want, 8);
            }
}

static double relu(double x) { return x > 0 ? x : 0; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double gelu(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

TEST(pointwise_layers) {
    double (*const reference[])(double) = {relu, sigmoid, silu, tanh, gelu, gelu_tanh};
    for (int d = 0; d < 4; d++)
        for (int f = 0; f < 6; f++)
            ETCH_SCOPE {
                etch_module *const all[] = {etch_nn_relu(),      etch_nn_sigmoid(),
                                            etch_nn_silu(),      etch_nn_tanh(),
                                            etch_nn_gelu(false), etch_nn_gelu(true)};
                etch_tensor *x = noise(float_types[d], ETCH_SHAPE(4, 9));
                double want[36];
                for (int i = 0; i < 36; i++) want[i] = reference[f](values(x)[i]);
                for (int k = 0; k < 6; k++)
                    if (k != f) etch_module_free(all[k]);
                check(all[f], x, ETCH_SHAPE(4, 9), want, 4);
            }
}

TEST(flatten_and_embedding) {
    ETCH_SCOPE {
        etch_module *flat = must(etch_nn_flatten(1, -1)),
                    *rows = must(etch_nn_embedding(7, 3, ETCH_F32));
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(2, 3, 4));
        has_sizes(call(flat, x), ETCH_SHAPE(2, 12));
        near_values(call(flat, x), values(x), 0);
        const int64_t index[] = {6, 0, 6, 2};
        etch_tensor *i = etch_from_host(index, ETCH_I64, ETCH_SHAPE(2, 2)), *y = call(rows, i);
        double want[12];
        for (int k = 0; k < 12; k++) want[k] = parameter(rows, "weight")[index[k / 3] * 3 + k % 3];
        has_sizes(y, ETCH_SHAPE(2, 2, 3));
        near_values(y, want, 0);
        same_compiled(rows, &i, 1, 1);
        const int64_t outside[] = {0, 7};
        etch_tensor *bad = etch_from_host(outside, ETCH_I64, ETCH_SHAPE(2));
        FAILED_WITH(!test_settled(etch_module_call(rows, bad)), ETCH_ERR_INDEX, "got 7");
        FAILED_WITH(!etch_nn_embedding(0, 3, ETCH_F32), ETCH_ERR_SHAPE, "etch_nn_embedding");
        FAILED_WITH(!etch_nn_embedding(3, 3, ETCH_I64), ETCH_ERR_DTYPE, "i64");
        etch_module_free(flat);
        etch_module_free(rows);
    }
}

/* ---- dropout ---- */

TEST(dropout_scales_what_it_keeps) {
    for (int d = 0; d < 4; d++)
        ETCH_SCOPE {
            etch_module *m = must(etch_nn_dropout(0.25));
            etch_tensor *x = must(etch_full(float_types[d], ETCH_SHAPE(80, 100), 3.0));
            etch_tensor *y = call(m, x);
            int dropped = 0;
            for (int i = 0; i < 8000; i++) {
                double v = values(y)[i];
                dropped += v == 0;
                assert_true(v == 0 || fabs(v - 4) <= 4 * epsilon_of(float_types[d]));
            }
            assert_in_range(dropped, 1850, 2150); /* 2000 expected, 39 the standard deviation */
            assert_false(etch_bitwise_equal(y, call(m, x)));
            same_compiled(m, &x, 1, 1);
            assert_int_equal(etch_module_train(m, false), ETCH_OK);
            assert_ptr_equal(call(m, x), x);
            etch_module_free(m);
        }
}

TEST(dropout_at_its_ends) {
    ETCH_SCOPE {
        etch_module *none = must(etch_nn_dropout(0)), *all = must(etch_nn_dropout(1));
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(5, 5));
        assert_ptr_equal(call(none, x), x);
        near_values(call(all, x), (double[25]){0}, 0);
        etch_tensor *whole = etch_ones(ETCH_I32, ETCH_SHAPE(2));
        FAILED_WITH(!etch_module_call(all, whole), ETCH_ERR_DTYPE, "Dropout");
        FAILED_WITH(!etch_nn_dropout(1.5), ETCH_ERR_INVALID_ARGUMENT, "1.5");
        FAILED_WITH(!etch_nn_dropout(NAN), ETCH_ERR_INVALID_ARGUMENT, "etch_nn_dropout");
        etch_module_free(none);
        etch_module_free(all);
    }
}

/* Compiled code of both settings stays: two graphs, however often they change. */
TEST(training_and_evaluation_are_two_traces) {
    ETCH_SCOPE {
        etch_module *layers[2] = {etch_nn_dropout(0.5), etch_nn_relu()};
        etch_module *m = must(etch_nn_sequential(layers, 2));
        etch_tensor *x = must(etch_ones(ETCH_F32, ETCH_SHAPE(64)));
        assert_int_equal(etch_module_compile(m), ETCH_OK);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(etch_module_train(m, i % 2), ETCH_OK);
            assert_int_equal(etch_module_is_training(etch_module_child(m, 0)), i % 2);
            assert_int_equal(etch_bitwise_equal(call(m, x), x), i % 2 == 0);
        }
        assert_int_equal(etch_function_counters(etch_module_is_compiled(m)).graphs, 2);
        etch_module_free(m);
    }
}

/* ---- convolutions ---- */

typedef struct window {
    int64_t n, in, h, w, out, kh, kw, sh, sw, ph, pw, dh, dw, groups;
} window;

static int64_t out_size(int64_t x, int64_t k, int64_t s, int64_t p, int64_t d) {
    return (x + 2 * p - d * (k - 1) - 1) / s + 1;
}

/* One element of a convolution with weights w [out, in / groups, kh, kw]. */
static double conv_at(const window *c, const double *x, const double *w, int64_t n, int64_t o,
                      int64_t y, int64_t z) {
    int64_t part = c->in / c->groups, first = o / (c->out / c->groups) * part;
    double sum = 0;
    for (int64_t i = 0; i < part; i++)
        for (int64_t a = 0; a < c->kh; a++)
            for (int64_t b = 0; b < c->kw; b++) {
                int64_t row = y * c->sh - c->ph + a * c->dh, col = z * c->sw - c->pw + b * c->dw;
                if (row < 0 || row >= c->h || col < 0 || col >= c->w) continue;
                sum += x[((n * c->in + first + i) * c->h + row) * c->w + col] *
                       w[((o * part + i) * c->kh + a) * c->kw + b];
            }
    return sum;
}

static void conv_all(const window *c, const double *x, const double *w, const double *bias,
                     double *to) {
    int64_t h = out_size(c->h, c->kh, c->sh, c->ph, c->dh);
    int64_t width = out_size(c->w, c->kw, c->sw, c->pw, c->dw);
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t o = 0; o < c->out; o++)
            for (int64_t i = 0; i < h * width; i++)
                *to++ = conv_at(c, x, w, n, o, i / width, i % width) + (bias ? bias[o] : 0);
}

TEST(conv2d_against_loops) {
    const window all[] = {{2, 3, 6, 7, 4, 3, 3, 1, 1, 0, 0, 1, 1, 1},
                          {2, 4, 9, 8, 6, 3, 2, 2, 1, 1, 1, 1, 1, 2},
                          {1, 2, 11, 11, 2, 3, 3, 1, 2, 2, 1, 2, 3, 1},
                          {3, 1, 5, 5, 2, 1, 1, 1, 1, 0, 0, 1, 1, 1}};
    for (int k = 0; k < 4; k++)
        for (int d = 0; d < 2; d++)
            ETCH_SCOPE {
                window c = all[k];
                etch_module *m = must(etch_nn_conv2d(
                    c.in, c.out, ETCH_SHAPE(c.kh, c.kw), float_types[d], .stride = {c.sh, c.sw},
                    .padding = {c.ph, c.pw}, .dilation = {c.dh, c.dw}, .groups = c.groups,
                    .no_bias = k == 3));
                etch_tensor *x = noise(float_types[d], ETCH_SHAPE(c.n, c.in, c.h, c.w));
                double want[1024];
                conv_all(&c, values(x), parameter(m, "weight"),
                         k == 3 ? NULL : parameter(m, "bias"), want);
                check(m, x,
                      ETCH_SHAPE(c.n, c.out, out_size(c.h, c.kh, c.sh, c.ph, c.dh),
                                 out_size(c.w, c.kw, c.sw, c.pw, c.dw)),
                      want, 16);
            }
}

TEST(conv1d_against_loops) {
    const window all[] = {{2, 3, 1, 12, 4, 1, 3, 1, 1, 0, 0, 1, 1, 1},
                          {2, 4, 1, 15, 6, 1, 4, 1, 2, 0, 3, 1, 2, 2}};
    for (int k = 0; k < 2; k++)
        ETCH_SCOPE {
            window c = all[k];
            etch_module *m =
                must(etch_nn_conv1d(c.in, c.out, c.kw, ETCH_F64, .stride = {c.sw},
                                    .padding = {c.pw}, .dilation = {c.dw}, .groups = c.groups));
            has_sizes(etch_module_parameter(m, "weight"), ETCH_SHAPE(c.out, c.in / c.groups, c.kw));
            etch_tensor *x = noise(ETCH_F64, ETCH_SHAPE(c.n, c.in, c.w));
            double want[512];
            conv_all(&c, values(x), parameter(m, "weight"), parameter(m, "bias"), want);
            int64_t n = out_size(c.w, c.kw, c.sw, c.pw, c.dw);
            etch_tensor *one = call(m, must(etch_select(x, 0, 1)));
            has_sizes(one, ETCH_SHAPE(c.out, n));
            near_values(one, want + c.out * n, 16);
            check(m, x, ETCH_SHAPE(c.n, c.out, n), want, 16);
        }
}

/* A width that is not said follows the height; a padding of -1 is none. Without a batch. */
TEST(conv2d_pairs) {
    ETCH_SCOPE {
        etch_module *both =
            must(etch_nn_conv2d(1, 1, ETCH_SHAPE(3, 3), ETCH_F32, .stride = {2}, .padding = {1}));
        etch_module *rows =
            must(etch_nn_conv2d(1, 1, ETCH_SHAPE(3, 3), ETCH_F32, .padding = {1, -1}));
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(1, 8, 8));
        has_sizes(call(both, x), ETCH_SHAPE(1, 4, 4));
        has_sizes(call(rows, x), ETCH_SHAPE(1, 8, 6));
        etch_module_free(both);
        etch_module_free(rows);
    }
}

TEST(conv_refuses) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_conv2d(3, 4, ETCH_SHAPE(3, 3), ETCH_F32));
        etch_module *line = must(etch_nn_conv1d(3, 4, 3, ETCH_F32));
        etch_tensor *flat = noise(ETCH_F32, ETCH_SHAPE(3, 3));
        etch_tensor *other = noise(ETCH_F32, ETCH_SHAPE(2, 2, 9, 9));
        FAILED_WITH(!etch_module_call(m, flat), ETCH_ERR_SHAPE,
                    "Conv2d: expected x of sizes [N, C, H, W] or [C, H, W], got [3, 3]");
        FAILED_WITH(!etch_module_call(m, other), ETCH_ERR_SHAPE, "conv2d");
        FAILED_WITH(!etch_module_call(line, other), ETCH_ERR_SHAPE, "Conv1d");
        FAILED_WITH(!etch_nn_conv2d(3, 4, ETCH_SHAPE(3), ETCH_F32), ETCH_ERR_SHAPE,
                    "etch_nn_conv2d");
        FAILED_WITH(!etch_nn_conv2d(3, 4, ETCH_SHAPE(3, 3), ETCH_F32, .groups = 2), ETCH_ERR_SHAPE,
                    "groups 2");
        FAILED_WITH(!etch_nn_conv1d(3, 4, 0, ETCH_F32), ETCH_ERR_SHAPE, "etch_nn_conv1d");
        FAILED_WITH(!etch_nn_conv1d(3, 4, 2, ETCH_I8), ETCH_ERR_DTYPE, "i8");
        etch_module_free(m);
        etch_module_free(line);
    }
}

/* ---- pooling ---- */

static void pool_all(const window *c, const double *x, bool max, double *to) {
    int64_t h = out_size(c->h, c->kh, c->sh, c->ph, 1), w = out_size(c->w, c->kw, c->sw, c->pw, 1);
    for (int64_t i = 0; i < c->n * h * w; i++) {
        double best = -INFINITY, sum = 0;
        for (int64_t k = 0; k < c->kh * c->kw; k++) {
            int64_t row = i / w % h * c->sh - c->ph + k / c->kw;
            int64_t col = i % w * c->sw - c->pw + k % c->kw;
            if (row < 0 || row >= c->h || col < 0 || col >= c->w) continue;
            double v = x[(i / (h * w) * c->h + row) * c->w + col];
            best = fmax(best, v), sum += v;
        }
        to[i] = max ? best : sum / (double)(c->kh * c->kw);
    }
}

TEST(pools_against_loops) {
    const window all[] = {{.n = 6, .h = 8, .w = 6, .kh = 2, .kw = 2, .sh = 2, .sw = 2},
                          {.n = 6, .h = 7, .w = 9, .kh = 3, .kw = 2, .sh = 2, .sw = 1, .ph = 1},
                          {.n = 6, .h = 5, .w = 5, .kh = 3, .kw = 3, .sh = 1, .sw = 2, .pw = 1}};
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < 4; d++)
            for (int max = 0; max < 2; max++)
                ETCH_SCOPE {
                    window c = all[k];
                    const etch_pool_options o = {.stride = {k ? c.sh : 0, k ? c.sw : 0},
                                                 .padding = {c.ph, c.pw ? c.pw : -1}};
                    etch_shape kernel = ETCH_SHAPE(c.kh, c.kw);
                    etch_module *m = max ? etch_nn_max_pool2d_with(kernel, &o)
                                         : etch_nn_avg_pool2d_with(kernel, &o);
                    etch_tensor *x = noise(float_types[d], ETCH_SHAPE(2, 3, c.h, c.w));
                    double want[600];
                    pool_all(&c, values(x), max, want);
                    int64_t h = out_size(c.h, c.kh, c.sh, c.ph, 1);
                    int64_t w = out_size(c.w, c.kw, c.sw, c.pw, 1);
                    has_sizes(call(must(m), must(etch_select(x, 0, 1))), ETCH_SHAPE(3, h, w));
                    check(m, x, ETCH_SHAPE(2, 3, h, w), want, 4);
                }
}

/* Options are those of the operators. */
TEST(pools_have_options) {
    ETCH_SCOPE {
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(2, 3, 8, 9)), *want;
        etch_module *max = must(etch_nn_max_pool2d(ETCH_SHAPE(2, 3), .stride = {2, 1},
                                                   .dilation = {2, 1}, .ceil_mode = true));
        want = etch_max_pool2d(x, ETCH_DIMS(2, 3), ETCH_DIMS(2, 1), ETCH_DIMS(0), ETCH_DIMS(2, 1),
                               true);
        assert_true(etch_bitwise_equal(call(max, x), must(want)));
        etch_module *avg = must(etch_nn_avg_pool2d(ETCH_SHAPE(3, 2), .padding = {1},
                                                   .ceil_mode = true, .exclude_padding = true));
        want = etch_avg_pool2d(x, ETCH_DIMS(3, 2), ETCH_DIMS(0), ETCH_DIMS(1), true, false, 0);
        assert_true(etch_bitwise_equal(call(avg, x), must(want)));
        etch_module *part = must(etch_nn_avg_pool2d(ETCH_SHAPE(2, 2), .divisor = 3));
        want = etch_avg_pool2d(x, ETCH_DIMS(2), ETCH_DIMS(0), ETCH_DIMS(0), false, true, 3);
        assert_true(etch_bitwise_equal(call(part, x), must(want)));
        etch_module_free(max), etch_module_free(avg), etch_module_free(part);
    }
}

TEST(pools_refuse) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_max_pool2d(ETCH_SHAPE(3, 3)));
        FAILED_WITH(!etch_module_call(m, noise(ETCH_F32, ETCH_SHAPE(1, 2, 5))), ETCH_ERR_SHAPE,
                    "the window does not fit into the padded input: height 2");
        FAILED_WITH(!etch_module_call(m, noise(ETCH_F32, ETCH_SHAPE(5, 5))), ETCH_ERR_SHAPE,
                    "[C, H, W], got [5, 5]");
        FAILED_WITH(!etch_nn_max_pool2d(ETCH_SHAPE(3)), ETCH_ERR_SHAPE, "etch_nn_max_pool2d");
        FAILED_WITH(!etch_nn_avg_pool2d(ETCH_SHAPE(2, 2), .padding = {2}), ETCH_ERR_SHAPE,
                    "at most half");
        FAILED_WITH(!etch_nn_avg_pool2d(ETCH_SHAPE(2, 2), .dilation = {2}),
                    ETCH_ERR_INVALID_ARGUMENT, "no dilation");
        FAILED_WITH(!etch_nn_max_pool2d(ETCH_SHAPE(2, 2), .divisor = 2), ETCH_ERR_INVALID_ARGUMENT,
                    "are of means");
        etch_module_free(m);
    }
}

/* ---- normalisations ---- */

/* y of a row of n elements that are `step` apart: (x - mean) / sqrt(var + eps), or without mean. */
static void normalise(const double *x, double *y, int64_t n, int64_t step, double eps, bool rms) {
    double mean = 0, var = 0;
    for (int64_t i = 0; i < n && !rms; i++) mean += x[i * step] / (double)n;
    for (int64_t i = 0; i < n; i++) var += pow(x[i * step] - mean, 2) / (double)n;
    for (int64_t i = 0; i < n; i++) y[i * step] = (x[i * step] - mean) / sqrt(var + eps);
}

static void fill_affine(etch_module *m) {
    for (int i = 0; i < etch_module_parameter_count(m); i++)
        assert_int_equal(etch_nn_init(etch_module_parameter_at(m, i), "normal", .mean = 1),
                         ETCH_OK);
}

TEST(layer_norm_and_rms_norm) {
    for (int d = 0; d < 4; d++)
        for (int rms = 0; rms < 2; rms++)
            ETCH_SCOPE {
                etch_dtype t = float_types[d];
                etch_module *m = rms ? etch_nn_rms_norm(ETCH_SHAPE(3, 4), t)
                                     : etch_nn_layer_norm(ETCH_SHAPE(3, 4), t, .eps = 0.25);
                fill_affine(must(m));
                assert_int_equal(etch_module_parameter_count(m), 2 - rms);
                etch_tensor *x = noise(t, ETCH_SHAPE(5, 3, 4));
                const double *w = parameter(m, "weight"), *b = rms ? NULL : parameter(m, "bias");
                double want[60], eps = !rms ? 0.25 : t == ETCH_F64 ? 0x1p-52 : 0x1p-23;
                for (int i = 0; i < 5; i++)
                    normalise(values(x) + i * 12, want + i * 12, 12, 1, eps, rms);
                for (int i = 0; i < 60; i++) want[i] = want[i] * w[i % 12] + (b ? b[i % 12] : 0);
                check(m, x, ETCH_SHAPE(5, 3, 4), want, 16);
            }
}

TEST(norms_without_parameters) {
    ETCH_SCOPE {
        etch_module *bare = must(etch_nn_layer_norm(ETCH_SHAPE(4), ETCH_F32, .no_affine = true));
        etch_module *weight = must(etch_nn_layer_norm(ETCH_SHAPE(4), ETCH_F32, .no_bias = true));
        assert_int_equal(etch_module_parameter_count(bare), 0);
        assert_int_equal(etch_module_parameter_count(weight), 1);
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(3, 4));
        assert_true(etch_bitwise_equal(call(bare, x), call(weight, x)));
        etch_module_free(bare);
        etch_module_free(weight);
    }
}

/* [N, C, k]: each channel over N and k, by loops; and its mean and variance with n - 1. */
static void batch_reference(const double *x, int64_t n, int64_t c, int64_t k, double *y,
                            double *mean, double *var) {
    for (int64_t ch = 0; ch < c; ch++) {
        double line[512], to[512];
        int64_t count = 0;
        for (int64_t i = 0; i < n * k; i++) line[count++] = x[(i / k * c + ch) * k + i % k];
        normalise(line, to, count, 1, 1e-5, false);
        mean[ch] = var[ch] = 0;
        for (int64_t i = 0; i < count; i++) mean[ch] += line[i] / (double)count;
        for (int64_t i = 0; i < count; i++)
            var[ch] += pow(line[i] - mean[ch], 2) / (double)(count - 1);
        for (int64_t i = 0; i < count; i++) y[(i / k * c + ch) * k + i % k] = to[i];
    }
}

TEST(batch_norm_trains) {
    for (int d = 0; d < 4; d++)
        for (int dims = 2; dims <= 4; dims++)
            ETCH_SCOPE {
                etch_dtype t = float_types[d];
                etch_shape sizes = dims == 2   ? ETCH_SHAPE(6, 3)
                                   : dims == 3 ? ETCH_SHAPE(4, 3, 5)
                                               : ETCH_SHAPE(2, 3, 4, 2);
                etch_module *m = dims == 4 ? etch_nn_batch_norm2d(3, t, .momentum = 0.25)
                                           : etch_nn_batch_norm1d(3, t, .momentum = 0.25);
                fill_affine(must(m));
                etch_tensor *x = must(etch_add_scalar(noise(t, sizes), 2.0));
                int64_t n = sizes.v[0], k = etch_numel(x) / n / 3;
                double y[256], mean[3], var[3];
                batch_reference(values(x), n, 3, k, y, mean, var);
                const double *w = parameter(m, "weight"), *b = parameter(m, "bias");
                for (int64_t i = 0; i < n * 3 * k; i++) y[i] = y[i] * w[i / k % 3] + b[i / k % 3];
                near_values(call(m, x), y, 16);
                for (int c = 0; c < 3; c++) mean[c] *= 0.25, var[c] = 0.75 + 0.25 * var[c];
                near_values(etch_module_buffer(m, "running_mean"), mean, 8);
                near_values(etch_module_buffer(m, "running_var"), var, 8);
                assert_int_equal(etch_item_int(etch_module_buffer(m, "num_batches_tracked")), 1);
                check(m, x, sizes, y, 16);
            }
}

TEST(batch_norm_evaluates_by_its_statistics) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_batch_norm1d(3, ETCH_F64));
        fill_affine(m);
        for (int i = 0; i < 5; i++) call(m, noise(ETCH_F64, ETCH_SHAPE(7, 3)));
        etch_tensor *x = noise(ETCH_F64, ETCH_SHAPE(1, 3)); /* one value a channel will do */
        const double *w = parameter(m, "weight"), *b = parameter(m, "bias"), *v = values(x);
        const double *mean = values(etch_module_buffer(m, "running_mean"));
        const double *var = values(etch_module_buffer(m, "running_var"));
        double want[3];
        for (int c = 0; c < 3; c++) want[c] = (v[c] - mean[c]) / sqrt(var[c] + 1e-5) * w[c] + b[c];
        FAILED_WITH(!etch_module_call(m, x), ETCH_ERR_SHAPE, "more than one value a channel");
        assert_int_equal(etch_module_train(m, false), ETCH_OK);
        etch_module *before = must(etch_module_copy(m));
        near_values(call(m, x), want, 8);
        same_tensors(before, m);
        etch_module_free(before);
        check(m, x, ETCH_SHAPE(1, 3), want, 8);
    }
}

/* momentum below 0: the plain mean over all batches. Without statistics: those of each batch. */
TEST(batch_norm_other_statistics) {
    ETCH_SCOPE {
        etch_module *all = must(etch_nn_batch_norm1d(2, ETCH_F64, .momentum = -1));
        etch_module *none = must(etch_nn_batch_norm1d(2, ETCH_F64, .no_statistics = true));
        double sum[2] = {0}, y[20], mean[2], var[2];
        etch_tensor *x = NULL;
        for (int i = 0; i < 4; i++) {
            x = noise(ETCH_F64, ETCH_SHAPE(10, 2));
            batch_reference(values(x), 10, 2, 1, y, mean, var);
            call(all, x);
            for (int c = 0; c < 2; c++) sum[c] += mean[c] / 4;
        }
        near_values(etch_module_buffer(all, "running_mean"), sum, 8);
        same_compiled(all, &x, 1, 1);
        assert_int_equal(etch_module_buffer_count(none), 0);
        assert_int_equal(etch_module_train(none, false), ETCH_OK);
        near_values(call(none, x), y, 8);
        etch_module_free(all);
        etch_module_free(none);
    }
}

TEST(group_norm_against_loops) {
    for (int d = 0; d < 4; d++)
        ETCH_SCOPE {
            etch_module *m = must(etch_nn_group_norm(2, 6, float_types[d]));
            fill_affine(m);
            etch_tensor *x = noise(float_types[d], ETCH_SHAPE(3, 6, 2, 2));
            const double *w = parameter(m, "weight"), *b = parameter(m, "bias");
            double want[72];
            for (int i = 0; i < 6; i++)
                normalise(values(x) + i * 12, want + i * 12, 12, 1, 1e-5, false);
            for (int i = 0; i < 72; i++) want[i] = want[i] * w[i / 4 % 6] + b[i / 4 % 6];
            check(m, x, ETCH_SHAPE(3, 6, 2, 2), want, 16);
        }
}

TEST(norms_refuse) {
    ETCH_SCOPE {
        etch_module *batch = must(etch_nn_batch_norm2d(3, ETCH_F32));
        etch_module *line = must(etch_nn_batch_norm1d(3, ETCH_F32));
        etch_module *rms = must(etch_nn_rms_norm(ETCH_SHAPE(4), ETCH_F32));
        etch_module *group = must(etch_nn_group_norm(2, 4, ETCH_F32));
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(2, 4, 3, 3));
        etch_tensor *whole = must(etch_ones(ETCH_I32, ETCH_SHAPE(2, 3)));
        FAILED_WITH(!etch_module_call(batch, x), ETCH_ERR_SHAPE, "BatchNorm2d: expected x");
        FAILED_WITH(!etch_module_call(line, x), ETCH_ERR_SHAPE, "got [2, 4, 3, 3]");
        FAILED_WITH(!etch_module_call(line, whole), ETCH_ERR_DTYPE, "BatchNorm1d");
        FAILED_WITH(!etch_module_call(rms, x), ETCH_ERR_SHAPE, "RMSNorm");
        FAILED_WITH(!etch_module_call(group, whole), ETCH_ERR_SHAPE, "GroupNorm");
        FAILED_WITH(!etch_nn_group_norm(3, 4, ETCH_F32), ETCH_ERR_SHAPE, "got 3 and 4");
        FAILED_WITH(!etch_nn_batch_norm1d(0, ETCH_F32), ETCH_ERR_SHAPE, "etch_nn_batch_norm1d");
        FAILED_WITH(!etch_nn_layer_norm(ETCH_SHAPE(), ETCH_F32), ETCH_ERR_SHAPE,
                    "etch_nn_layer_norm");
        FAILED_WITH(!etch_nn_rms_norm(ETCH_SHAPE(2), ETCH_BOOL), ETCH_ERR_DTYPE, "bool");
        etch_module_free(batch);
        etch_module_free(line);
        etch_module_free(rms);
        etch_module_free(group);
    }
}

/* ---- attention ---- */

enum { WIDTH = 6, HEADS = 2, HEAD = 3 };

typedef struct attended {
    double y[256], w[256]; /* w: averaged over the heads */
} attended;

/* row i of x [., WIDTH] times the k-th third of the projection. */
static void project(const double *x, int64_t i, const double *w, const double *b, int k,
                    double *to) {
    for (int o = 0; o < WIDTH; o++) {
        to[o] = b ? b[k * WIDTH + o] : 0;
        for (int j = 0; j < WIDTH; j++) to[o] += x[i * WIDTH + j] * w[(k * WIDTH + o) * WIDTH + j];
    }
}

/* One query of one batch; add[s] is added to the scores. */
static void attend_row(const double *q, double (*k)[WIDTH], double (*v)[WIDTH], int s,
                       const double *add, double *joined, double *weights) {
    for (int h = 0; h < HEADS; h++) {
        double score[16], top = -INFINITY, sum = 0;
        for (int j = 0; j < s; j++) {
            score[j] = add ? add[j] : 0;
            for (int e = 0; e < HEAD; e++)
                score[j] += q[h * HEAD + e] * k[j][h * HEAD + e] / sqrt(HEAD);
            top = fmax(top, score[j]);
        }
        for (int j = 0; j < s; j++) sum += score[j] = exp(score[j] - top);
        for (int j = 0; j < s; j++) weights[j] += score[j] / sum / HEADS;
        for (int e = 0; e < HEAD; e++)
            for (int j = 0; j < s; j++) joined[h * HEAD + e] += score[j] / sum * v[j][h * HEAD + e];
    }
}

static void attend(etch_module *m, const double *q, const double *k, const double *v, int n, int l,
                   int s, const double *add, bool bias, attended *to) {
    const double *w = parameter(m, "in_proj_weight"), *o = parameter(m, "out_proj.weight");
    const double *b = bias ? parameter(m, "in_proj_bias") : NULL;
    const double *ob = bias ? parameter(m, "out_proj.bias") : NULL;
    memset(to, 0, sizeof *to);
    for (int i = 0; i < n * l; i++) {
        double query[WIDTH], keys[16][WIDTH], vals[16][WIDTH], joined[WIDTH] = {0};
        project(q, i, w, b, 0, query);
        for (int j = 0; j < s; j++) {
            project(k, i / l * s + j, w, b, 1, keys[j]);
            project(v, i / l * s + j, w, b, 2, vals[j]);
        }
        attend_row(query, keys, vals, s, add ? add + i % l * s : NULL, joined, to->w + i * s);
        for (int c = 0; c < WIDTH; c++) {
            to->y[i * WIDTH + c] = ob ? ob[c] : 0;
            for (int e = 0; e < WIDTH; e++) to->y[i * WIDTH + c] += joined[e] * o[c * WIDTH + e];
        }
    }
}

static attended expected; /* large */

TEST(attention_to_itself) {
    for (int d = 0; d < 2; d++)
        for (int bias = 0; bias < 2; bias++)
            ETCH_SCOPE {
                etch_module *m = must(
                    etch_nn_multihead_attention(WIDTH, HEADS, float_types[d], .no_bias = !bias));
                fill_affine(m);
                assert_int_equal(etch_module_parameter_count(m), 2 + 2 * bias);
                etch_tensor *x = noise(float_types[d], ETCH_SHAPE(2, 4, WIDTH));
                const double *v = values(x);
                attend(m, v, v, v, 2, 4, 4, NULL, bias, &expected);
                etch_tensor *out[2];
                assert_int_equal(etch_module_call_n(m, &x, 1, out, 2), ETCH_OK);
                near_values(out[0], expected.y, 512);
                has_sizes(out[1], ETCH_SHAPE(2, 4, 4));
                near_values(out[1], expected.w, 512);
                same_compiled(m, &x, 1, 2);
                check(m, x, ETCH_SHAPE(2, 4, WIDTH), expected.y, 512);
            }
}

TEST(attention_masks) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_multihead_attention(WIDTH, HEADS, ETCH_F64));
        etch_module *causal =
            must(etch_nn_multihead_attention(WIDTH, HEADS, ETCH_F64, .causal = true));
        for (int i = 0; i < 4; i++) /* the same numbers in both */
            assert_int_equal(etch_module_set_tensor(causal, etch_module_parameter_name(m, i),
                                                    etch_module_parameter_at(m, i)),
                             ETCH_OK);
        etch_tensor *in[4] = {noise(ETCH_F64, ETCH_SHAPE(2, 3, WIDTH)),
                              noise(ETCH_F64, ETCH_SHAPE(2, 5, WIDTH)),
                              noise(ETCH_F64, ETCH_SHAPE(2, 5, WIDTH))};
        bool hidden[15];
        double add[15], bump[15];
        for (int i = 0; i < 15; i++) {
            hidden[i] = i % 5 > i / 5;
            add[i] = hidden[i] ? -INFINITY : 0, bump[i] = 0.5 * i;
        }
        const double *v[3] = {values(in[0]), values(in[1]), values(in[2])};
        etch_tensor *y = NULL, *want;
        attend(m, v[0], v[1], v[2], 2, 3, 5, NULL, true, &expected);
        assert_int_equal(etch_module_call_n(m, in, 3, &y, 1), ETCH_OK);
        has_sizes(y, ETCH_SHAPE(2, 3, WIDTH));
        near_values(y, expected.y, 512);
        attend(m, v[0], v[1], v[2], 2, 3, 5, add, true, &expected);
        in[3] = etch_from_host(hidden, ETCH_BOOL, ETCH_SHAPE(3, 5));
        assert_int_equal(etch_module_call_n(m, in, 4, &want, 1), ETCH_OK);
        near_values(want, expected.y, 512);
        assert_int_equal(etch_module_call_n(causal, in, 3, &y, 1), ETCH_OK);
        assert_true(etch_bitwise_equal(y, want));
        same_compiled(causal, in, 4, 1);
        in[3] = etch_from_host(bump, ETCH_F64, ETCH_SHAPE(3, 5));
        attend(m, v[0], v[1], v[2], 2, 3, 5, bump, true, &expected);
        assert_int_equal(etch_module_call_n(m, in, 4, &y, 1), ETCH_OK);
        near_values(y, expected.y, 512);
        same_compiled(m, in, 4, 1);
        etch_module_free(m);
        etch_module_free(causal);
    }
}

TEST(attention_without_a_batch_and_with_dropout) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_multihead_attention(WIDTH, HEADS, ETCH_F64, .dropout = 0.5));
        etch_tensor *x = noise(ETCH_F64, ETCH_SHAPE(2, 4, WIDTH)), *one = etch_select(x, 0, 1);
        assert_false(etch_bitwise_equal(call(m, x), call(m, x)));
        same_compiled(m, &x, 1, 1);
        assert_int_equal(etch_module_train(m, false), ETCH_OK);
        etch_tensor *y = call(m, one), *both = call(m, x);
        has_sizes(y, ETCH_SHAPE(4, WIDTH));
        assert_true(etch_allclose(y, etch_select(both, 0, 1), 1e-12, 1e-12, false));
        etch_module_free(m);
    }
}

TEST(attention_refuses) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_multihead_attention(WIDTH, HEADS, ETCH_F32));
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(2, 4, WIDTH)), *y = NULL;
        etch_tensor *narrow = noise(ETCH_F32, ETCH_SHAPE(2, 4, 5)), *two[2] = {x, x};
        etch_tensor *three[3] = {x, x, noise(ETCH_F32, ETCH_SHAPE(2, 3, WIDTH))};
        FAILED_WITH(!etch_module_call(m, narrow), ETCH_ERR_SHAPE, "MultiheadAttention: expected x");
        FAILED_WITH(etch_module_call_n(m, two, 2, &y, 1) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "expected 1, 3 or 4 tensors");
        FAILED_WITH(etch_module_call_n(m, three, 3, &y, 1) != ETCH_OK, ETCH_ERR_SHAPE,
                    "got [2, 3, 6]");
        assert_null(y);
        FAILED_WITH(!etch_nn_multihead_attention(5, 2, ETCH_F32), ETCH_ERR_SHAPE, "width 5");
        etch_module_free(m);
    }
}

/* ---- recurrent cells ---- */

enum { IN = 3, HIDDEN = 4, BATCH = 2 };

/* Row r of the k-th gate: w [., n] x + b. */
static double gate(const double *w, const double *b, const double *x, int n, int k, int r) {
    double sum = b[k * HIDDEN + r];
    for (int j = 0; j < n; j++) sum += w[(k * HIDDEN + r) * n + j] * x[j];
    return sum;
}

static double both(etch_module *m, const double *x, const double *h, int k, int r) {
    return gate(parameter(m, "weight_ih"), parameter(m, "bias_ih"), x, IN, k, r) +
           gate(parameter(m, "weight_hh"), parameter(m, "bias_hh"), h, HIDDEN, k, r);
}

TEST(lstm_cell_against_loops) {
    for (int d = 0; d < 2; d++)
        ETCH_SCOPE {
            etch_module *m = must(etch_nn_lstm_cell(IN, HIDDEN, float_types[d]));
            etch_tensor *in[3] = {noise(float_types[d], ETCH_SHAPE(BATCH, IN)),
                                  noise(float_types[d], ETCH_SHAPE(BATCH, HIDDEN)),
                                  noise(float_types[d], ETCH_SHAPE(BATCH, HIDDEN))};
            etch_tensor *out[2], *first;
            double c[8], h[8], x[6], state[8];
            memcpy(x, values(in[0]), sizeof x);
            memcpy(state, values(in[1]), sizeof state);
            memcpy(c, values(in[2]), sizeof c);
            for (int i = 0; i < 8; i++) {
                const double *row = x + i / HIDDEN * IN, *hid = state + i / HIDDEN * HIDDEN;
                c[i] = sigmoid(both(m, row, hid, 1, i % HIDDEN)) * c[i] +
                       sigmoid(both(m, row, hid, 0, i % HIDDEN)) *
                           tanh(both(m, row, hid, 2, i % HIDDEN));
                h[i] = sigmoid(both(m, row, hid, 3, i % HIDDEN)) * tanh(c[i]);
            }
            assert_int_equal(etch_module_call_n(m, in, 3, out, 2), ETCH_OK);
            near_values(out[0], h, 16);
            near_values(out[1], c, 16);
            same_compiled(m, in, 3, 2);
            in[1] = in[2] = must(etch_zeros(float_types[d], ETCH_SHAPE(BATCH, HIDDEN)));
            assert_int_equal(etch_module_call_n(m, in, 3, out, 1), ETCH_OK);
            assert_true(etch_bitwise_equal(call(m, in[0]), out[0]));
            first = call(m, must(etch_select(in[0], 0, 0)));
            has_sizes(first, ETCH_SHAPE(HIDDEN));
            assert_true(etch_allclose(first, must(etch_select(out[0], 0, 0)), 1e-5, 1e-5, false));
            etch_module_free(m);
        }
}

TEST(gru_cell_against_loops) {
    for (int d = 0; d < 2; d++)
        ETCH_SCOPE {
            etch_module *m = must(etch_nn_gru_cell(IN, HIDDEN, float_types[d]));
            etch_tensor *in[2] = {noise(float_types[d], ETCH_SHAPE(BATCH, IN)),
                                  noise(float_types[d], ETCH_SHAPE(BATCH, HIDDEN))};
            etch_tensor *y = NULL;
            double h[8], x[6], want[8];
            memcpy(x, values(in[0]), sizeof x);
            memcpy(h, values(in[1]), sizeof h);
            for (int i = 0; i < 8; i++) {
                const double *row = x + i / HIDDEN * IN, *hid = h + i / HIDDEN * HIDDEN;
                int r = i % HIDDEN;
                double reset = sigmoid(both(m, row, hid, 0, r));
                double update = sigmoid(both(m, row, hid, 1, r));
                double new =
                    tanh(gate(parameter(m, "weight_ih"), parameter(m, "bias_ih"), row, IN, 2, r) +
                         reset * gate(parameter(m, "weight_hh"), parameter(m, "bias_hh"), hid,
                                      HIDDEN, 2, r));
                want[i] = (1 - update) * new + update *h[i];
            }
            assert_int_equal(etch_module_call_n(m, in, 2, &y, 1), ETCH_OK);
            near_values(y, want, 16);
            same_compiled(m, in, 2, 1);
            etch_module_free(m);
        }
}

TEST(cells_refuse) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_lstm_cell(IN, HIDDEN, ETCH_F32));
        etch_module *g = must(etch_nn_gru_cell(IN, HIDDEN, ETCH_F32));
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(2, IN)), *y[2];
        etch_tensor *in[3] = {x, noise(ETCH_F32, ETCH_SHAPE(3, HIDDEN)), x};
        FAILED_WITH(!etch_module_call(m, in[1]), ETCH_ERR_SHAPE, "LSTMCell: expected x");
        FAILED_WITH(etch_module_call_n(m, in, 3, y, 2) != ETCH_OK, ETCH_ERR_SHAPE, "got [3, 4]");
        FAILED_WITH(etch_module_call_n(m, in, 2, y, 2) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "LSTMCell: expected 1 or 3");
        FAILED_WITH(etch_module_call_n(g, in, 2, y, 2) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "GRUCell");
        FAILED_WITH(!etch_nn_gru_cell(0, 4, ETCH_F32), ETCH_ERR_SHAPE, "etch_nn_gru_cell");
        etch_module_free(m);
        etch_module_free(g);
    }
}

/* Layers on empty batches give empty results. */
TEST(empty_batches) {
    ETCH_SCOPE {
        etch_module *layers[] = {etch_nn_conv2d(2, 3, ETCH_SHAPE(3, 3), ETCH_F32),
                                 etch_nn_group_norm(3, 3, ETCH_F32),
                                 etch_nn_gelu(false),
                                 etch_nn_max_pool2d(ETCH_SHAPE(2, 2)),
                                 etch_nn_dropout(0.5),
                                 etch_nn_flatten(1, -1),
                                 etch_nn_linear(12, 4, ETCH_F32)};
        etch_module *m = must(etch_nn_sequential(layers, 7));
        etch_tensor *none = must(etch_zeros(ETCH_F32, ETCH_SHAPE(0, 2, 6, 6)));
        has_sizes(call(m, none), ETCH_SHAPE(0, 4));
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(2, 2, 6, 6));
        has_sizes(call(m, x), ETCH_SHAPE(2, 4));
        same_compiled(m, &x, 1, 1);
        etch_module_free(m);
    }
}
