/* Runs of a plan as one CUDA graph: kernel nodes whose arguments are patched, calls of libraries
 * as child graphs that are recorded again when an address changes. A node waits for those that
 * its step depends on, so independent steps overlap. Nothing is copied: inputs are read and
 * outputs written where they lie. Memory of its own that a call begins by clearing, as products
 * that count their finished tiles do, is cleared by a node that waits for nothing. */
#include "backends/cuda/faults.h"
#include "backends/cuda/launcher.h"

typedef struct graph_step {
    cu_node node, clear; /* clear: or NULL */
    cu_function function;
    size_t bytes;
    uint64_t *parameter; /* of a kernel, as the graph has it */
    cuda_held held;      /* of a call: what the graph needs */
    cuda_held before;    /* the same of its last recording, while it is recorded again */
} graph_step;

struct device_graph {
    int device, nsteps;
    cuda_stream *stream;
    cu_graph graph;
    cu_exec exec; /* NULL until the first launch */
    graph_checks checks;
    graph_step steps[];
};

void etch__cuda_graph_free(device_graph *g) {
    if (!g) return;
    saved_error before;
    etch__error_save(&before);
    etch__cuda_enter(g->device);
    if (g->exec) etch__cuda.cuGraphExecDestroy(g->exec);
    if (g->graph) etch__cuda.cuGraphDestroy(g->graph);
    for (int i = 0; i < g->nsteps; i++) {
        etch__free(g->steps[i].parameter);
        etch__cuda_let_go(&g->steps[i].held);
        etch__cuda_let_go(&g->steps[i].before);
    }
    etch__cuda_checks_release(&g->checks);
    etch__error_restore(&before);
    etch__free(g);
}

device_graph *etch__cuda_graph_new(int device, int nsteps, bool checks) {
    device_graph *g = etch__calloc(1, sizeof *g + (size_t)nsteps * sizeof *g->steps);
    if (!g) return NULL;
    g->device = etch__device_index(device), g->nsteps = nsteps;
    g->stream = etch__cuda_stream(g->device);
    etch_status status = g->stream ? CU(cuGraphCreate, &g->graph, 0) : etch__tls.status;
    if (status == ETCH_OK && checks) status = etch__cuda_checks_reserve(g->stream, &g->checks);
    if (status == ETCH_OK) return g;
    etch__cuda_graph_free(g);
    return NULL;
}

/* A graph may be launched on any stream, and comes after its own last launch. Memory that its calls
 * use belongs to the stream they were recorded on: from now on several use it. */
static etch_status follow_stream(device_graph *g) {
    cuda_stream *s = etch__cuda_stream(g->device);
    if (likely(s == g->stream)) return ETCH_OK;
    if (!s) return etch__tls.status;
    for (int i = 0; i < g->nsteps; i++) {
        etch__cuda_share(&g->steps[i].held);
        etch__cuda_share(&g->steps[i].before);
    }
    g->stream = s;
    return ETCH_OK;
}

bool etch__cuda_graph_fits(int device) {
    (void)device;
    return !etch__cuda_capturing();
}

void etch__cuda_graph_begin(device_graph *g) { etch__cuda_checks_enter(&g->checks); }
void etch__cuda_graph_end(device_graph *g) { etch__cuda_checks_leave(&g->checks); }

/* ---- kernels ---- */

/* The nodes of the steps, to be freed, with room for one more; NULL: out of memory. */
static cu_node *nodes_of(const device_graph *g, step_list list) {
    cu_node *nodes = etch__malloc(((size_t)list.n + 1) * sizeof *nodes);
    for (int i = 0; nodes && i < list.n; i++) nodes[i] = g->steps[list.steps[i]].node;
    return nodes;
}

static etch_status add_kernel(device_graph *g, graph_step *s, step_list after,
                              const cu_kernel_params *params) {
    cu_node *nodes = nodes_of(g, after);
    if (!nodes) return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status =
        CU(cuGraphAddKernelNode_v2, &s->node, g->graph, nodes, (size_t)after.n, params);
    etch__free(nodes);
    return status;
}

static etch_status add_child(device_graph *g, graph_step *s, step_list after, cu_graph child) {
    cu_node *nodes = nodes_of(g, after);
    size_t n = (size_t)after.n;
    if (!nodes) return ETCH_ERR_OUT_OF_MEMORY;
    if (s->clear) nodes[n++] = s->clear;
    etch_status status = CU(cuGraphAddChildGraphNode, &s->node, g->graph, nodes, n, child);
    etch__free(nodes);
    return status;
}

/* Counts the words that differ, and patches the node where there are any. */
static etch_status patch_kernel(device_graph *g, graph_step *s, const cu_kernel_params *params,
                                const uint64_t *now) {
    int64_t changed = s->function != params->function;
    for (size_t i = 0; i < s->bytes / 8; i++) changed += now[i] != s->parameter[i];
    if (!changed) return ETCH_OK;
    etch__cuda_counts(g->device)->graph_patches += changed;
    return CU(cuGraphExecKernelNodeSetParams_v2, g->exec, s->node, params);
}

etch_status etch__cuda_graph_kernel(device_graph *g, int step, step_list after,
                                    const kernel_step *k, void *const *args,
                                    const uint64_t *cells) {
    cuda_launch to;
    graph_step *s = &g->steps[step];
    if (etch__cuda_resolve(k->launcher, args, cells, &to) != ETCH_OK) return etch__tls.status;
    void *parameters[] = {to.parameter};
    cu_kernel_params params = {
        .function = to.function, .shared = to.shape->shared, .parameters = parameters};
    memcpy(params.grid, to.shape->grid, sizeof params.grid);
    memcpy(params.block, to.shape->block, sizeof params.block);
    if (!s->parameter && !(s->parameter = etch__malloc(to.bytes + 8)))
        return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status =
        g->exec ? patch_kernel(g, s, &params, to.parameter) : add_kernel(g, s, after, &params);
    s->function = to.function, s->bytes = to.bytes;
    memcpy(s->parameter, to.parameter, to.bytes);
    return status;
}

/* ---- calls ---- */

/* The node that the recording begins with, if that clears memory which the call alone uses; NULL
 * with ETCH_OK: there is none. */
static etch_status find_clear(const graph_step *s, cu_graph child, cu_node *node,
                              cu_memset_params *params) {
    cu_node roots[2];
    size_t n = 0;
    int type = -1;
    *node = NULL;
    etch_status status = CU(cuGraphGetRootNodes, child, NULL, &n);
    if (status != ETCH_OK || n != 1) return status;
    status = CU(cuGraphGetRootNodes, child, roots, &n);
    if (status == ETCH_OK) status = CU(cuGraphNodeGetType, roots[0], &type);
    if (status != ETCH_OK || type != CU_NODE_MEMSET) return status;
    status = CU(cuGraphMemsetNodeGetParams, roots[0], params);
    bool flat = params->height <= 1;
    if (flat && etch__cuda_holds(&s->held, params->to, params->width * params->element))
        *node = roots[0];
    return status;
}

/* Takes that node out of the recording, and puts it into the whole graph or patches it there. What
 * was recorded before with such a node is recorded with one again. */
static etch_status clear_early(device_graph *g, graph_step *s, cu_graph child) {
    cu_node root;
    cu_memset_params params;
    cu_context context = etch__cuda_stream_device(g->stream)->context;
    etch_status status = find_clear(s, child, &root, &params);
    if (status != ETCH_OK || !root || (g->exec && !s->clear)) return status;
    status = g->exec ? CU(cuGraphExecMemsetNodeSetParams, g->exec, s->clear, &params, context)
                     : CU(cuGraphAddMemsetNode, &s->clear, g->graph, NULL, 0, &params, context);
    return status == ETCH_OK ? CU(cuGraphDestroyNode, root) : status;
}

/* What the call frees is held until it is recorded again; an older launch may still be running,
 * in whose stream's order the memory is then given out again. */
etch_status etch__cuda_graph_call_begin(device_graph *g, int step) {
    graph_step *s = &g->steps[step];
    if (follow_stream(g) != ETCH_OK) return etch__tls.status;
    cuda_held old = s->held;
    s->held = (cuda_held){0};
    etch__cuda_checks_step(step);
    etch_status status = etch__cuda_capture_begin(g->stream, &s->held);
    s->before = old;
    return status;
}

etch_status etch__cuda_graph_call_end(device_graph *g, int step, step_list after) {
    graph_step *s = &g->steps[step];
    cu_graph child = NULL;
    etch_status status = etch__cuda_capture_end(g->stream, &child);
    etch__cuda_let_go(&s->before);
    if (status == ETCH_OK) status = clear_early(g, s, child);
    if (status != ETCH_OK) {
        if (child) etch__cuda.cuGraphDestroy(child);
        return status;
    }
    if (g->exec) {
        etch__cuda_counts(g->device)->graph_patches++;
        status = CU(cuGraphExecChildGraphNodeSetParams, g->exec, s->node, child);
    } else {
        status = add_child(g, s, after, child);
    }
    etch__cuda.cuGraphDestroy(child);
    return status;
}

/* ---- launching ---- */

etch_status etch__cuda_graph_launch(device_graph *g) {
    device_counts *counts = etch__cuda_counts(g->device);
    if (follow_stream(g) != ETCH_OK) return etch__tls.status;
    if (!g->exec) {
        etch_status status = CU(cuGraphInstantiateWithFlags, &g->exec, g->graph, 0);
        if (status != ETCH_OK) return status;
        counts->graphs++;
    }
    counts->graph_launches++;
    etch__cuda_note(g->stream, "a CUDA graph");
    etch_status status = etch__cuda_checks_launch(&g->checks, g->stream);
    if (status == ETCH_OK) status = CU(cuGraphLaunch, g->exec, etch__cuda_stream_handle(g->stream));
    etch__cuda_checks_launched(&g->checks);
    return status;
}
