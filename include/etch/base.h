/* Basic types of Etch: status codes, dtypes, shapes, scalars, versions.
 *
 * Every function of the library may be called from any thread unless its text says otherwise. None
 * aborts or exits, and only etch_print writes to standard output. Warnings (a setting that cannot
 * be used, a limit that is reached: rare, and once each) and the logs that ETCH_LOGS enables go to
 * standard error; etch_set_log_sink and ETCH_LOGS_OUT send them elsewhere. A function that fails
 * returns NULL, a negative number, or a status other than ETCH_OK, and sets the calling thread's
 * error, which stays until another error replaces it or etch_clear_error is called; a success does
 * not clear it.
 *
 * A call on tensors of the CPU takes at most 48 KiB of the caller's stack, of which functions of
 * the user that it calls (bodies, handlers, kernels, sinks) take their part. Measured (x86-64, GCC
 * 12): an operator 6 KiB, an error with its line 10 KiB, recording and compiling 24 KiB, and 6 KiB
 * more for each compiled function that the body of another calls. So coroutines and threads with
 * stacks of 96 KiB will do (of a thread's glibc takes what is thread-local: 61 KiB where
 * OpenBLAS is linked). Kernels that need more run on a second stack, which a thread gets when they
 * first find too little room: 2 MiB of address space, of which what was touched is memory, until
 * the thread ends. Where it cannot be had the call fails with out_of_memory. Work on a GPU takes
 * more, and what its driver takes was not measured: give it 1 MiB. */
#ifndef ETCH_BASE_H
#define ETCH_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ETCH_VERSION_MAJOR 0
#define ETCH_VERSION_MINOR 1
#define ETCH_VERSION_PATCH 0
#define ETCH_VERSION_STRING "0.1.0"

#if defined(ETCH_BUILDING)
#define ETCH_API __attribute__((visibility("default")))
#else
#define ETCH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0", of the library that is loaded (ETCH_VERSION_STRING is that of the header). */
ETCH_API const char *etch_version(void);

/* ---- errors ---- */

typedef enum etch_status {
#define ETCH_ERROR(code, name, text) code,
#include <etch/errors.def>
#undef ETCH_ERROR
    ETCH_STATUS_COUNT
} etch_status;

/* "no_scope" for ETCH_ERR_NO_SCOPE; "unknown" for a number that is no code. Never NULL. */
ETCH_API const char *etch_status_name(etch_status status);

/* The calling thread's last error; ETCH_OK when there is none. */
ETCH_API etch_status etch_last_status(void);

/* The last error as text: operator or function, what was expected, what came, the user's file:line
 * where the program's file has debug information (not compressed). A composite operator (linear,
 * softmax) names itself, not its parts. A call in tail position, which leaves no line of its own,
 * has that of the nearest call of the user's. "" when there is none. Valid until the thread's next
 * error or clear. */
ETCH_API const char *etch_last_error(void);

ETCH_API void etch_clear_error(void);

/* ---- dtypes ---- */

/* The values are stable (they stand in files). bf16 and f16 are computed in f32 and rounded after
 * every operator. */
typedef enum etch_dtype {
    ETCH_F32 = 0,
    ETCH_F64 = 1,
    ETCH_BF16 = 2,
    ETCH_F16 = 3,
    ETCH_I8 = 4,
    ETCH_I16 = 5,
    ETCH_I32 = 6,
    ETCH_I64 = 7,
    ETCH_U8 = 8,
    ETCH_BOOL = 9,
    ETCH_DTYPE_COUNT = 10
} etch_dtype;

/* "f32" and so on; "unknown" for a number that is no dtype. Never NULL. */
ETCH_API const char *etch_dtype_name(etch_dtype dtype);
/* Bytes of one element; 0 for a number that is no dtype. */
ETCH_API size_t etch_dtype_size(etch_dtype dtype);
/* The dtype of an operator on tensors of dtypes a and b (ATen's promotion table). */
ETCH_API etch_dtype etch_promote_types(etch_dtype a, etch_dtype b);
/* The dtype that integer tensors become under float-valued operators, and that real scalars make of
 * integer tensors; f32 at start. Per thread. Takes ETCH_F32 or ETCH_F64. */
ETCH_API etch_status etch_set_default_dtype(etch_dtype dtype);
ETCH_API etch_dtype etch_default_dtype(void);

/* How exact f32 products are: HIGHEST (at start) multiplies f32 as it is, HIGH lets a GPU round the
 * operands to TF32 (10 bits of mantissa) and use its tensor cores. Per thread; part of what a trace
 * depends on. The CPU always does the former. invalid_argument for another number. */
typedef enum etch_matmul_precision { ETCH_HIGHEST = 0, ETCH_HIGH = 1 } etch_matmul_precision;
ETCH_API etch_status etch_set_matmul_precision(etch_matmul_precision precision);
ETCH_API etch_matmul_precision etch_get_matmul_precision(void);

/* ---- shapes and scalars ---- */

#define ETCH_MAX_DIMS 8

/* Up to eight sizes, strides or dimension numbers, passed by value. */
typedef struct etch_shape {
    int32_t n;
    int64_t v[ETCH_MAX_DIMS];
} etch_shape;

typedef etch_shape etch_dims;

typedef enum etch_scalar_kind {
    ETCH_SCALAR_BOOL,
    ETCH_SCALAR_INT,
    ETCH_SCALAR_REAL
} etch_scalar_kind;

/* A number operand. Its kind takes part in type promotion and in guards, its value never does. */
typedef struct etch_scalar {
    etch_scalar_kind kind;
    union {
        int64_t i; /* BOOL (0 or 1) and INT */
        double d;  /* REAL */
    };
} etch_scalar;

static inline etch_scalar etch_scalar_bool(bool v) {
    etch_scalar s;
    s.kind = ETCH_SCALAR_BOOL, s.i = v;
    return s;
}
static inline etch_scalar etch_scalar_int(int64_t v) {
    etch_scalar s;
    s.kind = ETCH_SCALAR_INT, s.i = v;
    return s;
}
static inline etch_scalar etch_scalar_real(double v) {
    etch_scalar s;
    s.kind = ETCH_SCALAR_REAL, s.d = v;
    return s;
}

#ifdef __cplusplus
}
/* ETCH_SHAPE(2, 3): a shape; ETCH_SHAPE(): the shape of a 0-d tensor. */
template <class... T> inline etch_shape etch_shape_of(T... v) {
    static_assert(sizeof...(v) <= ETCH_MAX_DIMS, "at most eight dimensions");
    return etch_shape{(int32_t)sizeof...(v), {(int64_t)v...}};
}
#define ETCH_SHAPE(...) etch_shape_of(__VA_ARGS__)
inline etch_scalar etch_scalar_of(bool v) { return etch_scalar_bool(v); }
inline etch_scalar etch_scalar_of(double v) { return etch_scalar_real(v); }
inline etch_scalar etch_scalar_of(float v) { return etch_scalar_real(v); }
inline etch_scalar etch_scalar_of(long double v) { return etch_scalar_real((double)v); }
inline etch_scalar etch_scalar_of(int v) { return etch_scalar_int(v); }
inline etch_scalar etch_scalar_of(unsigned v) { return etch_scalar_int(v); }
inline etch_scalar etch_scalar_of(long v) { return etch_scalar_int(v); }
inline etch_scalar etch_scalar_of(unsigned long v) { return etch_scalar_int((int64_t)v); }
inline etch_scalar etch_scalar_of(long long v) { return etch_scalar_int(v); }
inline etch_scalar etch_scalar_of(unsigned long long v) { return etch_scalar_int((int64_t)v); }
inline etch_scalar etch_scalar_of(etch_scalar v) { return v; }
/* A pointer would become a bool: it is no number. */
template <class T> etch_scalar etch_scalar_of(T *) = delete;
etch_scalar etch_scalar_of(decltype(nullptr)) = delete;
#define ETCH_SCALAR(v) etch_scalar_of(v)
#else
/* clang-format off */
#define ETCH_SHAPE(...)                                                                            \
    ((etch_shape){(int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
static inline etch_scalar etch_scalar_same(etch_scalar v) { return v; }
/* ETCH_SCALAR(v): the scalar of a C number, its kind by the C type. Operators that take a scalar
 * accept plain C numbers: their names are macros over this one. A pointer, which cannot be
 * multiplied, does not compile. */
#define ETCH_SCALAR(v)                                                                             \
    ((void)sizeof(_Generic((v), etch_scalar: 1, default: (v)) * 1),                                \
     _Generic((v),                                                                                 \
        bool: etch_scalar_bool,                                                                    \
        float: etch_scalar_real,                                                                   \
        double: etch_scalar_real,                                                                  \
        long double: etch_scalar_real,                                                             \
        etch_scalar: etch_scalar_same,                                                             \
        default: etch_scalar_int)(v))
/* clang-format on */
#endif
/* ETCH_DIMS(0, 1): dimension numbers; negative ones count from the end. */
#define ETCH_DIMS(...) ETCH_SHAPE(__VA_ARGS__)

#endif
