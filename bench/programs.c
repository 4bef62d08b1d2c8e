#include "programs.h"

int bench_rounds = 100;

/* Replaces a state that is carried from round to round by a newer one. */
static void carry(etch_tensor **state, etch_tensor *next) {
    etch_retain(next);
    etch_release(*state);
    *state = next;
}

/* The scope's own tensor of what was carried. */
static etch_tensor *carried(etch_tensor *state) {
    etch_tensor *result = etch_clone(state);
    etch_release(state);
    return result;
}

static etch_tensor *zeros_like(etch_tensor *t) {
    return etch_zeros(ETCH_F32, ETCH_SHAPE(etch_size(t, 0), etch_size(t, 1)));
}

/* ---- without a loop ---- */

static etch_tensor *normal_cdf(etch_tensor *d) {
    return etch_mul_scalar(etch_add_scalar(etch_erf(etch_mul_scalar(d, 0.70710678)), 1.0), 0.5);
}

static etch_tensor *black_scholes(etch_tensor *x, etch_tensor *y) {
    etch_tensor *price = etch_add_scalar(etch_exp(x), 1.0);
    etch_tensor *strike = etch_add_scalar(etch_exp(y), 1.0);
    etch_tensor *moneyness = etch_log(etch_div(price, strike));
    etch_tensor *d1 = etch_mul_scalar(etch_add_scalar(moneyness, 0.07), 5.0);
    etch_tensor *d2 = etch_sub_scalar(d1, 0.2);
    etch_tensor *held = etch_mul(price, normal_cdf(d1));
    return etch_sub(held, etch_mul_scalar(etch_mul(strike, normal_cdf(d2)), 0.95));
}

static etch_tensor *attention(etch_tensor *x, etch_tensor *y) {
    etch_tensor *scores = etch_mul_scalar(etch_mm(x, etch_t(y)), 0.125);
    etch_tensor *shifted = etch_sub(scores, etch_amax(scores, ETCH_DIMS(1), true));
    etch_tensor *weights = etch_exp(shifted);
    etch_tensor *sums = etch_sum_dim(weights, ETCH_DIMS(1), true);
    return etch_mm(etch_div(weights, sums), y);
}

static etch_tensor *small_cnn(etch_tensor *x, etch_tensor *y) {
    etch_tensor *image = etch_unsqueeze(etch_unsqueeze(x, 0), 0);
    etch_tensor *corner = etch_slice(etch_slice(y, 0, 0, 3, 1), 1, 0, 12, 1);
    etch_tensor *first = etch_view(etch_contiguous(corner), ETCH_SHAPE(4, 1, 3, 3));
    etch_tensor *second = etch_view(etch_contiguous(corner), ETCH_SHAPE(1, 4, 3, 3));
    etch_tensor *a = etch_relu(
        etch_conv2d(image, first, ETCH_NONE, ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), 1));
    etch_tensor *b = etch_relu(
        etch_conv2d(a, second, ETCH_NONE, ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), 1));
    return etch_mean_dim(b, ETCH_DIMS(2, 3), false);
}

static etch_tensor *seed(etch_tensor *x, etch_tensor *y) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, y);
        etch_tensor *b = etch_mm(etch_sin(x), y);
        x = etch_relu(etch_mul_scalar(etch_add(a, b), 0.01));
    }
    return x;
}

static etch_tensor *moving_statistics(etch_tensor *x, etch_tensor *y) {
    enum { WINDOW = 16 };
    int64_t n = etch_size(x, 0) - WINDOW;
    etch_tensor *sum = etch_zeros(ETCH_F32, ETCH_SHAPE(n, etch_size(x, 1)));
    etch_tensor *squares = etch_zeros(ETCH_F32, ETCH_SHAPE(n, etch_size(x, 1)));
    for (int i = 0; i < WINDOW; i++) {
        ETCH_SCOPE {
            etch_tensor *at = etch_add(etch_slice(x, 0, i, n + i, 1), etch_slice(y, 0, 0, n, 1));
            etch_add_(sum, at);
            etch_add_(squares, etch_mul(at, at));
        }
    }
    etch_tensor *mean = etch_mul_scalar(sum, 1.0 / WINDOW);
    return etch_sub(etch_mul_scalar(squares, 1.0 / WINDOW), etch_mul(mean, mean));
}

/* ---- rounds that write their state ---- */

static etch_tensor *jacobi(etch_tensor *x, etch_tensor *y) {
    etch_tensor *state = etch_clone(x);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *up = etch_roll(state, ETCH_DIMS(1), ETCH_DIMS(0));
            etch_tensor *left = etch_roll(state, ETCH_DIMS(1), ETCH_DIMS(1));
            etch_tensor *inner = etch_add(etch_add(up, left), y);
            etch_copy_(state, etch_mul_scalar(inner, 0.25));
        }
    }
    return state;
}

static etch_tensor *k_means(etch_tensor *x, etch_tensor *y) {
    etch_tensor *centres = etch_clone(etch_slice(y, 0, 0, 16, 1));
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *norms = etch_sum_dim(etch_mul(centres, centres), ETCH_DIMS(1), false);
            etch_tensor *cross = etch_mul_scalar(etch_mm(x, etch_t(centres)), 2.0);
            etch_tensor *nearest = etch_argmin_dim(etch_sub(norms, cross), 1, false);
            etch_tensor *member = etch_to(etch_one_hot(nearest, 16), ETCH_F32);
            etch_tensor *sums = etch_mm(etch_t(member), x);
            etch_tensor *counts = etch_sum_dim(member, ETCH_DIMS(0), false);
            etch_tensor *sizes = etch_unsqueeze(etch_add_scalar(counts, 1.0), 1);
            etch_copy_(centres, etch_div(sums, sizes));
        }
    }
    return centres;
}

static etch_tensor *logistic_regression(etch_tensor *x, etch_tensor *y) {
    etch_tensor *w = etch_zeros(ETCH_F32, ETCH_SHAPE(etch_size(x, 1), 64));
    etch_tensor *labels = etch_to(etch_gt_scalar(etch_slice(y, 1, 0, 64, 1), 0.0), ETCH_F32);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *p = etch_sigmoid(etch_mm(x, w));
            etch_tensor *gradient = etch_mm(etch_t(x), etch_sub(p, labels));
            etch_sub_(w, etch_mul_scalar(gradient, 0.001));
        }
    }
    return w;
}

static etch_tensor *adam(etch_tensor *x, etch_tensor *y) {
    etch_tensor *w = etch_clone(x), *m = zeros_like(x), *v = zeros_like(x);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *g = etch_sub(w, y);
            etch_mul_scalar_(m, 0.9);
            etch_add_(m, etch_mul_scalar(g, 0.1));
            etch_mul_scalar_(v, 0.999);
            etch_add_(v, etch_mul_scalar(etch_mul(g, g), 0.001));
            etch_tensor *step = etch_div(m, etch_add_scalar(etch_sqrt(v), 1e-8));
            etch_sub_(w, etch_mul_scalar(step, 0.01));
        }
    }
    return w;
}

static etch_tensor *neighbours(etch_tensor *cells) {
    etch_tensor *sum = NULL;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++) {
            if (!dx && !dy) continue;
            etch_tensor *at = etch_roll(cells, ETCH_DIMS(dy, dx), ETCH_DIMS(0, 1));
            sum = sum ? etch_add(sum, at) : at;
        }
    return sum;
}

static etch_tensor *life(etch_tensor *x, etch_tensor *y) {
    (void)y;
    etch_tensor *cells = etch_to(etch_gt_scalar(x, 0.0), ETCH_F32);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *n = neighbours(cells);
            etch_tensor *three = etch_to(etch_eq_scalar(n, 3.0), ETCH_F32);
            etch_tensor *two = etch_to(etch_eq_scalar(n, 2.0), ETCH_F32);
            etch_copy_(cells, etch_add(three, etch_mul(two, cells)));
        }
    }
    return cells;
}

/* The argument itself is written, to what it was. */
static etch_tensor *in_place_argument(etch_tensor *x, etch_tensor *y) {
    etch_tensor *before = etch_clone(x);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *step = etch_mul(etch_sin(x), y);
            etch_add_(x, etch_mul_scalar(step, 0.1));
        }
    }
    etch_tensor *result = etch_clone(x);
    etch_copy_(x, before);
    return result;
}

/* ---- rounds that make a new state ---- */

static etch_tensor *two_operators(etch_tensor *x, etch_tensor *y) {
    etch_tensor *state = etch_retain(x);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE { carry(&state, etch_add(etch_mul_scalar(state, 0.5), y)); }
    }
    return carried(state);
}

static etch_tensor *jacobi_sweep(etch_tensor *x, etch_tensor *y) {
    etch_tensor *state = etch_retain(x);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *residual = etch_sub(y, etch_mul_scalar(etch_sin(state), 0.3));
            carry(&state, etch_add(state, etch_mul_scalar(residual, 0.25)));
        }
    }
    return carried(state);
}

static etch_tensor *mandelbrot(etch_tensor *x, etch_tensor *y) {
    etch_tensor *re = etch_retain(x), *im = etch_retain(y);
    etch_tensor *count = zeros_like(x);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *rr = etch_mul(re, re), *ii = etch_mul(im, im);
            etch_tensor *inside = etch_lt_scalar(etch_add(rr, ii), 4.0);
            etch_add_(count, etch_to(inside, ETCH_F32));
            etch_tensor *next_re = etch_clamp(etch_add(etch_sub(rr, ii), x), -8.0, 8.0);
            etch_tensor *product = etch_mul_scalar(etch_mul(re, im), 2.0);
            carry(&im, etch_clamp(etch_add(product, y), -8.0, 8.0));
            carry(&re, next_re);
        }
    }
    etch_release(re);
    etch_release(im);
    return count;
}

/* ---- rounds that read a value ---- */

static etch_tensor *conjugate_gradient(etch_tensor *x, etch_tensor *y) {
    etch_tensor *at = etch_retain(zeros_like(y));
    etch_tensor *r = etch_retain(y), *p = etch_retain(y);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *ap = etch_add(etch_mul_scalar(p, 3.0), etch_mul(p, etch_abs(x)));
            etch_tensor *rr = etch_sum(etch_mul(r, r));
            etch_tensor *alpha = etch_div(rr, etch_sum(etch_mul(p, ap)));
            carry(&at, etch_add(at, etch_mul(p, alpha)));
            etch_tensor *next = etch_sub(r, etch_mul(ap, alpha));
            etch_tensor *beta = etch_div(etch_sum(etch_mul(next, next)), rr);
            carry(&p, etch_add(next, etch_mul(p, beta)));
            carry(&r, next);
            if (etch_item(beta) < 0.0) i = bench_rounds;
        }
    }
    etch_release(p);
    etch_release(r);
    return carried(at);
}

static etch_tensor *residual_round(etch_tensor *state, etch_tensor *y) {
    etch_tensor *residual = etch_sub(y, etch_mul_scalar(etch_sin(state), 0.3));
    etch_tensor *step = etch_mul_scalar(residual, 0.25);
    etch_add_(state, etch_tanh(step));
    return etch_sum(etch_mul(step, step));
}

static etch_tensor *in_place_breaks(etch_tensor *x, etch_tensor *y) {
    etch_tensor *state = etch_clone(x);
    for (int i = 0; i < bench_rounds; i++) {
        ETCH_SCOPE {
            if (etch_item(residual_round(state, y)) < 0.0) i = bench_rounds;
        }
    }
    return state;
}

/* Its temporaries live until the call returns. */
static etch_tensor *in_place_no_scopes(etch_tensor *x, etch_tensor *y) {
    etch_tensor *state = etch_clone(x);
    for (int i = 0; i < bench_rounds; i++)
        if (etch_item(residual_round(state, y)) < 0.0) break;
    return state;
}

const bench_program bench_programs[] = {
    {"black-scholes", black_scholes},
    {"attention", attention},
    {"small cnn", small_cnn},
    {"seed", seed},
    {"moving statistics", moving_statistics},
    {"jacobi", jacobi},
    {"k-means", k_means},
    {"logistic regression", logistic_regression},
    {"adam", adam},
    {"life", life},
    {"in-place argument", in_place_argument},
    {"two operators", two_operators},
    {"jacobi sweep", jacobi_sweep},
    {"mandelbrot", mandelbrot},
    {"conjugate gradient", conjugate_gradient},
    {"in-place, breaks", in_place_breaks},
    {"in-place, breaks, no scopes", in_place_no_scopes},
    {NULL, NULL},
};
