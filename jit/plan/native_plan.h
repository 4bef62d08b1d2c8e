/* The plan of the native backend as data: its steps, its memory, and what one run changes. plan.c
 * makes it, run.c runs it.
 *
 * What one run changes lies in a run block: the arena, the argument vectors of the kernels, their
 * scalar cells, and the handles that eager kernels get as operands. A run borrows a block from the
 * plan's free list; addresses inside the block are written when it is made, so that a run patches
 * only what lies in inputs and outputs. A steady run allocates its outputs and nothing else. */
#ifndef ETCH_JIT_PLAN_NATIVE_H
#define ETCH_JIT_PLAN_NATIVE_H

#include "core/base/device_clock.h"
#include "core/observe/report.h"
#include "jit/ir/target.h"

typedef enum place_kind {
    PLACE_ARENA,
    PLACE_INPUT,
    PLACE_OUTPUT,
    PLACE_STORAGE,
    PLACE_NONE
} place_kind;

/* An address of a run: byte `offset` into the arena, an output, or from an input's first element;
 * STORAGE: no memory, but an input's etch_storage; NONE: what has no memory. */
typedef struct plan_place {
    uint8_t kind;
    int32_t index;
    int64_t offset;
} plan_place;

/* A kernel of a device with its extents, ready to be launched any number of times. */
typedef struct launcher launcher;

struct kernel_step {
    const int64_t *dims;
    int32_t arg, nargs; /* in the block's arguments and the plan's places */
    int32_t cell, ncells;
    uint32_t stores; /* bit per argument, the last apart, that is written */
    bool scratch;    /* the last argument is used */
    /* What the target's prepare has made: of the CPU ... */
    loaded_kernel *kernel;
    loop_fn fn;
    int64_t units, grain;
    uint32_t stack;                /* bytes that its code takes at most */
    struct joined_product *joined; /* the product that it follows tile by tile, or NULL */
    launcher *launcher;            /* ... and of another device */
    char name[48];
};

typedef struct call_step {
    op_call call;
    uint64_t state;
    uint8_t epilogue; /* MATMUL_* */
    int32_t scalar;   /* its first run-time scalar */
    int32_t operand;  /* first of nin operands */
    int32_t result;   /* INPLACE: the first operand */
} call_step;

typedef struct plan_step {
    bool is_call;
    union {
        kernel_step k;
        call_step c;
    };
} plan_step;

/* Operand handles of calls: the prototype, and where its storage lies. */
typedef struct operand_slot {
    etch_tensor t;
    plan_place at; /* ARENA: the storage's place; INPUT: offset is in elements */
    bool none;
} operand_slot;

enum { FREE_BLOCKS = 16 };

struct run_block {
    void **args;
    uint64_t *cells;
    etch_tensor *operands;
    etch_tensor **pointers; /* to operands, or ETCH_NONE */
    etch_storage *storages; /* one per operand, for those in the arena */
    etch_storage **outputs;
    etch_storage *device_arena; /* NULL where the arena follows the block */
    device_graph *graph;        /* of mode reduce-overhead, once there is one */
    uint64_t *call_words;       /* what the calls in it were made with: see changed_call */
    bool stepwise;              /* there can be no such graph */
    clock_run *clock;           /* of a run whose steps are timed on the device, else NULL */
    char *arena;
};

/* A run block that no run uses, in a cache line of its own. */
typedef struct free_block {
    _Alignas(64) _Atomic(run_block *) block;
} free_block;

struct native_plan {
    plan p;
    int device;
    const jit_target *target; /* the device's */
    bool checks;              /* calls that may fail on their data, and say so after the run */
    bool as_graph;            /* runs are launched as one graph of the device */
    whole_launcher *whole;    /* a small plan: one kernel does all steps */
    int32_t *after;           /* as_graph: per step the earlier steps that it waits for; */
    int32_t *after_at;        /* nsteps + 1: where they begin in it */
    int nscalars;
    int nsteps, nargs, ncells, noperands, ninputs, noutputs;
    int late; /* the first step whose failure may find one written */
    plan_step *steps;
    plan_place *args; /* nargs */
    plan_cell *cells; /* ncells */
    operand_slot *operands;
    int64_t *dims;  /* of all kernels */
    int64_t *attrs; /* of all calls */
    int64_t *output_bytes;
    int64_t arena_bytes;
    report_graph *report; /* where steps note their times, or NULL */
    char name[64];        /* of the graph, cut */
    free_block blocks[FREE_BLOCKS];
};

static inline step_list etch__steps_before(const native_plan *p, int step) {
    return (step_list){p->after + p->after_at[step], p->after_at[step + 1] - p->after_at[step]};
}

/* Operand slots of a call: its inputs and, but for an in-place one, its result. */
static inline int etch__call_operands(const call_step *c) {
    return c->call.nin + (c->result == c->operand + c->call.nin);
}

/* run.c: what a native plan's p.run and p.destroy are. */
etch_status etch__native_run(plan *base, const plan_io *io);
void etch__native_destroy(plan *base);

/* Two ways to run the steps: jit_target.run. run.c: one after the other, each done when it returns.
 * issue.c: issued to the queue of a device, as one kernel or graph where the plan is one. */
etch_status etch__run_steps(const native_plan *p, run_block *b, const plan_io *io);
etch_status etch__issue_steps(const native_plan *p, run_block *b, const plan_io *io);

/* run.c, for issue.c. */
etch_status etch__run_call(const native_plan *p, const call_step *c, run_block *b,
                           const plan_io *io);
void etch__drop_graph(const native_plan *p, run_block *b);

#endif
