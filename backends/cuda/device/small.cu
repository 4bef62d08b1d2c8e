/* Products of at most 64 x 64 x 64 as a kernel. */
#include "small.cuh"

extern "C" __global__ void __launch_bounds__(256)
    etch_small(const __grid_constant__ struct etch_args p) {
    run(p, blockIdx.x, gridDim.x);
}
