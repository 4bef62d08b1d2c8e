/* Operators with device kernels of their own, on the fakes of the driver: against the CPU's result,
 * eager and compiled, and what they refuse.
 * Labels: long optimised. */
#include <etch/etch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etch_test.h"
#include "cuda_fakes.h"
#include "device_support.h"

typedef etch_tensor *(*program)(etch_tensor *, etch_tensor *, etch_tensor *);

static etch_tensor *moved(etch_tensor *t, etch_device device) {
    etch_tensor *m = t == ETCH_NONE ? t : etch_to_device(t, device);
    if (!m) fail_msg("%s", etch_last_error());
    return m;
}

static void same(etch_tensor *got, etch_tensor *want, double close, const char *what) {
    if (!got) fail_msg("%s: %s", what, etch_last_error());
    got = moved(got, ETCH_CPU);
    bool ok = close == 0 ? etch_bitwise_equal(got, want)
                         : etch_allclose(etch_to(got, ETCH_F64), etch_to(want, ETCH_F64), close,
                                         close, true);
    if (ok) return;
    etch_print(got);
    etch_print(want);
    fail_msg("%s: another result than expected", what);
}

/* The program on the CPU, on the device, and compiled for the device (recorded, then run). */
static void check(program p, etch_tensor *a, etch_tensor *b, etch_tensor *c, double close) {
    ETCH_SCOPE {
        etch_tensor *want = p(a, b, c);
        if (!want) fail_msg("CPU: %s", etch_last_error());
        a = moved(a, gpu), b = moved(b, gpu), c = moved(c, gpu);
        int64_t before = etch_device_stats(gpu).launches;
        etch_tensor *eager = p(a, b, c);
        same(eager, want, close, "device");
        if (want && etch_numel(want)) assert_true(etch_device_stats(gpu).launches > before);
        eager = moved(eager, ETCH_CPU);
        etch_function *f = etch_compile(p);
        for (int i = 0; i < 3; i++) same(etch_call(f, a, b, c), eager, 0, "compiled");
        etch_function_free(f);
    }
}

static etch_tensor *numbers(etch_dtype dtype, etch_shape shape) {
    etch_manual_seed(7);
    etch_tensor *t = etch_randn(ETCH_F64, shape);
    t = etch_to(etch_mul_scalar(t, 3.0), dtype);
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

#define NO ETCH_NONE

/* ---- normalisations ---- */

static etch_tensor *softmax_last(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_softmax(a, -1);
}
static etch_tensor *softmax_first(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_softmax(a, 0);
}
static etch_tensor *log_softmax_last(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_log_softmax(a, -1);
}
static etch_tensor *log_softmax_first(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_log_softmax(a, 0);
}
static etch_tensor *norm_last(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    return etch_layer_norm(a, ETCH_SHAPE(etch_size(a, -1)), b, c, 1e-5);
}

TEST(softmaxes) {
    static const program all[] = {softmax_last, softmax_first, log_softmax_last, log_softmax_first};
    static const int64_t lengths[] = {1, 7, 40, 300};
    for (int k = 0; k < 4; k++)
        for (int n = 0; n < 4; n++)
            ETCH_SCOPE
                check(all[k], numbers(ETCH_F32, ETCH_SHAPE(5, lengths[n])), NO, NO, 1e-5);
    ETCH_SCOPE {
        check(softmax_last, numbers(ETCH_F64, ETCH_SHAPE(3, 33)), NO, NO, 1e-12);
        check(softmax_last, numbers(ETCH_F16, ETCH_SHAPE(3, 33)), NO, NO, 1e-3);
        check(softmax_last, numbers(ETCH_BF16, ETCH_SHAPE(3, 64)), NO, NO, 1e-2);
        check(softmax_last, numbers(ETCH_F32, ETCH_SHAPE(0, 4)), NO, NO, 1e-5);
        check(softmax_last, etch_t(numbers(ETCH_F32, ETCH_SHAPE(40, 3))), NO, NO, 1e-5);
        check(softmax_first, numbers(ETCH_F32, ETCH_SHAPE(9, 2, 20)), NO, NO, 1e-5);
        check(softmax_last, etch_full(ETCH_F32, ETCH_SHAPE(2, 5), -INFINITY), NO, NO, 1e-5);
    }
}

TEST(a_row_beyond_the_registers) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_F32, ETCH_SHAPE(1, 32768 + 5));
        check(softmax_last, x, NO, NO, 1e-5);
        check(norm_last, x, NO, NO, 1e-4);
    }
}

TEST(layer_norms) {
    ETCH_SCOPE {
        etch_tensor *w = numbers(ETCH_F32, ETCH_SHAPE(48)),
                    *x = numbers(ETCH_F32, ETCH_SHAPE(4, 48));
        check(norm_last, x, w, w, 1e-5);
        check(norm_last, x, NO, NO, 1e-5);
        check(norm_last, numbers(ETCH_F16, ETCH_SHAPE(4, 48)), w, NO, 1e-2);
        check(norm_last, numbers(ETCH_BF16, ETCH_SHAPE(4, 48)), NO, w, 6e-2);
        check(norm_last, numbers(ETCH_F64, ETCH_SHAPE(4, 700)), NO, NO, 1e-12);
        check(norm_last, etch_slice(numbers(ETCH_F32, ETCH_SHAPE(4, 49)), 1, 1, 49, 1), w, w, 1e-5);
    }
}

/* ---- random numbers ---- */

TEST(random_numbers) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_F16, ETCH_BF16};
    for (int k = 0; k < 8; k++)
        ETCH_SCOPE {
            etch_tensor *t[2];
            for (int on = 0; on < 2; on++) ETCH_ON(on ? gpu : ETCH_CPU) {
                    etch_manual_seed(123);
                    t[on] = k < 4 ? etch_rand(dtypes[k % 4], ETCH_SHAPE(777))
                                  : etch_randn(dtypes[k % 4], ETCH_SHAPE(777));
                }
            double close = k < 4 ? 0 : k == 5 ? 1e-12 : k == 4 ? 1e-5 : 2e-2;
            same(t[1], t[0], close, "random numbers");
        }
}

/* ---- cat, scans, triangles, extremes ---- */

static etch_tensor *cat_three(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    etch_tensor *const list[] = {a, b, c};
    return etch_cat(list, 3, 1);
}
static etch_tensor *sums(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_cumsum(a, 0);
}
static etch_tensor *products(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_cumprod(a, -1);
}
static etch_tensor *lower(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_tril(a, 1);
}
static etch_tensor *upper(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_triu(a, -1);
}
static etch_tensor *largest(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_argmax(a);
}
static etch_tensor *smallest_last(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_argmin_dim(a, -1, true);
}
static etch_tensor *largest_first(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_argmax_dim(a, 0, false);
}

static etch_tensor *max_pools(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_max_pool2d(a, ETCH_DIMS(3, 2), ETCH_DIMS(2, 1), ETCH_DIMS(1), ETCH_DIMS(1, 2),
                           true);
}
static etch_tensor *max_places(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_max_pool2d_indices(a, ETCH_DIMS(3, 2), ETCH_DIMS(2, 1), ETCH_DIMS(1),
                                   ETCH_DIMS(1, 2), true);
}
static etch_tensor *means(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_avg_pool2d(a, ETCH_DIMS(3, 2), ETCH_DIMS(2), ETCH_DIMS(1), true, false, 0);
}
static etch_tensor *spread_means(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_avg_pool2d_backward(a, ETCH_SHAPE(2, 7, 17), ETCH_DIMS(3, 4), ETCH_DIMS(1, 2),
                                    ETCH_DIMS(1), false, true, 0);
}

/* The same arithmetic in the same order as on the CPU. */
TEST(pools) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_F16, ETCH_BF16, ETCH_I32, ETCH_U8};
    static const program all[] = {max_pools, max_places, means, spread_means};
    for (int k = 0; k < 4; k++)
        for (int d = 0; d < (k < 2 ? 6 : 4); d++)
            ETCH_SCOPE {
                etch_tensor *x = numbers(dtypes[d], ETCH_SHAPE(2, 7, 8));
                check(all[k], x, NO, NO, 0);
                if (k < 3) check(all[k], etch_transpose(x, 1, 2), NO, NO, 0);
            }
}

TEST(cats) {
    ETCH_SCOPE {
        etch_tensor *a = numbers(ETCH_F32, ETCH_SHAPE(3, 4)),
                    *b = numbers(ETCH_F64, ETCH_SHAPE(3, 2));
        check(cat_three, a, b, etch_t(numbers(ETCH_F16, ETCH_SHAPE(5, 3))), 0);
        check(cat_three, a, etch_zeros(ETCH_F32, ETCH_SHAPE(3, 0)),
              numbers(ETCH_I32, ETCH_SHAPE(3, 1)), 0);
    }
}

TEST(scans) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_F16, ETCH_I32, ETCH_U8, ETCH_BOOL};
    static const program all[] = {sums, products, lower, upper};
    for (int k = 0; k < 4; k++)
        for (int d = 0; d < 6; d++)
            ETCH_SCOPE {
                etch_tensor *x = numbers(dtypes[d], ETCH_SHAPE(2, 9, 7));
                check(all[k], x, NO, NO, 0);
                if (d < 2) check(all[k], etch_transpose(x, 1, 2), NO, NO, 0);
            }
}

TEST(extremes) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_I64, ETCH_U8};
    static const program all[] = {largest, smallest_last, largest_first};
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < 5; d++)
            ETCH_SCOPE {
                etch_tensor *x = numbers(dtypes[d], ETCH_SHAPE(9, 300));
                check(all[k], x, NO, NO, 0);
                if (d == 0) check(all[k], etch_t(x), NO, NO, 0);
            }
    ETCH_SCOPE {
        float v[] = {1, NAN, 4, NAN, 4.5f, -INFINITY};
        etch_tensor *x = etch_from_host(v, ETCH_F32, ETCH_SHAPE(2, 3));
        check(largest, x, NO, NO, 0);
        check(smallest_last, x, NO, NO, 0);
        check(largest, etch_zeros(ETCH_F32, ETCH_SHAPE(600)), NO, NO, 0); /* ties */
    }
}

/* ---- indices ---- */

static etch_tensor *selected(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_index_select(a, 1, b);
}
static etch_tensor *gathered(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_gather(a, 1, b);
}
static etch_tensor *taken(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_take(a, b);
}
static etch_tensor *scattered(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    return etch_scatter(a, 1, b, c);
}
static etch_tensor *scattered_value(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_scatter_value(a, 1, b, 2.5);
}
static etch_tensor *scatter_added(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    return etch_scatter_add(a, 1, b, c);
}
static etch_tensor *copied(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    return etch_index_copy(a, 1, b, c);
}
static etch_tensor *added_in_place(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    etch_tensor *t = etch_clone(a);
    etch_index_add_(t, 1, b, c);
    return t;
}
static etch_tensor *filled(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_index_fill(a, 1, b, -3);
}
static etch_tensor *stored(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    return etch_index_put(a, b, c, false);
}
static etch_tensor *accumulated(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    return etch_index_put(a, b, c, true);
}

static etch_tensor *indices(etch_dtype dtype, etch_shape shape, int64_t n) {
    etch_tensor *t = etch_rand(ETCH_F64, shape);
    return etch_to(etch_floor(etch_mul_scalar(t, (double)n)), dtype);
}

TEST(index_operators) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F16, ETCH_I64, ETCH_BOOL};
    for (int d = 0; d < 4; d++)
        ETCH_SCOPE {
            etch_tensor *x = numbers(dtypes[d], ETCH_SHAPE(4, 5));
            etch_tensor *list = indices(ETCH_I64, ETCH_SHAPE(7), 5);
            etch_tensor *box = indices(ETCH_I32, ETCH_SHAPE(3, 6), 5);
            etch_tensor *wide = numbers(dtypes[d], ETCH_SHAPE(4, 7));
            check(selected, x, list, NO, 0);
            check(gathered, x, box, NO, 0);
            check(taken, etch_t(x), etch_sub_scalar(box, 2), NO, 0);
            check(scattered, x, box, wide, 0);
            check(scattered_value, x, box, NO, 0);
            check(scatter_added, x, box, wide, 0);
            check(copied, x, list, wide, 0);
            check(added_in_place, x, list, wide, 0);
            check(filled, x, list, NO, 0);
            etch_tensor *rows = indices(ETCH_I64, ETCH_SHAPE(2, 3), 4);
            check(stored, x, rows, numbers(dtypes[d], ETCH_SHAPE(2, 3, 5)), 0);
            check(accumulated, x, etch_sub_scalar(rows, 4), numbers(dtypes[d], ETCH_SHAPE(5)), 0);
            check(selected, x, etch_zeros(ETCH_I64, ETCH_SHAPE(0)), NO, 0);
        }
}

/* Threads share a line of places; what comes to a place comes in the order of the indices. */
TEST(many_indices_of_few_places) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_F32, ETCH_SHAPE(3, 37));
        etch_tensor *list = indices(ETCH_I64, ETCH_SHAPE(1000), 37);
        etch_tensor *wide = numbers(ETCH_F32, ETCH_SHAPE(3, 1000));
        etch_tensor *box = indices(ETCH_I32, ETCH_SHAPE(3, 1000), 37);
        check(added_in_place, x, list, wide, 0);
        check(copied, x, list, wide, 0);
        check(scatter_added, x, box, wide, 0);
        check(scattered, x, box, wide, 0);
        check(added_in_place, etch_t(numbers(ETCH_F32, ETCH_SHAPE(37, 3))), list, wide, 0);
        etch_tensor *rows = indices(ETCH_I64, ETCH_SHAPE(20, 50), 3);
        etch_tensor *many = numbers(ETCH_F32, ETCH_SHAPE(20, 50, 37));
        check(accumulated, x, etch_sub_scalar(rows, 3), many, 0);
        check(stored, x, rows, many, 0);
    }
}

/* ---- division ---- */

static etch_tensor *floor_divided(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_floor_divide(a, b);
}
static etch_tensor *remainder_of(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_remainder(a, b);
}
static etch_tensor *fmod_of(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_fmod(a, b);
}
static etch_tensor *by_seven(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_add(etch_remainder_scalar(a, -7), etch_floor_divide_scalar(a, -7));
}

TEST(divisions) {
    static const program all[] = {floor_divided, remainder_of, fmod_of, by_seven};
    static const etch_dtype dtypes[] = {ETCH_I32, ETCH_I8, ETCH_I64, ETCH_F32};
    static const int64_t left[] = {INT64_MIN, -7, 7, -128, INT32_MIN, 0, 9},
                         right[] = {-1, 2, -2, -1, -1, 5, 3};
    for (int k = 0; k < 4; k++)
        for (int d = 0; d < 4; d++)
            ETCH_SCOPE {
                etch_tensor *x = etch_to(etch_from_host(left, ETCH_I64, ETCH_SHAPE(7)), dtypes[d]);
                etch_tensor *y = etch_to(etch_from_host(right, ETCH_I64, ETCH_SHAPE(7)), dtypes[d]);
                check(all[k], x, y, NO, 0);
                if (d < 2) check(all[k], etch_unsqueeze(x, 1), etch_to(y, ETCH_I16), NO, 0);
            }
}

/* By a scalar that no binary type has: rounded to a half type first, or not, as on the CPU. */
#define BY_TENTH(name, ...)                                                                        \
    static etch_tensor *name(etch_tensor *a, etch_tensor *b, etch_tensor *c) {                     \
        (void)b, (void)c;                                                                          \
        return __VA_ARGS__;                                                                        \
    }
BY_TENTH(floor_over_tenth, etch_floor_divide_scalar(a, 0.1))
BY_TENTH(rest_of_tenth, etch_remainder_scalar(a, 0.1))
BY_TENTH(fmod_by_tenth, etch_fmod_scalar(a, 0.1))
BY_TENTH(over_tenth, etch_div_scalar(a, 0.1))
BY_TENTH(times_tenth, etch_mul_scalar(a, 0.1))
BY_TENTH(plus_tenth, etch_add_scalar(a, 0.1))
BY_TENTH(minus_tenth, etch_sub_scalar(a, 0.1))
BY_TENTH(tenth_minus, etch_rsub_scalar(a, 0.1))
BY_TENTH(plus_tenth_of, etch_add_alpha(a, a, 0.1))
BY_TENTH(minus_tenth_of, etch_sub_alpha(a, a, 0.1))
BY_TENTH(to_the_tenth, etch_pow_scalar(etch_abs(a), 0.1))
BY_TENTH(below_tenth, etch_lt_scalar(a, 0.1))
BY_TENTH(at_least_tenth, etch_clamp_min(a, 0.1))
BY_TENTH(plus_tenth_product, etch_addcmul(a, a, a, 0.1))
BY_TENTH(towards_tenth, etch_lerp(a, etch_mul(a, a), 0.1))

TEST(scalars_beside_halves) {
    static const struct {
        program of;
        double close; /* of functions */
    } all[] = {{floor_over_tenth, 0}, {rest_of_tenth, 0},      {fmod_by_tenth, 0},
               {over_tenth, 0},       {times_tenth, 0},        {plus_tenth, 0},
               {minus_tenth, 0},      {tenth_minus, 0},        {plus_tenth_of, 0},
               {minus_tenth_of, 0},   {to_the_tenth, 0.01},    {below_tenth, 0},
               {at_least_tenth, 0},   {plus_tenth_product, 0}, {towards_tenth, 0}};
    static const double values[] = {3, 7, -1.703125, 0.30078125, 100, -11, 0.0999755859375};
    for (int k = 0; k < (int)(sizeof all / sizeof *all); k++)
        for (int d = ETCH_F32; d <= ETCH_F16; d++)
            ETCH_SCOPE {
                etch_tensor *x = etch_from_host(values, ETCH_F64, ETCH_SHAPE(7));
                check(all[k].of, etch_to(x, d), NO, NO, all[k].close);
            }
}

/* ---- errors that depend on data are those of the CPU ---- */

static void fails(program p, etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    ETCH_SCOPE {
        char text[512];
        etch_clear_error();
        assert_null(p(a, b, c));
        etch_status status = etch_last_status();
        snprintf(text, sizeof text, "%s", etch_last_error());
        size_t n = strcspn(text, "("); /* the line of the call follows */
        text[n] = 0;
        a = moved(a, gpu), b = moved(b, gpu), c = moved(c, gpu);
        etch_clear_error();
        assert_null(test_settled(p(a, b, c)));
        assert_int_equal(etch_last_status(), status);
        if (strncmp(etch_last_error(), text, n)) fail_msg("%s, not %s", etch_last_error(), text);
        etch_function *f = etch_compile(p);
        for (int i = 0; i < 3; i++) {
            etch_clear_error();
            etch_tensor *y = etch_call(f, a, b, c);
            if (y) assert_true(isnan(etch_item(etch_sum(y))));
            assert_int_equal(etch_last_status(), status);
        }
        etch_function_free(f);
        etch_clear_error();
    }
}

static etch_tensor *filled_in_place(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_index_fill_(a, 1, b, 1);
}

TEST(errors_on_data) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_F32, ETCH_SHAPE(4, 5));
        static const int64_t bad[] = {0, 5, -9};
        etch_tensor *list = etch_from_host(bad, ETCH_I64, ETCH_SHAPE(3));
        etch_tensor *box = etch_from_host(bad, ETCH_I64, ETCH_SHAPE(1, 3));
        fails(selected, x, list, NO);
        fails(gathered, x, box, NO);
        fails(taken, x, etch_mul_scalar(box, 11), NO);
        fails(scattered, x, box, x);
        fails(stored, x, list, x);
        etch_tensor *n = numbers(ETCH_I32, ETCH_SHAPE(3));
        fails(floor_divided, n, etch_from_host(bad, ETCH_I64, ETCH_SHAPE(3)), NO);
        fails(remainder_of, n, etch_zeros(ETCH_I32, ETCH_SHAPE(0 + 3)), NO);
        /* Nothing is written. */
        etch_tensor *on = moved(x, gpu);
        assert_null(test_settled(filled_in_place(on, moved(list, gpu), NO)));
        etch_clear_error();
        same(on, x, 0, "after a failure");
    }
}

/* ---- reductions of one element ---- */

static etch_tensor *sum_of_one(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_sum_dim(a, ETCH_DIMS(1), false);
}
static etch_tensor *largest_of_one(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_amax(a, ETCH_DIMS(1), true);
}

TEST(reductions_of_one) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F16, ETCH_I8, ETCH_BOOL};
    for (int d = 0; d < 4; d++)
        ETCH_SCOPE {
            etch_tensor *x = etch_transpose(numbers(dtypes[d], ETCH_SHAPE(3, 1, 4)), 0, 2);
            check(sum_of_one, x, NO, NO, 0);
            check(largest_of_one, x, NO, NO, 0);
        }
}

/* ---- products of elements; what reads its operand for the size of its result, or makes a tensor
 * beside it, while the current device is another one ---- */

static etch_tensor *product_of_all(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_prod(a);
}
static etch_tensor *product_of_rows(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_prod_dim(a, 1, false);
}

TEST(products_of_elements) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        ETCH_SCOPE {
            etch_tensor *x = numbers(d, ETCH_SHAPE(3, 70));
            check(product_of_all, x, NO, NO, 0);
            check(product_of_rows, x, NO, NO, 0);
            check(product_of_rows, numbers(d, ETCH_SHAPE(2, 1)), NO, NO, 0);
        }
}

static etch_tensor *nonzero(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    etch_tensor *rows = etch_nonzero(a);
    return etch_mul_scalar(rows, 2);
}
static etch_tensor *selected_by_mask(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_masked_select(a, b);
}
static etch_tensor *indexed_by_mask(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_index(a, b);
}
static etch_tensor *one_hot(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    return etch_one_hot(a, 9);
}

/* In a plan, index, values and target lie in one buffer of the arena. */
static etch_tensor *scattered_into_itself(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)b, (void)c;
    etch_tensor *x = etch_bitwise_or_scalar(a, 1);
    etch_scatter_add_(x, 0, x, x);
    return etch_mul_scalar(x, 3);
}

TEST(operands_in_one_buffer) {
    ETCH_SCOPE { check(scattered_into_itself, etch_ones(ETCH_I64, ETCH_SHAPE(2)), NO, NO, 0); }
}

TEST(tensors_made_beside_their_operand) {
    ETCH_SCOPE {
        etch_tensor *x = etch_transpose(numbers(ETCH_I32, ETCH_SHAPE(5, 4)), 0, 1);
        etch_tensor *mask = etch_gt_scalar(x, 1);
        static const int64_t classes[] = {3, 0, 8};
        check(nonzero, x, NO, NO, 0);
        check(nonzero, etch_zeros(ETCH_F32, ETCH_SHAPE(3)), NO, NO, 0);
        check(selected_by_mask, x, mask, NO, 0);
        check(indexed_by_mask, x, mask, NO, 0);
        check(one_hot, etch_from_host(classes, ETCH_I64, ETCH_SHAPE(3)), NO, NO, 0);
    }
}

static etch_tensor *sum_of_product(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_sum(etch_mul(a, b));
}

static etch_tensor *column_sums(etch_tensor *a, etch_tensor *b, etch_tensor *c) {
    (void)c;
    return etch_sum_dim(etch_mul(a, b), ETCH_DIMS(0), false);
}

/* More than a block of the canonical order, in vectors: one kernel or two, bits of the CPU. */
TEST(long_sums) {
    static const etch_dtype types[] = {ETCH_F32, ETCH_BF16, ETCH_F64, ETCH_I8};
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
        ETCH_SCOPE {
            etch_tensor *a = numbers(types[i], ETCH_SHAPE(5000, 64));
            check(sum_of_product, a, etch_neg(a), NO, 0);
            check(column_sums, a, etch_neg(a), NO, 0);
        }
}

int main(int argc, char **argv) { return use_fakes() ? run_suite(argc, argv) : 1; }
