/* Errors: codes, texts, the user's line, and that they stay until replaced or cleared.
 * Labels: quick optimised. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "etch_test.h"
#include "core/dispatch/dispatch.h"

TEST(names) {
    assert_string_equal(etch_status_name(ETCH_OK), "ok");
    assert_string_equal(etch_status_name(ETCH_ERR_NO_SCOPE), "no_scope");
    assert_string_equal(etch_status_name(ETCH_ERR_INTERNAL), "internal");
    assert_string_equal(etch_status_name(ETCH_STATUS_COUNT), "unknown");
    assert_string_equal(etch_status_name((etch_status)-1), "unknown");
    for (int i = 0; i < ETCH_STATUS_COUNT; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(etch_status_name((etch_status)i),
                                    etch_status_name((etch_status)k));
}

static void assert_begins(const char *text) {
    if (strncmp(etch_last_error(), text, strlen(text)) != 0)
        fail_msg("expected \"%s...\", got \"%s\"", text, etch_last_error());
}

TEST(kept_until_replaced) {
    etch_clear_error();
    assert_int_equal(etch_last_status(), ETCH_OK);
    assert_string_equal(etch_last_error(), "");
    assert_int_equal(etch__error(ETCH_ERR_SHAPE, "first %d", 1), ETCH_ERR_SHAPE);
    assert_int_equal(etch_set_default_dtype(ETCH_F32), ETCH_OK); /* a success keeps it */
    assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
    assert_begins("first 1 (test_errors.c:");
    etch__error(ETCH_ERR_DTYPE, "second, after %s", etch_last_error());
    assert_begins("second, after first 1 (test_errors.c:");
    etch_clear_error();
    assert_string_equal(etch_last_error(), "");
}

static __attribute__((noinline)) etch_status fails_for_its_caller(void) {
    return etch__error_at(__builtin_return_address(0), ETCH_ERR_SHAPE, "mm: expected 3 rows");
}

TEST(names_the_users_line) {
    char expected[64];
    /* not a tail call, the site is after it on the same line */
    snprintf(expected, sizeof expected, "mm: expected 3 rows (test_errors.c:%d)", __LINE__ + 1);
    assert_int_equal(fails_for_its_caller(), ETCH_ERR_SHAPE);
    assert_string_equal(etch_last_error(), expected);
    assert_string_equal(etch_last_error(), expected); /* named once */
    etch_clear_error();
}

TEST(operators_name_the_line_of_their_call) {
    char line[32];
    ETCH_SCOPE {
        etch_tensor *a = etch_from_host((float[6]){0}, ETCH_F32, ETCH_SHAPE(2, 3));
        snprintf(line, sizeof line, "(test_errors.c:%d)", __LINE__ + 1);
        etch_tensor *b = etch_view(a, ETCH_SHAPE(4, 2));
        assert_null(b);
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        assert_non_null(strstr(etch_last_error(), "view: 6 elements do not fit sizes [4, 2]"));
        assert_non_null(strstr(etch_last_error(), line));
        /* what is built on it keeps the first error */
        etch_tensor *c = etch_t(b);
        assert_null(c);
        assert_non_null(strstr(etch_last_error(), line));
        etch_clear_error();
        snprintf(line, sizeof line, "(test_errors.c:%d)", __LINE__ + 1);
        etch_tensor *m = etch_matmul(a, a);
        assert_null(m);
        assert_non_null(strstr(etch_last_error(), "matmul: expected other with 3 rows, got 2"));
        assert_non_null(strstr(etch_last_error(), line)); /* not a line of the library */
        etch_clear_error();
        etch_tensor *d = etch_t(ETCH_NONE);
        assert_null(d);
        assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(etch_last_error(), "ETCH_NONE"));
    }
    etch_clear_error();
}

TEST(sites_and_symbols) {
    assert_string_equal(etch__site_line(NULL), "");
    assert_string_equal(etch__site_line((void *)16), ""); /* no code there */
    assert_string_equal(etch__symbol_name(NULL), "?");
    assert_string_equal(etch__symbol_name((void *)16), "?");
    assert_string_equal(etch__symbol_name((void *)test__sites_and_symbols),
                        "test__sites_and_symbols");
    const char *first = etch__symbol_name((void *)fails_for_its_caller);
    assert_string_equal(first, "fails_for_its_caller");
    assert_ptr_equal(first, etch__symbol_name((void *)fails_for_its_caller));
    assert_string_equal(etch__symbol_name((void *)malloc) ? "named" : "", "named");
}

TEST(long_texts_are_cut) {
    char text[3000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    etch__error_at(__builtin_return_address(0), ETCH_ERR_SHAPE, "%s", text);
    size_t n = strlen(etch_last_error());
    assert_in_range(n, 500, 1023);
    etch_clear_error();
}

TEST(saved_and_restored) {
    saved_error saved;
    etch__error(ETCH_ERR_SHAPE, "kept");
    etch__error_save(&saved);
    etch__error(ETCH_ERR_DTYPE, "passing");
    etch__error_restore(&saved);
    assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
    assert_begins("kept (test_errors.c:");
    etch_clear_error();
}

/* Asking for a line without memory gives the text without the line, and keeps the error. */
TEST(lines_without_memory, .first = true) {
    for (int64_t n = 0; n < 4; n++) {
        fails_for_its_caller();
        etch__fail_allocation(n);
        const char *text = etch_last_error();
        etch__fail_allocation(-1);
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        assert_memory_equal(text, "mm: expected 3 rows", 19);
        etch_clear_error();
    }
}

static void *other_thread(void *arg) {
    (void)arg;
    bool clean = etch_last_status() == ETCH_OK && !*etch_last_error();
    for (int i = 0; i < 200; i++) {
        fails_for_its_caller();
        clean &= strstr(etch_last_error(), "test_errors.c:") != NULL;
        clean &= !strcmp(etch__symbol_name((void *)other_thread), "other_thread");
    }
    return (void *)(intptr_t)clean;
}

TEST(errors_are_per_thread) {
    pthread_t t[4];
    void *clean;
    etch__error(ETCH_ERR_SHAPE, "mine");
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, other_thread, NULL), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &clean);
        assert_non_null(clean);
    }
    assert_begins("mine (test_errors.c:");
    etch_clear_error();
}

static volatile bool stop;

static void *asks_all_the_time(void *arg) {
    for (uintptr_t p = (uintptr_t)fails_for_its_caller; !stop; p++) etch__site_line((void *)p);
    return arg;
}

TEST(works_after_fork) {
    pthread_t t;
    int status;
    stop = false;
    assert_int_equal(pthread_create(&t, NULL, asks_all_the_time, NULL), 0);
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20); /* a lock that was left taken would hang */
            fails_for_its_caller();
            _exit(strstr(etch_last_error(), "(test_errors.c:") ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = true;
    pthread_join(t, NULL);
}

TEST(parameters) {
    assert_string_equal(etch__param(PARAM_CPU_ISA), "");
    assert_int_equal(etch__param_int(PARAM_MAX_SEGMENT), 77); /* set in main */
    assert_int_equal(etch__param_int(PARAM_JIT_TIMEOUT), 60); /* set to nonsense */
    assert_int_equal(etch__param_int(PARAM_CACHE_SIZE), 268435456);
    setenv("ETCH_MAX_SEGMENT", "78", 1);
    assert_int_equal(etch__param_int(PARAM_MAX_SEGMENT), 77); /* read once */
    assert_string_equal(etch__param(PARAM_MAX_SEGMENT), "77");
}

TEST(counters_count_and_reset) {
    etch_counters_reset();
    etch__counters.graphs += 3;
    ETCH_SCOPE {
        etch_tensor *a = etch_from_host((float[6]){0}, ETCH_F32, ETCH_SHAPE(2, 3));
        etch_t(a);
        etch_view(a, ETCH_SHAPE(6));
    }
    assert_int_equal(etch_counters().graphs, 3);
    assert_int_equal(etch_counters().operators, 2);
    etch_counters_reset();
    assert_int_equal(etch_counters().graphs, 0);
    assert_int_equal(etch_counters().operators, 0);
}

TEST(reasons_are_whole) {
    for (int i = 0; i < REASON_COUNT; i++) {
        assert_true(*etch__reasons[i].name && *etch__reasons[i].text);
        assert_non_null(etch__reasons[i].hint);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(etch__reasons[i].name, etch__reasons[k].name);
    }
    int64_t before = etch__reason_counts[REASON_BREAK_ITEM];
    etch__count_reason(REASON_BREAK_ITEM);
    assert_int_equal(etch__reason_counts[REASON_BREAK_ITEM], before + 1);
}

static void drop_line(void *ctx, const char *line) { (void)ctx, (void)line; }

int main(int argc, char **argv) {
    setenv("ETCH_MAX_SEGMENT", "77", 1);
    setenv("ETCH_JIT_TIMEOUT", "soon", 1);
    setenv("ETCH_CPU_ISA", "", 1);
    unsetenv("ETCH_CACHE_SIZE");
    etch_set_log_sink(drop_line, NULL);
    return run_suite(argc, argv);
}
