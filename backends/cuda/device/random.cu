/* rand and randn (NORMAL): element i from the Philox words of (seed, offset + i), BITS of them in a
 * uniform number. */
#include "example.h"

struct etch_args {
    ETCH_0 *out;
    i64 n;
    u64 seed, offset;
};
__device__ inline void philox(u64 seed, u64 number, unsigned w[4]) {
    unsigned c0 = (unsigned)number, c1 = (unsigned)(number >> 32), c2 = 0, c3 = 0;
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    #pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0, c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
        c1 = (unsigned)p1, c3 = (unsigned)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}
__device__ inline VALUE_0 uniform(unsigned high, unsigned low) {
#if BITS == 53
    return (double)(i64)(((u64)high << 32 | low) >> 11) * 0x1p-53;
#else
    return (float)(int)(high >> (32 - BITS)) * (1.0f / (float)(1 << BITS));
#endif
}
extern "C" __global__ void etch_random(const __grid_constant__ etch_args a) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {
        unsigned w[4];
        philox(a.seed, a.offset + (u64)i, w);
        VALUE_0 u = uniform(w[0], w[1]);
#if NORMAL
        const VALUE_0 v = uniform(w[2], w[3]);
        u = sqrt((VALUE_0)-2 * log((VALUE_0)1 - u));
        u = u * cos((VALUE_0)6.283185307179586476925 * v);
#endif
        put(a.out + i, u);
    }
}
