/* A relaxed product's bias row, relu and gelu, where the library does not do them. */
#include "example.h"

struct etch_args {
    const ETCH_C *c;
    const ETCH_T *bias;
    void *out;
    long long m, n, stride;
    int relu, gelu;
    ETCH_C alpha, beta;
};
extern "C" __global__ void etch_after(const __grid_constant__ etch_args p) {
    const index_t n = p.n, total = p.m * p.n;
    index_t i = blockIdx.x * (index_t)blockDim.x + threadIdx.x;
    for (; i < total; i += (index_t)gridDim.x * blockDim.x) {
        ETCH_C v = p.alpha * p.c[i];
        if (p.bias) v += p.beta * LOAD(p.bias[i % n * p.stride]);
        if (p.relu) v = v < 0 ? 0 : v;
        if (p.gelu) {
            const ETCH_C x = (ETCH_C)0.7978845608028654 * (v + (ETCH_C)0.044715 * v * v * v);
            v = (ETCH_C)0.5 * v * (1 + (ETCH_C)tanh(x));
        }
        STORE(p.out, i, v);
    }
}
