/* Running what was deferred all at once: the code of a leaf that fits the walk's inputs, and its
 * plan. */
#include "core/tensor/forms.h"
#include "guards/alias.h"
#include "tracer/run/run.h"
#include "tracer/tell/report.h"

static segment_code *kept_instance(trace_walk *w, trace_leaf *leaf) {
    for (int i = 0; i < KEPT_CODES; i++) {
        kept_code *k = &w->sizes.kept[i];
        if (k->leaf == leaf && etch__instance_fits(leaf, k->code, &w->seen)) return k->code;
    }
    pthread_mutex_lock(&w->run->f->lock);
    segment_code *code = etch__find_instance(leaf, &w->seen);
    pthread_mutex_unlock(&w->run->f->lock);
    if (!code) return NULL;
    kept_code *k = &w->sizes.kept[w->sizes.next_kept++ % KEPT_CODES];
    if (k->code) etch__code_release(k->leaf, k->code);
    *k = (kept_code){leaf, code};
    return code;
}

segment_code *etch__keep_instance(trace_walk *w, trace_leaf *leaf) {
    w->sizes.recent = (kept_code){leaf, kept_instance(w, leaf)};
    w->sizes.recent_stamp = w->c.sizes;
    return w->sizes.recent.code;
}

/* What ran last, if that was for these sizes: then the key need not be made. */
static segment_code *recent_code(const trace_walk *w, const trace_leaf *leaf) {
    segment_code *code = w->sizes.recent.code;
    bool same = code && w->sizes.recent.leaf == leaf && w->sizes.recent_stamp == w->c.sizes;
    if (!same || code->version != atomic_load_explicit(&leaf->version, memory_order_relaxed))
        return NULL;
    return etch__alias_fits(leaf, code, w->seen.alias) ? code : NULL;
}

segment_code *etch__pick_code(trace_walk *w, trace_leaf *leaf, bool *overlap) {
    *overlap = false;
    w->nvalues = leaf->nvalues;
    const int32_t *inputs = leaf->inputs;
    if (leaf->writes_inputs) {
        *overlap = etch__alias_overlaps(w->c.value, inputs, leaf->ninputs, leaf->written);
        if (*overlap || !etch__walk_alias(w, inputs, leaf->ninputs)) return NULL;
    }
    if (leaf->dynamic) {
        w->seen.nints = leaf->end->nints;
        segment_code *code = recent_code(w, leaf);
        if (code) return code;
        return etch__walk_key(w, inputs, leaf->ninputs) ? etch__keep_instance(w, leaf) : NULL;
    }
    segment_code *code = atomic_load_explicit(&leaf->code, memory_order_acquire);
    while (code && !etch__alias_fits(leaf, code, w->seen.alias)) code = code->next;
    return code;
}

/* Gives storage to a live handle whose base was produced, or is an input. */
static void attach(trace_walk *w, const trace_leaf *leaf, const segment_code *code, int32_t v) {
    etch_tensor *h = w->c.value[v];
    if (!h->deferred || !etch__is_live(h)) return;
    int32_t slot = code->slot[v];
    const etch_tensor *base = w->c.value[leaf->base[v]];
    h->storage = slot == OUT_INPUT ? base->storage : w->room.outputs[slot];
    h->offset = code->offset[v] + (slot == OUT_INPUT ? base->offset : 0);
    etch__storage_retain(h->storage);
    h->deferred = 0;
}

static bool make_room(trace_walk *w, const segment_code *code) {
    return etch__grow_lines(&w->room.inputs, &w->room.inputs_cap, code->nin + 1,
                            sizeof *w->room.inputs) &&
           etch__grow_lines(&w->room.outputs, &w->room.outputs_cap, code->nout + 1,
                            sizeof *w->room.outputs);
}

/* As often as the operators would have written, inputs and what was made here alike: plans count no
 * writes. */
static void note_writes(trace_walk *w, const trace_leaf *leaf, const segment_code *code) {
    for (int i = 0; i < leaf->npath; i++) {
        const trace_node *n = leaf->path[i];
        if (!n->c.inplace) continue;
        int32_t v = leaf->base[n->in[0]], slot = code->slot[v];
        etch_storage *s = slot == OUT_INPUT ? w->c.value[v]->storage
                          : slot >= 0       ? w->room.outputs[slot]
                                            : NULL;
        if (s) etch__note_write(s, n->op, n->site);
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

/* false: one was deferred when it was captured, and has failed since. */
static bool take_inputs(trace_walk *w, const segment_code *code) {
    bool there = true;
    for (int i = 0; i < code->nin; i++) {
        w->room.inputs[i] = w->c.value[code->in[i]];
        there &= !w->room.inputs[i]->failed;
    }
    return there;
}

etch_status etch__run_code(trace_walk *w, const trace_leaf *leaf, const segment_code *code) {
    if (!make_room(w, code)) return ETCH_ERR_OUT_OF_MEMORY;
    if (unlikely(!take_inputs(w, code))) return ETCH_ERR_USER; /* the eager kernels say why */
    memset(w->room.outputs, 0, (size_t)code->nout * sizeof *w->room.outputs);
    if (unlikely(w->shadow != NULL)) etch__check_before(w, leaf);
    bool wrote = false;
    recipe_run *again = NULL;
    if (unlikely(code->recipe != NULL) && !etch__recipe_begin(w, code, &again))
        return ETCH_ERR_OUT_OF_MEMORY;
    plan_io io = {w->room.inputs, w->c.scalar, w->room.outputs, &wrote, false};
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, leaf->path[0]->c.state);
    int64_t start = unlikely(code->report != NULL) ? etch__now() : 0;
    bool writes = leaf->npath && leaf->path[leaf->npath - 1]->nwrites;
    bool held = etch__forms_hold(writes || etch__tls.forms_held);
    etch_status status = code->plan->run(code->plan, &io);
    etch__forms_hold(held);
    if (unlikely(start)) etch__report_add_time(&code->report->run, start);
    etch__pop_frame(&frame);
    if (unlikely(wrote)) poison(w), note_writes(w, leaf, code);
    if (status != ETCH_OK) return etch__recipe_cancel(again), status;
    for (int i = code->nmissing; i < code->nmade; i++) attach(w, leaf, code, code->made[i]);
    if (unlikely(again != NULL)) etch__recipe_end(again, w, code);
    if (unlikely(writes)) note_writes(w, leaf, code);
    for (int i = 0; i < code->nout; i++) etch__storage_release(w->room.outputs[i]);
    w->end.ran = code;
    if (unlikely(w->shadow != NULL)) etch__check_after(w, leaf);
    TRACE_COUNT(w->run->f, plan_runs, 1);
    return ETCH_OK;
}
