/* Cold compiles. Each figure comes from a fresh process, this program started again with
 * --cold-child: no helper is warm, the cache folder is either empty or filled by the run before.
 * median_us is the compile of the seed's graph between the library's own callbacks, first_call_ms
 * the whole first call, the eager run that records included. */
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

int bench_cold_child(int64_t n) {
    etch_set_num_threads(1);
    etch_on_compile_start(on_start, NULL), etch_on_compile_end(on_end, NULL);
    etch_function *f = etch_compile(bench_seed);
    double first = 0;
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(n, n));
        etch_tensor *w = bench_scaled(n);
        etch_mm(x, w), etch_sin(x); /* first use of the product library and the pool */
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

/* Runs `self --cold-child n` with its kernel cache in directory. */
static cold_times run_child(const char *self, const char *directory, int64_t n) {
    char command[8192];
    snprintf(command, sizeof command, "ETCH_CACHE_DIR='%s' '%s' --cold-child %lld", directory, self,
             (long long)n);
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

void bench_cold(const char *self) {
    if (!bench_selected("cold compile")) return;
    double cold[2][BENCH_ROUNDS], first[2][BENCH_ROUNDS];
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        char directory[] = "/tmp/etch-bench-XXXXXX";
        if (!mkdtemp(directory)) bench_fail("cold compile: mkdtemp");
        for (int warm = 0; warm < 2; warm++) {
            cold_times t = run_child(self, directory, 256);
            cold[warm][r] = t.compile_us, first[warm][r] = t.first_us;
            if (warm && t.cache_hits == 0) fprintf(stderr, "cold compile: the cache was not hit\n");
        }
        remove_tree(directory);
    }
    double empty = bench_median(cold[0], BENCH_ROUNDS), hit = bench_median(cold[1], BENCH_ROUNDS);
    bench_print("cold compile", "seed 256x256", 1, "empty cache", empty,
                bench_median(first[0], BENCH_ROUNDS) * 1e-3, 1);
    bench_print("cold compile", "seed 256x256", 1, "disk cache", hit,
                bench_median(first[1], BENCH_ROUNDS) * 1e-3, hit > 0 ? empty / hit : 0);
}
