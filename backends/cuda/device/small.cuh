/* The same chain as chain.cu for M, N and K of at most 64: a block of 256 threads has 16 x 16
 * elements, from operands in shared memory. What block `block` of `blocks` does; there are less
 * than 2^31 tiles. K_MOST, 16 or 64, is the most that K may be: less is less code. */
#include "example.h"

struct etch_args {
    const ETCH_T *a, *b;
    void *c;
    long long batch, m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col;
};
struct alignas(sizeof(ETCH_C) < 4 ? 4 * sizeof(ETCH_C) : 16) quad {
    ETCH_C e[4];
};
static __device__ __forceinline__ void run(const etch_args &p, unsigned block,
                                           unsigned blocks) {
    __shared__ quad left[16][K_MOST / 4 + 1]; // four neighbours along k each
    __shared__ ETCH_C right[K_MOST][16];
    const int m = (int)p.m, n = (int)p.n, K = (int)p.k;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    const unsigned across = (n + 15) / 16, tiles = (m + 15) / 16 * across;
    const unsigned all = (unsigned)p.batch * tiles;
    #pragma unroll 1
    for (unsigned u = block; u < all; u += blocks) {
        const unsigned batch = u / tiles, tile = u - batch * tiles, down = tile / across;
        const int row = down * 16 + y, col = (tile - down * across) * 16 + x;
        const ETCH_T *a = p.a + batch * p.a_batch + row * p.a_row + x * p.a_col;
        const ETCH_T *b = p.b + batch * p.b_batch + y * p.b_row + col * p.b_col;
        #pragma unroll
        for (int i = 0; i < K_MOST; i += 16) {
            ETCH_C v = 0, w = 0;
            if (row < m && i + x < K) v = LOAD(a[i * p.a_col]);
            if (col < n && i + y < K) w = LOAD(b[i * p.b_row]);
            left[y][(i + x) / 4].e[x % 4] = v, right[i + y][x] = w;
        }
        __syncthreads();
        ETCH_C acc = 0;
        int k = 0;
        #pragma unroll (K_MOST / 16)
        for (; k + 4 <= K; k += 4) {
            const quad v = left[y][k / 4];
            #pragma unroll
            for (int q = 0; q < 4; q++) acc = CHAIN(v.e[q], right[k + q][x], acc);
        }
        #pragma unroll 1
        for (; k < K; k++) acc = CHAIN(left[y][k / 4].e[k % 4], right[k][x], acc);
        if (row < m && col < n) STORE(p.c, (batch * (long long)m + row) * n + col, acc);
        __syncthreads();
    }
}
