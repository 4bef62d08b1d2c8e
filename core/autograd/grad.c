/* The public functions of etch/grad.h. */
#include <etch/etch.h>

#include "core/autograd/crossing.h"
#include "core/autograd/engine.h"

#define SITE __builtin_return_address(0)
#define GIVE "give a gradient for it, or "

/* ---- what requires gradients ---- */

/* The node that keeps t's gradient and its hooks, of a leaf or of a result; NULL where none flows,
 * or where it is still to be made and so keeps nothing. */
static tape_node *node_of(const etch_tensor *t) {
    bool old = false;
    tape_node *n = t && t->magic == TENSOR_ALIVE ? etch__edge_now(t, &old) : NULL;
    return old ? NULL : n;
}

/* The same, made if need be; NULL with the error no_grad, or out of memory. */
static tape_node *need_node(etch_tensor *t, const char *function, const void *site) {
    tape_node *n;
    if (!etch__edge_of(t, &n)) return NULL;
    if (!n)
        etch__error_at(site, ETCH_ERR_NO_GRAD, "%s: expected a tensor that requires gradients",
                       function);
    return n;
}

static bool make_leaf(etch_tensor *t) {
    tape_node *n = etch__node_make(NODE_LEAF, 0, 0, 0);
    if (!n) return false;
    n->number = etch__tape_number(n);
    n->out = etch__value_shape(t);
    etch__begin_layered(LAYERED_HANDLES | LAYERED_VIEWS);
    bool ok = etch__set_edge(t, n);
    view_family *f = ok ? t->notes->family : NULL;
    if (f && !t->notes->base) { /* a view that becomes a leaf leaves it: it stands for itself */
        t->notes->family = NULL;
        etch__family_release(f);
    } else if (f) {
        etch__node_retain(n);
        etch__tape_release(f->edge);
        f->edge = n;
    }
    etch__tape_release(n);
    return ok;
}

/* Views made of it keep their edges. */
static void unmake_leaf(etch_tensor *t) {
    etch_release(atomic_exchange(&t->notes->edge->grad, NULL)); /* a tape may hold the node */
    view_family *f = t->notes->base ? t->notes->family : NULL;
    if (f) {
        etch__tape_release(f->edge);
        f->edge = NULL;
    }
    etch__tape_release(t->notes->edge);
    t->notes->edge = NULL;
    if (!f) t->layers &= (uint8_t) ~(1u << LAYER_AUTOGRAD);
}

etch_tensor *etch_requires_grad_(etch_tensor *t, bool on) {
    if (!etch__handle_ok(t, "etch_requires_grad_", "t", SITE)) return NULL;
    const tape_node *n = node_of(t);
    if (t == ETCH_NONE || (on && !etch__is_float(t->dtype)))
        return etch__null_at(
            SITE, ETCH_ERR_DTYPE,
            "etch_requires_grad_: expected a tensor of floating-point numbers, got %s",
            t == ETCH_NONE ? "ETCH_NONE" : etch_dtype_name(t->dtype));
    if (!etch_requires_grad(t)) return !on || make_leaf(t) ? t : NULL;
    if (on || (n && n->kind == NODE_LEAF)) {
        if (!on) unmake_leaf(t);
        return t;
    }
    return etch__null_at(
        SITE, ETCH_ERR_INVALID_ARGUMENT,
        "etch_requires_grad_: expected a leaf, got a result of operators with gradients; "
        "etch_detach gives one without");
}

bool etch_requires_grad(const etch_tensor *t) {
    return t && t->magic == TENSOR_ALIVE && etch__edge_now(t, &(bool){false});
}

bool etch_is_leaf(const etch_tensor *t) {
    const tape_node *n = node_of(t);
    return t && (n ? n->kind == NODE_LEAF : !etch_requires_grad(t));
}

/* ---- running backward ---- */

typedef struct backward_call {
    etch_tensor *const *outputs, *const *inputs, *const *given;
    int nout, nin;
    etch_grad_options options;
    etch_tensor **grads;
    const char *function; /* that the user called, and where */
    const void *site;
    const char *else_give; /* in place of a sum */
} backward_call;

/* The gradient of an output: NULL stands for ones. */
static bool find_seed(const backward_call *c, etch_tensor *output, etch_tensor *given,
                      etch_tensor **seed) {
    value_shape shape = etch__value_shape(output);
    if (given && given != ETCH_NONE) {
        if (!etch__handle_ok(given, c->function, "grad_outputs", c->site)) return false;
        bool same = SAME_SIZES(given, &shape) && etch__is_float(given->dtype);
        if (same) return (*seed = etch__fit_gradient(given, &shape)) != NULL;
        return etch__false_at(c->site, ETCH_ERR_SHAPE,
                              "%s: expected a gradient with the sizes of its output, %s, got %s %s",
                              c->function, etch__shape_text(shape.ndim, shape.size).s,
                              etch_dtype_name(given->dtype),
                              etch__shape_text(given->ndim, given->size).s);
    }
    *seed = NULL;
    if (output->numel == 1) return true;
    return etch__false_at(c->site, ETCH_ERR_SHAPE,
                          "%s: expected an output of one element, got sizes %s; %ssum it",
                          c->function, etch__shape_text(shape.ndim, shape.size).s, c->else_give);
}

static bool edges_of(const backward_call *c, etch_tensor *const *t, int n, const char *what,
                     tape_node **edges) {
    for (int i = 0; i < n; i++) {
        if (!etch__handle_ok(t[i], c->function, what, c->site)) return false;
        if (!etch__edge_of(t[i], &edges[i])) return false;
        if (edges[i]) continue;
        return etch__false_at(
            c->site, ETCH_ERR_NO_GRAD,
            "%s: expected an %s that requires gradients, but %s %d does not: nothing "
            "that it was computed from requires them (etch_requires_grad_), or it was "
            "computed in ETCH_NO_GRAD",
            c->function, what, what, i);
    }
    return true;
}

static bool given_ok(const backward_call *c) {
    if (c->nout > 0 && c->outputs && c->nin >= 0 && (!c->nin || (c->inputs && c->grads)))
        return true;
    return etch__false_at(
        c->site, ETCH_ERR_INVALID_ARGUMENT,
        "%s: expected at least one output, and inputs with room for their gradients", c->function);
}

/* Inputs that got nothing: an error, or NULL if that is allowed. */
static bool all_used(const backward_call *c) {
    for (int i = 0; i < c->nin; i++) {
        if (c->grads[i] || c->options.allow_unused) continue;
        return etch__false_at(
            c->site, ETCH_ERR_UNUSED,
            "%s: the outputs do not depend on input %d; with allow_unused its gradient is NULL",
            c->function, i);
    }
    return true;
}

/* edges: of the outputs, then of the inputs; seeds: room for nout. */
static bool run_call(const backward_call *c, tape_node **edges, etch_tensor **seeds) {
    if (!edges_of(c, c->outputs, c->nout, "output", edges) ||
        !edges_of(c, c->inputs, c->nin, "input", edges + c->nout))
        return false;
    for (int i = 0; i < c->nout; i++)
        if (!find_seed(c, c->outputs[i], c->given ? c->given[i] : NULL, &seeds[i])) return false;
    backward_request r = {edges,
                          seeds,
                          c->nout,
                          edges + c->nout,
                          c->grads,
                          c->nin,
                          c->options.retain_graph,
                          c->options.create_graph,
                          c->site};
    return etch__run_backward(&r) == ETCH_OK && all_used(c);
}

/* The gradients that etch_grad gives: owned by the innermost scope, or on failure gone. */
static bool hand_over(const backward_call *c, bool ok) {
    for (int i = 0; i < c->nin; i++) {
        if (!c->grads[i]) continue;
        if (ok && etch__scope_push(c->grads[i])) continue;
        etch_release(c->grads[i]);
        c->grads[i] = NULL, ok = false;
    }
    return ok;
}

static etch_status run_checked(const backward_call *c) {
    if (!given_ok(c)) return etch__tls.status;
    size_t n = (size_t)c->nout + (size_t)c->nin;
    tape_node **edges = etch__calloc(n, sizeof *edges);
    etch_tensor **seeds = edges ? etch__calloc((size_t)c->nout, sizeof *seeds) : NULL;
    for (int i = 0; i < c->nin; i++) c->grads[i] = NULL;
    bool ok = false;
    if (seeds)
        ETCH_SCOPE
            ok = run_call(c, edges, seeds);
    ok = hand_over(c, ok);
    etch__free(seeds);
    etch__free(edges);
    return ok ? ETCH_OK : etch__tls.status;
}

static etch_grad_options options_of(const etch_grad_options *given) {
    etch_grad_options o = {.struct_size = sizeof o};
    size_t n = given ? given->struct_size : 0;
    if (given) memcpy(&o, given, n && n < sizeof o ? n : sizeof o);
    return o;
}

etch_status etch_backward(etch_tensor *loss) {
    const backward_call c = {.outputs = &loss,
                             .nout = 1,
                             .function = "etch_backward",
                             .site = SITE,
                             .else_give = "give a gradient for it (etch_backward_from), or "};
    return run_checked(&c);
}

etch_status etch_backward_from(etch_tensor *const *outputs, int n, etch_tensor *const *grad_outputs,
                               const etch_grad_options *options) {
    const backward_call c = {.outputs = outputs,
                             .nout = n,
                             .given = grad_outputs,
                             .options = options_of(options),
                             .function = "etch_backward_from",
                             .site = SITE,
                             .else_give = GIVE};
    return run_checked(&c);
}

etch_status etch_grad(etch_tensor *const *outputs, int nout, etch_tensor *const *inputs, int nin,
                      etch_tensor *const *grad_outputs, const etch_grad_options *options,
                      etch_tensor **grads) {
    const backward_call c = {outputs, inputs,      grad_outputs, nout, nin, options_of(options),
                             grads,   "etch_grad", SITE,         GIVE};
    if (nin < 1) {
        return etch__error_at(SITE, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_grad: expected at least one input");
    }
    return run_checked(&c);
}

etch_status etch__grad_for(const char *function, const void *site, bool takes_gradients,
                           const gradients_of *g) {
    const backward_call c = {g->outputs,
                             g->inputs,
                             g->grad_outputs,
                             g->nout,
                             g->nin,
                             options_of(g->options),
                             g->grads,
                             function,
                             site,
                             takes_gradients ? GIVE : ""};
    return run_checked(&c);
}

/* ---- what leaves have accumulated ---- */

/* One whose computation failed after backward had ended is none. */
etch_tensor *etch_grad_of(const etch_tensor *t) {
    tape_node *n = node_of(t);
    etch_tensor *grad = n ? atomic_load(&n->grad) : NULL;
    if (likely(!grad || !grad->failed)) return grad;
    if (atomic_compare_exchange_strong(&n->grad, &grad, NULL)) etch_release(grad);
    return NULL;
}

static bool keeps(tape_node *n, const char *function, const void *site) {
    if (n && (n->kind == NODE_LEAF || n->retains)) return true;
    return etch__false_at(
        site, ETCH_ERR_NO_GRAD,
        "%s: expected a leaf (etch_requires_grad_) or a result that keeps its gradient "
        "(etch_retain_grad)",
        function);
}

etch_status etch_zero_grad(etch_tensor *t) {
    if (!etch__handle_ok(t, "etch_zero_grad", "t", SITE)) return etch__tls.status;
    tape_node *n = node_of(t);
    if (n) etch_release(atomic_exchange(&n->grad, NULL));
    return ETCH_OK;
}

etch_status etch_set_grad(etch_tensor *t, etch_tensor *grad) {
    if (!etch__handle_ok(t, "etch_set_grad", "t", SITE)) return etch__tls.status;
    tape_node *n = node_of(t);
    if (!keeps(n, "etch_set_grad", SITE)) return etch__tls.status;
    if (grad && !etch__handle_ok(grad, "etch_set_grad", "grad", SITE)) return etch__tls.status;
    const value_shape *s = &n->out;
    for (const etch_tensor *g = grad; etch__is_batched(g); g = g->notes->inner)
        if (!etch__has_level(&s->levels, g->notes->level))
            return etch__error_at(SITE, ETCH_ERR_BATCHED,
                                  "etch_set_grad: a batched gradient for a tensor that all samples "
                                  "share");
    if (grad && (grad->dtype != s->dtype || grad->device != s->device || !SAME_SIZES(grad, s)))
        return etch__error_at(
            SITE, ETCH_ERR_SHAPE, "etch_set_grad: expected %s %s on the tensor's device, got %s %s",
            etch_dtype_name(s->dtype), etch__shape_text(s->ndim, s->size).s,
            etch_dtype_name(grad->dtype), etch__shape_text(grad->ndim, grad->size).s);
    etch_release(atomic_exchange(&n->grad, etch_retain(grad)));
    return ETCH_OK;
}

etch_status etch_retain_grad(etch_tensor *t) {
    if (!etch__handle_ok(t, "etch_retain_grad", "t", SITE)) return etch__tls.status;
    tape_node *n = need_node(t, "etch_retain_grad", SITE);
    if (!n) return etch__tls.status;
    n->retains = true;
    return ETCH_OK;
}

/* ---- hooks ---- */

int64_t etch_add_grad_hook(etch_tensor *t, etch_grad_hook hook, void *ctx) {
    static _Atomic int64_t last;
    if (!etch__handle_ok(t, "etch_add_grad_hook", "t", SITE)) return 0;
    tape_node *n = need_node(t, "etch_add_grad_hook", SITE);
    if (!n) return 0;
    if (!hook)
        return etch__false_at(SITE, ETCH_ERR_NULL, "etch_add_grad_hook: expected a hook, got NULL");
    grad_hook *hooks = etch__realloc(n->hooks, (size_t)(n->nhooks + 1) * sizeof *hooks);
    if (!hooks) return 0;
    n->hooks = hooks;
    hooks[n->nhooks++] = (grad_hook){hook, ctx, ++last};
    return hooks[n->nhooks - 1].number;
}

void etch_remove_grad_hook(etch_tensor *t, int64_t number) {
    tape_node *n = node_of(t);
    for (int i = 0; n && i < n->nhooks; i++) {
        if (n->hooks[i].number != number) continue;
        memmove(n->hooks + i, n->hooks + i + 1, (size_t)(n->nhooks - i - 1) * sizeof *n->hooks);
        n->nhooks--;
        return;
    }
}

/* ---- blocks without gradients ---- */

int etch_no_grad_begin(void) {
    int outer = (etch__tls.state & STATE_NO_GRAD) != 0;
    etch__tls.state |= STATE_NO_GRAD;
    return outer;
}

void etch_no_grad_end(int outer) {
    if (!outer) etch__tls.state &= ~(uint64_t)STATE_NO_GRAD;
}

bool etch_grad_enabled(void) { return etch__taping(); }
