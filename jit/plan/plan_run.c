/* A run of a native plan: its block, and its steps one after the other. See native_plan.h. */
#include "core/base/profile.h"
#include "core/dispatch/dispatch.h"
#include "core/dispatch/lend.h"
#include "core/tensor/device.h"
#include "jit/plan/native_plan.h"

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
    char *raw = etch__aligned(bytes + (p->target->arena_apart ? 0 : p->arena_bytes));
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
    b->clock = NULL;
    if (p->target->arena_apart && p->arena_bytes) {
        b->device_arena = etch__storage_new_on(p->device, (size_t)p->arena_bytes);
        if (!b->device_arena) return etch__free(raw), NULL;
        b->arena = b->device_arena->data;
    }
    memset(b->storages, 0, operands * sizeof(etch_storage));
    for (size_t i = 0; i < operands; i++) /* in the arena: nobody counts what is written there */
        atomic_init(&b->storages[i].refs, 1), b->storages[i].lent = 1;
    fix_addresses(p, b);
    return b;
}

void etch__drop_graph(const native_plan *p, run_block *b) {
    if (b->graph) p->target->graphs.free(b->graph);
    etch__free(b->call_words);
    b->graph = NULL, b->call_words = NULL;
}

static void free_block_memory(const native_plan *p, run_block *b) {
    if (!b) return;
    etch__drop_graph(p, b);
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
    free_block_memory(p, b);
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
        const plan_place *at = &p->args[i];
        if (at->kind == PLACE_INPUT)
            b->args[i] = (char *)etch__ptr(io->inputs[at->index]) + at->offset;
        else if (at->kind == PLACE_OUTPUT)
            b->args[i] = (char *)b->outputs[at->index]->data + at->offset;
        else if (at->kind == PLACE_STORAGE) b->args[i] = io->inputs[at->index]->storage;
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

static etch_status run_kernel(const native_plan *p, const kernel_step *k, run_block *b) {
    int64_t start = etch__profile_start();
    etch_status status = p->target->kernels.run(k, b->args + k->arg, b->cells + k->cell);
    etch__profile_end_event(ETCH_PROFILE_KERNEL, start, k->name, NULL);
    return status;
}

static etch_status run_matmul(const native_plan *p, const call_step *c, const op_call *call,
                              etch_tensor *out) {
    int64_t start = etch__profile_start();
    etch_status status = p->target->matmuls.run(call, c->epilogue, out);
    etch__profile_end_event(ETCH_PROFILE_PRODUCT, start,
                            call->op == OP_MM ? "aten::mm" : "aten::addmm", "with epilogue");
    return status;
}

etch_status etch__run_call(const native_plan *p, const call_step *c, run_block *b,
                           const plan_io *io) {
    op_call call = c->call;
    call.in = b->pointers + c->operand;
    call.sc = io->scalars + c->scalar;
    etch__tls.state = c->state;
    op_kernel kernel = etch__kernel_on(call.op, p->device);
    if (unlikely(!kernel)) return etch__run_kernel(&call, b->pointers[c->result]);
    if (c->epilogue) return run_matmul(p, c, &call, b->pointers[c->result]);
    return etch__call_kernel(kernel, &call, &b->pointers[c->result], true);
}

static etch_status run_step(const native_plan *p, int i, run_block *b, const plan_io *io) {
    const plan_step *s = &p->steps[i];
    return s->is_call ? etch__run_call(p, &s->c, b, io) : run_kernel(p, &s->k, b);
}

/* As the profile names it where it is issued. */
static void begin_on_device(clock_run *r, const plan_step *s) {
    char name[64];
    const char *op = s->is_call ? etch__ops[s->c.call.op].name : s->k.name;
    bool plain = s->is_call && !strchr(op, ':');
    snprintf(name, sizeof name, "%s%s", plain ? "aten::" : "", op);
    etch__device_clock->span_begin(r, name);
}

/* The host's time is of the step alone: marks for the device's clock come before and behind it. */
static etch_status time_step(const native_plan *p, int i, run_block *b, const plan_io *io) {
    clock_run *r = b->clock;
    if (r) begin_on_device(r, &p->steps[i]);
    int64_t start = etch__now();
    etch_status status = run_step(p, i, b, io);
    if (p->report) etch__report_step_ran(p->report, i, start);
    if (r) etch__device_clock->span_end(r);
    return status;
}

etch_status etch__run_steps(const native_plan *p, run_block *b, const plan_io *io) {
    bool timed = p->report || b->clock;
    for (int i = 0; i < p->nsteps; i++) {
        etch_status status = unlikely(timed) ? time_step(p, i, b, io) : run_step(p, i, b, io);
        if (likely(status == ETCH_OK)) continue;
        if (i >= p->late && io->wrote) *io->wrote = true;
        return status;
    }
    return ETCH_OK;
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
    etch_status status = p->target->run(p, b, io);
    etch__tls.state = state;
    if (unlikely(status != ETCH_OK)) release_outputs(p, b, p->noutputs);
    else if (p->noutputs) memcpy(io->outputs, b->outputs, p->noutputs * sizeof *b->outputs);
    THREAD_COUNT(kernel_launches, p->p.nkernels);
    THREAD_COUNT(library_calls, p->p.nmatmuls);
    give_block(p, b);
    return status;
}

void etch__native_destroy(plan *base) {
    native_plan *p = (native_plan *)base;
    for (int i = 0; i < p->nsteps; i++)
        if (!p->steps[i].is_call) p->target->kernels.release(&p->steps[i].k);
    for (int i = 0; i < FREE_BLOCKS; i++) free_block_memory(p, p->blocks[i].block);
    etch__free(p->steps);
    etch__free(p->args);
    etch__free(p->cells);
    etch__free(p->operands);
    etch__free(p->dims);
    etch__free(p->attrs);
    etch__free(p->output_bytes);
    etch__free(p->after);
    etch__free(p->after_at);
    if (p->whole) p->target->whole.free(p->whole);
    etch__free(p);
}
