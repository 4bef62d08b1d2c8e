/* Calls of compiled functions: what is asked of their arguments, and whether they run traced,
 * inside another run, or uncompiled. */
#include "core/dispatch/mode.h"
#include "core/base/profile.h"
#include "tracer/tell/event.h"
#include "tracer/run/run.h"
#include "tracer/tell/report.h"

static etch_status call_at(etch_function *f, const call_io *io);

/* ---- inside another run ---- */

/* Its operands are produced, and what was recorded of them learns that they are used. */
static etch_status use_arguments(trace_run *r, const etch_function *f, const call_io *io) {
    for (int i = 0; i < io->nin; i++) {
        if (io->in[i]->deferred) etch__late_use(r, io->in[i]->owner, io->in[i]);
        if (etch__is_spoilt(io->in[i])) return etch__spoilt_error(f->name, io->site);
    }
    for (trace_walk *w = r->recordings; w; w = w->next)
        for (int i = 0; i < io->nin; i++) etch__note_used(w, io->in[i]);
    return ETCH_OK;
}

/* Inside a disabled function, a compiled one starts a run of its own. */
static etch_status call_in_own_run(trace_run *r, etch_function *f, const call_io *io) {
    etch_status status = use_arguments(r, f, io);
    if (status != ETCH_OK) return status;
    trace_run *before = etch__suspend(r);
    empty_frame frame = etch__push_frame();
    etch__tls.in_flush = frame.in_flush;
    etch__tls.layers = frame.layers & ~(1u << LAYER_TRACER);
    etch__fp_control(frame.fp);
    status = call_at(f, io);
    uint64_t state = etch__tls.state;
    frame.fp_changed = false;
    etch__pop_frame(&frame);
    etch__tls.state = state;
    etch__unsuspend(before);
    return status;
}

/* With a run active the body is recorded into it, unless its own options forbid that (rule 14 of
 * docs/architecture.md). */
static etch_status call_nested(trace_run *r, etch_function *f, const call_io *io) {
    bool disabled = etch__disabled(f) || (r->disabled && etch__blocking_mode());
    if (r->disabled && !disabled) return call_in_own_run(r, f, io);
    if (r->disabled || (!disabled && f->options.numerics == r->f->options.numerics))
        return etch__call_in_scope(f, io);
    return etch__call_off(r, f, io);
}

/* ---- arguments ---- */

static bool counts_ok(const etch_function *f, const call_io *io) {
    function_kind kind = f->body.kind;
    int nin = io->nin, nout = io->nout;
    if (nin < 0 || (kind != FN_N && nin != (int)kind))
        etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT, "%s: expected %d arguments, got %d",
                       f->name, kind == FN_N ? 0 : (int)kind, nin);
    else if (nout < 0 || (kind != FN_N && nout != 1))
        etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: the function has 1 result, asked for %d", f->name, nout);
    else if ((nin && !io->in) || (nout && !io->out))
        etch__error_at(NULL, ETCH_ERR_NULL, "%s: expected an array of %s, got NULL", f->name,
                       nin && !io->in ? "arguments" : "results");
    else return true;
    return false;
}

/* Names of functions do not live for ever, which the one that an older error goes on with must. */
static bool bad_argument(const etch_function *f, const etch_tensor *t, int i, const void *site) {
    bool released = t && t->magic != TENSOR_ALIVE;
    if (etch__tls.status != ETCH_OK && !released)
        etch__error_follows("etch_call", "an argument", site);
    else if (!t)
        etch__error_at(site, ETCH_ERR_NULL, "%s: argument %d: expected a tensor, got NULL", f->name,
                       i);
    else if (released)
        etch__error_at(site, ETCH_ERR_RELEASED,
                       "%s: argument %d was released before (keep it with etch_keep or "
                       "etch_retain)",
                       f->name, i);
    else
        etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: argument %d: the tensor's own computation failed before", f->name, i);
    return false;
}

static bool arguments_ok(const etch_function *f, const call_io *io) {
    for (int i = 0; i < io->nin; i++)
        if (unlikely(!etch__usable(io->in[i]))) return bad_argument(f, io->in[i], i, io->site);
    if (likely(etch__tls.nscopes)) return true;
    if (etch__scope_lost(io->site)) return false;
    return etch__false_at(io->site, ETCH_ERR_NO_SCOPE,
                          "%s: no scope is open on this thread to own the result: put the "
                          "call into ETCH_SCOPE { ... }",
                          f->name);
}

/* A function for which every size is fixed cannot take a dimension that is marked dynamic. */
static bool marks_ok(const etch_function *f, const call_io *io) {
    for (int i = 0; f->options.dynamic == ETCH_DYNAMIC_OFF && i < io->nin; i++) {
        if (!etch__marked_dynamic(io->in[i])) continue;
        return etch__false_at(
            io->site, ETCH_ERR_SPECIALISED,
            "%s: dimension %d of argument %d is marked dynamic, but the function was "
            "compiled with ETCH_DYNAMIC_OFF, which fixes every size",
            f->name, __builtin_ctz(etch__marks(io->in[i])->dynamic), i);
    }
    return true;
}

/* ---- which way ---- */

static etch_status call_under_mode(const etch_mode *mode, etch_function *f, const call_io *io) {
    if (f->options.fullgraph)
        return etch__error_at(NULL, ETCH_ERR_MODE_ACTIVE,
                              "%s: fullgraph = true, but an interceptor mode is "
                              "active; leave the mode first",
                              f->name);
    const char *name = etch_mode_name(mode);
    char line[192] = "";
    if (etch__log_on(LOG_MODES))
        snprintf(line, sizeof line, "'%s' is active, running %s() uncompiled", name, f->name);
    etch__event(f, EVENT_MODE, &(trace_event){REASON_EAGER_MODE, .detail = name, .line = line});
    return etch__call_in_scope(f, io);
}

/* In a mapped function it is part of that: its trace would have to know of batched tensors. */
static etch_status call_in_batch(etch_function *f, const call_io *io) {
    etch__event(f, EVENT_MAPPED, &(trace_event){REASON_EAGER_MAPPED, .detail = f->name});
    return etch__call_in_scope(f, io);
}

/* The call may free the function, but not its record. */
static etch_status call_reported(etch_function *f, const call_io *io) {
    report_function *report = etch__report_function(f);
    int64_t start = etch__now();
    etch_status status = etch__call_traced(f, io);
    if (report) etch__report_add_time(&report->calls, start);
    return status;
}

static etch_status call_function(etch_function *f, const call_io *io) {
    if (!arguments_ok(f, io)) return etch__tls.status;
    TRACE_COUNT(f, calls, 1);
    trace_run *r = etch__current_run();
    if (unlikely(f->wrap)) return etch__call_wrapped(f, io);
    if (r) return call_nested(r, f, io);
    if (etch__disabled(f)) return etch__call_in_scope(f, io);
    if (unlikely(etch__tls.nlevels)) return call_in_batch(f, io);
    const etch_mode *mode = etch__tls.mode_level ? etch__blocking_mode() : NULL;
    if (unlikely(mode)) return call_under_mode(mode, f, io);
    for (int i = 0; i < io->nin; i++)
        if (unlikely(io->in[i]->deferred) &&
            etch__materialise(io->in[i], "etch_call", REASON_BREAK_FLUSH, io->site) != ETCH_OK)
            return etch__tls.status;
    if (unlikely(!marks_ok(f, io))) return etch__tls.status;
    if (etch__report_on()) return call_reported(f, io);
    return etch__call_traced(f, io);
}

/* The body may free the function, so its name is kept for the profile. */
static etch_status call_profiled(etch_function *f, const call_io *io) {
    char name[64];
    snprintf(name, sizeof name, "%s", f->name);
    int64_t start = etch__now();
    etch_status status = call_function(f, io);
    etch__profile_add(ETCH_PROFILE_CALL, start, name, NULL);
    return status;
}

/* ---- the call ---- */

static void clear(const call_io *io) {
    for (int i = 0; i < io->nout; i++) io->out[i] = NULL;
}

/* Memory that a copy is still filling, or reading, is no exposed memory to the body. What the
 * function captures is not known yet. */
static etch_status await_copies(const call_io *io) {
    etch__before_read(NULL);
    for (int i = 0; i < io->nin; i++)
        if (io->in[i] && io->in[i]->magic == TENSOR_ALIVE && etch__await_copy(io->in[i]) != ETCH_OK)
            return etch__tls.status;
    return ETCH_OK;
}

/* Whether an array begins among the n entries of another. */
static inline bool begins_in(etch_tensor *const *at, etch_tensor *const *list, int n) {
    return (uintptr_t)at - (uintptr_t)list < (size_t)n * sizeof *list;
}

/* Results go to the places of arguments: the body reads copies of those, an error leaves them. Few
 * are copied to the stack, which a body may also leave by longjmp. */
static etch_status call_in_place(etch_function *f, const call_io *io) {
    etch_tensor *few[32], **own = few;
    if (io->nin > COUNT_OF(few) && !(own = etch__malloc((size_t)io->nin * sizeof *own)))
        return etch__tls.status;
    memcpy(own, io->in, (size_t)io->nin * sizeof *own);
    call_io apart = *io;
    apart.in = own;
    etch_status status = call_at(f, &apart);
    for (int i = 0; status != ETCH_OK && i < io->nout; i++)
        if (begins_in(io->out + i, io->in, io->nin))
            io->out[i] = own[(etch_tensor *const *)(io->out + i) - io->in];
    if (own != few) etch__free(own);
    return status;
}

/* The function may be gone. */
static etch_status failed_silently(etch_status status, const void *site) {
    return etch__error_at(site, status, "etch_call: it failed without a reason: %s",
                          etch_status_name(status));
}

static etch_status call_at(etch_function *f, const call_io *io) {
    if (unlikely(!f))
        return etch__error_at(NULL, ETCH_ERR_NULL, "etch_call: expected a function, got NULL");
    if (unlikely(!counts_ok(f, io))) return etch__tls.status;
    if (unlikely(begins_in(io->out, io->in, io->nin) || begins_in(io->in, io->out, io->nout)))
        return call_in_place(f, io);
    clear(io);
    if (unlikely(await_copies(io) != ETCH_OK)) return etch__tls.status;
    unsigned errors = etch__tls.errors;
    etch_status status = unlikely(etch__profile_on()) ? call_profiled(f, io) : call_function(f, io);
    if (likely(status == ETCH_OK)) return ETCH_OK;
    clear(io);
    return etch__own_error(errors) ? status : failed_silently(status, io->site);
}

etch_status etch_call_n(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                        int nout) {
    call_io io = {in, out, nin, nout, __builtin_return_address(0)};
    return call_at(f, &io);
}

etch_tensor *etch_call_one(etch_function *f, etch_tensor *const *in, int nin) {
    etch_tensor *out = NULL;
    call_io io = {in, &out, nin, 1, __builtin_return_address(0)};
    return call_at(f, &io) == ETCH_OK ? out : NULL;
}
