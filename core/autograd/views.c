/* Views and writes in place: who shares memory, and where gradients go after a write. See tape.h.
 *
 * A base and its views are a *family*. A write through one of them is a write to the base: the
 * family's edge becomes a node WRITE, whose operands are the base as it was and what was written,
 * and every other view finds, by the family's count of writes, that its own edge is of older
 * contents; it gets a new one, a node RESTRIDE, when it is next used. Both nodes pass gradients by
 * place: in a flat tensor that stands for the base's memory. */
#include "core/autograd/tape.h"

#include <etch/etch.h>

#include <stdlib.h>

/* ---- families ---- */

void etch__family_release(view_family *f) {
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    etch__tape_release(f->edge.node);
    etch__free(f);
}

/* t becomes the base of a new one. */
static view_family *found(etch_tensor *t) {
    tensor_notes *notes = etch__notes(t);
    view_family *f = notes ? etch__calloc(1, sizeof *f) : NULL;
    if (!f) return NULL;
    f->refs = 1;
    f->edge = notes->edge;
    etch__node_retain(f->edge.node);
    f->shape = etch__value_shape(t);
    f->base = etch__place_of(t);
    f->partial = t->view;
    notes->family = f, notes->base = true;
    t->layers |= 1u << LAYER_AUTOGRAD;
    return f;
}

bool etch__join_family(etch_tensor *v, etch_tensor *t) {
    view_family *f = t->notes ? t->notes->family : NULL;
    if (!f && !(f = found(t))) return false;
    tensor_notes *notes = etch__notes(v);
    if (!notes) return false;
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    notes->family = f, notes->base = false;
    notes->writes = f->writes;
    v->layers |= 1u << LAYER_AUTOGRAD;
    return true;
}

static tape_node *node_in_place(node_kind kind, int nin, const view_family *f, etch_tensor *view) {
    tape_node *n = etch__node_make(kind, nin, 0, 0);
    if (n) n->lies = etch__malloc(2 * sizeof *n->lies);
    if (n && n->lies) {
        n->lies[0] = f->base, n->lies[1] = etch__place_of(view);
        n->edge[0] = f->edge;
        etch__node_retain(f->edge.node);
        n->in[0] = f->shape;
        return n;
    }
    etch__tape_release(n);
    return NULL;
}

/* The view's edge after writes to its family. Its number is just above that of the last write,
 * whenever it is made, so that what is summed where does not depend on that. */
static bool renew(etch_tensor *view, view_family *f) {
    if (!f->edge.node) return true;
    tape_node *n = node_in_place(NODE_RESTRIDE, 1, f, view);
    if (!n) return false;
    n->number = f->number + 1;
    n->out = etch__value_shape(view);
    bool ok = etch__set_edge(view, n, 0);
    view->notes->writes = f->writes;
    etch__tape_release(n);
    return ok;
}

bool etch__edge_of(etch_tensor *t, grad_edge *edge) {
    *edge = (grad_edge){NULL, 0};
    if (!t->layers || !t->notes) return true;
    view_family *f = t->notes->family;
    if (f && t->notes->base) return *edge = f->edge, true;
    if (f && t->notes->writes != f->writes && !renew(t, f)) return false;
    return *edge = t->notes->edge, true;
}

static void move_family(view_family *f, tape_node *to) {
    tape_node *before = f->edge.node;
    etch__node_retain(to);
    f->edge = (grad_edge){to, 0};
    f->number = to->number;
    f->writes++;
    etch__tape_release(before);
}

/* Through a view: the base changes where that lies. */
static bool written_through(etch_tensor *view, view_family *f, tape_node *node) {
    tape_node *w = node_in_place(NODE_WRITE, 2, f, view);
    if (!w) return false;
    w->edge[1] = (grad_edge){node, 0};
    etch__node_retain(node);
    w->in[1] = node->out;
    w->out = f->shape;
    w->op = node->op, w->site = node->site;
    w->number = etch__tape_number(w);
    move_family(f, w);
    etch__tape_release(w);
    view->notes->writes = f->writes;
    return etch__set_edge(view, node, 0);
}

bool etch__family_written(etch_tensor *self, tape_node *node) {
    view_family *f = self->notes ? self->notes->family : NULL;
    if (!f) return etch__set_edge(self, node, 0);
    if (!self->notes->base) return written_through(self, f, node);
    move_family(f, node);
    return true;
}

/* ---- gradients by place ---- */

/* The lowest and highest element of a place. */
static void reach_of(const tensor_meta *p, int64_t *low, int64_t *high) {
    *low = *high = p->offset;
    for (int d = 0; d < p->ndim; d++) {
        int64_t far = (p->size[d] - 1) * p->stride[d];
        *(far < 0 ? low : high) += far;
    }
}

static bool is_empty(const tensor_meta *p) {
    for (int d = 0; d < p->ndim; d++)
        if (!p->size[d]) return true;
    return false;
}

/* The view of a flat tensor, whose first element is number `first`, that lies where p does. */
static etch_tensor *lay(etch_tensor *flat, int64_t first, const tensor_meta *p) {
    int64_t low, high;
    etch_dims size = {.n = p->ndim}, stride = {.n = p->ndim};
    reach_of(p, &low, &high);
    for (int d = 0; d < p->ndim; d++) {
        size.v[d] = p->size[d];
        stride.v[d] = p->stride[d] < 0 ? -p->stride[d] : p->stride[d];
    }
    etch_tensor *t = etch_slice(flat, 0, low - first, high - first + 1, 1);
    t = etch_as_strided(t, size, stride);
    for (int d = 0; t && d < p->ndim; d++)
        if (p->stride[d] < 0) t = etch_slice(t, d, ETCH_ABSENT, ETCH_ABSENT, -1);
    return t;
}

static etch_tensor *zeros(const value_shape *like, etch_shape size) {
    etch_tensor *t = NULL;
    ETCH_ON(like->device) t = etch_zeros((etch_dtype)like->dtype, size);
    return t;
}

static etch_tensor *zeros_for(const tensor_meta *base, const value_shape *like) {
    int64_t low, high;
    reach_of(base, &low, &high);
    return zeros(like, ETCH_SHAPE(high - low + 1));
}

/* A flat copy of the memory of which grad is the gradient, where the base lies. */
static etch_tensor *flattened(const tensor_meta *base, etch_tensor *grad, const value_shape *like) {
    int64_t low, high;
    reach_of(base, &low, &high);
    etch_tensor *flat = zeros_for(base, like);
    etch_tensor *at = flat ? lay(flat, low, base) : NULL;
    return at && etch_copy_(at, grad) ? flat : NULL;
}

/* The element numbers of a place, in row-major order, as a flat tensor of integers. */
static etch_tensor *numbers_of(const tensor_meta *p, int64_t first) {
    etch_tensor *sum = NULL;
    ETCH_ON(p->device) sum = etch_full(ETCH_I64, ETCH_SHAPE(1), p->offset - first);
    for (int d = 0; sum && d < p->ndim; d++) {
        etch_tensor *steps = NULL;
        ETCH_ON(p->device) steps = etch_arange(ETCH_I64, 0, p->size[d], 1);
        steps = etch_mul_scalar(steps, p->stride[d]);
        sum = etch_add(etch_unsqueeze(sum, -1), steps);
        sum = etch_reshape(sum, ETCH_SHAPE(-1));
    }
    return sum;
}

/* Whether elements of a place may share memory: its strides, in rising order, do not nest. */
static bool overlaps(const tensor_meta *p) {
    bool done[ETCH_MAX_DIMS] = {0};
    int64_t reach = 0;
    for (int round = 0; round < p->ndim; round++) {
        int least = -1;
        for (int d = 0; d < p->ndim; d++)
            if (!done[d] && (least < 0 || llabs(p->stride[d]) < llabs(p->stride[least]))) least = d;
        done[least] = true;
        if (p->size[least] == 1) continue;
        if (llabs(p->stride[least]) <= reach) return true;
        reach += (p->size[least] - 1) * llabs(p->stride[least]);
    }
    return false;
}

etch_tensor *etch__grad_of_base(const tape_node *n, etch_tensor *grad) {
    const tensor_meta *base = &n->lies[0], *view = &n->lies[1];
    int64_t low, high;
    if (is_empty(base)) return zeros(&n->in[0], etch__sizes_of(&n->in[0]));
    reach_of(base, &low, &high);
    etch_tensor *flat = zeros_for(base, &n->in[0]);
    if (is_empty(view) || !flat) return flat ? lay(flat, low, base) : NULL;
    if (overlaps(view)) {
        etch_tensor *values = etch_reshape(grad, ETCH_SHAPE(-1));
        if (!etch_index_put_(flat, numbers_of(view, low), values, true)) return NULL;
    } else {
        etch_tensor *at = lay(flat, low, view);
        if (!at || !etch_copy_(at, grad)) return NULL;
    }
    return lay(flat, low, base);
}

etch_tensor *etch__grad_of_view(const tape_node *n, etch_tensor *grad) {
    const tensor_meta *base = &n->lies[0];
    int64_t low, high;
    if (is_empty(&n->lies[1])) return zeros(&n->in[1], etch__sizes_of(&n->in[1]));
    reach_of(base, &low, &high);
    etch_tensor *flat = flattened(base, grad, &n->out);
    return flat ? lay(flat, low, &n->lies[1]) : NULL;
}

etch_tensor *etch__grad_beside_view(const tape_node *n, etch_tensor *grad) {
    const tensor_meta *base = &n->lies[0], *view = &n->lies[1];
    int64_t low, high;
    if (is_empty(base) || is_empty(view)) return grad;
    reach_of(base, &low, &high);
    etch_tensor *flat = flattened(base, grad, &n->out);
    etch_tensor *at = flat ? lay(flat, low, view) : NULL;
    return at && etch_zero_(at) ? lay(flat, low, base) : NULL;
}
