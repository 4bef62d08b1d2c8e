/* A run: one call of a compiled function, from segment to segment. */
#ifndef ETCH_TRACER_RUN_RUN_H
#define ETCH_TRACER_RUN_RUN_H

#include "tracer/learn/learn.h"
#include "tracer/run/walk.h"

typedef struct replay replay; /* tracer/run/replay.c */

/* A raw pointer that a run holds: what it has added to the storage's `exposed`. */
typedef struct exposure {
    etch_storage *storage;
    unsigned counts;
} exposure;

/* `replay = true`: what this call does, and what holds for its arguments. */
typedef struct run_replay {
    replay *made;
    const replay *holds; /* or NULL */
    trace_leaf *leaf;    /* of the first segment */
    uint64_t state;      /* when the call began */
    int broke;           /* the reason of the first break (+ 1), and where */
    const void *broke_site;
} run_replay;

/* ETCH_CHECK. */
typedef struct run_check {
    bool on, differs; /* a difference was found, the first: */
    char *text;
    const void *site;
    int lost; /* an operator whose write failed at its call (+ 1), and where */
    const void *lost_site;
} run_check;

/* Sees the ended recording of a call on shapes alone, and its results, which are deferred. */
typedef etch_status (*trace_viewer)(void *ctx, const trace_walk *w, etch_tensor *const *out);

typedef struct trace_run {
    struct trace_run *outer; /* the run in a disabled function of which this one began, or NULL */
    struct trace_run *below; /* what this thread began before it and has not ended, or NULL */
    etch_function *f;
    generation *gen;
    trace_walk *walk; /* the segment being walked; NULL between a break and the next operator */
    trace_walk *recordings; /* earlier segments of this call that were recorded */
    trace_walk *pending;    /* earlier segments some of whose live handles may still be deferred */
    int npending, recycle_at; /* how many; at how many the dead ones are looked for */
    bool eager;               /* the limit is reached: no recording until the segment ends */
    bool eager_by_stance;     /* or the stance forbids it: fullgraph does not matter */
    bool refused;             /* needed a compile that the stance forbids, and ran eagerly */
    bool write_failed;        /* one that was evaluated after its call */
    bool poisoned;            /* fullgraph failed, or a plan after writing: nothing deferred may be
                                 computed any more */
    bool marked;              /* an argument has a dimension that is marked dynamic */
    limit_warning warning;
    int disabled;              /* inside how many disabled functions */
    int nconstants;            /* calls of functions assumed constant */
    int modes;                 /* how many modes were entered before the call */
    unsigned errors;           /* the thread's when the call began */
    unsigned noted, backwards; /* the same */
    int64_t scope;             /* the call's own */
    int32_t outer_guard;       /* guard_scope before the call */
    exposure *exposed;
    int64_t nexposed, exposed_cap;
    etch_storage **spoilt; /* what failed writes were to change; a count of each */
    int64_t nspoilt, spoilt_cap;
    run_replay replay;
    run_check check;
    trace_viewer see; /* the call is made for it alone: nothing is computed; or NULL */
    void *see_ctx;
} trace_run;

/* The calling thread's run; NULL without one. */
static inline trace_run *etch__current_run(void) { return etch__tls.run; }

/* ---- attempts ---- */

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

/* ---- body.c ---- */

/* A call of a function: its arguments, room for its results, where it stands. */
typedef struct call_io {
    etch_tensor *const *in;
    etch_tensor **out;
    int nin, nout;
    const void *site;
} call_io;

/* Calls the body of f, whatever its arity. */
etch_status etch__call_body(const function_body *f, const call_io *io);
/* The body in a scope of its own, operators as the thread runs them (rule 4 of
 * docs/architecture.md). */
etch_status etch__call_in_scope(etch_function *f, const call_io *io);
etch_status etch__body_in_scope(const function_body *body, const char *name, const call_io *io);
/* What a body has returned, checked; errors: how many the thread had before it
 * (core/base/thread.h). */
etch_status etch__checked_results(const char *name, unsigned errors, etch_status status,
                                  const call_io *io);
/* The same, on top of whose scope the body has closed all others or not. */
etch_status etch__results_in_scope(const char *name, int64_t scope, unsigned errors,
                                   etch_status status, const call_io *io);
etch_status etch__scope_was_closed(void);
/* Closes what the body has opened and not closed; results pass to the scope around. */
void etch__close_deeper(int64_t scope, etch_status status, const call_io *io);
/* Whether the body, or what was computed for it, has set an error that is still there. */
static inline bool etch__own_error(unsigned errors) {
    return etch__tls.status != ETCH_OK && etch__tls.errors != errors;
}

/* ---- wrappers.c, mapped.c: handles whose calls are not those of a compiled function ---- */

/* A handle for a function of the user's; NULL with an error, which names `function`. */
etch_function *etch__wrap(etch_callable c, wrapper_kind kind, const char *function);
/* A call of one that is mapped over a batch. */
etch_status etch__call_mapped(etch_function *f, const call_io *io);

/* ---- nested.c: calls inside a run ---- */

/* The body as a part of the program that is not recorded: a break, then eager execution. */
etch_status etch__call_off(trace_run *r, etch_function *f, const call_io *io);
/* From matching to recording, at a call that needs the values of its operands (under fullgraph they
 * stay deferred). Where the limit is reached the segment goes on eagerly. */
bool etch__stop_matching(trace_run *r, const call_io *io);
/* Runs f on shapes alone and says what its one result looks like; data is neither there nor
 * changed. */
etch_status etch__learn_shapes(trace_run *r, etch_function *f, const call_io *io,
                               tensor_meta *meta);

/* ---- run.c ---- */

/* A call in a run of its own. */
etch_status etch__call_traced(etch_function *f, const call_io *io);
/* Calls f, which was never called and has fullgraph, on shapes alone for the viewer: no data is
 * read or changed, nothing is published. Results and gradients that it has left are failed. */
etch_status etch__view_call(etch_function *f, const call_io *io, trace_viewer see, void *ctx);
/* Around a call that begins runs inside a disabled function of this run. */
trace_run *etch__suspend(trace_run *r);
void etch__unsuspend(trace_run *before);

/* ---- segment.c ---- */

/* Publishes an ended recording, and compiles its leaf when it has been seen often enough. */
trace_leaf *etch__settle(trace_run *r, trace_walk *w);
/* Once, when a recompile limit has been reached; under no lock. */
void etch__warn_of_limit(trace_run *r);
/* An ended walk's leaf shall have code for its inputs. */
void etch__ask_code_for(trace_walk *w, trace_leaf *leaf);
/* A recording notes which values are wanted: all that are alive; one that is used. */
void etch__note_live(trace_walk *w, uint8_t bit);
void etch__note_used(trace_walk *w, const etch_tensor *t);
/* And the leaf of a matched walk: t, used late, or (NULL) all that is alive. */
void etch__note_used_late(trace_run *r, trace_walk *w, const etch_tensor *t);
void etch__late_use(trace_run *r, trace_walk *w, const etch_tensor *t);
void etch__late_use_all(trace_run *r);
/* etch__before_write for what the leaf's code will write. */
void etch__before_plan(const trace_walk *w, const trace_leaf *leaf);
void etch__end_recorded(trace_walk *w, const etch_tensor *t);
void etch__end_matched(trace_run *r, trace_walk *w, const etch_tensor *t);
void etch__retire_walk(trace_run *r, trace_walk *w);
void etch__end_segment(trace_run *r, reason_id why, const void *site, const etch_tensor *t);

/* ---- break.c ---- */

etch_status etch__break_graph(trace_run *r, reason_id why, const void *site, const etch_tensor *t,
                              const char *text);
trace_walk *etch__owner_in(trace_run *r, const etch_tensor *t, const void *site);
/* The failure of whatever is asked of a run that is poisoned. */
etch_status etch__poisoned(const trace_run *r, const void *site);

/* ---- recompute.c ---- */

/* Whether a handle is kept by a recipe. Not at a break that leaves values deferred: operators that
 * compute those late want storages. */
bool etch__gets_recipe(const segment_code *code, const etch_tensor *h, int32_t v);
/* Around the run of code with a recipe: makes room before (false: out of memory; *made stays NULL
 * where no tape reads what it gives), gives the tapes' handles their recipe, or lets go. */
bool etch__recipe_begin(const trace_walk *w, const segment_code *code, recipe_run **made);
void etch__recipe_end(recipe_run *run, trace_walk *w, const segment_code *code);
void etch__recipe_cancel(recipe_run *run);

/* ---- exposed.c ---- */

void etch__end_exposure(trace_run *r, const etch_storage *s);
unsigned etch__exposed_beneath(const etch_storage *s);
/* The storage's `exposed`; and what this thread's runs hold of other storages over its memory. */
static inline unsigned etch__exposed_bits(const etch_tensor *t) {
    if (!t->storage) return 0;
    unsigned bits = atomic_load_explicit(&t->storage->exposed, memory_order_relaxed);
    return unlikely(etch__tls.marked) ? bits | etch__exposed_beneath(t->storage) : bits;
}
reason_id etch__runs_at_once(const op_call *call);

/* ---- operator.c ---- */

bool etch__root_limited(trace_run *r, trace_tree *tree);
void etch__follow(trace_run *r, trace_walk *w);
trace_walk *etch__begin_recording(trace_run *r);
void etch__obey_stance(trace_run *r, const void *site);
bool etch__outdated(const trace_run *r);
bool etch__go_on_eagerly(trace_run *r, trace_walk *w);

/* ---- wrappers.c ---- */

/* A call of a function with a wrapper kind. */
etch_status etch__call_wrapped(etch_function *f, const call_io *io);

/* ---- check.c ---- */

/* Keeps and logs the call's first difference; sets the error of one. */
void etch__check_failed(trace_run *r, const void *site, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The call has succeeded: it must not where a write failed. */
void etch__check_lost(trace_run *r);
etch_status etch__check_report(const trace_run *r);
/* Same sizes and bits, of one dtype. */
bool etch__same_values(const etch_tensor *a, const etch_tensor *b);

/* ---- replay.c: calls that do not run the body (`replay = true`) ---- */

/* What holds for such arguments, or NULL. */
const replay *etch__replay_find(const generation *g, const call_io *io);
trace_tree *etch__replay_tree(const replay *p);
/* Keeps in r->replay what the body has done, before the call's scope is closed; says once why it
 * cannot be replayed. */
void etch__replay_note(trace_run *r, const call_io *io);
/* Lets calls find it if it has code now. */
void etch__replay_publish(trace_run *r, bool ended_well);
/* Under ETCH_CHECK the body has run instead: finds the first difference. */
void etch__replay_compare(trace_run *r, const replay *p, etch_tensor *const *out);
/* In place of the body. */
etch_status etch__replay_run(trace_run *r, const replay *p, const call_io *io);

#endif
