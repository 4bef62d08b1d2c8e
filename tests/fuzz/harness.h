/* Running one body eagerly and compiled, side by side, and comparing everything that can be seen.
 *
 * A *world* is one of the two sides: its function, its tensors that live on from call to call, and
 * what its last call let be seen (values read, errors, texts). The body works on numbered tensors
 * v[]: arguments, then captured globals, then results. It is the fuzzer's interpreter, or the C
 * code that the fuzzer prints for a program with a difference; both call the same functions.
 * Whatever changes between calls depends on the call's *variant*, call % period, so that every
 * variant comes again; only data and varying scalars are of the call alone.
 *
 * Both worlds have their tensors on the current device; with `beside_cpu` the eager one on the CPU,
 * so that the device is compared with it. Then, and on a device, there is no raw memory: what would
 * touch it only exposes it, and wrapped inputs are contiguous ones. */
#ifndef ETCH_TESTS_FUZZ_HARNESS_H
#define ETCH_TESTS_FUZZ_HARNESS_H

#include <etch/etch.h>

enum {
    FUZZ_MAX_INPUTS = 4,
    FUZZ_MAX_OUTPUTS = 3,
    FUZZ_MAX_VARS = 120,
    FUZZ_MAX_SIZES = 6,
    FUZZ_MAX_SETS = 3,
    FUZZ_MAX_VARIANTS = 3,
    FUZZ_MAX_EVENTS = 256,
    FUZZ_MAX_KEPT = 8,
    FUZZ_MAX_NUMEL = 1 << 15
};

/* Events that are not to be: a failure that says ok of itself, a handle that is deferred after
 * etch_flush. The first one plus a status: an error. */
#define FUZZ_NO_STATUS 0x5bd1e995e0000000u /* no number that a program is likely to see */
#define FUZZ_STILL_DEFERRED 0x5bd1e995d0000000u
/* A write whose memory is asked for has failed on its data. */
#define FUZZ_LOST 0x5bd1e995c0000000u
/* A gradient that backward has put elsewhere than it promises, on either side: a difference. */
#define FUZZ_STRAY_GRAD 0x5bd1e995f0000000u

/* What is done to a tensor by other code than the body, and where that is called. */
typedef enum fuzz_action {
    FUZZ_COMPUTE,
    FUZZ_WRITE,      /* an operator in place */
    FUZZ_WRITE_READ, /* and then an element is asked for */
    FUZZ_POKE,       /* through a pointer, which stays good until the call ends */
    FUZZ_POKE_END,   /* through a pointer that is given back */
    FUZZ_PEEK,       /* reads through a pointer */
    FUZZ_FLUSH_WRITE,
    FUZZ_WRITE_FAIL, /* the function returns an error after it has written */
    FUZZ_ACTIONS
} fuzz_action;
typedef enum fuzz_place {
    FUZZ_IN_DISABLED, /* a function that compiled code does not look into */
    FUZZ_INLINE,
    FUZZ_ON_THREAD, /* after etch_flush */
    FUZZ_IN_KERNEL, /* of an operator with `effects` */
    FUZZ_IN_FREE,   /* of wrapped memory: its free_fn */
    FUZZ_PLACES
} fuzz_place;
/* As one number. `plain`: there the action is called as it is, else as a compiled function. */
#define FUZZ_FOREIGN(action, place, plain)                                                         \
    ((int)(action) + FUZZ_ACTIONS * ((int)(place) + FUZZ_PLACES * (int)(plain)))

/* Rounding (0 to 3: nearest, down, up, to zero), what becomes of denormals, and whether invalid
 * operations, divisions by zero and overflows trap. */
enum {
    FUZZ_ROUNDING = 3,
    FUZZ_FLUSH_RESULTS = 4,
    FUZZ_FLUSH_OPERANDS = 8,
    FUZZ_TRAPS = 16,
    FUZZ_NUMERICS = 32,
    FUZZ_CONTROL = 0xffc0 /* where MXCSR says so: all of it but the flags */
};

/* How a backward runs, and the gradients of which it is asked. */
enum {
    FUZZ_RETAIN = 1,     /* retain_graph */
    FUZZ_CREATE = 2,     /* create_graph */
    FUZZ_TWICE = 4,      /* and once more, over the same tape */
    FUZZ_UNDER_MODE = 8, /* a mode sees its operators */
    FUZZ_OTHER_THREAD = 16,
    FUZZ_OTHER_FUNCTION = 32, /* in the body of another compiled function */
    FUZZ_OWN_SEED = 64,       /* the output itself is the gradient it begins with, else ones */
    FUZZ_UNUSED = 128,        /* allow_unused */
    FUZZ_WAYS = 256
};
/* What is done around a call, beside a backward (one of the above) over its results. */
enum {
    FUZZ_AFTER_BACKWARD = 256,
    FUZZ_AFTER_GRADS = 512,  /* for the inputs alone */
    FUZZ_AFTER_HELD = 1024,  /* over what bodies have held, the last one first */
    FUZZ_AFTER_RESET = 2048, /* of the function, before that */
    FUZZ_AFTER_FREE = 4096,  /* in the last call */
    FUZZ_AFTER_WRITE = 8192, /* input 0 is written before that */
    FUZZ_AFTER_UPDATE = 16384,
    FUZZ_BEFORE_ZERO = 32768, /* gradients are dropped before the call */
    FUZZ_IN_NO_GRAD = 65536   /* the call is in such a block */
};
/* Hooks: what they do, and answer. */
typedef enum fuzz_hook_kind {
    FUZZ_HOOK_COUNT,
    FUZZ_HOOK_SEE, /* reads it */
    FUZZ_HOOK_TWICE,
    FUZZ_HOOK_FAIL,  /* in some calls */
    FUZZ_HOOK_CHECK, /* a check of data fails in one of the last calls */
    FUZZ_HOOK_SUM,   /* another one that broadcasts */
    FUZZ_HOOK_WRITE, /* in place */
    FUZZ_HOOKS
} fuzz_hook_kind;

typedef enum fuzz_layout {
    FUZZ_CONTIGUOUS,
    FUZZ_TRANSPOSED, /* of the last two dimensions */
    FUZZ_STEPPED,    /* every other row */
    FUZZ_REVERSED,   /* a negative stride */
    FUZZ_OFFSET,     /* rows inside a larger tensor */
    FUZZ_EXPANDED,   /* a zero stride */
    FUZZ_WRAPPED,    /* memory of the caller's, exposed from the start */
    FUZZ_SAME,       /* the handle of input `of` */
    FUZZ_SHIFTED,    /* rows of the base of input `of`, one further on than its own */
    FUZZ_OVER,       /* memory of the caller's, which is that of input `of`, from a row before */
    FUZZ_LAYOUTS
} fuzz_layout;

typedef struct fuzz_input {
    uint8_t dtype, ndim;
    uint8_t size[4]; /* indices into the size set */
    uint8_t layout, of;
    uint8_t wild;       /* NaN, infinities, denormals, extreme integers among the data */
    uint8_t persistent; /* lives on from call to call, with what was written into it */
    uint8_t plain;      /* bit per variant: contiguous and its own instead */
    uint8_t other;      /* bit per variant: of other_dtype instead */
    uint8_t other_dtype;
    int8_t feed;       /* takes this output of the call before, -1: none */
    uint8_t leaf;      /* bit per variant: it requires gradients, if it is of real numbers */
    uint8_t base_leaf; /* it does as what is cut from a leaf */
} fuzz_input;

typedef struct fuzz_setup {
    uint64_t seed;
    int ncalls, period;
    int nin, nglobals;
    fuzz_input in[FUZZ_MAX_INPUTS], global[FUZZ_MAX_INPUTS];
    int nout, out[FUZZ_MAX_OUTPUTS]; /* numbers of tensors */
    int64_t size[FUZZ_MAX_SETS][FUZZ_MAX_SIZES];
    uint8_t set[FUZZ_MAX_VARIANTS]; /* by variant */
    uint8_t fails;                  /* bit per variant: the body returns an error */
    uint8_t dynamic, fullgraph, stable_after, recompile_limit;
    uint8_t mode;                        /* etch_mode_kind */
    uint8_t numerics[FUZZ_MAX_VARIANTS]; /* of the caller */
    uint8_t careful;                     /* the body returns the first error that an operator has */
    uint8_t replay;                      /* the body is a pure function of its arguments */
    uint8_t starve_call;                 /* in this call of the compiled side ... */
    uint16_t starve_from, starve_for;    /* ... allocations fail, from this one (1: the first; 0:
                                            none) on so many */
    bool beside_cpu;
    bool grads;   /* gradients are among what it does */
    bool creates; /* backward may make gradients that require gradients: those of leaves, which are
                     dropped before a leaf goes, as the two would keep each other alive */
    uint32_t after[FUZZ_MAX_VARIANTS];
} fuzz_setup;

typedef struct fuzz_world fuzz_world;

/* A function of the actions; the context of one that is compiled. */
typedef struct fuzz_actor {
    fuzz_world *w;
    etch_function *f;
    fuzz_action action;
} fuzz_actor;

/* The context of a hook, and of the function that FUZZ_OTHER_FUNCTION calls. */
typedef struct fuzz_hooked {
    fuzz_world *w;
    fuzz_hook_kind kind;
    int at;
} fuzz_hooked;

typedef void (*fuzz_body)(fuzz_world *w, const void *program);

struct fuzz_world {
    const fuzz_setup *setup;
    fuzz_body body;
    const void *program;
    const char *backend;
    bool disable;
    etch_function *f, *inner, *inner_disabled;
    fuzz_actor actor[FUZZ_ACTIONS]; /* made when they are first called */
    etch_function *off;             /* calls what is in `acting` */
    int acting;
    int call, variant;
    etch_device device;
    bool no_raw;
    bool overlaid; /* some input is OVER another one: then pointers are not used */
    etch_tensor *v[FUZZ_MAX_VARS];
    void *raw[FUZZ_MAX_VARS];     /* pointers to exposed memory */
    bool writable[FUZZ_MAX_VARS]; /* got by etch_data_mut: what a body may write through */
    void *old[FUZZ_MAX_VARS];     /* pointers that are exposed no more, or were got before the call:
                                     good right after etch_flush */
    int64_t scope;                /* the open inner scope, -1: none */
    int scope_first;              /* results from here on belong to it */
    bool scope_made[FUZZ_MAX_VARS];
    bool lost[FUZZ_MAX_VARS]; /* its operator has failed on data, and no size was guessed before */
    int inference;            /* what to go back to, -1: not begun */
    int no_grad;              /* likewise */

    etch_tensor *in[FUZZ_MAX_INPUTS], *in_base[FUZZ_MAX_INPUTS]; /* one count of each */
    bool wrapped[FUZZ_MAX_INPUTS]; /* it lies in memory of ours, with room for another row */
    etch_tensor *global[FUZZ_MAX_INPUTS];
    etch_tensor *out[FUZZ_MAX_OUTPUTS], *fed[FUZZ_MAX_OUTPUTS];
    etch_tensor *kept[FUZZ_MAX_KEPT];
    int nkept;
    etch_tensor *held[FUZZ_MAX_KEPT]; /* results of this and earlier calls, to be run backward */
    int nheld;
    fuzz_hooked hook[FUZZ_MAX_KEPT];
    int nhooks;
    etch_function *backer; /* FUZZ_OTHER_FUNCTION */
    etch_tensor *back_from;
    int back_how;
    etch_mode *mode;
    uint64_t mode_seen;                     /* hash of the operators that it was offered */
    etch_tensor *remembered[FUZZ_MAX_KEPT]; /* kept by a kernel, one count each ... */
    etch_tensor *result[FUZZ_MAX_KEPT];     /* ... and its result, so that it has to be called */
    bool stopped;                           /* a careful body has failed ... */
    etch_status first_error;                /* ... with this */
    int actions;                            /* how many there were in this call */
    unsigned control; /* FUZZ_CONTROL as the program has set it; whether the library has ... */
    bool disturbed;   /* ... ever left another one */
    bool in_kernel;   /* or in a free function: there nothing traps */
    char failure[FUZZ_MAX_KEPT][160]; /* texts of the first ones that depend on data */
    int nfailures;
    etch_status status;
    uint64_t status_text; /* hash */
    int64_t peak;         /* bytes, most at a time in the call */
    etch_status left;     /* the error that a call which is ok leaves */
    bool starved;         /* an allocation was made to fail in the call */
    etch_status late;     /* of what a device found after the call */
    uint64_t event[FUZZ_MAX_EVENTS];
    int event_at[FUZZ_MAX_EVENTS]; /* number of the statement */
    bool sure[FUZZ_MAX_EVENTS];    /* a value of what was written, when nothing was missed */
    int nevents, at;
    bool missed;  /* this call was told of something that it has not got */
    bool guessed; /* a size was asked of what was not there: sides may go on with other ones */
    bool ran;     /* its body was run */
};

/* ---- what bodies call: each does nothing for a tensor that is not there ---- */

/* Whether this variant is among the bits. */
bool fuzz_when(const fuzz_world *w, unsigned variants);
/* v[n] = t; NULL: the error is an event. What is too large is dropped. */
void fuzz_set(fuzz_world *w, int n, etch_tensor *t);
/* A size of v[n] plus `more`, for attributes. */
int64_t fuzz_size(fuzz_world *w, int n, int dim, int64_t more);
/* A scalar that is another one at each call. */
etch_scalar fuzz_vary(const fuzz_world *w, etch_scalar s);
void fuzz_item(fuzz_world *w, int n);
void fuzz_item_int(fuzz_world *w, int n);
void fuzz_format(fuzz_world *w, int n);
void fuzz_host(fuzz_world *w, int to, int n); /* v[to]: a new tensor of the elements read */
void fuzz_query(fuzz_world *w, int a, int b); /* sizes, strides, shared storage */
void fuzz_expose(fuzz_world *w, int n, bool mut);
void fuzz_raw_write(fuzz_world *w, int n, int64_t value);
void fuzz_raw_read(fuzz_world *w, int n);
void fuzz_data_end(fuzz_world *w, int n);
void fuzz_keep(fuzz_world *w, int n); /* it outlives the call */
void fuzz_drop(fuzz_world *w, int n); /* v[n] is used no more */
void fuzz_break(fuzz_world *w);
void fuzz_flush(fuzz_world *w);
void fuzz_default_dtype(etch_dtype dtype);
void fuzz_scope(fuzz_world *w);
void fuzz_scope_end(fuzz_world *w, int keep);                 /* -1: nothing is kept */
void fuzz_inner(fuzz_world *w, int to, int n, bool disabled); /* v[to] = another function (v[n]) */

/* Operators of the user's, which compiled code calls: v[to] takes its elements in turns from v[a]
 * and v[b], of one dtype and the same sizes; v[to] = v[n] with its elements in reverse order. */
void fuzz_custom(fuzz_world *w, int to, int a, int b);
void fuzz_custom_write(fuzz_world *w, int to, int n);
void fuzz_half(fuzz_world *w, int to, int n); /* times 0.5, by the typed function */
void fuzz_filled(fuzz_world *w, int to, int n, int64_t value); /* empty, of v[n]'s sizes, filled */
void fuzz_inference(fuzz_world *w, bool begin);                /* part of the state word */

/* ---- foreign.c: what is done past the body's operators ---- */

/* v[to] = what the action gives for v[n], `how` being a FUZZ_FOREIGN. In kernels and free functions
 * only for arguments and globals, which are never deferred. */
void fuzz_foreign(fuzz_world *w, int to, int n, int how);
/* etch_flush, and then through a pointer of before: one element is written or read. */
void fuzz_flushed_write(fuzz_world *w, int n, int64_t value);
void fuzz_flushed_read(fuzz_world *w, int n);
void fuzz_thread_read(fuzz_world *w, int n); /* all of it, after etch_flush */
/* Reads v[n], which lies over what the operator that made v[written] was to write. */
void fuzz_used(fuzz_world *w, int n, int written);
/* v[to] = v[n] with its elements in reverse order, by an operator with effects. */
void fuzz_effects_write(fuzz_world *w, int to, int n);
/* Writes a half of v[n], then fails if `at` and the number of the call make 0. */
void fuzz_spoil(fuzz_world *w, int to, int n, int64_t at);
/* v[to]: a copy of v[n], made by a kernel that keeps what it was given; and what such a kernel
 * has kept, read after etch_flush. */
void fuzz_remember(fuzz_world *w, int to, int n, int slot);
void fuzz_recall(fuzz_world *w, int slot);
/* v[to]: after many rounds, each with new tensors of 64 KiB. */
void fuzz_rounds(fuzz_world *w, int to, int n, int how);
enum { FUZZ_ROUNDS_BREAK = 1, FUZZ_ROUNDS_WRITE = 2, FUZZ_ROUNDS_KINDS = 4 };
void fuzz_numerics(fuzz_world *w, int how); /* until the end of the call */

/* ---- gradients.c ---- */

void fuzz_require(fuzz_world *w, int n, bool on);
void fuzz_backward(fuzz_world *w, int n, int how); /* over v[n], of any sizes */
/* v[to] = the gradient of v[n] for v[a]; that for v[0] is kept, if v[0] requires one. */
void fuzz_grads(fuzz_world *w, int to, int n, int a, int how);
void fuzz_grad_of(fuzz_world *w, int to, int n);
void fuzz_zero_grad(fuzz_world *w, int n);
void fuzz_set_grad(fuzz_world *w, int n, int grad); /* the gradient shares v[grad]'s memory */
void fuzz_retain_grad(fuzz_world *w, int n);
void fuzz_hook(fuzz_world *w, int n, int kind);
void fuzz_no_grad(fuzz_world *w, bool begin);
void fuzz_update(fuzz_world *w, int n);     /* a step down its gradient, without gradients */
void fuzz_grad_state(fuzz_world *w, int n); /* what it requires, and whether a gradient is there */
void fuzz_hold(fuzz_world *w, int n);       /* to be run backward after this call or a later one */
/* v[to] = v[n] times a number that follows from what v[n] holds. */
void fuzz_choose(fuzz_world *w, int to, int n);
void fuzz_before_call(fuzz_world *w);
void fuzz_after_call(fuzz_world *w);
void fuzz_require_inputs(fuzz_world *w);
void fuzz_let_go(const fuzz_setup *s, etch_tensor *t); /* before its count is given back */
void fuzz_gradients_open(fuzz_world *w);
void fuzz_gradients_close(fuzz_world *w);

void fuzz_foreign_open(void);
void fuzz_foreign_close(fuzz_world *w);

/* ---- of harness.c and foreign.c, for each other and gradients.c ---- */

void fuzz_see(fuzz_world *w, uint64_t what);
void fuzz_see_error(fuzz_world *w);
void fuzz_see_left(fuzz_world *w, etch_status before);
/* work(w, t, how) on a thread of its own, in a scope of that thread. */
typedef void (*fuzz_work)(fuzz_world *w, etch_tensor *t, int how);
void fuzz_on_thread(fuzz_world *w, fuzz_work work, etch_tensor *t, int how);
/* The library leaves the modes and the traps of the processor as the program has set them. */
void fuzz_see_control(fuzz_world *w);
void fuzz_see_tensor(fuzz_world *w, const etch_tensor *t); /* all elements; not those of a NaN */
void fuzz_write_element(void *p, etch_dtype dtype, int64_t value);
uint64_t fuzz_element_bits(const void *p, etch_dtype dtype); /* any NaN is one */
/* Element `index` in row-major order of any strides. */
char *fuzz_element(const etch_tensor *t, char *data, int64_t index);
/* The kernel that reverses the elements of out[0]. */
etch_status fuzz_reverse(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor *const *out, int nout);

/* ---- comparing ---- */

typedef struct fuzz_result {
    char difference[512];                      /* "" when there is none */
    int calls, later, compiled, compiled_only; /* later: calls whose variant was there twice before;
                          of these: that ran a plan, and that ran nothing but plans */
    int replayed;                              /* calls whose body was not run */
    etch_counters_t counters;                  /* of the process, over this program */
} fuzz_result;

/* Runs the program eagerly and compiled for the backend. True: no difference, nothing leaked (of
 * the host's memory: plans of operators that a device keeps hold memory of it). */
bool fuzz_compare(const fuzz_setup *setup, fuzz_body body, const void *program, const char *backend,
                  fuzz_result *result);

/* ---- for the generator ---- */

void fuzz_world_open(fuzz_world *w, const fuzz_setup *setup, fuzz_body body, const void *program,
                     const char *backend, bool disable); /* on the current device */
void fuzz_world_close(fuzz_world *w);
/* Arguments and globals of the call, into in[], global[] and v[]. */
void fuzz_prepare(fuzz_world *w, int call);
/* A contiguous tensor of pseudorandom elements, made on the CPU, on the current device. */
etch_tensor *fuzz_data(etch_dtype dtype, etch_shape shape, uint64_t seed, bool wild);
uint64_t fuzz_random(uint64_t *state);

#endif
