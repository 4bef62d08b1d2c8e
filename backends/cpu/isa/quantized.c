/* Products of few rows with weights of 8 and 4 bits, for one instruction set: integers are
 * multiplied as they are, by the instructions for that where there are any (VNNI, which is no part
 * of the set avx512 as such), else as pairs of 16 bits, else one by one. */
#include "backends/cpu/table.h"

#include <immintrin.h>
#include <string.h>

/* ---- blocks of x ---- */

/* The scale is the largest absolute value / 127, and a number the nearest multiple of it. Below
 * 2^-100 quotients are taken in f64, where nothing overflows. */
static float tiny_block(const float *x, int64_t n, float largest, int8_t *q, int32_t *sum) {
    float scale = etch__quantized_scale(largest, 127);
    for (int64_t i = 0; i < n; i++) {
        double v = scale > 0 ? ((double)x[i] / (double)scale + 0x1.8p52) - 0x1.8p52 : 0;
        q[i] = (int8_t)(v > 127 ? 127 : v < -127 ? -127 : v);
        *sum += q[i];
    }
    return scale;
}

/* One with a number that is not finite has the scale NaN. */
static float block(const float *x, int64_t n, int8_t *q, int32_t *sum) {
    const int32_t infinity = 0x7f800000;
    int32_t bits = 0, total = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t b;
        memcpy(&b, &x[i], 4);
        b &= 0x7fffffff;
        bits = b > bits ? b : bits;
    }
    float largest;
    memcpy(&largest, &bits, 4);
    *sum = 0;
    if (bits >= infinity) {
        memset(q, 0, (size_t)n);
        return __builtin_nanf("");
    }
    if (largest < 0x1p-100f) return tiny_block(x, n, largest, q, sum);
    float factor = 127 / largest;
    for (int64_t i = 0; i < n; i++) {
        float v = (x[i] * factor + 0x1.8p23f) - 0x1.8p23f;
        int32_t whole = (int32_t)v;
        q[i] = (int8_t)whole;
        total += whole;
    }
    *sum = total;
    return largest / 127;
}

/* ---- pairs of 16 bits, or one by one ---- */

/* Of 16 rows. */
typedef float lanes __attribute__((vector_size(64)));
typedef int32_t int_lanes __attribute__((vector_size(64)));
typedef uint16_t half_lanes __attribute__((vector_size(32)));

/* 16 scales: f32, or the upper halves of such. */
static inline __attribute__((always_inline)) void take(const char *from, bool halves, lanes *to) {
    half_lanes upper;
    if (!halves) {
        memcpy(to, from, sizeof *to);
        return;
    }
    memcpy(&upper, from, sizeof upper);
    int_lanes bits = __builtin_convertvector(upper, int_lanes) << 16;
    memcpy(to, &bits, sizeof *to);
}

#define ONE_OF(x) x##_plainly
#define NAME ONE_OF
#define step step_plainly
#if defined(ETCH_ISA_avx512) || defined(ETCH_ISA_avx2)

#define AT_ONCE 2
typedef struct {
    __m256i v[4]; /* of 4 rows: two sums each */
} dots;
typedef struct {
    __m128i v[4];
} pieces;

static inline void clear(dots *d) {
    for (int i = 0; i < 4; i++) d->v[i] = _mm256_setzero_si256();
}

static inline pieces load(const uint8_t *p) {
    pieces v;
    for (int i = 0; i < 4; i++) v.v[i] = _mm_loadu_si128((const __m128i *)p + i);
    return v;
}

static inline pieces flipped(pieces v) {
    for (int i = 0; i < 4; i++) v.v[i] = _mm_xor_si128(v.v[i], _mm_set1_epi8((char)0x80));
    return v;
}

static inline pieces low(pieces v) {
    for (int i = 0; i < 4; i++) v.v[i] = _mm_and_si128(v.v[i], _mm_set1_epi8(15));
    return v;
}

static inline pieces high(pieces v) {
    for (int i = 0; i < 4; i++) v.v[i] = _mm_srli_epi16(v.v[i], 4);
    return low(v);
}

static inline void step(dots *d, pieces w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    __m256i wide = _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(four)));
    for (int i = 0; i < 4; i++) {
        __m256i products = _mm256_madd_epi16(_mm256_cvtepu8_epi16(w.v[i]), wide);
        d->v[i] = _mm256_add_epi32(d->v[i], products);
    }
}

static inline void finish(const dots *a, const dots *b, int32_t *out) {
    for (int i = 0; i < 4; i += 2) {
        __m256i first = _mm256_add_epi32(a->v[i], b->v[i]);
        __m256i second = _mm256_add_epi32(a->v[i + 1], b->v[i + 1]);
        __m256i both = _mm256_permute4x64_epi64(_mm256_hadd_epi32(first, second), 0xd8);
        _mm256_storeu_si256((__m256i *)(out + 4 * i), both);
    }
}

#else

#define AT_ONCE 1
typedef struct {
    int32_t v[QUANTIZED_ROWS];
} dots;
typedef struct {
    uint8_t v[64];
} pieces;

static inline void clear(dots *d) { memset(d, 0, sizeof *d); }

static inline pieces load(const uint8_t *p) {
    pieces v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline pieces flipped(pieces v) {
    for (int i = 0; i < 64; i++) v.v[i] ^= 0x80;
    return v;
}

static inline pieces low(pieces v) {
    for (int i = 0; i < 64; i++) v.v[i] &= 15;
    return v;
}

static inline pieces high(pieces v) {
    for (int i = 0; i < 64; i++) v.v[i] >>= 4;
    return v;
}

static inline void step(dots *d, pieces w, const int8_t *x) {
    for (int i = 0; i < QUANTIZED_ROWS; i++)
        for (int k = 0; k < 4; k++) d->v[i] += w.v[4 * i + k] * x[k];
}

static inline void finish(const dots *a, const dots *b, int32_t *out) {
    for (int i = 0; i < QUANTIZED_ROWS; i++) out[i] = a->v[i] + b->v[i];
}

#endif
#include "backends/cpu/isa/quantized_rows.h"

/* ---- VNNI ---- */

#ifdef ETCH_ISA_avx512
#pragma GCC push_options
#pragma GCC target("avx512vnni")
#undef NAME
#undef step
#undef AT_ONCE
#define WITH_VNNI(x) x##_vnni
#define NAME WITH_VNNI
#define dots dots_vnni
#define pieces pieces_vnni
#define clear clear_vnni
#define load load_vnni
#define flipped flipped_vnni
#define low low_vnni
#define high high_vnni
#define step step_vnni
#define finish finish_vnni
#define AT_ONCE 8
typedef __m512i dots;
typedef __m512i pieces;

static inline void clear(dots *d) { *d = _mm512_setzero_si512(); }
static inline pieces load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline pieces flipped(pieces v) { return _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80)); }
static inline pieces low(pieces v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
static inline pieces high(pieces v) { return low(_mm512_srli_epi16(v, 4)); }

static inline void step(dots *d, pieces w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    *d = _mm512_dpbusd_epi32(*d, w, _mm512_set1_epi32(four));
}

static inline void finish(const dots *a, const dots *b, int32_t *out) {
    _mm512_storeu_si512(out, _mm512_add_epi32(*a, *b));
}

#include "backends/cpu/isa/quantized_rows.h"
#pragma GCC pop_options
#define ROWS_VNNI rows_vnni
#else
#define ROWS_VNNI NULL
#endif

const quantized_table ISA_NAME(quantized) = {
    .rows = rows_plainly, .rows_vnni = ROWS_VNNI, .block = block};
