/* See text.h. */
#include "core/base/text.h"

#include <stdarg.h>
#include <stdio.h>

static bool has_room(growing_text *t, int64_t n) {
    t->failed = t->failed || !etch__grow(&t->p, &t->cap, t->n + n + 1, 1);
    return !t->failed;
}

/* What is long is written once more, in the text itself. */
void etch__text_put(growing_text *t, const char *format, ...) {
    char line[400];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(line, sizeof line, format, args);
    if (n < (int)sizeof line) {
        etch__text_bytes(t, line, (size_t)n);
    } else if (has_room(t, n)) {
        vsnprintf(t->p + t->n, (size_t)n + 1, format, again);
        t->n += n;
    }
    va_end(again);
    va_end(args);
}

void etch__text_bytes(growing_text *t, const char *bytes, size_t n) {
    if (!has_room(t, (int64_t)n)) return;
    memcpy(t->p + t->n, bytes, n);
    t->p[t->n += (int64_t)n] = 0;
}

char *etch__text_end(growing_text *t) {
    if (!t->failed) return t->p;
    etch__free(t->p);
    return NULL;
}

void etch__text_add(bounded_text *t, const char *format, ...) {
    bool room = t->n < t->room;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(room ? t->buf + t->n : NULL, room ? t->room - t->n : 0, format, args);
    va_end(args);
    if (n > 0) t->n += (size_t)n;
}
