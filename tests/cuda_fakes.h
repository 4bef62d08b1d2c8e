/* Suites that run on the fakes of fake_cuda/ in their own process (cuda_child.h is for those that
 * need one for each test). */
#ifndef ETCH_TESTS_CUDA_FAKES_H
#define ETCH_TESTS_CUDA_FAKES_H

#include <etch/etch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static etch_device gpu;
static bool real_gpu; /* ETCH_TEST_REAL_GPU=1: on what the machine has */

/* Whether there is a device then. Another driver may be named outside. */
static bool use_fakes(void) {
    static const char *const names[][2] = {{"ETCH_CUDA_DRIVER", "libfake_cuda"},
                                           {"ETCH_CUDA_NVRTC", "libfake_nvrtc"},
                                           {"ETCH_CUDA_CUBLASLT", "libfake_cublaslt"}};
    char path[1024];
    real_gpu = getenv("ETCH_TEST_REAL_GPU") != NULL;
    for (int i = 0; i < 3 && !real_gpu; i++) {
        snprintf(path, sizeof path, "%s/tests/fake_cuda/%s.so", ETCH_TEST_BINARY_DIR, names[i][1]);
        setenv(names[i][0], path, 0);
    }
    setenv("FAKE_CUDA_CACHE", ETCH_HOST_KERNELS, 0);
    if (!real_gpu) setenv("ETCH_CACHE_SIZE", "0", 0);
    gpu = ETCH_CUDA(0);
    if (etch_cuda_count() > 0) return true;
    fprintf(stderr, "%s\n", etch_cuda_absent());
    return false;
}

#endif
