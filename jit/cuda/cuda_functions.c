/* The transcendental functions in CUDA C: the text of core/ops/functions.h, of which a kernel gets
 * the units that it needs. So a device computes what the CPU does.
 *
 * A unit ends at an empty line; it is needed when the body or a later unit that is needed names one
 * of its functions. Units of macros alone are always there. */
#include <ctype.h>

#include "jit/cuda/cuda_gen.h"

#include "embedded/functions.h.inc"

enum { UNITS_MAX = 128 };

typedef struct unit {
    const char *at;
    int n;
    bool needed[2]; /* of f32, of f64 */
} unit;

#include "embedded/basics.cuh.inc"

static int split(unit *units) {
    int n = 0;
    for (const char *p = functions_text; *p && n < UNITS_MAX;) {
        const char *end = strstr(p, "\n\n");
        int length = end ? (int)(end - p) + 1 : (int)strlen(p);
        units[n++] = (unit){.at = p, .n = length};
        p += length;
        while (*p == '\n') p++;
    }
    return n;
}

/* Whether the word is in the n characters, not as a part of a longer one. */
static bool mentions(const char *in, int n, const char *label) {
    size_t length = strlen(label);
    for (const char *p = in; (p = memmem(p, (size_t)(in + n - p), label, length)); p++) {
        bool starts = p == in || !(isalnum((unsigned char)p[-1]) || p[-1] == '_');
        char next = p + length < in + n ? p[length] : 0;
        if (starts && !isalnum((unsigned char)next) && next != '_') return true;
    }
    return false;
}

/* The next function or table that the unit defines, from *at on: its name, and whether it is one of
 * each type, written F(name). */
static bool next_name(const unit *u, int *at, char label[32], bool *typed) {
    for (; *at < u->n; (*at)++) {
        const char *p = u->at + *at;
        bool begins = *at == 0 || p[-1] == '\n';
        if (!begins || (strncmp(p, "FN ", 3) && strncmp(p, "TABLE ", 6))) continue;
        p = strchr(strchr(p, ' ') + 1, ' ') + 1; /* behind the type */
        *typed = !strncmp(p, "F(", 2);
        if (*typed) p += 2;
        snprintf(label, 32, "%.*s", (int)strspn(p, "abcdefghijklmnopqrstuvwxyz_0123456789"), p);
        (*at)++;
        return true;
    }
    return false;
}

/* Whether the unit, for a type, is named by the body or by what is needed already. */
static bool wanted(const unit *units, int n, int k, int wide, const char *body) {
    char label[32], suffixed[40], form[40];
    bool typed;
    for (int at = 0; next_name(&units[k], &at, label, &typed);) {
        snprintf(suffixed, sizeof suffixed, typed ? "%s_%s" : "%s", label, wide ? "f64" : "f32");
        snprintf(form, sizeof form, "F(%s)", label);
        if (mentions(body, (int)strlen(body), suffixed)) return true;
        for (int i = 0; i < n; i++) {
            if ((units[i].needed[0] || units[i].needed[1]) &&
                mentions(units[i].at, units[i].n, suffixed) && i != k)
                return true;
            if (typed && i > k && units[i].needed[wide] &&
                memmem(units[i].at, (size_t)units[i].n, form, strlen(form)))
                return true;
        }
    }
    return false;
}

static bool is_macros(const unit *u) {
    char label[32];
    bool typed;
    int at = 0;
    return memmem(u->at, (size_t)u->n, "#define", 7) && !next_name(u, &at, label, &typed);
}

/* The kernel's own text may use the same words. */
static void forget_macros(growing_text *t, const unit *units, int n) {
    for (int k = 0; k < n; k++) {
        const char *end = units[k].at + units[k].n;
        for (const char *p = units[k].at; p < end && is_macros(&units[k]); p++) {
            if ((p != units[k].at && p[-1] != '\n') || strncmp(p, "#define ", 8)) continue;
            etch__text_put(t, "#undef %.*s\n", (int)strcspn(p + 8, " (\n"), p + 8);
        }
    }
    etch__text_put(t, "#undef FN\n#undef TABLE\n#undef EXACT_FMA\n#undef SINGLE\n#undef ALL\n"
                      "#undef ALL_WORDS\n#undef APPROXIMATE\n#undef F64\n#undef F\n");
}

void etch__cuda_functions(growing_text *t, const char *body) {
    unit units[UNITS_MAX];
    int n = split(units);
    bool any[2] = {false, false};
    for (int wide = 0; wide <= 1; wide++)
        for (int k = n - 1; k >= 0; k--)
            any[wide] |= units[k].needed[wide] = wanted(units, n, k, wide, body);
    if (any[0] || any[1]) etch__text_put(t, "\n%s", basics_text);
    for (int wide = 1; wide >= 0; wide--) {
        if (any[wide])
            etch__text_put(t, "#undef F64\n#define F64 %d\n#undef F\n#define F(name) name##_f%d\n",
                           wide, wide ? 64 : 32);
        for (int k = 0; any[wide] && k < n; k++)
            if (units[k].needed[wide] || is_macros(&units[k]))
                etch__text_put(t, "\n%.*s", units[k].n, units[k].at);
    }
    if (any[0] || any[1]) forget_macros(t, units, n);
}
