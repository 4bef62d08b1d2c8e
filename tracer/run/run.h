/* A run: one call of a compiled function, from segment to segment. */
#ifndef ETCH_TRACER_RUN_H
#define ETCH_TRACER_RUN_H

#include "tracer/trace/trace.h"

/* The calling thread's run; NULL without one. */
static inline trace_run *etch__current_run(void) { return etch__tls.run; }

/* Calls the body of f, whatever its arity. */
etch_status etch__call_body(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                            int nout);

/* A run holds the function, which may be freed meanwhile. Returns where it is counted. */
unsigned etch__function_pin(etch_function *f);
void etch__function_unpin_at(etch_function *f, unsigned shard);
/* A run gives up its hold on the function, the last one frees it. */
void etch__function_unpin(etch_function *f);

/* Whether nothing may be compiled: ETCH_COMPILE_DISABLE or the option. */
bool etch__disabled(const etch_function *f);

etch_function *etch__function_new(function_kind kind, void (*fn)(void),
                                  const etch_compile_options *options);

/* What a body has returned, checked; errors: how many the thread had before it
 * (core/base/thread.h). */
etch_status etch__checked_results(const etch_function *f, unsigned errors, etch_status status,
                                  etch_tensor *const *out, int nout);
/* For wrappers: the body in a scope of its own, operators as the thread runs them. */
etch_status etch__call_in_scope(etch_function *f, etch_tensor *const *in, int nin,
                                etch_tensor **out, int nout);
/* The body as a part of the program that is not recorded: a break, then eager execution. */
etch_status etch__call_off(trace_run *r, etch_function *f, etch_tensor *const *in, int nin,
                           etch_tensor **out, int nout, const void *site);
/* From matching to recording, at a call that needs the values of its operands (under fullgraph they
 * stay deferred). Where the limit is reached the segment goes on eagerly. */
bool etch__stop_matching(trace_run *r, etch_tensor *const *in, int nin);
/* Runs f on shapes alone and says what its one result looks like; data is neither there nor
 * changed. */
etch_status etch__learn_shapes(trace_run *r, etch_function *f, etch_tensor *const *in, int nin,
                               tensor_meta *meta);

/* etch__error_save and _restore where there is mostly no error, and none comes. */
static inline void etch__quick_save(saved_error *to) {
    to->status = etch__tls.status;
    to->errors = etch__tls.errors, to->lost = etch__tls.lost;
    if (unlikely(to->status != ETCH_OK)) etch__error_save(to);
}
static inline void etch__quick_restore(const saved_error *from) {
    if (unlikely(etch__tls.errors != from->errors)) etch__error_restore(from);
}

/* Around work of the library that has more than one way to its end, and within which operators that
 * were called before may be computed. If none of these fails (then etch__succeeded is true), what
 * failed on the way is nobody's error: the older one, or none, is back. */
typedef struct attempt {
    saved_error before;
    unsigned failures;
} attempt;
static inline void etch__attempt(attempt *a) {
    etch__quick_save(&a->before);
    a->failures = etch__tls.failures;
}
static inline bool etch__succeeded(const attempt *a) {
    if (unlikely(etch__tls.failures != a->failures)) return false;
    etch__quick_restore(&a->before);
    return true;
}

/* No operator is matched any more until a walk is followed again. */
#define STOP_TRACING (etch__tls.cursor = NULL)

/* tracer/run/segment.c */
trace_leaf *etch__settle(trace_run *r, trace_walk *w);
void etch__mark_live(trace_walk *w, uint8_t bit);
void etch__want_late(trace_run *r, trace_walk *w, const etch_tensor *t);
void etch__late_use(trace_run *r, trace_walk *w, const etch_tensor *t);
void etch__late_use_all(trace_run *r);
void etch__before_traced_write(const etch_storage *s);
/* The same for what the leaf's code will write. */
void etch__before_plan(const trace_walk *w, const trace_leaf *leaf);
/* Everything that is deferred on this thread, as etch_flush promises. */
void etch__produce_all(const void *site);
void etch__mark_want(trace_walk *w, const etch_tensor *t);
void etch__end_recorded(trace_walk *w, const etch_tensor *t);
void etch__end_matched(trace_run *r, trace_walk *w, const etch_tensor *t);
void etch__retire_walk(trace_run *r, trace_walk *w);
void etch__end_segment(trace_run *r, reason_id why, const void *site, const etch_tensor *t);

/* tracer/run/break.c */
etch_status etch__break_graph(trace_run *r, reason_id why, const void *site, const etch_tensor *t,
                              const char *text);
trace_walk *etch__owner_in(trace_run *r, const etch_tensor *t, const void *site);
etch_status etch__trace_read(const etch_tensor *t, reason_id why, const void *site);
bool etch__trace_same_storage(const etch_tensor *a, const etch_tensor *b);
int64_t etch__trace_offset(const etch_tensor *t);
void etch__end_exposure(trace_run *r, const etch_storage *s);
etch_status etch__trace_expose(const etch_tensor *t, unsigned counts, const void *site);
unsigned etch__exposed_beneath(const etch_storage *s);
/* The storage's `exposed`; and what this thread's runs hold of other storages over its memory. */
static inline unsigned etch__exposed_bits(const etch_tensor *t) {
    if (!t->storage) return 0;
    unsigned bits = atomic_load_explicit(&t->storage->exposed, memory_order_relaxed);
    return unlikely(etch__tls.marked) ? bits | etch__exposed_beneath(t->storage) : bits;
}
reason_id etch__runs_at_once(const op_call *call);

/* The failure of whatever is asked of a run that is poisoned. */
etch_status etch__poisoned(const trace_run *r, const void *site);

/* tracer/run/operator.c */
bool etch__root_limited(trace_run *r, trace_tree *tree);
void etch__follow(trace_run *r, trace_walk *w);
trace_walk *etch__begin_recording(trace_run *r);
void etch__obey_stance(trace_run *r, const void *site);
bool etch__outdated(const trace_run *r);
bool etch__go_on_eagerly(trace_run *r, trace_walk *w);
etch_tensor *etch__traced_operator(const op_call *call);

/* tracer/run/wrappers.c: a call of a function with a wrapper kind. */
etch_status etch__call_wrapped(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout, const void *site);
void etch__constants_free(struct constant *c);

/* tracer/run/check.c: ETCH_CHECK=1 */
bool etch__checking(void);
/* The node has just been matched or recorded, deferred: its shadow is computed. */
void etch__check_call(trace_walk *w, const trace_node *n);
/* Around what makes the walk's values real (leaf NULL: along w->path). */
void etch__check_before(trace_walk *w, const trace_leaf *leaf);
void etch__check_after(trace_walk *w, const trace_leaf *leaf);
void etch__shadow_free(struct shadow *s);
/* Keeps and logs the call's first difference; sets the error of one. */
void etch__check_failed(trace_run *r, const void *site, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The call has succeeded: it must not where a write failed. */
void etch__check_lost(trace_run *r);
etch_status etch__check_report(const trace_run *r);
/* Same sizes and bits, of one dtype. */
bool etch__same_values(const etch_tensor *a, const etch_tensor *b);

/* tracer/run/replay.c: calls that do not run the body (`replay = true`) */
void etch__replay_free(replay *p);
/* What holds for such arguments, or NULL. */
const replay *etch__replay_find(const generation *g, etch_tensor *const *in, int nin, int nout);
trace_tree *etch__replay_tree(const replay *p);
/* Keeps in r->replay what the body has done, before the call's scope is closed; says once why it
 * cannot be replayed. */
void etch__replay_note(trace_run *r, etch_tensor *const *out, int nout);
/* Lets calls find it if it has code now. */
void etch__replay_publish(trace_run *r, bool ended_well);
/* Under ETCH_CHECK the body has run instead: finds the first difference. */
void etch__replay_compare(trace_run *r, const replay *p, etch_tensor *const *out);
/* In place of the body. */
etch_status etch__replay_run(trace_run *r, const replay *p, etch_tensor **out, int nout);

/* tracer/learn/background.c: compiling beside the program (`background = true`) */
/* The leaf shall have code: compiled here, or by the thread in the background. */
void etch__want_code(etch_function *f, trace_leaf *leaf, trace_walk *w);
/* Its code is provisional: the thread in the background compiles what comes in its place. */
void etch__want_better(etch_function *f, trace_leaf *leaf, trace_walk *w);
void etch__background_forget(etch_function *f);
/* For tests: until nothing is left to compile. */
void etch__background_wait(void);

/* tracer/learn/stance.c */
extern _Atomic int etch__stance; /* an etch_stance */
static inline bool etch__may_compile(void) {
    return likely(atomic_load_explicit(&etch__stance, memory_order_relaxed) <
                  ETCH_STANCE_EAGER_ON_RECOMPILE);
}
/* Whether every compiled function runs eagerly here: the stance, or a function disabled with all
 * that it calls. */
bool etch__forced_eager(void);
/* Around the body of the latter; leaving gets what entering gave. */
int etch__enter_disabled(bool recursive);
void etch__leave_disabled(int before);
/* After a longjmp. */
void etch__reset_disabled(void);
/* Sets the error of fail_on_recompile. */
etch_status etch__refuse_compile(const etch_function *f, const void *site);

#endif
