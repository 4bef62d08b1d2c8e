/* Jacobians and Hessians: a function's tangents or gradients, mapped over unit directions. */
#include <etch/etch.h>

#include "core/autograd/crossing.h"
#include "transforms/functional.h"

typedef struct jacobian_call {
    functional_call f;
    etch_jacobian_options options;
    etch_tensor *output, *at; /* of reverse mode: a tape */
    bool goes_on;             /* what is around differentiates through that */
} jacobian_call;

/* ---- unit directions ---- */

/* Rows `from` to `to` of the unit matrix of n, each in the sizes of t. */
static etch_tensor *units(const jacobian_call *c, const etch_tensor *t, int64_t from, int64_t to) {
    etch_tensor *row = NULL, *all = NULL;
    if (t->ndim == ETCH_MAX_DIMS)
        return etch__null_at(c->f.site, ETCH_ERR_SHAPE,
                             "%s: expected at most %d dimensions, and one of the directions beside "
                             "them, got the sizes %s",
                             c->f.name, ETCH_MAX_DIMS - 1, etch__shape_text(t->ndim, t->size).s);
    ETCH_ON(t->device) {
        row = etch_arange(ETCH_I64, from, to, 1);
        all = etch_arange(ETCH_I64, 0, t->numel, 1);
    }
    etch_tensor *unit = etch_to(etch_eq(etch_unsqueeze(row, 1), all), (etch_dtype)t->dtype);
    etch_shape size = {.n = t->ndim + 1, .v = {to - from}};
    memcpy(size.v + 1, t->size, (size_t)t->ndim * sizeof *t->size);
    return etch_reshape(unit, size);
}

/* Units `from` to `to` through f, in a scope of their own: what they need goes before the next. */
static etch_tensor *map_part(etch_function *f, const jacobian_call *c, const etch_tensor *t,
                             int64_t from, int64_t to) {
    etch_tensor *part = NULL;
    ETCH_SCOPE {
        etch_tensor *unit = units(c, t, from, to);
        part = unit ? etch_call(f, unit) : NULL;
        if (part) part = etch_keep(part);
    }
    return part;
}

static etch_tensor *map_parts(etch_function *f, const jacobian_call *c, const etch_tensor *t,
                              int64_t chunk, etch_tensor **parts, int n) {
    for (int i = 0; i < n; i++) {
        int64_t from = i * chunk, to = t->numel - from < chunk ? t->numel : from + chunk;
        if (!(parts[i] = map_part(f, c, t, from, to))) return NULL;
    }
    return n == 1 ? parts[0] : etch_cat(parts, n, 0);
}

/* body mapped over the unit directions of t, so many at once: one behind the other. */
static etch_tensor *map_units(etch_fn_n body, jacobian_call *c, const etch_tensor *t) {
    int64_t all = t->numel, chunk = c->options.chunk;
    if (!chunk || chunk > all) chunk = all;
    int64_t n = all ? (all - 1) / chunk + 1 : 1;
    etch_function *f = etch_vmap(ETCH_CALLABLE(body, c), ETCH_DIMS(0), ETCH_DIMS(0));
    etch_tensor **parts = f ? etch__malloc((size_t)n * sizeof *parts) : NULL;
    etch_tensor *whole = parts ? map_parts(f, c, t, chunk, parts, (int)n) : NULL;
    etch__free(parts);
    etch_function_free(f);
    return whole;
}

/* Behind the sizes of a result those of the argument. false: they are too many. */
static bool add_sizes(const jacobian_call *c, etch_shape *size) {
    const etch_tensor *x = c->f.in[c->options.argument];
    if (size->n + x->ndim > ETCH_MAX_DIMS)
        return etch__false_at(c->f.site, ETCH_ERR_SHAPE,
                              "%s: expected at most %d dimensions, those of the function's result "
                              "and of argument %d together, got %s and %s",
                              c->f.name, ETCH_MAX_DIMS, c->options.argument,
                              etch__shape_text(size->n, size->v).s,
                              etch__shape_text(x->ndim, x->size).s);
    memcpy(size->v + size->n, x->size, (size_t)x->ndim * sizeof *x->size);
    size->n += x->ndim;
    return true;
}

/* ---- forward: a column for each element of the argument ---- */

static ETCH_FN_N(column, ctx, unit, nin, out, nout) {
    const jacobian_call *c = ctx;
    etch_tensor *y = NULL, **t;
    handle_array array;
    functional_call f = c->f;
    f.out = &y;
    if (!(t = etch__handles(&array, (size_t)f.nin))) return etch_last_status();
    t[c->options.argument] = unit[0];
    etch_status status = etch__jvp(&f, t, out);
    etch__handles_free(&array);
    return status;
}

static etch_tensor *by_columns(jacobian_call *c) {
    etch_tensor *j = map_units(column, c, c->f.in[c->options.argument]);
    if (!j) return NULL;
    etch_shape size = {.n = j->ndim - 1};
    memcpy(size.v, j->size + 1, (size_t)size.n * sizeof *size.v);
    if (!add_sizes(c, &size)) return NULL;
    return etch_reshape(etch_movedim(j, ETCH_DIMS(0), ETCH_DIMS(-1)), size);
}

/* ---- reverse: a row for each element of the result ---- */

static ETCH_FN_N(row, ctx, unit, nin, out, nout) {
    jacobian_call *c = ctx;
    const etch_grad_options options = {.struct_size = sizeof options,
                                       .retain_graph = true,
                                       .create_graph = c->goes_on,
                                       .allow_unused = true};
    etch_tensor *seed = unit[0];
    const gradients_of g = {&c->output, &c->at, &seed, 1, 1, &options, out};
    etch_status status = etch__grad_for(c->f.name, c->f.site, true, &g);
    if (status == ETCH_OK && !out[0]) out[0] = etch_zeros_like(c->at);
    return status == ETCH_OK && !out[0] ? etch_last_status() : status;
}

/* The function on a tape. */
static bool note(jacobian_call *c) {
    handle_array array;
    etch_tensor **in = etch__handles(&array, (size_t)c->f.nin);
    if (!in) return false;
    memcpy(in, c->f.in, (size_t)c->f.nin * sizeof *in);
    etch_tensor *x = in[c->options.argument];
    c->goes_on = etch_grad_enabled() && etch_requires_grad(x);
    uint64_t before = etch__begin_taping();
    x = c->goes_on ? etch_expand(x, etch_sizes(x))
                   : etch_requires_grad_(etch__without_history(x), true);
    c->at = in[c->options.argument] = x;
    c->f.out = &c->output;
    bool ok = x && etch__functional_run(&c->f, in) == ETCH_OK;
    etch__end_taping(before);
    etch__handles_free(&array);
    return ok;
}

static etch_tensor *by_rows(jacobian_call *c) {
    const etch_tensor *y = c->output, *x = c->at;
    etch_shape size = etch_sizes(y);
    if (!add_sizes(c, &size)) return NULL;
    if (etch_requires_grad(y)) return etch_reshape(map_units(row, c, y), size);
    etch_tensor *zeros = NULL; /* it does not depend on the argument */
    ETCH_ON(x->device) zeros = etch_zeros((etch_dtype)x->dtype, size);
    return zeros;
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
    etch_tensor *y = NULL, **to;
    handle_array array;
    if (!(to = etch__handles(&array, (size_t)nin))) return etch_last_status();
    const functional_call f = {c->f.name, c->f.fn, in, &y, nin, 1, c->f.site};
    etch_status status = etch__vjp(&f, NULL, to, true);
    out[0] = to[c->options.argument];
    etch__handles_free(&array);
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
