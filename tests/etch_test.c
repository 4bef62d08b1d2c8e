/* The list of a suite's tests, its main, and its processes.
 *
 * ETCH_TEST_JOBS=N splits suites into N processes, forked before the device is asked for:
 * compiling kernels is most of their time, and NVRTC compiles one at a time in a process.
 * ETCH_TEST_PART=K/N runs one of them.
 *
 * Where ETCH_TEST_DEVICE is not there the suite says so in one line and ends with 77, which CTest
 * takes as skipped. ETCH_TEST_DEVICE_ASK=1 asks only whether it is there. */
#include "core/base/locks.h"
#include "etch_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device_support.h"

etch_test etch_test_each;

/* ---- the list, by lines ---- */

static etch_test *tests;

static int place(const etch_test *t) { return t->last - t->first; }

static bool follows(const etch_test *t, const etch_test *other) {
    return place(t) != place(other) ? place(t) > place(other) : t->line >= other->line;
}

void etch_test_add(etch_test *t) {
    etch_test **at = &tests;
    while (*at && follows(t, *at)) at = &(*at)->next;
    t->next = *at;
    *at = t;
}

static bool chosen(const etch_test *t, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strstr(t->name, argv[i])) return true;
    return argc < 2;
}

/* ---- one test ---- */

static int before(void **state) {
    const etch_test *t = *state;
    void (*f)(void) = t->before ? t->before : etch_test_each.before;
    if (f) f();
    return 0;
}

static int after(void **state) {
    const etch_test *t = *state;
    void (*f)(void) = t->after ? t->after : etch_test_each.after;
    if (f) f();
    return 0;
}

static void run_one(void **state) {
    const etch_test *t = *state;
    void (*around)(const etch_test *) = t->around ? t->around : etch_test_each.around;
    if (around) around(t);
    else t->body();
}

/* ---- all of a process ---- */

static long part, parts = 1;

bool test_share(long number) { return number % parts == part; }

bool test_take_part(void) {
    const char *one = getenv("ETCH_TEST_PART");
    return one && sscanf(one, "%ld/%ld", &part, &parts) == 2 && parts > 0;
}

long test_part(void) { return part; }

/* Every so many-th test, and those that leave out themselves what is not this process's. */
static int run_share(int argc, char **argv) {
    struct CMUnitTest *mine = NULL;
    size_t n = 0;
    long number = 0;
    for (etch_test *t = tests; t; t = t->next) {
        if (!chosen(t, argc, argv) || !(test_share(number++) || t->deals)) continue;
        mine = realloc(mine, (n + 1) * sizeof *mine);
        mine[n++] = (struct CMUnitTest){t->name, run_one, before, after, t};
    }
    int failed = n ? _cmocka_run_group_tests("tests", mine, n, NULL, NULL) : 0;
    free(mine);
    return failed;
}

static int run_process(int argc, char **argv) {
    if (!test_device_enter()) {
        printf("skipped: %s\n", etch_last_error());
        return 77;
    }
    return getenv("ETCH_TEST_DEVICE_ASK") ? 0 : run_share(argc, argv);
}

/* ---- several processes ---- */

enum { JOBS_MAX = 64 };

/* What the child starts has the same share. */
static void set_part(void) {
    char text[64];
    snprintf(text, sizeof text, "%ld/%ld", part, parts);
    setenv("ETCH_TEST_PART", text, 1);
}

static pid_t start_part(int argc, char **argv, FILE *output) {
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    set_part();
    dup2(fileno(output), STDOUT_FILENO), dup2(fileno(output), STDERR_FILENO);
    int failed = run_process(argc, argv);
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
static int run_in_parts(long jobs, int argc, char **argv) {
    FILE *output[JOBS_MAX];
    pid_t child[JOBS_MAX];
    int failed = 0;
    parts = jobs;
    for (part = 0; part < jobs; part++) {
        output[part] = tmpfile();
        child[part] = output[part] ? start_part(argc, argv, output[part]) : -1;
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

/* ---- main ---- */

static void print_names(void) {
    for (const etch_test *t = tests; t; t = t->next) puts(t->name);
    exit(0);
}

/* Of a suite that has passed: whether its locks were taken in their order (in a debug build). */
static int checked(int failed) {
    const char *disorder = etch__lock_disorder();
    if (disorder) printf("locks in the wrong order (core/base/locks.def): %s\n", disorder);
    return failed ? failed : disorder != NULL;
}

int run_suite(int argc, char **argv) {
    const char *jobs = getenv("ETCH_TEST_JOBS");
    if (argc > 1 && !strcmp(argv[1], "--list")) print_names();
    if (test_take_part()) return checked(run_process(argc, argv));
    long count = jobs ? strtol(jobs, NULL, 10) : 1;
    bool split = count > 1 && count <= JOBS_MAX && !getenv("ETCH_TEST_DEVICE_ASK");
    return split ? run_in_parts(count, argc, argv) : checked(run_process(argc, argv));
}

__attribute__((weak)) int main(int argc, char **argv) { return run_suite(argc, argv); }
