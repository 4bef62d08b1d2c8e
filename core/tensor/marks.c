/* Marks on dimensions: what a user says about sizes that a compiled function will see. They belong
 * to the handle, like its sizes; results do not inherit them. */
#include <etch/compile.h>

#include "core/tensor/tensor.h"

static etch_status no_such_dim(const char *function, const void *site, const etch_tensor *t,
                               int dim) {
    return etch__error_at(site, ETCH_ERR_DIM_RANGE,
                          "%s: expected a dimension from %d to %d, got %d", function, -t->ndim,
                          t->ndim - 1, dim);
}

/* The tensor's marks, made at the first; *dim wrapped. NULL with the error set. */
static dim_marks *marks_of(etch_tensor *t, int *dim, const char *function, const void *site) {
    if (!etch__handle_ok(t, function, "t", site)) return NULL;
    if (t == ETCH_NONE)
        return etch__null_at(site, ETCH_ERR_INVALID_ARGUMENT,
                             "%s: expected a tensor, got ETCH_NONE", function);
    int wrapped = *dim < 0 ? *dim + t->ndim : *dim;
    if (wrapped < 0 || wrapped >= t->ndim) {
        no_such_dim(function, site, t, *dim);
        return NULL;
    }
    *dim = wrapped;
    tensor_notes *notes = etch__notes(t);
    if (notes && !notes->marks) notes->marks = etch__calloc(1, sizeof *notes->marks);
    return notes ? notes->marks : NULL;
}

etch_status etch_mark_dynamic(etch_tensor *t, int dim, int64_t min, int64_t max) {
    const void *site = __builtin_return_address(0);
    if (max <= 0) max = INT64_MAX;
    if (min < 0 || min > max)
        return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_mark_dynamic: expected 0 <= min <= max, got %lld and %lld",
                              (long long)min, (long long)max);
    dim_marks *m = marks_of(t, &dim, "etch_mark_dynamic", site);
    if (!m) return etch__tls.status;
    if (t->size[dim] < min || t->size[dim] > max)
        return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_mark_dynamic: expected bounds that hold for the tensor itself, "
                              "whose size is %lld, got %lld to %lld",
                              (long long)t->size[dim], (long long)min, (long long)max);
    m->dynamic |= (uint8_t)(1u << dim);
    m->fixed &= (uint8_t) ~(1u << dim);
    m->min[dim] = min, m->max[dim] = max;
    return ETCH_OK;
}

etch_status etch_mark_static(etch_tensor *t, int dim) {
    dim_marks *m = marks_of(t, &dim, "etch_mark_static", __builtin_return_address(0));
    if (!m) return etch__tls.status;
    m->fixed |= (uint8_t)(1u << dim);
    m->dynamic &= (uint8_t) ~(1u << dim);
    return ETCH_OK;
}
