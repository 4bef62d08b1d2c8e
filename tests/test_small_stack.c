/* Calls on a small stack, as coroutines and programs with thousands of threads have them:
 * include/etch/base.h says how much of the stack a call takes. Each case runs in a process of its
 * own, on that much and no more: below it lies memory that nobody may touch, so what overflows ends
 * the process. First uses (the helper, the cache, symbols) are on the small stack as well.
 *
 * `test_small_stack CASE BYTES` runs one on a stack of so many bytes and says how many it used.
 * Labels: optimised. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "core/ops/expr.h"
#include "jit/store/client.h"
#include "tests/trace_support.h"

static char folder[64];

/* In the child a failed check is a message and a status. */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (cond) break;                                                                           \
        fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, etch_last_error());          \
        _exit(9);                                                                                  \
    } while (0)

/* ---- programs ---- */

static etch_tensor *sample(etch_dtype dtype, int64_t rows, int64_t columns) {
    etch_tensor *line = etch_arange(ETCH_I64, 0, rows * columns, 1);
    etch_tensor *small = etch_remainder_scalar(etch_mul_scalar(line, 31), 97);
    etch_tensor *real = etch_div_scalar(etch_to(small, ETCH_F32), 97.0);
    etch_tensor *t = etch_to(etch__is_float(dtype) ? real : small, dtype);
    CHECK(t);
    return etch_view(t, ETCH_SHAPE(rows, columns));
}

/* Every value is asked for, so none stays uncomputed. */
static void settle(etch_tensor *t) {
    CHECK(t);
    CHECK(etch_flush() == ETCH_OK);
}

static void pointwise(etch_tensor *x) {
    etch_tensor *turned = etch_transpose(x, 0, 1), *row = etch_select(x, 0, 1);
    settle(etch_add(x, x));
    settle(etch_add(x, row));
    settle(etch_add(turned, etch_clone(turned)));
    settle(
        etch_mul(turned, etch_view(etch_clone(x), ETCH_SHAPE(etch_size(x, 1), etch_size(x, 0)))));
    settle(etch_where(etch_gt(x, row), x, row));
    settle(etch_clamp(etch_slice(x, 1, 0, etch_size(x, 1), 3), 0, 1));
    etch_tensor *flat =
        etch_slice(etch_view(etch_clone(x), ETCH_SHAPE(etch_numel(x))), 0, 1, 900, 1);
    CHECK(etch_add_(flat, etch_slice(flat, 0, 0, 899, 1)) || true);
    if (!etch__is_float(etch_dtype_of(x))) return;
    settle(etch_gelu(x));
    settle(etch_gelu(turned));
    settle(etch_erf(x));
    settle(etch_pow(x, x));
    settle(etch_remainder(x, etch_add_scalar(x, 1.5)));
    settle(etch_logsumexp(x, ETCH_DIMS(0), false));
    settle(etch_std(x));
}

static void folds(etch_tensor *x) {
    etch_tensor *turned = etch_transpose(x, 0, 1);
    settle(etch_sum(x));
    settle(etch_max(turned));
    settle(etch_prod(x));
    settle(etch_argmax(turned));
    settle(etch_argmin(x));
    for (int d = 0; d < 2; d++) {
        settle(etch_sum_dim(x, ETCH_DIMS(d), false));
        settle(etch_mean_dim(etch_to(x, ETCH_F32), ETCH_DIMS(d), false));
        settle(etch_amax(turned, ETCH_DIMS(d), true));
        settle(etch_amin(x, ETCH_DIMS(d), true));
        settle(etch_prod_dim(x, d, false));
        settle(etch_argmax_dim(x, d, false));
        settle(etch_argmin_dim(turned, d, false));
        settle(etch_cumsum(x, d));
        settle(etch_cumprod(turned, d));
        settle(etch_any_dim(x, ETCH_DIMS(d), false));
    }
}

static void products(etch_tensor *x) {
    etch_tensor *turned = etch_transpose(x, 0, 1);
    int64_t rows = etch_size(x, 0), columns = etch_size(x, 1);
    settle(etch_mm(x, turned));
    settle(etch_mm(turned, x));
    settle(etch_mv(turned, etch_select(turned, 0, 1)));
    settle(etch_mm(etch_slice(x, 0, 0, 40, 1), etch_slice(turned, 1, 0, 30, 1)));
    settle(etch_mm(etch_slice(etch_slice(x, 0, 0, 40, 1), 1, 0, 33, 1),
                   etch_slice(etch_slice(turned, 1, 0, 30, 1), 0, 0, 33, 1)));
    settle(etch_addmm_scaled(etch_select(x, 0, 0), etch_slice(turned, 0, 0, 50, 1), x, 3, 2));
    settle(etch_bmm(etch_view(x, ETCH_SHAPE(2, rows / 2, columns)),
                    etch_view(etch_clone(turned), ETCH_SHAPE(2, columns, rows / 2))));
    if (!etch__is_float(etch_dtype_of(x))) return;
    etch_tensor *image = etch_view(x, ETCH_SHAPE(1, 2, rows / 2, columns));
    etch_tensor *w = etch_view(sample(etch_dtype_of(x), 4, 18), ETCH_SHAPE(4, 2, 3, 3));
    etch_tensor *bias = etch_view(sample(etch_dtype_of(x), 1, 4), ETCH_SHAPE(4));
    settle(etch_conv2d(image, w, bias, ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), 1));
}

static void rows(etch_tensor *x) {
    etch_dtype dtype = etch_dtype_of(x);
    if (!etch__is_float(dtype)) return;
    for (int d = 0; d < 2; d++) {
        settle(etch_softmax(x, d));
        settle(etch_log_softmax(x, d));
        settle(etch_log_softmax(etch_transpose(x, 0, 1), d));
        settle(etch_softmax(etch_slice(x, 1, 0, 5, 1), d));
    }
    etch_tensor *w = etch_clone(etch_select(x, 0, 0));
    settle(etch_layer_norm(x, ETCH_SHAPE(etch_size(x, 1)), w, w, 1e-5));
}

static void places(etch_tensor *x) {
    etch_tensor *at = etch_remainder_scalar(etch_arange(ETCH_I64, 0, 50, 1), etch_size(x, 0));
    etch_tensor *source = etch_slice(x, 0, 0, 50, 1);
    settle(etch_index_select(x, 0, at));
    settle(etch_index_add(x, 0, at, source));
    settle(etch_gather(x, 0, etch_expand(etch_unsqueeze(at, 1), ETCH_SHAPE(50, etch_size(x, 1)))));
    settle(etch_scatter(x, 0, etch_unsqueeze(at, 1), source));
    settle(etch_cat((etch_tensor *[]){x, x}, 2, 1));
    settle(etch_flip(x, ETCH_DIMS(0, 1)));
    settle(etch_roll(x, ETCH_DIMS(3), ETCH_DIMS(1)));
    settle(etch_tril(x, 0));
}

static void all_of(etch_tensor *x) {
    pointwise(x);
    folds(x);
    if (etch_dtype_of(x) != ETCH_BOOL) products(x);
    rows(x);
    places(x);
}

static void numbers(void) {
    for (int d = 0; d < 4; d++) {
        settle(etch_rand(d, ETCH_SHAPE(100, 100)));
        settle(etch_randn(d, ETCH_SHAPE(100, 100)));
    }
}

/* ---- cases: eager ---- */

static void of_each_dtype(int64_t n, int64_t m) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        ETCH_SCOPE { all_of(sample(d, n, m)); }
}

static void eager(void) { of_each_dtype(130, 70); }
static void eager_large(void) { of_each_dtype(400, 300); }
/* Enough blocks for all levels of the stack of partial sums that a thread keeps. */
static void eager_long(void) {
    ETCH_SCOPE {
        etch_tensor *x = etch_expand(etch_ones(ETCH_F32, ETCH_SHAPE(1, 8)), ETCH_SHAPE(3000000, 8));
        settle(etch_sum_dim(x, ETCH_DIMS(0), false));
    }
}

static void random_numbers(void) {
    ETCH_SCOPE { numbers(); }
}

static void texts(void) {
    char text[200];
    ETCH_SCOPE {
        etch_tensor *x = sample(ETCH_F64, 30, 30);
        CHECK(etch_print(x) == ETCH_OK);
        CHECK(etch_format(x, text, sizeof text) > 0);
        CHECK(etch_npy_save("x.npy", x) == ETCH_OK && etch_npy_load("x.npy"));
        CHECK(etch_item(etch_sum(x)) > 0);
    }
}

static void errors(void) {
    ETCH_SCOPE {
        etch_tensor *x = sample(ETCH_F32, 30, 30), *none = etch_add(x, etch_sum(ETCH_NONE));
        CHECK(!none && *etch_last_error());
        CHECK(!etch_mm(x, etch_ones(ETCH_F32, ETCH_SHAPE(2, 2))));
        CHECK(strstr(etch_last_error(), "test_small_stack.c:"));
        CHECK(!etch_remainder_scalar(sample(ETCH_I32, 2, 2), 0));
        char text[512];
        CHECK(etch_address_text((void *)errors, text, sizeof text) > 0);
    }
}

/* ---- cases: compiled ---- */

static etch_tensor *chain(etch_tensor *x) {
    etch_tensor *y = etch_gelu(etch_add_scalar(etch_mul(x, x), 0.5));
    etch_tensor *z = etch_softmax(etch_mm(y, etch_transpose(x, 0, 1)), 1);
    etch_tensor *sums = etch_sum_dim(y, ETCH_DIMS(1), true),
                *most = etch_amax(z, ETCH_DIMS(0), false);
    return etch_add(etch_mul(z, sums), etch_add(most, etch_mean(y)));
}

/* All operators of the eager cases in one body, each computed before the next. */
static etch_tensor *everything(etch_tensor *x) {
    all_of(x);
    return etch_add(x, x);
}

/* As many operands as a call may have. */
static etch_tensor *many_operands(etch_tensor *x) {
    static etch_tensor *parts[20000];
    for (int i = 0; i < COUNT_OF(parts); i++) parts[i] = x;
    return etch_cat(parts, COUNT_OF(parts), 0);
}

static void operands(void) {
    static const char *const backends[] = {"eager", "native"};
    for (int b = 0; b < COUNT_OF(backends); b++) {
        etch_function *f = etch_compile(many_operands, .backend = backends[b]);
        for (int i = 0; i < 2; i++)
            ETCH_SCOPE { settle(etch_call(f, etch_ones(ETCH_F32, ETCH_SHAPE(1)))); }
    }
}

/* None is computed before the end of the segment. */
static etch_tensor *deferred(etch_tensor *x) {
    etch_tensor *sum = etch_sum(x);
    for (int d = 0; d < 2; d++) {
        etch_tensor *parts[] = {etch_sum_dim(x, ETCH_DIMS(d), false),
                                etch_prod_dim(x, d, false),
                                etch_amax(x, ETCH_DIMS(d), false),
                                etch_argmax_dim(x, d, false),
                                etch_cumsum(etch_transpose(x, 0, 1), d),
                                etch_mean_dim(etch_to(x, ETCH_F64), ETCH_DIMS(d), false)};
        for (int i = 0; i < COUNT_OF(parts); i++) sum = etch_add(sum, etch_sum(parts[i]));
    }
    etch_tensor *wide = etch_to(x, etch__is_float(etch_dtype_of(x)) ? etch_dtype_of(x) : ETCH_I64);
    sum = etch_add(sum, etch_sum(etch_mm(wide, etch_transpose(wide, 0, 1))));
    return etch_add(sum, etch_sum(etch_rand(ETCH_F32, ETCH_SHAPE(100))));
}

static void call(etch_function *f, etch_dtype dtype, int64_t n, int64_t m) {
    ETCH_SCOPE { settle(etch_call(f, sample(dtype, n, m))); }
}

static void run_compiled(bool background) {
    static const etch_dtype dtypes[] = {ETCH_F64, ETCH_BF16, ETCH_I8};
    etch_function *f = etch_compile(chain, .background = background);
    etch_function *g = etch_compile(deferred, .background = background);
    CHECK(f && g);
    for (int i = 0; i < 2; i++) call(f, ETCH_F32, 64, 48), call(f, ETCH_F32, 200 + i, 150);
    for (int d = 0; d < COUNT_OF(dtypes); d++)
        for (int i = 0; i < 2; i++) call(g, dtypes[d], 70, 90);
    char text[300];
    CHECK(etch_explain_text(f, text, sizeof text) > 0);
    etch_function_free(f);
    etch_function_free(g);
}

static void compiled(void) { run_compiled(false); }
static void compiled_again(void) { /* what the case before left in the disk cache */
    run_compiled(false);
    CHECK(etch_counters().kernels_compiled == 0 && etch_counters().cache_hits > 0);
}
static void compiled_beside(void) { run_compiled(true); }
static void compiled_by_eager(void) {
    etch_function *f = etch_compile(everything, .backend = "eager");
    for (int i = 0; i < 2; i++) call(f, ETCH_F16, 100, 80);
    etch_function_free(f);
}
static void compiled_in_pieces(void) {
    etch_function *f = etch_compile(everything);
    for (int i = 0; i < 2; i++) call(f, ETCH_F32, 100, 80);
    etch_function_free(f);
}
static void without_kernels(void) {
    etch_function *f = etch_compile(chain);
    for (int i = 0; i < 2; i++) call(f, ETCH_F32, 64, 48);
    CHECK(etch_counters().kernels_compiled == 0);
}
static void drop_line(void *ctx, const char *line) { (void)ctx, (void)line; }
static void logged(void) {
    etch_set_log_sink(drop_line, NULL);
    CHECK(etch_set_logs("all") == ETCH_OK);
    run_compiled(false);
    etch_set_logs("");
}
static void traced(void) {
    run_compiled(false);
    CHECK(etch_trace_write() == ETCH_OK);
}

static etch_function *sums, *chained, *both;
static etch_tensor *around(etch_tensor *x) { return etch_add(etch_call(chained, x), x); }
static etch_tensor *around_both(etch_tensor *x) {
    etch_tensor *sum = etch_call(sums, x);
    CHECK(etch_graph_break("two segments") == ETCH_OK);
    return etch_add(etch_call(chained, x), sum);
}
static etch_tensor *outside_both(etch_tensor *x) { return etch_add(etch_call(both, x), x); }

/* Functions that functions call, with and without a break in the innermost. */
static void nested(void) {
    sums = etch_compile(deferred), chained = etch_compile(chain), both = etch_compile(around_both);
    etch_function *one = etch_compile(around), *two = etch_compile(outside_both);
    for (int i = 0; i < 3; i++) call(one, ETCH_F32, 64, 64), call(two, ETCH_F64, 64, 64);
}

/* Each allocation of a first call fails in turn, that of the second stack too. */
static void short_of_memory(void) {
    static const float data[4] = {1, 2, 3, 4};
    int failures = 0;
    ETCH_SCOPE {
        etch_tensor *x = etch_from_host(data, ETCH_F32, ETCH_SHAPE(2, 2)), *sum = NULL;
        for (int n = 0; !sum; n++, failures++) {
            etch_clear_error();
            etch__fail_allocation(n);
            sum = etch_sum(x);
            etch__fail_allocation(-1);
            CHECK(sum || etch_last_status() == ETCH_ERR_OUT_OF_MEMORY);
        }
        CHECK(failures > 1 && etch_item(sum) == 10);
    }
}

/* ---- the cases ---- */

typedef struct stack_case {
    const char *name;
    void (*run)(void);
    const char *environment[3]; /* up to the first NULL */
} stack_case;

static const stack_case cases[] = {
    {"eager", eager, {0}},
    {"eager_baseline", eager, {"ETCH_CPU_ISA=baseline"}},
    {"eager_avx2", eager, {"ETCH_CPU_ISA=avx2"}},
    {"eager_large", eager_large, {0}},
    {"eager_long", eager_long, {"ETCH_NUM_THREADS=1"}},
    {"one_thread", eager_large, {"ETCH_NUM_THREADS=1"}},
    {"random_numbers", random_numbers, {0}},
    {"texts", texts, {0}},
    {"errors", errors, {0}},
    {"compiled", compiled, {0}},
    {"compiled_again", compiled_again, {0}},
    {"compiled_beside", compiled_beside, {0}},
    {"compiled_baseline", compiled, {"ETCH_CPU_ISA=baseline"}},
    {"compiled_by_eager", compiled_by_eager, {0}},
    {"compiled_in_pieces", compiled_in_pieces, {0}},
    {"helper_missing", without_kernels, {"ETCH_JIT=/nowhere", "ETCH_CACHE_SIZE=0"}},
    {"helper_fails", without_kernels, {"ETCH_JIT_FAULT=kill", "ETCH_CACHE_SIZE=0"}},
    {"checked", compiled, {"ETCH_CHECK=1"}},
    {"logged", logged, {0}},
    {"nested", nested, {0}},
    {"operands", operands, {0}},
    {"operands_checked", operands, {"ETCH_CHECK=1"}},
    {"short_of_memory", short_of_memory, {0}},
    {"traced", traced, {"ETCH_TRACE=."}},
};

/* ---- a small stack ---- */

enum { GUARD = 1 << 16, PAINT = 0xa5 };
static ucontext_t outside, inside;

static char *new_stack(size_t bytes) {
    char *p = mmap(NULL, GUARD + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED && mprotect(p, GUARD, PROT_NONE) == 0);
    return memset(p + GUARD, PAINT, bytes);
}

/* The stack of a coroutine: nothing of it goes to the C library. */
static void on_coroutine(void (*run)(void), char *stack, size_t bytes) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack, inside.uc_stack.ss_size = bytes, inside.uc_link = &outside;
    makecontext(&inside, run, 0);
    swapcontext(&outside, &inside);
}

static size_t used_of(const char *stack, size_t bytes) {
    size_t untouched = 0;
    while (untouched < bytes && (unsigned char)stack[untouched] == PAINT) untouched++;
    return bytes - untouched;
}

static const stack_case *find_case(const char *name) {
    for (int i = 0; i < COUNT_OF(cases); i++)
        if (!strcmp(cases[i].name, name)) return &cases[i];
    fprintf(stderr, "no case %s\n", name);
    exit(2);
}

static int run_case(const char *name, size_t bytes) {
    char *stack = new_stack(bytes);
    on_coroutine(find_case(name)->run, stack, bytes);
    etch__jit_shutdown();
    fprintf(stderr, "%s: %zu of %zu bytes\n", name, used_of(stack, bytes), bytes);
    return 0;
}

static void *thread_main(void *of) {
    ((const stack_case *)of)->run();
    return NULL;
}

/* The C library takes its thread-local variables, those of the libraries included, from the top. */
static int run_on_thread(const char *name, size_t bytes) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    CHECK(pthread_attr_setstacksize(&attr, bytes) == 0);
    CHECK(pthread_create(&thread, &attr, thread_main, (void *)find_case(name)) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    etch__jit_shutdown();
    return 0;
}

/* ---- the processes ---- */

enum { COROUTINE_BYTES = 48 << 10, THREAD_BYTES = 96 << 10 };

static void start(const stack_case *c, const char *way, int bytes) {
    char size[32];
    snprintf(size, sizeof size, "%d", bytes);
    for (int i = 0; i < COUNT_OF(c->environment) && c->environment[i]; i++)
        putenv((char *)(uintptr_t)c->environment[i]);
    if (chdir(folder) != 0 || !freopen("/dev/null", "w", stdout)) _exit(8);
    execl("/proc/self/exe", "test_small_stack", c->name, size, way, (char *)NULL);
    _exit(8);
}

static void in_process(const stack_case *c, const char *way, int bytes) {
    pid_t child = fork();
    int status = -1;
    if (child == 0) start(c, way, bytes);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status) fail_msg("%s on a %s with %d bytes: status %#x", c->name, way, bytes, status);
}

TEST(coroutines) {
    for (int i = 0; i < COUNT_OF(cases); i++) in_process(&cases[i], "coroutine", COROUTINE_BYTES);
}

TEST(threads) {
    for (int i = 0; i < COUNT_OF(cases); i++) in_process(&cases[i], "thread", THREAD_BYTES);
}

static int run_all(int argc, char **argv) {
    strcpy(folder, "/tmp/etch-test-stack-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    setenv("ETCH_CACHE_DIR", "cache", 1); /* each process starts in the folder */
    int failed = run_suite(argc, argv);
    etch__remove_tree(folder);
    return failed;
}

int main(int argc, char **argv) {
    if (argc < 3) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        return 77; /* instrumented frames are larger, and the runtimes have needs of their own */
#endif
        return run_all(argc, argv);
    }
    if (argc > 3 && !strcmp(argv[3], "thread"))
        return run_on_thread(argv[1], (size_t)atol(argv[2]));
    return run_case(argv[1], (size_t)atol(argv[2]));
}
