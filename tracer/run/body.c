/* The body of a function: called in a scope of its own, and what it returned looked at. */
#include "tracer/run/run.h"

static etch_tensor *call_fixed(const function_body *f, etch_tensor *const *x) {
    switch (f->kind) {
    case FN_0: return ((etch_fn0)f->fn)();
    case FN_1: return ((etch_fn1)f->fn)(x[0]);
    case FN_2: return ((etch_fn2)f->fn)(x[0], x[1]);
    case FN_3: return ((etch_fn3)f->fn)(x[0], x[1], x[2]);
    case FN_4: return ((etch_fn4)f->fn)(x[0], x[1], x[2], x[3]);
    case FN_5: return ((etch_fn5)f->fn)(x[0], x[1], x[2], x[3], x[4]);
    case FN_6: return ((etch_fn6)f->fn)(x[0], x[1], x[2], x[3], x[4], x[5]);
    case FN_7: return ((etch_fn7)f->fn)(x[0], x[1], x[2], x[3], x[4], x[5], x[6]);
    default: return ((etch_fn8)f->fn)(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
    }
}

/* The innermost scope now is the body's. After a longjmp out of it etch_scope_end forgets that. */
etch_status etch__call_body(const function_body *f, const call_io *io) {
    etch_thread *t = &etch__tls;
    int32_t outer = t->body_scope;
    t->body_scope = (int32_t)t->nscopes - 1;
    etch_status status = ETCH_OK;
    if (f->kind == FN_N) status = ((etch_fn_n)f->fn)(f->ctx, io->in, io->nin, io->out, io->nout);
    else io->out[0] = call_fixed(f, io->in);
    t->body_scope = outer;
    return status;
}

void etch__close_deeper(int64_t scope, etch_status status, const call_io *io) {
    while (etch__tls.nscopes > scope + 1) {
        for (int i = 0; status == ETCH_OK && i < io->nout; i++) etch_keep(io->out[i]);
        etch_scope_end(etch__tls.nscopes - 1);
    }
}

/* What the body says has gone wrong has an error, too; what it did wrong without saying so fails it
 * where more than a result is lost. */
static etch_status checked_status(const char *name, unsigned errors, etch_status status) {
    if (status == ETCH_OK) return etch__lost_since(errors) ? etch__tls.status : ETCH_OK;
    bool known = (unsigned)status < ETCH_STATUS_COUNT;
    if (etch__own_error(errors)) return etch__tls.status = known ? status : ETCH_ERR_USER;
    if (!known)
        return etch__error_at(NULL, ETCH_ERR_USER, "%s: the body returned %d, which is no status",
                              name, (int)status);
    return etch__error_at(NULL, status, "%s: the body returned the error %s", name,
                          etch_status_name(status));
}

etch_status etch__checked_results(const char *name, unsigned errors, etch_status status,
                                  const call_io *io) {
    status = checked_status(name, errors, status);
    for (int i = 0; status == ETCH_OK && i < io->nout; i++)
        if (!io->out[i])
            status = etch__own_error(errors)
                         ? etch__tls.status
                         : etch__error_at(NULL, ETCH_ERR_USER, "%s: the body returned NULL", name);
    return status;
}

etch_status etch__scope_was_closed(void) {
    return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                          "etch_call: the body closed a scope that it had not opened");
}

etch_status etch__results_in_scope(const char *name, int64_t scope, unsigned errors,
                                   etch_status status, const call_io *io) {
    if (etch__tls.nscopes <= scope) return etch__scope_was_closed();
    return etch__checked_results(name, errors, status, io);
}

/* The body may free the function: what it has is not asked for behind it. */
etch_status etch__call_in_scope(etch_function *f, const call_io *io) {
    return etch__body_in_scope(&f->body, f->name, io);
}

etch_status etch__body_in_scope(const function_body *body, const char *name, const call_io *io) {
    int64_t scope = etch_scope_begin();
    if (scope < 0) return etch__tls.status;
    unsigned errors = etch__tls.errors;
    etch_status status = etch__call_body(body, io);
    status = etch__results_in_scope(name, scope, errors, status, io);
    etch__close_deeper(scope, status, io);
    for (int i = 0; status == ETCH_OK && i < io->nout; i++)
        if (!etch_keep(io->out[i])) status = etch__tls.status;
    etch_scope_end(scope);
    return status;
}
