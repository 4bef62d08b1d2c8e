/* etch_compile: a function of tensors becomes fused machine code that gives the same bits.
 *
 * The body runs on every call: each operator call is checked against the recorded trace and
 * answered with a deferred tensor; what differs is recorded as a new path. The observable values
 * are those of the same program with ETCH_COMPILE_DISABLE=1, bit for bit. Exceptions: where a
 * data-dependent error or a failed allocation appears; what other threads see between entry and
 * return of a call (call etch_flush before synchronising with them); raw pointers got before the
 * call and used inside it without etch_flush; `replay`; and the sign and payload of a NaN that
 * arithmetic produced.
 *
 * ETCH_CHECK=1 in the environment checks that, at several times the cost: operators of a compiled
 * function are computed by their eager kernels as well, at their calls and once more just before
 * the plan runs, and everything that is produced or written is compared bit for bit. The first
 * difference of a call is logged as a warning and makes the call fail with check_failed: operator,
 * line, element, what was expected and what came, and whether memory was written past the API. The
 * body runs once, as always, but for kernels of the user's, which are called up to three times.
 * With `replay` the body runs too, and is compared with what would have been replayed. Functions
 * with ETCH_RELAXED are not compared: their bits may differ. */
#ifndef ETCH_COMPILE_H
#define ETCH_COMPILE_H

#include <etch/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct etch_function etch_function;

typedef etch_tensor *(*etch_fn0)(void);
typedef etch_tensor *(*etch_fn1)(etch_tensor *);
typedef etch_tensor *(*etch_fn2)(etch_tensor *, etch_tensor *);
typedef etch_tensor *(*etch_fn3)(etch_tensor *, etch_tensor *, etch_tensor *);
typedef etch_tensor *(*etch_fn4)(etch_tensor *, etch_tensor *, etch_tensor *, etch_tensor *);
typedef etch_tensor *(*etch_fn5)(etch_tensor *, etch_tensor *, etch_tensor *, etch_tensor *,
                                 etch_tensor *);
typedef etch_tensor *(*etch_fn6)(etch_tensor *, etch_tensor *, etch_tensor *, etch_tensor *,
                                 etch_tensor *, etch_tensor *);
typedef etch_tensor *(*etch_fn7)(etch_tensor *, etch_tensor *, etch_tensor *, etch_tensor *,
                                 etch_tensor *, etch_tensor *, etch_tensor *);
typedef etch_tensor *(*etch_fn8)(etch_tensor *, etch_tensor *, etch_tensor *, etch_tensor *,
                                 etch_tensor *, etch_tensor *, etch_tensor *, etch_tensor *);

/* A body may fail an operator and go on: what it does not return counts as handled. Not so what an
 * operator that writes (or a custom one with effects) was to do: while the error of one that failed
 * in the body is neither cleared (etch_clear_error) nor the call's own failure, the call fails with
 * the thread's error when the body returns, compiled or not. Errors that depend on data appear when
 * compiled code is computed: to handle them, the body calls etch_flush first, which returns the
 * failure of what it computed, as etch_graph_break and every other function that computes what is
 * deferred do (those that read one tensor: the failure of that one). The same holds for kernels of
 * custom operators and handlers of modes that return ETCH_OK. */

/* The general form: reads in[0..nin), writes out[0..nout) (handles of the body's scope; it moves
 * those that the body's scope owns to the caller's, and closes scopes that were left open). A
 * status other than ETCH_OK fails the call; so does a result whose scope is closed (released). */
typedef etch_status (*etch_fn_n)(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                 int nout);

/* Begins the definition of a function of the general form, whose parameters have these five names;
 * none need be used:
 *
 *     static ETCH_FN_N(step, ctx, in, nin, out, nout) {
 *         out[0] = etch_add(in[0], in[1]);
 *         return out[0] ? ETCH_OK : etch_last_status();
 *     }
 */
#define ETCH_FN_N(name, ctx, in, nin, out, nout)                                                   \
    etch_status name(void *ctx __attribute__((unused)),                                            \
                     etch_tensor *const *in __attribute__((unused)),                               \
                     int nin __attribute__((unused)), etch_tensor **out __attribute__((unused)),   \
                     int nout __attribute__((unused)))

typedef enum etch_mode_kind {
    ETCH_MODE_DEFAULT,
    ETCH_MODE_REDUCE_OVERHEAD, /* on the CPU the same as default */
    ETCH_MODE_MAX_AUTOTUNE /* on the CPU the same as default; on a GPU the first run of a plan times
                                  layouts of its kernels and keeps the fastest, in the disk cache
                                  too; with ETCH_RELAXED also algorithms of its products */
} etch_mode_kind;

typedef enum etch_dynamic {
    ETCH_DYNAMIC_AUTO, /* a size seen to change becomes a run-time extent, and so does an integer
                          that an operator takes (but for the number of an axis or a device) */
    ETCH_DYNAMIC_OFF,  /* every size and integer is guarded */
    ETCH_DYNAMIC_ON    /* sizes are run-time extents from the first compile */
} etch_dynamic;

typedef enum etch_numerics {
    ETCH_STRICT, /* compiled equals eager bit for bit */
    ETCH_RELAXED /* may reassociate, contract and tune products: see below */
} etch_numerics;

/* What ETCH_RELAXED does now. Sums and differences of large float products (mm, bmm) with a
 * common operand become one product, mm(a, w) + mm(b, w) as mm(a + b, w) with a + b rounded to
 * its dtype, where the graph itself shows that a + b cannot overflow: one of the two is so small
 * that no finite number plus it becomes infinite (sin, tanh, sigmoid, softmax, comparisons and
 * what is made of them; in f32, numbers that came from half types or integers). On a GPU also:
 * products take in the bias row, relu and tanh-gelu that follow them, in the compute type, with
 * one rounding at the end; and read operands in place that eager code copies, which changes
 * nothing.
 *
 * The bound, of n products of k terms that became one, with u = 2^-11 for f16, 2^-8 for bf16,
 * 2^-24 for f32, 2^-53 for f64, v = u for f32 and f64 and 2^-24 for half types, and S the sum of
 * the n products of absolute values: a result differs from the exact one by at most (2 n u + 2 k
 * v) S (and a subnormal unit). Eager code has the same bound; for half types it is closer where
 * terms cancel inside a product, since it rounds after that. Where S stays below the largest
 * number of the accumulator (f32 for half types) nothing becomes infinite or NaN that is finite
 * in eager code; beyond it partial sums may. */

/* All zero is the default. A function that another compiled function calls is recorded into that
 * one's graph, under that one's options; with `disable`, or other numerics than that one has, it is
 * a graph break there. */
typedef struct etch_compile_options {
    size_t struct_size;  /* set by the etch_compile macro */
    const char *backend; /* NULL: "native", else a name in etch_list_backends */
    etch_mode_kind mode;
    bool fullgraph; /* a graph break is an error before any tensor was changed */
    etch_dynamic dynamic;
    etch_numerics numerics;
    bool replay;          /* do not run the body where a trace is known: see below */
    int stable_after;     /* compile after this many equal recordings in a row; 0: 1 */
    bool background;      /* compile on another thread: see below */
    int recompile_limit;  /* alternatives under one root; 0: 8 */
    const char *name;     /* for logs; NULL: the function's symbol */
    bool disable;         /* run eagerly, never record */
    void *ctx;            /* passed to the general form */
    double memory_budget; /* what tapes keep between forward and backward: see below */
} etch_compile_options;

/* What is guarded: of every tensor that an operator of the trace reads, dtype, rank, device, sizes
 * and strides (the last two, once they have changed, are run-time values: see etch_dynamic and the
 * marks below); of the operators, in their order, the operands, axes, the kinds of scalars and the
 * other attributes (integers, once they have changed, are run-time values); and at each operator
 * the settings of the thread: default dtype, device, precision of products, inference, and how the
 * processor computes (below). Where inputs are written, which of them share a storage is guarded,
 * too. Never guarded are values, addresses, offsets in a storage, and arguments that no operator
 * reads, though C code may look at their sizes, and though they are returned. One that only some
 * paths of the body read is guarded on those. */

/* How the processor computes is the program's to set, before a call or inside the body:
 * fesetround, _MM_SET_FLUSH_ZERO_MODE, _MM_SET_DENORMALS_ZERO_MODE, _mm_setcsr. It is read at each
 * operator, on the thread that calls it; the operator computes in that mode whenever it runs, on
 * every thread of the pool, with eager's bits. One segment has one mode: an operator under another
 * than the one before it is a graph break (`state`), an error under `fullgraph`. After a call the
 * mode is the one that the body left. Exceptions that the program lets trap (feenableexcept) are
 * masked while operators compute, eagerly and compiled alike, since lanes of vectors without data
 * would trap as well: an operator never raises SIGFPE, whatever its data, nor does the kernel of a
 * custom one. Which flags of exceptions operators raise is not defined. (Where the program waits
 * for a GPU, the driver runs with its traps: its own arithmetic is inexact.) */

/* replay: for a body that is a pure function of its tensor arguments. After its trace is compiled,
 * a call whose arguments have the dtypes, sizes and strides of a recorded call (the same of them
 * being one handle), under the same settings, does not run the body: the compiled plan of the
 * recorded path runs. Captured tensors are those of the recorded call, which are kept until
 * etch_reset, with the values they have now; scalars, branches and whatever else the body looked at
 * are as recorded, so a body with hidden state gives stale results: unsound by contract. So is a
 * recorded call that was given a captured tensor as an argument: wherever the body named that
 * tensor, later calls take their argument. Results are new tensors at each call, a returned
 * argument is the argument of this call, random operators take fresh numbers, and in-place
 * operators write. Any other call runs the body, and is recorded (up to 64 combinations). A body
 * that breaks the graph, or returns a tensor that no operator made, is run on every call; a log
 * line (perf_hints) says so once. Inside another compiled function the body is recorded into that.
 * ETCH_CHECK=1 runs the body as well, and reports any difference. */

/* memory_budget: what a call's tape keeps for backward. 0, the default: what follows in a few
 * elementwise operators from less, which only the tape has, is not kept but computed again. 1: all
 * that eager code keeps. Gradients have the same bits in either case. What arguments, captured
 * tensors and results hold is never computed from, since the program may write them. It is about
 * backward outside of the function; inside, nothing is kept. etch_explain tells the bytes. */

/* background: a thread of the library compiles beside the program. Calls go on eagerly, with the
 * same bits, until the code is ready; the first call after that runs it. The callbacks of
 * etch_on_compile_start and _end, and a backend of the user's, are called on that thread (one
 * compile at a time). etch_function_free waits for a compile of this function that is going on,
 * etch_reset and fork do not, and neither starts another; at exit() the process waits for the one
 * that is going on. Where no thread can be started, compiling happens within the call.
 *
 * On a GPU any function's first code may be provisional: a kernel that holds a large product takes
 * a third of a second to compile, so the product and what follows it are kernels of their own,
 * with the same bits, until that thread has the one for both (then also mode reduce-overhead makes
 * its graph). It calls nothing of the user's for that. Not under ETCH_MODE_MAX_AUTOTUNE, nor where
 * ETCH_COMPILE_BESIDE=0: the call waits. */

/* Each returns a new function handle, to be freed with etch_function_free, or NULL. The body is not
 * called. options may be NULL. */
ETCH_API etch_function *etch_compile_fn0(etch_fn0 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn1(etch_fn1 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn2(etch_fn2 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn3(etch_fn3 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn4(etch_fn4 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn5(etch_fn5 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn6(etch_fn6 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn7(etch_fn7 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_fn8(etch_fn8 fn, const etch_compile_options *options);
ETCH_API etch_function *etch_compile_n(etch_fn_n fn, const etch_compile_options *options);

/* Frees the handle and its traces; a call that is running it on any thread finishes first with what
 * it holds. NULL is a no-op. */
ETCH_API void etch_function_free(etch_function *f);

/* Calls f with nin tensors. Returned handles belong to the caller's innermost scope, except a
 * returned argument or captured tensor, which stays with its owner. An error leaves NULLs in out.
 * in and out may be one array, or parts of one (a step of a state): an error leaves arguments. */
ETCH_API etch_status etch_call_n(etch_function *f, etch_tensor *const *in, int nin,
                                 etch_tensor **out, int nout);
/* The same for a function with one result: NULL on error. */
ETCH_API etch_tensor *etch_call_one(etch_function *f, etch_tensor *const *in, int nin);

/* One compiled function per call site and function pointer: see ETCH_CALL_COMPILED. */
typedef struct etch_call_site {
    const char *file;
    int line;
    void *table; /* owned by the library */
} etch_call_site;
ETCH_API etch_function *etch_site_fn0(etch_call_site *site, etch_fn0 fn);
ETCH_API etch_function *etch_site_fn1(etch_call_site *site, etch_fn1 fn);
ETCH_API etch_function *etch_site_fn2(etch_call_site *site, etch_fn2 fn);
ETCH_API etch_function *etch_site_fn3(etch_call_site *site, etch_fn3 fn);
ETCH_API etch_function *etch_site_fn4(etch_call_site *site, etch_fn4 fn);
ETCH_API etch_function *etch_site_fn5(etch_call_site *site, etch_fn5 fn);
ETCH_API etch_function *etch_site_fn6(etch_call_site *site, etch_fn6 fn);
ETCH_API etch_function *etch_site_fn7(etch_call_site *site, etch_fn7 fn);
ETCH_API etch_function *etch_site_fn8(etch_call_site *site, etch_fn8 fn);
ETCH_API etch_function *etch_site_n(etch_call_site *site, etch_fn_n fn, void *ctx);

/* Marks on a dimension of a tensor, for the compiled functions that get it. They belong to the
 * handle; results, views included, have none. A later mark of the same dimension replaces an
 * earlier one.
 * etch_mark_dynamic: its sizes are min to max (0: no upper bound); the tensor's own must be. A
 *   trace that is recorded with it has run-time sizes from the start, and serves this argument
 *   within the bounds. A fixed size there is the error specialised, with the line that did it: the
 *   function was compiled with ETCH_DYNAMIC_OFF (the line of the call, or of the operator that
 *   captures the tensor), or the size became an attribute of an operator that is part of the trace,
 *   which is found when it changes (the line of the operator).
 * etch_mark_static: every size of it is guarded, and has traces of its own, whatever `dynamic`
 *   says. */
ETCH_API etch_status etch_mark_dynamic(etch_tensor *t, int dim, int64_t min, int64_t max);
ETCH_API etch_status etch_mark_static(etch_tensor *t, int dim);

/* Ends the segment here, with `why` (copied) as the reason in logs. */
ETCH_API etch_status etch_graph_break(const char *why);

/* Forgets all traces of f (NULL: of every function), and the limits they ran into. */
ETCH_API void etch_reset(etch_function *f);

/* Called around each compile of a graph, on the compiling thread. Returns a handle for
 * etch_callback_remove, or 0 with out_of_memory. A callback may register and remove callbacks
 * (itself, too), and call functions: one that is being compiled runs eagerly. */
ETCH_API int64_t etch_on_compile_start(void (*fn)(void *ctx), void *ctx);
ETCH_API int64_t etch_on_compile_end(void (*fn)(void *ctx), void *ctx);
ETCH_API void etch_callback_remove(int64_t handle);

/* Writes that are not the function's own. While it runs, others of its thread may write tensors
 * that it reads: compiled functions which it calls inside a disabled one, kernels of operators with
 * effects, functions that free wrapped memory, C code through etch_data_mut. Whatever the function
 * has computed so far, deferred or not, has the contents from before the write, as in eager code.
 * That holds for writes through the API, and for what a kernel with effects writes into wrapped
 * memory; other raw writes come after etch_flush. A function that frees wrapped memory and reads or
 * writes a tensor of the segment so far, or calls a compiled function, ends the segment (the reason
 * `written`). */

/* Writes that fail on their data (an index out of range) do so after their call, when they are
 * computed. What lies over the memory that was to be written (the tensor itself, its base, views,
 * other handles) is from there on, in the order of the program, not what the body computes: results
 * that depend on it are failed, writes that depend on it do not happen, using it again in the body
 * gives NULL or an error, and the call fails with the first error. Everything else happens. Tensors
 * of the caller hold what they held before, and can be used when the call has returned. */

/* ---- functions that compiled code does not look into ---- */

/* A C function as a value: its kind (number of arguments, or -1 for the general form), pointer and,
 * for the general form, ctx. ETCH_CALLABLE(fn) makes one. */
typedef struct etch_callable {
    int arity;
    void (*fn)(void);
    void *ctx;
} etch_callable;
static inline etch_callable etch_callable_of(int arity, void (*fn)(void), void *ctx) {
    etch_callable c;
    c.arity = arity, c.fn = fn, c.ctx = ctx;
    return c;
}

/* C cannot see a plain call of a C function. Each of these returns a function handle that is to be
 * called through etch_call and freed with etch_function_free; inside a compiled function such a
 * call is
 * etch_disable: a graph break, and eager execution. recursive: compiled functions that it calls run
 *   eagerly, too, else they run compiled.
 * etch_allow_in_graph: one opaque node. The function must not write its arguments and has one new
 *   tensor as result, whose dtype and sizes follow from those of the arguments (what they are is
 *   learnt from the first call with such arguments, and checked). Under fullgraph it is learnt by
 *   running the function on shapes alone, where a read of data is an error: call it once before.
 * etch_assume_constant: the value it has when the call is recorded, without a break and for ever,
 *   until etch_reset of the compiled function. It is not called again: unsound if that changes.
 * Outside of compiled functions all three just call the function. */
ETCH_API etch_function *etch_disable(etch_callable fn, bool recursive);
ETCH_API etch_function *etch_allow_in_graph(etch_callable fn);
ETCH_API etch_function *etch_assume_constant(etch_callable fn);

/* What compiled functions do, in the whole process; read when a call or a segment after a graph
 * break begins, so that one set inside a compiled function counts from the next segment on. */
typedef enum etch_stance {
    ETCH_STANCE_DEFAULT,
    ETCH_STANCE_FORCE_EAGER,        /* run eagerly, compiled or not */
    ETCH_STANCE_EAGER_ON_RECOMPILE, /* use what is compiled, compile nothing, else run eagerly */
    ETCH_STANCE_FAIL_ON_RECOMPILE   /* use what is compiled; needing more is the error recompile,
                                       before the body where the guards fail, else at the operator
                                       that differs, or at the end of the call */
} etch_stance;
ETCH_API etch_status etch_set_stance(etch_stance stance);
ETCH_API etch_stance etch_current_stance(void);

/* Names of the registered backends, NULL-terminated; valid until one is registered. */
ETCH_API const char *const *etch_list_backends(void);

#ifdef __cplusplus
}
#endif

/* clang-format off */
#ifndef __cplusplus
/* etch_compile(fn), etch_compile(fn, .fullgraph = true, .name = "f"): picks by the type of fn. */
#define etch_compile(fn, ...)                                                                      \
    _Generic((fn),                                                                                 \
        etch_fn0: etch_compile_fn0,                                                                \
        etch_fn1: etch_compile_fn1,                                                                \
        etch_fn2: etch_compile_fn2,                                                                \
        etch_fn3: etch_compile_fn3,                                                                \
        etch_fn4: etch_compile_fn4,                                                                \
        etch_fn5: etch_compile_fn5,                                                                \
        etch_fn6: etch_compile_fn6,                                                                \
        etch_fn7: etch_compile_fn7,                                                                \
        etch_fn8: etch_compile_fn8,                                                                \
        etch_fn_n: etch_compile_n)(                                                                \
        fn, &(etch_compile_options){.struct_size = sizeof(etch_compile_options), __VA_ARGS__})

/* ETCH_CALLABLE(fn), ETCH_CALLABLE(fn, ctx): etch_disable(step, true) and the like make it
 * themselves. */
#define ETCH_CALLABLE(...) ETCH_CALLABLE_(__VA_ARGS__, NULL, 0)
#define ETCH_CALLABLE_(f, c, ...)                                                                  \
    etch_callable_of(_Generic((f),                                                                 \
                         etch_fn0: 0,                                                              \
                         etch_fn1: 1,                                                              \
                         etch_fn2: 2,                                                              \
                         etch_fn3: 3,                                                              \
                         etch_fn4: 4,                                                              \
                         etch_fn5: 5,                                                              \
                         etch_fn6: 6,                                                              \
                         etch_fn7: 7,                                                              \
                         etch_fn8: 8,                                                              \
                         etch_fn_n: -1),                                                           \
                     (void (*)(void))(f), (c))
#define etch_disable(fn, recursive) etch_disable(ETCH_CALLABLE(fn), recursive)
#define etch_allow_in_graph(fn) etch_allow_in_graph(ETCH_CALLABLE(fn))
#define etch_assume_constant(fn) etch_assume_constant(ETCH_CALLABLE(fn))

#define ETCH_ARGS_(...) (etch_tensor *const[]){__VA_ARGS__}
/* etch_call(f, x, w): the one result, NULL on error. */
#define etch_call(f, ...)                                                                          \
    etch_call_one((f), ETCH_ARGS_(__VA_ARGS__),                                                    \
                  (int)(sizeof(ETCH_ARGS_(__VA_ARGS__)) / sizeof(etch_tensor *)))

/* ETCH_CALL_COMPILED(step, x, w): compiles step once per call site, then calls it. */
#define ETCH_CALL_COMPILED(fn, ...)                                                                \
    (__extension__({                                                                               \
        static etch_call_site etch_site_ = {__FILE__, __LINE__, NULL};                             \
        etch_function *etch_site_f_ = _Generic((fn),                                               \
            etch_fn0: etch_site_fn0,                                                               \
            etch_fn1: etch_site_fn1,                                                               \
            etch_fn2: etch_site_fn2,                                                               \
            etch_fn3: etch_site_fn3,                                                               \
            etch_fn4: etch_site_fn4,                                                               \
            etch_fn5: etch_site_fn5,                                                               \
            etch_fn6: etch_site_fn6,                                                               \
            etch_fn7: etch_site_fn7,                                                               \
            etch_fn8: etch_site_fn8)(&etch_site_, fn);                                             \
        etch_call(etch_site_f_, __VA_ARGS__);                                                      \
    }))
#else
/* The same names in C++, by overloads: etch_compile(fn), etch_compile(fn, options), where fn may be
 * a lambda without captures; etch_call(f, x, w); ETCH_CALLABLE(fn). etch_compile_options has no
 * designated initialisers before C++20: make one and set what is wanted. */
#define ETCH_OVERLOADS_(n)                                                                         \
    inline etch_function *etch_compile(etch_fn##n fn, etch_compile_options options = {}) {         \
        options.struct_size = sizeof options;                                                      \
        return etch_compile_fn##n(fn, &options);                                                   \
    }                                                                                              \
    inline etch_callable etch_callable_from(etch_fn##n fn) {                                       \
        return etch_callable_of(n, (void (*)(void))fn, NULL);                                      \
    }
ETCH_OVERLOADS_(0)
ETCH_OVERLOADS_(1)
ETCH_OVERLOADS_(2)
ETCH_OVERLOADS_(3)
ETCH_OVERLOADS_(4)
ETCH_OVERLOADS_(5)
ETCH_OVERLOADS_(6)
ETCH_OVERLOADS_(7)
ETCH_OVERLOADS_(8)
#undef ETCH_OVERLOADS_
inline etch_function *etch_compile(etch_fn_n fn, etch_compile_options options = {}) {
    options.struct_size = sizeof options;
    return etch_compile_n(fn, &options);
}
inline etch_callable etch_callable_from(etch_fn_n fn, void *ctx = NULL) {
    return etch_callable_of(-1, (void (*)(void))fn, ctx);
}
#define ETCH_CALLABLE(...) etch_callable_from(__VA_ARGS__)
template <class... T> inline etch_tensor *etch_call(etch_function *f, T *...in) {
    etch_tensor *const args[] = {in..., NULL}; /* not empty where there are none */
    return etch_call_one(f, args, (int)sizeof...(in));
}
#endif
/* clang-format on */
#endif
