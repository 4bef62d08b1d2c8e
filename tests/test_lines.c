/* Source lines of code addresses: they are right, need little stack, and do without memory. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <etch/etch.h>

#include "etch_test.h"
#include "core/base/base.h"

static __attribute__((noinline)) const void *here(void) { return __builtin_return_address(0); }

/* *line is that of the call. */
static __attribute__((noinline)) const void *a_place(int *line) {
    const void *site = here();
    *line = __LINE__ - 1;
    return site;
}

static const char *expected(int line) {
    static char text[64];
    snprintf(text, sizeof text, "test_lines.c:%d", line);
    return text;
}

TEST(lines_and_names, .last = true) {
    int line;
    char source[128];
    const void *site = a_place(&line);
    assert_string_equal(etch__site_line(site), expected(line));
    etch__site_source(site, source, sizeof source);
    assert_string_equal(source, "    const void *site = here();");
    assert_string_equal(etch__symbol_name((const void *)a_place), "a_place");
    assert_string_equal(etch__symbol_name((const char *)a_place + 1), "a_place");
    assert_string_equal(etch__site_line((const void *)16), "");
    assert_string_equal(etch__site_line(source), "");
}

/* An address that could not be looked up is looked up again. */
static int fails_at(int64_t n) {
    int line;
    const void *site = a_place(&line);
    etch__fail_allocation(n);
    const char *text = etch__site_line(site);
    int64_t asked = etch__fail_allocation(-1);
    bool either = !*text || !strcmp(text, expected(line));
    bool right = !strcmp(etch__site_line(site), expected(line));
    if (!either || !right || etch_last_status() != ETCH_OK) return 2;
    return asked > n; /* it was met */
}

TEST(every_allocation_may_fail, .first = true) {
    int met = 1, n = 0;
    for (; met == 1; n++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) _exit(fails_at(n));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        met = WEXITSTATUS(status);
    }
    assert_int_equal(met, 0);
    assert_true(n > 4);
}

static void *ask(void *ctx) {
    int line;
    const void *site = a_place(&line);
    bool *ok = ctx;
    *ok = !strcmp(etch__site_line(site), expected(line));
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2, 3));
        *ok &= !etch_mm(x, x) && strstr(etch_last_error(), "test_lines.c:");
    }
    return NULL;
}

TEST(small_stacks_suffice) {
    int status = -1;
    pid_t pid = fork(); /* which has asked for nothing yet */
    if (pid == 0) {
        bool ok = false;
        pthread_t t;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, 96 << 10);
        ok = !pthread_create(&t, &attr, ask, &ok) && !pthread_join(t, NULL) && ok;
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}
