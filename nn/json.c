/* JSON: see nn/json.h. */
#include "nn/json.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

bool etch__json_fault(json *j, const char *what) {
    if (!j->fault) j->fault = what;
    return false;
}

static void skip_space(json *j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\t' || *j->at == '\r'))
        j->at++;
}

bool etch__json_is(json *j, char c) {
    skip_space(j);
    return !j->fault && j->at < j->end && *j->at == c;
}

bool etch__json_take(json *j, char c) {
    if (j->fault) return false;
    if (etch__json_is(j, c)) return j->at++, true;
    switch (c) {
    case '{': return etch__json_fault(j, "expected '{'");
    case '[': return etch__json_fault(j, "expected '['");
    case ':': return etch__json_fault(j, "expected ':'");
    case '"': return etch__json_fault(j, "expected a string");
    default: return etch__json_fault(j, "expected ',' or a closing bracket");
    }
}

bool etch__json_more(json *j, char closing, bool *any) {
    if (j->fault) return false;
    if (etch__json_is(j, closing)) return j->at++, false;
    if (*any && !etch__json_take(j, ',')) return false;
    *any = true;
    return true;
}

bool etch__json_ends(json *j) {
    skip_space(j);
    return !j->fault && j->at == j->end;
}

/* ---- strings ---- */

/* The length of the UTF-8 sequence at s, of which n bytes are there; 0 where there is none. */
static size_t utf8_length(const unsigned char *s, size_t n) {
    static const struct {
        unsigned char first, last, low, high; /* of the first byte, and of the second */
        size_t length;
    } rows[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (*s < rows[i].first || *s > rows[i].last) continue;
        if (rows[i].length > n) return 0;
        for (size_t k = 1; k < rows[i].length; k++)
            if (s[k] < (k == 1 ? rows[i].low : 0x80) || s[k] > (k == 1 ? rows[i].high : 0xbf))
                return 0;
        return rows[i].length;
    }
    return 0;
}

bool etch__is_utf8(const char *text, size_t n) {
    for (size_t i = 0, k; i < n; i += k)
        if (!(k = utf8_length((const unsigned char *)text + i, n - i))) return false;
    return true;
}

/* Writes a code point as UTF-8; the bytes written. */
static size_t encode(uint32_t c, char *to) {
    if (c < 0x80) return to[0] = (char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6) to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(lead[n] | c);
    return n;
}

/* Four hexadecimal digits at j->at; 0x10000 with a fault otherwise. */
static uint32_t hex4(json *j) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = j->at < j->end ? *j->at++ : 0;
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
        if (digit < 0) return etch__json_fault(j, "expected four hexadecimal digits"), 0x10000;
        v = v * 16 + (uint32_t)digit;
    }
    return v;
}

/* What follows \u: a code point, or a pair of surrogates. */
static uint32_t code_point(json *j) {
    uint32_t c = hex4(j);
    if (c == 0) etch__json_fault(j, "a string has a NUL in it");
    if (j->fault || c < 0xd800 || c > 0xdfff) return c;
    bool pair = c < 0xdc00 && j->end - j->at >= 2 && j->at[0] == '\\' && j->at[1] == 'u';
    if (pair) j->at += 2;
    uint32_t low = pair ? hex4(j) : 0;
    if (low < 0xdc00 || low > 0xdfff) return etch__json_fault(j, "half a surrogate pair"), c;
    return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

/* One escape, behind its backslash. */
static size_t escape(json *j, char *to) {
    static const char from[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at++ : 0;
    if (c == 'u') {
        uint32_t point = code_point(j);
        return j->fault ? 0 : encode(point, to);
    }
    const char *found = c ? strchr(from, c) : NULL;
    if (!found) return etch__json_fault(j, "an escape that there is not"), 0;
    *to = means[found - from];
    return 1;
}

/* Up to the closing quote, into room for all that is left; its length. */
static size_t decode(json *j, char *to) {
    size_t n = 0;
    while (!j->fault && j->at < j->end && *j->at != '"') {
        if (*j->at == '\\') {
            j->at++;
            n += escape(j, to + n);
            continue;
        }
        size_t k = utf8_length((const unsigned char *)j->at, (size_t)(j->end - j->at));
        if (!k) etch__json_fault(j, "a string is not UTF-8");
        else if ((unsigned char)*j->at < 0x20)
            etch__json_fault(j, "a control character in a string");
        else memcpy(to + n, j->at, k), j->at += k, n += k;
    }
    if (j->at == j->end) etch__json_fault(j, "a string has no end");
    return n;
}

/* Where the string that begins at j->at ends; escapes only make it longer than what it means. */
static size_t room_for(const json *j) {
    const char *p = j->at;
    while (p < j->end && *p != '"') p += *p == '\\' && p + 1 < j->end ? 2 : 1;
    return (size_t)(p - j->at) + 1;
}

char *etch__json_string(json *j) {
    if (!etch__json_take(j, '"')) return NULL;
    char *text = malloc(room_for(j));
    if (!text) return etch__json_fault(j, "out of memory"), NULL;
    size_t n = decode(j, text);
    if (j->fault) return free(text), NULL;
    j->at++;
    text[n] = 0;
    return text;
}

char *etch__json_key(json *j) {
    char *key = etch__json_string(j);
    if (!key || etch__json_take(j, ':')) return key;
    free(key);
    return NULL;
}

/* ---- numbers, truth ---- */

static size_t digits(const json *j, const char *from) {
    const char *p = from;
    while (p < j->end && *p >= '0' && *p <= '9') p++;
    return (size_t)(p - from);
}

bool etch__json_whole(json *j, int64_t *value) {
    if (j->fault) return false;
    skip_space(j);
    size_t n = digits(j, j->at);
    int64_t v = 0;
    if (!n || (n > 1 && *j->at == '0'))
        return etch__json_fault(j, "expected a whole number that is not negative");
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, j->at[i] - '0', &v))
            return etch__json_fault(j, "a number is above 2^63 - 1");
    j->at += n;
    if (j->at < j->end && strchr(".eE+-", *j->at) && *j->at)
        return etch__json_fault(j, "expected a whole number that is not negative");
    *value = v;
    return true;
}

/* The characters of a number at j->at, by RFC 8259; 0 where there is none. */
static size_t number_length(const json *j) {
    const char *p = j->at;
    p += p < j->end && *p == '-';
    size_t n = digits(j, p);
    if (!n || (n > 1 && *p == '0')) return 0;
    p += n;
    if (p < j->end && *p == '.') {
        if (!(n = digits(j, p + 1))) return 0;
        p += n + 1;
    }
    if (p < j->end && (*p | 32) == 'e') {
        p++, p += p < j->end && (*p == '+' || *p == '-');
        if (!(n = digits(j, p))) return 0;
        p += n;
    }
    return (size_t)(p - j->at);
}

bool etch__json_real(json *j, double *value) {
    char text[REAL_TEXT + 40], *point;
    if (j->fault) return false;
    skip_space(j);
    size_t n = number_length(j);
    const char *locale_point = localeconv()->decimal_point;
    if (!n || n >= REAL_TEXT) return etch__json_fault(j, "expected a number");
    memcpy(text, j->at, n);
    text[n] = 0;
    /* strtod reads the locale's point */
    if ((point = strchr(text, '.')) && strlen(locale_point) == 1) *point = *locale_point;
    *value = strtod(text, NULL);
    j->at += n;
    return true;
}

bool etch__json_bool(json *j, bool *value) {
    static const char *const words[] = {"false", "true"};
    skip_space(j);
    for (int i = 0; !j->fault && i < 2; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->at) < n || memcmp(j->at, words[i], n)) continue;
        j->at += n;
        return *value = i, true;
    }
    return etch__json_fault(j, "expected true or false");
}

/* ---- writing ---- */

static bool make_room(json_text *t, size_t more) {
    if (t->failed) return false;
    size_t room = t->room ? t->room : 256;
    while (room < t->n + more + 1) room *= 2;
    if (room == t->room) return true;
    char *grown = realloc(t->text, room);
    if (!grown) return t->failed = true, false;
    t->text = grown, t->room = room;
    return true;
}

static void put_bytes(json_text *t, const char *part, size_t n) {
    if (!make_room(t, n)) return;
    memcpy(t->text + t->n, part, n);
    t->n += n;
    t->text[t->n] = 0;
}

void etch__json_put(json_text *t, const char *part) { put_bytes(t, part, strlen(part)); }

void etch__json_put_whole(json_text *t, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    etch__json_put(t, text);
}

const char *etch__real_text(double value, char text[REAL_TEXT]) {
    snprintf(text, REAL_TEXT, "%.17g", isfinite(value) ? value : 0.0);
    for (char *p = text; *p; p++)
        if (!strchr("0123456789+-e", *p)) *p = '.';
    return text;
}

void etch__json_put_real(json_text *t, double value) {
    char text[REAL_TEXT];
    etch__json_put(t, etch__real_text(value, text));
}

void etch__json_put_string(json_text *t, const char *text) {
    put_bytes(t, "\"", 1);
    for (const char *p = text; *p; p++) {
        char code[8];
        if (*p == '"' || *p == '\\') put_bytes(t, "\\", 1);
        if ((unsigned char)*p >= 0x20) put_bytes(t, p, 1);
        else snprintf(code, sizeof code, "\\u%04x", (unsigned)*p), etch__json_put(t, code);
    }
    put_bytes(t, "\"", 1);
}
