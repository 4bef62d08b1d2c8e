/* A ring of stages in shared memory that the tensor copy engine fills and warp groups empty, by
 * blocks of a cluster of two (compute capability 9.0; PTX ISA, "mbarrier" and
 * "cp.async.bulk.tensor"). A gate opens each time that so many have come to it, and what they have
 * said they copy is there. */
#ifndef TENSOR_CORE
namespace ring {
using tensor_core::shared_at;
enum { STAGES = 4 };
struct alignas(64) map { /* a CUtensorMap */
    unsigned char bytes[128];
};
/* The stage that comes next, and whether the round is an odd one. */
struct turn {
    int stage, odd;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, odd ^= 1;
    }
};
__device__ __forceinline__ void gate_set(unsigned gate, int comers) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gate), "r"(comers) : "memory");
}
__device__ __forceinline__ void gate_passed(unsigned gate, int odd) {
    unsigned open;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                    "selp.u32 %0, 1, 0, p;}"
                    : "=r"(open)
                    : "r"(gate), "r"(odd)
                    : "memory");
    while (!open);
}
__device__ __forceinline__ void gate_reached_with(unsigned gate, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gate), "r"(bytes)
                 : "memory");
}
/* The same gate of a block of the cluster. */
__device__ __forceinline__ void gate_reached_at(unsigned gate, int block) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(gate), "r"(block)
                 : "memory");
}
/* DEPTH columns from k on of 128 rows of A. */
__device__ __forceinline__ void copy_rows(unsigned to, const map *m, unsigned gate, int k,
                                          int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(m), "r"(gate), "r"(k), "r"(row)
                 : "memory");
}
/* The same of B, dealt, to both blocks; its axes are k and those of broad.c's map. */
__device__ __forceinline__ void copy_dealt(unsigned to, const map *m, unsigned gate, int k,
                                           int row) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %5, %5, %5, %4}], [%2], %6;" ::"r"(to),
                 "l"(m), "r"(gate), "r"(k), "r"(row / 32), "r"(0), "h"((unsigned short)3)
                 : "memory");
}
__device__ __forceinline__ void blocks_meet() {
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void registers_given_back() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_taken() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
}
#endif
