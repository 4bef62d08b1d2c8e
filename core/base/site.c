/* From code addresses to the user's source: "file.c:12" and function names, read from the files
 * that the process runs. Only who reads an error's text or a log asks. Answers are kept for ever,
 * one an address; an address without debug information has the answer "". */
#include <dlfcn.h>
#include <pthread.h>

#include <etch/debug.h>

#include "core/base/locks.h"
#include "core/base/lines.h"

typedef struct answer {
    const void *address;
    char *text;
} answer;

/* Open addressing, a power of two, at most half full. */
typedef struct answers {
    answer *slots;
    int64_t cap, used;
} answers;

static answers lines, symbols;

/* ---- the kept answers ---- */

static answer *find(const answers *t, const void *address) {
    uint64_t h = (uint64_t)(uintptr_t)address * 0x9e3779b97f4a7c15u;
    int64_t at = (int64_t)(h >> 32) & (t->cap - 1);
    while (t->slots[at].text && t->slots[at].address != address) at = (at + 1) & (t->cap - 1);
    return &t->slots[at];
}

static bool widen(answers *t) {
    answers wide = {.cap = t->cap ? t->cap * 2 : 64, .used = t->used};
    wide.slots = etch__calloc((size_t)wide.cap, sizeof(answer));
    if (!wide.slots) return false;
    for (int64_t i = 0; i < t->cap; i++)
        if (t->slots[i].text) *find(&wide, t->slots[i].address) = t->slots[i];
    etch__free(t->slots);
    *t = wide;
    return true;
}

/* NULL when there is no memory to keep it. */
static const char *keep(answers *t, const void *address, const char *text) {
    if (t->used * 2 >= t->cap && !widen(t)) return NULL;
    char *copy = etch__strdup(text);
    if (!copy) return NULL;
    *find(t, address) = (answer){address, copy};
    t->used++;
    return copy;
}

/* ---- looking up ---- */

/* A look-up writes what it knows of the address; false: there was no memory to look. */
typedef bool (*look_up)(const void *address, char *text, size_t n);

/* A return address is the instruction after the call, which may belong to the next line. */
static bool look_up_path(const void *site, char *path, size_t n, int *number) {
    const void *call = (const char *)site - 1;
    module m;
    *path = 0, *number = 0;
    if (!etch__module_open(call, &m)) return true;
    bool known = etch__line_of(&m, call, path, n, number);
    etch__module_close(&m);
    return known;
}

static bool look_up_line(const void *site, char *text, size_t n) {
    char path[1024];
    int number;
    bool known = look_up_path(site, path, sizeof path, &number);
    const char *slash = strrchr(path, '/');
    text[0] = 0;
    if (number) snprintf(text, n, "%s:%d", slash ? slash + 1 : path, number);
    return known;
}

static bool look_up_symbol(const void *function, char *text, size_t n) {
    module m;
    Dl_info info;
    bool there = etch__module_open(function, &m);
    bool named = there && etch__module_symbol(&m, function, text, n);
    if (there) etch__module_close(&m);
    if (named) return true;
    named = dladdr(function, &info) && info.dli_saddr == function;
    snprintf(text, n, "%s", named ? info.dli_sname : "?");
    return true;
}

/* Neither fails nor touches the error, which may be just the one that asks for its line. */
static const char *resolve(answers *t, const void *address, const char *absent, look_up look) {
    char text[256];
    KEEP_ERROR;
    etch__lock(LOCK_LINES);
    const char *known = t->cap ? find(t, address)->text : NULL;
    if (!known && look(address, text, sizeof text)) known = keep(t, address, text);
    etch__unlock(LOCK_LINES);
    return known ? known : absent;
}

const char *etch__site_line(const void *site) {
    return site && !etch__is_own_code((const char *)site - 1)
               ? resolve(&lines, site, "", look_up_line)
               : "";
}

const char *etch__symbol_name(const void *address) {
    return address ? resolve(&symbols, address, "?", look_up_symbol) : "?";
}

/* Where the compiler found the file, and the line's number, 0 without debug information. */
static int path_of(const void *site, char *path, size_t n) {
    int number = 0;
    KEEP_ERROR;
    etch__lock(LOCK_LINES);
    look_up_path(site, path, n, &number);
    etch__unlock(LOCK_LINES);
    return number;
}

void etch__site_source(const void *site, char *text, size_t n) {
    char path[1024];
    bool ours =
        site && etch__is_own_code((const char *)site - 1); /* whose lines say nothing to the user */
    int number = site && !ours ? path_of(site, path, sizeof path) : 0;
    FILE *f = number > 0 ? fopen(path, "re") : NULL;
    text[0] = 0;
    if (!f) return;
    while (number > 0 && fgets(text, (int)n, f)) {
        size_t length = strcspn(text, "\n");
        if (text[length] == '\n') number--;
        else if (number > 1) continue; /* a piece of a longer line */
        else number = 0;
        text[length] = 0;
    }
    if (number > 0) text[0] = 0; /* the file is shorter than it was */
    fclose(f);
}

int64_t etch_address_text(const void *address, char *buf, size_t n) {
    const char *line = etch__site_line(address);
    const char *name = address ? etch__symbol_name((const char *)address - 1) : "?";
    return snprintf(buf, buf ? n : 0, "%s%s%s", name, *line ? " at " : "", line);
}
