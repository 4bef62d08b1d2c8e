/* Small products and products of integers, for one instruction set.
 *
 * The arithmetic of a float element is fixed: acc = +0, then acc = fma(a, b, acc) for k
 * ascending. Rows and columns may be blocked in any way, since each element keeps its own chain:
 * here a tile of up to 6 rows by BAND vectors stays in registers, the last vector of a row under
 * a mask. */
#include "backends/cpu/table.h"

#include <immintrin.h>
#include <math.h>

/* LOAD, STORE: whole vectors; the same with a mask: the first elements only. */
#if defined(ETCH_ISA_avx512)
typedef __m512 vec_F32;
typedef __m512d vec_F64;
typedef __mmask16 mask_F32;
typedef __mmask8 mask_F64;
#define MASK_F32(n) ((__mmask16)((1u << (n)) - 1))
#define MASK_F64(n) ((__mmask8)((1u << (n)) - 1))
#define LOAD_F32(p, mask) _mm512_maskz_loadu_ps(mask, p)
#define LOAD_F64(p, mask) _mm512_maskz_loadu_pd(mask, p)
#define STORE_F32 _mm512_mask_storeu_ps
#define STORE_F64 _mm512_mask_storeu_pd
#define SET_F32 _mm512_set1_ps
#define SET_F64 _mm512_set1_pd
#define FMA_F32 _mm512_fmadd_ps
#define FMA_F64 _mm512_fmadd_pd
#define BAND 4
#elif defined(ETCH_ISA_avx2)
typedef __m256 vec_F32;
typedef __m256d vec_F64;
typedef __m256i mask_F32, mask_F64;
static const int32_t ones_F32[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
static const int64_t ones_F64[8] = {-1, -1, -1, -1};
#define MASK_F32(n) _mm256_loadu_si256((const __m256i *)(ones_F32 + 8 - (n)))
#define MASK_F64(n) _mm256_loadu_si256((const __m256i *)(ones_F64 + 4 - (n)))
#define LOAD_F32 _mm256_maskload_ps
#define LOAD_F64(p, mask) _mm256_maskload_pd(p, mask)
#define STORE_F32 _mm256_maskstore_ps
#define STORE_F64 _mm256_maskstore_pd
#define SET_F32 _mm256_set1_ps
#define SET_F64 _mm256_set1_pd
#define FMA_F32 _mm256_fmadd_ps
#define FMA_F64 _mm256_fmadd_pd
#define BAND 2 /* sixteen registers */
#else
/* No fused multiply-add in the instruction set: the C library's, one element at a time. */
typedef float vec_F32;
typedef double vec_F64;
typedef int mask_F32, mask_F64;
#define MASK_F32(n) (int)(n)
#define MASK_F64(n) (int)(n)
#define LOAD_F32(p, mask) ((void)(mask), *(p))
#define LOAD_F64(p, mask) ((void)(mask), *(p))
#define STORE_F32(p, mask, v) ((void)(mask), *(p) = (v))
#define STORE_F64(p, mask, v) ((void)(mask), *(p) = (v))
#define SET_F32(v) (v)
#define SET_F64(v) (v)
#define FMA_F32 __builtin_fmaf
#define FMA_F64 __builtin_fma
#define BAND 4
#endif

/* ROWS x COLS vectors of c; the last vector of a row is masked. The caller's constants make the
 * arrays registers. */
#define TILE(t, T)                                                                                 \
    static inline __attribute__((always_inline)) void tile_##t(                                    \
        const int ROWS, const int COLS, const product_args *p, const T *a, const T *b,             \
        int64_t pitch, mask_##t tail, T *c) {                                                      \
        enum { W = sizeof(vec_##t) / sizeof(T) };                                                  \
        const mask_##t full = MASK_##t(W);                                                         \
        vec_##t acc[6][4];                                                                         \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                     \
            _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++) acc[r][j] = SET_##t(0);         \
        for (int64_t k = 0; k < p->k; k++, a += p->a_col, b += pitch) {                            \
            vec_##t row[4];                                                                        \
            _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++) row[j] =                        \
                LOAD_##t(b + j * W, (j == COLS - 1 ? tail : full));                                \
            _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) {                               \
                vec_##t x = SET_##t(a[r * p->a_row]);                                              \
                _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++) acc[r][j] =                 \
                    FMA_##t(x, row[j], acc[r][j]);                                                 \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                     \
            _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++)                                 \
                STORE_##t(c + r * p->ldc + j * W, (j == COLS - 1 ? tail : full), acc[r][j]);       \
    }                                                                                              \
    /* All rows of one band of COLS vectors. */                                                    \
    static inline __attribute__((always_inline)) void band_##t(                                    \
        const int COLS, const product_args *p, const T *b, int64_t pitch, mask_##t tail, T *c) {   \
        const T *a = p->a;                                                                         \
        int64_t m = p->m;                                                                          \
        for (; m >= 6; m -= 6, a += 6 * p->a_row, c += 6 * p->ldc)                                 \
            tile_##t(6, COLS, p, a, b, pitch, tail, c);                                            \
        switch (m) {                                                                               \
        case 5: tile_##t(5, COLS, p, a, b, pitch, tail, c); break;                                 \
        case 4: tile_##t(4, COLS, p, a, b, pitch, tail, c); break;                                 \
        case 3: tile_##t(3, COLS, p, a, b, pitch, tail, c); break;                                 \
        case 2: tile_##t(2, COLS, p, a, b, pitch, tail, c); break;                                 \
        case 1: tile_##t(1, COLS, p, a, b, pitch, tail, c); break;                                 \
        default: break;                                                                            \
        }                                                                                          \
    }

/* A b whose rows are not contiguous is copied first. */
#define CHAIN(t, T)                                                                                \
    TILE(t, T)                                                                                     \
    static void chain_##t(const product_args *p) {                                                 \
        enum { W = sizeof(vec_##t) / sizeof(T) };                                                  \
        T packed[MATMUL_SMALL * MATMUL_SMALL] __attribute__((aligned(64)));                        \
        int64_t vectors = (p->n + W - 1) / W, pitch = p->b_row;                                    \
        const T *b = p->b;                                                                         \
        T *c = p->c;                                                                               \
        if (p->b_col != 1 && p->n > 1) {                                                           \
            for (int64_t k = 0; k < p->k; k++)                                                     \
                for (int64_t j = 0; j < p->n; j++)                                                 \
                    packed[k * p->n + j] = b[k * p->b_row + j * p->b_col];                         \
            b = packed, pitch = p->n;                                                              \
        }                                                                                          \
        for (int64_t j = 0; j < vectors; j += BAND, b += BAND * W, c += BAND * W) {                \
            int64_t rest = vectors - j;                                                            \
            mask_##t m = MASK_##t(rest <= BAND ? p->n - (vectors - 1) * W : W);                    \
            switch (rest < BAND ? rest : BAND) {                                                   \
            case 1: band_##t(1, p, b, pitch, m, c); break;                                         \
            case 2: band_##t(2, p, b, pitch, m, c); break;                                         \
            case 3: band_##t(3, p, b, pitch, m, c); break;                                         \
            default: band_##t(BAND, p, b, pitch, m, c); break;                                     \
            }                                                                                      \
        }                                                                                          \
    }
CHAIN(F32, float)
CHAIN(F64, double)

/* Integers: row by row of b, four at a time, which vectorises where its columns are neighbours. */
#define PLAIN(t, T, U, ADD)                                                                        \
    static void four_rows_##t(T *restrict c, const T *x, int64_t step, const T *r, int64_t pitch,  \
                              int64_t n) {                                                         \
        U x0 = (U)x[0], x1 = (U)x[step], x2 = (U)x[2 * step], x3 = (U)x[3 * step];                 \
        const T *r1 = r + pitch, *r2 = r1 + pitch, *r3 = r2 + pitch;                               \
        for (int64_t j = 0; j < n; j++) {                                                          \
            U sum = (U)ADD((U)c[j], x0, (U)r[j]);                                                  \
            sum = (U)ADD(sum, x1, (U)r1[j]);                                                       \
            sum = (U)ADD(sum, x2, (U)r2[j]);                                                       \
            c[j] = (T)ADD(sum, x3, (U)r3[j]);                                                      \
        }                                                                                          \
    }                                                                                              \
    static void one_row_##t(T *restrict c, U x, const T *r, int64_t step, int64_t n) {             \
        for (int64_t j = 0; j < n; j++) c[j] = (T)ADD((U)c[j], x, (U)r[j * step]);                 \
    }                                                                                              \
    static void chain_##t(const product_args *p) {                                                 \
        for (int64_t i = 0; i < p->m; i++) {                                                       \
            const T *a = (const T *)p->a + i * p->a_row, *b = p->b;                                \
            T *c = (T *)p->c + i * p->ldc;                                                         \
            int64_t k = 0;                                                                         \
            memset(c, 0, (size_t)p->n * sizeof *c);                                                \
            for (; p->b_col == 1 && k + 4 <= p->k; k += 4)                                         \
                four_rows_##t(c, a + k * p->a_col, p->a_col, b + k * p->b_row, p->b_row, p->n);    \
            for (; k < p->k; k++)                                                                  \
                one_row_##t(c, (U)a[k * p->a_col], b + k * p->b_row, p->b_col, p->n);              \
        }                                                                                          \
    }
#define WRAP(c, x, y) ((c) + (x) * (y))
#define ANY(c, x, y) ((c) | ((x) & (y)))
PLAIN(I8, int8_t, uint8_t, WRAP)
PLAIN(I16, int16_t, uint32_t, WRAP)
PLAIN(I32, int32_t, uint32_t, WRAP)
PLAIN(I64, int64_t, uint64_t, WRAP)
PLAIN(U8, uint8_t, uint8_t, WRAP)
PLAIN(BOOL, uint8_t, uint8_t, ANY)

const product_table ISA_NAME(product) = {
    .chain = {[ETCH_F32] = chain_F32,
              [ETCH_F64] = chain_F64,
              [ETCH_I8] = chain_I8,
              [ETCH_I16] = chain_I16,
              [ETCH_I32] = chain_I32,
              [ETCH_I64] = chain_I64,
              [ETCH_U8] = chain_U8,
              [ETCH_BOOL] = chain_BOOL},
};
