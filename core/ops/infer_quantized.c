/* Weights of few bits: dtypes and sizes of the operators that make, unpack and multiply them. */
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

/* ---- dtypes ---- */

static bool is_small_float(etch_dtype d) { return d == ETCH_F32 || etch__is_half(d); }

static bool want_weight(const op_call *call) {
    etch_dtype d = call->in[0]->dtype;
    if (!is_small_float(d))
        FAIL(ETCH_ERR_DTYPE, "expected a weight of f32, bf16 or f16, got %s", etch_dtype_name(d));
    return true;
}

static bool want_bits(const op_call *call, int64_t bits) {
    if (bits != 8 && bits != 4)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected 8 or 4 bits, got %lld", (long long)bits);
    return true;
}

static bool want_scales(const op_call *call, const etch_tensor *scales) {
    if (scales->dtype != ETCH_F32 && scales->dtype != ETCH_BF16)
        FAIL(ETCH_ERR_DTYPE, "expected scales of f32 or bf16, as etch_quantize gives them, got %s",
             etch_dtype_name(scales->dtype));
    return true;
}

static bool want_packed(const op_call *call, const etch_tensor *q) {
    if (q->dtype != ETCH_I8 && q->dtype != ETCH_U8)
        FAIL(ETCH_ERR_DTYPE,
             "expected a weight of i8 (8 bits) or u8 (4 bits), as etch_quantize gives it, got %s",
             etch_dtype_name(q->dtype));
    return true;
}

bool etch__quantize_scales_dtypes(const op_call *call, call_dtypes *d) {
    d->compute = d->result = ETCH_F32;
    return want_weight(call) && want_bits(call, call->at[0]);
}

bool etch__quantize_weight_dtypes(const op_call *call, call_dtypes *d) {
    d->compute = ETCH_F32, d->result = call->at[0] == 8 ? ETCH_I8 : ETCH_U8;
    return want_weight(call) && want_bits(call, call->at[0]) && want_scales(call, call->in[1]);
}

bool etch__dequantize_dtypes(const op_call *call, call_dtypes *d) {
    d->compute = d->result = ETCH_F32;
    return want_packed(call, call->in[0]) && want_scales(call, call->in[1]);
}

bool etch__linear_q_dtypes(const op_call *call, call_dtypes *d) {
    d->compute = d->result = call->in[0]->dtype;
    if (!is_small_float(d->result) && d->result != ETCH_F64)
        FAIL(ETCH_ERR_DTYPE, "expected an input of floating point, got %s",
             etch_dtype_name(d->result));
    return want_packed(call, call->in[1]) && want_scales(call, call->in[2]);
}

/* ---- sizes ---- */

static bool want_matrix(const op_call *call, const etch_tensor *w) {
    if (w->ndim != 2) FAIL(ETCH_ERR_SHAPE, "expected a weight [out, in], got %s", TEXT(w));
    return true;
}

bool etch__quantize_scales_sizes(const op_call *call, tensor_meta *out) {
    const etch_tensor *w = call->in[0];
    int64_t group = call->at[1];
    if (!want_matrix(call, w)) return false;
    if (group < 0 || group % 8 || (group && w->size[1] % group))
        FAIL(ETCH_ERR_INVALID_ARGUMENT,
             "expected a group that is a multiple of 8 and divides the %lld columns, or 0 for one "
             "scale a row, got %lld",
             (long long)w->size[1], (long long)group);
    out->ndim = 2, out->size[0] = group && w->size[1] ? w->size[1] / group : 1;
    out->size[1] = w->size[0];
    return etch__row_major_result(call, out);
}

/* Whether there are scales for a weight of that many columns. */
static bool fits_groups(const op_call *call, const etch_tensor *scales, int64_t columns) {
    int64_t groups = scales->ndim == 2 ? scales->size[0] : 0;
    if (groups == 1 ||
        (groups > 1 && columns && columns % groups == 0 && columns / groups % 8 == 0))
        return true;
    FAIL(ETCH_ERR_SHAPE,
         "expected scales [groups, out] with groups of a multiple of 8 among %lld columns, got %s",
         (long long)columns, TEXT(scales));
}

static int64_t up(int64_t n, int64_t by) { return n / by + (n % by != 0); }

static void packed_sizes(etch_dtype dtype, int64_t rows, int64_t columns, int64_t size[4]) {
    size[0] = up(rows, 16), size[1] = up(columns, dtype == ETCH_I8 ? 4 : 8);
    size[2] = 16, size[3] = 4;
}

/* Whether q is a weight of that many columns with these scales. */
static bool want_quantized(const op_call *call, const etch_tensor *q, const etch_tensor *scales,
                           int64_t columns) {
    int64_t size[4];
    if (!fits_groups(call, scales, columns)) return false;
    packed_sizes(q->dtype, scales->size[1], columns, size);
    if (!etch__same_dims(q->ndim, q->size, 4, size))
        FAIL(ETCH_ERR_SHAPE,
             "expected a packed weight %s for %lld rows of %lld columns in %s, as etch_quantize "
             "gives it, got %s",
             etch__shape_text(4, size).s, (long long)scales->size[1], (long long)columns,
             etch_dtype_name(q->dtype), TEXT(q));
    return true;
}

bool etch__quantize_weight_sizes(const op_call *call, tensor_meta *out) {
    const etch_tensor *w = call->in[0], *scales = call->in[1];
    if (!want_matrix(call, w) || !fits_groups(call, scales, w->size[1])) return false;
    if (scales->size[1] != w->size[0])
        FAIL(ETCH_ERR_SHAPE, "expected scales of %lld rows, got %s", (long long)w->size[0],
             TEXT(scales));
    out->ndim = 4;
    packed_sizes(call->at[0] == 8 ? ETCH_I8 : ETCH_U8, w->size[0], w->size[1], out->size);
    return etch__row_major_result(call, out);
}

bool etch__dequantize_sizes(const op_call *call, tensor_meta *out) {
    if (call->at[0] < 0)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected columns of at least 0, got %lld",
             (long long)call->at[0]);
    if (!want_quantized(call, call->in[0], call->in[1], call->at[0])) return false;
    out->ndim = 2, out->size[0] = call->in[1]->size[1], out->size[1] = call->at[0];
    return etch__row_major_result(call, out);
}

bool etch__linear_q_sizes(const op_call *call, tensor_meta *out) {
    const etch_tensor *x = call->in[0];
    if (x->ndim < 1) FAIL(ETCH_ERR_SHAPE, "expected an input [..., in], got %s", TEXT(x));
    int64_t columns = x->size[x->ndim - 1];
    if (!want_quantized(call, call->in[1], call->in[2], columns)) return false;
    out->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) out->size[d] = x->size[d];
    out->size[x->ndim - 1] = call->in[2]->size[1];
    return etch__row_major_result(call, out);
}
