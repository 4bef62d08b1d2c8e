/* Data between the user's memory and tensors: copies in and out, wrapped memory, single elements,
 * raw pointers. */
#include "core/tensor/device.h"
#include "core/tensor/element.h"

#include <math.h>

#define SITE __builtin_return_address(0)

/* ---- in ---- */

int64_t etch__check_memory(const char *function, const void *site, const void *data,
                           etch_dtype dtype, const etch_shape *s) {
    int64_t stride[ETCH_MAX_DIMS], numel = -1;
    bool negative = false;
    for (int i = 0; i < s->n && i < ETCH_MAX_DIMS; i++) negative |= s->v[i] < 0;
    if (!etch_dtype_size(dtype))
        etch__error_at(site, ETCH_ERR_DTYPE, "%s: expected a dtype, got the number %d", function,
                       (int)dtype);
    else if (s->n < 0 || s->n > ETCH_MAX_DIMS)
        etch__error_at(site, ETCH_ERR_SHAPE, "%s: expected 0 to %d dimensions, got %d", function,
                       ETCH_MAX_DIMS, s->n);
    else if (negative)
        etch__error_at(site, ETCH_ERR_SHAPE, "%s: expected sizes that are not negative, got %s",
                       function, etch__shape_text(s->n, s->v).s);
    else if ((numel = etch__row_major(s->n, s->v, stride)) < 0)
        etch__error_at(site, ETCH_ERR_OVERFLOW, "%s: sizes %s do not fit in 63 bits of bytes",
                       function, etch__shape_text(s->n, s->v).s);
    else if (!data && numel)
        etch__error_at(site, ETCH_ERR_NULL, "%s: data is NULL", function), numel = -1;
    return numel;
}

/* A bool is one byte of 0 or 1, whatever the memory holds. */
static void normalise_bools(uint8_t *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = p[i] != 0;
}

/* A new tensor on the host, moved to where the thread wants its tensors. */
etch_tensor *etch__to_current_device(etch_tensor *t) {
    int device = etch__current_device();
    if (likely(!device)) return t;
    etch_storage *s = etch__storage_new_on(device, t->storage->bytes);
    if (!s || etch__device_kind(device)->copy(s, 0, t->storage, 0, s->bytes) != ETCH_OK) {
        etch__storage_release(s);
        return NULL; /* t stays with its scope */
    }
    etch__storage_release(t->storage);
    t->storage = s, t->device = (uint8_t)device;
    return t;
}

etch_tensor *etch_from_host(const void *data, etch_dtype dtype, etch_shape sizes) {
    int64_t numel = etch__check_memory("etch_from_host", SITE, data, dtype, &sizes);
    etch_tensor *t = numel < 0 ? NULL : etch__tensor_new(dtype, sizes.n, sizes.v);
    if (!t) return NULL;
    if (numel) memcpy(t->storage->data, data, (size_t)numel * etch_dtype_size(dtype));
    if (dtype == ETCH_BOOL) normalise_bools(t->storage->data, numel);
    return etch__to_current_device(t);
}

/* The handle of wrapped memory, which it does not free yet: the user keeps it when something fails.
 */
static etch_tensor *wrapping_handle(etch_storage *s, etch_dtype dtype, const etch_shape *sizes) {
    etch_tensor *t = etch__tensor_alloc();
    if (!t) {
        etch__storage_release(s);
        return NULL;
    }
    tensor_meta m = {.dtype = (uint8_t)dtype, .ndim = (uint8_t)sizes->n};
    memcpy(m.size, sizes->v, sizeof m.size);
    etch__row_major(sizes->n, m.size, m.stride);
    etch__apply_meta(t, &m);
    t->storage = s;
    if (etch__scope_push(t)) return t;
    etch__tensor_destroy(t);
    return NULL;
}

etch_tensor *etch_wrap_host(void *data, etch_dtype dtype, etch_shape sizes,
                            void (*free_fn)(void *ctx), void *ctx) {
    int64_t numel = etch__check_memory("etch_wrap_host", SITE, data, dtype, &sizes);
    if (numel < 0) return NULL;
    if ((uintptr_t)data % etch_dtype_size(dtype))
        return etch__null_at(SITE, ETCH_ERR_INVALID_ARGUMENT,
                             "etch_wrap_host: %p is not aligned for %s", data,
                             etch_dtype_name(dtype));
    etch_storage *s = etch__storage_wrap(data, (size_t)numel * etch_dtype_size(dtype));
    etch_tensor *t = s ? wrapping_handle(s, dtype, &sizes) : NULL;
    if (t) s->free_fn = free_fn, s->free_ctx = ctx;
    return t;
}

/* ---- out ---- */

/* What is known without a graph break is checked before one is made. */
etch_status etch_to_host(const etch_tensor *t, void *dst, size_t bytes) {
    const void *site = SITE;
    if (!etch__handle_ok(t, "etch_to_host", "t", site)) return etch__tls.status;
    size_t need = (size_t)t->numel * etch_dtype_size(t->dtype);
    if (bytes < need)
        return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_to_host: expected room for %zu bytes, got %zu", need, bytes);
    if (!dst && need) return etch__error_at(site, ETCH_ERR_NULL, "etch_to_host: dst is NULL");
    if (!etch__read(t, "etch_to_host", REASON_BREAK_TO_HOST, site)) return etch__tls.status;
    host_view v;
    const etch_tensor *h = etch__host_view(t, &v);
    if (h) etch__copy_out(h, dst);
    etch__host_view_end(&v);
    return h ? ETCH_OK : etch__tls.status;
}

/* The element into *cell; false: the error is set. */
static bool one_element(const etch_tensor *t, uint64_t *cell, const char *function,
                        const void *site) {
    if (!etch__handle_ok(t, function, "t", site)) return false;
    if (t != ETCH_NONE && t->numel != 1)
        return etch__false_at(site, ETCH_ERR_SHAPE, "%s: expected one element, got sizes %s",
                              function, etch__shape_text(t->ndim, t->size).s);
    if (!etch__read(t, function, REASON_BREAK_ITEM, site)) return false;
    host_view v;
    const etch_tensor *h = etch__host_view(t, &v);
    if (h) memcpy(cell, etch__ptr(h), (size_t)etch__item_size(h));
    etch__host_view_end(&v);
    return h != NULL;
}

double etch_item(const etch_tensor *t) {
    uint64_t cell;
    if (!one_element(t, &cell, "etch_item", SITE)) return NAN;
    unsigned traps = etch__fp_mask();
    double number = etch__element_real(t->dtype, &cell);
    etch__fp_unmask(traps);
    return number;
}

int64_t etch_item_int(const etch_tensor *t) {
    uint64_t cell;
    if (!one_element(t, &cell, "etch_item_int", SITE)) return INT64_MIN;
    unsigned traps = etch__fp_mask();
    int64_t number = etch__element_int(t->dtype, &cell);
    etch__fp_unmask(traps);
    return number;
}

/* ---- raw pointers ---- */

static void *expose(const etch_tensor *t, const char *function, unsigned counts, const void *site) {
    if (!etch__read(t, function, REASON_BREAK_DATA, site) || !t->numel) return NULL;
    if (etch__trace_hooks.expose(t, counts, site) != ETCH_OK) return NULL;
    return etch__ptr(t);
}

const void *etch_data(const etch_tensor *t) { return expose(t, "etch_data", EXPOSED_READER, SITE); }

void *etch_data_mut(etch_tensor *t) {
    void *p = expose(t, "etch_data_mut", EXPOSED_READER | EXPOSED_WRITER, SITE);
    if (!p) return NULL;
    atomic_fetch_or_explicit(&t->storage->forms, FORMS_NEVER, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->storage->version, 1, memory_order_relaxed);
    return p;
}

void etch_data_end(const etch_tensor *t) {
    if (etch__handle_ok(t, "etch_data_end", "t", SITE) && t != ETCH_NONE && !t->deferred)
        etch__trace_hooks.expose(t, 0, SITE);
}
