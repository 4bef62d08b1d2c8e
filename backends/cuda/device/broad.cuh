/* What the ways to compute broad products (backends/cuda/broad.c) share: a block's tile, where its
 * elements lie, and what follows them. PRODUCTS of one A, each 256 / PRODUCTS columns of a tile of
 * 128 rows, by two warp groups of 64 rows. WHOLE: tiles are full, also the pair that a cluster has.
 *
 * The rows of the tile of B are dealt so that what a thread has of 32 columns is 8 neighbours: row
 * 8 j + 2 t + e of 32 is column 8 t + 2 j + e, where thread t of four has it (PTX ISA, "Register
 * Fragments for wgmma.mma_async.m64nNk16"). */
#include "broad_after.h"
#include "tensor_core.cuh"
#include "warp_group.cuh"
#include "wide_group.cuh"

namespace broad {
enum {
    ROWS = 128, COLUMNS = 256 / PRODUCTS, DEPTH = 64, PARTS = 8, A_BYTES = ROWS * DEPTH * 2,
    B_BYTES = 256 * DEPTH * 2, STAGE = A_BYTES + B_BYTES
};
struct product {
    const unsigned short *a, *b[PRODUCTS];
    long long a_row, a_col, b_row[PRODUCTS], b_col[PRODUCTS];
    int m, n, k, down, across, band; /* pairs of tiles, and of how many rows of them a band is */
};
struct spot {
    int row, column;
};
/* Of tile t: bands of rows, in them column after column, so that blocks share what is in L2. */
__device__ __forceinline__ spot pair_at(const product &p, int t) {
    const int of_band = p.band * p.across, band = t / of_band, i = t % of_band;
    const int left = p.down - band * p.band, high = left < p.band ? left : p.band;
    return {(band * p.band + i % high) * 2 * ROWS, i / high * COLUMNS};
}
/* Where the thread's first element is in its block's tile. */
__device__ __forceinline__ spot in_tile(int thread) {
    return {thread / 32 * 16 + thread % 32 / 4, thread % 4 * 8};
}

/* A thread's elements of a tile, rounded, in the order of parts: of 4 words each what two products
 * have of one row, or one product of two. */
struct elements {
    unsigned word[PARTS * 8];
};
__device__ __forceinline__ void keep(elements &to, const float (&c)[32][4]) {
    #pragma unroll
    for (int g = 0; g < 32; g++)
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const int part = PRODUCTS == 2 ? g % 16 / 4 * 2 + h : g / 4;
            const int half = PRODUCTS == 2 ? g / 16 : h;
            to.word[part * 8 + half * 4 + g % 4] =
                tensor_core::pack<BF16>(c[g][2 * h], c[g][2 * h + 1]);
        }
}
struct eight {
    unsigned word[4];
};
/* Of f16, denormals too, by words of 32 bits alone: halves of registers would be kept as such. */
__device__ __forceinline__ float value_of(const eight &x, int j) {
    const unsigned half = j % 2 ? x.word[j / 2] >> 16 : x.word[j / 2] & 0xffff;
    if (BF16) return __uint_as_float(half << 16);
    const unsigned size = (half & 0x7fff) << 13, odd = 0x7c00u << 13;
    const float y = size < odd ? __uint_as_float(size) * 0x1p112f
                               : __uint_as_float(size + (224u << 23));
    return __uint_as_float(__float_as_uint(y) | (half & 0x8000) << 16);
}
__device__ __forceinline__ vec<float, VECTOR> values_of(const eight &x, int j) {
    vec<float, VECTOR> r;
    #pragma unroll
    for (int i = 0; i < VECTOR; i++) r.e[i] = value_of(x, j + i);
    return r;
}
__device__ __forceinline__ void follow(const etch_args &a, const product &p, int row, int column,
                                       const eight (&x)[PRODUCTS]) {
    if (!WHOLE && (row >= p.m || column >= p.n)) return;
    #pragma unroll
    for (int j = 0; j < 8; j += VECTOR) after(a, row, column + j, p.n, VALUES);
}
/* What follows the elements of a part, the first eight words, of the tile whose first element the
 * thread has `at`. */
__device__ __forceinline__ void follow_part(const etch_args &a, const product &p, spot at, int i,
                                             const elements &e) {
    eight x[2];
    #pragma unroll
    for (int j = 0; j < 8; j++) {
        unsigned word = e.word[j];
        asm volatile("" : "+r"(word)); /* nothing of it is computed where it is kept */
        x[j / 4].word[j % 4] = word;
    }
    #pragma unroll
    for (int h = 0; h < 2; h += PRODUCTS)
        follow(a, p, at.row + (PRODUCTS == 2 ? i % 2 : h) * 8,
               at.column + (PRODUCTS == 2 ? i / 2 : i) * 32, (const eight(&)[PRODUCTS])x[h]);
}
/* Moves the next part's words to the front: so all parts are one piece of code. */
__device__ __forceinline__ void next_part(elements &e) {
    #pragma unroll
    for (int j = 0; j < PARTS * 8 - 8; j++) e.word[j] = e.word[j + 8];
}
/* sums = (adds ? sums : 0) + what DEPTH of k give, from panels in shared memory. */
__device__ __forceinline__ void begin(float (&c)[32][4], const char *stage, int group, bool adds) {
    using namespace tensor_core;
    const operand_at a = operand_in(stage + group * (64 * DEPTH * 2), 8);
    const operand_at b = operand_in(stage + A_BYTES, 8);
    #pragma unroll
    for (int k = 0; k < DEPTH; k += 16)
        multiply_shared<BF16>(c, behind(a, k), behind(b, k), adds || k > 0);
    group_ends();
}
}
