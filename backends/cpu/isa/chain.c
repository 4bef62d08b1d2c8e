/* What follows a tile of sums of bf16, where that is one operation after another (see chain_args):
 * two vectors of some rows at a time stay in registers, an operand that is the same for all rows is
 * read once for those. The bits are those of a generated kernel, which takes half as many
 * instructions again: a compiler does not find the rounding of three. */
#include "backends/cpu/table.h"

#include "lanes.h"

#if defined(ETCH_ISA_avx512)

#pragma GCC push_options
#pragma GCC target("avx512vnni")

enum { ROWS = 4, LANES = 16, COLUMNS = 2 * LANES };
#define UNROLLED _Pragma("GCC unroll 8")
#define ALL_ROWS UNROLLED for (int r = 0; r < R; r++) UNROLLED for (int v = 0; v < 2; v++)

/* To nearest even: what is added is 0x7fff and the lowest bit that stays. Of bytes 255, 254, that
 * bit, 128 times 127, 1, 1, 1 it is the sum. NaNs come with a low half of zeros, and stay. */
static inline __m512 round_bf16(__m512 x) {
    __m512i u = _mm512_castps_si512(x);
    __m512i bytes = _mm512_ternarylogic_epi32(u, _mm512_set1_epi32(0x10000),
                                              _mm512_set1_epi32((int)0x8000feff), 0xea);
    u = _mm512_dpbusd_epi32(u, bytes, _mm512_set1_epi32(0x0101017f));
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000)));
}

static inline __m512 widen(const uint16_t *from, __mmask16 m) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

static inline __m512 apply(uint8_t op, __m512 x, __m512 y) {
    if (op == CHAIN_ADD) return _mm512_add_ps(x, y);
    if (op == CHAIN_MUL) return _mm512_mul_ps(x, y);
    return op == CHAIN_SUB ? _mm512_sub_ps(x, y) : _mm512_sub_ps(y, x);
}

/* One operation on R rows; the callers' constants make x registers. */
FN void operate(const int R, const chain_step *s, uint8_t op, __m512 x[ROWS][2],
                const uint16_t *from, const __mmask16 m[2]) {
    if (s->pitch) {
        ALL_ROWS x[r][v] = apply(op, x[r][v], widen(from + r * s->pitch + v * LANES, m[v]));
        return;
    }
    __m512 y[2] = {widen(from, m[0]), widen(from + LANES, m[1])};
    ALL_ROWS x[r][v] = apply(op, x[r][v], y[v]);
}

FN void block(const int R, const chain_args *a, int64_t row, int64_t col, const __mmask16 m[2]) {
    __m512 x[ROWS][2], aside[ROWS][2];
    const float *c = a->c + row * a->ldc + col;
    ALL_ROWS x[r][v] = aside[r][v] = _mm512_setzero_ps();
    for (int k = 0; k < a->n; k++) {
        const chain_step *s = &a->step[k];
        const uint16_t *from = s->data + row * s->pitch + col;
        switch (s->op) {
        case CHAIN_TILE:
            ALL_ROWS aside[r][v] = x[r][v];
            ALL_ROWS x[r][v] = _mm512_maskz_loadu_ps(m[v], c + r * a->ldc + v * LANES);
            break;
        case CHAIN_LOAD:
            ALL_ROWS aside[r][v] = x[r][v];
            ALL_ROWS x[r][v] = widen(from + r * s->pitch + v * LANES, m[v]);
            break;
        case CHAIN_BOTH: ALL_ROWS x[r][v] = _mm512_add_ps(x[r][v], aside[r][v]); break;
        case CHAIN_ROUND: ALL_ROWS x[r][v] = round_bf16(x[r][v]); break;
        case CHAIN_RELU: ALL_ROWS x[r][v] = _mm512_max_ps(_mm512_setzero_ps(), x[r][v]); break;
        case CHAIN_ADD: operate(R, s, CHAIN_ADD, x, from, m); break;
        case CHAIN_SUB: operate(R, s, CHAIN_SUB, x, from, m); break;
        case CHAIN_SUB_FROM: operate(R, s, CHAIN_SUB_FROM, x, from, m); break;
        default: operate(R, s, CHAIN_MUL, x, from, m);
        }
    }
    static const uint16_t high[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                      23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                      45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    __mmask32 stored = m[0] | (__mmask32)m[1] << LANES;
    uint16_t *y = a->y + row * a->y_pitch + col;
    UNROLLED for (int r = 0; r < R; r++) {
        __m512i words = _mm512_permutex2var_epi16(
            _mm512_castps_si512(x[r][0]), _mm512_loadu_si512(high), _mm512_castps_si512(x[r][1]));
        _mm512_mask_storeu_epi16(y + r * a->y_pitch, stored, words);
    }
}

FN void rows(const int R, const chain_args *a, int64_t row) {
    static const __mmask16 all[2] = {0xffff, 0xffff};
    int64_t col = 0;
    for (; col + COLUMNS <= a->cols; col += COLUMNS) block(R, a, row, col, all);
    if (col == a->cols) return;
    uint32_t rest = (1u << (a->cols - col)) - 1;
    const __mmask16 m[2] = {(__mmask16)rest, (__mmask16)(rest >> LANES)};
    block(R, a, row, col, m);
}

static void run(const chain_args *a) {
    int64_t row = 0;
    for (; row + ROWS <= a->rows; row += ROWS) rows(ROWS, a, row);
    for (; row < a->rows; row++) rows(1, a, row);
}

#pragma GCC pop_options

const chain_table ISA_NAME(chain) = {.run = run};

#else

const chain_table ISA_NAME(chain) = {NULL};

#endif
