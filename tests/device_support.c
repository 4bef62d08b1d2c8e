/* Linked into every suite: ETCH_TEST_DEVICE=cuda puts the suite's tensors on a GPU, by making it the
 * main thread's current device before the first test. The linker's --wrap sends cmocka's entry here.
 *
 * Where there is no such device the suite says so in one line and ends with 77, which CTest takes as
 * skipped. ETCH_TEST_DEVICE_ASK=1 asks only whether it is there. */
#include "device_support.h"

#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

int __real__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

etch_device test_device(void) {
    const char *name = getenv("ETCH_TEST_DEVICE");
    return name && *name ? etch_device_parse(name) : ETCH_CPU;
}

bool test_device_enter(void) {
    etch_device device = test_device();
    return device == ETCH_CPU || (device > 0 && etch_set_device(device) == ETCH_OK);
}

int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown) {
    if (!test_device_enter()) {
        printf("skipped: %s\n", etch_last_error());
        return 77;
    }
    if (getenv("ETCH_TEST_DEVICE_ASK")) return 0;
    return __real__cmocka_run_group_tests(name, tests, n, setup, teardown);
}
