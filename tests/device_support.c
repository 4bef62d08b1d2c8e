/* Linked into every suite: ETCH_TEST_DEVICE=cuda puts the suite's tensors on a GPU, by
 * making it the main thread's current device before the first test. The linker's --wrap
 * sends cmocka's entry here.
 *
 * ETCH_TEST_JOBS=N splits suites into N processes, forked before the device is asked for:
 * compiling kernels is most of their time, and NVRTC compiles one at a time in a process.
 * ETCH_TEST_PART=K/N runs one of them.
 *
 * Where there is no such device the suite says so in one line and ends with 77, which CTest takes
 * as skipped. ETCH_TEST_DEVICE_ASK=1 asks only whether it is there. */
#include "device_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends/cuda/faults.h"

int __real__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

/* Suites count launches: which kernels there are must not depend on the time. */
__attribute__((constructor)) static void compile_in_the_call(void) {
    setenv("ETCH_COMPILE_BESIDE", "0", 0);
}

etch_device test_device(void) {
    const char *name = getenv("ETCH_TEST_DEVICE");
    return name && *name ? etch_device_parse(name) : ETCH_CPU;
}

bool test_device_enter(void) {
    etch_device device = test_device();
    return device == ETCH_CPU || (device > 0 && etch_set_device(device) == ETCH_OK);
}

etch_tensor *test_settled(etch_tensor *t) {
    etch_device device = t ? etch_device_of(t) : ETCH_CPU;
    return device == ETCH_CPU || etch_synchronize(device) == ETCH_OK ? t : NULL;
}

void test_set_blocking(bool on) { etch__cuda_set_blocking(on); }

/* ---- shares ---- */

char test_deals;
enum { JOBS_MAX = 64 };
static long part, parts = 1;

bool test_share(long number) { return number % parts == part; }

bool test_take_part(void) {
    const char *one = getenv("ETCH_TEST_PART");
    return one && sscanf(one, "%ld/%ld", &part, &parts) == 2 && parts > 0;
}

long test_part(void) { return part; }

typedef struct group {
    const char *name;
    const struct CMUnitTest *tests;
    size_t n;
    CMFixtureFunction setup, teardown;
} group;

/* Every so many-th test, and those that leave out themselves what is not this process's. */
static int run_some(const group *g) {
    struct CMUnitTest *mine = malloc((g->n + 1) * sizeof *mine);
    size_t n = 0;
    if (!mine) return 1;
    for (size_t i = 0; i < g->n; i++)
        if (g->tests[i].initial_state == &test_deals || test_share((long)i))
            mine[n++] = g->tests[i];
    int failed = n ? __real__cmocka_run_group_tests(g->name, mine, n, g->setup, g->teardown) : 0;
    free(mine);
    return failed;
}

static int run_group(const group *g) {
    if (!test_device_enter()) {
        printf("skipped: %s\n", etch_last_error());
        return 77;
    }
    if (getenv("ETCH_TEST_DEVICE_ASK")) return 0;
    return run_some(g);
}

/* What the child starts has the same share. */
static void set_part(void) {
    char text[64];
    snprintf(text, sizeof text, "%ld/%ld", part, parts);
    setenv("ETCH_TEST_PART", text, 1);
}

static pid_t start_part(const group *g, FILE *output) {
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    set_part();
    dup2(fileno(output), STDOUT_FILENO), dup2(fileno(output), STDERR_FILENO);
    int failed = run_group(g);
    fflush(NULL);
    _exit(failed < 255 ? failed : 255);
}

static void print_all(FILE *output) {
    char text[4096];
    size_t n;
    rewind(output);
    while ((n = fread(text, 1, sizeof text, output)) > 0) fwrite(text, 1, n, stdout);
}

/* The sum of what they return; a part that died counts as one failure. */
static int run_in_parts(const group *g, long jobs) {
    FILE *output[JOBS_MAX];
    pid_t child[JOBS_MAX];
    int failed = 0;
    parts = jobs;
    for (part = 0; part < jobs; part++) {
        output[part] = tmpfile();
        child[part] = output[part] ? start_part(g, output[part]) : -1;
    }
    for (long k = 0; k < jobs; k++) {
        int status = -1;
        bool ended = child[k] > 0 && waitpid(child[k], &status, 0) == child[k];
        if (output[k]) print_all(output[k]), fclose(output[k]);
        if (!ended || !WIFEXITED(status)) printf("part %ld died\n", k);
        if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 77) return 77;
        failed += ended && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    return failed;
}

int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown) {
    const group g = {name, tests, n, setup, teardown};
    const char *jobs = getenv("ETCH_TEST_JOBS");
    if (test_take_part()) return run_group(&g);
    long count = jobs ? strtol(jobs, NULL, 10) : 1;
    bool split = count > 1 && count <= JOBS_MAX;
    return split && !getenv("ETCH_TEST_DEVICE_ASK") ? run_in_parts(&g, count) : run_group(&g);
}
