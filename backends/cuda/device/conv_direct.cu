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
        const i64 line = u / a.chunks, image = line / a.channels, channel = line % a.channels;
        const i64 p = u % a.chunks * 256 + threadIdx.x;
        const i64 oh = p / a.at.out_w, ow = p % a.at.out_w;
        const i64 first = channel / a.group * a.in_channels;
        const ETCH_0 *x = a.x + image * a.at.x_image + first * a.at.x_channel;
        const ETCH_0 *w =
            a.w + channel * a.in_channels * a.at.kernel_h * a.at.kernel_w;
        if (p >= a.positions) continue;
        VALUE_0 acc = 0;
        for (i64 c = 0; c < a.in_channels; c++, x += a.at.x_channel)
            for (i64 kh = 0; kh < a.at.kernel_h; kh++)
                for (i64 kw = 0; kw < a.at.kernel_w; kw++, w++)
                    acc = FMA(value(*w), value(under(a.at, x, kh, kw, oh, ow)), acc);
        if (a.bias) acc = SUM(acc, value(a.bias[channel * a.bias_step]));
        put(a.y + line * a.positions + p, acc);
    }
}
