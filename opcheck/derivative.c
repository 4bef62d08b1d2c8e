/* etch_opcheck: the ways of a derivative, a function each.
 *
 * What is differentiated is a weighted sum of the result, so that no gradient flows that is the
 * same everywhere. Differences are taken along single elements and along one direction that moves
 * all of them: enough to find a wrong rule, and few calls where tensors are large. */
#include <etch/grad.h>
#include <math.h>

#include "core/autograd/derivative.h"
#include "core/dispatch/dispatch.h"
#include "core/dispatch/mode.h"
#include "opcheck/check.h"

enum { ELEMENTS = 6 }; /* moved one by one, of each tensor */

/* A sample with leaves where its tensors are floats. Gradients may be asked for leaves only, so the
 * operator gets clones: it may write its first argument. */
typedef struct point {
    opcheck *c;
    const etch_op_sample *s;
    etch_tensor *weights;          /* of the result */
    int n, which[OPCHECK_TENSORS]; /* tensors that are moved, by their number in the sample */
    etch_tensor *at[OPCHECK_TENSORS];
} point;

static bool is_float(const etch_tensor *t) {
    etch_dtype d = etch_dtype_of(t);
    return d == ETCH_F32 || d == ETCH_F64 || d == ETCH_F16 || d == ETCH_BF16;
}

/* ---- points, losses, gradients ---- */

typedef struct replacing {
    const point *p;
    int tensor, used; /* of the sample, of the point */
} replacing;

static etch_tensor *moved(etch_tensor *t, void *ctx) {
    replacing *r = ctx;
    bool mine = r->used < r->p->n && r->p->which[r->used] == r->tensor;
    r->tensor++;
    return etch_clone(mine ? r->p->at[r->used++] : t);
}

static etch_tensor *result_at(const point *p) {
    opcheck_inputs in;
    replacing r = {p, 0, 0};
    bool made = etch__opcheck_remake(&in, p->s->args, p->s->nargs, moved, &r);
    return made ? etch__opcheck_call(p->c, &in) : NULL;
}

/* Different everywhere, of no pattern that a sum would hide. */
static etch_tensor *weights_like(const etch_tensor *t, double phase) {
    etch_tensor *w = NULL;
    ETCH_ON(etch_device_of(t)) {
        etch_tensor *i = etch_arange(ETCH_F64, 0, etch_numel(t), 1);
        etch_tensor *turned = etch_add_scalar(etch_mul_scalar(i, 1.7), phase);
        etch_tensor *each = etch_add_scalar(etch_mul_scalar(etch_sin(turned), 0.6), 0.9);
        w = etch_to(etch_reshape(each, etch_sizes(t)), etch_dtype_of(t));
    }
    return w;
}

/* In doubles whatever the dtype, so that a difference loses no digits of its own. */
static double dot(etch_tensor *a, etch_tensor *b) {
    etch_tensor *x = etch_to(a, ETCH_F64), *y = etch_to(b, ETCH_F64);
    etch_tensor *sum = etch_sum(etch_mul(x, y));
    return sum ? etch_item(sum) : NAN;
}

/* The gradients of the weighted sum for the point's tensors; NULL where none flows. */
static etch_status gradients_of(const point *p, etch_tensor *weights, bool create,
                                etch_tensor **to) {
    etch_grad_options o = {.struct_size = sizeof o, .create_graph = create, .allow_unused = true};
    etch_tensor *y = result_at(p);
    if (!y) return etch_last_status();
    return etch_grad(&y, 1, p->at, p->n, &weights, &o, to);
}

/* The same, and a derivative that writes its gradient leaves the weights. */
static etch_status gradients_at(const point *p, etch_tensor *weights, bool create,
                                etch_tensor **to) {
    etch_tensor *own = etch_clone(weights);
    return own ? gradients_of(p, own, create, to) : etch_last_status();
}

/* The point's tensors as leaves of their own. */
static bool make_leaves(point *p) {
    for (int i = 0; i < p->n; i++) {
        etch_tensor *leaf = NULL;
        ETCH_NO_GRAD
            leaf = etch_clone(p->at[i]);
        if (!leaf || !(p->at[i] = etch_requires_grad_(leaf, true))) return false;
    }
    return true;
}

static bool begin(point *p, opcheck *c, const etch_op_sample *s, const etch_tensor *result) {
    opcheck_inputs in;
    *p = (point){.c = c, .s = s};
    if (!etch__opcheck_remake(&in, s->args, s->nargs, etch__opcheck_copy, NULL)) return false;
    for (int i = 0; i < in.nt; i++)
        if (in.t[i] != ETCH_NONE && is_float(in.t[i])) p->which[p->n] = i, p->at[p->n++] = in.t[i];
    return (p->weights = weights_like(result, 0.3)) && make_leaves(p);
}

/* ---- differences ---- */

/* What is compared with differences: the loss, or the gradients times weights of their own. */
typedef double (*value_fn)(const point *p);

static double loss_at(const point *p) {
    double v = NAN;
    ETCH_SCOPE
        ETCH_NO_GRAD {
            etch_tensor *y = result_at(p);
            if (y) v = dot(y, p->weights);
        }
    return v;
}

static double slopes_at(const point *p) {
    etch_tensor *g[OPCHECK_TENSORS];
    double sum = 0;
    ETCH_SCOPE {
        point q = *p;
        bool ok = make_leaves(&q) && gradients_at(&q, q.weights, false, g) == ETCH_OK;
        for (int i = 0; ok && i < q.n; i++)
            if (g[i]) sum += dot(g[i], weights_like(g[i], i));
        if (!ok) sum = NAN;
    }
    return sum;
}

/* Of tensor k along a direction: of the fourth order, and how far the slopes on both sides differ,
 * which goes with the step where there is no kink. */
typedef struct slope {
    double both, gap;
} slope;

static slope slope_along(const point *p, int k, etch_tensor *along, double step, value_fn value) {
    double v[5];
    for (int i = -2; i <= 2; i++)
        ETCH_SCOPE {
            point q = *p;
            ETCH_NO_GRAD
                q.at[k] = etch_add_alpha(p->at[k], along, ETCH_SCALAR(i * step));
            v[i + 2] = q.at[k] ? value(&q) : NAN;
        }
    return (slope){(8 * (v[3] - v[1]) - (v[4] - v[0])) / (12 * step),
                   fabs(v[3] - 2 * v[2] + v[1]) / step};
}

/* One element, or (-1) all of them by different amounts. */
static etch_tensor *direction(etch_tensor *t, int64_t element) {
    if (element < 0) return weights_like(t, 2.1);
    etch_tensor *along = NULL;
    ETCH_ON(etch_device_of(t)) along = etch_zeros(etch_dtype_of(t), ETCH_SHAPE(etch_numel(t)));
    if (!along || !etch_fill_(etch_select(along, 0, element), 1)) return NULL;
    return etch_reshape(along, etch_sizes(t));
}

static double bound(const point *p, int k) {
    bool wide = etch_dtype_of(p->at[k]) == ETCH_F64 && etch_dtype_of(p->weights) == ETCH_F64;
    return wide ? 1e-6 : 2e-2;
}

/* Whether differences agree with the slope. A kink within reach, and values beside the sample's
 * that the operator does not take (NaN), say nothing. */
static bool agree(point *p, int k, etch_tensor *along, value_fn value, double have, double *want) {
    double step = etch_dtype_of(p->at[k]) == ETCH_F64 ? 1e-3 : 1e-2;
    slope s = slope_along(p, k, along, step, value);
    *want = s.both;
    if (isnan(s.both)) return true;
    p->c->derived = true;
    if (fabs(have - s.both) <= bound(p, k) * (1 + fabs(have) + fabs(s.both))) return true;
    double gap = slope_along(p, k, along, step / 16, value).gap;
    return gap > s.gap / 4 && gap > bound(p, k);
}

static bool agrees(point *p, const char *way, int k, etch_tensor *grad, int64_t element,
                   value_fn value) {
    char place[64] = "all elements moved";
    bool ok = true;
    ETCH_SCOPE {
        etch_tensor *along = direction(p->at[k], element);
        double have = grad ? dot(grad, along) : 0, want;
        if (element >= 0) snprintf(place, sizeof place, "element %lld", (long long)element);
        ok = agree(p, k, along, value, have, &want);
        if (!ok)
            etch__opcheck_fault(p->c, way, "tensor %d, %s: %s%.8g, differences give %.8g",
                                p->which[k], place, grad ? "" : "no gradient, that is ", have,
                                want);
    }
    return ok;
}

/* One fault a tensor is enough. */
static void check_differences(point *p, const char *way, etch_tensor *const *grads,
                              value_fn value) {
    for (int k = 0; k < p->n; k++) {
        int64_t n = etch_numel(p->at[k]), stride = n > ELEMENTS ? n / ELEMENTS : 1;
        bool halves = etch_dtype_size(etch_dtype_of(p->at[k])) < 4;
        bool ok = !halves;
        for (int64_t i = 0; ok && i < n && i / stride < ELEMENTS; i += stride)
            ok = agrees(p, way, k, grads[k], i, value);
        if (ok && n) agrees(p, way, k, grads[k], -1, value);
    }
}

/* ---- the ways ---- */

/* What was computed without a tape (a derivative that reads numbers) has no gradient of its own,
 * which differences tell. A derivative that has none of its own is no fault. */
static void check_second(point *p) {
    etch_tensor *g[OPCHECK_TENSORS], *w[OPCHECK_TENSORS], *out[OPCHECK_TENSORS];
    etch_tensor *to[OPCHECK_TENSORS] = {NULL};
    int n = 0;
    if (gradients_at(p, p->weights, true, g) != ETCH_OK)
        return etch__opcheck_failed(p->c, "gradient of gradient", "create_graph");
    for (int i = 0; i < p->n; i++)
        if (g[i] && etch_requires_grad(g[i])) out[n] = g[i], w[n++] = weights_like(g[i], i);
    etch_grad_options o = {.struct_size = sizeof o, .allow_unused = true};
    if (n && etch_grad(out, n, p->at, p->n, w, &o, to) != ETCH_OK) {
        if (etch_last_status() == ETCH_ERR_NOT_DIFFERENTIABLE) return etch_clear_error();
        return etch__opcheck_failed(p->c, "gradient of gradient", "etch_grad");
    }
    check_differences(p, "gradient of gradient", to, slopes_at);
}

/* A gradient that is expanded, and one that is turned in memory, say what a plain one does. */
static void check_strides(point *p) {
    etch_tensor *flat[OPCHECK_TENSORS], *wide[OPCHECK_TENSORS];
    etch_tensor *one = etch_select(etch_reshape(p->weights, ETCH_SHAPE(-1)), 0, 0);
    etch_tensor *same = etch_expand(one, etch_sizes(p->weights)), *plain = etch_clone(same);
    if (plain) plain = etch_contiguous(plain);
    if (!plain || gradients_of(p, plain, false, flat) != ETCH_OK ||
        gradients_of(p, same, false, wide) != ETCH_OK)
        return etch__opcheck_failed(p->c, "gradient strides", "etch_grad");
    for (int k = 0; k < p->n; k++)
        if (flat[k] && !(wide[k] && etch__opcheck_near(wide[k], flat[k])))
            etch__opcheck_fault(p->c, "gradient strides",
                                "tensor %d gets another gradient from an expanded one",
                                p->which[k]);
}

/* For one tensor alone: the same bits. */
static void check_alone(point *p, etch_tensor *const *grads) {
    for (int k = 0; p->n > 1 && k < p->n; k++) {
        point q = *p;
        etch_tensor *g = NULL;
        for (int i = 0; i < q.n; i++)
            if (i != k) q.at[i] = etch_detach(q.at[i]);
        etch_tensor *y = result_at(&q), *w = etch_clone(q.weights);
        etch_grad_options o = {.struct_size = sizeof o, .allow_unused = true};
        if (!grads[k] && !etch_requires_grad(y)) continue;
        if (!y || etch_grad(&y, 1, &q.at[k], 1, &w, &o, &g) != ETCH_OK) {
            etch__opcheck_failed(p->c, "gradient wanted", "etch_grad for one tensor");
            continue;
        }
        if (grads[k] ? !g || !etch_bitwise_equal(g, grads[k]) : g != NULL)
            etch__opcheck_fault(p->c, "gradient wanted",
                                "tensor %d gets another gradient where no other is wanted",
                                p->which[k]);
    }
}

/* ---- compiled ---- */

typedef struct gradient_body {
    const point *p;
    etch_tensor *const *expected;
} gradient_body;

/* The operator between others, and its gradients: those that there are, in order. */
static etch_status body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    const gradient_body *b = ctx;
    point p = *b->p;
    etch_tensor *to[OPCHECK_TENSORS];
    (void)nin, (void)nout;
    for (int i = 0; i < p.n; i++) p.at[i] = in[i];
    if (gradients_at(&p, in[p.n], false, to) != ETCH_OK) return etch_last_status();
    for (int i = 0, n = 0; i < p.n; i++)
        if (b->expected[i] && !(out[n++] = to[i]))
            return etch_set_error(ETCH_ERR_UNUSED, "a gradient is missing");
    return ETCH_OK;
}

static void check_calls(point *p, etch_function *f, const char *way, etch_tensor *const *grads) {
    static const char *const when[] = {"the recording call", "the compiled call",
                                       "the second compiled call"};
    for (int i = 0; i < 3; i++)
        ETCH_SCOPE {
            point q = *p;
            etch_tensor *out[OPCHECK_TENSORS] = {NULL};
            int n = 0;
            if (!make_leaves(&q)) break;
            q.at[q.n] = q.weights;
            for (int k = 0; k < q.n; k++) n += grads[k] != NULL;
            bool ok = etch_call_n(f, q.at, q.n + 1, out, n) == ETCH_OK;
            for (int k = 0, at = 0; k < q.n; k++)
                if (grads[k])
                    etch__opcheck_same(p->c, way, when[i], ok ? out[at++] : NULL, grads[k]);
        }
}

static void check_compiled(point *p, const char *backend, etch_tensor *const *grads) {
    char way[32];
    bool breaks = p->c->op->flags & OPF_EFFECTS, any = false;
    gradient_body b = {p, grads};
    for (int k = 0; k < p->n; k++) any |= grads[k] != NULL;
    if (!any || p->n == OPCHECK_TENSORS) return;
    snprintf(way, sizeof way, "gradient %s", backend);
    etch_function *f =
        etch_compile(body, .backend = backend, .fullgraph = !breaks, .ctx = &b, .name = "opcheck");
    if (!f) return etch__opcheck_failed(p->c, way, "etch_compile");
    check_calls(p, f, way, grads);
    etch__opcheck_counts(p->c, way, f, breaks);
    etch_function_free(f);
}

/* ---- the function that the user gave, called by itself ---- */

typedef struct direct {
    point *p;
    const custom_rules *rules;
    etch_tensor *result, *grad;
    int wanted; /* of the point */
} direct;

static void compare_kept(const direct *d, const op_call *call, etch_tensor *const *before) {
    opcheck *c = d->p->c;
    for (int i = 0; i < call->nin; i++)
        if (before[i] && !etch_bitwise_equal(before[i], call->in[i]))
            etch__opcheck_fault(c, "gradient writes", "the derivative has changed tensor %d", i);
    if (!etch_bitwise_equal(before[call->nin], d->result))
        etch__opcheck_fault(c, "gradient writes", "the derivative has changed the result");
    if (!etch_bitwise_equal(before[call->nin + 1], d->grad))
        etch__opcheck_fault(c, "gradient writes", "the derivative has changed its gradient");
}

static etch_status call_directly(void *ctx, const op_call *call) {
    const direct *d = ctx;
    etch_value values[SCHEMA_MAX_ARGS];
    bool wants[OPCHECK_TENSORS] = {false};
    etch_tensor *grads[OPCHECK_TENSORS] = {NULL}, *before[OPCHECK_TENSORS + 2] = {NULL};
    int only = d->p->which[d->wanted];
    wants[only] = true;
    for (int i = 0; i < call->nin; i++)
        if (call->in[i] != ETCH_NONE) before[i] = etch_clone(call->in[i]);
    before[call->nin] = etch_clone(d->result), before[call->nin + 1] = etch_clone(d->grad);
    const etch_derivative_call given = {
        values, etch__box(call, values), d->result, d->grad, call->nin, wants, grads};
    if (d->rules->derivative(d->rules->ctx, d->p->c->op, &given) != ETCH_OK)
        return ETCH_OK; /* told by other ways */
    for (int i = 0; i < call->nin; i++)
        if (grads[i] && i != only)
            etch__opcheck_fault(d->p->c, "gradient wanted",
                                "tensor %d gets a gradient that nobody wants", i);
    compare_kept(d, call, before);
    return ETCH_OK;
}

static void check_directly(point *p) {
    direct d = {.p = p};
    if (p->c->op->id < OP_COUNT) return;
    d.rules = etch__custom_rules(p->c->op->id);
    if (!d.rules->derivative) return;
    for (d.wanted = 0; d.wanted < p->n; d.wanted++)
        ETCH_SCOPE
            ETCH_NO_GRAD {
                opcheck_inputs in;
                bool made =
                    etch__opcheck_remake(&in, p->s->args, p->s->nargs, etch__opcheck_copy, NULL);
                d.grad = etch_clone(p->weights), d.result = result_at(p);
                if (made && d.grad && d.result)
                    etch__unbox(p->c->op, in.args, in.nargs, NULL, call_directly, &d);
            }
}

/* ---- the whole ---- */

static bool has_derivative(const opcheck *c) {
    const derivative *d = etch__derivative(c->op->id);
    return d && d->rule && !(c->op->flags & OPF_RANDOM);
}

void etch__opcheck_derivative(opcheck *c, const etch_op_sample *s, const etch_tensor *result) {
    point p;
    etch_tensor *grads[OPCHECK_TENSORS];
    if (!has_derivative(c)) return;
    c->derivable = true;
    if (!is_float(result) || !etch_numel(result)) return;
    if (!begin(&p, c, s, result)) return etch__opcheck_failed(c, "gradient", "copying");
    etch_tensor *y = p.n ? result_at(&p) : NULL;
    if (!y || !etch_requires_grad(y)) return;
    if (gradients_at(&p, p.weights, false, grads) != ETCH_OK)
        return etch__opcheck_failed(c, "gradient", "etch_grad");
    check_differences(&p, "gradient", grads, loss_at);
    check_second(&p);
    check_strides(&p);
    check_alone(&p, grads);
    check_directly(&p);
    check_compiled(&p, "eager", grads);
    check_compiled(&p, "native", grads);
}
