/* Attention in f32 and f64, and of halves that no tensor core takes: softmax(scale q k' + mask) v
 * without the matrix of scores.
 *
 * A block has 4 THREADS / 16 queries of a head; it meets KEYS keys after KEYS. A thread has four
 * rows, and of scores and values each 16th column from its own on. The order of sums follows from
 * KEYS and the widths. */
#include "attention.cuh"

enum { ROWS = THREADS / 4, PITCH = WIDTH + 4, WEIGHTS = KEYS + 4, FAR = KEYS / 16, OWN = OUT / 16 };
struct alignas(16) quad {
    VALUE_0 e[4];
};

/* MOST x N elements; what is not there is 0. Eight are on their way at once. */
template <int MOST, int N>
__device__ __forceinline__ void fetch(VALUE_0 *to, int pitch, const ETCH_0 *from, const operand &o,
                                      i64 rows, i64 columns) {
    for (int first = threadIdx.x; first < MOST * N; first += 8 * THREADS) {
        ETCH_0 x[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) {
            const int i = first + j * THREADS, row = i / N, column = i % N;
            const bool there = i < MOST * N && row < rows && column < columns;
            if (there) x[j] = from[row * o.row + column * o.column];
            else put(&x[j], (VALUE_0)0);
        }
        #pragma unroll
        for (int j = 0; j < 8; j++) {
            const int i = first + j * THREADS;
            if (i < MOST * N) to[i / N * pitch + i % N] = (VALUE_0)value(x[j]);
        }
    }
}
__device__ __forceinline__ VALUE_0 over_row(VALUE_0 x, bool max) {
    #pragma unroll
    for (int d = 8; d > 0; d /= 2) {
        const VALUE_0 y = __shfl_xor_sync(0xffffffffu, x, d);
        x = max ? fmax(x, y) : x + y;
    }
    return x;
}
__device__ __forceinline__ void multiply_keys(const VALUE_0 *q, const VALUE_0 *k,
                                              VALUE_0 (&s)[4][FAR]) {
    #pragma unroll
    for (int i = 0; i < 4 * FAR; i++) s[i / FAR][i % FAR] = 0;
    #pragma unroll 4
    for (int d = 0; d < WIDTH; d += 4) {
        quad x[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = *(const quad *)(q + i * PITCH + d);
        #pragma unroll
        for (int j = 0; j < FAR; j++) {
            const quad y = *(const quad *)(k + j * 16 * PITCH + d);
            #pragma unroll
            for (int i = 0; i < 4; i++)
                #pragma unroll
                for (int e = 0; e < 4; e++) s[i][j] = fma(x[i].e[e], y.e[e], s[i][j]);
        }
    }
}
/* A row's scores become powers; gives by how much it shrinks. */
__device__ __forceinline__ VALUE_0 soften(VALUE_0 (&s)[FAR], VALUE_0 &top, VALUE_0 &sum) {
    VALUE_0 most = top, own = 0;
    #pragma unroll
    for (int j = 0; j < FAR; j++) most = fmax(most, s[j]);
    most = over_row(most, true);
    const VALUE_0 base = most == LOWEST ? (VALUE_0)0 : most, shrink = exp(top - base);
    #pragma unroll
    for (int j = 0; j < FAR; j++) {
        s[j] = exp(s[j] - base);
        own = own + s[j];
    }
    top = most, sum = sum * shrink + own;
    return shrink;
}
__device__ __forceinline__ void add_values(const VALUE_0 *weights, const VALUE_0 *v,
                                           VALUE_0 (&values)[4][OWN]) {
    #pragma unroll 2
    for (int key = 0; key < KEYS; key += 4) {
        quad w[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) w[i] = *(const quad *)(weights + i * WEIGHTS + key);
        #pragma unroll
        for (int e = 0; e < 4; e++)
            #pragma unroll
            for (int c = 0; c < OWN; c++) {
                const VALUE_0 y = v[(key + e) * OUT + c * 16];
                #pragma unroll
                for (int i = 0; i < 4; i++) values[i][c] = fma(w[i].e[e], y, values[i][c]);
            }
    }
}
__device__ __forceinline__ void put_row(const etch_args &a, const place_of &p, i64 query,
                                        int across, const VALUE_0 (&values)[OWN], VALUE_0 top,
                                        VALUE_0 sum) {
    const i64 at = p.head * a.queries + query, all = p.split * a.heads * a.queries + at;
    sum = over_row(sum, false);
    if (query >= a.queries) return;
    ETCH_0 *const y = row_of_result(a, p.head, query);
    if (SPLIT && across == 0) a.rows[all * 2] = top, a.rows[all * 2 + 1] = sum;
    #pragma unroll
    for (int c = 0; c < OWN; c++) {
        const int column = across + c * 16;
        if (column >= a.out_width) continue;
        if (SPLIT) a.values[all * a.out_width + column] = values[c];
        else put(y + column, sum == 0 ? (VALUE_0)0 : values[c] / sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    etch_attention(const __grid_constant__ etch_args a) {
    extern __shared__ uint4 words[];
    VALUE_0 *const q = (VALUE_0 *)words, *const k = q + ROWS * PITCH, *const v = k + KEYS * PITCH;
    const place_of p = place_of_block(a, ROWS);
    const keys_of seen = keys_of_block(a, p, ROWS);
    const int down = threadIdx.x / 16 * 4, across = threadIdx.x % 16;
    VALUE_0 *const weights = v + KEYS * OUT + down * WEIGHTS;
    const i64 shared = p.head / a.group, query = p.query + down;
    const ETCH_0 *const keys = a.k + place(a.at_k.heads, shared);
    const ETCH_0 *const from = a.v + place(a.at_v.heads, shared);
    const ETCH_1 *const mask = MASK ? a.mask + place(a.at_mask.heads, p.head) : a.mask;
    VALUE_0 values[4][OWN] = {}, top[4], sum[4] = {};
    for (int i = 0; i < 4; i++) top[i] = LOWEST;
    fetch<ROWS, WIDTH>(q, PITCH, a.q + place(a.at_q.heads, p.head) + p.query * a.at_q.row, a.at_q,
                       a.queries - p.query, a.width);
    for (i64 key = seen.from; key < seen.to; key += KEYS) {
        VALUE_0 s[4][FAR];
        __syncthreads();
        fetch<KEYS, WIDTH>(k, PITCH, keys + key * a.at_k.row, a.at_k, seen.to - key, a.width);
        fetch<KEYS, OUT>(v, OUT, from + key * a.at_v.row, a.at_v, seen.to - key, a.out_width);
        __syncthreads();
        multiply_keys(q + down * PITCH, k + across * PITCH, s);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            #pragma unroll
            for (int j = 0; j < FAR; j++) {
                const i64 at = key + across + j * 16;
                s[i][j] = s[i][j] * a.scale;
                if (at >= a.keys || (CAUSAL && at > query + i)) s[i][j] = LOWEST;
                else if (MASK) s[i][j] = masked(a, mask, query + i, at, s[i][j], (VALUE_0)1);
            }
            const VALUE_0 shrink = soften(s[i], top[i], sum[i]);
            #pragma unroll
            for (int c = 0; c < OWN; c++) values[i][c] = values[i][c] * shrink;
            #pragma unroll
            for (int j = 0; j < FAR; j++) weights[i * WEIGHTS + across + j * 16] = s[i][j];
        }
        __syncwarp();
        add_values(weights, v + across, values);
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) put_row(a, p, query + i, across, values[i], top[i], sum[i]);
}
