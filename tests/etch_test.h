/* What every suite is made of: TEST(name) { ... } is a test, and the file that has some is a
 * program. Tests run in the order in which they stand. Arguments of the program choose those whose
 * names have one of them in them; --list prints the names. The assertions are cmocka's. */
#ifndef ETCH_TESTS_ETCH_TEST_H
#define ETCH_TESTS_ETCH_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct etch_test {
    const char *name;
    void (*body)(void);
    void (*before)(void), (*after)(void);
    void (*around)(const struct etch_test *t); /* in place of the body, which it may call */
    const void *data;                          /* of around */
    const char *setting; /* of the environment, "NAME=value": for tests that are processes */
    bool first, last;    /* before or after the tests that say nothing */
    bool only_on_fakes;  /* not on a real GPU */
    bool deals;          /* runs in each of ETCH_TEST_JOBS processes, and asks test_share there */
    int line;
    struct etch_test *next;
} etch_test;

/* What was called last has failed with this status and a text that holds `word`. */
#define ASSERT_REFUSED(status, word)                                                               \
    do {                                                                                           \
        assert_int_equal(etch_last_status(), status);                                              \
        if (!strstr(etch_last_error(), word)) fail_msg("%s", etch_last_error());                   \
        etch_clear_error();                                                                        \
    } while (0)

/* TEST(name, .setting = "A=1") { body }: fields of the test may follow its name. */
#define TEST(name, ...)                                                                            \
    static void test__##name(void);                                                                \
    TEST_ROW(name, name, __LINE__, __VA_ARGS__)                                                    \
    static void test__##name(void)
/* The same body once more, otherwise. */
#define TEST_AGAIN(name, ...) TEST_ROW(name, name##_again, __LINE__, __VA_ARGS__)
#define TEST_ROW(of_name, id, of_line, ...)                                                        \
    __attribute__((constructor)) static void add__##id(void) {                                     \
        static etch_test t = {                                                                     \
            .name = #of_name, .body = test__##of_name, .line = of_line, __VA_ARGS__};              \
        etch_test_add(&t);                                                                         \
    }

/* EACH_TEST(.before = f): fields of all tests of the suite that do not have their own. */
#define EACH_TEST(...)                                                                             \
    __attribute__((constructor)) static void set_each_test(void) {                                 \
        etch_test_each = (etch_test){__VA_ARGS__};                                                 \
    }
extern etch_test etch_test_each;

void etch_test_add(etch_test *t);

/* A suite that has more to do has a main of its own, which calls this: the number of tests that
 * failed, 77 where the device is not there. Arguments as above. */
int run_suite(int argc, char **argv);

/* ETCH_TEST_JOBS=N splits a suite into N processes, each with every N-th test. A test that asks a
 * device for many kernels deals out its work itself: .deals = true. All shares are the one
 * process's where there is one. */
bool test_share(long number);
/* For programs that a suite starts: reads its share from ETCH_TEST_PART. The number of this
 * process's. */
bool test_take_part(void);
long test_part(void);

#endif
