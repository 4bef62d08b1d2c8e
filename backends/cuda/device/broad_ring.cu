/* Broad products, where operands can be copied by tensor maps. A cluster of two blocks has 256 rows
 * of a tile; a block copies its rows of A for itself, and half the rows of B for both. One thread
 * copies; two warp groups multiply, and go through the elements of the tile before, which are
 * rounded and wait in registers, beside the products of the next: parts of that follow as code for
 * each where they do much, which takes NVRTC seconds, else as one piece of code. */
#include "broad.cuh"
#include "broad_ring.cuh"

#ifndef TENSOR_CORE
using namespace ring;
enum { AT_ONCE = PRODUCTS == 2 ? broad::PARTS : 1 };
using broad::spot;

struct etch_broad_args {
    map a, b[PRODUCTS];
    etch_args after;
    broad::product of;
};
struct stages {
    char *memory; /* at a multiple of 1024; behind the stages, the gates of full and empty ones */
    __device__ __forceinline__ char *at(int i) const { return memory + i * broad::STAGE; }
    __device__ __forceinline__ unsigned full(int i) const {
        return shared_at(memory + STAGES * broad::STAGE + i * 8);
    }
    __device__ __forceinline__ unsigned empty(int i) const { return full(STAGES + i); }
};

__device__ __forceinline__ void copy_stage(const etch_broad_args &a, const stages &s, int i,
                                           spot at, int k) {
    const int rank = blockIdx.x % 2, half = broad::B_BYTES / 2;
    gate_reached_with(s.full(i), broad::STAGE);
    copy_rows(shared_at(s.at(i)), &a.a, s.full(i), k, at.row + rank * broad::ROWS);
    copy_dealt(shared_at(s.at(i) + broad::A_BYTES + rank * half), &a.b[rank % PRODUCTS], s.full(i),
               k, at.column + (PRODUCTS == 1 ? rank * 128 : 0));
}
__device__ __forceinline__ void copy_tiles(const etch_broad_args &a, const stages &s) {
    turn now = {0, 1};
    for (int t = blockIdx.x / 2; t < a.of.down * a.of.across; t += gridDim.x / 2) {
        const spot at = broad::pair_at(a.of, t);
        for (int k = 0; k < a.of.k; k += broad::DEPTH, now.next()) {
            gate_passed(s.empty(now.stage), now.odd);
            copy_stage(a, s, now.stage, at, k);
        }
    }
}

/* Both blocks may fill the stage again, as far as this warp group goes. */
__device__ __forceinline__ void give_back(const stages &s, int i) {
    if (i >= 0 && threadIdx.x % 128 < 2) gate_reached_at(s.empty(i), threadIdx.x % 2);
}
__device__ __forceinline__ void multiply_tiles(const etch_broad_args &a, const stages &s) {
    const spot mine = broad::in_tile(threadIdx.x - 128);
    float c[32][4];
    broad::elements old;
    spot old_at = {0, 0};
    turn now = {0, 0};
    int last = -1;
    auto begin = [&](int k) {
        gate_passed(s.full(now.stage), now.odd);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        broad::begin(c, s.at(now.stage), threadIdx.x / 128 - 1, k > 0);
    };
    auto end = [&] {
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        give_back(s, last);
        last = now.stage;
        now.next();
    };
    for (int t = blockIdx.x / 2, first = t; t < a.of.down * a.of.across; t += gridDim.x / 2) {
        const spot at = broad::pair_at(a.of, t);
        const int parts = t > first ? broad::PARTS : 0;
        if (parts) {
            #pragma unroll AT_ONCE
            for (int i = 0; i < broad::PARTS; i++) {
                begin(i * broad::DEPTH);
                broad::follow_part(a.after, a.of, old_at, i, old);
                broad::next_part(old);
                end();
            }
        }
        #pragma unroll 1
        for (int k = parts * broad::DEPTH; k < a.of.k; k += broad::DEPTH) begin(k), end();
        tensor_core::group_done<0>(c);
        give_back(s, last);
        last = -1;
        broad::keep(old, c);
        old_at = {at.row + (int)blockIdx.x % 2 * broad::ROWS + mine.row, at.column + mine.column};
    }
    #pragma unroll
    for (int i = 0; i < broad::PARTS; i++, broad::next_part(old))
        broad::follow_part(a.after, a.of, old_at, i, old);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    etch_broad(const __grid_constant__ etch_broad_args a) {
    extern __shared__ char bytes[];
    const stages s = {tensor_core::whole_panel(bytes)};
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) gate_set(s.full(i), 1), gate_set(s.empty(i), 4);
    blocks_meet();
    if (threadIdx.x < 128) {
        registers_given_back<24>();
        if (threadIdx.x == 0) copy_tiles(a, s);
    } else {
        registers_taken<240>();
        multiply_tiles(a, s);
    }
    blocks_meet();
}
#endif
