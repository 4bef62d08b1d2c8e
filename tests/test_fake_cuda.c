/* The fakes of libcuda, NVRTC and cuBLASLt themselves: what they compute, in which order, and what
 * they refuse. Everything is reached with dlopen, as the library does. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "etch_test.h"
#include "fake_cuda/api_types.h"
#include "fake_cuda/api_calls.h"
#include "fake_cuda/control.h"

static struct {
    void *driver, *nvrtc, *cublas;
    CUcontext context;
    cublasLtHandle_t products;
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

static bool load(void) {
    lib.driver = open_fake("libfake_cuda");
    lib.nvrtc = open_fake("libfake_nvrtc");
    lib.cublas = open_fake("libfake_cublaslt");
    if (!lib.driver || !lib.nvrtc || !lib.cublas) return false;
    CU(fake_cuda_set_lazy)(0); /* whatever the environment says */
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&lib.context, 0));
    OK(CU(cuCtxSetCurrent)(lib.context));
    OK(LT(cublasLtCreate)(&lib.products));
    return true;
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

/* At once, of the stream 0. */
static int to_device(CUdeviceptr to, const void *data, size_t size) {
    int error = CU(cuMemcpyHtoDAsync_v2)(to, data, size, NULL);
    return error ? error : CU(cuStreamSynchronize)(NULL);
}
static int from_device(void *data, CUdeviceptr from, size_t size) {
    return CU(cuMemcpyDtoHAsync_v2)(data, from, size, NULL);
}
/* On a stream, in its turn. */
static int put(CUdeviceptr to, int value, CUstream stream) {
    return CU(cuMemcpyHtoDAsync_v2)(to, &value, sizeof value, stream);
}

static CUdeviceptr device(const void *data, size_t size) {
    CUdeviceptr at;
    OK(CU(cuMemAlloc_v2)(&at, size));
    if (data) OK(to_device(at, data, size));
    return at;
}

static CUresult launch(CUfunction f, unsigned grid, unsigned block, unsigned shared,
                       void **params) {
    return CU(cuLaunchKernel)(f, grid, 1, 1, block, 1, 1, shared, NULL, params, NULL);
}

static void nothing_lives(void) {
    const bool none = CU(fake_cuda_live)(NULL) == CU(fake_cuda_live)("cublas");
    if (!none) CU(fake_cuda_print_live)();
    assert_true(none);
}

/* ---- kernels ---- */

static const char saxpy[] =
    "extern \"C\" __global__ void saxpy(int n, float a, const float *__restrict__ x, float *y) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) y[i] = a * x[i] + y[i];\n"
    "}\n";

TEST(saxpy_runs) {
    enum { N = 1000 };
    float x[N], y[N], out[N];
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = 0.5f;
    CUmodule module = build(saxpy, "-fmad=false");
    CUdeviceptr dx = device(x, sizeof x), dy = device(y, sizeof y);
    int n = N;
    float a = 2;
    OK(launch(kernel(module, "saxpy"), 8, 128, 0, (void *[]){&n, &a, &dx, &dy}));
    OK(from_device(out, dy, sizeof out));
    for (int i = 0; i < N; i++) assert_true(out[i] == 2 * (float)i + 0.5f);
    OK(CU(cuMemFree_v2)(dx));
    OK(CU(cuMemFree_v2)(dy));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

TEST(bad_source_gives_a_log) {
    char *image, *log;
    assert_int_equal(compile("__global__ void k() { int x = missing; }", NULL, &image, &log),
                     NVRTC_ERROR_COMPILATION);
    assert_non_null(strstr(log, "missing"));
    assert_non_null(strstr(log, "test.cu:1"));
    free(log);
    assert_int_equal(compile(saxpy, "--no-such-option", &image, &log), NVRTC_ERROR_INVALID_OPTION);
    assert_non_null(strstr(log, "--no-such-option"));
    free(log);
    CUmodule module;
    assert_int_equal(CU(cuModuleLoadData)(&module, "something else"), CUDA_ERROR_INVALID_IMAGE);
    nothing_lives();
}

static const char sums[] =
    "__device__ float warp_sum(float x) {\n"
    "    for (int d = 16; d > 0; d /= 2) x += __shfl_down_sync(0xffffffffu, x, d);\n"
    "    return x;\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(256) sum(const float *x, float *y, int n) {\n"
    "    __shared__ float part[8];\n"
    "    float s = 0;\n"
    "    for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i];\n"
    "    s = warp_sum(s);\n"
    "    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x < 32) {\n"
    "        s = warp_sum(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0);\n"
    "        if (threadIdx.x == 0) y[blockIdx.x] = s;\n"
    "    }\n"
    "}\n"
    "extern \"C\" __global__ void turn(int *x) { // extern __shared__ in a comment\n"
    "    extern __shared__ __align__(16) int room[];\n"
    "    room[threadIdx.x] = x[threadIdx.x];\n"
    "    __syncthreads();\n"
    "    x[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];\n"
    "}\n"
    "extern \"C\" __global__ void over(int n) { extern __shared__ int room[]; room[n] = 1; }\n"
    "extern \"C\" __global__ void garbage(int *x) {\n"
    "    __shared__ int a[4]; extern __shared__ int room[];\n"
    "    x[blockIdx.x * 2] = a[1]; x[blockIdx.x * 2 + 1] = room[1]; a[1] = room[1] = 5;\n"
    "}\n";

TEST(blocks_reduce) {
    enum { ROWS = 5, N = 777 };
    static float x[ROWS * N];
    float y[ROWS];
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)(i % 13);
    CUmodule module = build(sums, NULL);
    CUfunction f = kernel(module, "sum");
    CUdeviceptr dx = device(x, sizeof x), dy = device(NULL, sizeof y);
    int n = N;
    OK(launch(f, ROWS, 256, 0, (void *[]){&dx, &dy, &n}));
    OK(from_device(y, dy, sizeof y));
    for (int r = 0; r < ROWS; r++) {
        float sum = 0; /* whole numbers: exact in any order */
        for (int i = 0; i < N; i++) sum += x[r * N + i];
        assert_true(y[r] == sum);
    }
    assert_int_equal(launch(f, 1, 512, 0, (void *[]){&dx, &dy, &n}),
                     CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_int_equal(launch(f, 0, 32, 0, (void *[]){&dx, &dy, &n}), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemFree_v2)(dx));
    OK(CU(cuMemFree_v2)(dy));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

static void recover(void) {
    OK(CU(cuDevicePrimaryCtxReset_v2)(0));
    OK(CU(cuCtxSynchronize)());
}

TEST(dynamic_shared_memory) {
    int x[64];
    for (int i = 0; i < 64; i++) x[i] = i;
    CUmodule module = build(sums, NULL);
    CUfunction f = kernel(module, "turn");
    CUdeviceptr dx = device(x, sizeof x);
    OK(launch(f, 1, 64, sizeof x, (void *[]){&dx}));
    OK(from_device(x, dx, sizeof x));
    for (int i = 0; i < 64; i++) assert_int_equal(x[i], 63 - i);
    /* More than the usual limit has to be asked for. */
    assert_int_equal(launch(f, 1, 64, 100000, (void *[]){&dx}), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
    OK(launch(f, 1, 64, 100000, (void *[]){&dx}));
    assert_int_equal(
        CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000),
        CUDA_ERROR_INVALID_VALUE);
    /* Blocks start with garbage. */
    OK(launch(kernel(module, "garbage"), 2, 1, 16, (void *[]){&dx}));
    OK(from_device(x, dx, sizeof x));
    for (int i = 0; i < 4; i++) assert_int_equal(x[i], -1);
    int n = 4;
    OK(launch(kernel(module, "over"), 1, 1, 16, (void *[]){&n}));
    assert_int_equal(CU(cuCtxSynchronize)(), CUDA_ERROR_ILLEGAL_ADDRESS);
    recover();
    OK(CU(cuMemFree_v2)(dx));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

/* Four warps fill a word again and again, four others read it; and they take turns. */
static const char handing[] =
    "using namespace tensor_core;\n"
    "extern \"C\" __global__ void hand(int *x) {\n"
    "    __shared__ gate full, empty;\n"
    "    __shared__ int word[128], turns;\n"
    "    const int t = threadIdx.x % 128, filler = threadIdx.x / 128;\n"
    "    if (threadIdx.x == 0) gate_set(&full, 128), gate_set(&empty, 128), turns = 0;\n"
    "    __syncthreads();\n"
    "    int sum = 0;\n"
    "    if (filler) turn_given(1);\n"
    "    for (int i = 0; i < 5; i++) {\n"
    "        if (filler) gate_passed(&empty, ~i % 2), word[t] = i + t, gate_reached(&full);\n"
    "        else gate_passed(&full, i % 2), sum += word[127 - t], gate_reached(&empty);\n"
    "        turn_awaited(1 + filler);\n"
    "        if (t == 0) turns = turns * 3 + 1 + filler;\n"
    "        turn_given(2 - filler);\n"
    "    }\n"
    "    if (!filler) turn_awaited(1), x[t] = sum, x[128] = turns;\n"
    "}\n";

TEST(warps_hand_over_and_take_turns) {
    CUmodule module = build(handing, NULL);
    int x[129], turns = 0;
    CUdeviceptr dx = device(NULL, sizeof x);
    OK(launch(kernel(module, "hand"), 2, 256, 0, (void *[]){&dx}));
    OK(from_device(x, dx, sizeof x));
    for (int t = 0; t < 128; t++) assert_int_equal(x[t], 10 + 5 * (127 - t));
    for (int i = 0; i < 5; i++) turns = (turns * 3 + 1) * 3 + 2;
    assert_int_equal(x[128], turns);
    OK(CU(cuMemFree_v2)(dx));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

static const char wrong[] =
    "extern \"C\" __global__ void ends() { if (threadIdx.x < 7) return; __syncthreads(); }\n"
    "extern \"C\" __global__ void apart() {\n"
    "    if (threadIdx.x < 8) __syncwarp(); else __syncthreads();\n"
    "}\n"
    "extern \"C\" __global__ void alone() { if (threadIdx.x < 32) tensor_core::turn_awaited(1); }\n"
    "extern \"C\" __global__ void closed() {\n"
    "    __shared__ tensor_core::gate g;\n"
    "    if (threadIdx.x == 0) tensor_core::gate_set(&g, 33);\n"
    "    __syncthreads();\n"
    "    tensor_core::gate_reached(&g), tensor_core::gate_passed(&g, 0);\n"
    "}\n"
    "extern \"C\" __global__ void store(float *x, int i) { x[i] = 1; }\n"
    "extern \"C\" __global__ void divide(int *x) { x[0] = 100 / x[0]; }\n"
    "extern \"C\" __global__ void deep(int *x) {\n"
    "    volatile char room[200000]; room[0] = 1; x[0] = room[0];\n"
    "}\n";

/* The fault is seen by later calls, not by the launch, and stays. */
static void faults(CUfunction f, unsigned threads, void **params, CUresult error) {
    OK(launch(f, 1, threads, 0, params));
    assert_int_equal(CU(cuCtxSynchronize)(), error);
    assert_int_equal(CU(cuCtxSynchronize)(), error);
    CUdeviceptr at;
    assert_int_equal(CU(cuMemAlloc_v2)(&at, 4), error);
    recover();
}

TEST(wrong_kernels_are_found) {
    CUmodule module = build(wrong, NULL);
    faults(kernel(module, "ends"), 32, NULL, CUDA_ERROR_LAUNCH_FAILED);
    faults(kernel(module, "apart"), 32, NULL, CUDA_ERROR_LAUNCH_FAILED);
    faults(kernel(module, "alone"), 64, NULL, CUDA_ERROR_LAUNCH_FAILED);
    faults(kernel(module, "closed"), 32, NULL, CUDA_ERROR_LAUNCH_FAILED);
    CUfunction store = kernel(module, "store");
    CUdeviceptr x = device((float[4]){0}, 16), gone = device(NULL, 16);
    int i = 3;
    OK(launch(store, 1, 1, 0, (void *[]){&x, &i}));
    OK(CU(cuCtxSynchronize)());
    i = 4; /* in the red zone */
    faults(store, 1, (void *[]){&x, &i}, CUDA_ERROR_ILLEGAL_ADDRESS);
    i = 100000; /* between allocations */
    CUdeviceptr clean = device(NULL, 16);
    faults(store, 1, (void *[]){&clean, &i}, CUDA_ERROR_ILLEGAL_ADDRESS);
    i = 0;
    OK(CU(cuMemFree_v2)(gone));
    faults(store, 1, (void *[]){&gone, &i}, CUDA_ERROR_ILLEGAL_ADDRESS);
    float host[4] = {0};
    void *pointer = host;
    faults(store, 1, (void *[]){&pointer, &i}, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_true(host[0] == 0);
    OK(CU(cuMemsetD8Async)(clean, 0, 16, NULL));
    faults(kernel(module, "divide"), 1, (void *[]){&clean}, CUDA_ERROR_LAUNCH_FAILED);
    faults(kernel(module, "deep"), 1, (void *[]){&clean}, CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(CU(cuMemFree_v2)(x));
    OK(CU(cuMemFree_v2)(clean));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

/* ---- memory ---- */

TEST(copies_stay_inside) {
    char data[64] = {1};
    CUdeviceptr x = device(NULL, 48);
    assert_int_equal(to_device(x, data, 49), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(from_device(data, x + 40, 9), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(CU(cuMemcpyDtoDAsync_v2)(x, (uintptr_t)data, 4, NULL),
                     CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(to_device(x, (void *)(uintptr_t)x, 4), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(CU(cuMemsetD8Async)(x, 0, 49, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(to_device(x, data, 48));
    OK(CU(cuMemsetD8Async)(x + 2, 3, 4, NULL));
    OK(from_device(data, x, 8));
    assert_memory_equal(data, ((char[]){1, 0, 3, 3, 3, 3, 0, 0}), 8);
    OK(CU(cuMemFree_v2)(x));
    assert_int_equal(CU(cuMemFree_v2)(x), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(to_device(x, data, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    nothing_lives();
}

TEST(the_host_may_not_touch_device_memory) {
    CUdeviceptr x = device((int[]){7}, 4);
    const pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile int *)(uintptr_t)x);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    OK(CU(cuMemFree_v2)(x));
}

TEST(children_have_no_device) {
    const pid_t child = fork();
    int count;
    if (!child) _exit(CU(cuDeviceGetCount)(&count));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == CUDA_ERROR_NOT_INITIALIZED);
    OK(CU(cuDeviceGetCount)(&count));
    assert_int_equal(count, 2);
}

TEST(memory_runs_out) {
    size_t free_bytes, total;
    CUdeviceptr a, b;
    OK(CU(cuMemGetInfo_v2)(&free_bytes, &total));
    assert_int_equal(free_bytes, total);
    OK(CU(cuMemAlloc_v2)(&a, total / 4 * 3));
    assert_int_equal(CU(cuMemAlloc_v2)(&b, total / 2), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(CU(cuMemAlloc_v2)(&b, 0), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemGetInfo_v2)(&free_bytes, &total));
    assert_int_equal(free_bytes, total - total / 4 * 3);
    OK(CU(cuMemFree_v2)(a));
    OK(CU(cuMemAlloc_v2)(&b, 1000));
    int bits;
    OK(from_device(&bits, b, 4));
    assert_int_equal(bits, -1); /* new memory is garbage */
    assert_true(b % 256 == 0);
    OK(CU(cuMemFree_v2)(b));
    nothing_lives();
}

TEST(devices_are_apart) {
    CUcontext other;
    OK(CU(cuDevicePrimaryCtxRetain)(&other, 1));
    CUmodule module = build(wrong, NULL);
    CUfunction store = kernel(module, "store");
    OK(CU(cuCtxSetCurrent)(other));
    CUdeviceptr there = device((float[4]){1}, 16);
    OK(CU(cuCtxSetCurrent)(lib.context));
    int i = 0;
    faults(store, 1, (void *[]){&there, &i}, CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr here = device(NULL, 16);
    float x;
    OK(CU(cuMemcpyPeerAsync)(here, lib.context, there, other, 16, NULL));
    OK(from_device(&x, here, 4));
    assert_true(x == 1);
    OK(CU(cuMemFree_v2)(here));
    OK(CU(cuMemFree_v2)(there));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

/* ---- streams ---- */

static void lazy(void) { CU(fake_cuda_set_lazy)(1); }
static void eager(void) { CU(fake_cuda_set_lazy)(0); }
EACH_TEST(.after = eager)

TEST(lazy_streams_wait, .before = lazy) {
    CUstream stream;
    int *pinned, pageable = 5;
    CUdeviceptr x = device((int[]){1, 2}, 8);
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(CU(cuMemAllocHost_v2)((void **)&pinned, 16));
    pinned[0] = 3;
    OK(CU(cuMemcpyHtoDAsync_v2)(x, pinned, 4, stream));
    OK(CU(cuMemcpyHtoDAsync_v2)(x + 4, &pageable, 4, stream));
    OK(CU(cuMemcpyDtoHAsync_v2)(pinned + 2, x, 8, stream));
    pinned[0] = 4; /* read later */
    pageable = 6;  /* was read at the call */
    assert_int_equal(pinned[2], -1);
    assert_int_equal(CU(fake_cuda_pending)(), 3);
    OK(CU(cuStreamSynchronize)(stream));
    assert_int_equal(pinned[2], 4);
    assert_int_equal(pinned[3], 5);
    /* Into pageable memory the copy waits. */
    OK(put(x + 4, 9, stream));
    OK(CU(cuMemcpyDtoHAsync_v2)(&pageable, x + 4, 4, stream));
    assert_int_equal(pageable, 9);
    OK(CU(cuStreamDestroy_v2)(stream));
    OK(CU(cuMemFreeHost)(pinned));
    OK(CU(cuMemFree_v2)(x));
    nothing_lives();
}

TEST(lazy_events_order_streams, .before = lazy) {
    CUstream a, b;
    CUevent event;
    CUdeviceptr x = device((int[]){0}, 4);
    int out;
    OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
    OK(CU(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
    OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    OK(put(x, 1, a));
    /* Without the wait b does not see what a does. */
    OK(CU(cuMemcpyDtoHAsync_v2)(&out, x, 4, b));
    assert_int_equal(out, 0);
    OK(CU(cuEventRecord)(event, a));
    OK(put(x, 2, a));
    OK(CU(cuStreamWaitEvent)(b, event, 0));
    OK(CU(cuMemcpyDtoHAsync_v2)(&out, x, 4, b));
    assert_int_equal(out, 1); /* up to the event, not further */
    OK(CU(cuEventSynchronize)(event));
    assert_int_equal(CU(fake_cuda_pending)(), 1);
    OK(CU(cuStreamSynchronize)(a));
    OK(CU(cuMemcpyDtoHAsync_v2)(&out, x, 4, b));
    assert_int_equal(out, 2);
    OK(CU(cuEventDestroy_v2)(event));
    OK(CU(cuStreamDestroy_v2)(a));
    OK(CU(cuStreamDestroy_v2)(b));
    OK(CU(cuMemFree_v2)(x));
    nothing_lives();
}

TEST(lazy_stream_zero_waits_for_blocking_ones, .before = lazy) {
    CUstream blocking, free_one;
    CUdeviceptr x = device((int[]){0}, 4);
    int out;
    OK(CU(cuStreamCreate)(&blocking, 0));
    OK(CU(cuStreamCreate)(&free_one, CU_STREAM_NON_BLOCKING));
    OK(put(x, 1, free_one));
    OK(from_device(&out, x, 4));
    assert_int_equal(out, 0);
    OK(CU(cuStreamSynchronize)(free_one));
    OK(put(x, 2, blocking));
    OK(from_device(&out, x, 4));
    assert_int_equal(out, 2);
    OK(CU(cuMemFree_v2)(x));
    OK(CU(cuStreamDestroy_v2)(blocking));
    OK(CU(cuStreamDestroy_v2)(free_one));
    nothing_lives();
}

TEST(events_have_times) {
    CUevent start, end;
    float milliseconds = -1;
    OK(CU(cuEventCreate)(&start, 0));
    OK(CU(cuEventCreate)(&end, 0));
    OK(CU(cuEventRecord)(start, NULL));
    OK(CU(cuEventRecord)(end, NULL));
    OK(CU(cuEventSynchronize)(end));
    OK(CU(cuEventElapsedTime)(&milliseconds, start, end));
    assert_true(milliseconds >= 0);
    OK(CU(cuEventDestroy_v2)(start));
    OK(CU(cuEventDestroy_v2)(end));
    assert_int_equal(CU(cuEventQuery)(end), CUDA_ERROR_INVALID_HANDLE);
    nothing_lives();
}

static void *work_on_own_stream(void *data) {
    const CUfunction store = data;
    long bad = 0;
    CU(cuCtxSetCurrent)(lib.context);
    for (int i = 0; i < 50; i++) {
        CUstream stream = NULL;
        CUdeviceptr x = 0;
        float out = 0;
        int at = 2;
        bad += CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != 0;
        bad += CU(cuMemAlloc_v2)(&x, 16) != 0;
        bad += CU(cuLaunchKernel)(store, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&x, &at}, NULL);
        bad += CU(cuMemcpyDtoHAsync_v2)(&out, x + 8, 4, stream) != 0;
        bad += out != 1;
        bad += CU(cuMemFree_v2)(x) != 0;
        bad += CU(cuStreamDestroy_v2)(stream) != 0;
    }
    return (void *)bad;
}

TEST(threads_share_a_device) {
    CUmodule module = build(wrong, NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        OK(pthread_create(&threads[i], NULL, work_on_own_stream, kernel(module, "store")));
    for (int i = 0; i < 4; i++) {
        void *bad;
        OK(pthread_join(threads[i], &bad));
        assert_null(bad);
    }
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}
TEST_AGAIN(threads_share_a_device, .before = lazy)

/* ---- graphs ---- */

static const char steps[] = "extern \"C\" __global__ void add(int *x, int v) { x[0] += v; }\n"
                            "extern \"C\" __global__ void twice(int *x) { x[0] *= 2; }\n";

static CUDA_KERNEL_NODE_PARAMS node_params(CUfunction f, void **params) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = f,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 1,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params};
}

static int read_int(CUdeviceptr x) {
    int value;
    OK(from_device(&value, x, 4));
    return value;
}

TEST(graphs_are_patched) {
    CUmodule module = build(steps, NULL);
    CUdeviceptr x = device((int[]){1}, 4), y = device((int[]){10}, 4);
    CUgraph graph;
    CUgraphNode add, twice;
    CUgraphExec exec;
    int v = 3;
    OK(CU(cuGraphCreate)(&graph, 0));
    CUDA_KERNEL_NODE_PARAMS p = node_params(kernel(module, "add"), (void *[]){&x, &v});
    OK(CU(cuGraphAddKernelNode_v2)(&add, graph, NULL, 0, &p));
    CUDA_KERNEL_NODE_PARAMS q = node_params(kernel(module, "twice"), (void *[]){&x});
    OK(CU(cuGraphAddKernelNode_v2)(&twice, graph, &add, 1, &q));
    OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    v = 100; /* the node has its own copy */
    OK(CU(cuGraphLaunch)(exec, NULL));
    assert_int_equal(read_int(x), 8);
    /* A patched node changes the executable graph only. */
    p.kernelParams = (void *[]){&y, &v};
    OK(CU(cuGraphExecKernelNodeSetParams_v2)(exec, add, &p));
    OK(CU(cuGraphLaunch)(exec, NULL));
    assert_int_equal(read_int(x), 16);
    assert_int_equal(read_int(y), 110);
    assert_int_equal(CU(fake_cuda_count)("cuGraphExecKernelNodeSetParams_v2"), 1);
    assert_int_equal(CU(fake_cuda_live)("exec"), 1);
    OK(CU(cuGraphExecDestroy)(exec));
    OK(CU(cuGraphDestroy)(graph));
    assert_int_equal(CU(cuGraphLaunch)(exec, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemFree_v2)(x));
    OK(CU(cuMemFree_v2)(y));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

static CUresult add_on(CUstream stream, CUfunction f, CUdeviceptr x, int v) {
    return CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&x, &v}, NULL);
}

TEST(streams_are_captured) {
    CUmodule module = build(steps, NULL);
    CUfunction add = kernel(module, "add"), twice = kernel(module, "twice");
    CUdeviceptr x = device((int[]){1}, 4), y = device((int[]){2}, 4), z;
    CUstream a, b;
    CUevent fork_event, join_event;
    CUgraph graph, child;
    CUgraphExec exec;
    CUgraphNode node;
    OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
    OK(CU(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
    OK(CU(cuEventCreate)(&fork_event, 0));
    OK(CU(cuEventCreate)(&join_event, 0));
    OK(CU(cuStreamBeginCapture_v2)(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(add_on(a, add, x, 4));
    OK(CU(cuEventRecord)(fork_event, a));
    OK(CU(cuStreamWaitEvent)(b, fork_event, 0));
    OK(add_on(b, add, y, 5));
    OK(CU(cuEventRecord)(join_event, b));
    OK(CU(cuStreamWaitEvent)(a, join_event, 0));
    OK(CU(cuMemcpyDtoDAsync_v2)(y, x, 4, a));
    OK(CU(cuStreamEndCapture)(a, &child));
    assert_int_equal(read_int(x), 1); /* nothing ran */
    /* As a child graph, exchanged for another of the same shape. */
    OK(CU(cuGraphCreate)(&graph, 0));
    OK(CU(cuGraphAddChildGraphNode)(&node, graph, NULL, 0, child));
    OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    OK(CU(cuGraphLaunch)(exec, a));
    OK(CU(cuStreamSynchronize)(a));
    assert_int_equal(read_int(y), 5);
    OK(CU(cuGraphDestroy)(child));
    OK(CU(cuStreamBeginCapture_v2)(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(add_on(a, twice, x, 0));
    OK(CU(cuStreamEndCapture)(a, &child));
    assert_int_equal(CU(cuGraphExecChildGraphNodeSetParams)(exec, node, child),
                     CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuGraphDestroy)(child));
    /* What waits or allocates in a capture ends it. */
    OK(CU(cuStreamBeginCapture_v2)(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    assert_int_equal(CU(cuMemAlloc_v2)(&z, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(add_on(a, add, x, 4), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(CU(cuStreamEndCapture)(a, &child), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_null(child);
    OK(CU(cuStreamBeginCapture_v2)(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(CU(cuEventRecord)(fork_event, a));
    OK(CU(cuStreamWaitEvent)(b, fork_event, 0));
    OK(add_on(b, add, y, 5));
    assert_int_equal(CU(cuStreamEndCapture)(a, &child), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    /* A capture ends with its stream. */
    OK(CU(cuStreamBeginCapture_v2)(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(add_on(a, add, x, 4));
    assert_int_equal(CU(cuCtxSynchronize)(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(CU(cuStreamDestroy_v2)(a));
    OK(CU(cuCtxSynchronize)());
    OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
    OK(CU(cuGraphExecDestroy)(exec));
    OK(CU(cuGraphDestroy)(graph));
    OK(CU(cuEventDestroy_v2)(fork_event));
    OK(CU(cuEventDestroy_v2)(join_event));
    OK(CU(cuStreamDestroy_v2)(a));
    OK(CU(cuStreamDestroy_v2)(b));
    OK(CU(cuMemFree_v2)(x));
    OK(CU(cuMemFree_v2)(y));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

TEST(lazy_graphs_need_their_edges, .before = lazy) {
    CUmodule module = build(steps, NULL);
    CUdeviceptr x = device((int[]){1}, 4);
    int v = 3;
    for (int edges = 0; edges < 2; edges++) {
        CUgraph graph;
        CUgraphNode add, twice;
        CUgraphExec exec;
        OK(put(x, 1, NULL));
        OK(CU(cuGraphCreate)(&graph, 0));
        CUDA_KERNEL_NODE_PARAMS p = node_params(kernel(module, "add"), (void *[]){&x, &v});
        OK(CU(cuGraphAddKernelNode_v2)(&add, graph, NULL, 0, &p));
        CUDA_KERNEL_NODE_PARAMS q = node_params(kernel(module, "twice"), (void *[]){&x});
        OK(CU(cuGraphAddKernelNode_v2)(&twice, graph, &add, (size_t)edges, &q));
        OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
        OK(CU(cuGraphLaunch)(exec, NULL));
        assert_int_equal(read_int(x), edges ? 8 : 5);
        OK(CU(cuGraphExecDestroy)(exec));
        OK(CU(cuGraphDestroy)(graph));
    }
    OK(CU(cuMemFree_v2)(x));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

TEST(graphs_copy) {
    CUdeviceptr x = device((int[]){7}, 4), y = device((int[]){2}, 4);
    CUgraph graph;
    CUgraphNode copy;
    CUgraphExec exec;
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = x,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = y,
                       .WidthInBytes = 4,
                       .Height = 1,
                       .Depth = 1};
    OK(CU(cuGraphCreate)(&graph, 0));
    OK(CU(cuGraphAddMemcpyNode)(&copy, graph, NULL, 0, &c, lib.context));
    OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    OK(CU(cuGraphLaunch)(exec, NULL));
    assert_int_equal(read_int(y), 7);
    OK(CU(cuGraphExecDestroy)(exec));
    OK(CU(cuGraphDestroy)(graph));
    OK(CU(cuMemFree_v2)(x));
    OK(CU(cuMemFree_v2)(y));
    nothing_lives();
}

/* ---- products ---- */

typedef struct gemm {
    int type, out_type, compute;
    int m, n, k;
    int transa, transb, order, epilogue, algorithm;
    size_t workspace;
} gemm;

static cublasLtMatrixLayout_t layout(int type, int rows, int cols, int order) {
    cublasLtMatrixLayout_t made;
    const int32_t wanted = order;
    const int ld = order == CUBLASLT_ORDER_ROW ? cols : rows;
    OK(LT(cublasLtMatrixLayoutCreate)(&made, type, (uint64_t)rows, (uint64_t)cols, ld));
    OK(LT(cublasLtMatrixLayoutSetAttribute)(made, CUBLASLT_MATRIX_LAYOUT_ORDER, &wanted, 4));
    return made;
}

/* D = epilogue(A B + bias), all in device memory. Returns the status of the product. */
static cublasStatus_t multiply(const gemm *g, CUstream stream, CUdeviceptr a, CUdeviceptr b,
                               CUdeviceptr d, CUdeviceptr bias, CUdeviceptr workspace) {
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[3];
    const int scale = g->compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F;
    const float one = 1, zero = 0;
    const double wide_one = 1, wide_zero = 0;
    const int32_t ta = g->transa, tb = g->transb, epilogue = g->epilogue;
    int count;
    OK(LT(cublasLtMatmulDescCreate)(&desc, g->compute, scale));
    OK(LT(cublasLtMatmulDescSetAttribute)(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, 4));
    OK(LT(cublasLtMatmulDescSetAttribute)(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, 4));
    OK(LT(cublasLtMatmulDescSetAttribute)(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4));
    OK(LT(cublasLtMatmulDescSetAttribute)(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, 8));
    cublasLtMatrixLayout_t la = layout(g->type, ta ? g->k : g->m, ta ? g->m : g->k, g->order);
    cublasLtMatrixLayout_t lb = layout(g->type, tb ? g->n : g->k, tb ? g->k : g->n, g->order);
    cublasLtMatrixLayout_t ld = layout(g->out_type, g->m, g->n, g->order);
    OK(LT(cublasLtMatmulPreferenceCreate)(&preference));
    OK(LT(cublasLtMatmulPreferenceSetAttribute)(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &g->workspace, sizeof(size_t)));
    OK(LT(cublasLtMatmulAlgoGetHeuristic)(lib.products, desc, la, lb, ld, ld, preference, 3,
                                          results, &count));
    const cublasLtMatmulAlgo_t *algo = &results[g->algorithm < count ? g->algorithm : 0].algo;
    const bool wide = scale == CUDA_R_64F;
    const cublasStatus_t status = LT(cublasLtMatmul)(
        lib.products, desc, wide ? (const void *)&wide_one : &one, (void *)(uintptr_t)a, la,
        (void *)(uintptr_t)b, lb, wide ? (const void *)&wide_zero : &zero, (void *)(uintptr_t)d, ld,
        (void *)(uintptr_t)d, ld, algo, (void *)(uintptr_t)workspace, g->workspace, stream);
    OK(LT(cublasLtMatmulPreferenceDestroy)(preference));
    OK(LT(cublasLtMatrixLayoutDestroy)(la));
    OK(LT(cublasLtMatrixLayoutDestroy)(lb));
    OK(LT(cublasLtMatrixLayoutDestroy)(ld));
    OK(LT(cublasLtMatmulDescDestroy)(desc));
    return status;
}

/* 2x3 by 3x2, by columns and by rows, plain and transposed. */
TEST(products_multiply) {
    const float by_row[6] = {1, 2, 3, 4, 5, 6}, by_column[6] = {1, 4, 2, 5, 3, 6};
    const float out_rows[4] = {22, 28, 49, 64}, out_columns[4] = {22, 49, 28, 64};
    CUdeviceptr rows = device(by_row, 24), columns = device(by_column, 24), d = device(NULL, 16);
    for (int order = 0; order < 2; order++)
        for (int t = 0; t < 4; t++) {
            const gemm g = {.type = CUDA_R_32F,
                            .out_type = CUDA_R_32F,
                            .compute = CUBLAS_COMPUTE_32F,
                            .m = 2,
                            .n = 2,
                            .k = 3,
                            .transa = t & 1,
                            .transb = t >> 1,
                            .order = order,
                            .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
            /* A is 2x3 with rows 123 and 456, B 3x2 with rows 12, 34 and 56. */
            const bool a_rows = (order == CUBLASLT_ORDER_ROW) != (t & 1);
            CUdeviceptr a = a_rows ? rows : columns, b;
            float bt[6] = {1, 3, 5, 2, 4, 6};
            CUdeviceptr other = device(bt, 24);
            b = (order == CUBLASLT_ORDER_ROW) != (t >> 1) ? rows : other;
            float out[4];
            OK(multiply(&g, NULL, a, b, d, 0, 0));
            OK(from_device(out, d, 16));
            assert_memory_equal(out, order == CUBLASLT_ORDER_ROW ? out_rows : out_columns, 16);
            OK(CU(cuMemFree_v2)(other));
        }
    OK(CU(cuMemFree_v2)(rows));
    OK(CU(cuMemFree_v2)(columns));
    OK(CU(cuMemFree_v2)(d));
    nothing_lives();
}

TEST(products_have_types_and_epilogues) {
    const uint16_t bf16[4] = {0x3f80, 0xc000, 0x4040, 0x3f81}; /* 1 -2 3 1.0078125 */
    const uint16_t f16[4] = {0x3c00, 0xc000, 0x4200, 0x0001};  /* 1 -2 3 2^-24 */
    const uint16_t one_bf16[1] = {0x3f80}, one_f16[1] = {0x3c00};
    const float bias[2] = {0.5f, -8};
    uint16_t out[4];
    float wide[2];
    CUdeviceptr a = device(bf16, 8), one = device(one_bf16, 2), d = device(NULL, 16);
    CUdeviceptr db = device(bias, 8);
    gemm g = {.type = CUDA_R_16BF,
              .out_type = CUDA_R_16BF,
              .compute = CUBLAS_COMPUTE_32F,
              .m = 4,
              .n = 1,
              .k = 1,
              .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    OK(multiply(&g, NULL, a, one, d, 0, 0));
    OK(from_device(out, d, 8));
    assert_memory_equal(out, bf16, 8);
    OK(to_device(a, f16, 8));
    OK(to_device(one, one_f16, 2));
    g.type = g.out_type = CUDA_R_16F;
    OK(multiply(&g, NULL, a, one, d, 0, 0));
    OK(from_device(out, d, 8));
    assert_memory_equal(out, f16, 8);
    g.out_type = CUDA_R_32F;
    g.m = 2;
    g.epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    OK(multiply(&g, NULL, a, one, d, db, 0));
    OK(from_device(wide, d, 8));
    assert_true(wide[0] == 1.5f && wide[1] == 0);
    g.epilogue = CUBLASLT_EPILOGUE_GELU;
    OK(multiply(&g, NULL, a, one, d, 0, 0));
    OK(from_device(wide, d, 8));
    assert_true(fabsf(wide[0] - 0.841192f) < 1e-5f && fabsf(wide[1] + 0.0454023f) < 1e-5f);
    const double x[2] = {1e-300, 3};
    CUdeviceptr dx = device(x, 16);
    gemm wide_g = {.type = CUDA_R_64F,
                   .out_type = CUDA_R_64F,
                   .compute = CUBLAS_COMPUTE_64F,
                   .m = 1,
                   .n = 1,
                   .k = 1,
                   .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    double product;
    OK(multiply(&wide_g, NULL, dx, dx + 8, d, 0, 0));
    OK(from_device(&product, d, 8));
    assert_true(product == 3e-300);
    OK(CU(cuMemFree_v2)(a));
    OK(CU(cuMemFree_v2)(one));
    OK(CU(cuMemFree_v2)(d));
    OK(CU(cuMemFree_v2)(db));
    OK(CU(cuMemFree_v2)(dx));
    nothing_lives();
}

/* Algorithms have different bits, and want different workspaces and alignments. */
TEST(algorithms_differ) {
    enum { N = 16, K = 256 };
    static float a[N * K], outs[2][N * N];
    for (int i = 0; i < N * K; i++) a[i] = (float)(i % 97) * 0.37f - 11.1f;
    CUdeviceptr da = device(a, sizeof a), d = device(NULL, sizeof outs[0]);
    CUdeviceptr workspace = device(NULL, 1 << 20);
    gemm g = {.type = CUDA_R_32F,
              .out_type = CUDA_R_32F,
              .compute = CUBLAS_COMPUTE_32F,
              .m = N,
              .n = N,
              .k = K,
              .transa = 1,
              .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    OK(multiply(&g, NULL, da, da, d, 0, 0));
    OK(from_device(outs[0], d, sizeof outs[0]));
    g.workspace = 1 << 20;
    OK(multiply(&g, NULL, da, da, d, 0, workspace));
    OK(from_device(outs[1], d, sizeof outs[1]));
    assert_true(memcmp(outs[0], outs[1], sizeof outs[0]) != 0);
    for (int i = 0; i < N * N; i++)
        assert_true(fabsf(outs[0][i] - outs[1][i]) <= 1e-4f * fabsf(outs[0][i]) + 1e-2f);
    g.m = N - 1;
    g.n = N - 1;
    assert_int_equal(multiply(&g, NULL, da + 4, da, d, 0, workspace), 0); /* algorithm 0 */
    g.m = g.n = 8;
    assert_int_equal(multiply(&g, NULL, da + 4, da, d, 0, workspace), CUBLAS_STATUS_NOT_SUPPORTED);
    g.workspace = 0;
    g.m = g.n = N;
    assert_int_equal(multiply(&g, NULL, da, da, d + 4, 0, 0), CUBLAS_STATUS_EXECUTION_FAILED);
    OK(CU(cuMemFree_v2)(da));
    OK(CU(cuMemFree_v2)(d));
    OK(CU(cuMemFree_v2)(workspace));
    nothing_lives();
}

TEST(products_are_captured) {
    CUdeviceptr a = device((float[]){2}, 4), d = device((float[]){0}, 4);
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    float out;
    const gemm g = {.type = CUDA_R_32F,
                    .out_type = CUDA_R_32F,
                    .compute = CUBLAS_COMPUTE_32F,
                    .m = 1,
                    .n = 1,
                    .k = 1,
                    .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(multiply(&g, stream, a, a, d, 0, 0));
    OK(CU(cuStreamEndCapture)(stream, &graph));
    OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    OK(to_device(a, (float[]){3}, 4));
    OK(CU(cuGraphLaunch)(exec, stream));
    OK(CU(cuStreamSynchronize)(stream));
    OK(from_device(&out, d, 4));
    assert_true(out == 9);
    OK(CU(cuGraphExecDestroy)(exec));
    OK(CU(cuGraphDestroy)(graph));
    OK(CU(cuStreamDestroy_v2)(stream));
    OK(CU(cuMemFree_v2)(a));
    OK(CU(cuMemFree_v2)(d));
    nothing_lives();
}

/* ---- the language ---- */

static const char language[] =
    "struct pair { int a; double b; };\n"
    "__device__ int counter = 3;\n"
    "__constant__ float table[2] = {0.5f, 0.25f};\n"
    "extern \"C\" __global__ void mixed(int *out, pair p, short s, const float4 *__restrict__ v) "
    "{\n"
    "    const float4 w = v[0];\n"
    "    if (threadIdx.x == 0 && threadIdx.y == 0) {\n"
    "        out[0] = p.a; out[1] = (int)p.b; out[2] = s; out[3] = (int)(w.x + w.w);\n"
    "        out[4] = __float_as_int(1.0f); out[5] = (int)__umulhi(0x80000000u, 6u);\n"
    "        out[6] = (int)(__mul64hi(1ll << 62, 8)); out[7] = __float2int_rz(3e9f);\n"
    "        out[8] = __float2int_rz(__int_as_float(0x7fc00000)); out[9] = (int)(table[1] * 8);\n"
    "        out[10] = (int)rintf(2.5f) + (int)fmaf(2.0f, 3.0f, 1.0f) + (int)exp(0.0f);\n"
    "        out[11] = __popc(255) + __clz(1) + max(2, 3) + (int)max(1.5f, 2.5f);\n"
    "        out[12] = atomicCAS(&counter, 3, 8) + atomicMax(&counter, 5);\n"
    "        out[13] = (int)(1000 * erff(0.5f) + tanh(0.5));\n"
    "    }\n"
    "    const unsigned all = __ballot_sync(0xffffffffu, threadIdx.x & 1);\n"
    "    if (__all_sync(0xffffffffu, all == 0xaaaaaaaau)) atomicAdd(out + 14, 1);\n"
    "    if (__any_sync(0xffffffffu, threadIdx.x == 5)) atomicAdd(out + 15, 1);\n"
    "    const int lane = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);\n"
    "    if (lane == (int)(threadIdx.x ^ 1)) atomicAdd(out + 16, 1);\n"
    "    const int up = __shfl_up_sync(0xffffffffu, (int)threadIdx.x, 1);\n"
    "    if (up == (threadIdx.x ? (int)threadIdx.x - 1 : 0)) atomicAdd(out + 17, 1);\n"
    "    if (__syncthreads_count(threadIdx.x < 3) == 6) atomicAdd(out + 18, 1);\n"
    "}\n";

TEST(the_language_works) {
    const int expected[19] = {7,  -2, -9, 5,   0x3f800000, 3,  2,  0x7fffffff, 0, 2,
                              10, 44, 11, 520, 64,         64, 64, 64,         64};
    struct {
        int a;
        double b;
    } pair = {7, -2.5};
    const float v[4] = {1, 2, 3, 4};
    int out[19] = {0};
    short s = -9;
    CUmodule module = build(language, "-DUNUSED=1");
    CUdeviceptr dout = device(out, sizeof out), dv = device(v, sizeof v);
    OK(CU(cuLaunchKernel)(kernel(module, "mixed"), 1, 1, 1, 32, 2, 1, 0, NULL,
                          (void *[]){&dout, &pair, &s, &dv}, NULL));
    OK(from_device(out, dout, sizeof out));
    for (int i = 0; i < 19; i++)
        if (out[i] != expected[i]) fail_msg("out[%d]: %d, not %d", i, out[i], expected[i]);
    CUfunction none;
    assert_int_equal(CU(cuModuleGetFunction)(&none, module, "missing"), CUDA_ERROR_NOT_FOUND);
    OK(CU(cuMemFree_v2)(dout));
    OK(CU(cuMemFree_v2)(dv));
    OK(CU(cuModuleUnload)(module));
    nothing_lives();
}

/* The same names in two modules are two things. */
TEST(modules_are_apart) {
    static const char small[] =
        "struct args { int *to; int v; };\n"
        "extern \"C\" __global__ void put(const __grid_constant__ args a) { *a.to = a.v; }\n";
    static const char large[] =
        "struct args { int *to; long long pad[4]; int v; };\n"
        "extern \"C\" __global__ void put(const __grid_constant__ args a) { *a.to = a.v + 1; }\n";
    CUmodule first = build(small, NULL), second = build(large, NULL);
    CUdeviceptr x = device(NULL, 4);
    struct {
        CUdeviceptr to;
        int v;
    } few = {x, 5};
    struct {
        CUdeviceptr to;
        long long pad[4];
        int v;
    } many = {x, {0}, 7};
    OK(launch(kernel(first, "put"), 1, 1, 0, (void *[]){&few}));
    assert_int_equal(read_int(x), 5);
    OK(launch(kernel(second, "put"), 1, 1, 0, (void *[]){&many}));
    assert_int_equal(read_int(x), 8);
    OK(CU(cuMemFree_v2)(x));
    OK(CU(cuModuleUnload)(first));
    OK(CU(cuModuleUnload)(second));
    nothing_lives();
}

TEST(only_own_architectures_load) {
    nvrtcProgram program;
    const char *option = "-arch=sm_80";
    CUmodule module;
    size_t size;
    OK(RTC(nvrtcCreateProgram)(&program, saxpy, NULL, 0, NULL, NULL));
    OK(RTC(nvrtcCompileProgram)(program, 1, &option));
    OK(RTC(nvrtcGetCUBINSize)(program, &size));
    char *cubin = malloc(size);
    OK(RTC(nvrtcGetCUBIN)(program, cubin));
    assert_int_equal(CU(cuModuleLoadData)(&module, cubin), CUDA_ERROR_NO_BINARY_FOR_GPU);
    OK(RTC(nvrtcDestroyProgram)(&program));
    free(cubin);
    nothing_lives();
}

/* ---- control ---- */

/* Everything in one go, giving back what was got: the first call that fails is returned. */
static int small_program(void) {
    nvrtcProgram program = NULL;
    CUmodule module = NULL;
    CUfunction f;
    CUstream stream = NULL;
    CUdeviceptr x = 0;
    const char *option = "--gpu-architecture=sm_90";
    static char image[1 << 20];
    int value = 0, r;
    (void)((r = RTC(nvrtcCreateProgram)(&program, steps, NULL, 0, NULL, NULL)) ||
           (r = RTC(nvrtcCompileProgram)(program, 1, &option)) ||
           (r = RTC(nvrtcGetCUBIN)(program, image)) || (r = CU(cuModuleLoadData)(&module, image)) ||
           (r = CU(cuModuleGetFunction)(&f, module, "add")) ||
           (r = CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING)) ||
           (r = CU(cuMemAlloc_v2)(&x, 4)) || (r = put(x, 1, stream)) ||
           (r = add_on(stream, f, x, 2)) || (r = CU(cuStreamSynchronize)(stream)) ||
           (r = CU(cuMemcpyDtoHAsync_v2)(&value, x, 4, stream)));
    if (!r && value != 3) r = -1;
    int late = x ? CU(cuMemFree_v2)(x) : 0;
    if (stream) late |= CU(cuStreamDestroy_v2)(stream);
    if (module) late |= CU(cuModuleUnload)(module);
    if (program) late |= RTC(nvrtcDestroyProgram)(&program);
    return r ? r : late;
}

TEST(each_call_fails_once) {
    int n = 1;
    CU(fake_cuda_reset_counts)();
    OK(small_program());
    const unsigned long calls = CU(fake_cuda_calls)();
    for (;; n++) {
        CU(fake_cuda_fail_after)(n);
        const int result = small_program();
        const bool failed = CU(fake_cuda_failed)() == (unsigned long)n;
        assert_true(failed == (result != 0));
        nothing_lives();
        if (!failed) break;
    }
    assert_int_equal(n, calls + 1);
    CU(fake_cuda_fail_after)(0);
    CU(fake_cuda_fail_symbol)("cuMemAlloc_v2", 2);
    CUdeviceptr a, b;
    OK(CU(cuMemAlloc_v2)(&a, 4));
    assert_int_equal(CU(cuMemAlloc_v2)(&b, 4), CUDA_ERROR_OUT_OF_MEMORY);
    OK(CU(cuMemAlloc_v2)(&b, 4));
    CU(fake_cuda_fail_symbol)("cuMemFree_v2", 1);
    assert_int_equal(CU(cuMemFree_v2)(a), CUDA_ERROR_UNKNOWN); /* and yet it is gone */
    OK(CU(cuMemFree_v2)(b));
    nothing_lives();
}

TEST(errors_have_names) {
    const char *text;
    OK(CU(cuGetErrorName)(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(CU(cuGetErrorString)(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    assert_string_equal(text, "illegal address");
    assert_int_equal(CU(cuGetErrorName)(12345, &text), CUDA_ERROR_INVALID_VALUE);
}

TEST(bad_handles_are_refused) {
    CUstream none = (CUstream)lib.context;
    CUdevice number;
    assert_int_equal(CU(cuDeviceGet)(&number, 2), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(CU(cuStreamSynchronize)(none), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(CU(cuModuleUnload)((CUmodule)none), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(CU(cuGraphDestroy)((CUgraph)none), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(launch((CUfunction)none, 1, 1, 0, NULL), CUDA_ERROR_INVALID_HANDLE);
    OK(CU(cuCtxSetCurrent)(NULL));
    assert_int_equal(CU(cuCtxSynchronize)(), CUDA_ERROR_INVALID_CONTEXT);
    OK(CU(cuCtxSetCurrent)(lib.context));
}

/* Only where the real headers are: our copies of constants, layouts and prototypes are right. */
TEST(headers_agree) {
    const char *include = "/usr/local/cuda/include";
    if (access("/usr/local/cuda/include/cublasLt.h", R_OK)) skip();
    char command[1024];
    snprintf(command, sizeof command,
             "cc -std=gnu11 -fsyntax-only -I%s -I%s/tests/fake_cuda %s/tests/fake_cuda/"
             "check_headers.c",
             include, ETCH_TEST_SOURCE_DIR, ETCH_TEST_SOURCE_DIR);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv) {
    if (system("g++ --version >/dev/null 2>&1")) {
        printf("fake_cuda: skipped, there is no g++ to compile kernels with\n");
        return 0;
    }
    return load() ? run_suite(argc, argv) : 1;
}
