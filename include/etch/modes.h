/* Ready-made modes. Each is a small file in modes/, written against the public headers only: read
 * it, copy it, change it.
 *
 * Each function returns a mode for ETCH_WITH_MODE or etch_mode_push, to be freed with
 * etch_mode_free, or NULL on error. They may be entered on several threads at once. A function that
 * asks a mode for what it has collected sets invalid_argument when given a mode of another kind. */
#ifndef ETCH_MODES_H
#define ETCH_MODES_H

#include <etch/mode.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a mode writes: line(ctx, text) gets one line, without its newline. line NULL: nowhere. */
typedef struct etch_line_sink {
    void (*line)(void *ctx, const char *text);
    void *ctx;
} etch_line_sink;
/* Lines to a file, which stays the caller's; NULL: nowhere. */
ETCH_API etch_line_sink etch_file_sink(FILE *file);

/* ---- profiling: "aten::mm: 0.000123s" for each call ---- */

typedef struct etch_mode_times {
    const etch_op *op;
    int64_t calls;
    double total, mean; /* seconds, with everything that the operator's own kernel runs */
    int64_t bytes;      /* of tensor arguments and results */
} etch_mode_times;

ETCH_API etch_mode *etch_profiling_mode(etch_line_sink sink);
/* Fills out[0..n) by falling total time; returns the number of operators seen, -1 on error. */
ETCH_API int etch_profiling_mode_times(const etch_mode *mode, etch_mode_times *out, int n);
/* The same as a table, into buf as snprintf does; -1 on error. */
ETCH_API int64_t etch_profiling_mode_table(const etch_mode *mode, char *buf, size_t n);

/* ---- validation: a call with a NaN among its arguments or in its result fails ---- */

/* The error names the operator, the argument and the line of the call.
 * infinities: they fail too. */
ETCH_API etch_mode *etch_validation_mode(bool infinities);

/* ---- logging: "Called: aten::mm", then dtype, shape and device of each tensor in and out ---- */

ETCH_API etch_mode *etch_logging_mode(etch_line_sink sink);

/* ---- statistics: "aten::mm: 10 calls", by falling count ---- */

ETCH_API etch_mode *etch_statistics_mode(void);
/* The calls of one packet ("add": all its overloads) or overload; NULL: of all. -1 on error. */
ETCH_API int64_t etch_statistics_mode_count(const etch_mode *mode, const char *op);
/* One line a packet, into buf as snprintf does; -1 on error. */
ETCH_API int64_t etch_statistics_mode_text(const etch_mode *mode, char *buf, size_t n);

/* ---- call stacks: who calls an operator (NULL: any), innermost function first ---- */

ETCH_API etch_mode *etch_call_stack_mode(const char *op, etch_line_sink sink);

/* ---- conditional interception ---- */

/* Calls the handler only for operators called `op` (NULL: any) whose argument 0 is a tensor of more
 * than min_elements elements (-1: whatever it is); all others pass by. */
ETCH_API etch_mode *etch_conditional_mode(const char *op, int64_t min_elements,
                                          etch_mode_handler handler, void *ctx);

/* ---- replacement: every call of `op` becomes a call of `by` with the same arguments ---- */

ETCH_API etch_mode *etch_replacement_mode(const char *op, const etch_op *by);
/* How many calls were replaced; -1 on error. */
ETCH_API int64_t etch_replacement_mode_count(const etch_mode *mode);

#ifdef __cplusplus
}
#endif
#endif
