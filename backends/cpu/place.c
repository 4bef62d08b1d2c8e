/* Tensors of a kernel's own: see place.h. */
#include "backends/cpu/place.h"

bool etch__place_new(etch_tensor *t, etch_dtype dtype, int ndim, const int64_t *size) {
    memset(t, 0, sizeof *t);
    atomic_init(&t->refs, 1);
    t->magic = TENSOR_ALIVE, t->dtype = (uint8_t)dtype, t->ndim = (uint8_t)ndim;
    memcpy(t->size, size, sizeof *size * (size_t)ndim);
    t->numel = etch__row_major(ndim, size, t->stride), t->contiguous = 1;
    t->storage = etch__storage_new((size_t)(t->numel * etch__item_size(t)));
    return t->storage != NULL;
}

void etch__place_free(etch_tensor *t) {
    if (t->storage) etch__storage_release(t->storage);
    t->storage = NULL;
}

/* The bytes from *low up to, without, *high. */
static void range_of(const etch_tensor *t, const char **low, const char **high) {
    int64_t size = etch__item_size(t), below = 0, above = 0;
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach = (t->size[d] - 1) * t->stride[d];
        if (reach < 0) below += reach;
        else above += reach;
    }
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
    return to->numel ? etch__kernel(OP_COPY_)(&copy, &to) : ETCH_OK;
}
