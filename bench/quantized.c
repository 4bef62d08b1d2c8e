/* Products of one and of eight rows with weights of 4096 x 4096 of 8 and 4 bits, which are read
 * from memory: the weights of a pool of 256 MiB and more take turns. "/32 bf16": in groups of 32,
 * with scales of bf16 (else f32). Beside them what reading as
 * many bytes takes, weights and scales, in the same way and on as many threads. */
#include "bench.h"

#include <etch/nn.h>
#include <stdio.h>

enum { SIDE = 4096, POOL = 32 };

typedef struct weights {
    etch_tensor *x, *packed[POOL], *scales[POOL];
    etch_function *f;
    int count, next;
    size_t bytes;
} weights;

static etch_tensor *body(etch_tensor *x, etch_tensor *packed, etch_tensor *scales) {
    return etch_linear_q(x, packed, scales, ETCH_NONE);
}

static int turn(weights *w) { return w->next = (w->next + 1) % w->count; }

static void run_eager(void *ctx, int64_t calls) {
    weights *w = ctx;
    for (int64_t i = 0; i < calls; i++)
        ETCH_SCOPE {
            int k = turn(w);
            if (!body(w->x, w->packed[k], w->scales[k])) bench_fail("linear_q");
        }
}

static void run_compiled(void *ctx, int64_t calls) {
    weights *w = ctx;
    for (int64_t i = 0; i < calls; i++)
        ETCH_SCOPE {
            int k = turn(w);
            if (!etch_call(w->f, w->x, w->packed[k], w->scales[k])) bench_fail("linear_q");
        }
}

/* All calls' bytes at once: what threads cost is not the memory's. */
static void run_read(void *ctx, int64_t calls) {
    bench_read(((weights *)ctx)->bytes * (size_t)calls);
}

static void fill(weights *w, int bits, int64_t group, etch_dtype kind, int64_t rows) {
    size_t pool = (size_t)256 << 20;
    etch_manual_seed(0);
    *w = (weights){.x = etch_randn(ETCH_F32, ETCH_SHAPE(rows, SIDE)), .f = etch_compile(body)};
    for (size_t bytes = 0; bytes < pool && w->count < POOL; bytes += w->bytes, w->count++)
        ETCH_SCOPE {
            etch_tensor *q, *s, *full = bench_scaled(SIDE);
            if (etch_quantize_with(full, bits, group, kind, &q, &s) != ETCH_OK)
                bench_fail("etch_quantize_with");
            w->bytes = (size_t)etch_numel(q) + (size_t)etch_numel(s) * (kind == ETCH_F32 ? 4 : 2);
            w->packed[w->count] = etch_retain(q), w->scales[w->count] = etch_retain(s);
        }
    if (!w->x || !w->f) bench_fail("linear_q");
}

static void clear(weights *w) {
    etch_function_free(w->f);
    for (int i = 0; i < w->count; i++) etch_release(w->packed[i]), etch_release(w->scales[i]);
}

static void measure(int bits, int64_t group, etch_dtype kind, int64_t rows) {
    char size[64];
    weights w;
    fill(&w, bits, group, kind, rows);
    int n = snprintf(size, sizeof size, "%lldx%dx%d int%d", (long long)rows, SIDE, SIDE, bits);
    if (group) n += snprintf(size + n, sizeof size - (size_t)n, "/%lld", (long long)group);
    if (kind != ETCH_F32) snprintf(size + n, sizeof size - (size_t)n, " %s", etch_dtype_name(kind));
    bench_row r = {.workload = "linear_q", .size = size, .count = 3};
    r.variants[0] = (bench_variant){.name = "read", .run = run_read, .ctx = &w};
    r.variants[1] = (bench_variant){.name = "eager", .run = run_eager, .ctx = &w};
    r.variants[2] = (bench_variant){.name = "compiled", .run = run_compiled, .ctx = &w};
    bench_measure(&r);
    clear(&w);
}

void bench_quantized(void) {
    if (!bench_named("linear_q")) return;
    for (int64_t rows = 1; rows <= 8; rows *= 8)
        ETCH_SCOPE {
            measure(8, 0, ETCH_F32, rows);
            measure(8, 64, ETCH_F32, rows);
            for (int64_t group = 128; group >= 32; group /= 2)
                measure(4, group, ETCH_F32, rows), measure(4, group, ETCH_BF16, rows);
        }
}
