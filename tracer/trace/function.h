/* Compiled functions: the handle, its generations of traces, its counts. */
#ifndef ETCH_TRACER_TRACE_FUNCTION_H
#define ETCH_TRACER_TRACE_FUNCTION_H

#include "core/dispatch/dispatch.h"
#include "tracer/trace/story.h"
#include "tracer/trace/tree.h"

/* FN_0 to FN_8: so many tensors, one result. */
typedef enum function_kind {
    FN_0,
    FN_1,
    FN_2,
    FN_3,
    FN_4,
    FN_5,
    FN_6,
    FN_7,
    FN_8,
    FN_N
} function_kind;

/* What a call runs. */
typedef struct function_body {
    function_kind kind;
    void (*fn)(void);
    void *ctx;
} function_body;

enum { SHARDS = 8 };

/* What every call of a function writes, apart for threads, so that they do not wait for
 * each other's cache lines. */
typedef struct function_shard {
    _Alignas(64) atomic_int pins; /* runs that have not ended */
    counters counts;
} function_shard;

/* What a call of the handle is inside a compiled function (tracer/run/wrappers.c). */
typedef enum wrapper_kind {
    WRAP_NONE,
    WRAP_DISABLE,
    WRAP_ALLOW,
    WRAP_CONSTANT,
    WRAP_MAPPED
} wrapper_kind;

struct etch_function {
    function_shard shard[SHARDS]; /* by the thread's number */
    atomic_bool freed;            /* the handle is gone; the last run's end makes it collectable */
    function_body body;
    etch_compile_options options;
    wrapper_kind wrap;
    bool backward;              /* its calls are backward passes over what another one made */
    bool recursive;             /* of a disabled one: so are the functions it calls */
    struct allowed_fn *allowed; /* of one that is allowed in graphs */
    struct mapped_dims *mapped; /* of one that is mapped over a batch; counted as the function is */
    uint64_t serial;            /* of one whose value is assumed constant */
    char *name;
    const backend *backend;
    pthread_mutex_t lock;         /* publishing, leaves' want, generation changes */
    pthread_mutex_t compile_lock; /* one compile at a time */
    _Atomic(generation *) gen;
    _Atomic(generation *) retired; /* freed when no run is left that may be using them */
    _Atomic(grad_origin *) origin; /* what tapes of its calls point to; counted, or NULL */
    story story;                   /* for etch_explain; has a lock of its own */
    _Atomic(struct report_function *) report;
    struct etch_function *next; /* list of all functions */
};

/* Counts for the function and the process. */
#define TRACE_COUNT(f, name, n)                                                                    \
    (atomic_fetch_add_explicit(&(f)->shard[etch__tls.number % SHARDS].counts.name, (n),            \
                               memory_order_relaxed))

etch_function *etch__function_new(function_kind kind, void (*fn)(void),
                                  const etch_compile_options *options);
/* Whoever uses the function holds it, since it may be freed meanwhile. Returns where that is
 * counted. */
unsigned etch__function_pin(etch_function *f);
void etch__function_unpin_at(etch_function *f, unsigned shard);
/* A run gives up its hold on the function, the last one frees it. */
void etch__function_unpin(etch_function *f);

/* "file.c:12" of a call, "?" where that is not known. */
static inline const char *etch__line_or_unknown(const void *site) {
    const char *line = etch__site_line(site);
    return line[0] ? line : "?";
}

/* Told of functions. Filled at load by those who remember something of them. */
typedef struct function_watch {
    void (*leaving)(etch_function *f);   /* its handle is about to be freed */
    void (*gone)(etch_function *f);      /* it is freed, with its last run */
    void (*forgotten)(etch_function *f); /* so are its traces: etch_reset */
} function_watch;
extern function_watch etch__function_watch;

#endif
