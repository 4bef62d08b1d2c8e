/* Graphs: nodes that hold work, instantiated into a copy whose nodes remember where they came from,
 * so that one of them can be patched by its original. A launch is one piece of work: the nodes'
 * work as it is now, in an order that their dependencies allow. */
#include "driver.h"

struct CUgraphNode_st {
    CUgraph graph;
    fake_work *work; /* NULL: a child graph */
    CUgraph child;
    CUgraphNode *before;
    size_t before_count;
    CUgraphNode origin; /* in an executable graph, and in clones */
};

struct CUgraph_st {
    CUgraphNode *nodes;
    size_t count;
    CUgraphNode owner; /* of a child graph */
};

struct CUgraphExec_st {
    CUgraph graph;
    CUcontext context;
    unsigned long long flags;
};

uint64_t fake__next_id(void) {
    static uint64_t id;
    return ++id;
}

static bool is_graph(CUgraph graph) { return fake__is(graph, "graph") || fake__is(graph, "child"); }

static bool is_node(CUgraphNode node) { return fake__is(node, "node"); }

static CUgraph make_graph(const char *kind) {
    CUgraph graph = fake__new(sizeof *graph);
    fake__add(graph, kind);
    return graph;
}

CUgraph fake__graph_new(void) { return make_graph("graph"); }

void fake__graph_free(CUgraph graph) {
    if (!graph) return;
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode node = graph->nodes[i];
        fake__drop(node->work);
        fake__graph_free(node->child);
        fake__remove(node);
        free(node->before);
        free(node);
    }
    fake__remove(graph);
    free(graph->nodes);
    free(graph);
}

static CUgraphNode append(CUgraph graph) {
    CUgraphNode node = fake__new(sizeof *node);
    node->graph = graph;
    graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
    if (!graph->nodes) abort();
    graph->nodes[graph->count++] = node;
    fake__add(node, "node");
    return node;
}

static size_t index_of(CUgraph graph, CUgraphNode node) {
    size_t i = 0;
    while (i < graph->count && graph->nodes[i] != node) i++;
    return i;
}

/* Is node the same as, or (also indirectly) after, another? Dependencies are older than
 * a node except where edges were added later, so this ends: a graph with a cycle is
 * refused at instantiation. */
static bool depends(CUgraphNode node, CUgraphNode on, size_t left) {
    if (node == on) return true;
    if (!left) return false;
    for (size_t i = 0; i < node->before_count; i++)
        if (depends(node->before[i], on, left - 1)) return true;
    return false;
}

bool fake__depends(CUgraphNode node, CUgraphNode on) {
    return depends(node, on, node->graph->count);
}

/* Takes the work over, also when it fails. */
CUresult fake__graph_add(CUgraph graph, fake_work *work, const CUgraphNode *before, size_t count,
                         CUgraphNode *out) {
    bool good = is_graph(graph) && out && (!count || before);
    for (size_t i = 0; good && i < count; i++)
        good = is_node(before[i]) && before[i]->graph == graph;
    if (!good) {
        fake__drop(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNode node = append(graph);
    node->work = work;
    node->before = count ? fake__copy(before, count * sizeof *before) : NULL;
    node->before_count = count;
    *out = node;
    return CUDA_SUCCESS;
}

static CUgraph copy_graph(CUgraph graph, const char *kind) {
    CUgraph made = make_graph(kind);
    for (size_t i = 0; i < graph->count; i++) {
        const CUgraphNode from = graph->nodes[i];
        CUgraphNode to = append(made);
        to->origin = from;
        if (from->work) to->work = fake__hold(from->work);
        if (from->child) {
            to->child = copy_graph(from->child, "child");
            to->child->owner = to;
        }
        to->before_count = from->before_count;
        to->before = fake__new(from->before_count * sizeof *to->before);
    }
    for (size_t i = 0; i < graph->count; i++)
        for (size_t k = 0; k < graph->nodes[i]->before_count; k++)
            made->nodes[i]->before[k] = made->nodes[index_of(graph, graph->nodes[i]->before[k])];
    return made;
}

static CUgraphNodeType type_of(CUgraphNode node) {
    if (!node->work) return CU_GRAPH_NODE_TYPE_GRAPH;
    switch (node->work->kind) {
    case WORK_KERNEL:
    case WORK_RUN: return CU_GRAPH_NODE_TYPE_KERNEL;
    case WORK_COPY: return CU_GRAPH_NODE_TYPE_MEMCPY;
    case WORK_SET: return CU_GRAPH_NODE_TYPE_MEMSET;
    case WORK_HOST: return CU_GRAPH_NODE_TYPE_HOST;
    default: return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

/* ---- building ---- */

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    ENTER(cuGraphCreate);
    CHECK(graph && flags == 0, CUDA_ERROR_INVALID_VALUE);
    *graph = fake__graph_new();
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    ENTER(cuGraphDestroy);
    CHECK(fake__is(graph, "graph"), CUDA_ERROR_INVALID_VALUE);
    fake__graph_free(graph);
    return fake__released(CUDA_SUCCESS);
}

CUresult cuGraphClone(CUgraph *made, CUgraph graph) {
    ENTER(cuGraphClone);
    CHECK(made && is_graph(graph), CUDA_ERROR_INVALID_VALUE);
    *made = copy_graph(graph, "graph");
    return CUDA_SUCCESS;
}

static CUresult kernel_work(fake_work **work, const CUDA_KERNEL_NODE_PARAMS *params) {
    CHECK(params, CUDA_ERROR_INVALID_VALUE);
    return fake__kernel_work(work, params->func,
                             (unsigned[3]){params->gridDimX, params->gridDimY, params->gridDimZ},
                             (unsigned[3]){params->blockDimX, params->blockDimY, params->blockDimZ},
                             params->sharedMemBytes, params->kernelParams, params->extra);
}

static CUresult copy_work(fake_work **work, const CUDA_MEMCPY3D *params, CUcontext context) {
    CHECK(params, CUDA_ERROR_INVALID_VALUE);
    CHECK(context || (context = fake__context), CUDA_ERROR_INVALID_CONTEXT);
    return fake__copy_work(work, context, params);
}

static CUresult set_work(fake_work **work, const CUDA_MEMSET_NODE_PARAMS *params,
                         CUcontext context) {
    CHECK(params, CUDA_ERROR_INVALID_VALUE);
    CHECK(context || (context = fake__context), CUDA_ERROR_INVALID_CONTEXT);
    return fake__set_work(work, context, params);
}

static CUresult host_work(fake_work **work, const CUDA_HOST_NODE_PARAMS *params) {
    CHECK(params && params->fn, CUDA_ERROR_INVALID_VALUE);
    *work = fake__work(WORK_HOST, fake__context);
    (*work)->host = *params;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER(cuGraphAddKernelNode_v2);
    fake_work *work;
    TRY(kernel_work(&work, params));
    return fake__graph_add(graph, work, dependencies, count, node);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_MEMCPY3D *params, CUcontext context) {
    ENTER(cuGraphAddMemcpyNode);
    fake_work *work;
    TRY(copy_work(&work, params, context));
    return fake__graph_add(graph, work, dependencies, count, node);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS *params,
                              CUcontext context) {
    ENTER(cuGraphAddMemsetNode);
    fake_work *work;
    TRY(set_work(&work, params, context));
    return fake__graph_add(graph, work, dependencies, count, node);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS *params) {
    ENTER(cuGraphAddHostNode);
    fake_work *work;
    TRY(host_work(&work, params));
    return fake__graph_add(graph, work, dependencies, count, node);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  size_t count, CUgraph child) {
    ENTER(cuGraphAddChildGraphNode);
    CHECK(is_graph(child) && child != graph, CUDA_ERROR_INVALID_VALUE);
    TRY(fake__graph_add(graph, NULL, dependencies, count, node));
    (*node)->child = copy_graph(child, "child");
    (*node)->child->owner = *node;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t count) {
    ENTER(cuGraphAddEmptyNode);
    return fake__graph_add(graph, fake__work(WORK_EMPTY, fake__context), dependencies, count, node);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count) {
    ENTER(cuGraphAddDependencies_v2);
    (void)edges;
    CHECK(is_graph(graph) && (!count || (from && to)), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        CHECK(is_node(from[i]) && is_node(to[i]) && from[i]->graph == graph &&
                  to[i]->graph == graph && from[i] != to[i],
              CUDA_ERROR_INVALID_VALUE);
        CUgraphNode node = to[i];
        node->before = realloc(node->before, (node->before_count + 1) * sizeof *node->before);
        if (!node->before) abort();
        node->before[node->before_count++] = from[i];
    }
    return CUDA_SUCCESS;
}

/* ---- asking ---- */

/* The convention of all lists: without an array the number, with one as many as fit. */
static CUresult list(CUgraphNode *out, size_t *count, CUgraphNode *nodes, size_t have) {
    if (!out) {
        *count = have;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < *count; i++) out[i] = i < have ? nodes[i] : NULL;
    if (*count > have) *count = have;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphGetNodes);
    CHECK(is_graph(graph) && count, CUDA_ERROR_INVALID_VALUE);
    return list(nodes, count, graph->nodes, graph->count);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphGetRootNodes);
    CHECK(is_graph(graph) && count, CUDA_ERROR_INVALID_VALUE);
    CUgraphNode *roots = fake__new(graph->count * sizeof *roots);
    size_t have = 0;
    for (size_t i = 0; i < graph->count; i++)
        if (!graph->nodes[i]->before_count) roots[have++] = graph->nodes[i];
    list(nodes, count, roots, have);
    free(roots);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edges, size_t *count) {
    ENTER(cuGraphGetEdges_v2);
    CHECK(is_graph(graph) && count && !from == !to, CUDA_ERROR_INVALID_VALUE);
    size_t have = 0;
    for (size_t i = 0; i < graph->count; i++)
        for (size_t k = 0; k < graph->nodes[i]->before_count; k++, have++) {
            if (!from || have >= *count) continue;
            from[have] = graph->nodes[i]->before[k];
            to[have] = graph->nodes[i];
            if (edges) edges[have] = (CUgraphEdgeData){0};
        }
    if (!from || *count > have) *count = have;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges,
                                       size_t *count) {
    ENTER(cuGraphNodeGetDependencies_v2);
    CHECK(is_node(node) && count, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; edges && nodes && i < *count; i++) edges[i] = (CUgraphEdgeData){0};
    return list(nodes, count, node->before, node->before_count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    ENTER(cuGraphNodeGetType);
    CHECK(is_node(node) && type, CUDA_ERROR_INVALID_VALUE);
    *type = type_of(node);
    return CUDA_SUCCESS;
}

static bool has(CUgraphNode node, enum fake_work_kind kind) {
    return is_node(node) && node->work && node->work->kind == kind;
}

/* A kernel of a library has no function that could be named. */
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER(cuGraphKernelNodeGetParams_v2);
    CHECK(params && has(node, WORK_KERNEL), CUDA_ERROR_INVALID_VALUE);
    const fake_work *work = node->work;
    const unsigned *g = work->kernel.grid, *b = work->kernel.block;
    *params = (CUDA_KERNEL_NODE_PARAMS){
        work->kernel.function, g[0], g[1], g[2],         b[0], b[1], b[2], work->kernel.shared,
        work->kernel.params,   NULL, NULL, work->context};
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params) {
    ENTER(cuGraphMemcpyNodeGetParams);
    CHECK(params && has(node, WORK_COPY), CUDA_ERROR_INVALID_VALUE);
    *params = node->work->copy.shape;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params) {
    ENTER(cuGraphMemsetNodeGetParams);
    CHECK(params && has(node, WORK_SET), CUDA_ERROR_INVALID_VALUE);
    *params = node->work->set;
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *params) {
    ENTER(cuGraphHostNodeGetParams);
    CHECK(params && has(node, WORK_HOST), CUDA_ERROR_INVALID_VALUE);
    *params = node->work->host;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    ENTER(cuGraphChildGraphNodeGetGraph);
    CHECK(graph && is_node(node) && node->child, CUDA_ERROR_INVALID_VALUE);
    *graph = node->child;
    return CUDA_SUCCESS;
}

/* ---- instantiating ---- */

/* Puts the indices of the nodes in an order that dependencies allow; false: there is a cycle. Lazy
 * runs take the youngest node that may run, so that an edge that is missing is missed. */
static bool order(CUgraph graph, size_t *out) {
    bool *done = fake__new(graph->count);
    size_t count = 0;
    for (bool any = true; any;) {
        any = false;
        for (size_t n = 0; n < graph->count && !any; n++) {
            const size_t i = fake.lazy ? graph->count - 1 - n : n;
            bool ready = !done[i];
            for (size_t k = 0; ready && k < graph->nodes[i]->before_count; k++)
                ready = done[index_of(graph, graph->nodes[i]->before[k])];
            if (!ready) continue;
            done[i] = any = true;
            out[count++] = i;
        }
    }
    free(done);
    return count == graph->count;
}

static bool acyclic(CUgraph graph) {
    size_t *indices = fake__new(graph->count * sizeof *indices);
    bool good = order(graph, indices);
    free(indices);
    for (size_t i = 0; good && i < graph->count; i++)
        if (graph->nodes[i]->child) good = acyclic(graph->nodes[i]->child);
    return good;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    CHECK(exec && is_graph(graph), CUDA_ERROR_INVALID_VALUE);
    CHECK(acyclic(graph), CUDA_ERROR_INVALID_VALUE);
    *exec = fake__new(sizeof **exec);
    (*exec)->graph = copy_graph(graph, "copy");
    (*exec)->context = fake__context;
    (*exec)->flags = flags;
    fake__add(*exec, "exec");
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags);
    return instantiate(exec, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    ENTER(cuGraphInstantiateWithParams);
    CHECK(params, CUDA_ERROR_INVALID_VALUE);
    const CUresult result = instantiate(exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out =
        result ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER(cuGraphExecDestroy);
    CHECK(fake__is(exec, "exec"), CUDA_ERROR_INVALID_VALUE);
    fake__remove(exec);
    fake__graph_free(exec->graph);
    free(exec);
    return fake__released(CUDA_SUCCESS);
}

/* ---- patching ---- */

static CUgraphNode find_copy(CUgraph graph, CUgraphNode original) {
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->origin == original) return node;
        CUgraphNode inner = node->child ? find_copy(node->child, original) : NULL;
        if (inner) return inner;
    }
    return NULL;
}

static CUresult copy_of(CUgraphExec exec, CUgraphNode original, enum fake_work_kind kind,
                        CUgraphNode *node) {
    CHECK(fake__is(exec, "exec") && is_node(original), CUDA_ERROR_INVALID_VALUE);
    *node = find_copy(exec->graph, original);
    CHECK(*node && has(*node, kind), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult replace(CUgraphNode node, fake_work *work) {
    if (work->context != node->work->context) {
        fake__drop(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake__drop(node->work);
    node->work = work;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER(cuGraphKernelNodeSetParams_v2);
    fake_work *work;
    CHECK(has(node, WORK_KERNEL), CUDA_ERROR_INVALID_VALUE);
    TRY(kernel_work(&work, params));
    return replace(node, work);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode original,
                                           const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER(cuGraphExecKernelNodeSetParams_v2);
    CUgraphNode node;
    fake_work *work;
    TRY(copy_of(exec, original, WORK_KERNEL, &node));
    TRY(kernel_work(&work, params));
    return replace(node, work);
}

/* As really: the direction of a copy and the memory's kinds stay. */
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode original,
                                        const CUDA_MEMCPY3D *params, CUcontext context) {
    ENTER(cuGraphExecMemcpyNodeSetParams);
    CUgraphNode node;
    fake_work *work;
    TRY(copy_of(exec, original, WORK_COPY, &node));
    TRY(copy_work(&work, params, context));
    const CUDA_MEMCPY3D *old = &node->work->copy.shape;
    if (old->srcMemoryType != params->srcMemoryType ||
        old->dstMemoryType != params->dstMemoryType) {
        fake__drop(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return replace(node, work);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode original,
                                        const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    ENTER(cuGraphExecMemsetNodeSetParams);
    CUgraphNode node;
    fake_work *work;
    TRY(copy_of(exec, original, WORK_SET, &node));
    TRY(set_work(&work, params, context));
    return replace(node, work);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode original,
                                      const CUDA_HOST_NODE_PARAMS *params) {
    ENTER(cuGraphExecHostNodeSetParams);
    CUgraphNode node;
    fake_work *work;
    TRY(copy_of(exec, original, WORK_HOST, &node));
    TRY(host_work(&work, params));
    return replace(node, work);
}

/* Same nodes in the same order with the same edges? The node that differs comes back. */
static CUgraphExecUpdateResult same_shape(CUgraph old, CUgraph graph, CUgraphNode *differs) {
    *differs = NULL;
    if (old->count != graph->count) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < graph->count; i++) {
        const CUgraphNode a = old->nodes[i], b = graph->nodes[i];
        *differs = b;
        if (a->before_count != b->before_count) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        for (size_t k = 0; k < a->before_count; k++)
            if (index_of(old, a->before[k]) != index_of(graph, b->before[k]))
                return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (type_of(a) != type_of(b)) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (!a->child) continue;
        const CUgraphExecUpdateResult inner = same_shape(a->child, b->child, differs);
        if (inner) return inner;
    }
    *differs = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static void take_over(CUgraph old, CUgraph graph) {
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode a = old->nodes[i], b = graph->nodes[i];
        if (a->child) take_over(a->child, b->child);
        if (!b->work) continue;
        fake__drop(a->work);
        a->work = fake__hold(b->work);
    }
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode original, CUgraph child) {
    ENTER(cuGraphExecChildGraphNodeSetParams);
    CHECK(fake__is(exec, "exec") && is_node(original) && is_graph(child), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode node = find_copy(exec->graph, original), differs;
    CHECK(node && node->child, CUDA_ERROR_INVALID_VALUE);
    CHECK(!same_shape(node->child, child, &differs), CUDA_ERROR_INVALID_VALUE);
    take_over(node->child, child);
    return CUDA_SUCCESS;
}

/* The nodes by which copies are found stay those of the first graph. */
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    ENTER(cuGraphExecUpdate_v2);
    CHECK(fake__is(exec, "exec") && is_graph(graph) && info, CUDA_ERROR_INVALID_VALUE);
    *info = (CUgraphExecUpdateResultInfo){0};
    info->result = same_shape(exec->graph, graph, &info->errorNode);
    CHECK(!info->result, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    take_over(exec->graph, graph);
    return CUDA_SUCCESS;
}

/* ---- launching ---- */

static size_t count_work(CUgraph graph) {
    size_t count = 0;
    for (size_t i = 0; i < graph->count; i++)
        count += graph->nodes[i]->child ? count_work(graph->nodes[i]->child) : 1;
    return count;
}

static void collect(CUgraph graph, fake_work *into) {
    size_t *indices = fake__new(graph->count * sizeof *indices);
    order(graph, indices);
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode node = graph->nodes[indices[i]];
        if (node->child) collect(node->child, into);
        else into->graph.items[into->graph.count++] = fake__hold(node->work);
    }
    free(indices);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    ENTER(cuGraphUpload);
    CHECK(fake__is(exec, "exec"), CUDA_ERROR_INVALID_VALUE);
    return fake__stream(&stream);
}

/* Into a capturing stream a graph goes as a child graph. */
static CUresult capture_graph(CUstream stream, CUgraph graph) {
    CUgraphNode node;
    TRY(fake__graph_add(stream->capture->graph, NULL, stream->tips, stream->tip_count, &node));
    node->child = copy_graph(graph, "child");
    node->child->owner = node;
    free(stream->tips);
    stream->tips = fake__copy(&node, sizeof node);
    stream->tip_count = 1;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTER(cuGraphLaunch);
    CHECK(fake__is(exec, "exec"), CUDA_ERROR_INVALID_VALUE);
    TRY(fake__stream(&stream));
    if (stream->capture) return capture_graph(stream, exec->graph);
    fake_work *work = fake__work(WORK_GRAPH, stream->context);
    work->graph.items = fake__new(count_work(exec->graph) * sizeof(fake_work *));
    collect(exec->graph, work);
    return fake__submit(stream, work);
}
