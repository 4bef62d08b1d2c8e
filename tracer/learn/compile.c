/* From a leaf to compiled code: its path becomes a graph, the backend a plan. */
#include "core/base/profile.h"
#include "tracer/learn/learn.h"
#include "tracer/trace/recipe.h"
#include "tracer/tell/event.h"
#include "tracer/tell/report.h"

#include <time.h>

/* ---- the graph ---- */

/* What building the graph needs: the graph's number of each trace value, -1 while it has none. */
typedef struct builder {
    const trace_leaf *leaf;
    const input_case *sizes; /* of a dynamic leaf: for which the code is; else NULL */
    graph *g;
    int32_t *number;
    uint8_t *keep; /* per base: whether its storage is produced */
    segment_code *code;
} builder;

static bool add_input(builder *b, int32_t v, const tensor_meta *guard) {
    if (guard->dtype == ETCH_DTYPE_COUNT) return true; /* ETCH_NONE is no input */
    int number = etch__graph_add_input(b->g, guard);
    if (number < 0) return false;
    b->number[v] = number;
    b->code->in[b->code->nin++] = v;
    /* Inputs over one storage share their base, so that writes to one order reads of the other. */
    for (int i = 0; b->leaf->writes_inputs && i < b->code->nin; i++)
        if (b->code->alias[b->code->in[i]] == b->code->alias[v]) {
            b->g->values[number].base = b->number[b->code->in[i]];
            break;
        }
    return true;
}

static bool add_inputs(builder *b) {
    const trace_leaf *leaf = b->leaf;
    for (const int32_t *v = leaf->inputs; v < leaf->bound; v++)
        if (!add_input(b, *v, b->sizes ? &b->sizes->metas[*v] : &leaf->tree->guard.meta[*v]))
            return false;
    for (int i = 0; i < leaf->npath; i++)
        for (int k = 0; k < leaf->path[i]->ncaptures; k++) {
            const capture *c = &leaf->path[i]->captures[k];
            if (!add_input(b, c->value, b->sizes ? &b->sizes->metas[c->value] : &c->guard))
                return false;
        }
    return true;
}

/* The node's call, which the graph copies. */
static int add_call(const builder *b, const op_call *call, const trace_node *n,
                    const tensor_meta *meta) {
    int32_t few[16], *operands = n->nin <= COUNT_OF(few) ? few : NULL;
    if (!operands && !(operands = etch__malloc(n->nin * sizeof *operands))) return -1;
    for (int i = 0; i < n->nin; i++) operands[i] = b->number[n->in[i]];
    int number = etch__graph_add_node(b->g, call, operands, meta);
    if (operands != few) etch__free(operands);
    return number;
}

static bool add_node(builder *b, const trace_node *n) {
    const int64_t *ints = b->sizes ? b->sizes->ints : NULL;
    etch_scalar kinds[OP_MAX_SCALARS] = {0};
    for (int i = 0; i < n->nsc; i++) kinds[i].kind = (etch_scalar_kind)n->c.kind[i];
    op_call call = etch__node_call(ints, n);
    call.sc = kinds;
    tensor_meta meta = n->meta;
    int64_t *offset = b->code->offset;
    if (b->sizes) meta = b->sizes->metas[n->c.out];
    if (etch__ops[n->op].kind == KIND_VIEW)
        offset[n->c.out] = offset[n->in[0]] + etch__view_offset(ints, n);
    meta.offset = offset[n->c.out];
    int number = add_call(b, &call, n, &meta);
    if (number < 0) return false;
    /* MXCSR is the plan's, and kernels note nothing in any case. */
    b->g->nodes[number].state = (uint32_t)n->c.state & ~STATE_NO_GRAD;
    b->number[n->c.out] = b->g->nodes[number].out;
    return true;
}

/* A wanted value needs its base's storage, unless that is an input's. */
static bool add_outputs(builder *b) {
    const trace_leaf *leaf = b->leaf;
    segment_code *code = b->code;
    for (int v = 0; v < leaf->nvalues; v++) {
        int32_t base = leaf->base[v];
        bool input = b->number[base] < 0 || b->g->values[b->number[base]].node < 0;
        code->slot[v] = input ? OUT_INPUT : OUT_MISSING;
        for (int i = 0; i < code->nout && !input; i++)
            if (code->out[i] == base) code->slot[v] = i;
        if (input || !b->keep[base] || code->slot[v] >= 0) continue;
        if (!etch__graph_add_output(b->g, b->number[base])) return false;
        code->slot[v] = code->nout;
        code->out[code->nout++] = base;
    }
    /* Values met before their base was wanted by another. */
    for (int v = 0; v < leaf->nvalues; v++)
        for (int i = 0; i < code->nout && code->slot[v] == OUT_MISSING; i++)
            if (code->out[i] == leaf->base[v]) code->slot[v] = i;
    return true;
}

/* What a run looks at in the end: temporaries, of which none may be alive, and what is produced. */
static void sort_made(const trace_leaf *leaf, segment_code *code) {
    for (int produced = 0; produced < 2; produced++) {
        code->nmissing = produced ? code->nmade : 0;
        for (int i = 0; i < leaf->nsteps; i++) {
            int32_t v = leaf->steps[i].out;
            if ((code->slot[v] != OUT_MISSING) == produced) code->made[code->nmade++] = v;
        }
    }
}

static segment_code *new_code(const trace_leaf *leaf, const int32_t *alias) {
    size_t nv = (size_t)leaf->nvalues;
    size_t each = sizeof(int64_t) + 5 * sizeof(int32_t) + 1;
    segment_code *c = etch__calloc(1, sizeof *c + nv * each);
    if (!c) return NULL;
    atomic_store(&c->refs, 1);
    c->offset = (int64_t *)(c + 1);
    c->in = (int32_t *)(c->offset + nv);
    c->out = c->in + nv;
    c->slot = c->out + nv;
    c->alias = c->slot + nv;
    c->made = c->alias + nv;
    c->tainted = (uint8_t *)(c->made + nv);
    for (int v = 0; v < leaf->nvalues; v++) c->alias[v] = leaf->writes_inputs ? alias[v] : v;
    etch__find_tainted(leaf, c->alias, c->tainted);
    return c;
}

/* The graph of a leaf, and where its inputs and outputs are in the trace. */
static graph *build_graph(const trace_leaf *leaf, const input_case *seen, const char *name,
                          double budget, segment_code *code) {
    size_t nv = (size_t)leaf->nvalues + 1;
    builder b = {leaf, leaf->dynamic ? seen : NULL, etch__graph_new(name), NULL, NULL, code};
    b.number = etch__malloc(nv * sizeof *b.number);
    b.keep = etch__calloc(nv, 1);
    bool ok = b.g && b.number && b.keep && etch__choose_kept(leaf, b.sizes, budget, b.keep) &&
              etch__recipe_make(leaf, b.sizes, b.keep, &code->recipe);
    if (ok) b.g->dynamic = leaf->dynamic;
    if (ok && leaf->npath) b.g->any_mode = STATE_FP(leaf->path[0]->c.state) != 0;
    for (int v = 0; ok && v < leaf->nvalues; v++) b.number[v] = -1;
    ok = ok && add_inputs(&b);
    for (int i = 0; ok && i < leaf->npath; i++) ok = add_node(&b, leaf->path[i]);
    ok = ok && add_outputs(&b);
    if (ok) sort_made(leaf, code);
    etch__free(b.number);
    etch__free(b.keep);
    if (ok) return b.g;
    etch__graph_free(b.g);
    return NULL;
}

/* ---- compiling ---- */

static void log_graph(const etch_function *f, const trace_leaf *leaf, const graph *g) {
    log_channel kind = f->backward   ? LOG_BACKWARD_GRAPH
                       : leaf->joint ? LOG_JOINT_GRAPH
                       : leaf->noted ? LOG_FORWARD_GRAPH
                                     : LOG_GRAPH;
    if (!etch__log_on(LOG_GRAPH) && !etch__log_on(kind)) return;
    char *text = etch__graph_text(g);
    if (text && etch__log_on(LOG_GRAPH)) etch__log(LOG_GRAPH, "%s", text);
    if (text && kind != LOG_GRAPH && etch__log_on(kind)) etch__log(kind, "%s", text);
    etch__free(text);
}

/* Bytes of what the code produces for tapes alone: each storage once. */
static int64_t saved_bytes(const trace_leaf *leaf, const segment_code *code, const graph *g) {
    int64_t bytes = 0;
    for (int i = 0; leaf->noted && i < code->nout; i++) {
        uint8_t wanted = 0;
        const tensor_meta *m = &g->values[g->outputs[i]].meta;
        int64_t n = (int64_t)etch_dtype_size(m->dtype);
        for (int d = 0; d < m->ndim; d++) n *= m->size[d];
        for (int v = 0; v < leaf->nvalues; v++)
            if (leaf->base[v] == code->out[i]) wanted |= leaf->want[v];
        if (!(wanted & WANT_VALUE)) bytes += n;
    }
    return bytes;
}

static void count_graph(etch_function *f, const trace_leaf *leaf) {
    TRACE_COUNT(f, graphs, 1);
    TRACE_COUNT(f, graph_nodes, leaf->npath);
    int alternatives = etch__limit_of(leaf->tree->gen, leaf->tree)->leaves;
    if (alternatives > 1 || leaf->codes > 1) TRACE_COUNT(f, recompiles, 1);
}

enum { MAX_INSTANCES = 64 };

/* Of a dynamic leaf the oldest code goes: it is taken off the list. */
static segment_code *take_oldest(trace_leaf *leaf) {
    segment_code *last = leaf->code;
    while (last->next->next) last = last->next;
    segment_code *oldest = last->next;
    last->next = NULL;
    leaf->instances--;
    return oldest;
}

/* What is missing: a graph (the first, or with more outputs), only code for these sizes, or what is
 * to come in place of provisional code. */
typedef enum missing { NOTHING, INSTANCE, BETTER, GRAPH } missing;

/* Newer code goes first. Of a leaf with fixed sizes what was there stays, since runs that hold no
 * count may be using it. */
static void publish_code(etch_function *f, trace_leaf *leaf, segment_code *code, bool new_graph) {
    segment_code *oldest = NULL;
    pthread_mutex_lock(&f->lock);
    leaf->provisional = code->plan->provisional;
    code->next = atomic_load_explicit(&leaf->code, memory_order_relaxed);
    atomic_store_explicit(&leaf->code, code, memory_order_release);
    if (leaf->dynamic && ++leaf->instances > MAX_INSTANCES) oldest = take_oldest(leaf);
    if (new_graph) {
        if (leaf->codes++ == 0) leaf->tree->ncompiled++;
        leaf->tree->gen->graphs++;
        etch__live_graphs++;
        count_graph(f, leaf);
    } else {
        TRACE_COUNT(f, instances, 1);
    }
    pthread_mutex_unlock(&f->lock);
    /* Without the lock, since a user's backend is told; a run that holds a count frees it. */
    etch__code_release(leaf, oldest);
}

/* Only in place of the code that was the newest when its graph was built. The leaf has fixed sizes:
 * products of other graphs join nothing, so those have no provisional code. */
static void publish_better(etch_function *f, trace_leaf *leaf, segment_code *code) {
    pthread_mutex_lock(&f->lock);
    bool newest = leaf->code == code->next && !leaf->stale;
    if (newest) {
        leaf->provisional = false;
        atomic_store_explicit(&leaf->code, code, memory_order_release);
    }
    pthread_mutex_unlock(&f->lock);
    if (newest) return;
    etch__plan_release(code->plan);
    etch__code_free(code);
}

static bool copy_key(segment_code *code, const input_case *seen) {
    code->key = etch__malloc((size_t)(seen->nkey + 1) * sizeof *code->key);
    if (!code->key) return false;
    memcpy(code->key, seen->key, (size_t)seen->nkey * sizeof *code->key);
    code->nkey = seen->nkey;
    return true;
}

static void note_graph(etch_function *f, const trace_leaf *leaf, const char *name, const plan *p,
                       int64_t saved, double seconds) {
    char *guards = etch__guards_text(leaf);
    if (guards) etch__log(LOG_GUARDS, "%s: %s", name, guards);
    if (leaf->noted && !leaf->joint)
        etch__log(LOG_FORWARD_GRAPH, "%s: %lld bytes are saved for backward", name,
                  (long long)saved);
    etch__note_graph(f, &(story_graph){.name = (char *)name,
                                       .guards = guards,
                                       .operators = leaf->npath,
                                       .kernels = p->nkernels,
                                       .products = p->nmatmuls,
                                       .seconds = seconds,
                                       .saved_bytes = saved});
}

/* A caller that waits is content with a provisional plan; what is to better it is no such plan. */
static backend_options options_for(const compile_request *q, missing m) {
    bool waits = q->by == COMPILE_FOR_CALL;
    return (backend_options){.mode = q->f->options.mode,
                             .numerics = q->f->options.numerics,
                             .instance = m != GRAPH,
                             .quick = waits && etch__param_int(PARAM_COMPILE_BESIDE),
                             .strict = m == BETTER};
}

/* "step/0"; further graphs under the root are "step/0.1" and so on. */
static void name_graph(etch_function *f, trace_leaf *leaf, bool new_graph, char *name, size_t n) {
    pthread_mutex_lock(&f->lock);
    if (new_graph) leaf->graph = leaf->tree->ngraphs++;
    int root = leaf->tree->number, further = leaf->graph;
    pthread_mutex_unlock(&f->lock);
    int used = snprintf(name, n, "%.60s/%d", f->name, root);
    if (further) snprintf(name + used, n - (size_t)used, ".%d", further);
}

/* The graph, and code without a plan yet. */
static graph *prepare(const compile_request *q, missing m, const char *name, segment_code **code) {
    trace_leaf *leaf = q->leaf;
    *code = new_code(leaf, q->seen->alias);
    if (*code && leaf->dynamic && !copy_key(*code, q->seen)) etch__code_free(*code), *code = NULL;
    pthread_mutex_lock(&q->f->lock);
    graph *g = *code ? build_graph(leaf, q->seen, name, q->f->options.memory_budget, *code) : NULL;
    if (g && m == BETTER) (*code)->next = leaf->code;
    else if (g) leaf->stale = false, (*code)->version = leaf->version += m == GRAPH;
    pthread_mutex_unlock(&q->f->lock);
    if (!g) etch__code_free(*code);
    return g;
}

static segment_code *compile(const compile_request *q, missing m) {
    char name[96];
    segment_code *code;
    name_graph(q->f, q->leaf, m == GRAPH, name, sizeof name);
    graph *g = prepare(q, m, name, &code);
    if (!g) return NULL;
    if (m == GRAPH) log_graph(q->f, q->leaf, g);
    double before = 1e-9 * (double)etch__now();
    backend_options options = options_for(q, m);
    int64_t profile = etch__profile_start();
    int64_t saved = saved_bytes(q->leaf, code, g);
    bool reported = etch__report_on() && etch__report_compiling(q->leaf, g, m == INSTANCE);
    if (unlikely(reported)) etch__report_saved(saved);
    etch_status status = etch__backend_compile(q->f->backend, g, &options, &code->plan);
    if (unlikely(reported) && m == BETTER && status != ETCH_OK) etch__report_drop_graph();
    else if (unlikely(reported)) etch__report_compiled(q->leaf, code, status);
    etch__profile_end_event(ETCH_PROFILE_COMPILE, profile, g->name, NULL);
    etch__graph_free(g);
    if (status != ETCH_OK) {
        etch__code_free(code);
        return NULL;
    }
    if (m != GRAPH) return code;
    TRACE_COUNT(q->f, saved_bytes, saved);
    note_graph(q->f, q->leaf, name, code->plan, saved, 1e-9 * (double)etch__now() - before);
    return code;
}

static bool instance_is_there(const compile_request *q) {
    pthread_mutex_lock(&q->f->lock);
    segment_code *code = etch__find_instance(q->leaf, q->seen);
    pthread_mutex_unlock(&q->f->lock);
    etch__code_release(q->leaf, code);
    return code != NULL;
}

static missing what_is_missing(const compile_request *q) {
    trace_leaf *leaf = q->leaf;
    pthread_mutex_lock(&q->f->lock);
    bool stale = leaf->stale || !leaf->codes, provisional = leaf->provisional;
    pthread_mutex_unlock(&q->f->lock);
    if (q->by == COMPILE_BETTER) return provisional && !stale ? BETTER : NOTHING;
    if (stale) return GRAPH;
    if (leaf->dynamic) return instance_is_there(q) ? NOTHING : INSTANCE;
    for (const segment_code *c = leaf->code; c; c = c->next)
        if (etch__alias_fits(leaf, c, q->seen->alias)) return NOTHING;
    return GRAPH;
}

bool etch__code_missing(const compile_request *q) { return what_is_missing(q) != NOTHING; }

/* Whether this thread is compiling: what callbacks and backends call is compiled, too. */
static __thread bool compiling __attribute__((tls_model("initial-exec")));

/* A caller that need not wait for the thread in the background does not; inside a compile one that
 * waited might wait for itself, and inside a log sink for one that waits to log. */
static bool lock_compiles(etch_function *f, bool need_not) {
    if (need_not || compiling || etch__in_log_sink())
        return pthread_mutex_trylock(&f->compile_lock) == 0;
    pthread_mutex_lock(&f->compile_lock);
    return true;
}

/* The next call tries again; but better code that is not to be had is not asked for again. */
static void give_up(etch_function *f, trace_leaf *leaf, missing m) {
    pthread_mutex_lock(&f->lock);
    if (m == BETTER) leaf->provisional = false;
    else leaf->stale = true;
    pthread_mutex_unlock(&f->lock);
    if (m == BETTER)
        etch__log(LOG_FUSION, "%s/%d: products stay apart: %s", f->name, leaf->tree->number,
                  etch_last_error());
    else etch__count_reason(REASON_EAGER_COMPILE);
}

/* In an empty frame, because callbacks and backends may call operators. A compile that fails leaves
 * the leaf as it was, and the caller's error as it was. */
static bool make_code(const compile_request *q, missing m) {
    KEEP_ERROR;
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, 0); /* numbers become text, and are folded, to nearest */
    if (m == GRAPH) etch__call_back(false);
    segment_code *code = compile(q, m);
    if (m == GRAPH) etch__call_back(true);
    etch__pop_frame(&frame);
    bool provisional = code && code->plan->provisional;
    if (!code) give_up(q->f, q->leaf, m);
    else if (m == BETTER) publish_better(q->f, q->leaf, code);
    else publish_code(q->f, q->leaf, code, m == GRAPH);
    return provisional;
}

bool etch__compile_leaf(const compile_request *q) {
    bool alone = q->by != COMPILE_BETTER; /* no call waits for better code */
    bool no_graphs = q->f->options.background && q->by == COMPILE_FOR_CALL;
    if (!q->leaf->npath || (alone && !lock_compiles(q->f, no_graphs))) return false;
    bool outer = compiling;
    compiling = true;
    missing m = what_is_missing(q);
    if (m == GRAPH && (no_graphs || !etch__may_compile())) m = NOTHING;
    bool provisional = m != NOTHING && make_code(q, m);
    compiling = outer;
    if (alone) pthread_mutex_unlock(&q->f->compile_lock);
    return provisional;
}
