/* Transforms: functions of tensors made from others, over a batch, with tangents, with gradients.
 *
 *     // of one sample
 *     static etch_tensor *loss(etch_tensor *w, etch_tensor *x, etch_tensor *y) { ... }
 *
 *     etch_function *losses = etch_vmap(loss, ETCH_DIMS(ETCH_UNMAPPED, 0, 0), ETCH_DIMS(0));
 *     ETCH_SCOPE {
 *         etch_tensor *l = etch_call(losses, w, xs, ys); // one number a sample
 *     }
 *     etch_function_free(losses);
 *
 * They may be used inside of each other in any depth, inside compiled functions, whose graph they
 * are then part of, and with gradients. docs/transforms.md says how they work. */
#ifndef ETCH_TRANSFORMS_H
#define ETCH_TRANSFORMS_H

#include <etch/compile.h>
#include <etch/grad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- over a batch ---- */

/* In place of a dimension: the argument is the same for all samples, the result of all. */
#define ETCH_UNMAPPED INT64_MIN

typedef enum etch_randomness {
    ETCH_RANDOM_ERROR,     /* random operators fail */
    ETCH_RANDOM_DIFFERENT, /* each sample has numbers of its own */
    ETCH_RANDOM_SAME       /* all samples have the same */
} etch_randomness;

/* All zero is the default. */
typedef struct etch_vmap_options {
    size_t struct_size; /* set by the etch_vmap macro */
    etch_randomness randomness;
} etch_vmap_options;

/* fn mapped over a batch: a function handle that is called through etch_call or etch_call_n and
 * freed with etch_function_free; NULL with an error. fn is written for one sample, and is called
 * once for all of them. in_dims has for each argument the dimension in which its samples are
 * (negative ones count from the end), or ETCH_UNMAPPED; the last one stands for all further
 * arguments, an empty list for ETCH_DIMS(0). out_dims likewise has where the samples go in each
 * result; what does not depend on the batch is repeated there, or, with ETCH_UNMAPPED, returned
 * once.
 *
 * Inside fn a tensor shows the sizes, strides and dtype of one sample. It computes what a loop over
 * the samples would: pointwise operators with the same bits, others within the rounding of another
 * order of sums; what depends on no sample is computed once, with its effects. Values cannot be
 * read (etch_item, etch_data, printing, sizes that depend on data): choose with etch_where. A
 * batched value cannot be written in place into a tensor that all samples share, and batched
 * tensors end with the call. etch_grad gives gradients of each sample, also for tensors of outside
 * (gradients that are the same for all samples are not batched); etch_backward outside sums them
 * over the samples. A compiled function that is called in there runs as part of fn, uncompiled
 * unless all of this is inside of a compiled function; interceptor modes see the operators on whole
 * batches. Operators without a batching rule (custom ones that have none) are called for each
 * sample.
 *
 * Errors of calls: invalid_argument (no argument is mapped, or batches of different sizes),
 * dim_range, batched (see errors.def), and those of fn. Any thread may call it. */
ETCH_API etch_function *etch_vmap_n(etch_callable fn, etch_dims in_dims, etch_dims out_dims,
                                    const etch_vmap_options *options);

/* ---- with tangents and gradients ----
 *
 * fn is a function of etch_compile's kinds, or ETCH_CALLABLE(fn, ctx), of nin tensors with nout
 * results; etch_jvp and etch_vjp call it once. Results belong to the innermost scope; an error
 * leaves NULLs in what would be returned. All of them may be differentiated again in either mode
 * (what they return requires gradients where the arguments do, and not in ETCH_NO_GRAD), mapped,
 * and compiled into the function around. Errors: invalid_argument, shape and dtype (a tangent or
 * gradient that does not fit), not_differentiable (an operator without a derivative), and those of
 * fn. */

/* Forward mode: fn's results at `in`, and their derivatives along `tangents`, computed beside them.
 * tangents[i] has the sizes and dtype of in[i], or is NULL: 0. out_tangents[i] has those of out[i];
 * where a result does not depend on the direction it is zeros. In fn a tensor carries its tangent;
 * etch_detach gives one without. What is written in place has its tangent written, too; a view
 * keeps the tangent of what it is a view of, unless it was made before that had one. Where a
 * gradient is shared (gradients of maximum and the like) so is the tangent. */
ETCH_API etch_status etch_jvp_n(etch_callable fn, etch_tensor *const *in,
                                etch_tensor *const *tangents, int nin, etch_tensor **out,
                                etch_tensor **out_tangents, int nout);

/* Reverse mode: fn's results, and the gradients for `in` of the sum of results times `grad_outputs`
 * (with their sizes, of any floating dtype: rounded to the result's; NULL: 1 for each, which must
 * be of one element). grads[i] is NULL where in[i] is not of floating-point numbers, zeros where
 * the results do not depend on it. No leaf changes. */
ETCH_API etch_status etch_vjp_n(etch_callable fn, etch_tensor *const *in, int nin,
                                etch_tensor *const *grad_outputs, etch_tensor **out, int nout,
                                etch_tensor **grads);

typedef enum etch_jacobian_mode {
    ETCH_JACOBIAN_AUTO,    /* by which there is less: forward where the argument has as few elements
                              as the result */
    ETCH_JACOBIAN_FORWARD, /* by tangents, one for each element of the argument */
    ETCH_JACOBIAN_REVERSE  /* by gradients, one for each element of the result */
} etch_jacobian_mode;

/* All zero is the default. */
typedef struct etch_jacobian_options {
    size_t struct_size; /* set by the macros */
    int argument;       /* which of the arguments it is about */
    etch_jacobian_mode mode;
    int64_t chunk; /* so many at once, which bounds the memory; 0: all */
} etch_jacobian_options;

/* The derivatives of fn's one result for each element of an argument: of the result's sizes, then
 * the argument's, at most 8 dimensions in all. fn is mapped (etch_vmap) over unit tangents or
 * gradients, so what is said there holds; random operators fail. It is called once for each chunk
 * of them, or for a tape, and to see how large the result is. */
ETCH_API etch_tensor *etch_jacobian_n(etch_callable fn, etch_tensor *const *in, int nin,
                                      const etch_jacobian_options *options);
/* The second derivatives of fn, whose result has one element: of the argument's sizes, twice. By
 * tangents of gradients. `mode` is not used. */
ETCH_API etch_tensor *etch_hessian_n(etch_callable fn, etch_tensor *const *in, int nin,
                                     const etch_jacobian_options *options);

#ifdef __cplusplus
}
#endif

/* clang-format off */
#ifndef __cplusplus
#define ETCH_CALLABLE_FROM_(n)                                                                     \
    static inline etch_callable etch_callable_from_fn##n(etch_fn##n fn) {                          \
        return etch_callable_of(n, (void (*)(void))fn, NULL);                                      \
    }
ETCH_CALLABLE_FROM_(0)
ETCH_CALLABLE_FROM_(1)
ETCH_CALLABLE_FROM_(2)
ETCH_CALLABLE_FROM_(3)
ETCH_CALLABLE_FROM_(4)
ETCH_CALLABLE_FROM_(5)
ETCH_CALLABLE_FROM_(6)
ETCH_CALLABLE_FROM_(7)
ETCH_CALLABLE_FROM_(8)
#undef ETCH_CALLABLE_FROM_
static inline etch_callable etch_callable_from_n(etch_fn_n fn) {
    return etch_callable_of(-1, (void (*)(void))fn, NULL);
}
static inline etch_callable etch_callable_itself(etch_callable c) { return c; }
/* fn is a function of one of etch_compile's kinds, or ETCH_CALLABLE(fn, ctx). */
#define ETCH_FUNCTION_OR_CALLABLE(fn)                                                              \
    _Generic((fn),                                                                                 \
        etch_callable: etch_callable_itself,                                                       \
        etch_fn0: etch_callable_from_fn0,                                                          \
        etch_fn1: etch_callable_from_fn1,                                                          \
        etch_fn2: etch_callable_from_fn2,                                                          \
        etch_fn3: etch_callable_from_fn3,                                                          \
        etch_fn4: etch_callable_from_fn4,                                                          \
        etch_fn5: etch_callable_from_fn5,                                                          \
        etch_fn6: etch_callable_from_fn6,                                                          \
        etch_fn7: etch_callable_from_fn7,                                                          \
        etch_fn8: etch_callable_from_fn8,                                                          \
        etch_fn_n: etch_callable_from_n)(fn)
#else
#define ETCH_FUNCTION_OR_CALLABLE(fn) etch_callable_of_either(fn)
inline etch_callable etch_callable_of_either(etch_callable c) { return c; }
template <class F> inline etch_callable etch_callable_of_either(F fn) {
    return etch_callable_from(fn);
}
#endif

/* etch_vmap(fn, in_dims, out_dims), etch_vmap(fn, in_dims, out_dims, .randomness = ...). */
#ifndef __cplusplus
#define etch_vmap(fn, in_dims, out_dims, ...)                                                      \
    etch_vmap_n(ETCH_FUNCTION_OR_CALLABLE(fn), in_dims, out_dims,                                  \
                &(etch_vmap_options){.struct_size = sizeof(etch_vmap_options), __VA_ARGS__})
#else
template <class F>
inline etch_function *etch_vmap(F fn, etch_dims in_dims, etch_dims out_dims,
                                etch_vmap_options options = {}) {
    options.struct_size = sizeof options;
    return etch_vmap_n(ETCH_FUNCTION_OR_CALLABLE(fn), in_dims, out_dims, &options);
}
#endif

/* The same for functions: etch_jvp(fn, in, tangents, nin, out, out_tangents, nout),
 * etch_vjp(fn, in, nin, grad_outputs, out, nout, grads), etch_jacobian(fn, in, nin, .argument = 1),
 * etch_hessian(fn, in, nin). */
#define etch_jvp(fn, ...) etch_jvp_n(ETCH_FUNCTION_OR_CALLABLE(fn), __VA_ARGS__)
#define etch_vjp(fn, ...) etch_vjp_n(ETCH_FUNCTION_OR_CALLABLE(fn), __VA_ARGS__)
#ifndef __cplusplus
#define ETCH_JACOBIAN_OPTIONS_(...)                                                                \
    &(etch_jacobian_options){.struct_size = sizeof(etch_jacobian_options), __VA_ARGS__}
#define etch_jacobian(fn, in, nin, ...)                                                            \
    etch_jacobian_n(ETCH_FUNCTION_OR_CALLABLE(fn), in, nin, ETCH_JACOBIAN_OPTIONS_(__VA_ARGS__))
#define etch_hessian(fn, in, nin, ...)                                                             \
    etch_hessian_n(ETCH_FUNCTION_OR_CALLABLE(fn), in, nin, ETCH_JACOBIAN_OPTIONS_(__VA_ARGS__))
#endif
/* clang-format on */
#endif
