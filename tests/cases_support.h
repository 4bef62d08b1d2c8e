/* The harness of the suites test_cases_*.c: reports of real bugs in other systems, each retold as a
 * row of a table: a body, its arguments, and the right results written by hand as text.
 *
 * Each row is asked four ways. Eagerly, against the text; at the first compiled call, which
 * records, and at the second, which runs generated code, against the text and against what
 * eager says of strides and of who shares storage with whom; and from fresh processes: the
 * program executes itself twice with a cache of its own, where the first fills it and the
 * second must compile nothing and give the same bits. Every row is asked so for several
 * layouts of its arguments, with dynamic sizes too, since the reports are about kinds of
 * faults, not about one call. */
#ifndef ETCH_TESTS_CASES_SUPPORT_H
#define ETCH_TESTS_CASES_SUPPORT_H

#include <ctype.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device_support.h"
#include "trace_support.h"

#define CASE_MAX 64  /* arguments or results of one call */
#define CASE_CALLS 8 /* calls of one row */

/* Reads in, writes out: what the row calls. A NULL in out fails the call
 * with the thread's error. */
typedef void (*case_body)(etch_tensor *const *in, etch_tensor **out);

/* One call. Arguments are texts:
 *   "f32[2,3]{1 2 nan -0 inf 1e-42}"  sizes and row-major values,
 *   "i32[6]{7*2 0..*4}"               7 twice, then 0 1 2 3 ("0..*4+5": 0 5 10 15),
 *   "#0" or "#0[1:4]"                 argument 0 itself, or a view of its rows,
 *   "<0"                              result 0 of the call before.
 * An argument must keep its values unless `after` says what it holds then. */
typedef struct case_call {
    const char *in[CASE_MAX], *want[CASE_MAX], *after[CASE_MAX];
    etch_status error; /* what the call fails with */
} case_call;

typedef struct case_row {
    const char *name;
    case_body body;
    case_call call[CASE_CALLS];
    int graphs;   /* exactly so many; 0: one, or at least one if there are several calls */
    bool breaks;  /* reads values, so that one call is several graphs */
    bool plain;   /* contiguous arguments only: the body views them */
    bool no_plan; /* nothing to compile: no operator, or no call that succeeds */
    etch_compile_options options;
} case_row;

#define IN(...) .in = {__VA_ARGS__}
#define WANT(...) .want = {__VA_ARGS__}
#define AFTER(...) .after = {__VA_ARGS__}
#define FAILS(status) .error = (status)
#define CALL(...)                                                                                  \
    { __VA_ARGS__ }
/* CASE(name, body, IN(...), WANT(...)): one call; CALLS(name, body, CALL(...), CALL(...)). */
#define CASE(of_name, of_body, ...)                                                                \
    {                                                                                              \
        .name = #of_name, .body = of_body, .call = { {__VA_ARGS__} }                               \
    }
#define CASE_WITH(of_name, of_body, with, ...)                                                     \
    {                                                                                              \
        .name = #of_name, .body = of_body, with, .call = { {__VA_ARGS__} }                         \
    }
#define CALLS(of_name, of_body, ...)                                                               \
    {                                                                                              \
        .name = #of_name, .body = of_body, .call = { __VA_ARGS__ }                                 \
    }
#define CALLS_WITH(of_name, of_body, with, ...)                                                    \
    {                                                                                              \
        .name = #of_name, .body = of_body, with, .call = { __VA_ARGS__ }                           \
    }

static int case_call_number; /* for bodies with hidden state */

/* BODY(twice, etch_add(in[0], in[0])): a body of one expression. */
#define BODY(name, expression)                                                                     \
    static void name(etch_tensor *const *in, etch_tensor **out) { out[0] = (expression); }

/* ---- tensors from texts ---- */

static void case_bad_text(const char *text) {
    fprintf(stderr, "bad tensor text: %s\n", text);
    abort();
}

static etch_dtype case_dtype(const char **at) {
    size_t n = strcspn(*at, "[");
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
        const char *name = etch_dtype_name(d);
        if (strlen(name) != n || strncmp(name, *at, n) != 0) continue;
        *at += n;
        return d;
    }
    case_bad_text(*at);
    return ETCH_F32;
}

static etch_shape case_sizes(const char **at) {
    etch_shape sizes = {0, {0}};
    for (const char *p = *at + 1; *p && *p != ']';) {
        char *end;
        sizes.v[sizes.n++] = strtoll(p, &end, 10);
        p = *end == ',' ? end + 1 : end;
    }
    *at += strcspn(*at, "{") + 1;
    return sizes;
}

/* One value, or a run of them: "v", "v*count", "v..*count", "v..*count+step". Exact as int64 or as
 * double. */
static const char *case_values(const char *p, int64_t *ints, double *reals, int64_t *n,
                               int64_t most) {
    char *end_int, *end_real;
    int64_t i = strtoll(p, &end_int, 10);
    double d = strtod(p, &end_real);
    const char *end = end_real;
    bool whole = end_int == end_real, counts = false;
    if (strncmp(end_int, "..", 2) == 0) whole = true, end = end_int;
    if (whole) d = p[0] == '-' && i == 0 ? -0.0 : (double)i;
    if (strncmp(end, "..", 2) == 0) counts = true, end += 2;
    char *after = (char *)end;
    int64_t count = *end == '*' ? strtoll(end + 1, &after, 10) : 1, step = counts;
    if (*after == '+') step = strtoll(after + 1, &after, 10);
    for (int64_t k = 0; k < count && *n < most; k++, ++*n) {
        ints[*n] = whole ? i + k * step : 0;
        reals[*n] = step ? (double)(i + k * step) : d;
    }
    return after;
}

static etch_tensor *case_tensor(const char *text) {
    const char *p = text;
    etch_dtype dtype = case_dtype(&p);
    etch_shape sizes = case_sizes(&p);
    int64_t most = 1, n = 0;
    for (int i = 0; i < sizes.n; i++) most *= sizes.v[i];
    int64_t *ints = malloc((size_t)(most + 1) * sizeof *ints);
    double *reals = malloc((size_t)(most + 1) * sizeof *reals);
    while (*(p += strspn(p, " ")) != '}') {
        const char *next = case_values(p, ints, reals, &n, most + 1);
        if (next == p || n > most) case_bad_text(text);
        p = next;
    }
    if (n != most) case_bad_text(text);
    bool real = dtype <= ETCH_F16;
    etch_tensor *t =
        real ? etch_from_host(reals, ETCH_F64, sizes) : etch_from_host(ints, ETCH_I64, sizes);
    free(ints);
    free(reals);
    return t ? etch_to(t, dtype) : NULL;
}

/* ---- layouts: the same values, elsewhere in memory ---- */

enum { CASE_CONTIGUOUS, CASE_STEPPED, CASE_TURNED, CASE_DYNAMIC, CASE_VARIANTS };

static etch_tensor *case_into(etch_tensor *view, etch_tensor *values) {
    return etch_copy_(view, values) ? view : NULL;
}

/* Every second row of a buffer, from the second on. */
static etch_tensor *case_stepped(etch_tensor *x) {
    etch_shape sizes = etch_sizes(x);
    if (!sizes.n)
        return case_into(etch_select(etch_zeros(etch_dtype_of(x), ETCH_SHAPE(3)), 0, 1), x);
    int64_t rows = sizes.v[0];
    sizes.v[0] = 2 * rows + 2;
    etch_tensor *buffer = etch_ones(etch_dtype_of(x), sizes);
    return case_into(etch_slice(buffer, 0, 1, 2 * rows + 1, 2), x);
}

/* The last two dimensions exchanged in memory and the rows from the last to the first. */
static etch_tensor *case_turned(etch_tensor *x) {
    int n = etch_ndim(x);
    if (n == 0) return case_stepped(x);
    etch_tensor *t = n > 1 ? etch_transpose(x, -1, -2) : x;
    etch_tensor *buffer = etch_ones(etch_dtype_of(x), etch_sizes(t));
    if (n > 1) buffer = etch_transpose(buffer, -1, -2);
    return case_into(etch_slice(buffer, 0, ETCH_ABSENT, ETCH_ABSENT, -1), x);
}

static etch_tensor *case_laid_out(etch_tensor *x, int variant) {
    if (!x) return NULL;
    return variant == CASE_STEPPED ? case_stepped(x) : variant == CASE_TURNED ? case_turned(x) : x;
}

/* ---- one call ---- */

typedef struct case_made {
    etch_tensor *in[CASE_MAX], *out[CASE_MAX];
    int nin, nout;
    etch_status status;
    char error[512];
} case_made;

static etch_tensor *case_alias(const char *text, etch_tensor *const *in) {
    char *end;
    etch_tensor *base = in[strtol(text + 1, &end, 10)];
    if (!*end) return base;
    int64_t first = strtoll(end + 1, &end, 10);
    int64_t last = isdigit((unsigned char)end[1]) ? strtoll(end + 1, &end, 10) : etch_size(base, 0);
    return etch_slice(base, 0, first, last, 1);
}

static void case_make(const case_call *c, const case_made *before, int variant, case_made *m) {
    memset(m, 0, sizeof *m);
    for (; m->nin < CASE_MAX && c->in[m->nin]; m->nin++) {
        const char *text = c->in[m->nin];
        if (*text == '#') m->in[m->nin] = case_alias(text, m->in);
        else if (*text == '<') m->in[m->nin] = before->out[atoi(text + 1)];
        else m->in[m->nin] = case_laid_out(case_tensor(text), variant);
        assert_non_null(m->in[m->nin]);
    }
    while (m->nout < CASE_MAX && c->want[m->nout]) m->nout++;
    if (!m->nout && c->error) m->nout = 1; /* a call that fails is still asked for a result */
}

static etch_status case_run_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                 int nout) {
    etch_tensor *padded[CASE_MAX] = {NULL}; /* an argument that is not given is NULL */
    memcpy(padded, in, (size_t)nin * sizeof *in);
    etch_clear_error();
    ((const case_row *)ctx)->body(padded, out);
    for (int i = 0; i < nout; i++)
        if (!out[i]) return etch_last_status() ? etch_last_status() : ETCH_ERR_USER;
    return ETCH_OK;
}

static void case_run(const case_row *row, etch_function *f, case_made *m) {
    etch_clear_error();
    m->status = f ? etch_call_n(f, m->in, m->nin, m->out, m->nout)
                  : case_run_body((void *)row, m->in, m->nin, m->out, m->nout);
    for (int i = 0; i < m->nout && !m->status; i++)
        if (m->out[i] && !test_settled(m->out[i])) m->status = etch_last_status();
    if (m->status) snprintf(m->error, sizeof m->error, "%s", etch_last_error());
    etch_clear_error();
}

/* ---- what came out ---- */

static bool case_shows(etch_tensor *got, const char *want, const char *row, const char *what,
                       int number) {
    if (etch_bitwise_equal(got, case_tensor(want))) return true;
    char text[512] = "(nothing)";
    if (got) etch_format(got, text, sizeof text);
    fprintf(stderr, "%s: %s %d: want %s, got %s\n", row, what, number, want, text);
    return false;
}

static void case_check_wanted(const case_row *row, const case_call *c, const case_made *m,
                              const char *way) {
    if (m->status != c->error)
        fprintf(stderr, "%s, %s: want status %s, got %s: %s\n", row->name, way,
                etch_status_name(c->error), etch_status_name(m->status), m->error);
    assert_int_equal(m->status, c->error);
    for (int i = 0; i < m->nout && !c->error; i++)
        if (!case_shows(m->out[i], c->want[i], row->name, way, i)) fail();
    for (int i = 0; i < m->nin; i++) {
        if (strchr("#<", c->in[i][0]) && !c->after[i]) continue;
        const char *want = c->after[i] ? c->after[i] : c->in[i];
        if (!case_shows(m->in[i], want, row->name, "argument", i)) fail();
    }
}

/* Strides, and which results share storage with one another and with arguments. */
static void case_check_same_form(const case_made *eager, const case_made *m) {
    if (m->status != ETCH_ERR_USER) assert_string_equal(eager->error, m->error);
    for (int i = 0; i < m->nout && !m->status; i++) {
        for (int d = 0; d < etch_ndim(m->out[i]); d++)
            assert_int_equal(etch_stride(m->out[i], d), etch_stride(eager->out[i], d));
        for (int k = 0; k < i; k++)
            assert_int_equal(etch_shares_storage(m->out[i], m->out[k]),
                             etch_shares_storage(eager->out[i], eager->out[k]));
        for (int k = 0; k < m->nin; k++)
            assert_int_equal(etch_shares_storage(m->out[i], m->in[k]),
                             etch_shares_storage(eager->out[i], eager->in[k]));
    }
}

/* A hash of all that can be seen of a call, for comparing processes. */
static uint64_t case_hash(uint64_t hash, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return hash;
}

static uint64_t case_hash_tensor(uint64_t hash, etch_tensor *t) {
    size_t bytes = (size_t)etch_numel(t) * etch_dtype_size(etch_dtype_of(t));
    void *data = malloc(bytes + 1);
    etch_to_host(t, data, bytes);
    hash = case_hash(hash, data, bytes);
    free(data);
    etch_shape sizes = etch_sizes(t);
    int dtype = (int)etch_dtype_of(t);
    return case_hash(case_hash(hash, &dtype, sizeof dtype), &sizes.v, sizeof sizes.v);
}

static uint64_t case_hash_call(uint64_t hash, const case_made *m) {
    hash = case_hash(hash, m->error, strlen(m->error));
    for (int i = 0; i < m->nout && !m->status; i++) hash = case_hash_tensor(hash, m->out[i]);
    for (int i = 0; i < m->nin; i++) hash = case_hash_tensor(hash, m->in[i]);
    return hash;
}

/* ---- a row, in this process ---- */

static etch_function *case_compile(const case_row *row, int variant) {
    etch_compile_options options = row->options;
    options.struct_size = sizeof options, options.name = row->name, options.ctx = (void *)row;
    if (variant == CASE_DYNAMIC || variant == CASE_TURNED) options.dynamic = ETCH_DYNAMIC_ON;
    etch_function *f = etch_compile_n(case_run_body, &options);
    assert_non_null(f);
    return f;
}

static int case_ncalls(const case_row *row) {
    int n = 0;
    while (n < CASE_CALLS && (row->call[n].in[0] || row->call[n].want[0])) n++;
    return n;
}

/* All calls of the row, compared with eager ones where these are given. Returns the hash. */
static uint64_t case_ask(const case_row *row, etch_function *f, int variant, case_made *eager,
                         case_made *made, const char *way) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < case_ncalls(row); i++) {
        case_call_number = i;
        case_make(&row->call[i], i ? &made[i - 1] : NULL, variant, &made[i]);
        case_run(row, f, &made[i]);
        if (way) case_check_wanted(row, &row->call[i], &made[i], way);
        if (eager) case_check_same_form(&eager[i], &made[i]);
        hash = case_hash_call(hash, &made[i]);
    }
    return hash;
}

static void case_check_counts(const case_row *row, etch_function *f, int64_t graphs) {
    etch_counters_t c = etch_function_counters(f);
    assert_int_equal(etch_counters().compile_failures, 0);
    if (row->no_plan) return;
    assert_true(c.plan_runs >= 1);
    if (row->graphs) assert_int_equal(c.graphs, row->graphs);
    else if (case_ncalls(row) == 1 && !row->breaks) assert_int_equal(c.graphs, 1);
    if (case_ncalls(row) > 1 || row->breaks) return;
    assert_int_equal(c.divergences, 0);
    assert_int_equal(c.graphs, graphs); /* the second call needed no other */
}

/* One line of a fresh process's answers. */
typedef struct case_answer {
    char name[96];
    int variant;
    unsigned long long bits;
    long long kernels, compiled;
} case_answer;

static bool case_find_answer(const char *path, const char *name, int variant, case_answer *a) {
    FILE *file = fopen(path, "r");
    bool found = false;
    while (file && !found &&
           fscanf(file, "%95s %d %llx %lld %lld", a->name, &a->variant, &a->bits, &a->kernels,
                  &a->compiled) == 5)
        found = !strcmp(a->name, name) && a->variant == variant;
    if (file) fclose(file);
    return found;
}

static char case_dir[64], case_path[2][96];
static int64_t case_kernels; /* that the rows asked for: were there none, nothing was tried */

static int case_execute_self(const char *path) {
    extern char **environ;
    char *const argv[] = {"cases", "--answer", (char *)path, NULL};
    pid_t child;
    int status = -1;
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, environ) != 0) return -1;
    if (waitpid(child, &status, 0) != child) return -1;
    return status;
}

/* Once. */
static void case_ask_processes(void) {
    for (int i = 0; i < 2 && !case_path[i][0]; i++) {
        snprintf(case_path[i], sizeof case_path[i], "%s/answers%d-%ld", case_dir, i, test_part());
        int status = case_execute_self(case_path[i]);
        if (status) fprintf(stderr, "fresh process %d ended with status %d\n", i, status);
    }
}

static void case_check_processes(const case_row *row, int variant, uint64_t bits) {
    case_answer cold, warm;
    assert_true(case_find_answer(case_path[0], row->name, variant, &cold));
    assert_true(case_find_answer(case_path[1], row->name, variant, &warm));
    assert_int_equal(cold.bits, bits);
    assert_int_equal(warm.bits, bits);
    assert_int_equal(warm.kernels, cold.kernels);
    assert_int_equal(warm.compiled, 0);
    case_kernels += warm.kernels;
}

static bool case_all; /* and not a few, by name */

TEST(case_kernels_were_run) {
    if (!case_all || !test_share(0) || !test_share(1))
        skip(); /* other processes have run the most */
    assert_true(case_kernels > 0);
}

static void case_test_variant(const case_row *row, int variant) {
    static const char *const names[] = {"contiguous", "stepped", "turned", "dynamic"};
    case_made *eager = calloc(3 * CASE_CALLS, sizeof *eager);
    case_made *first = eager + CASE_CALLS, *second = first + CASE_CALLS;
    ETCH_SCOPE {
        etch_function *f = case_compile(row, variant);
        char way[64];
        snprintf(way, sizeof way, "eager, %s", names[variant]);
        case_ask(row, NULL, variant, NULL, eager, way);
        snprintf(way, sizeof way, "first call, %s", names[variant]);
        case_ask(row, f, variant, eager, first, way);
        int64_t graphs = etch_function_counters(f).graphs;
        snprintf(way, sizeof way, "second call, %s", names[variant]);
        uint64_t bits = case_ask(row, f, variant, eager, second, way);
        case_check_counts(row, f, graphs);
        case_check_processes(row, variant, bits);
        etch_function_free(f);
    }
    free(eager);
}

static bool case_has_variant(const case_row *row, int variant) {
    return !row->plain || variant == CASE_CONTIGUOUS || variant == CASE_DYNAMIC;
}

static void case_test(const etch_test *t) {
    const case_row *row = t->data;
    case_ask_processes();
    int64_t before = etch_memory().tensors;
    for (int v = 0; v < CASE_VARIANTS; v++)
        if (case_has_variant(row, v)) case_test_variant(row, v);
    assert_int_equal(etch_memory().tensors, before);
}

/* ---- fresh processes ---- */

/* Called twice for all that a row has, the second time with generated code; one line each. */
static void case_answer_row(FILE *file, const case_row *row, int variant) {
    case_made *made = calloc(CASE_CALLS, sizeof *made);
    ETCH_SCOPE {
        etch_function *f = case_compile(row, variant);
        etch_counters_t before = etch_counters();
        uint64_t bits = 0;
        for (int round = 0; round < 2; round++) bits = case_ask(row, f, variant, NULL, made, NULL);
        etch_counters_t c = etch_counters();
        fprintf(file, "%s %d %llx %lld %lld\n", row->name, variant, (unsigned long long)bits,
                (long long)(c.kernels - before.kernels),
                (long long)(c.kernels_compiled - before.kernels_compiled));
        fflush(file);
        etch_function_free(f);
    }
    free(made);
}

/* Of the rows that this process has to test, and the first, for which other tests ask. */
static int case_answer_all(const case_row *rows, int n, const char *path) {
    FILE *file = test_device_enter() ? fopen(path, "w") : NULL;
    if (!file) return 1;
    test_take_part();
    for (int i = 0; i < n; i++)
        for (int v = 0; v < CASE_VARIANTS; v++)
            if ((i == 0 || test_share(i)) && case_has_variant(&rows[i], v))
                case_answer_row(file, &rows[i], v);
    return fclose(file) != 0;
}

/* Settings are read when the library is loaded, so the program starts once
 * more with its own cache. */
static void case_own_cache(char **argv) {
    char dir[] = "/tmp/etch-cases-XXXXXX";
    if (!mkdtemp(dir)) abort();
    setenv("ETCH_CASES_DIR", dir, 1);
    setenv("ETCH_CACHE_DIR", dir, 1);
    unsetenv("ETCH_JIT"); /* the helper of this build, instrumented as it is */
    execv("/proc/self/exe", argv);
    abort();
}

static void case_remove_dir(void) {
    etch_cache_clear();
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", case_dir);
    if (system(command) != 0) fprintf(stderr, "%s was not removed\n", case_dir);
}

static int case_main(int argc, char **argv, const case_row *rows, int n) {
    const char *dir = getenv("ETCH_CASES_DIR");
    if (!dir) case_own_cache(argv);
    if (argc == 3 && !strcmp(argv[1], "--answer")) return case_answer_all(rows, n, argv[2]);
    snprintf(case_dir, sizeof case_dir, "%s", dir);
    case_all = argc < 2;
    etch_test *tests = calloc((size_t)n, sizeof *tests);
    for (int i = 0; i < n; i++) {
        tests[i] = (etch_test){.name = rows[i].name, .around = case_test, .data = &rows[i]};
        etch_test_add(&tests[i]);
    }
    int failed = run_suite(argc, argv);
    free(tests);
    case_remove_dir();
    return failed;
}

#define CASES_MAIN(rows)                                                                           \
    int main(int argc, char **argv) {                                                              \
        return case_main(argc, argv, rows, (int)(sizeof rows / sizeof rows[0]));                   \
    }

#endif
