/* A mini vmap, by hand: how a function of one sample is mapped over a batch by stepping in between
 * its operator calls and their kernels.
 *
 * The body is called once, with the first sample of each argument. A table says which batch stands
 * behind which tensor. A mode sees each operator that the body calls: it lets it compute the
 * sample, so that the body goes on, and computes the batch beside it, by a rule. What stands behind
 * the body's result is the result of all samples.
 *
 * etch_vmap does the same one layer further out, with a rule for every operator, at any depth of
 * maps in maps, under gradients and the tracer, and without computing a sample of its own. */
#ifndef ETCH_EXAMPLES_MINI_VMAP_H
#define ETCH_EXAMPLES_MINI_VMAP_H

#include <etch/etch.h>

enum { MINI_MOST = 32 };

typedef struct mini {
    const etch_tensor *sample[MINI_MOST];
    etch_tensor *batch[MINI_MOST]; /* samples in dimension 0 */
    int n;
} mini;

/* NULL: it is the same for all samples. */
static inline etch_tensor *mini_batch_of(const mini *m, const etch_tensor *t) {
    for (int i = 0; i < m->n; i++)
        if (m->sample[i] == t) return m->batch[i];
    return NULL;
}

static inline etch_status mini_add(mini *m, const etch_tensor *sample, etch_tensor *batch) {
    if (!sample || !batch) return etch_last_status();
    if (m->n == MINI_MOST)
        return etch_set_error(ETCH_ERR_INVALID_ARGUMENT,
                              "mini_vmap: a body of that many operators");
    m->sample[m->n] = sample, m->batch[m->n++] = batch;
    return ETCH_OK;
}

/* ---- the rules ---- */

/* Samples broadcast from their last dimensions, batches must, too: dimensions of 1 behind the
 * batch make up for those that a sample lacks. */
static inline etch_tensor *mini_aligned(etch_tensor *batch, int ndim) {
    while (batch && etch_ndim(batch) < ndim + 1) batch = etch_unsqueeze(batch, 1);
    return batch;
}

static inline etch_tensor *mini_pointwise(const mini *m, const etch_op *op, const etch_value *args,
                                          int nargs, int ndim) {
    etch_value now[8];
    etch_tensor *out = NULL;
    for (int i = 0; i < nargs && i < 8; i++) {
        now[i] = args[i];
        if (args[i].tag != ETCH_VALUE_TENSOR) continue;
        etch_tensor *batch = mini_batch_of(m, args[i].tensor);
        if (batch && !(now[i].tensor = mini_aligned(batch, ndim))) return NULL;
    }
    return etch_op_call(op, now, nargs, &out, 1) == ETCH_OK ? out : NULL;
}

/* A product of matrices, for each sample. */
static inline etch_tensor *mini_product(const mini *m, const etch_value *args) {
    etch_tensor *a = mini_batch_of(m, args[0].tensor), *b = mini_batch_of(m, args[1].tensor);
    return etch_matmul(a ? a : args[0].tensor, b ? b : args[1].tensor);
}

static inline bool mini_is_pointwise(const etch_op *op) {
    static const char *const names[] = {"sin", "tanh", "add.Tensor", "sub.Tensor", "mul.Tensor"};
    bool is = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) is = is || etch_op_is(op, names[i]);
    return is;
}

/* ---- between the calls and the kernels ---- */

static inline bool mini_sees(const mini *m, const etch_value *args, int nargs) {
    bool sees = false;
    for (int i = 0; i < nargs; i++)
        sees = sees || (args[i].tag == ETCH_VALUE_TENSOR && mini_batch_of(m, args[i].tensor));
    return sees;
}

static inline etch_status mini_handler(void *ctx, const etch_op *op, const etch_value *args,
                                       int nargs, etch_tensor **out, int nout) {
    mini *m = ctx;
    if (!mini_sees(m, args, nargs)) return ETCH_DECLINED;
    etch_status status = etch_redispatch(op, args, nargs, out, nout);
    if (status != ETCH_OK) return status;
    if (mini_is_pointwise(op))
        return mini_add(m, out[0], mini_pointwise(m, op, args, nargs, etch_ndim(out[0])));
    if (etch_op_is(op, "mm")) return mini_add(m, out[0], mini_product(m, args));
    return etch_set_error(ETCH_ERR_INVALID_ARGUMENT, "mini_vmap: an operator without a rule");
}

/* The samples in front, and the first one of them. */
static inline etch_status mini_argument(mini *m, etch_tensor *in, int64_t dim,
                                        etch_tensor **sample) {
    *sample = in;
    if (dim == ETCH_UNMAPPED) return ETCH_OK;
    *sample = etch_select(in, dim, 0);
    return mini_add(m, *sample, etch_movedim(in, ETCH_DIMS(dim), ETCH_DIMS(0)));
}

/* fn, of in_dims->n tensors with one result, over the samples of `in`. */
static inline etch_status mini_vmap(etch_fn_n fn, const etch_dims *in_dims, etch_tensor *const *in,
                                    etch_tensor **out) {
    mini m = {.n = 0};
    etch_tensor *sample[ETCH_MAX_DIMS], *one = NULL;
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < in_dims->n; i++)
        status = mini_argument(&m, in[i], in_dims->v[i], &sample[i]);
    etch_mode *mode = etch_mode_new(mini_handler, &m, .name = "mini_vmap");
    if (status == ETCH_OK && mode)
        ETCH_WITH_MODE (mode) { status = fn(NULL, sample, in_dims->n, &one, 1); }
    etch_mode_free(mode);
    if (status != ETCH_OK || !mode) return etch_last_status();
    *out = mini_batch_of(&m, one);
    return *out ? ETCH_OK
                : etch_set_error(ETCH_ERR_INVALID_ARGUMENT, "mini_vmap: the same for all samples");
}

#endif
