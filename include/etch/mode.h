/* Interceptor modes, custom operators and overrides: three ways to step between a call of an
 * operator and its kernel.
 *
 * A mode sees every operator that its thread calls while it is entered; a compiled function that is
 * called under it runs uncompiled. A custom operator is an operator of the table like any other, an
 * opaque node of graphs. An override replaces the kernel of one operator for one device,
 * everywhere. */
#ifndef ETCH_MODE_H
#define ETCH_MODE_H

#include <etch/debug.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- modes ---- */

typedef struct etch_mode etch_mode;

/* Handles one call. args are the operator's arguments in schema order, defaults filled in; those
 * that are keyword-only (alpha of add) carry their names, the others can be asked for with
 * etch_arg. The list can be passed on as it is. On success out[0..nout) are set and the status is
 * ETCH_OK; ETCH_DECLINED passes the call on as if the mode were not there (a composite: outward,
 * then its parts are offered); any other status fails the call, with the thread's error. While the
 * handler runs, its own mode and those entered after it are off, so it may call any operator, the
 * one it handles included. Tensors are the caller's own: one that it keeps shows later writes, and
 * is to be cloned where it is to stay as it is (those of a custom operator in compiled code are as
 * a kernel's, below). It has to return: it is not to be left by longjmp. */
typedef etch_status (*etch_mode_handler)(void *ctx, const etch_op *op, const etch_value *args,
                                         int nargs, etch_tensor **out, int nout);

typedef struct etch_mode_options {
    size_t struct_size; /* set by the etch_mode_new macro */
    const char *name;   /* for logs and errors; NULL: "mode" */
    bool composite;     /* is offered composites (linear, matmul, reshape ...) before their parts */
    bool allow_compiled; /* compiled functions run compiled; the mode sees their custom operators */
    bool unchecked;      /* results of another dtype or shape than the operator's are accepted */
    void (*destroy)(void *ctx); /* called by etch_mode_free; may be NULL */
} etch_mode_options;

/* A new mode, to be freed with etch_mode_free; NULL on error. options may be NULL. */
ETCH_API etch_mode *etch_mode_create(etch_mode_handler handler, void *ctx,
                                     const etch_mode_options *options);
#ifndef __cplusplus
#define etch_mode_new(handler, ctx, ...)                                                           \
    etch_mode_create(handler, ctx,                                                                 \
                     &(etch_mode_options){.struct_size = sizeof(etch_mode_options), __VA_ARGS__})
#endif
/* NULL is a no-op. A mode that is entered anywhere must not be freed: invalid_argument is set. */
ETCH_API void etch_mode_free(etch_mode *mode);
ETCH_API void *etch_mode_ctx(const etch_mode *mode);
ETCH_API const char *etch_mode_name(const etch_mode *mode);

/* Enters and leaves a mode on the calling thread; inside a compiled function both are graph breaks
 * (but for allow_compiled). Only the mode entered last can be left. */
ETCH_API etch_status etch_mode_push(etch_mode *mode);
ETCH_API etch_status etch_mode_pop(etch_mode *mode);

typedef struct etch_mode_guard {
    etch_mode *mode;
    int open;
} etch_mode_guard;
static inline etch_mode_guard etch_mode_enter(etch_mode *mode) {
    etch_mode_guard guard;
    guard.mode = etch_mode_push(mode) == ETCH_OK ? mode : NULL;
    guard.open = 1;
    return guard;
}
static inline void etch_mode_leave(etch_mode_guard *guard) {
    if (guard->mode) etch_mode_pop(guard->mode);
}
/* ETCH_WITH_MODE(mode) { ... }: enters it for the block, and leaves it on
 * every way out but longjmp. */
#define ETCH_WITH_MODE(m) ETCH_WITH_MODE_(m, __COUNTER__)
#define ETCH_WITH_MODE_(m, n) ETCH_WITH_MODE__(m, n)
#define ETCH_WITH_MODE__(m, n)                                                                     \
    for (etch_mode_guard etch_mode_guard_##n                                                       \
         __attribute__((cleanup(etch_mode_leave))) = etch_mode_enter(m);                           \
         etch_mode_guard_##n.open; etch_mode_guard_##n.open = 0)

/* From a handler: the call with these arguments, to the modes outside and then to the kernel. The
 * same as etch_op_call there, but a random operator keeps its numbers. */
ETCH_API etch_status etch_redispatch(const etch_op *op, const etch_value *args, int nargs,
                                     etch_tensor **out, int nout);

/* The argument of that name, from a list in schema order; NULL where the schema has none. */
ETCH_API const etch_value *etch_arg(const etch_op *op, const etch_value *args, int nargs,
                                    const char *name);

/* Whether an operator is called `name`: "add.Tensor" is that overload, "add" every overload. An
 * "aten::" prefix is accepted. */
ETCH_API bool etch_op_is(const etch_op *op, const char *name);
/* "add" for "add.Tensor". Valid as long as the operator. */
ETCH_API const char *etch_op_packet(const etch_op *op);

/* ---- inference ---- */

/* Inside, no gradients are recorded and modes are offered composites themselves, as under PyTorch's
 * inference_mode. Per thread; nests. */
ETCH_API int etch_inference_begin(void);
ETCH_API void etch_inference_end(int outer);
typedef struct etch_inference_guard {
    int outer, open;
} etch_inference_guard;
static inline void etch_inference_leave(etch_inference_guard *g) { etch_inference_end(g->outer); }
#define ETCH_INFERENCE ETCH_INFERENCE_(__COUNTER__)
#define ETCH_INFERENCE_(n) ETCH_INFERENCE__(n)
#define ETCH_INFERENCE__(n)                                                                        \
    for (etch_inference_guard etch_inference_##n                                                   \
         __attribute__((cleanup(etch_inference_leave))) = {etch_inference_begin(), 1};             \
         etch_inference_##n.open; etch_inference_##n.open = 0)
ETCH_API bool etch_inference_enabled(void);

/* ---- custom operators ---- */

/* A kernel: reads the arguments (schema order, names, defaults filled in) and fills the results,
 * which are allocated as the shape function says (for an operator that writes its first argument,
 * out[0] is that argument). It may call operators: they run eagerly, and creation operators put
 * their results where the kernel's tensors are. Its tensors are handles of its own over the
 * caller's memory. It may keep any of them, or views (etch_retain): they go on holding what they
 * held when it returned, whatever is written later to the caller's (what is kept is copied then).
 * It has to return: it is not to be left by longjmp. */
typedef etch_status (*etch_kernel)(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                   etch_tensor *const *out, int nout);

typedef struct etch_tensor_spec {
    etch_dtype dtype;
    etch_shape sizes;
} etch_tensor_spec;

/* Says what the results look like, from dtypes, sizes and plain arguments only (never from the
 * value of a Scalar, which compiled code takes at run time), or fails with a status and
 * etch_set_error. Must be pure. */
typedef etch_status (*etch_shape_fn)(void *ctx, const etch_op *op, const etch_value *args,
                                     int nargs, etch_tensor_spec *out, int nout);

/* A call whose gradients are wanted. The values are those of the call: every tensor, and the
 * result, as they were then (of a written argument a copy of its old contents). */
typedef struct etch_derivative_call {
    const etch_value *args; /* schema order, defaults filled in */
    int nargs;
    etch_tensor *result;
    etch_tensor *grad;   /* of the result: its sizes and dtype */
    int ntensors;        /* tensor arguments, or entries of a list, in schema order */
    const bool *wants;   /* which of these want a gradient */
    etch_tensor **grads; /* to be set, of theirs; NULL (as at first) for none. What is larger by
                            broadcasting is summed, what is smaller is expanded, then converted */
} etch_derivative_call;
/* Sets the gradients by operator calls, which are traced, compiled, and differentiated again where
 * that is asked for; or fails with a status and etch_set_error. */
typedef etch_status (*etch_derivative_fn)(void *ctx, const etch_op *op,
                                          const etch_derivative_call *call);

/* A call in a function that etch_vmap maps. Tensors that differ from sample to sample have the
 * samples as dimension 0. */
typedef struct etch_vmap_call {
    const etch_value *args; /* schema order, defaults filled in */
    int nargs;
    int ntensors;        /* tensor arguments, or entries of a list, in schema order */
    const bool *batched; /* which of these have the samples */
    int64_t samples;
} etch_vmap_call;
/* The result, by operator calls: with the samples as dimension 0, behind it what the shape function
 * says of one. An operator that writes its first argument, which is batched then, writes it for all
 * samples and returns it. NULL with etch_set_error. */
typedef etch_tensor *(*etch_vmap_fn)(void *ctx, const etch_op *op, const etch_vmap_call *call);

/* A call in forward mode (etch_jvp). */
typedef struct etch_jvp_call {
    const etch_value *args; /* schema order, defaults filled in */
    int nargs;
    etch_tensor *result;
    int ntensors;                 /* tensor arguments, or entries of a list, in schema order */
    etch_tensor *const *tangents; /* theirs: of their sizes and dtypes, or NULL for 0 */
} etch_jvp_call;
/* The derivative of the result along the tangents, by operator calls: of the result's sizes (what
 * is smaller is expanded) and a float dtype. NULL: it is 0; or with etch_set_error. */
typedef etch_tensor *(*etch_jvp_fn)(void *ctx, const etch_op *op, const etch_jvp_call *call);

typedef struct etch_op_definition {
    size_t struct_size;  /* sizeof(etch_op_definition) */
    etch_kernel cpu;     /* required */
    etch_shape_fn shape; /* required, but for an operator that writes its first argument */
    bool effects;        /* it does more than compute its result: a graph break, run at its place */
    void *ctx;           /* passed to the functions */
    /* For tensors on a GPU, which it is called with: it issues work to etch_cuda_stream(device) (or
     * calls operators) and need not wait. The device's context is current. NULL: the cpu kernel is
     * called with copies in host memory, which costs a wait and two copies. */
    etch_kernel cuda;
    /* cuda only issues work to that stream, the same for the same addresses, sizes and arguments;
     * it neither waits, nor keeps anything, nor allocates other than by operators. A CUDA graph
     * (ETCH_MODE_REDUCE_OVERHEAD) may then hold that work and launch it again without calling cuda;
     * without the flag, plans that call the operator are launched step by step. */
    bool cuda_issues_only;
    /* The gradients of its tensor arguments. NULL: backward through it is not_differentiable. */
    etch_derivative_fn derivative;
    /* The operator on a batch. NULL: it is called for each sample. */
    etch_vmap_fn vmap;
    /* The tangent of its result. NULL: it is not_differentiable in forward mode. Not for an
     * operator that writes its first argument. */
    etch_jvp_fn jvp;
} etch_op_definition;

/* Registers "mylib::blas_matmul(Tensor a, Tensor b) -> Tensor" for the process, for ever. One
 * result. "(Tensor(a!) self, ...) -> Tensor(a!)" declares that the first argument is written and
 * returned; no other mutation and no aliasing may be declared or done. An int or int[] that changes
 * from call to call becomes a run-time value of a compiled function's trace, unless its name says
 * that it is an axis or a device, which are part of the trace: dim, dims, dim0, dim1, dim2,
 * dimension, start_dim, end_dim, source, destination, device. NULL with an error for a schema that
 * does not parse, a name that is taken, or a full table. */
ETCH_API const etch_op *etch_op_register(const char *schema, const etch_op_definition *definition);

/* Sets the calling thread's error, for kernels, shape functions and handlers; returns status. */
ETCH_API etch_status etch_set_error(etch_status status, const char *text);

/* ---- overrides ---- */

typedef struct etch_override etch_override;

/* Replaces the kernel of op for tensors on the CPU ("cpu") or on GPUs ("cuda"), for the whole
 * process until it is undone; the newest override of a device wins. Compiled functions
 * compile anew with op as an opaque node; inside one it is a graph break. An override for
 * GPUs is a kernel as `cuda` of etch_op_definition, and is never held by a CUDA graph. An
 * operator that has no kernel for GPUs runs the CPU's there, with its override. Views and
 * composites have no kernel: unsupported. */
ETCH_API etch_override *etch_op_override(const etch_op *op, const char *device, etch_kernel kernel,
                                         void *ctx);
/* Undoes an override and frees the handle; no call of it may be running. NULL is a no-op. */
ETCH_API void etch_op_override_undo(etch_override *override);

#ifdef __cplusplus
}
#endif
#endif
