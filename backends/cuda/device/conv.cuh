/* What both kernels that look under the window of a convolution begin with. */
#include "example.h"

struct etch_window {
    i64 h, w, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, step_h, step_w;
    i64 x_image, x_channel, x_row, x_column;
};
/* The value of a channel under place (kh, kw) of the kernel at position (oh, ow). INDEX counts what
 * the sizes allow: a division of 64-bit numbers is a hundred instructions. */
__device__ inline ETCH_0 under(const etch_window &a, const ETCH_0 *x, INDEX kh, INDEX kw, INDEX oh,
                               INDEX ow) {
    const INDEX ih = oh * (INDEX)a.stride_h - (INDEX)a.pad_h + kh * (INDEX)a.step_h;
    const INDEX iw = ow * (INDEX)a.stride_w - (INDEX)a.pad_w + kw * (INDEX)a.step_w;
    ETCH_0 zero = {};
    const bool inside = ih >= 0 && ih < (INDEX)a.h && iw >= 0 && iw < (INDEX)a.w;
    return inside ? x[ih * a.x_row + iw * a.x_column] : zero;
}
