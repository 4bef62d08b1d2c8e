/* Trees of traces: nodes, generations, finding the tree of a call.
 *
 * Readers walk without locks; a node is complete before a release store links it. Writers hold the
 * function's lock. */
#include "tracer/trace/tree.h"
#include "core/dispatch/mode.h"
#include "guards/call.h"

/* ---- nodes ---- */

trace_node *etch__node_new(const op_call *call, uint64_t state) {
    size_t at_bytes = call->nat * sizeof(int64_t), in_bytes = call->nin * sizeof(int32_t);
    trace_node *n = etch__calloc(1, sizeof *n + at_bytes + in_bytes);
    if (!n) return NULL;
    int64_t *at = (int64_t *)(n + 1);
    if (call->nat) memcpy(at, call->at, at_bytes);
    n->in = (int32_t *)(at + call->nat);
    n->op = call->op, n->nin = call->nin, n->nsc = call->nsc, n->nat = call->nat;
    n->site = etch__user_site(call->site, NULL);
    n->part_of = call->part_of;
    n->c.key = etch__call_key(call->op, call->nin, call->nsc, call->nat);
    n->c.state = state;
    n->c.at = at;
    n->c.inplace = etch__ops[call->op].kind == KIND_INPLACE;
    for (int i = 0; i < call->nsc; i++) n->c.kind[i] = (uint8_t)call->sc[i].kind;
    return n;
}

void etch__node_free(trace_node *n) {
    if (!n) return;
    etch__free(n->captures);
    etch__free(n);
}

static bool same_node(const trace_node *a, const trace_node *b) {
    return etch__same_cursor_node(&a->c, &b->c) &&
           (!a->nin || !memcmp(a->in, b->in, a->nin * sizeof(int32_t))) &&
           a->ncaptures == b->ncaptures &&
           etch__same_captures(a->captures, b->captures, a->ncaptures, a->dynamic);
}

trace_node *etch__find_child(const trace_node *at, const trace_node *like) {
    for (trace_node *n = at->child; n; n = n->sibling)
        if (n->c.key != CURSOR_END && same_node(n, like)) return n;
    return NULL;
}

trace_node *etch__find_end(const trace_node *at, reason_id end) {
    for (trace_node *n = at->child; n; n = n->sibling)
        if (n->c.key == CURSOR_END && n->end == end) return n;
    return NULL;
}

/* ---- generations and trees ---- */

trace_parts etch__trace_parts;

generation *etch__generation_new(void) {
    generation *g = etch__calloc(1, sizeof *g);
    if (g) g->epoch = atomic_load(&etch__override_epoch);
    return g;
}

static void free_leaf(trace_leaf *leaf) {
    for (segment_code *c = leaf->code, *next; c; c = next) {
        next = c->next;
        etch__plan_release(c->plan);
        etch__code_free(c);
    }
    etch__free(leaf);
}

void etch__tree_free(trace_tree *t) {
    for (int i = 0; i < SPARE_WALKS; i++) etch__trace_parts.free_walk(t->spare[i].walk);
    etch__entry_free(&t->guard);
    etch__free(t);
}

static void free_trees(trace_tree *t) {
    while (t) {
        trace_tree *next = t->next;
        etch__tree_free(t);
        t = next;
    }
}

void etch__generation_free(generation *g) {
    if (!g) return;
    free_trees(g->entries);
    free_trees(g->resumes);
    for (int64_t i = 0; i < g->nleaves; i++) free_leaf(g->leaves[i]);
    for (int64_t i = 0; i < g->nnodes; i++) etch__node_free(g->nodes[i]);
    etch__trace_parts.free_constants(g->constants);
    etch__trace_parts.free_replays(g->replays);
    atomic_fetch_sub(&etch__live_graphs, g->graphs);
    etch__free(g->leaves);
    etch__free(g->nodes);
    etch__free(g);
}

static trace_tree *entry_that_fits(generation *g, etch_tensor *const *in, int nin, bool dynamic) {
    trace_tree *t = atomic_load_explicit(&g->entries, memory_order_acquire);
    while (t && (t->guard.dynamic != dynamic || !etch__entry_holds(&t->guard, in, nin)))
        t = t->next;
    return t;
}

trace_tree *etch__find_entry(generation *g, etch_tensor *const *in, int nin) {
    trace_tree *t = entry_that_fits(g, in, nin, false);
    return t ? t : entry_that_fits(g, in, nin, true);
}

bool etch__similar_entry(generation *g, etch_tensor *const *in, int nin) {
    for (trace_tree *t = atomic_load_explicit(&g->entries, memory_order_acquire); t; t = t->next)
        if (etch__entry_fits(&t->guard, in, nin, FIT_SIMILAR)) return true;
    return false;
}

trace_tree *etch__find_resume(generation *g, const op_call *call, uint64_t state) {
    trace_tree *list = atomic_load_explicit(&g->resumes, memory_order_acquire);
    for (trace_tree *t = list; t; t = t->next) {
        const trace_node *first = t->root.child;
        if (first && etch__same_call(&first->c, call, state)) return t;
    }
    for (trace_tree *t = list; t; t = t->next) {
        const trace_node *first = t->root.child;
        if (first && etch__similar_call(&first->c, call, state)) return t;
    }
    return NULL;
}
