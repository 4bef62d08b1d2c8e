/* What jit/cuda/ generates for the other members of a kernel with products, as an example for
 * readers of join.cu: see example.h. */
#include "tile.cuh"

struct etch_args {
    float *out;
};
template <class T, int N> struct alignas(sizeof(T) * N) vec { T e[N]; };
#define PRODUCTS 2
#define VECTOR 4
#define WHOLE 0
#define MULTIPLY                                                                                   \
    tile::sums_of<0>(a.product[0], 0, row, col, (float *)quads, sums[0]);                          \
    __syncthreads();                                                                               \
    tile::sums_of<0>(a.product[1], 0, row, col, (float *)quads, sums[1]);
#define VALUES                                                                                     \
    ((const vec<float, VECTOR> *)&sums[0][i])[j / VECTOR],                                         \
        ((const vec<float, VECTOR> *)&sums[1][i])[j / VECTOR]
typedef vec<float, VECTOR> etch_values;
__device__ inline void after(const etch_args &a, int row, int column, int columns, etch_values x,
                             etch_values y) {
    for (int i = 0; i < VECTOR; i++) a.out[row * columns + column + i] = x.e[i] + y.e[i];
}
