/* What backends/cuda/broad.c writes before broad products, as an example for readers of broad.cuh:
 * see example.h. */
#include "example.h"

#define PRODUCTS 2
#define WHOLE 0
#define VECTOR 4
#define VALUES values_of(x[0], j), values_of(x[1], j)

#include "broad_alone.cuh"

typedef vec<float, VECTOR> etch_values;
__device__ inline void after(const etch_args &a, int row, int column, int columns, etch_values x,
                             etch_values y) {
    for (int i = 0; i < VECTOR; i++) a.c[row * columns + column + i] = x.e[i] > y.e[i];
}
