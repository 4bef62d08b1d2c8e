/* How the warp groups of a block wait for each other (compute capability 9.0): a gate in shared
 * memory opens each time that so many threads have come to it (PTX ISA, mbarrier); a turn is handed
 * from one warp group to another (bar.arrive, bar.sync). Who compiles this for another machine
 * defines TENSOR_CORE and functions of these names. */
#ifndef TENSOR_CORE
namespace tensor_core {
typedef unsigned long long gate;

__device__ __forceinline__ void gate_set(gate *g, int comers) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(g)), "r"(comers)
                 : "memory");
}
__device__ __forceinline__ void gate_reached(gate *g) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(g)) : "memory");
}
/* The thread comes when all that it has begun to copy is there. */
__device__ __forceinline__ void gate_reached_by_copies(gate *g) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_at(g))
                 : "memory");
}
/* Waits until opening n of the gate, counted from 0; odd: n % 2. The next one may not be over. */
__device__ __forceinline__ void gate_passed(gate *g, unsigned odd) {
    unsigned open;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                    "selp.u32 %0, 1, 0, p;}"
                    : "=r"(open)
                    : "r"(shared_at(g)), "r"(odd)
                    : "memory");
    while (!open);
}
/* Turn 1 to 15 is one warp group's that waits for it, and another one's that ends its own. */
__device__ __forceinline__ void turn_awaited(int turn) {
    asm volatile("bar.sync %0, 256;" ::"r"(turn) : "memory");
}
__device__ __forceinline__ void turn_given(int turn) {
    asm volatile("bar.arrive %0, 256;" ::"r"(turn) : "memory");
}
/* All warps of a warp group do: so many registers a thread, a multiple of 8. */
template <int N> __device__ __forceinline__ void registers_given_back() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_taken() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
}
#endif
