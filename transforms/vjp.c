/* etch_vjp: a tape around a call. */
#include "core/autograd/crossing.h"
#include "transforms/functional.h"

typedef struct vjp_call {
    functional_call f;
    etch_tensor *const *grad_outputs;
    etch_tensor **grads;
    bool goes_on; /* what is around differentiates through it */
    bool alone;   /* there cannot be gradients for results */
} vjp_call;

static bool is_wanted(const vjp_call *c, int i) {
    const etch_tensor *t = c->f.in[i];
    return t != ETCH_NONE && etch__is_float(t->dtype);
}

/* Where gradients are to arrive: a view of an argument that has some already, else a leaf. */
static etch_tensor *input_of(const vjp_call *c, int i) {
    etch_tensor *t = c->f.in[i];
    if (!is_wanted(c, i)) return t;
    if (c->goes_on && etch_requires_grad(t)) return etch_expand(t, etch_sizes(t));
    t = etch__without_history(t);
    return t ? etch_requires_grad_(t, true) : NULL;
}

/* in: what was called; wanted and to: room for as many. */
static etch_status take_gradients(const vjp_call *c, etch_tensor **in, etch_tensor **wanted,
                                  etch_tensor **to) {
    int n = 0, k = 0;
    for (int i = 0; i < c->f.nin; i++)
        if (is_wanted(c, i)) wanted[n++] = in[i];
    const etch_grad_options options = {
        .struct_size = sizeof options, .create_graph = c->goes_on, .allow_unused = true};
    bool any = false;
    for (int i = 0; i < c->f.nout; i++) any |= etch_requires_grad(c->f.out[i]);
    if (n && any) {
        const gradients_of g = {c->f.out, wanted, c->grad_outputs, c->f.nout, n, &options, to};
        etch_status status = etch__grad_for(c->f.name, c->f.site, !c->alone, &g);
        if (status != ETCH_OK) return status;
    }
    for (int i = 0; i < c->f.nin; i++) {
        if (!is_wanted(c, i)) continue;
        if (!(c->grads[i] = to[k] ? to[k] : etch_zeros_like(in[i]))) return etch__tls.status;
        k++;
    }
    return ETCH_OK;
}

/* Results that nobody else differentiates end their history here. */
static etch_status end_history(const vjp_call *c) {
    for (int i = 0; !c->goes_on && i < c->f.nout; i++)
        if (!(c->f.out[i] = etch__without_history(c->f.out[i]))) return etch__tls.status;
    return ETCH_OK;
}

static etch_status keep_all(const vjp_call *c) {
    for (int i = 0; i < c->f.nout; i++)
        if (!etch_keep(c->f.out[i])) return etch__tls.status;
    for (int i = 0; i < c->f.nin; i++)
        if (c->grads[i] && !etch_keep(c->grads[i])) return etch__tls.status;
    return ETCH_OK;
}

static etch_status run_noted(const vjp_call *c, etch_tensor **in) {
    for (int i = 0; i < c->f.nin; i++)
        if (!(in[i] = input_of(c, i))) return etch__tls.status;
    etch_status status = etch__functional_run(&c->f, in);
    if (status == ETCH_OK) status = take_gradients(c, in, in + c->f.nin, in + 2 * c->f.nin);
    if (status == ETCH_OK) status = end_history(c);
    return status == ETCH_OK ? keep_all(c) : status;
}

static etch_status run_vjp(vjp_call *c) {
    handle_array array;
    etch_tensor **in = etch__handles(&array, 3 * (size_t)c->f.nin);
    if (!in) return etch__tls.status;
    for (int i = 0; i < c->f.nin; i++)
        c->goes_on |= etch_grad_enabled() && is_wanted(c, i) && etch_requires_grad(c->f.in[i]);
    uint64_t before = etch__begin_taping();
    etch_status status = etch__tls.status;
    int64_t scope = etch_scope_begin();
    if (scope >= 0) {
        status = run_noted(c, in);
        etch_scope_end(scope);
    }
    etch__end_taping(before);
    etch__handles_free(&array);
    return status;
}

etch_status etch__vjp(const functional_call *f, etch_tensor *const *grad_outputs,
                      etch_tensor **grads, bool alone) {
    vjp_call c = {*f, grad_outputs, grads, false, alone};
    etch__functional_clear(f->out, f->nout);
    etch__functional_clear(grads, f->nin);
    if (!etch__functional_ok(f)) return etch__tls.status;
    if (f->nin && !grads)
        return etch__error_at(f->site, ETCH_ERR_NULL,
                              "%s: expected room for the gradients, got NULL", f->name);
    etch_status status = run_vjp(&c);
    if (status != ETCH_OK) {
        etch__functional_clear(f->out, f->nout);
        etch__functional_clear(grads, f->nin);
    }
    return status;
}

etch_status etch_vjp_n(etch_callable fn, etch_tensor *const *in, int nin,
                       etch_tensor *const *grad_outputs, etch_tensor **out, int nout,
                       etch_tensor **grads) {
    const functional_call f = {"etch_vjp", fn, in, out, nin, nout, __builtin_return_address(0)};
    return etch__vjp(&f, grad_outputs, grads, false);
}
