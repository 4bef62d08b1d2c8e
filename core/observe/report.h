/* What ETCH_TRACE records of compiled code: graphs, the steps of their plans, kernels, times.
 *
 * The tracer adds functions, traces and breaks (tracer/tell/report.h) and writes it all. Where
 * nothing records, each hook costs one load and one predicted branch, and a plan's step one branch
 * on a field of the plan. Records live as long as the process (or until a test ends the recording),
 * so that what was freed meanwhile is in the report, too. Recording neither fails nor sets an
 * error: what there is no memory for is counted as dropped. */
#ifndef ETCH_CORE_OBSERVE_REPORT_H
#define ETCH_CORE_OBSERVE_REPORT_H

#include <pthread.h>

#include "core/base/device_clock.h"
#include "core/graph/backend.h"

extern atomic_bool etch__reporting __attribute__((visibility("hidden")));
static inline bool etch__report_on(void) {
    return unlikely(atomic_load_explicit(&etch__reporting, memory_order_relaxed));
}

enum { REPORT_MAX_GRAPHS = 4096, REPORT_MAX_KERNELS = 4096, REPORT_MAX_TEXT = 1 << 18 };

/* How often something ran, and for how long, in nanoseconds. */
typedef struct report_time {
    _Atomic int64_t count, total, min, max, first;
} report_time;

/* From start (etch__now) until now. */
void etch__report_add_time(report_time *t, int64_t start);
void etch__report_add_ns(report_time *t, int64_t ns);

typedef enum report_step_kind { STEP_KERNEL, STEP_PRODUCT, STEP_CALL } report_step_kind;

typedef struct report_step {
    uint8_t kind;
    char name[64];      /* of the kernel or the operator */
    char *text;         /* what it does */
    int32_t kernel;     /* number of the generated kernel, -1: none */
    int64_t bytes;      /* that it reads and writes */
    report_time time;   /* of the call: on a GPU it only issues the step */
    report_time device; /* as the GPU's clock has it */
} report_step;

typedef struct report_kernel {
    char symbol[64];
    uint64_t hash;
    size_t bytes;
    char *loop, *dump; /* loop IR; what the compiler made of it, NULL where it came from a cache */
    bool compiled;     /* by this process, else from the disk cache */
    double ms;         /* that took */
} report_kernel;

typedef enum report_outcome {
    OUTCOME_COMPILED,
    OUTCOME_FALLBACK, /* the plan runs the eager kernels, since it could not be compiled */
    OUTCOME_FAILED    /* no plan could be made */
} report_outcome;

/* How the runs of a plan are given to its device. */
typedef enum report_issue {
    ISSUE_STEPS,
    ISSUE_GRAPH, /* a run is one graph of the device */
    ISSUE_KERNEL /* one kernel does all steps */
} report_issue;

typedef struct report_graph {
    struct report_graph *next;  /* of the same leaf, newest first */
    struct report_graph *older; /* of all */
    int32_t number;
    char *name, *text, *guards, *why; /* why: of an outcome that is not COMPILED */
    char *notes;                      /* where fusion stopped, a line each */
    char schedule[160];               /* steps, buffers, arena */
    report_outcome outcome;
    int operators;
    bool instance;    /* for other sizes of a graph that is there, with other steps */
    int instances;    /* plans for other sizes with the same steps, counted in these times */
    bool provisional; /* ran while kernels that take long were compiled beside the program */
    int64_t start, compile_ns, saved_bytes;
    int64_t operator_bytes; /* that its operators would read and write one by one */
    report_step *steps;
    int64_t nsteps, steps_cap;
    report_time run;
    int device;
    report_issue issue;
    _Atomic int64_t issued; /* runs of ISSUE_GRAPH, those that were issued step by step too */
    /* Of a GPU, by its clock: runs from the begin of their first step to the end of the last; and
     * how long it waited between steps, a run. */
    report_time device_run, device_idle;
    /* While it is compiled. A backend may call functions that are compiled meanwhile. */
    struct report_graph *outer;
    struct report_graph *like; /* of an instance: the leaf's graphs so far */
    struct report_graph *runs; /* whose steps the plan's runs belong to, once that is known */
} report_graph;

/* ---- for backends: about the graph that the thread is compiling ---- */

/* Steps that were noted before belong to an attempt that was given up. */
void etch__report_restart_steps(void);
void etch__report_step(report_step_kind kind, const char *name, const char *text, int64_t bytes);
void etch__report_schedule(const char *text, int64_t operator_bytes);
void etch__report_saved(int64_t bytes); /* that it leaves for backward */
void etch__report_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void etch__report_fallback(reason_id reason, const char *why);
/* The kernel of hash and length, met for the first time or again; and how it was made. */
void etch__report_kernel(uint64_t hash, size_t bytes, const char *symbol, const char *loop);
void etch__report_kernel_made(uint64_t hash, size_t bytes, bool compiled, double ms,
                              const char *dump);
/* It is the number-th step of those that are kernels. */
void etch__report_kernel_step(int number, uint64_t hash, size_t bytes);
/* All nsteps are noted: where a plan of them adds the times of its runs, or NULL. */
report_graph *etch__report_plan(int nsteps);

static inline void etch__report_step_ran(report_graph *g, int step, int64_t start) {
    etch__report_add_time(&g->steps[step].time, start);
}

/* clock_order.told, `to` a report_graph: of a run with a span a step; of one that was issued so to
 * have the times of its steps; and of one that is a single span. */
void etch__report_device_steps(void *to, const clock_times *t);
void etch__report_device_sample(void *to, const clock_times *t);
void etch__report_device_whole(void *to, const clock_times *t);

/* ---- for the tracer ---- */

/* The thread compiles g until the end; false: there is no memory for that, and will be no end. like
 * (may be NULL): the leaf's graphs so far. The end gives the record to be kept in the leaf's list,
 * or NULL where it is there already; *runs: whose times the runs of the code belong to. */
bool etch__report_begin_graph(const graph *g, bool instance, report_graph *like);
report_graph *etch__report_end_graph(etch_status status, report_graph **runs);
/* In place of the end: nothing is kept. */
void etch__report_drop_graph(void);

/* All records; under the lock. */
extern report_graph **etch__report_graphs;
extern report_kernel *etch__report_kernels;
extern int64_t etch__report_ngraphs, etch__report_nkernels, etch__report_dropped;
void etch__report_forget(void);

/* Text of records: as etch__strdup, cut at REPORT_MAX_TEXT, and without an error. */
char *etch__report_strdup(const char *text);
/* As calloc and etch__grow, without an error; what fails counts as dropped. */
void *etch__report_zeroed(size_t bytes);
bool etch__report_grow(void *items, int64_t *cap, int64_t need, size_t size);

#endif
