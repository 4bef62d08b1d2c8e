/* A run on a device that works by itself: the steps of a plan go to its queue, as one kernel, as
 * one graph of the device, or one by one. */
#include "core/base/profile.h"
#include "jit/plan/native_plan.h"

/* ---- what the device's own clock is asked ---- */

enum { SAMPLE_RUNS = 32 };

static inline bool is_timed(const native_plan *p) {
    return unlikely(p->report != NULL) || etch__profile_on();
}

static clock_order order_of(const native_plan *p, int nspans,
                            void (*told)(void *, const clock_times *)) {
    return (clock_order){p->device, nspans, etch__profile_on(), p->report ? told : NULL, p->report};
}

/* Around a launch that does the whole of a run. */
static etch_status time_whole(const native_plan *p, run_block *b,
                              etch_status (*launch)(const native_plan *, run_block *)) {
    if (likely(!is_timed(p))) return launch(p, b);
    clock_order o = order_of(p, 1, etch__report_device_whole);
    clock_run *r = etch__clock_begin_one(&o, p->name);
    etch_status status = launch(p, b);
    etch__clock_end_one(r, status == ETCH_OK);
    return status;
}

/* A graph of the device hides its steps: ETCH_TRACE issues every so many runs step by step. A
 * profile changes nothing of how things run. */
static bool is_sample(const native_plan *p) {
    return unlikely(p->report != NULL) && p->as_graph && etch__device_clock &&
           atomic_fetch_add_explicit(&p->report->issued, 1, memory_order_relaxed) % SAMPLE_RUNS ==
               1;
}

/* ---- a run as one graph of the device ---- */

/* Whether addresses of operands or scalars of call step i differ from those
 * recorded in the graph. */
static bool changed_call(const native_plan *p, int i, run_block *b, const plan_io *io) {
    const call_step *c = &p->steps[i].c;
    int n = etch__call_operands(c);
    uint64_t *words = b->call_words + c->operand, *cells = b->call_words + p->noperands;
    bool changed = false;
    for (int k = 0; k < n; k++) {
        const etch_tensor *t = b->pointers[c->operand + k];
        uint64_t at = t == ETCH_NONE ? 0 : (uint64_t)(uintptr_t)etch__ptr(t);
        changed |= words[k] != at;
        words[k] = at;
    }
    for (int k = 0; k < c->call.nsc; k++) {
        uint64_t value = (uint64_t)io->scalars[c->scalar + k].i;
        changed |= cells[c->scalar + k] != value;
        cells[c->scalar + k] = value;
    }
    return changed;
}

static etch_status record_call(const native_plan *p, int i, run_block *b, const plan_io *io) {
    const target_graphs *t = &p->target->graphs;
    etch_status status = t->call_begin(b->graph, i);
    if (status != ETCH_OK) return status;
    status = etch__run_call(p, &p->steps[i].c, b, io);
    etch_status ended = t->call_end(b->graph, i, etch__steps_before(p, i));
    return status == ETCH_OK ? ended : status;
}

static etch_status new_graph(const native_plan *p, run_block *b) {
    b->call_words = etch__calloc((size_t)(p->noperands + p->nscalars + 1), sizeof(uint64_t));
    if (b->call_words) b->graph = p->target->graphs.make(p->device, p->nsteps, p->checks);
    return b->graph ? ETCH_OK : etch__tls.status;
}

static etch_status launch_graph(const native_plan *p, run_block *b) {
    return p->target->graphs.launch(b->graph);
}

static etch_status graph_steps(const native_plan *p, run_block *b, const plan_io *io, bool first) {
    const target_graphs *t = &p->target->graphs;
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < p->nsteps; i++) {
        const plan_step *s = &p->steps[i];
        if (!s->is_call)
            status = t->kernel(b->graph, i, etch__steps_before(p, i), &s->k, b->args + s->k.arg,
                               b->cells + s->k.cell);
        else if (changed_call(p, i, b, io) || first) status = record_call(p, i, b, io);
    }
    return status == ETCH_OK ? time_whole(p, b, launch_graph) : status;
}

/* The graph is built by the block's first run and patched by later ones; after a failure it is
 * built anew. Nothing has run when this fails. */
static etch_status run_graph(const native_plan *p, run_block *b, const plan_io *io) {
    const target_graphs *t = &p->target->graphs;
    bool first = !b->graph;
    etch_status status = first ? new_graph(p, b) : ETCH_OK;
    if (status == ETCH_OK) {
        t->begin(b->graph);
        status = graph_steps(p, b, io, first);
        t->end(b->graph);
    }
    if (status != ETCH_OK) etch__drop_graph(p, b);
    return status;
}

/* ETCH_ERR_UNSUPPORTED, with the error as it was: the run is to be issued step by step. Where the
 * device says so, the block's later runs are not asked again. */
static etch_status try_graph(const native_plan *p, run_block *b, const plan_io *io) {
    if (!p->as_graph || b->stepwise || !p->target->graphs.fits(p->device))
        return ETCH_ERR_UNSUPPORTED;
    saved_error before;
    etch__error_save(&before);
    etch_status status = run_graph(p, b, io);
    b->stepwise = status == ETCH_ERR_UNSUPPORTED;
    if (b->stepwise) etch__error_restore(&before);
    return status;
}

/* ---- the whole ---- */

/* Work of this thread on a device comes after what others have issued on the same memory. */
static etch_status use_memory(const native_plan *p, const run_block *b, const plan_io *io) {
    const target_queue *q = &p->target->queue;
    etch_status status = b->device_arena ? q->use(p->device, b->device_arena) : ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < p->ninputs; i++)
        if (io->inputs[i]->storage) status = q->use(p->device, io->inputs[i]->storage);
    for (int i = 0; status == ETCH_OK && i < p->noutputs; i++)
        status = q->use(p->device, b->outputs[i]);
    return status;
}

static etch_status run_launches(const native_plan *p, run_block *b, const plan_io *io) {
    etch_status status = p->checks ? p->target->queue.checks_open(p->device) : ETCH_OK;
    if (status != ETCH_OK) return status;
    status = etch__run_steps(p, b, io);
    if (p->checks) p->target->queue.checks_close();
    return status;
}

static etch_status time_launches(const native_plan *p, run_block *b, const plan_io *io,
                                 void (*told)(void *, const clock_times *)) {
    if (likely(!is_timed(p)) || !etch__device_clock) return run_launches(p, b, io);
    clock_order o = order_of(p, p->nsteps, told);
    b->clock = etch__device_clock->begin(&o);
    etch_status status = run_launches(p, b, io);
    if (b->clock) etch__device_clock->end(b->clock, status == ETCH_OK);
    b->clock = NULL;
    return status;
}

static etch_status launch_kernel(const native_plan *p, run_block *b) {
    return p->target->whole.launch(p->whole, b->args, b->cells);
}

static etch_status issue(const native_plan *p, run_block *b, const plan_io *io) {
    etch_status status = use_memory(p, b, io);
    if (status != ETCH_OK) return status;
    if (p->whole) return time_whole(p, b, launch_kernel);
    if (is_sample(p)) return time_launches(p, b, io, etch__report_device_sample);
    status = try_graph(p, b, io);
    if (status != ETCH_ERR_UNSUPPORTED) return status;
    return time_launches(p, b, io, etch__report_device_steps);
}

etch_status etch__issue_steps(const native_plan *p, run_block *b, const plan_io *io) {
    etch_status status = issue(p, b, io);
    return status == ETCH_OK ? p->target->queue.issued(p->device) : status;
}
