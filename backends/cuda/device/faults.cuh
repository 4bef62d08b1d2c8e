/* A failed check of data, noted by a kernel in the run's slot (backends/cuda/faults.h). */
struct etch_slot {
    unsigned long long order;
    long long value;
    unsigned long long lock, failed;
};
struct etch_check {
    etch_slot *slot;
    unsigned long long check;
};
/* The first failure stays, whichever thread comes first. */
__device__ __noinline__ void fail(const etch_check &c, long long element, long long value) {
    volatile etch_slot *s = c.slot;
    const unsigned long long order = c.check | (unsigned long long)element;
    s->failed = 0;
    if (order >= s->order) return;
    while (atomicCAS(&c.slot->lock, ~0ull, 0ull) != ~0ull) {}
    __threadfence();
    if (order < s->order) s->order = order, s->value = value;
    __threadfence();
    atomicExch(&c.slot->lock, ~0ull);
}
__device__ inline bool failed(const etch_check &c) {
    return ((volatile etch_slot *)c.slot)->failed != ~0ull;
}
