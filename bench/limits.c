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

typedef struct memory {
    uint64_t *from, *to;
    uint64_t sum;
} memory;

static void in_parts(memory *m, uint64_t *to) {
    part parts[MAX_READERS];
    size_t n = (size_t)etch_num_threads(), words = (size_t)MIB << 17;
    n = n < MAX_READERS ? n : MAX_READERS;
    for (size_t i = 0; i < n; i++) {
        size_t begin = words / n / 32 * 32 * i,
               end = i + 1 < n ? words / n / 32 * 32 * (i + 1) : words;
        parts[i] = (part){0, m->from + begin, to ? to + begin : NULL, end - begin, 0};
        if (i && pthread_create(&parts[i].thread, NULL, work, &parts[i]) != 0) bench_fail("limits");
    }
    work(&parts[0]);
    for (size_t i = 0; i < n; i++) {
        if (i) pthread_join(parts[i].thread, NULL);
        m->sum ^= parts[i].sum;
    }
}

static void run_read(void *ctx, int64_t calls) {
    for (int64_t i = 0; i < calls; i++) in_parts(ctx, NULL);
}

static void run_copy(void *ctx, int64_t calls) {
    for (int64_t i = 0; i < calls; i++) in_parts(ctx, ((memory *)ctx)->to);
}

static etch_tensor *product(etch_tensor *x, etch_tensor *y) { return etch_mm(x, y); }

static bench_job product_of(etch_dtype dtype) {
    etch_tensor *x = etch_to(bench_scaled(SIDE), dtype);
    return (bench_job){.body = product, .x = x, .y = x};
}

void bench_limits(void) {
    if (!bench_named("limits")) return;
    size_t bytes = (size_t)MIB << 20;
    memory m = {aligned_alloc(1 << 21, bytes), aligned_alloc(1 << 21, bytes), 0};
    if (!m.from || !m.to) bench_fail("memory of the limits");
    madvise(m.from, bytes, MADV_HUGEPAGE), madvise(m.to, bytes, MADV_HUGEPAGE);
    memset(m.from, 1, bytes), memset(m.to, 2, bytes);
    ETCH_SCOPE {
        bench_job f32 = product_of(ETCH_F32), bf16 = product_of(ETCH_BF16);
        bench_row r = {.workload = "limits", .size = "256MiB 1024x1024", .count = 4};
        r.variants[0] = (bench_variant){.name = "read", .run = run_read, .ctx = &m};
        r.variants[1] = (bench_variant){.name = "copy", .run = run_copy, .ctx = &m};
        r.variants[2] = (bench_variant){.name = "product f32", .run = bench_run_eager, .ctx = &f32};
        r.variants[3] =
            (bench_variant){.name = "product bf16", .run = bench_run_eager, .ctx = &bf16};
        bench_measure(&r);
    }
    free(m.from), free(m.to);
}
