/* The benchmark's own small frame: a clock, interleaved rounds, rows of CSV.
 *
 * On a shared machine only ratios taken at one time count. So the variants of a row take turns:
 * each of five rounds runs every variant once, long enough to be timed, and the medians are
 * printed. */
#ifndef ETCH_BENCH_H
#define ETCH_BENCH_H

#include <etch/etch.h>

enum { BENCH_ROUNDS = 5, BENCH_SHORT_ROUNDS = 60, BENCH_MAX_VARIANTS = 8 };

/* One way to do a row's work. run does it `calls` times. */
typedef struct bench_variant {
    const char *name;
    void (*run)(void *ctx, int64_t calls);
    void *ctx;
    double first_call_ms; /* 0: not printed */
    double compile_ms;    /* of all its kernels, where the row is to say when it pays; else 0 */
    int threads;          /* 0: the benchmark's setting */
    double median_us;     /* result */
    double best_us;       /* result: the fastest round, for differences of small figures */
} bench_variant;

typedef struct bench_row {
    const char *workload, *size;
    const char *dtype, *device; /* NULL: f32, cpu */
    double divisor;             /* microseconds are divided by it, e.g. operators a call; 0: 1 */
    bench_variant variants[BENCH_MAX_VARIANTS];
    int count;
    bool best; /* prints the fastest of many short rounds, for ratios near 1 on a busy machine */
} bench_row;

/* One way to compile a row's function. */
typedef struct bench_form {
    const char *name;
    etch_mode_kind mode;
    etch_numerics numerics;
} bench_form;

/* The strict ones come first: compiled, reduce-overhead, max-autotune. The same relaxed follow. */
enum { BENCH_FORMS = 6, BENCH_STRICT_FORMS = 3 };
extern const bench_form bench_forms[BENCH_FORMS];

/* A function of two tensors, and its runs: the context of a variant. */
typedef struct bench_job {
    etch_fn2 body;
    etch_function *f;
    etch_tensor *x, *y;
} bench_job;
void bench_run_eager(void *ctx, int64_t calls);
void bench_run_compiled(void *ctx, int64_t calls); /* ends the program where a call fails */

double bench_now_us(void);
void bench_use_processor_time(void); /* as bench_now_us's, from here on */
double bench_median(double *values, int n);
/* Measures all variants in turns and prints a line for each; speedup is the first one's median over
 * the line's own. Where a compile was timed, breakeven_calls is how many calls, each faster than
 * the first variant's, make up for it; "never" where they are not. */
void bench_measure(bench_row *row);
/* From here on rows are not printed but measured sample by sample, as standard input asks:
 * bench/peers.py takes turns with another program in this way. See measure.c for what is said.
 * processor_time: of all threads together, which other programs' work lengthens less. */
void bench_serve(bool processor_time);
/* Whether a compiled function's result is the eager one: its bits, under
 * relaxed numerics its digits. */
bool bench_as_expected(etch_tensor *expected, etch_tensor *got, etch_numerics numerics);
/* Prints one line whose figure was measured elsewhere; breakeven_calls stays empty. */
void bench_print(const char *workload, const char *size, int threads, const char *variant,
                 double median_us, double first_call_ms, double speedup);
void bench_print_on(const char *device, const char *workload, const char *size, int threads,
                    const char *variant, double median_us, double first_call_ms, double speedup);
/* Whether the names given on the command line (none: all) select this workload. */
bool bench_selected(const char *workload);
/* The same, of rows that take minutes: only where a name selects them. */
bool bench_named(const char *workload);
/* Whether rows run on a GPU, which is the current device then. */
bool bench_on_gpu(void);
/* Ends the program with the library's last error. */
_Noreturn void bench_fail(const char *what);
/* Prints the library's last error, for what the other rows need not end with; the program's exit
 * status will be that of a failure. */
void bench_report(const char *workload, const char *what);

/* The body of a pointwise row ("cheap", "rms", ...), NULL where there is none; *arrays is how many
 * arrays it reads or writes once. */
etch_fn2 bench_body(const char *name, size_t *arrays);

/* One file each. */
void bench_device(void);    /* the same functions on a GPU, with --device cuda */
void bench_workloads(void); /* whole functions, eager beside compiled beside a bound */
void bench_scaling(void);   /* two threads against one */
void bench_whether(void);   /* dynamic sizes, breaks: when compiling is worth it */
void bench_threads(void);   /* two threads that call one function */
void bench_overheads(void); /* what a call and an operator cost */
void bench_modes(void);     /* what modes and the profiler cost */
void bench_memory(void);    /* peaks of memory, in columns of their own */
void bench_training(void);  /* steps of training */
void bench_training_memory(void);
void bench_models(void);       /* forward passes of whole models */
void bench_program_rows(void); /* ordinary programs of many rounds */
void bench_attention(void);    /* attention of several heads */
void bench_limits(void);       /* what the machine can do */
void bench_mapping(void);      /* a function of one sample over a batch: loops and etch_vmap */
void bench_saved(void);        /* what compiled forward passes keep for backward */
/* Operators x dtypes x layouts, with arguments of its own (sweep.c); the exit status. */
int bench_sweep(int argc, char **argv);
void bench_quantized(void); /* weights of few bits */
/* Reads so many bytes of memory, on the threads that the library uses. */
void bench_read(size_t bytes);
void bench_cold(const char *self, bool cuda);
/* A fresh process: prints microseconds of the compile and of the first call. */
int bench_cold_child(const char *device, const char *body, int64_t n);
/* First calls of exported functions, in fresh processes: on the current device. */
void bench_exported(const char *self, bool cuda);
/* A fresh process: prints microseconds of the import, the first call, and a later one. */
int bench_exported_child(const char *device, int number, const char *path);

/* The seed program, used by several files. */
etch_tensor *bench_seed(etch_tensor *x, etch_tensor *w);
etch_tensor *bench_chain(etch_tensor *x, etch_tensor *y);
etch_tensor *bench_allsum(etch_tensor *x, etch_tensor *y);
/* A random n x n matrix divided by the root of n. */
etch_tensor *bench_scaled(int64_t n);

/* bare_cursor.c: `calls` walks over a 25-operator trace, nothing but the compares. */
void bench_bare_cursor(void *ctx, int64_t calls);
/* 4096 vectorised multiplications and additions in the first cache, `calls` times. */
void bench_bare_floats(void *ctx, int64_t calls);

#endif
