/* Convolution of few channels: a thread has one element of the result. */
#include "conv.cuh"

struct etch_args {
    const ETCH_0 *x, *w, *bias;
    ETCH_0 *y;
    i64 units, chunks, channels, group, in_channels, positions, bias_step;
    etch_window at;
};
extern "C" __global__ void etch_direct(const __grid_constant__ etch_args a) {
    for (i64 u = blockIdx.x; u < a.units; u += gridDim.x) {
        const INDEX line = (INDEX)u / (INDEX)a.chunks, image = line / (INDEX)a.channels;
        const INDEX channel = line % (INDEX)a.channels, columns = (INDEX)a.at.out_w;
        const INDEX p = (INDEX)u % (INDEX)a.chunks * 256 + (INDEX)threadIdx.x;
        const INDEX oh = p / columns, ow = p % columns;
        const INDEX kernel_h = (INDEX)a.at.kernel_h, kernel_w = (INDEX)a.at.kernel_w;
        const i64 first = channel / (INDEX)a.group * a.in_channels;
        const ETCH_0 *x = a.x + image * a.at.x_image + first * a.at.x_channel;
        const ETCH_0 *w =
            a.w + (i64)channel * a.in_channels * kernel_h * kernel_w;
        if (p >= a.positions) continue;
        VALUE_0 acc = 0;
        for (INDEX c = 0; c < (INDEX)a.in_channels; c++, x += a.at.x_channel)
            for (INDEX kh = 0; kh < kernel_h; kh++)
                for (INDEX kw = 0; kw < kernel_w; kw++, w++)
                    acc = FMA(value(*w), value(under(a.at, x, kh, kw, oh, ow)), acc);
        if (a.bias) acc = SUM(acc, value(a.bias[channel * a.bias_step]));
        put(a.y + (i64)line * a.positions + p, acc);
    }
}
