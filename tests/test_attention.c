/* Attention: values against plain loops in f64, for every mask, layout, dtype and for heads that
 * share keys; rows that see no key, infinities and scores of 1e4; gradients, dropout and mapped
 * calls against the written-out form; what is refused; memory; and compiled against eager.
 * Labels: device fake long optimised. */
#include <etch/etch.h>
#include <sys/resource.h>

#include "cpu_support.h"
#include "device_support.h"

#define S ETCH_SHAPE

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

typedef struct attention_case {
    etch_shape q, k, v;
    char kind; /* of the mask: n(one), b(ools), f(loats) */
    etch_shape mask;
    bool causal;
    double scale; /* 0: the default */
} attention_case;

static const attention_case cases[] = {
    {S(3, 5), S(4, 5), S(4, 6), 'n', S(), false, 0},
    {S(1, 1), S(1, 1), S(1, 1), 'n', S(), true, 0},
    {S(2, 7, 3), S(2, 1, 3), S(2, 1, 4), 'n', S(), false, 1.5}, /* one key */
    {S(2, 7, 3), S(2, 9, 3), S(2, 9, 1), 'n', S(), true, 0},    /* later keys than queries */
    {S(2, 9, 3), S(2, 4, 3), S(2, 4, 2), 'n', S(), true, -0.3}, /* and earlier ones */
    {S(2, 4, 9, 3), S(2, 2, 4, 3), S(2, 2, 4, 2), 'n', S(), true, 0},
    {S(2, 6, 5, 8), S(2, 2, 7, 8), S(2, 2, 7, 4), 'b', S(5, 7), false, 0},
    {S(2, 6, 5, 8), S(2, 2, 7, 8), S(2, 2, 7, 4), 'f', S(7), false, 0},
    {S(2, 6, 5, 8), S(2, 3, 7, 8), S(2, 3, 7, 4), 'f', S(2, 6, 5, 7), true, 0},
    {S(2, 6, 5, 8), S(2, 3, 7, 8), S(2, 3, 7, 4), 'b', S(2, 1, 1, 7), true, 0},
    {S(2, 6, 5, 8), S(2, 6, 7, 8), S(2, 6, 7, 4), 'b', S(6, 5, 1), false, 0},
    {S(2, 6, 5, 8), S(2, 1, 7, 8), S(2, 1, 7, 4), 'f', S(6, 1, 7), false, 0},
    {S(2, 1, 3, 2, 4, 5), S(2, 1, 3, 2, 6, 5), S(2, 1, 3, 2, 6, 3), 'f', S(3, 1, 4, 6), false, 0},
    {S(3, 0), S(4, 0), S(4, 2), 'n', S(), false, 1},          /* no width: plain means */
    {S(2, 3, 4), S(2, 0, 4), S(2, 0, 5), 'n', S(), false, 0}, /* no keys */
    {S(2, 3, 4), S(2, 0, 4), S(2, 0, 5), 'b', S(3, 0), true, 0},
    {S(2, 0, 4), S(2, 3, 4), S(2, 3, 5), 'n', S(), false, 0}, /* no queries */
    {S(0, 2, 3, 4), S(0, 2, 3, 4), S(0, 2, 3, 5), 'n', S(), false, 0},
    {S(2, 0, 3, 4), S(2, 0, 3, 4), S(2, 0, 3, 5), 'n', S(), false, 0},
    {S(2, 0, 3, 4), S(2, 2, 3, 4), S(2, 2, 3, 5), 'n', S(), false, 0}, /* heads of keys alone */
    {S(2, 3, 4), S(2, 3, 4), S(2, 3, 0), 'n', S(), false, 0},
    /* several blocks, and parts of them */
    {S(1, 2, 131, 16), S(1, 1, 530, 16), S(1, 1, 530, 24), 'b', S(131, 530), false, 0},
    {S(1, 2, 131, 16), S(1, 1, 530, 16), S(1, 1, 530, 24), 'f', S(1, 530), false, 0},
    {S(2, 600, 8), S(2, 600, 8), S(2, 600, 8), 'n', S(), true, 0},
    {S(2, 300, 8), S(2, 1100, 8), S(2, 1100, 8), 'b', S(300, 1), true, 0},
    {S(1, 260, 40), S(1, 1030, 40), S(1, 1030, 72), 'n', S(), false, 0},
    {S(1, 2, 140, 128), S(1, 1, 270, 128), S(1, 1, 270, 128), 'f', S(140, 270), true, 0},
    {S(1, 2, 140, 64), S(1, 2, 270, 64), S(1, 2, 270, 33), 'b', S(2, 1, 270), false, -0.3},
    {S(2, 200, 128), S(2, 200, 128), S(2, 200, 100), 'n', S(), true, 0},
    {S(1, 2, 390, 64), S(1, 1, 300, 64), S(1, 1, 300, 64), 'n', S(), true, 0},
    {S(1, 2, 390, 64), S(1, 1, 300, 64), S(1, 1, 300, 64), 'n', S(), false, 0},
    /* few keys */
    {S(1, 4, 140, 64), S(1, 2, 100, 64), S(1, 2, 100, 40), 'b', S(4, 1, 100), false, -0.3},
    {S(3, 130, 64), S(3, 50, 64), S(3, 50, 64), 'n', S(), true, 0},
    {S(2, 101, 128), S(2, 128, 128), S(2, 128, 128), 'f', S(101, 128), false, 0},
    /* wide: devices have other kernels for these, or none */
    {S(1, 101, 200), S(1, 90, 200), S(1, 90, 130), 'b', S(101, 90), false, 0},
    {S(1, 101, 300), S(1, 60, 300), S(1, 60, 8), 'f', S(101, 60), true, 0},
};

/* ---- by plain loops ---- */

/* A row of the last two dimensions of row-major doubles, in matrix h of all in front of them. */
static const double *row_of(const etch_tensor *t, int64_t h, int64_t row) {
    const double *first = etch__ptr(t);
    return first + (h * t->size[t->ndim - 2] + row) * t->size[t->ndim - 1];
}

/* The matrix of keys that is query head h's. */
static int64_t shared_head(const etch_tensor *q, const etch_tensor *k, int64_t h) {
    if (q->ndim < 3) return 0;
    int64_t heads = q->size[q->ndim - 3], shared = k->size[q->ndim - 3];
    return h / heads * shared + h % heads / (heads / shared);
}

/* What the mask adds to a score. */
static double mask_at(const etch_tensor *mask, const etch_tensor *q, int64_t h, int64_t row,
                      int64_t col) {
    int64_t at[ETCH_MAX_DIMS], offset = 0;
    int d = q->ndim;
    at[d - 1] = col, at[d - 2] = row;
    for (int i = d - 3; i >= 0; i--) at[i] = h % q->size[i], h /= q->size[i];
    for (int i = 0; i < mask->ndim; i++)
        offset = offset * mask->size[i] + (mask->size[i] == 1 ? 0 : at[d - mask->ndim + i]);
    number n = get(mask, offset);
    return n.real ? n.d : n.i ? 0 : -INFINITY;
}

typedef struct reference {
    const etch_tensor *q, *k, *v, *mask;
    bool causal;
    double scale;
    double *w;    /* weights of one row */
    double terms; /* the largest sum of |q k scale| of a row */
} reference;

/* The weights of a row. */
static void weigh(reference *r, int64_t h, int64_t row) {
    int64_t keys = r->k->size[r->k->ndim - 2], width = r->q->size[r->q->ndim - 1];
    int64_t shared = shared_head(r->q, r->k, h);
    double top = -INFINITY, sum = 0;
    const double *query = row_of(r->q, h, row);
    for (int64_t j = 0; j < keys; j++) {
        const double *key = row_of(r->k, shared, j);
        double s = 0, size = 0;
        for (int64_t c = 0; c < width; c++) {
            double t = query[c] * key[c] * r->scale;
            s += t, size += fabs(t);
        }
        double m = r->mask ? mask_at(r->mask, r->q, h, row, j) : 0;
        bool out = r->causal && j > row;
        out |= r->mask && r->mask->dtype == ETCH_BOOL && m < 0;
        r->w[j] = out ? -INFINITY : s + m;
        if (r->w[j] > top) top = r->w[j];
        if (!out && isfinite(size + m) && size + fabs(m) > r->terms) r->terms = size + fabs(m);
    }
    for (int64_t j = 0; j < keys; j++)
        sum += r->w[j] = r->w[j] == -INFINITY ? 0 : exp(r->w[j] - top);
    for (int64_t j = 0; j < keys && sum != 0; j++) r->w[j] /= sum;
}

/* The largest difference that a correct result may have: the scores' rounding moves a weight by
 * that much of itself, the sums add theirs; a half result is rounded once. */
static double allowed(const reference *r, etch_dtype t, double largest) {
    double unit = t == ETCH_F64 ? 0x1p-53 : 0x1p-24;
    double half = t == ETCH_BF16 ? 0x1p-8 : t == ETCH_F16 ? 0x1p-11 : 0;
    int64_t width = r->q->size[r->q->ndim - 1];
    double each = width > 40 ? (double)width / 4 : 4; /* roundings of a score, of its terms */
    return largest * ((8 + each * r->terms) * unit + half) + (t == ETCH_F16 ? 0x1p-25 : 0);
}

static bool near(double got, double want, double bound) {
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) != 0 : got == want;
    return fabs(got - want) <= bound;
}

static void check_values(reference *r, const etch_tensor *y) {
    int d = y->ndim;
    int64_t keys = r->k->size[d - 2], cols = y->size[d - 1], rows = y->size[d - 2];
    double largest = 0;
    r->q = plain_numbers(r->q), r->k = plain_numbers(r->k), r->v = plain_numbers(r->v);
    r->w = calloc((size_t)keys + 1, sizeof *r->w);
    for (int64_t i = 0; i < r->v->numel; i++) {
        double x = fabs(get(r->v, i).d);
        if (isfinite(x) && x > largest) largest = x;
    }
    for (int64_t i = 0; i < y->numel; i += cols) {
        int64_t h = i / cols / rows, shared = shared_head(r->q, r->k, h);
        weigh(r, h, i / cols % rows);
        const double *values = keys ? row_of(r->v, shared, 0) : NULL;
        for (int64_t c = 0; c < cols; c++) {
            double want = 0, got = get(y, i + c).d;
            for (int64_t j = 0; j < keys; j++) want += r->w[j] * values[j * cols + c];
            double bound = allowed(r, (etch_dtype)y->dtype, largest);
            if (!near(got, want, bound))
                fail_msg("head %lld, query %lld, %lld: %.9g instead of %.9g, bound %g",
                         (long long)h, (long long)(i / cols % rows), (long long)c, got, want,
                         bound);
        }
    }
    free(r->w);
}

/* ---- operands ---- */

/* Heads as they come out of a projection: [..., length, heads, width] in memory. */
enum { LAYOUT_HEADS = LAYOUT_COUNT, LAYOUTS };

static etch_tensor *laid(etch_dtype t, etch_shape s, int how) {
    if (how != LAYOUT_HEADS || s.n < 3) return make(t, s, how == LAYOUT_HEADS ? 0 : how, true);
    int64_t heads = s.v[s.n - 3];
    s.v[s.n - 3] = s.v[s.n - 2], s.v[s.n - 2] = heads;
    return must(etch_transpose(make(t, s, LAYOUT_ROW, true), -3, -2));
}

/* Bools of which a third are false, and row 0 of each matrix as a whole. */
static etch_tensor *mask_of(const attention_case *c, etch_dtype t, int how) {
    if (c->kind == 'n') return ETCH_NONE;
    if (c->kind == 'f') return laid(t, c->mask, how);
    etch_tensor *m = make(ETCH_BOOL, c->mask, how == LAYOUT_HEADS ? 0 : how, true);
    int d = m->ndim;
    for (int64_t i = 0; i < m->numel; i++) {
        bool first = d > 1 && m->size[d - 2] > 1 && i / m->size[d - 1] % m->size[d - 2] == 0;
        put(m, i, whole_number(!first && test_random() % 3 != 0));
    }
    return m;
}

typedef struct operands {
    etch_tensor *q, *k, *v, *mask;
} operands;

static operands operands_of(const attention_case *c, etch_dtype t, etch_dtype mask, int how) {
    operands o = {laid(t, c->q, how), laid(t, c->k, how), laid(t, c->v, how), NULL};
    o.mask = mask_of(c, mask, how);
    return o;
}

static etch_tensor *attend(const attention_case *c, const operands *o) {
    return etch_scaled_dot_product_attention(o->q, o->k, o->v, o->mask, 0, c->causal, c->scale);
}

/* Whether the result of a query that was laid out so is not row-major: test_attention_layout.c has
 * the rule. */
static bool heads_inside(const etch_tensor *y, int how) {
    int d = y->ndim;
    return how == LAYOUT_HEADS && d > 2 && y->size[d - 3] > 1 && y->size[d - 2] > 1 && y->numel;
}

static void check_case(const attention_case *c, etch_dtype t, etch_dtype mask, int how) {
    operands o = operands_of(c, t, mask, how);
    etch_tensor *y = must(attend(c, &o));
    double scale = c->scale ? c->scale : 1 / sqrt((double)c->q.v[c->q.n - 1]);
    reference r = {o.q, o.k, o.v, o.mask == ETCH_NONE ? NULL : o.mask, c->causal, scale, NULL, 0};
    assert_true(y->dtype == t && y->ndim == c->q.n);
    assert_true(y->contiguous == !heads_inside(y, how));
    for (int d = 0; d < y->ndim; d++)
        assert_int_equal(y->size[d], d == y->ndim - 1 ? c->v.v[d] : c->q.v[d]);
    check_values(&r, y);
}

static bool is_long(const attention_case *c) { return c->q.v[c->q.n - 2] > 100; }

/* A long case in one layout only. */
static void check_layouts(const attention_case *c, etch_dtype t) {
    const int one = (int)(test_random() % LAYOUTS);
    for (int how = 0; how < LAYOUTS; how++)
        if (!is_long(c) || how == one)
            ETCH_SCOPE { check_case(c, t, t, how); }
}

TEST(every_mask_layout_and_dtype, .deals = true) {
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int t = ETCH_F32; t <= ETCH_F16; t++)
            if (test_share((long)k * ETCH_DTYPE_COUNT + t)) check_layouts(&cases[k], (etch_dtype)t);
}

TEST(masks_of_f32_beside_halves) {
    for (int t = ETCH_BF16; t <= ETCH_F16; t++)
        ETCH_SCOPE { check_case(&cases[8], (etch_dtype)t, ETCH_F32, LAYOUT_ROW); }
}

/* ---- odd numbers ---- */

static void check_special(const attention_case *c, operands *o) {
    etch_tensor *y = must(attend(c, o));
    reference r = {o->q,      o->k,
                   o->v,      o->mask == ETCH_NONE ? NULL : o->mask,
                   c->causal, c->scale ? c->scale : 1 / sqrt((double)c->q.v[c->q.n - 1]),
                   NULL,      0};
    check_values(&r, y);
}

TEST(scores_of_ten_thousand) {
    const attention_case c = {S(2, 150, 8), S(2, 700, 8), S(2, 700, 8), 'n', S(), false, 1};
    for (int t = ETCH_F32; t <= ETCH_F16; t++)
        ETCH_SCOPE {
            operands o = operands_of(&c, (etch_dtype)t, (etch_dtype)t, LAYOUT_ROW);
            for (int64_t i = 0; i < o.q->numel; i++)
                put(o.q, i, ref_convert(real_number(get(o.q, i).d * 600), (etch_dtype)t));
            check_special(&c, &o);
        }
}

/* Weights of a row with an infinite score, or a NaN, are NaN, as in softmax. */
TEST(infinities_and_nans_stay_in_their_rows) {
    const attention_case c = {S(1, 5, 2), S(1, 600, 2), S(1, 600, 3), 'n', S(), false, 1};
    ETCH_SCOPE {
        operands o = operands_of(&c, ETCH_F32, ETCH_F32, LAYOUT_ROW);
        for (int64_t i = 0; i < 5; i++) put(o.q, 2 * i + 1, real_number(0));
        for (int64_t j = 0; j < 600; j++) put(o.k, 2 * j, real_number(1 + (double)j / 600));
        put(o.q, 2, real_number(INFINITY)), put(o.q, 4, real_number(NAN));
        put(o.q, 6, real_number(-INFINITY));
        etch_tensor *y = must(attend(&c, &o));
        for (int64_t k = 0; k < 3; k++) {
            assert_true(isfinite(get(y, k).d) && isfinite(get(y, 12 + k).d));
            assert_true(isnan(get(y, 3 + k).d) && isnan(get(y, 6 + k).d));
            assert_true(get(y, 9 + k).d == 0); /* all scores are -inf: no key is attended to */
        }
        put(o.v, 4, real_number(INFINITY)); /* key 1, column 1 */
        y = must(attend(&c, &o));
        assert_true(get(y, 1).d == INFINITY && isfinite(get(y, 0).d));
    }
}

TEST(minus_infinity_in_a_mask_hides_a_key) {
    const attention_case c = {S(2, 4, 3), S(2, 530, 3), S(2, 530, 3), 'f', S(4, 530), false, 0};
    for (int t = ETCH_F32; t <= ETCH_F16; t++)
        ETCH_SCOPE {
            operands o = operands_of(&c, (etch_dtype)t, (etch_dtype)t, LAYOUT_ROW);
            for (int64_t i = 0; i < o.mask->numel; i++)
                if (i < 530 || i % 3 == 0 || (i > 1060 && i < 1580))
                    put(o.mask, i, real_number(-INFINITY));
            check_special(&c, &o);
        }
}

/* ---- strides, threads, neighbours ---- */

TEST(bits_depend_on_values_alone) {
    const bool cpu = test_device() == ETCH_CPU;
    const int64_t n = cpu ? 600 : 150; /* a device may be a fake */
    const attention_case c = {
        S(2, 4, 140, 24), S(2, 2, n, 24), S(2, 2, n, 40), 'f', S(4, 1, n), true, 0};
    for (int t = ETCH_F32; t <= ETCH_F16; t++)
        ETCH_SCOPE {
            operands o = operands_of(&c, (etch_dtype)t, (etch_dtype)t, LAYOUT_ROW);
            etch_tensor *first = must(attend(&c, &o));
            for (int how = 0; how < LAYOUTS; how++)
                for (int threads = 1; threads <= (cpu ? 3 : 1); threads++) {
                    operands p = operands_of(&c, (etch_dtype)t, (etch_dtype)t, how);
                    if (how == LAYOUT_EXPANDED) continue; /* other values */
                    etch_set_num_threads(threads);
                    must(etch_copy_(p.q, o.q)), must(etch_copy_(p.k, o.k));
                    must(etch_copy_(p.v, o.v)), must(etch_copy_(p.mask, o.mask));
                    assert_true(etch_bitwise_equal(first, must(attend(&c, &p))));
                }
            etch_set_num_threads(2);
            /* of each head alone */
            for (int64_t h = 0; h < 4; h++) {
                etch_tensor *q = must(etch_narrow(o.q, 1, h, 1));
                etch_tensor *k = must(etch_narrow(o.k, 1, h / 2, 1));
                etch_tensor *v = must(etch_narrow(o.v, 1, h / 2, 1));
                operands p = {q, k, v, must(etch_narrow(o.mask, 0, h, 1))};
                assert_true(
                    etch_bitwise_equal(must(attend(&c, &p)), must(etch_narrow(first, 1, h, 1))));
            }
        }
}

/* ---- gradients, by the written-out form in f64 ---- */

/* softmax(q k' scale + mask) v with shared heads repeated, rows of no keys 0. */
static etch_tensor *written_out(const attention_case *c, const operands *o) {
    int d = o->q->ndim;
    etch_tensor *k = o->k, *v = o->v;
    int64_t shared = d > 2 && k->ndim > 2 ? k->size[k->ndim - 3] : 0, group = 1;
    if (shared) group = o->q->size[d - 3] / shared;
    if (group != 1) {
        etch_tensor *i = etch_floor_divide(etch_arange(ETCH_I64, 0, o->q->size[d - 3], 1),
                                           etch_full(ETCH_I64, S(), group));
        k = must(etch_index_select(k, d - 3, i)), v = must(etch_index_select(v, d - 3, i));
    }
    double scale = c->scale ? c->scale : 1 / sqrt((double)o->q->size[d - 1]);
    etch_tensor *s = etch_mul_scalar(must(etch_matmul(o->q, etch_transpose(k, -2, -1))), scale);
    d = must(s)->ndim;
    etch_tensor *out = etch_zeros(ETCH_BOOL, S(s->size[d - 2], s->size[d - 1]));
    if (c->causal) out = etch_triu(etch_logical_not(out), 1);
    if (o->mask != ETCH_NONE && o->mask->dtype == ETCH_BOOL)
        out = etch_logical_or(out, etch_logical_not(o->mask));
    else if (o->mask != ETCH_NONE) s = etch_add(s, o->mask);
    etch_tensor *e = etch_masked_fill(etch_exp(must(s)), must(out), 0);
    etch_tensor *sum = etch_sum_dim(e, S(-1), true);
    sum = etch_masked_fill(sum, etch_eq_scalar(sum, 0), 1);
    return must(etch_matmul(etch_div(e, sum), v));
}

/* The gradients of sum of y g to q, k, v and a mask of floats. */
static void gradients(etch_tensor *y, etch_tensor *g, const operands *o, etch_tensor **grad) {
    etch_tensor *in[] = {o->q, o->k, o->v, o->mask};
    assert_int_equal(etch_backward(must(etch_sum(must(etch_mul(y, g))))), ETCH_OK);
    for (int i = 0; i < 4; i++) {
        bool some = in[i] != ETCH_NONE && in[i]->dtype != ETCH_BOOL;
        grad[i] = some ? must(etch_clone(must(etch_grad_of(in[i])))) : NULL;
        if (some) assert_int_equal(etch_zero_grad(in[i]), ETCH_OK);
    }
}

static etch_tensor *leaf(etch_tensor *t, etch_dtype dtype) {
    if (t == ETCH_NONE || t->dtype == ETCH_BOOL) return t;
    t = must(etch_clone(must(etch_to(must(etch_detach(t)), dtype))));
    return etch_requires_grad_(t, true), t;
}

/* Those of the kernel, and of the written-out form in f64. */
static void both_gradients(const attention_case *c, etch_dtype t, etch_tensor **grad,
                           etch_tensor **want) {
    operands o = operands_of(c, t, t, LAYOUT_HEADS), wide;
    etch_tensor *y;
    o = (operands){leaf(o.q, t), leaf(o.k, t), leaf(o.v, t), leaf(o.mask, t)};
    wide = (operands){leaf(o.q, ETCH_F64), leaf(o.k, ETCH_F64), leaf(o.v, ETCH_F64),
                      leaf(o.mask, ETCH_F64)};
    y = must(attend(c, &o));
    etch_tensor *g = make(t, etch_sizes(y), LAYOUT_COLUMN, true);
    gradients(y, g, &o, grad);
    gradients(written_out(c, &wide), etch_to(g, ETCH_F64), &wide, want);
}

static void check_gradients(const attention_case *c, etch_dtype t, double bound) {
    etch_tensor *grad[4], *want[4];
    both_gradients(c, t, grad, want);
    for (int i = 0; i < 4; i++)
        for (int64_t k = 0; grad[i] && k < grad[i]->numel; k++) {
            double a = get(grad[i], k).d, b = get(want[i], k).d;
            if (!(fabs(a - b) <= bound * (1 + fabs(b))))
                fail_msg("operand %d, element %lld: %.9g instead of %.9g", i, (long long)k, a, b);
        }
}

/* Sums of hundreds of roundings: the error of all elements together. */
TEST(gradients_of_many_keys_in_halves) {
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int t = ETCH_BF16; is_long(&cases[k]) && t <= ETCH_F16; t++)
            ETCH_SCOPE {
                etch_tensor *grad[4], *want[4];
                both_gradients(&cases[k], (etch_dtype)t, grad, want);
                for (int i = 0; i < 4; i++) {
                    double error = 0, all = 0;
                    for (int64_t e = 0; grad[i] && e < grad[i]->numel; e++) {
                        double a = get(grad[i], e).d, b = get(want[i], e).d;
                        error += (a - b) * (a - b), all += b * b;
                    }
                    if (!(sqrt(error) <= (t == ETCH_BF16 ? 0.02 : 0.003) * sqrt(all)))
                        fail_msg("case %d, operand %d, %s: error %.3g of %.3g", k, i,
                                 etch_dtype_name((etch_dtype)t), sqrt(error), sqrt(all));
                }
            }
}

TEST(gradients_are_those_of_the_written_out_form) {
    static const double bounds[] = {
        [ETCH_F32] = 2e-4, [ETCH_F64] = 1e-12, [ETCH_BF16] = 0.5, [ETCH_F16] = 0.06};
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int t = ETCH_F32; t <= ETCH_F16; t++) {
            if (is_long(&cases[k]) && t > ETCH_F64) continue; /* sums of hundreds of roundings */
            ETCH_SCOPE { check_gradients(&cases[k], (etch_dtype)t, bounds[t]); }
        }
}

/* ---- dimensions in front of heads ---- */

static const attention_case uneven[] = {
    {S(4, 3, 8), S(2, 4, 6, 8), S(2, 4, 6, 5), 'n', S(), false, 0},
    {S(2, 4, 3, 8), S(4, 6, 8), S(4, 6, 5), 'n', S(), true, 0},
    {S(2, 4, 3, 8), S(6, 8), S(6, 5), 'f', S(2, 1, 3, 6), false, 0},
    {S(1, 4, 3, 8), S(3, 4, 6, 8), S(1, 4, 6, 5), 'b', S(3, 6), false, 0},
    {S(3, 1, 4, 3, 8), S(2, 4, 6, 8), S(1, 2, 4, 6, 5), 'n', S(), false, 0},
    {S(1, 4, 3, 8), S(0, 4, 6, 8), S(4, 6, 5), 'n', S(), false, 0},
};
static const etch_shape even[] = {S(2), S(2), S(2), S(3), S(3, 2), S(0)};

static etch_tensor *spread(etch_tensor *t, etch_shape front, int64_t heads) {
    int d = t->ndim, n = front.n;
    front.n += 3;
    front.v[n] = heads, front.v[n + 1] = t->size[d - 2], front.v[n + 2] = t->size[d - 1];
    return must(etch_clone(must(etch_expand(t, front))));
}

/* Of size 1 or missing they are those of the other operands, and gradients are sums over them. */
TEST(dimensions_in_front_are_repeated) {
    for (int i = 0; i < COUNT_OF(uneven); i++)
        ETCH_SCOPE {
            operands o = operands_of(&uneven[i], ETCH_F32, ETCH_F32, LAYOUT_HEADS), all = o;
            all.q = spread(o.q, even[i], 4), all.k = spread(o.k, even[i], 4);
            all.v = spread(o.v, even[i], 4);
            etch_tensor *want = must(attend(&uneven[i], &all));
            assert_int_equal(want->ndim, even[i].n + 3);
            assert_true(etch_bitwise_equal(must(attend(&uneven[i], &o)), want));
            check_gradients(&uneven[i], ETCH_F64, 1e-12);
        }
}

/* ---- dropout ---- */

static etch_tensor *drop(etch_tensor *q, etch_tensor *k, etch_tensor *v, double rate) {
    return etch_scaled_dot_product_attention(q, k, v, ETCH_NONE, rate, false, 0);
}

/* With values that are a unit matrix the results are the weights. */
TEST(dropout_keeps_its_share_of_weights) {
    ETCH_SCOPE {
        etch_tensor *q = etch_zeros(ETCH_F32, S(3, 150, 4));
        etch_tensor *k = etch_zeros(ETCH_F32, S(3, 600, 4));
        etch_tensor *one = etch_triu(etch_tril(etch_ones(ETCH_F32, S(600, 600)), 0), 0);
        etch_tensor *v = must(etch_expand(must(one), S(3, 600, 600)));
        etch_manual_seed(7);
        etch_tensor *y = must(drop(q, k, v, 0.25)), *next = must(drop(q, k, v, 0.25));
        int64_t kept = 0;
        for (int64_t i = 0; i < y->numel; i++) {
            double w = get(y, i).d;
            assert_true(w == 0 || fabs(w * 600 * 0.75 - 1) < 1e-5);
            kept += w != 0;
        }
        assert_true(fabs((double)kept / (double)y->numel - 0.75) < 0.005);
        assert_false(etch_bitwise_equal(y, next));
        etch_manual_seed(7);
        etch_set_num_threads(1);
        assert_true(etch_bitwise_equal(y, must(drop(q, k, v, 0.25))));
        etch_set_num_threads(2);
        assert_true(etch_bitwise_equal(next, must(drop(q, k, v, 0.25))));
        y = must(drop(q, k, v, 1));
        assert_true(etch_bitwise_equal(y, etch_zeros_like(y)));
        assert_true(get(must(drop(q, k, v, 0)), 0).d != 0);
    }
}

/* What dropout multiplies by is known: the gradients with it are those of the written-out form. */
TEST(gradients_with_dropout) {
    ONLY_ON_CPU();
    const attention_case c = {S(4, 140, 6), S(2, 530, 6), S(2, 530, 5), 'n', S(), true, 0};
    for (int t = ETCH_F32; t <= ETCH_F64; t++)
        ETCH_SCOPE {
            operands o = operands_of(&c, (etch_dtype)t, ETCH_F32, LAYOUT_HEADS), p;
            etch_tensor *seed = etch_rand(ETCH_F64, S(1)), *grad[4], *want[4];
            o = (operands){leaf(o.q, t), leaf(o.k, t), leaf(o.v, t), ETCH_NONE};
            p = (operands){leaf(o.q, ETCH_F64), leaf(o.k, ETCH_F64), leaf(o.v, ETCH_F64),
                           ETCH_NONE};
            etch_tensor *y =
                etch_attention_dropout_raw(o.q, o.k, o.v, ETCH_NONE, seed, true, 0.4, 0.3);
            etch_tensor *g = make((etch_dtype)t, etch_sizes(must(y)), LAYOUT_ROW, true);
            gradients(y, g, &o, grad);
            etch_tensor *i =
                etch_floor_divide(etch_arange(ETCH_I64, 0, 4, 1), etch_full(ETCH_I64, S(), 2));
            etch_tensor *k = etch_index_select(p.k, 0, i), *v = etch_index_select(p.v, 0, i);
            etch_tensor *s = etch_mul_scalar(etch_matmul(p.q, etch_transpose(k, 1, 2)), 0.4);
            etch_tensor *later = etch_triu(etch_ones(ETCH_BOOL, S(140, 530)), 1);
            etch_tensor *w = etch_softmax(etch_masked_fill(must(s), later, -INFINITY), -1);
            w = etch_mul(w, etch_attention_kept_raw(seed, S(4, 140, 530), 0.3));
            gradients(must(etch_matmul(w, v)), etch_to(g, ETCH_F64), &p, want);
            for (int n = 0; n < 3; n++)
                for (int64_t e = 0; e < grad[n]->numel; e++)
                    assert_true(fabs(get(grad[n], e).d - get(want[n], e).d) <
                                (t == ETCH_F32 ? 1e-4 : 1e-12));
        }
}

/* ---- what is refused ---- */

#define REFUSED(code, word, call)                                                                  \
    do {                                                                                           \
        assert_null(call);                                                                         \
        ASSERT_REFUSED(ETCH_ERR_##code, word);                                                     \
    } while (0)
#define ATTEND(q, k, v, mask) etch_scaled_dot_product_attention(q, k, v, mask, 0, false, 0)

TEST(wrong_operands_are_refused) {
    ETCH_SCOPE {
        etch_tensor *q = make(ETCH_F32, S(2, 6, 5, 8), LAYOUT_ROW, true);
        etch_tensor *k = make(ETCH_F32, S(2, 3, 7, 8), LAYOUT_ROW, true);
        etch_tensor *v = make(ETCH_F32, S(2, 3, 7, 4), LAYOUT_ROW, true);
        etch_tensor *none = ETCH_NONE, *half = etch_to(q, ETCH_BF16);
        REFUSED(SHAPE, "at least 2 dimensions, got [8]",
                ATTEND(make(ETCH_F32, S(8), LAYOUT_ROW, true), k, v, none));
        REFUSED(SHAPE, "key with 4 dimensions as query [2, 6, 5, 8], got [3, 7, 8]",
                etch_attention_raw(q, etch_select(k, 0, 0), v, none, false, 1));
        REFUSED(SHAPE, "equal sizes in front of heads",
                ATTEND(q, make(ETCH_F32, S(4, 3, 7, 8), LAYOUT_ROW, true), v, none));
        REFUSED(SHAPE, "value with 3 heads", ATTEND(q, k, etch_narrow(v, 1, 0, 2), none));
        REFUSED(SHAPE, "multiple of the 3 heads of key and value, got 5",
                ATTEND(etch_narrow(q, 1, 0, 5), k, v, none));
        REFUSED(SHAPE, "multiple of the 0 heads",
                ATTEND(q, etch_narrow(k, 1, 0, 0), etch_narrow(v, 1, 0, 0), none));
        REFUSED(SHAPE, "key of width 8", ATTEND(q, v, v, none));
        REFUSED(SHAPE, "value of length 7", ATTEND(q, k, etch_narrow(v, 2, 0, 6), none));
        REFUSED(SHAPE, "broadcasts to the scores [2, 6, 5, 7], got [5, 6]",
                ATTEND(q, k, v, make(ETCH_F32, S(5, 6), LAYOUT_ROW, true)));
        REFUSED(SHAPE, "got [2, 3, 5, 7]",
                ATTEND(q, k, v, make(ETCH_BOOL, S(2, 3, 5, 7), LAYOUT_ROW, true)));
        REFUSED(SHAPE, "got [1, 1, 1, 1, 1]",
                ATTEND(q, k, v, make(ETCH_F32, S(1, 1, 1, 1, 1), LAYOUT_ROW, true)));
        REFUSED(DTYPE, "expected key of bf16 as query, got f32", ATTEND(half, k, v, none));
        REFUSED(DTYPE, "attn_mask of bool or f32, got i64",
                ATTEND(q, k, v, make(ETCH_I64, S(7), LAYOUT_ROW, true)));
        REFUSED(DTYPE, "attn_mask of bool or f32, got f64",
                ATTEND(q, k, v, make(ETCH_F64, S(7), LAYOUT_ROW, true)));
        REFUSED(DTYPE, "floating",
                ATTEND(etch_to(q, ETCH_I32), etch_to(k, ETCH_I32), etch_to(v, ETCH_I32), none));
        REFUSED(INVALID_ARGUMENT, "dropout_p of 0 to 1, got 1.5",
                etch_scaled_dot_product_attention(q, k, v, none, 1.5, false, 0));
        REFUSED(INVALID_ARGUMENT, "dropout_p of 0 to 1, got nan",
                etch_scaled_dot_product_attention(q, k, v, none, NAN, false, 0));
    }
}

TEST(wrong_seeds_and_gradients_are_refused) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_tensor *q = make(ETCH_F32, S(2, 6, 5, 8), LAYOUT_ROW, true), *none = ETCH_NONE;
        etch_tensor *k = make(ETCH_F32, S(2, 3, 7, 8), LAYOUT_ROW, true);
        etch_tensor *v = make(ETCH_F32, S(2, 3, 7, 4), LAYOUT_ROW, true);
        etch_tensor *seeds = etch_rand(ETCH_F64, S(5));
        REFUSED(SHAPE, "equally many heads, got [5]",
                etch_attention_dropout_raw(q, k, v, none, seeds, false, 1, 0.5));
        REFUSED(
            DTYPE, "seed of f64",
            etch_attention_dropout_raw(q, k, v, none, etch_rand(ETCH_F32, S(1)), false, 1, 0.5));
        REFUSED(SHAPE, "grad_output of sizes [2, 6, 5, 4], got [2, 6, 5, 8]",
                etch_attention_backward_raw(q, q, q, k, v, none, none, false, 1, 0));
    }
}

/* ---- compiled ---- */

static const attention_case compiled_cases[] = {
    {S(2, 4, 9, 8), S(2, 2, 9, 8), S(2, 2, 9, 8), 'n', S(), true, 0},
    {S(1, 2, 131, 8), S(1, 2, 530, 8), S(1, 2, 530, 16), 'b', S(131, 530), false, 0.5},
    {S(2, 4, 131, 8), S(2, 1, 130, 8), S(2, 1, 130, 8), 'f', S(2, 1, 1, 130), false, 0},
    {S(3, 5, 8), S(3, 5, 8), S(3, 5, 8), 'f', S(5, 5), true, 0},
};

static const attention_case *now;
static double rate;

/* Heads come out of views here, and what goes in and out is fused with neighbours. */
static etch_tensor *layer(etch_tensor *q, etch_tensor *k, etch_tensor *v, etch_tensor *mask) {
    etch_tensor *turned = etch_transpose(etch_clone(etch_transpose(k, -3, -2)), -3, -2);
    etch_tensor *y = etch_scaled_dot_product_attention(etch_mul_scalar(q, 1.5), turned, v, mask,
                                                       rate, now->causal, now->scale);
    return etch_add_scalar(etch_tanh(y), 1);
}
static etch_tensor *unmasked(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    return layer(q, k, v, ETCH_NONE);
}

static etch_tensor *trained(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    etch_tensor *in[] = {q, k, v}, *all = NULL;
    for (int i = 0; i < 3; i++) etch_requires_grad_(in[i], true);
    etch_tensor *y = unmasked(q, k, v), *loss = y ? etch_sum(etch_square(y)) : NULL;
    if (!loss || etch_backward(loss) != ETCH_OK) return NULL;
    for (int i = 0; i < 3; i++) {
        etch_tensor *flat = etch_reshape(etch_clone(etch_grad_of(in[i])), S(-1));
        all = all ? etch_cat((etch_tensor *[]){all, flat}, 2, 0) : flat;
        if (etch_zero_grad(in[i]) != ETCH_OK) return NULL;
    }
    return all;
}

static void same_each_time(etch_function *f, etch_tensor *(*fn)(etch_tensor **in), etch_tensor **in,
                           int n) {
    for (int k = 0; k < 4; k++) {
        etch_manual_seed(3);
        etch_tensor *want = must(fn(in));
        etch_manual_seed(3);
        etch_tensor *got = must(etch_call_one(f, in, n));
        assert_true(etch_bitwise_equal(got, want));
    }
    assert_true(etch_function_counters(f).plan_runs > 0);
}

static etch_tensor *call_layer(etch_tensor **x) { return layer(x[0], x[1], x[2], x[3]); }
static etch_tensor *call_unmasked(etch_tensor **x) { return unmasked(x[0], x[1], x[2]); }
static etch_tensor *call_trained(etch_tensor **x) { return trained(x[0], x[1], x[2]); }

static void check_compiled(etch_dtype t, int how) {
    etch_function *f =
        now->kind == 'n' ? etch_compile_fn3(unmasked, NULL) : etch_compile_fn4(layer, NULL);
    etch_function *g = etch_compile_fn3(trained, NULL);
    ETCH_SCOPE {
        operands o = operands_of(now, t, t, how);
        etch_tensor *in[] = {o.q, o.k, o.v, o.mask};
        bool masked = now->kind != 'n';
        same_each_time(f, masked ? call_layer : call_unmasked, in, masked ? 4 : 3);
        for (int i = 0; i < 3; i++) in[i] = leaf(in[i], t);
        same_each_time(g, call_trained, in, 3);
    }
    etch_function_free(f), etch_function_free(g);
}

/* On a device the parts have kernels of their own, each compiled for each dtype. */
TEST(compiled_equals_eager) {
    bool here = test_device() == ETCH_CPU;
    for (int k = 0; k < COUNT_OF(compiled_cases); k++)
        for (int t = ETCH_F32; t <= ETCH_F16; t += here ? 1 : 2)
            for (int way = 0; way < (here ? 2 : 1); way++) {
                now = &compiled_cases[k], rate = way ? 0.3 : 0;
                check_compiled((etch_dtype)t, way ? LAYOUT_HEADS : LAYOUT_ROW);
            }
}

/* ---- memory ---- */

/* Not under AddressSanitizer, which keeps what is freed. */
static int64_t peak_kib(void) {
    struct rusage u = {0};
#ifndef __SANITIZE_ADDRESS__
    getrusage(RUSAGE_SELF, &u);
#endif
    return u.ru_maxrss;
}

/* All scores of 8,192 by 8,192 would be 256 MiB; what the process grows by stays under 64 MiB. */
enum { LENGTH = 8192 };

TEST(memory_grows_with_the_length, .last = true) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_tensor *q = must(etch_rand(ETCH_F32, S(1, LENGTH, 8)));
        etch_tensor *y = NULL;
        int64_t before = peak_kib(), live = etch_memory().bytes_live;
        etch_memory_reset_peak();
        y = must(etch_scaled_dot_product_attention(q, q, q, ETCH_NONE, 0, true, 0));
        assert_true(etch_memory().bytes_peak - live <= 2 * LENGTH * 8 * 4);
        assert_true(isfinite(get(y, y->numel - 1).d));
        assert_true(peak_kib() - before < 64 << 10);
    }
}

TEST(memory_of_gradients_grows_with_the_length, .last = true) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_tensor *q = leaf(must(etch_rand(ETCH_F32, S(1, LENGTH, 8))), ETCH_F32);
        int64_t before = peak_kib(), live = etch_memory().bytes_live;
        etch_memory_reset_peak();
        etch_tensor *y = must(etch_scaled_dot_product_attention(q, q, q, ETCH_NONE, 0, true, 0));
        assert_int_equal(etch_backward(must(etch_sum(y))), ETCH_OK);
        assert_true(etch_memory().bytes_peak - live <= 12 * LENGTH * 8 * 4);
        assert_true(peak_kib() - before < 64 << 10);
    }
}

int main(int argc, char **argv) {
    int failed = run_suite(argc, argv);
    return test_device() == ETCH_CPU ? failed + run_under_lower_isas(argv) : failed;
}
