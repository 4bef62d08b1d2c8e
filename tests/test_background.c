/* `background = true`: eager until the code is ready, then compiled, the same bits throughout;
 * freeing, resetting, forking and exiting while a compile goes on. A backend whose compile waits at
 * a gate makes "while a compile goes on" something that tests can hold still. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trace_support.h"
#include "tracer/learn/learn.h"

/* ---- the gate ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static bool open_gate, fails;
static int arrived, passed;

static etch_status waits(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx, (void)g;
    pthread_mutex_lock(&gate);
    arrived++;
    pthread_cond_broadcast(&moved);
    while (!open_gate) pthread_cond_wait(&moved, &gate);
    passed++;
    pthread_mutex_unlock(&gate);
    out->backend = "eager";
    return fails ? etch_set_error(ETCH_ERR_UNSUPPORTED, "it fails") : ETCH_OK;
}

static void set_gate(bool open) {
    pthread_mutex_lock(&gate);
    open_gate = open;
    if (!open) arrived = passed = 0;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&gate);
}

static void *opens(void *arg) {
    set_gate(true);
    return arg;
}

static void wait_for_arrival(void) {
    pthread_mutex_lock(&gate);
    while (!arrived) pthread_cond_wait(&moved, &gate);
    pthread_mutex_unlock(&gate);
}

static void close_gate(void) {
    set_gate(false);
    fails = false;
    etch_clear_error();
}
EACH_TEST(.before = close_gate)

#define BEHIND_GATE(fn, ...) etch_compile(fn, .backend = "gate", .background = true, ##__VA_ARGS__)

/* ---- the program ---- */

static etch_tensor *body(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    etch_tensor *z = etch_exp(y);
    return etch_sub(z, x);
}

static void check_call(etch_function *f, int64_t rows, double add) {
    etch_tensor *x = etch_add_scalar(arange_f32(rows, 3), add);
    etch_tensor *expected = body(x);
    assert_same(etch_call(f, x), expected);
}

TEST(eager_until_ready) {
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(body);
        for (int i = 0; i < 5; i++) check_call(f, 4, i);
        assert_counts(f, 0, 0);
        wait_for_arrival();
        check_call(f, 4, 9);
        assert_counts(f, 0, 0);
        set_gate(true);
        etch__background_wait();
        assert_counts(f, 1, 0);
        for (int i = 0; i < 3; i++) check_call(f, 4, i);
        assert_counts(f, 1, 3);
        assert_int_equal(passed, 1);
        etch_function_free(f);
    }
}

TEST(generated_code_from_the_background) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(body, .background = true);
        for (int rows = 1; rows < 8; rows++) {
            check_call(f, rows, 0);
            etch__background_wait();
            check_call(f, rows, 1);
            etch__background_wait();
            check_call(f, rows, 2);
        }
        assert_true(etch_function_counters(f).graphs <= 3);
        assert_true(etch_function_counters(f).plan_runs >= 7);
        etch_function_free(f);
    }
}

/* ---- callbacks ---- */

static pthread_t called_on[2];
static int called[2];

static void note_thread(void *ctx) {
    int end = ctx != NULL;
    assert_int_equal(called[1], 0);
    called_on[end] = pthread_self();
    called[end]++;
}

TEST(callbacks_fire_from_the_compiling_thread) {
    called[0] = called[1] = 0;
    int64_t start = etch_on_compile_start(note_thread, NULL);
    int64_t end = etch_on_compile_end(note_thread, called);
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(body);
        check_call(f, 2, 0);
        wait_for_arrival();
        assert_int_equal(called[0], 1);
        assert_int_equal(called[1], 0);
        set_gate(true);
        etch__background_wait();
        assert_int_equal(called[1], 1);
        assert_true(pthread_equal(called_on[0], called_on[1]));
        assert_false(pthread_equal(called_on[0], pthread_self()));
        check_call(f, 2, 1);
        assert_int_equal(called[0], 1);
        etch_function_free(f);
    }
    etch_callback_remove(start);
    etch_callback_remove(end);
}

static etch_function *freed_inside;
static void frees(void *ctx) {
    (void)ctx;
    etch_function_free(freed_inside);
}

/* A callback may free the very function that is being compiled. */
TEST(callback_frees_the_function) {
    int64_t start = etch_on_compile_start(frees, NULL);
    set_gate(true);
    ETCH_SCOPE {
        freed_inside = BEHIND_GATE(body);
        etch_tensor *x = arange_f32(2, 3);
        assert_non_null(etch_call(freed_inside, x));
        etch__background_wait();
    }
    etch_callback_remove(start);
}

/* ---- freeing and resetting ---- */

TEST(freed_while_compiling) {
    pthread_t opener;
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(body), *other = BEHIND_GATE(body);
        check_call(f, 2, 0);
        check_call(other, 2, 0); /* queued behind it */
        wait_for_arrival();
        etch_function_free(other); /* taken off the queue */
        assert_int_equal(pthread_create(&opener, NULL, opens, NULL), 0);
        etch_function_free(f); /* waits */
        pthread_join(opener, NULL);
        assert_int_equal(passed, 1);
        etch__background_wait();
        assert_int_equal(arrived, 1);
    }
}

TEST(reset_while_compiling) {
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(body);
        check_call(f, 2, 0);
        wait_for_arrival();
        etch_reset(f);
        check_call(f, 2, 1); /* recorded afresh */
        set_gate(true);
        etch__background_wait();
        check_call(f, 2, 2);
        assert_int_equal(passed, 2);
        assert_int_equal(etch_function_counters(f).plan_runs, 1);
        etch_function_free(f);
    }
}

TEST(failing_compiles) {
    set_gate(true);
    fails = true;
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(body);
        for (int i = 0; i < 3; i++) {
            check_call(f, 2, i);
            etch__background_wait();
        }
        assert_int_equal(etch_last_status(), ETCH_OK);
        etch_function_free(f);
    }
}

/* ---- with other options ---- */

static etch_tensor *escaped;
static bool escapes;

static etch_tensor *keeps(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 3);
    etch_tensor *z = etch_exp(y);
    if (escapes) escaped = etch_retain(y);
    return etch_sub(z, x);
}

/* A result that is wanted for the first time: the code is made again, in the background, too. */
TEST(recompiles_in_the_background) {
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(keeps);
        etch_tensor *x = arange_f32(2, 3), *three = etch_mul_scalar(x, 3), *expected = body(x);
        set_gate(true);
        assert_non_null(etch_call(f, x));
        etch__background_wait();
        escapes = true;
        for (int i = 0; i < 3; i++) {
            assert_same(etch_call(f, x), expected);
            assert_same(escaped, three);
            etch_release(escaped);
            etch__background_wait();
        }
        escapes = false;
        assert_counts(f, 2, 2);
        etch_function_free(f);
    }
}

TEST(with_fullgraph_replay_and_stable_after) {
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(body, .fullgraph = true, .replay = true, .stable_after = 2);
        for (int i = 0; i < 6; i++) {
            check_call(f, 2, i);
            if (i == 1) set_gate(true); /* the second call, too, has no code yet */
            etch__background_wait();
            assert_int_equal(etch_function_counters(f).graphs, i > 0);
        }
        assert_int_equal(etch_function_counters(f).plan_runs, 4);
        etch_function_free(f);
    }
}

static etch_tensor *writes_both(etch_tensor *x, etch_tensor *y) {
    etch_add_(x, y);
    etch_mul_scalar_(y, 2);
    return etch_sub(x, y);
}

TEST(aliases_and_sizes) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes_both, .background = true, .backend = "eager");
        for (int i = 0; i < 24; i++) {
            int64_t rows = 2 + i % 3;
            etch_tensor *x = arange_f32(rows, 3), *x2 = arange_f32(rows, 3);
            etch_tensor *y = i % 2 ? x : arange_f32(rows, 3),
                        *y2 = i % 2 ? x2 : arange_f32(rows, 3);
            etch_tensor *expected = writes_both(x2, y2);
            assert_same(etch_call(f, x, y), expected);
            assert_same(x, x2);
            assert_same(y, y2);
            if (i % 5 == 4) etch__background_wait();
        }
        assert_true(etch_function_counters(f).plan_runs > 0);
        etch_function_free(f);
    }
}

/* ---- fork and exit ---- */

/* ThreadSanitizer has no threads in the child of a process with several. */
#ifdef __SANITIZE_THREAD__
#define SKIP_UNDER_TSAN skip()
#else
#define SKIP_UNDER_TSAN (void)0
#endif

static int status_of(pid_t child) {
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

TEST(fork_while_compiling) {
    SKIP_UNDER_TSAN;
    ETCH_SCOPE {
        etch_function *f = BEHIND_GATE(body);
        check_call(f, 2, 0);
        wait_for_arrival();
        pid_t child = fork();
        if (!child) {
            /* What went on in the parent is done again. The copy of the condition has the parent's
             * waiter in it. */
            moved = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
            check_call(f, 2, 1);
            set_gate(true);
            etch__background_wait();
            check_call(f, 2, 2);
            etch_counters_t c = etch_function_counters(f);
            etch_function_free(f);
            _exit(c.graphs == 1 && c.plan_runs == 1 ? 0 : 1);
        }
        assert_int_equal(status_of(child), 0);
        set_gate(true);
        etch__background_wait();
        check_call(f, 2, 3);
        assert_counts(f, 1, 1);
        etch_function_free(f);
    }
}

/* Three compiles are asked for; exit waits for the one that has begun. First: this process has no
 * thread of its own yet. */
TEST(exit_while_compiling, .first = true) {
    for (int free_first = 0; free_first < 2; free_first++) {
        pid_t child = fork();
        if (!child) {
            int64_t scope = etch_scope_begin();
            for (int i = 0; i < 3; i++) {
                etch_function *f = etch_compile(body, .background = true);
                check_call(f, 2 + i, 0);
                if (free_first && i == 1) etch_function_free(f);
            }
            etch_scope_end(scope);
            exit(0);
        }
        assert_int_equal(status_of(child), 0);
    }
}

/* ---- threads ---- */

static void *calls(void *arg) {
    etch_function *shared = arg;
    for (int i = 0; i < 20; i++)
        ETCH_SCOPE {
            etch_function *own = etch_compile(body, .background = true, .backend = "eager");
            check_call(shared, 1 + i % 4, i);
            check_call(own, 2, i);
            check_call(own, 3, i);
            if (i % 7 == 3) etch_reset(shared);
            check_call(own, 2, i);
            etch_function_free(own);
        }
    return NULL;
}

TEST(many_threads) {
    pthread_t t[4];
    etch_function *f = etch_compile(body, .background = true, .backend = "eager");
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, calls, f), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    etch_function_free(f);
    etch__background_wait();
}

static void drop_line(void *ctx, const char *line) { (void)ctx, (void)line; }

int main(int argc, char **argv) {
    if (etch_register_backend("gate", waits, NULL) != ETCH_OK) return 1;
    etch_set_log_sink(drop_line, NULL);
    return run_suite(argc, argv);
}
