/* addmm after its product: alpha times that, and self, times beta, before it. */
#include "example.h"

struct etch_args {
    const ETCH_C *c;
    const ETCH_T *self;
    void *out;
    long long m, n, self_row, self_col;
    ETCH_C alpha, beta;
    int scale, scale_self;
};
extern "C" __global__ void etch_epilogue(const __grid_constant__ etch_args p) {
    const index_t n = p.n, total = p.m * p.n;
    index_t i = blockIdx.x * (index_t)blockDim.x + threadIdx.x;
    for (; i < total; i += (index_t)gridDim.x * blockDim.x) {
        ETCH_C c = p.c[i];
        if (p.scale) c = p.alpha * c;
        if (p.self) {
            ETCH_C self = LOAD(p.self[i / n * p.self_row + i % n * p.self_col]);
            if (p.scale_self) self = p.beta * self;
            c = self + c;
        }
        STORE(p.out, i, c);
    }
}
