/* mylib::blas_matmul: C = A B by cblas_sgemm or cblas_dgemm, for any strides.
 *
 * CBLAS takes a matrix whose rows, or columns, are contiguous. Another one is copied first. */
#include "blas_matmul.h"

#include <cblas.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the result looks like ---- */

static etch_status matmul_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor_spec *out, int nout) {
    const etch_tensor *a = args[0].tensor, *b = args[1].tensor;
    etch_dtype dtype = etch_dtype_of(a);
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (etch_ndim(a) != 2 || etch_ndim(b) != 2 || etch_size(a, 1) != etch_size(b, 0))
        return etch_set_error(ETCH_ERR_SHAPE, "blas_matmul: expected [m, k] and [k, n]");
    if (dtype != etch_dtype_of(b) || (dtype != ETCH_F32 && dtype != ETCH_F64))
        return etch_set_error(ETCH_ERR_DTYPE, "blas_matmul: expected two f32 or two f64 tensors");
    if (etch_size(a, 0) > INT_MAX || etch_size(a, 1) > INT_MAX || etch_size(b, 1) > INT_MAX)
        return etch_set_error(ETCH_ERR_SHAPE, "blas_matmul: a size does not fit in an int");
    out[0].dtype = dtype;
    out[0].sizes = ETCH_SHAPE(etch_size(a, 0), etch_size(b, 1));
    return ETCH_OK;
}

/* ---- operands ---- */

typedef struct operand {
    const void *data;
    enum CBLAS_TRANSPOSE transpose;
    int step; /* elements from one row (transposed: column) to the next */
    void *copy;
} operand;

/* Whether lines of `length` elements that lie `step` apart are what CBLAS takes. */
static bool lines_fit(int64_t lines, int64_t length, int64_t unit, int64_t step) {
    return (unit == 1 || length == 1) && (lines == 1 || (step >= length && step <= INT_MAX));
}

static int step_of(int64_t lines, int64_t length, int64_t step) {
    int64_t least = length > 1 ? length : 1;
    return (int)(lines == 1 || step < least ? least : step);
}

static bool copy_rows(operand *o, const etch_tensor *t) {
    int64_t rows = etch_size(t, 0), columns = etch_size(t, 1);
    int64_t bytes = (int64_t)etch_dtype_size(etch_dtype_of(t));
    const char *from = o->data;
    char *to = o->copy = malloc((size_t)(rows * columns * bytes));
    if (!to) return false;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++, to += bytes)
            memcpy(to, from + (i * etch_stride(t, 0) + j * etch_stride(t, 1)) * bytes,
                   (size_t)bytes);
    o->data = o->copy;
    o->step = (int)columns;
    return true;
}

static bool make_operand(operand *o, const etch_tensor *t) {
    int64_t rows = etch_size(t, 0), columns = etch_size(t, 1);
    int64_t down = etch_stride(t, 0), right = etch_stride(t, 1);
    *o = (operand){etch_data(t), CblasNoTrans, 1, NULL};
    if (!o->data) return false;
    if (lines_fit(rows, columns, right, down)) {
        o->step = step_of(rows, columns, down);
        return true;
    }
    if (lines_fit(columns, rows, down, right)) {
        o->transpose = CblasTrans;
        o->step = step_of(columns, rows, right);
        return true;
    }
    return copy_rows(o, t);
}

/* ---- the product ---- */

static void multiply(etch_dtype dtype, int m, int n, int k, const operand *a, const operand *b,
                     void *c) {
    if (dtype == ETCH_F32)
        cblas_sgemm(CblasRowMajor, a->transpose, b->transpose, m, n, k, 1, a->data, a->step,
                    b->data, b->step, 0, c, n);
    else
        cblas_dgemm(CblasRowMajor, a->transpose, b->transpose, m, n, k, 1, a->data, a->step,
                    b->data, b->step, 0, c, n);
}

static etch_status matmul_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor *const *out, int nout) {
    etch_tensor *a = args[0].tensor, *b = args[1].tensor, *c = out[0];
    operand oa = {0}, ob = {0};
    (void)ctx, (void)op, (void)nargs, (void)nout;
    if (etch_numel(c) == 0) return ETCH_OK;
    if (etch_size(a, 1) == 0) return etch_zero_(c) ? ETCH_OK : etch_last_status();
    bool ok = make_operand(&oa, a) && make_operand(&ob, b);
    if (ok)
        multiply(etch_dtype_of(c), (int)etch_size(a, 0), (int)etch_size(b, 1),
                 (int)etch_size(a, 1), &oa, &ob, etch_data_mut(c));
    free(oa.copy);
    free(ob.copy);
    etch_data_end(a), etch_data_end(b), etch_data_end(c);
    return ok ? ETCH_OK : etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL);
}

const etch_op *register_blas_matmul(void) {
    etch_op_definition definition = {
        .struct_size = sizeof definition, .cpu = matmul_kernel, .shape = matmul_shape};
    return etch_op_register("mylib::blas_matmul(Tensor a, Tensor b) -> Tensor", &definition);
}
