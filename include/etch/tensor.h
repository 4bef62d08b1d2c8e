/* Tensors, scopes and data: who owns a handle, how memory gets in and out.
 *
 * A tensor has 0 to 8 dimensions, sizes, strides and an offset (in elements) over a storage that
 * several tensors may share (views). Inside a compiled function a handle may be *deferred*: its
 * dtype, sizes and strides are known and free to ask, its data is computed when something reads
 * it. */
#ifndef ETCH_TENSOR_H
#define ETCH_TENSOR_H

#include <etch/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct etch_tensor etch_tensor;

/* An optional tensor argument that is absent. NULL is never a valid tensor: an operator given NULL
 * returns NULL and keeps the first error, to whose text it adds its own name, argument and line. */
ETCH_API extern etch_tensor *const ETCH_NONE;

/* ---- scopes and ownership ---- */

/* An operator's result belongs to the innermost open scope of the calling thread and dies with it.
 * With no scope open an operator fails with no_scope.
 *
 *     ETCH_SCOPE { ... }
 *
 * opens one for the block. `break` and `continue` in it leave the block only; `return t` needs
 * `return etch_keep(t)`. The scope is closed on every way out of the block but longjmp; closing an
 * outer scope closes all deeper ones, so the next end repairs what longjmp skipped. */
typedef struct etch_scope_guard {
    int64_t mark;
    int open;
} etch_scope_guard;

/* Opens a scope; the mark names it. Returns -1 with out_of_memory (the enclosing scope then owns;
 * without one what needs a scope fails with out_of_memory, too). */
ETCH_API int64_t etch_scope_begin(void);
/* Closes the scope named by mark and every deeper one: releases what they own. -1 is a no-op. */
ETCH_API void etch_scope_end(int64_t mark);

static inline void etch_scope_leave(etch_scope_guard *guard) { etch_scope_end(guard->mark); }

#define ETCH_SCOPE ETCH_SCOPE_NAMED_(__COUNTER__) /* scopes nest without shadowing */
#define ETCH_SCOPE_NAMED_(n) ETCH_SCOPE_GUARD_(n)
#define ETCH_SCOPE_GUARD_(n) ETCH_SCOPE_FOR_(etch_scope_guard_##n)
#define ETCH_SCOPE_FOR_(guard)                                                                     \
    for (etch_scope_guard guard                                                                    \
         __attribute__((cleanup(etch_scope_leave))) = {etch_scope_begin(), 1};                     \
         guard.open; guard.open = 0)

/* Moves t from the innermost scope to the enclosing one; a tensor that the innermost scope does not
 * own stays where it is. Returns t. With no enclosing scope: NULL and no_scope. */
ETCH_API etch_tensor *etch_keep(etch_tensor *t);
/* *variable = t, for a variable that carries a tensor from one round of a loop to the next:
 *
 *     for (int i = 0; i < n; i++) {
 *         ETCH_SCOPE {
 *             etch_tensor *next = etch_mul(x, x);
 *             etch_assign(&x, next);
 *         }
 *     }
 *
 * t moves out of the innermost scope to the enclosing one, or further, to where the variable's
 * present tensor lives (never beyond the scope of a compiled function's body); a tensor that no
 * inner scope owns gets a count of its own there. The tensor that the variable had is released if
 * this variable got it from etch_assign, so one tensor a variable lives on, and the first one stays
 * with its owner. Each variable holds its tensor by itself: `etch_assign(&a, b); etch_assign(&b,
 * next);` is a recurrence. etch_keep(x) makes the tensor one that no variable lets go. A plain
 * function that returns its variable, and may get such a result as an argument again, begins with a
 * variable of its own: `etch_tensor *y = NULL; etch_assign(&y, x);`. An error (t is NULL or has
 * failed, no scope, no memory) leaves the variable. */
ETCH_API etch_status etch_assign(etch_tensor **variable, etch_tensor *t);
/* Adds a count of one; returns t. NULL gives NULL. */
ETCH_API etch_tensor *etch_retain(etch_tensor *t);
/* Takes a count of one away; NULL is a no-op. */
ETCH_API void etch_release(etch_tensor *t);

/* ---- queries: free, never a graph break ---- */

ETCH_API etch_dtype etch_dtype_of(const etch_tensor *t); /* ETCH_DTYPE_COUNT for NULL */
ETCH_API int etch_ndim(const etch_tensor *t);            /* -1 for NULL */
/* Size or stride (in elements) of a dimension, negative ones from the end; -1 and dim_range when it
 * is out of range (a stride may be -1 too). */
ETCH_API int64_t etch_size(const etch_tensor *t, int dim);
ETCH_API int64_t etch_stride(const etch_tensor *t, int dim);
ETCH_API etch_shape etch_sizes(const etch_tensor *t);
ETCH_API int64_t etch_numel(const etch_tensor *t); /* -1 for NULL */
ETCH_API int64_t etch_storage_offset(const etch_tensor *t);
ETCH_API bool etch_is_contiguous(const etch_tensor *t);
/* Whether two tensors share one storage. False for NULL. */
ETCH_API bool etch_shares_storage(const etch_tensor *a, const etch_tensor *b);
/* Whether the data of t is still to be computed. For tests and diagnosis. */
ETCH_API bool etch_is_deferred(const etch_tensor *t);

/* ---- memory in ---- */

/* A new contiguous tensor with a copy of the elements at data (row-major,
 * numel * itemsize bytes). */
ETCH_API etch_tensor *etch_from_host(const void *data, etch_dtype dtype, etch_shape sizes);
/* A tensor over the caller's memory, not copied; free_fn(ctx), if not NULL, runs when the last
 * tensor over it dies. The memory counts as exposed (see etch_data): Etch
 * sees writes through it. */
ETCH_API etch_tensor *etch_wrap_host(void *data, etch_dtype dtype, etch_shape sizes,
                                     void (*free_fn)(void *ctx), void *ctx);
/* NumPy's .npy, versions 1 to 3, little endian, C order: f32 f64 f16 i8 i16 i32 i64 u8 bool. */
ETCH_API etch_tensor *etch_npy_load(const char *path);
ETCH_API etch_status etch_npy_save(const char *path, const etch_tensor *t); /* bf16 is an error */

/* ---- memory out: reads, each a graph break inside a compiled function ---- */

/* The one element of a tensor with one element, as double or int64 (reals saturate, NaN gives 0).
 * On error NaN, or INT64_MIN. */
ETCH_API double etch_item(const etch_tensor *t);
ETCH_API int64_t etch_item_int(const etch_tensor *t);
/* Copies all elements, row-major, to dst, which has room for `bytes` bytes. */
ETCH_API etch_status etch_to_host(const etch_tensor *t, void *dst, size_t bytes);
/* A pointer to element [0, ..., 0]; strides as etch_stride says. The storage is *exposed* from here
 * until the running compiled function returns or etch_data_end: operators that write it (after
 * etch_data_mut: that read it, too) run at once. Each running function, also one that another has
 * called, and each thread holds pointers of its own: what one ends stays exposed for the others.
 * NULL for an error or an empty tensor. */
ETCH_API const void *etch_data(const etch_tensor *t);
ETCH_API void *etch_data_mut(etch_tensor *t);
ETCH_API void etch_data_end(const etch_tensor *t);
/* Computes everything deferred on this thread now: values of earlier segments too, and those of
 * compiled functions further out, wherever it is called (in a kernel, or in what frees wrapped
 * memory). Behind it memory may be written past the API, and tensors read on other threads. A graph
 * break. */
ETCH_API etch_status etch_flush(void);

/* Prints dtype, sizes and elements (long dimensions shortened) to standard output, the decimal
 * points of a tensor's elements one above the other. */
ETCH_API etch_status etch_print(const etch_tensor *t);
/* Digits behind the point of real numbers that etch_print and etch_format write, 0 to 17; -1 (at
 * start): as few as tell the number from its neighbours, up to 8 in all. For the whole process. */
ETCH_API etch_status etch_set_print_precision(int digits);
/* The same text into buf (at most n bytes with the final NUL); returns the length it needs without
 * the NUL, as snprintf does, or -1. */
ETCH_API int64_t etch_format(const etch_tensor *t, char *buf, size_t n);

/* Same dtype, sizes and values (NaN differs from everything, -0 equals +0). False on error too. */
ETCH_API bool etch_equal(const etch_tensor *a, const etch_tensor *b);
/* |a - b| <= atol + rtol * |b| everywhere, computed in double; equal infinities are close. */
ETCH_API bool etch_allclose(const etch_tensor *a, const etch_tensor *b, double rtol, double atol,
                            bool equal_nan);
/* Same dtype, sizes and bits, except that any NaN equals any NaN. Strides do not matter. */
ETCH_API bool etch_bitwise_equal(const etch_tensor *a, const etch_tensor *b);

/* ---- numbers ----
 *
 * What operators (etch/ops.h) do where dtypes meet and at the edges of numbers; the same eagerly,
 * compiled, and on every device. Where ATen's own answer depends on where in memory an element
 * lies, one of its answers is taken.
 *
 * Half types (f16, bf16) are computed in f32 and rounded once. A scalar beside a tensor is
 *   mul, div, floor_divide, the factors of addcmul, addcdiv, addmm, the weight of lerp
 *                        in the compute type: f32 beside half types
 *   the exponent of pow  beside f32 as it is (the power is taken in f64 where f32 does not hold it)
 *   all others           rounded to the common dtype first: add, sub, rsub and their alpha,
 *                        remainder, fmod, comparisons, clamp, fills, the exponent beside half types
 * The second operand of mul, div and floor_divide, too, stays f32 beside half types where it is a
 * 0-d tensor of f32 or f64. A real factor of integers (addcmul) is truncated; alpha must fit.
 *
 * Bools count as integers beside numbers, except in differences (an error), and are an error alone
 * where ATen has no such operator (neg, floor, remainder, ...). square and sums of bools are i64,
 * any and all are bool, of u8 they are u8.
 *
 * Zeros      maximum, minimum, amax, amin, max, min order -0 below +0, whatever comes first; relu,
 *            clamp, fmax and fmin keep their first operand where two are equal, so relu(-0) is -0;
 *            comparisons, argmax and argmin do not tell zeros apart. Sums, means and running sums
 *            of nothing but -0 are +0 (a running sum of a 0-d tensor is a copy of it).
 * NaN        stays in maximum, minimum, relu, clamp and their kind, a NaN bound is the result; fmax
 *            and fmin prefer the number. signbit and copysign read its sign bit; copies, where, neg
 *            and abs keep it, arithmetic need not, and compiled arithmetic may differ in it.
 * Nothing    the sum of no elements is 0, the product 1, the mean NaN, any false, all true,
 *            logsumexp -inf; max, min and their like are an error.
 * ldexp      is x times 2^n rounded once, for any integer n. */

/* ---- process-wide settings ---- */

/* Threads for kernels, the caller included; the start value is ETCH_NUM_THREADS, else the number of
 * processors the process may use. Results do not depend on it. */
ETCH_API etch_status etch_set_num_threads(int n);
ETCH_API int etch_num_threads(void);
/* Seeds the process's counter-based generator (Philox 4x32-10) and sets its offset to 0. */
ETCH_API void etch_manual_seed(uint64_t seed);

typedef struct etch_memory_stats {
    int64_t bytes_live;  /* storages now alive, bytes */
    int64_t bytes_peak;  /* the most at one time since start or reset, to within 64 KiB a thread */
    int64_t tensors;     /* handles now alive */
    int64_t allocations; /* storages allocated since start */
} etch_memory_stats;
ETCH_API etch_memory_stats etch_memory(void);
ETCH_API void etch_memory_reset_peak(void);

#ifdef __cplusplus
}
#endif
#endif
