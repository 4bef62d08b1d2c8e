/* Optimisers: what changes parameters by their gradients.
 *
 *     etch_optim *o = etch_optim_adamw(m, .lr = 3e-4);
 *     for (...)
 *         ETCH_SCOPE {
 *             etch_backward(loss_of(m, batch));
 *             etch_optim_clip_grad_norm(o, 1.0);
 *             etch_optim_step(o);
 *             etch_optim_zero_grad(o);
 *         }
 *     etch_optim_free(o);
 *
 * Every update is made of operators in place on parameters and state, in a block without gradients:
 * inside a compiled function it is part of the trace. What changes from step to step (learning
 * rates, powers of beta) are scalars of operators, which are run-time values of compiled code, so
 * that a compiled step is compiled once. They are computed in C at each call of etch_optim_step: a
 * function compiled with `replay`, which does not run its body, would go on with the first ones.
 * With `capturable` they follow from a tensor that each step counts up: such a step can be
 * exported, and, in ETCH_NO_GRAD, replayed.
 *
 * Gradients accumulate over backward calls until etch_optim_zero_grad; etch_optim_scale_grad(o,
 * 1.0 / n) makes means of sums. An optimiser is for one thread at a time. Formulas are those of
 * PyTorch's torch.optim. */
#ifndef ETCH_OPTIM_H
#define ETCH_OPTIM_H

#include <etch/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct etch_optim etch_optim;

/* All zero is the default; where 0 stands for another number, one below 0 stands for 0. */
typedef struct etch_optim_options {
    size_t struct_size;  /* set by the macros */
    double lr;           /* 0: 1e-3, of rmsprop 1e-2 */
    double weight_decay; /* adamw, 0: 1e-2; shrinks parameters there, else adds to gradients */
    double momentum;     /* sgd, rmsprop */
    double dampening;    /* sgd: of what comes to the momentum */
    bool nesterov;       /* sgd, with momentum and without dampening */
    double beta1, beta2; /* adam, adamw; 0: 0.9 and 0.999 */
    double eps;          /* all but sgd; 0: 1e-8 */
    bool amsgrad;        /* adam, adamw: divides by the largest second moment so far */
    double alpha;        /* rmsprop; 0: 0.99 */
    bool centered;       /* rmsprop: divides by an estimate of the variance */
    bool maximize;
    bool master; /* parameters of half types: state and a copy of the parameter are f32, and the
                    parameter is that copy, rounded */
    bool
        capturable; /* the step t of each parameter is a tensor on its device, and what follows from
                        it is computed by operators: equal but for rounding. Files are the same;
                        a schedule's rates stay numbers of C */
} etch_optim_options;

/* g: the gradient, w: the parameter, t: the step, from 1.
 *
 * sgd      g += weight_decay w;  b = momentum b + (1 - dampening) g (at first b = g);
 *          w -= lr b, or (nesterov) lr (g + momentum b), or (no momentum) lr g
 * adam     g += weight_decay w;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;
 *          w -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)  (Kingma and Ba 2015;
 *          amsgrad, the largest v so far in its place: Reddi et al. 2018)
 * adamw    the same, with w *= 1 - lr weight_decay before (Loshchilov and Hutter 2019)
 * rmsprop  g += weight_decay w;  v = alpha v + (1 - alpha) g^2;  d = sqrt(v) + eps, or (centered)
 *          sqrt(v - a^2) + eps with a += (1 - alpha) (g - a);
 *          w -= lr g / d, or lr b with b = momentum b + g / d
 *
 * Each makes an optimiser of the parameters of m (NULL: none yet) in one group, with zeros as
 * state, on their devices. The tensors are counted, so m may go first. NULL with the error set:
 * invalid_argument for an option out of its range. Needs no open scope. */
ETCH_API etch_optim *etch_optim_sgd_with(const etch_module *m, const etch_optim_options *options);
ETCH_API etch_optim *etch_optim_adam_with(const etch_module *m, const etch_optim_options *options);
ETCH_API etch_optim *etch_optim_adamw_with(const etch_module *m, const etch_optim_options *options);
ETCH_API etch_optim *etch_optim_rmsprop_with(const etch_module *m,
                                             const etch_optim_options *options);
/* NULL is a no-op. */
ETCH_API void etch_optim_free(etch_optim *o);

/* Adds a group of n tensors, or of the parameters of a module, with options of its own (NULL: those
 * that o was made with). Returns the number of the group; -1 with the error set: dtype (not of
 * floating point), invalid_argument (a tensor that is in o already, or is no leaf). */
ETCH_API int etch_optim_add_with(etch_optim *o, etch_tensor *const *tensors, int n,
                                 const etch_optim_options *options);
ETCH_API int etch_optim_add_module_with(etch_optim *o, const etch_module *m,
                                        const etch_optim_options *options);

/* One update of all parameters that have a gradient; those without stay as they are, and their own
 * count of steps, too. Borrows gradients. Reads no data. After an error some parameters may have
 * been updated. */
ETCH_API etch_status etch_optim_step(etch_optim *o);
/* Drops the gradients of all parameters. */
ETCH_API etch_status etch_optim_zero_grad(etch_optim *o);
/* How often etch_optim_step was called; -1 for NULL. */
ETCH_API int64_t etch_optim_steps(const etch_optim *o);

/* ---- gradients ---- */

/* If the norm of all gradients as one vector is above max_norm, multiplies them, in place, by
 * max_norm / (norm + 1e-6). Returns the norm before, a tensor of one element (f32, or f64 where a
 * gradient is f64), owned by the innermost scope; no data is read. All gradients lie on one device.
 * NULL with the error set. */
ETCH_API etch_tensor *etch_optim_clip_grad_norm(etch_optim *o, double max_norm);
/* Each element into [-value, value], in place. */
ETCH_API etch_status etch_optim_clip_grad_value(etch_optim *o, double value);
/* Multiplies all gradients, in place: by 1 / n after n backward calls, or to undo a scaled loss. */
ETCH_API etch_status etch_optim_scale_grad(etch_optim *o, double factor);

/* ---- learning rates ---- */

/* A factor for learning rates by the number of steps done: t = 0 at the first. All zero is 1. */
typedef enum etch_schedule_kind {
    ETCH_SCHEDULE_CONSTANT, /* 1 */
    ETCH_SCHEDULE_STEP,     /* gamma^floor(t / period) */
    ETCH_SCHEDULE_COSINE,   /* least + (1 - least) (1 + cos(pi t / total)) / 2, then least:
                               Loshchilov and Hutter 2017, without restarts */
    ETCH_SCHEDULE_ONE_CYCLE /* along half cosines from 1 / div up to 1 over the first part of total,
                               and down to 1 / (div final_div): Smith and Topin 2018 */
} etch_schedule_kind;
typedef struct etch_schedule {
    etch_schedule_kind kind;
    int64_t warmup; /* the first steps have (t + 1) / warmup, then the kind begins with t = 0 */
    int64_t period;
    double gamma; /* 0: 0.1 */
    int64_t total;
    double least;
    double part;           /* 0: 0.3 */
    double div, final_div; /* 0: 25 and 1e4 */
} etch_schedule;
/* The factor after `step` steps; NaN with invalid_argument for a schedule that has none. */
ETCH_API double etch_schedule_factor(const etch_schedule *s, int64_t step);
/* From the next step on (NULL: none). The schedule is copied. */
ETCH_API etch_status etch_optim_set_schedule(etch_optim *o, const etch_schedule *s);
/* Of a group, or of all (-1), before the factor. */
ETCH_API etch_status etch_optim_set_lr(etch_optim *o, int group, double lr);
/* What the next step takes, factor included; NaN with the error set for a group that there is
 * not. */
ETCH_API double etch_optim_lr(const etch_optim *o, int group);

/* ---- files ---- */

/* Writes state, counts of steps and options as safetensors, all or nothing: tensors
 * "GROUP.NAME.KIND", NAME the parameter's in its module or its number in the group, KIND exp_avg
 * and the like, step (i64) or master; under the text "etch_optim" kind, steps and options as JSON.
 * The parameters are the module's to save, the schedule is the program's. A graph break. */
ETCH_API etch_status etch_optim_save(const etch_optim *o, const char *path);
/* Reads them into an optimiser of the same kind and groups, whose options become those of the file;
 * if they keep other state it is the error format. Everything is checked before anything is
 * written: an error leaves o as it was. */
ETCH_API etch_status etch_optim_load(etch_optim *o, const char *path);

#ifndef __cplusplus
/* etch_optim_sgd(m, .lr = 0.1, .momentum = 0.9) and the like. */
#define ETCH_OPTIM_(...)                                                                           \
    &(etch_optim_options) { .struct_size = sizeof(etch_optim_options), __VA_ARGS__ }
#define etch_optim_sgd(m, ...) etch_optim_sgd_with(m, ETCH_OPTIM_(__VA_ARGS__))
#define etch_optim_adam(m, ...) etch_optim_adam_with(m, ETCH_OPTIM_(__VA_ARGS__))
#define etch_optim_adamw(m, ...) etch_optim_adamw_with(m, ETCH_OPTIM_(__VA_ARGS__))
#define etch_optim_rmsprop(m, ...) etch_optim_rmsprop_with(m, ETCH_OPTIM_(__VA_ARGS__))
#define etch_optim_add(o, tensors, n, ...)                                                         \
    etch_optim_add_with(o, tensors, n, ETCH_OPTIM_(__VA_ARGS__))
#define etch_optim_add_module(o, m, ...) etch_optim_add_module_with(o, m, ETCH_OPTIM_(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
