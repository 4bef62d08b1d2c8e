/* The thread's state: what the fast path of every operator looks at, scopes, the last error. */
#ifndef ETCH_CORE_BASE_THREAD_H
#define ETCH_CORE_BASE_THREAD_H

#include <etch/etch.h>

#include "core/base/base.h"

/* Counts kept per thread, because a locked add per operator would cost more than the rest. Written
 * by the owner only, read by etch__thread_counts while they move. */
typedef struct thread_counts {
    int64_t tensors, operators, allocations, kernel_launches, library_calls;
    int64_t small_bytes; /* of storages: made less destroyed, not yet counted for all threads */
} thread_counts;

/* Adds n to one of the calling thread's counts: two plain moves, but no data race. */
#define THREAD_COUNT(name, n)                                                                      \
    __atomic_store_n(&etch__tls.counts.name, etch__tls.counts.name + (n), __ATOMIC_RELAXED)

/* The thread's texts, in a block of their own: a library that dlopen loads shares 512 bytes of
 * static thread-locals with all others, and the hot words below have to lie there. */
typedef struct thread_texts {
    char error[1024];
    error_notes notes; /* on that error */
    char why[2048];    /* why the thread's last compile failed: the log of a compiler is long */
} thread_texts;

/* A variable that etch_assign has given a tensor: see core/tensor/scope.c. */
typedef struct scope_variable {
    etch_tensor **variable;
    etch_tensor *held;
    int64_t scope;
} scope_variable;

typedef struct scope_variables {
    scope_variable *v;
    int64_t n, cap;
} scope_variables;

/* The layers of the dispatcher (core/dispatch/dispatch.h), outermost first. */
typedef enum dispatch_layer {
    LAYER_COMPOSITE_MODES, /* modes that take composites before they are taken apart */
    LAYER_FORWARD,
    LAYER_AUTOGRAD,
    LAYER_VMAP,
    LAYER_MODES,
    LAYER_TRACER,
    LAYER_COUNT
} dispatch_layer;

/* A call of a mapped function, or a level of forward mode, that has not ended. */
typedef struct batch_level {
    uint32_t level;
    uint8_t randomness; /* etch_randomness */
    int64_t size;       /* samples */
    int64_t scope;      /* with which it ends at the latest */
} batch_level;
enum { OPEN_LEVELS = 8 };
typedef struct open_levels {
    batch_level mapped[OPEN_LEVELS], tangents[OPEN_LEVELS];
    struct listed_tangent *listed[OPEN_LEVELS]; /* the tangents of each, under LOCK_TANGENTS */
} open_levels;

typedef struct etch_thread {
    /* Non-NULL when operators may be matched against a trace and nothing else intercepts. */
    struct trace_cursor *cursor;
    uint64_t state;     /* the state word but for the processor's part: see etch__state_now */
    uint32_t layers;    /* bit per active dispatch layer (dispatch_layer) */
    unsigned number;    /* given out in turn: which of several places a thread prefers */
    etch_status status; /* of the last error, which stands below */
    bool registered;
    bool in_flush;    /* inside a flush: operators run eagerly, outer deferred handles are errors */
    bool own_kernels; /* a device compiles its own kernel of an operator: overrides do not count */
    uint8_t lost_scopes; /* how many of the open ones there was no memory for */

    /* Scopes: the items of scope k are items[scope_start[k] .. scope_start[k + 1]). */
    etch_tensor **items;
    int64_t nitems, items_cap;
    int64_t *scope_start;
    int64_t nscopes, scopes_cap;
    scope_variables *variables; /* NULL until etch_assign is first used */
    int32_t body_scope;         /* the scope of the function body that runs, -1 without one: what a
                            variable holds (etch_assign) goes no further out */
    int32_t guard_scope; /* the running compiled call's own scope, -1 without one: closing it or an
                            outer one from elsewhere abandons the run */
    struct trace_run *run;       /* the tracer's */
    struct trace_walk *borrower; /* the first of those that use arguments without a count of them */

    /* The tracer's runs that have not ended, innermost first; the last function of the user that
       was called between two operators of theirs; how many ended segments of theirs may have
       deferred values, and such functions (0: a write need tell nobody); raw pointers that they
       hold, and memory to which their writes failed. */
    struct trace_run *runs;
    struct empty_frame *interrupted;
    int watches, marked;
    unsigned noted, backwards; /* operators that were noted for gradients; backward passes */

    /* Transforms (docs/transforms.md): how many levels of mapped functions and of forward mode are
       open (which, stands in a block of its own, made with the first); whether a backward pass
       runs; only tangents of lower levels than this one count, 0: all. */
    struct open_levels *open;
    uint8_t nlevels, ntangents; /* at most OPEN_LEVELS */
    uint16_t backward_depth;
    uint32_t tangent_limit;

    const struct op_call *composite; /* while one is taken apart: the user's call, else NULL */

    /* Interceptor modes (core/dispatch/mode.c): the stack, how many of it are active, below which
       none may be left now; the call that a handler is handling, and the random scalars that it
       passes on. */
    etch_mode **modes;
    int64_t modes_cap;
    int nmodes, mode_level, mode_floor;
    int nspare; /* of the dead handles below */
    const struct op_call *handled;
    const etch_scalar *replayed;

    /* The error. `errors` counts failures, those that keep an older error's text included, so that
       what failed within a call is told from what had failed before. */
    unsigned errors;
    unsigned lost;     /* `errors` when an operator that writes failed last; 0: cleared since */
    unsigned failures; /* operators that failed when they were computed, after their calls */
    bool forms_held;   /* see core/tensor/forms.h; here, where it takes no room */
    const void *error_site;
    const char *error, *why; /* never NULL; in the texts, or constant where there is no room */
    thread_texts *texts;     /* made when the first one is written */

    struct thread_stack *stack; /* see core/base/stack.h; NULL until a kernel runs */

    etch_tensor **spare;         /* dead handles for reuse (core/tensor/tensor.c) */
    struct trace_run *spare_run; /* for the next call (tracer/run/run.c) */

    thread_counts counts;
    struct etch_thread *next;
} etch_thread;

extern __thread etch_thread etch__tls
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The state word, what a recorded operator depends on beside its operands: bits 0 no gradients, 1
 * inference, 2-3 numerics, 4-5 matmul precision, 8-15 default dtype, 16-31 device, 32-47 how the
 * processor computes (FP_MODE of MXCSR), which etch__tls.state has not. */
#define STATE_NO_GRAD 1u
#define STATE_INFERENCE 2u
#define STATE_TUNED 4u /* relaxed numerics: a product may take the algorithm that proved fastest */
/* What an operator's result depends on: all but how its calls are noted and offered to modes. */
#define STATE_COMPUTES (~(uint64_t)(STATE_NO_GRAD | STATE_INFERENCE))
#define STATE_DTYPE(word) ((etch_dtype)(((word) >> 8) & 0xff))
#define STATE_PRECISION(word) ((etch_matmul_precision)(((word) >> 4) & 3))
#define STATE_DEVICE(word) ((int)(((word) >> 16) & 0xff))
#define STATE_ON_DEVICE(word, device) (((word) & ~(0xffull << 16)) | (uint64_t)(device) << 16)

/* ---- how the processor computes ----
 *
 * MXCSR is the program's, by fesetround, _MM_SET_FLUSH_ZERO_MODE, feenableexcept and the like, and
 * nobody is told. So how it rounds, and whether denormals are zero, is read at each operator. What
 * the program lets trap is masked while the library computes: lanes of vectors beyond the data, and
 * branches not taken, would trap as well. Flags of exceptions are no state. */
#define FP_MODE 0xe040u
#define FP_TRAPS 0x1f80u /* where set, the exception is masked */
#define STATE_FP(word) ((unsigned)((word) >> 32) & FP_MODE)

/* By builtins: the header of the intrinsics brings in half of the C library. */
static inline unsigned etch__fp_now(void) { return __builtin_ia32_stmxcsr(); }
static inline void etch__fp_set(unsigned mxcsr) { __builtin_ia32_ldmxcsr(mxcsr); }

static inline uint64_t etch__state_now(void) {
    return etch__tls.state | (uint64_t)(etch__fp_now() & FP_MODE) << 32;
}

/* Mode and traps as in `control`; the flags stay. */
static inline void etch__fp_control(unsigned control) {
    unsigned now = etch__fp_now(), bits = FP_MODE | FP_TRAPS;
    if (unlikely((now ^ control) & bits)) etch__fp_set((control & bits) | (now & ~bits));
}

/* For what is computed once and kept, whatever the mode of the program that asks first: to nearest,
 * denormals as they are. Returns the control that etch__fp_control takes back. */
static inline unsigned etch__fp_plain(void) {
    unsigned before = etch__fp_now();
    etch__fp_control(FP_TRAPS);
    return before;
}

/* Nothing traps from here on, until etch__fp_unmask with what this returns. */
static inline unsigned etch__fp_mask(void) {
    unsigned now = etch__fp_now();
    if (unlikely(~now & FP_TRAPS)) etch__fp_set(now | FP_TRAPS);
    return now;
}
static inline void etch__fp_unmask(unsigned before) {
    if (unlikely(~before & FP_TRAPS))
        etch__fp_set((before & FP_TRAPS) | (etch__fp_now() & ~FP_TRAPS));
}

/* The settings of a recorded operator, which runs now. */
static inline void etch__state_enter(uint64_t word) {
    etch__tls.state = (uint32_t)word;
    etch__fp_control(STATE_FP(word) | FP_TRAPS);
}

/* Puts the calling thread on the list; done by the first scope, handle or text of a thread. */
void etch__thread_register(void);
thread_counts etch__thread_counts(void);

/* What runs when a thread ends, in the order in which the parts say so as they start. */
void etch__at_thread_end(void (*end)(etch_thread *t));

#endif
