/* Losses: see include/etch/nn.h. Compositions of operators, in f32 for half types.
 *
 * Where a formula has two branches that meet (|x|, max) both sides of the meeting point take the
 * branch of the same comparison, so that what operators give as derivatives there adds up to the
 * derivative of the whole. */
#include "nn/module.h"

#include <string.h>

/* One call: its options, and the tensors in the dtype that they are computed in. */
typedef struct loss {
    const char *function;
    etch_loss_options o;
    etch_dtype dtype; /* of the result */
    etch_tensor *x, *target;
} loss;

/* ---- what may come ---- */

static etch_status refuse_sizes(const loss *l, const char *what, const etch_tensor *input,
                                const etch_tensor *target) {
    char have[SIZES_TEXT], want[SIZES_TEXT];
    return etch__nn_fail(ETCH_ERR_SHAPE, "%s: expected %s, got input %s and target %s", l->function,
                         what, etch__nn_sizes(input, have), etch__nn_sizes(target, want));
}

static bool check_options(const loss *l) {
    const etch_loss_options *o = &l->o;
    const char *wrong = (unsigned)o->reduction > ETCH_REDUCE_BATCHMEAN ? "a reduction"
                        : !(o->label_smoothing >= 0 && o->label_smoothing <= 1)
                            ? "a label_smoothing of 0 to 1"
                        : !(o->beta > 0)  ? "a beta above 0"
                        : !(o->delta > 0) ? "a delta above 0"
                                          : NULL;
    if (wrong) etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT, "%s: expected %s", l->function, wrong);
    return !wrong;
}

static bool begin(loss *l, const char *function, etch_tensor *input, etch_tensor *target,
                  const etch_loss_options *options) {
    *l = (loss){.function = function};
    etch__nn_options(&l->o, sizeof l->o, options);
    if (!l->o.beta) l->o.beta = 1;
    if (!l->o.delta) l->o.delta = 1;
    if (!l->o.ignore) l->o.ignore_index = -100;
    if (!input || !target || input == ETCH_NONE || target == ETCH_NONE)
        return etch__nn_null(function, "an input and a target"), false;
    if (!check_options(l) || !etch__nn_need_float(function, etch_dtype_of(input))) return false;
    l->dtype = etch_dtype_of(input);
    l->x = etch__nn_to(input, etch__nn_wide(l->dtype));
    l->target = target;
    return l->x != NULL;
}

/* For losses that compare element by element. */
static bool begin_same(loss *l, const char *function, etch_tensor *input, etch_tensor *target,
                       const etch_loss_options *options) {
    if (!begin(l, function, input, target, options)) return false;
    if (!etch__nn_same_sizes(input, target))
        return refuse_sizes(l, "a target of the input's sizes", input, target), false;
    l->target = etch__nn_to(target, etch_dtype_of(l->x));
    return l->target != NULL;
}

/* ---- what goes out ---- */

static etch_tensor *reduced(const loss *l, etch_tensor *t) {
    if (!t || l->o.reduction == ETCH_REDUCE_NONE) return t;
    if (l->o.reduction == ETCH_REDUCE_MEAN) return etch_mean(t);
    etch_tensor *sum = etch_sum(t);
    if (!sum || l->o.reduction == ETCH_REDUCE_SUM) return sum;
    int64_t rows = etch_ndim(l->x) ? etch_size(l->x, 0) : 1;
    return etch_div_scalar(sum, (double)rows);
}

static etch_tensor *finish(const loss *l, etch_tensor *t) {
    return etch__nn_to(reduced(l, t), l->dtype);
}

/* ---- element by element ---- */

etch_tensor *etch_nn_mse_loss_with(etch_tensor *input, etch_tensor *target,
                                   const etch_loss_options *options) {
    loss l;
    if (!begin_same(&l, "etch_nn_mse_loss", input, target, options)) return NULL;
    etch_tensor *d = etch_sub(l.x, l.target);
    return finish(&l, d ? etch_square(d) : NULL);
}

static etch_tensor *distance(const loss *l) {
    etch_tensor *d = etch_sub(l->x, l->target);
    return d ? etch_abs(d) : NULL;
}

etch_tensor *etch_nn_l1_loss_with(etch_tensor *input, etch_tensor *target,
                                  const etch_loss_options *options) {
    loss l;
    if (!begin_same(&l, "etch_nn_l1_loss", input, target, options)) return NULL;
    return finish(&l, distance(&l));
}

/* near where d is below the edge, far elsewhere. */
static etch_tensor *either(etch_tensor *below, etch_tensor *near, etch_tensor *far) {
    return below && near && far ? etch_where(below, near, far) : NULL;
}

static etch_tensor *scaled_square(etch_tensor *d, double factor) {
    etch_tensor *s = d ? etch_square(d) : NULL;
    return s ? etch_mul_scalar(s, factor) : NULL;
}

etch_tensor *etch_nn_smooth_l1_loss_with(etch_tensor *input, etch_tensor *target,
                                         const etch_loss_options *options) {
    loss l;
    if (!begin_same(&l, "etch_nn_smooth_l1_loss", input, target, options)) return NULL;
    etch_tensor *d = distance(&l), *far = d ? etch_sub_scalar(d, l.o.beta / 2) : NULL;
    etch_tensor *below = far ? etch_lt_scalar(d, l.o.beta) : NULL;
    return finish(&l, either(below, scaled_square(d, 0.5 / l.o.beta), far));
}

etch_tensor *etch_nn_huber_loss_with(etch_tensor *input, etch_tensor *target,
                                     const etch_loss_options *options) {
    loss l;
    if (!begin_same(&l, "etch_nn_huber_loss", input, target, options)) return NULL;
    etch_tensor *d = distance(&l), *off = d ? etch_sub_scalar(d, l.o.delta / 2) : NULL;
    etch_tensor *far = off ? etch_mul_scalar(off, l.o.delta) : NULL;
    etch_tensor *below = far ? etch_le_scalar(d, l.o.delta) : NULL;
    return finish(&l, either(below, scaled_square(d, 0.5), far));
}

/* log(1 + exp(-x)): with |x| and max(-x, 0), both by whether x is below 0. */
static etch_tensor *softplus_of_negative(etch_tensor *x) {
    etch_tensor *above = etch_ge_scalar(x, 0.0), *turned = above ? etch_neg(x) : NULL;
    etch_tensor *size = turned ? etch_where(above, turned, x) : NULL; /* -|x| */
    etch_tensor *power = size ? etch_exp(size) : NULL, *log = power ? etch_log1p(power) : NULL;
    etch_tensor *rest = log ? etch_masked_fill(turned, above, 0.0) : NULL;
    return rest ? etch_add(log, rest) : NULL;
}

/* 1 + (pos_weight - 1) t */
static etch_tensor *weight_of_true(const loss *l) {
    etch_tensor *w = etch__nn_to(l->o.pos_weight, etch_dtype_of(l->x));
    etch_tensor *more = w ? etch_sub_scalar(w, 1.0) : NULL;
    etch_tensor *part = more ? etch_mul(more, l->target) : NULL;
    return part ? etch_add_scalar(part, 1.0) : NULL;
}

/* Weights broadcast to the input, and never the input to them. */
static etch_tensor *kept_size(const loss *l, etch_tensor *t, const etch_tensor *weight) {
    if (!t || etch__nn_same_sizes(t, l->x)) return t;
    refuse_sizes(l, "weights that broadcast to the input", l->x, weight);
    return NULL;
}

etch_tensor *etch_nn_bce_with_logits_with(etch_tensor *input, etch_tensor *target,
                                          const etch_loss_options *options) {
    loss l;
    if (!begin_same(&l, "etch_nn_bce_with_logits", input, target, options)) return NULL;
    etch_tensor *soft = softplus_of_negative(l.x);
    if (soft && l.o.pos_weight) {
        etch_tensor *w = weight_of_true(&l);
        soft = kept_size(&l, w ? etch_mul(soft, w) : NULL, l.o.pos_weight);
    }
    etch_tensor *false_part = soft ? etch_rsub_scalar(l.target, 1.0) : NULL;
    etch_tensor *linear = false_part ? etch_mul(false_part, l.x) : NULL;
    etch_tensor *y = linear ? etch_add(linear, soft) : NULL;
    if (y && l.o.weight) y = kept_size(&l, etch_mul(y, l.o.weight), l.o.weight);
    return finish(&l, y);
}

/* t log(t), 0 where t is. */
static etch_tensor *times_log(etch_tensor *t) {
    etch_tensor *none = etch_eq_scalar(t, 0.0);
    etch_tensor *safe = none ? etch_masked_fill(t, none, 1.0) : NULL;
    etch_tensor *log = safe ? etch_log(safe) : NULL;
    return log ? etch_mul(t, log) : NULL;
}

static etch_tensor *kl_of_logs(const loss *l) {
    etch_tensor *p = etch_exp(l->target), *d = p ? etch_sub(l->target, l->x) : NULL;
    return d ? etch_mul(p, d) : NULL;
}

etch_tensor *etch_nn_kl_div_with(etch_tensor *input, etch_tensor *target,
                                 const etch_loss_options *options) {
    loss l;
    if (!begin_same(&l, "etch_nn_kl_div", input, target, options)) return NULL;
    if (l.o.log_target) return finish(&l, kl_of_logs(&l));
    etch_tensor *own = times_log(l.target), *other = own ? etch_mul(l.target, l.x) : NULL;
    return finish(&l, other ? etch_sub(own, other) : NULL);
}

/* ---- classes ---- */

static int class_dim(const etch_tensor *x) { return etch_ndim(x) == 1 ? 0 : 1; }

/* [C] as [1, C, 1, ...] */
static etch_tensor *along_classes(const loss *l, etch_tensor *weight) {
    etch_shape sizes = {.n = etch_ndim(l->x)};
    for (int d = 0; d < sizes.n; d++) sizes.v[d] = 1;
    sizes.v[class_dim(l->x)] = etch_size(weight, 0);
    return etch_view(weight, sizes);
}

static bool check_weight(loss *l) {
    if (!l->o.weight) return true;
    if (etch_ndim(l->o.weight) != 1 ||
        etch_size(l->o.weight, 0) != etch_size(l->x, class_dim(l->x)))
        return refuse_sizes(l, "a weight of [C], a number for each class (here as target)", l->x,
                            l->o.weight),
               false;
    l->o.weight = etch__nn_to(l->o.weight, etch_dtype_of(l->x));
    return l->o.weight != NULL;
}

/* Whether the target's sizes are the input's without the classes. */
static bool fits_classes(const etch_tensor *x, const etch_tensor *target) {
    int n = etch_ndim(x), dim = class_dim(x);
    bool same = n > 0 && etch_ndim(target) == n - 1;
    for (int d = 0; same && d < n - 1; d++)
        same = etch_size(target, d) == etch_size(x, d < dim ? d : d + 1);
    return same;
}

/* What is known of the targets of one call. */
typedef struct classes {
    etch_tensor *ignored; /* bool */
    etch_tensor *index;   /* 0 where they are ignored */
    etch_tensor *weight;  /* of each target, 0 where ignored; NULL: none are given */
    etch_tensor *total;   /* what the mean is divided by; NULL where there is no mean */
} classes;

static bool read_classes(const loss *l, classes *c) {
    c->ignored = etch_eq_scalar(l->target, l->o.ignore_index);
    c->index = c->ignored ? etch_masked_fill(l->target, c->ignored, 0) : NULL;
    if (!c->index) return false;
    if (l->o.weight) {
        etch_tensor *w = etch_take(l->o.weight, c->index);
        if (!w || !(c->weight = etch_masked_fill(w, c->ignored, 0.0))) return false;
    }
    if (l->o.reduction != ETCH_REDUCE_MEAN) return true;
    etch_tensor *count = c->weight ? c->weight : etch_logical_not(c->ignored);
    return count && (c->total = etch_sum(count));
}

static etch_tensor *reduced_classes(const loss *l, const classes *c, etch_tensor *t) {
    if (!t || l->o.reduction != ETCH_REDUCE_MEAN) return reduced(l, t);
    etch_tensor *sum = etch_sum(t);
    return sum ? etch_div(sum, c->total) : NULL;
}

/* -w[t] x[t] of log probabilities. */
static etch_tensor *nll(const loss *l, const classes *c, etch_tensor *logs) {
    int dim = class_dim(logs);
    etch_tensor *index = etch_unsqueeze(c->index, dim);
    etch_tensor *picked = index ? etch_gather(logs, dim, index) : NULL;
    etch_tensor *flat = picked ? etch_squeeze_dim(picked, dim) : NULL;
    etch_tensor *y = flat ? etch_neg(flat) : NULL;
    if (y && c->weight) y = etch_mul(y, c->weight);
    if (y) y = etch_masked_fill(y, c->ignored, 0.0);
    return reduced_classes(l, c, y);
}

/* The same of all classes alike. */
static etch_tensor *of_all_classes(const loss *l, const classes *c, etch_tensor *logs) {
    if (l->o.weight) {
        etch_tensor *w = along_classes(l, l->o.weight);
        logs = w ? etch_mul(logs, w) : NULL;
    }
    etch_tensor *sum = logs ? etch_sum_dim(logs, ETCH_DIMS(class_dim(l->x)), false) : NULL;
    etch_tensor *y = sum ? etch_neg(sum) : NULL;
    return reduced_classes(l, c, y ? etch_masked_fill(y, c->ignored, 0.0) : NULL);
}

/* a (1 - s) + b s / C */
static etch_tensor *smoothed(const loss *l, etch_tensor *a, etch_tensor *b) {
    double s = l->o.label_smoothing, n = (double)etch_size(l->x, class_dim(l->x));
    etch_tensor *left = a && b ? etch_mul_scalar(a, 1 - s) : NULL;
    etch_tensor *right = left ? etch_mul_scalar(b, s / n) : NULL;
    return right ? etch_add(left, right) : NULL;
}

static etch_tensor *of_classes(const loss *l, etch_tensor *logs) {
    classes c = {0};
    if (!logs || !read_classes(l, &c)) return NULL;
    etch_tensor *y = nll(l, &c, logs);
    if (l->o.label_smoothing > 0) y = smoothed(l, y, of_all_classes(l, &c, logs));
    return etch__nn_to(y, l->dtype);
}

static bool is_integer(const etch_tensor *t) {
    return !etch__nn_float(t) && etch_dtype_of(t) != ETCH_BOOL;
}

static bool check_classes(loss *l, const char *what) {
    if (!is_integer(l->target)) {
        etch__nn_fail(ETCH_ERR_DTYPE, "%s: expected %s, got %s", l->function, what,
                      etch_dtype_name(etch_dtype_of(l->target)));
        return false;
    }
    if (!fits_classes(l->x, l->target))
        return refuse_sizes(l, "an input [N, C, ...] or [C] and a target without C", l->x,
                            l->target),
               false;
    if (etch_dtype_of(l->target) != ETCH_I64 && !(l->target = etch_to(l->target, ETCH_I64)))
        return false;
    return check_weight(l);
}

etch_tensor *etch_nn_nll_loss_with(etch_tensor *input, etch_tensor *target,
                                   const etch_loss_options *options) {
    loss l;
    if (!begin(&l, "etch_nn_nll_loss", input, target, options) ||
        !check_classes(&l, "classes of integers"))
        return NULL;
    l.o.label_smoothing = 0;
    return of_classes(&l, l.x);
}

/* ---- probabilities ---- */

static etch_tensor *of_probabilities(const loss *l, etch_tensor *logs) {
    int dim = class_dim(l->x);
    double s = l->o.label_smoothing, n = (double)etch_size(l->x, dim);
    etch_tensor *p = logs ? etch__nn_to(l->target, etch_dtype_of(l->x)) : NULL;
    if (p && s > 0 && (p = etch_mul_scalar(p, 1 - s))) p = etch_add_scalar(p, s / n);
    if (p && l->o.weight) {
        etch_tensor *w = along_classes(l, l->o.weight);
        p = w ? etch_mul(p, w) : NULL;
    }
    etch_tensor *products = p ? etch_mul(logs, p) : NULL;
    if (products && l->o.reduction == ETCH_REDUCE_MEAN) { /* over rows */
        etch_tensor *sum = etch_sum(products);
        double rows = (double)etch_numel(l->x) / n;
        return etch__nn_to(sum ? etch_div_scalar(sum, -rows) : NULL, l->dtype);
    }
    etch_tensor *rows = products ? etch_sum_dim(products, ETCH_DIMS(dim), false) : NULL;
    return finish(l, rows ? etch_neg(rows) : NULL);
}

etch_tensor *etch_nn_cross_entropy_with(etch_tensor *input, etch_tensor *target,
                                        const etch_loss_options *options) {
    loss l;
    if (!begin(&l, "etch_nn_cross_entropy", input, target, options)) return NULL;
    bool probabilities = etch__nn_float(target);
    if (!etch_ndim(input) || (probabilities && !etch__nn_same_sizes(input, target)))
        return refuse_sizes(&l,
                            "an input [N, C, ...] or [C] and probabilities of these sizes (classes "
                            "are integers)",
                            input, target),
               NULL;
    if (probabilities ? !check_weight(&l)
                      : !check_classes(&l, "classes of integers, or probabilities"))
        return NULL;
    etch_tensor *logs = etch_log_softmax_as(input, class_dim(input), etch_dtype_of(l.x));
    return probabilities ? of_probabilities(&l, logs) : of_classes(&l, logs);
}
