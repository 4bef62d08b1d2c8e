/* Backward of what a compiled function has made: it is the body of another compiled function.
 *
 * A tape that a call leaves behind is run by the engine, whose operators are traced, verified and
 * compiled like those of any body; what derivatives read are captured tensors to it. So the code
 * for backward is made at its first use, for those gradients that were wanted, and follows
 * every change of the tape as a function follows its control flow. A node of the tape has a count
 * of its function's `grad_origin`, which owns the second function and outlives the first. */
#include "core/base/start.h"
#include "tracer/run/run.h"

struct grad_origin {
    atomic_int refs;
    etch_compile_options options; /* of the function whose calls made the tape */
    char *name;
    pthread_mutex_t lock;
    _Atomic(etch_function *) backward; /* made at first use */
};

/* What the body is to run, on this thread. */
typedef struct backward_job {
    etch_status (*run)(void *ctx);
    void *ctx;
} backward_job;
static __thread backward_job *job;

static void drop_origin(grad_origin *o) {
    if (atomic_fetch_sub(&o->refs, 1) != 1) return;
    etch_function_free(o->backward);
    pthread_mutex_destroy(&o->lock);
    etch__free(o->name);
    etch__free(o);
}

/* The user's own backends are asked for what the user wrote. */
static const char *backend_of(const etch_function *f) {
    static const char *const own[] = {"native", "eager", "aot_eager"};
    for (int i = 0; i < COUNT_OF(own); i++)
        if (etch__backend_find(own[i]) == f->backend) return own[i];
    return "native";
}

static grad_origin *new_origin(const etch_function *f) {
    grad_origin *o = etch__calloc(1, sizeof *o);
    char name[256];
    snprintf(name, sizeof name, "%s backward", f->name);
    if (!o || !(o->name = etch__strdup(name))) {
        etch__free(o);
        return NULL;
    }
    o->refs = 1;
    o->options = f->options;
    o->options.struct_size = sizeof o->options;
    o->options.backend = backend_of(f);
    o->options.name = o->name;
    o->options.fullgraph = o->options.replay = false;
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

/* NULL where there is no memory: backward then runs operator by operator. */
static grad_origin *origin_of_run(void) {
    trace_run *r = etch__current_run();
    if (!r || r->disabled) return NULL;
    saved_error before;
    etch__quick_save(&before);
    grad_origin *o = atomic_load(&r->f->origin), *none = NULL;
    grad_origin *made = o ? NULL : new_origin(r->f);
    if (made && atomic_compare_exchange_strong(&r->f->origin, &none, made)) o = made;
    else if (made) drop_origin(made), o = none;
    etch__quick_restore(&before);
    if (o) atomic_fetch_add(&o->refs, 1);
    return o;
}

static etch_status body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    (void)ctx, (void)in, (void)nin, (void)out, (void)nout;
    return job->run(job->ctx);
}

static etch_function *function_of(grad_origin *o) {
    etch_function *f = atomic_load(&o->backward);
    if (f) return f;
    pthread_mutex_lock(&o->lock);
    f = atomic_load(&o->backward);
    if (!f && (f = etch_compile_n(body, &o->options))) {
        f->backward = true;
        atomic_store(&o->backward, f);
    }
    pthread_mutex_unlock(&o->lock);
    return f;
}

/* The tape, and with it the origin's other counts, may go while it runs. Gradients are no results
 * of the function: one that could not be computed is an error of the backward nevertheless. */
static etch_status run_backward(grad_origin *o, etch_status (*run)(void *ctx), void *ctx) {
    etch_function *f = function_of(o);
    if (!f) return etch__tls.status;
    backward_job *outer = job, own = {run, ctx};
    job = &own;
    atomic_fetch_add(&o->refs, 1);
    unsigned errors = etch__tls.errors;
    etch_status status = etch_call_n(f, NULL, 0, NULL, 0);
    if (status == ETCH_OK && etch__tls.errors != errors) status = etch__tls.status;
    drop_origin(o);
    job = outer;
    return status;
}

void etch__start_backward(void) {
    etch__trace_hooks.origin = origin_of_run;
    etch__trace_hooks.drop_origin = drop_origin;
    etch__trace_hooks.backward = run_backward;
}
