/* Backends: from a graph to a plan that runs. They register themselves at load. */
#ifndef ETCH_CORE_GRAPH_BACKEND_H
#define ETCH_CORE_GRAPH_BACKEND_H

#include "core/graph/graph.h"

typedef struct plan plan;

/* One run of a plan. A plan may run on several threads at once. */
typedef struct plan_io {
    etch_tensor *const *inputs; /* materialised, with the metas of the graph's inputs */
    const etch_scalar *scalars; /* graph.nscalars, with the graph's kinds */
    etch_storage **outputs;     /* graph.noutputs slots; the plan puts a new storage into each */
    bool *wrote;                /* may be NULL; set where a run fails with inputs written */
    bool given;                 /* native plans: the slots hold the storages to be filled instead */
} plan_io;

struct plan {
    atomic_int refs;
    /* On failure no output slot is filled and the error is set; no input has been written unless
     * io->wrote says so. */
    etch_status (*run)(plan *p, const plan_io *io);
    void (*destroy)(plan *p);
    int nkernels, nmatmuls; /* generated kernels and library products of one run, for reports */
    int ncalls;             /* native: calls of eager kernels in one run */
    bool provisional;       /* native: without kernels that take long to compile; the same graph
                               compiled again, not `quick`, is a better plan with the same bits */
};

static inline void etch__plan_retain(plan *p) { atomic_fetch_add(&p->refs, 1); }
static inline void etch__plan_release(plan *p) {
    if (p && atomic_fetch_sub(&p->refs, 1) == 1) p->destroy(p);
}

typedef struct backend_options {
    etch_mode_kind mode;
    etch_numerics numerics;
    bool instance; /* a graph compiled before, now for other sizes */
    bool quick;    /* native: the caller waits; a provisional plan will do */
    /* native: where a kernel does not build, an error in place of the eager plan; and unsupported,
     * with no error set, where no kernel can be written. */
    bool strict;
} backend_options;

typedef struct backend {
    const char *name, *alias; /* alias may be NULL */
    /* Compiles g (which it does not keep) into *out with one count. A backend that cannot compile
     * falls back to the eager plan itself and counts the reason; an error is for lack of memory and
     * the like. */
    etch_status (*compile)(const graph *g, const backend_options *options, plan **out);
    /* In place of compile, for backends that need to know themselves. */
    etch_status (*compile_as)(const struct backend *self, const graph *g,
                              const backend_options *options, plan **out);
} backend;

static inline etch_status etch__backend_compile(const backend *b, const graph *g,
                                                const backend_options *options, plan **out) {
    return b->compile_as ? b->compile_as(b, g, options, out) : b->compile(g, options, out);
}

bool etch__backend_register(const backend *b); /* b lives for ever */
/* Takes the backend off the list; functions may still hold it. false: not there. */
bool etch__backend_remove(const backend *b);
/* NULL with not_found where there is none. */
const backend *etch__backend_find(const char *name);

/* The plan that runs the graph's nodes through the eager kernels, one by one (backends/eager.c). */
etch_status etch__eager_plan(const graph *g, plan **out);

#endif
