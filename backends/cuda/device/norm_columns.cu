/* softmax and log_softmax along an axis that is not the innermost, x[outer][n][inner]: a block of
 * 256 threads has 32 neighbours of the inner axis. */
#include "norm.cuh"

struct etch_args {
    const ETCH_0 *x;
    ETCH_1 *y;
    i64 outer, n, inner;
};
template <bool MAX> __device__ inline VALUE_0 fold(VALUE_0 v, VALUE_0 (*part)[32]) {
    const int t = threadIdx.x / 32, c = threadIdx.x % 32;
    part[t][c] = v;
    __syncthreads();
    for (int w = 4; w > 0; w /= 2) {
        if (t < w) part[t][c] = combine<MAX>(part[t][c], part[t + w][c]);
        __syncthreads();
    }
    v = part[0][c];
    __syncthreads();
    return v;
}
extern "C" __global__ void __launch_bounds__(256)
    etch_columns(const __grid_constant__ etch_args a) {
    __shared__ VALUE_0 part[8][32];
    const i64 strips = (a.inner + 31) / 32;
    for (i64 u = blockIdx.x; u < a.outer * strips; u += gridDim.x) {
        const i64 column = u % strips * 32 + threadIdx.x % 32;
        const i64 t = threadIdx.x / 32, n = column < a.inner ? a.n : 0;
        const i64 at = u / strips * a.n * a.inner + column;
        VALUE_0 max = LOWEST, sum = -(VALUE_0)0;
        for (i64 i = t; i < n; i += 8) max = larger(max, value(a.x[at + i * a.inner]));
        max = fold<true>(max, part);
        for (i64 i = t; i < n; i += 8) sum = sum + exp(value(a.x[at + i * a.inner]) - max);
        sum = fold<false>(sum, part);
        if (LOGARITHM) sum = log(sum);
        for (i64 i = t; i < n; i += 8) {
            const VALUE_0 d = value(a.x[at + i * a.inner]) - max;
            put(a.y + at + i * a.inner, LOGARITHM ? d - sum : exp(d) / sum);
        }
    }
}
