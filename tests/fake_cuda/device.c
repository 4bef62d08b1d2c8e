/* Devices and their primary contexts. */
#include "driver.h"

#define DEVICE(d) CHECK((d) >= 0 && (d) < fake.devices, CUDA_ERROR_INVALID_DEVICE)

fake_device *fake__device(int device) { return &fake.device[device]; }

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

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid_v2);
    CHECK(uuid, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    memset(uuid, 0xfa, sizeof *uuid);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
    ENTER(cuDeviceGetPCIBusId);
    CHECK(id && size > 0, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)device + 1);
    return CUDA_SUCCESS;
}

static size_t total_memory(void) {
    const char *text = getenv("FAKE_CUDA_MEMORY");
    const size_t bytes = text ? strtoull(text, NULL, 0) : 0;
    return bytes ? bytes : (size_t)1 << 30;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2);
    CHECK(bytes, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    *bytes = fake.device[device].total ? fake.device[device].total : total_memory();
    return CUDA_SUCCESS;
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
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
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

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER(cuDeviceCanAccessPeer);
    CHECK(can, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    DEVICE(peer);
    *can = device != peer;
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
    d->context->thread_stream = new_stream(d->context, 0);
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
    (*context)->retained++;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    DEVICE(device);
    CUcontext context = fake.device[device].context;
    CHECK(context && context->retained > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--context->retained == 0) {
        fake__finish_context(context);
        context->fault = CUDA_SUCCESS;
    }
    return fake__released(CUDA_SUCCESS);
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

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER(cuDevicePrimaryCtxGetState);
    CHECK(flags && active, CUDA_ERROR_INVALID_VALUE);
    DEVICE(device);
    CUcontext context = fake.device[device].context;
    *flags = context ? context->flags : 0;
    *active = context && context->retained > 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    ENTER(cuDevicePrimaryCtxSetFlags_v2);
    DEVICE(device);
    primary(device)->flags = flags;
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

enum { STACK = 16 };
static __thread CUcontext pushed[STACK];
static __thread int depth;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER(cuCtxPushCurrent_v2);
    CHECK(is_context(context) && depth < STACK, CUDA_ERROR_INVALID_CONTEXT);
    pushed[depth++] = fake__context;
    fake__context = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER(cuCtxPopCurrent_v2);
    CHECK(fake__context, CUDA_ERROR_INVALID_CONTEXT);
    if (context) *context = fake__context;
    fake__context = depth ? pushed[--depth] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(cuCtxGetDevice);
    CHECK(device, CUDA_ERROR_INVALID_VALUE);
    *device = fake__context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize);
    TRY(fake__no_capture());
    return fake__finish_context(fake__context);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(cuCtxGetStreamPriorityRange);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    ENTER(cuCtxGetLimit);
    CHECK(value && limit >= 0 && limit < 16, CUDA_ERROR_INVALID_VALUE);
    *value = fake__context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    ENTER(cuCtxSetLimit);
    CHECK(limit >= 0 && limit < 16, CUDA_ERROR_UNSUPPORTED_LIMIT);
    fake__context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    ENTER(cuCtxEnablePeerAccess);
    CHECK(flags == 0, CUDA_ERROR_INVALID_VALUE);
    CHECK(is_context(peer) && peer != fake__context, CUDA_ERROR_INVALID_CONTEXT);
    const unsigned bit = 1u << peer->device;
    CHECK(!(fake__context->peers & bit), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    fake__context->peers |= bit;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    ENTER(cuCtxDisablePeerAccess);
    CHECK(is_context(peer), CUDA_ERROR_INVALID_CONTEXT);
    const unsigned bit = 1u << peer->device;
    CHECK(fake__context->peers & bit, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    fake__context->peers &= ~bit;
    return CUDA_SUCCESS;
}
