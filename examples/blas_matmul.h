/* A custom operator: mylib::blas_matmul, the matrix product of OpenBLAS's CBLAS. */
#ifndef ETCH_EXAMPLES_BLAS_MATMUL_H
#define ETCH_EXAMPLES_BLAS_MATMUL_H

#include <etch/etch.h>

/* Registers it; NULL with the library's error. Call it once. */
const etch_op *register_blas_matmul(void);

#endif
