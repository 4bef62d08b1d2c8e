/* Blocks of memory moved: rows x columns elements between two places with strides of their own.
 * This is what eager kernels and generated code alike gather and scatter strips with that are no
 * run of memory.
 *
 * Where memory runs down the columns on one side and along the rows on the other the block is
 * turned: squares of one vector's elements to a side go through registers, by rounds that
 * interleave the first half of the vectors with the second. Sixteen bytes do on every instruction
 * set; AVX2's interleaving stays within sixteen, AVX-512 turns words in whole registers. Short rows
 * have ways of their own, since a loop for each of them costs more than what it moves. */
#include "backends/cpu/isa/pick.h"
#include "backends/cpu/table.h"

#include <immintrin.h>

#define IVDEP _Pragma("GCC ivdep")
#define LOW_2                                                                                      \
    { 0, 2 }
#define HIGH_2                                                                                     \
    { 1, 3 }
#define LOW_4                                                                                      \
    { 0, 4, 1, 5 }
#define HIGH_4                                                                                     \
    { 2, 6, 3, 7 }
#define LOW_8                                                                                      \
    { 0, 8, 1, 9, 2, 10, 3, 11 }
#define HIGH_8                                                                                     \
    { 4, 12, 5, 13, 6, 14, 7, 15 }
#define LOW_16                                                                                     \
    { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23 }
#define HIGH_16                                                                                    \
    { 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 }

enum { SHORT_ROW = 16, SHORT_BYTES = 64 };

/* Two moves of one size, which overlap, for `bytes` from one size to two. */
#define TWO_OF(T)                                                                                  \
    do {                                                                                           \
        T first, last;                                                                             \
        memcpy(&first, src, sizeof first), memcpy(&last, src + bytes - sizeof last, sizeof last);  \
        memcpy(dst, &first, sizeof first), memcpy(dst + bytes - sizeof last, &last, sizeof last);  \
    } while (0)
typedef struct pair {
    uint64_t a, b;
} pair;
typedef struct two_pairs {
    pair a, b;
} two_pairs;

#define ROWS_OF(T)                                                                                 \
    do {                                                                                           \
        for (int64_t r = 0; r < rows; r++, dst += dst_pitch, src += src_pitch) TWO_OF(T);          \
    } while (0)

/* Rows of 1 to SHORT_BYTES bytes; pitches in bytes. */
static void short_rows(char *dst, int64_t dst_pitch, const char *src, int64_t src_pitch,
                       int64_t rows, int64_t bytes) {
    if (bytes > 32) ROWS_OF(two_pairs);
    else if (bytes > 16) ROWS_OF(pair);
    else if (bytes > 8) ROWS_OF(uint64_t);
    else if (bytes > 4) ROWS_OF(uint32_t);
    else if (bytes > 2) ROWS_OF(uint16_t);
    else if (bytes > 0) ROWS_OF(uint8_t);
}

static void copy_rows(char *dst, int64_t dst_pitch, const char *src, int64_t src_pitch,
                      int64_t rows, int64_t bytes) {
    if (bytes <= SHORT_BYTES) {
        short_rows(dst, dst_pitch, src, src_pitch, rows, bytes);
        return;
    }
    for (int64_t r = 0; r < rows; r++, dst += dst_pitch, src += src_pitch)
        memcpy(dst, src, (size_t)bytes);
}

/* K columns dealt out to K rows; one column repeated K times. */
#define DEAL(bits, K)                                                                              \
    static void deal_##bits##_##K(uint##bits##_t *d, int64_t pitch, const uint##bits##_t *s,       \
                                  int64_t n) {                                                     \
        IVDEP for (int64_t c = 0; c < n; c++) for (int64_t r = 0; r < K; r++) d[r * pitch + c] =   \
            s[c * K + r];                                                                          \
    }                                                                                              \
    static void repeat_##bits##_##K(uint##bits##_t *d, const uint##bits##_t *s, int64_t step,      \
                                    int64_t rows) {                                                \
        IVDEP for (int64_t r = 0; r < rows; r++) for (int64_t c = 0; c < K; c++) d[r * K + c] =    \
            s[r * step];                                                                           \
    }
#define DEALS(bits)                                                                                \
    DEAL(bits, 2)                                                                                  \
    DEAL(bits, 3) DEAL(bits, 4)
DEALS(8)
DEALS(16)
DEALS(32)
DEALS(64)

/* A square of SIDE vectors with as many elements. */
#define SQUARE(bits, SIDE)                                                                         \
    static inline void square_##bits##_##SIDE(uint##bits##_t *dst, int64_t dst_pitch,              \
                                              const uint##bits##_t *src, int64_t src_pitch) {      \
        typedef uint##bits##_t vector __attribute__((vector_size(SIDE * bits / 8)));               \
        vector x[SIDE], y[SIDE];                                                                   \
        for (int i = 0; i < SIDE; i++) memcpy(&x[i], src + i * src_pitch, sizeof x[i]);            \
        for (int round = 1; round < SIDE; round *= 2) {                                            \
            for (int i = 0; i < SIDE / 2; i++) {                                                   \
                vector low = LOW_##SIDE, high = HIGH_##SIDE;                                       \
                y[2 * i] = __builtin_shuffle(x[i], x[i + SIDE / 2], low);                          \
                y[2 * i + 1] = __builtin_shuffle(x[i], x[i + SIDE / 2], high);                     \
            }                                                                                      \
            for (int i = 0; i < SIDE; i++) x[i] = y[i];                                            \
        }                                                                                          \
        for (int i = 0; i < SIDE; i++) memcpy(dst + i * dst_pitch, &x[i], sizeof x[i]);            \
    }
/* dst[r * dst_pitch + c] = src[c * src_pitch + r] */
#define TURN(bits, SIDE)                                                                           \
    SQUARE(bits, SIDE)                                                                             \
    static void turn_##bits(uint##bits##_t *d, int64_t dst_pitch, const uint##bits##_t *s,         \
                            int64_t src_pitch, int64_t rows, int64_t cols) {                       \
        int64_t whole_rows = rows / SIDE * SIDE, whole = cols / SIDE * SIDE;                       \
        for (int64_t c = 0; c < whole; c += SIDE)                                                  \
            for (int64_t r = 0; r < whole_rows; r += SIDE)                                         \
                square_##bits##_##SIDE(d + r * dst_pitch + c, dst_pitch, s + c * src_pitch + r,    \
                                       src_pitch);                                                 \
        for (int64_t c = 0; c < cols; c++)                                                         \
            for (int64_t r = c < whole ? whole_rows : 0; r < rows; r++)                            \
                d[r * dst_pitch + c] = s[c * src_pitch + r];                                       \
    }
TURN(8, 16)
TURN(16, 8)
TURN(32, 4)
TURN(64, 2)
#if defined(ETCH_ISA_avx512)
SQUARE(32, 16)
/* What comes out of a square are whole cache lines. */
static void turn_large_32(uint32_t *d, int64_t dst_pitch, const uint32_t *s, int64_t src_pitch,
                          int64_t rows, int64_t cols) {
    int64_t whole_rows = rows & -16, whole = cols & -16;
    for (int64_t c = 0; c < whole; c += 16)
        for (int64_t r = 0; r < whole_rows; r += 16)
            square_32_16(d + r * dst_pitch + c, dst_pitch, s + c * src_pitch + r, src_pitch);
    turn_32(d + whole_rows * dst_pitch, dst_pitch, s + whole_rows, src_pitch, rows - whole_rows,
            whole);
    turn_32(d + whole, dst_pitch, s + whole * src_pitch, src_pitch, rows, cols - whole);
}
#define turn_32 turn_large_32
#endif

/* The longer side is the inner loop; it has no vectors, for which scattering is slow. */
#define MOVE(bits)                                                                                 \
    static __attribute__((optimize("no-tree-vectorize"))) void any_##bits(                         \
        uint##bits##_t *d, const uint##bits##_t *s, const strip_shape *m, int64_t cols) {          \
        if (cols < SHORT_ROW && m->rows > cols) {                                                  \
            for (int64_t c = 0; c < cols; c++)                                                     \
                for (int64_t r = 0; r < m->rows; r++)                                              \
                    d[r * m->dst_row + c * m->dst_col] = s[r * m->src_row + c * m->src_col];       \
            return;                                                                                \
        }                                                                                          \
        for (int64_t r = 0; r < m->rows; r++, d += m->dst_row, s += m->src_row)                    \
            for (int64_t c = 0; c < cols; c++) d[c * m->dst_col] = s[c * m->src_col];              \
    }                                                                                              \
    static void gather_rows_##bits(uint##bits##_t *d, const uint##bits##_t *s,                     \
                                   const strip_shape *m, int64_t cols) {                           \
        for (int64_t r = 0; r < m->rows; r++, d += m->dst_row, s += m->src_row)                    \
            if (m->src_col == 0)                                                                   \
                for (int64_t c = 0; c < cols; c++) d[c] = s[0];                                    \
            else pick_##bits(d, s, m->src_col, cols);                                              \
    }                                                                                              \
    static bool few_##bits(uint##bits##_t *d, const uint##bits##_t *s, const strip_shape *m,       \
                           int64_t cols) {                                                         \
        bool deals = m->dst_col == 1 && m->src_row == 1 && m->src_col == m->rows;                  \
        bool repeats = m->dst_col == 1 && m->src_col == 0 && m->dst_row == cols;                   \
        if (deals && m->rows == 2) return deal_##bits##_2(d, m->dst_row, s, cols), true;           \
        if (deals && m->rows == 3) return deal_##bits##_3(d, m->dst_row, s, cols), true;           \
        if (deals && m->rows == 4) return deal_##bits##_4(d, m->dst_row, s, cols), true;           \
        if (repeats && cols == 2) return repeat_##bits##_2(d, s, m->src_row, m->rows), true;       \
        if (repeats && cols == 3) return repeat_##bits##_3(d, s, m->src_row, m->rows), true;       \
        if (repeats && cols == 4) return repeat_##bits##_4(d, s, m->src_row, m->rows), true;       \
        return false;                                                                              \
    }                                                                                              \
    MOVE_OF(bits);                                                                                 \
    MOVE_OF(bits) {                                                                                \
        const strip_shape *m = pb;                                                                 \
        uint##bits##_t *d = dst;                                                                   \
        const uint##bits##_t *s = pa;                                                              \
        enum { BYTES = bits / 8 };                                                                 \
        (void)pc;                                                                                  \
        if (n < 1 || m->rows < 1 || few_##bits(d, s, m, n)) return;                                \
        if (m->dst_col == 1 && m->src_col == 1)                                                    \
            copy_rows(dst, m->dst_row *BYTES, pa, m->src_row *BYTES, m->rows, n *BYTES);           \
        else if (m->dst_col == 1 && m->src_row == 1)                                               \
            turn_##bits(d, m->dst_row, s, m->src_col, m->rows, n);                                 \
        else if (m->dst_row == 1 && m->src_col == 1)                                               \
            turn_##bits(d, m->dst_col, s, m->src_row, n, m->rows);                                 \
        else if (m->dst_col == 1 && n >= SHORT_ROW) gather_rows_##bits(d, s, m, n);                \
        else any_##bits(d, s, m, n);                                                               \
    }
MOVE(8)
MOVE(16)
MOVE(32)
MOVE(64)

/* ---- padding ---- */

#if defined(ETCH_ISA_avx512)
#define PAD(bits)                                                                                  \
    PAD_OF(bits);                                                                                  \
    PAD_OF(bits) {                                                                                 \
        enum { LANES = 512 / bits };                                                               \
        const uint##bits##_t *s = pa;                                                              \
        uint##bits##_t *d = dst, v;                                                                \
        (void)pc;                                                                                  \
        memcpy(&v, pb, sizeof v);                                                                  \
        __m512i x = _mm512_set1_epi##bits((int##bits##_t)v);                                       \
        for (int64_t i = 0; i < ((n + REDUCE_LANES - 1) & -REDUCE_LANES); i += LANES) {            \
            int64_t left = n - i;                                                                  \
            uint64_t there = left >= LANES ? ~0ull : left > 0 ? (1ull << left) - 1 : 0;            \
            _mm512_storeu_si512(d + i, _mm512_mask_loadu_epi##bits(x, there, s + i));              \
        }                                                                                          \
    }
#else
#define PAD(bits)                                                                                  \
    PAD_OF(bits);                                                                                  \
    PAD_OF(bits) {                                                                                 \
        uint##bits##_t *d = dst, v;                                                                \
        (void)pc;                                                                                  \
        memcpy(&v, pb, sizeof v);                                                                  \
        if (dst != pa) memcpy(dst, pa, (size_t)n * sizeof v);                                      \
        for (int64_t i = n; i < ((n + REDUCE_LANES - 1) & -REDUCE_LANES); i++) d[i] = v;           \
    }
#endif
PAD(8)
PAD(16)
PAD(32)
PAD(64)
