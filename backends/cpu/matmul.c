/* mm, addmm, mv, dot, bmm: a product (product.h), and what addmm makes of it, tile by tile. The
 * half types are rounded once. */
#include "backends/cpu/product.h"
#include "backends/cpu/program.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"

/* ---- epilogue ---- */

typedef struct epilogue {
    const etch_tensor *self; /* addmm: added; else NULL */
    uint64_t alpha, beta;    /* cells of the compute type */
    bool scale, scale_self;  /* alpha, beta differ from 1 */
    char *out;
} epilogue;

/* n neighbours of row `row` from column `col` of self (broadcast) in the compute type: where they
 * lie, or in dst. */
static const void *load_self(const epilogue *e, const product *p, void *dst, void *raw, int64_t row,
                             int64_t col, int64_t n) {
    const etch_tensor *s = e->self;
    const strip_table *table = p->isa->strips;
    strip_fn widen = table->widen[p->dtype];
    int d = s->ndim, log2 = etch__size_log2(p->dtype);
    int64_t row_stride = d >= 2 && s->size[d - 2] > 1 ? s->stride[d - 2] : 0;
    int64_t col_stride = d >= 1 && s->size[d - 1] > 1 ? s->stride[d - 1] : 0;
    const char *from =
        (const char *)etch__ptr(s) + (row * row_stride + col * col_stride) * (1 << log2);
    void *to = widen ? raw : dst;
    if (!widen && col_stride == 1) return from;
    if (col_stride) table->gather[log2](to, from, col_stride, n);
    else table->fill[log2](to, from, n);
    if (widen) widen(dst, raw, NULL, NULL, n);
    return dst;
}

/* c = alpha * c, then self (times beta) + c. */
static void add_self(const epilogue *e, const product *p, void *c, int64_t row, int64_t col,
                     int64_t n) {
    const strip_table *table = p->isa->strips;
    double room[EAGER_STRIP], other[EAGER_STRIP];
    int log2 = etch__size_log2(p->type);
    if (e->scale) {
        table->fill[log2](other, &e->alpha, n);
        table->prim[PRIM_MUL][p->type](c, other, c, NULL, n);
    }
    if (!e->self) return;
    const void *self = load_self(e, p, room, other, row, col, n);
    if (e->scale_self) {
        table->fill[log2](other, &e->beta, n);
        table->prim[PRIM_MUL][p->type](room, other, self, NULL, n);
        self = room;
    }
    table->prim[PRIM_ADD][p->type](c, self, c, NULL, n);
}

/* A tile of the compute type lies in the output already; others are rounded into it. */
static void round_tile(const epilogue *e, const product *p, const product_tile *t) {
    int64_t first = (t->batch * p->m + t->row) * p->n + t->col;
    char *to = e->out + first * (1 << etch__size_log2(p->dtype));
    p->isa->strips->round_rows[p->dtype](to, p->n, (float *)(void *)t->c, t->ldc, t->m, t->n);
}

static void finish_tile(const void *ctx, const product *p, const product_tile *t) {
    const epilogue *e = ctx;
    int64_t size = 1 << etch__size_log2(p->dtype);
    if (!e->self && !e->scale) {
        round_tile(e, p, t);
        return;
    }
    for (int64_t r = 0; r < t->m; r++)
        for (int64_t i = 0; i < t->n; i += EAGER_STRIP) {
            int64_t n = t->n - i < EAGER_STRIP ? t->n - i : EAGER_STRIP;
            char *c = t->c + (r * t->ldc + i) * p->size;
            int64_t at = (t->batch * p->m + t->row + r) * p->n + t->col + i;
            add_self(e, p, c, t->row + r, t->col + i, n);
            if (p->type != p->dtype) etch__store_rounded(p->dtype, e->out + at * size, c, n);
        }
}

static void plan_epilogue(const op_call *call, epilogue *e, etch_dtype type) {
    e->self = NULL, e->scale = e->scale_self = false;
    if (call->op != OP_ADDMM) return;
    if (!etch__scalar_is(call->sc[0], 0))
        e->self = call->in[0]; /* beta = 0 does not even read self */
    e->scale_self = !etch__scalar_is(call->sc[0], 1), e->scale = !etch__scalar_is(call->sc[1], 1);
    e->beta = etch__scalar_cell(call->sc[0], type);
    e->alpha = etch__scalar_cell(call->sc[1], type);
}

/* ---- the kernel ---- */

/* Rows, columns and strides from the last axes of t; a vector is a column, or a row for the
 * left. */
static void take_operand(product_operand *o, const etch_tensor *t, bool left) {
    int d = t->ndim;
    o->data = etch__ptr(t);
    o->batch = d == 3 ? t->stride[0] : 0;
    o->storage = d == 2 ? t->storage : NULL;
    if (d >= 2) {
        o->rows = t->size[d - 2], o->cols = t->size[d - 1];
        o->row = t->stride[d - 2], o->col = t->stride[d - 1];
        return;
    }
    int64_t n = t->size[0], s = t->stride[0];
    o->rows = left ? 1 : n, o->cols = left ? n : 1;
    o->row = left ? n * s : s, o->col = left ? s : 1;
}

static etch_status multiply(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    int left = call->op == OP_ADDMM;
    const etch_tensor *a = call->in[left], *b = call->in[left + 1];
    product p;
    epilogue e;
    if (out->numel == 0) return ETCH_OK;
    etch__product_init(&p, a->dtype, a->ndim == 3 ? a->size[0] : 1,
                       a->ndim == 1 ? 1 : a->size[a->ndim - 2],
                       b->ndim == 1 ? 1 : b->size[b->ndim - 1], a->size[a->ndim - 1]);
    take_operand(&p.a, a, true);
    take_operand(&p.b, b, false);
    plan_epilogue(call, &e, p.type);
    e.out = etch__ptr(out);
    bool wide = out->dtype == p.type; /* a plan may ask for halves' products in the compute type */
    if (wide) p.c = e.out;
    if (!wide || e.self || e.scale) p.finish = finish_tile, p.ctx = &e;
    return etch__product_run(&p);
}

void etch__start_cpu_products(void) {
    for (int op = 0; op < OP_COUNT; op++)
        if (etch__ops[op].kind == KIND_CONTRACTION) etch__register_kernel(op, multiply);
}
