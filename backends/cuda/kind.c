/* CUDA as core's kind of device: copies, waiting, statistics; kernels, memory and pinned memory are
 * those of the other files. */
#include "backends/cuda/ops.h"
#include "core/base/start.h"
#include "backends/cuda/pinned.h"
#include "backends/cuda/stream.h"

#include <etch/device.h>

static cu_address at(const etch_storage *s, size_t offset) {
    return (cu_address)(uintptr_t)s->data + offset;
}

/* Between the host's memory and this device's. Pageable memory the driver has taken in, or filled,
 * when the call returns and the stream was waited for. */
static etch_status copy_host(cuda_stream *s, etch_storage *dst, size_t dst_at, etch_storage *src,
                             size_t src_at, size_t bytes) {
    etch_storage *host = dst->device ? src : dst;
    etch_status status = host->pinned ? etch__cuda_pinned_begin(s, host) : ETCH_OK;
    if (status == ETCH_OK && host->pinned) status = etch__cuda_note_use(host);
    if (status != ETCH_OK) return status;
    if (host == dst)
        status =
            CU(cuMemcpyDtoHAsync_v2, (char *)dst->data + dst_at, at(src, src_at), bytes, s->stream);
    else
        status = CU(cuMemcpyHtoDAsync_v2, at(dst, dst_at), (const char *)src->data + src_at, bytes,
                    s->stream);
    if (host->pinned) return etch__cuda_pinned_end(s, host, status);
    if (status != ETCH_OK) return status;
    return host == dst ? etch__cuda_finish(s) : etch__cuda_wait(s);
}

static etch_status copy(etch_storage *dst, size_t dst_at, etch_storage *src, size_t src_at,
                        size_t bytes) {
    int index = etch__device_index(dst->device ? dst->device : src->device);
    cuda_stream *s = etch__cuda_stream(index);
    if (!s || !bytes) return s ? ETCH_OK : etch__tls.status;
    etch_status status = src->device && src->device - 1 == index ? etch__cuda_use(s, src) : ETCH_OK;
    if (status == ETCH_OK && dst->device) status = etch__cuda_use(s, dst);
    if (status != ETCH_OK) return status;
    if (!dst->device || !src->device) return copy_host(s, dst, dst_at, src, src_at, bytes);
    if (src->device == dst->device)
        return CU(cuMemcpyDtoDAsync_v2, at(dst, dst_at), at(src, src_at), bytes, s->stream);
    /* Between devices: what was issued to the source is done first, and the other way round. */
    cuda_stream *from = etch__cuda_stream(etch__device_index(src->device));
    if (!from || etch__cuda_use(from, src) != ETCH_OK || etch__cuda_finish(from) != ETCH_OK ||
        !etch__cuda_stream(index))
        return etch__tls.status;
    status = CU(cuMemcpyPeerAsync, at(dst, dst_at), s->device->context, at(src, src_at),
                from->device->context, bytes, s->stream);
    return status == ETCH_OK ? etch__cuda_wait(s) : status;
}

static etch_status synchronize(int index) {
    if (!etch__cuda_enter(index)) return etch__tls.status;
    cuda_stream *s;
    etch_status status = ETCH_OK;
    for (int i = 0; (s = etch__cuda_nth_stream(i)); i++)
        if (s->device->index == index) {
            etch_status one = etch__cuda_finish(s);
            if (status == ETCH_OK) status = one;
        }
    return status;
}

static void stats(int index, etch_device_stats_t *out) {
    const device_counts *c = etch__cuda_counts(index);
    *out = (etch_device_stats_t){c->bytes_live,         c->bytes_peak,    c->bytes_kept,
                                 c->driver_allocations, c->launches,      c->graphs,
                                 c->graph_launches,     c->graph_patches, c->operand_copies};
}

static etch_status give_back(int index) {
    cuda_device *d = etch__cuda_enter(index);
    if (d) etch__cuda_trim(d), etch__cuda_trim_pinned();
    return d ? ETCH_OK : etch__tls.status;
}

static const device_kind cuda = {.name = "cuda",
                                 .count = etch__cuda_count,
                                 .absent = etch__cuda_absent,
                                 .allocate = etch__cuda_allocate_storage,
                                 .allocate_pinned = etch__cuda_allocate_pinned,
                                 .settle = etch__cuda_settle,
                                 .copy = copy,
                                 .synchronize = synchronize,
                                 .stats = stats,
                                 .trim = give_back,
                                 .kernel = etch__cuda_kernel};

void etch__start_cuda_kind(void) { etch__device_register(&cuda); }
