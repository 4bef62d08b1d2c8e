/* Logs: channels on and off, and the one sink that lines go to. The library prints nothing by other
 * ways. A sink runs under a lock; what is logged from inside a sink is dropped, as it would
 * recurse. */
#include <pthread.h>
#include <stdlib.h>

#include <etch/debug.h>

#include "core/base/locks.h"
#include "core/base/start.h"
#include "core/base/hooks.h"
#include "core/base/signals.h"

_Atomic uint32_t etch__log_mask;

static const struct {
    const char *name, *help;
} channels[LOG_COUNT] = {
#define LOG(id, channel_name, channel_help) [LOG_##id] = {channel_name, channel_help},
#include "core/base/logs.def"
#undef LOG
};
_Static_assert(LOG_COUNT <= 32, "etch__log_mask has a bit a channel");

/* ---- the sink ---- */

static void (*user_sink)(void *ctx, const char *line);
static void *user_ctx;
static __thread bool inside __attribute__((tls_model("initial-exec")));

bool etch__in_log_sink(void) { return inside; }

/* A sink of the user's has the lock already: it may fork, or set another sink. */
static void lock_sink(void) {
    if (!inside) etch__lock(LOCK_LOG);
}
static void unlock_sink(void) {
    if (!inside) etch__unlock(LOCK_LOG);
}

/* ETCH_LOGS_OUT is opened at the first line and stays open. */
static FILE *out_file(void) {
    static FILE *file;
    if (file) return file;
    const char *path = etch__param(PARAM_LOGS_OUT);
    file = *path ? fopen(path, "ae") : NULL;
    if (*path && !file) fprintf(stderr, "etch: warning: cannot append logs to %s: %m\n", path);
    if (!file) file = stderr;
    return file;
}

static void put_line(const char *line) {
    if (user_sink) {
        empty_frame frame = etch__push_user_frame();
        user_sink(user_ctx, line);
        etch__pop_frame(&frame);
        return;
    }
    held_signals held; /* who reads may have gone, the file may be as large as it may get */
    etch__signals_hold(&held);
    FILE *file = out_file();
    fprintf(file, "%s\n", line);
    fflush(file);
    etch__signals_release(&held);
}

/* Cuts text at its newlines; each line is "etch: NAME: ...". A line too long for the buffer is cut
 * in pieces only when memory is short. */
static void put_text(const char *name, const char *text) {
    char small[1024];
    if (inside) return;
    inside = true;
    etch__lock(LOCK_LOG);
    for (const char *at = text; *at;) {
        int n = (int)strcspn(at, "\n");
        size_t need = strlen(name) + (size_t)n + sizeof "etch: : ";
        char *line = need <= sizeof small ? small : etch__malloc(need);
        snprintf(line ? line : small, line ? need : sizeof small, "etch: %s: %.*s", name, n, at);
        put_line(line ? line : small);
        if (line != small) etch__free(line);
        at += n + (at[n] == '\n');
    }
    etch__unlock(LOCK_LOG);
    inside = false;
}

/* Logging neither fails nor touches the error that its caller may be about to report. */
static void put_format(const char *name, const char *format, va_list args) {
    char small[1024], *text = NULL;
    va_list again;
    KEEP_ERROR;
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, format, args);
    if (n >= (int)sizeof small) text = etch__malloc((size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, format, again);
    if (n >= 0) put_text(name, text ? text : small);
    etch__free(text);
    va_end(again);
}

void etch__log(log_channel channel, const char *format, ...) {
    if (!etch__log_on(channel)) return;
    va_list args;
    va_start(args, format);
    put_format(channels[channel].name, format, args);
    va_end(args);
}

void etch__warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    put_format("warning", format, args);
    va_end(args);
}

void etch_set_log_sink(void (*sink)(void *ctx, const char *line), void *ctx) {
    lock_sink();
    user_sink = sink, user_ctx = ctx;
    unlock_sink();
}

/* ---- help ---- */

static void help(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void help(const char *format, ...) {
    va_list args;
    va_start(args, format);
    put_format("help", format, args);
    va_end(args);
}

static void help_all(void) {
    help("channels (ETCH_LOGS=name,name or all):");
    for (int i = 0; i < LOG_COUNT; i++) help("  %-14s %s", channels[i].name, channels[i].help);
    help("environment parameters:");
#define PARAM(id, variable, value, text)                                                           \
    help("  %-22s %s [%s]", variable, text, etch__param(PARAM_##id));
#include "core/base/params.def"
#undef PARAM
    help("reasons, as logs print them:");
    for (int i = 0; i < REASON_COUNT; i++) {
        const reason_info *r = &etch__reasons[i];
        help("  %-20s %s%s%s", r->name, r->text, *r->hint ? "; " : "", r->hint);
    }
    help("error codes:");
#define ETCH_ERROR(code, name, text) help("  %-20s %s", name, text);
#include <etch/errors.def>
#undef ETCH_ERROR
}

/* ---- channels ---- */

/* The bits of one name; 0 for one that there is not. */
static uint32_t channel_bits(const char *name, size_t n) {
    if (n == 3 && !memcmp(name, "all", 3)) return UINT32_MAX >> (32 - LOG_COUNT);
    for (int i = 0; i < LOG_COUNT; i++)
        if (strlen(channels[i].name) == n && !memcmp(channels[i].name, name, n)) return 1u << i;
    return 0;
}

/* Parses a list; at a name that there is not, returns it (and its length). */
static const char *parse(const char *list, uint32_t *mask, bool *wants_help, int *bad_length) {
    *mask = 0, *wants_help = false;
    for (const char *at = list; *at;) {
        at += strspn(at, ", ");
        size_t n = strcspn(at, ", ");
        uint32_t bits = channel_bits(at, n);
        bool is_help = n == 4 && !memcmp(at, "help", 4);
        if (n && !bits && !is_help) {
            *bad_length = (int)n;
            return at;
        }
        *mask |= bits, *wants_help |= is_help;
        at += n;
    }
    return NULL;
}

etch_status etch_set_logs(const char *list) {
    const void *site = __builtin_return_address(0);
    uint32_t mask;
    bool wants_help;
    int n;
    if (!list) return etch__error_at(site, ETCH_ERR_NULL, "etch_set_logs: channels is NULL");
    const char *bad = parse(list, &mask, &wants_help, &n);
    if (bad)
        return etch__error_at(site, ETCH_ERR_NOT_FOUND,
                              "etch_set_logs: no channel \"%.*s\"; \"help\" lists them", n, bad);
    etch__log_mask = mask;
    if (wants_help) help_all();
    return ETCH_OK;
}

/* At load, so that a test of the mask is all that a log costs. */
void etch__start_logs(void) {
    etch__at_fork(LOCK_LOG, (fork_hooks){lock_sink, unlock_sink, unlock_sink});
    uint32_t mask;
    bool wants_help;
    int n;
    const char *bad = parse(etch__param(PARAM_LOGS), &mask, &wants_help, &n);
    if (bad) etch__warn("ETCH_LOGS: no channel \"%.*s\"; ETCH_LOGS=help lists them", n, bad);
    etch__log_mask = mask;
    if (wants_help) help_all();
}
