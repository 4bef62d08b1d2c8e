/* Pooling: values, places and gradients against plain loops, in every dtype and layout; ties, NaNs
 * and zeros of both signs; what is refused; and compiled against eager.
 * Labels: device optimised. */
#include <etch/etch.h>

#include "cpu_support.h"
#include "device_support.h"

#define S ETCH_SHAPE

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

typedef struct pool_case {
    etch_shape x, kernel, stride, padding, dilation;
    bool ceil;
    int64_t h, w; /* what comes out, as PyTorch 2.15 has it */
} pool_case;

static const pool_case cases[] = {
    {S(2, 3, 8, 6), S(2), S(0), S(0), S(1), false, 4, 3},
    {S(2, 1, 7, 9), S(3, 2), S(2, 1), S(1, 0), S(1), false, 4, 8},
    {S(3, 5, 40), S(3), S(1), S(1), S(1), false, 5, 40},
    {S(1, 2, 9, 11), S(2, 3), S(2), S(0, 1), S(3, 2), false, 3, 5},
    {S(2, 2, 7, 8), S(3), S(2), S(1), S(1), true, 4, 5},
    {S(1, 1, 5, 5), S(2), S(0), S(1), S(1), true, 3, 3}, /* the last window would be all padding */
    {S(1, 1, 1, 1), S(1), S(1), S(0), S(1), false, 1, 1},
    {S(1, 1, 2, 3), S(4, 3), S(3), S(0), S(1), true, 1, 1}, /* larger than the input */
    {S(0, 3, 4, 4), S(2), S(0), S(0), S(1), false, 2, 2},
    {S(2, 0, 4, 4), S(2), S(0), S(0), S(1), false, 2, 2},
};

static int64_t of(etch_shape s, int d) { return s.n == 1 ? s.v[0] : s.n ? s.v[d] : 0; }

/* ---- by plain loops ---- */

/* A window as its rows and columns: place k of the kernel, or -1 in the padding. */
static int64_t element(const pool_case *c, const etch_tensor *x, int64_t window, int64_t k) {
    int64_t at[2] = {window / c->w % c->h, window % c->w};
    int64_t place[2] = {k / of(c->kernel, 1), k % of(c->kernel, 1)}, in[2];
    for (int d = 0; d < 2; d++) {
        int64_t step = of(c->stride, d) ? of(c->stride, d) : of(c->kernel, d);
        in[d] = at[d] * step - of(c->padding, d) + place[d] * of(c->dilation, d);
        if (in[d] < 0 || in[d] >= x->size[x->ndim - 2 + d]) return -1;
    }
    return in[0] * x->size[x->ndim - 1] + in[1];
}

static int64_t plane_of(const pool_case *c, const etch_tensor *x, int64_t window) {
    return window / (c->h * c->w) * x->size[x->ndim - 2] * x->size[x->ndim - 1];
}

static bool above(number a, number b) { return a.real ? a.d > b.d || isnan(a.d) : a.i > b.i; }

static int64_t largest_of(const pool_case *c, const etch_tensor *x, int64_t window) {
    int64_t best = -1, plane = plane_of(c, x, window);
    for (int64_t k = 0; k < of(c->kernel, 0) * of(c->kernel, 1); k++) {
        int64_t at = element(c, x, window, k);
        if (at >= 0 && (best < 0 || above(get(x, plane + at), get(x, plane + best)))) best = at;
    }
    return best;
}

/* ---- the largest ---- */

static etch_tensor *max_of(const pool_case *c, etch_tensor *x) {
    return must(etch_max_pool2d(x, c->kernel, c->stride, c->padding, c->dilation, c->ceil));
}
static etch_tensor *places_of(const pool_case *c, etch_tensor *x) {
    return must(etch_max_pool2d_indices(x, c->kernel, c->stride, c->padding, c->dilation, c->ceil));
}

static void has_sizes(const pool_case *c, const etch_tensor *y) {
    int n = c->x.n;
    assert_int_equal(y->ndim, n);
    for (int d = 0; d < n - 2; d++) assert_int_equal(y->size[d], c->x.v[d]);
    assert_int_equal(y->size[n - 2], c->h);
    assert_int_equal(y->size[n - 1], c->w);
}

static bool same_bits(number a, number b) {
    if (!a.real) return a.i == b.i;
    return isnan(a.d) ? isnan(b.d) : a.d == b.d && !signbit(a.d) == !signbit(b.d);
}

TEST(largest_and_places) {
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int t = 0; t < ETCH_DTYPE_COUNT; t++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    if (t == ETCH_BOOL) continue;
                    const pool_case *c = &cases[k];
                    etch_tensor *x = make((etch_dtype)t, c->x, (layout)how, how == LAYOUT_EXPANDED);
                    etch_tensor *y = max_of(c, x), *places = places_of(c, x);
                    has_sizes(c, y), has_sizes(c, places);
                    assert_true(y->dtype == x->dtype && places->dtype == ETCH_I64);
                    for (int64_t i = 0; i < y->numel; i++) {
                        int64_t at = largest_of(c, x, i);
                        assert_int_equal(get(places, i).i, at);
                        assert_true(same_bits(get(y, i), get(x, plane_of(c, x, i) + at)));
                    }
                }
}

static etch_tensor *row_of(const float *v, int64_t n) {
    etch_tensor *host = etch_from_host(v, ETCH_F32, S(1, 1, n));
    return must(etch_to_device(must(host), test_device()));
}

TEST(ties_go_to_the_first_and_nans_to_the_last) {
    const float ties[] = {2, 2, -0.0f, 0, -INFINITY, -INFINITY, NAN, 1, NAN, NAN};
    const int64_t places[] = {0, 2, 4, 6, 9};
    ETCH_SCOPE {
        etch_tensor *x = row_of(ties, 10);
        etch_tensor *y = must(etch_max_pool2d(x, S(1, 2), S(0), S(0), S(1), false));
        etch_tensor *at = must(etch_max_pool2d_indices(x, S(1, 2), S(0), S(0), S(1), false));
        for (int i = 0; i < 5; i++) {
            assert_int_equal(get(at, i).i, places[i]);
            assert_true(same_bits(get(y, i), real_number(ties[places[i]])));
        }
        etch_requires_grad_(x, true);
        assert_int_equal(
            etch_backward(must(etch_sum(must(etch_max_pool1d(x, S(2), S(0), S(0), S(1), false))))),
            ETCH_OK);
        for (int i = 0; i < 10; i++) {
            bool taken = false;
            for (int k = 0; k < 5; k++) taken |= places[k] == i;
            assert_true(get(must(etch_grad_of(x)), i).d == (taken ? 1 : 0));
        }
    }
}

/* ---- means ---- */

/* The sum over a window and what it is divided by. */
static double mean_of(const pool_case *c, const etch_tensor *x, int64_t window, bool counts,
                      int64_t divisor, double *count) {
    double sum = 0;
    int64_t inside = 0, rows[2] = {0, 0}, plane = plane_of(c, x, window);
    for (int64_t k = 0; k < of(c->kernel, 0) * of(c->kernel, 1); k++) {
        int64_t at = element(c, x, window, k);
        if (at >= 0) sum += get(x, plane + at).d, inside++;
    }
    for (int d = 0; d < 2; d++) {
        int64_t step = of(c->stride, d) ? of(c->stride, d) : of(c->kernel, d);
        int64_t at = (d ? window % c->w : window / c->w % c->h) * step - of(c->padding, d);
        for (int64_t k = 0; k < of(c->kernel, d); k++)
            rows[d] += at + k < x->size[x->ndim - 2 + d] + of(c->padding, d);
    }
    *count = (double)(divisor ? divisor : counts ? rows[0] * rows[1] : inside);
    return sum / *count;
}

static void check_means(const pool_case *c, etch_dtype t, layout how, bool counts,
                        int64_t divisor) {
    static const double units[] = {
        [ETCH_F32] = 0x1p-22, [ETCH_F64] = 0x1p-51, [ETCH_BF16] = 0x1p-7, [ETCH_F16] = 0x1p-10};
    etch_tensor *x = make(t, c->x, how, true);
    etch_tensor *y =
        must(etch_avg_pool2d(x, c->kernel, c->stride, c->padding, c->ceil, counts, divisor));
    etch_tensor *g = make(t, etch_sizes(y), how, true);
    etch_tensor *back = must(etch_avg_pool2d_backward(g, c->x, c->kernel, c->stride, c->padding,
                                                      c->ceil, counts, divisor));
    double *want = calloc((size_t)x->numel + 1, sizeof *want), count;
    has_sizes(c, y);
    for (int64_t i = 0; i < y->numel; i++) {
        double mean = mean_of(c, x, i, counts, divisor, &count);
        assert_true(fabs(get(y, i).d - mean) <= 8 * units[t]);
        for (int64_t k = 0; k < of(c->kernel, 0) * of(c->kernel, 1); k++) {
            int64_t at = element(c, x, i, k);
            if (at >= 0) want[plane_of(c, x, i) + at] += get(g, i).d / count;
        }
    }
    for (int64_t i = 0; i < x->numel; i++)
        assert_true(fabs(get(back, i).d - want[i]) <= 16 * units[t]);
    free(want);
}

TEST(means_and_what_they_pass_back) {
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int t = ETCH_F32; t <= ETCH_F16; t++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                for (int way = 0; way < 3; way++)
                    ETCH_SCOPE {
                        pool_case c = cases[k];
                        if (of(c.dilation, 0) != 1) continue;
                        check_means(&c, (etch_dtype)t, (layout)how, way == 1, way == 2 ? 3 : 0);
                    }
}

/* ---- one dimension ---- */

TEST(lines_are_planes_of_height_1) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(2, 3, 11), LAYOUT_ROW, true);
        etch_tensor *plane = must(etch_unsqueeze(x, 2)), *y, *z;
        y = must(etch_max_pool1d(x, S(3), S(2), S(1), S(2), true));
        z = must(etch_max_pool2d(plane, S(1, 3), S(1, 2), S(0, 1), S(1, 2), true));
        assert_true(y->ndim == 3 && etch_bitwise_equal(y, must(etch_squeeze_dim(z, 2))));
        y = must(etch_avg_pool1d(must(etch_select(x, 0, 1)), S(4), S(0), S(2), false, false));
        z = must(etch_avg_pool2d(plane, S(1, 4), S(1, 4), S(0, 2), false, false, 0));
        z = must(etch_squeeze_dim(must(etch_select(z, 0, 1)), 1));
        assert_true(y->ndim == 2 && etch_bitwise_equal(y, z));
    }
}

/* ---- what is refused ---- */

#define REFUSED(code, word, call)                                                                  \
    do {                                                                                           \
        assert_null(call);                                                                         \
        ASSERT_REFUSED(ETCH_ERR_##code, word);                                                     \
    } while (0)
#define MAX(x, kernel, stride, padding, dilation)                                                  \
    etch_max_pool2d(x, kernel, stride, padding, dilation, false)

TEST(wrong_windows_are_refused) {
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(2, 5, 4), LAYOUT_ROW, true);
        etch_tensor *i = make(ETCH_I32, S(2, 5, 4), LAYOUT_ROW, true);
        etch_shape none = S(0), one = S(1);
        REFUSED(SHAPE, "does not fit", MAX(x, S(6, 1), none, none, one));
        REFUSED(SHAPE, "width 4", MAX(x, S(1, 3), none, none, S(1, 2)));
        REFUSED(SHAPE, "does not fit",
                MAX(make(ETCH_F32, S(1, 0, 4), LAYOUT_ROW, true), S(2), none, one, one));
        REFUSED(SHAPE, "nothing but padding",
                etch_max_pool2d(make(ETCH_F32, S(1, 1, 4), LAYOUT_ROW, true), S(2, 1), none,
                                S(1, 0), S(2, 1), false));
        REFUSED(SHAPE, "got [40]", MAX(must(etch_view(x, S(40))), S(2), none, none, one));
        REFUSED(INVALID_ARGUMENT, "at most half", MAX(x, S(3), none, S(2), one));
        REFUSED(INVALID_ARGUMENT, "padding of at least 0", MAX(x, S(3), none, S(-1), one));
        REFUSED(INVALID_ARGUMENT, "kernel_size of at least 1", MAX(x, S(0), none, none, one));
        REFUSED(INVALID_ARGUMENT, "stride of at least 0", MAX(x, S(1), S(-1), none, one));
        REFUSED(INVALID_ARGUMENT, "dilation of at least 1", MAX(x, S(1), S(1), none, none));
        REFUSED(INVALID_ARGUMENT, "1 or 2 values", MAX(x, S(1, 1, 1), none, none, one));
        REFUSED(INVALID_ARGUMENT, "one value", etch_max_pool1d(x, S(1, 2), none, none, one, false));
        REFUSED(DTYPE, "floating", etch_avg_pool2d(i, S(2), none, none, false, true, 0));
        REFUSED(DTYPE, "bool", MAX(must(etch_gt_scalar(x, 0)), S(2), none, none, one));
        REFUSED(SHAPE, "grad_output of sizes [2, 2, 2], got [2, 5, 4]",
                etch_avg_pool2d_backward(x, S(2, 5, 4), S(2), none, none, false, true, 0));
        REFUSED(SHAPE, "3 or 4 sizes",
                etch_avg_pool2d_backward(x, S(5, 4), S(2), none, none, false, true, 0));
    }
}

/* ---- compiled, threads, gradients ---- */

static etch_tensor *program(etch_tensor *x) {
    etch_tensor *a = etch_max_pool2d(etch_relu(x), S(3), S(2), S(1), S(1), true);
    etch_tensor *b = etch_avg_pool2d(etch_tanh(x), S(3), S(2), S(1), true, false, 0);
    return etch_mul(a, etch_add_scalar(b, 1));
}

static etch_tensor *gradient(etch_tensor *x) {
    etch_requires_grad_(x, true);
    etch_tensor *y = program(x);
    etch_tensor *loss = y ? etch_sum(etch_square(y)) : NULL;
    if (!loss || etch_backward(loss) != ETCH_OK) return NULL;
    etch_tensor *g = etch_clone(etch_grad_of(x));
    return etch_zero_grad(x) == ETCH_OK ? g : NULL;
}

static void check_compiled(etch_fn1 fn, etch_dtype t) {
    etch_function *f = etch_compile_fn1(fn, NULL);
    ETCH_SCOPE {
        etch_tensor *x = make(t, S(4, 3, 9, 12), LAYOUT_ROW, true), *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            etch_set_num_threads(threads);
            etch_tensor *want = must(fn(x));
            if (!first) first = want;
            assert_true(etch_bitwise_equal(first, want));
            for (int k = 0; k < 3; k++)
                assert_true(etch_bitwise_equal(must(etch_call_one(f, &x, 1)), want));
        }
        assert_int_equal(etch_function_counters(f).plan_runs > 0, 1);
        etch_set_num_threads(2);
    }
    etch_function_free(f);
}

TEST(compiled_equals_eager) {
    for (int t = ETCH_F32; t <= ETCH_F16; t++) {
        check_compiled(program, (etch_dtype)t);
        check_compiled(gradient, (etch_dtype)t);
    }
}
