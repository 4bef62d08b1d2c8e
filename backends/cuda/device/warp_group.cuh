/* What the tensor cores of compute capability 9.0 are given by a warp group, four warps whose first
 * is a multiple of four: products that run on while the threads go on. Operands lie in shared
 * memory as panels of 64 halves a row, 128 bytes, whose pieces of 16 bytes are exchanged by the
 * row's number (PTX ISA, "Asynchronous warpgroup-level matrix instructions", 128-byte swizzling);
 * panels begin at multiples of 1024 bytes. Behind tensor_core.cuh. Warp w has rows 16 w on of a
 * result, in them as after mma.m16n8k16. Who compiles this for another machine defines TENSOR_CORE
 * and functions of these names. */
#ifndef TENSOR_CORE
namespace tensor_core {
/* Where column c of a row lies in its panel, in halves. */
__device__ __forceinline__ int swizzled(int row, int c) {
    return row * 64 + ((c / 8 ^ row % 8) * 8 | c % 8);
}
__device__ __forceinline__ char *whole_panel(void *p) {
    return (char *)p + (1024 - shared_at(p) % 1024) % 1024;
}
/* An operand that begins at p: rows of 128 bytes, eight of them 1024 bytes from the next; `far`
 * halves between panels. */
struct operand_at {
    unsigned long long descriptor;
};
__device__ __forceinline__ operand_at operand_in(const void *p, int far) {
    return {(shared_at(p) & 0x3ffff) >> 4 | (unsigned long long)(far >> 3) << 16 |
            (unsigned long long)(1024 >> 4) << 32 | 1ull << 62};
}
/* So many halves behind it, a multiple of 8. */
__device__ __forceinline__ operand_at behind(operand_at o, int halves) {
    return {o.descriptor + (unsigned)(halves >> 3)};
}
/* Keeps the compiler from using, or moving, what the tensor cores write. */
template <int N> __device__ __forceinline__ void touched(float (&c)[N][4]) {
    #pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}
template <int N> __device__ __forceinline__ void group_begins(float (&c)[N][4]) {
    touched(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void group_ends() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until all but the last LEFT groups of products are done. */
template <int LEFT, int N> __device__ __forceinline__ void group_done(float (&c)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    touched(c);
}
/* What the thread has written to shared memory is for the tensor cores to read. */
__device__ __forceinline__ void copies_shown() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#define QUAD(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define QUADS(i) QUAD(i), QUAD(i + 1), QUAD(i + 2), QUAD(i + 3)
#define RESULT_8 QUADS(0), QUADS(4)
#define RESULT_16 RESULT_8, QUADS(8), QUADS(12)
#define NAMES_8 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_16 \
    NAMES_8 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
/* c = (adds ? c : 0) + a b', with 64 rows of 16 halves times as many of b as c has columns. */
#define SHARED(N, COLUMNS, TYPE, A, B, ADDS)                                                       \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0; "                                     \
                 "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE " {"         \
                 NAMES_##N "}, " A ", " B ", p, 1, 1, 0, 0;}"                                                \
                 : RESULT_##N                                                                      \
                 : "l"(a.descriptor), "l"(b.descriptor), "r"((int)adds))
template <bool IS_BF16>
__device__ __forceinline__ void multiply_shared(float (&c)[8][4], operand_at a, operand_at b,
                                                bool adds) {
    if (IS_BF16) SHARED(8, "64", "bf16", "%32", "%33", "%34");
    else SHARED(8, "64", "f16", "%32", "%33", "%34");
}
template <bool IS_BF16>
__device__ __forceinline__ void multiply_shared(float (&c)[16][4], operand_at a, operand_at b,
                                                bool adds) {
    if (IS_BF16) SHARED(16, "128", "bf16", "%64", "%65", "%66");
    else SHARED(16, "128", "f16", "%64", "%65", "%66");
}
/* c += a b, a in registers, b 16 rows of as many columns as c has. */
#define TURNED(N, COLUMNS, TYPE, A, B)                                                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE " {"         \
                 NAMES_##N "}, {" A "}, " B ", 1, 1, 1, 1;"                                                  \
                 : RESULT_##N                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor))
template <bool IS_BF16>
__device__ __forceinline__ void multiply_turned(float (&c)[8][4], const unsigned (&a)[4],
                                                operand_at b) {
    if (IS_BF16) TURNED(8, "64", "bf16", "%32, %33, %34, %35", "%36");
    else TURNED(8, "64", "f16", "%32, %33, %34, %35", "%36");
}
template <bool IS_BF16>
__device__ __forceinline__ void multiply_turned(float (&c)[16][4], const unsigned (&a)[4],
                                                operand_at b) {
    if (IS_BF16) TURNED(16, "128", "bf16", "%64, %65, %66, %67", "%68");
    else TURNED(16, "128", "f16", "%64, %65, %66, %67", "%68");
}
}
#endif
