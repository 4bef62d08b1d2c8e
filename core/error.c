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

/* The arguments may point into the error that is being replaced, so the text is made beside it. */
static etch_status set_error(const void *site, etch_status code, const char *format, va_list args) {
    char text[sizeof etch__tls.error];
    vsnprintf(text, sizeof text, format, args);
    memcpy(etch__tls.error, text, strlen(text) + 1);
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
    if (!*line || need > sizeof etch__tls.error) return;
    size_t used = strlen(etch__tls.error);
    if (used > sizeof etch__tls.error - need) used = sizeof etch__tls.error - need;
    snprintf(etch__tls.error + used, need, " (%s)", line);
}

const char *etch_last_error(void) {
    if (etch__tls.status == ETCH_OK) return "";
    if (etch__tls.error_site) name_site();
    return etch__tls.error;
}

void etch_clear_error(void) {
    etch__tls.status = ETCH_OK;
    etch__tls.error_site = NULL;
    etch__tls.error[0] = 0;
}

void etch__error_save(saved_error *to) {
    to->status = etch__tls.status;
    to->site = etch__tls.error_site;
    memcpy(to->text, etch__tls.error, sizeof to->text);
}

void etch__error_restore(const saved_error *from) {
    etch__tls.status = from->status;
    etch__tls.error_site = from->site;
    memcpy(etch__tls.error, from->text, sizeof from->text);
}

_Static_assert(sizeof((saved_error *)0)->text == sizeof((etch_thread *)0)->error, "texts differ");
