/* Finding out what happened: counters, logs, the boxed call by name. */
#ifndef ETCH_DEBUG_H
#define ETCH_DEBUG_H

#include <etch/compile.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts since start (or etch_counters_reset), of the process or of one function. */
typedef struct etch_counters_t {
    int64_t calls;          /* calls of compiled functions */
    int64_t graphs;         /* graphs handed to a backend */
    int64_t graph_nodes;    /* operators in them */
    int64_t plan_runs;      /* runs of a compiled plan */
    int64_t eager_runs;     /* segments run through the eager dispatcher after a match */
    int64_t graph_breaks;   /* segments ended by a read or another break */
    int64_t recompiles;     /* graphs after a function's first under one root */
    int64_t instances;      /* plans made for further sizes of a dynamic graph, without compiling */
    int64_t divergences;    /* calls that left the recorded trace */
    int64_t late_uses;      /* segments evaluated again for a tensor used after a break */
    int64_t mode_fallbacks; /* calls that ran uncompiled because a mode was active */
    int64_t saved_bytes;    /* that one run of each graph so far leaves for backward (explain.h) */
    int64_t kernels;        /* generated kernels asked for, compiled or found in the cache */
    int64_t kernels_compiled; /* of these, compiled by the helper */
    int64_t cache_hits;       /* of these, loaded from the disk cache */
    int64_t compile_failures; /* plans that fell back to eager because a compile failed */
    int64_t candidates_timed; /* layouts and algorithms tried (ETCH_MODE_MAX_AUTOTUNE) */
    int64_t weights_packed;   /* weights brought into the order in which a kernel multiplies them */
    int64_t kernels_chained;  /* kernels of a plan that go over a product's tiles as one chain */
    int64_t kernel_launches;  /* generated kernels run */
    int64_t library_calls;    /* products run inside plans */
    int64_t operators;        /* operators run by the eager dispatcher */
} etch_counters_t;

ETCH_API etch_counters_t etch_counters(void);
ETCH_API void etch_counters_reset(void);
/* The same for one function. What backends and kernels count, `kernels` and what follows it, is
 * known for the process only and 0 here. */
ETCH_API etch_counters_t etch_function_counters(const etch_function *f);

/* Removes all compiled kernels from the disk cache (those in memory stay usable). */
ETCH_API void etch_cache_clear(void);

/* Where warnings and enabled logs go: sink(ctx, line) gets one line without the newline, on the
 * thread that logs, under a lock of the log's own. It may compute, and ask etch_explain and
 * counters; what it does is no part of a function that is being recorded, and what is logged
 * meanwhile on its thread is dropped. NULL: back to ETCH_LOGS_OUT, else standard error. */
ETCH_API void etch_set_log_sink(void (*sink)(void *ctx, const char *line), void *ctx);
/* As ETCH_LOGS: a comma-separated list of channels, "all", "help", or "" for none. */
ETCH_API etch_status etch_set_logs(const char *channels);

/* "step at prog.c:12" for a code address, such as backtrace() gives, as far as debug information is
 * there; into buf as snprintf does. */
ETCH_API int64_t etch_address_text(const void *address, char *buf, size_t n);

/* ---- boxed calls ---- */

typedef enum etch_value_tag {
    ETCH_VALUE_NONE, /* an absent optional argument */
    ETCH_VALUE_TENSOR,
    ETCH_VALUE_TENSORS, /* a list; not owned */
    ETCH_VALUE_SCALAR,
    ETCH_VALUE_INT,
    ETCH_VALUE_BOOL,
    ETCH_VALUE_REAL,
    ETCH_VALUE_INTS,
    ETCH_VALUE_DTYPE,
    ETCH_VALUE_PARAM /* in graphs only: a run-time scalar */
} etch_value_tag;

/* One argument of a boxed call; name NULL: by position, else by the schema's name. */
typedef struct etch_value {
    const char *name;
    etch_value_tag tag;
    union {
        etch_tensor *tensor;
        struct {
            etch_tensor *const *items;
            int count;
        } tensors;
        etch_scalar scalar;
        int64_t i;
        bool b;
        double d;
        etch_dims ints;
        etch_dtype dtype;
        struct {
            int number; /* of the graph */
            etch_scalar_kind kind;
        } param;
    };
} etch_value;

typedef struct etch_op etch_op;

/* The operator "add.Tensor"; "add" finds the packet's first overload; an "aten::" prefix is
 * accepted. NULL and not_found otherwise. */
ETCH_API const etch_op *etch_op_find(const char *name);
ETCH_API const char *etch_op_name(const etch_op *op); /* "add.Tensor" */
ETCH_API const char *
etch_op_schema(const etch_op *op); /* "add.Tensor(Tensor self, ...) -> Tensor" */
/* All operators in table order; *count gets their number. */
ETCH_API const etch_op *const *etch_op_list(int *count);
/* Calls op with nargs tagged values, defaults filled in; the same dispatch as the typed function.
 * Results go to out[0..nout); nout must be the operator's number of results. */
ETCH_API etch_status etch_op_call(const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor **out, int nout);

#ifdef __cplusplus
}
#endif
#endif
