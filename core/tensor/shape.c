/* Sizes and strides, and whether a handle can be used at all: what needs no storage and no scope.
 * */
#include "core/base/text.h"
#include "core/tensor/tensor.h"

bool etch__bad_handle(const etch_tensor *t, const char *name, const char *argument,
                      const void *site) {
    if (t && t->magic != TENSOR_ALIVE)
        etch__error_at(site, ETCH_ERR_RELEASED,
                       "%s: \"%s\" was released before (keep it with etch_keep or etch_retain)",
                       name, argument);
    else if (etch__tls.status != ETCH_OK) etch__error_follows(name, argument, site);
    else if (t)
        etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: \"%s\": the tensor's own computation failed before", name, argument);
    else
        etch__error_at(site, ETCH_ERR_NULL,
                       "%s: \"%s\": expected a tensor, got NULL (an optional argument that is "
                       "absent is ETCH_NONE)",
                       name, argument);
    return false;
}

int64_t etch__row_major(int ndim, const int64_t *size, int64_t *stride) {
    int64_t n = 1, step = 1, bytes;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = step;
        if (__builtin_mul_overflow(n, size[d], &n)) return -1;
        /* Strides of an empty tensor count size 0 as 1, as ATen does. */
        if (__builtin_mul_overflow(step, size[d] > 1 ? size[d] : 1, &step)) return -1;
    }
    return __builtin_mul_overflow(step, 8, &bytes) ? -1 : n;
}

bool etch__sizes_contiguous(int ndim, const int64_t *size, const int64_t *stride) {
    int64_t expected = 1;
    bool contiguous = true;
    for (int d = ndim - 1; d >= 0; d--) {
        if (size[d] == 0) return true;
        if (size[d] == 1) continue;
        contiguous &= stride[d] == expected;
        expected *= size[d];
    }
    return contiguous;
}

void etch__apply_meta(etch_tensor *t, const tensor_meta *m) {
    etch__copy_meta(t, m);
    t->contiguous = etch__sizes_contiguous(m->ndim, m->size, m->stride);
}

shape_text etch__shape_text(int ndim, const int64_t *size) {
    shape_text t;
    bounded_text to = {t.s, sizeof t.s, 0};
    etch__text_add(&to, "[");
    for (int i = 0; i < ndim; i++) etch__text_add(&to, "%s%lld", i ? ", " : "", (long long)size[i]);
    etch__text_add(&to, "]");
    return t;
}
