/* An optimiser, for the files of this folder that make, run and store it. */
#ifndef ETCH_NN_OPTIM_H
#define ETCH_NN_OPTIM_H

#include <etch/optim.h>

typedef enum optim_kind {
    OPTIM_SGD,
    OPTIM_ADAM,
    OPTIM_ADAMW,
    OPTIM_RMSPROP,
    OPTIM_KINDS
} optim_kind;

/* What may be kept of a parameter: a tensor each, where the kind and its options want it. The step
 * is a number, where it is no tensor. */
typedef enum optim_state {
    STATE_MOMENTUM,
    STATE_MEAN,
    STATE_SQUARE,
    STATE_LARGEST,
    STATE_MASTER,
    STATE_STEP,
    STATES
} optim_state;

typedef struct optim_group {
    etch_optim_options o; /* with defaults put in */
} optim_group;

typedef struct optim_slot {
    char *name; /* "0.fc1.weight" */
    int group;
    etch_tensor *parameter;     /* counted, as the state */
    etch_tensor *state[STATES]; /* NULL: not wanted, or not made yet */
    int64_t steps;              /* where there is no STATE_STEP, which has them else */
} optim_slot;

struct etch_optim {
    optim_kind kind;
    etch_optim_options defaults;
    optim_group *groups;
    int ngroups;
    optim_slot *slots;
    int nslots;
    int64_t steps;
    etch_schedule schedule;
};

/* Whether settled options can be; else the error invalid_argument of that function. */
bool etch__optim_check(const char *function, const etch_optim_options *o);
/* "sgd" and so on. */
extern const char *const etch__optim_kinds[OPTIM_KINDS];
/* The name of a state in files, as PyTorch has it for that kind. */
const char *etch__optim_state_name(optim_kind kind, optim_state state);
/* Whether parameters of that dtype keep it. */
bool etch__optim_wants(optim_kind kind, const etch_optim_options *o, etch_dtype dtype,
                       optim_state state);
/* All state that is wanted and not there yet: zeros, the master a copy. */
bool etch__optim_make_state(const etch_optim *o, optim_slot *s);
/* One update of a parameter by its gradient, in a scope and without gradients; the count of steps
 * has this one already. */
bool etch__optim_update(const etch_optim *o, const optim_slot *s, etch_tensor *grad, double lr);

#endif
