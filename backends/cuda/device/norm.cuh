/* What rows and columns have in common: the two ways to fold values. */
#include "example.h"

#define LOWEST (-(VALUE_0)__int_as_float(0x7f800000))
__device__ inline VALUE_0 larger(VALUE_0 a, VALUE_0 b) {
    return a > b || a != a ? a : b;
}
template <bool MAX> __device__ inline VALUE_0 combine(VALUE_0 a, VALUE_0 b) {
    return MAX ? larger(a, b) : a + b;
}
