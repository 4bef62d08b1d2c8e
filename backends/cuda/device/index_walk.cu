/* Elements that an index tensor names, read (WAY 0), written (1) or added to (2). `lines` are the
 * places that do not depend on the index; along `run` it is followed. Reading takes all elements
 * apart. The others go along a run in order, `parts` threads each, a power of 2, of which one has
 * every parts-th place, so that what comes to a place comes in the order of the run. rank: the
 * element's number in the index. */
#include "example.h"

struct etch_axes {
    i64 n, size[8], place[8], other[8], number[8], rank[8];
};
struct etch_args {
    etch_check check;
    ETCH_0 *indexed, *values;
    const ETCH_1 *index;
    etch_axes lines, run;
    i64 nlines, nrun, step, n, low, parts;
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
__device__ inline void step(const etch_args &a, const spot &line, const spot &r, i64 k, i64 part) {
    if (k < a.low || k >= a.n) {
        if (part == 0) fail(a.check, line.rank + r.rank, k);
        return;
    }
    if (k < 0) k += a.n;
    if (WAY && (k & (a.parts - 1)) != part) return;
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
__device__ inline i64 index_of(const etch_args &a, const spot &line, const spot &r) {
    return (i64)value(a.index[line.number + r.number]);
}
/* Along a run of one axis: some indices are on their way at once. */
__device__ inline void follow(const etch_args &a, const spot &line, i64 part) {
    for (i64 first = 0; first < a.nrun; first += 8) {
        spot r[8];
        i64 k[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) {
            const i64 i = first + j < a.nrun ? first + j : first;
            r[j] = {i * a.run.place[0], i * a.run.other[0], i * a.run.number[0], i * a.run.rank[0]};
            k[j] = index_of(a, line, r[j]);
        }
        #pragma unroll
        for (int j = 0; j < 8; j++)
            if (first + j < a.nrun) step(a, line, r[j], k[j], part);
    }
}
extern "C" __global__ void etch_walk(const __grid_constant__ etch_args a) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    const i64 stride = (i64)gridDim.x * blockDim.x;
#if TESTED
    if (failed(a.check)) return;
#endif
#if WAY == 0
    for (; i < a.nlines * a.nrun; i += stride) {
        const i64 n = i / a.nlines;
        const spot line = find(a.lines, i - n * a.nlines), r = find(a.run, n);
        step(a, line, r, index_of(a, line, r), 0);
    }
#else
    for (; i < a.nlines * a.parts; i += stride) {
        const i64 part = i / a.nlines;
        const spot line = find(a.lines, i - part * a.nlines);
        if (a.run.n == 1) {
            follow(a, line, part);
            continue;
        }
        for (i64 n = 0; n < a.nrun; n++) {
            const spot r = find(a.run, n);
            step(a, line, r, index_of(a, line, r), part);
        }
    }
#endif
}
