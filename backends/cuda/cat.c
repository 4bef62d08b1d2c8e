/* cat on a device: each tensor is copied into its slice of the result as `copy_` would. */
#include "backends/cuda/text.h"
#include "core/base/start.h"

static etch_status cat(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    int64_t at = 0;
    int dim = (int)(call->at[0] < 0 ? call->at[0] + out->ndim : call->at[0]);
    if (out->numel && !etch__cuda_begin(call, out)) return etch__tls.status;
    for (int k = 0; k < call->nin; k++) {
        etch_tensor *t = call->in[k];
        if (t->ndim == 1 && t->numel == 0) continue; /* skipped whatever the rank of the others */
        tensor_meta m = {.dtype = out->dtype, .ndim = out->ndim, .device = out->device};
        memcpy(m.size, out->size, sizeof m.size);
        memcpy(m.stride, out->stride, sizeof m.stride);
        m.size[dim] = t->size[dim], m.offset = out->offset + at * out->stride[dim];
        etch_tensor slice = {.refs = 1, .magic = TENSOR_ALIVE};
        etch__apply_meta(&slice, &m);
        slice.storage = out->storage;
        at += t->size[dim];
        etch_status status = etch__cuda_copy(&slice, t, call->site);
        if (status != ETCH_OK) return status;
    }
    return ETCH_OK;
}

void etch__start_cuda_cat(void) { etch__cuda_register(OP_CAT, cat); }
