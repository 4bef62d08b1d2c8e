/* Products by the libraries (of integers: by our own loops), one thread each: for kernels that
 * bring their own tiles. */
#ifndef ETCH_BACKENDS_CPU_LIBRARY_H
#define ETCH_BACKENDS_CPU_LIBRARY_H

#include "core/base/base.h"
#include "core/tensor/tensor.h"

/* c = a times b, row-major, or with an operand that lies transposed; of floats also added to c. */
typedef struct library_product {
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc, m, n, k;
    bool a_transposed, b_transposed, adds;
} library_product;

/* f32, f64, or integers, which wrap. Products of a dtype run between enter (false: the error is
 * set) and leave, on any thread; false: no memory. */
bool etch__library_enter(etch_dtype type);
void etch__library_leave(etch_dtype type);
bool etch__library_product(etch_dtype type, const library_product *l);

#endif
