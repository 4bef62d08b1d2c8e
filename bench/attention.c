/* Attention of one batch, heads x length x width: eager, compiled, and written out in products and
 * a softmax. Rows run where they are named. */
#include "bench.h"

#include <math.h>
#include <stdio.h>

/* x: query, key and value. */
static etch_tensor *attend(etch_tensor *x, bool causal) {
    return etch_scaled_dot_product_attention(etch_select(x, 0, 0), etch_select(x, 0, 1),
                                             etch_select(x, 0, 2), ETCH_NONE, 0, causal, 0);
}
static etch_tensor *full(etch_tensor *x, etch_tensor *y) { return (void)y, attend(x, false); }
static etch_tensor *causal(etch_tensor *x, etch_tensor *y) { return (void)y, attend(x, true); }

static etch_tensor *written_out(etch_tensor *x, etch_tensor *y) {
    double scale = 1 / sqrt((double)etch_size(x, -1));
    etch_tensor *q = etch_mul_scalar(etch_select(x, 0, 0), scale);
    etch_tensor *k = etch_transpose(etch_select(x, 0, 1), -2, -1);
    (void)y;
    return etch_matmul(etch_softmax(etch_matmul(q, k), -1), etch_select(x, 0, 2));
}

static bench_variant variant_of(const char *name, bench_job *j) {
    ETCH_SCOPE {
        etch_tensor *eager = j->body(j->x, j->y), *compiled = NULL;
        for (int i = 0; i < 3; i++) compiled = etch_call(j->f, j->x, j->y);
        if (!eager || !compiled || !bench_as_expected(eager, compiled, ETCH_STRICT))
            bench_fail("compiled attention differs from eager");
    }
    return (bench_variant){.name = name, .run = bench_run_compiled, .ctx = j};
}

static void run_row(const char *workload, etch_fn2 body, etch_dtype dtype, const int64_t *size) {
    char text[64];
    snprintf(text, sizeof text, "%lldx%lldx%lld", (long long)size[0], (long long)size[1],
             (long long)size[2]);
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(3, size[0], size[1], size[2]));
        x = etch_to(x, dtype);
        bench_job j = {body, etch_compile(body, .name = workload), x, x};
        bench_job plain = {written_out, etch_compile(written_out), x, x};
        bench_row row = {.workload = workload, .size = text, .dtype = etch_dtype_name(dtype)};
        row.variants[row.count++] = (bench_variant){"eager", .run = bench_run_eager, .ctx = &j};
        row.variants[row.count++] = variant_of("compiled", &j);
        if (body == full) row.variants[row.count++] = variant_of("written out", &plain);
        bench_measure(&row);
        etch_function_free(j.f), etch_function_free(plain.f);
    }
}

void bench_attention(void) {
    static const int64_t sizes[][3] = {{12, 128, 32}, {12, 512, 64}, {16, 2048, 128}};
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++) {
            if (bench_named("attention")) run_row("attention", full, dtypes[d], sizes[i]);
            if (bench_named("attention_causal"))
                run_row("attention_causal", causal, dtypes[d], sizes[i]);
        }
}
