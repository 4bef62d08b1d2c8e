/* Jacobians and Hessians: a function's tangents or gradients, mapped over unit directions. */
#include <etch/etch.h>

#include "core/autograd/crossing.h"
#include "transforms/functional.h"

typedef struct jacobian_call {
    functional_call f;
    etch_jacobian_options options;
    etch_tensor *output, *at; /* of reverse mode: a tape */
} jacobian_call;

/* ---- unit directions ---- */

/* Rows `from` to `to` of the unit matrix of n, each in the sizes of t. */
static etch_tensor *units(const etch_tensor *t, int64_t from, int64_t to) {
    etch_tensor *row = NULL, *all = NULL;
    ETCH_ON(t->device) {
        row = etch_arange(ETCH_I64, from, to, 1);
        all = etch_arange(ETCH_I64, 0, t->numel, 1);
    }
    etch_tensor *unit = etch_to(etch_eq(etch_unsqueeze(row, 1), all), (etch_dtype)t->dtype);
    etch_shape size = {.n = t->ndim + 1, .v = {to - from}};
    memcpy(size.v + 1, t->size, (size_t)t->ndim * sizeof *t->size);
    return size.n <= ETCH_MAX_DIMS ? etch_reshape(unit, size) : NULL;
}

/* body mapped over the unit directions of t, so many at once: one behind the other. */
static etch_tensor *map_units(etch_fn_n body, jacobian_call *c, const etch_tensor *t) {
    int64_t chunk = c->options.chunk > 0 ? c->options.chunk : t->numel, n = 0;
    etch_tensor *parts[64];
    if (chunk * COUNT_OF(parts) < t->numel)
        chunk = (t->numel + COUNT_OF(parts) - 1) / COUNT_OF(parts);
    etch_function *f = etch_vmap(ETCH_CALLABLE(body, c), ETCH_DIMS(0), ETCH_DIMS(0));
    for (int64_t from = 0; f && n >= 0 && (from < t->numel || !n); from += chunk) {
        int64_t to = from + chunk < t->numel ? from + chunk : t->numel;
        etch_tensor *unit = units(t, from, to);
        parts[n] = unit ? etch_call(f, unit) : NULL;
        n = parts[n] ? n + 1 : -1;
    }
    etch_function_free(f);
    if (!f || n < 0) return NULL;
    return n == 1 ? parts[0] : etch_cat(parts, (int)n, 0);
}

/* ---- forward: a column for each element of the argument ---- */

static ETCH_FN_N(column, ctx, unit, nin, out, nout) {
    const jacobian_call *c = ctx;
    etch_tensor **t = etch__calloc((size_t)c->f.nin, sizeof *t), *y = NULL;
    if (!t) return etch_last_status();
    t[c->options.argument] = unit[0];
    etch_status status = etch_jvp_n(c->f.fn, c->f.in, t, c->f.nin, &y, out, 1);
    etch__free(t);
    return status;
}

static etch_tensor *by_columns(jacobian_call *c) {
    etch_tensor *x = c->f.in[c->options.argument], *j = map_units(column, c, x);
    if (!j) return NULL;
    j = etch_movedim(j, ETCH_DIMS(0), ETCH_DIMS(-1));
    etch_shape size = etch_sizes(j);
    if (!j || size.n - 1 + x->ndim > ETCH_MAX_DIMS) return j ? etch_expand(j, ETCH_DIMS(-2)) : NULL;
    size.n--;
    for (int d = 0; d < x->ndim; d++) size.v[size.n++] = x->size[d];
    return etch_reshape(j, size);
}

/* ---- reverse: a row for each element of the result ---- */

static ETCH_FN_N(row, ctx, unit, nin, out, nout) {
    jacobian_call *c = ctx;
    const etch_grad_options options = {.struct_size = sizeof options,
                                       .retain_graph = true,
                                       .create_graph =
                                           etch_requires_grad(c->f.in[c->options.argument]),
                                       .allow_unused = true};
    etch_tensor *seed = unit[0];
    etch_status status = etch_grad(&c->output, 1, &c->at, 1, &seed, &options, out);
    if (status == ETCH_OK && !out[0])
        ETCH_ON(etch_device_of(c->at)) out[0] = etch_zeros(etch_dtype_of(c->at), etch_sizes(c->at));
    return status == ETCH_OK && !out[0] ? etch_last_status() : status;
}

/* The function on a tape. */
static bool note(jacobian_call *c) {
    etch_tensor **in = etch__calloc((size_t)c->f.nin, sizeof *in);
    if (!in) return false;
    memcpy(in, c->f.in, (size_t)c->f.nin * sizeof *in);
    etch_tensor *x = in[c->options.argument];
    bool goes_on = etch_requires_grad(x);
    x = goes_on ? etch_expand(x, etch_sizes(x))
                : etch_requires_grad_(etch__without_history(x), true);
    c->at = in[c->options.argument] = x;
    c->f.out = &c->output;
    bool ok = x && etch__functional_run(&c->f, in) == ETCH_OK;
    etch__free(in);
    return ok;
}

static etch_tensor *by_rows(jacobian_call *c) {
    const etch_tensor *y = c->output, *x = c->at;
    if (!etch_requires_grad(y)) { /* it does not depend on the argument */
        etch_shape size = etch_sizes(y);
        for (int d = 0; d < x->ndim; d++) size.v[size.n++] = x->size[d];
        return etch_zeros((etch_dtype)x->dtype, size);
    }
    etch_tensor *j = map_units(row, c, y);
    etch_shape size = etch_sizes(y);
    if (!j || size.n + x->ndim > ETCH_MAX_DIMS) return NULL;
    for (int d = 0; d < x->ndim; d++) size.v[size.n++] = x->size[d];
    return etch_reshape(j, size);
}

/* ---- the choice ---- */

static bool checked(jacobian_call *c, const etch_jacobian_options *given) {
    size_t n = given ? given->struct_size : 0;
    if (given) memcpy(&c->options, given, n && n < sizeof c->options ? n : sizeof c->options);
    int i = c->options.argument;
    c->f.out = &c->output;
    if (!etch__functional_ok(&c->f)) return false;
    if (i < 0 || i >= c->f.nin || c->options.chunk < 0 ||
        (unsigned)c->options.mode > ETCH_JACOBIAN_REVERSE)
        return etch__false_at(
            c->f.site, ETCH_ERR_INVALID_ARGUMENT,
            "%s: expected the number of one of %d arguments, a chunk of 0 or more "
            "and a mode, got %d, %ld and %d",
            c->f.name, c->f.nin, i, (long)c->options.chunk, (int)c->options.mode);
    const etch_tensor *x = c->f.in[i];
    if (x != ETCH_NONE && etch__is_float(x->dtype)) return true;
    return etch__false_at(c->f.site, ETCH_ERR_DTYPE,
                          "%s: argument %d: expected a tensor of floating-point numbers", c->f.name,
                          i);
}

static etch_tensor *jacobian(jacobian_call *c) {
    if (c->options.mode == ETCH_JACOBIAN_FORWARD) return by_columns(c);
    if (!note(c)) return NULL;
    bool forward = c->options.mode == ETCH_JACOBIAN_AUTO && c->output->numel >= c->at->numel;
    return forward ? by_columns(c) : by_rows(c);
}

/* Runs it in a scope, from which only the result leaves. */
static etch_tensor *in_scope(jacobian_call *c, etch_tensor *(*run)(jacobian_call *c)) {
    int64_t scope = etch_scope_begin();
    if (scope < 0) return NULL;
    etch_tensor *j = run(c);
    if (j) j = etch_keep(j);
    etch_scope_end(scope);
    return j;
}

etch_tensor *etch_jacobian_n(etch_callable fn, etch_tensor *const *in, int nin,
                             const etch_jacobian_options *options) {
    jacobian_call c = {.f = {"etch_jacobian", fn, in, NULL, nin, 1, __builtin_return_address(0)}};
    return checked(&c, options) ? in_scope(&c, jacobian) : NULL;
}

/* ---- second derivatives ---- */

/* The gradient for the argument, as a function of all of them. */
static ETCH_FN_N(gradient, ctx, in, nin, out, nout) {
    const jacobian_call *c = ctx;
    etch_tensor *y = NULL, **to = etch__calloc((size_t)nin, sizeof *to);
    if (!to) return etch_last_status();
    etch_status status = etch_vjp_n(c->f.fn, in, nin, NULL, &y, 1, to);
    out[0] = to[c->options.argument];
    etch__free(to);
    return status;
}

static etch_tensor *hessian(jacobian_call *c) {
    jacobian_call of_gradient = *c;
    of_gradient.f.fn = ETCH_CALLABLE(gradient, c);
    return by_columns(&of_gradient);
}

etch_tensor *etch_hessian_n(etch_callable fn, etch_tensor *const *in, int nin,
                            const etch_jacobian_options *options) {
    jacobian_call c = {.f = {"etch_hessian", fn, in, NULL, nin, 1, __builtin_return_address(0)}};
    return checked(&c, options) ? in_scope(&c, hessian) : NULL;
}
