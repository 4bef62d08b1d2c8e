/* pow of integers by repeated squaring that wraps; a negative exponent gives 0 but for bases 1 and
 * -1. */
#include "example.h"

struct etch_args {
    const ETCH_0 *x;
    const ETCH_1 *e;
    ETCH_2 *y;
    i64 n, exponent;
    etch_dims at_x, at_e, at_y;
};
__device__ inline VALUE_3 power(VALUE_3 x, VALUE_3 e) {
    if (BOOLEAN) return x || !e;
    if (e < 0) return x == 1 ? 1 : x != (VALUE_3)-1 ? 0 : e & 1 ? (VALUE_3)-1 : 1;
    u64 result = 1, base = (u64)x;
    for (u64 left = (u64)e; left; left >>= 1, base *= base)
        if (left & 1) result *= base;
    return (VALUE_3)result;
}
extern "C" __global__ void etch_pow(const __grid_constant__ etch_args a) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {
        const VALUE_3 x = (VALUE_3)value(a.x[place(a.at_x, i)]);
        const VALUE_3 e =
            a.e ? (VALUE_3)value(a.e[place(a.at_e, i)]) : (VALUE_3)a.exponent;
        put(a.y + place(a.at_y, i), power(x, e));
    }
}
