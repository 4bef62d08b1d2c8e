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
        const i64 line = u / a.chunks, image = line / a.rows, row = line % a.rows;
        const i64 kw = row % a.at.kernel_w, kh = row / a.at.kernel_w % a.at.kernel_h;
        const i64 channel = row / a.at.kernel_w / a.at.kernel_h;
        const ETCH_0 *x = a.x + image * a.at.x_image + channel * a.at.x_channel;
        ETCH_0 *m = a.m + image * a.m_image + row * a.m_row;
        const unsigned columns = (unsigned)a.at.out_w, last = (unsigned)a.positions;
        unsigned p = (unsigned)(u % a.chunks) * 1024 + threadIdx.x;
        for (int i = 0; i < 4 && p < last; i++, p += 256)
            m[p] = under(a.at, x, kh, kw, p / columns, p % columns);
    }
}
