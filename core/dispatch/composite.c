/* The table of composite operators, and those of them that concern shapes, normalisations and
 * products: each is written as ordinary calls of other operators. */
#include "core/dispatch/composite.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"
#include "core/ops/rules.h"

static const op_composite composites[OP_COUNT] = {
#define OP(...)
#define COMPOSITE_OP(id, name, schema, cfn, kind, drule, srule, impl, ...)                         \
    [OP_##id] = etch__composite_##impl,
#include "operators.def"
    /* Where the index is a mask, which has no kernel. */
    [OP_INDEX_PUT] = etch__put_by_mask,
    [OP_INDEX_PUT_] = etch__put_by_mask,
};

void etch__start_composites(void) { etch__register_composites(composites); }

/* ---- reshape and contiguous ---- */

etch_tensor *etch__composite_reshape(const op_call *call) {
    etch_tensor *t = call->in[0];
    etch_shape size = {.n = (int32_t)call->at[0]};
    int64_t stride[ETCH_MAX_DIMS];
    if (size.n > ETCH_MAX_DIMS)
        return etch__null_at(call->site, ETCH_ERR_SHAPE, "reshape: expected at most %d dimensions",
                             ETCH_MAX_DIMS);
    if (!etch__infer_size(call->site, "reshape", t->numel, size.n, call->at + 1, size.v))
        return NULL;
    if (!etch__view_strides(t->ndim, t->size, t->stride, size.n, size.v, stride)) t = etch_clone(t);
    return t ? etch_view(t, size) : NULL;
}

etch_tensor *etch__composite_contiguous(const op_call *call) {
    etch_tensor *t = call->in[0];
    return t->contiguous ? t : etch_clone(t);
}

/* ---- matmul ---- */

/* Broadcast batch sizes of a and b (all but the last two dimensions); false sets the error. */
static bool batch_sizes(const op_call *call, const etch_tensor *a, const etch_tensor *b,
                        etch_shape *batch) {
    int na = a->ndim - 2, nb = b->ndim - 2;
    batch->n = na > nb ? na : nb;
    for (int i = 0; i < batch->n; i++) {
        int ia = na - batch->n + i, ib = nb - batch->n + i;
        int64_t sa = ia < 0 ? 1 : a->size[ia], sb = ib < 0 ? 1 : b->size[ib];
        if (sa != sb && sa != 1 && sb != 1)
            return etch__false_at(
                call->site, ETCH_ERR_SHAPE,
                "matmul: batch dimension %d: expected equal sizes or 1, got %lld and %lld", i,
                (long long)sa, (long long)sb);
        batch->v[i] = sa == 1 ? sb : sa;
    }
    return true;
}

/* t expanded to the batch sizes and folded to three dimensions. */
static etch_tensor *folded(etch_tensor *t, const etch_shape *batch) {
    etch_shape wide = *batch, flat = {3, {1, t->size[t->ndim - 2], t->size[t->ndim - 1]}};
    for (int i = 0; i < batch->n; i++) flat.v[0] *= batch->v[i];
    wide.v[wide.n++] = flat.v[1];
    wide.v[wide.n++] = flat.v[2];
    etch_tensor *expanded = etch_expand(t, wide);
    return expanded ? etch_reshape(expanded, flat) : NULL;
}

static etch_tensor *batched(const op_call *call, etch_tensor *a, etch_tensor *b) {
    etch_shape batch;
    if (!batch_sizes(call, a, b, &batch)) return NULL;
    int64_t m = a->size[a->ndim - 2], n = b->size[b->ndim - 1];
    etch_tensor *fa = folded(a, &batch);
    etch_tensor *fb = fa ? folded(b, &batch) : NULL;
    etch_tensor *product = fb ? etch_bmm(fa, fb) : NULL;
    if (!product) return NULL;
    etch_shape size = batch;
    size.v[size.n++] = m, size.v[size.n++] = n;
    return etch_view(product, size);
}

/* A batch of matrices by one matrix, and a bias or NULL: one product of all their rows, whose
 * derivative for the matrix is one product, too, and no sum over the batch. */
static etch_tensor *by_rows(etch_tensor *a, etch_tensor *b, etch_tensor *bias) {
    etch_shape size = etch_sizes(a);
    int64_t rows = 1;
    for (int i = 0; i < a->ndim - 1; i++) rows *= a->size[i];
    etch_tensor *flat = etch_reshape(a, ETCH_SHAPE(rows, a->size[a->ndim - 1]));
    etch_tensor *product = flat ? bias ? etch_addmm(bias, flat, b) : etch_mm(flat, b) : NULL;
    size.v[size.n - 1] = b->size[1];
    return product ? etch_view(product, size) : NULL;
}

/* false with the error set, in terms of the operands as they came. */
static bool inner_sizes_fit(const op_call *call, const etch_tensor *a, const etch_tensor *b) {
    int64_t wanted = a->size[a->ndim - 1], got = b->size[b->ndim == 1 ? 0 : b->ndim - 2];
    if (wanted == got) return true;
    return etch__infer_fail(
        call, ETCH_ERR_SHAPE, "expected other with %lld %s, got %lld: self %s, other %s",
        (long long)wanted, b->ndim == 1 ? "elements" : "rows", (long long)got,
        etch__shape_text(a->ndim, a->size).s, etch__shape_text(b->ndim, b->size).s);
}

/* A vector on either side becomes a matrix, whose dimension of size 1 goes again at the end. */
etch_tensor *etch__composite_matmul(const op_call *call) {
    etch_tensor *a = call->in[0], *b = call->in[1];
    if (a == ETCH_NONE || b == ETCH_NONE) return etch_mm(a, b); /* which says what is wrong */
    if (a->ndim == 0 || b->ndim == 0)
        return etch__null_at(call->site, ETCH_ERR_SHAPE,
                             "matmul: expected tensors with at least 1 dimension, got %d and %d",
                             a->ndim, b->ndim);
    if (!inner_sizes_fit(call, a, b)) return NULL;
    if (a->ndim == 1 && b->ndim == 1) return etch_dot(a, b);
    if (a->ndim == 2 && b->ndim == 1) return etch_mv(a, b);
    if (a->ndim == 2 && b->ndim == 2) return etch_mm(a, b);
    bool row = a->ndim == 1, column = b->ndim == 1;
    if (row) a = etch_unsqueeze(a, 0);
    if (column) b = etch_unsqueeze(b, 1);
    if (!a || !b) return NULL;
    etch_tensor *c = a->ndim == 2 && b->ndim == 2 ? etch_mm(a, b)
                     : b->ndim == 2               ? by_rows(a, b, NULL)
                                                  : batched(call, a, b);
    if (c && row) c = etch_squeeze_dim(c, -2);
    if (c && column) c = etch_squeeze_dim(c, -1);
    return c;
}

/* ---- linear ---- */

static bool linear_fits(const op_call *call) {
    const etch_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    shape_text xs = etch__shape_text(x->ndim, x->size), ws = etch__shape_text(w->ndim, w->size);
    const char *wrong = NULL;
    if (w->ndim < 1 || w->ndim > 2) wrong = "weight with 1 or 2 dimensions";
    else if (!x->ndim || x->size[x->ndim - 1] != w->size[w->ndim - 1])
        wrong = "input whose last dimension is that of weight";
    else if (bias != ETCH_NONE && bias->ndim &&
             (w->ndim == 1 || bias->ndim > 1 || bias->size[0] != w->size[0]))
        wrong = "bias with an element for each row of weight";
    if (!wrong) return true;
    return etch__false_at(call->site, ETCH_ERR_SHAPE,
                          "linear: expected %s: input %s, weight %s, bias %s", wrong, xs.s, ws.s,
                          bias == ETCH_NONE ? "none" : etch__shape_text(bias->ndim, bias->size).s);
}

etch_tensor *etch__composite_linear(const op_call *call) {
    etch_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    if (!linear_fits(call)) return NULL;
    etch_tensor *wt = etch_t(w);
    if (!wt) return NULL;
    if (x->ndim == 2 && w->ndim == 2)
        return bias == ETCH_NONE ? etch_mm(x, wt) : etch_addmm(bias, x, wt);
    if (x->ndim > 2 && w->ndim == 2) return by_rows(x, wt, bias == ETCH_NONE ? NULL : bias);
    etch_tensor *y = etch_matmul(x, wt);
    return y && bias != ETCH_NONE ? etch_add(y, bias) : y;
}

/* The bias is added to the rounded product. */
etch_tensor *etch__composite_linear_q(const op_call *call) {
    etch_tensor *x = call->in[0], *scales = call->in[2], *bias = call->in[3];
    if (bias == ETCH_NONE) return etch_linear_q_raw(x, call->in[1], scales);
    if (bias->dtype != x->dtype)
        return etch__null_at(call->site, ETCH_ERR_DTYPE,
                             "linear_q: expected a bias of %s, as the input, got %s",
                             etch_dtype_name(x->dtype), etch_dtype_name(bias->dtype));
    if (bias->ndim != 1 || scales->ndim != 2 || bias->size[0] != scales->size[1])
        return etch__null_at(call->site, ETCH_ERR_SHAPE,
                             "linear_q: expected a bias with a number for each row of the weight: "
                             "scales %s, bias %s",
                             etch__shape_text(scales->ndim, scales->size).s,
                             etch__shape_text(bias->ndim, bias->size).s);
    etch_tensor *y = etch_linear_q_raw(x, call->in[1], scales);
    return y ? etch_add(y, bias) : NULL;
}

/* ---- softmax and layer norm ---- */

/* The operand in the dtype that is asked for, attribute 1 (-1: as it is). */
static etch_tensor *softmax_operand(const op_call *call) {
    if (call->at[1] == -1 || call->at[1] == call->in[0]->dtype) return call->in[0];
    return etch_to(call->in[0], call->at[1]);
}

etch_tensor *etch__composite_softmax(const op_call *call) {
    etch_tensor *x = softmax_operand(call);
    return x ? etch_softmax_raw(x, call->at[0], false) : NULL;
}

etch_tensor *etch__composite_log_softmax(const op_call *call) {
    etch_tensor *x = softmax_operand(call);
    return x ? etch_log_softmax_raw(x, call->at[0], false) : NULL;
}

etch_tensor *etch__composite_layer_norm(const op_call *call) {
    etch_shape size = {.n = (int32_t)call->at[0]};
    for (int i = 0; i < size.n && i < ETCH_MAX_DIMS; i++) size.v[i] = call->at[1 + i];
    return etch_native_layer_norm(call->in[0], size, call->in[1], call->in[2], call->sc[0]);
}

/* ---- conv2d ---- */

/* An input of three dimensions is a batch of one. */
etch_tensor *etch__composite_conv2d(const op_call *call) {
    etch_tensor *x = call->in[0];
    etch_shape list[3];
    const int64_t *at = call->at;
    for (int k = 0; k < 3; k++) {
        list[k].n = (int32_t)*at++;
        for (int i = 0; i < list[k].n && i < ETCH_MAX_DIMS; i++) list[k].v[i] = *at++;
    }
    bool single = x->ndim == 3;
    if (single && !(x = etch_unsqueeze(x, 0))) return NULL;
    etch_tensor *y = etch_convolution(x, call->in[1], call->in[2], list[0], list[1], list[2], *at);
    return y && single ? etch_squeeze_dim(y, 0) : y;
}
