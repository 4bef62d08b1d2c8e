/* What the tensor cores of compute capability 8.0 and on are given: fragments of 16 x 16 halves
 * from shared memory, products of them, and copies to shared memory that nobody waits for. A lane's
 * part of a fragment is what PTX's mma.m16n8k16 says (PTX ISA, "Matrix multiply-accumulate"). Who
 * compiles this for another machine defines TENSOR_CORE and functions of these names. */
#ifndef TENSOR_CORE
namespace tensor_core {
__device__ __forceinline__ unsigned shared_at(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
/* Four 8 x 8 matrices: lane l says where row l % 8 of matrix l / 8 is, 16 bytes. */
__device__ __forceinline__ void load(unsigned (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(row)));
}
/* The same, each turned. */
__device__ __forceinline__ void load_turned(unsigned (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(row)));
}
/* c += a b: 16 x 16 times 16 x 8, summed in f32. */
template <bool IS_BF16>
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
    if (IS_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Two numbers as halves, the first one in the low bits. */
template <bool IS_BF16> __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned r;
    if (IS_BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* 2^x, to 2 units in the last place. */
__device__ __forceinline__ float power_of_two(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/* 16 bytes, which are zeros where they are not there. */
__device__ __forceinline__ void copy(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copies_begun() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for the thread's copies. */
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/* Waits for those before the last LEFT copies_begun. */
template <int LEFT> __device__ __forceinline__ void copies_left() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
}
#endif
