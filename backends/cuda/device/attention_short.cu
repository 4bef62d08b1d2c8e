/* Attention of halves by a warp group (compute capability 9.0) over few keys: a block meets all of
 * them at once with 64 queries of a head, and values are copied while scores are multiplied. Blocks
 * are small, so that one waits for its keys while another computes. */
#include "attention_group.cuh"

enum { BLOCK = 128, K_AT = ROWS * WIDTH, V_AT = K_AT + KEYS * WIDTH };

/* What was copied, but for the last LEFT parts, is there for all threads, and the tensor cores. */
template <int LEFT> __device__ __forceinline__ void meet() {
    copies_left<LEFT>();
    copies_shown();
    __syncthreads();
}

/* Begins to copy queries and keys, and behind them values. */
__device__ __forceinline__ void fetch_all(const etch_args &a, ETCH_0 *q, const place_of &p) {
    const unsigned shared = (unsigned)p.head / (unsigned)a.group;
    const ETCH_0 *const queries = a.q + head_at(a.at_q, (unsigned)p.head);
    fetch<BLOCK, ROWS, WIDTH>(q, queries + p.query * a.at_q.row, a.at_q, a.queries - p.query,
                              a.width);
    fetch<BLOCK, KEYS, WIDTH>(q + K_AT, a.k + head_at(a.at_k, shared), a.at_k, a.keys, a.width);
    copies_begun();
    fetch<BLOCK, KEYS, OUT>(q + V_AT, a.v + head_at(a.at_v, shared), a.at_v, a.keys, a.out_width);
    copies_begun();
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    etch_attention(const __grid_constant__ etch_args a) {
    extern __shared__ uint4 words[];
    ETCH_0 *const q = (ETCH_0 *)whole_panel(words);
    const unsigned blocks = (unsigned)(a.queries + ROWS - 1) / ROWS;
    const unsigned u = (unsigned)a.first + blockIdx.x, head = u / blocks;
    const place_of p = {head, 0, (i64)(u - head * blocks) * ROWS};
    const int lane = threadIdx.x % 32;
    const i64 query = p.query + threadIdx.x / 32 * 16;
    const ETCH_1 *const mask = MASK ? a.mask + head_at(a.at_mask, head) : a.mask;
    float sums[OUT / 8][4] = {}, scores[KEYS / 8][4];
    float top[2] = {LOWEST, LOWEST}, sum[2] = {}, shrink[2];
    unsigned powers[KEYS / 16][4];
    mask_part part;
    fetch_all(a, q, p);
    read_mask(a, mask, query, 0, lane, part);
    meet<1>();
    begin_scores(scores, q, q + K_AT);
    group_done<0>(scores);
    mask_by<true>(a, mask, part, query, 0, lane, scores);
    soften(a, scores, top, sum, shrink);
    pack_all(scores, powers);
    meet<0>();
    begin_values(sums, powers, q + V_AT);
    group_done<0>(sums);
    put_queries(a, p, query, lane, sums, top, sum);
}
