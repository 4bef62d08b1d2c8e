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
    CUgraphNode origin; /* in an executable graph */
};

struct CUgraph_st {
    CUgraphNode *nodes;
    size_t count;
};

struct CUgraphExec_st {
    CUgraph graph;
    CUcontext context;
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
        if (from->child) to->child = copy_graph(from->child, "child");
        to->before_count = from->before_count;
        to->before = fake__new(from->before_count * sizeof *to->before);
    }
    for (size_t i = 0; i < graph->count; i++)
        for (size_t k = 0; k < graph->nodes[i]->before_count; k++)
            made->nodes[i]->before[k] = made->nodes[index_of(graph, graph->nodes[i]->before[k])];
    return made;
}

/* A library's launch is a kernel, as any other. */
static bool same_type(CUgraphNode a, CUgraphNode b) {
    if (!a->work || !b->work) return !a->work && !b->work;
    const bool kernels[] = {a->work->kind == WORK_KERNEL || a->work->kind == WORK_RUN,
                            b->work->kind == WORK_KERNEL || b->work->kind == WORK_RUN};
    return kernels[0] || kernels[1] ? kernels[0] && kernels[1] : a->work->kind == b->work->kind;
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

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  size_t count, CUgraph child) {
    ENTER(cuGraphAddChildGraphNode);
    CHECK(is_graph(child) && child != graph, CUDA_ERROR_INVALID_VALUE);
    TRY(fake__graph_add(graph, NULL, dependencies, count, node));
    (*node)->child = copy_graph(child, "child");
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS *params,
                              CUcontext context) {
    ENTER(cuGraphAddMemsetNode);
    fake_work *work;
    TRY(fake__set_work(&work, context, params));
    return fake__graph_add(graph, work, dependencies, count, node);
}

/* ---- looking at nodes, and taking them away ---- */

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphGetRootNodes);
    CHECK(is_graph(graph) && count, CUDA_ERROR_INVALID_VALUE);
    size_t n = 0;
    for (size_t i = 0; i < graph->count; i++) {
        if (graph->nodes[i]->before_count) continue;
        if (nodes && n < *count) nodes[n] = graph->nodes[i];
        n++;
    }
    *count = n;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    ENTER(cuGraphNodeGetType);
    CHECK(is_node(node) && type, CUDA_ERROR_INVALID_VALUE);
    *type = !node->work                     ? CU_GRAPH_NODE_TYPE_GRAPH
            : node->work->kind == WORK_SET  ? CU_GRAPH_NODE_TYPE_MEMSET
            : node->work->kind == WORK_COPY ? CU_GRAPH_NODE_TYPE_MEMCPY
                                            : CU_GRAPH_NODE_TYPE_KERNEL;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params) {
    ENTER(cuGraphMemsetNodeGetParams);
    CHECK(is_node(node) && params && node->work && node->work->kind == WORK_SET,
          CUDA_ERROR_INVALID_VALUE);
    *params = (CUDA_MEMSET_NODE_PARAMS){.dst = node->work->set.to,
                                        .value = node->work->set.value,
                                        .elementSize = 1,
                                        .width = node->work->set.size,
                                        .height = 1};
    return CUDA_SUCCESS;
}

static void forget_edge(CUgraphNode node, CUgraphNode before) {
    size_t kept = 0;
    for (size_t k = 0; k < node->before_count; k++)
        if (node->before[k] != before) node->before[kept++] = node->before[k];
    node->before_count = kept;
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
    ENTER(cuGraphDestroyNode);
    CHECK(is_node(node) && !node->child, CUDA_ERROR_INVALID_VALUE);
    CUgraph graph = node->graph;
    size_t at = index_of(graph, node);
    memmove(graph->nodes + at, graph->nodes + at + 1, (--graph->count - at) * sizeof *graph->nodes);
    for (size_t i = 0; i < graph->count; i++) forget_edge(graph->nodes[i], node);
    fake__drop(node->work);
    fake__remove(node);
    free(node->before);
    free(node);
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

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags);
    (void)flags;
    CHECK(exec && is_graph(graph), CUDA_ERROR_INVALID_VALUE);
    CHECK(acyclic(graph), CUDA_ERROR_INVALID_VALUE);
    *exec = fake__new(sizeof **exec);
    (*exec)->graph = copy_graph(graph, "copy");
    (*exec)->context = fake__context;
    fake__add(*exec, "exec");
    return CUDA_SUCCESS;
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

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode original,
                                           const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER(cuGraphExecKernelNodeSetParams_v2);
    CHECK(fake__is(exec, "exec") && is_node(original), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode node = find_copy(exec->graph, original);
    CHECK(node && node->work && node->work->kind == WORK_KERNEL, CUDA_ERROR_INVALID_VALUE);
    fake_work *work;
    TRY(kernel_work(&work, params));
    if (work->context != node->work->context) {
        fake__drop(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake__drop(node->work);
    node->work = work;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode original,
                                        const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    ENTER(cuGraphExecMemsetNodeSetParams);
    CHECK(fake__is(exec, "exec") && is_node(original), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode node = find_copy(exec->graph, original);
    CHECK(node && node->work && node->work->kind == WORK_SET, CUDA_ERROR_INVALID_VALUE);
    fake_work *work;
    TRY(fake__set_work(&work, context, params));
    fake__drop(node->work);
    node->work = work;
    return CUDA_SUCCESS;
}

/* Same nodes in the same order with the same edges? */
static bool same_shape(CUgraph old, CUgraph graph) {
    if (old->count != graph->count) return false;
    for (size_t i = 0; i < graph->count; i++) {
        const CUgraphNode a = old->nodes[i], b = graph->nodes[i];
        if (a->before_count != b->before_count || !same_type(a, b)) return false;
        for (size_t k = 0; k < a->before_count; k++)
            if (index_of(old, a->before[k]) != index_of(graph, b->before[k])) return false;
        if (a->child && !same_shape(a->child, b->child)) return false;
    }
    return true;
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
    CUgraphNode node = find_copy(exec->graph, original);
    CHECK(node && node->child, CUDA_ERROR_INVALID_VALUE);
    CHECK(same_shape(node->child, child), CUDA_ERROR_INVALID_VALUE);
    take_over(node->child, child);
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

/* Into a capturing stream a graph goes as a child graph. */
static CUresult capture_graph(CUstream stream, CUgraph graph) {
    CUgraphNode node;
    TRY(fake__graph_add(stream->capture->graph, NULL, stream->tips, stream->tip_count, &node));
    node->child = copy_graph(graph, "child");
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
