/* Derivatives of operators that the user registered: the call as the functions of
 * etch_op_definition see it. */
#include "core/autograd/forward.h"
#include "core/autograd/rules.h"
#include "core/dispatch/dispatch.h"
#include "core/dispatch/mode.h"

/* What it calls stands at its own lines; what it fails with, at the operator's call. */
static etch_status ask(const derivative_call *d, const op_call *call, const custom_rules *rules) {
    etch_value values[SCHEMA_MAX_ARGS];
    const op_call *outer = etch__tls.handled;
    const etch_derivative_call given = {.args = values,
                                        .nargs = etch__box(call, values),
                                        .result = d->result,
                                        .grad = d->grad,
                                        .ntensors = d->nin,
                                        .wants = d->wants,
                                        .grads = d->to};
    etch__tls.handled = call;
    etch_status status = rules->derivative(rules->ctx, &etch__ops[d->op], &given);
    etch__tls.handled = outer;
    return status;
}

void etch__derivative_of_users(const derivative_call *d) {
    etch_tensor **in = etch__malloc(((size_t)d->nin + 1) * sizeof *in);
    if (!in) return;
    for (int i = 0; i < d->nin; i++) in[i] = d->in[i] ? d->in[i] : ETCH_NONE;
    op_call call = {.op = d->op,
                    .nin = (uint16_t)d->nin,
                    .nsc = d->nsc,
                    .nat = d->nat,
                    .in = in,
                    .sc = d->sc,
                    .at = d->at};
    unsigned errors = etch__tls.errors;
    etch_status status = ask(d, &call, etch__custom_rules(d->op));
    if (status != ETCH_OK && etch__tls.errors == errors)
        etch__error(status, "%s: its derivative failed with %s", etch__ops[d->op].name,
                    etch_status_name(status));
    etch__free(in);
}

void etch__no_derivative_of_users(const derivative_call *d) {
    etch__error(ETCH_ERR_NOT_DIFFERENTIABLE,
                "%s has a derivative in forward mode only (etch_jvp): register it with one for "
                "gradients, too",
                etch__ops[d->op].name);
}

/* ---- forward mode ---- */

FORWARD(of_users) {
    const op_call *call = f->call, *outer = etch__tls.handled;
    const custom_rules *rules = etch__custom_rules(call->op);
    etch_value values[SCHEMA_MAX_ARGS];
    if (!rules->jvp) {
        etch__error_at(call->site, ETCH_ERR_NOT_DIFFERENTIABLE,
                       "%s has no derivative in forward mode: register it with one (jvp of "
                       "etch_op_definition), or compute its operands from etch_detach",
                       etch__ops[call->op].name);
        return NULL;
    }
    const etch_jvp_call given = {values, etch__box(call, values), f->d->result, f->d->nin,
                                 f->tangent};
    etch__tls.handled = call;
    etch_tensor *t = rules->jvp(rules->ctx, &etch__ops[call->op], &given);
    etch__tls.handled = outer;
    return t;
}
