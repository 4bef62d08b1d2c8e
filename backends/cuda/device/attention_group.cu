/* Attention of halves by warp groups (compute capability 9.0): softmax(scale q k' + mask) v without
 * the matrix of scores.
 *
 * A block has 64 GROUPS queries of a head, a warp group of 128 threads 64 of them; it meets KEYS
 * keys after KEYS. While the scores of one round become powers, the tensor cores multiply those of
 * the round before by its values; keys and values of the next round are copied meanwhile, into the
 * other of two buffers each. The order of sums follows from KEYS alone. After Shah et al.,
 * FlashAttention-3 (2024). */
#include "attention_rows.cuh"
#include "warp_group.cuh"

enum {
    BLOCK = 128 * GROUPS, ROWS = 64 * GROUPS, K_SIZE = KEYS * WIDTH, V_SIZE = KEYS * OUT,
    K_AT = ROWS * WIDTH, V_AT = K_AT + 2 * K_SIZE
};

/* As panels of 64 columns. */
template <int MOST, int N>
__device__ __forceinline__ void fetch(ETCH_0 *to, const ETCH_0 *from, const operand &o, i64 rows,
                                      i64 columns) {
    fetch_rows<BLOCK, MOST, N>(from, o, rows, columns, [&](int row, int column) {
        return to + column / 64 * (MOST * 64) + swizzled(row, column % 64);
    });
}

/* Begins scores = q k'. */
__device__ __forceinline__ void begin_scores(float (&s)[KEYS / 8][4], const ETCH_0 *q,
                                             const ETCH_0 *k) {
    group_begins(s);
    #pragma unroll
    for (int d = 0; d < WIDTH; d += 16)
        multiply_shared<BF16>(s, q + d / 64 * (ROWS * 64) + d % 64,
                              k + d / 64 * (KEYS * 64) + d % 64, d > 0);
    group_ends();
}
/* Begins values += powers v. */
__device__ __forceinline__ void begin_values(float (&values)[OUT / 8][4],
                                             const unsigned (&powers)[KEYS / 16][4],
                                             const ETCH_0 *v) {
    group_begins(values);
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        multiply_turned<BF16>(values, powers[k], v + k * 16 * 64, KEYS * 64);
    group_ends();
}
__device__ __forceinline__ void pack_all(const float (&s)[KEYS / 8][4],
                                         unsigned (&powers)[KEYS / 16][4]) {
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++) pack_powers(s, k, powers[k]);
}
/* What was copied is there for all threads, and for the tensor cores. */
__device__ __forceinline__ void meet() {
    copies_done();
    copies_shown();
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
    etch_attention(const __grid_constant__ etch_args a) {
    extern __shared__ uint4 words[];
    ETCH_0 *const q = (ETCH_0 *)whole_panel(words);
    const place_of p = place_of_block(a, ROWS);
    const keys_of s = keys_of_block(a, p, ROWS);
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 shared = p.head / a.group, query = p.query + warp * 16;
    const ETCH_0 *const keys = a.k + place(a.at_k.heads, shared);
    const ETCH_0 *const values = a.v + place(a.at_v.heads, shared);
    const ETCH_1 *const mask = MASK ? a.mask + place(a.at_mask.heads, p.head) : a.mask;
    const ETCH_0 *const own = q + group * 64 * 64;
    float sums[OUT / 8][4] = {}, scores[KEYS / 8][4];
    float top[2] = {LOWEST, LOWEST}, sum[2] = {}, shrink[2];
    unsigned powers[KEYS / 16][4];
    const auto fetch_keys = [&](i64 key, int round) {
        if (key < s.to)
            fetch<KEYS, WIDTH>(q + K_AT + round % 2 * K_SIZE, keys + key * a.at_k.row, a.at_k,
                               s.to - key, a.width);
    };
    const auto fetch_values = [&](i64 key, int round) {
        if (key < s.to)
            fetch<KEYS, OUT>(q + V_AT + round % 2 * V_SIZE, values + key * a.at_v.row, a.at_v,
                             s.to - key, a.out_width);
    };
    fetch<ROWS, WIDTH>(q, a.q + place(a.at_q.heads, p.head) + p.query * a.at_q.row, a.at_q,
                       a.queries - p.query, a.width);
    fetch_keys(s.from, 0);
    int round = 0;
    for (i64 key = s.from; key < s.to; key += KEYS, round++) {
        meet();
        fetch_keys(key + KEYS, round + 1);
        fetch_values(key, round);
        begin_scores(scores, own, q + K_AT + round % 2 * K_SIZE);
        if (round) begin_values(sums, powers, q + V_AT + (round + 1) % 2 * V_SIZE);
        if (round) group_done<1>(scores);
        else group_done<0>(scores);
        mask_scores(a, mask, query, key, lane, scores);
        soften(a, scores, top, sum, shrink);
        group_done<0>(sums);
        shrink_values(sums, shrink);
        pack_all(scores, powers);
    }
    meet();
    if (round) begin_values(sums, powers, q + V_AT + (round + 1) % 2 * V_SIZE);
    group_done<0>(sums);
    #pragma unroll
    for (int h = 0; h < 2; h++)
        put_row(a, p, query + lane / 4 + h * 8, lane, h, sums, top[h], sum[h]);
}
