/* Products: small ones bit for bit against the chain acc = fma(a, b, acc) written out here,
 * integers exactly, large ones within a bound against double, and all of them the same for every
 * thread count.
 * Labels: device long optimised. */
#include "chain_support.h"
#include "cpu_support.h"

/* The chain for float dtypes in the compute type; integers wrap. `wide` gets the sum in double. */
static number chain(const etch_tensor *a, const etch_tensor *b, int64_t a0, int64_t a1, int64_t b0,
                    int64_t b1, int64_t k, double *wide, double *bound) {
    etch_dtype d = a->dtype, type = etch__compute_type(d);
    float f = 0;
    double g = 0;
    uint64_t u = 0;
    *wide = *bound = 0;
    for (int64_t i = 0; i < k; i++) {
        number x = get(a, a0 + i * a1), y = get(b, b0 + i * b1);
        if (type == ETCH_F32) f = fmaf((float)x.d, (float)y.d, f);
        else if (type == ETCH_F64) g = fma(x.d, y.d, g);
        else if (type == ETCH_BOOL) u |= (uint64_t)(x.i & y.i);
        else u += (uint64_t)x.i * (uint64_t)y.i;
        *wide += x.d * y.d, *bound += fabs(x.d * y.d);
    }
    if (type == ETCH_F32) return real_number(f);
    if (type == ETCH_F64) return real_number(g);
    return whole_number(ref_wrap((int64_t)u, type));
}

static bool is_small(int64_t m, int64_t n, int64_t k) { return m <= 64 && n <= 64 && k <= 64; }

/* A sum of k products in any order: k roundings of the compute type, and one of the dtype, whose
 * denormals lie half a unit of the smallest apart. */
static bool near(double have, double want, double bound, int64_t k, etch_dtype d) {
    const double unit[] = {0x1p-24, 0x1p-53, 0x1p-8, 0x1p-11};
    const double smallest[] = {0x1p-149, 0x1p-1074, 0x1p-133, 0x1p-24};
    double chain_unit = d == ETCH_F64 ? 0x1p-53 : 0x1p-24;
    double rounding = fmax(fabs(want) * unit[d], smallest[d] / 2);
    return fabs(have - want) <= bound * chain_unit * (double)(k + 2) + rounding;
}

static void check_element(const etch_tensor *a, const etch_tensor *b, number have, int64_t a0,
                          int64_t a1, int64_t b0, int64_t b1, int64_t k, bool exact) {
    double wide, bound;
    etch_dtype d = a->dtype;
    number want = ref_convert(chain(a, b, a0, a1, b0, b1, k, &wide, &bound), d);
    bool ok = exact || !is_float(d) ? same_number(have, want) : near(have.d, wide, bound, k, d);
    if (!ok)
        fail_msg("%s k = %lld: want %.17g %lld, have %.17g %lld", etch_dtype_name(d), (long long)k,
                 want.d, (long long)want.i, have.d, (long long)have.i);
}

static void check_mm(etch_tensor *a, etch_tensor *b) {
    etch_tensor *y = etch_mm(a, b);
    if (!y) fail_msg("%s", etch_last_error());
    int64_t m = a->size[0], k = a->size[1], n = b->size[1];
    int64_t step = m * n * k > 100000 ? 61 : 1; /* a sample of the large ones */
    for (int64_t i = 0; i < m * n; i += step)
        check_element(a, b, get(y, i), i / n * k, 1, i % n, n, k, is_small(m, n, k));
}

/* ---- tests ---- */

TEST(small_products_are_chains) {
    const int64_t sizes[][3] = {{1, 1, 1},  {10, 10, 10}, {1, 64, 64}, {64, 1, 64}, {64, 64, 1},
                                {7, 17, 5}, {64, 64, 64}, {13, 33, 3}, {6, 16, 31}, {12, 48, 64},
                                {5, 15, 2}, {63, 49, 62}, {2, 8, 64},  {3, 4, 5}};
    for (int d = 0; d < ETCH_DTYPE_COUNT - 1; d++)
        for (int s = 0; s < COUNT_OF(sizes); s++)
            for (int how = 0; how < LAYOUT_COUNT * LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    const int64_t *v = sizes[s];
                    layout left = (layout)(how % LAYOUT_COUNT),
                           right = (layout)(how / LAYOUT_COUNT);
                    if (how % 7 && v[0] * v[1] * v[2] > 10000) continue; /* time */
                    check_mm(make(d, ETCH_SHAPE(v[0], v[2]), left, true),
                             make(d, ETCH_SHAPE(v[2], v[1]), right, true));
                }
}

TEST(odd_values_in_small_products) {
    for (int round = 0; round < 30; round++)
        ETCH_SCOPE {
            check_mm(make(ETCH_F32, ETCH_SHAPE(9, 3), LAYOUT_ROW, false),
                     make(ETCH_F32, ETCH_SHAPE(3, 20), LAYOUT_ROW, false));
            check_mm(make(ETCH_I64, ETCH_SHAPE(9, 3), LAYOUT_ROW, false),
                     make(ETCH_I64, ETCH_SHAPE(3, 20), LAYOUT_ROW, false));
        }
}

TEST(large_products) {
    const int64_t sizes[][3] = {{65, 1, 1},     {1, 65, 1},     {1, 1, 65},
                                {65, 65, 65},   {1, 1000, 300}, {1000, 1, 9},
                                {130, 257, 90}, {300, 40, 70},  {600, 520, 3}};
    for (int d = 0; d < ETCH_DTYPE_COUNT - 1; d++)
        for (int s = 0; s < COUNT_OF(sizes); s++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    const int64_t *v = sizes[s];
                    layout other = (layout)((how * 2 + 1) % LAYOUT_COUNT);
                    check_mm(make(d, ETCH_SHAPE(v[0], v[2]), (layout)how, true),
                             make(d, ETCH_SHAPE(v[2], v[1]), other, true));
                }
}

TEST(threads_do_not_matter) {
    const int64_t sizes[][3] = {{1, 1000, 1000}, {150, 256, 130}, {400, 1, 200}, {300, 140, 7}};
    for (int d = ETCH_F32; d <= ETCH_I8; d++)
        for (int s = 0; s < COUNT_OF(sizes); s++)
            ETCH_SCOPE {
                const int64_t *v = sizes[s];
                if (v[2] == 1000 && d != ETCH_F32) continue; /* time */
                etch_tensor *a = make(d, ETCH_SHAPE(v[0], v[2]), LAYOUT_ROW, true), *first = NULL;
                etch_tensor *b = make(d, ETCH_SHAPE(v[2], v[1]), LAYOUT_COLUMN, true);
                for (int threads = 1; threads <= 4; threads *= 2) {
                    etch_set_num_threads(threads);
                    etch_tensor *y = etch_mm(a, b);
                    assert_non_null(y);
                    if (!first) first = y;
                    assert_true(same_tensor(first, y));
                }
            }
    etch_set_num_threads(2);
}

TEST(vectors_and_batches) {
    const int64_t lengths[] = {1, 7, 64, 65, 300};
    for (int d = 0; d < ETCH_DTYPE_COUNT - 1; d++)
        for (int s = 0; s < COUNT_OF(lengths); s++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    etch_dtype dtype = d;
                    int64_t k = lengths[s];
                    etch_tensor *m = make(dtype, ETCH_SHAPE(5, k), (layout)how, true);
                    etch_tensor *v = make(dtype, ETCH_SHAPE(k), (layout)how, true);
                    etch_tensor *w = make(dtype, ETCH_SHAPE(k), LAYOUT_GAPS, true);
                    etch_tensor *mv = etch_mv(m, v), *dot = etch_dot(v, w);
                    assert_non_null(mv);
                    assert_non_null(dot);
                    assert_int_equal(mv->ndim, 1);
                    assert_int_equal(dot->ndim, 0);
                    for (int64_t i = 0; i < 5; i++)
                        check_element(m, v, get(mv, i), i * k, 1, 0, 1, k, k <= 64);
                    check_element(v, w, get(dot, 0), 0, 1, 0, 1, k, k <= 64);
                    etch_tensor *x = make(dtype, ETCH_SHAPE(3, 4, k), (layout)how, true);
                    etch_tensor *y = make(dtype, ETCH_SHAPE(3, k, 6), LAYOUT_COLUMN, true);
                    etch_tensor *z = etch_bmm(x, y);
                    assert_non_null(z);
                    for (int64_t i = 0; i < 3 * 4 * 6; i++)
                        check_element(x, y, get(z, i), i / 6 * k, 1, i / 24 * 6 * k + i % 6, 6, k,
                                      k <= 64);
                }
}

/* beta * self + alpha * (a b): in the compute type, rounded once; beta = 0 does not look at self.
 */
TEST(addmm) {
    const etch_shape selves[] = {ETCH_SHAPE(6, 9), ETCH_SHAPE(9), ETCH_SHAPE(6, 1), ETCH_SHAPE(),
                                 ETCH_SHAPE(1, 9)};
    const double factors[][2] = {{1, 1}, {0.5, 1}, {1, -2}, {0, 3}, {3, 0}};
    for (int d = 0; d <= ETCH_I8; d++)
        for (int s = 0; s < COUNT_OF(selves); s++)
            for (int f = 0; f < COUNT_OF(factors); f++)
                ETCH_SCOPE {
                    etch_dtype dtype = d, type = etch__compute_type(dtype);
                    double beta = is_float(dtype) ? factors[f][0] : trunc(factors[f][0]),
                           alpha = factors[f][1];
                    etch_tensor *a = make(dtype, ETCH_SHAPE(6, 4), LAYOUT_ROW, true);
                    etch_tensor *b = make(dtype, ETCH_SHAPE(4, 9), LAYOUT_COLUMN, true);
                    etch_tensor *self = make(dtype, selves[s], (layout)(f % LAYOUT_COUNT), true);
                    if (beta == 0) put(self, 0, ref_convert(real_number(NAN), dtype));
                    etch_tensor *y = is_float(dtype)
                                         ? etch_addmm_scaled(self, a, b, beta, alpha)
                                         : etch_addmm_scaled(self, a, b, (int)beta, (int)alpha);
                    if (!y) fail_msg("%s", etch_last_error());
                    for (int64_t i = 0; i < 54; i++) {
                        double wide, bound;
                        number c = chain(a, b, i / 9 * 4, 1, i % 9, 9, 4, &wide, &bound);
                        int64_t rows = self->ndim == 2 && self->size[0] > 1 ? i / 9 : 0;
                        int64_t width = self->ndim ? self->size[self->ndim - 1] : 1;
                        number x = get(self, rows * width + (width > 1 ? i % 9 : 0)), want;
                        if (type == ETCH_F32) {
                            float t = (float)alpha * (float)c.d;
                            want = real_number(beta == 0 ? t : (float)beta * (float)x.d + t);
                        } else if (type == ETCH_F64) {
                            double t = alpha * c.d;
                            want = real_number(beta == 0 ? t : beta * x.d + t);
                        } else {
                            want = whole_number((int64_t)beta * x.i + (int64_t)alpha * c.i);
                        }
                        assert_true(same_number(get(y, i), ref_convert(want, dtype)));
                    }
                }
}

/* Of large ones, which come in tiles: what addmm makes of mm's elements. */
TEST(addmm_of_tiles) {
    const int64_t sizes[][3] = {{70, 66, 33}, {9, 300, 80}, {130, 70, 300}, {300, 3, 70}};
    for (int d = ETCH_F32; d <= ETCH_F64; d++)
        for (int s = 0; s < COUNT_OF(sizes); s++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                ETCH_SCOPE {
                    const int64_t *v = sizes[s];
                    etch_tensor *a = make(d, ETCH_SHAPE(v[0], v[2]), (layout)how, true);
                    etch_tensor *b = make(d, ETCH_SHAPE(v[2], v[1]), LAYOUT_COLUMN, true);
                    etch_tensor *self = make(d, ETCH_SHAPE(v[1]), LAYOUT_GAPS, true);
                    etch_tensor *c = etch_mm(a, b), *y = etch_addmm_scaled(self, a, b, 0.5, 2);
                    assert_true(c && y);
                    for (int64_t i = 0; i < v[0] * v[1]; i++) {
                        double x = get(self, i % v[1]).d * 0.5, t = get(c, i).d * 2;
                        number want = ref_convert(real_number(x + t), (etch_dtype)d);
                        if (d == ETCH_F32) want = real_number((double)((float)x + (float)t));
                        assert_true(same_number(get(y, i), want));
                    }
                }
}

/* ---- by panels ---- */

/* What there is at each level, written out (of AMX: chain_support.h). Dot products of pairs, 512
 * terms at a time: of each pair the second term, then the first. */
static float dot_chain(const float *x, const float *y, int64_t k) {
    float sum = 0;
    for (int64_t at = 0; at < k; at += 512) {
        float part = 0;
        for (int64_t i = at; i < at + 512 && i < k; i += 2)
            for (int64_t j = i + 1; j >= i; j--) {
                bool there = j < k;
                part = flushed(fmaf(flushed(there ? x[j] : 0), flushed(there ? y[j] : 0), part));
            }
        sum = at ? sum + part : part;
    }
    return sum;
}

/* f32, and what is widened to it: 256 terms at a time. */
static float wide_chain(const float *x, const float *y, int64_t k) {
    float sum = 0;
    for (int64_t at = 0; at < k; at += 256) {
        float part = 0;
        for (int64_t i = at; i < at + 256 && i < k; i++) part = fmaf(x[i], y[i], part);
        sum = at ? sum + part : part;
    }
    return sum;
}

/* Few rows: 16 chains of every sixteenth pair, added half by half. */
static float few_chain(const float *x, const float *y, int64_t k) {
    float part[16] = {0};
    for (int64_t i = 0; i < (k + 31) / 32 * 32; i += 2)
        for (int64_t j = i + 1; j >= i; j--) {
            float a = j < k ? flushed(x[j]) : 0, b = j < k ? flushed(y[j]) : 0;
            part[i / 2 % 16] = flushed(fmaf(a, b, part[i / 2 % 16]));
        }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* Whether a matrix that few rows are multiplied with lies along its terms. */
static bool is_few(const etch_tensor *a, const etch_tensor *b) {
    int64_t k = a->size[1];
    bool rows = a->size[0] <= 8 && (b->stride[0] == 1 || k == 1);
    bool columns = b->size[1] <= 8 && (a->stride[1] == 1 || k == 1);
    return etch__cpu_level() >= CPU_LEVEL_DOTS && !etch__cpu_amx() && (rows || columns);
}

static float panel_chain(etch_dtype d, const float *x, const float *y, int64_t k, bool few) {
    if (d == ETCH_BF16 && few) return few_chain(x, y, k);
    if (d == ETCH_BF16 && etch__cpu_amx()) return tile_chain(x, y, k);
    if (d == ETCH_BF16 && etch__cpu_level() >= CPU_LEVEL_DOTS) return dot_chain(x, y, k);
    return wide_chain(x, y, k);
}

static void check_panels(const etch_tensor *a, const etch_tensor *b, int64_t step) {
    int64_t m = a->size[0], k = a->size[1], n = b->size[1];
    etch_tensor *y = etch_mm((etch_tensor *)(uintptr_t)a, (etch_tensor *)(uintptr_t)b);
    float *left = malloc((size_t)(m * k + 1) * sizeof *left);
    float *right = malloc((size_t)(n * k + 1) * sizeof *right);
    if (!y) fail_msg("%s", etch_last_error());
    assert_true(left && right);
    for (int64_t i = 0; i < m * k; i++) left[i] = (float)get(a, i).d;
    for (int64_t i = 0; i < n * k; i++) right[i] = (float)get(b, i % k * n + i / k).d;
    for (int64_t i = 0; i < m * n; i += step) {
        float want = panel_chain(a->dtype, left + i / n * k, right + i % n * k, k, is_few(a, b));
        number have = get(y, i), w = ref_convert(real_number((double)want), a->dtype);
        if (!same_number(have, w))
            fail_msg("%s %lld x %lld x %lld, element %lld: want %.9g, have %.9g",
                     etch_dtype_name(a->dtype), (long long)m, (long long)n, (long long)k,
                     (long long)i, w.d, have.d);
    }
    free(left), free(right);
}

/* Every layout, edges of panels, blocks and sums, odd values: an element's bits are those of the
 * chain, wherever it lies. */
TEST(panels_are_chains) {
    const int64_t sizes[][3] = {{1, 70, 33},    {70, 1, 64},    {33, 65, 32},    {65, 17, 31},
                                {100, 90, 1},   {16, 16, 600},  {3, 300, 96},    {300, 5, 1100},
                                {40, 700, 800}, {9, 90, 257},   {70, 3, 513},    {17, 70, 1025},
                                {12, 64, 80},   {600, 600, 40}, {140, 300, 900}, {1, 300, 257},
                                {8, 131, 70},   {300, 7, 34},   {5, 66, 1}};
    const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F16};
    if (etch__cpu_isa() < CPU_ISA_AVX512 || etch_current_device()) return;
    for (int t = 0; t < 3 * COUNT_OF(sizes); t++)
        for (int how = 0; how < LAYOUT_COUNT * LAYOUT_COUNT * 2; how++)
            ETCH_SCOPE {
                const int64_t *v = sizes[t / 3], m = v[0], n = v[1], k = v[2];
                etch_dtype d = dtypes[t % 3];
                layout left = (layout)(how / 2 % LAYOUT_COUNT);
                layout right = (layout)(how / 2 / LAYOUT_COUNT);
                bool large = m * n * k > 100000;
                if (d == ETCH_F32 && (m <= 8 || n <= 2)) continue; /* may be the library's */
                if (large && (how / 2 + t) % (m * n * k > 1000000 ? 9 : 3)) continue; /* time */
                etch_tensor *a = make(d, ETCH_SHAPE(m, k), left, how & 1);
                etch_tensor *b = make(d, ETCH_SHAPE(k, n), right, how & 1);
                check_panels(a, b, m * n > 3000 ? 37 : 1);
            }
}

/* Rows of a product are the products of the rows, also in batches and with one operand for all. */
TEST(tiles_do_not_matter) {
    ETCH_SCOPE {
        etch_tensor *a = make(ETCH_BF16, ETCH_SHAPE(3, 150, 200), LAYOUT_ROW, true);
        etch_tensor *b = make(ETCH_BF16, ETCH_SHAPE(1, 200, 300), LAYOUT_COLUMN, true);
        etch_tensor *y = etch_bmm(a, etch_expand(b, ETCH_SHAPE(3, 200, 300)));
        assert_non_null(y);
        for (int64_t i = 0; i < 3; i++)
            for (int64_t r = 0; r < 140; r += 29) {
                etch_tensor *rows = etch_slice(etch_select(a, 0, i), 0, r, r + 10, 1);
                etch_tensor *z = etch_mm(rows, etch_select(b, 0, 0));
                assert_non_null(z);
                if (etch__cpu_isa() == CPU_ISA_AVX512 && !etch_current_device())
                    for (int64_t c = 0; c < 300; c++)
                        assert_true(same_number(get(z, c), get(y, (i * 150 + r) * 300 + c)));
            }
    }
}

/* A left operand that is packed for all tiles of its rows: with all terms at once and with some, of
 * several products, by threads that share the rows and by those that have them to themselves. */
TEST(rows_of_tiles_do_not_matter) {
    const int64_t sizes[][4] = {{1, 300, 600, 128}, {2, 130, 530, 250}, {3, 256, 513, 300}};
    if (etch__cpu_isa() < CPU_ISA_AVX512 || etch_current_device()) return;
    for (int s = 0; s < COUNT_OF(sizes); s++)
        for (int threads = 1; threads <= 4; threads++)
            ETCH_SCOPE {
                const int64_t *v = sizes[s];
                etch_set_num_threads(threads);
                etch_tensor *a = etch_randn(ETCH_F32, ETCH_SHAPE(v[0], v[3], v[1]));
                etch_tensor *b = etch_randn(ETCH_F32, ETCH_SHAPE(v[0], v[3], v[2]));
                etch_tensor *y = etch_bmm(etch_transpose(a, 1, 2), b);
                assert_non_null(y);
                for (int64_t i = 0; i < v[0]; i++) {
                    etch_tensor *left = etch_contiguous(etch_t(etch_select(a, 0, i)));
                    etch_tensor *one = etch_mm(left, etch_select(b, 0, i));
                    assert_true(same_tensor(one, etch_select(y, 0, i)));
                }
            }
}

TEST(empty_and_zero_k) {
    for (int d = 0; d < ETCH_DTYPE_COUNT - 1; d++)
        ETCH_SCOPE {
            etch_dtype dtype = d;
            etch_tensor *none = make(dtype, ETCH_SHAPE(70, 0), LAYOUT_ROW, true);
            etch_tensor *y = etch_mm(none, make(dtype, ETCH_SHAPE(0, 80), LAYOUT_ROW, true));
            assert_non_null(y);
            for (int i = 0; i < 70 * 80; i++)
                assert_true(same_number(get(y, i), ref_convert(whole_number(0), dtype)));
            assert_int_equal(etch_numel(etch_mm(make(dtype, ETCH_SHAPE(0, 5), LAYOUT_ROW, true),
                                                make(dtype, ETCH_SHAPE(5, 3), LAYOUT_ROW, true))),
                             0);
            etch_tensor *dot = etch_dot(make(dtype, ETCH_SHAPE(0), LAYOUT_ROW, true),
                                        make(dtype, ETCH_SHAPE(0), LAYOUT_ROW, true));
            assert_true(same_number(get(dot, 0), ref_convert(whole_number(0), dtype)));
            assert_int_equal(
                etch_numel(etch_bmm(make(dtype, ETCH_SHAPE(0, 5, 2), LAYOUT_ROW, true),
                                    make(dtype, ETCH_SHAPE(0, 2, 3), LAYOUT_ROW, true))),
                0);
        }
}

TEST(failed_allocations) {
    for (int64_t n = 0, failed = 0, done = 0; !done; n++)
        ETCH_SCOPE {
            etch_tensor *a = make(ETCH_BF16, ETCH_SHAPE(70, 30), LAYOUT_GAPS, true);
            etch_tensor *b = make(ETCH_BF16, ETCH_SHAPE(30, 5), LAYOUT_ROW, true);
            etch__fail_allocation(n);
            etch_tensor *y = etch_mm(a, b);
            done = etch__fail_allocation(-1) <= n;
            /* some can be done without */
            assert_int_equal(etch_last_status(), y ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY);
            assert_true(y || !done);
            failed += !y;
            etch_clear_error();
            assert_true(n < 50);
            assert_true(failed > 3 || !done);
            check_mm(a, b);
        }
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
