/* Moving walks along: making and giving up, matching, recording, evaluating, running code. */
#ifndef ETCH_TRACER_RUN_WALK_H
#define ETCH_TRACER_RUN_WALK_H

#include "tracer/trace/walk.h"

struct trace_run;

/* ---- walk.c ---- */

trace_walk *etch__walk_take(struct trace_run *r, trace_tree *tree);
/* Room for every node that the tree has now. */
bool etch__walk_fit(trace_walk *w);
/* Sizes are no longer those that the walk has seen. */
void etch__walk_changed(trace_walk *w);
/* The sizes of an argument or a captured tensor, where they are run-time. */
void etch__walk_see(trace_walk *w, int32_t value, const etch_tensor *t);
/* A handle with the looks of t over a storage (or NULL), of which it takes a count. */
etch_tensor *etch__handle_like(const etch_tensor *t, etch_storage *s, int64_t offset);
/* A deferred handle of the walk's; and the spare one of a node. NULL with out_of_memory. */
etch_tensor *etch__deferred_handle(trace_walk *w, const tensor_meta *meta, int32_t value);
etch_tensor *etch__walk_handle(trace_walk *w, const trace_node *n);
/* Whether a value of the walk lies over s (NULL: over memory that the user holds). */
bool etch__walk_touches(const trace_walk *w, const etch_storage *s);
/* Gives up everything the walk holds and puts it back to its tree, or frees it. */
void etch__walk_recycle(trace_walk *w);
bool etch__walk_bind_args(trace_walk *w, etch_tensor *const *in, int nin);
/* Takes a count of each argument where the walk has none yet. */
void etch__walk_own_args(trace_walk *w);
/* Fills path with the nodes from the root to the last matched one. */
bool etch__walk_path(trace_walk *w);
/* What is still deferred fails: there is no memory to compute it. */
void etch__walk_fail(trace_walk *w);
/* An ended recording gives up its counts: what it has met it need only know again. */
void etch__walk_watch(trace_walk *w);
/* How many counts of t the walk has. */
int etch__walk_counts(const trace_walk *w, const etch_tensor *t);
/* Of an ended walk: the aliasing of its inputs; of a dynamic one the key of its sizes, and the
 * metas of all values while it still holds them. */
bool etch__walk_alias(trace_walk *w, const int32_t *inputs, int ninputs);
bool etch__walk_key(trace_walk *w, const int32_t *inputs, int ninputs);
bool etch__walk_metas(trace_walk *w);
void etch__drop_kept_inputs(trace_walk *w);

/* ---- match.c ---- */

/* The deferred handle of a call that the tree has next; NULL without an error if it has not. */
etch_tensor *etch__walk_match(trace_walk *w, const op_call *call);
/* Notes the attribute words of a dynamic node's call, and how far a view's offset is from its
 * base's. */
void etch__walk_put_ints(trace_walk *w, const trace_node *n, const op_call *call,
                         int64_t view_offset);
/* Whether the tree has, next, a call that differs in nothing but sizes. */
bool etch__walk_similar(const trace_walk *w, const op_call *call);

/* ---- record.c ---- */

etch_tensor *etch__walk_record(trace_walk *w, const op_call *call);
/* From matching to recording after the nodes matched so far: they run through the eager kernels,
 * or stay deferred where shapes only are recorded. */
bool etch__walk_to_recording(trace_walk *w, walk_mode mode);

/* ---- makers.c: nodes by what they make ---- */

/* The node whose result a deferred handle of a walk stands for; NULL: none's. */
const trace_node *etch__node_of(const etch_tensor *t);
/* How often what the walk has deferred writes the memory of root, which `same` decides. */
typedef bool (*same_memory)(const etch_tensor *written, const etch_tensor *root);
unsigned etch__walk_writes(trace_walk *w, const etch_tensor *root, same_memory same);
void etch__makers_free(trace_walk *w);

/* ---- values.c: values by address, in recordings ---- */

/* The number of a value, -1 if the walk has not met the tensor. */
int32_t etch__walk_find(const trace_walk *w, const etch_tensor *t);
/* Notes the number of a value, for which there must be room: that of so many more. */
void etch__walk_number(trace_walk *w, int32_t value);
bool etch__walk_room_for_numbers(trace_walk *w, int64_t more);
void etch__walk_forget_numbers(trace_walk *w);

/* ---- evaluate.c: nodes through the eager kernels ---- */

/* Runs the path's nodes one by one, each under its own state word, into the handles that stand for
 * them. live_only: just what the live deferred handles need. Failures mark handles as failed. */
etch_status etch__evaluate(trace_walk *w, bool live_only);
/* Per node of the path whether it is run; NULL: all. */
void etch__evaluate_nodes(trace_walk *w, const uint8_t *run_it);

/* Whether a write to the tensor's memory has failed in one of this thread's runs: then it is not
 * what the program has computed. */
bool etch__find_spoilt(const etch_tensor *t);
static inline bool etch__is_spoilt(const etch_tensor *t) {
    return unlikely(etch__tls.marked) && etch__find_spoilt(t);
}
/* Sets the error of using it, where there is none: the first one stays. */
etch_status etch__spoilt_error(const char *user, const void *site);

/* ---- code.c: plans ---- */

/* The code of the leaf for the aliasing (and, where it is dynamic, the sizes) of this walk's
 * inputs; NULL where there is none. overlap: two different storages share memory, which no code
 * handles. The walk keeps what it gets. */
segment_code *etch__pick_code(trace_walk *w, trace_leaf *leaf, bool *overlap);
/* Of a dynamic leaf, by the key and aliasing that the walk has already. */
segment_code *etch__keep_instance(trace_walk *w, trace_leaf *leaf);
/* Runs a plan and gives storage to the live handles. */
etch_status etch__run_code(trace_walk *w, const trace_leaf *leaf, const segment_code *code);

/* ---- late.c: late values that depend on memory which their own segment writes ---- */

/* Before the code of a lean leaf runs: copies what it writes, if somebody waits for what is gone
 * then. false: there is no memory for it. */
bool etch__keep_inputs(trace_walk *w, const trace_leaf *leaf, const segment_code *code);
/* Whether late values of an ended walk are made of that memory, as it is. */
bool etch__late_reads(const trace_walk *w, const etch_storage *s);
/* Computes all that is alive and deferred of an ended walk of a lean leaf, from inputs alone. */
etch_status etch__evaluate_kept(trace_walk *w);

/* ---- check.c: ETCH_CHECK=1 ---- */

bool etch__checking(void);
/* The node has just been matched or recorded, deferred: its shadow is computed. */
void etch__check_call(trace_walk *w, const trace_node *n);
/* Around what makes the walk's values real (leaf NULL: along w->path). */
void etch__check_before(trace_walk *w, const trace_leaf *leaf);
void etch__check_after(trace_walk *w, const trace_leaf *leaf);
void etch__shadow_free(struct shadow *s);

#endif
