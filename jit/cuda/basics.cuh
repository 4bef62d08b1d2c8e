/* What core/ops/functions.h computes with, of single numbers, in CUDA C: jit/cuda/cuda_functions.c
 * puts it before the units that a kernel needs. */
#define FN __device__ inline
#define TABLE static __device__ const
#define EXACT_FMA 1
#define SINGLE 1
#define ALL(x) ((REAL)(x))
#define ALL_WORDS(x) ((UINT)(x))
typedef double reals_f64;
typedef u64 words_f64;
typedef i64 ints_f64;
typedef float reals_f32;
typedef u32 words_f32;
typedef i32 ints_f32;
typedef bool truth_f64;
typedef bool truth_f32;
FN double fma_f64(double a, double b, double c) { return fma(a, b, c); }
FN float fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
FN double abs_f64(double x) { return fabs(x); }
FN float abs_f32(float x) { return fabsf(x); }
FN double root_f64(double x) { return sqrt(x); }
FN float root_f32(float x) { return sqrtf(x); }
FN u64 bits_f64(double x) { return (u64)__double_as_longlong(x); }
FN u32 bits_f32(float x) { return (u32)__float_as_int(x); }
FN double real_f64(u64 u) { return __longlong_as_double((i64)u); }
FN float real_f32(u32 u) { return __int_as_float((i32)u); }
FN u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }
#define COMPARING(t) \
FN bool less_##t(reals_##t a, reals_##t b) { return a < b; } \
FN bool same_##t(reals_##t a, reals_##t b) { return a == b; } \
FN bool int_less_##t(ints_##t a, ints_##t b) { return a < b; } \
FN bool odd_##t(words_##t u) { return u & 1; } \
FN bool no_##t(bool m) { return !m; } \
FN reals_##t inverse_##t(reals_##t x) { return 1 / x; } \
FN reals_##t where_##t(bool m, reals_##t a, reals_##t b) { return m ? a : b; } \
FN reals_##t most_##t(reals_##t a, reals_##t b) { return a > b ? a : b; } \
FN reals_##t least_##t(reals_##t a, reals_##t b) { return a < b ? a : b; } \
FN reals_##t fnma_##t(reals_##t a, reals_##t b, reals_##t c) { \
    return fma_##t(-a, b, c); \
}
COMPARING(f64)
COMPARING(f32)
#undef COMPARING
FN double lesser_f64(double a, double b) { return fmin(a, b); }
FN float lesser_f32(float a, float b) { return fminf(a, b); }
#define LESSER(a, b) F(lesser)(ALL(a), ALL(b))
#if __CUDACC_VER_MAJOR__ >= 12
#define APPROXIMATE 1
/* 2^x and 1 / x within 2^-22 of themselves. */
FN float approximate_power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float approximate_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
