/* The steady state: later calls of a compiled function take no lock, write nothing that other
 * threads read, and borrow their arguments without losing them.
 *
 * This program's own pthread_mutex_lock counts; the static library uses it in place of the C
 * library's. (The C library's allocator has locks of its own, one an arena, which no two threads
 * share as long as there are few.)
 * Labels: optimised. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/tensor/tensor.h"
#include "tests/trace_support.h"

static _Thread_local int locks; /* OpenBLAS has threads of its own */

__attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t *m) {
    static int (*_Atomic real)(pthread_mutex_t *);
    int (*lock)(pthread_mutex_t *) = real;
    if (!lock) {
        lock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
        real = lock;
    }
    locks++;
    return lock(m);
}

/* Debug builds keep dead handles under a lock. */
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
enum { COUNTED = 1 };
#else
enum { COUNTED = 0 };
#endif

static etch_tensor *chain(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_mul_scalar(x, 1.25);
    etch_tensor *z = etch_exp(y);
    etch_tensor *s = etch_sum_dim(z, ETCH_DIMS(1), true);
    etch_tensor *q = etch_div(z, s);
    return etch_add(q, w);
}

static etch_tensor *global;

static etch_tensor *capturing(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_mm(x, global);
    etch_tensor *z = etch_relu(y);
    return etch_mul(z, w);
}

static etch_tensor *breaking(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_mul(x, w);
    etch_tensor *s = etch_sum(y);
    if (etch_item(s) > 1e30) return etch_neg(y);
    etch_tensor *z = etch_add(y, s);
    if (etch_item(s) > 1e30) return y;
    return etch_sub(z, w);
}

/* A value goes from one segment to the next, as in an iteration that ends when it stands still. */
static etch_tensor *iterating(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 6; i++) {
        ETCH_SCOPE {
            etch_tensor *y = etch_add(x, w);
            etch_tensor *z = etch_tanh(y);
            etch_tensor *s = etch_sum(z);
            x = etch_item(s) > 1e30 ? NULL : etch_keep(z);
        }
    }
    return x;
}

static etch_tensor *writing(etch_tensor *x, etch_tensor *w) {
    etch_add_scalar_(x, 0.5);
    etch_tensor *y = etch_mul(x, w);
    etch_sub_scalar_(x, 0.5);
    return etch_relu(y);
}

typedef struct steady_row {
    etch_fn2 body;
    int64_t n;
    etch_dynamic dynamic;
} steady_row;

static const steady_row rows[] = {
    {chain, 4, ETCH_DYNAMIC_OFF},     {chain, 100, ETCH_DYNAMIC_OFF},
    {chain, 4, ETCH_DYNAMIC_ON},      {chain, 400, ETCH_DYNAMIC_ON}, /* a result of 640 KB */
    {capturing, 8, ETCH_DYNAMIC_OFF}, {capturing, 8, ETCH_DYNAMIC_ON},
    {breaking, 6, ETCH_DYNAMIC_OFF},  {breaking, 6, ETCH_DYNAMIC_ON},
    {iterating, 5, ETCH_DYNAMIC_OFF}, {iterating, 5, ETCH_DYNAMIC_ON},
    {writing, 6, ETCH_DYNAMIC_OFF},   {writing, 6, ETCH_DYNAMIC_ON},
};

/* Calls after which everything has been found and made once. */
enum { WARM = 8, CALLS = 50 };

static void call(etch_function *f, etch_tensor *x, etch_tensor *w, int calls) {
    for (int i = 0; i < calls; i++) {
        ETCH_SCOPE { assert_non_null(etch_call(f, x, w)); }
    }
}

TEST(no_locks) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const steady_row *r = &rows[i];
        ETCH_SCOPE {
            etch_function *f = etch_compile(r->body, .dynamic = r->dynamic);
            etch_tensor *x = arange_f32(r->n, r->n), *w = etch_randn(ETCH_F32, etch_sizes(x));
            global = w;
            call(f, x, w, WARM);
            int64_t runs = etch_function_counters(f).plan_runs;
            int before = locks;
            call(f, x, w, CALLS);
            int taken = locks - before;
            assert_true(etch_function_counters(f).plan_runs >= runs + CALLS);
            if (COUNTED && taken) fail_msg("row %d: %d locks in %d calls", (int)i, taken, CALLS);
            etch_function_free(f);
        }
    }
    assert_true(locks > 0); /* the count counts: compiling takes some */
}

/* Sizes that take turns are found without a lock as well. */
TEST(no_locks_for_sizes_in_turn) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(chain, .dynamic = ETCH_DYNAMIC_ON);
        etch_tensor *x[3], *w[3];
        int before = 0;
        for (int i = 0; i < 3; i++)
            x[i] = arange_f32(3 + i, 5), w[i] = etch_randn(ETCH_F32, etch_sizes(x[i]));
        for (int i = 0; i < CALLS + WARM; i++) {
            if (i == WARM) before = locks;
            call(f, x[i % 3], w[i % 3], 1);
        }
        if (COUNTED) assert_int_equal(locks, before);
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
    }
}

/* ---- sizes that are known from the call before ---- */

static int turn; /* hidden state: which way the body goes */

static etch_tensor *winding(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_add(x, w);
    int64_t n = etch_size(y, 0);
    if (turn & 1) y = etch_slice(y, 0, turn & 2 ? 1 : 0, n - (turn & 4 ? 1 : 0), 1);
    else y = etch_mul_scalar(y, 0.5);
    if (turn & 8) y = etch_add(y, global);
    etch_tensor *sums = etch_sum_dim(y, ETCH_DIMS(0), true);
    etch_tensor *z = etch_sub(y, sums);
    if (turn & 16) etch_add_scalar_(z, 1.5);
    etch_tensor *flat = etch_view(z, ETCH_SHAPE(etch_numel(z)));
    etch_tensor *part = etch_slice(flat, 0, turn & 32 ? 2 : 1, etch_numel(z), 2);
    return etch_tanh(part);
}

/* Whatever changes from call to call, in whatever order: branches, sizes of arguments, of captured
 * tensors, of attributes. */
TEST(sizes_and_ways_change) {
    uint32_t random = 12345, sizes = 0;
    etch_function *f = etch_compile(winding, .dynamic = ETCH_DYNAMIC_ON, .recompile_limit = 64);
    for (int i = 0; i < 3000; i++) {
        random = random * 1664525u + 1013904223u;
        /* Each stays the same for a while, so that something is known. */
        if (random >> 30 == 0) turn ^= 1 << (random >> 20) % 6;
        if (random >> 28 == 5) sizes = random >> 6;
        int64_t height = 3 + (sizes >> 10) % 3, columns = 2 + (sizes >> 8) % 2;
        ETCH_SCOPE {
            etch_tensor *x = arange_f32(height, columns);
            etch_tensor *w = arange_f32(sizes & 64 ? height : 1, columns);
            global = arange_f32(1, sizes & 128 ? columns : 1);
            etch_tensor *expected = winding(x, w), *y = etch_call(f, x, w);
            assert_non_null(y);
            assert_same(y, expected);
        }
    }
    etch_counters_t c = etch_function_counters(f);
    assert_true(c.plan_runs > 2000);
    etch_function_free(f);
}

/* ---- borrowed arguments ---- */

/* What a call sees of its arguments' counts. */
static int seen;

static etch_tensor *watching(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_add(x, w);
    seen = atomic_load(&w->refs);
    return etch_relu(y);
}

TEST(arguments_are_not_counted) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(watching);
        etch_tensor *x = arange_f32(3, 3), *w = arange_f32(3, 3);
        for (int i = 0; i < 3; i++) {
            call(f, x, w, 1);
            assert_int_equal(seen, i ? 1 : 2); /* a recording holds them */
            assert_int_equal(w->refs, 1);
        }
        etch_function_free(f);
    }
}

static bool releases, breaks, diverges;

/* Gives up the caller's only count of x, after its last use. */
static etch_tensor *consuming(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_mul(x, w);
    etch_tensor *z = etch_sin(x);
    if (releases) etch_release(x);
    ETCH_SCOPE { /* what else may come to lie where x was */
        for (int i = 0; i < 8; i++) etch_full(ETCH_F32, ETCH_SHAPE(3, 3), 1e9);
    }
    if (breaks) etch_flush();
    if (diverges) return etch_sub(y, z);
    return etch_add(y, z);
}

/* A tensor that no scope owns. */
static etch_tensor *loose(void) {
    etch_tensor *x = NULL;
    ETCH_SCOPE { x = etch_retain(arange_f32(3, 3)); }
    return x;
}

static void consume(etch_fn2 body, etch_tensor *w) {
    etch_function *f = etch_compile(body);
    for (int i = 0; i < 12; i++) {
        ETCH_SCOPE {
            releases = false, breaks = diverges = false;
            etch_tensor *x = loose();
            if (i < 2) etch_call(f, x, w);
            breaks = i % 3 == 1, diverges = i % 3 == 2;
            etch_tensor *expected = body(x, w);
            releases = true;
            assert_int_equal(x->refs, 1);
            etch_tensor *y = etch_call(f, x, w);
            assert_non_null(y);
            assert_same(y, expected);
        }
    }
    etch_function_free(f);
}

TEST(the_body_releases_an_argument) {
    ETCH_SCOPE {
        etch_tensor *w = arange_f32(3, 3);
        int64_t before = etch_memory().tensors;
        consume(consuming, w);
        assert_int_equal(etch_memory().tensors, before);
    }
}

/* Its intermediate is used late: after the segment that made it, and after x was given up. */
static etch_tensor *using_late(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_mul(x, w);
    etch_tensor *s = etch_sum(w);
    double value = etch_item(s);
    if (releases) etch_release(x);
    ETCH_SCOPE {
        for (int i = 0; i < 8; i++) etch_full(ETCH_F32, ETCH_SHAPE(3, 3), value);
    }
    return diverges ? etch_neg(y) : etch_relu(w);
}

TEST(an_argument_released_before_a_late_use) {
    ETCH_SCOPE {
        etch_tensor *w = arange_f32(3, 3);
        etch_function *f = etch_compile(using_late);
        for (int i = 0; i < 9; i++) {
            ETCH_SCOPE {
                releases = false, diverges = i > 3 && i % 2;
                etch_tensor *x = loose(), *expected = using_late(x, w);
                releases = true;
                etch_tensor *y = etch_call(f, x, w);
                assert_non_null(y);
                assert_same(y, expected);
            }
        }
        assert_true(etch_function_counters(f).late_uses > 0);
        etch_function_free(f);
    }
}

/* ---- cache lines ---- */

static uintptr_t line_of(const void *p) { return (uintptr_t)p / 64; }

/* What two threads own lies in lines of their own, also when one thread made both. */
TEST(neighbours_share_no_cache_line) {
    enum { N = 64 };
    etch_tensor *t[N];
    ETCH_SCOPE {
        for (int i = 0; i < N; i++) {
            t[i] = etch_zeros(ETCH_F32, ETCH_SHAPE(1 + i % 5));
            assert_int_equal((uintptr_t)t[i] % 64, 0);
            assert_int_equal((uintptr_t)t[i]->storage % 64, 0);
            assert_int_equal((uintptr_t)t[i]->storage->data % 64, 0);
        }
        for (int i = 0; i < N; i++)
            for (int k = 0; k < i; k++) {
                assert_int_not_equal(line_of(t[i]), line_of((char *)(t[k] + 1) - 1));
                assert_int_not_equal(line_of(t[i]->storage),
                                     line_of((char *)t[k]->storage->data + 19));
            }
    }
}

/* ---- blocks kept for reuse ---- */

enum { THREADS = 4, ROUNDS = 300 };
static atomic_int clashes;

/* Large storages come and go on several threads; each is its owner's alone. */
static void *make_and_drop(void *arg) {
    unsigned char mark = (unsigned char)(uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        size_t bytes[3] = {300000, 310000 + (size_t)(i % 7) * 40000, 1 << 20};
        etch_storage *s[3];
        for (int k = 0; k < 3; k++) {
            s[k] = etch__storage_new(bytes[k]);
            if (s[k]) memset(s[k]->data, mark, 64), ((char *)s[k]->data)[bytes[k] - 1] = (char)mark;
        }
        for (int k = 0; k < 3; k++) {
            if (!s[k] || s[k]->bytes != bytes[k] || s[k]->block_bytes < bytes[k] + 64) clashes++;
            for (int b = 0; s[k] && b < 64; b++)
                clashes += ((unsigned char *)s[k]->data)[b] != mark;
            if (s[k]) clashes += ((unsigned char *)s[k]->data)[bytes[k] - 1] != mark;
            etch__storage_release(s[k]);
        }
    }
    return NULL;
}

TEST(kept_blocks_have_one_owner) {
    pthread_t t[THREADS];
    int64_t live = etch_memory().bytes_live;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, make_and_drop, (void *)(uintptr_t)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    assert_int_equal(clashes, 0);
    assert_int_equal(etch_memory().bytes_live, live);
}

int main(int argc, char **argv) {
    etch_set_num_threads(1);
    return run_suite(argc, argv);
}
