/* Cold compiles. Each figure comes from a fresh process, this program started again with
 * --cold-child: no helper is warm, the cache folder is either empty or filled by the run before.
 * median_us is the compile of the graph between the library's own callbacks, first_call_ms the
 * whole first call, the eager run that records included. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static double compile_us, compile_start;

static void on_start(void *ctx) {
    (void)ctx;
    compile_start = bench_now_us();
}
static void on_end(void *ctx) {
    (void)ctx;
    compile_us += bench_now_us() - compile_start;
}

/* What a program has behind it when it compiles its first graph: the product library and the pool,
 * or the device and NVRTC (for what it copied or filled), were used. */
static void warm_up(etch_tensor *x, etch_tensor *w, bool cuda) {
    if (cuda) etch_synchronize(ETCH_CUDA(0));
    else etch_mm(x, w), etch_sin(x);
}

int bench_cold_child(const char *device, const char *name, int64_t n) {
    bool cuda = strcmp(device, "cuda") == 0;
    size_t arrays;
    etch_fn2 body = strcmp(name, "seed") == 0 ? bench_seed : bench_body(name, &arrays);
    if (!cuda) etch_set_num_threads(1);
    else if (etch_set_device(ETCH_CUDA(0)) != ETCH_OK) bench_fail("--device cuda");
    etch_on_compile_start(on_start, NULL), etch_on_compile_end(on_end, NULL);
    etch_function *f = etch_compile_fn2(
        body, &(etch_compile_options){.struct_size = sizeof(etch_compile_options), .name = name});
    double first = 0;
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(n, n));
        etch_tensor *w = bench_scaled(n);
        warm_up(x, w, cuda);
        double start = bench_now_us();
        if (!etch_call(f, x, w)) bench_fail("cold compile");
        first = bench_now_us() - start;
    }
    etch_function_free(f);
    etch_counters_t c = etch_counters();
    if (c.compile_failures) bench_fail("cold compile: a compile failed");
    printf("%f %f %lld\n", compile_us, first, (long long)c.cache_hits);
    return 0;
}

typedef struct cold_times {
    double compile_us, first_us;
    long long cache_hits;
} cold_times;

typedef struct cold_row {
    const char *body;
    int64_t n;
    bool waits; /* on a GPU: also for the kernels that else are compiled beside the program */
} cold_row;

/* Runs `self --cold-child ...` with its kernel cache in directory, and without the cache that NVRTC
 * keeps for itself in the user's home. */
static cold_times run_child(const char *self, const char *directory, const char *device,
                            const cold_row *row) {
    char command[8192];
    snprintf(command, sizeof command,
             "CUDA_CACHE_DISABLE=1 ETCH_COMPILE_BESIDE=%d ETCH_CACHE_DIR='%s' '%s' --cold-child %s "
             "%s %lld",
             !row->waits, directory, self, device, row->body, (long long)row->n);
    cold_times t = {0};
    FILE *pipe = popen(command, "r");
    if (!pipe) bench_fail("cold compile: popen");
    int fields = fscanf(pipe, "%lf %lf %lld", &t.compile_us, &t.first_us, &t.cache_hits);
    if (pclose(pipe) != 0 || fields != 3) bench_fail("cold compile: the child failed");
    return t;
}

static void remove_tree(const char *directory) {
    char command[4200];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0) fprintf(stderr, "could not remove %s\n", directory);
}

static void run_row(const char *self, const char *device, const cold_row *row) {
    double cold[2][BENCH_ROUNDS], first[2][BENCH_ROUNDS];
    char size[48];
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        char directory[] = "/tmp/etch-bench-XXXXXX";
        if (!mkdtemp(directory)) bench_fail("cold compile: mkdtemp");
        for (int warm = 0; warm < 2; warm++) {
            cold_times t = run_child(self, directory, device, row);
            cold[warm][r] = t.compile_us, first[warm][r] = t.first_us;
            if (warm && t.cache_hits == 0) fprintf(stderr, "cold compile: the cache was not hit\n");
        }
        remove_tree(directory);
    }
    snprintf(size, sizeof size, "%s %lldx%lld", row->body, (long long)row->n, (long long)row->n);
    double empty = bench_median(cold[0], BENCH_ROUNDS), hit = bench_median(cold[1], BENCH_ROUNDS);
    bench_print_on(device, "cold compile", size, 1,
                   row->waits ? "empty cache and waiting" : "empty cache", empty,
                   bench_median(first[0], BENCH_ROUNDS) * 1e-3, 1);
    bench_print_on(device, "cold compile", size, 1,
                   row->waits ? "disk cache and waiting" : "disk cache", hit,
                   bench_median(first[1], BENCH_ROUNDS) * 1e-3, hit > 0 ? empty / hit : 0);
}

void bench_cold(const char *self, bool cuda) {
    static const cold_row on_cpu = {"seed", 256, false};
    static const cold_row on_gpu[] = {
        {"seed", 10, false},    {"seed", 64, false},  {"seed", 512, false},   {"seed", 512, true},
        {"chain", 4096, false}, {"rms", 4096, false}, {"allsum", 4096, false}};
    if (!bench_selected("cold compile")) return;
    if (!cuda) run_row(self, "cpu", &on_cpu);
    for (size_t i = 0; cuda && i < sizeof on_gpu / sizeof *on_gpu; i++)
        run_row(self, "cuda", &on_gpu[i]);
}
