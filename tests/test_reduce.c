/* Reductions against a scalar reference of the canonical order written from core/ops/expr.h: bit
 * for bit, for every dtype, layout, choice of axes and thread count.
 * Labels: kernels sanitizer optimised. */
#include "cpu_support.h"
#include "device_support.h"

/* ---- the reference ---- */

typedef enum way { SUM_UP, MULTIPLY, LARGEST, SMALLEST } way;

static number combine(number a, number b, way h, etch_dtype acc) {
    if (h == SUM_UP) {
        if (!a.real) return whole_number(ref_wrap((int64_t)((uint64_t)a.i + (uint64_t)b.i), acc));
        if (acc == ETCH_F32) return real_number((float)((float)a.d + (float)b.d));
        return real_number(a.d + b.d);
    }
    if (h == MULTIPLY) {
        if (!a.real) return whole_number(ref_wrap((int64_t)((uint64_t)a.i * (uint64_t)b.i), acc));
        if (acc == ETCH_F32) return real_number((float)((float)a.d * (float)b.d));
        return real_number(a.d * b.d);
    }
    if (a.real && isnan(a.d)) return a;
    if (a.real && a.d == 0 && b.d == 0) return (h == LARGEST) == (signbit(a.d) != 0) ? b : a;
    bool first =
        a.real ? (h == LARGEST ? a.d > b.d : a.d < b.d) : (h == LARGEST ? a.i > b.i : a.i < b.i);
    return first ? a : b;
}

/* Elements x[0..n) of the accumulator's type; n > 0. */
static number canonical(const number *x, int64_t n, way h, etch_dtype acc) {
    int64_t blocks = (n + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
    number *p = malloc((size_t)blocks * sizeof *p);
    for (int64_t b = 0; b < blocks; b++) {
        number lane[REDUCE_LANES];
        bool there[REDUCE_LANES] = {false};
        for (int64_t r = b * REDUCE_BLOCK; r < n && r < (b + 1) * REDUCE_BLOCK; r++) {
            int l = (int)(r % REDUCE_LANES);
            number first = h == SUM_UP && x[r].real ? real_number(x[r].d + 0.0) : x[r];
            lane[l] = there[l] ? combine(lane[l], x[r], h, acc) : first;
            there[l] = true;
        }
        for (int w = 32; w >= 1; w /= 2)
            for (int l = 0; l < w; l++)
                if (there[l + w]) lane[l] = combine(lane[l], lane[l + w], h, acc);
        p[b] = lane[0];
    }
    for (int64_t s = 1; s < blocks; s *= 2)
        for (int64_t i = 0; i + s < blocks; i += 2 * s) p[i] = combine(p[i], p[i + s], h, acc);
    number result = p[0];
    free(p);
    return result;
}

/* The elements of t that go into output `out` when the axes in mask are reduced, in logical order.
 */
static int64_t collect(const etch_tensor *t, uint32_t mask, int64_t out, number *x) {
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++) n *= mask >> d & 1 ? t->size[d] : 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t reduced = k, kept = out, flat = 0, step = 1;
        for (int d = t->ndim - 1; d >= 0; d--) {
            int64_t *at = mask >> d & 1 ? &reduced : &kept;
            flat += *at % t->size[d] * step;
            *at /= t->size[d], step *= t->size[d];
        }
        x[k] = get(t, flat);
    }
    return n;
}

static etch_dims dims_of(uint32_t mask) {
    etch_dims dims = {0};
    for (int d = 0; d < ETCH_MAX_DIMS; d++)
        if (mask >> d & 1) dims.v[dims.n++] = d;
    return dims;
}

static number expected_of(number *x, int64_t n, reduce_kind kind, etch_dtype in, etch_dtype out) {
    bool grows = kind == REDUCE_SUM || kind == REDUCE_PROD;
    etch_dtype acc = grows && !is_float(in) ? ETCH_I64 : etch__compute_type(in);
    for (int64_t i = 0; i < n; i++) x[i] = ref_convert(x[i], acc);
    way h = kind == REDUCE_MAX    ? LARGEST
            : kind == REDUCE_MIN  ? SMALLEST
            : kind == REDUCE_PROD ? MULTIPLY
                                  : SUM_UP;
    number v = canonical(x, n, h, acc);
    if (kind == REDUCE_MEAN)
        v.d = acc == ETCH_F32 ? (double)((float)v.d / (float)n) : v.d / (double)n;
    return ref_convert(v, out);
}

static void check(etch_tensor *t, uint32_t mask, reduce_kind kind) {
    etch_dims dims = dims_of(mask);
    etch_tensor *y = kind == REDUCE_SUM    ? etch_sum_dim(t, dims, false)
                     : kind == REDUCE_MEAN ? etch_mean_dim(t, dims, false)
                     : kind == REDUCE_PROD ? etch_prod_dim(t, dims.v[0], false)
                     : kind == REDUCE_MAX  ? etch_amax(t, dims, false)
                                           : etch_amin(t, dims, false);
    assert_non_null(y);
    number *x = malloc((size_t)(t->numel + 1) * sizeof *x);
    for (int64_t o = 0; o < y->numel; o++) {
        int64_t n = collect(t, mask, o, x);
        number want = expected_of(x, n, kind, t->dtype, y->dtype);
        number have = get(y, o);
        if (!same_number(want, have))
            fail_msg("%s kind %d mask %x output %lld: want %.17g %lld, have %.17g %lld",
                     etch_dtype_name(t->dtype), kind, mask, (long long)o, want.d, (long long)want.i,
                     have.d, (long long)have.i);
    }
    free(x);
}

/* ---- tests ---- */

TEST(every_dtype_layout_and_axes, .deals = true) {
    const etch_shape shapes[] = {ETCH_SHAPE(7),        ETCH_SHAPE(3, 70),       ETCH_SHAPE(70, 3),
                                 ETCH_SHAPE(4, 1, 33), ETCH_SHAPE(2, 18, 2, 3), ETCH_SHAPE(1)};
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        for (int how = 0; how < LAYOUT_COUNT; how++)
            for (int s = 0; s < COUNT_OF(shapes); s++)
                for (uint32_t mask = 1; mask < 1u << shapes[s].n; mask++)
                    for (int kind = 0; kind < REDUCE_COUNT; kind++) {
                        bool whole = !is_float(d), one = !(mask & (mask - 1));
                        if (!test_share(d * LAYOUT_COUNT + how)) continue;
                        if (kind == REDUCE_ARGMAX || kind == REDUCE_ARGMIN) continue;
                        if (kind == REDUCE_MEAN && whole) continue;
                        if (kind == REDUCE_PROD && !one) continue; /* of one axis only */
                        ETCH_SCOPE {
                            check(make(d, shapes[s], (layout)how, true), mask, (reduce_kind)kind);
                        }
                    }
}

TEST(odd_values, .deals = true) {
    enum { ROUNDS = 20 };
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        for (int round = 0; round < ROUNDS; round++)
            ETCH_SCOPE {
                if (!test_share(d * ROUNDS + round)) continue;
                etch_tensor *t = make(d, ETCH_SHAPE(9, 40), LAYOUT_ROW, false);
                for (uint32_t mask = 1; mask < 4; mask++) {
                    check(t, mask, REDUCE_SUM);
                    check(t, mask, REDUCE_MAX);
                    check(t, mask, REDUCE_MIN);
                    if (mask < 3) check(t, mask, REDUCE_PROD);
                }
            }
}

/* More than one block, and a tree of blocks that is not full: rows, columns, and in between. */
TEST(several_blocks, .deals = true) {
    const etch_shape shapes[] = {ETCH_SHAPE(4096),          ETCH_SHAPE(4097),
                                 ETCH_SHAPE(3 * 4096 + 65), ETCH_SHAPE(7 * 4096 - 1),
                                 ETCH_SHAPE(9000, 3),       ETCH_SHAPE(3, 9000),
                                 ETCH_SHAPE(100, 2, 100)};
    const uint32_t masks[] = {1, 1, 1, 1, 1, 2, 5};
    const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_I32};
    const int most_threads = test_device() == ETCH_CPU ? 4 : 1; /* a device's kernels have none */
    for (int threads = 1; threads <= most_threads; threads *= 2)
        for (int s = 0; s < COUNT_OF(shapes); s++)
            for (int d = 0; d < COUNT_OF(dtypes); d++)
                ETCH_SCOPE {
                    if (!test_share(s * COUNT_OF(dtypes) + d)) continue;
                    assert_int_equal(etch_set_num_threads(threads), ETCH_OK);
                    etch_tensor *t = make(dtypes[d], shapes[s], (layout)(d % 3), true);
                    check(t, masks[s], REDUCE_SUM);
                    check(t, masks[s], REDUCE_MAX);
                }
    etch_set_num_threads(2);
}

TEST(threads_do_not_matter, .deals = true) {
    const etch_shape shapes[] = {ETCH_SHAPE(300000), ETCH_SHAPE(600, 500), ETCH_SHAPE(150000, 2),
                                 ETCH_SHAPE(2, 150000)};
    for (int s = 0; s < COUNT_OF(shapes); s++)
        for (uint32_t mask = 1; mask < 1u << shapes[s].n; mask++)
            ETCH_SCOPE {
                if (!test_share(s)) continue;
                etch_tensor *t = make(ETCH_F32, shapes[s], LAYOUT_ROW, true), *first[3] = {0};
                for (int threads = 1; threads <= 4; threads *= 2) {
                    etch_set_num_threads(threads);
                    etch_tensor *y[3] = {etch_sum_dim(t, dims_of(mask), true),
                                         etch_mean_dim(t, dims_of(mask), true),
                                         etch_amin(t, dims_of(mask), true)};
                    for (int k = 0; k < 3; k++) {
                        assert_non_null(y[k]);
                        if (!first[k]) first[k] = y[k];
                        assert_true(same_tensor(first[k], y[k]));
                    }
                }
            }
    etch_set_num_threads(2);
}

/* A transposed tensor and its contiguous copy have the same logical order, hence the same bits. */
TEST(strides_do_not_matter) {
    ETCH_SCOPE {
        etch_tensor *t = make(ETCH_F32, ETCH_SHAPE(130, 90), LAYOUT_COLUMN, true);
        etch_tensor *c = etch_clone(t);
        assert_non_null(c);
        assert_true(same_tensor(t, c));
        assert_true(c->contiguous && !t->contiguous);
        assert_true(same_tensor(etch_sum(t), etch_sum(c)));
        for (uint32_t mask = 1; mask < 4; mask++)
            assert_true(same_tensor(etch_sum_dim(t, dims_of(mask), false),
                                    etch_sum_dim(c, dims_of(mask), false)));
    }
}

static etch_tensor *whole(etch_tensor *x) { return etch_sum(x); }

/* Neighbours in memory are elements of different rows: blocks that begin and end inside of rows,
 * rows longer than a block, several outputs, each thread's share. */
TEST(rows_across_memory) {
    static const etch_shape sizes[] = {ETCH_SHAPE(70, 300),   ETCH_SHAPE(5003, 41),
                                       ETCH_SHAPE(41, 5003),  ETCH_SHAPE(256, 512),
                                       ETCH_SHAPE(2, 90, 81), ETCH_SHAPE(3, 17, 5000)};
    static const etch_dtype types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_I8};
    etch_function *f = etch_compile_fn1(whole, NULL);
    for (int i = 0; i < COUNT_OF(sizes) * COUNT_OF(types); i++)
        for (int threads = 1; threads <= 3; threads++)
            ETCH_SCOPE {
                etch_set_num_threads(threads);
                etch_tensor *x = make(types[i % 4], sizes[i / 4], LAYOUT_ROW, true);
                etch_tensor *t = etch_transpose(x, -2, -1), *c = etch_contiguous(t);
                assert_true(!t->contiguous && c->contiguous);
                etch_shape d = ETCH_DIMS(-2, -1);
                assert_true(same_tensor(etch_sum(t), etch_sum(c)));
                assert_true(same_tensor(etch_sum_dim(t, d, false), etch_sum_dim(c, d, false)));
                assert_true(same_tensor(etch_amax(t, d, false), etch_amax(c, d, false)));
                for (int k = 0; k < 3; k++)
                    assert_true(same_tensor(etch_call_one(f, &t, 1), etch_sum(c)));
            }
    assert_true(etch_function_counters(f).plan_runs > 0);
    etch_function_free(f);
    etch_set_num_threads(2);
}

static int64_t ref_argmax(const number *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        bool best_nan = x[best].real && isnan(x[best].d), nan = x[i].real && isnan(x[i].d);
        bool larger = x[i].real ? x[i].d > x[best].d : x[i].i > x[best].i;
        if (!best_nan && (nan || larger)) best = i;
    }
    return best;
}

static void check_argmax(etch_tensor *t, int dim) {
    etch_tensor *y = dim < 0 ? etch_argmax(t) : etch_argmax_dim(t, dim, false);
    uint32_t mask = dim < 0 ? (1u << t->ndim) - 1 : 1u << dim;
    if (!y) fail_msg("%s", etch_last_error());
    assert_int_equal(y->dtype, ETCH_I64);
    number *x = malloc((size_t)(t->numel + 1) * sizeof *x);
    for (int64_t o = 0; o < y->numel; o++) {
        int64_t n = collect(t, mask, o, x);
        assert_int_equal(get(y, o).i, ref_argmax(x, n));
    }
    free(x);
}

TEST(argmax_first_nan_first_tie, .deals = true) {
    const etch_shape shapes[] = {ETCH_SHAPE(1), ETCH_SHAPE(700), ETCH_SHAPE(5, 130),
                                 ETCH_SHAPE(130, 5), ETCH_SHAPE(3, 4, 20)};
    for (int d = 0; d < ETCH_BOOL; d++) /* bool has no order that argmax would take */
        for (int s = 0; s < COUNT_OF(shapes); s++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                for (int tame = 0; tame < 2; tame++)
                    ETCH_SCOPE {
                        if (!test_share(d * LAYOUT_COUNT + how)) continue;
                        etch_tensor *t = make(d, shapes[s], (layout)how, tame);
                        for (int dim = -1; dim < shapes[s].n; dim++) check_argmax(t, dim);
                    }
}

TEST(argmax_of_large_tensors) {
    for (int threads = 1; threads <= 2; threads++)
        ETCH_SCOPE {
            etch_set_num_threads(threads);
            etch_tensor *t = make(ETCH_F32, ETCH_SHAPE(200000), LAYOUT_ROW, true);
            check_argmax(t, -1);
            put(t, 150000, real_number(5)), put(t, 199999, real_number(5));
            assert_int_equal(get(etch_argmax(t), 0).i, 150000);
            put(t, 170000, real_number(NAN)), put(t, 180000, real_number(NAN));
            assert_int_equal(get(etch_argmax(t), 0).i, 170000);
        }
}

TEST(nothing_to_reduce) {
    ETCH_SCOPE {
        etch_tensor *none = make(ETCH_F32, ETCH_SHAPE(0), LAYOUT_ROW, true);
        assert_true(same_number(get(etch_sum(none), 0), real_number(0)));
        assert_true(isnan(get(etch_mean(none), 0).d));
        assert_null(etch_max(none));
        assert_int_equal(etch_last_status(), ETCH_ERR_EMPTY);
        etch_tensor *rows = make(ETCH_BF16, ETCH_SHAPE(3, 0), LAYOUT_ROW, true);
        etch_tensor *y = etch_sum_dim(rows, ETCH_DIMS(1), false);
        assert_non_null(y);
        assert_int_equal(y->numel, 3);
        for (int i = 0; i < 3; i++) assert_true(same_number(get(y, i), real_number(0)));
        assert_non_null(etch_amax(rows, ETCH_DIMS(0), false)); /* no outputs: nothing is missing */
        etch_tensor *scalar = make(ETCH_F64, ETCH_SHAPE(), LAYOUT_ROW, true);
        assert_true(same_number(get(etch_sum(scalar), 0), get(scalar, 0)));
        assert_int_equal(get(etch_argmax(scalar), 0).i, 0);
    }
}

TEST(sums_of_integers_are_i64) {
    ETCH_SCOPE {
        etch_tensor *t = make_view(ETCH_I8, ETCH_SHAPE(1000), LAYOUT_ROW);
        for (int i = 0; i < 1000; i++) put(t, i, whole_number(127));
        etch_tensor *y = etch_sum(t);
        assert_int_equal(y->dtype, ETCH_I64);
        assert_int_equal(get(y, 0).i, 127000);
        etch_tensor *b = make_view(ETCH_BOOL, ETCH_SHAPE(300), LAYOUT_ROW);
        for (int i = 0; i < 300; i++) put(b, i, whole_number(1));
        assert_int_equal(get(etch_sum(b), 0).i, 300);
    }
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
