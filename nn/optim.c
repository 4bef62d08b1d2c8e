/* Optimisers: their groups of parameters, and what is done to all gradients at once. The formulas
 * are in nn/optim_rules.c. */
#include "nn/optim.h"
#include "nn/module.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const etch__optim_kinds[OPTIM_KINDS] = {"sgd", "adam", "adamw", "rmsprop"};

/* ---- options ---- */

/* 0 is the default, what is below 0 is 0. */
static void settle(double *value, double otherwise) {
    if (*value == 0) *value = otherwise;
    else if (*value < 0) *value = 0;
}

static etch_optim_options settled(optim_kind kind, const etch_optim_options *given) {
    etch_optim_options o;
    etch__nn_options(&o, sizeof o, given);
    settle(&o.lr, kind == OPTIM_RMSPROP ? 1e-2 : 1e-3);
    settle(&o.weight_decay, kind == OPTIM_ADAMW ? 1e-2 : 0);
    settle(&o.momentum, 0);
    settle(&o.dampening, 0);
    settle(&o.beta1, 0.9);
    settle(&o.beta2, 0.999);
    settle(&o.eps, 1e-8);
    settle(&o.alpha, 0.99);
    return o;
}

bool etch__optim_check(const char *function, const etch_optim_options *o) {
    const struct {
        bool right;
        const char *what;
    } checks[] = {{isfinite(o->lr), "a finite lr"},
                  {isfinite(o->weight_decay), "a finite weight_decay"},
                  {isfinite(o->momentum), "a finite momentum"},
                  {isfinite(o->dampening), "a finite dampening"},
                  {o->beta1 >= 0 && o->beta1 < 1, "beta1 below 1"},
                  {o->beta2 >= 0 && o->beta2 < 1, "beta2 below 1"},
                  {o->alpha >= 0 && o->alpha < 1, "alpha below 1"},
                  {isfinite(o->eps), "a finite eps"},
                  {!o->nesterov || (o->momentum > 0 && o->dampening == 0),
                   "nesterov with momentum and without dampening"}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!checks[i].right)
            return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT, "%s: expected %s", function,
                                 checks[i].what),
                   false;
    return true;
}

/* ---- life ---- */

static etch_optim *make(const char *function, optim_kind kind, const etch_module *m,
                        const etch_optim_options *options) {
    etch_optim_options o = settled(kind, options);
    if (!etch__optim_check(function, &o)) return NULL;
    etch_optim *made = calloc(1, sizeof *made);
    if (!made) return etch__nn_no_memory();
    made->kind = kind;
    made->defaults = o;
    if (!m || etch_optim_add_module_with(made, m, NULL) >= 0) return made;
    etch_optim_free(made);
    return NULL;
}

etch_optim *etch_optim_sgd_with(const etch_module *m, const etch_optim_options *options) {
    return make("etch_optim_sgd", OPTIM_SGD, m, options);
}

etch_optim *etch_optim_adam_with(const etch_module *m, const etch_optim_options *options) {
    return make("etch_optim_adam", OPTIM_ADAM, m, options);
}

etch_optim *etch_optim_adamw_with(const etch_module *m, const etch_optim_options *options) {
    return make("etch_optim_adamw", OPTIM_ADAMW, m, options);
}

etch_optim *etch_optim_rmsprop_with(const etch_module *m, const etch_optim_options *options) {
    return make("etch_optim_rmsprop", OPTIM_RMSPROP, m, options);
}

static void free_slot(optim_slot *s) {
    free(s->name);
    etch_release(s->parameter);
    for (int k = 0; k < STATES; k++) etch_release(s->state[k]);
}

void etch_optim_free(etch_optim *o) {
    if (!o) return;
    for (int i = 0; i < o->nslots; i++) free_slot(&o->slots[i]);
    free(o->slots);
    free(o->groups);
    free(o);
}

/* ---- groups ---- */

static bool check_tensor(const char *function, const etch_optim *o, const etch_tensor *t) {
    if (!t || t == ETCH_NONE) return etch__nn_null(function, "tensors"), false;
    if (!etch__nn_need_float(function, etch_dtype_of(t))) return false;
    bool there = false;
    for (int i = 0; i < o->nslots; i++) there |= o->slots[i].parameter == t;
    if (!there && etch_is_leaf(t)) return true;
    etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                  there ? "%s: a tensor is in the optimiser already"
                        : "%s: expected tensors of their own, got the result of operators with "
                          "gradients",
                  function);
    return false;
}

/* name: NULL for the number in the group. */
static bool add_slot(const char *function, etch_optim *o, etch_tensor *t, const char *name,
                     int number) {
    if (!check_tensor(function, o, t)) return false;
    optim_slot *grown = realloc(o->slots, ((size_t)o->nslots + 1) * sizeof *grown);
    if (!grown) return etch__nn_no_memory() != NULL;
    o->slots = grown;
    optim_slot *s = &grown[o->nslots];
    *s = (optim_slot){.group = o->ngroups - 1};
    size_t room = (name ? strlen(name) : 0) + 32;
    if (!(s->name = malloc(room))) return etch__nn_no_memory() != NULL;
    if (name) snprintf(s->name, room, "%d.%s", s->group, name);
    else snprintf(s->name, room, "%d.%d", s->group, number);
    s->parameter = etch_retain(t);
    o->nslots++;
    return !etch_requires_grad(t) || etch__optim_make_state(o, s);
}

static bool add_group(const char *function, etch_optim *o, const etch_optim_options *options) {
    etch_optim_options own = options ? settled(o->kind, options) : o->defaults;
    if (!etch__optim_check(function, &own)) return false;
    optim_group *grown = realloc(o->groups, ((size_t)o->ngroups + 1) * sizeof *grown);
    if (!grown) return etch__nn_no_memory() != NULL;
    o->groups = grown;
    grown[o->ngroups++].o = own;
    return true;
}

/* The group's number where all went well; else the group goes again. */
static int settle_group(etch_optim *o, int before, bool ok) {
    if (ok) return o->ngroups - 1;
    while (o->nslots > before) free_slot(&o->slots[--o->nslots]);
    o->ngroups--;
    return -1;
}

int etch_optim_add_with(etch_optim *o, etch_tensor *const *tensors, int n,
                        const etch_optim_options *options) {
    if (!o || n < 0 || (n && !tensors))
        return etch__nn_null("etch_optim_add", "an optimiser and tensors"), -1;
    if (!add_group("etch_optim_add", o, options)) return -1;
    int before = o->nslots;
    bool ok = true;
    for (int i = 0; ok && i < n; i++) ok = add_slot("etch_optim_add", o, tensors[i], NULL, i);
    return settle_group(o, before, ok);
}

int etch_optim_add_module_with(etch_optim *o, const etch_module *m,
                               const etch_optim_options *options) {
    if (!o || !m) return etch__nn_null("etch_optim_add_module", "an optimiser and a module"), -1;
    const listing *l = etch__nn_listing(m);
    if (!l || !add_group("etch_optim_add_module", o, options)) return -1;
    int before = o->nslots;
    bool ok = true;
    for (int i = 0; ok && i < l->nparameters; i++) {
        const struct listed *e = &l->all[l->parameters[i]];
        if (etch__nn_float(e->tensor))
            ok = add_slot("etch_optim_add_module", o, e->tensor, e->name, i);
    }
    return settle_group(o, before, ok);
}

/* ---- steps ---- */

static double rate_of(const etch_optim *o, int group) {
    return o->groups[group].o.lr * etch_schedule_factor(&o->schedule, o->steps);
}

static bool update(const etch_optim *o, optim_slot *s, double lr) {
    etch_tensor *grad = etch_grad_of(s->parameter);
    if (!grad) return true;
    bool ok = etch__optim_make_state(o, s);
    if (!ok) return false;
    etch_tensor *count = s->state[STATE_STEP];
    if (!count) s->steps++;
    ETCH_SCOPE {
        ETCH_NO_GRAD {
            ok = (!count || etch_add_scalar_(count, 1)) && etch__optim_update(o, s, grad, lr);
        }
    }
    return ok;
}

etch_status etch_optim_step(etch_optim *o) {
    if (!o) return etch__nn_null("etch_optim_step", "an optimiser");
    for (int i = 0; i < o->nslots; i++)
        if (!update(o, &o->slots[i], rate_of(o, o->slots[i].group))) return etch_last_status();
    o->steps++;
    return ETCH_OK;
}

etch_status etch_optim_zero_grad(etch_optim *o) {
    if (!o) return etch__nn_null("etch_optim_zero_grad", "an optimiser");
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < o->nslots; i++)
        status = etch_zero_grad(o->slots[i].parameter);
    return status;
}

int64_t etch_optim_steps(const etch_optim *o) { return o ? o->steps : -1; }

/* ---- gradients ---- */

/* The sum of squares, and the one before; NULL: there is none before. */
static etch_tensor *plus_squares(etch_tensor *sum, etch_tensor *grad) {
    etch_tensor *wide = etch__nn_to(grad, etch__nn_wide(etch_dtype_of(grad)));
    etch_tensor *squares = wide ? etch_square(wide) : NULL;
    etch_tensor *own = squares ? etch_sum(squares) : NULL;
    return own && sum ? etch_add(sum, own) : own;
}

static etch_tensor *norm_of(const etch_optim *o) {
    etch_tensor *sum = NULL;
    for (int i = 0; i < o->nslots; i++) {
        etch_tensor *grad = etch_grad_of(o->slots[i].parameter);
        if (grad && !(sum = plus_squares(sum, grad))) return NULL;
    }
    return sum ? etch_sqrt(sum) : etch_zeros(ETCH_F32, ETCH_SHAPE());
}

/* max_norm / (norm + 1e-6), at most 1: as a tensor, so that nothing is read. */
static etch_tensor *factor_for(etch_tensor *norm, double max_norm) {
    etch_tensor *top = NULL, *safe = etch_add_scalar(norm, 1e-6);
    if (safe) ETCH_ON(etch_device_of(norm)) {
            top = etch_full(etch_dtype_of(norm), ETCH_SHAPE(), max_norm);
        }
    etch_tensor *factor = top ? etch_div(top, safe) : NULL;
    return factor ? etch_clamp_max(factor, 1.0) : NULL;
}

static bool multiply_all(const etch_optim *o, etch_tensor *factor) {
    for (int i = 0; i < o->nslots; i++) {
        etch_tensor *grad = etch_grad_of(o->slots[i].parameter);
        if (grad && !etch_mul_(grad, factor)) return false;
    }
    return true;
}

etch_tensor *etch_optim_clip_grad_norm(etch_optim *o, double max_norm) {
    if (!o) return etch__nn_null("etch_optim_clip_grad_norm", "an optimiser"), NULL;
    if (!(max_norm >= 0)) {
        etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                      "etch_optim_clip_grad_norm: expected a norm of 0 or more, got %g", max_norm);
        return NULL;
    }
    etch_tensor *norm = NULL;
    bool ok = false;
    ETCH_NO_GRAD {
        norm = norm_of(o);
        etch_tensor *factor = norm ? factor_for(norm, max_norm) : NULL;
        ok = factor && multiply_all(o, factor);
    }
    return ok ? norm : NULL;
}

etch_status etch_optim_clip_grad_value(etch_optim *o, double value) {
    if (!o) return etch__nn_null("etch_optim_clip_grad_value", "an optimiser");
    if (!(value >= 0))
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "etch_optim_clip_grad_value: expected a value of 0 or more, got %g",
                             value);
    etch_status status = ETCH_OK;
    ETCH_NO_GRAD {
        for (int i = 0; status == ETCH_OK && i < o->nslots; i++) {
            etch_tensor *grad = etch_grad_of(o->slots[i].parameter);
            if (grad && !etch_clamp_(grad, -value, value)) status = etch_last_status();
        }
    }
    return status;
}

etch_status etch_optim_scale_grad(etch_optim *o, double factor) {
    if (!o) return etch__nn_null("etch_optim_scale_grad", "an optimiser");
    etch_status status = ETCH_OK;
    ETCH_NO_GRAD {
        for (int i = 0; status == ETCH_OK && i < o->nslots; i++) {
            etch_tensor *grad = etch_grad_of(o->slots[i].parameter);
            if (grad && !etch_mul_scalar_(grad, factor)) status = etch_last_status();
        }
    }
    return status;
}

/* ---- learning rates ---- */

etch_status etch_optim_set_schedule(etch_optim *o, const etch_schedule *s) {
    if (!o) return etch__nn_null("etch_optim_set_schedule", "an optimiser");
    etch_schedule none = {.kind = ETCH_SCHEDULE_CONSTANT};
    if (s && isnan(etch_schedule_factor(s, 0))) return etch_last_status();
    o->schedule = s ? *s : none;
    return ETCH_OK;
}

static bool has_group(const char *function, const etch_optim *o, int group) {
    if (!o) return etch__nn_null(function, "an optimiser"), false;
    if (group >= 0 && group < o->ngroups) return true;
    etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT, "%s: expected a group below %d, got %d", function,
                  o->ngroups, group);
    return false;
}

etch_status etch_optim_set_lr(etch_optim *o, int group, double lr) {
    if (o && group == -1 && isfinite(lr)) {
        o->defaults.lr = lr;
        for (int i = 0; i < o->ngroups; i++) o->groups[i].o.lr = lr;
        return ETCH_OK;
    }
    if (!has_group("etch_optim_set_lr", o, group)) return etch_last_status();
    if (!isfinite(lr))
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "etch_optim_set_lr: expected a finite number, got %g", lr);
    o->groups[group].o.lr = lr;
    return ETCH_OK;
}

double etch_optim_lr(const etch_optim *o, int group) {
    return has_group("etch_optim_lr", o, group) ? rate_of(o, group) : NAN;
}
