/* Convolution and what a compiled function makes of several: chains with batch norm, activation and
 * residual add, whose tiles are shared, bit for bit as eager at any number of threads; sizes that
 * leave rests everywhere, against sums in double; views of every kind; odd values; and how often a
 * weight is packed.
 * Labels: optimised. */
#include <etch/etch.h>

#include "chain_support.h"
#include "cpu_support.h"

#define S ETCH_SHAPE

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

/* ---- sums in double ---- */

typedef struct conv_case {
    etch_shape x, w, stride, padding, dilation;
    int64_t groups;
} conv_case;

typedef struct exact {
    double sum, size; /* and that of the absolute values */
} exact;

static exact sum_of(const conv_case *c, const etch_tensor *x, const etch_tensor *w,
                    const etch_tensor *y, int64_t flat) {
    int64_t ow = flat % y->size[3], oh = flat / y->size[3] % y->size[2];
    int64_t oc = flat / y->size[3] / y->size[2] % y->size[1];
    int64_t n = flat / y->size[3] / y->size[2] / y->size[1];
    int64_t first = oc / (w->size[0] / c->groups) * w->size[1];
    exact e = {0, 0};
    for (int64_t k = 0; k < w->size[1] * w->size[2] * w->size[3]; k++) {
        int64_t kw = k % w->size[3], kh = k / w->size[3] % w->size[2];
        int64_t ic = k / w->size[3] / w->size[2];
        int64_t ih = oh * c->stride.v[0] - c->padding.v[0] + kh * c->dilation.v[0];
        int64_t iw = ow * c->stride.v[1] - c->padding.v[1] + kw * c->dilation.v[1];
        if (ih < 0 || iw < 0 || ih >= x->size[2] || iw >= x->size[3]) continue;
        double a = get(x, ((n * x->size[1] + first + ic) * x->size[2] + ih) * x->size[3] + iw).d;
        double b = get(w, ((oc * w->size[1] + ic) * w->size[2] + kh) * w->size[3] + kw).d;
        e.sum += a * b, e.size += fabs(a * b);
    }
    return e;
}

static double epsilon(etch_dtype d) {
    return d == ETCH_F64 ? 0x1p-52 : d == ETCH_F32 ? 0x1p-23 : d == ETCH_F16 ? 0x1p-10 : 0x1p-7;
}

/* Channels, positions and terms around the widths of vectors, panels, groups of rows and tiles. */
static const conv_case cases[] = {
    {S(1, 17, 9, 11), S(33, 17, 3, 3), S(1, 1), S(1, 1), S(1, 1), 1},
    {S(2, 64, 5, 5), S(65, 64, 1, 1), S(1, 1), S(0, 0), S(1, 1), 1},
    {S(1, 600, 3, 4), S(20, 600, 1, 2), S(1, 1), S(0, 1), S(1, 1), 1},
    {S(1, 30, 10, 7), S(48, 15, 3, 2), S(2, 1), S(1, 2), S(1, 2), 2},
    {S(1, 24, 13, 12), S(24, 1, 3, 3), S(1, 1), S(1, 1), S(1, 1), 24},
    {S(2, 20, 9, 9), S(40, 1, 5, 3), S(2, 3), S(2, 4), S(1, 1), 20},
    {S(1, 3, 30, 31), S(70, 3, 7, 7), S(2, 2), S(3, 3), S(1, 1), 1},
    {S(3, 9, 1, 1), S(18, 9, 1, 1), S(1, 1), S(0, 0), S(1, 1), 1},
    {S(1, 8, 2, 3), S(16, 8, 3, 3), S(1, 1), S(7, 5), S(1, 1), 1}, /* more padding than kernel */
    {S(1, 16, 1, 40), S(12, 16, 1, 5), S(1, 2), S(0, 2), S(1, 3), 1},
    {S(5, 12, 6, 6), S(9, 4, 2, 2), S(3, 3), S(0, 0), S(4, 4), 3},
    {S(0, 8, 5, 5), S(16, 8, 3, 3), S(1, 1), S(1, 1), S(1, 1), 1},
    /* few channels of rows that are long enough: by lines */
    {S(2, 3, 6, 20), S(4, 3, 3, 3), S(1, 1), S(1, 1), S(1, 1), 1},
    {S(3, 1, 40, 130), S(1, 1, 5, 4), S(2, 1), S(0, 3), S(3, 2), 1},
    {S(1, 5, 7, 16), S(7, 5, 1, 1), S(1, 1), S(0, 0), S(1, 1), 1},
    {S(1, 64, 33, 17), S(2, 64, 3, 3), S(1, 1), S(2, 1), S(1, 1), 1},
    /* nothing but padding */
    {S(2, 3, 0, 20), S(4, 3, 3, 3), S(1, 1), S(2, 2), S(1, 1), 1},
    {S(2, 3, 20, 0), S(4, 3, 3, 3), S(1, 1), S(2, 12), S(1, 1), 1},
    {S(2, 3, 0, 5), S(4, 3, 3, 3), S(1, 1), S(2, 2), S(1, 1), 1},
    {S(2, 3, 5, 0), S(4, 3, 3, 3), S(1, 1), S(2, 2), S(1, 1), 1},
    {S(1, 40, 0, 9), S(8, 40, 1, 3), S(1, 1), S(2, 1), S(1, 1), 1},
};

static etch_tensor *convolve(const conv_case *c, etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return must(etch_convolution(x, w, b, c->stride, c->padding, c->dilation, c->groups));
}

static void check_values(const conv_case *c, const etch_tensor *x, const etch_tensor *w,
                         const etch_tensor *b, const etch_tensor *y) {
    for (int64_t i = 0; i < y->numel; i++) {
        exact e = sum_of(c, x, w, y, i);
        double bias = get(b, i / y->size[2] / y->size[3] % y->size[1]).d, have = get(y, i).d;
        double terms = (double)(w->size[1] * w->size[2] * w->size[3]);
        double inner = epsilon(etch__compute_type(y->dtype)) * terms * (e.size + fabs(bias));
        double room = inner + epsilon(y->dtype) * (fabs(e.sum + bias) + 1e-3);
        if (fabs(have - e.sum - bias) > room)
            fail_msg("case %d, element %lld: want %.17g, have %.17g", (int)(c - cases),
                     (long long)i, e.sum + bias, have);
    }
}

TEST(values_and_layouts) {
    static const etch_dtype types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int d = 0; d < COUNT_OF(types); d++)
            ETCH_SCOPE {
                const conv_case *c = &cases[k];
                etch_tensor *x = make(types[d], c->x, LAYOUT_ROW, true);
                etch_tensor *w = make(types[d], c->w, LAYOUT_ROW, true);
                etch_tensor *b = make(types[d], S(c->w.v[0]), LAYOUT_ROW, true);
                etch_tensor *y = convolve(c, x, w, b);
                check_values(c, x, w, b, y);
                /* the same elements in memory in another order: channels innermost, reversed */
                etch_tensor *last = etch_contiguous(etch_permute(x, ETCH_DIMS(0, 2, 3, 1)));
                etch_tensor *turned = etch_permute(last, ETCH_DIMS(0, 3, 1, 2));
                assert_true(same_tensor(y, convolve(c, turned, w, b)));
                etch_tensor *odd = make_view(types[d], c->x, LAYOUT_NEGATIVE);
                etch_copy_(odd, x);
                assert_true(same_tensor(y, convolve(c, odd, w, b)));
                etch_tensor *flipped = make_view(types[d], c->w, LAYOUT_COLUMN);
                etch_copy_(flipped, w);
                assert_true(same_tensor(y, convolve(c, x, flipped, b)));
            }
}

/* ---- by tiles ---- */

/* Terms that end within a block, at one and behind several; pixels that are read as they lie, and
 * those of which a tile has a rest; groups; rows of the kernel as places; channels of a page. */
static const conv_case tiled[] = {
    {S(1, 17, 9, 11), S(33, 17, 3, 3), S(1, 1), S(1, 1), S(1, 1), 1},
    {S(2, 64, 8, 8), S(40, 64, 1, 1), S(1, 1), S(0, 0), S(1, 1), 1},
    {S(3, 96, 5, 4), S(51, 32, 1, 1), S(1, 1), S(0, 0), S(1, 1), 3},
    {S(1, 3, 20, 21), S(70, 3, 7, 7), S(2, 2), S(3, 3), S(1, 1), 1},
    {S(2, 40, 7, 6), S(32, 20, 3, 2), S(2, 1), S(2, 3), S(2, 1), 2},
    {S(1, 1024, 4, 4), S(16, 1024, 1, 1), S(1, 1), S(0, 0), S(1, 1), 1},
    {S(1, 8, 2, 3), S(16, 8, 3, 3), S(1, 1), S(7, 5), S(1, 3), 1},
    {S(1, 64, 40, 50), S(272, 64, 1, 1), S(1, 1), S(0, 0), S(1, 1), 1},
};

/* The values under an element, and the weights, in the order of the sum; returns their number. */
static int64_t terms_of(const conv_case *c, const etch_tensor *x, const etch_tensor *w,
                        const etch_tensor *y, int64_t flat, float *a, float *b) {
    int64_t ow = flat % y->size[3], oh = flat / y->size[3] % y->size[2], k = 0;
    int64_t oc = flat / y->size[3] / y->size[2] % y->size[1];
    int64_t n = flat / y->size[3] / y->size[2] / y->size[1];
    int64_t first = oc / (w->size[0] / c->groups) * w->size[1];
    for (int64_t p = 0; p < w->size[2] * w->size[3]; p++)
        for (int64_t ic = 0; ic < w->size[1]; ic++, k++) {
            int64_t kh = p / w->size[3], kw = p % w->size[3];
            int64_t ih = oh * c->stride.v[0] - c->padding.v[0] + kh * c->dilation.v[0];
            int64_t iw = ow * c->stride.v[1] - c->padding.v[1] + kw * c->dilation.v[1];
            bool inside = ih >= 0 && iw >= 0 && ih < x->size[2] && iw < x->size[3];
            int64_t at = ((n * x->size[1] + first + ic) * x->size[2] + ih) * x->size[3] + iw;
            a[k] = inside ? (float)get(x, at).d : 0;
            b[k] = (float)get(w, (oc * w->size[1] + ic) * w->size[2] * w->size[3] + p).d;
        }
    return k;
}

static void check_tiles(const conv_case *c, const etch_tensor *x, const etch_tensor *w,
                        const etch_tensor *y) {
    static float a[1 << 13], b[1 << 13];
    int64_t step = y->numel > 4096 ? 61 : 1;
    for (int64_t i = 0; i < y->numel; i += step) {
        float want = tile_chain(a, b, terms_of(c, x, w, y, i, a, b));
        if (!same_number(get(y, i), ref_convert(real_number((double)want), ETCH_BF16)))
            fail_msg("case %d, element %lld: want %.9g, have %.9g", (int)(c - tiled), (long long)i,
                     (double)want, get(y, i).d);
    }
}

/* Numbers of many sizes, of which the second half is the first one, or its opposite, along an axis:
 * sums of their products are what rounding leaves. */
static etch_tensor *halves_of(etch_shape s, int axis, double sign) {
    int64_t all = s.v[axis];
    s.v[axis] = all / 2;
    etch_tensor *a = etch_randn(ETCH_BF16, s);
    a = must(etch_mul(a, etch_mul(a, a)));
    s.v[axis] = all % 2;
    etch_tensor *rest = must(etch_mul_scalar(etch_randn(ETCH_BF16, s), 0x1p-20));
    etch_tensor *parts[3] = {a, etch_mul_scalar(a, sign), rest};
    return must(etch_cat(parts, all % 2 ? 3 : 2, axis));
}

TEST(sums_of_bf16_are_those_of_tiles) {
    for (int k = 0; k < COUNT_OF(tiled) && etch__cpu_amx(); k++)
        ETCH_SCOPE {
            const conv_case *c = &tiled[k];
            etch_shape by_group = S(c->x.v[0], c->groups, c->w.v[1], c->x.v[2], c->x.v[3]);
            etch_tensor *x = must(etch_view(halves_of(by_group, 2, -1), c->x));
            etch_tensor *w = halves_of(c->w, 1, 1);
            etch_tensor *last = etch_contiguous(etch_permute(x, ETCH_DIMS(0, 2, 3, 1)));
            etch_tensor *turned = etch_permute(last, ETCH_DIMS(0, 3, 1, 2));
            etch_tensor *y = convolve(c, turned, w, ETCH_NONE);
            check_tiles(c, x, w, y);
            for (int threads = 1; threads <= 3; threads += 2) {
                etch_set_num_threads(threads);
                assert_true(same_tensor(y, convolve(c, x, w, ETCH_NONE)));
                assert_true(same_tensor(y, convolve(c, turned, w, ETCH_NONE)));
            }
            etch_set_num_threads(2);
        }
}

/* ---- compiled ---- */

typedef struct chain {
    const conv_case *c;
    bool norm, residual, bias;
    int act; /* 0: none, 1: relu, 2: silu */
} chain;

static etch_tensor *for_channels(etch_tensor *t) { return etch_view(t, S(1, etch_numel(t), 1, 1)); }

static etch_tensor *activate(int act, etch_tensor *x) {
    return act == 1 ? etch_relu(x) : act == 2 ? etch_silu(x) : x;
}

static etch_tensor *one_layer(const chain *c, etch_tensor *x, etch_tensor *w, etch_tensor *v) {
    const conv_case *k = c->c;
    etch_tensor *y = etch_convolution(x, w, c->bias ? v : ETCH_NONE, k->stride, k->padding,
                                      k->dilation, k->groups);
    if (c->norm)
        y = etch_add(etch_mul(etch_sub(y, for_channels(v)), for_channels(v)), for_channels(v));
    return activate(c->act, y);
}

/* x, w, a vector of w's channels, a square weight of one place: a layer, then one of the same
 * channels whose result the first one's is added to. */
static ETCH_FN_N(layers, ctx, in, nin, out, nout) {
    const chain *c = ctx;
    etch_tensor *y = one_layer(c, in[0], in[1], in[2]);
    etch_tensor *z = etch_convolution(y, in[3], ETCH_NONE, S(1, 1), S(0, 0), S(1, 1), 1);
    if (c->residual) z = activate(c->act, etch_add(z, y));
    out[0] = z;
    return z ? ETCH_OK : etch_last_status();
}

static void check_chain(const chain *c, etch_dtype t, int threads) {
    etch_set_num_threads(threads);
    ETCH_SCOPE {
        int64_t channels = c->c->w.v[0];
        etch_tensor *in[4] = {make(t, c->c->x, LAYOUT_ROW, true),
                              make(t, c->c->w, LAYOUT_ROW, true),
                              make(t, S(channels), LAYOUT_ROW, true),
                              make(t, S(channels, channels, 1, 1), LAYOUT_ROW, true)};
        etch_tensor *want, *have;
        assert_int_equal(layers((void *)c, in, 4, &want, 1), ETCH_OK);
        etch_function *f = etch_compile(layers, .fullgraph = true, .ctx = (void *)c);
        for (int i = 0; i < 3; i++) {
            if (etch_call_n(f, in, 4, &have, 1) != ETCH_OK) fail_msg("%s", etch_last_error());
            if (!same_tensor(want, have))
                fail_msg("case %d of %s with norm %d, residual %d, bias %d, activation %d",
                         (int)(c->c - cases), etch_dtype_name(t), c->norm, c->residual, c->bias,
                         c->act);
        }
        etch_function_free(f);
    }
    etch_set_num_threads(2);
}

TEST(chains_compiled_equal_eager) {
    static const etch_dtype types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int way = 0; way < 6; way++) {
            chain c = {&cases[k], way & 1, way / 2 == 1, way == 0 || way == 5, way % 3};
            check_chain(&c, types[(k + way) % 4], 1 + way % 2);
            check_chain(&c, ETCH_F32, 2 - way % 2);
        }
}

/* The tiles of a product that a kernel follows are counted as a call of a library. */
TEST(a_layer_shares_the_tiles_of_its_convolution) {
    chain c = {&cases[0], true, true, false, 1};
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(1, 32, 9, 9), LAYOUT_ROW, true);
        etch_tensor *in[4] = {x, make(ETCH_F32, S(32, 32, 3, 3), LAYOUT_ROW, true),
                              make(ETCH_F32, S(32), LAYOUT_ROW, true),
                              make(ETCH_F32, S(32, 32, 1, 1), LAYOUT_ROW, true)};
        etch_tensor *out;
        etch_function *f = etch_compile(layers, .fullgraph = true, .ctx = &c);
        for (int i = 0; i < 3; i++) {
            etch_counters_t before = etch_counters();
            assert_int_equal(etch_call_n(f, in, 4, &out, 1), ETCH_OK);
            etch_counters_t after = etch_counters();
            if (i) assert_int_equal(after.library_calls - before.library_calls, 1);
            if (i) assert_int_equal(after.kernel_launches - before.kernel_launches, 2);
        }
        etch_function_free(f);
    }
}

/* A bias and what follows it, in planes as the caller gets them: one kernel, of any dtype. */
static ETCH_FN_N(biased, ctx, in, nin, out, nout) {
    etch_tensor *y =
        etch_convolution(in[0], in[1], in[2], S(1, 1), S(1, 1), S(1, 1), *(int64_t *)ctx);
    out[0] = etch_add(etch_relu(y), in[0]);
    return out[0] ? ETCH_OK : etch_last_status();
}

TEST(planes_share_the_tiles_as_well) {
    static const etch_dtype types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};
    static const etch_shape sizes[] = {S(1, 24, 13, 12), S(3, 8, 20, 9), S(2, 16, 1, 70),
                                       S(2, 16, 65, 1)};
    for (int k = 0; k < 4 * COUNT_OF(sizes); k++)
        for (int64_t groups = 1; groups <= 8; groups *= 8)
            ETCH_SCOPE {
                etch_dtype t = types[k % 4];
                etch_shape s = sizes[k / 4];
                etch_tensor *in[3] = {make(t, s, LAYOUT_ROW, true),
                                      make(t, S(s.v[1], s.v[1] / groups, 3, 3), LAYOUT_ROW, true),
                                      make(t, S(s.v[1]), LAYOUT_ROW, true)};
                etch_tensor *want, *have;
                assert_int_equal(biased(&groups, in, 3, &want, 1), ETCH_OK);
                etch_function *f = etch_compile(biased, .fullgraph = true, .ctx = &groups);
                for (int i = 0; i < 3; i++) {
                    etch_set_num_threads(1 + i % 2);
                    etch_counters_t before = etch_counters();
                    assert_int_equal(etch_call_n(f, in, 3, &have, 1), ETCH_OK);
                    etch_counters_t after = etch_counters();
                    if (i) assert_int_equal(after.library_calls - before.library_calls, 1);
                    if (i) assert_int_equal(after.kernel_launches - before.kernel_launches, 1);
                    assert_true(same_tensor(want, have));
                }
                etch_function_free(f);
            }
    etch_set_num_threads(2);
}

/* ---- odd values ---- */

TEST(nan_and_infinity_stay_where_they_are) {
    const conv_case *c = &cases[0];
    ETCH_SCOPE {
        etch_tensor *x = must(etch_ones(ETCH_F32, c->x)), *w = must(etch_ones(ETCH_F32, c->w));
        float *v = etch_data_mut(x);
        v[4 * 11 + 5] = NAN, v[99 + 8 * 11 + 10] = INFINITY; /* (4, 5); a corner of channel 1 */
        etch_tensor *y = convolve(c, x, w, ETCH_NONE);
        for (int64_t i = 0; i < y->numel; i++) {
            int64_t h = i / 11 % 9, k = i % 11;
            bool sick = h >= 3 && h <= 5 && k >= 4 && k <= 6, great = h >= 7 && k >= 9;
            double have = get(y, i).d;
            assert_true(sick ? isnan(have) : great ? have == INFINITY : isfinite(have));
        }
    }
}

/* ---- weights ---- */

static int64_t packed(void) { return etch_counters().weights_packed; }

TEST(a_weight_is_packed_once_for_each_version) {
    const conv_case *c = &cases[1];
    ETCH_SCOPE {
        etch_tensor *x = must(etch_randn(ETCH_F32, c->x)), *w = must(etch_randn(ETCH_F32, c->w));
        etch_tensor *none = ETCH_NONE;
        int64_t before = packed();
        for (int i = 0; i < 5; i++) convolve(c, x, w, none);
        assert_int_equal(packed() - before, 2); /* the first use keeps none */
        must(etch_mul_scalar_(w, 2.0));
        etch_tensor *fresh = must(etch_clone(w)), *y = convolve(c, x, w, none);
        assert_true(same_tensor(y, convolve(c, x, fresh, none)));
        before = packed();
        for (int i = 0; i < 3; i++) assert_true(same_tensor(y, convolve(c, x, w, none)));
        assert_int_equal(packed() - before, 1);
        /* whoever has a pointer may write at any time */
        float *p = etch_data_mut(w);
        before = packed();
        for (int i = 0; i < 3; i++) {
            p[0] = (float)i;
            assert_true(
                same_tensor(convolve(c, x, w, none), convolve(c, x, must(etch_clone(w)), none)));
        }
        assert_int_equal(packed() - before, 6);
    }
}

static etch_tensor *of_ones(etch_tensor *x, etch_tensor *w) {
    return etch_convolution(x, w, ETCH_NONE, S(1, 1), S(0, 0), S(1, 1), 1);
}

/* Two uses of the same contents, a write to a part of them, which is made in place, and a third. */
static ETCH_FN_N(use_write_use, ctx, in, nin, out, nout) {
    out[0] = of_ones(of_ones(in[0], in[1]), in[1]);
    etch_add_scalar_(etch_slice(in[1], 0, 0, 8, 1), 1.0);
    out[1] = of_ones(in[0], in[1]);
    return out[1] ? ETCH_OK : etch_last_status();
}

TEST(a_plan_that_writes_its_weight_packs_what_is_there) {
    ETCH_SCOPE {
        etch_tensor *x = must(etch_randn(ETCH_F32, S(1, 16, 5, 5)));
        etch_tensor *w = must(etch_randn(ETCH_F32, S(16, 16, 1, 1)));
        etch_tensor *mine[2] = {x, w}, *plain[2] = {x, must(etch_clone(w))}, *want[2], *have[2];
        etch_function *f = etch_compile(use_write_use, .fullgraph = true);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(use_write_use(NULL, plain, 2, want, 2), ETCH_OK);
            assert_int_equal(etch_call_n(f, mine, 2, have, 2), ETCH_OK);
            for (int k = 0; k < 2; k++) assert_true(same_tensor(want[k], have[k]));
            assert_true(same_tensor(mine[1], plain[1]));
        }
        etch_function_free(f);
    }
}

/* One that a plan computes lies in its arena, where every run puts another one. */
static etch_tensor *computed_weight(etch_tensor *x, etch_tensor *w) {
    return etch_convolution(x, etch_mul(w, w), ETCH_NONE, S(1, 1), S(1, 1), S(1, 1), 1);
}

TEST(a_computed_weight_is_packed_in_every_run) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(computed_weight, .fullgraph = true);
        etch_tensor *x = must(etch_randn(ETCH_F32, S(1, 16, 6, 6)));
        for (int i = 0; i < 6; i++) {
            etch_tensor *w = must(etch_randn(ETCH_F32, S(16, 16, 3, 3)));
            etch_tensor *want = must(computed_weight(x, w)), *have = must(etch_call(f, x, w));
            assert_true(same_tensor(want, have));
        }
        etch_function_free(f);
    }
}

TEST(what_was_packed_goes_with_its_weight) {
    int64_t before = etch_memory().bytes_live;
    ETCH_SCOPE {
        etch_tensor *x = must(etch_randn(ETCH_F32, S(1, 64, 4, 4)));
        etch_tensor *w = must(etch_randn(ETCH_F32, S(64, 64, 3, 3)));
        for (int i = 0; i < 3; i++)
            ETCH_SCOPE { must(etch_convolution(x, w, ETCH_NONE, S(1, 1), S(1, 1), S(1, 1), 1)); }
        int64_t weight = 64 * 64 * 9 * 4;
        assert_true(etch_memory().bytes_live - before >= 2 * weight);
    }
    assert_int_equal(etch_memory().bytes_live, before);
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
