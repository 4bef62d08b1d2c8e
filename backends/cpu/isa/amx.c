/* Products of bf16 by AMX tiles (see panel_table), where the instruction set is the highest one,
 * and what makes panels of bf16.
 *
 * The arithmetic of an element is the instruction's (TDPBF16PS, Intel SDM), a block at a time: a
 * chain acc = fma(x, y, acc) over the terms at even places and one over those at odd ones, each
 * from +0; then the sum of both is added to the element, which begins at +0. All round to the
 * nearest f32 and take denormals, operands and results, as zero, whatever MXCSR says. An element
 * may be stored and loaded between blocks, and blocks begin at fixed terms, so no value depends on
 * how rows, columns or terms are cut. */
#include "backends/cpu/isa/panels.h"

#if defined(ETCH_ISA_avx512)

#define AMX __attribute__((target("amx-tile,amx-bf16")))
/* The intrinsics of GCC 12 are statements of assembler that do not say what memory they use. */
#define MEMORY_USED() __asm__ volatile("" ::: "memory")

enum { LANES = PANEL_LANES, TERMS = BF16_TERMS, BLOCK = PANEL_BLOCK };

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
    static AMX void multiply_##ROWS##COLS(const panel_args *p, const char *left,                   \
                                          const char *right, float *c) {                           \
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

/* Two panels of the left operand stay in the first-level cache while the right one goes by. (To
 * fetch what comes next of it by instructions takes 5 % longer: loads are what it waits for.) */
static AMX void multiply(const panel_args *p) {
    int64_t rows = (p->rows + LANES - 1) / LANES; /* panels */
    const char *left = p->left;
    MEMORY_USED();
    for (int64_t i = 0; i < rows; i += 2, left += 2 * p->left_panel) {
        const char *right = p->right;
        float *c = p->c + i * LANES * p->ldc;
        for (int64_t j = 0; j < p->cols; j += 2, right += 2 * p->right_panel, c += 2 * LANES) {
            bool narrow = j + 1 == p->cols;
            if (i + 1 == rows) (narrow ? multiply_11 : multiply_12)(p, left, right, c);
            else (narrow ? multiply_21 : multiply_22)(p, left, right, c);
        }
    }
    MEMORY_USED();
}

/* ---- packing ---- */

/* Words [lane][pair] of lanes whose terms are neighbours. */
static inline void read_terms(__m512i w[16], const char *from, int64_t lane, int64_t lanes,
                              int64_t terms) {
    __mmask32 mask = terms >= TERMS ? ~0u : (1u << terms) - 1;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        w[i] = i < lanes ? _mm512_maskz_loadu_epi16(mask, from + i * lane * 2)
                         : _mm512_setzero_si512();
}

static inline __m512i wide(const char *from, __mmask16 mask) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
}

/* Words [pair][lane] of terms whose lanes are neighbours. */
static inline void read_lanes(__m512i w[16], const char *from, int64_t term, int64_t lanes,
                              int64_t terms) {
    __mmask16 mask = lanes >= LANES ? 0xffff : (__mmask16)((1u << lanes) - 1);
#pragma GCC unroll 16
    for (int i = 0; i < TERMS / 2; i++) {
        const char *first = from + 4 * i * term;
        w[i] = 2 * i < terms ? wide(first, mask) : _mm512_setzero_si512();
        if (2 * i + 1 < terms)
            w[i] = _mm512_or_si512(w[i], _mm512_slli_epi32(wide(first + 2 * term, mask), 16));
    }
}

void ISA_NAME(pack_pairs)(const panel_pack *p) {
    pack_panels((panel_reader){TERMS, 2, read_terms, read_lanes}, p);
}

const panel_table ISA_NAME(amx) = {
    .terms = TERMS,
    .step = 128,
    .whole = true,
    .keeps = true,
    .left = ETCH_BF16,
    .enter = enter,
    .leave = leave,
    .multiply = multiply,
    .pack = {[ETCH_BF16] = ISA_NAME(pack_pairs)},
    .turn = ISA_NAME(turn_floats),
};

#else

const panel_table ISA_NAME(amx) = {0};

#endif
