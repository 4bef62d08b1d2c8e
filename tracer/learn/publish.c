/* Publishing: an ended recording becomes a path of its tree, and its end a leaf. */
#include "tracer/learn/learn.h"
#include "tracer/tell/report.h"

/* ---- trees ---- */

/* The values of a recording that had no tree are those of one that guards all that it reads. */
static bool guards_what_it_reads(const trace_tree *t, const trace_walk *w) {
    for (int i = 0; i < w->nargs; i++)
        if (!t->guard.read[i] && etch__path_reads(w->path, w->npath, i)) return false;
    return true;
}

static trace_tree *entry_tree_like(generation *g, const trace_walk *w) {
    for (trace_tree *t = g->entries; t; t = t->next)
        if (t->guard.dynamic == w->rec.dynamic_entry &&
            etch__entry_holds(&t->guard, w->c.value, w->nargs) && guards_what_it_reads(t, w))
            return t;
    return NULL;
}

static trace_tree *resume_tree_like(generation *g, const trace_node *first) {
    op_call call = {.op = first->op,
                    .nin = first->nin,
                    .nsc = first->nsc,
                    .nat = first->nat,
                    .at = first->c.at};
    etch_scalar kinds[OP_MAX_SCALARS];
    for (int i = 0; i < first->nsc; i++) kinds[i].kind = (etch_scalar_kind)first->c.kind[i];
    call.sc = kinds;
    return etch__find_resume(g, &call, first->c.state);
}

static trace_tree *find_tree(generation *g, const trace_walk *w) {
    if (w->tree) return w->tree;
    return w->entry ? entry_tree_like(g, w) : resume_tree_like(g, w->path[0]);
}

/* A new tree, not yet on a list. */
static trace_tree *new_tree(generation *g, const trace_walk *w) {
    trace_tree *t = etch__aligned_zeroed(sizeof *t);
    if (!t) return NULL;
    t->gen = g;
    t->entry = w->entry;
    t->number = g->ntrees;
    t->root.nvalues = w->nargs;
    if (!w->entry) return t;
    if (!etch__entry_make(&t->guard, w->c.value, w->nargs, w->rec.dynamic_entry)) {
        etch__tree_free(t);
        return NULL;
    }
    for (int i = 0; i < w->nargs; i++) t->guard.read[i] = etch__path_reads(w->path, w->npath, i);
    return t;
}

static void list_tree(generation *g, trace_tree *t) {
    _Atomic(trace_tree *) *list = t->entry ? &g->entries : &g->resumes;
    t->next = *list;
    g->ntrees++;
    atomic_store_explicit(list, t, memory_order_release);
}

/* ---- leaves ---- */

/* One block holds the leaf and its arrays. */
static trace_leaf *alloc_leaf(const trace_walk *w) {
    size_t nv = (size_t)w->nvalues, np = (size_t)w->npath;
    size_t bytes = sizeof(trace_leaf) + np * (sizeof(trace_node *) + sizeof(path_step)) +
                   nv * (sizeof(int64_t) + 2 * sizeof(int32_t) + 3);
    trace_leaf *leaf = etch__calloc(1, bytes);
    if (!leaf) return NULL;
    leaf->path = (trace_node **)(leaf + 1);
    leaf->steps = (path_step *)(leaf->path + np);
    leaf->offset = (int64_t *)(leaf->steps + np);
    leaf->inputs = (int32_t *)(leaf->offset + nv);
    leaf->base = leaf->inputs + nv;
    leaf->want = (uint8_t *)(leaf->base + nv);
    leaf->tainted = leaf->want + nv;
    leaf->written = leaf->tainted + nv;
    leaf->npath = (int)np, leaf->nvalues = (int)nv;
    leaf->nscalars = (int)w->nscalars, leaf->nargs = w->nargs;
    return leaf;
}

/* Bases along views, and which storages the segment writes. */
static void find_bases(trace_leaf *leaf) {
    for (int v = 0; v < leaf->nvalues; v++) leaf->base[v] = v;
    for (int i = 0; i < leaf->npath; i++) {
        const trace_node *n = leaf->path[i];
        if (etch__ops[n->op].kind == KIND_VIEW) {
            leaf->base[n->c.out] = leaf->base[n->in[0]];
            leaf->offset[n->c.out] = leaf->offset[n->in[0]] + n->meta.offset;
        }
        if (n->c.inplace) leaf->written[leaf->base[n->in[0]]] = 1;
        if (!n->c.inplace) leaf->steps[leaf->nsteps++] = (path_step){n->c.id, n->c.out};
    }
}

static void find_inputs(trace_leaf *leaf) {
    int nread;
    leaf->ninputs = etch__path_inputs(leaf->path, leaf->npath, leaf->nargs, leaf->inputs, &nread);
    leaf->bound = leaf->inputs + nread;
    leaf->nbound = leaf->ninputs - nread;
    for (int k = 0; k < leaf->ninputs; k++) leaf->writes_inputs |= leaf->written[leaf->inputs[k]];
}

static trace_leaf *new_leaf(const trace_walk *w, trace_tree *tree) {
    generation *g = tree->gen;
    if (!etch__grow(&g->leaves, &g->leaves_cap, g->nleaves + 1, sizeof *g->leaves)) return NULL;
    trace_leaf *leaf = alloc_leaf(w);
    if (!leaf) return NULL;
    leaf->tree = tree;
    leaf->site = w->end.site;
    leaf->dynamic = w->rec.dynamic;
    if (w->npath) memcpy(leaf->path, w->path, (size_t)w->npath * sizeof *w->path);
    find_bases(leaf);
    find_inputs(leaf);
    g->leaves[g->nleaves++] = leaf;
    return leaf;
}

/* ---- publishing ---- */

static void link_child(trace_node *parent, trace_node *n) {
    n->parent = parent;
    n->sibling = parent->child;
    atomic_store_explicit(&parent->child, n, memory_order_release);
    atomic_store_explicit(&parent->c.next, &n->c, memory_order_release);
}

/* How much of the recording the tree has already: its nodes take the recording's places. */
static int64_t merge_prefix(trace_walk *w, trace_tree *tree) {
    trace_node *at = &tree->root;
    int64_t i = 0;
    for (; i < w->npath; i++) {
        trace_node *same = i < w->shared ? w->path[i] : etch__find_child(at, w->path[i]);
        if (!same) break;
        if (i >= w->shared) etch__node_free(w->path[i]);
        at = w->path[i] = same;
    }
    w->shared = i;
    return i;
}

/* Room on the generation's list for what will be linked, and the end node; nothing is linked. */
static trace_node *prepare_end(trace_walk *w, generation *g) {
    int64_t need = g->nnodes + (w->npath - w->shared) + 1;
    if (!etch__grow(&g->nodes, &g->nodes_cap, need, sizeof *g->nodes)) return NULL;
    trace_node *end = etch__calloc(1, sizeof *end);
    if (!end) return NULL;
    end->c.key = CURSOR_END;
    end->end = w->end.why;
    end->c.id = INT32_MAX;
    end->nvalues = (int32_t)w->nvalues, end->nscalars = (int32_t)w->nscalars;
    end->nints = (int32_t)w->seen.nints;
    return end;
}

/* Links the suffix and its end. The end goes first and the topmost new node last, so that a reader
 * who meets any new node finds all that follows it. */
static void link_suffix(trace_walk *w, trace_tree *tree, trace_node *end) {
    generation *g = tree->gen;
    trace_node *at = w->shared ? w->path[w->shared - 1] : &tree->root;
    trace_node *child = end;
    for (int64_t i = w->npath - 1; i >= w->shared; i--) {
        link_child(w->path[i], child);
        child = w->path[i];
        g->nodes[g->nnodes++] = child;
    }
    g->nodes[g->nnodes++] = end;
    link_child(at, child);
    w->shared = w->npath;
}

static void raise_maximum(_Atomic int32_t *max, int64_t value) {
    if (*max < value) *max = (int32_t)value;
}

static trace_leaf *add_leaf(trace_walk *w, trace_tree *tree) {
    trace_node *end = prepare_end(w, tree->gen);
    if (!end) return NULL;
    /* A walk sized for the ids that it sees given out is large enough for their values, too. */
    raise_maximum(&tree->max_values, w->nvalues);
    raise_maximum(&tree->max_scalars, w->nscalars);
    raise_maximum(&tree->max_ints, w->seen.nints);
    for (int64_t i = w->shared; i < w->npath; i++) w->path[i]->c.id = tree->nnodes++;
    trace_leaf *leaf = new_leaf(w, tree);
    if (!leaf) {
        etch__free(end);
        return NULL;
    }
    end->leaf = leaf, leaf->end = end;
    link_suffix(w, tree, end);
    if (w->npath) etch__limit_of(tree->gen, tree)->leaves++;
    return leaf;
}

static int64_t bytes_of(const trace_walk *w, int32_t v) {
    return w->c.value[v]->numel * etch__item_size(w->c.value[v]);
}

/* Alive at the break, and gone behind it unless it is produced. */
static bool is_at_stake(const trace_leaf *leaf, const trace_walk *w, int32_t v) {
    return v < w->rec.want_cap && w->rec.want[v] == WANT_LIVE && leaf->tainted[v] && !leaf->want[v];
}

/* Whether a copy of what the segment writes (it is read and written) moves fewer bytes than results
 * that are alive by chance. Bases stand for their views; each counts once. */
static bool copying_is_less(const trace_leaf *leaf, const trace_walk *w) {
    int64_t copied = 0, produced = 0;
    for (int32_t v = 0; v < leaf->nvalues; v++) {
        bool input = v < leaf->nargs;
        for (int k = 0; k < leaf->nbound; k++) input |= leaf->bound[k] == v;
        if (input && leaf->written[v]) copied += bytes_of(w, v);
        if (!input && leaf->base[v] == v && is_at_stake(leaf, w, v)) produced += bytes_of(w, v);
    }
    return 2 * copied < produced;
}

/* Wanted values of this recording on top of those known. */
static void merge_want(trace_leaf *leaf, const trace_walk *w) {
    etch__find_tainted(leaf, w->seen.alias, leaf->tainted);
    if (copying_is_less(leaf, w)) leaf->lean = true;
    for (int v = 0; v < leaf->nvalues && v < w->rec.want_cap; v++) {
        uint8_t wanted = w->rec.want[v] & (WANT_VALUE | WANT_SAVED);
        if (!leaf->lean && is_at_stake(leaf, w, v)) wanted |= WANT_VALUE;
        if (!(wanted & ~leaf->want[v])) continue;
        leaf->want[v] |= wanted;
        leaf->stale = true;
    }
}

/* A differing recording of the same root restarts the count of stable_after. */
static void count_recording(trace_leaf *leaf) {
    generation *g = leaf->tree->gen;
    for (int64_t i = 0; i < g->nleaves; i++)
        if (g->leaves[i] != leaf && g->leaves[i]->tree == leaf->tree && !g->leaves[i]->codes)
            g->leaves[i]->times_recorded = 0;
    leaf->times_recorded++;
}

/* The leaf at the recording's end, which the tree has or gets; NULL: the limit, or no memory. */
static trace_leaf *leaf_of(etch_function *f, trace_walk *w, trace_tree *tree,
                           limit_warning *warning) {
    int64_t known = merge_prefix(w, tree);
    trace_node *at = known ? w->path[known - 1] : &tree->root;
    trace_node *end = known == w->npath ? etch__find_end(at, w->end.why) : NULL;
    if (end) return end->leaf;
    if (!w->npath && w->entry) {
        trace_leaf *leaf = add_leaf(w, tree);
        tree->ncompiled += leaf != NULL; /* there is nothing to compile */
        return leaf;
    }
    int most = etch__recompile_limit(&f->options);
    if (etch__at_limit(etch__limit_of(tree->gen, tree), most, &tree->gen->warned, warning))
        return NULL;
    return add_leaf(w, tree);
}

trace_leaf *etch__publish(etch_function *f, generation *g, trace_walk *w, limit_warning *warning) {
    if (f->gen != g || (!w->entry && !w->npath)) return NULL;
    trace_tree *tree = find_tree(g, w), *fresh = NULL;
    if (!tree && !w->npath) return NULL; /* nothing to compile: not even an entry */
    if (!tree && !(tree = fresh = new_tree(g, w))) return NULL;
    w->tree = NULL;
    trace_leaf *leaf = leaf_of(f, w, tree, warning);
    if (fresh && !leaf) {
        etch__tree_free(fresh);
        return NULL;
    }
    if (fresh) list_tree(g, fresh);
    w->tree = tree;
    if (!leaf) return NULL;
    merge_want(leaf, w);
    if (w->rec.published) return leaf;
    count_recording(leaf);
    if (etch__report_on()) etch__report_published(f, leaf);
    return leaf;
}
