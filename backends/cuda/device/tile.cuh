/* A tile of an f32 product; backends/cuda/gemm.c says how it is computed. HEIGHT is the rows of a
 * thread, 4 or 8, the template parameter a variant of gemm.h. Rows of A in shared memory have a
 * pitch of 68, those of B 36, so that no more than two lanes of a warp's access meet in a bank.
 * What edges need is a third of the code, and of the time that NVRTC takes, so it is left out where
 * there are none. */
#include "example.h"

namespace tile {
struct product {
    const float *a, *b;
    long long a_batch, a_row, a_col, b_batch, b_row, b_col;
    int m, n, k, tiles;
};
enum {
    DEPTH = 64, RUN = 8, ROWS = 8 * HEIGHT, COLUMNS = 32, A_PITCH = DEPTH + 4,
    B_PITCH = COLUMNS + 4, B_AT = ROWS * A_PITCH, BUFFER = B_AT + DEPTH * B_PITCH,
    A_QUADS = ROWS / 16, B_QUADS = COLUMNS / 16, TILE = ROWS * COLUMNS, SUMS = TILE / 1024
};
/* Where a quad begins: on the axis of its own operand and along k. */
struct spot {
    int at, k;
};
template <bool along_k>
__device__ __forceinline__ spot a_spot(int i) {
    const int w = i / 32, lane = i % 32;
    if (along_k) return {i / (DEPTH / 4), i % (DEPTH / 4) * 4};
    return {w % (ROWS / 16) * 16 + lane % 4 * 4, w / (ROWS / 16) * 8 + lane / 4};
}
template <bool along_k>
__device__ __forceinline__ spot b_spot(int i) {
    const int w = i / 32, lane = i % 32;
    if (!along_k) return {i % (COLUMNS / 4) * 4, i / (COLUMNS / 4)};
    return {w % (COLUMNS / 16) * 16 + lane / 2, w / (COLUMNS / 16) * 8 + lane % 2 * 4};
}
template <bool wide>
__device__ __forceinline__ float4 quad(const float *p, long long step) {
    if (wide) return *(const float4 *)p;
    return make_float4(p[0], p[step], p[2 * step], p[3 * step]);
}
/* One of which only the first `left` elements are there. */
__device__ __forceinline__ float4 part(const float *p, long long step, int left) {
    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[step] : 0.0f,
                       left > 2 ? p[2 * step] : 0.0f, left > 3 ? p[3 * step] : 0.0f);
}
__device__ __forceinline__ void spread(float *to, int pitch, float4 v) {
    to[0] = v.x, to[pitch] = v.y, to[2 * pitch] = v.z, to[3 * pitch] = v.w;
}
__device__ __forceinline__ void keep(float *to, const float *v) {
    *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
}
/* The sums at rows place_row(i), columns place_col(i) + 0..3 of the tile that begins at
 * (row, col). All threads of the block take part, and may not use `space` until all have
 * come back. */
template <int FORM>
__device__ __forceinline__ void sums_of(const product &p, int batch, int row, int col,
                                        float *space, float4 (&sums)[SUMS]) {
    const bool A_ALONG_K = FORM & 2, B_ALONG_K = FORM & 4;
    const bool A_WIDE = FORM & 8, B_WIDE = FORM & 16;
    const bool NO_EDGES = FORM & 32;
    const int t = threadIdx.x, slice = t / 32, down = t % 32 / 4, across = t % 4;
    const bool inside = NO_EDGES || (row + ROWS <= p.m && col + COLUMNS <= p.n);
    const spot a0 = a_spot<A_ALONG_K>(t), a1 = a_spot<A_ALONG_K>(t + 256);
    const spot b0 = b_spot<B_ALONG_K>(t), b1 = b_spot<B_ALONG_K>(t + 256);
    const long long a_step = A_ALONG_K ? p.a_col : p.a_row;
    const long long b_step = B_ALONG_K ? p.b_row : p.b_col;
    const long long a_next = (a1.at - a0.at) * p.a_row + (a1.k - a0.k) * p.a_col;
    const long long b_next = (b1.at - b0.at) * p.b_col + (b1.k - b0.k) * p.b_row;
    const float *a = p.a + batch * p.a_batch + (row + a0.at) * p.a_row + a0.k * p.a_col;
    const float *b = p.b + batch * p.b_batch + (col + b0.at) * p.b_col + b0.k * p.b_row;
    float4 left[A_QUADS], right[B_QUADS];
    auto load = [&](int k) {
        const bool whole = NO_EDGES || (inside && k + DEPTH <= p.k);
        #pragma unroll
        for (int i = 0; i < A_QUADS; i++) {
            const spot s = a_spot<A_ALONG_K>(i * 256 + t);
            const int rows = p.m - row - s.at, ks = p.k - k - s.k;
            left[i] = whole       ? quad<A_WIDE>(a + i * a_next, a_step)
                      : A_ALONG_K ? part(a + i * a_next, a_step, rows > 0 ? ks : 0)
                                  : part(a + i * a_next, a_step, ks > 0 ? rows : 0);
        }
        #pragma unroll
        for (int i = 0; i < B_QUADS; i++) {
            const spot s = b_spot<B_ALONG_K>(i * 256 + t);
            const int cols = p.n - col - s.at, ks = p.k - k - s.k;
            right[i] = whole       ? quad<B_WIDE>(b + i * b_next, b_step)
                       : B_ALONG_K ? part(b + i * b_next, b_step, cols > 0 ? ks : 0)
                                   : part(b + i * b_next, b_step, ks > 0 ? cols : 0);
        }
        a += DEPTH * p.a_col, b += DEPTH * p.b_row;
    };
    auto store = [&](float *to) {
        #pragma unroll
        for (int i = 0; i < A_QUADS; i++) {
            const spot s = a_spot<A_ALONG_K>(i * 256 + t);
            float *const at = to + s.at * A_PITCH + s.k;
            if (A_ALONG_K) *(float4 *)at = left[i];
            else spread(at, A_PITCH, left[i]);
        }
        #pragma unroll
        for (int i = 0; i < B_QUADS; i++) {
            const spot s = b_spot<B_ALONG_K>(i * 256 + t);
            float *const at = to + B_AT + s.k * B_PITCH + s.at;
            if (!B_ALONG_K) *(float4 *)at = right[i];
            else spread(at, B_PITCH, right[i]);
        }
    };
    /* The thread's rows are down + 8 i, its columns 4 across + 0..3 and 16 more. */
    float acc[HEIGHT][8];
    #pragma unroll
    for (int i = 0; i < HEIGHT; i++)
        #pragma unroll
        for (int j = 0; j < 8; j++) acc[i][j] = 0;
    /* What is multiplied now and next: of A four k of the rows, of B one of the columns. */
    float l[2][HEIGHT][4], r[2][8];
    const float *const x = space + down * A_PITCH + slice * RUN;
    const float *const y = space + B_AT + slice * RUN * B_PITCH + across * 4;
    auto fetch_a = [&](int at, int k) {
        #pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            const float4 v = *(const float4 *)(x + at + i * 8 * A_PITCH + k);
            float *const to = l[k / 4 % 2][i];
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        }
    };
    auto fetch_b = [&](int at, int k) {
        const float4 u = *(const float4 *)(y + at + k * B_PITCH);
        const float4 v = *(const float4 *)(y + at + k * B_PITCH + 16);
        float *const to = r[k % 2];
        to[0] = u.x, to[1] = u.y, to[2] = u.z, to[3] = u.w;
        to[4] = v.x, to[5] = v.y, to[6] = v.z, to[7] = v.w;
    };
    auto multiply = [&](int k) {
        #pragma unroll
        for (int i = 0; i < HEIGHT; i++)
            #pragma unroll
            for (int j = 0; j < 8; j++)
                acc[i][j] = fmaf(l[k / 4 % 2][i][k % 4], r[k % 2][j], acc[i][j]);
    };
    load(0);
    store(space);
    __syncthreads();
    fetch_a(0, 0), fetch_b(0, 0);
    int now = 0;
    for (int k = 0; k < p.k; k += DEPTH) {
        const bool more = k + DEPTH < p.k;
        if (more) load(k + DEPTH);
        fetch_a(now, 4);
        #pragma unroll
        for (int q = 0; q < RUN - 2; q++) fetch_b(now, q + 1), multiply(q);
        fetch_b(now, RUN - 1);
        now = BUFFER - now;
        if (more) {
            store(space + now);
            __syncthreads();
            fetch_a(now, 0);
        }
        multiply(RUN - 2);
        if (more) fetch_b(now, 0);
        multiply(RUN - 1);
    }
    __syncthreads();
    /* Odd rows have their halves exchanged, so that pairs of rows fill the banks. */
    #pragma unroll
    for (int i = 0; i < HEIGHT; i++) {
        float *const to = space + slice * TILE + (down + 8 * i) * COLUMNS + across * 4;
        const int half = down % 2 * 16;
        keep(to + half, acc[i]), keep(to + (16 - half), acc[i] + 4);
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < SUMS; i++) {
        float4 sum = *(const float4 *)(space + i * 1024 + t * 4);
        #pragma unroll
        for (int s = 1; s < 8; s++) {
            const float4 v = *(const float4 *)(space + s * TILE + i * 1024 + t * 4);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        sums[i] = sum;
    }
}
__device__ __forceinline__ int place_row(int i) { return i * 32 + threadIdx.x / 8; }
__device__ __forceinline__ int place_col(int i) {
    return threadIdx.x % 8 * 4 ^ place_row(i) % 2 * 16;
}
}
