/* A program that is not linked with libetch and loads it with dlopen, as plug-ins and the bindings
 * of other languages do. Each test is a process of its own, since what is loaded stays.
 *
 *     host LIBRARY [compiled]      compiled: etch-jit is there, so code must have run */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <etch/etch.h>

static const char *library;
static bool compiled;

/* What is used of the library, by name. */
#define FUNCTIONS(F)                                                                               \
    F(etch_scope_begin)                                                                            \
    F(etch_scope_end)                                                                              \
    F(etch_full)                                                                                   \
    F(etch_add)                                                                                    \
    F(etch_exp)                                                                                    \
    F(etch_sum)                                                                                    \
    F(etch_item)                                                                                   \
    F(etch_compile_fn1)                                                                            \
    F(etch_call_one)                                                                               \
    F(etch_function_free) F(etch_counters) F(etch_last_error) F(etch_last_status) F(etch_mm)
static struct {
#define F(name) __typeof__(name) *name;
    FUNCTIONS(F)
#undef F
} api;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (cond) break;                                                                           \
        const char *error = api.etch_last_error ? api.etch_last_error() : dlerror();               \
        fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #cond, error ? error : "");        \
        _exit(9);                                                                                  \
    } while (0)

static void *load(void) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CHECK(handle);
#define F(name) CHECK((api.name = (__typeof__(api.name))dlsym(handle, #name)));
    FUNCTIONS(F)
#undef F
    return handle;
}

static etch_tensor *body(etch_tensor *x) {
    etch_tensor *y = api.etch_exp(x);
    return api.etch_sum(api.etch_add(y, y));
}

/* Eager operators, an error with its text, and a compiled function called twice. */
static void use(void) {
    int64_t scope = api.etch_scope_begin(), launches = api.etch_counters().kernel_launches;
    etch_tensor *x = api.etch_full(ETCH_F32, ETCH_SHAPE(3, 4), 0.0), *twice[2];
    CHECK(api.etch_item(body(x)) == 24);
    CHECK(!api.etch_mm(x, x) && api.etch_last_status() == ETCH_ERR_SHAPE);
    CHECK(strstr(api.etch_last_error(), "mm"));
    etch_function *f = api.etch_compile_fn1(body, NULL);
    for (int i = 0; i < 2; i++) {
        twice[i] = api.etch_call_one(f, &x, 1);
        CHECK(twice[i] && api.etch_item(twice[i]) == 24);
    }
    CHECK(!compiled || api.etch_counters().kernel_launches > launches);
    api.etch_function_free(f);
    api.etch_scope_end(scope);
}

/* The child ends by exit, with all handlers and destructors. */
static void in_child(void (*test)(void)) {
    pid_t child = fork();
    if (child == 0) {
        test();
        exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void *thread_use(void *unused) {
    use();
    return unused;
}

static void *thread_load(void *unused) {
    load();
    return thread_use(unused);
}

static void in_thread(void *(*work)(void *)) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, work, NULL) == 0);
    CHECK(pthread_join(t, NULL) == 0);
}

static void main_loads(void) {
    load();
    use();
    in_thread(thread_use);
}
static void loads(void **state) { (void)state, in_child(main_loads); }

static void thread_loads(void) {
    in_thread(thread_load);
    use();
    in_thread(thread_use);
}
static void loads_in_a_thread(void **state) { (void)state, in_child(thread_loads); }

/* A thread that was there before has the library's thread-locals as well. */
static pthread_barrier_t loaded;
static void *wait_and_use(void *unused) {
    pthread_barrier_wait(&loaded);
    return thread_use(unused);
}
static void older_threads(void) {
    pthread_t t[4];
    CHECK(pthread_barrier_init(&loaded, NULL, 5) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, wait_and_use, NULL) == 0);
    load();
    pthread_barrier_wait(&loaded);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}
static void threads_from_before(void **state) { (void)state, in_child(older_threads); }

/* The library stays: what threads, forks and the exit will call of it is there. */
static void *use_close_and_end(void *handle) {
    use();
    CHECK(dlclose(handle) == 0);
    return NULL; /* the thread's own end is the library's code */
}
static void closed_and_used(void) {
    void *handle = load();
    __typeof__(etch_full) *full = api.etch_full;
    pthread_t t;
    CHECK(pthread_create(&t, NULL, use_close_and_end, handle) == 0);
    CHECK(pthread_join(t, NULL) == 0);
    use();
    for (int i = 0; i < 3; i++) {
        handle = load();
        CHECK(api.etch_full == full);
        use();
        CHECK(dlclose(handle) == 0);
    }
    in_child(use);
}
static void dlclose_leaves_it_there(void **state) { (void)state, in_child(closed_and_used); }

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads),
        cmocka_unit_test(loads_in_a_thread),
        cmocka_unit_test(threads_from_before),
        cmocka_unit_test(dlclose_leaves_it_there),
    };
    if (argc < 2) return 2;
    library = argv[1], compiled = argc > 2 && !strcmp(argv[2], "compiled");
    setenv("ETCH_CACHE_SIZE", "0", 1); /* each process compiles for itself */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
