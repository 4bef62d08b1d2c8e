/* The text of the thread's error, for those that set it and those that read it. */
#ifndef ETCH_CORE_BASE_ERROR_TEXT_H
#define ETCH_CORE_BASE_ERROR_TEXT_H

#include "core/base/thread.h"

enum { ERROR_ROOM = sizeof((thread_texts *)0)->error };

/* Where the error's text and notes can be changed; NULL: there is no error, or no room for it. */
thread_texts *etch__error_texts(void);

/* "name: " in place of the first `old` characters; a text that fills the buffer gives way. */
void etch__error_put_name(char *text, const char *name, size_t old);

#endif
