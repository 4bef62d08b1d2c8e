/* Ready-made attention with several heads. */
#include "nn/json.h"
#include "nn/module.h"

#include <math.h>

typedef struct attention {
    int64_t width, heads;
    bool causal;
    double dropout;
} attention;

/* ---- projections and heads ---- */

/* x by the k-th third of the projection, or (of 3) by all of it. */
static etch_tensor *projected(const etch_module *m, etch_tensor *x, int k, int of) {
    const attention *a = etch_module_ctx(m);
    etch_tensor *weight = etch__nn_own(m, "in_proj_weight"),
                *bias = etch__nn_own(m, "in_proj_bias");
    if (of == 1) return x ? etch_linear(x, weight, bias) : NULL;
    weight = etch_narrow(weight, 0, k * a->width, a->width);
    if (bias != ETCH_NONE) bias = etch_narrow(bias, 0, k * a->width, a->width);
    return x && weight && bias ? etch_linear(x, weight, bias) : NULL;
}

/* [N, L, parts width] to [N, L, parts, heads, width / heads] */
static etch_tensor *in_heads(const attention *a, etch_tensor *x, int64_t parts) {
    return x ? etch_reshape(x, ETCH_SHAPE(etch_size(x, 0), etch_size(x, 1), parts, a->heads,
                                          a->width / a->heads))
             : NULL;
}

/* q, k and v as [N, heads, L, width / heads]: of one tensor by one product. */
static bool project(const etch_module *m, etch_tensor *const *in, int nin, etch_tensor *head[3]) {
    const attention *a = etch_module_ctx(m);
    etch_tensor *all = nin == 1 ? in_heads(a, projected(m, in[0], 0, 1), 3) : NULL;
    for (int k = 0; k < 3; k++) {
        etch_tensor *own = nin == 1 ? all : in_heads(a, projected(m, in[k], k, 3), 1);
        etch_tensor *part = own ? etch_select(own, 2, nin == 1 ? k : 0) : NULL;
        if (!(head[k] = part ? etch_transpose(part, 1, 2) : NULL)) return false;
    }
    return true;
}

/* And back. */
static etch_tensor *together(const attention *a, etch_tensor *x) {
    etch_tensor *turned = x ? etch_transpose(x, 1, 2) : NULL;
    return turned ? etch_reshape(turned,
                                 ETCH_SHAPE(etch_size(turned, 0), etch_size(turned, 1), a->width))
                  : NULL;
}

/* ---- scores ---- */

static etch_tensor *masked(etch_tensor *scores, etch_tensor *mask) {
    return etch_dtype_of(mask) == ETCH_BOOL ? etch_masked_fill(scores, mask, -INFINITY)
                                            : etch_add(scores, mask);
}

static etch_tensor *later_keys(etch_tensor *scores) {
    etch_tensor *all = NULL;
    ETCH_ON(etch_device_of(scores)) {
        all = etch_ones(ETCH_BOOL, ETCH_SHAPE(etch_size(scores, -2), etch_size(scores, -1)));
    }
    return all ? etch_triu(all, 1) : NULL;
}

/* 0 for a query that sees no key. */
static etch_tensor *of_seen_keys(etch_tensor *scores) {
    etch_tensor *top = etch_amax(scores, ETCH_DIMS(-1), true);
    etch_tensor *none = top ? etch_eq_scalar(top, -INFINITY) : NULL;
    etch_tensor *some = none ? etch_masked_fill(scores, none, 0) : NULL;
    etch_tensor *w = some ? etch_softmax(some, -1) : NULL;
    return w ? etch_masked_fill(w, none, 0) : NULL;
}

/* [N, heads, L, S]: the weights of each query's keys. */
static etch_tensor *weights_of(const attention *a, etch_tensor *q, etch_tensor *k,
                               etch_tensor *mask) {
    etch_tensor *scaled = etch_mul_scalar(q, 1 / sqrt((double)(a->width / a->heads)));
    etch_tensor *turned = scaled ? etch_transpose(k, -2, -1) : NULL;
    etch_tensor *scores = turned ? etch_matmul(scaled, turned) : NULL;
    if (scores && mask) scores = masked(scores, mask);
    if (scores && a->causal) {
        etch_tensor *later = later_keys(scores);
        scores = later ? masked(scores, later) : NULL;
    }
    if (!scores || !mask || !etch_size(scores, -1)) return scores ? etch_softmax(scores, -1) : NULL;
    return of_seen_keys(scores);
}

/* Results of the heads and the weights. */
static bool attend_by_weights(const etch_module *m, etch_tensor *const *head, etch_tensor *mask,
                              etch_tensor **y, etch_tensor **weights) {
    const attention *a = etch_module_ctx(m);
    etch_tensor *w = *weights = weights_of(a, head[0], head[1], mask);
    etch_tensor *kept = etch_module_is_training(m) ? etch__nn_drop(w, a->dropout) : w;
    return (*y = kept ? etch_matmul(kept, head[2]) : NULL);
}

/* As the operator takes it: bools are true where a key is seen. */
static etch_tensor *seen_by(etch_tensor *mask, const etch_tensor *q) {
    if (!mask) return ETCH_NONE;
    if (etch_dtype_of(mask) == ETCH_BOOL) return etch_logical_not(mask);
    return etch_to(mask, etch_dtype_of(q));
}

static etch_tensor *attend_at_once(const etch_module *m, etch_tensor *const *head,
                                   etch_tensor *mask) {
    const attention *a = etch_module_ctx(m);
    double dropout = etch_module_is_training(m) ? a->dropout : 0;
    etch_tensor *seen = seen_by(mask, head[0]);
    return seen ? etch_scaled_dot_product_attention(head[0], head[1], head[2], seen, dropout,
                                                    a->causal, 0)
                : NULL;
}

/* ---- forward ---- */

static bool check_input(const etch_module *m, etch_tensor *const *in, int nin) {
    const attention *a = etch_module_ctx(m);
    int n = etch_ndim(in[0]), ntensors = nin == 1 ? 1 : 3;
    for (int k = 0; k < ntensors; k++) {
        bool ok = (n == 2 || n == 3) && etch_ndim(in[k]) == n && etch_size(in[k], -1) == a->width;
        if (ok && k) ok = etch_size(in[k], -2) == etch_size(in[1], -2);
        if (ok && n == 3) ok = etch_size(in[k], 0) == etch_size(in[0], 0);
        if (!ok)
            return etch__nn_refuse(m, "[N, L, width] or [L, width], key and value of one length",
                                   in[k]),
                   false;
    }
    return true;
}

static etch_status attend(etch_module *m, etch_tensor *const *in, int nin, etch_tensor **out,
                          int nout) {
    const attention *a = etch_module_ctx(m);
    etch_tensor *head[3], *mask = nin == 4 ? in[3] : NULL, *w = NULL, *y = NULL;
    if (!project(m, in, nin, head)) return etch_last_status();
    if (nout == 1) y = attend_at_once(m, head, mask);
    else if (!attend_by_weights(m, head, mask, &y, &w)) return etch_last_status();
    etch_tensor *joined = together(a, y);
    out[0] = joined ? etch_module_call(etch_module_child(m, 0), joined) : NULL;
    if (out[0] && nout == 2) out[1] = etch_mean_dim(w, ETCH_DIMS(1), false);
    return out[nout - 1] ? ETCH_OK : etch_last_status();
}

static etch_status attention_forward(etch_module *m, etch_tensor *const *in, int nin,
                                     etch_tensor **out, int nout) {
    etch_tensor *batch[4] = {NULL};
    if ((nin != 1 && nin != 3 && nin != 4) || (nout != 1 && nout != 2))
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "MultiheadAttention: expected 1, 3 or 4 tensors and room for 1 or 2, "
                             "got %d and %d",
                             nin, nout);
    if (!check_input(m, in, nin)) return etch_last_status();
    bool single = etch_ndim(in[0]) == 2;
    for (int k = 0; k < nin; k++)
        if (!(batch[k] = single && k < 3 ? etch_unsqueeze(in[k], 0) : in[k]))
            return etch_last_status();
    etch_status status = attend(m, batch, nin, out, nout);
    for (int i = 0; single && status == ETCH_OK && i < nout; i++)
        if (!(out[i] = etch_squeeze_dim(out[i], 0))) status = etch_last_status();
    return status;
}

/* ---- making it ---- */

static bool add_projection(etch_module *m, int64_t width, etch_dtype dtype, bool bias) {
    double bound = sqrt(6 / (double)(4 * width)); /* xavier_uniform of [3 width, width] */
    etch_module *out = etch_nn_linear_with(width, width, dtype, bias);
    if (!out || etch_module_add_child(m, "out_proj", out) != ETCH_OK)
        return etch_module_free(out), false;
    bool ok = etch__nn_add_uniform(m, "in_proj_weight", dtype, ETCH_SHAPE(3 * width, width), bound);
    if (ok && bias)
        ok = etch__nn_add_full(m, "in_proj_bias", dtype, ETCH_SHAPE(3 * width), 0, false);
    if (ok && bias) {
        etch_tensor *zero = etch_module_parameter(out, "bias");
        ok = etch_nn_init_with(zero, "zeros", NULL) == ETCH_OK;
    }
    return ok;
}

etch_module *etch_nn_multihead_attention_with(int64_t width, int64_t heads, etch_dtype dtype,
                                              const etch_attention_options *options) {
    etch_attention_options o;
    etch__nn_options(&o, sizeof o, options);
    if (width <= 0 || heads <= 0 || width % heads || !(o.dropout >= 0 && o.dropout <= 1)) {
        etch__nn_fail(ETCH_ERR_SHAPE,
                      "etch_nn_multihead_attention: expected a positive width that heads divide "
                      "and a dropout of 0 to 1, got width %lld, heads %lld, dropout %g",
                      (long long)width, (long long)heads, o.dropout);
        return NULL;
    }
    if (!etch__nn_need_float("etch_nn_multihead_attention", dtype)) return NULL;
    char dropout[REAL_TEXT];
    attention a = {width, heads, o.causal, o.dropout};
    etch_module *m = etch__nn_layer_n(
        "MultiheadAttention", attention_forward, &a, sizeof a,
        "{\"width\": %lld, \"heads\": %lld, \"dtype\": \"%s\", \"bias\": %s, \"causal\": %s, "
        "\"dropout\": %s}",
        (long long)width, (long long)heads, etch_dtype_name(dtype), o.no_bias ? "false" : "true",
        o.causal ? "true" : "false", etch__real_text(o.dropout, dropout));
    return m ? etch__nn_finish(m, add_projection(m, width, dtype, !o.no_bias)) : NULL;
}
