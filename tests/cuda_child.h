/* Tests on the fakes of fake_cuda/. What the fakes are told is read when they are opened, and a
 * driver does not survive a fork, so each test is a child process, forked before this one has asked
 * for a GPU. CHECK ends the child. */
#ifndef ETCH_TESTS_CUDA_CHILD_H
#define ETCH_TESTS_CUDA_CHILD_H

#include "trace_support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) give_up(#condition, __FILE__, __LINE__);                                 \
    } while (0)

static inline void give_up(const char *what, const char *file, int line) {
    fprintf(stderr, "%s:%d: %s; last error: %s\n", file, line, what, etch_last_error());
    _exit(1);
}

static inline bool says(const char *text, const char *part) { return strstr(text, part) != NULL; }

/* ---- children ---- */

static char fakes[3][1024];

/* false (and one line): there is no compiler for them. */
static inline bool use_fakes(void) {
    static const char *const names[] = {"cuda", "nvrtc", "cublaslt"};
    static const char *const variables[] = {"ETCH_CUDA_DRIVER", "ETCH_CUDA_NVRTC",
                                            "ETCH_CUDA_CUBLASLT"};
    for (int i = 0; i < 3; i++) {
        snprintf(fakes[i], sizeof fakes[i], "%s/tests/fake_cuda/libfake_%s.so",
                 ETCH_TEST_BINARY_DIR, names[i]);
        setenv(variables[i], fakes[i], 1);
    }
    setenv("FAKE_CUDA_CACHE", ETCH_HOST_KERNELS, 0);
    setenv("ETCH_CACHE_SIZE", "0", 1);
    unsetenv("ETCH_CUDA");
    if (system("g++ --version >/dev/null 2>&1") == 0) return true;
    puts("skipped: the fakes compile kernels with g++, which is not here");
    return false;
}

/* ETCH_TEST_REAL_GPU=1: on what the machine has. */
static inline bool on_real_gpu(void) { return getenv("ETCH_TEST_REAL_GPU") != NULL; }

extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static inline void in_child(const etch_test *t) {
    if (t->only_on_fakes && on_real_gpu()) skip();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (t->setting) putenv((char *)t->setting);
        ETCH_SCOPE { t->body(); }
        fflush(NULL);
        _exit(__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check() ? 3 : 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

EACH_TEST(.around = in_child)

static inline int run_in_children(int argc, char **argv) {
    return on_real_gpu() || use_fakes() ? run_suite(argc, argv) : 77;
}

/* A function of the fake driver's control.h. */
static inline void *control(const char *name) {
    void *driver = dlopen(fakes[0], RTLD_NOW | RTLD_LOCAL), *at = driver ? dlsym(driver, name) : 0;
    CHECK(at);
    return at;
}

static inline void fail_after(int n) { ((void (*)(int))control("fake_cuda_fail_after"))(n); }
static inline void fail_symbol(const char *symbol, int n) {
    ((void (*)(const char *, int))control("fake_cuda_fail_symbol"))(symbol, n);
}
static inline unsigned long failed(void) {
    return ((unsigned long (*)(void))control("fake_cuda_failed"))();
}
static inline const char *failed_last(void) {
    return ((const char *(*)(void))control("fake_cuda_failed_last"))();
}
static inline unsigned long calls_of(const char *symbol) {
    return ((unsigned long (*)(const char *))control("fake_cuda_count"))(symbol);
}
static inline unsigned long live(const char *kind) {
    return ((unsigned long (*)(const char *))control("fake_cuda_live"))(kind);
}

/* From now on compiles wait until n are going on, for up to a second. How many there were at most
 * since the last call. */
static inline int gathered(int n) {
    return ((int (*)(int))control("fake_cuda_gather_compiles"))(n);
}

static const etch_device gpu = ETCH_CUDA(0);

static inline etch_tensor *on_gpu(etch_tensor *t) { return etch_to_device(t, gpu); }

#endif
