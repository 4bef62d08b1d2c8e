/* Linked into every suite: ETCH_TEST_DEVICE=cuda puts the suite's tensors on a GPU, by making it
 * the main thread's current device before the first test. */
#include "device_support.h"

#include <stdlib.h>

#include "backends/cuda/faults.h"

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
