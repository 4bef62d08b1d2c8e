/* Batching rules of what works element by element, and of reductions. */
#include "core/transforms/rules.h"

/* ---- pointwise, in place too ---- */

/* Products and quotients of half types take a wider second operand of no dimensions as f32 (see
 * etch/tensor.h). Below it has one and would make the result wide, which is then the same number
 * before its rounding. */
static bool has_wide_factor(const batched_call *b) {
    static const bool takes[OP_COUNT] = {[OP_MUL_TENSOR] = true,
                                         [OP_MUL_TENSOR_] = true,
                                         [OP_DIV_TENSOR] = true,
                                         [OP_DIV_TENSOR_] = true,
                                         [OP_FLOOR_DIVIDE_TENSOR] = true};
    if (b->call->op >= OP_COUNT || !takes[b->call->op]) return false;
    bool half = b->compute == ETCH_F16 || b->compute == ETCH_BF16;
    etch_dtype factor = (etch_dtype)b->call->in[1]->dtype;
    return half && b->batched[1] && !ndim_of_sample(b, 1) &&
           (factor == ETCH_F32 || factor == ETCH_F64);
}

/* The first operand has the half type, or numbers that it rounds. */
static etch_tensor *by_wide_factor(const batched_call *b, etch_tensor **in) {
    bool in_place = etch__ops[b->call->op].kind == KIND_INPLACE;
    in[1] = etch_to(in[1], ETCH_F32);
    if (!in_place && in[0]) in[0] = etch_to(in[0], b->compute);
    etch_tensor *t = call_again(b, in, b->call->at, b->call->nat);
    return t && !in_place ? etch_to(t, b->compute) : t;
}

/* A sample of no dimensions has less say in the result's dtype than one that has some; below it has
 * one, of the batch. So it is converted first to what the operator would convert it to. */
static bool keep_dtypes(const batched_call *b, etch_tensor **in) {
    op_call below = *b->call;
    tensor_meta meta;
    etch_dtype compute = b->compute;
    below.in = in;
    if (etch__infer(&below, &meta, &compute) != ETCH_OK) return false;
    if (meta.dtype == b->one->dtype && compute == b->compute) return true;
    for (int i = 0; i < below.nin; i++) {
        bool weak = b->batched[i] && !ndim_of_sample(b, i) && in[i]->dtype != ETCH_BOOL;
        if (weak && in[i]->dtype != b->compute && !(in[i] = etch_to(in[i], b->compute)))
            return false;
    }
    return true;
}

BATCHING(pointwise) {
    etch_tensor *in[CURSOR_MAX_IN];
    for (int i = 0; i < b->call->nin; i++)
        if (!(in[i] = etch__padded(b, i, b->one->ndim))) return NULL;
    if (has_wide_factor(b)) return by_wide_factor(b, in);
    if (!keep_dtypes(b, in)) return NULL;
    return call_again(b, in, b->call->at, b->call->nat);
}

/* Nothing of the call is about the dimensions in front. */
BATCHING(unchanged) { return call_again(b, b->in, b->call->at, b->call->nat); }

/* ---- along one dimension ---- */

BATCHING(along_dim) {
    int64_t at[OP_MAX_ATTRS];
    memcpy(at, b->call->at, b->call->nat * sizeof *at);
    at[0] = behind_batch(at[0], ndim_of_sample(b, 0));
    etch_tensor *x = etch__with_dims(b, 0);
    return etch__as_result(b, call_again(b, &x, at, b->call->nat));
}

/* ---- reductions ---- */

/* The attributes of one over all dimensions in `mask` of a sample. */
static int put_dims(int64_t *at, uint32_t mask, bool keepdim) {
    int n = 1;
    for (int d = 0; d < ETCH_MAX_DIMS; d++)
        if (mask >> d & 1) at[n++] = d + 1;
    at[0] = n - 1;
    at[n++] = keepdim;
    return n;
}

/* `op` over these dimensions; the call's last attribute, a dtype, goes with it. */
static etch_tensor *over_dims(const batched_call *b, op_id op, uint32_t mask, bool keepdim,
                              bool has_dtype) {
    int64_t at[OP_MAX_ATTRS];
    etch_tensor *x = etch__with_dims(b, 0);
    int n = put_dims(at, mask ? mask : 1, keepdim);
    if (has_dtype) at[n++] = b->call->at[b->call->nat - 1];
    return call_as(b, op, &x, at, n);
}

/* `op` over one dimension of all samples, or of each one laid flat. */
static etch_tensor *over_one_dim(const batched_call *b, op_id op, bool whole, bool has_dtype) {
    const int64_t *given = b->call->at;
    int ndim = ndim_of_sample(b, 0), n = 2;
    int64_t at[3] = {whole ? 1 : behind_batch(given[0], ndim), !whole && given[1]};
    etch_tensor *x = etch__with_dims(b, 0);
    if (whole && x) x = etch_reshape(x, ETCH_SHAPE(b->size, b->call->in[0]->numel));
    if (has_dtype) at[n++] = given[b->call->nat - 1];
    return call_as(b, op, &x, at, n);
}

BATCHING(reduction) {
    uint32_t mask;
    bool keepdim;
    op_id op = b->call->op;
    etch__reduced_axes(op, ndim_of_sample(b, 0), b->call->at, &mask, &keepdim);
    etch_tensor *y = NULL;
    switch (op) {
    case OP_SUM:
    case OP_SUM_DIM: y = over_dims(b, OP_SUM_DIM, mask, keepdim, true); break;
    case OP_MEAN:
    case OP_MEAN_DIM: y = over_dims(b, OP_MEAN_DIM, mask, keepdim, true); break;
    case OP_MAX:
    case OP_AMAX: y = over_dims(b, OP_AMAX, mask, keepdim, false); break;
    case OP_MIN:
    case OP_AMIN: y = over_dims(b, OP_AMIN, mask, keepdim, false); break;
    case OP_PROD: y = over_one_dim(b, OP_PROD_DIM, true, true); break;
    case OP_PROD_DIM: y = over_one_dim(b, OP_PROD_DIM, false, true); break;
    case OP_ARGMAX:
    case OP_ARGMIN: y = over_one_dim(b, op, b->call->at[0] == ETCH_NO_INT, false); break;
    default: return etch__batching_each_sample(b);
    }
    return etch__as_result(b, y);
}

/* ---- by a loop ---- */

static bool select_sample(const batched_call *b, int64_t k, etch_tensor **in) {
    for (int i = 0; i < b->call->nin; i++) {
        in[i] = b->batched[i] ? etch_select(b->in[i], 0, k) : b->in[i];
        if (!in[i]) return false;
    }
    return true;
}

static etch_tensor *of_no_samples(const batched_call *b) {
    etch_tensor *t = NULL;
    ETCH_ON(b->one->device) t = etch_zeros((etch_dtype)b->one->dtype, BATCH_AND(b, b->one));
    return t;
}

/* in: room for the operands, then for the results. */
static etch_tensor *call_each(const batched_call *b, etch_tensor **in) {
    etch_tensor **out = in + b->call->nin;
    for (int64_t k = 0; k < b->size; k++)
        if (!select_sample(b, k, in) || !(out[k] = call_again(b, in, b->call->at, b->call->nat)))
            return NULL;
    if (etch__ops[b->call->op].kind == KIND_INPLACE) return b->in[0];
    return b->size <= UINT16_MAX ? etch_stack(out, (int)b->size, 0) : NULL;
}

BATCHING(each_sample) {
    const char *name = etch__ops[b->call->op].name;
    if (etch__log_on(LOG_PERF_HINTS))
        etch__log(LOG_PERF_HINTS,
                  "etch_vmap: %s (%s) has no batching rule: called for each of %ld "
                  "samples",
                  name, etch__site_line(b->call->site), (long)b->size);
    if (!b->size) return of_no_samples(b);
    if (b->size > UINT16_MAX)
        return etch__null_at(
            b->call->site, ETCH_ERR_UNSUPPORTED,
            "%s: has no batching rule, and is called for at most %d samples one by "
            "one, got %ld",
            name, UINT16_MAX, (long)b->size);
    etch_tensor **in = etch__calloc((size_t)b->call->nin + (size_t)b->size, sizeof *in);
    etch_tensor *y = in ? call_each(b, in) : NULL;
    etch__free(in);
    return y;
}
