/* empty and cat. cat copies each tensor into its slice of the result as `copy_` would, so that
 * dtypes convert and strides do not matter. */
#include "core/dispatch/dispatch.h"
#include "core/base/start.h"

static etch_status empty(const op_call *call, etch_tensor *const *out) {
    (void)call, (void)out;
    return ETCH_OK;
}

/* A view of out: elements at .. at + t's extent along dim. */
static etch_tensor slice_of(const etch_tensor *out, const etch_tensor *t, int dim, int64_t at) {
    etch_tensor view = {.magic = TENSOR_ALIVE,
                        .dtype = out->dtype,
                        .ndim = out->ndim,
                        .storage = out->storage,
                        .offset = out->offset + at * out->stride[dim]};
    memcpy(view.size, out->size, sizeof view.size);
    memcpy(view.stride, out->stride, sizeof view.stride);
    view.size[dim] = t->size[dim];
    view.numel = t->numel;
    view.contiguous = etch__sizes_contiguous(view.ndim, view.size, view.stride);
    return view;
}

static etch_status cat(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    int64_t at = 0;
    int dim = (int)(call->at[0] < 0 ? call->at[0] + out->ndim : call->at[0]);
    const int64_t blocking[] = {0};
    for (int k = 0; k < call->nin; k++) {
        etch_tensor *t = call->in[k];
        if (t->ndim == 1 && t->numel == 0) continue; /* skipped whatever the rank of the others */
        etch_tensor view = slice_of(out, t, dim, at), *target = &view;
        etch_tensor *const in[2] = {target, t};
        op_call copy = {
            .op = OP_COPY_, .nin = 2, .in = in, .nat = 1, .at = blocking, .site = call->site};
        at += t->size[dim];
        if (view.numel == 0) continue;
        etch_status status = etch__kernel(OP_COPY_)(&copy, &target);
        if (status != ETCH_OK) return status;
    }
    return ETCH_OK;
}

void etch__start_cpu_joins(void) {
    etch__register_kernel(OP_EMPTY, empty);
    etch__register_kernel(OP_CAT, cat);
}
