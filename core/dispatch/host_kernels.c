/* Operators on tensors of a device that the host has to do with: those whose kernel is the CPU's,
 * and copies between devices. */
#include "core/dispatch/dispatch.h"
#include "core/base/start.h"
#include "core/tensor/device.h"
#include "core/tensor/element.h"

/* ---- a kernel of the CPU ---- */

static etch_status write_back(host_view *v, etch_tensor *t) {
    if (!v->bytes) return ETCH_OK;
    return etch__device_kind(t->device)->copy(t->storage, v->from, &v->s, 0, v->bytes);
}

etch_status etch__run_on_host(const op_call *call, etch_tensor *const *out) {
    int n = call->nin;
    bool inplace = etch__ops[call->op].kind == KIND_INPLACE;
    host_view *views = etch__calloc((size_t)n + 1, sizeof *views);
    etch_tensor **in = etch__calloc((size_t)n + 1, sizeof *in);
    etch_status status = views && in ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
    for (int i = 0; status == ETCH_OK && i < n; i++) {
        in[i] = call->in[i];
        if (in[i] == ETCH_NONE) continue;
        in[i] = (etch_tensor *)etch__host_view(call->in[i], &views[i]);
        if (!in[i]) status = etch__tls.status;
    }
    etch_tensor *result = NULL;
    if (status == ETCH_OK && !inplace) result = (etch_tensor *)etch__host_view(out[0], &views[n]);
    if (status == ETCH_OK && !inplace && !result) status = etch__tls.status;
    if (status == ETCH_OK) {
        op_call host = *call;
        host.in = in;
        status = etch__kernel(call->op)(&host, inplace ? &in[0] : &result);
    }
    if (status == ETCH_OK) status = write_back(&views[inplace ? 0 : n], out[0]);
    for (int i = 0; views && i <= n; i++) etch__host_view_end(&views[i]);
    etch__free(views);
    etch__free(in);
    return status;
}

/* ---- the operator _to_copy ---- */

/* Contiguous elements go as they lie; others are laid out on the host first. */
static etch_status to_device(const op_call *call, etch_tensor *const *out) {
    etch_tensor *from = call->in[0], *to = out[0];
    size_t size = (size_t)etch__item_size(to), bytes = (size_t)to->numel * size;
    const device_kind *kind = etch__device_kind(to->device ? to->device : from->device);
    if (!bytes) return ETCH_OK;
    if (!kind) return etch__copy_out(from, etch__ptr(to)), ETCH_OK;
    if (from->contiguous)
        return kind->copy(to->storage, 0, from->storage, (size_t)from->offset * size, bytes);
    host_view v;
    const etch_tensor *h = etch__host_view(from, &v);
    etch_storage dense = {.refs = 1, .bytes = bytes, .data = h ? etch__malloc(bytes) : NULL};
    etch_status status = dense.data ? ETCH_OK : etch__tls.status;
    if (status == ETCH_OK) etch__copy_out(h, dense.data);
    if (status == ETCH_OK && to->device) status = kind->copy(to->storage, 0, &dense, 0, bytes);
    else if (status == ETCH_OK) memcpy(etch__ptr(to), dense.data, bytes);
    etch__free(dense.data);
    etch__host_view_end(&v);
    return status;
}

void etch__start_copies(void) { etch__register_kernel(OP_TO_DEVICE, to_device); }
