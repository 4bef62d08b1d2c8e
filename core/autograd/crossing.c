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

/* The value alone: a new handle. */
static etch_tensor *crossed_value(node_kind kind, etch_tensor *t, int dim, uint32_t level,
                                  int64_t size) {
    if (kind == NODE_SHARED) return etch__sum_batch(t, level);
    if (kind == NODE_UNBATCH) {
        etch_tensor *p = etch__unbatch(t, dim, level, size);
        return etch__is_batched(t) && p == t->notes->inner ? renewed(p) : p;
    }
    etch_tensor *b = etch__batch(t, dim, level);
    if (b) b->view = VIEW_MADE; /* over memory of the caller's: see may_write in tape.c */
    return b;
}

/* The tangents of t cross as it does; of one that is the same for all samples the sum is itself. */
static etch_tensor *cross(node_kind kind, etch_tensor *t, int dim, uint32_t level, int64_t size) {
    batch_levels levels = etch__levels_of(t);
    if (kind == NODE_SHARED && !etch__has_level(&levels, level)) return t;
    etch_tensor *result = crossed_value(kind, t, dim, level, size);
    result = noted(kind, t, result, dim, level, size);
    for (uint32_t at = 0; result && (at = etch__tangent_level(t, at));) {
        uint32_t outer = etch__tangent_limit(at);
        etch_tensor *value = cross(kind, etch__tangent_at(t, at)->value, dim, level, size);
        etch__tangent_limit(outer);
        if (!value || !etch__set_tangent(result, at, value, false)) return NULL;
    }
    return result;
}

etch_tensor *etch__into_batch(etch_tensor *t, int dim, uint32_t level) {
    return cross(NODE_BATCH, t, dim, level, t->size[dim]);
}

etch_tensor *etch__out_of_batch(etch_tensor *t, int dim, uint32_t level, int64_t size) {
    return cross(NODE_UNBATCH, t, dim, level, size);
}

etch_tensor *etch__leave_levels(etch_tensor *g, const value_shape *shape) {
    if (likely(!etch__is_batched(g))) return g;
    batch_levels levels = etch__levels_of(g);
    for (int i = 0; g && i < BATCH_LEVELS && levels.level[i]; i++) {
        uint32_t level = levels.level[i];
        if (!etch__has_level(&shape->levels, level) && !etch__level_is_open(level))
            g = cross(NODE_SHARED, g, 0, level, 0);
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
