/* Products of halves that fill a device (backends/cuda/broad.c), alone and with what is computed of
 * them in one kernel (backends/cuda/join.c): on the fakes, whose driver makes no tensor maps, by
 * the kernel that copies element by element; with ETCH_TEST_REAL_GPU=1 by tensor maps as well. The
 * bits are those of the library, and compiled those of eager; which products join and which must
 * not, counted; operands that lie elsewhere in a later call.
 * Labels: driver sanitizer long optimised. */
#include "cuda_child.h"

#include "backends/cuda/broad.h"

#include <math.h>

/* ---- programs: x is ... x k, v and w n x k, b fits x v' ---- */

static etch_tensor *product(etch_tensor *x, etch_tensor *v) { return etch_linear(x, v, ETCH_NONE); }

static etch_tensor *gated(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_mul(etch_silu(product(x, v)), product(x, w));
}

static etch_tensor *added(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    (void)w;
    return etch_add(b, product(x, v));
}

static etch_tensor *to_wide(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    etch_tensor *sum = etch_add(b, product(x, w));
    return etch_mul(etch_to(product(x, v), ETCH_F32), etch_to(sum, ETCH_F32));
}

static etch_tensor *row_added(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    (void)w;
    etch_tensor *row = etch_select(etch_view(b, ETCH_SHAPE(-1, etch_size(v, 0))), 0, 0);
    return etch_gelu(etch_mul(product(x, v), row));
}

/* Of two left operands. */
static etch_tensor *of_two(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    (void)b;
    return etch_mul(product(x, v), product(etch_neg(x), w));
}

static etch_tensor *three(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    return etch_mul(gated(x, v, w, b), product(x, etch_neg(v)));
}

static etch_tensor *alone(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    (void)w, (void)b;
    return product(x, v);
}

static etch_tensor *summed(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    (void)w;
    return etch_sum_dim(etch_mul(product(x, v), b), ETCH_DIMS(-1), false);
}

/* A kernel with products is waited for, not compiled beside the program. */
#define WAITED .setting = "ETCH_COMPILE_BESIDE=0"

/* ---- running them ---- */

typedef etch_tensor *(*body)(etch_tensor *, etch_tensor *, etch_tensor *, etch_tensor *);

typedef struct operands {
    etch_tensor *x, *v, *w, *b;
} operands;

typedef struct shape {
    etch_dtype dtype;
    int64_t batch, m, n, k;
} shape;

static const shape usual = {ETCH_BF16, 1, 150, 96, 512};

static etch_tensor *numbers(uint64_t seed, etch_dtype dtype, etch_shape s) {
    etch_manual_seed(seed);
    etch_tensor *t = etch_randn(ETCH_F32, s);
    CHECK(t && (t = on_gpu(etch_to(t, dtype))));
    return t;
}

static operands given(uint64_t seed, const shape *s) {
    operands o = {numbers(seed, s->dtype, ETCH_SHAPE(s->batch, s->m, s->k)),
                  numbers(seed + 1, s->dtype, ETCH_SHAPE(s->n, s->k)),
                  numbers(seed + 2, s->dtype, ETCH_SHAPE(s->n, s->k)),
                  numbers(seed + 3, s->dtype, ETCH_SHAPE(s->batch, s->m, s->n))};
    if (s->batch == 1) o.x = etch_select(o.x, 0, 0), o.b = etch_select(o.b, 0, 0);
    return o;
}

static etch_tensor *of(body f, const operands *o) {
    etch_tensor *y = f(o->x, o->v, o->w, o->b);
    CHECK(y);
    return y;
}

/* Eager, then three calls with other operands each; of the last call: launches of products alone,
 * and of generated kernels. */
static void check(body f, const shape *s, etch_mode_kind mode, int64_t *products,
                  int64_t *kernels) {
    etch_function *compiled = etch_compile(f, .mode = mode);
    CHECK(compiled);
    for (int i = 0; i < 3; i++)
        ETCH_SCOPE {
            operands o = given((uint64_t)i, s);
            etch_tensor *want = of(f, &o);
            int64_t launches = etch_device_stats(gpu).launches;
            int64_t generated = etch_counters().kernel_launches;
            etch_tensor *got = etch_call(compiled, o.x, o.v, o.w, o.b);
            generated = etch_counters().kernel_launches - generated;
            launches = etch_device_stats(gpu).launches - launches;
            CHECK(etch_bitwise_equal(got, want));
            if (products) *products = launches - generated, *kernels = generated;
        }
    etch_function_free(compiled);
}

/* ---- bits ---- */

static const shape shapes[] = {{ETCH_BF16, 1, 256, 256, 512},
                               {ETCH_F16, 1, 130, 96, 576},
                               {ETCH_BF16, 1, 1, 32, 512},
                               {ETCH_F16, 1, 300, 288, 640}};

/* The fakes' library has an order of its own. */
TEST(bits_of_the_library) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        operands o = given(i, &shapes[i]);
        etch__cuda_broad_force = BROAD_NEVER;
        etch_tensor *want = of(alone, &o);
        etch__cuda_broad_force = BROAD_ALWAYS;
        int64_t before = etch_device_stats(gpu).launches;
        etch_tensor *got = of(alone, &o);
        CHECK(etch_device_stats(gpu).launches == before + 1);
        CHECK(on_real_gpu() ? etch_bitwise_equal(got, want)
                            : etch_allclose(got, want, 1e-2, 1e-2, false));
    }
}

TEST(joined_shapes, WAITED) {
    etch__cuda_broad_force = BROAD_ALWAYS;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check(gated, &shapes[i], ETCH_MODE_DEFAULT, NULL, NULL);
        check(i % 2 ? row_added : to_wide, &shapes[i], ETCH_MODE_REDUCE_OVERHEAD, NULL, NULL);
    }
}

/* NaN, infinities, denormals, both zeros: what a product passes on. */
TEST(odd_numbers, WAITED) {
    etch__cuda_broad_force = BROAD_ALWAYS;
    float odd[6] = {NAN, INFINITY, -INFINITY, 1e-39f, -0.0f, 3e38f};
    operands o = given(5, &usual);
    etch_tensor *line = on_gpu(etch_from_host(odd, ETCH_F32, ETCH_SHAPE(6)));
    for (int i = 0; i < 6; i++)
        CHECK(etch_copy_(etch_slice(etch_select(o.x, 0, i), 0, i, i + 6, 1), line));
    etch_function *f = etch_compile(gated);
    etch_tensor *want = of(gated, &o);
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(f, o.x, o.v, o.w, o.b), want));
    etch_function_free(f);
}

/* ---- what joins ---- */

typedef struct row {
    const char *name;
    body f;
    int products, kernels;
} row;

static const row rows[] = {{"gated", gated, 0, 1},     {"row_added", row_added, 0, 1},
                           {"to_wide", to_wide, 0, 1}, {"added", added, 1, 1},
                           {"of_two", of_two, 2, 2},   {"three", three, 1, 2},
                           {"alone", alone, 1, 0},     {"summed", summed, 1, 1}};

static void check_rows(const shape *s, int n) {
    etch__cuda_broad_force = BROAD_ALWAYS;
    for (int i = 0; i < n; i++) {
        int64_t products, kernels;
        check(rows[i].f, s, ETCH_MODE_DEFAULT, &products, &kernels);
        if (products != rows[i].products || kernels != rows[i].kernels)
            fprintf(stderr, "%s: %d products and %d kernels\n", rows[i].name, (int)products,
                    (int)kernels);
        CHECK(products == rows[i].products && kernels == rows[i].kernels);
    }
}

TEST(what_joins, WAITED) { check_rows(&usual, sizeof rows / sizeof *rows); }

/* Rows of several axes. */
TEST(batches, WAITED) {
    const shape s = {ETCH_BF16, 3, 50, 64, 512};
    check_rows(&s, 3);
}

/* The library launches its own. */
static void stays_apart(const shape *s) {
    operands o = given(1, s);
    int64_t before = etch_device_stats(gpu).launches, products, kernels;
    CHECK(of(alone, &o) && etch_device_stats(gpu).launches == before);
    check(row_added, s, ETCH_MODE_DEFAULT, &products, &kernels);
    CHECK(products == 0 && kernels == 1);
}

/* Sizes that the kernel does not have. */
TEST(other_sizes, WAITED) {
    static const shape others[] = {{ETCH_BF16, 1, 150, 150, 512},
                                   {ETCH_BF16, 1, 150, 160, 448},
                                   {ETCH_BF16, 1, 150, 160, 520},
                                   {ETCH_F32, 1, 150, 160, 2048}};
    etch__cuda_broad_force = BROAD_ALWAYS;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) stays_apart(&others[i]);
}

/* Not every axis of rows is one with the next: the kernel has three axes. */
static etch_tensor *part_of(etch_tensor *x, etch_tensor *v, etch_tensor *w, etch_tensor *b) {
    etch_tensor *part = etch_slice(b, 1, 0, etch_size(x, 1), 1);
    return etch_mul(etch_add(product(x, v), part), product(x, w));
}

TEST(rows_with_gaps, WAITED) {
    etch__cuda_broad_force = BROAD_ALWAYS;
    const shape s = {ETCH_BF16, 3, 50, 64, 512}, longer = {ETCH_BF16, 3, 60, 64, 512};
    operands o = given(1, &s), p = given(2, &longer);
    etch_function *f = etch_compile(part_of);
    etch_tensor *want = part_of(o.x, o.v, o.w, p.b);
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(f, o.x, o.v, o.w, p.b), want));
    etch_function_free(f);
}

/* ---- where operands lie ---- */

/* The same elements, `by` further on in memory, rows `gap` further apart. */
static etch_tensor *shifted(etch_tensor *t, int64_t by, int64_t gap) {
    int64_t r = etch_size(t, 0), c = etch_size(t, 1);
    etch_tensor *room = on_gpu(etch_zeros(etch_dtype_of(t), ETCH_SHAPE(r * (c + gap) + by)));
    etch_tensor *part = etch_slice(room, 0, by, by + r * (c + gap), 1);
    part = etch_slice(etch_view(part, ETCH_SHAPE(r, c + gap)), 1, 0, c, 1);
    CHECK(etch_copy_(part, t));
    return part;
}

static void check_moved(etch_mode_kind mode, int64_t gap) {
    static const int64_t by[][4] = {{0, 0, 0, 0}, {8, 16, 0, 8}, {1, 0, 0, 0},
                                    {0, 3, 8, 0}, {0, 0, 0, 2},  {8, 8, 8, 8}};
    etch_function *f = etch_compile(to_wide, .mode = mode);
    for (size_t i = 0; i < sizeof by / sizeof *by; i++)
        ETCH_SCOPE {
            operands o = given(i, &usual);
            o.x = shifted(o.x, by[i][0], gap), o.v = shifted(o.v, by[i][1], gap);
            o.w = shifted(o.w, by[i][2], gap), o.b = shifted(o.b, by[i][3], 0);
            etch_tensor *want = of(to_wide, &o);
            CHECK(etch_bitwise_equal(etch_call(f, o.x, o.v, o.w, o.b), want));
        }
    CHECK(etch_function_counters(f).graphs == 1);
    etch_function_free(f);
}

TEST(addresses_change, WAITED) {
    etch__cuda_broad_force = BROAD_ALWAYS;
    check_moved(ETCH_MODE_DEFAULT, 8);
    check_moved(ETCH_MODE_REDUCE_OVERHEAD, 0);
    check_moved(ETCH_MODE_DEFAULT, 4); /* rows at multiples of 8 bytes are the library's */
}

/* An operand that is dense along the other axis is the library's. */
TEST(other_layouts, WAITED) {
    etch__cuda_broad_force = BROAD_ALWAYS;
    operands o = given(1, &usual), p = o;
    p.v = etch_t(etch_contiguous(etch_t(o.v)));
    int64_t before = etch_device_stats(gpu).operand_copies;
    int64_t launches = etch_device_stats(gpu).launches;
    CHECK(of(alone, &p) && etch_device_stats(gpu).operand_copies == before);
    CHECK(etch_device_stats(gpu).launches == launches);
}

/* By the rule, of this device: none on one that makes no tensor maps. */
TEST(by_rule, .only_on_fakes = true) {
    const shape s = {ETCH_BF16, 1, 512, 512, 512};
    stays_apart(&s);
}

int main(int argc, char **argv) { return run_in_children(argc, argv); }
