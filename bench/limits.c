/* What the machine can do, as rows of their own beside those that are compared with it: reading
 * and copying 256 MiB, and products of 1024 x 1024 matrices in f32 and bf16 (2.147 GFLOP). */
#include "bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MIB = 256, MAX_READERS = 64, SIDE = 1024 };

/* One thread's part. */
typedef struct part {
    pthread_t thread;
    uint64_t *from, *to; /* to: NULL to read only */
    size_t words;
    uint64_t sum;
} part;

typedef uint64_t lanes __attribute__((vector_size(64)));

/* Four streams, as rows of a matrix are read, with wide loads where there are any. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static uint64_t
read_all(const uint64_t *from, size_t words) {
    const lanes *p = (const lanes *)from;
    size_t quarter = words / 32;
    lanes s[4] = {{0}};
    for (size_t i = 0; i < quarter; i++)
        for (size_t k = 0; k < 4; k++) {
            __builtin_prefetch(p + k * quarter + i + 16);
            s[k] ^= p[k * quarter + i];
        }
    uint64_t sum = 0;
    for (int k = 0; k < 32; k++) sum ^= s[k / 8][k % 8];
    return sum;
}

static void *work(void *arg) {
    part *p = arg;
    if (p->to) memcpy(p->to, p->from, p->words * sizeof *p->to);
    else p->sum = read_all(p->from, p->words);
    return NULL;
}

static uint64_t *from, *to;
static size_t words = (size_t)MIB << 17;

static void begin(void) {
    size_t bytes = words * sizeof *from;
    if (from) return;
    from = aligned_alloc(1 << 21, bytes), to = aligned_alloc(1 << 21, bytes);
    if (!from || !to) bench_fail("memory of the limits");
    madvise(from, bytes, MADV_HUGEPAGE), madvise(to, bytes, MADV_HUGEPAGE);
    memset(from, 1, bytes), memset(to, 2, bytes);
}

/* The first so many words, each thread its own. */
static void in_parts(size_t count, bool copy) {
    part parts[MAX_READERS];
    size_t n = (size_t)etch_num_threads();
    n = n < MAX_READERS ? n : MAX_READERS;
    for (size_t i = 0; i < n; i++) {
        size_t first = count / n / 32 * 32 * i,
               end = i + 1 < n ? count / n / 32 * 32 * (i + 1) : count;
        parts[i] = (part){0, from + first, copy ? to + first : NULL, end - first, 0};
        if (i && pthread_create(&parts[i].thread, NULL, work, &parts[i]) != 0) bench_fail("limits");
    }
    work(&parts[0]);
    for (size_t i = 1; i < n; i++) pthread_join(parts[i].thread, NULL);
    static volatile uint64_t seen;
    for (size_t i = 0; i < n; i++) seen = parts[i].sum;
    (void)seen;
}

void bench_read(size_t bytes) {
    begin();
    for (size_t left = bytes / sizeof *from; left > 0;) {
        size_t count = left < words ? left : words;
        in_parts(count, false);
        left -= count;
    }
}

static void run_read(void *ctx, int64_t calls) {
    (void)ctx;
    for (int64_t i = 0; i < calls; i++) in_parts(words, false);
}

static void run_copy(void *ctx, int64_t calls) {
    (void)ctx;
    for (int64_t i = 0; i < calls; i++) in_parts(words, true);
}

static etch_tensor *product(etch_tensor *x, etch_tensor *y) { return etch_mm(x, y); }

static bench_job product_of(etch_dtype dtype) {
    etch_tensor *x = etch_to(bench_scaled(SIDE), dtype);
    return (bench_job){.body = product, .x = x, .y = x};
}

void bench_limits(void) {
    if (!bench_named("limits")) return;
    begin();
    ETCH_SCOPE {
        bench_job f32 = product_of(ETCH_F32), bf16 = product_of(ETCH_BF16);
        bench_row r = {.workload = "limits", .size = "256MiB 1024x1024", .count = 4};
        r.variants[0] = (bench_variant){.name = "read", .run = run_read};
        r.variants[1] = (bench_variant){.name = "copy", .run = run_copy};
        r.variants[2] = (bench_variant){.name = "product f32", .run = bench_run_eager, .ctx = &f32};
        r.variants[3] =
            (bench_variant){.name = "product bf16", .run = bench_run_eager, .ctx = &bf16};
        bench_measure(&r);
    }
}
