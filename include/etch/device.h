/* Devices: where tensors lie and where operators run.
 *
 * Device 0 is the CPU, ETCH_CUDA(i) is GPU i. libcuda, NVRTC and cuBLASLt are opened when a GPU is
 * first asked for, so one binary serves machines with and without one; ETCH_CUDA=0 hides them. An
 * operator runs where its operands lie, all on one device (else the error `device`); one without
 * tensor operands makes its result on the thread's current device. What works on a GPU makes the
 * GPU's primary context (the runtime's, cudaSetDevice) current on the calling thread and leaves it
 * so; the program may make another one current at any time.
 *
 * Work on a GPU is asynchronous: operators return when they are issued, in order, on the thread's
 * stream. Reading a value waits for it. A fault on the GPU (also an address that the user's own
 * kernel got wrong) is reported by the next call that waits, with the kernels since the last one.
 *
 * Operators that may fail on their data (those with an index tensor, integer division by a tensor)
 * are checked by the GPU itself, and nobody waits: the error, the CPU's with the line of the
 * operator's call, is that of the next call that waits for the device (reading a value, a copy to
 * the CPU, etch_synchronize), which then gives nothing. It is said once, the first in the order of
 * the calls; results of the failed operator are undefined. What an operator in place, or a segment
 * of a compiled function, was to write into tensors that existed before is not written where one of
 * its checks fails. Under ETCH_CUDA_BLOCKING=1 (and ETCH_CHECK=1) each call waits: errors appear
 * where they do on the CPU. */
#ifndef ETCH_DEVICE_H
#define ETCH_DEVICE_H

#include <etch/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t etch_device;
#define ETCH_CPU ((etch_device)0)
#define ETCH_CUDA(index) ((etch_device)(1 + (index)))

/* GPUs that can be used; 0 where there is none. etch_cuda_absent says why, "" where there are some.
 * The text lives for ever. */
ETCH_API int etch_cuda_count(void);
ETCH_API const char *etch_cuda_absent(void);

/* "cpu", "cuda:0"; "unknown" for a number that is no device. The text lives for ever. */
ETCH_API const char *etch_device_name(etch_device device);
/* The number of "cpu", "cuda" (the first) or "cuda:3"; -1 with not_found for another text. Whether
 * the device is there is not asked. */
ETCH_API etch_device etch_device_parse(const char *name);

/* The device of a tensor; -1 for NULL. */
ETCH_API etch_device etch_device_of(const etch_tensor *t);

/* The thread's current device: where creation operators, etch_from_host and etch_npy_load put their
 * results. The CPU at start. Error `device` where there is no such device. */
ETCH_API etch_status etch_set_device(etch_device device);
ETCH_API etch_device etch_current_device(void);

/* ETCH_ON(ETCH_CUDA(0)) { ... }: the current device for the block; `return`
 * and `break` restore it. */
typedef struct etch_device_guard {
    etch_device before;
    int open;
} etch_device_guard;
static inline etch_device_guard etch_device_enter(etch_device device) {
    etch_device_guard g;
    g.before = etch_current_device();
    g.open = etch_set_device(device) == ETCH_OK;
    return g;
}
static inline void etch_device_leave(etch_device_guard *g) { etch_set_device(g->before); }
#define ETCH_ON(device) ETCH_ON_NAMED_(device, __COUNTER__) /* blocks nest without shadowing */
#define ETCH_ON_NAMED_(device, n) ETCH_ON_GUARD_(device, n)
#define ETCH_ON_GUARD_(device, n) ETCH_ON_FOR_(device, etch_on_device_##n)
#define ETCH_ON_FOR_(device, guard)                                                                \
    for (etch_device_guard guard                                                                   \
         __attribute__((cleanup(etch_device_leave))) = etch_device_enter(device);                  \
         guard.open; guard.open = 0)

/* ---- pinned memory ---- */

/* A tensor on the CPU, with undefined contents, in memory that GPUs reach by themselves: a copy
 * between it and a GPU (etch_to_device, etch_to_pinned) is issued and not waited for. Who touches
 * the tensor next waits for the copy: operators, compiled functions, readers, etch_data and
 * etch_data_mut; only a pointer that was got before is not to be used until one of these, or
 * etch_synchronize. Freeing it is safe at any time. In an ETCH_CUDA_GRAPH a copy from it reads it
 * anew in each replay. Without a GPU it is an ordinary tensor. */
ETCH_API etch_tensor *etch_empty_pinned(etch_dtype dtype, etch_shape sizes);
/* A copy of t in such a tensor: of one on a GPU issued, not waited for. A graph break
 * inside a compiled function. */
ETCH_API etch_tensor *etch_to_pinned(const etch_tensor *t);
/* Whether t lies in pinned memory. */
ETCH_API bool etch_is_pinned(const etch_tensor *t);

/* What a GPU's memory and launches have come to since start. Bytes are those of whole blocks. */
typedef struct etch_device_stats_t {
    int64_t bytes_live, bytes_peak; /* held by tensors and plans */
    int64_t bytes_kept;             /* freed, kept for reuse by their stream */
    int64_t driver_allocations;     /* blocks asked of the driver */
    int64_t launches;               /* kernels, one by one */
    int64_t graphs;                 /* CUDA graphs instantiated (ETCH_MODE_REDUCE_OVERHEAD) */
    int64_t graph_launches;
    int64_t graph_patches;  /* words of kernel arguments changed before a launch */
    int64_t operand_copies; /* operands copied because a library could not read them in place */
} etch_device_stats_t;
/* All zero for the CPU and for a device that is not there. */
ETCH_API etch_device_stats_t etch_device_stats(etch_device device);
/* Gives memory that is kept for reuse back to the driver; waits for the device. */
ETCH_API etch_status etch_device_trim(etch_device device);

/* A CUDA graph of one's own: what operators issue in the block is recorded instead of run, and run
 * as often as it is replayed, with one launch.
 *
 *     etch_cuda_graph *g = NULL;
 *     ETCH_CUDA_GRAPH(g) { y = etch_keep(etch_mm(x, w)); }
 *     etch_copy_(x, next);
 *     etch_cuda_graph_replay(g);
 *
 * A replay reads and writes the very addresses of the recording: fill the inputs in place, and
 * expect nothing of C code in the block to happen again. The graph keeps the memory that it uses,
 * and a replay comes after what was issued on it before, by any thread or stream. It is unsound
 * for a program that changes: no shape, scalar or branch is checked. (A compiled function
 * with ETCH_MODE_REDUCE_OVERHEAD is the checked form of the same.) Operators in the block must be
 * of the current device and must not wait for it: reading a value there is an error, and so is an
 * operator of another GPU; what the CPU computes there is computed once, now. Call the block's
 * operators once before, so that their kernels are there. A replay checks data like its operators
 * do. Inside a compiled function it is a graph break behind which nothing is deferred. On error g
 * is NULL. */
typedef struct etch_cuda_graph etch_cuda_graph;
ETCH_API etch_cuda_graph *etch_cuda_graph_begin(void);
ETCH_API etch_cuda_graph *etch_cuda_graph_end(etch_cuda_graph *g); /* g, or NULL and g freed */
ETCH_API etch_status etch_cuda_graph_replay(etch_cuda_graph *g);
ETCH_API void etch_cuda_graph_free(etch_cuda_graph *g); /* NULL is a no-op */
#define ETCH_CUDA_GRAPH(g)                                                                         \
    for (int etch_graph_open = ((g) = etch_cuda_graph_begin()) != NULL; etch_graph_open;           \
         (g) = etch_cuda_graph_end(g), etch_graph_open = 0)

/* ---- streams ---- */

/* What the calling thread issues its work on a GPU to, as a CUstream (the runtime's cudaStream_t),
 * for work of one's own beside Etch's: what is issued to it comes after the operators called before
 * and before those called later, on this thread. Inside a compiled function it is a graph break.
 * NULL with an error where there is no such device. */
ETCH_API void *etch_cuda_stream(etch_device device);

/* Sets the stream that the calling thread's work on the device goes to from now on; NULL: its own
 * again. Memory that was used on another stream is waited for there, as between threads, so tensors
 * can be used on both sides. The stream must live for as long as a thread has it set (a thread's
 * end counts as setting its own); afterwards it may be destroyed, whatever tensors it worked on. A
 * stream of another device or context is an error. Recorded graphs (etch_cuda_graph) are launched
 * on the stream that they were recorded on, or the thread's own once that is not set any more. */
ETCH_API etch_status etch_cuda_set_stream(etch_device device, void *stream);

/* Waits until everything issued to the device is done; a graph break inside a compiled function.
 * The error of work that failed meanwhile. */
ETCH_API etch_status etch_synchronize(etch_device device);

#ifdef __cplusplus
}
#endif
#endif
