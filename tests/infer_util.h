/* Calls in normal form on tensors that have metadata only, for tests of inference. */
#ifndef TESTS_INFER_UTIL_H
#define TESTS_INFER_UTIL_H

#include "core/ops/rules.h"
#include "etch_test.h"

static inline etch_tensor meta(etch_dtype dtype, etch_shape s) {
    etch_tensor t = {.magic = TENSOR_ALIVE, .dtype = (uint8_t)dtype, .ndim = (uint8_t)s.n};
    for (int i = 0; i < s.n; i++) t.size[i] = s.v[i];
    t.numel = etch__row_major(s.n, t.size, t.stride);
    t.contiguous = 1;
    return t;
}

static inline etch_tensor strided(etch_dtype dtype, etch_shape s, etch_shape stride,
                                  int64_t offset) {
    etch_tensor t = meta(dtype, s);
    for (int i = 0; i < s.n; i++) t.stride[i] = stride.v[i];
    t.offset = offset;
    t.contiguous = etch__sizes_contiguous(s.n, t.size, t.stride);
    return t;
}

typedef struct args {
    etch_tensor *in[4];
    int nin;
    etch_scalar sc[4];
    int nsc;
    int64_t at[12];
    int nat;
} args;

#define TENSORS(...)                                                                               \
    .in = {__VA_ARGS__}, .nin = (int)(sizeof((etch_tensor *[]){__VA_ARGS__}) / sizeof(void *))
#define SCALARS(...)                                                                               \
    .sc = {__VA_ARGS__}, .nsc = (int)(sizeof((etch_scalar[]){__VA_ARGS__}) / sizeof(etch_scalar))
#define ATTRS(...)                                                                                 \
    .at = {__VA_ARGS__}, .nat = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static inline op_call call_of(op_id op, const args *a) {
    return (op_call){.op = (uint16_t)op,
                     .nin = (uint16_t)a->nin,
                     .nsc = (uint8_t)a->nsc,
                     .nat = (uint8_t)a->nat,
                     .in = a->in,
                     .sc = a->sc,
                     .at = a->at};
}

static inline etch_status infer(op_id op, tensor_meta *out, etch_dtype *compute, const args *a) {
    op_call call = call_of(op, a);
    return etch__infer(&call, out, compute);
}

#define ARGS(...) (&(args){__VA_ARGS__})

static inline void assert_dims(const int64_t *got, int n, etch_shape expected) {
    assert_int_equal(n, expected.n);
    for (int i = 0; i < n; i++) assert_int_equal(got[i], expected.v[i]);
}

/* Inference succeeds with these dtypes and sizes. */
#define GIVES(op, compute_, result, sizes, ...)                                                    \
    do {                                                                                           \
        tensor_meta m_;                                                                            \
        etch_dtype compute_got_;                                                                   \
        etch_clear_error();                                                                        \
        infer(op, &m_, &compute_got_, ARGS(__VA_ARGS__));                                          \
        assert_string_equal(etch_last_error(), "");                                                \
        assert_string_equal(etch_dtype_name(compute_got_), etch_dtype_name(compute_));             \
        assert_string_equal(etch_dtype_name(m_.dtype), etch_dtype_name(result));                   \
        assert_dims(m_.size, m_.ndim, sizes);                                                      \
    } while (0)

/* A view: sizes, strides, offset. */
#define VIEWS(op, sizes, strides, offset_, ...)                                                    \
    do {                                                                                           \
        tensor_meta m_;                                                                            \
        etch_clear_error();                                                                        \
        infer(op, &m_, NULL, ARGS(__VA_ARGS__));                                                   \
        assert_string_equal(etch_last_error(), "");                                                \
        assert_dims(m_.size, m_.ndim, sizes);                                                      \
        assert_dims(m_.stride, m_.ndim, strides);                                                  \
        assert_int_equal(m_.offset, offset_);                                                      \
    } while (0)

/* It fails with this code, and the text has these words in it. */
#define REFUSED(op, code, words, ...)                                                              \
    do {                                                                                           \
        tensor_meta m_;                                                                            \
        etch_clear_error();                                                                        \
        assert_int_equal(infer(op, &m_, NULL, ARGS(__VA_ARGS__)), code);                           \
        assert_int_equal(etch_last_status(), code);                                                \
        if (!strstr(etch_last_error(), words))                                                     \
            fail_msg("expected \"%s\" in \"%s\"", words, etch_last_error());                       \
        if (strncmp(etch_last_error(), etch__ops[op].name, strlen(etch__ops[op].name)))            \
            fail_msg("expected the operator's name in \"%s\"", etch_last_error());                 \
    } while (0)

#endif
