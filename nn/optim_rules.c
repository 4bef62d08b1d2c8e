/* The formulas of the optimisers: what each keeps of a parameter, and one update, as operators in
 * place. What changes from step to step is a scalar operand everywhere; with `capturable` it is a
 * tensor, made of the step's. */
#include "nn/module.h"
#include "nn/optim.h"

#include <math.h>

/* ---- state ---- */

static bool is_half(etch_dtype d) { return d == ETCH_BF16 || d == ETCH_F16; }

bool etch__optim_wants(optim_kind kind, const etch_optim_options *o, etch_dtype dtype,
                       optim_state state) {
    bool adam = kind == OPTIM_ADAM || kind == OPTIM_ADAMW, rms = kind == OPTIM_RMSPROP;
    switch (state) {
    case STATE_MOMENTUM: return !adam && o->momentum > 0;
    case STATE_MEAN: return adam || (rms && o->centered);
    case STATE_SQUARE: return adam || rms;
    case STATE_LARGEST: return adam && o->amsgrad;
    case STATE_STEP: return o->capturable;
    default: return o->master && is_half(dtype);
    }
}

const char *etch__optim_state_name(optim_kind kind, optim_state state) {
    static const char *const adam[STATES] = {"momentum_buffer", "exp_avg", "exp_avg_sq",
                                             "max_exp_avg_sq",  "master",  "step"};
    static const char *const others[STATES] = {"momentum_buffer", "grad_avg", "square_avg", "",
                                               "master",          "step"};
    return (kind == OPTIM_ADAM || kind == OPTIM_ADAMW ? adam : others)[state];
}

/* In an open scope. */
static etch_tensor *zero_state(const optim_slot *s, optim_state state, bool master) {
    etch_tensor *p = s->parameter;
    if (state == STATE_MASTER) return etch_to(p, ETCH_F32);
    if (state == STATE_STEP) return etch_full(ETCH_I64, ETCH_SHAPE(), (double)s->steps);
    return etch_zeros(master ? ETCH_F32 : etch_dtype_of(p), etch_sizes(p));
}

static etch_tensor *make_one(const optim_slot *s, optim_state state, bool master) {
    etch_tensor *t = NULL;
    ETCH_SCOPE {
        ETCH_NO_GRAD {
            ETCH_ON(etch_device_of(s->parameter)) { t = etch_retain(zero_state(s, state, master)); }
        }
    }
    return t;
}

bool etch__optim_make_state(const etch_optim *o, optim_slot *s) {
    const etch_optim_options *options = &o->groups[s->group].o;
    etch_dtype dtype = etch_dtype_of(s->parameter);
    bool master = etch__optim_wants(o->kind, options, dtype, STATE_MASTER);
    for (optim_state k = 0; k < STATES; k++)
        if (!s->state[k] && etch__optim_wants(o->kind, options, dtype, k) &&
            !(s->state[k] = make_one(s, k, master)))
            return false;
    return true;
}

/* ---- steps of formulas ---- */

/* t + factor x, in place, rounded once. */
static bool add_scaled(etch_tensor *t, etch_tensor *x, double factor) {
    etch_tensor *sum = x ? etch_add_alpha(t, x, factor) : NULL;
    return sum && etch_copy_(t, sum);
}

/* The gradient as the formulas take it: of the parameter's dtype (a master's: f32), turned where
 * the loss is to grow, with the parameter's decay. */
static etch_tensor *gradient(etch_tensor *grad, etch_tensor *w, const etch_optim_options *o,
                             bool decays) {
    grad = etch__nn_to(grad, etch_dtype_of(w));
    if (grad && o->maximize) grad = etch_neg(grad);
    if (grad && decays && o->weight_decay != 0) grad = etch_add_alpha(grad, w, o->weight_decay);
    return grad;
}

/* v = factor v + (1 - factor) g^2 */
static bool mean_square(etch_tensor *v, etch_tensor *g, double factor) {
    return etch_mul_scalar_(v, factor) && etch_addcmul_(v, g, g, 1 - factor);
}

/* ---- the step as a tensor ---- */

/* 1 - base^step, of no dimensions. */
static etch_tensor *correction(etch_tensor *step, double base) {
    etch_tensor *t = NULL;
    ETCH_ON(etch_device_of(step)) { t = etch_full(ETCH_F64, ETCH_SHAPE(), base); }
    etch_tensor *power = t ? etch_pow(t, step) : NULL, *less = power ? etch_neg(power) : NULL;
    return less ? etch_add_scalar(less, 1.0) : NULL;
}

/* As operands of what w takes: rounded once, and no more than w is. */
static etch_tensor *as_factor(etch_tensor *t, const etch_tensor *w) {
    return t ? etch__nn_to(t, etch__nn_wide(etch_dtype_of(w))) : NULL;
}

/* t of no dimensions as `first` at the first step, else as `later`. */
static etch_tensor *first_or_later(etch_tensor *step, double first, double later) {
    etch_tensor *t = NULL, *is = etch_eq_scalar(step, 1);
    ETCH_ON(etch_device_of(step)) { t = etch_full(ETCH_F64, ETCH_SHAPE(), later); }
    return t && is ? etch_masked_fill(t, is, first) : NULL;
}

/* ---- sgd ---- */

/* What comes to the momentum: all of the gradient at the first step. */
static etch_tensor *part_of(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                            etch_tensor *g) {
    etch_tensor *step = s->state[STATE_STEP];
    if (!step || o->dampening == 0)
        return etch_mul_scalar(g, !step && s->steps == 1 ? 1.0 : 1 - o->dampening);
    etch_tensor *factor = as_factor(first_or_later(step, 1.0, 1 - o->dampening), w);
    return factor ? etch_mul(g, factor) : NULL;
}

/* At the first step the momentum is the gradient: zeros, and all of the gradient. The same
 * operators with another scalar, so that compiled code need not be another. */
static etch_tensor *with_momentum(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                                  etch_tensor *g) {
    etch_tensor *b = s->state[STATE_MOMENTUM];
    etch_tensor *part = part_of(o, s, w, g);
    if (!part || !etch_mul_scalar_(b, o->momentum) || !etch_add_(b, part)) return NULL;
    if (!o->nesterov) return b;
    etch_tensor *ahead = etch_mul_scalar(b, o->momentum);
    return ahead ? etch_add(g, ahead) : NULL;
}

static bool sgd(const etch_optim_options *o, const optim_slot *s, etch_tensor *w, etch_tensor *grad,
                double lr) {
    etch_tensor *g = gradient(grad, w, o, true);
    if (g && s->state[STATE_MOMENTUM]) g = with_momentum(o, s, w, g);
    return add_scaled(w, g, -lr);
}

/* ---- adam, adamw ---- */

/* w -= lr / (1 - beta1^t) m / (root / sqrt(1 - beta2^t) + eps) */
static bool corrected(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                      etch_tensor *root, double lr) {
    double t = (double)s->steps, first = 1 - pow(o->beta1, t), second = 1 - pow(o->beta2, t);
    etch_tensor *scaled = etch_div_scalar(root, sqrt(second));
    etch_tensor *below = scaled ? etch_add_scalar(scaled, o->eps) : NULL;
    return below && etch_addcdiv_(w, s->state[STATE_MEAN], below, -lr / first);
}

/* The same, of tensors. */
static bool corrected_by_tensor(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                                etch_tensor *root, double lr) {
    etch_tensor *step = s->state[STATE_STEP], *first = correction(step, o->beta1);
    etch_tensor *second = first ? correction(step, o->beta2) : NULL;
    etch_tensor *divisor = second ? as_factor(etch_sqrt(second), w) : NULL;
    etch_tensor *inverse = divisor ? etch_reciprocal(first) : NULL;
    etch_tensor *rate = inverse ? as_factor(etch_mul_scalar(inverse, -lr), w) : NULL;
    etch_tensor *scaled = rate ? etch_div(root, divisor) : NULL;
    etch_tensor *below = scaled ? etch_add_scalar(scaled, o->eps) : NULL;
    etch_tensor *top = below ? etch_mul(s->state[STATE_MEAN], rate) : NULL;
    return top && etch_addcdiv_(w, top, below, 1.0);
}

static bool adam_step(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                      etch_tensor *g, double lr) {
    etch_tensor *m = s->state[STATE_MEAN], *v = s->state[STATE_SQUARE];
    etch_tensor *top = s->state[STATE_LARGEST];
    if (!etch_lerp_(m, g, 1 - o->beta1) || !mean_square(v, g, o->beta2)) return false;
    if (top) {
        etch_tensor *larger = etch_maximum(top, v);
        if (!larger || !(v = etch_copy_(top, larger))) return false;
    }
    etch_tensor *root = etch_sqrt(v);
    return root && (s->state[STATE_STEP] ? corrected_by_tensor : corrected)(o, s, w, root, lr);
}

static bool adam(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                 etch_tensor *grad, double lr) {
    etch_tensor *g = gradient(grad, w, o, true);
    return g && adam_step(o, s, w, g, lr);
}

static bool adamw(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                  etch_tensor *grad, double lr) {
    etch_tensor *g = gradient(grad, w, o, false);
    return g && etch_mul_scalar_(w, 1 - lr * o->weight_decay) && adam_step(o, s, w, g, lr);
}

/* ---- rmsprop ---- */

/* sqrt(v) + eps, or of v less the square of the mean. */
static etch_tensor *deviation(const etch_optim_options *o, const optim_slot *s, etch_tensor *g) {
    etch_tensor *v = s->state[STATE_SQUARE], *mean = s->state[STATE_MEAN];
    if (!mean_square(v, g, o->alpha)) return NULL;
    if (mean) v = etch_lerp_(mean, g, 1 - o->alpha) ? etch_addcmul(v, mean, mean, -1.0) : NULL;
    etch_tensor *root = v ? etch_sqrt(v) : NULL;
    return root ? etch_add_scalar(root, o->eps) : NULL;
}

static bool rmsprop(const etch_optim_options *o, const optim_slot *s, etch_tensor *w,
                    etch_tensor *grad, double lr) {
    etch_tensor *g = gradient(grad, w, o, true), *b = s->state[STATE_MOMENTUM];
    etch_tensor *below = g ? deviation(o, s, g) : NULL;
    if (!below) return false;
    if (!b) return etch_addcdiv_(w, g, below, -lr) != NULL;
    return etch_mul_scalar_(b, o->momentum) && etch_addcdiv_(b, g, below, 1.0) &&
           add_scaled(w, b, -lr);
}

/* ---- one update ---- */

bool etch__optim_update(const etch_optim *o, const optim_slot *s, etch_tensor *grad, double lr) {
    static bool (*const rules[OPTIM_KINDS])(const etch_optim_options *, const optim_slot *,
                                            etch_tensor *, etch_tensor *,
                                            double) = {sgd, adam, adamw, rmsprop};
    etch_tensor *master = s->state[STATE_MASTER], *w = master ? master : s->parameter;
    if (!rules[o->kind](&o->groups[s->group].o, s, w, grad, lr)) return false;
    return !master || etch_copy_(s->parameter, master);
}
