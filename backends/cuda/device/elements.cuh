/* What stands before a kernel of backends/cuda/text.c: types of elements in memory, value(e), an
 * element as its compute type, put(&e, v), rounded once, and where an element lies. */
#include "halves.cuh"

typedef long long i64;
typedef unsigned long long u64;
struct etch_bf16 {
    unsigned short bits;
};
struct etch_f16 {
    unsigned short bits;
};
struct etch_bool {
    unsigned char bits;
};
struct etch_dims {
    i64 n, size[8], stride[8];
};
template <class T> __device__ inline T value(T e) { return e; }
__device__ inline float value(etch_bf16 e) { return load_half(e.bits, 1); }
__device__ inline float value(etch_f16 e) { return load_half(e.bits, 0); }
__device__ inline unsigned char value(etch_bool e) { return e.bits; }
template <class T, class V> __device__ inline void put(T *to, V v) { *to = (T)v; }
template <class V> __device__ inline void put(etch_bf16 *to, V v) {
    to->bits = store_half((float)v, 1);
}
template <class V> __device__ inline void put(etch_f16 *to, V v) {
    to->bits = store_half((float)v, 0);
}
template <class V> __device__ inline void put(etch_bool *to, V v) { to->bits = v != 0; }
/* Where element i (row-major) lies. */
__device__ inline i64 place(const etch_dims &d, i64 i) {
    i64 at = 0;
    for (int x = (int)d.n - 1; x >= 0; x--) {
        const i64 q = i / d.size[x];
        at += (i - q * d.size[x]) * d.stride[x];
        i = q;
    }
    return at;
}
