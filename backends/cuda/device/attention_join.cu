/* Attention whose keys were dealt out to blocks: a block of 128 threads joins what they made of one
 * query, the splits in order. Maxima are exponents of BASE_2 ? 2 : e. */
#include "attention.cuh"

__device__ __forceinline__ VALUE_0 power(VALUE_0 x) { return BASE_2 ? exp2(x) : exp(x); }
extern "C" __global__ void __launch_bounds__(128)
    etch_attention_join(const __grid_constant__ etch_args a) {
    const i64 all = a.heads * a.queries, at = a.first + blockIdx.x;
    VALUE_0 top = LOWEST, sum = 0;
    for (i64 s = 0; s < a.splits; s++) top = fmax(top, a.rows[(s * all + at) * 2]);
    const VALUE_0 base = top == LOWEST ? (VALUE_0)0 : top;
    for (i64 s = 0; s < a.splits; s++) {
        const VALUE_0 *const row = a.rows + (s * all + at) * 2;
        sum = sum + row[1] * power(row[0] - base);
    }
    ETCH_0 *const y_row = row_of_result(a, at / a.queries, at % a.queries);
    for (i64 c = threadIdx.x; c < a.out_width; c += 128) {
        VALUE_0 y = 0;
        for (i64 s = 0; s < a.splits; s++) {
            const VALUE_0 x = a.values[(s * all + at) * a.out_width + c];
            y = fma(power(a.rows[(s * all + at) * 2] - base), x, y);
        }
        put(y_row + c, sum == 0 ? (VALUE_0)0 : y / sum);
    }
}
