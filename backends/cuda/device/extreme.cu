/* argmax (LARGEST) and argmin: TEAM threads have one result. better(): whether (v, i) is to be
 * taken before (w, j). */
#include "example.h"

struct etch_args {
    const ETCH_0 *x;
    i64 *y;
    etch_dims kept, reduced;
    i64 nkept, nreduced;
};
__device__ inline bool better(VALUE_0 v, i64 i, VALUE_0 w, i64 j) {
    if (j < 0 || i < 0) return i >= 0;
    const bool vn = v != v, wn = w != w;
    if (vn || wn) return vn && (!wn || i < j);
    return v == w ? i < j : LARGEST ? v > w : v < w;
}
extern "C" __global__ void etch_extreme(const __grid_constant__ etch_args a) {
    __shared__ VALUE_0 values[128];
    __shared__ i64 numbers[128];
    const int t = threadIdx.x, lane = t % TEAM;
    for (i64 base = (i64)blockIdx.x * (128 / TEAM); base < a.nkept;
         base += (i64)gridDim.x * (128 / TEAM)) {
        const i64 k = base + t / TEAM;
        VALUE_0 best = 0;
        i64 at = -1;
        if (k < a.nkept) {
            const ETCH_0 *x = a.x + place(a.kept, k);
            for (i64 i = lane; i < a.nreduced; i += TEAM) {
                const VALUE_0 v = value(x[place(a.reduced, i)]);
                if (better(v, i, best, at)) best = v, at = i;
            }
        }
#if TEAM > 1
        values[t] = best, numbers[t] = at;
        __syncthreads();
        for (int w = TEAM / 2; w > 0; w /= 2) {
            if (lane < w && better(values[t + w], numbers[t + w], values[t], numbers[t]))
                values[t] = values[t + w], numbers[t] = numbers[t + w];
            __syncthreads();
        }
        at = numbers[t];
        __syncthreads();
#endif
        if (lane == 0 && k < a.nkept) a.y[k] = at;
    }
}
