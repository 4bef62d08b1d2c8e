/* A run of a native plan: see native.h. */
#include "core/tensor/device.h"
#include "core/dispatch/lend.h"
#include "core/base/pool.h"
#include "core/observe/profile.h"
#include "jit/plan/native.h"

/* ---- run blocks ---- */

static void *carve(char **at, size_t bytes) {
    void *p = *at;
    *at += (bytes + 63) & ~(size_t)63;
    return p;
}

static size_t room(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static void fix_addresses(const native_plan *p, run_block *b) {
    for (int i = 0; i < p->nargs; i++)
        b->args[i] = p->args[i].kind == PLACE_ARENA ? b->arena + p->args[i].offset : NULL;
    for (int i = 0; i < p->noperands; i++) {
        const operand_slot *o = &p->operands[i];
        b->operands[i] = o->t;
        b->pointers[i] = o->none ? ETCH_NONE : &b->operands[i];
        if (o->none || o->at.kind != PLACE_ARENA) continue;
        b->storages[i].data = b->arena + o->at.offset;
        b->storages[i].device = (uint8_t)p->device;
        b->operands[i].storage = &b->storages[i];
    }
}

static run_block *new_block(const native_plan *p) {
    size_t operands = p->noperands;
    size_t bytes = room(sizeof(run_block)) + room((p->nargs + 1) * sizeof(void *)) +
                   room((p->ncells + 1) * sizeof(uint64_t)) + room(operands * sizeof(etch_tensor)) +
                   room(operands * sizeof(void *)) + room(operands * sizeof(etch_storage)) +
                   room(p->noutputs * sizeof(void *));
    char *raw = etch__aligned(bytes + (p->device ? 0 : p->arena_bytes));
    if (!raw) return NULL;
    run_block *b = (run_block *)raw;
    char *at = raw + room(sizeof *b);
    b->args = carve(&at, (p->nargs + 1) * sizeof(void *));
    b->cells = carve(&at, (p->ncells + 1) * sizeof(uint64_t));
    b->operands = carve(&at, operands * sizeof(etch_tensor));
    b->pointers = carve(&at, operands * sizeof(void *));
    b->storages = carve(&at, operands * sizeof(etch_storage));
    b->outputs = carve(&at, p->noutputs * sizeof(void *));
    b->arena = at;
    b->device_arena = NULL, b->graph = NULL, b->call_words = NULL, b->stepwise = false;
    if (p->device && p->arena_bytes) {
        b->device_arena = etch__storage_new_on(p->device, (size_t)p->arena_bytes);
        if (!b->device_arena) return etch__free(raw), NULL;
        b->arena = b->device_arena->data;
    }
    memset(b->storages, 0, operands * sizeof(etch_storage));
    for (size_t i = 0; i < operands; i++) atomic_init(&b->storages[i].refs, 1);
    fix_addresses(p, b);
    return b;
}

static void drop_graph(run_block *b) {
    if (b->graph) etch__target()->graph_free(b->graph);
    etch__free(b->call_words);
    b->graph = NULL, b->call_words = NULL;
}

static void free_block_memory(run_block *b) {
    if (!b) return;
    drop_graph(b);
    etch__storage_release(b->device_arena);
    etch__free(b);
}

static run_block *take_block(native_plan *p) {
    for (unsigned i = 0; i < FREE_BLOCKS; i++) {
        _Atomic(run_block *) *slot = &p->blocks[(etch__tls.number + i) % FREE_BLOCKS].block;
        if (!atomic_load_explicit(slot, memory_order_relaxed)) continue;
        run_block *b = atomic_exchange(slot, NULL);
        if (b) return b;
    }
    return new_block(p);
}

/* A provisional plan, which goes on living behind what replaces it, keeps no memory. */
static void give_block(native_plan *p, run_block *b) {
    for (unsigned i = 0; i < FREE_BLOCKS && !p->p.provisional; i++) {
        _Atomic(run_block *) *slot = &p->blocks[(etch__tls.number + i) % FREE_BLOCKS].block;
        run_block *none = NULL;
        if (atomic_compare_exchange_strong(slot, &none, b)) return;
    }
    free_block_memory(b);
}

/* ---- one run ---- */

static void release_outputs(const native_plan *p, run_block *b, int n) {
    (void)p;
    for (int k = 0; k < n; k++) etch__storage_release(b->outputs[k]);
}

static bool allocate_outputs(const native_plan *p, run_block *b, const plan_io *io) {
    for (int k = 0; k < p->noutputs; k++) {
        if (unlikely(io->given)) {
            etch__storage_retain(b->outputs[k] = io->outputs[k]);
            continue;
        }
        b->outputs[k] = etch__storage_new_on(p->device, (size_t)p->output_bytes[k]);
        if (b->outputs[k]) continue;
        release_outputs(p, b, k);
        return false;
    }
    return true;
}

static void patch(const native_plan *p, run_block *b, const plan_io *io) {
    for (int i = 0; i < p->nargs; i++) {
        const place *at = &p->args[i];
        if (at->kind == PLACE_INPUT)
            b->args[i] = (char *)etch__ptr(io->inputs[at->index]) + at->offset;
        else if (at->kind == PLACE_OUTPUT)
            b->args[i] = (char *)b->outputs[at->index]->data + at->offset;
    }
    for (int i = 0; i < p->ncells; i++)
        b->cells[i] = etch__scalar_cell(io->scalars[p->cells[i].scalar], p->cells[i].dtype);
    for (int i = 0; i < p->noperands; i++) {
        const operand_slot *o = &p->operands[i];
        if (o->none || o->at.kind == PLACE_ARENA) continue;
        etch_tensor *t = &b->operands[i];
        const etch_tensor *input = o->at.kind == PLACE_INPUT ? io->inputs[o->at.index] : NULL;
        t->storage = input ? input->storage : b->outputs[o->at.index];
        t->offset = input ? input->offset + o->at.offset : o->t.offset;
    }
}

typedef struct launch {
    const kernel_step *k;
    void *const *args;
    const uint64_t *cells;
} launch;

static void run_range(void *ctx, int64_t begin, int64_t end) {
    const launch *l = ctx;
    l->k->fn(l->args, l->k->dims, l->cells, begin, end);
}

/* Work of this thread on a device comes after what others have issued on the same memory. */
static etch_status use_memory(const native_plan *p, const run_block *b, const plan_io *io) {
    const jit_target *target = etch__target();
    etch_status status = b->device_arena ? target->use(p->device, b->device_arena) : ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < p->ninputs; i++)
        if (io->inputs[i]->storage) status = target->use(p->device, io->inputs[i]->storage);
    for (int i = 0; status == ETCH_OK && i < p->noutputs; i++)
        status = target->use(p->device, b->outputs[i]);
    return status;
}

static etch_status launch_kernel(const kernel_step *k, run_block *b) {
    int64_t start = etch__profile_start();
    etch_status status = etch__target()->launch(k->launcher, b->args + k->arg, b->cells + k->cell);
    etch__profile_end_event(ETCH_PROFILE_KERNEL, start, k->name, NULL);
    return status;
}

static void run_units(void *ctx) {
    const launch *l = ctx;
    if (l->k->units <= l->k->grain) run_range(ctx, 0, l->k->units);
    else etch__parallel(l->k->units, l->k->grain, run_range, ctx);
}

static etch_status run_kernel(const kernel_step *k, run_block *b) {
    launch l = {k, b->args + k->arg, b->cells + k->cell};
    if (unlikely(!etch__stack_ready(k->stack))) return etch__tls.status;
    int64_t start = etch__profile_start();
    etch__with_room(k->stack, run_units, &l);
    etch__profile_end_event(ETCH_PROFILE_KERNEL, start, k->name, NULL);
    return ETCH_OK;
}

static etch_status run_product(const call_step *c, const op_call *call, etch_tensor *out) {
    int64_t start = etch__profile_start();
    etch_status status = etch__target()->product(call, c->epilogue, out);
    etch__profile_end_event(ETCH_PROFILE_PRODUCT, start,
                            call->op == OP_MM ? "aten::mm" : "aten::addmm", "with epilogue");
    return status;
}

static etch_status run_call(const native_plan *p, const call_step *c, run_block *b,
                            const plan_io *io) {
    op_call call = c->call;
    call.in = b->pointers + c->operand;
    call.sc = io->scalars + c->scalar;
    etch__tls.state = c->state;
    op_kernel kernel = etch__kernel_on(call.op, p->device);
    if (unlikely(!kernel)) return etch__run_kernel(&call, b->pointers[c->result]);
    if (c->epilogue) return run_product(c, &call, b->pointers[c->result]);
    return etch__call_kernel(kernel, &call, &b->pointers[c->result], true);
}

static etch_status run_step(const native_plan *p, int i, run_block *b, const plan_io *io) {
    const step *s = &p->steps[i];
    if (s->is_call) return run_call(p, &s->c, b, io);
    if (unlikely(s->k.launcher != NULL)) return launch_kernel(&s->k, b);
    return run_kernel(&s->k, b);
}

static etch_status run_steps(const native_plan *p, run_block *b, const plan_io *io) {
    for (int i = 0; i < p->nsteps; i++) {
        int64_t start = unlikely(p->report != NULL) ? etch__report_now() : 0;
        etch_status status = run_step(p, i, b, io);
        if (unlikely(start)) etch__report_step_ran(p->report, i, start);
        if (likely(status == ETCH_OK)) continue;
        if (i >= p->late && io->wrote) *io->wrote = true;
        return status;
    }
    return ETCH_OK;
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
    const jit_target *t = etch__target();
    etch_status status = t->graph_call_begin(b->graph, i);
    if (status != ETCH_OK) return status;
    status = run_call(p, &p->steps[i].c, b, io);
    etch_status ended = t->graph_call_end(b->graph, i, p->after[i]);
    return status == ETCH_OK ? ended : status;
}

static etch_status new_graph(const native_plan *p, run_block *b) {
    b->call_words = etch__calloc((size_t)(p->noperands + p->nscalars + 1), sizeof(uint64_t));
    if (b->call_words) b->graph = etch__target()->graph_new(p->device, p->nsteps, p->checks);
    return b->graph ? ETCH_OK : etch__tls.status;
}

static etch_status graph_steps(const native_plan *p, run_block *b, const plan_io *io, bool first) {
    const jit_target *t = etch__target();
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < p->nsteps; i++) {
        const step *s = &p->steps[i];
        if (!s->is_call)
            status = t->graph_kernel(b->graph, i, p->after[i], s->k.launcher, b->args + s->k.arg,
                                     b->cells + s->k.cell);
        else if (changed_call(p, i, b, io) || first) status = record_call(p, i, b, io);
    }
    return status == ETCH_OK ? t->graph_launch(b->graph) : status;
}

/* The graph is built by the block's first run and patched by later ones; after a failure it is
 * built anew. Nothing has run when this fails. */
static etch_status run_graph(const native_plan *p, run_block *b, const plan_io *io) {
    const jit_target *t = etch__target();
    bool first = !b->graph;
    etch_status status = first ? new_graph(p, b) : ETCH_OK;
    if (status == ETCH_OK) {
        t->graph_begin(b->graph);
        status = graph_steps(p, b, io, first);
        t->graph_end(b->graph);
    }
    if (status != ETCH_OK) drop_graph(b);
    return status;
}

/* ETCH_ERR_UNSUPPORTED, with the error as it was: the run is to be issued step by step. Where the
 * device says so, the block's later runs are not asked again. */
static etch_status try_graph(const native_plan *p, run_block *b, const plan_io *io) {
    if (!p->as_graph || b->stepwise || !etch__target()->graph_fits(p->device))
        return ETCH_ERR_UNSUPPORTED;
    saved_error before;
    etch__error_save(&before);
    etch_status status = run_graph(p, b, io);
    b->stepwise = status == ETCH_ERR_UNSUPPORTED;
    if (b->stepwise) etch__error_restore(&before);
    return status;
}

static etch_status run_launches(const native_plan *p, run_block *b, const plan_io *io) {
    etch_status status = p->checks ? etch__target()->checks_open(p->device) : ETCH_OK;
    if (status != ETCH_OK) return status;
    status = run_steps(p, b, io);
    if (p->checks) etch__target()->checks_close();
    return status;
}

static etch_status issue(const native_plan *p, run_block *b, const plan_io *io) {
    etch_status status = use_memory(p, b, io);
    if (status != ETCH_OK) return status;
    if (p->whole) return etch__target()->whole_launch(p->whole, b->args, b->cells);
    status = try_graph(p, b, io);
    return status == ETCH_ERR_UNSUPPORTED ? run_launches(p, b, io) : status;
}

static etch_status run_device(const native_plan *p, run_block *b, const plan_io *io) {
    etch_status status = issue(p, b, io);
    return status == ETCH_OK ? etch__target()->issued(p->device) : status;
}

etch_status etch__native_run(plan *base, const plan_io *io) {
    native_plan *p = (native_plan *)base;
    run_block *b = take_block(p);
    if (!b) return ETCH_ERR_OUT_OF_MEMORY;
    if (!allocate_outputs(p, b, io)) {
        give_block(p, b);
        return ETCH_ERR_OUT_OF_MEMORY;
    }
    patch(p, b, io);
    uint64_t state = etch__tls.state;
    etch_status status = p->device ? run_device(p, b, io) : run_steps(p, b, io);
    etch__tls.state = state;
    if (unlikely(status != ETCH_OK)) release_outputs(p, b, p->noutputs);
    else if (p->noutputs) memcpy(io->outputs, b->outputs, p->noutputs * sizeof *b->outputs);
    THREAD_COUNT(kernel_launches, p->p.nkernels);
    THREAD_COUNT(library_calls, p->p.nproducts);
    give_block(p, b);
    return status;
}

void etch__native_destroy(plan *base) {
    native_plan *p = (native_plan *)base;
    for (int i = 0; i < p->nsteps; i++) {
        const kernel_step *k = &p->steps[i].k;
        if (p->steps[i].is_call) continue;
        if (k->launcher) etch__target()->release(k->launcher);
        else etch__kernel_release(k->kernel);
    }
    for (int i = 0; i < FREE_BLOCKS; i++) free_block_memory(p->blocks[i].block);
    etch__free(p->steps);
    etch__free(p->args);
    etch__free(p->cells);
    etch__free(p->operands);
    etch__free(p->dims);
    etch__free(p->attrs);
    etch__free(p->output_bytes);
    etch__free(p->after);
    if (p->whole) etch__target()->whole_free(p->whole);
    etch__free(p);
}
