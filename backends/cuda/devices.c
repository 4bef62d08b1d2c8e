/* The devices: asked of the driver once, their contexts, what is counted of each. */
#include "core/base/locks.h"
#include "backends/cuda/runtime.h"

#include <pthread.h>
#include <unistd.h>

static cuda_device devices[CUDA_DEVICES];
static int ndevices = -1; /* not asked yet */
static const char *absent = "";
__thread cuda_held *etch__cuda_held;
static pid_t owner;

/* The driver does not work there. */
bool etch__cuda_in_forked_child(void) { return owner != getpid(); }

static void ask_driver(void) {
    int n = 0;
    ndevices = 0, owner = getpid();
    if (!etch__cuda_load(&absent)) return;
    if (etch__cuda.cuDeviceGetCount(&n)) absent = "cuDeviceGetCount failed";
    else if (n == 0) absent = "the driver sees no GPU";
    else ndevices = n < CUDA_DEVICES ? n : CUDA_DEVICES;
}

int etch__cuda_count(void) {
    etch__lock(LOCK_CUDA_DEVICES);
    if (ndevices < 0) ask_driver();
    int n = ndevices;
    etch__unlock(LOCK_CUDA_DEVICES);
    return n;
}

const char *etch__cuda_absent(void) { return etch__cuda_count() ? "" : absent; }

static etch_status open_device(cuda_device *d, int index) {
    const struct {
        int attribute, *value;
    } wanted[] = {{CU_ATTRIBUTE_MAJOR, &d->major},
                  {CU_ATTRIBUTE_MINOR, &d->minor},
                  {CU_ATTRIBUTE_MULTIPROCESSORS, &d->multiprocessors},
                  {CU_ATTRIBUTE_SHARED_OPTIN, &d->shared}};
    etch_status status = CU(cuDeviceGet, &d->device, index);
    if (status == ETCH_OK) status = CU(cuDeviceGetName, d->name, sizeof d->name, d->device);
    for (int i = 0; status == ETCH_OK && i < COUNT_OF(wanted); i++)
        status = CU(cuDeviceGetAttribute, wanted[i].value, wanted[i].attribute, d->device);
    cu_context context = NULL;
    if (status == ETCH_OK) status = CU(cuDevicePrimaryCtxRetain, &context, d->device);
    d->index = index;
    if (status == ETCH_OK) d->context = context;
    return status;
}

bool etch__cuda_is_current(int index) {
    cu_context now = NULL;
    return etch__cuda.cuCtxGetCurrent(&now) == 0 && now == devices[index].context;
}

cuda_device *etch__cuda_enter(int index) {
    if (unlikely(index < 0 || index >= etch__cuda_count()))
        return etch__null(ETCH_ERR_DEVICE, "there is no cuda:%d", index);
    if (unlikely(etch__cuda_in_forked_child()))
        return etch__null(ETCH_ERR_DEVICE,
                          "cuda:%d: a forked child cannot use a GPU that its parent "
                          "opened; fork before, or exec",
                          index);
    cuda_device *d = &devices[index];
    etch__lock(LOCK_CUDA_DEVICES);
    etch_status status = d->context ? ETCH_OK : open_device(d, index);
    etch__unlock(LOCK_CUDA_DEVICES);
    if (status == ETCH_OK && !etch__cuda_is_current(index))
        status = CU(cuCtxSetCurrent, d->context);
    return status == ETCH_OK ? d : NULL;
}

/* ---- counts ---- */

static device_counts counts[CUDA_DEVICES];

device_counts *etch__cuda_counts(int index) { return &counts[index]; }
