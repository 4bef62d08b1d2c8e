/* Expressions and the strip primitives under them: every primitive in every compute type against
 * what core/ops/prims.def says, the half conversions against the definition of the formats for all
 * of their values, programs for what they leave out, and scalars as cells.
 * Labels: quick optimised. */
#include <fenv.h>

#include "cpu_support.h"

#include "backends/cpu/program.h"
#include "core/ops/rules.h"
#include "core/ops/schema.h"

enum { N = 397 }; /* odd, so that every instruction set has a tail */

static const etch_dtype compute_types[] = {ETCH_F32, ETCH_F64, ETCH_I8, ETCH_I16,
                                           ETCH_I32, ETCH_I64, ETCH_U8, ETCH_BOOL};

/* ---- primitives ---- */

static number real_of(etch_dtype t, double v) { return real_number(t == ETCH_F32 ? (float)v : v); }
static number bool_of(bool v) { return whole_number(v); }

static int order(number a, number b) { /* -1, 0, 1; 2 where unordered */
    if (!a.real) return a.i < b.i ? -1 : a.i > b.i;
    return a.d < b.d ? -1 : a.d > b.d ? 1 : a.d == b.d ? 0 : 2;
}

/* a below b where -0 is below +0. */
static bool first_of(number a, number b) {
    bool zeros = a.real && a.d == 0 && b.d == 0;
    return zeros ? signbit(a.d) && !signbit(b.d) : order(a, b) == -1;
}

static bool in_width(int64_t n, etch_dtype t) {
    return n >= 0 && n < 8 * (int64_t)etch_dtype_size(t);
}

/* What core/ops/prims.def says, for the exact ones. */
static number meaning(prim_id p, etch_dtype t, number a, number b, number c) {
    uint64_t x = (uint64_t)a.i, y = (uint64_t)b.i;
    bool nan = a.real && isnan(a.d), real = a.real, truth = t == ETCH_BOOL;
    switch (p) {
    case PRIM_ADD:
        return real ? real_of(t, a.d + b.d)
                    : whole_number(truth ? a.i | b.i : ref_wrap((int64_t)(x + y), t));
    case PRIM_SUB:
        return real ? real_of(t, a.d - b.d) : whole_number(ref_wrap((int64_t)(x - y), t));
    case PRIM_MUL:
        return real ? real_of(t, a.d * b.d)
                    : whole_number(truth ? a.i & b.i : ref_wrap((int64_t)(x * y), t));
    case PRIM_DIV: return real_of(t, a.d / b.d);
    case PRIM_FMA:
        return real_number(t == ETCH_F32 ? fmaf((float)a.d, (float)b.d, (float)c.d)
                                         : fma(a.d, b.d, c.d));
    case PRIM_NEG:
        return real ? real_number(-a.d) : whole_number(truth ? a.i : ref_wrap((int64_t)(0 - x), t));
    case PRIM_ABS:
        return real ? real_number(fabs(a.d))
                    : whole_number(ref_wrap(a.i < 0 ? (int64_t)(0 - x) : a.i, t));
    case PRIM_SQRT: return real_of(t, sqrt(a.d));
    case PRIM_MAX: return first_of(b, a) || nan ? a : b;
    case PRIM_MIN: return first_of(a, b) || nan ? a : b;
    case PRIM_AT_LEAST: return order(b, a) == 1 || (b.real && isnan(b.d)) ? b : a;
    case PRIM_AT_MOST: return order(b, a) == -1 || (b.real && isnan(b.d)) ? b : a;
    case PRIM_EQ: return bool_of(order(a, b) == 0);
    case PRIM_NE: return bool_of(order(a, b) != 0);
    case PRIM_LT: return bool_of(order(a, b) == -1);
    case PRIM_LE: return bool_of(order(a, b) == -1 || order(a, b) == 0);
    case PRIM_SIGNBIT: return bool_of(real ? signbit(a.d) != 0 : a.i < 0);
    case PRIM_AND: return bool_of(a.i && b.i);
    case PRIM_OR: return bool_of(a.i || b.i);
    case PRIM_NOT: return bool_of(!a.i);
    case PRIM_SELECT: return a.i ? b : c;
    case PRIM_BITAND: return whole_number(a.i & b.i);
    case PRIM_BITOR: return whole_number(a.i | b.i);
    case PRIM_BITXOR: return whole_number(ref_wrap(a.i ^ b.i, t));
    case PRIM_SHL: return whole_number(in_width(b.i, t) ? ref_wrap((int64_t)(x << y), t) : 0);
    case PRIM_SHR: return whole_number(in_width(b.i, t) ? a.i >> b.i : a.i < 0 ? -1 : 0);
    case PRIM_QUOT: return whole_number(ref_wrap(b.i == -1 ? (int64_t)(0 - x) : a.i / b.i, t));
    case PRIM_REM:
        return real ? real_of(t, fmod(a.d, b.d)) : whole_number(b.i == -1 ? 0 : a.i % b.i);
    case PRIM_ROUND_BF16: return real_number(ref_bf16(a.d));
    case PRIM_ROUND_F16: return real_number(ref_f16(a.d));
    default: fail_msg("no meaning for %s", etch__prims[p].name); return a;
    }
}

static void check_primitive(const strip_table *table, prim_id p, etch_dtype t) {
    strip_fn fn = table->prim[p][t];
    if (!fn || (etch__prim_is_function(p) && p != PRIM_REM)) return;
    bool compares = etch__prim_compares(p);
    etch_dtype first = p == PRIM_SELECT ? ETCH_BOOL : t, result = compares ? ETCH_BOOL : t;
    double a[N], b[N], c[N], d[N];
    for (int i = 0; i < N; i++) {
        store_number(a, i, first, test_number(first, false));
        store_number(b, i, t, i % 5 ? test_number(t, false) : load_number(a, i, first));
        if (p == PRIM_SELECT) store_number(b, i, t, test_number(t, false));
        store_number(c, i, t, test_number(t, false));
        bool divides = p == PRIM_QUOT || (p == PRIM_REM && !is_float(t));
        if (divides && load_number(b, i, t).i == 0) store_number(b, i, t, whole_number(-1));
    }
    fn(d, a, b, c, N);
    for (int i = 0; i < N; i++) {
        number x = load_number(a, i, first), y = load_number(b, i, t), z = load_number(c, i, t);
        number want = meaning(p, t, x, y, z), have = load_number(d, i, result);
        if (!same_number(want, have))
            fail_msg("%s of %s(%g %lld, %g %lld): want %.17g %lld, have %.17g %lld",
                     etch__prims[p].name, etch_dtype_name(t), x.d, (long long)x.i, y.d,
                     (long long)y.i, want.d, (long long)want.i, have.d, (long long)have.i);
    }
    if (result != t || p == PRIM_SELECT) return;
    fn(a, a, b, c, N); /* in place */
    assert_memory_equal(a, d, (size_t)N << etch__size_log2(t));
}

TEST(primitives_mean_what_the_table_says) {
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int p = STRIP_PAD + 1; p < PRIM_COUNT; p++)
            for (int t = 0; t < COUNT_OF(compute_types); t++)
                for (int round = 0; round < 4; round++)
                    check_primitive(etch__isa_tables[isa].strips, (prim_id)p, compute_types[t]);
}

/* Divisors and dividends around the ends of the type, and around multiples of the divisor. */
static int64_t edge(int k, etch_dtype t) {
    int bits = 8 * (int)etch_dtype_size(t) - (t != ETCH_U8), at = (int)(test_random() % 64);
    uint64_t top = (1ull << bits) - 1, near = test_random() % 3 - 1;
    switch (k % 4) {
    case 0: return ref_wrap((int64_t)(top + near), t);
    case 1: return ref_wrap((int64_t)((1ull << at % bits) + near), t);
    case 2: return ref_wrap((int64_t)(0 - (1ull << at % bits) + near), t);
    default: return ref_wrap((int64_t)(test_random() >> at), t);
    }
}

static void check_quotients(const strip_table *table, etch_dtype t) {
    double a[N], b[N], q[N], r[N];
    for (int i = 0; i < N; i++) {
        int64_t y = edge(i, t), times = edge((int)test_random() & 3, t);
        if (y == 0) y = i % 2 ? 1 : ref_wrap(-1, t);
        uint64_t near = (uint64_t)times * (uint64_t)y + test_random() % 3 - 1;
        store_number(b, i, t, whole_number(y));
        store_number(a, i, t, whole_number(i % 3 ? ref_wrap((int64_t)near, t) : times));
    }
    table->prim[PRIM_QUOT][t](q, a, b, NULL, N), table->prim[PRIM_REM][t](r, a, b, NULL, N);
    for (int i = 0; i < N; i++) {
        number x = load_number(a, i, t), y = load_number(b, i, t), none = {0};
        number quotient = meaning(PRIM_QUOT, t, x, y, none),
               rest = meaning(PRIM_REM, t, x, y, none);
        if (load_number(q, i, t).i != quotient.i || load_number(r, i, t).i != rest.i)
            fail_msg("%s %lld by %lld: %lld, rest %lld", etch_dtype_name(t), (long long)x.i,
                     (long long)y.i, (long long)load_number(q, i, t).i,
                     (long long)load_number(r, i, t).i);
    }
}

/* By way of floats, whatever way these round. */
TEST(integer_quotients_are_exact) {
    static const etch_dtype integers[] = {ETCH_I8, ETCH_I16, ETCH_I32, ETCH_I64, ETCH_U8};
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int k = 0; k < COUNT_OF(integers) * COUNT_OF(modes) * 20; k++) {
            fesetround(modes[k / 5 % 4]);
            check_quotients(etch__isa_tables[isa].strips, integers[k % 5]);
            fesetround(FE_TONEAREST);
        }
}

/* rows x cols elements from one way to lie to another, nothing beside them. */
static void check_move(const strip_table *table, etch_dtype d, strip_shape m, int64_t cols) {
    enum { PLACES = 1 << 15 };
    static unsigned char from[PLACES], to[PLACES], want[PLACES];
    int64_t size = (int64_t)etch_dtype_size(d);
    for (int i = 0; i < PLACES; i++) from[i] = (unsigned char)(i * 7 + i / 256), to[i] = 1;
    memcpy(want, to, sizeof want);
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = 0; c < cols; c++)
            memcpy(want + (r * m.dst_row + c * m.dst_col) * size,
                   from + (r * m.src_row + c * m.src_col) * size, (size_t)size);
    table->prim[STRIP_MOVE][d](to, from, &m, NULL, cols);
    if (memcmp(to, want, sizeof to) != 0)
        fail_msg("%s, %d x %d: to %d %d, from %d %d", etch_dtype_name(d), (int)m.rows, (int)cols,
                 (int)m.dst_row, (int)m.dst_col, (int)m.src_row, (int)m.src_col);
}

TEST(blocks_are_moved) {
    static const int64_t sides[] = {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33};
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int k = 0; k < COUNT_OF(sides) * COUNT_OF(sides) * ETCH_DTYPE_COUNT; k++) {
            const strip_table *table = etch__isa_tables[isa].strips;
            etch_dtype d = (etch_dtype)(k % ETCH_DTYPE_COUNT);
            int64_t rows = sides[k / ETCH_DTYPE_COUNT % COUNT_OF(sides)];
            int64_t cols = sides[k / ETCH_DTYPE_COUNT / COUNT_OF(sides)];
            check_move(table, d, (strip_shape){rows, cols, 1, cols + 3, 1}, cols);
            check_move(table, d, (strip_shape){rows, cols, 1, 1, rows}, cols);
            check_move(table, d, (strip_shape){rows, cols, 1, 1, rows + 2}, cols);
            check_move(table, d, (strip_shape){rows, 1, rows, cols, 1}, cols);
            check_move(table, d, (strip_shape){rows, cols, 1, 2, 0}, cols);
            check_move(table, d, (strip_shape){rows, cols, 1, 0, 1}, cols);
            check_move(table, d, (strip_shape){rows, cols, 1, 3 * cols, 3}, cols);
            check_move(table, d, (strip_shape){rows, 2 * cols, 2, cols, 1}, cols);
        }
}

/* Elements with a stride between them, as a row of such and into one; in reverse, too. */
static void check_strided(const strip_table *table, etch_dtype d, int64_t stride, int64_t n) {
    enum { PLACES = 1 << 13, MIDDLE = PLACES / 2 };
    static unsigned char from[PLACES], to[PLACES], also[PLACES], want[PLACES];
    int64_t size = (int64_t)etch_dtype_size(d);
    for (int i = 0; i < PLACES; i++) from[i] = (unsigned char)(i * 7 + i / 256), want[i] = 1;
    memcpy(to, want, PLACES), memcpy(also, want, PLACES);
    for (int64_t i = 0; i < n; i++)
        memcpy(want + i * size, from + MIDDLE + i * stride * size, (size_t)size);
    strip_shape m = {1, 0, 1, 0, stride};
    table->prim[STRIP_MOVE][d](to, from + MIDDLE, &m, NULL, n);
    table->gather[etch__size_log2(d)](also, from + MIDDLE, stride, n);
    if (memcmp(to, want, PLACES) != 0 || memcmp(also, want, PLACES) != 0)
        fail_msg("%s, %d with stride %d", etch_dtype_name(d), (int)n, (int)stride);
    memset(want, 1, PLACES), memset(to, 1, PLACES);
    for (int64_t i = 0; i < n; i++)
        memcpy(want + MIDDLE + i * stride * size, from + i * size, (size_t)size);
    m = (strip_shape){1, 0, stride, 0, 1};
    table->prim[STRIP_MOVE][d](to + MIDDLE, from, &m, NULL, n);
    assert_memory_equal(to, want, PLACES);
}

TEST(strided_elements_are_moved) {
    static const int64_t strides[] = {1, 2, 3, 4, 5, 7, -1, -2, -3};
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
            for (int s = 0; s < COUNT_OF(strides); s++)
                for (int64_t n = 0; n < 70; n++)
                    check_strided(etch__isa_tables[isa].strips, (etch_dtype)d, strides[s], n);
}

/* Whole lanes are written, elements behind the valid ones not read; in place, too. */
static void check_pad(const strip_table *table, etch_dtype d, int64_t n) {
    enum { MOST = 4 * REDUCE_LANES * 8 };
    static unsigned char to[MOST], want[MOST];
    unsigned char value[8] = {201, 202, 203, 204, 205, 206, 207, 208};
    int64_t size = (int64_t)etch_dtype_size(d), all = (n + REDUCE_LANES - 1) & -REDUCE_LANES;
    unsigned char *from = n ? malloc((size_t)(n * size)) : to;
    assert_non_null(from);
    for (int64_t i = 0; i < n * size; i++) from[i] = (unsigned char)(i * 7 + i / 256);
    memset(to, 1, MOST), memset(want, 1, MOST);
    if (n) memcpy(want, from, (size_t)(n * size));
    for (int64_t i = n; i < all; i++) memcpy(want + i * size, value, (size_t)size);
    table->prim[STRIP_PAD][d](to, from, value, NULL, n);
    assert_memory_equal(to, want, MOST);
    memset(to + n * size, 1, (size_t)(MOST - n * size));
    table->prim[STRIP_PAD][d](to, to, value, NULL, n);
    assert_memory_equal(to, want, MOST);
    if (n) free(from);
}

TEST(lanes_are_padded) {
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
            for (int64_t n = 0; n <= 3 * REDUCE_LANES; n++)
                check_pad(etch__isa_tables[isa].strips, (etch_dtype)d, n);
}

TEST(conversions) {
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int f = 0; f < COUNT_OF(compute_types); f++)
            for (int t = 0; t < COUNT_OF(compute_types); t++) {
                etch_dtype from = compute_types[f], to = compute_types[t];
                strip_fn fn = etch__isa_tables[isa].strips->convert[from][to];
                double a[N], d[N];
                assert_non_null(fn);
                for (int i = 0; i < N; i++) store_number(a, i, from, test_number(from, false));
                fn(d, a, NULL, NULL, N);
                for (int i = 0; i < N; i++) {
                    number x = load_number(a, i, from), have = load_number(d, i, to);
                    number want = ref_convert(x, to);
                    if (!same_number(want, have))
                        fail_msg("%s %.17g %lld to %s: want %.17g %lld, have %.17g %lld",
                                 etch_dtype_name(from), x.d, (long long)x.i, etch_dtype_name(to),
                                 want.d, (long long)want.i, have.d, (long long)have.i);
                }
            }
}

TEST(every_half_widens_and_narrows) {
    static uint16_t h[65536], back[65536];
    static float f[65536];
    for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int d = ETCH_BF16; d <= ETCH_F16; d++) {
            const strip_table *table = etch__isa_tables[isa].strips;
            table->widen[d](f, h, NULL, NULL, 65536);
            for (int i = 0; i < 65536; i++) {
                double want = half_value((uint16_t)i, d == ETCH_BF16 ? 8 : 5);
                assert_true(same_number(real_number(want), real_number(f[i])));
            }
            table->narrow[d](back, f, NULL, NULL, 65536);
            assert_memory_equal(h, back, sizeof h); /* NaN payloads too */
        }
}

/* Around every half value: the ties, and their neighbours on either side. */
TEST(rounding_to_half) {
    for (int isa = 0; isa <= (int)etch__cpu_isa(); isa++)
        for (int d = ETCH_BF16; d <= ETCH_F16; d++)
            for (int i = 0; i < 65536; i++) {
                double v = half_value((uint16_t)i, d == ETCH_BF16 ? 8 : 5);
                double next = half_value((uint16_t)(i + 1), d == ETCH_BF16 ? 8 : 5);
                float tie = (float)((v + next) / 2);
                float in[4] = {tie, nextafterf(tie, INFINITY), nextafterf(tie, -INFINITY),
                               (float)v},
                      out[4];
                prim_id p = d == ETCH_BF16 ? PRIM_ROUND_BF16 : PRIM_ROUND_F16;
                const strip_table *table = etch__isa_tables[isa].strips;
                uint16_t narrow[4], at_once[4];
                table->prim[p][ETCH_F32](out, in, NULL, NULL, 4);
                table->narrow[d](narrow, out, NULL, NULL, 4);
                table->round[d](at_once, in, NULL, NULL, 4);
                assert_memory_equal(narrow, at_once, sizeof narrow);
                for (int k = 0; k < 4; k++) {
                    double want = d == ETCH_BF16 ? ref_bf16(in[k]) : ref_f16(in[k]);
                    if (!same_number(real_number(want), real_number(out[k])))
                        fail_msg("%a to %s: want %a, have %a", in[k], etch_dtype_name(d), want,
                                 out[k]);
                }
            }
}

/* Padding: the value at any place of a strip of any length is that of a strip of its own. */
TEST(transcendental_values_have_no_position) {
    const strip_table *table = etch__isa_table()->strips;
    for (int p = 0; p < PRIM_COUNT; p++)
        for (int t = 0; etch__prim_is_function(p) && t < 2; t++) {
            double a[N], b[N], whole[N], one[1], part[N];
            size_t size = (size_t)1 << etch__size_log2(compute_types[t]);
            strip_fn fn = table->prim[p][compute_types[t]];
            for (int i = 0; i < N; i++) {
                store_number(a, i, compute_types[t], test_number(compute_types[t], false));
                store_number(b, i, compute_types[t], test_number(compute_types[t], false));
            }
            fn(whole, a, b, NULL, N);
            for (int i = 0; i < N; i++) {
                char *w = (char *)whole + (size_t)i * size;
                fn(one, (char *)a + (size_t)i * size, (char *)b + (size_t)i * size, NULL, 1);
                assert_memory_equal(one, w, size);
                int64_t n = N - i < 21 ? N - i : 21;
                fn(part, (char *)a + (size_t)i * size, (char *)b + (size_t)i * size, NULL, n);
                assert_memory_equal(part, w, size * (size_t)n);
            }
        }
}

/* ---- programs ---- */

static int uses(const prim_program *p, prim_id prim) {
    int n = 0;
    for (int k = 0; k < p->n; k++) n += p->code[k].prim == prim;
    return n;
}

static bool program(op_id op, etch_dtype in, etch_dtype compute, etch_dtype out, int64_t class,
                    prim_program *p) {
    const etch_dtype all[3] = {in, in, in};
    const op_schema *s = etch__schema(op);
    int nin = 0;
    for (int i = 0; i < s->nargs; i++) nin += s->args[i].type == ARG_TENSOR;
    return etch__expr_build(op, all, nin, compute, out, class, p);
}

/* Well formed: operands come earlier, have the type that the primitive wants, and a half result
 * lies in f32. */
static void check_program(const prim_program *p, etch_dtype out) {
    assert_in_range(p->n, 1, PROGRAM_MAX);
    assert_in_range(p->result, 0, p->n - 1);
    assert_int_equal(p->code[p->result].type, etch__compute_type(out));
    for (int k = 0; k < p->n; k++) {
        const prim_instr *i = &p->code[k];
        const int operands[3] = {i->a, i->b, i->c};
        bool compares = etch__prim_compares(i->prim);
        for (int j = 0; j < etch__prims[i->prim].arity; j++) {
            assert_in_range(operands[j], 0, k - 1);
            int want = i->type;
            if (i->prim == PRIM_CONVERT || compares) want = i->from;
            if (i->prim == PRIM_SELECT && j == 0) want = ETCH_BOOL;
            assert_int_equal(p->code[operands[j]].type, want);
        }
    }
}

TEST(every_expression_is_well_formed) {
    int built = 0;
    for (int op = 0; op < OP_COUNT; op++)
        for (int d = 0; d < ETCH_DTYPE_COUNT * ETCH_DTYPE_COUNT * ETCH_DTYPE_COUNT; d++) {
            prim_program p;
            etch_dtype in = (d % 10), compute = (d / 10 % 10), out = (d / 100);
            bool has = program(op, in, compute, out, 0, &p);
            int kind = etch__ops[op].kind;
            bool own = op == OP_EMPTY || op == OP_RAND || op == OP_RANDN ||
                       etch__ops[op].drule == DRULE_INDEXED;
            bool want =
                kind == KIND_POINTWISE || (!own && (kind == KIND_INPLACE || kind == KIND_CREATION));
            assert_int_equal(has, want);
            if (!has) break;
            check_program(&p, out);
            built++;
        }
    assert_true(built > 50000);
}

TEST(alpha_of_one_is_not_multiplied) {
    prim_program p;
    assert_true(program(OP_ADD_TENSOR, ETCH_F32, ETCH_F32, ETCH_F32, 1, &p));
    assert_int_equal(uses(&p, PRIM_MUL) + uses(&p, PRIM_SCALAR), 0);
    assert_true(program(OP_ADD_TENSOR, ETCH_F32, ETCH_F32, ETCH_F32, 0, &p));
    assert_int_equal(uses(&p, PRIM_MUL), 1);
    assert_int_equal(uses(&p, PRIM_SCALAR), 1);
    assert_int_equal(p.nsc, 1);
}

TEST(classes_of_exponents) {
    const struct {
        exponent_class class;
        prim_id prim;
        int times;
    } rows[] = {{EXPONENT_ANY, PRIM_POW, 1},       {EXPONENT_TWO, PRIM_MUL, 1},
                {EXPONENT_THREE, PRIM_MUL, 2},     {EXPONENT_HALF, PRIM_SQRT, 1},
                {EXPONENT_MINUS_ONE, PRIM_DIV, 1}, {EXPONENT_ONE, PRIM_POW, 0},
                {EXPONENT_ZERO, PRIM_CONST, 1}};
    for (int k = 0; k < COUNT_OF(rows); k++) {
        prim_program p;
        assert_true(program(OP_POW_SCALAR, ETCH_F64, ETCH_F64, ETCH_F64, rows[k].class, &p));
        assert_int_equal(uses(&p, rows[k].prim), rows[k].times);
        assert_int_equal(uses(&p, PRIM_POW), rows[k].class == EXPONENT_ANY);
    }
}

TEST(half_results_are_rounded_once) {
    prim_program p;
    assert_true(program(OP_SIGMOID, ETCH_BF16, ETCH_BF16, ETCH_BF16, 0, &p));
    assert_int_equal(uses(&p, PRIM_ROUND_BF16), 1);
    assert_int_equal(p.code[p.result].prim, PRIM_ROUND_BF16);
    assert_true(program(OP_ADD_TENSOR, ETCH_I64, ETCH_F16, ETCH_F16, 1, &p)); /* operands as well */
    assert_int_equal(uses(&p, PRIM_ROUND_F16), 3);
    const op_id exact[] = {OP_CLONE, OP_NEG, OP_ABS, OP_RELU, OP_MAXIMUM, OP_ZERO_};
    for (int k = 0; k < COUNT_OF(exact); k++) {
        assert_true(program(exact[k], ETCH_F16, ETCH_F16, ETCH_F16, 0, &p));
        assert_int_equal(uses(&p, PRIM_ROUND_F16), 0);
    }
}

/* Bounds of integers are brought into their range before the first strip. */
TEST(values_of_scalars_alone_are_computed_once) {
    const etch_dtype in[] = {ETCH_I8, ETCH_I8, ETCH_I8};
    prim_program p;
    cpu_program c;
    assert_true(program(OP_CLAMP, ETCH_I8, ETCH_I8, ETCH_I8, 0, &p));
    assert_true(etch__program_build(&p, in, ETCH_I8, &c));
    assert_true(c.nonce > 2);
    assert_int_equal(c.nsteps - c.nonce, 2);
    assert_true(c.cost <= 2 * etch__prim_cost(PRIM_AT_LEAST));
}

TEST(copies_do_not_read_what_they_overwrite) {
    prim_program p;
    assert_true(program(OP_COPY_, ETCH_F32, ETCH_F32, ETCH_F32, 0, &p));
    assert_int_equal(uses(&p, PRIM_INPUT), 1);
    assert_int_equal(p.code[0].imm.i, 1);
    assert_true(program(OP_FILL_SCALAR_, ETCH_F32, ETCH_F32, ETCH_F32, 0, &p));
    assert_int_equal(uses(&p, PRIM_INPUT), 0);
}

/* ---- scalars ---- */

TEST(scalars_become_cells) {
    const etch_scalar values[] = {etch_scalar_real(0.1),          etch_scalar_real(-0.0),
                                  etch_scalar_real(NAN),          etch_scalar_real(INFINITY),
                                  etch_scalar_real(-1e30),        etch_scalar_real(1e300),
                                  etch_scalar_real(65519),        etch_scalar_real(65520),
                                  etch_scalar_real(0x1p-25),      etch_scalar_real(0x1.8p-25),
                                  etch_scalar_real(3e-40),        etch_scalar_real(255.9),
                                  etch_scalar_int(300),           etch_scalar_int(-1),
                                  etch_scalar_int(INT64_MAX),     etch_scalar_int(INT64_MIN),
                                  etch_scalar_int((1 << 24) + 1), etch_scalar_bool(true),
                                  etch_scalar_bool(false)};
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        for (int k = 0; k < COUNT_OF(values); k++) {
            etch_scalar s = values[k];
            uint64_t cell = etch__scalar_cell(s, d);
            number want =
                ref_convert(s.kind == ETCH_SCALAR_REAL ? real_number(s.d) : whole_number(s.i), d);
            number have = load_number(&cell, 0, etch__compute_type(d));
            if (!same_number(want, have))
                fail_msg("scalar %d as %s: want %.17g %lld, have %.17g %lld", k, etch_dtype_name(d),
                         want.d, (long long)want.i, have.d, (long long)have.i);
        }
}

TEST(reductions_choose_their_accumulator) {
    ETCH_SCOPE {
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
            etch_tensor *t = make(d, ETCH_SHAPE(3), LAYOUT_ROW, true);
            op_call sum = {.op = OP_SUM, .nin = 1, .in = &t},
                    largest = {.op = OP_MAX, .nin = 1, .in = &t};
            etch_dtype out = is_float(d) ? d : ETCH_I64;
            assert_int_equal(etch__reduce_plan(&sum, out).acc, etch__compute_type(out));
            assert_int_equal(etch__reduce_plan(&sum, out).kind, REDUCE_SUM);
            assert_int_equal(etch__reduce_plan(&largest, d).acc, etch__compute_type(d));
        }
    }
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
