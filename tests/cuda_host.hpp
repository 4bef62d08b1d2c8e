/* CUDA C on the host, as far as generated kernels need it: the threads of a block are fibers,
 * blocks run one after another. A warp must meet in every shuffle and a block in every barrier, or
 * the launch fails. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct host_dim {
    unsigned x, y, z;
};
static host_dim threadIdx, blockIdx, blockDim, gridDim;

enum host_state { HOST_RUNS, HOST_SHUFFLES, HOST_WAITS, HOST_DONE };
enum { HOST_THREADS = 1024, HOST_STACK = 64 << 10, HOST_WARP = 32 };

static char *host_stacks;
static void *host_sp[HOST_THREADS], *host_main;
static unsigned char host_states[HOST_THREADS], host_parity[HOST_THREADS];
static uint64_t host_slot[2][HOST_THREADS];
static unsigned host_now;
static void (*host_entry)(const void *);
static const void *host_args;

extern "C" void host_switch(void **save, void *to) __attribute__((visibility("hidden")));
asm(".text\n"
    ".hidden host_switch\n"
    ".globl host_switch\n"
    "host_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\n"
    "mov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
    "ret\n");

static void host_yield(host_state s) {
    unsigned me = host_now;
    host_states[me] = s;
    host_switch(&host_sp[me], host_main);
}

static void host_thread() {
    host_entry(host_args);
    host_yield(HOST_DONE);
}

static void host_prepare(unsigned t) {
    void **top = (void **)(host_stacks + (size_t)(t + 1) * HOST_STACK);
    *--top = NULL; /* host_thread sees the stack as after a call */
    *--top = (void *)host_thread;
    host_sp[t] = top - 6;
    host_states[t] = HOST_RUNS;
}

/* Runs a warp until it waits or is done; false where its threads part. */
static bool host_warp(unsigned from, unsigned to) {
    for (;;) {
        for (unsigned t = from; t < to; t++) {
            if (host_states[t] != HOST_RUNS) continue;
            host_now = threadIdx.x = t;
            host_switch(&host_main, host_sp[t]);
        }
        for (unsigned t = from; t < to; t++)
            if (host_states[t] != host_states[from]) return false;
        if (host_states[from] != HOST_SHUFFLES) return true;
        for (unsigned t = from; t < to; t++) host_states[t] = HOST_RUNS;
    }
}

static bool host_block() {
    unsigned n = blockDim.x;
    for (unsigned t = 0; t < n; t++) host_prepare(t);
    for (;;) {
        for (unsigned w = 0; w < n; w += HOST_WARP)
            if (!host_warp(w, w + HOST_WARP)) return false;
        for (unsigned t = 0; t < n; t++)
            if (host_states[t] != host_states[0]) return false;
        if (host_states[0] == HOST_DONE) return true;
        for (unsigned t = 0; t < n; t++) host_states[t] = HOST_RUNS;
    }
}

__attribute__((destructor)) static void host_end() { free(host_stacks); }

extern "C" __attribute__((visibility("default"))) bool
host_launch(void (*f)(const void *), const void *args, unsigned grid, unsigned block) {
    if (!host_stacks) host_stacks = (char *)malloc((size_t)HOST_THREADS * HOST_STACK);
    host_entry = f, host_args = args;
    gridDim = {grid, 1, 1}, blockDim = {block, 1, 1};
    for (blockIdx = {0, 0, 0}; blockIdx.x < grid; blockIdx.x++)
        if (!host_block()) return false;
    return true;
}

static void __syncthreads() { host_yield(HOST_WAITS); }

/* Two rows of slots: nobody is two shuffles ahead. */
template <class T> static T host_exchange(T x, unsigned from) {
    unsigned me = host_now, p = host_parity[me] ^= 1;
    memcpy(&host_slot[p][me], &x, sizeof x);
    host_yield(HOST_SHUFFLES);
    memcpy(&x, &host_slot[p][from], sizeof x);
    return x;
}
template <class T> static T __shfl_down_sync(unsigned, T x, int by, int width) {
    unsigned me = host_now;
    bool inside = (int)me % width + by < width;
    return host_exchange(x, inside ? me + (unsigned)by : me);
}
template <class T> static T __shfl_sync(unsigned, T x, int source, int width) {
    unsigned all = (unsigned)width;
    return host_exchange(x, host_now / all * all + (unsigned)source);
}

template <class T, class F> static T host_bits(F x) {
    T r;
    memcpy(&r, &x, sizeof r);
    return r;
}
static float __int_as_float(int x) { return host_bits<float>(x); }
static int __float_as_int(float x) { return host_bits<int>(x); }
static double __longlong_as_double(long long x) { return host_bits<double>(x); }
static long long __double_as_longlong(double x) { return host_bits<long long>(x); }
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
