/* Dynamic sizes: a size seen to change becomes run-time, and one graph then serves
 * every size, 0 and 1 included: sizes come from the running body, plans are made for
 * them from kernels that are there.
 * Labels: device. */
#include "device_support.h"
#include "trace_support.h"

static etch_tensor *twice(etch_tensor *x) { return etch_mul_scalar(x, 2); }

static int64_t graphs(etch_function *f) { return etch_function_counters(f).graphs; }

/* The sizes of the table in tests/README.md; PyTorch makes 1 2 2 2 3 4 4 5 6 graphs of them. */
TEST(table_of_sizes) {
    static const int64_t sizes[] = {5, 6, 7, 8, 1, 0, 2};
    static const int64_t most[] = {1, 2, 2, 2, 3, 4, 4};
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(twice, .backend = test_backends[b]);
            for (int i = 0; i < 7; i++) {
                etch_tensor *x = arange_f32(sizes[i], 3);
                assert_same(etch_call(f, x), twice(x));
                assert_same(etch_call(f, x), twice(x));
                assert_true(graphs(f) <= most[i]);
            }
            etch_tensor *x = etch_to(arange_f32(5, 3), ETCH_F64);
            assert_same(etch_call(f, x), twice(x));
            assert_true(graphs(f) <= 5);
            x = etch_t(arange_f32(3, 5));
            assert_same(etch_call(f, x), twice(x));
            assert_true(graphs(f) <= 6);
            assert_int_equal(graphs(f), 3); /* fixed, run-time, f64 */
            etch_function_free(f);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *centred(etch_tensor *x) {
    etch_tensor *mean = etch_mean_dim(x, ETCH_DIMS(0), true);
    etch_tensor *c = etch_sub(x, mean);
    etch_tensor *p = etch_mm(etch_t(c), c);
    etch_tensor *both = etch_cat((etch_tensor *[]){p, etch_exp(p)}, 2, 1);
    etch_tensor *flat = etch_view(both, ETCH_SHAPE(-1));
    return etch_sum(flat);
}

static int64_t looked_for_in(const etch_counters_t *c) {
    return c->kernels_compiled + c->cache_hits;
}
static int64_t looked_for(void) {
    etch_counters_t now = etch_counters();
    return looked_for_in(&now);
}

/* How many kernels may come later. On a device a kernel has a variant or two for some sizes:
 * whether neighbours are read at once, as one or in two steps. */
static int64_t variants(void) { return test_device() ? 16 : 0; }

/* One graph from the first call on: whatever the size, no further kernel is compiled or looked for
 * on disk, so the helper is not started again and the cache gets no further object. */
static void serves_all_sizes(etch_fn1 fn, int64_t first) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(fn, .dynamic = ETCH_DYNAMIC_ON);
        int64_t further = 0;
        for (int64_t n = first; n <= 1000000; n = n < 20 ? n + 1 : n * 5) {
            ETCH_SCOPE {
                etch_tensor *x = arange_f32(n, 2);
                etch_tensor *expected = fn(x); /* on a device it has kernels, too */
                etch_counters_t before = etch_counters();
                for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), expected);
                if (n > first) further += looked_for() - looked_for_in(&before);
            }
            assert_int_equal(graphs(f), 1);
        }
        assert_in_range(further, 0, variants());
        assert_true(etch_function_counters(f).instances > 10);
        assert_int_equal(etch_counters().compile_failures, 0);
        etch_function_free(f);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *views(etch_tensor *x) {
    etch_tensor *flipped = etch_slice(x, 0, ETCH_ABSENT, ETCH_ABSENT, -1);
    etch_tensor *row = etch_expand(etch_select(x, 0, -1), etch_sizes(x));
    etch_tensor *sum = etch_add(etch_add(x, flipped), row);
    etch_tensor *half = etch_slice(sum, 0, 0, ETCH_ABSENT, 2);
    return etch_mul(etch_t(half), etch_slice(etch_t(x), 1, 0, ETCH_ABSENT, 2));
}

static etch_tensor *reductions(etch_tensor *x) {
    etch_tensor *a = etch_sum_dim(x, ETCH_DIMS(0), false);
    etch_tensor *b = etch_amax(x, ETCH_DIMS(0), false);
    etch_tensor *rows = etch_mean_dim(x, ETCH_DIMS(1), false);
    etch_tensor *c = etch_add(etch_min(rows), etch_sum(etch_square(x)));
    return etch_add(etch_add(a, b), c);
}

static etch_tensor *products(etch_tensor *x) {
    etch_tensor *p = etch_mm(etch_t(x), x);
    etch_tensor *q = etch_mm(x, etch_exp(etch_neg(etch_abs(p))));
    return etch_add(q, x);
}

static etch_tensor *joined(etch_tensor *x) {
    etch_tensor *parts[] = {x, etch_neg(x), x};
    etch_tensor *long_one = etch_cat(parts, 3, 0), *wide = etch_cat(parts, 2, 1);
    return etch_add(etch_sum(long_one), etch_mul_scalar(wide, 3));
}

/* From 3 on, half of which is not the size 1 that may have kernels of its own. */
TEST(dynamic_views) { serves_all_sizes(views, 3); }
TEST(dynamic_reductions) { serves_all_sizes(reductions, 2); }
TEST(dynamic_products) { serves_all_sizes(products, 2); }
TEST(dynamic_cat) { serves_all_sizes(joined, 2); }
TEST(dynamic_all) { serves_all_sizes(centred, 2); }

/* Recorded at a size whose reductions are two kernels each. */
TEST(dynamic_from_large) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(reductions, .dynamic = ETCH_DYNAMIC_ON);
        int64_t further = 0;
        for (int64_t n = 300000; n >= 2; n /= 7)
            ETCH_SCOPE {
                etch_tensor *x = arange_f32(n, 2), *expected = reductions(x);
                int64_t before = etch_counters().kernels_compiled;
                for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), expected);
                if (n < 300000) further += etch_counters().kernels_compiled - before;
            }
        assert_in_range(further, 0, variants());
        assert_int_equal(graphs(f), 1);
        etch_function_free(f);
    }
}

TEST(dynamic_off) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(twice, .dynamic = ETCH_DYNAMIC_OFF, .backend = "eager");
        for (int64_t n = 1; n <= 5; n++) {
            etch_tensor *x = arange_f32(n, 3);
            assert_same(etch_call(f, x), twice(x));
            assert_int_equal(graphs(f), n);
        }
        etch_function_free(f);
    }
}

/* A caller's loop over ever longer slices of one buffer. */
TEST(growing_slices) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(twice);
        etch_tensor *buffer = arange_f32(1000, 3);
        for (int64_t n = 0; n < 1000; n++)
            ETCH_SCOPE {
                etch_tensor *x = etch_slice(buffer, 0, 0, n, 1);
                assert_same(etch_call(f, x), twice(x));
            }
        assert_true(graphs(f) <= 2);
        etch_function_free(f);
    }
}

static int64_t length, position;

/* Sizes and positions that the body itself chooses. */
static etch_tensor *chooses(etch_tensor *x) {
    etch_tensor *part = etch_slice(x, 0, position, position + length, 1);
    etch_tensor *row = etch_select(x, 0, position);
    etch_tensor *wide = etch_expand(row, ETCH_SHAPE(length, 3));
    etch_tensor *sum = etch_add(part, wide);
    etch_tensor *ones = etch_ones(ETCH_F32, ETCH_SHAPE(length, 1));
    etch_tensor *last = etch_slice(sum, 0, ETCH_ABSENT, ETCH_ABSENT, -1);
    return etch_mul(last, ones);
}

TEST(sizes_inside_the_body) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(chooses, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(40, 3);
            for (int call = 0; call < 20; call++) {
                length = (call * 7) % 19, position = call;
                etch_tensor *expected = chooses(x);
                assert_same(etch_call(f, x), expected);
                assert_same(etch_call(f, x), expected);
            }
            assert_int_equal(graphs(f), 2);
            etch_function_free(f);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *splits(etch_tensor *x) {
    etch_tensor *sum = etch_slice(x, 0, 0, 4, 1);
    for (int64_t at = 4; at < etch_size(x, 0); at += 4)
        sum = etch_add(sum, etch_slice(x, 0, at, at + 4, 1));
    return sum;
}

/* split(x, 4) with 8, then 12 rows: another number of parts is another path. */
TEST(split) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(splits);
        for (int call = 0; call < 6; call++) {
            etch_tensor *x = arange_f32(call % 2 ? 12 : 8, 3);
            assert_same(etch_call(f, x), splits(x));
        }
        etch_function_free(f);
    }
}

static etch_tensor *global_row;

static etch_tensor *adds_global(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, global_row);
    etch_add_(x, y);
    return etch_sum_dim(y, ETCH_DIMS(-1), false);
}

/* A captured tensor whose size changes, broadcasts of size 1 included, and a written input. */
TEST(captured_sizes) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(adds_global, .backend = test_backends[b]);
            etch_function *plain = etch_compile(adds_global, .disable = true);
            for (int call = 0; call < 12; call++) {
                int64_t n = 1 + (call * 5) % 7;
                global_row = arange_f32(1, call % 3 ? n : 1);
                etch_tensor *x = arange_f32(2 + call % 2, n), *x2 = etch_clone(x);
                assert_same(etch_call(f, x), etch_call(plain, x2));
                assert_same(x, x2);
            }
            assert_true(graphs(f) <= 3);
            etch_function_free(f);
            etch_function_free(plain);
        }
}

static etch_tensor *breaks_in_loop(etch_tensor *x) {
    double sum = 0;
    for (int64_t n = 1; n < 12; n++) {
        etch_tensor *part = etch_slice(x, 0, 0, n, 1);
        sum += etch_item(etch_sum(part));
    }
    return etch_mul_scalar(x, sum);
}

TEST(slices_in_breaking_loop) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(breaks_in_loop, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(12, 3), *expected = breaks_in_loop(x);
            for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), expected);
            assert_true(graphs(f) <= 4); /* entry, body, body at any length, tail */
            etch_function_free(f);
        }
}

/* ---- integers that change with every call ---- */

static int64_t k; /* 1 to 20 */

static etch_tensor *flat(etch_tensor *x) { return etch_view(x, ETCH_SHAPE(-1)); }

static etch_tensor *normed(etch_tensor *x) {
    return etch_layer_norm(x, ETCH_SHAPE(etch_size(x, 1)), ETCH_NONE, ETCH_NONE, 1e-5);
}

static etch_tensor *convolved(etch_tensor *x, int64_t stride, int64_t padding, int64_t dilation,
                              int64_t groups) {
    etch_tensor *image =
        etch_expand(etch_view(x, ETCH_SHAPE(1, 1, 24, 24)), ETCH_SHAPE(1, groups, 24, 24));
    etch_tensor *corner = etch_slice(etch_slice(x, 0, 0, 2, 1), 1, 0, 2, 1);
    etch_tensor *weight = etch_expand(corner, ETCH_SHAPE(groups, 1, 2, 2));
    return etch_conv2d(image, weight, ETCH_NONE, ETCH_DIMS(stride), ETCH_DIMS(padding),
                       ETCH_DIMS(dilation), groups);
}

static etch_tensor *largest(etch_tensor *x, int64_t kernel, int64_t stride, int64_t dilation) {
    return etch_max_pool2d(etch_view(x, ETCH_SHAPE(1, 24, 24)), ETCH_DIMS(kernel),
                           ETCH_DIMS(stride), ETCH_DIMS(0), ETCH_DIMS(dilation), false);
}

static etch_tensor *averaged(etch_tensor *x, int64_t kernel, int64_t divisor) {
    return etch_avg_pool2d(etch_view(x, ETCH_SHAPE(1, 24, 24)), ETCH_DIMS(kernel), ETCH_DIMS(1),
                           ETCH_DIMS(0), false, true, divisor);
}

/* ROW(name, graphs, graphs of PyTorch, what is computed of x[24, 24] and k): for k = 1 to 20, twice
 * each. PyTorch's are of torch.compile(lambda x, k: -f(x, k), dynamic=None) in version 2.15,
 * counted by its backend, with recompile_limit at 64; its default of 8 ends the rows of 20 as eager
 * code. */
/* clang-format off */
#define CHANGING_INTEGERS(ROW)                                                                    \
    ROW(slice_end, 2, 2, etch_slice(x, 1, 0, k, 1))                                               \
    ROW(slice_start, 2, 2, etch_slice(x, 1, k, ETCH_ABSENT, 1))                                   \
    ROW(slice_step, 2, 2, etch_slice(x, 1, ETCH_ABSENT, ETCH_ABSENT, k))                          \
    ROW(select, 2, 20, etch_select(x, 1, k))                                                      \
    ROW(select_back, 2, 20, etch_select(x, 1, -k))                                                \
    ROW(narrow, 2, 2, etch_narrow(x, 1, k, 3))                                                    \
    ROW(narrow_length, 2, 2, etch_narrow(x, 1, 2, k))                                             \
    ROW(tril, 2, 2, etch_tril(x, k))                                                              \
    ROW(triu, 2, 2, etch_triu(x, k - 10))                                                         \
    ROW(diagonal, 2, 20, etch_diagonal(x, k, 0, 1))                                               \
    ROW(unfold_size, 2, 20, etch_unfold(x, 1, k, 1))                                              \
    ROW(unfold_step, 2, 20, etch_unfold(x, 1, 2, k))                                              \
    ROW(as_strided_size, 2, 2, etch_as_strided(x, ETCH_SHAPE(2, k), ETCH_DIMS(24, 1)))            \
    ROW(as_strided_stride, 2, 3, etch_as_strided(x, ETCH_SHAPE(2, 3), ETCH_DIMS(k, 1)))           \
    ROW(view, 2, 2, etch_view(etch_slice(flat(x), 0, 0, 6 * k, 1), ETCH_SHAPE(k, -1)))            \
    ROW(reshape, 3, 4, etch_reshape(etch_slice(etch_t(x), 0, 0, k, 1), ETCH_SHAPE(2, -1)))        \
    ROW(expand, 2, 2, etch_expand(etch_select(x, 0, 0), ETCH_SHAPE(k, 24)))                       \
    ROW(roll, 2, 2, etch_roll(x, ETCH_DIMS(k), ETCH_DIMS(1)))                                     \
    ROW(roll_flat, 2, 2, etch_roll(x, ETCH_DIMS(k), (etch_dims){0}))                              \
    ROW(repeat, 2, 2, etch_repeat(x, ETCH_DIMS(k, 1)))                                            \
    ROW(tile, 2, 2, etch_tile(x, ETCH_DIMS(k)))                                                   \
    ROW(flip, 2, 2, etch_flip(etch_slice(x, 1, 0, k, 1), ETCH_DIMS(1)))                           \
    ROW(cat, 2, 2,                                                                                \
        etch_cat(((etch_tensor *[]){etch_slice(x, 1, 0, k, 1), etch_slice(x, 1, k, 24, 1)}), 2, 1))\
    ROW(slice_scatter, 2, 2, etch_slice_scatter(x, etch_slice(x, 1, 0, 2, 1), 1, k, k + 2, 1))    \
    ROW(select_scatter, 2, 2, etch_select_scatter(x, etch_select(x, 1, 0), 1, k))                 \
    ROW(arange, 2, 2, etch_arange(ETCH_F32, 0, k, 1))                                             \
    ROW(arange_step, 2, 2, etch_arange(ETCH_F32, 0, 40, k))                                       \
    ROW(zeros, 2, 2, etch_zeros(ETCH_F32, ETCH_SHAPE(k)))                                         \
    ROW(full, 2, 2, etch_full(ETCH_F32, ETCH_SHAPE(3, k), k))                                     \
    ROW(one_hot, 2, 20, etch_one_hot(etch_arange(ETCH_I64, 0, 5, 1), 4 + k))                      \
    ROW(pow, 2, 2, etch_pow_scalar(x, k))                                                         \
    ROW(mul, 1, 2, etch_mul_scalar(x, k))                                                         \
    ROW(add_alpha, 2, 2, etch_add_alpha(x, x, k))                                                 \
    ROW(shift, 1, 2, etch_left_shift_scalar(etch_to(x, ETCH_I32), k))                             \
    ROW(clamp, 1, 2, etch_clamp(x, -k, k))                                                        \
    ROW(index_fill, 1, 2, etch_index_fill(x, 1, etch_arange(ETCH_I64, 0, 3, 1), k))               \
    ROW(correction, 1, 20, etch_var_dim(x, ETCH_DIMS(1), k, false))                               \
    ROW(cumsum, 2, 2, etch_cumsum(etch_slice(x, 1, 0, k, 1), 1))                                  \
    ROW(sum_dim, 2, 3, etch_sum_dim(x, ETCH_DIMS(k % 2), false))                                  \
    ROW(layer_norm, 2, 2, normed(etch_slice(x, 1, 0, k, 1)))                                      \
    ROW(conv_padding, 2, 2, convolved(x, 1, k, 1, 1))                                             \
    ROW(conv_stride, 2, 2, convolved(x, k, 0, 1, 1))                                              \
    ROW(conv_dilation, 2, 2, convolved(x, 1, 0, k, 1))                                            \
    ROW(conv_groups, 2, 2, convolved(x, 1, 0, 1, k))                                              \
    ROW(pool_kernel, 2, 20, largest(x, k, 1, 1))                                                   \
    ROW(pool_stride, 2, 20, largest(x, 2, k, 1))                                                   \
    ROW(pool_dilation, 2, 20, largest(x, 2, 1, k))                                                 \
    ROW(mean_kernel, 2, 20, averaged(x, k, 0))                                                     \
    ROW(mean_divisor, 2, 20, averaged(x, 2, k))                                                    \
    ROW(unsqueeze, 3, 4, etch_unsqueeze(x, k % 3))                                                \
    ROW(movedim, 3, 4,                                                                            \
        etch_movedim(etch_view(x, ETCH_SHAPE(2, 12, 24)), ETCH_DIMS(k % 3), ETCH_DIMS(0)))        \
    ROW(transpose, 3, 4, etch_transpose(etch_view(x, ETCH_SHAPE(2, 12, 24)), k % 3, 0))
/* clang-format on */

#define PROGRAM(name, graphs, pytorch, result)                                                     \
    static etch_tensor *by_##name(etch_tensor *x) { return (void)x, etch_neg(result); }
CHANGING_INTEGERS(PROGRAM)

TEST(changing_integers) {
    static const struct {
        const char *name;
        int graphs, pytorch;
        etch_fn1 fn;
    } rows[] = {
#define CELL(name, graphs, pytorch, result) {#name, graphs, pytorch, by_##name},
        CHANGING_INTEGERS(CELL)};
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(rows[i / 2].fn, .backend = test_backends[i % 2]);
            etch_tensor *x = arange_f32(24, 24);
            for (k = 1; k <= 20; k++) {
                etch_tensor *expected = rows[i / 2].fn(x);
                for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), expected);
            }
            if (graphs(f) != rows[i / 2].graphs) print_error("%s\n", rows[i / 2].name);
            assert_int_equal(graphs(f), rows[i / 2].graphs);
            assert_true(rows[i / 2].graphs <= rows[i / 2].pytorch);
            etch_function_free(f);
        }
    assert_int_equal(etch_memory().tensors, 0);
}
