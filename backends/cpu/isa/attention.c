/* The rows of attention's tiles of scores, for one instruction set: maxima, exponentials and sums
 * that run on from block to block of keys, and what the backward pass makes of a tile.
 *
 * A row begins at a vector's address and has whole vectors; what lies behind its keys is written as
 * scores of minus infinity, so that its exponentials are 0 there and no vector is a special one.
 * Exponentials are those of numbers up to 0: what would be denormal is 0. */
#include "backends/cpu/isa/lanes.h"
#include "backends/cpu/table.h"

#define SINGLE 0
#define ALL(x) ((x) - (REAL){0})
#define ALL_WORDS(x) ((x) - (UINT){0})
#define F(name) name##_f64v
#define F64 1
#include "core/ops/functions.h"
FN REAL F(power)(REAL x) {
    REAL n, b, y = MOST(K(-708, 0), x), r = F(reduced)(y, &n, &b);
    REAL e = F(real)(F(bits)(F(exp_near_1)(r)) + (F(bits)(b) << DIGITS));
    return WHERE(LESS(x, K(-708, 0)), K(0, 0), FMA(y, K(0, 0), e)); /* a NaN stays one */
}
#undef F
#undef F64
#define F(name) name##_f32v
#define F64 0
#include "core/ops/functions.h"
FN REAL F(power)(REAL x) {
    REAL n, b, y = MOST(K(0, -87), x), r = F(reduced)(y, &n, &b);
    REAL e = F(real)(F(bits)(F(exp_near_1)(r)) + (F(bits)(b) << DIGITS));
    return WHERE(LESS(x, K(0, -87)), K(0, 0), FMA(y, K(0, 0), e));
}

/* The largest lane and the sum of all, by halves. */
#ifdef ETCH_ISA_avx512
FN float largest_f32v(reals_f32v v) { return _mm512_reduce_max_ps(v); }
FN float total_f32v(reals_f32v v) { return _mm512_reduce_add_ps(v); }
FN double largest_f64v(reals_f64v v) { return _mm512_reduce_max_pd(v); }
FN double total_f64v(reals_f64v v) { return _mm512_reduce_add_pd(v); }
#else
#define HALVES(t, T)                                                                               \
    FN T largest_##t(reals_##t v) {                                                                \
        T x[VECTOR_BYTES / sizeof(T)];                                                             \
        memcpy(x, &v, sizeof v);                                                                   \
        for (unsigned h = VECTOR_BYTES / sizeof(T) / 2; h; h /= 2)                                 \
            for (unsigned i = 0; i < h; i++) x[i] = x[i] > x[i + h] ? x[i] : x[i + h];             \
        return x[0];                                                                               \
    }                                                                                              \
    FN T total_##t(reals_##t v) {                                                                  \
        T x[VECTOR_BYTES / sizeof(T)];                                                             \
        memcpy(x, &v, sizeof v);                                                                   \
        for (unsigned h = VECTOR_BYTES / sizeof(T) / 2; h; h /= 2)                                 \
            for (unsigned i = 0; i < h; i++) x[i] += x[i + h];                                     \
        return x[0];                                                                               \
    }
HALVES(f32v, float)
HALVES(f64v, double)
#endif

/* Keys that take part in row r. */
static int64_t keys_of(const attention_tile *t, int64_t r) {
    int64_t n = t->first + r * t->step;
    return n < 0 ? 0 : n < t->keys ? n : t->keys;
}

#define ROWS(t, T)                                                                                 \
    enum { LANES_##t = VECTOR_BYTES / sizeof(T) };                                                 \
    FN reals_##t load_##t(const T *p) {                                                            \
        reals_##t v;                                                                               \
        memcpy(&v, p, sizeof v);                                                                   \
        return v;                                                                                  \
    }                                                                                              \
    FN void store_##t(T *p, reals_##t v) { memcpy(p, &v, sizeof v); }                              \
    /* The end of what is worked on of a row of n keys, filled up. */                              \
    FN int64_t fill_up_##t(T *s, int64_t n) {                                                      \
        int64_t end = (n + LANES_##t - 1) / LANES_##t * LANES_##t;                                 \
        for (int64_t i = n; i < end; i++) s[i] = -(T)__builtin_inf();                              \
        return end;                                                                                \
    }                                                                                              \
    FN T largest_score_##t(const T *s, int64_t end) {                                              \
        reals_##t top = (reals_##t){0} - (T)__builtin_inf();                                       \
        for (int64_t i = 0; i < end; i += LANES_##t) top = most_##t(load_##t(s + i), top);         \
        return largest_##t(top);                                                                   \
    }                                                                                              \
    /* s = exp(s - max), the sum of which is the result. */                                        \
    FN T powers_##t(T *s, int64_t end, T max) {                                                    \
        reals_##t sum = {0}, off = (reals_##t){0} + max;                                           \
        for (int64_t i = 0; i < end; i += LANES_##t) {                                             \
            reals_##t e = power_##t(load_##t(s + i) - off);                                        \
            sum += e;                                                                              \
            store_##t(s + i, e);                                                                   \
        }                                                                                          \
        return total_##t(sum);                                                                     \
    }                                                                                              \
    /* What rows that had the maxima `before` have to be multiplied by, and sums of them. */       \
    FN void shrink_rows_##t(const attention_tile *tile, const T *before, const T *part) {          \
        const T *max = tile->max;                                                                  \
        T *sum = tile->sum, *shrink = tile->shrink;                                                \
        for (int64_t r = 0; r < tile->rows; r += LANES_##t) {                                      \
            reals_##t old = load_##t(before + r), now = load_##t(max + r);                         \
            reals_##t s = power_##t(old - now);                                                    \
            s = where_##t(same_##t(old, now), (reals_##t){0} + 1, s);                              \
            store_##t(shrink + r, s);                                                              \
            store_##t(sum + r, load_##t(sum + r) * s + load_##t(part + r));                        \
        }                                                                                          \
    }                                                                                              \
    static void soften_##t(const attention_tile *tile) {                                           \
        T before[ATTENTION_ROWS], part[ATTENTION_ROWS], *max = tile->max;                          \
        memcpy(before, max, sizeof before), memset(part, 0, sizeof part);                          \
        for (int64_t r = 0; r < tile->rows; r++) {                                                 \
            T *s = (T *)tile->scores + r * tile->pitch;                                            \
            int64_t end = fill_up_##t(s, keys_of(tile, r));                                        \
            T top = largest_score_##t(s, end);                                                     \
            max[r] = top > before[r] ? top : before[r];                                            \
            part[r] = powers_##t(s, end, max[r] == -(T)__builtin_inf() ? 0 : max[r]);              \
            for (int64_t i = end; i < tile->keys; i++) s[i] = 0;                                   \
        }                                                                                          \
        shrink_rows_##t(tile, before, part);                                                       \
    }                                                                                              \
    static void weigh_##t(const attention_tile *tile) {                                            \
        const T *max = tile->max, *inverse = tile->sum;                                            \
        for (int64_t r = 0; r < tile->rows; r++) {                                                 \
            T *s = (T *)tile->scores + r * tile->pitch;                                            \
            int64_t end = fill_up_##t(s, keys_of(tile, r));                                        \
            reals_##t off = (reals_##t){0} + (max[r] == -(T)__builtin_inf() ? 0 : max[r]);         \
            reals_##t by = (reals_##t){0} + inverse[r];                                            \
            for (int64_t i = 0; i < end; i += LANES_##t)                                           \
                store_##t(s + i, power_##t(load_##t(s + i) - off) * by);                           \
            for (int64_t i = end; i < tile->keys; i++) s[i] = 0;                                   \
        }                                                                                          \
    }                                                                                              \
    static void slopes_##t(const attention_tile *tile, void *slopes, const void *means) {          \
        const T *mean = means;                                                                     \
        for (int64_t r = 0; r < tile->rows; r++) {                                                 \
            const T *w = (T *)tile->scores + r * tile->pitch;                                      \
            T *d = (T *)slopes + r * tile->pitch;                                                  \
            reals_##t off = (reals_##t){0} + mean[r];                                              \
            for (int64_t i = 0; i < tile->keys; i += LANES_##t)                                    \
                store_##t(d + i, load_##t(w + i) * (load_##t(d + i) - off));                       \
        }                                                                                          \
    }                                                                                              \
    static void dots_##t(void *to, const void *a, int64_t a_pitch, const void *b, int64_t b_pitch, \
                         int64_t rows, int64_t n) {                                                \
        for (int64_t r = 0; r < rows; r++) {                                                       \
            const T *x = (const T *)a + r * a_pitch, *y = (const T *)b + r * b_pitch;              \
            reals_##t sum = {0};                                                                   \
            int64_t i = 0;                                                                         \
            for (; i + LANES_##t <= n; i += LANES_##t)                                             \
                sum = fma_##t(load_##t(x + i), load_##t(y + i), sum);                              \
            T total = total_##t(sum);                                                              \
            for (; i < n; i++) total += x[i] * y[i];                                               \
            ((T *)to)[r] = total;                                                                  \
        }                                                                                          \
    }                                                                                              \
    static void scale_##t(void *rows, int64_t pitch, int64_t count, int64_t n,                     \
                          const void *factors) {                                                   \
        const T *factor = factors;                                                                 \
        for (int64_t r = 0; r < count; r++) {                                                      \
            T *x = (T *)rows + r * pitch;                                                          \
            if (factor[r] == 1) continue;                                                          \
            for (int64_t i = 0; i < n; i++) x[i] *= factor[r];                                     \
        }                                                                                          \
    }
ROWS(f32v, float)
ROWS(f64v, double)

/* ---- to bf16 ---- */

#ifdef ETCH_ISA_avx512
#define HALVES_TARGET __attribute__((target("avx512bf16")))

/* 2^x of x up to 0 (and what rounding adds), as exact as bf16 asks for. */
FN reals_f32v power_of_two(reals_f32v x) {
    const reals_f32v whole = (reals_f32v){0} + 0x1.8p23f, least = (reals_f32v){0} - 126;
    reals_f32v y = most_f32v(least, x), b = y + whole, r = y - (b - whole);
    reals_f32v h = fma_f32v(r, (reals_f32v){0} + 0.00968f, (reals_f32v){0} + 0.0555035695f);
    h = fma_f32v(h, r, (reals_f32v){0} + 0.240226507f);
    h = fma_f32v(h, r, (reals_f32v){0} + 0.693147182f);
    h = fma_f32v(h, r, (reals_f32v){0} + 1);
    h = real_f32v(bits_f32v(h) + (bits_f32v(b) << 23));
    return where_f32v(less_f32v(x, least), (reals_f32v){0}, fma_f32v(y, (reals_f32v){0}, h));
}

HALVES_TARGET static float powers_bf16(const float *s, uint16_t *to, int64_t end, float scale,
                                       float max) {
    reals_f32v sum = {0}, by = (reals_f32v){0} + scale * 0x1.715476p+0f;
    reals_f32v off = (reals_f32v){0} - max * 0x1.715476p+0f;
    for (int64_t i = 0; i < end; i += 16) {
        reals_f32v e = power_of_two(fma_f32v(load_f32v(s + i), by, off));
        sum += e;
        __m256bh half = _mm512_cvtneps_pbh(e);
        memcpy(to + i, &half, sizeof half);
    }
    return total_f32v(sum);
}

HALVES_TARGET static void soften_bf16(const attention_tile *tile, float scale, uint16_t *to,
                                      int64_t pitch) {
    float before[ATTENTION_ROWS], part[ATTENTION_ROWS], *max = tile->max;
    int64_t all = (tile->keys + 31) / 32 * 32;
    memcpy(before, max, sizeof before), memset(part, 0, sizeof part);
    for (int64_t r = 0; r < tile->rows; r++, to += pitch) {
        float *s = (float *)tile->scores + r * tile->pitch;
        int64_t end = fill_up_f32v(s, keys_of(tile, r));
        float top = largest_score_f32v(s, end) * scale;
        max[r] = top > before[r] ? top : before[r];
        part[r] = powers_bf16(s, to, end, scale, max[r] == -__builtin_inff() ? 0 : max[r]);
        memset(to + end, 0, (size_t)(all - end) * sizeof *to);
    }
    shrink_rows_f32v(tile, before, part);
}
#define SOFTEN_BF16 soften_bf16
#else
#define SOFTEN_BF16 NULL
#endif

const attention_table ISA_NAME(attention) = {
    .soften_bf16 = SOFTEN_BF16,
    .soften = {[ETCH_F32] = soften_f32v, [ETCH_F64] = soften_f64v},
    .weigh = {[ETCH_F32] = weigh_f32v, [ETCH_F64] = weigh_f64v},
    .slope = {[ETCH_F32] = slopes_f32v, [ETCH_F64] = slopes_f64v},
    .dots = {[ETCH_F32] = dots_f32v, [ETCH_F64] = dots_f64v},
    .scale = {[ETCH_F32] = scale_f32v, [ETCH_F64] = scale_f64v},
};
