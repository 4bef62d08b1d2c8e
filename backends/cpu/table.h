/* The vector kernels of the CPU, compiled once an instruction set (backends/cpu/isa/), and the one
 * set that this process uses. Each struct below is filled by the file of the same name in isa/. */
#ifndef ETCH_BACKENDS_CPU_TABLE_H
#define ETCH_BACKENDS_CPU_TABLE_H

#include "core/ops/expr.h"
#include "core/base/isa.h"
#include "core/ops/rules.h"

/* One primitive over n elements: dst[i] = prim(a[i], b[i], c[i]). dst may be the same memory as an
 * operand of the same element size; other overlap is not allowed. A value never depends on its
 * position. */
typedef void (*strip_fn)(void *dst, const void *a, const void *b, const void *c, int64_t n);

/* By storage type, in the place of PRIM_INPUT, which has no strip, so that generated code can call
 * it: dst[r * dst_row + c * dst_col] = a[r * src_row + c * src_col] for r < rows, c < n, where b
 * points to the shape. The two places do not overlap. */
enum { STRIP_MOVE = PRIM_INPUT };
/* In the same way, in the place of PRIM_CONST: dst[i] = i < n ? a[i] : *b, for i < n rounded up to
 * a whole number of REDUCE_LANES. It is stored by the vectors that it is read by. */
enum { STRIP_PAD = PRIM_CONST };
typedef struct strip_shape {
    int64_t rows, dst_row, dst_col, src_row, src_col;
} strip_shape;

typedef struct strip_table {
    /* [compute type]; comparisons: of the operands. STRIP_WIDEN, STRIP_NARROW, STRIP_ROUND of F16
     * are those below. STRIP_MAX_LANES (MIN): the lanes of a row, dst, take n elements of a;
     * STRIP_MAX_FOLD folds the n lanes of a row, dst, into the first. */
    strip_fn prim[STRIP_COUNT][ETCH_DTYPE_COUNT];
    strip_fn convert[ETCH_DTYPE_COUNT][ETCH_DTYPE_COUNT]; /* [from][to], compute types */
    strip_fn widen[ETCH_DTYPE_COUNT];                     /* BF16, F16: storage to f32 */
    strip_fn narrow[ETCH_DTYPE_COUNT]; /* BF16, F16: f32 already rounded to storage */
    strip_fn round[ETCH_DTYPE_COUNT];  /* BF16, F16: f32 rounded to storage */
    /* The same of rows x cols; from one row to the next in elements. */
    void (*round_rows[ETCH_DTYPE_COUNT])(void *dst, int64_t dst_row, const float *src,
                                         int64_t src_row, int64_t rows, int64_t cols);
    /* By log2 of the element size; the stride is in elements. */
    void (*gather[4])(void *dst, const void *src, int64_t stride, int64_t n);
    void (*scatter[4])(void *dst, int64_t stride, const void *src, int64_t n);
    /* A block of rows x cols between two places with strides of their own, in elements. */
    void (*block[4])(void *dst, int64_t dst_row, int64_t dst_col, const void *src, int64_t src_row,
                     int64_t src_col, int64_t rows, int64_t cols);
    void (*fill[4])(void *dst, const void *value, int64_t n);
    void (*index)(int64_t *dst, int64_t first, int64_t n);
} strip_table;

/* By the FOLDs of core/ops/reductions.def. */
typedef struct reduce_table {
    /* acc[i % REDUCE_LANES] = op(acc[i % REDUCE_LANES], x[i]) for i < n, in ascending order. */
    void (*lanes[REDUCE_COUNT][ETCH_DTYPE_COUNT])(void *acc, const void *x, int64_t n);
    /* Folds the first `nlanes` (<= REDUCE_LANES) lanes of `width` columns each into lane 0. */
    void (*fold[REDUCE_COUNT][ETCH_DTYPE_COUNT])(void *acc, int64_t nlanes, int64_t width);
    /* Where a reduction starts, or the value nearest to it, into n elements. */
    void (*start[ETCH_DTYPE_COUNT])(void *acc, int64_t n, double start);
    /* First index of the largest [0] or smallest [1] element, or of the first NaN; n > 0. */
    int64_t (*best[2][ETCH_DTYPE_COUNT])(const void *x, int64_t n);
    /* For each column: best and index take x where it is larger, smaller or the first NaN. */
    void (*best_columns[2][ETCH_DTYPE_COUNT])(void *best, int64_t *index, const void *x,
                                              const int64_t *r, int64_t n);
} reduce_table;

/* c[m * ldc + n] = the chain acc = +0, k ascending, acc = fma(a, b, acc) (integers wrap; bool: or
 * of ands). a and b have any strides, in elements of the compute type; m, n, k are at most 64 for
 * floats, any for integers and bool. */
typedef struct product_args {
    const void *a, *b;
    void *c;
    int64_t a_row, a_col, b_row, b_col, ldc;
    int64_t m, n, k;
} product_args;

typedef struct product_table {
    void (*chain[ETCH_DTYPE_COUNT])(const product_args *p);
} product_table;

/* Products by panels. Both operands lie in panels of PANEL_LANES lanes (rows of the left one,
 * columns of the right one), cut along k into blocks of 64 bytes a lane, the `terms` of one:
 *
 *   f32   16 terms: left [lane][term], right [term][lane]
 *   bf16  32 terms: left [lane][term], right [pair of terms][lane][2]
 *
 * What a panel lacks in lanes and terms is zero. Blocks begin at fixed terms and so do the sums of
 * PANEL_STEP blocks, so no value depends on how rows, columns or terms are cut. */
enum { PANEL_LANES = 16, PANEL_BLOCK = 1024 /* bytes */, PANEL_STEP = 16, BF16_TERMS = 32 };

/* c = left times right, or added to c, of at most `step` blocks: f32, room for whole panels. */
typedef struct panel_args {
    const void *left, *right;
    int64_t left_row, left_block, left_panel; /* bytes from one to the next */
    int64_t right_panel, right_term;
    float *c;
    int64_t ldc;
    int64_t rows, cols, blocks; /* lanes of left; panels of right; blocks of terms */
    int64_t words;              /* of 4 bytes a lane: of all blocks but for what the last lacks */
    bool adds;
} panel_args;

/* Lanes and terms of an operand (in elements from one to the next; one of both is 1) to panels:
 * of the right operand with `pairs`, else of the left one. */
typedef struct panel_pack {
    void *to;
    const char *from;
    int64_t lane, term, lanes, terms;
    int64_t panel; /* bytes from a panel to the next */
    bool pairs;
} panel_pack;

/* Up to FEW_ROWS rows of bf16, by rows of a matrix that lie along their terms: c[row][lane], in
 * elements from one to the next. */
enum { FEW_ROWS = 8 };
typedef struct few_rows {
    const char *x, *w;
    int64_t x_row, w_row; /* bytes */
    int64_t rows, lanes, terms;
    float *c;
    int64_t c_row, c_lane;
} few_rows;

typedef struct panel_table {
    int64_t terms;   /* of a block */
    etch_dtype left; /* rows of this one can be read where they lie */
    int64_t step;    /* most blocks of a `multiply` */
    bool whole;      /* a panel of a few lanes takes as long as one of all */
    bool keeps;      /* panels of a weight that stays are worth keeping */
    bool strides; /* of at most 16 rows; right_term need not be 64: its terms' lanes lie anywhere */
    /* Around calls of `multiply` on a thread; oneDNN may not be called in between. */
    void (*enter)(void), (*leave)(void);
    void (*multiply)(const panel_args *p);
    /* By the dtype of the elements: those that are not there have to be converted before. */
    void (*pack[ETCH_DTYPE_COUNT])(const panel_pack *p);
    void (*few)(const few_rows *f); /* or NULL */
    /* to[c][r] = from[r][c]; rows and columns are multiples of 16. */
    void (*turn)(float *to, int64_t ldto, const float *from, int64_t ldfrom, int64_t rows,
                 int64_t cols);
} panel_table;

typedef struct random_table {
    /* Words w[0..3][i] of Philox 4x32-10 at counter first + i. */
    void (*philox)(uint64_t seed, uint64_t first, uint32_t *const w[4], int64_t n);
    /* The top `bits` bits of a word, times 2^-bits: in [0, 1). */
    void (*uniform_f32)(float *dst, const uint32_t *w, int bits, int64_t n);
    /* 53 bits of two words: in [0, 1). */
    void (*uniform_f64)(double *dst, const uint32_t *hi, const uint32_t *lo, int64_t n);
} random_table;

/* By whether numbers are f64 or i64 [1 or 0], and whether the scan multiplies. */
typedef struct scan_table {
    /* Lines of n elements, `pitch` from one to the next, that begin where carry says and leave
     * there where they end; NULL: from the start. */
    void (*lines[2][2])(void *to, const void *from, int64_t pitch, int64_t n, int64_t lines,
                        void *carry);
    /* Whole short lines, one behind the other. */
    void (*few[2][2])(void *to, const void *from, int64_t n, int64_t lines);
    /* A line in each of `width` columns, in place. */
    void (*rows[2][2])(void *p, int64_t rows, int64_t width, void *carry);
} scan_table;

/* Of one plane. The elements that a window has count from the first row and column to the last. */
typedef struct pool_plane {
    pool_numbers at;
    int64_t in[2], out[2];
} pool_plane;

typedef struct pool_table {
    /* Numbers, of the compute type: each window's largest element; where it is in the plane. */
    void (*largest[ETCH_DTYPE_COUNT])(const pool_plane *p, const void *x, void *y);
    void (*place[ETCH_DTYPE_COUNT])(const pool_plane *p, const void *x, int64_t *y);
    /* The largest ones of row oh of the windows, of an image whose channels lie innermost, to that
     * row of y; F32, F64, and BF16 as it is stored. */
    void (*pixels[ETCH_DTYPE_COUNT])(const pool_plane *p, const void *x, void *y, int64_t channels,
                                     int64_t oh);
    /* F32, F64: each window's mean; and the gradient of y, to x, which it clears. */
    void (*mean[ETCH_DTYPE_COUNT])(const pool_plane *p, const void *x, void *y);
    void (*spread[ETCH_DTYPE_COUNT])(const pool_plane *p, const void *y, void *x);
} pool_table;

/* Scores of queries with keys, in the compute type: rows of `pitch` elements, which begin at the
 * address of a vector and hold whole ones. Of row r the first `first + r step` keys take part. */
enum { ATTENTION_ROWS = 128, ATTENTION_KEYS = 512 };
typedef struct attention_tile {
    void *scores;
    int64_t pitch, rows, keys, first, step;
    void *max, *sum, *shrink; /* ATTENTION_ROWS numbers each */
} attention_tile;

typedef struct attention_table {
    /* The next keys: max moves on, scores become exp(score - max), which sum gets, and shrink is
     * what all before has to be multiplied by. A row of which no key takes part has the sum 0. */
    void (*soften[ETCH_DTYPE_COUNT])(const attention_tile *t);
    /* As soften, of f32 scores that are to be multiplied by scale > 0: exponentials are rounded to
     * bf16 and stored there, up to a multiple of 32 keys. NULL: not in this set, or processor. */
    void (*soften_bf16)(const attention_tile *t, float scale, uint16_t *to, int64_t pitch);
    /* Scores become exp(score - max) times `sum`. */
    void (*weigh[ETCH_DTYPE_COUNT])(const attention_tile *t);
    /* slopes = scores (slopes - mean of the row), rows as those of scores. */
    void (*slope[ETCH_DTYPE_COUNT])(const attention_tile *t, void *slopes, const void *means);
    /* The sums of products of each row of a and of b. */
    void (*dots[ETCH_DTYPE_COUNT])(void *to, const void *a, int64_t a_pitch, const void *b,
                                   int64_t b_pitch, int64_t rows, int64_t n);
    /* Each row times its factor. */
    void (*scale[ETCH_DTYPE_COUNT])(void *rows, int64_t pitch, int64_t count, int64_t n,
                                    const void *factors);
} attention_table;

/* Up to 64 rows of a weight of few bits, times rows of x whose blocks of QUANTIZED_BLOCK columns
 * (less at the end of a group) are integers with a scale each. For every block in ascending order
 *   y = y + (float)(the sum of the products of integers) * x's scale * the weight's,
 * from +0 on: the sums are exact, so every set gives the same bits. */
enum { QUANTIZED_ROWS = 16, QUANTIZED_TOGETHER = 64, QUANTIZED_BLOCK = 128 };
typedef struct quantized_rows {
    const uint8_t *w;   /* 16 rows as [steps][16][4]: 8 bits, or `nibbles`: low, then high */
    const void *scales; /* f32, or `halves`: bf16; of the first row, `pitch` from group to group */
    const int8_t *x;    /* [count][x_pitch], with zeros behind the columns */
    const float *x_scales;
    const int32_t *x_sums; /* [count][blocks] both; of the integers of a block */
    float *y;              /* [count][y_pitch]: `rows` of each */
    int64_t w_pitch;       /* bytes from 16 rows to the next */
    int64_t pitch, rows, columns, group, count, x_pitch, blocks, y_pitch;
    bool nibbles, halves;
} quantized_rows;

/* What an integer stands for a multiple of; among subnormal numbers, which are far apart, rounded
 * up, so that the largest value is no more than `most` of them. */
static inline float etch__quantized_scale(float largest, int most) {
    float scale = largest / (float)most;
    uint32_t bits;
    if (scale >= 0x1p-126f || !((double)scale * most < (double)largest)) return scale;
    memcpy(&bits, &scale, sizeof bits), bits++;
    memcpy(&scale, &bits, sizeof bits);
    return scale;
}

typedef struct quantized_table {
    void (*rows)(const quantized_rows *q);
    void (*rows_vnni)(const quantized_rows *q); /* where the processor has that, too; or NULL */
    /* The block x[0..n) as integers q[0..n): its scale, and their sum. */
    float (*block)(const float *x, int64_t n, int8_t *q, int32_t *sum);
} quantized_table;

/* Sums of up to CONV_ROWS positions of a convolution's output for the output channels of a panel:
 * whole vectors of them, at most `vectors`. Of position m the values under place s of the kernel
 * begin `offset` bytes behind rows[s * CONV_ROWS + m], channel by channel; the weights are
 * [places][terms][output channels]. See isa/conv.c. */
enum { CONV_ROWS = 6 };
typedef struct conv_panel {
    const char *const *rows;
    int64_t offset;
    const void *w;
    void *c; /* [count][ldc] */
    int64_t ldc;
    int count, vectors;
    int lanes;     /* apart, one vector: there are so many channels; 0: all */
    int64_t pitch; /* apart: weights from one place to the next */
    int64_t places, terms;
    const char *ahead; /* weights that are multiplied next: a little is fetched with every term */
    int64_t ahead_step;
    bool adds;        /* to c: the terms go on where those before them ended */
    const void *bias; /* added at the end, or NULL */
} conv_panel;

/* Sums of a row of positions, which are neighbours in memory as the values under them are, for
 * `count` output channels. The weights are [places][terms][count]. There are enough positions for a
 * vector. */
enum { CONV_LINES = 4 };
typedef struct conv_line {
    const void *x; /* under the kernel's first place, of the first channel */
    int64_t channel, row,
        column;           /* elements from one channel, row, column of the kernel to the next */
    const void *w, *bias; /* bias: of each output channel, or NULL */
    void *c;              /* [count][ldc] */
    int64_t ldc, kernel[2], terms, n;
    int count;
} conv_line;

typedef struct conv_table {
    int lanes[ETCH_DTYPE_COUNT];                             /* of a vector */
    int vectors;                                             /* of a panel, at most */
    void (*multiply[ETCH_DTYPE_COUNT])(const conv_panel *p); /* F32, F64 */
    /* To F32, of words of two BF16 each, for processors that have AVX512_BF16; NULL: not there. */
    void (*pairs)(const conv_panel *p);
    /* The same where output channel k is made of input channel k alone: the weights are
     * [places][channels]. All terms at once. */
    void (*apart[ETCH_DTYPE_COUNT])(const conv_panel *p);
    void (*lines[ETCH_DTYPE_COUNT])(const conv_line *l);
    void (*copy)(char *to, const char *from, int64_t bytes); /* few; from NULL: zeros */
    /* `count` such runs, `step` bytes apart, one behind the other. */
    void (*copy_runs)(char *to, const char *from, int64_t step, int64_t count, int64_t bytes);
} conv_table;

/* A tile of f32, sums of products of bf16 whose NaNs are quiet with a low half of zeros, through
 * one operation after another to bf16: each changes the value x. Operands are bf16: element (row,
 * column) of the tile takes that at row * pitch + column; pitch 0: one row for all. */
typedef enum chain_op {
    CHAIN_TILE,  /* x becomes the tile, what it was is set aside */
    CHAIN_LOAD,  /* the operand, the same */
    CHAIN_BOTH,  /* adds what was set aside */
    CHAIN_ROUND, /* to the nearest bf16 */
    CHAIN_RELU,  /* x < 0 ? 0 : x */
    CHAIN_ADD,
    CHAIN_SUB,
    CHAIN_SUB_FROM, /* operand - x */
    CHAIN_MUL
} chain_op;
enum { CHAIN_STEPS = 32 };

typedef struct chain_step {
    uint8_t op;
    int8_t access; /* joined.c: which one the operand is */
    int64_t pitch;
    const uint16_t *data;
} chain_step;

typedef struct chain_args {
    chain_step step[CHAIN_STEPS];
    int n;
    const float *c;
    int64_t ldc, rows, cols;
    uint16_t *y;
    int64_t y_pitch;
} chain_args;

/* run: NULL, or for processors with VNNI. */
typedef struct chain_table {
    void (*run)(const chain_args *a);
} chain_table;

typedef struct isa_table {
    const strip_table *strips;
    const reduce_table *reduce;
    const product_table *product;
    const random_table *random;
    const pool_table *pool;
    const panel_table *f32, *bf16, *amx; /* products of those by panels; multiply: NULL or there */
    const attention_table *attention;
    const quantized_table *quantized;
    const conv_table *conv;
    const scan_table *scan;
    const chain_table *chain;
} isa_table;

/* The tables of each set, and those of this process. */
extern const isa_table etch__isa_tables[CPU_ISA_COUNT];
const isa_table *etch__isa_table(void);

/* etch__strips_avx512 and so on. */
#define ISA_PASTE_(a, b) a##_##b
#define ISA_PASTE(a, b) ISA_PASTE_(a, b)
#define ISA_NAME(name) ISA_PASTE(etch__##name, ETCH_ISA)
#define DECLARE_ISA(isa)                                                                           \
    extern const strip_table etch__strips_##isa;                                                   \
    extern const reduce_table etch__reduce_##isa;                                                  \
    extern const product_table etch__product_##isa;                                                \
    extern const random_table etch__random_##isa;                                                  \
    extern const pool_table etch__pool_##isa;                                                      \
    extern const panel_table etch__panels_##isa;                                                   \
    extern const panel_table etch__dots_##isa;                                                     \
    extern const panel_table etch__amx_##isa;                                                      \
    extern const attention_table etch__attention_##isa;                                            \
    extern const quantized_table etch__quantized_##isa;                                            \
    extern const conv_table etch__conv_##isa;                                                      \
    extern const scan_table etch__scan_##isa;                                                      \
    extern const chain_table etch__chain_##isa;
DECLARE_ISA(baseline)
DECLARE_ISA(avx2)
DECLARE_ISA(avx512)
#undef DECLARE_ISA

/* The strips of isa/functions.c, of one set: etch__exp_f32_avx512 and so on. */
#define STRIP_OF(name, t)                                                                          \
    void ISA_NAME(name##_##t)(void *dst, const void *pa, const void *pb, const void *pc, int64_t n)

/* The strips of isa/move.c, by the bits of an element. */
#define MOVE_OF(bits)                                                                              \
    void ISA_NAME(move_##bits)(void *dst, const void *pa, const void *pb, const void *pc, int64_t n)

#define PAD_OF(bits)                                                                               \
    void ISA_NAME(pad_##bits)(void *dst, const void *pa, const void *pb, const void *pc, int64_t n)

static inline int etch__size_log2(etch_dtype d) {
    static const uint8_t log2[ETCH_DTYPE_COUNT] = {
        [ETCH_F32] = 2, [ETCH_F64] = 3, [ETCH_BF16] = 1, [ETCH_F16] = 1, [ETCH_I8] = 0,
        [ETCH_I16] = 1, [ETCH_I32] = 2, [ETCH_I64] = 3,  [ETCH_U8] = 0,  [ETCH_BOOL] = 0};
    return log2[d];
}

#endif
