/* CUDA as a target of plans: who does which job. */
#include "backends/cuda/faults.h"
#include "core/base/start.h"
#include "backends/cuda/join.h"
#include "backends/cuda/launcher.h"
#include "backends/cuda/matmul.h"

static etch_status use(int device, etch_storage *storage) {
    int index = etch__device_index(device);
    cuda_stream *s = NULL;
    if (likely(etch__cuda_may_issue(index, "a compiled function", NULL) == ETCH_OK))
        s = etch__cuda_stream(index);
    return s ? etch__cuda_use(s, storage) : etch__tls.status;
}

static const jit_target target = {
    .run = etch__issue_steps,
    .arena_apart = true,
    .late_checks = true,
    .times_matmuls = true,
    .kernels = {etch__cuda_prepare, etch__cuda_release, etch__cuda_run},
    .matmuls = {.run = etch__cuda_matmul, .joins = etch__cuda_joins, .ready = etch__cuda_ready},
    .whole = {etch__cuda_whole_new, etch__cuda_whole_free, etch__cuda_whole_launch},
    .makes_norm = etch__cuda_makes_norm,
    .graphs = {.can_record = etch__cuda_issues,
               .make = etch__cuda_graph_new,
               .free = etch__cuda_graph_free,
               .begin = etch__cuda_graph_begin,
               .end = etch__cuda_graph_end,
               .fits = etch__cuda_graph_fits,
               .kernel = etch__cuda_graph_kernel,
               .call_begin = etch__cuda_graph_call_begin,
               .call_end = etch__cuda_graph_call_end,
               .launch = etch__cuda_graph_launch},
    .queue = {use, etch__cuda_issued, etch__cuda_checks_open, etch__cuda_checks_close},
};

void etch__start_cuda_target(void) { etch__target_register(false, &target); }
