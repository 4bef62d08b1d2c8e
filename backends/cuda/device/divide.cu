/* Division with a rest: the QUOTIENT, rounded down, or the rest, with the divisor's sign (FLOOR) or
 * the dividend's; of integers, a divisor of 0 is a fault. */
#include "example.h"

struct etch_args {
    etch_check check;
    const ETCH_0 *x;
    const ETCH_1 *y;
    ETCH_2 *out;
    etch_dims xs, ys;
    i64 n;
    VALUE_2 divisor;
};
#if REAL
/* From the exact rest, since the quotient itself may round up to a whole number. */
__device__ inline VALUE_2 quotient(VALUE_2 a, VALUE_2 b, VALUE_2 r, bool crosses) {
    const VALUE_2 plain = a / b;
    VALUE_2 q = (a - r) / b;
    if (crosses) q = q - 1;
    VALUE_2 whole = floor(q);
    if (q - whole > (VALUE_2)0.5) whole = whole + 1;
    if (q == 0) whole = plain * 0;
    return b == 0 ? plain : whole;
}
#endif
extern "C" __global__ void etch_divide(const __grid_constant__ etch_args p) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i < p.n; i += (i64)gridDim.x * blockDim.x) {
        const VALUE_2 a = (VALUE_2)value(p.x[place(p.xs, i)]);
        const VALUE_2 b = p.y ? (VALUE_2)value(p.y[place(p.ys, i)]) : p.divisor;
#if REAL
        const VALUE_2 r = fmod(a, b);
        const bool crosses = r != 0 && (r < 0) != (b < 0);
        put(p.out + i, QUOTIENT ? quotient(a, b, r, crosses) : FLOOR && crosses ? r + b : r);
#else
        if (b == 0) {
            fail(p.check, i, 0);
            continue;
        }
        const bool negates = (ETCH_2)-1 < 0 && b == (ETCH_2)-1;
        ETCH_2 q = negates ? (ETCH_2)(0 - (u64)a) : (ETCH_2)(a / b);
        ETCH_2 r = negates ? (ETCH_2)0 : (ETCH_2)(a % b);
        if (FLOOR && r != 0 && (r < 0) != (b < 0)) q = (ETCH_2)(q - 1), r = (ETCH_2)(r + b);
        p.out[i] = QUOTIENT ? q : r;
#endif
    }
}
