/* What follows a product: addmm's alpha times that, and self, times beta, before it; a relaxed one's
 * bias row, relu and gelu, where the library does not do them. */
#include "example.h"

struct etch_args {
    const ETCH_C *c;
    const ETCH_T *self;
    void *out;
    long long m, n, self_row, self_col;
    ETCH_C alpha, beta;
    int scale, scale_self, relu, gelu;
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
        if (p.relu) c = c < 0 ? 0 : c;
        if (p.gelu) {
            const ETCH_C x = (ETCH_C)0.7978845608028654 * (c + (ETCH_C)0.044715 * c * c * c);
            /* 1.0f: integers have no tanh (nor gelu, but the text must compile). */
            c = (ETCH_C)0.5 * c * (1 + (ETCH_C)tanh(1.0f * x));
        }
        STORE(p.out, i, c);
    }
}
