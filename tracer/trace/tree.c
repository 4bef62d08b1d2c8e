/* Trees of traces: nodes, finding the tree of a call, publishing a recording.
 *
 * Readers walk without locks; a node is complete before a release store links it. Writers hold the
 * function's lock. */
#include "core/dispatch/mode.h"
#include "core/ops/schema.h"
#include "tracer/tell/report.h"
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

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

bool etch__same_call(const trace_node *n, const op_call *call, uint64_t state) {
    if (n->c.key != etch__call_key(call->op, call->nin, call->nsc, call->nat)) return false;
    if (n->c.state != state) return false;
    for (int i = 0; i < call->nsc; i++)
        if (n->c.kind[i] != call->sc[i].kind) return false;
    return !call->nat || !memcmp(n->c.at, call->at, call->nat * sizeof(int64_t));
}

/* The first attribute word that differs and is no run-time value, -1 without one. Nor is the class
 * of a scalar static: it selects other instructions, in code that is made for these values. */
static int static_difference(op_id op, const int64_t *a, const int64_t *b) {
    const op_schema *s = etch__schema(op);
    int k = 0;
    for (int i = 0; i < s->nargs; i++) {
        const schema_arg *arg = &s->args[i];
        if (arg->type == ARG_TENSOR || arg->type == ARG_TENSOR_OPT || arg->type == ARG_TENSORS ||
            arg->type == ARG_SCALAR)
            continue;
        bool list = arg->type == ARG_INTS || arg->type == ARG_INTS_OPT;
        int words = list && a[k] > 0 ? 1 + (int)a[k] : 1;
        if (list && a[k] != b[k]) return k;
        for (int j = 0; !arg->run_time && j < words; j++)
            if (a[k + j] != b[k + j]) return k + j;
        k += words;
    }
    return -1;
}

static bool similar_attributes(op_id op, const int64_t *a, const int64_t *b) {
    return static_difference(op, a, b) < 0;
}

int etch__static_difference(const trace_node *n, const op_call *call) {
    if (n->op != call->op || n->nin != call->nin || n->nat != call->nat) return -1;
    return static_difference(n->op, n->c.at, call->at);
}

bool etch__similar_call(const trace_node *n, const op_call *call, uint64_t state) {
    uint64_t key = etch__call_key(call->op, call->nin, call->nsc, call->nat);
    if ((n->c.key & ~CURSOR_DYNAMIC) != key || n->c.state != state) return false;
    for (int i = 0; i < call->nsc; i++)
        if (n->c.kind[i] != call->sc[i].kind) return false;
    return similar_attributes(n->op, n->c.at, call->at);
}

static bool same_class(const tensor_meta *a, const tensor_meta *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && a->device == b->device;
}

static bool same_guard(const tensor_meta *a, const tensor_meta *b) {
    size_t dims = a->ndim * sizeof(int64_t);
    return same_class(a, b) && !memcmp(a->size, b->size, dims) &&
           !memcmp(a->stride, b->stride, dims);
}

static bool same_fixed_sizes(const capture *a, const capture *b) {
    for (int d = 0; d < a->guard.ndim; d++)
        if (a->fixed >> d & 1 && a->guard.size[d] != b->guard.size[d]) return false;
    return a->fixed == b->fixed;
}

/* Of a dynamic node only dtype, rank, device and sizes that are marked static count. */
static bool same_captured(const trace_node *n, const capture *a, const capture *b) {
    if (!n->dynamic) return same_guard(&a->guard, &b->guard);
    return same_class(&a->guard, &b->guard) && same_fixed_sizes(a, b);
}

static bool same_captures(const trace_node *a, const trace_node *b) {
    if (a->ncaptures != b->ncaptures) return false;
    for (int i = 0; i < a->ncaptures; i++)
        if (a->captures[i].value != b->captures[i].value ||
            a->captures[i].operand != b->captures[i].operand ||
            !same_captured(a, &a->captures[i], &b->captures[i]))
            return false;
    return true;
}

static bool same_attributes(const trace_node *a, const trace_node *b) {
    if (!a->nat) return true;
    if (a->dynamic) return similar_attributes(a->op, a->c.at, b->c.at);
    return !memcmp(a->c.at, b->c.at, a->nat * sizeof(int64_t));
}

static bool same_node(const trace_node *a, const trace_node *b) {
    return a->c.key == b->c.key && a->c.state == b->c.state &&
           !memcmp(a->c.kind, b->c.kind, sizeof a->c.kind) && same_attributes(a, b) &&
           (!a->nin || !memcmp(a->in, b->in, a->nin * sizeof(int32_t))) && same_captures(a, b);
}

static trace_node *find_child(const trace_node *at, const trace_node *like) {
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

generation *etch__generation_new(void) {
    generation *g = etch__calloc(1, sizeof *g);
    if (g) g->epoch = atomic_load(&etch__override_epoch);
    return g;
}

static void free_codes(segment_code *c) {
    while (c) {
        segment_code *next = c->next;
        etch__plan_release(c->plan);
        etch__free(c->key);
        etch__free(c);
        c = next;
    }
}

static void free_tree(trace_tree *t) {
    for (int i = 0; i < SPARE_WALKS; i++) etch__walk_free(t->spare[i].walk);
    etch__free(t->guards);
    etch__free(t->guarded);
    etch__free(t->marks);
    etch__free(t);
}

static void free_trees(trace_tree *t) {
    while (t) {
        trace_tree *next = t->next;
        free_tree(t);
        t = next;
    }
}

void etch__generation_free(generation *g) {
    if (!g) return;
    free_trees(g->entries);
    free_trees(g->resumes);
    for (int64_t i = 0; i < g->nleaves; i++) {
        free_codes(g->leaves[i]->code);
        etch__free(g->leaves[i]);
    }
    for (int64_t i = 0; i < g->nnodes; i++) etch__node_free(g->nodes[i]);
    etch__constants_free(g->constants);
    etch__replay_free(g->replays);
    atomic_fetch_sub(&etch__live_graphs, g->graphs);
    etch__free(g->leaves);
    etch__free(g->nodes);
    etch__free(g);
}

/* FIT_RANK: whatever the sizes are, but for marks. FIT_SIMILAR: it could be so, had it been
 * recorded with run-time sizes. */
typedef enum fit { FIT_EXACT, FIT_RANK, FIT_SIMILAR } fit;

static bool argument_fits(const trace_tree *t, int i, const etch_tensor *x, fit how) {
    const tensor_meta *g = &t->guards[i];
    if (how == FIT_EXACT) return etch__guard_holds(g, x) && !etch__marked_dynamic(x);
    if (!etch__guard_holds_rank(g, x)) return false;
    if (how == FIT_SIMILAR) return etch__fixed_sizes_agree(g, x);
    return likely(!t->marks && !x->marks) || etch__marks_hold(t->marks ? &t->marks[i] : NULL, g, x);
}

static bool arguments_fit(const trace_tree *t, etch_tensor *const *in, int nin, fit how) {
    if (t->nargs != nin) return false;
    for (int i = 0; i < nin; i++)
        if (t->guarded[i] && !argument_fits(t, i, in[i], how)) return false;
    return true;
}

static bool reads(trace_node *const *path, int64_t npath, int32_t v) {
    for (int64_t i = 0; i < npath; i++)
        for (int k = 0; k < path[i]->nin; k++)
            if (path[i]->in[k] == v) return true;
    return false;
}

int etch__path_inputs(trace_node *const *path, int64_t npath, int nargs, int32_t *inputs,
                      int *nread) {
    int n = 0;
    for (int32_t v = 0; v < nargs; v++)
        if (reads(path, npath, v)) inputs[n++] = v;
    *nread = n;
    for (int64_t i = 0; i < npath; i++)
        for (int k = 0; k < path[i]->ncaptures; k++) inputs[n++] = path[i]->captures[k].value;
    return n;
}

/* The values of a recording that had no tree are those of one that guards all that it reads. */
static bool guards_what_it_reads(const trace_tree *t, const trace_walk *w) {
    for (int i = 0; i < w->nargs; i++)
        if (!t->guarded[i] && reads(w->path, w->npath, i)) return false;
    return true;
}

/* w: the recording that is to go into the tree, or NULL. */
static trace_tree *entry_tree(generation *g, etch_tensor *const *in, int nin, bool dynamic,
                              const trace_walk *w) {
    fit how = dynamic ? FIT_RANK : FIT_EXACT;
    for (trace_tree *t = atomic_load_explicit(&g->entries, memory_order_acquire); t; t = t->next)
        if (t->dynamic == dynamic && arguments_fit(t, in, nin, how) &&
            (!w || guards_what_it_reads(t, w)))
            return t;
    return NULL;
}

trace_tree *etch__find_entry(generation *g, etch_tensor *const *in, int nin) {
    trace_tree *t = entry_tree(g, in, nin, false, NULL);
    return t ? t : entry_tree(g, in, nin, true, NULL);
}

bool etch__similar_entry(generation *g, etch_tensor *const *in, int nin) {
    for (trace_tree *t = atomic_load_explicit(&g->entries, memory_order_acquire); t; t = t->next)
        if (arguments_fit(t, in, nin, FIT_SIMILAR)) return true;
    return false;
}

trace_tree *etch__find_resume(generation *g, const op_call *call, uint64_t state) {
    trace_tree *list = atomic_load_explicit(&g->resumes, memory_order_acquire);
    for (trace_tree *t = list; t; t = t->next) {
        const trace_node *first = t->root.child;
        if (first && etch__same_call(first, call, state)) return t;
    }
    for (trace_tree *t = list; t; t = t->next) {
        const trace_node *first = t->root.child;
        if (first && etch__similar_call(first, call, state)) return t;
    }
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

static bool copy_marks(const trace_walk *w, trace_tree *t) {
    for (int i = 0; i < w->nargs; i++) {
        const dim_marks *m = w->c.value[i]->marks;
        if (!m) continue;
        if (!t->marks && !(t->marks = etch__calloc((size_t)w->nargs, sizeof *t->marks)))
            return false;
        t->marks[i] = *m;
    }
    return true;
}

/* A new tree, not yet on a list. */
static trace_tree *new_tree(trace_walk *w, bool entry) {
    trace_tree *t = etch__aligned_zeroed(sizeof *t);
    if (!t) return NULL;
    t->gen = w->run->gen;
    t->entry = entry;
    t->nargs = w->nargs;
    t->number = t->gen->ntrees;
    t->dynamic = entry && w->dynamic_entry;
    t->root.nvalues = w->nargs;
    if (!entry) return t;
    t->guards = etch__calloc((size_t)w->nargs + 1, sizeof *t->guards);
    t->guarded = etch__calloc((size_t)w->nargs + 1, 1);
    if (!t->guards || !t->guarded || (t->dynamic && !copy_marks(w, t))) {
        free_tree(t);
        return NULL;
    }
    for (int i = 0; i < w->nargs; i++) {
        etch__guard_make(w->c.value[i], &t->guards[i]);
        t->guarded[i] = reads(w->path, w->npath, i);
    }
    return t;
}

static trace_tree *find_tree(trace_walk *w, bool entry) {
    if (w->tree) return w->tree;
    if (entry) return entry_tree(w->run->gen, w->c.value, w->nargs, w->dynamic_entry, w);
    return resume_tree_like(w->run->gen, w->path[0]);
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

/* A value is tainted if its own storage, or one it was computed from, is written anywhere in the
 * segment: computing it again later would see other memory. Inputs over one storage (alias) are
 * written together. */
void etch__find_tainted(const trace_leaf *leaf, const int32_t *alias, uint8_t *tainted) {
    for (int v = 0; v < leaf->nvalues; v++)
        if (leaf->written[v]) tainted[leaf->writes_inputs ? alias[v] : v] = 1;
    for (int v = 0; v < leaf->nvalues; v++) {
        int32_t base = leaf->base[v];
        tainted[v] |= tainted[base] | (leaf->writes_inputs && tainted[alias[base]]);
    }
    for (int i = 0; i < leaf->npath; i++) {
        const trace_node *n = leaf->path[i];
        for (int k = 0; k < n->nin; k++)
            if (n->in[k] >= 0) tainted[n->c.out] |= tainted[n->in[k]];
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
    leaf->site = w->end_site;
    leaf->dynamic = w->dynamic;
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
        trace_node *same = i < w->shared ? w->path[i] : find_child(at, w->path[i]);
        if (!same) break;
        if (i >= w->shared) etch__node_free(w->path[i]);
        at = w->path[i] = same;
    }
    w->shared = i;
    return i;
}

/* Room on the generation's list for what will be linked, and the end node; nothing is linked yet.
 */
static trace_node *prepare_end(trace_walk *w, generation *g) {
    int64_t need = g->nnodes + (w->npath - w->shared) + 1;
    if (!etch__grow(&g->nodes, &g->nodes_cap, need, sizeof *g->nodes)) return NULL;
    trace_node *end = etch__calloc(1, sizeof *end);
    if (!end) return NULL;
    end->c.key = CURSOR_END;
    end->end = w->end;
    end->c.id = INT32_MAX;
    end->nvalues = (int32_t)w->nvalues, end->nscalars = (int32_t)w->nscalars;
    end->nints = (int32_t)w->nints;
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

atomic_int etch__live_graphs;

static bool too_many_graphs(void) {
    return etch__live_graphs >= etch__param_int(PARAM_GRAPH_LIMIT);
}

/* Once a process: it is nobody's fault in particular. */
static bool first_without_graphs(void) {
    static atomic_bool warned;
    return !atomic_exchange(&warned, true);
}

/* Whether the root may get no more alternatives: all entries together are one root, and so is each
 * first operator after a break. The first one turned away is to be warned about, by the caller,
 * when it has let go of the function's lock. */
bool etch__at_limit(trace_run *r, trace_tree *tree) {
    bool entry = !tree || tree->entry;
    _Atomic bool *limited = entry ? &r->gen->entry_limited : &tree->limited;
    int limit = r->f->options.recompile_limit > 0 ? r->f->options.recompile_limit : 8;
    int leaves = entry ? r->gen->entry_leaves : tree->nleaves;
    if (!*limited && leaves < limit && !too_many_graphs()) return false;
    r->warn_graphs = leaves < limit;
    if (!*limited && !atomic_exchange(&r->gen->warned, true))
        r->warn_limit = !r->warn_graphs || first_without_graphs();
    return *limited = true;
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
    raise_maximum(&tree->max_ints, w->nints);
    for (int64_t i = w->shared; i < w->npath; i++) w->path[i]->c.id = tree->nnodes++;
    trace_leaf *leaf = new_leaf(w, tree);
    if (!leaf) {
        etch__free(end);
        return NULL;
    }
    end->leaf = leaf, leaf->end = end;
    link_suffix(w, tree, end);
    tree->nleaves++;
    if (tree->entry && w->npath) tree->gen->entry_leaves++;
    return leaf;
}

static int64_t bytes_of(const trace_walk *w, int32_t v) {
    return w->c.value[v]->numel * etch__item_size(w->c.value[v]);
}

/* Alive at the break, and gone behind it unless it is produced. */
static bool is_at_stake(const trace_leaf *leaf, const trace_walk *w, int32_t v) {
    return v < w->want_cap && w->want[v] == WANT_LIVE && leaf->tainted[v] && !leaf->want[v];
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
    etch__find_tainted(leaf, w->alias, leaf->tainted);
    if (copying_is_less(leaf, w)) leaf->lean = true;
    for (int v = 0; v < leaf->nvalues && v < w->want_cap; v++) {
        bool wanted = w->want[v] & WANT_VALUE || (!leaf->lean && is_at_stake(leaf, w, v));
        if (wanted && !leaf->want[v]) leaf->want[v] = 1, leaf->stale = true;
    }
}

/* A differing recording of the same root restarts the count of stable_after. */
static void count_recording(trace_leaf *leaf) {
    generation *g = leaf->tree->gen;
    for (int64_t i = 0; i < g->nleaves; i++)
        if (g->leaves[i] != leaf && g->leaves[i]->tree == leaf->tree && !g->leaves[i]->codes)
            g->leaves[i]->recorded = 0;
    leaf->recorded++;
}

trace_leaf *etch__publish(trace_walk *w) {
    trace_run *r = w->run;
    generation *g = r->gen;
    bool entry = w->entry;
    if (r->f->gen != g || (!entry && !w->npath)) return NULL;
    trace_tree *tree = find_tree(w, entry), *fresh = NULL;
    if (!tree && !w->npath) return NULL; /* nothing to compile: not even an entry */
    if (!tree && !(tree = fresh = new_tree(w, entry))) return NULL;
    w->tree = NULL;
    int64_t known = merge_prefix(w, tree);
    trace_node *at = known ? w->path[known - 1] : &tree->root;
    trace_node *end = known == w->npath ? etch__find_end(at, w->end) : NULL;
    trace_leaf *leaf = end ? end->leaf : NULL;
    if (!leaf && !w->npath && entry)
        leaf = add_leaf(w, tree), leaf ? (void)tree->ncompiled++ : (void)0;
    else if (!leaf && etch__at_limit(r, fresh && entry ? NULL : tree)) leaf = NULL;
    else if (!leaf) leaf = add_leaf(w, tree);
    if (fresh && !leaf) {
        free_tree(fresh);
        return NULL;
    }
    if (fresh) {
        _Atomic(trace_tree *) *list = entry ? &g->entries : &g->resumes;
        fresh->next = *list;
        g->ntrees++;
        atomic_store_explicit(list, fresh, memory_order_release);
    }
    w->tree = tree;
    if (!leaf) return NULL;
    merge_want(leaf, w);
    if (!w->published) count_recording(leaf);
    if (etch__report_on() && !w->published) etch__report_published(r->f, leaf);
    return leaf;
}
