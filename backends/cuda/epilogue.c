/* Relaxed products with what follows them: a bias row, then relu or gelu (jit/fuse/pass_epilogue.c
 * finds them). cuBLASLt does it before it stores the result, where it can; else the product is
 * computed as ever, in the compute type, and a kernel of our own does the rest. */
#include "backends/cuda/matmul.h"
#include "backends/cuda/text.h"
#include "jit/ir/ir.h"

static const char after_text[] = {
#include "embedded/epilogue.cu.inc"
    0};

typedef struct fused {
    const op_call *call;
    uint8_t epilogue;
    const etch_tensor *a, *b, *bias; /* bias: NULL for none */
    double alpha, beta;
    etch_tensor *out;
} fused;

static double real(etch_scalar s) { return s.kind == ETCH_SCALAR_REAL ? s.d : (double)s.i; }

static fused read_call(const op_call *call, uint8_t epilogue, etch_tensor *out) {
    bool addmm = call->op == OP_ADDMM;
    fused f = {call, epilogue, call->in[addmm], call->in[addmm + 1], NULL, 1, 1, out};
    if (epilogue & MATMUL_BIAS) f.bias = call->in[addmm ? 0 : 2];
    if (addmm) f.beta = real(call->sc[0]), f.alpha = real(call->sc[1]);
    if (f.beta == 0) f.bias = NULL;
    return f;
}

static int64_t bias_stride(const etch_tensor *t) {
    return t->ndim && t->size[t->ndim - 1] > 1 ? t->stride[t->ndim - 1] : 0;
}

/* ---- by a kernel of our own ---- */

static etch_status after(const matmul *p, const fused *f, const void *c) {
    char args[96] = {0};
    size_t size = etch_dtype_size(p->type), at = 0;
    long long words[6] = {(long long)(uintptr_t)c,
                          (long long)(f->bias ? (uintptr_t)etch__ptr(f->bias) : 0),
                          (long long)(uintptr_t)etch__ptr(f->out),
                          p->m,
                          p->n,
                          f->bias ? bias_stride(f->bias) : 0};
    int flags[2] = {(f->epilogue & MATMUL_RELU) != 0, (f->epilogue & MATMUL_GELU) != 0};
    uint64_t cells[2] = {etch__scalar_cell(etch_scalar_real(f->alpha), p->type),
                         etch__scalar_cell(etch_scalar_real(f->beta), p->type)};
    memcpy(args, words, sizeof words), at += sizeof words;
    memcpy(args + at, flags, sizeof flags), at += sizeof flags;
    memcpy(args + at, &cells[0], size), at += size;
    memcpy(args + at, &cells[1], size);
    return etch__cuda_matmul_launch(p, after_text, "etch_after", false, (p->m * p->n + 127) / 128,
                                    128, args);
}

static etch_status apart(matmul *p, const fused *f) {
    cuda_block *wide = NULL;
    p->epilogue = 0, p->bias = NULL;
    p->wide = p->type != p->dtype;
    if (p->wide) {
        wide = etch__cuda_allocate(p->stream, (size_t)f->out->numel * etch_dtype_size(p->type));
        if (!wide) return etch__tls.status;
        p->c = etch__cuda_address(wide);
    }
    etch_status s = etch__cuda_multiply(p, f->a, f->b);
    if (s == ETCH_OK) s = after(p, f, p->c);
    etch__cuda_free(wide);
    return s;
}

/* ---- by the library ---- */

static bool library_can(const matmul *p, const fused *f) {
    if (etch__cuda_matmul_small(p) || p->dtype == ETCH_F64 || p->batch > 1) return false;
    if (f->alpha != 1 || (f->bias && f->beta != 1)) return false;
    return !f->bias ||
           (p->n > 1 && bias_stride(f->bias) == 1 && (uintptr_t)etch__ptr(f->bias) % 16 == 0);
}

etch_status etch__cuda_matmul(const op_call *call, uint8_t epilogue, etch_tensor *out) {
    matmul p;
    saved_error before;
    fused f = read_call(call, epilogue, out);
    if (out->numel == 0) return ETCH_OK;
    if (etch__cuda_matmul_begin(&p, call, out) != ETCH_OK) return etch__tls.status;
    if (!library_can(&p, &f)) return apart(&p, &f);
    etch__error_save(&before);
    p.epilogue = (uint8_t)(f.bias ? epilogue : epilogue & ~MATMUL_BIAS);
    p.bias = f.bias ? etch__ptr(f.bias) : NULL;
    etch_status s = etch__cuda_multiply(&p, f.a, f.b);
    if (s != ETCH_ERR_UNSUPPORTED) return s;
    etch__error_restore(&before);
    return apart(&p, &f);
}
