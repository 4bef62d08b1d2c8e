/* Products of bf16 by AMX tiles, where the instruction set is the highest one.
 *
 * Both operands lie in panels of 16 lanes (rows of the left one, columns of the right one), cut
 * along k into blocks of 32 terms, 1 KiB each: of the left one [lane][term], of the right one
 * [pair of terms][lane][2]. What a panel lacks in lanes and terms is zero.
 *
 * The arithmetic of an element is the instruction's (TDPBF16PS, Intel SDM), a block at a time: a
 * chain acc = fma(x, y, acc) over the terms at even places and one over those at odd ones, each
 * from +0; then the sum of both is added to the element, which begins at +0. All round to the
 * nearest f32 and take denormals, operands and results, as zero, whatever MXCSR says. An element
 * may be stored and loaded between blocks, and blocks begin at fixed terms, so no value depends on
 * how rows, columns or terms are cut. */
#include "backends/cpu/table.h"

#if defined(ETCH_ISA_avx512)

#include <immintrin.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))
/* The intrinsics of GCC 12 are statements of assembler that do not say what memory they use. */
#define MEMORY_USED() __asm__ volatile("" ::: "memory")

enum { LANES = AMX_LANES, TERMS = AMX_TERMS, BLOCK = AMX_BLOCK };

/* ---- tiles ---- */

static AMX void enter(void) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = LANES;
    MEMORY_USED();
    _tile_loadconfig(&shape);
}

static AMX void leave(void) { _tile_release(); }

/* c of ROWS x COLS panels (at most two each) gets the terms of all blocks. */
#define MULTIPLY(ROWS, COLS)                                                                       \
    static AMX void multiply_##ROWS##COLS(const amx_args *p, const char *left, const char *right,  \
                                          float *c) {                                              \
        int64_t ldc = p->ldc * (int64_t)sizeof *c;                                                 \
        float *c2 = c + LANES * p->ldc;                                                            \
        if (p->adds) {                                                                             \
            _tile_loadd(0, c, ldc);                                                                \
            if (COLS == 2) _tile_loadd(1, c + LANES, ldc);                                         \
            if (ROWS == 2) _tile_loadd(2, c2, ldc);                                                \
            if (ROWS == 2 && COLS == 2) _tile_loadd(3, c2 + LANES, ldc);                           \
        } else {                                                                                   \
            _tile_zero(0);                                                                         \
            if (COLS == 2) _tile_zero(1);                                                          \
            if (ROWS == 2) _tile_zero(2);                                                          \
            if (ROWS == 2 && COLS == 2) _tile_zero(3);                                             \
        }                                                                                          \
        for (int64_t i = 0; i < p->blocks; i++, left += p->left_block, right += BLOCK) {           \
            _tile_loadd(4, left, p->left_row);                                                     \
            _tile_loadd(6, right, 64);                                                             \
            _tile_dpbf16ps(0, 4, 6);                                                               \
            if (ROWS == 2) _tile_loadd(5, left + p->left_panel, p->left_row);                      \
            if (ROWS == 2) _tile_dpbf16ps(2, 5, 6);                                                \
            if (COLS == 2) _tile_loadd(7, right + p->right_panel, 64);                             \
            if (COLS == 2) _tile_dpbf16ps(1, 4, 7);                                                \
            if (ROWS == 2 && COLS == 2) _tile_dpbf16ps(3, 5, 7);                                   \
        }                                                                                          \
        _tile_stored(0, c, ldc);                                                                   \
        if (COLS == 2) _tile_stored(1, c + LANES, ldc);                                            \
        if (ROWS == 2) _tile_stored(2, c2, ldc);                                                   \
        if (ROWS == 2 && COLS == 2) _tile_stored(3, c2 + LANES, ldc);                              \
    }
MULTIPLY(1, 1)
MULTIPLY(1, 2)
MULTIPLY(2, 1)
MULTIPLY(2, 2)

/* Two panels of the right operand stay in the first-level cache while the left one goes by. */
static AMX void multiply(const amx_args *p) {
    const char *right = p->right;
    MEMORY_USED();
    for (int64_t j = 0; j < p->cols; j += 2, right += 2 * p->right_panel) {
        const char *left = p->left;
        bool narrow = j + 1 == p->cols;
        float *c = p->c + j * LANES;
        for (int64_t i = 0; i < p->rows; i += 2) {
            if (i + 1 == p->rows) (narrow ? multiply_11 : multiply_12)(p, left, right, c);
            else (narrow ? multiply_21 : multiply_22)(p, left, right, c);
            left += 2 * p->left_panel, c += 2 * LANES * p->ldc;
        }
    }
    MEMORY_USED();
}

/* ---- packing ---- */

/* The words w[i][j] to w[j][i]. */
static void turn(__m512i w[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        w[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        w[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        w[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        w[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* i < 4: words 0-3, lanes of 128 bits */
        int a = i / 4 * 8 + i % 4;
        t[a] = _mm512_shuffle_i32x4(w[a], w[a + 4], 0x88);
        t[a + 4] = _mm512_shuffle_i32x4(w[a], w[a + 4], 0xdd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        w[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        w[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

/* Words [lane][pair] of lanes whose terms are neighbours. */
static void read_terms(__m512i w[16], const uint16_t *from, int64_t lane, int64_t lanes,
                       int64_t terms) {
    __mmask32 mask = terms >= TERMS ? ~0u : (1u << terms) - 1;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        w[i] = i < lanes ? _mm512_maskz_loadu_epi16(mask, from + i * lane) : _mm512_setzero_si512();
}

static __m512i wide(const uint16_t *from, __mmask16 mask) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
}

/* Words [pair][lane] of terms whose lanes are neighbours. */
static void read_lanes(__m512i w[16], const uint16_t *from, int64_t term, int64_t lanes,
                       int64_t terms) {
    __mmask16 mask = lanes >= LANES ? 0xffff : (__mmask16)((1u << lanes) - 1);
#pragma GCC unroll 16
    for (int i = 0; i < TERMS / 2; i++) {
        const uint16_t *first = from + 2 * i * term;
        w[i] = 2 * i < terms ? wide(first, mask) : _mm512_setzero_si512();
        if (2 * i + 1 < terms)
            w[i] = _mm512_or_si512(w[i], _mm512_slli_epi32(wide(first + term, mask), 16));
    }
}

static void pack_block(char *to, const uint16_t *from, const amx_pack *p, int64_t lanes,
                       int64_t terms) {
    __m512i w[16];
    bool by_lane = p->term == 1 || terms == 1; /* as the words come: [lane][pair] */
    if (by_lane) read_terms(w, from, p->lane, lanes, terms);
    else read_lanes(w, from, p->term, lanes, terms);
    if (by_lane == p->pairs) turn(w);
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + 64 * i, w[i]);
}

static void pack_at(const amx_pack *p, int64_t l, int64_t t) {
    char *to = (char *)p->to + l / LANES * p->panel + t / TERMS * BLOCK;
    pack_block(to, p->from + l * p->lane + t * p->term, p, p->lanes - l, p->terms - t);
}

/* Along what lies in a row of memory. */
static void pack(const amx_pack *p) {
    if (p->term == 1)
        for (int64_t l = 0; l < p->lanes; l += LANES)
            for (int64_t t = 0; t < p->terms; t += TERMS) pack_at(p, l, t);
    else
        for (int64_t t = 0; t < p->terms; t += TERMS)
            for (int64_t l = 0; l < p->lanes; l += LANES) pack_at(p, l, t);
}

static void turn_floats(float *to, int64_t ldto, const float *from, int64_t ldfrom, int64_t rows,
                        int64_t cols) {
    __m512i w[16];
    for (int64_t r = 0; r < rows; r += 16)
        for (int64_t c = 0; c < cols; c += 16) {
            for (int i = 0; i < 16; i++) w[i] = _mm512_loadu_si512(from + (r + i) * ldfrom + c);
            turn(w);
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + (c + i) * ldto + r, w[i]);
        }
}

const amx_table ISA_NAME(amx) = {enter, leave, multiply, pack, turn_floats};

#else

const amx_table ISA_NAME(amx) = {0};

#endif
