/* Derivatives of attention. The first one of query, key and value is an operator of its own, whose
 * memory grows with the lengths; that of the mask, second derivatives and tangents are written out,
 * with matrices of queries x keys.
 *
 * W are the weights, K what dropout multiplies them by, Z = W K, y = Z v, and g comes back to y:
 * dW = (g v') K, D = W (dW - sum of W dW), dq = scale D k, dk = scale D' q, dv = Z' g. */
#include "core/dispatch/attention.h"
#include "core/autograd/forward.h"
#include "core/autograd/rules.h"

static etch_tensor *turned(etch_tensor *t) { return etch_transpose(t, -2, -1); }
static etch_tensor *mul(etch_tensor *a, etch_tensor *b) { return etch_mul(a, b); }
static etch_tensor *row_sum(etch_tensor *t) { return etch_sum_dim(t, ETCH_DIMS(-1), true); }
static etch_tensor *plus(etch_tensor *a, etch_tensor *b) {
    return a && b ? etch_add(a, b) : a ? a : b;
}

/* w (t - sum of w t): softmax's derivative, whose matrix is symmetric. */
static etch_tensor *slope(etch_tensor *w, etch_tensor *t) {
    return mul(w, etch_sub(t, row_sum(mul(w, t))));
}

/* ---- the operands of both operators ---- */

typedef struct attention_call {
    attention_parts p;
    etch_tensor *w, *kept; /* kept: K, or NULL */
    int at;                /* number of query */
} attention_call;

static etch_tensor *given(etch_tensor *t) { return t == ETCH_NONE ? NULL : t; }

static etch_tensor *kept_of(const derivative_call *d, const attention_call *c, etch_tensor *seed) {
    etch_shape s = etch__sizes_of(&d->shape[c->at]);
    s.v[s.n - 1] = d->shape[c->at + 1].size[s.n - 2];
    etch_tensor *kept = etch_attention_kept_raw(seed, s, d->sc[1]);
    return etch__attention_in_groups(&c->p, in_dtype(kept, dtype_of_rule(d)));
}

static attention_call call_of(const derivative_call *d, int at) {
    attention_call c = {.at = at};
    etch_tensor *mask = given(d->in[at + 3]), *seed = d->nin > at + 4 ? given(d->in[at + 4]) : NULL;
    c.p = etch__attention_parts(operand(d, at), operand(d, at + 1), operand(d, at + 2),
                                mask ? mask : ETCH_NONE, d->at[0] != 0, d->sc[0]);
    c.w = etch__attention_weights(&c.p);
    if (seed) c.kept = kept_of(d, &c, seed);
    return c;
}

static etch_tensor *of_query(const attention_call *c, etch_tensor *t) {
    return etch__attention_in_groups(&c->p, t);
}
static etch_tensor *of_key(const attention_call *c, etch_tensor *t) {
    return t && c->p.shared ? etch_unsqueeze(t, -3) : t;
}
static etch_tensor *left(const attention_call *c, etch_tensor *w) {
    return c->kept ? mul(w, c->kept) : w;
}
static etch_tensor *scaled(const attention_call *c, etch_tensor *t) {
    return etch_mul_scalar(t, c->p.scale);
}
/* dW */
static etch_tensor *to_weights(const attention_call *c, etch_tensor *g) {
    return left(c, etch_matmul(g, turned(c->p.v)));
}

/* ---- attention ---- */

/* `n` elements of the vector from *at on, which moves, in the sizes of operand i. */
static etch_tensor *part_of(const derivative_call *d, etch_tensor *all, int64_t *at, int i) {
    etch_shape s = etch__sizes_of(&d->shape[i]);
    int64_t n = 1, from = *at;
    for (int k = 0; k < s.n; k++) n *= s.v[k];
    *at += n;
    etch_tensor *part = etch_slice(all, 0, from, from + n, 1);
    return part ? etch_reshape(part, s) : NULL;
}

static etch_scalar rate_of(const derivative_call *d) {
    return d->nsc > 1 ? d->sc[1] : etch_scalar_real(0);
}

static void to_operands(const derivative_call *d) {
    etch_tensor *mask = given(d->in[3]), *seed = d->nin > 4 ? given(d->in[4]) : NULL;
    int64_t at = 0;
    etch_tensor *all = etch_attention_backward_raw(
        in_dtype(d->grad, (etch_dtype)d->outshape->dtype), d->result, d->in[0], d->in[1], d->in[2],
        mask ? mask : ETCH_NONE, seed ? seed : ETCH_NONE, d->at[0] != 0, d->sc[0], rate_of(d));
    for (int i = 0; i < 3; i++) {
        etch_tensor *part = part_of(d, all, &at, i);
        if (d->wants[i]) d->to[i] = part;
    }
}

/* The operator is the CPU's. */
static void to_operands_written_out(const derivative_call *d, const attention_call *c,
                                    etch_tensor *g, etch_tensor *slopes) {
    const attention_parts *p = &c->p;
    if (d->wants[0]) d->to[0] = etch__attention_joined(p, scaled(c, etch_matmul(slopes, p->k)));
    if (d->wants[1])
        d->to[1] = etch__attention_shared(p, scaled(c, etch_matmul(turned(slopes), p->q)));
    if (d->wants[2]) d->to[2] = etch__attention_shared(p, etch_matmul(turned(left(c, c->w)), g));
}

RULE(attention) {
    bool operands = d->wants[0] || d->wants[1] || d->wants[2], elsewhere = d->outshape->device != 0;
    if (operands && !elsewhere) to_operands(d);
    if (!d->wants[3] && !(operands && elsewhere)) return;
    attention_call c = call_of(d, 0);
    etch_tensor *g = of_query(&c, grad_of(d)), *slopes = slope(c.w, to_weights(&c, g));
    if (operands && elsewhere) to_operands_written_out(d, &c, g, slopes);
    if (d->wants[3]) d->to[3] = etch__attention_joined(&c.p, slopes);
}

/* ---- attention, backward ---- */

/* What goes back to the gradients of query, key and value, in groups. */
typedef struct backs {
    etch_tensor *q, *k, *v;
} backs;

static backs backs_of(const derivative_call *d, const attention_call *c) {
    int64_t at = 0;
    etch_tensor *all = grad_of(d);
    backs b;
    b.q = of_query(c, part_of(d, all, &at, c->at));
    b.k = of_key(c, part_of(d, all, &at, c->at + 1));
    b.v = of_key(c, part_of(d, all, &at, c->at + 2));
    return b;
}

/* The result of the attention is no operand of its own here: its share is in the others'. */
RULE(attention_backward) {
    attention_call c = call_of(d, 2);
    const attention_parts *p = &c.p;
    backs b = backs_of(d, &c);
    etch_tensor *g = of_query(&c, operand(d, 0)), *dw = to_weights(&c, g);
    etch_tensor *off = etch_sub(dw, row_sum(mul(c.w, dw))), *slopes = mul(c.w, off);
    etch_tensor *to_slopes =
        scaled(&c, etch_add(etch_matmul(b.q, turned(p->k)), etch_matmul(p->q, turned(b.k))));
    etch_tensor *level = row_sum(mul(to_slopes, c.w));
    etch_tensor *to_dw = left(&c, mul(c.w, etch_sub(to_slopes, level)));
    etch_tensor *to_w = etch_sub(mul(to_slopes, off), mul(level, dw));
    etch_tensor *to_scores = slope(c.w, etch_add(to_w, left(&c, etch_matmul(g, turned(b.v)))));
    etch_tensor *to_g = etch_add(etch_matmul(left(&c, c.w), b.v), etch_matmul(to_dw, p->v));
    etch_tensor *to_q =
        scaled(&c, etch_add(etch_matmul(slopes, b.k), etch_matmul(to_scores, p->k)));
    etch_tensor *to_k = scaled(
        &c, etch_add(etch_matmul(turned(slopes), b.q), etch_matmul(turned(to_scores), p->q)));
    if (d->wants[0]) d->to[0] = etch__attention_joined(p, to_g);
    if (d->wants[2]) d->to[2] = etch__attention_joined(p, to_q);
    if (d->wants[3]) d->to[3] = etch__attention_shared(p, to_k);
    if (d->wants[4]) d->to[4] = etch__attention_shared(p, etch_matmul(turned(to_dw), g));
    if (d->wants[5]) d->to[5] = etch__attention_joined(p, to_scores);
}

/* ---- forward mode ---- */

/* The tangent of operand i in groups, or NULL. */
static etch_tensor *tangent_of(const forward_call *f, const attention_call *c, int i) {
    etch_tensor *t = in_dtype(f->tangent[i], dtype_of_rule(f->d));
    if (i == c->at + 1 || i == c->at + 2) return of_key(c, t);
    if (i == c->at + 3) return etch__attention_mask_in_groups(&c->p, t);
    return of_query(c, t);
}

static etch_tensor *product(etch_tensor *a, etch_tensor *b) {
    return a && b ? etch_matmul(a, b) : NULL;
}
static etch_tensor *turned_if(etch_tensor *t) { return t ? turned(t) : NULL; }

/* The tangent of the weights. */
static etch_tensor *tangent_of_weights(const forward_call *f, const attention_call *c) {
    etch_tensor *q = tangent_of(f, c, c->at), *k = tangent_of(f, c, c->at + 1);
    etch_tensor *mask = tangent_of(f, c, c->at + 3);
    etch_tensor *s = plus(product(q, turned(c->p.k)), product(c->p.q, turned_if(k)));
    if (s) s = scaled(c, s);
    s = plus(s, mask);
    return s ? slope(c->w, s) : NULL;
}

static etch_tensor *left_if(const attention_call *c, etch_tensor *w) {
    return w ? left(c, w) : NULL;
}

FORWARD(attention) {
    attention_call c = call_of(f->d, 0);
    etch_tensor *w = tangent_of_weights(f, &c), *v = tangent_of(f, &c, 2);
    etch_tensor *y = plus(product(left_if(&c, w), c.p.v), product(left(&c, c.w), v));
    return etch__attention_joined(&c.p, y);
}

static etch_tensor *flat(etch_tensor *t) { return etch_reshape(t, ETCH_SHAPE(-1)); }

/* The tangents of dq, dk and dv behind each other; what has none is zeros. */
static etch_tensor *behind_each_other(const forward_call *f, const attention_call *c, backs t) {
    etch_tensor *part[3] = {etch__attention_joined(&c->p, t.q), etch__attention_shared(&c->p, t.k),
                            etch__attention_shared(&c->p, t.v)};
    for (int i = 0; i < 3; i++) {
        const value_shape *s = &f->d->shape[c->at + i];
        if (!part[i]) part[i] = zeros_of(s, dtype_of_rule(f->d), etch__sizes_of(s));
        if (!(part[i] = flat(part[i]))) return NULL;
    }
    return etch_cat(part, 3, 0);
}

FORWARD(attention_backward) {
    attention_call c = call_of(f->d, 2);
    const attention_parts *p = &c.p;
    etch_tensor *g = of_query(&c, operand(f->d, 0)), *tg = tangent_of(f, &c, 0);
    etch_tensor *tq = tangent_of(f, &c, 2), *tk = tangent_of(f, &c, 3), *tv = tangent_of(f, &c, 4);
    etch_tensor *dw = to_weights(&c, g), *tw = tangent_of_weights(f, &c);
    etch_tensor *off = etch_sub(dw, row_sum(mul(c.w, dw))), *slopes = mul(c.w, off);
    etch_tensor *tdw = left_if(&c, plus(product(tg, turned(p->v)), product(g, turned_if(tv))));
    etch_tensor *level = plus(tw ? mul(tw, dw) : NULL, tdw ? mul(c.w, tdw) : NULL);
    etch_tensor *ts = tw ? mul(tw, off) : NULL;
    if (tdw) ts = plus(ts, mul(c.w, tdw));
    if (level) ts = etch_sub(ts, mul(c.w, row_sum(level)));
    backs t;
    t.q = plus(product(ts, p->k), product(slopes, tk));
    t.k = plus(product(turned_if(ts), p->q), product(turned(slopes), tq));
    t.v = plus(product(turned_if(left_if(&c, tw)), g), product(turned(left(&c, c.w)), tg));
    if (t.q) t.q = scaled(&c, t.q);
    if (t.k) t.k = scaled(&c, t.k);
    return behind_each_other(f, &c, t);
}
