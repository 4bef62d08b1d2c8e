/* Adds a convolution's bias. */
#include "example.h"

struct etch_args {
    ETCH_0 *y;
    const ETCH_0 *bias;
    i64 n, channels, positions, bias_step;
};
extern "C" __global__ void etch_add_bias(const __grid_constant__ etch_args a) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {
        const i64 channel = i / a.positions % a.channels;
        put(a.y + i, SUM(value(a.y[i]), value(a.bias[channel * a.bias_step])));
    }
}
