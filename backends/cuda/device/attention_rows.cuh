/* What the tensor cores' kernels of attention do with scores and sums in registers: 16 rows of a
 * warp, of which lane l has those of number l / 4 and 8 more, each with two neighbours of every 8
 * columns (PTX ISA, mma.m16n8k16). */
#include "attention.cuh"
#include "tensor_core.cuh"

using namespace tensor_core;

/* MOST x N halves for COUNT threads, whose first is a multiple of COUNT, 8 neighbours each at once,
 * to to(row, column); what is not there is 0. */
template <int COUNT, int MOST, int N, class F>
__device__ __forceinline__ void fetch_rows(const ETCH_0 *from, const operand &o, i64 rows,
                                           i64 columns, F to) {
    const int left = rows < MOST ? (int)rows : MOST;
    const int t = threadIdx.x % COUNT, first = t / (N / 8);
    const bool even = COUNT % (N / 8) == 0; /* a thread stays in its columns */
    const ETCH_0 *x = from + first * o.row;
    #pragma unroll
    for (int n = 0; n < (MOST * (N / 8) + COUNT - 1) / COUNT; n++) {
        const int i = n * COUNT + t, column = (even ? t : i) % (N / 8) * 8;
        const int row = even ? first + n * (COUNT / (N / 8)) : i / (N / 8);
        if (!even) x = from + row * o.row;
        if (MOST * (N / 8) % COUNT && row >= MOST) break;
        const bool there = row < left && column < columns;
        ETCH_0 *const at = to(row, column);
        if (PIECES) copy(at, there ? x + column : from, there);
        else
            for (int j = 0; j < 8; j++)
                at[j] = there && column + j < columns ? x[(column + j) * o.column] : ETCH_0{0};
        if (even) x += COUNT / (N / 8) * o.row;
    }
}

/* Without a mask, and with a scale that is positive, scores stay as they are (RAW), and the scale
 * is multiplied in the exponent; else here. Powers are of 2: log2(e) is in the scale. Keys that a
 * row does not see have no weight. */
__device__ __forceinline__ void mask_scores(const etch_args &a, const ETCH_1 *mask, i64 query,
                                            i64 key, int lane, float (&s)[KEYS / 8][4]) {
    const bool partly = key + KEYS > a.keys || (CAUSAL && key + KEYS - 1 > query);
    if (RAW && !partly) return;
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        const i64 row = query + lane / 4 + h * 8;
        const i64 seen = (CAUSAL && row + 1 < a.keys ? row + 1 : a.keys) - key;
        const int limit = seen < KEYS ? (int)seen : KEYS;
        #pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            #pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                const int column = n * 8 + lane % 4 * 2 + e % 2;
                if (!RAW) s[n][e] = s[n][e] * a.scale;
                if (column >= limit) s[n][e] = LOWEST;
                else if (MASK) s[n][e] = masked(a, mask, row, key + column, s[n][e], 1.44269504f);
            }
    }
}

__device__ __forceinline__ float exponent(const etch_args &a, float top) {
    return RAW ? top * a.scale : top;
}
__device__ __forceinline__ float over_lanes(float x, bool max) {
    #pragma unroll
    for (int d = 1; d < 4; d *= 2) {
        const float y = __shfl_xor_sync(0xffffffffu, x, d);
        x = max ? fmaxf(x, y) : x + y;
    }
    return x;
}

/* Scores become powers; by how much what the rows have is to shrink. Of neighbours the first ones
 * are summed, and the second ones. */
__device__ __forceinline__ void soften(const etch_args &a, float (&s)[KEYS / 8][4],
                                       float (&top)[2], float (&sum)[2], float (&shrink)[2]) {
    float most[4] = {top[0], LOWEST, top[1], LOWEST}, base[2], own[4] = {};
    #pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        #pragma unroll
        for (int e = 0; e < 4; e++) most[e] = fmaxf(most[e], s[n][e]);
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        const float over = over_lanes(fmaxf(most[2 * h], most[2 * h + 1]), true);
        base[h] = over == LOWEST ? 0.0f : exponent(a, over);
        shrink[h] = power_of_two(exponent(a, top[h]) - base[h]);
        top[h] = over;
    }
    #pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float x = s[n][e], b = base[e / 2];
            s[n][e] = power_of_two(RAW ? fmaf(x, a.scale, -b) : x - b);
            own[e] = own[e] + s[n][e];
        }
    #pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = sum[h] * shrink[h] + (own[2 * h] + own[2 * h + 1]);
}
__device__ __forceinline__ bool shrinks(const float (&by)[2]) {
    return __any_sync(0xffffffffu, by[0] != 1 || by[1] != 1);
}
__device__ __forceinline__ void shrink_values(float (&values)[OUT / 8][4], const float (&by)[2]) {
    #pragma unroll
    for (int n = 0; n < OUT / 8; n++)
        #pragma unroll
        for (int e = 0; e < 4; e++) values[n][e] = values[n][e] * by[e / 2];
}
/* 16 powers as halves, a fragment that multiplies values. */
__device__ __forceinline__ void pack_powers(const float (&s)[KEYS / 8][4], int k,
                                            unsigned (&x)[4]) {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *const pair = s[2 * k + i / 2] + i % 2 * 2;
        x[i] = pack<BF16>(pair[0], pair[1]);
    }
}

/* Two neighbours of a row. */
__device__ __forceinline__ void put_pair(const etch_args &a, ETCH_0 *row, int column, float x,
                                         float y) {
    ETCH_0 *const to = row + column;
    if (a.out_width % 2 == 0) *(unsigned *)to = pack<BF16>(x, y);
    else {
        put(to, x);
        if (column + 1 < a.out_width) put(to + 1, y);
    }
}
__device__ __forceinline__ void put_row(const etch_args &a, const place_of &p, i64 query, int lane,
                                        int h, const float (&values)[OUT / 8][4], float top,
                                        float sum) {
    const i64 at = p.head * a.queries + query, all = p.split * a.heads * a.queries + at;
    sum = over_lanes(sum, false);
    if (query >= a.queries) return;
    ETCH_0 *const row = row_of_result(a, p.head, query);
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    if (SPLIT && lane % 4 == 0) a.rows[all * 2] = exponent(a, top), a.rows[all * 2 + 1] = sum;
    #pragma unroll
    for (int n = 0; n < OUT / 8; n++) {
        const int column = n * 8 + lane % 4 * 2;
        const float x = values[n][2 * h], y = values[n][2 * h + 1];
        if (column >= a.out_width) continue;
        if (SPLIT) {
            a.values[all * a.out_width + column] = x;
            if (column + 1 < a.out_width) a.values[all * a.out_width + column + 1] = y;
        } else if (sum == 0) put_pair(a, row, column, 0.0f, 0.0f);
        else put_pair(a, row, column, x * inverse, y * inverse);
    }
}

