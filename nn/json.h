/* JSON, as far as weight files need it: read strictly (RFC 8259, UTF-8 checked), and written. */
#ifndef ETCH_NN_JSON_H
#define ETCH_NN_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- reading ---- */

/* A place in a text. Every function below does nothing and returns false (NULL) once there is a
 * fault: a sentence that says what was expected, or "out of memory". */
typedef struct json {
    const char *start, *at, *end;
    const char *fault;
} json;

/* Whether the next token begins with c; nothing is taken. */
bool etch__json_is(json *j, char c);
/* Takes c, which has to be next. */
bool etch__json_take(json *j, char c);
/* Inside [ or {: whether another element follows. It takes the comma before it, or the closing
 * bracket. *any is false at first.
 *
 *     bool any = false;
 *     for (etch__json_take(j, '['); etch__json_more(j, ']', &any);) ...
 *     if (j->fault) ...
 */
bool etch__json_more(json *j, char closing, bool *any);
/* A string, decoded, for free(); one with a NUL in it is a fault. */
char *etch__json_string(json *j);
/* The same, and the colon behind it. */
char *etch__json_key(json *j);
/* A whole number of 0 to 2^63 - 1, without fraction or exponent. */
bool etch__json_whole(json *j, int64_t *value);
bool etch__json_real(json *j, double *value);
bool etch__json_bool(json *j, bool *value);
/* Whether nothing but white space follows. */
bool etch__json_ends(json *j);
bool etch__json_fault(json *j, const char *what);
/* Whether the bytes are UTF-8, as Unicode has it: no surrogates, nothing overlong. */
bool etch__is_utf8(const char *text, size_t n);

/* ---- writing ---- */

/* A text that grows; after an allocation has failed it stays as it is, and failed. */
typedef struct json_text {
    char *text; /* with a NUL behind it; for free() */
    size_t n, room;
    bool failed;
} json_text;

void etch__json_put(json_text *t, const char *part);
void etch__json_put_whole(json_text *t, int64_t value);
void etch__json_put_real(json_text *t, double value);
/* In quotes, escaped. */
void etch__json_put_string(json_text *t, const char *text);
/* The same for a number alone: text is returned, with a point whatever the locale. */
enum { REAL_TEXT = 40 };
const char *etch__real_text(double value, char text[REAL_TEXT]);

#endif
