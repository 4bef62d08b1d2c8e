/* Errors: one code and one text a thread. The user's source line costs a look into the debug
 * information, so an error keeps the address only and the line is found when the text is asked for.
 */
#include "core/tensor.h"

static const char *const status_names[ETCH_STATUS_COUNT] = {
#define ETCH_ERROR(code, name, text) [code] = name,
#include <etch/errors.def>
#undef ETCH_ERROR
};

const char *etch_status_name(etch_status status) {
    return (unsigned)status < ETCH_STATUS_COUNT ? status_names[status] : "unknown";
}

enum { ERROR_ROOM = sizeof((thread_texts *)0)->error };

static void keep_error(const char *text, size_t n) {
    thread_texts *room = n ? etch__thread_texts() : etch__tls.texts;
    etch__tls.error = room ? room->error : n ? "out of memory, for this error's text too" : "";
    if (room) memcpy(room->error, text, n + 1);
}

/* The arguments may point into the error that is being replaced, so the text is made beside it. */
static etch_status set_error(const void *site, etch_status code, const char *format, va_list args) {
    char text[ERROR_ROOM];
    vsnprintf(text, sizeof text, format, args);
    keep_error(text, strlen(text));
    etch__tls.status = code;
    etch__tls.error_site = site;
    return code;
}

etch_status etch__error(etch_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(NULL, code, format, args);
    va_end(args);
    return code;
}

etch_status etch__error_at(const void *site, etch_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(site, code, format, args);
    va_end(args);
    return code;
}

etch_status etch_last_status(void) { return etch__tls.status; }

/* Appends " (prog.c:12)" once; a text that fills the buffer gives way at its end. */
static void name_site(void) {
    const char *line = etch__site_line(etch__tls.error_site);
    etch__tls.error_site = NULL;
    size_t need = strlen(line) + sizeof " ()";
    char *text = etch__tls.texts ? etch__tls.texts->error : NULL;
    if (!*line || need > ERROR_ROOM || etch__tls.error != text) return;
    size_t used = strlen(text);
    if (used > ERROR_ROOM - need) used = ERROR_ROOM - need;
    snprintf(text + used, need, " (%s)", line);
}

const char *etch_last_error(void) {
    if (etch__tls.status == ETCH_OK) return "";
    if (etch__tls.error_site) name_site();
    return etch__tls.error;
}

void etch_clear_error(void) {
    etch__tls.status = ETCH_OK;
    etch__tls.error_site = NULL;
    keep_error("", 0);
}

void etch__error_save(saved_error *to) {
    to->status = etch__tls.status;
    to->site = etch__tls.error_site;
    memcpy(to->text, etch__tls.error, strlen(etch__tls.error) + 1);
}

void etch__error_restore(const saved_error *from) {
    etch__tls.status = from->status;
    etch__tls.error_site = from->site;
    keep_error(from->text, strlen(from->text));
}

_Static_assert(sizeof((saved_error *)0)->text == ERROR_ROOM, "texts differ");

/* ---- why a compile failed ---- */

const char *etch__why(const char *format, ...) {
    thread_texts *room = etch__thread_texts();
    va_list args;
    va_start(args, format);
    if (room) vsnprintf(room->why, sizeof room->why, format, args);
    va_end(args);
    return etch__tls.why = room ? room->why : "out of memory, for the reason's text too";
}
