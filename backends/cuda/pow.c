/* pow of integers on a device, which the loop IR does not have: repeated squaring that wraps; a
 * negative exponent gives 0 but for bases 1 and -1. Floats, and exponents that are a few products,
 * are plans as other operators. */
#include "backends/cuda/text.h"
#include "core/base/start.h"

#include "embedded/pow.cu.inc"

/* t's elements as those of the result's sizes. */
static void broadcast_dims(text_dims *d, const etch_tensor *t, const etch_tensor *out) {
    int missing = out->ndim - t->ndim;
    d->n = out->ndim;
    for (int k = 0; k < out->ndim; k++) {
        bool there = k >= missing && t->size[k - missing] != 1;
        d->size[k] = out->size[k];
        d->stride[k] = there ? t->stride[k - missing] : 0;
    }
}

static etch_status run(const op_call *call, etch_tensor *out, etch_dtype compute) {
    cuda_stream *s = etch__cuda_begin(call, out);
    etch_tensor *x = call->in[0], *e = call->op == OP_POW_TENSOR ? call->in[1] : NULL;
    struct {
        const void *x, *e;
        void *y;
        int64_t n, exponent;
        text_dims at_x, at_e, at_y;
    } a = {.x = etch__ptr(x),
           .e = e ? etch__ptr(e) : NULL,
           .y = etch__ptr(out),
           .n = out->numel,
           .exponent = e ? 0 : call->sc[0].i};
    if (!s) return etch__tls.status;
    broadcast_dims(&a.at_x, x, out);
    broadcast_dims(&a.at_e, e ? e : x, out);
    etch__cuda_dims(&a.at_y, out);
    kernel_text k = {.symbol = "etch_pow", .body = pow_text, .ndtypes = 4};
    k.dtype[0] = x->dtype, k.dtype[1] = (e ? e : x)->dtype;
    k.dtype[2] = out->dtype, k.dtype[3] = compute;
    snprintf(k.defines, sizeof k.defines, "#define BOOLEAN %d\n", compute == ETCH_BOOL);
    return etch__cuda_run_text(s, &k, (a.n + 255) / 256, 256, &a);
}

/* Whether the exponent is one that integers take the general way for. */
static bool general(const op_call *call) {
    if (call->op == OP_POW_TENSOR) return true;
    int64_t class = call->at[call->nat - 1];
    return class == EXPONENT_ANY || class == EXPONENT_HALF || class == EXPONENT_MINUS_ONE ||
           class == EXPONENT_DOUBLE;
}

static etch_status power(const op_call *call, etch_tensor *const *out) {
    tensor_meta meta;
    etch_dtype compute;
    etch_status status = etch__infer(call, &meta, &compute);
    if (status != ETCH_OK || !out[0]->numel) return status;
    bool whole = !etch__is_float(compute) && general(call);
    return whole ? run(call, out[0], compute) : etch__cuda_by_plan(call, out);
}

void etch__start_cuda_pow(void) {
    etch__cuda_register(OP_POW_TENSOR, power);
    etch__cuda_register(OP_POW_SCALAR, power);
    etch__cuda_register(OP_POW_SCALAR_, power);
}
