/* See record.h.
 *
 * One recording is one call on shapes alone (etch__view_call), so nothing is computed and no tensor
 * changes. A program is what every later call of the function would do again; where that does not
 * follow from the recording, it is refused rather than guessed: a value that outlives the call
 * without being a result, a captured tensor that each call makes anew, a number that differs in a
 * second recording, gradients that would be added to in a second call. */
#include "export/record.h"

#include <etch/device.h>
#include <etch/grad.h>
#include <etch/ops.h>

#include "core/autograd/engine.h"
#include "guards/alias.h"
#include "tracer/run/run.h"

typedef struct recorder {
    const etch_function *f;
    const call_io *io;
    const trace_walk *w;
    program *p;
    etch_tensor **tensors;
    bool *left;
    int64_t captures_cap, tensors_cap;
    int32_t *number; /* per value of the trace: that of the graph, or -1 */
    int64_t *offset; /* per value: elements from the input, or result, on which its views begin */
} recorder;

void etch__recorded_free(recorded *r) {
    for (int v = 0; r->tensors && v < r->p->g->ninputs; v++) etch_release(r->tensors[v]);
    etch__free(r->tensors);
    etch__free(r->left);
    etch__program_free(r->p);
    *r = (recorded){NULL, NULL, NULL};
}

/* ---- inputs ---- */

static bool add_input(recorder *c, int32_t v, etch_tensor *t) {
    tensor_meta guard;
    int n = c->p->g->ninputs;
    etch__guard_make(t, &guard);
    if (!etch__grow(&c->tensors, &c->tensors_cap, n + 1, sizeof(etch_tensor *))) return false;
    if ((c->number[v] = etch__graph_add_input(c->p->g, &guard)) < 0) return false;
    c->tensors[n] = etch_retain(t);
    return true;
}

static bool add_arguments(recorder *c) {
    for (int i = 0; i < c->io->nin; i++) {
        etch_tensor *t = c->io->in[i];
        int32_t same = 0;
        while (c->io->in[same] != t) same++;
        if (t != ETCH_NONE && !add_input(c, i, t)) return false;
        c->p->args[c->p->nargs++] = (program_argument){c->number[i], same};
    }
    return true;
}

static bool add_capture(recorder *c, int32_t v) {
    etch_tensor *t = c->w->c.value[v];
    program *p = c->p;
    if (t == ETCH_NONE) return true;
    if (!etch__grow(&p->captures, &c->captures_cap, p->ncaptures + 1, sizeof *p->captures) ||
        !add_input(c, v, t))
        return false;
    p->captures[p->ncaptures++] = (program_capture){NULL, 0};
    return true;
}

static bool add_captures(recorder *c) {
    for (int64_t i = 0; i < c->w->npath; i++)
        for (int k = 0; k < c->w->path[i]->ncaptures; k++)
            if (!add_capture(c, c->w->path[i]->captures[k].value)) return false;
    return true;
}

/* ---- nodes ---- */

static int add_call(recorder *c, const trace_node *n, const tensor_meta *meta) {
    op_call call = etch__node_call(c->w->seen.ints, n);
    call.sc = c->w->c.scalar + n->c.sc;
    int32_t *operands = etch__malloc(((size_t)n->nin + 1) * sizeof *operands);
    if (!operands) return -1;
    for (int i = 0; i < n->nin; i++) operands[i] = c->number[n->in[i]];
    int number = etch__graph_add_node(c->p->g, &call, operands, meta);
    etch__free(operands);
    return number;
}

static bool add_node(recorder *c, const trace_node *n) {
    tensor_meta meta = n->meta;
    if (etch__ops[n->op].kind == KIND_VIEW)
        c->offset[n->c.out] = c->offset[n->in[0]] + etch__view_offset(c->w->seen.ints, n);
    meta.offset = c->offset[n->c.out];
    int number = add_call(c, n, &meta);
    if (number < 0) return false;
    graph *g = c->p->g;
    g->nodes[number].state = (uint32_t)n->c.state & ~STATE_NO_GRAD;
    c->number[n->c.out] = g->nodes[number].out;
    if (n->c.inplace) c->p->writes |= g->values[g->nodes[number].out].base < g->ninputs;
    return true;
}

static bool add_nodes(recorder *c) {
    program *p = c->p;
    for (int64_t i = 0; i < c->w->npath; i++)
        if (!add_node(c, c->w->path[i])) return false;
    p->scalars = etch__calloc((size_t)p->g->nscalars + 1, sizeof *p->scalars);
    if (p->scalars && p->g->nscalars)
        memcpy(p->scalars, c->w->c.scalar, (size_t)p->g->nscalars * sizeof *p->scalars);
    if (c->w->npath) p->fp = STATE_FP(c->w->path[0]->c.state);
    p->g->any_mode = p->fp != 0;
    return p->scalars != NULL;
}

/* Where inputs are written, those over one storage have one base; the bases of values follow. */
static void join_bases(recorder *c) {
    graph *g = c->p->g;
    etch_tensor *of[2];
    for (int v = 0; c->p->writes && v < c->w->nvalues; v++) {
        if (c->number[v] < 0 || c->number[v] >= g->ninputs) continue;
        for (int u = 0; u < v; u++) {
            if (c->number[u] < 0 || c->number[u] >= g->ninputs) continue;
            of[0] = c->w->c.value[u], of[1] = c->w->c.value[v];
            if (of[0]->storage != of[1]->storage) continue;
            int a = c->number[u], b = c->number[v], first = a < b ? a : b;
            g->values[a < b ? b : a].base = g->values[first].base;
        }
    }
    for (int v = g->ninputs; v < g->nvalues; v++) {
        const graph_node *n = &g->nodes[g->values[v].node];
        if (etch__ops[n->op].kind == KIND_VIEW)
            g->values[v].base = g->values[g->operands[n->in]].base;
    }
}

/* ---- results ---- */

static etch_status refuse(const recorder *c, const char *what, const void *site) {
    return etch__error_at(site, ETCH_ERR_UNSUPPORTED, "etch_export: %s: %s", c->f->name, what);
}

static int32_t value_of(const recorder *c, const etch_tensor *t) {
    for (int64_t v = c->w->nvalues - 1; v >= 0; v--)
        if (c->w->c.value[v] == t && c->number[v] >= 0) return (int32_t)v;
    return -1;
}

static bool is_capture(const recorder *c, int32_t v) {
    return v >= c->io->nin && c->number[v] < c->p->g->ninputs;
}

/* Whether the tensor has moved to the scope around the call. */
static bool is_the_calls(const etch_tensor *t) {
    const etch_thread *thread = &etch__tls;
    for (int64_t i = thread->scope_start[thread->nscopes - 1]; i < thread->nitems; i++)
        if (thread->items[i] == t) return true;
    return false;
}

static bool add_output(recorder *c, int32_t value) {
    graph *g = c->p->g;
    int32_t base = g->values[value].base;
    if (base < g->ninputs) return true;
    for (int k = 0; k < g->noutputs; k++)
        if (g->outputs[k] == base) return true;
    return etch__graph_add_output(g, base);
}

static etch_status add_result(recorder *c, int i, etch_tensor *t) {
    int32_t v = value_of(c, t);
    if (v < 0) return refuse(c, "it returns a tensor that none of its operators made", NULL);
    if (is_capture(c, v) && is_the_calls(t))
        return refuse(c,
                      "it returns a tensor that it makes anew in each call (by etch_from_host or "
                      "the like), which is no operator",
                      NULL);
    if (c->number[v] >= c->p->g->ninputs && etch_requires_grad(t))
        return etch__error_at(
            NULL, ETCH_ERR_UNSUPPORTED,
            "etch_export: %s: result %d requires gradients, which a file does not "
            "carry on: export in ETCH_NO_GRAD, or call etch_backward inside",
            c->f->name, i);
    c->p->results[c->p->nresults++] = c->number[v];
    return add_output(c, c->number[v]) ? ETCH_OK : etch__tls.status;
}

/* ---- what the next call would find otherwise ---- */

static bool is_result(const recorder *c, etch_tensor *const *out, const etch_tensor *t) {
    for (int i = 0; i < c->io->nout; i++)
        if (out[i] == t) return true;
    return false;
}

static bool is_gradient(const recorder *c, const etch_tensor *t) {
    for (int v = 0; v < c->p->g->ninputs; v++)
        if (etch_grad_of(c->tensors[v]) == t) return true;
    return false;
}

static bool note_gradients(recorder *c) {
    c->left = etch__calloc((size_t)c->p->g->ninputs + 1, sizeof *c->left);
    for (int v = 0; c->left && v < c->p->g->ninputs; v++) {
        const etch_tensor *grad = etch_grad_of(c->tensors[v]);
        c->left[v] = grad && grad->deferred;
    }
    return c->left != NULL;
}

static etch_status values_end(const recorder *c, etch_tensor *const *out) {
    for (int64_t i = 0; i < c->w->npath; i++) {
        const trace_node *n = c->w->path[i];
        const etch_tensor *t = c->w->c.value[n->c.out];
        if (n->c.inplace || !c->w->rec.want[n->c.out]) continue;
        if (is_result(c, out, t) || is_gradient(c, t)) continue;
        return refuse(c,
                      "a tensor that it makes outlives the call without being a result: write it "
                      "into one that was there before (etch_copy_), or return it",
                      n->site);
    }
    return ETCH_OK;
}

/* A tensor that only the recording holds was made in the call: the next one begins with another. */
static etch_status writes_end(const recorder *c) {
    for (int64_t i = 0; i < c->w->npath; i++) {
        const trace_node *n = c->w->path[i];
        int32_t base = n->c.inplace ? etch__program_root(c->p, c->number[n->in[0]]) : -1;
        if (base < etch__first_capture(c->p)) continue;
        if (atomic_load(&c->tensors[base]->refs) > 2) continue; /* the walk's, and ours */
        return refuse(c,
                      "it writes a tensor that it makes anew in each call by a function that is "
                      "no operator",
                      n->site);
    }
    return ETCH_OK;
}

static etch_status places_fit(const recorder *c) {
    const graph *g = c->p->g;
    int first = etch__first_capture(c->p);
    for (int v = 1; v < g->nvalues; v++) {
        if (g->values[v].meta.device == g->values[0].meta.device) continue;
        char what[160];
        snprintf(what, sizeof what, "%s lies on %s, and the first tensor on %s; all must be on one",
                 v >= g->ninputs ? "a value"
                 : v >= first    ? "a captured tensor"
                                 : "an argument",
                 etch_device_name(g->values[v].meta.device),
                 etch_device_name(g->values[0].meta.device));
        const graph_value *value = &g->values[v];
        refuse(c, what, value->node < 0 ? NULL : g->nodes[value->node].site);
        return etch__tls.status = ETCH_ERR_DEVICE;
    }
    return ETCH_OK;
}

static etch_status operators_fit(const recorder *c) {
    for (int i = 0; i < c->p->g->nnodes; i++) {
        const graph_node *n = &c->p->g->nodes[i];
        if (n->op < OP_COUNT || strchr(etch__ops[n->op].name, ':')) continue;
        return refuse(c,
                      "a function of etch_allow_in_graph has no name by which it could be found "
                      "again: register it (etch_op_register)",
                      n->site);
    }
    return ETCH_OK;
}

/* ---- one recording ---- */

static bool start(recorder *c) {
    size_t nv = (size_t)c->w->nvalues + 1;
    program *p = c->p = etch__calloc(1, sizeof *p);
    if (!p) return false;
    p->mode = c->f->options.mode, p->numerics = c->f->options.numerics;
    c->number = etch__malloc(nv * sizeof *c->number);
    c->offset = etch__calloc(nv, sizeof *c->offset);
    p->args = etch__calloc((size_t)c->io->nin + 1, sizeof *p->args);
    p->results = etch__calloc((size_t)c->io->nout + 1, sizeof *p->results);
    char name[64];
    snprintf(name, sizeof name, "%.60s", c->f->name);
    for (char *s = name; *s; s++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.", *s))
            *s = '_';
    p->g = etch__graph_new(name);
    if (!c->number || !c->offset || !p->args || !p->results || !p->g) return false;
    for (size_t v = 0; v < nv; v++) c->number[v] = -1;
    return true;
}

static etch_status see(void *ctx, const trace_walk *w, etch_tensor *const *out) {
    recorder *c = ctx;
    c->w = w;
    if (!start(c) || !add_arguments(c) || !add_captures(c) || !add_nodes(c) || !note_gradients(c))
        return etch__tls.status;
    join_bases(c);
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < c->io->nout; i++) status = add_result(c, i, out[i]);
    if (status == ETCH_OK) status = values_end(c, out);
    if (status == ETCH_OK) status = writes_end(c);
    if (status == ETCH_OK) status = places_fit(c);
    if (status == ETCH_OK) status = operators_fit(c);
    return status;
}

/* A function with the same body, that was never called. */
static etch_function *twin_of(const etch_function *f) {
    etch_compile_options options = f->options;
    options.struct_size = sizeof options;
    options.ctx = f->body.ctx;
    options.name = f->name;
    options.fullgraph = true;
    options.dynamic = ETCH_DYNAMIC_AUTO;
    options.replay = options.background = options.disable = false;
    return etch__function_new(f->body.kind, f->body.fn, &options);
}

bool etch__record_once(etch_function *f, etch_tensor *const *in, int nin, int nout, recorded *r) {
    etch_function *twin = twin_of(f);
    etch_tensor **out = etch__calloc((size_t)nout + 1, sizeof *out);
    call_io io = {.in = in, .out = out, .nin = nin, .nout = nout};
    recorder c = {.f = f, .io = &io};
    etch_status status = twin && out ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
    if (status == ETCH_OK)
        ETCH_SCOPE
            status = etch__view_call(twin, &io, see, &c);
    etch_function_free(twin);
    etch__free(out);
    etch__free(c.number);
    etch__free(c.offset);
    *r = (recorded){c.p, c.tensors, c.left};
    if (status != ETCH_OK) etch__recorded_free(r);
    return status == ETCH_OK;
}

/* ---- two recordings ---- */

/* Gradients that the first call has left would be there in the next one: zeros take their place, so
 * that a body which adds to them is seen to. */
static bool put_gradient(etch_tensor *leaf) {
    etch_tensor *zeros = NULL;
    ETCH_ON(etch_device_of(leaf)) zeros = etch_zeros(etch_dtype_of(leaf), etch_sizes(leaf));
    return zeros && etch_set_grad(leaf, zeros) == ETCH_OK;
}

static bool put_gradients(const recorded *r) {
    bool ok = true;
    for (int v = 0; ok && v < r->p->g->ninputs; v++)
        if (r->left[v]) ok = put_gradient(r->tensors[v]);
    return ok;
}

static void drop_gradients(const recorded *r) {
    for (int v = 0; v < r->p->g->ninputs; v++)
        if (r->left[v]) etch_zero_grad(r->tensors[v]);
}

static bool record_again(etch_function *f, etch_tensor *const *in, int nin, int nout,
                         const recorded *first, recorded *second) {
    bool ok = false;
    ETCH_SCOPE {
        ok = put_gradients(first) && etch__record_once(f, in, nin, nout, second);
        KEEP_ERROR;
        drop_gradients(first);
    }
    return ok;
}

static bool same_captures(const recorded *a, const recorded *b) {
    for (int v = 0; v < a->p->g->ninputs; v++)
        if (a->tensors[v] != b->tensors[v]) return false;
    return true;
}

bool etch__record(etch_function *f, etch_tensor *const *in, int nin, int nout, recorded *r) {
    recorded again = {NULL, NULL, NULL};
    if (!etch__record_once(f, in, nin, nout, r)) return false;
    bool ok = record_again(f, in, nin, nout, r, &again);
    const char *why = ok ? etch__program_difference(r->p, again.p, false) : NULL;
    if (ok && !why && !same_captures(r, &again)) why = "it captures other tensors in the next call";
    if (why)
        etch__error_at(NULL, ETCH_ERR_UNSUPPORTED,
                       "etch_export: %s: what it does changes from call to call: %s", f->name, why);
    etch__recorded_free(&again);
    if (!ok || why) etch__recorded_free(r);
    return ok && !why;
}
