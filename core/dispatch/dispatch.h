/* The dispatcher: composites -> vmap -> autograd -> modes -> tracer -> device kernel.
 *
 * Layers register a handler; a bit per layer in the thread's `layers` says which are active. With
 * none active a call goes straight to inference and the kernel. */
#ifndef ETCH_CORE_DISPATCH_DISPATCH_H
#define ETCH_CORE_DISPATCH_DISPATCH_H

#include "core/ops/op.h"
#include "core/base/stack.h"

typedef enum dispatch_layer {
    LAYER_COMPOSITE_MODES, /* modes that take composites before they are taken apart */
    LAYER_VMAP,
    LAYER_AUTOGRAD,
    LAYER_MODES,
    LAYER_TRACER,
    LAYER_COUNT
} dispatch_layer;

/* Handles the call; NULL with the error set on failure. A handler that passes the call on calls
 * etch__dispatch_below with its own layer. */
typedef etch_tensor *(*layer_handler)(const op_call *call);
void etch__register_layer(dispatch_layer layer, layer_handler handler);

/* A kernel for one operator on the CPU (registered at load by backends/cpu). */
void etch__register_kernel(op_id op, op_kernel kernel);
op_kernel etch__kernel(op_id op);
/* The kernel that computes results on `device`. */
op_kernel etch__kernel_on(op_id op, int device);
/* Runs it where there is room for its frames; one of the user's on the stack of the call. */
etch_status etch__kernel_on_second_stack(op_kernel kernel, const op_call *call,
                                         etch_tensor *const *out);
static inline etch_status etch__kernel_in_room(op_kernel kernel, const op_call *call,
                                               etch_tensor *const *out) {
    if (likely(etch__stack_has(KERNEL_STACK)) || etch__op_is_users(call->op))
        return kernel(call, out);
    return etch__kernel_on_second_stack(kernel, call, out);
}

/* The entry of every operator call in normal form: checks handles, takes composites apart, walks
 * the active layers, ends in etch__run_eager. */
etch_tensor *etch__dispatch(const op_call *call);
etch_tensor *etch__dispatch_below(dispatch_layer layer, const op_call *call);

/* A composite's parts, called in its place; they stand at the user's line of the composite. */
etch_tensor *etch__take_apart(const op_call *call);
/* Inference, allocation, kernel, scope: the innermost step. Inputs must be materialised. */
etch_tensor *etch__run_eager(const op_call *call);
/* Only the kernel, into an allocated result (INPLACE: the first argument). */
etch_status etch__run_kernel(const op_call *call, etch_tensor *out);
/* Sizes, strides, offset and what follows from them; not the storage. */
void etch__apply_meta(etch_tensor *t, const tensor_meta *meta);

/* Counters: the process's, added to atomically. */
typedef struct counters {
#define COUNTER(name) _Atomic int64_t name;
#include "core/base/counters.def"
#undef COUNTER
} counters;
extern counters etch__counters;

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
    /* The running call's scope is closed from outside (longjmp): forget the run. */
    void (*abandon)(int64_t mark);
    /* The thread gives up a count while walks of it borrow arguments: those that borrow t take a
     * count of their own first. */
    void (*own_borrowed)(const etch_tensor *t);
    /* The counts that functions keep for themselves. */
    void (*add_counts)(struct counters *sum);
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

/* For public readers: t checked and its data there. */
etch_status etch__materialise(const etch_tensor *t, const char *function, reason_id why,
                              const void *site);

/* Reserves n numbers of the process's generator in program order: seed and first offset. */
void etch__random_reserve(int64_t n, uint64_t *seed, uint64_t *offset);

/* A function of the user that the library calls (a kernel, a log sink, what frees wrapped memory)
 * runs in an empty frame, as in a flush: what it calls runs eagerly, whatever the thread is
 * tracing, and is no part of that. */
typedef struct user_frame {
    void *cursor, *run;
    uint64_t state;
    uint32_t layers;
    bool in_flush;
    struct user_frame *outer;
} user_frame;
user_frame etch__enter_user(void);
void etch__leave_user(const user_frame *f);
/* The same where the body may be between two operators: what is written there may end its segment.
 */
void etch__interrupt(user_frame *f);
void etch__end_interrupt(const user_frame *f);

#endif
