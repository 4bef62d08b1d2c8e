/* Products of f32 by panels (see panel_table), of the half types after they are widened.
 *
 * The arithmetic of an element is a chain acc = fma(x, y, acc) over the terms of PANEL_STEP blocks,
 * in ascending order and from +0; these sums are added one after the other. What is missing of the
 * last block counts as terms of zeros. */
#include "backends/cpu/isa/panels.h"

#if defined(ETCH_ISA_avx512)

enum { TERMS = 16 };

#define WITH_STRIDES
#define MULTIPLY_ADD(x, y, acc) _mm512_fmadd_ps(x, y, acc)
#include "backends/cpu/isa/panel_multiply.h"

/* ---- packing ---- */

static inline __mmask16 first(int64_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

/* n numbers as f32, of the bytes that T has. */
static inline __m512i from_f32(const char *p, __mmask16 mask) {
    return _mm512_maskz_loadu_epi32(mask, p);
}
static inline __m512i from_bf16(const char *p, __mmask16 mask) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16);
}
static inline __m512i from_f16(const char *p, __mmask16 mask) {
    return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)));
}

/* Rows of neighbours, `count` of them, `n` numbers each. */
#define READER(T, BYTES)                                                                           \
    static inline void rows_##T(__m512i w[16], const char *from, int64_t step, int64_t count,      \
                                int64_t n) {                                                       \
        __mmask16 mask = first(n);                                                                 \
        if (count >= 16)                                                                           \
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) w[i] =                           \
                from_##T(from + i * step * BYTES, mask);                                           \
        else                                                                                       \
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) w[i] =                           \
                i < count ? from_##T(from + i * step * BYTES, mask) : _mm512_setzero_si512();      \
    }                                                                                              \
    static inline void lanes_##T(__m512i w[16], const char *from, int64_t step, int64_t lanes,     \
                                 int64_t terms) {                                                  \
        rows_##T(w, from, step, terms, lanes);                                                     \
    }                                                                                              \
    static void pack_##T(const panel_pack *p) {                                                    \
        pack_panels((panel_reader){TERMS, BYTES, rows_##T, lanes_##T}, p);                         \
    }
READER(f32, 4)
READER(bf16, 2)
READER(f16, 2)

void ISA_NAME(turn_floats)(float *to, int64_t ldto, const float *from, int64_t ldfrom, int64_t rows,
                           int64_t cols) {
    __m512i w[16];
    for (int64_t r = 0; r < rows; r += 16)
        for (int64_t c = 0; c < cols; c += 16) {
            for (int i = 0; i < 16; i++) w[i] = _mm512_loadu_si512(from + (r + i) * ldfrom + c);
            turn(w);
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + (c + i) * ldto + r, w[i]);
        }
}

static void nothing(void) {}

const panel_table ISA_NAME(panels) = {
    .terms = TERMS,
    .step = PANEL_STEP,
    .keeps = true,
    .left = ETCH_F32,
    .strides = true,
    .enter = nothing,
    .leave = nothing,
    .multiply = multiply,
    .pack = {[ETCH_F32] = pack_f32, [ETCH_BF16] = pack_bf16, [ETCH_F16] = pack_f16},
    .turn = ISA_NAME(turn_floats),
};

#else

const panel_table ISA_NAME(panels) = {0};

#endif
