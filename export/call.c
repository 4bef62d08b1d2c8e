/* Calls of imported functions: arguments checked against what the program was recorded with, the
 * plan run, results made. No trace and no compiler has a part in it. */
#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"
#include "core/transforms/tangent.h"
#include "export/imported.h"
#include "guards/alias.h"
#include "tracer/run/run.h"

#define SITE __builtin_return_address(0)

typedef struct imported_call {
    etch_imported *f;
    etch_tensor *const *in;
    etch_tensor **out;
    int nin, nout;
    const void *site;
    instance *x;             /* for the sizes of this call */
    const program *p;        /* its program; before there is one, the function's */
    etch_tensor **inputs;    /* of the graph */
    etch_storage **produced; /* what the plan gives */
    etch_scalar *scalars;
} imported_call;

#define NAME "etch_imported_call"

/* ---- arguments ---- */

static bool counts_ok(const imported_call *c) {
    const program *p = c->p;
    if (c->nin == p->nargs && c->nout == p->nresults && (!c->nin || c->in) && (!c->nout || c->out))
        return true;
    return etch__false_at(c->site, ETCH_ERR_INVALID_ARGUMENT,
                          NAME ": %s: expected %d arguments and %d results, got %d and %d",
                          p->g->name, p->nargs, p->nresults, c->nin, c->nout);
}

static bool requires_grad(const etch_tensor *t) {
    return unlikely(t->layers) && !(etch__tls.state & (STATE_NO_GRAD | STATE_INFERENCE)) &&
           etch_requires_grad(t);
}

/* All that does not depend on sizes. */
static bool looks_right(const imported_call *c, int i, const etch_tensor *t) {
    const char *name = c->p->g->name;
    const tensor_meta *m = &c->p->g->values[c->p->args[i].input].meta;
    if (t->dtype != m->dtype)
        return etch__false_at(c->site, ETCH_ERR_DTYPE,
                              NAME ": %s: argument %d: expected %s, got %s", name, i,
                              etch_dtype_name(m->dtype), etch_dtype_name(t->dtype));
    if (t->device != m->device)
        return etch__false_at(c->site, ETCH_ERR_DEVICE,
                              NAME ": %s: argument %d: expected one on %s, got %s", name, i,
                              etch_device_name(m->device), etch_device_name(t->device));
    if (t->ndim == m->ndim) return true;
    return etch__false_at(c->site, ETCH_ERR_SHAPE,
                          NAME ": %s: argument %d: expected %d dimensions, got %d", name, i,
                          m->ndim, t->ndim);
}

static bool argument_ok(const imported_call *c, int i) {
    const program *p = c->p;
    etch_tensor *t = c->in[i];
    if (!etch__handle_ok(t, NAME, "an argument", c->site)) return false;
    if ((t == ETCH_NONE) != (p->args[i].input < 0))
        return etch__false_at(c->site, ETCH_ERR_INVALID_ARGUMENT,
                              NAME ": %s: argument %d: expected %s, got %s", p->g->name, i,
                              t == ETCH_NONE ? "a tensor" : "ETCH_NONE",
                              t == ETCH_NONE ? "ETCH_NONE" : "a tensor");
    if (c->in[p->args[i].same] != t)
        return etch__false_at(c->site, ETCH_ERR_INVALID_ARGUMENT,
                              NAME ": %s: argument %d: expected the same tensor as argument %d, as "
                                   "when it was exported",
                              p->g->name, i, p->args[i].same);
    if (t == ETCH_NONE) return true;
    /* Deferred, or batched, which is refused. */
    if (!t->storage && etch__materialise(t, NAME, REASON_BREAK_FLUSH, c->site) != ETCH_OK)
        return false;
    if (etch__tangent_level(t, 0))
        return etch__false_at(c->site, ETCH_ERR_NO_GRAD,
                              NAME
                              ": %s: argument %d has a tangent (etch_jvp), which does not pass "
                              "through an imported function",
                              p->g->name, i);
    if (requires_grad(t))
        return etch__false_at(c->site, ETCH_ERR_NO_GRAD,
                              NAME
                              ": %s: argument %d requires gradients, which do not flow through "
                              "an imported function: call it in ETCH_NO_GRAD",
                              p->g->name, i);
    return looks_right(c, i, t);
}

/* ---- sizes ---- */

static bool size_differs(const imported_call *c, int i, int d, const program_dim *first) {
    const program *p = c->p;
    int64_t got = c->in[i]->size[d];
    if (!first) {
        const tensor_meta *m = &p->g->values[p->args[i].input].meta;
        return etch__false_at(c->site, ETCH_ERR_SHAPE,
                              NAME ": %s: argument %d: expected sizes %s, got %s", p->g->name, i,
                              etch__shape_text(m->ndim, m->size).s,
                              etch__shape_text(m->ndim, c->in[i]->size).s);
    }
    return etch__false_at(c->site, ETCH_ERR_SHAPE,
                          NAME ": %s: argument %d: dimension %d: expected %lld, as in dimension %d "
                               "of argument %d, got %lld",
                          p->g->name, i, d, (long long)c->in[first->argument]->size[first->dim],
                          first->dim, first->argument, (long long)got);
}

static bool out_of_bounds(const imported_call *c, int i, int d, const program_symbol *s) {
    char most[32] = "any number";
    if (s->max < INT64_MAX) snprintf(most, sizeof most, "%lld", (long long)s->max);
    return etch__false_at(
        c->site, ETCH_ERR_SHAPE,
        NAME ": %s: argument %d: dimension %d: expected a size of %lld to %s, got "
             "%lld",
        c->p->g->name, i, d, (long long)s->min, most, (long long)c->in[i]->size[d]);
}

/* The first dimension that a symbol is the size of. */
static const program_dim *first_of(const program *p, int symbol) {
    for (int i = 0; i < p->ndims; i++)
        if (p->dims[i].symbol == symbol) return &p->dims[i];
    return NULL;
}

static bool sizes_of_argument(const imported_call *c, int i, int64_t *sizes) {
    const tensor_meta *m = &c->p->g->values[c->p->args[i].input].meta;
    for (int d = 0; d < m->ndim; d++) {
        int64_t size = c->in[i]->size[d];
        int k = etch__program_symbol(c->p, i, d);
        if (k < 0 && size != m->size[d]) return size_differs(c, i, d, NULL);
        if (k < 0) continue;
        const program_symbol *s = &c->p->symbols[k];
        const program_dim *first = first_of(c->p, k);
        if (first->argument == i && first->dim == d) sizes[k] = size;
        if (size != sizes[k]) return size_differs(c, i, d, first);
        if (size < s->min || size > s->max) return out_of_bounds(c, i, d, s);
    }
    return true;
}

static bool strides_ok(const imported_call *c, int i) {
    const tensor_meta *m = &c->p->g->values[c->p->args[i].input].meta;
    if (SAME_STRIDES(c->in[i], m)) return true;
    return etch__false_at(c->site, ETCH_ERR_SHAPE,
                          NAME ": %s: argument %d: expected strides %s, got %s; etch_contiguous "
                               "gives row-major ones",
                          c->p->g->name, i, etch__shape_text(m->ndim, m->stride).s,
                          etch__shape_text(m->ndim, c->in[i]->stride).s);
}

/* The instance for the arguments' sizes. */
static bool take_instance(imported_call *c) {
    int64_t sizes[SYMBOLS_MAX] = {0};
    for (int i = 0; i < c->nin; i++)
        if (c->in[i] != ETCH_NONE && !sizes_of_argument(c, i, sizes)) return false;
    c->x = etch__instance_get(c->f, sizes);
    if (!c->x) return etch__error_name(NAME, c->site, false), false;
    c->p = c->x->p;
    for (int i = 0; i < c->nin; i++)
        if (c->in[i] != ETCH_NONE && !strides_ok(c, i)) return false;
    return true;
}

/* The body of a compiled function that makes the call is broken here. */
static bool break_graph(const imported_call *c) {
    trace_run *r = etch__current_run();
    if (likely(!r) || r->disabled) return true;
    return etch__break_graph(r, REASON_BREAK_IMPORTED, c->site, NULL, c->p->g->name) == ETCH_OK;
}

static bool take_inputs(const imported_call *c) {
    const program *p = c->p;
    int n = 0;
    for (int i = 0; i < c->nin; i++) {
        if (!argument_ok(c, i)) return false;
        if (c->in[i] != ETCH_NONE) c->inputs[n++] = c->in[i];
    }
    for (int i = 0; i < p->ncaptures; i++) c->inputs[n++] = c->f->e.captured[i];
    for (int v = 0; v < n; v++) {
        etch__before_read(c->inputs[v]->storage);
        if (etch__await_copy(c->inputs[v]) != ETCH_OK) return false;
    }
    return true;
}

/* Where inputs are written, arguments share memory as they did when it was recorded. */
static bool sharing_ok(const imported_call *c) {
    const program *p = c->p;
    int first = etch__first_capture(p);
    for (int v = 0; p->writes && v < p->g->ninputs; v++)
        for (int u = 0; u < v && u < first; u++) {
            bool shared = c->inputs[u]->storage == c->inputs[v]->storage;
            if (shared == (p->g->values[u].base == p->g->values[v].base)) continue;
            return etch__false_at(c->site, ETCH_ERR_INVALID_ARGUMENT,
                                  NAME ": %s: the graph's inputs %d and %d %s a storage, and it "
                                       "writes some: expected them to %s, as when it was exported",
                                  p->g->name, u, v, shared ? "share" : "do not share",
                                  shared ? "lie apart" : "share one");
        }
    return true;
}

/* ---- the run ---- */

static bool overlaps(const imported_call *c) {
    int n = c->p->g->ninputs;
    for (int v = 0; c->p->writes && v < n; v++)
        for (int u = 0; u < v; u++) {
            const etch_storage *a = c->inputs[u]->storage, *b = c->inputs[v]->storage;
            bool apart = a->own && b->own;
            if (!apart && (c->f->written[u] || c->f->written[v]) && etch__memory_overlaps(a, b))
                return true;
        }
    return false;
}

static void fill_scalars(const imported_call *c) {
    const program *p = c->p;
    const graph *g = p->g;
    if (g->nscalars) memcpy(c->scalars, p->scalars, (size_t)g->nscalars * sizeof *c->scalars);
    for (int i = 0; i < g->nnodes; i++) {
        if (!etch__program_draws(p, i)) continue;
        const tensor_meta *m = &g->values[g->nodes[i].out].meta;
        uint64_t seed, offset;
        int64_t n = 1;
        for (int d = 0; d < m->ndim; d++) n *= m->size[d];
        etch__random_reserve(n, &seed, &offset);
        etch_scalar *sc = c->scalars + g->nodes[i].sc + g->nodes[i].nsc - 2;
        sc[0] = etch_scalar_int((int64_t)seed), sc[1] = etch_scalar_int((int64_t)offset);
    }
}

static void note_writes(const imported_call *c) {
    const graph *g = c->p->g;
    for (int i = 0; c->p->writes && i < g->nnodes; i++) {
        int32_t base = g->values[g->nodes[i].out].base;
        if (etch__ops[g->nodes[i].op].kind == KIND_INPLACE && base < g->ninputs)
            etch__note_write(c->inputs[base]->storage, g->nodes[i].op, c->site);
    }
}

/* Whose kernels a device asks for as it comes to them. */
static pack_use enter_code(const imported_call *c) {
    bool given = c->f->code == ETCH_CODE_OF_FILE && etch__program_device(c->p);
    return etch__pack_enter((pack_use){.pack = given ? c->f->e.pack : NULL});
}

/* A plan that fails before it has written leaves it to the operators' own kernels to say why. */
static etch_status run_plans(const imported_call *c) {
    bool wrote = false;
    plan_io io = {c->inputs, c->scalars, c->produced, &wrote, false};
    plan *by_nodes = c->x->by_nodes, *first = overlaps(c) ? by_nodes : c->x->plan;
    saved_error before;
    etch__error_save(&before);
    etch_status status = first->run(first, &io);
    if (status != ETCH_OK && !wrote && first != by_nodes) {
        etch__error_restore(&before);
        status = by_nodes->run(by_nodes, &io);
    }
    if (status == ETCH_OK || wrote) note_writes(c);
    return status;
}

static etch_status run(const imported_call *c) {
    for (int v = 0; c->p->writes && v < c->p->g->ninputs; v++)
        if (c->f->written[v]) etch__before_write(c->inputs[v]->storage);
    fill_scalars(c);
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, (uint64_t)c->p->fp << 32);
    pack_use before = enter_code(c);
    etch_status status = run_plans(c);
    etch__pack_leave(before);
    etch__pop_frame(&frame);
    if (status != ETCH_OK) etch__error_name(NAME, c->site, false);
    return status;
}

/* ---- results ---- */

static int32_t produced_at(const graph *g, int32_t base) {
    for (int k = 0; k < g->noutputs; k++)
        if (g->outputs[k] == base) return k;
    return -1; /* never: the program was checked */
}

/* A new handle of the innermost scope, over what was produced or an input's storage. */
static etch_tensor *new_result(const imported_call *c, int32_t value) {
    const graph *g = c->p->g;
    tensor_meta m = g->values[value].meta;
    int32_t base = g->values[value].base, root = etch__program_root(c->p, value);
    if (root >= 0) m.offset += c->inputs[root]->offset;
    etch_tensor *t = etch__tensor_alloc();
    if (!t) return NULL;
    etch__lie_over(t, &m, root >= 0 ? c->inputs[root]->storage : c->produced[produced_at(g, base)]);
    t->view = value != base;
    if (etch__scope_push(t)) return t;
    etch__tensor_destroy(t);
    return NULL;
}

static etch_status make_results(const imported_call *c) {
    const program *p = c->p;
    for (int i = 0; i < c->nout; i++) {
        int32_t v = p->results[i];
        if (v < p->g->ninputs) c->out[i] = c->inputs[v];
        for (int k = 0; !c->out[i] && k < i; k++)
            if (p->results[k] == v) c->out[i] = c->out[k];
        if (!c->out[i] && !(c->out[i] = new_result(c, v))) return etch__tls.status;
    }
    return ETCH_OK;
}

/* ---- the call ---- */

static etch_status call_with_room(imported_call *c) {
    const graph *g = c->p->g;
    if (!break_graph(c) || !take_inputs(c) || !take_instance(c) || !sharing_ok(c))
        return etch__tls.status;
    etch_status status = run(c);
    if (status != ETCH_OK) return status;
    status = make_results(c);
    for (int k = 0; k < g->noutputs; k++) etch__storage_release(c->produced[k]);
    return status;
}

static etch_status call(imported_call *c) {
    if (!c->f)
        return etch__error_at(c->site, ETCH_ERR_NULL, NAME ": expected a function, got NULL");
    c->p = c->f->e.p;
    if (!counts_ok(c)) return etch__tls.status;
    for (int i = 0; i < c->nout; i++) c->out[i] = NULL;
    if (!etch__tls.nscopes && c->nout)
        return etch__error_at(c->site, ETCH_ERR_NO_SCOPE,
                              NAME ": no scope is open on this thread to own the result: put the "
                                   "call into ETCH_SCOPE { ... }");
    const graph *g = c->p->g;
    size_t pointers = (size_t)g->ninputs + (size_t)g->noutputs + 1;
    void *room =
        etch__calloc(1, pointers * sizeof(void *) + ((size_t)g->nscalars + 1) * sizeof *c->scalars);
    if (!room) return etch__tls.status;
    c->inputs = room;
    c->produced = (etch_storage **)(c->inputs + g->ninputs);
    c->scalars = (etch_scalar *)((void **)room + pointers);
    etch_status status = call_with_room(c);
    etch__instance_release(c->x);
    for (int i = 0; status != ETCH_OK && i < c->nout; i++) c->out[i] = NULL;
    etch__free(room);
    return status;
}

etch_status etch_imported_call(etch_imported *f, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    imported_call c = {.f = f, .in = in, .out = out, .nin = nin, .nout = nout, .site = SITE};
    return call(&c);
}

etch_tensor *etch_imported_call_one(etch_imported *f, etch_tensor *const *in, int nin) {
    etch_tensor *out = NULL;
    imported_call c = {.f = f, .in = in, .out = &out, .nin = nin, .nout = 1, .site = SITE};
    return call(&c) == ETCH_OK ? out : NULL;
}
