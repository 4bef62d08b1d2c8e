/* The CUDA backend on the fakes of fake_cuda/: devices, copies, tensors of a device inside compiled
 * functions, CUDA graphs, and what happens when a call of the driver fails. Each test is a child
 * process: see cuda_child.h.
 * Labels: long. */
#include "cuda_child.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

static etch_tensor *ramp(int64_t n) { return etch_arange(ETCH_F32, 0, (double)n, 1); }

/* ---- devices ---- */

TEST(hidden, .setting = "ETCH_CUDA=0") {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "ETCH_CUDA=0"));
    CHECK(etch_set_device(gpu) == ETCH_ERR_DEVICE);
    CHECK(says(etch_last_error(), "cuda:0") && says(etch_last_error(), "ETCH_CUDA=0"));
    CHECK(etch_current_device() == ETCH_CPU);
    CHECK(!on_gpu(ramp(3)));
    etch_clear_error();
    CHECK(etch_item(etch_sum(ramp(4))) == 6);
}

TEST(not_found, .setting = "ETCH_CUDA_DRIVER=/no/such/libcuda.so") {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "driver was not found"));
}

/* A library that is there but has not what is called: another one in the driver's place. */
TEST(too_old, .setting = "ETCH_CUDA_DRIVER=libm.so.6") {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "the CUDA driver is too old: it has no cuInit"));
}

/* Tensors can be copied there, and what needs code says why there is none. */
TEST(without_a_compiler, .setting = "ETCH_CUDA_NVRTC=/no/such/libnvrtc.so") {
    CHECK(etch_cuda_count() == 2);
    etch_tensor *there = on_gpu(ramp(7));
    CHECK(there && etch_bitwise_equal(etch_to_device(there, ETCH_CPU), ramp(7)));
    CHECK(!etch_sin(there) && etch_last_status() == ETCH_ERR_COMPILE);
    CHECK(says(etch_last_error(), "sin: its kernel for cuda:0 does not build"));
    CHECK(says(etch_last_error(), "NVRTC was not found"));
    CHECK(says(etch_last_error(), "ETCH_CUDA_NVRTC"));
}

TEST(old_version, .setting = "FAKE_CUDA_VERSION=11040") {
    CHECK(etch_cuda_count() == 0);
    CHECK(says(etch_cuda_absent(), "too old") && says(etch_cuda_absent(), "11.4"));
}

TEST(no_devices, .setting = "FAKE_CUDA_DEVICES=0") {
    CHECK(etch_cuda_count() == 0);
    CHECK(*etch_cuda_absent());
    CHECK(etch_set_device(gpu) == ETCH_ERR_DEVICE);
}

TEST(numbers_that_do_not_exist) {
    static const etch_device wrong[] = {ETCH_CUDA(2), ETCH_CUDA(31), ETCH_CUDA(63), 1000, -1, -100};
    CHECK(etch_cuda_count() == 2 && !*etch_cuda_absent());
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        etch_clear_error();
        CHECK(etch_set_device(wrong[i]) == ETCH_ERR_DEVICE);
        CHECK(says(etch_last_error(), "cuda:1"));
        CHECK(!etch_to_device(ramp(2), wrong[i]) && etch_last_status() == ETCH_ERR_DEVICE);
        CHECK(etch_synchronize(wrong[i]) == ETCH_ERR_DEVICE);
        CHECK(etch_device_trim(wrong[i]) == ETCH_ERR_DEVICE);
        CHECK(etch_device_stats(wrong[i]).launches == 0);
    }
    CHECK(etch_current_device() == ETCH_CPU);
}

TEST(names_of_devices) {
    static const char *const wrong[] = {"",        "cud",     "cuda:",
                                        "cuda: 1", "cuda:+1", "cuda:-0",
                                        "cuda:1 ", "cuda:x",  "cuda:99999999999999999999"};
    CHECK(etch_device_parse("cpu") == ETCH_CPU && etch_device_parse("cuda") == gpu);
    CHECK(etch_device_parse("cuda:0") == gpu && etch_device_parse("cuda:31") == ETCH_CUDA(31));
    CHECK(etch_device_parse(NULL) == -1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        etch_clear_error();
        CHECK(etch_device_parse(wrong[i]) == -1 && etch_last_status() == ETCH_ERR_NOT_FOUND);
    }
}

TEST(mixed_devices) {
    etch_tensor *a = ramp(4), *b = on_gpu(a), *c = etch_to_device(a, ETCH_CUDA(1));
    CHECK(b && c && !etch_add(a, b) && etch_last_status() == ETCH_ERR_DEVICE);
    CHECK(says(etch_last_error(), "cpu") && says(etch_last_error(), "cuda:0"));
    etch_clear_error();
    CHECK(!etch_mul(b, c));
    CHECK(says(etch_last_error(), "cuda:1") && says(etch_last_error(), "cuda:0"));
    etch_clear_error();
    CHECK(!etch_add_(b, a) && etch_last_status() == ETCH_ERR_DEVICE);
    CHECK(etch_bitwise_equal(etch_to_device(b, ETCH_CPU), a));
}

/* ---- copies and reads ---- */

static void goes_and_returns(etch_tensor *t) {
    CHECK(t);
    for (etch_device d = gpu; d <= ETCH_CUDA(1); d++) {
        etch_tensor *there = etch_to_device(t, d);
        CHECK(there && etch_device_of(there) == d);
        CHECK(etch_bitwise_equal(there, t));
        etch_tensor *other = etch_to_device(there, d == gpu ? ETCH_CUDA(1) : gpu);
        CHECK(other && etch_bitwise_equal(other, there));
        etch_tensor *back = etch_to_device(other, ETCH_CPU);
        CHECK(back && etch_device_of(back) == ETCH_CPU && etch_bitwise_equal(back, t));
    }
}

/* The same view of a tensor there and here. */
static void views_return(etch_tensor *(*view)(etch_tensor *t)) {
    etch_tensor *t = etch_view(ramp(24), ETCH_SHAPE(4, 6));
    goes_and_returns(view(t));
    etch_tensor *there = view(on_gpu(t));
    CHECK(there && etch_bitwise_equal(there, view(t)));
    CHECK(etch_bitwise_equal(etch_to_device(there, ETCH_CPU), view(t)));
}

static etch_tensor *backwards(etch_tensor *t) {
    return etch_slice(etch_transpose(t, 0, 1), 0, ETCH_ABSENT, ETCH_ABSENT, -2);
}
static etch_tensor *at_an_offset(etch_tensor *t) { return etch_slice(t, 0, 1, 3, 1); }
static etch_tensor *one(etch_tensor *t) { return etch_select(etch_select(t, 0, 2), 0, 3); }
static etch_tensor *expanded(etch_tensor *t) {
    return etch_expand(etch_slice(t, 0, 2, 3, 1), ETCH_SHAPE(5, 6));
}
static etch_tensor *nothing(etch_tensor *t) { return etch_slice(t, 1, 3, 3, 1); }

TEST(to_device_and_back) {
    views_return(backwards);
    views_return(at_an_offset);
    views_return(one);
    views_return(expanded);
    views_return(nothing);
    goes_and_returns(etch_zeros(ETCH_BOOL, ETCH_SHAPE(0)));
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) goes_and_returns(etch_to(ramp(7), d));
}

TEST(host_reads) {
    etch_tensor *a = etch_view(ramp(6), ETCH_SHAPE(2, 3)), *b = on_gpu(a);
    char here[256], there[256], path[] = "/tmp/etch-cuda-XXXXXX.npy";
    float x[6];
    CHECK(etch_item(one(on_gpu(etch_view(ramp(24), ETCH_SHAPE(4, 6))))) == 15);
    CHECK(etch_item_int(etch_sum(b)) == 15);
    etch_format(a, here, sizeof here);
    etch_format(b, there, sizeof there);
    CHECK(!strcmp(here, there) || says(there, "cuda:0"));
    CHECK(etch_to_host(etch_transpose(b, 0, 1), x, sizeof x) == ETCH_OK && x[1] == 3 && x[2] == 1);
    CHECK(etch_equal(a, b) && etch_allclose(b, a, 0, 0, false) && !etch_equal(b, etch_neg(b)));
    CHECK(close(mkstemps(path, 4)) == 0 && etch_npy_save(path, b) == ETCH_OK);
    ETCH_ON(gpu) {
        etch_tensor *loaded = etch_npy_load(path);
        CHECK(loaded && etch_device_of(loaded) == gpu && etch_bitwise_equal(loaded, a));
    }
    remove(path);
}

/* ---- the current device ---- */

static void inside_another(void) { ETCH_ON(ETCH_CPU) CHECK(etch_device_of(ramp(2)) == ETCH_CPU); }

TEST(current_device) {
    float x[2] = {1, 2};
    ETCH_ON(gpu) {
        CHECK(etch_current_device() == gpu);
        CHECK(etch_device_of(etch_zeros(ETCH_F32, ETCH_SHAPE(2))) == gpu);
        CHECK(etch_device_of(etch_from_host(x, ETCH_F32, ETCH_SHAPE(2))) == gpu);
        etch_tensor *empty = etch_from_host(x, ETCH_F32, ETCH_SHAPE(0, 2));
        CHECK(etch_device_of(empty) == gpu);
        CHECK(etch_add(empty, etch_ones(ETCH_F32, ETCH_SHAPE(2))));
        inside_another();
        CHECK(etch_current_device() == gpu);
    }
    CHECK(etch_current_device() == ETCH_CPU);
    etch_manual_seed(7);
    etch_tensor *here = etch_rand(ETCH_F32, ETCH_SHAPE(9));
    etch_manual_seed(7);
    ETCH_ON(gpu) CHECK(etch_bitwise_equal(etch_rand(ETCH_F32, ETCH_SHAPE(9)), here));
}

static etch_tensor *adds_a_new_one(etch_tensor *x) {
    etch_tensor *y = etch_full(ETCH_F32, ETCH_SHAPE(5), 2);
    return etch_add(x, y);
}

static etch_tensor *switches_inside(etch_tensor *x) {
    etch_tensor *y = NULL;
    ETCH_ON(gpu) y = etch_mul_scalar(etch_ones(ETCH_F32, ETCH_SHAPE(5)), 3);
    return etch_add(etch_relu(x), y);
}

/* Called where the argument lies, then where it does not: an error of the body, as eager has it. */
TEST(creation_inside_compiled) {
    etch_function *f = etch_compile(adds_a_new_one), *g = etch_compile(switches_inside);
    etch_tensor *x = ramp(5), *there = on_gpu(x);
    for (int i = 0; i < 3; i++) {
        CHECK(etch_bitwise_equal(etch_call(f, x), adds_a_new_one(x)));
        ETCH_ON(gpu) {
            etch_tensor *y = etch_call(f, there);
            CHECK(y && etch_device_of(y) == gpu && etch_bitwise_equal(y, adds_a_new_one(there)));
        }
        CHECK(!etch_call(f, there) && etch_last_status() == ETCH_ERR_DEVICE);
        etch_clear_error();
        CHECK(etch_bitwise_equal(etch_call(g, there), switches_inside(there)));
        CHECK(etch_current_device() == ETCH_CPU);
    }
    CHECK(etch_function_counters(g).plan_runs > 0);
    etch_function_free(f);
    etch_function_free(g);
}

/* ---- compiled functions ---- */

static etch_tensor *chain(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_mm(x, w);
    etch_tensor *b = etch_relu(etch_add(a, x));
    return etch_sub(b, etch_mean_dim(b, ETCH_DIMS(1), true));
}

static etch_tensor *square_on(etch_device d, int64_t n, double shift) {
    etch_tensor *line = etch_arange(ETCH_F32, shift, shift + (double)(n * n), 1);
    return etch_to_device(etch_div_scalar(etch_view(line, ETCH_SHAPE(n, n)), 7), d);
}

TEST(guards_on_device) {
    char text[8192];
    etch_function *f = etch_compile(chain);
    for (int i = 0; i < 2; i++)
        for (etch_device d = ETCH_CPU; d <= ETCH_CUDA(1); d++) {
            etch_tensor *x = square_on(d, 6, i), *w = square_on(d, 6, 3);
            etch_tensor *y = etch_call(f, x, w);
            CHECK(y && etch_device_of(y) == d && etch_bitwise_equal(y, chain(x, w)));
        }
    CHECK(etch_function_counters(f).graphs == 3);
    CHECK(etch_function_counters(f).plan_runs == 3);
    etch_explain_text(f, text, sizeof text);
    CHECK(says(text, "guards: tensor 0: f32[6, 6]; tensor 1: f32[6, 6]; state: "));
    CHECK(says(text, "guards: tensor 0: f32[6, 6] on cuda:0; tensor 1: f32[6, 6] on cuda:0; "));
    CHECK(says(text, "guards: tensor 0: f32[6, 6] on cuda:1; tensor 1: f32[6, 6] on cuda:1; "));
    CHECK(says(text, "guard_failed: an argument does not fit the guards of any trace: tensor 0: "
                     "device mismatch: expected cpu, got cuda:0\n"));
    CHECK(says(text, "tensor 0: device mismatch: expected cuda:0, got cuda:1\n"));
    etch_function_free(f);
}

static etch_tensor *copies_inside(etch_tensor *x) {
    etch_tensor *y = etch_relu(etch_add_scalar(x, 1));
    etch_tensor *z = etch_to_device(y, ETCH_CPU);
    return etch_mul_scalar(etch_neg(z), 2);
}

TEST(copy_is_a_break) {
    etch_function *f = etch_compile(copies_inside);
    etch_function *whole = etch_compile(copies_inside, .fullgraph = true);
    etch_tensor *x = on_gpu(ramp(5));
    for (int i = 0; i < 3; i++) {
        etch_tensor *y = etch_call(f, x);
        CHECK(y && etch_device_of(y) == ETCH_CPU && etch_bitwise_equal(y, copies_inside(x)));
    }
    CHECK(etch_function_counters(f).graphs == 2 && etch_function_counters(f).plan_runs == 4);
    CHECK(!etch_call(whole, x) && etch_last_status() == ETCH_ERR_GRAPH_BREAK);
    etch_function_free(f);
    etch_function_free(whole);
}

static etch_tensor *two_devices(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = etch_mul_scalar(y, 2);
    return etch_add(etch_sum(a), etch_to_device(etch_sum(b), etch_device_of(x)));
}

TEST(mixed_segment) {
    etch_function *f = etch_compile(two_devices);
    etch_tensor *x = ramp(5), *y = on_gpu(ramp(4));
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(etch_call(f, x, y), two_devices(x, y)));
    CHECK(etch_counters().compile_failures == 0);
    etch_function_free(f);
}

/* ---- CUDA graphs ---- */

static double factor = 2;

/* A product of the library and one kernel: %3 = x w, then the rest, which reads x as well. */
static etch_tensor *chain_and_factor(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_mm(x, w);
    etch_tensor *b = etch_relu(etch_add(a, x));
    return etch_mul_scalar(b, factor);
}

static uintptr_t place(etch_tensor *t) { return (uintptr_t)etch_data(t); }

typedef struct graph_call {
    etch_tensor *x, *w;
    uintptr_t y; /* where the result lay */
    double factor;
} graph_call;

/* Words that differ between two calls of chain_and_factor: x is an argument of the product, which
 * is recorded anew for any address, and of the kernel; w of the product only. */
static int64_t words_changed(const graph_call *a, const graph_call *b) {
    bool x = place(a->x) != place(b->x), w = place(a->w) != place(b->w);
    return (x || w) + x + (a->y != b->y) + (a->factor != b->factor);
}

static graph_call call_and_compare(etch_function *f, etch_tensor *x, etch_tensor *w,
                                   etch_tensor *expected, bool keep) {
    graph_call c = {x, w, 0, factor};
    int64_t scope = etch_scope_begin();
    etch_tensor *y = etch_call(f, x, w);
    CHECK(y && etch_bitwise_equal(y, expected));
    c.y = place(y);
    if (keep) etch_keep(y);
    etch_scope_end(scope);
    return c;
}

/* One graph; before each launch exactly the words that differ are patched. */
TEST(reduce_overhead) {
    enum { N = 100 };
    static const struct {
        int x, w;
        double factor;
        bool keep; /* else the next result may lie where this one lay */
    } calls[] = {{0, 0, 2, true},  {0, 0, 2, true},  {1, 0, 2, true},  {1, 0, 2, false},
                 {1, 0, 2, false}, {1, 0, 2, false}, {1, 0, 3, false}, {0, 1, 3, true},
                 {0, 0, 2, false}, {1, 1, 1, true}};
    enum { CALLS = sizeof calls / sizeof *calls };
    etch_function *f = etch_compile(chain_and_factor, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *x[2] = {square_on(gpu, N, 0), square_on(gpu, N, 1)};
    etch_tensor *w[2] = {square_on(gpu, N, 2), square_on(gpu, N, 3)};
    etch_tensor *expected[CALLS];
    graph_call before = {0};
    int64_t none = 0, patches = 0;
    for (int i = 0; i < CALLS; i++)
        factor = calls[i].factor, expected[i] = chain_and_factor(x[calls[i].x], w[calls[i].w]);
    for (int i = 0; i < CALLS; i++) {
        factor = calls[i].factor;
        graph_call now =
            call_and_compare(f, x[calls[i].x], w[calls[i].w], expected[i], calls[i].keep);
        int64_t changed = i > 1 ? words_changed(&before, &now) : 0; /* recorded, built */
        etch_device_stats_t s = etch_device_stats(gpu);
        CHECK(s.graph_patches == patches + changed);
        CHECK(s.graphs == (i > 0) && s.graph_launches == i && s.operand_copies == 0);
        none += i > 1 && changed == 0;
        patches = s.graph_patches, before = now;
    }
    CHECK(none > 0 && patches > 5);
    CHECK(etch_function_counters(f).graphs == 1);
    CHECK(etch_function_counters(f).plan_runs == CALLS - 1);
    etch_function_free(f);
}

/* Results of earlier calls stay what they were. */
TEST(graph_results_stay) {
    etch_function *f = etch_compile(chain, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *w = square_on(gpu, 70, 3), *results[4], *expected[4];
    for (int i = 0; i < 4; i++) {
        etch_tensor *x = square_on(gpu, 70, i);
        expected[i] = chain(x, w);
        results[i] = etch_call(f, x, w);
        CHECK(results[i]);
    }
    etch_device_stats_t s = etch_device_stats(gpu);
    CHECK(s.graphs == 1 && s.graph_launches == 3 && s.operand_copies == 0);
    for (int i = 0; i < 4; i++) CHECK(etch_bitwise_equal(results[i], expected[i]));
    etch_function_free(f);
}

/* More steps than a word has bits, which read and write tensors of the user's in an order that
 * counts. */
enum { MANY_ROUNDS = 90, MANY_WRITTEN = 3 };
static etch_tensor *written_by_many[MANY_WRITTEN];

static etch_tensor *many_steps(etch_tensor *x, etch_tensor *w) {
    etch_tensor *row = etch_select(x, 0, 0);
    for (int i = 0; i < MANY_ROUNDS; i++) {
        x = etch_sin(etch_mm(x, w));
        if (i % 20 == 7) etch_add_(written_by_many[i % MANY_WRITTEN], x);
        if (i % 20 == 13) x = etch_add(x, written_by_many[(i + 1) % MANY_WRITTEN]);
        if (i == MANY_ROUNDS / 2) etch_mul_(written_by_many[0], row);
    }
    return x;
}

static void begin_written(int call) {
    for (int i = 0; i < MANY_WRITTEN; i++) written_by_many[i] = square_on(gpu, 70, i + call);
}

TEST(graph_of_many_steps) {
    etch_function *f = etch_compile(many_steps, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *w = square_on(gpu, 70, 3), *expected[MANY_WRITTEN + 1];
    etch_tensor *own[MANY_WRITTEN];
    begin_written(0);
    memcpy(own, written_by_many, sizeof own);
    for (int call = 0; call < 4; call++) {
        etch_tensor *x = square_on(gpu, 70, call);
        begin_written(call);
        expected[MANY_WRITTEN] = many_steps(x, w);
        memcpy(expected, written_by_many, sizeof own);
        begin_written(call);
        for (int i = 0; i < MANY_WRITTEN; i++) etch_copy_(own[i], written_by_many[i]);
        memcpy(written_by_many, own, sizeof own);
        CHECK(etch_bitwise_equal(etch_call(f, x, w), expected[MANY_WRITTEN]));
        for (int i = 0; i < MANY_WRITTEN; i++) CHECK(etch_bitwise_equal(own[i], expected[i]));
    }
    etch_device_stats_t s = etch_device_stats(gpu);
    CHECK(s.graphs == 1 && s.graph_launches == 3);
    etch_function_free(f);
}

/* The library's products of halves clear memory that they count in: in a graph that waits for
 * nothing, also where they are recorded again. Without it they give no result (fake_cuda). */
static etch_tensor *two_products(etch_tensor *x, etch_tensor *w) {
    return etch_mm(etch_relu(etch_mm(x, w)), w);
}

TEST(calls_clear_early, .setting = "FAKE_CUDA_LAZY=1") {
    enum { N = 72, CALLS = 5 };
    etch_function *f = etch_compile(two_products, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *w = etch_to(square_on(gpu, N, 3), ETCH_BF16);
    unsigned long added = 0, set = 0;
    for (int i = 0; i < CALLS; i++) {
        etch_tensor *x = etch_to(square_on(gpu, N, i % 2), ETCH_BF16);
        etch_tensor *expected = two_products(x, w);
        unsigned long adds = calls_of("cuGraphAddMemsetNode"), copies = calls_of("cuMemsetD8Async");
        for (int again = 0; again < 2; again++) {
            etch_tensor *y = etch_call(f, x, w);
            CHECK(y && etch_bitwise_equal(y, expected));
        }
        CHECK(calls_of("cuMemsetD8Async") > copies); /* else the fake asks for nothing */
        added += calls_of("cuGraphAddMemsetNode") - adds;
    }
    set = calls_of("cuGraphExecMemsetNodeSetParams");
    CHECK(added == 2 && set >= 2);
    CHECK(etch_device_stats(gpu).graphs == 1);
    etch_function_free(f);
}

/* All in one kernel needs no graph: one launch a call, nothing else. */
TEST(small_plan_is_one_launch) {
    etch_function *f = etch_compile(chain, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *x = square_on(gpu, 6, 1), *w = square_on(gpu, 6, 3), *expected = chain(x, w);
    CHECK(etch_bitwise_equal(etch_call(f, x, w), expected));
    for (int i = 0; i < 3; i++) {
        int64_t before = etch_device_stats(gpu).launches;
        etch_tensor *y = etch_call(f, x, w);
        CHECK(y && etch_device_stats(gpu).launches == before + 1);
        CHECK(etch_bitwise_equal(y, expected));
    }
    CHECK(etch_device_stats(gpu).graphs == 0 && etch_function_counters(f).plan_runs == 3);
    etch_function_free(f);
}

/* ---- compiles at once ---- */

/* Four kernels, the last of two parts. */
static etch_tensor *several(etch_tensor *x) {
    etch_tensor *columns = etch_sum_dim(etch_mul_scalar(x, 2), ETCH_DIMS(0), false);
    etch_tensor *rows = etch_sum_dim(etch_abs(x), ETCH_DIMS(1), false);
    return etch_add(etch_add(etch_sum(columns), etch_amax(rows, ETCH_DIMS(0), false)),
                    etch_sum(etch_mul(x, x)));
}

static etch_tensor *of_several(void) {
    return on_gpu(etch_view(etch_remainder_scalar(ramp(300 * 200), 7), ETCH_SHAPE(300, 200)));
}

/* The kernels of a plan are compiled by as many threads as the program allows. */
TEST(kernels_at_once) {
    etch_tensor *x = of_several(), *expected = several(x);
    for (int threads = 3; threads >= 1; threads -= 2) {
        etch_set_num_threads(threads);
        etch_function *f = etch_compile(several);
        int64_t before = etch_counters().kernels_compiled;
        gathered(threads);
        CHECK(etch_bitwise_equal(etch_call(f, x), expected));
        CHECK(gathered(0) == (threads > 1 ? 3 : 0));
        /* The second time they are in memory. */
        CHECK((etch_counters().kernels_compiled > before + 2) == (threads > 1));
        CHECK(etch_bitwise_equal(etch_call(f, x), expected));
        etch_function_free(f);
    }
}

TEST(one_at_a_time) {
    etch_tensor *x = of_several(), *expected = several(x);
    etch_set_num_threads(1);
    etch_function *f = etch_compile(several);
    gathered(0);
    CHECK(etch_bitwise_equal(etch_call(f, x), expected) && gathered(0) == 1);
    etch_function_free(f);
}

/* What one of the threads could not compile is tried again by the caller. */
TEST(one_of_several_fails) {
    etch_tensor *x = of_several(), *expected = several(x);
    etch_set_num_threads(3);
    etch_function *f = etch_compile(several);
    fail_symbol("nvrtcCompileProgram", 2);
    CHECK(etch_bitwise_equal(etch_call(f, x), expected) && failed() == 1);
    CHECK(etch_bitwise_equal(etch_call(f, x), expected));
    CHECK(etch_last_status() == ETCH_OK && etch_function_counters(f).plan_runs == 1);
    etch_function_free(f);
}

static pthread_barrier_t together;

static void *calls_several(void *x) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(several);
        pthread_barrier_wait(&together);
        etch_tensor *y = etch_call(f, x);
        CHECK(y && etch_bitwise_equal(y, several(x)));
        etch_function_free(f);
    }
    return NULL;
}

/* Two threads that want the same code: one compiles it. */
TEST(same_kernels_in_two_threads) {
    etch_tensor *x = of_several();
    CHECK(several(x));
    int64_t before = etch_counters().kernels_compiled;
    pthread_t t[2];
    pthread_barrier_init(&together, NULL, 2);
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&t[i], NULL, calls_several, x));
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    int64_t both = etch_counters().kernels_compiled - before;
    etch_function *f = etch_compile(several);
    CHECK(etch_call(f, x) && etch_call(f, x));
    CHECK(etch_counters().kernels_compiled == before + both && both <= 5 && both > 2);
    etch_function_free(f);
}

static etch_tensor *of_sink;

static void computes(void *ctx, const char *line) {
    (void)line;
    if (!of_sink) of_sink = ctx, of_sink = etch_retain(etch_neg(ctx));
}

/* The kernel that is being compiled is what the sink asks for. */
TEST(log_sink_that_computes) {
    etch_tensor *x = on_gpu(ramp(5));
    CHECK(etch_set_logs("cache") == ETCH_OK);
    etch_set_log_sink(computes, x);
    etch_tensor *y = etch_neg(x);
    etch_set_log_sink(NULL, NULL);
    CHECK(y && of_sink && of_sink != x && etch_bitwise_equal(y, of_sink));
    CHECK(etch_counters().kernels_compiled == 2 && etch_neg(x));
    CHECK(etch_counters().kernels_compiled == 2);
    etch_release(of_sink);
}

/* ---- a sink of another thread ---- */

static atomic_bool sink_waits;
static pthread_t sinks_thread;

/* Asks for a kernel that the main thread is compiling, and that is about to be logged. */
static void asks_for_it(void *ctx, const char *line) {
    (void)line;
    if (!pthread_equal(pthread_self(), sinks_thread) || sink_waits) return;
    sink_waits = true;
    while (!calls_of("nvrtcCompileProgram")) usleep(100);
    CHECK(etch_neg(ctx));
}

static void *logs_a_graph(void *ctx) {
    (void)ctx;
    sinks_thread = pthread_self();
    ETCH_SCOPE {
        etch_function *f = etch_compile(several);
        CHECK(f && etch_call(f, etch_view(ramp(30), ETCH_SHAPE(6, 5))));
        etch_function_free(f);
    }
    return NULL;
}

TEST(sink_of_another_thread) {
    pthread_t t;
    etch_tensor *x = on_gpu(ramp(5));
    CHECK(etch_set_logs("cache,graph") == ETCH_OK);
    etch_set_log_sink(asks_for_it, x);
    gathered(2);
    CHECK(!pthread_create(&t, NULL, logs_a_graph, NULL));
    while (!sink_waits) usleep(100);
    etch_tensor *y = etch_neg(x);
    CHECK(!pthread_join(t, NULL) && y);
    etch_set_log_sink(NULL, NULL);
    CHECK(etch_bitwise_equal(etch_to_device(y, ETCH_CPU), etch_neg(ramp(5))));
}

static etch_tensor *of_bytes(etch_tensor *x) {
    etch_tensor *a = etch_to(x, ETCH_F32);
    etch_tensor *b = etch_view(etch_mul_scalar(a, 2), ETCH_SHAPE(2, 1));
    return etch_add(etch_mm(b, etch_transpose(b, 0, 1)), b);
}

/* Its code has no offsets for elements that lie 2^30 apart. */
TEST(small_plan_of_far_elements, .setting = "FAKE_CUDA_MEMORY=2000000000") {
    static const int8_t two[] = {5, 6};
    etch_tensor *large = NULL, *x;
    ETCH_ON(gpu) CHECK((large = etch_empty(ETCH_I8, ETCH_SHAPE((int64_t)(1 << 30) + 1))));
    CHECK((x = etch_slice(large, 0, 0, ETCH_ABSENT, 1 << 30)));
    CHECK(etch_copy_(x, on_gpu(etch_from_host(two, ETCH_I8, ETCH_SHAPE(2)))));
    etch_function *f = etch_compile(of_bytes);
    etch_tensor *expected = of_bytes(x), *near = etch_clone(x);
    for (int i = 0; i < 6; i++) {
        int64_t before = etch_device_stats(gpu).launches;
        etch_tensor *y = etch_call(f, i < 3 ? near : x);
        CHECK(y && etch_bitwise_equal(y, expected));
        int64_t launches = etch_device_stats(gpu).launches - before;
        CHECK(i % 3 == 0 || (launches == 1) == (i < 3));
    }
    etch_function_free(f);
}

/* The product waits for the random numbers, also where nodes come in another order. */
static etch_tensor *random_product(etch_tensor *x) {
    etch_tensor *r = etch_rand(ETCH_F32, ETCH_SHAPE(70, 70));
    return etch_mm(r, x);
}

TEST(graphs_of_creations, .setting = "FAKE_CUDA_LAZY=1") {
    ETCH_SCOPE
        ETCH_ON(gpu) {
            etch_function *f = etch_compile(random_product, .mode = ETCH_MODE_REDUCE_OVERHEAD);
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(70, 70));
            for (int i = 0; i < 6; i++) {
                etch_manual_seed((uint64_t)i);
                etch_tensor *got = etch_call(f, x);
                etch_manual_seed((uint64_t)i);
                CHECK(got && etch_bitwise_equal(got, random_product(x)));
            }
            CHECK(etch_device_stats(gpu).graph_launches > 0);
            etch_function_free(f);
        }
}

/* ---- ETCH_CHECK=1 ---- */

static etch_tensor *writes_its_argument(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *rows = etch_slice(x, 0, 1, 3, 1);
    etch_add_(rows, etch_slice(y, 0, 0, 2, 1));
    return etch_mul(x, y);
}

static etch_tensor *captured;
static etch_tensor *adds_captured(etch_tensor *x) { return etch_add(x, captured); }

/* Shadows lie on the device too; a replay that is stale there is found. */
TEST(checking_mode, .setting = "ETCH_CHECK=1") {
    ETCH_SCOPE
        ETCH_ON(ETCH_CUDA(0)) {
            etch_function *f = etch_compile(writes_its_argument);
            for (int i = 0; i < 4; i++) {
                etch_tensor *x = ramp(4), *same = ramp(4);
                etch_tensor *got = etch_call(f, x), *want = writes_its_argument(same);
                CHECK(got && etch_bitwise_equal(got, want) && etch_bitwise_equal(x, same));
            }
            etch_function *g = etch_compile(adds_captured, .replay = true);
            for (int i = 0; i < 4; i++) {
                captured = ramp(4); /* another one with the same values */
                CHECK(etch_call(g, ramp(4)));
            }
            captured = etch_neg(ramp(4));
            CHECK(!etch_call(g, ramp(4)) && etch_last_status() == ETCH_ERR_CHECK);
            CHECK(says(etch_last_error(), "captured tensor"));
            etch_function_free(f);
            etch_function_free(g);
        }
}

/* ---- memory ---- */

TEST(out_of_memory, .setting = "FAKE_CUDA_MEMORY=33554432") {
    enum { N = 1 << 20 };
    etch_tensor *kept[64];
    int n = 0;
    ETCH_SCOPE {
        for (; n < 64; n++)
            if (!(kept[n] = etch_to_device(etch_full(ETCH_F32, ETCH_SHAPE(N), n), gpu))) break;
        CHECK(n > 1 && n < 64 && etch_last_status() == ETCH_ERR_OUT_OF_MEMORY);
        CHECK(says(etch_last_error(), "cuda:0"));
        etch_clear_error();
        for (int i = 0; i < n; i++) CHECK(etch_item(etch_select(kept[i], 0, N - 1)) == i);
    }
    etch_tensor *x = on_gpu(ramp(N));
    CHECK(x && etch_item(etch_select(etch_add(x, x), 0, N - 1)) == 2.0 * (N - 1));
    etch_device_stats_t s = etch_device_stats(gpu);
    CHECK(s.bytes_peak >= s.bytes_live && s.bytes_live >= 4 * N);
}

/* ---- failing calls ---- */

/* Eager, compiled, as a graph. Its result in y; false: some call failed with an error. */
static bool program(float *y, int64_t n) {
    bool ok = false;
    ETCH_SCOPE {
        etch_function *f = etch_compile(chain);
        etch_function *g = etch_compile(chain, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        etch_tensor *x = square_on(gpu, n, 1), *w = square_on(gpu, n, 2);
        etch_tensor *all = x && w ? chain(x, w) : NULL;
        for (int i = 0; all && i < 3; i++) all = etch_add(all, etch_call(f, x, w));
        for (int i = 0; all && i < 3; i++) all = etch_add(all, etch_call(g, x, w));
        etch_tensor *flat = all ? etch_view(all, ETCH_SHAPE(n * n)) : NULL;
        etch_tensor *first = flat ? etch_slice(flat, 0, 0, 16, 1) : NULL;
        ok = first && etch_to_host(first, y, 16 * sizeof *y) == ETCH_OK;
        etch_function_free(f);
        etch_function_free(g);
    }
    return ok;
}

/* The name as errors give it: the driver's later forms of a call end in _v2. */
static bool names(const char *text, const char *symbol) {
    char plain[64];
    snprintf(plain, sizeof plain, "%s", symbol);
    char *version = strstr(plain, "_v2");
    if (version) *version = 0;
    return says(text, plain);
}

/* The one call that each step makes and whose failure changes nothing: the context is set again. */
static bool only_asked(void) { return !strcmp(failed_last(), "cuCtxGetCurrent"); }

/* With all kernels built: every failure is an error of the call, but for a launch of a plan, which
 * is run again operator by operator. */
TEST(each_call_fails_once) {
    float expected[16], y[16];
    CHECK(program(expected, 4) && etch_last_status() == ETCH_OK);
    CHECK(program(expected, 4));
    etch_device_trim(gpu);
    int64_t tensors = etch_memory().tensors;
    int64_t bytes = etch_device_stats(gpu).bytes_live;
    unsigned long modules = live("module"), graphs = live("graph"), execs = live("exec");
    int errors = 0, asked = 0, n = 1;
    for (; n < 5000; n++) {
        unsigned long before = failed();
        fail_after(n);
        bool ok = program(y, 4);
        bool fell = failed() > before;
        fail_after(0);
        CHECK(ok || (fell && etch_last_status() != ETCH_OK));
        CHECK(ok || (!only_asked() && names(etch_last_error(), failed_last())));
        if (ok && fell) CHECK(only_asked() || says(failed_last(), "cuLaunchKernel"));
        if (ok) CHECK(!memcmp(y, expected, sizeof y));
        errors += !ok, asked += fell && only_asked();
        etch_clear_error();
        if (!fell) break;
        CHECK(program(y, 4) && !memcmp(y, expected, sizeof y));
        CHECK(etch_memory().tensors == tensors);
        CHECK(etch_device_stats(gpu).bytes_live == bytes);
        etch_device_trim(gpu);
    }
    CHECK(n - asked > 20 && n < 5000 && errors > (n - asked) / 2);
    CHECK(live("graph") <= graphs && live("exec") <= execs && live("module") <= modules + 8);
}

/* In a process that has not asked for the device: opening it, building kernels, the product's
 * library and a CUDA graph are among the calls. What the program survives is in the list. */
static bool survived(const char *symbol) {
    static const char *const calls[] = {
        /* gives something back, or only asks */
        "cuModuleUnload", "nvrtcVersion", "nvrtcDestroyProgram", "cublasLtMatmulPreferenceDestroy",
        "cuGraphDestroy", "cuGraphExecDestroy",
        /* of a plan: it is compiled or run operator by operator instead */
        "nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN",
        "cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc_v2", "cuLaunchKernel",
        "cublasLtMatmul", "cuGraphCreate", "cuEventRecord", "cuStreamBeginCapture_v2",
        "cuStreamEndCapture", "cuGraphAddKernelNode_v2", "cuGraphAddChildGraphNode",
        "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch",
        "cuGraphGetRootNodes", "cuGraphNodeGetType"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(calls[i], symbol)) return true;
    return false;
}

enum { CALL_FAILED, CALL_HELPED, CALL_ASKED, NONE_LEFT };

static int fails_at(int n, const float *expected) {
    float y[16];
    fail_after(n);
    bool ok = program(y, 70);
    bool fell = failed() > 0;
    fail_after(0);
    if (!fell) return NONE_LEFT;
    if (!ok && etch_cuda_count() == 0) {
        CHECK(names(etch_cuda_absent(), failed_last())); /* for good */
        CHECK(etch_last_status() == ETCH_ERR_DEVICE);
        return CALL_FAILED;
    }
    if (!ok) CHECK(!only_asked() && names(etch_last_error(), failed_last()));
    else CHECK((only_asked() || survived(failed_last())) && !memcmp(y, expected, sizeof y));
    bool asked = only_asked();
    etch_clear_error();
    CHECK(program(y, 70) && !memcmp(y, expected, sizeof y));
    return asked ? CALL_ASKED : ok ? CALL_HELPED : CALL_FAILED;
}

TEST(each_call_fails_once_from_the_start) {
    float *expected = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int seen[4] = {0}, n = 0;
    assert_ptr_not_equal(expected, MAP_FAILED);
    while (!seen[NONE_LEFT] && n < 5000) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            ETCH_SCOPE {
                if (n) _exit(10 + fails_at(n, expected));
                CHECK(program(expected, 70));
            }
            _exit(10 + CALL_HELPED);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_in_range(WEXITSTATUS(status), 10, 10 + NONE_LEFT);
        seen[WEXITSTATUS(status) - 10]++, n++;
    }
    assert_int_equal(seen[NONE_LEFT], 1);
    assert_true(seen[CALL_FAILED] > 50 && seen[CALL_FAILED] > seen[CALL_HELPED]);
    munmap(expected, 4096);
}

/* ---- kernels that cannot be built ---- */

static char logged[8192];
static void keep_log(void *ctx, const char *line) {
    (void)ctx;
    strncat(logged, line, sizeof logged - strlen(logged) - 2);
    strcat(logged, "\n");
}

static int times(const char *text, const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

/* Of a plan: one reason is logged, and its operators run one by one, on the device. */
TEST(kernel_that_does_not_build) {
    etch_function *f = etch_compile(chain);
    etch_tensor *x = square_on(gpu, 70, 1), *w = square_on(gpu, 70, 2);
    etch_tensor *expected = chain(x, w);
    CHECK(expected);
    etch_set_log_sink(keep_log, NULL);
    unsigned long before = calls_of("nvrtcCompileProgram"),
                  copies = calls_of("cuMemcpyDtoHAsync_v2");
    int64_t launches = etch_device_stats(gpu).launches;
    fail_symbol("nvrtcCompileProgram", 1);
    etch_tensor *y[3];
    for (int i = 0; i < 3; i++) CHECK((y[i] = etch_call(f, x, w)));
    fail_symbol(NULL, 0);
    CHECK(etch_last_status() == ETCH_OK);
    CHECK(calls_of("nvrtcCompileProgram") == before + 1);
    CHECK(calls_of("cuMemcpyDtoHAsync_v2") == copies);          /* nothing went to the host */
    CHECK(etch_device_stats(gpu).launches == launches + 3 * 4); /* add, relu, mean, sub */
    CHECK(etch_counters().compile_failures == 1);
    CHECK(times(logged, "NVRTC refuses it") == 1 && times(logged, "\n") == 1);
    for (int i = 0; i < 3; i++) CHECK(etch_bitwise_equal(y[i], expected));
    etch_set_log_sink(NULL, NULL);
    etch_function_free(f);
}

static void refused(etch_tensor *y, const char *who) {
    CHECK(!y && etch_last_status() == ETCH_ERR_COMPILE);
    CHECK(says(etch_last_error(), who) && says(etch_last_error(), "NVRTC refuses it"));
    etch_clear_error();
}

/* The kernel of an eager operator itself, from the generator or written for it: an error with
 * NVRTC's text, no silent run on the host; the next call tries again. */
TEST(eager_kernel_that_does_not_build) {
    etch_tensor *x = on_gpu(ramp(5)), *small = square_on(gpu, 3, 1);
    unsigned long copies = calls_of("cuMemcpyDtoHAsync_v2");
    fail_symbol("nvrtcCompileProgram", 1);
    refused(etch_tanh(x), "tanh: its kernel for cuda:0 does not build");
    fail_symbol("nvrtcCompileProgram", 1);
    refused(etch_sum(x), "sum: its kernel for cuda:0 does not build");
    fail_symbol("nvrtcCompileProgram", 1);
    refused(etch_softmax(x, 0), "softmax.int: its kernel for cuda:0 does not build");
    fail_symbol("nvrtcCompileProgram", 1);
    refused(etch_mm(small, small), "mm: its kernel for cuda:0 does not build");
    fail_symbol(NULL, 0);
    CHECK(calls_of("cuMemcpyDtoHAsync_v2") == copies);
    CHECK(etch_allclose(etch_tanh(x), etch_tanh(ramp(5)), 1e-6, 1e-6, false));
    CHECK(etch_allclose(etch_softmax(x, 0), etch_softmax(ramp(5), 0), 1e-6, 1e-6, false));
    CHECK(etch_bitwise_equal(etch_sum(x), etch_sum(ramp(5))));
    CHECK(
        etch_bitwise_equal(etch_mm(small, small), etch_mm(square_on(0, 3, 1), square_on(0, 3, 1))));
}

/* A compiler that never works: errors each time, compiled or not, and what needs none goes on. */
TEST(no_kernel_ever_builds, .setting = "FAKE_CUDA_CXX=/bin/false") {
    setenv("FAKE_CUDA_CACHE", "", 1);
    etch_tensor *host = ramp(5), *x = on_gpu(host);
    etch_function *f = etch_compile(etch_relu);
    for (int i = 0; i < 3; i++) {
        refused(etch_relu(x), "relu");
        refused(etch_call(f, x), "relu");
    }
    CHECK(etch_bitwise_equal(etch_to_device(x, ETCH_CPU), host));
    etch_function_free(f);
}

/* ---- threads and processes ---- */

static void *works_on_its_own_stream(void *number) {
    etch_function *f = NULL;
    ETCH_SCOPE {
        f = etch_compile(chain);
        for (int i = 0; i < 4; i++) {
            double shift = (double)(intptr_t)number + i;
            etch_tensor *x = square_on(gpu, 5, shift), *w = square_on(gpu, 5, 2);
            etch_tensor *y = etch_call(f, x, w);
            CHECK(y && etch_allclose(y, chain(square_on(0, 5, shift), square_on(0, 5, 2)), 1e-5,
                                     1e-5, false));
        }
    }
    etch_function_free(f);
    return NULL;
}

static etch_tensor *shared_by_threads;

static void *reads_what_another_wrote(void *unused) {
    (void)unused;
    ETCH_SCOPE {
        etch_tensor *y = etch_add_scalar(shared_by_threads, 1);
        CHECK(etch_item(etch_sum(y)) == 1000.0 * 3);
    }
    return NULL;
}

/* Streams that hold back their work show what nobody waits for. */
TEST(threads_have_streams, .setting = "FAKE_CUDA_LAZY=1") {
    pthread_t t[3];
    for (intptr_t i = 0; i < 3; i++)
        CHECK(!pthread_create(&t[i], NULL, works_on_its_own_stream, (void *)i));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    shared_by_threads = etch_add(on_gpu(etch_ones(ETCH_F32, ETCH_SHAPE(1000))),
                                 on_gpu(etch_ones(ETCH_F32, ETCH_SHAPE(1000))));
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&t[i], NULL, reads_what_another_wrote, NULL));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
}

TEST(fork_after_use) {
    etch_tensor *x = on_gpu(ramp(5)), *y = ramp(3);
    CHECK(etch_item(etch_sum(x)) == 10);
    unsigned long asked = calls_of("cuCtxGetCurrent");
    pid_t child = fork();
    if (child == 0) {
        CHECK(!etch_add(x, x) && etch_last_status() == ETCH_ERR_DEVICE);
        CHECK(says(etch_last_error(), "forked child"));
        CHECK(calls_of("cuCtxGetCurrent") == asked); /* the driver is not used at all */
        etch_clear_error();
        CHECK(isnan(etch_item(etch_select(x, 0, 1))));
        etch_clear_error();
        CHECK(etch_item(etch_sum(y)) == 3);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(etch_item(etch_sum(x)) == 10);
}

/* ---- the disk cache ---- */

static char cache_dir[] = "/tmp/etch-cuda-cache-XXXXXX";

TEST(fills_the_cache, .setting = "ETCH_CACHE_SIZE=100000000") {
    setenv("ETCH_CACHE_DIR", cache_dir, 1);
    float y[16];
    CHECK(program(y, 4) && etch_counters().kernels_compiled > 0);
    CHECK(etch_neg(on_gpu(ramp(5))));
}

TEST(compiles_nothing, .setting = "ETCH_CACHE_SIZE=100000000") {
    setenv("ETCH_CACHE_DIR", cache_dir, 1);
    float y[16];
    CHECK(program(y, 4) && etch_counters().kernels_compiled == 0 && etch_counters().cache_hits > 0);
    CHECK(calls_of("nvrtcCompileProgram") == 0);
}

/* A file of the cache that does not hold the kernel is loaded, and given back. */
TEST(unloads_what_is_wrong, .setting = "ETCH_CACHE_SIZE=100000000") {
    setenv("ETCH_CACHE_DIR", cache_dir, 1);
    etch_tensor *x = on_gpu(ramp(5));
    fail_symbol("cuModuleGetFunction", 1);
    etch_tensor *y = etch_to_device(etch_neg(x), ETCH_CPU);
    CHECK(y && etch_bitwise_equal(y, etch_neg(ramp(5))) && etch_counters().kernels_compiled == 1);
    CHECK(live("module") == 1);
    etch_cache_clear();
    rmdir(cache_dir);
}

/* ---- */

int main(int argc, char **argv) { return mkdtemp(cache_dir) ? run_in_children(argc, argv) : 1; }
