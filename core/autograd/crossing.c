/* Into a batch and out of it: see crossing.h. Each is a node of the tape whose derivative is the
 * other; the sum over the samples passes its gradient to all of them as it is. */
#include "core/autograd/crossing.h"

#include <etch/etch.h>

#include "core/transforms/tangent.h"

/* The result of t, a new handle, gets a node if t has an edge. */
static etch_tensor *noted(node_kind kind, etch_tensor *t, etch_tensor *result, int dim,
                          uint32_t level, int64_t size) {
    tape_node *edge = NULL;
    if (!result || !etch__taping()) return result;
    if (!etch__edge_of(t, &edge)) return NULL;
    if (!edge) return result;
    tape_node *n = etch__node_make(kind, 1, 0, 3);
    if (!n) return NULL;
    n->edge[0] = edge;
    etch__node_retain(edge);
    n->in[0] = etch__value_shape(t), n->out = etch__value_shape(result);
    n->at[0] = dim, n->at[1] = level, n->at[2] = size;
    n->number = etch__tape_number(n);
    bool ok = etch__set_edge(result, n);
    etch__tape_release(n);
    return ok ? result : NULL;
}

/* The tangents of t cross as it does. */
static etch_tensor *with_tangents(etch_tensor *t, etch_tensor *result, int dim, uint32_t level,
                                  int64_t size) {
    uint32_t at = 0;
    while (result && (at = etch__tangent_level(t, at))) {
        uint32_t outer = etch__tangent_limit(at);
        etch_tensor *value = etch__tangent_at(t, at)->value;
        value = size < 0 ? etch__into_batch(value, dim, level)
                         : etch__out_of_batch(value, dim, level, size);
        etch__tangent_limit(outer);
        if (!value || !etch__set_tangent(result, at, value, false)) return NULL;
    }
    return result;
}

etch_tensor *etch__into_batch(etch_tensor *t, int dim, uint32_t level) {
    int64_t size = t->size[dim];
    etch_tensor *b = etch__batch(t, dim, level);
    if (b) b->view = VIEW_MADE; /* over memory of the caller's: see may_write in tape.c */
    b = noted(NODE_BATCH, t, b, dim, level, size);
    return with_tangents(t, b, dim, level, -1);
}

/* Another handle for one that may be somebody's. */
static etch_tensor *renewed(etch_tensor *t) {
    etch_tensor *alias = NULL;
    uint32_t outer = etch__tangent_limit(1);
    if (t)
        ETCH_NO_GRAD
            alias = etch_detach(t);
    etch__tangent_limit(outer);
    return alias;
}

etch_tensor *etch__without_history(etch_tensor *t) {
    etch_tensor *alias = renewed(t);
    return alias && etch__carry_tangents(alias, t) ? alias : NULL;
}

etch_tensor *etch__out_of_batch(etch_tensor *t, int dim, uint32_t level, int64_t size) {
    etch_tensor *p = etch__unbatch(t, dim, level, size);
    if (etch__is_batched(t) && p == t->notes->inner) p = renewed(p);
    p = noted(NODE_UNBATCH, t, p, dim, level, size);
    return with_tangents(t, p, dim, level, size);
}

static etch_tensor *summed(etch_tensor *g, uint32_t level) {
    etch_tensor *sum = noted(NODE_SHARED, g, etch__sum_batch(g, level), 0, level, 0);
    uint32_t at = 0;
    while (sum && (at = etch__tangent_level(g, at))) {
        uint32_t outer = etch__tangent_limit(at);
        etch_tensor *value = etch__tangent_at(g, at)->value;
        batch_levels levels = etch__levels_of(value);
        if (etch__has_level(&levels, level)) value = summed(value, level);
        etch__tangent_limit(outer);
        if (!value || !etch__set_tangent(sum, at, value, false)) return NULL;
    }
    return sum;
}

etch_tensor *etch__leave_levels(etch_tensor *g, const value_shape *shape) {
    if (likely(!etch__is_batched(g))) return g;
    batch_levels levels = etch__levels_of(g);
    for (int i = 0; g && i < BATCH_LEVELS && levels.level[i]; i++) {
        uint32_t level = levels.level[i];
        if (!etch__has_level(&shape->levels, level) && !etch__level_is_open(level))
            g = summed(g, level);
    }
    return g;
}

etch_tensor *etch__grad_across(const tape_node *n, etch_tensor *grad) {
    int dim = (int)n->at[0];
    uint32_t level = (uint32_t)n->at[1];
    if (n->kind == NODE_BATCH) return etch__out_of_batch(grad, dim, level, n->at[2]);
    if (n->kind == NODE_UNBATCH) return etch__into_batch(grad, dim, level);
    return grad;
}
