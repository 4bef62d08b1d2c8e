/* What passes and plans ask of the kind of device that they are for, job by job. There are two:
 * backends/cpu/cpu_target.c and backends/cuda/cuda_target.c, which register themselves at load.
 * Passes, fusion, lowering and memory are the same for both. A job without functions is not
 * done. */
#ifndef ETCH_JIT_IR_TARGET_H
#define ETCH_JIT_IR_TARGET_H

#include "jit/ir/ir.h"

typedef struct native_plan native_plan;
typedef struct kernel_step kernel_step;
typedef struct run_block run_block;

/* ---- kernels ---- */

/* What n steps are to run. */
typedef struct kernel_order {
    int device, n;
    const lowered *const *low;
    /* Bit a of aligned[i]: argument a of kernel i lies at a multiple of 16 bytes; one that lies in
     * an input only as far as its offset tells. */
    const uint32_t *aligned;
    etch_mode_kind mode;
    bool dynamic; /* the kernels of other sizes are made along */
} kernel_order;

typedef struct target_kernels {
    /* Makes what steps[i] runs of kernel i. The arguments are those of the accesses, then A and B
     * of each of its products (with `wide` products the etch_storage of B, too, or NULL where that
     * is no input as it came), then the scratch. Under ETCH_MODE_MAX_AUTOTUNE the first run may
     * time layouts. On failure the steps have nothing, and *why says what failed; it is empty where
     * the thread's error does. */
    bool (*prepare)(const kernel_order *o, kernel_step *const *steps, const char **why);
    void (*release)(const kernel_step *k);
    etch_status (*run)(const kernel_step *k, void *const *args, const uint64_t *cells);
} target_kernels;

/* ---- products of matrices that do more than multiply ---- */

/* C = A B: C is m x n, and each element has k terms. Of an mm, the operands' dtype and strides in
 * elements. */
typedef struct matmul_sizes {
    int64_t m, n, k;
    etch_dtype dtype;
    int64_t a_row, a_col, b_row, b_col;
} matmul_sizes;

typedef struct target_matmuls {
    /* mm or addmm with an epilogue (MATMUL_*), a step of a relaxed plan. */
    etch_status (*run)(const op_call *call, uint8_t epilogue, etch_tensor *out);
    /* Products are computed tile by tile in the compute type, of any float dtype and any sizes:
     * what reads one follows each tile, or each row where it reduces rows. A kernel takes one. Else
     * a kernel takes up to JOIN_MAX, of f32, or of halves and of one left operand, and is
     * pointwise. */
    bool wide;
    /* Whether a product is to share the kernel that reads it, which reads no other one where it is
     * `alone`: the bits are the same as apart, and it is no slower. */
    bool (*joins)(int device, const matmul_sizes *s, bool alone);
    /* Whether a kernel with products needs no compile that takes long. */
    bool (*ready)(int device, const lowered *low, uint32_t aligned);
} target_matmuls;

/* ---- one kernel for the whole of a small plan ---- */

/* One step of it. */
typedef struct whole_step {
    const lowered *low;  /* NULL: a product */
    etch_dtype dtype;    /* of a product: of its operands */
    int64_t numbers[10]; /* of a product: batch, M, N, K, strides (batch, row, column) of A and B */
    int32_t arg, cell; /* its first argument (A, B, C of a product) and scalar cell in the plan's */
    int nargs;
    int64_t arena[LOOP_MAX_ACCESSES + 1]; /* per argument: the offset in the arena, or -1 */
} whole_step;
typedef struct whole_launcher whole_launcher;

typedef struct target_whole {
    /* NULL: the steps are to be launched one by one. */
    whole_launcher *(*make)(int device, const whole_step *steps, int n, int64_t arena_bytes);
    void (*free)(whole_launcher *l);
    etch_status (*launch)(whole_launcher *l, void *const *args, const uint64_t *cells);
} target_whole;

/* ---- a run as one graph of the device ---- */

typedef struct device_graph device_graph;
typedef struct step_list {
    const int32_t *steps;
    int n;
} step_list;

/* For mode reduce-overhead. The steps of each run are given in the same order, `after` being the
 * earlier ones that a step waits for; only what has changed since the last run is patched. A call
 * is made anew, by issuing it between begin and end, where the caller says that it has changed.
 * `checks`: some of the calls may fail on their data. ETCH_ERR_UNSUPPORTED: the run is to be issued
 * step by step. */
typedef struct target_graphs {
    /* Whether a graph may hold a call of the operator: it issues work and does not wait. */
    bool (*can_record)(uint16_t op);
    device_graph *(*make)(int device, int nsteps, bool checks);
    void (*free)(device_graph *g);
    /* Around the steps of one run, its launch included. */
    void (*begin)(device_graph *g);
    void (*end)(device_graph *g);
    /* false: not now, since what this thread issues is recorded already. */
    bool (*fits)(int device);
    etch_status (*kernel)(device_graph *g, int step, step_list after, const kernel_step *k,
                          void *const *args, const uint64_t *cells);
    etch_status (*call_begin)(device_graph *g, int step);
    etch_status (*call_end)(device_graph *g, int step, step_list after);
    etch_status (*launch)(device_graph *g);
} target_graphs;

/* ---- work that the device does by itself, in the order in which it is issued ---- */

typedef struct target_queue {
    /* A run that uses the storage is about to issue work on this thread. */
    etch_status (*use)(int device, etch_storage *s);
    /* The run's work was issued. */
    etch_status (*issued)(int device);
    /* Around the steps of a run some of which check their data (OPF_MAY_FAIL): after a failure
     * nothing of the run writes inputs, and the error appears when the device is next waited
     * for. */
    etch_status (*checks_open)(int device);
    void (*checks_close)(void);
} target_queue;

struct jit_target {
    const char *absent; /* why this build makes no kernels for it, or NULL */
    /* The steps of a run: etch__run_steps, or etch__issue_steps for a device with a queue. */
    etch_status (*run)(const native_plan *p, run_block *b, const plan_io *io);
    bool arena_apart;   /* a plan's arena is a storage of the device, no part of the run block */
    bool late_checks;   /* calls say after the run that their data was wrong */
    bool times_matmuls; /* under ETCH_MODE_MAX_AUTOTUNE, of a relaxed plan */
    /* Whether the operator's result of that dtype may lie with its channels innermost, and should
     * where it is read so; NULL: none. */
    bool (*channels_last)(uint16_t op, etch_dtype dtype);
    /* Whether a convolution of x by w, with these attributes, to y reads and makes planes instead,
     * and takes its time by rows of positions. */
    bool (*in_planes)(const int64_t *attrs, const tensor_meta *x, const tensor_meta *w,
                      const tensor_meta *y);
    /* Whether the normalisation of so many rows, of so many elements each, is generated, the eager
     * one with the same bits; dynamic: the numbers are those of one call. NULL: none is. */
    bool (*makes_norm)(uint16_t op, bool dynamic, int64_t rows, int64_t reduced);
    bool compiles_ahead; /* what other sizes of a dynamic graph may need is compiled along */
    target_kernels kernels;
    target_matmuls matmuls;
    target_whole whole;
    target_graphs graphs;
    target_queue queue;
};

void etch__target_register(bool cpu, const jit_target *t);
/* That of a device number; NULL where there is none. */
const jit_target *etch__target(int device);

#endif
