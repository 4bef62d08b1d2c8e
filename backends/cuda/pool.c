/* Pooling on a device: a thread for each element of the result, which adds in the order in which
 * the CPU does. */
#include "backends/cuda/text.h"
#include "core/base/start.h"
#include "core/ops/rules.h"

#include "embedded/pool.cu.inc"

/* The dimensions of t before those of a plane. */
static void plane_dims(text_dims *d, const etch_tensor *t) {
    for (d->n = 0; d->n < t->ndim - 2; d->n++)
        d->size[d->n] = t->size[d->n], d->stride[d->n] = t->stride[d->n];
}

static int way_of(op_id op) {
    return op == OP_MAX_POOL2D ? 0 : op == OP_MAX_POOL2D_INDICES ? 1 : op == OP_AVG_POOL2D ? 2 : 3;
}

static etch_status pool(cuda_stream *s, const op_call *call, etch_tensor *out) {
    etch_tensor *x = call->in[0];
    int way = way_of((op_id)call->op), last = x->ndim - 1;
    const int64_t *in = way == 3 ? out->size : x->size, *to = way == 3 ? x->size : out->size;
    pool_numbers p;
    struct {
        const void *x;
        void *y;
        text_dims planes;
        int64_t n, in[2], out[2], kernel[2], stride[2], padding[2], step[2], row, column, divisor,
            counts_padding;
    } a = {.x = etch__ptr(x), .y = etch__ptr(out), .n = out->numel};
    if (!etch__pool_numbers(call, &p)) return etch__tls.status;
    plane_dims(&a.planes, x);
    for (int d = 0; d < 2; d++) {
        a.in[d] = in[last - 1 + d], a.out[d] = to[last - 1 + d];
        a.kernel[d] = p.kernel[d], a.stride[d] = p.stride[d], a.padding[d] = p.padding[d];
        a.step[d] = p.dilation[d];
    }
    a.row = x->stride[last - 1], a.column = x->stride[last];
    a.divisor = p.divisor, a.counts_padding = p.counts_padding;
    kernel_text k = {.symbol = "etch_pool", .body = pool_text, .ndtypes = 1};
    k.dtype[0] = x->dtype;
    snprintf(k.defines, sizeof k.defines, "#define WAY %d\n", way);
    return etch__cuda_run_text(s, &k, (a.n + 255) / 256, 256, &a);
}

void etch__start_cuda_pools(void) {
    etch__cuda_register_text(OP_MAX_POOL2D, pool);
    etch__cuda_register_text(OP_MAX_POOL2D_INDICES, pool);
    etch__cuda_register_text(OP_AVG_POOL2D, pool);
    etch__cuda_register_text(OP_AVG_POOL2D_BACKWARD, pool);
}
