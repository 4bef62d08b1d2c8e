/* ETCH_TRACE: what the document says of programs whose every break, branch and recompile is known;
 * that the page holds it, with nothing that could leave its script element; that failures of memory
 * or of the folder leave the program as it was; processes, threads and fork.
 *
 * `test_report sample` is a program with all outcomes, for check_report.sh and the tests here. */
#include <dirent.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/trace_support.h"
#include "tracer/tell/report.h"

extern char **environ;

/* ---- a document, parsed ---- */

typedef enum value_kind { V_NULL, V_BOOL, V_NUMBER, V_STRING, V_ARRAY, V_OBJECT } value_kind;

typedef struct value {
    value_kind kind;
    double number;
    char *string, *name; /* name: of a member */
    struct value *first, *next;
} value;

static const char *at;
static value *parse(void);

static void space(void) { at += strspn(at, " \n\t\r"); }

static value *new_value(value_kind kind) {
    value *v = calloc(1, sizeof *v);
    v->kind = kind;
    return v;
}

static char *parse_string(void) {
    char *out = malloc(strlen(at) + 1), *to = out;
    assert_int_equal(*at++, '"');
    while (*at != '"') {
        assert_true((unsigned char)*at >= 0x20);
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        at++;
        if (*at == 'u') {
            char hex[5] = {at[1], at[2], at[3], at[4], 0};
            unsigned code = (unsigned)strtoul(hex, NULL, 16);
            *to++ = code < 0x80 ? (char)code : '?';
            at += 5;
        } else {
            assert_int_equal(*at++, 'n');
            *to++ = '\n';
        }
    }
    at++;
    *to = 0;
    return out;
}

static value *parse_members(value_kind kind, char end) {
    value *v = new_value(kind), **link = &v->first;
    at++;
    for (space(); *at != end; space()) {
        char *name = kind == V_OBJECT ? parse_string() : NULL;
        if (name) space(), assert_int_equal(*at++, ':');
        *link = parse();
        (*link)->name = name;
        link = &(*link)->next;
        space();
        if (*at == ',') at++, space(), assert_int_not_equal(*at, end);
        else assert_int_equal(*at, end);
    }
    at++;
    return v;
}

static value *parse(void) {
    space();
    if (*at == '{') return parse_members(V_OBJECT, '}');
    if (*at == '[') return parse_members(V_ARRAY, ']');
    value *v = new_value(*at == '"' ? V_STRING : V_BOOL);
    if (*at == '"') v->string = parse_string();
    else if (!strncmp(at, "true", 4)) at += 4, v->number = 1;
    else if (!strncmp(at, "false", 5)) at += 5;
    else {
        char *end;
        v->kind = V_NUMBER;
        v->number = strtod(at, &end);
        assert_true(end > at);
        at = end;
    }
    return v;
}

static void free_value(value *v) {
    while (v) {
        value *next = v->next;
        free_value(v->first);
        free(v->string), free(v->name), free(v);
        v = next;
    }
}

static value *get(const value *v, const char *name) {
    for (value *m = v->first; m; m = m->next)
        if (!strcmp(m->name, name)) return m;
    fail_msg("no member %s", name);
    return NULL;
}
static int64_t number(const value *v, const char *name) { return (int64_t)get(v, name)->number; }
static const char *string(const value *v, const char *name) { return get(v, name)->string; }
static int length(const value *v) {
    int n = 0;
    for (value *m = v->first; m; m = m->next) n++;
    return n;
}
static value *item(const value *v, int i) {
    value *m = v->first;
    while (i-- && m) m = m->next;
    assert_non_null(m);
    return m;
}
/* The element whose member `name` is `is`; NULL without one. */
static value *find(const value *list, const char *name, const char *is) {
    for (value *m = list->first; m; m = m->next)
        if (!strcmp(string(m, name), is)) return m;
    return NULL;
}
static value *function_named(const value *doc, const char *name) {
    value *f = find(get(doc, "functions"), "name", name);
    assert_non_null(f);
    return f;
}

/* ---- files ---- */

static char folder[64];

static char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*n + 1);
    assert_int_equal(fread(text, 1, *n, f), *n);
    fclose(f);
    text[*n] = 0;
    return text;
}

static value *document_at(const char *path) {
    size_t n;
    char *text = read_file(path, &n);
    assert_int_equal(strlen(text), n);
    at = text;
    value *doc = parse();
    space();
    assert_int_equal(*at, 0);
    free(text);
    return doc;
}

/* Writes what is recorded now, and reads it back. */
static value *written(void) {
    char path[4400];
    assert_int_equal(etch_trace_write(), ETCH_OK);
    etch__report_path("json", path, sizeof path);
    return document_at(path);
}

static void begin(void) {
    strcpy(folder, "/tmp/etch-report-XXXXXX");
    assert_true(mkdtemp(folder) && etch__report_begin(folder));
}

static void empty_folder(void) {
    char path[600];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
}

static void end(void) {
    etch__report_end();
    empty_folder();
    assert_int_equal(rmdir(folder), 0);
}
EACH_TEST(.before = begin, .after = end)

static int files_ending(const char *suffix) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t a = strlen(e->d_name), b = strlen(suffix);
        n += a >= b && !strcmp(e->d_name + a - b, suffix);
    }
    if (d) closedir(d);
    return n;
}

static char logged[4096];
static int nlogged;
static void keep_line(void *ctx, const char *line) {
    (void)ctx;
    nlogged++;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", line);
}

/* ---- programs ---- */

static int path;

/* Three ways behind one prefix, one of which breaks the graph. */
static etch_tensor *branches(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(etch_mul(x, x), 1.0);
    if (path == 1) return etch_sin(y);
    if (path == 2) return etch_mul_scalar(y, etch_item(etch_sum(y)));
    return etch_cos(y);
}

static void run_branches(const char *by, int calls) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(branches, .name = "branches", .backend = by);
        etch_tensor *x = arange_f32(4, 5);
        for (path = 0; path < 3; path++)
            for (int i = 0; i < calls; i++) assert_non_null(etch_call(f, x));
        etch_function_free(f);
    }
}

static etch_tensor *cosine(etch_tensor *x) { return etch_cos(x); }

/* One size after the other: the limit of 3 turns all others away. */
static void run_grows(void) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine, .name = "grows", .dynamic = ETCH_DYNAMIC_OFF,
                                        .recompile_limit = 3, .backend = "eager");
        for (int n = 1; n <= 8; n++) assert_non_null(etch_call(f, arange_f32(2, n)));
        etch_function_free(f);
    }
}

/* One path after the other: the limit of 2 turns the third away, twice. */
static void run_paths(void) {
    ETCH_SCOPE {
        etch_function *f =
            etch_compile(branches, .name = "paths", .recompile_limit = 2, .backend = "eager");
        etch_tensor *x = arange_f32(4, 5);
        for (int i = 0; i < 2; i++)
            for (path = 0; path < 3; path++) assert_non_null(etch_call(f, x));
        etch_function_free(f);
    }
}

static const char wild[] = "</script><script>alert('1')</script>&\"\\\x80\xff\xe2\x80\xa8<!--";

static etch_tensor *wild_break(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_graph_break(wild);
    return etch_neg(y);
}

static void run_wild(void) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(wild_break, .name = wild, .backend = "eager");
        for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, arange_f32(2, 3)));
        etch_function_free(f);
    }
}

static void run_dynamic(void) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine, .name = "sizes", .dynamic = ETCH_DYNAMIC_ON);
        for (int n = 2; n <= 9; n++) assert_non_null(etch_call(f, arange_f32(2, n)));
        etch_function_free(f);
    }
}

/* ---- what the document says ---- */

static const value *leaf_ending(const value *tree, const char *end_name, int nth) {
    for (value *l = get(tree, "leaves")->first; l; l = l->next)
        if (!strcmp(string(l, "end"), end_name) && nth-- == 0) return l;
    fail_msg("no leaf ends with %s", end_name);
    return NULL;
}

static const value *graph_of(const value *doc, const value *leaf) {
    int64_t id = (int64_t)item(get(leaf, "graphs"), 0)->number;
    const value *g = item(get(doc, "graphs"), (int)id);
    assert_int_equal(number(g, "id"), id);
    return g;
}

/* In a build without libgccjit all native graphs fall back. */
static void skip_without_jit(const value *doc) {
    for (value *g = get(doc, "graphs")->first; g; g = g->next)
        if (strstr(string(g, "why"), "no_jit")) skip();
}

static void tells_of_branches(const char *by) {
    run_branches(by, 4);
    value *doc = written(), *f = function_named(doc, "branches");
    skip_without_jit(doc);
    assert_string_equal(string(f, "backend"), by);
    assert_int_equal(number(f, "freed"), 1);
    assert_int_equal(number(get(f, "calls"), "count"), 12);
    assert_true(number(get(f, "calls"), "min_ns") > 0);
    value *counted = get(f, "counters"), *events = get(f, "events");
    assert_int_equal(number(counted, "calls"), 12);
    assert_int_equal(number(counted, "graphs"), 4);
    assert_int_equal(number(counted, "graph_breaks"), 4);
    /* One kind of break, met in all four calls; a divergence for each of the later two ways. */
    value *item_break = find(events, "reason", "item");
    assert_string_equal(string(item_break, "kind"), "break");
    assert_int_equal(number(item_break, "count"), 4);
    assert_non_null(strstr(string(item_break, "where"), "test_report.c:"));
    assert_non_null(strstr(string(item_break, "source"), "etch_item(etch_sum(y))"));
    assert_non_null(strstr(string(item_break, "hint"), "etch_where"));
    int diverged = 0;
    for (value *e = events->first; e; e = e->next)
        diverged += !strcmp(string(e, "reason"), "trace_diverged") ? (int)number(e, "count") : 0;
    assert_int_equal(diverged, 2);
    /* mul and add in common, then cos, sin, sum; the segment after the break has one operator. */
    value *trees = get(f, "trees"), *entry = item(trees, 0), *resume = item(trees, 1);
    assert_int_equal(length(trees), 2);
    if (!number(entry, "entry")) entry = resume, resume = item(trees, 0);
    assert_string_equal(string(entry, "guards"), "f32[4, 5]");
    assert_int_equal(length(get(entry, "nodes")), 5);
    assert_int_equal(length(get(entry, "leaves")), 3);
    assert_int_equal(length(get(resume, "nodes")), 1);
    assert_int_equal(length(get(resume, "leaves")), 1);
    int children = 0;
    for (value *n = get(entry, "nodes")->first; n; n = n->next)
        children += number(n, "parent") == 1;
    assert_int_equal(children, 3);
    assert_non_null(strstr(string(item(get(entry, "nodes"), 1), "text"), "add."));
    /* Each way was recorded once and ran three times. */
    assert_int_equal(length(get(doc, "graphs")), 4);
    for (value *l = get(entry, "leaves")->first; l; l = l->next) {
        const value *g = graph_of(doc, l);
        assert_int_equal(number(l, "recorded"), 1);
        assert_int_equal(number(get(g, "run"), "count"), 3);
        assert_string_equal(string(g, "outcome"), "compiled");
        assert_int_equal(number(g, "operators"), 3);
        assert_non_null(strstr(string(g, "text"), "graph branches/"));
        assert_non_null(strstr(string(g, "guards"), "tensor 0: f32[4, 5]"));
    }
    assert_int_equal(number(leaf_ending(entry, "item", 0), "eager_runs"), 0);
    free_value(doc);
}

TEST(branches_eager) { tells_of_branches("eager"); }
TEST(branches_native) { tells_of_branches("native"); }

/* A product, and a kernel of what follows it. */
static etch_tensor *of_a_layer(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_mul_scalar(etch_relu(etch_linear(x, w, b)), 2.0);
}

/* In numbers of 4 bytes: x, w and their product; that, b and the result. */
TEST(bytes_of_steps) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(of_a_layer, .backend = "native");
        etch_tensor *x = arange_f32(96, 80), *w = arange_f32(72, 80), *b = etch_select(w, 1, 0);
        for (int i = 0; i < 4; i++) assert_non_null(etch_call(f, x, w, b));
        etch_function_free(f);
    }
    value *doc = written();
    skip_without_jit(doc);
    const value *g = get(doc, "graphs")->first;
    while (number(g, "provisional")) g = g->next; /* while the kernel was compiled beside it */
    double bytes = 0;
    for (value *s = get(g, "steps")->first; s; s = s->next) bytes += number(s, "bytes");
    assert_int_equal(length(get(g, "steps")), 2);
    assert_int_equal(bytes, 4 * (96 * 80 + 72 * 80 + 96 * 72 + 96 * 72 + 72 + 96 * 72));
    /* by itself relu or the product by 2 would write once more, and another read it */
    assert_int_equal(number(g, "operator_bytes") - bytes, 4 * 2 * 96 * 72);
    free_value(doc);
}

TEST(kernels_and_their_times) {
    run_branches("native", 4);
    value *doc = written(), *kernels = get(doc, "kernels");
    skip_without_jit(doc);
    assert_true(length(kernels) >= 3);
    for (value *g = get(doc, "graphs")->first; g; g = g->next) {
        assert_int_equal(length(get(g, "steps")), 1);
        assert_non_null(strstr(string(g, "schedule"), "steps, "));
        for (value *s = get(g, "steps")->first; s; s = s->next) {
            assert_string_equal(string(s, "kind"), "kernel");
            assert_int_equal(number(get(s, "time"), "count"), number(get(g, "run"), "count"));
            assert_true(number(get(s, "time"), "total_ns") >= number(get(s, "time"), "max_ns"));
            assert_true(number(get(s, "time"), "min_ns") > 0);
            const value *k = item(kernels, (int)number(s, "kernel"));
            assert_non_null(strstr(string(k, "loop_ir"), "kernel "));
            assert_non_null(strstr(string(k, "loop_ir"), "store f32"));
            bool compiled = !strcmp(string(k, "origin"), "compiled");
            assert_int_equal(strstr(string(k, "code"), "begin, long end)") != NULL, compiled);
        }
    }
    free_value(doc);
}

/* Eight sizes: one graph, whose plans for other sizes are counted with it. */
TEST(sizes_share_a_graph) {
    run_dynamic();
    value *doc = written(), *f = function_named(doc, "sizes"), *tree = item(get(f, "trees"), 0);
    assert_int_equal(length(get(f, "trees")), 1);
    assert_int_equal(number(tree, "dynamic"), 1);
    assert_string_equal(string(tree, "guards"), "f32 of rank 2");
    assert_int_equal(length(get(doc, "graphs")), 1);
    const value *g = item(get(doc, "graphs"), 0);
    assert_int_equal(number(g, "instances"), number(get(f, "counters"), "instances"));
    assert_int_equal(number(g, "instances"), 7);
    assert_int_equal(number(get(g, "run"), "count"), number(get(f, "counters"), "plan_runs"));
    assert_int_equal(number(get(g, "run"), "count"), 7);
    free_value(doc);
}

TEST(limits_are_in_the_trees) {
    run_paths();
    value *doc = written(), *trees = get(function_named(doc, "paths"), "trees");
    assert_int_equal(length(trees), 2); /* behind the break of the third path, operators go on */
    value *tree = item(trees, number(item(trees, 0), "entry") ? 0 : 1);
    assert_int_equal(length(get(tree, "leaves")), 2);
    assert_int_equal(length(get(tree, "limits")), 1);
    const value *l = item(get(tree, "limits"), 0);
    assert_int_equal(number(l, "count"), 2);
    assert_int_equal(number(l, "node"), 1);
    assert_string_equal(string(l, "op"), "sum");
    assert_non_null(strstr(string(l, "where"), "test_report.c:"));
    free_value(doc);
}

TEST(limits_of_entries) {
    run_grows();
    value *doc = written(), *f = function_named(doc, "grows");
    value *limit = find(get(f, "events"), "kind", "limit");
    assert_int_equal(length(get(f, "trees")), 3);
    assert_int_equal(number(limit, "count"), 5);
    assert_string_equal(string(limit, "reason"), "recompile_limit");
    const value *guard = find(get(f, "events"), "reason", "guard_failed");
    assert_non_null(strstr(string(guard, "detail"), "size mismatch at dim 1: expected 1, got 2"));
    free_value(doc);
}

TEST(resets_begin_anew) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine, .name = "again", .backend = "eager");
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < 2; k++) assert_non_null(etch_call(f, arange_f32(2, 3)));
            etch_reset(f);
        }
        etch_function_free(f);
    }
    value *doc = written(), *f = function_named(doc, "again");
    assert_int_equal(length(get(f, "trees")), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(number(item(get(f, "trees"), i), "generation"), 2 - i);
    assert_int_equal(number(find(get(f, "events"), "kind", "reset"), "count"), 3);
    free_value(doc);
}

static etch_status decline(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

TEST(modes_are_told) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine, .name = "watched", .backend = "eager");
        etch_mode *mode = etch_mode_new(decline, NULL, .name = "watcher");
        ETCH_WITH_MODE (mode)
            for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, arange_f32(2, 3)));
        etch_mode_free(mode);
        etch_function_free(f);
    }
    value *doc = written(), *f = function_named(doc, "watched");
    const value *e = find(get(f, "events"), "kind", "mode");
    assert_string_equal(string(e, "detail"), "watcher");
    assert_int_equal(number(e, "count"), 3);
    assert_int_equal(length(get(f, "trees")), 0);
    free_value(doc);
}

/* A backend may call compiled functions, and may fail. */
static etch_status nests(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)g;
    ETCH_SCOPE
        for (int i = 0; i < 3; i++)
            if (!etch_call(ctx, arange_f32(2, 2))) abort();
    out->backend = "eager";
    return ETCH_OK;
}

static etch_status refuses(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx, (void)g, (void)out;
    return etch_set_error(ETCH_ERR_UNSUPPORTED, "not on a Sunday");
}

TEST(backends_of_users) {
    etch_function *inner = etch_compile(cosine, .name = "inner", .backend = "eager");
    assert_int_equal(etch_register_backend("nests", nests, inner), ETCH_OK);
    assert_int_equal(etch_register_backend("refuses", refuses, NULL), ETCH_OK);
    etch_set_log_sink(keep_line, NULL);
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine, .name = "outer", .backend = "nests");
        etch_function *r = etch_compile(cosine, .name = "refused", .backend = "refuses");
        etch_tensor *x = arange_f32(3, 3);
        for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, x));
        for (int i = 0; i < 4; i++) assert_non_null(etch_call(r, x));
        etch_function_free(f), etch_function_free(r);
    }
    etch_set_log_sink(NULL, NULL);
    etch_function_free(inner);
    etch_unregister_backend("nests"), etch_unregister_backend("refuses");
    value *doc = written(), *graphs = get(doc, "graphs");
    const char *const names[] = {"inner/0", "outer/0", "refused/0"};
    const char *const outcomes[] = {"compiled", "compiled", "fallback"};
    assert_int_equal(length(graphs), 3);
    for (int i = 0; i < 3; i++) {
        const value *g = find(graphs, "name", names[i]);
        assert_non_null(g);
        assert_string_equal(string(g, "outcome"), outcomes[i]);
        assert_int_equal(strstr(string(g, "why"), "not on a Sunday") != NULL, i == 2);
        assert_int_equal(number(get(g, "run"), "count"), i < 2 ? 2 : 3);
    }
    free_value(doc);
}

/* ---- the page ---- */

static int occurrences(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

TEST(page_is_whole_and_escaped) {
    char name[4400];
    size_t n;
    run_wild();
    run_branches("eager", 2);
    value *doc = written();
    etch__report_path("html", name, sizeof name);
    char *page = read_file(name, &n);
    assert_int_equal(strlen(page), n);
    assert_memory_equal(page, "<!doctype html>", 15);
    assert_string_equal(page + n - 8, "</html>\n");
    assert_null(strstr(page, "@TRACE@"));
    /* Two script elements, and no way out of either; nothing comes from elsewhere. */
    assert_int_equal(occurrences(page, "<script"), 2);
    assert_int_equal(occurrences(page, "</script"), 2);
    assert_int_equal(occurrences(page, "<!--"), 0);
    assert_int_equal(occurrences(page, "alert("), occurrences(page, "\\u003escript\\u003ealert(") +
                                                      occurrences(page, "script\\u003ealert("));
    assert_null(strstr(page, "\xff"));
    assert_null(strstr(page, "\xe2\x80\xa8"));
    assert_null(strstr(page, "innerHTML"));
    assert_null(strstr(page, "src="));
    assert_int_equal(occurrences(page, "http"), 1 + occurrences(page, "http-equiv")); /* of SVG */
    /* The names are all there, as they were but for what is no UTF-8. */
    value *f = get(doc, "functions")->first;
    while (f && !strstr(string(f, "name"), "alert('1')")) f = f->next;
    assert_non_null(f);
    assert_string_equal(string(f, "name"), "</script><script>alert('1')</script>&\"\\"
                                           "??"
                                           "?<!--");
    const value *e = find(get(f, "events"), "reason", "graph_break");
    assert_string_equal(string(e, "detail"), string(f, "name"));
    assert_int_equal(number(e, "count"), 3);
    free_value(doc);
    free(page);
}

/* ---- failures ---- */

TEST(not_recording) {
    etch__report_end();
    assert_int_equal(etch_trace_write(), ETCH_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(etch_last_error(), "ETCH_TRACE"));
    etch_clear_error();
    run_branches("eager", 2);
    assert_null(etch__report_functions);
    assert_int_equal(files_ending(""), 2); /* . and .. */
}

TEST(folder_that_is_none) {
    char file[128], below[160];
    snprintf(file, sizeof file, "%s/file", folder);
    fclose(fopen(file, "w"));
    snprintf(below, sizeof below, "%s/below", file);
    etch__report_end();
    assert_true(etch__report_begin(below));
    run_branches("eager", 2);
    assert_int_equal(etch_trace_write(), ETCH_ERR_IO);
    assert_non_null(strstr(etch_last_error(), below));
    etch_clear_error();
}

TEST(folder_is_made) {
    char below[128];
    snprintf(below, sizeof below, "%s/new", folder);
    etch__report_end();
    assert_true(etch__report_begin(below));
    run_branches("eager", 2);
    assert_int_equal(etch_trace_write(), ETCH_OK);
    char whole[64];
    strcpy(whole, folder);
    strcpy(folder, below);
    assert_int_equal(files_ending(".html"), 1);
    assert_int_equal(files_ending(".part"), 0);
    empty_folder();
    rmdir(folder);
    strcpy(folder, whole);
}

/* With each allocation failing in turn, the program's results are those without a trace, and the
 * document is one all the same. */
TEST(short_of_memory) {
    logged[0] = 0, nlogged = 0;
    etch_set_log_sink(keep_line, NULL);
    int64_t missing = 0;
    for (int64_t n = 0, asked = INT64_MAX; n < asked; n += 3) {
        ETCH_SCOPE {
            etch_function *f = etch_compile(branches, .name = "short", .backend = "eager");
            etch_tensor *x = arange_f32(4, 5);
            etch__fail_allocation(n);
            for (path = 0; path < 3; path++)
                for (int i = 0; i < 2; i++) {
                    etch_tensor *y = etch_call(f, x);
                    if (!y) assert_int_equal(etch_last_status(), ETCH_ERR_OUT_OF_MEMORY);
                    etch_clear_error();
                }
            asked = etch__fail_allocation(-1);
            for (path = 0; path < 3; path++) assert_same(etch_call(f, x), branches(x));
            etch_function_free(f);
        }
        free_value(written());
        missing += etch__report_dropped;
        etch__report_end();
        assert_true(etch__report_begin(folder));
    }
    etch_set_log_sink(NULL, NULL);
    assert_true(missing > 10);
    assert_non_null(strstr(logged, "records are missing"));
}

TEST(one_warning) {
    logged[0] = 0, nlogged = 0;
    etch_set_log_sink(keep_line, NULL);
    etch__report_dropped = 3;
    free_value(written());
    free_value(written());
    etch_set_log_sink(NULL, NULL);
    assert_int_equal(nlogged, 1);
    assert_non_null(strstr(logged, "3 records are missing"));
}

/* ---- threads and processes ---- */

enum { THREADS = 4, ROUNDS = 200 };

static etch_tensor *read_each(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, x);
    etch_item(etch_sum(y));
    return etch_sqrt(y);
}

static void *call_often(void *arg) {
    etch_function *f = arg;
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(3, 4);
        for (int i = 0; i < ROUNDS; i++)
            ETCH_SCOPE {
                if (!etch_call(f, x)) abort();
                if (i % 50 == 0 && etch_trace_write() != ETCH_OK) abort();
            }
    }
    return NULL;
}

TEST(threads_count_together) {
    pthread_t threads[THREADS];
    etch_function *f = etch_compile(read_each, .name = "shared", .backend = "eager");
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, call_often, f);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    etch_function_free(f);
    value *doc = written(), *r = function_named(doc, "shared");
    assert_int_equal(number(get(r, "calls"), "count"), THREADS * ROUNDS);
    int64_t breaks = 0, runs = 0;
    for (value *e = get(r, "events")->first; e; e = e->next)
        if (!strcmp(string(e, "kind"), "break")) breaks += number(e, "count");
    for (value *g = get(doc, "graphs")->first; g; g = g->next)
        runs += number(get(g, "run"), "count");
    assert_int_equal(breaks, THREADS * ROUNDS);
    assert_int_equal(runs, number(get(r, "counters"), "plan_runs"));
    free_value(doc);
}

/* A child that goes on writes files of its own at its exit, one that does not writes none. */
TEST(forks) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(cosine, .name = "before", .backend = "eager");
        etch_tensor *x = arange_f32(2, 2);
        for (int i = 0; i < 2; i++) assert_non_null(etch_call(f, x));
        for (int works = 0; works < 2; works++) {
            fflush(NULL);
            pid_t child = fork();
            if (!child) {
                if (works && !etch_call(f, x)) _exit(1);
                exit(0);
            }
            int status = 1;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_int_equal(status, 0);
            assert_int_equal(files_ending(".json"), works);
            if (!works) continue;
            char own[4400], name[4400];
            etch__report_path("json", own, sizeof own);
            snprintf(name, sizeof name, "%.*s%d.json", (int)(strrchr(own, '-') + 1 - own), own,
                     (int)child);
            value *doc = document_at(name);
            assert_int_equal(number(get(doc, "process"), "pid"), child);
            assert_int_equal(number(get(doc, "process"), "parent"), getpid());
            assert_int_equal(number(get(function_named(doc, "before"), "calls"), "count"), 3);
            free_value(doc);
        }
        etch_function_free(f);
    }
}

/* The sample as a process: ETCH_TRACE is all that it takes. */
static int run_sample(const char *dir, const char *fault) {
    char self[4096], trace[256], set_fault[64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(trace, sizeof trace, "ETCH_TRACE=%s", dir);
    snprintf(set_fault, sizeof set_fault, "ETCH_JIT_FAULT=%s", fault);
    char *env[256] = {trace, set_fault, "ETCH_CACHE_SIZE=0"}, *argv[] = {self, "sample", NULL};
    for (int i = 0, k = 3; environ[i] && k < 255; i++) env[k++] = environ[i];
    pid_t pid;
    int status = 1;
    assert_int_equal(posix_spawn(&pid, self, NULL, NULL, argv, env), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static value *only_document(void) {
    value *doc = NULL;
    char name[600];
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".json")) {
            assert_null(doc);
            snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
            doc = document_at(name);
        }
    closedir(d);
    assert_non_null(doc);
    return doc;
}

TEST(written_at_exit) {
    assert_int_equal(run_sample(folder, ""), 0);
    assert_int_equal(files_ending(".html"), 1);
    value *doc = only_document();
    assert_string_equal(string(get(doc, "process"), "program"), "test_report");
    assert_int_equal(length(get(doc, "functions")), 5);
    free_value(doc);
}

TEST(failed_compiles_are_told) {
    assert_int_equal(run_sample(folder, "fail"), 0);
    value *doc = only_document();
    skip_without_jit(doc);
    int fallbacks = 0;
    for (value *g = get(doc, "graphs")->first; g; g = g->next) {
        if (strcmp(string(g, "outcome"), "fallback") != 0) continue;
        fallbacks++;
        assert_non_null(strstr(string(g, "why"), "compile_failed"));
        assert_non_null(strstr(string(g, "why"), "told to fail"));
        assert_int_equal(length(get(g, "steps")), 0);
        assert_true(number(get(g, "run"), "count") > 0);
    }
    assert_int_equal(fallbacks, 5); /* the four of branches, and that of sizes */
    free_value(doc);
}

TEST(unwritable_at_exit) {
    assert_int_equal(run_sample("/dev/null/no", ""), 0);
    assert_int_equal(files_ending(".json"), 0);
}

static int sample(void) {
    run_branches("native", 4);
    run_paths();
    run_grows();
    run_wild();
    run_dynamic();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "sample")) return sample();
    return run_suite(argc, argv);
}
