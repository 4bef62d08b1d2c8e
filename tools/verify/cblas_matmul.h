/* The example of a custom operator: "mylib::blas_matmul", the matrix product through CBLAS (what
 * NumPy calls), f32 and f64, any strides. A header, so that the tool, examples and tests can share
 * it. */
#ifndef ETCH_TOOLS_CBLAS_MATMUL_H
#define ETCH_TOOLS_CBLAS_MATMUL_H

#include <etch/etch.h>

#include <cblas.h>
#include <limits.h>

typedef struct blas_matrix {
    const void *data;
    int ld;
    CBLAS_TRANSPOSE trans;
} blas_matrix;

/* CBLAS takes rows or columns that lie without gaps; everything else is copied. */
static inline bool blas_matrix_of(etch_tensor *t, blas_matrix *m) {
    int64_t rows = etch_size(t, 0), columns = etch_size(t, 1);
    int64_t down = etch_stride(t, 0), right = etch_stride(t, 1);
    bool by_rows = (right == 1 || columns == 1) && down >= columns && down <= INT_MAX;
    bool by_columns = (down == 1 || rows == 1) && right >= rows && right <= INT_MAX;
    if (!by_rows && !by_columns) {
        t = etch_clone(t);
        by_rows = true, down = columns;
    }
    m->data = etch_data(t);
    m->trans = by_rows ? CblasNoTrans : CblasTrans;
    m->ld = (int)(by_rows ? down : right);
    if (m->ld < 1) m->ld = 1;
    return m->data != NULL;
}

static inline etch_status blas_kernel(void *ctx, const etch_op *op, const etch_value *args,
                                      int nargs, etch_tensor *const *out, int nout) {
    etch_tensor *a = args[0].tensor, *b = args[1].tensor;
    int64_t m = etch_size(a, 0), k = etch_size(a, 1), n = etch_size(b, 1);
    blas_matrix x, y;
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (m == 0 || n == 0) return ETCH_OK;
    if (k == 0) return etch_zero_(out[0]) ? ETCH_OK : etch_last_status();
    if (m > INT_MAX || n > INT_MAX || k > INT_MAX)
        return etch_set_error(ETCH_ERR_OVERFLOW, "mylib::blas_matmul: sizes beyond CBLAS's int");
    if (!blas_matrix_of(a, &x) || !blas_matrix_of(b, &y)) return etch_last_status();
    void *c = etch_data_mut(out[0]);
    if (etch_dtype_of(a) == ETCH_F32)
        cblas_sgemm(CblasRowMajor, x.trans, y.trans, (int)m, (int)n, (int)k, 1, x.data, x.ld,
                    y.data, y.ld, 0, c, (int)n);
    else
        cblas_dgemm(CblasRowMajor, x.trans, y.trans, (int)m, (int)n, (int)k, 1, x.data, x.ld,
                    y.data, y.ld, 0, c, (int)n);
    return ETCH_OK;
}

static inline etch_status blas_shape(void *ctx, const etch_op *op, const etch_value *args,
                                     int nargs, etch_tensor_spec *out, int nout) {
    const etch_tensor *a = args[0].tensor, *b = args[1].tensor;
    etch_dtype dtype = etch_dtype_of(a);
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (etch_ndim(a) != 2 || etch_ndim(b) != 2 || etch_size(a, 1) != etch_size(b, 0))
        return etch_set_error(ETCH_ERR_SHAPE, "mylib::blas_matmul: expected [m, k] and [k, n]");
    if (dtype != etch_dtype_of(b) || (dtype != ETCH_F32 && dtype != ETCH_F64))
        return etch_set_error(ETCH_ERR_DTYPE, "mylib::blas_matmul: expected two f32 or two f64");
    out[0] = (etch_tensor_spec){dtype, ETCH_SHAPE(etch_size(a, 0), etch_size(b, 1))};
    return ETCH_OK;
}

/* Registers it at the first call; NULL with the error set when that fails. Not
 * for several threads. */
static inline const etch_op *blas_op(void) {
    static const etch_op *op;
    static const etch_op_definition definition = {
        .struct_size = sizeof definition, .cpu = blas_kernel, .shape = blas_shape};
    if (!op) op = etch_op_register("mylib::blas_matmul(Tensor a, Tensor b) -> Tensor", &definition);
    return op;
}

static inline etch_tensor *blas_matmul(etch_tensor *a, etch_tensor *b) {
    etch_value args[2] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                          {.tag = ETCH_VALUE_TENSOR, .tensor = b}};
    etch_tensor *c = NULL;
    return etch_op_call(blas_op(), args, 2, &c, 1) == ETCH_OK ? c : NULL;
}

#endif
