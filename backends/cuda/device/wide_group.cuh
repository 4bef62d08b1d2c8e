/* A warp group's product of 64 rows by 256 columns, as those of warp_group.cuh. */
#ifndef TENSOR_CORE
namespace tensor_core {
#define RESULT_32 RESULT_16, QUADS(16), QUADS(20), QUADS(24), QUADS(28)
#define NAMES_32 \
    NAMES_16 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, " \
    "%125, %126, %127"
template <bool IS_BF16>
__device__ __forceinline__ void multiply_shared(float (&c)[32][4], operand_at a, operand_at b,
                                                bool adds) {
    if (IS_BF16) SHARED(32, "256", "bf16", "%128", "%129", "%130");
    else SHARED(32, "256", "f16", "%128", "%129", "%130");
}
}
#endif
