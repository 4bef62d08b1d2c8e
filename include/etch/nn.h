/* Modules: parameters, children and a forward function in one object, with hooks around forward.
 *
 * A module owns its parameters (one count each) and its children, and frees them with itself. A
 * compiled module runs forward, hooks and children included, as one compiled function: what hooks
 * do with tensors is traced, what they do besides runs on every call, as it does eagerly. */
#ifndef ETCH_NN_H
#define ETCH_NN_H

#include <etch/compile.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct etch_module etch_module;

/* Computes the result of m for x; NULL with the error set on failure. */
typedef etch_tensor *(*etch_forward)(etch_module *m, etch_tensor *x);

/* A module of a type of the user: `type` names it in reports ("Linear"). NULL on error. */
ETCH_API etch_module *etch_module_new(const char *type, etch_forward forward);
/* Frees it with its children, parameters and compiled function. NULL is a no-op. A module that has
 * a parent is freed by that: invalid_argument is set. */
ETCH_API void etch_module_free(etch_module *m);

/* Adds a parameter (a count of it is taken) or a child (which now belongs to m). Names are copied;
 * one that is there already is an error, and so is a child that has a parent. A child whose adding
 * fails stays with the caller. */
ETCH_API etch_status etch_module_add_parameter(etch_module *m, const char *name, etch_tensor *t);
ETCH_API etch_status etch_module_add_child(etch_module *m, const char *name, etch_module *child);
/* By name, "fc1.weight" for a parameter of a child; NULL and not_found otherwise. */
ETCH_API etch_tensor *etch_module_parameter(const etch_module *m, const char *name);
/* Of m itself: the i-th child in the order of adding, or NULL. */
ETCH_API etch_module *etch_module_child(const etch_module *m, int i);
/* Number of parameters, those of children included. */
ETCH_API int etch_module_parameter_count(const etch_module *m);
ETCH_API const char *etch_module_type(const etch_module *m);

/* forward with hooks: before-hooks in the order of adding, forward, after-hooks. Compiled where
 * etch_module_compile was called. */
ETCH_API etch_tensor *etch_module_call(etch_module *m, etch_tensor *x);

/* Called before forward with its input: what it returns is the input from there on; NULL with no
 * error set leaves it as it is, with an error set fails the call. */
typedef etch_tensor *(*etch_pre_hook)(void *ctx, etch_module *m, etch_tensor *x);
/* Called after forward with input and result; what it returns takes the
 * result's place, as above. */
typedef etch_tensor *(*etch_hook)(void *ctx, etch_module *m, etch_tensor *x, etch_tensor *y);
/* Each returns a handle for etch_hook_remove, or 0 on error. A hook may be added and removed at any
 * time, in a hook too; a compiled module sees that at its next call. */
ETCH_API int64_t etch_module_forward_pre_hook(etch_module *m, etch_pre_hook hook, void *ctx);
ETCH_API int64_t etch_module_forward_hook(etch_module *m, etch_hook hook, void *ctx);
ETCH_API void etch_hook_remove(etch_module *m, int64_t handle);

/* From here on etch_module_call runs compiled. options may be NULL; its ctx is not used. Compiling
 * a compiled module again takes the new options. */
ETCH_API etch_status etch_module_compile_with(etch_module *m, const etch_compile_options *options);
#ifndef __cplusplus
#define etch_module_compile(m, ...)                                                                \
    etch_module_compile_with(                                                                      \
        m, &(etch_compile_options){.struct_size = sizeof(etch_compile_options), __VA_ARGS__})
#endif
/* The compiled function, for counters; NULL before etch_module_compile. */
ETCH_API etch_function *etch_module_is_compiled(const etch_module *m);

/* ---- ready-made ---- */

/* y = x weight^T + bias, weight [out, in] and bias [out] uniform in +-1/sqrt(in) from the process's
 * generator. Needs an open scope for temporaries. */
ETCH_API etch_module *etch_nn_linear(int64_t in, int64_t out, etch_dtype dtype);
ETCH_API etch_module *etch_nn_relu(void);
/* Runs the children one after another, named "0", "1", ...; takes them over, even when it fails. */
ETCH_API etch_module *etch_nn_sequential(etch_module *const *children, int n);

#ifdef __cplusplus
}
#endif
#endif
