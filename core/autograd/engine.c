/* The engine: runs a tape backward.
 *
 * Nodes are visited in falling order of their numbers, so all that flows to a node has arrived when
 * its turn comes, and is added up in the order in which it came: the sums follow from the program,
 * not from how the graph is walked. A heap holds the nodes that have a gradient, a table finds
 * them. Each node's operators run in a scope of their own; what flows on has the table's count. */
#include "core/autograd/engine.h"
#include "core/autograd/parts.h"

#include <etch/etch.h>

#include <stdlib.h>

#include "core/autograd/crossing.h"
#include "core/dispatch/call.h"
#include "core/transforms/tangent.h"

/* A node that has a gradient, or of which it is known whether it leads to a wanted input. */
typedef struct slot {
    tape_node *node;   /* counted */
    etch_tensor *grad; /* counted; NULL: nothing has arrived, or parts alone */
    gradient_parts parts;
    bool own; /* the gradient is this slot's alone: nobody else sees its storage */
    bool needed;
    int64_t order; /* in which it got its gradient: settles equal numbers */
} slot;

typedef struct engine {
    const backward_request *r;
    slot **table; /* by node, open addressing */
    int64_t ntable, nslots;
    slot **heap;
    int64_t nheap, heap_cap;
    int64_t order;
    etch_status status;
} engine;

/* ---- the table ---- */

static int64_t place_in_table(const engine *e, const tape_node *n) {
    uint64_t h = (uintptr_t)n * 0x9e3779b97f4a7c15u;
    int64_t i = (int64_t)(h >> 20) & (e->ntable - 1);
    while (e->table[i] && e->table[i]->node != n) i = (i + 1) & (e->ntable - 1);
    return i;
}

static bool grow_table(engine *e) {
    slot **old = e->table;
    int64_t n = e->ntable;
    slot **table = etch__calloc((size_t)(n ? 2 * n : 64), sizeof *table);
    if (!table) return false;
    e->table = table, e->ntable = n ? 2 * n : 64;
    for (int64_t i = 0; i < n; i++)
        if (old[i]) e->table[place_in_table(e, old[i]->node)] = old[i];
    etch__free(old);
    return true;
}

static slot *find_slot(const engine *e, const tape_node *n) {
    return e->ntable ? e->table[place_in_table(e, n)] : NULL;
}

/* NULL: out of memory. */
static slot *slot_of(engine *e, tape_node *n) {
    slot *s = find_slot(e, n);
    if (s) return s;
    if (2 * e->nslots >= e->ntable && !grow_table(e)) return NULL;
    if (!(s = etch__calloc(1, sizeof *s))) return NULL;
    s->node = n;
    etch__node_retain(n);
    e->table[place_in_table(e, n)] = s;
    e->nslots++;
    return s;
}

static void free_slots(engine *e) {
    for (int64_t i = 0; i < e->ntable; i++) {
        if (!e->table[i]) continue;
        etch_release(e->table[i]->grad);
        etch__parts_free(&e->table[i]->parts);
        etch__tape_release(e->table[i]->node);
        etch__free(e->table[i]);
    }
    etch__free(e->table);
    etch__free(e->heap);
}

/* ---- the heap: the largest number first, of equal ones who came first ---- */

static bool before(const slot *a, const slot *b) {
    if (a->node->number != b->node->number) return a->node->number > b->node->number;
    return a->order < b->order;
}

static void swap(slot **a, slot **b) {
    slot *t = *a;
    *a = *b, *b = t;
}

static bool push(engine *e, slot *s) {
    if (!etch__grow(&e->heap, &e->heap_cap, e->nheap + 1, sizeof *e->heap)) return false;
    s->order = e->order++;
    int64_t i = e->nheap++;
    e->heap[i] = s;
    for (; i && before(e->heap[i], e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&e->heap[i], &e->heap[(i - 1) / 2]);
    return true;
}

static slot *pop(engine *e) {
    slot *top = e->heap[0];
    e->heap[0] = e->heap[--e->nheap];
    for (int64_t i = 0, k; (k = 2 * i + 1) < e->nheap; i = k) {
        if (k + 1 < e->nheap && before(e->heap[k + 1], e->heap[k])) k++;
        if (!before(e->heap[k], e->heap[i])) break;
        swap(&e->heap[i], &e->heap[k]);
    }
    return top;
}

/* ---- gradients on their way ---- */

/* The dimensions over which g is summed to the shape: those that it has more, and those of size 1
 * there. */
static etch_dims extra_dims(const etch_tensor *g, const value_shape *shape) {
    etch_dims dims = {0};
    int more = g->ndim - shape->ndim;
    for (int d = 0; d < g->ndim; d++)
        if (d < more || (shape->size[d - more] == 1 && g->size[d] != 1)) dims.v[dims.n++] = d;
    return dims;
}

etch_tensor *etch__fit_gradient(etch_tensor *g, const value_shape *shape) {
    if (g->device != shape->device) g = etch_to_device(g, shape->device);
    etch_dims extra = g && !SAME_SIZES(g, shape) ? extra_dims(g, shape) : (etch_dims){0};
    if (extra.n) g = etch_sum_dim(g, extra, true);
    if (g && extra.n && g->ndim > shape->ndim) {
        etch_dims front = {.n = g->ndim};
        memcpy(front.v, g->size, sizeof g->size);
        front.n = shape->ndim;
        memmove(front.v, front.v + (g->ndim - shape->ndim), (size_t)shape->ndim * sizeof *front.v);
        g = etch_reshape(g, front);
    }
    if (g && !SAME_SIZES(g, shape)) g = etch_expand(g, etch__sizes_of(shape));
    if (g && g->dtype != shape->dtype) g = etch_to(g, (etch_dtype)shape->dtype);
    return g;
}

/* The gradient of a slot that has nothing but parts so far. */
static bool join_parts(slot *s) {
    if (!s->parts.n) return true;
    etch_tensor *g = etch__parts_sum(&s->parts, &s->node->out);
    if (!g) return false;
    s->grad = etch_retain(g), s->own = true;
    etch__parts_free(&s->parts);
    return true;
}

/* What flows to the node joins what has arrived there. own: nobody else sees g's storage. */
static bool arrive(engine *e, tape_node *to, etch_tensor *g, bool own) {
    slot *s = slot_of(e, to);
    if (!s || !join_parts(s)) return false;
    if (!s->grad) {
        s->grad = etch_retain(g), s->own = own;
        return push(e, s);
    }
    etch_tensor *sum = etch_add(s->grad, g);
    if (!sum) return false;
    etch_release(s->grad);
    s->grad = etch_retain(sum), s->own = true;
    return true;
}

/* The same with the gradient of a part. */
static bool arrive_part(engine *e, tape_node *to, const gradient_part *at, etch_tensor *g) {
    slot *s = slot_of(e, to);
    if (!s) return false;
    if (!s->grad) return (s->parts.n || push(e, s)) && etch__parts_add(&s->parts, at, g);
    gradient_parts one = {NULL};
    etch_tensor *whole = etch__parts_add(&one, at, g) ? etch__parts_sum(&one, &to->out) : NULL;
    etch__parts_free(&one);
    return whole && arrive(e, to, whole, true);
}

/* ---- what a node keeps ---- */

/* Gradients that the user sees lie in memory of their own. */
static etch_tensor *for_user(etch_tensor *g, bool own) {
    return own && !g->view && g->contiguous ? g : etch_clone(g);
}

/* Two threads may add to one leaf: what each takes out it puts back, with what came meanwhile. */
static bool put_back(tape_node *n, etch_tensor *grad) {
    etch_tensor *none = NULL;
    bool ok = true;
    while (!atomic_compare_exchange_strong(&n->grad, &none, grad)) {
        etch_tensor *other = atomic_exchange(&n->grad, NULL);
        if (other) ok &= etch_add_(grad, other) != NULL;
        etch_release(other);
        none = NULL;
    }
    return ok;
}

/* A leaf that all samples share cannot keep what each of them has of its own. */
static bool may_keep(const tape_node *n, const etch_tensor *g) {
    for (const etch_tensor *t = g; etch__is_batched(t); t = t->notes->inner)
        if (!etch__has_level(&n->out.levels, t->notes->level))
            return etch__false_at(NULL, ETCH_ERR_BATCHED,
                                  "etch_backward: in a function that etch_vmap maps, each sample "
                                  "has a gradient of its own for a tensor that comes from outside; "
                                  "etch_grad returns them");
    return true;
}

static bool keep(tape_node *n, etch_tensor *g, bool own, bool create) {
    if (!may_keep(n, g)) return false;
    etch_tensor *have = atomic_exchange(&n->grad, NULL);
    if (unlikely(have && have->failed)) { /* an earlier backward that failed late */
        etch_release(have);
        have = NULL;
    }
    bool anew = create || (have && !etch__holds(have, g));
    etch_tensor *now = !have ? for_user(g, own) : anew ? etch_add(have, g) : etch_add_(have, g);
    if (now && now != have) etch_retain(now), etch_release(have);
    return put_back(n, now ? now : have) && now;
}

/* What a hook returns for all samples is each one's. */
static etch_tensor *batched_like(etch_tensor *g, etch_tensor *before) {
    if (likely(etch__batched_as(g, before))) return g;
    return etch_copy_(etch_zeros_like(before), g);
}

static bool run_hooks(tape_node *n, slot *s) {
    for (int i = 0; i < n->nhooks; i++) {
        unsigned errors = etch__tls.errors;
        etch_tensor *g = n->hooks[i].call(n->hooks[i].ctx, s->grad);
        if (!g && etch__tls.errors != errors) return false;
        if (!g || g == s->grad) continue;
        if (!(g = etch__fit_gradient(g, &n->out)) || !(g = batched_like(g, s->grad))) return false;
        etch_retain(g);
        etch_release(s->grad);
        s->grad = g, s->own = false;
    }
    return true;
}

/* ---- running a node ---- */

static const char *line_of(const void *site) {
    const char *line = etch__site_line(site);
    return line && *line ? line : "an unknown line";
}

static const char *operator_of(const tape_node *n) {
    return etch__ops[n->part_of ? n->part_of - 1 : n->op].name;
}

static bool check_saved(const engine *e, const tape_node *n, int i) {
    const saved_value *v = &n->saved[i];
    if (!v->t || etch__has_recipe(v->t)) return true; /* nobody can write to the latter */
    if (!etch__handle_ok(v->t, operator_of(n), "a value that its derivative reads", e->r->site))
        return false;
    unsigned now = etch__version_of(v->t);
    if (likely(now == v->version)) return true;
    const void *where = NULL;
    op_id writer = v->t->storage ? etch__last_writer(v->t->storage, &where) : OP_COUNT;
    return etch__false_at(
        e->r->site, ETCH_ERR_MODIFIED,
        "the derivative of %s (%s) reads its %s, which was written in place meanwhile by "
        "%s (%s): expected version %u, got %u; compute from a copy (etch_clone), or "
        "write after backward",
        operator_of(n), line_of(n->site), i == n->nin ? "result" : etch__operand_name(n->op, i),
        where ? etch__ops[writer].name : "another operator", line_of(where), v->version, now);
}

static bool wants(const engine *e, const tape_node *n, int i) {
    if (!n->edge[i]) return false;
    const slot *s = e->r->ninputs ? find_slot(e, n->edge[i]) : NULL;
    return !e->r->ninputs || (s && s->needed);
}

static etch_tensor *recomputed(etch_tensor *t) {
    etch_tensor *p = etch__trace_hooks.recompute((etch_tensor *)etch__physical(t));
    if (!p || !etch__is_batched(t)) return p;
    etch_tensor *over = etch__rebatched(t, p);
    if (!over || etch__scope_push(over)) return over;
    etch__tensor_destroy(over);
    return NULL;
}

/* A saved value as the rule sees it: with its edge, where gradients of gradients are wanted. */
static etch_tensor *lend(const engine *e, tape_node *n, int i) {
    etch_tensor *t = n->saved[i].t;
    if (t && etch__has_recipe(t) && !(t = recomputed(t))) return NULL;
    if (t && !etch__carry_tangents(t, n->saved[i].t)) return NULL;
    if (!t || !e->r->create) return t;
    etch_tensor *const in[] = {t};
    op_call detach = {.op = OP_DETACH, .nin = 1, .in = in, .site = n->site};
    t = etch__operator_unseen(&detach);
    if (!t || !etch__carry_tangents(t, n->saved[i].t)) return NULL;
    tape_node *to = i == n->nin ? n : n->edge[i];
    return !to || etch__set_edge(t, to) ? t : NULL;
}

/* What a node passes on: gradients of its operands, to[0] maybe of a part. */
typedef struct passed {
    const bool *wanted;
    etch_tensor **to, **saved; /* saved: room for the operands and the result */
    gradient_part part;
} passed;

static bool run_rule(engine *e, tape_node *n, etch_tensor *grad, passed *p) {
    etch_tensor **saved = p->saved;
    const derivative *d = etch__derivative(n->op);
    if (!d)
        return etch__false_at(
            e->r->site, ETCH_ERR_NOT_DIFFERENTIABLE,
            "%s (%s) has no derivative: compute its operands from etch_detach, or "
            "call it in ETCH_NO_GRAD",
            operator_of(n), line_of(n->site));
    for (int i = 0; i <= n->nin; i++) {
        saved[i] = NULL;
        if (!check_saved(e, n, i)) return false;
        if (n->saved[i].t && !(saved[i] = lend(e, n, i))) return false;
    }
    const derivative_call call = {.grad = grad,
                                  .in = saved,
                                  .result = saved[n->nin],
                                  .sc = n->sc,
                                  .at = n->at,
                                  .shape = n->in,
                                  .outshape = &n->out,
                                  .places = n->lies,
                                  .nin = n->nin,
                                  .wants = p->wanted,
                                  .to = p->to,
                                  .part = &p->part,
                                  .op = n->op,
                                  .nsc = n->nsc,
                                  .nat = n->nat};
    if (d->rule) d->rule(&call);
    return true;
}

static bool run_kind(engine *e, tape_node *n, etch_tensor *grad, passed *p) {
    switch (n->kind) {
    case NODE_OPERATOR: return run_rule(e, n, grad, p);
    case NODE_RESTRIDE: return !p->wanted[0] || (p->to[0] = etch__grad_of_base(n, grad));
    case NODE_WRITE:
        if (p->wanted[1] && !(p->to[1] = etch__grad_of_view(n, grad))) return false;
        return !p->wanted[0] || (p->to[0] = etch__grad_beside_view(n, grad));
    case NODE_BATCH:
    case NODE_UNBATCH:
    case NODE_SHARED: return !p->wanted[0] || (p->to[0] = etch__grad_across(n, grad));
    default: return true;
    }
}

/* Whether the rule made g for one edge alone. */
static bool made_for_one(etch_tensor *const *to, int n, int i, const etch_tensor *grad) {
    bool own = to[i] != grad && !to[i]->view;
    for (int k = 0; own && k < n; k++) own = k == i || to[k] != to[i];
    return own;
}

static bool pass_on(engine *e, tape_node *n, etch_tensor *grad, const passed *p, unsigned errors) {
    etch_tensor **to = p->to;
    if (etch__tls.errors != errors) return false; /* an operator of the rule has failed */
    for (int i = 0; i < n->nin; i++) {
        if (!p->wanted[i] || !to[i]) continue;
        if (i == 0 && p->part.some) {
            etch_tensor *part = etch__leave_levels(to[i], &n->in[i]);
            if (!part || !arrive_part(e, n->edge[i], &p->part, part)) return false;
            continue;
        }
        bool own = made_for_one(to, n->nin, i, grad);
        etch_tensor *g = etch__fit_gradient(to[i], &n->in[i]);
        if (g) g = etch__leave_levels(g, &n->in[i]);
        if (!g || !arrive(e, n->edge[i], g, (own || g != to[i]) && !g->view)) return false;
    }
    return true;
}

static bool run_node(engine *e, slot *s) {
    tape_node *n = s->node;
    if (n->freed)
        return etch__false_at(
            e->r->site, ETCH_ERR_GRAPH_FREED,
            "backward ran through %s (%s) before, and freed what derivatives read: "
            "call the first one with retain_graph",
            operator_of(n), line_of(n->site));
    size_t count = (size_t)n->nin + 1;
    etch_tensor **to = etch__calloc(count, 2 * sizeof *to + sizeof(bool));
    if (!to) return false;
    bool *wanted = (bool *)(to + 2 * count), any = false;
    passed p = {.wanted = wanted, .to = to, .saved = to + count};
    for (int i = 0; i < n->nin; i++) any |= wanted[i] = wants(e, n, i);
    unsigned errors = etch__tls.errors;
    bool ok = !any || (run_kind(e, n, s->grad, &p) && pass_on(e, n, s->grad, &p, errors));
    etch__free(to);
    if (ok && any && !e->r->retain && !e->r->create) etch__node_free_saved(n);
    return ok;
}

/* A node's gradient is there: whoever wants to see it, then its operands. */
static bool visit(engine *e, slot *s) {
    tape_node *n = s->node;
    if (n->nhooks && !run_hooks(n, s)) return false;
    bool own = s->own && n->kind == NODE_LEAF;
    for (int i = 0; i < e->r->ninputs; i++) {
        if (e->r->inputs[i] != n) continue;
        etch_tensor *g = for_user(s->grad, own);
        if (!g) return false;
        e->r->grads[i] = etch_retain(g);
        own = false;
    }
    bool keeps = !e->r->ninputs && (n->kind == NODE_LEAF || n->retains);
    if (keeps && !keep(n, s->grad, s->own && n->kind == NODE_LEAF, e->r->create)) return false;
    return n->kind == NODE_LEAF || run_node(e, s);
}

/* ---- what leads to the wanted inputs ---- */

static int rising(const void *a, const void *b) {
    uint64_t x = (*(slot *const *)a)->node->number, y = (*(slot *const *)b)->node->number;
    return x < y ? -1 : x > y;
}

typedef struct slot_list {
    slot **v;
    int64_t n, cap;
} slot_list;

/* Those of the nodes that are not on the list yet. */
static bool add_new(engine *e, slot_list *list, tape_node *const *nodes, int n) {
    for (int i = 0; i < n; i++) {
        if (!nodes[i] || find_slot(e, nodes[i])) continue;
        slot *s = slot_of(e, nodes[i]);
        if (!s || !etch__grow(&list->v, &list->cap, list->n + 1, sizeof *list->v)) return false;
        list->v[list->n++] = s;
    }
    return true;
}

/* The slots of all nodes that can be reached. */
static bool reach(engine *e, slot_list *list) {
    if (!add_new(e, list, e->r->outputs, e->r->n)) return false;
    for (int64_t i = 0; i < list->n; i++)
        if (!add_new(e, list, list->v[i]->node->edge, list->v[i]->node->nin)) return false;
    return true;
}

/* A node leads to an input if one of its operands does; those have smaller numbers. */
static void mark_needed(const engine *e, slot *s) {
    const tape_node *n = s->node;
    for (int k = 0; k < n->nin && !s->needed; k++)
        s->needed = n->edge[k] && find_slot(e, n->edge[k])->needed;
}

static bool find_needed(engine *e) {
    slot_list list = {0};
    bool ok = reach(e, &list);
    if (ok) qsort(list.v, (size_t)list.n, sizeof *list.v, rising);
    for (int i = 0; ok && i < e->r->ninputs; i++) {
        slot *s = find_slot(e, e->r->inputs[i]);
        if (s) s->needed = true;
    }
    for (int64_t i = 0; ok && i < list.n; i++) mark_needed(e, list.v[i]);
    etch__free(list.v);
    return ok;
}

/* ---- the run ---- */

static etch_tensor *ones(const value_shape *like) {
    etch_tensor *t = NULL;
    ETCH_ON(like->device) t = etch_ones((etch_dtype)like->dtype, etch__sizes_of(like));
    return t;
}

static bool begin(engine *e, tape_node *output, etch_tensor *seed) {
    bool ok = false;
    ETCH_SCOPE {
        if (!seed) seed = ones(&output->out);
        ok = seed && arrive(e, output, seed, false);
    }
    return ok;
}

static bool run(engine *e) {
    if (e->r->ninputs && !find_needed(e)) return false;
    for (int i = 0; i < e->r->n; i++) {
        const slot *s = e->r->ninputs ? find_slot(e, e->r->outputs[i]) : NULL;
        if (e->r->ninputs && !(s && s->needed)) continue;
        if (!begin(e, e->r->outputs[i], e->r->seeds[i])) return false;
    }
    while (e->nheap) {
        slot *s = pop(e);
        bool ok = false;
        ETCH_SCOPE
            ok = join_parts(s) && visit(e, s);
        etch_release(s->grad);
        s->grad = NULL;
        if (!ok) return false;
    }
    return true;
}

/* Operators of rules are noted only where gradients of gradients are wanted, and stand at the
 * line of the backward call. */
static etch_status run_request(void *ctx) {
    const backward_request *request = ctx;
    engine e = {.r = request};
    uint64_t state = etch__tls.state;
    etch__tls.backwards++;
    etch__tls.backward_depth++;
    const op_call *composite = etch__tls.composite;
    etch__tls.composite = NULL;
    if (request->create) etch__tls.state &= ~(uint64_t)STATE_NO_GRAD;
    else etch__tls.state |= STATE_NO_GRAD;
    bool ok = run(&e);
    etch__tls.state = (etch__tls.state & ~(uint64_t)STATE_NO_GRAD) | (state & STATE_NO_GRAD);
    etch__tls.composite = composite;
    etch__tls.backward_depth--;
    free_slots(&e);
    if (!ok && etch__tls.status == ETCH_OK)
        return etch__error_at(request->site, ETCH_ERR_INTERNAL, "backward failed without a reason");
    return ok ? ETCH_OK : etch__tls.status;
}

/* What a compiled function has made is run backward compiled, too; within one, as a part of it. */
etch_status etch__run_backward(backward_request *request) {
    bool inside = etch__tls.run || etch__tls.nlevels;
    grad_origin *origin = inside ? NULL : request->outputs[0]->origin;
    return origin ? etch__trace_hooks.backward(origin, run_request, request) : run_request(request);
}
