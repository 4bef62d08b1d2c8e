/* What the kernels of attention have in common: operands, which block has which queries, and which
 * keys a query sees. Without dropout: that is written out in operators. */
#include "example.h"

/* [heads, rows, columns]: where a head begins, and strides in elements. */
struct operand {
    etch_dims heads;
    i64 row, column;
};
struct etch_args {
    const ETCH_0 *q, *k, *v;
    const ETCH_1 *mask;
    ETCH_0 *y;
    VALUE_0 *values, *rows; /* SPLIT: of each query in each split the sum of values; maximum, sum */
    operand at_q, at_k, at_v, at_mask, at_y; /* at_y: columns are neighbours */
    i64 heads, group, queries, keys, width, out_width; /* heads of all samples */
    i64 splits, share, first; /* share: keys of a split; first: the launch's first block */
    i64 section;              /* heads whose blocks are met by what they have to do */
    VALUE_0 scale;
};
/* Heads in order, so that those who read the same keys are neighbours; of a head the blocks that
 * see most keys first. */
struct place_of {
    i64 head, split, query;
};
__device__ __forceinline__ place_of place_of_block(const etch_args &a, int rows) {
    const i64 blocks = (a.queries + rows - 1) / rows, u = a.first + blockIdx.x;
    return {u / blocks / a.splits, u / blocks % a.splits, (blocks - 1 - u % blocks) * rows};
}
/* The keys [from, to) that the block looks at. */
struct keys_of {
    i64 from, to;
};
__device__ __forceinline__ keys_of keys_of_block(const etch_args &a, const place_of &p, int rows) {
    const i64 seen = CAUSAL && p.query + rows < a.keys ? p.query + rows : a.keys;
    const i64 from = p.split * a.share, end = from + a.share;
    return {from, end < seen ? end : seen};
}
/* A query's row of the result. */
__device__ __forceinline__ ETCH_0 *row_of_result(const etch_args &a, i64 head, i64 query) {
    return a.y + place(a.at_y.heads, head) + query * a.at_y.row;
}
#define LOWEST (-(VALUE_0)__int_as_float(0x7f800000))
/* A score under the mask: MASK 1 of bools, 2 added. */
__device__ __forceinline__ VALUE_0 masked(const etch_args &a, const ETCH_1 *mask, i64 query,
                                          i64 key, VALUE_0 score, VALUE_0 unit) {
    if (query >= a.queries) return score;
    const auto m = value(mask[query * a.at_mask.row + key * a.at_mask.column]);
    if (MASK == 1) return m ? score : LOWEST;
    return score + (VALUE_0)m * unit;
}
