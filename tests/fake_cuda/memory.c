/* Device memory: an address range of its own for each device, closed to the host. Every allocation
 * has pages of its own between unmapped ones and ends where its last page ends; the bytes around it
 * in its pages are a red zone. Addresses are used again only when the whole range has been used, so
 * a use after free finds nothing there. New memory is all ones: not-a-numbers, and -1. */
#include "driver.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, ALIGN = 256, RED = 0xfb, NEW = 0xff, ARENA_SHARE = 8 };

/* Straight to the kernel: sanitizers shall not follow these pages. */
static void *map(uintptr_t at, size_t size, int protection, int flags) {
    return (void *)syscall(SYS_mmap, at, size, protection,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

static void protect(uintptr_t at, size_t size, int protection) {
    syscall(SYS_mprotect, at, size, protection);
}

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static bool have_arena(fake_device *d) {
    if (d->arena) return true;
    const size_t size = up(d->total * ARENA_SHARE, PAGE);
    void *at = map(0, size, PROT_NONE, 0);
    if (at == MAP_FAILED) return false;
    d->arena = d->cursor = (uintptr_t)at;
    d->arena_size = size;
    return true;
}

static int device_of(uintptr_t address) {
    for (int i = 0; i < fake.devices; i++) {
        const fake_device *d = &fake.device[i];
        if (d->arena && address >= d->arena && address < d->arena + d->arena_size) return i;
    }
    return -1;
}

bool fake__in_arena(uintptr_t address) { return device_of(address) >= 0; }

/* The number of allocations that lie wholly before an address. */
static int position(const fake_device *d, uintptr_t address) {
    int low = 0, high = d->count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (d->live[middle]->map + d->live[middle]->map_size <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

fake_allocation *fake__find(uintptr_t address) {
    const int device = device_of(address);
    if (device < 0) return NULL;
    const fake_device *d = &fake.device[device];
    const int i = position(d, address);
    if (i == d->count) return NULL;
    fake_allocation *a = d->live[i];
    return address >= a->at && address < a->at + a->size ? a : NULL;
}

/* Room for some pages with one unmapped page after them, from the cursor on,
 * round the range once. */
static uintptr_t find_room(fake_device *d, size_t size) {
    for (int turn = 0; turn < 2; turn++) {
        uintptr_t at = turn ? d->arena : d->cursor;
        for (int i = position(d, at); i < d->count; i++) {
            if (at + size + PAGE <= d->live[i]->map) return at;
            at = d->live[i]->map + d->live[i]->map_size + PAGE;
        }
        if (at + size + PAGE <= d->arena + d->arena_size) return at;
    }
    return 0;
}

static void insert(fake_device *d, fake_allocation *a) {
    if (d->count == d->room) {
        d->room = d->room ? d->room * 2 : 64;
        d->live = realloc(d->live, (size_t)d->room * sizeof *d->live);
        if (!d->live) abort();
    }
    const int i = position(d, a->map);
    memmove(&d->live[i + 1], &d->live[i], (size_t)(d->count - i) * sizeof *d->live);
    d->live[i] = a;
    d->count++;
}

static bool take_bytes(fake_device *d, size_t size) {
    if (d->used + size > d->total) return false;
    d->used += size;
    return true;
}

static void fill_new(const fake_allocation *a) {
    memset((void *)a->map, RED, a->at - a->map);
    memset((void *)a->at, NEW, a->size);
    const uintptr_t end = a->at + a->size;
    memset((void *)end, RED, a->map + a->map_size - end);
    protect(a->map, a->map_size, PROT_NONE);
}

static CUresult allocate(int device, size_t size, CUdeviceptr *address) {
    fake_device *d = &fake.device[device];
    CHECK(address && size, CUDA_ERROR_INVALID_VALUE);
    CHECK(size <= d->total && have_arena(d), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(take_bytes(d, size), CUDA_ERROR_OUT_OF_MEMORY);
    const size_t pages = up(size, PAGE);
    const uintptr_t at = find_room(d, pages);
    if (!at || map(at, pages, PROT_READ | PROT_WRITE, MAP_FIXED) == MAP_FAILED) {
        d->used -= size;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake_allocation *a = fake__new(sizeof *a);
    *a = (fake_allocation){.at = at + pages - up(size, ALIGN),
                           .size = size,
                           .map = at,
                           .map_size = pages,
                           .device = device};
    fill_new(a);
    insert(d, a);
    d->cursor = at + pages + PAGE;
    fake_cuda_object("memory", 1);
    *address = a->at;
    return CUDA_SUCCESS;
}

static bool all_red(uintptr_t from, uintptr_t to) {
    for (const unsigned char *p = (const unsigned char *)from; p < (const unsigned char *)to; p++)
        if (*p != RED) return false;
    return true;
}

static bool red_zones_hold(const fake_allocation *a) {
    return all_red(a->map, a->at) && all_red(a->at + a->size, a->map + a->map_size);
}

static CUresult free_device(uintptr_t address) {
    fake_allocation *a = fake__find(address);
    CHECK(a && a->at == address, CUDA_ERROR_INVALID_VALUE);
    fake_device *d = &fake.device[a->device];
    const int i = position(d, address);
    memmove(&d->live[i], &d->live[i + 1], (size_t)(d->count - i - 1) * sizeof *d->live);
    d->count--;
    d->used -= a->size;
    map(a->map, a->map_size, PROT_NONE, MAP_FIXED);
    fake_cuda_object("memory", -1);
    free(a);
    return CUDA_SUCCESS;
}

/* ---- opening: only what is touched, so a launch costs two calls of the system a tensor ---- */

static struct {
    CUcontext context;
    fake_allocation **open;
    int count, room, depth;
} gate;

void fake__open(CUcontext context) {
    if (gate.depth++ == 0) gate.context = context;
    /* Room is made here: fake__open_at runs in a signal handler. */
    int live = 0;
    for (int i = 0; i < fake.devices; i++) live += fake.device[i].count;
    if (live <= gate.room) return;
    gate.room = live;
    gate.open = realloc(gate.open, (size_t)live * sizeof *gate.open);
    if (!gate.open) abort();
}

/* Opens the pages around an address, when they belong to a live allocation
 * that the context may use. */
bool fake__open_at(uintptr_t address) {
    const int device = device_of(address);
    if (device < 0 || !gate.depth) return false;
    const fake_device *d = &fake.device[device];
    const int i = position(d, address);
    if (i == d->count || address < d->live[i]->map) return false;
    fake_allocation *a = d->live[i];
    if (a->open || a->device != gate.context->device) return false;
    protect(a->map, a->map_size, PROT_READ | PROT_WRITE);
    a->open = true;
    gate.open[gate.count++] = a;
    return true;
}

CUresult fake__close(const char *who) {
    CUresult result = CUDA_SUCCESS;
    if (--gate.depth) return result;
    for (int i = 0; i < gate.count; i++) {
        fake_allocation *a = gate.open[i];
        if (!red_zones_hold(a)) {
            fake__say("%s wrote outside the %zu bytes at %#zx", who, a->size, a->at);
            result = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        protect(a->map, a->map_size, PROT_NONE);
        a->open = false;
    }
    gate.count = 0;
    return result;
}

/* ---- pinned memory of the host, which a device may use beside its own ---- */

static struct range { uintptr_t from, to; } * ranges;
static int range_count;

static struct range *find_range(uintptr_t address) {
    for (int i = 0; i < range_count; i++)
        if (address >= ranges[i].from && address < ranges[i].to) return &ranges[i];
    return NULL;
}

static void add_range(uintptr_t from, size_t size) {
    ranges = realloc(ranges, (size_t)(range_count + 1) * sizeof *ranges);
    if (!ranges) abort();
    ranges[range_count++] = (struct range){from, from + size};
    fake_cuda_object("host", 1);
}

static void remove_range(struct range *r) {
    fake_cuda_object("host", -1);
    *r = ranges[--range_count];
}

bool fake__is_pinned(uintptr_t address, size_t size) {
    const struct range *r = find_range(address);
    return r && address + size <= r->to;
}

/* Device memory for copies: inside one live allocation. */
bool fake__inside(uintptr_t address, size_t size) {
    const fake_allocation *a = fake__find(address);
    return a && size <= a->at + a->size - address;
}

int fake_cuda_is_device(CUdeviceptr address, size_t size) {
    pthread_mutex_lock(&fake.lock);
    const int is = fake__inside(address, size);
    pthread_mutex_unlock(&fake.lock);
    return is;
}

size_t fake_cuda_memory_used(int device) {
    pthread_mutex_lock(&fake.lock);
    size_t sum = 0;
    const fake_device *d = &fake.device[device];
    for (int i = 0; i < d->count; i++) sum += d->live[i]->size;
    pthread_mutex_unlock(&fake.lock);
    return sum;
}

/* ---- entry points ---- */

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    ENTER(cuMemAlloc_v2);
    TRY(fake__no_capture());
    return allocate(fake__context->device, size, address);
}

/* Waits for the device, as the real one does. */
CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER(cuMemFree_v2);
    if (!address) return fake__released(CUDA_SUCCESS);
    TRY(fake__no_capture());
    const fake_allocation *a = fake__find(address);
    CHECK(a, CUDA_ERROR_INVALID_VALUE);
    fake__finish_context(fake.device[a->device].context);
    return fake__released(free_device(address));
}

CUresult cuMemAllocHost_v2(void **address, size_t size) {
    ENTER(cuMemAllocHost_v2);
    CHECK(address && size, CUDA_ERROR_INVALID_VALUE);
    TRY(fake__no_capture());
    *address = aligned_alloc(PAGE, up(size, PAGE));
    CHECK(*address, CUDA_ERROR_OUT_OF_MEMORY);
    memset(*address, NEW, size);
    add_range((uintptr_t)*address, size);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *address) {
    ENTER(cuMemFreeHost);
    struct range *r = find_range((uintptr_t)address);
    CHECK(r && r->from == (uintptr_t)address, CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < fake.devices; i++)
        if (fake.device[i].context) fake__finish_context(fake.device[i].context);
    r = find_range((uintptr_t)address);
    remove_range(r);
    free(address);
    return fake__released(CUDA_SUCCESS);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER(cuMemGetInfo_v2);
    CHECK(free_bytes && total, CUDA_ERROR_INVALID_VALUE);
    const fake_device *d = &fake.device[fake__context->device];
    *total = d->total;
    *free_bytes = d->total - d->used;
    return CUDA_SUCCESS;
}

/* ---- copies and fills ---- */

static uintptr_t side(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y,
                      size_t pitch) {
    return (type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device) + x + y * pitch;
}

static size_t extent(const CUDA_MEMCPY3D *shape, size_t pitch) {
    return pitch * (shape->Height - 1) + shape->WidthInBytes;
}

/* The type that was claimed must fit the address. */
static CUresult check_side(CUmemorytype type, uintptr_t at, size_t size) {
    const bool device = fake__in_arena(at);
    if (type == CU_MEMORYTYPE_DEVICE && !device && !fake__is_pinned(at, size)) {
        fake__say("a copy takes host memory at %#zx for the device's", at);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (type == CU_MEMORYTYPE_HOST && device) {
        fake__say("a copy takes device memory at %#zx for the host's", at);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device || fake__inside(at, size)) return CUDA_SUCCESS;
    fake__say("a copy or fill of %zu bytes at %#zx is not inside one allocation", size, at);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult fake__copy_work(fake_work **out, CUcontext context, const CUDA_MEMCPY3D *given) {
    CUDA_MEMCPY3D shape = *given;
    if (!shape.Height) shape.Height = 1;
    CHECK(shape.Depth <= 1, CUDA_ERROR_NOT_SUPPORTED);
    CHECK(shape.Height == 1 ||
              (shape.srcPitch >= shape.WidthInBytes && shape.dstPitch >= shape.WidthInBytes),
          CUDA_ERROR_INVALID_VALUE);
    const uintptr_t from = side(shape.srcMemoryType, shape.srcHost, shape.srcDevice,
                                shape.srcXInBytes, shape.srcY, shape.srcPitch);
    const uintptr_t to = side(shape.dstMemoryType, shape.dstHost, shape.dstDevice,
                              shape.dstXInBytes, shape.dstY, shape.dstPitch);
    TRY(check_side(shape.srcMemoryType, from, extent(&shape, shape.srcPitch)));
    TRY(check_side(shape.dstMemoryType, to, extent(&shape, shape.dstPitch)));
    *out = fake__work(WORK_COPY, context);
    (*out)->copy.shape = shape;
    (*out)->copy.from = from;
    (*out)->copy.to = to;
    return CUDA_SUCCESS;
}

static void open_range(uintptr_t at, size_t size) {
    fake__open_at(at);
    if (size) fake__open_at(at + size - 1);
}

CUresult fake__run_copy(const fake_work *work) {
    const CUDA_MEMCPY3D *shape = &work->copy.shape;
    const uintptr_t from = work->copy.staged ? (uintptr_t)work->copy.staged : work->copy.from;
    const CUmemorytype from_type = work->copy.staged ? CU_MEMORYTYPE_HOST : shape->srcMemoryType;
    TRY(check_side(from_type, from, extent(shape, shape->srcPitch)));
    TRY(check_side(shape->dstMemoryType, work->copy.to, extent(shape, shape->dstPitch)));
    /* Between devices no peer access is needed: open as each side's own. */
    for (int end = 0; end < 2; end++) {
        const uintptr_t at = end ? work->copy.to : from;
        const int device = device_of(at);
        fake__open(device >= 0 ? fake.device[device].context : work->context);
        gate.context = device >= 0 ? fake.device[device].context : work->context;
        open_range(at, shape->WidthInBytes);
    }
    for (size_t row = 0; row < shape->Height; row++)
        memmove((void *)(work->copy.to + row * shape->dstPitch),
                (const void *)(from + row * shape->srcPitch), shape->WidthInBytes);
    fake__close("a copy");
    return fake__close("a copy");
}

CUresult fake__run_set(const fake_work *work) {
    TRY(check_side(CU_MEMORYTYPE_DEVICE, work->set.to, work->set.size));
    fake__open(work->context);
    open_range(work->set.to, work->set.size);
    memset((void *)work->set.to, work->set.value, work->set.size);
    return fake__close("a fill");
}

static CUDA_MEMCPY3D flat(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from,
                          size_t size) {
    return (CUDA_MEMCPY3D){.srcMemoryType = from_type,
                           .srcHost = (const void *)(uintptr_t)from,
                           .srcDevice = from,
                           .dstMemoryType = to_type,
                           .dstHost = (void *)(uintptr_t)to,
                           .dstDevice = to,
                           .WidthInBytes = size,
                           .Height = 1,
                           .Depth = 1};
}

static bool pageable(int type, uintptr_t at, size_t size) {
    return type != CU_MEMORYTYPE_DEVICE && !fake__in_arena(at) && !fake__is_pinned(at, size);
}

/* What a copy from pageable memory reads is read at the call, and one into it is done when the call
 * returns; only pinned memory is read and written later. */
static CUresult copy(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from, size_t size,
                     CUstream stream) {
    CHECK(from && to, size ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
    if (!size) return CUDA_SUCCESS;
    TRY(fake__stream(&stream));
    const CUDA_MEMCPY3D shape = flat(to_type, to, from_type, from, size);
    fake_work *work;
    TRY(fake__copy_work(&work, stream->context, &shape));
    const bool capturing = stream->capture;
    if (!capturing && pageable(from_type, from, size))
        work->copy.staged = fake__copy((const void *)(uintptr_t)from, size);
    TRY(fake__submit(stream, work));
    if (capturing || !pageable(to_type, to, size)) return CUDA_SUCCESS;
    return fake__finish(stream);
}

enum { HOST = CU_MEMORYTYPE_HOST, DEVICE = CU_MEMORYTYPE_DEVICE };

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t size, CUstream stream) {
    ENTER(cuMemcpyPeerAsync);
    (void)to_context;
    (void)from_context;
    return copy(DEVICE, to, DEVICE, from, size, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    ENTER(cuMemcpyHtoDAsync_v2);
    return copy(DEVICE, to, HOST, (uintptr_t)from, size, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER(cuMemcpyDtoHAsync_v2);
    return copy(HOST, (uintptr_t)to, DEVICE, from, size, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER(cuMemcpyDtoDAsync_v2);
    return copy(DEVICE, to, DEVICE, from, size, stream);
}

/* A line of bytes. */
CUresult fake__set_work(fake_work **work, CUcontext context,
                        const CUDA_MEMSET_NODE_PARAMS *params) {
    CHECK(params && context && params->width, CUDA_ERROR_INVALID_VALUE);
    CHECK(params->elementSize == 1 && params->height == 1, CUDA_ERROR_NOT_SUPPORTED);
    TRY(check_side(CU_MEMORYTYPE_DEVICE, params->dst, params->width));
    *work = fake__work(WORK_SET, context);
    (*work)->set.to = params->dst, (*work)->set.size = params->width;
    (*work)->set.value = (unsigned char)params->value;
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    ENTER(cuMemsetD8Async);
    if (!count) return CUDA_SUCCESS;
    TRY(fake__stream(&stream));
    TRY(check_side(CU_MEMORYTYPE_DEVICE, to, count));
    fake_work *work = fake__work(WORK_SET, stream->context);
    work->set.to = to, work->set.size = count, work->set.value = value;
    return fake__submit(stream, work);
}
