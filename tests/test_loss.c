/* Losses: values against plain loops in double with every option, gradients against differences,
 * compiled against eager bit for bit, what they refuse.
 * Labels: quick. */
#include "nn_support.h"

typedef etch_tensor *(*loss_fn)(etch_tensor *, etch_tensor *, const etch_loss_options *);

static etch_tensor *noise(etch_dtype dtype, etch_shape sizes) {
    return must(etch_randn(dtype, sizes));
}

/* ---- gradients and compiled code ---- */

typedef struct bound_loss {
    loss_fn loss;
    etch_tensor *target;
    etch_loss_options o;
} bound_loss;

static etch_status body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    const bound_loss *b = ctx;
    (void)nin, (void)nout;
    out[0] = b->loss(in[0], in[1], &b->o);
    return out[0] ? ETCH_OK : etch_last_status();
}

static void same_when_compiled(bound_loss *b, etch_tensor *x) {
    etch_tensor *want = must(b->loss(x, b->target, &b->o)), *in[2] = {x, b->target}, *have;
    for (int k = 0; k < 2; k++) {
        const etch_compile_options options = {.struct_size = sizeof options,
                                              .backend = k ? "native" : "eager",
                                              .ctx = b,
                                              .fullgraph = true};
        etch_function *f = must(etch_compile_n(body, &options));
        for (int i = 0; i < 2; i++) {
            have = must(etch_call_one(f, in, 2));
            assert_true(etch_bitwise_equal(have, want));
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
    }
}

/* The sum of the loss at x with element i moved. */
static double moved(const bound_loss *b, const double *v, etch_shape sizes, int64_t i, double by) {
    double sum = 0, all[MOST];
    int64_t n = 1;
    for (int d = 0; d < sizes.n; d++) n *= sizes.v[d];
    memcpy(all, v, (size_t)n * sizeof *all);
    all[i] += by;
    ETCH_SCOPE {
        etch_tensor *x = must(etch_from_host(all, ETCH_F64, sizes));
        sum = etch_item(must(etch_sum(must(b->loss(x, b->target, &b->o)))));
    }
    return sum;
}

/* By differences, which are exact to h^2. x is f64. */
static void has_gradient(const bound_loss *b, etch_tensor *x) {
    const double *v = values(x), h = 1e-5;
    etch_tensor *leaf = must(etch_requires_grad_(must(etch_clone(x)), true));
    etch_tensor *total = must(etch_sum(must(b->loss(leaf, b->target, &b->o))));
    if (etch_backward(total) != ETCH_OK) must(NULL);
    const double *have = values(etch_grad_of(leaf));
    for (int64_t i = 0; i < etch_numel(x); i++) {
        double want =
            (moved(b, v, etch_sizes(x), i, h) - moved(b, v, etch_sizes(x), i, -h)) / 2 / h;
        if (fabs(have[i] - want) > 1e-7 * (1 + fabs(want)))
            fail_msg("gradient %d: want %.12g, have %.12g", (int)i, want, have[i]);
    }
}

/* ---- element by element ---- */

static double mse(double x, double t, const etch_loss_options *o) {
    (void)o;
    return (x - t) * (x - t);
}
static double l1(double x, double t, const etch_loss_options *o) {
    (void)o;
    return fabs(x - t);
}
static double smooth_l1(double x, double t, const etch_loss_options *o) {
    double b = o->beta ? o->beta : 1, d = fabs(x - t);
    return d < b ? d * d / (2 * b) : d - b / 2;
}
static double huber(double x, double t, const etch_loss_options *o) {
    double e = o->delta ? o->delta : 1, d = fabs(x - t);
    return d <= e ? d * d / 2 : e * (d - e / 2);
}
static double bce(double x, double t, const etch_loss_options *o) {
    (void)o;
    double s = 1 / (1 + exp(-x));
    return -(t * log(s) + (1 - t) * log1p(-s));
}
static double kl(double x, double t, const etch_loss_options *o) {
    if (o->log_target) return exp(t) * (t - x);
    return t > 0 ? t * (log(t) - x) : 0;
}

static const struct row {
    const char *name;
    loss_fn loss;
    double (*reference)(double, double, const etch_loss_options *);
    etch_loss_options o;
    bool share; /* targets of 0 to 1 */
} rows[] = {
    {"mse", etch_nn_mse_loss_with, mse, {0}, false},
    {"l1", etch_nn_l1_loss_with, l1, {0}, false},
    {"smooth_l1", etch_nn_smooth_l1_loss_with, smooth_l1, {0}, false},
    {"smooth_l1 0.3", etch_nn_smooth_l1_loss_with, smooth_l1, {.beta = 0.3}, false},
    {"huber", etch_nn_huber_loss_with, huber, {0}, false},
    {"huber 0.3", etch_nn_huber_loss_with, huber, {.delta = 0.3}, false},
    {"bce", etch_nn_bce_with_logits_with, bce, {0}, true},
    {"kl", etch_nn_kl_div_with, kl, {0}, true},
    {"kl of logs", etch_nn_kl_div_with, kl, {.log_target = true}, false},
};

enum { ROWS = 4, COLUMNS = 6, ALL = ROWS * COLUMNS };

/* One of them 0, one 1. */
static etch_tensor *shares(etch_dtype dtype) {
    etch_tensor *t = must(etch_rand(dtype, ETCH_SHAPE(ROWS, COLUMNS)));
    must(etch_fill_(must(etch_select(must(etch_select(t, 0, 0)), 0, 1)), 0.0));
    must(etch_fill_(must(etch_select(must(etch_select(t, 0, 0)), 0, 2)), 1.0));
    return t;
}

TEST(losses_of_elements) {
    const etch_dtype types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int d = 0; d < 4; d++)
            ETCH_SCOPE {
                etch_tensor *x = noise(types[d], ETCH_SHAPE(ROWS, COLUMNS));
                etch_tensor *t =
                    rows[r].share ? shares(types[d]) : noise(types[d], ETCH_SHAPE(ROWS, COLUMNS));
                double each[ALL], sum = 0;
                for (int i = 0; i < ALL; i++)
                    sum += each[i] = rows[r].reference(values(x)[i], values(t)[i], &rows[r].o);
                const double want[] = {sum / ALL, sum, 0, sum / ROWS};
                bound_loss b = {rows[r].loss, t, rows[r].o};
                for (int k = 0; k < 4; k++) {
                    b.o.reduction = (etch_reduction)k;
                    etch_tensor *y = must(b.loss(x, t, &b.o));
                    assert_int_equal(etch_dtype_of(y), types[d]);
                    has_sizes(y, k == ETCH_REDUCE_NONE ? ETCH_SHAPE(ROWS, COLUMNS) : ETCH_SHAPE());
                    near_values(y, k == ETCH_REDUCE_NONE ? each : want + k, 8);
                    near_values(must(b.loss(stepped(x), stepped(t), &b.o)),
                                k == ETCH_REDUCE_NONE ? each : want + k, 8);
                    same_when_compiled(&b, x);
                    if (types[d] == ETCH_F64) has_gradient(&b, x);
                }
            }
}

/* Large logits, whose exponentials are not finite; and 0, where the branches meet. */
TEST(bce_at_its_ends) {
    ETCH_SCOPE {
        const double logits[] = {0, 1000, -1000, 0}, truth[] = {0.25, 1, 0, 1}, log2 = log(2);
        etch_tensor *x = must(etch_from_host(logits, ETCH_F64, ETCH_SHAPE(4)));
        etch_tensor *t = must(etch_from_host(truth, ETCH_F64, ETCH_SHAPE(4)));
        etch_tensor *leaf = must(etch_requires_grad_(must(etch_clone(x)), true));
        etch_tensor *y = must(etch_nn_bce_with_logits(leaf, t, .reduction = ETCH_REDUCE_NONE));
        near_values(y, (double[]){log2, 0, 0, log2}, 4);
        assert_int_equal(etch_backward(must(etch_sum(y))), ETCH_OK);
        near_values(etch_grad_of(leaf), (double[]){0.25, 0, 0, -0.5}, 4);
        near_values(must(etch_nn_bce_with_logits(x, must(etch_rsub_scalar(t, 1.0)),
                                                 .reduction = ETCH_REDUCE_NONE)),
                    (double[]){log2, 1000, 1000, log2}, 4);
    }
}

TEST(bce_weights) {
    ETCH_SCOPE {
        etch_tensor *x = noise(ETCH_F64, ETCH_SHAPE(ROWS, COLUMNS)), *t = shares(ETCH_F64);
        etch_tensor *w = must(etch_rand(ETCH_F64, ETCH_SHAPE(ROWS, 1)));
        etch_tensor *pos = must(etch_rand(ETCH_F64, ETCH_SHAPE(COLUMNS)));
        double want[ALL];
        for (int i = 0; i < ALL; i++) {
            double s = 1 / (1 + exp(-values(x)[i])), u = values(t)[i];
            want[i] = -values(w)[i / COLUMNS] *
                      (values(pos)[i % COLUMNS] * u * log(s) + (1 - u) * log1p(-s));
        }
        bound_loss b = {etch_nn_bce_with_logits_with,
                        t,
                        {.weight = w, .pos_weight = pos, .reduction = ETCH_REDUCE_NONE}};
        near_values(must(b.loss(x, t, &b.o)), want, 16);
        same_when_compiled(&b, x);
        has_gradient(&b, x);
        etch_tensor *wide = must(etch_ones(ETCH_F64, ETCH_SHAPE(2, ROWS, COLUMNS)));
        FAILED_WITH(!etch_nn_bce_with_logits(x, t, .weight = wide), ETCH_ERR_SHAPE,
                    "weights that broadcast to the input");
        FAILED_WITH(!etch_nn_bce_with_logits(x, t, .pos_weight = wide), ETCH_ERR_SHAPE,
                    "target [2, 4, 6]");
    }
}

/* ---- classes ---- */

enum { N = 5, C = 4, D = 3 };

/* log_softmax of x [N, C, d]. */
static void log_softmax(const double *x, int d, double *to) {
    for (int i = 0; i < N * d; i++) {
        const double *at = x + i / d * C * d + i % d;
        double sum = 0;
        for (int c = 0; c < C; c++) sum += exp(at[c * d]);
        for (int c = 0; c < C; c++) to[i / d * C * d + i % d + c * d] = at[c * d] - log(sum);
    }
}

/* Of log probabilities; each[] and what the mean is. */
static double by_classes(const double *logs, const int64_t *t, int d, const double *w,
                         int64_t ignore, double smoothing, double *each) {
    double sum = 0, weights = 0;
    for (int i = 0; i < N * d; i++) {
        const double *at = logs + i / d * C * d + i % d;
        each[i] = 0;
        if (t[i] == ignore) continue;
        double all = 0;
        for (int c = 0; c < C; c++) all -= (w ? w[c] : 1) * at[c * d];
        each[i] = -(1 - smoothing) * (w ? w[t[i]] : 1) * at[t[i] * d] + smoothing / C * all;
        sum += each[i], weights += w ? w[t[i]] : 1;
    }
    return sum / weights;
}

static void check_classes(loss_fn loss, const double *logs, etch_tensor *x, etch_tensor *t,
                          const int64_t *classes, int d, etch_loss_options o, int64_t ignore) {
    double each[N * D], sum = 0, smoothing = o.label_smoothing;
    const double *w = o.weight ? values(o.weight) : NULL;
    double mean = by_classes(logs, classes, d, w, ignore, smoothing, each);
    for (int i = 0; i < N * d; i++) sum += each[i];
    bound_loss b = {loss, t, o};
    for (int k = 0; k < 3; k++) {
        b.o.reduction = (etch_reduction)k;
        etch_tensor *y = must(loss(x, t, &b.o));
        etch_shape rows_left = d > 1 ? ETCH_SHAPE(N, D) : ETCH_SHAPE(N);
        has_sizes(y, k == ETCH_REDUCE_NONE ? rows_left : ETCH_SHAPE());
        near_values(y, k == 0 ? &mean : k == 1 ? &sum : each, 32);
        near_values(must(loss(stepped(x), stepped(t), &b.o)),
                    k == 0   ? &mean
                    : k == 1 ? &sum
                             : each,
                    32);
        same_when_compiled(&b, x);
        if (etch_dtype_of(x) == ETCH_F64) has_gradient(&b, x);
    }
}

TEST(cross_entropy_and_nll_of_classes) {
    const etch_dtype types[] = {ETCH_F64, ETCH_F32, ETCH_BF16};
    for (int k = 0; k < 24; k++)
        ETCH_SCOPE {
            int d = k & 1 ? D : 1;
            bool weighted = k & 2, ignores = k & 4;
            etch_dtype type = types[k / 8];
            etch_shape sizes = d > 1 ? ETCH_SHAPE(N, C, D) : ETCH_SHAPE(N, C);
            etch_tensor *x = noise(type, sizes);
            etch_loss_options o = {.ignore = ignores, .ignore_index = ignores ? 2 : 0};
            if (weighted) o.weight = must(etch_rand(type, ETCH_SHAPE(C)));
            int64_t classes[N * D], ignore = ignores ? 2 : -100;
            for (int i = 0; i < N * d; i++) classes[i] = (i * 7 + 1) % C;
            if (!ignores) classes[1] = -100;
            etch_tensor *t =
                must(etch_from_host(classes, ETCH_I64, d > 1 ? ETCH_SHAPE(N, D) : ETCH_SHAPE(N)));
            double logs[N * C * D];
            log_softmax(values(x), d, logs);
            check_classes(etch_nn_nll_loss_with, values(x), x, t, classes, d, o, ignore);
            check_classes(etch_nn_cross_entropy_with, logs, x, t, classes, d, o, ignore);
            o.label_smoothing = 0.25;
            check_classes(etch_nn_cross_entropy_with, logs, x, must(etch_to(t, ETCH_I32)), classes,
                          d, o, ignore);
        }
}

TEST(cross_entropy_of_probabilities) {
    for (int k = 0; k < 8; k++)
        ETCH_SCOPE {
            int d = k & 1 ? D : 1;
            double smoothing = k & 4 ? 0.25 : 0, logs[N * C * D], each[N * D] = {0}, sum = 0;
            etch_shape sizes = d > 1 ? ETCH_SHAPE(N, C, D) : ETCH_SHAPE(N, C);
            etch_tensor *x = noise(ETCH_F64, sizes),
                        *p = must(etch_softmax(noise(ETCH_F64, sizes), 1));
            etch_tensor *w = k & 2 ? must(etch_rand(ETCH_F64, ETCH_SHAPE(C))) : NULL;
            log_softmax(values(x), d, logs);
            for (int i = 0; i < N * C * d; i++) {
                int c = i / d % C;
                double share = values(p)[i] * (1 - smoothing) + smoothing / C;
                each[i / (C * d) * d + i % d] -= (w ? values(w)[c] : 1) * share * logs[i];
            }
            for (int i = 0; i < N * d; i++) sum += each[i];
            double mean = sum / (N * d);
            bound_loss b = {
                etch_nn_cross_entropy_with, p, {.weight = w, .label_smoothing = smoothing}};
            for (int r = 0; r < 3; r++) {
                b.o.reduction = (etch_reduction)r;
                near_values(must(b.loss(x, p, &b.o)), r == 0 ? &mean : r == 1 ? &sum : each, 32);
                same_when_compiled(&b, x);
                has_gradient(&b, x);
            }
        }
}

/* One row without a batch; nothing but ignored targets; an index that there is not. */
TEST(cross_entropy_at_its_ends) {
    ETCH_SCOPE {
        etch_tensor *x = noise(ETCH_F64, ETCH_SHAPE(C)), *rows_of = must(etch_unsqueeze(x, 0));
        etch_tensor *one = must(etch_full(ETCH_I64, ETCH_SHAPE(), 2));
        etch_tensor *batch = must(etch_unsqueeze(one, 0));
        assert_true(etch_allclose(must(etch_nn_cross_entropy(x, one)),
                                  must(etch_nn_cross_entropy(rows_of, batch)), 1e-14, 0, false));
        assert_true(isnan(etch_item(
            must(etch_nn_cross_entropy(rows_of, batch, .ignore = true, .ignore_index = 2)))));
        near_values(must(etch_nn_cross_entropy(rows_of, batch, .ignore = true, .ignore_index = 2,
                                               .reduction = ETCH_REDUCE_SUM)),
                    (double[]){0}, 0);
        etch_tensor *far = must(etch_full(ETCH_I64, ETCH_SHAPE(1), 4)), *y;
        FAILED_WITH((y = etch_nn_cross_entropy(rows_of, far), !y || isnan(etch_item(y))),
                    ETCH_ERR_INDEX, "4");
        const double ends[] = {-1e308, 0, 1e308};
        etch_tensor *wide = must(etch_from_host(ends, ETCH_F64, ETCH_SHAPE(3)));
        near_values(must(etch_nn_cross_entropy(wide, one)), (double[]){0}, 0);
    }
}

/* Forward and backward take the logarithm of the softmax once, and the softmax never. */
TEST(one_log_softmax) {
    ETCH_SCOPE {
        etch_tensor *x = must(etch_requires_grad_(noise(ETCH_F32, ETCH_SHAPE(N, C)), true));
        etch_tensor *t = must(etch_zeros(ETCH_I64, ETCH_SHAPE(N)));
        etch_mode *mode = must(etch_statistics_mode());
        assert_int_equal(etch_mode_push(mode), ETCH_OK);
        etch_tensor *y = must(etch_nn_cross_entropy(x, t, .label_smoothing = 0.1));
        assert_int_equal(etch_backward(y), ETCH_OK);
        assert_int_equal(etch_mode_pop(mode), ETCH_OK);
        assert_int_equal(etch_statistics_mode_count(mode, "_log_softmax"), 1);
        assert_int_equal(etch_statistics_mode_count(mode, "_softmax"), 0);
        etch_mode_free(mode);
    }
}

/* ---- what is refused ---- */

TEST(losses_refuse) {
    ETCH_SCOPE {
        etch_tensor *x = noise(ETCH_F32, ETCH_SHAPE(N, C)), *flat = noise(ETCH_F32, ETCH_SHAPE(C));
        etch_tensor *t = must(etch_zeros(ETCH_I64, ETCH_SHAPE(N)));
        etch_tensor *b = must(etch_zeros(ETCH_BOOL, ETCH_SHAPE(N))), *none = NULL;
        FAILED_WITH(
            !etch_nn_mse_loss(x, flat), ETCH_ERR_SHAPE,
            "etch_nn_mse_loss: expected a target of the input's sizes, got input [5, 4] and "
            "target [4]");
        FAILED_WITH(!etch_nn_l1_loss(x, none), ETCH_ERR_NULL, "etch_nn_l1_loss");
        FAILED_WITH(!etch_nn_kl_div(t, t), ETCH_ERR_DTYPE, "etch_nn_kl_div");
        FAILED_WITH(!etch_nn_huber_loss(x, x, .delta = -1), ETCH_ERR_INVALID_ARGUMENT, "a delta");
        FAILED_WITH(!etch_nn_smooth_l1_loss(x, x, .beta = NAN), ETCH_ERR_INVALID_ARGUMENT,
                    "a beta above 0");
        FAILED_WITH(!etch_nn_mse_loss(x, x, .reduction = (etch_reduction)9),
                    ETCH_ERR_INVALID_ARGUMENT, "a reduction");
        FAILED_WITH(!etch_nn_cross_entropy(x, t, .label_smoothing = 1.5), ETCH_ERR_INVALID_ARGUMENT,
                    "label_smoothing of 0 to 1");
        FAILED_WITH(!etch_nn_cross_entropy(flat, t), ETCH_ERR_SHAPE, "a target without C");
        FAILED_WITH(!etch_nn_cross_entropy(x, flat), ETCH_ERR_SHAPE,
                    "probabilities of these sizes (classes are integers)");
        FAILED_WITH(!etch_nn_cross_entropy(x, b), ETCH_ERR_DTYPE,
                    "expected classes of integers, or probabilities, got bool");
        FAILED_WITH(!etch_nn_nll_loss(x, x), ETCH_ERR_DTYPE, "classes of integers, got f32");
        FAILED_WITH(!etch_nn_nll_loss(x, t, .weight = must(etch_ones(ETCH_F32, ETCH_SHAPE(N)))),
                    ETCH_ERR_SHAPE, "a weight of [C]");
        etch_tensor *single = must(etch_ones(ETCH_F32, ETCH_SHAPE()));
        FAILED_WITH(!etch_nn_cross_entropy(single, single), ETCH_ERR_SHAPE,
                    "etch_nn_cross_entropy");
    }
}

/* By the name that the program has: of the macro, once. */
TEST(errors_name_what_was_called) {
    ETCH_SCOPE {
        etch_clear_error();
        assert_null(etch_nn_mse_loss(NULL, NULL));
        static const char begin[] = "etch_nn_mse_loss: expected";
        if (strncmp(etch_last_error(), begin, sizeof begin - 1)) fail_msg("%s", etch_last_error());
        etch_clear_error();
    }
}
