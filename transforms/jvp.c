/* etch_jvp: a level of forward mode around a call. */
#include "core/autograd/crossing.h"
#include "core/transforms/tangent.h"
#include "transforms/functional.h"

typedef struct jvp_call {
    functional_call f;
    etch_tensor *const *tangents;
    etch_tensor **out_tangents;
} jvp_call;

static bool tangent_ok(const jvp_call *c, int i) {
    const etch_tensor *t = c->tangents[i], *x = c->f.in[i];
    if (!t || t == ETCH_NONE) return true;
    if (!etch__handle_ok(t, c->f.name, "a tangent", c->f.site)) return false;
    if (x == ETCH_NONE || !etch__is_float(x->dtype))
        return etch__false_at(c->f.site, ETCH_ERR_DTYPE,
                              "%s: tangent %d: argument %d is not of floating-point numbers "
                              "and has no tangent: expected NULL",
                              c->f.name, i, i);
    if (t->dtype == x->dtype && SAME_SIZES(t, x)) return true;
    return etch__false_at(
        c->f.site, t->dtype == x->dtype ? ETCH_ERR_SHAPE : ETCH_ERR_DTYPE,
        "%s: tangent %d: expected the dtype and the sizes of the argument, %s %s, got %s %s",
        c->f.name, i, etch_dtype_name(x->dtype), etch__shape_text(x->ndim, x->size).s,
        etch_dtype_name(t->dtype), etch__shape_text(t->ndim, t->size).s);
}

/* A view of the argument that carries the tangent: what the body writes is the caller's tensor. */
static etch_tensor *with_tangent(const jvp_call *c, int i, uint32_t level) {
    etch_tensor *x = c->f.in[i], *t = c->tangents[i];
    if (!t || t == ETCH_NONE) return x;
    etch_tensor *v = etch_expand(x, etch_sizes(x));
    return v && etch__set_tangent(v, level, t, false) ? v : NULL;
}

/* The tangent of a result, which stays without. */
static etch_tensor *take_tangent(etch_tensor *y, uint32_t level) {
    const tangent *g = etch__tangent_at(y, level);
    if (g && etch__scope_push(etch_retain(g->value))) return g->value;
    if (g) return etch_release(g->value), NULL;
    return etch_zeros_like(y);
}

static etch_status run_level(const jvp_call *c, uint32_t level, etch_tensor **in) {
    for (int i = 0; i < c->f.nin; i++)
        if (!tangent_ok(c, i) || !(in[i] = with_tangent(c, i, level))) return etch__tls.status;
    etch_status status = etch__functional_run(&c->f, in);
    uint32_t outer = etch__tangent_limit(level);
    for (int i = 0; status == ETCH_OK && i < c->f.nout; i++)
        if (!(c->out_tangents[i] = take_tangent(c->f.out[i], level))) status = etch__tls.status;
    etch__tangent_limit(outer);
    for (int i = 0; status == ETCH_OK && i < c->f.nout; i++) {
        if (!etch_keep(c->out_tangents[i])) status = etch__tls.status;
        etch__remove_tangent(c->f.out[i], level);
    }
    return status;
}

static etch_status run_jvp(const jvp_call *c) {
    handle_array array;
    etch_tensor **in = etch__handles(&array, (size_t)c->f.nin);
    if (!in) return etch__tls.status;
    etch_status status = ETCH_OK;
    int64_t scope = etch_scope_begin();
    uint32_t level = scope < 0 ? 0 : etch__tangents_open();
    status = level ? run_level(c, level, in) : etch__tls.status;
    if (level) etch__tangents_close(level);
    for (int i = 0; status == ETCH_OK && i < c->f.nout; i++)
        if (!etch_keep(c->f.out[i]) || !etch_keep(c->out_tangents[i])) status = etch__tls.status;
    if (scope >= 0) etch_scope_end(scope);
    etch__handles_free(&array);
    return status;
}

etch_status etch__jvp(const functional_call *f, etch_tensor *const *tangents,
                      etch_tensor **out_tangents) {
    const jvp_call c = {*f, tangents, out_tangents};
    etch__functional_clear(f->out, f->nout);
    etch__functional_clear(out_tangents, f->nout);
    if (!etch__functional_ok(f)) return etch__tls.status;
    if (!out_tangents || (f->nin && !tangents))
        return etch__error_at(f->site, ETCH_ERR_NULL,
                              "%s: expected arrays of tangents and of their results, got NULL",
                              f->name);
    etch_status status = run_jvp(&c);
    if (status != ETCH_OK) {
        etch__functional_clear(f->out, f->nout);
        etch__functional_clear(out_tangents, f->nout);
    }
    return status;
}

etch_status etch_jvp_n(etch_callable fn, etch_tensor *const *in, etch_tensor *const *tangents,
                       int nin, etch_tensor **out, etch_tensor **out_tangents, int nout) {
    const functional_call f = {"etch_jvp", fn, in, out, nin, nout, __builtin_return_address(0)};
    return etch__jvp(&f, tangents, out_tangents);
}
