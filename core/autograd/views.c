/* Views and writes in place: who shares memory, and where gradients go after a write. See tape.h.
 *
 * A base and its views are a *family*. A write through one of them is a write to the base: the
 * family's edge becomes a node WRITE, whose operands are the base as it was and what was written,
 * and every other view finds, by the family's count of writes, that its own edge is of older
 * contents; it gets a new one, a node RESTRIDE, when it is next used. */
#include "core/autograd/tape.h"

/* ---- families ---- */

void etch__family_release(view_family *f) {
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    etch__tape_release(f->edge);
    etch__free(f);
}

/* t becomes the base of a new one. */
static view_family *found(etch_tensor *t) {
    tensor_notes *notes = etch__notes(t);
    view_family *f = notes ? etch__calloc(1, sizeof *f) : NULL;
    if (!f) return NULL;
    f->refs = 1;
    f->edge = notes->edge;
    etch__node_retain(f->edge);
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
        etch__node_retain(f->edge);
        n->in[0] = f->shape;
        return n;
    }
    etch__tape_release(n);
    return NULL;
}

/* The view's edge after writes to its family. Its number is just above that of the last write,
 * whenever it is made, so that what is summed where does not depend on that. */
static bool renew(etch_tensor *view, view_family *f) {
    if (!f->edge) return true;
    tape_node *n = node_in_place(NODE_RESTRIDE, 1, f, view);
    if (!n) return false;
    n->number = f->number + 1;
    n->out = etch__value_shape(view);
    bool ok = etch__set_edge(view, n);
    if (ok) view->notes->writes = f->writes;
    etch__tape_release(n);
    return ok;
}

bool etch__edge_of(etch_tensor *t, tape_node **edge) {
    *edge = NULL;
    if (!t->layers || !t->notes) return true;
    view_family *f = t->notes->family;
    if (f && t->notes->base) return *edge = f->edge, true;
    if (f && t->notes->writes != f->writes && !renew(t, f)) return false;
    return *edge = t->notes->edge, true;
}

tape_node *etch__edge_now(const etch_tensor *t, bool *old) {
    *old = false;
    if (!t->layers || !t->notes) return NULL;
    const view_family *f = t->notes->family;
    if (f && t->notes->base) return f->edge;
    *old = f && t->notes->writes != f->writes && f->edge;
    return *old ? f->edge : t->notes->edge;
}

static void move_family(view_family *f, tape_node *to) {
    tape_node *before = f->edge;
    etch__node_retain(to);
    f->edge = to;
    f->number = to->number;
    f->writes++;
    etch__tape_release(before);
}

/* Through a view: the base changes where that lies. */
static bool written_through(etch_tensor *view, view_family *f, tape_node *node) {
    tape_node *w = node_in_place(NODE_WRITE, 2, f, view);
    if (!w) return false;
    w->edge[1] = node;
    etch__node_retain(node);
    w->in[1] = node->out;
    w->out = f->shape;
    w->op = node->op, w->site = node->site;
    w->number = etch__tape_number(w);
    move_family(f, w);
    etch__tape_release(w);
    view->notes->writes = f->writes;
    return etch__set_edge(view, node);
}

bool etch__family_written(etch_tensor *self, tape_node *node) {
    view_family *f = self->notes ? self->notes->family : NULL;
    if (!f) return etch__set_edge(self, node);
    if (!self->notes->base) return written_through(self, f, node);
    move_family(f, node);
    return true;
}
