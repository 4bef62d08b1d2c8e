/* Operators that rearrange, scan, reduce by others and index, against references of their own in
 * C loops over logical indices; and the same calls compiled, which must give the same bits.
 * Labels: device long optimised. */
#include "cpu_support.h"
#include "device_support.h"

#define S(...) ETCH_SHAPE(__VA_ARGS__)

static void reals(etch_tensor *t, int n, const double *want) {
    if (!t) fail_msg("%s", etch_last_error());
    assert_int_equal(t->numel, n);
    for (int i = 0; i < n; i++) {
        number v = get(t, i);
        double have = v.real ? v.d : (double)v.i;
        bool same =
            isnan(want[i]) ? isnan(have) : have == want[i] && signbit(have) == signbit(want[i]);
        if (!same) fail_msg("element %d: want %.17g, have %.17g", i, want[i], have);
    }
}
#define REALS(t, ...)                                                                              \
    reals(t, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static etch_tensor *f32s(int n, const double *v) {
    etch_tensor *t = etch_empty(ETCH_F32, S(n));
    for (int i = 0; i < n; i++) put(t, i, real_number((double)(float)v[i]));
    return t;
}
static etch_tensor *i64s(int n, const double *v) {
    etch_tensor *t = etch_empty(ETCH_I64, S(n));
    for (int i = 0; i < n; i++) put(t, i, whole_number((int64_t)v[i]));
    return t;
}
#define LIST(make, ...)                                                                            \
    make((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})
#define F(...) LIST(f32s, __VA_ARGS__)
#define I(...) LIST(i64s, __VA_ARGS__)

static void refused(etch_tensor *t, etch_status code, const char *text) {
    assert_null(test_settled(t));
    if (etch_last_status() != code || !strstr(etch_last_error(), text))
        fail_msg("want %s in: %s", text, etch_last_error());
    etch_clear_error();
}
#define REFUSED(call, code, text) refused(call, ETCH_ERR_##code, text)

static bool same_sizes(const etch_tensor *t, etch_shape s) {
    bool same = t && t->ndim == s.n;
    for (int d = 0; same && d < s.n; d++) same = t->size[d] == s.v[d];
    return same;
}
#define SIZES(t, ...) assert_true(same_sizes(t, S(__VA_ARGS__)))

static const etch_dtype some_dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16,
                                         ETCH_I64, ETCH_U8,  ETCH_BOOL};

/* ---- views ---- */

TEST(windows) {
    ETCH_SCOPE {
        etch_tensor *x = etch_arange(ETCH_F32, 0, 12, 1);
        REALS(etch_unfold(x, 0, 3, 4), 0, 1, 2, 4, 5, 6, 8, 9, 10);
        etch_tensor *m = etch_view(x, S(3, 4)), *w = etch_unfold(m, 0, 2, 1);
        SIZES(w, 2, 4, 2);
        REALS(w, 0, 4, 1, 5, 2, 6, 3, 7, 4, 8, 5, 9, 6, 10, 7, 11);
        assert_true(etch_shares_storage(w, x));
        SIZES(etch_unfold(etch_ones(ETCH_F32, S()), 0, 1, 1), 1);
        SIZES(etch_unfold(m, 1, 0, 1), 3, 5, 0);
        REFUSED(etch_unfold(m, 1, 5, 1), INVALID_ARGUMENT, "window of 0 to 4");
        REFUSED(etch_unfold(m, 1, 2, 0), INVALID_ARGUMENT, "at least 1");
        REFUSED(etch_unfold(m, 2, 2, 1), DIM_RANGE, "unfold");
        assert_non_null(etch_unfold(x, 0, 12, INT64_MAX));
    }
}

TEST(diagonals) {
    ETCH_SCOPE {
        etch_tensor *m = etch_view(etch_arange(ETCH_I64, 0, 12, 1), S(3, 4));
        REALS(etch_diagonal(m, 0, 0, 1), 0, 5, 10);
        REALS(etch_diagonal(m, 2, 0, 1), 2, 7);
        REALS(etch_diagonal(m, -1, 0, 1), 4, 9);
        REALS(etch_diagonal(m, -1, 1, 0), 1, 6, 11);
        SIZES(etch_diagonal(m, 9, 0, 1), 0);
        SIZES(etch_diagonal(m, INT64_MIN + 1, 0, 1), 0);
        REFUSED(etch_diagonal(m, 0, 1, -1), INVALID_ARGUMENT, "two dimensions");
        SIZES(etch_diagonal(etch_ones(ETCH_F32, S(2, 3, 4)), 1, 0, 2), 3, 2);
    }
}

TEST(any_strides) {
    ETCH_SCOPE {
        etch_tensor *x = etch_arange(ETCH_F64, 0, 12, 1);
        REALS(etch_as_strided(x, S(2, 3), S(1, 2)), 0, 2, 4, 1, 3, 5);
        REALS(etch_as_strided(etch_slice(x, 0, 2, 12, 1), S(2, 2), S(0, 9)), 2, 11, 2, 11);
        REALS(etch_as_strided(etch_flip(x, S(0)), S(2), S(1)), 11, 10);
        REFUSED(etch_as_strided(x, S(2, 7), S(0, 2)), SHAPE, "beyond");
        REFUSED(etch_as_strided(x, S(2), S(-1)), SHAPE, "beyond");
        REFUSED(etch_as_strided(x, S(INT64_MAX), S(INT64_MAX)), SHAPE, "");
        REFUSED(etch_as_strided(x, S(2), S(1, 1)), SHAPE, "stride for each");
        REFUSED(etch_as_strided(x, S(-2), S(1)), SHAPE, "not negative");
        SIZES(etch_as_strided(x, S(0, 99), S(5, 5)), 0, 99);
    }
}

TEST(parts_and_orders) {
    ETCH_SCOPE {
        etch_tensor *m = etch_view(etch_arange(ETCH_F32, 0, 6, 1), S(2, 3));
        REALS(etch_narrow(m, 1, -2, 2), 1, 2, 4, 5);
        REFUSED(etch_narrow(m, 1, 2, 2), INDEX, "range");
        REFUSED(etch_narrow(m, 1, 0, -1), INDEX, "range");
        SIZES(etch_movedim(etch_ones(ETCH_F32, S(2, 3, 4, 5)), S(0, -1), S(-1, 1)), 3, 5, 4, 2);
        REFUSED(etch_movedim(m, S(0), S(0, 1)), INVALID_ARGUMENT, "destinations");
        REFUSED(etch_movedim(m, S(0, 0), S(0, 1)), INVALID_ARGUMENT, "once");
        SIZES(etch_flatten(etch_ones(ETCH_F32, S(2, 3, 4)), 1, -1), 2, 12);
        SIZES(etch_flatten(etch_ones(ETCH_F32, S()), 0, -1), 1);
        REFUSED(etch_flatten(m, 1, 0), INVALID_ARGUMENT, "start_dim");
        SIZES(etch_expand_as(etch_ones(ETCH_F32, S(3)), m), 2, 3);
    }
}

/* ---- rearranging copies ---- */

TEST(flips_and_rolls) {
    for (int d = 0; d < COUNT_OF(some_dtypes); d++)
        for (int how = 0; how < LAYOUT_COUNT; how++)
            ETCH_SCOPE {
                etch_tensor *t = make(some_dtypes[d], S(5, 7), (layout)how, false);
                etch_tensor *y = etch_flip(t, S(1, 0)), *r = etch_roll(t, S(2, -8), S(0, 1));
                assert_true(y->contiguous && !etch_shares_storage(y, t));
                for (int64_t i = 0; i < 5; i++)
                    for (int64_t j = 0; j < 7; j++) {
                        assert_true(same_number(get(y, i * 7 + j), get(t, (4 - i) * 7 + 6 - j)));
                        int64_t from = (i + 3) % 5 * 7 + (j + 8) % 7;
                        assert_true(same_number(get(r, i * 7 + j), get(t, from)));
                    }
                assert_false(etch_shares_storage(etch_roll(t, S(5), S(0)), t));
            }
    ETCH_SCOPE {
        REALS(etch_flip(etch_full(ETCH_F32, S(), 3), S(0)), 3);
        REALS(etch_roll(etch_view(F(0, 1, 2, 3), S(2, 2)), S(1), S(0 * 1)), 2, 3, 0, 1);
        etch_dims none = {.n = 0};
        REALS(etch_roll(etch_view(F(0, 1, 2, 3), S(2, 2)), S(1), none), 3, 0, 1, 2);
        SIZES(etch_roll(etch_ones(ETCH_F32, S(0, 2)), S(1, 1), S(0, 1)), 0, 2);
        REFUSED(etch_flip(F(1, 2), S(0, -1)), INVALID_ARGUMENT, "once");
        REFUSED(etch_flip(F(1, 2), S(1)), DIM_RANGE, "flip");
        REFUSED(etch_roll(F(1, 2), S(1, 2), S(0)), INVALID_ARGUMENT, "shift for each");
    }
}

TEST(stacks) {
    ETCH_SCOPE {
        etch_tensor *list[3] = {F(1, 2), I(3, 4), F(5, 6)};
        REALS(etch_stack(list, 3, 0), 1, 2, 3, 4, 5, 6);
        REALS(etch_stack(list, 3, -1), 1, 3, 5, 2, 4, 6);
        assert_int_equal(etch_dtype_of(etch_stack(list, 3, 1)), ETCH_F32);
        etch_tensor *zero[2] = {etch_ones(ETCH_I8, S()), etch_zeros(ETCH_I8, S())};
        REALS(etch_stack(zero, 2, 0), 1, 0);
        etch_tensor *empty[2] = {etch_ones(ETCH_F32, S(0)), etch_zeros(ETCH_F32, S(0))};
        SIZES(etch_stack(empty, 2, 0), 2, 0);
        list[1] = F(1);
        REFUSED(etch_stack(list, 3, 0), SHAPE, "one size");
        REFUSED(etch_stack(list, 0, 0), INVALID_ARGUMENT, "at least one");
        REFUSED(etch_stack(list, 1, 3), DIM_RANGE, "stack");
    }
}

TEST(repetitions) {
    ETCH_SCOPE {
        etch_tensor *m = etch_view(F(1, 2, 3, 4), S(2, 2));
        REALS(etch_repeat(m, S(1, 2)), 1, 2, 1, 2, 3, 4, 3, 4);
        REALS(etch_repeat(m, S(2, 1)), 1, 2, 3, 4, 1, 2, 3, 4);
        REALS(etch_repeat(F(1, 2), S(2, 2)), 1, 2, 1, 2, 1, 2, 1, 2);
        REALS(etch_tile(m, S(2)), 1, 2, 1, 2, 3, 4, 3, 4);
        SIZES(etch_repeat(m, S(0, 3)), 0, 6);
        etch_tensor *wide = etch_tile(etch_view(F(1, 2), S(2, 1)), S(1, 3 << 20));
        SIZES(wide, 2, 3 << 20);
        assert_true(get(wide, (3 << 20) - 1).d == 1 && get(wide, 3 << 20).d == 2);
        assert_false(etch_shares_storage(etch_repeat(m, S(1, 1)), m));
        REFUSED(etch_repeat(m, S(2)), SHAPE, "each of 2");
        REFUSED(etch_repeat(m, S(2, -1)), INVALID_ARGUMENT, "negative");
    }
}

TEST(parts_replaced) {
    ETCH_SCOPE {
        etch_tensor *x = F(0, 1, 2, 3, 4), *y = etch_slice_scatter(x, F(7, 8), 0, 1, 5, 2);
        REALS(y, 0, 7, 2, 8, 4);
        etch_zero_(x);
        REALS(y, 0, 7, 2, 8, 4);
        REALS(etch_select_scatter(y, etch_full(ETCH_F32, S(), 9), 0, -1), 0, 7, 2, 8, 9);
        REFUSED(etch_slice_scatter(x, F(1), 0, 0, 2, 1), SHAPE, "src");
        REFUSED(etch_select_scatter(x, F(1), 0, 0), SHAPE, "src");
    }
}

/* Along either axis, by an index that is read where it lies; and wrong ones far down in it. */
TEST(long_indices) {
    enum { ROWS = 3, N = 4099 };
    for (int dim = 0; dim < 2; dim++)
        for (int d = 0; d < COUNT_OF(some_dtypes); d++)
            ETCH_SCOPE {
                etch_tensor *x = make(some_dtypes[d], S(ROWS, N), LAYOUT_ROW, true);
                etch_tensor *index = etch_empty(ETCH_I64, S(ROWS, N));
                int64_t n = dim ? N : ROWS;
                for (int64_t i = 0; i < ROWS * N; i++)
                    put(index, i, whole_number((int64_t)(test_random() % (uint64_t)n)));
                etch_tensor *y = etch_gather(x, dim, index);
                for (int64_t i = 0; i < ROWS * N; i++) {
                    int64_t k = get(index, i).i, at = dim ? i / N * N + k : k * N + i % N;
                    assert_true(same_number(get(y, i), get(x, at)));
                }
                put(index, ROWS * N - 1, whole_number(n));
                REFUSED(etch_gather(x, dim, index), INDEX, dim ? "got 4099" : "got 3");
                put(index, ROWS * N - 1, whole_number(INT64_MIN));
                REFUSED(etch_gather(x, dim, index), INDEX, "got -9223372036854775808");
            }
}

/* ---- scans and triangles ---- */

TEST(scans) {
    for (int d = 0; d < COUNT_OF(some_dtypes); d++)
        for (int how = 0; how < LAYOUT_COUNT; how++)
            for (int dim = 0; dim < 3; dim++)
                ETCH_SCOPE {
                    etch_tensor *t = make(some_dtypes[d], S(3, 5, 4), (layout)how, true);
                    etch_tensor *y = etch_cumsum(t, dim - 3), *p = etch_cumprod(t, dim);
                    int64_t n = t->size[dim], step = dim == 0 ? 20 : dim == 1 ? 4 : 1;
                    bool real = is_float(some_dtypes[d]);
                    assert_int_equal(y->dtype, real ? some_dtypes[d] : ETCH_I64);
                    for (int64_t i = 0; i < 60; i++) {
                        double sum = 0, product = 1;
                        int64_t whole = 0, factor = 1;
                        for (int64_t k = i / step % n; k >= 0; k--) {
                            /* in the order of the scan, from the first */
                            number v = get(t, i - k * step);
                            sum += v.d, product *= v.d, whole += v.i;
                            factor = (int64_t)((uint64_t)factor * (uint64_t)v.i);
                        }
                        etch_dtype out = y->dtype;
                        number s = real ? real_number(sum) : whole_number(whole);
                        number f = real ? real_number(product) : whole_number(factor);
                        assert_true(same_number(get(y, i), ref_convert(s, out)));
                        assert_true(same_number(get(p, i), ref_convert(f, out)));
                    }
                }
    ETCH_SCOPE {
        REALS(etch_cumsum(F(-0.0, INFINITY, 1, -INFINITY), 0), 0.0, INFINITY, INFINITY, NAN);
        REALS(etch_cumsum(etch_full(ETCH_F64, S(), 4), 0), 4);
        SIZES(etch_cumsum(etch_ones(ETCH_F32, S(0)), 0), 0);
        SIZES(etch_cumsum(etch_ones(ETCH_F32, S(3, 0)), 0), 3, 0);
        etch_tensor *inf = etch_cumsum(etch_full(ETCH_F64, S(100), INFINITY), 0);
        for (int i = 0; i < 100; i++) assert_true(get(inf, i).d == INFINITY);
        REFUSED(etch_cumsum(F(1), 1), DIM_RANGE, "cumsum");
    }
}

/* Each line from its first element on, one number at a time. */
static void check_scan(etch_tensor *t, bool product, etch_tensor *y) {
    bool real = is_float(y->dtype);
    int64_t n = t->size[1], inner = t->size[2];
    for (int64_t line = 0; line < t->size[0] * inner; line++) {
        double sum = product;
        uint64_t whole = product;
        for (int64_t k = 0; k < n; k++) {
            int64_t at = (line / inner * n + k) * inner + line % inner;
            number v = get(t, at);
            sum = product ? sum * v.d : sum + v.d;
            whole = product ? whole * (uint64_t)v.i : whole + (uint64_t)v.i;
            number want = real ? real_number(sum) : whole_number((int64_t)whole);
            assert_true(same_number(get(y, at), ref_convert(want, y->dtype)));
        }
    }
}

/* Lines that take more than a piece of the kernel, few and many side by side, and in columns. */
TEST(scans_by_pieces) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16, ETCH_I32, ETCH_U8};
    static const int64_t sizes[][3] = {{3000, 2, 1}, {1100, 3, 1}, {45, 5, 1},   {17, 255, 1},
                                       {11, 256, 1}, {11, 257, 1}, {3, 1030, 1}, {2, 700, 2},
                                       {1, 900, 3},  {2, 70, 60},  {1, 9, 256},  {2, 5, 600}};
    for (int i = 0; i < COUNT_OF(dtypes) * COUNT_OF(sizes); i++)
        ETCH_SCOPE {
            const int64_t *s = sizes[i % COUNT_OF(sizes)];
            etch_tensor *t =
                make(dtypes[i / COUNT_OF(sizes)], S(s[0], s[1], s[2]), LAYOUT_ROW, true);
            check_scan(t, false, etch_cumsum(t, 1));
            check_scan(t, true, etch_cumprod(t, 1));
        }
}

TEST(triangles) {
    ETCH_SCOPE
        for (int64_t k = -5; k <= 6; k++) {
            etch_tensor *t = make(ETCH_F32, S(2, 4, 5), LAYOUT_COLUMN, true);
            etch_tensor *lower = etch_tril(t, k), *upper = etch_triu(t, k);
            for (int64_t i = 0; i < 40; i++) {
                int64_t r = i / 5 % 4, c = i % 5;
                assert_true(get(lower, i).d == (c - r <= k ? get(t, i).d : 0));
                assert_true(get(upper, i).d == (c - r >= k ? get(t, i).d : 0));
            }
        }
    ETCH_SCOPE {
        REALS(etch_tril(etch_ones(ETCH_I8, S(2, 2)), INT64_MIN), 0, 0, 0, 0);
        REALS(etch_triu(etch_ones(ETCH_I8, S(2, 2)), INT64_MAX), 0, 0, 0, 0);
        REFUSED(etch_tril(F(1), 0), SHAPE, "at least 2");
    }
}

/* ---- reductions ---- */

TEST(products_and_smallest) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        for (int how = 0; how < LAYOUT_COUNT; how++)
            for (int dim = 0; dim < 2; dim++)
                ETCH_SCOPE {
                    etch_tensor *t = make(d, S(6, 9), (layout)how, false);
                    etch_tensor *p = etch_prod_dim(t, dim, false),
                                *a = etch_argmin_dim(t, dim, false);
                    int64_t n = t->size[dim], others = 54 / n;
                    for (int64_t o = 0; o < others; o++) {
                        double product = 1;
                        uint64_t whole = 1;
                        int64_t least = 0, step = dim ? 1 : 9, base = dim ? o * 9 : o;
                        /* NaN in any order of factors; in some, 0 meets what overflowed as well */
                        bool nan = false, zero = false, infinite = false;
                        for (int64_t k = 0; k < n; k++) {
                            number v = get(t, base + k * step), m = get(t, base + least * step);
                            product =
                                d == ETCH_F64 ? product * v.d : (double)(float)(product * v.d);
                            whole *= (uint64_t)v.i;
                            nan |= isnan(v.d), zero |= v.d == 0, infinite |= isinf(v.d) != 0;
                            bool less =
                                v.real ? v.d < m.d || (isnan(v.d) && !isnan(m.d)) : v.i < m.i;
                            if (less && !(m.real && isnan(m.d))) least = k;
                        }
                        assert_int_equal(get(a, o).i, least);
                        if (!is_float(d)) assert_int_equal(get(p, o).i, whole);
                        else if (nan || (zero && infinite)) assert_true(isnan(get(p, o).d));
                        else if (d == ETCH_F64 && fabs(product) < 1e100 && fabs(product) > 1e-100)
                            assert_true(fabs(get(p, o).d - product) <= 1e-14 * fabs(product));
                    }
                }
    ETCH_SCOPE {
        REALS(etch_prod(F(1, -2, 3, 0.5)), -3);
        REALS(etch_prod(etch_ones(ETCH_F32, S(0))), 1);
        REALS(etch_prod_dim(etch_ones(ETCH_U8, S(0, 2)), 0, true), 1, 1);
        REALS(etch_prod(etch_full(ETCH_F64, S(5000), 1)), 1);
        REALS(etch_argmin(F(3, NAN, 1, NAN)), 1);
        REALS(etch_argmin(F(2, 1, 1)), 1);
        REFUSED(etch_argmin(etch_ones(ETCH_F32, S(0))), EMPTY, "argmin");
    }
}

TEST(variances) {
    ETCH_SCOPE {
        REALS(etch_var(F(1, 2, 3, 4)), (float)(5.0 / 3));
        REALS(etch_std_dim(etch_view(F(1, 3, 2, 2), S(2, 2)), S(1), 0, true), 1, 0);
        SIZES(etch_var_dim(etch_ones(ETCH_F32, S(2, 3, 4)), S(0, -1), 1, true), 1, 3, 1);
        REALS(etch_var_dim(etch_ones(ETCH_F64, S()), ETCH_ALL_DIMS, 4.9, false), NAN);
        REALS(etch_var_dim(F(1, 3), S(0), 2, false), INFINITY);
        REALS(etch_var_dim(etch_ones(ETCH_F64, S()), S(-1), 0, false), 0);
        REALS(etch_std_dim(etch_ones(ETCH_F32, S()), S(0), 1, true), NAN);
        REALS(etch_var(etch_ones(ETCH_F32, S(0))), NAN);
        etch_tensor *large = etch_std(F(1e30, 3e30, 2e30)),
                    *small = etch_std(F(1e-30, 3e-30, 2e-30));
        assert_true(fabs(get(large, 0).d / 1e30 - 1) < 1e-6);
        assert_true(fabs(get(small, 0).d / 1e-30 - 1) < 1e-6);
        assert_int_equal(etch_dtype_of(etch_std(etch_ones(ETCH_BF16, S(4)))), ETCH_BF16);
        REFUSED(etch_var(I(1, 2)), DTYPE, "floating");
        REFUSED(etch_std_dim(F(1, 2), S(1), 1, false), DIM_RANGE, "dimension");
    }
}

TEST(truths) {
    ETCH_SCOPE {
        etch_tensor *m = etch_view(F(0, NAN, -0.0, 0, 2, 3), S(2, 3));
        REALS(etch_any_dim(m, S(1), false), 1, 1);
        REALS(etch_all_dim(m, S(0), false), 0, 1, 0);
        REALS(etch_any(etch_zeros(ETCH_I64, S(0))), 0);
        REALS(etch_all(etch_zeros(ETCH_I64, S(0))), 1);
        assert_int_equal(etch_dtype_of(etch_all(m)), ETCH_BOOL);
        REALS(etch_count_nonzero(m), 3);
        REALS(etch_count_nonzero_dim(m, S(0)), 0, 2, 1);
        REALS(etch_logsumexp(F(1000, 1000), S(0), false), (double)(1000 + (float)log(2)));
        REALS(etch_logsumexp(F(-INFINITY, -INFINITY), S(0), true), -INFINITY);
        REALS(etch_logsumexp(F(INFINITY, 1), S(0), false), INFINITY);
        REALS(etch_logsumexp(etch_ones(ETCH_F32, S()), S(-1), false), 1);
        SIZES(etch_logsumexp(etch_ones(ETCH_I32, S(2, 3, 4)), S(0, 2), false), 3);
        REALS(etch_ldexp(F(1, -3, 0.5), I(3, -1, 200)), 8, -1.5, INFINITY);
        assert_int_equal(
            etch_dtype_of(etch_ldexp(etch_ones(ETCH_BOOL, S(2)), etch_ones(ETCH_F16, S(2)))),
            ETCH_F16);
        assert_int_equal(
            etch_dtype_of(etch_ldexp(etch_ones(ETCH_F16, S(2)), etch_ones(ETCH_F32, S(2)))),
            ETCH_F32);
        for (int e = -149; e < 128; e++) REALS(etch_ldexp(F(1), I(e)), ldexp(1, e));
        REALS(etch_clamp_tensor(F(1, 5, NAN), F(2, 2, 2), F(4, 4, 4)), 2, 4, NAN);
        REALS(etch_clamp_tensor(F(1, 5), ETCH_NONE, F(4, 4)), 1, 4);
        REFUSED(etch_clamp_tensor(F(1), ETCH_NONE, ETCH_NONE), INVALID_ARGUMENT, "both");
    }
}

/* ---- indices ---- */

TEST(reads_by_index) {
    for (int d = 0; d < COUNT_OF(some_dtypes); d++)
        for (int how = 0; how < LAYOUT_COUNT; how++)
            ETCH_SCOPE {
                etch_tensor *t = make(some_dtypes[d], S(4, 6), (layout)how, false);
                etch_tensor *k = I(3, 0, 0, 2, 1), *rows = etch_index_select(t, 0, k);
                etch_tensor *columns = etch_index_select(t, -1, etch_to(k, ETCH_I8));
                etch_tensor *g =
                    etch_gather(t, 0, etch_to(etch_view(I(3, 0, 1, 2), S(2, 2)), ETCH_I32));
                etch_tensor *taken = etch_take(t, etch_view(I(-1, 7, 0, 23), S(2, 2)));
                const int64_t at[] = {3, 0, 0, 2, 1}, flat[] = {23, 7, 0, 23}, up[] = {3, 0, 1, 2};
                SIZES(rows, 5, 6), SIZES(columns, 4, 5), SIZES(g, 2, 2), SIZES(taken, 2, 2);
                for (int i = 0; i < 30; i++) {
                    assert_true(same_number(get(rows, i), get(t, at[i / 6] * 6 + i % 6)));
                    if (i >= 20) continue;
                    assert_true(same_number(get(columns, i), get(t, i / 5 * 6 + at[i % 5])));
                }
                for (int i = 0; i < 4; i++) {
                    assert_true(same_number(get(g, i), get(t, up[i] * 6 + i % 2)));
                    assert_true(same_number(get(taken, i), get(t, flat[i])));
                }
            }
    ETCH_SCOPE {
        etch_tensor *x = F(10, 20, 30), *one = etch_full(ETCH_F32, S(), 5);
        REALS(etch_index(x, I(-1, 0)), 30, 10);
        SIZES(etch_index(etch_ones(ETCH_F32, S(3, 2)), etch_zeros(ETCH_I64, S(4, 1))), 4, 1, 2);
        REALS(etch_embedding(etch_view(F(1, 2, 3, 4), S(2, 2)), I(1, 1)), 3, 4, 3, 4);
        REALS(etch_take_along_dim(etch_view(F(3, 1, 2, 4), S(2, 2)), etch_view(I(1), S(1, 1)), 1),
              1, 4);
        REALS(etch_one_hot(I(1, 0, 2), 3), 0, 1, 0, 1, 0, 0, 0, 0, 1);
        REALS(etch_index_select(one, 0, I(0)), 5);
        REALS(etch_gather(one, 0, etch_zeros(ETCH_I64, S())), 5);
        SIZES(etch_take(etch_ones(ETCH_F32, S(0)), etch_zeros(ETCH_I64, S(0))), 0);
        SIZES(etch_index_select(etch_ones(ETCH_F32, S(0, 2)), 1, I(1, 1, 0)), 0, 3);
        REFUSED(etch_index_select(x, 0, I(3)), INDEX, "from 0 to 2, got 3");
        REFUSED(etch_index_select(x, 0, I(-1)), INDEX, "got -1");
        REFUSED(etch_gather(x, 0, I(1, 5)), INDEX, "got 5");
        REFUSED(etch_take(x, I(-4)), INDEX, "from -3 to 2");
        REFUSED(etch_take(etch_ones(ETCH_F32, S(0)), I(0)), INDEX, "got 0");
        REFUSED(etch_embedding(etch_view(F(1, 2), S(1, 2)), I(1)), INDEX, "got 1");
        REFUSED(etch_one_hot(I(3), 3), INDEX, "got 3");
        REFUSED(etch_index_select(x, 0, F(1)), DTYPE, "integers");
        REFUSED(etch_index_select(x, 1, I(1)), DIM_RANGE, "index_select");
        REFUSED(etch_index_select(x, 0, etch_zeros(ETCH_I64, S(1, 1))), SHAPE, "at most 1");
        REFUSED(etch_gather(x, 0, etch_zeros(ETCH_I64, S(1, 1))), SHAPE, "inside");
    }
}

TEST(writes_by_index) {
    for (int d = 0; d < COUNT_OF(some_dtypes); d++)
        for (int how = 0; how < LAYOUT_COUNT; how++)
            ETCH_SCOPE {
                etch_dtype dtype = some_dtypes[d];
                etch_tensor *t = make(dtype, S(4, 3), (layout)how, true);
                etch_tensor *src = make(dtype, S(3, 3), (layout)how, true);
                etch_tensor *k = I(2, 0, 2), *y = etch_index_copy(t, 0, k, src);
                etch_tensor *sum = etch_index_add(t, 0, k, src);
                etch_tensor *s = etch_scatter(t, 1, etch_view(I(2, 0), S(2, 1)), src);
                const int from[] = {1, -1, 2, -1};
                for (int i = 0; i < 12; i++) {
                    int r = i / 3, c = i % 3;
                    number old = get(t, i), want = from[r] < 0 ? old : get(src, from[r] * 3 + c);
                    assert_true(same_number(get(y, i), want));
                    bool hit = (r == 0 && c == 2) || (r == 1 && c == 0);
                    assert_true(same_number(get(s, i), hit ? get(src, r * 3) : old));
                    if (r == 2 && dtype != ETCH_BOOL) {
                        number a = get(src, c), b = get(src, 6 + c);
                        number total = ref_convert(real_number(old.d + a.d), dtype);
                        total = ref_convert(real_number(total.d + b.d), dtype);
                        if (!old.real) total = ref_convert(whole_number(old.i + a.i + b.i), dtype);
                        assert_true(same_number(get(sum, i), total));
                    }
                }
                if (how == LAYOUT_EXPANDED) continue;
                etch_tensor *before = etch_clone(t);
                assert_ptr_equal(etch_index_copy_(t, 0, k, src), t);
                assert_true(same_tensor(t, y));
                etch_copy_(t, before), etch_scatter_(t, 1, etch_view(I(2, 0), S(2, 1)), src);
                assert_true(same_tensor(t, s));
            }
    ETCH_SCOPE {
        etch_tensor *x = F(1, 2, 3), *two = F(10, 20);
        REALS(etch_index_put(x, I(0, 0), two, false), 20, 2, 3);
        REALS(etch_index_put(x, I(0, 0), two, true), 31, 2, 3);
        REALS(etch_index_put(x, etch_view(I(-1, 1), S(2, 1)), F(7), false), 1, 7, 7);
        REALS(etch_index_put_(x, I(2, 1, 0), x, false), 3, 2, 1);
        REALS(etch_index_fill(x, 0, I(-1), 9), 3, 2, 9);
        REALS(etch_scatter_value_(x, 0, I(1), 0.5), 3, 0.5, 1);
        REALS(etch_scatter_add(x, 0, I(1, 1), two), 3, 30.5, 1);
        REALS(etch_index_put_(x, etch_zeros(ETCH_I64, S()), etch_full(ETCH_F32, S(), 4), false), 4,
              0.5, 1);
        REALS(etch_index_add_(etch_ones(ETCH_BF16, S(1)), 0, I(0, 0), etch_ones(ETCH_BF16, S(2))),
              3);
        REFUSED(etch_index_put_(x, I(0, 3), two, false), INDEX, "from -3 to 2, got 3");
        REALS(x, 4, 0.5, 1); /* nothing was written */
        REFUSED(etch_scatter_(x, 0, I(-1), F(1)), INDEX, "got -1");
        REFUSED(etch_index_put_(x, I(0), I(1), false), DTYPE, "values of f32");
        REFUSED(etch_index_put_(x, I(0, 1), F(1, 2, 3), false), SHAPE, "broadcast");
        REFUSED(etch_index_copy_(x, 0, I(0), two), SHAPE, "source of sizes [1]");
        REFUSED(etch_scatter_(x, 0, I(0, 1), F(1)), SHAPE, "src");
        REFUSED(etch_index_fill_(etch_expand(F(1), S(4)), 0, I(1), 2), SHAPE, "expanded");
    }
}

TEST(sizes_of_data) {
    ETCH_SCOPE {
        etch_tensor *m = etch_view(F(0, NAN, -0.0, 0, 2, 3), S(2, 3)),
                    *one = etch_ones(ETCH_I8, S());
        REALS(etch_nonzero(m), 0, 1, 1, 1, 1, 2);
        SIZES(etch_nonzero(one), 1, 0);
        SIZES(etch_nonzero(etch_zeros(ETCH_I8, S())), 0, 0);
        SIZES(etch_nonzero(etch_zeros(ETCH_F32, S(0, 3))), 0, 2);
        REALS(etch_masked_select(m, etch_gt_scalar(m, 1)), 2, 3);
        REALS(etch_masked_select(F(1, 2), etch_view(etch_to(I(1, 0), ETCH_BOOL), S(2, 1))), 1, 2);
        REALS(etch_masked_select(one, etch_ones(ETCH_BOOL, S())), 1);
        SIZES(etch_masked_select(one, etch_zeros(ETCH_BOOL, S())), 0);
        REALS(etch_index(m, etch_to(I(0, 1), ETCH_BOOL)), 0, 2, 3);
        REFUSED(etch_masked_select(m, m), DTYPE, "bool");
        REFUSED(etch_masked_select(F(1, 2), etch_ones(ETCH_BOOL, S(3))), SHAPE, "broadcast");
        REFUSED(etch_index(m, etch_ones(ETCH_BOOL, S(3))), SHAPE, "first sizes");
    }
}

/* ---- compiled ---- */

typedef etch_tensor *(*binary)(etch_tensor *, etch_tensor *);
static etch_tensor *c_flip(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_flip(x, S(1)), y);
}
static etch_tensor *c_stack(etch_tensor *x, etch_tensor *y) {
    etch_tensor *list[2] = {etch_neg(x), y};
    return etch_mul_scalar(etch_stack(list, 2, 1), 2);
}
static etch_tensor *c_unfold(etch_tensor *x, etch_tensor *y) {
    return etch_sum_dim(etch_unfold(etch_mul(x, y), 1, 2, 1), S(2), false);
}
static etch_tensor *c_unfold_write(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_add(x, y), *v = etch_unfold(z, 1, 1, 2);
    return etch_add_(v, v) ? z : NULL;
}
static etch_tensor *c_strided(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_as_strided(etch_exp(x), S(2, 2), S(1, 2)), etch_diagonal(y, 0, 0, 1));
}
static etch_tensor *c_cumsum(etch_tensor *x, etch_tensor *y) {
    return etch_mul(etch_cumsum(etch_add(x, y), 1), y);
}
static etch_tensor *c_variance(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_var_dim(x, S(0), 1, false), etch_std_dim(y, S(0), 0, true));
}
static etch_tensor *c_prod(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_prod_dim(etch_add(x, y), 1, true),
                    etch_to(etch_argmin_dim(x, 1, true), ETCH_F32));
}
static etch_tensor *c_prod_all(etch_tensor *x, etch_tensor *y) {
    return etch_prod(etch_add_scalar(etch_mul_scalar(etch_mul(x, y), 1e-3), 1));
}
static etch_tensor *c_truth(etch_tensor *x, etch_tensor *y) {
    etch_tensor *both =
        etch_logical_and(etch_any_dim(etch_lt(x, y), S(0), false), etch_all(etch_isfinite(x)));
    return etch_mul(etch_logsumexp(x, S(0), false), both);
}
static etch_tensor *c_gather(etch_tensor *x, etch_tensor *y) {
    etch_tensor *index = etch_argmax_dim(y, 1, true);
    return etch_add(etch_gather(etch_neg(x), 1, index), etch_take(y, index));
}
static etch_tensor *c_select(etch_tensor *x, etch_tensor *y) {
    etch_tensor *index = etch_argmin_dim(y, 0, false); /* one row for each column */
    return etch_mul_scalar(etch_index_select(etch_exp(x), 0, index), 0.5);
}
static etch_tensor *c_put(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_clone(x), *index = etch_argmax_dim(y, 0, false);
    if (!etch_index_put_(z, index, etch_full(ETCH_F32, S(), 3), true)) return NULL;
    return etch_add(z, etch_scatter_add(y, 0, etch_unsqueeze(index, 0), x));
}
static etch_tensor *c_write_input(etch_tensor *x, etch_tensor *y) {
    etch_tensor *sum = etch_add(x, y);
    if (!etch_index_fill_(x, 0, etch_argmin_dim(y, 0, false), 7)) return NULL;
    return etch_mul(sum, x);
}
static etch_tensor *c_scatters(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_slice_scatter(x, etch_select(y, 0, 0), 0, 0, 1, 1);
    if (z) return z;
    etch_clear_error();
    z = etch_select_scatter(etch_neg(x), etch_select(y, 0, 1), 0, 0);
    etch_tensor *r = etch_roll(z, S(1), S(1));
    return etch_zero_(z) ? etch_tril(r, 0) : NULL;
}
static etch_tensor *c_repeat(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_repeat(x, S(2, 3)), etch_sum(etch_movedim(y, S(0), S(1))));
}
static etch_tensor *c_adam(etch_tensor *x, etch_tensor *y) {
    etch_tensor *m = etch_lerp(x, y, 0.1), *v = etch_addcmul(etch_mul_scalar(x, 0.9), y, y, 0.1);
    etch_tensor *p = etch_clone(x);
    return etch_addcdiv_(p, m, etch_add_scalar(etch_sqrt(etch_abs(v)), 1e-8), -0.01);
}
static etch_tensor *c_signs(etch_tensor *x, etch_tensor *y) {
    etch_tensor *z = etch_copysign(etch_frac(x), y), *m = etch_signbit(etch_fmax(x, y));
    return etch_masked_fill(etch_ldexp(z, etch_fmin(x, y)), m, 5);
}
static etch_tensor *c_nonzero(etch_tensor *x, etch_tensor *y) {
    etch_tensor *picked = etch_masked_select(etch_add(x, y), etch_gt(x, y));
    return etch_mul_scalar(picked, 3);
}
static etch_tensor *c_index_twice(etch_tensor *x, etch_tensor *y) {
    etch_tensor *k = etch_mul_scalar(etch_argmax_dim(y, 0, false), 0), *z = etch_clone(x);
    return etch_index_put_(z, k, etch_add(etch_index(z, k), etch_index(z, k)), false);
}

static const struct {
    const char *name;
    binary f;
} functions[] = {
    {"flip", c_flip},         {"stack", c_stack},
    {"unfold", c_unfold},     {"unfold_write", c_unfold_write},
    {"strided", c_strided},   {"cumsum", c_cumsum},
    {"variance", c_variance}, {"prod", c_prod},
    {"prod_all", c_prod_all}, {"truth", c_truth},
    {"gather", c_gather},     {"select", c_select},
    {"put", c_put},           {"write_input", c_write_input},
    {"scatters", c_scatters}, {"repeat", c_repeat},
    {"adam", c_adam},         {"signs", c_signs},
    {"nonzero", c_nonzero},   {"index_twice", c_index_twice},
};

static etch_tensor *operand(const etch_tensor *from, int64_t rows, int64_t columns, int how) {
    etch_tensor *t = make_view(ETCH_F32, S(rows, columns), (layout)how);
    for (int64_t i = 0; i < t->numel; i++) put(t, i, get(from, i));
    return t;
}

TEST(compiled_as_eager) {
    const int64_t sizes[][2] = {{2, 5}, {2, 5}, {3, 7}, {2, 9}, {65, 300}, {4, 5}};
    int64_t failures = etch_counters().compile_failures;
    for (int k = 0; k < COUNT_OF(functions); k++)
        for (int dynamic = 0; dynamic < 2; dynamic++) {
            bool strided = functions[k].f == c_strided; /* wants 2 rows */
            etch_function *f = etch_compile(functions[k].f, .dynamic = dynamic ? ETCH_DYNAMIC_ON
                                                                               : ETCH_DYNAMIC_AUTO);
            for (int s = 0; s < COUNT_OF(sizes) * 2; s++)
                ETCH_SCOPE {
                    int64_t rows = strided ? 2 : sizes[s / 2][0], columns = sizes[s / 2][1];
                    int how = dynamic && s % 2 ? LAYOUT_COLUMN : LAYOUT_ROW;
                    etch_tensor *a = make(ETCH_F32, S(rows, columns), LAYOUT_ROW, s % 4 != 3);
                    etch_tensor *b = make(ETCH_F32, S(rows, columns), LAYOUT_ROW, s % 4 != 3);
                    etch_tensor *x[2] = {operand(a, rows, columns, how),
                                         operand(a, rows, columns, how)};
                    etch_tensor *y = operand(b, rows, columns, how);
                    etch_tensor *want = functions[k].f(x[0], y);
                    if (!want) fail_msg("%s: %s", functions[k].name, etch_last_error());
                    etch_tensor *have = etch_call(f, x[1], y);
                    if (!have) fail_msg("%s compiled: %s", functions[k].name, etch_last_error());
                    if (!etch_bitwise_equal(want, have) || !etch_bitwise_equal(x[0], x[1]))
                        fail_msg("%s differs at call %d", functions[k].name, s);
                }
            etch_function_free(f);
        }
    /* A plan whose kernels are refused runs eagerly, and is as eager as can be. */
    assert_int_equal(etch_counters().compile_failures, failures);
}

static etch_tensor *picks(etch_tensor *x, etch_tensor *index) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_index_select(y, 0, index); /* not used: may fail all the same */
    etch_add_scalar_(x, 1);
    return y;
}

/* Rule 9: at the flush, with what does not depend on it done. */
TEST(index_errors_at_the_flush) {
    etch_function *f = etch_compile(picks);
    ETCH_SCOPE {
        etch_tensor *x = F(1, 2, 3);
        for (int call = 0; call < 3; call++) assert_non_null(etch_call(f, x, I(0, 2)));
        etch_tensor *y = etch_call(f, x, I(0, 3));
        assert_non_null(y); /* it does not depend on the failure */
        if (test_device() == ETCH_CPU) REALS(y, 8, 10, 12);
        if (test_device() == ETCH_CPU) REALS(x, 5, 6, 7);
        test_settled(y);
        assert_int_equal(etch_last_status(), ETCH_ERR_INDEX);
        assert_non_null(
            strstr(etch_last_error(), "index_select: expected indices from 0 to 2, got 3"));
        etch_clear_error();
        assert_non_null(etch_call(f, x, I(0, 1)));
    }
    etch_function_free(f);
}

TEST(data_dependent_sizes_break) {
    etch_function *f = etch_compile(c_nonzero, .fullgraph = true);
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, S(2, 3));
        assert_null(etch_call(f, x, x));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        assert_non_null(strstr(etch_last_error(), "depends on a tensor's values"));
        assert_non_null(strstr(etch_last_error(), "etch_where"));
        etch_clear_error();
    }
    etch_function_free(f);
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
