/* etch_bench [--serve | --serve-processor-time] [--threads N | --device cuda] [NAME...]: CSV of all
 * rows whose workload contains a NAME (of those that take minutes, only where there is one); with
 * --serve whole functions only, sample by sample (measure.c). etch_bench sweep is
 * another program (sweep.c).
 *
 * Kernels are compiled into a cache folder of this run's own, so that first_call_ms is a compile
 * and not a hit of an earlier run. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char **names;
static int name_count;

bool bench_selected(const char *workload) {
    for (int i = 0; i < name_count; i++)
        if (strstr(workload, names[i])) return true;
    return name_count == 0;
}

bool bench_named(const char *workload) { return name_count > 0 && bench_selected(workload); }

void bench_fail(const char *what) {
    fprintf(stderr, "etch_bench: %s: %s\n", what, etch_last_error());
    exit(1);
}

static bool reported;

void bench_report(const char *workload, const char *what) {
    fprintf(stderr, "etch_bench: %s: %s: %s\n", workload, what, etch_last_error());
    reported = true;
}

bool bench_on_gpu(void) { return etch_current_device() != ETCH_CPU; }

/* Starts this program again with a new cache folder in the environment, and removes the folder
 * afterwards: the library reads its environment once, maybe before main. */
static int run_with_own_cache(char **argv) {
    char directory[] = "/tmp/etch-bench-XXXXXX", command[4200];
    if (!mkdtemp(directory)) bench_fail("mkdtemp");
    setenv("ETCH_CACHE_DIR", directory, 1);
    setenv("ETCH_BENCH_CACHE", directory, 1);
    setenv("ETCH_COMPILE_BESIDE", "0", 0); /* what is measured is the best code */
    pid_t child = fork();
    if (child == 0) {
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    int status = -1;
    if (child > 0) waitpid(child, &status, 0);
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0) fprintf(stderr, "etch_bench: could not remove %s\n", directory);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void print_header(void) {
    printf("workload,size,dtype,device,threads,variant,median_us,first_call_ms,speedup,breakeven_"
           "calls\n");
}

static int run_on_gpu(const char *self, bool served) {
    if (!served) print_header(), bench_cold(self, true);
    if (etch_set_device(ETCH_CUDA(0)) != ETCH_OK) bench_fail("--device cuda");
    if (!served) bench_exported(self, true);
    bench_device();
    bench_training();
    bench_models();
    return reported;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--cold-child") == 0)
        return bench_cold_child(argv[2], argv[3], atoll(argv[4]));
    if (argc == 5 && strcmp(argv[1], "--exported-child") == 0)
        return bench_exported_child(argv[2], atoi(argv[3]), argv[4]);
    if (!getenv("ETCH_BENCH_CACHE")) return run_with_own_cache(argv);
    if (argc > 1 && strcmp(argv[1], "sweep") == 0) return bench_sweep(argc - 2, argv + 2);
    bool processor = argc > 1 && strcmp(argv[1], "--serve-processor-time") == 0;
    bool served = argc > 1 && (processor || strcmp(argv[1], "--serve") == 0);
    if (served) bench_serve(processor), argc--, argv++;
    int threads = 1, first = 1;
    if (argc > 2 && strcmp(argv[1], "--threads") == 0) threads = atoi(argv[2]), first = 3;
    if (etch_set_num_threads(threads) != ETCH_OK) bench_fail("--threads");
    bool cuda = argc > 2 && strcmp(argv[1], "--device") == 0 && strcmp(argv[2], "cuda") == 0;
    if (cuda) first = 3;
    names = argv + first, name_count = argc - first;

    char self[4096] = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) bench_fail("/proc/self/exe");
    if (cuda) return run_on_gpu(self, served);
    if (served) {
        bench_limits();
        bench_quantized();
        bench_workloads();
        bench_attention();
        bench_training();
        bench_models();
        bench_program_rows();
        return reported;
    }
    print_header();
    bench_overheads();
    bench_modes();
    bench_cold(self, false);
    bench_exported(self, false);
    bench_workloads();
    bench_attention();
    bench_training();
    bench_limits();
    bench_quantized();
    bench_models();
    bench_program_rows();
    bench_whether();
    bench_scaling();
    bench_threads();
    bench_mapping();
    bench_memory();
    bench_saved();
    return reported;
}
