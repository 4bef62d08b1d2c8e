/* Broad products of operands that lie anywhere: each element is copied by a thread. */
#include "broad.cuh"

struct etch_broad_args {
    etch_args after;
    broad::product of;
};
using broad::product;

/* Which column of a product row r of its part of the tile of B is. */
__device__ __forceinline__ int dealt(int r) {
    return r / 32 * 32 + r % 8 / 2 * 8 + r % 32 / 8 * 2 + r % 2;
}

__device__ __forceinline__ void put(char *panel, int row, int k, unsigned short half) {
    ((unsigned short *)panel)[tensor_core::swizzled(row, k)] = half;
}
__device__ __forceinline__ void copy_stage(const product &p, char *to, int row, int column, int k) {
    for (int i = threadIdx.x; i < broad::ROWS * broad::DEPTH; i += 256) {
        const int r = i / broad::DEPTH, d = i % broad::DEPTH;
        const unsigned short *const from = p.a + (row + r) * p.a_row + (k + d) * p.a_col;
        put(to, r, d, row + r < p.m ? *from : 0);
    }
    for (int i = threadIdx.x; i < 256 * broad::DEPTH; i += 256) {
        const int r = i / broad::DEPTH, d = i % broad::DEPTH;
        const int of = r / broad::COLUMNS, c = column + dealt(r % broad::COLUMNS);
        const unsigned short *const from = p.b[of] + (k + d) * p.b_row[of] + c * p.b_col[of];
        put(to + broad::A_BYTES, r, d, c < p.n ? *from : 0);
    }
}

extern "C" __global__ void __launch_bounds__(256, 1)
    etch_broad(const __grid_constant__ etch_broad_args a) {
    extern __shared__ char bytes[];
    char *const stage = tensor_core::whole_panel(bytes);
    const broad::spot at = broad::pair_at(a.of, blockIdx.x / 2), mine = broad::in_tile(threadIdx.x);
    const int row = at.row + blockIdx.x % 2 * broad::ROWS;
    float c[32][4];
    for (int k = 0; k < a.of.k; k += broad::DEPTH) {
        copy_stage(a.of, stage, row, at.column, k);
        tensor_core::copies_shown();
        __syncthreads();
        tensor_core::group_begins(c);
        broad::begin(c, stage, threadIdx.x / 128, k > 0);
        tensor_core::group_done<0>(c);
        __syncthreads();
    }
    broad::elements all;
    broad::keep(all, c);
    #pragma unroll
    for (int i = 0; i < broad::PARTS; i++, broad::next_part(all))
        broad::follow_part(a.after, a.of, {row + mine.row, at.column + mine.column}, i, all);
}
