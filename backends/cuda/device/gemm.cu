/* An f32 product alone, by the tile of variant VARIANT. */
#include "tile.cuh"

using namespace tile;
struct etch_args {
    product of;
    float *c;
};
extern "C" __global__ void __launch_bounds__(256, HEIGHT == 4 ? 2 : 1)
    etch_gemm(const __grid_constant__ struct etch_args a) {
    extern __shared__ float4 quads[];
    const product &p = a.of;
    const int batch = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
    const int wide = (p.n + COLUMNS - 1) / COLUMNS;
    const int row = tile / wide * ROWS, col = tile % wide * COLUMNS;
    float4 sums[SUMS];
    sums_of<VARIANT>(p, batch, row, col, (float *)quads, sums);
    float *const c = a.c + (long long)batch * p.m * p.n;
    const bool aligned = p.n % 4 == 0 && (unsigned long long)a.c % 16 == 0;
    #pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int r = row + place_row(i), q = col + place_col(i);
        if (!(VARIANT & 32) && r >= p.m) continue;
        float *const to = c + (long long)r * p.n + q;
        if (aligned && (VARIANT & 32 || q < p.n)) {
            *(float4 *)to = sums[i];
            continue;
        }
        if (q < p.n) to[0] = sums[i].x;
        if (q + 1 < p.n) to[1] = sums[i].y;
        if (q + 2 < p.n) to[2] = sums[i].z;
        if (q + 3 < p.n) to[3] = sums[i].w;
    }
}
