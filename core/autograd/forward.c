/* The layer of forward mode. An operator with an operand that has a tangent is taken at the highest
 * level that it finds: called as it is for the levels below, then once more for the tangent, by the
 * rule of its derivative. Views have views of tangents; what is written in place has its tangent
 * written as it is itself. See core/transforms/tangent.h. */
#include "core/autograd/forward.h"

#include <etch/etch.h>

#include "core/autograd/tape.h"
#include "core/base/start.h"
#include "core/dispatch/call.h"
#include "core/transforms/tangent.h"

static uint32_t highest_level(const op_call *call) {
    uint32_t level = 0;
    for (int i = 0; i < call->nin; i++) {
        uint32_t l = etch__tangent_level(call->in[i], 0);
        if (l > level) level = l;
    }
    return level;
}

/* ---- the tangent of a result ---- */

static bool has_no_rule(const op_call *call) {
    return etch__false_at(call->site, ETCH_ERR_NOT_DIFFERENTIABLE,
                          "%s has no derivative in forward mode: compute its operands from "
                          "etch_detach",
                          etch__ops[call->op].name);
}

/* Which of the operands have a tangent that the result depends on. */
static bool find_tangents(const op_call *call, const derivative *d, uint32_t level,
                          etch_tensor **of) {
    bool any = false;
    for (int i = 0; i < call->nin; i++) {
        const tangent *g = etch__tangent_at(call->in[i], level);
        bool counts = g && (!d || !(etch__derivative_reads(d, i) & NO_GRADIENT));
        of[i] = counts ? g->value : NULL;
        any |= counts;
    }
    return any;
}

/* of: room for the tangents of the operands. */
static bool run_rule(const op_call *call, etch_tensor *out, uint32_t level, etch_tensor **of,
                     value_shape *shape, etch_tensor **t) {
    const derivative *d = etch__derivative(call->op);
    *t = NULL;
    if (d && !d->rule) return true;
    if (!etch__is_float(out->dtype) || !find_tangents(call, d, level, of)) return true;
    if (!d || !d->forward) return has_no_rule(call);
    value_shape outshape = etch__value_shape(out);
    for (int i = 0; i < call->nin; i++) shape[i] = etch__value_shape(call->in[i]);
    const derivative_call dc = {.in = call->in,
                                .result = out,
                                .sc = call->sc,
                                .at = call->at,
                                .shape = shape,
                                .outshape = &outshape,
                                .nin = call->nin,
                                .op = call->op,
                                .nsc = call->nsc,
                                .nat = call->nat};
    const forward_call f = {&dc, call, of, d};
    unsigned errors = etch__tls.errors;
    *t = d->forward(&f);
    if (etch__tls.errors != errors) return false;
    return !*t || (*t = etch__fit_tangent(*t, &outshape));
}

static bool tangent_of_call(const op_call *call, etch_tensor *out, uint32_t level,
                            etch_tensor **t) {
    size_t n = call->nin;
    etch_tensor **of = etch__malloc(n * (sizeof *of + sizeof(value_shape)));
    bool ok = of && run_rule(call, out, level, of, (value_shape *)(of + n), t);
    etch__free(of);
    return ok;
}

/* ---- views: of the tangent, as of the tensor ---- */

/* Whether elements lie at the same distances: those of size 1 have none. */
static bool lie_alike(const etch_tensor *a, const etch_tensor *b) {
    bool alike = true;
    for (int d = 0; d < a->ndim; d++) alike &= a->size[d] < 2 || a->stride[d] == b->stride[d];
    return alike;
}

static bool is_expanded(const etch_tensor *t) {
    bool expanded = false;
    for (int d = 0; d < t->ndim; d++) expanded |= t->size[d] > 1 && !t->stride[d];
    return expanded;
}

/* The tangent in memory of its own, with the tensor's strides, so that any view of the one is one
 * of the other. One that is expanded nobody writes: its views need no more than the sizes. */
static bool make_viewable(const etch_tensor *t, tangent *g) {
    if (g->own && lie_alike(t, g->value)) return g->viewed = true;
    tensor_meta place = etch__place_of(t);
    etch_tensor *laid = is_expanded(t) ? etch_clone(g->value) : etch__laid_as(&place, g->value);
    if (!laid || (!is_expanded(t) && !etch_copy_(laid, g->value))) return false;
    etch_retain(laid);
    etch_release(g->value);
    g->value = laid;
    return g->own = g->viewed = true;
}

static bool is_view(const op_call *call) { return etch__ops[call->op].kind == KIND_VIEW; }

static bool prepare_view(const op_call *call, uint32_t level) {
    tangent *g = is_view(call) ? etch__tangent_at(call->in[0], level) : NULL;
    if (!g) return true;
    if (!make_viewable(call->in[0], g)) return false;
    if (call->op != OP_AS_STRIDED || lie_alike(call->in[0], g->value)) return true;
    return etch__false_at(
        call->site, ETCH_ERR_UNSUPPORTED,
        "as_strided of an expanded tensor that has a tangent: use etch_clone first");
}

/* ---- a call at one level ---- */

static bool is_of_an_operand(const op_call *call, uint32_t level, const etch_tensor *t) {
    for (int i = 0; i < call->nin; i++) {
        const tangent *g = etch__tangent_at(call->in[i], level);
        if (g && g->value == t) return true;
    }
    return false;
}

/* A tape has saved the result before it had a tangent. */
static bool tell_tape(const op_call *call, etch_tensor *result, uint32_t level) {
    tape_node *n = NULL;
    const tangent *g = etch__tangent_at(result, level);
    if (!g || !etch__edge_of(result, &n)) return !g;
    bool is_this = n && n->kind == NODE_OPERATOR && n->op == call->op;
    etch_tensor *saved = is_this ? n->saved[n->nin].t : NULL;
    return !saved || etch__set_tangent(saved, level, g->value, false);
}

static bool give_tangent(const op_call *call, etch_tensor *out, uint32_t level, etch_tensor *t) {
    bool view = is_view(call), own = view || (!t->view && !is_of_an_operand(call, level, t));
    if (!etch__set_tangent(out, level, t, own)) return false;
    if (view) etch__tangent_at(out, level)->viewed = true;
    return tell_tape(call, out, level);
}

static etch_tensor *taken_at(const op_call *call, uint32_t level) {
    uint32_t outer = etch__tangent_limit(level);
    etch_tensor *t = NULL;
    bool ok = prepare_view(call, level);
    etch_tensor *out = ok ? etch__dispatch(call) : NULL;
    ok = out && tangent_of_call(call, out, level, &t);
    etch__tangent_limit(outer);
    if (ok && t) ok = give_tangent(call, out, level, t);
    return ok ? out : NULL;
}

/* ---- in place ---- */

/* A tape that is made of the tangents reads what was there before the write. */
static etch_tensor *on_old_contents(const op_call *plain) {
    if (!etch__taping()) return etch__dispatch(plain);
    etch_tensor **in = etch__malloc(plain->nin * sizeof *in), *y = NULL;
    if (!in) return NULL;
    memcpy(in, plain->in, plain->nin * sizeof *in);
    op_call c = *plain;
    c.in = in;
    if ((in[0] = etch_clone(in[0]))) y = etch__dispatch(&c);
    etch__free(in);
    return y;
}

/* What is written, as the result of an operator that writes nothing: for its tangents. *none: there
 * are no tangents. */
static etch_tensor *not_in_place(const op_call *call, bool *none) {
    op_call plain = *call;
    *none = call->op == OP_FILL_SCALAR_ || call->op == OP_ZERO_;
    if (*none) return NULL;
    if (call->op == OP_COPY_) {
        value_shape s = etch__value_shape(call->in[0]);
        return etch__fit_tangent(call->in[1], &s);
    }
    plain.op = call->op == OP_POW_SCALAR_ ? OP_POW_SCALAR : etch__ops[call->op].plain;
    if (plain.op >= OP_COUNT) return has_no_rule(call), NULL;
    return on_old_contents(&plain);
}

static bool write_tangent(const op_call *call, uint32_t level, etch_tensor *t) {
    etch_tensor *self = call->in[0];
    tangent *g = etch__tangent_at(self, level);
    value_shape s = etch__value_shape(self);
    if (t && !(t = etch__fit_tangent(t, &s))) return false;
    if (g && g->viewed) return (t ? etch_copy_(g->value, t) : etch_zero_(g->value)) != NULL;
    if (!t) return etch__remove_tangent(self, level), true;
    if (!g && self->view)
        return etch__false_at(call->site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: a value with a tangent is to be written into a view of a tensor "
                              "that has none: compute a new tensor, or make the view of one that "
                              "has (etch_zeros_like of a tensor with a tangent)",
                              etch__ops[call->op].name);
    return etch__set_tangent(self, level, t, false);
}

/* Level by level, from the highest: of what is written, or was there. */
static bool write_tangents(const op_call *call, const etch_tensor *value) {
    uint32_t outer = etch__tls.tangent_limit, below = outer;
    bool ok = true;
    for (uint32_t level = 1; ok && level;) {
        uint32_t a = etch__tangent_level(call->in[0], below);
        uint32_t b = value ? etch__tangent_level(value, below) : 0;
        level = below = a > b ? a : b;
        if (!level) break;
        const tangent *g = value ? etch__tangent_at(value, level) : NULL;
        etch__tangent_limit(level);
        ok = write_tangent(call, level, g ? g->value : NULL) && tell_tape(call, call->in[0], level);
        etch__tangent_limit(outer);
    }
    return ok;
}

static etch_tensor *written(const op_call *call) {
    bool none;
    etch_tensor *value = not_in_place(call, &none);
    if (!value && !none) return NULL;
    uint32_t outer = etch__tangent_limit(1);
    etch_tensor *self = etch__dispatch(call);
    etch__tangent_limit(outer);
    return self && write_tangents(call, value) ? self : NULL;
}

/* ---- the layer ---- */

static etch_tensor *forward_layer(const op_call *call) {
    uint32_t level = etch__in_parts(call) ? 0 : highest_level(call);
    if (!level) return etch__tape_operator(call);
    return etch__ops[call->op].kind == KIND_INPLACE ? written(call) : taken_at(call, level);
}

void etch__start_forward(void) { etch__register_layer(LAYER_FORWARD, forward_layer); }
