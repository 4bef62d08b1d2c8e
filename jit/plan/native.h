/* The plan of the native backend as data: its steps, its memory, and what one run changes. plan.c
 * makes it, run.c runs it.
 *
 * What one run changes lies in a run block: the arena, the argument vectors of the kernels, their
 * scalar cells, and the handles that eager kernels get as operands. A run borrows a block from the
 * plan's free list; addresses inside the block are written when it is made, so that a run patches
 * only what lies in inputs and outputs. A steady run allocates its outputs and nothing else. */
#ifndef ETCH_JIT_PLAN_NATIVE_H
#define ETCH_JIT_PLAN_NATIVE_H

#include "core/observe/report.h"
#include "jit/plan/target.h"

typedef enum place_kind { PLACE_ARENA, PLACE_INPUT, PLACE_OUTPUT, PLACE_NONE } place_kind;

/* An address of a run: byte `offset` into the arena, an output, or from an input's first element;
 * NONE: what has no memory. */
typedef struct place {
    uint8_t kind;
    int32_t index;
    int64_t offset;
} place;

typedef struct kernel_step {
    loaded_kernel *kernel;
    loop_fn fn;
    launcher *launcher; /* in place of the two on another device */
    const int64_t *dims;
    int32_t arg, nargs; /* in the block's arguments and the plan's places */
    int32_t cell, ncells;
    uint32_t stores; /* bit per argument, the last apart, that is written */
    bool scratch;    /* the last argument is used */
    int64_t units, grain;
    uint32_t stack; /* bytes that its code takes at most, on the CPU */
    char name[48];
} kernel_step;

typedef struct call_step {
    op_call call;
    uint64_t state;
    uint8_t epilogue; /* PRODUCT_* */
    int32_t scalar;   /* its first run-time scalar */
    int32_t operand;  /* first of nin operands */
    int32_t result;   /* INPLACE: the first operand */
} call_step;

typedef struct step {
    bool is_call;
    union {
        kernel_step k;
        call_step c;
    };
} step;

/* Operand handles of calls: the prototype, and where its storage lies. */
typedef struct operand_slot {
    etch_tensor t;
    place at; /* ARENA: the storage's place; INPUT: offset is in elements */
    bool none;
} operand_slot;

enum { FREE_BLOCKS = 16 };

typedef struct run_block {
    void **args;
    uint64_t *cells;
    etch_tensor *operands;
    etch_tensor **pointers; /* to operands, or ETCH_NONE */
    etch_storage *storages; /* one per operand, for those in the arena */
    etch_storage **outputs;
    etch_storage *device_arena; /* NULL on the CPU, where the arena follows the block */
    device_graph *graph;        /* of mode reduce-overhead, once there is one */
    uint64_t *call_words;       /* what the calls in it were made with: see changed_call */
    bool stepwise;              /* there can be no such graph */
    char *arena;
} run_block;

/* A run block that no run uses, in a cache line of its own. */
typedef struct free_block {
    _Alignas(64) _Atomic(run_block *) block;
} free_block;

typedef struct native_plan {
    plan p;
    int device;
    bool checks;           /* on a device: calls that may fail on their data */
    bool as_graph;         /* runs are launched as one graph of the device */
    whole_launcher *whole; /* a small plan: one kernel does all steps */
    uint64_t *after;       /* as_graph: per step the earlier steps that it waits for */
    int nscalars;
    int nsteps, nargs, ncells, noperands, ninputs, noutputs;
    int late; /* the first step whose failure may find one written */
    step *steps;
    place *args;      /* nargs */
    plan_cell *cells; /* ncells */
    operand_slot *operands;
    int64_t *dims;  /* of all kernels */
    int64_t *attrs; /* of all calls */
    int64_t *output_bytes;
    int64_t arena_bytes;
    report_graph *report; /* where steps note their times, or NULL */
    free_block blocks[FREE_BLOCKS];
} native_plan;

/* Operand slots of a call: its inputs and, but for an in-place one, its result. */
static inline int etch__call_operands(const call_step *c) {
    return c->call.nin + (c->result == c->operand + c->call.nin);
}

/* run.c: what a native plan's p.run and p.destroy are. */
etch_status etch__native_run(plan *base, const plan_io *io);
void etch__native_destroy(plan *base);

#endif
