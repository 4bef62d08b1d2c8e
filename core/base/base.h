/* What every file of the library may use: allocation, errors, logs, reasons, parameters.
 *
 * Internal names with external linkage start with etch__ and are hidden. */
#ifndef ETCH_CORE_BASE_BASE_H
#define ETCH_CORE_BASE_BASE_H

#include <assert.h>
#include <etch/base.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define COUNT_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- allocation: the one place that tests can make fail ---- */

/* As malloc, calloc, realloc; NULL sets out_of_memory. Before that, who keeps free memory is asked
 * to give some back (etch__give_back; false: there is none). */
extern bool (*etch__give_back)(void);
void *etch__malloc(size_t bytes);
void *etch__calloc(size_t count, size_t size);
void *etch__realloc(void *p, size_t bytes);
void etch__free(void *p);
/* As malloc, for what can be done without: its failure sets no error. */
void *etch__quiet_malloc(size_t bytes);
void *etch__quiet_lines(size_t bytes); /* in whole cache lines; bytes > 0 */
char *etch__strdup(const char *s);
/* Tests: the n-th allocation from now (0: the next) fails, once. n < 0 switches it off. Returns how
 * many allocations were asked for since the last call. */
int64_t etch__fail_allocation(int64_t n);
/* The same for `count` allocations in a row. */
int64_t etch__fail_allocations(int64_t n, int64_t count);
/* Memory of whole cache lines, so that no other block shares one; freed by etch__free. */
void *etch__aligned(size_t bytes);
void *etch__aligned_zeroed(size_t bytes);
/* Whether that is on: caches of memory then stand aside, so that each site is met. */
bool etch__allocations_counted(void);
/* Whether the allocation about to be made is one that a test makes fail. */
bool etch__allocation_fails(void);

/* Grows *items (of `size` bytes each) to hold at least need of them, doubling *cap. */
bool etch__grow(void *items, int64_t *cap, int64_t need, size_t size);
/* The same in whole cache lines, the new items zeroed: for what one thread writes often while
 * others write its neighbours. */
bool etch__grow_lines(void *items, int64_t *cap, int64_t need, size_t size);

/* ---- errors ---- */

/* Sets the thread's error and returns its code. The text says what was expected and what came; the
 * operator or public function that fails puts its name before it, and the user's line behind. */
etch_status etch__error(etch_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same, at a call site of the user (a return address), which the text will name, as it names
 * the operator or function. A site of the library itself (a call in tail position returns to its
 * caller's caller) becomes the nearest one of the user's. */
etch_status etch__error_at(const void *site, etch_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same as the results of functions that fail with NULL, with false. */
#define etch__null(...) (etch__error(__VA_ARGS__), NULL)
#define etch__null_at(...) (etch__error_at(__VA_ARGS__), NULL)
#define etch__false(...) (etch__error(__VA_ARGS__), false)
#define etch__false_at(...) (etch__error_at(__VA_ARGS__), false)

/* The same in the user's own words, which stay as they are; without a site they get no place. */
etch_status etch__error_of_user(const void *site, etch_status code, const char *text);
/* `name` is what the user called that has failed just now: it goes before a text that names nothing
 * and, if inner, replaces the name of a part of it. site: where, for a text that has no place. */
void etch__error_name(const char *name, const void *site, bool inner);
/* It is that of an operator which was called before: what is called now is not to be blamed. */
void etch__error_of_before(void);
/* A failure for which an older error is the reason: the text goes on with who got what it left. The
 * names live for ever. */
void etch__error_follows(const char *name, const char *argument, const void *site);
/* What the error holds beside status, place and text. */
typedef struct error_notes {
    bool unnamed;         /* the text names neither operator nor function */
    bool users;           /* the text is the user's, or otherwise to stay as it is */
    const void *function; /* of an unnamed text: the library's function that the user called */
    const char *next, *argument; /* etch__error_follows */
    const void *next_site;
} error_notes;

/* Around work whose failure must not replace the error that is there. Nothing is copied where there
 * is none. */
typedef struct saved_error {
    etch_status status;
    unsigned errors, lost;
    const void *site;
    error_notes notes;
    char text[1024];
} saved_error;
void etch__error_save(saved_error *to);
void etch__error_restore(const saved_error *from);
/* The error stays as it is, whatever comes until the end of the block. */
#define KEEP_ERROR                                                                                 \
    saved_error kept_error __attribute__((cleanup(etch__error_restore)));                          \
    etch__error_save(&kept_error)
/* Whether an operator that writes has failed since there were that many errors, and nobody has
 * cleared that. */
bool etch__lost_since(unsigned errors);
/* Saves and clears: around a function of the user's, whose failures are told from older ones. */
void etch__error_aside(saved_error *to);

/* The thread's reason why its last compile failed, valid until the next one; for a constant text
 * etch__tls.why is set. */
const char *etch__why(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "file.c:12" of a return address, or "" without debug information, or where that lies in the
 * library; the text lives for ever. */
const char *etch__site_line(const void *site);
/* site, or if that is none or the library's, the nearest return address on the stack that is not.
 * *function, if not NULL and there is need to look: the library's function that was called. */
const void *etch__user_site(const void *site, const void **function);
bool etch__is_own_code(const void *address);
/* That line's text, as the file has it now; "" where it cannot be read. */
void etch__site_source(const void *site, char *text, size_t n);
/* The symbol of a function's address, or "?". The text lives for ever. */
const char *etch__symbol_name(const void *address);
/* Around fork: nobody is inside the two functions above, so that they work in the child. */

/* ---- logs, reasons, parameters: one table each ---- */

typedef enum log_channel {
#define LOG(id, name, help) LOG_##id,
#include "core/base/logs.def"
#undef LOG
    LOG_COUNT
} log_channel;

extern _Atomic uint32_t etch__log_mask; /* bit per channel, set from the environment at load */
static inline bool etch__log_on(log_channel channel) { return (etch__log_mask >> channel) & 1; }
/* One line, "etch: CHANNEL: ..." to the sink, if the channel is on. Text with
 * newlines is several. */
void etch__log(log_channel channel, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A warning: always on, "etch: warning: ...". */
void etch__warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether this thread is in a sink, which runs under the log's lock: it may wait for no thread that
 * may log. */
bool etch__in_log_sink(void);
/* Registers what the tracer does around forks, unless that was done: before the log's part, which
 * is to come first at a fork and so is registered last. NULL: there is no tracer. */

typedef enum reason_id {
#define REASON(id, name, text, hint) REASON_##id,
#include "core/base/reasons.def"
#undef REASON
    REASON_COUNT
} reason_id;

typedef struct reason_info {
    const char *name, *text, *hint;
} reason_info;
extern const reason_info etch__reasons[REASON_COUNT];
extern _Atomic int64_t etch__reason_counts[REASON_COUNT];
static inline void etch__count_reason(reason_id r) { etch__reason_counts[r]++; }

typedef enum param_id {
#define PARAM(id, name, value, help) PARAM_##id,
#include "core/base/params.def"
#undef PARAM
    PARAM_COUNT
} param_id;

/* The environment's value, read once, else the table's default; "" is as good as absent. */
const char *etch__param(param_id id);
int64_t etch__param_int(param_id id);

/* Reserves n numbers of the process's generator in program order: seed and first offset. */
void etch__random_reserve(int64_t n, uint64_t *seed, uint64_t *offset);

/* A clock that goes on evenly: nanoseconds, and the same in milliseconds. */
int64_t etch__now(void);
static inline double etch__now_ms(void) { return 1e-6 * (double)etch__now(); }

#endif
