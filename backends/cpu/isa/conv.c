/* Convolution, for one instruction set: a few positions of the output times a panel of the weight,
 * all of whose sums stay in registers.
 *
 * The arithmetic of an element is fixed: acc = +0, then acc = fma(x, w, acc) place after place of
 * the kernel, and of each place channel after channel (where each output channel has one input
 * channel, of that alone); without fma in the instruction set, the
 * product rounded, and then the sum. An element may be stored and loaded again between places and
 * channels, so no value depends on how positions, output channels or terms are cut. */
#include "backends/cpu/table.h"

#include "lanes.h"

#if defined(ETCH_ISA_avx512)
enum { VECTORS = 4 };
#else
enum { VECTORS = 2 }; /* sixteen registers */
#endif

#define UNROLLED _Pragma("GCC unroll 8")
#define SAME_f32v(x) REGISTER(set1_ps)(x)
#define SAME_f64v(x) REGISTER(set1_pd)(x)
#define LOAD_f32v(p) (reals_f32v) REGISTER(loadu_ps)(p)
#define LOAD_f64v(p) (reals_f64v) REGISTER(loadu_pd)(p)
#define STORE_f32v(p, x) REGISTER(storeu_ps)(p, x)
#define STORE_f64v(p, x) REGISTER(storeu_pd)(p, x)

/* COUNT positions times WIDE vectors; the callers' constants make the arrays registers. */
#define POSITIONS(name, t, T, MULTIPLY_ADD)                                                        \
    FN void positions_##name(const int COUNT, const int WIDE, const conv_panel *p) {               \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        reals_##t acc[CONV_ROWS][VECTORS];                                                         \
        T *c = p->c;                                                                               \
        const T *w = p->w;                                                                         \
        UNROLLED for (int m = 0; m < COUNT; m++) UNROLLED for (int n = 0; n < WIDE; n++)           \
            acc[m][n] = p->adds ? LOAD_##t(c + m * p->ldc + n * W) : (reals_##t){0};               \
        const char *ahead = p->ahead;                                                              \
        const char *const *row = p->rows;                                                          \
        for (int64_t s = 0; s < p->places; s++, row += CONV_ROWS) {                                \
            const T *x[CONV_ROWS];                                                                 \
            UNROLLED for (int m = 0; m < COUNT; m++) x[m] = (const T *)(row[m] + p->offset);       \
            for (int64_t k = 0; k < p->terms; k++, w += WIDE * W, ahead += p->ahead_step) {        \
                __builtin_prefetch(ahead, 0, 2);                                                   \
                reals_##t b[VECTORS];                                                              \
                UNROLLED for (int n = 0; n < WIDE; n++) b[n] = LOAD_##t(w + n * W);                \
                UNROLLED for (int m = 0; m < COUNT; m++) {                                         \
                    reals_##t a = SAME_##t(x[m][k]);                                               \
                    UNROLLED for (int n = 0; n < WIDE; n++) acc[m][n] =                            \
                        MULTIPLY_ADD(a, b[n], acc[m][n]);                                          \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        const T *bias = p->bias;                                                                   \
        if (bias)                                                                                  \
            UNROLLED for (int n = 0; n < WIDE; n++) UNROLLED for (int m = 0; m < COUNT; m++)       \
                acc[m][n] = acc[m][n] + LOAD_##t(bias + n * W);                                    \
        UNROLLED for (int m = 0; m < COUNT; m++) UNROLLED for (int n = 0; n < WIDE; n++)           \
            STORE_##t(c + m * p->ldc + n * W, acc[m][n]);                                          \
    }
POSITIONS(f32v, f32v, float, fma_f32v)
POSITIONS(f64v, f64v, double, fma_f64v)

#define WIDTHS(t, n)                                                                               \
    switch (p->vectors) {                                                                          \
    case 1: positions_##t(n, 1, p); return;                                                        \
    case 2: positions_##t(n, 2, p); return;                                                        \
    case 3: positions_##t(n, VECTORS == 4 ? 3 : 2, p); return;                                     \
    default: positions_##t(n, VECTORS, p); return;                                                 \
    }
#define MULTIPLY(t)                                                                                \
    static void multiply_##t(const conv_panel *p) {                                                \
        switch (p->count) {                                                                        \
        case 1: WIDTHS(t, 1)                                                                       \
        case 2: WIDTHS(t, 2)                                                                       \
        case 3: WIDTHS(t, 3)                                                                       \
        case 4: WIDTHS(t, 4)                                                                       \
        case 5: WIDTHS(t, 5)                                                                       \
        default: WIDTHS(t, CONV_ROWS)                                                              \
        }                                                                                          \
    }
MULTIPLY(f32v)
MULTIPLY(f64v)

/* Words of two channels: where the processor has AVX512_BF16, acc = fma(x, w, acc) of the second of
 * each pair, then of the first, denormals taken as zero (VDPBF16PS, Intel SDM). */
#if defined(ETCH_ISA_avx512)
#pragma GCC push_options
#pragma GCC target("avx512bf16")
#define DOT(x, y, acc) (reals_f32v) _mm512_dpbf16_ps((__m512)(acc), (__m512bh)(x), (__m512bh)(y))
POSITIONS(pairs, f32v, float, DOT)
MULTIPLY(pairs)
#pragma GCC pop_options
#else
#define multiply_pairs NULL
#endif

/* Each channel by itself: its values times its own weights. The last vector may have few channels.
 */
#define CHANNELS(t, T)                                                                             \
    FN void channels_##t(const int WIDE, const conv_panel *p, int m) {                             \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        reals_##t acc[VECTORS];                                                                    \
        T *c = (T *)p->c + m * p->ldc;                                                             \
        const T *w = p->w, *bias = p->bias;                                                        \
        UNROLLED for (int n = 0; n < WIDE; n++) acc[n] = (reals_##t){0};                           \
        const char *const *row = p->rows + m;                                                      \
        for (int64_t s = 0; s < p->places; s++, row += CONV_ROWS, w += p->pitch) {                 \
            const T *x = (const T *)(*row + p->offset);                                            \
            UNROLLED for (int n = 0; n < WIDE; n++) acc[n] =                                       \
                fma_##t(p->lanes ? first_##t(x, p->lanes) : LOAD_##t(x + n * W),                   \
                        LOAD_##t(w + n * W), acc[n]);                                              \
        }                                                                                          \
        if (bias)                                                                                  \
            UNROLLED for (int n = 0; n < WIDE; n++) acc[n] = acc[n] + LOAD_##t(bias + n * W);      \
        UNROLLED for (int n = 0; n < WIDE; n++) STORE_##t(c + n * W, acc[n]);                      \
    }                                                                                              \
    static void apart_##t(const conv_panel *p) {                                                   \
        for (int m = 0; m < p->count; m++) switch (p->vectors) {                                   \
            case 1: channels_##t(1, p, m); break;                                                  \
            case 2: channels_##t(2, p, m); break;                                                  \
            case 3: channels_##t(VECTORS == 4 ? 3 : 2, p, m); break;                               \
            default: channels_##t(VECTORS, p, m);                                                  \
            }                                                                                      \
    }
CHANNELS(f32v, float)
CHANNELS(f64v, double)

/* Positions side by side: lanes are those, and a weight is the same for all of them. */
#define LINE(t, T)                                                                                 \
    FN void line_##t(const int COUNT, const int WIDE, const conv_line *l, int64_t at) {            \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        reals_##t acc[CONV_LINES][VECTORS] = {0};                                                  \
        const T *w = l->w, *bias = l->bias;                                                        \
        for (int64_t h = 0; h < l->kernel[0]; h++)                                                 \
            for (int64_t k = 0; k < l->kernel[1]; k++) {                                           \
                const T *x = (const T *)l->x + h * l->row + k * l->column + at;                    \
                for (int64_t i = 0; i < l->terms; i++, x += l->channel, w += COUNT) {              \
                    reals_##t a[VECTORS];                                                          \
                    UNROLLED for (int n = 0; n < WIDE; n++) a[n] = LOAD_##t(x + n * W);            \
                    UNROLLED for (int m = 0; m < COUNT; m++) {                                     \
                        reals_##t b = SAME_##t(w[m]);                                              \
                        UNROLLED for (int n = 0; n < WIDE; n++) acc[m][n] =                        \
                            fma_##t(a[n], b, acc[m][n]);                                           \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        if (bias)                                                                                  \
            UNROLLED for (int m = 0; m < COUNT; m++) UNROLLED for (int n = 0; n < WIDE; n++)       \
                acc[m][n] = acc[m][n] + SAME_##t(bias[m]);                                         \
        T *c = (T *)l->c + at;                                                                     \
        UNROLLED for (int m = 0; m < COUNT; m++) UNROLLED for (int n = 0; n < WIDE; n++)           \
            STORE_##t(c + m * l->ldc + n * W, acc[m][n]);                                          \
    }                                                                                              \
    /* What is left is done once more from a vector before the end on: with the same sums. */      \
    FN void line_of_##t(const int COUNT, const conv_line *l) {                                     \
        enum { W = VECTOR_BYTES / sizeof(T) };                                                     \
        int64_t at = 0;                                                                            \
        for (; at + VECTORS * W <= l->n; at += VECTORS * W) line_##t(COUNT, VECTORS, l, at);       \
        for (; at + W <= l->n; at += W) line_##t(COUNT, 1, l, at);                                 \
        if (at < l->n) line_##t(COUNT, 1, l, l->n - W);                                            \
    }                                                                                              \
    static void lines_##t(const conv_line *l) {                                                    \
        switch (l->count) {                                                                        \
        case 1: line_of_##t(1, l); return;                                                         \
        case 2: line_of_##t(2, l); return;                                                         \
        case 3: line_of_##t(3, l); return;                                                         \
        default: line_of_##t(CONV_LINES, l);                                                       \
        }                                                                                          \
    }
LINE(f32v, float)
LINE(f64v, double)

#if defined(ETCH_ISA_avx512)
/* Runs are short: what the C library spends on deciding how to move them would show. */
static void copy(char *to, const char *from, int64_t bytes) {
    __m512i zeros = _mm512_setzero_si512();
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64)
        _mm512_storeu_si512(to + i, from ? _mm512_loadu_si512(from + i) : zeros);
    if (i == bytes) return;
    __mmask64 rest = ~0ull >> (64 - (bytes - i));
    _mm512_mask_storeu_epi8(to + i, rest, from ? _mm512_maskz_loadu_epi8(rest, from + i) : zeros);
}

static void copy_runs(char *to, const char *from, int64_t step, int64_t count, int64_t bytes) {
    int64_t whole = bytes & -64;
    __mmask64 rest = bytes > whole ? ~0ull >> (64 - (bytes - whole)) : 0;
    for (int64_t k = 0; k < count; k++, from += step, to += bytes) {
        for (int64_t i = 0; i < whole; i += 64)
            _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
        if (rest)
            _mm512_mask_storeu_epi8(to + whole, rest, _mm512_maskz_loadu_epi8(rest, from + whole));
    }
}
#else
static void copy(char *to, const char *from, int64_t bytes) {
    if (from) memcpy(to, from, (size_t)bytes);
    else memset(to, 0, (size_t)bytes);
}

static void copy_runs(char *to, const char *from, int64_t step, int64_t count, int64_t bytes) {
    for (int64_t k = 0; k < count; k++, from += step, to += bytes) memcpy(to, from, (size_t)bytes);
}
#endif

const conv_table ISA_NAME(conv) = {
    .lanes = {[ETCH_F32] = VECTOR_BYTES / 4, [ETCH_F64] = VECTOR_BYTES / 8},
    .vectors = VECTORS,
    .multiply = {[ETCH_F32] = multiply_f32v, [ETCH_F64] = multiply_f64v},
    .pairs = multiply_pairs,
    .apart = {[ETCH_F32] = apart_f32v, [ETCH_F64] = apart_f64v},
    .lines = {[ETCH_F32] = lines_f32v, [ETCH_F64] = lines_f64v},
    .copy = copy,
    .copy_runs = copy_runs};
