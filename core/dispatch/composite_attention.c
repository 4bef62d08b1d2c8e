/* Attention: one operator; with dropout, or wide ones, products and a softmax on other devices than
 * the CPU. */
#include "core/dispatch/attention.h"
#include "core/dispatch/composite.h"
#include "core/ops/rules.h"

#include <math.h>

static etch_tensor *turned(etch_tensor *t) { return etch_transpose(t, -2, -1); }

/* ---- heads that share keys ---- */

etch_tensor *etch__attention_in_groups(const attention_parts *p, etch_tensor *t) {
    if (!t || !p->shared) return t;
    etch_shape s = etch_sizes(t);
    int d = s.n++;
    for (int i = 0; i < 2; i++) s.v[d - i] = s.v[d - i - 1];
    s.v[d - 2] = s.v[d - 3] / p->shared, s.v[d - 3] = p->shared;
    return etch_reshape(t, s);
}

etch_tensor *etch__attention_joined(const attention_parts *p, etch_tensor *t) {
    return t && p->shared ? etch_flatten(t, -4, -3) : t;
}

etch_tensor *etch__attention_shared(const attention_parts *p, etch_tensor *t) {
    return t && p->shared ? etch_sum_dim(t, ETCH_DIMS(-3), false) : t;
}

/* One for all heads, or one for each. */
etch_tensor *etch__attention_mask_in_groups(const attention_parts *p, etch_tensor *mask) {
    if (!mask || mask == ETCH_NONE || !p->shared || mask->ndim < 3) return mask;
    if (mask->size[mask->ndim - 3] == 1) return etch_unsqueeze(mask, -3);
    return etch__attention_in_groups(p, mask);
}

attention_parts etch__attention_parts(etch_tensor *q, etch_tensor *k, etch_tensor *v,
                                      etch_tensor *mask, bool causal, etch_scalar scale) {
    attention_parts p = {.causal = causal, .scale = scale};
    if (q && k && q->ndim > 2 && q->size[q->ndim - 3] != k->size[k->ndim - 3])
        p.shared = k->size[k->ndim - 3];
    p.q = etch__attention_in_groups(&p, q);
    p.k = p.shared ? etch_unsqueeze(k, -3) : k;
    p.v = p.shared ? etch_unsqueeze(v, -3) : v;
    p.mask = etch__attention_mask_in_groups(&p, mask);
    return p;
}

/* ---- scores and weights ---- */

static etch_tensor *later_keys(const etch_tensor *scores) {
    etch_tensor *all = NULL;
    int d = scores->ndim;
    ETCH_ON(scores->device) {
        all = etch_ones(ETCH_BOOL, ETCH_SHAPE(scores->size[d - 2], scores->size[d - 1]));
    }
    return etch_triu(all, 1);
}

static etch_tensor *masked(const attention_parts *p, etch_tensor *s) {
    etch_tensor *mask = p->mask;
    if (!s || mask == ETCH_NONE || !mask) return mask ? s : NULL;
    if (mask->dtype == ETCH_BOOL) return etch_masked_fill(s, etch_logical_not(mask), -INFINITY);
    return etch_add(s, mask->dtype == s->dtype ? mask : etch_to(mask, (etch_dtype)s->dtype));
}

etch_tensor *etch__attention_weights(const attention_parts *p) {
    etch_tensor *s = etch_matmul(etch_mul_scalar(p->q, p->scale), turned(p->k));
    s = masked(p, s);
    if (s && p->causal) s = etch_masked_fill(s, later_keys(s), -INFINITY);
    if (!s || p->mask == ETCH_NONE || !s->size[s->ndim - 1]) return etch_softmax(s, -1);
    etch_tensor *none = etch_eq_scalar(etch_amax(s, ETCH_DIMS(-1), true), -INFINITY);
    return etch_masked_fill(etch_softmax(etch_masked_fill(s, none, 0), -1), none, 0);
}

/* ---- the operator ---- */

static etch_tensor *dropped(etch_tensor *w, etch_scalar dropout) {
    etch_tensor *u = NULL;
    double p = dropout.kind == ETCH_SCALAR_REAL ? dropout.d : (double)dropout.i;
    if (!w) return NULL;
    ETCH_ON(w->device) u = etch_rand(ETCH_F32, etch_sizes(w));
    etch_tensor *kept = etch_mul_scalar(w, p < 1 ? 1 / (1 - p) : 0);
    return etch_masked_fill(kept, etch_lt_scalar(u, p), 0);
}

/* Half types are computed in f32: scores of a half would be off by too much. */
static etch_tensor *written_out(const op_call *call, etch_scalar scale, bool drops) {
    etch_tensor *in[3];
    etch_dtype dtype = call->in[0]->dtype, wide = etch__is_half(dtype) ? ETCH_F32 : dtype;
    for (int i = 0; i < 3; i++) in[i] = dtype == wide ? call->in[i] : etch_to(call->in[i], wide);
    attention_parts p =
        etch__attention_parts(in[0], in[1], in[2], call->in[3], call->at[0] != 0, scale);
    etch_tensor *w = etch__attention_weights(&p);
    if (drops) w = dropped(w, call->sc[0]);
    etch_tensor *y = etch__attention_joined(&p, etch_matmul(w, p.v));
    return y && dtype != wide ? etch_to(y, dtype) : y;
}

/* What a call of the operator below would be refused for. */
static bool operands_fit(const op_call *call, etch_scalar scale) {
    tensor_meta m;
    op_call raw = *call;
    raw.op = OP_ATTENTION, raw.part_of = (uint16_t)(call->op + 1);
    raw.sc = &scale, raw.nsc = 1;
    return etch__infer(&raw, &m, NULL) == ETCH_OK;
}

static bool rate_of(const op_call *call, double *rate) {
    *rate = call->sc[0].kind == ETCH_SCALAR_REAL ? call->sc[0].d : (double)call->sc[0].i;
    if (*rate >= 0 && *rate <= 1) return true;
    return etch__infer_fail(call, ETCH_ERR_INVALID_ARGUMENT,
                            "expected a dropout_p of 0 to 1, got %g", *rate);
}

static etch_scalar scale_of(const op_call *call) {
    const etch_tensor *q = call->in[0];
    if (!etch__scalar_is(call->sc[1], 0) || q == ETCH_NONE || !q->ndim) return call->sc[1];
    return etch_scalar_real(1 / sqrt((double)q->size[q->ndim - 1]));
}

/* Too wide for a device's kernel; what does not fit is left for the operator to say. */
static bool wide(etch_tensor *const *in) {
    for (int i = 0; i < 3; i++) {
        if (in[i] == ETCH_NONE || !in[i]->ndim) return false;
        if (in[i]->size[in[i]->ndim - 1] > ATTENTION_WIDTH_MOST) return true;
    }
    return false;
}

static etch_tensor *attend(const op_call *call) {
    etch_tensor *const *in = call->in;
    etch_scalar scale = scale_of(call);
    bool causal = call->at[0] != 0, elsewhere = in[0] != ETCH_NONE && in[0]->device;
    double rate;
    if (!rate_of(call, &rate)) return NULL;
    if (elsewhere && (rate > 0 || wide(in)))
        return operands_fit(call, scale) ? written_out(call, scale, rate > 0) : NULL;
    if (rate == 0) return etch_attention_raw(in[0], in[1], in[2], in[3], causal, scale);
    etch_tensor *seed = NULL;
    if (!operands_fit(call, scale)) return NULL; /* before numbers are taken */
    ETCH_ON(ETCH_CPU) seed = etch_rand(ETCH_F64, ETCH_SHAPE(1));
    return seed ? etch_attention_dropout_raw(in[0], in[1], in[2], in[3], seed, causal, scale,
                                             call->sc[0])
                : NULL;
}

/* ---- dimensions in front of heads ---- */

/* The rank of all three once what is missing in front is there; 0: they are left as they are. */
static int common_rank(etch_tensor *const *in) {
    int d = 0;
    for (int i = 0; i < 3; i++) {
        if (in[i] == ETCH_NONE || in[i]->ndim < 2) return 0;
        if (in[i]->ndim > d) d = in[i]->ndim;
    }
    return d;
}

/* Of size 1 or missing, they are repeated; of other sizes the operator refuses what differs. */
static etch_tensor *repeated(etch_tensor *const *in, int which, int rank) {
    etch_tensor *t = in[which];
    etch_shape s = {.n = rank};
    bool same = t->ndim == rank;
    for (int i = 0; i < rank; i++) {
        int at = i - (rank - t->ndim);
        s.v[i] = at < 0 ? 1 : t->size[at];
        for (int k = 0; k < 3 && i < rank - 3 && s.v[i] == 1; k++) {
            int there = i - (rank - in[k]->ndim);
            if (there >= 0 && in[k]->size[there] != 1) s.v[i] = in[k]->size[there], same = false;
        }
    }
    return same ? t : etch_expand(t, s);
}

static bool repeat_all(etch_tensor *const *in, etch_tensor **out) {
    int rank = common_rank(in);
    for (int i = 0; i < 4; i++) {
        out[i] = rank && i < 3 ? repeated(in, i, rank) : in[i];
        if (!out[i]) return false;
    }
    return true;
}

etch_tensor *etch__composite_scaled_dot_product_attention(const op_call *given) {
    etch_tensor *in[4];
    op_call call = *given;
    call.in = in;
    return repeat_all(given->in, in) ? attend(&call) : NULL;
}
