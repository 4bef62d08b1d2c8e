/* Errors: one code and one text a thread. The user's source line costs a look into the debug
 * information, so an error keeps the address only and the line is found when the text is asked for.
 */
#include "core/base/error_text.h"
#include "core/base/start.h"

static const char *const status_names[ETCH_STATUS_COUNT] = {
#define ETCH_ERROR(code, name, text) [code] = name,
#include <etch/errors.def>
#undef ETCH_ERROR
};

const char *etch_status_name(etch_status status) {
    return (unsigned)status < ETCH_STATUS_COUNT ? status_names[status] : "unknown";
}

/* ---- where texts are ---- */

static thread_texts *texts_of_thread(void) {
    etch_thread *t = &etch__tls;
    if (likely(t->texts)) return t->texts;
    if (!t->registered) etch__thread_register();
    t->texts = etch__quiet_malloc(sizeof *t->texts);
    if (t->texts) *t->texts->error = *t->texts->why = 0;
    return t->texts;
}

static void free_texts(etch_thread *t) {
    etch__free(t->texts);
    t->texts = NULL, t->error = t->why = "";
    t->status = ETCH_OK, t->error_site = NULL;
}

void etch__start_errors(void) { etch__at_thread_end(free_texts); }

static void keep_error(const char *text, size_t n, const error_notes *notes) {
    thread_texts *room = n ? texts_of_thread() : etch__tls.texts;
    etch__tls.error = room ? room->error : n ? "out of memory, for this error's text too" : "";
    if (!room) return;
    memcpy(room->error, text, n + 1);
    room->notes = *notes;
}

thread_texts *etch__error_texts(void) {
    thread_texts *room = etch__tls.texts;
    return etch__tls.status != ETCH_OK && room && etch__tls.error == room->error ? room : NULL;
}

/* The arguments may point into the error that is being replaced, so the text is made beside it. */
static etch_status set_error(const void *site, etch_status code, error_notes notes,
                             const char *format, va_list args) {
    char text[ERROR_ROOM];
    vsnprintf(text, sizeof text, format, args);
    etch__tls.error_site =
        notes.users && !site ? NULL : etch__user_site(site, notes.unnamed ? &notes.function : NULL);
    keep_error(text, strlen(text), &notes);
    etch__tls.status = code;
    etch__tls.errors++;
    return code;
}

etch_status etch__error(etch_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(NULL, code, (error_notes){.unnamed = true}, format, args);
    va_end(args);
    return code;
}

etch_status etch__error_at(const void *site, etch_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(site, code, (error_notes){0}, format, args);
    va_end(args);
    return code;
}

static etch_status set_users(const void *site, etch_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(site, code, (error_notes){.users = true}, format, args);
    va_end(args);
    return code;
}

etch_status etch__error_of_user(const void *site, etch_status code, const char *text) {
    return set_users(site, code, "%s", text);
}

/* ---- whose error it is ---- */

/* The length of the name before the text, "add.Tensor: " without the colon; 0: there is none. */
static size_t name_length(const char *text) {
    size_t n = strcspn(text, ": ");
    while (text[n] == ':' && text[n + 1] == ':') n += 2 + strcspn(text + n + 2, ": ");
    return text[n] == ':' && text[n + 1] == ' ' ? n : 0;
}

void etch__error_put_name(char *text, const char *name, size_t old) {
    size_t n = strlen(name), rest = strlen(text + old), room = ERROR_ROOM - 3;
    if (n > room) return;
    if (n + rest > room) rest = room - n;
    memmove(text + n + 2, text + old, rest);
    memcpy(text, name, n);
    memcpy(text + n, ": ", 2);
    text[n + 2 + rest] = 0;
}

void etch__error_name(const char *name, const void *site, bool inner) {
    thread_texts *own = etch__error_texts();
    if (!own || own->notes.users || own->notes.next) return;
    size_t n = own->notes.unnamed ? 0 : name_length(own->error);
    if (own->notes.unnamed && site) etch__tls.error_site = etch__user_site(site, NULL);
    if (n && inner) etch__error_put_name(own->error, name, n + 2);
    else if (!n) etch__error_put_name(own->error, name, 0);
    own->notes.unnamed = false;
}

void etch__error_of_before(void) {
    thread_texts *own = etch__error_texts();
    if (own) own->notes.users = true;
}

void etch__error_follows(const char *name, const char *argument, const void *site) {
    thread_texts *own = etch__error_texts();
    etch__tls.errors++;
    if (!own || own->notes.next) return;
    own->notes.next = name, own->notes.argument = argument;
    own->notes.next_site = etch__user_site(site, NULL);
}

bool etch__lost_since(unsigned errors) {
    return unlikely(etch__tls.lost) && (int)(etch__tls.lost - errors) > 0;
}

/* ---- setting aside ---- */

void etch_clear_error(void) {
    static const error_notes none;
    etch__tls.status = ETCH_OK;
    etch__tls.error_site = NULL;
    etch__tls.lost = 0;
    keep_error("", 0, &none);
}

void etch__error_save(saved_error *to) {
    const thread_texts *own = etch__error_texts();
    to->status = etch__tls.status;
    to->errors = etch__tls.errors, to->lost = etch__tls.lost;
    if (likely(to->status == ETCH_OK)) return;
    to->site = etch__tls.error_site;
    to->notes = own ? own->notes : (error_notes){0};
    memcpy(to->text, etch__tls.error, strlen(etch__tls.error) + 1);
}

void etch__error_restore(const saved_error *from) {
    if (unlikely(from->status != ETCH_OK)) {
        etch__tls.status = from->status;
        etch__tls.error_site = from->site;
        keep_error(from->text, strlen(from->text), &from->notes);
    } else if (unlikely(etch__tls.status != ETCH_OK)) {
        etch_clear_error();
    }
    etch__tls.errors = from->errors, etch__tls.lost = from->lost;
}

void etch__error_aside(saved_error *to) {
    etch__error_save(to);
    if (unlikely(to->status != ETCH_OK)) etch_clear_error();
}

_Static_assert(sizeof((saved_error *)0)->text == ERROR_ROOM, "texts differ");

/* ---- why a compile failed ---- */

const char *etch__why(const char *format, ...) {
    thread_texts *room = texts_of_thread();
    va_list args;
    va_start(args, format);
    if (room) vsnprintf(room->why, sizeof room->why, format, args);
    va_end(args);
    return etch__tls.why = room ? room->why : "out of memory, for the reason's text too";
}
