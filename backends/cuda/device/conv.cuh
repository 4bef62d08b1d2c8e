/* What both kernels that look under the window of a convolution begin with. */
#include "example.h"

struct etch_window {
    i64 h, w, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, step_h, step_w;
    i64 x_image, x_channel, x_row, x_column;
};
/* The value of a channel under place (kh, kw) of the kernel at position (oh, ow). */
__device__ inline ETCH_0 under(const etch_window &a, const ETCH_0 *x, i64 kh, i64 kw, i64 oh,
                               i64 ow) {
    const i64 ih = oh * a.stride_h - a.pad_h + kh * a.step_h;
    const i64 iw = ow * a.stride_w - a.pad_w + kw * a.step_w;
    ETCH_0 zero = {};
    const bool inside = ih >= 0 && ih < a.h && iw >= 0 && iw < a.w;
    return inside ? x[ih * a.x_row + iw * a.x_column] : zero;
}
