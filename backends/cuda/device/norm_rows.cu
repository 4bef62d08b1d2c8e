/* softmax, log_softmax (LOGARITHM) and layer norm (NORM) of rows that are dense, THREADS threads a
 * row, V elements a thread at once; CHUNKS of these stay in registers, 0: they are read for each
 * sweep. */
#include "norm.cuh"

struct etch_args {
    const ETCH_0 *x;
    ETCH_1 *y;
    const ETCH_2 *weight;
    const ETCH_3 *bias;
    i64 rows, n, wide, wide_parameters;
    VALUE_0 eps;
};
template <class T> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) neighbours {
    T e[V];
};
template <class T>
__device__ inline void get(const T *p, i64 at, i64 n, bool wide, VALUE_0 absent, VALUE_0 *v) {
    if (wide && at < n) {
        const neighbours<T> x = *(const neighbours<T> *)(p + at);
        #pragma unroll
        for (int j = 0; j < V; j++) v[j] = value(x.e[j]);
    } else {
        #pragma unroll
        for (int j = 0; j < V; j++) v[j] = at + j < n ? (VALUE_0)value(p[at + j]) : absent;
    }
}
template <class T>
__device__ inline void set(T *p, i64 at, i64 n, bool wide, const VALUE_0 *v) {
    if (wide && at < n) {
        neighbours<T> x;
        #pragma unroll
        for (int j = 0; j < V; j++) put(&x.e[j], v[j]);
        *(neighbours<T> *)(p + at) = x;
    } else {
        #pragma unroll
        for (int j = 0; j < V; j++)
            if (at + j < n) put(p + at + j, v[j]);
    }
}
/* The same for all threads of the row. */
template <bool MAX> __device__ inline VALUE_0 fold(VALUE_0 a, VALUE_0 *part) {
    #pragma unroll
    for (int d = 16; d > 0; d /= 2) a = combine<MAX>(a, __shfl_xor_sync(0xffffffffu, a, d));
#if THREADS > 32
    const int t = threadIdx.x;
    if (t % 32 == 0) part[t / 32] = a;
    __syncthreads();
    a = t % 32 < THREADS / 32 ? part[t % 32] : MAX ? LOWEST : -(VALUE_0)0;
    __syncthreads();
    #pragma unroll
    for (int d = 16; d > 0; d /= 2) a = combine<MAX>(a, __shfl_xor_sync(0xffffffffu, a, d));
#endif
    return a;
}
#if CHUNKS
#define EACH _Pragma("unroll") for (int c = 0; c < CHUNKS; c++)
#define READ(v, absent) VALUE_0 *const v = kept + c * V
#else
#define EACH for (i64 c = 0; c < chunks; c++)
#define READ(v, absent) VALUE_0 v[V]; get(x, (c * THREADS + t) * V, a.n, wide, absent, v)
#endif
#define AT ((c * (i64)THREADS + t) * V)
#define VALUES _Pragma("unroll") for (int j = 0; j < V; j++)
extern "C" __global__ void __launch_bounds__(THREADS < 128 ? 128 : THREADS)
    etch_rows(const __grid_constant__ etch_args a) {
    __shared__ VALUE_0 part[32];
    const int group = THREADS < 128 ? threadIdx.x / THREADS : 0, t = threadIdx.x % THREADS;
    const int groups = THREADS < 128 ? 128 / THREADS : 1;
    const bool wide = a.wide;
    const i64 chunks = (a.n + THREADS * V - 1) / (THREADS * V);
    (void)chunks;
    for (i64 first = (i64)blockIdx.x * groups; first < a.rows; first += (i64)gridDim.x * groups) {
        const i64 row = first + group;
        const bool live = row < a.rows;
        const ETCH_0 *x = a.x + (live ? row : 0) * a.n;
        ETCH_1 *y = a.y + row * a.n;
#if CHUNKS
        VALUE_0 kept[CHUNKS * V];
        EACH get(x, AT, a.n, wide, NORM ? (VALUE_0)0 : LOWEST, kept + c * V);
#endif
#if NORM
        VALUE_0 sum = -(VALUE_0)0, squares = -(VALUE_0)0;
        EACH {
            READ(v, 0);
            VALUES if (AT + j < a.n) sum = sum + v[j];
        }
        const VALUE_0 mean = fold<false>(sum, part) / (VALUE_0)a.n;
        EACH {
            READ(v, 0);
            VALUES if (AT + j < a.n) {
                const VALUE_0 d = v[j] - mean;
                squares = squares + d * d;
            }
        }
        const VALUE_0 variance = fold<false>(squares, part) / (VALUE_0)a.n;
        const VALUE_0 scale = (VALUE_0)1 / sqrt(variance + a.eps);
        if (live) EACH {
            READ(v, 0);
            VALUE_0 p[V];
            VALUES v[j] = (v[j] - mean) * scale;
            if (a.weight) {
                get(a.weight, AT, a.n, a.wide_parameters, 0, p);
                VALUES v[j] = v[j] * p[j];
            }
            if (a.bias) {
                get(a.bias, AT, a.n, a.wide_parameters, 0, p);
                VALUES v[j] = v[j] + p[j];
            }
            set(y, AT, a.n, wide, v);
        }
#else
        VALUE_0 max = LOWEST, sum = -(VALUE_0)0;
        EACH {
            READ(v, LOWEST);
            VALUES max = larger(max, v[j]);
        }
        max = fold<true>(max, part);
        EACH {
            READ(v, LOWEST);
            VALUES {
                const VALUE_0 e = exp(v[j] - max);
                if (AT + j < a.n) sum = sum + e;
                if (CHUNKS && !LOGARITHM) v[j] = e;
            }
        }
        sum = fold<false>(sum, part);
        if (LOGARITHM) sum = log(sum);
        if (live) EACH {
            READ(v, LOWEST);
            VALUES {
                if (LOGARITHM) v[j] = v[j] - max - sum;
                else v[j] = (CHUNKS ? v[j] : exp(v[j] - max)) / sum;
            }
            set(y, AT, a.n, wide, v);
        }
#endif
    }
}
