/* Relaxed products with what follows them: a bias row, then relu or gelu (jit/fuse/pass_epilogue.c
 * finds them). cuBLASLt does it before it stores the result, where it can; else the product is
 * computed as ever, in the compute type, and a kernel of our own does the rest. */
#include "backends/cuda/matmul.h"
#include "jit/ir/ir.h"

static int64_t bias_stride(const etch_tensor *t) {
    return t->ndim && t->size[t->ndim - 1] > 1 ? t->stride[t->ndim - 1] : 0;
}

static bool library_can(const matmul *p, const matmul_after *f) {
    const etch_tensor *bias = f->self;
    if (etch__cuda_matmul_small(p) || p->dtype == ETCH_F64 || p->batch > 1) return false;
    if (!etch__scalar_is(f->alpha, 1) || (bias && !etch__scalar_is(f->beta, 1))) return false;
    return !bias || (p->n > 1 && bias_stride(bias) == 1 && (uintptr_t)etch__ptr(bias) % 16 == 0);
}

etch_status etch__cuda_matmul(const op_call *call, uint8_t epilogue, etch_tensor *out) {
    matmul p;
    saved_error before;
    bool addmm = call->op == OP_ADDMM;
    const etch_tensor *a = call->in[addmm], *b = call->in[addmm + 1];
    matmul_after f = {NULL, etch_scalar_int(1), etch_scalar_int(1), epilogue};
    if (epilogue & MATMUL_BIAS) f.self = call->in[addmm ? 0 : 2];
    if (addmm) f.beta = call->sc[0], f.alpha = call->sc[1];
    if (etch__scalar_is(f.beta, 0)) f.self = NULL;
    if (out->numel == 0) return ETCH_OK;
    if (etch__cuda_matmul_begin(&p, call, out) != ETCH_OK) return etch__tls.status;
    if (!library_can(&p, &f)) return etch__cuda_multiply_and(&p, a, b, &f, out);
    etch__error_save(&before);
    p.epilogue = (uint8_t)(f.self ? epilogue : epilogue & ~MATMUL_BIAS);
    p.bias = f.self ? etch__ptr(f.self) : NULL;
    etch_status s = etch__cuda_multiply(&p, a, b);
    if (s != ETCH_ERR_UNSUPPORTED) return s;
    etch__error_restore(&before);
    return etch__cuda_multiply_and(&p, a, b, &f, out);
}
