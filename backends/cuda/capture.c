/* Graphs that a user records: etch_cuda_graph_begin, _end, _replay. */
#include "backends/cuda/faults.h"
#include "backends/cuda/runtime.h"

struct etch_cuda_graph {
    cuda_stream *stream;
    cu_graph graph;
    cu_exec exec;
    storage_list uses;
    cuda_held held; /* also other memory freed in the block, which the graph goes on using */
    graph_checks checks;
};

static __thread etch_cuda_graph *recording;

etch_cuda_graph *etch_cuda_graph_begin(void) {
    int device = etch__current_device();
    if (!device || recording || etch__tls.run)
        return etch__null_at(
            __builtin_return_address(0), device ? ETCH_ERR_INVALID_ARGUMENT : ETCH_ERR_DEVICE,
            "etch_cuda_graph_begin: %s",
            !device     ? "expected a GPU as the current device, got cpu (ETCH_ON)"
            : recording ? "a graph is being recorded on this thread already"
                        : "a compiled function is running; record around its call");
    etch_cuda_graph *g = etch__calloc(1, sizeof *g);
    if (!g) return NULL;
    g->stream = etch__cuda_stream(etch__device_index(device));
    if (g->stream && etch__cuda_capture_begin(g->stream, &g->held) == ETCH_OK) {
        etch__cuda_checks_record(&g->checks);
        etch__cuda_list_uses(&g->uses);
        return recording = g;
    }
    etch__free(g);
    return NULL;
}

static etch_status stop(etch_cuda_graph *g) {
    recording = NULL;
    etch__cuda_checks_record(NULL);
    etch__cuda_list_uses(NULL);
    return etch__cuda_capture_end(g->stream, &g->graph);
}

etch_cuda_graph *etch_cuda_graph_end(etch_cuda_graph *g) {
    if (!g || g != recording)
        return etch__null_at(__builtin_return_address(0), ETCH_ERR_INVALID_ARGUMENT,
                             "etch_cuda_graph_end: expected the graph that this thread records");
    etch_status status = stop(g);
    if (status == ETCH_OK) status = CU(cuGraphInstantiateWithFlags, &g->exec, g->graph, 0);
    if (status == ETCH_OK) return g;
    etch_cuda_graph_free(g);
    return NULL;
}

static etch_status launch(etch_cuda_graph *g) {
    etch_status status = etch__cuda_checks_launch(&g->checks, g->stream);
    if (status == ETCH_OK) status = CU(cuGraphLaunch, g->exec, etch__cuda_stream_handle(g->stream));
    etch__cuda_checks_launched(&g->checks);
    return status == ETCH_OK ? etch__cuda_used_all(g->stream, &g->uses) : status;
}

/* It reads and writes tensors that a compiled function may have deferred values of. */
etch_status etch_cuda_graph_replay(etch_cuda_graph *g) {
    const void *site = __builtin_return_address(0);
    if (etch__tls.run && etch__trace_hooks.read(NULL, REASON_BREAK_FLUSH, site) != ETCH_OK)
        return etch__tls.status;
    if (!g || !g->exec)
        return etch__error_at(site, ETCH_ERR_NULL,
                              "etch_cuda_graph_replay: expected a recorded graph");
    int index = etch__cuda_stream_device(g->stream)->index;
    if (!etch__cuda_stream(index)) return etch__tls.status;
    etch_status status = etch__cuda_use_all(g->stream, &g->uses);
    if (status == ETCH_OK) status = etch__cuda_visit(g->stream);
    if (status != ETCH_OK) return status;
    etch__cuda_counts(index)->graph_launches++;
    etch__cuda_note(g->stream, "a recorded CUDA graph");
    status = launch(g);
    etch__cuda_visited(g->stream);
    return status == ETCH_OK ? etch__cuda_issued_to(g->stream) : status;
}

void etch_cuda_graph_free(etch_cuda_graph *g) {
    if (!g) return;
    KEEP_ERROR;
    if (recording == g) stop(g);
    etch__cuda_checks_release(&g->checks);
    etch__cuda_enter(etch__cuda_stream_device(g->stream)->index);
    if (g->exec) etch__cuda.cuGraphExecDestroy(g->exec);
    if (g->graph) etch__cuda.cuGraphDestroy(g->graph);
    etch__cuda_let_go(&g->held);
    etch__cuda_forget_uses(&g->uses);
    etch__free(g);
}
