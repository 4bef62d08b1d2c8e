/* Scores of warp groups under a mask. One of bools, or of halves as the operands are, is read 16
 * bytes at a time where its rows allow that (MASK_PIECES): of the four lanes that share a row, lane
 * l reads every fourth piece from l on, and they exchange what each of them needs for its two of
 * every eight columns. With a scale that is positive, and without a mask that is added, scores stay
 * as they are (RAW), and the scale is multiplied in the exponent. Powers are of 2: log2(e) is in
 * the scale. */
#include "attention_rows.cuh"

/* Of four words of four lanes each, lane l gets all of number l. */
__device__ __forceinline__ void turn_words(unsigned (&w)[4], int lane) {
    #pragma unroll
    for (int d = 1; d < 4; d *= 2)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & d) continue;
            const bool upper = lane & d;
            const unsigned x = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + d], d);
            if (upper) w[i] = x;
            else w[i + d] = x;
        }
}

enum { MASK_PER_LANE = MASK_PIECES ? KEYS * (int)sizeof(ETCH_1) / 64 : 1 };

/* What a lane has read for its rows `query` + lane / 4 and 8 more. */
struct mask_part {
    uint4 piece[2][MASK_PER_LANE];
};
__device__ __forceinline__ void read_mask(const etch_args &a, const ETCH_1 *mask, i64 query,
                                          i64 key, int lane, mask_part &m) {
    const int each = 16 / (int)sizeof(ETCH_1);
    if (!MASK_PIECES) return;
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        const i64 row = query + lane / 4 + h * 8, first = key + lane % 4 * each;
        const ETCH_1 *const at = mask + row * a.at_mask.row + first;
        #pragma unroll
        for (int i = 0; i < MASK_PER_LANE; i++) {
            const bool there = row < a.queries && first + i * 4 * each < a.keys;
            m.piece[h][i] = there ? *(const uint4 *)(at + i * 4 * each) : make_uint4(0, 0, 0, 0);
        }
    }
}

/* Four bools as four bits. */
__device__ __forceinline__ unsigned bits_of(unsigned bools) { return bools * 0x01020408u >> 24; }
/* Word k: bit 16 i + b is bool b of piece 4 i + k, counted from the lane's first column. */
__device__ __forceinline__ void bits_of_row(const uint4 (&piece)[MASK_PER_LANE], int lane,
                                            unsigned (&bits)[4]) {
    unsigned own = 0;
    #pragma unroll
    for (int i = 0; i < MASK_PER_LANE; i++) {
        const unsigned low = bits_of(piece[i].x) | bits_of(piece[i].y) << 4;
        own |= (low | bits_of(piece[i].z) << 8 | bits_of(piece[i].w) << 12) << 16 * i;
    }
    #pragma unroll
    for (int k = 0; k < 4; k++)
        bits[k] = __shfl_sync(0xffffffffu, own, lane / 4 * 4 + k) >> lane % 4 * 2;
}
__device__ __forceinline__ void hide_by_bits(const uint4 (&piece)[MASK_PER_LANE], int lane, int h,
                                             float (&s)[KEYS / 8][4]) {
    unsigned bits[4];
    bits_of_row(piece, lane, bits);
    #pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        #pragma unroll
        for (int e = 0; e < 2; e++)
            if (!(bits[n / 2 % 4] >> (n / 8 * 16 + n % 2 * 8 + e) & 1)) s[n][2 * h + e] = LOWEST;
}

__device__ __forceinline__ float half_of(unsigned word, int e) {
    return load_half((unsigned short)(word >> 16 * e), BF16);
}
__device__ __forceinline__ void add_halves(const uint4 (&piece)[MASK_PER_LANE], int lane, int h,
                                           float (&s)[KEYS / 8][4]) {
    #pragma unroll
    for (int n = 0; n < KEYS / 8; n += 4) {
        const uint4 p = piece[n / 4 % MASK_PER_LANE];
        unsigned w[4] = {p.x, p.y, p.z, p.w};
        turn_words(w, lane);
        #pragma unroll
        for (int i = 0; i < 4; i++)
            #pragma unroll
            for (int e = 0; e < 2; e++)
                s[n + i][2 * h + e] = s[n + i][2 * h + e] + half_of(w[i], e) * 1.44269504f;
    }
}
/* Row h of the lane's two. */
__device__ __forceinline__ void scale_row(const etch_args &a, int h, float (&s)[KEYS / 8][4]) {
    #pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        #pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) s[n][e] = s[n][e] * a.scale;
}
/* Keys that a row does not see have no weight. */
__device__ __forceinline__ void hide_unseen(const etch_args &a, i64 row, i64 key, int lane, int h,
                                            float (&s)[KEYS / 8][4]) {
    const i64 seen = (CAUSAL && row + 1 < a.keys ? row + 1 : a.keys) - key;
    const int limit = seen < KEYS ? (int)seen : KEYS;
    #pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        #pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++)
            if (n * 8 + lane % 4 * 2 + e % 2 >= limit) s[n][e] = LOWEST;
}
__device__ __forceinline__ void mask_row(const etch_args &a, const ETCH_1 *mask, i64 row, i64 key,
                                         int lane, int h, float (&s)[KEYS / 8][4]) {
    #pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        #pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) {
            const i64 column = key + n * 8 + lane % 4 * 2 + e % 2;
            if (column < a.keys) s[n][e] = masked(a, mask, row, column, s[n][e], 1.44269504f);
        }
}
/* PARTLY: there may be keys that rows do not see. */
template <bool PARTLY>
__device__ __forceinline__ void mask_by(const etch_args &a, const ETCH_1 *mask, const mask_part &m,
                                        i64 query, i64 key, int lane, float (&s)[KEYS / 8][4]) {
    const bool partly = key + KEYS > a.keys || (CAUSAL && key + KEYS - 1 > query);
    if (RAW && !MASK && !(PARTLY && partly)) return;
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        const i64 row = query + lane / 4 + h * 8;
        if (!RAW) scale_row(a, h, s);
        if (MASK && !MASK_PIECES) mask_row(a, mask, row, key, lane, h, s);
        else if (MASK == 1) hide_by_bits(m.piece[h], lane, h, s);
        else if (MASK) add_halves(m.piece[h], lane, h, s);
        if (PARTLY && partly) hide_unseen(a, row, key, lane, h, s);
    }
}
