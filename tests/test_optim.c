/* Optimisers: each against plain loops in double that follow the published formulas, over options
 * and dtypes; compiled steps against eager ones bit for bit, compiled once; groups, clipping,
 * schedules, files.
 * Labels: quick. */
#include "file_support.h"

EACH_TEST(.before = fresh_folder)

enum { N = 7, STEPS = 5 };

/* ---- the formulas, on one number each ---- */

typedef struct number_state {
    double w, buf, mean, square, top;
} number_state;

static void reference(int kind, const etch_optim_options *o, number_state *s, double g, int t) {
    double lr = o->lr;
    if (o->maximize) g = -g;
    if (kind == 2) s->w *= 1 - lr * o->weight_decay;
    else g += o->weight_decay * s->w;
    if (kind == 0) {
        if (o->momentum > 0) {
            s->buf = t == 1 ? g : o->momentum * s->buf + (1 - o->dampening) * g;
            g = o->nesterov ? g + o->momentum * s->buf : s->buf;
        }
        s->w -= lr * g;
        return;
    }
    if (kind == 3) {
        s->square = o->alpha * s->square + (1 - o->alpha) * g * g;
        double v = s->square;
        if (o->centered) s->mean = o->alpha * s->mean + (1 - o->alpha) * g, v -= s->mean * s->mean;
        double part = g / (sqrt(v) + o->eps);
        if (o->momentum > 0) part = s->buf = o->momentum * s->buf + part;
        s->w -= lr * part;
        return;
    }
    s->mean = o->beta1 * s->mean + (1 - o->beta1) * g;
    s->square = o->beta2 * s->square + (1 - o->beta2) * g * g;
    s->top = fmax(s->top, s->square);
    double v = o->amsgrad ? s->top : s->square;
    double below = sqrt(v) / sqrt(1 - pow(o->beta2, t)) + o->eps;
    s->w -= lr / (1 - pow(o->beta1, t)) * s->mean / below;
}

typedef etch_optim *(*make_fn)(const etch_module *, const etch_optim_options *);
static const make_fn makers[] = {etch_optim_sgd_with, etch_optim_adam_with, etch_optim_adamw_with,
                                 etch_optim_rmsprop_with};

/* Options as they are given; the reference gets them with the defaults put in. */
static const struct row {
    int kind;
    etch_optim_options o;
} rows[] = {
    {0, {.lr = 0.1}},
    {0, {.lr = 0.1, .weight_decay = 0.05, .maximize = true}},
    {0, {.lr = 0.1, .momentum = 0.9}},
    {0, {.lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1}},
    {0, {.lr = 0.1, .momentum = 0.8, .nesterov = true, .weight_decay = 0.1}},
    {1, {0}},
    {1, {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1}},
    {1, {.lr = 0.02, .amsgrad = true, .beta2 = 0.3, .maximize = true}},
    {1, {.lr = 0.02, .beta1 = -1}},
    {2, {0}},
    {2, {.lr = 0.02, .weight_decay = 0.5}},
    {2, {.lr = 0.02, .weight_decay = -1, .amsgrad = true}},
    {3, {0}},
    {3, {.lr = 0.02, .alpha = 0.5, .eps = 1e-3, .weight_decay = 0.1}},
    {3, {.lr = 0.02, .centered = true, .alpha = 0.7}},
    {3, {.lr = 0.02, .momentum = 0.9, .centered = true, .maximize = true}},
};

static void put(double *value, double otherwise) {
    *value = *value == 0 ? otherwise : *value < 0 ? 0 : *value;
}

static etch_optim_options with_defaults(const struct row *r) {
    etch_optim_options o = r->o;
    put(&o.lr, r->kind == 3 ? 1e-2 : 1e-3);
    put(&o.weight_decay, r->kind == 2 ? 1e-2 : 0);
    put(&o.beta1, 0.9), put(&o.beta2, 0.999), put(&o.eps, 1e-8), put(&o.alpha, 0.99);
    return o;
}

static etch_tensor *leaf(etch_dtype dtype, uint64_t seed, int64_t n) {
    etch_manual_seed(seed);
    return must(etch_requires_grad_(must(etch_randn(dtype, ETCH_SHAPE(n))), true));
}

static etch_tensor *gradient(etch_dtype dtype, int step) {
    etch_manual_seed(100 + (uint64_t)step);
    return must(etch_randn(dtype, ETCH_SHAPE(N)));
}

/* What may go wrong by rounding in a few steps of lr up to 0.1; numbers of steps as numbers and as
 * tensors. */
TEST(formulas) {
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int way = 0; way < 4; way++)
            ETCH_SCOPE {
                etch_dtype dtype = way & 1 ? ETCH_F32 : ETCH_F64;
                struct row row = rows[r];
                row.o.capturable = way & 2;
                etch_tensor *w = leaf(dtype, 1, N);
                etch_optim_options o = with_defaults(&rows[r]);
                number_state s[N] = {{0}};
                etch_optim *opt = must(makers[row.kind](NULL, &row.o));
                assert_int_equal(etch_optim_add_with(opt, &w, 1, NULL), 0);
                for (int i = 0; i < N; i++) s[i].w = values(w)[i];
                for (int t = 1; t <= STEPS; t++) {
                    double want[N];
                    etch_tensor *g = gradient(dtype, t);
                    assert_int_equal(etch_set_grad(w, g), ETCH_OK);
                    assert_int_equal(etch_optim_step(opt), ETCH_OK);
                    for (int i = 0; i < N; i++) {
                        reference(rows[r].kind, &o, &s[i], values(g)[i], t);
                        want[i] = s[i].w;
                    }
                    near_values(w, want, 64);
                }
                assert_true(etch_requires_grad(w) && etch_is_leaf(w));
                assert_int_equal(etch_optim_steps(opt), STEPS);
                etch_optim_free(opt);
            }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- compiled ---- */

typedef struct training {
    etch_optim *o;
    etch_tensor *w[2], *norm;
    bool clips;
} training;

/* Gradients come in from outside, or from a backward call inside. */
static etch_status step_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                             int nout) {
    training *t = ctx;
    (void)nout, (void)nin;
    for (int i = 0; i < 2; i++)
        if (!etch_copy_(etch_grad_of(t->w[i]), in[i])) return etch_last_status();
    out[0] = t->clips ? etch_optim_clip_grad_norm(t->o, 0.5) : etch_neg(in[0]);
    return out[0] ? etch_optim_step(t->o) : etch_last_status();
}

static training begin(const struct row *r, bool clips) {
    training t = {.clips = clips, .o = must(makers[r->kind](NULL, &r->o))};
    for (int i = 0; i < 2; i++) {
        t.w[i] = leaf(ETCH_F32, (uint64_t)i, N);
        assert_int_equal(etch_set_grad(t.w[i], must(etch_zeros(ETCH_F32, ETCH_SHAPE(N)))), ETCH_OK);
    }
    assert_int_equal(etch_optim_add_with(t.o, t.w, 2, NULL), 0);
    return t;
}

/* Steps, rates and powers change; the code does not. */
TEST(compiled_steps_are_compiled_once) {
    static const char *const backends[] = {"eager", "native"};
    const etch_schedule cosine = {.kind = ETCH_SCHEDULE_COSINE, .total = 4, .warmup = 2};
    for (size_t k = 0; k < 8 * sizeof rows / sizeof *rows; k++)
        ETCH_SCOPE {
            struct row own = rows[k / 8], *r = &own;
            own.o.capturable = k & 4;
            training plain = begin(r, k & 2), fast = begin(r, k & 2);
            etch_optim_set_schedule(plain.o, &cosine);
            etch_optim_set_schedule(fast.o, &cosine);
            const etch_compile_options options = {
                .struct_size = sizeof options, .backend = backends[k & 1], .ctx = &fast};
            etch_function *f = must(etch_compile_n(step_body, &options));
            for (int step = 0; step < 6; step++) {
                etch_tensor *in[2] = {gradient(ETCH_F32, step), gradient(ETCH_F32, step + 50)};
                etch_tensor *a = NULL, *b = NULL;
                if (step_body(&plain, in, 2, &a, 1) != ETCH_OK) must(NULL);
                if (etch_call_n(f, in, 2, &b, 1) != ETCH_OK) must(NULL);
                assert_true(etch_bitwise_equal(a, b));
                for (int i = 0; i < 2; i++)
                    if (!etch_bitwise_equal(plain.w[i], fast.w[i]))
                        fail_msg("row %d, step %d, tensor %d", (int)k, step, i);
            }
            etch_counters_t counts = etch_function_counters(f);
            assert_int_equal(counts.graphs, 1);
            assert_int_equal(counts.graph_breaks, 0);
            etch_function_free(f);
            etch_optim_free(plain.o);
            etch_optim_free(fast.o);
        }
}

/* The body is not run, but the step counts. With gradients no body is replayed. */
TEST(capturable_steps_are_replayed) {
    const struct row adam = {1, {.lr = 0.02, .capturable = true}};
    const struct row sgd = {0, {.lr = 0.02, .momentum = 0.9, .dampening = 0.5, .capturable = true}};
    for (int kind = 0; kind < 2; kind++)
        ETCH_SCOPE {
            training plain = begin(kind ? &adam : &sgd, false),
                     fast = begin(kind ? &adam : &sgd, 0);
            etch_function *f = must(etch_compile(step_body, .ctx = &fast, .replay = true));
            for (int step = 0; step < 6; step++) {
                etch_tensor *in[2] = {gradient(ETCH_F32, step), gradient(ETCH_F32, step + 50)};
                etch_tensor *a = NULL, *b = NULL;
                if (step_body(&plain, in, 2, &a, 1) != ETCH_OK) must(NULL);
                ETCH_NO_GRAD
                    if (etch_call_n(f, in, 2, &b, 1) != ETCH_OK) must(NULL);
                for (int i = 0; i < 2; i++) assert_true(etch_bitwise_equal(plain.w[i], fast.w[i]));
            }
            assert_true(etch_optim_steps(fast.o) < 6);
            etch_function_free(f);
            etch_optim_free(plain.o);
            etch_optim_free(fast.o);
        }
}

/* ---- whole training ---- */

static etch_module *perceptron(void) {
    etch_manual_seed(11);
    etch_module *layers[] = {etch_nn_linear(2, 8, ETCH_F32), etch_nn_tanh(),
                             etch_nn_linear(8, 2, ETCH_F32)};
    return must(etch_nn_sequential(layers, 3));
}

/* Points and whether their coordinates have one sign. */
static void quadrants(etch_tensor **x, etch_tensor **t) {
    etch_manual_seed(12);
    *x = must(etch_randn(ETCH_F32, ETCH_SHAPE(64, 2)));
    etch_tensor *product = must(etch_prod_dim(*x, 1, false));
    *t = must(etch_to(must(etch_gt_scalar(product, 0.0)), ETCH_I64));
}

TEST(training_learns) {
    for (int kind = 0; kind < 4; kind++)
        ETCH_SCOPE {
            etch_module *m = perceptron();
            etch_tensor *x, *t;
            quadrants(&x, &t);
            const etch_optim_options o = {.lr = kind ? 0.02 : 0.5, .momentum = kind ? 0 : 0.9};
            etch_optim *opt = must(makers[kind](m, &o));
            double first = 0, last = 0;
            for (int step = 0; step < 150; step++)
                ETCH_SCOPE {
                    etch_tensor *loss = must(etch_nn_cross_entropy(etch_module_call(m, x), t));
                    last = etch_item(loss);
                    if (!step) first = last;
                    assert_int_equal(etch_backward(loss), ETCH_OK);
                    assert_int_equal(etch_optim_step(opt), ETCH_OK);
                    assert_int_equal(etch_optim_zero_grad(opt), ETCH_OK);
                    assert_null(etch_grad_of(etch_module_parameter_at(m, 0)));
                }
            if (last > first / 4) fail_msg("kind %d: loss from %g to %g", kind, first, last);
            etch_optim_free(opt);
            etch_module_free(m);
        }
}

/* Two halves of a batch, one after the other, are the batch. */
TEST(gradients_accumulate) {
    ETCH_SCOPE {
        etch_module *m = perceptron();
        etch_optim *o = must(etch_optim_sgd(m));
        etch_tensor *x, *t, *w = etch_module_parameter(m, "0.weight");
        quadrants(&x, &t);
        assert_int_equal(etch_backward(etch_nn_cross_entropy(etch_module_call(m, x), t)), ETCH_OK);
        etch_tensor *whole = must(etch_clone(etch_grad_of(w)));
        assert_int_equal(etch_optim_zero_grad(o), ETCH_OK);
        for (int half = 0; half < 2; half++) {
            etch_tensor *part = must(etch_narrow(x, 0, half * 32, 32));
            etch_tensor *of = must(etch_narrow(t, 0, half * 32, 32));
            assert_int_equal(etch_backward(etch_nn_cross_entropy(etch_module_call(m, part), of)),
                             ETCH_OK);
        }
        assert_int_equal(etch_optim_scale_grad(o, 0.5), ETCH_OK);
        assert_true(etch_allclose(etch_grad_of(w), whole, 1e-5, 1e-7, false));
        etch_optim_free(o);
        etch_module_free(m);
    }
}

/* ---- groups ---- */

TEST(groups_have_their_own_rates) {
    ETCH_SCOPE {
        etch_tensor *a = leaf(ETCH_F64, 1, N), *b = leaf(ETCH_F64, 2, N), *c = leaf(ETCH_F64, 3, N);
        etch_tensor *one = must(etch_ones(ETCH_F64, ETCH_SHAPE(N)));
        etch_tensor *const ab[2] = {a, b}, *before = must(etch_clone(b));
        etch_optim *o = must(etch_optim_sgd(NULL, .lr = 0.5));
        assert_int_equal(etch_optim_add_with(o, ab, 2, NULL), 0);
        assert_int_equal(etch_optim_add(o, &c, 1, .lr = 0.25), 1);
        double want_a[N], want_c[N];
        for (int i = 0; i < N; i++) want_a[i] = values(a)[i] - 0.5, want_c[i] = values(c)[i] - 0.25;
        assert_int_equal(etch_set_grad(a, one), ETCH_OK);
        assert_int_equal(etch_set_grad(c, must(etch_clone(one))), ETCH_OK);
        assert_int_equal(etch_optim_step(o), ETCH_OK);
        near_values(a, want_a, 1);
        near_values(c, want_c, 1);
        assert_true(etch_bitwise_equal(b, before)); /* it has no gradient */
        assert_int_equal(etch_optim_set_lr(o, 1, 2.0), ETCH_OK);
        assert_true(etch_optim_lr(o, 0) == 0.5 && etch_optim_lr(o, 1) == 2);
        assert_int_equal(etch_optim_set_lr(o, -1, 0.0), ETCH_OK);
        assert_int_equal(etch_optim_step(o), ETCH_OK);
        near_values(a, want_a, 1);
        FAILED_WITH(etch_optim_add_with(o, ab, 1, NULL) == -1, ETCH_ERR_INVALID_ARGUMENT,
                    "already");
        etch_optim_free(o);
    }
}

TEST(what_is_refused) {
    ETCH_SCOPE {
        etch_tensor *a = leaf(ETCH_F32, 1, N), *none = NULL, *result = must(etch_neg(a));
        etch_tensor *whole = must(etch_ones(ETCH_I32, ETCH_SHAPE(2)));
        etch_tensor *const twice[2] = {leaf(ETCH_F32, 2, N), a};
        etch_optim *o = must(etch_optim_adam(NULL));
        assert_int_equal(etch_optim_add_with(o, &a, 1, NULL), 0);
        FAILED_WITH(etch_optim_add(o, twice, 2) == -1, ETCH_ERR_INVALID_ARGUMENT,
                    "etch_optim_add: a tensor is in the optimiser already");
        FAILED_WITH(etch_optim_add(o, &whole, 1) == -1, ETCH_ERR_DTYPE, "got i32");
        FAILED_WITH(etch_optim_add(o, &result, 1) == -1, ETCH_ERR_INVALID_ARGUMENT, "of their own");
        FAILED_WITH(etch_optim_add(o, &none, 1) == -1, ETCH_ERR_NULL, "etch_optim_add");
        FAILED_WITH(etch_optim_add_module(o, NULL) == -1, ETCH_ERR_NULL, "etch_optim_add_module");
        assert_int_equal(etch_optim_add(o, twice, 1), 1); /* what failed has left no group */
        FAILED_WITH(etch_optim_set_lr(o, 2, 1.0) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT, "below 2");
        FAILED_WITH(etch_optim_set_lr(o, 0, NAN) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT, "finite");
        FAILED_WITH(isnan(etch_optim_lr(o, -1)), ETCH_ERR_INVALID_ARGUMENT, "etch_optim_lr");
        FAILED_WITH(!etch_optim_adam(NULL, .beta1 = 1), ETCH_ERR_INVALID_ARGUMENT, "beta1 below 1");
        FAILED_WITH(!etch_optim_sgd(NULL, .nesterov = true), ETCH_ERR_INVALID_ARGUMENT,
                    "etch_optim_sgd: expected nesterov with momentum");
        FAILED_WITH(!etch_optim_rmsprop(NULL, .lr = INFINITY), ETCH_ERR_INVALID_ARGUMENT, "lr");
        FAILED_WITH(!etch_optim_adamw(NULL, .eps = NAN), ETCH_ERR_INVALID_ARGUMENT, "eps");
        FAILED_WITH(etch_optim_step(NULL) != ETCH_OK, ETCH_ERR_NULL, "etch_optim_step");
        etch_optim_free(o);
        etch_optim_free(NULL);
        assert_int_equal(etch_optim_steps(NULL), -1);
    }
}

/* A frozen parameter has no state until it gets a gradient. */
TEST(frozen_parameters) {
    ETCH_SCOPE {
        etch_module *m = perceptron();
        assert_int_equal(etch_module_requires_grad_(etch_module_child(m, 0), false), ETCH_OK);
        int64_t before = etch_memory().tensors;
        etch_optim *o = must(etch_optim_adam(m));
        assert_int_equal(etch_memory().tensors, before + 4);
        etch_tensor *w = etch_module_parameter(m, "0.bias");
        must(etch_requires_grad_(w, true));
        assert_int_equal(etch_set_grad(w, must(etch_ones(ETCH_F32, ETCH_SHAPE(8)))), ETCH_OK);
        assert_int_equal(etch_optim_step(o), ETCH_OK);
        assert_int_equal(etch_memory().tensors, before + 4 + 3); /* the gradient is one */
        etch_optim_free(o);
        etch_module_free(m);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- clipping ---- */

TEST(clipping_by_norm) {
    for (int half = 0; half < 2; half++)
        ETCH_SCOPE {
            etch_dtype dtype = half ? ETCH_BF16 : ETCH_F64;
            etch_tensor *w[3] = {leaf(dtype, 1, N), leaf(dtype, 2, N), leaf(dtype, 3, N)};
            etch_optim *o = must(etch_optim_sgd(NULL));
            assert_int_equal(etch_optim_add(o, w, 3), 0);
            double norm = 0, want[N], e = half ? 0x1p-7 : 1e-6;
            for (int i = 0; i < 2; i++) {
                assert_int_equal(etch_set_grad(w[i], gradient(dtype, i)), ETCH_OK);
                for (int k = 0; k < N; k++) norm += pow(values(etch_grad_of(w[i]))[k], 2);
            }
            norm = sqrt(norm);
            for (int k = 0; k < N; k++) want[k] = values(etch_grad_of(w[1]))[k];
            etch_tensor *large = must(etch_optim_clip_grad_norm(o, norm + 1)); /* nothing to do */
            assert_true(fabs(etch_item(large) / norm - 1) < 1e-6);
            near_values(etch_grad_of(w[1]), want, 0);
            assert_int_equal(etch_dtype_of(large), half ? ETCH_F32 : ETCH_F64);
            must(etch_optim_clip_grad_norm(o, 0.25));
            for (int k = 0; k < N; k++)
                assert_true(fabs(values(etch_grad_of(w[1]))[k] - want[k] * 0.25 / norm) < e);
            assert_true(fabs(etch_item(must(etch_optim_clip_grad_norm(o, 9.0))) - 0.25) < e);
            FAILED_WITH(!etch_optim_clip_grad_norm(o, NAN), ETCH_ERR_INVALID_ARGUMENT, "got nan");
            FAILED_WITH(!etch_optim_clip_grad_norm(NULL, 1), ETCH_ERR_NULL, "clip_grad_norm");
            assert_int_equal(etch_optim_zero_grad(o), ETCH_OK);
            near_values(must(etch_optim_clip_grad_norm(o, 1.0)), (double[]){0}, 0);
            etch_optim_free(o);
        }
}

TEST(clipping_by_value) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_F64, 1, N), *g = gradient(ETCH_F64, 1);
        etch_optim *o = must(etch_optim_sgd(NULL));
        double want[N];
        assert_int_equal(etch_optim_add(o, &w, 1), 0);
        assert_int_equal(etch_set_grad(w, g), ETCH_OK);
        for (int k = 0; k < N; k++) want[k] = fmin(fmax(values(g)[k], -0.5), 0.5);
        assert_int_equal(etch_optim_clip_grad_value(o, 0.5), ETCH_OK);
        near_values(etch_grad_of(w), want, 0);
        FAILED_WITH(etch_optim_clip_grad_value(o, -1) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT, "-1");
        etch_optim_free(o);
    }
}

/* ---- schedules ---- */

static void factors(etch_schedule s, const double *want, int n) {
    for (int i = 0; i < n; i++) {
        double have = etch_schedule_factor(&s, i);
        if (!(fabs(have - want[i]) < 1e-12))
            fail_msg("step %d: want %g, have %g", i, want[i], have);
    }
}

TEST(schedules) {
    factors((etch_schedule){0}, (double[]){1, 1, 1}, 3);
    factors((etch_schedule){.warmup = 4}, (double[]){0.25, 0.5, 0.75, 1, 1}, 5);
    factors((etch_schedule){.kind = ETCH_SCHEDULE_STEP, .period = 2, .gamma = 0.5, .warmup = 1},
            (double[]){1, 1, 1, 0.5, 0.5, 0.25}, 6);
    factors((etch_schedule){.kind = ETCH_SCHEDULE_STEP, .period = 1}, (double[]){1, 0.1, 0.01}, 3);
    factors((etch_schedule){.kind = ETCH_SCHEDULE_COSINE, .total = 4, .least = 0.2},
            (double[]){1, 0.2 + 0.4 * (1 + sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - sqrt(0.5)), 0.2, 0.2},
            6);
    /* up over 3 steps (0.4 of 10, less one), down over 6 */
    const double low = 0.1, end = 0.001;
    double want[12];
    for (int i = 0; i < 12; i++)
        want[i] = i <= 3  ? 1 + (low - 1) * (1 + cos(acos(-1) * i / 3)) / 2
                  : i < 9 ? end + (1 - end) * (1 + cos(acos(-1) * (i - 3) / 6)) / 2
                          : end;
    factors(
        (etch_schedule){
            .kind = ETCH_SCHEDULE_ONE_CYCLE, .total = 10, .part = 0.4, .div = 10, .final_div = 100},
        want, 12);
}

TEST(schedules_of_an_optimiser) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_F64, 1, N);
        etch_optim *o = must(etch_optim_sgd(NULL, .lr = 2));
        const etch_schedule s = {.kind = ETCH_SCHEDULE_STEP, .period = 1, .gamma = 0.5};
        const etch_schedule bad = {.kind = ETCH_SCHEDULE_STEP};
        assert_int_equal(etch_optim_add_with(o, &w, 1, NULL), 0);
        assert_int_equal(etch_optim_set_schedule(o, &s), ETCH_OK);
        double at = values(w)[0];
        for (int i = 0; i < 3; i++) {
            assert_true(etch_optim_lr(o, 0) == 2 * pow(0.5, i));
            assert_int_equal(etch_set_grad(w, must(etch_ones(ETCH_F64, ETCH_SHAPE(N)))), ETCH_OK);
            assert_int_equal(etch_optim_step(o), ETCH_OK);
            assert_true(fabs(values(w)[0] - (at -= 2 * pow(0.5, i))) < 1e-14);
        }
        assert_int_equal(etch_optim_set_schedule(o, NULL), ETCH_OK);
        assert_true(etch_optim_lr(o, 0) == 2);
        FAILED_WITH(etch_optim_set_schedule(o, &bad) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "etch_schedule_factor");
        FAILED_WITH(isnan(etch_schedule_factor(NULL, 0)), ETCH_ERR_NULL, "etch_schedule_factor");
        FAILED_WITH(isnan(etch_schedule_factor(&s, -1)), ETCH_ERR_INVALID_ARGUMENT, "");
        etch_optim_free(o);
    }
}

/* ---- half types ---- */

/* A thousand steps of 2^-10: bf16 alone stays at 1, where numbers are 2^-7 apart. */
TEST(masters_keep_what_halves_lose) {
    for (int master = 0; master < 2; master++)
        ETCH_SCOPE {
            etch_tensor *w = must(etch_ones(ETCH_BF16, ETCH_SHAPE(3)));
            must(etch_requires_grad_(w, true));
            etch_optim *o = must(etch_optim_sgd(NULL, .lr = 0x1p-10, .master = master));
            assert_int_equal(etch_optim_add_with(o, &w, 1, NULL), 0);
            etch_tensor *g = must(etch_full(ETCH_BF16, ETCH_SHAPE(3), -1.0));
            assert_int_equal(etch_set_grad(w, g), ETCH_OK);
            for (int i = 0; i < 1024; i++) assert_int_equal(etch_optim_step(o), ETCH_OK);
            const double want = master ? 2 : 1;
            near_values(w, (double[]){want, want, want}, 0);
            etch_optim_free(o);
        }
}

/* bf16 parameters with masters follow the f32 optimiser of the same gradients, rounded. */
TEST(masters_are_f32_training) {
    for (int kind = 0; kind < 4; kind++)
        ETCH_SCOPE {
            const etch_optim_options o = {.lr = 0.05, .momentum = 0.5, .master = true};
            etch_tensor *half = leaf(ETCH_BF16, 1, N), *wide = must(etch_to(half, ETCH_F32));
            wide = must(etch_requires_grad_(must(etch_detach(wide)), true));
            etch_optim *a = must(makers[kind](NULL, &o)), *b = must(makers[kind](NULL, &o));
            assert_int_equal(etch_optim_add_with(a, &half, 1, NULL), 0);
            assert_int_equal(etch_optim_add_with(b, &wide, 1, NULL), 0);
            for (int i = 0; i < STEPS; i++) {
                etch_tensor *g = gradient(ETCH_BF16, i);
                assert_int_equal(etch_set_grad(half, g), ETCH_OK);
                assert_int_equal(etch_set_grad(wide, must(etch_to(g, ETCH_F32))), ETCH_OK);
                assert_int_equal(etch_optim_step(a), ETCH_OK);
                assert_int_equal(etch_optim_step(b), ETCH_OK);
                ETCH_NO_GRAD {
                    assert_true(etch_bitwise_equal(half, must(etch_to(wide, ETCH_BF16))));
                }
            }
            etch_optim_free(a);
            etch_optim_free(b);
        }
}

/* ---- files ---- */

static void train(etch_optim *o, etch_module *m, int from, int to) {
    for (int i = from; i < to; i++)
        ETCH_SCOPE {
            for (int k = 0; k < etch_module_parameter_count(m); k++) {
                etch_tensor *p = etch_module_parameter_at(m, k);
                etch_manual_seed((uint64_t)(1000 * k + i));
                etch_tensor *g = must(etch_randn(etch_dtype_of(p), etch_sizes(p)));
                assert_int_equal(etch_set_grad(p, g), ETCH_OK);
            }
            assert_int_equal(etch_optim_step(o), ETCH_OK);
        }
}

/* Ten steps are five, a file, and five more in another process's stead. */
TEST(training_goes_on_from_files) {
    for (size_t k = 0; k < 2 * sizeof rows / sizeof *rows; k++)
        ETCH_SCOPE {
            size_t r = k / 2;
            etch_module *whole = perceptron(), *part = perceptron(), *other = perceptron();
            etch_optim_options o = rows[r].o, plain;
            o.capturable = k % 2, plain = o, plain.lr = 77;
            if (r % 3 == 0) {
                etch_module_to(whole, ETCH_BF16);
                etch_module_to(part, ETCH_BF16);
                etch_module_to(other, ETCH_BF16);
                o.master = plain.master = true;
            }
            etch_optim *a = must(makers[rows[r].kind](whole, &o));
            etch_optim *b = must(makers[rows[r].kind](part, &o));
            train(a, whole, 0, 10);
            train(b, part, 0, 5);
            assert_int_equal(etch_module_save(part, path_of("m")), ETCH_OK);
            assert_int_equal(etch_optim_save(b, path_of("o")), ETCH_OK);
            etch_optim *c = must(makers[rows[r].kind](other, &plain));
            train(c, other, 20, 23);
            assert_int_equal(etch_module_load(other, path_of("m"), true), ETCH_OK);
            if (etch_optim_load(c, path_of("o")) != ETCH_OK) must(NULL);
            assert_int_equal(etch_optim_steps(c), 5);
            assert_true(etch_optim_lr(c, 0) == etch_optim_lr(b, 0));
            train(c, other, 5, 10);
            same_tensors(whole, other);
            etch_optim_free(a), etch_optim_free(b), etch_optim_free(c);
            etch_module_free(whole), etch_module_free(part), etch_module_free(other);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

/* What one has written the other one reads, before its first step too, and both go on alike. */
TEST(files_serve_both_kinds_of_steps) {
    for (int way = 0; way < 4; way++)
        ETCH_SCOPE {
            etch_module *part = perceptron(), *other = perceptron();
            etch_optim *a = must(etch_optim_adam(part, .lr = 0.02, .capturable = way & 1));
            etch_optim *b = must(etch_optim_adam(other, .lr = 9, .capturable = !(way & 1)));
            if (way & 2) train(b, other, 20, 23);
            train(a, part, 0, 5);
            assert_int_equal(etch_optim_save(a, path_of("o")), ETCH_OK);
            assert_int_equal(etch_module_save(part, path_of("m")), ETCH_OK);
            assert_int_equal(etch_module_load(other, path_of("m"), true), ETCH_OK);
            if (etch_optim_load(b, path_of("o")) != ETCH_OK) must(NULL);
            train(a, part, 5, 10);
            train(b, other, 5, 10);
            for (int i = 0; i < etch_module_parameter_count(part); i++)
                near_values(etch_module_parameter_at(part, i),
                            values(etch_module_parameter_at(other, i)), 16);
            assert_int_equal(etch_optim_save(b, path_of("o")), ETCH_OK);
            etch_safetensors *f = must(etch_safetensors_load(path_of("o")));
            int at = etch_safetensors_find(f, "0.2.bias.step");
            assert_int_equal(etch_item_int(must(etch_safetensors_tensor(f, at))), 10);
            etch_safetensors_free(f);
            etch_optim_free(a), etch_optim_free(b);
            etch_module_free(part), etch_module_free(other);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(what_a_file_has) {
    ETCH_SCOPE {
        etch_module *m = perceptron();
        etch_optim *o = must(etch_optim_adam(m, .capturable = true));
        train(o, m, 0, 2);
        assert_int_equal(etch_optim_save(o, path_of("o")), ETCH_OK);
        etch_safetensors *f = must(etch_safetensors_load(path_of("o")));
        assert_int_equal(etch_safetensors_count(f), 12);
        int i = etch_safetensors_find(f, "0.0.weight.exp_avg_sq");
        assert_true(i >= 0);
        has_sizes(etch_safetensors_tensor(f, i), ETCH_SHAPE(8, 2));
        i = etch_safetensors_find(f, "0.2.bias.step");
        assert_int_equal(etch_item_int(etch_safetensors_tensor(f, i)), 2);
        assert_non_null(strstr(etch_safetensors_text(f, "etch_optim"),
                               "{\"kind\":\"adam\",\"steps\":2,\"groups\":[{\"lr\":0.001"));
        etch_safetensors_free(f);
        etch_optim_free(o);
        etch_module_free(m);
    }
}

/* The file with `from` in its text turned into `to`, as long. */
static void altered(const char *from, const char *to) {
    size_t n;
    char *bytes = read_bytes(path_of("o"), &n), *at = NULL;
    for (size_t i = 0; i + strlen(from) <= n && !at; i++)
        if (!memcmp(bytes + i, from, strlen(from))) at = bytes + i;
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    write_bytes(path_of("bad"), bytes, n);
    free(bytes);
}

/* A load that fails leaves steps, rates and state: the next step is as without it. */
TEST(files_that_do_not_fit) {
    static const struct {
        const char *from, *to, *words;
        etch_status status;
    } lies[] = {
        {"\\\"adam\\\"", "\\\"adan\\\"", "another kind", ETCH_ERR_FORMAT},
        {"\\\"steps\\\":3", "\\\"steps\\\":-", "whole number", ETCH_ERR_FORMAT},
        {"\\\"lr\\\"", "\\\"rl\\\"", "an option that there is not", ETCH_ERR_FORMAT},
        {"\\\"eps\\\"", "\\\"lr\\\" ", "an option that there is not, or twice", ETCH_ERR_FORMAT},
        {"\\\"lr\\\":0.001,", "\\\"lr\\\":0.0.1,", "closing bracket", ETCH_ERR_FORMAT},
        {"\\\"beta1\\\":0", "\\\"beta1\\\":9", "cannot be", ETCH_ERR_FORMAT},
        {"\\\"amsgrad\\\":false", "\\\"amsgrad\\\":true ", "keep other state", ETCH_ERR_FORMAT},
        {"etch_optim", "etch_0ptim", "no description", ETCH_ERR_FORMAT},
        {"0.0.bias.step", "0.1.bias.step", "no step of 0.0.bias", ETCH_ERR_FORMAT},
        {"0.2.bias.exp_avg\"", "0.3.bias.exp_avg\"", "not all state of 0.2.bias", ETCH_ERR_FORMAT},
        {"exp_avg\":{\"dtype\":\"F32\",\"shape\":[8,2]",
         "exp_avg\":{\"dtype\":\"F32\",\"shape\":[2,8]",
         "expected '0.0.weight.exp_avg' of sizes [8, 2]", ETCH_ERR_SHAPE},
    };
    ETCH_SCOPE {
        etch_module *m = perceptron(), *same = perceptron();
        etch_optim *o = must(etch_optim_adam(m)), *untouched = must(etch_optim_adam(same));
        train(o, m, 0, 3), train(untouched, same, 0, 3);
        assert_int_equal(etch_optim_save(o, path_of("o")), ETCH_OK);
        train(o, m, 3, 4), train(untouched, same, 3, 4);
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
            altered(lies[i].from, lies[i].to);
            etch_clear_error();
            if (etch_optim_load(o, path_of("bad")) == ETCH_OK ||
                etch_last_status() != lies[i].status || !strstr(etch_last_error(), lies[i].words))
                fail_msg("%s: %s", lies[i].to, etch_last_error());
        }
        FAILED_WITH(etch_optim_load(o, path_of("none")) != ETCH_OK, ETCH_ERR_IO, "");
        etch_optim *fewer = must(etch_optim_adam(etch_module_child(m, 0)));
        FAILED_WITH(etch_optim_load(fewer, path_of("o")) != ETCH_OK, ETCH_ERR_FORMAT, "0.weight");
        FAILED_WITH(etch_optim_save(NULL, "x") != ETCH_OK, ETCH_ERR_NULL, "etch_optim_save");
        FAILED_WITH(etch_optim_load(o, NULL) != ETCH_OK, ETCH_ERR_NULL, "etch_optim_load");
        assert_int_equal(etch_optim_steps(o), 4);
        train(o, m, 4, 6), train(untouched, same, 4, 6);
        same_tensors(m, same);
        etch_optim_free(o), etch_optim_free(untouched), etch_optim_free(fewer);
        etch_module_free(m), etch_module_free(same);
    }
}

/* All of a good file, and a tensor more. */
TEST(files_with_more) {
    ETCH_SCOPE {
        etch_tensor *w = leaf(ETCH_F32, 1, N);
        etch_optim *o = must(etch_optim_adam(NULL));
        assert_int_equal(etch_optim_add_with(o, &w, 1, NULL), 0);
        assert_int_equal(etch_optim_save(o, path_of("o")), ETCH_OK);
        etch_safetensors *f = must(etch_safetensors_load(path_of("o")));
        etch_named_tensor all[4] = {{"0.1.exp_avg", w}};
        for (int i = 0; i < 3; i++)
            all[1 + i] = (etch_named_tensor){etch_safetensors_name(f, i),
                                             must(etch_safetensors_tensor(f, i))};
        const etch_named_text text = {"etch_optim", etch_safetensors_text(f, "etch_optim")};
        assert_int_equal(etch_safetensors_save(path_of("less"), all + 1, 3, &text, 1), ETCH_OK);
        assert_int_equal(etch_safetensors_save(path_of("more"), all, 4, &text, 1), ETCH_OK);
        etch_safetensors_free(f);
        assert_int_equal(etch_optim_load(o, path_of("less")), ETCH_OK);
        FAILED_WITH(etch_optim_load(o, path_of("more")) != ETCH_OK, ETCH_ERR_FORMAT,
                    "tensors that the optimiser has not");
        etch_optim_free(o);
    }
}

TEST(the_folder_goes, .last = true) { remove_folder(); }
