/* The matrix of values under the window: a block writes up to 1024 neighbouring columns of one row
 * and image. */
#include "conv.cuh"

struct etch_args {
    const ETCH_0 *x;
    ETCH_0 *m;
    i64 units, chunks, rows, positions, m_image, m_row;
    etch_window at;
};
extern "C" __global__ void etch_windows(const __grid_constant__ etch_args a) {
    for (i64 u = blockIdx.x; u < a.units; u += gridDim.x) {
        const INDEX kernel_h = (INDEX)a.at.kernel_h, kernel_w = (INDEX)a.at.kernel_w;
        const INDEX line = (INDEX)u / (INDEX)a.chunks, image = line / (INDEX)a.rows;
        const INDEX row = line % (INDEX)a.rows, kw = row % kernel_w, kh = row / kernel_w % kernel_h;
        const INDEX channel = row / kernel_w / kernel_h;
        const ETCH_0 *x = a.x + image * a.at.x_image + channel * a.at.x_channel;
        ETCH_0 *m = a.m + image * a.m_image + row * a.m_row;
        const unsigned columns = (unsigned)a.at.out_w, last = (unsigned)a.positions;
        unsigned p = (unsigned)((INDEX)u % (INDEX)a.chunks) * 1024 + threadIdx.x;
        for (int i = 0; i < 4 && p < last; i++, p += 256)
            m[p] = under(a.at, x, kh, kw, (INDEX)(p / columns), (INDEX)(p % columns));
    }
}
