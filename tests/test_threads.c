/* Threads: calling, compiling, resetting and freeing at the same time, sharing tensors, forking.
 *
 * Run plain and under ThreadSanitizer; tests/tsan.supp names the libraries that it cannot see into.
 * cmocka's checks end the calling thread's test, so threads note what is wrong and the test fails
 * when they have been joined.
 * Labels: device optimised. */
#include <math.h>
#include <string.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/locks.h"
#include "device_support.h"
#include "tests/trace_support.h"

#if defined(__SANITIZE_THREAD__)
#define ROUNDS(n) ((n) / 5)
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "die_after_fork=0:suppressions=" ETCH_TEST_SOURCE_DIR "/tests/tsan.supp";
}
#else
#define ROUNDS(n) (n)
#endif

enum { THREADS = 4 };

static atomic_int wrong;
static char first_wrong[512];

static void note(const char *what, int line) {
    if (atomic_fetch_add(&wrong, 1) == 0)
        snprintf(first_wrong, sizeof first_wrong, "line %d: %s: %s", line, what, etch_last_error());
}
#define CHECK(c) ((c) ? true : (note(#c, __LINE__), false))

static void assert_none_wrong(void) {
    int n = atomic_exchange(&wrong, 0);
    if (n) fail_msg("%d wrong, the first: %s", n, first_wrong);
}

static pthread_barrier_t start;

typedef struct job {
    pthread_t thread;
    void (*fn)(int number);
    int number;
} job;

static void *run_job(void *arg) {
    job *j = arg;
    test_device_enter();
    pthread_barrier_wait(&start);
    ETCH_SCOPE { j->fn(j->number); }
    return NULL;
}

/* Thread i runs fn[i % nfn](i); they begin together. */
static void on_threads(void (*const *fn)(int), int nfn) {
    job jobs[THREADS];
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        jobs[i].fn = fn[i % nfn], jobs[i].number = i;
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(jobs[i].thread, NULL);
    pthread_barrier_destroy(&start);
    assert_none_wrong();
}

static void on_all_threads(void (*fn)(int)) { on_threads(&fn, 1); }

/* ---- functions under test ---- */

static etch_function *shared;
static const char *backend_name;

static etch_tensor *chain(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 1.25);
    etch_tensor *z = etch_exp(y);
    etch_tensor *s = etch_sum_dim(z, ETCH_DIMS(1), true);
    return etch_div(z, s);
}

static etch_tensor *breaking(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, x);
    etch_tensor *s = etch_sum(y);
    if (etch_item(s) > 40) return etch_neg(y);
    return etch_add(y, s);
}

static etch_tensor *writing(etch_tensor *x) {
    etch_add_scalar_(x, 1);
    etch_tensor *y = etch_sin(x);
    etch_mul_(x, y);
    return etch_sub(x, y);
}

/* Calls f and the plain body on the same values. */
static bool same_as_plain(etch_function *f, etch_fn1 body, int64_t rows, int64_t columns) {
    bool ok = false;
    ETCH_SCOPE {
        etch_tensor *a = etch_arange(ETCH_F32, 0, (double)(rows * columns), 1);
        etch_tensor *b = etch_view(a, ETCH_SHAPE(rows, columns));
        etch_tensor *x = etch_div_scalar(b, 9), *x2 = etch_clone(x);
        etch_tensor *y = etch_call(f, x), *y2 = body(x2);
        ok = y && y2 && etch_bitwise_equal(y, y2) && etch_bitwise_equal(x, x2);
    }
    return ok;
}

/* ---- the same function ---- */

static void call_chain(int number) {
    for (int i = 0; i < ROUNDS(60); i++)
        if (!CHECK(same_as_plain(shared, chain, 3 + (i + number) % 3, 4))) return;
}
static void call_breaking(int number) {
    for (int i = 0; i < ROUNDS(60); i++)
        if (!CHECK(same_as_plain(shared, breaking, 2 + (i + number) % 4, 4))) return;
}
static void call_writing(int number) {
    for (int i = 0; i < ROUNDS(60); i++)
        if (!CHECK(same_as_plain(shared, writing, 3 + (i + number) % 3, 4))) return;
}

TEST(same_function) {
    static const struct {
        etch_fn1 body;
        void (*calls)(int);
    } rows[] = {{chain, call_chain}, {breaking, call_breaking}, {writing, call_writing}};
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 3; i++) {
            shared = etch_compile(rows[i].body, .backend = test_backends[b]);
            on_all_threads(rows[i].calls);
            assert_true(etch_function_counters(shared).plan_runs > 0);
            etch_function_free(shared);
            assert_int_equal(etch_memory().tensors, 0);
        }
}

/* ---- different functions, compiled and freed at the same time ---- */

static void compile_and_free(int number) {
    static const etch_fn1 bodies[] = {chain, breaking, writing};
    for (int i = 0; i < ROUNDS(20); i++) {
        etch_fn1 body = bodies[(i + number) % 3];
        etch_function *f = etch_compile(body, .backend = backend_name);
        if (!CHECK(f)) return;
        for (int call = 0; call < 3; call++) CHECK(same_as_plain(f, body, 3, 3 + (number + i) % 3));
        etch_function_free(f);
    }
}

TEST(compiling) {
    for (int b = 0; b < 2; b++) {
        backend_name = test_backends[b];
        on_all_threads(compile_and_free);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- resets, counters, settings while others run ---- */

static void reset_all_the_time(int number) {
    for (int i = 0; i < ROUNDS(100); i++) {
        etch_reset(i % 4 == 3 ? NULL : shared);
        etch_counters_t c = etch_counters();
        etch_memory_stats m = etch_memory();
        CHECK(c.calls >= 0 && m.bytes_live >= 0);
        CHECK(etch_function_counters(shared).calls >= 0);
        if (number % 2) usleep(200);
    }
}

TEST(reset_while_running) {
    void (*const fns[])(int) = {call_chain, reset_all_the_time};
    for (int b = 0; b < 2; b++) {
        shared = etch_compile(chain, .backend = test_backends[b]);
        on_threads(fns, 2);
        etch_function_free(shared);
    }
    void (*const breaking_fns[])(int) = {call_breaking, reset_all_the_time};
    shared = etch_compile(breaking, .backend = "eager");
    on_threads(breaking_fns, 2);
    etch_function_free(shared);
    assert_int_equal(etch_memory().tensors, 0);
}

static void change_threads(int number) {
    for (int i = 0; i < ROUNDS(30); i++)
        CHECK(etch_set_num_threads(1 + (i + number) % 3) == ETCH_OK);
}

static void use_pool(int number) {
    (void)number;
    for (int i = 0; i < ROUNDS(10); i++)
        ETCH_SCOPE {
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(512, 300));
            etch_tensor *y = etch_call(shared, x);
            CHECK(y && etch_item(etch_sum(y)) > 0);
            etch_tensor *e = etch_exp(x);
            CHECK(etch_item(etch_max(e)) == etch_item(etch_min(e)));
        }
}

TEST(pool_changes) {
    int threads = etch_num_threads();
    void (*const fns[])(int) = {use_pool, change_threads};
    shared = etch_compile(chain);
    on_threads(fns, 2);
    etch_function_free(shared);
    etch_set_num_threads(threads);
}

/* ---- freed while it runs ---- */

static atomic_int inside, may_go_on;

static etch_tensor *waits(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    atomic_fetch_add(&inside, 1);
    while (!atomic_load(&may_go_on)) usleep(100);
    return etch_neg(y);
}

static void *call_waits(void *arg) {
    (void)arg;
    test_device_enter();
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3));
        etch_tensor *y = etch_call(shared, x);
        CHECK(y && etch_bitwise_equal(y, etch_neg(etch_exp(x))));
    }
    return NULL;
}

TEST(free_while_running) {
    for (int warm = 0; warm < 3; warm++) {
        pthread_t threads[2];
        shared = etch_compile(waits);
        atomic_store(&may_go_on, 1);
        for (int i = 0; i < warm; i++) call_waits(NULL);
        atomic_store(&may_go_on, 0);
        atomic_store(&inside, 0);
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, call_waits, NULL);
        while (atomic_load(&inside) < 2) usleep(100);
        etch_reset(shared);
        etch_function_free(shared);
        atomic_store(&may_go_on, 1);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        assert_none_wrong();
        assert_int_equal(etch_memory().tensors, 0);
    }
}

/* ---- shared tensors ---- */

static etch_tensor *weights, *bias;

static etch_tensor *layer(etch_tensor *x) {
    etch_tensor *y = etch_mm(x, weights);
    etch_tensor *z = etch_add(y, bias);
    etch_tensor *t = etch_t(weights);
    etch_tensor *m = etch_mm(z, t);
    return etch_relu(m);
}

static void call_layer(int number) {
    for (int i = 0; i < ROUNDS(40); i++) {
        etch_tensor *w = etch_retain(weights);
        CHECK(same_as_plain(shared, layer, 2 + number % 2, 8));
        etch_release(w);
    }
}

TEST(captured_tensors) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            weights = etch_randn(ETCH_F32, ETCH_SHAPE(8, 8));
            bias = etch_randn(ETCH_F32, ETCH_SHAPE(8));
            shared = etch_compile(layer, .backend = test_backends[b]);
            on_all_threads(call_layer);
            etch_function_free(shared);
        }
    assert_int_equal(etch_memory().tensors, 0);
}

static void call_sites(int number) {
    (void)number;
    for (int i = 0; i < ROUNDS(30); i++)
        ETCH_SCOPE {
            etch_tensor *x = arange_f32(3, 4);
            etch_fn1 fn = i % 2 ? chain : breaking;
            etch_tensor *y = ETCH_CALL_COMPILED(fn, x);
            CHECK(y && etch_bitwise_equal(y, fn(x)));
        }
}

TEST(call_sites) {
    on_all_threads(call_sites);
    etch_reset(NULL);
    assert_int_equal(etch_memory().tensors, 0);
}

static atomic_int callbacks_run;
static void count_callback(void *ctx) { (void)ctx, atomic_fetch_add(&callbacks_run, 1); }
static void ignore_line(void *ctx, const char *line) { (void)ctx, (void)line; }

static void settings(int number) {
    for (int i = 0; i < ROUNDS(20); i++) {
        int64_t handle = etch_on_compile_end(count_callback, NULL);
        etch_function *f = etch_compile(chain, .backend = "eager");
        CHECK(same_as_plain(f, chain, 2, 2 + number));
        etch_function_free(f);
        etch_callback_remove(handle);
        etch_set_logs(i % 2 ? "all" : "");
        etch_set_default_dtype(number % 2 ? ETCH_F64 : ETCH_F32);
        CHECK(etch_default_dtype() == (number % 2 ? ETCH_F64 : ETCH_F32));
        CHECK(etch_list_backends()[0] != NULL && etch_op_find("add.Tensor") != NULL);
        if (number == 0) etch_counters_reset();
    }
}

TEST(settings) {
    etch_set_log_sink(ignore_line, NULL);
    on_all_threads(settings);
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    assert_true(atomic_load(&callbacks_run) > 0);
}

/* ---- deferred handles on another thread (rule 11 of docs/architecture.md) ---- */

typedef struct visit {
    etch_tensor *t;
    bool deferred;
    etch_status operator_status, item_status, call_status;
    double value;
} visit;

static visit seen;

static void *visitor(void *arg) {
    visit *v = arg;
    ETCH_SCOPE {
        etch_clear_error();
        v->deferred = etch_is_deferred(v->t);
        v->operator_status = etch_neg(v->t) ? ETCH_OK : etch_last_status();
        etch_clear_error();
        v->value = etch_item(v->t);
        v->item_status = etch_last_status();
        etch_clear_error();
        v->call_status = etch_call(shared, v->t) ? ETCH_OK : etch_last_status();
    }
    return NULL;
}

static bool flush_first;

static etch_tensor *visited(etch_tensor *x) {
    etch_tensor *y = etch_sum(x);
    pthread_t thread;
    if (flush_first) etch_flush();
    seen.t = y;
    pthread_create(&thread, NULL, visitor, &seen);
    pthread_join(thread, NULL);
    return etch_add_scalar(y, 1);
}

TEST(rule11_deferred_elsewhere) {
    for (int flush = 0; flush < 2; flush++)
        ETCH_SCOPE {
            flush_first = flush;
            etch_function *f = etch_compile(visited);
            shared = etch_compile(chain, .disable = flush == 0);
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(5));
            for (int call = 0; call < 4; call++) {
                etch_tensor *y = etch_call(f, x);
                assert_non_null(y);
                assert_true(etch_item(y) == 6);
                if (seen.deferred) {
                    assert_int_equal(seen.operator_status, ETCH_ERR_DEFERRED_ELSEWHERE);
                    assert_int_equal(seen.item_status, ETCH_ERR_DEFERRED_ELSEWHERE);
                    assert_int_equal(seen.call_status, ETCH_ERR_DEFERRED_ELSEWHERE);
                    assert_true(isnan(seen.value));
                } else {
                    assert_int_equal(seen.operator_status, ETCH_OK);
                    assert_true(seen.value == 5);
                }
                assert_int_equal(seen.deferred, call > 0 && !flush);
            }
            etch_function_free(f);
            etch_function_free(shared);
        }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- fork ---- */

static etch_tensor *fresh_in_child(etch_tensor *x) {
    etch_tensor *y = etch_sub_scalar(x, 0.375);
    return etch_mul(y, y);
}

/* What a child tries; the exit status says which step went wrong. */
static int child_steps(bool threads) {
    alarm(100);
    int failed = 0;
    ETCH_SCOPE {
        if (!same_as_plain(shared, chain, 3, 4)) failed = 1;
        etch_function *f = etch_compile(fresh_in_child, .backend = backend_name);
        for (int call = 0; !failed && call < 3; call++)
            if (!same_as_plain(f, fresh_in_child, 5, 5)) failed = 2;
        if (!failed && etch_function_counters(f).plan_runs != 2) failed = 3;
        etch_function_free(f);
        if (!failed && threads && etch_set_num_threads(2) != ETCH_OK) failed = 4;
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(512, 300));
        etch_tensor *y = failed || !threads ? NULL : etch_exp(x);
        if (y && etch_item(etch_max(y)) != etch_item(etch_min(y))) failed = 5;
        etch_reset(NULL);
        if (!failed && !same_as_plain(shared, chain, 2, 4)) failed = 6;
    }
    return failed;
}

static void fork_and_check(bool threads) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(child_steps(threads));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("the child: exit %d, signal %d", WEXITSTATUS(status),
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

TEST(fork) {
    ONLY_ON_CPU(); /* a driver does not survive a fork */
    int threads = etch_num_threads();
    assert_int_equal(etch_set_num_threads(2), ETCH_OK);
    for (int b = 0; b < 2; b++) {
        backend_name = test_backends[b];
        shared = etch_compile(chain, .backend = backend_name);
        for (int call = 0; call < 3; call++) assert_true(same_as_plain(shared, chain, 3, 4));
        ETCH_SCOPE {
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(512, 300));
            assert_non_null(etch_exp(x)); /* the pool has workers now */
        }
        fork_and_check(true);
        assert_true(same_as_plain(shared, chain, 3, 4));
        etch_function_free(shared);
    }
    etch_set_num_threads(threads);
}

static atomic_bool stop;

static void *keep_busy(void *arg) {
    (void)arg;
    while (!atomic_load(&stop)) {
        etch_function *f = etch_compile(breaking, .backend = "eager");
        CHECK(same_as_plain(f, breaking, 2, 4) && same_as_plain(shared, chain, 3, 4));
        CHECK(same_as_plain(f, breaking, 2, 4) && same_as_plain(shared, chain, 4, 4));
        etch_function_free(f);
        ETCH_SCOPE {
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(300, 300));
            CHECK(etch_neg(x));
        }
    }
    return NULL;
}

/* Forked while other threads compile, run, allocate: no lock stays behind in the child.
 * AddressSanitizer's own allocator leaves one there (GCC 12: the child waits for its mutex
 * of a size class for ever). */
TEST(fork_while_running) {
    ONLY_ON_CPU(); /* a driver does not survive a fork */
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    pthread_t busy[2];
    backend_name = "eager";
    shared = etch_compile(chain, .backend = backend_name);
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++) pthread_create(&busy[i], NULL, keep_busy, NULL);
    for (int i = 0; i < ROUNDS(30); i++) fork_and_check(false);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) pthread_join(busy[i], NULL);
    assert_none_wrong();
    etch_function_free(shared);
}

/* In a child, since what a thread did in the wrong order fails the whole suite. */
TEST(locks_have_an_order) {
    pid_t child = fork();
    if (child == 0) {
        etch__lock(LOCK_RANDOM);
        etch__lock(LOCK_LOG);
        const char *said = etch__lock_disorder();
#ifdef NDEBUG
        _exit(said != NULL);
#else
        _exit(!said || strcmp(said, "LOG under RANDOM") != 0);
#endif
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
