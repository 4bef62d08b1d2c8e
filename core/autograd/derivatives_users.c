/* Derivatives of operators that the user registered: the call as etch_op_definition's function sees
 * it. */
#include "core/autograd/rules.h"
#include "core/dispatch/dispatch.h"
#include "core/dispatch/mode.h"

/* What it calls stands at its own lines; what it fails with, at the operator's call. */
static etch_status ask(const derivative_call *d, const op_call *call, etch_derivative_fn fn,
                       void *ctx) {
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
    etch_status status = fn(ctx, &etch__ops[d->op], &given);
    etch__tls.handled = outer;
    return status;
}

void etch__derivative_of_users(const derivative_call *d) {
    void *ctx;
    etch_derivative_fn fn = etch__custom_derivative(d->op, &ctx);
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
    etch_status status = ask(d, &call, fn, ctx);
    if (status != ETCH_OK && etch__tls.errors == errors)
        etch__error(status, "%s: its derivative failed with %s", etch__ops[d->op].name,
                    etch_status_name(status));
    etch__free(in);
}
