/* Random programs of products and sums under ETCH_RELAXED, bit for bit: over small integers in
 * f64 all arithmetic is exact, so whatever is added before it is multiplied, results and written
 * arguments are those of eager code. What is wrong then is a summand, a sign, a factor, a view
 * or the order of writes. Sums of products of real numbers, up to the largest of their dtype,
 * against f64 within the bound that include/etch/compile.h states. On a GPU the same programs in
 * f32 as well, strict, where products share kernels with the sums.
 *
 *     test_relaxed_random [COUNT [FIRST-SEED]]
 * Labels: device fake long optimised. */
#include <stdlib.h>

#include "etch_test.h"
#include "backends/cuda/gemm.h"
#include "device_support.h"
#include <etch/etch.h>

enum { SIDE = 66, INPUTS = 4, OUTPUTS = 3, VALUES = 40, STATEMENTS = 14 };

/* Numbers up to 2^52 are exact. */
static const double most = (double)(1ll << 52);

typedef struct program {
    uint64_t seed, random;
    etch_tensor *v[VALUES];
    double bound[VALUES]; /* of |element| */
    int n;
} program;

static unsigned below(program *p, unsigned n) {
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(p->random >> 33) % n;
}

/* Recent values more often: sums of products are what this is about. */
static int any(program *p) {
    return below(p, 3) ? p->n - 1 - (int)below(p, p->n < 4 ? (unsigned)p->n : 4)
                       : (int)below(p, (unsigned)p->n);
}

static void put(program *p, etch_tensor *t, double bound) {
    p->v[p->n] = t, p->bound[p->n++] = bound;
}

/* A write may be seen through views, so it counts for all. */
static void raise_bounds(program *p, double bound) {
    for (int i = 0; i < p->n; i++)
        if (p->bound[i] < bound) p->bound[i] = bound;
}

static void product(program *p) {
    int a = any(p), b = below(p, 2) ? (int)below(p, INPUTS) : any(p);
    if (below(p, 2)) a ^= b, b ^= a, a ^= b;
    double bound = SIDE * p->bound[a] * p->bound[b];
    if (bound < most) put(p, etch_mm(p->v[a], p->v[b]), bound);
}

static void sum(program *p) {
    static const double factors[] = {1, 1, 1, 2, -3};
    int a = any(p), b = any(p);
    double factor = factors[below(p, 5)], bound = p->bound[a] + 3 * p->bound[b];
    bool minus = below(p, 3) == 0, write = below(p, 5) == 0;
    etch_tensor *x = p->v[a], *y = p->v[b];
    if (bound >= most) return;
    if (write && a != b) {
        if (minus) etch_sub_(x, y);
        else etch_add_(x, y);
        raise_bounds(p, bound);
        return;
    }
    put(p, minus ? etch_sub_alpha(x, y, factor) : etch_add_alpha(x, y, factor), bound);
}

static etch_tensor *times(etch_tensor *common, etch_tensor *other, bool left) {
    return left ? etch_mm(common, other) : etch_mm(other, common);
}

/* Of two products with a common operand, mostly. */
static void sum_of_products(program *p) {
    int a = any(p), b = any(p), w = (int)below(p, (unsigned)p->n);
    bool known = below(p, 4) != 0; /* to be small, without which the products stay apart */
    double bound = SIDE * p->bound[w] * (p->bound[a] + (known ? 1 : p->bound[b]));
    if (bound >= most) return;
    bool left = below(p, 2), between = below(p, 4) == 0, turned = below(p, 3) == 0;
    etch_tensor *one = p->v[a], *two = known ? etch_sign(p->v[b]) : p->v[b], *common = p->v[w];
    if (turned) one = etch_t(one), two = etch_t(two);
    etch_tensor *x = times(common, one, left);
    if (between) etch_fill_(etch_select(p->v[any(p)], 0, 1), 1);
    if (below(p, 6) == 0) common = etch_t(common);
    etch_tensor *y = times(common, two, left);
    put(p, below(p, 2) ? etch_add(x, y) : etch_sub(y, x), bound);
    if (below(p, 6) == 0) put(p, x, bound);
}

static void statement(program *p) {
    switch (below(p, 8)) {
    case 0: {
        int i = any(p);
        put(p, etch_t(p->v[i]), p->bound[i]);
        break;
    }
    case 1: etch_fill_(etch_select(p->v[any(p)], below(p, 2), below(p, SIDE)), -1); break;
    case 2: product(p); break;
    case 3:
    case 4: sum(p); break;
    default: sum_of_products(p);
    }
}

static etch_status body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    program *p = ctx;
    p->random = p->seed * 2654435761u + 1, p->n = 0;
    for (int i = 0; i < nin; i++) put(p, in[i], 2);
    for (int i = 0; i < STATEMENTS && p->n < VALUES - 3; i++) statement(p);
    for (int i = 0; i < nout; i++) out[i] = etch_clone(p->v[p->n - 1 - i]);
    return etch_last_status();
}

/* ---- runs ---- */

typedef struct run {
    etch_tensor *in[INPUTS], *out[OUTPUTS];
} run;

static void set_inputs(run *r, etch_tensor *const *from) {
    for (int i = 0; i < INPUTS; i++) r->in[i] = etch_clone(from[i]);
}

static bool same(const run *a, const run *b) {
    bool ok = true;
    for (int i = 0; i < INPUTS; i++) ok &= etch_bitwise_equal(a->in[i], b->in[i]);
    for (int i = 0; i < OUTPUTS; i++) ok &= etch_bitwise_equal(a->out[i], b->out[i]);
    return ok;
}

/* Of a later call: products, and those of them that a launch of their own
 * computes (f32, on a GPU). */
typedef struct counted {
    int64_t products, apart;
} counted;

static counted count(void) {
    etch_counters_t c = etch_counters();
    int64_t launches = test_device() == ETCH_CPU ? 0 : etch_device_stats(test_device()).launches;
    return (counted){c.library_calls, launches - c.kernel_launches};
}

static counted check_against(const run *eager, program *p, etch_tensor *const *from,
                             etch_numerics numerics, etch_mode_kind mode) {
    counted now = {0};
    etch_function *f =
        etch_compile(body, .numerics = numerics, .mode = mode, .ctx = p, .name = "random");
    for (int call = 0; call < 3; call++) {
        run r;
        set_inputs(&r, from);
        counted before = count();
        assert_int_equal(etch_call_n(f, r.in, INPUTS, r.out, OUTPUTS), ETCH_OK);
        now = count();
        now.products -= before.products, now.apart -= before.apart;
        if (!same(&r, eager)) fail_msg("seed %lld differs", (long long)p->seed);
    }
    assert_int_equal(etch_function_counters(f).graphs, 1);
    etch_function_free(f);
    return now;
}

static int programs = 48; /* the 45th finds a kernel that reads what it writes turned */
static uint64_t first_seed = 1;

/* Whole numbers of at most 2. */
static etch_tensor *small_numbers(etch_dtype dtype) {
    etch_tensor *t = etch_rand(dtype, ETCH_SHAPE(SIDE, SIDE));
    return etch_floor(etch_add_scalar(etch_mul_scalar(t, 4.99), -2));
}

TEST(random_programs_are_exact) {
    int64_t strict = 0, relaxed = 0;
    etch_manual_seed(7);
    for (int i = 0; i < programs; i++) {
        ETCH_SCOPE {
            program p = {.seed = first_seed + (uint64_t)i};
            etch_tensor *from[INPUTS];
            run eager;
            for (int k = 0; k < INPUTS; k++) from[k] = small_numbers(ETCH_F64);
            set_inputs(&eager, from);
            assert_int_equal(body(&p, eager.in, INPUTS, eager.out, OUTPUTS), ETCH_OK);
            strict += check_against(&eager, &p, from, ETCH_STRICT, ETCH_MODE_DEFAULT).products;
            relaxed += check_against(&eager, &p, from, ETCH_RELAXED, ETCH_MODE_DEFAULT).products;
        }
    }
    assert_int_equal(etch_counters().compile_failures, 0);
    assert_true(relaxed <= strict);
    if (programs >= 24) assert_true(strict - relaxed > programs / 3);
    print_message("%d programs: %lld products, relaxed %lld\n", programs, (long long)strict,
                  (long long)relaxed);
}

/* ---- real numbers ---- */

enum { TERMS = 5 };

/* Terms t1 w +- t2 w ..., all but the first of which are known to be small. */
typedef struct reals {
    uint64_t seed;
    bool left;
} reals;

static etch_tensor *term(program *p, etch_tensor *const *in, int k) {
    etch_tensor *x = in[1 + below(p, 2)];
    unsigned which = k ? below(p, 5) : 9;
    return which == 0   ? etch_sin(x)
           : which == 1 ? etch_tanh(x)
           : which == 2 ? etch_sigmoid(x)
           : which == 3 ? etch_softmax(x, 1)
           : which == 4 ? etch_mul(etch_cos(x), etch_erf(x))
                        : etch_clone(x);
}

/* out[0]: the sum; then, if there is room, its terms, negated where they are subtracted. */
static etch_status sum_of_terms(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                int nout) {
    const reals *r = ctx;
    program p = {.random = r->seed * 2654435761u + 1};
    int n = 2 + (int)below(&p, TERMS - 1);
    etch_tensor *sum = NULL;
    (void)nin;
    for (int k = 0; k < n; k++) {
        etch_tensor *t = term(&p, in, k), *product = times(in[0], t, r->left);
        bool minus = k && below(&p, 2);
        sum = !k ? product : minus ? etch_sub(sum, product) : etch_add(sum, product);
        if (1 + k < nout) out[1 + k] = minus ? etch_neg(t) : t;
    }
    out[0] = sum;
    for (int k = 1 + n; k < nout; k++) out[k] = etch_zeros(etch_dtype_of(in[0]), etch_sizes(in[0]));
    return etch_last_status();
}

static etch_tensor *wide(etch_tensor *t) { return etch_to(t, ETCH_F64); }

/* Uniform, of either sign, up to `largest`. */
static etch_tensor *real_numbers(etch_dtype dtype, double largest) {
    etch_tensor *t = etch_add_scalar(etch_rand(ETCH_F64, ETCH_SHAPE(SIDE, SIDE)), -0.5);
    return etch_to(etch_mul_scalar(t, 2 * largest), dtype);
}

/* The bound of compile.h: a rounding of operands and results for each product that there was, and
 * those of the product's own sums. */
static void check_reals(etch_dtype dtype, double unit, double largest, const reals *r, program *p) {
    double scale = below(p, 2) ? largest : 2;
    etch_tensor *in[3] = {real_numbers(dtype, 1 / scale), real_numbers(dtype, scale),
                          real_numbers(dtype, scale)};
    etch_tensor *out[1 + TERMS], *y[1], *exact = NULL, *size = NULL;
    assert_int_equal(sum_of_terms((void *)r, in, 3, out, 1 + TERMS), ETCH_OK);
    for (int k = 1; k <= TERMS; k++) {
        etch_tensor *t = wide(out[k]), *w = wide(in[0]), *a = times(w, t, r->left);
        etch_tensor *b = times(etch_abs(w), etch_abs(t), r->left);
        exact = exact ? etch_add(exact, a) : a, size = size ? etch_add(size, b) : b;
    }
    double sums = dtype == ETCH_F64 ? 0x1p-53 : 0x1p-24;
    etch_tensor *bound = etch_mul_scalar(size, 2 * TERMS * unit + 2 * SIDE * sums);
    etch_function *f = etch_compile(sum_of_terms, .numerics = ETCH_RELAXED, .ctx = (void *)r);
    for (int call = 0; call < 2; call++) {
        assert_int_equal(etch_call_n(f, in, 3, y, 1), ETCH_OK);
        etch_tensor *error = etch_abs(etch_sub(wide(y[0]), exact));
        if (etch_item(etch_all(etch_le(error, etch_add_scalar(bound, unit * 0x1p-14)))) != 1)
            fail_msg("seed %lld, %s: error above the bound", (long long)r->seed,
                     etch_dtype_name(dtype));
    }
    etch_function_free(f);
}

TEST(real_sums_keep_the_bound) {
    static const struct {
        etch_dtype dtype;
        double unit, largest; /* half a unit of 1; a number close to the largest */
    } rows[] = {{ETCH_F16, 0x1p-11, 65504},
                {ETCH_BF16, 0x1p-8, 0x1p120}, /* AMX takes denormals as 0 */
                {ETCH_F32, 0x1p-24, 0x1p127},
                {ETCH_F64, 0x1p-53, 0x1p900}}; /* so that the oracle stays finite */
    int64_t before = etch_counters().library_calls;
    for (int i = 0; i < programs; i++)
        for (int d = 0; d < 4; d++)
            ETCH_SCOPE {
                program p = {.random = first_seed + (uint64_t)(4 * i + d)};
                reals r = {.seed = first_seed + (uint64_t)i, .left = below(&p, 2)};
                check_reals(rows[d].dtype, rows[d].unit, rows[d].largest, &r, &p);
            }
    assert_true(etch_counters().library_calls > before);
}

/* Sums are not exact here, but those of eager code. */
TEST(products_share_kernels) {
    etch_device device = test_device();
    if (device == ETCH_CPU) skip();
    etch__cuda_gemm_force = GEMM_TALL;
    int64_t products = 0, apart = 0;
    for (int i = 0; i < programs; i++) {
        ETCH_SCOPE {
            program p = {.seed = first_seed + 1000 + (uint64_t)i};
            etch_tensor *from[INPUTS];
            run eager;
            for (int k = 0; k < INPUTS; k++) from[k] = small_numbers(ETCH_F32);
            set_inputs(&eager, from);
            assert_int_equal(body(&p, eager.in, INPUTS, eager.out, OUTPUTS), ETCH_OK);
            counted c = check_against(&eager, &p, from, ETCH_STRICT, ETCH_MODE_DEFAULT);
            check_against(&eager, &p, from, ETCH_STRICT, ETCH_MODE_REDUCE_OVERHEAD);
            products += c.products, apart += c.apart;
        }
    }
    etch__cuda_gemm_force = GEMM_RULE;
    assert_int_equal(etch_counters().compile_failures, 0);
    if (programs >= 8) assert_true(apart < products - programs / 3);
    print_message("%d programs: %lld products, %lld in kernels of their own\n", programs,
                  (long long)products, (long long)apart);
}

int main(int argc, char **argv) {
    if (test_device() != ETCH_CPU) programs = 8;
    if (argc > 1) programs = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    return run_suite(argc, argv);
}
