/* Notes the first number of an index that is out of range. */
#include "example.h"

struct etch_args {
    etch_check check;
    const ETCH_0 *index;
    etch_dims dims;
    i64 n, low, high;
};
extern "C" __global__ void etch_checked(const __grid_constant__ etch_args a) {
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {
        const i64 k = (i64)value(a.index[place(a.dims, i)]);
        if (k < a.low || k > a.high) fail(a.check, i, k);
    }
}
