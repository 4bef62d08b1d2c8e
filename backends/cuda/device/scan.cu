/* cumsum and cumprod (PRODUCT): a thread goes along a line in WIDE, each result is rounded once. */
#include "example.h"

struct etch_args {
    const ETCH_0 *x;
    ETCH_0 *y;
    etch_dims lines;
    i64 nlines, n, step, inner;
};
extern "C" __global__ void etch_scan(const __grid_constant__ etch_args a) {
    i64 line = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; line < a.nlines; line += (i64)gridDim.x * blockDim.x) {
        const ETCH_0 *x = a.x + place(a.lines, line);
        ETCH_0 *y = a.y + line / a.inner * a.n * a.inner + line % a.inner;
        WIDE so_far = PRODUCT;
        for (i64 i = 0; i < a.n; i++) {
            const WIDE v = (WIDE)value(x[i * a.step]);
            so_far = PRODUCT ? so_far * v : so_far + v;
            put(y + i * a.inner, so_far);
        }
    }
}
