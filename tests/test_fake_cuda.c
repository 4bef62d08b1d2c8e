/* The fakes of libcuda, NVRTC and cuBLASLt themselves: what they compute, in which order, and what
 * they refuse. Everything is reached with dlopen, as the library does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda/api_types.h"
#include "fake_cuda/api_calls.h"
#include "fake_cuda/control.h"

static struct {
    void *driver, *nvrtc, *cublas;
    CUcontext context;
    CUstream stream;
} lib;

static void *find(void *handle, const char *name) {
    void *at = dlsym(handle, name);
    if (!at) fail_msg("no symbol %s", name);
    return at;
}

/* A function of the libraries, with the type of its prototype. */
#define CU(name) ((__typeof__(&name))find(lib.driver, #name))
#define RTC(name) ((__typeof__(&name))find(lib.nvrtc, #name))
#define LT(name) ((__typeof__(&name))find(lib.cublas, #name))
#define OK(call) assert_int_equal(call, 0)

static void *open_fake(const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/fake_cuda/%s.so", ETCH_TEST_BINARY_DIR, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fprintf(stderr, "%s\n", dlerror());
    return handle;
}

static int load(void **state) {
    (void)state;
    lib.driver = open_fake("libfake_cuda");
    lib.nvrtc = open_fake("libfake_nvrtc");
    lib.cublas = open_fake("libfake_cublaslt");
    if (!lib.driver || !lib.nvrtc || !lib.cublas) return 1;
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&lib.context, 0));
    OK(CU(cuCtxSetCurrent)(lib.context));
    return 0;
}

/* ---- helpers ---- */

static nvrtcResult compile(const char *source, const char *option, char **image, char **log) {
    nvrtcProgram program;
    const char *options[] = {"--gpu-architecture=sm_90", option};
    size_t size;
    OK(RTC(nvrtcCreateProgram)(&program, source, "test.cu", 0, NULL, NULL));
    const nvrtcResult result = RTC(nvrtcCompileProgram)(program, option ? 2 : 1, options);
    OK(RTC(nvrtcGetProgramLogSize)(program, &size));
    char *text = malloc(size);
    OK(RTC(nvrtcGetProgramLog)(program, text));
    if (log) *log = text;
    else {
        if (result) fail_msg("%s", text);
        free(text);
    }
    *image = NULL;
    if (!result) {
        OK(RTC(nvrtcGetCUBINSize)(program, &size));
        *image = malloc(size);
        OK(RTC(nvrtcGetCUBIN)(program, *image));
    }
    OK(RTC(nvrtcDestroyProgram)(&program));
    return result;
}

static CUmodule build(const char *source, const char *option) {
    char *image;
    CUmodule module;
    OK(compile(source, option, &image, NULL));
    OK(CU(cuModuleLoadData)(&module, image));
    free(image);
    return module;
}

static CUfunction kernel(CUmodule module, const char *name) {
    CUfunction function;
    OK(CU(cuModuleGetFunction)(&function, module, name));
    return function;
}

static CUdeviceptr device(const void *data, size_t size) {
    CUdeviceptr at;
    OK(CU(cuMemAlloc_v2)(&at, size));
    if (data) OK(CU(cuMemcpyHtoD_v2)(at, data, size));
    return at;
}

static CUresult launch(CUfunction f, unsigned grid, unsigned block, unsigned shared, void **params) {
    return CU(cuLaunchKernel)(f, grid, 1, 1, block, 1, 1, shared, NULL, params, NULL);
}

static void nothing_lives(void) {
    CU(fake_cuda_print_live)();
    assert_int_equal(CU(fake_cuda_live)(NULL), 0);
}

/* ---- kernels ---- */

static const char saxpy[] =
    "extern \"C\" __global__ void saxpy(int n, float a, const float *__restrict__ x, float *y) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) y[i] = a * x[i] + y[i];\n"
    "}\n";

static void saxpy_runs(void **state) {
    (void)state;
    enum { N = 1000 };
    float x[N], y[N], out[N];
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = 0.5f;
    CUmodule module = build(saxpy, "-fmad=false");
    CUdeviceptr dx = device(x, sizeof x), dy = device(y, sizeof y);
    int n = N;
    float a = 2;
    OK(launch(kernel(module, "saxpy"), 8, 128, 0, (void *[]){&n, &a, &dx, &dy}));
    OK(CU(cuMemcpyDtoH_v2)(out, dy, sizeof out));
    for (int i = 0; i < N; i++) assert_true(out[i] == 2 * (float)i + 0.5f);
    OK(CU(cuMemFree_v2)(dx));
    OK(CU(cuMemFree_v2)(dy));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

int main(void) {
    if (system("g++ --version >/dev/null 2>&1")) {
        printf("fake_cuda: skipped, there is no g++ to compile kernels with\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saxpy_runs),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
