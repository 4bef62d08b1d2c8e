/* Functions that compiled code does not look into: disabled, allowed in graphs, assumed constant.
 *
 * C cannot see a plain call of a C function; these are handles whose calls the tracer sees. Outside
 * of a run, and where the run is eager anyway, all three just call the function. */
#include "core/base/locks.h"
#include "core/base/start.h"
#include "core/dispatch/mode.h"
#include "tracer/run/run.h"

#include <ctype.h>
#include <etch/mode.h>

/* ---- allowed in graphs ---- */

/* What the function's result looks like for arguments of these looks. */
typedef struct learnt {
    struct learnt *next;
    etch_tensor_spec result;
    int nin;
    tensor_meta in[];
} learnt;

/* One function that is allowed in graphs: an operator, for ever, since graphs outlive handles. */
typedef struct allowed_fn {
    struct allowed_fn *next;
    function_body body;
    const etch_op *op;
    pthread_mutex_t lock;
    learnt *known; /* newest first */
    char name[96];
} allowed_fn;

static allowed_fn *allowed_list;

/* The result of the call that is being recorded, when it is there already. */
static __thread etch_tensor *ready __attribute__((tls_model("initial-exec")));

static bool looks_like(const learnt *l, etch_tensor *const *in, int nin) {
    if (l->nin != nin) return false;
    for (int i = 0; i < nin; i++)
        if (!etch__guard_holds(&l->in[i], in[i])) return false;
    return true;
}

static bool find_learnt(allowed_fn *a, etch_tensor *const *in, int nin, etch_tensor_spec *spec) {
    pthread_mutex_lock(&a->lock);
    const learnt *l = a->known;
    while (l && !looks_like(l, in, nin)) l = l->next;
    if (l) *spec = l->result;
    pthread_mutex_unlock(&a->lock);
    return l != NULL;
}

static etch_status learn(allowed_fn *a, etch_tensor *const *in, int nin, const tensor_meta *m) {
    learnt *l = etch__calloc(1, sizeof *l + (size_t)nin * sizeof *l->in);
    if (!l) return ETCH_ERR_OUT_OF_MEMORY;
    l->nin = nin;
    for (int i = 0; i < nin; i++) etch__guard_make(in[i], &l->in[i]);
    l->result.dtype = m->dtype;
    l->result.sizes.n = m->ndim;
    memcpy(l->result.sizes.v, m->size, m->ndim * sizeof *m->size);
    pthread_mutex_lock(&a->lock);
    l->next = a->known;
    a->known = l;
    pthread_mutex_unlock(&a->lock);
    return ETCH_OK;
}

static etch_status allowed_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor_spec *out, int nout) {
    allowed_fn *a = ctx;
    (void)op, (void)nargs, (void)nout;
    if (find_learnt(a, args[0].tensors.items, args[0].tensors.count, out)) return ETCH_OK;
    return etch__error_at(NULL, ETCH_ERR_SHAPE,
                          "%s: what it returns for such arguments is not known yet", a->name);
}

static etch_status call_allowed(const allowed_fn *a, etch_tensor *const *in, int nin,
                                etch_tensor **out) {
    call_io io = {.in = in, .out = out, .nin = nin, .nout = 1};
    unsigned errors = etch__tls.errors;
    return etch__checked_results(a->name, errors, etch__call_body(&a->body, &io), &io);
}

static etch_status allowed_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    const allowed_fn *a = ctx;
    (void)op, (void)nargs, (void)nout;
    etch_tensor *y = ready;
    ready = NULL;
    if (!y) {
        etch_status status = call_allowed(a, args[0].tensors.items, args[0].tensors.count, &y);
        if (status != ETCH_OK) return status;
    }
    const etch_tensor *o = out[0];
    if (y->dtype != o->dtype || !SAME_SIZES(y, o))
        return etch__error_at(
            NULL, ETCH_ERR_SHAPE,
            "%s: a function allowed in graphs returned another dtype or shape than "
            "before for the same arguments",
            a->name);
    return etch_copy_(out[0], y) ? ETCH_OK : etch__tls.status;
}

static bool register_allowed(allowed_fn *a) {
    static int made;
    char schema[160];
    int n = snprintf(schema, sizeof schema, "etch::allowed_%d_%s", made++, a->name);
    for (int i = 6; i < n; i++)
        if (!isalnum((unsigned char)schema[i])) schema[i] = '_';
    snprintf(schema + n, sizeof schema - (size_t)n, "(Tensor[] inputs) -> Tensor");
    etch_op_definition d = {.struct_size = sizeof d,
                            .cpu = allowed_kernel,
                            .cuda = allowed_kernel, /* the body runs where its tensors lie */
                            .shape = allowed_shape,
                            .ctx = a};
    return (a->op = etch_op_register(schema, &d)) != NULL;
}

static allowed_fn *new_allowed(const function_body *body, const char *name) {
    allowed_fn *a = etch__calloc(1, sizeof *a);
    if (!a) return NULL;
    a->body = *body;
    pthread_mutex_init(&a->lock, NULL);
    snprintf(a->name, sizeof a->name, "%s", name);
    if (register_allowed(a)) return a;
    pthread_mutex_destroy(&a->lock);
    etch__free(a);
    return NULL;
}

static bool same_body(const function_body *a, const function_body *b) {
    return a->kind == b->kind && a->fn == b->fn && a->ctx == b->ctx;
}

/* One operator a function, however many handles. */
static allowed_fn *allow(const etch_function *f) {
    etch__lock(LOCK_ALLOWED);
    allowed_fn *a = allowed_list;
    while (a && !same_body(&a->body, &f->body)) a = a->next;
    if (!a && (a = new_allowed(&f->body, f->name))) {
        a->next = allowed_list;
        allowed_list = a;
    }
    etch__unlock(LOCK_ALLOWED);
    return a;
}

/* The first call with such arguments runs the function, which is then the recorded result. */
static etch_status learn_by_running(trace_run *r, etch_function *f, const call_io *io,
                                    etch_tensor **y) {
    tensor_meta meta;
    if (!etch__stop_matching(r, io)) return etch__tls.status;
    if (r->walk && r->walk->mode == WALK_SHAPES) {
        etch_status status = etch__learn_shapes(r, f, io, &meta);
        return status == ETCH_OK ? learn(f->allowed, io->in, io->nin, &meta) : status;
    }
    empty_frame frame = etch__push_frame();
    etch_status status = call_allowed(f->allowed, io->in, io->nin, y);
    etch__pop_frame(&frame);
    if (status != ETCH_OK) return status;
    etch__guard_make(*y, &meta);
    return learn(f->allowed, io->in, io->nin, &meta);
}

static etch_status call_node(trace_run *r, etch_function *f, const call_io *io) {
    etch_tensor_spec spec;
    etch_tensor *y = NULL;
    int64_t scope = etch_scope_begin();
    if (scope < 0) return etch__tls.status;
    etch_status status = ETCH_OK;
    if (!find_learnt(f->allowed, io->in, io->nin, &spec)) status = learn_by_running(r, f, io, &y);
    if (status == ETCH_OK) {
        op_call call = {
            .op = f->allowed->op->id, .nin = (uint16_t)io->nin, .in = io->in, .site = io->site};
        ready = y;
        io->out[0] = etch__dispatch(&call);
        ready = NULL;
        if (!io->out[0] || !etch_keep(io->out[0])) status = etch__tls.status;
    }
    etch_scope_end(scope);
    return status;
}

/* ---- assumed constant ---- */

/* The value that the n-th such call of a run had when it was recorded. */
struct constant {
    struct constant *next;
    uint64_t function;
    int number, nout;
    etch_tensor *out[];
};

static void free_constants(struct constant *c) {
    while (c) {
        struct constant *next = c->next;
        for (int i = 0; i < c->nout; i++) etch_release(c->out[i]);
        etch__free(c);
        c = next;
    }
}

void etch__start_constants(void) { etch__trace_parts.free_constants = free_constants; }

static const struct constant *find_constant(trace_run *r, const etch_function *f, int number,
                                            int nout) {
    pthread_mutex_lock(&r->f->lock);
    const struct constant *c = r->gen->constants;
    while (c && (c->function != f->serial || c->number != number || c->nout != nout)) c = c->next;
    pthread_mutex_unlock(&r->f->lock);
    return c;
}

static bool keep_constant(trace_run *r, const etch_function *f, int number, const call_io *io) {
    struct constant *c = etch__malloc(sizeof *c + (size_t)io->nout * sizeof(etch_tensor *));
    if (!c) return false;
    c->function = f->serial, c->number = number, c->nout = io->nout;
    for (int i = 0; i < io->nout; i++) c->out[i] = etch_retain(io->out[i]);
    pthread_mutex_lock(&r->f->lock);
    c->next = r->gen->constants;
    r->gen->constants = c;
    pthread_mutex_unlock(&r->f->lock);
    return true;
}

/* The body on the arguments' values, which must be there. */
static etch_status evaluate_constant(trace_run *r, etch_function *f, const call_io *io) {
    bool deferred = false;
    for (int i = 0; i < io->nin; i++) deferred |= io->in[i]->deferred;
    if (deferred && !etch__stop_matching(r, io)) return etch__tls.status;
    for (int i = 0; i < io->nin; i++)
        if (io->in[i]->deferred)
            return etch__error_at(
                io->site, ETCH_ERR_UNSUPPORTED,
                "%s: assumed constant, but under fullgraph its argument %d is not "
                "computed yet",
                f->name, i);
    empty_frame frame = etch__push_frame();
    etch__tls.in_flush = frame.in_flush;
    etch__fp_control(frame.fp);
    etch_status status = etch__call_in_scope(f, io);
    etch__pop_frame(&frame);
    return status;
}

static etch_status call_constant(trace_run *r, etch_function *f, const call_io *io) {
    int number = r->nconstants++;
    const struct constant *c = find_constant(r, f, number, io->nout);
    if (!c) {
        etch_status status = evaluate_constant(r, f, io);
        if (status == ETCH_OK && !keep_constant(r, f, number, io)) status = ETCH_ERR_OUT_OF_MEMORY;
        return status;
    }
    for (int i = 0; i < io->nout; i++) {
        if (!etch__scope_push(c->out[i])) return etch__tls.status;
        io->out[i] = etch_retain(c->out[i]);
    }
    return ETCH_OK;
}

/* ---- calling ---- */

static etch_status call_disabled(trace_run *r, etch_function *f, const call_io *io) {
    int before = etch__enter_disabled(f->recursive);
    etch_status status = r && !r->disabled ? etch__call_off(r, f, io) : etch__call_in_scope(f, io);
    etch__leave_disabled(before);
    return status;
}

etch_status etch__call_wrapped(etch_function *f, const call_io *io) {
    trace_run *r = etch__current_run();
    if (f->wrap == WRAP_MAPPED) return etch__call_mapped(f, io);
    if (f->wrap == WRAP_DISABLE) return call_disabled(r, f, io);
    bool plain =
        !r || r->disabled || r->eager || etch__tls.nlevels || etch__mode_entered_since(r->modes);
    if (plain) return etch__call_in_scope(f, io);
    if (f->wrap == WRAP_CONSTANT) return call_constant(r, f, io);
    if (io->nout != 1)
        return etch__error_at(io->site, ETCH_ERR_UNSUPPORTED,
                              "%s: a function allowed in graphs has one result, asked for %d",
                              f->name, io->nout);
    return call_node(r, f, io);
}

/* ---- making ---- */

etch_function *etch__wrap(etch_callable c, wrapper_kind kind, const char *function) {
    static _Atomic uint64_t made;
    etch_compile_options options = {
        .struct_size = sizeof options, .backend = "eager", .ctx = c.ctx, .disable = true};
    function_kind arity = c.arity < 0 ? FN_N : (function_kind)(FN_0 + c.arity);
    if (!c.fn)
        return etch__null_at(NULL, ETCH_ERR_NULL, "%s: expected a function, got NULL", function);
    if (c.arity > FN_8)
        return etch__null_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                             "%s: expected a callable with at most 8 arguments, got %d", function,
                             c.arity);
    etch_function *f = etch__function_new(arity, c.fn, &options);
    if (!f) return NULL;
    f->wrap = kind;
    f->serial = atomic_fetch_add(&made, 1) + 1;
    return f;
}

etch_function *(etch_disable)(etch_callable fn, bool recursive) {
    etch_function *f = etch__wrap(fn, WRAP_DISABLE, "etch_disable");
    if (f) f->recursive = recursive;
    return f;
}

etch_function *(etch_allow_in_graph)(etch_callable fn) {
    etch_function *f = etch__wrap(fn, WRAP_ALLOW, "etch_allow_in_graph");
    if (!f || (f->allowed = allow(f))) return f;
    etch_function_free(f);
    return NULL;
}

etch_function *(etch_assume_constant)(etch_callable fn) {
    return etch__wrap(fn, WRAP_CONSTANT, "etch_assume_constant");
}
