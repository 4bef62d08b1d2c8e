/* Pooling: a thread has one element of the result. WAY 0: the largest element of a window, 1: where
 * it is in its plane, 2: the mean, 3: what the windows around an element pass back to it, added in
 * their order. */
#include "example.h"

struct etch_args {
    const ETCH_0 *x;
    void *y;
    etch_dims planes;
    i64 n, in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, step_h,
        step_w, row, column, divisor, counts_padding;
};
/* Of the kernel's k elements from `first` on, those inside of n: [begin, end). */
__device__ inline void clip(i64 first, i64 k, i64 step, i64 n, i64 &begin, i64 &end) {
    begin = first < 0 ? (-first + step - 1) / step : 0;
    end = first < n ? (n - first + step - 1) / step : 0;
    if (end > k) end = k;
}
/* How many elements of a window count along one dimension. */
__device__ inline i64 count(const etch_args &a, i64 first, i64 k, i64 pad, i64 n) {
    i64 begin, end;
    clip(first, k, 1, n, begin, end);
    if (!a.counts_padding) return end - begin;
    return n + pad - first < k ? n + pad - first : k;
}
__device__ inline VALUE_0 divisor(const etch_args &a, i64 top, i64 left) {
    if (a.divisor) return (VALUE_0)a.divisor;
    return (VALUE_0)(count(a, top, a.kernel_h, a.pad_h, a.in_h) *
                     count(a, left, a.kernel_w, a.pad_w, a.in_w));
}
__device__ inline void pool(const etch_args &a, const ETCH_0 *x, i64 oh, i64 ow, i64 to) {
    const i64 top = oh * a.stride_h - a.pad_h, left = ow * a.stride_w - a.pad_w;
    i64 begin_h, end_h, begin_w, end_w, best = -1;
    VALUE_0 so_far = 0;
    clip(top, a.kernel_h, a.step_h, a.in_h, begin_h, end_h);
    clip(left, a.kernel_w, a.step_w, a.in_w, begin_w, end_w);
    for (i64 kh = begin_h; kh < end_h; kh++)
        for (i64 kw = begin_w; kw < end_w; kw++) {
            const i64 h = top + kh * a.step_h, w = left + kw * a.step_w;
            const VALUE_0 v = value(x[h * a.row + w * a.column]);
#if WAY == 2
            so_far = so_far + v;
#else
            if (best < 0 || v > so_far || v != v) so_far = v, best = h * a.in_w + w;
#endif
        }
#if WAY == 0
    put((ETCH_0 *)a.y + to, so_far);
#elif WAY == 1
    ((i64 *)a.y)[to] = best;
#else
    put((ETCH_0 *)a.y + to, so_far / divisor(a, top, left));
#endif
}
/* x is the gradient of the windows. The first window that reaches an element at `at`, and the one
 * behind the last. */
__device__ inline void windows(i64 at, i64 k, i64 stride, i64 pad, i64 n, i64 &begin, i64 &end) {
    const i64 from = at + pad - k + 1;
    begin = from > 0 ? (from + stride - 1) / stride : 0;
    end = (at + pad) / stride + 1;
    if (end > n) end = n;
}
__device__ inline void spread(const etch_args &a, const ETCH_0 *x, i64 h, i64 w, i64 to) {
    i64 begin_h, end_h, begin_w, end_w;
    VALUE_0 sum = 0;
    windows(h, a.kernel_h, a.stride_h, a.pad_h, a.out_h, begin_h, end_h);
    windows(w, a.kernel_w, a.stride_w, a.pad_w, a.out_w, begin_w, end_w);
    for (i64 oh = begin_h; oh < end_h; oh++)
        for (i64 ow = begin_w; ow < end_w; ow++)
            sum = sum + value(x[oh * a.row + ow * a.column]) /
                            divisor(a, oh * a.stride_h - a.pad_h, ow * a.stride_w - a.pad_w);
    put((ETCH_0 *)a.y + to, sum);
}
extern "C" __global__ void etch_pool(const __grid_constant__ etch_args a) {
    const i64 height = WAY == 3 ? a.in_h : a.out_h, width = WAY == 3 ? a.in_w : a.out_w;
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {
        const i64 line = i / width, w = i % width;
        const ETCH_0 *x = a.x + place(a.planes, line / height);
#if WAY == 3
        spread(a, x, line % height, w, i);
#else
        pool(a, x, line % height, w, i);
#endif
    }
}
