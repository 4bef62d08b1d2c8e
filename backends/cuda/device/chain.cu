/* A product of any size and dtype by one chain an element, in ascending order of k. */
#include "example.h"

struct etch_args {
    const ETCH_T *a, *b;
    void *c;
    long long batch, m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col;
};
extern "C" __global__ void etch_chain(const __grid_constant__ etch_args p) {
    const index_t m = p.m, n = p.n, total = p.batch * m * n;
    index_t i = blockIdx.x * (index_t)blockDim.x + threadIdx.x;
    for (; i < total; i += (index_t)gridDim.x * blockDim.x) {
        const index_t line = i / n, batch = line / m, col = i - line * n, row = line - batch * m;
        const ETCH_T *a = p.a + batch * p.a_batch + row * p.a_row;
        const ETCH_T *b = p.b + batch * p.b_batch + col * p.b_col;
        ETCH_C acc = 0;
        #pragma unroll 4
        for (long long k = 0; k < p.k; k++) {
            ETCH_C x = LOAD(a[k * p.a_col]), y = LOAD(b[k * p.b_row]);
            acc = CHAIN(x, y, acc);
        }
        STORE(p.c, i, acc);
    }
}
