/* Products that share a kernel with what is computed of them (jit/fuse/pass_join.c,
 * backends/cuda/join.c), on the fakes, or with ETCH_TEST_REAL_GPU=1 on a real GPU: compiled and as
 * a graph bit for bit as eager, where every product is a kernel of its own; which products join and
 * which must not, counted; every layout of operands, tiles that are not full, operands that lie
 * elsewhere in a later call; each driver call and allocation failing once.
 * Labels: driver sanitizer long optimised. */
#include "cuda_failing.h"

#include "backends/cuda/gemm.h"
#include "core/observe/report.h"
#include "tracer/learn/learn.h"

#include <math.h>

/* ---- programs: x is m x k, w k x n, b fits m x n ---- */

static double factor = 1.5;

static etch_tensor *bias_relu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu(etch_add(etch_mm(x, w), b));
}

static etch_tensor *two_products(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_mul(etch_add(etch_mm(x, w), etch_mm(etch_sin(x), w)), b);
}

static etch_tensor *three_products(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *sum = etch_add(etch_mm(x, w), etch_mm(etch_sin(x), w));
    return etch_sub(etch_add(sum, etch_mm(etch_cos(x), w)), b);
}

/* Number and settings that change from call to call. */
static etch_tensor *scaled(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_add(etch_mul_scalar(etch_mm(x, w), factor), b);
}

static etch_tensor *to_f64(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_to(etch_mm(x, w), ETCH_F64);
    return etch_mul(c, etch_to(b, ETCH_F64));
}

static etch_tensor *to_bf16(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_to(etch_add(etch_mm(x, w), b), ETCH_BF16);
}

static etch_tensor *to_bool(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_gt(etch_mm(x, w), b);
}

static etch_tensor *squared(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_mm(x, w);
    return etch_add(etch_mul(c, c), b);
}

static etch_tensor *in_place(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_mm(x, w);
    etch_relu_(c);
    etch_add_(c, b);
    return c;
}

/* addmm: its bias follows the product as what follows the operator does. */
static etch_tensor *addmm_sin(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_sin(etch_addmm(b, x, w));
}

static etch_tensor *linear_gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *wide = etch_unsqueeze(x, 0), *row = etch_select(b, 0, 0);
    return etch_gelu(etch_linear(wide, etch_t(w), row));
}

/* Stored and used on in the same kernel. */
static etch_tensor *two_results(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_relu(etch_mm(x, w)), *d = etch_sin(c);
    return etch_add(etch_mm(etch_t(c), d), etch_sum(b));
}

/* ---- programs whose product stays apart ---- */

static etch_tensor *addmm_alone(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_addmm(b, x, w);
}

static etch_tensor *returned(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_mm(x, w);
    etch_add_(b, c);
    return c;
}

static etch_tensor *reduced(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_sum_dim(etch_mul(etch_mm(x, w), b), ETCH_DIMS(1), false);
}

static etch_tensor *turned(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_add(etch_relu(etch_t(etch_mm(x, w))), etch_t(b));
}

static etch_tensor *flattened(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_view(etch_mm(x, w), ETCH_SHAPE(-1));
    return etch_add(etch_relu(c), etch_view(etch_contiguous(b), ETCH_SHAPE(-1)));
}

static etch_tensor *broadcast(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_view(etch_mm(x, w), ETCH_SHAPE(1, etch_size(x, 0), etch_size(w, 1)));
    return etch_relu(etch_add(etch_expand(c, ETCH_DIMS(2, -1, -1)), b));
}

static etch_tensor *read_twice(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_mm(x, w);
    return etch_add(etch_mul(c, b), etch_sum_dim(c, ETCH_DIMS(0), true));
}

/* ---- programs that write; the product may stay apart, and its operand must be the old one ---- */

static etch_tensor *writes_operand(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *y = etch_clone(x), *c = etch_mm(y, w);
    etch_fill_(etch_slice(y, 0, 0, 3, 1), 7);
    return etch_add(etch_mul(c, b), etch_sum(y));
}

static etch_tensor *writes_input(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_mm(x, w);
    etch_mul_scalar_(etch_slice(x, 0, 0, 2, 1), 0.5);
    return etch_add(c, b);
}

static etch_tensor *writes_result_to_input(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = etch_mm(x, w);
    etch_add_(b, c);
    return etch_relu(b);
}

/* ---- running them ---- */

typedef etch_tensor *(*body)(etch_tensor *, etch_tensor *, etch_tensor *);

typedef struct operands {
    etch_tensor *x, *w, *b;
} operands;

static etch_tensor *numbers(uint64_t seed, int64_t rows, int64_t cols) {
    etch_manual_seed(seed);
    etch_tensor *t = etch_randn(ETCH_F32, ETCH_SHAPE(rows, cols));
    CHECK(t);
    return t;
}

enum { DENSE, TURNED, OFFSET, EVERY_OTHER, LAYOUTS };

/* Random numbers on the device in one of the layouts. */
static etch_tensor *laid_out(uint64_t seed, int64_t rows, int64_t cols, int layout) {
    if (layout == TURNED) return etch_t(on_gpu(numbers(seed, cols, rows)));
    if (layout == DENSE) return on_gpu(numbers(seed, rows, cols));
    int64_t step = layout == EVERY_OTHER ? 2 : 1;
    etch_tensor *room = on_gpu(numbers(seed, rows + 1, step * cols + 3));
    etch_tensor *part = etch_slice(room, 0, 1, rows + 1, 1);
    part = etch_slice(part, 1, 3, 3 + step * cols, step);
    CHECK(part);
    return part;
}

static operands given(uint64_t seed, int64_t m, int64_t n, int64_t k, int layout) {
    return (operands){laid_out(seed, m, k, layout), laid_out(seed + 1, k, n, layout),
                      laid_out(seed + 2, m, n, layout)};
}

/* What is written is part of the result. */
static etch_tensor *all_of(etch_tensor *result, const operands *o) {
    CHECK(result);
    etch_tensor *flat = etch_view(etch_to(etch_contiguous(result), ETCH_F64), ETCH_SHAPE(-1));
    etch_tensor *x = etch_view(etch_to(etch_contiguous(o->x), ETCH_F64), ETCH_SHAPE(-1));
    etch_tensor *b = etch_view(etch_to(etch_contiguous(o->b), ETCH_F64), ETCH_SHAPE(-1));
    etch_tensor *all = etch_cat((etch_tensor *[]){flat, x, b}, 3, 0);
    CHECK(all);
    return all;
}

typedef struct shape {
    int64_t m, n, k;
    int layout, tile;
} shape;

static int64_t generated_so_far(void) { return etch_counters().kernel_launches; }

/* Eager, then four calls with other operands each; of the last call: launches of products alone,
 * and of generated kernels. */
static void check(body f, const shape *s, etch_mode_kind mode, int64_t *products,
                  int64_t *kernels) {
    etch__cuda_gemm_force = s->tile;
    etch_function *compiled = etch_compile(f, .mode = mode);
    CHECK(compiled);
    for (int i = 0; i < 4; i++)
        ETCH_SCOPE {
            factor = 1.5 + i;
            operands o = given((uint64_t)i, s->m, s->n, s->k, s->layout);
            operands p = given((uint64_t)i, s->m, s->n, s->k, s->layout);
            etch_tensor *want = all_of(f(o.x, o.w, o.b), &o);
            int64_t launches = etch_device_stats(gpu).launches, generated = generated_so_far();
            etch_tensor *got = etch_call(compiled, p.x, p.w, p.b);
            generated = generated_so_far() - generated;
            launches = etch_device_stats(gpu).launches - launches;
            CHECK(etch_bitwise_equal(all_of(got, &p), want));
            if (products) *products = launches - generated;
            if (kernels) *kernels = generated;
        }
    etch_function_free(compiled);
    etch__cuda_gemm_force = GEMM_RULE;
}

/* Which join, with 64 rows to a tile: what is left of products and kernels. */
typedef struct row {
    const char *name;
    body f;
    int products, kernels;
} row;

static const row joining[] = {
    {"bias_relu", bias_relu, 0, 1},
    {"two_products", two_products, 0, 2},
    {"three_products", three_products, 1, 2},
    {"scaled", scaled, 0, 1},
    {"to_f64", to_f64, 0, 1},
    {"to_bf16", to_bf16, 0, 1},
    {"to_bool", to_bool, 0, 1},
    {"squared", squared, 0, 1},
    {"in_place", in_place, 0, 1},
    {"addmm_sin", addmm_sin, 0, 1},
    {"linear_gelu", linear_gelu, 0, 1},
    {"writes_input", writes_input, 0, 2}, /* which comes last */
};

static const row apart[] = {
    {"returned", returned, 1, 1},
    {"addmm_alone", addmm_alone, 2, 0}, /* the operator's own: a product, and what follows it */
    {"reduced", reduced, 1, 1},
    {"turned", turned, 1, 1},
    {"flattened", flattened, 1, 1},
    {"broadcast", broadcast, 1, 1},
    {"read_twice", read_twice, 1, 2},
    {"writes_result_to_input", writes_result_to_input, 1, 1},
};

static void check_rows(const row *rows, size_t n) {
    const shape s = {66, 36, 72, DENSE, GEMM_TALL};
    for (size_t i = 0; i < n; i++) {
        int64_t products, kernels;
        check(rows[i].f, &s, ETCH_MODE_DEFAULT, &products, &kernels);
        if (products != rows[i].products || kernels != rows[i].kernels)
            fprintf(stderr, "%s: %d products and %d kernels\n", rows[i].name, (int)products,
                    (int)kernels);
        CHECK(products == rows[i].products && kernels == rows[i].kernels);
        check(rows[i].f, &s, ETCH_MODE_REDUCE_OVERHEAD, NULL, NULL);
    }
}

TEST(what_joins) { check_rows(joining, sizeof joining / sizeof *joining); }
TEST(what_stays_apart) { check_rows(apart, sizeof apart / sizeof *apart); }

/* Two products join where each fills the device; here each is half of it. One alone joins. */
TEST(side_by_side) {
    const shape s = {66, 36, 72, DENSE, GEMM_LOW};
    int64_t products, kernels;
    check(two_products, &s, ETCH_MODE_DEFAULT, &products, &kernels);
    CHECK(products == 2 && kernels == 2);
    check(bias_relu, &s, ETCH_MODE_DEFAULT, &products, &kernels);
    CHECK(products == 0 && kernels == 1);
}

TEST(never) {
    const shape s = {66, 36, 72, DENSE, GEMM_NEVER};
    int64_t products, kernels;
    check(bias_relu, &s, ETCH_MODE_DEFAULT, &products, &kernels);
    CHECK(products == 0 && kernels == 1); /* the library launches its own */
}

/* Sizes of the fixed chain are not this kernel's. */
TEST(small) {
    const shape s = {40, 36, 64, DENSE, GEMM_TALL};
    int64_t products;
    check(bias_relu, &s, ETCH_MODE_DEFAULT, &products, NULL);
    CHECK(products == 1);
}

TEST(written_operands) {
    const shape s = {66, 36, 72, DENSE, GEMM_TALL};
    check(writes_operand, &s, ETCH_MODE_DEFAULT, NULL, NULL);
    check(writes_operand, &s, ETCH_MODE_REDUCE_OVERHEAD, NULL, NULL);
    check(two_results, &s, ETCH_MODE_DEFAULT, NULL, NULL);
}

static void borders(int tile) {
    static const int64_t sizes[][3] = {{64, 32, 128}, {65, 33, 64},  {70, 34, 1},  {96, 40, 200},
                                       {33, 67, 130}, {130, 36, 66}, {64, 64, 512}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const shape s = {sizes[i][0], sizes[i][1], sizes[i][2], DENSE, tile};
        check(two_products, &s, ETCH_MODE_DEFAULT, NULL, NULL);
        check(to_f64, &s, ETCH_MODE_DEFAULT, NULL, NULL);
    }
}

static void layouts(int tile) {
    static const int64_t sizes[][3] = {{65, 33, 64}, {96, 40, 200}, {130, 36, 66}, {128, 64, 128}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int layout = DENSE + 1; layout < LAYOUTS; layout++) {
            const shape s = {sizes[i][0], sizes[i][1], sizes[i][2], layout, tile};
            check(two_products, &s, ETCH_MODE_DEFAULT, NULL, NULL);
        }
}

TEST(borders_of_low_tiles) { borders(GEMM_LOW); }
TEST(borders_of_tall_tiles) { borders(GEMM_TALL); }
TEST(layouts_of_low_tiles) { layouts(GEMM_LOW); }
TEST(layouts_of_tall_tiles) { layouts(GEMM_TALL); }

/* NaN, infinities, denormals, both zeros: what a product passes on. */
TEST(odd_numbers) {
    etch__cuda_gemm_force = GEMM_TALL;
    float odd[6] = {NAN, INFINITY, -INFINITY, 1e-42f, -0.0f, 3e38f};
    operands o = given(5, 66, 36, 72, DENSE);
    etch_tensor *line = etch_from_host(odd, ETCH_F32, ETCH_SHAPE(6));
    for (int i = 0; i < 6; i++) {
        etch_tensor *first = etch_select(o.x, 0, i);
        CHECK(etch_copy_(etch_slice(first, 0, i, i + 6, 1), on_gpu(line)));
    }
    etch_function *f = etch_compile(bias_relu);
    etch_tensor *want = bias_relu(o.x, o.w, o.b);
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(f, o.x, o.w, o.b), want));
    etch_function_free(f);
}

/* A view of memory that begins one element further on. */
static etch_tensor *shifted(etch_tensor *t, int by) {
    int64_t rows = etch_size(t, 0), cols = etch_size(t, 1);
    etch_tensor *room = on_gpu(etch_zeros(ETCH_F32, ETCH_SHAPE(rows * cols + by)));
    etch_tensor *part = etch_slice(room, 0, by, by + rows * cols, 1);
    part = etch_view(part, ETCH_SHAPE(rows, cols));
    CHECK(etch_copy_(part, t));
    return part;
}

TEST(addresses_change) {
    etch__cuda_gemm_force = GEMM_TALL;
    for (int mode = 0; mode < 2; mode++) {
        etch_function *f =
            etch_compile(bias_relu, .mode = mode ? ETCH_MODE_REDUCE_OVERHEAD : ETCH_MODE_DEFAULT);
        for (int i = 0; i < 12; i++)
            ETCH_SCOPE {
                operands o = given((uint64_t)i, 66, 36, 72, DENSE);
                if (i > 3) o.x = shifted(o.x, i % 2), o.w = shifted(o.w, i % 3);
                if (i > 3) o.b = shifted(o.b, i % 5);
                etch_tensor *want = bias_relu(o.x, o.w, o.b);
                CHECK(etch_bitwise_equal(etch_call(f, o.x, o.w, o.b), want));
            }
        CHECK(etch_function_counters(f).graphs == 1);
        etch_function_free(f);
    }
}

/* Of a call that gives these bits. */
static int64_t launches_of(etch_function *f, const operands *o, etch_tensor *want) {
    int64_t before = etch_device_stats(gpu).launches;
    etch_tensor *got = etch_call(f, o->x, o->w, o->b);
    int64_t launches = etch_device_stats(gpu).launches - before;
    CHECK(etch_bitwise_equal(got, want));
    return launches;
}

/* No size needs code that an earlier one did not: products of dynamic graphs stay apart. */
TEST(dynamic_sizes) {
    etch__cuda_gemm_force = GEMM_TALL;
    etch_function *f = etch_compile(bias_relu, .dynamic = ETCH_DYNAMIC_ON);
    for (int i = 0; i < 4; i++) {
        operands o = given((uint64_t)i, 66 + i, 36 + i, 72 + i, DENSE);
        etch_tensor *want = bias_relu(o.x, o.w, o.b);
        int64_t launches = launches_of(f, &o, want);
        if (i > 2) CHECK(launches == 2);
    }
    etch_function_free(f);
}

/* In full precision alone. */
TEST(precision) {
    etch__cuda_gemm_force = GEMM_TALL;
    etch_function *f = etch_compile(bias_relu);
    operands o = given(1, 66, 36, 72, DENSE);
    CHECK(etch_set_matmul_precision(ETCH_HIGH) == ETCH_OK);
    etch_tensor *want = bias_relu(o.x, o.w, o.b);
    for (int i = 0; i < 3; i++) {
        etch_counters_t before = etch_counters();
        int64_t launches = launches_of(f, &o, want);
        if (i) CHECK(launches == 1 && etch_counters().library_calls == before.library_calls + 1);
    }
    CHECK(etch_set_matmul_precision(ETCH_HIGHEST) == ETCH_OK);
    etch_function_free(f);
}

/* Relaxed products of these sizes join as well, in place of the library's
 * epilogues: so the bits stay. */
TEST(relaxed) {
    etch__cuda_gemm_force = GEMM_TALL;
    static const body bodies[] = {bias_relu, squared, to_bf16};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        etch_function *f = etch_compile(bodies[i], .numerics = ETCH_RELAXED);
        operands o = given(i, 66, 36, 72, DENSE);
        o.b = on_gpu(numbers(9, 1, 36));
        etch_tensor *want = bodies[i](o.x, o.w, o.b);
        for (int call = 0; call < 3; call++) {
            int64_t launches = launches_of(f, &o, want);
            if (call > 1) CHECK(launches == 1);
        }
        etch_function_free(f);
    }
}

/* Only what has changed is patched: of two products and their kernel, the pointers. */
TEST(patches) {
    etch__cuda_gemm_force = GEMM_TALL;
    etch_function *f = etch_compile(two_products, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    operands o = given(1, 66, 36, 72, DENSE), p = given(2, 66, 36, 72, DENSE);
    for (int i = 0; i < 4; i++) CHECK(etch_call(f, o.x, o.w, o.b));
    etch_device_stats_t before = etch_device_stats(gpu);
    etch_tensor *kept = etch_call(f, o.x, o.w, o.b), *got = etch_call(f, o.x, p.w, o.b);
    etch_device_stats_t after = etch_device_stats(gpu);
    CHECK(etch_bitwise_equal(got, two_products(o.x, p.w, o.b)));
    CHECK(etch_bitwise_equal(kept, two_products(o.x, o.w, o.b)));
    CHECK(after.graphs == before.graphs && after.graph_launches == before.graph_launches + 2);
    CHECK(after.graph_patches - before.graph_patches <= 4); /* w twice, a new result each */
    etch_function_free(f);
}

/* ---- failing calls, of the fakes only ---- */

static bool program(float *y) {
    bool ok = false;
    ETCH_SCOPE {
        etch_function *f = etch_compile(two_products);
        etch_function *g = etch_compile(bias_relu, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        etch_tensor *x = f && g ? on_gpu(etch_ones(ETCH_F32, ETCH_SHAPE(66, 72))) : NULL;
        etch_tensor *w = x ? on_gpu(etch_ones(ETCH_F32, ETCH_SHAPE(72, 36))) : NULL;
        etch_tensor *all = w ? on_gpu(etch_ones(ETCH_F32, ETCH_SHAPE(66, 36))) : NULL;
        for (int i = 0; all && i < 3; i++) all = etch_call(f, x, w, all);
        for (int i = 0; all && i < 3; i++) all = etch_call(g, x, w, all);
        etch_tensor *part = all ? etch_slice(etch_select(all, 0, 65), 0, 0, 16, 1) : NULL;
        ok = part && etch_to_host(part, y, 16 * sizeof *y) == ETCH_OK;
        etch_function_free(f);
        etch_function_free(g);
    }
    return ok;
}

TEST(each_call_fails_once, .only_on_fakes = true) {
    etch__cuda_gemm_force = GEMM_TALL;
    each_call_fails(program);
}

TEST(each_allocation_fails_once, .only_on_fakes = true) {
    etch__cuda_gemm_force = GEMM_TALL;
    CHECK(each_allocation_fails(program) > 20);
}

/* ---- compiled beside the program ---- */

bool etch__report_begin(const char *dir);
void etch__report_end(void);

typedef struct begun {
    etch_function *f;
    operands o;
    etch_tensor *want;
} begun;

/* After a first call: the kernel with the products is being compiled, and that takes a second. */
static begun begin(etch_mode_kind mode) {
    etch__cuda_gemm_force = GEMM_TALL;
    begun b = {etch_compile(two_products, .mode = mode), given(1, 66, 36, 72, DENSE), NULL};
    CHECK(b.f && (b.want = two_products(b.o.x, b.o.w, b.o.b)));
    gathered(2);
    ETCH_SCOPE { CHECK(etch_bitwise_equal(etch_call(b.f, b.o.x, b.o.w, b.o.b), b.want)); }
    return b;
}

/* Products that a call launches by themselves. */
static int64_t products_of_call(const begun *b) {
    int64_t launches = etch_device_stats(gpu).launches - generated_so_far();
    CHECK(etch_bitwise_equal(etch_call(b->f, b->o.x, b->o.w, b->o.b), b->want));
    return etch_device_stats(gpu).launches - generated_so_far() - launches;
}

TEST(apart_until_compiled, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    begun b = begin(ETCH_MODE_DEFAULT);
    int64_t bytes = etch_device_stats(gpu).bytes_live;
    ETCH_SCOPE { CHECK(products_of_call(&b) == 2); }
    CHECK(etch_device_stats(gpu).bytes_live == bytes); /* such a plan keeps no memory */
    etch__background_wait();
    int64_t compiled = etch_counters().kernels_compiled;
    CHECK(products_of_call(&b) == 0 && products_of_call(&b) == 0);
    CHECK(etch_function_counters(b.f).graphs == 1 && etch_counters().kernels_compiled == compiled);
    etch_function_free(b.f);
    /* Now it is there. */
    b.f = etch_compile(two_products);
    CHECK(etch_call(b.f, b.o.x, b.o.w, b.o.b) && products_of_call(&b) == 0);
    etch_function_free(b.f);
}

static char folder[] = "/tmp/etch-test-XXXXXX";

static void begin_report(void) { CHECK(mkdtemp(folder) && etch__report_begin(folder)); }

static void end_report(void) {
    etch__report_end();
    CHECK(rmdir(folder) == 0);
}

/* The report has both plans, each with its runs. */
TEST(report_has_both, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    begin_report();
    begun b = begin(ETCH_MODE_DEFAULT);
    CHECK(products_of_call(&b) == 2);
    etch__background_wait();
    for (int i = 0; i < 3; i++) CHECK(products_of_call(&b) == 0);
    CHECK(etch__report_ngraphs == 2);
    const report_graph *first = etch__report_graphs[0], *joined = etch__report_graphs[1];
    CHECK(first->provisional && !joined->provisional && joined->next == first);
    CHECK(first->nsteps > joined->nsteps && joined->nsteps == 2);
    CHECK(first->run.count == 1 && joined->run.count == 3);
    etch_function_free(b.f);
    end_report();
}

TEST(one_graph_of_the_device, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    begun b = begin(ETCH_MODE_REDUCE_OVERHEAD);
    CHECK(products_of_call(&b) == 2 && etch_device_stats(gpu).graphs == 0);
    etch__background_wait();
    for (int i = 0; i < 3; i++)
        CHECK(products_of_call(&b) <= 0 && etch_device_stats(gpu).graphs == 1);
    etch_function_free(b.f);
}

TEST(waits_where_told, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    etch__cuda_gemm_force = GEMM_TALL;
    begun b = {etch_compile(two_products, .mode = ETCH_MODE_MAX_AUTOTUNE),
               given(1, 66, 36, 72, DENSE), NULL};
    CHECK((b.want = two_products(b.o.x, b.o.w, b.o.b)));
    CHECK(etch_call(b.f, b.o.x, b.o.w, b.o.b));
    products_of_call(&b); /* layouts are timed */
    CHECK(products_of_call(&b) == 0);
    etch_function_free(b.f);
}

TEST(stays_apart_where_it_fails, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    begin_report();
    begun b = begin(ETCH_MODE_DEFAULT);
    fail_symbol("cuModuleLoadData", 1);
    etch__background_wait();
    CHECK(failed() == 1 && etch__report_ngraphs == 1);
    int64_t compiled = etch_counters().kernels_compiled;
    for (int i = 0; i < 3; i++) CHECK(products_of_call(&b) == 2);
    etch__background_wait();
    CHECK(etch_counters().kernels_compiled == compiled && etch_last_status() == ETCH_OK);
    CHECK(etch_function_counters(b.f).eager_runs == 0);
    etch_function_free(b.f);
    end_report();
}

/* Two segments, each with a product and what follows it in one kernel. */
static etch_tensor *with_break(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *c = two_products(x, w, b);
    if (etch_item(etch_sum(x)) > 1e30) return c;
    return squared(x, w, c);
}

/* No compile of a call waits for the thread. */
TEST(segments_do_not_wait, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    etch__cuda_gemm_force = GEMM_TALL;
    begun b = {etch_compile(with_break), given(1, 66, 36, 72, DENSE), NULL};
    CHECK((b.want = with_break(b.o.x, b.o.w, b.o.b)));
    etch_set_num_threads(1); /* a plan's kernels one by one */
    gathered(2);
    CHECK(etch_bitwise_equal(etch_call(b.f, b.o.x, b.o.w, b.o.b), b.want));
    CHECK(gathered(0) == 2); /* the kernel behind the second product, beside that with the first */
    etch__background_wait();
    CHECK(products_of_call(&b) == 0 && etch_function_counters(b.f).graphs == 2);
    etch_function_free(b.f);
}

TEST(freed_meanwhile, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    begun b = begin(ETCH_MODE_DEFAULT);
    etch_function_free(b.f);
    b = begin(ETCH_MODE_DEFAULT);
    etch_reset(b.f);
    CHECK(etch_bitwise_equal(etch_call(b.f, b.o.x, b.o.w, b.o.b), b.want));
    etch_function_free(b.f);
}

TEST(exits_meanwhile, .setting = "ETCH_COMPILE_BESIDE=1", .only_on_fakes = true) {
    begin(ETCH_MODE_DEFAULT);
    exit(0);
}

int main(int argc, char **argv) { return run_in_children(argc, argv); }
