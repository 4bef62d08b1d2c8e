/* Backends that users register, and the one that counts.
 *
 * The user's function gets an editable copy of the graph. What it answers becomes a plan: either
 * another backend's, of the edited graph, with the scalars that the edit put in; or the user's own
 * function, whose results are checked and taken over. Where it fails the graph runs eagerly. */
#include <etch/backend.h>

#include "core/graph/backend.h"
#include "core/dispatch/dispatch.h"
#include "core/graph/graph_public.h"
#include "core/observe/report.h"

typedef struct user_backend {
    backend b;
    etch_backend_fn compile;
    void *ctx;
    _Atomic bool gone;         /* unregistered: its function may no longer be called */
    struct user_backend *next; /* of those that are gone */
    char name[];
} user_backend;

/* ---- plans ---- */

typedef struct user_plan {
    plan p;
    etch_runnable runnable;
    plan *inner;           /* of the edited graph, else NULL */
    graph_scalar *scalars; /* of the edited graph */
    int nscalars;          /* of the graph that runs */
    int nin, nout;
    tensor_meta *out; /* what the trace expects of each output */
} user_plan;

static void destroy_plan(plan *p) {
    user_plan *u = (user_plan *)p;
    if (u->runnable.destroy) u->runnable.destroy(u->runnable.ctx);
    etch__plan_release(u->inner);
    etch__free(u->scalars);
    etch__free(u->out);
    etch__free(u);
}

static etch_status run_edited(plan *p, const plan_io *io) {
    user_plan *u = (user_plan *)p;
    etch_scalar *scalars = etch__malloc(((size_t)u->nscalars + 1) * sizeof *scalars);
    if (!scalars) return ETCH_ERR_OUT_OF_MEMORY;
    for (int i = 0; i < u->nscalars; i++)
        scalars[i] =
            u->scalars[i].param < 0 ? u->scalars[i].value : io->scalars[u->scalars[i].param];
    plan_io inner = *io;
    inner.scalars = scalars;
    etch_status status = u->inner->run(u->inner, &inner);
    etch__free(scalars);
    return status;
}

/* A copy that lies as the graph says. */
static etch_tensor *laid_out(const tensor_meta *m, etch_tensor *t) {
    etch_shape n = {.n = 1, .v = {t->numel}}, size = {.n = m->ndim}, stride = {.n = m->ndim};
    etch_tensor *memory = NULL;
    if (etch__sizes_contiguous(m->ndim, m->size, m->stride)) return etch_clone(t);
    memcpy(size.v, m->size, m->ndim * sizeof *m->size);
    memcpy(stride.v, m->stride, m->ndim * sizeof *m->stride);
    ETCH_ON(t->device) memory = etch_empty((etch_dtype)m->dtype, n);
    etch_tensor *copy = memory ? etch_as_strided(memory, size, stride) : NULL;
    return copy && etch_copy_(copy, t) ? copy : NULL;
}

/* Dimensions of one element lie anywhere. */
static bool lies_so(const tensor_meta *m, const etch_tensor *t) {
    for (int d = 0; d < m->ndim; d++)
        if (m->size[d] > 1 && m->stride[d] != t->stride[d]) return false;
    return !t->offset;
}

/* The storage that the trace may keep: as the graph says, from its first element on, nobody
 * else's. */
static etch_storage *take_storage(const user_plan *u, int i, etch_tensor *t, const plan_io *io) {
    if (!etch__handle_ok(t, "a backend's function", "output", NULL)) return NULL;
    const tensor_meta *m = &u->out[i];
    if (t->dtype != m->dtype || t->ndim != m->ndim ||
        memcmp(t->size, m->size, m->ndim * sizeof *m->size))
        return etch__null(ETCH_ERR_SHAPE,
                          "a backend's function: output %d differs from the graph's in "
                          "dtype or sizes",
                          i);
    bool own = lies_so(m, t) && t->storage->block_bytes;
    for (int k = 0; k < u->nin; k++) own &= io->inputs[k]->storage != t->storage;
    for (int k = 0; k < i; k++) own &= io->outputs[k] != t->storage;
    if (!own && !(t = laid_out(m, t))) return NULL;
    etch__storage_retain(t->storage);
    return t->storage;
}

static etch_status take_outputs(const user_plan *u, etch_tensor **out, const plan_io *io) {
    for (int i = 0; i < u->nout; i++) {
        if ((io->outputs[i] = take_storage(u, i, out[i], io))) continue;
        while (i-- > 0) {
            etch__storage_release(io->outputs[i]);
            io->outputs[i] = NULL;
        }
        return etch__tls.status != ETCH_OK ? etch__tls.status : ETCH_ERR_INTERNAL;
    }
    return ETCH_OK;
}

static etch_status run_own(plan *p, const plan_io *io) {
    user_plan *u = (user_plan *)p;
    etch_tensor **out = etch__calloc((size_t)u->nout + 1, sizeof *out);
    int64_t scope = out ? etch_scope_begin() : -1;
    if (scope < 0) {
        etch__free(out);
        return ETCH_ERR_OUT_OF_MEMORY;
    }
    etch_status status = u->runnable.run(u->runnable.ctx, io->inputs, u->nin, io->scalars,
                                         u->nscalars, out, u->nout);
    if (status == ETCH_OK) status = take_outputs(u, out, io);
    else if (etch__tls.status == ETCH_OK)
        etch__error(status, "a backend's function failed with %s", etch_status_name(status));
    etch_scope_end(scope);
    etch__free(out);
    return status;
}

/* ---- compiling ---- */

static bool keep_metas(user_plan *u, const graph *g) {
    u->nin = g->ninputs, u->nout = g->noutputs;
    u->out = etch__malloc(((size_t)u->nout + 1) * sizeof *u->out);
    for (int i = 0; u->out && i < u->nout; i++) u->out[i] = g->values[g->outputs[i]].meta;
    return u->out != NULL;
}

static etch_status compile_edited(user_plan *u, const etch_graph *e,
                                  const backend_options *options) {
    const backend *by = etch__backend_find(u->runnable.backend);
    graph *g = by ? etch__graph_close(e, &u->scalars) : NULL;
    if (!g) return etch__tls.status;
    u->nscalars = g->nscalars;
    backend_options waits = *options; /* nobody compiles the edited graph again */
    waits.quick = false;
    etch_status status = etch__backend_compile(by, g, &waits, &u->inner);
    etch__graph_free(g);
    if (status != ETCH_OK) return status;
    u->p.run = run_edited;
    u->p.nkernels = u->inner->nkernels, u->p.nmatmuls = u->inner->nmatmuls;
    return ETCH_OK;
}

static etch_status answer(user_plan *u, const etch_graph *e, const graph *g,
                          const backend_options *options) {
    if (u->runnable.backend) return compile_edited(u, e, options);
    if (!u->runnable.run)
        return etch__error(ETCH_ERR_INVALID_ARGUMENT,
                           "it answered neither with a backend's name nor with a function");
    u->p.run = run_own;
    u->nscalars = g->nscalars;
    return ETCH_OK;
}

static etch_status call_user(const user_backend *b, const graph *g, const backend_options *options,
                             plan **out) {
    user_plan *u = etch__calloc(1, sizeof *u);
    etch_graph *e = u && keep_metas(u, g) ? etch__graph_open(g) : NULL;
    etch_status status = e ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
    if (e) {
        atomic_init(&u->p.refs, 1);
        u->p.destroy = destroy_plan;
        etch__graph_set_instance(e, options->instance);
        status = b->compile(b->ctx, e, &u->runnable);
        if (status == ETCH_OK) status = answer(u, e, g, options);
    }
    etch_graph_free(e);
    if (status == ETCH_OK) *out = &u->p;
    else if (u) destroy_plan(&u->p);
    return status;
}

/* Like the native backend, one that cannot compile leaves an eager plan and a warning. */
static etch_status compile_user(const backend *self, const graph *g, const backend_options *options,
                                plan **out) {
    const user_backend *b = (const user_backend *)self;
    if (b->gone) return etch__eager_plan(g, out);
    saved_error before;
    etch__error_save(&before);
    etch_clear_error();
    etch_status status = call_user(b, g, options, out);
    if (status != ETCH_OK && status != ETCH_ERR_OUT_OF_MEMORY) {
        etch__counters.compile_failures++;
        etch__count_reason(REASON_EAGER_COMPILE);
        const char *text = etch__tls.status ? etch__tls.error : etch_status_name(status);
        etch__report_fallback(REASON_EAGER_COMPILE, text);
        etch__warn("%s: backend '%s' failed, the graph runs eagerly: %s", g->name, b->name, text);
        status = etch__eager_plan(g, out);
    }
    if (status == ETCH_OK) etch__error_restore(&before);
    return status;
}

/* ---- registering ---- */

static user_backend *add_backend(const char *name, etch_backend_fn compile, void *ctx) {
    size_t n = strlen(name) + 1;
    user_backend *b = etch__calloc(1, sizeof *b + n);
    if (!b) return NULL;
    memcpy(b->name, name, n);
    b->b.name = b->name;
    b->b.compile_as = compile_user;
    b->compile = compile, b->ctx = ctx;
    if (etch__backend_register(&b->b)) return b;
    etch__free(b);
    return NULL;
}

etch_status etch_register_backend(const char *name, etch_backend_fn compile, void *ctx) {
    if (!name || !*name || !compile)
        return etch__error_at(NULL, ETCH_ERR_NULL,
                              "etch_register_backend: expected a name and a function");
    return add_backend(name, compile, ctx) ? ETCH_OK : etch__tls.status;
}

/* The record itself stays: functions that were made with it point to it. They are on this list, so
 * that they are not taken for leaked. */
static _Atomic(user_backend *) departed;

static etch_status count_graph(void *ctx, etch_graph *g, etch_runnable *out) {
    etch_compile_counts *counts = ctx;
    out->backend = "eager";
    if (etch_graph_is_instance(g)) return ETCH_OK;
    __atomic_fetch_add(&counts->frame_count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counts->op_count, etch_graph_num_nodes(g), __ATOMIC_RELAXED);
    return ETCH_OK;
}

const char *etch_compile_counter(etch_compile_counts *counts) {
    static atomic_int made;
    if (!counts)
        return etch__null_at(NULL, ETCH_ERR_NULL,
                             "etch_compile_counter: expected counts, got NULL");
    *counts = (etch_compile_counts){0};
    char name[32];
    snprintf(name, sizeof name, "counter/%d", atomic_fetch_add(&made, 1));
    const user_backend *b = add_backend(name, count_graph, counts);
    return b ? b->name : NULL;
}

etch_status etch_unregister_backend(const char *name) {
    const backend *b = name ? etch__backend_find(name) : NULL;
    if (!b)
        return name ? etch__tls.status
                    : etch__error_at(NULL, ETCH_ERR_NULL,
                                     "etch_unregister_backend: expected a name, got NULL");
    if (b->compile_as != compile_user)
        return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_unregister_backend: \"%s\" belongs to the library", name);
    user_backend *u = (user_backend *)b;
    if (!etch__backend_remove(b))
        return etch__error(ETCH_ERR_NOT_FOUND, "no backend is called \"%s\"", name);
    u->gone = true;
    u->next = atomic_load(&departed);
    while (!atomic_compare_exchange_weak(&departed, &u->next, u)) {}
    return ETCH_OK;
}
