/* Launchers: loop kernels with their extents, ready for a device. */
#ifndef ETCH_BACKENDS_CUDA_LAUNCHER_H
#define ETCH_BACKENDS_CUDA_LAUNCHER_H

#include "backends/cuda/ops.h"
#include "jit/cuda/cuda_source.h"
#include "jit/plan/native_plan.h"

enum { PARAMETER_MAX = 4096 }; /* bytes of a kernel's one argument */

/* Whether the arguments of which `wide` has bits lie at multiples of 16. */
static inline bool etch__cuda_aligned(uint32_t wide, void *const *args) {
    uintptr_t bits = 0;
    for (; wide; wide &= wide - 1) bits |= (uintptr_t)args[__builtin_ctz(wide)];
    return bits % 16 == 0;
}

/* What to launch for these arguments: the parameter, `bytes` (whole words) of which are filled. */
typedef struct cuda_launch {
    cu_function function;
    const cuda_shape *shape;
    size_t bytes;
    uint64_t parameter[PARAMETER_MAX / 8];
} cuda_launch;
etch_status etch__cuda_resolve(launcher *l, void *const *args, const uint64_t *cells,
                               cuda_launch *out);

/* backends/cuda/launcher.c: target_kernels, and target_matmuls.ready. */
bool etch__cuda_prepare(const kernel_order *o, kernel_step *const *steps, const char **why);
void etch__cuda_release(const kernel_step *k);
etch_status etch__cuda_run(const kernel_step *k, void *const *args, const uint64_t *cells);
bool etch__cuda_ready(int device, const lowered *low, uint32_t aligned);

/* backends/cuda/whole.c: target_whole. */
whole_launcher *etch__cuda_whole_new(int device, const whole_step *steps, int n,
                                     int64_t arena_bytes);
void etch__cuda_whole_free(whole_launcher *l);
etch_status etch__cuda_whole_launch(whole_launcher *l, void *const *args, const uint64_t *cells);

/* backends/cuda/graph.c: target_graphs. */
device_graph *etch__cuda_graph_new(int device, int nsteps, bool checks);
void etch__cuda_graph_begin(device_graph *g);
void etch__cuda_graph_end(device_graph *g);
void etch__cuda_graph_free(device_graph *g);
bool etch__cuda_graph_fits(int device);
etch_status etch__cuda_graph_kernel(device_graph *g, int step, step_list after,
                                    const kernel_step *k, void *const *args, const uint64_t *cells);
etch_status etch__cuda_graph_call_begin(device_graph *g, int step);
etch_status etch__cuda_graph_call_end(device_graph *g, int step, step_list after);
etch_status etch__cuda_graph_launch(device_graph *g);

#endif
