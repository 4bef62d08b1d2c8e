/* The device that a suite's tensors lie on: ETCH_TEST_DEVICE, else the CPU. */
#ifndef ETCH_TESTS_DEVICE_SUPPORT_H
#define ETCH_TESTS_DEVICE_SUPPORT_H

#include <etch/etch.h>
#include <stdbool.h>

etch_device test_device(void);
/* Makes it the calling thread's current device; false: it is not there, the error says why. Done
 * for the main thread; other threads of a test and fresh processes call it themselves. */
bool test_device_enter(void);

/* A call that fails on its data does so when its device is waited for: t where that says nothing,
 * else NULL with the error. */
etch_tensor *test_settled(etch_tensor *t);
/* As ETCH_CUDA_BLOCKING: errors appear at the call. */
void test_set_blocking(bool on);

/* At the start of a test that is about the host: instruction sets, addresses that C code writes
 * to. */
#define ONLY_ON_CPU()                                                                              \
    do {                                                                                           \
        if (test_device() != ETCH_CPU) skip();                                                     \
    } while (0)

#endif
