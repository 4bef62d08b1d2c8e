/* Running what was deferred: node by node through the eager kernels, or all at once by a plan.
 *
 * Both happen in an empty frame: operators that kernels and callbacks call run eagerly. A node that
 * runs after its call runs under its own recorded state word. */
#include "core/tensor/device.h"
#include "tracer/tell/report.h"
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

empty_frame etch__push_frame(void) {
    etch_thread *t = &etch__tls;
    empty_frame f = {t->cursor, t->run, t->state, t->layers, t->in_flush, etch__fp_mask(), false};
    f.fp_changed = ~f.fp & FP_TRAPS;
    t->cursor = NULL, t->run = NULL;
    t->layers = 0;
    t->in_flush = true;
    return f;
}

void etch__pop_frame(const empty_frame *f) {
    etch_thread *t = &etch__tls;
    t->cursor = f->cursor, t->run = f->run;
    t->state = f->state, t->layers = f->layers;
    t->in_flush = f->in_flush;
    if (unlikely(f->fp_changed)) etch__fp_control(f->fp);
}

/* Reading MXCSR costs more than a few operators, so that it is read once a frame. */
void etch__frame_mode(empty_frame *f, uint64_t state) {
    if (likely((f->fp & FP_MODE) == STATE_FP(state))) return;
    f->fp_changed = true;
    etch__fp_control(STATE_FP(state) | FP_TRAPS);
}

/* ---- writes that failed ----
 *
 * A write that fails leaves the memory as it was. Whatever lies over it is, from there on, not what
 * the program computes: using it is a failure as well, and the call fails. Results of the segment
 * are failed for good; tensors from outside can be used again when the call has ended. */

static bool is_spoilt_in(const trace_run *r, const etch_storage *s) {
    for (int64_t i = 0; i < r->nspoilt; i++)
        if (r->spoilt[i] == s || etch__memory_overlaps(r->spoilt[i], s)) return true;
    return false;
}

bool etch__find_spoilt(const etch_tensor *t) {
    for (const trace_run *r = etch__tls.runs; r; r = r->below)
        if (unlikely(r->nspoilt) && t->storage && is_spoilt_in(r, t->storage)) return true;
    return false;
}

etch_status etch__spoilt_error(const char *user, const void *site) {
    if (etch__tls.status != ETCH_OK) {
        etch__tls.errors++;
        return etch__tls.status;
    }
    return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                          "%s: the tensor was to be written by an operator that failed before",
                          user);
}

/* Without memory to note it nothing more is computed. */
static void spoil(trace_run *r, etch_storage *s) {
    if (is_spoilt_in(r, s)) return;
    if (!etch__grow(&r->spoilt, &r->spoilt_cap, r->nspoilt + 1, sizeof *r->spoilt)) {
        r->poisoned = true;
        return;
    }
    etch__storage_retain(s);
    r->spoilt[r->nspoilt++] = s;
    etch__tls.marked++;
}

/* ---- node by node ---- */

static void fail_handle(etch_tensor *h) {
    h->failed = 1;
    h->deferred = 0;
}

static bool gather(trace_walk *w, const trace_node *n) {
    if (!etch__grow_lines(&w->inputs, &w->inputs_cap, n->nin + 1, sizeof *w->inputs)) return false;
    bool ready = true;
    for (int i = 0; i < n->nin; i++) {
        w->inputs[i] = w->c.value[n->in[i]];
        ready &= !w->inputs[i]->failed && !etch__is_spoilt(w->inputs[i]);
    }
    return ready;
}

static void evaluate_view(trace_walk *w, const trace_node *n, etch_tensor *h) {
    h->storage = w->inputs[0]->storage;
    etch__storage_retain(h->storage);
    h->offset = w->inputs[0]->offset + etch__view_offset(w, n);
    h->deferred = 0;
}

static bool evaluate_kernel(const op_call *call, etch_tensor *h) {
    size_t bytes = (size_t)h->numel * etch_dtype_size(h->dtype);
    h->storage = etch__storage_new_on(h->device, bytes);
    h->deferred = !h->storage; /* kernels of users may call operators on it */
    if (h->storage && etch__run_kernel(call, h) == ETCH_OK) return true;
    etch__storage_release(h->storage);
    h->storage = NULL;
    return false;
}

/* The error of what was called, where it was called. An operand that failed before has its own. */
static void blame_node(const trace_node *n, bool ready) {
    const op_info *op = &etch__ops[n->part_of ? n->part_of - 1 : n->op];
    if (ready) etch__error_name(op->name, n->site, n->part_of != 0);
    else if (etch__tls.status != ETCH_OK) etch__tls.errors++;
    else
        etch__error_at(n->site, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: the computation of an operand failed before", op->name);
    etch__tls.failures++;
    if (n->c.inplace) etch__tls.lost = etch__tls.errors;
    etch__error_of_before();
}

/* A write that fails leaves its memory as it is, and fails the call. */
static void fail_node(trace_walk *w, const trace_node *n, etch_tensor *h, bool ready) {
    blame_node(n, ready);
    if (!n->c.inplace) {
        fail_handle(h);
        return;
    }
    w->run->failed = true;
    if (h->storage) spoil(w->run, h->storage);
}

/* What lies over memory that was to be written, also what was there before the write. */
static void fail_spoilt(trace_walk *w) {
    if (likely(!w->run->nspoilt)) return;
    for (int64_t i = 0; i < w->npath; i++) {
        etch_tensor *h = w->c.value[w->path[i]->c.out];
        if (!w->path[i]->c.inplace && h && !h->deferred && etch__is_spoilt(h)) fail_handle(h);
    }
}

static bool evaluate_write(const op_call *call, etch_tensor *h) {
    etch__before_write(h->storage);
    if (etch__run_kernel(call, h) != ETCH_OK) return false;
    h->storage->version++;
    return true;
}

static void evaluate_node(trace_walk *w, const trace_node *n) {
    etch_tensor *h = w->c.value[n->c.out];
    if (!gather(w, n)) {
        fail_node(w, n, h, false);
        return;
    }
    op_call call = {.op = n->op,
                    .nin = n->nin,
                    .nsc = n->nsc,
                    .nat = n->nat,
                    .part_of = n->part_of,
                    .in = w->inputs,
                    .sc = w->c.scalar + n->c.sc,
                    .at = n->dynamic ? w->ints + n->ints : n->c.at,
                    .site = n->site};
    etch__state_enter(n->c.state);
    THREAD_COUNT(operators, 1);
    if (etch__ops[n->op].kind == KIND_VIEW) evaluate_view(w, n, h);
    else if (!(n->c.inplace ? evaluate_write(&call, h) : evaluate_kernel(&call, h)))
        fail_node(w, n, h, true);
}

/* Per node, whether live deferred handles depend on it; found from the back. */
static uint8_t *nodes_for_live(const trace_walk *w) {
    int32_t nvalues = w->path[w->npath - 1]->nvalues;
    uint8_t *run_it = etch__calloc((size_t)(w->npath + nvalues) + 1, 1);
    if (!run_it) return NULL;
    uint8_t *needed = run_it + w->npath;
    for (int64_t i = w->npath - 1; i >= 0; i--) {
        const trace_node *n = w->path[i];
        const etch_tensor *h = w->c.value[n->c.out];
        if (n->c.inplace || !h->deferred) continue;
        run_it[i] = needed[n->c.out] | etch__is_live(h);
        for (int k = 0; run_it[i] && k < n->nin; k++) needed[n->in[k]] = 1;
    }
    return run_it;
}

/* Per value: the last node that is run and uses or makes it. */
static void find_last_uses(const trace_walk *w, const uint8_t *run_it, int32_t *last_use) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        if (run_it && !run_it[i]) continue;
        last_use[n->c.out] = (int32_t)i;
        for (int k = 0; k < n->nin; k++) last_use[n->in[k]] = (int32_t)i;
    }
}

/* A result that only the walk has, behind its last use: it is as if it had never been computed. */
static void drop_dead(trace_walk *w, int32_t v) {
    etch_tensor *h = w->c.value[v];
    if (h->owner != w || h->failed || h->deferred || etch__is_live(h)) return;
    etch__storage_release(h->storage);
    h->storage = NULL;
    h->deferred = 1;
}

/* last_use NULL: there is no memory to know; everything is kept until the walk goes. */
static void evaluate_path(trace_walk *w, const uint8_t *run_it, const int32_t *last_use) {
    for (int64_t i = 0; i < w->npath; i++) {
        const trace_node *n = w->path[i];
        if (run_it && !run_it[i]) continue;
        evaluate_node(w, n);
        if (!last_use) continue;
        if (last_use[n->c.out] == i) drop_dead(w, n->c.out);
        for (int k = 0; k < n->nin; k++)
            if (last_use[n->in[k]] == i) drop_dead(w, n->in[k]);
    }
}

void etch__evaluate_nodes(trace_walk *w, const uint8_t *run_it) {
    int32_t nvalues = w->path[w->npath - 1]->nvalues;
    int32_t *last_use = etch__quiet_malloc((size_t)nvalues * sizeof *last_use);
    if (last_use) find_last_uses(w, run_it, last_use);
    empty_frame frame = etch__push_frame();
    evaluate_path(w, run_it, last_use);
    fail_spoilt(w);
    frame.fp_changed = true;
    etch__pop_frame(&frame);
    etch__free(last_use);
}

etch_status etch__evaluate(trace_walk *w, bool live_only) {
    if (!w->npath) return ETCH_OK;
    uint8_t *run_it = live_only ? nodes_for_live(w) : NULL;
    if (live_only && !run_it) return ETCH_ERR_OUT_OF_MEMORY;
    if (unlikely(w->shadow != NULL) && !live_only) etch__check_before(w, NULL);
    etch__evaluate_nodes(w, run_it);
    etch__free(run_it);
    if (unlikely(w->shadow != NULL)) etch__check_after(w, NULL);
    return ETCH_OK;
}

/* ---- by a plan ---- */

bool etch__fill_alias(trace_walk *w, const int32_t *inputs, int ninputs) {
    if (!etch__grow_lines(&w->alias, &w->alias_cap, w->nvalues + 1, sizeof *w->alias)) return false;
    for (int64_t v = 0; v < w->nvalues; v++) w->alias[v] = (int32_t)v;
    for (int i = 0; i < ninputs; i++) {
        int32_t v = inputs[i];
        for (int k = 0; k < i; k++) {
            int32_t u = inputs[k];
            if (w->c.value[u]->storage == w->c.value[v]->storage) {
                w->alias[v] = w->alias[u];
                break;
            }
        }
    }
    return true;
}

bool etch__memory_overlaps(const etch_storage *a, const etch_storage *b) {
    const char *pa = a->data, *pb = b->data;
    return a != b && pa < pb + b->bytes && pb < pa + a->bytes;
}

/* Two storages can only share memory where the user wrapped it. */
static bool inputs_overlap(const trace_walk *w, const trace_leaf *leaf) {
    for (int i = 0; i < leaf->ninputs; i++) {
        int32_t v = leaf->inputs[i];
        const etch_storage *s = w->c.value[v]->storage;
        for (int k = 0; s && !s->block_bytes && k < leaf->ninputs; k++) {
            int32_t u = leaf->inputs[k];
            const etch_storage *other = w->c.value[u]->storage;
            if (other && (leaf->written[u] || leaf->written[v]) && etch__memory_overlaps(s, other))
                return true;
        }
    }
    return false;
}

static bool alias_fits(const trace_walk *w, const trace_leaf *leaf, const segment_code *code) {
    return !leaf->writes_inputs ||
           !memcmp(code->alias, w->alias, (size_t)leaf->nvalues * sizeof *code->alias);
}

static bool sizes_fit(const trace_walk *w, const trace_leaf *leaf, const segment_code *code) {
    return code->version == atomic_load_explicit(&leaf->version, memory_order_relaxed) &&
           code->nkey == w->nkey && !memcmp(code->key, w->key, (size_t)w->nkey * sizeof *w->key);
}

/* Codes of a dynamic leaf come and go, so finding one takes the function's lock and a count. */
segment_code *etch__find_instance(trace_walk *w, trace_leaf *leaf) {
    pthread_mutex_lock(&w->run->f->lock);
    segment_code *code = leaf->code;
    while (code && !(sizes_fit(w, leaf, code) && alias_fits(w, leaf, code))) code = code->next;
    if (code) atomic_fetch_add(&code->refs, 1);
    pthread_mutex_unlock(&w->run->f->lock);
    return code;
}

static segment_code *kept_instance(trace_walk *w, trace_leaf *leaf) {
    for (int i = 0; i < KEPT_CODES; i++) {
        kept_code *k = &w->kept[i];
        if (k->leaf == leaf && sizes_fit(w, leaf, k->code) && alias_fits(w, leaf, k->code))
            return k->code;
    }
    segment_code *code = etch__find_instance(w, leaf);
    if (!code) return NULL;
    kept_code *k = &w->kept[w->next_kept++ % KEPT_CODES];
    if (k->code) etch__code_release(k->leaf, k->code);
    *k = (kept_code){leaf, code};
    return code;
}

segment_code *etch__keep_instance(trace_walk *w, trace_leaf *leaf) {
    w->recent = (kept_code){leaf, kept_instance(w, leaf)};
    w->recent_sizes = w->c.sizes;
    return w->recent.code;
}

/* What ran last, if that was for these sizes: then the key need not be made. */
static segment_code *recent_code(const trace_walk *w, const trace_leaf *leaf) {
    segment_code *code = w->recent.code;
    bool same = code && w->recent.leaf == leaf && w->recent_sizes == w->c.sizes;
    if (!same || code->version != atomic_load_explicit(&leaf->version, memory_order_relaxed))
        return NULL;
    return alias_fits(w, leaf, code) ? code : NULL;
}

segment_code *etch__pick_code(trace_walk *w, trace_leaf *leaf, bool *overlap) {
    *overlap = false;
    w->nvalues = leaf->nvalues;
    if (leaf->writes_inputs &&
        ((*overlap = inputs_overlap(w, leaf)) || !etch__fill_alias(w, leaf->inputs, leaf->ninputs)))
        return NULL;
    if (leaf->dynamic) {
        w->nints = leaf->end->nints;
        segment_code *code = recent_code(w, leaf);
        if (code) return code;
        return etch__walk_key(w, leaf->inputs, leaf->ninputs) ? etch__keep_instance(w, leaf) : NULL;
    }
    segment_code *code = atomic_load_explicit(&leaf->code, memory_order_acquire);
    while (code && !alias_fits(w, leaf, code)) code = code->next;
    return code;
}

void etch__code_release(trace_leaf *leaf, segment_code *code) {
    if (!leaf->dynamic || !code || atomic_fetch_sub(&code->refs, 1) != 1) return;
    etch__plan_release(code->plan);
    etch__free(code->key);
    etch__free(code);
}

/* Gives storage to a live handle whose base was produced, or is an input. */
static void attach(trace_walk *w, const trace_leaf *leaf, const segment_code *code, int32_t v) {
    etch_tensor *h = w->c.value[v];
    if (!h->deferred || !etch__is_live(h)) return;
    int32_t slot = code->slot[v];
    const etch_tensor *base = w->c.value[leaf->base[v]];
    h->storage = slot == OUT_INPUT ? base->storage : w->outputs[slot];
    h->offset = code->offset[v] + (slot == OUT_INPUT ? base->offset : 0);
    etch__storage_retain(h->storage);
    h->deferred = 0;
}

static bool make_room(trace_walk *w, const segment_code *code) {
    return etch__grow_lines(&w->inputs, &w->inputs_cap, code->nin + 1, sizeof *w->inputs) &&
           etch__grow_lines(&w->outputs, &w->outputs_cap, code->nout + 1, sizeof *w->outputs);
}

static void bump_versions(trace_walk *w, const trace_leaf *leaf) {
    for (int i = 0; i < leaf->ninputs; i++) {
        int32_t v = leaf->inputs[i];
        if (leaf->written[v]) w->c.value[v]->storage->version++;
    }
}

/* A plan has failed with inputs half written: its segment cannot be run again in another way, which
 * would tell the operator. The error is not that of whoever ends the segment. */
static void poison(trace_walk *w) {
    w->run->poisoned = true;
    etch__error_name(w->run->f->name, NULL, false);
    etch__error_of_before();
    etch__walk_fail(w);
}

etch_status etch__run_code(trace_walk *w, const trace_leaf *leaf, const segment_code *code) {
    if (!make_room(w, code)) return ETCH_ERR_OUT_OF_MEMORY;
    for (int i = 0; i < code->nin; i++) w->inputs[i] = w->c.value[code->in[i]];
    memset(w->outputs, 0, (size_t)code->nout * sizeof *w->outputs);
    if (unlikely(w->shadow != NULL)) etch__check_before(w, leaf);
    bool wrote = false;
    plan_io io = {w->inputs, w->c.scalar, w->outputs, &wrote, false};
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, leaf->path[0]->c.state);
    int64_t start = unlikely(code->report != NULL) ? etch__report_now() : 0;
    etch_status status = code->plan->run(code->plan, &io);
    if (unlikely(start)) etch__report_add_time(&code->report->run, start);
    etch__pop_frame(&frame);
    if (unlikely(wrote)) poison(w);
    if (status != ETCH_OK) return status;
    for (int i = code->nmissing; i < code->nmade; i++) attach(w, leaf, code, code->made[i]);
    for (int i = 0; i < code->nout; i++) etch__storage_release(w->outputs[i]);
    if (unlikely(leaf->writes_inputs)) bump_versions(w, leaf);
    w->ran = code;
    if (unlikely(w->shadow != NULL)) etch__check_after(w, leaf);
    TRACE_COUNT(w->run->f, plan_runs, 1);
    return ETCH_OK;
}
