/* Products with weights of few bits, for one way to multiply integers: the file that includes this
 * one says how, by
 *
 *   NAME(x)                     what the functions here are called
 *   dots                        sums of 16 rows, and
 *   clear(d), step(d, w, flip, x), finish(d, out)   which sets them to 0, adds the products of 16
 *                               rows of 4 unsigned numbers and the 4 signed ones at x, gives them
 *   pieces                      64 bytes of w: load(p), flipped(v) of signed numbers plus 128,
 *                               low(v), high(v): of nibbles
 *   AT_ONCE                     rows of x that are taken together */

/* One block: the sums of `count` rows of x. */
static inline __attribute__((always_inline)) void NAME(block)(const quantized_rows *q,
                                                              const uint8_t *w, const int8_t *x,
                                                              int64_t n, int count,
                                                              int_lanes *out) {
    dots sum[AT_ONCE], more[AT_ONCE];
    /* What is fetched ahead of four groups at a time has to stay in the first cache. */
    int64_t each = q->nibbles ? 8 : 4, ahead = q->nibbles ? 1536 : 4096;
    for (int r = 0; r < count; r++) clear(&sum[r]), clear(&more[r]);
    for (int64_t k = 0; k < n; k += each, w += 64) {
        __builtin_prefetch(w + ahead);
        pieces v = load(w);
        pieces first = q->nibbles ? low(v) : flipped(v);
        for (int r = 0; r < count; r++) step(&sum[r], first, x + r * q->x_pitch + k);
        if (!q->nibbles) continue;
        pieces second = high(v);
        for (int r = 0; r < count; r++) step(&more[r], second, x + r * q->x_pitch + k + 4);
    }
    for (int r = 0; r < count; r++) finish(&sum[r], &more[r], (int32_t *)&out[r]);
}

/* The scales of 16 rows for one group; what there are not is 0. */
static inline __attribute__((always_inline)) void
NAME(take_scales)(const quantized_rows *q, int64_t group, int64_t first, lanes *to) {
    const float *from = q->scales + group * q->pitch + first;
    int64_t rows = q->rows - first;
    __builtin_prefetch(from + (q->nibbles ? QUANTIZED_TOGETHER : 3 * q->pitch), 0, 2);
    if (rows >= QUANTIZED_ROWS) memcpy(to, from, sizeof *to);
    else
        for (int i = 0; i < QUANTIZED_ROWS; i++) (*to)[i] = i < rows ? from[i] : 0;
}

static inline __attribute__((always_inline)) void NAME(add)(const quantized_rows *q,
                                                            const int_lanes *out,
                                                            const lanes *scales, int64_t row,
                                                            int64_t block, lanes *acc) {
    float scale = q->x_scales[row * q->blocks + block];
    int32_t less = q->x_sums[row * q->blocks + block] * (q->nibbles ? 8 : 128);
    *acc += __builtin_convertvector(*out - less, lanes) * scale * *scales;
}

/* One group of 16 rows from `first` on, for `count` rows of x. */
static inline __attribute__((always_inline)) void
NAME(group)(const quantized_rows *q, int64_t row, int count, int64_t g, int64_t first, lanes *acc) {
    lanes scales = {0};
    int_lanes out[AT_ONCE];
    int64_t bytes = q->nibbles ? 8 : 16; /* of 16 rows, a column */
    int64_t block = g * ((q->group + QUANTIZED_BLOCK - 1) / QUANTIZED_BLOCK);
    const uint8_t *w = q->w + first / QUANTIZED_ROWS * q->w_pitch + g * q->group * bytes;
    const int8_t *x = q->x + row * q->x_pitch + g * q->group;
    NAME(take_scales)(q, g, first, &scales);
    for (int64_t left = q->group, n; left > 0; left -= n, x += n, w += n * bytes, block++) {
        n = left < QUANTIZED_BLOCK ? left : QUANTIZED_BLOCK;
        NAME(block)(q, w, x, n, count, out);
        for (int r = 0; r < count; r++) NAME(add)(q, &out[r], &scales, row + r, block, &acc[r]);
    }
}

/* `count` rows of x from `row` on. The scales of a group are read for all rows of the weight. */
static inline __attribute__((always_inline)) void NAME(some)(const quantized_rows *q, int64_t row,
                                                             int count) {
    lanes acc[QUANTIZED_TOGETHER / QUANTIZED_ROWS][AT_ONCE];
    int64_t some = (q->rows + QUANTIZED_ROWS - 1) / QUANTIZED_ROWS;
    memset(acc, 0, sizeof acc);
    for (int64_t g = 0; g * q->group < q->columns; g++)
        for (int64_t i = 0; i < some; i++)
            NAME(group)(q, row, count, g, i * QUANTIZED_ROWS, acc[i]);
    for (int64_t i = 0; i < some; i++)
        for (int r = 0; r < count; r++) {
            int64_t left = q->rows - i * QUANTIZED_ROWS;
            left = left < QUANTIZED_ROWS ? left : QUANTIZED_ROWS;
            memcpy(q->y + (row + r) * q->y_pitch + i * QUANTIZED_ROWS, &acc[i][r],
                   sizeof(float) * (size_t)left);
        }
}

static void NAME(rows)(const quantized_rows *q) {
    int64_t row = 0;
    for (; row + AT_ONCE <= q->count; row += AT_ONCE) NAME(some)(q, row, AT_ONCE);
    for (; AT_ONCE > 2 && row + 2 <= q->count; row += 2) NAME(some)(q, row, 2);
    for (; row < q->count; row++) NAME(some)(q, row, 1);
}
