/* Elements that an index tensor names, read (WAY 0), written (1) or added to (2). `lines` are the
 * places that do not depend on the index; along `run` it is followed. Reading takes all elements
 * apart, the others go along a run in order. rank: the element's number in the index. */
#include "example.h"

struct etch_axes {
    i64 n, size[8], place[8], other[8], number[8], rank[8];
};
struct etch_args {
    etch_check check;
    ETCH_0 *indexed, *values;
    const ETCH_1 *index;
    etch_axes lines, run;
    i64 nlines, nrun, step, n, low;
    VALUE_0 cell[8 / sizeof(VALUE_0)];
};
struct spot {
    i64 place, other, number, rank;
};
__device__ inline spot find(const etch_axes &x, i64 i) {
    spot s = {0, 0, 0, 0};
    for (int d = (int)x.n - 1; d >= 0; d--) {
        const i64 q = i / x.size[d], k = i - q * x.size[d];
        s.place += k * x.place[d], s.other += k * x.other[d], s.number += k * x.number[d];
        s.rank += k * x.rank[d];
        i = q;
    }
    return s;
}
__device__ inline void combine(etch_bool *to, etch_bool v) { to->bits |= v.bits; }
template <class T> __device__ inline void combine(T *to, T v) { put(to, value(*to) + value(v)); }
__device__ inline void step(const etch_args &a, const spot &line, i64 i) {
    const spot r = find(a.run, i);
    i64 k = (i64)value(a.index[line.number + r.number]);
    if (k < a.low || k >= a.n) return fail(a.check, line.rank + r.rank, k);
    if (k < 0) k += a.n;
    ETCH_0 *at = a.indexed + line.place + r.place + k * a.step;
    ETCH_0 *v = a.values ? a.values + line.other + r.other : 0;
#if WAY == 0
    *v = *at;
#elif WAY == 1
    if (v) *at = *v;
    else put(at, a.cell[0]);
#else
    combine(at, *v);
#endif
}
extern "C" __global__ void etch_walk(const __grid_constant__ etch_args a) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    const i64 stride = (i64)gridDim.x * blockDim.x;
#if TESTED
    if (failed(a.check)) return;
#endif
#if WAY == 0
    for (; i < a.nlines * a.nrun; i += stride) {
        const i64 r = i / a.nlines;
        step(a, find(a.lines, i - r * a.nlines), r);
    }
#else
    for (; i < a.nlines; i += stride) {
        const spot line = find(a.lines, i);
        for (i64 r = 0; r < a.nrun; r++) step(a, line, r);
    }
#endif
}
