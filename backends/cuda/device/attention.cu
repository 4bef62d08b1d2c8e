/* Attention of halves by the tensor cores: softmax(scale q k' + mask) v without the matrix of
 * scores.
 *
 * A block has 16 TALL WARPS queries of a head; it meets KEYS keys after KEYS. Scores stay in the
 * registers of the warp that has the rows: they become powers under the running maximum, what was
 * summed before shrinks to that, and as halves they multiply the values. Keys of the next round are
 * copied while values are summed, and values while scores are. The order of sums follows from KEYS
 * alone. After Dao, FlashAttention-2 (2023). */
#include "attention_rows.cuh"

enum { BLOCK = 32 * WARPS, ROWS = 16 * TALL * WARPS, PITCH = WIDTH + 8, OUT_PITCH = OUT + 8 };

/* Rows of shared memory with 8 halves more, so that 8 rows of a matrix lie in different banks. */
template <int MOST, int N>
__device__ __forceinline__ void fetch(ETCH_0 *to, const ETCH_0 *from, const operand &o, i64 rows,
                                      i64 columns) {
    fetch_rows<BLOCK, MOST, N>(from, o, rows, columns,
                               [&](int row, int column) { return to + row * (N + 8) + column; });
    copies_begun();
}

/* What a warp has of its rows: lane l those of number l / 4 and 8 more in each 16. */
struct rows_of_warp {
    float values[TALL][OUT / 8][4], top[TALL][2], sum[TALL][2];
};
typedef float scores_of_warp[TALL][KEYS / 8][4];

__device__ __forceinline__ void multiply_keys(const ETCH_0 *q, const ETCH_0 *k, int lane,
                                              scores_of_warp &s) {
    #pragma unroll
    for (int t = 0; t < TALL; t++)
        #pragma unroll
        for (int n = 0; n < KEYS / 8; n++) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0;
    #pragma unroll
    for (int d = 0; d < WIDTH; d += 16) {
        unsigned x[TALL][4], y[4];
        #pragma unroll
        for (int t = 0; t < TALL; t++)
            load(x[t], q + (t * 16 + lane % 16) * PITCH + d + lane / 16 * 8);
        #pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            load(y, k + (n * 16 + lane % 8 + lane / 16 * 8) * PITCH + d + lane / 8 % 2 * 8);
            #pragma unroll
            for (int t = 0; t < TALL; t++) {
                multiply<BF16>(s[t][2 * n], x[t], y[0], y[1]);
                multiply<BF16>(s[t][2 * n + 1], x[t], y[2], y[3]);
            }
        }
    }
}

__device__ __forceinline__ void add_values(const ETCH_0 *v, int lane, const scores_of_warp &s,
                                           rows_of_warp &r) {
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        unsigned x[TALL][4], y[4];
        #pragma unroll
        for (int t = 0; t < TALL; t++) pack_powers(s[t], k, x[t]);
        #pragma unroll
        for (int n = 0; n < OUT / 16; n++) {
            load_turned(y, v + (k * 16 + lane % 16) * OUT_PITCH + n * 16 + lane / 16 * 8);
            #pragma unroll
            for (int t = 0; t < TALL; t++) {
                multiply<BF16>(r.values[t][2 * n], x[t], y[0], y[1]);
                multiply<BF16>(r.values[t][2 * n + 1], x[t], y[2], y[3]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    etch_attention(const __grid_constant__ etch_args a) {
    extern __shared__ uint4 words[];
    ETCH_0 *const q = (ETCH_0 *)words, *const k = q + ROWS * PITCH, *const v = k + KEYS * PITCH;
    const place_of p = place_of_block(a, ROWS);
    const keys_of s = keys_of_block(a, p, ROWS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 shared = p.head / a.group, query = p.query + warp * 16 * TALL;
    const ETCH_0 *const keys = a.k + place(a.at_k.heads, shared);
    const ETCH_0 *const values = a.v + place(a.at_v.heads, shared);
    const ETCH_1 *const mask = MASK ? a.mask + place(a.at_mask.heads, p.head) : a.mask;
    const bool live = query < a.queries;
    rows_of_warp r = {};
    #pragma unroll
    for (int t = 0; t < TALL; t++) r.top[t][0] = r.top[t][1] = LOWEST;
    fetch<ROWS, WIDTH>(q, a.q + place(a.at_q.heads, p.head) + p.query * a.at_q.row, a.at_q,
                       a.queries - p.query, a.width);
    fetch<KEYS, WIDTH>(k, keys + s.from * a.at_k.row, a.at_k, s.to - s.from, a.width);
    for (i64 key = s.from; key < s.to; key += KEYS) {
        scores_of_warp scores;
        copies_done();
        __syncthreads();
        fetch<KEYS, OUT>(v, values + key * a.at_v.row, a.at_v, s.to - key, a.out_width);
        if (live) {
            multiply_keys(q + warp * 16 * TALL * PITCH, k, lane, scores);
            #pragma unroll
            for (int t = 0; t < TALL; t++) {
                mask_scores(a, mask, query + t * 16, key, lane, scores[t]);
                float shrink[2];
                soften(a, scores[t], r.top[t], r.sum[t], shrink);
                if (shrinks(shrink)) shrink_values(r.values[t], shrink);
            }
        }
        copies_done();
        __syncthreads();
        if (key + KEYS < s.to)
            fetch<KEYS, WIDTH>(k, keys + (key + KEYS) * a.at_k.row, a.at_k, s.to - key - KEYS,
                               a.width);
        if (live) add_values(v, lane, scores, r);
    }
    copies_done();
    #pragma unroll
    for (int t = 0; t < TALL; t++)
        #pragma unroll
        for (int h = 0; h < 2; h++)
            put_row(a, p, query + t * 16 + lane / 4 + h * 8, lane, h, r.values[t], r.top[t][h],
                    r.sum[t][h]);
}
