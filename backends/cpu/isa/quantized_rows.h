/* Products with weights of few bits, for one way to multiply integers: the file that includes this
 * one says how, by
 *
 *   NAME(x)                     what the functions here are called
 *   dots                        sums of 16 rows, and
 *   clear(d), step(d, w, x), finish(d, more, out)   which sets them to 0, adds the products of 16
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
    int64_t size = q->halves ? 2 : 4, rows = q->rows - first;
    const char *from = (const char *)q->scales + (group * q->pitch + first) * size;
    __builtin_prefetch(from + QUANTIZED_TOGETHER * size, 0, 2);
    if (rows >= QUANTIZED_ROWS) take(from, q->halves, to);
    else {
        char some[sizeof *to] = {0};
        memcpy(some, from, (size_t)(rows * size));
        take(some, q->halves, to);
    }
}

static inline __attribute__((always_inline)) void NAME(add)(const quantized_rows *q,
                                                            const int_lanes *out,
                                                            const lanes *scales, int64_t row,
                                                            int64_t block, lanes *acc) {
    float scale = q->x_scales[row * q->blocks + block];
    int32_t less = q->x_sums[row * q->blocks + block] * (q->nibbles ? 8 : 128);
    *acc += __builtin_convertvector(*out - less, lanes) * scale * *scales;
}

/* n columns from `at` on, of group g, of 16 rows from `first` on, for `count` rows of x. */
static inline __attribute__((always_inline)) void NAME(piece)(const quantized_rows *q, int64_t row,
                                                              int count, int64_t g, int64_t at,
                                                              int64_t n, int64_t first,
                                                              lanes *acc) {
    lanes scales = {0};
    int_lanes out[AT_ONCE];
    int64_t bytes = q->nibbles ? 8 : 16; /* of 16 rows, a column */
    int64_t in_group = (q->group + QUANTIZED_BLOCK - 1) / QUANTIZED_BLOCK;
    int64_t block = g * in_group + at / QUANTIZED_BLOCK, column = g * q->group + at;
    const uint8_t *w = q->w + first / QUANTIZED_ROWS * q->w_pitch + column * bytes;
    NAME(take_scales)(q, g, first, &scales);
    NAME(block)(q, w, q->x + row * q->x_pitch + column, n, count, out);
    for (int r = 0; r < count; r++) NAME(add)(q, &out[r], &scales, row + r, block, &acc[r]);
}

/* `count` rows of x from `row` on. All rows of the weight take turns block by block: memory is read
 * faster in several places at a time, and the scales of a group for all of them. */
static inline __attribute__((always_inline)) void NAME(some)(const quantized_rows *q, int64_t row,
                                                             int count) {
    lanes acc[QUANTIZED_TOGETHER / QUANTIZED_ROWS][AT_ONCE];
    int64_t some = (q->rows + QUANTIZED_ROWS - 1) / QUANTIZED_ROWS;
    memset(acc, 0, sizeof acc);
    for (int64_t g = 0; g * q->group < q->columns; g++)
        for (int64_t at = 0, n; at < q->group; at += n) {
            n = q->group - at < QUANTIZED_BLOCK ? q->group - at : QUANTIZED_BLOCK;
            for (int64_t i = 0; i < some; i++)
                if (n == QUANTIZED_BLOCK)
                    NAME(piece)(q, row, count, g, at, QUANTIZED_BLOCK, i * QUANTIZED_ROWS, acc[i]);
                else NAME(piece)(q, row, count, g, at, n, i * QUANTIZED_ROWS, acc[i]);
        }
    for (int64_t i = 0; i < some; i++)
        for (int r = 0; r < count; r++) {
            int64_t left = q->rows - i * QUANTIZED_ROWS;
            left = left < QUANTIZED_ROWS ? left : QUANTIZED_ROWS;
            memcpy(q->y + (row + r) * q->y_pitch + i * QUANTIZED_ROWS, &acc[i][r],
                   sizeof(float) * (size_t)left);
        }
}

/* One row of x by 64 of the weight, with what is usual as constants (a group of 0: any). */
static inline __attribute__((always_inline)) void NAME(usual)(const quantized_rows *q, int64_t row,
                                                              bool nibbles, int64_t group) {
    quantized_rows usual = *q;
    usual.nibbles = nibbles, usual.rows = QUANTIZED_TOGETHER;
    if (group) usual.group = group;
    NAME(some)(&usual, row, 1);
}

static inline __attribute__((always_inline)) void NAME(one)(const quantized_rows *q, int64_t row) {
    if (q->rows < QUANTIZED_TOGETHER) {
        NAME(some)(q, row, 1);
        return;
    }
    switch (q->nibbles ? q->group : 0) {
    case 0: NAME(usual)(q, row, false, 0); break;
    case 32: NAME(usual)(q, row, true, 32); break;
    case 64: NAME(usual)(q, row, true, 64); break;
    case 128: NAME(usual)(q, row, true, 128); break;
    default: NAME(usual)(q, row, true, 0);
    }
}

/* The kind of the scales is a constant, too. */
static inline __attribute__((always_inline)) void NAME(all)(const quantized_rows *given,
                                                            bool halves) {
    quantized_rows q = *given;
    int64_t row = 0;
    q.halves = halves;
    for (; row + AT_ONCE <= q.count; row += AT_ONCE) NAME(some)(&q, row, AT_ONCE);
    for (; AT_ONCE > 2 && row + 2 <= q.count; row += 2) NAME(some)(&q, row, 2);
    for (; row < q.count; row++) NAME(one)(&q, row);
}

static void NAME(rows)(const quantized_rows *q) {
    if (q->halves) NAME(all)(q, true);
    else NAME(all)(q, false);
}
