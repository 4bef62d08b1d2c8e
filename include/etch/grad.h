/* Gradients: reverse-mode differentiation of what operators have computed.
 *
 *     etch_requires_grad_(w, true);
 *     ETCH_SCOPE {
 *         etch_tensor *loss = etch_mean(etch_square(etch_sub(etch_mm(x, w), y)));
 *         etch_backward(loss);
 *         // etch_grad_of(w) has the sizes and the dtype of w
 *     }
 *
 * An operator whose operand requires gradients notes itself on a tape, and its result requires
 * gradients, too; only floating-point tensors can. Tensors that the user made to require gradients
 * are *leaves*: etch_backward adds to what etch_grad_of returns for them. A result keeps what its
 * derivative reads alive; the tape goes with the last tensor that depends on it.
 *
 * The derivative of every operator is made of operator calls. Gradients have the sizes, dtype and
 * device of what they belong to. Where several gradients meet they are added one by one, that of
 * the operator called last first: so the bits of a gradient follow from the program alone. Inside a
 * compiled function all of it is traced like any other operators.
 *
 * A tape may be made on one thread and run on another; one tape is run by one thread at a time. */
#ifndef ETCH_GRAD_H
#define ETCH_GRAD_H

#include <etch/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what requires gradients ---- */

/* Makes a leaf of a tensor that no operator with gradients has made, or (off) an ordinary tensor of
 * a leaf, whose gradient is dropped. Returns t; NULL with an error for a tensor that is not of
 * floating-point numbers (dtype), or that an operator computed from others that require gradients
 * (invalid_argument). */
ETCH_API etch_tensor *etch_requires_grad_(etch_tensor *t, bool on);
/* Whether gradients flow to t: a leaf, or a result. false for NULL. Never a graph break. */
ETCH_API bool etch_requires_grad(const etch_tensor *t);
/* Whether no operator with gradients has made it. */
ETCH_API bool etch_is_leaf(const etch_tensor *t);

/* ---- running backward ---- */

typedef struct etch_grad_options {
    size_t struct_size; /* sizeof(etch_grad_options) */
    bool retain_graph;  /* keep what derivatives read, for another backward over the same tape */
    bool create_graph;  /* gradients require gradients; implies retain_graph. What etch_backward
                           leaves in a leaf then holds the graph, and that the leaf, until
                           etch_zero_grad parts them: better use etch_grad */
    bool allow_unused;  /* etch_grad: NULL for an input that the outputs do not depend on */
} etch_grad_options;

/* The gradients of a loss of one element for all leaves that it depends on, added to what
 * etch_grad_of returns for each. The tape's saved values go: a second backward over it is the error
 * graph_freed. Errors: shape (more than one element), no_grad (t does not require gradients),
 * modified (a value that a derivative reads was written in place meanwhile: the text names the
 * operators, lines and versions), not_differentiable (an operator without a derivative). What was
 * added before an error stays. */
ETCH_API etch_status etch_backward(etch_tensor *loss);
/* The same for n outputs, each with a gradient of its sizes (grad_outputs or an entry may be NULL
 * where the output has one element: 1). A gradient of another floating dtype is rounded to that of
 * the output. options may be NULL. */
ETCH_API etch_status etch_backward_from(etch_tensor *const *outputs, int n,
                                        etch_tensor *const *grad_outputs,
                                        const etch_grad_options *options);
/* The gradients of the outputs for these inputs (leaves or results, any tensors that require
 * gradients) into grads[0..nin), owned by the innermost scope; no leaf changes. An input that the
 * outputs do not depend on is the error unused, or with allow_unused gets NULL. */
ETCH_API etch_status etch_grad(etch_tensor *const *outputs, int nout, etch_tensor *const *inputs,
                               int nin, etch_tensor *const *grad_outputs,
                               const etch_grad_options *options, etch_tensor **grads);

/* ---- what leaves have accumulated ---- */

/* The gradient of a leaf (or of a result after etch_retain_grad), borrowed: it lives until it is
 * dropped, and is written in place by later backward calls. NULL, and no error, where there is none
 * yet. */
ETCH_API etch_tensor *etch_grad_of(const etch_tensor *t);
/* Drops the gradient; t may have none. */
ETCH_API etch_status etch_zero_grad(etch_tensor *t);
/* Puts grad (counted; of t's sizes, dtype and device; NULL: none) in its place. */
ETCH_API etch_status etch_set_grad(etch_tensor *t, etch_tensor *grad);
/* Has backward keep the gradient of a result for etch_grad_of. */
ETCH_API etch_status etch_retain_grad(etch_tensor *t);

/* ---- hooks ---- */

/* Called with the gradient of a tensor once its last contribution is there, before it flows on;
 * what it returns takes its place (NULL without an error: it stays; with one: backward fails). */
typedef etch_tensor *(*etch_grad_hook)(void *ctx, etch_tensor *grad);
/* Hooks run in the order of adding. 0 with an error, else a number for etch_remove_grad_hook. */
ETCH_API int64_t etch_add_grad_hook(etch_tensor *t, etch_grad_hook hook, void *ctx);
ETCH_API void etch_remove_grad_hook(etch_tensor *t, int64_t number);

/* ---- blocks without gradients ---- */

/* Inside, operators note nothing and their results require no gradients. Per thread; blocks nest.
 * `break` and `continue` in it leave the block only. */
ETCH_API int etch_no_grad_begin(void);
ETCH_API void etch_no_grad_end(int outer);
typedef struct etch_no_grad_guard {
    int outer, open;
} etch_no_grad_guard;
static inline void etch_no_grad_leave(etch_no_grad_guard *g) { etch_no_grad_end(g->outer); }
#define ETCH_NO_GRAD ETCH_NO_GRAD_(__COUNTER__)
#define ETCH_NO_GRAD_(n) ETCH_NO_GRAD__(n)
#define ETCH_NO_GRAD__(n)                                                                          \
    for (etch_no_grad_guard etch_no_grad_##n                                                       \
         __attribute__((cleanup(etch_no_grad_leave))) = {etch_no_grad_begin(), 1};                 \
         etch_no_grad_##n.open; etch_no_grad_##n.open = 0)
/* Whether operators note themselves on this thread: not in such blocks, nor in ETCH_INFERENCE. */
ETCH_API bool etch_grad_enabled(void);

#ifdef __cplusplus
}
#endif
#endif
