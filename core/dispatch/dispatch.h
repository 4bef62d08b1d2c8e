/* The dispatcher: composites -> tangents -> tape -> batches -> modes -> tracer -> device kernel.
 *
 * Layers register a handler; a bit per layer in the thread's `layers` says which are active. With
 * none active a call goes straight to inference and the kernel. */
#ifndef ETCH_CORE_DISPATCH_DISPATCH_H
#define ETCH_CORE_DISPATCH_DISPATCH_H

#include "core/base/counters.h"
#include "core/base/hooks.h"
#include "core/base/profile.h"
#include "core/ops/op.h"
#include "core/base/stack.h"

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

/* A kernel of one operator, recorded; planned: as a step of a plan. Its error names what the user
 * called. */
etch_status etch__profiled_kernel(op_kernel kernel, const op_call *call, etch_tensor *const *out,
                                  bool planned);
static inline etch_status etch__call_kernel(op_kernel kernel, const op_call *call,
                                            etch_tensor *const *out, bool planned) {
    etch_status status = etch__profile_on() ? etch__profiled_kernel(kernel, call, out, planned)
                                            : etch__kernel_in_room(kernel, call, out);
    if (unlikely(status != ETCH_OK && call->part_of))
        etch__error_name(etch__ops[call->part_of - 1].name, call->site, true);
    return status;
}

/* The entry of every operator call in normal form: checks handles, takes composites apart, walks
 * the active layers, ends in etch__run_eager. */
etch_tensor *etch__dispatch(const op_call *call);
etch_tensor *etch__dispatch_below(dispatch_layer layer, const op_call *call);
/* The same without the layers that see calls by their operands. */
etch_tensor *etch__dispatch_layerless(const op_call *call);

/* What layers that see calls by their operands have to see. A bit is set for good when the first
 * tensor needs it, and until then costs nothing. */
enum {
    LAYERED_HANDLES = 1, /* calls with an operand that says so (etch_tensor.layers) */
    LAYERED_VIEWS = 2    /* gradients are in use: views too, and who wrote */
};
extern _Atomic unsigned char etch__layered __attribute__((visibility("hidden")));
static inline void etch__begin_layered(unsigned char what) {
    atomic_fetch_or_explicit(&etch__layered, what, memory_order_relaxed);
}

/* A write by an operator is done: the storage has another version. */
void etch__remember_write(const etch_storage *s, op_id op, const void *site);
static inline void etch__note_write(etch_storage *s, op_id op, const void *site) {
    atomic_fetch_add_explicit(&s->version, 1, memory_order_relaxed);
    if (unlikely(atomic_load_explicit(&etch__layered, memory_order_relaxed) & LAYERED_VIEWS))
        etch__remember_write(s, op, site);
}
/* The last operator that wrote it, OP_COUNT where that is not known any more; and where. */
op_id etch__last_writer(const etch_storage *s, const void **site);

/* What the user has registered with an operator: NULL for what there is not. */
typedef struct custom_rules {
    etch_derivative_fn derivative;
    etch_vmap_fn vmap;
    etch_jvp_fn jvp;
    void *ctx;
} custom_rules;
const custom_rules *etch__custom_rules(op_id op);

/* What takes operators apart, by operator; NULL for those that have a kernel. */
typedef etch_tensor *(*op_composite)(const op_call *call);
/* Whether the call is one of a composite: other operators come in its place. */
bool etch__in_parts(const op_call *call);
void etch__register_composites(const op_composite *table);
/* A composite's parts, called in its place; they stand at the user's line of the composite. */
etch_tensor *etch__take_apart(const op_call *call);
/* Zeros as large as another tensor, and a copy of t into parts of which src is to be written: with
 * what these have of batches and tangents (core/transforms). */
extern etch_tensor *(*etch__zeros_to_fill)(etch_tensor *like);
extern etch_tensor *(*etch__copy_to_fill)(etch_tensor *t, etch_tensor *src);
/* Inference, allocation, kernel, scope: the innermost step. Inputs must be materialised. */
etch_tensor *etch__run_eager(const op_call *call);
/* Only the kernel, into an allocated result (INPLACE: the first argument). */
etch_status etch__run_kernel(const op_call *call, etch_tensor *out);
/* The operator computed on the CPU for tensors of a device: copies in, kernel, copies out. For what
 * the device has no kernel of its own. */
etch_status etch__run_on_host(const op_call *call, etch_tensor *const *out);

#endif
