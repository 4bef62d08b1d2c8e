/* Interceptor modes, inside: boxing a call, and what the tracer asks about modes. */
#ifndef ETCH_CORE_DISPATCH_MODE_H
#define ETCH_CORE_DISPATCH_MODE_H

#include "core/ops/op.h"
#include "core/ops/schema.h"

/* The call's arguments as tagged values in schema order, keyword-only ones named; returns their
 * number. values has room for SCHEMA_MAX_ARGS. Lists point into the call. */
int etch__box(const op_call *call, etch_value *values);

/* The active mode that keeps compiled functions from running compiled, or NULL. */
const etch_mode *etch__blocking_mode(void);
/* Whether a mode that blocks was entered since there were `depth` modes. */
bool etch__mode_entered_since(int depth);

/* Around a kernel of the user's: no mode is active for what it calls. What
 * it leaves entered is left. */
typedef struct modes_off {
    int level, floor;
} modes_off;
modes_off etch__modes_off(void);
void etch__modes_restore(const modes_off *outer);

/* Offers a custom operator to the modes that allow compiled code, from inside a run. ETCH_DECLINED
 * when there is none or all decline; else its results have been copied into out. */
etch_status etch__offer_opaque(const op_call *call, etch_tensor *const *out);

/* Custom operators and overrides (core/dispatch/custom.c) on a device: whether a function of the
 * user computes the operator there (for a custom operator the CPU's one, in want of another);
 * calling it; whether a graph of the device may hold what it issues. */
bool etch__users_on_device(op_id op);
etch_status etch__run_users_on_device(const op_call *call, etch_tensor *const *out);
bool etch__users_only_issue(op_id op);

/* Raised by each override; traces of an older epoch are not entered. */
extern _Atomic uint64_t etch__override_epoch;

#endif
