/* What the kernels of attention by warp groups have in common: queries, keys and values as panels
 * of 64 columns in shared memory, and the two products. ROWS: queries of a block. */
#include "attention_mask.cuh"
#include "warp_group.cuh"

enum { ROWS = 64 * GROUPS };

/* Where a head begins; of a result in memory there are less than 2^32. */
__device__ __forceinline__ i64 head_at(const operand &o, unsigned head) {
    i64 at = 0;
    for (int x = (int)o.heads.n - 1; x > 0; x--) {
        const unsigned size = (unsigned)o.heads.size[x], rest = head / size;
        at += (head - rest * size) * o.heads.stride[x];
        head = rest;
    }
    return o.heads.n ? at + head * o.heads.stride[0] : 0;
}

/* Where an element lies in panels of 64 columns. */
template <int MOST> __device__ __forceinline__ int in_panels(int row, int column) {
    return column / 64 * (MOST * 64) + swizzled(row, column % 64);
}
struct __align__(2 * sizeof(ETCH_0)) neighbours {
    ETCH_0 first, second;
};
/* Rows that cannot be copied 16 bytes at a time: COUNT threads read neighbours of a row. */
template <int COUNT, int MOST, int N>
__device__ __forceinline__ void fetch_pairs(ETCH_0 *to, const ETCH_0 *from, const operand &o,
                                            int left, i64 columns) {
    const int t = threadIdx.x % COUNT, step = COUNT / (N / 2), column = t % (N / 2) * 2;
    const ETCH_0 *x = from + t / (N / 2) * o.row + column * o.column;
    #pragma unroll 16
    for (int row = t / (N / 2); row < MOST; row += step, x += step * o.row) {
        *(neighbours *)(to + in_panels<MOST>(row, column)) = {
            row < left && column < columns ? x[0] : ETCH_0{0},
            row < left && column + 1 < columns ? x[o.column] : ETCH_0{0}};
    }
}
/* By COUNT threads, MOST x N halves as panels of 64 columns; what is not there is 0. */
template <int COUNT, int MOST, int N>
__device__ __forceinline__ void fetch(ETCH_0 *to, const ETCH_0 *from, const operand &o, i64 rows,
                                      i64 columns) {
    if (PIECES)
        fetch_rows<COUNT, MOST, N>(from, o, rows, columns, [&](int row, int column) {
            return to + in_panels<MOST>(row, column);
        });
    else fetch_pairs<COUNT, MOST, N>(to, from, o, rows < MOST ? (int)rows : MOST, columns);
}
/* The same, with few instructions where all is there: what a thread copies lies in the same piece
 * of rows a multiple of eight apart. */
template <int COUNT, int MOST, int N>
__device__ __forceinline__ void fetch_fast(ETCH_0 *to, const ETCH_0 *from, const operand &o,
                                           i64 rows, i64 columns) {
    const int t = threadIdx.x % COUNT, step = COUNT / (N / 8), column = t % (N / 8) * 8;
    if (!PIECES || rows < MOST || columns < N) {
        fetch<COUNT, MOST, N>(to, from, o, rows, columns);
        return;
    }
    const ETCH_0 *x = from + t / (N / 8) * o.row + column;
    ETCH_0 *const at = to + in_panels<MOST>(t / (N / 8), column);
    const i64 by = step * o.row;
    #pragma unroll
    for (int n = 0; n < MOST / step; n++, x += by) copy(at + n * step * 64, x, true);
}

/* Begins scores = q k', q the rows of the thread's group. */
__device__ __forceinline__ void begin_scores(float (&s)[KEYS / 8][4], const ETCH_0 *q,
                                             const ETCH_0 *k) {
    const operand_at x = operand_in(q, 8), y = operand_in(k, 8);
    group_begins(s);
    #pragma unroll
    for (int d = 0; d < WIDTH; d += 16)
        multiply_shared<BF16>(s, behind(x, d / 64 * (ROWS * 64) + d % 64),
                              behind(y, d / 64 * (KEYS * 64) + d % 64), d > 0);
    group_ends();
}
/* Begins values += powers v. */
__device__ __forceinline__ void begin_values(float (&values)[OUT / 8][4],
                                             const unsigned (&powers)[KEYS / 16][4],
                                             const ETCH_0 *v) {
    const operand_at y = operand_in(v, KEYS * 64);
    group_begins(values);
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        multiply_turned<BF16>(values, powers[k], behind(y, k * 16 * 64));
    group_ends();
}
__device__ __forceinline__ void pack_all(const float (&s)[KEYS / 8][4],
                                         unsigned (&powers)[KEYS / 16][4]) {
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++) pack_powers(s, k, powers[k]);
}

/* A row of the result, of which four lanes have two of every eight columns, 16 bytes at a time. */
__device__ __forceinline__ void put_pieces(const etch_args &a, ETCH_0 *row, bool there, int lane,
                                           int h, const float (&values)[OUT / 8][4], float sum) {
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    #pragma unroll
    for (int n = 0; n < OUT / 8; n += 4) {
        unsigned w[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *const pair = values[n + i] + 2 * h;
            w[i] = sum == 0 ? 0 : pack<BF16>(pair[0] * inverse, pair[1] * inverse);
        }
        turn_words(w, lane);
        const int column = (n + lane % 4) * 8;
        if (there && column < a.out_width)
            *(uint4 *)(row + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}
/* What the warp has summed up of 16 queries from `query` on. */
__device__ __forceinline__ void put_queries(const etch_args &a, const place_of &p, i64 query,
                                            int lane, const float (&values)[OUT / 8][4],
                                            const float (&top)[2], const float (&sum)[2]) {
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        const i64 row = query + lane / 4 + h * 8;
        if (SPLIT || !PIECES) {
            put_row(a, p, row, lane, h, values, top[h], sum[h]);
            continue;
        }
        const float all = over_lanes(sum[h], false);
        ETCH_0 *const to = a.y + head_at(a.at_y, (unsigned)p.head) + row * a.at_y.row;
        put_pieces(a, to, row < a.queries, lane, h, values, all);
    }
}
