/* Products of bf16 by panels (see panel_table) where the processor has dot products of pairs
 * (AVX512_BF16), which are no part of the set avx512 as such.
 *
 * The arithmetic of an element is the instruction's (VDPBF16PS, Intel SDM): over the pairs of terms
 * of PANEL_STEP blocks, in ascending order and from +0, acc = fma(x, y, acc) of the second of each
 * pair, then of the first; these sums are added one after the other. Of few rows it is 16 such
 * chains, of every sixteenth pair, whose sums are added half by half. All but the additions of sums
 * round to the nearest f32 and take denormals, operands and results, as zero, whatever MXCSR
 * says. */
#include "backends/cpu/isa/panels.h"

#if defined(ETCH_ISA_avx512)

#pragma GCC push_options
#pragma GCC target("avx512bf16")
#define MULTIPLY_ADD(x, y, acc) _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(y))
#include "backends/cpu/isa/panel_multiply.h"

/* ---- few rows ---- */

/* The words of a row, two terms each: 16 lanes sum every sixteenth of them. */
static inline __attribute__((always_inline)) float sum_of(__m512 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline __attribute__((always_inline)) __m512 terms_at(const char *p, __mmask32 mask) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, p));
}

/* The caller's constants make the arrays registers. */
static inline __attribute__((always_inline)) void
few_by(const int ROWS, const int LANES, const few_rows *f, const char *x, const char *w, float *c) {
    __m512 acc[4][4];
    int64_t xr = f->x_row, wr = f->w_row;
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int j = 0; j < LANES; j++) acc[r][j] = _mm512_setzero_ps();
    for (int64_t k = 0; k < f->terms; k += 32, x += 64, w += 64) {
        int64_t rest = f->terms - k;
        __mmask32 mask = rest >= 32 ? ~0u : (1u << rest) - 1;
        __m512 y[4];
#pragma GCC unroll 4
        for (int j = 0; j < LANES; j++) y[j] = terms_at(w + j * wr, mask);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            __m512 v = terms_at(x + r * xr, mask);
#pragma GCC unroll 4
            for (int j = 0; j < LANES; j++) acc[r][j] = MULTIPLY_ADD(v, y[j], acc[r][j]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int j = 0; j < LANES; j++) c[r * f->c_row + j * f->c_lane] = sum_of(acc[r][j]);
}

#define FEW(R, L)                                                                                  \
    static void few_##R##L(const few_rows *f, const char *x, const char *w, float *c) {            \
        few_by(R, L, f, x, w, c);                                                                  \
    }
#define FEW_OF(R) FEW(R, 1) FEW(R, 4)
/* clang-format off */
FEW_OF(1) FEW_OF(2) FEW_OF(3) FEW_OF(4)

typedef void (*few_fn)(const few_rows *f, const char *x, const char *w, float *c);
/* clang-format on */
static const few_fn few_fns[4][2] = {
    {few_11, few_14}, {few_21, few_24}, {few_31, few_34}, {few_41, few_44}};

/* Rows of the matrix that were just read meet all rows of x. */
static void few(const few_rows *f) {
    for (int64_t j = 0, n; j < f->lanes; j += n) {
        n = f->lanes - j >= 4 ? 4 : 1;
        for (int64_t r = 0, m; r < f->rows; r += m) {
            m = f->rows - r < 4 ? f->rows - r : 4;
            few_fns[m - 1][n == 4](f, f->x + r * f->x_row, f->w + j * f->w_row,
                                   f->c + r * f->c_row + j * f->c_lane);
        }
    }
}
#pragma GCC pop_options

static void nothing(void) {}

const panel_table ISA_NAME(dots) = {
    .terms = BF16_TERMS,
    .step = PANEL_STEP,
    .left = ETCH_BF16,
    .enter = nothing,
    .leave = nothing,
    .multiply = multiply,
    .few = few,
    .pack = {[ETCH_BF16] = ISA_NAME(pack_pairs)},
    .turn = ISA_NAME(turn_floats),
};

#else

const panel_table ISA_NAME(dots) = {0};

#endif
