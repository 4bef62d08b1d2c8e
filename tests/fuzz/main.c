/* etch_fuzz: random programs, eager beside compiled.
 *
 *     etch_fuzz [--seconds N] [--processor N] [--programs N] [--seed S] [--native K]
 *               [--gradients K] [--failures N] [--reduce 0|1] [--one S] [--coverage 0|1]
 *               [--device NAME]
 *
 * Programs have the seeds S, S + 1, ... Every K-th runs on the backend native, the others on
 * eager, which tests all but the generated code; --native 0: none. About every K-th of --gradients
 * (default: 3; 0: none) has gradients. Programs run in a worker
 * process, so that a crash or a hang is a finding like a difference. A finding is made smaller
 * and printed as a C test.
 * --processor counts seconds of processor time, helpers included: a loaded machine has less of it.
 * --one prints the program of one seed (with --native 1: that for native) and runs it on both
 * backends. --coverage lists how often each operator, statement, dtype, layout, foreign action and
 * its place were there, in all programs and in those for native. Exit status 1: findings, or less
 * than 95 % of the later calls ran generated code (with gradients: 80 %).
 *
 * --device cuda: every K-th program (default: 2) runs on the GPU, eagerly and as native code, half
 * of them with mode reduce-overhead. The others run on the CPU eagerly and on the GPU recorded
 * through eager kernels; they have only operators that are the same on both (fuzz_is_exact).
 * Compared are all bits but those of NaN. Programs are small, as each kernel has to be compiled. */
#include "core/base/isa.h"
#include "program.h"
#include "tools/minify/mini.h"

#include <ftw.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef enum finding { FOUND_NOTHING, FOUND_DIFFERENCE, FOUND_LEAK, FOUND_CRASH } finding;

/* A worker runs one epoch, under one instruction set; the next one runs some programs of it again,
 * so that code in the cache which is for another instruction set is found: by what it computes, or
 * since no process of this set has compiled it. */
enum { EPOCH = 32 /* native programs */, EPOCH_ALL = 4000, CANARIES = 4 };
static const char *const isas[] = {"", "avx2", "baseline"};

/* What was in the programs. */
typedef struct tally {
    int64_t statements[ST_COUNT], operators[OP_COUNT], dtypes[ETCH_DTYPE_COUNT];
    int64_t layouts[FUZZ_LAYOUTS], actions[FUZZ_ACTIONS], places[FUZZ_PLACES];
    int64_t circumstances[4]; /* careful bodies, numerics of the caller, allocations that fail,
                                 replays */
} tally;

enum { MADE_ROOM = 1 << 16 };

/* What worker and parent share. */
typedef struct board {
    uint64_t made[MADE_ROOM]; /* kernels that were compiled, mixed with the instruction set */
    bool foreign, unsure; /* one was loaded that none of this set has compiled; others compile */
    program p;
    bool native, running, done;
    fuzz_result result;
    uint64_t next;
    double processor;   /* seconds of the workers before this one */
    int isa, ncanaries; /* of this epoch; programs to run again in it */
    uint64_t canary[CANARIES];
    int64_t programs, native_programs, grad_programs, operators, calls, later, compiled,
        compiled_only, replayed;
    int64_t grad_later, grad_compiled; /* of the programs with gradients */
    int64_t kernels, launches, failed_compiles, graphs;
    etch_device_stats_t stats; /* launches, graphs and their patches */
    tally all, in_native;
} board;

typedef struct options {
    double seconds, processor;
    int64_t programs;
    uint64_t seed;
    int native, grads, failures, reduce;
    bool one, coverage, native_given;
} options;

static etch_device device = ETCH_CPU; /* where programs run; only workers may touch it */

static board *shared;
static const char *wanted_backend;
static finding wanted_finding;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void no_log(void *ctx, const char *line) {
    (void)ctx;
    (void)line;
}

/* Whether it was compiled for this instruction set; it is from now on if it is compiled now. */
static bool is_made(uint64_t hash, bool now) {
    uint64_t own = (hash ^ (uint64_t)(etch__cpu_isa() + 1) * 0x9e3779b97f4a7c15u) | 1;
    for (uint64_t i = 0; i < 64; i++) {
        uint64_t *at = &shared->made[(own + i) % MADE_ROOM];
        if (*at == own) return true;
        if (!*at) return *at = now ? own : 0, now;
    }
    return true; /* there is no room: it is not known */
}

/* Lines of the channel "cache". */
static void watch_cache(void *ctx, const char *line) {
    (void)ctx;
    const char *at = strstr(line, " (");
    unsigned long long hash;
    if (!at || sscanf(at, " (%16llx):", &hash) != 1) return;
    bool made = strstr(at, ": compiled in");
    if (made || strstr(at, ": loaded from the disk")) shared->foreign |= !is_made(hash, made);
}

static void set_isa(void) {
    if (*isas[shared->isa]) setenv("ETCH_CPU_ISA", isas[shared->isa], 0);
}

/* Of the programs that run no generated code every fourth one runs graphs without writes. */
static const char *backend_name(bool native, const program *p) {
    return native ? "native" : p->setup.seed % 4 == 1 ? "aot_eager" : "eager";
}

/* ---- one program ---- */

static void add_to_tally(tally *t, const program *p) {
    for (int i = 0; i < p->setup.nin; i++) {
        t->dtypes[p->setup.in[i].dtype]++;
        t->layouts[p->setup.in[i].layout]++;
    }
    t->circumstances[0] += p->setup.careful;
    for (int i = 0; i < FUZZ_MAX_VARIANTS; i++) t->circumstances[1] += p->setup.numerics[i] != 0;
    t->circumstances[2] += p->setup.starve_from != 0;
    t->circumstances[3] += p->setup.replay;
    for (int i = 0; i < p->nstatements; i++) {
        t->statements[p->statement[i].kind]++;
        if (p->statement[i].kind == ST_FOREIGN) {
            t->actions[p->statement[i].b % FUZZ_ACTIONS]++;
            t->places[p->statement[i].b / FUZZ_ACTIONS % FUZZ_PLACES]++;
        }
        if (p->statement[i].kind == ST_FILLED) t->operators[OP_EMPTY]++;
        if (p->statement[i].kind == ST_OP) t->operators[p->statement[i].op]++;
    }
}

static void count_program(const program *p, const fuzz_result *r, bool native) {
    shared->programs++;
    shared->native_programs += native;
    shared->grad_programs += p->setup.grads;
    shared->calls += r->calls;
    shared->later += r->later;
    shared->compiled += r->compiled;
    if (p->setup.grads) shared->grad_later += r->later, shared->grad_compiled += r->compiled;
    shared->compiled_only += r->compiled_only;
    shared->replayed += r->replayed;
    shared->kernels += r->counters.kernels;
    shared->launches += r->counters.kernel_launches;
    /* Without memory a compile may fail, and the plan runs eagerly. */
    if (!p->setup.starve_from) shared->failed_compiles += r->counters.compile_failures;
    shared->graphs += r->counters.graphs;
    for (int i = 0; i < p->nstatements; i++) shared->operators += p->statement[i].kind == ST_OP;
    add_to_tally(&shared->all, p);
    if (native) add_to_tally(&shared->in_native, p);
}

/* In a worker: true if nothing was found. */
static bool run_program(bool native) {
    shared->native = native;
    shared->running = true, shared->done = shared->foreign = false;
    alarm(device ? 400 : 60);
    bool same = false;
    ETCH_ON(device)
    same = fuzz_compare(&shared->p.setup, fuzz_interpret, &shared->p,
                        backend_name(native, &shared->p), &shared->result);
    alarm(0);
    shared->done = true;
    if (!same || !shared->foreign || shared->unsure) return same;
    snprintf(shared->result.difference, sizeof shared->result.difference,
             "a kernel comes from the cache that was compiled for another instruction set");
    return false;
}

static finding classify(int status) {
    if (!shared->running) return FOUND_NOTHING;
    if (!shared->done || !WIFEXITED(status)) return FOUND_CRASH;
    if (!shared->result.difference[0]) return FOUND_NOTHING;
    return strstr(shared->result.difference, "leaks") ? FOUND_LEAK : FOUND_DIFFERENCE;
}

/* ---- making a finding smaller ---- */

/* On a device each one opens it anew. */
enum { MAX_TRIALS = 4000, MAX_DEVICE_TRIALS = 400 };

static finding run_apart(const program *p, bool native) {
    static char difference[sizeof shared->result.difference];
    shared->p = *p;
    shared->running = false;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        set_isa();
        etch_set_log_sink(no_log, NULL);
        alarm(20);
        run_program(native);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    finding found = classify(status);
    if (found) memcpy(difference, shared->result.difference, sizeof difference);
    memcpy(shared->result.difference, difference, sizeof difference);
    return found;
}

static bool still_fails(const program *p) {
    return run_apart(p, !strcmp(wanted_backend, "native")) == wanted_finding;
}

/* ---- the graphs of a finding ---- */

/* Collects the lines of the channel "graph". */
static void take_line(void *ctx, const char *line) {
    if (!strncmp(line, "etch: graph: ", 13)) fprintf(ctx, "%s\n", line);
}

/* In a process of its own: runs the program and gives each of its graphs to etch-minify; the first
 * one that differs by itself is printed as a test that needs no harness. */
static void minify_graphs(const program *p) {
    mini_options o = {.backend = "native", .calls = 4, .most = 500, .seconds = 20, .seed = 1};
    char *log = NULL, difference[MINI_TEXT], *text;
    size_t n = 0;
    FILE *to = open_memstream(&log, &n);
    if (!to) return;
    etch_set_log_sink(take_line, to);
    etch_set_logs("graph");
    shared->p = *p;
    run_program(true);
    etch_set_log_sink(no_log, NULL);
    fclose(to);
    for (const char *at = log; (text = mini_next_text(&at)); free(text)) {
        mini_graph *g = mini_parse(text);
        mini_verdict v = g ? mini_check(g, &o, NULL, NULL) : MINI_SAME;
        if (v == MINI_DIFFERENT || v == MINI_CRASH) {
            mini_reduce(g, &o, v);
            mini_check(g, &o, difference, NULL);
            mini_print(stdout, g, &o, difference);
            fflush(stdout);
            _exit(0);
        }
        free(g);
    }
}

static void report_graphs(const program *p) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        set_isa();
        minify_graphs(p);
        printf("/* Each of its graphs alone is computed as eager code does it. */\n");
        fflush(stdout);
        _exit(0);
    }
    int status;
    if (child > 0) waitpid(child, &status, 0);
}

static void report(finding found, bool reduce) {
    static program p;
    static const char *const names[] = {"nothing", "a difference", "a leak", "a crash or hang"};
    p = shared->p;
    bool native = shared->native;
    shared->unsure = true;
    printf("\n== seed %llu%s, %s %s: %s: %s\n", (unsigned long long)(p.setup.seed & ~FUZZ_TWIN),
           p.setup.seed & FUZZ_TWIN ? " (twin)" : "", backend_name(native, &p), isas[shared->isa],
           names[found], found == FOUND_CRASH ? "" : shared->result.difference);
    fflush(stdout);
    if (!reduce) return;
    if (native && run_apart(&p, false) == found) native = false;
    wanted_backend = backend_name(native, &p), wanted_finding = found;
    if (!still_fails(&p)) {
        printf("== not found again alone; the whole program:\n");
        fuzz_print(stdout, &p, wanted_backend, device, "not found again");
        return;
    }
    fuzz_reduce(&p, still_fails, device ? MAX_DEVICE_TRIALS : MAX_TRIALS);
    still_fails(&p);
    char text[640];
    snprintf(text, sizeof text, "Seed %llu %s: %s: %s", (unsigned long long)p.setup.seed,
             isas[shared->isa], names[found],
             found == FOUND_CRASH ? "" : shared->result.difference);
    fuzz_print(stdout, &p, wanted_backend, device, text);
    fflush(stdout);
    if (native && device == ETCH_CPU) report_graphs(&p);
}

/* ---- many programs ---- */

/* Processor time of this process, of what it has waited for and, so far, of
 * the helpers that run. */
static double processor_seconds(void) {
    struct rusage self, waited;
    getrusage(RUSAGE_SELF, &self), getrusage(RUSAGE_CHILDREN, &waited);
    const struct timeval t[] = {self.ru_utime, self.ru_stime, waited.ru_utime, waited.ru_stime};
    double seconds = 0;
    for (int i = 0; i < 4; i++) seconds += (double)t[i].tv_sec + 1e-6 * (double)t[i].tv_usec;
    char path[64], stat[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *children = fopen(path, "r");
    for (int child; children && fscanf(children, "%d", &child) == 1;) {
        snprintf(path, sizeof path, "/proc/%d/stat", child);
        FILE *from = fopen(path, "r");
        long long ticks[4] = {0};
        const char *at = from && fgets(stat, sizeof stat, from) ? strrchr(stat, ')') : NULL;
        if (at) /* fields 14 to 17 */
            sscanf(at + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld %lld %lld %lld",
                   &ticks[0], &ticks[1], &ticks[2], &ticks[3]);
        for (int i = 0; i < 4; i++) seconds += (double)ticks[i] / (double)sysconf(_SC_CLK_TCK);
        if (from) fclose(from);
    }
    if (children) fclose(children);
    return seconds;
}

/* `processor`: of the worker that asks. */
static bool time_left(const options *o, double start, double processor) {
    if (o->processor && shared->processor + processor >= o->processor) return false;
    if (o->programs && shared->next - o->seed >= (uint64_t)o->programs) return false;
    return !o->seconds || now() - start < o->seconds;
}

/* Every K-th, whatever the seeds have in common. */
static bool has_grads(uint64_t seed, int every) {
    uint64_t z = (seed & ~FUZZ_TWIN) * 0x9e3779b97f4a7c15u;
    return every && (z >> 33) % (uint64_t)every == 0;
}

/* A device has no modes of rounding. */
static void without_numerics(program *p) {
    memset(p->setup.numerics, 0, sizeof p->setup.numerics);
    for (int i = 0; i < p->nstatements; i++)
        if (p->statement[i].kind == ST_NUMERICS) p->statement[i].b = 0;
}

static void make_program(const options *o, uint64_t seed, bool native) {
    bool exact = device && !native, graphs = device && native && seed / 2 % 2;
    fuzz_generate(&shared->p, seed,
                  exact    ? FUZZ_EXACT
                  : graphs ? FUZZ_LAUNCHES
                  : native ? FUZZ_SMALL
                           : FUZZ_ANY,
                  !exact && has_grads(seed, o->grads)); /* derivatives have functions of libm */
    shared->p.setup.beside_cpu = exact;
    if (device) without_numerics(&shared->p);
    if (graphs) shared->p.setup.mode = ETCH_MODE_REDUCE_OVERHEAD;
}

static void end_worker(void) {
    etch_device_stats_t s = etch_device_stats(device), *t = &shared->stats;
    t->launches += s.launches, t->graphs += s.graphs;
    t->graph_launches += s.graph_launches, t->graph_patches += s.graph_patches;
    shared->processor += processor_seconds();
    _exit(0);
}

static void run_seed(const options *o, uint64_t seed, bool native) {
    shared->running = false;
    make_program(o, seed, native);
    /* A segment that has to end is an error under fullgraph. */
    if (getenv("ETCH_MAX_SEGMENT")) shared->p.setup.fullgraph = 0;
    bool same = run_program(native);
    count_program(&shared->p, &shared->result, native);
    if (!same) end_worker();
    shared->running = false;
}

/* A program for native has a twin, with the same statements over other dtypes: kernels that must
 * not be taken for each other. */
static void run_native(const options *o, uint64_t seed) {
    run_seed(o, seed, true);
    run_seed(o, seed | FUZZ_TWIN, true);
}

/* The worker: programs until one fails, the epoch or time is over. */
static void work(const options *o, double start) {
    set_isa();
    etch_set_log_sink(watch_cache, NULL);
    etch_set_logs("cache");
    int canaries = shared->ncanaries, natives = 0;
    for (int i = 0; i < canaries; i++) run_seed(o, shared->canary[i], true);
    shared->ncanaries = 0;
    for (int n = 0; n < EPOCH_ALL && natives < EPOCH && time_left(o, start, processor_seconds());
         n++) {
        uint64_t seed = shared->next++;
        bool native = o->native && seed % (uint64_t)o->native == 0;
        if (!native) {
            run_seed(o, seed, false);
            continue;
        }
        if (natives++ < CANARIES) shared->canary[shared->ncanaries++] = seed;
        run_native(o, seed);
    }
    shared->isa = (shared->isa + 1) % (int)(sizeof isas / sizeof *isas);
    end_worker();
}

static const char *const statement_names[] = {
#define KIND(id, operands, c) #id,
    FUZZ_STATEMENTS(KIND)
#undef KIND
};
static const char *const layout_names[] = {"contiguous", "transposed", "stepped", "reversed",
                                           "offset",     "expanded",   "wrapped", "same",
                                           "shifted",    "over"};
static const char *const action_names[] = {"compute",   "write", "write, read",  "poke",
                                           "poke, end", "peek",  "flush, write", "write, fail"};
static const char *const place_names[] = {"disabled", "inline", "thread", "kernel", "free"};
static const char *const circumstance_names[] = {"careful", "numerics", "starved", "replay"};

static void print_line(const char *what, const char *name, int64_t all, int64_t native) {
    printf("coverage: %-9s %-32s %9lld %9lld\n", what, name, (long long)all, (long long)native);
}

static void print_coverage(void) {
    const tally *t = &shared->all, *u = &shared->in_native;
    printf("coverage: %-9s %-32s %9s %9s\n", "what", "name", "all", "native");
    for (int i = 0; i < OP_COUNT; i++)
        print_line("operator", etch__ops[i].name, t->operators[i], u->operators[i]);
    for (int i = 0; i < ST_COUNT; i++)
        print_line("statement", statement_names[i], t->statements[i], u->statements[i]);
    for (int i = 0; i < ETCH_DTYPE_COUNT; i++)
        print_line("dtype", etch_dtype_name(i), t->dtypes[i], u->dtypes[i]);
    for (int i = 0; i < FUZZ_LAYOUTS; i++)
        print_line("layout", layout_names[i], t->layouts[i], u->layouts[i]);
    for (int i = 0; i < FUZZ_ACTIONS; i++)
        print_line("action", action_names[i], t->actions[i], u->actions[i]);
    for (int i = 0; i < FUZZ_PLACES; i++)
        print_line("place", place_names[i], t->places[i], u->places[i]);
    for (int i = 0; i < COUNT_OF(circumstance_names); i++)
        print_line("setup", circumstance_names[i], t->circumstances[i], u->circumstances[i]);
}

static void print_reached(const tally *t, const char *where) {
    int n = 0, missed = 0;
    for (int i = 0; i < OP_COUNT; i++) n += t->operators[i] > 0;
    printf("fuzz: %d of %d operators in %s programs; not:", n, OP_COUNT, where);
    for (int i = 0; i < OP_COUNT; i++)
        if (!t->operators[i] && missed++ < 12) printf(" %s", etch__ops[i].name);
    printf("%s\n", missed > 12 ? " ..." : "");
}

static void print_summary(const options *o, int findings, double seconds) {
    const board *b = shared;
    printf("fuzz: seeds %llu to %llu, %.0f s, %.0f s of processor: %lld programs (%lld native, "
           "%lld with "
           "gradients), %lld operators, %lld calls\n",
           (unsigned long long)o->seed, (unsigned long long)b->next - 1, seconds, b->processor,
           (long long)b->programs, (long long)b->native_programs, (long long)b->grad_programs,
           (long long)b->operators, (long long)b->calls);
    print_reached(&b->all, "all");
    if (b->native_programs) print_reached(&b->in_native, "native");
    printf("fuzz: %lld graphs, %lld kernels, %lld launches, %lld failed compiles\n",
           (long long)b->graphs, (long long)b->kernels, (long long)b->launches,
           (long long)b->failed_compiles);
    if (device)
        printf(
            "fuzz: %s: %lld kernels launched one by one, %lld CUDA graphs launched %lld times with "
            "%lld words patched\n",
            etch_device_name(device), (long long)b->stats.launches, (long long)b->stats.graphs,
            (long long)b->stats.graph_launches, (long long)b->stats.graph_patches);
    double later = b->later ? 100.0 / (double)b->later : 0;
    printf("fuzz: of %lld later calls %.1f %% ran plans, %.1f %% nothing but plans\n",
           (long long)b->later, (double)b->compiled * later, (double)b->compiled_only * later);
    printf("fuzz: %lld calls were replays\n", (long long)b->replayed);
    if (b->grad_later)
        printf("fuzz: of %lld with gradients %.1f %% ran plans\n", (long long)b->grad_later,
               100.0 * (double)b->grad_compiled / (double)b->grad_later);
    printf("fuzz: %d finding%s\n", findings, findings == 1 ? "" : "s");
    if (b->failed_compiles) printf("fuzz: some programs were not compiled: nothing was tested\n");
    if (o->coverage) print_coverage();
}

/* Falling back must not hide faults; a handful of programs says nothing. Where gradients are there
 * or not, and hooks come and go, there are more paths to learn. */
static bool too_few_compiled(void) {
    const board *b = shared;
    int64_t later = b->later - b->grad_later, compiled = b->compiled - b->grad_compiled;
    if (b->grad_later > 1000 && b->grad_compiled * 100 < b->grad_later * 80) return true;
    return later > 1000 && compiled * 100 < later * 95;
}

static int fuzz(const options *o) {
    double start = now();
    int findings = 0;
    shared->next = o->seed;
    while (time_left(o, start, 0) && findings < o->failures) {
        fflush(stdout);
        shared->running = false;
        pid_t child = fork();
        if (!child) work(o, start);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) < 0) return 2;
        finding found = classify(status);
        if (!found && WIFEXITED(status) && !WEXITSTATUS(status)) continue;
        if (!found) {
            printf("\n== seed %llu: the generator itself failed\n",
                   (unsigned long long)shared->next - 1);
            findings++;
            continue;
        }
        findings++;
        shared->ncanaries = 0; /* or one of them might be found again and again */
        report(found, o->reduce);
    }
    print_summary(o, findings, now() - start);
    return findings > 0 || shared->failed_compiles > 0 || too_few_compiled();
}

static int fuzz_one(const options *o) {
    etch_set_log_sink(no_log, NULL);
    make_program(o, o->seed, o->native == 1);
    fuzz_print(stdout, &shared->p, "native", device, "as generated");
    int failed = 0;
    for (int native = 0; native < 2; native++) {
        bool same = run_program(native);
        failed |= !same;
        printf("/* %s: %s; %d of %d later calls ran plans, %d nothing else */\n",
               backend_name(native, &shared->p), same ? "no difference" : shared->result.difference,
               shared->result.compiled, shared->result.later, shared->result.compiled_only);
    }
    return failed;
}

/* ---- the command ---- */

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at) {
    (void)s;
    (void)type;
    (void)at;
    return remove(path);
}

static bool parse(int argc, char **argv, options *o) {
    for (int i = 1; i < argc; i++) {
        if (i + 1 == argc) return false;
        const char *name = argv[i], *value = argv[++i];
        if (!strcmp(name, "--seconds")) o->seconds = atof(value);
        else if (!strcmp(name, "--processor")) o->processor = atof(value);
        else if (!strcmp(name, "--programs")) o->programs = atoll(value);
        else if (!strcmp(name, "--seed")) o->seed = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--native")) o->native = atoi(value), o->native_given = true;
        else if (!strcmp(name, "--gradients")) o->grads = atoi(value);
        else if (!strcmp(name, "--failures")) o->failures = atoi(value);
        else if (!strcmp(name, "--reduce")) o->reduce = atoi(value);
        else if (!strcmp(name, "--coverage")) o->coverage = atoi(value);
        else if (!strcmp(name, "--device")) device = etch_device_parse(value);
        else if (!strcmp(name, "--one")) o->one = true, o->seed = strtoull(value, NULL, 10);
        else return false;
    }
    if (!o->native_given && device) o->native = 2;
    return device >= 0;
}

/* Asked in a process of its own. */
static bool device_is_there(void) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        bool there = etch_set_device(device) == ETCH_OK;
        if (!there) printf("fuzz: skipped: %s\n", etch_last_error());
        fflush(stdout);
        _exit(!there);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv) {
    options o = {.seed = 1, .native = 8, .grads = 3, .failures = 10, .reduce = 1};
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: etch_fuzz [--seconds N] [--processor N] [--programs N] [--seed S] "
                        "[--native K] [--gradients K] [--failures N] [--reduce 0|1] [--one S] "
                        "[--coverage 0|1] [--device NAME]\n");
        return 2;
    }
    if (!o.seconds && !o.programs && !o.processor) o.seconds = 60;
    mallopt(M_PERTURB, 0xa5); /* memory that was not written holds no right values by luck */
    char cache[] = "/tmp/etch-fuzz-XXXXXX";
    if (!mkdtemp(cache)) return 2;
    setenv("ETCH_CACHE_DIR", cache, 1);
    setenv("ETCH_NUM_THREADS", "1", 0);
    if (device && !device_is_there()) return 77;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    int status = o.one ? fuzz_one(&o) : fuzz(&o);
    nftw(cache, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return status;
}
