/* Products of panels from the registers of vectors, for one instruction that multiplies words: the
 * file that includes this one says how, by MULTIPLY_ADD(x, y, acc): lane by lane, acc and the terms
 * of the words x and y.
 *
 * 8 rows by 2 panels of columns stay in registers, or up to 4 rows by 4 panels, each element of
 * them one chain of the terms of all blocks, from +0; it is the result, or added to it. */

enum { TALL = 8, WIDE = 4 };

static inline __attribute__((always_inline)) void keep(const panel_args *p, float *c, __m512 acc) {
    _mm512_storeu_ps(c, p->adds ? _mm512_add_ps(_mm512_loadu_ps(c), acc) : acc);
}

/* Words of a row lie anywhere. */
static inline __attribute__((always_inline)) float word_at(const char *p) {
    float word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* One word of each row, by a vector of each panel. */
static inline __attribute__((always_inline)) void step(const int ROWS, const int COLS,
                                                       __m512 acc[TALL][WIDE], const char *left,
                                                       int64_t row, const char *right,
                                                       int64_t panel) {
    __m512 y[WIDE];
#pragma GCC unroll 4
    for (int j = 0; j < COLS; j++) y[j] = _mm512_loadu_ps(right + j * panel);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        __m512 x = _mm512_set1_ps(word_at(left + r * row));
#pragma GCC unroll 4
        for (int j = 0; j < COLS; j++) acc[r][j] = MULTIPLY_ADD(x, y[j], acc[r][j]);
    }
}

/* Lines of the panels of columns that come next, of which a tile of rows fetches its share. */
typedef struct fetch {
    const char *next;
    int64_t lines; /* of each panel, with each block */
} fetch;

static inline __attribute__((always_inline)) void fetch_lines(fetch *f, int64_t panel) {
    for (int64_t i = 0; i < f->lines; i++, f->next += 64) {
        _mm_prefetch(f->next, _MM_HINT_T1);
        _mm_prefetch(f->next + panel, _MM_HINT_T1);
    }
}

/* The caller's constants make the arrays registers. */
static inline __attribute__((always_inline)) void tile(const int ROWS, const int COLS,
                                                       const bool STRIDES, const panel_args *p,
                                                       const char *left, const char *right,
                                                       float *c, fetch f) {
    __m512 acc[TALL][WIDE];
    int64_t row = p->left_row, panel = p->right_panel, term = STRIDES ? p->right_term : 64;
    int64_t words = p->words;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int j = 0; j < COLS; j++) acc[r][j] = _mm512_setzero_ps();
    for (; words >= 16; words -= 16, left += p->left_block, right += 16 * term) {
        if (!STRIDES) fetch_lines(&f, panel);
#pragma GCC unroll 4
        for (int64_t t = 0; t < 16; t++)
            step(ROWS, COLS, acc, left + 4 * t, row, right + t * term, panel);
    }
    for (int64_t t = 0; t < words; t++)
        step(ROWS, COLS, acc, left + 4 * t, row, right + t * term, panel);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int j = 0; j < COLS; j++) keep(p, c + r * p->ldc + j * PANEL_LANES, acc[r][j]);
}

typedef void (*tile_fn)(const panel_args *p, const char *left, const char *right, float *c,
                        fetch f);
#define TILE(R, C)                                                                                 \
    static void tile_##R##C(const panel_args *p, const char *left, const char *right, float *c,    \
                            fetch f) {                                                             \
        tile(R, C, false, p, left, right, c, f);                                                   \
    }
#define STRIDED(R, C)                                                                              \
    static void strided_##R##C(const panel_args *p, const char *left, const char *right, float *c, \
                               fetch f) {                                                          \
        tile(R, C, true, p, left, right, c, f);                                                    \
    }
#define UP_TO_2(R) TILE(R, 1) TILE(R, 2)
#define UP_TO_4(R) UP_TO_2(R) TILE(R, 3) TILE(R, 4)
/* clang-format off */
UP_TO_4(1) UP_TO_4(2) UP_TO_4(3) UP_TO_4(4) UP_TO_2(5) UP_TO_2(6) UP_TO_2(7) UP_TO_2(8)

#define HAVE_2(R) tile_##R##1, tile_##R##2
#define HAVE_4(R) HAVE_2(R), tile_##R##3, tile_##R##4
static const tile_fn tiles[TALL][WIDE] = {{HAVE_4(1)}, {HAVE_4(2)}, {HAVE_4(3)}, {HAVE_4(4)},
                                          {HAVE_2(5)}, {HAVE_2(6)}, {HAVE_2(7)}, {HAVE_2(8)}};
/* clang-format on */

/* All rows, by panels of columns that stay in the first cache meanwhile. */
static void multiply_rows(const panel_args *p, const char *right, float *c, int64_t cols,
                          int64_t rest_cols) {
    fetch f = {right + cols * p->right_panel, 0};
    if (rest_cols > cols) f.lines = (16 * TALL + p->rows - 1) / p->rows;
    for (int64_t row = 0, n; row < p->rows; row += n) {
        int64_t in = row % PANEL_LANES, rest = p->rows - row;
        n = rest >= PANEL_LANES || rest <= TALL ? TALL : (rest + 1) / 2;
        n = n < rest ? n : rest;
        if (n > PANEL_LANES - in) n = PANEL_LANES - in;
        const char *left = p->left;
        left += row / PANEL_LANES * p->left_panel + in * p->left_row;
        tiles[n - 1][cols - 1](p, left, right, c + row * p->ldc, f);
        f.next += f.lines * p->blocks * 64;
    }
}

#ifdef WITH_STRIDES
#define ALL_OF(R) STRIDED(R, 1) STRIDED(R, 2) STRIDED(R, 3) STRIDED(R, 4)
/* clang-format off */
ALL_OF(1) ALL_OF(2) ALL_OF(3) ALL_OF(4)
#define HAVE(R) {strided_##R##1, strided_##R##2, strided_##R##3, strided_##R##4}
static const tile_fn strided[][WIDE] = {HAVE(1), HAVE(2), HAVE(3), HAVE(4)};
/* clang-format on */

/* Of few rows, which all meet the columns that were just read. */
static void multiply_strided(const panel_args *p) {
    for (int64_t j = 0; j < p->cols; j += WIDE) {
        int64_t cols = p->cols - j < WIDE ? p->cols - j : WIDE;
        const char *right = (const char *)p->right + j * p->right_panel;
        for (int64_t r = 0; r < p->rows; r += 4) {
            int64_t rows = p->rows - r < 4 ? p->rows - r : 4;
            const char *left = (const char *)p->left + r * p->left_row;
            strided[rows - 1][cols - 1](p, left, right, p->c + j * PANEL_LANES + r * p->ldc,
                                        (fetch){0});
        }
    }
}
#endif

static void multiply(const panel_args *p) {
#ifdef WITH_STRIDES
    if (p->right_term != 64) {
        multiply_strided(p);
        return;
    }
#endif
    int64_t most = p->rows <= TALL / 2 ? WIDE : WIDE / 2;
    for (int64_t j = 0; j < p->cols; j += most) {
        int64_t cols = p->cols - j < most ? p->cols - j : most;
        multiply_rows(p, (const char *)p->right + j * p->right_panel, p->c + j * PANEL_LANES, cols,
                      p->cols - j);
    }
}
