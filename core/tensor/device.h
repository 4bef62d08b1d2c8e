/* Devices beside the CPU: what core asks of them. core names none; a backend registers its kind at
 * load.
 *
 * A device has a number: 0 is the CPU, 1 + i is device i of the one registered kind ("cuda:i").
 * Work on a device is asynchronous and ordered as it was issued; a copy to the host waits. */
#ifndef ETCH_CORE_TENSOR_DEVICE_H
#define ETCH_CORE_TENSOR_DEVICE_H

#include "core/base/hooks.h"
#include "core/tensor/tensor.h"

/* A call of an operator: core/ops/op.h. */
struct op_call;

typedef struct device_kind {
    const char *name; /* "cuda" */
    /* Devices of the kind that can be used now; 0 when the driver is missing or hidden. */
    int (*count)(void);
    /* Why count is 0, for messages. The text lives for ever. */
    const char *(*absent)(void);
    /* Sets data, free_fn and free_ctx of a storage of s->bytes on device `index`; out_of_memory, or
     * another error, where it cannot. */
    etch_status (*allocate)(int index, etch_storage *s);
    /* The same for a storage on the CPU that is to be pinned. */
    etch_status (*allocate_pinned)(int index, etch_storage *s);
    /* Waits for the copies that use a pinned storage, and takes EXPOSED_PENDING from it. */
    etch_status (*settle)(etch_storage *s);
    /* Copies bytes between storages (at byte offsets); one side may be on the CPU. Where that one
     * is pinned, the copy may be under way on return (EXPOSED_PENDING). */
    etch_status (*copy)(etch_storage *dst, size_t dst_at, etch_storage *src, size_t src_at,
                        size_t bytes);
    /* Waits for everything issued; reports what failed meanwhile. */
    etch_status (*synchronize)(int index);
    void (*stats)(int index, etch_device_stats_t *out);
    etch_status (*trim)(int index);
    /* The kernel of every operator of the table. */
    etch_status (*kernel)(const struct op_call *call, etch_tensor *const *out);
} device_kind;

void etch__device_register(const device_kind *kind);
/* The kind of a device number; NULL for the CPU and where there is none. */
const device_kind *etch__device_kind(int device);
static inline int etch__device_index(int device) { return device - 1; }

/* Whether the number names a device that is there; else the error is set. */
bool etch__device_check(int device, const char *function, const void *site);

static inline int etch__current_device(void) { return STATE_DEVICE(etch__tls.state); }

/* A storage on any device; etch__storage_new for the CPU. */
etch_storage *etch__storage_new_on(int device, size_t bytes);

/* The bytes of its storage that t spans. */
void etch__span(const etch_tensor *t, size_t *from, size_t *bytes);

/* A tensor's elements in host memory: t itself where it is on the CPU, else a handle over a copy of
 * the bytes that it spans, with the same strides. The copy waits for the device. NULL: the error is
 * set. End every view, also a failed one. */
typedef struct host_view {
    etch_tensor t;
    etch_storage s;
    void *memory;
    size_t from, bytes; /* what of the original storage it spans */
} host_view;
const etch_tensor *etch__host_view(const etch_tensor *t, host_view *v);
void etch__host_view_end(host_view *v);

/* Checks what the user says of memory; gives the number of elements, or -1 with the error set. */
int64_t etch__check_memory(const char *function, const void *site, const void *data,
                           etch_dtype dtype, const etch_shape *sizes);

/* A new contiguous tensor on the host, its storage not shared yet: moved to the thread's current
 * device. NULL: the error is set, the scope still owns t. */
etch_tensor *etch__to_current_device(etch_tensor *t);

#endif
