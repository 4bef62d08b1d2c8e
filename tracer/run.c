/* A run: one call of a compiled function.
 *
 *   call -> entry segment -> break -> next operator -> segment -> ... -> return
 *
 * A segment is matched against the tree of its root if that has compiled code, else recorded. What
 * does not fit is run operator by operator, so nothing is ever lost; what was learned is published
 * when the call has ended well. Rules by number are those of the design's section on the cursor. */
#include "core/mode.h"
#include "core/profile.h"
#include "tracer/run.h"
#include "tracer/trace.h"

#define STOP_TRACING (etch__tls.cursor = NULL)

/* ---- settling: recordings become leaves, leaves get code ---------------------------------------
 */

static int stable_after(const etch_function *f) {
    return f->options.stable_after > 1 ? f->options.stable_after : 1;
}

/* Publishes an ended recording, and compiles its leaf when it has been seen often enough. */
static trace_leaf *settle(run *r, walk *w) {
    if (!etch__may_compile()) return NULL;
    pthread_mutex_lock(&r->f->lock);
    trace_leaf *leaf = etch__publish(w);
    w->published = true;
    bool ripe = leaf && (leaf->codes || leaf->recorded >= stable_after(r->f));
    pthread_mutex_unlock(&r->f->lock);
    if (ripe) etch__compile_leaf(r->f, leaf, w);
    return leaf;
}

static void mark_live(walk *w, uint8_t bit) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        const etch_tensor *h = w->c.value[n->c.out];
        if (n->c.inplace || atomic_load_explicit(&h->refs, memory_order_acquire) < 2) continue;
        w->want[n->c.out] |= bit;
    }
}

/* What compiling needs to know of the inputs, while the walk still holds them: which share a
 * storage, and, of a dynamic walk, all sizes. */
static bool describe_inputs(walk *w) {
    int nbound = 0;
    for (int64_t i = 0; i < w->npath; i++) nbound += w->path[i]->ncaptures;
    int32_t *bound = etch__malloc(((size_t)nbound + 1) * sizeof *bound);
    if (!bound) return false;
    nbound = 0;
    for (int64_t i = 0; i < w->npath; i++)
        for (int k = 0; k < w->path[i]->ncaptures; k++)
            bound[nbound++] = w->path[i]->captures[k].value;
    bool ok = etch__fill_alias(w, bound, nbound) &&
              (!w->dynamic || (etch__walk_key(w, bound, nbound) && etch__walk_metas(w)));
    etch__free(bound);
    return ok;
}

/* ---- late use (rule 6) ---- */

static bool has_live_deferred(const walk *w) {
    for (int i = 0; i < w->leaf->nsteps; i++) {
        const etch_tensor *h = w->c.value[w->leaf->steps[i].out];
        if (h->deferred && atomic_load_explicit(&h->refs, memory_order_acquire) > 1) return true;
    }
    return false;
}

/* Its leaf learns that a value is wanted after the segment: t, or (NULL) all that is live. */
static void want_late(run *r, walk *w, const etch_tensor *t) {
    trace_leaf *leaf = w->leaf;
    pthread_mutex_lock(&r->f->lock);
    for (int i = 0; i < leaf->nsteps; i++) {
        int32_t v = leaf->steps[i].out;
        const etch_tensor *h = w->c.value[v];
        bool live = atomic_load_explicit(&h->refs, memory_order_acquire) > 1;
        if (leaf->want[v] || (t ? h != t : !h->deferred || !live)) continue;
        leaf->want[v] = 1;
        leaf->stale = w->recompile = true;
    }
    pthread_mutex_unlock(&r->f->lock);
}

/* Evaluates all that is live and still deferred of an ended segment. The second time in one run, as
 * in a loop that breaks, its leaf is compiled again at once; else when the call has ended. */
static void late_use(run *r, walk *w, const etch_tensor *t) {
    if (!w->pending) return;
    w->pending = false;
    if (!has_live_deferred(w)) return;
    trace_leaf *leaf = w->leaf;
    want_late(r, w, t);
    if (!etch__walk_path(w) || etch__evaluate(w, true) != ETCH_OK) etch__walk_fail(w);
    etch__count_reason(REASON_RECOMPILE_LATE_USE);
    etch__note_recompile(r->f, REASON_RECOMPILE_LATE_USE, leaf->site, NULL);
    TRACE_COUNT(r->f, late_uses, 1);
    etch__log(LOG_TRACE, "%s: late use of a tensor of segment %d", r->f->name, leaf->tree->number);
    if (atomic_exchange(&leaf->late_run, r) == r) etch__compile_leaf(r->f, leaf, w);
}

static void late_use_all(run *r) {
    for (walk *w = r->pending; w; w = w->next) late_use(r, w, NULL);
}

/* ---- ending a segment ---- */

static void mark_want(walk *w, const etch_tensor *t) {
    int32_t v = t ? etch__walk_find(w, t) : -1;
    if (v >= 0 && v < w->want_cap) w->want[v] |= WANT_VALUE;
}

static void end_recorded(walk *w, const etch_tensor *t) {
    w->recorded = true;
    if (!describe_inputs(w)) w->recorded = false;
    mark_want(w, t);
    if (w->end != END_RETURN) mark_live(w, WANT_LIVE);
}

/* Whether the code produces all that must be there after the segment (rule 5). */
static bool code_suffices(const walk *w, const trace_leaf *leaf, const segment_code *code,
                          const etch_tensor *t) {
    for (int i = 0; i < leaf->nsteps; i++) {
        int32_t v = leaf->steps[i].out;
        const etch_tensor *h = w->c.value[v];
        if (code->slot[v] != OUT_MISSING || !h->deferred) continue;
        if (atomic_load_explicit(&h->refs, memory_order_acquire) < 2) continue;
        if (w->end == END_RETURN || h == t || code->tainted[v]) return false;
    }
    return true;
}

/* A segment that ran eagerly would have to be compiled anew. */
static void note_recompile(run *r, reason_id why, const void *site) {
    if (why != REASON_RECOMPILE_DIVERGED) {
        etch__count_reason(why);
        etch__note_recompile(r->f, why, site, NULL);
    }
    r->refused |= etch__stance == ETCH_STANCE_FAIL_ON_RECOMPILE;
}

static bool run_matched(run *r, walk *w, trace_leaf *leaf, const etch_tensor *t) {
    if (!leaf->npath) return true;
    bool overlap;
    if (leaf->writes_inputs) late_use_all(r);
    segment_code *code = etch__pick_code(w, leaf, &overlap);
    if (overlap) etch__count_reason(REASON_RECOMPILE_OVERLAP);
    if (overlap) etch__note_recompile(r->f, REASON_RECOMPILE_OVERLAP, leaf->site, NULL);
    if (!code && leaf->dynamic && leaf->codes && !overlap) {
        /* Other sizes than ever before: a plan for them, from kernels that are there. */
        etch__compile_leaf(r->f, leaf, w);
        code = etch__find_instance(w, leaf);
    }
    bool suffices = code && code_suffices(w, leaf, code, t);
    if (code && !suffices) note_recompile(r, REASON_RECOMPILE_OUTPUTS, leaf->site);
    bool ran = suffices && (etch__run_code(w, leaf, code) == ETCH_OK || r->poisoned);
    etch__code_release(leaf, code);
    return ran;
}

/* Ends a matched segment: by its plan, or through the eager kernels as the end of a recording. */
static void end_matched(run *r, walk *w, const etch_tensor *t) {
    const trace_node *last = (const trace_node *)w->c.last;
    trace_node *end = etch__find_end(last, w->end);
    if (end) {
        w->leaf = end->leaf;
        atomic_store_explicit(&((trace_node *)last)->c.next, &end->c, memory_order_release);
        if (run_matched(r, w, end->leaf, t)) return;
        w->pending = false;
    } else {
        TRACE_COUNT(r->f, divergences, 1);
        etch__log_diverged(w, NULL);
        note_recompile(r, REASON_RECOMPILE_DIVERGED, NULL);
    }
    w->leaf = NULL;
    late_use_all(r);
    if (etch__walk_to_recording(w, WALK_RECORD)) end_recorded(w, t);
    else etch__walk_fail(w);
}

/* Walks whose deferred handles have died meanwhile go back to their trees: a loop that breaks in
 * its body leaves one every round. */
static void sweep_pending(run *r) {
    for (walk **link = &r->pending; *link;) {
        walk *w = *link;
        if (w->recompile || (w->pending && has_live_deferred(w))) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        r->npending--;
        etch__walk_recycle(w);
    }
    r->sweep_at = 2 * r->npending + 2;
}

/* The walk has ended: it is kept while its recording or its deferred handles are of use. */
static void retire_walk(run *r, walk *w) {
    r->walk = NULL;
    STOP_TRACING;
    if (!w->recorded && !w->pending) {
        etch__walk_recycle(w);
        return;
    }
    walk **list = w->recorded ? &r->recorded : &r->pending;
    if (w->pending && ++r->npending > r->sweep_at) sweep_pending(r);
    w->next = *list;
    *list = w;
}

static void end_segment(run *r, reason_id why, const void *site, const etch_tensor *t) {
    walk *w = r->walk;
    if (!w) return;
    w->end = why;
    w->end_site = site;
    if (w->mode == WALK_MATCH) end_matched(r, w, t);
    else end_recorded(w, t);
    retire_walk(r, w);
}

/* ---- breaks ---- */

static etch_status refuse_break(run *r, reason_id why, const void *site, const char *text) {
    const reason_info *reason = &etch__reasons[why];
    r->poisoned = true;
    return etch__error_at(site, ETCH_ERR_GRAPH_BREAK,
                          "%s: fullgraph = true, but the graph breaks here: %s: %s%s%s; hint: %s",
                          r->f->name, reason->name, reason->text, text ? ": " : "",
                          text ? text : "", reason->hint);
}

/* A break ends the segment; t is what it reads. Between segments there is nothing to break. */
static etch_status break_graph(run *r, reason_id why, const void *site, const etch_tensor *t,
                               const char *text) {
    if (r->f->options.fullgraph && !r->by_stance) return refuse_break(r, why, site, text);
    bool matched = r->walk && r->walk->mode == WALK_MATCH;
    if (r->walk) {
        TRACE_COUNT(r->f, graph_breaks, 1);
        etch__profile_mark(ETCH_PROFILE_BREAK, r->f->name, etch__reasons[why].name);
        if (!matched) etch__log_break(r, why, site, text);
    }
    end_segment(r, why, site, t);
    r->eager = false;
    return r->poisoned ? etch__tls.status : ETCH_OK;
}

/* The walk of this run that has to produce t; NULL with the error set if t is another thread's.
 * What belongs to an outer run is produced at once. */
static walk *owner_in(run *r, const etch_tensor *t, const void *site) {
    walk *w = t->owner;
    if (w && w->run == r) return w;
    for (run *o = r->outer; w && o; o = o->outer)
        if (w->run == o) {
            late_use(o, w, t);
            return w;
        }
    etch__error_at(
        site, ETCH_ERR_DEFERRED_ELSEWHERE,
        "the tensor is a deferred tensor of a function that runs on another thread; call "
        "etch_flush there first");
    return NULL;
}

static etch_status trace_read(const etch_tensor *t, reason_id why, const void *site) {
    run *r = etch__current_run();
    if (!r)
        return etch__error_at(
            site, etch__tls.in_flush ? ETCH_ERR_DEFERRED_IN_FLUSH : ETCH_ERR_DEFERRED_ELSEWHERE,
            "the tensor is a deferred tensor of a function that is running elsewhere");
    if (t && t->deferred && !owner_in(r, t, site)) return ETCH_ERR_DEFERRED_ELSEWHERE;
    etch_status status = break_graph(r, why, site, t, NULL);
    if (status != ETCH_OK) return status;
    if (t && t->deferred) late_use(r, t->owner, t);
    if (t && t->deferred)
        return etch__error_at(site, ETCH_ERR_INTERNAL, "a deferred tensor was not produced");
    return ETCH_OK;
}

etch_status etch_graph_break(const char *why) {
    run *r = etch__current_run();
    if (!r) return ETCH_OK;
    return break_graph(r, REASON_BREAK_USER, __builtin_return_address(0), NULL, why);
}

/* ---- where a deferred handle lies ---- */

/* The node whose result a deferred handle stands for. */
static const trace_node *maker_of(const etch_tensor *t) {
    const walk *w = t->owner;
    const trace_node *n = NULL;
    if (w->mode == WALK_MATCH && !w->leaf)
        for (n = (const trace_node *)w->c.last; n->c.out != t->value || n->c.inplace;)
            n = n->parent;
    else
        for (int64_t i = 0; i < (w->leaf ? w->leaf->npath : w->npath); i++) {
            n = w->leaf ? w->leaf->path[i] : w->path[i];
            if (n->c.out == t->value && !n->c.inplace) break;
        }
    return n;
}

/* The handle over whose storage t will lie, along the views to a result or an input; *offset: how
 * many elements further on. */
static const etch_tensor *root_of(const etch_tensor *t, int64_t *offset) {
    *offset = 0;
    while (t->deferred && t->owner) { /* without an owner: a value of a user's graph */
        const walk *w = t->owner;
        const trace_node *n = maker_of(t);
        if (!n || etch__ops[n->op].kind != KIND_VIEW) return t;
        *offset += etch__view_offset(w, n);
        t = w->c.value[n->in[0]];
    }
    *offset += t->offset;
    return t;
}

static bool trace_same_storage(const etch_tensor *a, const etch_tensor *b) {
    int64_t offset;
    a = root_of(a, &offset), b = root_of(b, &offset);
    return a == b || (a->storage && a->storage == b->storage);
}

static int64_t trace_offset(const etch_tensor *t) {
    int64_t offset;
    root_of(t, &offset);
    return offset;
}

/* ---- exposed memory (rule 8) ---- */

static void end_exposure(run *r, const etch_storage *s) {
    for (int64_t i = 0; i < r->nexposed; i++) {
        if (r->exposed[i] != s) continue;
        atomic_fetch_and(&r->exposed[i]->exposed, (unsigned char)EXPOSED_WRAPPED);
        etch__storage_release(r->exposed[i]);
        r->exposed[i--] = r->exposed[--r->nexposed];
    }
}

static etch_status trace_expose(const etch_tensor *t, int bits, const void *site) {
    run *r = etch__current_run();
    (void)site;
    if (!r || !t->storage) return ETCH_OK;
    if (!bits) {
        end_exposure(r, t->storage);
        return ETCH_OK;
    }
    if (bits & EXPOSED_WRITE) late_use_all(r);
    if (!etch__grow(&r->exposed, &r->exposed_cap, r->nexposed + 1, sizeof *r->exposed))
        return ETCH_ERR_OUT_OF_MEMORY;
    etch__storage_retain(t->storage);
    atomic_fetch_or(&t->storage->exposed, (unsigned char)bits);
    r->exposed[r->nexposed++] = t->storage;
    return ETCH_OK;
}

static int exposed_bits(const etch_tensor *t) {
    return t->storage ? atomic_load_explicit(&t->storage->exposed, memory_order_relaxed) : 0;
}

/* A view of memory that is exposed for reading may be deferred, and is then written. */
static bool touches_exposed(const op_call *call) {
    bool writes = etch__ops[call->op].kind == KIND_INPLACE;
    int64_t offset;
    for (int i = 0; i < call->nin; i++) {
        int bits = exposed_bits(writes && i == 0 ? root_of(call->in[0], &offset) : call->in[i]);
        if (bits & EXPOSED_WRITE || (bits && writes && i == 0)) return true;
    }
    return false;
}

/* Why the call must not be deferred, or END_RETURN. */
static reason_id runs_at_once(const op_call *call) {
    if (etch__ops[call->op].flags & OPF_EFFECTS) return REASON_BREAK_EFFECTS;
    return touches_exposed(call) ? REASON_BREAK_EXPOSED : END_RETURN;
}

/* ---- operators ---- */

/* A tensor that was evaluated late beside another one is used, too. */
static void want_used(run *r, const etch_tensor *t) {
    for (walk *w = r->pending; w; w = w->next)
        if (w == t->owner && w->leaf) want_late(r, w, t);
}

/* Deferred operands of earlier segments are produced; recordings learn what is used of them. */
static bool prepare_operands(run *r, const op_call *call) {
    for (int i = 0; i < call->nin; i++) {
        etch_tensor *t = call->in[i];
        if (t->deferred && t->owner != r->walk) {
            walk *w = owner_in(r, t, call->site);
            if (!w) return false;
            late_use(r, w, t);
            if (!etch__check_handle(t)) return false;
        } else if (unlikely(t->owner && t->owner != r->walk)) {
            want_used(r, t);
        }
        for (walk *w = r->recorded; w; w = w->next) mark_want(w, t);
    }
    return true;
}

/* Operands that were deferred until now may turn out to have failed. */
static bool operands_there(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (!etch__check_handle(call->in[i])) return false;
    return true;
}

static etch_tensor *run_now(run *r, const op_call *call) {
    if (etch__ops[call->op].kind == KIND_INPLACE) late_use_all(r);
    return operands_there(call) ? etch__run_eager(call) : NULL;
}

static etch_tensor *record(run *r, walk *w, const op_call *call) {
    if (w->mode == WALK_RECORD && etch__ops[call->op].kind == KIND_INPLACE) late_use_all(r);
    return operands_there(call) ? etch__walk_record(w, call) : NULL;
}

/* Whether a new path under this root would be one too many. */
static bool limited(run *r, trace_tree *tree) {
    pthread_mutex_lock(&r->f->lock);
    bool full = etch__at_limit(r, tree);
    pthread_mutex_unlock(&r->f->lock);
    return full;
}

/* Lets operators match along the walk; under modes (which then allow compiled code) they go the
 * long way, so that handlers are found, and where memory is exposed, so that writes to it are. */
static void follow(run *r, walk *w) {
    bool alone = etch__tls.layers == 1u << LAYER_TRACER && !r->nexposed;
    for (int i = 0; w->entry && i < w->nargs; i++) alone = alone && !exposed_bits(w->c.value[i]);
    if (w->mode == WALK_MATCH && alone) etch__tls.cursor = &w->c;
}

/* Captured memory that is exposed: the same. */
static void stop_following(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (exposed_bits(call->in[i])) STOP_TRACING;
}

static walk *begin_recording(run *r) {
    walk *w = etch__walk_take(r, NULL);
    if (w && r->f->options.fullgraph) w->mode = WALK_SHAPES;
    if (w) w->dynamic = r->f->options.dynamic == ETCH_DYNAMIC_ON;
    return r->walk = w;
}

/* A recording of this very call with such a first operator is published and compiled when it is
 * entered again. */
static void settle_earlier(run *r, const op_call *call) {
    for (walk *w = r->recorded; w; w = w->next)
        if (!w->published && w->npath && !w->entry &&
            etch__similar_call(w->path[0], call, etch__tls.state))
            settle(r, w);
}

/* The stance forbids to record a new path: the run goes on eagerly, or fails. */
static void obey_stance(run *r, const void *site) {
    if (etch__stance == ETCH_STANCE_FAIL_ON_RECOMPILE) {
        r->poisoned = true;
        etch__refuse_compile(r->f, site);
    } else {
        r->eager = r->by_stance = true;
    }
}

/* Whether an operator was overridden since the call was entered: then the traces of the rest of it
 * would mix kernels. */
static bool outdated(const run *r) {
    return r->gen->epoch != atomic_load_explicit(&etch__override_epoch, memory_order_acquire);
}

/* The segment that begins with this call. NULL: r->eager, or an error. */
static walk *begin_segment(run *r, const op_call *call) {
    if (unlikely(etch__forced_eager())) {
        r->eager = r->by_stance = true;
        return NULL;
    }
    if (unlikely(outdated(r))) {
        r->eager = true;
        return NULL;
    }
    if (r->recorded) settle_earlier(r, call);
    trace_tree *tree = etch__find_resume(r->gen, call, etch__tls.state);
    if (!tree || !atomic_load_explicit(&tree->ncompiled, memory_order_acquire)) {
        if (tree && tree->limited) r->eager = true;
        else if (!etch__may_compile()) obey_stance(r, call->site);
        return r->eager || r->poisoned ? NULL : begin_recording(r);
    }
    walk *w = r->walk = etch__walk_take(r, tree);
    if (w) follow(r, w);
    return w;
}

/* The matched prefix has run; the rest of the segment runs eagerly. */
static bool go_on_eagerly(run *r, walk *w) {
    late_use_all(r);
    if (!etch__walk_to_recording(w, WALK_RECORD)) return false;
    r->walk = NULL;
    r->eager = true;
    STOP_TRACING;
    return true;
}

static etch_tensor *diverge_limited(run *r, walk *w, const op_call *call) {
    if (r->f->options.fullgraph && !r->by_stance) {
        r->poisoned = true;
        etch__error_at(
            call->site, ETCH_ERR_RECOMPILE_LIMIT,
            "%s: fullgraph = true, but the trace does not fit and the recompile limit is "
            "reached; etch_reset forgets the traces",
            r->f->name);
        return NULL;
    }
    if (!go_on_eagerly(r, w)) return NULL;
    etch_tensor *h = run_now(r, call);
    etch__walk_recycle(w);
    return h;
}

/* The call is not what the trace has here (rule 7). One that fails by itself does not move the
 * cursor. */
static etch_tensor *diverge(run *r, walk *w, const op_call *call) {
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
    bool empty = w->c.last == &w->tree->root.c;
    if (!empty || w->entry) {
        TRACE_COUNT(r->f, divergences, 1);
        etch__log_diverged(w, call);
    }
    if (!etch__may_compile()) obey_stance(r, call->site);
    if (r->poisoned) return NULL;
    if (r->by_stance || limited(r, w->tree)) return diverge_limited(r, w, call);
    bool full = r->f->options.fullgraph;
    bool sizes_only = r->f->options.dynamic != ETCH_DYNAMIC_OFF && etch__walk_similar(w, call);
    if (!full) late_use_all(r);
    if (!etch__walk_to_recording(w, full ? WALK_SHAPES : WALK_RECORD)) return NULL;
    w->dynamic |= sizes_only;
    STOP_TRACING;
    return record(r, w, call);
}

static etch_tensor *traced_operator(const op_call *call) {
    run *r = etch__current_run();
    if (!r || r->poisoned) return r ? NULL : etch__run_eager(call);
    if (!prepare_operands(r, call)) return NULL;
    if (unlikely(etch__mode_entered_since(r->modes))) return run_now(r, call);
    reason_id now = runs_at_once(call);
    if (now != END_RETURN) {
        /* After the break, operands may be deferred tensors of the segment that it ended. */
        if (break_graph(r, now, call->site, NULL, NULL) != ETCH_OK) return NULL;
        return prepare_operands(r, call) ? run_now(r, call) : NULL;
    }
    if (r->eager || r->off) return run_now(r, call);
    walk *w = r->walk ? r->walk : begin_segment(r, call);
    if (!w) return r->eager ? run_now(r, call) : NULL;
    bool long_match = false;
    if (w->mode == WALK_MATCH) {
        etch_tensor *h = etch__walk_match(w, call);
        if (h) {
            stop_following(call);
            return h;
        }
        long_match = etch__find_end((trace_node *)w->c.last, REASON_BREAK_LENGTH) != NULL;
        if (!long_match) return diverge(r, w, call);
    }
    if (long_match || w->npath >= etch__param_int(PARAM_MAX_SEGMENT)) {
        if (break_graph(r, REASON_BREAK_LENGTH, call->site, NULL, NULL) != ETCH_OK) return NULL;
        return traced_operator(call);
    }
    return record(r, w, call);
}

/* ---- beginning and ending a call ---- */

static __thread run spare_run;
static __thread bool spare_run_used;
static __thread run *suspended; /* see call_in_own_run */

static run *take_run(etch_function *f) {
    run *r = spare_run_used ? etch__malloc(sizeof *r) : &spare_run;
    if (!r) return NULL;
    if (r == &spare_run) spare_run_used = true;
    memset(r, 0, sizeof *r);
    r->outer = suspended;
    etch__function_pin(f);
    r->f = f;
    r->gen = atomic_load_explicit(&f->gen, memory_order_acquire);
    if (unlikely(r->gen->epoch !=
                 atomic_load_explicit(&etch__override_epoch, memory_order_acquire))) {
        etch_reset(f);
        r->gen = atomic_load_explicit(&f->gen, memory_order_acquire);
    }
    return r;
}

static void give_back_run(run *r) {
    while (r->nexposed) end_exposure(r, r->exposed[0]);
    etch__free(r->exposed);
    etch__function_unpin(r->f);
    if (r == &spare_run) spare_run_used = false;
    else etch__free(r);
}

/* Sizes are run-time from the start if asked for, else once a call differs in nothing else. */
static bool wants_dynamic(const run *r, const trace_tree *tree, etch_tensor *const *in, int nin) {
    if (tree) return tree->dynamic;
    if (r->f->options.dynamic == ETCH_DYNAMIC_AUTO) return etch__similar_entry(r->gen, in, nin);
    return r->f->options.dynamic == ETCH_DYNAMIC_ON;
}

/* The first segment: along the tree whose guards hold, or recording. NULL: r->eager or an error. */
static walk *begin_entry(run *r, etch_tensor *const *in, int nin) {
    int64_t start = etch__profile_start();
    trace_tree *tree = etch__find_entry(r->gen, in, nin);
    etch__profile_end_event(ETCH_PROFILE_GUARDS, start, r->f->name, NULL);
    bool known = tree != NULL, dynamic = wants_dynamic(r, tree, in, nin);
    if (tree && !atomic_load_explicit(&tree->ncompiled, memory_order_acquire)) tree = NULL;
    if (!tree && !etch__may_compile()) {
        obey_stance(r, NULL);
        return NULL;
    }
    if (!known && !r->gen->entry_limited) etch__log_guards(r, in, nin);
    if (!tree && !known && limited(r, NULL)) {
        r->eager = true;
        return NULL;
    }
    walk *w = tree ? etch__walk_take(r, tree) : begin_recording(r);
    if (w && !tree) w->dynamic = w->dynamic_entry = dynamic;
    if (w && !etch__walk_bind_args(w, in, nin)) {
        etch__walk_recycle(w);
        w = NULL;
    }
    return r->walk = w;
}

static bool enter(run *r, etch_tensor *const *in, int nin) {
    etch_thread *t = &etch__tls;
    if (!begin_entry(r, in, nin) && (!r->eager || r->by_stance)) return false;
    if (r->eager && r->f->options.fullgraph) {
        etch__error(ETCH_ERR_RECOMPILE_LIMIT,
                    "%s: fullgraph = true, but no trace fits the arguments and the recompile limit "
                    "is reached; etch_reset forgets the traces",
                    r->f->name);
        return false;
    }
    r->scope = etch_scope_begin();
    if (r->scope < 0) return false;
    r->outer_guard = t->guard_scope;
    t->guard_scope = r->scope;
    t->run = r;
    t->layers |= 1u << LAYER_TRACER;
    r->modes = t->nmodes;
    if (r->walk) follow(r, r->walk);
    return true;
}

/* Moves what the call's scope owns of the results to the caller's scope, then closes it. */
static etch_status close_scope(run *r, etch_status status, etch_tensor **out, int nout) {
    etch_scope_end(r->scope + 1);
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (!etch_keep(out[i])) status = etch__tls.status;
    etch__tls.guard_scope = r->outer_guard;
    STOP_TRACING;
    etch_scope_end(r->scope);
    return status;
}

/* A call that fails: its matched prefix has happened, nothing is published. */
static void drop_segment(run *r) {
    walk *w = r->walk;
    if (!w) return;
    r->walk = NULL;
    late_use_all(r);
    bool compute = !r->poisoned;
    if (w->mode == WALK_MATCH) etch__walk_to_recording(w, compute ? WALK_RECORD : WALK_SHAPES);
    else if (w->mode == WALK_SHAPES && compute) etch__evaluate(w, false);
    etch__walk_fail(w);
    etch__walk_recycle(w);
}

/* fullgraph's first call: everything is still deferred; compile, then run the plan. */
static void run_shapes(run *r, walk *w) {
    bool overlap;
    if (w->recorded) mark_live(w, WANT_VALUE);
    trace_leaf *leaf = w->recorded ? settle(r, w) : NULL;
    segment_code *code = leaf ? etch__pick_code(w, leaf, &overlap) : NULL;
    bool done = code && etch__run_code(w, leaf, code) == ETCH_OK;
    if (leaf) etch__code_release(leaf, code);
    if (!done && !r->poisoned) etch__evaluate(w, false);
    w->recorded = false;
}

static void end_return(run *r) {
    walk *w = r->walk;
    late_use_all(r);
    if (!w) return;
    w->end = END_RETURN;
    w->end_site = NULL;
    if (w->mode == WALK_MATCH) end_matched(r, w, NULL);
    else end_recorded(w, NULL);
    if (w->mode == WALK_SHAPES) run_shapes(r, w);
    retire_walk(r, w);
}

/* Captured tensors may be results of earlier segments: without these counts, those that are still
 * counted by another are the ones that outlive the call. */
static void release_captures(walk *w) {
    for (int64_t i = 0; i < w->npath; i++)
        for (int k = 0; k < w->path[i]->ncaptures; k++) {
            int32_t v = w->path[i]->captures[k].value;
            etch_release(w->c.value[v]);
            w->c.value[v] = NULL;
        }
}

/* In the order of the program. */
static void turn_recorded(run *r) {
    walk *turned = NULL;
    while (r->recorded) {
        walk *w = r->recorded;
        r->recorded = w->next;
        w->next = turned;
        turned = w;
    }
    r->recorded = turned;
}

static void settle_all(run *r, bool publish) {
    turn_recorded(r);
    for (walk *w = r->recorded; w; w = w->next) release_captures(w);
    while (r->pending) {
        walk *w = r->pending;
        r->pending = w->next;
        if (publish && w->recompile) etch__compile_leaf(r->f, w->leaf, w);
        etch__walk_recycle(w);
    }
    while (r->recorded) {
        walk *w = r->recorded;
        r->recorded = w->next;
        if (publish) {
            mark_live(w, WANT_VALUE);
            settle(r, w);
        }
        etch__walk_recycle(w);
    }
}

static void leave(void) {
    etch__tls.run = NULL;
    etch__tls.cursor = NULL;
    etch__tls.layers &= ~(1u << LAYER_TRACER);
}

static etch_status finish(run *r, etch_status status, etch_tensor **out, int nout) {
    status = close_scope(r, status, out, nout);
    if (status == ETCH_OK) end_return(r);
    else drop_segment(r);
    if (status == ETCH_OK && r->poisoned) status = etch__tls.status;
    if (status == ETCH_OK && r->refused) status = etch__refuse_compile(r->f, NULL);
    leave();
    settle_all(r, status == ETCH_OK && !outdated(r));
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (out[i]->failed) status = etch__tls.status ? etch__tls.status : ETCH_ERR_INTERNAL;
    return status;
}

/* The call's scope was closed from outside, by longjmp past the call (rule 15). */
static void trace_abandon(int64_t mark) {
    run *r = etch__current_run();
    (void)mark;
    if (!r) {
        etch__tls.guard_scope = -1;
        etch__reset_disabled();
        return;
    }
    etch__tls.guard_scope = r->outer_guard;
    etch__reset_disabled();
    suspended = NULL;
    drop_segment(r);
    leave();
    settle_all(r, false);
    give_back_run(r);
}

/* ---- calling ---- */

static etch_status scope_was_closed(void) {
    return etch__error(ETCH_ERR_INVALID_ARGUMENT,
                       "etch_call: the body closed a scope that it had not opened");
}

/* What the body says has gone wrong has an error, too. */
static etch_status checked_status(const etch_function *f, etch_status status) {
    if (status == ETCH_OK || etch__tls.status != ETCH_OK)
        return (unsigned)status < ETCH_STATUS_COUNT ? status : ETCH_ERR_USER;
    if ((unsigned)status >= ETCH_STATUS_COUNT)
        return etch__error(ETCH_ERR_USER, "%s: the body returned %d, which is no status", f->name,
                           (int)status);
    return etch__error(status, "%s: the body returned the error %s", f->name,
                       etch_status_name(status));
}

/* scope: the call's own, on top of which the body has closed all others or not. */
static etch_status checked_results(etch_function *f, int64_t scope, etch_status status,
                                   etch_tensor **out, int nout) {
    if (etch__tls.nscopes <= scope) return scope_was_closed();
    status = checked_status(f, status);
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (!out[i])
            status = etch__tls.status != ETCH_OK
                         ? etch__tls.status
                         : etch__error(ETCH_ERR_USER, "%s: the body returned NULL", f->name);
    return status;
}

/* The body in a scope of its own, operators as the thread runs them anyway (rule 4). */
etch_status etch__call_in_scope(etch_function *f, etch_tensor *const *in, int nin,
                                etch_tensor **out, int nout) {
    int64_t scope = etch_scope_begin();
    if (scope < 0) return etch__tls.status;
    etch_status status = etch__call_body(f, in, nin, out, nout);
    status = checked_results(f, scope, status, out, nout);
    etch_scope_end(scope + 1);
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (!etch_keep(out[i])) status = etch__tls.status;
    etch_scope_end(scope);
    return status;
}

static etch_status call_at(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                           int nout, const void *site);

/* Inside a disabled function, a compiled one starts a run of its own. */
static etch_status call_in_own_run(run *r, etch_function *f, etch_tensor *const *in, int nin,
                                   etch_tensor **out, int nout, const void *site) {
    run *before = suspended;
    for (int i = 0; i < nin; i++)
        if (in[i]->deferred) late_use(r, in[i]->owner, in[i]);
    for (walk *w = r->recorded; w; w = w->next)
        for (int i = 0; i < nin; i++) mark_want(w, in[i]);
    suspended = r;
    empty_frame frame = etch__push_frame();
    etch__tls.in_flush = frame.in_flush;
    etch__tls.layers = frame.layers & ~(1u << LAYER_TRACER);
    etch_status status = call_at(f, in, nin, out, nout, site);
    uint64_t state = etch__tls.state;
    etch__pop_frame(&frame);
    etch__tls.state = state;
    suspended = before;
    return status;
}

etch_status etch__call_off(run *r, etch_function *f, etch_tensor *const *in, int nin,
                           etch_tensor **out, int nout, const void *site) {
    etch_status status = break_graph(r, REASON_BREAK_DISABLED, site, NULL, f->name);
    if (status != ETCH_OK) return status;
    r->off++;
    status = etch__call_in_scope(f, in, nin, out, nout);
    r->off--;
    return status;
}

/* With a run active the body is recorded into it, unless its own options forbid that (rule 14). */
static etch_status call_nested(run *r, etch_function *f, etch_tensor *const *in, int nin,
                               etch_tensor **out, int nout, const void *site) {
    bool disabled = etch__disabled(f) || (r->off && etch__blocking_mode());
    if (r->off && !disabled) return call_in_own_run(r, f, in, nin, out, nout, site);
    if (r->off || (!disabled && f->options.numerics == r->f->options.numerics))
        return etch__call_in_scope(f, in, nin, out, nout);
    return etch__call_off(r, f, in, nin, out, nout, site);
}

bool etch__stop_matching(run *r, etch_tensor *const *in, int nin) {
    walk *w = r->walk;
    for (int i = 0; i < nin; i++)
        if (in[i]->deferred && in[i]->owner != w) {
            walk *owner = owner_in(r, in[i], NULL);
            if (!owner) return false;
            late_use(r, owner, in[i]);
            if (!etch__check_handle(in[i])) return false;
        }
    if (!w || w->mode != WALK_MATCH) return true;
    bool full = r->f->options.fullgraph;
    if (!etch__may_compile()) obey_stance(r, NULL);
    if (r->poisoned) return false;
    if (r->by_stance || limited(r, w->tree)) {
        if (!go_on_eagerly(r, w)) return false;
        etch__walk_recycle(w);
        return true;
    }
    if (!full) late_use_all(r);
    STOP_TRACING;
    return etch__walk_to_recording(w, full ? WALK_SHAPES : WALK_RECORD);
}

etch_status etch__learn_shapes(run *r, etch_function *f, etch_tensor *const *in, int nin,
                               tensor_meta *meta) {
    walk *outer = r->walk, *w = etch__walk_take(r, NULL);
    if (!w) return ETCH_ERR_OUT_OF_MEMORY;
    w->mode = WALK_SHAPES;
    r->walk = w;
    etch_tensor *out = NULL;
    int64_t scope = etch_scope_begin();
    etch_status status = scope < 0 ? etch__tls.status : etch__call_in_scope(f, in, nin, &out, 1);
    if (status == ETCH_OK) etch__guard_make(out, meta);
    etch_scope_end(scope);
    etch__walk_fail(w);
    etch__walk_recycle(w);
    r->walk = outer;
    return status;
}

static etch_status call_traced(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    run *r = take_run(f);
    if (!r) return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status;
    if (enter(r, in, nin)) {
        status = etch__call_body(f, in, nin, out, nout);
        if (etch__current_run() != r) return scope_was_closed(); /* and the run abandoned */
        status = checked_results(f, r->scope, status, out, nout);
        if (r->poisoned && status == ETCH_OK) status = etch__tls.status;
        status = finish(r, status, out, nout);
    } else {
        status = etch__tls.status ? etch__tls.status : ETCH_ERR_INTERNAL;
        if (r->walk) etch__walk_recycle(r->walk);
        if (r->by_stance) status = etch__call_in_scope(f, in, nin, out, nout);
    }
    give_back_run(r);
    return status;
}

static bool counts_ok(const etch_function *f, etch_tensor *const *in, int nin,
                      etch_tensor **out, int nout) {
    if (nin < 0 || (f->kind != FN_N && nin != (int)f->kind))
        etch__error(ETCH_ERR_INVALID_ARGUMENT, "%s: expected %d arguments, got %d", f->name,
                    f->kind == FN_N ? 0 : (int)f->kind, nin);
    else if (nout < 0 || (f->kind != FN_N && nout != 1))
        etch__error(ETCH_ERR_INVALID_ARGUMENT, "%s: the function has 1 result, asked for %d",
                    f->name, nout);
    else if ((nin && !in) || (nout && !out))
        etch__error(ETCH_ERR_NULL, "%s: expected an array of %s, got NULL", f->name,
                    nin && !in ? "arguments" : "results");
    else return true;
    return false;
}

static bool arguments_ok(const etch_function *f, etch_tensor *const *in, int nin) {
    for (int i = 0; i < nin; i++)
        if (!etch__check_handle(in[i])) return false;
    if (etch__tls.nscopes) return true;
    etch__error(ETCH_ERR_NO_SCOPE,
                "%s: no scope is open on this thread to own the result: put the "
                "call into ETCH_SCOPE { ... }",
                f->name);
    return false;
}

static etch_status call_under_mode(const etch_mode *mode, etch_function *f, etch_tensor *const *in,
                                   int nin, etch_tensor **out, int nout) {
    if (f->options.fullgraph)
        return etch__error(ETCH_ERR_MODE_ACTIVE,
                           "%s: fullgraph = true, but an interceptor mode is "
                           "active; leave the mode first",
                           f->name);
    etch__count_reason(REASON_EAGER_MODE);
    etch__note_mode(f, etch_mode_name(mode));
    TRACE_COUNT(f, mode_fallbacks, 1);
    etch__log(LOG_MODES, "'%s' is active, running %s() uncompiled", etch_mode_name(mode), f->name);
    return etch__call_in_scope(f, in, nin, out, nout);
}

static etch_status call_function(etch_function *f, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout, const void *site) {
    if (!arguments_ok(f, in, nin)) return etch__tls.status;
    TRACE_COUNT(f, calls, 1);
    run *r = etch__current_run();
    if (unlikely(f->wrap)) return etch__call_wrapped(f, in, nin, out, nout, site);
    if (r) return call_nested(r, f, in, nin, out, nout, site);
    if (etch__disabled(f)) return etch__call_in_scope(f, in, nin, out, nout);
    const etch_mode *mode = etch__tls.mode_level ? etch__blocking_mode() : NULL;
    if (unlikely(mode)) return call_under_mode(mode, f, in, nin, out, nout);
    for (int i = 0; i < nin; i++)
        if (etch__materialise(in[i], REASON_BREAK_FLUSH, NULL) != ETCH_OK) return etch__tls.status;
    return call_traced(f, in, nin, out, nout);
}

static void clear(etch_tensor **out, int nout) {
    for (int i = 0; i < nout; i++) out[i] = NULL;
}

/* The body may free the function, so its name is kept for the profile. */
static etch_status call_profiled(etch_function *f, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout, const void *site) {
    char name[64];
    snprintf(name, sizeof name, "%s", f->name);
    int64_t start = etch__profile_now();
    etch_status status = call_function(f, in, nin, out, nout, site);
    etch__profile_add(ETCH_PROFILE_CALL, start, name, NULL);
    return status;
}

static etch_status call_at(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                           int nout, const void *site) {
    if (unlikely(!f)) return etch__error(ETCH_ERR_NULL, "etch_call: expected a function, got NULL");
    if (unlikely(!counts_ok(f, in, nin, out, nout))) return etch__tls.status;
    clear(out, nout);
    etch_status status = unlikely(etch__profile_on())
                             ? call_profiled(f, in, nin, out, nout, site)
                             : call_function(f, in, nin, out, nout, site);
    if (unlikely(status != ETCH_OK)) clear(out, nout);
    return status;
}

etch_status etch_call_n(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                        int nout) {
    return call_at(f, in, nin, out, nout, __builtin_return_address(0));
}

etch_tensor *etch_call_one(etch_function *f, etch_tensor *const *in, int nin) {
    etch_tensor *out = NULL;
    const void *site = __builtin_return_address(0);
    return call_at(f, in, nin, &out, 1, site) == ETCH_OK ? out : NULL;
}

/* ---- hooks ---- */

__attribute__((constructor)) static void register_tracer(void) {
    etch__register_layer(LAYER_TRACER, traced_operator);
    etch__trace_hooks.read = trace_read;
    etch__trace_hooks.expose = trace_expose;
    etch__trace_hooks.same_storage = trace_same_storage;
    etch__trace_hooks.offset = trace_offset;
    etch__trace_hooks.abandon = trace_abandon;
}
