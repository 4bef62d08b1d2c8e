/* Graphs that users record (ETCH_CUDA_GRAPH), on the fakes, or with ETCH_TEST_REAL_GPU=1 on a real
 * GPU: what they use stays and is waited for, whoever uses it as well, and what other threads do
 * with the device meanwhile breaks nothing.
 * Labels: driver sanitizer. */
#include "cuda_failing.h"

#include <pthread.h>
#include <stdatomic.h>

#include "backends/cuda/code.h"

static etch_tensor *ramp(int64_t n) { return etch_arange(ETCH_F32, 0, (double)n, 1); }
static etch_tensor *here(etch_tensor *t) { return etch_to_device(t, ETCH_CPU); }
static bool same(etch_tensor *a, etch_tensor *b) { return a && b && etch_bitwise_equal(a, b); }
static bool is_ramp(etch_tensor *t, int64_t n, double times) {
    return same(here(t), etch_mul_scalar(ramp(n), times));
}

/* ---- another thread, which works when it is told to ---- */

static atomic_int turn; /* odd: the other thread's */
static void (*const *work_of)(void);
static int works;

static void *other_thread(void *unused) {
    (void)unused;
    for (int i = 0; i < works; i++) {
        while (atomic_load(&turn) != 2 * i + 1) usleep(50);
        ETCH_SCOPE { work_of[i](); }
        atomic_fetch_add(&turn, 1);
    }
    return NULL;
}

static pthread_t other;
static void start(void (*const *work)(void), int n) {
    work_of = work, works = n, turn = 0;
    CHECK(!pthread_create(&other, NULL, other_thread, NULL));
}
static void let_it_work(void) {
    int now = atomic_fetch_add(&turn, 1);
    while (atomic_load(&turn) != now + 2) usleep(50);
}
static void end(void) { pthread_join(other, NULL); }

static etch_tensor *shared, *result, *later;
static etch_cuda_graph *graph;

/* ---- memory ---- */

static etch_tensor *with_arena(etch_tensor *x, etch_tensor *w) {
    return etch_mm(etch_softmax(etch_mm(x, w), 1), w);
}

/* Memory of tensors that end with the recording's scope, of results that nobody reads, and of
 * a compiled function that is freed: a replay writes it, so nobody else gets it before. */
TEST(keeps_what_it_uses) {
    etch_cuda_graph *g = NULL;
    etch_tensor *x = on_gpu(etch_randn(ETCH_F32, ETCH_SHAPE(70, 70))), *y = NULL, *z[150];
    etch_function *f = etch_compile(with_arena);
    etch_tensor *want = etch_neg(with_arena(etch_neg(x), x));
    for (int i = 0; i < 3; i++) CHECK(etch_call(f, x, x) && etch_mm(x, x));
    ETCH_SCOPE {
        ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) {
            etch_mm(x, x);
            y = etch_retain(etch_neg(etch_call(f, etch_neg(x), x)));
        }
    }
    CHECK(g && y);
    etch_function_free(f);
    for (int i = 0; i < 150; i++)
        CHECK((z[i] = on_gpu(etch_zeros(ETCH_F32, ETCH_SHAPE(1225 * (i % 6 + 1))))));
    for (int i = 0; i < 2; i++) CHECK(etch_cuda_graph_replay(g) == ETCH_OK && same(y, want));
    for (int i = 0; i < 150; i++) CHECK(etch_item(etch_sum(etch_abs(z[i]))) == 0);
    etch_cuda_graph_free(g);
    etch_release(y);
}

/* The count of what is live is as before once the graph is freed, recorded to the end or not. */
TEST(gives_it_back, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *x = on_gpu(ramp(3000));
    CHECK(etch_neg(x) && etch_synchronize(gpu) == ETCH_OK);
    for (int i = 0; i < 3; i++) {
        etch_cuda_graph *g = NULL;
        int64_t before = etch_device_stats(gpu).bytes_live;
        ETCH_SCOPE {
            ETCH_ON(gpu) {
                CHECK((g = etch_cuda_graph_begin()));
                CHECK(etch_neg(etch_abs(x)));
                if (i) CHECK((g = etch_cuda_graph_end(g)));
            }
            if (i == 2) CHECK(etch_cuda_graph_replay(g) == ETCH_OK);
            etch_cuda_graph_free(g);
        }
        CHECK(etch_device_stats(gpu).bytes_live == before);
    }
}

static char *source_of_nothing(const void *ctx) {
    static const char text[] =
        "extern \"C\" __global__ void nothing(const __grid_constant__ int a) {}\n";
    (void)ctx;
    char *t = etch__malloc(sizeof text);
    return t ? memcpy(t, text, sizeof text) : NULL;
}

/* More kernels than are kept. */
static void forget_kernels(void) {
    const char *why;
    for (int i = 0; i < 2100; i++) {
        cuda_code *c = etch__cuda_code(etch__cuda_enter(0), (const uint8_t *)&i, sizeof i,
                                       "nothing", source_of_nothing, NULL, &why);
        CHECK(c);
        etch__cuda_code_release(c);
    }
}

static etch_tensor *around_a_call(etch_tensor *x) { return etch_neg(etch_softmax(etch_abs(x), 0)); }

/* A recorded graph, the user's or a plan's, keeps the code of its kernels. */
TEST(keeps_its_kernels) {
    etch_cuda_graph *g = NULL;
    etch_tensor *x = on_gpu(etch_randn(ETCH_F32, ETCH_SHAPE(100, 100))), *y = NULL;
    etch_function *f = etch_compile(around_a_call, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *want = here(around_a_call(x)), *whole = here(etch_softmax(x, 1));
    for (int i = 0; i < 3; i++) CHECK(same(here(etch_call(f, x)), want));
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) y = etch_softmax(x, 1);
    CHECK(g && etch_device_stats(gpu).graphs == 1);
    forget_kernels();
    CHECK(etch_cuda_graph_replay(g) == ETCH_OK && same(here(y), whole));
    CHECK(same(here(etch_call(f, x)), want) && etch_device_stats(gpu).graphs == 1);
    unsigned long modules = on_real_gpu() ? 0 : live("module");
    etch_cuda_graph_free(g);
    CHECK(on_real_gpu() || live("module") == modules - 1);
    etch_function_free(f);
    CHECK(on_real_gpu() || live("module") < modules - 1);
}

/* ---- order ---- */

/* Written on one stream, replayed on the one that recorded. */
TEST(follows_other_streams, .setting = "FAKE_CUDA_LAZY=1") {
    etch_cuda_graph *g = NULL;
    cu_stream s;
    etch_tensor *x = on_gpu(ramp(100)), *y = NULL, *next = on_gpu(ramp(100));
    CHECK(etch_cuda_stream(gpu) && !etch__cuda.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING_));
    CHECK(etch_mul_scalar(x, 2) && etch_neg(next));
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) y = etch_mul_scalar(x, 2);
    CHECK(g && etch_synchronize(gpu) == ETCH_OK);
    for (int i = 1; i < 4; i++) {
        CHECK(etch_cuda_set_stream(gpu, s) == ETCH_OK);
        CHECK(etch_copy_(x, etch_mul_scalar(next, i)));
        CHECK(etch_cuda_graph_replay(g) == ETCH_OK);
        if (i == 2) CHECK(etch_fill_(x, 7)); /* after the replay has read it */
        CHECK(etch_cuda_set_stream(gpu, NULL) == ETCH_OK);
        CHECK(is_ramp(y, 100, 2 * i));
    }
    etch_cuda_graph_free(g);
    CHECK(!etch__cuda.cuStreamDestroy_v2(s));
}

static void makes_it(void) { shared = etch_retain(etch_neg(etch_neg(later))); }
static void triples_it(void) { CHECK(etch_mul_scalar_(shared, 3)); }
static void replays_it(void) {
    CHECK(etch_copy_(shared, etch_mul_scalar(later, 5)) &&
          etch_cuda_graph_replay(graph) == ETCH_OK);
}
static void frees_it(void) { etch_release(shared); }

/* An input that another thread makes and writes, whose own stream it is. */
TEST(follows_other_threads, .setting = "FAKE_CUDA_LAZY=1") {
    static void (*const work[])(void) = {makes_it, triples_it, replays_it};
    later = on_gpu(ramp(100));
    CHECK(etch_mul_scalar(later, 2));
    start(work, 3);
    let_it_work();
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(graph) result = etch_mul_scalar(shared, 2);
    CHECK(graph && etch_cuda_graph_replay(graph) == ETCH_OK && is_ramp(result, 100, 2));
    let_it_work();
    CHECK(etch_cuda_graph_replay(graph) == ETCH_OK && is_ramp(result, 100, 6));
    let_it_work();
    CHECK(is_ramp(result, 100, 10));
    end();
    etch_cuda_graph_free(graph);
    etch_release(shared);
}

/* A copy to pinned memory that is recorded is waited for after each replay, and before. */
TEST(pinned_results, .setting = "FAKE_CUDA_LAZY=1") {
    etch_cuda_graph *g = NULL;
    etch_tensor *x = on_gpu(ramp(70)), *p = NULL;
    CHECK(etch_to_pinned(etch_neg(x)));
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) p = etch_to_pinned(etch_neg(x));
    CHECK(g && p);
    for (int i = 1; i < 4; i++) {
        CHECK(etch_copy_(x, on_gpu(etch_mul_scalar(ramp(70), -i))));
        CHECK(etch_cuda_graph_replay(g) == ETCH_OK);
        CHECK(i % 2 || same(p, etch_mul_scalar(ramp(70), i)));
        const float *at = etch_data(p);
        CHECK(at && at[69] == (float)(69 * i));
    }
    etch_cuda_graph_free(g);
}

/* ---- other threads while this one records ---- */

static void synchronises(void) { CHECK(etch_synchronize(gpu) == ETCH_OK); }
static void reads_it(void) { CHECK(is_ramp(etch_neg(shared), 100, -1)); }
static void trims(void) { CHECK(etch_device_trim(gpu) == ETCH_OK); }
static void replays_there(void) {
    CHECK(etch_cuda_graph_replay(graph) == ETCH_ERR_UNSUPPORTED);
    CHECK(says(etch_last_error(), "another thread records"));
    etch_clear_error();
}
static void fails(void) {
    static const int64_t nine[] = {9};
    etch_tensor *index = on_gpu(etch_from_host(nine, ETCH_I64, ETCH_SHAPE(1)));
    CHECK(etch_index_select(shared, 0, etch_add_scalar(index, 900)));
    CHECK(etch_synchronize(gpu) == ETCH_ERR_INDEX);
    etch_clear_error();
}

/* Each of these comes to the stream that is recorded: as one of the device, as that of the last
 * use, as the one that a freed block goes back to. */
TEST(others_leave_it_alone) {
    static void (*const work[])(void) = {reads_it, synchronises,  reads_it, trims,
                                         fails,    replays_there, frees_it};
    etch_cuda_graph *g = NULL;
    etch_tensor *x = on_gpu(ramp(100)), *y = NULL;
    static const int64_t zero[] = {0};
    etch_tensor *index = on_gpu(etch_from_host(zero, ETCH_I64, ETCH_SHAPE(1)));
    ETCH_SCOPE { shared = etch_retain(etch_abs(x)); }
    CHECK(etch_neg(x) && etch_index_select(x, 0, index)); /* so that there are checks to read */
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(graph) CHECK(etch_neg(x));
    start(work, 7);
    let_it_work();
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) {
        y = etch_neg(x);
        for (int i = 1; i < 7; i++) let_it_work();
        y = etch_neg(y);
    }
    end();
    CHECK(g && etch_last_status() == ETCH_OK);
    for (int i = 0; i < 2; i++) CHECK(etch_cuda_graph_replay(g) == ETCH_OK);
    CHECK(is_ramp(y, 100, 1) && etch_synchronize(gpu) == ETCH_OK);
    etch_cuda_graph_free(g);
    etch_cuda_graph_free(graph);
}
TEST_AGAIN(others_leave_it_alone, .setting = "FAKE_CUDA_LAZY=1")

static etch_tensor *with_calls(etch_tensor *x, etch_tensor *w) {
    return etch_mul_scalar(etch_add(etch_mm(x, w), etch_softmax(x, 0)), 2);
}

static atomic_bool done;
static void *synchronises_often(void *unused) {
    (void)unused;
    while (!done) CHECK(etch_synchronize(gpu) == ETCH_OK);
    return NULL;
}

/* A plan's graph records its calls anew where their addresses change. */
TEST(graphs_of_plans) {
    pthread_t t;
    etch_function *f = etch_compile(with_calls, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *w = on_gpu(etch_randn(ETCH_F32, ETCH_SHAPE(80, 80))), *kept[2];
    for (int i = 0; i < 2; i++) kept[i] = on_gpu(etch_randn(ETCH_F32, ETCH_SHAPE(80, 80)));
    etch_tensor *want[2] = {with_calls(kept[0], w), with_calls(kept[1], w)};
    CHECK(!pthread_create(&t, NULL, synchronises_often, NULL));
    for (int i = 0; i < 200; i++)
        ETCH_SCOPE {
            etch_tensor *y = etch_call(f, kept[i % 2], w);
            CHECK(y && etch_last_status() == ETCH_OK && same(y, want[i % 2]));
        }
    done = true;
    pthread_join(t, NULL);
    etch_function_free(f);
}

/* Inside a recording such a function is recorded step by step, and is a graph again later. */
TEST(plans_inside) {
    etch_cuda_graph *g = NULL;
    etch_function *f = etch_compile(with_calls, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *x = on_gpu(etch_randn(ETCH_F32, ETCH_SHAPE(80, 80))), *y = NULL;
    etch_tensor *want = with_calls(with_calls(x, x), x), *next = etch_neg(x);
    for (int i = 0; i < 3; i++) CHECK(same(etch_call(f, x, x), with_calls(x, x)));
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) y = etch_call(f, etch_call(f, x, x), x);
    CHECK(g && y && etch_last_status() == ETCH_OK);
    int64_t graphs = etch_device_stats(gpu).graph_launches;
    CHECK(same(etch_call(f, next, next), with_calls(next, next)));
    CHECK(etch_device_stats(gpu).graph_launches == graphs + 1);
    CHECK(etch_cuda_graph_replay(g) == ETCH_OK && same(y, want));
    etch_cuda_graph_free(g);
    etch_function_free(f);
}

static etch_tensor *scaled(etch_tensor *x) { return etch_exp(etch_mul_scalar(x, 0.01)); }

/* Work of a second device in the block is refused, eager and compiled; recording goes on. */
TEST(one_device) {
    etch_cuda_graph *g = NULL;
    etch_function *f = etch_compile(scaled);
    etch_tensor *x = on_gpu(ramp(100)), *there = etch_to_device(x, ETCH_CUDA(1)), *y = NULL;
    if (!there) return;         /* a real machine that has one */
    for (int i = 0; i < 3; i++) /* traces are guarded by the current device */
        ETCH_ON(gpu) CHECK(etch_call(f, there) && etch_neg(there) && etch_neg(x));
    int64_t launches = etch_device_stats(ETCH_CUDA(1)).launches;
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) {
        y = etch_neg(x);
        CHECK(!etch_neg(there) && says(etch_last_error(), "neg: expected work on cuda:0"));
        CHECK(says(etch_last_error(), "test_cuda_record.c"));
        CHECK(etch_last_status() == ETCH_ERR_UNSUPPORTED);
        etch_clear_error();
        CHECK(!etch_call(f, there) && etch_last_status() == ETCH_ERR_UNSUPPORTED);
        CHECK(says(etch_last_error(), "mul.Scalar: expected work on cuda:0"));
        etch_clear_error();
        y = etch_neg(y);
    }
    CHECK(g && etch_cuda_graph_replay(g) == ETCH_OK && is_ramp(y, 100, 1));
    CHECK(etch_device_stats(ETCH_CUDA(1)).launches == launches);
    CHECK(same(etch_call(f, there), scaled(there)));
    etch_cuda_graph_free(g);
    etch_function_free(f);
}

/* ---- inside a compiled function ---- */

/* What was computed before the replay wrote x has x's contents from then. */
static int calls;
static etch_tensor *replays_inside(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_graph_break("test");
    etch_tensor *z = etch_neg(x);
    CHECK(etch_cuda_graph_replay(graph) == ETCH_OK);
    etch_tensor *sum = etch_add(x, z);
    return calls < 3 ? sum : etch_add(sum, y);
}

TEST(writes_inside_a_function) {
    etch_tensor *x = on_gpu(ramp(100));
    graph = NULL;
    CHECK(etch_add_scalar_(x, 0));
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(graph) { etch_add_scalar_(x, 1); }
    CHECK(graph);
    etch_function *f = etch_compile(replays_inside);
    for (calls = 0; calls < 6; calls++) {
        etch_copy_(x, on_gpu(ramp(100)));
        etch_tensor *want = etch_full(ETCH_F32, ETCH_SHAPE(100), 1);
        if (calls >= 3) want = etch_add(want, etch_mul_scalar(ramp(100), 2));
        CHECK(same(here(etch_call(f, x)), want));
    }
    etch_function_free(f);
    etch_cuda_graph_free(graph);
}
TEST_AGAIN(writes_inside_a_function, .setting = "FAKE_CUDA_LAZY=1")

/* ---- failing calls ---- */

/* Records, replays and reads 16 numbers; false: a call failed with an error. */
static bool program(float *to) {
    bool ok = false;
    etch_cuda_graph *g = NULL;
    ETCH_SCOPE {
        etch_tensor *x = on_gpu(ramp(16)), *y = NULL, *p = NULL;
        if (x && etch_neg(x)) {
            ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) {
                y = etch_neg(etch_neg(x));
                p = y ? etch_to_pinned(y) : NULL;
            }
        }
        ok = g && p && etch_add_scalar_(x, 1) && etch_cuda_graph_replay(g) == ETCH_OK;
        const float *at = ok ? etch_data(p) : NULL;
        ok = at && etch_to_host(y, to, 16 * sizeof *to) == ETCH_OK &&
             !memcmp(to, at, 16 * sizeof *to);
        etch_cuda_graph_free(g);
    }
    return ok;
}

TEST(each_call_fails_once, .only_on_fakes = true) {
    CHECK(each_call_fails(program) < 500);
    CHECK(live("graph") == 0 && live("exec") == 0);
}

TEST(each_allocation_fails_once, .only_on_fakes = true) {
    CHECK(each_allocation_fails(program) < 500);
}

/* ---- */

int main(int argc, char **argv) { return run_in_children(argc, argv); }
