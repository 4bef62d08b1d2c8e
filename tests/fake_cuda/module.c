/* Modules, functions and launches. An image is a shared object behind a small header. */
#include "driver.h"

#include <dlfcn.h>
#include <unistd.h>

/* ---- loading ---- */

static bool write_all(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file) return false;
    const bool written = fwrite(bytes, 1, size, file) == size;
    return fclose(file) == 0 && written;
}

static void *open_object(const void *bytes, size_t size) {
    static int number;
    char path[512];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/fake_cuda_%d_%d.so", folder && *folder ? folder : "/tmp",
             (int)getpid(), number++);
    void *handle = write_all(path, bytes, size) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!handle) {
        const char *why = dlerror();
        fake__say("cannot load %s: %s", path, why ? why : "not written");
    }
    unlink(path);
    return handle;
}

static CUresult open_image(const void *bytes, void **handle) {
    fake_header header;
    *handle = NULL;
    CHECK(!memcmp(bytes, FAKE_MAGIC, sizeof FAKE_MAGIC), CUDA_ERROR_INVALID_IMAGE);
    memcpy(&header, bytes, sizeof header);
    CHECK((int)header.arch / 10 == fake.arch / 10 && (int)header.arch <= fake.arch,
          CUDA_ERROR_NO_BINARY_FOR_GPU);
    *handle = open_object((const char *)bytes + sizeof header, header.size);
    return *handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

/* The symbol of a kernel: mangled, unless it is extern "C". */
static char *symbol_of(const fake_kernel *kernel) {
    Dl_info info;
    const bool found = dladdr(kernel->function, &info) && info.dli_sname;
    return strdup(found ? info.dli_sname : kernel->name);
}

static CUresult load(CUmodule *out, const void *bytes) {
    void *handle;
    CHECK(out && bytes, CUDA_ERROR_INVALID_VALUE);
    TRY(fake__no_capture());
    TRY(open_image(bytes, &handle));
    const fake_image *image = dlsym(handle, "fake_cuda_image");
    if (!image || image->version != FAKE_IMAGE_VERSION) {
        dlclose(handle);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    CUmodule module = fake__new(sizeof *module);
    *module = (struct CUmod_st){.context = fake__context, .handle = handle, .image = image};
    module->functions = fake__new((size_t)image->count * sizeof *module->functions);
    for (int i = 0; i < image->count; i++) {
        module->functions[i] = (struct CUfunc_st){
            .kernel = &image->kernels[i], .module = module, .name = symbol_of(&image->kernels[i])};
        fake__add(&module->functions[i], "function");
    }
    fake__add(module, "module");
    *out = module;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER(cuModuleLoadData);
    return load(module, image);
}

/* Work that still needs the code runs first. */
CUresult cuModuleUnload(CUmodule module) {
    ENTER(cuModuleUnload);
    CHECK(fake__is(module, "module"), CUDA_ERROR_INVALID_HANDLE);
    TRY(fake__no_capture());
    fake__finish_context(module->context);
    for (int i = 0; i < module->image->count; i++) {
        fake__remove(&module->functions[i]);
        free(module->functions[i].name);
    }
    fake__remove(module);
    dlclose(module->handle);
    free(module->functions);
    free(module);
    return fake__released(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER(cuModuleGetFunction);
    CHECK(function && name, CUDA_ERROR_INVALID_VALUE);
    CHECK(fake__is(module, "module"), CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < module->image->count; i++) {
        if (strcmp(module->functions[i].name, name)) continue;
        *function = &module->functions[i];
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- functions ---- */

static bool is_function(CUfunction function) { return fake__is(function, "function"); }

static int shared_size(CUfunction function) {
    const fake_image *image = function->module->image;
    return (int)(image->shared_to - image->shared_from);
}

static int max_threads(CUfunction function) {
    const int bound = function->kernel->max_threads;
    return bound > 0 && bound < FAKE_MAX_THREADS ? bound : FAKE_MAX_THREADS;
}

static size_t dynamic_limit(CUfunction function) {
    const int usual = FAKE_SHARED - shared_size(function);
    return (size_t)(function->max_dynamic > usual ? function->max_dynamic : usual);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    ENTER(cuFuncSetAttribute);
    CHECK(is_function(function), CUDA_ERROR_INVALID_HANDLE);
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        CHECK(value >= -1 && value <= 100, CUDA_ERROR_INVALID_VALUE);
        return CUDA_SUCCESS;
    }
    CHECK(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 &&
              value + shared_size(function) <= FAKE_SHARED_OPTIN,
          CUDA_ERROR_INVALID_VALUE);
    function->max_dynamic = value;
    return CUDA_SUCCESS;
}

/* As in a real parameter buffer, every parameter lies at a multiple of its alignment; sizes that
 * are powers of two up to 16 are taken to be aligned so, others to 8. */
static size_t alignment(size_t size) {
    for (size_t a = 16; a > 1; a /= 2)
        if (size == a || (a <= 8 && size % a == 0)) return a;
    return 1;
}

static size_t place(const fake_kernel *kernel, int index) {
    size_t at = 0;
    for (int i = 0;; i++) {
        const size_t a = alignment(kernel->sizes[i]);
        at = (at + a - 1) / a * a;
        if (i == index) return at;
        at += kernel->sizes[i];
    }
}

/* ---- launching ---- */

static CUresult check_shape(CUfunction function, const unsigned grid[3], const unsigned block[3],
                            unsigned shared) {
    static const unsigned max_grid[3] = {2147483647, 65535, 65535}, max_block[3] = {1024, 1024, 64};
    for (int i = 0; i < 3; i++) {
        CHECK(grid[i] >= 1 && grid[i] <= max_grid[i], CUDA_ERROR_INVALID_VALUE);
        CHECK(block[i] >= 1 && block[i] <= max_block[i], CUDA_ERROR_INVALID_VALUE);
    }
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    CHECK(threads <= FAKE_MAX_THREADS, CUDA_ERROR_INVALID_VALUE);
    CHECK(threads <= (uint64_t)max_threads(function), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    CHECK(shared <= dynamic_limit(function), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* The buffer that a launch with "extra" brings: {1, pointer, 2, &size, 0}. */
static const char *extra_buffer(void **extra) {
    const char *buffer = NULL;
    for (; extra && *extra; extra += 2)
        if ((uintptr_t)*extra == 1) buffer = extra[1];
    return buffer;
}

static void copy_params(fake_work *work, const fake_kernel *kernel, void **params,
                        const char *buffer) {
    const int count = kernel->params;
    const size_t size = count ? place(kernel, count - 1) + kernel->sizes[count - 1] : 0;
    work->kernel.bytes = fake__new(size);
    work->kernel.params = fake__new((size_t)(count + 1) * sizeof(void *));
    for (int i = 0; i < count; i++) {
        const size_t at = place(kernel, i);
        work->kernel.params[i] = work->kernel.bytes + at;
        memcpy(work->kernel.params[i], buffer ? buffer + at : params[i], kernel->sizes[i]);
    }
}

CUresult fake__kernel_work(fake_work **out, CUfunction function, const unsigned grid[3],
                           const unsigned block[3], unsigned shared, void **params, void **extra) {
    CHECK(is_function(function), CUDA_ERROR_INVALID_HANDLE);
    TRY(check_shape(function, grid, block, shared));
    const fake_kernel *kernel = function->kernel;
    const char *buffer = params ? NULL : extra_buffer(extra);
    CHECK(!kernel->params || params || buffer, CUDA_ERROR_INVALID_VALUE);
    fake_work *work = fake__work(WORK_KERNEL, function->module->context);
    work->kernel.function = function;
    memcpy(work->kernel.grid, grid, sizeof work->kernel.grid);
    memcpy(work->kernel.block, block, sizeof work->kernel.block);
    work->kernel.shared = shared;
    copy_params(work, kernel, params, buffer);
    *out = work;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, CUstream stream, void **params, void **extra) {
    TRY(fake__stream(&stream));
    fake_work *work;
    TRY(fake__kernel_work(&work, function, grid, block, shared, params, extra));
    if (function->module->context != stream->context) {
        fake__drop(work);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return fake__submit(stream, work);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void **params, void **extra) {
    ENTER(cuLaunchKernel);
    return launch(function, (unsigned[3]){grid_x, grid_y, grid_z},
                  (unsigned[3]){block_x, block_y, block_z}, shared, stream, params, extra);
}
