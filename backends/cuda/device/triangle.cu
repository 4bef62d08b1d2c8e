/* tril (LOWER) and triu, of elements that are WORDs. */
#include "example.h"

struct etch_args {
    const WORD *x;
    WORD *y;
    etch_dims dims;
    i64 n, rows, columns, diagonal;
};
extern "C" __global__ void etch_triangle(const __grid_constant__ etch_args a) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {
        const i64 c = i % a.columns, r = i / a.columns % a.rows;
        const bool keep = LOWER ? c - r <= a.diagonal : c - r >= a.diagonal;
        a.y[i] = keep ? a.x[place(a.dims, i)] : (WORD)0;
    }
}
