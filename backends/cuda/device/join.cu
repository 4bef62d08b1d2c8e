/* Products and what is computed of them as one kernel: PRODUCTS tiles of sums, by MULTIPLY, and
 * then after(), which the generator writes for the other members, for VECTOR neighbours at a time.
 * WHOLE: no tile goes over an edge. */
#include "after.h"

struct etch_join_args {
    etch_args after;
    tile::product product[PRODUCTS];
};
extern "C" __global__ void __launch_bounds__(256, HEIGHT == 4 ? 2 : 1)
    etch_join(const __grid_constant__ struct etch_join_args a) {
    extern __shared__ float4 quads[];
    const tile::product &p = a.product[0];
    const int wide = (p.n + tile::COLUMNS - 1) / tile::COLUMNS;
    const int row = blockIdx.x / wide * tile::ROWS, col = blockIdx.x % wide * tile::COLUMNS;
    float4 sums[PRODUCTS][tile::SUMS];
    MULTIPLY
    #pragma unroll
    for (int i = 0; i < tile::SUMS; i++) {
        const int r = row + tile::place_row(i), q = col + tile::place_col(i);
        if (!WHOLE && r >= p.m) continue;
        #pragma unroll
        for (int j = 0; j < 4; j += VECTOR)
            if (WHOLE || q + j < p.n) after(a.after, r, q + j, p.n, VALUES);
    }
}
