/* Native plans for other devices than the CPU: a backend registers how it makes and launches
 * kernels; everything before (passes, fusion, lowering, memory) is the same for all. */
#ifndef ETCH_JIT_PLAN_TARGET_H
#define ETCH_JIT_PLAN_TARGET_H

#include "jit/ir/plan.h"

/* Products with no extent above this are computed by code of Etch's own, by
 * one chain an element. */
enum { PRODUCT_SMALL = 64 };

/* C = A B: C is m x n, and each element has k terms. */
typedef struct product_sizes {
    int64_t m, n, k;
} product_sizes;

/* A kernel with its extents, ready to be launched any number of times. */
typedef struct launcher launcher;
typedef struct device_graph device_graph;

/* One step of a plan, for a kernel that does all of them. */
typedef struct whole_step {
    const lowered *low;  /* NULL: a product */
    etch_dtype dtype;    /* of a product: of its operands */
    int64_t numbers[10]; /* of a product: batch, M, N, K, strides (batch, row, column) of A and B */
    int32_t arg, cell; /* its first argument (A, B, C of a product) and scalar cell in the plan's */
    int nargs;
    int64_t arena[LOOP_MAX_ACCESSES + 1]; /* per argument: the offset in the arena, or -1 */
} whole_step;
typedef struct whole_launcher whole_launcher;

typedef struct jit_target {
    /* One kernel for the whole of a small plan. NULL: the steps are to be launched one by one. */
    whole_launcher *(*whole_new)(int device, const whole_step *steps, int n, int64_t arena_bytes);
    void (*whole_free)(whole_launcher *l);
    etch_status (*whole_launch)(whole_launcher *l, void *const *args, const uint64_t *cells);
    /* Whether a product of f32 is to share the kernel that reads it, which reads no other one where
     * it is `alone`: the bits are the same as apart, and it is no slower. NULL: never. */
    bool (*joins)(int device, const product_sizes *s, bool alone);
    /* Whether the launcher of a kernel with products needs no compile that takes long. */
    bool (*ready)(int device, const lowered *low, uint32_t aligned);
    /* Makes n launchers; low[i] is kernel i. The arguments are those of the accesses, then A and B
     * of each of its products, then the scratch. Bit a of aligned[i] says that argument a lies at a
     * multiple of 16 bytes; an argument that lies in an input only as far as its offset tells.
     * Under ETCH_MODE_MAX_AUTOTUNE the first launch may time layouts. On failure all slots are NULL
     * and *why says what failed; it is empty where the thread's error does. */
    bool (*prepare)(int device, const lowered *const *low, const uint32_t *aligned, int n,
                    etch_mode_kind mode, launcher **out, const char **why);
    void (*release)(launcher *l);
    etch_status (*launch)(launcher *l, void *const *args, const uint64_t *cells);
    /* mm or addmm with an epilogue (PRODUCT_*), a step of a relaxed plan. */
    etch_status (*product)(const op_call *call, uint8_t epilogue, etch_tensor *out);
    /* Whether a graph may hold a call of the operator: it issues work and does not wait. */
    bool (*can_record)(uint16_t op);
    /* A run as one graph of the device, for mode reduce-overhead. The steps of each run are given
     * in the same order, `after` being the earlier ones that a step waits for; only what has
     * changed since the last run is patched. A call is made anew, by issuing it between begin and
     * end, where the caller says that it has changed. `checks`: some of the calls may fail on their
     * data. ETCH_ERR_UNSUPPORTED: the run is to be issued step by step. */
    device_graph *(*graph_new)(int device, int nsteps, bool checks);
    /* Around the steps of one run, its launch included. */
    void (*graph_begin)(device_graph *g);
    void (*graph_end)(device_graph *g);
    void (*graph_free)(device_graph *g);
    /* false: not now, since what this thread issues is recorded already. */
    bool (*graph_fits)(int device);
    etch_status (*graph_kernel)(device_graph *g, int step, uint64_t after, launcher *l,
                                void *const *args, const uint64_t *cells);
    etch_status (*graph_call_begin)(device_graph *g, int step);
    etch_status (*graph_call_end)(device_graph *g, int step, uint64_t after);
    etch_status (*graph_launch)(device_graph *g);
    /* Around the steps of a run some of which check their data (OPF_MAY_FAIL): after a failure
     * nothing of the run writes inputs, and the error appears when the
     * device is next waited for. */
    etch_status (*checks_open)(int device);
    void (*checks_close)(void);
    /* The run's work was issued. */
    etch_status (*issued)(int device);
    /* A run that uses the storage is about to issue work on this thread. */
    etch_status (*use)(int device, etch_storage *s);
} jit_target;

void etch__target_register(const jit_target *t);
const jit_target *etch__target(void); /* NULL where only the CPU is known */

#endif
