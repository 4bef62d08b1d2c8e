/* What the tracer is told, and by what: core knows that it may be there, and nothing of it. Each
 * hook is called only where the thread traces, or where a tensor is deferred. */
#ifndef ETCH_CORE_BASE_HOOKS_H
#define ETCH_CORE_BASE_HOOKS_H

#include "core/base/base.h"
#include "core/base/counters.h"
#include "core/base/frame.h"
#include "core/base/thread.h"

typedef struct etch_storage etch_storage; /* core/tensor/tensor.h */
typedef struct grad_origin grad_origin;   /* tracer/run/backward.c */
typedef struct recipe_run recipe_run;     /* tracer/run/recompute.c */

/* Hooks that the tracer fills (NULL while no tracer is linked). Each is called only when the thread
 * has a run active or t is deferred. */
typedef struct trace_hooks {
    /* A read of t (NULL: etch_flush) is about to happen: makes t's storage real. */
    etch_status (*read)(const etch_tensor *t, reason_id why, const void *site);
    /* t's storage gets exposed (EXPOSED_READER, EXPOSED_WRITER), or (0) no longer is. */
    etch_status (*expose)(const etch_tensor *t, unsigned counts, const void *site);
    /* See etch__before_write and etch__before_read. */
    void (*before_write)(const etch_storage *s);
    void (*before_read)(const etch_storage *s);
    /* Whether two tensors, at least one of them deferred, share one storage. */
    bool (*same_storage)(const etch_tensor *a, const etch_tensor *b);
    /* The offset of a deferred tensor in the storage it will lie over. */
    int64_t (*offset)(const etch_tensor *t);
    /* How often what a deferred tensor will lie over was written until now. */
    unsigned (*version)(const etch_tensor *t);
    /* The running call's scope is closed from outside (longjmp): forget the run. */
    void (*abandon)(int64_t mark);
    /* The thread gives up a count while walks of it borrow arguments: those that borrow t take a
     * count of their own first. */
    void (*own_borrowed)(const etch_tensor *t);
    /* The compiled function in which the thread is, as a tape's node remembers it (counted), or
     * NULL; and what lets go of it. */
    grad_origin *(*origin)(void);
    void (*drop_origin)(grad_origin *o);
    /* Runs backward(ctx), which is a run of that function's tape, as the body of a function that is
     * compiled with it. The status of either. */
    etch_status (*backward)(grad_origin *o, etch_status (*backward)(void *ctx), void *ctx);
    /* A value of a tape that has a recipe in place of a storage: computed, owned by the innermost
     * scope; NULL with an error. And what lets go of the recipe. */
    etch_tensor *(*recompute)(const etch_tensor *t);
    void (*drop_recipe)(recipe_run *r);
    /* The counts that functions keep for themselves. */
    void (*add_counts)(counters *sum);
    void (*reset_counts)(void);
} trace_hooks;
extern trace_hooks etch__trace_hooks;

/* This thread is about to write s (NULL: code of the user may write memory that is its own). What
 * its runs, those further out included, have deferred and depends on that is computed first. */
static inline void etch__before_write(const etch_storage *s) {
    if (unlikely(etch__tls.watches)) etch__trace_hooks.before_write(s);
}
/* The same before s (NULL: anything) is read: in a function of the user that was called between two
 * operators of a body, whose writes may still be deferred. */
static inline void etch__before_read(const etch_storage *s) {
    if (unlikely(etch__tls.interrupted != NULL)) etch__trace_hooks.before_read(s);
}

#endif
