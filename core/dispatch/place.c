/* Tensors of a kernel's own: see place.h. */
#include "core/dispatch/place.h"

#include "core/tensor/device.h"

bool etch__place_new(etch_tensor *t, etch_dtype dtype, int ndim, const int64_t *size, int device) {
    tensor_meta m = {.dtype = (uint8_t)dtype, .ndim = (uint8_t)ndim, .device = (uint8_t)device};
    memcpy(m.size, size, sizeof *size * (size_t)ndim);
    etch__row_major(ndim, m.size, m.stride);
    *t = (etch_tensor){.refs = 1, .magic = TENSOR_ALIVE};
    etch__apply_meta(t, &m);
    t->storage = etch__storage_new_on(device, (size_t)(t->numel * etch__item_size(t)));
    return t->storage != NULL;
}

void etch__place_free(etch_tensor *t) {
    if (t->storage) etch__storage_release(t->storage);
    t->storage = NULL;
}

etch_tensor etch__place_view(const etch_tensor *of, int64_t offset, int ndim, const int64_t *size,
                             const int64_t *stride) {
    tensor_meta m = {.dtype = of->dtype, .ndim = (uint8_t)ndim, .device = of->device};
    etch_tensor v = {.refs = 1, .magic = TENSOR_ALIVE, .storage = of->storage};
    m.offset = of->offset + offset;
    memcpy(m.size, size, (size_t)ndim * sizeof *size);
    memcpy(m.stride, stride, (size_t)ndim * sizeof *stride);
    etch__apply_meta(&v, &m);
    return v;
}

/* The bytes from *low up to, without, *high. */
static void range_of(const etch_tensor *t, const char **low, const char **high) {
    int64_t size = etch__item_size(t), below = 0, above = 0;
    for (int d = 0; d < t->ndim; d++)
        *(t->stride[d] < 0 ? &below : &above) += (t->size[d] - 1) * t->stride[d];
    *low = (const char *)etch__ptr(t) + below * size;
    *high = (const char *)etch__ptr(t) + (above + 1) * size;
}

bool etch__place_overlap(const etch_tensor *a, const etch_tensor *b) {
    const char *low[2], *high[2];
    if (!a->numel || !b->numel) return false;
    range_of(a, &low[0], &high[0]);
    range_of(b, &low[1], &high[1]);
    return low[0] < high[1] && low[1] < high[0];
}

etch_status etch__place_copy(etch_tensor *to, etch_tensor *from, const void *site) {
    static const int64_t blocking[] = {0};
    etch_tensor *const in[2] = {to, from};
    op_call copy = {.op = OP_COPY_, .nin = 2, .in = in, .nat = 1, .at = blocking, .site = site};
    return to->numel ? etch__kernel_on(OP_COPY_, to->device)(&copy, &to) : ETCH_OK;
}

static etch_status copy_of(etch_tensor *from, etch_tensor *place, etch_tensor **use,
                           const void *site) {
    if (!etch__place_new(place, from->dtype, from->ndim, from->size, from->device))
        return etch__tls.status;
    *use = place;
    return etch__place_copy(place, from, site);
}

etch_status etch__place_dense(etch_tensor *t, etch_tensor *place, etch_tensor **use,
                              const void *site) {
    place->storage = NULL;
    *use = t;
    return t->contiguous ? ETCH_OK : copy_of(t, place, use, site);
}

etch_status etch__place_apart(etch_tensor *t, const etch_tensor *out, etch_tensor *place,
                              etch_tensor **use, const void *site) {
    place->storage = NULL;
    *use = t;
    return etch__place_overlap(t, out) ? copy_of(t, place, use, site) : ETCH_OK;
}

etch_status etch__place_cat(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    int64_t at = 0, size[ETCH_MAX_DIMS];
    int dim = (int)(call->at[0] < 0 ? call->at[0] + out->ndim : call->at[0]);
    memcpy(size, out->size, sizeof size);
    for (int k = 0; k < call->nin; k++) {
        etch_tensor *t = call->in[k];
        if (t->ndim == 1 && t->numel == 0) continue; /* skipped whatever the rank of the others */
        size[dim] = t->size[dim];
        etch_tensor slice =
            etch__place_view(out, at * out->stride[dim], out->ndim, size, out->stride);
        at += t->size[dim];
        etch_status status = etch__place_copy(&slice, t, call->site);
        if (status != ETCH_OK) return status;
    }
    return ETCH_OK;
}
