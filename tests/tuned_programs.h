/* Programs for the suites of tuning and relaxed numerics: kernels of each kind, and products that
 * have something to join, with the comparison to the same program in f64.
 * Operands lie at `where`. */
#ifndef ETCH_TESTS_TUNED_PROGRAMS_H
#define ETCH_TESTS_TUNED_PROGRAMS_H

#include <etch/etch.h>

static etch_device where;

/* ---- kernels ---- */

static inline etch_tensor *mixed(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_mul(x, y), etch_tanh(x));
}

static inline etch_tensor *rows(etch_tensor *x, etch_tensor *y) {
    return etch_sum_dim(etch_mul(x, y), ETCH_SHAPE(1), false);
}

static inline etch_tensor *columns(etch_tensor *x, etch_tensor *y) {
    return etch_sum_dim(etch_mul(x, y), ETCH_SHAPE(0), false);
}

static inline etch_tensor *all(etch_tensor *x, etch_tensor *y) { return etch_sum(etch_mul(x, y)); }

static inline etch_tensor *norm(etch_tensor *x, etch_tensor *y) {
    return etch_softmax(etch_add(x, y), -1);
}

static inline etch_tensor *turned(etch_tensor *x, etch_tensor *y) {
    return etch_add(etch_t(x), etch_sin(etch_t(y)));
}

/* ---- products ---- */

enum { M = 96, K = 80, N = 72 };

static inline etch_tensor *operand_of(etch_dtype dtype, etch_shape shape) {
    return etch_to_device(etch_to(etch_randn(ETCH_F32, shape), dtype), where);
}

static inline etch_tensor *bias_relu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu(etch_add(etch_mm(x, w), b));
}

static inline etch_tensor *bias_gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_gelu_with(etch_add(b, etch_mm(x, w)), true);
}

static inline etch_tensor *after_each_other(etch_tensor *a, etch_tensor *b) {
    etch_tensor *const list[] = {a, b};
    return etch_cat(list, 2, 0);
}

static inline etch_tensor *odd_bias(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    etch_tensor *two = after_each_other(b, b);
    return etch_relu(etch_add(etch_mm(x, w), etch_slice(two, 0, 1, N + 1, 1)));
}

static inline etch_tensor *wide(etch_tensor *t) {
    return etch_to(etch_to_device(t, ETCH_CPU), ETCH_F64);
}

/* As the program in f64 says, as far as the dtype goes. */
static inline bool close_to(etch_tensor *got, etch_fn3 body, etch_tensor *x, etch_tensor *w,
                            etch_tensor *b) {
    if (!got) return false;
    double bound = etch_dtype_of(got) == ETCH_F32 ? 2e-5 : 4e-2;
    etch_tensor *want = body(wide(x), wide(w), wide(b));
    return etch_allclose(wide(got), want, bound, bound, false);
}

#endif
