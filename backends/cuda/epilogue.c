/* Products with what follows them: the bias row of an addmm, in strict numerics as well, and under
 * relaxed ones relu or gelu (jit/fuse/pass_epilogue.c finds them). cuBLASLt does it before it
 * stores the result, where it can; else the product is computed as ever, in the compute type, and a
 * kernel of our own does the rest. Which of the two follows from sizes, dtypes and factors alone,
 * so that eager and compiled calls have the same bits. */
#include "backends/cuda/matmul.h"
#include "core/dispatch/place.h"
#include "jit/ir/ir.h"

static int64_t bias_stride(const etch_tensor *t) {
    return t->ndim && t->size[t->ndim - 1] > 1 ? t->stride[t->ndim - 1] : 0;
}

/* The same for all rows. */
static bool is_row(const etch_tensor *t, int64_t columns) {
    return t->ndim && t->size[t->ndim - 1] == columns && t->numel == columns;
}

static bool library_can(const matmul *p, const matmul_after *f) {
    if (etch__cuda_matmul_small(p) || p->dtype == ETCH_F64 || p->batch > 1) return false;
    if (!etch__scalar_is(f->alpha, 1)) return false;
    if (!f->self) return true;
    return p->n > 1 && is_row(f->self, p->n) && f->self->dtype == p->dtype &&
           etch__scalar_is(f->beta, 1);
}

/* The library wants the bias dense, and at a multiple of 16. */
static etch_status dense_bias(const etch_tensor *t, etch_tensor *place, const void **bias) {
    *bias = etch__ptr(t);
    if (bias_stride(t) == 1 && (uintptr_t)*bias % 16 == 0) return ETCH_OK;
    etch_tensor *from = (etch_tensor *)t, *to = place;
    if (!etch__place_new(place, t->dtype, t->ndim, t->size, t->device)) return etch__tls.status;
    op_call clone = {.op = OP_CLONE, .nin = 1, .in = &from};
    etch_status status = etch__cuda_kernel(&clone, &to);
    *bias = etch__ptr(to);
    return status;
}

static etch_status by_library(matmul *p, const etch_tensor *a, const etch_tensor *b,
                              const matmul_after *f, uint8_t epilogue) {
    etch_tensor place = {.storage = NULL};
    p->epilogue = (uint8_t)(f->self ? epilogue | MATMUL_BIAS : epilogue & ~MATMUL_BIAS);
    etch_status s = f->self ? dense_bias(f->self, &place, &p->bias) : ETCH_OK;
    if (s == ETCH_OK) s = etch__cuda_multiply(p, a, b);
    etch__place_free(&place);
    return s;
}

etch_status etch__cuda_multiply_with(matmul *p, const etch_tensor *a, const etch_tensor *b,
                                     const matmul_after *f, const etch_tensor *out) {
    saved_error before;
    if (!library_can(p, f)) return etch__cuda_multiply_and(p, a, b, f, out);
    etch__error_save(&before);
    etch_status s = by_library(p, a, b, f, f->epilogue);
    if (s != ETCH_ERR_UNSUPPORTED) return s;
    etch__error_restore(&before);
    return etch__cuda_multiply_and(p, a, b, f, out);
}

etch_status etch__cuda_matmul(const op_call *call, uint8_t epilogue, etch_tensor *out) {
    matmul p;
    bool addmm = call->op == OP_ADDMM;
    matmul_after f = {NULL, etch_scalar_int(1), etch_scalar_int(1), epilogue};
    if (epilogue & MATMUL_BIAS) f.self = call->in[addmm ? 0 : 2];
    if (addmm) f.beta = call->sc[0], f.alpha = call->sc[1];
    if (etch__scalar_is(f.beta, 0)) f.self = NULL;
    if (out->numel == 0) return ETCH_OK;
    if (etch__cuda_matmul_begin(&p, call, out) != ETCH_OK) return etch__tls.status;
    return etch__cuda_multiply_with(&p, call->in[addmm], call->in[addmm + 1], &f, out);
}
