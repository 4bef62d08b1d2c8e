/* mm, addmm, mv, dot, bmm on a device.
 *
 * Each is a batch of M x K times K x N products in the compute type. With M, N and K all at most
 * 64, and for integers always, a thread computes one element by the chain acc = +0, k ascending,
 * acc = fma(a, b, acc). f32 ones of middle size are gemm.c's, by a rule on the sizes, and halves
 * that fill the device broad.c's, by one on sizes and strides. The rest are cuBLASLt's, with one
 * algorithm for each shape and layout, chosen once by its own heuristic, so eager and compiled
 * calls use the same. Half types accumulate in f32 and are rounded once. An operand that the
 * library cannot read in place is copied first, by a rule on the operator's own arguments. */
#include "backends/cuda/matmul.h"
#include "core/base/start.h"

#include "backends/cuda/broad.h"
#include "backends/cuda/gemm.h"
#include "backends/cuda/text.h"
#include "core/base/text.h"
#include "jit/ir/target.h"

/* ---- operands ---- */

static void shape_operand(matmul_operand *o, const etch_tensor *t, bool left) {
    int d = t->ndim;
    memset(o, 0, sizeof *o);
    o->t = t;
    o->batch = d == 3 ? t->stride[0] : 0;
    if (d == 1) {
        o->rows = left ? 1 : t->size[0], o->cols = left ? t->size[0] : 1;
        *(left ? &o->col : &o->row) = t->stride[0];
        return;
    }
    o->rows = t->size[d - 2], o->cols = t->size[d - 1];
    o->row = t->stride[d - 2], o->col = t->stride[d - 1];
}

/* What the library reads as it is; strides of axes with one element do not matter. */
static bool library_layout(matmul_operand *o, int64_t batches) {
    int64_t row = o->rows > 1 ? o->row : (o->cols > 1 ? o->cols : 1);
    int64_t col = o->cols > 1 ? o->col : 1;
    bool rows = col == 1 && row >= o->cols;
    if (!rows) {
        col = o->cols > 1 ? o->col : o->rows;
        row = o->rows > 1 ? o->row : 1;
        if (row != 1 || col < o->rows) return false;
    }
    o->transposed = !rows, o->ld = rows ? row : col;
    size_t start = (size_t)(o->t->offset * etch__item_size(o->t));
    return start % 16 == 0 && (batches == 1 || o->batch >= 0);
}

static etch_status copy_operand(matmul_operand *o, bool left) {
    etch_tensor *from = (etch_tensor *)o->t;
    etch_tensor t, *to = &t;
    if (!etch__place_new(&t, from->dtype, from->ndim, from->size, from->device))
        return etch__tls.status;
    op_call clone = {.op = OP_CLONE, .nin = 1, .in = &from};
    etch_status status = etch__cuda_kernel(&clone, &to);
    etch__cuda_counts(etch__device_index(t.device))->operand_copies++;
    shape_operand(o, &t, left);
    o->copy = t;
    o->t = &o->copy;
    return status;
}

static etch_status prepare_operand(matmul *p, matmul_operand *o, const etch_tensor *t, bool left,
                                   bool library) {
    shape_operand(o, t, left);
    etch_status status = ETCH_OK;
    if (library && !library_layout(o, p->batch)) {
        status = copy_operand(o, left);
        library_layout(o, p->batch);
    }
    if (status == ETCH_OK) o->address = etch__ptr(o->t);
    return status;
}

/* ---- code of our own ---- */

/* ETCH_T is the storage type, ETCH_C the compute type; index_t counts the elements of the result,
 * and is unsigned where that is enough: a division of 64-bit numbers is a hundred instructions, for
 * which NVRTC takes as long as for the rest. */
#include "embedded/chain.cu.inc"
#include "embedded/small.cu.inc"
#include "embedded/epilogue.cu.inc"

/* The body behind the definitions that make it one of this dtype. */
char *etch__cuda_matmul_text(const void *ctx) {
    const matmul_text *t = ctx;
    etch_dtype d = t->dtype, type = etch__compute_type(d);
    bool half = type != d, real = etch__is_float(d);
    growing_text text = {0};
    const char *chain = d == ETCH_BOOL ? "((acc) | ((x) & (y)))"
                        : real         ? (type == ETCH_F64 ? "fma(x, y, acc)" : "fmaf(x, y, acc)")
                                       : "(ETCH_C)((unsigned long long)(acc) + "
                                         "(unsigned long long)(x) * (unsigned long long)(y))";
    etch__text_put(
        &text,
        "%stypedef %s ETCH_T;\ntypedef %s ETCH_C;\ntypedef %s index_t;\n#define LOAD(v) %s\n"
        "#define STORE(c, i, v) (%s)\n#define CHAIN(x, y, acc) %s\n#define K_MOST %d\n%s",
        half ? etch__cuda_half_text : "", etch__cuda_type_names[d], etch__cuda_type_names[type],
        t->far ? "unsigned long long" : "unsigned",
        half ? (d == ETCH_BF16 ? "load_half(v, 1)" : "load_half(v, 0)") : "(v)",
        half && !t->wide ? (d == ETCH_BF16 ? "((ETCH_T *)(c))[i] = store_half(v, 1)"
                                           : "((ETCH_T *)(c))[i] = store_half(v, 0)")
        : d == ETCH_BOOL ? "((ETCH_C *)(c))[i] = (v) != 0"
                         : "((ETCH_C *)(c))[i] = (v)",
        chain, t->k_most, t->body);
    return etch__text_end(&text);
}

/* Compiles and launches code of our own, `body` behind the definitions of the dtype. */
static etch_status launch(const matmul *p, const char *body, const char *symbol, bool wide,
                          int64_t blocks, unsigned threads, void *parameter) {
    matmul_text ctx = {p->dtype, wide, blocks > INT32_MAX / threads, MATMUL_SMALL, body};
    uint8_t key[64];
    int n = snprintf((char *)key, sizeof key, "%s 5 %d %d %d", symbol, p->dtype, wide, ctx.far);
    return etch__cuda_run_code(p->stream, key, n, symbol, etch__cuda_matmul_text, &ctx, blocks,
                               threads, 0, parameter);
}

static etch_status chain(const matmul *p) {
    struct {
        const void *a, *b;
        void *c;
        long long batch, m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col;
    } args = {p->a.address, p->b.address, p->c,     p->batch,   p->m,     p->n,    p->k,
              p->a.batch,   p->a.row,     p->a.col, p->b.batch, p->b.row, p->b.col};
    int64_t tiles = p->batch * ((p->m + 15) / 16) * ((p->n + 15) / 16);
    if (p->m > MATMUL_SMALL || p->n > MATMUL_SMALL || p->k > MATMUL_SMALL || tiles > INT32_MAX)
        return launch(p, chain_text, "etch_chain", p->wide, (p->batch * p->m * p->n + 127) / 128,
                      128, &args);
    return launch(p, small_text, "etch_small", p->wide, tiles, 256, &args);
}

/* ---- what follows a product ---- */

static etch_status epilogue(const matmul *p, const matmul_after *f, const etch_tensor *out) {
    const etch_tensor *self = etch__scalar_is(f->beta, 0) ? NULL : f->self;
    size_t size = etch_dtype_size(p->type), at = 0;
    char args[112] = {0};
    uint64_t cells[2] = {etch__scalar_cell(f->alpha, p->type), etch__scalar_cell(f->beta, p->type)};
    int d = self ? self->ndim : 0;
    long long words[7] = {
        (long long)(uintptr_t)p->c,
        (long long)(self ? (uintptr_t)etch__ptr(self) : 0),
        (long long)(uintptr_t)etch__ptr(out),
        p->m,
        p->n,
        d >= 2 && self->size[d - 2] > 1 ? self->stride[d - 2] : 0,
        d >= 1 && self->size[d - 1] > 1 ? self->stride[d - 1] : 0,
    };
    int flags[4] = {!etch__scalar_is(f->alpha, 1), !etch__scalar_is(f->beta, 1),
                    (f->epilogue & MATMUL_RELU) != 0, (f->epilogue & MATMUL_GELU) != 0};
    memcpy(args, words, at = sizeof words);
    memcpy(args + at, &cells[0], size), at += size;
    memcpy(args + at, &cells[1], size), at += size;
    at = (at + 3) & ~(size_t)3;
    memcpy(args + at, flags, sizeof flags);
    return launch(p, epilogue_text, "etch_epilogue", false, (p->m * p->n + 127) / 128, 128, args);
}

/* ---- the kernel ---- */

bool etch__cuda_matmul_small(const matmul *p) {
    return !etch__is_float(p->dtype) || p->k == 0 ||
           (p->m <= MATMUL_SMALL && p->n <= MATMUL_SMALL && p->k <= MATMUL_SMALL);
}

/* Halves, B dense along k, that fill the device (broad.c). */
static bool is_broad(const matmul *p, const etch_tensor *a, const etch_tensor *b) {
    if (!etch__is_half(p->dtype) || a->ndim != 2 || b->ndim != 2) return false;
    if (p->epilogue || p->timed || p->wide) return false;
    const matmul_sizes s = {p->m,         p->n,         p->k,         p->dtype,
                            a->stride[0], a->stride[1], b->stride[0], b->stride[1]};
    return etch__cuda_broad_fits(p->device, &s);
}

/* The rows of A, or the columns of B, where they can be copied in pieces of 16 bytes. */
static etch_status prepare_broad(matmul_operand *o, const etch_tensor *t, bool left) {
    etch_tensor lines = *t;
    if (!left) lines.stride[0] = t->stride[1], lines.stride[1] = t->stride[0];
    if (!left) lines.size[0] = t->size[1], lines.size[1] = t->size[0];
    shape_operand(o, &lines, true);
    etch_status status = (uintptr_t)etch__ptr(t) % 16 ? copy_operand(o, true) : ETCH_OK;
    if (status == ETCH_OK) o->address = etch__ptr(o->t);
    o->t = t;
    return status;
}

static etch_status run_broad(matmul *p, const etch_tensor *a, const etch_tensor *b) {
    etch_status s = prepare_broad(&p->a, a, true);
    if (s == ETCH_OK) s = prepare_broad(&p->b, b, false);
    const broad g = {p->dtype,       1,        p->m,     p->n,       p->k,      p->a.address,
                     {p->b.address}, p->a.row, p->a.col, {p->b.col}, {p->b.row}};
    if (s == ETCH_OK) s = etch__cuda_broad(p->stream, &g, p->c);
    return s;
}

/* What the library is not told more about than the product itself. */
static bool is_middle(const matmul *p) {
    const gemm sizes = {.batch = p->batch, .m = p->m, .n = p->n, .k = p->k};
    return p->dtype == ETCH_F32 && !p->epilogue && !p->timed && !STATE_PRECISION(etch__tls.state) &&
           etch__cuda_gemm_tile(p->device, &sizes) != GEMM_NEVER;
}

static etch_status middle(const matmul *p) {
    const gemm g = {p->batch,   p->m,     p->n,     p->k,       p->a.address, p->b.address, p->c,
                    p->a.batch, p->a.row, p->a.col, p->b.batch, p->b.row,     p->b.col};
    return etch__cuda_gemm(p->stream, &g);
}

etch_status etch__cuda_multiply(matmul *p, const etch_tensor *a, const etch_tensor *b) {
    bool small = etch__cuda_matmul_small(p), own = small || is_middle(p);
    bool fills = !own && is_broad(p, a, b);
    etch_status s = fills ? run_broad(p, a, b) : prepare_operand(p, &p->a, a, true, !own);
    if (s == ETCH_OK && !fills) s = prepare_operand(p, &p->b, b, false, !own);
    if (s == ETCH_OK && !fills) s = small ? chain(p) : own ? middle(p) : etch__cuda_lt(p);
    etch__storage_release(p->a.copy.storage);
    etch__storage_release(p->b.copy.storage);
    return s;
}

etch_status etch__cuda_multiply_and(matmul *p, const etch_tensor *a, const etch_tensor *b,
                                    const matmul_after *f, const etch_tensor *out) {
    cuda_block *wide = NULL;
    p->epilogue = 0, p->bias = NULL;
    p->wide = p->type != p->dtype;
    if (p->wide) {
        wide = etch__cuda_allocate(p->stream, (size_t)out->numel * etch_dtype_size(p->type));
        if (!wide) return etch__tls.status;
        p->c = etch__cuda_address(wide);
    }
    etch_status s = etch__cuda_multiply(p, a, b);
    if (s == ETCH_OK) s = epilogue(p, f, out);
    etch__cuda_free(wide);
    return s;
}

etch_status etch__cuda_matmul_begin(matmul *p, const op_call *call, const etch_tensor *out) {
    bool addmm = call->op == OP_ADDMM;
    const etch_tensor *a = call->in[addmm], *b = call->in[addmm + 1];
    *p = (matmul){.dtype = out->dtype, .timed = etch__tls.state & STATE_TUNED};
    if (!(p->stream = etch__cuda_stream(etch__device_index(out->device)))) return etch__tls.status;
    p->device = etch__cuda_stream_device(p->stream);
    p->type = etch__compute_type(p->dtype);
    p->batch = a->ndim == 3 ? a->size[0] : 1;
    p->m = a->ndim == 1 ? 1 : a->size[a->ndim - 2];
    p->k = a->size[a->ndim - 1];
    p->n = b->ndim == 1 ? 1 : b->size[b->ndim - 1];
    if (etch__cuda_use(p->stream, out->storage) != ETCH_OK) return etch__tls.status;
    for (int i = 0; i < call->nin; i++)
        if (etch__cuda_use(p->stream, call->in[i]->storage) != ETCH_OK) return etch__tls.status;
    p->c = etch__ptr(out);
    return ETCH_OK;
}

static etch_status multiply(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    bool addmm = call->op == OP_ADDMM;
    const etch_tensor *a = call->in[addmm], *b = call->in[addmm + 1];
    matmul p;
    if (out->numel == 0) return ETCH_OK;
    if (etch__cuda_matmul_begin(&p, call, out) != ETCH_OK) return etch__tls.status;
    if (!addmm) return etch__cuda_multiply(&p, a, b);
    const matmul_after f = {call->in[0], call->sc[1], call->sc[0], 0};
    return (is_middle(&p) ? etch__cuda_multiply_and : etch__cuda_multiply_with)(&p, a, b, &f, out);
}

void etch__start_cuda_products(void) {
    for (int op = 0; op < OP_COUNT; op++)
        if (etch__ops[op].kind == KIND_CONTRACTION) etch__cuda_register(op, multiply);
}
