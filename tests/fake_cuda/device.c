/* Devices and their primary contexts. */
#include "driver.h"

#define DEVICE(d) CHECK((d) >= 0 && (d) < fake.devices, CUDA_ERROR_INVALID_DEVICE)

CUresult cuInit(unsigned flags) {
    ENTER(cuInit);
    CHECK(flags == 0, CUDA_ERROR_INVALID_VALUE);
    CHECK(fake.devices > 0, CUDA_ERROR_NO_DEVICE);
    CHECK(!fake.forked, CUDA_ERROR_NOT_INITIALIZED);
    fake.initialised = true;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion);
    CHECK(version, CUDA_ERROR_INVALID_VALUE);
    *version = fake.version;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount);
    CHECK(count, CUDA_ERROR_INVALID_VALUE);
    *count = fake.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(cuDeviceGet);
    CHECK(device, CUDA_ERROR_INVALID_VALUE);
    DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    ENTER(cuDeviceGetName);
    CHECK(name && size > 0, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    snprintf(name, (size_t)size, "Fake CUDA device");
    return CUDA_SUCCESS;
}

static size_t total_memory(void) {
    const char *text = getenv("FAKE_CUDA_MEMORY");
    const size_t bytes = text ? strtoull(text, NULL, 0) : 0;
    return bytes ? bytes : (size_t)1 << 30;
}

/* An H100, with two multiprocessors only, so that grids have several waves. */
static const struct {
    int attribute, value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, FAKE_MAX_THREADS},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, FAKE_SHARED},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, FAKE_WARP},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 1 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, FAKE_SHARED_SM},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, FAKE_SHARED_OPTIN},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute);
    CHECK(value && attribute > 0, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    *value = 0;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = fake.arch / 10;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) *value = fake.arch % 10;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = device + 1;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) *value = attributes[i].value;
    return CUDA_SUCCESS;
}

/* ---- contexts: one a device, made at the first retain, kept to the end of the process ---- */

static CUstream new_stream(CUcontext context, unsigned flags) {
    CUstream stream = fake__new(sizeof *stream);
    stream->context = context;
    stream->flags = flags;
    context->streams =
        realloc(context->streams, (size_t)(context->stream_count + 1) * sizeof(CUstream));
    if (!context->streams) abort();
    context->streams[context->stream_count++] = stream;
    return stream;
}

static CUcontext primary(int device) {
    fake_device *d = &fake.device[device];
    if (d->context) return d->context;
    d->context = fake__new(sizeof *d->context);
    d->context->device = device;
    d->context->null_stream = new_stream(d->context, 0);
    d->total = total_memory();
    return d->context;
}

static bool is_context(CUcontext context) {
    for (int i = 0; i < fake.devices; i++)
        if (context && fake.device[i].context == context) return true;
    return false;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain);
    CHECK(context, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    *context = primary(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxReset_v2);
    DEVICE(device);
    CUcontext context = fake.device[device].context;
    if (!context) return fake__released(CUDA_SUCCESS);
    fake__finish_context(context);
    context->fault = CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER(cuCtxSetCurrent);
    CHECK(!context || is_context(context), CUDA_ERROR_INVALID_CONTEXT);
    fake__context = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER(cuCtxGetCurrent);
    CHECK(context, CUDA_ERROR_INVALID_VALUE);
    *context = fake__context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize);
    TRY(fake__no_capture());
    return fake__finish_context(fake__context);
}
