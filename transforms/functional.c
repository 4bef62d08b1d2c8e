/* Calling the user's function for etch_jvp, etch_vjp and what is made of them. */
#include "transforms/functional.h"

static bool counts_ok(const functional_call *c) {
    int arity = c->fn.arity;
    if (!c->fn.fn)
        return etch__false_at(c->site, ETCH_ERR_NULL, "%s: expected a function, got NULL", c->name);
    if (c->nin < 0 || c->nout < 1 || (c->nin && !c->in) || !c->out)
        return etch__false_at(c->site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: expected arrays of arguments and of at least one result",
                              c->name);
    if (arity < 0 || (arity == c->nin && c->nout == 1)) return true;
    return etch__false_at(c->site, ETCH_ERR_INVALID_ARGUMENT,
                          "%s: the function has %d arguments and 1 result, got %d and %d", c->name,
                          arity, c->nin, c->nout);
}

bool etch__functional_ok(const functional_call *c) {
    if (!counts_ok(c)) return false;
    for (int i = 0; i < c->nin; i++)
        if (!etch__handle_ok(c->in[i], c->name, "an argument", c->site)) return false;
    return true;
}

etch_status etch__functional_run(const functional_call *c, etch_tensor *const *in) {
    const function_body body = {c->fn.arity < 0 ? FN_N : (function_kind)(FN_0 + c->fn.arity),
                                c->fn.fn, c->fn.ctx};
    const call_io io = {in, c->out, c->nin, c->nout, c->site};
    return etch__body_in_scope(&body, c->name, &io);
}
