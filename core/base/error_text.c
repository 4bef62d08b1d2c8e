/* Reading the thread's error: names of functions and source lines are looked up when somebody asks
 * for the text, and once. */
#include "core/base/error_text.h"

etch_status etch_last_status(void) { return etch__tls.status; }

/* Whether the text begins with that name, or with that of the macro over it: what users call is
 * etch_nn_mse_loss, where the function is etch_nn_mse_loss_with. */
static bool begins_with(const char *text, const char *name) {
    size_t n = strlen(name), end = sizeof "_with" - 1;
    if (n > end && !strcmp(name + n - end, "_with")) n -= end;
    return !strncmp(text, name, n);
}

/* The name of the public function, where the text names nothing. */
static void name_function(thread_texts *own) {
    const char *name = own->notes.unnamed ? etch__symbol_name(own->notes.function) : "?";
    bool public = !strncmp(name, "etch_", 5) && name[5] != '_';
    if (public && !begins_with(own->error, name)) etch__error_put_name(own->error, name, 0);
    own->notes.unnamed = false;
}

/* Puts text behind the error's; one that fills the buffer gives way at its end. */
static void append(char *error, const char *text) {
    size_t need = strlen(text) + 1, used = strlen(error);
    if (need > ERROR_ROOM) return;
    if (used > ERROR_ROOM - need) used = ERROR_ROOM - need;
    memcpy(error + used, text, need);
}

static void append_line(char *error, const void *site) {
    char text[288];
    const char *line = etch__site_line(site);
    snprintf(text, sizeof text, " (%s)", line);
    if (*line) append(error, text);
}

/* Names and lines, once: each costs a look into the debug information. */
static void complete(thread_texts *own) {
    error_notes *notes = &own->notes;
    char text[160];
    if (notes->unnamed) name_function(own);
    if (etch__tls.error_site) append_line(own->error, etch__tls.error_site);
    etch__tls.error_site = NULL;
    if (!notes->next_site) return;
    snprintf(text, sizeof text, "; so %s has no \"%s\"", notes->next, notes->argument);
    append(own->error, text);
    append_line(own->error, notes->next_site);
    notes->next_site = NULL;
}

const char *etch_last_error(void) {
    thread_texts *own = etch__error_texts();
    if (etch__tls.status == ETCH_OK) return "";
    if (own) complete(own);
    return etch__tls.error;
}
