/* Tensors in host memory that devices reach by themselves: see etch_empty_pinned. */
#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"
#include "core/tensor/element.h"
#include "core/ops/rules.h"

#define SITE __builtin_return_address(0)

bool etch_is_pinned(const etch_tensor *t) {
    return etch__handle_ok(t, "etch_is_pinned", "t", SITE) && t->storage && t->storage->pinned;
}

/* For the thread's current GPU, or the first; its driver knows it on all of them. */
static etch_storage *pinned_storage(size_t bytes) {
    int device = etch__current_device();
    etch_storage *s = etch__storage_over(0, NULL, bytes);
    if (!s) return NULL;
    s->pinned = 1;
    const device_kind *kind = etch__device_kind(1);
    if (kind->allocate_pinned(device ? etch__device_index(device) : 0, s) == ETCH_OK) return s;
    etch__storage_release(s);
    return NULL;
}

static etch_tensor *new_pinned(etch_dtype dtype, int ndim, const int64_t *size) {
    tensor_meta m = {.dtype = (uint8_t)dtype, .ndim = (uint8_t)ndim};
    memcpy(m.size, size, sizeof *size * (size_t)ndim);
    int64_t n = etch__row_major(ndim, m.size, m.stride);
    size_t bytes = (size_t)n * etch_dtype_size(dtype);
    etch_tensor *t = etch__tensor_alloc();
    if (!t) return NULL;
    etch__apply_meta(t, &m);
    t->storage = bytes && etch_cuda_count() ? pinned_storage(bytes) : etch__storage_new(bytes);
    if (t->storage && etch__scope_push(t)) return t;
    etch__tensor_destroy(t);
    return NULL;
}

etch_tensor *etch_empty_pinned(etch_dtype dtype, etch_shape sizes) {
    int64_t n = etch__check_memory("etch_empty_pinned", SITE, "", dtype, &sizes);
    return n < 0 ? NULL : new_pinned(dtype, sizes.n, sizes.v);
}

/* The elements of t, which is on a device, in one piece there. */
static etch_tensor *in_one_piece(etch_tensor *t) {
    op_call clone = {.op = OP_CLONE, .nin = 1, .in = &t};
    return t->contiguous ? t : etch__run_eager(&clone);
}

static etch_status fill(etch_tensor *to, const etch_tensor *t) {
    if (!t->numel) return ETCH_OK;
    if (!t->device) return etch__copy_out(t, etch__ptr(to)), ETCH_OK;
    int64_t scope = etch_scope_begin();
    etch_tensor *dense = scope < 0 ? NULL : in_one_piece((etch_tensor *)t);
    size_t size = (size_t)etch__item_size(t);
    etch_status status = dense ? etch__device_kind(t->device)->copy(to->storage, 0, dense->storage,
                                                                    (size_t)dense->offset * size,
                                                                    (size_t)t->numel * size)
                               : etch__tls.status;
    if (scope >= 0) etch_scope_end(scope);
    return status;
}

etch_tensor *etch_to_pinned(const etch_tensor *t) {
    if (!etch__read(t, "etch_to_pinned", REASON_BREAK_TO_HOST, SITE)) return NULL;
    etch_tensor *to = new_pinned(t->dtype, t->ndim, t->size);
    return to && fill(to, t) == ETCH_OK ? to : NULL; /* a half-filled one dies with its scope */
}
