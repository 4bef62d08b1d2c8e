/* What the library writes before these texts at run time, as an example, so that an editor and
 * tests/check_device_code.sh can read each file alone. It is no part of what NVRTC gets, nor
 * are the #include lines and the first comment of a file: cmake/embed.cmake takes them away. */
#include "elements.cuh"
#include "faults.cuh"

/* backends/cuda/text.c: elements in memory, and the types that they are computed in. */
typedef float ETCH_0;
typedef float VALUE_0;
typedef int ETCH_1;
typedef int VALUE_1;
typedef etch_bf16 ETCH_2;
typedef float VALUE_2;
typedef i64 ETCH_3;
typedef i64 VALUE_3;

/* backends/cuda/matmul.c */
typedef unsigned short ETCH_T;
typedef float ETCH_C;
typedef unsigned index_t;
#define LOAD(v) load_half(v, 1)
#define STORE(c, i, v) (((ETCH_T *)(c))[i] = store_half(v, 1))
#define CHAIN(x, y, acc) fmaf(x, y, acc)
#define K_MOST 64

/* Switches of single files. */
#define HEIGHT 4                   /* tile */
#define VARIANT 0                  /* gemm */
#define V 4                        /* norm_rows */
#define THREADS 128                /* norm_rows */
#define CHUNKS 2                   /* norm_rows */
#define NORM 1                     /* norm_rows */
#define LOGARITHM 0                /* norm */
#define WIDE double                /* scan */
#define PRODUCT 0                  /* scan */
#define WORD int                   /* triangle */
#define LOWER 1                    /* triangle */
#define TEAM 16                    /* extreme */
#define LARGEST 1                  /* extreme */
#define WAY 1                      /* index_walk, pool */
#define TESTED 1                   /* index_walk */
#define REAL 1                     /* divide */
#define QUOTIENT 1                 /* divide */
#define FLOOR 1                    /* divide */
#define FMA(x, y, z) fmaf(x, y, z) /* conv */
#define INDEX int                  /* conv */
#define SUM(x, y) ((x) + (y))      /* conv */
#define BOOLEAN 0                  /* pow */
#define WIDTH 64                   /* attention */
#define OUT 64                     /* attention */
#define KEYS 64                    /* attention */
#define TALL 2                     /* attention */
#define GROUPS 2                   /* attention_group */
#define WARPS 4                    /* attention */
#define RAW 1                      /* attention */
#define BF16 1                     /* attention */
#define PIECES 1                   /* attention */
#define CAUSAL 1                   /* attention */
#define MASK 2                     /* attention */
#define MASK_PIECES 1              /* attention_mask */
#define SPLIT 0                    /* attention */
#define BASE_2 1                   /* attention */
#define BITS 24                    /* random */
#define NORMAL 1                   /* random */
