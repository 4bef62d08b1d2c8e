/* Checks on data on a GPU (indices, integer divisors), on the fakes, or with ETCH_TEST_REAL_GPU=1
 * on a real one: nothing waits for them, the error appears at the next wait with the line of the
 * call, and what the user has is not written by a run that fails.
 * Labels: driver sanitizer. */
#include "cuda_child.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backends/cuda/faults.h"
#include "core/tensor/element.h"

/* Whether work waits for the streams, which hold it back (FAKE_CUDA_LAZY=1). */
static bool held(void) {
    return on_real_gpu() || ((unsigned long (*)(void))control("fake_cuda_pending"))();
}

static etch_tensor *here(etch_tensor *t) { return etch_to_device(t, ETCH_CPU); }
static bool same(etch_tensor *a, etch_tensor *b) { return a && b && etch_bitwise_equal(a, b); }
static etch_tensor *ramp(int64_t n) { return on_gpu(etch_arange(ETCH_F32, 0, (double)n, 1)); }
static etch_tensor *whole(int64_t a, int64_t b, int64_t c) {
    const int64_t v[] = {a, b, c};
    return on_gpu(etch_from_host(v, ETCH_I64, ETCH_SHAPE(3)));
}

/* The next wait fails with the status and all of the words, the one after it does not. */
static void waits_for(etch_status status, const char *word, const char *other) {
    etch_clear_error();
    CHECK(etch_synchronize(gpu) == status && etch_last_status() == status);
    CHECK(says(etch_last_error(), word) && says(etch_last_error(), other));
    etch_clear_error();
    CHECK(etch_synchronize(gpu) == ETCH_OK);
}

static char where[64];
static const char *line_before(int line) {
    snprintf(where, sizeof where, "test_cuda_faults.c:%d", line - 1);
    return where;
}
#define LINE_BEFORE line_before(__LINE__)

/* ---- eager ---- */

TEST(nothing_waits, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *x = ramp(10), *good = whole(9, 0, 4), *three = ramp(3), *divisor = whole(1, 2, 3);
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    unsigned long waits = on_real_gpu() ? 0 : calls_of("cuStreamSynchronize");
    etch_tensor *y = etch_index_select(x, 0, good), *g = etch_gather(x, 0, good);
    etch_tensor *t = etch_take(x, good), *q = etch_floor_divide(good, divisor);
    etch_tensor *s = etch_scatter(x, 0, good, three);
    CHECK(y && g && t && q && s && etch_index_put_(x, good, three, true) && held());
    CHECK(on_real_gpu() || calls_of("cuStreamSynchronize") == waits);
    CHECK(etch_item(etch_sum(etch_add(etch_add(y, g), t))) == 39);
    CHECK(etch_item(etch_sum(s)) == 45 - 13 + 3 && etch_item(etch_sum(x)) == 45 + 3);
    CHECK(etch_item(etch_sum(q)) == 9 + 0 + 1);
}

TEST(error_at_the_read, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *x = ramp(10);
    etch_tensor *y = etch_index_select(x, 0, whole(1, 10, 77));
    const char *line = LINE_BEFORE;
    CHECK(y && held());
    etch_tensor *sum = etch_sum(y);
    CHECK(sum && isnan(etch_item(sum)) && etch_last_status() == ETCH_ERR_INDEX);
    CHECK(says(etch_last_error(), "index_select: expected indices from 0 to 9, got 10"));
    CHECK(says(etch_last_error(), line));
    etch_clear_error();
    CHECK(etch_item(etch_sum(etch_index_select(x, 0, whole(1, 9, 7)))) == 17);
    CHECK(etch_last_status() == ETCH_OK && etch_synchronize(gpu) == ETCH_OK);
}

/* Of two calls the earlier, of one call the first element, whichever thread of
 * the GPU comes first. */
TEST(the_first_is_named) {
    etch_tensor *x = ramp(10), *many = etch_full(ETCH_I64, ETCH_SHAPE(100000), 50);
    etch_copy_(etch_slice(many, 0, 3, 4, 1), etch_full(ETCH_I64, ETCH_SHAPE(1), -7));
    etch_copy_(etch_slice(many, 0, 0, 3, 1), etch_full(ETCH_I64, ETCH_SHAPE(3), 2));
    CHECK(etch_take(x, on_gpu(many)) && etch_gather(x, 0, whole(0, 0, 99)));
    CHECK(etch_floor_divide(whole(1, 1, 1), whole(1, 0, 1)));
    waits_for(ETCH_ERR_INDEX, "take", "got 50");
    many = on_gpu(etch_view(etch_slice(many, 0, 0, 99999, 1), ETCH_SHAPE(3, 33333)));
    CHECK(etch_gather(etch_expand(etch_unsqueeze(x, 0), ETCH_SHAPE(3, 10)), 1,
                      etch_flip(many, ETCH_DIMS(0, 1))));
    waits_for(ETCH_ERR_INDEX, "gather: expected indices from 0 to 9", "got 50");
    CHECK(etch_gather(etch_expand(etch_unsqueeze(x, 0), ETCH_SHAPE(3, 10)), 1, many));
    waits_for(ETCH_ERR_INDEX, "gather", "got -7");
}

TEST(extreme_indices) {
    etch_tensor *x = ramp(4);
    CHECK(etch_index_select(x, 0, whole(0, INT64_MAX, 0)));
    waits_for(ETCH_ERR_INDEX, "from 0 to 3", "got 9223372036854775807");
    CHECK(etch_take(x, whole(-4, 3, INT64_MIN)));
    waits_for(ETCH_ERR_INDEX, "from -4 to 3", "got -9223372036854775808");
    CHECK(etch_index_select(ramp(0), 0, whole(0, 1, 2)));
    waits_for(ETCH_ERR_INDEX, "from 0 to -1", "got 0");
    /* an index that no element needs is checked all the same */
    etch_tensor *empty = on_gpu(etch_zeros(ETCH_F32, ETCH_SHAPE(3, 0)));
    CHECK(etch_index_select(empty, 0, whole(0, 1, 3)));
    waits_for(ETCH_ERR_INDEX, "index_select", "got 3");
    /* an empty index of another rank */
    etch_tensor *none = on_gpu(etch_ones(ETCH_I64, ETCH_SHAPE(1, 0, 2)));
    CHECK(etch_scatter_value_(x, -1, none, etch_scalar_int(1)) && etch_scatter_add(x, 0, none, x));
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    CHECK(etch_floor_divide(whole(1, 2, INT64_MIN), whole(-1, -1, -1)));
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    CHECK(!etch_floor_divide_scalar(whole(1, 2, 3), 0)); /* known at once */
    CHECK(etch_last_status() == ETCH_ERR_DIVISION_BY_ZERO);
}

typedef etch_tensor *(*writer)(etch_tensor *x, etch_tensor *index, etch_tensor *values);
static etch_tensor *puts_in(etch_tensor *x, etch_tensor *i, etch_tensor *v) {
    return etch_index_put_(x, i, v, false);
}
static etch_tensor *adds_in(etch_tensor *x, etch_tensor *i, etch_tensor *v) {
    return etch_index_add_(x, 0, i, v);
}
static etch_tensor *scatters(etch_tensor *x, etch_tensor *i, etch_tensor *v) {
    return etch_scatter_(x, 0, i, v);
}
static etch_tensor *fills(etch_tensor *x, etch_tensor *i, etch_tensor *v) {
    (void)v;
    return etch_index_fill_(x, 0, i, 3);
}
static etch_tensor *copies(etch_tensor *x, etch_tensor *i, etch_tensor *v) {
    return etch_index_copy_(x, 0, i, v);
}
static const writer writers[] = {puts_in, adds_in, scatters, fills, copies};
enum { WRITERS = sizeof writers / sizeof writers[0] };

TEST(nothing_is_written, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *want = here(ramp(5)), *values = on_gpu(etch_full(ETCH_F32, ETCH_SHAPE(3), 9));
    for (int k = 0; k < WRITERS; k++) {
        etch_tensor *x = ramp(5);
        CHECK(writers[k](x, whole(0, 1, 5), values));
        CHECK(writers[k](x, whole(2, 3, 4), values) && held()); /* another call: it happens */
        waits_for(ETCH_ERR_INDEX, "to 4", "got 5");
        etch_tensor *after = here(x);
        CHECK(same(etch_slice(after, 0, 0, 2, 1), etch_slice(want, 0, 0, 2, 1)));
        CHECK(etch_item(etch_select(after, 0, 4)) != 4);
    }
}

/* ---- compiled ---- */

static etch_tensor *divides_then_writes(etch_tensor *x, etch_tensor *y) {
    etch_add_(x, y);
    etch_tensor *q = etch_floor_divide(x, y);
    etch_add_scalar_(etch_slice(x, 0, 1, 3, 1), 5);
    return etch_mul_scalar(q, 2);
}
enum { DIVIDE_LINE = __LINE__ - 4 }; /* of the division */

TEST(runs_write_all_or_nothing, .setting = "FAKE_CUDA_LAZY=1") {
    etch_function *f = etch_compile(divides_then_writes);
    char text[64];
    snprintf(text, sizeof text, "test_cuda_faults.c:%d", DIVIDE_LINE);
    for (int i = 0; i < 8; i++) {
        bool bad = i % 3 == 2;
        etch_tensor *x = whole(10, 20, 30), *y = whole(1, bad ? 0 : 2, 3);
        CHECK(etch_synchronize(gpu) == ETCH_OK);
        etch_tensor *got = etch_call(f, x, y);
        CHECK(got && etch_last_status() == ETCH_OK);
        if (bad) {
            waits_for(ETCH_ERR_DIVISION_BY_ZERO, "floor_divide", text);
            CHECK(same(here(x), here(whole(10, 20, 30))));
            continue;
        }
        CHECK(same(here(x), here(whole(11, 27, 38))));
        CHECK(same(here(got), here(whole(22, 22, 22))));
    }
    CHECK(etch_function_counters(f).graphs == 1 && etch_function_counters(f).plan_runs == 7);
    etch_function_free(f);
}

static etch_tensor *selects(etch_tensor *x, etch_tensor *i) {
    return etch_add(etch_index_select(x, 0, i), etch_index_select(x, 0, etch_neg(etch_neg(i))));
}
static etch_tensor *puts_twice(etch_tensor *x, etch_tensor *i) {
    etch_tensor *v = etch_index_select(x, 0, i);
    etch_index_put_(x, i, etch_mul_scalar(v, 2), false);
    return etch_neg(x);
}

/* What one run did wrong is not held against the next. */
TEST(each_run_for_itself, .setting = "FAKE_CUDA_LAZY=1") {
    etch_function *f = etch_compile(selects), *g = etch_compile(puts_twice);
    etch_tensor *x = ramp(6), *good = whole(0, 5, 2), *bad = whole(0, 6, 2);
    for (int i = 0; i < 3; i++) CHECK(etch_call(f, x, good) && etch_call(g, ramp(6), good));
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    etch_tensor *y = ramp(6), *z = ramp(6), *a = etch_call(f, x, bad), *b = etch_call(g, y, bad);
    etch_tensor *c = etch_call(g, z, good), *d = etch_call(f, x, good);
    CHECK(a && b && c && d && held());
    waits_for(ETCH_ERR_INDEX, "index_select: expected indices from 0 to 5, got 6", "");
    CHECK(same(here(y), here(x)) && !same(here(z), here(x)));
    CHECK(etch_item(etch_sum(c)) == -22 && etch_item(etch_sum(d)) == 14);
    etch_function_free(f);
    etch_function_free(g);
}

/* A compiled function whose values are read inside: the read says it. */
static etch_tensor *reads(etch_tensor *x, etch_tensor *i) {
    etch_tensor *v = etch_index_select(x, 0, i);
    double sum = etch_item(etch_sum(v));
    return isnan(sum) ? NULL : etch_mul_scalar(v, sum);
}
TEST(a_read_in_the_body, .setting = "FAKE_CUDA_LAZY=1") {
    etch_function *f = etch_compile(reads);
    for (int i = 0; i < 6; i++) {
        bool bad = i % 3 == 2;
        etch_clear_error();
        etch_tensor *y = etch_call(f, ramp(4), whole(0, bad ? 4 : 3, 1));
        CHECK(!y == bad && (etch_last_status() == ETCH_ERR_INDEX) == bad);
        if (!bad) CHECK(etch_item(etch_sum(y)) == 16);
    }
    etch_clear_error();
    etch_function_free(f);
}

/* As one CUDA graph: the checks are in it. */
static etch_tensor *embeds(etch_tensor *table, etch_tensor *tokens) {
    etch_tensor *rows = etch_softmax(etch_mul_scalar(etch_embedding(table, tokens), 0.5), -1);
    etch_add_scalar_(tokens, 1);
    return etch_index_select(etch_exp(rows), 1, tokens);
}
static etch_device_stats_t stats(void) { return etch_device_stats(gpu); }

TEST(in_a_graph_of_a_plan, .setting = "FAKE_CUDA_LAZY=1") {
    etch_function *f = etch_compile(embeds, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *table = etch_view(ramp(40), ETCH_SHAPE(10, 4));
    etch_tensor *kept[8];
    for (int i = 0; i < 8; i++) {
        bool bad = i == 4, late = i == 6; /* the second operator's index */
        etch_tensor *tokens = kept[i] = whole(i % 3, bad ? 10 : late ? 9 : 1, 1);
        etch_tensor *y = etch_call(f, table, tokens), *same_tokens = whole(i % 3, 1, 1);
        CHECK(y);
        if (bad) waits_for(ETCH_ERR_INDEX, "index_select", "from 0 to 9, got 10");
        if (late) waits_for(ETCH_ERR_INDEX, "index_select", "from 0 to 3, got 10");
        if (bad || late) CHECK(same(here(tokens), here(whole(i % 3, bad ? 10 : 9, 1))));
        else CHECK(same(here(y), here(embeds(table, same_tokens))));
        if (!bad && !late) CHECK(same(here(tokens), here(same_tokens)));
    }
    CHECK(stats().graphs == 1 && stats().graph_launches == 7);
    /* a call that fails is not held against the next one */
    etch_tensor *bad = whole(0, 10, 1), *good = whole(0, 1, 2);
    CHECK(etch_call(f, table, bad) && etch_call(f, table, good) && held());
    waits_for(ETCH_ERR_INDEX, "index_select", "got 10");
    CHECK(same(here(bad), here(whole(0, 10, 1))) && same(here(good), here(whole(1, 2, 3))));
    /* freed before anybody asked */
    CHECK(etch_call(f, table, whole(0, 77, 0)));
    etch_function_free(f);
    waits_for(ETCH_ERR_INDEX, "index_select", "got 77");
}

/* A kernel's copies to places of its own behind a check are held by a graph. */
static etch_tensor *convolves(etch_tensor *table, etch_tensor *tokens) {
    etch_tensor *rows = etch_softmax(etch_index_select(table, 0, tokens), -1);
    etch_tensor *grad = etch_reshape(rows, ETCH_SHAPE(1, 3, 2, 2));
    etch_tensor *input = etch_view(table, ETCH_SHAPE(1, 2, 4, 5));
    etch_tensor *weight = etch_convolution_backward_weight(
        grad, input, ETCH_DIMS(3, 2, 3, 4), ETCH_DIMS(1, 1), ETCH_DIMS(0, 0), ETCH_DIMS(1, 1), 1);
    return etch_softmax(weight, -1);
}

TEST(copies_behind_a_check_in_a_graph) {
    etch_function *f = etch_compile(convolves, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    etch_tensor *table = etch_view(ramp(40), ETCH_SHAPE(10, 4));
    for (int i = 0; i < 4; i++) {
        etch_tensor *tokens = whole(i, 3, 1), *y = etch_call(f, table, tokens);
        CHECK(same(here(y), here(convolves(table, tokens))));
    }
    CHECK(stats().graphs == 1 && stats().graph_launches == 3);
    etch_function_free(f);
}

static void *calls_on_its_stream(void *ctx) {
    etch_function *f = ctx;
    ETCH_SCOPE {
        etch_tensor *table = etch_view(ramp(40), ETCH_SHAPE(10, 4));
        CHECK(etch_call(f, table, whole(0, 1, 2)) && etch_synchronize(gpu) == ETCH_OK);
        etch_tensor *y = etch_call(f, table, whole(0, -3, 2));
        CHECK(y && isnan(etch_item(etch_sum(y))) && says(etch_last_error(), "got -3"));
        etch_clear_error();
        CHECK(etch_synchronize(gpu) == ETCH_OK);
    }
    return NULL;
}

/* Launched by another thread than the one that recorded it; and more graphs than have a slot. */
TEST(graphs_of_plans, .setting = "FAKE_CUDA_LAZY=1") {
    enum { N = FAULT_GRAPHS + 6 };
    pthread_t t;
    etch_function *f[N];
    etch_tensor *table = etch_view(ramp(40), ETCH_SHAPE(10, 4));
    for (int i = 0; i < N; i++) {
        f[i] = etch_compile(embeds, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        for (int k = 0; k < 3; k++) CHECK(etch_call(f[i], table, whole(0, 1, 2)));
        CHECK(etch_last_status() == ETCH_OK); /* without a slot it is no error */
        CHECK(etch_synchronize(gpu) == ETCH_OK);
    }
    CHECK(stats().graphs == FAULT_GRAPHS);
    CHECK(!pthread_create(&t, NULL, calls_on_its_stream, f[0]) && !pthread_join(t, NULL));
    CHECK(stats().graphs == FAULT_GRAPHS);
    for (int i = 0; i < N; i += N - 1) {
        CHECK(etch_call(f[i], table, whole(0, 1, 20 + i)));
        char text[32];
        snprintf(text, sizeof text, "got %d", 20 + i);
        waits_for(ETCH_ERR_INDEX, "index_select", text);
    }
    for (int i = 0; i < N; i++) etch_function_free(f[i]);
}

/* ---- who is told ---- */

typedef struct job {
    etch_tensor *made, *index;
    etch_status status;
} job;

static void *makes(void *ctx) {
    job *j = ctx;
    ETCH_SCOPE { j->made = etch_retain(etch_index_select(ramp(4), 0, j->index)); }
    return NULL;
}

/* The thread that reads the result of another is told. */
TEST(another_thread_reads, .setting = "FAKE_CUDA_LAZY=1") {
    pthread_t t;
    job j = {.index = whole(0, 4, 1)};
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    CHECK(!pthread_create(&t, NULL, makes, &j) && !pthread_join(t, NULL) && j.made);
    CHECK(isnan(etch_item(etch_sum(j.made))) && etch_last_status() == ETCH_ERR_INDEX);
    etch_clear_error();
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    etch_release(j.made);
}

static void *reads_its_own(void *ctx) {
    job *j = ctx;
    ETCH_SCOPE {
        j->status = etch_item(etch_sum(ramp(4))) == 6 ? etch_last_status() : ETCH_ERR_USER;
    }
    return NULL;
}

static atomic_int told, rounds;
static atomic_bool enough;
static void *synchronises(void *unused) {
    (void)unused;
    for (; !enough; rounds++) {
        told += etch_synchronize(gpu) != ETCH_OK;
        etch_clear_error();
    }
    return NULL;
}

static etch_tensor *selects_between(etch_tensor *x, etch_tensor *i) {
    return etch_neg(etch_index_select(etch_neg(x), 0, i));
}

/* A failure is told to somebody, also where another thread comes between a check and its kernel. */
TEST(told_while_another_waits) {
    pthread_t t;
    etch_cuda_graph *g = NULL;
    etch_tensor *x = ramp(5), *i = whole(1, 2, 3), *y = ramp(3);
    etch_function *f = etch_compile(selects_between, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    for (int k = 0; k < 3; k++) CHECK(etch_call(f, x, i) && etch_index_select(x, 0, i));
    ETCH_ON(gpu) ETCH_CUDA_GRAPH(g) CHECK(etch_index_select(x, 0, i));
    CHECK(g && etch_copy_(i, whole(1, 99, 3)) && etch_synchronize(gpu) == ETCH_OK);
    CHECK(!pthread_create(&t, NULL, synchronises, NULL));
    for (int k = 0; k < 3000; k++) {
        int before = told;
        ETCH_SCOPE {
            etch_clear_error();
            if (k % 3 == 0) etch_cuda_graph_replay(g);
            else if (k % 3 == 1) etch_call(f, x, i);
            else etch_index_add_(y, 0, i, y);
            told += etch_last_status() == ETCH_ERR_INDEX;
            etch_clear_error();
            told += etch_synchronize(gpu) == ETCH_ERR_INDEX;
        }
        /* The other may have it and not have said so yet. */
        for (int now = rounds; told == before && rounds < now + 3;) usleep(10);
        CHECK(told > before);
    }
    enough = true;
    pthread_join(t, NULL);
    etch_clear_error();
    CHECK(same(here(y), here(ramp(3))));
    etch_cuda_graph_free(g);
    etch_function_free(f);
}

/* A thread that takes a dead one's stream over does not hear of what that one did. */
TEST(a_dead_thread, .setting = "FAKE_CUDA_LAZY=1") {
    pthread_t t;
    job j = {.index = whole(0, 4, 1)};
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    CHECK(!pthread_create(&t, NULL, makes, &j) && !pthread_join(t, NULL) && j.made);
    CHECK(!pthread_create(&t, NULL, reads_its_own, &j) && !pthread_join(t, NULL));
    CHECK(j.status == ETCH_OK);
    etch_release(j.made);
}

TEST(pinned_results, .setting = "FAKE_CUDA_LAZY=1") {
    etch_tensor *y = etch_index_select(ramp(4), 0, whole(0, 4, 1)), *p = etch_to_pinned(y);
    CHECK(p && held());
    CHECK(!etch_data(p) && etch_last_status() == ETCH_ERR_INDEX);
    etch_clear_error();
    CHECK(etch_data(p) && etch_synchronize(gpu) == ETCH_OK);
}

/* Where the copy's own stream has checked nothing. */
TEST(pinned_results_of_another, .setting = "FAKE_CUDA_LAZY=1") {
    pthread_t t;
    job j = {.index = whole(0, 4, 1)};
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    CHECK(!pthread_create(&t, NULL, makes, &j) && !pthread_join(t, NULL) && j.made);
    etch_tensor *p = etch_to_pinned(j.made);
    CHECK(p && !etch_data(p) && etch_last_status() == ETCH_ERR_INDEX);
    etch_clear_error();
    CHECK(etch_data(p) && etch_synchronize(gpu) == ETCH_OK);
    etch_release(j.made);
}

/* A copy to another device waits for this one. */
TEST(copies_between_devices, .setting = "FAKE_CUDA_LAZY=1") {
    if (etch_cuda_count() < 2) return;
    etch_tensor *y = etch_index_select(ramp(4), 0, whole(0, 4, 1));
    CHECK(!etch_to_device(y, ETCH_CUDA(1)) && etch_last_status() == ETCH_ERR_INDEX);
    etch_clear_error();
    CHECK(etch_to_device(ramp(4), ETCH_CUDA(1)) && etch_synchronize(gpu) == ETCH_OK);
}

/* ---- many ---- */

TEST(many_between_waits) {
    enum { N = 3 * FAULT_NOTES };
    etch_tensor *x = ramp(4), *good = whole(0, 1, 2), *bad = whole(0, 1, 4);
    int refused = 0;
    for (int i = 0; i < N; i++)
        ETCH_SCOPE {
            etch_tensor *y = etch_index_select(x, 0, i == FAULT_SLOTS + 3 ? bad : good);
            refused += !y;
            if (!y) CHECK(etch_last_status() == ETCH_ERR_INDEX);
        }
    /* once, by the call that had no slot or at the end */
    etch_clear_error();
    CHECK(refused == 1 && etch_synchronize(gpu) == ETCH_OK);
}

static etch_tensor *fifty(etch_tensor *x, etch_tensor *i) {
    for (int k = 0; k < 50; k++) x = etch_index_select(x, 0, i);
    return x;
}
TEST(many_in_runs) {
    etch_function *f = etch_compile(fifty);
    etch_tensor *x = ramp(3), *turn = whole(1, 2, 0);
    for (int k = 0; k < 60; k++)
        ETCH_SCOPE { CHECK(etch_call(f, x, turn)); }
    CHECK(same(here(etch_call(f, x, turn)), here(fifty(x, turn))));
    CHECK(etch_call(f, x, whole(1, 3, 0)));
    waits_for(ETCH_ERR_INDEX, "index_select", "got 3");
    etch_function_free(f);
}

/* ---- other ways ---- */

static etch_tensor *after;
TEST(blocking, .setting = "ETCH_CUDA_BLOCKING=1") {
    etch_tensor *x = ramp(5);
    CHECK(!etch_index_select(x, 0, whole(0, 5, 1)) && etch_last_status() == ETCH_ERR_INDEX);
    etch_function *f = etch_compile(divides_then_writes);
    for (int i = 0; i < 6; i++) {
        bool bad = i % 3 == 2;
        etch_tensor *n = whole(10, 20, 30);
        etch_clear_error();
        etch_tensor *y = etch_call(f, n, whole(1, bad ? 0 : 2, 3));
        CHECK(!y == bad && (etch_last_status() == ETCH_ERR_DIVISION_BY_ZERO) == bad);
        /* as on the CPU: what does not depend on the division has happened */
        CHECK(same(here(n), here(bad ? whole(11, 25, 38) : whole(11, 27, 38))));
    }
    etch_function_free(f);
}

/* A replay is a call as well. */
TEST(blocking_replay, .setting = "ETCH_CUDA_BLOCKING=1") {
    etch_tensor *x = ramp(5), *i = whole(0, 1, 2);
    etch_cuda_graph *g = NULL;
    ETCH_ON(gpu) {
        CHECK(etch_index_select(x, 0, i));
        ETCH_CUDA_GRAPH(g) CHECK(etch_index_select(x, 0, i));
    }
    CHECK(g && etch_cuda_graph_replay(g) == ETCH_OK);
    CHECK(etch_copy_(i, whole(0, 7, 2)) && etch_cuda_graph_replay(g) == ETCH_ERR_INDEX);
    CHECK(etch_synchronize(gpu) == ETCH_OK);
    etch_cuda_graph_free(g);
}

TEST(in_a_graph_of_the_users) {
    etch_tensor *x = ramp(5), *i = whole(0, 1, 2), *y = ramp(5), *one = ramp(3);
    etch_cuda_graph *g = NULL, *h = NULL;
    ETCH_ON(gpu) {
        ETCH_CUDA_GRAPH(h) {
            CHECK(!etch_index_select(x, 0, i) && etch_last_status() == ETCH_ERR_UNSUPPORTED);
            CHECK(says(etch_last_error(), "have run before"));
            etch_clear_error();
        }
        etch_cuda_graph_free(h);
        CHECK(etch_index_select(x, 0, i) && etch_index_add_(y, 0, i, one));
        CHECK(etch_synchronize(gpu) == ETCH_OK);
        ETCH_CUDA_GRAPH(g) {
            after = etch_neg(etch_index_select(x, 0, i));
            CHECK(after && etch_index_add_(y, 0, i, one));
        }
    }
    CHECK(g && etch_cuda_graph_replay(g) == ETCH_OK && etch_item(etch_sum(after)) == -3);
    CHECK(etch_item(etch_sum(y)) == 10 + 3 + 3);
    etch_copy_(i, whole(4, 3, -1));
    CHECK(etch_cuda_graph_replay(g) == ETCH_OK);
    waits_for(ETCH_ERR_INDEX, "index_select: expected indices from 0 to 4, got -1", "");
    CHECK(etch_item(etch_sum(y)) == 10 + 3 + 3);
    etch_copy_(i, whole(4, 3, 3));
    CHECK(etch_cuda_graph_replay(g) == ETCH_OK && etch_item(etch_sum(after)) == -10);
    CHECK(etch_item(etch_sum(y)) == 10 + 3 + 3 + 3);
    /* a replay that fails between two that do not, before anybody waits */
    for (int k = 0; k < 3; k++) {
        etch_copy_(i, whole(0, 1, k == 1 ? 5 : 4));
        CHECK(etch_cuda_graph_replay(g) == ETCH_OK);
    }
    waits_for(ETCH_ERR_INDEX, "index_select", "got 5");
    CHECK(etch_item(etch_sum(y)) == 10 + 3 + 3 + 3 + 3 + 3);
    etch_cuda_graph_free(g);
}

/* A kernel of the user that writes cannot test a slot: what was checked before it is waited for. */
static int bumps;
static etch_status bump(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                        etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)out, (void)nout;
    bumps++;
    return etch_add_scalar_(args[0].tensor, 1) ? ETCH_OK : etch_last_status();
}
static etch_status as_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    etch_tensor *t = args[0].tensor;
    out[0].dtype = etch_dtype_of(t), out[0].sizes.n = etch_ndim(t);
    for (int d = 0; d < etch_ndim(t); d++) out[0].sizes.v[d] = etch_size(t, d);
    return ETCH_OK;
}
static const etch_op *bump_op;
static etch_tensor *bumps_after(etch_tensor *x, etch_tensor *i) {
    etch_tensor *v = etch_index_select(x, 0, i);
    etch_value arg = {.tag = ETCH_VALUE_TENSOR, .tensor = x};
    etch_tensor *out = NULL;
    return etch_op_call(bump_op, &arg, 1, &out, 1) == ETCH_OK ? v : NULL;
}
TEST(kernels_of_the_user) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = bump, .cuda = bump, .shape = as_first};
    CHECK((bump_op = etch_op_register("faults::bump_(Tensor(a!) self) -> Tensor(a!)", &d)));
    etch_function *f = etch_compile(bumps_after);
    for (int i = 0; i < 5; i++) {
        bool bad = i == 3;
        etch_tensor *x = ramp(4);
        etch_clear_error();
        int before = bumps;
        etch_tensor *y = etch_call(f, x, whole(0, bad ? 4 : 3, 1));
        if (y && bad) y = etch_synchronize(gpu) == ETCH_OK ? y : NULL;
        CHECK(!y == bad && (etch_last_status() == ETCH_ERR_INDEX) == bad);
        CHECK(bumps == before + !bad && etch_synchronize(gpu) == ETCH_OK);
        CHECK(etch_item(etch_sum(x)) == 6 + (bad ? 0 : 4));
    }
    etch_clear_error();
    etch_function_free(f);
}

/* ---- failures of the driver and of memory ---- */

static bool program(etch_function *f) {
    bool ok = false;
    ETCH_SCOPE {
        etch_tensor *x = ramp(4), *y = etch_call(f, x, whole(0, 3, 2)), *p = etch_to_pinned(y);
        ok = p && etch_index_put_(x, whole(0, 1, 2), y, false) && etch_data(p) &&
             etch_item(etch_sum(x)) == 10 - 0 + 3 - 3 + 3;
    }
    return ok;
}

TEST(each_call_fails_once, .only_on_fakes = true) {
    etch_function *f = etch_compile(selects);
    bool done = false;
    CHECK(program(f) && program(f));
    int n = 1;
    for (; !done && n < 3000; n++) {
        unsigned long before = failed();
        etch_clear_error();
        fail_after(n);
        bool ok = program(f);
        fail_after(0);
        done = failed() == before;
        if (!ok && !done) CHECK(etch_last_status() != ETCH_OK);
        etch_clear_error();
        etch_synchronize(gpu);
        etch_clear_error();
    }
    CHECK(n > 20 && done);
    etch_function_free(f);
}

static bool calls_thrice(etch_function *f) {
    etch_tensor *table = ramp(40), *tokens = NULL;
    if (!table || !(table = etch_view(table, ETCH_SHAPE(10, 4)))) return false;
    for (int i = 0; i < 3; i++)
        if (!(tokens = whole(i, 1, 2)) || !etch_call(f, table, tokens)) return false;
    return etch_synchronize(gpu) == ETCH_OK;
}

typedef struct counted {
    etch_status status;
    int64_t fail, asked; /* which allocation is to fail, how many there were */
} counted;

/* A thread that begins with it, so that slots are made under it. */
static void *has_slots(void *ctx) {
    counted *c = ctx;
    ETCH_SCOPE {
        etch__fail_allocation(c->fail);
        etch_function *f = etch_compile(embeds, .mode = ETCH_MODE_REDUCE_OVERHEAD);
        c->status = f && calls_thrice(f) ? ETCH_OK : etch_last_status();
        c->asked = etch__fail_allocation(-1);
        etch_function_free(f);
    }
    return NULL;
}

TEST(each_allocation_fails_once, .only_on_fakes = true) {
    pthread_t t;
    counted c = {.fail = -1};
    has_slots(&c); /* kernels are there */
    CHECK(c.status == ETCH_OK);
    int64_t tensors = etch_memory().tensors, errors = 0, n = 0;
    for (bool last = false; !last && n < 3000; n++) {
        c = (counted){.fail = n};
        CHECK(!pthread_create(&t, NULL, has_slots, &c) && !pthread_join(t, NULL));
        last = c.asked <= n;
        /* what failed, or that the next operator got nothing */
        CHECK(!c.status || c.status == ETCH_ERR_OUT_OF_MEMORY || c.status == ETCH_ERR_NULL);
        CHECK(etch_memory().tensors == tensors);
        errors += c.status != ETCH_OK;
    }
    CHECK(n > 20 && n < 3000 && errors > 0);
}

int main(int argc, char **argv) { return run_in_children(argc, argv); }
