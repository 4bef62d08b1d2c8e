/* Recipes: which of the values that tapes keep a segment produces, and how the others are computed
 * again. See recipe.h.
 *
 * A minimum cut. Each storage of the segment is a node whose capacity is its bytes: the cost of
 * keeping it. What cannot be computed again, or costs much, hangs on the source; what tapes read
 * hangs on the sink; operators lead from operands to results. The storages of the cut are kept, all
 * that the sink needs follows from them. Of several smallest cuts the one nearest to the sink is
 * taken, which repeats least. Computing again gives the same bits, so the choice cannot be seen. */
#include "tracer/trace/recipe.h"

enum { MOST_STEPS = 24 }; /* in a row, to get back what was not kept */
#define NO_LIMIT (INT64_MAX / 4)

/* ---- what may be computed again ---- */

static const tensor_meta *meta_of(const trace_node *n, const input_case *sizes) {
    return sizes ? &sizes->metas[n->c.out] : &n->meta;
}

static int64_t bytes_of(const tensor_meta *m) {
    int64_t n = (int64_t)etch_dtype_size(m->dtype);
    for (int d = 0; d < m->ndim; d++) n *= m->size[d];
    return n + 64; /* and its header, so that nothing is free */
}

/* A function of its operands that costs little and may be called twice. */
static bool is_repeatable(const trace_node *n) {
    const op_info *op = &etch__ops[n->op];
    if (etch__op_is_users(n->op) || op->flags & (OPF_MAY_FAIL | OPF_RANDOM | OPF_EFFECTS))
        return false;
    return op->kind == KIND_POINTWISE || op->kind == KIND_VIEW || op->kind == KIND_CREATION;
}

/* ---- the network ---- */

/* Nodes 2v and 2v + 1 are the way into a storage and out of it; then source and sink. Edges lie in
 * pairs, the second one back. */
typedef struct network {
    int nnodes, nedges;
    int32_t *first, *next, *to;
    int64_t *room; /* left on the edge */
    int32_t *queue, *by;
} network;

static void free_network(network *g) {
    etch__free(g->first);
    etch__free(g->room);
}

static bool new_network(network *g, int nodes, int edges) {
    g->nnodes = nodes, g->nedges = 0;
    g->first = etch__malloc(((size_t)nodes * 3 + (size_t)edges * 4) * sizeof *g->first);
    g->room = etch__malloc((size_t)edges * 2 * sizeof *g->room);
    if (!g->first || !g->room) {
        free_network(g);
        return false;
    }
    g->queue = g->first + nodes, g->by = g->queue + nodes;
    g->next = g->by + nodes, g->to = g->next + 2 * edges;
    for (int i = 0; i < nodes; i++) g->first[i] = -1;
    return true;
}

static void add_edge(network *g, int from, int to, int64_t room) {
    for (int back = 0; back < 2; back++) {
        int e = g->nedges++;
        g->to[e] = back ? from : to;
        g->room[e] = back ? 0 : room;
        g->next[e] = g->first[back ? to : from];
        g->first[back ? to : from] = e;
    }
}

/* The edge by which each node is reached from `start`, -1 where it is not; against the edges, those
 * from which `start` is reached. */
static void reach(network *g, int start, bool against) {
    int head = 0, tail = 0;
    for (int i = 0; i < g->nnodes; i++) g->by[i] = -1;
    g->by[start] = -2;
    g->queue[tail++] = start;
    while (head < tail)
        for (int e = g->first[g->queue[head++]]; e >= 0; e = g->next[e]) {
            if (!g->room[against ? e ^ 1 : e] || g->by[g->to[e]] != -1) continue;
            g->by[g->to[e]] = e;
            g->queue[tail++] = g->to[e];
        }
}

/* Until nothing more flows. */
static void fill(network *g, int source, int sink) {
    for (reach(g, source, false); g->by[sink] >= 0; reach(g, source, false)) {
        int64_t flow = NO_LIMIT;
        for (int n = sink; n != source; n = g->to[g->by[n] ^ 1])
            if (g->room[g->by[n]] < flow) flow = g->room[g->by[n]];
        for (int n = sink; n != source; n = g->to[g->by[n] ^ 1])
            g->room[g->by[n]] -= flow, g->room[g->by[n] ^ 1] += flow;
    }
}

/* ---- the segment as a network ---- */

typedef struct choice {
    const trace_leaf *leaf;
    const input_case *sizes;
    uint8_t *wanted; /* WANT_ bits of each base */
    uint8_t *depth;  /* of each base: how many operators in a row lead to it */
    uint8_t *made;   /* whether an operator of the segment makes the base */
    int64_t all;     /* bytes that only tapes want */
} choice;

static void collect(choice *c) {
    const trace_leaf *leaf = c->leaf;
    for (int v = 0; v < leaf->nvalues; v++) c->wanted[leaf->base[v]] |= leaf->want[v];
    for (int i = 0; i < leaf->npath; i++) {
        int32_t v = leaf->path[i]->c.out;
        if (!leaf->path[i]->c.inplace && leaf->base[v] == v) c->made[v] = 1;
    }
}

/* Of no argument, captured tensor or result: the program may have written those meanwhile, where
 * eager code would have kept what was computed from them. */
static bool is_private(const choice *c, int32_t base) {
    return c->made[base] && !(c->wanted[base] & WANT_VALUE);
}

/* Whether n's result is fixed: it is kept if it is needed. */
static bool is_fixed(choice *c, const trace_node *n) {
    int32_t v = n->c.out;
    int depth = 0;
    if (c->wanted[v] & WANT_VALUE || c->leaf->tainted[v] || !is_repeatable(n)) return true;
    for (int k = 0; k < n->nin; k++) {
        int32_t b = n->in[k] < 0 ? -1 : c->leaf->base[n->in[k]];
        if (b < 0 || !is_private(c, b)) return true;
        if (c->depth[b] > depth) depth = c->depth[b];
    }
    if (depth >= MOST_STEPS) return true;
    c->depth[v] = (uint8_t)(depth + 1);
    return false;
}

static void connect(choice *c, network *g, const trace_node *n) {
    int32_t v = n->c.out, source = 2 * c->leaf->nvalues;
    int64_t bytes = c->wanted[v] & WANT_VALUE ? 0 : bytes_of(meta_of(n, c->sizes));
    bool fixed = is_fixed(c, n), tapes = c->wanted[v] == WANT_SAVED;
    add_edge(g, 2 * v, 2 * v + 1, bytes);
    if (fixed) add_edge(g, source, 2 * v, NO_LIMIT);
    for (int k = 0; !fixed && k < n->nin; k++)
        add_edge(g, 2 * c->leaf->base[n->in[k]] + 1, 2 * v, NO_LIMIT);
    if (tapes) add_edge(g, 2 * v + 1, source + 1, NO_LIMIT);
    if (tapes) c->all += bytes;
}

/* Bytes of the cut, and which storages are in it. */
static int64_t cut(const choice *c, network *g, uint8_t *keep) {
    int64_t bytes = 0;
    reach(g, 2 * c->leaf->nvalues + 1, true);
    for (int i = 0; i < c->leaf->npath; i++) {
        const trace_node *n = c->leaf->path[i];
        int32_t v = n->c.out;
        if (n->c.inplace || c->leaf->base[v] != v) continue;
        keep[v] = g->by[2 * v + 1] != -1 && g->by[2 * v] == -1;
        if (keep[v] && !(c->wanted[v] & WANT_VALUE)) bytes += bytes_of(meta_of(n, c->sizes));
    }
    return bytes;
}

static bool solve(choice *c, uint8_t *keep, int64_t *bytes) {
    network g;
    int edges = 3;
    for (int i = 0; i < c->leaf->npath; i++) edges += c->leaf->path[i]->nin + 3;
    if (!new_network(&g, 2 * c->leaf->nvalues + 2, edges)) return false;
    c->all = 0;
    memset(c->depth, 0, (size_t)c->leaf->nvalues);
    for (int i = 0; i < c->leaf->npath; i++) {
        const trace_node *n = c->leaf->path[i];
        if (c->made[n->c.out] && !n->c.inplace) connect(c, &g, n);
    }
    fill(&g, 2 * c->leaf->nvalues, 2 * c->leaf->nvalues + 1);
    *bytes = cut(c, &g, keep);
    free_network(&g);
    return true;
}

/* What somebody holds is kept; and, without a recipe, what tapes want. */
static void keep_wanted(const choice *c, uint8_t bits, uint8_t *keep) {
    for (int v = 0; v < c->leaf->nvalues; v++) keep[v] |= (c->wanted[v] & bits) != 0;
}

bool etch__choose_kept(const trace_leaf *leaf, const input_case *sizes, double budget,
                       uint8_t *keep) {
    size_t nv = (size_t)leaf->nvalues;
    choice c = {.leaf = leaf, .sizes = sizes};
    bool any = false;
    for (int v = 0; v < leaf->nvalues; v++) any |= leaf->want[v] == WANT_SAVED;
    c.wanted = etch__calloc(3 * nv + 1, 1);
    if (!c.wanted) return false;
    c.depth = c.wanted + nv, c.made = c.depth + nv;
    collect(&c);
    int64_t bytes = 0;
    bool ok = !any || budget >= 1 || solve(&c, keep, &bytes);
    bool pays = any && budget < 1 && bytes < c.all;
    if (!pays) memset(keep, 0, nv);
    keep_wanted(&c, pays ? WANT_VALUE : WANT_VALUE | WANT_SAVED, keep);
    etch__free(c.wanted);
    return ok;
}

/* ---- the recipe ---- */

void etch__recipe_release(recipe *r) {
    if (r && atomic_fetch_sub(&r->refs, 1) == 1) etch__free(r);
}

/* Values that are read and not made by the steps. Of a view of what is kept the view is a step. */
static bool is_source(const trace_leaf *leaf, const uint8_t *keep, int32_t v) {
    return leaf->base[v] == v && keep[v];
}

/* Marks, from the back, the nodes that give what tapes want and nobody keeps (1), and what these
 * read (2). */
static int mark(const trace_leaf *leaf, const uint8_t *keep, uint8_t *need) {
    int steps = 0;
    for (int i = 0; i < leaf->npath; i++) /* of what operators here have made */
        if (!leaf->path[i]->c.inplace) need[leaf->path[i]->c.out] = 4;
    for (int v = 0; v < leaf->nvalues; v++) {
        int32_t b = leaf->base[v];
        need[v] |= leaf->want[v] == WANT_SAVED && need[b] & 4 && !keep[b];
    }
    for (int v = 0; v < leaf->nvalues; v++) need[v] &= 3;
    for (int i = leaf->npath - 1; i >= 0; i--) {
        const trace_node *n = leaf->path[i];
        if (n->c.inplace || !need[n->c.out] || is_source(leaf, keep, n->c.out)) continue;
        steps++;
        for (int k = 0; k < n->nin; k++)
            if (n->in[k] >= 0) need[n->in[k]] |= 2;
    }
    return steps;
}

static recipe *alloc_recipe(const trace_leaf *leaf, int steps) {
    size_t nin = 0, nat = 0, nv = (size_t)leaf->nvalues;
    for (int i = 0; i < leaf->npath; i++) nin += leaf->path[i]->nin, nat += leaf->path[i]->nat;
    recipe *r = etch__calloc(1, sizeof *r + (size_t)steps * sizeof(recipe_step) +
                                    nv * (sizeof(tensor_meta) + sizeof(int32_t) + 1) +
                                    nin * sizeof(int32_t) + nat * sizeof(int64_t));
    if (!r) return NULL;
    atomic_init(&r->refs, 1);
    r->nvalues = leaf->nvalues, r->nscalars = leaf->nscalars;
    r->steps = (recipe_step *)(r + 1);
    r->lies = (tensor_meta *)(r->steps + steps);
    r->at = (int64_t *)(r->lies + nv);
    r->source = (int32_t *)(r->at + nat);
    r->in = r->source + nv;
    r->recomputed = (uint8_t *)(r->in + nin);
    return r;
}

static void add_step(recipe *r, const trace_node *n, const int64_t *ints, int32_t **in,
                     int64_t **at) {
    recipe_step *s = &r->steps[r->nsteps++];
    s->call = etch__node_call(ints, n);
    s->state = n->c.state;
    s->out = n->c.out, s->sc = n->c.sc;
    memcpy(*at, s->call.at, n->nat * sizeof **at);
    memcpy(*in, n->in, n->nin * sizeof **in);
    s->call.at = *at, s->in = *in;
    *at += n->nat, *in += n->nin;
}

static void add_sources(recipe *r, const trace_leaf *leaf, const input_case *sizes,
                        const uint8_t *need) {
    for (int i = 0; i < leaf->npath; i++) {
        const trace_node *n = leaf->path[i];
        int32_t v = n->c.out;
        if (n->c.inplace || !(need[v] & 2) || r->recomputed[v] || leaf->base[v] != v) continue;
        r->lies[r->nsources] = *meta_of(n, sizes);
        r->source[r->nsources++] = v;
    }
}

bool etch__recipe_make(const trace_leaf *leaf, const input_case *sizes, const uint8_t *keep,
                       recipe **made) {
    uint8_t *need = etch__calloc((size_t)leaf->nvalues + 1, 1);
    if (!need) return false;
    int steps = mark(leaf, keep, need);
    recipe *r = steps ? alloc_recipe(leaf, steps) : NULL;
    if (r) {
        int32_t *in = r->in;
        int64_t *at = r->at;
        for (int i = 0; i < leaf->npath; i++) {
            const trace_node *n = leaf->path[i];
            if (n->c.inplace || !need[n->c.out] || is_source(leaf, keep, n->c.out)) continue;
            add_step(r, n, sizes ? sizes->ints : NULL, &in, &at);
            r->recomputed[n->c.out] = need[n->c.out] & 1 ? 1 : 2;
        }
        add_sources(r, leaf, sizes, need);
    }
    etch__free(need);
    *made = r;
    return !steps || r != NULL;
}
