/* Peaks of memory: no call of a compiled function, the first included, holds more than a fifth
 * above what eager code does. Counted by etch_memory, whose peak is right to within 64 KiB a
 * thread.
 * Labels: optimised. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/programs.h"
#include "core/tensor/tensor.h"
#include "tests/device_support.h"
#include "tests/trace_support.h"
#include "tracer/run/run.h"

enum { SIDE = 256, SMALL_SIDE = 24, TENSOR = SIDE * SIDE * 4, SLACK = 2 << 16 };

typedef struct inputs {
    etch_tensor *x, *y;
} inputs;

static inputs inputs_of(int64_t side) {
    etch_manual_seed(7);
    etch_tensor *x = etch_mul_scalar(etch_randn(ETCH_F32, ETCH_SHAPE(side, side)), 0.06);
    etch_tensor *y = etch_mul_scalar(etch_randn(ETCH_F32, ETCH_SHAPE(side, side)), 0.06);
    assert_non_null(y);
    return (inputs){x, y};
}

static inputs make_inputs(void) { return inputs_of(SIDE); }

/* One call; expected: its values, or NULL for the first. What the body holds beyond the call is let
 * go. */
static int64_t peak_of(etch_function *f, etch_fn2 body, inputs in, etch_tensor **expected) {
    etch_memory_reset_peak();
    int64_t before = etch_memory().bytes_live, peak = 0;
    ETCH_SCOPE {
        etch_tensor *out = f ? etch_call(f, in.x, in.y) : body(in.x, in.y);
        assert_non_null(out);
        peak = etch_memory().bytes_peak - before;
        if (*expected) assert_same(*expected, out);
        else *expected = etch_retain(out);
    }
    return peak;
}

static void assert_bounded(const char *name, int call, int64_t peak, int64_t eager) {
    if (peak > eager + eager / 5 + SLACK)
        fail_msg("%s: call %d holds %lld bytes, eager code %lld", name, call, (long long)peak,
                 (long long)eager);
}

typedef struct peaks {
    int64_t eager, call[8];
} peaks;

/* Eagerly, then so many calls of f, which is freed. */
static peaks measure(etch_function *f, etch_fn2 body, int calls) {
    peaks p = {0};
    assert_non_null(f);
    ETCH_SCOPE {
        inputs in = make_inputs();
        etch_tensor *expected = NULL;
        p.eager = peak_of(NULL, body, in, &expected);
        for (int i = 0; i < calls; i++) p.call[i] = peak_of(f, body, in, &expected);
        etch_release(expected);
    }
    etch_function_free(f);
    return p;
}

static void assert_peaks(const char *name, etch_function *f, etch_fn2 body, int calls) {
    peaks p = measure(f, body, calls);
    for (int i = 0; i < calls; i++) assert_bounded(name, i, p.call[i], p.eager);
}

/* ---- ordinary programs ---- */

TEST(programs) {
    bench_rounds = 12;
    for (const bench_program *p = bench_programs; p->name; p++)
        assert_peaks(p->name, etch_compile(p->body), p->body, 3);
}

static etch_fn2 program(const char *name) {
    const bench_program *p = bench_programs;
    while (strcmp(p->name, name)) p++;
    return p->body;
}

TEST(thousand_rounds) {
    etch_fn2 body = program("two operators");
    bench_rounds = 1000;
    peaks p = measure(etch_compile(body), body, 2);
    assert_true(p.eager <= 3 * TENSOR + SLACK);
    assert_bounded("first", 0, p.call[0], p.eager);
    assert_bounded("later", 1, p.call[1], p.eager);
}

/* ---- ways to run what was recorded or matched ---- */

static int changes_at;

/* Its rounds differ from one on. */
static etch_tensor *changing(etch_tensor *x, etch_tensor *y) {
    etch_tensor *state = etch_clone(x);
    for (int i = 0; i < 100; i++) {
        ETCH_SCOPE {
            etch_tensor *step = etch_mul_scalar(etch_sin(state), 0.5);
            if (i == changes_at) step = etch_neg(step);
            etch_add_(state, etch_mul(step, y));
        }
    }
    return state;
}

/* Each call goes another way at another round: its prefix runs late, the rest is recorded. */
TEST(divergence) {
    etch_function *f = etch_compile(changing);
    for (changes_at = 20; changes_at < 100; changes_at += 15)
        ETCH_SCOPE {
            inputs in = make_inputs();
            etch_tensor *expected = NULL;
            int64_t eager = peak_of(NULL, changing, in, &expected);
            assert_bounded("diverging", changes_at, peak_of(f, changing, in, &expected), eager);
            etch_release(expected);
        }
    assert_true(etch_function_counters(f).divergences >= 5);
    etch_function_free(f);
}

TEST(until_stable) {
    changes_at = -1;
    etch_function *f = etch_compile(changing, .stable_after = 3);
    assert_peaks("stable_after", f, changing, 5);
    bench_rounds = 12;
    f = etch_compile(program("conjugate gradient"), .stable_after = 3);
    assert_peaks("stable_after, breaks", f, program("conjugate gradient"), 5);
}

TEST(fullgraph) {
    changes_at = -1;
    assert_peaks("fullgraph", etch_compile(changing, .fullgraph = true), changing, 3);
}

/* A backend that compiles nothing: the graph runs node by node. */
static etch_status no_code(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx, (void)g, (void)out;
    return ETCH_ERR_UNSUPPORTED;
}

TEST(without_code) {
    changes_at = -1;
    assert_int_equal(etch_register_backend("none", no_code, NULL), ETCH_OK);
    assert_peaks("no code", etch_compile(changing, .backend = "none"), changing, 3);
    assert_peaks("no code, fullgraph", etch_compile(changing, .backend = "none", .fullgraph = true),
                 changing, 3);
    bench_rounds = 50;
    for (int i = 0; i < 2; i++) {
        etch_fn2 body = program(i ? "in-place argument" : "adam");
        assert_peaks("eager backend", etch_compile(body, .backend = "eager"), body, 3);
    }
    assert_int_equal(etch_unregister_backend("none"), ETCH_OK);
}

TEST(background) {
    changes_at = -1;
    etch_function *f = etch_compile(changing, .background = true);
    assert_peaks("background", f, changing, 4);
    bench_rounds = 12;
    f = etch_compile(program("conjugate gradient"), .background = true);
    assert_peaks("background, breaks", f, program("conjugate gradient"), 4);
    etch__background_wait();
}

TEST(recompile_limit) {
    etch_function *f = etch_compile(changing, .recompile_limit = 2);
    for (changes_at = 40; changes_at < 80; changes_at += 10)
        ETCH_SCOPE {
            inputs in = make_inputs();
            etch_tensor *expected = NULL;
            int64_t eager = peak_of(NULL, changing, in, &expected);
            assert_bounded("limited", changes_at, peak_of(f, changing, in, &expected), eager);
            etch_release(expected);
        }
    assert_int_equal(etch_function_counters(f).graphs, 2);
    etch_function_free(f);
}

static bool uses_late;

/* A value made before a break, by many operators, is used behind it in some calls only. */
static etch_tensor *late(etch_tensor *x, etch_tensor *y) {
    etch_tensor *chain = etch_retain(x);
    for (int i = 0; i < 50; i++) {
        ETCH_SCOPE {
            etch_tensor *next = etch_retain(etch_mul_scalar(etch_sin(chain), 0.9));
            etch_release(chain);
            chain = next;
        }
    }
    double sum = etch_item(etch_sum(y));
    etch_tensor *out = uses_late && sum < 1e9 ? etch_add(y, chain) : etch_neg(y);
    etch_release(chain);
    return out;
}

TEST(late_use) {
    etch_function *f = etch_compile(late);
    for (int i = 0; i < 4; i++)
        ETCH_SCOPE {
            uses_late = i == 2;
            inputs in = make_inputs();
            etch_tensor *expected = NULL;
            int64_t eager = peak_of(NULL, late, in, &expected);
            assert_bounded("late use", i, peak_of(f, late, in, &expected), eager);
            etch_release(expected);
        }
    assert_int_equal(etch_function_counters(f).late_uses, 1);
    etch_function_free(f);
}

static bool fails;

static etch_tensor *failing(etch_tensor *x, etch_tensor *y) {
    etch_tensor *out = changing(x, y);
    return fails ? etch_mm(out, etch_slice(y, 0, 0, 3, 1)) : out;
}

/* The body fails: what was matched runs behind its calls. */
TEST(failing_body) {
    changes_at = -1;
    etch_function *f = etch_compile(failing);
    peaks p = measure(etch_compile(failing), failing, 1);
    for (int i = 0; i < 3; i++)
        ETCH_SCOPE {
            fails = i == 2;
            inputs in = make_inputs();
            etch_memory_reset_peak();
            int64_t before = etch_memory().bytes_live;
            etch_tensor *out = etch_call(f, in.x, in.y);
            assert_true(!out == fails);
            assert_bounded("failing", i, etch_memory().bytes_peak - before, p.eager);
        }
    fails = false;
    etch_function_free(f);
}

/* ---- temporaries of a loop that breaks and opens no scope ---- */

static int used_late;

/* Values that depend on what the segment writes: a result, a view, one that is written itself. Some
 * are used behind later rounds, when x and y have other contents. */
static etch_tensor *late_temporaries(etch_tensor *x, etch_tensor *y) {
    etch_tensor *before[2] = {etch_clone(x), etch_clone(y)}, *kept[5] = {NULL}, *sum = NULL;
    for (int i = 0; i < 6; i++) {
        etch_tensor *a = etch_mul(etch_sin(x), y);
        etch_tensor *row = etch_select(a, 0, i);
        etch_tensor *own = etch_zeros(ETCH_F32, ETCH_SHAPE(SMALL_SIDE, SMALL_SIDE));
        etch_add_(own, a);
        etch_add_(x, etch_mul_scalar(own, 0.5));
        etch_mul_(etch_select(own, 0, 0), row);
        etch_tensor *after = etch_cos(x);
        if (i == 1) kept[0] = a, kept[1] = row, kept[2] = own, kept[3] = after, kept[4] = x;
        if (etch_item(etch_sum(after)) > 1e9) break;
        if (i == 3) etch_add_(y, x);
    }
    for (int i = 0; i < 5; i++)
        if (used_late >> i & 1) sum = sum ? etch_add(sum, kept[i]) : etch_neg(kept[i]);
    etch_tensor *out = sum ? etch_add(sum, x) : etch_mul(x, y);
    etch_copy_(x, before[0]);
    etch_copy_(y, before[1]);
    return out;
}

static etch_tensor *eager_result(etch_fn2 body, inputs in) {
    etch_tensor *out = body(in.x, in.y);
    assert_non_null(out);
    return out;
}

/* Values only, in 64 functions: no size matters. */
TEST(late_temporaries_have_their_values) {
    for (int at_last = 0; at_last < 2; at_last++)
        for (int use = 0; use < 32; use++) {
            etch_function *f = etch_compile(late_temporaries);
            for (int call = 0; call < 4; call++)
                ETCH_SCOPE {
                    inputs in = inputs_of(SMALL_SIDE);
                    used_late = call == 2 || !at_last ? use : 0;
                    assert_same(eager_result(late_temporaries, in), etch_call(f, in.x, in.y));
                }
            assert_int_equal(etch_function_counters(f).divergences <= 2, 1);
            etch_function_free(f);
        }
}

/* They are no outputs: a copy of the state a round is all that is held. */
TEST(temporaries_are_no_outputs) {
    ONLY_ON_CPU(); /* peaks of a device's memory are those of its stream */
    bench_rounds = 50;
    etch_fn2 body = program("in-place, breaks, no scopes");
    peaks p = measure(etch_compile(body), body, 3);
    assert_true(p.eager >= 6 * 50 * TENSOR);
    for (int i = 0; i < 3; i++) assert_true(p.call[i] <= 2 * 50 * TENSOR);
}

/* ---- little memory ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/* In a child whose address space may not grow by more than so many bytes. */
static void in_little_memory(int64_t bytes, int (*body)(void)) {
    pid_t child = fork();
    if (child == 0) {
        long pages = 0;
        FILE *f = fopen("/proc/self/statm", "r");
        if (!f || fscanf(f, "%ld", &pages) != 1) _exit(90);
        fclose(f);
        rlim_t limit = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + bytes);
        if (setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit})) _exit(91);
        _exit(body());
    }
    int status = -1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What eager code can run is recorded, compiled and run as code. */
static int compiles_a_long_loop(void) {
    int bad = 0;
    bench_rounds = 1000;
    etch_fn2 body = program("two operators");
    etch_function *f = etch_compile(body);
    ETCH_SCOPE {
        inputs in = make_inputs();
        for (int i = 0; i < 3; i++) bad |= !etch_call(f, in.x, in.y);
    }
    etch_counters_t c = etch_function_counters(f);
    return bad | (c.graphs != 1) << 1 | (c.plan_runs != 2) << 2;
}

/* Blocks that are kept for reuse are no reason to fail. */
static int gives_kept_blocks_back(void) {
    int bad = 0;
    etch_clear_error();
    for (int i = 0; i < 4; i++)
        ETCH_SCOPE { bad |= !etch_zeros(ETCH_F32, ETCH_SHAPE(i + 10, 1 << 20)); }
    return bad | (etch_last_status() != ETCH_OK) << 1;
}

TEST(little_memory, .last = true) {
    ONLY_ON_CPU(); /* a driver does not survive a fork, nor such a limit */
    etch_set_num_threads(1);
    in_little_memory(64 << 20, compiles_a_long_loop);
    in_little_memory(100 << 20, gives_kept_blocks_back);
}

#endif

/* ---- what a recording keeps of dead values ---- */

static etch_tensor *uses_dead(etch_tensor *x, etch_tensor *y) {
    etch_tensor *dead = NULL;
    ETCH_SCOPE { dead = etch_mul(x, y); }
    return dead;
}

/* A tensor that is dead by then is no result, though the recording knows it. */
TEST(dead_result) {
    etch_function *f = etch_compile(uses_dead);
    ETCH_SCOPE {
        inputs in = make_inputs();
        assert_null(etch_call(f, in.x, in.y));
        assert_int_equal(etch_last_status(), ETCH_ERR_RELEASED);
        assert_non_null(strstr(etch_last_error(), "result 0 was released"));
    }
    etch_function_free(f);
}

/* Addresses of dead values are not used again: results of later rounds are not taken for them. */
static etch_tensor *many_dead(etch_tensor *x, etch_tensor *y) {
    etch_tensor *sum = etch_zeros(ETCH_F32, ETCH_SHAPE(SIDE, SIDE));
    for (int i = 0; i < 40; i++) {
        ETCH_SCOPE {
            etch_tensor *a = etch_mul_scalar(x, 1.0 + i);
            etch_tensor *b = i % 3 ? etch_add(a, y) : etch_sub(y, a);
            etch_add_(sum, i % 2 ? etch_mul(a, b) : etch_mul(b, b));
        }
    }
    return sum;
}

TEST(dead_addresses) {
    int64_t tensors = etch_memory().tensors;
    etch_function *f = etch_compile(many_dead);
    assert_peaks("dead values", f, many_dead, 3);
    assert_int_equal(etch_memory().tensors, tensors);
}

/* Who watches a tensor reads how it looked; the storage is gone, the handle when all let go. */
TEST(watched) {
    etch_tensor *t = NULL;
    int64_t live = etch_memory().bytes_live, tensors = etch_memory().tensors;
    ETCH_SCOPE {
        t = etch_zeros(ETCH_F32, ETCH_SHAPE(SIDE, SIDE));
        etch__tensor_watch(t);
        etch__tensor_watch(t);
        assert_false(etch__tensor_is_dead(t));
    }
    assert_true(etch__tensor_is_dead(t));
    assert_true(etch_memory().bytes_live - live < SLACK);
    assert_int_equal(etch_memory().tensors, tensors);
    etch__tensor_unwatch(t);
    assert_int_equal(t->size[0], SIDE);
    assert_int_equal(etch_ndim(t), -1); /* released, says the error */
    assert_int_equal(etch_last_status(), ETCH_ERR_RELEASED);
    etch__tensor_unwatch(t);
    etch__tensor_watch(ETCH_NONE);
    etch__tensor_unwatch(ETCH_NONE);
}
