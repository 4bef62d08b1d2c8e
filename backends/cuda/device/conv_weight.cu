/* What a convolution of few channels passes back to its weight: a block has one element, the sum of
 * products over all images and positions, of which a thread has every 256th. */
#include "conv.cuh"

struct etch_args {
    const ETCH_0 *x, *g;
    ETCH_0 *y;
    i64 units, rows, images, channels, group, in_channels, positions;
    etch_window at;
};
extern "C" __global__ void etch_weight(const __grid_constant__ etch_args a) {
    __shared__ VALUE_0 part[8];
    const int t = threadIdx.x;
    for (i64 u = blockIdx.x; u < a.units; u += gridDim.x) {
        const INDEX rows = (INDEX)a.rows, kernel_w = (INDEX)a.at.kernel_w;
        const INDEX kernel_h = (INDEX)a.at.kernel_h, row = (INDEX)u % rows;
        const INDEX channel = (INDEX)u / rows, kw = row % kernel_w, kh = row / kernel_w % kernel_h;
        const INDEX positions = (INDEX)a.positions, columns = (INDEX)a.at.out_w;
        const i64 from = channel / (INDEX)a.group * a.in_channels + row / kernel_w / kernel_h;
        const ETCH_0 *x = a.x + from * a.at.x_channel, *g = a.g + channel * a.positions;
        VALUE_0 sum = 0;
        for (INDEX i = t; i < (INDEX)a.images * positions; i += 256) {
            const INDEX image = i / positions, p = i % positions;
            const ETCH_0 v =
                under(a.at, x + image * a.at.x_image, kh, kw, p / columns, p % columns);
            sum = FMA(value(g[image * a.channels * a.positions + p]), value(v), sum);
        }
        for (int d = 16; d > 0; d /= 2) sum = SUM(sum, __shfl_xor_sync(0xffffffffu, sum, d));
        if (t % 32 == 0) part[t / 32] = sum;
        __syncthreads();
        if (t == 0) {
            for (int k = 1; k < 8; k++) sum = SUM(sum, part[k]);
            put(a.y + u, sum);
        }
        __syncthreads();
    }
}
