/* Small products and products of integers, for one instruction set.
 *
 * The arithmetic of a float element is fixed: acc = +0, then acc = fma(a, b, acc) for k ascending. Rows
 * and columns may be blocked in any way, since each element keeps its own chain: here a tile of up to 6
 * rows by 4 vectors stays in registers, over a copy of b whose rows are padded to whole vectors. */
#include "backends/cpu/table.h"

#include <immintrin.h>
#include <math.h>

#if defined(ETCH_ISA_avx512)
typedef __m512 vec_F32;
typedef __m512d vec_F64;
#define LOAD_F32 _mm512_loadu_ps
#define LOAD_F64 _mm512_loadu_pd
#define STORE_F32 _mm512_storeu_ps
#define STORE_F64 _mm512_storeu_pd
#define SET_F32 _mm512_set1_ps
#define SET_F64 _mm512_set1_pd
#define FMA_F32 _mm512_fmadd_ps
#define FMA_F64 _mm512_fmadd_pd
#elif defined(ETCH_ISA_avx2)
typedef __m256 vec_F32;
typedef __m256d vec_F64;
#define LOAD_F32 _mm256_loadu_ps
#define LOAD_F64 _mm256_loadu_pd
#define STORE_F32 _mm256_storeu_ps
#define STORE_F64 _mm256_storeu_pd
#define SET_F32 _mm256_set1_ps
#define SET_F64 _mm256_set1_pd
#define FMA_F32 _mm256_fmadd_ps
#define FMA_F64 _mm256_fmadd_pd
#else
/* No fused multiply-add in the instruction set: the C library's, one element at a time. */
typedef float vec_F32;
typedef double vec_F64;
#define LOAD_F32(p) (*(p))
#define LOAD_F64(p) (*(p))
#define STORE_F32(p, v) (*(p) = (v))
#define STORE_F64(p, v) (*(p) = (v))
#define SET_F32(v) (v)
#define SET_F64(v) (v)
#define FMA_F32 __builtin_fmaf
#define FMA_F64 __builtin_fma
#endif

/* ROWS x COLS vectors of c from rows of a and the packed b (`pitch` elements a row). The caller's
 * constants make the arrays registers. */
#define TILE(t, T)                                                                                 \
    static inline __attribute__((always_inline)) void tile_##t(                                    \
        const int ROWS, const int COLS, const product_args *p, const T *a, const T *b,             \
        int64_t pitch, T *c, int64_t c_pitch) {                                                    \
        enum { W = sizeof(vec_##t) / sizeof(T) };                                                  \
        vec_##t acc[6][4];                                                                         \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                     \
            _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++) acc[r][j] = SET_##t(0);         \
        for (int64_t k = 0; k < p->k; k++, a += p->a_col, b += pitch) {                            \
            vec_##t row[4];                                                                        \
            _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++) row[j] = LOAD_##t(b + j * W);   \
            _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) {                               \
                vec_##t x = SET_##t(a[r * p->a_row]);                                              \
                _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++)                             \
                    acc[r][j] = FMA_##t(x, row[j], acc[r][j]);                                     \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++)                                     \
            _Pragma("GCC unroll 4") for (int j = 0; j < COLS; j++)                                 \
                STORE_##t(c + r * c_pitch + j * W, acc[r][j]);                                     \
    }                                                                                              \
    /* All rows of one column tile of COLS vectors. */                                             \
    static inline __attribute__((always_inline)) void band_##t(                                    \
        const int COLS, const product_args *p, const T *b, int64_t pitch, T *c, int64_t c_pitch) { \
        const T *a = p->a;                                                                         \
        int64_t m = p->m;                                                                          \
        for (; m >= 6; m -= 6, a += 6 * p->a_row, c += 6 * c_pitch)                                \
            tile_##t(6, COLS, p, a, b, pitch, c, c_pitch);                                         \
        switch (m) {                                                                               \
        case 5: tile_##t(5, COLS, p, a, b, pitch, c, c_pitch); break;                              \
        case 4: tile_##t(4, COLS, p, a, b, pitch, c, c_pitch); break;                              \
        case 3: tile_##t(3, COLS, p, a, b, pitch, c, c_pitch); break;                              \
        case 2: tile_##t(2, COLS, p, a, b, pitch, c, c_pitch); break;                              \
        case 1: tile_##t(1, COLS, p, a, b, pitch, c, c_pitch); break;                              \
        default: break;                                                                            \
        }                                                                                          \
    }

/* The rest of a row of b after its n elements is padded with zeros; these columns of c are dropped. */
#define CHAIN(t, T)                                                                                \
    TILE(t, T)                                                                                     \
    static void pack_##t(const product_args *p, T *packed, int64_t pitch) {                        \
        const T *b = p->b;                                                                         \
        for (int64_t k = 0; k < p->k; k++, b += p->b_row, packed += pitch) {                       \
            if (p->b_col == 1)                                                                     \
                for (int64_t j = 0; j < p->n; j++) packed[j] = b[j];                               \
            else                                                                                   \
                for (int64_t j = 0; j < p->n; j++) packed[j] = b[j * p->b_col];                    \
            for (int64_t j = p->n; j < pitch; j++) packed[j] = 0;                                  \
        }                                                                                          \
    }                                                                                              \
    static void chain_##t(const product_args *p) {                                                 \
        enum { W = sizeof(vec_##t) / sizeof(T), MOST = PRODUCT_SMALL + 16 };                       \
        T packed[PRODUCT_SMALL * MOST] __attribute__((aligned(64)));                               \
        T result[PRODUCT_SMALL * MOST] __attribute__((aligned(64)));                               \
        int64_t vectors = (p->n + W - 1) / W, pitch = vectors * W;                                 \
        bool whole = pitch == p->n; /* then tiles go straight to c, and b is read in place */      \
        const T *b = packed;                                                                       \
        int64_t b_pitch = pitch, c_pitch = whole ? p->ldc : pitch;                                 \
        T *c = whole ? (T *)p->c : result;                                                         \
        if (whole && p->b_col == 1) b = p->b, b_pitch = p->b_row;                                  \
        else pack_##t(p, packed, pitch);                                                           \
        for (int64_t j = 0; j < vectors; j += 4) {                                                 \
            const T *bj = b + j * W;                                                               \
            T *cj = c + j * W;                                                                     \
            switch (vectors - j) {                                                                 \
            case 1: band_##t(1, p, bj, b_pitch, cj, c_pitch); break;                               \
            case 2: band_##t(2, p, bj, b_pitch, cj, c_pitch); break;                               \
            case 3: band_##t(3, p, bj, b_pitch, cj, c_pitch); break;                               \
            default: band_##t(4, p, bj, b_pitch, cj, c_pitch); break;                              \
            }                                                                                      \
        }                                                                                          \
        if (whole) return;                                                                         \
        for (int64_t i = 0; i < p->m; i++)                                                         \
            for (int64_t j = 0; j < p->n; j++)                                                     \
                ((T *)p->c)[i * p->ldc + j] = result[i * pitch + j];                               \
    }
CHAIN(F32, float)
CHAIN(F64, double)

/* Integers: row by row of b, which vectorises where its columns are neighbours. */
#define PLAIN(t, T, U, ADD)                                                                        \
    static void chain_##t(const product_args *p) {                                                 \
        const T *a = p->a, *b = p->b;                                                              \
        for (int64_t i = 0; i < p->m; i++) {                                                       \
            T *c = (T *)p->c + i * p->ldc;                                                         \
            for (int64_t j = 0; j < p->n; j++) c[j] = 0;                                           \
            for (int64_t k = 0; k < p->k; k++) {                                                   \
                T x = a[i * p->a_row + k * p->a_col];                                              \
                const T *row = b + k * p->b_row;                                                   \
                if (p->b_col == 1)                                                                 \
                    _Pragma("GCC ivdep") for (int64_t j = 0; j < p->n; j++) c[j] =                 \
                        (T)ADD((U)c[j], (U)x, (U)row[j]);                                          \
                else                                                                               \
                    for (int64_t j = 0; j < p->n; j++)                                             \
                        c[j] = (T)ADD((U)c[j], (U)x, (U)row[j * p->b_col]);                        \
            }                                                                                      \
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
    .chain = {[ETCH_F32] = chain_F32, [ETCH_F64] = chain_F64, [ETCH_I8] = chain_I8,
              [ETCH_I16] = chain_I16, [ETCH_I32] = chain_I32, [ETCH_I64] = chain_I64,
              [ETCH_U8] = chain_U8, [ETCH_BOOL] = chain_BOOL},
};
