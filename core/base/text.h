/* Text that grows as it is written, as generated code and what logs print of it, and text that is
 * put together in a buffer. */
#ifndef ETCH_CORE_BASE_TEXT_H
#define ETCH_CORE_BASE_TEXT_H

#include "core/base/base.h"

/* A zeroed one is empty. Where there was no memory it stays as it is, and `failed` says so. */
typedef struct growing_text {
    char *p;
    int64_t n, cap;
    bool failed;
} growing_text;

void etch__text_put(growing_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void etch__text_bytes(growing_text *t, const char *bytes, size_t n);
/* What was written, to be freed with etch__free; NULL where it failed. */
char *etch__text_end(growing_text *t);

/* In a buffer of `room` bytes, as snprintf writes: what does not fit is left out, n counts on. */
typedef struct bounded_text {
    char *buf;
    size_t room, n;
} bounded_text;
void etch__text_add(bounded_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
