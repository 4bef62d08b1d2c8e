/* Modules: parameters, buffers, children and a forward function in one object, with hooks around
 * forward; ready-made layers, ways to fill parameters, and losses.
 *
 * A module owns its tensors (one count each) and its children, and frees them with itself. A
 * compiled module runs forward, hooks and children included, as one compiled function: what hooks
 * do with tensors is traced, what they do besides runs on every call, as it does eagerly.
 *
 * Several threads may call one module at a time, as far as what it does to its own tensors allows
 * (batch norm writes some in training); adding, replacing, settings and freeing are for one thread
 * alone. The same holds for reading lists while something is added. */
#ifndef ETCH_NN_H
#define ETCH_NN_H

#include <etch/compile.h>
#include <etch/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct etch_module etch_module;

/* ---- life ---- */

/* Computes the result of m for x; NULL with the error set on failure. */
typedef etch_tensor *(*etch_forward)(etch_module *m, etch_tensor *x);
/* The form for several tensors: reads in[0..nin), writes out[0..nout). How many it takes and gives
 * is its own to say, by an error if nin and nout do not fit. */
typedef etch_status (*etch_forward_n)(etch_module *m, etch_tensor *const *in, int nin,
                                      etch_tensor **out, int nout);

/* A module of a type of the user: `type` (copied) names it in reports and files ("Linear"). NULL on
 * error. */
ETCH_API etch_module *etch_module_new(const char *type, etch_forward forward);
ETCH_API etch_module *etch_module_new_n(const char *type, etch_forward_n forward);
/* Frees it with its children, tensors, ctx and compiled function. NULL is a no-op. A module that
 * has a parent is freed by that: invalid_argument is set. */
ETCH_API void etch_module_free(etch_module *m);
ETCH_API const char *etch_module_type(const etch_module *m);

/* What a type of the user keeps beside tensors. copy_fn makes the ctx of a copy of the module (NULL
 * of it: an error), free_fn frees it with the module, or as another ctx comes. Either may be NULL:
 * without copy_fn copies share the ctx, and where there is something to free they are refused. */
ETCH_API etch_status etch_module_set_ctx(etch_module *m, void *ctx, void *(*copy_fn)(void *ctx),
                                         void (*free_fn)(void *ctx));
ETCH_API void *etch_module_ctx(const etch_module *m);
/* A text (copied; NULL: none) from which the type's constructor makes such a module again. Those of
 * the ready-made layers are JSON objects. */
ETCH_API etch_status etch_module_set_config(etch_module *m, const char *config);
ETCH_API const char *etch_module_config(const etch_module *m);

/* A copy of m and all below it, with tensors of its own (tied ones are tied in the copy, too). It
 * has no parent, is not compiled and has no hooks. Needs no open scope. NULL on error. */
ETCH_API etch_module *etch_module_copy(const etch_module *m);

/* ---- tensors and children ---- */

/* Adds a parameter, which training changes: it is made to require gradients where its dtype is of
 * floating point, and must be a tensor of its own, not the result of operators that note gradients
 * (invalid_argument). Or a buffer, which is state that training does not differentiate (running
 * statistics), or a child (which now belongs to m). Tensors are counted, names are copied. A name
 * that is there already, is empty or has a '.' is an error, and so is a child that has a parent, or
 * is m itself or above it. A child whose adding fails stays with the caller. One tensor may be
 * added in several places: it is tied. */
ETCH_API etch_status etch_module_add_parameter(etch_module *m, const char *name, etch_tensor *t);
ETCH_API etch_status etch_module_add_buffer(etch_module *m, const char *name, etch_tensor *t);
ETCH_API etch_status etch_module_add_child(etch_module *m, const char *name, etch_module *child);
/* Puts t (counted) in the place of a parameter or buffer that is there, "fc1.weight": to tie it to
 * another one, say. A parameter requires gradients if the one before did. Optimisers go on with the
 * tensor that they were given. */
ETCH_API etch_status etch_module_set_tensor(etch_module *m, const char *name, etch_tensor *t);

/* By name, "fc1.weight" for a parameter of a child; borrowed. NULL and not_found otherwise. */
ETCH_API etch_tensor *etch_module_parameter(const etch_module *m, const char *name);
ETCH_API etch_tensor *etch_module_buffer(const etch_module *m, const char *name);
/* "" is m itself. */
ETCH_API etch_module *etch_module_find(const etch_module *m, const char *name);

/* By number: all parameters, or buffers, of m and of those below it: own ones first, in the order
 * of adding. A tied one is counted once, under its first name. Names are dotted, and valid until
 * something is added to m or below it, or replaced there. NULL for a number that is out of range,
 * and (with the error set) for want of memory; the counts are then 0. */
ETCH_API int etch_module_parameter_count(const etch_module *m);
ETCH_API etch_tensor *etch_module_parameter_at(const etch_module *m, int i);
ETCH_API const char *etch_module_parameter_name(const etch_module *m, int i);
ETCH_API int etch_module_buffer_count(const etch_module *m);
ETCH_API etch_tensor *etch_module_buffer_at(const etch_module *m, int i);
ETCH_API const char *etch_module_buffer_name(const etch_module *m, int i);
/* Of m itself: the i-th child in the order of adding, or NULL. */
ETCH_API int etch_module_child_count(const etch_module *m);
ETCH_API etch_module *etch_module_child(const etch_module *m, int i);
ETCH_API const char *etch_module_child_name(const etch_module *m, int i);

/* ---- settings, for m and all below it ---- */

/* Whether it is being trained, as a new module is: dropout and batch norm ask. Compiled code of
 * both kinds stays. */
ETCH_API etch_status etch_module_train(etch_module *m, bool on);
ETCH_API bool etch_module_is_training(const etch_module *m);

/* Whether the parameters require gradients: off freezes them. etch_zero_grad of each. */
ETCH_API etch_status etch_module_requires_grad_(etch_module *m, bool on);
ETCH_API etch_status etch_module_zero_grad(etch_module *m);

/* Puts tensors of that dtype in the place of all of floating point, or of that device in the place
 * of all, which are freed unless somebody else has a count: an optimiser is to be made behind this.
 * Tensors tied within m stay tied. An error changes nothing. */
ETCH_API etch_status etch_module_to(etch_module *m, etch_dtype dtype);
ETCH_API etch_status etch_module_to_device(etch_module *m, etch_device device);

/* ---- calling ---- */

/* The most tensors that a module takes, and that it gives. */
#define ETCH_MODULE_TENSORS 16

/* forward with hooks: before-hooks in the order of adding, forward, after-hooks. Compiled where
 * etch_module_compile was called. The results belong to the innermost scope; on an error they are
 * NULL. etch_module_call is the form for one tensor and one result, of any module. */
ETCH_API etch_tensor *etch_module_call(etch_module *m, etch_tensor *x);
ETCH_API etch_status etch_module_call_n(etch_module *m, etch_tensor *const *in, int nin,
                                        etch_tensor **out, int nout);

/* etch_module_call_n with other tensors in the places of the module's parameters: params has one
 * for each, in the order of etch_module_parameter_at, of its sizes and dtype; NULL keeps the
 * module's own. They may be what operators have computed: gradients and tangents reach them, not
 * the module's own. In a function that etch_vmap maps over stacked parameters they are those of one
 * model of many. Tied parameters get one tensor; buffers stay as they are (and are written, if
 * forward writes them). The module has its own back when the call returns, with an error too;
 * forward and hooks are not to be left by longjmp. Until then no other thread may call the module,
 * nor read its lists. Errors: invalid_argument (not as many as there are), shape, dtype, and those
 * of the call. */
ETCH_API etch_status etch_functional_call(etch_module *m, etch_tensor *const *params, int n,
                                          etch_tensor *const *in, int nin, etch_tensor **out,
                                          int nout);

/* Called before forward with its (first) input: what it returns is the input from there on; NULL
 * with no error set leaves it as it is, with an error set fails the call. */
typedef etch_tensor *(*etch_pre_hook)(void *ctx, etch_module *m, etch_tensor *x);
/* Called after forward with (first) input and result; what it returns takes the
 * result's place, as above. */
typedef etch_tensor *(*etch_hook)(void *ctx, etch_module *m, etch_tensor *x, etch_tensor *y);
/* The forms for several tensors: what they put into in, or into out, is what goes on from there. A
 * status other than ETCH_OK fails the call. */
typedef etch_status (*etch_pre_hook_n)(void *ctx, etch_module *m, etch_tensor **in, int nin);
typedef etch_status (*etch_hook_n)(void *ctx, etch_module *m, etch_tensor *const *in, int nin,
                                   etch_tensor **out, int nout);
/* Each returns a handle for etch_hook_remove, or 0 on error. A hook may be added and removed at any
 * time, in a hook too; a compiled module sees that at its next call. */
ETCH_API int64_t etch_module_forward_pre_hook(etch_module *m, etch_pre_hook hook, void *ctx);
ETCH_API int64_t etch_module_forward_hook(etch_module *m, etch_hook hook, void *ctx);
ETCH_API int64_t etch_module_forward_pre_hook_n(etch_module *m, etch_pre_hook_n hook, void *ctx);
ETCH_API int64_t etch_module_forward_hook_n(etch_module *m, etch_hook_n hook, void *ctx);
/* Hooks on gradients, called while a backward call runs, for calls of m that were made with the
 * hook there: etch_module_backward_pre_hook with the gradient of the i-th result, before it flows
 * through m; etch_module_backward_hook with that of the i-th input, as far as it flows through m,
 * when it is complete. What it returns takes the gradient's place, as above. Inputs that require no
 * gradients have none. The forward sees aliases (views) of its inputs, the caller gets aliases of
 * the results. Once a hook is removed or its module freed, gradients pass by it. Hooks are put on
 * tensors at each call: in compiled code a graph break. */
typedef etch_tensor *(*etch_backward_hook)(void *ctx, etch_module *m, int i, etch_tensor *grad);
ETCH_API int64_t etch_module_backward_hook(etch_module *m, etch_backward_hook hook, void *ctx);
ETCH_API int64_t etch_module_backward_pre_hook(etch_module *m, etch_backward_hook hook, void *ctx);
/* A handle that is removed already, or 0, is a no-op. */
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

/* ---- files ----
 *
 * One file has both: all parameters and buffers by their dotted names, as any reader of safetensors
 * reads them, and under the text "etch_module" what is needed to make the module itself. It is
 *
 *   {"type": "Linear", "config": "{...}", "training": true,
 *    "parameters": {"weight": {"tensor": "fc1.weight", "frozen": true}, ...},
 *    "buffers": {"running_mean": {"tensor": "norm.running_mean"}, ...},
 *    "children": {"0": {...}, ...}}
 *
 * with own names and, as tensor, names in the file (a tied tensor's is one); frozen where it
 * requires no gradients. */

/* Writes m to path, as etch_safetensors_save does: all of it or nothing. Needs no open scope.
 * Whether m is compiled changes nothing. Reads data: a graph break. */
ETCH_API etch_status etch_module_save(const etch_module *m, const char *path);

/* What a file lacks and what it has beside the tensors of a module. */
typedef struct etch_load_report {
    int nmissing, nunexpected;
    char **missing, **unexpected; /* names; owned */
} etch_load_report;
ETCH_API void etch_load_report_free(etch_load_report *report);

/* Reads the tensors of m, by name, from a file of safetensors, whoever wrote it. strict: what is
 * missing or unexpected is the error not_found, which names some; else both are left alone. For a
 * tied tensor one of its names will do; if several are there they must be equal (format). Sizes or
 * dtypes that are not the module's are the errors shape and dtype in any case. Everything is read
 * and checked before the first tensor is written (in place): an error leaves m as it was. */
ETCH_API etch_status etch_module_load(etch_module *m, const char *path, bool strict);
/* The same; *report is filled also where it is not strict, and on the error not_found. It is empty
 * after other errors. */
ETCH_API etch_status etch_module_load_report(etch_module *m, const char *path, bool strict,
                                             etch_load_report *report);

/* Makes a module of a type from its config (NULL: none), without the tensors of the file, which
 * take the places of its own. */
typedef etch_module *(*etch_module_maker)(const char *config);
/* Says how modules of that type are made. The ready-made layers are registered. Error: a type that
 * somebody else has registered (invalid_argument). */
ETCH_API etch_status etch_module_register_type(const char *type, etch_module_maker make);

/* A new module as etch_module_save wrote it: not compiled, without hooks, on the thread's current
 * device. Children that the maker of a type does not make itself are added. NULL with the error
 * not_found (no description in the file; a type that is not registered, which the text names),
 * format (a description that does not parse, or does not fit the modules that were made or the
 * tensors) or what a maker has set. Draws random numbers, which go. */
ETCH_API etch_module *etch_module_from_file(const char *path);

/* ---- filling parameters ---- */

/* All zero is the default. */
typedef struct etch_init_options {
    size_t struct_size; /* set by the etch_nn_init macro */
    double low, high;   /* uniform: 0 and 0: 0 to 1. trunc_normal: the cuts, 0 and 0: -2 to 2 */
    double mean;        /* normal, trunc_normal */
    double std;         /* the same; 0: 1 */
    double value;       /* constant */
    double gain;        /* xavier, orthogonal; 0: 1 */
    double slope;       /* kaiming: of the leaky relu that follows; 0: relu */
    bool fan_out;       /* kaiming: keeps the variance of gradients, not that of results */
} etch_init_options;

/* Fills t (floating point, written in place) in a way that has a name:
 *
 *   zeros, ones, constant
 *   uniform          in [low, high)
 *   normal           of mean and std
 *   trunc_normal     the same, drawn within [low, high] only
 *   xavier_uniform   in +-b, b = gain sqrt(6 / (fan_in + fan_out)); Glorot and Bengio 2010
 *   xavier_normal    of std gain sqrt(2 / (fan_in + fan_out))
 *   kaiming_uniform  in +-b, b = sqrt(6 / ((1 + slope^2) fan_in)); He et al. 2015
 *   kaiming_normal   of std sqrt(2 / ((1 + slope^2) fan_in))
 *   orthogonal       rows, or columns where there are fewer, that are orthonormal times gain, of a
 *                    tensor seen as [size 0, all others]; Saxe et al. 2013
 *
 * A weight is [out, in, ...]: fan_in is in times the sizes behind it, fan_out out times these. From
 * the process's generator, in f32 (f64 of f64). Errors: not_found (no such name), shape (fans and
 * orthogonal need two dimensions), dtype, invalid_argument (low above high, a std below 0). */
ETCH_API etch_status etch_nn_init_with(etch_tensor *t, const char *name,
                                       const etch_init_options *options);
#ifndef __cplusplus
/* etch_nn_init(w, "normal", .std = 0.02) */
#define etch_nn_init(t, name, ...)                                                                 \
    etch_nn_init_with(t, name,                                                                     \
                      &(etch_init_options){.struct_size = sizeof(etch_init_options), __VA_ARGS__})
#endif

/* ---- ready-made layers ----
 *
 * Each names its parameters and computes as PyTorch's layer of that name does, in operators of
 * etch/ops.h. Their making needs no open scope. They draw their parameters from the process's
 * generator. NULL with the error set on failure; what does not fit is the error of their calls,
 * which name the layer, what was expected and what came. Statistics of half types are computed in
 * f32 and rounded once. N is the batch and may be absent where it is in brackets. */

/* y = x weight^T + bias, of [..., in]: [..., out]; weight [out, in] and bias [out] uniform in
 * +-1/sqrt(in). */
ETCH_API etch_module *etch_nn_linear(int64_t in, int64_t out, etch_dtype dtype);
/* The same, with a bias or without. */
ETCH_API etch_module *etch_nn_linear_with(int64_t in, int64_t out, etch_dtype dtype, bool bias);

/* Pointwise, without parameters. GELU: x Phi(x); with tanh its approximation. */
ETCH_API etch_module *etch_nn_relu(void);
ETCH_API etch_module *etch_nn_gelu(bool approximate_tanh);
ETCH_API etch_module *etch_nn_silu(void);
ETCH_API etch_module *etch_nn_tanh(void);
ETCH_API etch_module *etch_nn_sigmoid(void);
/* In training each element is 0 with probability p (0 to 1), else divided by 1 - p; x itself
 * otherwise. */
ETCH_API etch_module *etch_nn_dropout(double p);
/* Dimensions start to end (negative ones from the end) become one. */
ETCH_API etch_module *etch_nn_flatten(int start, int end);

/* All zero is the default. */
typedef struct etch_conv_options {
    size_t struct_size;  /* set by the macros */
    int64_t stride[2];   /* of height and width; 0: 1, for width: as height. Conv1d: the first */
    int64_t padding[2];  /* zeros on both sides; for width: -1 for none, 0: as height */
    int64_t dilation[2]; /* as stride */
    int64_t groups;      /* 0: 1; divides in and out */
    bool no_bias;
} etch_conv_options;
/* [(N), in, L] to [(N), out, L'] and [(N), in, H, W] to [(N), out, H', W'], where
 * L' = (L + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down. weight
 * [out, in / groups, kernel...] and bias [out] uniform in +-1/sqrt(in / groups * kernel...). */
ETCH_API etch_module *etch_nn_conv1d_with(int64_t in, int64_t out, int64_t kernel, etch_dtype dtype,
                                          const etch_conv_options *options);
ETCH_API etch_module *etch_nn_conv2d_with(int64_t in, int64_t out, etch_shape kernel,
                                          etch_dtype dtype, const etch_conv_options *options);

typedef struct etch_pool_options {
    size_t struct_size;   /* set by the macros */
    int64_t stride[2];    /* 0: as the kernel */
    int64_t padding[2];   /* of -infinity for max; of zeros, which count, for avg; as above */
    int64_t dilation[2];  /* of max alone, as above */
    bool ceil_mode;       /* a last window may reach beyond the end */
    bool exclude_padding; /* of avg alone: the padding does not count */
    int64_t divisor;      /* of avg alone: other than the number of elements */
} etch_pool_options;
/* Of windows of kernel [h, w], [(N), C, H, W] to [(N), C, H', W']: the largest element, or the
 * mean. Padding is at most half of the kernel. Of equal elements the first one gets the gradient,
 * of NaNs the last. */
ETCH_API etch_module *etch_nn_max_pool2d_with(etch_shape kernel, const etch_pool_options *options);
ETCH_API etch_module *etch_nn_avg_pool2d_with(etch_shape kernel, const etch_pool_options *options);

typedef struct etch_norm_options {
    size_t struct_size; /* set by the macros */
    double eps;         /* 0: 1e-5; rms_norm: 2^-23, of f64 2^-52 */
    double momentum;    /* batch norm; 0: 0.1; below 0: means over all batches so far */
    bool no_affine;     /* neither weight nor bias */
    bool no_bias;       /* layer norm: weight alone */
    bool no_statistics; /* batch norm: those of the batch, evaluated too */
} etch_norm_options;
/* (x - mean) / sqrt(var + eps) weight + bias, over the last dimensions, which are `sizes`. */
ETCH_API etch_module *etch_nn_layer_norm_with(etch_shape sizes, etch_dtype dtype,
                                              const etch_norm_options *options);
/* x / sqrt(mean(x^2) + eps) weight, likewise. Zhang and Sennrich 2019. */
ETCH_API etch_module *etch_nn_rms_norm_with(etch_shape sizes, etch_dtype dtype,
                                            const etch_norm_options *options);
/* Over all but the channels, [N, C] or [N, C, L], and [N, C, H, W]. In training by mean and
 * variance of the batch, which move the buffers running_mean and running_var (the variance with
 * n - 1) by momentum, in place, and num_batches_tracked by 1; else by the buffers. Ioffe and
 * Szegedy 2015. Error: one value a channel in training (shape). */
ETCH_API etch_module *etch_nn_batch_norm1d_with(int64_t channels, etch_dtype dtype,
                                                const etch_norm_options *options);
ETCH_API etch_module *etch_nn_batch_norm2d_with(int64_t channels, etch_dtype dtype,
                                                const etch_norm_options *options);
/* Over groups of channels, [N, C, ...]. Wu and He 2018. */
ETCH_API etch_module *etch_nn_group_norm_with(int64_t groups, int64_t channels, etch_dtype dtype,
                                              const etch_norm_options *options);

/* Rows of weight [count, width], which is normal, for integers: [...] to [..., width]. An index out
 * of range is the error index when the data is there. */
ETCH_API etch_module *etch_nn_embedding(int64_t count, int64_t width, etch_dtype dtype);

typedef struct etch_attention_options {
    size_t struct_size; /* set by the macro */
    bool no_bias;
    bool causal;    /* a query sees no key behind it */
    double dropout; /* of the attention weights, in training */
} etch_attention_options;
/* etch_scaled_dot_product_attention in each head, q, k and v projected by in_proj_weight
 * [3 width, width] and in_proj_bias, the heads' results by the child out_proj. Vaswani et al. 2017.
 * Takes [(N), L, width], or query [(N), L, width], key and value [(N), S, width], or these and a
 * mask, bool (true: not seen) or of numbers that are added, which broadcasts to [N, heads, L, S]
 * ([heads, L, S] without N). Gives [(N), L, width], and where there is room for two the weights,
 * averaged over the heads, [(N), L, S]: these take memory for all scores. */
ETCH_API etch_module *etch_nn_multihead_attention_with(int64_t width, int64_t heads,
                                                       etch_dtype dtype,
                                                       const etch_attention_options *options);

/* One step. LSTM: x [(N), in], or x, h and c [(N), hidden], gives h', or h' and c'; GRU: x, or x
 * and h, gives h'. Without them the state is zeros. weight_ih [4 or 3 hidden, in], weight_hh [...,
 * hidden], bias_ih and bias_hh, uniform in +-1/sqrt(hidden); the gates are in PyTorch's order:
 * input, forget, cell, output; reset, update, new. Hochreiter and Schmidhuber 1997; Cho et al.
 * 2014. */
ETCH_API etch_module *etch_nn_lstm_cell(int64_t in, int64_t hidden, etch_dtype dtype);
ETCH_API etch_module *etch_nn_gru_cell(int64_t in, int64_t hidden, etch_dtype dtype);

/* Runs the children one after another, named "0", "1", ...; takes them over, even when it fails. */
ETCH_API etch_module *etch_nn_sequential(etch_module *const *children, int n);

#ifndef __cplusplus
/* etch_nn_conv2d(3, 8, ETCH_SHAPE(3, 3), ETCH_F32, .padding = {1}) and the like. */
#define etch_nn_conv1d(in, out, kernel, dtype, ...)                                                \
    etch_nn_conv1d_with(                                                                           \
        in, out, kernel, dtype,                                                                    \
        &(etch_conv_options){.struct_size = sizeof(etch_conv_options), __VA_ARGS__})
#define etch_nn_conv2d(in, out, kernel, dtype, ...)                                                \
    etch_nn_conv2d_with(                                                                           \
        in, out, kernel, dtype,                                                                    \
        &(etch_conv_options){.struct_size = sizeof(etch_conv_options), __VA_ARGS__})
#define etch_nn_max_pool2d(kernel, ...)                                                            \
    etch_nn_max_pool2d_with(                                                                       \
        kernel, &(etch_pool_options){.struct_size = sizeof(etch_pool_options), __VA_ARGS__})
#define etch_nn_avg_pool2d(kernel, ...)                                                            \
    etch_nn_avg_pool2d_with(                                                                       \
        kernel, &(etch_pool_options){.struct_size = sizeof(etch_pool_options), __VA_ARGS__})
#define ETCH_NORM_(...)                                                                            \
    &(etch_norm_options) { .struct_size = sizeof(etch_norm_options), __VA_ARGS__ }
#define etch_nn_layer_norm(sizes, dtype, ...)                                                      \
    etch_nn_layer_norm_with(sizes, dtype, ETCH_NORM_(__VA_ARGS__))
#define etch_nn_rms_norm(sizes, dtype, ...)                                                        \
    etch_nn_rms_norm_with(sizes, dtype, ETCH_NORM_(__VA_ARGS__))
#define etch_nn_batch_norm1d(channels, dtype, ...)                                                 \
    etch_nn_batch_norm1d_with(channels, dtype, ETCH_NORM_(__VA_ARGS__))
#define etch_nn_batch_norm2d(channels, dtype, ...)                                                 \
    etch_nn_batch_norm2d_with(channels, dtype, ETCH_NORM_(__VA_ARGS__))
#define etch_nn_group_norm(groups, channels, dtype, ...)                                           \
    etch_nn_group_norm_with(groups, channels, dtype, ETCH_NORM_(__VA_ARGS__))
#define etch_nn_multihead_attention(width, heads, dtype, ...)                                      \
    etch_nn_multihead_attention_with(                                                              \
        width, heads, dtype,                                                                       \
        &(etch_attention_options){.struct_size = sizeof(etch_attention_options), __VA_ARGS__})
#endif

/* ---- weights of few bits ---- */

/* A weight w [out, in] (f32, bf16 or f16) as integers, for products with few rows, which take as
 * long as reading the weight does: bits is 8 (-127 to 127) or 4 (-7 to 7), and a scale says what a
 * 1 is worth, for a whole row (group 0) or for each `group` columns (a multiple of 8 that divides
 * `in`; 32 to 128 are usual for 4 bits). The scale is the largest absolute value / 127 or 7, the
 * integer the nearest multiple: |w - integer scale| <= scale / 2 (1 + 2^-20). A row or group with a
 * NaN or an infinity has the scale NaN.
 *
 * *packed is what etch_linear_q takes, i8 of 8 bits and u8 of 4, as [out / 16, in / 4 or 8, 16, 4]
 * (rounded up); *scales is [in / group or 1, out], f32 (of etch_quantize_with: or bf16). Both
 * belong to the innermost scope, and are made by the operators etch_quantize_scales and
 * etch_quantize_weight; etch_dequantize_weight gives the numbers back. No gradients flow through
 * any of it.
 *
 * etch_linear_q(x, packed, scales, bias): x [..., in] to [..., out], as etch_linear with the
 * numbers w' that the integers stand for. In x, each block of 128 columns (or of a group, if that
 * is shorter) is rounded to 8 bits with a scale of its own, s = the largest absolute value / 127:
 * products of integers and their sums are exact. So
 *
 *   |y - sum x w'| <= sum over blocks of (s / 2 + 2^-22 max|x|) sum |w'| + n 2^-22 sum |x w'|
 *
 * for n blocks, plus n times 2^-149 and one rounding to the dtype of x. (Subnormal scales are
 * rounded up, by up to 2^-149.) A block with a NaN or an
 * infinity makes the row NaN. All instruction sets, eager and compiled code give the same bits. An
 * x of f64 is not rounded, but multiplied by w' in f64: a slow reference. The bias is of x's dtype
 * and added to the rounded product. The gradient of x is that of etch_linear with w'. */
ETCH_API etch_status etch_quantize(etch_tensor *w, int bits, int64_t group, etch_tensor **packed,
                                   etch_tensor **scales);
/* The same with scales of f32 or bf16. Those of bf16 are half of the bytes, which counts where
 * groups are short: 4 bits in groups of 32 are 4.5 bits a weight in place of 5. A scale is rounded
 * to bf16 (to nearest) before the integers are, which are multiples of the rounded one: numbers lie
 * further apart by 2^-8 at most, and the bounds above hold as they are. No scale becomes infinite
 * or, above 2^-134, 0, since bf16 has the exponents of f32; below 2^-126 it has fewer bits, and
 * |w - integer scale| may be up to 2^-127 more. Another dtype is the error dtype. */
ETCH_API etch_status etch_quantize_with(etch_tensor *w, int bits, int64_t group, etch_dtype dtype,
                                        etch_tensor **packed, etch_tensor **scales);

/* ---- losses ----
 *
 * Of an input of floating point and a target, with the semantics of PyTorch's functions of these
 * names: a tensor of the input's dtype (half types are computed in f32 and rounded once), of one
 * element or, not reduced, of the input's sizes (cross entropy: without the dimension of the
 * classes), owned by the innermost scope. They are made of operators of etch/ops.h, and so have
 * gradients and are traced; no data is read. Sizes that differ are an error, not broadcast. NULL
 * with the error shape, dtype, invalid_argument or null_argument, which says what was expected and
 * what came. */

typedef enum etch_reduction {
    ETCH_REDUCE_MEAN, /* over all elements; of no elements NaN */
    ETCH_REDUCE_SUM,
    ETCH_REDUCE_NONE,
    ETCH_REDUCE_BATCHMEAN /* the sum divided by size 0: the mean that KL is defined by */
} etch_reduction;

/* All zero is the default. Tensors are borrowed. */
typedef struct etch_loss_options {
    size_t struct_size; /* set by the macros */
    etch_reduction reduction;
    etch_tensor *weight;     /* of each class, [C]; bce: broadcasts to the input */
    etch_tensor *pos_weight; /* bce: of what is true; broadcasts to the input */
    bool ignore;             /* targets of ignore_index count nothing; else those of -100 */
    int64_t ignore_index;
    double label_smoothing; /* cross entropy: the part of 1 that all classes share */
    double beta;            /* smooth L1: where the parabola ends; 0: 1 */
    double delta;           /* Huber: the same; 0: 1 */
    bool log_target;        /* KL: the target is log probabilities, too */
} etch_loss_options;

/* -w[t] log(softmax(x)[t]), x [N, C, ...] or [C] and the target t
 *
 * - of integers, [N, ...] or []: classes 0 to C - 1, another number but the one ignored is the
 *   error index when the data is there. The mean is divided by the sum of w[t] (without weights: by
 *   how many are not ignored), and is NaN where that is 0. Smoothing by s takes
 *   (1 - s) times that and s / C times the sum over all classes, reduced likewise.
 * - of floating point, sizes as x: the sum over classes of -w p log(softmax(x)), p the target
 *   times 1 - s plus s / C; the mean is divided by the number of rows.
 *
 * One log-softmax, whatever is asked. */
ETCH_API etch_tensor *etch_nn_cross_entropy_with(etch_tensor *input, etch_tensor *target,
                                                 const etch_loss_options *options);
/* The same of log probabilities, for classes: -w[t] x[t]. */
ETCH_API etch_tensor *etch_nn_nll_loss_with(etch_tensor *input, etch_tensor *target,
                                            const etch_loss_options *options);
/* (x - t)^2, |x - t|. */
ETCH_API etch_tensor *etch_nn_mse_loss_with(etch_tensor *input, etch_tensor *target,
                                            const etch_loss_options *options);
ETCH_API etch_tensor *etch_nn_l1_loss_with(etch_tensor *input, etch_tensor *target,
                                           const etch_loss_options *options);
/* d = |x - t|: below beta d^2 / (2 beta), else d - beta / 2. */
ETCH_API etch_tensor *etch_nn_smooth_l1_loss_with(etch_tensor *input, etch_tensor *target,
                                                  const etch_loss_options *options);
/* Up to delta d^2 / 2, else delta (d - delta / 2). */
ETCH_API etch_tensor *etch_nn_huber_loss_with(etch_tensor *input, etch_tensor *target,
                                              const etch_loss_options *options);
/* w ((1 - t) x + (1 + (pos_weight - 1) t) log(1 + exp(-x))), of logits x and t of 0 to 1. Its
 * gradient is exact at 0, too. */
ETCH_API etch_tensor *etch_nn_bce_with_logits_with(etch_tensor *input, etch_tensor *target,
                                                   const etch_loss_options *options);
/* t (log(t) - x), of log probabilities x; 0 where t is. With log_target exp(t) (t - x). */
ETCH_API etch_tensor *etch_nn_kl_div_with(etch_tensor *input, etch_tensor *target,
                                          const etch_loss_options *options);

#ifndef __cplusplus
/* etch_nn_cross_entropy(logits, classes, .label_smoothing = 0.1) and the like. */
#define ETCH_LOSS_(...)                                                                            \
    &(etch_loss_options) { .struct_size = sizeof(etch_loss_options), __VA_ARGS__ }
#define etch_nn_cross_entropy(input, target, ...)                                                  \
    etch_nn_cross_entropy_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#define etch_nn_nll_loss(input, target, ...)                                                       \
    etch_nn_nll_loss_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#define etch_nn_mse_loss(input, target, ...)                                                       \
    etch_nn_mse_loss_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#define etch_nn_l1_loss(input, target, ...)                                                        \
    etch_nn_l1_loss_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#define etch_nn_smooth_l1_loss(input, target, ...)                                                 \
    etch_nn_smooth_l1_loss_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#define etch_nn_huber_loss(input, target, ...)                                                     \
    etch_nn_huber_loss_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#define etch_nn_bce_with_logits(input, target, ...)                                                \
    etch_nn_bce_with_logits_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#define etch_nn_kl_div(input, target, ...)                                                         \
    etch_nn_kl_div_with(input, target, ETCH_LOSS_(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
