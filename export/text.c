/* Programs as text. The graph has a form of its own (core/graph/graph.h); the rest is words and
 * whole numbers, one line a thing, in one order:
 *
 *     etch program 1
 *     options MODE NUMERICS PROCESSOR DYNAMIC ANY_MODE
 *     arguments N   then N lines: INPUT SAME
 *     captures N    then N lines: OFFSET
 *     scalars N     then N lines: the bits as a hexadecimal number
 *     results N     then N lines: VALUE
 *     symbols N     then N lines: MIN MAX SIZE
 *     dims N        then N lines: ARGUMENT DIMENSION SYMBOL
 *     formulas N    then N times: TARGET INDEX FORM FACTOR FACTOR ADD DIVISOR, a line with the bits
 *                   of a double, a line with the symbols of two products, three each
 */
#include <stdlib.h>

#include "core/base/text.h"
#include "export/program.h"

enum { PROGRAM_VERSION = 1, COUNT_MAX = 1 << 24 };

/* ---- writing ---- */

static void put_sizes(growing_text *t, const program *p) {
    etch__text_put(t, "symbols %d\n", p->nsymbols);
    for (int i = 0; i < p->nsymbols; i++)
        etch__text_put(t, "%lld %lld %lld\n", (long long)p->symbols[i].min,
                       (long long)p->symbols[i].max, (long long)p->symbols[i].size);
    etch__text_put(t, "dims %d\n", p->ndims);
    for (int i = 0; i < p->ndims; i++)
        etch__text_put(t, "%d %d %d\n", p->dims[i].argument, p->dims[i].dim, p->dims[i].symbol);
    etch__text_put(t, "formulas %d\n", p->nformulas);
    for (int i = 0; i < p->nformulas; i++) {
        const program_formula *f = &p->formulas[i];
        uint64_t real;
        memcpy(&real, &f->real, sizeof real);
        etch__text_put(t, "%d %d %d %lld %lld %lld %lld\n%llx\n", f->target, f->index, f->form,
                       (long long)f->factor[0], (long long)f->factor[1], (long long)f->add,
                       (long long)f->divisor, (unsigned long long)real);
        for (int k = 0; k < TERMS_MAX; k++)
            for (int s = 0; s < FACTORS_MAX; s++)
                etch__text_put(t, "%d%s", f->product[k].symbol[s],
                               k + 1 == TERMS_MAX && s + 1 == FACTORS_MAX ? "\n" : " ");
    }
}

char *etch__program_text(const program *p) {
    growing_text t = {0};
    etch__text_put(&t, "etch program %d\noptions %d %d %u %d %d\narguments %d\n", PROGRAM_VERSION,
                   p->mode, p->numerics, p->fp, p->g->dynamic, p->g->any_mode, p->nargs);
    for (int i = 0; i < p->nargs; i++)
        etch__text_put(&t, "%d %d\n", p->args[i].input, p->args[i].same);
    etch__text_put(&t, "captures %d\n", p->ncaptures);
    for (int i = 0; i < p->ncaptures; i++)
        etch__text_put(&t, "%lld\n", (long long)p->captures[i].offset);
    etch__text_put(&t, "scalars %d\n", p->g->nscalars);
    for (int i = 0; i < p->g->nscalars; i++)
        etch__text_put(&t, "%llx\n", (unsigned long long)p->scalars[i].i);
    etch__text_put(&t, "results %d\n", p->nresults);
    for (int i = 0; i < p->nresults; i++) etch__text_put(&t, "%d\n", p->results[i]);
    put_sizes(&t, p);
    return etch__text_end(&t);
}

/* ---- reading ---- */

typedef struct reader {
    const char *at;
    int line;
    bool failed;
} reader;

static void fail(reader *r, const char *what) {
    if (!r->failed)
        etch__error(ETCH_ERR_FORMAT, "its program, line %d: expected %s", r->line, what);
    r->failed = true;
}

static void skip(reader *r) {
    for (; *r->at == ' ' || *r->at == '\n'; r->at++) r->line += *r->at == '\n';
}

static void word(reader *r, const char *expected) {
    size_t n = strlen(expected);
    skip(r);
    if (strncmp(r->at, expected, n) || (r->at[n] != ' ' && r->at[n] != '\n')) fail(r, expected);
    else r->at += n;
}

static int64_t number(reader *r, int64_t least, int64_t most) {
    char *end;
    skip(r);
    long long v = strtoll(r->at, &end, 10);
    if (end == r->at || (*end != ' ' && *end != '\n') || v < least || v > most)
        return fail(r, "a number in its range"), least;
    r->at = end;
    return v;
}

static uint64_t bits(reader *r) {
    char *end;
    skip(r);
    unsigned long long v = strtoull(r->at, &end, 16);
    if (end == r->at || *end != '\n') return fail(r, "a hexadecimal number"), 0;
    r->at = end;
    return v;
}

/* So many as are announced, and room for one at least. */
static void *list(reader *r, const char *name, int most, int *n, size_t size) {
    word(r, name);
    *n = (int)number(r, 0, most);
    void *items = r->failed ? NULL : etch__calloc((size_t)*n + 1, size);
    r->failed |= !items;
    if (!items) *n = 0;
    return items;
}

static void read_options(reader *r, program *p) {
    word(r, "etch"), word(r, "program"), number(r, PROGRAM_VERSION, PROGRAM_VERSION);
    word(r, "options");
    p->mode = (etch_mode_kind)number(r, 0, ETCH_MODE_MAX_AUTOTUNE);
    p->numerics = (etch_numerics)number(r, 0, ETCH_RELAXED);
    p->fp = (unsigned)number(r, 0, FP_MODE) & FP_MODE;
    p->g->dynamic = number(r, 0, 1);
    p->g->any_mode = number(r, 0, 1);
}

static void read_scalars(reader *r, program *p) {
    int n;
    p->scalars = list(r, "scalars", COUNT_MAX, &n, sizeof *p->scalars);
    if (!r->failed && n != p->g->nscalars) fail(r, "as many scalars as the graph has");
    for (int i = 0; !r->failed && i < n; i++) {
        p->scalars[i].kind = (etch_scalar_kind)p->g->scalar_kinds[i];
        p->scalars[i].i = (int64_t)bits(r);
        bool is_bool = p->scalars[i].kind == ETCH_SCALAR_BOOL;
        if (is_bool && (p->scalars[i].i & ~(int64_t)1)) fail(r, "a bool of 0 or 1");
    }
}

static void read_formula(reader *r, const program *p, program_formula *f) {
    const graph *g = p->g;
    f->target = (formula_target)number(r, 0, TARGET_COUNT - 1);
    f->index = (int32_t)number(r, 0, (f->target == TARGET_WORD ? g->nattrs : g->nscalars) - 1);
    f->form = (formula_form)number(r, 0, FORM_COUNT - 1);
    for (int k = 0; k < TERMS_MAX; k++) f->factor[k] = number(r, INT64_MIN, INT64_MAX);
    f->add = number(r, INT64_MIN, INT64_MAX);
    f->divisor = number(r, 1, INT64_MAX);
    uint64_t real = bits(r);
    memcpy(&f->real, &real, sizeof real);
    for (int k = 0; k < TERMS_MAX; k++)
        for (int s = 0; s < FACTORS_MAX; s++)
            f->product[k].symbol[s] = (int8_t)number(r, -1, p->nsymbols - 1);
}

static void read_sizes(reader *r, program *p) {
    word(r, "symbols");
    p->nsymbols = (int)number(r, 0, SYMBOLS_MAX);
    for (int i = 0; !r->failed && i < p->nsymbols; i++) {
        p->symbols[i].min = number(r, 0, INT64_MAX);
        p->symbols[i].max = number(r, p->symbols[i].min, INT64_MAX);
        p->symbols[i].size = number(r, p->symbols[i].min, p->symbols[i].max);
    }
    p->dims = list(r, "dims", COUNT_MAX, &p->ndims, sizeof *p->dims);
    for (int i = 0; !r->failed && i < p->ndims; i++) {
        p->dims[i].argument = (int32_t)number(r, 0, p->nargs - 1);
        p->dims[i].dim = (int32_t)number(r, 0, ETCH_MAX_DIMS - 1);
        p->dims[i].symbol = (int32_t)number(r, 0, p->nsymbols - 1);
    }
    p->formulas = list(r, "formulas", COUNT_MAX, &p->nformulas, sizeof *p->formulas);
    for (int i = 0; !r->failed && i < p->nformulas; i++) read_formula(r, p, &p->formulas[i]);
}

static void read_rest(reader *r, program *p) {
    read_options(r, p);
    p->args = list(r, "arguments", PROGRAM_ARGS_MAX, &p->nargs, sizeof *p->args);
    for (int i = 0; !r->failed && i < p->nargs; i++) {
        p->args[i].input = (int32_t)number(r, -1, p->g->ninputs - 1);
        p->args[i].same = (int32_t)number(r, 0, i);
    }
    p->captures = list(r, "captures", COUNT_MAX, &p->ncaptures, sizeof *p->captures);
    for (int i = 0; !r->failed && i < p->ncaptures; i++)
        p->captures[i].offset = number(r, 0, INT64_MAX);
    read_scalars(r, p);
    p->results = list(r, "results", COUNT_MAX, &p->nresults, sizeof *p->results);
    for (int i = 0; !r->failed && i < p->nresults; i++)
        p->results[i] = (int32_t)number(r, 0, p->g->nvalues - 1);
    if (!r->failed) read_sizes(r, p);
    skip(r);
    if (!r->failed && *r->at) fail(r, "the end");
}

program *etch__program_read(const char *graph_text, const char *rest) {
    program *p = etch__calloc(1, sizeof *p);
    reader r = {.at = rest, .line = 1};
    if (!p) return NULL;
    p->g = etch__graph_parse(graph_text);
    if (p->g) read_rest(&r, p);
    if (p->g && !r.failed) return p;
    etch__program_free(p);
    return NULL;
}
