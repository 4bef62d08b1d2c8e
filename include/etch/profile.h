/* A profiler that is not a mode: it records what runs, and changes nothing of how it runs.
 *
 *     ETCH_PROFILE("trace.json") { y = etch_call(f, x, w); }
 *
 * Recorded on every thread of the process: calls of compiled functions, guards checked, generated
 * kernels, library products, custom operators, single operators run by the eager dispatcher, graph
 * breaks, and compiles; and by a GPU's own clock, how long its work took. Views compute nothing and
 * are not recorded. Compiled functions stay compiled, results keep their bits, counters count as
 * they do without it. */
#ifndef ETCH_PROFILE_H
#define ETCH_PROFILE_H

#include <etch/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a recorded event is; the names are "call", "guards", "kernel" and so on. */
typedef enum etch_profile_kind {
    ETCH_PROFILE_CALL,     /* a call of a compiled function, with all that it runs */
    ETCH_PROFILE_GUARDS,   /* its arguments compared with the guards of its traces */
    ETCH_PROFILE_KERNEL,   /* a generated kernel */
    ETCH_PROFILE_PRODUCT,  /* a matrix product inside a plan; inside the kernel that follows it tile
                              by tile, where one does, and then with its work */
    ETCH_PROFILE_CUSTOM,   /* a custom operator, inside a plan or not */
    ETCH_PROFILE_OPERATOR, /* any other kernel of one operator */
    ETCH_PROFILE_BREAK,    /* a graph break; takes no time */
    ETCH_PROFILE_COMPILE,  /* a graph compiled by its backend */
    ETCH_PROFILE_DEVICE, /* a step of a plan, a run that is one graph or kernel, or an operator, as
                              a GPU's own clock has it; there the kinds above say how long issuing
                              it took */
    ETCH_PROFILE_KINDS
} etch_profile_kind;

/* "kernel" for ETCH_PROFILE_KERNEL; "unknown" for a number that is no kind. Never NULL. */
ETCH_API const char *etch_profile_kind_name(etch_profile_kind kind);

/* Starts recording. etch_profile_end waits for what is timed on GPUs, and writes the events to the
 * file as Chrome trace JSON, which Perfetto and chrome://tracing open; NULL: no file. One profile
 * at a time: invalid_argument while another is running; io where the file cannot be written. */
ETCH_API etch_status etch_profile_begin(const char *path);
/* Ends it. io: the file is not complete. */
ETCH_API etch_status etch_profile_end(void);

/* Events of one kind and name of the profile that ended last. */
typedef struct etch_profile_entry {
    etch_profile_kind kind;
    char name[64];
    int64_t count, total_ns, max_ns;
} etch_profile_entry;

/* Fills out[0..n) by falling total time; returns how many entries there are. */
ETCH_API int etch_profile_entries(etch_profile_entry *out, int n);
/* The events of one kind in the profile that ended last. */
ETCH_API int64_t etch_profile_count(etch_profile_kind kind);
/* The entries as a table into buf (at most n bytes with the final NUL); returns the length it needs
 * without the NUL, as snprintf does. */
ETCH_API int64_t etch_profile_table(char *buf, size_t n);

typedef struct etch_profile_guard {
    int running, open;
} etch_profile_guard;
static inline etch_profile_guard etch_profile_enter(const char *path) {
    etch_profile_guard guard;
    guard.running = etch_profile_begin(path) == ETCH_OK;
    guard.open = 1;
    return guard;
}
static inline void etch_profile_leave(etch_profile_guard *guard) {
    if (guard->running) etch_profile_end();
}
/* Records the block, which runs in any case. */
#define ETCH_PROFILE(path) ETCH_PROFILE_(path, __COUNTER__)
#define ETCH_PROFILE_(path, n) ETCH_PROFILE__(path, n)
#define ETCH_PROFILE__(path, n)                                                                    \
    for (etch_profile_guard etch_profile_guard_##n                                                 \
         __attribute__((cleanup(etch_profile_leave))) = etch_profile_enter(path);                  \
         etch_profile_guard_##n.open; etch_profile_guard_##n.open = 0)

#ifdef __cplusplus
}
#endif
#endif
